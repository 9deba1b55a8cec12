"""Maps of numbers by layer and head."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float64

from topic_probe.contrast import Contrast
from topic_probe.measure.attention import AttentionReport
from topic_probe.measure.weights import WeightReport
from topic_probe.show.style import (
    arrows,
    axes_for,
    diverging,
    drawable,
    panels,
    say,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Numbers are written into the cells of maps with no more cells than this.
MAX_WRITTEN = 100
# What has no digit among so many behind the point is left to the colours.
MAX_DIGITS = 4
# Colours of ratios span at least 1/1.05 to 1.05, so noise does not look like an effect, and at most 1/10 to 10.
SMALLEST_SPAN, LARGEST_SPAN = 1.05, 10.0


def head_map(
    report: AttentionReport | WeightReport,
    ax: "Axes | None" = None,
    *,
    stack: str | None = None,
    numbers: str = "heads",
    circuit: str | None = None,
    q: float = 0.05,
    limits: tuple[float, float] | None = None,
    title: str | None = None,
) -> "Axes":
    """The ratio of every head, layers downwards and heads to the right; heads that are certain are marked.

    Attention: same-topic ÷ different-topic attention on a logarithmic scale, orange is more, blue is less, and the
    colour of the page is 1, where topics make no difference; a dot marks q < 0.05. Weights: the standardised
    difference, of which 0 has the colour of the page; a dot marks intervals that exclude 0. Panels of one figure share
    their colours.

    Args:
        report: of `measure_attention` or `measure_weights`.
        ax: where to draw; None makes a figure, with a panel for every stack (or circuit) if none is chosen.
        stack: "self", or "encoder", "decoder" or "cross".
        numbers: of attention: "heads", or "matched" at equal distance, or "without_sinks".
        circuit: of weights: "qk" or "ov".
        q: heads with a false discovery rate below this are marked.
        limits: lowest and highest number of the colours, to compare several maps; what makes no difference is in their
            middle. None: those of the heads that are drawn.
        title: None says which stack and numbers these are.

    Raises:
        ValueError: for a stack or circuit that the report does not have, or none chosen of several on given axes, or
            limits whose middle is not where topics make no difference.
    """
    cells = _weight_cells(report) if isinstance(report, WeightReport) else _cells(report, numbers, q)
    wanted = {"circuit": circuit, "stack": stack}
    kinds = [
        kind
        for kind in dict.fromkeys(cells.kinds)
        if all(want in (None, part) for want, part in zip(wanted.values(), kind, strict=True))
    ]
    if not kinds:
        known = ", ".join(sorted({_title(kind) for kind in cells.kinds}))
        missing = " and ".join(f"{name} {want!r}" for name, want in wanted.items() if want is not None)
        raise ValueError(f"no heads with {missing}; there are those of {known}")
    drawn = np.array([value for kind, value in zip(cells.kinds, cells.value, strict=True) if kind in kinds])
    limits = _limits(cells, drawn) if limits is None else _checked(cells, limits)
    if len(kinds) == 1:
        return _map(cells, kinds[0], limits, ax, title)
    if ax is not None:
        there = ", ".join(map(_title, kinds))
        raise ValueError(f"one axes holds the map of one stack: choose it with stack= or circuit= of {there}")
    draw: list[Callable[[Axes], Any]] = [partial(_map, cells, kind, limits, title=title) for kind in kinds]
    return panels(draw, size=(4.4, 3.8)).axes[0]


def map_of_heads(
    heads: Contrast,
    ax: "Axes | None" = None,
    *,
    stack: str,
    limits: tuple[float, float],
    title: str,
    q: float = 0.05,
) -> "Axes":
    """The ratios of the heads of one stack, as `head_map` draws those of a report."""
    cells = _ratio_cells(heads, "same topic ÷ different topics", q)
    return _map(cells, ("", stack), _checked(cells, limits), ax, title)


@dataclass(frozen=True)
class _Cells:
    """Every head with its place and number; ``kinds`` are circuit and stack."""

    kinds: list[tuple[str, str]]
    layer: list[int]
    head: list[int]
    value: Float64[np.ndarray, " head"]
    certain: Bool[np.ndarray, " head"]
    label: str
    mark: str
    ratio: bool


def _cells(report: AttentionReport, numbers: str, q: float) -> _Cells:
    if numbers not in ("heads", "matched", "without_sinks"):
        raise ValueError(f"numbers must be 'heads', 'matched' or 'without_sinks', got {numbers!r}")
    contrast: Contrast = getattr(report, numbers)
    label = "same topic ÷ different topics"
    label += {"heads": "", "matched": ", at equal distance", "without_sinks": ", without sinks"}[numbers]
    return _ratio_cells(contrast, label, q)


def _ratio_cells(contrast: Contrast, label: str, q: float) -> _Cells:
    q_value = np.full(len(contrast), np.nan) if contrast.q_value is None else contrast.q_value
    mark = "" if contrast.q_value is None else f"q < {q:g}"
    # A NaN is below nothing.
    return _Cells(*_places(contrast), contrast.ratio, q_value < q, label, mark, ratio=True)


def _weight_cells(report: WeightReport) -> _Cells:
    heads, certain, mark = report.heads, np.zeros(len(report.heads), dtype=bool), ""
    if heads.statistic == "difference":
        mark = "interval excludes 0"
        if heads.interval is not None:
            low, high = heads.interval.T
            certain = (low > 0) | (high < 0)
    return _Cells(*_places(heads), report.standardised, certain, "standardised difference", mark, ratio=False)


def _places(contrast: Contrast) -> tuple[list[tuple[str, str]], list[int], list[int]]:
    """Circuit and stack, layer, and number of every head."""
    index = contrast.index or {}
    circuits = index.get("circuit", ("",) * len(contrast))
    return list(zip(circuits, index["stack"], strict=True)), list(index["layer"]), list(index["head"])


def _title(kind: tuple[str, str]) -> str:
    return " ".join(part for part in kind if part)


def _map(
    cells: _Cells,
    kind: tuple[str, str],
    limits: tuple[float, float],
    ax: "Axes | None" = None,
    title: str | None = None,
) -> "Axes":
    from matplotlib.colors import FuncNorm, Normalize

    layers, values, certain = _grid(cells, kind)
    n_heads = values.shape[1]
    ax = axes_for(ax, size=(max(3.6, 2.2 + 0.3 * n_heads), max(2.6, 1.4 + 0.3 * len(layers))))
    known = values[np.isfinite(values)]
    if not len(known):
        return say(ax, "no head has a number here: all are missing")
    low, high = limits
    norm = FuncNorm((_log, np.exp), *limits) if cells.ratio else Normalize(*limits)
    image = ax.imshow(values, cmap=diverging(), norm=norm, aspect="auto", interpolation="nearest")
    digits = 2 if cells.ratio else max(2, 1 - math.floor(math.log10(high)))
    written = values.size <= MAX_WRITTEN and digits <= MAX_DIGITS
    for (row, column), value in np.ndenumerate(values):
        if written and np.isfinite(value):
            shown = round(value, digits) + 0.0  # no zero with a minus
            ax.text(
                column, row + 0.12, f"{shown:.{digits}f}", ha="center", va="center", fontsize="x-small"
            )  # fmt: skip
    rows, columns = np.nonzero(certain)
    ax.scatter(columns, rows - 0.3 * written, s=12, c="black", linewidths=0)
    for axis, numbers in ((ax.xaxis, list(range(n_heads))), (ax.yaxis, layers)):
        step = -(-len(numbers) // 16)
        axis.set_ticks(range(0, len(numbers), step), [str(number) for number in numbers[::step]])
    ax.set_xlabel("head" + (f"   (● {cells.mark})" if cells.mark else ""))
    ax.set_ylabel("layer")
    ax.figure.colorbar(
        image, ax=ax, label=cells.label, ticks=_ratio_ticks(high) if cells.ratio else None,
        format="%g" if cells.ratio else None, extend=arrows(known, low, high),
    )  # fmt: skip
    ax.set_title(drawable(_title(kind) if title is None else title))
    return ax


def _grid(
    cells: _Cells, kind: tuple[str, str]
) -> tuple[list[int], Float64[np.ndarray, "layer head"], Bool[np.ndarray, "layer head"]]:
    """The layers of a kind with the numbers of their heads, and which of them are certain."""
    here = [number for number, other in enumerate(cells.kinds) if other == kind]
    layers = sorted({cells.layer[number] for number in here})
    shape = len(layers), max(cells.head[number] for number in here) + 1
    values, certain = np.full(shape, np.nan), np.zeros(shape, dtype=bool)
    for number in here:
        at = layers.index(cells.layer[number]), cells.head[number]
        values[at], certain[at] = cells.value[number], cells.certain[number]
    return layers, values, certain


def _limits(cells: _Cells, values: Float64[np.ndarray, " head"]) -> tuple[float, float]:
    known = values[np.isfinite(values)]
    return ratio_limits(known) if cells.ratio else _signed_limits(known)


def _checked(cells: _Cells, limits: tuple[float, float]) -> tuple[float, float]:
    """Limits with no difference in their middle."""
    low, high = limits
    in_the_middle = math.isclose(low * high, 1) and low > 0 if cells.ratio else low == -high
    if not (low < high and in_the_middle):
        wanted = "(1 / x, x)" if cells.ratio else "(-x, x)"
        raise ValueError(
            f"limits must be {wanted}, so that the colour of the page says no difference, got {limits}"
        )
    return low, high


def ratio_limits(known: Float64[np.ndarray, " head"]) -> tuple[float, float]:
    """The ends of logarithmic colours with 1 in the middle."""
    positive = known[known > 0]
    span = min(float(np.max(np.maximum(positive, 1 / positive), initial=SMALLEST_SPAN)), LARGEST_SPAN)
    return 1 / span, span


def _log(values: Any) -> Any:
    return np.log(np.maximum(values, 1e-300))


def _ratio_ticks(highest: float) -> list[float]:
    nice = [1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0]
    inside = [tick for tick in nice if tick <= 1.0001 * highest][-2:]
    return sorted({float(f"{value:.2g}") for tick in inside for value in (1 / tick, tick)} | {1.0})


def _signed_limits(known: Float64[np.ndarray, " head"]) -> tuple[float, float]:
    """The ends of even colours with 0 in the middle."""
    span = float(np.max(np.abs(known), initial=1e-12))
    return -span, span
