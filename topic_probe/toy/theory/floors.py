"""The lowest loss each training regime can have when documents are infinitely long (Assumption 1).

Two predictors matter. Under *uniform* attention all positions of a document get one prediction, and the best is
the word probabilities p of the document. With *free* attention the token shown at the masked position helps as
well: a shown word s was either kept (p_c p_s) or put there at random (p_r / n), so the best prediction is ::

    q_i = p_i (p_c [i = s] + p_r / n) / (p_c p_s + p_r / n)        and p where [MASK] is shown.
"""

from dataclasses import dataclass
from math import log, pi
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from topic_probe.toy.theory.worlds import (
    MaskingScheme,
    World,
    dirichlet_parameter,
    genuine_share,
    n_words,
    original_frequencies,
    topic_moments,
    topic_words,
)

Loss = Literal["squared", "cross_entropy"]

UNIFORM_REGIMES = ("embedding", "value")
FREE_REGIMES = ("full", "attention", "keys", "two-stage")


@dataclass(frozen=True)
class LossFloor:
    """The lowest loss of a regime and what exactly is claimed about it.

    Attributes:
        value: The number.
        kind: ``"minimum"``: reached by some parameters. ``"infimum"``: approached as parameters grow, never
            reached. ``"lower bound"``: no parameters get below it; how close they get is not claimed.
        statement: What the number is.
        finite_documents: Whether it bounds the expected loss on documents of finite length as well. Not under
            uniform attention: there the shown word of the masked position is itself part of the average, and
            tells something about a short document's answer.
    """

    value: float
    kind: Literal["minimum", "infimum", "lower bound"]
    statement: str
    finite_documents: bool


def loss_floor(world: World, masking: MaskingScheme, *, regime: str, loss: Loss = "squared") -> LossFloor:
    """The lowest loss of a training regime on infinitely long documents of this world.

    Under uniform attention (*embedding*, *value*) the squared loss has the minimum 1 − E|p|² (Lemma 1) and
    cross-entropy is bounded by the entropy E[H(p)]: an infimum for uniform topics, whose optimal logits are
    at infinity; a mere bound for LDA, where logits linear in the frequencies cannot follow log p. In the other
    regimes the bound is the best possible prediction from document and shown token, which one layer
    need not reach. For *keys*, ``optimal_attention(world, masking).loss`` is the best within Assumption 2.

    Args:
        world: The distribution of documents, with disjoint topics.
        masking: The masking scheme.
        regime: One of embedding, value, full, attention, keys, two-stage.
        loss: Squared distance to the one-hot vector, or cross-entropy in nats.
    """
    if regime not in UNIFORM_REGIMES + FREE_REGIMES:
        known = ", ".join(UNIFORM_REGIMES + FREE_REGIMES)
        raise ValueError(f"regime must be one of {known}, got {regime!r}")
    _require_disjoint(world)
    if regime in FREE_REGIMES:
        value = _free_squared(world, masking) if loss == "squared" else _free_entropy(world, masking)
        return LossFloor(value, "lower bound", "best prediction from document and shown token", True)
    value = 1 - _square_norm(world) if loss == "squared" else _entropy(world)
    kind = _uniform_kind(world, masking, regime=regime, loss=loss)
    name = "1 − E|p|²" if loss == "squared" else "E[H(p)]"
    return LossFloor(value, kind, f"{name}: best prediction from the document alone", False)


def _uniform_kind(
    world: World, masking: MaskingScheme, *, regime: str, loss: Loss
) -> Literal["minimum", "infimum", "lower bound"]:
    """Whether uniform attention reaches the best prediction p."""
    # The bias of the embedding regime and the symmetry of W_Eᵀ W_E are made for equally likely words.
    limited = regime == "embedding" and world.word_probabilities is not None
    if genuine_share(masking) <= 0 or limited:
        return "lower bound"
    if loss == "squared":
        return "minimum"
    return "infimum" if world.topics_per_document is not None else "lower bound"


def _square_norm(world: World) -> float:
    """E|p|²."""
    words = original_frequencies(world)
    return float(((words @ topic_moments(world)) * words).sum())


def _entropy(world: World) -> float:
    """E[H(p)] = E[H(θ)] + mean of H(φ_t), because disjoint topics make θ readable from p."""
    T, words = world.n_topics, topic_words(world)
    within = float(torch.special.entr(words).sum()) / T
    if world.topics_per_document is not None:
        return log(world.topics_per_document) + within
    alpha = torch.tensor(dirichlet_parameter(world), dtype=torch.float64)
    return float(torch.digamma(T * alpha + 1) - torch.digamma(alpha + 1)) + within


def _free_squared(world: World, masking: MaskingScheme) -> float:
    """1 − E|p|² where [MASK] is shown, 1 − E|q|² where a word is."""
    p_keep, p_random, drawn = masking.p_keep, masking.p_random, masking.p_random / n_words(world)
    share, weight, others = _topic_share(world)
    explained = 0.0
    for probability, own, rest, times in _kinds_of_words(world):
        p = share * probability
        shown = p_keep * p + drawn  # probability that a masked position shows this word
        norm = share**2 * own + others * rest  # E|p|² given the share of the word's topic
        gain = drawn**2 * norm + ((p_keep + drawn) ** 2 - drawn**2) * p**2
        explained += times * float((weight * torch.where(shown > 0, gain / shown, 0.0)).sum())
    return 1 - (1 - p_keep - p_random) * _square_norm(world) - explained


def _free_entropy(world: World, masking: MaskingScheme) -> float:
    """E[H(p)] where [MASK] is shown, E[H(q)] where a word is."""
    p_keep, drawn = masking.p_keep, masking.p_random / n_words(world)
    share, weight, _ = _topic_share(world)
    # [MASK] leaves H(p) to be guessed, and so do the random draws of all words together.
    total = (1 - p_keep) * _entropy(world)
    for probability, _, _, times in _kinds_of_words(world):
        p = share * probability
        shown, kept = p_keep * p + drawn, (p_keep + drawn) * p
        cost = torch.special.xlogy(kept, shown) - torch.special.xlogy(kept, kept)
        if drawn > 0:
            cost = cost + drawn * ((1 - p) * (shown / drawn).log() + torch.special.xlogy(p, p))
        total += times * float((weight * cost).sum())
    return total


def _kinds_of_words(world: World) -> list[tuple[float, float, float, int]]:
    """P(word | topic), |φ|² of its topic, the sum of |φ|² of all others, and how many words are like that."""
    words = topic_words(world)
    norms = words.square().sum(dim=1, keepdim=True).expand_as(words)
    rows = torch.stack([words, norms, norms[:, :1].sum() - norms], dim=2)[words > 0]
    kinds, counts = torch.unique(rows.round(decimals=15), dim=0, return_counts=True)
    return [(*kind, count) for kind, count in zip(kinds.tolist(), counts.tolist(), strict=True)]


def _topic_share(
    world: World,
) -> tuple[Float64[Tensor, "node"], Float64[Tensor, "node"], Float64[Tensor, "node"]]:
    """Distribution of one topic's share θ_t: values, probabilities, and E[θ_u²] of any other topic given it.

    Exact for uniform topics. For LDA the share follows Beta(α, (T − 1) α), whose singular ends the
    substitution θ = logistic(π sinh x) makes harmless (double-exponential quadrature).
    """
    T, tau = world.n_topics, world.topics_per_document
    if T == 1:
        return torch.ones(1).double(), torch.ones(1).double(), torch.zeros(1).double()
    if tau is not None:
        table = [
            [1 / tau, 0.0],
            [tau / T, 1 - tau / T],
            [(tau - 1) / (T - 1) / tau**2, 1 / (T - 1) / tau],
        ]
        values, probabilities, squares = torch.tensor(table, dtype=torch.float64)
        return values, probabilities, squares
    a = dirichlet_parameter(world)
    b = (T - 1) * a
    reach = float(torch.asinh(torch.tensor(50 / (pi * min(a, b, 1.0)), dtype=torch.float64)))
    x = torch.linspace(-reach, reach, 20_001, dtype=torch.float64)
    logit = pi * torch.sinh(x)
    low, high = torch.nn.functional.logsigmoid(logit), torch.nn.functional.logsigmoid(-logit)
    weight = torch.softmax(a * low + b * high + torch.cosh(x).log(), dim=0)
    return low.exp(), weight, (2 * high).exp() * (a + 1) / ((T - 1) * (b + 1))


def _require_disjoint(world: World) -> None:
    if world.word_probabilities is not None and bool(((topic_words(world) > 0).sum(dim=0) > 1).any()):
        raise ValueError(
            "the loss floors need disjoint topics, and in this world some words belong to several; "
            "bayes_loss estimates the best possible loss on its documents"
        )
