"""Everything that is saved: one way to the disk and back.

A saved result is a folder with a manifest, ``saved.json``, and a file of arrays whose name carries its hash, never a
pickle. Each file is written under another name and replaced in one step: the arrays first, beside the old ones, then
the manifest, and what it no longer names is removed. So a save that is killed leaves the old result or the new one. The
manifest ends in a checksum of all its bytes and holds that of the arrays: a single changed bit anywhere is noticed. A
folder of several results is filled as a draft beside its place (`draft`).
"""

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

MANIFEST, _FORMAT = "saved.json", "topic_probe result"
# Higher where what is saved changes its meaning: a result of another version is refused.
_VERSION = 1

# Kinds that only a result of the same kind may replace: a mistyped path cannot make a report of somebody's topics. All
# other kinds are reports, which may replace each other.
_APART = {"topics", "topic fit", "co-occurrence"}

_ARRAYS = "arrays-{:.16}.safetensors"
ARRAYS = r"arrays-[0-9a-f]{16}\.safetensors"
# What a killed save may leave in its folder: it counts as absent, and the next save removes it.
_SCRAP = re.compile(rf"{ARRAYS}|\.(?:{ARRAYS}|saved\.json)\.[0-9a-f]{{8}}")
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
    folder = _place(path)
    check_free(folder, overwrite=overwrite, kind=kind)
    with _made(folder):
        named = None if digest is None else folder / _ARRAYS.format(digest)
        if named is not None:
            write_file(named, packed)
        write_file(folder / MANIFEST, manifest)
        for entry in folder.iterdir():
            if entry != named and _SCRAP.fullmatch(entry.name):
                entry.unlink()
    return folder


def load(path: str | os.PathLike[str], kind: str | Collection[str] | None = None) -> Saved:
    """What `save` has written.

    Args:
        path: The folder.
        kind: What it must be; None takes any kind.

    Raises:
        FileNotFoundError, ValueError: name the file that is missing, damaged, of another kind or of another version.
    """
    kinds = {kind} if isinstance(kind, str) else kind
    saved, file, sha256 = _manifest(_place(path))
    if kinds is not None and saved.kind not in kinds:
        raise ValueError(f"{saved.path} holds {saved.kind!r}, not {' or '.join(map(repr, sorted(kinds)))}")
    return saved if file is None else replace(saved, arrays=_arrays(file, sha256))


def kind_of(path: str | os.PathLike[str]) -> str | None:
    """The kind of the result that is saved in a folder, None where there is none; ValueError where it is damaged."""
    try:
        return _manifest(_place(path))[0].kind
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
    check_free(target, overwrite=overwrite, file=file)
    with _made(target.parent):
        place = _beside(target)
        try:
            place.touch() if file else place.mkdir()
            yield place
            # Something may have been put there meanwhile.
            check_free(target, overwrite=overwrite, file=file)
            if target.is_dir():
                shutil.rmtree(target)
            place.replace(target)
        finally:
            if file:
                place.unlink(missing_ok=True)
            else:
                shutil.rmtree(place, ignore_errors=True)


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
    try:
        packed = file.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"{file} does not exist, though {MANIFEST} beside it names it") from None
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


# --- places ------------------------------------------------------------------------------------------


def _beside(path: Path) -> Path:
    """A hidden name beside a path, for what is not in its place yet."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def _place(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"a path is needed, got {path!r:.80}")
    if not os.fspath(path):
        raise ValueError("a path is needed, got ''; the current folder is '.'")
    return Path(path).expanduser().resolve()


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
