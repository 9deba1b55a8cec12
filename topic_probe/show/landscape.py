"""Maps: the loss over attention weights with its optimum and trained toys, and what becomes of trainings on a grid."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64

from topic_probe.show.style import SEQUENTIAL, axes_for, drawable, ink_on, panels, say
from topic_probe.toy.landscape import LandscapeReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = ("*", "s", "^", "o", "D", "P", "X", "v")
TRAINED = "#e66100"

OUTCOMES = (("#01366c", ""), ("#8fb3d9", ""), ("#bc5a00", ""), ("#e3e3e3", ""), ("#ffffff", "xxx"))
"""Colour and hatches of the outcomes of a grid: dark and light alternate, so that they differ in a grey print too."""


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
    marks = {"optimum": report.optimum, "optimum under α = β": report.tied, **report.points}
    for number, (name, point) in enumerate(marks.items()):
        marker = MARKERS[number % len(MARKERS)]
        look: dict[str, Any] = {"markersize": 8, "markerfacecolor": "white", "markeredgecolor": "black"}
        if number == 0:
            look["markersize"] = 14
        if name in report.points and "same_word" in point:
            # A ring, because what is trained well stands where the optimum is.
            look = {
                "markersize": 17,
                "markerfacecolor": "none",
                "markeredgecolor": TRAINED,
                "markeredgewidth": 2.5,
            }
        label = f"{drawable(name)}: {point['weighted_mean']:.3g}"
        ax.plot(
            point["alpha"],
            point["beta"],
            linestyle="none",
            marker=marker,
            label=label,
            zorder=5,
            clip_on=False,
            **look,
        )


def _outline() -> list[Any]:
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=3, foreground="black")]


# -------------------------------------------------------------------- what becomes of trainings


def outcome_map(
    cells: Sequence[Mapping[str, Any]],
    outcomes: Sequence[str],
    ax: "Axes | None" = None,
    *,
    x: str,
    y: str,
    number: str = "",
    mark: str = "",
    frame: str = "",
    title: str | None = None,
    legend: bool = True,
) -> "Axes":
    """A grid of two settings, every cell in the colour of what became of its trainings.

    Args:
        cells: rows with two settings and an ``outcome``, one for each cell.
        outcomes: all that there are, at most five, in the order of their colours; the last is hatched.
        ax: where to draw; None makes a figure.
        x: which setting runs to the right; its numbers are as far apart as they are many, not as they are large.
        y: which setting runs upwards.
        number: a column whose number is written into the cell; empty or None is not.
        mark: a column that puts a dot into the cell where it is true.
        frame: a column that frames the cell where it is true.
        title: None leaves it out.
        legend: whether to say below what the colours are.

    Raises:
        ValueError: for more outcomes than there are colours.
    """
    if len(outcomes) > len(OUTCOMES):
        raise ValueError(f"there are colours for {len(OUTCOMES)} outcomes, got {len(outcomes)}")
    own = ax is None
    ax = axes_for(ax, size=(5.0, 4.4))
    if not cells:
        return say(ax, "no cells: nothing was trained")
    from matplotlib.patches import Rectangle

    columns, rows = (sorted({cell[axis] for cell in cells}) for axis in (x, y))
    for cell in cells:
        column, row = columns.index(cell[x]), rows.index(cell[y])
        colour, hatch = OUTCOMES[outcomes.index(cell["outcome"])]
        ax.add_patch(
            Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colour, hatch=hatch, edgecolor="0.6", linewidth=0.5)
        )  # fmt: skip
        if number and cell.get(number) is not None:
            ax.text(
                column, row, f"{cell[number]:.0f}", ha="center", va="center", fontsize="small", color=ink_on(colour)
            )  # fmt: skip
        if mark and cell[mark]:
            ax.plot(
                column + 0.33, row + 0.3, marker="o", markersize=5, color="black", markeredgecolor="white", zorder=4
            )  # fmt: skip
        if frame and cell[frame]:
            ax.add_patch(Rectangle((column - 0.42, row - 0.42), 0.84, 0.84, fill=False, zorder=3, **_frame()))
    ax.set(xlim=(-0.5, len(columns) - 0.5), ylim=(-0.5, len(rows) - 0.5))
    ax.set_xticks(range(len(columns)), [f"{value:g}" for value in columns], rotation=45, fontsize="small")
    ax.set_yticks(range(len(rows)), [f"{value:g}" for value in rows], fontsize="small")
    ax.tick_params(length=0)
    ax.set_xlabel(drawable(x))
    ax.set_ylabel(drawable(y))
    if title is not None:
        ax.set_title(drawable(title), fontsize="medium")
    if legend and own:
        _name_outcomes(ax.figure, outcomes, number=number, mark=mark, frame=frame)
    return ax


def outcome_panels(
    grids: Mapping[str, Sequence[Mapping[str, Any]]],
    outcomes: Sequence[str],
    *,
    x: str,
    y: str,
    number: str = "",
    mark: str = "",
    frame: str = "",
    columns: int = 2,
    title: str = "",
) -> "Figure":
    """A figure with an `outcome_map` for every grid, under its name, with the colours named below all."""
    draw: list[Callable[[Axes], Any]] = [
        partial(
            outcome_map, cells, outcomes, x=x, y=y, number=number, mark=mark, frame=frame, title=name, legend=False
        )
        for name, cells in grids.items()
    ]  # fmt: skip
    figure = panels(draw, columns=columns, size=(3.6, 3.3), title=title)
    _name_outcomes(figure, outcomes, number=number, mark=mark, frame=frame)
    return figure


def _frame() -> dict[str, Any]:
    """Black on white, to be seen on every colour."""
    from matplotlib.patheffects import withStroke

    return {
        "edgecolor": "black",
        "linewidth": 1.2,
        "path_effects": [withStroke(linewidth=2.8, foreground="white")],
    }


def _name_outcomes(figure: Any, outcomes: Sequence[str], *, number: str, mark: str, frame: str) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="0.6", label=drawable(name))
        for name, (colour, hatch) in zip(outcomes, OUTCOMES, strict=False)
    ]
    if mark:
        look: dict[str, Any] = {"marker": "o", "color": "black", "linestyle": "none"}
        handles.append(Line2D([], [], label=drawable(mark), **look))
    if frame:
        handles.append(Patch(fill=False, label=drawable(frame), **_frame()))
    if number:
        handles.append(Line2D([], [], linestyle="none", label=drawable(f"number: {number}")))
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize="small", frameon=False)
