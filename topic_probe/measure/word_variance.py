"""How much of a number's variance is due to which words its topics have.

A number that follows from sums over pairs of words moves, to first order, by ψ_i where word i weighs more: the sum of
the influences of all pairs that it is in, at either end. As words of a topic are a sample of the words that such a
topic has, the number varies with them by Σ_i (ψ_i − ψ̄_t)² n/(n − 1), where ψ̄_t is the mean of the n words of the topic
of word i. Two things are to be seen to:

* What is known of ψ_i holds the noise of these sources, which leaving out sources has counted already. Sources fall by
  their hash into groups, whose noise is independent: the product of ψ_i in two groups has the right mean.
* A pair is in the ψ of two words, so what is of the pair alone counts twice. It is taken out once, as in the variance
  of dyads that is robust to clusters (Aronow, Samii and Assenova, 2015): Σ_i ψ_i² − Σ_(pairs) ψ_ij². There are too many
  pairs to keep ψ_ij of each. Every word has a random sign s, and D_i = Σ_j s_j ψ_ij is kept: signs are independent, so
  Σ_i D_i D'_i has the mean Σ_i Σ_j ψ_ij ψ'_ij, which holds every pair twice.

The derivatives of the number are known only in the end, so sums and counts are added up: for every word, layer and
group of sources, 80 bytes. Heads of a layer are pooled, so nothing is known of single heads. Variances of sources and
of words add up, Var θ = E Var(θ | words) + Var E(θ | words), with the degrees of freedom of the sum (Satterthwaite).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from topic_probe.contrast import DIFFERENT_TOPIC, SAME_TOPIC, Contrast
from topic_probe.estimate import MIN_UNITS, Compared, Estimate, Factor, divide, extra_variance
from topic_probe.measure.pairs import Words
from topic_probe.measure.words import LabelledWords
from topic_probe.sums import SourceSums, columns
from topic_probe.topics import Topics

# Sums of words are kept apart for so many groups of sources.
N_GROUPS = 4


class WordSums:
    """Sums of the pairs that every word is in, by layer and group of sources.

    Attributes:
        sums: "of_words" [layer, plain or with the signs of partners, group, word, column], where columns are scores of
            same-topic and of different-topic pairs, squares of both, and numbers of both kinds.
        strata: for every word the words that it is a sample with: those of its topic; of topics of fewer than eight
            words, those of all of them.
    """

    def __init__(self, topics: Topics, n_layers: int) -> None:
        words = LabelledWords(topics, torch.arange(len(topics.words)))
        self.form, self.strata = words.form, _large_strata(words.strata)
        self.sign = torch.from_numpy(np.random.default_rng(0).choice([-1.0, 1.0], words.n_forms))
        self.sums = {"of_words": np.zeros((n_layers, 2, N_GROUPS, words.n_forms, 5))}

    def add(
        self, layer: int, values: Float[Tensor, "batch head query key"], relations: Tensor, words: Words
    ) -> None:
        """Adds the pairs of all heads of a layer to both of their words."""
        kinds = torch.stack([relations == kind for kind in (SAME_TOPIC, DIFFERENT_TOPIC)], 3).double()
        scores = values.double()
        pooled, squares = scores.sum(1)[..., None], scores.square().sum(1)[..., None]
        pairs = torch.cat([pooled * kinds, squares * kinds.sum(3, keepdim=True), values.shape[1] * kinds], 3)
        group = torch.from_numpy(groups_of(words.sources.cpu().numpy())).to(values.device)[:, None]
        found = pairs.new_zeros(2, N_GROUPS * len(self.sign), 5)
        for end, partner, axis in ((words.query, words.key, 2), (words.key, words.query, 1)):
            own, other = (self.form.to(values.device)[side.places.clamp(min=0)] for side in (end, partner))
            sign = self.sign.to(values.device)[other].unsqueeze(3 - axis)[..., None]
            ends = torch.stack([pairs.sum(axis), (pairs * sign).sum(axis)])
            found.index_add_(1, (group * len(self.sign) + own).flatten(), ends.flatten(1, 2))
        words.add("of_words", layer, found.reshape(2, N_GROUPS, -1, 5))


def groups_of(sources: Int64[np.ndarray, " source"]) -> Int64[np.ndarray, " source"]:
    """The group of sources that every one is in, by other bits of its hash than rows of sources go by."""
    return ((sources.view(np.uint64) >> np.uint64(40)) % np.uint64(N_GROUPS)).astype(np.int64)


def _large_strata(strata: Int64[np.ndarray, " word"]) -> Int64[np.ndarray, " word"]:
    """The strata with those of fewer than eight words taken together, and with the smallest other if these are few."""
    _, place, sizes = np.unique(strata, return_inverse=True, return_counts=True)
    together = sizes < MIN_UNITS
    if 0 < sizes[together].sum() < MIN_UNITS and not together.all():
        together |= sizes == sizes[~together].min()
    return np.where(together[place], len(sizes), place)


class WordVariance:
    """The variance of numbers of groups of layers that is due to words."""

    def __init__(
        self, sums: Mapping[str, Any], strata: Int64[np.ndarray, " word"], layer_of: np.ndarray
    ) -> None:
        """From the sums of a report, the strata of its words, and the layer of every head."""
        of_words = sums["of_words"]
        self._pairs = of_words[:, 0, :, :, 3:].sum((0, 1, 3))  # in how many every word is
        self._groups = of_words[:, 0].sum(2) / 2  # every pair is in those of two words
        self._words, self._layer_of = _within_strata(of_words, strata), layer_of
        self._totals = _totals(sums["by_source"]).sum(0)

    @property
    def n_words(self) -> int:
        """How many words are in pairs."""
        return int((self._pairs > 0).sum())

    def explained(self, contrast: Contrast) -> Contrast:
        """A contrast that says so where words are too few."""
        if self.n_words >= MIN_UNITS:
            return contrast
        return replace(
            contrast, note=f"no interval: {self.n_words} words in pairs, at least {MIN_UNITS} are needed"
        )

    def beside(self, kind: Compared, estimate: Estimate, starts: Int64[np.ndarray, " group"]) -> Factor:
        """What words bring to an estimate of groups of heads that begin there: of whole layers."""
        layers, nothing = self._layer_of[starts], np.zeros(len(starts))
        if self.n_words < MIN_UNITS:
            return extra_variance("words", nothing * np.nan, nothing)
        gradient = _gradient(np.add.reduceat(self._totals, starts), kind)
        of_words, of_groups = (np.add.reduceat(part, layers) for part in (self._words, self._groups))
        variance, of_variance = _variance(gradient, of_words, of_groups)
        # A word in n of the pairs moves a number as n, so that a few frequent ones may be most of Σ ψ².
        degrees = (self._pairs**2).sum() ** 2 / (self._pairs**4).sum()
        of_variance = np.maximum(of_variance, 2 * variance**2 / degrees)
        there = ~(variance <= 0)
        df = np.where(there, divide(2 * variance**2, of_variance), np.inf)
        # Of a ratio it is that of its logarithm.
        scale = 1.0 if estimate.quotient is None else np.where(estimate.log, 1.0, estimate.value**2)
        return extra_variance("words", np.where(there, variance, 0) * scale, df)


def _within_strata(
    of_words: Float64[np.ndarray, "layer 2 group word 5"], strata: Int64[np.ndarray, " word"]
) -> Float64[np.ndarray, "layer 2 group word 5"]:
    """What every word adds less the mean of its stratum, scaled because that takes too much away; signed sums as well.

    The mean of signed sums is 0.
    """
    found = of_words.copy()
    for stratum in np.unique(strata):
        at = np.flatnonzero(strata == stratum)
        found[:, 0][:, :, at] -= of_words[:, 0][:, :, at].mean(2, keepdims=True)
        n = max(len(at), MIN_UNITS)  # of fewer in all nothing is reported
        same, other = np.sqrt(n / (n - 4)), np.sqrt(n / (n - 1))
        found[:, :, :, at] *= [same, other, other, same, other]
    return found


def _gradient(totals: Float64[np.ndarray, "cell 5"], kind: str) -> Float64[np.ndarray, "cell 4"]:
    """Derivatives by the means of same-topic and of different-topic scores, of both, and of squares.

    Of the effect size, of the difference, or of the logarithm of the ratio.
    """
    same, different, both, squares = np.moveaxis(divide(*_moments(totals)), -1, 0)
    nothing, one = np.zeros_like(same), np.ones_like(same)
    if kind == "ratio":
        columns = [divide(one, same), -divide(one, different), nothing, nothing]
    elif kind == "difference":
        columns = [one, -one, nothing, nothing]
    else:
        variance = squares - both**2
        spread = np.sqrt(np.maximum(variance, 0))
        half = divide(divide(same - different, spread), 2 * variance)
        columns = [divide(one, spread), -divide(one, spread), 2 * both * half, -half]
    return np.stack(columns, -1)


def _moved(gradient: np.ndarray, part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """How far parts of sums move a number, around the means of a whole that they are parts of."""
    (sums, n), (of_whole, n_whole) = _moments(part), _moments(whole)
    return np.asarray((gradient * divide(sums - divide(of_whole, n_whole) * n, n_whole)).sum(-1))


def _moments(columns: Float64[np.ndarray, "*shape 5"]) -> tuple[np.ndarray, np.ndarray]:
    """Sums of same-topic and of different-topic scores, of both, and of their squares, and of how many each."""
    same, different, squares, n_same, n_different = np.moveaxis(columns, -1, 0)
    n = n_same + n_different
    return np.stack([same, different, same + different, squares], -1), np.stack(
        [n_same, n_different, n, n], -1
    )


def _variance(
    gradient: Float64[np.ndarray, "cell 4"],
    of_words: Float64[np.ndarray, "cell 2 group word 5"],
    of_groups: Float64[np.ndarray, "cell group 5"],
) -> tuple[Float64[np.ndarray, " cell"], Float64[np.ndarray, " cell"]]:
    """How much a number varies with words, and the variance of that estimate, from how much words differ.

    NaN where fewer than two groups of sources have pairs of both kinds.
    """
    influence = _moved(gradient[:, None, None, None], of_words, of_groups[:, None, :, None])
    n_pairs = of_groups[..., 3:]
    weight = np.nan_to_num(divide(n_pairs, n_pairs.sum(1, keepdims=True))).min(-1)
    weighed = np.nan_to_num(influence) * weight[:, None, :, None]
    # Products of all groups with all others.
    products = weighed.sum(2) ** 2 - (weighed**2).sum(2)
    together = weight.sum(1) ** 2 - (weight**2).sum(1)
    plain, signed = np.moveaxis(divide(products, np.where(together > 1e-9, together, 0)[:, None, None]), 1, 0)
    # What pairs are in it twice is between nothing and all of it, which is true and not always found.
    variance = plain.sum(1)
    variance = variance - np.clip(signed.sum(1), 0, np.maximum(variance, 0)) / 2
    of_each, n = plain - signed / 2, plain.shape[1]
    return variance, ((of_each - of_each.mean(1, keepdims=True)) ** 2).sum(1) * n / (n - 1)


def _totals(by_source: SourceSums) -> Float64[np.ndarray, "source cell 5"]:
    sums, counts, squares = columns(by_source.rows()[1])
    return np.concatenate([sums[..., 1:], squares[..., None], counts[..., 1:]], -1)
