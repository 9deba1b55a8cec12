"""A few numbers with their intervals: ratios as bars beside those of the paper, and points a row each (forests)."""

from collections.abc import Mapping, Sequence
from functools import partial
from math import isfinite, nan
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from topic_probe.contrast import RELATIONS, Contrast
from topic_probe.report import Report
from topic_probe.show.style import ACCENTS, SEQUENTIAL, axes_for, drawable, panels, say

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from topic_probe.measure.matched import MatchedReport
    from topic_probe.toy.agreement import AgreementReport

# A ratio beyond this, and the smaller ones are drawn on a logarithmic axis to be seen beside it.
LOG_FROM = 3.0

_MARKS = ("o", "s", "^", "D", "v", "P")


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
    contrasts: Mapping[str, Contrast | Mapping[str, float]],
    ax: "Axes | None" = None,
    *,
    title: str = "",
    label: str = "mean",
) -> "Axes":
    """Three bars for every contrast of a single cell: means of same word, other words of the topic, other topics.

    The axis is logarithmic where all means are positive, as those of attention are, and bars start at 1 then.

    Args:
        contrasts: by name; numbers of `word_attention` are as good.
        ax: where to draw; None makes a figure.
        title: above the axes.
        label: what the means are of.
    """
    ax = axes_for(ax, size=(max(4.5, 2.0 + 1.3 * len(contrasts)), 3.4))
    rows = [vars(of) if isinstance(of, Contrast) else of for of in contrasts.values()]
    means = np.array([[row[name] for name in RELATIONS] for row in rows], dtype=float)
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


def seed_points(
    rows: Sequence[Mapping[str, Any]],
    quantity: str,
    ax: "Axes | None" = None,
    *,
    above: float | None = None,
    below: float | None = None,
    title: str = "",
) -> "Axes":
    """A point for every seed, settings one below the other, with those of the controls beside it in open marks.

    A claim holds where the filled points lie between its bounds, and all open ones do not.

    Args:
        rows: a mapping for every training: ``setting``, ``control`` (empty where nothing is broken), and numbers by
            name. One that is None, NaN or missing leaves a gap.
        quantity: which number to draw.
        ax: where to draw; None makes a figure.
        above: the lower bound of the claim, as a line.
        below: its upper bound.
        title: above the axes; empty: the name of the quantity.
    """
    known = [row for row in rows if isfinite(_number(row.get(quantity)))]
    settings = list(dict.fromkeys(str(row["setting"]) for row in known))
    controls = sorted(dict.fromkeys(str(row["control"]) for row in known), key=bool)
    ax = axes_for(ax, size=(7.0, 1.2 + 0.45 * len(settings)))
    if not known:
        return say(ax, "no number to draw")
    for number, control in enumerate(controls):
        own = [row for row in known if row["control"] == control]
        offset = 0.7 * (number / len(controls) - 0.4)
        colour = ACCENTS[number % len(ACCENTS)]
        ax.plot(
            [_number(row[quantity]) for row in own],
            [settings.index(str(row["setting"])) + offset for row in own],
            linestyle="none", marker=_MARKS[number % len(_MARKS)], markersize=4.5, color=colour,
            markerfacecolor="none" if control else colour, label=drawable(control or "as claimed"),
        )  # fmt: skip
    for bound in (above, below):
        if bound is not None:
            ax.axvline(bound, color="black", linewidth=0.8, linestyle="--")
    ax.set_yticks(range(len(settings)), [drawable(setting) for setting in settings])
    ax.set_ylim(len(settings) - 0.4, -0.6)
    ax.set_title(drawable(title or quantity))
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
    values = [_number(row.get(name)) for name in ("ratio", "low", "high", "paper")]
    return [value for value in values if isfinite(value)]


def _threshold(threshold: Any) -> str:
    return (
        "ratio" if threshold is None else f"{threshold:g}" if isinstance(threshold, float) else str(threshold)
    )


# -------------------------------------------------------------------- points, a row each


class _Mark(NamedTuple):
    """A number with what it is uncertain by; those of a group share a colour and a marker."""

    name: str
    value: float
    low: float = nan
    high: float = nan
    group: str = ""


def matched_forest(report: "MatchedReport", ax: "Axes | None" = None, *, title: str | None = None) -> "Axes":
    """A point with its interval for every score and way of matching; the line is where topics make no difference.

    Args:
        report: what `measure_matched` gives.
        ax: where to draw; None makes a figure.
        title: what stands above.
    """
    statistic = report.cosine.statistic
    scores = {"cosine": report.cosine, "dot product": report.dot, "attention": report.attention}
    marks = []
    for score, contrast in scores.items():
        if contrast is None:
            continue
        values = getattr(contrast, statistic)
        ends = np.full((len(values), 2), nan) if contrast.interval is None else contrast.interval
        for way, value, (low, high) in zip((contrast.index or {})["matched_on"], values, ends, strict=True):
            name = "all pairs" if way == "nothing" else f"equal {way}"
            marks.append(_Mark(f"{score}, {name}", float(value), low, high, score))
    label = f"same topic {'÷' if statistic == 'ratio' else '−'} different topics"
    ax = axes_for(ax, size=(6.5, 0.9 + 0.3 * len(marks)))
    return _forest(ax, marks, label, title, reference=1.0 if statistic == "ratio" else 0.0)


def quotient_forest(
    rows: Sequence[Mapping[str, Any]], ax: "Axes | None" = None, *, title: str | None = None
) -> "Axes":
    """A point with its interval for every row of Table 2, and a cross where the paper has its own.

    Args:
        rows: a mapping for each: ``score``, ``model``, ``threshold``, ``quotient``, ``low``, ``high``, and
            ``paper_quotient`` where the paper has one.
        ax: where to draw; None makes a figure.
        title: what stands above.
    """
    scores = list(dict.fromkeys(str(row["score"]) for row in rows))
    rows = sorted(rows, key=lambda row: scores.index(str(row["score"])))
    marks = [
        _Mark(
            f"{row['score']}, {row['model']}, {row['threshold']:g}",
            _number(row["quotient"]),
            _number(row["low"]),
            _number(row["high"]),
            group=str(row["score"]),
        )
        for row in rows
    ]
    ax = axes_for(ax, size=(6.5, 0.9 + 0.3 * len(marks)))
    ax = _forest(ax, marks, "same topic ÷ the pairs that co-occur most often", title, reference=1.0)
    crosses = [
        (row["paper_quotient"], place)
        for place, row in enumerate(rows)
        if row.get("paper_quotient") is not None
    ]
    if crosses:
        ax.plot(*zip(*crosses, strict=True), linestyle="none", marker="x", color="black", label="paper")
        ax.legend(fontsize="small")
    return ax


def loss_scale(report: "AgreementReport", ax: "Axes | None" = None, *, title: str | None = None) -> "Axes":
    """The loss of a trained toy between guessing and the best possible, with the floor of its regime."""
    losses = {
        "guessing": (report.guess, 0.0),
        report.regime: (report.loss, report.loss_error),
        "floor, long documents": (report.floor, 0.0),
        "best possible": (report.bayes, report.bayes_error),
    }
    marks = [_Mark(name, loss, loss - error, loss + error) for name, (loss, error) in losses.items()]
    label = f"{report.loss_kind.replace('_', '-')} loss (± standard error)"
    return _forest(axes_for(ax, size=(6.0, 2.4)), marks, label, title, written=True)


def contrast_bars(report: Report, ax: "Axes | None" = None, *, title: str | None = None) -> "Axes":
    """The number that the contrasts of a report are about, each with its interval: of any report that has some.

    Only contrasts of a single cell are drawn. TypeError for a report without any.
    """
    contrasts = {
        name: value
        for name in report.__dataclass_fields__  # type: ignore[attr-defined]
        if isinstance(value := getattr(report, name), Contrast) and not value.shape
    }
    if not contrasts:
        raise TypeError(f"there is no figure of a {type(report).__name__}; its numbers are in to_dataframe()")
    marks = [
        _Mark(
            f"{name.replace('_', ' ')} ({contrast.statistic})",
            float(getattr(contrast, contrast.statistic)),
            *(() if contrast.interval is None else contrast.interval),
        )
        for name, contrast in contrasts.items()
    ]
    ax = axes_for(ax, size=(6.0, 1.2 + 0.4 * len(marks)))
    return _forest(ax, marks, "same topic against different topics, with interval", title, written=True)


def _forest(
    ax: "Axes",
    marks: Sequence[_Mark],
    label: str,
    title: str | None,
    *,
    reference: float | None = None,
    written: bool = False,
) -> "Axes":
    """A row for every mark; ``written`` says the numbers beside the points, the one that is missing too."""
    if not any(isfinite(mark.value) for mark in marks):
        return say(ax, "nothing to draw: all numbers are missing")
    groups = list(dict.fromkeys(mark.group for mark in marks))
    for row, mark in enumerate(marks):
        number = groups.index(mark.group)
        colour, marker = ACCENTS[number % len(ACCENTS)], "osD^"[number % 4]
        if isfinite(mark.low) and isfinite(mark.high):
            ax.hlines(row, mark.low, mark.high, color=colour, linewidth=2)
        ax.plot(mark.value, row, linestyle="none", marker=marker, color=colour)
        if written:
            _write(ax, mark.value, row)
        if len(groups) > 1 and mark.group != (marks[row + 1].group if row + 1 < len(marks) else None):
            ax.axhline(row + 0.5, color="0.85", linewidth=0.8, zorder=0)
    if reference is not None:
        ax.axvline(reference, color="black", linewidth=0.8, zorder=0)
    ax.set_yticks(range(len(marks)), [drawable(mark.name) for mark in marks])
    ax.set_ylim(len(marks) - 0.4, -0.8 if written else -0.6)
    ax.set_xlabel(label)
    if written:
        ax.margins(x=0.12)
    if title is not None:
        ax.set_title(drawable(title))
    return ax


def _write(ax: "Axes", value: float, row: int) -> None:
    known = isfinite(value)
    ax.annotate(
        f"{value:.4g}" if known else "missing",
        (value if known else 0.5, row),
        (0, 6),
        textcoords="offset points",
        xycoords="data" if known else ("axes fraction", "data"),
        ha="center",
        fontsize="small",
    )


def _number(value: Any) -> float:
    return nan if value is None else float(value)
