"""Means over pairs that are matched by bins, and how sure they are."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64, Int64

from topic_probe.contrast import Contrast
from topic_probe.measure.bins import Bins, MatchedWords
from topic_probe.measure.pairs import ClassSums, pair_codes
from topic_probe.measure.words import SCORES
from topic_probe.uncertainty import (
    MIN_UNITS,
    Alternative,
    compare,
    divide,
    effective_units,
    no_interval_reason,
    percentile_interval,
    permutation_p_value,
    resample,
    split_halves,
    word_interval,
)

# What pairs have to have in common to be compared, as axes of the sums [co-occurrence, frequency, distance].
MATCHED_ON: dict[str, tuple[int, ...]] = {
    "nothing": (),
    "frequency": (1,),
    "co-occurrence": (0,),
    "co-occurrence and frequency": (0, 1),
}
WITH_DISTANCE = "co-occurrence, frequency and distance"

NOT_MATCHED = "no bin holds pairs of the same topic and of different topics"
_ROWS_AT_ONCE = 512

MatchedStatistic = Literal["ratio", "difference"]


def collapse(
    values: Float64[np.ndarray, "*shape pmi frequency distance 3"], axes: tuple[int, ...]
) -> Float64[np.ndarray, "*shape cell 3"]:
    """Sums (or counts) by bins of some of the axes only."""
    others = tuple(axis - 4 for axis in range(3) if axis not in axes)
    kept = values.sum(others)
    return np.asarray(kept.reshape(*values.shape[:-4], -1, 3))


def matched_contrast(
    sums: Float64[np.ndarray, "*shape cell 3"],
    counts: Float64[np.ndarray, "*shape cell 3"],
    **uncertainty: Any,
) -> Contrast:
    """Means of bin means, bins weighed by their number of same-topic pairs, over bins that hold both kinds of pairs.

    ``n_same_topic`` and ``n_different_topic`` count the pairs in those bins; the last axis is as in `PairSums`, and
    what is in its first place is not looked at.
    """
    same, different, n_same, n_different = matched_means(sums, counts)
    unmatched = (counts[..., 1].sum(-1) > 0) & (counts[..., 2].sum(-1) > 0) & (n_same == 0)
    notes = [uncertainty.pop("note", None), NOT_MATCHED if unmatched.any() else None]
    note = "; ".join(filter(None, notes)) or None
    no_words = np.full(same.shape, np.nan), np.zeros(same.shape)
    return Contrast(no_words[0], same, different, no_words[1], n_same, n_different, note=note, **uncertainty)


def matched_means(
    sums: Float64[np.ndarray, "*shape cell 3"],
    counts: Float64[np.ndarray, "*shape cell 3"],
    weights: Float64[np.ndarray, "*#shape cell"] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Same-topic mean, different-topic mean, numbers of pairs; bins weigh what they hold, or what they are told."""
    both = (counts[..., 1] > 0) & (counts[..., 2] > 0)
    weights = np.where(both, counts[..., 1] if weights is None else weights, 0.0)
    means = np.nan_to_num(divide(sums, counts))
    total = weights.sum(-1)
    same, different = (divide((weights * means[..., relation]).sum(-1), total) for relation in (1, 2))
    n_same, n_different = (
        np.asarray(np.where(both, counts[..., relation], 0.0).sum(-1)) for relation in (1, 2)
    )
    return same, different, n_same, n_different


def coverage_of(counts: Float64[np.ndarray, "pmi frequency distance 3"]) -> Float64[np.ndarray, " way"]:
    """The share of same-topic pairs that are in bins with both kinds, for every way of matching."""
    covered = [
        matched_means(counts, counts)[2]
        for counts in (collapse(counts, axes) for axes in ways_of(counts).values())
    ]
    return divide(np.array(covered), counts[..., 1].sum())


def ways_of(values: np.ndarray) -> dict[str, tuple[int, ...]]:
    """The ways of matching; by distance where there are distances."""
    return MATCHED_ON | ({WITH_DISTANCE: (0, 1, 2)} if values.shape[-2] > 1 else {})


@dataclass
class Matching:
    """Gathers sums by bin, and makes contrasts with their uncertainty of them."""

    words: MatchedWords
    bins: Bins
    statistic: MatchedStatistic
    confidence: float
    n_resamples: int
    n_permutations: int
    alternative: Alternative
    seed: int

    def __post_init__(self) -> None:
        codes = pair_codes(self.bins.classes, self.words.same, ~self.words.same).numpy()
        self.codes = codes
        self.shape = (*self.bins.shape, 1, 3)
        self.counts = self._by_code(codes[codes >= 0])

    def _by_code(self, codes: np.ndarray, values: np.ndarray | None = None) -> np.ndarray:
        # Both directions of a pair are in the table; one is enough.
        total = np.bincount(codes, values, minlength=int(np.prod(self.shape)))
        return np.asarray(total.reshape(self.shape) / 2)

    def _blocks(self) -> Iterable[slice]:
        n = len(self.words.ids)
        return (slice(start, min(start + _ROWS_AT_ONCE, n)) for start in range(0, n, _ROWS_AT_ONCE))

    # --- embeddings -----------------------------------------------------------------------------

    def embeddings(self) -> tuple[Contrast, Contrast, dict[str, Contrast]]:
        """Cosine and dot product by way of matching, and by bin."""
        intervals = self._word_intervals()
        contrasts, by_bin = [], {}
        for number, score in enumerate(SCORES):
            table = np.concatenate([self.words.scores(rows)[score] for rows in self._blocks()])
            sums = self._by_code(self.codes[self.codes >= 0], table[self.codes >= 0])
            p_values = self._p_values(sums, self.counts, table, None)
            contrasts.append(self._contrast(sums, self.counts, intervals[:, number], "words", p_values))
            by_bin[score] = self._by_bin(sums, self.counts)
        return contrasts[0], contrasts[1], by_bin

    def _word_intervals(self) -> Float64[np.ndarray, "way score 2"]:
        """Intervals from resampled words. Every different-topic pair weighs as much as matching makes it weigh."""
        if self.n_resamples == 0:
            return np.full((len(MATCHED_ON), len(SCORES), 2), np.nan)
        halves = split_halves(self.words.strata, seed=self.seed)
        n_ends, *ends = self._ends(halves)  # [word, half, code]
        place = np.arange(n_ends.shape[2]) % 3
        intervals = []
        for axes in MATCHED_ON.values():
            weights = self._pair_weights(axes)
            same, different = (np.where(place == wanted, weights, 0.0) for wanted in (1, 2))
            intervals.append(
                word_interval(
                    np.stack([2 * (end @ same).T for end in ends], -1),
                    2 * (n_ends @ same).T,
                    np.stack([2 * (end @ different).T for end in ends], -1),
                    2 * (n_ends @ different).T,
                    self.words.strata,
                    statistic=self.statistic,
                    n_resamples=self.n_resamples,
                    confidence=self.confidence,
                    seed=self.seed,
                )
            )
        return np.stack(intervals)

    def _ends(self, halves: Int64[np.ndarray, " word"]) -> list[Float64[np.ndarray, "word half code"]]:
        """For every word the number of pairs, and their scores, by half of the partner and by code."""
        n_codes = self.counts.size
        found: list[list[np.ndarray]] = [[] for _ in range(1 + len(SCORES))]
        for rows in self._blocks():
            codes = self.codes[rows]
            n = len(codes)
            held = codes >= 0
            cells = ((2 * np.arange(n)[:, None] + halves) * n_codes + codes)[held]
            for parts, values in zip(found, (None, *self.words.scores(rows).values()), strict=True):
                given = None if values is None else values[held]
                total = np.bincount(cells, given, minlength=2 * n * n_codes).astype(np.float64)
                parts.append(total.reshape(n, 2, n_codes))
        return [np.concatenate(parts) for parts in found]

    def _pair_weights(self, axes: tuple[int, ...]) -> Float64[np.ndarray, " code"]:
        """What a pair with a code weighs in the matched means."""
        others = tuple(axis for axis in range(3) if axis not in axes)
        counts = self.counts.sum(others, keepdims=True)
        both = (counts[..., 1] > 0) & (counts[..., 2] > 0)
        weights = np.zeros(self.shape)
        weights[..., 1] = both
        weights[..., 2] = np.where(both, np.nan_to_num(divide(counts[..., 1], counts[..., 2])), 0.0)
        return weights.ravel()

    # --- attention ------------------------------------------------------------------------------

    def attention(
        self, found: ClassSums
    ) -> tuple[Contrast, Contrast, Contrast, Contrast, Float64[np.ndarray, " way"]]:
        """By way of matching, by layer, by head, by bin, and the coverage."""
        sums, counts = (self._with_all_classes(part) for part in (found.heads, found.n_heads))
        total, n_total = sums.sum(0), counts.sum(0)
        p_values = np.full(len(ways_of(total)), np.nan)
        if found.table is not None:
            by_words = [part.sum(2, keepdims=True) for part in (total, n_total)]
            p_values[: len(MATCHED_ON)] = self._p_values(by_words[0], by_words[1], *found.table)
        intervals = self._document_intervals(found, total.shape)
        overall = self._contrast(total, n_total, intervals, "documents", p_values)
        everything = [collapse(part, (0, 1, 2)) for part in (sums, counts)]
        heads = matched_contrast(*everything, index=found.index)
        names = list(zip(found.index["stack"], found.index["layer"], strict=True))
        starts = [place for place, name in enumerate(names) if place == 0 or name != names[place - 1]]
        layers = matched_contrast(
            *(np.add.reduceat(part, starts, axis=0) for part in everything),
            index={name: tuple(found.index[name][start] for start in starts) for name in ("stack", "layer")},
        )
        by_bin = self._by_bin(*(part.sum(2, keepdims=True) for part in (total, n_total)))
        return overall, layers, heads, by_bin, coverage_of(n_total)

    def _with_all_classes(self, part: Float64[np.ndarray, "head class distance 3"]) -> np.ndarray:
        """[head, PMI, frequency, distance, 3]; the last classes may have had no pair."""
        n_classes = int(np.prod(self.bins.shape))
        padded = np.pad(part, ((0, 0), (0, n_classes - part.shape[1]), (0, 0), (0, 0)))
        return np.asarray(padded.reshape(len(part), *self.bins.shape, *part.shape[2:]))

    def _document_intervals(self, found: ClassSums, shape: tuple[int, ...]) -> Float64[np.ndarray, "way 2"]:
        ways = ways_of(np.zeros(shape)).values()
        if self.n_resamples == 0 or len(found.by_document) < MIN_UNITS:
            return np.full((len(ways), 2), np.nan)
        n_distances = shape[2]
        parts = [
            self._with_all_classes(part.reshape(len(part), -1, n_distances, 3))
            for part in found.by_document.rows()[1:]
        ]
        return np.stack([self._document_interval(*(collapse(part, axes) for part in parts)) for axes in ways])

    def _document_interval(
        self, sums: Float64[np.ndarray, "document cell 3"], counts: Float64[np.ndarray, "document cell 3"]
    ) -> Float64[np.ndarray, "2"]:
        """The interval of a matched number, bins and weights being found anew in every resample."""
        used = (counts[..., 1].sum(0) > 0) & (counts[..., 2].sum(0) > 0)
        sums, counts = sums[:, used], counts[:, used]
        if not used.any():
            return np.full(2, np.nan)
        flat = [np.ascontiguousarray(part.reshape(len(part), -1)) for part in (sums, counts)]

        def resampled(weights: Float64[np.ndarray, "resample document"]) -> Float64[np.ndarray, "resample 1"]:
            same, different, _, _ = matched_means(
                *((weights @ part).reshape(len(weights), -1, 3) for part in flat)
            )
            return compare(same, different, self.statistic)[:, None]

        values = resample(resampled, np.array([len(sums)]), n_resamples=self.n_resamples, seed=self.seed)
        by_document = counts.sum(1)
        effective = np.minimum(effective_units(by_document[:, 1:2]), effective_units(by_document[:, 2:3]))
        return np.asarray(percentile_interval(values, effective, confidence=self.confidence)[0])

    # --- both -----------------------------------------------------------------------------------

    def _p_values(
        self,
        sums: Float64[np.ndarray, "pmi frequency 1 3"],
        counts: Float64[np.ndarray, "pmi frequency 1 3"],
        table: np.ndarray,
        n_table: np.ndarray | None,
    ) -> Float64[np.ndarray, " way"]:
        """Permuted labels: words of equal frequency take each other's place; bins weigh as they do in truth."""
        if self.n_permutations == 0:
            return np.full(len(MATCHED_ON), np.nan)
        first, second = np.nonzero(np.triu(self.words.same.numpy(), 1))
        classes = self.bins.classes.numpy()
        generator = np.random.default_rng(self.seed)
        strata = _frequency_strata(classes, self.bins)
        null = []
        for _ in range(self.n_permutations):
            order = _permuted_within(strata, generator)
            one, other = order[first], order[second]
            where, n = classes[one, other], None if n_table is None else n_table[one, other]
            null.append(
                [np.bincount(where, values, minlength=counts.size // 3) for values in (table[one, other], n)]
            )
        same, n_same = (np.reshape(part, (-1, *counts.shape[:-1])) for part in zip(*null, strict=True))
        total, n_total = sums[..., 1:].sum(-1), counts[..., 1:].sum(-1)
        nothing = np.zeros(same.shape)
        permuted = self._judged(
            np.stack([nothing, same, total - same], -1),
            np.stack([nothing, n_same, n_total - n_same], -1),
            counts,
        )
        observed = self._judged(sums[None], counts[None], counts)[:, 0]
        return permutation_p_value(observed, permuted, alternative=self.alternative)

    def _judged(
        self,
        sums: Float64[np.ndarray, "permutation pmi frequency 1 3"],
        numbers: Float64[np.ndarray, "permutation pmi frequency 1 3"],
        counts: Float64[np.ndarray, "pmi frequency 1 3"],
    ) -> Float64[np.ndarray, "way permutation"]:
        """The statistic of permuted labels for every way of matching, with the weights of the true ones."""
        found = []
        for axes in MATCHED_ON.values():
            weights = collapse(counts, axes)
            held = np.where(weights[..., 2] > 0, weights[..., 1], 0.0)
            same, different, _, _ = matched_means(collapse(sums, axes), collapse(numbers, axes), held[None])
            found.append(compare(same, different, self.statistic))
        return np.where(np.isfinite(found), found, np.nan)

    def _contrast(
        self,
        sums: Float64[np.ndarray, "pmi frequency distance 3"],
        counts: Float64[np.ndarray, "pmi frequency distance 3"],
        intervals: Float64[np.ndarray, "way 2"],
        what: str,
        p_values: Float64[np.ndarray, " way"],
    ) -> Contrast:
        ways = ways_of(sums)
        parts = [
            np.stack([_padded(collapse(part, axes), part.size // 3) for axes in ways.values()])
            for part in (sums, counts)
        ]
        uncertainty: dict[str, Any] = {"statistic": self.statistic, "index": {"matched_on": tuple(ways)}}
        if self.n_resamples:
            n_units = len(self.words.ids) if what == "words" else MIN_UNITS
            uncertainty |= {"interval": intervals, "note": no_interval_reason(intervals, n_units, what)}
        if self.n_permutations:
            uncertainty["p_value"] = p_values
        return matched_contrast(*parts, **uncertainty)

    def _by_bin(
        self, sums: Float64[np.ndarray, "pmi frequency 1 3"], counts: Float64[np.ndarray, "pmi frequency 1 3"]
    ) -> Contrast:
        flat, n_flat = sums.reshape(-1, 1, 3), counts.reshape(-1, 1, 3)
        held = np.flatnonzero(n_flat[:, 0, 1:].sum(1) > 0)
        same, different = (divide(flat[held, 0, place], n_flat[held, 0, place]) for place in (1, 2))
        return Contrast(
            np.full(len(held), np.nan), same, different, np.zeros(len(held)), n_flat[held, 0, 1], n_flat[held, 0, 2],
            index=self.bins.index(held),
        )  # fmt: skip


def _padded(cells: Float64[np.ndarray, "cell 3"], n: int) -> Float64[np.ndarray, "n 3"]:
    return np.asarray(np.pad(cells, ((0, n - len(cells)), (0, 0))))


def _frequency_strata(classes: Int64[np.ndarray, "word word"], bins: Bins) -> list[Int64[np.ndarray, "_"]]:
    """The words of every frequency class: the class of a word with itself names it."""
    own = classes.diagonal() % bins.shape[1]
    return [np.flatnonzero(own == value) for value in np.unique(own)]


def _permuted_within(
    strata: list[Int64[np.ndarray, "_"]], generator: np.random.Generator
) -> Int64[np.ndarray, " word"]:
    """Which word takes the place of each, within its stratum."""
    order = np.arange(sum(len(words) for words in strata))
    for words in strata:
        order[words] = generator.permutation(words)
    return order
