"""Every figure by its name, and which of them belongs to which report.

Figures draw what reports and histories hold. They take ``ax=None`` and return the `matplotlib.axes.Axes` they drew on;
``.figure`` of it can be saved as svg, png or pdf with any backend. No pyplot and no global setting is involved, so in a
notebook it is ``report.plot().figure`` that is shown.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from topic_probe.contrast import Contrast
from topic_probe.measure.attention import AttentionReport
from topic_probe.measure.embeddings import EmbeddingReport
from topic_probe.measure.matched import MatchedReport
from topic_probe.measure.matrix import MatrixReport
from topic_probe.measure.weights import WeightReport
from topic_probe.report import Report
from topic_probe.show.bars import ratio_bars as ratio_bars
from topic_probe.show.bars import ratio_panels as ratio_panels
from topic_probe.show.bars import relation_bars as relation_bars
from topic_probe.show.blocks import block_map as block_map
from topic_probe.show.blocks import block_panels as block_panels
from topic_probe.show.curves import loss_curve as loss_curve
from topic_probe.show.curves import norm_curves as norm_curves
from topic_probe.show.curves import rotation_curve as rotation_curve
from topic_probe.show.curves import stage_map as stage_map
from topic_probe.show.curves import training_panels as training_panels
from topic_probe.show.heads import depth_curve as depth_curve
from topic_probe.show.heads import head_map as head_map
from topic_probe.show.landscape import landscape_panels as landscape_panels
from topic_probe.show.landscape import loss_landscape as loss_landscape
from topic_probe.show.matched import matched_forest as matched_forest
from topic_probe.show.matched import quotient_forest as quotient_forest
from topic_probe.show.style import ACCENTS, axes_for, drawable, say
from topic_probe.toy.agreement import AgreementReport
from topic_probe.toy.landscape import LandscapeReport
from topic_probe.train.history import History
from topic_probe.train.stages import DynamicsReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot(what: Report | History, ax: "Axes | None" = None, **options: Any) -> "Axes":
    """The main figure of a report or history: what its ``plot`` calls. Options are those of the figure's function."""
    if isinstance(what, History):
        return _history(what, ax, **options)
    for kind, draw in _MAIN.items():
        if isinstance(what, kind):
            return draw(what, ax, **options)
    return contrast_bars(what, ax, **options)


def loss_scale(report: AgreementReport, ax: "Axes | None" = None, *, title: str | None = None) -> "Axes":
    """The loss of a trained toy between guessing and the best possible, with the floor of its regime."""
    ax = axes_for(ax, size=(6.0, 2.4))
    marks = {
        "guessing": (report.guess, 0.0),
        report.regime: (report.loss, report.loss_error),
        "floor, long documents": (report.floor, 0.0),
        "best possible": (report.bayes, report.bayes_error),
    }
    return _forest(ax, marks, f"{report.loss_kind.replace('_', '-')} loss (± standard error)", title)


def contrast_bars(report: Report, ax: "Axes | None" = None, *, title: str | None = None) -> "Axes":
    """The number that the contrasts of a report are about, each with its interval: of any report that has some.

    Only contrasts of a single cell are drawn. TypeError for a report without any.
    """
    found = {
        name: value
        for name in report.__dataclass_fields__  # type: ignore[attr-defined]
        if isinstance(value := getattr(report, name), Contrast) and not value.shape
    }
    if not found:
        raise TypeError(f"there is no figure of a {type(report).__name__}; its numbers are in to_dataframe()")
    ax = axes_for(ax, size=(6.0, 1.2 + 0.4 * len(found)))
    marks = {}
    for name, contrast in found.items():
        value = float(getattr(contrast, contrast.statistic))
        ends = np.array([np.nan, np.nan]) if contrast.interval is None else contrast.interval
        marks[f"{name.replace('_', ' ')} ({contrast.statistic})"] = (
            value,
            (value - ends[0], ends[1] - value),
        )
    return _forest(ax, marks, "same topic against different topics, with interval", title)


def _forest(ax: "Axes", marks: Mapping[str, tuple[float, Any]], label: str, title: str | None) -> "Axes":
    """A point for every name, with what it is uncertain by."""
    if not any(np.isfinite(value) for value, _ in marks.values()):
        return say(ax, "nothing to draw: all numbers are missing")
    for row, (value, error) in enumerate(marks.values()):
        below, above = np.broadcast_to(np.nan_to_num(error, posinf=0.0, neginf=0.0), 2)
        ax.hlines(row, value - below, value + above, color=ACCENTS[0], linewidth=2)
        ax.plot(value, row, linestyle="none", marker="o", color=ACCENTS[0])
        text = f"{value:.4g}" if np.isfinite(value) else "missing"
        ax.annotate(
            text,
            (value if np.isfinite(value) else 0.5, row),
            (0, 6),
            textcoords="offset points",
            xycoords="data" if np.isfinite(value) else ("axes fraction", "data"),
            ha="center",
            fontsize="small",
        )
    ax.set_yticks(range(len(marks)), [drawable(name) for name in marks])
    ax.set_ylim(len(marks) - 0.4, -0.8)
    ax.set_xlabel(label)
    ax.margins(x=0.12)
    if title is not None:
        ax.set_title(drawable(title))
    return ax


def _history(history: History, ax: "Axes | None" = None, **options: Any) -> "Axes":
    """The norms of one layer; without axes or a layer, a panel for every layer."""
    several = any("." in name for name in history.norms)
    if several and ax is None and options.get("layer") is None:
        options.pop("layer", None)
        return training_panels(history, **options).axes[0]
    return norm_curves(history, ax, **options)


_MAIN: Mapping[type[Report], Callable[..., "Axes"]] = {
    MatrixReport: block_map,
    EmbeddingReport: block_map,
    AttentionReport: head_map,
    WeightReport: head_map,
    DynamicsReport: stage_map,
    AgreementReport: loss_scale,
    LandscapeReport: loss_landscape,
    MatchedReport: matched_forest,
}
