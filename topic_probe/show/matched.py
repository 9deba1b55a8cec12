"""What is left of a topic effect when pairs have more and more in common, and the averages of Table 2."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from topic_probe.measure.matched import MatchedReport
from topic_probe.show.style import ACCENTS, axes_for, drawable, say

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = ("o", "s", "D")
_NOT_MATCHED = "all pairs"


def matched_forest(report: MatchedReport, ax: "Axes | None" = None, *, title: str | None = None) -> "Axes":
    """A point with its interval for every score and way of matching; the line is where topics make no difference.

    Args:
        report: what `measure_matched` gives.
        ax: where to draw; None makes a figure.
        title: what stands above.
    """
    statistic = report.cosine.statistic
    found = {"cosine": report.cosine, "dot product": report.dot, "attention": report.attention}
    groups = {
        name: [
            (
                _NOT_MATCHED if way == "nothing" else f"equal {way}",
                value,
                *((None, None) if contrast.interval is None else contrast.interval[place]),
            )
            for place, (way, value) in enumerate(
                zip((contrast.index or {})["matched_on"], getattr(contrast, statistic), strict=True)
            )
        ]
        for name, contrast in found.items()
        if contrast is not None
    }
    label = f"same topic {'÷' if statistic == 'ratio' else '−'} different topics"
    return _forest(ax, groups, label, 1.0 if statistic == "ratio" else 0.0, title)


def quotient_forest(
    rows: Sequence[Mapping[str, Any]], ax: "Axes | None" = None, *, title: str | None = None
) -> "Axes":
    """A point with its interval for every row of Table 2, and a cross where the paper has its own.

    Args:
        rows: a mapping for each: ``score``, ``model``, ``threshold``, ``quotient``, ``low``, ``high``, and
            ``paper_quotient`` where the paper has one.
        ax: where to draw; None makes a figure.
        title: what stands above.
    """
    groups: dict[str, list[tuple[Any, ...]]] = {}
    paper = []
    for row in rows:
        name = f"{row['model']}, {row['threshold']:g}"
        groups.setdefault(str(row["score"]), []).append((name, row["quotient"], row["low"], row["high"]))
    for score in groups:
        paper += [row.get("paper_quotient") for row in rows if row["score"] == score]
    ax = _forest(ax, groups, "same topic ÷ the pairs that co-occur most often", 1.0, title)
    crosses = [(value, place) for place, value in enumerate(paper) if value is not None]
    if crosses:
        ax.plot(*zip(*crosses, strict=True), linestyle="none", marker="x", color="black", label="paper")
        ax.legend(fontsize="small")
    return ax


def _forest(
    ax: "Axes | None",
    groups: Mapping[str, Sequence[tuple[Any, ...]]],
    label: str,
    reference: float,
    title: str | None,
) -> "Axes":
    """A row for every (name, value, low, high), the groups in a colour and a marker each."""
    n_rows = sum(map(len, groups.values()))
    ax = axes_for(ax, size=(6.5, 0.9 + 0.3 * n_rows))
    numbers = [_number(value) for rows in groups.values() for _, value, _, _ in rows]
    if not any(map(isfinite, numbers)):
        return say(ax, "nothing to draw: all numbers are missing")
    names, row = [], 0
    for colour, marker, (group, rows) in zip(ACCENTS, _MARKERS, groups.items(), strict=False):
        for name, value, low, high in rows:
            names.append(f"{group}, {name}")
            if isfinite(_number(low)) and isfinite(_number(high)):
                ax.hlines(row, _number(low), _number(high), color=colour, linewidth=2)
            ax.plot(_number(value), row, linestyle="none", marker=marker, color=colour)
            row += 1
        ax.axhline(row - 0.5, color="0.85", linewidth=0.8, zorder=0)
    ax.axvline(reference, color="black", linewidth=0.8, zorder=0)
    ax.set_yticks(range(n_rows), [drawable(name) for name in names])
    ax.set_ylim(n_rows - 0.4, -0.6)
    ax.set_xlabel(label)
    if title is not None:
        ax.set_title(drawable(title))
    return ax


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)
