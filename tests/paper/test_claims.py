"""A claim's verdict follows from its number, and the table says what was measured, wanted and found."""

import json
import math

import pytest

from topic_probe.paper.claims import Claim, claims_table, claims_to_dataframe, summary


def claim(measured=1.0, **changes):
    given = {"text": "words attract", "source": "Figure 9", "paper": "3.2", "measured": measured, **changes}
    return Claim(**given)


@pytest.mark.parametrize(
    ("measured", "verdict"), [(1.01, "passed"), (1.0, "failed"), (0.99, "failed"), (math.nan, "failed")]
)
def test_a_claim_passes_strictly_above_its_bound_only(measured, verdict):
    assert claim(measured, above=1.0).verdict == verdict


@pytest.mark.parametrize(("measured", "verdict"), [(0.5, "passed"), (0.0, "failed"), (1.0, "failed")])
def test_a_claim_between_bounds_passes_inside_only(measured, verdict):
    assert claim(measured, above=0.0, below=1.0).verdict == verdict


def test_a_claim_that_was_not_checked_is_neither_passed_nor_failed():
    assert claim(5.0, above=1.0, not_checked="takes a week").verdict == "not checked"
    assert claim(0.0, above=1.0, not_checked="takes a week").verdict == "not checked"


def test_an_undefined_number_fails_even_without_bounds():
    assert claim(math.nan).verdict == "failed"
    assert claim(math.inf, above=1.0).verdict == "failed"


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


def test_the_table_has_settings_under_their_claim_with_number_bound_and_verdict():
    claims = [
        claim(2.5, above=1.0, setting="SGD", detail="norms 3 and 4"),
        claim(0.5, above=1.0, setting="Adam"),
        claim(setting="LBFGS", above=1.0, not_checked="takes a week"),
        claim(7.0, text="words repel", below=8.0),
    ]
    lines = claims_table(claims).splitlines()
    assert lines[0] == "words attract [Figure 9; paper: 3.2]"
    assert lines[1].split() == ["SGD", "2.5", ">", "1", "PASSED"]
    assert lines[2].strip() == "norms 3 and 4"
    assert lines[3].split() == ["Adam", "0.5", ">", "1", "FAILED"]
    assert lines[4].split() == ["LBFGS", ">", "1", "NOT", "CHECKED"]
    assert lines[5].strip() == "takes a week"
    assert lines[6] == "words repel [Figure 9; paper: 3.2]"
    assert lines[7].split() == ["7", "<", "8", "PASSED"]


def test_the_dataframe_has_a_row_per_claim_from_claim_to_verdict():
    table = claims_to_dataframe([claim(2.0, above=1.0), claim(0.0, above=1.0)])
    assert list(table.columns)[:6] == ["claim", "setting", "measured", "wanted", "paper", "verdict"]
    assert table["verdict"].tolist() == ["passed", "failed"]
    assert table["measured"].tolist() == [2.0, 0.0]


def test_verdicts_are_counted():
    claims = [claim(2.0, above=1.0), claim(0.0, above=1.0), claim(not_checked="no"), claim()]
    assert summary(claims) == {"passed": 2, "failed": 1, "not checked": 1}


def test_a_claim_is_plain_json_whatever_its_numbers():
    values = json.loads(json.dumps(claim(math.nan, above=1.0).to_dict(), allow_nan=False))
    assert values["measured"] is None
    assert values["below"] is None
    assert values["above"] == 1.0
    assert values["verdict"] == "failed"
    assert values["wanted"] == "> 1"
