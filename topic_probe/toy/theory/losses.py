"""The lowest loss there is: of each training regime on infinitely long documents, and of any predictor on finite ones.

On infinitely long documents (Assumption 1) two predictors matter. Under *uniform* attention all positions of a document
get one prediction, and the best is the word probabilities p of the document. With *free* attention the token shown at
the masked position helps as well: a shown word s was either kept (p_c p_s) or put there at random (p_r / n), so the
best prediction is ::

    q_i = p_i (p_c [i = s] + p_r / n) / (p_c p_s + p_r / n)        and p where [MASK] is shown.

Attention that sees only positions that were not chosen sees p all the same, so the floors are those of attention that
sees all. On documents of finite length the best predictor is that of :mod:`~topic_probe.toy.theory.posterior`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import log, nan, pi
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from topic_probe.options import check_value, check_whole
from topic_probe.toy.theory.posterior import bayes_predictor, prediction_at
from topic_probe.toy.theory.value import mean_square, original_frequencies
from topic_probe.toy.world import Attend, Loss, MaskedBatch, Masking, World

RegimeName = Literal["full", "embedding", "value", "attention", "keys", "two-stage"]
"""What is trained; :data:`topic_probe.toy.model.REGIMES` says which tensors that are."""
# Always as many, because the documents of a seed depend on it.
DRAWN_AT_ONCE = 100


@dataclass(frozen=True)
class LossFloor:
    """The lowest loss of a regime and what exactly is claimed about it.

    Attributes:
        value: The number.
        kind: ``"minimum"``: reached by some parameters. ``"infimum"``: approached as parameters grow, never
            reached. ``"lower bound"``: no parameters get below it; how close they get is not claimed.
    """

    value: float
    kind: Literal["minimum", "infimum", "lower bound"]


def loss_floor(
    world: World, masking: Masking, *, regime: RegimeName, loss: Loss = "squared", attend: Attend = "all"
) -> LossFloor:
    """The lowest loss of a training regime on infinitely long documents of this world.

    Under uniform attention (*embedding*, *value*) the squared loss has the minimum 1 − E|p|² (Lemma 1) and
    cross-entropy is bounded by the entropy E[H(p)]: an infimum for uniform topics, whose optimal logits are
    at infinity; a mere bound for LDA, where logits linear in the frequencies cannot follow log p. In the other
    regimes the bound is the best possible prediction from document and shown token, which one layer
    need not reach. For *keys*, ``optimal_attention(world, masking).loss`` is the best within Assumption 2.

    These bound the expected loss on documents of finite length as well, but for uniform attention to all positions:
    there the shown word of the masked position is part of the average, and tells something of a short document.
    ValueError where topics overlap.

    Example:
        >>> world = tp.World(n_topics=2, words_per_topic=2, topics_per_document=1)
        >>> tp.theory.loss_floor(world, tp.Masking(), regime="value").value  # two equally likely words: 1 − ½
        0.5
        >>> floor = tp.theory.loss_floor(world, tp.Masking(), regime="value", loss="cross_entropy")
        >>> round(floor.value, 6), floor.kind  # ln 2
        (0.693147, 'infimum')
    """
    check_value("regime", regime, RegimeName)
    if not world.has_disjoint_topics:
        raise ValueError(
            "the loss floors need disjoint topics, and in this world some words belong to several; "
            "bayes_loss estimates the best possible loss on its documents"
        )
    if regime not in ("embedding", "value"):
        value = _free_squared(world, masking) if loss == "squared" else _free_entropy(world, masking)
        return LossFloor(value, "lower bound")
    value = 1 - _square_norm(world) if loss == "squared" else _entropy(world)
    something_seen = attend == "unmasked" or masking.genuine_share > 0
    # The bias of the embedding regime and the symmetry of W_Eᵀ W_E are made for equally likely words.
    limited = regime == "embedding" and world.word_probabilities is not None
    if limited or not something_seen:
        return LossFloor(value, "lower bound")
    if loss == "squared":
        return LossFloor(value, "minimum")
    return LossFloor(value, "lower bound" if world.topics_per_document is None else "infimum")


def _square_norm(world: World) -> float:
    """E|p|²."""
    return float(mean_square(original_frequencies(world), world.topic_moments))


def _entropy(world: World) -> float:
    """E[H(p)] = E[H(θ)] + mean of H(φ_t), because disjoint topics make θ readable from p."""
    T, words = world.n_topics, world.topic_words
    within = float(torch.special.entr(words).sum()) / T
    if world.topics_per_document is not None:
        return log(world.topics_per_document) + within
    alpha = torch.tensor(world.dirichlet_parameter, dtype=torch.float64)
    return float(torch.digamma(T * alpha + 1) - torch.digamma(alpha + 1)) + within


def _free_squared(world: World, masking: Masking) -> float:
    """1 − E|p|² where [MASK] is shown, 1 − E|q|² where a word is."""
    p_keep, p_random, drawn = masking.p_keep, masking.p_random, masking.p_random / world.n_words
    share, weight, others = _topic_share(world)
    explained = 0.0
    for probability, own, rest, times in _kinds_of_words(world):
        p = share * probability
        shown = p_keep * p + drawn  # probability that a masked position shows this word
        norm = share**2 * own + others * rest  # E|p|² given the share of the word's topic
        gain = drawn**2 * norm + ((p_keep + drawn) ** 2 - drawn**2) * p**2
        explained += times * float((weight * torch.where(shown > 0, gain / shown, 0.0)).sum())
    return 1 - (1 - p_keep - p_random) * _square_norm(world) - explained


def _free_entropy(world: World, masking: Masking) -> float:
    """E[H(p)] where [MASK] is shown, E[H(q)] where a word is."""
    p_keep, drawn = masking.p_keep, masking.p_random / world.n_words
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
    words = world.topic_words
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
    a = world.dirichlet_parameter
    b = (T - 1) * a
    reach = float(torch.asinh(torch.tensor(50 / (pi * min(a, b, 1.0)), dtype=torch.float64)))
    x = torch.linspace(-reach, reach, 20_001, dtype=torch.float64)
    logit = pi * torch.sinh(x)
    low, high = torch.nn.functional.logsigmoid(logit), torch.nn.functional.logsigmoid(-logit)
    weight = torch.softmax(a * low + b * high + torch.cosh(x).log(), dim=0)
    return low.exp(), weight, (2 * high).exp() * (a + 1) / ((T - 1) * (b + 1))


@dataclass(frozen=True)
class BayesLoss:
    """The lowest possible expected loss on documents of this world, estimated over sampled documents.

    Each loss with its standard error over ``n_documents``, those with a masked position; others have no loss.
    """

    squared: float
    squared_error: float
    cross_entropy: float
    cross_entropy_error: float
    n_documents: int


def bayes_loss(
    world: World,
    masking: Masking,
    *,
    n_documents: int = 1_000,
    generator: torch.Generator,
    attend: Attend = "all",
) -> BayesLoss:
    """The loss of :func:`bayes_predictor`: mean over documents of the mean over their masked positions.

    No model gets below it, except for the error of the estimate, and for the tiny amount by which equation 1's weight
    1/|M| favours a predictor that also guesses how many positions were masked. Documents are sampled, but
    the loss at a position is its expectation under the posterior, not that of one drawn target; and for disjoint
    topics only the loss *in excess* of a predictor that knows θ is estimated, because that
    predictor's own loss is known (:func:`loss_floor`). Both make the error small.
    NaN where no document has a loss; the errors are NaN with a single one.

    Example:
        >>> import torch
        >>> world = tp.World(n_topics=2, words_per_topic=2, topics_per_document=1)
        >>> masking, generator = tp.Masking(p_keep=0.0, p_random=0.0), torch.Generator().manual_seed(0)
        >>> best = tp.theory.bayes_loss(world, masking, n_documents=20, generator=generator)
        >>> round(best.squared, 6), round(best.cross_entropy, 6)  # the topic is seen, which of its two words is not
        (0.5, 0.693147)
    """
    check_whole("n_documents", n_documents)
    drawn = masked_documents(world, masking, n_documents, generator, attend=attend)
    samples = ((*pair, bayes_predictor(world, masking, pair[1], attend=attend)) for pair in drawn)
    return mean_bayes_loss(world, masking, samples)


def masked_documents(
    world: World, masking: Masking, n_documents: int, generator: torch.Generator, *, attend: Attend = "all"
) -> Iterator[tuple[Float64[Tensor, "document topic"], MaskedBatch]]:
    """Topic proportions of new documents and the documents, corrupted, in batches.

    Those in which attention may see no position are left out: they have no loss.
    """
    for start in range(0, n_documents, DRAWN_AT_ONCE):
        documents = world.documents(min(DRAWN_AT_ONCE, n_documents - start), generator=generator)
        batch = masking.corrupt(documents, n_words=world.n_words, generator=generator)
        rows = batch.visible(attend).any(dim=1).nonzero()[:, 0]
        assert documents.topic_proportions is not None
        yield documents.topic_proportions[rows], batch.select(rows)


def mean_bayes_loss(
    world: World,
    masking: Masking,
    samples: Iterable[tuple[Float64[Tensor, "_ topic"], MaskedBatch, Float64[Tensor, "_ token"]]],
) -> BayesLoss:
    """The result of :func:`bayes_loss` for documents of these topic proportions with these predictions."""
    above_oracle = world.has_disjoint_topics
    losses: list[Float64[Tensor, "document loss"]] = []
    for proportions, batch, probabilities in samples:
        loss = _expected_losses(probabilities)
        if above_oracle:
            loss = loss - _expected_losses(_oracle_predictor(world, masking, proportions, batch))
        losses.append(batch.document_means(loss))
    per_document = torch.cat(losses)
    mean = per_document.mean(dim=0)
    error = per_document.std(dim=0) / len(per_document) ** 0.5 if len(per_document) > 1 else mean * nan
    if above_oracle:
        floors = _free_squared(world, masking), _free_entropy(world, masking)
        mean = mean + torch.tensor(floors, dtype=torch.float64)
    (squared, entropy), (squared_error, entropy_error) = mean.tolist(), error.tolist()
    return BayesLoss(squared, squared_error, entropy, entropy_error, len(per_document))


def _expected_losses(probabilities: Float64[Tensor, "chosen token"]) -> Float64[Tensor, "chosen loss"]:
    """Squared loss and cross-entropy of predictions that are right about their own uncertainty."""
    squared = 1 - probabilities.square().sum(dim=1)
    return torch.stack([squared, torch.special.entr(probabilities).sum(dim=1)], dim=1)


def _oracle_predictor(
    world: World, masking: Masking, proportions: Float64[Tensor, "document topic"], batch: MaskedBatch
) -> Float64[Tensor, "chosen token"]:
    """The predictor that knows the topic proportions of every document."""
    words = (proportions @ world.topic_words)[batch.chosen.nonzero()[:, 0]]
    return prediction_at(words, batch.shown[batch.chosen], masking)
