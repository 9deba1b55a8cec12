"""What the head of the toy is worth: its loss without the head's output, its predictions without some of its edges.

The toy has one layer of one head, documents are infinitely long (Assumption 1), and the loss is the squared one. A
position attends to tokens with the frequencies y and predicts ``W y + b``.

Without the head's output every position predicts the same, and the loss follows from E[y]. Where the head predicts p
itself, as Lemma 1's optima do under uniform attention, it is 1 − E|p|² intact and 1 − |E p|² with the mean output. With
τ of T topics of v words in every document these are ::

    intact 1 − 1/(τv)      mean 1 − 1/(Tv)      zero 1

Without some edges y lacks the words of some topics. Renaming words does not change how likely documents are, as long as
words of one topic stay together. So one document stands for all when W is replaced by its mean over all renamings, and
WᵀW, which gives E|W y|², by its own.
"""

from dataclasses import dataclass
from math import nan
from typing import Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from topic_probe.options import check_number, checked
from topic_probe.toy.masking import MASK_ID, Masking
from topic_probe.toy.theory.attention import attention_loss, required_uniform_topics
from topic_probe.toy.theory.value import (
    check_over_tokens,
    optimal_value,
    original_frequencies,
    shown_frequencies,
    value_loss,
)
from topic_probe.toy.world import World

Ablation = Literal["mean", "zero"]
"""What stands in place of a head's output: its mean over all positions of all documents, or nothing."""

Cut = Literal["own_topic", "same_topic", "different_topic", "companion_topics"]
"""The words that a masked position no longer attends to, seen from the word that it has to predict: those of its topic
(itself included), other words of its topic, words of all other topics, words of the document's other topics alone."""


@dataclass(frozen=True)
class AblationEffect:
    """The loss with and without the head's output.

    Attributes:
        intact: The squared loss at masked positions.
        ablated: The same with something else in place of the head's output.
    """

    intact: float
    ablated: float

    @property
    def effect(self) -> float:
        """Ablated − intact, what the head's output is worth; negative where it does harm."""
        return self.ablated - self.intact


@checked
def ablation_effect(
    world: World,
    masking: Masking,
    *,
    kind: Ablation = "mean",
    W: Float[Tensor, "token token"] | None = None,
    bias: Float[Tensor, "token"] | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> AblationEffect:
    """The squared loss at masked positions with and without the output of the toy's head.

    Holds under Assumption 1: with uniform attention (α = β = 1) in every world of both distributions, overlapping
    topics included; with other weights under Assumption 2 and for uniform topics. At Lemma 1's optima under uniform
    attention the effect is 1/(τv) − 1/(Tv) of ``mean`` and 1/(τv) of ``zero``, whatever the masking; where all
    documents are alike (τ = T) the first is 0.

    Args:
        world: The distribution of documents.
        masking: The masking scheme.
        kind: What stands in place of the head's output.
        W: W_V in the one-hot regimes, W_Eᵀ W_V W_E in the others. Where the head has b_V, W_Eᵀ b_V is added to every
            column, which is the same because attention sums to 1. None is the optimum of Theorem 2.
        bias: b_pred, which is no part of the head and stays; None is 0.
        alpha: Attention to other words of the same topic relative to other topics, at least 0.
        beta: Attention to the same token relative to other topics, at least 0.

    Example:
        >>> world = tp.World(n_topics=10, words_per_topic=10, topics_per_document=2)
        >>> mean = tp.theory.ablation_effect(world, tp.Masking())
        >>> round(mean.intact, 6), round(mean.ablated, 6), round(mean.effect, 6)  # 1 − 1/20, 1 − 1/100
        (0.95, 0.99, 0.04)
        >>> zero = tp.theory.ablation_effect(world, tp.Masking(), kind="zero")
        >>> round(zero.ablated, 6), round(zero.effect, 6)
        (1.0, 0.05)
    """
    W, bias = _whole(W, bias, world, masking)
    W = W + bias.unsqueeze(1)  # attention sums to 1, so this adds the bias once
    if alpha == beta == 1:
        intact = value_loss(W, world, masking)
        mean = (W @ shown_frequencies(world, masking)).mean(dim=1)
    else:
        intact = attention_loss(world, masking, alpha=alpha, beta=beta, value=W)
        mean = _anywhere(W, world, masking, alpha, beta)
    # What is put in knows nothing of the target, which then is any word.
    output = mean if kind == "mean" else bias
    target = output @ original_frequencies(world).mean(dim=1)
    return AblationEffect(float(intact), float(output @ output - 2 * target + 1))


@dataclass(frozen=True)
class KnockoutPrediction:
    """What a masked position predicts, for every kind of word; NaN where there is none of the kind.

    Attributes:
        target: For the word that was there.
        own_topic: For another word of its topic.
        companion_topics: For a word of another topic of the document.
        absent_topics: For a word of a topic that the document does not have.
        loss: The squared loss.
    """

    target: float
    own_topic: float
    companion_topics: float
    absent_topics: float
    loss: float


@dataclass(frozen=True)
class KnockoutEffect:
    """Predictions with and without some edges.

    Attributes:
        intact: With all edges.
        cut: Without.
        attention: The attention that the edges had, of 1.
    """

    intact: KnockoutPrediction
    cut: KnockoutPrediction
    attention: float

    @property
    def effect(self) -> float:
        """Loss without − with the edges, what they are worth; negative where they do harm."""
        return self.cut.loss - self.intact.loss


@checked
def knockout_effect(
    world: World,
    masking: Masking,
    *,
    cut: Cut = "own_topic",
    how: Literal["scores", "weights"] = "scores",
    W: Float[Tensor, "token token"] | None = None,
    bias: Float[Tensor, "token"] | None = None,
    beta: float = 1.0,
) -> KnockoutEffect:
    """What positions that show ``[MASK]`` predict, with and without their edges to the words of some topics.

    Holds under Assumptions 1 and 2 for uniform topics; with uniform attention it is the same whatever a masked position
    shows. An edge is cut for the word that its key shows, be it a random one; keys that show ``[MASK]`` stay.
    Predictions are means over documents and over the words of a kind, which are all alike with Theorem 2's W_V.

    Args:
        world: Uniform topics.
        masking: The masking scheme.
        cut: The words that are no longer attended to.
        how: ``scores``: cut before the softmax, so that other keys get the attention in proportion to theirs.
            ``weights``: cut after it, and the attention is lost.
        W: As in :func:`ablation_effect`.
        bias: As in :func:`ablation_effect`.
        beta: Attention of ``[MASK]`` to ``[MASK]`` relative to words, at least 0.

    Example:
        >>> world = tp.World(n_topics=10, words_per_topic=10, topics_per_document=2)
        >>> own = tp.theory.knockout_effect(world, tp.Masking(), cut="own_topic", how="weights")
        >>> round(own.intact.target, 6), round(own.cut.target, 5)  # 1/20, and what [MASK] and other words leave of it
        (0.05, 0.00312)
        >>> other = tp.theory.knockout_effect(world, tp.Masking(), cut="companion_topics", how="weights")
        >>> round(other.cut.target, 5)  # other words speak against the target's topic
        0.05329
    """
    v, tau = world.words_per_topic, required_uniform_topics(world, "a prediction without some edges")
    check_number("beta", beta, zero=True, why="an attention weight")
    W, bias = _whole(W, bias, world, masking)
    words = {
        "own_topic": slice(1, 1 + v),
        "same_topic": slice(2, 1 + v),
        "different_topic": slice(1 + v, None),
        "companion_topics": slice(1 + v, 1 + tau * v),
    }[cut]
    y = _attended(MASK_ID, world, masking, beta=beta)
    without = y.clone()
    without[words] = 0
    left = float(without.sum())
    if how == "scores" and left > 0:
        without = without / left
    intact, after = (_predicted(part, W, bias, world) for part in (y, without))
    return KnockoutEffect(intact=intact, cut=after, attention=1 - left)


def _whole(
    W: Float[Tensor, "token token"] | None,
    bias: Float[Tensor, "token"] | None,
    world: World,
    masking: Masking,
) -> tuple[Float64[Tensor, "token token"], Float64[Tensor, "token"]]:
    """W and the bias as given, or what None stands for."""
    W = optimal_value(world, masking) if W is None else W.detach().cpu().double()
    check_over_tokens(W, world)
    bias = torch.zeros(len(W)) if bias is None else bias.detach().cpu()
    if bias.shape != W.shape[:1]:
        raise ValueError(
            f"bias must hold a number for each of {len(W)} token ids, got shape {tuple(bias.shape)}"
        )
    return W, bias.double()


def _attended(
    shown: int, world: World, masking: Masking, *, alpha: float = 1.0, beta: float
) -> Float64[Tensor, "token"]:
    """What a position attends to under Assumption 2 that shows this token in a document of the first τ topics."""
    tau, v = required_uniform_topics(world, "attention by topic"), world.words_per_topic
    weights = torch.ones(world.vocabulary_size, dtype=torch.float64)
    if shown != MASK_ID:
        first = (shown - 1) // v * v + 1
        weights[first : first + v] = alpha
    weights[shown] = beta
    seen = weights * shown_frequencies(world, masking)[:, :tau].mean(dim=1)
    return seen / seen.sum()


def _anywhere(
    W: Float64[Tensor, "token token"], world: World, masking: Masking, alpha: float, beta: float
) -> Float64[Tensor, "token"]:
    """E[W y] over all positions, masked or not, under Assumption 2."""
    inside = required_uniform_topics(world, "the mean output") / world.n_topics
    random = masking.p_mask * masking.p_random
    shares = {  # of positions that show [MASK], a word of the document's topics, and another
        MASK_ID: masking.mask_share,
        1: masking.genuine_share + random * inside,
        world.n_words: random * (1 - inside),
    }
    mean = torch.zeros(len(W), dtype=torch.float64)
    for shown, share in shares.items():
        if share > 0:
            mean = mean + share * _attended(shown, world, masking, alpha=alpha, beta=beta)
    mean[1:] = mean[1:].mean()  # over documents no word is attended to more than others
    return W @ mean


def _predicted(
    y: Float64[Tensor, "token"],
    W: Float64[Tensor, "token token"],
    bias: Float64[Tensor, "token"],
    world: World,
) -> KnockoutPrediction:
    """What is predicted where the document has the first τ topics and word 1 was there, over all renamings."""
    v, tau = world.words_per_topic, required_uniform_topics(world, "a prediction")
    predicted = _renamed(W, world) @ y + bias[1:].mean()
    # |W y + b|² = |W y|² + 2 b·(W y) + |b|², where only the first two depend on the document.
    everywhere = y.clone()
    everywhere[1:] = y[1:].mean()
    square = y @ _renamed(W.T @ W, world) @ y + 2 * bias @ W @ everywhere + bias @ bias
    return KnockoutPrediction(
        target=float(predicted[1]),
        own_topic=float(predicted[2]) if v > 1 else nan,
        companion_topics=float(predicted[1 + v]) if tau > 1 else nan,
        absent_topics=float(predicted[-1]) if tau < world.n_topics else nan,
        loss=float(square - 2 * predicted[1] + 1),
    )


def _renamed(matrix: Float64[Tensor, "token token"], world: World) -> Float64[Tensor, "token token"]:
    """The mean of a matrix over all renamings of words that keep words of a topic together."""
    topic, itself = world.block_of_word, torch.eye(world.n_words, dtype=torch.bool)
    same = topic.unsqueeze(1) == topic
    mean = matrix.clone()
    mean[0, 1:], mean[1:, 0] = matrix[0, 1:].mean(), matrix[1:, 0].mean()
    for kind in (itself, same & ~itself, ~same):
        mean[1:, 1:][kind] = matrix[1:, 1:][kind].mean()
    return mean
