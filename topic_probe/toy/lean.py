"""The loss of a toy transformer, computed from its own parameters without computing every position.

Without positions a prediction depends only on the document's word counts and on the token shown at the predicting
position, so the positions of a batch fall into a few *queries* per document (mostly ``[MASK]``), and attention over
positions is attention over words weighted by their counts. Keys enter through inner products only,
(W_Kᵀ (W_Q z + b_Q))·Z, where b_K shifts all scores of a query alike and drops out of the softmax; values enter
linearly, W_V (Z A) + b_V. Under uniform attention all positions of a document share one prediction.

Several toys of one form have one computation: a batch that holds as many documents of each, and tensors with an axis
``toy`` in front. The queries of a toy are padded with some of weight 0 to as many as the most have.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import embedding

from topic_probe.toy.masking import Loss, MaskedBatch, position_losses
from topic_probe.toy.model import toy_config, toy_logits, toy_parameters, toy_tensors


@dataclass(frozen=True)
class Queries:
    """A masked batch, reduced to what the loss of a one-layer toy depends on.

    Attributes:
        counts: How often each document shows each token.
        document: The document of every query.
        token: The token every query shows.
        weights: For each query, the share of every original word in the mean over documents of the mean over M;
            all of it sums to 1 for each toy.
    """

    counts: Float[Tensor, "document word"]
    document: Int64[Tensor, "*toy query"]
    token: Int64[Tensor, "*toy query"]
    weights: Float[Tensor, "*toy query word"]


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


def queries(
    batch: MaskedBatch,
    vocabulary_size: int,
    *,
    uniform: bool,
    dtype: torch.dtype,
    n_toys: int | None = None,
) -> Queries | None:
    """The queries of a batch; None if nothing is masked in it.

    Args:
        batch: Masked documents.
        vocabulary_size: Number of token ids.
        uniform: Attention is uniform, so one query per document (its token is meaningless) stands for all.
        dtype: Of the floating-point results.
        n_toys: The batch holds as many documents of each of so many toys, one toy behind the other, and the results
            have an axis ``toy``; None: it is of one, and they have none.
    """
    n, width = len(batch), vocabulary_size
    rows, positions = batch.chosen.nonzero(as_tuple=True)
    if len(rows) == 0:
        return None
    start = torch.arange(n, device=rows.device) * width
    cell = (batch.shown + start.unsqueeze(1)).masked_fill_(~batch.mask, n * width)
    counts = torch.bincount(cell.flatten(), minlength=n * width + 1)[:-1].view(n, width).to(dtype)
    share = _shares(rows, n, n_toys or 1)
    if uniform:
        query, document, token = rows, torch.arange(n, device=rows.device), torch.zeros_like(start)
    else:
        pair, query = torch.unique(start[rows] + batch.shown[rows, positions], return_inverse=True)
        document, token = pair.div(width, rounding_mode="floor"), pair.remainder(width)
    if n_toys is not None:
        place, document, token = _side_by_side(document, token, n // n_toys, n_toys)
        query = place[query]
    entry = query * width + batch.target[rows, positions]
    weights = torch.bincount(entry, weights=share, minlength=document.numel() * width)
    return Queries(counts, document, token, weights.view(*document.shape, width).to(dtype))


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
) -> Float[Tensor, "*toy"]:
    """The mean over documents of the mean loss over M, differentiable in the tensors.

    Args:
        tensors: :func:`topic_probe.toy.model.toy_tensors` of a one-layer, one-head model without residual; of several
            with an axis ``toy`` in front.
        form: :func:`lean_form` of that model.
        batch: What to predict, made with ``uniform=form.uniform``.
        loss: Of a prediction.
    """
    logits = _lean_logits(tensors, form, batch)
    if loss == "cross_entropy":
        return -(batch.weights * logits.log_softmax(dim=-1)).sum(dim=(-2, -1))
    # |x − e_y|² = |x|² − 2 x_y + 1, and the weights sum to 1.
    lengths = logits.square().sum(dim=-1)
    squares: Tensor = torch.linalg.vecdot(batch.weights.sum(dim=-1), lengths)
    return squares - 2 * (batch.weights * logits).sum(dim=(-2, -1)) + 1


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
) -> Float[Tensor, "*toy query word"]:
    one_hot = "W_E" in form.identity
    attention = _attention(tensors, form, batch)
    if attention.ndim > 2 and not one_hot and attention.shape[-2] > attention.shape[-1]:
        # With more queries than words W_Eᵀ W_V W_E comes first. A toy alone keeps the order, and with it the bits.
        values = tensors["W_E"] if "W_V" in form.identity else tensors["W_V"] @ tensors["W_E"]
        logits = attention @ (values.mT @ tensors["W_E"])
        if "b_V" not in form.zero:
            logits = logits + tensors["b_V"].unsqueeze(-2) @ tensors["W_E"]
    else:
        context = attention if one_hot else attention @ tensors["W_E"].mT
        out = context if "W_V" in form.identity else context @ tensors["W_V"].mT
        if "b_V" not in form.zero:
            out = out + tensors["b_V"].unsqueeze(-2)
        logits = out if one_hot else out @ tensors["W_E"]
    return logits if "b_pred" in form.zero else logits + tensors["b_pred"].unsqueeze(-2)


def _attention(
    tensors: Mapping[str, Float[Tensor, "..."]], form: LeanForm, batch: Queries
) -> Float[Tensor, "*toy query word"]:
    """Attention of every query to every word, all its occurrences together."""
    if form.uniform:
        # A document without tokens has nothing to predict and must not turn into NaN.
        attention = batch.counts / batch.counts.sum(dim=1, keepdim=True).clamp(min=1)
        return attention if batch.token.ndim == 1 else attention.view(*batch.token.shape, -1)
    one_hot = "W_E" in form.identity
    tokens, query = torch.unique(batch.token, return_inverse=True)
    q = _rows((tensors["W_Q"] if one_hot else tensors["W_E"]).mT, tokens.expand(*query.shape[:-1], -1))
    if not one_hot:
        q = q @ tensors["W_Q"].mT
    if "b_Q" not in form.zero:
        q = q + tensors["b_Q"].unsqueeze(-2)
    scores = q @ tensors["W_K"]
    if not one_hot:
        scores = scores @ tensors["W_E"]
    scores = scores / math.sqrt(tensors["W_K"].shape[-2])
    return (_rows(scores, query) + batch.counts.log()[batch.document]).softmax(dim=-1)


def vocabulary_attention(
    tensors: Mapping[str, Float[Tensor, "..."]], form: LeanForm
) -> Float[Tensor, "token word"]:
    """Attention in a document that shows every token once; in others it is that times their counts, per row."""
    n = tensors["W_E"].shape[1]
    tokens = torch.arange(n, device=tensors["W_E"].device)
    once = tensors["W_E"].new_ones(1, n)
    return _attention(
        tensors, form, Queries(once, torch.zeros_like(tokens), tokens, once.expand(n, n))
    ).expand(n, n)


def _rows(
    table: Float[Tensor, "*toy row word"], rows: Int64[Tensor, "*toy picked"]
) -> Float[Tensor, "*toy picked word"]:
    """Rows of a table by number, of each toy its own."""
    if table.ndim > 2:
        rows = rows + torch.arange(len(table), device=rows.device).unsqueeze(1) * table.shape[1]
    # embedding looks rows up as indexing does, with a far cheaper gradient.
    return embedding(rows, table.flatten(0, -2))
