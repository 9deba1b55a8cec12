"""How sure a number is: resampling, intervals, permutation p-values, false discovery rates. Plain numpy and scipy."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64, UInt32

from topic_probe.options import check_value

Statistic = Literal["ratio", "topic_ratio", "difference"]
WordStatistic = Literal["ratio", "difference", "effect_size"]
Alternative = Literal["two-sided", "greater", "less"]

MIN_UNITS = 8  # an interval from fewer sources or words than this says more about them than about the model

# Scores whose standard deviation is a millionth of their size differ by rounding alone: that of float32, and of sums.
_ROUNDING = 1e-6

# Weights of so many units and draws are held at a time, which stay in a processor's cache.
_WEIGHTS = 2**18


def compare(
    same: Float64[np.ndarray, "*shape"], different: Float64[np.ndarray, "*shape"], statistic: Statistic
) -> Float64[np.ndarray, "*shape"]:
    """The statistic of resampled means, in an order that percentiles can be taken of.

    As a denominator shrinks to 0 its ratio grows to infinity; one that is not positive has passed that point
    and counts as infinite (with the sign of the numerator), not as a ratio of the opposite sign.
    """
    if statistic == "difference":
        return np.asarray(same - different)
    ratio = divide(same, np.where(different > 0, different, np.nan))
    passed = np.where(same == 0, np.nan, np.copysign(np.inf, same))
    return np.where(different <= 0, passed, ratio)


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
    return np.asarray(np.sqrt(np.where(variance <= _ROUNDING**2 * second, 0.0, variance)))


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


def resample(
    statistic: Callable[[Float64[np.ndarray, "resample unit"]], Float64[np.ndarray, "resample item"]],
    sizes: Int64[np.ndarray, "stratum"],
    *,
    n_resamples: int,
    seed: int,
) -> Float64[np.ndarray, "n_resamples item"]:
    """A statistic of weights (how often a draw with replacement took each unit) over many draws.

    Units stand in the order of their strata, of the given sizes, and each stratum is drawn from separately.
    Weights are handed over in blocks of draws, so that they fit in memory for any number of units.
    """
    if n_resamples < 1:
        raise ValueError(f"n_resamples must be at least 1, got {n_resamples}")
    generator = np.random.default_rng(seed)
    n_units = int(sizes.sum())
    start_of = np.repeat(np.cumsum(sizes) - sizes, sizes)
    draws = _draws(generator, np.repeat(sizes, sizes))
    rows = max(1, _WEIGHTS // n_units)
    values = []
    for start in range(0, n_resamples, rows):
        weights = np.zeros((min(rows, n_resamples - start), n_units))
        for times in weights:
            units = next(draws)
            units += start_of
            np.add.at(times, units, 1.0)
        values.append(statistic(weights))
    return np.concatenate(values)


def _draws(
    generator: np.random.Generator, below: Int64[np.ndarray, "unit"]
) -> Iterator[Int64[np.ndarray, "unit"]]:
    """The very numbers that ``generator.integers(0, below, dtype=np.int32)`` draws each time, several times as fast.

    Both take the upper half of 32 random bits times the bound (Lemire's method). Where the lower half is so small that
    the bits may have to be drawn again, which is rare, or no bits are needed for a bound of 1, it is left to numpy.
    """
    bound, products = below.astype(np.uint64), np.empty(len(below), np.uint64)
    narrow, alone = below.astype(np.uint32), (below == 1).any()
    while True:
        before = generator.bit_generator.state
        bits = _bits(generator, len(below), held=before["has_uint32"])
        if alone or (bits * narrow < narrow).any():
            generator.bit_generator.state = before
            yield generator.integers(0, below, dtype=np.int32).astype(np.int64)
        else:
            np.multiply(bits, bound, out=products)
            products >>= np.uint64(32)
            yield products.view(np.int64)


def _bits(generator: np.random.Generator, n: int, *, held: int) -> UInt32[np.ndarray, "n"]:
    """The very numbers that ``generator.integers(0, 2**32, n, dtype=np.uint32)`` draws, two at a time.

    A generator makes 64 bits at once, hands out the lower half and holds the upper one for the next number; ``held``
    says whether it holds one now.
    """
    first = generator.integers(0, 2**32, held, dtype=np.uint32) if held else None
    pairs = (
        generator.integers(0, 2**64, (n - held) // 2, dtype=np.uint64).astype("<u8", copy=False).view("<u4")
    )
    last = generator.integers(0, 2**32, 1, dtype=np.uint32) if (n - held) % 2 else None
    parts = [part for part in (first, pairs, last) if part is not None]
    return np.concatenate(parts) if len(parts) > 1 else pairs


def split_halves(strata: Int64[np.ndarray, "word"], *, seed: int) -> Int64[np.ndarray, "word"]:
    """A random half, 0 or 1, for every word, each stratum split evenly: what `word_interval` needs."""
    order = np.random.default_rng(seed).permutation(len(strata))
    order = order[np.argsort(strata[order], kind="stable")]
    halves = np.empty(len(strata), dtype=np.int64)
    halves[order] = np.arange(len(strata)) % 2
    return halves


class Ends(NamedTuple):
    """What words add to sums over all ordered pairs of words, as either end, apart by the half of the other word.

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


def word_interval(
    of_words: Ends,
    strata: Int64[np.ndarray, "word"],
    *,
    statistic: Statistic = "ratio",
    n_resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Float64[np.ndarray, "item 2"]:
    """The interval [item, low and high] of a statistic of mean scores, as `word_intervals` has it."""
    return word_intervals(
        of_words, None, strata, statistic=statistic, n_resamples=n_resamples, confidence=confidence, seed=seed
    )[0]


def word_intervals(
    of_words: Ends,
    squares: Float64[np.ndarray, "word item"] | None,
    strata: Int64[np.ndarray, "word"],
    *,
    statistic: Statistic = "ratio",
    n_resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> list[Float64[np.ndarray, "item 2"]]:
    """The interval [item, low and high] of a statistic of mean scores between words, from resampled words.

    And, where ``squares`` are given, that of the effect size, from the same draws: squared scores of every word, as
    either end, with all words of either kind. How far a standard deviation moves is of words as a difference is, so
    the narrowing is that of the difference.

    Words are drawn with replacement within their stratum (the topic), never pairs: a word that is drawn
    twice counts twice in every pair it takes part in, and is no pair with itself. A pair of words drawn w and
    w' times counts w + w' − 1 times, which is w w' to first order and needs only what is given here: for
    every word and either end of its ordered pairs, the summed scores and the number of pairs, with partners
    from either half of the words (`split_halves`).

    First order alone is too wide where topics hardly matter, because the noise of single pairs, which every
    word sum holds too, counts double. The two halves have it independently, so their product shows how much
    of the spread belongs to words; the draws are narrowed accordingly. Means stay those of the whole.
    """
    if statistic not in ("ratio", "difference"):
        raise ValueError(f"words are resampled for 'ratio' and 'difference', got {statistic!r}")
    statistics: list[WordStatistic] = [statistic] if squares is None else [statistic, "effect_size"]
    if len(strata) < MIN_UNITS:
        return [np.full((of_words.same.shape[-1], 2), np.nan)] * len(statistics)
    drawn = DrawnWords([of_words], None if squares is None else [squares], strata)
    moves, effective = drawn.moves(n_resamples=n_resamples, seed=seed), drawn.effective(0)
    found = []
    for kind in statistics:
        narrowing = np.sqrt(drawn.share_of_words(drawn.deviations(0, kind)))
        values = drawn.values(0, moves, narrowing, kind)
        found.append(percentile_interval(values, effective, confidence=confidence))
    return found


# What words, as either end of their pairs, do to a number: of both halves of their partners apart, with those of the
# same topic alone and with those of other topics too, and of all partners at once.
Deviations = tuple[
    Float64[np.ndarray, "half word item"],
    Float64[np.ndarray, "half word item"],
    Float64[np.ndarray, "word item"],
]


class DrawnWords:
    """What draws of words need to know of sums over their pairs: of one measurement, or of several of the same words.

    Attributes:
        sizes: of the strata, in whose order draws have their weights.
    """

    def __init__(
        self,
        every: Sequence[Ends],
        squares: Sequence[Float64[np.ndarray, "word item"]] | None,
        strata: Int64[np.ndarray, "word"],
    ) -> None:
        order, self.sizes, self._lone = _strata(strata)
        n = np.repeat(self.sizes, self.sizes).astype(np.float64)[:, None]
        # A stratum of n resampled units has (n − 1)/n of the variance.
        scale = np.where(n > 1, np.sqrt(divide(n, n - 1)), 0.0)
        # A word also stands in the sums of its partners, which takes 1/(n − 1) off its own deviation within a topic.
        scale_same = np.where(np.arange(len(n))[:, None] < self._lone, scale, scale * divide(n - 1, n - 2))
        self._scales = (scale_same, scale_same, scale, scale)
        self._parts = [[part.reshape(*part.shape[:2], -1)[:, order] for part in ends] for ends in every]
        self._totals = [[part.sum((0, 1)) / 2 for part in parts] for parts in self._parts]
        columns = [
            [factor * part.sum(0) for factor, part in zip(self._scales, parts, strict=True)]
            for parts in self._parts
        ]
        if squares is not None:
            for own, total, of_words in zip(columns, self._totals, squares, strict=True):
                own.append(scale * of_words[order])
                total.append(of_words.sum(0) / 2)
        self._columns = [np.concatenate(own, axis=1) for own in columns]
        self._of_end = [np.cumsum([end.shape[1] for end in own])[:-1] for own in columns]

    def moves(self, *, n_resamples: int, seed: int) -> list[list[np.ndarray]]:
        """How far draws move the sums and numbers of pairs, and the squares, of every measurement."""
        columns = np.concatenate(self._columns, axis=1)
        total = columns.sum(0)
        moved = resample(
            lambda weights: weights @ columns - total, self.sizes, n_resamples=n_resamples, seed=seed
        )
        of_measurement = np.cumsum([own.shape[1] for own in self._columns])[:-1]
        return [
            np.split(part, of_end, axis=1)
            for part, of_end in zip(np.split(moved, of_measurement, axis=1), self._of_end, strict=True)
        ]

    def values(
        self, number: int, moves: Sequence[Sequence[np.ndarray]], narrowing: np.ndarray, kind: "WordStatistic"
    ) -> Float64[np.ndarray, "resample item"]:
        """The number that a measurement would have given, were its draws narrowed."""
        top, n_top, bottom, n_bottom, *of_both = (
            total + narrowing * move for total, move in zip(self._totals[number], moves[number], strict=True)
        )
        if kind == "effect_size":
            found = effect_size(top, n_top, bottom, n_bottom, *of_both)
        else:
            found = compare(divide(top, n_top), divide(bottom, n_bottom), kind)
        return np.asarray(np.where((n_top > 0) & (n_bottom > 0), found, np.nan))

    def whole(self, number: int, kind: "WordStatistic") -> Float64[np.ndarray, "item"]:
        """The number itself."""
        none = [[np.zeros((1, *total.shape)) for total in totals] for totals in self._totals]
        found: np.ndarray = self.values(number, none, np.zeros(1), kind)[0]
        return found

    def slope(self, number: int, kind: "WordStatistic") -> Float64[np.ndarray, "item"]:
        """How far a number moves with what stands above its line."""
        top, n_top, bottom, n_bottom, *squares = self._totals[number]
        if kind == "ratio":
            return divide(n_bottom, bottom)
        if kind == "effect_size":
            return divide(np.float64(1), standard_deviation(top + bottom, n_top + n_bottom, squares[0]))
        return np.ones(len(top))

    def deviations(self, number: int, kind: "WordStatistic") -> Deviations:
        """How far every word moves what stands above the line, in which a ratio is held fast.

        How far a standard deviation moves is of words as a difference is.
        """
        slope: np.ndarray | float = 1.0
        if kind == "ratio":
            top, n_top, bottom, n_bottom, *_ = self._totals[number]
            slope = divide(divide(top, n_top), divide(bottom, n_bottom))
        (of_same, same), (of_different, different) = self._moved[number]
        return of_same, of_same - slope * of_different, same - slope * different

    @cached_property
    def _moved(self) -> list[list[tuple[np.ndarray, np.ndarray]]]:
        """How far every word moves the two means of every measurement, by its partners in either half and in both."""
        found = []
        for same, n_same, different, n_different in self._parts:
            kinds = (same, n_same, self._scales[0]), (different, n_different, self._scales[2])
            of_kinds = []
            for part, n, factor in kinds:
                whole = _deviations(part.sum(0, keepdims=True), n.sum(0, keepdims=True), factor, self.sizes)
                of_kinds.append((_deviations(part, n, factor, self.sizes), whole[0]))
            found.append(of_kinds)
        return found

    def share_of_words(self, deviations: Deviations) -> Float64[np.ndarray, "item"]:
        """What share of the variance of first-order draws is that of the number: 1 (all words) to about ½ (all pairs).

        Of the variance of a mean over the pairs of n words, the spread of their sums holds the part that belongs to
        words once and that of single pairs 2(n−1)/(n−2) times; the product of the two halves, divided by 1 − 1/(n−2)²
        because a word stands in its partners' sums, holds them once and −2(n−1)²/(n(n−2)²) times as much. That fixes
        the weights with which the two together hold both parts once.
        """
        of_same, of_both, whole = deviations
        n = np.repeat(self.sizes, self.sizes).astype(np.float64)[:, None]
        n = np.where(np.arange(len(n))[:, None] < self._lone, np.inf, n)
        # Of three words no half holds a pair; their word sums stand alone, which is on the wide side.
        shared = np.where(n == 3, np.inf, 1 - 1 / (n - 2) ** 2)
        halves = np.prod(of_both, axis=0) + np.prod(of_same, axis=0) * (1 / shared - 1)
        once = (1 - 2 / n) / (1 - 1 / n) / 2  # what the whole has to be multiplied by for pairs to count once
        pairs = 2 * (1 - 1 / n) ** 2 / (1 - 2 / n) ** 2 / n / shared
        weight = np.where(n == 3, 1.0, (1 + pairs) / (1 / once + pairs))
        squares = whole * whole
        share = divide((weight * squares + (1 - weight) * halves).sum(0), squares.sum(0))
        # By chance it may come out lower than if there were nothing but the noise of pairs.
        share = np.maximum(share, divide((once * squares).sum(0), squares.sum(0)))
        return np.asarray(np.minimum(np.nan_to_num(share, nan=1.0), 1.0))

    def effective(self, number: int) -> Float64[np.ndarray, "item"]:
        """How many equal words weigh as much as these, less what strata spend on their own means."""
        _, n_same, _, n_different = self._parts[number]
        effective = np.minimum(effective_units(n_same.sum(0)), effective_units(n_different.sum(0)))
        return np.asarray(effective * (1 - len(self.sizes) / self.sizes.sum()))


def _strata(
    strata: Int64[np.ndarray, "word"],
) -> tuple[Int64[np.ndarray, "word"], Int64[np.ndarray, "stratum"], int]:
    """The order that puts words of a stratum together, the sizes of strata, and the number of lone words.

    Those stand first: words with at most one other in their stratum. They are taken as one stratum, because both
    words of a pair move it alike and show no spread between them.
    """
    _, place, sizes = np.unique(strata, return_inverse=True, return_counts=True)
    few = sizes[place] < 3
    place = np.where(few, -1, place)
    _, sizes = np.unique(place, return_counts=True)
    return np.argsort(place, kind="stable"), sizes.astype(np.int64), int(few.sum())


def _deviations(
    sums: Float64[np.ndarray, "half word item"],
    counts: Float64[np.ndarray, "half word 1"],
    factor: np.ndarray | float,
    sizes: Int64[np.ndarray, "stratum"],
) -> Float64[np.ndarray, "half word item"]:
    """How far every word moves the mean beside the others of its stratum."""
    moved = factor * _influence(sums, counts)
    return np.stack([part - _stratum_means(part, sizes) for part in moved])


def _influence(
    sums: Float64[np.ndarray, "half word item"], counts: Float64[np.ndarray, "half word 1"]
) -> Float64[np.ndarray, "half word item"]:
    """How far every word moves the mean, judged by its partners in either half alone."""
    whole, n_whole = sums.sum(0), counts.sum(0)
    # A word whose partners are all in one half is judged by all of them in both.
    both = (counts > 0).all(0)
    means = np.where(both, sums, whole) * divide(np.float64(1), np.where(both, counts, n_whole))
    deviations = (means - divide(whole.sum(0), n_whole.sum(0))) * n_whole
    moved: np.ndarray = np.where(n_whole > 0, deviations, 0.0) * divide(np.float64(1), n_whole.sum(0))
    return moved


def _stratum_means(
    values: Float64[np.ndarray, "word item"], sizes: Int64[np.ndarray, "stratum"]
) -> Float64[np.ndarray, "word item"]:
    sums = np.add.reduceat(values, np.cumsum(sizes) - sizes, axis=0)
    return np.repeat(sums / sizes[:, None], sizes, axis=0)


def effective_units(weights: Float64[np.ndarray, "unit *shape"]) -> Float64[np.ndarray, "*shape"]:
    """How many equal units weigh as much as these (Kish); 0 where fewer than eight have any weight.

    One long document among many short ones carries most pairs, and then an interval is as uncertain as one
    from few documents.
    """
    enough = (weights > 0).sum(0) >= MIN_UNITS
    return np.where(enough, divide(weights.sum(0) ** 2, (weights**2).sum(0)), 0.0)


# What an interval over sources is about, from sums that are pooled over them: a number and None, or what stands above
# and below the line of a ratio.
Terms = Callable[..., tuple[Float64[np.ndarray, "rows *shape"], Float64[np.ndarray, "rows *shape"] | None]]


class Beside(NamedTuple):
    """What there is of a number's variance beside that of its sources; of a ratio, of its logarithm.

    NaN where it is not known, and then there is no interval.

    Attributes:
        words: what words bring.
        fits: what fits of topics bring.
        of_both: the variance of these variances themselves, of both together.
    """

    words: Float64[np.ndarray, "*shape"]
    fits: Float64[np.ndarray, "*shape"]
    of_both: Float64[np.ndarray, "*shape"]


def source_interval(
    terms: Terms,
    sums: Sequence[Float64[np.ndarray, "source *_"]],
    pairs: Sequence[Float64[np.ndarray, "source *shape"]],
    *,
    positive: Bool[np.ndarray, "1 *shape"] | bool = False,
    confidence: float = 0.95,
    beside: Beside | None = None,
) -> Float64[np.ndarray, "*shape 2"]:
    """The interval [..., low and high] of a number that follows from pooled sums, from leaving out every source once.

    What leaving a source out does to the number (the jackknife) gives its variance, and Student's t says how far to go.
    The degrees of freedom of that variance are estimated too: there are fewer where some sources hold most pairs, or
    move the number most (see `degrees_of_freedom`). Nothing is drawn, so the same sources give the same interval.

    A ratio of scores that are never negative is taken by its logarithm, which is closer to a normal distribution.
    Others by Fieller's theorem: those ratios r for which ``above − r below`` is not told from 0. There an end is
    infinite where the denominator is not told from 0.

    Args:
        terms: from rows of pooled sums the number and None, or numerator and denominator.
        sums: what is pooled, by source.
        pairs: how many pairs a source has, of every kind that the number needs.
        positive: where all scores are at least 0.
        confidence: the share of intervals that is to hold the true number.
        beside: the variance that other things than sources bring, which is added to theirs.

    Returns:
        NaN where fewer than eight sources have pairs of each kind; where the number is NaN; where its denominator is
        not positive, or neither it nor the numerator is told from 0.
    """
    check_interval(0, confidence)
    if len(sums[0]) < MIN_UNITS:
        return np.full((*pairs[0].shape[1:], 2), np.nan)
    effective = np.min([effective_units(part) for part in pairs], axis=0, keepdims=True)
    above, below, above_without, below_without = leaving_out(terms, sums)
    missing = (effective == 0) | np.isnan(above)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        if below is None or below_without is None:
            ends = _jackknife_interval(above, above_without, effective, confidence, beside)
        else:
            logarithm, without = np.log(above / below), np.log(above_without / below_without)
            by_logarithm = np.exp(_jackknife_interval(logarithm, without, effective, confidence, beside))
            of_terms = above, below, above_without, below_without
            by_fieller = _fieller_interval(*of_terms, effective, confidence, beside)
            usable = positive & np.isfinite(logarithm) & np.isfinite(without).all(0)
            ends = np.where(usable[..., None], by_logarithm, by_fieller)
            missing |= ~(below > 0)
    interval: np.ndarray = np.where(missing[..., None], np.nan, ends)[0]
    return interval


def leaving_out(
    terms: Terms, sums: Sequence[Float64[np.ndarray, "source *_"]]
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, np.ndarray | None]:
    """What follows from all sources, numerator and denominator (or None), and from all but each of them."""
    whole = [part.sum(0, keepdims=True) for part in sums]
    without = terms(*(total - part for total, part in zip(whole, sums, strict=True)))
    return *terms(*whole), *without


def _jackknife_interval(
    number: Float64[np.ndarray, "1 *shape"],
    without: Float64[np.ndarray, "source *shape"],
    effective: Float64[np.ndarray, "1 *shape"],
    confidence: float,
    beside: Beside | None,
) -> Float64[np.ndarray, "1 *shape 2"]:
    moved = without - without.mean(0)
    of_sources = jackknifed(moved, moved), degrees_of_freedom(moved, effective)
    return t_interval(number, *_together(*of_sources, beside), confidence)


def t_interval(
    number: Float64[np.ndarray, "*shape"],
    variance: Float64[np.ndarray, "*shape"],
    degrees: Float64[np.ndarray, "*shape"],
    confidence: float,
) -> Float64[np.ndarray, "*shape 2"]:
    """The interval of a number whose variance is estimated with so many degrees of freedom; NaN where one is NaN."""
    from scipy.special import stdtrit

    reach = stdtrit(degrees, 0.5 + confidence / 2) * np.sqrt(variance)
    return np.stack([number - reach, number + reach], axis=-1)


def _fieller_interval(
    above: Float64[np.ndarray, "1 *shape"],
    below: Float64[np.ndarray, "1 *shape"],
    above_without: Float64[np.ndarray, "source *shape"],
    below_without: Float64[np.ndarray, "source *shape"],
    effective: Float64[np.ndarray, "1 *shape"],
    confidence: float,
    beside: Beside | None,
) -> Float64[np.ndarray, "1 *shape 2"]:
    """The ratios r with |above − r below| ≤ t · its standard error: between the roots of a r² − 2 b r + c.

    What there is beside sources widens all variances alike, by as much as it widens that of above − r below at the
    ratio that was found.
    """
    from scipy.special import stdtrit

    of_above, of_below = above_without - above_without.mean(0), below_without - below_without.mean(0)
    moved = (of_above - above / below * of_below) / above
    of_sources = jackknifed(moved, moved)
    variance, degrees = _together(of_sources, degrees_of_freedom(moved, effective), beside)
    reach = stdtrit(degrees, 0.5 + confidence / 2) ** 2
    if beside is not None:
        reach = reach * variance / of_sources
    a = below**2 - reach * jackknifed(of_below, of_below)
    b = above * below - reach * jackknifed(of_above, of_below)
    c = above**2 - reach * jackknifed(of_above, of_above)
    # Negative, but for rounding, only where neither the numerator nor the denominator is told from 0.
    root = np.sqrt(np.where(a > 0, np.maximum(b**2 - a * c, 0), b**2 - a * c))
    roots = np.sort([(b - root) / a, (b + root) / a], axis=0)
    # Where the denominator is not told from 0, the ratios beyond the roots are held: those on this number's side.
    low = np.where(a > 0, roots[0], np.where(above > 0, roots[1], -np.inf))
    high = np.where(a > 0, roots[1], np.where(above > 0, np.inf, roots[0]))
    ends = np.stack([low, high], axis=-1)
    return np.where(np.isnan(root)[..., None], np.nan, ends)


def _together(
    variance: Float64[np.ndarray, "1 *shape"], degrees: Float64[np.ndarray, "1 *shape"], beside: Beside | None
) -> tuple[Float64[np.ndarray, "1 *shape"], Float64[np.ndarray, "1 *shape"]]:
    """The variance of sources with what there is beside, and the degrees of freedom of the sum (Satterthwaite)."""
    if beside is None:
        return variance, degrees
    total = variance + beside.words + beside.fits
    return total, np.maximum(2 * total**2 / (2 * variance**2 / degrees + beside.of_both), 1.0)


def variance_shares(
    terms: Terms, sums: Sequence[Float64[np.ndarray, "source *_"]], beside: Beside
) -> Float64[np.ndarray, "*shape 3"]:
    """How much of the variance sources, words and fits bring; together 1."""
    above, below, above_without, below_without = leaving_out(terms, sums)
    moved = above_without - above_without.mean(0)
    if below is not None and below_without is not None:
        moved = divide(moved, above) - divide(below_without - below_without.mean(0), below)
    parts = np.stack([jackknifed(moved, moved)[0], beside.words, beside.fits], -1)
    return divide(parts, parts.sum(-1, keepdims=True))


def jackknifed(
    moved: Float64[np.ndarray, "source *shape"], with_it: Float64[np.ndarray, "source *shape"]
) -> Float64[np.ndarray, "1 *shape"]:
    """The covariance of two numbers, from how far leaving out each source moves them."""
    covariance: np.ndarray = (moved * with_it).sum(0, keepdims=True) * (len(moved) - 1) / len(moved)
    return covariance


def degrees_of_freedom(
    moved: Float64[np.ndarray, "source *shape"], effective: Float64[np.ndarray, "1 *shape"]
) -> Float64[np.ndarray, "1 *shape"]:
    """Of a variance that is estimated from what leaving out each source moves; from 1 to the number of sources − 1.

    Satterthwaite's: 2 ÷ the relative variance of the estimate, which is 2/(n − 1) + excess kurtosis/n for n numbers. As
    few sources say little about their tails, it is at most one less than the number of equal sources that carry as
    many pairs.
    """
    n, squares = len(moved), moved**2
    kurtosis: np.ndarray = n * divide((squares**2).sum(0, keepdims=True), squares.sum(0, keepdims=True) ** 2)
    excess = (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * (kurtosis - 3) + 6)
    degrees = 2 / (2 / (n - 1) + np.maximum(np.nan_to_num(excess), 0) / n)
    held: np.ndarray = np.maximum(np.minimum(degrees, effective - 1), 1.0)
    return held


def check_interval(n_resamples: int, confidence: float) -> None:
    """Refuse what intervals cannot be computed with, before anything slow; no resamples at all are fine."""
    if n_resamples < 0:
        raise ValueError(f"n_resamples must be at least 0 (no intervals), got {n_resamples}")
    if not 0 < confidence < 1:
        raise ValueError(
            "confidence is the share of intervals that is to hold the true number and must lie between 0 and 1, "
            f"got {confidence}"
        )


def percentile_interval(
    values: Float64[np.ndarray, "resample *shape"],
    effective: Float64[np.ndarray, "*#shape"],
    *,
    confidence: float = 0.95,
) -> Float64[np.ndarray, "*shape 2"]:
    """The interval [..., low and high] between two percentiles of resampled values.

    Plain percentiles are too narrow for few units: the bootstrap leaves out the factor n/(n−1) of the
    variance, and that the spread itself is estimated. Both are put back by moving the percentiles out to
    where a t interval with ``effective`` units would end. An end is infinite where the values reach infinity
    (a ratio whose denominator may be 0). NaN where both would be or half the values are, where a value is NaN,
    and where ``effective`` is 0.
    """
    check_interval(len(values), confidence)
    from scipy.special import ndtr, stdtrit

    n, shape = len(values), values.shape[1:]
    ordered = np.sort(values, axis=0)
    units = np.maximum(np.broadcast_to(effective, shape), 4.0)
    tail = ndtr(-np.sqrt(units / (units - 1)) * stdtrit(units - 1, 0.5 + confidence / 2))
    ends = [_take_quantile(ordered, position * (n - 1)) for position in (tail, 1 - tail)]
    missing = (np.broadcast_to(effective, shape) == 0) | ~np.isfinite(ordered[n // 2])
    missing |= np.isnan(ordered[-1]) | (np.isinf(ends[0]) & np.isinf(ends[1]))
    return np.where(missing[..., None], np.nan, np.stack(ends, axis=-1))


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


def _take_quantile(ordered: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Linear interpolation in sorted values at a fractional row of their own for every cell."""
    below = np.floor(position).astype(np.int64)
    above = np.minimum(below + 1, len(ordered) - 1)
    low = np.take_along_axis(ordered, below[None], axis=0)[0]
    high = np.take_along_axis(ordered, above[None], axis=0)[0]
    share = position - below
    with np.errstate(invalid="ignore"):
        between = low + share * (high - low)
    # There is nothing between a number and infinity.
    finite = np.isfinite(low) & np.isfinite(high)
    return np.asarray(np.where(finite, between, np.where(share < 0.5, low, high)))
