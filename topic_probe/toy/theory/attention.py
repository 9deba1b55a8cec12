"""The loss under the attention of Assumption 2: landscape, numerical optimum, Theorem 3's interval.

A query attends to every position that shows the same token with weight β, to other words of its topic with α,
and to everything else with 1, normalised over the document; ``[MASK]`` is a topic of its own. For finite T, τ and
v the squared loss is a finite sum over what the masked position shows: ``[MASK]``, its own word, or a random
word inside or outside the topics of the document. In each case the attended frequencies are a combination of five
vectors, with s the shown word, S the words of the document's topics, o other words of the topic of s, δ = a / (τv),
and g the frequency of s::

    y = c·u / Z,    u = (e_0, 1, 1_S, 1_o, e_s),    c = (μ, ε, δ, g (α − 1), g (β − 1)),    Z = Σ c·u

and the loss E|W y − e_target|² is ``cᵀ Γ c / Z² − 2 c·h / Z + 1`` with the tables Γ = E[(W u)(W u)ᵀ] and
h = E[(W u)_target]. No topic and no word is special, so all that these see of W, the W_V of Theorem 2, are its sums
and those of WᵀW over words, over pairs of words, and over pairs of one topic.
"""

from dataclasses import dataclass
from math import log
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.autograd.functional import hessian, jacobian

from topic_probe.toy.theory.value import optimal_value_constants
from topic_probe.toy.world import Attend, Masking, World

Weight = float | Float[Tensor, "*#grid"]


def attention_loss(
    world: World, masking: Masking, *, alpha: Weight, beta: Weight, attend: Attend = "all"
) -> Float64[Tensor, "*grid"]:
    """The squared loss at masked positions for W_V of Theorem 2 and attention weights (α, β); exact, differentiable.

    Holds under Assumptions 1 and 2 for uniform topics of any finite T, τ and v. α is attention to other words of the
    same topic and β to the same token, both at least 0 and relative to other topics: α = β = 1 is uniform attention.
    Shapes broadcast. Assumption 2 is about attention to all positions; ValueError for ``attend="unmasked"``.

    Example:
        >>> world, masking = tp.World(n_topics=4, words_per_topic=5, topics_per_document=2), tp.Masking()
        >>> uniform = tp.theory.attention_loss(world, masking, alpha=1.0, beta=1.0)
        >>> least = tp.theory.value_loss(tp.theory.optimal_value(world, masking), world, masking)
        >>> abs(float(uniform - least)) < 1e-12  # W_V of Theorem 2 under uniform attention
        True
    """
    tau = _required_assumptions(world, attend)
    alpha, beta, v = _weight(alpha), _weight(beta), world.words_per_topic
    masked, random = masking.mask_share, masking.random_share(world)
    genuine = masking.genuine_share / (tau * v)
    sizes = torch.tensor([1, world.n_words, tau * v, v - 1, 1], dtype=torch.float64)
    loss = one = torch.ones_like(alpha + beta)
    for case in _cases(world, masking, tau):
        gram, at_target = _tables(case, world, masking, tau)
        g = case.frequency
        weights = (masked * beta if g == 0 else masked, random, genuine, g * (alpha - 1), g * (beta - 1))
        c = torch.stack([weight * one for weight in weights], dim=-1)
        y = c / (c @ sizes).unsqueeze(-1)
        loss = loss + case.probability * (((y @ gram) * y).sum(-1) - 2 * y @ at_target)
    return loss


def weighted_mean(world: World, *, alpha: Weight, beta: Weight) -> Float64[Tensor, "*grid"]:
    """(v − 1)/v · α + β/v, the mean attention to the words of the query's topic relative to other topics.

    Example:
        >>> float(tp.theory.weighted_mean(tp.World(words_per_topic=10), alpha=2.0, beta=7.0))  # (9 · 2 + 7) / 10
        2.5
    """
    v = world.words_per_topic
    return ((v - 1) * _weight(alpha) + _weight(beta)) / v


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


def attention_bounds(world: World, masking: Masking, *, attend: Attend = "all") -> AttentionBounds:
    """The interval (λ1 (τ − 1), λ2 T) of Theorem 3, with the assumptions that do not hold.

    Example:
        >>> world = tp.World(n_topics=10, words_per_topic=10, topics_per_document=3)
        >>> bounds = tp.theory.attention_bounds(world, tp.Masking(p_mask=0.25, p_keep=0.2, p_random=0.2))  # a = 0.8
        >>> round(bounds.lower, 6), round(bounds.upper, 6)  # λ1 = 0.6375, λ2 = 1700
        (1.275, 17000.0)
        >>> bounds.unmet
        ()
    """
    tau = _required_assumptions(world, attend)
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
    """

    alpha: float
    beta: float
    weighted_mean: float
    loss: float


def optimal_attention(
    world: World, masking: Masking, *, tied: bool = False, attend: Attend = "all"
) -> AttentionOptimum:
    """The numerical minimum of :func:`attention_loss`, over free α and β or (``tied``) over α = β.

    The minimum is looked for on a logarithmic grid from 1e-6 to 1e8, then on ever finer ones around the best point, and
    refined by Newton's method in log α and log β; a weight whose best value is 0 comes out as a very small number.
    The optimum has β = 1: only a query that shows ``[MASK]`` sees β by itself, and for it uniform attention already
    predicts p.

    Example:
        >>> world = tp.World(n_topics=10, words_per_topic=10, topics_per_document=4)
        >>> best = tp.theory.optimal_attention(world, tp.Masking())
        >>> round(best.beta, 6), best.weighted_mean in tp.theory.attention_bounds(world, tp.Masking())
        (1.0, True)
    """

    def loss(logs: Float64[Tensor, "*grid weight"]) -> Float64[Tensor, "*grid"]:
        alpha, beta = logs.exp()[..., 0], logs.exp()[..., -1]
        return attention_loss(world, masking, alpha=alpha, beta=beta, attend=attend)

    logs = torch.full((1 if tied else 2,), log(10), dtype=torch.float64)
    for zoom in range(4):
        axis = torch.linspace(-7, 7, 71, dtype=torch.float64) * log(10) / 10**zoom
        grid = logs + (axis.unsqueeze(1) if tied else torch.cartesian_prod(axis, axis))
        logs = grid[loss(grid).argmin()]
    # Here the loss is flat to rounding, but its gradient is not.
    for _ in range(4):
        slope, curvature = jacobian(loss, logs), hessian(loss, logs)  # type: ignore[no-untyped-call]
        logs = logs - torch.linalg.pinv(curvature, rtol=1e-9) @ slope
    alpha, beta = float(logs[0].exp()), float(logs[-1].exp())
    mean = float(weighted_mean(world, alpha=alpha, beta=beta))
    return AttentionOptimum(alpha, beta, mean, float(loss(logs)))


class _Case(NamedTuple):
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


def _tables(
    case: _Case, world: World, masking: Masking, tau: int
) -> tuple[Float64[Tensor, "vector vector"], Float64[Tensor, "vector"]]:
    """Γ and h of a case, over e_0, 1, 1_S, 1_o and e_s."""
    T, v, n = world.n_topics, world.words_per_topic, world.n_words
    constants = optimal_value_constants(world, masking)
    mask, same, different = constants.mask_column, constants.same_topic, constants.different_topic
    pair = (tau - 1) / max(T - 1, 1)  # P(a topic is in the document | another one is)
    # Sums of W over the words (its column of [MASK], its diagonal), over pairs of one topic, and over all other pairs.
    row = v * same + (n - v) * different
    own = n * v * same
    other = n * row - own
    # The same of WᵀW: [MASK] with itself and with words, all pairs, pairs of one topic, the diagonal.
    topics = (v * same) ** 2 + (T - 1) * (v * different) ** 2
    q, r, e, t, d = n * mask**2, n * mask * row, n * row**2, n * topics, n * topics / v
    both = (t + pair * (e - t)) * tau / T
    company = case.company[0] * t + case.company[1] * (e - t)
    mates = v - 1
    gram = [
        [q, r, r * tau / T, r * mates / n, r / n],
        [r, e, e * tau / T, e * mates / n, e / n],
        [r * tau / T, e * tau / T, both, company * mates / n, company / n],
        [r * mates / n, e * mates / n, company * mates / n, (t * (v - 2) + d) / n, (t - d) / n],
        [r / n, e / n, company / n, (t - d) / n, d / n],
    ]
    target = case.target[0] * own + case.target[1] * other
    itself = n * same if case.kept else target / v
    at_target = [n * mask, n * row, own + pair * other, target - itself, itself]
    return torch.tensor(gram, dtype=torch.float64), torch.tensor(at_target, dtype=torch.float64) / n


def _weight(weight: float | Float[Tensor, "*grid"]) -> Float64[Tensor, "*grid"]:
    tensor = torch.as_tensor(weight, dtype=torch.float64)
    if not bool((tensor >= 0).all()):
        raise ValueError("attention weights alpha and beta must be numbers of at least 0")
    return tensor


def _required_assumptions(world: World, attend: Attend) -> int:
    """τ, refusing worlds other than the paper's Section 3.1 and attention that does not see all positions."""
    if attend != "all":
        raise ValueError(
            "Assumption 2 and Theorem 3 are about attention to all positions: their terms are [MASK] and random words "
            f"among what is attended to, and attend={attend!r} sees neither"
        )
    if world.topics_per_document is None:
        raise ValueError(
            "the loss over attention weights is a finite sum only for uniform topics, and this world has "
            f"alpha={world.alpha} (LDA); use a world with topics_per_document"
        )
    if world.word_probabilities is not None:
        raise ValueError(
            "the theory of attention weights needs disjoint topics of equally likely words, and this world has "
            "word_probabilities; use a world without them"
        )
    return world.topics_per_document
