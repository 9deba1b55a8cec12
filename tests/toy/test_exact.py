"""The toy of which every answer is known: measurements give these answers, and others where the toy is another."""

import pytest
import torch

import topic_probe as tp
from topic_probe.toy.exact import EXACT

OPTIMUM = tp.theory.optimal_value(EXACT.world, EXACT.masking)
EXPECTED = float(tp.theory.ablation_effect(OPTIMUM, EXACT.world, EXACT.masking))


def ratios_and_effects(model):
    """Of every head, what its ratio of attention is and what taking it out adds to the loss."""
    topics, documents = EXACT.world.blocks, EXACT.documents()
    attention = tp.measure_attention(model, topics, documents, special_ids=(), n_permutations=0)
    effects = tp.measure_ablation(
        model, topics, documents, outcome=EXACT.squared_loss, reference=EXACT.shown(), special_ids=(),
        n_matched=0,
    )  # fmt: skip
    return attention.heads.ratio, -effects.effect[0]


def test_documents_have_the_frequencies_of_theory():
    """Of every two of ten topics one document, each of their words five times, one of these masked."""
    documents, shown = EXACT.documents(), EXACT.shown()
    assert len(documents) == len({tuple(ids) for ids in documents}) == 45
    for ids, seen in zip(documents, shown, strict=True):
        counts = torch.tensor(ids).bincount(minlength=101)
        assert sorted(counts[counts > 0].tolist()) == [5] * 20
        topics = {(word - 1) // 10 for word in ids}
        assert len(topics) == 2
        left = torch.tensor(seen).bincount(minlength=101)
        assert left[0] == 20
        assert sorted(left[1:][left[1:] > 0].tolist()) == [4] * 20


def test_what_a_single_head_costs_is_the_difference_of_two_closed_forms():
    ratio, effect = ratios_and_effects(EXACT.model())
    assert pytest.approx((1 / 10) * (1 / 2 - 1 / 10), abs=1e-12) == EXPECTED
    assert ratio == pytest.approx([1], abs=1e-9)
    assert effect == pytest.approx([EXPECTED], abs=1e-12)


def test_a_head_that_attends_by_topic_and_writes_nothing_has_the_ratio_and_no_effect():
    ratio, effect = ratios_and_effects(EXACT.model(n_heads=2))
    assert ratio[1] > 2 > ratio[0]
    assert ratio[0] == pytest.approx(1, abs=1e-9)
    assert effect == pytest.approx([EXPECTED, 0], abs=1e-12)


def test_the_answers_are_others_where_the_heads_write_something_else():
    n_heads = 2
    model = EXACT.model(n_heads)
    value = tp.toy_tensors(model)["W_V"].detach().clone()
    (value[0] if n_heads == 2 else value).mul_(0.9)
    if n_heads == 2:
        value[1] = 1e-3 * value[0]
    with torch.no_grad():
        tp.toy_tensors(model)["W_V"].copy_(value)
    _, effect = ratios_and_effects(model)
    assert abs(effect[0] - EXPECTED) > 1e-6
    assert all(abs(effect[1:]) > 1e-9)
