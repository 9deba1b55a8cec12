"""What the paper says must be seen, what was seen, and whether the one is the other."""

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from topic_probe.contrast import Contrast

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["passed", "failed", "not checked"]


@dataclass(frozen=True)
class Claim:
    """One statement of the paper, held against one number of ours.

    The verdict follows from the number, so the two cannot disagree: *passed* if it lies strictly between ``above`` and
    ``below``, *failed* if not (also if it is NaN), and *not checked* if there is a reason why it was not looked at.

    Attributes:
        text: What must be seen.
        source: Where the paper says so.
        paper: What the paper has there: its number, or its words.
        measured: Our number; NaN where it is undefined.
        above: It has to be larger than this.
        below: It has to be smaller than this.
        setting: The setting it was measured in; empty for all settings together.
        detail: More numbers to print beside it, and why a claim fails where that is known.
        not_checked: Why it was not checked; empty if it was.
    """

    text: str
    source: str
    paper: str
    measured: float = math.nan
    above: float = -math.inf
    below: float = math.inf
    setting: str = ""
    detail: str = ""
    not_checked: str = ""

    @property
    def verdict(self) -> Verdict:
        """``passed``, ``failed`` or ``not checked``."""
        if self.not_checked:
            return "not checked"
        return "passed" if self.above < self.measured < self.below else "failed"

    @property
    def wanted(self) -> str:
        """The bounds as text, ``> 1`` or ``0.1 … 0.2``."""
        if math.isinf(self.below):
            return "any number" if math.isinf(self.above) else f"> {self.above:.4g}"
        return f"< {self.below:.4g}" if math.isinf(self.above) else f"{self.above:.4g} … {self.below:.4g}"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values for JSON, the verdict included; numbers that JSON does not know are None."""
        values = {**asdict(self), "wanted": self.wanted, "verdict": self.verdict}
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }


def claims_to_dataframe(claims: Iterable[Claim]) -> "pd.DataFrame":
    """A row for every claim: claim → setting → measured → wanted → paper → verdict, then detail and source."""
    import pandas as pd

    columns = ("text", "setting", "measured", "wanted", "paper", "verdict", "detail", "source", "not_checked")
    rows = [[getattr(claim, name) for name in columns] for claim in claims]
    return pd.DataFrame(rows, columns=list(columns)).rename(columns={"text": "claim"})


def claims_table(claims: Sequence[Claim], *, width: int = 110) -> str:
    """The claims as text, settings under the claim they belong to: measured → wanted → verdict."""
    lines: list[str] = []
    for text in dict.fromkeys(claim.text for claim in claims):
        group = [claim for claim in claims if claim.text == text]
        lines += textwrap.wrap(f"{text} [{group[0].source}; paper: {group[0].paper}]", width)
        names = max(len(claim.setting) for claim in group)
        for claim in group:
            number = "" if claim.not_checked else f"{claim.measured:.4g}"
            lines.append(
                f"  {claim.setting:<{names}}  {number:>9}  {claim.wanted:<14}  {claim.verdict.upper()}"
            )
            more = claim.not_checked or claim.detail
            lines += textwrap.wrap(more, width, initial_indent="      ", subsequent_indent="      ")
    return "\n".join(lines)


def summary(claims: Iterable[Claim]) -> Mapping[str, int]:
    """How many claims have which verdict."""
    verdicts = [claim.verdict for claim in claims]
    return {verdict: verdicts.count(verdict) for verdict in get_args(Verdict)}


def interval_of(contrast: Contrast) -> tuple[float, float]:
    """Low and high of a single cell, NaN where it has none."""
    low, high = (math.nan, math.nan) if contrast.interval is None else contrast.interval.tolist()
    return low, high
