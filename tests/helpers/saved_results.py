"""What lies in the folder of a saved result, and folders whose manifest says something else but is whole."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from topic_probe import storage


def manifest(folder: Path) -> dict[str, Any]:
    """What a saved result says of itself."""
    content: dict[str, Any] = json.loads((folder / storage.MANIFEST).read_text(encoding="utf-8"))
    return content


def arrays_file(folder: Path) -> Path:
    """The file of its arrays."""
    [file] = folder.glob("arrays-*.safetensors")
    return file


def change(folder: Path, **changes: Any) -> None:
    """Give the head of a manifest other entries, and the checksum that belongs to them."""
    head = {**manifest(folder), **changes}
    del head["sha256"]
    (folder / storage.MANIFEST).write_bytes(storage._sealed(head))


def change_content(folder: Path, **changes: Any) -> None:
    """The same for the content of the result."""
    change(folder, content={**manifest(folder)["content"], **changes})


def change_arrays(folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Give a saved result other arrays."""
    head = manifest(folder)
    storage.save(folder, head["kind"], head["content"], arrays, overwrite=True)
