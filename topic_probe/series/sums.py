"""What a step of a series keeps beside its reports: sums by source and by word, which pair it with other steps."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from topic_probe.contrast import paired_sources
from topic_probe.estimate import Ends, paired_words, split_halves
from topic_probe.measure.heads import layer_starts
from topic_probe.measure.same_words import cosines_of_words, placed
from topic_probe.measure.words import LabelledWords, labelled_words
from topic_probe.series.onsets import Curve
from topic_probe.sums import Rows, SourceSums, aligned, columns, joined
from topic_probe.topics import Topics

By = Literal["step", "layer", "head"]
Chosen = Literal["effect_size", "difference", "ratio"]

# More sources than this are kept in so many blocks: what leaving out a block does says as much of so many, and a step
# of 1,000 heads is 17 MB.
MAX_SOURCES = 512

# What a step keeps, by what was measured: named arrays.
Kept = Mapping[str, Mapping[str, Any]]


class Grid(NamedTuple):
    """Which training and which of its steps a row of a report is of, by their places."""

    places: Sequence[tuple[int, int]]
    n_trainings: int
    n_steps: int

    def empty(self, *shape: int, fill: float = 0.0) -> np.ndarray:
        """A table of trainings and steps, behind axes of its own."""
        return np.full((*shape, self.n_trainings, self.n_steps), fill)


# --- keeping ------------------------------------------------------------------------------------------


def kept_of_sources(by_source: SourceSums, index: Mapping[str, tuple[Any, ...]], cells: slice) -> dict[str, Any]:
    """Sums by source of some cells; numbers of pairs once where all cells have the same.

    Args:
        by_source: what was added up.
        index: names of the cells that are kept.
        cells: which these are.
    """
    keys, rows = by_source.rows()
    totals, counts, squares = columns(rows)
    counts = counts[:, cells]
    if len(counts) and (counts == counts[:, :1]).all():
        counts = counts[:, :1]
    return {
        "keys": keys.view(np.int64), "sums": totals[:, cells], "counts": counts, "squares": squares[:, cells],
        "folded": by_source.folded, "index": dict(index),
    }  # fmt: skip


def kept_of_words(
    table: Float[Tensor, "vocabulary d_embed"], topics: Topics, options: Mapping[str, Any]
) -> dict[str, Any]:
    """What every word adds to the sums of cosines of a table, under its number among the words of the topics."""
    reading = {name: options[name] for name in ("center", "remove_components", "exclude") if name in options}
    words = labelled_words(table, topics, **reading)
    every = LabelledWords(topics, torch.arange(len(topics.words)))
    half = torch.from_numpy(split_halves(every.strata, seed=options.get("seed", 0)))
    form = torch.empty(words.n_forms, dtype=torch.int64)
    form[words.form] = every.form[words.places]
    found = cosines_of_words(words, half[form], np.arange(words.n_forms), words.n_forms)
    ends = found.ends._asdict()
    return {"form": form.numpy(), "strata": every.strata[form.numpy()], "squares": found.squares, **ends}


# --- curves of it -------------------------------------------------------------------------------------


def curves_of(
    rows: Sequence[Kept], grid: Grid, by: By, statistic: Chosen, *, confidence: float = 0.95, seed: int = 0
) -> list[Curve]:
    """A curve for everything that was measured, as `SeriesReport.contrasts` names it.

    Sources that several measurements have are the same ones for all of them, and for all steps.
    """
    found = []
    if by == "step" and any("embeddings" in row for row in rows):
        found.append(_of_words(rows, grid, statistic, seed))
    parts: list[tuple[str, int]] = []
    every: list[SourceSums] = []
    for number, row in enumerate(rows):
        for what in ("states", "attention"):
            if what in row and not (what == "states" and by == "head"):
                parts.append((what, number))
                every.append(_in_cells(row[what], _starts(what, row[what]["index"], by)))
    of_rows = dict(zip(parts, aligned(every) if every else [], strict=True))
    for what in ("states", "attention"):
        own = {number: of_rows[what, number] for name, number in parts if name == what}
        if own:
            index = rows[next(iter(own))][what]["index"]
            found += _of_sources(_names(what, index, by), own, grid, statistic, confidence)
    return found


def _starts(what: str, index: Mapping[str, Any], by: By) -> Int64[np.ndarray, " group"]:
    """Where the groups of cells begin that a curve is of; of states by step the last layer alone."""
    n = len(next(iter(index.values())))
    if what == "states":
        return np.arange(n) if by == "layer" else np.array([n - 1])
    if by == "layer":
        return np.array(layer_starts(index))
    return np.arange(n) if by == "head" else np.zeros(1, np.int64)


def _names(what: str, index: Mapping[str, Any], by: By) -> list[str]:
    if what == "states":
        return [f"states of layer {layer}" for layer in np.array(index["layer"])[_starts(what, index, by)]]
    if by == "step":
        return ["attention"]
    chosen = _starts(what, index, by).tolist()
    columns = ("stack", "layer", "head") if by == "head" else ("stack", "layer")
    return cell_names({name: tuple(index[name][place] for place in chosen) for name in columns})


def cell_names(index: Mapping[str, Sequence[Any]]) -> list[str]:
    """What layers or heads are called: "attention of layer 3", "L3H7", with their stack where there are several."""
    found = []
    for number, (stack, layer) in enumerate(zip(index["stack"], index["layer"], strict=True)):
        name = f"L{layer}H{index['head'][number]}" if "head" in index else f"attention of layer {layer}"
        found.append(name if len(set(index["stack"])) == 1 else f"{stack} {name}")
    return found


def _in_cells(part: Mapping[str, Any], starts: Int64[np.ndarray, " group"]) -> SourceSums:
    """Sums by source over groups of cells."""
    sums, counts = np.asarray(part["sums"]), np.broadcast_to(part["counts"], np.shape(part["sums"]))
    pooled = joined(*(np.add.reduceat(values, starts, axis=1) for values in (sums, counts, part["squares"])))
    found = SourceSums(MAX_SOURCES, shape=(len(starts),))
    found.restore(np.asarray(part["keys"]).view(np.uint64), pooled, folded=part["folded"])
    return found


def _of_sources(
    names: Sequence[str], own: Mapping[int, Rows], grid: Grid, statistic: Chosen, confidence: float
) -> list[Curve]:
    """The curves of cells whose sums are kept by source."""
    found = paired_sources(list(own.values()), statistic=statistic, confidence=confidence).estimates
    n_sources = len(found[0].influence)
    values = grid.empty(len(names), fill=np.nan)
    units, effective = grid.empty(len(names), n_sources), grid.empty(len(names))
    for number, one in zip(own, found, strict=True):
        training, step = grid.places[number]
        values[:, training, step] = one.value
        effective[:, training, step] = np.nan_to_num(one.factors[0].df + 1)
        units[:, :, training, step] = np.where(np.isnan(one.df), 0.0, one.influence).T
    return [
        Curve(name, values[cell], units[cell], effective[cell], "sources") for cell, name in enumerate(names)
    ]


def _of_words(rows: Sequence[Kept], grid: Grid, statistic: Chosen, seed: int) -> Curve:
    """The curve of cosines of embeddings, from the same draws of words at all steps."""
    kept = {number: row["embeddings"] for number, row in enumerate(rows) if "embeddings" in row}
    forms = np.unique(np.concatenate([part["form"] for part in kept.values()]))
    strata = np.zeros(len(forms), np.int64)
    ends, squares = [], []
    for part in kept.values():
        words = np.asarray(np.searchsorted(forms, part["form"]))
        strata[words] = part["strata"]
        ends.append(Ends(*(placed(part[name], words, len(forms), axis=1) for name in Ends._fields)))
        squares.append(placed(part["squares"], words, len(forms), axis=0))
    found = paired_words(ends, squares, strata, statistic=statistic).estimates
    values, effective = grid.empty(fill=np.nan), grid.empty()
    known = [place for place, one in enumerate(found) if np.isfinite(one.df).all()]
    own = [found[place].variance[0] for place in known]
    covariance = np.array(
        [
            [(own[a] + own[b] - (found[i] - found[j]).variance[0]) / 2 for b, j in enumerate(known)]
            for a, i in enumerate(known)
        ]
    )
    size, axes = np.linalg.eigh(covariance.reshape(len(known), len(known)))
    root, units = (axes * np.sqrt(np.maximum(size, 0))) @ axes.T, grid.empty(len(known))
    for place, number in enumerate(kept):
        at = grid.places[number]
        values[at] = found[place].value[0]
        effective[at] = np.nan_to_num(found[place].factors[0].df[0])
        if place in known:
            units[(slice(None), *at)] = root[:, known.index(place)]
    return Curve("embeddings", values, units, effective, "words")
