"""Options that several functions share are declared once; what a wrong value would do in silence is refused.

A group of options is a frozen dataclass, ``name: Annotated[type, "what it does"] = default``, derived from `Group`. A
function that takes one is decorated with `shares` and called with the options themselves: `inspect.signature`,
``help()`` and the command line see every one. `checked` holds the arguments of a function to their annotations,
`settle_fields` those of a dataclass: choices, flags, numbers, and that a single text is no list.
"""

import dataclasses
import functools
import inspect
import math
import operator
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeVar

_Result = TypeVar("_Result")
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Group:
    """Base of the groups of options that functions share."""


def shares(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Let a function take the options of groups one by one; inside it has them as the groups: ``reading: Reading``."""
    hints = typing.get_type_hints(function)
    groups = {
        name: hint for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, Group)
    }
    options = {name: typing.get_type_hints(group) for name, group in groups.items()}
    own = [p for p in inspect.signature(function).parameters.values() if p.name not in groups]
    shared = [
        p.replace(kind=p.KEYWORD_ONLY, annotation=options[name][p.name])
        for name, group in groups.items()
        for p in inspect.signature(group).parameters.values()
    ]
    signature = inspect.Signature([*own, *shared], return_annotation=hints["return"])
    annotations = hints | {p.name: p.annotation for p in shared}

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> _Result:
        refuse_unknown(function.__name__, given, signature.parameters)
        bound = _held(signature, annotations, args, given).arguments
        for name, group in groups.items():
            bound[name] = group(**{option: bound.pop(option) for option in options[name] if option in bound})
        return function(**bound)

    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {name: annotations[name] for name in [*signature.parameters, "return"]}
    call.__doc__ = _documented(inspect.cleandoc(function.__doc__ or ""), groups.values())
    return call


def _documented(doc: str, groups: Iterable[type]) -> str:
    """The docstring with the sentences of the groups' options after those of the function's own."""
    hints = [hint for group in groups for hint in typing.get_type_hints(group, include_extras=True).items()]
    head, _, rest = doc.partition("\n\nArgs:\n")
    own, blank, more = rest.partition("\n\n")
    sentences = [f"    {name}: {typing.get_args(hint)[1]}." for name, hint in hints]
    return "\n".join([f"{head}\n\nArgs:", *([own.rstrip()] if own else []), *sentences, blank[1:] + more])


def checked(function: _Function) -> _Function:
    """The function, with whatever it is given held to its annotations before anything is done."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        bound = _held(signature, _annotations(function), args, given)
        return function(*bound.args, **bound.kwargs)

    return call  # type: ignore[return-value]


def settle_fields(instance: Any) -> None:
    """Hold the fields of a dataclass to their annotations, numbers as Python's own."""
    for field in dataclasses.fields(instance):
        value = check_value(
            field.name, getattr(instance, field.name), _annotations(type(instance))[field.name]
        )
        object.__setattr__(instance, field.name, value)


# Asked for at first use, when all names in annotations are known.
_annotations: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)


def _held(signature: inspect.Signature, annotations: Mapping[str, Any], args: Any, given: Any) -> Any:
    """Arguments by their names, each held to its annotation."""
    bound = signature.bind(*args, **given)
    for name, value in bound.arguments.items():
        bound.arguments[name] = check_value(name, value, annotations.get(name, Any))
    return bound


def refuse_unknown(what: str, given: Iterable[str], known: Collection[str]) -> None:
    """TypeError for a name that is not known, with the one that was probably meant."""
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f": did you mean {near[0]!r}?" if near else f"; it knows {', '.join(known)}"
            raise TypeError(f"{what} knows no option {name!r}{hint}")


def check_value(name: str, value: Any, annotation: Any) -> Any:
    """The value, numbers as Python's own; ValueError for what is no choice, TypeError for one of another type."""
    if typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    kinds = typing.get_args(annotation) if union else (annotation,)
    for kind in kinds:
        if (settled := _settled(value, kind)) is not _MISFIT:
            return settled
    choices = [
        repr(one) for kind in kinds if typing.get_origin(kind) is Literal for one in typing.get_args(kind)
    ]
    if choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r:.100}")
    origins = [typing.get_origin(kind) or kind for kind in kinds]
    wanted = [_WORDS.get(origin, f"a {origin.__name__}") for origin in origins]
    hint = ": put a single one into a list" if isinstance(value, str | bytes) and "a list" in wanted else ""
    raise TypeError(f"{name} must be {' or '.join(wanted)}, got {value!r:.100}{hint}")


_MISFIT = object()
_LISTS = (Sequence, Collection, Iterable)
_WORDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    types.NoneType: "None",
}
_WORDS |= dict.fromkeys(_LISTS, "a list")


def _settled(value: Any, kind: Any) -> Any:
    """The value as one of a kind; `_MISFIT` where it is none."""
    origin = typing.get_origin(kind) or kind
    if origin is Literal:
        fits = any(type(value) is type(choice) and value == choice for choice in typing.get_args(kind))
    elif origin in (int, float):
        value = _number(value, origin)
        fits = True
    elif origin in _LISTS:
        fits = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
        # What can be gone through but once may be needed twice.
        value = tuple(value) if isinstance(value, Iterator) and origin is not Iterable else value
    else:
        fits = origin is Any or not isinstance(origin, type) or isinstance(value, origin)
    return value if fits else _MISFIT


def _number(value: Any, kind: type) -> Any:
    if isinstance(value, bool | str) or getattr(value, "ndim", 0) > 0:
        return _MISFIT
    try:
        return operator.index(value)
    except TypeError:
        return float(value) if kind is float and hasattr(type(value), "__float__") else _MISFIT


def check_whole(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """The number as an int; TypeError for what is no whole number, ValueError for one too small or too large."""
    number: int = check_value(name, value, int)
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    if most is not None and number > most:
        raise ValueError(f"{name} must be at most {most}, got {number}")
    return number


def check_number(name: str, value: Any, *, zero: bool = False, why: str = "") -> None:
    """ValueError for a number that is not finite and positive (or, with ``zero``, 0)."""
    if not (0 < check_value(name, value, float) < math.inf or (zero and value == 0)):
        wanted = f"{'at least 0' if zero else 'positive'} and finite"
        raise ValueError(f"{name} {why and f'is {why} and '}must be {wanted}, got {value}")


def check_share(name: str, value: Any, *, why: str = "") -> None:
    """ValueError for a number outside 0 to 1."""
    if not 0 <= check_value(name, value, float) <= 1:
        raise ValueError(f"{name} {why and f'is {why} and '}must lie in [0, 1], got {value}")


def check_confidence(confidence: float) -> None:
    """ValueError for a confidence that no interval has, before anything slow."""
    if not 0 < confidence < 1:
        raise ValueError(
            "confidence is the share of intervals that is to hold the true number and must lie between 0 and 1, "
            f"got {confidence}"
        )


def progress_bar(*given: Any, shown: bool | None, **options: Any) -> Any:
    """A bar of tqdm; by default in a terminal or a notebook, once it has taken a second."""
    from tqdm.auto import tqdm

    return tqdm(*given, disable=None if shown is None else not shown, delay=0 if shown else 1, **options)
