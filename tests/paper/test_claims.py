"""A verdict follows from a table of numbers: by intervals over seeds, by controls, by what shuffled labels reach."""

import math

import numpy as np
import pandas as pd
import pytest

from topic_probe.paper.claims import Bound, Claim, judge, over_seeds, wanted_controls

# Three numbers of mean 2 and standard deviation 1: Student's half width is 4.30265 / sqrt(3).
AROUND_2, HALF = (1.0, 2.0, 3.0), 4.302652729911275 / math.sqrt(3)


def table(own, broken=(), **columns):
    rows = [
        {"training": "a", "control": control, "seed": seed, "ratio": value, **columns}
        for control, values in (("", own), ("no topics", broken))
        for seed, value in enumerate(values)
    ]
    return pd.DataFrame(rows)


def claim(*, above=-math.inf, below=math.inf, **more):
    given = {"controls": ("no topics",), "bounds": (Bound("ratio", above, below),), **more}
    return Claim(id="C", says="words attract", source="Figure 9", **given)


def verdict(own, broken, **more):
    return judge(claim(**more), table(own, broken), quick=False)["verdict"]


def test_an_interval_over_seeds_is_students():
    assert over_seeds(AROUND_2) == pytest.approx((2.0, 2.0 - HALF, 2.0 + HALF))
    assert over_seeds([1.5]) == (1.5, 1.5, 1.5)
    assert all(map(math.isnan, over_seeds([1.0, math.nan])))
    assert all(map(math.isnan, over_seeds([])))


def test_a_claim_is_judged_by_its_whole_interval():
    low, high = 2 - HALF, 2 + HALF
    broken = (50.0, 51.0, 52.0)
    assert verdict(AROUND_2, broken, above=low - 0.01, below=high + 0.01) == "holds"
    assert verdict(AROUND_2, broken, above=low + 0.01, below=high + 0.01) == "undecided"
    assert verdict(AROUND_2, broken, above=low - 0.01, below=high - 0.01) == "undecided"
    assert verdict(AROUND_2, broken, below=low) == "does not hold"
    assert verdict(AROUND_2, broken, above=high) == "does not hold"
    assert verdict((1.0, math.nan, 3.0), broken, above=0.0) == "undecided"


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ((1.0, 1.0, 1.0), "holds"),  # outside of the bound
        ((12.0, 11.0, 13.1), "also without"),  # inside, and the difference seed by seed may be nothing
        ((13.2, 14.2, 15.2), "holds"),  # inside, but always more than what is claimed of
    ],
)
def test_a_control_passes_inside_the_bound_where_what_was_broken_makes_no_difference(broken, expected):
    assert verdict((11.0, 12.0, 13.0), broken, above=7.0, below=30.0) == expected


def test_a_claim_whose_control_was_not_measured_is_not_decided_and_one_without_controls_describes():
    assert verdict((5.0, 5.1, 5.2), (), above=1.0) == "undecided"
    described = judge(claim(above=1.0, controls=()), table((5.0, 5.1, 5.2)), quick=False)
    assert described["verdict"] == "holds"
    assert described["panels"][0]["controls"] == {}


def test_numbers_with_intervals_of_their_own_are_judged_by_the_widest_and_beyond_shuffled_labels_in_every_seed():
    numbers = pd.DataFrame(
        {
            "training": ["bert"] * 4,
            "control": ["", "", "untrained", "untrained"],
            "seed": [0, 1, 0, 1],
            "ratio": [1.3, 1.5, 1.0, 1.0],
            "ratio low": [1.1, 1.2, 0.9, 0.9],
            "ratio high": [1.5, 1.9, 1.1, 1.1],
            "ratio shuffled": [1.2, 1.2, 1.2, 1.2],
        }
    )
    beyond = Claim(
        id="T",
        says="",
        source="",
        bounds=(Bound("ratio", above=1.01, beyond="ratio shuffled"),),
        controls=("untrained",),
    )
    found = judge(beyond, numbers, quick=False)
    assert found["verdict"] == "holds"
    number = found["panels"][0]["numbers"][0]
    assert (number["value"], number["low"], number["high"]) == pytest.approx((1.4, 1.1, 1.9))
    assert judge(beyond, numbers.assign(**{"ratio low": 1.0}), quick=False)["verdict"] == "undecided"
    one_seed = numbers.assign(**{"ratio shuffled": [1.2, 1.6, 1.2, 1.2]})
    assert judge(beyond, one_seed, quick=False)["verdict"] == "does not hold"


def test_every_number_of_a_claim_and_every_training_counts_and_the_worst_is_its_verdict():
    numbers = pd.concat(
        [
            table((5.0, 5.1, 5.2), (0.0, 0.1, 0.2), change=0.01, loss="squared"),
            table((0.1, 0.2, 0.3), (0.0, 0.1, 0.2), change=0.01, loss="cross_entropy").assign(training="b"),
        ]
    )
    both = claim(bounds=(Bound("ratio", above=1.0), Bound("change", below=0.05)))
    assert judge(both, numbers, quick=False)["verdict"] == "does not hold"
    of_one = claim(bounds=both.bounds, of="loss == 'squared'")
    assert judge(of_one, numbers, quick=False)["verdict"] == "holds"
    assert judge(of_one, numbers.assign(change=0.06), quick=False)["verdict"] == "does not hold"
    assert [panel["training"] for panel in judge(both, numbers, quick=False)["panels"]] == ["a", "b"]


def test_what_is_not_checked_says_why():
    numbers = table((5.0, 5.1, 5.2), (0.0, 0.1, 0.2))
    whole = claim(above=1.0, whole_only="needs 1,000 steps")
    assert judge(whole, numbers, quick=False)["verdict"] == "holds"
    assert judge(whole, numbers, quick=True) | {"panels": []} == judge(whole, numbers, quick=True)
    assert judge(whole, numbers, quick=True)["why"] == "needs 1,000 steps"
    assert judge(claim(above=1.0, never="not reached"), numbers, quick=False)["why"] == "not reached"
    nothing = claim(above=1.0, of="training == 'bert'", absent="it is said of BERT")
    assert judge(nothing, numbers, quick=False)["why"] == "it is said of BERT"
    assert judge(nothing, numbers, quick=False, missing="no files")["why"] == "no files"
    assert judge(nothing, numbers, quick=False)["verdict"] == "not checked"


def test_controls_are_wanted_of_the_trainings_that_checked_claims_are_about():
    rows = pd.DataFrame({"training": ["a", "b"], "loss": ["squared", "cross_entropy"]})
    claims = [
        claim(of="loss == 'squared'"),
        claim(controls=("frozen",), whole_only="long"),
        claim(controls=("never",), never="no"),
    ]
    assert wanted_controls(claims, rows, quick=True) == {"a": {"no topics"}}
    assert wanted_controls(claims, rows, quick=False) == {"a": {"no topics", "frozen"}, "b": {"frozen"}}


def test_bounds_print_as_a_reader_writes_them():
    assert [Bound("x", above=1.1).text, Bound("x", below=0.05).text, Bound("x", 0.9, 1.1).text] == [
        "> 1.1",
        "< 0.05",
        "0.9 … 1.1",
    ]
    assert np.isinf(Bound("x").below)
