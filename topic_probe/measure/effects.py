"""What happens to an outcome when something is done to a model: effects with intervals, and with what chance does.

An effect is the outcome of the model as it is less the outcome after something was done to it, on the same documents:
positive where the model had more of the outcome before. It is judged by two things. Its interval says how it would vary
with other sources. Its p-value says how often as much comes of doing the like elsewhere: to other heads of the same
layers, or to other edges at the same distance.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float64

from topic_probe.contrast import SourceSums
from topic_probe.lens import capture
from topic_probe.lens.edit import editing
from topic_probe.measure.accumulators import BatchSums, Relations
from topic_probe.measure.engine import (
    NO_WORD,
    Engine,
    Part,
    Prepare,
    about_documents,
    source_limit,
    why_nothing,
)
from topic_probe.measure.options import Intervals, Reading, Run, recorded
from topic_probe.measure.outcomes import Asked, Outcome, Readouts, means_of
from topic_probe.measure.patterns import units_of
from topic_probe.measure.scores import BatchScores, Pairs, Units
from topic_probe.measure.sums import Parts, Progress, Sum, Sums
from topic_probe.report import Report, provenance
from topic_probe.text.batches import TokenBatch
from topic_probe.topics import Topics
from topic_probe.uncertainty import (
    MIN_UNITS,
    Alternative,
    benjamini_hochberg,
    permutation_p_value,
    source_interval,
    with_interval,
)

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class EffectReport(Report, kind="effects"):
    """What interventions do to an outcome.

    Every array has a row for each readout of the outcome (``readouts``) and a column for each intervention (``index``).

    Attributes:
        readouts: what of the outcome is told: "same − different" of states; the loss at "words of topics" and
            "elsewhere"; the "outcome" of a function.
        index: what was done, by name: "set", or "stack", "layer" and "head"; and "n", to how many heads or edges.
        outcome: of the model as it is.
        outcome_interval: its interval.
        effect: the outcome of the model as it is − that after the intervention.
        interval: of the effect, over sources.
        p_value: how often interventions of the same kind elsewhere do as much.
        q_value: the same, over all interventions (Benjamini-Hochberg).
        null: the effects of these others, padded with NaN.
        beyond: the effect − the mean effect of the others.
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
    null: Float64[np.ndarray, "readout cell draw"]
    beyond: Float64[np.ndarray, "readout cell"]
    beyond_interval: Float64[np.ndarray, "readout cell 2"]
    provenance: Mapping[str, Any]

    @classmethod
    def of_sums(cls, sums: Sums, progress: Progress, parts: Parts) -> "EffectReport":
        """The report of what `add_up` gives.

        Args:
            sums: by name; where edges were cut, "edges": how many, and how many to compare them with.
            progress: what is known of the documents beside them.
            parts: those of `parts_of`; "readouts" of the outcome; "cells", the interventions that are told of, and
                "others", the cells that each is compared with; "index" of these; and "alternative", what counts
                as extreme.

        Raises:
            ValueError: where no document is left to measure.
        """
        record, index, others = record_of(sums, progress, parts), parts["index"], parts["others"]
        if "edges" in sums:
            n_cut, n_found = sums["edges"].tolist()
            matched = n_found / max(n_cut * len(others[0]), 1) if others[0] else None
            record |= {"edges": {"cut": int(n_cut), "matched": matched}}
            index = {**index, "n": (int(n_cut),)}
        found = effects(
            Numbers.of(sums["by_source"]), parts["readouts"], parts["cells"], others,
            confidence=Intervals(**parts["intervals"]).over_sources, alternative=parts["alternative"],
        )  # fmt: skip
        return cls(index=index, provenance=record, **found)

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every readout and intervention."""
        import pandas as pd

        rows = []
        for number, readout in enumerate(self.readouts):
            known = ~np.isnan(self.null[number])
            n_null = known.sum(-1)
            mean = np.where(known, self.null[number], 0).sum(-1) / np.where(n_null, n_null, np.nan)
            table = pd.DataFrame(
                {
                    **({"readout": readout} if len(self.readouts) > 1 else {}),
                    **self.index,
                    "effect": self.effect[number],
                    "low": self.interval[number, :, 0],
                    "high": self.interval[number, :, 1],
                    "p_value": self.p_value[number],
                    "q_value": self.q_value[number],
                    "null_mean": mean,
                    "n_null": n_null,
                    "beyond": self.beyond[number],
                    "beyond_low": self.beyond_interval[number, :, 0],
                    "beyond_high": self.beyond_interval[number, :, 1],
                }
            )
            rows.append(table.dropna(axis="columns", how="all"))
        found: pd.DataFrame = pd.concat(rows, ignore_index=True)
        return found

    def _notes(self) -> list[str]:
        notes = []
        for number, readout in enumerate(self.readouts):
            if np.isnan(self.outcome[number]):
                notes.append(
                    f"{readout}: undefined, because no document has the words, or pairs, it is a mean over"
                )
                continue
            outcome = with_interval(self.outcome[number], self.outcome_interval[number])
            notes.append(f"outcome of the model as it is, {readout}: {outcome}")
        if note := self.provenance.get("no_interval"):
            notes.append(note)
        return [*notes, *super()._notes()]


class EffectReader:
    """Scores of every document: in cell 0 the outcome of the model as it is, in the others what changes it.

    Attributes:
        view: the model.
        topics: which words are looked at.
        outcome: what is looked at after each forward pass.
        interventions: from what is asked of a batch to all that is done to the model, one after the other.
        n: how many these are.
    """

    def __init__(
        self,
        view: capture.View,
        topics: Topics,
        outcome: Outcome,
        interventions: Callable[[Asked], Iterator[AbstractContextManager[None]]],
        n: int,
    ) -> None:
        self.view, self.topics, self.outcome, self.interventions = view, topics, outcome, interventions
        self.n_cells = 1 + n

    def units(self, batch: TokenBatch) -> list[Units]:
        """The words of every document."""
        return units_of(batch, self.topics)

    def n_kept(self, units: list[Units]) -> int:
        """How many numbers are kept of a batch until its documents are scored."""
        n_words = max(len(words) for words in units)
        longest = max((int(words.positions.max()) + 1 for words in units if len(words)), default=1)
        at_once = self.outcome.n_kept(len(units), longest, n_words)
        return max(at_once, self.n_cells * len(units) * n_words**2)

    def read(self, batch: TokenBatch, units: list[Units], prepare: Prepare) -> Iterator[Part]:
        """Runs a batch through the model, as it is and after everything that is done to it."""
        asked = self.outcome.ask(batch, units)
        # Around everything, so that the model as it is runs in the same arithmetic.
        with editing(self.view):
            intact = self.outcome.read(asked)
            tables = [np.empty((self.n_cells, *values.shape)) for values in intact]
            for table, values in zip(tables, intact, strict=True):
                table[0] = values.detach().numpy()
            for number, intervention in enumerate(self.interventions(asked), 1):
                with intervention:
                    changed = self.outcome.read(asked)
                for table, before, after in zip(tables, intact, changed, strict=True):
                    table[number] = (before - after).detach().numpy()
        return _scored(asked, tables, prepare)


def _scored(asked: Asked, tables: list[np.ndarray], prepare: Prepare) -> Iterator[Part]:
    """The numbers of every document of a batch, cell by cell, as accumulators take them."""
    for row, (source, table) in enumerate(zip(asked.batch.sources, tables, strict=True)):
        words = asked.units[row]
        finite = np.array([bool(np.isfinite(table).all())])
        left_out = {**words.left_out, NO_WORD: int(not len(words))}
        kinds = asked.kinds[row].to(torch.int8)[None]
        pairs = Pairs(
            [asked.query[row]], [asked.key[row]], kinds, torch.zeros_like(kinds, dtype=torch.uint8), 1
        )
        cells, values = np.arange(len(table)), torch.from_numpy(np.nan_to_num(table, posinf=0, neginf=0))
        seen = torch.from_numpy(finite)[:, None, None].expand(kinds.shape)
        pairs = prepare(pairs, values.device)
        scores = BatchScores(source[None].numpy(), len(table), cells, values[None], seen, pairs)
        yield Part([scores], {}, partial(_judged, finite, left_out))


def _judged(
    kept: Bool[np.ndarray, " document"], left_out: Mapping[str, int], seen: Mapping[str, np.ndarray]
) -> tuple[Bool[np.ndarray, " document"], Mapping[str, int]]:
    return kept, left_out


class Counted(BatchSums):
    """Numbers of what was done, added to where it is done, and kept and shared out as all sums are."""

    def __init__(self, name: str, n: int) -> None:
        self.sums = {name: np.zeros(n)}


@dataclass(frozen=True)
class Numbers:
    """Effects by readout and cell, from the sums of sources, whose cell 0 is the outcome of the model as it is."""

    sums: Float64[np.ndarray, "source cell 3"]
    counts: Float64[np.ndarray, "source cell 3"]

    @classmethod
    def of(cls, by_source: SourceSums) -> "Numbers":
        """Those of an accumulator."""
        _, sums, counts, _ = by_source.rows()
        return cls(sums, counts)

    def value(self, weights: Sequence[int]) -> Float64[np.ndarray, " cell"]:
        """A readout."""
        return means_of(self.sums.sum(0), self.counts.sum(0), weights)

    def interval(self, weights: Sequence[int], confidence: float) -> Float64[np.ndarray, "cell 2"]:
        """Its interval, from leaving out every source once."""
        kinds = [kind for kind, weight in enumerate(weights) if weight]
        sums = [self.sums[..., kind] for kind in kinds]
        counts = [self.counts[..., kind] for kind in kinds]

        def terms(*pooled: np.ndarray) -> tuple[np.ndarray, None]:
            some, n = (np.stack(part, -1) for part in (pooled[: len(kinds)], pooled[len(kinds) :]))
            return means_of(some, n, [weights[kind] for kind in kinds]), None

        return source_interval(terms, [*sums, *counts], counts, confidence=confidence)

    def beyond(self, cell: int, others: Sequence[int]) -> "Numbers":
        """A cell less the mean of others."""
        rest = self.sums[:, [cell]] - self.sums[:, list(others)].mean(1, keepdims=True)
        return Numbers(rest, self.counts[:, [cell]])


def effects(
    numbers: Numbers,
    readouts: Readouts,
    cells: Sequence[int],
    others: Sequence[Sequence[int]],
    *,
    confidence: float | None,
    alternative: Alternative,
) -> dict[str, Any]:
    """What a report says of effects.

    Args:
        numbers: sums of all cells: the outcome, what was done, what is compared with.
        readouts: what is told of the outcome.
        cells: those that are told of.
        others: for each of these, the cells that it is compared with.
        confidence: of intervals; None leaves them out.
        alternative: what counts as extreme.
    """
    chosen, widest = np.array(cells, dtype=np.int64), max(map(len, others), default=0)
    shape = (len(readouts), len(chosen))
    found: dict[str, Any] = {
        "readouts": tuple(readouts),
        "outcome": np.zeros(len(readouts)), "outcome_interval": np.full((len(readouts), 2), np.nan),
        "effect": np.zeros(shape), "interval": np.full((*shape, 2), np.nan),
        "p_value": np.full(shape, np.nan), "q_value": np.full(shape, np.nan), "null": np.full((*shape, widest), np.nan),
        "beyond": np.full(shape, np.nan), "beyond_interval": np.full((*shape, 2), np.nan),
    }  # fmt: skip
    for row, weights in enumerate(readouts.values()):
        values = numbers.value(weights)
        found["outcome"][row], found["effect"][row] = values[0], values[chosen]
        null, beyond, of_beyond = found["null"][row], found["beyond"][row], found["beyond_interval"][row]
        for number, (cell, compared) in enumerate(zip(cells, others, strict=True)):
            if len(compared):
                null[number, : len(compared)] = values[list(compared)]
                rest = numbers.beyond(cell, compared)
                beyond[number] = rest.value(weights)[0]
                if confidence is not None:
                    of_beyond[number] = rest.interval(weights, confidence)[0]
        if widest:
            found["p_value"][row] = permutation_p_value(values[chosen], null, alternative=alternative)
            found["q_value"][row] = benjamini_hochberg(found["p_value"][row])
        if confidence is not None:
            ends = numbers.interval(weights, confidence)
            found["outcome_interval"][row], found["interval"][row] = ends[0], ends[chosen]
    return found


# ---------------------------------------------------------------------------- a run, and what is told of it


def add_up(
    reader: EffectReader,
    documents: Any,
    *,
    facts: Mapping[str, Any],
    reading: Reading,
    run: Run,
    parts: Parts,
    counted: Sequence[BatchSums] = (),
    only_labelled: bool = False,
) -> EffectReport:
    """The report of what a reader says of documents.

    Args:
        reader: scores batches.
        documents: as in `measure_attention`.
        facts: as in `Engine.run`.
        reading: how documents are read.
        run: where sums are kept, and what is shown.
        parts: those of `parts_of`.
        counted: what else is added up.
        only_labelled: as in `Engine`.
    """
    by_relation = Relations(source_limit(reader.n_cells), reader.n_cells)
    facts = {**facts, "limit": by_relation.by_source.limit}
    engine = Engine(reader, [by_relation, *counted], only_labelled=only_labelled)
    # All parts tell it from other measurements, but for how the model is read and how sure numbers are said to be.
    told = {name: value for name, value in parts.items() if name not in ("provenance", "intervals", "read")}
    progress = engine.run(
        documents, reading=reading, run=run, facts={**facts, **told},
        report={"kind": EffectReport.kind, "parts": parts},
    )  # fmt: skip
    return EffectReport.of_sums(engine.sums, progress, parts)


def parts_of(
    view: capture.View,
    topics: Topics,
    *,
    options: Mapping[str, Any],
    reading: Reading,
    intervals: Intervals,
    **more: Any,
) -> dict[str, Any]:
    """What a report is made of beside the sums of `add_up`, as it is known before documents are read."""
    record = provenance(
        topics, model=view.facts.description, options={**options, **recorded(reading, intervals)}, seed=intervals.seed
    )  # fmt: skip
    read = {"max_length": reading.max_length}
    return {**more, "provenance": record, "intervals": vars(intervals), "read": read}


def record_of(sums: Mapping[str, Sum], progress: Progress, parts: Parts) -> dict[str, Any]:
    """The provenance of what `add_up` gives.

    Raises:
        ValueError: where no document is left to measure.
    """
    documents = about_documents(sums, progress, parts)
    if progress.whole and not documents["sources"]:
        raise ValueError(why_nothing(progress))
    confidence = Intervals(**parts["intervals"]).over_sources
    return {
        **parts["provenance"],
        "left_out": dict(sorted((progress.counts.left_out + progress.left_out).items())),
        "documents": documents,
        "no_interval": _why_no_interval(documents["sources"], confidence),
    }


def _why_no_interval(n_sources: int, confidence: float | None) -> str | None:
    """Why there are no intervals; None where there are."""
    if confidence is None or n_sources >= MIN_UNITS:
        return None
    return f"no interval: {n_sources} sources, at least {MIN_UNITS} are needed"
