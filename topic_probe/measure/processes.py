"""Several processes that measure one corpus together: the only place that knows torch.distributed.

Every process adds up its own share of the documents; then the sums are added up over processes. All that crosses
between them are arrays on the CPU and a few numbers, so gloo carries them whatever device the models are on.

Nobody waits for a process that failed. It raises a flag, which the others look at while they measure, and all of them
meet in the next exchange, where the failure is told; so each exchange of sums begins with one of words.
"""

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from time import monotonic
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

# Shares need not take equally long, so whoever is through first may have to wait for hours.
_PATIENCE = timedelta(days=30)
_SECONDS_BETWEEN_LOOKS = 0.5
_FAREWELL = timedelta(seconds=60)

# The same number in all processes, because each of them takes part in every measurement.
_calls = count()


class OtherProcessError(RuntimeError):
    """Another process failed, so there is no result."""


@dataclass(eq=False)
class Processes:
    """The processes of one measurement, seen from one of them; alone, exchanges are not needed.

    Attributes:
        index: number of this process, from 0.
        size: how many there are.
    """

    index: int = 0
    size: int = 1
    _group: Any = None
    _flags: Any = None
    _looked: float = 0.0

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes in their order; OtherProcessError if one of them failed."""
        return [value] if self.size == 1 else self._meet(value, None)

    def add(self, array: Float64[np.ndarray, "*shape"]) -> Float64[np.ndarray, "*shape"]:
        """The sum over processes, the same to the last bit in each. Call it behind a ``gather`` only."""
        if self.size == 1 or array.size == 0:
            return array
        total = torch.from_numpy(np.array(array, order="C"))
        torch.distributed.all_reduce(total, group=self._group)
        summed: np.ndarray = total.numpy()
        return summed

    def look(self) -> None:
        """OtherProcessError if another process has failed; costs nothing to speak of."""
        if self.size == 1 or monotonic() - self._looked < _SECONDS_BETWEEN_LOOKS:
            return
        self._looked = monotonic()
        if self._flags.check(["failed"]):
            self._meet(None, None)

    def _fail(self, error: Exception) -> None:
        self._flags.set("failed", "yes")
        with suppress(OtherProcessError):  # where both failed, each raises its own error
            self._meet(None, f"{type(error).__name__}: {error}")

    def _part(self) -> None:
        """Hangs up once all are through: who hangs up early may cut off words that are still on their way."""
        with suppress(RuntimeError):  # of a store that went with its process, or of one that never comes
            self._flags.set(f"through {self.index}", "yes")
            self._flags.wait([f"through {index}" for index in range(self.size)], _FAREWELL)
        torch.distributed.destroy_process_group(self._group)

    def _meet(self, value: Any, failure: str | None) -> list[Any]:
        told: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(told, (failure, value), group=self._group)
        for number, (problem, _) in enumerate(told):
            if problem is not None and number != self.index:
                raise OtherProcessError(
                    f"there is no result, because process {number} of {self.size} failed: {problem}"
                )
        return [value for _, value in told]


@contextmanager
def joined(distributed: bool) -> Iterator[Processes]:
    """The processes that measure together; an error in one of them ends the block in all of them."""
    if not distributed or (not _initialized() and _from_environment() == 1):
        yield Processes()
        return
    processes = _join()
    try:
        yield processes
    except OtherProcessError:
        raise
    except Exception as error:
        if processes.size > 1:
            processes._fail(error)
        raise
    finally:
        processes._part()


def launched() -> bool:
    """Whether this is one of several processes that torchrun (or a program like it) has started."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def _initialized() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _from_environment() -> int:
    """How many processes torchrun has started; RuntimeError if it has not."""
    missing = [
        name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ
    ]
    if missing or not torch.distributed.is_available():
        why = (
            f"{', '.join(missing)} missing in the environment"
            if missing
            else "this torch is built without it"
        )
        raise RuntimeError(
            f"distributed=True needs processes that know of each other ({why}): start the program with "
            "torchrun --nproc-per-node 4 program.py, or call torch.distributed.init_process_group first"
        )
    return int(os.environ["WORLD_SIZE"])


def _join() -> Processes:
    """A group for one measurement, on top of the user's or of one that torchrun's environment describes."""
    from torch.distributed.distributed_c10d import PrefixStore

    distributed = torch.distributed
    if not distributed.is_initialized():
        distributed.init_process_group("gloo")
        atexit.register(_leave)
    group = distributed.new_group(backend="gloo", timeout=_PATIENCE)
    store = distributed.distributed_c10d._get_default_store()
    flags = PrefixStore(f"topic_probe/{next(_calls)}", store)
    return Processes(distributed.get_rank(), distributed.get_world_size(), group, flags)


def _leave() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
