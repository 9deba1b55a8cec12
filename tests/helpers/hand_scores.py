"""Scores that are written down by hand, and added to accumulators as the engine does it."""

import numpy as np
import torch

from topic_probe.measure.engine import to_host
from topic_probe.measure.scores import BatchScores, Pairs, Rows, Units

CPU = torch.device("cpu")


def words(entries, positions, topics):
    """Units of one token each."""
    entries = torch.tensor(entries, dtype=torch.int64)
    return Units.of_tokens(entries, topics.places(entries), torch.tensor(positions, dtype=torch.int64))


def batch_scores(documents, topics, *, cells=(0, 1), n_cells=4, seen=None, rows=None, include_self=True):
    """Scores of documents, each the source, the table of every cell, entries of words and their positions."""
    sources, tables, entries, positions = zip(*documents, strict=True)
    units = [words(*part, topics) for part in zip(entries, positions, strict=True)]
    longest = max(1, *map(len, units))
    values = torch.zeros(len(units), len(cells), longest, longest, dtype=torch.float64)
    for padded, table in zip(values, tables, strict=True):
        padded[:, : table.shape[1], : table.shape[2]] = table
    pairs = Pairs.of(units, units, topics, shape=(longest, longest), include_self=include_self)
    seen = torch.ones(len(units), longest, longest, dtype=torch.bool) if seen is None else seen
    return BatchScores(np.array(sources), n_cells, np.array(cells), values, seen, pairs, rows)


def add(accumulator, scores, kept=None):
    """Adds scores in the three steps of `BatchSums`."""
    index = accumulator.prepare(scores.pairs, CPU)
    found = to_host(accumulator.score(scores, index))
    known = {name: numbers for name, numbers in index.items() if isinstance(numbers, np.ndarray)}
    accumulator.add(scores, known | found, np.ones(len(scores.sources), dtype=bool) if kept is None else kept)


def rows_of(patterns, visible, n_visible, n_sinks, mass):
    """The rows of one document."""
    return Rows(*(part[None] for part in (patterns, visible, n_visible, n_sinks, mass, 1 - mass)))
