"""Every number of plain runs on MiniLM, the bundled articles, small random models and toys is what it was.

`numbers_before.json` was written by `helpers/measured_numbers.py` with the version before; a change that moves a number
writes it anew, and says in the change log why.
"""

import json
from pathlib import Path

import measured_numbers
import numpy as np
import pytest

BEFORE = json.loads(Path(__file__).with_name("numbers_before.json").read_text())
# Everything is computed in double precision; what is nearer to 0 than this is 0.
ROUNDING, ZERO = 1e-9, 1e-12


@pytest.mark.slow
@pytest.mark.numbers
def test_no_number_moved_and_none_is_gone():
    numbers = {name: measured_numbers.plain(value) for name, value in measured_numbers.numbers().items()}
    assert sorted(numbers) == sorted(BEFORE)
    moved = {}
    for name, values in BEFORE.items():
        now, before = (np.array([float(number) for number in part]) for part in (numbers[name], values))
        if now.shape != before.shape:
            moved[name] = "another shape"
        elif not np.allclose(now, before, rtol=ROUNDING, atol=ZERO, equal_nan=True):
            moved[name] = float(np.nanmax(np.abs(now - before)))
    assert moved == {}
