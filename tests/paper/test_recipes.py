"""Recipes whole: the smallest one every time, all of them nightly, with the verdicts that they are known to have."""

import json
from pathlib import Path

import numpy as np
import pytest
from real_text import minilm_folder

import topic_probe as tp
from topic_probe.paper import RECIPES, recipe_named, reproduce
from topic_probe.paper.recipe import Measured, RecipeResult, Run, between, judged, own_options, summary

EXPECTED = Path(__file__).parents[1] / "helpers" / "expected_verdicts.json"


@pytest.fixture(scope="module")
def figure2():
    return reproduce("figure2", quick=True, seed=0, progress=False)


def test_the_smallest_recipe_finds_blocks_and_their_height_and_none_without_topics(figure2):
    verdicts = {claim["id"]: claim["verdict"] for claim in figure2.claims}
    assert verdicts == {"F2": "holds", "F2b": "holds", "F2c": "holds"}
    frame = figure2.numbers_table()
    squared = frame[(frame["loss"] == "squared") & (frame["control"] == "") & (frame["l2"] > 0)]
    assert squared["height of the blocks"].between(0.9, 1.1).all()
    broken = frame[frame["control"] == "no topics"]
    assert broken["own topic first"].max() < 0.3
    assert (broken["height of the blocks"].abs() < 0.2).all()


def test_a_result_comes_back_from_disk_with_its_pictures(figure2, tmp_path):
    kept = tp.load_report(figure2.save(tmp_path / "figure2"))
    assert isinstance(kept, RecipeResult)
    assert kept == figure2
    (what,) = kept.figures()
    drawn = kept.figures()[what].axes[0].images[0].get_array()
    name = "value, squared, SGD, L2 0.0001"
    third = kept.figures()[what].axes[2].images[0].get_array()
    matrix = kept.arrays[f"{name} · 0 · matrix"][1:, 1:]
    assert drawn.shape == (100, 100)
    assert np.allclose(third, matrix)


def test_the_screen_has_a_line_for_what_was_measured_with_the_control_and_the_verdict(figure2):
    head, first, second = summary([figure2])
    assert head.split() == ["paper", "ours", "where", "it", "must", "fail"]
    assert "100% of words" in first
    assert "no topics" in first
    assert first.endswith("holds")
    assert "0.96" in second
    assert between(0.5, 1.0, "{:.0%} of words") == "50–100% of words"
    assert between(2.0, 3.0, "×{:.1f}") == "×2.0–3.0"


def test_a_result_prints_its_verdicts_and_has_a_row_for_every_training(figure2):
    assert "3 holds" in repr(figure2)
    frame = figure2.to_dataframe()
    assert len(frame) == 4 + 4 + 2
    assert set(frame.columns) >= {
        "claim",
        "training",
        "measured",
        "low",
        "high",
        "wanted",
        "controls",
        "verdict",
    }


def test_ids_of_claims_are_unique_and_every_claim_that_can_be_evidence_has_a_control():
    claims = [claim for name in RECIPES for claim in recipe_named(name).claims]
    ids = [claim.id for claim in claims]
    assert len(ids) == len(set(ids))
    assert 30 <= len(ids) <= 38
    describing = {claim.id for claim in claims if not claim.controls and not claim.never}
    assert describing == {"F4c", "Tab2a", "Tab2b"}


def test_options_that_a_recipe_does_not_have_are_refused_and_unknown_names_listed():
    with pytest.raises(TypeError, match="models"):
        reproduce("figure2", models=["bert"])
    with pytest.raises(ValueError, match="figure1"):
        reproduce("figure7")
    assert own_options(recipe_named("table1")) == ("models", "corpus", "settings")


def test_what_is_missing_is_said_of_claims_that_need_it():
    recipe = recipe_named("table1")
    found = judged(recipe, Run(quick=False), Measured(missing={"bert": "no files here"}))
    assert {claim["verdict"] for claim in found.claims} == {"not checked"}
    assert {claim["why"] for claim in found.claims} == {"no files here"}
    assert "no files here" in repr(found)
    assert found.figures() == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_the_quick_variant_has_the_verdicts_that_it_is_known_to_have(name, tmp_path):
    models = {"models": {"MiniLM": minilm_folder()}} if "models" in own_options(recipe_named(name)) else {}
    result = reproduce(name, quick=True, progress=False, **models)
    known = json.loads(EXPECTED.read_text())
    assert {claim["id"]: claim["verdict"] for claim in result.claims} == known[name]
    kept = tp.load_report(result.save(tmp_path / name))
    assert kept == result
    for figure in kept.figures().values():
        figure.savefig(tmp_path / "figure.png")
