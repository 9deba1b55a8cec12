"""The loss under the attention of Assumption 2: landscape, numerical optimum, Theorem 3's interval.

A query attends to every position that shows the same token with weight β, to other words of its topic with α,
and to everything else with 1, normalised over the document; ``[MASK]`` is a topic of its own. For finite T, τ and
v the squared loss is a finite sum over what the masked position shows: ``[MASK]``, its own word, or a random
word inside or outside the topics of the document. In each case the attended frequencies are ::

    y = (μ e_0 + ε 1 + δ 1_S + g (α − 1) 1_topic(s) + g (β − α) e_s) / Z

with s the shown word, S the words of the document's topics, δ = a / (τv), and g the frequency of s. Its first
and second moments over documents are combinations of the all-ones, the same-topic and the identity matrix, so
that a value matrix enters only through nine sums, whatever its size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log
from typing import Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from topic_probe.toy.masking import Masking
from topic_probe.toy.theory.value import check_over_tokens, optimal_value_constants
from topic_probe.toy.world import World

ValueMatrix = Literal["blocks", "identity", "diagonal"]
"""``blocks``: the optimum of Theorem 2. ``identity``: the identity over all tokens, ``[MASK]`` included.
``diagonal``: the optimum of Lemma 1 that puts everything on the diagonal, 1/a on words, −c1 from ``[MASK]``."""

Value = ValueMatrix | Float[Tensor, "token token"]
"""A value matrix by its name, or any over the token ids."""

Weight = float | Float[Tensor, "*#grid"]
"""An attention weight, or one for every point of a grid; shapes broadcast."""


def attention_loss(
    world: World,
    masking: Masking,
    *,
    alpha: Weight,
    beta: Weight,
    value: Value = "blocks",
    scale: Weight | None = 1.0,
) -> Float64[Tensor, "*grid"]:
    """The squared loss at masked positions for attention weights (α, β), exact and differentiable.

    Holds under Assumptions 1 and 2 for uniform topics of any finite T, τ and v, without a bias. α = β = 1 is
    uniform attention. Positive and finite.

    Args:
        world: Uniform topics.
        masking: The masking scheme.
        alpha: Attention to other words of the same topic relative to other topics, at least 0.
        beta: Attention to the same token relative to other topics, at least 0. Shapes broadcast.
        value: W_V by name, or any matrix over the token ids.
        scale: Factor on W_V; None takes the best factor for each (α, β).

    Example:
        >>> world, masking = tp.World(n_topics=4, words_per_topic=5, topics_per_document=2), tp.Masking()
        >>> uniform = tp.theory.attention_loss(world, masking, alpha=1.0, beta=1.0)
        >>> least = tp.theory.value_loss(tp.theory.optimal_value(world, masking), world, masking)
        >>> abs(float(uniform - least)) < 1e-12  # W_V of Theorem 2 under uniform attention
        True
    """
    square, overlap = _prediction_moments(world, masking, _weights(alpha), _weights(beta), value)
    if scale is None:
        return 1 - overlap**2 / square
    factor = torch.as_tensor(scale, dtype=torch.float64)
    return factor**2 * square - 2 * factor * overlap + 1


def best_scale(
    world: World, masking: Masking, *, alpha: Weight, beta: Weight, value: Value = "identity"
) -> Float64[Tensor, "*grid"]:
    """The factor on W_V that makes :func:`attention_loss` smallest at each (α, β).

    Example:
        >>> world = tp.World(n_topics=4, words_per_topic=5, topics_per_document=2)
        >>> scale = tp.theory.best_scale(world, tp.Masking(), alpha=1.0, beta=1.0, value="blocks")
        >>> round(float(scale), 6)  # an optimum is not improved by a factor
        1.0
    """
    square, overlap = _prediction_moments(world, masking, _weights(alpha), _weights(beta), value)
    return overlap / square


def attention_landscape(
    world: World,
    masking: Masking,
    *,
    alphas: Float[Tensor, "alpha"],
    betas: Float[Tensor, "beta"],
    value: Value = "blocks",
    scale: float | None = 1.0,
) -> Float64[Tensor, "alpha beta"]:
    """The loss over a grid of attention weights (Appendix D.5), a row for every α."""
    grid = alphas.unsqueeze(1), betas.unsqueeze(0)
    return attention_loss(world, masking, alpha=grid[0], beta=grid[1], value=value, scale=scale)


def weighted_mean(world: World, *, alpha: Weight, beta: Weight) -> Float64[Tensor, "*grid"]:
    """(v − 1)/v · α + β/v, the mean attention to the words of the query's topic relative to other topics.

    Example:
        >>> float(tp.theory.weighted_mean(tp.World(words_per_topic=10), alpha=2.0, beta=7.0))  # (9 · 2 + 7) / 10
        2.5
    """
    v = world.words_per_topic
    return ((v - 1) * _weights(alpha) + _weights(beta)) / v


@dataclass(frozen=True)
class AttentionBounds:
    """Theorem 3's interval for the weighted mean (v − 1)/v · α + β/v of the optimal attention.

    Attributes:
        lower: λ1 (τ − 1).
        upper: λ2 T; infinite where no word is ever random.
        unmet: The assumptions that the world or the masking scheme violates; the theorem then says nothing,
            though the interval may still hold. It is a limit as T and τ grow with τ = o(T), so an empty tuple
            does not make it exact for a finite world.
    """

    lower: float
    upper: float
    unmet: tuple[str, ...]

    def __contains__(self, mean: float) -> bool:
        return self.lower < mean < self.upper


def attention_bounds(world: World, masking: Masking) -> AttentionBounds:
    """The interval (λ1 (τ − 1), λ2 T) of Theorem 3, with the assumptions that do not hold.

    Example:
        >>> world = tp.World(n_topics=10, words_per_topic=10, topics_per_document=3)
        >>> bounds = tp.theory.attention_bounds(world, tp.Masking(p_mask=0.25, p_keep=0.2, p_random=0.2))  # a = 0.8
        >>> round(bounds.lower, 6), round(bounds.upper, 6)  # λ1 = 0.6375, λ2 = 1700
        (1.275, 17000.0)
        >>> bounds.unmet
        ()
    """
    tau = required_uniform_topics(world, "the interval of Theorem 3")
    p_mask, p_keep, p_random = masking.p_mask, masking.p_keep, masking.p_random
    a, replaced = masking.genuine_share, p_mask * masking.p_random
    lambda1 = (a + replaced) * (1 + (1 - p_keep) * p_mask) / (2 * a) if a > 0 else float("inf")
    lambda2 = 100 * (a / replaced + 1) if replaced > 0 else float("inf")
    conditions = {
        "p_mask < 1/2": p_mask < 0.5,
        "p_keep = p_random": p_keep == p_random,
        "0 < p_random < 1/2": 0 < p_random < 0.5,
        "words_per_topic > (1/a + 1)² + 1": a > 0 and world.words_per_topic > (1 / a + 1) ** 2 + 1,
    }
    unmet = tuple(name for name, holds in conditions.items() if not holds)
    return AttentionBounds(lower=lambda1 * (tau - 1), upper=lambda2 * world.n_topics, unmet=unmet)


@dataclass(frozen=True)
class AttentionOptimum:
    """The attention weights of the smallest loss.

    Attributes:
        alpha: Attention to other words of the same topic. Arbitrary where v = 1 (there are none).
        beta: Attention to the same token.
        weighted_mean: (v − 1)/v · α + β/v, Theorem 3's quantity.
        loss: The loss there.
        scale: The factor on W_V.
    """

    alpha: float
    beta: float
    weighted_mean: float
    loss: float
    scale: float


def optimal_attention(
    world: World,
    masking: Masking,
    *,
    tied: bool = False,
    value: Value = "blocks",
    scale: float | None = 1.0,
) -> AttentionOptimum:
    """The numerical minimum of :func:`attention_loss`, over free α and β or (``tied``) over α = β.

    The minimum is looked for on a logarithmic grid from 1e-6 to 1e8 and refined by Newton's method in log α and
    log β; a weight whose best value is 0 comes out as a very small number. With Theorem 2's matrix the optimum has
    β = 1: only a query that shows ``[MASK]`` sees β by itself, and for it uniform attention already
    predicts p.

    Example:
        >>> world = tp.World(n_topics=10, words_per_topic=10, topics_per_document=4)
        >>> best = tp.theory.optimal_attention(world, tp.Masking())
        >>> round(best.beta, 6), best.weighted_mean in tp.theory.attention_bounds(world, tp.Masking())
        (1.0, True)
    """

    def loss(logs: Tensor) -> Tensor:
        weights = logs.exp()
        return attention_loss(
            world, masking, alpha=weights[..., 0], beta=weights[..., -1], value=value, scale=scale
        )

    axis = torch.linspace(-6, 8, 71, dtype=torch.float64) * log(10)
    grid = axis.unsqueeze(1) if tied else torch.cartesian_prod(axis, axis)
    logs = _newton(loss, grid[loss(grid).argmin()])
    alpha, beta = float(logs[0].exp()), float(logs[-1].exp())
    factor = (
        scale if scale is not None else float(best_scale(world, masking, alpha=alpha, beta=beta, value=value))
    )
    mean = float(weighted_mean(world, alpha=alpha, beta=beta))
    return AttentionOptimum(alpha, beta, mean, float(loss(logs)), factor)


@dataclass(frozen=True)
class _ValueSums:
    """All that the loss sees of W: sums over words of W and of G = WᵀW, 0-d float64 tensors.

    ``same_topic`` adds up the pairs of one topic, the diagonal included; ``mask`` is column 0.
    """

    mask: Float64[Tensor, ""]
    diagonal: Float64[Tensor, ""]
    same_topic: Float64[Tensor, ""]
    everything: Float64[Tensor, ""]
    square_mask: Float64[Tensor, ""]
    square_mask_words: Float64[Tensor, ""]
    square_diagonal: Float64[Tensor, ""]
    square_same_topic: Float64[Tensor, ""]
    square_everything: Float64[Tensor, ""]


def _value_sums(world: World, masking: Masking, value: Value) -> _ValueSums:
    """The sums of a value matrix; those of the named ones cost the same for any vocabulary."""
    if isinstance(value, Tensor):
        return _sums_of_matrix(value, world)
    if value == "identity":
        return _sums_of_pattern(world, mask=0.0, diagonal=1.0, same=0.0, different=0.0, corner=1.0)
    constants = optimal_value_constants(world, masking)
    if value == "diagonal":
        return _sums_of_pattern(world, mask=-constants.c1, diagonal=constants.c3, same=0.0, different=0.0)
    if value == "blocks":
        same, different = constants.same_topic, constants.different_topic
        return _sums_of_pattern(
            world, mask=constants.mask_column, diagonal=same, same=same, different=different
        )
    raise ValueError(
        f"value must be 'blocks', 'identity', 'diagonal' or a matrix over the token ids, got {value!r}"
    )


def _sums_of_pattern(
    world: World, *, mask: float, diagonal: float, same: float, different: float, corner: float = 0.0
) -> _ValueSums:
    """Sums of the matrix with W_00 = corner, W_i0 = mask, and three values for pairs of words."""
    n, v, T = world.n_words, world.words_per_topic, world.n_topics
    own, other = diagonal + (v - 1) * same, v * different
    row = own + (T - 1) * other
    sums = (
        n * mask, n * diagonal, n * own, n * row,
        n * mask**2 + corner**2, n * mask * row,
        n * (diagonal**2 + (v - 1) * same**2 + (n - v) * different**2),
        n * (own**2 + (T - 1) * other**2), n * row**2,
    )  # fmt: skip
    return _ValueSums(*(torch.tensor(total, dtype=torch.float64) for total in sums))


def _sums_of_matrix(W: Float[Tensor, "token token"], world: World) -> _ValueSums:
    """Sums of any matrix, differentiable in it."""
    check_over_tokens(W, world)
    n, v, T = world.n_words, world.words_per_topic, world.n_topics
    W = W.cpu().double()
    mask, words = W[:, 0], W[:, 1:]
    topics, rows = words.reshape(n + 1, T, v).sum(dim=2), words.sum(dim=1)
    own = topics[1:].reshape(T, v, T).diagonal(dim1=0, dim2=2)
    return _ValueSums(
        mask[1:].sum(), words[1:].trace(), own.sum(), rows[1:].sum(),
        mask.square().sum(), (mask * rows).sum(), words.square().sum(), topics.square().sum(), rows.square().sum(),
    )  # fmt: skip


@dataclass(frozen=True)
class _Case:
    """One thing that a masked position may show.

    Attributes:
        probability: Of the case, given that the position is masked.
        frequency: g, of the shown word s in the masked document; 0 where ``[MASK]`` is shown, as the extra
            attention of a word does not exist there.
        company: P(a topic is in the document), for the topic of s and for another.
        target: P(the target is in topic(s)), and P(it is in one given other topic).
        kept: Whether the target is s itself.
    """

    probability: float
    frequency: float
    company: tuple[float, float] = (0.0, 0.0)
    target: tuple[float, float] = (0.0, 0.0)
    kept: bool = False


def _cases(world: World, masking: Masking, tau: int) -> tuple[_Case, ...]:
    """``[MASK]``, the word itself, a random word of the document's topics, a random word of others."""
    T, p_keep, p_random = world.n_topics, masking.p_keep, masking.p_random
    outside = masking.random_share(world)
    inside = outside + masking.genuine_share / (tau * world.words_per_topic)
    others = max(T - 1, 1)  # with a single topic there is no other, and what is divided here is 0
    near, far = (1.0, (tau - 1) / others), (0.0, tau / others)
    return (
        _Case(1 - p_keep - p_random, 0.0),
        _Case(p_keep, inside, company=near, target=(1.0, 0.0), kept=True),
        _Case(p_random * tau / T, inside, company=near, target=(1 / tau, near[1] / tau)),
        _Case(p_random * (1 - tau / T), outside, company=far, target=(0.0, 1 / others)),
    )


def _prediction_moments(
    world: World,
    masking: Masking,
    alpha: Float64[Tensor, "*#grid"],
    beta: Float64[Tensor, "*#grid"],
    value: Value,
) -> tuple[Float64[Tensor, "*grid"], Float64[Tensor, "*grid"]]:
    """E|W y|² and E[(W y)_target] at masked positions; the loss is the first − 2 · the second + 1."""
    tau = required_uniform_topics(world, "the loss over attention weights")
    T, v, n = world.n_topics, world.words_per_topic, world.n_words
    W, share = _value_sums(world, masking, value), masking.mask_share
    eps, delta, present = masking.random_share(world), masking.genuine_share / (tau * v), tau / T
    pair = (tau - 1) / max(T - 1, 1)  # P(a topic is in the document | another one is)
    other, square_other = W.everything - W.same_topic, W.square_everything - W.square_same_topic
    square = overlap = torch.zeros((), dtype=torch.float64)
    for case in _cases(world, masking, tau):
        topic, word = case.frequency * (alpha - 1), case.frequency * (beta - alpha)
        seen = share * (beta if case.frequency == 0 else 1.0)
        Z = seen + 1 - share + v * topic + word
        bonus = topic / T + word / n  # what a word gets on average from being s, or of its topic
        moment = (
            seen**2 * W.square_mask
            + 2 * seen * (eps + delta * present + bonus) * W.square_mask_words
            + (eps**2 + 2 * eps * (delta * present + bonus)) * W.square_everything
            + delta**2 * present * (W.square_same_topic + pair * square_other)
            + 2 * delta * bonus * (case.company[0] * W.square_same_topic + case.company[1] * square_other)
            + (topic**2 / T + 2 * topic * word / n) * W.square_same_topic
            + word**2 / n * W.square_diagonal
        )
        target = case.target[0] * W.same_topic + case.target[1] * other
        score = (
            seen * W.mask
            + eps * W.everything
            + delta * (W.same_topic + pair * other)
            + topic * target
            + word * (W.diagonal if case.kept else target / v)
        ) / n
        square = square + case.probability * moment / Z**2
        overlap = overlap + case.probability * score / Z
    return square, overlap


def _weights(weights: float | Float[Tensor, "*grid"]) -> Float64[Tensor, "*grid"]:
    tensor = torch.as_tensor(weights, dtype=torch.float64)
    if not bool((tensor >= 0).all()):
        raise ValueError("attention weights alpha and beta must be numbers of at least 0")
    return tensor


def _newton(
    loss: Callable[[Float64[Tensor, "weight"]], Float64[Tensor, ""]], start: Float64[Tensor, "weight"]
) -> Float64[Tensor, "weight"]:
    """A minimum near the start: Newton steps with the absolute curvature, halved until they improve.

    Close to the minimum the loss is flat to rounding, so a step that leaves it equal counts as an improvement
    when it makes the gradient smaller.
    """
    point = start
    for _ in range(100):
        here, gradient, curvature = _derivatives(loss, point)
        sizes, axes = torch.linalg.eigh(curvature)
        # The smallest curvature keeps flat directions (α when v = 1) where they are.
        step = axes @ ((axes.T @ gradient) / sizes.abs().clamp(min=1e-9))
        step = step / max(1.0, float(step.norm()))
        while float(step.norm()) > 1e-12:
            there, slope, _ = _derivatives(loss, point - step)
            change = float(there - here)
            if change < -1e-13 or (change < 1e-13 and slope.norm() < gradient.norm()):
                break
            step = step / 2
        else:
            return point
        point = point - step
    return point


def _derivatives(
    loss: Callable[[Float64[Tensor, "weight"]], Float64[Tensor, ""]], point: Float64[Tensor, "weight"]
) -> tuple[Float64[Tensor, ""], Float64[Tensor, "weight"], Float64[Tensor, "weight weight"]]:
    """The loss, its gradient and its Hessian."""
    with torch.enable_grad():
        x = point.detach().clone().requires_grad_()
        value = loss(x)
        (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        rows = [torch.autograd.grad(entry, x, retain_graph=True)[0] for entry in gradient]
    return value.detach(), gradient.detach(), torch.stack(rows)


def required_uniform_topics(world: World, what: str) -> int:
    """τ, refusing worlds other than the paper's Section 3.1."""
    if world.topics_per_document is None:
        raise ValueError(
            f"{what} is a finite sum only for uniform topics, and this world has alpha={world.alpha} (LDA); "
            "use a world with topics_per_document"
        )
    if world.word_probabilities is not None:
        raise ValueError(
            f"{what} needs disjoint topics of equally likely words, and this world has word_probabilities; "
            "use a world without them"
        )
    return world.topics_per_document
