"""How near a trained toy is to what theory says: its loss, its matrices, its attention."""

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import log, nan, sqrt
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from topic_probe.options import check_whole, checked
from topic_probe.report import Report, provenance
from topic_probe.toy import theory
from topic_probe.toy.masking import Attend, Loss, MaskedBatch, Masking, position_losses
from topic_probe.toy.model import (
    ToyConfig,
    attention_is_uniform,
    counts_suffice,
    toy_config,
    toy_tensors,
)
from topic_probe.toy.theory.losses import DRAWN_AT_ONCE, masked_documents, mean_bayes_loss
from topic_probe.toy.theory.value import nearest_value
from topic_probe.toy.word_attention import token_attention, word_attention
from topic_probe.toy.world import World

if TYPE_CHECKING:
    import pandas as pd

MAX_PATTERN_NUMBERS = 2**22
"""Numbers of attention patterns in one forward pass."""
_MANY_PARTS = "the toy has several layers or heads, a residual connection, or hooks"


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
        matrix: which matrix is held against Lemma 1 or Theorem 1: ``W_V`` where embeddings are one-hot, ``W_Eᵀ W_E``
            where only the embedding is trained, ``W_Eᵀ W_V W_E`` otherwise. Biases are folded into columns that every
            document attends to alike: that of ``[MASK]``, or of all words where attention does not see ``[MASK]``.
        theorem: which of the two, None where neither applies.
        family_distance: Frobenius distance to the nearest optimum of that theorem ÷ the norm of that optimum.
        worst_residual: the largest |left side − right side| of any condition of the theorem.
        value_distance: Frobenius distance of W_V to Theorem 2's closed form ÷ the norm of that; one-hot only.
        attention: what `word_attention` gives for as many documents of the same seed.
        weighted_mean: (v − 1)/v · α + β/v with α and β the attention to other words of the same topic and to the same
            word, relative to other topics (Theorem 3).
        weighted_mean_optimum: where that is optimal for W_V of Theorem 2 and infinitely long documents of this world.
        effects: how much the loss at the words that were drawn rises when the head's output is replaced (``mean
            ablation``: by its mean over all positions of the other documents; ``zero ablation``).
        effects_error: their standard errors.
        effects_theory: the same on infinitely long documents, for the minimiser that is nearest to this toy; only for
            the squared loss and where attention is frozen uniform.
        reasons: what is missing, and why.
        provenance: model, options, versions.
    """

    figure: ClassVar[str] = "bars:loss_scale"
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
    matrix: str | None = None
    theorem: str | None = None
    family_distance: float = nan
    worst_residual: float = nan
    value_distance: float = nan
    attention: Mapping[str, float] = field(default_factory=dict)
    weighted_mean: float = nan
    weighted_mean_optimum: float = nan
    effects: Mapping[str, float] = field(default_factory=dict)
    effects_error: Mapping[str, float] = field(default_factory=dict)
    effects_theory: Mapping[str, float] = field(default_factory=dict)
    reasons: Mapping[str, str]
    provenance: Mapping[str, Any]

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every comparison: what was measured, what theory says, and how far apart they are."""
        import pandas as pd

        optima = f"{self.matrix}, {{}} {self.theorem}" if self.theorem else "{} Lemma 1 or Theorem 1"
        rows: list[tuple[str, float, float, float]] = [
            ("loss, theory: Bayes-optimal", self.loss, self.bayes, self.excess_error),
            ("loss, theory: floor", self.loss, self.floor, self.loss_error),
            ("W_V, distance to Theorem 2", self.value_distance, 0.0, nan),
            (optima.format("distance to"), self.family_distance, 0.0, nan),
            (optima.format("largest residual of"), self.worst_residual, 0.0, nan),
            ("attention, weighted mean", self.weighted_mean, self.weighted_mean_optimum, nan),
        ]
        for name, rise in self.effects.items():
            expected, error = self.effects_theory.get(name, nan), self.effects_error[name]
            rows.append((f"loss, effect of {name}", rise, expected, error))
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
    loss is that at the drawn words, and there is no excess. Effects of ablation come from the toy's tensors on the same
    documents; theory has them for infinitely long ones.

    Args:
        model: from `build_toy`; it comes back as it was.
        loss: which loss the toy was trained with. The closed forms for W_V and W_E are about ``squared``.
        n_documents: how many documents.
        seed: of documents and masks.

    Raises:
        TypeError: for a model that is no toy.
        ValueError: for an unknown loss, or where fewer than two documents have anything masked.

    Example:
        >>> world = tp.World(n_topics=2, words_per_topic=2, topics_per_document=1)
        >>> W = tp.theory.optimal_value(world, tp.Masking())
        >>> toy = tp.build_toy(tp.ToyConfig(regime="value", world=world), tensors={"W_V": W})
        >>> report = tp.measure_agreement(toy, loss="squared", n_documents=10)
        >>> round(report.value_distance, 6), report.floor  # the closed form itself; one of two equally likely words
        (0.0, 0.5)
    """
    config = toy_config(model)
    if n_documents < 2:
        raise ValueError(f"needed at least 2 documents for a standard error, got n_documents={n_documents}")
    world, masking, attend = config.world, config.masking, config.attend
    documents = _documents(world, masking, attend, n_documents, check_whole("seed", seed, 0))
    reasons: dict[str, str] = {}
    parts = [_losses(_logits(model, config, documents.batches), documents, loss, reasons)]
    try:
        parts.append(
            {"floor": theory.loss_floor(world, masking, regime=config.regime, loss=loss, attend=attend).value}
        )
    except ValueError as error:
        reasons["floor"] = str(error)
    parts.append(_matrices(model, config, loss, reasons))
    parts.append(_attention(model, config, n_documents, seed, reasons))
    parts.append(_effects(model, config, documents.batches, loss, reasons))
    options = {"loss": loss, "n_documents": n_documents, "world": str(world), "masking": str(masking)}
    return AgreementReport(
        regime=config.regime,
        loss_kind=loss,
        guess=log(world.n_words) if loss == "cross_entropy" else 1 - 1 / world.n_words,
        **dict(ChainMap(*parts)),
        reasons=reasons,
        provenance=provenance(world.topics, model=config.to_dict(), options=options, seed=seed),
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
    drawn = list(masked_documents(world, masking, n_documents, DRAWN_AT_ONCE, generator, attend=attend))
    batches = tuple(batch for _, batch in drawn)
    try:
        samples = [(*pair, theory.bayes_predictor(world, masking, pair[1], attend=attend)) for pair in drawn]
    except ValueError as error:
        return _Documents(batches, no_posterior=str(error))
    posteriors = tuple(probabilities for _, _, probabilities in samples)
    return _Documents(batches, posteriors, mean_bayes_loss(world, masking, samples))


def _logits(
    model: nn.Module, config: ToyConfig, batches: Sequence[MaskedBatch]
) -> list[Float64[Tensor, "_ token"]]:
    """Predictions at the chosen positions of every batch."""
    size = max(1, MAX_PATTERN_NUMBERS // (config.world.max_length**2 * config.n_heads))
    logits = []
    with torch.no_grad():
        for batch in batches:
            parts = [batch.select(rows) for rows in torch.split(torch.arange(len(batch)), size)]
            found = [
                model(part.shown, attention_mask=part.visible(config.attend).long())[part.chosen]
                for part in parts
            ]
            logits.append(torch.cat(found).double())
    return logits


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
    """Everything about W_V and W_Eᵀ W_E."""
    if loss == "cross_entropy":
        reasons["matrices"] = "Lemma 1, Theorem 1 and Theorem 2 are about the squared loss"
        return {}
    if not counts_suffice(model):
        reasons["matrices"] = _MANY_PARTS
        return {}
    tensors = _tensors(model)
    try:
        name, theorem, check = _check(tensors, config)
        optimum = theory.optimal_value(config.world, config.masking, attend=config.attend)
    except ValueError as error:
        reasons["matrices"] = str(error)
        return {}
    family = {
        "matrix": name,
        "theorem": theorem,
        "family_distance": check.relative,
        "worst_residual": check.worst,
    }
    if name != "W_V":
        reasons["Theorem 2"] = "it is about W_V with one-hot embeddings"
        return family
    return family | {"value_distance": float((tensors["W_V"] - optimum).norm() / optimum.norm())}


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().cpu().double() for name, value in toy_tensors(model).items()}


def _check(t: Mapping[str, Tensor], config: ToyConfig) -> tuple[str, str, theory.OptimumCheck]:
    """The matrix that maps attended frequencies to predictions under uniform attention, held against its theorem."""
    world, masking, attend = config.world, config.masking, config.attend
    W_E, W_V, b_V, b_pred = (t[name] for name in ("W_E", "W_V", "b_V", "b_pred"))
    prescribed = theory.embedding_bias(world, masking, attend=attend)
    if not _is_identity(W_E) and _is_identity(W_V) and not b_V.any() and torch.allclose(b_pred, prescribed):
        return "W_Eᵀ W_E", "Theorem 1", theory.check_theorem1(W_E.T @ W_E, world, masking, attend=attend)
    name = "W_V" if _is_identity(W_E) else "W_Eᵀ W_V W_E"
    whole, bias = W_E.T @ W_V @ W_E, W_E.T @ b_V + b_pred
    # A bias is a part of what every long document attends to alike: [MASK] in its share, or all words in theirs of 1.
    if attend == "unmasked":
        whole[:, 1:] += bias.unsqueeze(1)
    elif masking.mask_share > 0:
        whole[:, 0] += bias / masking.mask_share
    return name, "Lemma 1", theory.check_lemma1(whole, world, masking, attend=attend)


def _is_identity(matrix: Float64[Tensor, "row column"]) -> bool:
    return matrix.shape[0] == matrix.shape[1] and torch.equal(matrix, torch.eye(len(matrix)).double())


def _attention(
    model: nn.Module, config: ToyConfig, n_documents: int, seed: int, reasons: dict[str, str]
) -> dict[str, Any]:
    """Attention between words, Theorem 3's weighted mean of it, and what theory says about that."""
    if not counts_suffice(model):
        reasons["attention"] = f"{_MANY_PARTS}: measure_attention measures them all"
        return {}
    world, masking, attend = config.world, config.masking, config.attend
    attention = word_attention(model, n_documents=n_documents, seed=seed)
    v, other = world.words_per_topic, attention["different_topic"]
    # With one word per topic there is no other word of the topic, and its weight is 0.
    others = (v - 1) * attention["same_topic"] if v > 1 else 0.0
    measured = {
        "attention": attention,
        "weighted_mean": (others + attention["same_word"]) / v / other if other else nan,
    }
    try:
        optimum = theory.optimal_attention(world, masking, attend=attend).weighted_mean
    except ValueError as error:
        reasons["Theorem 3"] = str(error)
        return measured
    return measured | {"weighted_mean_optimum": optimum}


def _effects(
    model: nn.Module, config: ToyConfig, batches: Sequence[MaskedBatch], loss: Loss, reasons: dict[str, str]
) -> dict[str, Any]:
    """What the head's output is worth, here and in theory."""
    if not counts_suffice(model):
        reasons["effects"] = _MANY_PARTS
        return {}
    t = _tensors(model)
    # All that a head writes if it attends to one token alone; attention sums to 1, so b_V is in every column.
    W, bias = t["W_E"].T @ (t["W_V"] @ t["W_E"] + t["b_V"].unsqueeze(1)), t["b_pred"]
    changes = _loss_changes(W, bias, token_attention(model), config, batches, loss)
    found = {name: _mean_over_documents(batches, parts) for name, parts in changes.items()}
    measured: dict[str, Any] = {
        "effects": {name: mean for name, (mean, _) in found.items()},
        "effects_error": {name: error for name, (_, error) in found.items()},
    }
    if loss == "cross_entropy" or not attention_is_uniform(model):
        reasons["effects in theory"] = (
            "they are held against toys of squared loss and frozen uniform attention"
        )
        return measured
    world, masking, attend = config.world, config.masking, config.attend
    nearest = nearest_value(W + bias.unsqueeze(1), world, masking, attend=attend) - bias.unsqueeze(1)
    effects = {
        f"{kind} ablation": float(
            theory.ablation_effect(nearest, world, masking, kind=kind, bias=bias, attend=attend)
        )
        for kind in ("mean", "zero")
    }
    return measured | {"effects_theory": effects}


def _loss_changes(
    W: Float64[Tensor, "token token"],
    bias: Float64[Tensor, " token"],
    attention: Float64[Tensor, "query key"],
    config: ToyConfig,
    batches: Sequence[MaskedBatch],
    loss: Loss,
) -> dict[str, list[Float64[Tensor, "_"]]]:
    """Loss without the output of the head − with it, at the chosen positions of every batch.

    A position predicts ``W y + bias``, where y is what it attends to.
    """
    size = config.world.vocabulary_size
    asking = [batch.counts(size).double() for batch in batches]
    asked = [batch.counts(size, config.attend).double() for batch in batches]
    # What all positions of a document attend to together.
    sums = [
        keys * ((rows / (keys @ attention.T)) @ attention) for rows, keys in zip(asking, asked, strict=True)
    ]
    everything, n_positions = sum(part.sum(dim=0) for part in sums), sum(float(part.sum()) for part in asking)
    changes: dict[str, list[Tensor]] = {"mean ablation": [], "zero ablation": []}
    for batch, rows, keys, total in zip(batches, asking, asked, sums, strict=True):
        document, target = batch.chosen.nonzero()[:, 0], batch.target[batch.chosen]
        seen = attention[batch.shown[batch.chosen]] * keys[document]
        seen = seen / seen.sum(dim=1, keepdim=True)
        elsewhere = (everything - total) / (n_positions - rows.sum(dim=1, keepdim=True))
        instead = {"mean ablation": elsewhere[document], "zero ablation": torch.zeros_like(seen)}
        intact = position_losses(seen @ W.T + bias, target, loss=loss)
        for name, y in instead.items():
            changes[name].append(position_losses(y @ W.T + bias, target, loss=loss) - intact)
    return changes
