"""Sizes of gradients near zero, against derivatives of the paper's own equations."""

import math
from dataclasses import replace

import pytest
import torch
from plain_toy import masked, plain_cost
from torch.func import jacrev

from topic_probe.toy import theory
from topic_probe.toy.world import MaskedBatch, Masking, World

WORLD = World(n_topics=2, words_per_topic=2, alpha=0.5, min_length=5, max_length=9)
EVEN = replace(WORLD, min_length=7, max_length=7)  # without padding
SIZE = WORLD.vocabulary_size
LOSSES = ("cross_entropy", "squared")


def one_hot_loss(W_K, W_Q, W_V, batch, loss, attend="all"):
    """Equations 7 and 1, one document at a time: one-hot embeddings without biases."""
    documents = []
    for shown, target, chosen in zip(batch.shown, batch.target, batch.chosen, strict=True):
        asked = torch.ones_like(chosen) if attend == "all" else ~chosen
        x, words = torch.eye(SIZE).double()[shown], target[chosen]
        scores = (x[chosen] @ W_Q.T) @ (x[asked] @ W_K.T).T / len(W_K) ** 0.5
        predictions = scores.softmax(dim=1) @ x[asked] @ W_V.T
        costs = [plain_cost(one, int(word), loss) for one, word in zip(predictions, words, strict=True)]
        documents += [torch.stack(costs).mean()] if costs and asked.any() else []
    return torch.stack(documents).mean()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("d_attention", "attend"), [(1, "unmasked"), (3, "all")])
def test_sizes_are_those_of_the_third_derivative_at_zero(loss, d_attention, attend):
    """∂L/∂W_K is linear in W_Q and in W_V there, so its mean square over noise is σ⁴ times all coefficients squared."""
    batch = masked(EVEN, 6)
    zero = (
        *[torch.zeros(d_attention, SIZE, dtype=torch.float64)] * 2,
        torch.zeros(SIZE, SIZE, dtype=torch.float64),
    )

    def value(W_K, W_Q, W_V):
        return one_hot_loss(W_K, W_Q, W_V, batch, loss, attend)

    third = jacrev(jacrev(jacrev(value, 0), 1), 2)(*zero)
    sizes = theory.initial_gradients(EVEN, batch, loss=loss, attend=attend)
    assert sizes.attention == pytest.approx(third.norm().item(), rel=1e-9)
    assert sizes.value == pytest.approx(jacrev(value, 2)(*zero).norm().item(), rel=1e-9)


def test_documents_with_nothing_masked_do_not_count():
    batch = masked(WORLD, 12, masking=Masking(0.1, 0.2, 0.2), seed=1)
    empty = ~batch.chosen.any(dim=1)
    assert empty.any()
    rest = batch.select((~empty).nonzero()[:, 0])
    of_all, of_rest = (theory.initial_gradients(WORLD, some, loss="squared") for some in (batch, rest))
    assert of_all == of_rest
    with pytest.raises(ValueError, match="nothing is masked in this batch"):
        theory.initial_gradients(WORLD, batch.select(empty.nonzero()[:, 0]), loss="squared")


def test_one_masked_position_by_hand():
    """Four positions of two words: x = (¼ [MASK], ½, ¼), g = −2 e_2, and C = diag(x) − x xᵀ."""
    shown, target = torch.tensor([[0, 1, 1, 2]]), torch.tensor([[2, 1, 1, 2]])
    batch = MaskedBatch(shown, target, torch.ones_like(shown).bool(), shown == 0)
    sizes = theory.initial_gradients(World(n_topics=1, words_per_topic=2), batch, loss="squared")
    assert sizes.value == pytest.approx(2 * math.sqrt(1 / 16 + 1 / 4 + 1 / 16))
    # C has ¼ − 1/16, ½ − ¼, ¼ − 1/16 on the diagonal, and −1/8, −1/16, −1/8 beside it, twice each.
    square = 2 * (3 / 16) ** 2 + (1 / 4) ** 2 + 2 * (2 * (1 / 8) ** 2 + (1 / 16) ** 2)
    assert sizes.attention == pytest.approx(2 * math.sqrt(square))
    assert sizes.ratio(1e-6) == pytest.approx(1e-12 * sizes.attention / sizes.value)
