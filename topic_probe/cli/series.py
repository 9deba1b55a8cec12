"""``topic-probe series SERIES --topics T``: the same measurement at every checkpoint of a training."""

import argparse
from contextlib import nullcontext
from typing import Any

from topic_probe.cli.console import WrongUsageError, quiet_transformers
from topic_probe.cli.inputs import (
    CORPORA,
    CORPUS_HELP,
    DOCUMENTS,
    FROM_FIT,
    FROM_NAME,
    REVISIONS,
    SERIES_HELP,
    TOPICS_HELP,
    WORD_LISTS,
    documents_of,
    look_for_topics,
    open_corpus,
    open_model,
    open_series,
    open_topics,
    opening_options,
    tokenizer_of,
)
from topic_probe.cli.measure import answer
from topic_probe.cli.options import Call, Parser, add_command, add_options, add_out

SERIES = Call(
    "topic_probe.series.measured:measure_series",
    filled=("series", "topics", "documents", "opening", "progress"),
)
OPENED = Call(
    "topic_probe.lens.opening:open_model",
    filled=("source", "revision"),
    help={"tokenizer": "name or folder of the tokenizer, where it does not lie beside the checkpoints"},
)
_EPILOG = """examples:
  topic-probe series output --topics wordnet-nouns --corpus bundled --max-length 128 --out learned
  topic-probe series EleutherAI/pythia-160m --steps 0 512 1000 2000 4000 --topics wordnet-nouns --corpus bundled
  for i in 0 1 2; do  # or the tasks of a job array; then the same without --part
    topic-probe series output --topics wordnet-nouns --corpus bundled --folder kept --part $i 3 &
  done"""


def add_to(parser: Parser) -> None:
    """What the command takes."""
    add_command(parser, run, usage="series SERIES --topics TOPICS [--corpus CORPUS]", epilog=_EPILOG)
    parser.add_argument("series", metavar="SERIES", help=SERIES_HELP)
    parser.add_argument("--steps", metavar="N", type=int, nargs="+", help="the steps of a series on the hub")
    parser.add_argument("--topics", metavar="TOPICS", required=True, help=TOPICS_HELP)
    parser.add_argument("--corpus", metavar="CORPUS", help=CORPUS_HELP, default=None)
    add_out(parser, "a new folder for the report")
    add_options(
        parser,
        {
            "measurement": (SERIES,),
            "series": (REVISIONS,),
            "documents": (*CORPORA, DOCUMENTS),
            "topics": (WORD_LISTS, FROM_NAME, FROM_FIT),
            "model": (OPENED,),
        },
    )


def run(parsed: argparse.Namespace) -> int:
    """Measure, save the report if that is wanted, and answer with it."""
    from topic_probe import storage

    look_for_topics(parsed)
    if parsed.corpus is None and (
        given := [option for call in (*CORPORA, DOCUMENTS) for option in call.given(parsed)]
    ):
        raise WrongUsageError(f"{given[0]} needs texts: name them with --corpus")
    writes = parsed.out is not None and not parsed.console.silent
    with storage.draft(parsed.out, overwrite=parsed.overwrite) if writes else nullcontext() as draft:
        series = open_series(parsed)
        corpus = None if parsed.corpus is None else open_corpus(parsed)
        topics, documents = _read_as(parsed, next(iter(series.values())), corpus)
        opening = opening_options(parsed)
        with quiet_transformers(progress=parsed.console.progress):
            report = SERIES.call(
                parsed,
                series,
                topics,
                documents,
                opening=opening,
                progress=parsed.console.progress,
            )
        if report is None:
            parsed.console.answer("there are fewer checkpoints than parts, and none for this one", {})
        else:
            answer(parsed, report, draft)
    return 0


def _read_as(parsed: argparse.Namespace, first: Any, corpus: Any) -> tuple[Any, Any]:
    """Topics and documents, as the first checkpoint reads them; the others have to have its tokenizer."""
    from topic_probe.lens.host import facts_of

    name, *revision = first if isinstance(first, tuple) else (str(first),)
    named = {"model": name, **({"revision": revision[0]} if revision else {})}
    model = open_model(argparse.Namespace(**{**vars(parsed), **named}))
    topics = open_topics(parsed, model)
    if corpus is None:
        return topics, None
    limit = facts_of(model).context_length
    return topics, documents_of(corpus, parsed, tokenizer_of(model), limit=limit)
