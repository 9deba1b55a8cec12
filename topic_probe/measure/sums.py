"""Sums of documents as arrays, and what is known of the documents beside them."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from topic_probe.sums import SourceSums
from topic_probe.text.corpus import NO_TEXT
from topic_probe.text.documents import Counts

Sum = np.ndarray | SourceSums

Sums = Mapping[str, Any]
"""What accumulators have added up, by name; everything in it is a `Sum`."""

Parts = Mapping[str, Any]
"""What a report is made of beside sums, by name, as it is known before documents are read."""

_MEASURED = "documents measured"


@dataclass
class Progress:
    """What is known of the documents beside the sums.

    Attributes:
        counts: what was read, cut and left out before measuring.
        left_out: how often something was left out of what was measured, by reason.
        measured: documents whose scores are in the sums.
        stopped: why it stopped early, if it did.
        corpus: what the documents say of themselves when they were read to their end.
        parts: of a folder, how many parts are there, and of how many, which may not be known.
        by_topics: of several topics that were measured at once, what was left out for each, and how many documents
            were not; ``left_out`` then has nothing, and ``measured`` counts the documents of the first.
    """

    counts: Counts = field(default_factory=Counts)
    left_out: Counter[str] = field(default_factory=Counter)
    measured: int = 0
    stopped: str | None = None
    corpus: Mapping[str, Any] | None = None
    parts: Sequence[int | None] | None = None
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
        """That of two parts of the documents."""
        corpus = self.corpus or other.corpus
        if self.corpus is not None and other.corpus is not None:
            read = Counts.of(self.corpus["read"]) + Counts.of(other.corpus["read"])
            corpus = {**self.corpus, "read": read.summary()}
        return Progress(
            self.counts + other.counts,
            self.left_out + other.left_out,
            self.measured + other.measured,
            corpus=corpus,
            by_topics=[one + more for one, more in zip(self.by_topics, other.by_topics, strict=True)],
        )

    @property
    def whole(self) -> bool:
        """Whether all documents are in the sums, as far as anybody knows."""
        return self.parts is None or self.parts[0] == self.parts[1]

    @property
    def about_parts(self) -> dict[str, Any]:
        """What a provenance says of the parts in a folder; without a folder nothing."""
        if self.parts is None:
            return {}
        there, of = self.parts
        read = {} if self.corpus is None else self.corpus["read"]["left_out"]
        return {
            "parts": {
                "there": there,
                "of": of,
                "texts_left_out": read.get(NO_TEXT, 0),
            }
        }

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
            "by_topics": [Counter(part) for part in content["by_topics"]],
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
            **self.about_parts,
        }


def described(sums: Mapping[str, Sum]) -> dict[str, Any]:
    """What empty sums are made of again, by `empty_sums`."""
    return {
        name: {"shape": values.shape, "limit": values.limit}
        if isinstance(values, SourceSums)
        else {"shape": values.shape, "dtype": str(values.dtype)}
        for name, values in sums.items()
    }


def empty_sums(described: Mapping[str, Mapping[str, Any]]) -> dict[str, Sum]:
    """Sums as they are in the beginning."""
    return {
        name: SourceSums(kind["limit"], shape=tuple(kind["shape"]))
        if "limit" in kind
        else np.zeros(kind["shape"], kind["dtype"])
        for name, kind in described.items()
    }


def clear_sums(sums: Mapping[str, Sum]) -> None:
    """Makes sums what they were in the beginning."""
    for values in sums.values():
        if isinstance(values, SourceSums):
            values.clear()
        else:
            values[...] = 0


def add_sums(total: Mapping[str, Sum], part: Mapping[str, Sum]) -> None:
    """Adds sums to those of the same name."""
    for name, values in total.items():
        more = part[name]
        if isinstance(values, SourceSums) and isinstance(more, SourceSums):
            values.merge(more)
        else:
            values += more


def to_arrays(sums: Mapping[str, Sum]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Sums as arrays, and the names of those in which sources share rows."""
    arrays = {name: values for name, values in sums.items() if isinstance(values, np.ndarray)}
    sources = {name: values for name, values in sums.items() if isinstance(values, SourceSums)}
    for name, values in sources.items():
        parts = zip(("keys", "rows"), values.rows(), strict=True)
        arrays |= {f"{name}.{part}": array for part, array in parts}
    return arrays, [name for name, values in sources.items() if values.folded]


def from_arrays(sums: Mapping[str, Sum], arrays: Mapping[str, np.ndarray], folded: Collection[str]) -> None:
    """Puts what `to_arrays` has given in place of sums."""
    for name, values in sums.items():
        if isinstance(values, SourceSums):
            values.restore(arrays[f"{name}.keys"], arrays[f"{name}.rows"], folded=name in folded)
        else:
            np.copyto(values, arrays[name])
