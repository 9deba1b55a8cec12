"""How what was learned degrades along one axis after another: small multiples between nothing (0) and all (1)."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from topic_probe.show.style import ACCENTS, LINES, axes_for, drawable, panels, say

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
MARKERS = ("o", "s", "^", "D", "P", "X")
CONTROL = "highest of the controls"


def robustness_curves(
    rows: Sequence[Row], ax: "Axes | None" = None, *, title: str | None = None, legend: bool = True
) -> "Axes":
    """Curves of numbers between 0 and 1 along one axis, with their intervals, and the level of the controls.

    Args:
        rows: a mapping for every point of a curve: ``at`` (where on the axis; names stand side by side in their
            order), ``curve`` (has the colour) and ``variant`` (has the style of the line), ``value``, ``low`` and
            ``high``, ``control`` (the number where it must be low), ``axis``, ``logarithmic`` and ``base`` (whether it
            is the point around which things are changed).
        ax: where to draw; None makes a figure.
        title: None is the name of the axis.
        legend: whether to name the curves.
    """
    ax = axes_for(ax, size=(5.0, 3.6))
    if not any(np.isfinite(row["value"]) for row in rows):
        return say(ax, "no number was measured along this axis")
    places = list(dict.fromkeys(row["at"] for row in rows))
    named = any(isinstance(at, str) for at in places)
    x = dict(zip(places, range(len(places)) if named else places, strict=True))
    if rows[0]["logarithmic"]:
        ax.set_xscale("log")
    ax.set_xticks(list(x.values()), [drawable(at) if named else f"{at:g}" for at in places], minor=False)
    ax.set_xticks([], minor=True)
    for at in {row["at"] for row in rows if row["base"]}:
        ax.axvline(x[at], color="0.85", linewidth=4, zorder=0)
    looks = _looks(rows)
    for (curve, variant), look in looks.items():
        own = [row for row in rows if (row["curve"], row["variant"]) == (curve, variant)]
        _draw(ax, [x[row["at"]] for row in own], own, f"{curve} ({variant})", named=named, **look)
    highest = [
        max(_finite(row["control"] for row in rows if row["at"] == at), default=np.nan) for at in places
    ]
    ax.plot([x[at] for at in places], highest, color="0.45", linewidth=1.2, linestyle=":", label=CONTROL)
    ax.set_ylim(-0.12, 1.08)
    ax.set_title(drawable(rows[0]["axis"] if title is None else title))
    if legend:
        ax.figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", frameon=False)
    return ax


def robustness_panels(rows: Sequence[Row], *, columns: int = 2, title: str = "") -> "Figure":
    """A figure with `robustness_curves` for every axis, and the curves named below all."""
    axes = list(dict.fromkeys(row["axis"] for row in rows))
    draw: list[Callable[[Axes], Any]] = [
        partial(robustness_curves, [row for row in rows if row["axis"] == axis], legend=False)
        for axis in axes
    ]
    figure = panels(draw, columns=columns, size=(3.6, 2.4), title=title, sharey=True)
    named: dict[str, Any] = {}
    for ax in figure.axes:
        handles, labels = ax.get_legend_handles_labels()
        named |= dict(zip(labels, handles, strict=True))
    figure.legend(named.values(), named, loc="outside lower center", frameon=False)
    return figure


def _looks(rows: Sequence[Row]) -> dict[tuple[str, str], dict[str, Any]]:
    """A colour and a marker for every curve, a style of line for every variant."""
    curves, variants = (list(dict.fromkeys(row[what] for row in rows)) for what in ("curve", "variant"))
    return {
        (curve, variant): {
            "color": ACCENTS[curves.index(curve) % len(ACCENTS)],
            "marker": MARKERS[curves.index(curve) % len(MARKERS)],
            "linestyle": LINES[variants.index(variant) % len(LINES)],
            "markerfacecolor": None if variants.index(variant) == 0 else "white",
        }
        for curve, variant in dict.fromkeys((row["curve"], row["variant"]) for row in rows)
    }


def _draw(
    ax: "Axes", x: Sequence[float], rows: Sequence[Row], label: str, *, named: bool, **look: Any
) -> None:
    value, low, high = (
        np.array([row[what] for row in rows], dtype=float) for what in ("value", "low", "high")
    )
    if named:  # nothing lies between names
        ax.errorbar(x, value, [value - low, high - value], linewidth=0, elinewidth=1.0, color=look["color"])
        look["linestyle"] = "none"
    else:
        ax.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
    ax.plot(x, value, linewidth=1.6, markersize=4.5, label=drawable(label), **look)


def _finite(values: Any) -> list[float]:
    return [value for value in values if np.isfinite(value)]
