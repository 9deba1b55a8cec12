"""The command line: every command opens its inputs, calls one function of the package, and writes what comes back."""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from topic_probe.cli import check, fit_topics, measure, report, reproduce, show, train
from topic_probe.cli.console import NAME, Console, only_answers_on_stdout, warn

COMMANDS = (measure, show, fit_topics, train, reproduce, report, check)

_DESCRIPTION = (
    "Does a transformer treat words of the same topic differently: where, how strongly, how sure are we?"
)
_EPILOG = """exit codes:
  0    done
  1    an error, a claim of the paper that failed, or a model whose attention cannot be measured
  2    wrong usage
  130  interrupted (Ctrl-C); what is kept is told

Answers go to stdout, progress and warnings to stderr. Options are arguments of the Python functions of the same
name: `topic-probe COMMAND --help` lists them."""

FINE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of a command line: 0 fine, 1 an error or a failed claim, 2 wrong usage, 130 interrupted."""
    try:
        parsed = build_parser().parse_args(argv)
    except SystemExit as stop:  # argparse has said why, or printed the help
        return stop.code if isinstance(stop.code, int) else USAGE
    with only_answers_on_stdout(debug=parsed.debug) as answers:
        parsed.console = Console(
            answers,
            json=parsed.json,
            progress=sys.stderr.isatty() if parsed.progress is None else parsed.progress,
            silent=_rank() > 0,
        )
        try:
            return int(parsed.run(parsed))
        except KeyboardInterrupt as stop:
            warn(str(stop) or "nothing was written", "interrupted")
            return INTERRUPTED
        except BrokenPipeError:
            # Whoever read the answer has left; Python would complain once more when it closes stdout.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())  # type: ignore[union-attr]
            return FAILED
        except Exception as error:
            if parsed.debug:
                traceback.print_exc()
            if type(error).__name__ != "OtherProcessError" or _rank() == 0:
                warn(told(error), f"process {_rank()}: error" if _rank() else "error")
            return FAILED


def _rank() -> int:
    """Which of several processes this is that torchrun has started; only the first one answers."""
    return int(os.environ.get("RANK", "0")) if int(os.environ.get("WORLD_SIZE", "1")) > 1 else 0


def told(error: BaseException) -> str:
    """What a user is told of an error."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, ValueError | TypeError | OSError | ImportError | RuntimeError):
        return str(error) or type(error).__name__
    return f"{type(error).__name__}: {error} (add --debug for where it came from)"


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; nothing that they need is imported for it."""
    parser = argparse.ArgumentParser(
        NAME,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_to(commands)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        version = import_module("importlib.metadata").version(NAME)
        print(f"{NAME} {version}")  # noqa: T201
        parser.exit(FINE)
