"""An estimate: a number with how far each unit (source, word, seed) moves it, and all that follows from that.

A number has, to first order, the variance Σ ψ², where ψ is what leaving a unit out does to it. Everything here is
linear in ψ: in a paired difference what units do to both numbers drops out, crossed units (other sources *and* other
words) add up, and a band over many steps follows from all their ψ together.

Scores are of pairs of words. ψ of a word is the sum of what its pairs do, so what belongs to a pair alone is in the ψ
of two words and counts twice in Σ ψ²; it is taken off once, as in the variance of dyads of Aronow, Samii and
Assenova (2015): Σ_i ψ_i² − Σ_pairs ψ_ij². Pairs are not kept. Every word has a sign, +1 for half of them, and
D_i = Σ_j s_j ψ_ij has the squares Σ_i D_i² = 2 Σ_pairs ψ_ij² on average and is as linear as ψ.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64

from topic_probe.options import check_confidence, check_value

Statistic = Literal["ratio", "topic_ratio", "difference"]
WordStatistic = Literal["ratio", "difference", "effect_size"]
Compared = Literal["ratio", "topic_ratio", "difference", "effect_size"]

MIN_UNITS = 8  # an interval from fewer sources or words than this says more about them than about the model
MIN_SEEDS = 3
# Scores whose standard deviation is a millionth of their size differ by rounding alone: that of float32, and of sums.
_ROUNDING_OF_SCORES = 1e-6
_ROUNDING = 1e-12  # of variances, as a share of those that they are differences of
N_DRAWS = 4000  # behind bands and ranks: a share of them is within 0.016 of the probability

# From rows of pooled sums a number and None, or numerator and denominator.
Terms = Callable[..., tuple[np.ndarray, np.ndarray | None]]


@dataclass(frozen=True, eq=False)
class Factor:
    """What a number varies with: units of one kind.

    Attributes:
        name: "sources", "words", "seeds" …
        influence: how far each unit moves the number, scaled so that squares add up to the variance.
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
    def squares(self) -> Float64[np.ndarray, "*cell"]:
        """Of influence, added up."""
        return np.asarray((self.influence**2).sum(0))

    @cached_property
    def share(self) -> Float64[np.ndarray, "*cell"]:
        """How much of the squares is variance of the number."""
        if self.noise is None:
            return np.ones_like(self.squares)
        left = np.nan_to_num(1 - divide((self.noise**2).sum(0), self.squares))
        return np.asarray(np.maximum(left, self.least))

    @property
    def degrees(self) -> Float64[np.ndarray, "*cell"]:
        """Of freedom; fewer where noise, which is estimated too, is a large share. A bound on it is known."""
        degrees = degrees_of_freedom(self.influence, self.df)
        return np.asarray(np.where(self.share > self.least, np.maximum(self.share * degrees, 1.0), degrees))

    def __sub__(self, other: "Factor") -> "Factor":
        if len(self.influence) != len(other.influence):
            raise ValueError(
                f"a paired difference needs the same {self.name} on both sides, got {len(self.influence)} and "
                f"{len(other.influence)}"
            )
        influence = self.influence - other.influence
        rounding = (influence**2).sum(0) <= _ROUNDING * (self.squares + other.squares)
        noise = None if self.noise is None or other.noise is None else self.noise - other.noise
        influence = np.where(rounding, 0.0, influence)
        return Factor(self.name, influence, np.asarray(np.minimum(self.df, other.df)), noise, self.least)


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
        bound: of numbers between −bound and bound, whose interval is that of Fisher's z.
    """

    value: Float64[np.ndarray, "*cell"]
    factors: tuple[Factor, ...]
    log: Bool[np.ndarray, "*#cell"] | bool = False
    quotient: Quotient | None = None
    bound: Float64[np.ndarray, "*cell"] | None = None

    @property
    def influence(self) -> Float64[np.ndarray, "unit *cell"]:
        """How far each unit of the first factor moves the number."""
        return self.factors[0].influence

    @cached_property
    def variance(self) -> Float64[np.ndarray, "*cell"]:
        """Of all factors together."""
        return np.asarray(sum(factor.share * factor.squares for factor in self.factors))

    @cached_property
    def df(self) -> Float64[np.ndarray, "*cell"]:
        """Degrees of freedom of the variance (Satterthwaite); NaN where a factor has too few units."""
        if len(self.factors) == 1:
            return self.factors[0].degrees
        parts = [(factor.share * factor.squares) ** 2 / factor.degrees for factor in self.factors]
        return np.asarray(np.maximum(divide(self.variance**2, np.asarray(sum(parts))), 1.0))

    @property
    def standardised(self) -> Float64[np.ndarray, "*cell"]:
        """The value in standard errors."""
        return standardised(self.value, self.variance)

    def __sub__(self, other: "Estimate") -> "Estimate":
        """The paired difference (of logarithms: the quotient of the ratios): what units do to both drops out.

        NaN where only one of them is a logarithm; no degrees of freedom where a ratio has a denominator that may be 0.
        ValueError for other numbers of units.
        """
        alike = np.where(np.equal(self.log, other.log), 1.0, np.nan)
        value = np.asarray(self.value - other.value) * alike
        size = np.maximum(np.abs(self.value), np.abs(other.value))
        clear = np.where(self._is_clear & other._is_clear, alike, np.nan)
        factors = [mine - yours for mine, yours in zip(self.factors, other.factors, strict=True)]
        kept = tuple(replace(factor, df=np.asarray(factor.df * clear)) for factor in factors)
        return Estimate(np.where(np.abs(value) <= _ROUNDING * size, 0.0, value), kept, self.log)

    @property
    def _is_clear(self) -> Bool[np.ndarray, "*cell"] | bool:
        """Where the number is no ratio to a mean that is around 0."""
        if self.quotient is None:
            return True
        _, below, _, of_below = self.quotient
        df = np.full(below.shape, max(len(of_below) - 1.0, 1.0))
        return np.asarray((t_interval(below, (of_below**2).sum(0), df, 0.95)[..., 0] > 0) | self.log)

    def crossed(self, *others: Factor) -> "Estimate":
        """The same number, which varies with further units that have nothing to do with these."""
        return replace(self, factors=(*self.factors, *others))

    def __getitem__(self, cells: Any) -> "Estimate":
        """Some of the cells."""
        at = cells if isinstance(cells, tuple) else (cells,)
        rows = (slice(None), *at)
        factors = [
            replace(
                factor, influence=factor.influence[rows], df=np.asarray(factor.df[at]),
                noise=None if factor.noise is None else factor.noise[rows],
            )
            for factor in self.factors
        ]  # fmt: skip
        quotient = None
        if self.quotient is not None:
            above, below, of_above, of_below = self.quotient
            quotient = Quotient(above[at], below[at], of_above[rows], of_below[rows])
        log = np.asarray(np.broadcast_to(self.log, self.value.shape)[at])
        bound = None if self.bound is None else np.asarray(self.bound[at])
        return Estimate(np.asarray(self.value[at]), tuple(factors), log, quotient, bound)

    def interval(self, confidence: float = 0.95) -> Float64[np.ndarray, "*cell 2"]:
        """Low and high: Student's t; of logarithms exp of it, of other ratios Fieller's, with a bound Fisher's z.

        NaN where a factor has too few units. Of a ratio by Fieller, an end is infinite where the denominator is not
        told from 0, and NaN where it is not positive, or neither it nor the numerator is told from 0.
        """
        check_confidence(confidence)
        ends = t_interval(self.value, self.variance, self.df, confidence)
        log = np.broadcast_to(self.log, self.value.shape)[..., None]
        with np.errstate(over="ignore", invalid="ignore"):
            ends = np.where(log, np.exp(ends), ends)
        if self.bound is not None:
            share = np.clip(self.value / self.bound, -1 + _ROUNDING, 1 - _ROUNDING)[..., None]
            reach = (ends - self.value[..., None]) / self.bound[..., None] / (1 - share**2)
            return np.asarray(self.bound[..., None] * np.tanh(np.arctanh(share) + reach))
        if self.quotient is None:
            return ends
        return np.where(log, ends, _fieller(self.quotient, student(self.df, confidence) ** 2 * self._wider))

    @property
    def _wider(self) -> Float64[np.ndarray, "*cell"]:
        """The variance, as a multiple of the squares of what units of the first factor do."""
        squares = self.factors[0].squares
        return np.where(squares == 0, 1.0, divide(self.variance, squares))

    def p_value(self) -> Float64[np.ndarray, "*cell"]:
        """Two-sided, of no difference (0) or a ratio of 1; NaN where there is no interval."""
        from scipy.special import stdtr

        t = self.standardised
        if self.quotient is not None:  # above − below is 0 where the ratio is 1
            above, below, of_above, of_below = self.quotient
            of_rest = ((of_above - of_below) ** 2).sum(0) * self._wider
            t = np.where(self.log, t, divide(above - below, np.sqrt(of_rest)))
        return np.asarray(np.minimum(1.0, 2 * stdtr(self.df, -np.abs(t))))

    def draws(self, *, seed: int = 0, df: float | None = None) -> Float64[np.ndarray, "draw *cell"]:
        """How far the number may be off, as a multivariate Student t distribution over all cells has it.

        Estimates of the same units have the same draws: units move several numbers together. Degrees of freedom are the
        fewest of a cell where they are not given.
        """
        moved = np.zeros((N_DRAWS, self.value.size))
        for factor in self.factors:
            scaled = np.sqrt(factor.share) * factor.influence
            moved += _weights(seed, factor.name, len(scaled)) @ scaled.reshape(len(scaled), -1)
        least, uniform = np.min(self.df, initial=np.inf), np.random.default_rng([seed]).random(N_DRAWS)
        moved *= student_scale(float(least) if df is None else df, uniform)[:, None]
        return moved.reshape(N_DRAWS, *self.value.shape)

    def band(self, confidence: float = 0.95, *, seed: int = 0) -> Float64[np.ndarray, "*cell 2"]:
        """Low and high of a band that holds all cells at once, by the largest |t| of draws."""
        check_confidence(confidence)
        width = np.quantile(max_t(self, seed=seed), confidence) * np.sqrt(self.variance)
        return np.stack([self.value - width, self.value + width], -1)


@lru_cache(maxsize=4)
def _weights(seed: int, units: str, n: int) -> Float64[np.ndarray, "draw unit"]:
    return np.random.default_rng([seed, *units.encode()]).standard_normal((N_DRAWS, n))


def max_t(estimate: Estimate, *, seed: int = 0, df: float | None = None) -> Float64[np.ndarray, " draw"]:
    """The largest |t| over all cells in draws around no effect at all, in ascending order."""
    drawn = divide(np.abs(estimate.draws(seed=seed, df=df)), np.sqrt(estimate.variance))
    return np.sort(np.nan_to_num(drawn).reshape(len(drawn), -1).max(1, initial=0.0))


def ranks(estimates: Sequence[Estimate], *, seed: int = 0) -> Float64[np.ndarray, "estimate rank *cell"]:
    """How likely each estimate is the highest, the second highest, and so on; ties share their ranks.

    Exact for two, by draws for more. NaN where a number or its variance is not known.
    """
    from scipy.special import stdtr

    values = np.stack([one.value for one in estimates])
    if len(estimates) == 1:
        return np.where(np.isnan(values), np.nan, 1.0)[:, None]
    if len(estimates) == 2:
        moved = estimates[0] - estimates[1]
        first = np.where((moved.value == 0) & ~np.isnan(moved.df), 0.5, stdtr(moved.df, moved.standardised))
        return np.stack([[first, 1 - first], [1 - first, first]])
    known = np.isfinite([moved.value + moved.df for moved in (one - estimates[0] for one in estimates)]).all(
        0
    )
    drawn = np.stack([one.draws(seed=seed) + one.value for one in estimates])
    slack = 1e-9 * np.abs(drawn).max(0)
    above = (drawn[None] > drawn[:, None] + slack).sum(
        1
    )  # [estimate, draw, *cell]: how many others are higher
    tied = (np.abs(drawn[None] - drawn[:, None]) <= slack).sum(1)
    shares = [
        (((rank >= above) & (rank < above + tied)) / np.maximum(tied, 1)).mean(1)
        for rank in range(len(values))
    ]
    return np.where(known, np.stack(shares, 1), np.nan)


# ---------------------------------------------------------------------------- over sources and seeds


def jackknife(
    terms: Terms,
    sums: Sequence[Float64[np.ndarray, "source *_"]],
    pairs: Sequence[Float64[np.ndarray, "source *cell"]],
    *,
    positive: Bool[np.ndarray, "1 *cell"] | bool = False,
) -> Estimate:
    """A number that follows from pooled sums, from leaving out every source once; nothing is drawn.

    A ratio of scores that are never negative is taken by its logarithm, which is closer to a normal distribution.
    Degrees of freedom are at most one less than the number of equal sources that carry as many pairs (Kish), and NaN
    where fewer than eight sources have pairs of each kind, the number is NaN, or a denominator is not positive.

    Args:
        terms: from rows of pooled sums the number and None, or numerator and denominator.
        sums: what is pooled, by source.
        pairs: how many pairs a source has, of every kind that the number needs.
        positive: where all scores are at least 0.
    """
    whole = [part.sum(0, keepdims=True) for part in sums]
    (above, *_), below = terms(*whole)
    above_without, below_without = terms(*(total - part for total, part in zip(whole, sums, strict=True)))
    effective = np.min([effective_units(part) for part in pairs], axis=0)
    missing = (effective == 0) | np.isnan(above)
    log: Bool[np.ndarray, "*#cell"] | bool = False
    value, influence, quotient = above, _moved(above_without), None
    if below is not None and below_without is not None:
        quotient = Quotient(above, below[0], influence, _moved(below_without))
        value, missing = divide(above, below[0]), missing | ~(below[0] > 0)
        influence = divide(influence - value * quotient.of_below, below[0])
        with np.errstate(invalid="ignore", divide="ignore"):
            of_log, without = np.log(value), np.log(divide(above_without, below_without))
        allowed = np.broadcast_to(positive, (1, *of_log.shape))[0]
        log = np.asarray(allowed & np.isfinite(of_log) & np.isfinite(without).all(0))
        value, influence = np.where(log, of_log, value), np.where(log, _moved(without), influence)
    df = np.asarray(np.where(missing | (len(sums[0]) < MIN_UNITS), np.nan, effective - 1))
    return Estimate(np.asarray(value), (Factor("sources", influence, df),), log, quotient)


def _moved(without: np.ndarray) -> np.ndarray:
    """How far leaving out each unit moves a number."""
    n = max(len(without), 1)
    with np.errstate(invalid="ignore"):
        return np.asarray((without - without.sum(0) / n) * np.sqrt((n - 1) / n))


def over_seeds(values: Float64[np.ndarray, "seed *cell"]) -> Estimate:
    """The mean of a number over seeds, or other runs with nothing in common; three at least for an interval."""
    n = len(values)
    df = np.full(values.shape[1:], n - 1.0 if n >= MIN_SEEDS else np.nan)
    influence = (values - values.mean(0)) / np.sqrt(n * max(n - 1, 1))
    return Estimate(np.asarray(values.mean(0)), (Factor("seeds", influence, df),))


def over_refits(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of a number over refits (of topics, say) that were measured on the same sources, as it varies with both.

    What sources do to the spread of refits is counted with sources and taken off. Three refits at least.
    """
    k, first = len(estimates), estimates[0]
    value = np.asarray(np.mean([one.value for one in estimates], axis=0))
    shared = replace(first.factors[0], influence=np.mean([one.influence for one in estimates], axis=0))
    scale = np.sqrt(k * max(k - 1, 1))
    apart = np.stack([one.value - value for one in estimates]) / scale
    noise = np.concatenate([one.influence - shared.influence for one in estimates]) / scale
    df = np.full(value.shape, k - 1.0 if k >= MIN_SEEDS else np.nan)
    return Estimate(value, (shared, Factor("fits", apart, df, noise)), first.log)


def beside_sources(
    name: str, by_fold: Float64[np.ndarray, "fold unit *cell"], df: Float64[np.ndarray, "*cell"]
) -> Factor:
    """Units (words, say) that are crossed with sources, from how far each moves the number in folds of the sources.

    What differs between folds is noise of sources, which is counted where these are, and is taken off: the variance of
    two crossed factors is the sum of theirs less that of their cells.
    """
    k = len(by_fold)
    noise = (by_fold - by_fold.mean(0)) * np.sqrt(k / (k - 1))
    return Factor(name, by_fold.sum(0), df, noise.reshape(-1, *by_fold.shape[2:]))


def extra_variance(name: str, variance: Any, df: Any) -> Factor:
    """A factor of which only the variance is known, for `Estimate.crossed`; NaN leaves no interval."""
    return Factor(name, np.asarray(np.sqrt(variance))[None], np.where(np.isnan(variance), np.nan, df))


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
    """A statistic of mean scores between words, as it varies with the words that each topic (stratum) happens to have.

    Degrees of freedom are NaN where fewer than eight words have pairs of each kind. Coverage is simulated in
    `tests/benchmarks/validate.py`.

    Args:
        ends: what every word adds to all pairs.
        squares: for effect sizes, summed squared scores of every word, as either end, with words of either kind.
        strata: the topic of every word.
        statistic: "effect_size" needs squares.
    """
    if check_value("statistic", statistic, WordStatistic) == "effect_size" and squares is None:
        raise ValueError("effect sizes need the squared scores of words")
    same, n_same, different, n_different = (part.reshape(2, len(strata), -1) for part in ends)
    topics = _Topics(strata)
    a, of_a, pairs_a = _mean_of(same, n_same)
    b, of_b, pairs_b = _mean_of(different, n_different)
    of_a, of_b = topics.own * topics.centred(of_a), topics.scale * topics.centred(of_b)
    pairs_a = topics.own_pairs * topics.centred(pairs_a)
    pairs_b = np.sqrt(0.5) * topics.scale * topics.centred(pairs_b)
    effective = np.minimum(effective_units(n_same.sum(0)), effective_units(n_different.sum(0)))
    df = effective * (1 - topics.n / max(len(strata), 1)) + np.zeros_like(a)
    # Of few words the squares of signed sums say little: fewer of them are taken off, as simulations want it.
    shrunk, bound = np.sqrt(df / (df + 3)), None
    if statistic == "ratio":
        value, quotient, unknown = divide(a, b), Quotient(a, b, of_a, of_b), ~(b > 0)
        influence, noise = (
            divide(top - value * bottom, b) for top, bottom in ((of_a, of_b), (pairs_a, pairs_b))
        )
    else:
        value, quotient, influence, noise = a - b, None, of_a - of_b, pairs_a - pairs_b
        if squares is not None and statistic == "effect_size":
            scores, n = same.sum(0) + different.sum(0), n_same.sum(0) + n_different.sum(0)
            spread = standard_deviation(scores.sum(0), n.sum(0), squares.sum(0))
            mean, square = divide(scores.sum(0), n.sum(0)), divide(squares.sum(0), n.sum(0))
            of_variance = squares - square * n - 2 * mean * (scores - mean * n)
            of_variance = topics.scale * topics.centred(2 * divide(of_variance, n.sum(0)))
            influence = divide(influence - divide(value, 2 * spread**2) * of_variance, spread)
            value, noise = divide(value, spread), divide(noise, spread)
            # The difference is itself part of the spread: p of the pairs being of the same topic, to 1/√(p(1 − p)).
            p = divide(n_same.sum((0, 1)), n.sum(0))
            bound = divide(np.ones_like(a), np.sqrt(p * (1 - p)))
        unknown = np.isnan(value)
    df = np.where(unknown | (df == 0), np.nan, df)
    factor = Factor("words", influence, df, shrunk * noise, topics.least)
    return Estimate(value, (factor,), quotient=quotient, bound=bound)


class _Topics:
    """Topics of words, and the factors that make squares of what words do right on average where topics have n words.

    A stratum of n words has (n − 1)/n of the variance; a word also stands in the sums of its partners, which takes
    1/(n − 1) off its own deviation; and as it is no partner of itself, its own deviation leaks into its signed sum.
    With these factors squares less signed squares are right on average where scores are μ + h_i + h_j + ε_ij and n is
    even. At least half of the squares is variance, as where there is nothing but pairs. Words with at most one other
    in their topic are taken as one topic, because both words of a pair move it alike.
    """

    def __init__(self, strata: Int64[np.ndarray, "word"]) -> None:
        _, topic, sizes = np.unique(strata, return_inverse=True, return_counts=True)
        lone = (sizes[topic] < 3)[:, None]
        _, self.topic, self.sizes = np.unique(
            np.where(lone[:, 0], -1, topic), return_inverse=True, return_counts=True
        )
        self.n, n = len(self.sizes), self.sizes[self.topic][:, None].astype(np.float64)
        self.scale = np.where(n > 1, np.sqrt(divide(n, n - 1)), 0.0)
        leak = np.where(n > 3, divide(np.ones_like(n), 2 * (n - 1) * (n - 2)), 0.0)
        more = 1 / (1 - divide(n * leak, (n - 2) * (1 - leak)))
        self.least = float((0.5 / more).mean()) if len(n) else 0.5
        own, pairs = divide(n * (n - 1), (n - 2) ** 2), divide(n**2, 2 * (n - 1) * (n - 2))
        self.own = np.where(lone, self.scale, np.sqrt(own * more))
        self.own_pairs = np.where(lone, np.sqrt(0.5) * self.scale, np.sqrt(pairs * more / (1 - leak)))

    def centred(self, part: Float64[np.ndarray, "word item"]) -> Float64[np.ndarray, "word item"]:
        """Less the mean of every topic."""
        means = np.zeros((self.n, part.shape[1]))
        np.add.at(means, self.topic, part)
        return np.asarray(part - (means / self.sizes[:, None])[self.topic])


def _mean_of(sums: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A mean over pairs, how far each word moves it, and that with the signs of its partners.

    A word whose partners all have one sign says nothing of single pairs.
    """
    whole, n = sums.sum(0), counts.sum(0)
    mean, weight = divide(whole.sum(0), n.sum(0)), divide(2 * n, n.sum(0))  # every pair has two ends
    moved = np.where(n > 0, weight * (divide(whole, n) - mean), 0.0)
    first, second = divide(sums, counts)
    return mean, moved, np.where((counts > 0).all(0), weight * (first - second) / 2, 0.0)


# ---------------------------------------------------------------------------- arithmetic


def effective_units(weights: Float64[np.ndarray, "unit *cell"]) -> Float64[np.ndarray, "*cell"]:
    """How many equal units weigh as much as these (Kish); 0 where fewer than eight have any weight."""
    enough = (weights > 0).sum(0) >= MIN_UNITS
    return np.where(enough, divide(weights.sum(0) ** 2, (weights**2).sum(0)), 0.0)


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


def student(degrees: Any, confidence: float) -> Float64[np.ndarray, "*cell"]:
    """How many standard errors an interval reaches to either side."""
    from scipy.special import stdtrit

    return np.asarray(stdtrit(degrees, 0.5 + confidence / 2))


def t_interval(number: Any, variance: Any, degrees: Any, confidence: float) -> Float64[np.ndarray, "*cell 2"]:
    """Low and high of a number whose variance has so many degrees of freedom; NaN where one is NaN."""
    reach = student(degrees, confidence) * np.sqrt(variance)
    return np.stack([number - reach, number + reach], axis=-1)


def standardised(number: Any, variance: Any) -> np.ndarray:
    """In standard errors; infinite where there is no doubt, and 0 of nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(number == 0, 0.0, number / np.sqrt(variance))


def student_scale(degrees: float, uniform: Float64[np.ndarray, " draw"]) -> Float64[np.ndarray, " draw"]:
    """What makes normal draws those of a Student t distribution, from uniform numbers."""
    from scipy.special import gammaincinv

    return np.asarray(np.sqrt(degrees / (2 * gammaincinv(degrees / 2, uniform))))


def _fieller(quotient: Quotient, reach: Any) -> np.ndarray:
    """The ratios r with (above − r below)² ≤ reach · what units do to it: between the roots of a r² − 2 b r + c."""
    above, below, of_above, of_below = quotient
    a = below**2 - reach * (of_below**2).sum(0)
    b = above * below - reach * (of_above * of_below).sum(0)
    c = above**2 - reach * (of_above**2).sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        # Negative, but for rounding, only where neither the numerator nor the denominator is told from 0.
        root = np.sqrt(np.where(a > 0, np.maximum(b**2 - a * c, 0), b**2 - a * c))
        roots = np.sort([(b - root) / a, (b + root) / a], axis=0)
    # Where the denominator is not told from 0, the ratios beyond the roots are held: those on this number's side.
    low = np.where(a > 0, roots[0], np.where(above > 0, roots[1], -np.inf))
    high = np.where(a > 0, roots[1], np.where(above > 0, np.inf, roots[0]))
    return np.where(np.isnan(root)[..., None], np.nan, np.stack([low, high], axis=-1))


def standard_deviation(total: Any, n: Any, squares: Any) -> np.ndarray:
    """The standard deviation of n numbers around their mean, from their sum and the sum of their squares.

    0 where they differ by rounding only; NaN where there are none, or their squares are not known.
    """
    mean, second = divide(total, n), divide(squares, n)
    variance = second - mean**2
    return np.asarray(np.sqrt(np.where(variance <= _ROUNDING_OF_SCORES**2 * second, 0.0, variance)))


def permutation_p_value(
    observed: Float64[np.ndarray, "*shape"] | np.float64, null: Float64[np.ndarray, "*shape permutation"]
) -> Float64[np.ndarray, "*shape"]:
    """Twice the share of permutations at least as extreme on the smaller side, (1 + #) / (1 + n), at most 1.

    Undefined permutations are left out of n; NaN where the observed number or every permutation is undefined. Values
    equal up to rounding count as equal.
    """
    defined = ~np.isnan(null)
    centre = np.asarray(observed)[..., None]
    slack = 1e-9 * np.abs(centre)
    n = defined.sum(-1)
    above = (defined & (null >= centre - slack)).sum(-1)
    below = (defined & (null <= centre + slack)).sum(-1)
    p = np.minimum(1, 2 * (1 + np.minimum(above, below)) / (1 + n))
    return np.where(np.isnan(observed) | (n == 0), np.nan, p)


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


def divide(top: Any, bottom: Any) -> np.ndarray:
    """The quotient, NaN (without a warning) where the denominator is 0 or either side is NaN."""
    top, bottom = np.broadcast_arrays(top, bottom)
    quotient: np.ndarray = np.divide(top, bottom, out=np.full(bottom.shape, np.nan), where=bottom != 0)
    return quotient
