"""The loss over attention weights as a map, with its optimum."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64

from topic_probe.show.style import SEQUENTIAL, axes_for, drawable, panels, say
from topic_probe.toy.landscape import LandscapeReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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

    own = ax is None
    ax = axes_for(ax, size=(6.4, 4.8))
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
    if legend and own:
        ax.figure.legend(loc="outside lower center", ncols=2, fontsize="small", frameon=False)
    elif legend:
        ax.legend(fontsize="x-small", loc="upper left")
    return ax


def landscape_panels(
    reports: Mapping[str, LandscapeReport], *, columns: int = 3, title: str = ""
) -> "Figure":
    """A figure with a `loss_landscape` for every report, under its name, with the marks named below all."""
    draw: list[Callable[[Axes], Any]] = [
        partial(loss_landscape, report, title=name, legend=False) for name, report in reports.items()
    ]
    figure = panels(draw, columns=columns, size=(4.2, 3.4), title=title)
    if reports:
        handles, labels = figure.axes[0].get_legend_handles_labels()
        # The numbers behind the names are those of one panel.
        names = [label.rpartition(":")[0] or label for label in labels]
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    for ax in figure.axes:
        ax.set_xlabel(ax.get_xlabel().partition(":")[0])
        ax.set_ylabel(ax.get_ylabel().partition(":")[0] if ax.get_label() != "<colorbar>" else "squared loss")
    return figure


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
    text = f"Theorem 3: ({low:.3g}, {high:.3g})"
    ax.text(
        0.99, 0.01, text, ha="right", va="bottom", transform=ax.transAxes, color="white", fontsize="small"
    )
    ax.texts[-1].set_path_effects(_outline())


def _points(ax: "Axes", report: LandscapeReport) -> None:
    for (name, point), marker, size in zip(report.points.items(), "*s^", (14, 8, 8), strict=True):
        ax.plot(
            point["alpha"],
            point["beta"],
            linestyle="none",
            marker=marker,
            markersize=size,
            markerfacecolor="white",
            markeredgecolor="black",
            label=f"{name}: {point['weighted_mean']:.3g}",
            zorder=5,
            clip_on=False,
        )


def _outline() -> list[Any]:
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=3, foreground="black")]
