"""A claim's verdict follows from its number and its controls, and the table says what was measured and found."""

import json
import math

import numpy as np
import pytest

from topic_probe.contrast import Contrast
from topic_probe.paper.claims import (
    Claim,
    Number,
    claims_table,
    claims_to_dataframe,
    of_contrast,
    ordered,
    over_seeds,
    summary,
)

NAN = math.nan
FOIL = {"no topics": Number(-1e9)}  # holds of no claim here


def claim(value=1.0, low=NAN, high=NAN, of="", **changes):
    given = {"text": "words attract", "source": "Figure 9", "paper": "3.2", "controls": FOIL, **changes}
    return Claim(measured=Number(value, low, high, of), **given)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.01, 1.5, "holds"),
        (1.0, 1.5, "undecided"),  # the bound itself is not above the bound
        (0.5, 1.0, "does not hold"),
        (NAN, NAN, "undecided"),
    ],
)
def test_one_rule_leads_from_the_interval_to_the_verdict_on_either_side(low, high, verdict):
    assert claim(1.2, low, high, "5 seeds", above=1.0).verdict == verdict
    mirrored = claim(-1.2, -high, -low, "5 seeds", below=-1.0, controls={"no topics": Number(1e9)})
    assert mirrored.verdict == verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.2, 0.8, "holds"), (-0.1, 0.8, "undecided"), (0.2, 1.1, "undecided"), (1.1, 1.2, "does not hold")],
)
def test_between_two_bounds_the_whole_interval_has_to_lie(low, high, verdict):
    assert claim(0.5, low, high, "5 seeds", above=0.0, below=1.0).verdict == verdict


def test_a_number_without_an_interval_is_its_own_and_an_undefined_one_decides_nothing():
    found = [claim(value, above=1.0).verdict for value in (1.01, 1.0, 0.99, NAN)]
    assert found == ["holds", "does not hold", "does not hold", "undecided"]
    assert claim(2.0, of="1 seed", above=1.0).verdict == "undecided"  # an interval was wanted
    assert claim(5.0, above=1.0, not_checked="takes a week").verdict == "not checked"


@pytest.mark.parametrize(
    ("controls", "verdict", "remark"),
    [
        ({"no topics": Number(1.0)}, "holds", ""),
        ({"untrained": Number(0.0), "no topics": Number(1.3)}, "not evidence", "holds of no topics too"),
        ({"untrained": Number(0.0), "no topics": Number(NAN)}, "holds", ""),
        ({"no topics": Number(NAN)}, "not evidence", "no control says whether it could fail"),
        ({}, "not evidence", "no control says whether it could fail"),
    ],
)
def test_what_holds_where_it_must_not_or_cannot_fail_is_no_evidence(controls, verdict, remark):
    found = claim(1.4, above=1.0, controls=controls, reason="never asked")
    assert (found.verdict, found.remark) == (verdict, remark)
    assert claim(0.5, above=1.0, controls=controls, reason="asked").remark == "asked"
    assert claim(1.4, above=1.0, controls={}, check=True).verdict == "holds"


def test_seeds_have_students_interval_around_their_mean():
    # t(0.975, 4) = 2.776; 1, 2, 3, 4 and 10 have a mean of 4 and a standard deviation of √12.5.
    number = over_seeds([1.0, 2.0, 3.0, 4.0, 10.0])
    half = 2.776445 * math.sqrt(12.5) / math.sqrt(5)
    assert (number.value, number.of) == (4.0, "5 seeds")
    assert [number.low, number.high] == pytest.approx([4 - half, 4 + half], abs=1e-5)
    assert math.isnan(over_seeds([1.0]).low)
    assert math.isnan(over_seeds([1.0, NAN, 1.0]).value)
    assert math.isnan(over_seeds([]).value)


def test_a_contrast_gives_the_number_that_its_interval_is_of():
    parts = [np.asarray(value) for value in (3.0, 2.0, 0.5, 10.0, 90.0, 900.0)]
    ratio = Contrast(*parts, interval=np.array([3.5, 4.5]))
    assert of_contrast(ratio, "57 articles") == Number(4.0, 3.5, 4.5, "57 articles")
    difference = Contrast(*parts, interval=np.array([1.0, 2.0]), statistic="difference")
    assert of_contrast(difference, "40 words") == Number(1.5, 1.0, 2.0, "40 words")


def test_claims_are_shown_as_a_table_with_what_does_not_hold_first_and_as_rows():
    claims = [
        claim(2.5, 2.0, 3.0, "5 seeds", above=1.0, setting="SGD", detail="norms 3 and 4"),
        claim(0.5, above=1.0, setting="Adam", controls={"no topics": Number(0.1), "untrained": Number(0.0)}),
        claim(NAN, setting="LBFGS", above=0.9, below=1.1, controls={}, not_checked="takes a week"),
        claim(0.0, text="a constant", below=1.0, check=True, controls={}),
    ]
    lines = claims_table(claims).splitlines()
    assert lines[1].split() == ["SGD", "2.5", "[2,", "3]", ">", "1", "HOLDS"]
    assert [line.strip() for line in lines[2:4]] == ["no topics: -1e+09", "norms 3 and 4"]
    assert lines[4].split() == ["Adam", "0.5", ">", "1", "DOES", "NOT", "HOLD"]
    assert lines[6].split() == ["LBFGS", "0.9", "…", "1.1", "NOT", "CHECKED"]
    assert [one.verdict for one in ordered(claims)] == ["does not hold", "not checked", "holds", "holds"]
    counts = {"does not hold": 1, "not evidence": 0, "undecided": 0, "not checked": 1, "holds": 2}
    assert summary(claims) == counts
    table = claims_to_dataframe(claims)
    assert table["verdict"].tolist() == ["holds", "does not hold", "not checked", "holds"]
    assert (table["measured"][0], table["low"][0], table["high"][0]) == (2.5, 2.0, 3.0)


def test_a_claim_is_plain_json_whatever_its_numbers():
    values = json.loads(json.dumps(claim(NAN, above=1.0).to_dict(), allow_nan=False))
    assert (values["measured"], values["low"], values["below"]) == (None, None, None)
    assert (values["above"], values["verdict"], values["wanted"]) == (1.0, "undecided", "> 1")
    assert values["controls"]["no topics"]["value"] == -1e9
