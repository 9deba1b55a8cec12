"""``topic-probe show MODEL --topics T --text "…"``: attention by topic, as a page."""

import argparse
import sys
from pathlib import Path

from topic_probe.cli.inputs import (
    FROM_FIT,
    MODEL_HELP,
    OPEN_MODEL,
    TOPICS_HELP,
    WORD_LISTS,
    open_model,
    open_topics,
    topics_path,
)
from topic_probe.cli.options import Call, Parser, add_command, add_options, add_out

SHOW = Call(
    "topic_probe.show.attention_page:show_attention", filled=("model", "topics", "text_or_ids", "tokenizer")
)
_EPILOG = """example:
  topic-probe show google-bert/bert-base-uncased --topics words.json --text "The army and the band" --out page.html"""


def add_to(parser: Parser) -> None:
    """What the command takes."""
    usage = "show MODEL --topics TOPICS (--text TEXT | --file FILE) --out PAGE"
    add_command(parser, run, usage=usage, epilog=_EPILOG)
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--topics", metavar="TOPICS", required=True, help=TOPICS_HELP)
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--text", help="the text")
    given.add_argument("--file", help="a file with the text; - reads standard input")
    add_out(parser, "the page, one file that needs no network", required=True, metavar="PAGE")
    add_options(parser, {"page": (SHOW,), "topics": (WORD_LISTS, FROM_FIT), "model": (OPEN_MODEL,)})


def run(parsed: argparse.Namespace) -> int:
    """Write the page."""
    from topic_probe import storage
    from topic_probe.show.attention_page import show_attention

    topics_path(parsed)
    text = parsed.text if parsed.text is not None else _read(parsed.file)
    with storage.draft(parsed.out, overwrite=parsed.overwrite, file=True) as draft:
        model = open_model(parsed)
        page = show_attention(model, open_topics(parsed, model), text, **SHOW.arguments(parsed))
        draft.write_text(page.html, encoding="utf-8")
    out = Path(parsed.out).expanduser().resolve()
    parsed.console.answer(f"open {out} in a browser", {"page": str(out), "bytes": out.stat().st_size})
    return 0


def _read(file: str) -> str:
    if file == "-":
        return sys.stdin.read()
    return Path(file).expanduser().read_text(encoding="utf-8", errors="replace")
