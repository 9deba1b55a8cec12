"""How near a trained toy is to what theory says: its loss, its matrices, its attention."""

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import log, nan, sqrt
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from einops import einsum, rearrange, reduce
from jaxtyping import Float, Float64
from torch import Tensor, nn
from torch.nn.functional import one_hot

from topic_probe.contrast import Contrast, PairSums, word_relations
from topic_probe.options import check_whole, checked
from topic_probe.report import Report, provenance
from topic_probe.topics import Topics
from topic_probe.toy import theory
from topic_probe.toy.masking import MASK_ID, Loss, MaskedBatch, Masking, position_losses
from topic_probe.toy.model import (
    attention_is_uniform,
    counts_suffice,
    toy_config,
    toy_logits,
    toy_patterns,
    toy_tensors,
)
from topic_probe.toy.theory.losses import DRAWN_AT_ONCE, masked_documents, mean_bayes_loss
from topic_probe.toy.theory.posterior import MAX_LENGTH, posterior_method
from topic_probe.toy.theory.value import nearest_value
from topic_probe.toy.word_attention import token_attention
from topic_probe.toy.world import World

if TYPE_CHECKING:
    import pandas as pd

MAX_PATTERN_NUMBERS = 2**22


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AgreementReport(Report, kind="agreement"):
    """A trained toy beside theory. What does not apply is NaN or None, and ``reasons`` says why.

    Attributes:
        regime: the regime the toy was built for.
        loss_kind: which loss all losses here are.
        loss: of the model, on fresh documents of the world.
        loss_error: its standard error over documents.
        bayes: the lowest loss that any predictor can have on such documents.
        bayes_error: its standard error.
        excess: loss − bayes on the same documents, which is far more certain than either; never negative.
        excess_error: its standard error.
        guess: the loss of guessing every word alike, without looking at the document.
        floor: the lowest loss of the regime on infinitely long documents.
        floor_kind: whether some parameters reach it (minimum), come near it (infimum), or need not (lower bound).
        matrix: which matrix is held against Lemma 1 or Theorem 1: ``W_V`` where embeddings are one-hot, ``W_Eᵀ W_E``
            where only the embedding is trained, ``W_Eᵀ W_V W_E`` otherwise. Biases are folded into its column of
            ``[MASK]``, which is the same on long documents.
        theorem: which of the two, None where neither applies.
        family_distance: Frobenius distance to the nearest optimum of that theorem ÷ the norm of that optimum.
        residuals: left side − right side of every condition, by name, at the fitted u.
        u: the fitted constants u_0, u_1, ... of that nearest optimum.
        value_distance: Frobenius distance of W_V to Theorem 2's closed form ÷ the norm of that; one-hot only.
        value_entries: means of W_V by kind of entry: ``same_topic`` (the diagonal included), ``different_topic``,
            ``mask_column``, and ``mask_row``.
        value_theory: the same of Theorem 2's W_V.
        attention: mean attention by relation on masked documents, uniform attention being 1; words only.
        weighted_mean: (v − 1)/v · α + β/v with α and β the attention to other words of the same topic and to the same
            word, relative to other topics (Theorem 3).
        weighted_mean_optimum: where that is optimal for W_V of Theorem 2 and infinitely long documents of this world.
        weighted_mean_bounds: Theorem 3's interval for the optimum.
        bounds_unmet: the assumptions of Theorem 3 that do not hold.
        effects: how much the loss rises when the head's output is replaced (``mean ablation``: by its mean over all
            positions of the other documents; ``zero ablation``) or when masked positions no longer attend to words of
            the target's topic (``cut of own topic``) or of other topics (``cut of other topics``), whose attention is
            lost. At the words that were drawn. Empty where there is not one head alone.
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
    floor_kind: str | None = None
    matrix: str | None = None
    theorem: str | None = None
    family_distance: float = nan
    residuals: Mapping[str, Float64[np.ndarray, "..."]]
    u: Float64[np.ndarray, " token"] | None = None
    value_distance: float = nan
    value_entries: Mapping[str, float]
    value_theory: Mapping[str, float]
    attention: Contrast | None = None
    weighted_mean: float = nan
    weighted_mean_optimum: float = nan
    weighted_mean_bounds: tuple[float, float] | None = None
    bounds_unmet: tuple[str, ...] = ()
    effects: Mapping[str, float] = field(default_factory=dict)
    effects_error: Mapping[str, float] = field(default_factory=dict)
    effects_theory: Mapping[str, float] = field(default_factory=dict)
    reasons: Mapping[str, str]
    provenance: Mapping[str, Any]

    @property
    def worst_residual(self) -> float:
        """The largest absolute residual of any condition; NaN where no theorem applies."""
        return max((float(np.abs(part).max()) for part in self.residuals.values() if part.size), default=nan)

    @property
    def within_bounds(self) -> bool | None:
        """Whether the weighted mean lies in Theorem 3's interval; None where it has none."""
        if self.weighted_mean_bounds is None or np.isnan(self.weighted_mean):
            return None
        low, high = self.weighted_mean_bounds
        return low < self.weighted_mean < high

    @property
    def share_gained(self) -> float:
        """How much of what the best predictor gains over guessing the model gains: 1 is Bayes-optimal, 0 a guess."""
        return (self.guess - self.loss) / (self.guess - self.bayes) if self.guess != self.bayes else nan

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every comparison: what was measured, what theory says, and how far apart they are."""
        import pandas as pd

        rows: list[tuple[str, float, float, float, float]] = [
            ("loss, theory: Bayes-optimal", self.loss, self.bayes, self.excess, self.excess_error),
            ("loss, theory: floor", self.loss, self.floor, self.loss - self.floor, self.loss_error),
        ]
        rows += [
            (f"W_V, mean {name}", value, self.value_theory[name], value - self.value_theory[name], nan)
            for name, value in self.value_entries.items()
        ]
        rows.append(("W_V, distance to Theorem 2", self.value_distance, 0.0, self.value_distance, nan))
        what = (
            f"{self.matrix}, distance to {self.theorem}"
            if self.theorem
            else "distance to Lemma 1 or Theorem 1"
        )
        rows.append((what, self.family_distance, 0.0, self.family_distance, nan))
        rows += [
            (f"{self.matrix}, largest residual of {name}", size, 0.0, size, nan)
            for name, part in self.residuals.items()
            for size in [float(np.abs(part).max(initial=0.0))]
        ]
        gap = self.weighted_mean - self.weighted_mean_optimum
        rows.append(("attention, weighted mean", self.weighted_mean, self.weighted_mean_optimum, gap, nan))
        for name, effect in self.effects.items():
            expected = self.effects_theory.get(name, nan)
            rows.append(
                (f"loss, effect of {name}", effect, expected, effect - expected, self.effects_error[name])
            )
        return pd.DataFrame(rows, columns=["quantity", "measured", "theory", "difference", "standard_error"])

    def _notes(self) -> list[str]:
        notes = [f"{what}: {reason}" for what, reason in self.reasons.items()]
        notes.append("only losses have a standard error: they are means over documents that were drawn")
        if self.weighted_mean_bounds is not None:
            low, high = self.weighted_mean_bounds
            inside = {True: "inside", False: "outside", None: "no number for"}[self.within_bounds]
            notes.append(f"{inside} Theorem 3's interval ({low:.4g}, {high:.4g})")
        return notes


@checked
def measure_agreement(
    model: nn.Module,
    world: World | None = None,
    masking: Masking | None = None,
    *,
    loss: Loss,
    n_documents: int = 500,
    attention: bool = True,
    seed: int = 0,
    batch_size: int | None = None,
) -> AgreementReport:
    """Everything theory has a number for, beside the same number of a trained toy.

    Loss and attention are measured on fresh documents of the world, masked like those of training. The model's loss at
    a masked position is its expected loss under the exact posterior of the word there, not that at one drawn word,
    which makes it as certain as it can be and its excess over the Bayes-optimal predictor exact for every document:
    |prediction − posterior|², or the Kullback–Leibler divergence. Where the posterior has no exact form the loss is
    that at the drawn words, and there is no excess. Effects of ablation and of cutting edges come from the toy's
    tensors on the same documents; theory has them for infinitely long ones.

    Args:
        model: from `build_toy`; it comes back as it was.
        world: the documents; None: those the toy was built for.
        masking: their corruption; None: that of the toy.
        loss: which loss the toy was trained with. The closed forms for W_V and W_E are about ``squared``.
        n_documents: how many documents.
        attention: whether to measure attention, the slowest part for large worlds.
        seed: of documents and masks.
        batch_size: documents in one forward pass; None: as many as keep a batch of patterns below four million numbers.

    Raises:
        TypeError: for a model that is no toy.
        ValueError: for a world of another vocabulary, or an unknown loss.

    Example:
        >>> world = tp.World(n_topics=2, words_per_topic=2, topics_per_document=1)
        >>> W = tp.theory.optimal_value(world, tp.Masking())
        >>> toy = tp.build_toy(tp.ToyConfig(regime="value", world=world), tensors={"W_V": W})
        >>> report = tp.measure_agreement(toy, loss="squared", n_documents=10)
        >>> round(report.value_distance, 6), report.floor  # the closed form itself; one of two equally likely words
        (0.0, 0.5)
    """
    config = toy_config(model)
    world, masking = world or config.world, masking or config.masking
    if n_documents < 2:
        raise ValueError(f"needed at least 2 documents for a standard error, got n_documents={n_documents}")
    if batch_size is None:
        batch_size = max(1, MAX_PATTERN_NUMBERS // (world.max_length**2 * config.n_heads))
    check_whole("batch_size", batch_size)
    if world.vocabulary_size != config.vocabulary_size:
        raise ValueError(
            f"the documents have {world.vocabulary_size} token ids, the model {config.vocabulary_size}; pass a world "
            "of the same number of words"
        )
    reasons: dict[str, str] = {}
    documents, topics = _documents(world, masking, n_documents, seed), world.topics
    logits, sums = _forward(model, documents.batches, batch_size, topics if attention else None)
    parts: list[dict[str, Any]] = [_losses(logits, documents, loss, reasons)]
    try:
        floor = theory.loss_floor(world, masking, regime=config.regime, loss=loss)
        parts.append({"floor": floor.value, "floor_kind": floor.kind})
    except ValueError as error:
        reasons["floor"] = str(error)
    parts.append(_matrices(model, world, masking, loss, reasons))
    parts.append(_attention(sums, world, masking, reasons))
    parts.append(_effects(model, documents.batches, world, masking, loss, reasons))
    options = {
        "loss": loss, "n_documents": n_documents, "batch_size": batch_size, "attention": attention,
        "world": str(world), "masking": str(masking),
    }  # fmt: skip
    return AgreementReport(
        regime=config.regime,
        loss_kind=loss,
        guess=log(world.n_words) if loss == "cross_entropy" else 1 - 1 / world.n_words,
        **dict(ChainMap(*parts)),
        reasons=reasons,
        provenance=provenance(topics, model=config.to_dict(), options=options, seed=seed),
    )


@dataclass(frozen=True)
class _Documents:
    """Masked documents with all that does not depend on a model."""

    batches: tuple[MaskedBatch, ...]
    posteriors: tuple[Float64[Tensor, "_ token"], ...] = ()
    best: theory.BayesLoss | None = None
    no_posterior: str | None = None


# Several models are often compared on the same documents, whose posteriors take longer than a model does.
@lru_cache(maxsize=2)
def _documents(world: World, masking: Masking, n_documents: int, seed: int) -> _Documents:
    """The masked documents of a seed, with the Bayes-optimal prediction of their words where it has an exact form."""
    generator = torch.Generator().manual_seed(check_whole("seed", seed, 0))
    drawn = list(masked_documents(world, masking, n_documents, DRAWN_AT_ONCE, generator))
    batches = tuple(batch for _, batch in drawn)
    try:
        posterior_method(world)
    except ValueError as error:
        return _Documents(batches, no_posterior=str(error))
    longest = max(int(batch.mask.sum(dim=1).max()) for batch in batches)
    if longest > MAX_LENGTH:
        reason = f"documents of {longest} words are too long for the exact posterior (at most {MAX_LENGTH})"
        return _Documents(batches, no_posterior=reason)
    samples = [
        (documents, batch, theory.bayes_predictor(world, masking, batch)) for documents, batch in drawn
    ]
    posteriors = tuple(prediction.probabilities for _, _, prediction in samples)
    return _Documents(batches, posteriors, mean_bayes_loss(world, masking, samples))


def _forward(
    model: nn.Module, batches: Sequence[MaskedBatch], batch_size: int, topics: Topics | None
) -> tuple[list[Float64[Tensor, "_ token"]], PairSums | None]:
    """Logits at the chosen positions of every batch, and sums of attention by relation if there are topics."""
    logits, sums = [], PairSums(np.zeros(3), np.zeros(3), np.zeros(()))
    with torch.no_grad(), toy_patterns(model) as patterns:
        for batch in batches:
            parts = []
            for part in map(batch.select, torch.split(torch.arange(len(batch)), batch_size)):
                parts.append(toy_logits(model, part.shown, part.mask)[part.chosen].double())
                if topics is not None:
                    sums = sum((_pair_sums(pattern, part, topics) for pattern in patterns), start=sums)
                patterns.clear()
            logits.append(torch.cat(parts))
    return logits, sums if topics is not None else None


# -------------------------------------------------------------------- loss


def _losses(
    logits: Sequence[Float64[Tensor, "_ token"]],
    documents: _Documents,
    loss: Loss,
    reasons: dict[str, str],
) -> dict[str, float]:
    """The model's loss, the best possible one, and the excess, each with its standard error."""
    batches, best = documents.batches, documents.best
    if best is None:
        assert documents.no_posterior is not None
        reasons["Bayes-optimal loss"] = documents.no_posterior
        drawn = [
            position_losses(part, batch.target[batch.chosen], loss=loss)
            for part, batch in zip(logits, batches, strict=True)
        ]
        mean, error = _mean_over_documents(batches, drawn)
        return {"loss": mean, "loss_error": error}
    above = [_excess_loss(part, best, loss) for part, best in zip(logits, documents.posteriors, strict=True)]
    excess, excess_error = _mean_over_documents(batches, above)
    bayes, bayes_error = (
        (best.squared, best.squared_error)
        if loss == "squared"
        else (best.cross_entropy, best.cross_entropy_error)
    )
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


# -------------------------------------------------------------------- matrices


def _matrices(
    model: nn.Module, world: World, masking: Masking, loss: Loss, reasons: dict[str, str]
) -> dict[str, Any]:
    """Everything about W_V and W_Eᵀ W_E."""
    nothing: dict[str, Any] = {"residuals": {}, "value_entries": {}, "value_theory": {}}
    config = toy_config(model)
    if loss == "cross_entropy":
        reasons["matrices"] = "Lemma 1, Theorem 1 and Theorem 2 are about the squared loss"
        return nothing
    if config.n_layers > 1 or config.n_heads > 1 or config.residual:
        reasons["matrices"] = "the theorems are about one layer of one head without a residual connection"
        return nothing
    tensors = {name: value.detach().cpu().double() for name, value in toy_tensors(model).items()}
    try:
        name, theorem, check = _check(tensors, world, masking)
        optimum = theory.optimal_value(world, masking)
    except ValueError as error:
        reasons["matrices"] = str(error)
        return nothing
    family = {
        "matrix": name,
        "theorem": theorem,
        "family_distance": check.relative,
        "residuals": {
            "mask_entry": np.array([check.mask_entry]),
            "mask_row": check.mask_row.numpy(),
            "mask_column": check.mask_column.numpy(),
            "same_topic": check.same_topic.numpy(),
            "different_topic": check.different_topic.numpy(),
        },
        "u": check.u.numpy(),
    }
    if name != "W_V":
        reasons["Theorem 2"] = "it is about W_V with one-hot embeddings"
        return nothing | family
    return family | {
        "value_distance": float((tensors["W_V"] - optimum).norm() / optimum.norm()),
        "value_entries": _entries(tensors["W_V"], world),
        "value_theory": _entries(optimum, world),
    }


def _check(
    tensors: Mapping[str, Tensor], world: World, masking: Masking
) -> tuple[str, str, theory.OptimumCheck]:
    """The matrix that maps shown frequencies to predictions under uniform attention, held against its theorem."""
    W_E, W_V, b_V, b_pred = (tensors[name] for name in ("W_E", "W_V", "b_V", "b_pred"))
    prescribed = theory.embedding_bias(world, masking)
    if not _is_identity(W_E) and _is_identity(W_V) and not b_V.any() and torch.allclose(b_pred, prescribed):
        return "W_Eᵀ W_E", "Theorem 1", theory.check_theorem1(W_E.T @ W_E, world, masking)
    name = "W_V" if _is_identity(W_E) else "W_Eᵀ W_V W_E"
    whole = W_E.T @ W_V @ W_E
    # Every long document shows [MASK] with the same frequency, so a bias is a part of its column.
    whole[:, 0] += (W_E.T @ b_V + b_pred) / masking.mask_share if masking.mask_share > 0 else 0.0
    return name, "Lemma 1", theory.check_lemma1(whole, world, masking)


def _is_identity(matrix: Float64[Tensor, "row column"]) -> bool:
    return matrix.shape[0] == matrix.shape[1] and torch.equal(matrix, torch.eye(len(matrix)).double())


def _entries(W: Float64[Tensor, "token token"], world: World) -> dict[str, float]:
    topic, words = world.block_of_word, W[1:, 1:]
    same = topic[:, None] == topic
    parts = {
        "same_topic": words[same],
        "different_topic": words[~same],
        "mask_column": W[1:, 0],
        "mask_row": W[0],
    }
    return {name: float(part.mean()) for name, part in parts.items()}


# -------------------------------------------------------------------- attention


def _pair_sums(
    pattern: Float[Tensor, "document head query key"], batch: MaskedBatch, topics: Topics
) -> PairSums:
    """Sums of attention over pairs of words of a batch, relative to uniform attention, all heads pooled."""
    # [MASK] and padding are id 0, which has no topic and so no relation.
    places = topics.places(batch.shown)
    codes = word_relations(places, places, topics)
    chosen = one_hot(codes.long(), 4)[..., 1:].to(pattern.dtype)
    scores = pattern * rearrange(batch.mask.sum(dim=1), "document -> document 1 1 1").to(pattern.dtype)
    by_row = einsum(
        scores, chosen, "document head query key, document query key relation -> document head query relation"
    )
    sums = reduce(by_row.double(), "document head query relation -> relation", "sum")
    counts = reduce(chosen.double(), "document query key relation -> relation", "sum") * pattern.shape[1]
    compared = chosen[..., 1:].sum(-1).bool()[:, None]  # same topic or different ones
    squares = scores.double().square().masked_fill(~compared, 0.0).sum()
    return PairSums(sums.numpy(), counts.numpy(), squares.numpy())


def _attention(
    sums: PairSums | None, world: World, masking: Masking, reasons: dict[str, str]
) -> dict[str, Any]:
    """Attention by relation, Theorem 3's weighted mean of it, and what theory says about that."""
    if sums is None:
        reasons["attention"] = "not asked for"
        return {}
    attention, v = sums.contrast(), world.words_per_topic
    other = float(attention.different_topic)
    topic, word = (
        float(part) / other if other else nan for part in (attention.same_topic, attention.same_word)
    )
    measured = {
        "attention": attention,
        # With one word per topic there is no other word of the topic, and its weight is 0.
        "weighted_mean": word if v == 1 else (v - 1) / v * topic + word / v,
    }
    try:
        bounds = theory.attention_bounds(world, masking)
        optimum = theory.optimal_attention(world, masking).weighted_mean
    except ValueError as error:
        reasons["Theorem 3"] = str(error)
        return measured
    return measured | {
        "weighted_mean_optimum": optimum,
        "weighted_mean_bounds": (bounds.lower, bounds.upper),
        "bounds_unmet": bounds.unmet,
    }


# -------------------------------------------------------------------- effects


def _effects(
    model: nn.Module,
    batches: Sequence[MaskedBatch],
    world: World,
    masking: Masking,
    loss: Loss,
    reasons: dict[str, str],
) -> dict[str, Any]:
    """What the head's output and its edges are worth, here and in theory."""
    if not counts_suffice(model):
        reasons["effects"] = "the toy has several layers or heads, a residual connection, or hooks"
        return {}
    tensors = {name: value.detach().cpu().double() for name, value in toy_tensors(model).items()}
    # All that a head writes if it attends to one token alone; attention sums to 1, so b_V is in every column.
    W = tensors["W_E"].T @ (tensors["W_V"] @ tensors["W_E"] + tensors["b_V"].unsqueeze(1))
    head = _Head(W, tensors["b_pred"], token_attention(model))
    changes = _loss_changes(head, batches, world, loss)
    found = {name: _mean_over_documents(batches, parts) for name, parts in changes.items()}
    return {
        "effects": {name: mean for name, (mean, _) in found.items()},
        "effects_error": {name: error for name, (_, error) in found.items()},
        "effects_theory": _effects_in_theory(
            head, attention_is_uniform(model), world, masking, loss, reasons
        ),
    }


@dataclass(frozen=True)
class _Head:
    """A toy of one layer and head: y → W y + bias, where y is what is attended to.

    ``attention`` is that of every token in a document that shows each of them once.
    """

    W: Float64[Tensor, "token token"]
    bias: Float64[Tensor, " token"]
    attention: Float64[Tensor, "token token"]


def _loss_changes(
    head: _Head, batches: Sequence[MaskedBatch], world: World, loss: Loss
) -> dict[str, list[Float64[Tensor, "_"]]]:
    """Loss without something − with it, at the chosen positions of every batch."""
    counts = [batch.counts(world.vocabulary_size).double() for batch in batches]
    # What all positions of a document attend to together.
    sums = [count * ((count / (count @ head.attention.T)) @ head.attention) for count in counts]
    everything, n_positions = sum(part.sum(dim=0) for part in sums), sum(float(part.sum()) for part in counts)
    shared = torch.zeros(world.vocabulary_size, world.vocabulary_size, dtype=torch.bool)
    member = (world.topic_words > 0).double()
    shared[1:, 1:] = member.T @ member > 0
    other = ~shared
    other[:, MASK_ID] = False
    changes: dict[str, list[Tensor]] = {}
    for batch, count, total in zip(batches, counts, sums, strict=True):
        row, target = batch.chosen.nonzero()[:, 0], batch.target[batch.chosen]
        seen = head.attention[batch.shown[batch.chosen]] * count[row]
        seen = seen / seen.sum(dim=1, keepdim=True)
        elsewhere = (everything - total) / (n_positions - count.sum(dim=1, keepdim=True))
        without = {
            "mean ablation": elsewhere[row],
            "zero ablation": torch.zeros_like(seen),
            "cut of own topic": seen.masked_fill(shared[target], 0.0),
            "cut of other topics": seen.masked_fill(other[target], 0.0),
        }
        losses = {
            name: position_losses(part @ head.W.T + head.bias, target, loss=loss)
            for name, part in {"": seen, **without}.items()
        }
        for name in without:
            changes.setdefault(name, []).append(losses[name] - losses[""])
    return changes


def _effects_in_theory(
    head: _Head, uniform: bool, world: World, masking: Masking, loss: Loss, reasons: dict[str, str]
) -> dict[str, float]:
    """The closed forms, for the minimiser that is nearest to the head."""
    if loss == "cross_entropy" or not uniform:
        reasons["effects in theory"] = (
            "they are held against toys of squared loss and frozen uniform attention"
        )
        return {}
    bias = head.bias.unsqueeze(1)
    nearest = nearest_value(head.W + bias, world, masking) - bias
    ablation = partial(theory.ablation_effect, world, masking, W=nearest, bias=head.bias)
    knockout = partial(theory.knockout_effect, world, masking, W=nearest, bias=head.bias, how="weights")
    effects = {"mean ablation": ablation(kind="mean").effect, "zero ablation": ablation(kind="zero").effect}
    try:
        effects["cut of own topic"] = knockout(cut="own_topic").effect
        effects["cut of other topics"] = knockout(cut="different_topic").effect
    except ValueError as error:
        reasons["cuts in theory"] = str(error)
    return effects
