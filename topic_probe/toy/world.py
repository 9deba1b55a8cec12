"""Worlds: the two distributions over documents of the paper, sampled in whole batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Float64, Int64, Integer
from torch import Tensor

from topic_probe.options import check_number, check_share, check_whole, checked, settle_fields
from topic_probe.topics import Topics


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
        ids = self._draw_words(topics, generator).masked_fill_(~mask, 0)
        return Documents(ids, mask, proportions)

    def _dirichlet_topics(
        self, n: int, width: int, generator: torch.Generator
    ) -> tuple[Float64[Tensor, "batch topic"], Integer[Tensor, "batch position"]]:
        """Proportions from Dirichlet(α), by normalising gamma variables in log space, and the topic of every position.

        A gamma variable of a small shape is mostly below the smallest float; the identity
        gamma(α) = gamma(α + 1) · uniform^(1/α) keeps its logarithm finite.
        """
        alpha = self.dirichlet_parameter
        shapes = torch.full((n, self.n_topics), alpha + 1, dtype=torch.float64)
        gamma = torch._standard_gamma(shapes, generator=generator)
        uniform = 1 - _uniform(shapes.shape, generator)
        proportions = torch.softmax(gamma.log_() + uniform.log_() / alpha, dim=1)
        steps = proportions.cumsum(dim=1)
        # Ends at exactly 1, so that every uniform number below 1 finds its place.
        steps /= steps[:, -1:].clone()
        return proportions, _steps_below(steps, _uniform((n, width), generator))

    def _uniform_topics(
        self, n: int, width: int, generator: torch.Generator
    ) -> tuple[Float64[Tensor, "batch topic"], Int64[Tensor, "batch position"]]:
        """τ distinct topics per document in equal shares, and the topic of every position."""
        count = self.topics_per_document
        assert count is not None
        chosen = _uniform((n, self.n_topics), generator).topk(count, dim=1).indices
        proportions = torch.zeros(n, self.n_topics, dtype=torch.float64)
        slots = torch.randint(count, (n, width), generator=generator)
        return proportions.scatter_(1, chosen, 1 / count), chosen.gather(1, slots)

    def _draw_words(
        self, topics: Integer[Tensor, "batch position"], generator: torch.Generator
    ) -> Int64[Tensor, "batch position"]:
        """A word for every topic."""
        if self.word_probabilities is None:
            word = torch.randint(1, self.words_per_topic + 1, topics.shape, generator=generator)
            return word.add_(topics, alpha=self.words_per_topic)
        # One sorted list holds the distribution functions of all topics, topic t raised by t. Rounding
        # must not carry a draw into the next topic.
        steps = self.topic_words.cumsum(dim=1)
        raised = steps / steps[:, -1:] + torch.arange(self.n_topics).unsqueeze(1)
        topics = topics.double()
        ceiling = torch.nextafter(topics + 1.0, topics)
        level = torch.minimum(topics + _uniform(topics.shape, generator), ceiling)
        entry = torch.searchsorted(raised.flatten(), level, right=True)
        return entry.remainder_(self.n_words).add_(1)


def _uniform(shape: Sequence[int], generator: torch.Generator) -> Float64[Tensor, "batch column"]:
    return torch.rand(tuple(shape), dtype=torch.float64, generator=generator)


def _steps_below(
    steps: Float64[Tensor, "row step"], levels: Float64[Tensor, "row column"]
) -> Integer[Tensor, "row column"]:
    """How many of its row's steps, which are sorted, each level has reached; it must be below the last one."""
    if steps.shape[1] > 32:
        return torch.searchsorted(steps, levels, right=True)
    # For few steps comparing with each takes a quarter of the time of a search.
    reached = torch.zeros(levels.shape, dtype=torch.uint8)
    for step in steps[:, :-1].unbind(1):
        reached += levels >= step.unsqueeze(1)
    return reached


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
