"""What interventions do: effects beside what chance does, and beside how much heads attend by topic."""

from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

from topic_probe.measure.attention import AttentionReport
from topic_probe.measure.effects import EffectReport
from topic_probe.show.style import ACCENTS, axes_for, drawable, panels, say

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Beyond so many rows a forest cannot be read; those with the greatest effects are drawn.
_ROWS = 40
# So many heads that stand out are named in a scatter.
_NAMED = 5


def effect_forest(
    report: EffectReport, ax: "Axes | None" = None, *, readout: str | None = None, title: str | None = None
) -> "Axes":
    """A row for every intervention: its effect with the interval, and in grey the effects of what it is compared with.

    Right of the line the model had more of the outcome before.

    Args:
        report: of `measure_ablation` or `measure_knockout`.
        ax: where to draw; None makes a figure, with a panel for every readout if none is chosen.
        readout: which readout to draw.
        title: None names the readout.

    Raises:
        ValueError: for a readout that the report does not have, or none chosen of several on given axes.
    """
    if readout is None and len(report.readouts) > 1:
        if ax is not None:
            raise ValueError(
                f"one axes holds one readout: choose it with readout= of {', '.join(report.readouts)}"
            )
        draw = [lambda own, name=name: effect_forest(report, own, readout=name) for name in report.readouts]
        return panels(draw, size=(6.0, 0.9 + 0.28 * min(_ROWS, report.effect.shape[1]))).axes[0]
    number = _readout(report, readout)
    effect, ends, null = report.effect[number], report.interval[number], report.null[number]
    order = np.arange(len(effect))
    if len(effect) > _ROWS:
        order = np.sort(np.argsort(-np.nan_to_num(np.abs(effect)), kind="stable")[:_ROWS])
    ax = axes_for(ax, size=(6.5, 0.9 + 0.28 * len(order)))
    if not np.isfinite(effect[order]).any():
        return say(ax, "no effect to draw")
    ax.axvline(0.0, color="black", linewidth=0.8)
    for row, cell in enumerate(order):
        others = null[cell][np.isfinite(null[cell])]
        ax.plot(
            others,
            np.full(len(others), row),
            "|",
            color="#9a9a9a",
            markersize=7,
            label="_" if row else "others like it",
        )
        ax.plot(ends[cell], [row, row], color=ACCENTS[0], linewidth=1.6)
        ax.plot(effect[cell], row, "o", color=ACCENTS[0], markersize=5, label="_" if row else "effect")
    ax.set_yticks(range(len(order)), [drawable(name_of(report, cell)) for cell in order], fontsize="small")
    ax.set_ylim(len(order) - 0.4, -0.6)
    ax.locator_params(axis="x", nbins=5)
    ax.set_xlabel("outcome as it is − after the intervention")
    ax.set_title(drawable(report.readouts[number] if title is None else title))
    ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.02), frameon=False)
    return ax


def effect_scatter(
    report: EffectReport,
    attention: AttentionReport,
    ax: "Axes | None" = None,
    *,
    readout: str | None = None,
    numbers: str = "matched",
    title: str | None = None,
) -> "Axes":
    """Every head by where it looks and what it does: its ratio of attention, and the effect of taking it out.

    Heads far right on the line of no effect look at words of a topic and do nothing with them; heads far off the line
    at ratio 1 do it without looking. Filled points have an interval that excludes 0.

    Args:
        report: of ``measure_ablation`` without ``sets=``.
        attention: of `measure_attention`, of the same model.
        ax: where to draw; None makes a figure.
        readout: which readout to draw; needed where there are several.
        numbers: which ratio: "matched" at equal distance, "heads" or "without_sinks".
        title: what stands above.

    Raises:
        ValueError: where the effects are not those of single heads, or of heads that the other report does not have.
    """
    number = _readout(report, readout)
    contrast = getattr(attention, numbers)
    names = [tuple(report.index.get(part, ())) for part in ("stack", "layer", "head")]
    heads = list(zip(*names, strict=True)) if all(names) else []
    known = {name: place for place, name in enumerate(zip(*(contrast.index or {}).values(), strict=True))}
    if not heads or any(head not in known for head in heads):
        raise ValueError(
            "needed effects of single heads, measure_ablation(…) without sets=, and the attention of the same model"
        )
    ratio, effect = contrast.ratio[[known[head] for head in heads]], report.effect[number]
    ax = axes_for(ax, size=(5.4, 4.0))
    drawn = np.isfinite(ratio) & np.isfinite(effect)
    if not drawn.any():
        return say(ax, "no head has both a ratio and an effect")
    low, high = report.interval[number].T
    certain = (low > 0) | (high < 0)
    ax.axhline(0.0, color="black", linewidth=0.8)
    ax.axvline(1.0, color="black", linewidth=0.8)
    for chosen, filled, label in ((certain, True, "interval excludes 0"), (~certain, False, "")):
        at = drawn & chosen
        colour = ACCENTS[0] if filled else "none"
        ax.scatter(ratio[at], effect[at], s=26, facecolors=colour, edgecolors=ACCENTS[0], label=label or None)
    if (ratio[drawn] > 0).all():
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_formatter("{x:g}")
        ax.tick_params(axis="x", which="both", labelsize="small", rotation=30)
    for place in _standing_out(ratio, effect, drawn):
        ax.annotate(
            name_of(report, place),
            (ratio[place], effect[place]),
            textcoords="offset points",
            xytext=(4, 4),
            fontsize="x-small",
        )
    ax.set_xlabel(f"same topic ÷ different topics, {numbers}")
    ax.set_ylabel(f"effect on {report.readouts[number]}")
    ax.set_title(drawable(title or "where heads look, and what they do"))
    if certain[drawn].any():
        ax.legend(fontsize="small", loc="best", frameon=False)
    return ax


def name_of(report: EffectReport, cell: SupportsIndex) -> str:
    """What was done, in a few words."""
    index = report.index
    if "layer" in index:
        several = len(set(index["stack"])) > 1
        stack = f"{index['stack'][cell]} " if several else ""
        return f"{stack}{index['layer'][cell]}.{index['head'][cell]}"
    first = next(iter(index.values()))[cell]
    return str(first).replace("_", " ")


def _standing_out(ratio: np.ndarray, effect: np.ndarray, drawn: np.ndarray) -> list[int]:
    """The heads of the greatest effects, and of the highest ratios."""
    by_effect = np.argsort(np.where(drawn, -np.abs(effect), np.inf), kind="stable")[:_NAMED]
    by_ratio = np.argsort(np.where(drawn, -ratio, np.inf), kind="stable")[:_NAMED]
    return sorted({int(place) for place in (*by_effect, *by_ratio) if drawn[place]})


def _readout(report: EffectReport, readout: str | None) -> int:
    if readout is None and len(report.readouts) == 1:
        return 0
    if readout not in report.readouts:
        raise ValueError(f"readout must be one of {', '.join(report.readouts)}, got {readout!r}")
    return report.readouts.index(readout)
