"""A claim is data: a sentence of the paper, numbers, bounds, controls. Its verdict follows from a table of numbers.

The table has a row for every training (or model and threshold) with every seed, as it is and with something broken
(``control``). A claim holds of a training where the whole interval of each of its numbers lies inside the bounds and no
control passes. A control *passes* where its mean is inside the bounds and the interval of claim − control, seed by
seed, holds 0: what was broken made no difference then, and the claim holds also without it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95
VERDICTS = ("error", "does not hold", "undecided", "also without", "holds", "not checked")
"""What may be said of a claim, in the order in which it is shown: what a reader must not miss comes first."""


@dataclass(frozen=True)
class Bound:
    """Where a number has to lie.

    Attributes:
        quantity: Column of the table of numbers.
        above: It must be larger.
        below: It must be smaller.
        beyond: Another column that it must exceed, too: what shuffled labels reach in 2.5 of 100 cases.
    """

    quantity: str
    above: float = -math.inf
    below: float = math.inf
    beyond: str = ""

    def holds(self, low: float, high: float) -> bool:
        """Whether a whole interval lies inside."""
        return self.above < low and high < self.below

    def fails(self, low: float, high: float) -> bool:
        """Whether a whole interval lies outside."""
        return high <= self.above or low >= self.below

    @property
    def text(self) -> str:
        """The bounds as text, ``> 1.1`` or ``0.9 … 1.1``."""
        if math.isinf(self.below):
            text = f"> {self.above:g}"
        elif math.isinf(self.above):
            text = f"< {self.below:g}"
        else:
            text = f"{self.above:g} … {self.below:g}"
        return f"{text} and above shuffled labels" if self.beyond else text


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the numbers that it is about, and where it must fail.

    Attributes:
        id: What it is called, unique over all recipes.
        source: Where it stands.
        says: The sentence.
        bounds: Its numbers and where these have to lie; every one must.
        of: Which rows of the table it is about, a query of their columns (`pandas.DataFrame.query`); empty: all that
            have the numbers.
        controls: Names of what is broken, such as those of `topic_probe.paper.trainings.CONTROLS`. Without any the
            claim describes.
        ours: Whether the sentence is ours and not the paper's.
        whole_only: Why the quick variant does not check it; empty where it does.
        never: Why it is not checked at all.
        absent: Why there may be nothing that it is about.
        line: The line of the short summary that it belongs to.
        shown: How its first number is printed, ``{:.0%} of words``.
    """

    id: str
    source: str
    says: str
    bounds: tuple[Bound, ...]
    of: str = ""
    controls: tuple[str, ...] = ()
    ours: bool = False
    whole_only: str = ""
    never: str = ""
    absent: str = ""
    line: str = ""
    shown: str = "{:.3g}"

    def unchecked(self, *, quick: bool) -> str:
        """Why it is not checked; empty where it is."""
        return self.never or (self.whole_only if quick else "")


def over_seeds(values: Sequence[float] | Float64[np.ndarray, " seed"]) -> tuple[float, float, float]:
    """Mean of one number per seed and the ends of Student's 95 % interval; NaN where one is undefined.

    Of a single number the interval is that number.
    """
    from scipy.stats import t as student

    numbers = np.asarray(values, dtype=np.float64)
    if not len(numbers) or not np.isfinite(numbers).all():
        return math.nan, math.nan, math.nan
    mean = float(numbers.mean())
    if len(numbers) == 1:
        return mean, mean, mean
    quantile = student.ppf((1 + LEVEL) / 2, len(numbers) - 1)
    half = float(quantile * numbers.std(ddof=1) / math.sqrt(len(numbers)))
    return mean, mean - half, mean + half


def judge(claim: Claim, numbers: "pd.DataFrame", *, quick: bool, missing: str = "") -> dict[str, Any]:
    """What follows from a table of numbers for a claim: plain values, one of them the ``verdict``.

    Args:
        claim: the claim.
        numbers: a row for every training, control (empty for none) and seed. Numbers that come with an interval of
            their own have it in the columns ``NAME low`` and ``NAME high``.
        quick: whether the table is that of a quick variant.
        missing: why a table without the claim's rows has none.
    """
    why, panels = claim.unchecked(quick=quick), []
    quantities = [bound.quantity for bound in claim.bounds]
    if not why and set(quantities) <= set(numbers.columns):
        known = numbers.dropna(subset=quantities, how="all")
        own = known[known["control"] == ""]
        if claim.of:
            own = own.query(claim.of)
        names = own["training"].unique()
        panels = [_panel(claim, known[known["training"] == training], training) for training in names]
    if not panels and not why:
        why = missing or claim.absent or "nothing was measured that it is about"
    return {
        "id": claim.id,
        "says": claim.says,
        "source": claim.source,
        "ours": claim.ours,
        "line": claim.line,
        "shown": claim.shown,
        "wanted": [f"{bound.quantity} {bound.text}" for bound in claim.bounds],
        "panels": panels,
        "verdict": min((panel["verdict"] for panel in panels), key=VERDICTS.index, default="not checked"),
        "why": why,
    }


def _panel(claim: Claim, rows: "pd.DataFrame", training: str) -> dict[str, Any]:
    """What is said of one training."""
    own = rows[rows["control"] == ""].set_index("seed")
    found = [_number(bound, own) for bound in claim.bounds]
    intervals = [(bound, one["low"], one["high"]) for bound, one in zip(claim.bounds, found, strict=True)]
    controls = {
        name: _control(claim, own, rows[rows["control"] == name].set_index("seed"))
        for name in claim.controls
        if (rows["control"] == name).any()
    }
    if any(bound.fails(low, high) for bound, low, high in intervals):
        verdict = "does not hold"
    elif not all(bound.holds(low, high) for bound, low, high in intervals):
        verdict = "undecided"
    elif not all(one["beyond"] for one in found):
        verdict = "does not hold"
    elif any(control["passes"] for control in controls.values()):
        verdict = "also without"
    elif claim.controls and not controls:
        verdict = "undecided"  # nothing tells whether it could fail
    else:
        verdict = "holds"
    return {"training": training, "numbers": found, "controls": controls, "verdict": verdict}


def _number(bound: Bound, rows: "pd.DataFrame") -> dict[str, Any]:
    """The mean of a number with its interval, and whether it is beyond shuffled labels."""
    name = bound.quantity
    value, low, high = over_seeds(rows[name].to_numpy(dtype=np.float64))
    if f"{name} low" in rows.columns:  # of every seed, so that none may be outside
        low, high = float(rows[f"{name} low"].min()), float(rows[f"{name} high"].max())
    beyond = not bound.beyond or bool((rows[name] > rows[bound.beyond]).all())
    return {"quantity": name, "value": value, "low": low, "high": high, "n": len(rows), "beyond": beyond}


def _control(claim: Claim, own: "pd.DataFrame", broken: "pd.DataFrame") -> dict[str, Any]:
    """The means of a control, and whether it passes for what is claimed."""
    means = [float(broken[bound.quantity].mean()) for bound in claim.bounds]
    return {
        "values": means,
        "passes": all(
            bound.holds(mean, mean) and _no_difference(own[bound.quantity], broken[bound.quantity])
            for bound, mean in zip(claim.bounds, means, strict=True)
        ),
    }


def _no_difference(own: "pd.Series[float]", broken: "pd.Series[float]") -> bool:
    """Whether the interval of claim − control, seed by seed, holds 0; undefined differences do not say that."""
    _, low, high = over_seeds((own - broken).dropna().to_numpy(dtype=np.float64))
    return low <= 0 <= high


def wanted_controls(claims: Sequence[Claim], rows: "pd.DataFrame", *, quick: bool) -> Mapping[str, set[str]]:
    """Training → names of the controls that some checked claim needs of it; ``rows`` describes the trainings."""
    found: dict[str, set[str]] = {}
    for claim in claims:
        if not claim.unchecked(quick=quick):
            for training in (rows.query(claim.of) if claim.of else rows)["training"]:
                found.setdefault(training, set()).update(claim.controls)
    return found
