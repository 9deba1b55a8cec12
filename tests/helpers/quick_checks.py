"""The checks of types that tests run with, without the parts of them that look at nothing.

`jaxtyping` opens a scope for sizes around every call, binds its arguments and checks them twice. Most functions name no
array: there, `beartype` alone says the same, in a twentieth of the time.
"""

import functools
import inspect
import types
import typing

import jaxtyping
from beartype import BeartypeConf, beartype

_with_sizes = jaxtyping.jaxtyped
_alone = beartype(conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))


def install() -> None:
    """Has functions that are imported from now on checked by what their annotations need."""
    jaxtyping.jaxtyped = checked


def checked(*, typechecker):
    """What decorates functions and classes in place of `jaxtyping.jaxtyped`."""

    def decorate(function):
        # Names in quotes are looked up by jaxtyping, which lets those pass that only readers of types know.
        plain = isinstance(function, types.FunctionType) and not inspect.isgeneratorfunction(function)
        if plain and not any(map(_needs_sizes, function.__annotations__.values())):
            return _switched(function, _alone(function))
        return _with_sizes(typechecker=typechecker)(function)

    return decorate


def _switched(function, checked):
    """The checked function, and the function itself where checks are off."""

    @functools.wraps(function)
    def call(*args, **options):
        __tracebackhide__ = True
        return (function if jaxtyping.config.jaxtyping_disable else checked)(*args, **options)

    return call


def _needs_sizes(annotation) -> bool:
    """Whether an array stands anywhere in an annotation, or a name in quotes that may stand for one."""
    if isinstance(annotation, str | typing.ForwardRef):
        return True
    if isinstance(annotation, list | tuple):
        return any(map(_needs_sizes, annotation))
    if inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return any(map(_needs_sizes, typing.get_args(annotation)))
