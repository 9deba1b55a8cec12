"""``topic-probe compare MODEL MODEL … --topics T``: models side by side, on the same words of the same texts."""

import argparse
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from topic_probe.cli.console import WrongUsageError
from topic_probe.cli.inputs import (
    BUILTIN_TOPICS,
    CORPORA,
    CORPUS_HELP,
    MODEL_HELP,
    OPEN_MODEL,
    TOPICS_HELP,
    are_word_lists,
    look_for_topics,
    open_corpus,
    open_model,
    open_topics,
    read_word_lists,
)
from topic_probe.cli.measure import answer, end_if_interrupted
from topic_probe.cli.options import Call, Parser, add_command, add_options, add_out, mapping

COMPARE = Call(
    "topic_probe.measure.comparison:compare",
    filled=("models", "topics", "documents", "progress"),
    without={"sources": "every text of a corpus is a source of its own"},
)
_EPILOG = """example:
  topic-probe compare MiniLM=sentence-transformers/all-MiniLM-L6-v2 bge=BAAI/bge-small-en-v1.5 \\
      --topics wordnet-nouns --corpus bundled --max-length 256"""


def add_to(parser: Parser) -> None:
    """What the command takes."""
    add_command(parser, run, usage="compare MODEL MODEL … --topics TOPICS [--corpus CORPUS]", epilog=_EPILOG)
    what = f"LABEL=MODEL, or a model under its own name: {MODEL_HELP}"
    parser.add_argument("models", metavar="MODEL", nargs="+", help=what)
    parser.add_argument("--topics", metavar="TOPICS", required=True, help=TOPICS_HELP)
    parser.add_argument("--corpus", metavar="CORPUS", help=CORPUS_HELP, default=None)
    add_out(parser, "a new folder for the report")
    add_options(parser, {"comparison": (COMPARE,), "documents": CORPORA, "model": (OPEN_MODEL,)})


def run(parsed: argparse.Namespace) -> int:
    """Compare, save the report if that is wanted, and answer with it."""
    from topic_probe import storage

    names = _names(parsed.models)
    look_for_topics(parsed)
    writes = parsed.out is not None and not parsed.console.silent
    with storage.draft(parsed.out, overwrite=parsed.overwrite) if writes else nullcontext() as draft:
        corpus = None if parsed.corpus is None else open_corpus(parsed)
        if corpus is None and (given := [option for call in CORPORA for option in call.given(parsed)]):
            raise WrongUsageError(f"{given[0]} needs texts: name them with --corpus")
        models = {label: _opened(parsed, model) for label, model in names.items()}
        running = {"progress": parsed.console.progress}
        report = COMPARE.call(parsed, models, _topics(parsed, models), corpus, **running)
        answer(parsed, report, draft)
    end_if_interrupted(parsed, (report.provenance["documents"] or {}).get("stopped"))
    return 0


def _names(models: list[str]) -> dict[str, str]:
    """Models by their labels: those given, or the last part of their names."""
    labelled = [model if "=" in model else f"{Path(model).name}={model}" for model in models]
    names: dict[str, str] = mapping(labelled, "MODEL")
    if len(names) < len(models):
        raise WrongUsageError(f"models need labels that differ, got {', '.join(models)}: write LABEL=MODEL")
    return names


def _opened(parsed: argparse.Namespace, model: str) -> Any:
    return open_model(argparse.Namespace(**{**vars(parsed), "model": model}))


def _topics(parsed: argparse.Namespace, models: dict[str, Any]) -> Any:
    """The name of word lists, lists of words, or topics that were saved or fitted."""
    if parsed.topics in BUILTIN_TOPICS:
        return parsed.topics
    if are_word_lists(parsed.topics):
        return read_word_lists(parsed.topics)
    return open_topics(parsed, next(iter(models.values())))
