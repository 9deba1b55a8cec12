"""What is there to look at: ``topic-probe show``, ``topic-probe report`` and ``topic-probe check``.

``show MODEL --topics T --text "…"`` writes attention by topic as a page, ``report DIR`` saved results as one page, and
``check MODEL`` says what can be measured of a model.
"""

import argparse
import sys
from pathlib import Path

from topic_probe.cli.console import WrongUsageError, plain, quiet_transformers
from topic_probe.cli.inputs import (
    FROM_FIT,
    FROM_NAME,
    OPEN_MODEL,
    PAGE,
    STDIN,
    WORD_LISTS,
    add_model_and_topics,
    add_model_or_series,
    look_for_topics,
    open_model,
    open_series,
    open_topics,
)
from topic_probe.cli.options import Call, Parser, add_command, add_options, add_out

SHOW = Call(
    "topic_probe.show.attention_page:show_attention", filled=("model", "topics", "text_or_ids", "tokenizer")
)
_EPILOG = """example:
  topic-probe show google-bert/bert-base-uncased --topics words.json --text "The army and the band" --out page.html"""


def add_show(parser: Parser) -> None:
    """What ``show`` takes."""
    usage = "show MODEL --topics TOPICS (--text TEXT | --file FILE) --out PAGE"
    add_command(parser, show, usage=usage, epilog=_EPILOG)
    add_model_and_topics(parser)
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--text", help="the text")
    given.add_argument("--file", help="a file with the text; - reads standard input")
    add_out(parser, "the page, one file that needs no network", required=True, metavar="PAGE")
    add_options(
        parser, {"page": (SHOW,), "topics": (WORD_LISTS, FROM_NAME, FROM_FIT), "model": (OPEN_MODEL,)}
    )


def show(parsed: argparse.Namespace) -> int:
    """Write the page of a text."""
    from topic_probe import storage

    look_for_topics(parsed)
    text = parsed.text
    if parsed.file == STDIN:
        if parsed.topics == STDIN:
            raise WrongUsageError("--topics and --file cannot both be standard input: write one into a file")
        text = sys.stdin.read()
    elif parsed.file is not None:
        text = Path(parsed.file).expanduser().read_text(encoding="utf-8", errors="replace")
    with storage.draft(parsed.out, overwrite=parsed.overwrite, file=True) as draft:
        model = open_model(parsed)
        page = SHOW.call(parsed, model, open_topics(parsed, model), text)
        draft.write_text(page.html, encoding="utf-8")
    out = Path(parsed.out).expanduser().resolve()
    parsed.console.answer(f"open {out} in a browser", {"page": str(out), "bytes": out.stat().st_size})
    return 0


def add_report(parser: Parser) -> None:
    """What ``report`` takes."""
    add_command(parser, report, usage="report DIR")
    what = "a folder that other commands have written, or one with such folders in it"
    parser.add_argument("directory", metavar="DIR", help=what)
    add_out(parser, f"the page (default: DIR/{PAGE})", metavar="PAGE")


def report(parsed: argparse.Namespace) -> int:
    """Write the page of saved results."""
    from topic_probe import storage
    from topic_probe.show.results_page import report_page

    folder = Path(parsed.directory).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {parsed.directory}")
    out = (folder / PAGE if parsed.out is None else Path(parsed.out).expanduser()).resolve()
    with storage.draft(out, overwrite=parsed.overwrite, file=True) as draft:
        draft.write_text(report_page(folder).html, encoding="utf-8")
    size = out.stat().st_size
    text = f"open {out} in a browser ({size / 1e6:.1f} MB)"
    parsed.console.answer(text, {"page": str(out), "bytes": size})
    return 0


def add_check(parser: Parser) -> None:
    """What ``check`` takes."""
    add_command(parser, check, usage="check (MODEL | --series SERIES)")
    add_model_or_series(parser)
    add_options(parser, {"model": (OPEN_MODEL,)})


def check(parsed: argparse.Namespace) -> int:
    """Check a model; 1 where its attention cannot be measured, or its rows do not sum to one (NaN is in them)."""
    if parsed.series is not None:
        return _check_series(parsed)
    from topic_probe.lens.check import check_model

    result = check_model(open_model(parsed))
    measurable = result.attention and result.rows_sum_to_one
    parsed.console.answer(str(result), {**plain(result), "attention_can_be_measured": measurable})
    return 0 if measurable else 1


def _check_series(parsed: argparse.Namespace) -> int:
    """Check a series of checkpoints; 1 where something is wrong with one of them."""
    from topic_probe.series.checkpoints import check_checkpoints

    if given := OPEN_MODEL.given(parsed):
        raise WrongUsageError(f"{given[0]} is for a MODEL: checkpoints are read as they are")
    with quiet_transformers(progress=parsed.console.progress):
        flagged = check_checkpoints(open_series(parsed), progress=parsed.console.progress)
    text = "\n".join(f"step {step}: {why}" for step, why in flagged.items())
    parsed.console.answer(text or "nothing is wrong with these checkpoints", {"flagged": flagged})
    return 1 if flagged else 0
