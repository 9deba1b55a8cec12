"""Why W_V is learned first (Section 8.1): how large the gradients are where training begins near zero.

With one-hot words and no biases a prediction is f = W_V y, with y the attended frequencies of the words. Where W_K and
W_Q are zero these are x, the frequencies that the document shows, and to first order in the scores::

    y = x + C W_Kᵀ W_Q e_s / √d_a,    C = diag(x) − x xᵀ,    s the word that the predicting position shows.

With g the derivative of the loss in a prediction of nothing (−2 e_t for squared loss, 1/n − e_t for cross-entropy over
n tokens, t being the word that was there) the gradients are, averaged as the loss is, ::

    ∂L/∂W_V = E[g xᵀ]
    ∂L/∂W_K = W_Q E[e_s gᵀ W_V C] / √d_a        ∂L/∂W_Q = W_K E[C W_Vᵀ g e_sᵀ] / √d_a

The first has no small factor. The other two have W_V, and W_Q or W_K: where all three are noise of standard deviation
σ, they are of size σ², not σ as the paper's argument about W_Q alone would have it. Their mean square is known exactly,
because that of noise is: E|∂L/∂W_K|² = E|∂L/∂W_Q|² = σ⁴ |E[e_s ⊗ g ⊗ C]|², whatever d_a.
"""

from dataclasses import dataclass
from math import sqrt

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn.functional import one_hot

from topic_probe.toy.masking import Loss, MaskedBatch
from topic_probe.toy.world import World


@dataclass(frozen=True)
class InitialGradients:
    """Sizes of the gradients at the beginning, for noise near zero and squares averaged over its draws.

    Attributes:
        value: Norm of the gradient of W_V.
        attention: Norm of the gradient of W_K, which is also that of W_Q's, divided by the variance of the noise.
    """

    value: float
    attention: float

    def ratio(self, noise: float) -> float:
        """|∂L/∂W_K| / |∂L/∂W_V| for noise of a standard deviation, and the same of W_Q; half of it is a quarter."""
        return noise**2 * self.attention / self.value


def initial_gradients(world: World, batch: MaskedBatch, *, loss: Loss) -> InitialGradients:
    """How large the gradients of W_V, W_K and W_Q are on a batch, to leading order in the noise that they begin with.

    For one-hot embeddings without biases (regime *two-stage*). What is noise need not be normal: its entries are
    independent with mean 0 and one variance. Exact for the batch; on a small one the gradients of keys and queries
    are larger than on many documents, because chance does not average out.

    Args:
        world: Whose documents they are.
        batch: Masked documents.
        loss: Of a prediction.

    Raises:
        ValueError: Where nothing is masked.

    Example:
        >>> import torch
        >>> world, generator = tp.World(n_topics=2, words_per_topic=2), torch.Generator().manual_seed(0)
        >>> documents = world.documents(40, generator=generator)
        >>> batch = tp.Masking().corrupt(documents, n_words=world.n_words, generator=generator)
        >>> sizes = tp.theory.initial_gradients(world, batch, loss="squared")
        >>> sizes.ratio(0.01) / sizes.ratio(0.005)
        4.0
    """
    rows, size = batch.chosen.any(dim=1), world.vocabulary_size
    if not rows.any():
        raise ValueError(
            "nothing is masked in this batch, so there is no loss; raise p_mask or take more documents"
        )
    counts = batch.counts(size)[rows].double()
    x = counts / counts.sum(dim=1, keepdim=True)
    overlaps, skewed = x @ x.T, x @ x.square().T
    spreads = overlaps - skewed - skewed.T + overlaps.square()  # ⟨C, C'⟩ of every two documents
    shown, target = batch.shown[batch.chosen], one_hot(batch.target[batch.chosen], size).double()
    squares = [
        _square(batch.document_means(target * (shown == token).unsqueeze(1)), spreads, loss)
        for token in set(shown.tolist())
    ]
    value = _square(batch.document_means(target), overlaps, loss)
    return InitialGradients(value=sqrt(value), attention=sqrt(sum(squares)))


def _square(
    words: Float64[Tensor, "document word"], products: Float64[Tensor, "document other"], loss: Loss
) -> float:
    """|E[g ⊗ A]|² for matrices A of the documents, given their inner products and each document's mean of e_t."""
    if loss == "squared":
        inner = 4 * words @ words.T
    else:
        share = words.sum(dim=1)
        inner = words @ words.T - torch.outer(share, share) / words.shape[1]
    return float((inner * products).sum()) / len(words) ** 2
