"""The toy of which every answer is known: measurements give these answers, and others where the toy is another."""

import pytest
import torch

import topic_probe as tp
from topic_probe.toy import exact


def ratios_and_effects(model):
    """Of every head, what its ratio of attention is and what taking it out adds to the loss."""
    topics, documents = exact.WORLD.blocks, exact.documents()
    attention = tp.measure_attention(model, topics, documents, special_ids=(), n_permutations=0)
    effects = tp.measure_ablation(
        model, topics, documents, outcome=exact.squared_loss, reference=exact.shown(), special_ids=(),
        n_matched=0,
    )  # fmt: skip
    return attention.heads.ratio, -effects.effect[0]


def test_documents_have_the_frequencies_of_theory():
    """Of every two of ten topics one document, each of their words five times, one of these masked."""
    documents, shown = exact.documents(), exact.shown()
    assert len(documents) == len({tuple(ids) for ids in documents}) == 45
    for ids, seen in zip(documents, shown, strict=True):
        counts = torch.tensor(ids).bincount(minlength=101)
        assert sorted(counts[counts > 0].tolist()) == [5] * 20
        topics = {(word - 1) // 10 for word in ids}
        assert len(topics) == 2
        left = torch.tensor(seen).bincount(minlength=101)
        assert left[0] == 20
        assert sorted(left[1:][left[1:] > 0].tolist()) == [4] * 20


def test_a_head_that_attends_by_topic_and_writes_nothing_has_the_ratio_and_no_effect():
    """What the other head costs is the difference of the squared losses 1 − 1/(τv) and 1 − 1/(Tv)."""
    ratio, effect = ratios_and_effects(exact.model())
    assert ratio[1] > 2 > ratio[0]
    assert ratio[0] == pytest.approx(1, abs=1e-9)
    assert effect == pytest.approx([1 / 20 - 1 / 100, 0], abs=1e-12)


def test_the_answers_are_others_where_the_heads_write_something_else():
    model = exact.model()
    with torch.no_grad():
        value = tp.toy_tensors(model)["W_V"]
        value[0] *= 0.9
        value[1] = 1e-3 * value[0]
    _, effect = ratios_and_effects(model)
    assert abs(effect[0] - (1 / 20 - 1 / 100)) > 1e-6
    assert abs(effect[1]) > 1e-9
