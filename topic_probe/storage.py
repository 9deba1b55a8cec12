"""Everything that is saved: one way to the disk and back, safe against being killed at any instruction.

A saved result is a folder with a manifest, ``saved.json``, and a file of arrays whose name carries its hash, never a
pickle. A folder cannot be replaced in one step, but a file can: new arrays are written beside the old ones, then the
manifest is replaced, then what it no longer names is removed. So a reader sees the old result or the new one, and there
is nothing to restore. The manifest ends in a checksum of all its bytes and holds that of the arrays: a single changed
bit anywhere is noticed. A folder of several results is filled as a draft beside its place (`draft`), and its manifest
may hold the checksums of all its files (`seal`, `damaged_files`). What a killed process leaves behind counts as absent,
and the next call for the same path removes it.
"""

import ctypes
import errno
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

if sys.platform != "win32":
    import fcntl

MANIFEST, _FORMAT = "saved.json", "topic_probe result"
# Higher where what is saved changes its meaning: a result of another version is refused.
_VERSION = 1

# Kinds that only a result of the same kind may replace: a mistyped path cannot make a report of somebody's topics. All
# other kinds are reports, which may replace each other.
_APART = {"topics", "topic fit", "co-occurrence", "token ids", "sums of a measurement"}

# Machine, process and a random number, in the names of what is not in its place yet. Processes of another machine that
# writes to the same disk cannot be asked whether they still live.
_MACHINE = hashlib.sha256(platform.node().encode()).hexdigest()[:4]
_MARK = r"\.([0-9a-f]{4})-(\d{1,10})-[0-9a-f]{8}"
_ARRAYS = "arrays-{:.16}.safetensors"
ARRAYS = r"arrays-[0-9a-f]{16}\.safetensors"
# What a killed save may leave in its folder.
_SCRAP = re.compile(rf"{ARRAYS}|\.(?:{ARRAYS}|saved\.json){_MARK}")
# How a manifest ends.
_SEAL = b',\n "sha256": "%b"\n}\n'
_SEAL_LENGTH = len(_SEAL % bytes(64))

# What folders of several results hold besides: claims, and tables and figures in folders of that name.
_BESIDE = {"claims.json", "claims.txt"}
_FOLDERS = {"tables": (".json", ".csv"), "figures": (".svg", ".png")}


@dataclass(frozen=True)
class Saved:
    """A saved result as it lies on disk.

    Attributes:
        kind: What it is, as `save` was told.
        content: JSON content.
        arrays: Name -> array.
        path: The manifest, to be named in messages.
    """

    kind: str
    content: dict[str, Any]
    arrays: dict[str, np.ndarray]
    path: Path


def save(
    path: str | os.PathLike[str],
    kind: str,
    content: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray] | None = None,
    *,
    overwrite: bool = False,
) -> Path:
    """The folder, which holds the result: as it was before until all is written, and new from then on.

    Args:
        path: A folder that does not exist or is empty; another one is refused.
        kind: What is saved; `load` and `kind_of` know it again.
        content: JSON content.
        arrays: Arrays by name.
        overwrite: Replace a result of this kind that is saved there (any report, for a report). A folder that holds
            anything else is refused all the same.
    """
    # In C order, because safetensors writes memory as it lies; np.ascontiguousarray would make 0-d arrays 1-d.
    ordered = {name: np.array(array, order="C") for name, array in (arrays or {}).items()}
    packed = save_safetensors(ordered) if ordered else b""
    digest = _sha256(packed) if ordered else None
    manifest = _sealed({**_head(kind, digest), "content": content})
    folder = _settled(path)
    with _made(folder.parent), _locked(folder.parent):
        check_free(folder, overwrite=overwrite, kind=kind)
        with _made(folder):
            try:
                if digest is not None:
                    write_file(folder / _ARRAYS.format(digest), packed)
                write_file(folder / MANIFEST, manifest)
            finally:
                _sweep(folder)
    return folder


def load(path: str | os.PathLike[str], kind: str | Collection[str] | None = None) -> Saved:
    """What `save` has written.

    Args:
        path: The folder.
        kind: What it must be; None takes any kind.

    Raises:
        FileNotFoundError, ValueError: name the file that is missing, damaged, of another kind or of another version.
    """
    folder, kinds = _settled(path), {kind} if isinstance(kind, str) else kind
    before = None
    while (manifest := _manifest(folder)) != before:
        saved, file, sha256 = manifest
        if kinds is not None and saved.kind not in kinds:
            raise ValueError(
                f"{saved.path} holds {saved.kind!r}, not {' or '.join(map(repr, sorted(kinds)))}"
            )
        with suppress(FileNotFoundError):
            return saved if file is None else replace(saved, arrays=_arrays(file, sha256))
        before = manifest  # if it was replaced meanwhile, the new one names other arrays
    raise FileNotFoundError(f"{file} does not exist, though {saved.path.name} beside it names it")


def kind_of(path: str | os.PathLike[str]) -> str | None:
    """The kind of the result that is saved in a folder, None where there is none; ValueError where it is damaged."""
    folder = _settled(path)
    try:
        return _manifest(folder)[0].kind
    except FileNotFoundError:
        return None


@contextmanager
def draft(path: str | os.PathLike[str], *, overwrite: bool = False, file: bool = False) -> Iterator[Path]:
    """A folder (or file) to fill, put in its place whole when the block ends well and gone otherwise.

    It is made at once, so that a place that cannot be written to is known before anything is computed.

    Args:
        path: What does not exist, or is an empty folder.
        overwrite: Replace what is there: a file, or a folder with nothing but results of this package.
        file: Whether it is a file.
    """
    target = _settled(path)
    check_free(target, overwrite=overwrite, file=file)
    with _made(target.parent):
        place = _beside(target)
        try:
            place.touch() if file else place.mkdir()
            yield place
            for part in (*place.rglob("*"), place):
                _sync(part)
            with _locked(target.parent):
                # Another process may have been here meanwhile.
                check_free(target, overwrite=overwrite, file=file)
                _put_in_place(place, target)
        finally:
            _remove(place)


def seal(folder: Path, kind: str, content: Mapping[str, Any]) -> None:
    """Give a draft a manifest of its own, with the checksums of all files that it holds so far."""
    parts = sorted(part for part in folder.rglob("*") if part.is_file())
    files = {part.relative_to(folder).as_posix(): _sha256(part.read_bytes()) for part in parts}
    write_file(folder / MANIFEST, _sealed({**_head(kind, None), "content": {**content, "files": files}}))


def damaged_files(path: str | os.PathLike[str]) -> list[str]:
    """The files of a folder that are gone or have changed since `seal`; links are not followed."""
    folder = _settled(path)
    there = {part.relative_to(folder).as_posix(): part for part in folder.rglob("*") if not part.is_symlink()}
    return [
        name
        for name, sha256 in _manifest(folder)[0].content["files"].items()
        if name not in there or not there[name].is_file() or _sha256(there[name].read_bytes()) != sha256
    ]


def check_free(
    path: str | os.PathLike[str], *, overwrite: bool, file: bool = False, kind: str | None = None
) -> None:
    """FileExistsError for a place that `draft` would not fill, or `save` with a result of this kind."""
    if not isinstance(overwrite, bool):  # "0" would be taken for True, and what is there be gone
        raise TypeError(f"overwrite must be True or False, got {overwrite!r:.80}")
    target = Path(path).expanduser().resolve()
    if not target.exists():
        return
    if target.is_dir() == file:
        is_now, needed = ("a folder", "a file") if file else ("a file", "a folder")
        raise FileExistsError(f"{target} is {is_now}, {needed} is needed: choose another path")
    # What a killed save has left counts as nothing.
    if not file and all(_SCRAP.fullmatch(entry.name) for entry in target.iterdir()):
        return
    if not overwrite:
        raise FileExistsError(
            f"{target} {'exists' if file else 'is not empty'} and is not overwritten unasked: choose another, or add "
            "overwrite=True (--overwrite)"
        )
    if not file and (foreign := _foreign(target, kind)):
        raise FileExistsError(
            f"{target} holds {foreign[0]}, which is no result of topic-probe or one of another kind and would be "
            "deleted: choose another folder"
        )


def _foreign(folder: Path, kind: str | None) -> list[str]:
    """What must not be deleted: whatever is not ours, and for a kind whatever is not a single result like it."""
    if kind is None:
        ours = {MANIFEST, *_BESIDE}
        return [
            str(part.relative_to(folder))
            for part in sorted(folder.rglob("*"))
            if part.is_file()
            and not (part.name in ours or _SCRAP.fullmatch(part.name))
            and part.suffix not in _FOLDERS.get(part.parent.name, ())
        ]
    names = sorted(entry.name for entry in folder.iterdir())
    foreign = [name for name in names if name != MANIFEST and not _SCRAP.fullmatch(name)]
    with suppress(OSError, ValueError):  # what is damaged may be replaced
        there = _manifest(folder)[0].kind
        if there != kind and {there, kind} & _APART:
            foreign.append(f"saved {there}")
    return foreign


# --- reading -----------------------------------------------------------------------------------------


def _manifest(folder: Path) -> tuple[Saved, Path | None, str | None]:
    """A result without its arrays, the file that holds these, and its checksum; both are None without arrays.

    FileNotFoundError where nothing is saved, ValueError for what is damaged.
    """
    path = folder / MANIFEST
    if path.is_fifo():
        raise ValueError(f"{path} is a pipe and no saved result: nobody may ever write to it")
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(
            f"{path} does not exist: {folder} is not a folder saved by topic_probe"
        ) from None
    raw, seal = raw[:-_SEAL_LENGTH] + b"\n}", raw[-_SEAL_LENGTH:]
    if seal != _SEAL % _sha256(raw).encode():
        raise ValueError(
            f"{path} is not whole: it was cut, changed or damaged since it was saved, save it again"
        )
    head = read_json(path, raw)
    form, version, kind, content, sha256 = (
        head.get(name) for name in ("format", "version", "kind", "content", "arrays_sha256")
    )
    if form != _FORMAT or not isinstance(kind, str) or not isinstance(content, dict):
        raise ValueError(f"{path} is no saved result of topic_probe")
    if version != _VERSION:
        raise ValueError(
            f"{path} has format version {version}, this topic_probe reads {_VERSION}: read it with the topic_probe "
            "that saved it, or save it again"
        )
    saved = Saved(kind, content, {}, path)
    return saved, None if sha256 is None else path.with_name(_ARRAYS.format(sha256)), sha256


def _arrays(file: Path, sha256: str | None) -> dict[str, np.ndarray]:
    packed = file.read_bytes()
    if sha256 != _sha256(packed):
        raise ValueError(f"{file} is truncated, changed or of another save than the JSON file beside it")
    try:
        arrays: dict[str, np.ndarray] = load_safetensors(packed)
    except SafetensorError as error:
        raise ValueError(f"{file} is not a whole safetensors file ({error}): save it again") from error
    return arrays


def read_json(path: Path, raw: bytes | None = None) -> dict[str, Any]:
    """The object in a JSON file, or in what was read of it; ValueError names one that is damaged."""
    try:
        content = json.loads(path.read_bytes() if raw is None else raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not whole or not JSON ({error}): save it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, it holds a {type(content).__name__}")
    return content


# --- writing -----------------------------------------------------------------------------------------


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _head(kind: str, arrays_sha256: str | None) -> dict[str, Any]:
    """How every manifest begins."""
    return {"format": _FORMAT, "version": _VERSION, "kind": kind, "arrays_sha256": arrays_sha256}


def _sealed(head: Mapping[str, Any]) -> bytes:
    """Strict JSON (no bare NaN), readable by a person, whose last entry is the checksum of the others."""
    body = json.dumps(head, allow_nan=False, ensure_ascii=False, indent=1).encode()
    return body.removesuffix(b"\n}") + _SEAL % _sha256(body).encode()


def write_file(path: Path, content: bytes) -> None:
    """Replace a file in one step, after all of it has reached the disk."""
    new = _beside(path)
    try:
        with new.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, have reached the disk."""
    # Some systems cannot do that for folders; a file that does not reach the disk is an error.
    with suppress(OSError) if path.is_dir() else nullcontext():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Remove what the manifest of a folder does not name; nobody else is saving there."""
    kept = None
    try:
        _, kept, _ = _manifest(folder)
    except FileNotFoundError:
        pass
    except ValueError:
        return  # it was damaged before, and could not be replaced
    for entry in folder.iterdir():
        if entry != kept and _SCRAP.fullmatch(entry.name):
            entry.unlink(missing_ok=True)


# --- places ------------------------------------------------------------------------------------------


def _beside(path: Path) -> Path:
    """A hidden name beside a path, which says who is writing there."""
    return path.with_name(f".{path.name}.{_MACHINE}-{os.getpid()}-{secrets.token_hex(4)}")


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """A folder with its parents; what was made for it goes again if the block fails."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for place in made:
            with suppress(OSError):  # somebody else has put something there
                place.rmdir()
        raise


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Alone among those who put something into a folder; the system ends it for a killed process."""
    if sys.platform == "win32":  # pragma: no cover - which has no such locks
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        with suppress(OSError):  # said aloud, because a process that was forked meanwhile has it open too
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _put_in_place(new: Path, target: Path) -> None:
    try:
        new.replace(target)  # a file, or a folder onto nothing or an empty one
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not _exchanged(new, target):
            # Between two steps nothing is at the target; `_settled` takes the second one of a process killed there.
            old = new.with_name(f"{new.name}.old")
            target.rename(old)
            try:
                new.rename(target)
            except BaseException:
                old.rename(target)
                raise
            _remove(old)
    _sync(target.parent)


def _exchanged(one: Path, other: Path) -> bool:
    """Whether the system can exchange two folders in one step (Linux can), and has done so."""
    try:
        exchange = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, both = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(exchange(here, os.fsencode(one), here, os.fsencode(other), both) == 0)


def _settled(path: str | os.PathLike[str]) -> Path:
    """The place, after finishing and removing what killed processes have left beside it.

    It waits for a process that is between two steps.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"a path is needed, got {path!r:.80}")
    if not os.fspath(path):
        raise ValueError("a path is needed, got ''; the current folder is '.'")
    place = Path(path).expanduser().resolve()
    gone = [part for part in (place, *place.parents) if not part.exists()]
    target = gone[-1] if gone else place  # a saved result may lie in a folder that is being replaced
    if gone or _left_over(target):
        with suppress(OSError), _locked(target.parent):  # where nothing may be written it stays
            for scrap in sorted(_left_over(target), reverse=True):
                new = scrap.with_suffix("")
                if scrap.suffix == ".old" and not target.exists():
                    (new if new.exists() else scrap).rename(target)
                _remove(scrap)
    return place


def _left_over(target: Path) -> list[Path]:
    """Drafts of a target whose processes are gone."""
    form = re.compile(rf"\.+{re.escape(target.name)}(?:{_MARK})+(?:\.old)?")
    drafts = []
    with suppress(OSError):  # a folder that may not be listed
        drafts = [(form.fullmatch(place.name), place) for place in target.parent.iterdir()]
    return [
        place for found, place in drafts if found and found[1] == _MACHINE and not _is_alive(int(found[2]))
    ]


def _is_alive(process: int) -> bool:
    if os.name != "posix":  # pragma: no cover - elsewhere asking would end it
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # somebody else's
    return True


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
