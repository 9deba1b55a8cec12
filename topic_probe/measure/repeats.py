"""Pairs of words that share several topics: what sums by topic hold too often of them.

A sum over the words of a topic, added up over the topics of a word, has each of its pairs once for every topic that the
two share. How often is a matter of topics and the same for all words of two groups; what a pair adds is one product of
two rows. Here every such pair is formed once, and all that is asked of it (numbers, sums, squares) is added up.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from topic_probe.topics.incidence import Incidence

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# A product of two rows costs so many times as much where rows are picked for it as in a product of two tables.
_PICKED = 8


@dataclass(frozen=True)
class Repeats:
    """For every word, over the words of other groups that share several topics with it, each as often as beyond one.

    Attributes:
        n: numbers of them, by the half that they are in.
        sums: cosines and dot products with them, by the half that they are in.
        squares: the squares of these, of both halves.
    """

    n: Float64[Tensor, "word half"]
    sums: Float64[Tensor, "word half score"]
    squares: Float64[Tensor, "word score"]


def repeats(
    incidence: Incidence,
    group: Int64[Tensor, " word"],
    rows: Float[Tensor, "word d_embed"],
    norms: Float64[Tensor, " word"],
    half: Int64[Tensor, " word"],
) -> Repeats:
    """What sums by topic hold too often of words, which stand in the order of their groups."""
    from scipy.sparse import csr_array

    halves, inverse = F.one_hot(half, 2).double(), 1 / norms[:, None]
    by_half = halves.numpy()
    scaled = torch.cat([halves * inverse, halves], 1).numpy()
    squared = torch.cat([inverse**2, torch.ones_like(inverse)], 1).numpy()
    n, sums, squares = np.zeros_like(by_half), np.zeros_like(scaled), np.zeros_like(squared)
    for place, again in _pairs(incidence, group.numpy()):
        dot = _products(rows.numpy(), place, again)
        for values, others, total in (
            (again.data, by_half, n),
            (again.data * dot, scaled, sums),
            (again.data * dot**2, squared, squares),
        ):
            table = csr_array((values, again.indices, again.indptr), shape=again.shape)
            total[place] += table @ others
            total += table.T @ others[place]
    # Both words of a pair stand below a cosine.
    of_halves = (
        torch.from_numpy(sums).view(-1, 2, 2).mT * torch.cat([inverse, torch.ones_like(inverse)], 1)[:, None]
    )
    return Repeats(torch.from_numpy(n), of_halves, torch.from_numpy(squares * squared))


def _pairs(incidence: Incidence, group: Int64[np.ndarray, " word"]) -> Iterator[tuple[slice, "csr_array"]]:
    """For blocks of words: how many topics more than one each shares with every word of a later group."""
    for groups, again in incidence.repeated():
        start, stop = np.searchsorted(group, [groups.start, groups.stop]).tolist()
        if start < stop:
            yield slice(start, stop), again[group[start:stop] - groups.start][:, group]


def _products(
    rows: Float[np.ndarray, "word d_embed"], place: slice, pairs: "csr_array"
) -> Float64[np.ndarray, " pair"]:
    """The products of the pairs that a block of a table of pairs of words holds."""
    first, n_cells = rows[place], (place.stop - place.start) * (len(rows) - place.start)
    if _PICKED * pairs.nnz > n_cells:
        number = np.repeat(np.arange(len(first)), np.diff(pairs.indptr))
        products = (first @ rows[place.start :].T)[number, pairs.indices - place.start]
        return np.asarray(products, dtype=np.float64)
    products = np.empty(pairs.nnz, rows.dtype)
    for row, (start, stop) in zip(first, pairwise(pairs.indptr.tolist()), strict=True):
        products[start:stop] = rows.take(pairs.indices[start:stop], axis=0) @ row
    return np.asarray(products, dtype=np.float64)
