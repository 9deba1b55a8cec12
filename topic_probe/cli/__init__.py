"""The command line: every command opens its inputs, calls one function of the package, and writes what comes back.

A command line passes through `main` here to the file of its command, which says what the command takes (``add_to``) and
does it (``run``); small commands share one, `show`. `inputs` opens models, topics and texts by name, `options` makes
options of the arguments of functions, which `signatures` reads off their source; `console` writes the answer.

A new command is two such functions and an entry in ``COMMANDS`` below. Its options are not declared: it
names the functions that it calls, the arguments that it fills itself, and why others are left out (`options.Call`). An
argument that a function gets is an option at once, with its default, its choices and its sentence.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

from topic_probe.cli.console import (
    NAME,
    Console,
    WrongUsageError,
    only_answers_on_stdout,
    open_closed_streams,
    warn,
    write,
)
from topic_probe.cli.options import Parser, add_parser

# Command → what gives it its options (file:function), and what it does, in the list of commands and on its own page.
COMMANDS = {
    "measure": (
        "measure:add_to",
        "same-topic against different-topic attention, embeddings or weights of a model",
    ),
    "compare": (
        "compare:add_to",
        "models side by side: the same words and texts, differences with paired intervals",
    ),
    "series": (
        "series:add_to",
        "the same measurement at every checkpoint of a training, and from which step on topics are learned",
    ),
    "show": ("show:add_show", "show the attention of a model in a text, coloured by topic, as a page"),
    "fit-topics": ("fit_topics:add_to", "fit topics (LDA) to texts, in the tokens of a model"),
    "train": ("train:add_to", "train the toy transformer of the paper"),
    "reproduce": ("reproduce:add_to", "reproduce the paper: claim, measured, paper, verdict"),
    "report": ("show:add_report", "turn saved results into one self-contained page"),
    "check": (
        "show:add_check",
        "say what can be measured of a model, or what is wrong with a series of checkpoints",
    ),
}

_DESCRIPTION = (
    "Does a transformer treat words of the same topic differently: where, how strongly, how sure are we?"
)
_EPILOG = """to begin with (MODEL is a folder or a name on the Hugging Face hub):
  topic-probe check MODEL
  topic-probe measure embeddings MODEL --topics wordnet-nouns
  topic-probe measure attention MODEL --topics wordnet-nouns --corpus bundled --quick

exit codes:
  0    done
  1    an error, or a model whose attention cannot be measured
  2    wrong usage: a command, an option or a value that cannot be meant
  130  interrupted (Ctrl-C); what is kept is said

Answers go to stdout, progress and warnings to stderr. Options are arguments of the Python functions of the same
name: `topic-probe COMMAND --help` lists them."""

FINE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of a command line: 0 fine, 1 an error, 2 wrong usage, 130 interrupted."""
    open_closed_streams()
    try:
        parsed = build_parser().parse_args(argv)
    except SystemExit as stop:  # argparse has said why, or printed the help
        write("", sys.stdout)  # what of the help nobody has read yet
        return stop.code if isinstance(stop.code, int) else USAGE
    # Of several processes that torchrun has started only the first one answers.
    rank = int(os.environ.get("RANK", "0")) if int(os.environ.get("WORLD_SIZE", "1")) > 1 else 0
    with only_answers_on_stdout(debug=parsed.debug) as answers:
        parsed.console = Console(
            answers,
            json=parsed.json,
            progress=sys.stderr.isatty() if parsed.progress is None else parsed.progress,
            silent=rank > 0,
        )
        try:
            return int(parsed.run(parsed))
        except KeyboardInterrupt as stop:
            warn(str(stop) or "nothing was written", "interrupted")
            return INTERRUPTED
        except Exception as error:
            if parsed.debug:
                sys.excepthook(type(error), error, error.__traceback__)
            if type(error).__name__ != "OtherProcessError" or rank == 0:
                warn(_message(error), f"process {rank}: error" if rank else "error")
            return USAGE if isinstance(error, WrongUsageError) else FAILED


def _message(error: BaseException) -> str:
    """What a user reads of an error."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, ValueError | TypeError | OSError | ImportError | RuntimeError):
        return str(error) or type(error).__name__
    return f"{type(error).__name__}: {error} (add --debug for where it came from)"


def build_parser() -> Parser:
    """The parser of all commands; nothing that they need is imported for it, and only the one in use is looked up."""
    parser = Parser(NAME, description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (place, what) in COMMANDS.items():
        add_parser(commands, name, what, partial(_prepare, place))
    return parser


def _prepare(place: str, parser: Parser) -> None:
    file, _, function = place.partition(":")
    getattr(import_module(f"topic_probe.cli.{file}"), function)(parser)


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        version = import_module("importlib.metadata").version(NAME)
        print(f"{NAME} {version}")  # noqa: T201
        parser.exit(FINE)
