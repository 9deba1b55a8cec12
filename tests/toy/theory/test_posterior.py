"""The best possible predictor against brute force over everything that can happen, quadrature, and sampled data."""

import dataclasses
import math
from itertools import combinations, product

import numpy as np
import pytest
import torch
from plain_toy import uniform
from torch import Tensor

from topic_probe.toy import theory
from topic_probe.toy.world import MaskedBatch, Masking, World, overlapping_words, zipf_words

PAPER = Masking(p_mask=0.15, p_keep=0.1, p_random=0.1)
ODD = Masking(p_mask=0.5, p_keep=0.2, p_random=0.3)


def lda(n_topics: int, words_per_topic: int, alpha: float, **settings) -> World:
    return World(n_topics=n_topics, words_per_topic=words_per_topic, alpha=alpha, **settings)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def to_batch(shown: Tensor, chosen: Tensor | None = None) -> MaskedBatch:
    real = torch.ones_like(shown, dtype=torch.bool)
    return MaskedBatch(shown, torch.zeros_like(shown), real, real if chosen is None else chosen)


def sampled(world: World, masking: Masking, n: int, seed: int = 0) -> MaskedBatch:
    generator = seeded(seed)
    documents = world.documents(n, generator=generator)
    return masking.corrupt(documents, n_words=world.n_words, generator=generator)


# --- Brute force: all documents, all choices of M, all corruptions. ---


def probability_of(document: tuple[int, ...], world: World) -> float:
    """P(document), summed over the topic of every word; LDA's assignments follow Pólya's urn."""
    words, T = world.topic_words, world.n_topics
    if world.topics_per_document is not None:
        sets = list(combinations(range(T), world.topics_per_document))
        given = [math.prod(float(words[list(s), w - 1].mean()) for w in document) for s in sets]
        return sum(given) / len(sets)
    total = 0.0
    for topics in product(range(T), repeat=len(document)):
        term = math.prod(float(words[t, w - 1]) for t, w in zip(topics, document, strict=True))
        for i, topic in enumerate(topics):
            term *= (world.alpha + topics[:i].count(topic)) / (T * world.alpha + i)
        total += term
    return total


def evidence(shown, chosen, at, attend):
    """What a predictor of this position is told."""
    if attend == "all":
        return at, shown
    return at, shown[at], tuple(token for token, asked in zip(shown, chosen, strict=True) if not asked)


def brute_force(world, masking, length, attend):
    """All shown documents with all choices of M, and P(word | evidence) for every chosen position of each."""
    n, joint, cases = world.n_words, {}, set()
    for document in product(range(1, n + 1), repeat=length):
        prior = probability_of(document, world)
        for chosen in product([False, True], repeat=length):
            options = [range(n + 1) if c else [w] for c, w in zip(chosen, document, strict=True)]
            for shown in product(*options):
                weight = prior
                for c, w, s in zip(chosen, document, shown, strict=True):
                    weight *= masking.p_mask if c else 1 - masking.p_mask
                    if c and s == 0:
                        weight *= 1 - masking.p_keep - masking.p_random
                    elif c:
                        weight *= masking.p_keep * (s == w) + masking.p_random / n
                for at in (at for at in range(length) if chosen[at]):
                    table = joint.setdefault(evidence(shown, chosen, at, attend), np.zeros(n + 1))
                    table[document[at]] += weight
                if weight > 0 and any(chosen):
                    cases.add((shown, chosen))
    cases = sorted(cases)
    tables = [
        joint[evidence(shown, chosen, at, attend)]
        for shown, chosen in cases
        for at in range(length)
        if chosen[at]
    ]
    return cases, np.stack([table / table.sum() for table in tables])


STRICT = Masking(p_mask=0.4, p_keep=0.3, p_random=0.0)
GAP = [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.4, 0.6]]  # word 2 is of no topic
PAIRS = [
    (uniform(3, 1, 2), ODD),
    (uniform(3, 1, 2), STRICT),
    (uniform(2, 2, 1, word_probabilities=zipf_words(2, 2)), ODD),
    (uniform(2, 2, 1, word_probabilities=overlapping_words(2, 2, overlap=0.3)), ODD),
    (lda(2, 2, 0.3), STRICT),
    (lda(3, 1, 2.0), ODD),
    (lda(2, 2, 0.5, word_probabilities=zipf_words(2, 2)), ODD),
    (lda(2, 2, 0.5, word_probabilities=GAP), ODD),
]


@pytest.mark.parametrize("attend", ["all", "unmasked"])
@pytest.mark.parametrize(("world", "masking"), PAIRS)
def test_the_predictor_is_the_posterior_over_everything_that_can_happen(world, masking, attend):
    cases, expected = brute_force(world, masking, 3, attend)
    shown, chosen = (torch.tensor(part) for part in zip(*cases, strict=True))
    prediction = theory.bayes_predictor(world, masking, to_batch(shown, chosen), attend=attend)
    torch.testing.assert_close(prediction, torch.from_numpy(expected), rtol=1e-10, atol=1e-14)


# --- Lengths that brute force cannot reach. ---


RANDOM = Masking(p_mask=0.9, p_keep=0.0, p_random=0.9)


def words_given(counts, world, masking):
    """E[p | counts of shown words]: what is predicted at one more position, which shows [MASK]."""
    shown = torch.repeat_interleave(torch.arange(1, len(counts) + 1), torch.tensor(counts))
    shown = torch.cat([torch.zeros(1, dtype=torch.long), shown])[None]
    return theory.bayes_predictor(world, masking, to_batch(shown, shown == 0))[0, 1:]


@pytest.mark.parametrize(
    ("counts", "alpha", "masking"),
    [
        ((890, 110), 1e-6, PAPER),
        ((500, 500), 0.1, RANDOM),
        ((40, 1), 1e5, RANDOM),
        ((990, *[0] * 99), 0.05, PAPER),
        ((3, *[0] * 9), 3.0, RANDOM),
    ],
)
def test_long_documents_of_two_topics_or_of_one_among_many_agree_with_quadrature(counts, alpha, masking):
    world, others = lda(len(counts), 1, alpha), len(counts) - 1
    a, eps = 1 - (1 - masking.p_keep) * masking.p_mask, masking.p_mask * masking.p_random / len(counts)
    # E[θ] under Beta(α, (T − 1) α) · (aθ + ε)^c1 · (a(1 − θ) + ε)^c2, on a grid in the logit of θ, which nearly reaches
    # e^(−60/α) from the ends and is dense in the middle.
    t = torch.linspace(-1, 1, 100_001, dtype=torch.float64) * math.asinh(60 / alpha + 60)
    low, high = torch.nn.functional.logsigmoid(t.sinh()), torch.nn.functional.logsigmoid(-t.sinh())
    logs = alpha * (low + others * high) + t.cosh().log()
    logs = logs + counts[0] * (a * low.exp() + eps).log() + counts[1] * (a * high.exp() + eps).log()
    weight = torch.softmax(logs, dim=0)
    expected = torch.stack([(weight * low.exp()).sum(), (weight * high.exp()).sum() / others])
    words = words_given(counts, world, masking)[:2]
    torch.testing.assert_close(words, expected, rtol=1e-9, atol=1e-13)


# --- Properties. ---


def test_predictions_do_not_depend_on_order_padding_or_company():
    world = lda(10, 10, 0.1, min_length=15, max_length=60)
    batch = sampled(world, PAPER, 30)
    whole = theory.bayes_predictor(world, PAPER, batch)
    assert whole[:, 0].eq(0).all()
    torch.testing.assert_close(whole.sum(dim=1), torch.ones(len(whole)).double())
    document = batch.chosen.nonzero(as_tuple=True)[0]
    for row in (0, 7, 29):
        real = batch.mask[row]
        order = torch.randperm(int(real.sum()), generator=seeded(row))
        alone = to_batch(batch.shown[row][real][order][None], batch.chosen[row][real][order][None])
        shuffled = theory.bayes_predictor(world, PAPER, alone)
        back = torch.argsort(order[alone.chosen[0]])
        torch.testing.assert_close(shuffled[back], whole[document == row], rtol=1e-9, atol=1e-15)
    other_padding = dataclasses.replace(batch, shown=batch.shown.masked_fill(~batch.mask, 50_000))
    assert torch.equal(theory.bayes_predictor(world, PAPER, other_padding), whole)


def test_the_loss_of_long_documents_is_the_floor():
    clear = theory.bayes_loss(uniform(10, 10, 2), PAPER, n_documents=50, generator=seeded())
    long = lda(4, 5, 0.5, min_length=300, max_length=300)
    nearly = theory.bayes_loss(long, PAPER, n_documents=8, generator=seeded())
    for name, tolerance in (("squared", 4e-3), ("cross_entropy", 0.04)):
        floor = theory.loss_floor(uniform(10, 10, 2), PAPER, regime="full", loss=name).value
        assert getattr(clear, name) == pytest.approx(floor, abs=1e-9)
        floor = theory.loss_floor(long, PAPER, regime="full", loss=name).value
        assert getattr(nearly, name) == pytest.approx(floor, abs=tolerance)


@pytest.mark.parametrize(
    ("world", "attend"),
    [(lda(5, 4, 0.3), "unmasked"), (uniform(5, 4, 2, word_probabilities=overlapping_words(5, 4)), "all")],
)
def test_the_estimated_loss_is_what_the_predictor_loses_on_drawn_targets(world, attend):
    world = dataclasses.replace(world, min_length=10, max_length=20)
    loss = theory.bayes_loss(world, PAPER, n_documents=1_000, generator=seeded(1), attend=attend)
    batch = sampled(world, PAPER, 2_000, seed=2)
    prediction = theory.bayes_predictor(world, PAPER, batch, attend=attend)
    document, position = batch.chosen.nonzero(as_tuple=True)
    onehot = torch.nn.functional.one_hot(batch.target[document, position], 21)
    counts = torch.bincount(document, minlength=2_000)
    for name, values in (
        ("squared", (prediction - onehot).square().sum(dim=1)),
        ("cross_entropy", -(prediction * onehot).sum(dim=1).log()),
    ):
        means = (torch.zeros(2_000).double().index_add_(0, document, values) / counts)[counts > 0]
        error = (float(means.var()) / len(means) + getattr(loss, f"{name}_error") ** 2) ** 0.5
        assert getattr(loss, name) == pytest.approx(float(means.mean()), abs=4 * error)
        assert getattr(loss, f"{name}_error") < 0.75 * float(means.std()) / 1_000**0.5
    assert loss.n_documents < 1_000  # documents of ten words often have no masked position


def test_documents_without_a_loss_do_not_count():
    world = lda(2, 2, 0.3, min_length=1, max_length=2)
    nothing = theory.bayes_loss(world, Masking(p_mask=0.0), n_documents=3, generator=seeded())
    assert (nothing.n_documents, math.isnan(nothing.squared)) == (0, True)
    masking = Masking(p_mask=0.9)
    few = theory.bayes_loss(world, masking, n_documents=99, generator=seeded(), attend="unmasked")
    chosen = sampled(world, masking, 99)
    some = chosen.chosen.any(dim=1) & (chosen.mask & ~chosen.chosen).any(dim=1)
    assert few.n_documents == int(some.sum()) < 30


@pytest.mark.parametrize(
    ("world", "masking", "shown", "message"),
    [
        (uniform(3, 1, 2), Masking(p_random=0.0), [[1, 2, 3, 0]], "cannot occur in this world"),
        (uniform(3, 1, 2), PAPER, [[1, 4]], r"shown ids must lie in 0\.\.3 .* got 1\.\.4"),
        (lda(2, 1, 0.1), PAPER, [[1] * 1201], "at most 1000 words, got one of 1200"),
        (
            lda(5, 4, 0.1, word_probabilities=overlapping_words(5, 4)),
            PAPER,
            [[1]],
            "LDA have no exact posterior",
        ),
        (uniform(30, 2, 10), PAPER, [[1, 2]], "30,045,015 possible sets"),
    ],
)
def test_undefined_or_unfeasible_predictions_are_refused_with_the_reason(world, masking, shown, message):
    with pytest.raises(ValueError, match=message):
        theory.bayes_predictor(world, masking, to_batch(torch.tensor(shown)))
