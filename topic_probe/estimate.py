"""An estimate: a number with how far each unit (source, word, seed) moves it, and all that follows from that.

A number that varies with units has, to first order, the variance Σ ψ², where ψ is what leaving a unit out does to it.
Whatever is linear in ψ needs no further theory: in a paired difference what units do to both numbers drops out, crossed
units (other sources *and* other words) add up, and a band over many steps follows from all their ψ together.

Words are special because scores are of pairs. ψ of a word is the sum of what its pairs do, so what belongs to a pair
alone is in the ψ of two words and counts twice in Σ ψ²; it is taken out once, as in the variance of dyads of Aronow,
Samii and Assenova (2015): Σ_i ψ_i² − Σ_pairs ψ_ij². The pairs are not kept. Words have signs, half of them +1, and
D_i = Σ_j s_j ψ_ij has the squares Σ_i D_i² = 2 Σ_pairs ψ_ij² on average; it is linear in the scores as ψ is.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64

from topic_probe.options import check_value

Statistic = Literal["ratio", "topic_ratio", "difference"]
WordStatistic = Literal["ratio", "difference", "effect_size"]
Alternative = Literal["two-sided", "greater", "less"]

MIN_UNITS = 8  # an interval from fewer sources or words than this says more about them than about the model
MIN_SEEDS = 3

# Scores whose standard deviation is a millionth of their size differ by rounding alone: that of float32, and of sums.
_ROUNDING_OF_SCORES = 1e-6
# Variances below this share of those that they are differences of are rounding.
_ROUNDING = 1e-12
# Behind bands and ranks: a share of draws is within 0.016 of the probability.
_DRAWS = 4000

# From rows of pooled sums a number and None, or numerator and denominator.
Terms = Callable[..., tuple[np.ndarray, np.ndarray | None]]


@dataclass(frozen=True, eq=False)
class Factor:
    """What a number varies with: units of one kind.

    Attributes:
        name: "sources", "words" or "seeds".
        influence: how far each unit moves the number; the sum of squares is its variance.
        df: the most degrees of freedom that this variance can have; NaN where there are too few units.
        noise: what is in the squares of influence and is no variance of the number, in as many rows as that needs.
        least: the least share of the squares of influence that is variance.
    """

    name: str
    influence: Float64[np.ndarray, "unit *cell"]
    df: Float64[np.ndarray, "*cell"]
    noise: Float64[np.ndarray, "row *cell"] | None = None
    least: float = 0.0

    @cached_property
    def squares(self) -> tuple[Float64[np.ndarray, "*cell"], Float64[np.ndarray, "*cell"]]:
        """Of influence and of noise."""
        whole = (self.influence**2).sum(0)
        return whole, np.zeros_like(whole) if self.noise is None else (self.noise**2).sum(0)

    @property
    def variance(self) -> Float64[np.ndarray, "*cell"]:
        """What these units bring to the variance of the number."""
        whole, noise = self.squares
        return np.asarray(np.maximum(whole - noise, self.least * whole))

    @property
    def degrees(self) -> Float64[np.ndarray, "*cell"]:
        """Of freedom, of the variance: from 1 to ``df``; a difference of two estimates has those of both."""
        whole, noise = self.squares
        degrees = degrees_of_freedom(self.influence, self.df)
        left = divide(whole - noise, whole)
        return np.where((noise > 0) & (self.least < left), np.maximum(left * degrees, 1.0), degrees)

    def __sub__(self, other: "Factor") -> "Factor":
        if len(self.influence) != len(other.influence):
            raise ValueError(
                f"a paired difference needs the same {self.name} on both sides, got {len(self.influence)} and "
                f"{len(other.influence)}"
            )
        noise = None if self.noise is None or other.noise is None else self.noise - other.noise
        influence = self.influence - other.influence
        df = np.minimum(self.df, other.df)
        return Factor(self.name, influence, df, noise, max(self.least, other.least))


class Quotient(NamedTuple):
    """Numerator and denominator of a ratio, and how far the units of its first factor move them."""

    above: Float64[np.ndarray, "*cell"]
    below: Float64[np.ndarray, "*cell"]
    of_above: Float64[np.ndarray, "unit *cell"]
    of_below: Float64[np.ndarray, "unit *cell"]


@dataclass(frozen=True, eq=False)
class Estimate:
    """A number, or many of one shape, and how far each unit moves it.

    Attributes:
        value: the number; of cells in ``log`` the logarithm of a ratio.
        factors: what it varies with; crossed units are several.
        log: where the value is the logarithm of a ratio, whose interval is that of the ratio.
        quotient: of ratios, whose interval is Fieller's where they are no logarithms.
    """

    value: Float64[np.ndarray, "*cell"]
    factors: tuple[Factor, ...]
    log: Bool[np.ndarray, "*cell"] | bool = False
    quotient: Quotient | None = None

    @property
    def influence(self) -> Float64[np.ndarray, "unit *cell"]:
        """How far each unit of the first factor moves the number."""
        return self.factors[0].influence

    @cached_property
    def variance(self) -> Float64[np.ndarray, "*cell"]:
        """Of all factors together."""
        return np.asarray(sum(factor.variance for factor in self.factors))

    @cached_property
    def df(self) -> Float64[np.ndarray, "*cell"]:
        """Degrees of freedom of the variance (Satterthwaite); NaN where a factor has too few units."""
        if len(self.factors) == 1:
            return self.factors[0].degrees
        own = sum(divide(factor.variance**2, factor.degrees) for factor in self.factors)
        return np.maximum(divide(self.variance**2, np.asarray(own)), 1.0)

    @property
    def standardised(self) -> Float64[np.ndarray, "*cell"]:
        """In standard errors; infinite where there is no doubt, and 0 of nothing."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.value == 0, 0.0, self.value / np.sqrt(self.variance))

    def __sub__(self, other: "Estimate") -> "Estimate":
        """The paired difference (of logarithms: the quotient of the ratios): what units do to both drops out.

        NaN degrees of freedom where a ratio has a denominator that may be 0.

        Raises:
            ValueError: where the two have other units, or one is a logarithm and the other is not.
        """
        if np.any(self.log != other.log):
            raise ValueError(
                "one side is the logarithm of a ratio and the other is not: make both with positive=False"
            )
        value = np.asarray(self.value - other.value)
        size = np.maximum(np.abs(self.value), np.abs(other.value))
        value = np.where(np.abs(value) <= _ROUNDING * size, 0.0, value)
        factors = []
        for mine, yours in zip(self.factors, other.factors, strict=True):
            factor = mine - yours
            rounding = factor.squares[0] <= _ROUNDING * (mine.squares[0] + yours.squares[0])
            known = self._has_ratio & other._has_ratio
            df = np.where(known, factor.df, np.nan)
            influence = np.where(rounding, 0.0, factor.influence)
            factors.append(replace(factor, influence=influence, df=df))
        return Estimate(value, tuple(factors), self.log)

    @property
    def _has_ratio(self) -> Bool[np.ndarray, "*cell"]:
        """Where the number can be compared as it is: no ratio, a logarithm, or a denominator that is not around 0."""
        if self.quotient is None:
            return np.full(self.value.shape, True)
        _, below, _, of_below = self.quotient
        reach = student(np.full(below.shape, max(len(of_below) - 1.0, 1.0)), 0.95)
        return np.asarray((below > reach * np.sqrt((of_below**2).sum(0))) | self.log)

    def crossed(self, *others: Factor) -> "Estimate":
        """The same number, which varies with further units that have nothing to do with these."""
        return replace(self, factors=(*self.factors, *others))

    def __getitem__(self, cells: object) -> "Estimate":
        """Some of the cells."""

        def rows(part: np.ndarray) -> np.ndarray:
            return np.stack([np.asarray(row[cells]) for row in part]) if len(part) else part  # type: ignore[index]

        factors = tuple(
            replace(
                factor, influence=rows(factor.influence), df=np.asarray(factor.df[cells]),  # type: ignore[index]
                noise=None if factor.noise is None else rows(factor.noise),
            )
            for factor in self.factors
        )  # fmt: skip
        log = self.log if isinstance(self.log, bool) else np.asarray(self.log[cells])  # type: ignore[index]
        quotient = None
        if self.quotient is not None:
            above, below, *moved = self.quotient
            quotient = Quotient(above[cells], below[cells], *map(rows, moved))  # type: ignore[index]
        return Estimate(np.asarray(self.value[cells]), factors, log, quotient)  # type: ignore[index]

    def interval(self, confidence: float = 0.95) -> Float64[np.ndarray, "*cell 2"]:
        """Low and high: Student's t, of logarithms exp of it, of other ratios by Fieller's theorem.

        NaN where a factor has too few units. Of a ratio by Fieller, an end is infinite where the denominator is not
        told from 0, and NaN where it is not positive, or neither it nor the numerator is told from 0.
        """
        check_confidence(confidence)
        reach = student(self.df, confidence)
        with np.errstate(invalid="ignore", over="ignore"):
            width = reach * np.sqrt(self.variance)
            ends = np.stack([self.value - width, self.value + width], -1)
            log = np.broadcast_to(self.log, self.value.shape)[..., None]
            ends = np.where(log, np.exp(ends), ends)
        if self.quotient is None:
            return ends
        scale = reach**2 * divide(self.variance, self.factors[0].squares[0])
        return np.where(log, ends, _fieller(self.quotient, scale))

    def p_value(self) -> Float64[np.ndarray, "*cell"]:
        """Two-sided, of no difference (0), or of a ratio of 1; NaN where there is no interval."""
        from scipy.special import stdtr

        number = self
        if self.quotient is not None:  # above − below is 0 where the ratio is 1
            _, below, of_above, of_below = self.quotient
            log = np.broadcast_to(self.log, self.value.shape)
            moved = np.where(log, self.influence, divide(of_above - of_below, below))
            first = replace(self.factors[0], influence=moved)
            number = Estimate(np.where(log, self.value, self.value - 1), (first, *self.factors[1:]))
        return np.asarray(np.minimum(1.0, 2 * stdtr(number.df, -np.abs(number.standardised))))

    def draws(self, *, seed: int = 0, n: int = _DRAWS) -> Float64[np.ndarray, "draw *cell"]:
        """How far the number may be off, as a multivariate Student t distribution over all cells has it.

        Estimates of the same units have the same draws: where these move several numbers, they do so together.
        """
        flat = self.value.reshape(-1)
        moved = np.zeros((n, len(flat)))
        for factor in self.factors:
            generator = np.random.default_rng([seed, *factor.name.encode()])
            weights = generator.standard_normal((n, len(factor.influence)))
            share = np.sqrt(np.nan_to_num(divide(factor.variance, factor.squares[0])))
            moved += weights @ (share * factor.influence).reshape(len(factor.influence), -1)
        uniform = np.random.default_rng([seed, 3]).random(n)
        least = np.min(self.df, initial=np.inf)
        return np.asarray((moved * student_scale(least, uniform)[:, None]).reshape(n, *self.value.shape))

    def band(self, confidence: float = 0.95, *, seed: int = 0) -> Float64[np.ndarray, "*cell 2"]:
        """Low and high around all cells at once: the band holds all of them so often (max |t| of draws)."""
        check_confidence(confidence)
        with np.errstate(invalid="ignore"):
            reach = np.quantile(max_t(self, seed=seed), confidence)
        width = reach * np.sqrt(self.variance)
        return np.stack([self.value - width, self.value + width], -1)


def max_t(estimate: Estimate, *, seed: int = 0) -> Float64[np.ndarray, " draw"]:
    """The largest |t| over all cells in draws around no effect at all, in ascending order."""
    drawn = np.abs(estimate.draws(seed=seed)).reshape(_DRAWS, -1)
    errors = np.sqrt(estimate.variance).reshape(-1)
    return np.sort(np.where(drawn > 0, divide(drawn, errors), 0.0).max(1, initial=0.0))


# ---------------------------------------------------------------------------- over sources


def jackknife(
    terms: Terms,
    sums: Sequence[Float64[np.ndarray, "source *_"]],
    pairs: Sequence[Float64[np.ndarray, "source *cell"]],
    *,
    positive: Bool[np.ndarray, "1 *cell"] | bool = False,
) -> Estimate:
    """A number that follows from pooled sums, from leaving out every source once; nothing is drawn.

    A ratio of scores that are never negative is taken by its logarithm, which is closer to a normal distribution;
    others keep numerator and denominator, for Fieller's theorem. Degrees of freedom are at most one less than the
    number of equal sources that carry as many pairs (Kish), and NaN where fewer than eight sources have pairs of each
    kind, where the number is NaN, and of a ratio where its denominator is not positive.

    Args:
        terms: from rows of pooled sums the number and None, or numerator and denominator.
        sums: what is pooled, by source.
        pairs: how many pairs a source has, of every kind that the number needs.
        positive: where all scores are at least 0.
    """
    n, whole = len(sums[0]), [part.sum(0, keepdims=True) for part in sums]
    above, below = (None if part is None else part[0] for part in terms(*whole))
    without = terms(*(total - part for total, part in zip(whole, sums, strict=True)))
    assert above is not None
    effective = np.min([effective_units(part) for part in pairs], axis=0)
    missing = (effective == 0) | np.isnan(above)
    with np.errstate(invalid="ignore", divide="ignore"):
        if below is None or without[1] is None:
            log, quotient, value, influence = False, None, above, _moved(without[0])
        else:
            missing |= ~(below > 0)
            value, of_log = np.log(above / below), np.log(without[0] / without[1])
            log = np.asarray(positive & np.isfinite(value) & np.isfinite(of_log).all(0))[0]
            quotient = Quotient(above, below, _moved(without[0]), _moved(without[1]))
            linear = divide(quotient.of_above - above / below * quotient.of_below, below)
            influence = np.where(log, _moved(of_log), linear)
            value = np.where(log, value, divide(above, below))
    df = np.where(missing | (n < MIN_UNITS), np.nan, effective - 1)
    return Estimate(value, (Factor("sources", influence, df),), log, quotient)


def _moved(without: Float64[np.ndarray, "unit *cell"]) -> Float64[np.ndarray, "unit *cell"]:
    """How far leaving out each unit moves a number, scaled so that squares add up to its variance."""
    n = max(len(without), 1)
    return np.asarray((without - without.sum(0) / n) * np.sqrt((n - 1) / n))


def over_seeds(values: Float64[np.ndarray, "seed *cell"]) -> Estimate:
    """The mean of a number over seeds, or other runs that have nothing in common; at least three for an interval."""
    n = len(values)
    df = np.full(values.shape[1:], np.nan if n < MIN_SEEDS else n - 1.0)
    influence = (values - values.mean(0)) / np.sqrt(n * max(n - 1, 1))
    return Estimate(values.mean(0), (Factor("seeds", influence, df),))


def extra_variance(
    name: str, variance: Float64[np.ndarray, "*cell"], df: Float64[np.ndarray, "*cell"]
) -> Factor:
    """A factor of which only the variance is known, for `Estimate.crossed`."""
    return Factor(name, np.sqrt(variance)[None], df)


# ---------------------------------------------------------------------------- over words


class Ends(NamedTuple):
    """What words add to sums over all ordered pairs of words, as either end, apart by the sign of the other word.

    Attributes:
        same: summed scores with the other words of the same topic.
        n_same: numbers of these pairs.
        different: summed scores with words of other topics.
        n_different: numbers of these pairs.
    """

    same: Float64[np.ndarray, "half word item"]
    n_same: Float64[np.ndarray, "half word"]
    different: Float64[np.ndarray, "half word item"]
    n_different: Float64[np.ndarray, "half word"]


def split_halves(strata: Int64[np.ndarray, "word"], *, seed: int) -> Int64[np.ndarray, "word"]:
    """The sign of every word, as half 0 or 1, at random and each stratum evenly."""
    order = np.random.default_rng(seed).permutation(len(strata))
    order = order[np.argsort(strata[order], kind="stable")]
    halves = np.empty(len(strata), dtype=np.int64)
    halves[order] = np.arange(len(strata)) % 2
    return halves


def over_words(
    ends: Ends,
    squares: Float64[np.ndarray, "word item"] | None,
    strata: Int64[np.ndarray, "word"],
    *,
    statistic: WordStatistic = "ratio",
) -> Estimate:
    """A statistic of mean scores between words, as it varies with the words that a topic (the stratum) happens to have.

    A word also stands in the sums of its partners, which takes 1/(n − 1) off its own deviation in a topic of n words;
    that is put back, and the squares of signed sums are scaled so that they are right on average where scores are
    μ + h_i + h_j + ε_ij. Of few words they say little, so of d degrees of freedom d/(d + 3) of them are taken off:
    that holds the truth 95 % of the time in simulations from ten words on (`demos/trust.md`).
    Degrees of freedom are NaN where fewer than eight words have pairs of each kind.

    Args:
        ends: what every word adds to all pairs.
        squares: for effect sizes, summed squared scores of every word, as either end, with words of either kind.
        strata: the topic of every word.
        statistic: "effect_size" needs squares.
    """
    if statistic == "effect_size" and squares is None:
        raise ValueError("effect sizes need the squared scores of words: measure with effect_size=True")
    topic, sizes, lone = _topics_of(strata)
    n, n_words = sizes[topic][:, None], len(strata)

    def centred(part: np.ndarray) -> np.ndarray:
        means = np.zeros((len(sizes), part.shape[1]))
        np.add.at(means, topic, part)
        return np.asarray(part - (means / sizes[:, None])[topic])

    same, n_same, different, n_different = (part.reshape(2, n_words, -1) for part in ends)
    # A stratum of n words has (n − 1)/n of the variance.
    scale = np.where(n > 1, np.sqrt(divide(n, n - 1)), 0.0)
    own = np.where(lone, scale, scale * divide(n - 1, n - 2))
    once = np.where(lone, scale, divide(n, np.sqrt((n - 1) * (n - 2)))) * np.sqrt(0.5)
    a, moved_a, pairs_a, of_same = _mean_of(same, n_same)
    b, moved_b, pairs_b, of_different = _mean_of(different, n_different)
    moved_a, moved_b = own * centred(moved_a), scale * centred(moved_b)
    pairs_a, pairs_b = once * centred(pairs_a), np.sqrt(0.5) * scale * centred(pairs_b)
    effective = np.minimum(effective_units(of_same), effective_units(of_different))
    df = np.broadcast_to(effective * (1 - len(sizes) / max(n_words, 1)), a.shape)
    missing, shrunk = (df == 0) | np.isnan(a - b), np.sqrt(df / (df + 3))
    quotient = None
    if statistic == "ratio":
        quotient, value, slope, unit = Quotient(a, b, moved_a, moved_b), divide(a, b), divide(a, b), b
        missing |= ~(b > 0)
    else:
        value, slope, unit = a - b, np.ones_like(a), np.ones_like(a)
    influence, noise = moved_a - slope * moved_b, pairs_a - slope * pairs_b
    if statistic == "effect_size":
        assert squares is not None
        scores, counts = same.sum(0) + different.sum(0), of_same + of_different
        mean, square = divide(scores.sum(0), counts.sum(0)), divide(squares.sum(0), counts.sum(0))
        unit = standard_deviation(scores.sum(0), counts.sum(0), squares.sum(0))
        of_variance = squares - square * counts - 2 * mean * (scores - mean * counts)
        spread = scale * centred(2 * divide(of_variance, counts.sum(0)))
        influence = influence - divide(value, 2 * unit**2) * spread
        value = divide(value, unit)
        missing |= np.isnan(value)
    factor = Factor(
        "words", divide(influence, unit), np.where(missing, np.nan, df), shrunk * divide(noise, unit), 0.5
    )
    return Estimate(value, (factor,), quotient=quotient)


def _topics_of(
    strata: Int64[np.ndarray, "word"],
) -> tuple[Int64[np.ndarray, "word"], Float64[np.ndarray, "topic"], Bool[np.ndarray, "word 1"]]:
    """The topic of every word, their sizes, and which words are lone: have at most one other in their topic.

    Lone words are taken as one topic, because both words of a pair move it alike and show no spread between them.
    """
    _, topic, sizes = np.unique(strata, return_inverse=True, return_counts=True)
    lone = sizes[topic] < 3
    _, topic, sizes = np.unique(np.where(lone, -1, topic), return_inverse=True, return_counts=True)
    return topic, sizes.astype(np.float64), lone[:, None]


def _mean_of(
    sums: Float64[np.ndarray, "half word item"], counts: Float64[np.ndarray, "half word #item"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A mean over pairs, how far each word moves it, that with the signs of its partners, and its numbers of pairs.

    A word whose partners all have one sign says nothing of single pairs: its signed sum is 0.
    """
    whole, n = sums.sum(0), counts.sum(0)
    mean = divide(whole.sum(0), n.sum(0))
    weight = divide(2 * n, n.sum(0))  # every pair has two ends
    moved = np.where(n > 0, weight * (divide(whole, n) - mean), 0.0)
    by_sign = divide(sums, counts)
    signed = np.where((counts > 0).all(0), weight * (by_sign[0] - by_sign[1]) / 2, 0.0)
    return mean, moved, signed, n


# ---------------------------------------------------------------------------- ranks


def ranks(estimates: Sequence[Estimate], *, seed: int = 0) -> Float64[np.ndarray, "estimate rank *cell"]:
    """How likely each estimate is the highest, the second highest, and so on; ties share their ranks.

    Exact for two, by draws for more. NaN where a number or its variance is not known.
    """
    from scipy.special import stdtr

    m, shape = len(estimates), estimates[0].value.shape
    if m == 2:
        moved = estimates[0] - estimates[1]
        first = np.where(moved.value == 0, 0.5, stdtr(moved.df, moved.standardised))
        first = np.where(np.isnan(moved.df), np.nan, first)
        return np.stack([[first, 1 - first], [1 - first, first]])
    values = np.stack([one.value for one in estimates])
    if m == 1:
        return np.where(np.isnan(values), np.nan, 1.0)[:, None]
    known = np.isfinite(values).all(0) & ~np.isnan([one.df for one in estimates]).any(0)
    drawn = np.stack([one.draws(seed=seed) + one.value for one in estimates])
    slack = 1e-9 * np.abs(drawn).max(0)
    above = (drawn[None] > drawn[:, None] + slack).sum(
        1
    )  # [estimate, draw, *cell]: how many others are higher
    tied = (np.abs(drawn[None] - drawn[:, None]) <= slack).sum(1)
    found = np.zeros((m, m, *shape))
    for rank in range(m):
        found[:, rank] = (((rank >= above) & (rank < above + tied)) / tied).mean(1)
    return np.where(known, found, np.nan)


# ---------------------------------------------------------------------------- arithmetic


def degrees_of_freedom(
    moved: Float64[np.ndarray, "unit *cell"], most: Float64[np.ndarray, "*cell"]
) -> Float64[np.ndarray, "*cell"]:
    """Of a variance that is the sum of squares of what each unit moves; from 1 to ``most``.

    Satterthwaite's: 2 ÷ the relative variance of the estimate, which is 2/(n − 1) + excess kurtosis/n for n numbers.
    """
    n, squares = len(moved), moved**2
    if n < 4:
        return np.asarray(np.maximum(most, 1.0))
    kurtosis = n * divide((squares**2).sum(0), squares.sum(0) ** 2)
    excess = (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * (kurtosis - 3) + 6)
    degrees = 2 / (2 / (n - 1) + np.maximum(np.nan_to_num(excess), 0) / n)
    return np.asarray(np.maximum(np.minimum(degrees, most), 1.0))


def student(degrees: Float64[np.ndarray, "*cell"], confidence: float) -> Float64[np.ndarray, "*cell"]:
    """How many standard errors an interval reaches to either side."""
    from scipy.special import stdtrit

    return np.asarray(stdtrit(degrees, 0.5 + confidence / 2))


def check_confidence(confidence: float) -> None:
    """Refuse what intervals cannot be computed with."""
    if not 0 < confidence < 1:
        raise ValueError(
            "confidence is the share of intervals that is to hold the true number and must lie between 0 and 1, "
            f"got {confidence}"
        )


def _fieller(quotient: Quotient, scale: Float64[np.ndarray, "*cell"]) -> Float64[np.ndarray, "*cell 2"]:
    """The ratios r with (above − r below)² ≤ scale · Σ of its squares: between the roots of a r² − 2 b r + c."""
    above, below, of_above, of_below = quotient
    with np.errstate(invalid="ignore"):
        a = below**2 - scale * (of_below**2).sum(0)
        b = above * below - scale * (of_above * of_below).sum(0)
        c = above**2 - scale * (of_above**2).sum(0)
        # Negative, but for rounding, only where neither the numerator nor the denominator is told from 0.
        root = np.sqrt(np.where(a > 0, np.maximum(b**2 - a * c, 0), b**2 - a * c))
    roots = np.sort([divide(b - root, a), divide(b + root, a)], axis=0)
    # Where the denominator is not told from 0, the ratios beyond the roots are held: those on this number's side.
    low = np.where(a > 0, roots[0], np.where(above > 0, roots[1], -np.inf))
    high = np.where(a > 0, roots[1], np.where(above > 0, np.inf, roots[0]))
    return np.where(np.isnan(root)[..., None], np.nan, np.stack([low, high], axis=-1))


def standard_deviation(
    total: Float64[np.ndarray, "*shape"],
    n: Float64[np.ndarray, "*#shape"],
    squares: Float64[np.ndarray, "*shape"],
) -> Float64[np.ndarray, "*shape"]:
    """The standard deviation of n numbers around their mean, from their sum and the sum of their squares.

    0 where they differ by rounding only; NaN where there are none, or their squares are not known.
    """
    mean, second = divide(total, n), divide(squares, n)
    variance = second - mean**2
    return np.asarray(np.sqrt(np.where(variance <= _ROUNDING_OF_SCORES**2 * second, 0.0, variance)))


def effect_size(
    same: Float64[np.ndarray, "*shape"],
    n_same: Float64[np.ndarray, "*#shape"],
    different: Float64[np.ndarray, "*shape"],
    n_different: Float64[np.ndarray, "*#shape"],
    squares: Float64[np.ndarray, "*shape"],
) -> Float64[np.ndarray, "*shape"]:
    """The difference of two means in standard deviations of the scores of both kinds together.

    From sums of scores, numbers of pairs, and the sum of the squared scores of both kinds.
    """
    difference = divide(same, n_same) - divide(different, n_different)
    return divide(difference, standard_deviation(same + different, n_same + n_different, squares))


def effective_units(weights: Float64[np.ndarray, "unit *shape"]) -> Float64[np.ndarray, "*shape"]:
    """How many equal units weigh as much as these (Kish); 0 where fewer than eight have any weight.

    One long document among many short ones carries most pairs, and then an interval is as uncertain as one
    from few documents.
    """
    enough = (weights > 0).sum(0) >= MIN_UNITS
    return np.where(enough, divide(weights.sum(0) ** 2, (weights**2).sum(0)), 0.0)


def no_interval_reason(interval: Float64[np.ndarray, "*shape 2"], n_units: int, what: str) -> str | None:
    """Why cells of an interval are NaN, or None if all have one."""
    if not np.isnan(interval).any():
        return None
    if n_units < MIN_UNITS:
        few = f"{n_units} {what}"
        if n_units == 1 and what == "sources":
            few = "one text or article cannot show how others would differ"
        return f"no interval: {few}, at least {MIN_UNITS} are needed"
    return f"no interval where fewer than {MIN_UNITS} {what} have pairs or the different-topic mean is near 0"


def with_interval(value: float, interval: Float64[np.ndarray, "2"] | tuple[float, float]) -> str:
    """A number as people read it, with its interval if it has one."""
    low, high = interval
    return f"{value:.4g}" if np.isnan([low, high]).any() else f"{value:.4g} [{low:.4g}, {high:.4g}]"


def permutation_p_value(
    observed: Float64[np.ndarray, "*shape"] | np.float64,
    null: Float64[np.ndarray, "*shape permutation"],
    *,
    alternative: Alternative = "two-sided",
) -> Float64[np.ndarray, "*shape"]:
    """The share of permutations at least as extreme, (1 + #) / (1 + n), in (0, 1].

    Two-sided is twice the smaller side, at most 1. Undefined permutations are left out of n; NaN where the
    observed number or every permutation is undefined. Values equal up to rounding count as equal.
    """
    check_value("alternative", alternative, Alternative)
    defined = ~np.isnan(null)
    centre = np.asarray(observed)[..., None]
    slack = 1e-9 * np.abs(centre)
    n = defined.sum(-1)
    greater = (1 + (defined & (null >= centre - slack)).sum(-1)) / (1 + n)
    less = (1 + (defined & (null <= centre + slack)).sum(-1)) / (1 + n)
    sides = {"greater": greater, "less": less, "two-sided": np.minimum(1, 2 * np.minimum(greater, less))}
    return np.where(np.isnan(observed) | (n == 0), np.nan, sides[alternative])


def n_sides(alternative: Alternative) -> int:
    """How many times the share of permutations that are as extreme is a p-value."""
    return 2 if alternative == "two-sided" else 1


def needed_permutations(n_tests: int, alternative: Alternative, *, q: float) -> int:
    """How many permutations it takes until a single test of many, at the least p-value, has a q-value below ``q``."""
    return math.floor(n_sides(alternative) * n_tests / q)


def benjamini_hochberg(p: Float64[np.ndarray, "*shape"]) -> Float64[np.ndarray, "*shape"]:
    """The q-values of p-values, over all cells at once: the false discovery rate at which each is called.

    Never below its p-value, never above 1, and in the same order; NaN stays NaN and is no test.
    """
    from scipy.stats import false_discovery_control

    tested = ~np.isnan(p)
    q = np.full(p.shape, np.nan)
    if tested.any():
        q[tested] = false_discovery_control(p[tested])
    return q


def divide(top: np.ndarray | np.float64, bottom: np.ndarray | np.float64) -> np.ndarray:
    """The quotient, NaN (without a warning) where the denominator is 0 or either side is NaN."""
    top, bottom = np.broadcast_arrays(top, bottom)
    quotient: np.ndarray = np.divide(top, bottom, out=np.full(bottom.shape, np.nan), where=bottom != 0)
    return quotient
