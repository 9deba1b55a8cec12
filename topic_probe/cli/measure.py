"""``topic-probe measure attention|embeddings|weights|ablation|knockout MODEL --topics T``."""

import argparse
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from topic_probe.cli.console import WrongUsageError, plain
from topic_probe.cli.inputs import (
    CORPORA,
    CORPUS_HELP,
    DOCUMENTS,
    FROM_FIT,
    FROM_NAME,
    OPEN_MODEL,
    WORD_LISTS,
    add_model_and_topics,
    documents_of,
    look_for_topics,
    open_corpus,
    open_model,
    open_topics,
    tokenizer_of,
)
from topic_probe.cli.options import Call, Parser, add_command, add_options, add_out, add_parser

_OF_DOCUMENTS = ("model", "topics", "documents", "progress")
ATTENTION = Call(
    "topic_probe.measure.attention:measure_attention",
    filled=_OF_DOCUMENTS,
    without={"questions": "objects of a program"},
)
EMBEDDINGS = Call("topic_probe.measure.embeddings:measure_embeddings", filled=_OF_DOCUMENTS)
WEIGHTS = Call("topic_probe.measure.weights:measure_weights", filled=("model", "topics"))
ABLATION = Call(
    "topic_probe.measure.interventions:measure_ablation",
    filled=_OF_DOCUMENTS,
    without={"reference": "objects of a program"},
)
KNOCKOUT = Call("topic_probe.measure.interventions:measure_knockout", filled=_OF_DOCUMENTS)
CALLS = {
    "attention": ATTENTION, "embeddings": EMBEDDINGS, "weights": WEIGHTS, "ablation": ABLATION, "knockout": KNOCKOUT,
}  # fmt: skip

_KINDS = {
    "attention": "attention between words of a topic, head by head",
    "embeddings": "embeddings of words of a topic, and states with --corpus",
    "weights": "what the weights of every head do between words of a topic",
    "ablation": "what is lost of an outcome when heads are taken out",
    "knockout": "what is lost when words of a topic cannot read each other",
}
_OVER_DOCUMENTS = ("attention", "ablation", "knockout")
# What --quick takes of both.
_TRIAL = {"n_documents": 24, "n_permutations": 20}
_EPILOG = """example:
  topic-probe measure {kind} google-bert/bert-base-uncased --topics words.json{corpus}"""


def add_to(parser: Parser) -> None:
    """The kinds of the command, and what each takes."""
    parser.description = "Same topic against different topic, in a model: choose what to measure."
    parser.usage = "topic-probe measure KIND MODEL --topics TOPICS [options]"
    kinds = parser.add_subparsers(metavar="KIND", required=True, prog="topic-probe measure")
    for kind, what in _KINDS.items():
        add_parser(kinds, kind, what, partial(_add_kind, kind))


def _trial(kind: str) -> dict[str, int]:
    """How many documents and permutations --quick takes, where the measurement has them."""
    has = {argument.name for argument in CALLS[kind].options.values()}
    return {
        name: n for name, n in _TRIAL.items() if name in has or (name == "n_documents" and kind != "weights")
    }


def _add_kind(kind: str, parser: Parser) -> None:
    needed = kind in _OVER_DOCUMENTS
    add_command(
        parser,
        partial(run, kind),
        usage=f"measure {kind} MODEL --topics TOPICS{' --corpus CORPUS' if needed else ''}",
        epilog=_EPILOG.format(kind=kind, corpus=" --corpus bundled --max-length 256" if needed else ""),
    )
    add_model_and_topics(parser, several=kind == "attention")
    add_out(parser, "a new folder for the report")
    trial = " and ".join(f"{number} {name.removeprefix('n_')}" for name, number in _trial(kind).items())
    if trial:
        parser.add_argument(
            "--quick",
            action="store_true",
            help=f"a trial run with {trial}, where no others are given; the answer and the report say so",
        )
    headings: dict[str, tuple[Call, ...]] = {"measurement": (CALLS[kind],)}
    if kind != "weights":
        parser.add_argument("--corpus", metavar="CORPUS", help=CORPUS_HELP, required=needed, default=None)
        headings |= {"documents": (*CORPORA, DOCUMENTS)}
    add_options(parser, {**headings, "topics": (WORD_LISTS, FROM_NAME, FROM_FIT), "model": (OPEN_MODEL,)})


def run(kind: str, parsed: argparse.Namespace) -> int:
    """Measure, save the report if that is wanted, and answer with it."""
    from topic_probe import storage

    console, trial = parsed.console, {}
    if getattr(parsed, "quick", False):
        trial = {name: number for name, number in _trial(kind).items() if name not in parsed}
        if parsed.corpus is None:
            trial.pop("n_documents", None)
        vars(parsed).update(trial)
    writes = parsed.out is not None and not console.silent
    with storage.draft(parsed.out, overwrite=parsed.overwrite) if writes else nullcontext() as draft:
        inputs = _inputs(parsed)
        running: dict[str, Any] = {}
        if len(inputs) == 3:
            running = {"progress": console.progress}
        report = CALLS[kind].call(parsed, *inputs, **running)
        if isinstance(report, list):
            from topic_probe.measure.pool import pool

            report = pool(report)
        if trial:
            report = replace(report, provenance={**report.provenance, "trial": trial})
        answer(parsed, report, draft)
    if running:
        stopped = report.provenance["options" if kind == "attention" else "documents"]["stopped"]
        end_if_interrupted(parsed, stopped)
    return 0


def answer(parsed: argparse.Namespace, report: Any, draft: Path | None) -> None:
    """Save the report in a draft of what was named for it, if something was, and answer with it."""
    text, document = text_of(report), plain(report)
    if draft is not None:
        report.save(draft)
        text += f"\nsaved in {parsed.out}"
        document["saved"] = parsed.out
    parsed.console.answer(text, document)


def _inputs(parsed: argparse.Namespace) -> tuple[Any, ...]:
    """Model, topics, and documents where texts were named; what is missing is noticed first."""
    fits = _fits(parsed)
    for each in fits:
        look_for_topics(each)
    named = getattr(parsed, "corpus", None) is not None
    corpus = open_corpus(parsed) if named else None
    if not named and (given := [option for call in (*CORPORA, DOCUMENTS) for option in call.given(parsed)]):
        raise WrongUsageError(f"{given[0]} needs texts: name them with --corpus")
    model = open_model(parsed)
    topics: Any = [open_topics(each, model) for each in fits]
    topics = topics[0] if len(topics) == 1 else topics
    if corpus is None:
        return model, topics
    from topic_probe.lens.host import facts_of

    limit = facts_of(model).context_length
    return model, topics, documents_of(corpus, parsed, tokenizer_of(model), limit=limit)


def _fits(parsed: argparse.Namespace) -> list[argparse.Namespace]:
    """What was said, for the topics of every fit that was named."""
    named = parsed.topics if isinstance(parsed.topics, list) else [parsed.topics]
    return [argparse.Namespace(**{**vars(parsed), "topics": topics}) for topics in named]


def end_if_interrupted(parsed: argparse.Namespace, stopped: str | None) -> None:
    """KeyboardInterrupt where a measurement was, saying what is kept."""
    if stopped is None:
        return
    kept = [stopped]
    if parsed.out:
        kept.append(f"the report of these is in {parsed.out}")
    raise KeyboardInterrupt("; ".join(kept))


# --- answers ------------------------------------------------------------------------------------------


def text_of(report: Any) -> str:
    """What a report shows; of attention the heads with the strongest evidence, and what was read and left out."""
    if report.kind != "attention":
        return str(report)
    from topic_probe.report import about_parts, about_trial, as_text

    overall = as_text(report.table_of_all())
    tables = report.tables_of_heads().items()
    heads = "\n\n".join(f"{heading}\n{as_text(table)}" for heading, table in tables)
    counts = report.provenance
    read = f"{counts['documents']:,} documents, {counts['tokens']:,} tokens, {len(report.heads):,} heads"
    lost = {**(counts["corpus"] or {}).get("read", {}).get("left_out", {}), **counts["left_out"]}
    left_out = [f"{reason}: {count:,}" for reason, count in lost.items() if count]
    reasons = dict.fromkeys(filter(None, (report.overall.reason, report.heads.reason)))
    shares = report.variance_of_overall()
    if shares is not None:
        overall += f"\n\nthe variance of the overall ratio\n{as_text(shares)}"
    about = [report.about_intervals(), *about_trial(counts), *about_parts(counts)]
    notes = "\n".join(f"({note})" for note in (read, *left_out, *reasons, *about))
    return f"{report.about_coverage()}\n\nall heads\n{overall}\n\n{heads}\n{notes}"
