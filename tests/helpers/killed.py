"""Runs an action again and again, killed at its first change of the disk, at its second, and so on until it ends.

Run as a program, so that what is forked holds no threads: ``python killed.py SCENARIO FOLDER``. It fails with the
first state in which a reader finds neither the old nor the new result, or which the next save does not clean up, and
prints after how many kills the action ended.
"""

import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from topic_probe import storage

_CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def run_killed(number: int, action: Callable[[], Any]) -> bool:
    """Whether the action was killed at its so manyth change of the disk, in a process of its own."""
    child = os.fork()
    if child == 0:
        try:
            _die_at(number)
            action()
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9), "the action failed by itself"
    return code == 9


def _die_at(number: int) -> None:
    left = number

    def change(last_words: Callable[[], Any] = lambda: None) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            last_words()
            os._exit(9)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _CHANGES:
            change()
        if event == "open" and arguments[2] & _WRITES:
            change()
            change(lambda: os.open(arguments[0], arguments[2]))  # nothing is in it yet

    fsync, exchanged = os.fsync, storage._exchanged

    def synced(descriptor: int) -> None:
        if os.fstat(descriptor).st_size and stat.S_ISREG(os.fstat(descriptor).st_mode):
            change(lambda: _tear(descriptor))
        fsync(descriptor)

    def swapped(*places: Path) -> bool:
        change()
        return exchanged(*places)

    os.fsync, storage._exchanged = synced, swapped
    sys.addaudithook(hook)


def _tear(descriptor: int) -> None:
    """Half of a file, as if it were killed while it was being written."""
    with suppress(OSError):  # which was opened to be read
        os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)


def put(folder: Path, number: int, **options: Any) -> Any:
    """Save a result that says a number twice."""
    return storage.save(folder, "matrix", {"number": number}, {"number": np.full(50, number)}, **options)


def put_plain(folder: Path, number: int, **options: Any) -> Any:
    """One without arrays."""
    return storage.save(folder, "matrix", {"number": number}, **options)


def put_many(folder: Path, number: int, **options: Any) -> Any:
    """A folder of several results."""
    with storage.draft(folder, **options) as draft:
        for name in ("a", "b"):
            put(draft / name, number)


def put_sealed(folder: Path, number: int, **options: Any) -> Any:
    """A folder of several results with the checksums of all files, as a recipe saves it."""
    with storage.draft(folder, **options) as draft:
        (draft / "tables").mkdir()
        (draft / "tables" / "numbers.json").write_text(f"[{number}]")
        put(draft / "a", number)
        storage.seal(draft, "recipe", {"number": number})


def put_file(file: Path, number: int, **options: Any) -> Any:
    """A single file, as a training leaves its checkpoint."""
    with storage.draft(file, file=True, **options) as draft:
        draft.write_text(f"{number:50}")


def read(folder: Path) -> int | None:
    """The number; None where nothing is saved."""
    try:
        saved = storage.load(folder)
    except FileNotFoundError:
        return None
    if "number" not in saved.content:
        return 0  # the one from before
    number: int = saved.content["number"]
    assert not saved.arrays or (saved.arrays["number"] == number).all(), "a mixture"
    return number


def read_many(folder: Path) -> int | None:
    """The number that all results say."""
    numbers = {read(folder / name) for name in ("a", "b")}
    assert len(numbers) == 1, f"a mixture of {numbers}"
    return numbers.pop()


def read_sealed(folder: Path) -> int | None:
    """The number that its files say."""
    number = read(folder)
    if number is not None:
        assert storage.damaged_files(folder) == []
        assert (
            read(folder / "a") == number == json.loads((folder / "tables" / "numbers.json").read_bytes())[0]
        )
    return number


def read_file(file: Path) -> int | None:
    """The number in a file."""
    return int(file.read_text()) if file.exists() else None


@contextmanager
def two_steps() -> Iterator[None]:
    """As on a system that cannot exchange two folders."""
    kept, storage._exchanged = storage._exchanged, lambda one, other: False
    try:
        yield
    finally:
        storage._exchanged = kept


def no_start(folder: Path) -> None:
    """Nothing is there."""


SCENARIOS: dict[str, tuple[Any, Any, Any]] = {
    "first": (no_start, put, read),
    "first of several": (no_start, put_many, read_many),
    "overwrite": (lambda folder: put(folder, 0), put, read),
    "overwrite arrays by none": (lambda folder: put(folder, 0), put_plain, read),
    "overwrite the same": (lambda folder: put(folder, 1), put, read),
    "overwrite several": (lambda folder: put_many(folder, 0), put_many, read_many),
    "overwrite a sealed folder": (lambda folder: put_sealed(folder, 0), put_sealed, read_sealed),
    "overwrite a file": (lambda file: put_file(file, 0), put_file, read_file),
    "overwrite several in two steps": (lambda folder: put_many(folder, 0), put_many, read_many),
}


# How many files each of them saves.
N_FILES = {put: 2, put_plain: 1, put_many: 4, put_sealed: 4, put_file: 1}


def check(scenario: str, folder: Path, run: Callable[[int, Callable[[], Any]], bool] = run_killed) -> int:
    """The number of kills after which the action ended."""
    start, act, look = SCENARIOS[scenario]
    for number in range(1, 200):
        home = folder / str(number)
        home.mkdir()
        target = home / "out"
        start(target)
        before = look(target)
        killed = run(number, lambda place=target: act(place, 1, overwrite=True))
        assert look(target) in ((before, 1) if killed else (1,)), f"neither old nor new after kill {number}"
        act(target, 2, overwrite=look(target) is not None)
        assert look(target) == 2
        names = [path.name for path in home.rglob("*") if path.is_file()]
        hidden = [path.name for path in home.rglob(".*")]
        assert not hidden, f"kill {number} left {hidden}"
        assert list(home.iterdir()) == [target]
        assert len(names) == N_FILES[act], f"kill {number} left one of {names}"
        if not killed:
            return number - 1
    raise AssertionError("it never ends")


if __name__ == "__main__":
    name, place = sys.argv[1:]
    if name.endswith("in two steps"):
        with two_steps():
            print(check(name, Path(place)))
    else:
        print(check(name, Path(place)))
