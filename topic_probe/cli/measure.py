"""``topic-probe measure attention|embeddings|weights MODEL --topics T``."""

import argparse
import os
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from topic_probe.cli.console import plain, table
from topic_probe.cli.inputs import (
    CORPORA,
    CORPUS_HELP,
    DOCUMENTS,
    FROM_FIT,
    MODEL_HELP,
    OPEN_MODEL,
    TOPICS_HELP,
    WORD_LISTS,
    documents_of,
    open_corpus,
    open_model,
    open_topics,
    tokenizer_of,
    topics_path,
)
from topic_probe.cli.options import Call, Option, add_command, add_options, add_out

_SPECIAL_IDS = Option(
    "special_ids", "ids of special tokens", int, many=True, shown="what the tokenizer names"
)
_RESAMPLES = Option("n_resamples", "resampled sets behind the intervals; 0: no intervals", int, 1000)
_CONFIDENCE = Option("confidence", "share of intervals that is to hold the true number", float, 0.95)
_SEED = Option("seed", "of resampling and permutations", int, 0)
_BATCH_SIZE = Option("batch_size", "documents in one forward pass", int, 32)
_INCLUDE_SELF = Option("include_self", "a position with itself is a pair of the same word", bool, True)
_EXCLUDE = Option("exclude", "token ids left out", int, (), many=True)
_CHECKPOINT = (
    Option("checkpoint", "a folder to save sums in on the way, and to go on from"),
    Option("checkpoint_every", "seconds between two saves", float, 300.0),
)
_RATIO = ("ratio", "difference")

ATTENTION = Call(
    "topic_probe.measure.attention:measure_attention",
    (
        Option("level", "between tokens or whole words", default="token", choices=("token", "word")),
        _INCLUDE_SELF,
        _BATCH_SIZE,
        Option("max_length", "tokens of a document at most", int, shown="what the model can take"),
        Option("long", "longer documents", default="cut", choices=("cut", "chunk")),
        _SPECIAL_IDS,
        _RESAMPLES,
        _CONFIDENCE,
        Option("n_permutations", "permuted topics behind the p-values; 0: no p-values", int, 200),
        Option(
            "alternative",
            "what is extreme",
            default="two-sided",
            choices=("two-sided", "greater", "less"),
        ),
        _SEED,
        Option("through", "how attention is read", default="auto", choices=("auto", "hooks", "rows")),
        Option("check_rows", "rows that do not sum to one are an error", bool, True),
        *_CHECKPOINT,
    ),
    filled=("model", "topics", "documents", "distributed", "progress"),
)
EMBEDDINGS = Call(
    "topic_probe.measure.embeddings:measure_embeddings",
    (
        Option("center", "subtract the mean row", bool, False),
        Option("remove_components", "leading principal components taken out", int, 0),
        _EXCLUDE,
        _INCLUDE_SELF,
        _SPECIAL_IDS,
        _BATCH_SIZE,
        Option("max_length", "tokens of a document at most", int, shown="what the model can take"),
        Option("statistic", "what intervals are about", default="ratio", choices=_RATIO),
        _RESAMPLES,
        _CONFIDENCE,
        _SEED,
        *_CHECKPOINT,
    ),
    filled=("model", "topics", "documents", "distributed", "progress"),
)
WEIGHTS = Call(
    "topic_probe.measure.weights:measure_weights",
    (
        Option("circuits", "qk, ov or both", choices=("qk", "ov"), many=True, shown="what the model has"),
        _EXCLUDE,
        Option("statistic", "what intervals are about", default="difference", choices=_RATIO),
        _RESAMPLES,
        _CONFIDENCE,
        _SEED,
    ),
    filled=("model", "topics"),
)
CALLS = {"attention": ATTENTION, "embeddings": EMBEDDINGS, "weights": WEIGHTS}

_EPILOG = """example:
  topic-probe measure {kind} google-bert/bert-base-uncased --topics words.json{corpus}"""


def add_to(commands: Any) -> None:
    """The command and its three kinds."""
    parser = commands.add_parser(
        "measure",
        help="same-topic against different-topic attention, embeddings or weights of a model",
        description="Same topic against different topic, in a model: choose what to measure.",
        allow_abbrev=False,
    )
    kinds = parser.add_subparsers(metavar="attention|embeddings|weights", required=True)
    _add_kind(kinds, "attention", run_attention, "attention between words of a topic, head by head")
    _add_kind(kinds, "embeddings", run_embeddings, "embeddings of words of a topic, and states with --corpus")
    _add_kind(kinds, "weights", run_weights, "what the weights of every head do between words of a topic")


def _add_kind(kinds: Any, kind: str, run: Any, what: str) -> None:
    corpus = " --corpus bundled --max-length 256" if kind == "attention" else ""
    parser = add_command(
        kinds,
        kind,
        run,
        what,
        usage=f"measure {kind} MODEL --topics TOPICS{' --corpus CORPUS' if corpus else ''}",
        epilog=_EPILOG.format(kind=kind, corpus=corpus),
    )
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--topics", metavar="TOPICS", required=True, help=TOPICS_HELP)
    add_out(parser, "a new folder for the report")
    headings: dict[str, tuple[Call, ...]] = {"measurement": (CALLS[kind],)}
    if kind != "weights":
        needed = kind == "attention"
        parser.add_argument("--corpus", metavar="CORPUS", help=CORPUS_HELP, required=needed, default=None)
        headings |= {"documents": (*CORPORA, DOCUMENTS)}
    add_options(parser, {**headings, "topics": (WORD_LISTS, FROM_FIT), "model": (OPEN_MODEL,)})


def run_attention(parsed: argparse.Namespace) -> int:
    """Measure attention."""
    from topic_probe.measure.attention import measure_attention

    with _output(parsed) as draft:
        model, topics, documents = _inputs(parsed)
        report = measure_attention(
            model, topics, documents, **_running(parsed), **ATTENTION.arguments(parsed)
        )
        _finish(parsed, report, _attention_text(report), draft)
    _tell_of_interruption(parsed, report.provenance["options"]["stopped"])
    return 0


def run_embeddings(parsed: argparse.Namespace) -> int:
    """Measure embeddings."""
    from topic_probe.measure.embeddings import measure_embeddings

    with _output(parsed) as draft:
        model, topics, documents = _inputs(parsed)
        running = {} if documents is None else _running(parsed)
        report = measure_embeddings(model, topics, documents, **running, **EMBEDDINGS.arguments(parsed))
        text = str(report)
        if report.layers is not None:
            text += f"\n\ncosines of states, layer by layer\n{table(report.layers['cosine'].to_dataframe())}"
        _finish(parsed, report, text, draft)
    if documents is not None:
        _tell_of_interruption(parsed, report.provenance["documents"]["stopped"])
    return 0


def _running(parsed: argparse.Namespace) -> dict[str, Any]:
    return {"progress": parsed.console.progress, "distributed": int(os.environ.get("WORLD_SIZE", "1")) > 1}


def _tell_of_interruption(parsed: argparse.Namespace, stopped: str | None) -> None:
    if stopped is None:
        return
    kept = [stopped]
    if parsed.out:
        kept.append(f"the report of these is in {parsed.out}")
    if (checkpoint := getattr(parsed, "checkpoint", None)) is not None:
        kept.append(f"the same command goes on from {checkpoint}")
    raise KeyboardInterrupt("; ".join(kept))


def run_weights(parsed: argparse.Namespace) -> int:
    """Measure weights."""
    from topic_probe.measure.weights import measure_weights

    with _output(parsed) as draft:
        model, topics, _ = _inputs(parsed)
        report = measure_weights(model, topics, **WEIGHTS.arguments(parsed))
        _finish(parsed, report, str(report), draft)
    return 0


def _output(parsed: argparse.Namespace) -> Any:
    writes = parsed.out is not None and not parsed.console.silent
    from topic_probe import storage

    return storage.draft(parsed.out, overwrite=parsed.overwrite) if writes else nullcontext()


def _inputs(parsed: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Model, topics and documents (None where no texts were named); what is missing is found out first."""
    topics_path(parsed)
    named = getattr(parsed, "corpus", None) is not None
    corpus = open_corpus(parsed) if named else None
    if not named and (given := [option for call in (*CORPORA, DOCUMENTS) for option in call.given(parsed)]):
        raise ValueError(f"{given[0]} needs texts: name them with --corpus")
    model = open_model(parsed)
    topics = open_topics(parsed, model)
    if corpus is None:
        return model, topics, None
    from topic_probe.lens.capture import context_length

    return model, topics, documents_of(corpus, parsed, tokenizer_of(model), limit=context_length(model))


_SHOWN = (
    "stack",
    "layer",
    "head",
    "same_topic",
    "different_topic",
    "ratio",
    "ratio_low",
    "ratio_high",
    "q_value",
)


def _attention_text(report: Any) -> str:
    heads = report.heads.top(10).to_dataframe()
    shown = heads[[column for column in _SHOWN if column in heads]]
    best = table(shown) if len(shown) else "none: no head has a ratio"
    return (
        f"all heads\n{table(report.overall.to_dataframe())}\n\nheads with the highest ratios\n{best}\n"
        f"{_notes(report)}"
    )


def _notes(report: Any) -> str:
    counts = report.provenance
    read = f"{counts['documents']:,} documents, {counts['tokens']:,} tokens, {len(report.heads):,} heads"
    lost = {**(counts["corpus"] or {}).get("read", {}).get("left_out", {}), **counts["left_out"]}
    left_out = [f"{reason}: {count:,}" for reason, count in lost.items() if count]
    reasons = [report.overall.reason] if report.overall.reason else []
    return "\n".join(f"({note})" for note in (read, *left_out, *reasons))


def _finish(parsed: argparse.Namespace, report: Any, text: str, draft: Any) -> None:
    """Save the report if that is wanted, and answer with it."""
    document: Mapping[str, Any] = plain(report)
    if draft is not None:
        report.save(draft)
        text += f"\nsaved in {parsed.out}"
        document = {**document, "saved": os.fspath(parsed.out)}
    parsed.console.answer(text, document)
