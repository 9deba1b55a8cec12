"""The loss over attention weights as a map, with Theorem 3's interval, the optimum, and trained toys."""

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64

from topic_probe.measure.landscape import LandscapeReport
from topic_probe.show.style import ACCENTS, SEQUENTIAL, axes_for, drawable, say

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = ("o", "s", "^", "P", "X", "v")


def loss_landscape(
    report: LandscapeReport, ax: "Axes | None" = None, *, title: str | None = None, legend: bool = True
) -> "Axes":
    """The loss over α and β, dark is low; white lines are Theorem 3's bounds, what lies outside them is hatched.

    Args:
        report: of `measure_landscape`.
        ax: where to draw; None makes a figure.
        title: None leaves it out.
        legend: whether to name the marks.
    """
    from matplotlib import colormaps

    ax = axes_for(ax, size=(6.2, 4.6))
    positive = report.alphas > 0, report.betas > 0
    alphas, betas = report.alphas[positive[0]], report.betas[positive[1]]
    loss = report.loss[positive[0]][:, positive[1]].T
    if min(loss.shape) < 2 or not np.isfinite(loss).any():
        return say(ax, "no landscape: it needs two or more positive α and β")
    ax.set(xscale="log", yscale="log", xlim=(alphas[0], alphas[-1]), ylim=(betas[0], betas[-1]))
    lowest, highest = float(np.nanmin(loss)), float(np.nanmax(loss))
    # Steps that close in on the valley, where the differences are small.
    span = max(highest - lowest, 1e-9)
    levels = lowest + span * np.array(
        [0, 0.001, 0.003, 0.006, 0.01, 0.02, 0.04, 0.07, 0.12, 0.2, 0.35, 0.6, 1.0]
    )
    colours = colormaps[SEQUENTIAL](np.linspace(0.05, 1, len(levels) - 1))
    levels[0] -= 1e-9 * span  # so that the lowest point is in
    filled = ax.contourf(alphas, betas, loss, levels=levels, colors=colours)
    ax.contour(alphas, betas, loss, levels=levels[1:-1], colors="black", linewidths=0.4, alpha=0.5)
    ax.figure.colorbar(filled, ax=ax, label="squared loss", format="%.4f", spacing="uniform")
    _interval(ax, report, alphas, betas)
    _points(ax, report)
    ax.set_xlabel("α: attention to other words of the same topic (other topics: 1)")
    ax.set_ylabel("β: attention to the same word")
    if title is not None:
        ax.set_title(drawable(title))
    if legend:
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, fontsize="small", frameon=False)
    return ax


def _interval(
    ax: "Axes",
    report: LandscapeReport,
    alphas: Float64[np.ndarray, " alpha"],
    betas: Float64[np.ndarray, " beta"],
) -> None:
    """The curves (v − 1)/v · α + β/v = bound, as far as they are inside the picture, and hatches beyond them."""
    v = report.words_per_topic
    mean = ((v - 1) * alphas[None, :] + betas[:, None]) / v
    (low, high), label = report.bounds, "bounds of Theorem 3"
    for bound, sides in ((low, (0.0, low)), (high, (high, np.inf))):
        if mean.min() < bound < mean.max():
            top = min(sides[1], 2 * float(mean.max()))
            ax.contourf(alphas, betas, mean, levels=[sides[0], top], colors="none", hatches=["///"])
            ax.contour(alphas, betas, mean, levels=[bound], colors="white", linewidths=2.0)
            ax.plot([], [], color="white", linewidth=2.0, label=label, path_effects=_outline())
            label = "_"
    shown = "weighted mean of the optimum" if label == "_" else "Theorem 3, beyond this picture"
    text = f"{shown} in ({low:.3g}, {high:.3g})"
    ax.text(
        0.99, 0.01, text, ha="right", va="bottom", transform=ax.transAxes, color="white", fontsize="small"
    )
    ax.texts[-1].set_path_effects(_outline())


def _points(ax: "Axes", report: LandscapeReport) -> None:
    marks = {"optimum": report.optimum, "optimum under α = β": report.tied, **report.points}
    for number, (name, point) in enumerate(marks.items()):
        marker = "*" if name == "optimum" else MARKERS[number % len(MARKERS)]
        ax.plot(
            point["alpha"], point["beta"], linestyle="none", marker=marker, markersize=14 if marker == "*" else 8,
            color="white" if number < 2 else ACCENTS[number % len(ACCENTS)], markeredgecolor="black",
            label=f"{drawable(name)}: {point['weighted_mean']:.3g}", zorder=5, clip_on=False,
        )  # fmt: skip


def _outline() -> list[Any]:
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=3, foreground="black")]
