"""What the theory needs to know of a world and a masking scheme, and the moments that follow from it.

Everything here is about Assumption 1: documents so long that each *is* its word probabilities
``p = Φᵀ θ`` (topic proportions θ, P(word | topic) Φ). After masking, the frequencies of the shown tokens are
``m e_0 + a p + ε 1``, with ``m = p_m (1 − p_c − p_r)`` for ``[MASK]``, ``a = 1 − (1 − p_c) p_m`` for words shown
as they are, and ``ε = p_m p_r / n`` for random words.
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float64
from torch import Tensor


@runtime_checkable
class World(Protocol):
    """A distribution over documents; :class:`topic_probe.toy.world.World` is one."""

    @property
    def n_topics(self) -> int:
        """T."""

    @property
    def words_per_topic(self) -> int:
        """v; words are 1..T·v, and word i belongs to topic ``ceil(i / v)``."""

    @property
    def alpha(self) -> float | None:
        """Dirichlet parameter, where documents follow LDA."""

    @property
    def topics_per_document(self) -> int | None:
        """τ, where every document has that many topics in equal shares."""

    @property
    def word_probabilities(self) -> object:
        """P(word | topic) as T rows of n numbers, or None for the disjoint uniform topics of the paper."""


@runtime_checkable
class MaskingScheme(Protocol):
    """Probabilities of the corruption; :class:`topic_probe.toy.masking.Masking` is one."""

    @property
    def p_mask(self) -> float:
        """p_m, of a position being chosen."""

    @property
    def p_keep(self) -> float:
        """p_c, of a chosen position showing its own word."""

    @property
    def p_random(self) -> float:
        """p_r, of a chosen position showing a uniformly random word."""


def n_words(world: World) -> int:
    """Number of words n = T·v."""
    return world.n_topics * world.words_per_topic


def mask_share(masking: MaskingScheme) -> float:
    """Share of positions that show ``[MASK]``, m = p_m (1 − p_c − p_r)."""
    return masking.p_mask * (1 - masking.p_keep - masking.p_random)


def genuine_share(masking: MaskingScheme) -> float:
    """Share of positions that show their own word without being random, a = 1 − (1 − p_c) p_m."""
    return 1 - (1 - masking.p_keep) * masking.p_mask


def random_share(world: World, masking: MaskingScheme) -> float:
    """Share of positions that show one given word because of a random draw, ε = p_m p_r / n."""
    return masking.p_mask * masking.p_random / n_words(world)


def topic_words(world: World) -> Float64[Tensor, "topic word"]:
    """Φ, P(word | topic) over the words 1..n."""
    if world.word_probabilities is not None:
        return torch.tensor(world.word_probabilities, dtype=torch.float64)
    share = torch.full((1, world.words_per_topic), 1 / world.words_per_topic, dtype=torch.float64)
    return torch.kron(torch.eye(world.n_topics, dtype=torch.float64), share)


def original_frequencies(world: World) -> Float64[Tensor, "token topic"]:
    """Token frequencies of an original document of a single topic, ``[MASK]`` first: [0; Φᵀ]."""
    words = topic_words(world).T
    return torch.cat([torch.zeros_like(words[:1]), words])


def shown_frequencies(world: World, masking: MaskingScheme) -> Float64[Tensor, "token topic"]:
    """Token frequencies of a masked document of a single topic, ``[MASK]`` first.

    Because topic proportions sum to 1, a document of proportions θ shows this matrix times θ.
    """
    shown = genuine_share(masking) * original_frequencies(world)
    shown[1:] += random_share(world, masking)
    shown[0] = mask_share(masking)
    return shown


def topic_moments(world: World) -> Float64[Tensor, "topic topic"]:
    """E[θ θᵀ] of the topic proportions, exact for both distributions."""
    count = world.n_topics
    if world.topics_per_document is not None:
        chosen = world.topics_per_document
        same = 1 / (count * chosen)
        different = (chosen - 1) / (chosen * count * (count - 1)) if count > 1 else 0.0
    else:
        alpha = dirichlet_parameter(world)
        same = (alpha + 1) / (count * (count * alpha + 1))
        different = alpha / (count * (count * alpha + 1))
    moments = torch.full((count, count), different, dtype=torch.float64)
    return moments.fill_diagonal_(same)


def dirichlet_parameter(world: World) -> float:
    """The parameter of LDA, refusing a world that has none."""
    if world.alpha is None:
        raise ValueError(
            "the world has neither alpha (LDA) nor topics_per_document (uniform topics), so its topic "
            "proportions have no distribution; set one of them"
        )
    return world.alpha


def require_uniform_topics(world: World, what: str) -> int:
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


def documents_vary(world: World) -> bool:
    """Whether documents differ in their topic proportions; with one topic, or τ = T, all are alike."""
    return world.n_topics > 1 and world.topics_per_document != world.n_topics
