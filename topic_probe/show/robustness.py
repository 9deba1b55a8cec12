"""How what was learned degrades along one axis after another: small multiples between nothing (0) and all (1)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from topic_probe.show.style import ACCENTS, LINES, axes_for, drawable, panels, say

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
MARKERS = ("o", "s", "^", "D", "P", "X")
LIMITS = (-0.12, 1.08)
"""What lies beyond is drawn at the edge."""


def robustness_curves(
    rows: Sequence[Row],
    ax: "Axes | None" = None,
    *,
    among: Sequence[Row] | None = None,
    title: str | None = None,
    legend: bool = True,
) -> "Axes":
    """Curves of numbers between 0 and 1 along one axis, with their intervals; dotted is the highest of the controls.

    Args:
        rows: a mapping for every point of a curve: ``at`` (where on the axis; names stand side by side in their
            order), ``curve`` (has the colour) and ``variant`` (has the style of the line), ``value``, ``low`` and
            ``high``, ``control`` (the number where it must be low), ``axis``, ``logarithmic`` and ``base`` (whether it
            is the point around which things are changed, which is shaded).
        ax: where to draw; None makes a figure.
        among: the rows of all panels of a figure, so that a curve looks the same in each; None: these alone.
        title: None is the name of the axis.
        legend: whether to say what the lines are.
    """
    ax = axes_for(ax, size=(5.0, 4.4))
    if not any(np.isfinite(row["value"]) for row in rows):
        return say(ax, "no number was measured along this axis")
    places = _different(rows, "at")
    named = any(isinstance(at, str) for at in places)
    x = dict(zip(places, range(len(places)) if named else places, strict=True))
    if rows[0]["logarithmic"]:
        ax.set_xscale("log")
    # A name has a line for every word, so that it stays clear of its neighbours.
    names = [drawable(at.replace(" ", "\n")) if named else f"{at:g}" for at in places]
    ax.set_xticks(list(x.values()), names)
    ax.set_xticks([], minor=True)
    for at in _different([row for row in rows if row["base"]], "at"):
        ax.axvline(x[at], color="0.88", linewidth=5, zorder=0)
    curves, variants = (_different(rows if among is None else among, what) for what in ("curve", "variant"))
    for curve, variant in dict.fromkeys((row["curve"], row["variant"]) for row in rows):
        own = [row for row in rows if (row["curve"], row["variant"]) == (curve, variant)]
        look = _look(curves.index(curve), variants.index(variant))
        _draw(ax, [x[row["at"]] for row in own], own, look, named=named)
    dotted: dict[str, Any] = {"linestyle": "none", "marker": "_"} if named else {"linestyle": ":"}
    for curve in _different(rows, "curve"):
        highest = [
            _highest(row["control"] for row in rows if (row["curve"], row["at"]) == (curve, at))
            for at in places
        ]
        colour = ACCENTS[curves.index(curve)]
        ax.plot(list(x.values()), highest, color=colour, linewidth=1.2, zorder=1, **dotted)
    ax.set_ylim(*LIMITS)
    ax.set_title(drawable(rows[0]["axis"] if title is None else title))
    if legend:
        ax.figure.legend(handles=_legend(curves, variants), loc="outside lower center", frameon=False)
    return ax


def robustness_panels(rows: Sequence[Row], *, columns: int = 2, title: str = "") -> "Figure":
    """A figure with `robustness_curves` for every axis, and below all what the lines are."""
    draw: list[Callable[[Axes], Any]] = [
        partial(robustness_curves, [row for row in rows if row["axis"] == axis], among=rows, legend=False)
        for axis in _different(rows, "axis")
    ]
    figure = panels(draw, columns=columns, size=(3.2, 2.5), title=title, sharey=True)
    handles = _legend(_different(rows, "curve"), _different(rows, "variant"))
    figure.legend(handles=handles, loc="outside lower center", frameon=False)
    return figure


def _different(rows: Iterable[Row], what: str) -> list[Any]:
    return list(dict.fromkeys(row[what] for row in rows))


def _look(curve: int, variant: int) -> dict[str, Any]:
    """A colour and a marker for every curve, a style of line for every variant."""
    return {
        "color": ACCENTS[curve],
        "marker": MARKERS[curve],
        "markerfacecolor": "white" if variant else ACCENTS[curve],
        "linestyle": LINES[variant],
        "linewidth": 1.6,
        "markersize": 4.5,
    }


def _draw(
    ax: "Axes", x: Sequence[int | float], rows: Sequence[Row], look: dict[str, Any], *, named: bool
) -> None:
    numbers = (np.array([row[what] for row in rows], dtype=float) for what in ("value", "low", "high"))
    value, low, high = (np.clip(part, *LIMITS) for part in numbers)
    if named:  # nothing lies between names
        ax.vlines(x, low, high, color=look["color"], linewidth=1.2)
        look = look | {"linestyle": "none"}
    else:
        ax.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
    ax.plot(x, value, zorder=3, **look)


def _highest(values: Iterable[float]) -> float:
    return max((float(np.clip(value, *LIMITS)) for value in values if np.isfinite(value)), default=np.nan)


def _legend(curves: Sequence[str], variants: Sequence[str]) -> "list[Artist]":
    from matplotlib.lines import Line2D

    grey: dict[str, Any] = {"color": "0.35", "linewidth": 1.6}
    return [
        *(Line2D([], [], label=drawable(curve), **_look(n, 0)) for n, curve in enumerate(curves)),
        *(
            Line2D([], [], label=drawable(one), **grey | {"linestyle": LINES[m]})
            for m, one in enumerate(variants)
        ),
        Line2D([], [], label="the highest of its controls, in its colour", linestyle=":", **grey),
    ]
