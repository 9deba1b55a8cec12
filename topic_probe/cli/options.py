"""Options of commands: each is an argument of a Python function, under the same name and with the same default.

An option that is not given is not passed on, so the default is always the function's own; the one declared here is only
shown, and a test holds it, like the names, to the signature. That way ``--help`` needs no import of what it describes.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Option:
    """An argument of a function as an option.

    Attributes:
        name: Of the argument.
        help: What it does, in a few words.
        kind: Makes the value from the text; ``bool`` gives ``--name`` and ``--no-name``.
        default: The default of the argument, to be shown.
        shown: What is shown for the default where that would not be understood.
        choices: The values allowed; empty for any.
        many: Whether it takes several values.
        flag: Its name on the command line, where several arguments of different functions have one name.
    """

    name: str
    help: str
    kind: Callable[[str], Any] = str
    default: Any = None
    shown: str = ""
    choices: tuple[str, ...] = ()
    many: bool = False
    flag: str = ""

    @property
    def key(self) -> str:
        """Its name among the parsed options."""
        return (self.flag or self.name).replace("-", "_")

    @property
    def written(self) -> str:
        """As it is typed."""
        return f"--{self.key.replace('_', '-')}"

    def add_to(self, group: Any) -> None:
        """Let a parser, or a group of one, take it."""
        default = self.shown or _readable(self.default)
        text = f"{self.help} (default: {default})" if default else self.help
        settings: dict[str, Any] = {"dest": self.key, "help": text.replace("%", "%%")}
        settings["default"] = argparse.SUPPRESS
        if self.kind is bool:
            group.add_argument(self.written, action=argparse.BooleanOptionalAction, **settings)
            return
        settings |= {"type": self.kind, "choices": self.choices or None}
        settings |= {"nargs": "*" if self.many else None, "metavar": None if self.choices else _metavar(self)}
        group.add_argument(self.written, **settings)


@dataclass(frozen=True)
class Call:
    """A function with the options that become its arguments.

    Attributes:
        of: The function, ``module:name``.
        options: Its options.
        filled: Arguments that the command fills from its inputs.
        without: Arguments that the command line cannot or need not give, each with the reason.
    """

    of: str
    options: tuple[Option, ...] = ()
    filled: tuple[str, ...] = ()
    without: Mapping[str, str] = field(default_factory=dict)

    def arguments(self, parsed: argparse.Namespace) -> dict[str, Any]:
        """The arguments of the options that were given."""
        given = vars(parsed)
        return {option.name: given[option.key] for option in self.options if option.key in given}

    def given(self, parsed: argparse.Namespace) -> list[str]:
        """The options that were given, as they are typed."""
        return [option.written for option in self.options if option.key in vars(parsed)]


def add_options(parser: argparse.ArgumentParser, calls: Mapping[str, Sequence[Call]]) -> None:
    """Let a parser take the options of functions, under headings; what several functions share is taken once."""
    known: set[str] = set()
    for heading, group_of_calls in calls.items():
        group = parser.add_argument_group(heading)
        for option in (option for call in group_of_calls for option in call.options):
            if option.key not in known:
                known.add(option.key)
                option.add_to(group)


def add_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    what: str,
    *,
    usage: str,
    epilog: str = "",
) -> argparse.ArgumentParser:
    """A new command with the options that all have; ``usage`` is what it needs, without the options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        usage=f"topic-probe {usage} [options]",
        help=what,
        description=f"{what[0].upper()}{what[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
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
    return parser


def add_out(parser: argparse.ArgumentParser, what: str, **settings: Any) -> None:
    """Let a command write."""
    parser.add_argument("--out", **{"metavar": "DIR", "help": what, **settings})
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier result at that place")


def number_or_word(text: str) -> float | str:
    """A number where the text is one."""
    try:
        return float(text)
    except ValueError:
        return text


def mapping(entries: Iterable[str], what: str) -> dict[str, str]:
    """``NAME=VALUE`` texts as a dictionary."""
    pairs = [entry.partition("=") for entry in entries]
    broken = next((name for name, sign, value in pairs if not (name and sign and value)), None)
    if broken is not None:
        raise ValueError(f"{what} takes NAME=VALUE, got {broken!r}")
    return {name: value for name, _, value in pairs}


def _readable(default: Any) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    if default is None or default == ():
        return ""
    return f"{default:,}" if isinstance(default, int) else str(default)


def _metavar(option: Option) -> str:
    return {int: "N", float: "X"}.get(option.kind, "VALUE")  # type: ignore[call-overload, no-any-return]
