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

# What a name begins with → why numbers of that name moved.
MOVED = {
    "text.attention": "a document that is too long is cut between two words, no longer within one",
    "text.embeddings.layers": "a document that is too long is cut between two words, no longer within one",
    "stream.attention": 'pieces end between words of the text ("U.S." is one), not between those of the tokenizer',
    "fit": "topics are fitted in double precision, to documents that are mixed by a hash of their words",
    "chunk.attention": "every piece of a document has the model's special tokens around it, and ends between two words",
    # In double precision, too, it is what is nearer: 3.7e-6 at most, 5.0e-6 before.
    "ids.hooks.without_sinks": "rows are divided by what they give to other keys, added up; 1 less sinks loses digits",
}
# What comes of documents is added up in float32 within each, where the model computes in it.
ROUNDING = 1e-6
# The quantile of Student's t at which an interval ends is exact, and was an expansion: so much of an end at most.
INTERVALS = 0.01


def reason(name):
    return next((begins for begins in MOVED if name.startswith(begins)), None)


@pytest.mark.slow
def test_no_number_moved_without_a_reason():
    unexplained, explained = {}, set()
    numbers = measured_numbers.numbers()
    for name in BEFORE:  # there are more numbers by now, and none may be gone
        now, before = (
            np.array([float(x) for x in part])
            for part in (measured_numbers.plain(numbers[name]), BEFORE[name])
        )
        allowed = INTERVALS if name.endswith(".interval") else ROUNDING
        if now.shape == before.shape and np.allclose(now, before, rtol=allowed, atol=1e-12, equal_nan=True):
            continue
        if (why := reason(name)) is None:
            unexplained[name] = (
                "another shape" if now.shape != before.shape else np.nanmax(np.abs(now - before))
            )
        explained.add(why)
    assert unexplained == {}
    assert explained == {*MOVED}, "something did not move, though there is a reason"
