"""The lean loss of several toys side by side with its gradients in closed form, for less than autograd takes.

Row q of A is the attention of a query, X = W_E, and s the token that a query shows. For every toy ::

    logits  L = A B,           B = U X + 1 b_predᵀ,    U = C W_Vᵀ + 1 b_Vᵀ,    C = Xᵀ       (rows of A sum to 1)
    scores  S = R K / √d_a,    K = W_K X,              R = X_sᵀ W_Qᵀ + 1 b_Qᵀ

where B holds what each word alone would predict. With G = ∂loss/∂L, which is w softmax(L) − Y for cross-entropy and
2 (w L − Y) for squared loss (Y the weights of the words that were there, w their sum over each row), the chain rule is

    ∂B = Aᵀ G,    ∂A = G Bᵀ,    ∂S = A ∘ (∂A − (A ∘ ∂A) 1 1ᵀ) / √d_a, summed over the queries that show the same token
    ∂U = ∂B Xᵀ,   ∂W_V = ∂Uᵀ C,     ∂b_V = ∂Uᵀ 1,    ∂b_pred = ∂Bᵀ 1,    ∂C = ∂U W_V
    ∂R = ∂S Kᵀ,   ∂W_Q = ∂Rᵀ X_sᵀ,  ∂b_Q = ∂Rᵀ 1,    ∂K = Rᵀ ∂S,         ∂W_K = ∂K Xᵀ
    ∂X = Uᵀ ∂B + ∂Cᵀ + W_Kᵀ ∂K,     ∂X_s += W_Qᵀ ∂Rᵀ

b_K has no gradient. Where words are one-hot, X drops out of all of it. Else, with fewer queries than words, A is put
first: C = A Xᵀ, L = B and ∂B = G, and ∂C gives ∂A = ∂C X and, in ∂X, ∂Cᵀ A in place of ∂Cᵀ.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from topic_probe.toy.lean import LeanForm, Queries, distinct, uniform_attention
from topic_probe.toy.masking import Loss

Tensors = Mapping[str, Float[Tensor, "toy ..."]]


@torch.no_grad()
def lean_gradients(
    tensors: Tensors, form: LeanForm, batch: Queries, trained: Sequence[str], *, loss: Loss
) -> tuple[Float[Tensor, " toy"], list[Tensor]]:
    """The lean loss of every toy, and its gradients in the trained tensors.

    Args:
        tensors: As `lean_loss` takes them, with an axis ``toy`` in front.
        form: :func:`topic_probe.toy.lean.lean_form` of the models.
        batch: What to predict, of several toys.
        trained: The names of tensors.
        loss: Of a prediction.
    """
    W, X = tensors["W_V"], tensors["W_E"]
    one_hot, copied = "W_E" in form.identity, "W_V" in form.identity
    asked = None if form.uniform else _Asked.of(tensors, form, batch)
    A = uniform_attention(batch) if asked is None else asked.attention(batch)
    first = not one_hot and A.shape[1] < A.shape[2]
    C = A @ X.mT if first else X.mT
    U = W.mT if one_hot else C if copied else C @ W.mT
    U = U if "b_V" in form.zero else U + tensors["b_V"].unsqueeze(-2)
    B = U if one_hot else U @ X
    B = B if "b_pred" in form.zero else B + tensors["b_pred"].unsqueeze(-2)
    losses, G = _slope(B if first else A @ B, batch, loss)
    slope_B = G if first else A.mT @ G
    slope_U = slope_B if one_hot else slope_B @ X.mT
    slope_C = slope_U if one_hot or copied else slope_U @ W
    found = _Gradients(trained)
    found.add("b_pred", lambda: slope_B.sum(dim=-2))
    found.add("b_V", lambda: slope_U.sum(dim=-2))
    found.add("W_V", lambda: slope_U.mT if one_hot else slope_U.mT @ C)
    found.add("W_E", lambda: U.mT @ slope_B)
    found.add("W_E", lambda: slope_C.mT @ A if first else slope_C.mT)
    if asked is not None and found.wanted & {"W_E", "W_K", "W_Q", "b_Q"}:
        asked.add_gradients(tensors, asked.slope(A, slope_C @ X if first else G @ B.mT), found)
    return losses, [found[name] if name in found else torch.zeros_like(tensors[name]) for name in trained]


class _Gradients(dict[str, Tensor]):
    """Gradients of wanted tensors by name, each the sum of what is added."""

    def __init__(self, wanted: Sequence[str]):
        super().__init__()
        self.wanted = frozenset(wanted)

    def add(self, name: str, gradient: Callable[[], Tensor]) -> None:
        """Compute a part of a gradient, if it is wanted."""
        if name in self.wanted:
            self[name] = self[name] + gradient() if name in self else gradient()


@dataclass(frozen=True)
class _Asked:
    """What queries ask for, of which there are as many kinds as tokens that they show.

    Attributes:
        tokens: Those tokens.
        place: Which of them each query shows, the kinds of all toys being numbered one toy behind the other.
        one_hot: Whether words are.
        R: What each asks for.
        K: What each word answers to.
    """

    tokens: Int64[Tensor, " kind"]
    place: Int64[Tensor, " row"]
    one_hot: bool
    R: Float[Tensor, "toy kind key"]
    K: Float[Tensor, "toy key word"]

    @classmethod
    def of(cls, tensors: Tensors, form: LeanForm, batch: Queries) -> "_Asked":
        """Those of a batch."""
        one_hot, W_K, W_Q = "W_E" in form.identity, tensors["W_K"], tensors["W_Q"]
        tokens, kind = distinct(batch.token.flatten(), batch.counts.shape[1])
        toys = torch.arange(len(batch.token), device=tokens.device).repeat_interleave(batch.token.shape[1])
        R = W_Q[:, :, tokens].mT if one_hot else tensors["W_E"][:, :, tokens].mT @ W_Q.mT
        R = R if "b_Q" in form.zero else R + tensors["b_Q"].unsqueeze(-2)
        K = W_K if one_hot else W_K @ tensors["W_E"]
        return cls(tokens, kind.add_(toys, alpha=len(tokens)), one_hot, R, K)

    def attention(self, batch: Queries) -> Float[Tensor, "toy query word"]:
        """A: attention of every query to every word, all its occurrences together."""
        S = (self.R @ self.K).div_(math.sqrt(self.K.shape[1])).flatten(0, 1)
        rows = S.index_select(0, self.place)
        rows += batch.counts.log().index_select(0, batch.document.flatten())
        return rows.softmax(dim=-1).view(*batch.token.shape, -1)

    def slope(self, A: Tensor, slope_A: Tensor) -> Float[Tensor, "toy kind word"]:
        """∂S, given ∂A, which is overwritten."""
        rows = slope_A.mul_(A)
        rows.addcmul_(A, rows.sum(dim=-1, keepdim=True), value=-1)
        n_toys, n_kinds = self.R.shape[:2]
        summed = rows.new_zeros(n_toys * n_kinds, rows.shape[-1]).index_add_(
            0, self.place, rows.flatten(0, 1)
        )
        return summed.div_(math.sqrt(self.K.shape[1])).view(n_toys, n_kinds, -1)

    def add_gradients(self, tensors: Tensors, slope_S: Tensor, found: _Gradients) -> None:
        """The gradients that come through S."""
        slope_R, slope_K = slope_S @ self.K.mT, self.R.mT @ slope_S
        found.add("b_Q", lambda: slope_R.sum(dim=-2))
        X, W_Q = tensors["W_E"], tensors["W_Q"]
        if self.one_hot:
            found.add("W_K", lambda: slope_K)
            found.add("W_Q", lambda: self._at_tokens(W_Q, slope_R.mT))
            return
        found.add("W_K", lambda: slope_K @ X.mT)
        found.add("W_Q", lambda: slope_R.mT @ X[:, :, self.tokens].mT)
        found.add("W_E", lambda: tensors["W_K"].mT @ slope_K)
        found.add("W_E", lambda: self._at_tokens(X, W_Q.mT @ slope_R.mT))

    def _at_tokens(self, like: Tensor, columns: Tensor) -> Float[Tensor, "toy d word"]:
        """Columns of the tokens that are shown, among zeros."""
        return torch.zeros_like(like).index_copy_(2, self.tokens, columns)


def _slope(
    L: Float[Tensor, "toy query word"], batch: Queries, loss: Loss
) -> tuple[Float[Tensor, " toy"], Float[Tensor, "toy query word"]]:
    """The loss of every toy and G, given L, which is overwritten."""
    weights = batch.row_weights
    if loss == "cross_entropy":
        L = L.log_softmax(dim=-1)
        losses, factor = -_of_targets(L, batch), 1.0
        L.exp_()
    else:
        # |x − e_y|² = |x|² − 2 x_y + 1, and the weights sum to 1.
        squares: Tensor = torch.linalg.vecdot(weights, L.square().sum(dim=-1))
        losses, factor = squares - 2 * _of_targets(L, batch) + 1, 2.0
    G = L.mul_(factor * weights.unsqueeze(-1))
    G.view(-1).index_add_(0, batch.entry, batch.share.to(G.dtype), alpha=-factor)
    return losses, G


def _of_targets(values: Float[Tensor, "toy query word"], batch: Queries) -> Float[Tensor, " toy"]:
    """The weighted mean of the values at the words that were there."""
    toy = batch.entry.div(values[0].numel(), rounding_mode="floor")
    picked = values.flatten()[batch.entry] * batch.share
    return picked.new_zeros(len(values)).index_add_(0, toy, picked).to(values.dtype)
