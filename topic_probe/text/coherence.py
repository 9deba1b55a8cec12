"""How coherent topics are: whether their likeliest words occur in the same documents."""

import math

import numpy as np
from jaxtyping import Float64, Int64

from topic_probe.text.bags import Bags


def coherence(
    top: Int64[np.ndarray, "topic rank"], bags: Bags, columns: Int64[np.ndarray, "column"]
) -> tuple[Float64[np.ndarray, "topic"], Float64[np.ndarray, "topic"]]:
    """NPMI and UMass of every topic, counted in one pass over the documents."""
    words, place = np.unique(top, return_inverse=True)
    counts = _count_together(words, bags, columns)
    place = place.reshape(top.shape)
    pairs = [scores(counts[np.ix_(row, row)], bags.n) for row in place]
    return np.array([npmi for npmi, _ in pairs]), np.array([umass for _, umass in pairs])


def _count_together(
    words: Int64[np.ndarray, "chosen"], bags: Bags, columns: Int64[np.ndarray, "column"]
) -> Int64[np.ndarray, "chosen chosen"]:
    """Documents in which two of the words are; on the diagonal, those in which one is."""
    counts = np.zeros((len(words), len(words)), dtype=np.int64)
    for ids, _ in bags:
        found = np.flatnonzero(np.isin(columns[words], ids, assume_unique=True))
        counts[np.ix_(found, found)] += 1
    return counts


def scores(together: Int64[np.ndarray, "rank rank"], n: int) -> tuple[float, float]:
    """Mean NPMI and UMass over all pairs of a topic's words, which come likeliest first."""
    if len(together) < 2 or n == 0:
        return math.nan, math.nan
    later, earlier = np.tril_indices(len(together), k=-1)
    single, joint = together.diagonal(), together[later, earlier]
    umass = np.log((joint + 1) / single[earlier]).mean()
    npmi = np.full(len(joint), -1.0)  # never together: the limit
    npmi[joint == n] = 1.0  # always together, everywhere: the other limit
    between = (joint > 0) & (joint < n)
    pmi = np.log(joint[between] * n / (single[later] * single[earlier])[between])
    npmi[between] = pmi / -np.log(joint[between] / n)
    return float(npmi.mean()), float(umass)
