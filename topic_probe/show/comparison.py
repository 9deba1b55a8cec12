"""Models side by side: their numbers with intervals, and their heads in common colours."""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from topic_probe.measure.comparison import ComparisonReport
from topic_probe.show.heads import map_of_heads, ratio_limits
from topic_probe.show.style import ACCENTS, axes_for, drawable, panels, say

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WHAT = {"cosine": "word embeddings, cosine", "attention": "attention, all heads"}
_AXES = {
    "ratio": "same topic ÷ different topics",
    "difference": "same − different topic",
    "effect_size": "effect size (same − different topic, in standard deviations)",
}


def comparison_panels(report: ComparisonReport, ax: "Axes | None" = None, *, columns: int = 2) -> "Axes":
    """Every model's numbers with their intervals, and maps of their heads, all in the same colours.

    The colour of the page is a ratio of 1, where topics make no difference. On given axes only the numbers are drawn.

    Args:
        report: of `compare` or `compare_reports`.
        ax: where to draw; None makes a figure.
        columns: how many panels stand side by side.
    """
    if ax is not None:
        return comparison_forest(report, ax)
    draw = [partial(comparison_forest, report, measure=name) for name in report.numbers]
    ratios = [heads.ratio[np.isfinite(heads.ratio)] for heads in report.heads.values()]
    limits = ratio_limits(np.concatenate([*ratios, np.ones(1)]))
    for model, heads in report.heads.items():
        stacks = dict.fromkeys((heads.index or {})["stack"])
        for stack in stacks:
            title = f"{model}, {stack}" if len(stacks) > 1 else model
            draw.append(partial(map_of_heads, heads, stack=stack, limits=limits, title=title))
    return panels(draw, columns=columns, size=(5.4, 3.4)).axes[0]


def comparison_forest(
    report: ComparisonReport,
    ax: "Axes | None" = None,
    *,
    measure: str | None = None,
    title: str | None = None,
) -> "Axes":
    """A row for every model: its number with its interval.

    Whether two models differ is not seen from whether these intervals overlap: paired ones are in the report's table.

    Args:
        report: of `compare` or `compare_reports`.
        ax: where to draw; None makes a figure.
        measure: "cosine" or "attention"; None: the last that was measured.
        title: None names the measure.

    Raises:
        ValueError: for what was not measured.
    """
    measure = list(report.numbers)[-1] if measure is None else measure
    if measure not in report.numbers:
        raise ValueError(f"no measure {measure!r}; there are {', '.join(report.numbers)}")
    table = report.to_dataframe()
    rows = table[table.measure == measure]
    ax = axes_for(ax, size=(5.2, 1.4 + 0.4 * len(rows)))
    if not np.isfinite(rows.number).any():
        return say(ax, f"no model has a number here: {report.numbers[measure].reason}")
    statistic = report.statistics[measure]
    at = np.arange(len(rows))
    known = np.isfinite(rows.low) & np.isfinite(rows.high)
    ax.hlines(at[known], rows.low[known], rows.high[known], color=ACCENTS[0])
    ax.plot(rows.number, at, "o", color=ACCENTS[0], markersize=5)
    ax.axvline(1.0 if statistic == "ratio" else 0.0, color="black", linewidth=0.8)
    ax.set_yticks(at, [drawable(model) for model in rows.model])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlabel(_AXES[statistic], fontsize="small")
    ax.set_title(drawable(_WHAT[measure] if title is None else title))
    return ax
