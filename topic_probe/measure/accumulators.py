"""What adds up: small objects with named sums, each of which knows one thing about the scores between words.

A measurement hands the scores of its batches to its accumulators (`BatchSums`), and every document's `Scores` to those
that users write (`Accumulator`). Their sums are float64 arrays that are added up in place, and `SourceSums` for what
intervals resample; a folder keeps those of parts and adds them up, so an accumulator needs to know nothing of
interruptions and processes.
"""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from topic_probe.measure.scores import DISTANCE_BINS, BatchScores, Pairs, Scores, by_relation, wide
from topic_probe.measure.sums import Sum
from topic_probe.sums import N_COLUMNS, SourceSums, joined


@runtime_checkable
class Accumulator(Protocol):
    """What a user adds up: any object with sums and a way to add to them."""

    @property
    def sums(self) -> Mapping[str, Sum]:
        """The sums by name. The objects stay the same ones; all that is ever done with them is adding."""

    def add(self, scores: Scores) -> None:
        """Adds what some cells say of one document; a document without words of topics comes too, without pairs."""


def check_accumulator(accumulator: Any) -> None:
    """TypeError for what cannot be added to."""
    if not callable(getattr(accumulator, "add", None)) or not hasattr(accumulator, "sums"):
        raise TypeError(f"accumulators must be objects with `sums` and `add`, got {accumulator!r:.100}")


class BatchSums:
    """Sums that are added to by batches, in three steps: before a model runs, where it runs, and on the host again."""

    sums: Any  # by name, as those of `Accumulator`

    def prepare(self, pairs: Pairs, device: torch.device) -> Mapping[str, Any]:
        """What is to be looked up of pairs, made on the host before the model runs: tensors on its device.

        Arrays stay on the host, for `add`.
        """
        return {}

    def score(self, scores: BatchScores, index: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """What some cells say of documents, where the model runs: nothing there may look at a number."""
        return {}

    def add(
        self, scores: BatchScores, found: Mapping[str, np.ndarray], kept: Bool[np.ndarray, " document"]
    ) -> None:
        """Adds what was found, and has come to the host; documents that are not kept could not be measured.

        What is found of a document that could not is without pairs.
        """


class OfDocuments(BatchSums):
    """Sums of an accumulator that takes the scores of one document at a time."""

    def __init__(self, accumulator: Accumulator) -> None:
        self.accumulator, self.sums = accumulator, accumulator.sums

    def add(
        self, scores: BatchScores, found: Mapping[str, np.ndarray], kept: Bool[np.ndarray, " document"]
    ) -> None:
        """Adds every document."""
        for number in np.flatnonzero(kept).tolist():
            self.accumulator.add(scores.document(number))


class Relations(BatchSums):
    """Sums by relation of every source: means, ratios, effect sizes and their intervals."""

    def __init__(self, limit: int = 4096, n_cells: int | None = None) -> None:
        self.by_source = SourceSums(limit, shape=() if n_cells is None else (n_cells,))
        self.sums = {"by_source": self.by_source}

    def score(self, scores: BatchScores, index: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """Sums of every document."""
        return {
            "sums": scores.binned.sum(3), "counts": scores.counts.sum(2), "squares": scores.squares.sum(2),
        }  # fmt: skip

    def add(
        self, scores: BatchScores, found: Mapping[str, np.ndarray], kept: Bool[np.ndarray, " document"]
    ) -> None:
        """Adds every document to its source."""
        rows = np.zeros((int(kept.sum()), scores.n_cells, N_COLUMNS))
        rows[:, scores.cells] = joined(found["sums"], found["counts"], found["squares"])[kept]
        self.by_source.add(scores.sources[kept], rows)


class Distances(BatchSums):
    """Sums by relation and distance: whether words of a topic merely stand closer."""

    def __init__(self, n_cells: int) -> None:
        shape = (n_cells, len(DISTANCE_BINS) + 1, 3)
        self.sums: dict[str, np.ndarray] = {
            "binned": np.zeros(shape), "n_binned": np.zeros(shape), "squares_binned": np.zeros(shape[:2]),
        }  # fmt: skip

    def score(self, scores: BatchScores, index: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """Sums of all documents."""
        return {
            "binned": wide(scores.binned).sum(0).transpose(1, 2),
            "n_binned": scores.counts.sum(0).T,
            "squares_binned": scores.squares.sum(0),
        }

    def add(
        self, scores: BatchScores, found: Mapping[str, np.ndarray], kept: Bool[np.ndarray, " document"]
    ) -> None:
        """Adds the bins that there are pairs in."""
        for name, values in found.items():
            self.sums[name][scores.cells, : scores.pairs.n_bins] += values


class Sinks(BatchSums):
    """What special tokens take of the attention, and the sums by relation without them."""

    def __init__(self, n_cells: int) -> None:
        relations, mass = (n_cells, 3), (n_cells,)
        self.sums: dict[str, np.ndarray] = {
            "without_sinks": np.zeros(relations), "n_without_sinks": np.zeros(relations),
            "sink_mass": np.zeros(mass), "n_rows": np.zeros(mass),
        }  # fmt: skip

    def score(self, scores: BatchScores, index: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """Every row renormalised over what is no sink; rows with nothing left drop out."""
        rows, pieces = scores.rows, scores.pairs.pieces
        assert rows is not None, "only attention has sinks"
        if not rows.has_sinks:
            n = scores.counts.sum((0, 2)).expand(len(scores.cells), -1)
            return {"without_sinks": wide(scores.binned.sum(3)).sum(0), "n_without_sinks": n}
        left = rows.rest > 1e-6
        factor = torch.where(left, 1 / rows.rest.clamp(min=1e-6), 0)
        without, _ = rows.relative(pieces, rows.n_visible - rows.n_visible_sinks, factor)
        if pieces is not None:  # a word is where its first row is
            left = left.gather(2, pieces.first[:, None, :].expand(-1, left.shape[1], -1))
            without = without * left[..., None]
        kept = left.to(without.dtype)
        related = scores.relations[..., None] == torch.arange(1, 4, device=without.device)
        n = torch.bmm(kept, related.sum(2).to(kept.dtype))
        sums = by_relation(without, scores.relations)
        return {
            "without_sinks": wide(sums).sum(0), "n_without_sinks": wide(n).sum(0),
            "sink_mass": wide(rows.sink_mass.sum(2)).sum(0),
        }  # fmt: skip

    def add(
        self, scores: BatchScores, found: Mapping[str, np.ndarray], kept: Bool[np.ndarray, " document"]
    ) -> None:
        """Adds all documents, and how many rows they have."""
        for name, values in found.items():
            self.sums[name][scores.cells] += values
        query = (words for words, measured in zip(scores.pairs.query, kept, strict=True) if measured)
        self.sums["n_rows"][scores.cells] += sum(len(words.positions) for words in query)
