"""Sums of pairs by source, so that intervals and differences can leave sources out, in memory that stays flat."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64, UInt64

from topic_probe.contrast import Contrast, PairSums, contrast_of_sources

# Columns of a row, for every cell: sums and numbers of pairs by relation, and squares over pairs of different words.
N_COLUMNS = 7

# Sums, numbers of pairs and squares, by source.
Rows = tuple[np.ndarray, np.ndarray, np.ndarray]


def columns(table: Float64[np.ndarray, "*source_and_cell 7"]) -> Rows:
    """Sums [..., relation], numbers of pairs [..., relation] and squares of a table of rows."""
    return table[..., :3], table[..., 3:6], table[..., 6]


def joined(
    sums: Float64[np.ndarray, "source *shape 3"],
    counts: Float64[np.ndarray, "source *_ 3"],
    squares: Float64[np.ndarray, "source *shape"],
) -> Float64[np.ndarray, "source *shape 7"]:
    """A table of rows of them; numbers of pairs that cells share may stand once."""
    missing = (1,) * (sums.ndim - counts.ndim)
    counts = np.broadcast_to(counts.reshape(len(counts), *missing, *counts.shape[1:]), sums.shape)
    return np.concatenate([sums, counts, squares[..., None]], -1)


class SourceSums:
    """A row of sums for every source (all that was cut from one text or article).

    A source is known by a 64-bit hash; what has the same hash adds up. Once there are more than ``limit`` different
    ones, they are folded: a row is that of all sources whose hash is the same modulo limit. What comes out does not
    depend on the order of documents, on batches, or on the parts that they were measured in.

    Args:
        limit: how many rows there are at most.
        shape: of a row, without its columns, where that is to be known before there is one.
    """

    def __init__(self, limit: int = 4096, *, shape: tuple[int, ...] = ()) -> None:
        if limit < 1:
            raise ValueError(f"limit is the number of rows to keep and must be at least 1, got {limit}")
        self.limit = limit
        self._table = np.zeros((0, *shape, N_COLUMNS))
        self.clear()

    def clear(self) -> None:
        """Hold nothing, as in the beginning."""
        self.folded = False
        self._row: dict[int, int] = {}
        self._table = np.zeros((0, *self._table.shape[1:]))

    def __len__(self) -> int:
        """Number of rows: sources, or folds of them."""
        return len(self._row)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a row, without its columns."""
        return self._table.shape[1:-1]

    @property
    def record(self) -> dict[str, Any]:
        """How many sources there are, for the provenance of a report; rows where they have been folded."""
        return {"sources": len(self), "sources_in_blocks": self.folded}

    def add(
        self,
        keys: Int64[np.ndarray, "source"] | UInt64[np.ndarray, "source"],
        rows: Float64[np.ndarray, "source *shape 7"],
    ) -> None:
        """Add up the rows of documents, each under the key of its source."""
        if not len(keys):
            return
        if not self._row:
            self._table = np.zeros((0, *rows.shape[1:]))
        if rows.shape[1:] != self._table.shape[1:]:
            raise ValueError(f"rows must keep their shape {self._table.shape[1:]}, got {rows.shape[1:]}")
        unsigned = keys.view(np.uint64).tolist()
        if not self.folded and len(self._row.keys() | unsigned) > self.limit:
            kept = self.rows()
            self.folded, self._row, self._table = True, {}, np.zeros((0, *rows.shape[1:]))
            self.add(*kept)
        at = [
            self._row.setdefault(key % self.limit if self.folded else key, len(self._row)) for key in unsigned
        ]
        if (
            missing := len(self._row) - len(self._table)
        ) > 0:  # doubled, so that adding one by one stays linear
            more = max(missing, min(len(self._table), self.limit - len(self._table)))
            self._table = np.concatenate([self._table, np.zeros((more, *rows.shape[1:]))])
        np.add.at(self._table, at, rows)

    def merge(self, other: "SourceSums") -> None:
        """Add what another process has seen; the order of merging does not matter."""
        if self.limit != other.limit:
            raise ValueError(f"both sides need the same limit, got {self.limit} and {other.limit}")
        if other.folded and not self.folded:
            kept = self.rows()
            self.clear()
            self.folded = True
            self.add(*kept)
        self.add(*other.rows())

    def __add__(self, other: "SourceSums") -> "SourceSums":
        total = SourceSums(self.limit, shape=self.shape)
        total.merge(self)
        total.merge(other)
        return total

    def rows(self) -> tuple[UInt64[np.ndarray, "source"], Float64[np.ndarray, "source *shape 7"]]:
        """Keys and rows, sorted by key so that nothing depends on the order of documents."""
        keys = sorted(self._row)
        return np.array(keys, np.uint64), self._table[[self._row[key] for key in keys]]

    def restore(
        self,
        keys: UInt64[np.ndarray, "source"],
        rows: Float64[np.ndarray, "source *shape 7"],
        *,
        folded: bool,
    ) -> None:
        """Hold what had these ``rows``, and nothing else; ``folded`` says whether sources share rows."""
        self.clear()
        self.folded = folded
        self.add(keys, rows)

    def total(self) -> PairSums:
        """The sums, counts and squares over all sources."""
        return PairSums(*columns(self.rows()[1].sum(0)))

    def contrast(self, **options: Any) -> Contrast:
        """The contrast over all sources, as `contrast_of_sources` has it."""
        return contrast_of_sources(*columns(self.rows()[1]), **options)


def aligned(every: Sequence[SourceSums]) -> list[Rows]:
    """Sums, numbers of pairs and squares of several measurements, the same source in the same row.

    A source that one has not measured has no pairs there. Where some are folded, all are.

    Raises:
        ValueError: for folds of different numbers.
    """
    if any(part.folded for part in every):
        if len(limits := {part.limit for part in every}) > 1:
            raise ValueError(
                f"sources that share rows align where all have as many rows, got {sorted(limits)}: measure "
                "all models with the same limit"
            )
        folds = [SourceSums(part.limit, shape=part.shape) for part in every]
        for fold, part in zip(folds, every, strict=True):
            fold.restore(*part.rows(), folded=True)
        every = folds
    parts = [part.rows() for part in every]
    keys = np.unique(np.concatenate([own for own, _ in parts]))
    found = [np.zeros((len(keys), *rows.shape[1:])) for _, rows in parts]
    for whole, (own, rows) in zip(found, parts, strict=True):
        whole[np.searchsorted(keys, own)] = rows
    return [columns(whole) for whole in found]
