"""Attention between words, from counts alone: what any measurement gives that looks at every position."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from plain_toy import masked

from topic_probe.measure.attention import measure_attention
from topic_probe.topics import Topics
from topic_probe.toy.model import ToyConfig, build_toy, toy_tensors
from topic_probe.toy.word_attention import word_attention
from topic_probe.toy.world import Masking, World, overlapping_words, zipf_words

WORLD = World(n_topics=4, words_per_topic=3, alpha=0.3, min_length=20, max_length=40)
MASKING = Masking()
N = WORLD.n_words


def toy(regime="attention", *, world=WORLD, seed=0, scale=6.0, **settings):
    """A toy whose keys and queries are large, so that attention is far from uniform."""
    config = ToyConfig(regime=regime, world=world, masking=MASKING, embedding_scale=0.1, **settings)
    model = build_toy(config, seed=seed)
    with torch.no_grad():
        for name in ("W_K", "W_Q", "b_Q", "b_K"):
            toy_tensors(model)[name].mul_(scale)
    return model


def by_position(model, batch):
    """Every pair of a position and one that it may attend to by itself, in a plain loop over plain attention."""
    t, scores = {name: x.detach().double() for name, x in toy_tensors(model).items()}, {}
    visible = batch.visible(model.toy_config.attend)
    for ids, mask, seen in zip(batch.shown, batch.mask, visible, strict=True):
        shown, Z = ids[mask].tolist(), t["W_E"][:, ids[mask]]
        seen = seen[mask]
        products = (t["W_K"] @ Z + t["b_K"][:, None]).T @ (t["W_Q"] @ Z + t["b_Q"][:, None])
        scores_seen = (products / math.sqrt(len(t["W_K"]))).masked_fill(~seen[:, None], -torch.inf)
        pattern = scores_seen.softmax(dim=0)  # [key, query]
        for q, query in enumerate(shown):
            for k, key in enumerate(shown):
                if not seen[k]:
                    continue
                if 0 in (query, key):
                    name = f"{'mask' if query == 0 else 'word'}_to_{'mask' if key == 0 else 'word'}"
                elif query == key:
                    name = "same_word"
                else:
                    name = "same_topic" if (query - 1) // 3 == (key - 1) // 3 else "different_topic"
                scores.setdefault(name, []).append(float(pattern[k, q]) * int(seen.sum()))
    return {name: np.array(found) for name, found in scores.items()}


@pytest.mark.parametrize(
    ("regime", "attend"),
    [("attention", "all"), ("full", "unmasked"), ("value", "all"), ("attention", "unmasked")],
)
def test_counts_give_what_a_loop_over_all_pairs_of_positions_gives(regime, attend):
    model = toy(regime, dtype="float64", attend=attend)
    found, scores = (
        word_attention(model, n_documents=20),
        by_position(model, masked(WORLD, 20, masking=MASKING)),
    )
    assert {name for name in found if name not in scores} - {"effect_size"} == (
        set() if attend == "all" else {"word_to_mask", "mask_to_mask"}
    )
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
        assert max(abs(found[name] - 1) for name in scores) > 1e-3


@pytest.mark.parametrize(
    ("world", "dtype"),
    [
        (WORLD, "float32"),
        (replace(WORLD, alpha=None, topics_per_document=2), "float64"),
        (replace(WORLD, word_probabilities=zipf_words(4, 3, exponent=1.0)), "float32"),
        (replace(WORLD, word_probabilities=overlapping_words(4, 3)), "float64"),
    ],
)
def test_attention_is_what_measuring_any_model_on_the_same_documents_gives(world, dtype):
    model, batch = toy(world=world, dtype=dtype), masked(world, 20, masking=MASKING)
    documents = {"input_ids": batch.shown, "attention_mask": batch.mask}
    wanted = measure_attention(model, world.topics, documents, n_permutations=0)
    found = word_attention(model, n_documents=20)
    for name in ("same_word", "same_topic", "different_topic", "effect_size"):
        assert found[name] == pytest.approx(float(getattr(wanted.overall, name)), abs=1e-5), name
    shuffled = Topics.from_token_ids({"a": [1, 4, 7], "b": [2, 5]}, vocabulary_size=N + 1)
    options = {"n_permutations": 0}
    wanted = measure_attention(model, shuffled, documents, **options).overall
    found = word_attention(model, topics=shuffled, n_documents=20)
    assert found["same_topic"] == pytest.approx(float(wanted.same_topic), rel=1e-4)


def test_where_masked_positions_are_hidden_attention_is_that_in_documents_without_them():
    """All of them show [MASK] here, so that no word is lost to those that measure any model."""
    masking = Masking(0.3, 0.0, 0.0)
    config = ToyConfig("attention", world=WORLD, masking=masking, attend="unmasked", dtype="float64")
    model, batch = (
        build_toy(config, tensors={"W_K": 3 * torch.eye(N + 1)}),
        masked(WORLD, 20, masking=masking),
    )
    left = [ids[seen] for ids, seen in zip(batch.shown, batch.visible("unmasked"), strict=True)]
    wanted = measure_attention(model, WORLD.topics, left, n_permutations=0).overall
    found = word_attention(model, n_documents=20)
    for name in ("same_word", "same_topic", "different_topic", "effect_size"):
        assert found[name] == pytest.approx(float(getattr(wanted, name)), rel=1e-9), name
    assert math.isnan(found["word_to_mask"])


def test_large_scores_have_no_nan_and_other_toys_are_refused():
    assert all(map(math.isfinite, word_attention(toy("two-stage", noise=1.0, scale=12.0)).values()))
    for settings in ({"n_layers": 2}, {"n_heads": 2}, {"residual": True}):
        with pytest.raises(
            ValueError, match=r"one layer and head without residual .* measure_attention measures any"
        ):
            word_attention(build_toy(ToyConfig(world=WORLD, **settings)))
