"""Every number on MiniLM, the bundled articles and toys is what it was before words were read off the text.

`numbers_before.json` was written by `helpers/measured_numbers.py` with the version before. What moved since is listed
here with its reason, and nothing else may move.
"""

import json
from pathlib import Path

import measured_numbers
import numpy as np
import pytest

BEFORE = json.loads(Path(__file__).with_name("numbers_before.json").read_text())

# Beginning of a name, or what it contains → why it moved.
MOVED: dict[str, str] = {
    ".interval": "the t quantile at which an interval ends is exact and no longer an expansion",
}


def reason(name):
    return next((why for part, why in MOVED.items() if part in name), None)


@pytest.mark.slow
def test_no_number_moved_without_a_reason():
    moved = {}
    for name, value in measured_numbers.numbers().items():
        now, before = (
            np.array([float(x) for x in values]) for values in (measured_numbers.plain(value), BEFORE[name])
        )
        same = now.shape == before.shape and np.allclose(now, before, rtol=1e-9, atol=1e-12, equal_nan=True)
        if not same:
            moved[name] = "another shape" if now.shape != before.shape else np.nanmax(np.abs(now - before))
    unexplained = {name: change for name, change in moved.items() if reason(name) is None}
    assert unexplained == {}
    unused = [part for part in MOVED if not any(part in name for name in moved)]
    assert unused == [], "these did not move: a reason too many"
