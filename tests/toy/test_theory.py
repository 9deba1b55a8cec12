"""The theory of endless documents against every document, target and shown token of a world."""

import math
from itertools import combinations

import pytest
import torch
from known_toy import one_hot_embedding
from plain_toy import uniform

from topic_probe.toy import theory
from topic_probe.toy.world import Masking, World, overlapping_words, zipf_words

PAPER = Masking(p_mask=0.15, p_keep=0.1, p_random=0.1)
ODD = Masking(p_mask=0.4, p_keep=0.2, p_random=0.3)
UNEQUAL = uniform(5, 3, 2, word_probabilities=zipf_words(5, 3))
OVERLAPPING = uniform(5, 3, 2, word_probabilities=overlapping_words(5, 3, overlap=0.3))
ATTEND = ("all", "unmasked")


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- Brute force. ---


def all_documents(world):
    """Word probabilities of every possible document, a row each; column 0 is [MASK]."""
    sets = combinations(range(world.n_topics), world.topics_per_document)
    rows = [world.topic_words[list(topics)].mean(dim=0) for topics in sets]
    return torch.nn.functional.pad(torch.stack(rows), (1, 0))


def attended(documents, masking, attend="all"):
    """Frequencies of the tokens that uniform attention sees, going through the masking case by case."""
    seen = (1 - masking.p_mask) * documents  # not chosen
    if attend == "all":
        seen = seen + masking.p_mask * masking.p_keep * documents
        seen[:, 1:] += masking.p_mask * masking.p_random / (documents.shape[1] - 1)
        seen[:, 0] += masking.p_mask * (1 - masking.p_keep - masking.p_random)
    return seen / seen.sum(dim=1, keepdim=True)


def mean_loss(predictions, documents):
    """Mean over all documents and all targets of the squared distance to the one-hot target."""
    targets = torch.eye(documents.shape[1], dtype=torch.float64)
    distances = (predictions.unsqueeze(1) - targets).square().sum(dim=2)  # [document, target]
    return float((documents * distances).sum(dim=1).mean())


def enumerated_attention_loss(W, world, masking, alpha, beta):
    """The same under Assumption 2, for every document, target and shown token."""
    n, v = world.n_words, world.words_per_topic
    topic = torch.cat([torch.tensor([-1]), torch.arange(n) // v])  # [MASK] is a topic of its own
    attention = torch.where(topic.unsqueeze(0) == topic.unsqueeze(1), alpha, 1.0).double()
    attention.fill_diagonal_(beta)  # [key, query]
    targets = torch.eye(n + 1, dtype=torch.float64)
    total = 0.0
    documents = all_documents(world)
    for p, frequencies in zip(documents, attended(documents, masking), strict=True):
        weights = attention * frequencies.unsqueeze(1)
        predictions = W @ (weights / weights.sum(dim=0))  # [token, query]
        losses = (predictions.T.unsqueeze(0) - targets.unsqueeze(1)).square().sum(dim=2)  # [target, query]
        per_target = (1 - masking.p_keep - masking.p_random) * losses[:, 0]
        per_target = per_target + masking.p_keep * losses.diagonal()
        per_target = per_target + masking.p_random * losses[:, 1:].mean(dim=1)
        total += float(p @ per_target) / len(documents)
    return total


def assert_minimum(loss, point, *, radius=1e-3):
    """Zero gradient, and no nearby point is better."""
    point = point.detach().clone().requires_grad_()
    here = loss(point)
    (gradient,) = torch.autograd.grad(here, point)
    assert float(gradient.abs().max()) < 1e-9, "the gradient is not zero"
    for seed in range(20):
        step = noise(*point.shape, seed=seed)
        for size in (radius, 30 * radius):
            nearby = float(loss(point.detach() + size * step / step.norm()))
            assert nearby >= float(here.detach()) - 1e-14, "a nearby point is better"


def test_the_check_for_minima_refuses_points_that_are_none():
    bowl = lambda x: (x - 2).square().sum()  # noqa: E731
    assert_minimum(bowl, torch.full((3,), 2.0).double())
    with pytest.raises(AssertionError, match="gradient is not zero"):
        assert_minimum(bowl, torch.full((3,), 2.0 + 1e-6).double())
    with pytest.raises(AssertionError, match="a nearby point is better"):
        assert_minimum(lambda x: x[0] ** 2 - x[1] ** 2, torch.zeros(2).double())  # a saddle


# --- Value matrices under uniform attention. ---


@pytest.mark.parametrize(
    ("world", "masking", "attend"),
    [
        (uniform(5, 3, 2), PAPER, "all"),
        (uniform(5, 3, 2), ODD, "unmasked"),
        (uniform(6, 4, 1), ODD, "all"),
        (UNEQUAL, PAPER, "all"),
        (OVERLAPPING, ODD, "all"),
        (OVERLAPPING, ODD, "unmasked"),
        (uniform(4, 3, 4), PAPER, "all"),  # all topics in every document
        (uniform(4, 3, 4), PAPER, "unmasked"),
    ],
)
def test_the_optimal_value_is_the_minimum_norm_least_squares_solution_over_all_documents(
    world, masking, attend
):
    documents = all_documents(world)
    seen = attended(documents, masking, attend)
    solution = torch.linalg.lstsq(seen, documents, driver="gelsd", rcond=1e-10).solution
    optimum = theory.optimal_value(world, masking, attend=attend)
    torch.testing.assert_close(optimum, solution.T, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("world", "masking", "attend"),
    [
        (uniform(5, 3, 2), ODD, "all"),
        (uniform(5, 3, 2), ODD, "unmasked"),
        (uniform(4, 2, 4), PAPER, "all"),
        (UNEQUAL, ODD, "unmasked"),
        (OVERLAPPING, PAPER, "all"),
    ],
)
def test_losses_intact_and_ablated_are_means_over_all_documents_and_targets(world, masking, attend):
    W, bias = noise(world.vocabulary_size, world.vocabulary_size), noise(world.vocabulary_size, seed=1)
    documents = all_documents(world)
    outputs = attended(documents, masking, attend) @ W.T
    loss = theory.value_loss(W, world, masking, attend=attend)
    assert float(loss) == pytest.approx(mean_loss(outputs, documents), rel=1e-12)
    biased = theory.value_loss(W, world, masking, bias=bias, attend=attend)
    assert float(biased) == pytest.approx(mean_loss(outputs + bias, documents), rel=1e-12)
    for kind, put_in in (("mean", outputs.mean(dim=0)), ("zero", 0 * bias)):
        effect = theory.ablation_effect(W, world, masking, kind=kind, attend=attend)
        ablated = mean_loss(put_in.expand(len(documents), -1), documents)
        assert float(effect) == pytest.approx(ablated - float(loss), rel=1e-11), kind


def lemma1_member(world, masking, u):
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
    assert_minimum(lambda W: theory.value_loss(W, world, masking), W)
    check = theory.check_lemma1(W, world, masking)
    assert (check.worst, check.relative) == pytest.approx((0, 0), abs=1e-12)
    assert theory.check_lemma1(0 * W, world, masking).relative == pytest.approx(1)


def test_what_is_broken_is_shared_out_between_the_conditions_of_its_row():
    world = uniform(5, 3, 2)
    broken = theory.optimal_value(world, PAPER)
    broken[3, 0] += 0.5
    # The row gives way by u = −c2 · 0.5 / (c2² + n), which leaves 0.5 n / (c2² + n) of the error in its column 0.
    c2 = 1 / (0.8 * 0.15) - 1
    worst = theory.check_lemma1(broken, world, PAPER).worst
    assert worst == pytest.approx(3 * c2 * 0.5 / (c2**2 + 15))  # block sums of v = 3 words


def test_where_attention_sees_no_mask_its_column_is_free_and_block_sums_are_1_or_0():
    world, W = uniform(5, 3, 2), noise(16, 16)
    for t in range(5):
        block = slice(1 + 3 * t, 4 + 3 * t)
        own = (torch.arange(16) > 0) & ((torch.arange(16) - 1) // 3 == t)
        W[:, block] += ((own.double() - W[:, block].sum(dim=1)) / 3).unsqueeze(1)
    assert_minimum(lambda W: theory.value_loss(W, world, ODD, attend="unmasked"), W)
    for check in (theory.check_lemma1, theory.check_theorem1):
        assert check(W, world, ODD, attend="unmasked").worst < 1e-12
    W[3, 1] += 0.6
    moved = theory.check_lemma1(W, world, ODD, attend="unmasked")
    assert moved.worst == pytest.approx(0.6)
    # What is nearest puts the sum right in all three words of the topic alike.
    optimum = W.clone()
    optimum[3, 1:4] -= 0.2
    assert moved.relative == pytest.approx(float((W - optimum).norm() / optimum.norm()))


def test_the_distance_is_that_to_the_least_squares_solution_nearest_to_the_matrix():
    world, W = uniform(4, 3, 2), noise(13, 13)
    documents = all_documents(world)
    seen = attended(documents, ODD)
    step = torch.linalg.lstsq(seen, documents - seen @ W.T, driver="gelsd", rcond=1e-10).solution.T
    assert_minimum(lambda W: theory.value_loss(W, world, ODD), W + step)
    relative = float(step.norm() / (W + step).norm())
    assert theory.check_lemma1(W, world, ODD).relative == pytest.approx(relative)


@pytest.mark.parametrize(("attend", "a"), [("all", 0.865), ("unmasked", 1.0)])
def test_a_realisable_embedding_satisfies_theorem_1_and_reaches_the_floor(attend, a):
    world = uniform(5, 3, 2)
    W_E, bias = one_hot_embedding(15, a=a), theory.embedding_bias(world, PAPER, attend=attend)
    check = theory.check_theorem1(W_E.T @ W_E, world, PAPER, attend=attend)
    assert check.worst == pytest.approx(0, abs=1e-14)

    def loss(W_E):
        return theory.value_loss(W_E.T @ W_E, world, PAPER, bias=bias, attend=attend)

    assert_minimum(loss, W_E)
    floor = theory.loss_floor(world, PAPER, regime="embedding", attend=attend)
    assert float(loss(W_E)) == pytest.approx(floor.value, abs=1e-14)


def test_the_printed_example_of_theorem_1_misses_its_own_condition_1a_and_the_floor():
    world, a, m = uniform(5, 3, 2), 0.865, 0.15 * 0.8
    E = torch.eye(16, dtype=torch.float64) / a
    loss = theory.value_loss(E, world, PAPER, bias=theory.embedding_bias(world, PAPER))
    floor = theory.loss_floor(world, PAPER, regime="embedding").value
    # Only [MASK] is predicted wrongly, with the frequency m / a where it should be 0.
    assert float(loss) == pytest.approx(floor + (m / a) ** 2, abs=1e-14)
    assert theory.check_theorem1(E, world, PAPER).worst > 0.1
    E[0, 0] = 0  # condition 1a
    assert theory.check_theorem1(E, world, PAPER).worst < 1e-14


# --- Attention weights. ---


def closed_form(world, masking):
    """W_V of Theorem 2 entry by entry, also where all documents are alike and it is not the least one."""
    p_m, p_c, p_r = masking.p_mask, masking.p_keep, masking.p_random
    n, shown, a = world.n_words, (1 - p_c - p_r) * p_m, 1 - (1 - p_c) * p_m
    c1, c2, c3 = p_r / ((1 - p_c - p_r) * a * n), 1 / shown - 1, 1 / a
    W = torch.zeros(n + 1, n + 1, dtype=torch.float64)
    W[1:] = -(c1 * c2 + c3) / (c2**2 + n)
    W[1:, 0] = (c2 * c3 - c1 * n) / (c2**2 + n)
    topic = torch.arange(n) // world.words_per_topic
    W[1:, 1:] += c3 / world.words_per_topic * (topic[:, None] == topic).double()
    return W


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
    W = closed_form(world, masking)
    if world.documents_vary:
        torch.testing.assert_close(W, theory.optimal_value(world, masking), rtol=0, atol=1e-15)
    loss = theory.attention_loss(world, masking, alpha=alpha, beta=beta)
    assert float(loss) == pytest.approx(enumerated_attention_loss(W, world, masking, alpha, beta), rel=1e-12)


@pytest.mark.parametrize("size", [(10, 10, 2), (4, 2, 3)])
@pytest.mark.parametrize("tied", [False, True])
def test_the_optimal_attention_is_a_minimum_and_no_point_of_a_wide_grid_is_better(size, tied):
    world, weights = uniform(*size), torch.logspace(-3, 5, 81, dtype=torch.float64)
    optimum = theory.optimal_attention(world, PAPER, tied=tied)

    def loss(x):
        return theory.attention_loss(world, PAPER, alpha=x[..., 0], beta=x[..., -1])

    point = torch.tensor([optimum.alpha] if tied else [optimum.alpha, optimum.beta], dtype=torch.float64)
    assert_minimum(loss, point, radius=1e-2)
    assert optimum.loss == pytest.approx(float(loss(point)), abs=1e-15)
    grid = weights.unsqueeze(1) if tied else torch.cartesian_prod(weights, weights)
    assert float(loss(grid).min()) >= optimum.loss


def test_the_bounds_of_theorem_3_worked_by_hand():
    bounds = theory.attention_bounds(uniform(10, 10, 3), PAPER)
    # a = 0.865, p_m p_r = 0.015: λ1 = 0.88 · 1.135 / 1.73, λ2 = 100 (0.865/0.015 + 1).
    assert bounds.lower == pytest.approx(2 * 0.88 * 1.135 / 1.73)
    assert bounds.upper == pytest.approx(10 * (86.5 / 0.015 + 100))
    assert bounds.unmet == ()
    assert [mean in bounds for mean in (1.0, 3.0, bounds.upper)] == [False, True, False]
    bounds = theory.attention_bounds(uniform(10, 3, 2), Masking(p_mask=0.6, p_keep=0.2, p_random=0.0))
    named = ("p_mask < 1/2", "p_keep = p_random", "0 < p_random < 1/2", "words_per_topic > (1/a + 1)² + 1")
    assert (bounds.unmet, bounds.upper) == (named, math.inf)


# --- Floors. ---


def test_floors_of_uniform_attention_worked_by_hand():
    world = uniform(10, 5, 2)
    # Two topics in shares that are uniform on [0, 1]: E[θ² + (1 − θ)²] = 2/3, E[H(θ)] = 1/2.
    lda = World(n_topics=2, words_per_topic=5, alpha=1.0)
    for one, regime, loss, value, kind in (
        (world, "embedding", "squared", 1 - 1 / 10, "minimum"),
        (world, "value", "cross_entropy", math.log(10), "infimum"),
        (lda, "value", "squared", 1 - 2 / 15, "minimum"),
        (lda, "embedding", "cross_entropy", 0.5 + math.log(5), "lower bound"),
        (UNEQUAL, "embedding", "squared", None, "lower bound"),
    ):
        for attend in ATTEND:
            floor = theory.loss_floor(one, PAPER, regime=regime, loss=loss, attend=attend)
            assert floor.kind == kind
            assert value is None or floor.value == pytest.approx(value)
    hidden = Masking(p_mask=1.0, p_keep=0.0)
    assert theory.loss_floor(uniform(5, 3, 2), hidden, regime="value").kind == "lower bound"


@pytest.mark.parametrize(
    ("world", "masking"),
    [
        (uniform(5, 3, 2), ODD),
        (uniform(4, 2, 4), Masking(p_random=0.0)),
        (UNEQUAL, ODD),
        (World(n_topics=5, words_per_topic=3, alpha=0.2), Masking(p_random=0.0)),
        (World(n_topics=2, words_per_topic=3, alpha=3.0, word_probabilities=zipf_words(2, 3)), ODD),
    ],
)
def test_floors_of_free_attention_are_the_risk_of_the_best_prediction_for_each_shown_token(world, masking):
    n, r = world.n_words, masking.p_random / world.n_words
    theta = world.documents(20_000, generator=torch.Generator().manual_seed(2)).topic_proportions
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


SMALL, ZERO, LDA = uniform(5, 3, 2), torch.zeros(16, 16), World(n_topics=5, words_per_topic=3)
WEIGHTS = {"alpha": 1.0, "beta": 1.0}
HIDDEN = Masking(p_mask=1.0, p_keep=0.0)


@pytest.mark.parametrize(
    ("function", "given", "options", "message"),
    [
        (theory.optimal_value_constants, (SMALL, Masking(0.15, 0.5, 0.5)), {}, r"\[MASK\].* is 0 here"),
        (theory.check_lemma1, (ZERO, SMALL, HIDDEN), {}, "no word is ever shown as it is"),
        (theory.optimal_value_constants, (UNEQUAL, PAPER), {}, "this world has word_probabilities"),
        (theory.value_loss, (ZERO[:7, :7], SMALL, PAPER), {}, r"over the 16 token ids .* got shape \(7, 7\)"),
        (theory.ablation_effect, (ZERO, SMALL, PAPER), {"kind": "median"}, "kind must be one of 'mean', 'zero'"),
        (theory.attention_loss, (LDA, PAPER), WEIGHTS, r"only for uniform topics.* alpha=0.1 \(LDA\)"),
        (theory.attention_bounds, (UNEQUAL, PAPER), {}, "this world has word_probabilities"),
        (theory.attention_bounds, (SMALL, PAPER), {"attend": "unmasked"}, "attention to all positions"),
        (theory.attention_loss, (SMALL, PAPER), WEIGHTS | {"alpha": -1.0}, "must be numbers of at least 0"),
        (theory.attention_loss, (SMALL, PAPER), WEIGHTS | {"alpha": math.nan}, "must be numbers of at least 0"),
        (theory.loss_floor, (OVERLAPPING, PAPER), {"regime": "value"}, "need disjoint topics"),
        (theory.loss_floor, (SMALL, PAPER), {"regime": "values"}, "regime must be one of 'full', 'embedding'"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("unchecked")
def test_what_is_undefined_is_refused_with_the_reason(function, given, options, message):
    with pytest.raises(ValueError, match=message):
        function(*given, **options)
