"""``topic-probe merge FOLDER … --out DIR``: the report of shards that have saved their sums."""

import argparse
from contextlib import nullcontext

from topic_probe.cli.measure import answer
from topic_probe.cli.options import Parser, add_command, add_out, add_wide

_EPILOG = """example:
  for i in 0 1 2; do
    topic-probe measure attention google-bert/bert-base-uncased --topics words.json --corpus bundled \\
        --shard $i 3 --sums sums
  done
  topic-probe merge sums --out report"""


def add_to(parser: Parser) -> None:
    """What ``merge`` takes."""
    add_command(parser, run, usage="merge FOLDER [FOLDER …] --out DIR", epilog=_EPILOG)
    what = "the folder that `measure` was given as --sums, or several such folders, or those of single shards in them"
    parser.add_argument("folders", metavar="FOLDER", nargs="+", help=what)
    add_wide(parser)
    add_out(parser, "a new folder for the report")


def run(parsed: argparse.Namespace) -> int:
    """Add up the sums, save the report if that is wanted, and answer with it."""
    from topic_probe import storage
    from topic_probe.measure.merging import merge_sums

    wanted = parsed.out is not None
    with storage.draft(parsed.out, overwrite=parsed.overwrite) if wanted else nullcontext() as draft:
        answer(parsed, merge_sums(parsed.folders), draft)
    return 0
