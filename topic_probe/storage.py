"""Everything that is saved: one way to the disk and back.

A result is a folder with one safetensors file, whose header holds what is not an array as JSON; never a pickle. It is
written under another name and renamed, so that a save that is killed leaves the old result or the new one. A folder of
several results is filled as a draft next to its place (`draft`).
"""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as save_arrays

FILE, _ENTRY = "saved.safetensors", "topic_probe"
Arrays = dict[str, np.ndarray]


def save(
    path: str | os.PathLike[str], kind: str, content: Any, arrays: Arrays, *, overwrite: bool = False
) -> Path:
    """The folder, which holds the result; FileExistsError where one is in it and is not to be replaced."""
    folder = Path(path).expanduser().resolve()
    check_free(folder / FILE, overwrite=overwrite, file=True)
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / FILE, packed({"kind": kind, "content": content}, arrays))
    return folder


def load(path: str | os.PathLike[str]) -> tuple[str, dict[str, Any], Arrays]:
    """Kind, JSON content and arrays that `save` has written; ValueError where the file is not whole."""
    file = Path(path).expanduser().resolve() / FILE
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist: {path} is not a folder saved by topic_probe")
    try:
        head, arrays = unpacked(file)
        return head["kind"], head["content"], arrays
    except (SafetensorError, TypeError, KeyError, ValueError) as error:
        raise ValueError(f"{file} is not whole, or of another version ({error}): save it again") from error


def packed(head: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """A safetensors file with JSON and a checksum of everything in its header."""
    # In C order, because safetensors writes memory as it lies; np.ascontiguousarray would make 0-d arrays 1-d.
    ordered = {name: np.array(array, order="C") for name, array in arrays.items()}
    text = json.dumps(head, default=str)
    # In one entry, because the order of several would be another one each time.
    return bytes(save_arrays(ordered, {_ENTRY: f"{_checksum(text, ordered)} {text}"}))


def unpacked(file: Path, *, with_arrays: bool = True) -> tuple[dict[str, Any], Arrays]:
    """What `packed` has put into a file; ValueError where anything was changed, as far as it was read."""
    with safe_open(file, "numpy") as opened:
        checksum, text = opened.metadata()[_ENTRY].split(" ", 1)
        arrays = {name: opened.get_tensor(name) for name in opened.keys()} if with_arrays else {}  # noqa: SIM118
    if with_arrays and checksum != _checksum(text, arrays):
        raise ValueError("it was changed since it was written")
    head: dict[str, Any] = json.loads(text)
    return head, arrays


def _checksum(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()


def kind_of(path: str | os.PathLike[str]) -> str | None:
    """The kind of the result that is saved in a folder, None where there is none; ValueError where it is damaged."""
    return load(path)[0] if (Path(path).expanduser() / FILE).is_file() else None


@contextmanager
def draft(path: str | os.PathLike[str], *, overwrite: bool = False, file: bool = False) -> Iterator[Path]:
    """Context manager: a folder (or file) to fill, in its place when the block ends well and gone otherwise.

    It is made at once, so that a place that cannot be written to is known before anything is computed. What it replaces
    with ``overwrite`` is a file, or a folder with nothing but results of this package.
    """
    target = Path(path).expanduser().resolve()
    check_free(target, overwrite=overwrite, file=file)
    target.parent.mkdir(parents=True, exist_ok=True)
    place = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        place.touch() if file else place.mkdir()
        yield place
        if target.is_dir():
            shutil.rmtree(target)
        place.replace(target)
    finally:
        place.unlink(missing_ok=True) if file else shutil.rmtree(place, ignore_errors=True)


def check_free(path: str | os.PathLike[str], *, overwrite: bool, file: bool = False) -> None:
    """FileExistsError where something is that is not to be replaced."""
    target = Path(path).expanduser().resolve()
    if target.exists() and target.is_dir() == file:
        raise FileExistsError(f"{target} is a {'folder' if file else 'file'}: choose another path")
    inside = [part.name for part in target.rglob("*") if part.is_file()] if target.is_dir() else []
    if not overwrite and (inside or target.is_file()):
        raise FileExistsError(f"{target} is not overwritten unasked: add overwrite=True (--overwrite)")
    if foreign := [name for name in inside if FILE not in name]:
        raise FileExistsError(
            f"{target} holds {foreign[0]}, which is no result of topic_probe: choose another path"
        )


def write_file(path: Path, content: bytes) -> None:
    """Replace a file in one step, after all of it has reached the disk."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with new.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
