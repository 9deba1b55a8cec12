"""Ratios with their intervals: by model and threshold beside the values of the paper, by head, by layer."""

from collections.abc import Mapping, Sequence
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from topic_probe.contrast import RELATIONS, Contrast
from topic_probe.show.style import ACCENTS, SEQUENTIAL, axes_for, drawable, panels, say

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A ratio beyond this, and the smaller ones are drawn on a logarithmic axis to be seen beside it.
LOG_FROM = 3.0


def ratio_bars(
    rows: Sequence[Mapping[str, Any]],
    ax: "Axes | None" = None,
    *,
    score: str | None = None,
    legend: bool = True,
) -> "Axes":
    """Bars of ratios, models along the axis and a bar for every threshold, with intervals and the paper's values.

    A bar starts at 1, where topics make no difference. Where a ratio exceeds 3 the axis is logarithmic.

    Args:
        rows: a mapping for every bar: ``model``, ``threshold``, ``score``, ``ratio``, and where they are known ``low``,
            ``high`` and ``paper``. A ratio that is None or NaN leaves a gap; so does a row that is missing.
        ax: where to draw; None makes a figure.
        score: which score to draw; needed where the rows hold several.
        legend: whether to say beside the axes which bar is which.

    Raises:
        ValueError: where rows of several scores are given and none is chosen, or none has the score.
    """
    chosen = _of_score(rows, score)
    models = list(dict.fromkeys(str(row["model"]) for row in chosen))
    ax = axes_for(ax, size=(max(4.5, 2.0 + 0.9 * len(models)), 3.2))
    if not any(isfinite(_number(row.get("ratio"))) for row in chosen):
        return say(ax, "no ratio to draw")
    thresholds = list(dict.fromkeys(row.get("threshold") for row in chosen))
    width = 0.8 / len(thresholds)
    by_cell = {(str(row["model"]), row.get("threshold")): row for row in chosen}
    for number, threshold in enumerate(thresholds):
        cells = [by_cell.get((model, threshold), {}) for model in models]
        at = np.arange(len(models)) + (number - (len(thresholds) - 1) / 2) * width
        _bars(ax, at, cells, width=width, colour=_shade(number, len(thresholds)), label=_threshold(threshold))
    _paper_values(ax, models, thresholds, by_cell, width)
    highest = max((value for row in chosen for value in _values(row)), default=1.0)
    lowest = min((value for row in chosen for value in _values(row)), default=1.0)
    if highest > LOG_FROM and lowest > 0:
        _logarithmic(ax, min(lowest, 1.0), highest)
    ax.axhline(1.0, color="black", linewidth=0.8)
    ax.set_xticks(range(len(models)), [drawable(model) for model in models], rotation=20, ha="right")
    ax.set_xlim(-0.6, len(models) - 0.4)
    ax.set_ylabel("same topic ÷ different topics")
    shown = score or (str(chosen[0]["score"]) if chosen[0].get("score") is not None else "")
    ax.set_title(drawable(shown))
    if legend:
        title = None if thresholds == [None] else "threshold"
        ax.legend(fontsize="small", title=title, loc="upper left", bbox_to_anchor=(1.0, 1.02), frameon=False)
    return ax


def ratio_panels(rows: Sequence[Mapping[str, Any]], *, title: str = "") -> "Figure":
    """A figure with `ratio_bars` of every score among the rows."""
    scores = list(dict.fromkeys(row["score"] for row in rows))
    n_models = len({row["model"] for row in rows})
    draw = [partial(ratio_bars, rows, score=score, legend=score == scores[0]) for score in scores]
    return panels(draw, columns=1, size=(max(4.5, 2.0 + 0.9 * n_models), 2.6), title=title)


def relation_bars(
    contrasts: Mapping[str, Contrast], ax: "Axes | None" = None, *, title: str = "", label: str = "mean"
) -> "Axes":
    """Three bars for every contrast of a single cell: means of same word, other words of the topic, other topics.

    The axis is logarithmic where all means are positive, as those of attention are, and bars start at 1 then.

    Args:
        contrasts: by name.
        ax: where to draw; None makes a figure.
        title: above the axes.
        label: what the means are of.
    """
    ax = axes_for(ax, size=(max(4.5, 2.0 + 1.3 * len(contrasts)), 3.4))
    means = np.array([[getattr(one, name) for name in RELATIONS] for one in contrasts.values()], dtype=float)
    if not np.isfinite(means).any():
        return say(ax, "no mean to draw: all are missing")
    positive = bool((means[np.isfinite(means)] > 0).all())
    bottom = 1.0 if positive else 0.0
    for number, name in enumerate(RELATIONS):
        at, heights = np.arange(len(means)) + 0.27 * (number - 1), means[:, number]
        known = np.isfinite(heights)
        ax.bar(
            at[known], heights[known] - bottom, bottom=bottom, width=0.25, color=_shade(number, 3), edgecolor="black",
            linewidth=0.5, label=name.replace("_", " "),
        )  # fmt: skip
    ax.axhline(bottom, color="black", linewidth=0.8)
    if positive:
        known = means[np.isfinite(means)]
        _logarithmic(ax, float(min(known.min(), 1)), float(max(known.max(), 1)))
    ax.set_xticks(range(len(contrasts)), [drawable(name) for name in contrasts], rotation=15, ha="right")
    ax.set_ylabel(label)
    ax.set_title(drawable(title))
    ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.02), frameon=False)
    return ax


def _of_score(rows: Sequence[Mapping[str, Any]], score: str | None) -> list[Mapping[str, Any]]:
    scores = list(dict.fromkeys(row.get("score") for row in rows))
    if score is None and len(scores) > 1:
        raise ValueError(
            f"the rows hold the scores {scores}: choose one with score=, or draw them all by ratio_panels"
        )
    chosen = [row for row in rows if score is None or row.get("score") == score]
    if score is not None and not chosen:
        raise ValueError(f"no row has the score {score!r}; there are {scores}")
    return chosen


def _bars(
    ax: "Axes", at: np.ndarray, cells: Sequence[Mapping[str, Any]], *, width: float, colour: Any, label: str
) -> None:
    ratios = np.array([_number(cell.get("ratio")) for cell in cells])
    known = np.isfinite(ratios)
    ax.bar(
        at[known], ratios[known] - 1, width=0.92 * width, bottom=1.0, color=colour, edgecolor="black", linewidth=0.5,
        label=label,
    )  # fmt: skip
    ends = np.array([[_number(cell.get(end)) for end in ("low", "high")] for cell in cells])
    whole = known & np.isfinite(ends).all(1)
    if whole.any():
        # The ends are what is drawn; a ratio outside its interval must not turn a length negative.
        ax.vlines(at[whole], ends[whole, 0], ends[whole, 1], color="black", linewidth=1.2)
        for side in (0, 1):
            ax.plot(at[whole], ends[whole, side], linestyle="none", marker="_", markersize=4, color="black")
    for place in at[~known]:
        ax.text(place, 1.0, "×", ha="center", va="bottom", color="0.4", fontsize="small")


def _paper_values(
    ax: "Axes",
    models: Sequence[str],
    thresholds: Sequence[Any],
    by_cell: Mapping[tuple[str, Any], Mapping[str, Any]],
    width: float,
) -> None:
    places, values = [], []
    for column, model in enumerate(models):
        for number, threshold in enumerate(thresholds):
            value = _number(by_cell.get((model, threshold), {}).get("paper"))
            if isfinite(value):
                places.append(column + (number - (len(thresholds) - 1) / 2) * width)
                values.append(value)
    if places:
        ax.plot(
            places, values, linestyle="none", marker="D", markersize=5, markerfacecolor="white",
            markeredgecolor=ACCENTS[1], markeredgewidth=1.4, label="paper", zorder=4,
        )  # fmt: skip


def _logarithmic(ax: "Axes", lowest: float, highest: float) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    ax.set_yscale("log")
    ax.set_ylim(lowest / 1.08, highest * 1.15)
    ticks = [0.001, 0.01, 0.03, 0.1, 0.2, 0.5, 1, 1.5, 2, 3, 5, 8, 12, 20, 50, 100, 1000]
    if highest > 20 * lowest:
        ticks = [0.001, 0.01, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000]
    ax.yaxis.set_major_locator(
        FixedLocator([tick for tick in ticks if lowest / 1.1 <= tick <= highest * 1.2])
    )
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_locator(NullLocator())


def _shade(number: int, n: int) -> Any:
    """Steps from dark to light, for thresholds, which have an order."""
    from matplotlib import colormaps

    return colormaps[SEQUENTIAL](0.15 + 0.8 * number / max(1, n - 1))


def _values(row: Mapping[str, Any]) -> list[float]:
    found = [_number(row.get(name)) for name in ("ratio", "low", "high", "paper")]
    return [value for value in found if isfinite(value)]


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _threshold(threshold: Any) -> str:
    return (
        "ratio" if threshold is None else f"{threshold:g}" if isinstance(threshold, float) else str(threshold)
    )
