"""Which groups of words belong to which topic, and so which of them share one: a sparse table.

A group is all words with the same set of topics. Sums over all groups that share a topic with a group need no table of
all pairs: with M the table [group, topic] they are M Mᵀ v, in which a group that shares k topics with another one is
counted k times, less (k − 1) v of the few that share several.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_ROWS_AT_ONCE = 512


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

    def sharing(
        self, one: Int64[Tensor, "*batch one"], other: Int64[Tensor, "*batch other"]
    ) -> Bool[Tensor, "*batch one other"]:
        """Which groups share a topic."""
        return self.pairwise(one.device)(one.unsqueeze(-1), other.unsqueeze(-2))

    def pairwise(self, device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
        """A function that says of groups and other groups on this device, one by one, whether they share a topic."""
        if self.disjoint:
            return torch.eq
        bits = self._bits.to(device)

        def shared(one: Tensor, other: Tensor) -> Tensor:
            one, other = one.long(), other.long()
            found = torch.zeros_like(one, dtype=torch.bool) & torch.zeros_like(other, dtype=torch.bool)
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

    def times_shared(self, values: Float64[np.ndarray, "group width"]) -> Float64[np.ndarray, "group width"]:
        """For every group, the sum of the values of all groups that share a topic with it, itself included."""
        if self.disjoint:
            return values
        topics = self.table.astype(np.float64)
        return np.asarray(topics @ (topics.T @ values) - self._several @ values)

    @cached_property
    def _several(self) -> "csr_array":
        """How many topics beyond the first two groups share: [group, group], few of which do."""
        from scipy.sparse import vstack

        topics, blocks = self.table.astype(np.int32), []
        for start in range(0, len(self), _ROWS_AT_ONCE):
            in_common = topics[start : start + _ROWS_AT_ONCE] @ topics.T
            in_common.data -= 1
            in_common.eliminate_zeros()
            blocks.append(in_common)
        return vstack(blocks, format="csr").astype(np.float64)
