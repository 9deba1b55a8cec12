"""When curves leave their untrained values, and which of them does first.

A curve is an estimate with a cell for every step, so it has what each source (or word, or training) does to it at all
of them. Random weights of these move all steps of all curves at once, as other sources, words and trainings would
have: from such draws come bands over all steps, p-values, and how likely one curve begins before another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float64, Int64

from topic_probe.contrast import estimate_of_sources
from topic_probe.estimate import (
    N_DRAWS,
    Ends,
    Estimate,
    benjamini_hochberg,
    max_t,
    over_seeds,
    over_words,
    standardised,
)
from topic_probe.measure.heads import layer_starts
from topic_probe.options import check_confidence
from topic_probe.report import as_text

if TYPE_CHECKING:
    import pandas as pd

By = Literal["step", "layer", "head"]
Chosen = Literal["effect_size", "difference", "ratio"]

# What a step keeps, by what was measured: sums by source, and what every word adds to those of embeddings.
Kept = Mapping[str, Mapping[str, Any]]

# A band has to exclude 0 at so many checkpoints in a row, on one side of it.
IN_A_ROW = 3


@dataclass(frozen=True, eq=False)
class Curve:
    """A number at the steps at which it was measured, and how far each source or word moves it."""

    name: str
    steps: Int64[np.ndarray, " step"]
    estimate: Estimate

    def __sub__(self, other: "Curve") -> "Curve":
        """What a curve has more than another one of the same sources and words, at the steps of both."""
        mine, theirs = np.isin(self.steps, other.steps), np.isin(other.steps, self.steps)
        return Curve(self.name, self.steps[mine], self.estimate[mine] - other.estimate[theirs])


def mean_of(curves: Sequence[Curve]) -> Curve:
    """The mean of a curve over three trainings or more, which also varies with these; all have the same steps."""
    values = np.stack([one.estimate.value for one in curves])
    factors = [one.estimate.factors[0] for one in curves]
    influence, df = (
        np.stack(part) for part in zip(*((one.influence, one.df) for one in factors), strict=True)
    )
    noise = [one.noise for one in factors if one.noise is not None]
    shared = replace(
        factors[0], influence=influence.mean(0), df=df.min(0), noise=np.mean(noise, 0) if noise else None
    )
    mean = Estimate(values.mean(0), (shared,), curves[0].estimate.log)
    return Curve(curves[0].name, curves[0].steps, mean.crossed(*over_seeds(values).factors))


# --- curves of what steps keep ------------------------------------------------------------------------


def curves_of(
    steps: Sequence[int], rows: Sequence[Kept], by: By, statistic: Chosen = "effect_size"
) -> list[Curve]:
    """A curve for everything that was measured, as `SeriesReport.contrasts` names it.

    Sources that several measurements have are the same ones for all of them, and for all steps.
    """
    found = []
    words = {step: row["embeddings"] for step, row in zip(steps, rows, strict=True) if "embeddings" in row}
    if words and by == "step":
        found.append(_of_words(words, statistic))
    parts = {
        what: {step: row[what] for step, row in zip(steps, rows, strict=True) if what in row}
        for what in ("states", "attention")
        if what == "attention" or by != "head"
    }
    every = [part["keys"] for own in parts.values() for part in own.values()]
    keys = np.unique(np.concatenate(every)) if every else np.zeros(0, np.int64)
    for what, own in parts.items():
        if own:
            found += _of_sources(what, own, keys, by, statistic)
    return found


def _of_sources(
    what: str,
    parts: Mapping[int, Mapping[str, Any]],
    keys: Int64[np.ndarray, " source"],
    by: By,
    statistic: Chosen,
) -> list[Curve]:
    """The curves of cells whose sums are kept by source."""
    index = next(iter(parts.values()))["index"]
    starts = _starts(what, index, by)
    tables = [_in_rows(part, keys, starts) for part in parts.values()]
    names = _names(what, {name: [cells[start] for start in starts] for name, cells in index.items()}, by)
    found = []
    for cell, name in enumerate(names):
        sums, counts, squares = (np.stack([table[i][:, cell] for table in tables], 1) for i in range(3))
        positive = bool((sums[..., 1:] >= 0).all())
        number = estimate_of_sources(sums, counts, squares, statistic=statistic, positive=positive)
        logarithms = np.broadcast_to(number.log, number.value.shape)
        found.append(Curve(name, np.array(list(parts)), replace(number, log=logarithms)))
    return found


def _in_rows(part: Mapping[str, Any], keys: np.ndarray, starts: Sequence[int]) -> list[np.ndarray]:
    """Sums, numbers of pairs and squares of cells, every source in its row."""
    sums, at = np.asarray(part["sums"]), np.searchsorted(keys, part["keys"])
    found = []
    for values in (sums, np.broadcast_to(part["counts"], sums.shape), np.asarray(part["squares"])):
        pooled = np.add.reduceat(values, starts, axis=1) if len(starts) < sums.shape[1] else values
        found.append(np.zeros((len(keys), *pooled.shape[1:])))
        found[-1][at] = pooled
    return found


def _starts(what: str, index: Mapping[str, Any], by: By) -> list[int]:
    """Where the groups of cells begin that a curve is of; of states by step the last layer alone."""
    n = len(next(iter(index.values())))
    if what == "states":
        return list(range(n)) if by == "layer" else [n - 1]
    return {"step": [0], "layer": layer_starts(index), "head": list(range(n))}[by]


def _names(what: str, index: Mapping[str, Any], by: By) -> list[str]:
    if what == "states":
        return [f"states of layer {layer}" for layer in index["layer"]]
    if by == "step":
        return ["attention"]
    return cell_names(index if by == "head" else {name: index[name] for name in ("stack", "layer")})


def cell_names(index: Mapping[str, Sequence[Any]]) -> list[str]:
    """What layers or heads are called: "attention of layer 3", "L3H7", with their stack where there are several."""
    layers = [f"L{layer}H" if "head" in index else f"attention of layer {layer}" for layer in index["layer"]]
    names = [
        f"{layer}{head}" for layer, head in zip(layers, index.get("head", [""] * len(layers)), strict=True)
    ]
    several = len({*index["stack"]}) > 1
    return [f"{stack} {name}" if several else name for stack, name in zip(index["stack"], names, strict=True)]


def _of_words(parts: Mapping[int, Mapping[str, Any]], statistic: Chosen) -> Curve:
    """The curve of cosines of embeddings; a word that a step lacks has no pairs there."""
    forms = np.unique(np.concatenate([part["form"] for part in parts.values()]))
    strata, n, n_steps = np.zeros(len(forms), np.int64), len(forms), len(parts)
    ends = Ends(*(np.zeros((2, n, n_steps)) for _ in Ends._fields))
    squares = np.zeros((n, n_steps))
    for step, part in enumerate(parts.values()):
        at = np.searchsorted(forms, part["form"])
        strata[at], squares[at, step] = part["strata"], part["squares"].reshape(len(at))
        for whole, name in zip(ends, Ends._fields, strict=True):
            whole[:, at, step] = part[name].reshape(2, len(at))
    return Curve("embeddings", np.array(list(parts)), over_words(ends, squares, strata, statistic=statistic))


# --- onsets -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Change:
    """How far a curve has come since it was untrained.

    Attributes:
        name: of the curve.
        against: the step of the untrained value; NaN where there is none.
        steps: those that can be judged.
        estimate: how far it has come at each.
        reason: why there is nothing.
    """

    name: str
    against: float
    steps: Int64[np.ndarray, " step"]
    estimate: Estimate
    reason: str = ""

    @property
    def degrees(self) -> float:
        """Of freedom. Each step's is a rough estimate and the least of many too low, so they are averaged.

        2 ÷ degrees is the relative variance of a variance.
        """
        return float(1 / (1 / self.estimate.df).mean())

    @property
    def errors(self) -> Float64[np.ndarray, " step"]:
        """Standard errors."""
        return np.asarray(np.sqrt(self.estimate.variance))

    def drawn(self, seed: int) -> Float64[np.ndarray, "draw step"]:
        """In standard errors, how far it has come in draws around what was measured; the same units move all curves."""
        moved = self.estimate.draws(seed=seed, df=self.degrees)
        return standardised(self.estimate.value + moved, self.estimate.variance)


def change(curve: Curve, first_step: int = 0) -> Change:
    """How far a curve of a series has come since its untrained value: that of step 0, or of the first checkpoint."""
    estimate, none = curve.estimate, np.zeros(0, np.int64)
    known = np.flatnonzero(np.isfinite(estimate.value))
    if not len(known):
        return Change(curve.name, np.nan, none, estimate[none], "nothing was measured")
    if first_step == 0 and curve.steps[known[0]] != 0:
        why = "there is no untrained value: step 0 could not be measured"
        return Change(curve.name, np.nan, none, estimate[none], why)
    against, later = float(curve.steps[known[0]]), known[1:]
    moved = estimate[later] - estimate[np.repeat(known[:1], len(later))]
    judged = np.flatnonzero(np.isfinite(moved.df))
    why = ""
    if len(judged) < IN_A_ROW:
        n = len(later)
        why = f"{n} checkpoint{'s' * (n != 1)} after step {against:.0f} measured, {IN_A_ROW} are needed"
        if n >= IN_A_ROW:
            why = f"fewer than 8 {estimate.factors[0].name} have pairs of both kinds"
    return Change(curve.name, against, curve.steps[later[judged]], moved[judged], why)


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
        p_values, q_values: of every curve; NaN where nothing is known.
        of_bands: what share of bands is to hold the whole of its curve.
        reaches: how many standard errors wide the band of every curve is to either side.
        steps: the first step of every curve that is called; NaN of others.
        drawn: the step at which every curve begins in every draw; infinite where it never does.
    """

    def __init__(self, changes: Sequence[Change], confidence: float = 0.95, seed: int = 0) -> None:
        check_confidence(confidence)
        self.changes = changes
        known = [i for i, one in enumerate(changes) if not one.reason]
        furthest = {i: max_t(changes[i].estimate, seed=seed, df=changes[i].degrees) for i in known}
        n = len(changes)
        self.p_values, self.reaches, self.steps = (np.full(n, np.nan) for _ in range(3))
        self.drawn = np.full((N_DRAWS, n), np.inf)
        for i in known:
            self.p_values[i] = _p_value(changes[i], furthest[i])
        self.q_values = benjamini_hochberg(self.p_values)
        called = self.q_values <= 1 - confidence
        self.of_bands = 1 - (1 - confidence) * max(int(called.sum()), 1) / max(1, len(known))
        for i in known:
            one, reach = changes[i], _reach(changes[i], furthest[i], 1 - self.of_bands)
            self.reaches[i], steps = reach, np.append(one.steps, np.inf)
            self.drawn[:, i] = steps[_starts_of(one.drawn(seed), reach)]
            if called[i]:
                self.steps[i] = steps[_starts_of(one.estimate.standardised[None], reach)[0]]

    def band(self, i: int) -> Float64[np.ndarray, "step 2"]:
        """The ends of the band of a curve around its change."""
        one = self.changes[i]
        with np.errstate(invalid="ignore"):
            width = np.where(one.errors == 0, 0.0, self.reaches[i] * one.errors)
        return np.stack([one.estimate.value - width, one.estimate.value + width], -1)

    def __repr__(self) -> str:
        return as_text(self.to_dataframe())

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every curve: its onset (NaN: none), how sure that is, since which step; or why nothing is known."""
        import pandas as pd

        return pd.DataFrame(
            {
                "measured": [one.name for one in self.changes],
                "onset": self.steps,
                "p_value": self.p_values,
                "q_value": self.q_values,
                "against": [one.against for one in self.changes],
                "reason": [one.reason for one in self.changes],
            }
        )

    def order(self) -> "pd.DataFrame":
        """How likely each curve begins before each other one; one that never begins is after all that do.

        ``together`` is how likely both begin at the same checkpoint; the four shares add up to 1.
        """
        import pandas as pd

        rows = []
        for a, b in combinations(range(len(self.changes)), 2):
            one, other = self.drawn[:, a], self.drawn[:, b]
            neither = np.isinf(one) & np.isinf(other)
            shares = one < other, (one == other) & ~neither, one > other, neither
            known = not (self.changes[a].reason or self.changes[b].reason)
            names = self.changes[a].name, self.changes[b].name
            rows.append((*names, *(share.mean() if known else np.nan for share in shares)))
        return pd.DataFrame(rows, columns=["first", "second", "before", "together", "after", "neither"])

    def bands(self) -> "pd.DataFrame":
        """A row for every curve and step: value − untrained value, with the band that onsets go by."""
        import pandas as pd

        tables = [
            pd.DataFrame(
                {
                    "measured": one.name,
                    "step": one.steps,
                    "change": one.estimate.value,
                    "low": low,
                    "high": high,
                }
            )
            for one, (low, high) in ((one, self.band(i).T) for i, one in enumerate(self.changes))
        ]
        return pd.concat(tables, ignore_index=True)


def _p_value(one: Change, furthest: Float64[np.ndarray, " draw"]) -> float:
    from scipy.special import stdtr

    rows = _in_a_row(one.estimate.standardised)
    least = float(np.maximum(rows.min(-1), -rows.max(-1)).max(initial=0.0))
    as_far = len(furthest) - int(np.searchsorted(furthest, least, side="left"))
    by_draws = (1 + as_far) / (1 + len(furthest))
    return float(min(1.0, by_draws, 2 * len(one.steps) * stdtr(one.degrees, -least)))


def _reach(one: Change, furthest: Float64[np.ndarray, " draw"], level: float) -> float:
    """How many standard errors wide a band is that does not hold its curve so often."""
    from scipy.special import stdtrit

    beyond = int(np.floor(level * (1 + len(furthest)) + 1e-9)) - 1  # so many draws may lie further off
    by_draws = furthest[len(furthest) - 1 - beyond] if beyond >= 0 else np.inf
    return float(min(by_draws, -stdtrit(one.degrees, level / (2 * len(one.steps)))))


def _in_a_row(values: Float64[np.ndarray, "*draw step"]) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(values, IN_A_ROW, axis=-1)


def _starts_of(drawn: Float64[np.ndarray, "draw step"], reach: float) -> Int64[np.ndarray, " draw"]:
    """Where the first so many in a row lie beyond the reach; −1 where none do."""
    rows = _in_a_row(drawn)
    beyond = (rows.min(-1) > reach) | (rows.max(-1) < -reach)
    return np.where(beyond.any(-1), beyond.argmax(-1), -1)
