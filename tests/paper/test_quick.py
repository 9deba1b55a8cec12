"""The quick variant of every recipe runs, and finds what the paper says must be seen."""

import math
from functools import cache

import pytest

from topic_probe.paper import RECIPES, reproduce


@cache
def result(name):
    return reproduce(name, quick=True)


def claims(name, text):
    found = [claim for claim in result(name).claims if claim.text.startswith(text)]
    assert found
    return found


@pytest.mark.parametrize("name", RECIPES)
def test_no_claim_fails(name):
    assert result(name).passed, repr(result(name))


@pytest.mark.parametrize("name", RECIPES)
def test_every_training_finished(name):
    assert all(trained.history.stopped == "finished" for trained in result(name).runs)


@pytest.mark.parametrize("name", RECIPES)
def test_what_was_not_checked_says_why(name):
    for claim in result(name).claims:
        assert bool(claim.not_checked) == (claim.verdict == "not checked")
        assert claim.not_checked or math.isfinite(claim.measured)


def test_figure_1_has_blocks_for_every_loss_and_optimizer():
    assert len(claims("figure1", "W_Eᵀ W_E has a block")) == 4
    compared = claims("figure1", "The loss of embedding is only slightly above")
    assert [claim.verdict for claim in compared] == ["passed", "passed", "not checked"]
    assert [claim.setting for claim in claims("figure1", "With only W_E trained")] == [
        "embedding, squared, Adam",
        "embedding, squared, SGD, long documents",
    ]


def test_figure_2_has_blocks_with_and_without_l2_and_the_closed_form():
    assert len(claims("figure2", "W_V has a block")) == 9
    assert len(claims("figure2", "The blocks of W_V are as high")) == 5


def test_figure_4_finds_two_stages_and_settings_without_them():
    assert len(claims("figure4", "Two stages")) == 2
    (claim,) = claims("figure4", "Whether there are two stages depends")
    assert claim.measured == 2
    assert "before W_V is flat" in claim.detail
    assert "goes on while W_K and W_Q grow" in claim.detail


def test_figure_10_has_blocks_although_attention_is_trained():
    assert len(claims("figure10", "W_V has a block")) == 4
    compared = claims("figure10", "The loss of value is only slightly above")
    assert [claim.verdict for claim in compared] == ["passed", "passed", "not checked"]


def test_table_3_is_about_the_topic_level_and_has_the_ratio_of_other_words_beside_it():
    found = claims("table3", "A word attends more")
    assert [claim.verdict for claim in found] == ["passed", "passed", "not checked"]
    for claim in found[:2]:
        report = result("table3").reports["attention"][claim.setting].overall
        assert claim.measured == report.topic_ratio != report.ratio
        assert f"ratio of other words {float(report.ratio):.3f}" in claim.detail
