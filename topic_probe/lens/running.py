"""A model is run by itself, in evaluation mode, and comes back as it was: all that a block does around a forward pass.

A measurement changes modes, attention implementations and hooks for the length of a forward pass. Two at once would
undo each other's changes, and one within a forward pass of the same model would change it half-way.
"""

import random
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn


class StillRunningError(RuntimeError):
    """A measurement was asked for from within a forward pass of its model, which has to end before."""


def every_module(model: nn.Module) -> Iterator[nn.Module]:
    """The modules of a model, hooked or not; a bridge does not count those of the Hugging Face model inside."""
    inside = getattr(model, "original_model", None)
    roots = (model, inside) if isinstance(inside, nn.Module) else (model,)
    return iter(dict.fromkeys(chain.from_iterable(root.modules() for root in roots)))


def configs(model: nn.Module) -> list[Any]:
    """Every configuration that some part of a Hugging Face model looks at."""
    known: dict[int, Any] = {}
    waiting: list[Any] = [getattr(module, "config", None) for module in every_module(model)]
    while waiting:
        config = waiting.pop()
        if hasattr(config, "_attn_implementation_internal") and id(config) not in known:
            known[id(config)] = config
            waiting.extend(getattr(config, part, None) for part in config.sub_configs)
    return list(known.values())


# By itself.


_locks: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()


@contextmanager
def by_itself(model: nn.Module) -> Iterator[None]:
    """A block that one thread at a time is in with a model; others wait until it is left, the same may enter again.

    A hooked model and the Hugging Face model inside are one, and so are a model with its head and without.

    Raises:
        StillRunningError: within a forward pass of the model.
    """
    if (running := _running(model)) is not None:
        raise StillRunningError(
            f"a measurement was asked for within a forward pass of the model that it is about, by a hook on "
            f"{running} or in its forward, and would change the model half-way. Keep in the hook what is needed of "
            "the pass, and measure when it is through"
        )
    with _locks.setdefault(_innermost(model), RLock()):
        yield


def _innermost(model: nn.Module) -> nn.Module:
    """The model inside a hooked one, without its head, by which hosts of the same model are told to be that."""
    while True:
        inside = getattr(model, "original_model", getattr(model, "base_model", None))
        if not isinstance(inside, nn.Module) or inside is model:
            return model
        model = inside


def _running(model: nn.Module) -> str | None:
    """The class of the innermost module that this thread is calling, if it is within a forward pass of a model."""
    modules, called = set(every_module(model)), []
    frame = sys._getframe()
    while (outer := frame.f_back) is not None:
        frame = outer
        if frame.f_code is nn.Module._call_impl.__code__:
            called.append(frame.f_locals["self"])
    return type(called[0]).__name__ if not modules.isdisjoint(called) else None


# As it was.


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients, by itself; every module gets its own mode back, also after an exception.

    Dropout would otherwise sit inside the pattern, and rows would sum to anything between 0 and more than 1.
    """
    with by_itself(model):
        training = [(module, module.training) for module in every_module(model)]
        try:
            for module, _ in training:
                module.training = False
            with torch.no_grad():
                yield
        finally:
            for module, was_training in training:
                module.training = was_training


@contextmanager
def exact_products(model: nn.Module) -> Iterator[None]:
    """A block in which products of float32 keep all their digits where a model is: no TF32, no autocast, no gradients.

    TF32 is a setting of the whole process, so that such blocks of several models take turns.
    """
    kind = next(model.parameters()).device.type
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if torch.amp.is_autocast_available(kind):
            stack.enter_context(torch.autocast(kind, enabled=False))
        if kind != "cpu":
            stack.enter_context(_tf32)
            stack.enter_context(_without_tf32())
        yield


_tf32 = RLock()


@contextmanager
def _without_tf32() -> Iterator[None]:
    matmul = torch.backends.cuda.matmul
    # Versions of torch that have the first of the two do not take a mixture of both.
    name, exact = ("fp32_precision", "ieee") if hasattr(matmul, "fp32_precision") else ("allow_tf32", False)
    before = getattr(matmul, name)
    setattr(matmul, name, exact)
    try:
        yield
    finally:
        setattr(matmul, name, before)


@contextmanager
def generators_as_they_were() -> Iterator[None]:
    """A block after which the generators of Python, numpy and torch draw what they would have drawn without it."""
    own = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002 (that of the user)
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        random.setstate(own[0])
        np.random.set_state(own[1])  # noqa: NPY002
        torch.set_rng_state(own[2])
        if devices:
            torch.cuda.set_rng_state_all(devices)


@contextmanager
def without_traces(model: nn.Module) -> Iterator[list[str]]:
    """Takes off again what a forward pass leaves on a model; names the modules that it put in the place of others.

    A Hugging Face model that is asked for its patterns or states puts hooks on its layers to collect them, and marks
    itself as hooked; BigBird turns into a model of full attention on a short text; tables of positions grow: all for
    good. Every attribute of modules and configurations is what it was afterwards, and so is what is in its containers.
    Only where a pass writes on weights nothing is put back, because settings may say what was done to them (RWKV's
    rescaled layers).
    """
    before = [(name, module, *_attributes(module)) for name, module in model.named_modules()]
    settings = [(config, *_attributes(config)) for config in configs(model)]
    weights = [(weight, n_writes(weight)) for weight in model.parameters()]
    replaced: list[str] = []
    try:
        yield replaced
    finally:
        if all(n_writes(weight) == writes for weight, writes in weights):
            for name, module, own, held in before:
                parts = dict(held.get("_modules", ()))
                changed = [part for part in parts if module._modules.get(part) is not parts[part]]
                replaced += [f"{name}.{part}" if name else part for part in changed]
                _put_back(vars(module), own, held)
            for config, own, held in settings:
                _put_back(vars(config), own, held)


def n_writes(weight: Tensor) -> int:
    """How often a tensor was written on; tensors made for inference do not count it."""
    return 0 if weight.is_inference() else weight._version


_Attributes = tuple[dict[str, Any], dict[str, Any]]


def _attributes(owner: Any) -> _Attributes:
    """The attributes of a module or configuration, and what is in those of them that hold others."""
    own = dict(vars(owner))
    # Of the containers of a module nearly all are empty.
    return own, {name: held.copy() if held else () for name, held in own.items() if type(held) in _CONTAINERS}


_CONTAINERS = (dict, list, set, OrderedDict)


def _put_back(now: dict[str, Any], own: dict[str, Any], content: dict[str, Any]) -> None:
    if len(now) != len(own):
        for name in now.keys() - own.keys():
            del now[name]
    for name, value in own.items():
        if now.get(name) is not value:
            now[name] = value
    for name, held in content.items():
        holder = own[name]
        if len(holder) != len(held) or (held and not _same_things(holder, held)):
            holder.clear()
            (holder.extend if isinstance(holder, list) else holder.update)(held)


def _same_things(one: Any, other: Any) -> bool:
    """Whether two containers hold the same things, without asking these whether they are equal."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(one[key] is value for key, value in other.items())
    return list(map(id, one)) == list(map(id, other))
