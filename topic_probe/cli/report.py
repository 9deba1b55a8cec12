"""``topic-probe report DIR``: saved results as one page."""

import argparse
from pathlib import Path

from topic_probe.cli.options import Parser, add_command, add_out

PAGE = "index.html"


def add_to(parser: Parser) -> None:
    """What the command takes."""
    add_command(parser, run, usage="report DIR")
    parser.add_argument(
        "directory",
        metavar="DIR",
        help="a folder that other commands have written, or one with such folders in it",
    )
    add_out(parser, f"the page (default: DIR/{PAGE})", metavar="PAGE")


def run(parsed: argparse.Namespace) -> int:
    """Write the page."""
    from topic_probe import storage
    from topic_probe.show.results_page import report_page

    folder = Path(parsed.directory).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {parsed.directory}")
    out = folder / PAGE if parsed.out is None else Path(parsed.out).expanduser()
    with storage.draft(out, overwrite=parsed.overwrite, file=True) as page:
        page.write_text(report_page(folder).html, encoding="utf-8")
    size = out.stat().st_size
    parsed.console.answer(
        f"open {out.resolve()} in a browser ({size / 1e6:.1f} MB)",
        {"page": str(out.resolve()), "bytes": size},
    )
    return 0
