"""The main figure of every kind of report, in one to three lines each: what ``report.plot()`` draws."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from topic_probe.show.figures import (
    curves,
    forest,
    head_map,
    loss_landscape,
    matrix_map,
    middle_of,
    panels,
    span_of,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

OF_ATTENTION = "same topic ÷ different topics"


def plot(report: Any, ax: "Axes | None" = None, **options: Any) -> "Axes":
    """The main figure of a report; ``options`` are those of the function that draws it.

    ValueError where nothing is known that could be drawn.
    """
    if report.kind not in _PLOTS:
        raise ValueError(f"a {type(report).__name__} has no figure: print it, or take its to_dataframe()")
    drawn: Axes = _PLOTS[report.kind](report, ax=ax, **options)
    return drawn


def each(
    table: "pd.DataFrame", by: list[str], draw: "Callable[..., Axes]", ax: "Axes | None", **options: Any
) -> "Axes":
    """A panel for every combination of columns that are there and vary; one map alone has the size that it needs."""
    several = [name for name in by if name in table and table[name].nunique() > 1]
    if not several:
        return draw(table, ax=ax, **options)
    parts = {" ".join(map(str, names)): part for names, part in table.groupby(several, sort=False)}
    if ax is not None:
        raise ValueError(
            f"one axes holds one of {', '.join(parts)}: choose rows of to_dataframe(), and a function of tp.figures"
        )
    return panels(parts, partial(draw, **options), columns=3, size=(5.2, 3.8)).axes[0]


def _attention(report: Any, *, value: str = "ratio", ax: "Axes | None" = None, **options: Any) -> "Axes":
    table = report.to_dataframe()
    if "q_value" in table:
        options = {"certain": "q < 0.05"} | options
        table["q < 0.05"] = table["q_value"] < 0.05
    limits = span_of(table[value].dropna().to_numpy(dtype=float), ratio=True)
    return each(
        table, ["stack"], head_map, ax, **{"value": value, "limits": limits, "label": OF_ATTENTION} | options
    )


def _weights(report: Any, *, ax: "Axes | None" = None, **options: Any) -> "Axes":
    table = report.to_dataframe()
    if "difference_low" in table:
        options = {"certain": "an interval without 0"} | options
        table["an interval without 0"] = (table["difference_low"] > 0) | (table["difference_high"] < 0)
    limits = span_of(table["standardised"].dropna().to_numpy(dtype=float), ratio=False)
    told = {"value": "standardised", "limits": limits, "label": "same − different topic, standardised"}
    return each(table, ["circuit", "stack"], head_map, ax, **told | options)


def _matrix(report: Any, **chosen: Any) -> "Axes":
    """The matrix of these names, as in `MatrixReport.pick` (``score="dot"``; ``circuit="ov", layer=0, head=3``)."""
    options = {name: chosen.pop(name) for name in ("ax", "title") if name in chosen}
    found = getattr(report, "matrices", report)
    if found is None:
        raise ValueError("this report holds no matrix: it has too many topics")
    chosen = chosen or ({"score": "cosine"} if "score" in found.index else {})
    values = found.pick(**chosen)
    names = {topic: label.partition(": ")[2].partition(" (")[0] for topic, label in found.labels.items()}
    topics = [names[topic] for topic in found.topic.tolist()]
    label = ", ".join(
        str(cell) if isinstance(cell, str) else f"{name} {cell}" for name, cell in chosen.items()
    )
    return matrix_map(values, topics, words=found.words, label=label, **options)


def _matched(report: Any, **options: Any) -> "Axes":
    table, statistic = report.to_dataframe(), report.cosine.statistic
    table["name"] = table["score"] + ", equal " + table["matched_on"]
    table["name"] = table["name"].str.replace("equal nothing", "all pairs")
    return forest(with_ends(table, statistic), statistic, **options)


def _agreement(report: Any, **options: Any) -> "Axes":
    table = report.to_dataframe().dropna(subset="measured")
    table["low"] = table["measured"] - table["standard_error"]
    table["high"] = table["measured"] + table["standard_error"]
    return forest(table, "measured", name="quantity", middle=np.nan, beside={"theory": "theory"}, **options)


def _comparison(report: Any, *, ax: "Axes | None" = None) -> "Axes":
    """The number of every model, and below them maps of their heads in the same colours."""
    parts: dict[str, Callable[..., Any]] = {}
    for measure, rows in report.to_dataframe().groupby("measure", sort=False):
        statistic = rows["statistic"].iloc[0]
        parts[str(measure)] = partial(
            forest,
            rows,
            "number",
            name="model",
            middle=middle_of(statistic),
            label=statistic.replace("_", " "),
        )
    if ax is not None:
        drawn: Axes = parts.popitem()[1](ax=ax)
        return drawn
    if report.heads:
        heads = report.to_dataframe("head")
        limits = span_of(heads["ratio"].dropna().to_numpy(dtype=float), ratio=True)
        for (model, stack), rows in heads.groupby(["model", "stack"], sort=False):
            parts[f"{model}, {stack}" if heads["stack"].nunique() > 1 else model] = partial(
                head_map, rows, limits=limits, label=OF_ATTENTION
            )
    return panels(parts, lambda draw, **on: draw(**on), columns=2, size=(5.4, 3.4)).axes[0]


def _effects(report: Any, *, ax: "Axes | None" = None, **options: Any) -> "Axes":
    table = report.to_dataframe()
    told: dict[str, Any] = {"value": "effect", "label": "outcome as it is − after the intervention"}
    if len(report.readouts) == 1:
        told["title"] = report.readouts[0]
    if report.null.shape[-1]:
        told["beside"] = {"others like it": "others"}
        table["others"] = [list(others) for readout in report.null for others in readout]
    return each(table, ["readout"], forest, ax, **told | options)


def _series(report: Any, *, value: str = "effect_size", by: str = "step", **options: Any) -> "Axes":
    """Curves of everything that was measured, a line for every training; ``by="head"``: a map of heads × steps."""
    table = with_ends(report.to_dataframe(by), value)
    if by == "head":
        means = table.groupby(["measured", "step"], sort=False, as_index=False)[[value]].mean()
        return head_map(means, value, **{"rows": "measured", "columns": "step"} | options)
    runs = "seed" if "seed" in table else None
    return curves(table, "step", value, by="measured", runs=runs, middle=middle_of(value), **options)


def _history(report: Any, *, ax: "Axes | None" = None, **options: Any) -> "Axes":
    """The norms of all tensors that change, layer by layer, with the stages of each where there are two."""
    table = report.to_dataframe().melt("step", [f"norm_{name}" for name in report.norms], value_name="norm")
    table = table[table.groupby("variable")["norm"].transform("nunique") > 1]
    parts = table["variable"].str.removeprefix("norm_").str.partition(".")
    table = table.assign(tensor=parts[0], layer="layer " + parts[2])

    def draw(rows: "pd.DataFrame", **on: Any) -> "Axes":
        shade = _stages(report, rows["layer"].iloc[0].removeprefix("layer "))
        told = {"by": "tensor", "shade": shade, "label": "Frobenius norm"}
        return curves(rows, "step", "norm", **told | on | options)

    return each(table, ["layer"], draw, ax)


def _stages(report: Any, layer: str) -> list[tuple[float, float, str]]:
    """From when to when both stages last, nothing where there are none."""
    from topic_probe.train.stages import MIN_ROWS, measure_dynamics

    suffix = f".{layer}" if layer else ""
    if len(report) < MIN_ROWS or not {f"W_{letter}{suffix}" for letter in "KQV"} <= set(report.norms):
        return []
    found, (first, *_, last) = measure_dynamics(report), map(float, report.steps.tolist())
    at = found.layer.index(int(layer or 0))
    second = float(found.attention_start[at])
    return [(first, second, "stage 1"), (second, last, "stage 2")] if found.two_stage[at] else []


def _dynamics(report: Any, **options: Any) -> "Axes":
    starts = ["value_start", "value_flat", "key_start", "query_start"]
    table = report.to_dataframe().melt("layer", starts).sort_values("layer", kind="stable")
    table["name"] = "L" + table["layer"].astype(str) + " " + table["variable"].str.replace("_", " ")
    return forest(table, "value", **{"middle": np.nan, "label": "step", "title": report.pattern} | options)


def with_ends(table: "pd.DataFrame", number: str) -> "pd.DataFrame":
    """The table with the ends of the interval of a number as ``low`` and ``high``."""
    return table.rename(columns={f"{number}_low": "low", f"{number}_high": "high"})


_PLOTS: dict[str, Callable[..., Any]] = {
    "attention": _attention, "weights": _weights, "embeddings": _matrix, "matrix": _matrix, "matched": _matched,
    "agreement": _agreement, "comparison": _comparison, "effects": _effects, "series": _series, "history": _history,
    "dynamics": _dynamics, "landscape": loss_landscape,
}  # fmt: skip
