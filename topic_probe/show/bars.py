"""A few numbers with their intervals: ratios as bars beside those of the paper, and points a row each (forests)."""

from collections.abc import Sequence
from math import isfinite, nan
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from topic_probe.contrast import Contrast
from topic_probe.report import Report
from topic_probe.show.style import ACCENTS, axes_for, drawable, say

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from topic_probe.measure.matched import MatchedReport
    from topic_probe.toy.agreement import AgreementReport

# A ratio beyond this, and the smaller ones are drawn on a logarithmic axis to be seen beside it.
LOG_FROM = 3.0


# -------------------------------------------------------------------- points, a row each


class _Mark(NamedTuple):
    """A number with what it is uncertain by; those of a group share a colour and a marker."""

    name: str
    value: float
    low: float = nan
    high: float = nan
    group: str = ""


def matched_forest(report: "MatchedReport", ax: "Axes | None" = None, *, title: str | None = None) -> "Axes":
    """A point with its interval for every score and way of matching; the line is where topics make no difference.

    Args:
        report: what `measure_matched` gives.
        ax: where to draw; None makes a figure.
        title: what stands above.
    """
    statistic = report.cosine.statistic
    scores = {"cosine": report.cosine, "dot product": report.dot, "attention": report.attention}
    marks = []
    for score, contrast in scores.items():
        if contrast is None:
            continue
        values = getattr(contrast, statistic)
        ends = np.full((len(values), 2), nan) if contrast.interval is None else contrast.interval
        for way, value, (low, high) in zip((contrast.index or {})["matched_on"], values, ends, strict=True):
            name = "all pairs" if way == "nothing" else f"equal {way}"
            marks.append(_Mark(f"{score}, {name}", float(value), low, high, score))
    label = f"same topic {'÷' if statistic == 'ratio' else '−'} different topics"
    ax = axes_for(ax, size=(6.5, 0.9 + 0.3 * len(marks)))
    return _forest(ax, marks, label, title, reference=1.0 if statistic == "ratio" else 0.0)


def loss_scale(report: "AgreementReport", ax: "Axes | None" = None, *, title: str | None = None) -> "Axes":
    """The loss of a trained toy between guessing and the best possible, with the floor of its regime."""
    losses = {
        "guessing": (report.guess, 0.0),
        report.regime: (report.loss, report.loss_error),
        "floor, long documents": (report.floor, 0.0),
        "best possible": (report.bayes, report.bayes_error),
    }
    marks = [_Mark(name, loss, loss - error, loss + error) for name, (loss, error) in losses.items()]
    label = f"{report.loss_kind.replace('_', '-')} loss (± standard error)"
    return _forest(axes_for(ax, size=(6.0, 2.4)), marks, label, title, written=True)


def contrast_bars(report: Report, ax: "Axes | None" = None, *, title: str | None = None) -> "Axes":
    """The number that the contrasts of a report are about, each with its interval: of any report that has some.

    Only contrasts of a single cell are drawn. TypeError for a report without any.
    """
    contrasts = {
        name: value
        for name in report.__dataclass_fields__  # type: ignore[attr-defined]
        if isinstance(value := getattr(report, name), Contrast) and not value.shape
    }
    if not contrasts:
        raise TypeError(f"there is no figure of a {type(report).__name__}; its numbers are in to_dataframe()")
    marks = [
        _Mark(
            f"{name.replace('_', ' ')} ({contrast.statistic})",
            float(getattr(contrast, contrast.statistic)),
            *(() if contrast.interval is None else contrast.interval),
        )
        for name, contrast in contrasts.items()
    ]
    ax = axes_for(ax, size=(6.0, 1.2 + 0.4 * len(marks)))
    return _forest(ax, marks, "same topic against different topics, with interval", title, written=True)


def _forest(
    ax: "Axes",
    marks: Sequence[_Mark],
    label: str,
    title: str | None,
    *,
    reference: float | None = None,
    written: bool = False,
) -> "Axes":
    """A row for every mark; ``written`` says the numbers beside the points, the one that is missing too."""
    if not any(isfinite(mark.value) for mark in marks):
        return say(ax, "nothing to draw: all numbers are missing")
    groups = list(dict.fromkeys(mark.group for mark in marks))
    for row, mark in enumerate(marks):
        number = groups.index(mark.group)
        colour, marker = ACCENTS[number % len(ACCENTS)], "osD^"[number % 4]
        if isfinite(mark.low) and isfinite(mark.high):
            ax.hlines(row, mark.low, mark.high, color=colour, linewidth=2)
        ax.plot(mark.value, row, linestyle="none", marker=marker, color=colour)
        if written:
            _write(ax, mark.value, row)
        if len(groups) > 1 and mark.group != (marks[row + 1].group if row + 1 < len(marks) else None):
            ax.axhline(row + 0.5, color="0.85", linewidth=0.8, zorder=0)
    if reference is not None:
        ax.axvline(reference, color="black", linewidth=0.8, zorder=0)
    ax.set_yticks(range(len(marks)), [drawable(mark.name) for mark in marks])
    ax.set_ylim(len(marks) - 0.4, -0.8 if written else -0.6)
    ax.set_xlabel(label)
    if written:
        ax.margins(x=0.12)
    if title is not None:
        ax.set_title(drawable(title))
    return ax


def _write(ax: "Axes", value: float, row: int) -> None:
    known = isfinite(value)
    ax.annotate(
        f"{value:.4g}" if known else "missing",
        (value if known else 0.5, row),
        (0, 6),
        textcoords="offset points",
        xycoords="data" if known else ("axes fraction", "data"),
        ha="center",
        fontsize="small",
    )


def _number(value: Any) -> float:
    return nan if value is None else float(value)
