"""Sums of documents on their way to disk, and what is known of the documents beside them.

A shard saves its sums in a folder of its own, with the facts that they depend on and with what makes a report of them;
`topic_probe.measure.merging` adds them up.
"""

import json
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from topic_probe import storage
from topic_probe.contrast import SourceSums
from topic_probe.processes import Processes
from topic_probe.report import Report, encode, report_class
from topic_probe.text.corpus import DocumentStream
from topic_probe.text.documents import Counts
from topic_probe.text.shares import BLOCKS, Shards
from topic_probe.topics import Topics

Sum = np.ndarray | SourceSums

Sums = Mapping[str, Any]
"""What accumulators have added up, by name; everything in it is a `Sum`."""

Parts = Mapping[str, Any]
"""What a report is made of beside sums, by name, as it is known before documents are read."""

SUMS, OF_BLOCK, PARTS = "sums of a shard", "sums of a block", "parts of a report"

# What tells people more where facts differ, and makes no measurement another one: the same weights may stand under
# two revisions.
_ONLY_TOLD = frozenset({"revision"})

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


@dataclass(frozen=True)
class Share:
    """One of the shards of a measurement: what it has of the sources, and where it leaves its sums.

    Attributes:
        index: its number, from 0.
        n: how many there are.
        folder: where all of them may leave their sums.
        kind: of the report.
        parts: what the report is made of, beside sums and what is known of the documents.
        options: what its numbers depend on, beside the sums.
    """

    index: int
    n: int
    folder: Path
    kind: str
    parts: Parts
    options: Mapping[str, Any]

    @classmethod
    def of(cls, shards: Shards, kind: str, parts: Parts, options: Mapping[str, Any]) -> "Share | None":
        """The shard that was asked for; None where none was."""
        if shards.shard is None or shards.sums is None:
            return None
        index, n = shards.shard
        return cls(index, n, Path(shards.sums).expanduser().resolve(), kind, parts, options)

    @property
    def place(self) -> Path:
        """The folder of this shard."""
        return self.folder / f"shard-{self.index}-of-{self.n}"

    @property
    def blocks(self) -> range:
        """The blocks of sources that are in it."""
        return range(self.index, BLOCKS, self.n)

    def check_place(self, facts: Mapping[str, Any], documents: Any, processes: Processes) -> None:
        """Finds out before anything is measured whether sums can be put into their place.

        Raises:
            ValueError: for one of several processes, a part of a corpus, and a place with the sums of another
                measurement.
            OSError: where nothing can be written, or something else is.
        """
        if processes.size > 1:
            raise ValueError(
                "shard= and distributed=True both share out the documents: leave one of them out"
            )
        if isinstance(documents, DocumentStream) and documents.corpus.n_shards > 1:
            raise ValueError(
                f"a shard takes its sources out of all documents, and was given share {documents.corpus.shard_index} "
                f"of {documents.corpus.n_shards} of the corpus: give every shard the whole corpus"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        if not os.access(self.folder, os.W_OK):
            raise PermissionError(f"{self.folder} cannot be written to: choose another folder for sums")
        there = storage.kind_of(self.place) == SUMS
        storage.check_free(self.place, overwrite=there)
        if there and (names := differing_facts(storage.load(self.place, SUMS).content["facts"], facts)):
            raise ValueError(
                f"{self.place} holds the sums of another measurement, which differs in {', '.join(names)}: choose "
                "another folder for sums, or delete this one"
            )

    def save(
        self,
        by_block: Mapping[int, Mapping[str, Sum]],
        described: Mapping[str, Any],
        progress: Progress,
        facts: Mapping[str, Any],
    ) -> None:
        """Saves the sums of every block, what makes a report of them, and last of all the manifest.

        Args:
            by_block: the sums.
            described: what empty sums are made of again (`empty_sums`).
            progress: what is known of the documents.
            facts: what sums depend on.
        """
        with storage.draft(self.place, overwrite=True) as draft:
            for block, sums in by_block.items():
                if any(map(_holds, sums.values())):
                    arrays, folded = to_arrays(sums)
                    storage.save(draft / name_of(block), OF_BLOCK, {"folded": folded}, arrays)
            plain, saved, arrays = dict(self.parts), [], {}
            for name, value in self.parts.items():
                if isinstance(value, Topics | Report):
                    value.save(draft / name)
                    saved.append(name)
                    del plain[name]
            storage.save(draft / "parts", PARTS, {"parts": encode(plain, arrays, "parts")}, arrays)
            content = {
                "facts": facts,
                "report": self.kind,
                "shard": [self.index, self.n],
                "sums": described,
                "progress": progress.content(),
                "saved": saved,
            }
            storage.seal(draft, SUMS, content)


def load_part(place: Path) -> Any:
    """A part that was saved by itself: topics or a report."""
    kind = storage.kind_of(place)
    return (Topics if kind == "topics" else report_class(kind, f"{place} holds")).load(place)


def name_of(block: int) -> str:
    """The folder of a block in that of its shard."""
    return f"block-{block:02}"


def _holds(values: Sum) -> bool:
    """Whether anything was added to sums that were empty."""
    return bool(len(values) if isinstance(values, SourceSums) else values.any())


def described(sums: Mapping[str, Sum]) -> dict[str, tuple[tuple[int, ...], int | None, str | None]]:
    """What empty sums are made of again, by `empty_sums`."""
    return {
        name: (values.shape, values.limit, None)
        if isinstance(values, SourceSums)
        else (values.shape, None, str(values.dtype))
        for name, values in sums.items()
    }


def empty_sums(described: Mapping[str, Sequence[Any]]) -> dict[str, Sum]:
    """Sums as they are in the beginning."""
    return {
        name: np.zeros(shape, *kind) if limit is None else SourceSums(limit, shape=tuple(shape))
        for name, (shape, limit, *kind) in described.items()
    }


def add_sums(total: Mapping[str, Sum], part: Mapping[str, Sum]) -> None:
    """Adds sums to those of the same name."""
    for name, values in total.items():
        more = part[name]
        if isinstance(values, SourceSums) and isinstance(more, SourceSums):
            values.merge(more)
        else:
            values += more


def as_from_disk(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts as they come back when they were saved."""
    loaded: dict[str, Any] = json.loads(json.dumps(facts, default=str))
    return loaded


def differing_facts(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The names of facts that are not the same."""
    names = sorted({*one, *other} - _ONLY_TOLD)
    return [name for name in names if one.get(name) != other.get(name)]


def to_arrays(sums: Mapping[str, Sum]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Sums as arrays, and the names of those in which sources share rows."""
    arrays = {name: values for name, values in sums.items() if isinstance(values, np.ndarray)}
    sources = {name: values for name, values in sums.items() if isinstance(values, SourceSums)}
    for name, values in sources.items():
        parts = zip(("keys", "sums", "counts", "squares"), values.rows(), strict=True)
        arrays |= {f"{name}.{part}": array for part, array in parts}
    return arrays, [name for name, values in sources.items() if values.folded]


def from_arrays(sums: Mapping[str, Sum], arrays: Mapping[str, np.ndarray], folded: Collection[str]) -> None:
    """Puts what `to_arrays` has given in place of sums."""
    for name, values in sums.items():
        if isinstance(values, SourceSums):
            parts = (arrays[f"{name}.{part}"] for part in ("keys", "sums", "counts", "squares"))
            values.restore(*parts, folded=name in folded)
        else:
            np.copyto(values, arrays[name])
