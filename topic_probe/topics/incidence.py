"""Which groups of words belong to which topic, and so which of them share one: a sparse table.

A group is all words with the same set of topics. Where topics do not overlap there is one group for each. Where they
do there are soon nearly as many groups as words, and a table of all pairs of them would have the square of that; here
nothing has, and what is asked costs about as many steps as there are pairs of words in a topic, summed over topics.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float32, Float64, Int, Int64
from torch import Tensor

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# Columns of values that are added up at a time, and numbers that a block of a table of groups may have: both are what
# stays in a processor's cache.
_COLUMNS = 64
_BLOCK = 2**24

# So many pairs of groups are looked at a time for those that share several topics.
_COUNTS = 2**20

# Up to so many pairs of groups in a topic, summed over topics, what was found of them is kept (some 10 % of them do
# share more than one topic, at 16 bytes each); with more it is found anew whenever it is asked for.
_KEPT_PAIRS = 2**28


# Pairs of groups that are looked up in a table of all of them, of a byte each.
_LOOKED_UP = 2**26


class Again(NamedTuple):
    """Pairs of groups that have met in another topic.

    Attributes:
        first: one group,
        second: and a later one.
        topic: that they meet in.
        of_first: which of the groups of the topic the one is,
        of_second: and the other.
    """

    first: Int64[np.ndarray, " pair"]
    second: Int64[np.ndarray, " pair"]
    topic: Int[np.ndarray, " pair"]
    of_first: Int64[np.ndarray, " pair"]
    of_second: Int64[np.ndarray, " pair"]


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
        if self.disjoint:
            empty = values.new_zeros(self.table.shape[1], *values.shape[1:])
            return empty.index_add_(0, self.first_topic, values)
        sums = _product(self._by_topic, values.flatten(1) if values.ndim > 1 else values[:, None])
        return sums.view(-1, *values.shape[1:])

    def between_topics(
        self,
        values: Float64[Tensor, " pair"],
        first: Int64[Tensor, " pair"],
        second: Int64[Tensor, " pair"],
    ) -> Float64[Tensor, "topic topic"]:
        """Sums of values of pairs of groups over the topics of the first and those of the second."""
        if self.disjoint:
            n_topics = self.table.shape[1]
            cell = n_topics * self.first_topic[first] + self.first_topic[second]
            sums = values.new_zeros(n_topics**2).index_add_(0, cell, values)
            return sums.view(n_topics, n_topics)
        rows, columns = (self.table[groups.numpy()].astype(np.float64) for groups in (first, second))
        rows.data *= np.repeat(values.numpy(), np.diff(rows.indptr))
        return torch.from_numpy((rows.T @ columns).toarray())

    def in_common(self, first: Int64[Tensor, " pair"], second: Int64[Tensor, " pair"]) -> "csr_array":
        """True where both groups of a pair belong to a topic: [pair, topic]."""
        from scipy.sparse import csr_array

        if not len(first):  # as where no word has several forms
            return csr_array((0, self.table.shape[1]), dtype=bool)
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

    def pairwise(self, device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
        """Says of groups and other groups, number by number, whether they share a topic; both are on this device."""
        if self.disjoint:
            return torch.eq
        if len(self) ** 2 <= _LOOKED_UP:
            table = self._whole.to(device)
            return lambda one, other: table.take(one.long().mul_(len(self)).add_(other))
        bits = self._bits.to(device)

        def shared(one: Tensor, other: Tensor) -> Tensor:
            one, other = one.long(), other.long()
            found = torch.zeros_like(one, dtype=torch.bool)
            for topics in bits:
                found |= (topics.take(one) & topics.take(other)) != 0
            return found

        return shared

    @cached_property
    def _whole(self) -> Bool[Tensor, "group group"]:
        every = torch.arange(len(self))
        return self.sharing(every, every)

    @cached_property
    def _bits(self) -> Int64[Tensor, "part group"]:
        """The topics of every group as bits, 63 in a number."""
        group, topic = self.table.nonzero()
        bits = np.zeros((self.table.shape[1] // 63 + 1, len(self)), dtype=np.int64)
        np.bitwise_or.at(bits, (topic // 63, group), np.int64(1) << (topic % 63).astype(np.int64))
        return torch.from_numpy(bits)

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
        if self.crowded:
            return torch.cat([block @ values for block in self._blocks_of_all()])
        total = self.times_topics(values)
        multiply = _rough_sums if rough else _product
        parts = [part.float() if rough else part for part in torch.split(values, _COLUMNS, dim=1)]
        again = [torch.zeros_like(part) for part in parts]
        for rows, later, earlier in self.repeated():
            for part, sums in zip(parts, again, strict=True):
                sums[rows] += multiply(later, part)
                sums += multiply(earlier, part[rows])
        total -= torch.cat(again, dim=1)
        return total

    def times_topics(self, values: Float64[Tensor, "group width"]) -> Float64[Tensor, "group width"]:
        """The same, groups that share several topics counted once for each of these; a group itself is there once."""
        if self.disjoint:
            return values
        sums = _product(self.table, self.by_topic(values))
        return sums.addcmul_(torch.from_numpy(self.n_topics - 1.0)[:, None], values, value=-1)

    @cached_property
    def crowded(self) -> bool:
        """Whether it is cheaper to go over all pairs of groups than over those of every topic."""
        return 2 * self._n_pairs > len(self) ** 2

    @cached_property
    def sizes(self) -> Int64[np.ndarray, " topic"]:
        """How many groups every topic has."""
        return np.asarray(np.diff(self._by_topic.indptr), dtype=np.int64)

    @property
    def members(self) -> list[Int64[np.ndarray, " group"]]:
        """The groups of every topic."""
        return np.split(self._by_topic.indices.astype(np.int64), self._by_topic.indptr[1:-1])

    @cached_property
    def n_topics(self) -> Int64[np.ndarray, " group"]:
        """How many topics every group belongs to."""
        return np.asarray(np.diff(self.table.indptr), dtype=np.int64)

    def repeated(self) -> Iterable[tuple[slice, "csr_array", "csr_array"]]:
        """For blocks of groups: how many topics more than one each shares with every group that comes later.

        And, for every group, how many it shares with those of the block that come before it.
        """
        return self._kept_repeated if self._repeated_fit else self._blocks_repeated()

    @cached_property
    def _repeated_fit(self) -> bool:
        return self._n_pairs <= min(_KEPT_PAIRS, len(self) ** 2 // 2)

    @cached_property
    def _n_pairs(self) -> int:
        """How many ordered pairs of groups there are in a topic, summed over topics."""
        return int((self.sizes**2).sum())

    @cached_property
    def _kept_repeated(self) -> list[tuple[slice, "csr_array", "csr_array"]]:
        return list(self._blocks_repeated())

    def _blocks_repeated(self) -> Iterator[tuple[slice, "csr_array", "csr_array"]]:
        from scipy.sparse import csr_array

        step = max(1, _BLOCK * len(self) // max(self._n_pairs, 1))
        for start in range(0, len(self), step):
            rows = slice(start, min(start + step, len(self)))
            found = [(again.first, again.second) for again in self.again(rows)]
            row, column = (np.concatenate(part) for part in zip(*found, strict=True))
            pairs = (np.ones(len(row), np.float32), (row - start, column))
            later = csr_array(pairs, shape=(rows.stop - start, len(self)))
            # Sums along rows are several times faster than those along columns.
            yield rows, later, later.T.tocsr()

    def again(self, some: slice = slice(None)) -> Iterator[Again]:
        """Pairs of some groups with later ones that share several topics, once for all of these but one."""
        table, starts = self.table, self._by_topic.indptr.astype(np.int64)
        members = self._by_topic.indices.astype(np.int64)  # which numpy needs no copies of to look things up
        start, stop, _ = some.indices(len(self))
        at_once = max(1, _COUNTS // len(self))
        for first in range(start, stop, at_once):
            last = min(first + at_once, stop)
            entries = slice(table.indptr[first], table.indptr[last])
            topics, n_topics, stands = (
                table.indices[entries],
                self.n_topics[first:last],
                self._stands[entries],
            )
            group = np.repeat(np.arange(last - first), n_topics)
            # The others of a topic that come later; of a group with one topic, nobody is met again.
            n_later = np.where(n_topics[group] > 1, starts[1:][topics] - stands - 1, 0)
            entry = np.repeat(np.arange(len(topics), dtype=np.min_scalar_type(len(topics))), n_later)
            places = np.repeat(stands + 1 + n_later - n_later.cumsum(), n_later)
            places += np.arange(len(entry))
            cells = members[places]
            cells += np.repeat(group * len(self), n_later)
            # One entry is left in every cell that several are written to: the others meet there again. What is
            # written to stays in a processor's cache.
            left = np.empty((last - first) * len(self), entry.dtype)
            left[cells] = entry
            met = np.flatnonzero(left[cells] != entry)
            entry, places = entry[met], places[met]
            topic = topics[entry]
            inside = stands[entry] - starts[topic], places - starts[topic]
            yield Again(first + group[entry], members[places], topic, *inside)

    @cached_property
    def _stands(self) -> Int64[np.ndarray, " assignment"]:
        """Where the topics of groups stand among the groups of topics."""
        stands = np.empty(self.table.nnz, dtype=np.int64)
        stands[np.argsort(self.table.indices, kind="stable")] = np.arange(len(stands))
        return stands

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


def _rough_sums(table: "csr_array", values: Float32[Tensor, "column width"]) -> Float32[Tensor, "row width"]:
    """The same in float32, at the speed of memory."""
    columns, starts = (torch.from_numpy(part) for part in (table.indices, table.indptr))
    weights = None if table.dtype == bool else torch.from_numpy(table.data)
    return F.embedding_bag(columns, values, starts[:-1], mode="sum", per_sample_weights=weights)
