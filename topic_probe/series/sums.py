"""What a step of a series keeps beside its reports: sums by source and by word, which pair it with other steps."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from topic_probe.contrast import SourceSums
from topic_probe.measure.accumulators import Relations
from topic_probe.measure.heads import layer_starts
from topic_probe.measure.words import LabelledWords, cosines_of_words, labelled_words, placed
from topic_probe.paired import Rows, aligned, moved_by_sources, paired_words, root_of
from topic_probe.series.onsets import Curve
from topic_probe.topics import Topics
from topic_probe.uncertainty import Ends, split_halves

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


def kept_of_sources(sums: Relations, index: Mapping[str, tuple[Any, ...]], cells: slice) -> dict[str, Any]:
    """Sums by source of some cells; numbers of pairs once where all cells have the same.

    Args:
        sums: what was added up.
        index: names of the cells that are kept.
        cells: which these are.
    """
    keys, totals, counts, squares = sums.by_source.rows()
    counts = counts[:, cells]
    if len(counts) and (counts == counts[:, :1]).all():
        counts = counts[:, :1]
    return {
        "keys": keys.view(np.int64), "sums": totals[:, cells], "counts": counts, "squares": squares[:, cells],
        "folded": sums.by_source.folded, "index": dict(index),
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
    pooled = [np.add.reduceat(values, starts, axis=1) for values in (sums, counts, part["squares"])]
    found = SourceSums(MAX_SOURCES, shape=(len(starts),))
    found.restore(np.asarray(part["keys"]).view(np.uint64), *pooled, folded=part["folded"])
    return found


def _of_sources(
    names: Sequence[str], own: Mapping[int, Rows], grid: Grid, statistic: Chosen, confidence: float
) -> list[Curve]:
    """The curves of cells whose sums are kept by source."""
    moved, _ = moved_by_sources(list(own.values()), statistic=statistic, confidence=confidence)
    n_sources = len(moved[0].moved)
    values = grid.empty(len(names), fill=np.nan)
    units, effective = grid.empty(len(names), n_sources), grid.empty(len(names))
    for number, one in zip(own, moved, strict=True):
        training, step = grid.places[number]
        values[:, training, step] = one.values
        usable = one.known & np.isfinite(one.moved).all(0)
        effective[:, training, step] = np.where(usable, one.effective, 0.0)
        part = np.where(usable, one.moved, 0.0) * np.sqrt((n_sources - 1) / max(n_sources, 1))
        units[:, :, training, step] = part.T
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
    paired = paired_words(ends, squares, strata, statistic=statistic, seed=seed)
    values, effective = grid.empty(fill=np.nan), grid.empty()
    covariance = paired.covariance[..., 0]
    known = np.flatnonzero(np.isfinite(np.diagonal(covariance)))
    units = grid.empty(len(known))
    root = root_of(covariance[np.ix_(known, known)]) if len(known) else np.zeros((0, 0))
    for place, number in enumerate(kept):
        at = grid.places[number]
        values[at] = paired.values[place, 0]
        effective[at] = np.nan_to_num(paired.degrees[place, place, 0] + 1)
        if place in known:
            units[(slice(None), *at)] = root[:, np.searchsorted(known, place)]
    return Curve("embeddings", values, units, effective, "words")
