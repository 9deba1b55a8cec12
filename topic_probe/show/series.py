"""Figures of series of checkpoints."""

from typing import TYPE_CHECKING, Any

import numpy as np

from topic_probe.series.check import CheckpointReport
from topic_probe.show.style import ACCENTS, LINES, axes_for, drawable, say

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def checkpoint_distances(
    report: CheckpointReport, ax: "Axes | None" = None, *, title: str | None = None
) -> "Axes":
    """How far the weights of every checkpoint are from the first and the last; flagged ones are crosses.

    Args:
        report: of `check_checkpoints`.
        ax: where to draw; None makes a figure.
        title: None says how many are flagged.
    """
    ax = axes_for(ax, size=(5.4, 3.4))
    known = np.flatnonzero(np.isfinite(np.diagonal(report.distances)))
    wrong = np.array([bool(why) for why in report.reasons])
    if not len(known):
        return say(ax, "no checkpoint has weights that could be read")
    for number, (end, label) in enumerate(((known[0], "first"), (known[-1], "last"))):
        look: dict[str, Any] = {"color": ACCENTS[number], "linestyle": LINES[number]}
        right = known[~wrong[known]]
        step = f"to the {label}, step {report.steps[end]}"
        ax.plot(
            report.steps[right], report.distances[end, right], marker=".", label=step, linewidth=1.4, **look
        )
        at = known[wrong[known]]
        ax.plot(report.steps[at], report.distances[end, at], "x", color=ACCENTS[number], markersize=7)
    for step in report.steps[wrong]:
        ax.axvline(step, color="0.7", linewidth=0.8, linestyle=":", zorder=0)
    if report.steps[-1] > 50 * max(report.steps[min(1, len(report.steps) - 1)], 1):
        ax.set_xscale("symlog", linthresh=max(int(report.steps[report.steps > 0].min()), 1))
    ax.set_ylim(0, None)
    ax.set_xlabel("step")
    ax.set_ylabel("distance of the weights")
    said = (
        f"{wrong.sum()} of {len(wrong)} checkpoints flagged (crosses)" if wrong.any() else "nothing flagged"
    )
    ax.set_title(drawable(said if title is None else title))
    ax.legend(fontsize="small")
    return ax
