"""Eight figures of tidy tables (`pandas.DataFrame`), a row for every thing that is drawn.

All take ``ax`` (None makes a figure), ``title``, and ``label``: what the numbers are (empty: the name of their column).
They return the `matplotlib.axes.Axes` that they drew on; ``.figure`` of it can be saved as svg, png or pdf. The columns
``low`` and ``high`` are the ends of intervals. ``report.plot()`` draws the main figure of a report, and its
``to_dataframe()`` goes into any of these. No pyplot and no global setting is involved.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64, Shaped

from topic_probe.show.style import ACCENTS, LINES, axes_for, diverging, drawable, say, topic_colours

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from topic_probe.toy.landscape import LandscapeReport

__all__ = [
    "curves", "forest", "head_map", "loss_landscape", "matrix_map", "panels", "ratio_bars", "scatter",
]  # fmt: skip

MAX_WRITTEN = 100
"""Numbers are written into the cells of maps with no more cells than this."""
MAX_ROWS = 40
"""A forest with more rows than this cannot be read; those farthest from the middle are drawn."""
MAX_NAMED = 40
"""Of more rows, words or topics along a map only some are named."""
SMALLEST_SPAN, LARGEST_SPAN = 1.05, 10.0
"""Colours of ratios span at least 1/1.05 to 1.05, so noise does not look like an effect, and at most 1/10 to 10."""
GREY = "#9a9a9a"


def panels(
    parts: Mapping[str, Any],
    draw: "Callable[..., Axes]",
    *,
    columns: int = 4,
    size: tuple[float, float] = (3.2, 3.0),
    **sharing: Any,
) -> "Figure":
    """A figure with a panel for every part, ``draw(part, ax=ax, title=name)``; ``size`` is of one panel.

    What all legends say stands in the last panel only.
    ``sharing`` goes to `matplotlib.figure.Figure.subplots` (``sharex=True``).
    """
    from matplotlib.figure import Figure

    n_columns = min(len(parts), columns) or 1
    n_rows = max(1, -(-len(parts) // n_columns))
    figure = Figure(figsize=(size[0] * n_columns, size[1] * n_rows), layout="compressed")
    grid = figure.subplots(n_rows, n_columns, squeeze=False, **sharing)
    for ax, (name, part) in zip(grid.flat, parts.items(), strict=False):
        draw(part, ax=ax, title=name)
    for ax in grid.flat[len(parts) :]:
        ax.set_axis_off()
    legends = [legend for ax in grid.flat if (legend := ax.get_legend()) is not None]
    if len({tuple(text.get_text() for text in legend.get_texts()) for legend in legends}) == 1:
        for legend in legends[:-1]:
            legend.remove()
    return figure


# -------------------------------------------------------------------- maps


def head_map(
    table: "pd.DataFrame",
    value: str = "ratio",
    *,
    rows: str = "layer",
    columns: str = "head",
    certain: str = "",
    limits: tuple[float, float] | None = None,
    ax: "Axes | None" = None,
    label: str = "",
    title: str = "",
) -> "Axes":
    """A number of every head as colours, layers downwards: orange is more, blue is less, white is no difference.

    Args:
        table: a row for every head.
        value: the column that is drawn; one that ends in "ratio" has a logarithmic scale around 1, others one around 0.
        rows: the column of what stands below each other.
        columns: the column of what stands beside each other; ``"step"`` shows heads as they learn.
        certain: a column of yes and no; a dot marks yes.
        limits: lowest and highest number of the colours, to compare maps; None spans those in the table.
    """
    from matplotlib.colors import FuncNorm, Normalize

    ratio, grid = value.endswith("ratio"), table.pivot(index=rows, columns=columns, values=value)
    values = grid.to_numpy(dtype=float)
    n_rows, n_columns = grid.shape
    size = max(3.6, 2.2 + 0.32 * n_columns), min(12.0, max(2.6, 1.4 + 0.3 * n_rows))
    ax = axes_for(ax, size=size)
    ax.set_title(drawable(title), fontsize="medium")
    known = values[np.isfinite(values)]
    if not len(known):
        return say(ax, "no head has a number here: all are missing")
    low, high = limits or span_of(known, ratio=ratio)
    norm = FuncNorm((_log, np.exp), low, high) if ratio else Normalize(low, high)
    image = ax.imshow(values, cmap=diverging(), norm=norm, aspect="auto", interpolation="nearest")
    if values.size <= MAX_WRITTEN and high >= 0.01:
        _write(ax, values)
    _name_cells(ax, grid)
    if certain:
        sure = table.pivot(index=rows, columns=columns, values=certain).to_numpy() == 1
        down, along = np.nonzero(sure)
        ax.scatter(along, down - 0.3 * bool(ax.texts), s=12, c="black", linewidths=0)
        ax.set_xlabel(f"● {certain}" if sure.any() else f"no head has {certain}")
    ticks = _ratio_ticks(high) if ratio else None
    ax.figure.colorbar(
        image, ax=ax, label=label or _words(value), ticks=ticks, format="%g", extend=_arrows(known, low, high)
    )
    return ax


def span_of(known: Float64[np.ndarray, " number"], *, ratio: bool) -> tuple[float, float]:
    """The ends of colours with no difference in their middle."""
    if not ratio:
        span = float(np.max(np.abs(known), initial=1e-12))
        return -span, span
    positive = known[known > 0]
    span = min(float(np.max(np.maximum(positive, 1 / positive), initial=SMALLEST_SPAN)), LARGEST_SPAN)
    return 1 / span, span


def _write(ax: "Axes", values: Float64[np.ndarray, "row column"]) -> None:
    """The numbers in their cells, in two or three digits."""
    for (row, column), number in np.ndenumerate(values):
        if np.isfinite(number):
            text = f"{round(number, 2) + 0.0:.2f}"  # no zero with a minus
            if abs(number) >= 10:
                text = f"{number:.0f}" if abs(number) < 1000 else "≥ 1k" if number > 0 else "≤ −1k"
            ax.text(column, row + 0.12, text, ha="center", va="center", fontsize="x-small")


def _name_cells(ax: "Axes", grid: "pd.DataFrame") -> None:
    """Layers and heads as TransformerLens names them, whatever else stands there by its own name."""
    for axis, names in ((ax.xaxis, grid.columns), (ax.yaxis, grid.index)):
        letter = {"layer": "L", "head": "H"}.get(str(names.name), "")
        step = -(-len(names) // MAX_NAMED)
        shown = [drawable(f"{letter}{name}") for name in names[::step]]
        long = max(map(len, shown)) > 3 and axis is ax.xaxis
        axis.set_ticks(range(0, len(names), step), shown, fontsize="small", rotation=60 if long else 0)
        axis.set_label_text("" if letter or str(names.name) == "measured" else _words(str(names.name)))


def _log(values: Any) -> Any:
    return np.log(np.maximum(values, 1e-300))


def _ratio_ticks(highest: float) -> list[float]:
    nice = [1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0]
    inside = [tick for tick in nice if tick <= 1.0001 * highest][-2:]
    return sorted({float(f"{value:.2g}") for tick in inside for value in (1 / tick, tick)} | {1.0})


def _arrows(values: Shaped[np.ndarray, "..."], low: float, high: float) -> str:
    """Which ends of a colour bar need an arrow, because there are numbers beyond them."""
    below, above = bool((values < low).any()), bool((values > high).any())
    return {(True, True): "both", (True, False): "min", (False, True): "max"}.get((below, above), "neither")


def matrix_map(
    matrix: Shaped[np.ndarray, "row column"],
    topics: Sequence[str] | None = None,
    *,
    words: Sequence[Any] | None = None,
    ax: "Axes | None" = None,
    label: str = "",
    title: str = "",
) -> "Axes":
    """A matrix between words as colours, the words in the order of their topics, which are framed.

    White is the median off the diagonal, orange more, blue less. The colours span 99 % of what lies off the diagonal,
    because words with themselves would drown the rest, and what lies beyond has the colour of the end.

    Args:
        matrix: the numbers.
        topics: the name of the topic of every row and column; None frames and names nothing.
        words: the word of every row and column; they are named where they are few.
        label: what the numbers are; without it there is no colour bar.
    """
    values = np.asarray(matrix, dtype=float)
    ax = axes_for(ax, size=(6.0, 5.0))
    beside = values[~np.eye(len(values), dtype=bool) & np.isfinite(values)]
    known = beside if len(beside) else values[np.isfinite(values)]
    if not len(known):
        return say(ax, "there is no number in this matrix")
    white = float(np.median(known))
    low, high = (
        white + side * (float(np.percentile(np.abs(known - white), 99)) or 1e-12) for side in (-1, 1)
    )
    shown = "nearest" if len(values) <= 200 else "auto"
    image = ax.imshow(values, cmap=diverging(), vmin=low, vmax=high, interpolation=shown)
    ax.set_title(drawable(title), fontsize="medium")
    if label:
        arrows = _arrows(values[np.isfinite(values)], low, high)
        ax.figure.colorbar(image, ax=ax, label=label, extend=arrows, format="%.2g")
    ax.set(xticks=[], yticks=[])
    if topics is not None:
        _topics_along(ax, [str(topic) for topic in topics], words)
    return ax


def _topics_along(ax: "Axes", topics: Sequence[str], words: Sequence[Any] | None) -> None:
    """Borders between topics, and along two sides their colours and names."""
    from matplotlib.patches import Rectangle
    from matplotlib.transforms import blended_transform_factory as blended

    n, colours = len(topics), topic_colours(topics)
    starts = [row for row in range(n) if row == 0 or topics[row] != topics[row - 1]]
    ends = [*starts[1:], n]
    for start, end in zip(starts, ends, strict=True):
        if start and len(starts) < n:
            ax.axhline(start - 0.5, color=GREY, linewidth=0.5)
            ax.axvline(start - 0.5, color=GREY, linewidth=0.5)
        look: dict[str, Any] = {"color": colours[topics[start]], "clip_on": False, "linewidth": 0}
        below, beside = blended(ax.transData, ax.transAxes), blended(ax.transAxes, ax.transData)
        ax.add_patch(Rectangle((start - 0.5, -0.03), end - start, 0.02, transform=below, **look))
        ax.add_patch(Rectangle((-0.03, start - 0.5), 0.02, end - start, transform=beside, **look))
    names, places = (
        [topics[start] for start in starts],
        [(a + b - 1) / 2 for a, b in zip(starts, ends, strict=True)],
    )
    if words is not None and n <= MAX_NAMED:
        names, places = [f"{topic}:{word}" for topic, word in zip(topics, words, strict=True)], list(range(n))
    step = -(-len(names) // MAX_NAMED)
    shown = [drawable(name) for name in names[::step]]
    ax.tick_params(length=0, pad=11)
    ax.set_yticks(places[::step], shown, fontsize="small")
    ax.set_xticks(places[::step], shown, fontsize="small", rotation=90)
    if step > 1:
        ax.set_xlabel(f"one of {step} topics is named, of {len(names)}", fontsize="small")


# -------------------------------------------------------------------- points, bars


def forest(
    table: "pd.DataFrame",
    value: str,
    *,
    name: str = "name",
    middle: float | None = None,
    beside: Mapping[str, str] | None = None,
    ax: "Axes | None" = None,
    label: str = "",
    title: str = "",
) -> "Axes":
    """A row for everything in a table: a point with its interval.

    Args:
        table: a row for each.
        value: the column of the points.
        name: the column of what stands before a row; without such a column heads have their names, ``L3H5``.
        middle: where a line says no difference; None: 1 for ratios, else 0; NaN for no line.
        beside: what is drawn in grey in the same row, by what it is: a column of numbers, or of several each.
    """
    middle = middle_of(value) if middle is None else middle
    n_all = len(table)
    if value not in table or not np.isfinite(table[value].to_numpy(dtype=float)).any():
        return say(axes_for(ax), "nothing to draw: all numbers are missing")
    if n_all > MAX_ROWS:
        table = table.loc[(table[value] - np.nan_to_num(middle)).abs().nlargest(MAX_ROWS).index].sort_index()
    ax, at = axes_for(ax, size=(6.5, 1.0 + 0.3 * len(table))), np.arange(len(table))
    ax.set_title(drawable(title), fontsize="medium")
    if np.isfinite(middle):
        ax.axvline(middle, color="black", linewidth=0.8, zorder=0)
    for (what, column), marker in zip((beside or {}).items(), "|D", strict=False):
        for row, others in zip(at, table[column], strict=True):
            several = np.atleast_1d(np.asarray(others, dtype=float))
            heights, own = np.full(len(several), row), what if row == 0 else None
            ax.plot(
                several,
                heights,
                marker,
                color=GREY,
                markersize=9,
                markeredgewidth=1.6,
                fillstyle="none",
                label=own,
            )
    if {"low", "high"} <= set(table):
        ax.hlines(at, table["low"], table["high"], color=ACCENTS[0], linewidth=1.8)
    ax.plot(table[value], at, "o", color=ACCENTS[0], markersize=5, label=_words(value))
    ax.set_yticks(at, [drawable(text) for text in names_of(table, name)], fontsize="small")
    ax.set_ylim(len(table) - 0.4, -0.6)
    left_out = f"\nthe {MAX_ROWS} farthest from {middle:g}, of {n_all}" if n_all > MAX_ROWS else ""
    ax.set_xlabel((label or _words(value)) + left_out)
    if beside:
        ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.02), frameon=False)
    return ax


def ratio_bars(
    table: "pd.DataFrame",
    value: str = "ratio",
    *,
    by: str,
    name: str = "name",
    ax: "Axes | None" = None,
    label: str = "",
    title: str = "",
) -> "Axes":
    """Bars from 1, where there is no difference, with intervals: a group for every name, in it one for every ``by``."""
    groups, kinds = list(dict.fromkeys(table[name])), list(dict.fromkeys(table[by]))
    ax = axes_for(ax, size=(max(4.0, 1.4 + 0.5 * len(groups) * len(kinds)), 3.4))
    width = 0.8 / len(kinds)
    for place, kind in enumerate(kinds):
        part, colour = table[table[by] == kind], ACCENTS[place % len(ACCENTS)]
        at = np.array([groups.index(group) for group in part[name]]) + width * (place - (len(kinds) - 1) / 2)
        ax.bar(at, part[value] - 1, 0.9 * width, bottom=1, color=colour, label=drawable(kind))
        if {"low", "high"} <= set(part):
            ax.vlines(at, part["low"], part["high"], color=GREY, linewidth=1.6)
    ax.axhline(1, color="black", linewidth=0.8)
    ax.set_xticks(range(len(groups)), [drawable(group) for group in groups], fontsize="small")
    ax.set_ylabel(label or _words(value))
    ax.set_title(drawable(title), fontsize="medium")
    ax.legend(fontsize="small", frameon=False)
    return ax


def scatter(
    table: "pd.DataFrame",
    x: str,
    y: str,
    *,
    name: str = "name",
    ax: "Axes | None" = None,
    label: str = "",
    title: str = "",
) -> "Axes":
    """A point for every row; filled where the interval of y excludes 0. Lines say where there is no difference.

    The five rows with the greatest |y| and those with the highest x are named.
    """
    ax = axes_for(ax, size=(5.4, 4.0))
    known = table[np.isfinite(table[[x, y]].to_numpy(dtype=float)).all(axis=1)]
    if not len(known):
        return say(ax, "nothing has both numbers")
    ax.axvline(middle_of(x), color="black", linewidth=0.8)
    ax.axhline(middle_of(y), color="black", linewidth=0.8)
    certain = (known["low"] > 0) | (known["high"] < 0)
    for part, fill, what in (
        (known[certain], ACCENTS[0], "interval excludes 0"),
        (known[~certain], "none", ""),
    ):
        own = what if len(part) else None
        ax.scatter(part[x], part[y], s=26, facecolors=fill, edgecolors=ACCENTS[0], label=own)
    far = known.assign(name=names_of(known, name))
    far = far[far.index.isin([*known[y].abs().nlargest(5).index, *known[x].nlargest(5).index])]
    for text, along, up in zip(far["name"], far[x], far[y], strict=True):
        ax.annotate(drawable(text), (along, up), (4, 4), textcoords="offset points", fontsize="x-small")
    if x.endswith("ratio") and (known[x] > 0).all():
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_formatter("{x:g}")
    ax.set(xlabel=_words(x), ylabel=label or _words(y), title=drawable(title))
    if certain.any():
        ax.legend(fontsize="small", frameon=False)
    return ax


# -------------------------------------------------------------------- curves, the loss over attention


def curves(
    table: "pd.DataFrame",
    x: str,
    y: str,
    *,
    by: str | None = None,
    runs: str | None = None,
    middle: float | None = None,
    shade: Sequence[tuple[float, float, str]] = (),
    ax: "Axes | None" = None,
    label: str = "",
    title: str = "",
) -> "Axes":
    """Lines with bands where there are intervals.

    Args:
        table: a row for every point.
        x: the column along the axis.
        y: the column of heights.
        by: the column of what has a line, a colour and a name of its own.
        runs: the column of repetitions: each has a line, in one style.
        middle: where a line says no difference; None draws none.
        shade: from where to where the ground is shaded, and what that is.
    """
    ax = axes_for(ax, size=(5.4, 3.4))
    ax.set_title(drawable(title), fontsize="medium")
    known = table[np.isfinite(table[y].to_numpy(dtype=float))]
    if not len(known):
        return say(ax, f"no {_words(y)} was measured")
    if middle is not None:
        ax.axhline(middle, color="0.7", linewidth=0.8)
    for place, (kind, part) in enumerate(known.groupby(by, sort=False) if by else [("", known)]):
        look = {
            "color": ACCENTS[place % len(ACCENTS)],
            "linestyle": LINES[(place + place // len(ACCENTS)) % len(LINES)],
        }
        for number, (_, run) in enumerate(part.groupby(runs, sort=False) if runs else [("", part)]):
            _line(ax, run, x, y, look, drawable(kind) if number == 0 else None)
    for (start, end, what), colour in zip(shade, ("#c9d8ea", "#fbeec2"), strict=False):
        ax.axvspan(start, end, color=colour, linewidth=0, zorder=0)
        ax.text(
            (start + end) / 2, 0.98, what, ha="center", va="top", transform=ax.get_xaxis_transform(),
            fontsize="x-small", color="0.25",
        )  # fmt: skip
    later = np.unique(known[x][known[x] > 0])
    if 2 < len(later) <= 40 and later[-1] > 50 * later[0]:  # spaced like a logarithmic scale
        ax.set_xscale("symlog", linthresh=float(later[0]), linscale=0.3)
    ax.set(xlabel=drawable(x), ylabel=label or _words(y))
    if by:
        ax.legend(fontsize="small", frameon=False)
    return ax


def _line(ax: "Axes", run: "pd.DataFrame", x: str, y: str, look: dict[str, Any], name: str | None) -> None:
    ax.plot(run[x], run[y], label=name, linewidth=1.4, marker="." if len(run) <= 30 else None, **look)
    if {"low", "high"} <= set(run):
        ax.fill_between(run[x], run["low"], run["high"], color=look["color"], alpha=0.2, linewidth=0)
        # A band needs two points beside each other.
        ax.vlines(run[x], run["low"], run["high"], color=look["color"], alpha=0.5, linewidth=0.8)


def loss_landscape(report: "LandscapeReport", *, ax: "Axes | None" = None, title: str = "") -> "Axes":
    """The loss over α and β of `measure_landscape`, dark is low; white lines are Theorem 3's bounds."""
    from matplotlib import colormaps

    ax = axes_for(ax, size=(6.4, 4.8))
    alphas, betas = report.alphas[report.alphas > 0], report.betas[report.betas > 0]
    loss = report.loss[report.alphas > 0][:, report.betas > 0].T
    if min(loss.shape) < 2 or not np.isfinite(loss).any():
        return say(ax, "no landscape: it needs two or more positive α and β")
    lowest, span = float(np.nanmin(loss)), max(float(np.nanmax(loss) - np.nanmin(loss)), 1e-9)
    # Steps that close in on the valley, where the differences are small.
    shares = [-1e-9, 0.001, 0.003, 0.006, 0.01, 0.02, 0.04, 0.07, 0.12, 0.2, 0.35, 0.6, 1.0]
    levels = lowest + span * np.array(shares)
    colours = colormaps["cividis"](np.linspace(0.05, 1, len(levels) - 1))
    filled = ax.contourf(alphas, betas, loss, levels=levels, colors=colours)
    ax.contour(alphas, betas, loss, levels=levels[1:-1], colors="black", linewidths=0.4, alpha=0.5)
    ax.figure.colorbar(filled, ax=ax, label="squared loss", format="%.3f", spacing="uniform")
    v, (low, high) = report.words_per_topic, report.bounds
    mean = ((v - 1) * alphas[None, :] + betas[:, None]) / v
    inside = [bound for bound in (low, high) if mean.min() < bound < mean.max()]
    if inside:
        ax.contour(alphas, betas, mean, levels=inside, colors="white", linewidths=2.0)
        ax.plot(
            [], [], color="0.8", linewidth=2.0, label="its bounds: " + ", ".join(f"{x:.3g}" for x in inside)
        )
    for (name, point), marker, size in zip(report.points.items(), "*s^", (14, 8, 8), strict=True):
        ax.plot(
            point["alpha"], point["beta"], marker, markersize=size, color="white", markeredgecolor="black", zorder=5,
            label=f"{name}: {point['weighted_mean']:.3g}", clip_on=False,
        )  # fmt: skip
    ax.set(xscale="log", yscale="log", title=drawable(title))
    ax.set(
        xlabel="α: attention to other words of the topic (others: 1)", ylabel="β: attention to the same word"
    )
    ax.legend(fontsize="small", loc="upper left", title="weighted mean (Theorem 3)", title_fontsize="small")
    return ax


def names_of(table: "pd.DataFrame", name: str) -> "pd.Series[str]":
    """What every row is about: a column, or heads as TransformerLens names them, or the first column."""
    if name in table:
        return table[name].astype(str)
    if "head" not in table:
        first = next(column for column in table if column not in ("readout", "n"))
        return table[first].astype(str).str.replace("_", " ")
    names = "L" + table["layer"].astype(str) + "H" + table["head"].astype(str)
    several = "stack" in table and table["stack"].nunique() > 1
    return table["stack"] + " " + names if several else names


def middle_of(value: str) -> float:
    """Where a number says that there is no difference, by its name."""
    return 1.0 if value.endswith("ratio") else 0.0


def _words(column: str) -> str:
    return column.replace("_", " ")
