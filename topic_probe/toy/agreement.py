"""How near a trained toy is to what theory says: its loss, its matrices, its attention."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import log, nan, sqrt
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from topic_probe.options import check_whole, checked
from topic_probe.report import Report, provenance
from topic_probe.toy import theory
from topic_probe.toy.model import ToyConfig, counts_suffice, toy_config, toy_tensors
from topic_probe.toy.theory.losses import masked_documents, mean_bayes_loss
from topic_probe.toy.word_attention import word_attention
from topic_probe.toy.world import Attend, Loss, MaskedBatch, Masking, World, position_losses

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AgreementReport(Report, kind="agreement"):
    """A trained toy beside theory. What does not apply is NaN, None or empty, and ``reasons`` says why.

    Attributes:
        regime: the regime the toy was built for.
        loss_kind: which loss all losses here are.
        loss: of the model, on fresh documents of its world.
        loss_error: its standard error over documents.
        bayes: the lowest loss that any predictor can have on such documents.
        bayes_error: its standard error.
        excess: loss − bayes on the same documents, which is far more certain than either; never negative.
        excess_error: its standard error.
        guess: the loss of guessing every word alike, without looking at the document.
        floor: the lowest loss of the regime on infinitely long documents.
        family: which matrix is held against which optima: ``W_Eᵀ W_E, Theorem 1`` where only the embedding is trained,
            otherwise ``W_V, Lemma 1`` with one-hot embeddings and ``W_Eᵀ W_V W_E, Lemma 1`` with others. Biases are
            folded into columns that every document attends to alike: that of ``[MASK]``, or of all words where
            attention does not see ``[MASK]``.
        family_distance: Frobenius distance to the nearest of these optima ÷ the norm of that optimum.
        value_distance: Frobenius distance of W_V to Theorem 2's closed form ÷ the norm of that; one-hot only.
        weighted_mean: (v − 1)/v · α + β/v with α and β the attention to other words of the same topic and to the same
            word, relative to other topics (Theorem 3), as `word_attention` measures them.
        weighted_mean_optimum: where that is optimal for W_V of Theorem 2 and infinitely long documents of this world.
        reasons: what is missing, and why.
        provenance: model, options, versions.
    """

    regime: str
    loss_kind: str
    loss: float
    loss_error: float
    bayes: float = nan
    bayes_error: float = nan
    excess: float = nan
    excess_error: float = nan
    guess: float
    floor: float = nan
    family: str | None = None
    family_distance: float = nan
    value_distance: float = nan
    weighted_mean: float = nan
    weighted_mean_optimum: float = nan
    reasons: Mapping[str, str]
    provenance: Mapping[str, Any]

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every comparison: what was measured, what theory says, and how far apart they are."""
        import pandas as pd

        rows = [
            ("loss, theory: Bayes-optimal", self.loss, self.bayes, self.excess_error),
            ("loss, theory: floor", self.loss, self.floor, self.loss_error),
            ("W_V, distance to Theorem 2", self.value_distance, 0.0, nan),
            (f"{self.family or 'matrix'}: distance to the optima", self.family_distance, 0.0, nan),
            ("attention, weighted mean", self.weighted_mean, self.weighted_mean_optimum, nan),
        ]
        table = pd.DataFrame(rows, columns=["quantity", "measured", "theory", "standard_error"])
        table.insert(3, "difference", table["measured"] - table["theory"])
        return table

    def _notes(self) -> list[str]:
        reasons = [f"{what}: {reason}" for what, reason in self.reasons.items()]
        return [*reasons, "only losses have a standard error: they are means over documents that were drawn"]


@checked
def measure_agreement(
    model: nn.Module, *, loss: Loss, n_documents: int = 500, seed: int = 0
) -> AgreementReport:
    """Everything theory has a number for, beside the same number of a trained toy.

    Loss and attention are measured on fresh documents of the toy's world, masked like those of training. The model's
    loss at a masked position is its expected loss under the exact posterior of the word there, not that at one drawn
    word, which makes it as certain as it can be and its excess over the Bayes-optimal predictor exact for every
    document: |prediction − posterior|², or the Kullback–Leibler divergence. Where the posterior has no exact form the
    loss is that at the drawn words, and there is no excess.

    Args:
        model: from `build_toy`; it comes back as it was.
        loss: which loss the toy was trained with. The closed forms for W_V and W_E are about ``squared``.
        n_documents: how many documents; ValueError where fewer than two of them have anything masked.
        seed: of documents and masks.

    Example:
        >>> world = tp.World(n_topics=2, words_per_topic=2, topics_per_document=1)
        >>> W = tp.theory.optimal_value(world, tp.Masking())
        >>> toy = tp.build_toy(tp.ToyConfig(regime="value", world=world), tensors={"W_V": W})
        >>> report = tp.measure_agreement(toy, loss="squared", n_documents=10)
        >>> round(report.value_distance, 6), report.floor  # the closed form itself; one of two equally likely words
        (0.0, 0.5)
    """
    config = toy_config(model)
    world, masking, attend = config.world, config.masking, config.attend
    check_whole("n_documents", n_documents, 2)  # one has no standard error
    documents = _documents(world, masking, attend, n_documents, check_whole("seed", seed, 0))
    reasons: dict[str, str] = {}
    with torch.no_grad():
        logits = [
            model(batch.shown, attention_mask=batch.visible(attend).long())[batch.chosen].double()
            for batch in documents.batches
        ]
    found = _losses(logits, documents, loss, reasons)
    try:
        floor = theory.loss_floor(world, masking, regime=config.regime, loss=loss, attend=attend)
        found["floor"] = floor.value
    except ValueError as error:
        reasons["floor"] = str(error)
    if counts_suffice(model):
        found |= _matrices(model, config, loss, reasons)
        found |= _attention(model, config, n_documents, seed, reasons)
    else:
        reasons["matrices and attention"] = (
            "the toy has several layers or heads, a residual connection, or hooks: measure_attention measures it"
        )
    options = {"loss": loss, "n_documents": n_documents, "world": str(world), "masking": str(masking)}
    return AgreementReport(
        regime=config.regime,
        loss_kind=loss,
        guess=log(world.n_words) if loss == "cross_entropy" else 1 - 1 / world.n_words,
        **found,
        reasons=reasons,
        provenance=provenance(world.topics, model=asdict(config), options=options, seed=seed),
    )


@dataclass(frozen=True)
class _Documents:
    """Masked documents with all that does not depend on a model."""

    batches: tuple[MaskedBatch, ...]
    posteriors: tuple[Float64[Tensor, "_ token"], ...] = ()
    best: theory.BayesLoss | None = None
    no_posterior: str = ""


# Several models are often compared on the same documents, whose posteriors take longer than a model does.
@lru_cache(maxsize=2)
def _documents(world: World, masking: Masking, attend: Attend, n_documents: int, seed: int) -> _Documents:
    """The masked documents of a seed, with the Bayes-optimal prediction of their words where it has an exact form."""
    generator = torch.Generator().manual_seed(seed)
    drawn = list(masked_documents(world, masking, n_documents, generator, attend=attend))
    batches = tuple(batch for _, batch in drawn)
    try:
        samples = [(*pair, theory.bayes_predictor(world, masking, pair[1], attend=attend)) for pair in drawn]
    except ValueError as error:
        return _Documents(batches, no_posterior=str(error))
    posteriors = tuple(probabilities for _, _, probabilities in samples)
    return _Documents(batches, posteriors, mean_bayes_loss(world, masking, samples))


def _losses(
    logits: Sequence[Float64[Tensor, "_ token"]], documents: _Documents, loss: Loss, reasons: dict[str, str]
) -> dict[str, Any]:
    """The model's loss, the best possible one, and the excess, each with its standard error."""
    batches, best = documents.batches, documents.best
    if best is None:
        reasons["Bayes-optimal loss"] = documents.no_posterior
        drawn = [
            position_losses(part, batch.target[batch.chosen], loss=loss)
            for part, batch in zip(logits, batches, strict=True)
        ]
        mean, error = _mean_over_documents(batches, drawn)
        return {"loss": mean, "loss_error": error}
    above = [_excess_loss(part, best, loss) for part, best in zip(logits, documents.posteriors, strict=True)]
    excess, excess_error = _mean_over_documents(batches, above)
    bayes, bayes_error = getattr(best, loss), getattr(best, f"{loss}_error")
    return {
        "loss": bayes + excess,
        "loss_error": sqrt(bayes_error**2 + excess_error**2),
        "bayes": bayes,
        "bayes_error": bayes_error,
        "excess": excess,
        "excess_error": excess_error,
    }


def _excess_loss(
    logits: Float64[Tensor, "chosen token"], posterior: Float64[Tensor, "chosen token"], loss: Loss
) -> Float64[Tensor, " chosen"]:
    """Expected loss above the Bayes-optimal predictor's, at every chosen position."""
    if loss == "squared":
        return (logits - posterior).square().sum(dim=1)
    terms: Tensor = torch.special.xlogy(posterior, posterior) - posterior * logits.log_softmax(dim=1)
    return terms.sum(dim=1)


def _mean_over_documents(
    batches: Sequence[MaskedBatch], losses: Sequence[Float64[Tensor, "_"]]
) -> tuple[float, float]:
    """Mean over documents of the mean over their masked positions, and its standard error."""
    means = torch.cat([batch.document_means(loss) for batch, loss in zip(batches, losses, strict=True)])
    if len(means) < 2:
        raise ValueError(
            f"only {len(means)} documents have anything masked; raise n_documents, p_mask or the length of documents"
        )
    return float(means.mean()), float(means.std()) / sqrt(len(means))


def _matrices(model: nn.Module, config: ToyConfig, loss: Loss, reasons: dict[str, str]) -> dict[str, Any]:
    """How far W_V, or the product that stands for it, is from the optima."""
    if loss == "cross_entropy":
        reasons["matrices"] = "Lemma 1, Theorem 1 and Theorem 2 are about the squared loss"
        return {}
    tensors = {name: value.detach().cpu().double() for name, value in toy_tensors(model).items()}
    try:
        name, check = _check(tensors, config)
    except ValueError as error:
        reasons["matrices"] = str(error)
        return {}
    family = {"family": name, "family_distance": check.relative}
    if name != "W_V, Lemma 1":
        reasons["Theorem 2"] = "it is about W_V with one-hot embeddings"
        return family
    optimum = theory.optimal_value(config.world, config.masking, attend=config.attend)
    return family | {"value_distance": float((tensors["W_V"] - optimum).norm() / optimum.norm())}


def _check(t: Mapping[str, Tensor], config: ToyConfig) -> tuple[str, theory.OptimumCheck]:
    """The matrix that maps attended frequencies to predictions under uniform attention, held against its theorem."""
    world, masking, attend = config.world, config.masking, config.attend
    W_E, W_V, b_V, b_pred = (t[name] for name in ("W_E", "W_V", "b_V", "b_pred"))
    prescribed = theory.embedding_bias(world, masking, attend=attend)
    if not _is_identity(W_E) and _is_identity(W_V) and not b_V.any() and torch.allclose(b_pred, prescribed):
        return "W_Eᵀ W_E, Theorem 1", theory.check_theorem1(W_E.T @ W_E, world, masking, attend=attend)
    name = "W_V, Lemma 1" if _is_identity(W_E) else "W_Eᵀ W_V W_E, Lemma 1"
    whole, bias = W_E.T @ W_V @ W_E, W_E.T @ b_V + b_pred
    # A bias is a part of what every long document attends to alike: [MASK] in its share, or all words in theirs of 1.
    if attend == "unmasked":
        whole[:, 1:] += bias.unsqueeze(1)
    else:
        whole[:, 0] += bias / masking.mask_share
    return name, theory.check_lemma1(whole, world, masking, attend=attend)


def _is_identity(matrix: Float64[Tensor, "row column"]) -> bool:
    return torch.equal(matrix, torch.eye(len(matrix)).double())


def _attention(
    model: nn.Module, config: ToyConfig, n_documents: int, seed: int, reasons: dict[str, str]
) -> dict[str, Any]:
    """Theorem 3's weighted mean of the attention between words, here and where it is optimal."""
    world, masking, attend = config.world, config.masking, config.attend
    attention, v = word_attention(model, n_documents=n_documents, seed=seed), world.words_per_topic
    # With one word per topic there is no other word of the topic, and its weight is 0.
    others = (v - 1) * attention["same_topic"] if v > 1 else 0.0
    mean = (others + attention["same_word"]) / v / attention["different_topic"]
    try:
        optimum = theory.optimal_attention(world, masking, attend=attend).weighted_mean
    except ValueError as error:
        reasons["Theorem 3"] = str(error)
        return {"weighted_mean": mean}
    return {"weighted_mean": mean, "weighted_mean_optimum": optimum}
