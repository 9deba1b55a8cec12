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


# -------------------------------------------------------------------- from interval to verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.01, 1.5, "holds"),
        (1.0, 1.5, "undecided"),  # the bound itself is not above the bound
        (0.9, 1.1, "undecided"),
        (0.5, 0.99, "does not hold"),
        (0.5, 1.0, "does not hold"),
        (NAN, NAN, "undecided"),
    ],
)
def test_one_rule_leads_from_the_interval_to_the_verdict(low, high, verdict):
    assert claim(1.2, low, high, "5 seeds", above=1.0).verdict == verdict
    mirrored = claim(-1.2, -high, -low, "5 seeds", below=-1.0, controls={"no topics": Number(1e9)})
    assert mirrored.verdict == verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.2, 0.8, "holds"),
        (-0.1, 0.8, "undecided"),
        (0.2, 1.1, "undecided"),
        (-1.0, 2.0, "undecided"),
        (1.1, 1.2, "does not hold"),
        (-0.2, -0.1, "does not hold"),
    ],
)
def test_between_two_bounds_the_whole_interval_has_to_lie(low, high, verdict):
    assert claim(0.5, low, high, "5 seeds", above=0.0, below=1.0).verdict == verdict


@pytest.mark.parametrize(
    ("value", "verdict"), [(1.01, "holds"), (1.0, "does not hold"), (0.99, "does not hold")]
)
def test_a_number_without_an_interval_is_its_own(value, verdict):
    assert claim(value, above=1.0).verdict == verdict


def test_an_undefined_number_decides_nothing():
    assert claim(NAN, above=1.0).verdict == "undecided"
    assert claim(NAN).verdict == "undecided"
    assert (
        claim(2.0, of="1 seed", above=1.0).verdict == "undecided"
    )  # an interval was wanted and there is none


def test_a_claim_that_was_not_checked_has_no_other_verdict():
    assert claim(5.0, above=1.0, not_checked="takes a week").verdict == "not checked"
    assert claim(0.0, above=1.0, not_checked="takes a week").verdict == "not checked"


# -------------------------------------------------------------------- controls


@pytest.mark.parametrize(("control", "verdict"), [(1.3, "not evidence"), (1.0, "holds"), (0.2, "holds")])
def test_what_holds_where_it_must_not_is_no_evidence(control, verdict):
    assert claim(1.4, above=1.0, controls={"no topics": Number(control)}).verdict == verdict
    both = {"untrained": Number(0.0), "no topics": Number(control)}
    assert claim(1.4, above=1.0, controls=both).verdict == verdict


def test_without_a_control_that_could_tell_nothing_is_evidence():
    assert claim(1.4, above=1.0, controls={}).verdict == "not evidence"
    assert claim(1.4, above=1.0, controls={"no topics": Number(NAN)}).verdict == "not evidence"
    assert claim(1.4, above=1.0, controls={"a": Number(NAN), "b": Number(0.0)}).verdict == "holds"


def test_a_control_that_holds_does_not_hide_that_the_claim_does_not():
    assert claim(0.5, above=1.0, controls={"no topics": Number(2.0)}).verdict == "does not hold"
    assert (
        claim(1.1, 0.9, 1.3, "5 seeds", above=1.0, controls={"no topics": Number(2.0)}).verdict == "undecided"
    )


def test_a_check_of_the_code_needs_no_control():
    assert claim(1.4, above=1.0, controls={}, check=True).verdict == "holds"
    assert claim(0.4, above=1.0, controls={}, check=True).verdict == "does not hold"


def test_what_stands_beside_a_verdict_says_why():
    why = {"reason": "tried for a week", "detail": "norm 3"}
    assert claim(2.0, above=1.0, **why).remark == "norm 3"
    assert claim(0.0, above=1.0, **why).remark == "norm 3; tried for a week"
    passing = {"no topics": Number(3.0), "untrained": Number(0.0)}
    assert claim(2.0, above=1.0, controls=passing, **why).remark == "norm 3; holds of no topics too"
    assert claim(2.0, above=1.0, controls={}).remark == "no control says whether it could fail"
    assert claim(2.0, above=1.0, not_checked="no hub", **why).remark == "no hub"


# -------------------------------------------------------------------- numbers


def test_seeds_have_students_interval():
    # t(0.975, 4) = 2.776; the standard deviation of 1 … 5 is √2.5.
    number = over_seeds([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.776445 * math.sqrt(2.5) / math.sqrt(5)
    assert (number.value, number.of) == (3.0, "5 seeds")
    assert [number.low, number.high] == pytest.approx([3 - half, 3 + half], abs=1e-5)


def test_one_seed_has_no_interval_and_an_undefined_seed_no_number():
    assert math.isnan(over_seeds([1.0]).low)
    assert claim(above=0.5, text="a").verdict == "holds"
    assert Claim("a", "b", "c", over_seeds([1.0]), above=0.5, controls=FOIL).verdict == "undecided"
    assert math.isnan(over_seeds([1.0, NAN, 1.0]).value)
    assert math.isnan(over_seeds([]).value)


def test_a_contrast_gives_the_number_that_its_interval_is_of():
    parts = [np.asarray(value) for value in (3.0, 2.0, 0.5, 10.0, 90.0, 900.0)]
    ratio = Contrast(*parts, interval=np.array([3.5, 4.5]))
    assert of_contrast(ratio, "57 articles") == Number(4.0, 3.5, 4.5, "57 articles")
    difference = Contrast(*parts, interval=np.array([1.0, 2.0]), statistic="difference")
    assert of_contrast(difference, "40 words") == Number(1.5, 1.0, 2.0, "40 words")


# -------------------------------------------------------------------- what is shown


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ({"above": 1.0}, "> 1"),
        ({"below": 0.25}, "< 0.25"),
        ({"above": 0.9, "below": 1.1}, "0.9 … 1.1"),
        ({}, "any number"),
    ],
)
def test_what_is_wanted_can_be_read(bounds, text):
    assert claim(**bounds).wanted == text


def test_the_table_has_settings_under_their_claim_with_number_bound_controls_and_verdict():
    claims = [
        claim(2.5, 2.0, 3.0, "5 seeds", above=1.0, setting="SGD", detail="norms 3 and 4"),
        claim(0.5, above=1.0, setting="Adam", controls={"no topics": Number(0.1), "untrained": Number(0.0)}),
        claim(NAN, setting="LBFGS", above=1.0, controls={}, not_checked="takes a week"),
        claim(7.0, text="words repel", below=8.0, ours=True, controls={"frozen": Number(9.0)}),
        claim(0.0, text="a constant", below=1.0, check=True, controls={}),
    ]
    lines = claims_table(claims).splitlines()
    assert lines[0] == "words attract [Figure 9; paper: 3.2]"
    assert lines[1].split() == ["SGD", "2.5", "[2,", "3]", ">", "1", "HOLDS"]
    assert lines[2].strip() == "no topics: -1e+09"
    assert lines[3].strip() == "norms 3 and 4"
    assert lines[4].split() == ["Adam", "0.5", ">", "1", "DOES", "NOT", "HOLD"]
    assert lines[5].strip() == "no topics: 0.1; untrained: 0"
    assert lines[6].split() == ["LBFGS", ">", "1", "NOT", "CHECKED"]
    assert lines[7].strip() == "takes a week"
    assert lines[8] == "words repel [Figure 9; ours]"
    assert lines[9].split() == ["7", "<", "8", "HOLDS"]
    assert lines[11:14] == ["", "checks of the code:", "a constant [Figure 9; paper: 3.2]"]


def test_the_dataframe_has_a_row_per_claim_from_claim_to_verdict():
    table = claims_to_dataframe([claim(2.0, 1.5, 2.5, "5 seeds", above=1.0), claim(0.0, above=1.0)])
    assert list(table.columns)[:8] == [
        "claim",
        "setting",
        "measured",
        "low",
        "high",
        "of",
        "wanted",
        "controls",
    ]
    assert table["verdict"].tolist() == ["holds", "does not hold"]
    assert table["measured"].tolist() == [2.0, 0.0]
    assert table["low"].tolist()[:1] == [1.5]


def test_verdicts_are_counted_in_the_order_in_which_they_are_shown():
    claims = [claim(2.0, above=1.0), claim(0.0, above=1.0), claim(not_checked="no"), claim(controls={})]
    assert summary(claims) == {
        "does not hold": 1,
        "not evidence": 1,
        "undecided": 0,
        "not checked": 1,
        "holds": 1,
    }
    assert [one.verdict for one in ordered(claims)] == [
        "does not hold",
        "not evidence",
        "not checked",
        "holds",
    ]


def test_a_claim_is_plain_json_whatever_its_numbers():
    values = json.loads(json.dumps(claim(NAN, above=1.0).to_dict(), allow_nan=False))
    assert (values["measured"], values["low"], values["below"]) == (None, None, None)
    assert (values["above"], values["verdict"], values["wanted"]) == (1.0, "undecided", "> 1")
    assert values["controls"]["no topics"]["value"] == -1e9
