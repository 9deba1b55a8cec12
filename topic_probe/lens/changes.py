"""What is done to the heads of one site while they are edited, on plain tensors: the same for every kind of host."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from topic_probe.lens.sites import allows

Outputs = Float[Tensor, "batch query head d_head"]
Edges = Bool[Tensor, "#batch #head query key"]
How = Literal["scores", "weights"]
HOWS: tuple[How, ...] = get_args(How)


@dataclass(frozen=True)
class Change:
    """Edges that are cut at a site, and what its heads put out instead.

    Attributes:
        scores: the edges that are cut before the softmax, so that their mass goes to the other keys of the row.
        weights: the edges that are cut behind it, so that their mass is lost.
        outputs: what takes the outputs of all heads and gives those that go on.
    """

    scores: Edges | None = None
    weights: Edges | None = None
    outputs: Callable[[Outputs], Outputs] | None = None

    def then(self, other: "Change") -> "Change":
        """Both: the edges of either are cut, and the outputs pass through one function after the other."""
        first, second = self.outputs, other.outputs
        both = None if first is None or second is None else lambda outputs: second(first(outputs))
        edges = _either(self.scores, other.scores), _either(self.weights, other.weights)
        return Change(*edges, both or first or second)

    def edges(self, how: How, shape: torch.Size, device: torch.device) -> Tensor | None:
        """The edges that are cut in one way, for a call of attention on [batch, head, query, key].

        Raises:
            ValueError: where they are those of other inputs.
        """
        cut = self.scores if how == "scores" else self.weights
        if cut is None:
            return None
        fits = zip(cut.shape, shape, (True, True, False, False), strict=False)
        if cut.ndim != 4 or not all(n == m or (n == 1 and shared) for n, m, shared in fits):
            raise ValueError(
                "edges are cut by a mask [batch, head, query, key] whose batch and head may be 1 (the same for all): "
                f"this forward pass needed {list(shape)}, got {list(cut.shape)}. Give each batch its own block"
            )
        return cut.to(device)

    def pattern(self, pattern: Float[Tensor, "batch head query key"]) -> Tensor:
        """A pattern without the edges that are cut; rows of which nothing is cut stay as they are, bit for bit."""
        if (cut := self.edges("scores", pattern.shape, pattern.device)) is not None:
            kept = pattern.masked_fill(cut, 0)
            left = kept.sum(-1, keepdim=True)
            # A row with nothing left is zero, not the NaN of a division.
            shared = kept / left.masked_fill(left == 0, 1)
            pattern = torch.where(cut.any(-1, keepdim=True), shared, pattern)
        if (cut := self.edges("weights", pattern.shape, pattern.device)) is not None:
            pattern = pattern.masked_fill(cut, 0)
        return pattern

    def replace(self, outputs: Outputs) -> Outputs:
        """What goes on in place of the outputs of the heads.

        Raises:
            ValueError: where it is not as large as they are.
        """
        if self.outputs is None:
            return outputs
        given = self.outputs(outputs)
        if not isinstance(given, Tensor) or given.shape != outputs.shape or given.dtype != outputs.dtype:
            what = (
                f"{list(given.shape)} of {given.dtype}" if isinstance(given, Tensor) else type(given).__name__
            )
            raise ValueError(
                "what replaces the outputs of heads must be a tensor like them: needed [batch, query, head, d_head] = "
                f"{list(outputs.shape)} of {outputs.dtype}, got {what}. A function gives back what it changes"
            )
        return given.contiguous()  # some layers take it as it lies in memory


NO_CHANGE = Change()


def _either(one: Edges | None, other: Edges | None) -> Edges | None:
    if one is None or other is None:
        return one if other is None else other
    return one | other.to(one.device)


def cut_mask(
    cut: Bool[Tensor, "#batch #head query key"], mask: Tensor | None, *, causal: bool
) -> tuple[Tensor, Bool[Tensor, "_ _ query 1"]]:
    """The mask of a call of attention with edges cut, and the rows of which the cut leaves nothing.

    In these it cuts nothing, because a softmax of nothing is no number: what they put out is to be made zero.

    Args:
        cut: the edges.
        mask: the mask that the layer has by itself, boolean or added to the scores.
        causal: what a layer without a mask knows by itself.
    """
    if mask is None:
        mask = torch.ones_like(cut[:1, :1])
        mask = mask.tril() if causal and mask.shape[2] > 1 else mask
    visible = allows(mask)
    emptied = visible.any(-1, keepdim=True) & ~(visible & ~cut).any(-1, keepdim=True)
    hidden = cut & ~emptied
    if mask.dtype == torch.bool:
        return mask & ~hidden, emptied
    return torch.where(hidden, torch.finfo(mask.dtype).min, mask), emptied
