"""Options that several functions share: declared once, each with its type, its default and a sentence about it.

A group is a frozen dataclass of at most six options, ``name: Annotated[type, "what it does"] = default``, derived from
`Group`. A function that takes a group is decorated with `shares` and called with the options themselves:
`inspect.signature` and ``help()`` show every one with its default, an unknown one is a TypeError that suggests the
right name, and a wrong value is refused before anything is computed. The command line reads the same source.

Outside of groups `checked` holds the arguments of a function to their annotations, and `settle_fields` those of a
dataclass: annotations say what is taken, and here is who looks at them.
"""

import dataclasses
import functools
import inspect
import math
import operator
import os
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeVar

_Result = TypeVar("_Result")
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Group:
    """Base of the groups of options that functions share."""


def shares(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Let a function take the options of groups one by one; inside it has them as the groups: ``reading: Reading``."""
    hints = typing.get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters.values()
    groups = {
        name: hint for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, Group)
    }
    own = [parameter for parameter in parameters if parameter.name not in groups]
    options = {name: _parameters(group) for name, group in groups.items()}
    shared = [parameter for group in options.values() for parameter in group]
    signature = inspect.Signature([*own, *shared], return_annotation=hints.get("return", Any))
    names = [parameter.name for parameter in own]
    annotations = {name: hint for name, hint in hints.items() if name not in groups}
    annotations |= {parameter.name: parameter.annotation for parameter in shared}

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> _Result:
        refuse_unknown(function.__name__, given, signature.parameters)
        args, given = _settled_arguments(names, annotations, args, given)
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


def checked(function: _Function) -> _Function:
    """The function, with whatever it is given held to its annotations before anything is done, by `check_value`."""
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        args, given = _settled_arguments(names, _annotations(function), args, given)
        return function(*args, **given)

    return call  # type: ignore[return-value]


def settle_fields(instance: Any) -> None:
    """Hold the fields of a dataclass to their annotations, by `check_value`; what they hold then goes into JSON."""
    kind: Any = type(instance)
    annotations = _annotations(kind)
    for field in dataclasses.fields(instance):
        value = check_value(field.name, getattr(instance, field.name), annotations[field.name])
        object.__setattr__(instance, field.name, value)


@functools.cache
def _annotations(of: Any) -> Mapping[str, Any]:
    """The annotations of a function or class; asked for at its first use, when all names in them are known."""
    return typing.get_type_hints(of)


def _settled_arguments(
    names: Iterable[str], annotations: Mapping[str, Any], args: tuple[Any, ...], given: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments by place and by name, each held to its annotation; those too many are left to the function."""
    placed = [
        check_value(name, value, annotations.get(name, Any)) for name, value in zip(names, args, strict=False)
    ]
    named = {name: check_value(name, value, annotations.get(name, Any)) for name, value in given.items()}
    return (*placed, *args[len(placed) :]), named


def refuse_unknown(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """TypeError for a name that is not known, with the one that was probably meant."""
    known = list(known)
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f": did you mean {near[0]!r}?" if near else f"; it knows {', '.join(known)}"
            raise TypeError(f"{what} knows no option {name!r}{hint}")


def check_value(name: str, value: Any, annotation: Any) -> Any:
    """The value, held to a type; numbers of numpy and torch become Python's, which go into JSON.

    TypeError for a value of another type, ValueError for one outside a closed set and for a number too large to count
    with. Nothing but True and False is a bool, and no bool is a number. Of a list or mapping only that it is one is
    known; a text, bytes or mapping is no list, and a set is none where the order counts. Annotations that say anything
    else are not looked at.
    """
    if typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    kinds = typing.get_args(annotation) if union else (annotation,)
    for kind in kinds:
        if (settled := _settled(name, value, kind)) is not _MISFIT:
            return settled
    allowed = [
        choice for kind in kinds if typing.get_origin(kind) is Literal for choice in typing.get_args(kind)
    ]
    wanted = [_wanted(kind) for kind in kinds if typing.get_origin(kind) is not Literal]
    if allowed and not set(wanted) - {"None"}:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r:.100}")
    hint = ": put a single one into a list" if isinstance(value, str | bytes) and "a list" in wanted else ""
    error = ValueError if type(value) in map(type, allowed) else TypeError
    raise error(f"{name} must be {' or '.join([*map(repr, allowed), *wanted])}, got {value!r:.100}{hint}")


def check_whole(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """The number as an int; TypeError for what is no whole number, ValueError for one too small or too large."""
    number: int = check_value(name, value, int)
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    if most is not None and number > most:
        raise ValueError(f"{name} must be at most {most}, got {number}")
    return number


def check_number(name: str, value: Any, *, zero: bool = False, why: str = "") -> None:
    """TypeError for what is no number, ValueError for one that is not finite and positive (or, with ``zero``, 0)."""
    number = check_value(name, value, float)
    if not (math.isfinite(number) and (number > 0 or (zero and number == 0))):
        wanted = "at least 0 and finite" if zero else "positive and finite"
        raise ValueError(f"{name} {why and f'is {why} and '}must be {wanted}, got {number}")


def check_share(name: str, value: Any, *, why: str = "") -> None:
    """TypeError for what is no number, ValueError for one outside 0 to 1."""
    if not 0 <= check_value(name, value, float) <= 1:
        raise ValueError(f"{name} {why and f'is {why} and '}must lie in [0, 1], got {value}")


_PLAIN: Mapping[Any, str] = {
    bool: "True or False", int: "a whole number", float: "a number", str: "a text", types.NoneType: "None",
    os.PathLike: "a path", Mapping: "a mapping", Callable: "a function",
}  # fmt: skip
_MISFIT = object()


def _wanted(kind: Any) -> str:
    """A type in the words of a message."""
    of = " of whole numbers" if typing.get_args(kind) == (int,) else ""
    kind = typing.get_origin(kind) or kind
    if kind in (Sequence, Collection, Iterable):
        return f"a list{of}"
    return _PLAIN.get(kind) or f"a {kind.__name__}"


def _settled(name: str, value: Any, kind: Any) -> Any:
    """The value as one of a kind; `_MISFIT` where it is none."""
    origin = typing.get_origin(kind) or kind
    if origin is Literal:
        fits = any(type(value) is type(choice) and value == choice for choice in typing.get_args(kind))
    elif origin in (int, float):
        return _number(name, value, kind)
    elif origin in (Sequence, Collection, Iterable):
        return _several(value, origin)
    elif origin is Callable:
        fits = callable(value)
    else:
        fits = origin is Any or not isinstance(origin, type) or isinstance(value, origin)
    return value if fits else _MISFIT


def _number(name: str, value: Any, kind: type) -> Any:
    """A number as Python's own."""
    if (
        isinstance(value, bool | type)
        or str(getattr(value, "dtype", "")).endswith("bool")
        or getattr(value, "ndim", 0) > 0
    ):
        return _MISFIT
    try:
        number: int | float = operator.index(value)
    except TypeError:
        if kind is int or isinstance(value, str) or not hasattr(value, "__float__"):
            return _MISFIT
        number = float(value)
    if not (isinstance(number, float) or -_MOST <= number <= _MOST):
        raise ValueError(f"{name} is too large to count with, got {number}")
    return number


# What 64 bits hold.
_MOST = 2**63 - 1


def _several(value: Any, origin: Any) -> Any:
    """What can be gone through, in an order where that counts, and more than once where once may be too few."""
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping) or not isinstance(value, Iterable):
        return _MISFIT
    if getattr(value, "ndim", 1) == 0 or (origin is Sequence and isinstance(value, Set)):
        return _MISFIT
    return tuple(value) if isinstance(value, Iterator) and origin is not Iterable else value


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
