"""The landscape of the loss over attention weights, and where toys with attention made by hand stand in it."""

import numpy as np
import pytest
import torch

from topic_probe.report import load_report
from topic_probe.toy import theory
from topic_probe.toy.agreement import measure_agreement
from topic_probe.toy.landscape import attention_weights, measure_landscape
from topic_probe.toy.masking import Masking
from topic_probe.toy.model import ToyConfig, build_toy
from topic_probe.toy.world import World

WORLD = World(n_topics=5, words_per_topic=4, topics_per_document=2, min_length=400, max_length=400)
TOPIC = (torch.arange(21) - 1) // 4


def toy_that_attends(same_topic, same_word, mask, **settings):
    """A toy whose attention weights are these: scores are their logarithms times √d."""
    weights = torch.ones(21, 21, dtype=torch.float64)
    weights[TOPIC[:, None] == TOPIC[None, :]] = same_topic
    weights.fill_diagonal_(same_word)
    weights[0, 1:], weights[1:, 0], weights[0, 0] = 1.0, 1.0, mask
    config = ToyConfig(regime="keys", world=WORLD, dtype="float64", **settings)
    return build_toy(
        config, tensors={"W_K": weights.log() * 21**0.5, "W_Q": torch.eye(21, dtype=torch.float64)}
    )


@pytest.mark.parametrize("weights", [(3.0, 5.0, 0.7), (1.0, 1.0, 1.0)])
def test_the_attention_weights_of_a_toy_are_those_it_was_given(weights):
    np.testing.assert_allclose(attention_weights(toy_that_attends(*weights)), weights, rtol=1e-5)


def test_a_toy_has_the_loss_of_the_place_where_it_stands(tmp_path):
    """On long documents its loss is that of theory, though its [MASK] does not have the weight of its words."""
    model = toy_that_attends(3.0, 5.0, 0.7)
    report = measure_landscape(WORLD, Masking(), trained={"by hand": model})
    point = report.points["by hand"]
    assert point["weighted_mean"] == pytest.approx((3 * 3.0 + 5.0) / 4, rel=1e-5)
    assert (point["beta"], point["same_topic"], point["same_word"]) == pytest.approx(
        (0.7, 3.0, 5.0), rel=1e-5
    )
    measured = measure_agreement(model, loss="squared", n_documents=100, seed=3)
    assert point["loss"] == pytest.approx(measured.loss, abs=4 * measured.loss_error + 0.003)
    elsewhere = float(theory.attention_loss(WORLD, Masking(), alpha=3.0, beta=5.0))
    assert abs(elsewhere - measured.loss) > 2 * abs(point["loss"] - measured.loss)
    assert report.to_dataframe()["where"].tolist() == [
        "optimum", "optimum under α = β", "uniform attention", "by hand",
    ]  # fmt: skip
    report.save(tmp_path / "landscape")
    assert load_report(tmp_path / "landscape") == report


def test_the_landscape_is_the_loss_of_theory_at_every_pair_with_its_optimum_and_interval():
    alphas, betas, masking = np.array([0.5, 2.0]), np.array([0.0, 1.0, 3.0]), Masking(p_keep=0.2)
    report = measure_landscape(WORLD, masking, alphas=alphas, betas=betas)
    for row, column in np.ndindex(2, 3):
        there = theory.attention_loss(WORLD, masking, alpha=float(alphas[row]), beta=float(betas[column]))
        assert report.loss[row, column] == pytest.approx(float(there))
    assert report.optimum["loss"] == theory.optimal_attention(WORLD, masking).loss
    assert report.optimum["loss"] < report.tied["loss"] < report.points["uniform attention"]["loss"]
    assert report.tied["alpha"] == report.tied["beta"]
    bounds = theory.attention_bounds(WORLD, masking)
    assert (report.bounds, report.bounds_unmet) == ((bounds.lower, bounds.upper), bounds.unmet)
    assert "p_keep = p_random" in repr(report)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_layers": 2}, "one layer and head"),
        ({"n_heads": 3}, "one layer and head"),
        ({"attend": "unmasked"}, "attention to all positions"),
    ],
)
def test_toys_of_other_attention_are_refused(settings, message):
    model = build_toy(ToyConfig(regime="attention", world=WORLD, **settings), seed=0)
    with pytest.raises(ValueError, match=message):
        measure_landscape(WORLD, Masking(), trained={"another": model})
