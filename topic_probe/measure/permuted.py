"""What other topics of the same words would give: permuted words, what their pairs add up to, p-values, their floor."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from topic_probe.measure.words import LabelledWords
from topic_probe.topics import Topics

# A head is called below this q-value.
CALLED = 0.05
# Pairs × permutations that are worked on at once: what a processor's caches keep, and what other devices hold.
_IN_CACHE, _ON_DEVICE = 2**21, 2**26
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
            for groups in block.to(device).split(step, 1):
                found = sharing(groups.index_select(0, one), groups.index_select(0, other))
                yield slice(start, start + groups.shape[1]), found
                start += groups.shape[1]
