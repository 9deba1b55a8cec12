"""The landscape of the loss over attention weights, and where toys with attention made by hand stand in it."""

import numpy as np
import pytest
import torch

from topic_probe.report import load_report
from topic_probe.toy import theory
from topic_probe.toy.agreement import measure_agreement
from topic_probe.toy.landscape import attention_weights, measure_landscape
from topic_probe.toy.model import ToyConfig, build_toy
from topic_probe.toy.world import Masking, World

WORLD = World(n_topics=5, words_per_topic=4, topics_per_document=2, min_length=400, max_length=400)
TOPIC = (torch.arange(21) - 1) // 4


def toy_that_attends(same_topic, same_word, **settings):
    """A toy whose attention weights are these, [MASK] a topic of its own: scores are their logarithms times √d."""
    weights = torch.ones(21, 21, dtype=torch.float64)
    weights[TOPIC[:, None] == TOPIC[None, :]] = same_topic
    weights[0, 1:], weights[1:, 0] = 1.0, 1.0
    weights.fill_diagonal_(same_word)
    config = ToyConfig(regime="keys", world=WORLD, dtype="float64", **settings)
    return build_toy(
        config, tensors={"W_K": weights.log() * 21**0.5, "W_Q": torch.eye(21, dtype=torch.float64)}
    )


@pytest.mark.parametrize(
    ("weights", "attend"), [((3.0, 5.0), "all"), ((0.5, 2.0), "unmasked"), ((1.0, 1.0), "all")]
)
def test_the_attention_weights_of_a_toy_are_those_it_was_given(weights, attend):
    found = attention_weights(toy_that_attends(*weights, attend=attend))
    np.testing.assert_allclose(found, weights, rtol=1e-5)


def test_attention_to_one_word_is_relative_to_what_the_same_query_gives_to_other_topics():
    """All queries, the rows of W_K here, attend twice as much to word 1."""
    scores = torch.zeros(21, 21, dtype=torch.float64)
    scores[:, 1] = np.log(2.0)
    tensors = {"W_K": scores * 21**0.5, "W_Q": torch.eye(21, dtype=torch.float64)}
    toy = build_toy(ToyConfig(regime="keys", world=WORLD, dtype="float64"), tensors=tensors)
    # Word 1 itself, the other three of its topic, and 16 words that give others (15 + 2) / 16 on average.
    same_topic, same_word = (1 + 3 * 4 / 3 + 16 * 16 / 17) / 20, (2 + 3 * 1 + 16 * 16 / 17) / 20
    np.testing.assert_allclose(attention_weights(toy), (same_topic, same_word), rtol=1e-12)


def test_a_toy_with_the_attention_of_assumption_2_has_the_loss_of_its_place():
    """On long documents; W_V is that of Theorem 2."""
    measured = measure_agreement(toy_that_attends(3.0, 5.0), loss="squared", n_documents=100, seed=3)
    there = float(theory.attention_loss(WORLD, Masking(), alpha=3.0, beta=5.0))
    assert there == pytest.approx(measured.loss, abs=4 * measured.loss_error + 0.003)
    uniform = float(theory.attention_loss(WORLD, Masking(), alpha=1.0, beta=1.0))
    assert abs(uniform - measured.loss) > 2 * abs(there - measured.loss)


def test_the_landscape_is_the_loss_of_theory_at_every_pair_with_its_optimum_and_interval(tmp_path):
    alphas, betas, masking = np.array([0.5, 2.0]), np.array([0.0, 1.0, 3.0]), Masking(p_keep=0.2)
    report = measure_landscape(WORLD, masking, alphas=alphas, betas=betas)
    for row, column in np.ndindex(2, 3):
        there = theory.attention_loss(WORLD, masking, alpha=float(alphas[row]), beta=float(betas[column]))
        assert report.loss[row, column] == pytest.approx(float(there))
    names = ["optimum", "optimum under α = β", "uniform attention"]
    assert report.to_dataframe()["where"].tolist() == names
    optimum, tied, uniform = (report.points[name] for name in names)
    assert optimum["loss"] == theory.optimal_attention(WORLD, masking).loss
    assert optimum["loss"] < tied["loss"] < uniform["loss"]
    assert uniform["loss"] == theory.attention_loss(WORLD, masking, alpha=1.0, beta=1.0)
    assert tied["alpha"] == tied["beta"]
    bounds = theory.attention_bounds(WORLD, masking)
    assert (report.bounds, report.bounds_unmet) == ((bounds.lower, bounds.upper), bounds.unmet)
    assert "do not hold: p_keep = p_random" in repr(report)
    report.save(tmp_path / "landscape")
    assert load_report(tmp_path / "landscape") == report


@pytest.mark.parametrize("settings", [{"n_layers": 2}, {"n_heads": 3}])
def test_toys_of_other_attention_are_refused(settings):
    with pytest.raises(ValueError, match="one layer and head"):
        attention_weights(build_toy(ToyConfig(regime="attention", world=WORLD, **settings), seed=0))
