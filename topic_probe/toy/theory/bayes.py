"""The best possible masked predictor on documents of finite length, and the loss it has.

The predictor sees the shown document and is asked about a position that it knows to be masked, without being
told which other positions are: that is the information a model has. Given the topic proportions,
positions are independent, so with ŵ = E[p | the *other* shown tokens], ::

    P(word i | document, position shows [MASK]) = ŵ_i
    P(word i | document, position shows s)      ∝ ŵ_i (p_c [i = s] + p_r / n)

and all that is needed is the posterior of :mod:`~topic_probe.toy.theory.posterior`.
"""

from dataclasses import dataclass
from math import nan
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float64, Int64
from torch import Tensor

from topic_probe.toy.theory.floors import Loss, loss_floor
from topic_probe.toy.theory.posterior import Method, expected_words, normalised, posterior_method
from topic_probe.toy.theory.worlds import MaskingScheme, World, n_words, topic_words

LOSSES: tuple[Loss, Loss] = ("squared", "cross_entropy")


@runtime_checkable
class MaskedDocuments(Protocol):
    """A corrupted batch; :class:`topic_probe.toy.masking.MaskedBatch` is one."""

    @property
    def shown(self) -> Tensor:
        """Ids after corruption [batch position]; 0 is ``[MASK]``."""

    @property
    def mask(self) -> Tensor:
        """True where a document has a token [batch position]."""

    @property
    def chosen(self) -> Tensor:
        """True at the positions to be predicted [batch position]."""


@dataclass(frozen=True)
class BayesPrediction:
    """P(original word) at every chosen position.

    Attributes:
        probabilities: A row for every chosen position, in the order of ``chosen.nonzero()``, over the token
            ids; the column of ``[MASK]`` is 0.
        standard_error: Of every probability; 0 for the exact methods.
        method: ``"sum"`` over numbers of genuine words and ``"enumeration"`` of all sets of topics are exact;
            ``"sampling"`` has run independent Gibbs chains, and the expected losses below are those of its
            estimate.
    """

    probabilities: Float64[Tensor, "chosen token"]
    standard_error: Float64[Tensor, "chosen token"]
    method: Method

    @property
    def cross_entropy(self) -> Float64[Tensor, "chosen"]:
        """Expected cross-entropy of every position (nats), the entropy of its row."""
        entropy: Tensor = torch.special.entr(self.probabilities).sum(dim=1)
        return entropy

    @property
    def squared(self) -> Float64[Tensor, "chosen"]:
        """Expected squared distance to the one-hot vector of every position, 1 − |row|²."""
        return 1 - self.probabilities.square().sum(dim=1)


def bayes_predictor(
    world: World,
    masking: MaskingScheme,
    batch: MaskedDocuments,
    *,
    generator: torch.Generator | None = None,
    n_chains: int = 16,
    n_sweeps: int = 100,
) -> BayesPrediction:
    """P(original word | shown document, the position is masked) at every chosen position of the batch.

    Exact for disjoint topics of any word probabilities, under both distributions, and for overlapping uniform topics
    with at most 20,000 possible sets of topics. For overlapping topics under LDA the posterior is
    sampled, with the standard error between chains.

    Args:
        world: The distribution the documents come from.
        masking: The scheme they were corrupted with.
        batch: The corrupted documents, each of at most 1,000 shown words.
        generator: Source of randomness, needed only where the posterior is sampled.
        n_chains: Independent chains for sampling.
        n_sweeps: Sweeps per chain that are averaged, after a quarter as many that are not.
    """
    n = n_words(world)
    chosen = batch.chosen.cpu()
    shown = batch.shown.cpu().masked_fill(~batch.mask.cpu(), 0)  # like [MASK], padding says nothing
    _check_tokens(shown, n)
    documents, positions = chosen.nonzero(as_tuple=True)
    left_out = shown[documents, positions]  # 0 where [MASK] is shown: no word has to be left out
    counts = torch.zeros(len(shown), n + 1, dtype=torch.float64)
    counts.scatter_add_(1, shown, torch.ones_like(counts[:, :1]).expand(shown.shape))
    # Positions of one document that show the same token share everything else, and so the posterior.
    keys, row_of_position = torch.unique(documents * (n + 1) + left_out, return_inverse=True)
    rows = counts[keys // (n + 1)]
    rows[torch.arange(len(keys)), keys % (n + 1)] -= 1
    words = expected_words(
        world, masking, rows[:, 1:], generator=generator, n_chains=n_chains, n_sweeps=n_sweeps
    )
    return _prediction(words[:, row_of_position], left_out, masking, posterior_method(world))


def _prediction(
    words: Float64[Tensor, "chain chosen word"],
    left_out: Int64[Tensor, "chosen"],
    masking: MaskingScheme,
    method: Method,
) -> BayesPrediction:
    """From expected word probabilities given the other tokens to the prediction at the position itself."""
    n_chains, n_chosen, n = words.shape
    factor = torch.full((n_chosen, n), masking.p_random / n, dtype=torch.float64)
    kept = left_out > 0
    factor[kept, left_out[kept] - 1] += masking.p_keep
    factor[~kept] = 1.0
    chains = normalised(words * factor)
    probabilities = normalised(words.mean(dim=0) * factor)
    error = chains.std(dim=0) / n_chains**0.5 if n_chains > 1 else torch.zeros_like(probabilities)
    return BayesPrediction(F.pad(probabilities, (1, 0)), F.pad(error, (1, 0)), method)


def _check_tokens(tokens: Int64[Tensor, "batch position"], n: int) -> None:
    if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) <= n:
        raise ValueError(
            f"shown ids must lie in 0..{n} (0 is [MASK]) for this world, got {int(tokens.min())}.."
            f"{int(tokens.max())}; pass documents of the same world"
        )


@runtime_checkable
class SamplingWorld(World, Protocol):
    """A world that documents can be drawn from."""

    def documents(self, n: int, *, generator: torch.Generator) -> Any:
        """A batch of n documents."""


@runtime_checkable
class SamplingScheme(MaskingScheme, Protocol):
    """A masking scheme that can be applied."""

    def corrupt(self, documents: Any, *, n_words: int, generator: torch.Generator) -> Any:
        """The corrupted batch, :class:`MaskedDocuments`."""


@dataclass(frozen=True)
class BayesLoss:
    """The lowest possible expected loss on documents of this world, estimated over sampled documents.

    Attributes:
        squared: Expected squared distance to the one-hot vector.
        squared_error: Its standard error over documents.
        cross_entropy: Expected cross-entropy in nats.
        cross_entropy_error: Its standard error over documents.
        n_documents: Documents with at least one masked position; the others have no loss.
    """

    squared: float
    squared_error: float
    cross_entropy: float
    cross_entropy_error: float
    n_documents: int


def bayes_loss(
    world: SamplingWorld,
    masking: SamplingScheme,
    *,
    n_documents: int = 1_000,
    generator: torch.Generator,
    batch_size: int = 100,
) -> BayesLoss:
    """The loss of :func:`bayes_predictor`: mean over documents of the mean over their masked positions.

    No model gets below it, except for the error of the estimate, and for the tiny amount by which equation 1's weight
    1/|M| favours a predictor that also guesses how many positions were masked. Documents are sampled, but
    the loss at a position is its expectation under the posterior, not that of one drawn target; and for disjoint
    topics only the loss *in excess* of a predictor that is told θ is estimated, because that
    predictor's own loss is known (:func:`~topic_probe.toy.theory.floors.loss_floor`). Both make the error small.
    NaN where no document has a masked position; the errors are NaN with a single document.
    """
    if n_documents < 1 or batch_size < 1:
        raise ValueError(f"n_documents and batch_size must be at least 1, got {n_documents} and {batch_size}")
    exact = posterior_method(world) == "sum"
    losses: list[Float64[Tensor, "document loss"]] = []
    for start in range(0, n_documents, batch_size):
        documents = world.documents(min(batch_size, n_documents - start), generator=generator)
        batch = masking.corrupt(documents, n_words=n_words(world), generator=generator)
        prediction = bayes_predictor(world, masking, batch, generator=generator)
        loss = torch.stack([prediction.squared, prediction.cross_entropy], dim=1)
        row, position = batch.chosen.cpu().nonzero(as_tuple=True)
        if exact:
            words = (documents.topic_proportions.cpu() @ topic_words(world))[row]
            told = _prediction(words.unsqueeze(0), batch.shown.cpu()[row, position], masking, "sum")
            loss = loss - torch.stack([told.squared, told.cross_entropy], dim=1)
        counts = torch.bincount(row, minlength=len(batch.chosen)).unsqueeze(1)
        sums = torch.zeros(len(batch.chosen), 2, dtype=torch.float64).index_add_(0, row, loss)
        losses.append((sums / counts)[counts[:, 0] > 0])
    per_document = torch.cat(losses)
    mean = per_document.mean(dim=0)
    error = per_document.std(dim=0) / len(per_document) ** 0.5 if len(per_document) > 1 else mean * nan
    if exact:
        floors = [loss_floor(world, masking, regime="full", loss=name).value for name in LOSSES]
        mean = mean + torch.tensor(floors, dtype=torch.float64)
    return BayesLoss(
        squared=float(mean[0]),
        squared_error=float(error[0]),
        cross_entropy=float(mean[1]),
        cross_entropy_error=float(error[1]),
        n_documents=len(per_document),
    )
