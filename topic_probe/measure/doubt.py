"""How much of a number's variance is due to which words its topics have, and to which fit of topics it is of.

**Words.** A number that follows from sums over pairs of words moves, to first order, by ψ_i where word i weighs more:
the sum of the influences of all pairs that it is in, at either end. As words of a topic are a sample of the words that
such a topic has, the number varies with them by Σ_i (ψ_i − ψ̄_t)² n/(n − 1), where ψ̄_t is the mean of the n words of
the topic of word i. Three things are to be seen to:

* What is known of ψ_i holds the noise of these sources, which leaving out sources has counted already. Sources fall by
  their hash into groups, whose noise is independent: the product of ψ_i in two groups has the right mean.
* A pair is in the ψ of two words, so what is of the pair alone counts twice. It is taken out once, as in the variance
  of dyads that is robust to clusters (Aronow, Samii and Assenova, 2015): Σ_i ψ_i² − Σ_(pairs) ψ_ij².
* There are too many words to keep ψ of every one for every head. Every word has a random sign s and falls into one of a
  fixed number of buckets r, and T_r = Σ_(i in r) s_i ψ_i is kept: signs are independent, so Σ_r T_r T'_r has the mean
  Σ_i ψ_i ψ'_i, whatever ψ and ψ' (a count sketch; Charikar, Chen and Farach-Colton, 2002). That ψ is taken around the
  mean of a topic is done to the signs, s_i less their mean in the topic, as Σ_i (s_i − s̄) ψ_i = Σ_i s_i (ψ_i − ψ̄).
  With a second sign h of every word, D_r = Σ_(i in r) s_i Σ_j h_j ψ_ij has Σ_r D_r D'_r = Σ_i Σ_j ψ_ij ψ'_ij, which
  holds every pair twice.

The number is linear in nothing but sums and counts of pairs, and its derivatives are known only in the end. So it is
sums and counts with signs that are added up: for every cell, group of sources and bucket. Bucket and signs are a hash
of the word, so fits of topics, and models, have those of a word in common.

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
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from topic_probe.contrast import DIFFERENT_TOPIC, RESAMPLED, SAME_TOPIC, Contrast, SourceSums
from topic_probe.measure.accumulators import BatchSums
from topic_probe.measure.scores import BatchScores, Pairs, padded, wide
from topic_probe.measure.words import LabelledWords
from topic_probe.text.documents import content_hash
from topic_probe.topics import Topics
from topic_probe.uncertainty import MIN_UNITS, Beside, benjamini_hochberg, divide
from topic_probe.words import form

if TYPE_CHECKING:
    import pandas as pd

# What is kept for every head: sums and counts of so many buckets of words, apart for so many groups of sources.
N_BUCKETS, N_GROUPS = 128, 4

# Of two fits, the spread has one degree of freedom, and an interval of 12.7 standard errors says nothing.
MIN_FITS = 3

# What is summed: scores of same-topic and of different-topic pairs, squares of both, and numbers of both kinds.
_COLUMNS = 5

_SIDES = "query", "key"


def word_hashes(topics: Topics) -> Int64[np.ndarray, " form"]:
    """A hash of every word, the same in all topics that know how it is written; of bare ids one of its entry."""
    first = np.unique(topics.form_of_word.numpy(), return_index=True)[1]
    read = [form(topics.texts[place], topics.one_word) if topics.texts else "" for place in first]
    entries = topics.words[torch.from_numpy(first)].tolist()
    named = [word or f"entry {entry}" for word, entry in zip(read, entries, strict=True)]
    return np.array([content_hash(name.encode("utf-8", "surrogatepass")) for name in named])


def _within_strata(
    signs: Float64[np.ndarray, "form bucket"], strata: Int64[np.ndarray, " form"]
) -> tuple[Float64[np.ndarray, "form bucket"], Float64[np.ndarray, "form 5"]]:
    """Signs less their mean in the topic, and what sums are multiplied with because that takes too much away."""
    _, place, sizes = np.unique(strata, return_inverse=True, return_counts=True)
    together = sizes < MIN_UNITS
    if 0 < sizes[together].sum() < MIN_UNITS and not together.all():
        together |= sizes == sizes[~together].min()
    _, place, sizes = np.unique(np.where(together[place], -1, place), return_inverse=True, return_counts=True)
    means = np.zeros((len(sizes), signs.shape[1]))
    np.add.at(means, place, signs)
    n = np.maximum(sizes, MIN_UNITS)[place]  # of fewer in all nothing is reported
    same, other = np.sqrt(n / (n - 4)), np.sqrt(n / (n - 1))
    return signs - (means / sizes[:, None])[place], np.stack([same, other, other, same, other], 1)


class WordEffects(BatchSums):
    """Sums of pairs with the signs of their words, by bucket and group of sources: what words do to a number."""

    def __init__(self, topics: Topics, n_cells: int) -> None:
        words = LabelledWords(topics, torch.arange(len(topics.words)))
        hashes = word_hashes(topics).view(np.uint64)
        sign, half = (1.0 - 2.0 * ((hashes >> np.uint64(bit)) & np.uint64(1)) for bit in (40, 41))
        plain = np.zeros((words.n_forms, N_BUCKETS))
        plain[np.arange(words.n_forms), hashes % np.uint64(N_BUCKETS)] = sign
        self.form = words.form.numpy()
        centred, scales = _within_strata(plain, words.strata)
        tables = {"signs": np.stack([centred, plain], 1), "scales": scales, "half": half}
        self.tables = {name: torch.from_numpy(table)[words.form] for name, table in tables.items()}
        self.sums: dict[str, np.ndarray] = {
            "of_words": np.zeros((n_cells, N_GROUPS, 2, _COLUMNS, N_BUCKETS)),
            "of_groups": np.zeros((n_cells, N_GROUPS, _COLUMNS)),
            "pairs_of_words": np.zeros(words.n_forms),
        }

    def prepare(self, pairs: Pairs, device: torch.device) -> Mapping[str, Any]:
        """Signs of the words on every side."""
        found: dict[str, Any] = {}
        for name, units, n in zip(_SIDES, (pairs.query, pairs.key), pairs.relations.shape[1:], strict=True):
            places = padded([words.places for words in units], 0, least=n)
            found |= {f"{name} {which}": table[places].to(device) for which, table in self.tables.items()}
            found[f"{name} places"] = places.numpy()
        return found

    def score(self, scores: BatchScores, index: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """Sums and counts with signs, of all documents of a group of sources together."""
        group = torch.from_numpy(groups_of(scores.sources)).to(scores.values.device)
        of_group = wide(
            (group == torch.arange(N_GROUPS, device=group.device)[:, None]).to(scores.values.dtype)
        )
        found, of_words = {}, []
        for name, ends in zip(_SIDES, _ends(scores, index), strict=False):
            found[f"{name} pairs"] = ends[:, 0, :, 0, 3:].sum(2)
            ends *= index[f"{name} scales"].to(ends)[:, None, :, None]
            of_words.append(torch.einsum("dcnhk,dnhr->dchkr", ends, index[f"{name} signs"].to(ends)))
        of_documents = torch.cat([wide(scores.binned.sum(3)[:, :, 1:]), scores.squares.sum(2)[..., None]], 2)
        n_of_documents = (
            scores.counts.sum(2)[:, None, 1:].to(of_documents).expand(-1, scores.values.shape[1], -1)
        )
        return found | {
            "of_words": torch.einsum("gd,dchkr->cghkr", of_group, sum(of_words)),
            "of_groups": torch.einsum("gd,dck->cgk", of_group, torch.cat([of_documents, n_of_documents], 2)),
        }

    def add(
        self, scores: BatchScores, found: Mapping[str, np.ndarray], kept: Bool[np.ndarray, " document"]
    ) -> None:
        """Adds all documents."""
        for name in ("of_words", "of_groups"):
            self.sums[name][scores.cells] += found[name]
        for name in _SIDES:
            if f"{name} pairs" in found:
                np.add.at(
                    self.sums["pairs_of_words"], self.form[found[f"{name} places"]], found[f"{name} pairs"]
                )


def groups_of(sources: Int64[np.ndarray, " source"]) -> Int64[np.ndarray, " source"]:
    """The group of sources that every one is in, by other bits of its hash than blocks go by."""
    return ((sources.view(np.uint64) >> np.uint64(40)) % np.uint64(N_GROUPS)).astype(np.int64)


def _ends(
    scores: BatchScores, index: Mapping[str, Any]
) -> list[Float[Tensor, "document cell word half column"]]:
    """What every word has as an end of its pairs, plain and with the second sign of its partners.

    One for queries and keys together, where these are the same words; otherwise one for each.
    """
    relations, values = scores.pairs.relations, scores.values
    total, n = scores.binned[:, :, 1:].sum((2, 3)), scores.counts[:, 1:].sum((1, 2))
    # Squares around the mean, because little of the variance is left of others in float32.
    mean = (total / n.clamp(min=1)[:, None])[..., None, None]
    squares, seen = (values - mean).square() * scores.seen[:, None], scores.seen[:, None].to(values.dtype)
    tables, found = [values, squares, seen], []
    if within := scores.pairs.query is scores.pairs.key:
        tables = [table + table.mT for table in tables]
    for partner in ("query",) if within else ("key", "query"):
        half = index[f"{partner} half"].to(values)
        partners = torch.stack([torch.ones_like(half), half], 2)
        kinds = torch.stack([relations == kind for kind in (SAME_TOPIC, DIFFERENT_TOPIC)], 3).to(values.dtype)
        # [document, word, partner, half, kind]
        chosen = partners[:, None, :, :, None] * kinds[:, :, :, None]
        both = chosen.sum(4)
        of_scores, counts = (
            wide(torch.einsum("dcnm,dnmhk->dcnhk", t, chosen)) for t in (tables[0], tables[2])
        )
        around = wide(torch.einsum("dcnm,dnmh->dcnh", tables[1], both))
        middle = wide(mean)
        of_squares = around + middle * (2 * of_scores.sum(4) - middle * counts.sum(4))
        counts = counts.expand(-1, values.shape[1], -1, -1, -1)
        found.append(torch.cat([of_scores, of_squares[..., None], counts], 4))
        relations, tables = relations.mT, [table.mT for table in tables]
    return found


# ---------------------------------------------------------------------------- variances


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
        same, different, both, squares = np.moveaxis(_means(self.totals), -1, 0)
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
        means, n_whole = _means(whole), _numbers(whole)
        sums, n = (
            np.stack([part[..., 0], part[..., 1], part[..., 0] + part[..., 1], part[..., 2]], -1),
            _numbers(part),
        )
        gradient = self.gradient.reshape(len(self.gradient), *(1 for _ in part.shape[2:]), 4)
        return np.asarray((gradient * divide(sums - means * n, n_whole)).sum(-1))


def _numbers(sums: Float64[np.ndarray, "*shape 5"]) -> Float64[np.ndarray, "*shape 4"]:
    both = sums[..., 3] + sums[..., 4]
    return np.stack([sums[..., 3], sums[..., 4], both, both], -1)


def _means(sums: Float64[np.ndarray, "*shape 5"]) -> Float64[np.ndarray, "*shape 4"]:
    parts = np.stack([sums[..., 0], sums[..., 1], sums[..., 0] + sums[..., 1], sums[..., 2]], -1)
    return divide(parts, _numbers(sums))


def words_variance(
    number: _Number,
    of_words: Float64[np.ndarray, "cell group 2 5 bucket"],
    of_groups: Float64[np.ndarray, "cell group 5"],
) -> tuple[Float64[np.ndarray, " cell"], Float64[np.ndarray, " cell"]]:
    """How much a number varies with words, and the variance of that estimate, from how much buckets differ.

    NaN where fewer than two groups of sources have pairs of both kinds.
    """
    moved = number.moved(np.moveaxis(of_words, -1, -2), of_groups[:, :, None, None])
    of_pairs = of_groups[..., 3:]
    weight = np.nan_to_num(divide(of_pairs, of_pairs.sum(1, keepdims=True))).min(-1)
    weighed = np.nan_to_num(moved) * weight[:, :, None, None]
    # Products of all groups with all others.
    products = weighed.sum(1) ** 2 - (weighed**2).sum(1)
    together = weight.sum(1) ** 2 - (weight**2).sum(1)
    of_buckets = divide(products[:, 0] - products[:, 1] / 2, np.where(together > 1e-9, together, 0)[:, None])
    of_words, of_ends = (
        divide(products[:, kind].sum(1), np.where(together > 1e-9, together, 0)) for kind in (0, 1)
    )
    # What pairs are in it twice is between nothing and all of it, which is true and not always found.
    variance = of_words - np.clip(of_ends, 0, np.maximum(of_words, 0)) / 2
    spread = of_buckets - of_buckets.mean(1, keepdims=True)
    return variance, (spread**2).sum(1) * N_BUCKETS / (N_BUCKETS - 1)


@dataclass(frozen=True)
class Doubt:
    """What words and fits bring to the variance of what was measured, from the sums of every fit.

    Attributes:
        fits: the sums of every fit by name; of one fit, these alone.
        pooled: the sums of all of them.
    """

    fits: Sequence[Mapping[str, Any]]
    pooled: Mapping[str, Any]
    words: bool = True

    @property
    def reason(self) -> str | None:
        """Why there is no interval of anything, if there is none."""
        if 1 < len(self.fits) < MIN_FITS:
            return f"no interval: {len(self.fits)} fits of topics, at least {MIN_FITS} are needed"
        seen = [int((sums["pairs_of_words"] > 0).sum()) for sums in self.fits] if self.words else []
        if seen and min(seen) < MIN_UNITS:
            return f"no interval: {min(seen)} words in pairs, at least {MIN_UNITS} are needed"
        return None

    def explained(self, contrast: Contrast) -> Contrast:
        """A contrast that says so where words or fits are too few."""
        return (
            contrast
            if self.reason is None or contrast.interval is None
            else replace(contrast, note=self.reason)
        )

    def beside(self, kind: str, starts: Int64[np.ndarray, " group"] | None = None) -> Beside:
        """The variance of a number beside that of sources: of every cell, or of groups of cells that begin there."""
        if starts is None:
            starts = np.arange(*self.pooled["by_source"].shape)
        totals = np.add.reduceat(_totals(self.pooled["by_source"]).sum(0), starts)
        number = _Number(totals, kind)
        words, of_words = self._words(number, starts)
        fits, of_fits = self._fits(number, starts)
        return Beside(words, fits, of_words + of_fits)

    def _words(
        self, number: _Number, starts: Int64[np.ndarray, " group"]
    ) -> tuple[Float64[np.ndarray, " cell"], Float64[np.ndarray, " cell"]]:
        nothing = np.zeros(len(starts))
        if not self.words:
            return nothing, nothing
        degrees = min(degrees_of_words(sums["pairs_of_words"]) for sums in self.fits)
        variance, of_variance = words_variance(
            number, *(np.add.reduceat(self.pooled[name], starts) for name in ("of_words", "of_groups"))
        )
        if degrees == 0:
            return nothing * np.nan, nothing
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
        keys = self.pooled["by_source"].rows()[0]
        # [fit, source, cell]
        moved = np.zeros((k, len(keys), len(starts)))
        for of_fit, sums in zip(moved, self.fits, strict=True):
            own = sums["by_source"]
            held = own.rows()[0]
            at = np.searchsorted(keys, held % own.limit if self.pooled["by_source"].folded else held)
            parts = np.add.reduceat(_totals(own), starts, axis=1)
            np.add.at(
                of_fit, at, np.moveaxis(number.moved(np.moveaxis(parts, 0, 1), number.totals[:, None]), 0, 1)
            )
        share = _share_of_pairs(self.fits, starts)
        apart = moved - share[:, None] * moved.sum(0)
        of_fits = (apart.sum(1) ** 2).sum(0)
        n = len(keys)
        noise = ((apart - apart.mean(1, keepdims=True)) ** 2).sum((0, 1)) * n / (n - 1)
        if self.words:
            whole = np.add.reduceat(self.pooled["of_words"], starts)
            groups = np.add.reduceat(self.pooled["of_groups"], starts)
            for own_share, sums in zip(share, self.fits, strict=True):
                rest = (
                    np.add.reduceat(sums["of_words"], starts) - own_share[:, None, None, None, None] * whole
                )
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
    _, sums, counts, squares = by_source.rows()
    return np.concatenate([sums[..., 1:], squares[..., None], counts[..., 1:]], -1)


def pooled_sums(fits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of several fits together; what only one fit knows is in none."""
    return {name: reduce(add, (sums[name] for sums in fits)) for name in fits[0] if name != "pairs_of_words"}


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
    notes = [f"intervals include other {', '.join(named[:-1])} and {named[-1]}{of_what}"]
    if fits is not None:
        ratios = np.asarray(fits.ratio)
        notes.append(
            f"{len(ratios)} fits of topics: ratio {ratios.min():.4g} to {ratios.max():.4g}, standard deviation "
            f"{ratios.std(ddof=1):.2g}; p-values are twice the mean of theirs"
        )
    return notes
