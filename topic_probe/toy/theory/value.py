"""Optimal W_V and E = W_Eᵀ W_E under uniform attention: Lemma 1, Theorems 1 and 2, and the loss of any other.

Under Assumption 1 documents are so long that each *is* its word probabilities ``p = Φᵀ θ`` (topic proportions θ,
P(word | topic) Φ). Attention that sees all positions sees the frequencies x̄ of the tokens that are shown after masking,
``m e_0 + a p + ε 1``, with the shares m of ``[MASK]``, a of words shown as they are and ε of a random word. Attention
that sees only positions that were not chosen for prediction (``attend="unmasked"``) sees x̄ = p: m = ε = 0 and a = 1.
Attention is uniform, so every position of a document gets the same prediction ``W x̄ + b``, and the best one under the
squared loss is p itself.
"""

from dataclasses import dataclass
from math import inf
from typing import Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from topic_probe.options import check_value
from topic_probe.toy.world import Attend, Masking, World


def original_frequencies(world: World) -> Float64[Tensor, "token topic"]:
    """Token frequencies of an original document of a single topic, ``[MASK]`` first: [0; Φᵀ]."""
    words = world.topic_words.T
    return torch.cat([torch.zeros_like(words[:1]), words])


def attended_frequencies(world: World, masking: Masking, attend: Attend) -> Float64[Tensor, "token topic"]:
    """Token frequencies x̄ that uniform attention sees in a document of a single topic, ``[MASK]`` first.

    Because topic proportions sum to 1, it sees this matrix times θ in a document of proportions θ.
    """
    check_value("attend", attend, Attend)
    words = original_frequencies(world)
    if attend == "unmasked":
        return words
    seen = masking.genuine_share * words
    seen[1:] += masking.random_share(world)
    seen[0] = masking.mask_share
    return seen


@dataclass(frozen=True)
class ValueConstants:
    """The constants of Theorem 2 and the entries of W_V they give.

    Attributes:
        c1: p_r / ((1 − p_c − p_r) a n); 0 where attention sees unmasked positions alone.
        c2: 1 / ((1 − p_c − p_r) p_m) − 1; infinite where attention sees unmasked positions alone.
        c3: 1 / a.
        mask_column: W_i0, what a word gets from ``[MASK]``.
        different_topic: W_ij of words of different topics.
        same_topic: W_ij of words of one topic, the diagonal included.
    """

    c1: float
    c2: float
    c3: float
    mask_column: float
    different_topic: float
    same_topic: float


def optimal_value_constants(world: World, masking: Masking, *, attend: Attend = "all") -> ValueConstants:
    """The constants of Theorem 2 and the three different entries of the optimal W_V.

    ValueError where no position ever shows ``[MASK]`` or no word is ever shown as it is, and for worlds with
    ``word_probabilities``, whose optimum has no three-valued form.

    Example:
        >>> world = tp.World(n_topics=2, words_per_topic=2)
        >>> masking = tp.Masking(p_mask=0.2, p_keep=0.0, p_random=0.0)  # a = 0.8
        >>> constants = tp.theory.optimal_value_constants(world, masking)
        >>> [round(number, 6) for number in (constants.c1, constants.c2, constants.c3)]
        [0.0, 4.0, 1.25]
        >>> round(constants.different_topic, 6), round(constants.same_topic, 6)  # −c3 / (c2² + n), and c3 / v more
        (-0.0625, 0.5625)
    """
    if world.word_probabilities is not None:
        raise ValueError(
            "the constants of Theorem 2 need disjoint topics of equally likely words, and this world has "
            "word_probabilities; optimal_value gives its optimum as a matrix"
        )
    shown, n, v = masking.mask_share, world.n_words, world.words_per_topic
    if attend == "unmasked":
        return ValueConstants(c1=0.0, c2=inf, c3=1.0, mask_column=0.0, different_topic=0.0, same_topic=1 / v)
    c3 = 1 / _required_genuine_share(masking)
    if shown <= 0:
        raise ValueError(
            "Theorem 2 divides by the share of [MASK], p_mask · (1 − p_keep − p_random), which is 0 here; "
            "raise p_mask or lower p_keep or p_random"
        )
    c1 = masking.p_mask * masking.p_random / (shown * n) * c3
    c2 = 1 / shown - 1
    different = -(c1 * c2 + c3) / (c2**2 + n)
    return ValueConstants(
        c1=c1,
        c2=c2,
        c3=c3,
        mask_column=(c2 * c3 - c1 * n) / (c2**2 + n),
        different_topic=different,
        same_topic=different + c3 / v,
    )


def optimal_value(
    world: World, masking: Masking, *, attend: Attend = "all"
) -> Float64[Tensor, "token token"]:
    """The optimal W_V of the *value* regime as L2 goes to 0, ``[MASK]`` first (Theorem 2).

    This is the minimiser of :func:`value_loss` with the smallest Frobenius norm. For the paper's worlds it is
    Theorem 2's closed form, which holds for LDA as well; where words are unequally likely, topics overlap, or
    all documents are alike (one topic, or τ = T), it is computed from the pseudo-inverse.

    Example:
        >>> world = tp.World(n_topics=2, words_per_topic=2)
        >>> W = tp.theory.optimal_value(world, tp.Masking(p_mask=0.2, p_keep=0.0, p_random=0.0))
        >>> [round(number, 6) for number in W[1].tolist()]  # what word 1 gets from [MASK] and from words 1 to 4
        [0.25, 0.5625, 0.5625, -0.0625, -0.0625]
    """
    if world.word_probabilities is not None or not world.documents_vary or masking.mask_share <= 0:
        root = _matrix_root(world.topic_moments)
        seen, wanted = attended_frequencies(world, masking, attend) @ root, original_frequencies(world) @ root
        least: Tensor = wanted @ torch.linalg.pinv(seen, rtol=1e-12)
        return least
    constants = optimal_value_constants(world, masking, attend=attend)
    topic = world.block_of_word
    W = torch.zeros(world.vocabulary_size, world.vocabulary_size, dtype=torch.float64)
    W[1:, 0] = constants.mask_column
    W[1:, 1:] = constants.different_topic
    W[1:, 1:][topic.unsqueeze(1) == topic] = constants.same_topic
    return W


def value_loss(
    W: Float[Tensor, "token token"],
    world: World,
    masking: Masking,
    *,
    bias: Float[Tensor, "token"] | None = None,
    attend: Attend = "all",
) -> Float64[Tensor, ""]:
    """The squared loss of predicting ``W x̄ + bias`` at masked positions, exact and differentiable.

    At least 1 − E|p|² (:func:`~topic_probe.toy.theory.losses.loss_floor`). Holds under Assumption 1 for every world,
    overlapping topics included. It needs only E[θ θᵀ], so it costs the same for any number of possible documents.

    W is W_V in the *value* regime, without a bias, and W_Eᵀ W_E in the *embedding* regime, with
    :func:`embedding_bias`; row and column 0 are ``[MASK]``.

    Example:
        >>> world = tp.World(n_topics=2, words_per_topic=2, topics_per_document=1)
        >>> W = tp.theory.optimal_value(world, tp.Masking())
        >>> round(float(tp.theory.value_loss(W, world, tp.Masking())), 6)  # one of two equally likely words: 1 − ½
        0.5
    """
    _check_over_tokens(W, world)
    wanted, moments = original_frequencies(world), world.topic_moments
    error: Tensor = W.double() @ attended_frequencies(world, masking, attend) - wanted
    if bias is not None:
        error = error + bias.double().unsqueeze(1)  # proportions sum to 1, so this adds the bias once
    # E|Wx̄ + b − x|² = E|Wx̄ + b − p|² + 1 − E|p|², because x is drawn from p.
    return mean_square(error, moments) + 1 - mean_square(wanted, moments)


def embedding_bias(world: World, masking: Masking, *, attend: Attend = "all") -> Float64[Tensor, "token"]:
    """b_pred of Theorem 1, which takes away what random words add: −p_m p_r / (a n) for words, 0 for ``[MASK]``.

    All 0 where attention sees unmasked positions alone, among which there are no random words.

    Example:
        >>> world = tp.World(n_topics=2, words_per_topic=2)
        >>> masking = tp.Masking(p_mask=0.5, p_keep=0.0, p_random=0.5)  # −¼ / (½ · 4) for each word
        >>> tp.theory.embedding_bias(world, masking).tolist()
        [0.0, -0.125, -0.125, -0.125, -0.125]
    """
    bias = torch.zeros(world.vocabulary_size, dtype=torch.float64)
    if attend == "all":
        bias[1:] = -masking.random_share(world) / _required_genuine_share(masking)
    return bias


@dataclass(frozen=True)
class OptimumCheck:
    """How far a matrix is from the optima of Lemma 1 or Theorem 1.

    The optima form an affine family with one free constant u_i per row; both numbers are about the *nearest* member in
    Frobenius norm, whose u is a least-squares fit over the conditions of the row.

    Attributes:
        relative: Frobenius distance to that member ÷ its norm: 0 for an optimum, 1 for the zero matrix.
        worst: The largest |left side − right side| of any condition.
    """

    relative: float
    worst: float


def check_lemma1(
    W: Float[Tensor, "token token"], world: World, masking: Masking, *, attend: Attend = "all"
) -> OptimumCheck:
    """How far W is from the minimisers of the squared loss under uniform attention (Lemma 1).

    The conditions describe *all* minimisers where documents vary, under uniform topics and LDA alike. Where all
    documents are alike (τ = T) they are sufficient only.

    Example:
        >>> world, masking = tp.World(n_topics=2, words_per_topic=2), tp.Masking()
        >>> optimum = tp.theory.optimal_value(world, masking)
        >>> round(tp.theory.check_lemma1(optimum, world, masking).relative, 6)
        0.0
        >>> round(tp.theory.check_lemma1(0 * optimum, world, masking).relative, 6)
        1.0
    """
    constants = optimal_value_constants(world, masking, attend=attend)
    return _check(W, world, constants, mask_target=-constants.c1)


def check_theorem1(
    E: Float[Tensor, "token token"], world: World, masking: Masking, *, attend: Attend = "all"
) -> OptimumCheck:
    """How far E = W_Eᵀ W_E is from the optima of the *embedding* regime (Theorem 1).

    The same conditions as Lemma 1's, except that the bias of that regime already takes away the random words.
    The nearest member need not be symmetric or positive semi-definite, so the distance is to a family that
    holds the reachable optima and more. One-hot words times 1/√a, and 0 for ``[MASK]``, are an optimum with u = 0.
    The paper's example has 1/√a for ``[MASK]`` as well, which contradicts its condition 1a and costs (m/a)².
    """
    return _check(E, world, optimal_value_constants(world, masking, attend=attend), mask_target=0.0)


def _check(
    W: Float[Tensor, "token token"], world: World, constants: ValueConstants, *, mask_target: float
) -> OptimumCheck:
    _check_over_tokens(W, world)
    W = W.detach().double()
    T, v, n = world.n_topics, world.words_per_topic, world.n_words
    own = torch.zeros(n + 1, T, dtype=torch.float64)
    own[torch.arange(1, n + 1), world.block_of_word] = 1.0
    # Left side − right side of every condition at u = 0: W_i0 of 1a and 2a, the sums over the words of every topic of
    # 1b, 3a and 3b. u_i moves the first by c2 u_i and every sum by −v u_i.
    first = W[:, 0].clone()
    first[1:] -= mask_target
    sums = W[:, 1:].reshape(n + 1, T, v).sum(dim=2) - constants.c3 * own
    if constants.c2 < inf:
        # Moving a row onto its conditions costs first² + Σ sums² / v, because a block sum is spread over v
        # entries; this is the u with the smallest cost.
        u = (sums.sum(dim=1) - constants.c2 * first) / (constants.c2**2 + n)
        first = first + constants.c2 * u
        sums = sums - v * u.unsqueeze(1)
    else:  # attention never sees [MASK]: its column is free, and 1a and 2a do not exist
        first = torch.zeros_like(first)
    step = torch.cat([first.unsqueeze(1), (sums / v).repeat_interleave(v, dim=1)], dim=1)
    worst = max(float(first.abs().max()), float(sums.abs().max()))
    return OptimumCheck(float(step.norm()) / float((W - step).norm()), worst)


def ablation_effect(
    W: Float[Tensor, "token token"],
    world: World,
    masking: Masking,
    *,
    kind: Literal["mean", "zero"] = "mean",
    attend: Attend = "all",
) -> Float64[Tensor, ""]:
    """How much :func:`value_loss` rises without the output ``W x̄`` of the head; negative where that does harm.

    In its place stands its mean over all positions of all documents, or nothing (``kind="zero"``). At Lemma 1's optima
    the loss rises from 1 − E|p|² to 1 − |E p|², or to 1. With τ of T topics of v words in every document these are
    1 − 1/(τv) and 1 − 1/(Tv).

    Example:
        >>> world = tp.World(n_topics=10, words_per_topic=10, topics_per_document=2)
        >>> W = tp.theory.optimal_value(world, tp.Masking())
        >>> round(float(tp.theory.ablation_effect(W, world, tp.Masking())), 6)  # 1/20 − 1/100
        0.04
    """
    check_value("kind", kind, Literal["mean", "zero"])
    mean = (W.double() @ attended_frequencies(world, masking, attend)).mean(dim=1)
    instead = mean if kind == "mean" else 0 * mean
    ablated = value_loss(0 * W, world, masking, bias=instead, attend=attend)
    return ablated - value_loss(W, world, masking, attend=attend)


def mean_square(
    columns: Float64[Tensor, "token topic"], moments: Float64[Tensor, "topic topic"]
) -> Float64[Tensor, ""]:
    """E|columns θ|², given E[θ θᵀ]."""
    return ((columns @ moments) * columns).sum()


def _matrix_root(moments: Float64[Tensor, "topic topic"]) -> Float64[Tensor, "topic topic"]:
    values, vectors = torch.linalg.eigh(moments)
    values = values.where(values > 1e-13 * values.max(), 0.0)  # exact zeros come back as rounding errors
    root: Tensor = vectors * values.sqrt()
    return root


def _required_genuine_share(masking: Masking) -> float:
    share = masking.genuine_share
    if share <= 0:
        raise ValueError(
            "no word is ever shown as it is (p_mask = 1 and p_keep = 0), so nothing can be predicted from the "
            "others; lower p_mask or raise p_keep"
        )
    return share


def _check_over_tokens(W: Float[Tensor, "row column"], world: World) -> None:
    size = world.n_words + 1
    if W.shape != (size, size):
        raise ValueError(
            f"needed a matrix over the {size} token ids of this world ([MASK] and {size - 1} words), got shape "
            f"{tuple(W.shape)}; pass W_V in the one-hot regimes and W_Eᵀ W_E in the embedding regime"
        )
