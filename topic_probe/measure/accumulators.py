"""What adds up: small objects with named sums, each of which knows one thing about the scores between words.

A measurement hands the scores of its batches to its accumulators (`BatchSums`), and every document's `Scores` to those
that users write (`Accumulator`). Their sums are float64 arrays that are added up in place, and `SourceSums` for what
intervals resample; the engine saves them, takes them up again and adds those of several processes together, so an
accumulator needs to know nothing of interruptions and shares. What is known of documents beside the sums is their
`Progress`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from topic_probe.contrast import SourceSums
from topic_probe.measure.scores import DISTANCE_BINS, BatchScores, Pairs, Scores, by_relation, wide
from topic_probe.text.documents import Counts

Sum = np.ndarray | SourceSums


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
        sums, counts = (np.zeros((int(kept.sum()), scores.n_cells, 3)) for _ in range(2))
        squares = np.zeros(sums.shape[:2])
        sums[:, scores.cells] = found["sums"][kept]
        counts[:, scores.cells] = found["counts"][kept, None]
        squares[:, scores.cells] = found["squares"][kept]
        self.by_source.add(scores.sources[kept], sums, counts, squares)


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
        rest = 1 - rows.sink_mass
        left = rest > 1e-6
        factor = torch.where(left, 1 / rest.clamp(min=1e-6), 0)
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


_MEASURED = "documents measured"


@dataclass
class Progress:
    """What is known of the documents beside the sums.

    Attributes:
        counts: what was read, cut and left out before measuring. Whoever reads the documents again counts it again.
        left_out: how often something was left out of what was measured, by reason.
        measured: documents whose scores are in the sums.
        stopped: why it stopped early, if it did.
        corpus: what the documents say of themselves when they were read to their end.
        seen: of a shard, what all documents were that it was given, those of other shards included (`Seen`).
        shard: of which of how many shares this is, where it is not of all sources.
        by_topics: of several topics that were measured at once, what was left out for each, and how many documents
            were not; ``left_out`` then has nothing, and ``measured`` counts the documents of the first.
    """

    counts: Counts = field(default_factory=Counts)
    left_out: Counter[str] = field(default_factory=Counter)
    measured: int = 0
    stopped: str | None = None
    corpus: Mapping[str, Any] | None = None
    seen: Mapping[str, int] | None = None
    shard: Sequence[int] | None = None
    by_topics: list[Counter[str]] = field(default_factory=list)

    def add(self, number: int, n_measured: int, left_out: Mapping[str, int]) -> None:
        """Counts documents of some of the topics."""
        self.measured += n_measured if number == 0 else 0
        if self.by_topics:
            self.by_topics[number].update({**left_out, _MEASURED: n_measured})
        else:
            self.left_out.update(left_out)

    def of_topics(self, number: int) -> "Progress":
        """What is known for some of the topics."""
        if not self.by_topics:
            return self
        left_out = Counter(self.by_topics[number])
        measured = left_out.pop(_MEASURED, 0)
        return replace(self, left_out=left_out, measured=measured, by_topics=[])

    def __add__(self, other: "Progress") -> "Progress":
        """That of two shares of the documents."""
        return Progress(
            self.counts + other.counts,
            self.left_out + other.left_out,
            self.measured + other.measured,
            "; ".join(filter(None, (self.stopped, other.stopped))) or None,
            None if self.corpus is None or other.corpus is None else _whole_corpus(self.corpus, other.corpus),
            by_topics=[one + another for one, another in zip(self.by_topics, other.by_topics, strict=True)],
        )

    @property
    def about_shard(self) -> dict[str, Any]:
        """What a provenance says of a shard; of all sources nothing."""
        return {} if self.shard is None else {"shard": list(self.shard)}

    def content(self) -> dict[str, Any]:
        """All of it, for a file."""
        return {
            **vars(self),
            "counts": self.counts.summary(),
            "left_out": dict(sorted(self.left_out.items())),
        }

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "Progress":
        """What had this content."""
        counted = {
            "counts": Counts.of(content["counts"]), "left_out": Counter(content["left_out"]),
            "by_topics": [Counter(part) for part in content.get("by_topics", ())],
        }  # fmt: skip
        return cls(**{**content, **counted})

    def record(self) -> dict[str, Any]:
        """What was read and left out, for the provenance of a report."""
        summary = self.counts.summary()
        left_out = {reason: n for reason, n in sorted(self.left_out.items()) if n}
        return summary | {
            "left_out": summary["left_out"] | left_out,
            "documents_measured": self.measured,
            "stopped": self.stopped,
            "corpus": self.corpus,
            **self.about_shard,
        }


def _whole_corpus(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """What two shares of a corpus say of it: the whole corpus, and everything that was read of it."""
    if not isinstance(one.get("corpus"), Mapping):
        return dict(one)
    read = one["read"], other["read"]
    return {
        **one,
        "corpus": one["corpus"] | {"shard_index": 0, "n_shards": 1},
        "read": None if None in read else (Counts.of(read[0]) + Counts.of(read[1])).summary(),
    }
