"""What recipes of toys share: claims about blocks, convergence and losses."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from topic_probe.contrast import Contrast
from topic_probe.paper.recipe import RecipeResult
from topic_probe.paper.toys import block_claim, converged, late_improvement, little_loss
from topic_probe.paper.training import Setting, Trained, train_all
from topic_probe.toy.agreement import measure_agreement
from topic_probe.toy.model import ToyConfig
from topic_probe.train.history import History, TrainConfig

SETTING = Setting("value", ToyConfig(regime="value"), TrainConfig(steps=12))


def history_with_losses(losses, *, loss="cross_entropy"):
    """A history of a toy of 100 words with the given losses."""
    steps = torch.arange(len(losses))
    table = torch.tensor(losses, dtype=torch.float64).unsqueeze(1)
    config = TrainConfig(steps=len(losses) - 1, loss=loss)
    return History(ToyConfig(regime="value"), config, steps, table, ("loss",), {}, {}, len(losses) - 1)


def convergence(history, *, quick=False):
    runs = (Trained(SETTING, history, 1.0),)
    return converged(RecipeResult("figure0", "nothing", quick, (), runs))


def test_late_improvement_is_the_share_of_the_last_tenth():
    # From log 100 to 3.4 in all, 3.5 to 3.4 from the last tenth but one to the last.
    losses = [4.0] * 80 + [3.5] * 10 + [3.4] * 10
    assert late_improvement(history_with_losses(losses)) == pytest.approx(0.1 / (math.log(100) - 3.4))
    squared = history_with_losses([0.98] * 80 + [0.96] * 10 + [0.95] * 10, loss="squared")
    assert late_improvement(squared) == pytest.approx(0.01 / (0.99 - 0.95))


def test_a_training_that_has_not_improved_has_no_late_improvement():
    assert math.isnan(late_improvement(history_with_losses([4.7] * 100)))


@pytest.mark.parametrize(
    ("end", "verdict"), [(3.48, "failed"), (3.499, "passed"), (3.52, "passed"), (3.53, "failed")]
)
def test_convergence_is_claimed_from_late_improvement(end, verdict):
    # Two per cent of the improvement from log 100 to about 3.5 are 0.022.
    history = history_with_losses([4.0] * 80 + [3.5] * 10 + [end if end != 3.48 else 3.47] * 10)
    (claim,) = convergence(history)
    assert claim.verdict == verdict


def test_a_training_that_was_stopped_has_not_converged():
    diverged = replace(history_with_losses([3.5] * 100), stopped="diverged: the loss of step 7 is inf")
    (claim,) = convergence(diverged)
    assert claim.verdict == "failed"
    assert "diverged" in claim.detail


def test_quick_variants_do_not_claim_convergence():
    history = history_with_losses([3.5] * 100)
    (claim,) = convergence(history, quick=True)
    assert claim.verdict == "not checked"


def contrast(low, high):
    numbers = [np.asarray(value) for value in (2.0, 1.0, 0.5, 10.0, 90.0, 900.0)]
    return Contrast(*numbers, interval=np.array([low, high]), statistic="difference")


@pytest.mark.parametrize(("low", "verdict"), [(0.01, "passed"), (-0.01, "failed"), (math.nan, "failed")])
def test_blocks_are_claimed_only_if_the_whole_interval_is_above_zero(low, verdict):
    assert block_claim("W", contrast(low, 1.0), setting="", source="").verdict == verdict


def agreements(few, many, floor=0.9):
    report = measure_agreement(
        train_all([SETTING])[0].model(), loss="squared", n_documents=2, attention=False
    )
    guess = {"guess": 0.99, "bayes": 0.87, "loss_error": 0.0}
    return {
        "value, squared, Adam": replace(report, regime="value", loss=few, floor=floor, **guess),
        "attention, squared, Adam": replace(report, regime="attention", loss=many, floor=0.9, **guess),
        "value, squared, SGD": replace(report, loss=0.0),  # no partner, so no claim
    }


def claims(reports, *, quick=False):
    result = RecipeResult("figure0", "nothing", quick, (), reports={"agreement": reports})
    return list(little_loss("value", "attention", source="")(result))


def test_a_loss_that_is_a_little_higher_passes_both_ways():
    assert [c.verdict for c in claims(agreements(0.908, 0.9))] == [
        "passed", "passed",
    ]  # fmt: skip
    quick = claims(agreements(0.908, 0.9), quick=True)
    assert [c.verdict for c in quick] == ["passed", "passed", "not checked"]


def test_losses_are_compared_as_they_are_and_above_guessing():
    plain, scaled = claims(agreements(0.945, 0.9))
    assert plain.measured == pytest.approx(0.05)
    assert scaled.measured == pytest.approx((0.99 - 0.945) / (0.99 - 0.9))
    assert (plain.verdict, scaled.verdict) == ("passed", "failed")
    assert plain.setting == "squared, Adam"


@pytest.mark.parametrize(("loss", "verdict"), [(0.944, "passed"), (0.951, "failed")])
def test_what_uniform_attention_must_give_up_is_not_held_against_it(loss, verdict):
    # Floors of 0.945 and 0.9 leave half of the gain; nine tenths of that are 0.0405, a loss of 0.9495.
    _, scaled = claims(agreements(loss, 0.9, floor=0.945))
    assert scaled.above == pytest.approx(0.45)
    assert scaled.verdict == verdict


def test_a_diverged_partner_does_not_make_a_loss_look_good():
    plain, scaled = claims(agreements(0.945, 1e9))
    assert (plain.verdict, scaled.verdict) == ("failed", "failed")
