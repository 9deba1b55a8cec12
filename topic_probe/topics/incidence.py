"""Which groups of words belong to which topic, and so which of them share one: a sparse table.

A group is all words with the same set of topics. Where topics overlap there are soon nearly as many groups as words,
too many for a table of all pairs. Sums over all groups that share a topic with a group are had without it: with M the
table [group, topic] they are M Mᵀ v, in which a group that shares k topics with another one is counted k times, less
(k − 1) v of the few that share several.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# Pairs of groups that are looked at together.
_PAIRS = 2**24


@dataclass(frozen=True, eq=False)
class Incidence:
    """The topics of every group: True in ``table`` [group, topic] where it belongs to one."""

    table: "csr_array"

    def __len__(self) -> int:
        return int(self.table.shape[0])

    @cached_property
    def disjoint(self) -> bool:
        """Whether no two topics have a word in common."""
        return int(self.table.nnz) == len(self)

    @cached_property
    def first_topic(self) -> Int64[Tensor, " group"]:
        """The first topic of every group."""
        return torch.from_numpy(self.table.indices[self.table.indptr[:-1]].astype(np.int64))

    @cached_property
    def groups_of_topics(self) -> "csr_array":
        """The groups of every topic: [topic, group]."""
        return self.table.T.tocsr()

    def by_topic(self, values: Float64[Tensor, "group *rest"]) -> Float64[Tensor, "topic *rest"]:
        """Sums of values of groups over the groups of every topic."""
        sums = self.groups_of_topics @ values.reshape(len(self), -1).numpy()
        return torch.from_numpy(sums).view(-1, *values.shape[1:])

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
        """Which groups share a topic."""
        if self.disjoint:
            return one.unsqueeze(-1) == other.unsqueeze(-2)
        return (self._topics(one) @ self._topics(other).mT > 0).to(one.device)

    def _topics(self, groups: Int64[Tensor, "*some"]) -> Float32[Tensor, "*some topic"]:
        # Only floats multiply fast, and counts of topics are exact in them.
        rows = self.table[groups.cpu().flatten().numpy()].astype(np.float32).toarray()
        return torch.from_numpy(rows).view(*groups.shape, self.table.shape[1])

    def pairwise(self, device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
        """A function that says of groups and other groups on this device, one by one, whether they share a topic."""
        if self.disjoint:
            return torch.eq
        bits = self._bits.to(device)

        def shared(one: Tensor, other: Tensor) -> Tensor:
            one, other = one.long(), other.long()
            found = torch.zeros_like(one, dtype=torch.bool)
            for topics in bits:
                found |= (topics.take(one) & topics.take(other)) != 0
            return found

        return shared

    @cached_property
    def _bits(self) -> Int64[Tensor, "part group"]:
        """The topics of every group as bits, 63 in a number."""
        group, topic = self.table.nonzero()
        bits = np.zeros((self.table.shape[1] // 63 + 1, len(self)), dtype=np.int64)
        np.bitwise_or.at(bits, (topic // 63, group), np.int64(1) << (topic % 63).astype(np.int64))
        return torch.from_numpy(bits)

    def times_shared(self, values: Float64[Tensor, "group width"]) -> Float64[Tensor, "group width"]:
        """For every group, the sum of the values of all groups that share a topic with it, itself included."""
        if self.disjoint:
            return values
        if self.dense:
            return torch.cat([block.double() @ values for _, block in self.blocks_of_pairs()])
        own = torch.from_numpy(np.diff(self.table.indptr) - 1.0)[:, None] * values
        sums = self.table @ self.by_topic(values).numpy() - self.sharing_several @ values.numpy()
        return torch.from_numpy(sums) - own

    @cached_property
    def dense(self) -> bool:
        """Whether it is cheaper to go over all pairs of groups than over those of every topic."""
        per_topic, per_group = (
            np.diff(of.indptr).astype(float) for of in (self.groups_of_topics, self.table)
        )
        return bool(2 * max((per_topic**2).sum(), (per_group**2).sum()) > len(self) ** 2)

    @cached_property
    def sharing_several(self) -> "csr_array":
        """How many topics beyond the first two different groups share: [group, group], few of which do.

        Groups that share k topics have k (k − 1) / 2 pairs of topics in common, and few groups have any one pair.
        """
        from scipy.sparse import csr_array

        topics, ends = self.table.indices.astype(np.int64), self.table.indptr[1:]
        n_later = np.repeat(ends, np.diff(self.table.indptr)) - np.arange(len(topics)) - 1
        first = np.repeat(np.arange(len(topics)), n_later)
        second = first + 1 + np.arange(len(first)) - np.repeat(n_later.cumsum() - n_later, n_later)
        kinds, kind = np.unique(self.table.shape[1] * topics[first] + topics[second], return_inverse=True)
        starts = np.append(0, n_later.cumsum())[self.table.indptr]
        pairs = csr_array((np.ones(len(kind)), kind, starts), shape=(len(self), len(kinds)))
        several = (pairs @ pairs.T).tocsr()
        several.setdiag(0)
        several.eliminate_zeros()
        several.data = (np.sqrt(8 * several.data + 1) - 1) / 2
        return several

    def blocks_of_pairs(self) -> Iterator[tuple[slice, Bool[Tensor, "block group"]]]:
        """Which groups share a topic with all groups, some at a time."""
        every = torch.arange(len(self))
        for groups in torch.split(every, max(1, _PAIRS // len(self))):
            yield slice(int(groups[0]), int(groups[-1]) + 1), self.sharing(groups, every)
