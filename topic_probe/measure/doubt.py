"""How much of a number's variance is due to which words its topics have, and to which fit of topics it is of.

**Words.** A number that follows from sums over pairs of words moves, to first order, by ψ_i where word i weighs more:
the sum of the influences of all pairs that it is in, at either end. As words of a topic are a sample of the words that
such a topic has, the number varies with them by Σ_i (ψ_i − ψ̄_t)² n/(n − 1), where ψ̄_t is the mean of the n words of
the topic of word i. Two things are to be seen to:

* What is known of ψ_i holds the noise of these sources, which leaving out sources has counted already. Sources fall by
  their hash into groups, whose noise is independent: the product of ψ_i in two groups has the right mean.
* A pair is in the ψ of two words, so what is of the pair alone counts twice. It is taken out once, as in the variance
  of dyads that is robust to clusters (Aronow, Samii and Assenova, 2015): Σ_i ψ_i² − Σ_(pairs) ψ_ij². There are too many
  pairs to keep ψ_ij of each. Every word has a random sign s, and D_i = Σ_j s_j ψ_ij is kept: signs are independent, so
  Σ_i D_i D'_i has the mean Σ_i Σ_j ψ_ij ψ'_ij, which holds every pair twice.

The number is linear in nothing but sums and counts of pairs, and its derivatives are known only in the end. So it is
sums and counts that are added up: for every word, layer and group of sources, 320 bytes. Heads of a layer are pooled,
so nothing is known of single heads.

**Fits.** A number of k fits is that of their pairs together. Their spread gives its variance as it would that of a mean
of k numbers; what sources and words alone make of that spread is known, as above, and taken off, because it is counted
there.

**Together.** Var θ = E Var(θ | words, fits) + Var E(θ | words, fits): variances add up. Degrees of freedom are those of
the sum (Satterthwaite).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from topic_probe.contrast import DIFFERENT_TOPIC, RESAMPLED, SAME_TOPIC, Beside, Contrast
from topic_probe.estimate import MIN_UNITS, benjamini_hochberg, divide
from topic_probe.measure.accumulators import BatchSums
from topic_probe.measure.scores import BatchScores, Pairs, padded, wide
from topic_probe.measure.words import LabelledWords
from topic_probe.sums import SourceSums, columns
from topic_probe.topics import Topics
from topic_probe.words import form

if TYPE_CHECKING:
    import pandas as pd

# Sums of words are kept apart for so many groups of sources.
N_GROUPS = 4

# Of two fits, the spread has one degree of freedom, and an interval of 12.7 standard errors says nothing.
MIN_FITS = 3

# What is summed: scores of same-topic and of different-topic pairs, squares of both, and numbers of both kinds.
_COLUMNS = 5

_SIDES = "query", "key"


def names_of_words(topics: Topics) -> list[str]:
    """What every word is called in all topics that know how it is written; of bare ids its entry."""
    words = LabelledWords(topics, torch.arange(len(topics.words)))
    first = np.unique(words.form.numpy(), return_index=True)[1]
    read = [form(topics.texts[place], topics.one_word) if topics.texts else "" for place in first]
    entries = topics.words[torch.from_numpy(first)].tolist()
    return [word or f"entry {entry}" for word, entry in zip(read, entries, strict=True)]


class WordEffects(BatchSums):
    """Sums of the pairs that every word is in, by layer and group of sources: what words do to a number.

    Attributes:
        strata: for every word the words that it is a sample with, which are those of its topic; of topics of fewer than
            eight words, those of all of them. −1 for words of other fits.
    """

    def __init__(
        self, topics: Topics, rows: Int64[np.ndarray, " cell"], names: Sequence[str] | None = None
    ) -> None:
        """Those of topics.

        Args:
            topics: which words there are.
            rows: for every cell the row that it is pooled in: its layer, counted through stacks.
            names: the words that have a place, those of other fits included; None: the words of these topics.
        """
        words, own = LabelledWords(topics, torch.arange(len(topics.words))), names_of_words(topics)
        every = np.unique(own if names is None else names)
        at = np.searchsorted(every, own)
        self.rows, self.place = rows, torch.from_numpy(at)[words.form]
        self.strata = np.full(len(every), -1)
        self.strata[at] = _large_strata(words.strata)
        self.sign = torch.from_numpy(np.random.default_rng(0).choice([-1.0, 1.0], len(every)))
        shape = (rows.max() + 1, 2, N_GROUPS, len(every), _COLUMNS)
        self.sums: dict[str, np.ndarray] = {"of_words": np.zeros(shape)}

    def prepare(self, pairs: Pairs, device: torch.device) -> Mapping[str, Any]:
        """The sign of the words on every side, and the number of each among those that any document has."""
        sides = zip((pairs.query, pairs.key), pairs.relations.shape[1:], strict=True)
        query, key = (self.place[padded([words.places for words in units], 0, least=n)] for units, n in sides)
        held, number = torch.unique(torch.cat([query.flatten(), key.flatten()]), return_inverse=True)
        of_query, of_key = number.split([query.numel(), key.numel()])
        return {
            "held": held.numpy(),
            "query": of_query.view_as(query).to(device), "key": of_key.view_as(key).to(device),
            "sign of query": self.sign[query].to(device), "sign of key": self.sign[key].to(device),
        }  # fmt: skip

    def score(self, scores: BatchScores, index: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """Sums and counts of every word, plain and with the signs of its partners, by group of sources."""
        rows, row = np.unique(self.rows[scores.cells], return_inverse=True)
        values, n_held = wide(scores.values), len(index["held"])
        cells = torch.nn.functional.one_hot(torch.from_numpy(row)).T.to(values)
        kinds = torch.stack([scores.relations == kind for kind in (SAME_TOPIC, DIFFERENT_TOPIC)], 3)
        kinds = kinds.to(values)
        pooled, squares = (torch.einsum("rc,dcnm->rdnm", cells, part) for part in (values, values.square()))
        counts = cells.sum(1)[:, None, None, None, None] * kinds
        # [row, document, query, key, column]
        pairs = torch.cat([pooled[..., None] * kinds, (squares * kinds.sum(3))[..., None], counts], 4)
        group = torch.from_numpy(groups_of(scores.sources)).to(values.device)[:, None]
        of_words = values.new_zeros(len(rows), 2, N_GROUPS * n_held, _COLUMNS)
        of_ends = ("query", "key", 3, "rdnmk,dm->rdnk"), ("key", "query", 2, "rdnmk,dn->rdmk")
        for end, partner, axis, product in of_ends:
            signed = torch.einsum(product, pairs, index[f"sign of {partner}"].to(values))
            ends = torch.stack([pairs.sum(axis), signed], 1)
            of_words.index_add_(2, (group * n_held + index[end]).flatten(), ends.flatten(2, 3))
        return {"of_words": of_words.view(len(rows), 2, N_GROUPS, n_held, _COLUMNS)}

    def add(
        self, scores: BatchScores, found: Mapping[str, np.ndarray], kept: Bool[np.ndarray, " document"]
    ) -> None:
        """Adds all documents."""
        rows = np.unique(self.rows[scores.cells])
        at = np.ix_(rows, np.arange(2), np.arange(N_GROUPS), found["held"])
        self.sums["of_words"][at] += found["of_words"]


def word_effects(
    every: Sequence[Topics], rows: Int64[np.ndarray, " cell"], *, together: bool = False
) -> list[WordEffects]:
    """What words do, of each of the topics; ``together`` where these are fits, which have words in common."""
    if not together:
        return [WordEffects(topics, rows) for topics in every]
    names = [name for topics in every for name in names_of_words(topics)]
    return [WordEffects(topics, rows, names) for topics in every]


def groups_of(sources: Int64[np.ndarray, " source"]) -> Int64[np.ndarray, " source"]:
    """The group of sources that every one is in, by other bits of its hash than blocks go by."""
    return ((sources.view(np.uint64) >> np.uint64(40)) % np.uint64(N_GROUPS)).astype(np.int64)


# ---------------------------------------------------------------------------- variances


def _large_strata(strata: Int64[np.ndarray, " word"]) -> Int64[np.ndarray, " word"]:
    """The strata with those of fewer than eight words taken together, and with the smallest other if these are few."""
    _, place, sizes = np.unique(strata, return_inverse=True, return_counts=True)
    together = sizes < MIN_UNITS
    if 0 < sizes[together].sum() < MIN_UNITS and not together.all():
        together |= sizes == sizes[~together].min()
    return np.where(together[place], len(sizes), place)


def _within_strata(
    of_words: Float64[np.ndarray, "row 2 group word 5"], strata: Int64[np.ndarray, " word"]
) -> Float64[np.ndarray, "row 2 group word 5"]:
    """What every word adds less the mean of its stratum, scaled because that takes too much away; signed sums as well.

    The mean of signed sums is 0.
    """
    found = np.zeros_like(of_words)
    for stratum in np.unique(strata[strata >= 0]):
        at = np.flatnonzero(strata == stratum)
        own = of_words[:, :, :, at]
        own[:, 0] -= own[:, 0].mean(2, keepdims=True)
        n = max(len(at), MIN_UNITS)  # of fewer in all nothing is reported
        same, other = np.sqrt(n / (n - 4)), np.sqrt(n / (n - 1))
        found[:, :, :, at] = own * [same, other, other, same, other]
    return found


@dataclass(frozen=True)
class _Number:
    """A number that follows from means of pairs, and how it moves with them, for every cell.

    Attributes:
        totals: sums and counts over everything.
        kind: "ratio" stands for its logarithm.
    """

    totals: Float64[np.ndarray, "cell 5"]
    kind: str

    @cached_property
    def gradient(self) -> Float64[np.ndarray, "cell 4"]:
        """Its derivatives by the means of same-topic and of different-topic scores, of both, and of their squares."""
        same, different, both, squares = np.moveaxis(divide(*_moments(self.totals)), -1, 0)
        nothing, one = np.zeros_like(same), np.ones_like(same)
        if self.kind == "ratio":
            columns = [divide(one, same), -divide(one, different), nothing, nothing]
        elif self.kind == "difference":
            columns = [one, -one, nothing, nothing]
        else:
            variance = squares - both**2
            spread = np.sqrt(np.maximum(variance, 0))
            number = divide(same - different, spread)
            half = divide(number, 2 * variance)
            columns = [divide(one, spread), -divide(one, spread), 2 * both * half, -half]
        return np.stack(columns, -1)

    def moved(
        self, part: Float64[np.ndarray, "cell *shape 5"], whole: Float64[np.ndarray, "cell *#shape 5"]
    ) -> Float64[np.ndarray, "cell *shape"]:
        """How far parts of sums move the number, around the means of a whole that they are parts of."""
        (sums, n), (of_whole, n_whole) = _moments(part), _moments(whole)
        gradient = self.gradient.reshape(len(self.gradient), *(1 for _ in part.shape[2:]), 4)
        return np.asarray((gradient * divide(sums - divide(of_whole, n_whole) * n, n_whole)).sum(-1))


def _moments(
    columns: Float64[np.ndarray, "*shape 5"],
) -> tuple[Float64[np.ndarray, "*shape 4"], Float64[np.ndarray, "*shape 4"]]:
    """Sums of same-topic and of different-topic scores, of both, and of their squares, and of how many each."""
    same, different, squares, n_same, n_different = np.moveaxis(columns, -1, 0)
    n = n_same + n_different
    sums = [same, different, same + different, squares]
    return np.stack(sums, -1), np.stack([n_same, n_different, n, n], -1)


def words_variance(
    number: _Number,
    of_words: Float64[np.ndarray, "cell 2 group word 5"],
    of_groups: Float64[np.ndarray, "cell group 5"],
) -> tuple[Float64[np.ndarray, " cell"], Float64[np.ndarray, " cell"]]:
    """How much a number varies with words, and the variance of that estimate, from how much words differ.

    NaN where fewer than two groups of sources have pairs of both kinds.
    """
    moved = number.moved(of_words, of_groups[:, None, :, None])
    of_pairs = of_groups[..., 3:]
    weight = np.nan_to_num(divide(of_pairs, of_pairs.sum(1, keepdims=True))).min(-1)
    weighed = np.nan_to_num(moved) * weight[:, None, :, None]
    # Products of all groups with all others.
    products = weighed.sum(2) ** 2 - (weighed**2).sum(2)
    together = weight.sum(1) ** 2 - (weight**2).sum(1)
    found = divide(products, np.where(together > 1e-9, together, 0)[:, None, None])
    of_words, of_ends = found[:, 0].sum(1), found[:, 1].sum(1)
    # What pairs are in it twice is between nothing and all of it, which is true and not always found.
    variance = of_words - np.clip(of_ends, 0, np.maximum(of_words, 0)) / 2
    of_each = found[:, 0] - found[:, 1] / 2
    n, spread = of_each.shape[1], of_each - of_each.mean(1, keepdims=True)
    return variance, (spread**2).sum(1) * n / (n - 1)


@dataclass(frozen=True)
class Doubt:
    """What words and fits bring to the variance of what was measured, from the sums of every fit.

    Attributes:
        fits: the sums of every fit by name; of one fit, these alone.
        by_source: sums by source of all of them.
        rows: for every cell the row that `WordEffects` has pooled it in.
        strata: of every fit, the topics of words, where these are resampled; otherwise None.
    """

    fits: Sequence[Mapping[str, Any]]
    by_source: SourceSums
    rows: Int64[np.ndarray, " cell"]
    strata: Sequence[Int64[np.ndarray, " word"]] | None

    @cached_property
    def pairs_of_words(self) -> list[Float64[np.ndarray, " word"]]:
        """In how many pairs every word is, in every fit."""
        return [sums["of_words"][:, 0, :, :, 3:].sum((0, 1, 3)) for sums in self.fits]

    @cached_property
    def _of_words(self) -> list[Float64[np.ndarray, "row 2 group word 5"]]:
        """What words add, in every fit."""
        assert self.strata is not None
        parts = zip(self.fits, self.strata, strict=True)
        return [_within_strata(sums["of_words"], strata) for sums, strata in parts]

    @cached_property
    def _of_groups(self) -> Float64[np.ndarray, "row group 5"]:
        """Sums of groups of sources, in all fits: every pair is in those of two words."""
        return reduce(add, (sums["of_words"][:, 0].sum(2) / 2 for sums in self.fits))

    @property
    def reason(self) -> str | None:
        """Why there is no interval of anything, if there is none."""
        if 1 < len(self.fits) < MIN_FITS:
            return f"no interval: {len(self.fits)} fits of topics, at least {MIN_FITS} are needed"
        seen = [] if self.strata is None else [int((pairs > 0).sum()) for pairs in self.pairs_of_words]
        if seen and min(seen) < MIN_UNITS:
            return f"no interval: {min(seen)} words in pairs, at least {MIN_UNITS} are needed"
        return None

    def explained(self, contrast: Contrast) -> Contrast:
        """A contrast that says so where words or fits are too few."""
        if self.reason is None or contrast.interval is None:
            return contrast
        return replace(contrast, note=self.reason)

    def beside(self, kind: str, starts: Int64[np.ndarray, " group"]) -> Beside:
        """The variance of a number beside that of sources, of groups of cells that begin there: of whole rows."""
        totals = np.add.reduceat(_totals(self.by_source).sum(0), starts)
        number = _Number(totals, kind)
        words, of_words = self._words(number, starts)
        fits, of_fits = self._fits(number, starts)
        return Beside(words, fits, of_words + of_fits)

    def _pooled(self, of_rows: np.ndarray, starts: Int64[np.ndarray, " group"]) -> np.ndarray:
        """The rows of every group of cells together."""
        return np.add.reduceat(of_rows, self.rows[starts])

    def _words(
        self, number: _Number, starts: Int64[np.ndarray, " group"]
    ) -> tuple[Float64[np.ndarray, " group"], Float64[np.ndarray, " group"]]:
        nothing = np.zeros(len(starts))
        if self.strata is None:
            return nothing, nothing
        degrees = min(map(degrees_of_words, self.pairs_of_words))
        if degrees == 0:
            return nothing * np.nan, nothing
        of_words, of_groups = reduce(add, self._of_words), self._of_groups
        variance, of_variance = words_variance(
            number, self._pooled(of_words, starts), self._pooled(of_groups, starts)
        )
        there = ~(variance <= 0)
        of_variance = np.maximum(of_variance, 2 * variance**2 / degrees)
        return np.where(there, variance, 0), np.where(there, of_variance, 0)

    def _fits(
        self, number: _Number, starts: Int64[np.ndarray, " group"]
    ) -> tuple[Float64[np.ndarray, " cell"], Float64[np.ndarray, " cell"]]:
        """The spread of fits, less what sources and words make of it."""
        nothing, k = np.zeros(len(starts)), len(self.fits)
        if k == 1:
            return nothing, nothing
        if k < MIN_FITS:
            return nothing * np.nan, nothing
        keys = self.by_source.rows()[0]
        # [fit, source, cell]
        moved = np.zeros((k, len(keys), len(starts)))
        for of_fit, sums in zip(moved, self.fits, strict=True):
            own = sums["by_source"]
            held = own.rows()[0]
            at = np.searchsorted(keys, held % own.limit if self.by_source.folded else held)
            parts = np.add.reduceat(_totals(own), starts, axis=1)
            np.add.at(
                of_fit, at, np.moveaxis(number.moved(np.moveaxis(parts, 0, 1), number.totals[:, None]), 0, 1)
            )
        share = _share_of_pairs(self.fits, starts)
        apart = moved - share[:, None] * moved.sum(0)
        of_fits = (apart.sum(1) ** 2).sum(0)
        n = len(keys)
        noise = ((apart - apart.mean(1, keepdims=True)) ** 2).sum((0, 1)) * n / (n - 1)
        if self.strata is not None:
            of_fits_words = [self._pooled(part, starts) for part in self._of_words]
            whole, groups = reduce(add, of_fits_words), self._pooled(self._of_groups, starts)
            for own_share, own in zip(share, of_fits_words, strict=True):
                rest = own - own_share[:, None, None, None, None] * whole
                noise = noise + np.nan_to_num(words_variance(number, rest, groups)[0])
        raw = of_fits * k / (k - 1)
        variance = (of_fits - noise) * k / (k - 1)
        there = variance > 0
        return np.where(there, variance, 0), np.where(there, 2 * raw**2 / (k - 1), 0)


def _share_of_pairs(
    fits: Sequence[Mapping[str, Any]], starts: Int64[np.ndarray, " group"]
) -> Float64[np.ndarray, "fit cell"]:
    """What share every fit has of all same-topic pairs."""
    n = np.stack([np.add.reduceat(sums["by_source"].total().counts[..., 1], starts) for sums in fits])
    return divide(n, n.sum(0))


def degrees_of_words(pairs: Float64[np.ndarray, " form"]) -> float:
    """How many degrees of freedom a variance of words has; 0 where there are fewer than eight.

    A word that is in n of the pairs moves a number as n, so what Σ ψ² estimates varies as that of squares that weigh n²
    (Satterthwaite): a few frequent words may be most of it.
    """
    if (pairs > 0).sum() < MIN_UNITS:
        return 0.0
    return float((pairs**2).sum() ** 2 / (pairs**4).sum())


def _totals(by_source: SourceSums) -> Float64[np.ndarray, "source cell 5"]:
    sums, counts, squares = columns(by_source.rows()[1])
    return np.concatenate([sums[..., 1:], squares[..., None], counts[..., 1:]], -1)


def pooled_sums(fits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of several fits together."""
    return {name: reduce(add, (sums[name] for sums in fits)) for name in fits[0]}


# ---------------------------------------------------------------------------- reports


def check_fits(every: Sequence[Topics] | None) -> None:
    """ValueError where other fits are to be included, and there is but one."""
    if every is None or len(every) < 2:
        raise ValueError(
            "resample names 'fits', which needs topics of several fits in a list, such as those of six seeds: fit with "
            "seed=0 to 5, pass [topics, …], or leave 'fits' out"
        )


def with_p_values_of_fits(contrast: Contrast, fits: Sequence[Contrast]) -> Contrast:
    """The contrast with twice the mean of the p-values of fits: a p-value, however they depend on each other."""
    if any(fit.p_value is None for fit in fits):
        return contrast
    mean = np.stack([np.asarray(fit.p_value) for fit in fits]).mean(0)
    p_value = np.asarray(np.minimum(1, 2 * mean))
    return replace(contrast, p_value=p_value, q_value=benjamini_hochberg(p_value))


def variance_table(contrast: Contrast, resampled: Sequence[str]) -> "pd.DataFrame | None":
    """How much of the variance of a number each thing brings that it may vary with; None where only one does."""
    import pandas as pd

    shares = contrast.variance_shares
    if shares is None or np.isnan(shares).any():
        return None
    rows = {name: share for name, share in zip(RESAMPLED, shares.tolist(), strict=True) if name in resampled}
    return pd.DataFrame(
        {"varies with": [f"other {name}" for name in rows], "share of the variance": rows.values()}
    )


def about_variance(contrast: Contrast, provenance: Mapping[str, Any], fits: Contrast | None) -> list[str]:
    """What an interval includes beside other sources, and how far fits are apart."""
    resampled = provenance["options"].get("resample", ())
    if contrast.interval is None or len(resampled) < 2:
        return []
    named, shares = list(resampled), contrast.variance_shares
    if shares is not None and not np.isnan(shares).any():
        named = [f"{name} ({shares[RESAMPLED.index(name)]:.0%})" for name in resampled]
    of_what = "" if named == list(resampled) else ", with their share of the variance of the overall ratio"
    notes = [
        f"intervals of overall, stacks and layers include other {', '.join(named[:-1])} and {named[-1]}{of_what}; "
        "those of heads include other sources alone"
    ]
    if fits is not None:
        ratios = np.asarray(fits.ratio)
        notes.append(
            f"{len(ratios)} fits of topics: ratio {ratios.min():.4g} to {ratios.max():.4g}, standard deviation "
            f"{ratios.std(ddof=1):.2g}; p-values are twice the mean of theirs"
        )
    return notes
