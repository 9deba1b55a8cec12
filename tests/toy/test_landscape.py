"""The landscape of the loss over attention weights, and where toys with attention made by hand stand in it."""

import numpy as np
import pytest
import torch

from topic_probe.report import load_report
from topic_probe.toy import theory
from topic_probe.toy.agreement import measure_agreement
from topic_probe.toy.landscape import attention_weights, measure_landscape
from topic_probe.toy.masking import Masking
from topic_probe.toy.model import ToyConfig, build_toy, toy_tensors
from topic_probe.toy.world import World

WORLD = World(n_topics=5, words_per_topic=4, topics_per_document=2, min_length=400, max_length=400)
TOPIC = (torch.arange(21) - 1) // 4


def toy_that_attends(same_topic, same_word, mask):
    """A toy whose attention weights are these: scores are their logarithms times √d."""
    weights = torch.ones(21, 21, dtype=torch.float64)
    weights[TOPIC[:, None] == TOPIC[None, :]] = same_topic
    weights.fill_diagonal_(same_word)
    weights[0, 1:], weights[1:, 0], weights[0, 0] = 1.0, 1.0, mask
    config = ToyConfig(regime="keys", world=WORLD, dtype="float64")
    tensors = {"W_K": weights.log() * 21**0.5, "W_Q": torch.eye(21, dtype=torch.float64)}
    whole = build_toy(config, seed=0)
    given = {name: tensor.detach().clone() for name, tensor in toy_tensors(whole).items()} | tensors
    return build_toy(config, tensors=given)


def test_the_attention_weights_of_a_toy_are_those_it_was_given():
    np.testing.assert_allclose(attention_weights(toy_that_attends(3.0, 5.0, 0.7)), (3.0, 5.0, 0.7), rtol=1e-5)
    np.testing.assert_allclose(attention_weights(toy_that_attends(1.0, 1.0, 1.0)), (1.0, 1.0, 1.0), rtol=1e-5)


def test_a_toy_has_the_loss_of_the_place_where_it_stands():
    """On long documents its loss is that of theory, though its [MASK] does not have the weight of its words."""
    model = toy_that_attends(3.0, 5.0, 0.7)
    report = measure_landscape(WORLD, Masking(), trained={"by hand": model})
    point = report.points["by hand"]
    assert point["weighted_mean"] == pytest.approx((3 * 3.0 + 5.0) / 4, rel=1e-5)
    assert (point["beta"], point["same_topic"], point["same_word"]) == pytest.approx(
        (0.7, 3.0, 5.0), rel=1e-5
    )
    measured = measure_agreement(model, loss="squared", n_documents=100, attention=False, seed=3)
    assert point["loss"] == pytest.approx(measured.loss, abs=4 * measured.loss_error + 0.003)
    elsewhere = float(theory.attention_loss(WORLD, Masking(), alpha=3.0, beta=5.0))
    assert abs(elsewhere - measured.loss) > 2 * abs(point["loss"] - measured.loss)


def test_the_landscape_is_the_loss_of_theory_at_every_pair():
    alphas, betas = np.array([0.5, 2.0]), np.array([0.0, 1.0, 3.0])
    report = measure_landscape(WORLD, Masking(), alphas=alphas, betas=betas)
    for row, column in np.ndindex(2, 3):
        there = theory.attention_loss(WORLD, Masking(), alpha=float(alphas[row]), beta=float(betas[column]))
        assert report.loss[row, column] == pytest.approx(float(there))
    assert report.points["uniform attention"]["loss"] == pytest.approx(
        float(theory.attention_loss(WORLD, Masking(), alpha=1.0, beta=1.0))
    )


def test_no_point_of_the_grid_is_better_than_the_optimum_and_the_tied_one_is_no_better():
    report = measure_landscape(WORLD, Masking())
    assert report.optimum["loss"] <= report.loss.min() + 1e-12
    assert report.optimum["loss"] < report.tied["loss"] < report.points["uniform attention"]["loss"]
    assert report.tied["alpha"] == report.tied["beta"]
    assert report.within_bounds
    assert report.bounds[0] < report.optimum["weighted_mean"] < report.bounds[1]


def test_the_table_has_every_point_and_the_report_comes_back_from_disk(tmp_path):
    report = measure_landscape(WORLD, Masking(), trained={"by hand": toy_that_attends(2.0, 2.0, 1.0)})
    assert report.to_dataframe()["where"].tolist() == [
        "optimum", "optimum under α = β", "uniform attention", "by hand",
    ]  # fmt: skip
    report.save(tmp_path / "landscape")
    assert load_report(tmp_path / "landscape") == report


def test_assumptions_that_do_not_hold_are_named():
    report = measure_landscape(WORLD, Masking(p_keep=0.2))
    assert "p_keep = p_random" in report.bounds_unmet
    assert "p_keep = p_random" in repr(report)


def test_toys_of_several_layers_or_heads_are_refused():
    for sizes in ({"n_layers": 2}, {"n_heads": 3}):
        model = build_toy(ToyConfig(regime="attention", world=WORLD, **sizes), seed=0)
        with pytest.raises(ValueError, match="one layer with one head, this toy has"):
            measure_landscape(WORLD, Masking(), trained={"large": model})
