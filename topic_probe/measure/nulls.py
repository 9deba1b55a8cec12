"""What permuted labels would give: the sums, the p-values that follow from them, and how far these reach."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from topic_probe.contrast import SAME_WORD, Contrast, matched_means
from topic_probe.estimate import benjamini_hochberg, divide, n_sides, needed_permutations, permutation_p_value
from topic_probe.measure.accumulators import BatchSums
from topic_probe.measure.options import Permutations
from topic_probe.measure.scores import DISTANCE_BINS, BatchScores, Pairs, numbers_at_once, padded, wide
from topic_probe.measure.words import LabelledWords
from topic_probe.topics import Topics

# A head is called below this q-value.
_CALLED = 0.05


class Null(BatchSums):
    """The sums of the pairs that would share a topic, were other words in the topics: for many permutations of words.

    A permutation gives every word (all its forms) the topics of another one, so topics keep their sizes. Sums are by
    cell over all distances, and by distance over all cells.
    """

    def __init__(
        self,
        topics: Topics,
        n_permutations: int,
        seed: int,
        n_cells: int,
        *,
        names: Sequence[str] | None = None,
    ) -> None:
        """A null of so many cells.

        ``names`` of the words, in the order of `LabelledWords.form`, put them in the order of these: topics of other
        vocabularies with the same words then have the same permutations.
        """
        self.n_permutations = n_permutations
        shape, by_distance = (n_cells, n_permutations), (len(DISTANCE_BINS) + 1, n_permutations)
        self.sums: dict[str, np.ndarray] = {
            "null": np.zeros(shape), "n_null": np.zeros(shape),
            "binned_null": np.zeros(by_distance), "n_binned_null": np.zeros(by_distance),
        }  # fmt: skip
        words = LabelledWords(topics, torch.arange(len(topics.words)))
        # Every permutation: which word's topics each word is given.
        order = np.tile(np.arange(words.n_forms, dtype=np.int32), (n_permutations, 1))
        order = np.ascontiguousarray(np.random.default_rng(seed).permuted(order, axis=1).T)
        if names is not None:
            by_name = np.argsort(np.array(names))
            order = by_name[order[np.argsort(by_name)]].astype(np.int32)
        # In as few bytes as they have: there are as many numbers as permutations of every word.
        groups = words.groups_given(order)
        self.groups = torch.from_numpy(
            groups.astype(np.uint8 if groups.max(initial=0) < 256 else groups.dtype)
        )
        self.incidence = topics.incidence
        self.shared = self.incidence.pairwise(self.groups.device)

    def prepare(self, pairs: Pairs, device: torch.device) -> Mapping[str, Any]:
        """The pairs of different words by distance, each and its reverse as one where both are of one document.

        Among all pairs of all documents ``there`` are those in one direction and ``back`` those in the other; ``sizes``
        says how many there are at every distance.
        """
        if not self.n_permutations:
            return {}
        between, within = pairs.relations > SAME_WORD, pairs.query is pairs.key
        if within:
            between = between.triu(1)
        document, query, key = between.nonzero(as_tuple=True)
        bins = pairs.bins[document, query, key].numpy()
        order = torch.from_numpy(np.argsort(bins, kind="stable"))
        document, query, key = document[order], query[order], key[order]
        _, n, m = pairs.relations.shape
        of_query, of_key = (padded([words.places for words in part], 0) for part in (pairs.query, pairs.key))
        found = {"there": (document * n + query) * m + key, "of_query": of_query[document, query],
                 "of_key": of_key[document, key]}  # fmt: skip
        if within:
            found["back"] = (document * n + key) * m + query
        if self.groups.device != device:
            self.groups, self.shared = self.groups.to(device), self.incidence.pairwise(device)
        sizes = np.bincount(bins, minlength=pairs.n_bins).tolist()
        return {name: places.to(device) for name, places in found.items()} | {"sizes": sizes}

    def score(self, scores: BatchScores, index: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """For every permutation, the sums of the pairs of different words that would share a topic."""
        if not (index and any(index["sizes"])):
            return {}
        add_up, found = None, []
        for same in self._shared(index):
            if add_up is None:
                few = _are_few(same, scores.values.shape[1])
                add_up = (_few_pairs if few else _every_pair)(scores.values, scores.seen, index)
            found.append(add_up(same))
        sums = wide(torch.cat(found, 2))
        return {
            "null": sums[:-1].sum(1), "n_null": sums[-1].sum(0),
            "binned_null": sums[:-1].sum(0), "n_binned_null": sums[-1] * len(scores.cells),
        }  # fmt: skip

    def _shared(self, index: Mapping[str, Any]) -> Iterator[Bool[Tensor, "pair permutation"]]:
        """Which pairs would share a topic, for some permutations after the other."""
        step = max(1, numbers_at_once(self.groups.device) // len(index["of_query"]))
        for start in range(0, self.n_permutations, step):
            yield self.same_topic(index["of_query"], index["of_key"], slice(start, start + step))

    def add(
        self, scores: BatchScores, found: Mapping[str, np.ndarray], kept: Bool[np.ndarray, " document"]
    ) -> None:
        """Adds all documents."""
        if "null" not in found:
            return
        for name in ("null", "n_null"):
            self.sums[name][scores.cells] += found[name]
        for name in ("binned_null", "n_binned_null"):
            self.sums[name][: len(found[name])] += found[name]

    def same_topic(
        self, query: Int64[Tensor, " pair"], key: Int64[Tensor, " pair"], part: slice
    ) -> Bool[Tensor, "pair permutation"]:
        """Which pairs of words, given by their places, share a topic under some of the permutations."""
        groups = self.groups[:, part]
        return self.shared(groups.index_select(0, query), groups.index_select(0, key))


# Two ways to add up the pairs that share a topic: [cell, bin, permutation], the last cell counting pairs.
_AddUp = Callable[[Bool[Tensor, "pair permutation"]], Float[Tensor, "cell bin permutation"]]


def _are_few(shared: Bool[Tensor, "pair permutation"], n_cells: int) -> bool:
    """Whether pairs that share a topic are sooner looked up one by one than all are multiplied.

    Of a pair that is looked up its finding costs as much as the adding of some hundred numbers, and a number is added
    in the time of five that are multiplied. Only a processor may look at how many there are.
    """
    if shared.device.type != "cpu":
        return False
    return int(np.count_nonzero(shared.numpy())) * (150 + n_cells) * 5 < shared.numel() * n_cells


def _every_pair(
    values: Float[Tensor, "document cell query key"],
    seen: Bool[Tensor, "document query key"],
    index: Mapping[str, Any],
) -> _AddUp:
    """Products of the values of all pairs with which of them share a topic."""

    def of_pairs(table: Float[Tensor, "cell every"]) -> Float[Tensor, "cell pair"]:
        there = table.index_select(1, index["there"])
        return there.add_(table.index_select(1, index["back"])) if "back" in index else there

    # Float32 is precise enough for a null.
    parts = of_pairs(values.transpose(0, 1).flatten(1)).float(), of_pairs(seen.flatten()[None].float())
    table = torch.split(torch.cat(parts), index["sizes"], 1)

    def add_up(shared: Bool[Tensor, "pair permutation"]) -> Float[Tensor, "cell bin permutation"]:
        shares = torch.split(shared.float(), index["sizes"])
        return torch.stack([of_bin @ share for of_bin, share in zip(table, shares, strict=True)], 1)

    return add_up


def _few_pairs(
    values: Float[Tensor, "document cell query key"],
    seen: Bool[Tensor, "document query key"],
    index: Mapping[str, Any],
) -> _AddUp:
    """Sums of the values of those pairs alone that share a topic, on a processor."""
    n_cells, sizes = values.shape[1], index["sizes"]
    table = torch.empty(seen.numel(), n_cells + 1)
    table[:, :-1].view(len(values), -1, n_cells).copy_(values.flatten(2).transpose(1, 2))
    table[:, -1] = seen.flatten()
    places = torch.stack([index[name] for name in ("there", "back") if name in index], 1).int()
    bin_of = np.repeat(np.arange(len(sizes)), sizes)

    def add_up(shared: Bool[Tensor, "pair permutation"]) -> Float[Tensor, "cell bin permutation"]:
        n, found = shared.shape[1], np.flatnonzero(shared.numpy())
        pair, permutation = np.divmod(found, n)
        bag = bin_of[pair] * n + permutation
        # Short numbers are sorted in one go over each of their bytes.
        order = bag.astype(np.min_scalar_type(len(sizes) * n)).argsort(kind="stable")
        ends = np.bincount(bag, minlength=len(sizes) * n).cumsum() * places.shape[1]
        offsets = torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32))
        chosen = places[torch.from_numpy(pair[order])].flatten()
        sums = F.embedding_bag(chosen, table, offsets, mode="sum", include_last_offset=True)
        return sums.view(len(sizes), n, -1).permute(2, 0, 1)

    return add_up


# ---------------------------------------------------------------------------- p-values


# Sums and numbers of pairs: [group, permutation], or of all heads by distance, [bin, permutation].
OfPairs = tuple[np.ndarray, np.ndarray]


def with_p_values(
    contrast: Contrast,
    every: OfPairs,
    sums: Mapping[str, Any],
    starts: Int64[np.ndarray, " group"],
    permutations: Permutations,
) -> Contrast:
    """The contrast of groups of heads with p-values and q-values of its ratios; as it is without permutations.

    Args:
        contrast: what was measured, a cell for every group.
        every: sums and numbers of the pairs of different words, [group, 1]. What a permutation does not put into one
            topic is of different ones.
        sums: those of `Null`, by name.
        starts: where every group of heads begins.
        permutations: how many there are, and what counts as extreme.
    """
    if not permutations.n_permutations:
        return contrast
    null = divide(*null_means(every, sums, starts))
    p_value = permutation_p_value(contrast.ratio, null, alternative=permutations.alternative)
    return replace(contrast, p_value=p_value, q_value=benjamini_hochberg(p_value))


def with_matched_p_value(
    contrast: Contrast, every: OfPairs, sums: Mapping[str, Any], permutations: Permutations
) -> Contrast:
    """The contrast of all heads at equal distance with its p-value; as it is without permutations.

    Under every permutation, too, bins weigh their number of same-topic pairs.

    Args:
        contrast: what was measured.
        every: sums and numbers of the pairs of different words, [bin, 1].
        sums: those of `Null`, by name.
        permutations: how many there are, and what counts as extreme.
    """
    if not permutations.n_permutations:
        return contrast
    # [permutation, bin, relation]; pairs of the same word are in none of it.
    of_scores, counts = (
        np.stack([np.zeros_like(sums[name]), sums[name], total - sums[name]], -1).swapaxes(0, 1)
        for name, total in zip(("binned_null", "n_binned_null"), every, strict=True)
    )
    null = divide(*matched_means(of_scores, counts)[:2])
    p_value = permutation_p_value(contrast.ratio, null, alternative=permutations.alternative)
    return replace(contrast, p_value=p_value, q_value=benjamini_hochberg(p_value))


def null_means(
    every: OfPairs, sums: Mapping[str, Any], starts: Int64[np.ndarray, " group"]
) -> tuple[Float64[np.ndarray, "group permutation"], Float64[np.ndarray, "group permutation"]]:
    """Same-topic and different-topic means of groups of heads under every permutation.

    Args:
        every: as in `with_p_values`, [group, 1].
        sums: those of `Null`, by name.
        starts: where every group of heads begins.
    """
    same, n_same = (np.add.reduceat(sums[name], starts) for name in ("null", "n_null"))
    return divide(same, n_same), divide(every[0] - same, every[1] - n_same)


# ---------------------------------------------------------------------------- the least possible p-value


def about_floor(heads: Contrast, provenance: Mapping[str, Any]) -> list[str]:
    """How far permutations reach, where that is not far enough to call a head that no permutation has reached."""
    options, p_value, q_value = provenance["options"], heads.p_value, heads.q_value
    n = options.get("n_permutations")
    if p_value is None or q_value is None or not n:
        return []
    alternative = options["alternative"]
    sides, n_tests = n_sides(alternative), int(np.isfinite(p_value).sum())
    lowest = np.isclose(p_value, sides / (n + 1), rtol=1e-9, atol=0)
    if not lowest.any() or q_value[lowest].max() < _CALLED:
        return []
    together = math.floor(sides * n_tests / (_CALLED * (n + 1))) + 1
    alone = needed_permutations(n_tests, alternative, q=_CALLED)
    return [
        f"p of {lowest.sum()} heads is at the floor, {sides}/{n + 1:,}, the least that {n:,} permutations can give: "
        f"{together} of {n_tests} heads must share it before any has q < {_CALLED}; "
        f"n_permutations={alone:,} lets a single head stand out"
    ]
