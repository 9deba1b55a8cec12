"""The loss of a toy transformer, computed from its own parameters without computing every position.

Without positions a prediction depends only on the document's word counts and on the token shown at the predicting
position, so the positions of a batch fall into a few *queries* per document (mostly ``[MASK]``), and attention over
positions is attention over words weighted by their counts. Keys enter through inner products only,
(W_Kᵀ (W_Q z + b_Q))·Z, where b_K shifts all scores of a query alike and drops out of the softmax; values enter
linearly, W_V (Z A) + b_V. Under uniform attention all positions of a document share one prediction.

Several toys of one form have one batch, which holds as many documents of each, and their queries an axis ``toy`` in
front. Those of a toy are padded with some of weight 0 to as many as the most have.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn
from torch.nn.functional import embedding

from topic_probe.toy.draws import Draws
from topic_probe.toy.masking import Loss, MaskedBatch, Masking, position_losses
from topic_probe.toy.model import toy_config, toy_logits, toy_parameters, toy_tensors
from topic_probe.toy.world import World


@dataclass(frozen=True)
class Queries:
    """A masked batch, reduced to what the loss of a one-layer toy depends on.

    Attributes:
        counts: How often each document shows each token.
        document: The document of every query.
        token: The token every query shows.
        entry: For every position that is to be predicted, where its query and the word that was there cross in a table
            of queries × words.
        share: The share of each in the mean over documents of the mean over M; they sum to 1 for each toy.
    """

    counts: Float[Tensor, "document word"]
    document: Int64[Tensor, "*toy query"]
    token: Int64[Tensor, "*toy query"]
    entry: Int64[Tensor, " masked"]
    share: Float64[Tensor, " masked"]

    @property
    def weights(self) -> Float[Tensor, "*toy query word"]:
        """For each query, the share of every original word."""
        shape = (*self.document.shape, self.counts.shape[1])
        weights = torch.bincount(self.entry, weights=self.share, minlength=math.prod(shape))
        return weights.view(shape).to(self.counts.dtype)

    @property
    def row_weights(self) -> Float[Tensor, "*toy query"]:
        """The same for all words together."""
        query = self.entry.div(self.counts.shape[1], rounding_mode="floor")
        weights = torch.bincount(query, weights=self.share, minlength=self.document.numel())
        return weights.view(self.document.shape).to(self.counts.dtype)


@dataclass(frozen=True)
class LeanForm:
    """What the lean loss may leave out for a model, seen in the values of its frozen tensors.

    Attributes:
        uniform: Attention cannot depend on the key, so it is uniform.
        identity: Tensors frozen at the identity; products with them are left out.
        zero: Tensors frozen at zero; sums with them are left out.
    """

    uniform: bool
    identity: frozenset[str]
    zero: frozenset[str]


def lean_form(model: nn.Module) -> LeanForm | None:
    """How to compute the model's loss leanly; None where the lean form cannot express it.

    Several layers or heads, a residual connection and hooks that someone put on the model need the hooked forward.
    """
    config = toy_config(model)
    if config.n_layers > 1 or config.n_heads > 1 or config.residual or has_hooks(model):
        return None
    tensors = toy_tensors(model)
    frozen = {name: tensors[name] for name, leaf in toy_parameters(model).items() if not leaf.requires_grad}
    zero = frozenset(name for name, value in frozen.items() if not value.any())
    square = {name: value for name, value in frozen.items() if value.ndim == 2 and len(set(value.shape)) == 1}
    identity = frozenset(
        n for n, value in square.items() if torch.equal(value, torch.eye(len(value)).to(value))
    )
    return LeanForm("W_K" in zero or {"W_Q", "b_Q"} <= zero, identity, zero)


def has_hooks(model: nn.Module) -> bool:
    """Whether someone put a hook on the model."""
    points: Mapping[str, Any] = model.hook_dict  # type: ignore[assignment]
    return any(point.fwd_hooks or point.bwd_hooks for point in points.values())


@dataclass(frozen=True)
class MaskedCounts:
    """A masked batch without the order of its words, which the lean loss does not depend on.

    Attributes:
        counts: How often each document shows each token.
        document: The document of every position that is to be predicted, in order.
        target: The words that were there.
        shown: What is shown there.
    """

    counts: Int64[Tensor, "document word"]
    document: Int64[Tensor, " masked"]
    target: Int64[Tensor, " masked"]
    shown: Int64[Tensor, " masked"]

    @classmethod
    def of_batch(cls, batch: MaskedBatch, vocabulary_size: int) -> "MaskedCounts":
        """Those of any masked documents."""
        rows, positions = batch.chosen.nonzero(as_tuple=True)
        target, shown = batch.target[rows, positions], batch.shown[rows, positions]
        return cls(batch.counts(vocabulary_size), rows, target, shown)

    @classmethod
    def fresh(cls, world: World, masking: Masking, n: int, draws: Draws) -> "MaskedCounts":
        """Those of new documents, n of every generator: what `World.draw` and `Masking.corrupt_drawn` would make.

        Words are counted before they are masked, and those that are shown as another token are counted anew. No
        document has [MASK] before, and what is counted as that is padding.
        """
        documents, width = world.draw(n, draws), world.vocabulary_size
        chosen = masking.choose(documents, world.n_words, draws)
        start = torch.arange(len(documents), device=draws.device).mul_(width)
        counts = torch.bincount(
            (documents.ids + start.unsqueeze(1)).flatten(), minlength=len(documents) * width
        )
        counts[start] = 0
        document = chosen.place.div(documents.ids.shape[1], rounding_mode="floor")
        cell, one = document * width, torch.ones_like(document)
        counts.index_add_(0, cell + chosen.target, one, alpha=-1).index_add_(0, cell + chosen.shown, one)
        return cls(counts.view(-1, width), document, chosen.target, chosen.shown)

    @classmethod
    def joined(cls, parts: "Sequence[MaskedCounts]") -> "MaskedCounts":
        """Those of all documents, one part behind the other."""
        if len(parts) == 1:
            return parts[0]
        before = accumulate((len(part.counts) for part in parts), initial=0)
        document = [part.document + n for part, n in zip(parts, before, strict=False)]
        rest = [torch.cat([getattr(part, name) for part in parts]) for name in ("counts", "target", "shown")]
        return cls(rest[0], torch.cat(document), *rest[1:])

    def part(self, first: int, last: int) -> "MaskedCounts":
        """Those of the documents first..last - 1."""
        own = (self.document >= first) & (self.document < last)
        return MaskedCounts(
            self.counts[first:last], self.document[own] - first, self.target[own], self.shown[own]
        )

    def to(self, device: torch.device) -> "MaskedCounts":
        """The same on a device."""
        return MaskedCounts(*(getattr(self, part.name).to(device) for part in fields(self)))


def queries(
    batch: MaskedCounts, *, uniform: bool, dtype: torch.dtype, n_toys: int | None = None
) -> Queries | None:
    """The queries of a batch; None if nothing is masked in it.

    Args:
        batch: Masked documents.
        uniform: Attention is uniform, so one query per document (its token is meaningless) stands for all.
        dtype: Of the floating-point results.
        n_toys: The batch holds as many documents of each of so many toys, one toy behind the other, and the results
            have an axis ``toy``; None: it is of one, and they have none.
    """
    n, width = batch.counts.shape
    rows = batch.document
    if len(rows) == 0:
        return None
    share = _shares(rows, n, n_toys or 1)
    if uniform:
        query, document = rows, torch.arange(n, device=rows.device)
        token = torch.zeros_like(document)
    else:
        pair, query = distinct(rows * width + batch.shown, n * width)
        document, token = pair.div(width, rounding_mode="floor"), pair.remainder(width)
    if n_toys is not None:
        place, document, token = _side_by_side(document, token, n // n_toys, n_toys)
        query = place[query]
    return Queries(batch.counts.to(dtype), document, token, query * width + batch.target, share)


def distinct(
    numbers: Int64[Tensor, " number"], size: int
) -> tuple[Int64[Tensor, " distinct"], Int64[Tensor, " number"]]:
    """The distinct ones among numbers of 0..size - 1, in order, and which of them each is."""
    there = torch.zeros(size, dtype=torch.bool, device=numbers.device)
    there[numbers] = True
    return there.nonzero()[:, 0], there.cumsum(0).sub_(1)[numbers]


def _side_by_side(
    document: Int64[Tensor, " query"], token: Int64[Tensor, " query"], n_documents: int, n_toys: int
) -> tuple[Int64[Tensor, " query"], Int64[Tensor, "toy padded"], Int64[Tensor, "toy padded"]]:
    """Where each query of a batch of several toys stands in a row for each toy, and those rows.

    A place without a query shows token 0 in the first document of its toy.
    """
    toy = document.div(n_documents, rounding_mode="floor")
    sizes = torch.bincount(toy, minlength=n_toys)
    widest = int(sizes.max())
    first = torch.arange(n_toys, device=toy.device) * widest - (sizes.cumsum(0) - sizes)
    place = torch.arange(len(toy), device=toy.device) + first[toy]
    documents = torch.arange(n_toys, device=toy.device).mul_(n_documents).repeat_interleave(widest)
    tokens = torch.zeros_like(documents).scatter_(0, place, token)
    return place, documents.scatter_(0, place, document).view(n_toys, -1), tokens.view(n_toys, -1)


def lean_loss(
    tensors: Mapping[str, Float[Tensor, "..."]], form: LeanForm, batch: Queries, *, loss: Loss
) -> Float[Tensor, ""]:
    """The mean over documents of the mean loss over M, differentiable in the tensors.

    Args:
        tensors: :func:`topic_probe.toy.model.toy_tensors` of a one-layer, one-head model without residual.
        form: :func:`lean_form` of that model.
        batch: What to predict, of this model alone, made with ``uniform=form.uniform``.
        loss: Of a prediction.
    """
    logits, weights = _lean_logits(tensors, form, batch), batch.weights
    if loss == "cross_entropy":
        return -(weights * logits.log_softmax(dim=-1)).sum()
    # |x − e_y|² = |x|² − 2 x_y + 1, and the weights sum to 1.
    lengths = logits.square().sum(dim=-1)
    squares: Tensor = torch.linalg.vecdot(weights.sum(dim=-1), lengths)
    return squares - 2 * (weights * logits).sum(dim=(-2, -1)) + 1


def hooked_loss(model: nn.Module, batch: MaskedBatch, *, loss: Loss) -> Float[Tensor, ""] | None:
    """The same loss through the hooked forward, at any depth; None if nothing is masked in the batch."""
    rows, positions = batch.chosen.nonzero(as_tuple=True)
    if len(rows) == 0:
        return None
    logits = toy_logits(model, batch.shown, batch.mask)[rows, positions]
    losses = position_losses(logits, batch.target[rows, positions], loss=loss)
    return _shares(rows, len(batch)).to(losses.dtype) @ losses


def _shares(rows: Int64[Tensor, "masked"], n_documents: int, n_toys: int = 1) -> Float[Tensor, "masked"]:
    """Weight of every masked position: 1 / |M| of its document / number of the toy's documents that have any."""
    sizes = torch.bincount(rows, minlength=n_documents).view(n_toys, -1)
    return 1 / (sizes * (sizes > 0).sum(dim=1, keepdim=True)).flatten().to(torch.float64)[rows]


def _lean_logits(
    tensors: Mapping[str, Float[Tensor, "..."]], form: LeanForm, batch: Queries
) -> Float[Tensor, "query word"]:
    one_hot = "W_E" in form.identity
    attention = (
        uniform_attention(batch)
        if form.uniform
        else _attention(tensors, form, batch.token, batch.counts.log()[batch.document])
    )
    context = attention if one_hot else attention @ tensors["W_E"].mT
    out = context if "W_V" in form.identity else context @ tensors["W_V"].mT
    if "b_V" not in form.zero:
        out = out + tensors["b_V"]
    logits = out if one_hot else out @ tensors["W_E"]
    return logits if "b_pred" in form.zero else logits + tensors["b_pred"]


def uniform_attention(batch: Queries) -> Float[Tensor, "*toy query word"]:
    """Attention of every document to every word, where it cannot depend on the key."""
    # A document without tokens has nothing to predict and must not turn into NaN.
    attention = batch.counts / batch.counts.sum(dim=1, keepdim=True).clamp(min=1)
    return attention.view(*batch.token.shape, -1)


def _attention(
    tensors: Mapping[str, Float[Tensor, "..."]],
    form: LeanForm,
    token: Int64[Tensor, " query"],
    log_counts: Float[Tensor, "query word"],
) -> Float[Tensor, "query word"]:
    """Attention of the queries that show tokens to every word of their documents, all its occurrences together."""
    one_hot = "W_E" in form.identity
    tokens, query = torch.unique(token, return_inverse=True)
    # embedding looks rows up as indexing does, with a far cheaper gradient.
    q = embedding(tokens, (tensors["W_Q"] if one_hot else tensors["W_E"]).mT)
    if not one_hot:
        q = q @ tensors["W_Q"].mT
    if "b_Q" not in form.zero:
        q = q + tensors["b_Q"]
    scores = q @ tensors["W_K"]
    if not one_hot:
        scores = scores @ tensors["W_E"]
    scores = scores / math.sqrt(tensors["W_K"].shape[-2])
    return (embedding(query, scores) + log_counts).softmax(dim=-1)


def vocabulary_attention(
    tensors: Mapping[str, Float[Tensor, "..."]], form: LeanForm
) -> Float[Tensor, "token word"]:
    """Attention in a document that shows every token once; in others it is that times their counts, per row."""
    n = tensors["W_E"].shape[1]
    once = tensors["W_E"].new_ones(n, n)
    if form.uniform:
        return once / n
    return _attention(tensors, form, torch.arange(n, device=once.device), once.log())
