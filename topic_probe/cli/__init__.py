"""The command line: every command opens its inputs, calls one function of the package, and prints what comes back.

A command line passes through `main` here to the function of its command, in the file that ``COMMANDS`` names; it is
loaded when it is used. `options` reads a command's options off its signature, `inputs` opens models, topics and texts
by name, `screens` says what a report says in one screen, `console` writes it. A new command is such a function and an
entry in ``COMMANDS``.
"""

import os
import re
import sys
from collections.abc import Collection, Sequence
from contextlib import redirect_stdout
from inspect import signature
from io import StringIO
from shutil import get_terminal_size

from cyclopts import App, CycloptsError

from topic_probe.cli.console import NAME, WrongUsageError, only_answers_on_stdout, warn, write
from topic_probe.cli.options import new_app

MEASUREMENTS = {
    "attention": "attention between words of a topic, head by head",
    "embeddings": "embeddings of words of a topic, and hidden states with --corpus",
    "weights": "what the weights of every head do between words of a topic",
    "ablation": "what is lost of an outcome when heads are taken out",
    "knockout": "what is lost when words of a topic cannot read each other",
}
COMMANDS = {
    "compare": ("compare:compare", "models side by side: the same words and texts, paired differences"),
    "series": ("compare:series", "the same measurement at every checkpoint of a training"),
    "show": ("pages:show", "attention in a text, coloured by topic, as a page"),
    "report": ("pages:report", "saved results as one page"),
    "check": ("pages:check", "what can be measured of a model"),
    "fit-topics": ("make:fit_topics", "fit topics (LDA) to texts, in the tokens of a model"),
    "train": ("make:train", "train the toy transformer of the paper"),
    "reproduce": ("reproduce:reproduce", "the paper: every claim, what was measured, its verdict"),
}
_WHAT = """Does a transformer treat words of the same topic differently: where, how strongly, how sure are we?

To begin with (MODEL is a folder or a name on the Hugging Face hub):

  topic-probe check MODEL
  topic-probe measure embeddings MODEL --topics wordnet-nouns
  topic-probe measure attention MODEL --topics wordnet-nouns --corpus bundled --quick"""
_EPILOGUE = """Exit codes: 0 done; 1 an error, or a model whose attention cannot be measured; 2 wrong usage; \
130 interrupted (Ctrl-C). Answers go to stdout, progress and warnings to stderr. `topic-probe COMMAND --help` shows \
the options one needs, --help-all all of them."""

FINE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of a command line: 0 fine, 1 an error, 2 wrong usage, 130 interrupted."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given == ["--version"]:
        from importlib.metadata import version

        write(f"{NAME} {version(NAME)}\n", sys.stdout)
        return FINE
    app, debug = build_app(), "--debug" in given
    try:
        command, arguments, _ = app.parse_args(given, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        warn(f"{str(error).rstrip('.')} (--help lists what there is)", "error")
        return USAGE
    if command in (app.help_print, app.version_print):
        # Not at once, because whoever reads it may leave in the middle.
        os.environ.setdefault("COLUMNS", str(min(100, get_terminal_size((100, 40)).columns)))
        with redirect_stdout(StringIO()) as text:
            command(*arguments.args, **arguments.kwargs)
        write(text.getvalue(), sys.stdout)
        return FINE
    with only_answers_on_stdout(debug=debug):
        try:
            return int(command(*arguments.args, **arguments.kwargs))
        except KeyboardInterrupt as stop:
            warn(str(stop) or "nothing was written", "interrupted")
            return INTERRUPTED
        except Exception as error:
            if debug:
                sys.excepthook(type(error), error, error.__traceback__)
            message, of_option = _in_words_of_options(_message(error), given, signature(command).parameters)
            warn(message, "error")
            return USAGE if of_option or isinstance(error, WrongUsageError) else FAILED


def build_app() -> App:
    """All commands; a file is imported when its command is used."""
    app = new_app(NAME, _WHAT, help_epilogue=_EPILOGUE, help_format="plaintext")
    measure = new_app("measure", "one model: attention, embeddings, weights, ablation, knockout")
    for name, what in MEASUREMENTS.items():
        measure.command(f"topic_probe.cli.measure:{name}", name=name, help=what)
    app.command(measure)
    for name, (place, what) in COMMANDS.items():
        app.command(f"topic_probe.cli.{place}", name=name, help=what)
    return app


def _message(error: BaseException) -> str:
    """What a user reads of an error."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, ValueError | TypeError | OSError | ImportError | RuntimeError):
        return str(error) or type(error).__name__
    return f"{type(error).__name__}: {error} (add --debug for where it came from)"


def _in_words_of_options(message: str, given: Sequence[str], known: Collection[str]) -> tuple[str, bool]:
    """A message of a function with its arguments as options, and whether it begins with one that was given."""
    message = message.replace("open it with open_model(model, tokenizer=...)", "name one with --tokenizer")
    for name in known:
        message = re.sub(rf"\b{name}=\s?", f"--{name.replace('_', '-')} ", message)
    first, _, rest = message.partition(" ")
    option = f"--{first.removeprefix('--').replace('_', '-')}"
    if option in {text.partition("=")[0] for text in given}:
        return f"{option} {rest}", True
    return message, False
