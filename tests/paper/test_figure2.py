"""Training of W_V arrives where Theorem 2 says, on documents as it has them: uniform topics, and very long."""

import pytest

from topic_probe.toy.agreement import measure_agreement
from topic_probe.toy.model import ToyConfig, build_toy
from topic_probe.toy.world import World
from topic_probe.train.history import TrainConfig
from topic_probe.train.loop import train_toy

LONG = World(topics_per_document=2, min_length=2000, max_length=2000)


def trained(toy, train):
    model = build_toy(toy)
    history = train_toy(model, train)
    assert history.stopped == "finished"
    return measure_agreement(model, loss="squared", n_documents=4, attention=False)


@pytest.mark.slow
def test_value_training_with_small_l2_arrives_at_theorem_2s_closed_form():
    report = trained(
        ToyConfig(regime="value", world=LONG, init="near-zero", noise=0.001),
        TrainConfig(loss="squared", learning_rate=1.0, l2=1e-6, steps=1200, record_every=100),
    )
    assert report.value_distance < 0.05
    assert report.family_distance < 0.02
    for kind, theory in report.value_theory.items():
        assert report.value_entries[kind] == pytest.approx(theory, abs=0.003)


@pytest.mark.slow
def test_an_untrained_model_is_far_from_both():
    value = measure_agreement(
        build_toy(ToyConfig(regime="value")), loss="squared", n_documents=4, attention=False
    )
    embedding = measure_agreement(
        build_toy(ToyConfig(regime="embedding")), loss="squared", n_documents=4, attention=False
    )
    assert min(value.value_distance, value.family_distance, embedding.family_distance) > 0.2
