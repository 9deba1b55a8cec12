"""The quick variant of every recipe runs, and its verdicts are those that are expected, with the reasons known."""

import json
import math
from pathlib import Path

import pytest
from real_text import minilm_folder

from topic_probe.paper import RECIPES, recipe_named, reproduce

# What does not hold, is no evidence or is undecided, with the reason. A verdict that appears or goes changes what the
# documentation says of the paper: it belongs there first.
EXPECTED = json.loads(
    (Path(__file__).parents[1] / "helpers" / "expected_verdicts.json").read_text(encoding="utf-8")
)


def quick(name):
    """As `make demo` runs it, with a real model in place of those that need the hub."""
    takes_models = "models" in recipe_named(name).options
    return reproduce(name, quick=True, **({"models": {"MiniLM": minilm_folder()}} if takes_models else {}))


# Everything about a recipe in one test, because each is run once.
@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_what_does_not_hold_is_what_is_expected_not_to_neither_more_nor_less(name):
    result = quick(name)
    found = {
        (claim.text, claim.setting): claim.verdict
        for claim in result.claims
        if claim.verdict not in ("holds", "not checked")
    }
    expected = {(row["claim"], row["setting"]): row["verdict"] for row in EXPECTED if row["recipe"] == name}
    assert found == expected, repr(result)
    assert all(trained.history.stopped == "finished" for trained in result.runs)
    for claim in result.claims:
        assert bool(claim.not_checked) == (claim.verdict == "not checked")
        assert claim.verdict in ("not checked", "undecided") or math.isfinite(claim.measured.value), (
            claim.text
        )
        assert claim.controls or claim.check or claim.not_checked, f"no control: {claim.text}"
        if result.runs and not (claim.check or claim.not_checked):
            assert claim.measured.of.endswith("seeds"), f"{claim.text}: {claim.measured}"


def test_every_expected_finding_is_of_a_recipe_and_has_a_reason():
    assert {row["recipe"] for row in EXPECTED} <= set(RECIPES)
    assert all(len(row["reason"]) > 20 for row in EXPECTED)
