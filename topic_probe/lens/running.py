"""A model is run by itself, in evaluation mode, and comes back as it was: all that a block does around a forward pass.

A measurement changes modes, attention implementations and hooks for the length of a forward pass. Two at once would
undo each other's changes, and one within a forward pass of the same model would change it half-way. Which threads are
in a forward pass is read off their calls: nothing is put on the model for it.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from threading import get_ident
from time import monotonic
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as every

from topic_probe.turns import in_turn

# Seconds that another thread may spend in one call of a hook before it is taken to wait for the measurement itself.
PATIENCE = 10.0


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


@contextmanager
def by_itself(model: nn.Module) -> Iterator[None]:
    """A block in which no other thread measures a model, nor any that shares modules, settings or weights with it.

    Raises:
        StillRunningError: where this thread is in a forward pass of it, or another stays in one of its hooks, so that
            waiting would never end.
    """
    modules = list(every_module(model))
    own = (chain(module._parameters.values(), module._buffers.values()) for module in modules)
    tensors = (tensor for tensor in chain.from_iterable(own) if tensor is not None)
    shared = [*modules, *tensors, *configs(model)]
    parts = {id(part) for part in shared}
    if (running := _running(sys._getframe(), parts)) is not None:
        raise StillRunningError(
            f"a measurement was asked for within a forward pass of the model that it is about, by a hook on "
            f"{running} or in its forward, and would change the model half-way. Keep in the hook what is needed of "
            "the pass, and measure when it is through"
        )
    with in_turn(*shared, busy=_others_in_hooks(parts)):
        yield


_CALL = nn.Module._call_impl.__code__
# Newer versions of torch call hooks from a function within.
_CALLS = {_CALL, *(part for part in _CALL.co_consts if isinstance(part, CodeType))}


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _running(innermost: FrameType, parts: set[int]) -> str | None:
    """The class of the innermost module that a thread is calling, if a forward pass around it has any of the parts."""
    called = [frame.f_locals["self"] for frame in _stack(innermost) if frame.f_code is _CALL]
    shares = any(
        id(module) in parts or any(id(tensor) in parts for tensor in module.parameters()) for module in called
    )
    return type(called[0]).__name__ if shares else None


def _others_in_hooks(parts: set[int]) -> Callable[[], bool]:
    """Says, each time it is called, whether another thread is in a hook within a forward pass of any of the parts.

    It raises StillRunningError where one stays in the same call of a hook.
    """
    since: dict[FrameType, float] = {}

    def in_hooks() -> bool:
        nonlocal since
        now = monotonic()
        threads = [frame for thread, frame in sys._current_frames().items() if thread != get_ident()]
        calls = (_hook_call(frame) for frame in threads)
        since = {
            call: since.get(call, now)
            for call, frame in zip(calls, threads, strict=True)
            if call is not None and _running(frame, parts) is not None
        }
        for call, start in since.items():
            if now - start > PATIENCE:
                raise StillRunningError(
                    f"another thread has been in {call.f_code.co_name}, a hook of the model to be measured, for "
                    f"{PATIENCE:g} seconds, and while it is, the model cannot be measured. If the hook waits for this "
                    "measurement, that would be for ever: keep in the hook what is needed of the pass, and measure "
                    "when it is through"
                )
        return bool(since)

    return in_hooks


def _hook_call(innermost: FrameType) -> FrameType | None:
    """The innermost call of a hook on a module that a thread is in."""
    for frame in _stack(innermost):
        if frame.f_back is not None and frame.f_back.f_code in _CALLS:
            module = frame.f_back.f_locals["self"]
            hooks = (
                every._global_forward_pre_hooks,
                every._global_forward_hooks,
                module._forward_pre_hooks,
                module._forward_hooks,
            )
            if any(_code(hook) is frame.f_code for known in hooks for hook in list(known.values())):
                return frame
    return None


def _code(hook: Any) -> object:
    while isinstance(hook, partial):
        hook = hook.func
    return getattr(hook, "__code__", None) or getattr(type(hook).__call__, "__code__", None)


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
            stack.enter_context(by_itself(model))
            stack.enter_context(in_turn(torch.backends.cuda.matmul))
            stack.enter_context(_without_tf32())
        yield


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
