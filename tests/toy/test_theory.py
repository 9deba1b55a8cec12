"""The theory against independent ways of getting each number."""

import math
from itertools import combinations

import known_toy
import numpy as np
import pytest
import torch
from plain_toy import uniform
from torch import Tensor

from topic_probe.toy import theory
from topic_probe.toy.masking import Masking
from topic_probe.toy.world import World, overlapping_words, zipf_words

PAPER = Masking(p_mask=0.15, p_keep=0.1, p_random=0.1)
ODD = Masking(p_mask=0.4, p_keep=0.2, p_random=0.3)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


# --- Brute force: every document of a world, with what it holds and what it shows. ---


def all_documents(world: World) -> Tensor:
    """Word probabilities of every possible document, a row each; column 0 is [MASK]."""
    sets = combinations(range(world.n_topics), world.topics_per_document)
    rows = [world.topic_words[list(topics)].mean(dim=0) for topics in sets]
    return torch.nn.functional.pad(torch.stack(rows), (1, 0))


def shown(documents: Tensor, masking: Masking) -> Tensor:
    """Frequencies of the tokens that masked documents show, going through the masking case by case."""
    n = documents.shape[1] - 1
    out = (1 - masking.p_mask) * documents + masking.p_mask * masking.p_keep * documents
    out[:, 1:] += masking.p_mask * masking.p_random / n
    out[:, 0] += masking.p_mask * (1 - masking.p_keep - masking.p_random)
    return out


def enumerated_value_loss(W: Tensor, world: World, masking: Masking, bias: Tensor | float = 0.0) -> float:
    """Mean over all documents and all targets of the squared distance to the one-hot target."""
    documents = all_documents(world)
    predictions = shown(documents, masking) @ W.T + bias
    targets = torch.eye(W.shape[0], dtype=torch.float64)
    distances = (predictions.unsqueeze(1) - targets).square().sum(dim=2)  # [document, target]
    return float((documents * distances).sum(dim=1).mean())


def enumerated_attention_loss(W: Tensor, world: World, masking: Masking, alpha: float, beta: float) -> float:
    """The same under Assumption 2, for every document, target and shown token."""
    n, v = world.n_words, world.words_per_topic
    topic = torch.cat([torch.tensor([-1]), torch.arange(n) // v])  # [MASK] is a topic of its own
    attention = torch.where(topic.unsqueeze(0) == topic.unsqueeze(1), alpha, 1.0).double()
    attention.fill_diagonal_(beta)  # [key, query]
    targets = torch.eye(n + 1, dtype=torch.float64)
    total = 0.0
    documents = all_documents(world)
    for p, frequencies in zip(documents, shown(documents, masking), strict=True):
        weights = attention * frequencies.unsqueeze(1)
        predictions = W @ (weights / weights.sum(dim=0))  # [token, query]
        losses = (predictions.T.unsqueeze(0) - targets.unsqueeze(1)).square().sum(dim=2)  # [target, query]
        per_target = (1 - masking.p_keep - masking.p_random) * losses[:, 0]
        per_target = per_target + masking.p_keep * losses.diagonal()
        per_target = per_target + masking.p_random * losses[:, 1:].mean(dim=1)
        total += float(p @ per_target) / len(documents)
    return total


# --- The shared check for optima, and its own test. ---


def assert_minimum(loss, point: Tensor, *, radius: float = 1e-3) -> None:
    """Zero gradient, and no nearby point is better."""
    point = point.detach().clone().requires_grad_()
    here = loss(point)
    (gradient,) = torch.autograd.grad(here, point)
    here = here.detach()
    assert float(gradient.abs().max()) < 1e-9, "the gradient is not zero"
    for seed in range(20):
        step = noise(*point.shape, seed=seed)
        for size in (radius, 30 * radius):
            nearby = float(loss(point.detach() + size * step / step.norm()))
            assert nearby >= float(here) - 1e-14, "a nearby point is better"


def test_the_check_for_minima_refuses_points_that_are_none():
    bowl = lambda x: (x - 2).square().sum()  # noqa: E731
    assert_minimum(bowl, torch.full((3,), 2.0).double())
    with pytest.raises(AssertionError, match="gradient is not zero"):
        assert_minimum(bowl, torch.full((3,), 2.0 + 1e-6).double())
    with pytest.raises(AssertionError, match="a nearby point is better"):
        assert_minimum(lambda x: x[0] ** 2 - x[1] ** 2, torch.zeros(2).double())  # a saddle
    world = uniform(5, 3, 2)
    optimum = theory.optimal_value(world, PAPER)
    with pytest.raises(AssertionError, match="gradient is not zero"):
        assert_minimum(lambda W: theory.value_loss(W, world, PAPER), 1.0001 * optimum)


# --- Value matrices under uniform attention. ---

UNEQUAL = uniform(5, 3, 2, word_probabilities=zipf_words(5, 3))
OVERLAPPING = uniform(5, 3, 2, word_probabilities=overlapping_words(5, 3, overlap=0.3))


@pytest.mark.parametrize(
    ("world", "masking"),
    [
        (uniform(5, 3, 2), PAPER),
        (uniform(10, 10, 2), ODD),
        (uniform(6, 4, 1), ODD),
        (UNEQUAL, PAPER),
        (OVERLAPPING, ODD),
        (uniform(4, 3, 4), PAPER),  # all topics in every document
        (uniform(1, 3, 1), PAPER),
    ],
)
def test_the_optimal_value_is_the_minimum_norm_least_squares_solution_over_all_documents(world, masking):
    documents = all_documents(world)
    solution = torch.linalg.lstsq(shown(documents, masking), documents, driver="gelsd", rcond=1e-10).solution
    assert float((theory.optimal_value(world, masking) - solution.T).abs().max()) < 1e-12


def test_lda_has_the_same_optimum_as_uniform_topics():
    world = World(n_topics=5, words_per_topic=3, alpha=0.3)
    theta = torch.from_numpy(np.random.default_rng(0).dirichlet(np.full(5, 0.3), size=400))
    documents = torch.nn.functional.pad(theta @ world.topic_words, (1, 0))
    solution = torch.linalg.lstsq(shown(documents, PAPER), documents, driver="gelsd", rcond=1e-10).solution
    torch.testing.assert_close(theory.optimal_value(world, PAPER), solution.T, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("world", "masking"),
    [
        (uniform(5, 3, 2), ODD),
        (uniform(4, 2, 4), PAPER),
        (uniform(1, 4, 1), ODD),
        (UNEQUAL, ODD),
        (OVERLAPPING, PAPER),
    ],
)
def test_the_value_loss_is_the_mean_over_all_documents_and_targets(world, masking):
    W, bias = noise(world.vocabulary_size, world.vocabulary_size), noise(world.vocabulary_size, seed=1)
    loss = theory.value_loss(W, world, masking)
    assert float(loss) == pytest.approx(enumerated_value_loss(W, world, masking), rel=1e-12)
    loss = theory.value_loss(W, world, masking, bias=bias)
    assert float(loss) == pytest.approx(enumerated_value_loss(W, world, masking, bias), rel=1e-12)


def test_the_value_loss_of_lda_is_that_of_very_long_sampled_documents():
    world = World(n_topics=6, words_per_topic=4, alpha=0.3, min_length=20_000, max_length=20_000)
    generator = seeded(3)
    batch = PAPER.corrupt(world.documents(120, generator=generator), n_words=24, generator=generator)
    counts = torch.stack([torch.bincount(row, minlength=25) for row in batch.shown]).double()
    W = noise(25, 25) / 5 + theory.optimal_value(world, PAPER)
    predictions = counts / 20_000 @ W.T
    errors = []
    for row, prediction in enumerate(predictions):
        targets = torch.bincount(batch.target[row][batch.chosen[row]], minlength=25).double()
        mean = (targets / targets.sum()) @ prediction
        errors.append(prediction @ prediction - 2 * mean + 1)
    losses = torch.stack(errors)
    standard_error = float(losses.std()) / len(losses) ** 0.5
    assert float(losses.mean()) == pytest.approx(
        float(theory.value_loss(W, world, PAPER)), abs=4 * standard_error
    )
    assert standard_error < 0.05


def lemma1_member(world: World, masking: Masking, u: Tensor) -> Tensor:
    """A matrix with the printed conditions of Lemma 1, its block sums spread at random over the words."""
    T, v, n = world.n_topics, world.words_per_topic, world.n_words
    p_m, p_c, p_r = masking.p_mask, masking.p_keep, masking.p_random
    a = 1 - (1 - p_c) * p_m
    W = noise(n + 1, n + 1, seed=4)
    W[0, 0] = -(1 / (p_m * (1 - p_c - p_r)) - 1) * u[0]
    for i in range(n + 1):
        if i > 0:
            W[i, 0] = -p_r / ((1 - p_c - p_r) * a * n) - (1 / ((1 - p_c - p_r) * p_m) - 1) * u[i]
        for t in range(T):
            block = slice(1 + t * v, 1 + (t + 1) * v)
            own = i > 0 and (i - 1) // v == t
            W[i, block] += (u[i] * v + own / a - W[i, block].sum()) / v
    return W


@pytest.mark.parametrize("masking", [PAPER, ODD])
def test_every_member_of_lemma_1s_family_is_a_minimum_and_its_constants_are_recovered(masking):
    world, u = uniform(5, 3, 2), noise(16, seed=5)
    W = lemma1_member(world, masking, u)
    assert float(theory.value_loss(W, world, masking)) == pytest.approx(1 - 1 / 6, abs=1e-12)
    zero = theory.check_lemma1(0 * W, world, masking)
    torch.testing.assert_close(zero.nearest, theory.optimal_value(world, masking), rtol=0, atol=1e-14)
    assert zero.relative == pytest.approx(1.0)
    assert "relative=1" in repr(zero)
    assert_minimum(lambda W: theory.value_loss(W, world, masking), W)
    check = theory.check_lemma1(W, world, masking)
    assert check.worst < 1e-12
    assert check.relative < 1e-12
    torch.testing.assert_close(check.u, u)


def test_the_nearest_optimum_is_an_optimum_and_the_way_to_it_is_perpendicular_to_the_family():
    world, W = uniform(4, 3, 2), noise(13, 13)
    check = theory.check_lemma1(W, world, ODD)
    assert theory.check_lemma1(check.nearest, world, ODD).worst < 1e-12
    along = lemma1_member(world, ODD, noise(13, seed=6)) - lemma1_member(world, ODD, noise(13, seed=7))
    assert float(((W - check.nearest) * along).sum()) == pytest.approx(0, abs=1e-11)
    nearest = theory.value.nearest_value(W, world, ODD)
    torch.testing.assert_close(nearest, check.nearest, rtol=0, atol=1e-12)
    assert check.distance == pytest.approx(float((W - check.nearest).norm()))
    assert check.relative == pytest.approx(check.distance / float(check.nearest.norm()))


@pytest.mark.parametrize("world", [UNEQUAL, OVERLAPPING])
def test_the_nearest_value_matrix_predicts_every_document_and_no_other_that_does_is_nearer(world):
    W = noise(16, 16)
    documents = all_documents(world)
    seen, nearest = shown(documents, PAPER), theory.value.nearest_value(W, world, PAPER)
    torch.testing.assert_close(seen @ nearest.T, documents, rtol=0, atol=1e-12)
    # Others that predict them all differ by what no document shows; the way there is perpendicular to all of that.
    unseen = torch.linalg.svd(seen).Vh[torch.linalg.matrix_rank(seen, rtol=1e-10) :]
    assert len(unseen) == 16 - 5
    assert float(((W - nearest) @ unseen.T).abs().max()) < 1e-12


def test_a_realisable_embedding_satisfies_theorem_1_and_reaches_the_floor():
    world = uniform(5, 3, 2)
    W_E, bias = known_toy.one_hot_embedding(15, a=0.865), theory.embedding_bias(world, PAPER)
    check = theory.check_theorem1(W_E.T @ W_E, world, PAPER)
    assert check.worst < 1e-14
    assert check.u.abs().max() < 1e-14
    assert_minimum(lambda W_E: theory.value_loss(W_E.T @ W_E, world, PAPER, bias=bias), W_E)
    floor = theory.loss_floor(world, PAPER, regime="embedding")
    loss = theory.value_loss(W_E.T @ W_E, world, PAPER, bias=bias)
    assert float(loss) == pytest.approx(floor.value, abs=1e-14)


def test_the_printed_example_of_theorem_1_misses_its_own_condition_1a_and_the_floor():
    world = uniform(5, 3, 2)
    a, m = 0.865, 0.15 * 0.8
    E = torch.eye(16, dtype=torch.float64) / a
    loss = theory.value_loss(E, world, PAPER, bias=theory.embedding_bias(world, PAPER))
    floor = theory.loss_floor(world, PAPER, regime="embedding").value
    # Only [MASK] is predicted wrongly, with the frequency m / a where it should be 0.
    assert float(loss) == pytest.approx(floor + (m / a) ** 2, abs=1e-14)
    check = theory.check_theorem1(E, world, PAPER)
    assert check.mask_entry > 0.1
    assert max(float(part.abs().max()) for part in (check.same_topic, check.different_topic)) < 1e-14


# --- Attention weights. ---


@pytest.mark.parametrize(
    ("size", "free", "tied"),
    [
        ((10, 10, 2), 5.763, 1.531),
        ((10, 10, 4), 7.716, 1.604),
        ((100, 10, 5), 26.18, 2.589),
        ((1000, 10, 20), 128.5, 22.35),
    ],
)
def test_the_optimal_attention_to_the_own_topic_is_what_an_earlier_calculation_found(size, free, tied):
    # The expected numbers come from a separate program that looked the minimum up on a grid.
    world = uniform(*size)
    digits = 0.5 * 10.0 ** (math.floor(math.log10(free)) - 3)
    optimum = theory.optimal_attention(world, PAPER)
    assert optimum.weighted_mean in theory.attention_bounds(world, PAPER)
    assert optimum.weighted_mean == pytest.approx(free, abs=digits)
    assert optimum.beta == pytest.approx(1.0, abs=1e-9)
    optimum = theory.optimal_attention(world, PAPER, tied=True)
    assert optimum.alpha == optimum.beta == pytest.approx(optimum.weighted_mean, rel=1e-15)
    assert optimum.weighted_mean == pytest.approx(tied, abs=0.5 * 10.0 ** (math.floor(math.log10(tied)) - 3))


@pytest.mark.parametrize(
    ("size", "masking", "alpha", "beta"),
    [
        ((5, 3, 2), PAPER, 1.0, 1.0),
        ((5, 3, 2), ODD, 4.0, 0.3),
        ((4, 2, 4), PAPER, 0.0, 9.0),
        ((3, 3, 1), ODD, 2.5, 2.5),
        ((4, 1, 2), ODD, 4.0, 0.3),
        ((1, 4, 1), PAPER, 0.0, 9.0),
    ],
)
def test_the_attention_loss_is_the_mean_over_documents_targets_and_shown_tokens(size, masking, alpha, beta):
    world = uniform(*size)
    W = noise(world.vocabulary_size, world.vocabulary_size)
    loss = theory.attention_loss(world, masking, alpha=alpha, beta=beta, value=W)
    assert float(loss) == pytest.approx(enumerated_attention_loss(W, world, masking, alpha, beta), rel=1e-12)


@pytest.mark.parametrize("name", ["blocks", "identity", "diagonal"])
def test_named_value_matrices_give_the_loss_of_the_matrix_they_name(name):
    world = uniform(5, 3, 2)
    # For this masking a = 1 − 0.8 · 0.4 = 0.68, and [MASK] takes away p_r / ((1 − p_c − p_r) a n).
    diagonal = torch.eye(16, dtype=torch.float64) / 0.68
    diagonal[0, 0] = 0
    diagonal[1:, 0] = -0.3 / (0.5 * 0.68 * 15)
    matrices = {
        "blocks": theory.optimal_value(world, ODD),
        "identity": torch.eye(16, dtype=torch.float64),
        "diagonal": diagonal,
    }
    loss = theory.attention_loss(world, ODD, alpha=3.0, beta=0.7, value=name)
    expected = enumerated_attention_loss(matrices[name], world, ODD, 3.0, 0.7)
    assert float(loss) == pytest.approx(expected, rel=1e-12)
    if name != "identity":
        assert theory.check_lemma1(matrices[name], world, ODD).worst < 1e-12


@pytest.mark.parametrize("value", ["blocks", "identity"])
def test_the_optimal_attention_is_a_minimum(value):
    world = uniform(10, 10, 2)
    optimum = theory.optimal_attention(world, PAPER, value=value)
    loss = lambda x: theory.attention_loss(world, PAPER, alpha=x[0], beta=x[1], value=value)  # noqa: E731
    assert_minimum(loss, torch.tensor([optimum.alpha, optimum.beta]).double(), radius=1e-2)
    assert optimum.loss == pytest.approx(
        float(loss(torch.tensor([optimum.alpha, optimum.beta]).double())), abs=1e-15
    )
    tied = theory.optimal_attention(world, PAPER, tied=True, value=value)
    along = lambda x: theory.attention_loss(world, PAPER, alpha=x[0], beta=x[0], value=value)  # noqa: E731
    assert_minimum(along, torch.tensor([tied.alpha]).double(), radius=1e-2)
    assert optimum.loss < tied.loss


def test_no_point_of_a_wide_grid_is_better_than_the_optimal_attention():
    weights = torch.logspace(-3, 5, 81, dtype=torch.float64)
    for world in (uniform(10, 10, 2), uniform(4, 2, 3)):
        landscape = theory.attention_landscape(world, PAPER, alphas=weights, betas=weights)
        assert theory.optimal_attention(world, PAPER).loss <= float(landscape.min())


def test_a_free_scale_is_the_best_scale():
    world = uniform(6, 4, 2)
    scale = theory.best_scale(world, PAPER, alpha=2.0, beta=1.5)

    def loss(scale) -> Tensor:
        return theory.attention_loss(world, PAPER, alpha=2.0, beta=1.5, value="identity", scale=scale)

    assert_minimum(loss, scale)
    assert float(loss(None)) == pytest.approx(float(loss(scale)))
    W = float(scale) * torch.eye(25, dtype=torch.float64)
    expected = enumerated_attention_loss(W, world, PAPER, 2.0, 1.5)
    assert float(loss(None)) == pytest.approx(expected, rel=1e-12)
    optimum = theory.optimal_attention(world, PAPER, value="identity", scale=None)
    best = theory.best_scale(world, PAPER, alpha=optimum.alpha, beta=optimum.beta)
    assert optimum.scale == pytest.approx(float(best))
    assert optimum.loss <= theory.optimal_attention(world, PAPER, value="identity", scale=1.0).loss


def test_the_bounds_of_theorem_3_worked_by_hand():
    bounds = theory.attention_bounds(uniform(10, 10, 3), PAPER)
    # a = 0.865, p_m p_r = 0.015: λ1 = 0.88 · 1.135 / 1.73, λ2 = 100 (0.865/0.015 + 1).
    assert bounds.lower == pytest.approx(2 * 0.88 * 1.135 / 1.73)
    assert bounds.upper == pytest.approx(10 * (86.5 / 0.015 + 100))
    assert bounds.unmet == ()
    assert 3.0 in bounds
    assert 1.0 not in bounds
    assert bounds.upper not in bounds
    bounds = theory.attention_bounds(uniform(10, 3, 2), Masking(p_mask=0.6, p_keep=0.2, p_random=0.0))
    named = ("p_mask < 1/2", "p_keep = p_random", "0 < p_random < 1/2", "words_per_topic > (1/a + 1)² + 1")
    assert bounds.unmet == named
    assert bounds.upper == math.inf


# --- Floors. ---


def test_floors_of_uniform_attention_worked_by_hand():
    world = uniform(10, 5, 2)
    for regime in ("embedding", "value"):
        squared = theory.loss_floor(world, PAPER, regime=regime)
        assert squared.value == pytest.approx(1 - 1 / 10)
        assert squared.kind == "minimum"
        entropy = theory.loss_floor(world, PAPER, regime=regime, loss="cross_entropy")
        assert entropy.value == pytest.approx(math.log(10))
        assert entropy.kind == "infimum"
    # Two topics in shares that are uniform on [0, 1]: E[θ² + (1 − θ)²] = 2/3, E[H(θ)] = 1/2.
    lda = World(n_topics=2, words_per_topic=5, alpha=1.0)
    assert theory.loss_floor(lda, PAPER, regime="value").value == pytest.approx(1 - 2 / 15)
    entropy = theory.loss_floor(lda, PAPER, regime="value", loss="cross_entropy")
    assert entropy.value == pytest.approx(0.5 + math.log(5))
    assert entropy.kind == "lower bound"
    assert not entropy.finite_documents


@pytest.mark.parametrize(
    ("world", "masking"),
    [
        (uniform(5, 3, 2), ODD),
        (uniform(4, 2, 4), Masking(p_random=0.0)),
        (uniform(1, 4, 1), PAPER),
        (UNEQUAL, ODD),
        (World(n_topics=5, words_per_topic=3, alpha=0.2), PAPER),
        (World(n_topics=5, words_per_topic=3, alpha=0.2), Masking(p_random=0.0)),
        (World(n_topics=2, words_per_topic=3, alpha=3.0, word_probabilities=zipf_words(2, 3)), ODD),
    ],
)
def test_floors_of_free_attention_are_the_risk_of_the_best_prediction_for_each_shown_token(world, masking):
    n, r = world.n_words, masking.p_random / world.n_words
    theta = world.documents(20_000, generator=seeded(2)).topic_proportions
    p = theta @ world.topic_words
    masked = 1 - masking.p_keep - masking.p_random
    squared = masked * (1 - p.square().sum(dim=1))
    entropy = masked * torch.special.entr(p).sum(dim=1)
    for s in range(n):
        joint = r * p
        joint[:, s] += masking.p_keep * p[:, s]
        total = joint.sum(dim=1)
        q = joint / total.clamp(min=1e-300).unsqueeze(1)
        squared = squared + total * (1 - q.square().sum(dim=1))
        entropy = entropy + total * torch.special.entr(q).sum(dim=1)
    for loss, values in (("squared", squared), ("cross_entropy", entropy)):
        floor = theory.loss_floor(world, masking, regime="full", loss=loss)
        error = float(values.std()) / len(values) ** 0.5
        assert floor.value == pytest.approx(float(values.mean()), abs=4.5 * error + 1e-12)
        assert floor.kind == "lower bound"
        assert floor.finite_documents


@pytest.mark.parametrize(("loss", "world"), [("squared", World()), ("cross_entropy", uniform(10, 10, 2))])
def test_floors_in_the_limits_of_the_masking(world, loss):
    def floor(regime: str, masking: Masking) -> float:
        return theory.loss_floor(world, masking, regime=regime, loss=loss).value

    # Where nothing but [MASK] is shown, attention has nothing to add; where all words are kept, all is known.
    nothing = Masking(p_keep=0.0, p_random=0.0)
    assert floor("full", nothing) == pytest.approx(floor("value", nothing), rel=1e-12)
    assert floor("full", Masking(p_keep=1.0, p_random=0.0)) == pytest.approx(0, abs=1e-12)
    assert floor("full", Masking(p_keep=0.0, p_random=1.0)) == pytest.approx(floor("value", PAPER))
    assert floor("full", PAPER) < floor("value", PAPER)


def test_the_optimal_attention_lies_between_the_floors():
    for size in ((5, 3, 2), (6, 4, 1)):
        world = uniform(*size)
        best = theory.optimal_attention(world, PAPER).loss
        assert theory.loss_floor(world, PAPER, regime="keys").value < best
        gain = theory.loss_floor(world, PAPER, regime="value").value - best
        # A single topic per document leaves attention nothing to find out.
        assert gain == pytest.approx(0, abs=1e-14) if size[2] == 1 else gain > 1e-3


def test_floors_outside_the_theory_are_weaker():
    assert theory.loss_floor(UNEQUAL, PAPER, regime="embedding").kind == "lower bound"
    floor = theory.loss_floor(UNEQUAL, PAPER, regime="value")
    optimum = theory.value_loss(theory.optimal_value(UNEQUAL, PAPER), UNEQUAL, PAPER)
    assert (floor.kind, floor.value) == ("minimum", pytest.approx(float(optimum)))
    hidden = Masking(p_mask=1.0, p_keep=0.0)
    assert theory.loss_floor(uniform(5, 3, 2), hidden, regime="value").kind == "lower bound"


SMALL, ZERO = uniform(5, 3, 2), torch.zeros(16, 16)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda: theory.optimal_value_constants(SMALL, Masking(p_keep=0.5, p_random=0.5)),
            r"share of \[MASK\].* is 0 here",
        ),
        (
            lambda: theory.check_lemma1(ZERO, SMALL, Masking(p_mask=1.0, p_keep=0.0)),
            "no word is ever shown as it is",
        ),
        (lambda: theory.optimal_value_constants(UNEQUAL, PAPER), "this world has word_probabilities"),
        (
            lambda: theory.value_loss(ZERO[:7, :7], SMALL, PAPER),
            r"over the 16 token ids .* got shape \(7, 7\)",
        ),
        (
            lambda: theory.attention_loss(World(), PAPER, alpha=1.0, beta=1.0),
            r"only for uniform topics.* alpha=0.1 \(LDA\)",
        ),
        (lambda: theory.attention_bounds(UNEQUAL, PAPER), "this world has word_probabilities"),
        (lambda: theory.attention_loss(SMALL, PAPER, alpha=-1.0, beta=1.0), "must be numbers of at least 0"),
        (
            lambda: theory.attention_loss(SMALL, PAPER, alpha=math.nan, beta=1.0),
            "must be numbers of at least 0",
        ),
        (lambda: theory.loss_floor(OVERLAPPING, PAPER, regime="value"), "need disjoint topics"),
        (
            lambda: theory.loss_floor(SMALL, PAPER, regime="values"),
            "regime must be one of 'full', 'embedding', 'value'",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_is_undefined_is_refused_with_the_reason(ask, message):
    with pytest.raises(ValueError, match=message):
        ask()
