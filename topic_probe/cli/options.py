"""Options of commands: the arguments of the functions that a command calls, read off their source.

A command says which functions it calls, which arguments it fills itself and which the command line cannot give; all
others are options, with the name, default, choices and sentence that they have in the function. An option that is not
given is not passed on, so the default is always the function's own.
"""

import argparse
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property, partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from topic_probe.cli.console import WrongUsageError
from topic_probe.cli.signatures import Argument, arguments_of


@dataclass(frozen=True)
class Call:
    """A function whose arguments are options of a command.

    Attributes:
        of: The function, ``module:name``, or a dataclass.
        filled: Arguments that the command fills from its inputs.
        without: Arguments that the command line cannot or need not give, each with the reason.
        flags: Arguments of another name on the command line, where those of several functions are alike.
        help: What is said of arguments in place of the function's own words, where the command takes something else
            for them or one option serves several functions.
    """

    of: str
    filled: tuple[str, ...] = ()
    without: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    help: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def options(self) -> dict[str, Argument]:
        """Every argument that is neither filled nor left out, by its name on the command line."""
        arguments = arguments_of(self.of)
        known = {*self.filled, *self.without, *self.flags, *self.help}
        assert known <= arguments.keys(), f"{self.of} takes no {', '.join(known - arguments.keys())}"
        said = {name: replace(arguments[name], help=text, shown="") for name, text in self.help.items()}
        return {
            f"--{self.flags.get(name, name.replace('_', '-'))}": argument
            for name, argument in {**arguments, **said}.items()
            if name not in self.filled and name not in self.without
        }

    def arguments(self, parsed: argparse.Namespace) -> dict[str, Any]:
        """The arguments of the options that were given."""
        given = {flag: getattr(parsed, _key(flag)) for flag in self.given(parsed)}
        return {
            self.options[flag].name: mapping(value, flag) if self.options[flag].pairs else value
            for flag, value in given.items()
        }

    def given(self, parsed: argparse.Namespace) -> list[str]:
        """The options that were given, as they are typed."""
        return [flag for flag in self.options if _key(flag) in parsed]

    def call(self, parsed: argparse.Namespace, *filled: Any, **named: Any) -> Any:
        """What the function returns for the options that were given and what the command fills."""
        module, _, name = self.of.partition(":")
        function = attrgetter(name)(import_module(module))
        with self.blamed(parsed):
            return function(*filled, **named, **self.arguments(parsed))

    @contextmanager
    def blamed(self, parsed: argparse.Namespace) -> Iterator[None]:
        """What is wrong with an argument that was given is wrong usage, and said of its option."""
        try:
            yield
        except (ValueError, TypeError) as error:
            flags = {argument.name: flag for flag, argument in self.options.items()}
            named = [name for name, flag in flags.items() if flag in self.given(parsed)]
            if not any(_is_about(str(error), name, getattr(parsed, _key(flags[name]))) for name in named):
                raise
            spelled = {f"{name}=": f"{flag} " for name, flag in flags.items()}
            message = re.sub(r"\b\w+=", lambda name: spelled.get(name[0], name[0]), str(error))
            first, _, rest = message.partition(" ")
            raise WrongUsageError(f"{flags.get(first, first)} {rest}") from error


def _is_about(message: str, name: str, value: Any) -> bool:
    """Whether a message is about an argument: it begins with its name, or has its name and its value."""
    if re.match(rf"{name}\b", message):
        return True
    shown = (re.escape(str(one)) for one in (value if isinstance(value, list) else [value]))
    named = re.search(rf"\b{name.removesuffix('s')}s?\b", message)
    return named is not None and any(re.search(rf"(?<![\w.]){one}(?!\w|\.\d)", message) for one in shown)


class Parser(argparse.ArgumentParser):
    """A parser that gets its options when it is used: those of other commands are not looked up.

    Args:
        prepare: gives it its options.
    """

    def __init__(
        self, *args: Any, prepare: Callable[["Parser"], None] | None = None, **settings: Any
    ) -> None:
        settings |= {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
        super().__init__(*args, **settings)
        self._prepare = prepare

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As of any parser, after it has its options."""
        self.prepare()
        given = sys.argv[1:] if args is None else list(args)
        # Before what is missing is said: the mistyped one may be it. Behind a command's name all is its own.
        own = (lambda text: text != "--") if self._subparsers is None else (lambda text: text[:1] == "-")
        self._refuse_unknown(itertools.takewhile(own, given))
        found, unknown = super().parse_known_args(given, namespace)
        if unknown:
            self.error(f"too much: {' '.join(unknown)}")
        return found, unknown

    def prepare(self) -> None:
        """Have the options, now at the latest."""
        if self._prepare is not None:
            self._prepare(self)
            self._prepare = None

    def _refuse_unknown(self, given: Iterable[str]) -> None:
        """Stop at an option that is not known, with the one that was probably meant."""
        known = self._option_string_actions
        for name in (text.partition("=")[0] for text in given if text[:2] == "--" and " " not in text):
            if name not in known:
                place = "" if self._subparsers is None else "; options of a command stand behind its name"
                self.error(
                    f"there is no option {name}{meant(name, known)} ({self.prog} --help lists all{place})"
                )

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += meant(str(value), map(str, action.choices or ()))
            raise


def meant(given: str, known: Iterable[str]) -> str:
    """What was probably meant by a text that is not known, as the end of a message."""
    known = list(known)
    near = get_close_matches(given, known, n=1, cutoff=0.7) or [
        text for text in known if text.startswith(given)
    ]
    return f": did you mean {near[0]}?" if near else ""


def add_parser(commands: Any, name: str, what: str, prepare: Callable[[Parser], None]) -> None:
    """Add a command, or a kind of one: its name, what it does, and what gives it its options."""
    commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.", prepare=prepare)


def add_command(
    parser: Parser, run: Callable[[argparse.Namespace], int], *, usage: str, epilog: str = ""
) -> None:
    """What all commands have; ``usage`` is what this one needs, without the options."""
    parser.usage = f"topic-probe {usage} [options]"
    parser.epilog = epilog
    parser.set_defaults(run=run)
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="one JSON document on stdout, for machines")
    group.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="bars with the time left, on stderr (default: if that is a terminal)",
    )
    group.add_argument("--debug", action="store_true", help="show where an error or a warning came from")


def add_options(parser: argparse.ArgumentParser, calls: Mapping[str, Sequence[Call]]) -> None:
    """Let a parser take the options of functions, under headings.

    What several functions share is taken once, as the first of them says it, and any text is taken where one of them
    takes any.
    """
    taken: dict[str, tuple[Any, Argument]] = {}
    for heading, under_it in calls.items():
        group = parser.add_argument_group(heading)
        for flag, argument in (item for call in under_it for item in call.options.items()):
            place, first = taken.get(flag, (group, argument))
            taken[flag] = place, first if argument.choices else replace(first, choices=())
    for flag, (place, argument) in taken.items():
        add_option(place, flag, argument)


def add_option(group: Any, flag: str, argument: Argument) -> None:
    """Let a parser, or a group of one, take an argument."""
    explained = f"{argument.help} (default: {argument.shown})" if argument.shown else argument.help
    settings: dict[str, Any] = {"default": argparse.SUPPRESS, "help": explained.replace("%", "%%")}
    if argument.types == (bool,):
        group.add_argument(flag, action=argparse.BooleanOptionalAction, **settings)
        return
    numbers = {kind: letter for kind, letter in ((int, "N"), (float, "X")) if kind in argument.types}
    only_numbers = len(numbers) == len(argument.types)
    settings["type"] = (
        [*numbers][-1] if only_numbers else partial(_number_or_text, [*numbers], argument.choices)
    )
    settings["nargs"] = "*" if argument.many else None
    if argument.pairs:
        settings["metavar"] = "NAME=VALUE"
    elif Path in argument.types:
        settings["metavar"] = "PATH"
    elif argument.choices and argument.types == (str,):
        settings["choices"] = argument.choices
    elif argument.choices:
        settings["metavar"] = f"{{{','.join([*argument.choices, *numbers.values()])}}}"
    else:
        settings["metavar"] = (
            "".join(numbers.values()) if len(numbers) == len(argument.types) == 1 else "VALUE"
        )
    group.add_argument(flag, **settings)


def _number_or_text(numbers: Sequence[Callable[[str], Any]], choices: Sequence[str], text: str) -> Any:
    """The number that a text is, the text itself where it is none; with choices one of these."""
    for kind in numbers:
        try:
            return kind(text)
        except ValueError:
            continue
    if choices and text not in choices:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a number nor one of {', '.join(choices)}{meant(text, choices)}"
        )
    return text


def add_out(parser: argparse.ArgumentParser, what: str, **settings: Any) -> None:
    """Let a command write."""
    parser.add_argument("--out", **{"metavar": "DIR", "help": what, **settings})
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier result at that place")


def mapping(entries: Iterable[str], what: str) -> dict[str, str]:
    """``NAME=VALUE`` texts as a dictionary."""
    pairs = [entry.partition("=") for entry in entries]
    broken = next((name for name, sign, value in pairs if not (name and sign and value)), None)
    if broken is not None:
        raise WrongUsageError(f"{what} takes NAME=VALUE, got {broken!r}")
    return {name: value for name, _, value in pairs}


def _key(flag: str) -> str:
    """The name of an option among the parsed ones."""
    return flag.removeprefix("--").replace("-", "_")
