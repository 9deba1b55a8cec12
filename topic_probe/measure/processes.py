"""Several processes that measure one corpus together: the only place that knows torch.distributed.

Every process adds up its own share of the documents; then the sums are added up over processes. All that crosses
between them are arrays on the CPU and a few numbers, so gloo carries them whatever device the models are on.

Whoever fails raises its error and is gone; torchrun then ends the others. Where nothing does that, they learn of it in
the next exchange: each begins with a barrier that a process which has ended breaks at once, and one that does not come
within a bounded time.
"""

import atexit
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

# All begin at about the same time, but shares need not take equally long.
_JOINING = timedelta(minutes=10)
_WAITING = timedelta(hours=12)


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

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes in their order; OtherProcessError if one of them is gone."""
        if self.size == 1:
            return [value]
        self._wait()
        values: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(values, value, group=self._group)
        return values

    def add(self, array: Float64[np.ndarray, "*shape"]) -> Float64[np.ndarray, "*shape"]:
        """The sum over processes, the same to the last bit in each. Call it behind a ``gather`` only."""
        if self.size == 1 or array.size == 0:
            return array
        total = torch.from_numpy(np.array(array, order="C"))
        torch.distributed.all_reduce(total, group=self._group)
        summed: np.ndarray = total.numpy()
        return summed

    def check_equal(self, facts: Mapping[str, Any]) -> None:
        """ValueError where processes measure different things, because their sums must not be added up."""
        for number, others in enumerate(self.gather(facts)):
            differing = [name for name in facts if others.get(name) != facts[name]]
            if differing:
                raise ValueError(
                    f"process {number} measures something else than process {self.index}; they differ in "
                    f"{', '.join(differing)}: give all processes the same model, topics and options"
                )

    def _wait(self) -> None:
        """Until all processes are here."""
        try:
            torch.distributed.monitored_barrier(self._group, timeout=_WAITING, wait_all_ranks=True)
        except RuntimeError as error:
            # Who is missing is known where it did not come in time, not where its connection had broken off before.
            named = re.search(r"Ranks? [\d, ]+ failed to pass", str(error))
            who = (
                "another one has failed or ended"
                if named is None
                else named[0].replace("pass", "come in time")
            )
            raise OtherProcessError(
                f"there is no result, because not all of the {self.size} processes have come so far: {who}, and its "
                "own error says why"
            ) from error


@contextmanager
def joined(distributed: bool) -> Iterator[Processes]:
    """The processes that measure together; an error in one of them leaves none with a result."""
    if not distributed or (not _initialized() and _from_environment() == 1):
        yield Processes()
        return
    processes = _join()
    try:
        yield processes
        processes._wait()  # who hangs up early may cut off words that are still on their way
    finally:
        group, processes._group = processes._group, None
        torch.distributed.destroy_process_group(group)


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
    distributed = torch.distributed
    if not distributed.is_initialized():
        distributed.init_process_group("gloo")
        atexit.register(_leave)
    group = distributed.new_group(backend="gloo", timeout=_JOINING)
    return Processes(distributed.get_rank(), distributed.get_world_size(), group)


def _leave() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
