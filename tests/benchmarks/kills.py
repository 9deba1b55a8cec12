"""What kill -9 costs: nothing that is saved, and of what is running one interval.

Commands that go on where they were stopped (a training with checkpoints, a recipe that is reproduced in a folder) are
killed at random moments, each in a folder of its own; measurements in a folder of parts are in
``tests/measure/test_folder.py``.
After every kill the same command runs to its end: the result must be that of a run that was left alone, bit for bit,
nothing half written may be left, and no more may be done twice than lies between two saves.

Then every way of saving is killed at every system call that changes the disk, at all of them one after the other, by
strace where there is one (``tests/helpers/killed.py`` says what must be found then).

Run: ``python tests/benchmarks/kills.py [KILLS] [--no-calls]``, with 200 kills unless told, on Linux.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import topic_probe as tp
from topic_probe.train.loop import _Recorder

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
import killed

KILLS = 200
# What changes the disk, or a file that is about to; a question mark is for machines that have no such call.
CALLS = (
    "openat", "?open", "?creat", "write", "pwrite64", "writev", "ftruncate", "fsync", "fdatasync", "?rename",
    "renameat", "renameat2", "?unlink", "unlinkat", "?mkdir", "mkdirat", "?rmdir", "?link", "linkat", "?symlink",
    "?chmod", "fchmod", "fchmodat", "utimensat",
)  # fmt: skip


@dataclass(frozen=True)
class Command:
    """Something that goes on where it was killed.

    Attributes:
        run: From a folder, and what counts a unit of work, to the folder of the result.
        interval: How many units lie between two saves, at most.
        ignored: Files of the result that say when it was made.
    """

    run: Callable[[Path, Callable[[], None]], Path]
    interval: int
    ignored: tuple[str, ...] = ()


def train(folder: Path, count: Callable[[], None]) -> Path:
    """A training with a checkpoint at every 20 steps."""
    world = tp.World(n_topics=4, words_per_topic=5, topics_per_document=2)
    toy = tp.build_toy(tp.ToyConfig(regime="full", world=world), seed=0)
    history = tp.train_toy(
        toy,
        tp.TrainConfig(optimizer="adam", steps=600, record_every=1),
        log=lambda *_: count(),
        checkpoint=folder / "checkpoint.safetensors",
        checkpoint_every=20,
    )
    path: Path = history.save(folder / "result", overwrite=True)
    return path


def reproduce(folder: Path, count: Callable[[], None]) -> Path:
    """Some quick settings of a recipe, kept when those that train side by side are through."""
    record = _Recorder.record

    def counted(self: _Recorder, step: int, *recorded: Any) -> Any:
        # The last one is a loss only, found again of every setting that is through.
        if step < self.config.steps:
            count()
        return record(self, step, *recorded)

    _Recorder.record = counted  # type: ignore[method-assign]
    wanted = {"full, cross-entropy, Adam", "embedding, cross-entropy, Adam", "full, squared, Adam"}
    result = tp.reproduce("figure1", quick=True, only=wanted, folder=folder / "kept")
    # Figures take longer than all the rest, and say when they were drawn.
    return replace(result, draw=None, seconds=0.0).save(folder / "result", overwrite=True)


COMMANDS = {
    "training": Command(train, interval=20),
    # Five toys of 200 steps at most train side by side, three seeds and two without topics, and are kept when they end.
    "reproducing": Command(reproduce, interval=5 * 200),
}


# --- one kill --------------------------------------------------------------------------------------------


def start(command: Command, folder: Path) -> int:
    """The number of a process that runs it, and writes a byte into a file for every unit of work."""
    if (child := os.fork()) > 0:
        return child
    try:
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        command.run(folder, lambda: os.write(log, b"."))
        os._exit(0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)


def finish(child: int, folder: Path) -> None:
    """Waits for a process that must end well."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, f"it ended with {code}: {(folder / 'said').read_text()}"


def result(folder: Path) -> dict[str, bytes]:
    """Every file of the result."""
    files = sorted(path for path in (folder / "result").rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def units(folder: Path) -> int:
    """How much work was done."""
    return (folder / "log").stat().st_size if (folder / "log").exists() else 0


def kill_once(
    command: Command, folder: Path, after: float, alone: dict[str, bytes], whole: int
) -> int | None:
    """How many units were done twice; None if the command was through before it was killed."""
    child = start(command, folder)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        return None
    finish(start(command, folder), folder)
    found = result(folder)
    differing = [name for name in {**alone, **found} if found.get(name) != alone.get(name)]
    assert not differing, (
        f"{differing} are not those of a run that was left alone, killed after {after:.3f} s"
    )
    hidden = [str(path) for path in folder.rglob(".*")]
    assert not hidden, f"{hidden} are left of a process that was killed after {after:.3f} s"
    twice = units(folder) - whole
    assert twice <= command.interval, f"{twice} units were done twice, killed after {after:.3f} s"
    return twice


def kill_often(name: str, n_kills: int, home: Path, generator: random.Random) -> str:
    """Kills a command at so many random moments, and says what that has cost."""
    command, begun = COMMANDS[name], time.monotonic()
    (alone_in := home / "alone").mkdir(parents=True)
    finish(start(command, alone_in), alone_in)
    seconds, alone, whole = time.monotonic() - begun, result(alone_in), units(alone_in)
    lost: list[int] = []
    while len(lost) < n_kills:
        (folder := home / "killed").mkdir()
        twice = kill_once(command, folder, generator.uniform(0, seconds), alone, whole)
        if twice is not None:
            lost.append(twice)
        shutil.rmtree(folder)
    return (
        f"{name}: {n_kills} kills within {seconds:.1f} s, every result the same; of {whole} units at most {max(lost)} "
        f"(on average {sum(lost) / len(lost):.1f}) were done twice, {command.interval} lie between two saves"
    )


# --- every system call -----------------------------------------------------------------------------------


def run_traced(number: int, action: Callable[[], Any], call: str) -> bool:
    """Whether the action was killed at its so manyth system call of this name."""
    if (child := os.fork()) == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        action()
        os._exit(0)
    os.waitpid(child, os.WUNTRACED)
    options = [f"--trace={call}", f"--inject={call}:signal=KILL:when={number}", "--output=/dev/null"]
    with subprocess.Popen(["strace", "--quiet=all", *options, f"--attach={child}"]):
        while "TracerPid:\t0\n" in Path(f"/proc/{child}/status").read_text():
            time.sleep(0.001)
        os.kill(child, signal.SIGCONT)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -9), "the action failed by itself"
    return code == -9


@contextmanager
def as_saved(scenario: str) -> Iterator[None]:
    """How the system saves in a scenario."""
    if scenario.endswith("in two steps"):
        with killed.two_steps():
            yield
    else:
        yield


def kill_at_every_call(home: Path) -> str:
    """Kills every way of saving at every system call that changes the disk, and says how many these were."""
    done = 0
    for scenario in killed.SCENARIOS:
        for call in CALLS:
            (folder := home / f"{scenario} {call.strip('?')}").mkdir(parents=True)
            with as_saved(scenario):
                done += killed.check(scenario, folder, partial(run_traced, call=call))
            shutil.rmtree(folder)
    return f"saving: {done} kills at every system call, the old result or the new one after each"


def main(n_kills: int, *, calls: bool) -> None:
    torch.set_num_threads(1)
    seed = int(time.time())
    print(f"seed {seed}")
    generator = random.Random(seed)
    with tempfile.TemporaryDirectory() as home:
        for number, name in enumerate(COMMANDS):
            share = n_kills // len(COMMANDS) + (number < n_kills % len(COMMANDS))
            print(kill_often(name, share, Path(home, name), generator), flush=True)
        if not calls or shutil.which("strace") is None:
            print(
                "not every system call was killed: " + ("not wanted" if not calls else "there is no strace")
            )
        else:
            print(kill_at_every_call(Path(home, "calls")), flush=True)


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    main(numbers[0] if numbers else KILLS, calls="--no-calls" not in sys.argv)
