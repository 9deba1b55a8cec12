"""Processes that work together: each on its own share of the documents, whose sums are then added up over processes.

Here alone torch.distributed is known. All that crosses between processes are arrays on the CPU and a few numbers, so
gloo carries them whatever device the models are on.

Shares need not take equally long, so a process may wait for hours, but only for one that lives. Beside the measurement
a thread of every process tells process 0 how it fares, several times a second, and is told of all others. So a process
that fails says so before it goes; one that was killed is missed by the connection that breaks off; one that does not
come, or gives no sign of life, is waited for as long as ``patience`` says, and is named.
"""

import atexit
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from time import monotonic
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from topic_probe.options import Group


@dataclass(frozen=True)
class Together(Group):
    """How processes share out documents; none of it changes a number."""

    distributed: Annotated[
        bool,
        "whether this is one of several processes (of ``torchrun``, or of an initialised ``torch.distributed``) that "
        "share out the documents between them. All are given the same arguments, all documents included, all return "
        "the same report, and an error in one leaves none with a report",
    ] = False
    patience: Annotated[
        float,
        "seconds that a process waits for another one that does not come, or gives no sign of life; one that is alive "
        "and slow is waited for as long as it takes",
    ] = 600.0

    def __post_init__(self) -> None:
        if not self.patience >= 1:
            raise ValueError(f"patience is a number of seconds, at least 1, got {self.patience}")


# Seconds between two signs of life: at first, at last, and at last more for every process, because all go to one.
_QUICK, _CALM, _EACH = 0.005, 0.1, 0.005

# A sign of life is JSON in so many bytes; of so many failures so many letters are passed on.
_BYTES, _FAILURES, _LETTERS = 4096, 3, 200

# Seconds that a process which leaves, or sees a connection break off, waits for the word of the others.
_LAST_WORDS = 10.0


_Numbers = TypeVar("_Numbers", bound=np.ndarray)


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
    _watch: "_Watch | None" = None

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes in their order; OtherProcessError if one of them is gone."""
        if self.size == 1:
            return [value]
        self.meet()
        values: list[Any] = [None] * self.size
        self._exchange(lambda: torch.distributed.all_gather_object(values, value, group=self._group))
        return values

    def add(self, array: _Numbers) -> _Numbers:
        """The sum over processes, the same to the last bit in each. Call it behind a ``gather`` only."""
        if self.size == 1 or array.size == 0:
            return array
        total = torch.from_numpy(np.array(array, order="C"))
        self._exchange(lambda: torch.distributed.all_reduce(total, group=self._group))
        return total.numpy()  # type: ignore[return-value]

    def check_equal(self, facts: Mapping[str, Any]) -> None:
        """ValueError where processes do different things, because their sums must not be added up."""
        every = self.gather(facts)
        differing = {
            number: [name for name in {**every[0], **others} if others.get(name) != every[0].get(name)]
            for number, others in enumerate(every)
        }
        if names := list(dict.fromkeys(name for found in differing.values() for name in found)):
            odd = [number for number, found in differing.items() if found]
            raise ValueError(
                f"{numbered(odd)} {'does' if len(odd) == 1 else 'do'} something else than process 0; they differ in "
                f"{', '.join(names)}: give all processes the same arguments, and documents in the same order"
            )

    def meet(self) -> None:
        """Until all processes are here."""
        if self._watch is not None:
            self._watch.meet()

    def check(self) -> None:
        """OtherProcessError if another process is known to have failed: there is nothing left to measure for."""
        if self._watch is not None:
            self._watch.check()

    def _exchange(self, collective: Callable[[], Any]) -> None:
        """What all processes do at once, all of them being here."""
        try:
            collective()
        except RuntimeError as error:
            if self._watch is not None:
                self._watch.ended.wait(_LAST_WORDS)
                self._watch.check()
            raise OtherProcessError(
                f"there is no result, because the connection between the {self.size} processes broke: {error}"
            ) from error


def numbered(processes: list[int]) -> str:
    """Processes as a message names them."""
    first, *others = processes
    if not others:
        return f"process {first}"
    return f"processes {', '.join(map(str, processes[:8]))}{' …' * (len(processes) > 8)}"


@contextmanager
def joined(distributed: bool, patience: float = 600.0) -> Iterator[Processes]:
    """The processes that measure together; an error in one of them leaves none with a result.

    Args:
        distributed: whether there are others.
        patience: seconds that one is waited for that has not come or gives no sign of life.
    """
    if not distributed or (not _initialized() and _from_environment() == 1):
        yield Processes()
        return
    with _named_if_missing(patience):
        if not _initialized():
            _initialize(patience)
        groups = [
            torch.distributed.new_group(backend="gloo", timeout=timedelta(seconds=patience)) for _ in range(2)
        ]
    index, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    watch = _Watch(index, size, groups[0], patience)
    watch.start()
    processes = Processes(index, size, groups[1], watch)
    try:
        yield processes
        processes.meet()  # who hangs up early may cut off words that are still on their way
    except BaseException as error:
        watch.say(failed={index: f"failed: {type(error).__name__}: {error}"[:_LETTERS]})
        raise
    finally:
        watch.say(left=True)
        processes._watch = processes._group = None
        if watch.ended.wait(_LAST_WORDS):
            for group in groups:
                torch.distributed.destroy_process_group(group)


# ---------------------------------------------------------------------------- who is there


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


def _initialize(patience: float) -> None:
    """What `torch.distributed.init_process_group` does, but process 0 does not wait for a number of nameless others."""
    index, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = torch.distributed.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        size,
        is_master=index == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        timeout=timedelta(seconds=patience),
        wait_for_workers=False,
    )
    # Those that torchrun starts again must not find what the processes before them have left.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    torch.distributed.init_process_group(
        "gloo",
        store=torch.distributed.PrefixStore(f"topic_probe/{attempt}", store),  # type: ignore[attr-defined]
        rank=index,
        world_size=size,
        timeout=timedelta(seconds=patience),
    )
    atexit.register(_leave)


def _leave() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@contextmanager
def _named_if_missing(patience: float) -> Iterator[None]:
    """OtherProcessError in place of torch's own words about a key of its store, which ends in the missing process."""
    try:
        yield
    except RuntimeError as error:
        if not _timed_out(error):
            raise
        named = re.search(r"keys: .*/(\d+)$", str(error).strip())
        missing = named[1] if named else "0, where the others meet," if "connect" in str(error) else None
        who = "not all processes have come" if missing is None else f"process {missing} has not come"
        raise OtherProcessError(
            f"there is no result, because {who} within {_minutes(patience)}: every process must make this call with "
            f"distributed=True, and one that needs longer to get there needs a higher patience ({error})"
        ) from error


def _minutes(seconds: float) -> str:
    return f"{seconds:g} seconds" if seconds < 120 else f"{seconds / 60:.3g} minutes"


# ---------------------------------------------------------------------------- how they fare


@dataclass(frozen=True)
class _State:
    """What one process says of itself, or process 0 of all.

    Attributes:
        reached: how often it has come where all meet; of all the lowest.
        failed: why processes have failed, by their number.
        left: whether it (or every process) needs the others no more.
    """

    reached: int = 0
    failed: Mapping[int, str] = field(default_factory=dict)
    left: bool = False

    def packed(self) -> Tensor:
        few = sorted(self.failed.items())[:_FAILURES]
        content = json.dumps([self.reached, few, self.left], ensure_ascii=False).encode(errors="replace")
        return torch.frombuffer(bytearray(content.ljust(_BYTES)), dtype=torch.uint8)

    @classmethod
    def of(cls, packed: Tensor) -> "_State":
        reached, failed, left = json.loads(packed.numpy().tobytes())
        return cls(reached, dict(failed), left)


class _Watch(threading.Thread):
    """Tells the other processes how this one fares, and knows how they fare.

    In every round all processes tell process 0, which tells all. The round in which one has failed, or all have left,
    is the last.
    """

    def __init__(self, index: int, size: int, group: Any, patience: float) -> None:
        super().__init__(daemon=True, name="topic_probe signs of life")
        self.index, self.size, self.group, self.patience = index, size, group, patience
        self.own, self.all, self.changed = _State(), _State(), threading.Condition()
        self.ended = threading.Event()

    # --- what the measurement says and asks

    def say(self, **state: Any) -> None:
        """How this process fares."""
        with self.changed:
            self.own = replace(self.own, **state)
            self.changed.notify_all()

    def meet(self) -> None:
        """Until all processes are here; OtherProcessError if one has failed."""
        self.say(reached=self.own.reached + 1)
        with self.changed:
            self.changed.wait_for(lambda: self.all.failed or self.all.reached >= self.own.reached)
        self.check()

    def check(self) -> None:
        """OtherProcessError if another process has failed."""
        others = [
            f"process {number} {why}" for number, why in self.all.failed.items() if number != self.index
        ]
        if others:
            raise OtherProcessError(f"there is no result, because {'; '.join(others)}")

    # --- the thread

    def run(self) -> None:
        """Rounds, the next one at once if there is something new."""
        said, pause, longest = self.own, _QUICK, _CALM + _EACH * self.size
        while not (self.all.failed or self.all.left):
            with self.changed:
                self.changed.wait_for(lambda said=said: self.own != said, pause)  # type: ignore[misc]
                pause = _QUICK if self.own != said else min(2 * pause, longest)
                said = self.own
            heard = self._lead(said) if self.index == 0 else self._follow(said)
            with self.changed:
                self.all = heard
                self.changed.notify_all()
        self.ended.set()

    def _follow(self, own: _State) -> _State:
        """A round of a process that is not the first one."""
        try:
            torch.distributed.send(own.packed(), 0, group=self.group)
            # The first process may be waiting for another one, which it then names.
            return self._receive(0, monotonic() + self.patience + _LAST_WORDS)
        except RuntimeError as error:
            return _State(failed={0: self._gone(error)})

    def _lead(self, own: _State) -> _State:
        """A round of the first process."""
        states, failed = [own], dict(own.failed)
        deadline = monotonic() + self.patience
        for number in range(1, self.size):
            try:
                states.append(self._receive(number, deadline))
                failed |= states[-1].failed
            except RuntimeError as error:
                failed[number] = self._gone(error)
                if _timed_out(error):
                    break  # gloo has given up all others with it
        heard = _State(min(state.reached for state in states), failed, all(state.left for state in states))
        for number in range(1, self.size):
            with suppress(RuntimeError):  # the next round will tell
                torch.distributed.send(heard.packed(), number, group=self.group)
        return heard

    def _receive(self, number: int, deadline: float) -> _State:
        packed = torch.empty(_BYTES, dtype=torch.uint8)
        work = torch.distributed.irecv(packed, number, group=self.group)
        assert work is not None
        work.wait(timedelta(seconds=max(deadline - monotonic(), 0.001)))
        return _State.of(packed)

    def _gone(self, error: RuntimeError) -> str:
        """What a broken exchange says of the process on its other end."""
        if _timed_out(error):
            return f"has given no sign of life for {_minutes(self.patience)}"
        return "has ended without a word: it was killed, or its own error says why"


def _timed_out(error: RuntimeError) -> bool:
    return re.search("timed? ?out", str(error), re.IGNORECASE) is not None
