"""Folders that are whole or absent: how everything that is saved reaches the disk and comes back.

A result is a folder of a JSON file and arrays in safetensors, never a pickle. It is written beside its place
and renamed into it, so a crash, a full disk or a second process never leaves a mixture.
"""

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

_ATTEMPTS = 100


def write_directory(
    path: str | os.PathLike[str], files: Mapping[str, bytes], *, overwrite: bool = False
) -> Path:
    """The folder, holding exactly these files and put in place in one step.

    A missing or empty folder is filled; one that holds anything is refused, unless ``overwrite`` is given
    and it holds nothing but files of these names (so a mistyped path cannot delete other work).
    """
    target = Path(path).expanduser().resolve()
    _check_replaceable(target, files, overwrite=overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    draft.mkdir()
    try:
        for name, content in files.items():
            with (draft / name).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        _move_into_place(draft, target, files, overwrite=overwrite)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return target


def _check_replaceable(target: Path, files: Mapping[str, bytes], *, overwrite: bool) -> None:
    try:
        held = sorted(entry.name for entry in target.iterdir())
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise FileExistsError(f"{target} is a file, a folder is needed: choose another path") from error
    if held and not overwrite:
        raise FileExistsError(
            f"{target} is not empty and is not overwritten unasked: choose another folder or overwrite=True"
        )
    foreign = [name for name in held if name not in files]
    if foreign:
        raise FileExistsError(
            f"{target} holds {foreign[0]!r}, which saving would delete: only a folder with nothing but "
            f"{sorted(files)} can be overwritten"
        )


def _move_into_place(draft: Path, target: Path, files: Mapping[str, bytes], *, overwrite: bool) -> None:
    """Rename the draft to its place; a folder that another process put there meanwhile is treated anew."""
    for _ in range(_ATTEMPTS):
        _check_replaceable(target, files, overwrite=overwrite)
        old = draft.with_name(f"{draft.name}.old")
        if target.exists() and not _clear(target, old, overwrite=overwrite):
            continue
        try:
            draft.rename(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                if old.exists():
                    old.rename(target)
                raise
            shutil.rmtree(old, ignore_errors=True)
            continue  # another process was first
        shutil.rmtree(old, ignore_errors=True)
        return
    raise FileExistsError(f"{target} is being written by other processes all the time: choose another folder")


def _clear(target: Path, old: Path, *, overwrite: bool) -> bool:
    """Make room, unless another process has changed the folder since it was looked at."""
    try:
        if overwrite:
            target.rename(old)
        else:
            target.rmdir()  # which only an empty folder lets happen
    except OSError:
        return False
    return True


def to_json(content: Any) -> bytes:
    """Strict JSON (no bare NaN, which other programs cannot read), readable by a person."""
    return json.dumps(content, allow_nan=False, ensure_ascii=False, indent=1).encode()


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; FileNotFoundError or ValueError name the file that is missing or corrupt."""
    try:
        content = json.loads(read_bytes(path))
    except ValueError as error:
        raise ValueError(f"{path} is not whole or not JSON ({error}): save it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, it holds a {type(content).__name__}")
    return content


def to_safetensors(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Named arrays as one safetensors file."""
    # In C order, because safetensors writes memory as it lies; np.ascontiguousarray would make 0-d arrays 1-d.
    content: bytes = save_safetensors({name: np.array(array, order="C") for name, array in arrays.items()})
    return content


def read_safetensors(path: Path, *, sha256: str | None = None) -> dict[str, np.ndarray]:
    """The arrays of a file, after comparing its checksum where one is known."""
    content = read_bytes(path)
    if sha256 is not None and checksum(content) != sha256:
        raise ValueError(f"{path} is truncated, changed or of another save than the JSON file beside it")
    try:
        arrays: dict[str, np.ndarray] = load_safetensors(content)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file ({error}): save it again") from error
    return arrays


def read_bytes(path: Path) -> bytes:
    """The content of a file; a missing one is named together with what its folder is missing."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: {path.parent} is not a folder saved by topic_probe")
    return path.read_bytes()


def checksum(content: bytes) -> str:
    """The sha256 of a file's content."""
    return hashlib.sha256(content).hexdigest()


def check_schema(content: Mapping[str, Any], path: Path, *, newest: int) -> None:
    """Refuse what a newer version has written; ``schema`` counts the versions of a format from 1."""
    schema = content.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise ValueError(f"{path} names no schema version: it was not saved by topic_probe")
    if schema > newest:
        raise ValueError(
            f"{path} has schema {schema}, this version reads up to {newest}: it was saved by a newer "
            "topic_probe, upgrade to read it"
        )
