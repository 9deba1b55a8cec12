"""A measurement in shards, and what it is held against."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import topic_probe as tp


def measured_in_shards(measure: Callable[..., Any], n: int, folder: Path, **more: Any) -> Any:
    """What comes of n shards."""
    for index in range(n):
        measure(shard=(index, n), sums=folder, **more)
    return tp.merge_sums(folder)


def files(folder: Path) -> dict[str, bytes]:
    """Every file in a folder."""
    found = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def assert_agree(one: Any, other: Any, where: str = "report") -> None:
    """Numbers to 1e-9 of their size (or of one, which they are sums near of), everything else exactly."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for name in one:
            assert_agree(one[name], other[name], f"{where}.{name}")
    elif hasattr(one, "__dataclass_fields__"):
        for name in one.__dataclass_fields__:
            assert_agree(getattr(one, name), getattr(other, name), f"{where}.{name}")
    elif isinstance(one, float) or (isinstance(one, np.ndarray) and one.dtype.kind == "f"):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10, err_msg=where)
    else:
        assert np.array_equal(one, other), where
