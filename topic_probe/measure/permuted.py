"""What other topics of the same words would give: permuted words, what their pairs add up to, p-values, their floor."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor

from topic_probe.contrast import Contrast, matched_means
from topic_probe.estimate import benjamini_hochberg, divide, permutation_p_value
from topic_probe.measure.words import LabelledWords
from topic_probe.topics import Topics

# A head is called below this q-value.
CALLED = 0.05
# Pairs × permutations that are worked on at once: what a processor's caches keep, and what other devices hold.
_IN_CACHE, _ON_DEVICE = 2**22, 2**26
# Below this share of pairs that share a topic, only these are added up.
_FEW = 0.08
# Words × permutations that are made at once, and bytes of them that are kept for all batches.
_AT_ONCE, _KEPT_BYTES = 2**23, 2**28


class PermutedWords:
    """The topics of every word under permutations that give a word, with all its forms, the topics of another one.

    So topics keep their sizes. Permutations are made in blocks. All blocks are kept where they are small; otherwise
    each is made again when it is wanted, from the state that the generator had.
    """

    def __init__(self, topics: Topics, n: int, seed: int, *, names: Sequence[str] | None = None) -> None:
        """So many permutations.

        ``names`` of the words, in the order of `LabelledWords.form`, put them in the order of these: topics of other
        vocabularies with the same words then have the same permutations.
        """
        self.n, self._topics = n, topics
        self._words = LabelledWords(topics, torch.arange(len(topics.words)))
        self._by_name = None if names is None else np.argsort(np.array(names))
        # In as few bytes as numbers of groups have.
        self._dtype = np.min_scalar_type(max(len(topics.incidence) - 1, 0))
        step = max(1, _AT_ONCE // max(1, len(topics.words)))
        generator = np.random.default_rng(seed)
        self._starts: list[tuple[Mapping[str, Any], int]] = []
        self._kept: list[Tensor] | None = None
        kept = []
        keeps = len(topics.words) * n * self._dtype.itemsize <= _KEPT_BYTES
        for start in range(0, n, step):
            self._starts.append((generator.bit_generator.state, min(step, n - start)))
            if keeps:
                kept.append(self._block(generator, self._starts[-1][1]))
            elif start + step < n:
                self._orders(generator, step)
        if keeps:
            self._kept = kept

    def _orders(self, generator: np.random.Generator, n: int) -> np.ndarray:
        """Which word's topics each word is given, [word, permutation]."""
        order = np.tile(np.arange(self._words.n_forms, dtype=np.int32), (n, 1))
        return np.ascontiguousarray(generator.permuted(order, axis=1).T)

    def _block(self, generator: np.random.Generator, n: int) -> Tensor:
        order = self._orders(generator, n)
        if self._by_name is not None:
            order = self._by_name[order[np.argsort(self._by_name)]].astype(np.int32)
        return torch.from_numpy(self._words.groups_given(order).astype(self._dtype))

    def blocks(self) -> Iterator[Tensor]:
        """The group of topics of every word, [word, permutation], some permutations after the other."""
        if self._kept is not None:
            yield from self._kept
            return
        generator = np.random.default_rng()
        for state, n in self._starts:
            generator.bit_generator.state = state
            yield self._block(generator, n)

    def shared(
        self, one: Int64[Tensor, " pair"], other: Int64[Tensor, " pair"]
    ) -> Iterator[tuple[slice, Bool[Tensor, "pair permutation"]]]:
        """Which pairs of words, given by their places, share a topic: for some permutations after the other."""
        if not self.n or not len(one):
            return
        sharing, device, start = self._topics.incidence.pairwise(one.device), one.device, 0
        step = max(1, (_IN_CACHE if device.type == "cpu" else _ON_DEVICE) // len(one))
        for block in self.blocks():
            for groups in torch.split(block.to(device), step, 1):
                found = sharing(groups.index_select(0, one), groups.index_select(0, other))
                yield slice(start, start + groups.shape[1]), found
                start += groups.shape[1]


class PairScores:
    """Scores of pairs, of which those that share a topic are added up.

    Attributes:
        table: rows of scores, the last of which counts pairs; these stand in the order of their distance.
        sizes: how many pairs there are in every bin of distance.
    """

    def __init__(self, table: Float[Tensor, "row pair"], sizes: Sequence[int]) -> None:
        self.table, self.sizes = table, sizes
        self._by_bin = torch.split(table, list(sizes), 1)

    def sums(
        self, shared: Bool[Tensor, "pair permutation"]
    ) -> tuple[Float[Tensor, "row permutation"], Float[Tensor, "2 bin permutation"]]:
        """Sums of every row; and of the last one and of all others together by distance."""
        if shared.device.type == "cpu":
            n = np.count_nonzero(shared.numpy(), axis=1)
            if n.sum() < _FEW * shared.numel():
                return self._sums_of_few(shared, n)
        parts = zip(self._by_bin, torch.split(shared.float(), list(self.sizes)), strict=True)
        found = torch.stack([of_bin @ share for of_bin, share in parts], 1)
        return found.sum(1), torch.stack([found[-1], found[:-1].sum(0)])

    def _sums_of_few(
        self, shared: Bool[Tensor, "pair permutation"], n: Int64[np.ndarray, " pair"]
    ) -> tuple[Float[Tensor, "row permutation"], Float[Tensor, "2 bin permutation"]]:
        """The same where few pairs share a topic: a product with a sparse table, on a processor."""
        from scipy.sparse import csr_array

        columns = np.flatnonzero(shared.numpy()) % shared.shape[1]
        ends = np.concatenate([[0], n.cumsum()])
        sparse = csr_array((np.ones(len(columns), np.float32), columns, ends), shape=tuple(shared.shape))
        found = torch.from_numpy(sparse.T @ self._columns).T
        return found[: len(self.table)], found[len(self.table) :].reshape(2, len(self.sizes), -1)

    @cached_property
    def _columns(self) -> Float32[np.ndarray, "pair column"]:
        """Every row as a column, then the last one and the sum of all others, in the bin of the pair."""
        pair = torch.arange(self.table.shape[1])
        bins = torch.arange(len(self.sizes)).repeat_interleave(torch.tensor(self.sizes))
        by_bin = torch.zeros(2, len(self.sizes), len(pair))
        by_bin[:, bins, pair] = torch.stack([self.table[-1], self.table[:-1].sum(0)])
        return torch.cat([self.table, by_bin.flatten(0, 1)]).T.contiguous().numpy()


# ---------------------------------------------------------------------------- p-values

# Sums and numbers of pairs of different words: [group, 1], or by distance [bin, 1].
OfPairs = tuple[np.ndarray, np.ndarray]


def with_p_values(contrast: Contrast, every: OfPairs, same: OfPairs) -> Contrast:
    """The contrast of groups of heads with p-values and q-values of its ratios; as it is without permutations.

    Args:
        contrast: what was measured, a cell for every group.
        every: sums and numbers of the pairs of different words. What a permutation does not put into one topic is of
            different ones.
        same: those of the pairs that would share a topic, [group, permutation].
    """
    if not same[0].shape[-1]:
        return contrast
    p_value = permutation_p_value(contrast.ratio, divide(*null_means(every, same)))
    return replace(contrast, p_value=p_value, q_value=benjamini_hochberg(p_value))


def null_means(every: OfPairs, same: OfPairs) -> tuple[Float64[np.ndarray, "group permutation"], np.ndarray]:
    """Same-topic and different-topic means under every permutation; arguments as in `with_p_values`."""
    return divide(*same), divide(every[0] - same[0], every[1] - same[1])


def with_matched_p_value(contrast: Contrast, every: OfPairs, same: OfPairs) -> Contrast:
    """The contrast of all heads at equal distance with its p-value; as it is without permutations.

    Under every permutation, too, bins weigh their number of same-topic pairs. Arguments as in `with_p_values`, by bin
    of distance in place of groups.
    """
    if not same[0].shape[-1]:
        return contrast
    # [permutation, bin, relation]; pairs of the same word are in none of it.
    of_scores, counts = (
        np.stack([np.zeros_like(shared), shared, total - shared], -1).swapaxes(0, 1)
        for shared, total in zip(same, every, strict=True)
    )
    p_value = permutation_p_value(contrast.ratio, divide(*matched_means(of_scores, counts)[:2]))
    return replace(contrast, p_value=p_value, q_value=benjamini_hochberg(p_value))


def floor_of(heads: Contrast, n_permutations: int) -> str | None:
    """The least p-value, where it is not low enough to call a single head; None where it is."""
    if heads.p_value is None or not n_permutations:
        return None
    n_tests = int(np.isfinite(heads.p_value).sum())
    together = math.floor(2 * n_tests / (CALLED * (n_permutations + 1))) + 1
    if together == 1:
        return None
    shared = f"{together} of {n_tests} heads must share it for q < {CALLED}"
    if together > n_tests:
        shared = f"none of {n_tests} heads can have q < {CALLED}"
    return f"p at the floor, 2/{n_permutations + 1:,}: {shared}"
