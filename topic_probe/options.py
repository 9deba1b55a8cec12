"""Options that several functions share: declared once, each with its type, its default and a sentence about it.

A group is a frozen dataclass of at most six options, ``name: Annotated[type, "what it does"] = default``. A function
that takes a group is decorated with `shares` and called with the options themselves: `inspect.signature` and ``help()``
show every one with its default, an unknown one is a TypeError that suggests the right name, and a wrong value is
refused before anything is computed. The command line reads the same source.
"""

import dataclasses
import functools
import inspect
import math
import operator
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeVar

_Result = TypeVar("_Result")


def shares(**groups: type) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """Let a function take the options of groups one by one; inside it has them as the groups.

    Args:
        groups: parameter of the function → the class of its group.
    """

    def decorate(function: Callable[..., _Result]) -> Callable[..., _Result]:
        parameters = inspect.signature(function).parameters
        own = {name: parameter for name, parameter in parameters.items() if name not in groups}
        hints = typing.get_type_hints(function, include_extras=True)
        options = {name: _parameters(group) for name, group in groups.items()}
        shared = [parameter for group in options.values() for parameter in group]
        signature = inspect.Signature([*own.values(), *shared], return_annotation=hints.get("return", Any))
        checked = {name: hints[name] for name in own if name in hints}
        checked |= {parameter.name: parameter.annotation for parameter in shared}

        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> _Result:
            refuse_unknown(function.__name__, given, signature.parameters)
            for name, value in given.items():
                check_value(name, value, checked.get(name, Any))
            built = {
                name: group(**{p.name: given.pop(p.name) for p in options[name] if p.name in given})
                for name, group in groups.items()
            }
            return function(*args, **given, **built)

        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__annotations__ = {
            **{parameter.name: parameter.annotation for parameter in signature.parameters.values()},
            "return": signature.return_annotation,
        }
        call.__doc__ = _documented(function.__doc__ or "", groups.values())
        return call

    return decorate


def refuse_unknown(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """TypeError for a name that is not known, with the one that was probably meant."""
    known = list(known)
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f": did you mean {near[0]!r}?" if near else f"; it knows {', '.join(known)}"
            raise TypeError(f"{what} knows no option {name!r}{hint}")


def check_value(name: str, value: Any, annotation: Any) -> None:
    """ValueError for a value outside a closed set, TypeError for one of another plain type.

    Only what a plain annotation says is checked (bool, int, float, str, Literal, None and unions of these); numbers of
    numpy count as numbers, and nothing but True and False as bool.
    """
    if typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    kinds = typing.get_args(annotation) if union else (annotation,)
    if any(not (kind in _PLAIN or typing.get_origin(kind) is Literal) for kind in kinds):
        return
    if any(_fits(value, kind) for kind in kinds):
        return
    allowed = [
        choice for kind in kinds if typing.get_origin(kind) is Literal for choice in typing.get_args(kind)
    ]
    if allowed:
        choices = ", ".join(map(repr, allowed))
        raise ValueError(f"{name} must be one of {choices}, got {value!r}")
    wanted = " or ".join(_PLAIN[kind] for kind in kinds)
    raise TypeError(f"{name} must be {wanted}, got {value!r}")


def check_whole(name: str, value: Any, least: int = 1) -> int:
    """The number as an int; TypeError for what is no whole number, ValueError for one that is too small."""
    check_value(name, value, int)
    number = operator.index(value)
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number


def check_number(name: str, value: Any, *, zero: bool = False, why: str = "") -> None:
    """TypeError for what is no number, ValueError for one that is not finite and positive (or, with ``zero``, 0)."""
    check_value(name, value, float)
    if not (math.isfinite(value) and (value > 0 or (zero and value == 0))):
        wanted = "at least 0 and finite" if zero else "positive and finite"
        raise ValueError(f"{name} {why and f'is {why} and '}must be {wanted}, got {value}")


_PLAIN: Mapping[Any, str] = {
    bool: "True or False", int: "a whole number", float: "a number", str: "a text", types.NoneType: "None",
}  # fmt: skip


def _fits(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is Literal:
        return any(type(value) is type(choice) and value == choice for choice in typing.get_args(kind))
    if kind is types.NoneType:
        return value is None
    if kind is bool or kind is str:
        return isinstance(value, kind)
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)
    except TypeError:
        return kind is float and hasattr(value, "__float__") and not isinstance(value, str)
    return True


def _parameters(group: type) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(group)  # without the sentences, which the docstring has
    assert len(hints) <= 6, f"{group.__name__} has {len(hints)} options: a group has at most six"
    empty = inspect.Parameter.empty
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=empty if field.default is dataclasses.MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group)
    ]


def _documented(doc: str, groups: Iterable[type]) -> str:
    """The docstring with the sentences of the groups' options behind those of the function's own."""
    lines = [
        f"    {name}: {typing.get_args(hint)[1]}."
        for group in groups
        for name, hint in typing.get_type_hints(group, include_extras=True).items()
    ]
    doc = inspect.cleandoc(doc)
    if not re.search(r"^Args:$", doc, re.MULTILINE):
        return f"{doc}\n\nArgs:\n" + "\n".join(lines) + "\n"
    head, _, rest = doc.partition("Args:\n")
    own, blank, more = rest.partition("\n\n")
    return f"{head}Args:\n{own.rstrip()}\n" + "\n".join(lines) + f"\n{blank[1:]}{more}"
