"""The same number of several models, and how the models vary together: over the same sources, or with the same words.

What one source or word does to all models at once is common to them and drops out of their differences, so these are
known far better than two intervals that each hold it. Beside `contrast` and not in a measurement, because it only needs
sums: whatever keeps them by source (`SourceSums`) or by word (`Ends`) can be paired.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64

from topic_probe.contrast import OfSources, SourceSums
from topic_probe.options import check_value
from topic_probe.uncertainty import (
    MIN_UNITS,
    DrawnWords,
    Ends,
    WordStatistic,
    check_interval,
    degrees_of_freedom,
    effective_units,
    jackknifed,
    leaving_out,
    t_interval,
)

Compared = Literal["ratio", "topic_ratio", "difference", "effect_size"]

# Draws behind the ranks of more than two models: a share of them is within 0.01 of the probability.
_DRAWS = 10_000

# Numbers that differ by less than this share of their size differ by rounding.
_ROUNDING = 1e-12

# Sums, counts and squares by source: what `SourceSums.rows` gives behind the keys.
Rows = tuple[np.ndarray, np.ndarray, np.ndarray]


class Difference(NamedTuple):
    """What one model has more than another.

    Attributes:
        number: the quotient of their ratios where ratios are compared by their logarithms, else the difference.
        interval: of that; NaN where there is none.
        p_value: how likely a number so far from none at all would be, were there none (two-sided).
    """

    number: Float64[np.ndarray, "*shape"]
    interval: Float64[np.ndarray, "*shape 2"]
    p_value: Float64[np.ndarray, "*shape"]


@dataclass(frozen=True, eq=False)
class Paired:
    """A number of several models, and how far the same sources or words move it in all of them.

    Attributes:
        values: the number of every model; its logarithm where ``logarithm``.
        covariance: of the values.
        degrees: of freedom, of the variance of every difference; on the diagonal of that of a value itself. NaN where
            fewer than eight sources or words carry pairs of both kinds in one of the models.
        logarithm: whether values are logarithms of ratios: where scores are never negative.
        confidence: what share of intervals is to hold the true number.
    """

    values: Float64[np.ndarray, "model *shape"]
    covariance: Float64[np.ndarray, "model model *shape"]
    degrees: Float64[np.ndarray, "model model *shape"]
    logarithm: bool
    confidence: float = 0.95

    def __len__(self) -> int:
        return len(self.values)

    @property
    def nothing(self) -> float:
        """The number of a difference between equal models."""
        return 1.0 if self.logarithm else 0.0

    @property
    def interval(self) -> Float64[np.ndarray, "model *shape 2"]:
        """The interval of every model by itself."""
        own = [
            t_interval(value, self.covariance[n, n], self.degrees[n, n], self.confidence)
            for n, value in enumerate(self.values)
        ]
        return np.exp(own) if self.logarithm else np.stack(own)

    def difference(self, first: int, second: int) -> Difference:
        """What a model has more than another, by their numbers; of a model and itself none, without any doubt."""
        from scipy.special import stdtr

        number = np.asarray(self.values[first] - self.values[second])
        variance = self._variance(first, second)
        degrees = self.degrees[first, second]
        ends = t_interval(number, variance, degrees, self.confidence)
        p_value = np.minimum(1.0, 2 * stdtr(degrees, -np.abs(standardised(number, variance))))
        p_value = np.where(np.isnan(ends[..., 0]), np.nan, p_value)
        if self.logarithm:
            number, ends = np.exp(number), np.exp(ends)
        return Difference(np.asarray(number), ends, p_value)

    def ranks(self, *, seed: int = 0) -> Float64[np.ndarray, "model rank *shape"]:
        """How likely a model has the highest number, the second highest, and so on; ties share their ranks.

        True numbers are taken to lie around those measured as a multivariate Student t distribution has it, with this
        covariance and the least of the degrees of freedom. Exact for two models, by draws for more. NaN where the
        number or the doubt of one of them is not known.
        """
        if len(self) > 2:
            return self._drawn_ranks(seed)
        if len(self) < 2:
            return np.where(np.isnan(self.values), np.nan, 1.0)[:, None]
        from scipy.special import stdtr

        moved = standardised(np.asarray(self.values[0] - self.values[1]), self._variance(0, 1))
        first = np.where(moved == 0, 0.5, stdtr(self.degrees[0, 1], moved))
        first = np.where(np.isnan(self.degrees[0, 1]), np.nan, first)
        return np.stack([[first, 1 - first], [1 - first, first]])

    def _variance(self, first: int, second: int) -> Float64[np.ndarray, "*shape"]:
        own = self.covariance[first, first] + self.covariance[second, second]
        variance = own - 2 * self.covariance[first, second]
        return np.where(variance <= _ROUNDING * own, 0.0, variance)

    def _drawn_ranks(self, seed: int) -> Float64[np.ndarray, "model rank *shape"]:
        n, shape = len(self), self.values.shape[1:]
        generator = np.random.default_rng(seed)
        normal, uniform = generator.standard_normal((_DRAWS, n)), generator.random(_DRAWS)
        values, covariance = self.values.reshape(n, -1), self.covariance.reshape(n, n, -1)
        found = np.full((n, n, values.shape[1]), np.nan)
        least = self.degrees.reshape(n * n, -1).min(0)
        for cell in np.flatnonzero(np.isfinite(values).all(0) & ~np.isnan(least)):
            drawn = values[:, cell, None] + _t_draws(covariance[..., cell], least[cell], normal, uniform)
            found[..., cell] = _shares_of_ranks(drawn)
        return found.reshape(n, n, *shape)


def aligned(every: Sequence[SourceSums]) -> list[Rows]:
    """Sums, counts and squares of several measurements, the same source in the same row.

    A source that only some have measured has no pairs in the others. Where some keep blocks of sources, all do.

    Raises:
        ValueError: for blocks of different numbers.
    """
    if any(part.folded for part in every):
        if len(limits := {part.limit for part in every}) > 1:
            raise ValueError(
                f"sources that are kept in blocks align where all have as many blocks, got {sorted(limits)}: measure "
                "all models with the same limit"
            )
        every = [_in_blocks(part) for part in every]
    rows = [part.rows() for part in every]
    keys = np.unique(np.concatenate([part[0] for part in rows]))
    found = []
    for own, *parts in rows:
        placed = [np.zeros((len(keys), *part.shape[1:])) for part in parts]
        for whole, part in zip(placed, parts, strict=True):
            whole[np.searchsorted(keys, own)] = part
        found.append((placed[0], placed[1], placed[2]))
    return found


def _in_blocks(sums: SourceSums) -> SourceSums:
    folded = SourceSums(sums.limit, shape=sums.shape)
    folded.restore(*sums.rows(), folded=True)
    return folded


def paired_sources(
    every: Sequence[Rows], *, statistic: Compared = "ratio", confidence: float = 0.95
) -> Paired:
    """Models whose sums are `aligned` by source, with what leaving out every source does to all of them at once.

    Conventions are those of `topic_probe.uncertainty.source_interval`: the jackknife over sources, Student's t with
    estimated degrees of freedom, at least eight sources. Ratios are compared by their logarithms where no score is
    negative, otherwise as they are, if no mean below the line is around 0.
    """
    check_interval(0, confidence)
    check_value("statistic", statistic, Compared)
    models, logarithm = moved_by_sources(every, statistic=statistic, confidence=confidence)
    n_sources, n_models, shape = len(every[0][0]), len(every), models[0].values.shape
    covariance, degrees = np.full((2, n_models, n_models, *shape), np.nan)
    if n_sources >= MIN_UNITS:
        for a, b in np.ndindex(n_models, n_models):
            one, other = models[a], models[b]
            covariance[a, b] = jackknifed(one.moved, other.moved)[0]
            least = np.minimum(one.effective, other.effective)
            of_both = degrees_of_freedom(one.moved if a == b else one.moved - other.moved, least[None])[0]
            usable = (least > 0) & one.known & other.known & np.isfinite(covariance[a, b])
            degrees[a, b] = np.where(usable, of_both, np.nan)
    return Paired(np.stack([model.values for model in models]), covariance, degrees, logarithm, confidence)


class Moved(NamedTuple):
    """A number of one model, and how far leaving out each source moves it.

    Attributes:
        values: the number; its logarithm where ratios are compared by these.
        known: whether it is one whose doubt can be told.
        moved: what leaving out a source makes of it, beside the mean of that over all sources.
        effective: how many equal sources carry as many pairs; 0 where fewer than eight do.
    """

    values: Float64[np.ndarray, "*shape"]
    known: Bool[np.ndarray, "*shape"]
    moved: Float64[np.ndarray, "source *shape"]
    effective: Float64[np.ndarray, "*shape"]


def moved_by_sources(
    every: Sequence[Rows], *, statistic: Compared = "ratio", confidence: float = 0.95
) -> tuple[list[Moved], bool]:
    """What every source does to the number of every model, and whether numbers are logarithms of ratios.

    Conventions are those of `paired_sources`, which makes covariances of it.
    """
    numbers = [
        OfSources.of(sums, counts, squares if statistic == "effect_size" else None,
                     statistic="difference" if statistic == "effect_size" else statistic)
        for sums, counts, squares in every
    ]  # fmt: skip
    of_ratio = statistic in ("ratio", "topic_ratio")
    logarithm = of_ratio and all(bool(number.positive.all()) for number in numbers)
    models = []
    for number in numbers:
        value, without, told = _values(number, logarithm, confidence)
        moved = without - without.mean(0) if len(without) else without
        effective = np.asarray(np.min([effective_units(part) for part in number.pairs], axis=0))
        models.append(Moved(value, told & np.isfinite(value), moved, effective))
    return models, logarithm


def _values(
    number: OfSources, logarithm: bool, confidence: float
) -> tuple[Float64[np.ndarray, "*shape"], Float64[np.ndarray, "source *shape"], Bool[np.ndarray, "*shape"]]:
    """What is compared, over all sources and without each of them, and where a mean below the line is not around 0."""
    above, below, above_without, below_without = leaving_out(number.terms, number.sums)
    if below is None or below_without is None:
        return above[0], above_without, np.full(above[0].shape, True)
    with np.errstate(invalid="ignore", divide="ignore"):
        value, without = above / below, above_without / below_without
        if logarithm:
            value, without = np.log(value), np.log(without)
            without = np.where(np.isfinite(without), without, np.nan)
        moved = below_without - below_without.mean(0)
        n = np.full(below.shape, max(len(moved) - 1.0, 1.0))
        low = t_interval(below, jackknifed(moved, moved), n, confidence)[0, ..., 0]
    return np.where(np.isfinite(value), value, np.nan)[0], without, (low > 0) | logarithm


def paired_words(
    every: Sequence[Ends],
    squares: Sequence[Float64[np.ndarray, "word item"]] | None,
    strata: Int64[np.ndarray, "word"],
    *,
    statistic: WordStatistic = "ratio",
    n_resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Paired:
    """Models whose embeddings of the same words, in the same order, were compared, from the same draws of words.

    As `topic_probe.uncertainty.word_intervals` draws words, within their topics: every draw moves all models at once,
    and draws of a difference are narrowed by the share of words, not of single pairs, in the difference itself.

    Args:
        every: what words add to the sums of every model, in one order of words.
        squares: for effect sizes, the squared scores of words, of every model.
        strata: the topic of every word, the same for all models.
        statistic: what is compared. Scores may be negative, so ratios are compared as they are.
        n_resamples: how many draws.
        confidence: what share of intervals is to hold the true number.
        seed: of the draws.
    """
    check_interval(n_resamples, confidence)
    if statistic == "effect_size" and squares is None:
        raise ValueError("effect sizes need the squared scores of words: measure with effect_size=True")
    n_models, n_items = len(every), every[0].same.shape[-1]
    drawn = DrawnWords(every, squares, strata)
    values = np.stack([drawn.whole(number, statistic) for number in range(n_models)])
    variances, degrees = np.full((2, n_models, n_models, n_items), np.nan)
    if len(strata) >= MIN_UNITS and n_resamples > 1:
        effective = [drawn.effective(number) for number in range(n_models)]
        for a, b, variance in _word_variances(drawn, n_models, statistic, n_resamples, seed):
            least = np.minimum(effective[a], effective[b])
            known = (least > 0) & np.isfinite(variance) & np.isfinite(values[a]) & np.isfinite(values[b])
            variances[a, b] = variances[b, a] = variance
            degrees[a, b] = degrees[b, a] = np.where(known, np.maximum(least - 1, 1.0), np.nan)
    own = np.einsum("aai->ai", variances)
    covariance = (own[:, None] + own[None] - np.where(np.eye(n_models)[..., None] > 0, 0.0, variances)) / 2
    return Paired(values, covariance, degrees, False, confidence)


def _word_variances(
    drawn: DrawnWords, n_models: int, statistic: WordStatistic, n_resamples: int, seed: int
) -> Iterator[tuple[int, int, Float64[np.ndarray, "item"]]]:
    """The variance of the difference of every pair of models; of a model and itself that of its number."""
    pairs = [(a, b) for a in range(n_models) for b in range(a, n_models)]
    moved = []
    for number in range(n_models):
        slope = drawn.slope(number, statistic)
        moved.append([slope * part for part in drawn.deviations(number, statistic)])
    narrowings = []
    for a, b in pairs:
        of_both = moved[a] if a == b else [one - other for one, other in zip(moved[a], moved[b], strict=True)]
        narrowings.append(np.sqrt(drawn.share_of_words((of_both[0], of_both[1], of_both[2]))))

    moves = drawn.moves(n_resamples=n_resamples, seed=seed)
    for (a, b), narrowing in zip(pairs, narrowings, strict=True):
        values = drawn.values(a, moves, narrowing, statistic)
        with np.errstate(invalid="ignore"):  # a ratio that has passed 0 in a draw is known of neither
            if a != b:
                values = values - drawn.values(b, moves, narrowing, statistic)
            variance = values.var(0, ddof=1)
        yield a, b, variance


def standardised(
    number: Float64[np.ndarray, "*shape"], variance: Float64[np.ndarray, "*shape"]
) -> Float64[np.ndarray, "*shape"]:
    """In standard errors; infinite where there is no doubt, and 0 of nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(number == 0, 0.0, number / np.sqrt(variance))


def _t_draws(
    covariance: Float64[np.ndarray, "model model"],
    degrees: float,
    normal: Float64[np.ndarray, "draw model"],
    uniform: Float64[np.ndarray, " draw"],
) -> Float64[np.ndarray, "model draw"]:
    """Deviations of a multivariate Student t distribution, from standard normal and uniform numbers."""
    return np.asarray(root_of(covariance) @ normal.T * student_scale(degrees, uniform))


def root_of(covariance: Float64[np.ndarray, "model model"]) -> Float64[np.ndarray, "model model"]:
    """The symmetric root of a covariance; directions in which it is below rounding, or negative, are left out."""
    size, axes = np.linalg.eigh(covariance)
    return np.asarray((axes * np.sqrt(np.where(size > _ROUNDING * size.max(initial=0), size, 0.0))) @ axes.T)


def student_scale(degrees: float, uniform: Float64[np.ndarray, " draw"]) -> Float64[np.ndarray, " draw"]:
    """What makes normal draws those of a Student t distribution, from uniform numbers."""
    from scipy.special import gammaincinv

    return np.asarray(np.sqrt(degrees / (2 * gammaincinv(degrees / 2, uniform))))


def _shares_of_ranks(drawn: Float64[np.ndarray, "model draw"]) -> Float64[np.ndarray, "model rank"]:
    """How often every model is at every rank, the highest first; those that tie have a share of each of their ranks."""
    slack = 1e-9 * np.abs(drawn).max(0)
    above = (drawn[None] > drawn[:, None] + slack).sum(1)  # [model, draw]: how many others are higher
    tied = (np.abs(drawn[None] - drawn[:, None]) <= slack).sum(1)
    rank = np.arange(len(drawn))[None, :, None]
    there = (rank >= above[:, None]) & (rank < (above + tied)[:, None])
    return np.asarray((there / tied[:, None]).mean(2))
