"""What a streamed measurement keeps of the documents: sums that add up over batches, interruptions and processes."""

from collections import Counter
from dataclasses import dataclass, field
from functools import reduce
from operator import add

import numpy as np

from topic_probe.contrast import SourceSums
from topic_probe.measure.processes import Processes
from topic_probe.text.documents import Counts


@dataclass
class Totals:
    """Everything that is kept of the documents so far.

    Attributes:
        by_document: sums by document, which intervals draw from.
        sums: sums over all documents, added to in place.
        left_out: how often something was left out of what was measured, by reason.
        measured: documents whose sums are in.
        intake: what was read, cut and left out before measuring. Whoever reads the documents again counts it again.
    """

    by_document: SourceSums
    sums: dict[str, np.ndarray] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    measured: int = 0
    intake: Counts = field(default_factory=Counts)


def add_up(totals: Totals, processes: Processes) -> None:
    """Makes the totals of every process those of all; beyond rounding they do not depend on how many there are."""
    if processes.size == 1:
        return
    told = processes.gather((totals.left_out, totals.measured, totals.intake))
    for part in totals.sums.values():
        np.copyto(part, processes.add(part))
    totals.left_out = reduce(add, (left_out for left_out, _, _ in told), Counter())
    totals.measured = sum(measured for _, measured, _ in told)
    totals.intake = reduce(add, (intake for _, _, intake in told))
    totals.by_document = _documents_of_all(totals.by_document, processes)


def _documents_of_all(own: SourceSums, processes: Processes) -> SourceSums:
    """The sums by document of all processes, without any process ever holding those of each."""
    keys, sums, counts = own.rows()
    told = processes.gather((keys, own.folded, sums.shape[1:], counts.shape[1:]))
    all_keys = np.unique(np.concatenate([part[0] for part in told]))
    folded = len(all_keys) > own.limit or any(part[1] for part in told)
    if folded:
        keys, all_keys = keys % own.limit, np.unique(all_keys % own.limit)
    shapes = next((part[2:] for part in told if len(part[0])), None)
    if shapes is None:
        return own
    places = np.searchsorted(all_keys, keys)
    parts = []
    for values, shape in zip((sums, counts), shapes, strict=True):
        part = np.zeros((len(all_keys), *shape))
        np.add.at(part, places, values.reshape(len(keys), *shape))
        parts.append(processes.add(part))
    return SourceSums.from_rows(own.limit, all_keys, *parts, folded=folded)
