"""Curves of a training: norms, the rotation of W_V, and losses, with the two stages behind them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from topic_probe.show.style import ACCENTS, axes_for, curve_look, drawable, panels, say
from topic_probe.train.history import History
from topic_probe.train.stages import MIN_ROWS, DynamicsReport, measure_dynamics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from topic_probe.toy.agreement import AgreementReport

STAGE_COLOURS = ("#c9d8ea", "#fbeec2")
"""Behind stage 1 and stage 2."""

TENSORS = ("W_K", "W_Q", "W_V")


def history_curves(history: History, ax: "Axes | None" = None, **options: Any) -> "Axes":
    """The norms of one layer, as `norm_curves`; of several layers, if none is chosen and no axes, `training_panels`."""
    several = any("." in name for name in history.norms)
    if several and ax is None and options.get("layer") is None:
        options.pop("layer", None)
        return training_panels(history, **options).axes[0]
    return norm_curves(history, ax, **options)


def norm_curves(
    history: History | Sequence[History],
    ax: "Axes | None" = None,
    *,
    tensors: Sequence[str] = TENSORS,
    layer: int | None = None,
    stages: bool | DynamicsReport = True,
    title: str | None = None,
    legend: bool = True,
) -> "Axes":
    """Frobenius norms against steps, a curve for every tensor, with stage 1 and stage 2 shaded where there are two.

    Args:
        history: of `train_toy`, or several, whose curves then share a style.
        ax: where to draw; None makes a figure.
        tensors: which tensors.
        layer: which layer, of a model with several.
        stages: the report of `measure_dynamics`; True asks for one (of the first history), False shades nothing.
        title: None says what this is.
        legend: whether to name the curves.

    Raises:
        ValueError: where a layer has to be chosen, or the history has no such tensor.
    """
    histories = _all(history)
    suffix = _suffix(histories[0], layer)
    ax = axes_for(ax, size=(5.4, 3.4))
    for number, name in enumerate(tensors):
        look = {**curve_look(number), "linewidth": 1.4}
        for run, recorded in enumerate(histories):
            norms = recorded.norms
            if name + suffix not in norms:
                raise ValueError(f"no norm of {name + suffix!r} was recorded; there are {', '.join(norms)}")
            ax.plot(recorded.steps, norms[name + suffix], label=_formula(name) if run == 0 else None, **look)
    # Room for the names of the stages.
    ax.set_ylim(0, 1.15 * max(float(ax.dataLim.y1), 1e-12))
    ax.set_xlabel("step")
    ax.set_ylabel("Frobenius norm")
    ax.set_title(drawable(title) if title is not None else f"layer {layer}" if suffix else "")
    shade_stages(ax, histories[:1], layer=layer, stages=stages)
    if legend and (len(tensors) > 1 or len(ax.get_legend_handles_labels()[0]) > 1):
        ax.legend(fontsize="small")
    return ax


def rotation_curve(
    history: History | Sequence[History],
    ax: "Axes | None" = None,
    *,
    layer: int | None = None,
    stages: bool | DynamicsReport = True,
    title: str | None = None,
) -> "Axes":
    """How far W_V turned in ten steps, (1 − cosine)/2, against steps; arguments as in `norm_curves`."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    histories = _all(history)
    name = "W_V" + _suffix(histories[0], layer)
    ax = axes_for(ax, size=(5.4, 3.0))
    curves = [(run.steps, run.rotations[name]) for run in histories if name in run.rotations]
    if not any(bool(values.isfinite().any()) for _, values in curves):
        return say(ax, "no rotation of W_V was recorded: it is not trained, or the training was too short")
    for steps, values in curves:
        ax.plot(steps, values, color=ACCENTS[0], linewidth=1.2)
    if any(bool((values > 0).any()) for _, values in curves):
        # The first steps turn W_V ten to a thousand times as far as those that matter for the stages.
        ax.set_yscale("log")
        seen = torch.cat([values[values > 0] for _, values in curves])
        wide = float(seen.max() / seen.min()) > 100
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 3.0), numticks=8))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("step")
    ax.set_ylabel("(1 − cosine)/2 in 10 steps")
    ax.set_title(drawable(f"rotation of {_formula('W_V')}" if title is None else title).replace(r"\$", "$"))
    shade_stages(ax, histories[:1], layer=layer, stages=stages)
    return ax


def loss_curve(
    history: History,
    ax: "Axes | None" = None,
    *,
    floors: "AgreementReport | Mapping[str, float] | None" = None,
    stages: bool | DynamicsReport = False,
    title: str | None = None,
) -> "Axes":
    """The loss on the batch of every step, its running mean, and lines for what it can and cannot go below.

    Args:
        history: of `train_toy`.
        ax: where to draw; None makes a figure.
        floors: the report of `measure_agreement` on the trained toy, or losses by name.
        stages: as in `norm_curves`.
        title: None says what this is.
    """
    ax = axes_for(ax, size=(5.4, 3.4))
    steps, loss = history.steps.numpy(), history.loss.numpy()
    if not np.isfinite(loss).any():
        return say(ax, "no loss was recorded")
    window = max(1, len(loss) // 50)
    ax.plot(steps, loss, color="0.7", linewidth=0.8, label="batch")
    means = np.convolve(loss, np.ones(window) / window, mode="valid")
    first = window // 2
    ax.plot(steps[first : first + len(means)], means, color=ACCENTS[0], linewidth=1.6, label="running mean")
    lines = _floors(floors)
    for number, (name, value) in enumerate(lines.items(), start=1):
        if np.isfinite(value):
            ax.axhline(value, label=f"{drawable(name)}: {value:.4g}", linewidth=1.3, **curve_look(number))
    ax.set_xlabel("step")
    ax.set_ylabel(history.train.loss.replace("_", "-") + " loss")
    # A few first steps far above all others would press everything else together.
    shown = np.array([*np.percentile(loss[np.isfinite(loss)], [1, 99]), *means, *lines.values()])
    low, high = shown[np.isfinite(shown)].min(), shown[np.isfinite(shown)].max()
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    ax.set_ylim(low - margin, high + margin)
    ax.set_title(drawable(title or ""))
    shade_stages(ax, [history], layer=None, stages=stages)
    ax.legend(fontsize="small")
    return ax


def _floors(floors: "AgreementReport | Mapping[str, float] | None") -> Mapping[str, float]:
    if floors is None or isinstance(floors, Mapping):
        return floors or {}
    return {"guessing": floors.guess, "best possible": floors.bayes, "floor": floors.floor}


def training_panels(
    columns: History | Mapping[str, History | Sequence[History]],
    *,
    tensors: Sequence[str] = TENSORS,
    rotation: bool = True,
    stages: bool = True,
    title: str = "",
) -> "Figure":
    """A figure like the paper's: a column for every setting and layer, a row for every tensor and the rotation of W_V.

    Args:
        columns: the histories of a column by its name (several are several curves), or one history alone.
        tensors: whose norms are rows.
        rotation: whether the rotation of W_V is the last row.
        stages: whether to shade the stages.
        title: above all.
    """
    given: Mapping[str, Any] = {"": columns} if isinstance(columns, History) else columns
    tops = [
        (
            ", ".join(part for part in (name, f"layer {layer}" if layer is not None else "") if part),
            _all(runs),
            layer,
        )
        for name, runs in given.items()
        for layer in _layers(_all(runs)[0])
    ]
    draw: list[Callable[[Axes], Any]] = []
    rows = [*tensors, *(["rotation"] if rotation else [])]
    for row in rows:
        for top, runs, layer in tops:
            head = top if row == rows[0] else ""
            draw.append(partial(_panel, runs=runs, row=row, layer=layer, stages=stages, title=head))
    figure = panels(draw, columns=len(tops), size=(3.1, 1.7), title=title, sharex="col")
    for number, ax in enumerate(figure.axes):
        at, column = divmod(number, len(tops))
        ax.set_xlabel("step" if at == len(rows) - 1 else "")
        label = "rotation of $W_V$" if rows[at] == "rotation" else f"norm of {_formula(rows[at])}"
        ax.set_ylabel(label if column == 0 else "")
    return figure


WORD_ROWS = ("same_word", "same_topic", "different_topic")
MASK_ROWS = ("mask_to_word", "mask_to_mask")


def attention_curves(
    history: History | Sequence[History],
    ax: "Axes | None" = None,
    *,
    names: Sequence[str] = (*WORD_ROWS, *MASK_ROWS),
    title: str | None = None,
    legend: bool = True,
) -> "Axes":
    """Attention as it was watched while a toy was trained, uniform attention being 1, against steps.

    Args:
        history: of ``train_toy(measure={"attention": tp.word_attention})``, or several, whose curves share a style.
        ax: where to draw; None makes a figure.
        names: which of the numbers of `word_attention`.
        title: None leaves it out.
        legend: whether to name the curves.
    """
    histories = _all(history)
    ax = axes_for(ax, size=(5.4, 3.4))
    if not all(f"attention.{name}" in run.measured for run in histories for name in names):
        return say(ax, 'attention was not watched: train with measure={"attention": tp.word_attention}')
    ax.axhline(1.0, color="0.7", linewidth=0.8)
    for number, name in enumerate(names):
        look = {**curve_look(number), "linewidth": 1.4}
        for run, recorded in enumerate(histories):
            series = recorded.measured[f"attention.{name}"]
            ax.plot(series.steps, series.values, label=name.replace("_", " ") if run == 0 else None, **look)
    # Numbers that differ from 1 by rounding are no curve.
    low, high = ax.get_ylim()
    ax.set_ylim(min(low, 0.95), max(high, 1.05))
    ax.set_xlabel("step")
    ax.set_ylabel("attention (uniform: 1)")
    ax.set_title(drawable(title or ""))
    if legend:
        ax.legend(fontsize="small")
    return ax


def _panel(
    ax: "Axes", *, runs: Sequence[History], row: str, layer: int | None, stages: bool, title: str
) -> None:
    if row == "rotation":
        rotation_curve(runs, ax, layer=layer, stages=stages, title=title)
    else:
        norm_curves(runs, ax, tensors=[row], layer=layer, stages=stages, title=title, legend=False)


# -------------------------------------------------------------------- stages


def shade_stages(
    ax: "Axes", histories: Sequence[History], *, layer: int | None, stages: bool | DynamicsReport = True
) -> None:
    """Shades stage 1 and stage 2 of a layer behind its curves; nothing where there is no two-stage pattern."""
    reports = (
        [stages]
        if isinstance(stages, DynamicsReport)
        else [_dynamics(history) for history in histories if stages]
    )
    for report in reports:
        at = 0 if report is None or layer is None else report.layer.index(layer)
        if report is None or not report.two_stage[at]:
            continue
        second = float(report.attention_start[at])
        first_step, last_step = ax.dataLim.intervalx
        ends = (float(first_step), second, float(last_step))
        for number, colour in enumerate(STAGE_COLOURS):
            ax.axvspan(ends[number], ends[number + 1], color=colour, linewidth=0, zorder=0)
            ax.text(
                (ends[number] + ends[number + 1]) / 2, 0.98, f"stage {number + 1}", ha="center", va="top",
                transform=ax.get_xaxis_transform(), fontsize="x-small", color="0.25",
            )  # fmt: skip
        ax.axvline(second, color="0.4", linewidth=0.8, linestyle=":")
        margin = 0.03 * (last_step - first_step)
        ax.set_xlim(first_step - margin, last_step)


def stage_map(report: DynamicsReport, ax: "Axes | None" = None, *, title: str | None = None) -> "Axes":
    """When the norms of every layer start to grow and W_V becomes flat, with both stages shaded where there are two."""
    ax = axes_for(ax, size=(6.4, 1.2 + 0.6 * len(report.layer)))
    names = ("value_start", "value_flat", "key_start", "query_start")
    if not any(np.isfinite(getattr(report, name)).any() for name in names):
        return say(
            ax, f"nothing starts: {next((reason for reason in report.reasons if reason), report.pattern)}"
        )
    last = float(report.provenance.get("options", {}).get("last_step") or 0)
    last = max([last, *(float(np.nanmax(getattr(report, n), initial=0.0)) for n in names)])
    for row in np.flatnonzero(report.two_stage).tolist():
        second = float(report.attention_start[row])
        for number, (start, end) in enumerate(((0.0, second), (second, last))):
            ax.barh(row, end - start, left=start, height=0.9, color=STAGE_COLOURS[number], zorder=0)
            ax.text((start + end) / 2, row, f"stage {number + 1}", ha="center", va="center", color="0.25")
    labels = ("W_V starts", "W_V is flat", "W_K starts", "W_Q starts")
    for number, (name, label) in enumerate(zip(names, labels, strict=True)):
        rows = np.arange(len(report.layer)) + 0.2 * (number - 1.5)
        ax.plot(
            getattr(report, name), rows, linestyle="none", marker="o^sD"[number], markersize=6, color=ACCENTS[number],
            label=label, clip_on=False,
        )  # fmt: skip
    ax.set_yticks(range(len(report.layer)), [f"layer {layer}" for layer in report.layer])
    ax.set_ylim(len(report.layer) - 0.5, -0.5)
    ax.set_xlim(0, last * 1.02 or 1)
    ax.set_xlabel("step")
    ax.set_title(drawable(report.pattern if title is None else title))
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.05), fontsize="small", frameon=False)
    return ax


def _dynamics(history: History) -> DynamicsReport | None:
    recorded = all(any(name.startswith(tensor) for name in history.norms) for tensor in TENSORS)
    return measure_dynamics(history) if recorded and len(history) >= MIN_ROWS else None


# -------------------------------------------------------------------- layers of a history


def _all(history: History | Sequence[History]) -> Sequence[History]:
    return [history] if isinstance(history, History) else list(history)


def _layers(history: History) -> list[int] | list[None]:
    numbers = {name.partition(".")[2] for name in history.norms if name.startswith("W_V")}
    return sorted(int(number) for number in numbers) if numbers - {""} else [None]


def _suffix(history: History, layer: int | None) -> str:
    there = _layers(history)
    if layer in there:
        return "" if layer is None else f".{layer}"
    if there == [None] and layer == 0:
        return ""
    raise ValueError(
        f"the model has the layers {there}: choose one with layer=, or draw them all by training_panels"
        if layer is None
        else f"no layer {layer}; there are {there}"
    )


def _formula(name: str) -> str:
    """``W_K`` as matplotlib's formulas write it."""
    stem, _, below = name.partition("_")
    return f"${stem}_{{{below}}}$" if stem in ("W", "b") and below.isalnum() else drawable(name)
