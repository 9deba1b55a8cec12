"""``topic-probe show MODEL --topics T --text "…"``: attention by topic, as a page."""

import argparse
import sys
from pathlib import Path
from typing import Any

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
from topic_probe.cli.options import Call, Option, add_command, add_options, add_out


def number_or_label(text: str) -> int | str:
    """The number of a head, or a label such as L3H7."""
    return int(text) if text.isdecimal() else text


SHOW = Call(
    "topic_probe.show.attention_page:show_attention",
    (
        Option("layer", "the layer to show", int, shown="all are looked at"),
        Option(
            "heads",
            "heads of that layer, or labels such as L3H7",
            number_or_label,
            many=True,
            shown="those of the highest ratios",
        ),
        Option(
            "stack",
            "which kind of attention",
            choices=("self", "encoder", "decoder", "cross"),
            shown="the first that there is",
        ),
        Option("order", "how words stand at first", default="topic", choices=("topic", "position")),
        Option("max_tokens", "longer texts are cut here", int, 128),
        Option("max_heads", "heads shown where none are named", int, 6),
        Option("include_self", "a position with itself is a pair of the same word", bool, True),
        Option("check_rows", "rows that do not sum to one are an error", bool, True),
        Option("circuitsvis", "add the view of circuitsvis (1.3 MB)", bool, True),
    ),
    filled=("model", "topics", "text_or_ids", "tokenizer"),
)
_EPILOG = """example:
  topic-probe show google-bert/bert-base-uncased --topics words.json --text "The army and the band" --out page.html"""


def add_to(commands: Any) -> None:
    """The command."""
    parser = add_command(
        commands,
        "show",
        run,
        "show the attention of a model in a text, coloured by topic, as a page",
        usage="show MODEL --topics TOPICS (--text TEXT | --file FILE) --out PAGE",
        epilog=_EPILOG,
    )
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
