"""The best possible predictor against brute force over everything that can happen, quadrature, and sampled data."""

import dataclasses
import math
from itertools import combinations, product

import numpy as np
import pytest
import torch
from torch import Tensor

from topic_probe.toy import theory
from topic_probe.toy.masking import MaskedBatch, Masking
from topic_probe.toy.theory import posterior
from topic_probe.toy.world import World, overlapping_words, zipf_words

PAPER = Masking(p_mask=0.15, p_keep=0.1, p_random=0.1)
ODD = Masking(p_mask=0.5, p_keep=0.2, p_random=0.3)


def uniform(n_topics: int, words_per_topic: int, topics_per_document: int, **settings) -> World:
    return World(
        n_topics=n_topics,
        words_per_topic=words_per_topic,
        topics_per_document=topics_per_document,
        **settings,
    )


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


def brute_force(world: World, masking: Masking, length: int) -> dict[tuple[int, ...], np.ndarray]:
    """P(word at j | shown document, j is masked) for every shown document, as [position, token]."""
    n = world.n_words
    joint: dict[tuple[int, ...], np.ndarray] = {}
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
                table = joint.setdefault(shown, np.zeros((length, n + 1)))
                for j in range(length):
                    table[j, document[j]] += weight * chosen[j]
    return {
        shown: table / table.sum(axis=1, keepdims=True)
        for shown, table in joint.items()
        if (table.sum(axis=1) > 0).all()
    }


WORLDS = {
    "uniform topics": uniform(3, 1, 2),
    "uniform topics of one": uniform(2, 2, 1),
    "LDA": lda(2, 2, 0.3),
    "LDA of three": lda(3, 1, 2.0),
    "unequal words": lda(2, 2, 0.5, word_probabilities=zipf_words(2, 2)),
    "unequal words, uniform topics": uniform(2, 2, 1, word_probabilities=zipf_words(2, 2)),
    "a word of no topic": lda(2, 2, 0.5, word_probabilities=[[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.4, 0.6]]),
    "overlapping uniform topics": uniform(2, 2, 1, word_probabilities=overlapping_words(2, 2, overlap=0.3)),
}


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS.keys())
@pytest.mark.parametrize("masking", [PAPER, ODD])
def test_the_predictor_is_the_posterior_over_everything_that_can_happen(world, masking):
    expected = brute_force(world, masking, 3)
    prediction = theory.bayes_predictor(world, masking, to_batch(torch.tensor(list(expected))))
    wanted = torch.from_numpy(np.concatenate(list(expected.values())))
    torch.testing.assert_close(prediction.probabilities, wanted, rtol=1e-10, atol=1e-14)
    assert prediction.method == ("enumeration" if "overlapping" in str(world) else prediction.method)


def test_without_random_words_the_predictor_still_is_the_posterior():
    masking = Masking(p_mask=0.4, p_keep=0.3, p_random=0.0)
    for world in (uniform(3, 1, 2), lda(2, 2, 0.3)):
        expected = brute_force(world, masking, 3)
        prediction = theory.bayes_predictor(world, masking, to_batch(torch.tensor(list(expected))))
        wanted = torch.from_numpy(np.concatenate(list(expected.values())))
        torch.testing.assert_close(prediction.probabilities, wanted, rtol=1e-10, atol=1e-14)


# --- Lengths that brute force cannot reach. ---


@pytest.mark.parametrize("counts", [(890, 110), (500, 500), (1000, 0), (3, 1), (40, 1)])
@pytest.mark.parametrize("alpha", [1e-6, 0.1, 3.0, 1e5])
@pytest.mark.parametrize("masking", [PAPER, Masking(p_mask=0.9, p_keep=0.0, p_random=0.9)])
def test_long_documents_of_two_topics_agree_with_quadrature(counts, alpha, masking):
    world = lda(2, 1, alpha)
    a, eps = 1 - (1 - masking.p_keep) * masking.p_mask, masking.p_mask * masking.p_random / 2
    # E[θ] under Beta(α, α) · (aθ + ε)^c1 · (a(1 − θ) + ε)^c2, on a grid in the logit of θ, which nearly reaches
    # e^(−60/α) from the ends and is dense in the middle.
    t = torch.linspace(-1, 1, 100_001, dtype=torch.float64) * math.asinh(60 / alpha + 60)
    low, high = torch.nn.functional.logsigmoid(t.sinh()), torch.nn.functional.logsigmoid(-t.sinh())
    logs = alpha * (low + high) + t.cosh().log()
    logs = logs + counts[0] * (a * low.exp() + eps).log() + counts[1] * (a * high.exp() + eps).log()
    weight = torch.softmax(logs, dim=0)
    expected = torch.stack([(weight * low.exp()).sum(), (weight * high.exp()).sum()])
    words = posterior.expected_words(world, masking, torch.tensor([counts]).double())[0]
    torch.testing.assert_close(words, expected, rtol=1e-9, atol=1e-13)


def expected_shares_in_logarithms(counts: list[int], alpha: float, masking: Masking, n: int) -> Tensor:
    """E[θ] of the first n one-word topics, from sums over genuine counts that never leave the logarithms."""
    T, a = len(counts), 1 - (1 - masking.p_keep) * masking.p_mask
    kappa = masking.p_mask * masking.p_random / T / a

    def rising(base: float, k: int) -> float:
        return math.lgamma(base + k) - math.lgamma(base)

    def log_total(extra: int | None) -> float:
        """log E[Π (θ_t + κ)^c_t], with another factor θ_extra."""
        total = np.zeros(1)
        for t, c in enumerate(counts):
            more = int(t == extra)
            table = [
                math.log(math.comb(c, k)) + (c - k) * math.log(kappa) + rising(alpha, k + more)
                for k in range(c + 1)
            ]
            padded = np.full(len(total) + c, -np.inf)
            for k, entry in enumerate(table):
                padded[k : k + len(total)] = np.logaddexp(padded[k : k + len(total)], total + entry)
            total = padded
        more = int(extra is not None)
        return float(
            np.logaddexp.reduce([x - rising(T * alpha, k + more) for k, x in enumerate(total.tolist())])
        )

    whole = log_total(None)
    return torch.tensor([math.exp(log_total(t) - whole) for t in range(n)], dtype=torch.float64)


@pytest.mark.parametrize("alpha", [0.05, 1e3])
@pytest.mark.parametrize("masking", [PAPER, Masking(p_mask=0.9, p_keep=0.0, p_random=0.9)])
def test_long_documents_of_many_topics_agree_with_a_sum_in_logarithms(alpha, masking):
    for counts in ([300, 300, 300, 10, 10, 1, 1, 1, 0], [900, 10, 1, 1, 1, 0] + 94 * [0]):
        world = lda(len(counts), 1, alpha)
        words = posterior.expected_words(world, masking, torch.tensor([counts]).double())[0]
        expected = expected_shares_in_logarithms(counts, alpha, masking, n=6)
        torch.testing.assert_close(words[:6], expected, rtol=1e-8, atol=0)
        assert float(words.sum()) == pytest.approx(1)


@pytest.mark.parametrize("table", [None, zipf_words(8, 5)])
@pytest.mark.parametrize("tau", [1, 3, 8])
def test_the_sum_over_uniform_topics_equals_the_enumeration_of_all_sets(table, tau):
    world = uniform(8, 5, tau, min_length=2, max_length=9, word_probabilities=table)
    shown = sampled(world, ODD, 30).shown
    counts = torch.stack([row.bincount(minlength=41)[1:] for row in shown]).double()
    summed = posterior._summed(world, ODD, counts)
    torch.testing.assert_close(summed, posterior._enumerated(world, ODD, counts), rtol=1e-10, atol=1e-15)


def gibbs(world: World, masking: Masking, counts: Tensor, *, n_chains: int, n_sweeps: int) -> Tensor:
    """Estimates of E[p | counts] under LDA, one per chain: every shown word is of a topic, or (state T) random."""
    T, alpha, generator = world.n_topics, world.alpha, seeded()
    a, eps = 1 - (1 - masking.p_keep) * masking.p_mask, masking.p_mask * masking.p_random / world.n_words
    estimates = torch.zeros(n_chains, *counts.shape).double()
    for row, count in enumerate(counts.long()):
        words = torch.arange(world.n_words).repeat_interleave(count)
        state = torch.full((n_chains, len(words)), T)
        held = torch.nn.functional.one_hot(state, T + 1).sum(1).double()
        for sweep in range(n_sweeps + n_sweeps // 4):
            for place, word in enumerate(words):
                held -= torch.nn.functional.one_hot(state[:, place], T + 1)
                shares = (alpha + held[:, :T]) / (T * alpha + held[:, :T].sum(1, keepdim=True))
                weights = torch.cat(
                    [a * world.topic_words[:, word] * shares, torch.full((n_chains, 1), eps)], 1
                )
                state[:, place] = torch.multinomial(weights, 1, generator=generator)[:, 0]
                held += torch.nn.functional.one_hot(state[:, place], T + 1)
            if sweep >= n_sweeps // 4:
                shares = (alpha + held[:, :T]) / (T * alpha + held[:, :T].sum(1, keepdim=True))
                estimates[:, row] += shares @ world.topic_words / n_sweeps
    return estimates


@pytest.mark.parametrize("table", [None, zipf_words(6, 5)])
def test_the_sum_over_genuine_counts_equals_gibbs_sampling(table):
    world = lda(6, 5, 0.2, min_length=30, max_length=40, word_probabilities=table)
    shown = sampled(world, ODD, 6).shown
    counts = torch.stack([row.bincount(minlength=31)[1:] for row in shown]).double()
    chains = gibbs(world, ODD, counts, n_chains=20, n_sweeps=200)
    error = chains.std(dim=0) / 20**0.5
    scores = (chains.mean(dim=0) - posterior._summed(world, ODD, counts)) / error
    assert float(scores.abs().max()) < 5
    assert float(error.max()) < 0.003


def test_thousands_of_topic_sets_need_no_enumeration():
    # 100 choose 5 is 75 million; half of the words of a clear document come from each of its topics.
    world = uniform(100, 3, 2)
    counts = torch.zeros(1, 300).double()
    counts[0, [0, 1, 2, 297, 298]] = torch.tensor([5.0, 5.0, 5.0, 8.0, 8.0]).double()
    words = posterior.expected_words(world, PAPER, counts)[0]
    expected = torch.zeros(300).double()
    expected[[0, 1, 2, 297, 298, 299]] = 1 / 6
    torch.testing.assert_close(words, expected, rtol=1e-6, atol=1e-9)


# --- Properties. ---


@pytest.mark.parametrize("world", [lda(10, 10, 0.1), uniform(10, 10, 3)])
def test_predictions_are_calibrated_on_sampled_documents(world):
    batch = sampled(dataclasses.replace(world, min_length=20, max_length=40), ODD, 400, seed=5)
    prediction = theory.bayes_predictor(world, ODD, batch)
    target = batch.target[batch.chosen]
    chance = prediction.probabilities.gather(1, target.unsqueeze(1)).squeeze(1)
    document = batch.chosen.nonzero(as_tuple=True)[0]
    # The realised losses have the stated expectations; positions of a document are dependent, so add them up.
    for realised, stated in (
        (-chance.log(), prediction.cross_entropy),
        (1 - 2 * chance + prediction.probabilities.square().sum(dim=1), prediction.squared),
    ):
        excess = torch.zeros(400).double().index_add_(0, document, realised - stated)
        assert abs(float(excess.mean())) < 4 * float(excess.std()) / 20
        assert float(excess.std()) / 20 < 0.03 * float(stated.sum()) / 400


def test_predictions_do_not_depend_on_order_padding_or_company():
    world = lda(10, 10, 0.1, min_length=15, max_length=60)
    batch = sampled(world, PAPER, 30)
    whole = theory.bayes_predictor(world, PAPER, batch).probabilities
    assert whole[:, 0].eq(0).all()
    torch.testing.assert_close(whole.sum(dim=1), torch.ones(len(whole)).double())
    document = batch.chosen.nonzero(as_tuple=True)[0]
    for row in (0, 7, 29):
        real = batch.mask[row]
        order = torch.randperm(int(real.sum()), generator=seeded(row))
        alone = to_batch(batch.shown[row][real][order][None], batch.chosen[row][real][order][None])
        shuffled = theory.bayes_predictor(world, PAPER, alone).probabilities
        back = torch.argsort(order[alone.chosen[0]])
        torch.testing.assert_close(shuffled[back], whole[document == row], rtol=1e-9, atol=1e-15)
    other_padding = dataclasses.replace(batch, shown=batch.shown.masked_fill(~batch.mask, 50_000))
    assert torch.equal(theory.bayes_predictor(world, PAPER, other_padding).probabilities, whole)


def test_what_the_prediction_costs_is_never_below_the_floor_of_long_documents():
    for world in (lda(10, 10, 0.1), uniform(10, 10, 3, min_length=5, max_length=9)):
        loss = theory.bayes_loss(world, PAPER, n_documents=300, generator=seeded())
        for name in ("squared", "cross_entropy"):
            floor = theory.loss_floor(world, PAPER, regime="full", loss=name).value
            assert getattr(loss, name) > floor + 2 * getattr(loss, f"{name}_error")


def test_the_loss_of_long_documents_is_the_floor():
    clear = theory.bayes_loss(uniform(10, 10, 2), PAPER, n_documents=50, generator=seeded())
    long = lda(4, 5, 0.5, min_length=800, max_length=800)
    nearly = theory.bayes_loss(long, PAPER, n_documents=20, generator=seeded())
    for name, tolerance in (("squared", 1e-3), ("cross_entropy", 0.01)):
        floor = theory.loss_floor(uniform(10, 10, 2), PAPER, regime="full", loss=name).value
        assert getattr(clear, name) == pytest.approx(floor, abs=1e-9)
        floor = theory.loss_floor(long, PAPER, regime="full", loss=name).value
        assert getattr(nearly, name) == pytest.approx(floor, abs=tolerance)


@pytest.mark.parametrize(
    "world", [lda(5, 4, 0.3), uniform(5, 4, 2, word_probabilities=overlapping_words(5, 4))]
)
def test_the_estimated_loss_is_what_the_predictor_loses_on_drawn_targets(world):
    world = dataclasses.replace(world, min_length=10, max_length=20)
    loss = theory.bayes_loss(world, PAPER, n_documents=1_500, generator=seeded(1))
    batch = sampled(world, PAPER, 3_000, seed=2)
    prediction = theory.bayes_predictor(world, PAPER, batch).probabilities
    document, position = batch.chosen.nonzero(as_tuple=True)
    onehot = torch.nn.functional.one_hot(batch.target[document, position], 21)
    counts = torch.bincount(document, minlength=3_000)
    for name, values in (
        ("squared", (prediction - onehot).square().sum(dim=1)),
        ("cross_entropy", -(prediction * onehot).sum(dim=1).log()),
    ):
        sums = torch.zeros(3_000).double().index_add_(0, document, values)
        means = (sums / counts)[counts > 0]
        error = (float(means.var()) / len(means) + getattr(loss, f"{name}_error") ** 2) ** 0.5
        assert getattr(loss, name) == pytest.approx(float(means.mean()), abs=4 * error)
        assert getattr(loss, f"{name}_error") < 0.5 * float(means.std()) / 1_500**0.5 * 1.5
    assert loss.n_documents < 1_500  # documents of ten words often have no masked position


def test_the_loss_does_not_depend_on_the_batch_size_and_only_on_the_generator():
    world = lda(5, 4, 0.3, min_length=30, max_length=30)
    first = theory.bayes_loss(world, PAPER, n_documents=60, generator=seeded(3), batch_size=60)
    again = theory.bayes_loss(world, PAPER, n_documents=60, generator=seeded(3), batch_size=60)
    assert first == again
    split = theory.bayes_loss(world, PAPER, n_documents=60, generator=seeded(3), batch_size=7)
    assert split.cross_entropy == pytest.approx(
        first.cross_entropy, abs=4 * (first.cross_entropy_error + split.cross_entropy_error)
    )


def test_nothing_masked_gives_nan_and_an_empty_prediction():
    world = lda(5, 4, 0.3, min_length=5, max_length=5)
    nothing = Masking(p_mask=0.0)
    loss = theory.bayes_loss(world, nothing, n_documents=3, generator=seeded())
    assert loss.n_documents == 0
    assert math.isnan(loss.squared)
    assert math.isnan(loss.cross_entropy_error)
    assert theory.bayes_predictor(world, nothing, sampled(world, nothing, 3)).probabilities.shape == (0, 21)


def test_undefined_or_unfeasible_predictions_are_refused_with_the_reason():
    strict = Masking(p_random=0.0)
    with pytest.raises(ValueError, match="cannot occur in this world"):
        theory.bayes_predictor(uniform(3, 1, 2), strict, to_batch(torch.tensor([[1, 2, 3, 0]])))
    with pytest.raises(ValueError, match=r"shown ids must lie in 0\.\.3 .* got 1\.\.4"):
        theory.bayes_predictor(uniform(3, 1, 2), PAPER, to_batch(torch.tensor([[1, 4]])))
    with pytest.raises(ValueError, match="at most 1000 words, got one of 1200"):
        theory.bayes_predictor(lda(2, 1, 0.1), PAPER, to_batch(torch.ones(1, 1201, dtype=torch.long)))
    overlapping = overlapping_words(5, 4)
    with pytest.raises(ValueError, match="overlapping topics under LDA have no exact posterior"):
        theory.bayes_predictor(
            lda(5, 4, 0.1, word_probabilities=overlapping), PAPER, to_batch(torch.tensor([[1, 2]]))
        )
    many = uniform(30, 2, 10, word_probabilities=overlapping_words(30, 2))
    with pytest.raises(ValueError, match="30,045,015 possible sets"):
        theory.bayes_predictor(many, PAPER, to_batch(torch.tensor([[1, 2]])))
    with pytest.raises(ValueError, match="must be at least 1, got 0 and 100"):
        theory.bayes_loss(lda(2, 2, 0.1), PAPER, n_documents=0, generator=seeded())
