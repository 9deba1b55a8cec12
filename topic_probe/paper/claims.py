"""What a source says must be seen, what was seen, what is seen where it must not be, and the verdict of the three."""

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from topic_probe.contrast import Contrast
from topic_probe.report import VERDICTS, Verdict
from topic_probe.uncertainty import with_interval

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Number:
    """A measured number and the interval around it.

    Attributes:
        value: The number; NaN where it is undefined.
        low: Lower end of its 95 % interval; NaN where it has none.
        high: Upper end.
        of: What the interval is over, ``5 seeds``; empty without one.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    of: str = ""

    @property
    def ends(self) -> tuple[float, float]:
        """Low and high; the number itself where it has no interval."""
        exact = math.isnan(self.low) and math.isnan(self.high) and not self.of
        return (self.value, self.value) if exact else (self.low, self.high)

    def __str__(self) -> str:
        return with_interval(self.value, (self.low, self.high))


def over_seeds(values: Sequence[float]) -> Number:
    """The mean of one number per seed with Student's interval; NaN if it is undefined for one of them.

    Example:
        >>> from topic_probe.paper.claims import over_seeds
        >>> print(over_seeds([1.0, 2.0, 3.0]))  # 2 ± 4.303 · 1/√3
        2 [-0.4841, 4.484]
    """
    from scipy.stats import t

    given, of = np.asarray(values, dtype=np.float64), f"{len(values)} seeds"
    if not len(given) or not np.isfinite(given).all():
        return Number(math.nan, of=of)
    mean = float(given.mean())
    if len(given) < 2:
        return Number(mean, of="1 seed")
    half = float(t.ppf(0.975, len(given) - 1) * given.std(ddof=1) / math.sqrt(len(given)))
    return Number(mean, mean - half, mean + half, of)


def of_contrast(contrast: Contrast, of: str) -> Number:
    """The number that a contrast of one cell has its interval of, with that interval."""
    low, high = (math.nan, math.nan) if contrast.interval is None else contrast.interval.tolist()
    return Number(float(getattr(contrast, contrast.statistic)), low, high, of)


@dataclass(frozen=True)
class Claim:
    """One statement, held against a number of ours and against the same number where it must not hold.

    The verdict follows from the numbers, so that they cannot disagree:

    * *holds*: the whole interval lies strictly between ``above`` and ``below``, and no control does;
    * *does not hold*: the whole interval lies outside;
    * *undecided*: neither, or the number is undefined;
    * *not evidence*: it would hold, but it holds of a control too, or there is no control that could have told;
    * *not checked*: there is a reason why it was not looked at.

    A number without an interval is its own interval. A control holds where its number lies within the bounds.

    Attributes:
        text: What must be seen.
        source: Where that is said; empty: where the recipe has its source.
        paper: What the paper has there: its number, or its words.
        measured: Our number.
        above: It has to be larger than this.
        below: It has to be smaller than this.
        controls: The same number where the claim must fail, by what was broken there: ``{"no topics": Number(1.02)}``.
        setting: The setting it was measured in; empty for all settings together.
        detail: More numbers to print beside it.
        reason: Why it does not hold, as far as is known: what was tried, and what holds instead. Shown only then.
        ours: Whether it is a claim of our own, beside the paper's.
        check: Whether it only checks the code, as a constant of the theory against another way to it: no evidence about
            anything trained or measured, and no control is asked for.
        not_checked: Why it was not checked; empty if it was.
    """

    text: str
    source: str = ""
    paper: str = ""
    measured: Number = field(default=Number(math.nan))
    above: float = -math.inf
    below: float = math.inf
    controls: Mapping[str, Number] = field(default_factory=dict)
    setting: str = ""
    detail: str = ""
    reason: str = ""
    ours: bool = False
    check: bool = False
    not_checked: str = ""

    @property
    def verdict(self) -> Verdict:
        """What follows from the numbers."""
        if self.not_checked:
            return "not checked"
        low, high = self.measured.ends
        if low >= self.below or high <= self.above:
            return "does not hold"
        if not (self.above < low and high < self.below):
            return "undecided"
        return "holds" if self.check or (self.controls_told and not self.controls_held) else "not evidence"

    @property
    def controls_held(self) -> tuple[str, ...]:
        """The controls of which the claim holds as well."""
        return tuple(name for name, number in self.controls.items() if self.above < number.value < self.below)

    @property
    def controls_told(self) -> bool:
        """Whether there is a control whose number is defined."""
        return any(not math.isnan(number.value) for number in self.controls.values())

    @property
    def wanted(self) -> str:
        """The bounds as text, ``> 1`` or ``0.1 … 0.2``."""
        if math.isinf(self.below):
            return "any number" if math.isinf(self.above) else f"> {self.above:.4g}"
        return f"< {self.below:.4g}" if math.isinf(self.above) else f"{self.above:.4g} … {self.below:.4g}"

    @property
    def why(self) -> str:
        """Why it was not checked, does not hold, or is no evidence; empty if it holds, or if nobody knows."""
        if self.verdict == "not evidence":
            held = self.controls_held
            return (
                f"holds of {' and of '.join(held)} too" if held else "no control says whether it could fail"
            )
        return self.not_checked or ("" if self.verdict == "holds" else self.reason)

    @property
    def remark(self) -> str:
        """What has to be read beside the verdict: the detail of what was checked, and why."""
        return "; ".join(part for part in ("" if self.not_checked else self.detail, self.why) if part)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values for JSON, the verdict included; numbers that JSON does not know are None."""
        known = asdict(self) | {
            "measured": self.measured.value,
            "low": self.measured.low,
            "high": self.measured.high,
        }
        known |= {
            "of": self.measured.of,
            "wanted": self.wanted,
            "verdict": self.verdict,
            "why": self.why,
            "remark": self.remark,
        }
        known["controls"] = {name: _plain(asdict(number)) for name, number in self.controls.items()}
        return _plain(known)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


def ordered(claims: Iterable[Claim]) -> list[Claim]:
    """What does not hold first, then by the order of `VERDICTS`; checks of the code last."""
    return sorted(claims, key=lambda claim: (claim.check, VERDICTS.index(claim.verdict)))


def claims_to_dataframe(claims: Iterable[Claim]) -> "pd.DataFrame":
    """A row for every claim: claim → setting → measured with its interval → wanted → controls → paper → verdict."""
    import pandas as pd

    rows = [
        {
            "claim": claim.text,
            "setting": claim.setting,
            "measured": claim.measured.value,
            "low": claim.measured.low,
            "high": claim.measured.high,
            "of": claim.measured.of,
            "wanted": claim.wanted,
            "controls": _beside(claim),
            "paper": claim.paper,
            "verdict": claim.verdict,
            "remark": claim.remark,
            "source": claim.source,
            "ours": claim.ours,
            "check": claim.check,
        }
        for claim in claims
    ]
    columns = (
        list(rows[0]) if rows else ["claim", "setting", "measured", "wanted", "controls", "paper", "verdict"]
    )
    return pd.DataFrame(rows, columns=columns)


def claims_table(claims: Sequence[Claim], *, width: int = 110) -> str:
    """The claims as text, settings under the claim they belong to: measured → wanted → controls → verdict."""
    lines: list[str] = []
    evidence = [claim for claim in claims if not claim.check]
    for heading, group in (
        ("", evidence),
        ("checks of the code", [claim for claim in claims if claim.check]),
    ):
        if heading and group:
            lines += ["", f"{heading}:"]
        lines += _statements(group, width)
    return "\n".join(lines)


def _statements(claims: Sequence[Claim], width: int) -> list[str]:
    lines: list[str] = []
    for text in dict.fromkeys(claim.text for claim in claims):
        group = [claim for claim in claims if claim.text == text]
        says = "ours" if group[0].ours else f"paper: {group[0].paper}"
        lines += textwrap.wrap(f"{text} [{group[0].source}; {says}]", width)
        names = max(len(claim.setting) for claim in group)
        for claim in group:
            number = "" if claim.not_checked else str(claim.measured)
            lines.append(
                f"  {claim.setting:<{names}}  {number:>26}  {claim.wanted:<14}  {claim.verdict.upper()}"
            )
            for part in filter(None, (_beside(claim), claim.remark)):
                lines += textwrap.wrap(part, width, initial_indent="      ", subsequent_indent="      ")
    return lines


def _beside(claim: Claim) -> str:
    """The numbers of the controls; few seeds are enough to see one fail, and an interval over two says nothing."""
    return "; ".join(f"{name}: {number.value:.4g}" for name, number in claim.controls.items())


def summary(claims: Iterable[Claim]) -> Mapping[str, int]:
    """How many claims have which verdict."""
    verdicts = [claim.verdict for claim in claims]
    return {verdict: verdicts.count(verdict) for verdict in VERDICTS}
