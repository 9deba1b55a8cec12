"""Masked-language-model corruption: which positions are to be predicted, what is shown there, what errors cost."""

from dataclasses import dataclass, fields
from typing import Literal

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from topic_probe.options import check_share, check_whole, checked, settle_fields
from topic_probe.toy.world import Documents, World

MASK_ID = 0

Loss = Literal["cross_entropy", "squared"]
"""Of a prediction at a masked position: cross-entropy in nats, or the squared distance to the one-hot word."""

Attend = Literal["all", "unmasked"]
"""Which positions attention may see: all, or those that were not chosen for prediction."""


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
        cells = tokens + columns * torch.arange(len(self))[:, None]
        return torch.bincount(cells.flatten(), minlength=len(self) * columns).view(-1, columns)[:, :-1]

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
