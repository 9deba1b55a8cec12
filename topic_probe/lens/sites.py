"""Where a model attends, what goes into it, and what its patterns show, in words that are the same for every host."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor


@dataclass(frozen=True)
class Site:
    """One place where a model attends.

    Attributes:
        stack: "self" in models with one stack, otherwise "encoder", "decoder" or "cross" (decoder positions attending
            to encoder positions).
        layer: number of the layer within its stack, from 0. Layers that share weights are still one site each; in
            models where only some layers attend, these keep their numbers.
        hook_name: the name of the pattern's hook point.
    """

    stack: str
    layer: int
    hook_name: str


@dataclass(frozen=True)
class Inputs:
    """What goes into a model: right-padded ids with their masks, a second pair for a decoder."""

    ids: Int64[Tensor, "batch position"]
    mask: Bool[Tensor, "batch position"]
    target_ids: Int64[Tensor, "batch target"] | None = None
    target_mask: Bool[Tensor, "batch target"] | None = None

    def side(self, name: str) -> tuple[Tensor, Tensor]:
        """Ids and mask of the "source" or the "target" side."""
        if name == "source":
            return self.ids, self.mask
        if self.target_ids is None or self.target_mask is None:
            raise ValueError("these inputs have no target side, which a decoder needs")
        return self.target_ids, self.target_mask

    def document(self, number: int) -> "Inputs":
        """One document by itself, without padding."""
        row = slice(number, number + 1)
        sides = (self.side(side) for side in ("source", "target")[: 1 if self.target_ids is None else 2])
        return Inputs(*(part[row, mask[number]] for ids, mask in sides for part in (ids, mask)))

    def masks(self, site: Site) -> tuple[Bool[Tensor, "batch query"], Bool[Tensor, "batch key"]]:
        """Which queries and which keys of a site are real tokens."""
        queries, keys = SIDES[site.stack]
        return self.side(queries)[1], self.side(keys)[1]


SIDES = {
    "self": ("source", "source"),
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("target", "source"),
}
"""Whose positions are queries and whose are keys, by stack."""


TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""How far rows of attention may be from summing to one, and a document from itself in a batch, by precision."""


def batch_error(
    site: Site, batched: Float[Tensor, "batch head query key"], single: Tensor, inputs: Inputs, number: int
) -> Float[Tensor, ""]:
    """How far the pattern of a document in a batch is from that of it alone, at most."""
    queries, keys = (mask[number] for mask in inputs.masks(site))
    return (batched[number][:, queries][:, :, keys].double() - single[0].double()).abs().max()


@dataclass(frozen=True)
class Sharing:
    """Which documents may share a batch.

    Attributes:
        lengths: whether documents of different length may: False where padding changes what is beside it.
        batches: whether any documents may: False where documents change what is beside them.
        note: why not, for reports; empty where all may.
    """

    lengths: bool
    batches: bool
    note: str


EVERY_BATCH = Sharing(True, True, "")


_SCORES = " (scores from before the softmax, as SqueezeBERT returns them, are none)"


def check_pattern(site: Site, pattern: Tensor, inputs: Inputs, *, whose: str) -> bool:
    """Whether no real query of a site attends to padding.

    Raises:
        ValueError: where this cannot be a pattern: its shape is another, or its numbers are not probabilities.
    """
    queries, keys = inputs.masks(site)
    needed = (*queries.shape, keys.shape[1])
    right_shape = pattern.ndim == 4 and (len(pattern), *pattern.shape[2:]) == needed
    # A row may sum to less than one (some models let a head attend to nothing), never to more.
    if not right_shape or bool((pattern < 0).any()) or bool((pattern.float().sum(-1) > 1.02).any()):
        raise ValueError(
            f"what {site.hook_name} of {whose} shows is not an attention pattern: needed probabilities of shape "
            f"[{needed[0]}, head, {needed[1]}, {needed[2]}], got {tuple(pattern.shape)} with values from "
            f"{float(pattern.min()):.3g} to {float(pattern.max()):.3g}{_SCORES if right_shape else ''}. Where this is "
            "a bridge, pass the Hugging Face model itself to topic_probe.open_model, which reads it without the adapter"
        )
    to_padding = queries[:, None, :, None] & ~keys[:, None, None, :]
    return not bool((pattern.masked_fill(~to_padding, 0) != 0).any())


def looks_ahead(site: Site, pattern: Float[Tensor, "batch head query key"], inputs: Inputs) -> bool:
    """Whether some query of a site attends to a later position; what never does is causal.

    One pair may underflow to exactly zero in every head; all later ones do so only where a mask forbids them. Padding
    is no query: a row of it that sees padding alone, as in the last chunk of a document, is uniform over everything.
    """
    queries, _ = inputs.masks(site)
    return bool((pattern.triu(1).masked_fill(~queries[:, None, :, None], 0) > 0).any())


# Rows, and which keys a query may see: what a configuration says of it can be wrong.


def take_rows(
    table: Shaped[Tensor, "_ head position width"], index: Int64[Tensor, "document row"]
) -> Shaped[Tensor, "document head row width"]:
    """Rows of the table of every document, or of the one that all have."""
    index = index.to(table.device)
    wide = table.expand(len(index), -1, -1, -1)
    if table.device.type == "cpu":  # whole rows are copied; a gather looks up every single number
        documents = zip(wide, index, strict=True)
        return torch.stack([document.index_select(1, rows) for document, rows in documents])
    return wide.gather(2, index[:, None, :, None].expand(-1, wide.shape[1], -1, wide.shape[3]))


def allows(mask: Tensor) -> Bool[Tensor, "..."]:
    """True where a mask, boolean or added to the scores, lets a query see a key."""
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


def visible_keys(mask: Tensor | None, batch: int, queries: int, keys: int) -> Bool[Tensor, "batch query key"]:
    """True where the mask of an attention call lets a query see a key."""
    if mask is None:
        return torch.ones(batch, queries, keys, dtype=torch.bool)
    allowed = allows(mask)
    if allowed.shape[1] > 1 and not bool((allowed == allowed[:, :1]).all()):
        raise ValueError(
            "the heads of a layer see different keys, so that none has one number of visible keys to compare with; "
            "only layers whose heads share a mask can be measured"
        )
    return allowed[:, 0].expand(batch, queries, -1)[..., :keys]


# What a model is tried on.


TRIAL_LENGTH, TRIAL_TARGET = 7, 5
"""Tokens of a trial: two documents of different length, and a decoder of another length than the encoder, are enough to
see padding, and to tell the three kinds of attention apart by their shapes alone."""
_SHORTER_BY = 3


def some_tokens(vocabulary: int, device: torch.device, length: int = TRIAL_LENGTH) -> Inputs:
    """Two documents of different length."""
    numbers = torch.arange(2 * length, device=device)
    ids = numbers.reshape(2, -1) % max(vocabulary - 4, 1) + min(3, vocabulary - 1)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, -_SHORTER_BY:] = False
    return Inputs(ids, mask)
