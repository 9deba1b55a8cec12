"""Commands are functions; what is an option, and which options the short help shows, is read off their signatures.

A parameter is ``name: Annotated[type, "what it does"] = default``. A parameter whose type is a dataclass stands for its
fields: so a command takes the option groups of the package with the sentences and defaults that the functions have.
"""

import inspect
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from cyclopts import App, Group, Parameter

from topic_probe.cli.console import WrongUsageError

# What may be "-", standard input.
_FROM_STDIN = ("topics", "file")

# Types that a shell passes in another form than Python.
_TYPED = {"part": list[str] | None}


def new_app(name: str, what: str, **more: Any) -> App:
    """A command, or a family of commands."""
    return App(
        name=name,
        help=what,
        help_flags=("--help", "-h", "--help-all"),
        version_flags=(),
        default_parameter=Parameter(negative=(), consume_multiple=True),
        result_action="return_value",
        **more,
    )


def command(
    what: str, *, shown: Collection[str], epilogue: str = "", without: Collection[str] = ()
) -> Callable[[Callable[..., int]], App]:
    """Makes a function a command of its name.

    Args:
        what: what it does, in a line.
        shown: the options that ``--help`` shows; ``--help-all`` shows all.
        epilogue: examples, below the help.
        without: fields of option groups that only programs set.
    """

    def decorate(function: Callable[..., int]) -> App:
        made = new_app(
            function.__name__.replace("_", "-"), what, help_epilogue=epilogue, help_format="plaintext"
        )
        made.default(_flattened(function, shown, without))
        return made

    return decorate


def _flattened(
    function: Callable[..., int], shown: Collection[str], without: Collection[str]
) -> Callable[..., int]:
    """The function with the fields of its option groups as parameters, each as the command line takes it."""
    everything = "--help-all" in sys.argv
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}

    def add(name: str, hint: Any, default: Any, kind: Any, heading: str) -> None:
        if is_dataclass(hint):
            of_group = get_type_hints(hint, include_extras=True)
            for field in fields(hint):
                if field.name not in without:
                    of_field = inspect.Parameter.empty if field.default is MISSING else field.default
                    add(field.name, of_group[field.name], of_field, inspect.Parameter.KEYWORD_ONLY, name)
            return
        typed, said = get_args(hint)[:2] if get_origin(hint) is Annotated else (hint, "")
        option = Parameter(
            help=said,
            group=Group(heading),
            show=everything or name in shown or default is inspect.Parameter.empty,
            negative=None if default is True else (),
            allow_leading_hyphen=name in _FROM_STDIN,
        )
        annotation: Any = Annotated[_TYPED.get(name, typed), option]
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation))

    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        if is_dataclass(hints[name]):
            groups[name] = hints[name]
        positional = parameter.kind is not inspect.Parameter.KEYWORD_ONLY
        add(name, hints[name], parameter.default, parameter.kind, "inputs" if positional else "options")

    def call(*args: Any, **given: Any) -> int:
        built = {name: _built(group, given) for name, group in groups.items()}
        return function(*args, **given, **built)

    order = sorted(parameters, key=lambda parameter: parameter.kind)
    call.__doc__ = function.__doc__
    call.__signature__ = inspect.Signature(order)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in order}
    return call


def _built(group: Any, given: dict[str, Any]) -> Any:
    """An option group with what was given of its fields, which it takes away."""
    hints = get_type_hints(group)
    options = {
        field.name: _built(hints[field.name], given)
        if is_dataclass(hints[field.name])
        else _taken(field.name, given)
        for field in fields(group)
        if is_dataclass(hints[field.name]) or field.name in given
    }
    return group(**options)


def _taken(name: str, given: dict[str, Any]) -> Any:
    """What was given for an option, as Python takes it."""
    value = given.pop(name)
    if name != "part" or value is None:
        return value
    if value == ["env"]:
        return "env"
    if len(value) != 2 or not all(number.isdecimal() for number in value):
        raise WrongUsageError(f"--part takes two numbers, which of how many, or env; got {' '.join(value)}")
    return int(value[0]), int(value[1])


def mapping(entries: Sequence[str], what: str) -> dict[str, str]:
    """``NAME=VALUE`` texts as a dictionary."""
    pairs = [entry.partition("=") for entry in entries]
    if broken := [
        entry for entry, (name, _, value) in zip(entries, pairs, strict=True) if not (name and value)
    ]:
        raise WrongUsageError(f"{what} takes NAME=VALUE, got {broken[0]!r}")
    found = {name: value for name, _, value in pairs}
    if len(found) < len(pairs):
        raise WrongUsageError(f"{what} needs names that differ, got {', '.join(entries)}")
    return found
