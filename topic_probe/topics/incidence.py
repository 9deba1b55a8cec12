"""Which groups of words belong to which topic, and so which of them share one: a sparse table.

A group is all words with the same set of topics. Where topics do not overlap there is one group for each. Where they
do there are soon nearly as many groups as words, and a table of all pairs of them would have the square of that; here
nothing has, and what is asked costs about as many steps as there are pairs of words in a topic, summed over topics.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# Columns of values that are added up at a time, and numbers that a block of a table of groups may have: both are what
# stays in a processor's cache.
_COLUMNS = 64
_BLOCK = 2**24

# Up to so many pairs of groups in a topic, summed over topics, what was found of them is kept (some 10 % of them do
# share more than one topic, at 12 bytes each); with more it is found anew whenever it is asked for.
_KEPT_PAIRS = 2**28


@dataclass(frozen=True, eq=False)
class Incidence:
    """The topics of every group.

    Attributes:
        table: True where a group belongs to a topic; every group belongs to one at least.
    """

    table: "csr_array"

    def __len__(self) -> int:
        """Number of groups."""
        return int(self.table.shape[0])

    @cached_property
    def disjoint(self) -> bool:
        """Whether no two topics have a word in common: a group shares a topic with itself alone."""
        return int(self.table.nnz) == len(self)

    @cached_property
    def first_topic(self) -> Int64[Tensor, " group"]:
        """The first topic of every group."""
        return torch.from_numpy(self.table.indices[self.table.indptr[:-1]].astype(np.int64))

    @cached_property
    def _by_topic(self) -> "csr_array":
        return self.table.T.tocsr()

    def by_topic(self, values: Float64[Tensor, "group *rest"]) -> Float64[Tensor, "topic *rest"]:
        """Sums of values of groups over the groups of every topic."""
        sums = _product(self._by_topic, values.flatten(1) if values.ndim > 1 else values[:, None])
        return sums.view(-1, *values.shape[1:])

    def between_topics(
        self,
        values: Float64[Tensor, " pair"],
        first: Int64[Tensor, " pair"],
        second: Int64[Tensor, " pair"],
    ) -> Float64[Tensor, "topic topic"]:
        """Sums of values of pairs of groups over the topics of the first and those of the second."""
        rows, columns = (self.table[groups.numpy()].astype(np.float64) for groups in (first, second))
        rows.data *= np.repeat(values.numpy(), np.diff(rows.indptr))
        return torch.from_numpy((rows.T @ columns).toarray())

    def in_common(self, first: Int64[Tensor, " pair"], second: Int64[Tensor, " pair"]) -> "csr_array":
        """True where both groups of a pair belong to a topic: [pair, topic]."""
        return self.table[first.numpy()].multiply(self.table[second.numpy()]).tocsr()

    def topics_in_common(
        self, first: Int64[Tensor, " pair"], second: Int64[Tensor, " pair"]
    ) -> tuple[Int64[Tensor, " found"], Int64[Tensor, " found"]]:
        """For every topic that both groups of a pair belong to, the number of the pair, and the topic."""
        found = self.in_common(first, second)
        pair = torch.arange(len(first)).repeat_interleave(torch.from_numpy(np.diff(found.indptr)))
        return pair, torch.from_numpy(found.indices.astype(np.int64))

    def sharing(
        self, one: Int64[Tensor, "*batch one"], other: Int64[Tensor, "*batch other"]
    ) -> Bool[Tensor, "*batch one other"]:
        """Which groups share a topic: different words of the two are of the same topic."""
        if self.disjoint:
            return one.unsqueeze(-1) == other.unsqueeze(-2)
        n, m = one.shape[-1], other.shape[-1]
        pairs = self._side_by_side(one) @ self._side_by_side(other).T
        table = np.zeros((one.numel(), m), dtype=bool)
        row = np.repeat(np.arange(len(table)), np.diff(pairs.indptr))
        table[row, pairs.indices - row // max(n, 1) * m] = True
        return torch.from_numpy(table).view(*one.shape, m).to(one.device)

    def _side_by_side(self, groups: Int64[Tensor, "*batch some"]) -> "csr_array":
        """The topics of groups, those of every batch in columns of its own: [batch · some, batch · topic]."""
        from scipy.sparse import csr_array

        rows, n_topics = self.table[groups.cpu().flatten().numpy()], self.table.shape[1]
        n_batches = math.prod(groups.shape[:-1])
        batch = np.repeat(np.arange(n_batches), groups.shape[-1])
        columns = rows.indices + n_topics * np.repeat(batch, np.diff(rows.indptr))
        return csr_array((rows.data, columns, rows.indptr), shape=(len(batch), n_batches * n_topics))

    def times_shared(
        self, values: Float64[Tensor, "group width"], *, rough: bool = False
    ) -> Float64[Tensor, "group width"]:
        """For every group, the sum of the values of all groups that share a topic with it, itself included.

        Sums by topic, added up over the topics of a group, have those that share several topics with it several times;
        these are taken out again. Only where most groups share a topic is it cheaper to go over all pairs of groups.

        Args:
            values: A row for every group.
            rough: Whether what is taken out is added up in float32: several times faster, with an error of 1e-8 of it.
        """
        if self.disjoint:
            return values
        if 2 * self._n_pairs > len(self) ** 2:
            return torch.cat([block @ values for block in self._blocks_of_all()])
        total = _product(self.table, self.by_topic(values))
        used = values.any(dim=1)
        kept = self._n_pairs <= _KEPT_PAIRS
        # What is found anew for every part of the columns had better be asked for once.
        for columns in torch.split(
            torch.arange(values.shape[1]), _COLUMNS if kept and not rough else len(total.T)
        ):
            part = values[used][:, columns]
            for rows, excess in self._repeated if kept else self._blocks_repeated():
                of_used = excess if len(part) == len(values) else excess[:, used.numpy()]
                total[rows, columns] -= (
                    _rough_product(of_used, part.float()) if rough else _product(of_used, part)
                )
        return total

    @cached_property
    def _n_pairs(self) -> int:
        """How many ordered pairs of groups there are in a topic, summed over topics."""
        return int((np.diff(self._by_topic.indptr).astype(np.int64) ** 2).sum())

    @cached_property
    def _repeated(self) -> list[tuple[slice, Any]]:
        return list(self._blocks_repeated())

    def _blocks_repeated(self) -> Iterator[tuple[slice, Any]]:
        """For blocks of groups: how many topics more than one each has in common with every group."""
        counts, by_topic = self.table.astype(np.int32), self._by_topic.astype(np.int32)
        step = max(1, _BLOCK * len(self) // max(self._n_pairs, 1) // 2)
        for start in range(0, len(self), step):
            rows = slice(start, min(start + step, len(self)))
            excess = counts[rows] @ by_topic
            excess.data -= 1
            excess.eliminate_zeros()
            yield rows, excess.astype(np.float32)

    def _blocks_of_all(self) -> Iterator[Float64[Tensor, "block group"]]:
        """Blocks of the table of all pairs of groups: 1 for those that share a topic."""
        # Counts up to the number of topics are exact in float32, and only floats multiply fast.
        topics = torch.from_numpy(self.table.astype(np.float32).toarray())
        for block in torch.split(topics, max(1, _BLOCK // len(topics))):
            yield (block @ topics.T > 0).double()


def _product(table: "csr_array", values: Float64[Tensor, "column width"]) -> Float64[Tensor, "row width"]:
    """A sparse table times values, some columns at a time."""
    parts = [table @ part.contiguous().numpy() for part in torch.split(values, _COLUMNS, dim=1)]
    return torch.from_numpy(np.concatenate(parts, axis=1))


def _rough_product(
    table: "csr_array", values: Float32[Tensor, "column width"]
) -> Float64[Tensor, "row width"]:
    """A sparse table times values, in float32."""
    columns, starts, weights = (torch.from_numpy(part) for part in (table.indices, table.indptr, table.data))
    return F.embedding_bag(columns, values, starts[:-1], mode="sum", per_sample_weights=weights).double()
