"""Which threads are in a model's forward pass now, read off their calls: nothing is put on the model for it.

A measurement changes modes, attention implementations and hooks for the length of a forward pass. Two at once would
undo each other's changes, and one within a forward pass of the same model would change it half-way.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from threading import get_ident
from time import monotonic
from types import CodeType, FrameType
from typing import Any

from torch import nn
from torch.nn.modules import module as every

from topic_probe.turns import in_turn

# Seconds that another thread may spend in one call of a hook before it is taken to wait for the measurement itself.
PATIENCE = 10.0


class StillRunningError(RuntimeError):
    """A measurement was asked for from within a forward pass of its model, which has to end before."""


@contextmanager
def alone(modules: Iterable[nn.Module], configs: Iterable[Any]) -> Iterator[None]:
    """A block in which no other thread measures a model, nor any that shares modules, settings or weights with it.

    Args:
        modules: all modules of the model.
        configs: what its forward pass looks at beside them.

    Raises:
        StillRunningError: where this thread is in a forward pass of it, or another stays in one of its hooks, so that
            waiting would never end.
    """
    modules = list(modules)
    own = (chain(module._parameters.values(), module._buffers.values()) for module in modules)
    shared = [*modules, *(tensor for tensor in chain.from_iterable(own) if tensor is not None), *configs]
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
