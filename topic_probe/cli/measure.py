"""``topic-probe measure attention|embeddings|weights MODEL --topics T``."""

import argparse
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
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
from topic_probe.cli.options import Call, Parser, add_command, add_options, add_out, add_parser

_OF_DOCUMENTS = ("model", "topics", "documents", "distributed", "progress")
ATTENTION = Call(
    "topic_probe.measure.attention:measure_attention",
    filled=_OF_DOCUMENTS,
    without={"accumulators": "objects of a program"},
)
EMBEDDINGS = Call("topic_probe.measure.embeddings:measure_embeddings", filled=_OF_DOCUMENTS)
WEIGHTS = Call("topic_probe.measure.weights:measure_weights", filled=("model", "topics"))
CALLS = {"attention": ATTENTION, "embeddings": EMBEDDINGS, "weights": WEIGHTS}

_EPILOG = """example:
  topic-probe measure {kind} google-bert/bert-base-uncased --topics words.json{corpus}"""


def add_to(parser: Parser) -> None:
    """The kinds of the command, and what each takes."""
    parser.description = "Same topic against different topic, in a model: choose what to measure."
    kinds = parser.add_subparsers(metavar="attention|embeddings|weights", required=True)
    for kind, (run, what) in _KINDS.items():
        add_parser(kinds, kind, what, partial(_add_kind, kind, run))


def _add_kind(kind: str, run: Callable[[argparse.Namespace], int], parser: Parser) -> None:
    corpus = " --corpus bundled --max-length 256" if kind == "attention" else ""
    add_command(
        parser,
        run,
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
    _end_if_interrupted(parsed, report.provenance["options"]["stopped"])
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
        _end_if_interrupted(parsed, report.provenance["documents"]["stopped"])
    return 0


def _running(parsed: argparse.Namespace) -> dict[str, Any]:
    return {"progress": parsed.console.progress, "distributed": int(os.environ.get("WORLD_SIZE", "1")) > 1}


def _end_if_interrupted(parsed: argparse.Namespace, stopped: str | None) -> None:
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


_KINDS = {
    "attention": (run_attention, "attention between words of a topic, head by head"),
    "embeddings": (run_embeddings, "embeddings of words of a topic, and states with --corpus"),
    "weights": (run_weights, "what the weights of every head do between words of a topic"),
}


def _output(parsed: argparse.Namespace) -> Any:
    from topic_probe import storage

    writes = parsed.out is not None and not parsed.console.silent
    return storage.draft(parsed.out, overwrite=parsed.overwrite) if writes else nullcontext()


def _inputs(parsed: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Model, topics and documents (None where no texts were named); what is missing is noticed first."""
    topics_path(parsed)
    named = getattr(parsed, "corpus", None) is not None
    corpus = open_corpus(parsed) if named else None
    if not named and (given := [option for call in (*CORPORA, DOCUMENTS) for option in call.given(parsed)]):
        raise ValueError(f"{given[0]} needs texts: name them with --corpus")
    model = open_model(parsed)
    topics = open_topics(parsed, model)
    if corpus is None:
        return model, topics, None
    from topic_probe.lens.capture import text_facts

    return (
        model,
        topics,
        documents_of(corpus, parsed, tokenizer_of(model), limit=text_facts(model).context_length),
    )


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
