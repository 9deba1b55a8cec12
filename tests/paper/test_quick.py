"""The quick variant of every recipe runs, and its verdicts are those that are expected, with the reasons known."""

import math
from functools import cache

import pytest
from expected_verdicts import EXPECTED

from topic_probe.paper import RECIPES, reproduce


@cache
def result(name):
    return reproduce(name, quick=True)


@pytest.mark.parametrize("name", RECIPES)
def test_what_does_not_hold_is_what_is_expected_not_to_neither_more_nor_less(name):
    found = {
        (claim.text.split(" (")[0], claim.setting): claim.verdict
        for claim in result(name).claims
        if claim.verdict not in ("holds", "not checked")
    }
    assert found == {key: verdict for key, (verdict, _) in EXPECTED.get(name, {}).items()}, repr(result(name))


def test_every_expected_finding_is_of_a_recipe_and_has_a_reason():
    assert set(EXPECTED) <= set(RECIPES)
    assert all(len(reason) > 20 for found in EXPECTED.values() for _, reason in found.values())


@pytest.mark.parametrize("name", RECIPES)
def test_every_training_finished(name):
    assert all(trained.history.stopped == "finished" for trained in result(name).runs)


@pytest.mark.parametrize("name", RECIPES)
def test_what_was_not_checked_says_why_and_what_was_has_a_number(name):
    for claim in result(name).claims:
        assert bool(claim.not_checked) == (claim.verdict == "not checked")
        assert claim.not_checked or claim.verdict == "undecided" or math.isfinite(claim.measured.value)


@pytest.mark.parametrize("name", RECIPES)
def test_every_claim_that_was_checked_has_a_control_unless_it_checks_the_code(name):
    for claim in result(name).claims:
        assert claim.controls or claim.check or claim.not_checked, claim.text


@pytest.mark.parametrize("name", RECIPES)
def test_numbers_of_toys_are_over_seeds(name):
    for claim in result(name).claims:
        if result(name).runs and not (claim.check or claim.not_checked) and name != "stages":
            assert claim.measured.of.endswith("seeds"), f"{claim.text}: {claim.measured}"
