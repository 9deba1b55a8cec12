"""Attention between words, from counts alone: what any measurement gives that looks at every position."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from topic_probe.measure.attention import measure_attention
from topic_probe.topics import Topics
from topic_probe.toy.agreement import measure_agreement
from topic_probe.toy.masking import Masking
from topic_probe.toy.model import ToyConfig, build_toy, toy_patterns, toy_tensors
from topic_probe.toy.word_attention import word_attention
from topic_probe.toy.world import World, overlapping_words, zipf_words
from topic_probe.train.history import TrainConfig
from topic_probe.train.loop import train_toy

WORLD = World(n_topics=4, words_per_topic=3, alpha=0.3, min_length=20, max_length=40)
MASKING = Masking()
N = WORLD.n_words


def toy(regime="attention", *, world=WORLD, seed=0, scale=6.0, **settings):
    """A toy whose keys and queries are large, so that attention is far from uniform."""
    config = ToyConfig(regime=regime, world=world, masking=MASKING, **settings)
    model = build_toy(config, seed=seed)
    with torch.no_grad():
        for name in ("W_K", "W_Q", "b_Q", "b_K"):
            toy_tensors(model)[name].mul_(scale)
    return model


def documents(world=WORLD, n=20, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return MASKING.corrupt(
        world.documents(n, generator=generator), n_words=world.n_words, generator=generator
    )


def by_position(model, batch, topics):
    """Every pair of positions by itself, in a plain loop over the hooked forward."""
    with torch.no_grad(), toy_patterns(model) as patterns:
        model(batch.shown, attention_mask=batch.mask.long())
    of_word = {w: set(topics.topics_of(int(topics.places(torch.tensor(w))))) for w in range(1, N + 1)}
    scores = {}
    for i, pattern in enumerate(patterns[0][:, 0].double()):
        shown = batch.shown[i][batch.mask[i]].tolist()
        for q, query in enumerate(shown):
            for k, key in enumerate(shown):
                if 0 in (query, key):
                    name = f"{'mask' if query == 0 else 'word'}_to_{'mask' if key == 0 else 'word'}"
                elif query == key:
                    name = "same_word"
                else:
                    name = "same_topic" if of_word[query] & of_word[key] else "different_topic"
                scores.setdefault(name, []).append(float(pattern[q, k]) * len(shown))
    return {name: np.array(found) for name, found in scores.items()}


@pytest.mark.parametrize("regime", ["attention", "full", "value"])
def test_counts_give_what_a_loop_over_all_pairs_of_positions_gives(regime):
    model = toy(regime, dtype="float64")
    found, scores = word_attention(model, n_documents=20), by_position(model, documents(), WORLD.topics)
    assert found.keys() == {*scores, "effect_size"}
    for name, expected in scores.items():
        assert found[name] == pytest.approx(expected.mean(), rel=1e-9), name
    both = np.concatenate([scores["same_topic"], scores["different_topic"]])
    if regime == "value":  # keys and queries are zero
        assert all(
            value == pytest.approx(1.0, rel=1e-12) for name, value in found.items() if name != "effect_size"
        )
        assert math.isnan(found["effect_size"])
    else:
        difference = scores["same_topic"].mean() - scores["different_topic"].mean()
        assert found["effect_size"] == pytest.approx(difference / both.std(), rel=1e-6)
        assert max(abs(found[name] - 1) for name in scores) > 0.05


@pytest.mark.parametrize(
    "world",
    [
        WORLD,
        replace(WORLD, alpha=None, topics_per_document=2),
        replace(WORLD, word_probabilities=zipf_words(4, 3, exponent=1.0)),
        replace(WORLD, word_probabilities=overlapping_words(4, 3)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_attention_is_what_measuring_any_model_on_the_same_documents_gives(world, dtype):
    model, batch = toy(world=world, dtype=dtype), documents(world)
    wanted = measure_attention(
        model, world.topics, [(batch.shown, batch.mask)], n_resamples=0, n_permutations=0
    )
    found = word_attention(model, n_documents=20)
    for name in ("same_word", "same_topic", "different_topic", "effect_size"):
        assert found[name] == pytest.approx(float(getattr(wanted.overall, name)), abs=1e-5), name


def test_the_documents_are_those_that_agreement_is_measured_on():
    model = toy("two-stage", seed=3)
    report = measure_agreement(model, loss="squared", n_documents=130, seed=4)
    found = word_attention(model, n_documents=130, seed=4)
    assert found["same_topic"] == pytest.approx(float(report.attention.same_topic), rel=1e-5)
    assert found["same_word"] == pytest.approx(float(report.attention.same_word), rel=1e-5)
    assert word_attention(model, n_documents=130, seed=5)["same_topic"] != found["same_topic"]


def test_rows_of_words_and_rows_of_mask_are_told_apart():
    """Score log 3 of [MASK] rows for [MASK], and nothing else: words attend alike, [MASK] rows three times as much."""
    model = build_toy(ToyConfig("keys", world=WORLD, masking=MASKING, dtype="float64"))
    with torch.no_grad():
        for name in ("W_K", "W_Q"):
            toy_tensors(model)[name].zero_()
        toy_tensors(model)["W_K"][0, 0] = math.log(3) * math.sqrt(N + 1)
        toy_tensors(model)["W_Q"][0, 0] = 1.0
    found = word_attention(model, n_documents=20)
    for name in ("same_word", "same_topic", "different_topic", "word_to_mask"):
        assert found[name] == pytest.approx(1.0, rel=1e-12)
    # A row gives 3 / (3 m + (n - m)) to each of m [MASK]s and a third of that to each of the other words.
    batch = documents()
    n = batch.mask.sum(1).double()
    m = (batch.mask & (batch.shown == 0)).sum(1).double()
    share = n / (2 * m + n)
    assert found["mask_to_mask"] == pytest.approx(float((m * m * 3 * share).sum() / (m * m).sum()), rel=1e-12)
    assert found["mask_to_word"] == pytest.approx(
        float((m * (n - m) * share).sum() / (m * (n - m)).sum()), rel=1e-12
    )


def test_other_topics_than_those_of_the_world_are_compared_where_given():
    model, batch = toy(dtype="float64"), documents()
    shuffled = Topics.from_token_ids({"a": [1, 4, 7], "b": [2, 5]}, vocabulary_size=N + 1)
    wanted = measure_attention(
        model, shuffled, [(batch.shown, batch.mask)], n_resamples=0, n_permutations=0
    ).overall
    found = word_attention(model, topics=shuffled, n_documents=20)
    assert found["same_topic"] == pytest.approx(float(wanted.same_topic), rel=1e-9)
    assert found["different_topic"] == pytest.approx(float(wanted.different_topic), rel=1e-9)


def test_scores_beyond_the_range_of_single_precision_have_no_nan():
    model = toy("two-stage", noise=1.0, scale=12.0)
    assert all(math.isfinite(value) for value in word_attention(model).values())


def test_a_training_is_watched_without_being_changed():
    config = TrainConfig(optimizer="adam", learning_rate=0.01, steps=30, measure_every=10)
    watched = train_toy(toy(scale=1.0), config, measure={"attention": word_attention})
    alone = train_toy(toy(scale=1.0), config)
    assert torch.equal(watched.loss, alone.loss)
    series = watched.measured["attention.same_topic"]
    assert series.steps.tolist() == [0, 10, 20, 30]
    assert series.values[0] != series.values[-1]


@pytest.mark.parametrize("settings", [{"n_layers": 2}, {"n_heads": 2}, {"residual": True}])
def test_other_toys_are_refused(settings):
    with pytest.raises(
        ValueError, match=r"one layer and head without residual .* measure_attention measures any"
    ):
        word_attention(build_toy(ToyConfig(world=WORLD, **settings)))
