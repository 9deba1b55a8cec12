"""Everything that is saved: one way to the disk and back, safe against being killed at any instruction.

A saved result is a folder with a manifest, ``saved.json``, and a file of arrays whose name carries its hash, never a
pickle. A folder cannot be replaced in one step, but a file can: new arrays are written beside the old ones, then the
manifest is replaced, then what it no longer names is removed. So a reader sees the old result or the new one, and there
is nothing to restore. The manifest ends in a checksum of all its bytes and holds that of the arrays: a single changed
bit anywhere is noticed. A folder of several results is filled as a draft beside its place (`draft`). What a killed
process leaves behind counts as absent, and the next call for the same path removes it.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

if sys.platform != "win32":
    import fcntl

MANIFEST, _FORMAT = "saved.json", "topic_probe result"

# What versions before this manifest called the two files of a kind; all other kinds are reports. A result is only
# replaced by one that was saved under the same names: a mistyped path cannot make a report of somebody's topics.
_FORMER = {
    "topics": ("topics.json", "arrays.safetensors"),
    "topic fit": ("fit.json", "arrays.safetensors"),
    "co-occurrence": ("cooccurrence.json", "arrays.safetensors"),
    "token ids": ("shard.json", "tokens.safetensors"),
    "sums of a measurement": ("sums.json", "sums.safetensors"),
}
_FORMER_REPORT = ("report.json", "arrays.safetensors")
_FORMER_FILES = dict([*_FORMER.values(), _FORMER_REPORT])
MANIFESTS = (MANIFEST, *_FORMER_FILES)

# Machine, process and a random number, in the names of what is not in its place yet.
_MARK = r"\.([0-9a-f]{4})-(\d{1,10})-[0-9a-f]{8}"
ARRAYS = r"arrays-[0-9a-f]{16}\.safetensors"
# What a killed save may leave in its folder.
_SCRAP = re.compile(rf"{ARRAYS}|\.(?:{ARRAYS}|saved\.json){_MARK}")

# What folders of several results hold besides: claims, and tables and figures in folders of that name.
_BESIDE = {"claims.json", "claims.txt"}
_FOLDERS = {"tables": (".json", ".csv"), "figures": (".svg", ".png")}


@dataclass(frozen=True)
class Saved:
    """A saved result as it lies on disk.

    Attributes:
        kind: What it is, as `save` was told.
        schema: Version of what the content means, from 1 on.
        content: JSON content.
        arrays: Name -> array.
        path: The manifest, to be named in messages.
    """

    kind: str
    schema: int
    content: dict[str, Any]
    arrays: dict[str, np.ndarray]
    path: Path


class _Manifest(NamedTuple):
    kind: str
    schema: Any
    content: dict[str, Any]
    path: Path
    arrays: Path | None  # the file that holds them
    sha256: str | None  # and its checksum, which the oldest results have not


def save(
    path: str | os.PathLike[str],
    kind: str,
    content: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray] | None = None,
    *,
    schema: int = 1,
    overwrite: bool = False,
) -> Path:
    """The folder, which holds the result: as it was before until all is written, and new from then on.

    Args:
        path: A folder that does not exist or is empty; another one is refused.
        kind: What is saved; `load` and `kind_of` know it again.
        content: JSON content.
        arrays: Arrays by name.
        schema: Version of what the content means.
        overwrite: Replace a result of this kind that is saved there (any report, for a report). A folder that holds
            anything else is refused all the same.
    """
    folder = _place(path)
    packed = _to_safetensors(arrays) if arrays else b""
    digest = _checksum(packed) if arrays else None
    head = {"format": _FORMAT, "kind": kind, "schema": schema, "arrays_sha256": digest}
    manifest = _sealed(_to_json({**head, "content": content}))
    _settle(folder)
    with _made(folder.parent), _locked(folder.parent):
        _check_replaceable(folder, kind, overwrite=overwrite)
        with _made(folder):
            try:
                if digest is not None:
                    _write(folder / _arrays_name(digest), packed)
                _write(folder / MANIFEST, manifest)
            finally:
                _sweep(folder)
    return folder


def load(
    path: str | os.PathLike[str], kind: str | Collection[str] | None = None, *, newest: int = 1
) -> Saved:
    """What `save` has written, or a version of this package before it.

    Args:
        path: The folder.
        kind: What it must be; None takes any kind.
        newest: The highest schema that the caller can read.

    Raises:
        FileNotFoundError, ValueError: name the file that is missing, damaged, of another kind or of a newer version.
    """
    folder = _place(path)
    _settle(folder)
    before = None
    while (manifest := _manifest(folder)) != before:
        _check(manifest, {kind} if isinstance(kind, str) else kind, newest)
        with suppress(FileNotFoundError):
            arrays = _arrays(manifest)
            return Saved(manifest.kind, manifest.schema, manifest.content, arrays, manifest.path)
        before = manifest  # if it was replaced meanwhile, the new one names other arrays
    raise FileNotFoundError(
        f"{manifest.arrays} does not exist, though {manifest.path.name} beside it names it"
    )


def kind_of(path: str | os.PathLike[str]) -> str | None:
    """The kind of the result that is saved in a folder, None where there is none; ValueError where it is damaged."""
    folder = _place(path)
    _settle(folder)
    try:
        return _manifest(folder).kind
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
    target = _place(path)
    _settle(target)
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


def check_free(path: str | os.PathLike[str], *, overwrite: bool, file: bool = False) -> None:
    """FileExistsError for a place that `draft` would not fill."""
    target = _place(path)
    inside = sorted(target.rglob("*")) if target.is_dir() else []
    foreign = [str(part.relative_to(target)) for part in inside if part.is_file() and not _is_ours(part)]
    _check_place(target, foreign, overwrite=overwrite, file=file)


def _is_ours(file: Path) -> bool:
    known = file.name in (*MANIFESTS, *_FORMER_FILES.values(), *_BESIDE) or _SCRAP.fullmatch(file.name)
    return bool(known) or file.suffix in _FOLDERS.get(file.parent.name, ())


def _check_replaceable(folder: Path, kind: str, *, overwrite: bool) -> None:
    """FileExistsError for a folder that holds anything but a result like this one."""
    like_it = _FORMER.get(kind, _FORMER_REPORT)
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    foreign = [name for name in names if name not in (MANIFEST, *like_it) and not _SCRAP.fullmatch(name)]
    with suppress(OSError, ValueError):  # what is damaged may be replaced
        there = _manifest(folder).kind
        foreign += [] if _FORMER.get(there, _FORMER_REPORT) == like_it else [f"saved {there}"]
    _check_place(folder, foreign, overwrite=overwrite)


def _check_place(target: Path, foreign: list[str], *, overwrite: bool, file: bool = False) -> None:
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
    if foreign:
        raise FileExistsError(
            f"{target} holds {foreign[0]}, which is no result of topic-probe or one of another kind and would be "
            "deleted: choose another folder"
        )


# --- reading -----------------------------------------------------------------------------------------


def _manifest(folder: Path) -> _Manifest:
    """What a folder says of itself. FileNotFoundError where nothing is saved, ValueError for what is damaged."""
    # The new name again at the end: it may have come, and the former ones gone, while they were looked for.
    for name in (MANIFEST, *_FORMER_FILES, MANIFEST):
        with suppress(FileNotFoundError, NotADirectoryError):
            raw = (folder / name).read_bytes()
            return (_opened if name == MANIFEST else _opened_former)(folder / name, raw)
    raise FileNotFoundError(
        f"{folder / MANIFEST} does not exist: {folder} is not a folder saved by topic_probe"
    )


def _sealed(content: bytes) -> bytes:
    """A JSON object with its own checksum as the last entry, so that no byte of the file can change unnoticed."""
    return content[:-2] + b',\n "sha256": "' + _checksum(content).encode() + b'"\n}\n'


def _opened(path: Path, raw: bytes) -> _Manifest:
    content = raw[: -len(_sealed(b"\n}"))] + b"\n}"
    if raw != _sealed(content):
        raise ValueError(
            f"{path} is not whole: it was cut, changed or damaged since it was saved, save it again"
        )
    head = _parsed(path, content)
    if head.get("format") != _FORMAT:
        raise ValueError(f"{path} is no saved result of topic_probe")
    sha256 = head["arrays_sha256"]
    arrays = None if sha256 is None else path.with_name(_arrays_name(sha256))
    return _Manifest(head["kind"], head["schema"], head["content"], path, arrays, sha256)


def _opened_former(path: Path, raw: bytes) -> _Manifest:
    """The head of a result that was saved before there were manifests."""
    content = _parsed(path, raw)
    form, kind, schema, sha256 = (
        content.pop(name, None) for name in ("format", "kind", "schema", "arrays_sha256")
    )
    kind = "history" if form == "topic_probe history" else kind
    if form not in (None, "topic_probe report", "topic_probe history") or not isinstance(kind, str):
        raise ValueError(f"{path} is no saved result of topic_probe")
    arrays = path.with_name(_FORMER_FILES[path.name])
    return _Manifest(kind, schema, content.get("fields", content), path, arrays, sha256)


def _check(manifest: _Manifest, kinds: Collection[str] | None, newest: int) -> None:
    """ValueError for what the caller cannot read."""
    path, kind, schema = manifest.path, manifest.kind, manifest.schema
    if kinds is not None and kind not in kinds:
        raise ValueError(f"{path} holds {kind!r}, not {' or '.join(map(repr, sorted(kinds)))}")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise ValueError(f"{path} names no schema version: it was not saved by topic_probe")
    if schema > newest:
        raise ValueError(
            f"{path} has schema {schema}, this version reads up to {newest}: it was saved by a newer "
            "topic_probe, upgrade to read it"
        )


def _arrays(manifest: _Manifest) -> dict[str, np.ndarray]:
    """The arrays that a manifest names, after comparing their checksum."""
    if manifest.arrays is None:
        return {}
    packed = manifest.arrays.read_bytes()
    if manifest.sha256 not in (None, _checksum(packed)):
        raise ValueError(
            f"{manifest.arrays} is truncated, changed or of another save than the JSON file beside it"
        )
    try:
        arrays: dict[str, np.ndarray] = load_safetensors(packed)
    except SafetensorError as error:
        raise ValueError(
            f"{manifest.arrays} is not a whole safetensors file ({error}): save it again"
        ) from error
    return arrays


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; ValueError names one that is damaged."""
    return _parsed(path, path.read_bytes())


def _parsed(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not whole or not JSON ({error}): save it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, it holds a {type(content).__name__}")
    return content


# --- writing -----------------------------------------------------------------------------------------


def _to_json(content: Any) -> bytes:
    """Strict JSON (no bare NaN, which other programs cannot read), readable by a person."""
    return json.dumps(content, allow_nan=False, ensure_ascii=False, indent=1).encode()


def _to_safetensors(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Named arrays as one safetensors file."""
    # In C order, because safetensors writes memory as it lies; np.ascontiguousarray would make 0-d arrays 1-d.
    content: bytes = save_safetensors({name: np.array(array, order="C") for name, array in arrays.items()})
    return content


def _checksum(content: bytes) -> str:
    """The sha256 of a file's content."""
    return hashlib.sha256(content).hexdigest()


def _arrays_name(sha256: str) -> str:
    return f"arrays-{sha256[:16]}.safetensors"


def _write(path: Path, content: bytes) -> None:
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
    kept, former = None, False
    try:
        manifest = _manifest(folder)
    except FileNotFoundError:
        pass
    except ValueError:
        return  # it was damaged before, and could not be replaced
    else:
        kept, former = manifest.arrays, manifest.path.name == MANIFEST
    for entry in folder.iterdir():
        replaced = former and entry.name in (*_FORMER_FILES, *_FORMER_FILES.values())
        if entry != kept and (replaced or _SCRAP.fullmatch(entry.name)):
            entry.unlink(missing_ok=True)


# --- places ------------------------------------------------------------------------------------------


def _place(path: str | os.PathLike[str]) -> Path:
    return Path(path).expanduser().resolve()


def _beside(path: Path) -> Path:
    """A hidden name beside a path, which says who is writing there."""
    return path.with_name(f".{path.name}.{_machine()}-{os.getpid()}-{secrets.token_hex(4)}")


def _machine() -> str:
    # Processes of another machine that writes to the same disk cannot be asked whether they still live.
    return _checksum(platform.node().encode())[:4]


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
    if new.is_file():
        new.replace(target)
        return
    try:
        new.rename(target)  # onto nothing, or an empty folder
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not _exchanged(new, target):
            _replace_in_two_steps(new, target)
    _sync(target.parent)


def _exchanged(one: Path, other: Path) -> bool:
    """Whether the system can exchange two folders in one step (Linux can), and has done so."""
    try:
        exchange = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, both = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(exchange(here, os.fsencode(one), here, os.fsencode(other), both) == 0)


def _replace_in_two_steps(new: Path, target: Path) -> None:
    """Between the steps nothing is at the target; `_settle` takes the second one where a process was killed there."""
    old = new.with_name(f"{new.name}.old")
    target.rename(old)
    try:
        new.rename(target)
    except BaseException:
        old.rename(target)
        raise
    _remove(old)


def _settle(target: Path) -> None:
    """Finish and remove what killed processes have left beside a place; wait for one that is between two steps."""
    gone = [place for place in (target, *target.parents) if not place.exists()]
    target = gone[-1] if gone else target  # a saved result may lie in a folder that is being replaced
    if not gone and not _left_over(target):
        return
    with suppress(OSError), _locked(target.parent):  # where nothing may be written it stays
        for place in sorted(_left_over(target), reverse=True):
            new = place.with_suffix("")
            if place.suffix == ".old" and not target.exists():
                (new if new.exists() else place).rename(target)
            _remove(place)


def _left_over(target: Path) -> list[Path]:
    """Drafts of a target whose processes are gone."""
    form = re.compile(rf"\.+{re.escape(target.name)}(?:{_MARK})+(?:\.old)?")
    drafts = []
    with suppress(OSError):  # a folder that may not be listed
        drafts = [
            (found, place) for place in target.parent.iterdir() if (found := form.fullmatch(place.name))
        ]
    return [place for found, place in drafts if found[1] == _machine() and not _is_alive(int(found[2]))]


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
