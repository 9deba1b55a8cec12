"""Heat maps of matrices between words in the order of their topics: W_Eᵀ W_E, W_V, QK and OV circuits, cosines."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float32, Int64

from topic_probe.measure.embeddings import EmbeddingReport
from topic_probe.measure.matrix import MatrixReport
from topic_probe.measure.weights import WeightReport
from topic_probe.report import Report
from topic_probe.show.style import MISSING, SEQUENTIAL, arrows, axes_for, drawable, panels, say, topic_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# More words, or topics, than this are not named along the axes.
MAX_NAMED = 30
# More topics than this have no legend.
MAX_IN_LEGEND = 16


def block_map(
    report: Report,
    ax: "Axes | None" = None,
    *,
    title: str | None = None,
    limits: tuple[float, float] | None = None,
    legend: bool | None = None,
    **chosen: Any,
) -> "Axes":
    """A matrix between words as colours, dark is low and light is high; topics are framed and have their colours.

    The colours span 99 % of what lies off the diagonal, because words with themselves would drown the rest; what lies
    beyond, as the colour bar says by its arrows, has the colour of the end.

    Args:
        report: of `measure_embeddings` or `measure_weights`, or the matrices of one.
        ax: where to draw; None makes a figure.
        title: None says which matrix it is.
        limits: lowest and highest number of the colours.
        legend: whether to list topics with their first words; None does so on a figure of its own, for a few topics.
        chosen: which matrix, as in `MatrixReport.pick` (``score="dot"``; ``circuit="ov", layer=0, head=3``). What is
            not chosen is the cosine, and the head whose difference between relations is the largest.

    Raises:
        ValueError: where no matrix is chosen by these names.
        TypeError: where a report holds no matrices.
    """
    matrices = _matrices_of(report)
    present = [] if matrices is None else list(dict.fromkeys(matrices.topic.tolist()))
    listed = legend or (legend is None and ax is None and len(present) <= MAX_IN_LEGEND)
    # Wide enough for the longest label, so that the map itself is limited by the height alone.
    longest = max((len(matrices.labels[topic]) for topic in present), default=0) if matrices and listed else 0
    ax = axes_for(ax, size=(5.2 + 0.08 * longest, 4.2))
    if matrices is None or not matrices.values.shape[1]:
        return say(ax, "this report holds no matrix: it has too many topics")
    number = _number(report, matrices, chosen)
    values = np.asarray(matrices.values[number])
    if not np.isfinite(values).any():
        return say(ax, "all entries of this matrix are missing")
    from matplotlib import colormaps

    low, high = limits or _limits(values)
    image = ax.imshow(
        values,
        cmap=colormaps[SEQUENTIAL].with_extremes(bad=MISSING),
        vmin=low,
        vmax=high,
        interpolation="nearest" if len(values) <= 200 else "auto",
    )
    _topics_along(ax, matrices)
    ax.figure.colorbar(
        image, ax=ax, fraction=0.046, pad=0.03, extend=arrows(values, low, high),
        label=matrices.index["score"][number] if "score" in matrices.index else "entry",
    )  # fmt: skip
    named = ", ".join(_names(name, cells[number]) for name, cells in matrices.index.items())
    ax.set_title(drawable(named if title is None else title), fontsize="medium")
    if "circuit" in matrices.index and ax.get_xlabel():
        rows, columns = {"qk": ("query", "key"), "ov": ("shown word", "predicted word")}[
            matrices.index["circuit"][number]
        ]
        ax.set_ylabel(f"topic of the {rows}")
        ax.set_xlabel(f"topic of the {columns}")
    if listed:
        _legend(ax, {topic: matrices.labels[topic] for topic in present})
    return ax


def block_panels(
    reports: Mapping[str, Report], *, columns: int = 4, title: str = "", **options: Any
) -> "Figure":
    """A figure with a `block_map` for every report, under its name; ``options`` are those of `block_map`."""
    draw: list[Callable[[Axes], Any]] = [
        partial(block_map, report, title=name, legend=False, **options) for name, report in reports.items()
    ]
    return panels(draw, columns=columns, size=(3.4, 3.0), title=title)


def _matrices_of(report: Report) -> MatrixReport | None:
    if isinstance(report, MatrixReport):
        return report
    if isinstance(report, EmbeddingReport | WeightReport):
        return report.matrices
    raise TypeError(
        f"a {type(report).__name__} holds no matrices: pass the report of measure_embeddings or measure_weights"
    )


def _number(report: Report, matrices: MatrixReport, chosen: Mapping[str, Any]) -> int:
    """The place of the matrix that is chosen, or of that which stands for the others."""
    if isinstance(report, EmbeddingReport) and not chosen:
        chosen = {"score": "cosine"}
    cells = list(zip(*matrices.index.values(), strict=True))
    named = [dict(zip(matrices.index, cell, strict=True)) for cell in cells]
    fits = [number for number, names in enumerate(named) if chosen.items() <= names.items()]
    if isinstance(report, WeightReport) and report.heads.index is not None and fits:
        heads = zip(*report.heads.index.values(), strict=True)
        size = dict(zip(heads, np.nan_to_num(np.abs(report.standardised), nan=-1.0), strict=True))
        return max(fits, key=lambda number: size[cells[number]])
    matrices.pick(**chosen)  # says what there is, where not exactly one fits
    return fits[0]


def _limits(values: Float32[np.ndarray, "row column"]) -> tuple[float, float]:
    """The range of what is off the diagonal, without its outermost percent."""
    off = values[~np.eye(len(values), dtype=bool) & np.isfinite(values)]
    if not len(off):
        off = values[np.isfinite(values)]
    low, high = np.percentile(off, [0.5, 99.5])
    return float(low), float(high)


def _topics_along(ax: "Axes", matrices: MatrixReport) -> None:
    """Borders between topics, and along two sides the topics' colours and numbers (or the words, if they are few)."""
    from matplotlib.patches import Rectangle
    from matplotlib.transforms import Affine2D, ScaledTranslation
    from matplotlib.transforms import blended_transform_factory as blended

    # From the lower left corner, in points: as wide in small pictures as in large ones.
    corner = ScaledTranslation(0, 0, ax.transAxes)  # type: ignore[arg-type]
    points = Affine2D().scale(1 / 72) + ax.figure.dpi_scale_trans + corner
    topic, n = matrices.topic, len(matrices.topic)
    starts = np.flatnonzero(np.diff(topic, prepend=-1))
    ends = np.append(starts[1:], n)
    for border in starts[1:]:
        ax.axhline(border - 0.5, color="white", linewidth=0.6, alpha=0.8)
        ax.axvline(border - 0.5, color="white", linewidth=0.6, alpha=0.8)
    for start, end in zip(starts, ends, strict=True):
        below = Rectangle((start - 0.5, -9), end - start, 6, transform=blended(ax.transData, points))
        beside = Rectangle((-9, start - 0.5), 6, end - start, transform=blended(points, ax.transData))
        for strip in (below, beside):
            strip.set(facecolor=topic_colour(int(topic[start])), clip_on=False, linewidth=0, in_layout=False)
            ax.add_patch(strip)
    ax.tick_params(length=0, pad=11)
    if n <= MAX_NAMED:
        words = [drawable(str(word)) for word in matrices.words]
        ax.set_xticks(range(n), words, rotation=90, fontsize="small")
        ax.set_yticks(range(n), words, fontsize="small")
        return
    shown = _spread(topic[starts]) if len(starts) > MAX_NAMED else np.ones(len(starts), dtype=bool)
    middles = (starts + ends - 1)[shown] / 2
    numbers = list(map(str, topic[starts][shown]))
    ax.set_xticks(middles, numbers, fontsize="small")
    ax.set_yticks(middles, numbers, fontsize="small")
    ax.set_xlabel("topic")


def _spread(topics: Int64[np.ndarray, " topic"]) -> np.ndarray:
    """Every tenth of many topics, or every hundredth."""
    step = 10 ** int(np.ceil(np.log10(len(topics) / MAX_NAMED)))
    return np.asarray(topics % step == 0)


def _legend(ax: "Axes", labels: Mapping[int, str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=topic_colour(topic), label=drawable(label)) for topic, label in labels.items()]
    ax.figure.legend(
        handles=handles, loc="outside right center", fontsize="small", frameon=False, handlelength=1.0
    )


def _names(name: str, cell: Any) -> str:
    return str(cell) if isinstance(cell, str) else f"{name} {cell}"
