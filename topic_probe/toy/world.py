"""Worlds: the two distributions over documents of the paper, sampled in whole batches; and masking of these."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Bool, Float, Float64, Int64, Integer
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from topic_probe.options import check_number, check_share, check_whole, checked, settle_fields
from topic_probe.topics import Topics

MASK_ID = 0

Loss = Literal["cross_entropy", "squared"]
"""Of a prediction at a masked position: cross-entropy in nats, or the squared distance to the one-hot word."""

Attend = Literal["all", "unmasked"]
"""Which positions attention may see: all, or those that were not chosen for prediction."""


@dataclass(frozen=True)
class Documents:
    """A padded batch of documents.

    Attributes:
        ids: Token ids; words are 1, 2, ..., and positions behind the end hold 0 (``[MASK]``).
        mask: True where a document has a token. Padding stands on the right.
        topic_proportions: The proportions each document was drawn with (rows sum to 1), or None when the
            documents come from elsewhere.
    """

    ids: Int64[Tensor, "batch position"]
    mask: Bool[Tensor, "batch position"]
    topic_proportions: Float64[Tensor, "batch topic"] | None = None

    def __len__(self) -> int:
        return self.ids.shape[0]

    def __iter__(self) -> Iterator[Int64[Tensor, " position"]]:
        """The ids of every document, without padding."""
        return (row[kept] for row, kept in zip(self.ids, self.mask, strict=True))


@dataclass(frozen=True)
class World:
    """A distribution over documents (Sections 3.1 and 6.1 of the paper).

    The vocabulary is 0..n: 0 is ``[MASK]`` and word i of 1..n belongs to topic ``ceil(i / words_per_topic)``.
    A document has a uniformly drawn length; every word draws a topic from the topic proportions of its
    document, then a word of that topic.

    Attributes:
        n_topics: Number of topics T.
        words_per_topic: Words per topic v, so n = T·v.
        alpha: *LDA*: topic proportions follow a symmetric Dirichlet distribution with this parameter, by default 0.1 as
            in the paper. Nearly one topic per document as it goes to 0, equal shares of all topics as it grows.
        topics_per_document: *Uniform topics*, in place of such a distribution: every document has this many distinct
            topics τ, equally likely.
        min_length: Shortest document, at least 1.
        max_length: Longest document (inclusive).
        word_probabilities: P(word | topic) as T rows over the words 1..n (any nested sequence or 2-d tensor,
            rows are normalised). None means equal probabilities on the v words of the topic, as in the paper.
            See :func:`zipf_words` and :func:`overlapping_words`.

    Example:
        >>> import torch
        >>> world = tp.World(n_topics=2, words_per_topic=3, topics_per_document=1, min_length=5, max_length=5)
        >>> documents = world.documents(4, generator=torch.Generator().manual_seed(0))
        >>> documents.ids.shape
        torch.Size([4, 5])
        >>> blocks = (documents.ids - 1) // 3  # words 1, 2, 3 are of topic 0, words 4, 5, 6 of topic 1
        >>> [len(topics) for topics in map(set, blocks.tolist())]
        [1, 1, 1, 1]
    """

    n_topics: int = 10
    words_per_topic: int = 10
    alpha: float | None = None
    topics_per_document: int | None = None
    min_length: int = 100
    max_length: int = 150
    word_probabilities: Sequence[Sequence[float]] | Float[Tensor, "topic word"] | None = None

    def __post_init__(self) -> None:
        settle_fields(self)
        for name in ("n_topics", "words_per_topic", "min_length", "max_length"):
            check_whole(name, getattr(self, name))
        if self.min_length > self.max_length:
            raise ValueError(
                f"min_length must not exceed max_length, got {self.min_length} > {self.max_length}"
            )
        if self.alpha is not None and self.topics_per_document is not None:
            raise ValueError(
                f"alpha={self.alpha} (LDA) and topics_per_document={self.topics_per_document} (uniform topics) are "
                "two different distributions; give one of them and leave the other None"
            )
        if self.topics_per_document is None:
            object.__setattr__(self, "alpha", 0.1 if self.alpha is None else self.alpha)
            check_number("alpha", self.alpha)
        else:
            check_whole("topics_per_document", self.topics_per_document)
            if self.topics_per_document > self.n_topics:
                raise ValueError(
                    f"a document cannot have topics_per_document={self.topics_per_document} distinct topics "
                    f"out of n_topics={self.n_topics}"
                )
        if self.word_probabilities is not None:
            # In one form however it was given: nested tuples compare, hash and go into JSON, which tensors do not.
            object.__setattr__(self, "word_probabilities", self._normalised_rows())

    def _normalised_rows(self) -> tuple[tuple[float, ...], ...]:
        matrix = torch.as_tensor(self.word_probabilities, dtype=torch.float64)
        if matrix.shape != (self.n_topics, self.n_words):
            raise ValueError(
                f"word_probabilities must have n_topics={self.n_topics} rows over the {self.n_words} words "
                f"1..{self.n_words} (n_topics × words_per_topic), got shape {tuple(matrix.shape)}"
            )
        if not (matrix.isfinite() & (matrix >= 0)).all() or (matrix.sum(dim=1) <= 0).any():
            raise ValueError("every row of word_probabilities must be finite, non-negative and not all zero")
        return tuple(map(tuple, (matrix / matrix.sum(dim=1, keepdim=True)).tolist()))

    @property
    def n_words(self) -> int:
        """Number of words n = T·v, without ``[MASK]``."""
        return self.n_topics * self.words_per_topic

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids, n + 1: ``[MASK]`` is id 0."""
        return self.n_words + 1

    @cached_property
    def topic_words(self) -> Float64[Tensor, "topic word"]:
        """P(word | topic); column 0 is word 1, because no topic contains ``[MASK]``."""
        if self.word_probabilities is None:
            return block_words(self.n_topics, self.words_per_topic)
        return torch.tensor(self.word_probabilities, dtype=torch.float64)

    @property
    def topics(self) -> Topics:
        """Which words belong to which topic: those to which it gives any probability."""
        if self.word_probabilities is None:
            return self.blocks
        words = {str(t): (row.nonzero().flatten() + 1).tolist() for t, row in enumerate(self.topic_words)}
        return Topics.from_token_ids(words, vocabulary_size=self.vocabulary_size)

    @property
    def blocks(self) -> Topics:
        """Every word in one topic only, that of ``block_of_word``."""
        return Topics.blocks(n_topics=self.n_topics, words_per_topic=self.words_per_topic)

    @property
    def has_disjoint_topics(self) -> bool:
        """Whether no word belongs to several topics."""
        return self.word_probabilities is None or bool(((self.topic_words > 0).sum(dim=0) <= 1).all())

    @property
    def block_of_word(self) -> Int64[Tensor, "word"]:
        """Topic of every word, ``ceil(i / v)`` counted from 0; where topics overlap, the one it is lent by."""
        return torch.arange(self.n_words) // self.words_per_topic

    @property
    def dirichlet_parameter(self) -> float:
        """The alpha of a world that follows LDA."""
        assert self.alpha is not None, "uniform topics have no Dirichlet parameter"
        return self.alpha

    @property
    def topic_moments(self) -> Float64[Tensor, "topic topic"]:
        """E[θ θᵀ] of the topic proportions θ, exact for both distributions.

        Example:
            >>> tp.World(n_topics=2, topics_per_document=1).topic_moments.tolist()  # never both in one document
            [[0.5, 0.0], [0.0, 0.5]]
            >>> tp.World(n_topics=2, alpha=1.0).topic_moments.mul(12).round().tolist()  # uniform on the simplex
            [[4.0, 2.0], [2.0, 4.0]]
        """
        T, tau = self.n_topics, self.topics_per_document
        if tau is not None:
            same = 1 / (T * tau)
            different = (tau - 1) / (tau * T * (T - 1)) if T > 1 else 0.0
        else:
            alpha = self.dirichlet_parameter
            same = (alpha + 1) / (T * (T * alpha + 1))
            different = alpha / (T * (T * alpha + 1))
        return torch.full((T, T), different, dtype=torch.float64).fill_diagonal_(same)

    @property
    def documents_vary(self) -> bool:
        """Whether documents differ in their topic proportions; with one topic, or τ = T, all are alike."""
        return self.n_topics > 1 and self.topics_per_document != self.n_topics

    @checked
    def documents(self, n: int, *, generator: torch.Generator) -> Documents:
        """A batch of n new documents, padded to the longest of them."""
        check_whole("n", n)
        lengths = torch.randint(self.min_length, self.max_length + 1, (n, 1), generator=generator)
        mask = torch.arange(int(lengths.max())) < lengths
        topics_of = self._dirichlet_topics if self.topics_per_document is None else self._uniform_topics
        proportions, topics = topics_of(n, mask.shape[1], generator)
        if self.word_probabilities is None:
            ids = torch.randint(1, self.words_per_topic + 1, topics.shape, generator=generator)
            ids.add_(topics, alpha=self.words_per_topic)
        else:
            # One sorted list holds the distribution functions of all topics, topic t raised by t. Rounding
            # must not carry a draw into the next topic.
            steps = self.topic_words.cumsum(dim=1)
            raised = steps / steps[:, -1:] + torch.arange(self.n_topics).unsqueeze(1)
            topics = topics.double()
            ceiling = torch.nextafter(topics + 1.0, topics)
            drawn = torch.rand(topics.shape, dtype=torch.float64, generator=generator)
            entry = torch.searchsorted(raised.flatten(), torch.minimum(topics + drawn, ceiling), right=True)
            ids = entry.remainder_(self.n_words).add_(1)
        return Documents(ids.masked_fill_(~mask, 0), mask, proportions)

    def _dirichlet_topics(
        self, n: int, width: int, generator: torch.Generator
    ) -> tuple[Float64[Tensor, "batch topic"], Integer[Tensor, "batch position"]]:
        """Proportions from Dirichlet(α), by normalising gamma variables in log space, and the topic of every position.

        A gamma variable of a small shape is mostly below the smallest float; the identity
        gamma(α) = gamma(α + 1) · uniform^(1/α) keeps its logarithm finite.
        """
        alpha = self.alpha
        assert alpha is not None
        shapes = torch.full((n, self.n_topics), alpha + 1, dtype=torch.float64)
        gamma = torch._standard_gamma(shapes, generator=generator)
        uniform = 1 - torch.rand(shapes.shape, dtype=torch.float64, generator=generator)
        proportions = torch.softmax(gamma.log_() + uniform.log_() / alpha, dim=1)
        steps = proportions.cumsum(dim=1)
        # Ends at exactly 1, so that every uniform number below 1 finds its place.
        steps /= steps[:, -1:].clone()
        levels = torch.rand(n, width, dtype=torch.float64, generator=generator)
        if self.n_topics > 32:
            return proportions, torch.searchsorted(steps, levels, right=True)
        # For few steps comparing with each takes a quarter of the time of a search.
        reached = torch.zeros(n, width, dtype=torch.uint8)
        for step in steps[:, :-1].unbind(1):
            reached += levels >= step.unsqueeze(1)
        return proportions, reached

    def _uniform_topics(
        self, n: int, width: int, generator: torch.Generator
    ) -> tuple[Float64[Tensor, "batch topic"], Int64[Tensor, "batch position"]]:
        """τ distinct topics per document in equal shares, and the topic of every position."""
        count = self.topics_per_document
        assert count is not None
        order = torch.rand(n, self.n_topics, dtype=torch.float64, generator=generator)
        chosen = order.topk(count, dim=1).indices
        proportions = torch.zeros(n, self.n_topics, dtype=torch.float64)
        slots = torch.randint(count, (n, width), generator=generator)
        return proportions.scatter_(1, chosen, 1 / count), chosen.gather(1, slots)


def block_words(n_topics: int, words_per_topic: int) -> Float64[Tensor, "topic word"]:
    """P(word | topic) of the paper: disjoint topics, all words of a topic equally likely."""
    return zipf_words(n_topics, words_per_topic, exponent=0.0)


def zipf_words(
    n_topics: int, words_per_topic: int, *, exponent: float = 1.0
) -> Float64[Tensor, "topic word"]:
    """P(word | topic) of disjoint topics whose r-th word has probability proportional to r^−exponent."""
    rank = torch.arange(1, words_per_topic + 1, dtype=torch.float64)
    share = rank**-exponent
    return torch.kron(torch.eye(n_topics, dtype=torch.float64), (share / share.sum()).unsqueeze(0))


def overlapping_words(
    n_topics: int, words_per_topic: int, *, overlap: float = 0.5
) -> Float64[Tensor, "topic word"]:
    """P(word | topic) of topics that lend words to each other.

    Every topic puts the share ``overlap`` of its probability on the words of the next topic (the last one on
    those of the first) and the rest on its own. 0 gives disjoint topics; 1 only renames them.
    """
    check_share("overlap", overlap, why="a share of probability")
    own = block_words(n_topics, words_per_topic)
    return (1 - overlap) * own + overlap * own.roll(words_per_topic, dims=1)


# --- masking -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MaskedBatch:
    """Documents with some positions chosen for prediction.

    Attributes:
        shown: The corrupted ids, what a model sees; 0 is ``[MASK]`` (and padding, where ``mask`` is False).
        target: The original ids.
        mask: True where a document has a token.
        chosen: The set M, True where the original word is to be predicted; never in padding.
    """

    shown: Int64[Tensor, "batch position"]
    target: Int64[Tensor, "batch position"]
    mask: Bool[Tensor, "batch position"]
    chosen: Bool[Tensor, "batch position"]

    def __len__(self) -> int:
        return self.shown.shape[0]

    def visible(self, attend: Attend) -> Bool[Tensor, "batch position"]:
        """True where a position may be attended to: the ``attention_mask`` of a hooked model."""
        return self.mask if attend == "all" else self.mask & ~self.chosen

    def select(self, rows: Int64[Tensor, "picked"] | Bool[Tensor, "batch"] | slice) -> "MaskedBatch":
        """The documents of these rows, in that order."""
        return MaskedBatch(*(getattr(self, part.name)[rows] for part in fields(self)))

    def counts(self, vocabulary_size: int, attend: Attend = "all") -> Int64[Tensor, "document token"]:
        """How often each document shows each token where it may be attended to."""
        columns = vocabulary_size + 1  # the last one is of positions that may not
        tokens = self.shown.masked_fill(~self.visible(attend), vocabulary_size)
        n = tokens.shape[0]
        cells = tokens + columns * torch.arange(n)[:, None]
        return torch.bincount(cells.flatten(), minlength=n * columns).view(n, columns)[:, :-1]

    def document_means(self, values: Float64[Tensor, "chosen *shape"]) -> Float64[Tensor, "document *shape"]:
        """Mean over the chosen positions of every document that has any, of a value (or array) for each of them."""
        sizes = self.chosen.sum(dim=1)
        sums = torch.zeros(len(self), *values.shape[1:], dtype=torch.float64)
        sums.index_add_(0, self.chosen.nonzero()[:, 0], values)
        return sums[sizes > 0] / sizes[sizes > 0].view(-1, *[1] * (values.ndim - 1))


@dataclass(frozen=True)
class Masking:
    """The masking scheme of Section 3.2.

    Every position is chosen independently of all others. A chosen position that neither keeps its word nor shows a
    random one shows ``[MASK]``.

    Attributes:
        p_mask: Probability of a position to be chosen.
        p_keep: Probability of a chosen position to keep its word.
        p_random: Probability of a chosen position to show a uniformly random word of 1..n (possibly the same again).

    Example:
        >>> masking = tp.Masking(p_mask=0.5, p_keep=0.25, p_random=0.25)
        >>> masking.mask_share, masking.genuine_share  # ½ (1 − ¼ − ¼) and 1 − (1 − ¼) ½
        (0.25, 0.625)
    """

    p_mask: float = 0.15
    p_keep: float = 0.1
    p_random: float = 0.1

    def __post_init__(self) -> None:
        settle_fields(self)
        for name in ("p_mask", "p_keep", "p_random"):
            check_share(name, getattr(self, name), why="a probability")
        if self.p_keep + self.p_random > 1:
            raise ValueError(
                "p_keep + p_random must not exceed 1, because the rest is the probability of showing [MASK]; "
                f"got {self.p_keep} + {self.p_random}"
            )

    @property
    def mask_share(self) -> float:
        """Share of positions that show ``[MASK]``, m = p_m (1 − p_c − p_r)."""
        return self.p_mask * (1 - self.p_keep - self.p_random)

    @property
    def genuine_share(self) -> float:
        """Share of positions that show their own word without being random, a = 1 − (1 − p_c) p_m."""
        return 1 - (1 - self.p_keep) * self.p_mask

    def random_share(self, world: World) -> float:
        """Share of positions that show one given word because of a random draw, ε = p_m p_r / n."""
        return self.p_mask * self.p_random / world.n_words

    @checked
    def corrupt(self, documents: Documents, *, n_words: int, generator: torch.Generator) -> MaskedBatch:
        """New documents with positions chosen and corrupted; random words are drawn from 1..n_words.

        Example:
            >>> import torch
            >>> world, generator = tp.World(n_topics=2, words_per_topic=2), torch.Generator().manual_seed(0)
            >>> documents = world.documents(3, generator=generator)
            >>> every = tp.Masking(p_mask=1.0, p_keep=0.0, p_random=0.0)
            >>> int(every.corrupt(documents, n_words=4, generator=generator).shown.max())  # [MASK] everywhere
            0
        """
        check_whole("n_words", n_words)
        ids = documents.ids
        # A uniform number below p_mask chooses the position, and where it lies below p_mask says what is shown there.
        level = torch.rand(ids.shape, dtype=torch.float64, generator=generator)
        chosen = (level < self.p_mask) & documents.mask
        shown = ids.masked_fill(chosen & (level >= self.p_mask * self.p_keep), MASK_ID)
        random = (shown != ids) & (level < self.p_mask * (self.p_keep + self.p_random))
        rows, positions = random.nonzero(as_tuple=True)
        shown[rows, positions] = torch.randint(1, n_words + 1, rows.shape, generator=generator)
        return MaskedBatch(shown, ids, documents.mask, chosen)


def position_losses(
    logits: Float[Tensor, "masked word"], target: Int64[Tensor, "masked"], *, loss: Loss
) -> Float[Tensor, "masked"]:
    """The loss of every prediction, given the word that was there."""
    if loss == "cross_entropy":
        return cross_entropy(logits, target, reduction="none")
    return (logits - one_hot(target, logits.shape[1])).square().sum(dim=1)
