"""Figures of series."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64

from topic_probe.series.curves import By
from topic_probe.series.measured import Number, SeriesReport
from topic_probe.show.style import axes_for, curve_look, diverging, drawable, say

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def series_curves(
    report: SeriesReport,
    ax: "Axes | None" = None,
    *,
    number: Number = "effect_size",
    names: Sequence[str] | None = None,
    title: str | None = None,
) -> "Axes":
    """What was measured against steps, all on one scale, each with its interval as a band, and where each begins.

    Onsets are those of `SeriesReport.onsets`: a triangle on the axis below, in the colour of its curve.

    Args:
        report: of a `TopicProbe` or of `measure_series`.
        ax: where to draw; None makes a figure.
        number: which number; effect sizes are on one scale whatever was measured.
        names: what to draw, as `SeriesReport.contrasts` calls it; None draws everything.
        title: None leaves it out.
    """
    ax = axes_for(ax, size=(5.8, 3.6))
    steps = report.steps
    curves = {name: report.curve(name, number) for name in names or report.contrasts()}
    if not any(np.isfinite(curve[..., 0]).any() for curve in curves.values()):
        return say(ax, f"no {number.replace('_', ' ')} was measured at any step")
    ax.axhline(_equal(number), color="0.7", linewidth=0.8)
    onsets = _onsets(report, number, "step")
    for place, (name, curve) in enumerate(curves.items()):
        look = curve_look(place)
        middle, low, high = curve.T
        ax.plot(steps, middle, marker=".", linewidth=1.4, label=drawable(name), **look)
        ax.fill_between(steps, low, high, color=look["color"], alpha=0.2, linewidth=0)
        # A band needs two steps beside each other.
        ax.vlines(steps, low, high, color=look["color"], alpha=0.5, linewidth=0.8)
        if name in onsets:
            # Beside each other where several begin at one step.
            shift = 9 * sum(other == onsets[name] for other in [*onsets.values()][: [*onsets].index(name)])
            ax.annotate(
                "", (onsets[name], 0), xycoords=("data", "axes fraction"), xytext=(shift, 12),
                textcoords="offset points", arrowprops={"arrowstyle": "-|>", "color": look["color"], "shrinkB": 0},
            )  # fmt: skip
    _step_axis(ax, steps)
    ax.set_ylabel(number.replace("_", " "))
    told = "arrows: onsets" if onsets else ""
    ax.set_title(drawable(told if title is None else title), fontsize="medium")
    ax.legend(fontsize="small")
    return ax


def _onsets(report: SeriesReport, number: Number, by: By) -> dict[str, float]:
    """Where curves begin; a topic ratio has no onsets."""
    if number == "topic_ratio":
        return {}
    table = report.onsets(by, statistic=number).to_dataframe()
    known = table[table["onset"].notna()]
    return dict(zip(known["measured"], known["onset"], strict=True))


def series_heads(
    report: SeriesReport,
    ax: "Axes | None" = None,
    *,
    number: Number = "effect_size",
    title: str | None = None,
) -> "Axes":
    """Every head at every step: more attention to words of the same topic is orange, less is blue, unknown is grey.

    A black line stands before the onset of a head (`SeriesReport.onsets`); heads without one have none.

    Args:
        report: of a `TopicProbe` or of `measure_series` that measured attention.
        ax: where to draw; None makes a figure.
        number: which number.
        title: None says what this is.
    """
    steps, found = report.steps, report.to_dataframe("head")
    heads: dict[str, Any] = {
        name: found[found["measured"] == name].reindex(columns=[number])[number].to_numpy()
        for name in report.contrasts("head")
    }
    n, height = len(steps), 1.2 + 0.16 * len(heads)
    ax = axes_for(ax, size=(2.6 + 0.3 * n, max(2.4, min(height, 12.0))))
    table = np.array(list(heads.values())) - _equal(number)
    if not np.isfinite(table).any():
        return say(ax, "no attention was measured at any step")
    most = float(np.nanmax(np.abs(table))) or 1.0
    image = ax.imshow(table, cmap=diverging(), vmin=-most, vmax=most, aspect="auto", interpolation="nearest")
    onsets = _onsets(report, number, "head")
    for row, name in enumerate(heads):
        if name in onsets:
            at = float(np.searchsorted(steps, onsets[name])) - 0.5
            ax.plot([at, at], [row - 0.5, row + 0.5], color="black", linewidth=2.0, solid_capstyle="butt")
    shown = range(0, len(heads), max(1, len(heads) // 40))
    ax.set_yticks(list(shown), [list(heads)[place] for place in shown], fontsize="x-small")
    ax.set_xticks(range(n), [f"{step:,}" for step in steps], rotation=60, fontsize="small")
    ax.set_xlabel("step")
    told = "heads as they learn" + (f"; lines: onsets of {len(onsets)}" if onsets else "")
    ax.set_title(drawable(told if title is None else title), fontsize="medium")
    bar = ax.figure.colorbar(image, ax=ax)
    bar.set_label(number.replace("_", " ") + (" − 1" if _equal(number) else ""))
    return ax


def _equal(number: Number) -> float:
    """What a number is where same and different topics are alike."""
    return 1.0 if number.endswith("ratio") else 0.0


def _step_axis(ax: "Axes", steps: Int64[np.ndarray, " step"]) -> None:
    """Steps, on a logarithmic scale from the first update on where they are spaced like that."""
    ax.set_xlabel("step")
    later = steps[steps > 0]
    if len(later) > 2 and later[-1] > 50 * later[0]:
        ax.set_xscale("symlog", linthresh=float(later[0]), linscale=0.3)
        ax.set_xticks([0, *(10**k for k in range(9) if later[0] <= 10**k <= later[-1])])
        ax.set_xlim(min(0, int(steps[0])), None)
