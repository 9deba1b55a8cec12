"""What the paper says must be seen, what was seen, and whether the one is the other."""

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

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
    frame = pd.DataFrame(
        [[getattr(claim, name) for name in columns] for claim in claims], columns=list(columns)
    )
    return frame.rename(columns={"text": "claim"})


def claims_table(claims: Sequence[Claim], *, width: int = 110) -> str:
    """The claims as text, settings under the claim they belong to: measured → wanted → verdict."""
    lines: list[str] = []
    for text, group in _by_text(claims).items():
        lines += textwrap.wrap(f"{text} [{group[0].source}; paper: {group[0].paper}]", width)
        names = max(len(claim.setting) for claim in group)
        for claim in group:
            number = "" if claim.not_checked else f"{claim.measured:.4g}"
            head = f"  {claim.setting:<{names}}  {number:>9}  {claim.wanted:<14}  {claim.verdict.upper()}"
            more = claim.not_checked or claim.detail
            lines.append(head)
            lines += textwrap.wrap(more, width, initial_indent="      ", subsequent_indent="      ")
    return "\n".join(lines)


def summary(claims: Iterable[Claim]) -> Mapping[str, int]:
    """How many claims have which verdict."""
    counts = {"passed": 0, "failed": 0, "not checked": 0}
    for claim in claims:
        counts[claim.verdict] += 1
    return counts


def _by_text(claims: Iterable[Claim]) -> dict[str, list[Claim]]:
    groups: dict[str, list[Claim]] = {}
    for claim in claims:
        groups.setdefault(claim.text, []).append(claim)
    return groups
