"""Threads take turns with what is changed for a moment and put back: a model that is read, a tokenizer, a generator."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, get_ident

import numpy as np
import torch

# What is held now, by identity, and the thread that holds it. A block keeps its objects alive, so nothing is written on
# them and nothing of them stays in here.
_holder: dict[int, int] = {}
_changed = Condition()

# Seconds between two looks at what nobody announces.
_LOOK = 0.05


@contextmanager
def in_turn(*shared: object, busy: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """A block that no other thread is in with any of these objects; others wait until it is left.

    All are taken at once, so that no two threads wait for each other's. A thread that holds them may enter again.

    Args:
        shared: objects, told apart by identity.
        busy: whether there is something else to wait for; asked again and again until it is not, it may raise.
    """
    me, wanted, mine = get_ident(), [id(thing) for thing in shared], list[int]()
    try:
        with _changed:
            while busy() or any(_holder.get(one, me) != me for one in wanted):
                _changed.wait(_LOOK)
            mine = [one for one in wanted if one not in _holder]
            _holder.update(dict.fromkeys(mine, me))
        yield
    finally:
        with _changed:
            for one in mine:
                if _holder.get(one) == me:
                    del _holder[one]
            _changed.notify_all()


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
