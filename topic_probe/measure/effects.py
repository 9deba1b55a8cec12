"""What happens to an outcome when something is done to a model: effects with their intervals.

An effect is the outcome of the model as it is − the outcome after an intervention, on the same documents: positive
where the model had more of the outcome before. Its interval says how it would vary with other sources. Where there is
something to compare it with (random sets of heads, other edges at the same distance), ``p_random`` says how often that
does as much, and ``beyond`` what of the effect is left when its mean is taken away.

What is looked at is an `Outcome`: states, the loss, or a function of the user. Its numbers are of kinds, coded as
relations (`topic_probe.contrast`): a pair of words is of the same topic or of different ones, a position holds a word
of a topic (as same topic) or does not (as different topic). A readout is a mean over one kind, or a difference of two.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from topic_probe.contrast import DIFFERENT_TOPIC, SAME_TOPIC, with_interval, word_relations
from topic_probe.estimate import (
    MIN_UNITS,
    benjamini_hochberg,
    divide,
    jackknife,
    permutation_p_value,
)
from topic_probe.lens.edit import editing
from topic_probe.lens.host import Host, n_states
from topic_probe.lens.sites import Inputs
from topic_probe.measure.ask import source_limit
from topic_probe.measure.documents import add_documents, why_nothing
from topic_probe.measure.folder import MEASURED, Progress, Sum
from topic_probe.measure.options import Confidence, Reading, Run, recorded
from topic_probe.measure.pairs import NO_WORD, Side
from topic_probe.options import Group
from topic_probe.report import Report, provenance
from topic_probe.sums import SourceSums, columns, joined
from topic_probe.text.batches import TokenBatch
from topic_probe.topics import Topics

if TYPE_CHECKING:
    import pandas as pd

# So many effects are printed: the largest.
_PRINTED = 10
# Of fewer others no p-value can be small: of 19 the least is 2/20.
_LEAST_OTHERS = 20
# The share of tokens that the loss of a model that sees both ways masks, as in BERT's training.
_MASKED = 0.15
# Numbers of an outcome that are held at once.
_AT_ONCE = 2**27
_BROKEN = "documents whose outcome is NaN or infinite"


# ---------------------------------------------------------------------------- what is looked at


Places = Int64[Tensor, "batch position"]
"""Where the word at a position stands in the words of the topics; -1: no word of a topic."""


Prepare = Callable[[TokenBatch, Places], tuple[Tensor, Callable[[], Tensor]]]
"""From a batch to the kinds of all numbers of every document (0: none), and what reads these of the model as it is."""


@dataclass(frozen=True)
class Outcome:
    """What is looked at.

    Attributes:
        prepare: what is read of a batch; the same whatever is done to the model.
        readouts: by name the weights with which the means of the kinds (same word, same topic, different topic) add up.
        facts: what the numbers depend on.
        needs_words: whether a document without words of topics says nothing, so that no model need run on it.
        width: how many numbers are held for every position.
    """

    prepare: Prepare
    readouts: Mapping[str, tuple[int, int, int]]
    facts: Mapping[str, Any]
    needs_words: bool = False
    width: int = 1


@dataclass(frozen=True)
class OutcomeOptions(Group):
    """What is looked at, as users say it."""

    outcome: Annotated[
        Literal["states", "loss"] | Callable[[Any, Inputs], Tensor],
        'what is looked at: "states": centred cosines between words of the same topic − those between words of '
        'different ones, at a later layer; "loss": how badly words are predicted, in nats (masked words, or the next '
        "one in a causal model), so that what helps has a negative effect; or a function (model, inputs) that gives a "
        "number for every document",
    ] = "states"
    layer: Annotated[
        int | None, 'the layer of "states": 0 is what enters the first block; None: what leaves the last'
    ] = None

    def of(self, view: Host, topics: Topics, seed: int) -> Outcome:
        """The outcome that is meant, of a model; ValueError where it cannot have it."""
        if self.outcome == "states":
            return states(view, topics, self.layer)
        return loss(view, seed) if self.outcome == "loss" else of_function(view, self.outcome)


def states(view: Host, topics: Topics, layer: int | None = None) -> Outcome:
    """Centred cosines between the states of words of one document, same topic − different topics.

    The mean state of the document is taken out first, so that what moves all of its words alike is no effect. A state
    that is the mean has a cosine of 0 with all others.
    """
    n_layers = n_states(view.model) - 1
    at = n_layers if layer is None else layer
    if not 0 <= at <= n_layers:
        raise ValueError(
            f"layer must be 0 (what enters the first block) to {n_layers} (what leaves the last), got {layer}"
        )

    def prepare(batch: TokenBatch, places: Places) -> tuple[Tensor, Callable[[], Tensor]]:
        inputs, n_words = view.inputs(batch.ids, batch.mask), int((places >= 0).sum(1).max())
        index = (places < 0).byte().argsort(dim=1, stable=True)[:, :n_words]  # words come first
        words = places.gather(1, index)
        return word_relations(words, words, topics), lambda: _cosines(view, inputs, at, index)

    return Outcome(
        prepare, {"same − different": (0, 1, -1)}, {"outcome": "states", "layer": at}, needs_words=True
    )


def _cosines(
    view: Host, inputs: Inputs, layer: int, index: Int64[Tensor, "batch word"]
) -> Float64[Tensor, "batch word word"]:
    kept: list[Tensor] = []
    view.hooked.hidden_states(inputs, lambda at, states: kept.append(states) if at == layer else None)
    states, mask = kept[-1].double(), inputs.mask
    mean = (states * mask[:, :, None]).sum(1, keepdim=True) / mask.sum(1)[:, None, None]
    centred = states - mean
    length, whole = centred.norm(dim=-1, keepdim=True), states.norm(dim=-1, keepdim=True)
    # A state that is the mean has no direction, and what rounding leaves of it is none.
    nowhere = length <= 10 * torch.finfo(kept[-1].dtype).eps * whole
    states = (centred / length.masked_fill(nowhere, torch.inf)).cpu()
    chosen = states.gather(1, index[:, :, None].expand(-1, -1, states.shape[2]))
    return torch.bmm(chosen, chosen.mT)


def loss(view: Host, seed: int = 0) -> Outcome:
    """How badly tokens are predicted, in nats: at words of topics, and elsewhere.

    Of a causal model every token from its second on, of the others a share of each document's tokens, which are masked;
    they are drawn from the document's own content, so that they are the same whatever is done to the model.
    """
    if view.hooked.has_decoder:
        raise ValueError(
            "outcome='loss' is of models with one stack, and this one has an encoder and a decoder, which predicts the "
            "text that it was given: use outcome='states', or a function (model, inputs) that gives a number for every "
            "document"
        )
    mask_id: Any = getattr(getattr(view.model, "tokenizer", None), "mask_token_id", None)
    if mask_id is None and not view.is_causal:
        raise ValueError(
            "outcome='loss' masks words of a model that sees both ways, and its tokenizer names no mask token: open "
            "the model with its tokenizer, or use outcome='states'"
        )

    def prepare(batch: TokenBatch, places: Places) -> tuple[Tensor, Callable[[], Tensor]]:
        shown, predicted = batch.ids.clone(), batch.mask & ~batch.special
        if view.is_causal:
            predicted[:, 0] = False
        else:
            for row, key in enumerate(batch.keys.tolist()):
                # Of every position by itself, so that padding and batches change nothing.
                generator = np.random.default_rng([seed, key % 2**64])
                predicted[row] &= torch.from_numpy(generator.random(batch.ids.shape[1]) < _MASKED)
            shown[predicted] = mask_id
        kinds = torch.where(places >= 0, SAME_TOPIC, DIFFERENT_TOPIC) * predicted
        inputs = view.inputs(shown, batch.mask)
        return kinds, lambda: _losses(view, inputs, batch.ids, predicted)

    facts = {"outcome": "loss"} | ({} if view.is_causal else {"mask_seed": seed})
    readouts = {"words of topics": (0, 1, 0), "elsewhere": (0, 0, 1)}
    return Outcome(prepare, readouts, facts, width=view.facts.vocabulary_size)


def _losses(
    view: Host,
    inputs: Inputs,
    ids: Int64[Tensor, "batch position"],
    predicted: Bool[Tensor, "batch position"],
) -> Float64[Tensor, "batch position"]:
    logits = view.hooked.logits(inputs)
    if view.is_causal:
        logits = torch.nn.functional.pad(logits[:, :-1], (0, 0, 1, 0))
    found = torch.zeros(predicted.shape, dtype=torch.float64)
    for row, at in enumerate(predicted):  # one by one, for a vocabulary is large
        of_tokens = logits[row, at.to(logits.device)].double().log_softmax(-1).cpu()
        found[row, at] = -of_tokens.gather(1, ids[row, at][:, None])[:, 0]
    return found


def of_function(view: Host, function: Callable[[Any, Inputs], Any]) -> Outcome:
    """What a function of the user gives: one number for every document."""

    def prepare(batch: TokenBatch, places: Places) -> tuple[Tensor, Callable[[], Tensor]]:
        inputs, n = view.inputs(batch.ids, batch.mask), len(batch)

        def read() -> Tensor:
            given = torch.as_tensor(function(view.model, inputs)).cpu().double()
            if given.shape != (n,):
                raise ValueError(
                    f"the outcome needs one number for each of {n} documents, and the function has given a tensor of "
                    f"shape {tuple(given.shape)}"
                )
            return given

        return torch.full((n,), SAME_TOPIC), read

    # That it stays the same function is its user's business.
    facts = {"outcome": getattr(function, "__qualname__", type(function).__name__)}
    return Outcome(prepare, {"outcome": (0, 1, 0)}, facts)


# ---------------------------------------------------------------------------- what is told of it


@dataclass(frozen=True, eq=False, repr=False)
class EffectReport(Report, kind="effects"):
    """What interventions do to an outcome.

    Every array has a row for each readout of the outcome (``readouts``) and a column for each intervention (``index``).
    What there is nothing for is NaN.

    Attributes:
        readouts: what of the outcome is told: "same − different" of states; the loss at "words of topics" and
            "elsewhere"; the "outcome" of a function.
        index: what was done, by name: "stack", "layer" and "head" of heads one by one; or the "set", of "n" heads, and
            of which layers "random" ones are; or what was "cut".
        outcome: of the model as it is.
        outcome_interval: its interval.
        effect: the outcome of the model as it is − that after the intervention.
        interval: of the effect, over sources; both outcomes are of the same ones.
        p_value: of no effect, by this interval.
        q_value: the same, over all interventions (Benjamini-Hochberg).
        layer_effect: of the whole layer of a head: a scale, but no bound, because effects of heads may cancel.
        null: the effects of random sets or of matched cuts, padded with NaN.
        p_random: how often these do as much; of fewer than 20 none.
        beyond: the effect − their mean.
        beyond_interval: its interval, over sources.
        provenance: model, topics, options and everything left out.
    """

    readouts: tuple[str, ...]
    index: Mapping[str, tuple[Any, ...]]
    outcome: Float64[np.ndarray, " readout"]
    outcome_interval: Float64[np.ndarray, "readout 2"]
    effect: Float64[np.ndarray, "readout cell"]
    interval: Float64[np.ndarray, "readout cell 2"]
    p_value: Float64[np.ndarray, "readout cell"]
    q_value: Float64[np.ndarray, "readout cell"]
    layer_effect: Float64[np.ndarray, "readout cell"]
    null: Float64[np.ndarray, "readout cell draw"]
    p_random: Float64[np.ndarray, "readout cell"]
    beyond: Float64[np.ndarray, "readout cell"]
    beyond_interval: Float64[np.ndarray, "readout cell 2"]
    provenance: Mapping[str, Any]

    @classmethod
    def of_sums(cls, sums: Mapping[str, Any], progress: Progress, parts: Mapping[str, Any]) -> "EffectReport":
        """The report of sums by source; ValueError where no document is left to measure.

        Cell 0 of the sums is the model as it is; ``parts`` has the "index" of what is told of, the "cells" of it, for
        each the "others" that it is compared with, and the cells of whole "layers", or none.
        """
        documents = {**progress.record(), **sums["by_source"].record}
        if progress.whole and not documents["sources"]:
            raise ValueError(why_nothing(progress))
        left_out = dict(sorted((progress.counts.left_out + progress.left_out).items()))
        record = {**parts["provenance"], "left_out": left_out, "documents": documents}
        values, counts, _ = columns(sums["by_source"].rows()[1])
        if "edges" in sums:  # that were cut, and that were found to compare them with
            (n_cut, n_found), (others,) = sums["edges"].tolist(), parts["others"]
            record["edges"] = {
                "cut": int(n_cut),
                "matched": n_found / max(n_cut * len(others), 1) if others else None,
            }
        readouts, confidence = parts["readouts"], parts["confidence"]
        found = [_statistics(values, counts, weights, confidence, parts) for weights in readouts.values()]
        stacked = {name: np.stack([own[name] for own in found]) for name in found[0]}
        return cls(readouts=tuple(readouts), index=parts["index"], provenance=record, **stacked)

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every readout and intervention.

        Heads one by one have their ``place`` by the size of their effect, 1 for the largest.
        """
        import pandas as pd

        tables = []
        for number, readout in enumerate(self.readouts):
            effect, null = self.effect[number], self.null[number]
            columns = {
                **({"readout": readout} if len(self.readouts) > 1 else {}), **self.index,
                "effect": effect, "low": self.interval[number, :, 0], "high": self.interval[number, :, 1],
                "p_value": self.p_value[number], "q_value": self.q_value[number],
            }  # fmt: skip
            if "head" in self.index:
                place = np.argsort(np.argsort(-np.abs(np.nan_to_num(effect)), kind="stable")) + 1
                columns |= {"place": place, "layer_effect": self.layer_effect[number]}
            if null.size:
                n_null = np.isfinite(null).sum(1)
                columns |= {
                    "p_random": self.p_random[number], "n_null": n_null,
                    "null_mean": divide(np.nansum(null, 1), n_null), "beyond": self.beyond[number],
                    "beyond_low": self.beyond_interval[number, :, 0],
                    "beyond_high": self.beyond_interval[number, :, 1],
                }  # fmt: skip
            tables.append(pd.DataFrame(columns).dropna(axis="columns", how="all"))
        found: pd.DataFrame = pd.concat(tables, ignore_index=True)
        return found

    def _tables(self) -> "dict[str, pd.DataFrame]":
        """The effects of every readout, where there are many the largest."""
        table, n = self.to_dataframe(), self.effect.shape[1]
        found = {}
        for number, readout in enumerate(self.readouts):
            own = table.iloc[number * n : (number + 1) * n]
            heading = f"EffectReport: {readout}"
            if n > _PRINTED:
                own = own.sort_values("effect", key=abs, ascending=False, kind="stable")[:_PRINTED]
                heading += f", the {_PRINTED} largest of {n} effects"
            found[heading] = own.drop(columns="readout", errors="ignore")
        return found

    def _notes(self) -> list[str]:
        notes = []
        for readout, value, ends in zip(self.readouts, self.outcome, self.outcome_interval, strict=True):
            said = with_interval(value, ends)
            if np.isnan(value):
                said = "undefined, because no document has the words, or pairs, it is a mean over"
            notes.append(f"{readout} of the model as it is: {said}")
        if "head" in self.index:
            notes.append(
                "layer_effect, of the whole layer, is a scale and no bound: effects of heads may cancel"
            )
        if self.null.size and np.isnan(self.p_random).all():
            notes.append(f"no p_random: of fewer than {_LEAST_OTHERS} others none can be small")
        if np.isnan(self.interval).all():
            notes.append(f"no interval: at least {MIN_UNITS} sources need what the outcome is a mean over")
        return [*notes, *super()._notes()]


def _statistics(
    sums: Float64[np.ndarray, "source cell 3"],
    counts: Float64[np.ndarray, "source cell 3"],
    weights: Sequence[int],
    confidence: float,
    parts: Mapping[str, Any],
) -> dict[str, Any]:
    """What a report says of a readout, by the names of its fields."""
    cells, others, n_cells = parts["cells"], parts["others"], sums.shape[1]
    kinds = np.flatnonzero(weights)
    signs = np.array(weights)[kinds]

    def readout(sums: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, None]:
        return (divide(sums, counts) * signs).sum(-1), None

    means = [sums[:, [*of_cell] or [cell]].mean(1) for cell, of_cell in zip(cells, others, strict=True)]
    sums = np.concatenate([sums, *(mean[:, None] for mean in means)], 1)
    counts = counts[:, :1, kinds]  # every cell has the same
    outcome = jackknife(
        readout, [sums[..., kinds], counts], [counts[..., kind] for kind in range(len(kinds))]
    )
    effects = outcome[:1] - outcome
    effect, beyond = effects[cells], outcome[n_cells:] - outcome[cells]
    null = np.full((len(cells), max(map(len, others), default=0)), np.nan)
    for row, of_cell in enumerate(others):
        null[row, : len(of_cell)] = effects.value[of_cell]
    n_null, p_value = np.array([[*map(len, others)]]).T, effect.p_value()
    p_random = permutation_p_value(effect.value, null)
    layers = effects.value[parts["layers"]] if parts["layers"] else np.full(len(cells), np.nan)
    return {
        "outcome": outcome.value[0], "outcome_interval": outcome.interval(confidence)[0],
        "effect": effect.value, "interval": effect.interval(confidence),
        "p_value": p_value, "q_value": benjamini_hochberg(p_value), "layer_effect": layers,
        "null": null, "p_random": np.where(n_null[:, 0] >= _LEAST_OTHERS, p_random, np.nan),
        "beyond": np.where(n_null[:, 0], beyond.value, np.nan),
        "beyond_interval": np.where(n_null, beyond.interval(confidence), np.nan),
    }  # fmt: skip


# ---------------------------------------------------------------------------- a run over documents


@dataclass(frozen=True)
class Plan:
    """What is done to a model, and what is told of it.

    Attributes:
        interventions: from a batch and its words to all that is done, one after the other.
        n: how many these are.
        options: all that they depend on besides model, topics and documents.
        parts: those of `EffectReport.of_sums`.
        sums: what else is added up, by name.
        edges: whether edges of attention are cut, which takes eager attention.
    """

    interventions: Callable[[TokenBatch, Places], Iterator[AbstractContextManager[None]]]
    n: int
    options: Mapping[str, Any]
    parts: Mapping[str, Any]
    sums: Mapping[str, np.ndarray] = field(default_factory=dict)
    edges: bool = False


def measure_effects(
    view: Host,
    topics: Topics,
    documents: Any,
    outcome: Outcome,
    plan: Plan,
    *,
    reading: Reading,
    intervals: Confidence,
    run: Run,
) -> EffectReport:
    """What a plan does to an outcome."""
    by_source = SourceSums(source_limit(1 + plan.n), shape=(1 + plan.n,))
    sums: dict[str, Sum] = {"by_source": by_source, **plan.sums}

    def add(batch: TokenBatch) -> Counter[str]:
        words = Side(batch, topics, "token")
        found, counts = _of_batch(view, outcome, plan, batch, words)
        kept = np.isfinite(found).all((1, 2))
        rows = joined(found, counts, np.zeros(found.shape[:2]))
        by_source.add(batch.sources.numpy()[kept], rows[kept])
        left_out = {reason: int(n.sum()) for reason, n in words.left_out.items()}
        left_out |= {NO_WORD: int((~words.is_word.any(1)).sum()), _BROKEN: int((~kept).sum())}
        return Counter(left_out | {MEASURED: int(kept.sum())})

    options = {**plan.options, **outcome.facts}
    record = provenance(
        topics, model=view.facts.description, options={**options, **recorded(reading, intervals)}, seed=intervals.seed
    )  # fmt: skip
    parts = {
        **plan.parts,
        "readouts": outcome.readouts,
        "confidence": intervals.confidence,
        "provenance": record,
    }
    progress = add_documents(
        add, sums, documents, view, reading=reading, run=run,
        facts={**options, "topics": topics.fingerprint, "limit": by_source.limit},
        report={"kind": EffectReport.kind, "parts": parts},
        keep=lambda document: not outcome.needs_words or bool((topics.places(document.ids) >= 0).any()),
        fits=lambda batch: max(1, _AT_ONCE // (batch.ids.shape[1] * outcome.width)),
    )  # fmt: skip
    return EffectReport.of_sums(sums, progress, parts)


def _of_batch(
    view: Host, outcome: Outcome, plan: Plan, batch: TokenBatch, words: Side
) -> tuple[Float64[np.ndarray, "batch cell 3"], Float64[np.ndarray, "batch 1 3"]]:
    """Sums of an outcome by document and kind, of the model as it is and after each intervention; and counts."""
    places = torch.full(batch.ids.shape, -1).scatter_reduce(1, words.first, words.places, "amax")
    kinds, read = outcome.prepare(batch, places)

    def by_kind(values: Tensor) -> Float64[Tensor, "batch 3"]:
        sums = [torch.where(kinds == kind, values, 0).reshape(len(batch), -1).sum(1) for kind in (1, 2, 3)]
        return torch.stack(sums, 1).double()

    # Around everything, so that the model as it is runs in the same arithmetic.
    with editing(view, edges=plan.edges):
        found = [by_kind(read())]
        for intervention in plan.interventions(batch, places):
            with intervention:
                found.append(by_kind(read()))
    return torch.stack(found, 1).numpy(), by_kind(torch.ones(kinds.shape))[:, None].numpy()
