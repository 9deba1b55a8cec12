"""``topic-probe check MODEL``."""

import argparse

from topic_probe.cli.console import plain
from topic_probe.cli.inputs import MODEL_HELP, OPEN_MODEL, open_model
from topic_probe.cli.options import Parser, add_command, add_options


def add_to(parser: Parser) -> None:
    """What the command takes."""
    add_command(parser, run, usage="check MODEL")
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    add_options(parser, {"model": (OPEN_MODEL,)})


def run(parsed: argparse.Namespace) -> int:
    """Check a model; 1 where its attention cannot be measured, or its rows do not sum to one (NaN is in them)."""
    from topic_probe.lens.check import check_model

    result = check_model(open_model(parsed))
    measurable = result.attention and result.rows_sum_to_one
    parsed.console.answer(str(result), {**plain(result), "attention_can_be_measured": measurable})
    return 0 if measurable else 1
