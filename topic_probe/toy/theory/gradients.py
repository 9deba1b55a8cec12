"""Why W_V is learned first (Section 8.1): how large the gradients are where training begins near zero.

With one-hot words and no biases a prediction is f = W_V y, with y the attended frequencies of the words. Where W_K and
W_Q are zero these are x, the frequencies that the document shows where it may be attended to, and to first order in the
scores::

    y = x + C W_Kᵀ W_Q e_s / √d_a,    C = diag(x) − x xᵀ,    s the word that the predicting position shows.

With g the derivative of the loss in a prediction of nothing (−2 e_t for squared loss, 1/n − e_t for cross-entropy over
n tokens, t being the word that was there) the gradients are, averaged as the loss is, ::

    ∂L/∂W_V = E[g xᵀ]
    ∂L/∂W_K = W_Q E[e_s gᵀ W_V C] / √d_a        ∂L/∂W_Q = W_K E[C W_Vᵀ g e_sᵀ] / √d_a

The first has no small factor. The other two have W_V, and W_Q or W_K: where all three are noise of standard deviation
σ, they are of size σ², not σ as the paper's argument about W_Q alone would have it. Their mean square is known exactly,
because that of noise is: E|∂L/∂W_K|² = E|∂L/∂W_Q|² = σ⁴ |E[e_s ⊗ g ⊗ C]|², whatever d_a.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn.functional import one_hot

from topic_probe.toy.world import Attend, Loss, MaskedBatch, World


@dataclass(frozen=True)
class InitialGradients:
    """Sizes of the gradients at the beginning, to first order in the noise.

    Attributes:
        value: Norm of the gradient of W_V.
        attention: Root mean square norm of the gradient of W_K, and of W_Q, divided by the variance of the noise.
    """

    value: float
    attention: float

    def ratio(self, noise: float) -> float:
        """|∂L/∂W_K| / |∂L/∂W_V| for noise of this standard deviation, and |∂L/∂W_Q| / |∂L/∂W_V|."""
        return noise**2 * self.attention / self.value


def initial_gradients(
    world: World, batch: MaskedBatch, *, loss: Loss, attend: Attend = "all"
) -> InitialGradients:
    """How large the gradients of W_V, W_K and W_Q are on a batch where all three are noise near zero.

    For one-hot embeddings without biases (regime *two-stage*) and W_V with a row for every token. Exact for the batch;
    on a small one the gradients of keys and queries are larger than on many documents, because chance does not average
    out. The entries of the noise are independent with mean 0 and one variance. ValueError where nothing is masked.

    Example:
        >>> import torch
        >>> world, generator = tp.World(n_topics=2, words_per_topic=2), torch.Generator().manual_seed(0)
        >>> documents = world.documents(40, generator=generator)
        >>> batch = tp.Masking().corrupt(documents, n_words=world.n_words, generator=generator)
        >>> sizes = tp.theory.initial_gradients(world, batch, loss="squared")
        >>> round(sizes.ratio(0.001) / sizes.ratio(0.0005), 4)
        4.0
    """
    size = world.vocabulary_size
    batch = batch.select((batch.chosen.any(dim=1) & batch.visible(attend).any(dim=1)).nonzero()[:, 0])
    if not len(batch):
        raise ValueError(
            "nothing is masked in this batch, so there is no loss; raise p_mask or take more documents"
        )
    counts = batch.counts(size, attend).double()
    x = counts / counts.sum(dim=1, keepdim=True)
    overlaps, skewed = x @ x.T, x @ x.square().T  # x·x', and x·x'∘x'
    spreads = overlaps - skewed - skewed.T + overlaps.square()  # ⟨C, C'⟩ of every two documents
    shown, target = batch.shown[batch.chosen], one_hot(batch.target[batch.chosen], size).double()
    words, shares = _inner_products([batch.document_means(target)])
    words_shown, shares_shown = _inner_products(
        [batch.document_means(target * (shown == s).unsqueeze(1)) for s in set(shown.tolist())]
    )
    if loss == "cross_entropy":  # g = 1/n − e_t
        value, attention = words - shares / size, words_shown - shares_shown / size
        return InitialGradients(_norm(value, overlaps), _norm(attention, spreads))
    return InitialGradients(2 * _norm(words, overlaps), 2 * _norm(words_shown, spreads))


def _inner_products(
    means: Sequence[Float64[Tensor, "document word"]],
) -> tuple[Float64[Tensor, "document other"], Float64[Tensor, "document other"]]:
    """g·g' of every two documents, where g is the mean of e_t, and where it is that of 1 whatever word was there."""
    shares = torch.stack([part.sum(dim=1) for part in means], dim=1)
    targets = torch.zeros(len(shares), len(shares), dtype=torch.float64)
    for part in means:
        targets += part @ part.T
    return targets, shares @ shares.T


def _norm(inner: Float64[Tensor, "document other"], products: Float64[Tensor, "document other"]) -> float:
    """|E[g ⊗ A]|, given g·g' and the inner products of the arrays A of every two documents."""
    return sqrt(float((inner * products).sum())) / len(products)
