"""Figures of series of checkpoints."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64

from topic_probe.series.check import CheckpointReport
from topic_probe.series.measured import Number, SeriesReport
from topic_probe.show.style import ACCENTS, LINES, axes_for, diverging, drawable, say

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
    ax.set_ylim(0, None)
    _step_axis(ax, report.steps)
    ax.set_ylabel("distance of the weights")
    said = (
        f"{wrong.sum()} of {len(wrong)} checkpoints flagged (crosses)" if wrong.any() else "nothing flagged"
    )
    ax.set_title(drawable(said if title is None else title))
    ax.legend(fontsize="small")
    return ax


def series_curves(
    report: SeriesReport,
    ax: "Axes | None" = None,
    *,
    number: Number = "effect_size",
    names: Sequence[str] | None = None,
    title: str | None = None,
) -> "Axes":
    """What was measured against steps, all on one scale, each with its interval as a band.

    Args:
        report: of a `TopicProbe`.
        ax: where to draw; None makes a figure.
        number: which number; effect sizes are on one scale whatever was measured.
        names: what to draw, as `SeriesReport.contrasts` calls it; None draws everything.
        title: None leaves it out.
    """
    ax = axes_for(ax, size=(5.8, 3.6))
    curves = {name: report.curve(name, number) for name in names or report.contrasts()}
    if not any(np.isfinite(curve[:, 0]).any() for curve in curves.values()):
        return say(ax, f"no {number.replace('_', ' ')} was measured at any step")
    ax.axhline(1.0 if number.endswith("ratio") else 0.0, color="0.7", linewidth=0.8)
    for place, (name, curve) in enumerate(curves.items()):
        look: dict[str, Any] = {
            "color": ACCENTS[place % len(ACCENTS)],
            "linestyle": LINES[place % len(LINES)],
        }
        ax.plot(report.steps, curve[:, 0], marker=".", linewidth=1.4, label=drawable(name), **look)
        ax.fill_between(report.steps, curve[:, 1], curve[:, 2], color=look["color"], alpha=0.2, linewidth=0)
        # A band needs two steps beside each other.
        ax.vlines(report.steps, curve[:, 1], curve[:, 2], color=look["color"], alpha=0.5, linewidth=0.8)
    _step_axis(ax, report.steps)
    ax.set_ylabel(number.replace("_", " "))
    ax.set_title(drawable(title or ""))
    ax.legend(fontsize="small")
    return ax


def series_heads(
    report: SeriesReport,
    ax: "Axes | None" = None,
    *,
    number: Number = "effect_size",
    title: str | None = None,
) -> "Axes":
    """Every head at every step: more attention to words of the same topic is orange, less is blue, unknown is grey.

    Args:
        report: of a `TopicProbe` that measured attention.
        ax: where to draw; None makes a figure.
        number: which number.
        title: None says what this is.
    """
    heads = {name: report.curve(name, number, by="head")[:, 0] for name in report.contrasts("head")}
    n, height = len(report.steps), 1.2 + 0.16 * len(heads)
    ax = axes_for(ax, size=(2.6 + 0.3 * n, max(2.4, height)))
    table = np.array(list(heads.values())) - (1.0 if number.endswith("ratio") else 0.0)
    if not np.isfinite(table).any():
        return say(ax, "no attention was measured at any step")
    most = float(np.nanmax(np.abs(table))) or 1.0
    image = ax.imshow(table, cmap=diverging(), vmin=-most, vmax=most, aspect="auto", interpolation="nearest")
    shown = range(0, len(heads), max(1, len(heads) // 40))
    ax.set_yticks(list(shown), [list(heads)[place] for place in shown], fontsize="x-small")
    ax.set_xticks(range(n), [f"{step:,}" for step in report.steps], rotation=60, fontsize="small")
    ax.set_xlabel("step")
    ax.set_title(drawable("heads as they learn" if title is None else title))
    bar = ax.figure.colorbar(image, ax=ax)
    bar.set_label(number.replace("_", " ") + (" − 1" if number.endswith("ratio") else ""))
    return ax


def _step_axis(ax: "Axes", steps: Int64[np.ndarray, " step"]) -> None:
    """Steps, on a logarithmic scale from the first update on where they are spaced like that."""
    ax.set_xlabel("step")
    later = steps[steps > 0]
    if len(later) > 2 and later[-1] > 50 * later[0]:
        ax.set_xscale("symlog", linthresh=float(later[0]), linscale=0.3)
        ax.set_xlim(min(0, int(steps[0])), None)
