"""When curves leave their untrained values, and which of them does first; of numbers alone.

Every curve comes with what each source, or each independent direction of words, does to it at every step. Random
weights of these move all steps of all curves at once, as other sources, words and trainings would have: from such draws
come bands over all steps, p-values, and how likely one curve begins before another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from topic_probe.estimate import (
    benjamini_hochberg,
    degrees_of_freedom,
    standardised,
    student_scale,
    t_interval,
)

Kind = Literal["sources", "words", "trainings"]

# A band has to exclude 0 at so many checkpoints in a row, on one side of it.
IN_A_ROW = 3
# Behind bands and probabilities: a share of them is within 0.022 of the probability.
_DRAWS = 2000
# Numbers that differ by less than this share of their size differ by rounding.
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Curve:
    """A number at every step of one or several trainings, and how far sources or words move it.

    Attributes:
        name: what it is of.
        values: the number; NaN where it was not measured.
        units: how far each source, or direction of words, moves it: products of these add up to covariances.
        effective: how many equal sources or words there are; 0 where fewer than eight have pairs of both kinds.
        kind: of what units are; curves of one kind have the same ones.
    """

    name: str
    values: Float64[np.ndarray, "training step"]
    units: Float64[np.ndarray, "unit training step"]
    effective: Float64[np.ndarray, "training step"]
    kind: Kind

    def of(self, training: int) -> "Curve":
        """That of one of the trainings."""
        one = slice(training, training + 1)
        return Curve(self.name, self.values[one], self.units[:, one], self.effective[one], self.kind)


@dataclass(frozen=True, eq=False)
class Change:
    """How far a curve has come at some steps since another one.

    Attributes:
        name: of the curve.
        against: the place of the step since which; -1 where there is none.
        places: those of the steps that are known; where fewer than eight sources or words have pairs none is.
        number: how far it has come; the mean of several trainings.
        errors: its standard errors.
        degrees: of freedom of these.
        parts: how far each source, word and training moves it.
        reason: why there is nothing.
    """

    name: str
    against: int
    places: Int64[np.ndarray, " step"]
    number: Float64[np.ndarray, " step"]
    errors: Float64[np.ndarray, " step"]
    degrees: float
    parts: Mapping[Kind, Float64[np.ndarray, "unit step"]]
    reason: str = ""

    @property
    def standardised(self) -> Float64[np.ndarray, " step"]:
        """In standard errors; infinite where there is no doubt."""
        return standardised(self.number, self.errors**2)


def change(curve: Curve, against: int, places: Sequence[int]) -> Change:
    """How far a curve has come at some steps since another one, in all of its trainings together.

    Its variance is that of sources (or words), which all trainings share, and, of several, that between trainings, each
    with its degrees of freedom (Satterthwaite).
    """
    moved = curve.values - curve.values[:, [against]]
    measured = [place for place in places if np.isfinite(moved[:, place]).all()]
    if not measured:
        return nothing(curve.name, against, "nothing was measured")
    found = [place for place in measured if (curve.effective[:, [against, place]] > 0).all()]
    if not found:
        return nothing(curve.name, against, f"fewer than 8 {curve.kind} have pairs of both kinds")
    units = curve.units - curve.units[:, :, [against]]
    of_units = units.mean(1)[:, found]
    own = (curve.units[:, :, found] ** 2).sum((0, 1)) + (curve.units[:, :, against] ** 2).sum()
    variance = (of_units**2).sum(0)
    of_units = np.where(variance <= _ROUNDING * own, 0.0, of_units)
    least = curve.effective[:, [against, *found]].min()
    degrees = np.full(len(found), max(least - 1, 1.0))
    if curve.kind == "sources":
        # 2 ÷ degrees is the relative variance of a variance. Each of these is a rough estimate, and the least of many
        # is too low, so they are averaged over steps.
        each = degrees_of_freedom(of_units, np.full(len(found), least - 1))
        degrees[:] = 1 / (1 / each).mean()
    variance, parts = (of_units**2).sum(0), {curve.kind: of_units}
    if (n := len(curve.values)) > 1:
        between = (moved - moved.mean(0))[:, found] / np.sqrt(n * (n - 1))
        parts["trainings"] = between
        more = (between**2).sum(0)
        of_both = variance**2 / degrees + more**2 / (n - 1)
        variance = variance + more
        with np.errstate(invalid="ignore"):
            degrees = np.where(variance > 0, variance**2 / of_both, degrees)
    number = moved.mean(0)[found]
    number = np.where(np.abs(number) <= _ROUNDING * np.abs(curve.values[:, found]).max(0), 0.0, number)
    return Change(
        curve.name, against, np.array(found), number, np.sqrt(variance), float(degrees.min()), parts
    )


def difference(curve: Curve) -> Curve:
    """What the first half of the trainings of a curve has more than the second, each more than its counterpart.

    All have the same sources or words, so what one of these does to both drops out.
    """
    values, units, n = curve.values, curve.units, len(curve.values) // 2
    effective = np.minimum(curve.effective[:n], curve.effective[n:])
    return Curve(curve.name, values[:n] - values[n:], units[:, :n] - units[:, n:], effective, curve.kind)


def paired_difference(found: Change, confidence: float) -> tuple[float, float, float, float]:
    """A change at a single step: the number, the ends of its interval, and its two-sided p-value."""
    from scipy.special import stdtr

    if found.reason:
        return (float("nan"),) * 4
    low, high = t_interval(found.number, found.errors**2, np.array([found.degrees]), confidence)[0]
    p_value = 2 * stdtr(found.degrees, -np.abs(found.standardised[0]))
    return float(found.number[0]), float(low), float(high), float(min(1.0, p_value))


def nothing(name: str, against: int, reason: str) -> Change:
    """No change of a curve, with the reason."""
    none = np.zeros(0)
    return Change(name, against, np.zeros(0, np.int64), none, none, np.nan, {}, reason)


class Draws:
    """Weights of sources, words and trainings, the same for all curves of a table."""

    def __init__(self, seed: int, n: int = _DRAWS) -> None:
        self.seed, self.n = seed, n
        self._weights: dict[Kind, Float64[np.ndarray, "draw unit"]] = {}
        self.uniform = np.random.default_rng([seed, 3]).random(n)

    def of(self, change: Change) -> Float64[np.ndarray, "draw step"]:
        """How far a change moves, as a multivariate Student t distribution has it."""
        moved = sum(self._of(kind, len(units)) @ units for kind, units in change.parts.items())
        return np.asarray(moved * student_scale(change.degrees, self.uniform)[:, None])

    def _of(self, kind: Kind, n: int) -> Float64[np.ndarray, "draw unit"]:
        if kind not in self._weights:
            number = ("sources", "words", "trainings").index(kind)
            self._weights[kind] = np.random.default_rng([self.seed, number]).standard_normal((self.n, n))
        return self._weights[kind]


@dataclass(frozen=True, eq=False)
class Onsets:
    """From which step on each of several curves is told from its untrained value.

    The p-value of a curve is the chance that a band over all of its steps is left as far as the curve leaves it at
    three checkpoints in a row: of max |t| over its steps, at the least |t| of the three where that is largest. That
    chance is the smaller one of what draws and what Bonferroni's inequality say. Over all curves it is corrected by
    Benjamini and Hochberg's procedure, and bands are those that go with it (Benjamini and Yekutieli 2005): where R of m
    curves are called, each band holds 1 − (1 − confidence) R/m. So a curve is called where its band excludes 0 at three
    checkpoints in a row, and nowhere else.

    Attributes:
        changes: since the untrained step.
        draws: of all of them.
        confidence: the share of false ones among those that are called is at most what is left of 1.
    """

    changes: Sequence[Change]
    draws: Draws
    confidence: float = 0.95

    @cached_property
    def _furthest(self) -> list[Float64[np.ndarray, " draw"]]:
        """Of draws around no change at all, the largest |t| of every curve, in ascending order."""
        return [
            np.sort(np.abs(_in_errors(self.draws.of(one), one.errors)).max(1))
            if not one.reason
            else np.zeros(0)
            for one in self.changes
        ]

    @cached_property
    def p_values(self) -> Float64[np.ndarray, " curve"]:
        """Of every curve; NaN where nothing is known."""
        return np.array([self._p_value(number) for number in range(len(self.changes))])

    @cached_property
    def q_values(self) -> Float64[np.ndarray, " curve"]:
        """Corrected for the number of curves."""
        return benjamini_hochberg(self.p_values)

    @property
    def of_bands(self) -> float:
        """What share of bands is to hold the whole of its curve."""
        tested = max(1, int((~np.isnan(self.p_values)).sum()))
        called = int((self.q_values <= 1 - self.confidence).sum())
        return 1 - (1 - self.confidence) * max(called, 1) / tested

    @cached_property
    def reaches(self) -> Float64[np.ndarray, " curve"]:
        """How many standard errors wide the band of every curve is to either side."""
        return np.array([self._reach(number) for number in range(len(self.changes))])

    @cached_property
    def places(self) -> list[int | None]:
        """The place of the first step of every curve that is called."""
        found = []
        for number, one in enumerate(self.changes):
            start = None
            if not one.reason and self.q_values[number] <= 1 - self.confidence:
                start = int(_starts(one.standardised[None], self.reaches[number])[0])
            found.append(None if start is None else int(one.places[start]))
        return found

    @cached_property
    def drawn(self) -> Float64[np.ndarray, "draw curve"]:
        """The place at which every curve begins in every draw; infinite where it never does."""
        found = np.full((self.draws.n, len(self.changes)), np.inf)
        for number, one in enumerate(self.changes):
            if one.reason:
                continue
            drawn = _in_errors(one.number + self.draws.of(one), one.errors)
            start = _starts(drawn, self.reaches[number])
            places = np.append(one.places.astype(float), np.inf)
            found[:, number] = places[start]
        return found

    def comes_first(self) -> Float64[np.ndarray, " curve"]:
        """How likely every curve begins before all others; those that begin together share it."""
        first = self.drawn.min(1, keepdims=True, initial=np.inf)
        tied = (self.drawn == first) & np.isfinite(first)
        shares = tied / np.maximum(tied.sum(1, keepdims=True), 1)
        unknown = [bool(one.reason) for one in self.changes]
        return np.where(unknown, np.nan, shares.mean(0))

    def order(self, first: int, second: int) -> "Order":
        """How likely one of two curves begins before the other."""
        if any(self.changes[number].reason for number in (first, second)):
            return Order(*[float("nan")] * 4)
        one, other = self.drawn[:, first], self.drawn[:, second]
        neither = np.isinf(one) & np.isinf(other)
        shares = one < other, (one == other) & ~neither, one > other, neither
        return Order(*(float(share.mean()) for share in shares))

    def band(self, number: int) -> Float64[np.ndarray, "step 2"]:
        """The ends of the band of a curve around its change."""
        one, reach = self.changes[number], self.reaches[number]
        with np.errstate(invalid="ignore"):
            width = np.where(one.errors == 0, 0.0, reach * one.errors)
        return np.stack([one.number - width, one.number + width], -1)

    def _p_value(self, number: int) -> float:
        from scipy.special import stdtr

        one, furthest = self.changes[number], self._furthest[number]
        if one.reason:
            return float("nan")
        least = _least_in_a_row(one.standardised)
        as_far = len(furthest) - int(np.searchsorted(furthest, least, side="left"))
        by_draws = (1 + as_far) / (1 + len(furthest))
        return float(min(1.0, by_draws, 2 * len(one.places) * stdtr(one.degrees, -least)))

    def _reach(self, number: int) -> float:
        from scipy.special import stdtrit

        one, furthest, level = self.changes[number], self._furthest[number], 1 - self.of_bands
        if one.reason:
            return float("nan")
        beyond = int(np.floor(level * (1 + len(furthest)) + 1e-9)) - 1  # so many draws may lie further off
        by_draws = furthest[len(furthest) - 1 - beyond] if beyond >= 0 else np.inf
        return float(min(by_draws, -stdtrit(one.degrees, level / (2 * len(one.places)))))


class Order(NamedTuple):
    """How likely one of two begins first; the four add up to 1."""

    before: float
    together: float
    after: float
    neither: float


def _in_errors(
    values: Float64[np.ndarray, "draw step"], errors: Float64[np.ndarray, " step"]
) -> Float64[np.ndarray, "draw step"]:
    return standardised(values, np.broadcast_to(errors**2, values.shape))


def _in_a_row(values: Float64[np.ndarray, "*draw step"]) -> Float64[np.ndarray, "*draw window checkpoint"]:
    return np.lib.stride_tricks.sliding_window_view(values, IN_A_ROW, axis=-1)


def _least_in_a_row(numbers: Float64[np.ndarray, " step"]) -> float:
    """The least of so many in a row on one side of 0, where that is largest."""
    rows = _in_a_row(numbers)
    return float(np.maximum(rows.min(-1), -rows.max(-1)).max(initial=0.0))


def _starts(drawn: Float64[np.ndarray, "draw step"], reach: float) -> Int64[np.ndarray, " draw"]:
    """Where the first so many in a row lie beyond the reach; −1 where none do."""
    rows = _in_a_row(drawn)
    beyond = (rows.min(-1) > reach) | (rows.max(-1) < -reach)
    return np.where(beyond.any(-1), beyond.argmax(-1), -1)
