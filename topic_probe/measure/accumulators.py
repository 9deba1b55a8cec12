"""What adds up: small objects with named sums, each of which knows one thing about the scores between words.

A measurement hands every document's `Scores` to its accumulators. Their sums are float64 arrays that are added up in
place, and `SourceSums` for what intervals resample; the engine saves them, takes them up again and adds those of
several processes together, so an accumulator needs to know nothing of batches, interruptions and shares. What is
known of documents beside the sums is their `Progress`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from topic_probe.contrast import NO_RELATION, SAME_WORD, SourceSums
from topic_probe.text.sums import Sum

# Pairs are compared within these distances |i − j|: each number is the first distance of the next bin.
DISTANCE_BINS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
_EDGES = torch.tensor(DISTANCE_BINS)


@dataclass(frozen=True, eq=False)
class Units:
    """The words (or tokens) of one document that have a topic, and the positions that make them up.

    Attributes:
        entries: vocabulary entry of every unit.
        places: where it stands in the words of the topics (`Topics.places`), by which they know its form and topics.
        first: position of its first token; distances between units are counted from here.
        positions: the positions of all units, ascending within a unit.
        unit_of: the unit that every one of ``positions`` belongs to.
        left_out: labelled tokens that are no units, by reason.
    """

    entries: Int64[Tensor, " unit"]
    places: Int64[Tensor, " unit"]
    first: Int64[Tensor, " unit"]
    positions: Int64[Tensor, " piece"]
    unit_of: Int64[Tensor, " piece"]
    left_out: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of_tokens(
        cls,
        entries: Int64[Tensor, " unit"],
        places: Int64[Tensor, " unit"],
        positions: Int64[Tensor, " unit"],
        left_out: Mapping[str, int] | None = None,
    ) -> "Units":
        """Units of one token each."""
        return cls(entries, places, positions, positions, torch.arange(len(positions)), left_out or {})

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def single(self) -> bool:
        """Whether every unit is one token."""
        return len(self.positions) == len(self.entries)

    @property
    def membership(self) -> Float[Tensor, "unit piece"]:
        """1 where a position belongs to a unit."""
        return (self.unit_of == torch.arange(len(self))[:, None]).double()


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of attention patterns that scores were made of, with the columns of words.

    Attributes:
        patterns: attention after softmax.
        visible: which of these columns each row may see.
        n_visible: how many keys of the whole document it may see.
        n_visible_sinks: how many of these are special tokens.
        sink_mass: how much of the row goes to special tokens.
    """

    patterns: Float[Tensor, "cell row column"]
    visible: Bool[Tensor, "row column"]
    n_visible: Float64[Tensor, " row"]
    n_visible_sinks: Float64[Tensor, " row"]
    sink_mass: Float64[Tensor, "cell row"]


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores between the words of one document, in cells that have the same pairs of words.

    A cell is what is measured by itself: a head (counted through stacks and layers), or one kind of score of a layer.

    Attributes:
        source: a hash of what the document was cut from; what has the same one adds up in `SourceSums`.
        n_cells: how many cells there are in all.
        cells: which of them these are.
        values: the scores. Attention is relative to uniform attention: 1 is what every key gets if none is preferred.
        relations: the relation of every pair, as `topic_probe.contrast.word_relations` codes it; no relation for what
            is no pair, because a mask forbids it.
        query: the words that attend.
        key: the words that are attended to; the same object except between two stacks.
        rows: what the scores were made of, where they are attention.
    """

    source: int
    n_cells: int
    cells: Int64[np.ndarray, " cell"]
    values: Float[Tensor, "cell query key"]
    relations: Int64[Tensor, "query key"]
    query: Units
    key: Units
    rows: Rows | None = None

    @classmethod
    def of_nothing(cls, source: int, n_cells: int) -> "Scores":
        """What all cells say of a document without a word of any topic."""
        words = Units.of_tokens(*torch.zeros(3, 0, dtype=torch.int64))
        no_pairs = torch.zeros(0, 0, dtype=torch.int64)
        return cls(source, n_cells, np.arange(n_cells), torch.zeros(n_cells, 0, 0), no_pairs, words, words)

    @cached_property
    def by_query(self) -> Float64[Tensor, "query 3 cell"]:
        """Every word's sums by relation, over the words that it attends to."""
        return sums_by_relation(self.values, self.relations)

    @cached_property
    def squares(self) -> Float64[Tensor, "cell bin"]:
        """Sums of squared scores between different words, of the same and of different topics, by distance."""
        compared = (self.relations > SAME_WORD).flatten().nonzero().squeeze(1)
        distance = (self.query.first[:, None] - self.key.first).abs().flatten()[compared]
        squares = self.values.flatten(1).index_select(1, compared).double().square_()
        sums = squares.new_zeros(len(squares), len(DISTANCE_BINS) + 1)
        return sums.index_add_(1, distance_bins(distance), squares)

    @cached_property
    def pairs(self) -> "Pairs":
        """The related pairs one by one; a pair of positions and its reverse are one where both are of one document."""
        values = self.values.permute(1, 2, 0).flatten(0, 1)  # [query · key, cell]
        codes = self.relations.flatten()
        n = (codes != NO_RELATION).to(values.dtype)
        values = values * n[:, None]
        if self.query is self.key:
            first, second = torch.triu_indices(len(self.query), len(self.query))
            there, back = first * len(self.query) + second, second * len(self.query) + first
            twice = (first != second).to(values.dtype)
            values = values[there].addcmul_(values[back], twice[:, None])
            n = n[there] + n[back] * twice
            codes = torch.maximum(codes[there], codes[back])
        else:
            first, second = torch.cartesian_prod(*map(torch.arange, self.relations.shape)).T.contiguous()
        related = codes != NO_RELATION
        first, second = first[related], second[related]
        bins = distance_bins((self.query.first[first] - self.key.first[second]).abs())
        return Pairs(values[related], n[related], codes[related], first, second, bins)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Related pairs of words of one document.

    Attributes:
        values: the scores, those of both directions added.
        n: how many directions are in them.
        relation: code of the relation.
        query, key: numbers of the words among those of the document.
        bins: the number of the bin of the distance between their first positions.
    """

    values: Float[Tensor, "pair cell"]
    n: Float[Tensor, " pair"]
    relation: Int64[Tensor, " pair"]
    query: Int64[Tensor, " pair"]
    key: Int64[Tensor, " pair"]
    bins: Int64[Tensor, " pair"]


@runtime_checkable
class Accumulator(Protocol):
    """What a measurement adds up: any object with sums and a way to add to them."""

    @property
    def sums(self) -> Mapping[str, Sum]:
        """The sums by name. The objects stay the same ones; all that is ever done with them is adding."""

    def add(self, scores: Scores) -> None:
        """Adds what some cells say of one document; a document without words of topics comes too, without pairs."""


def check_accumulator(accumulator: Any) -> None:
    """TypeError for what cannot be added to."""
    if not callable(getattr(accumulator, "add", None)) or not hasattr(accumulator, "sums"):
        raise TypeError(f"accumulators must be objects with `sums` and `add`, got {accumulator!r:.100}")


class Relations:
    """Sums by relation of every source: means, ratios, effect sizes and their intervals."""

    def __init__(self, limit: int = 4096, n_cells: int | None = None) -> None:
        self.by_source = SourceSums(limit, shape=() if n_cells is None else (n_cells,))
        self.sums = {"by_source": self.by_source}

    def add(self, scores: Scores) -> None:
        """Adds a document to its source."""
        sums, counts = (np.zeros((1, scores.n_cells, 3)) for _ in range(2))
        squares = np.zeros((1, scores.n_cells))
        sums[0, scores.cells] = scores.by_query.sum(0).T.numpy()
        counts[0, scores.cells] = torch.bincount(scores.relations.flatten(), minlength=4)[1:].numpy()
        squares[0, scores.cells] = scores.squares.sum(1).numpy()
        self.by_source.add(np.array([scores.source]), sums, counts, squares)


class Distances:
    """Sums by relation and distance: whether words of a topic merely stand closer."""

    def __init__(self, n_cells: int) -> None:
        shape = (n_cells, len(DISTANCE_BINS) + 1, 3)
        self.sums = {
            "binned": np.zeros(shape), "n_binned": np.zeros(shape), "squares_binned": np.zeros(shape[:2]),
        }  # fmt: skip

    def add(self, scores: Scores) -> None:
        """Adds the pairs of a document to their bins."""
        pairs, shape = scores.pairs, self.sums["binned"].shape[1:]
        places = pairs.bins * 3 + pairs.relation - 1
        binned = torch.zeros(shape[0] * 3, len(scores.cells), dtype=torch.float64)
        binned.index_add_(0, places, pairs.values.double())
        n_binned = torch.bincount(places, pairs.n.double(), minlength=len(binned))
        self.sums["binned"][scores.cells] += binned.T.reshape(-1, *shape).numpy()
        self.sums["n_binned"][scores.cells] += n_binned.reshape(shape).numpy()
        self.sums["squares_binned"][scores.cells] += scores.squares.numpy()


class Sinks:
    """What special tokens take of the attention, and the sums by relation without them."""

    def __init__(self, n_cells: int) -> None:
        relations, mass = (n_cells, 3), (n_cells,)
        self.sums = {
            "without_sinks": np.zeros(relations), "n_without_sinks": np.zeros(relations),
            "sink_mass": np.zeros(mass), "n_rows": np.zeros(mass),
        }  # fmt: skip

    def add(self, scores: Scores) -> None:
        """Adds a document, every row renormalised over what is no sink; rows with nothing left drop out."""
        rows = scores.rows
        if rows is None:  # a document without words
            return
        rest = 1 - rows.sink_mass
        left = rest > 1e-6
        by_query = scores.by_query
        if bool((rows.sink_mass > 0).any()):
            factors = torch.where(left, 1 / rest.clamp(min=1e-6), 0)
            patterns = (rows.patterns * factors[:, :, None]).to(rows.patterns.dtype)
            n_visible = rows.n_visible - rows.n_visible_sinks
            without, _ = relative_to_uniform(patterns, rows.visible, n_visible, scores.query, scores.key)
            by_query = sums_by_relation(without, scores.relations)
        first_piece = torch.searchsorted(scores.query.unit_of, torch.arange(len(scores.query)))
        kept = left[:, first_piece].double()
        counts = torch.nn.functional.one_hot(scores.relations, 4)[:, :, 1:].sum(1).double()
        self.sums["without_sinks"][scores.cells] += torch.einsum("qrc,cq->cr", by_query, kept).numpy()
        self.sums["n_without_sinks"][scores.cells] += (kept @ counts).numpy()
        self.sums["sink_mass"][scores.cells] += rows.sink_mass.sum(1).numpy()
        self.sums["n_rows"][scores.cells] += rows.sink_mass.shape[1]


def distance_bins(distance: Int64[Tensor, " pair"]) -> Int64[Tensor, " pair"]:
    """The number of the bin of every distance."""
    return torch.bucketize(distance, _EDGES, right=True)


def relative_to_uniform(
    patterns: Float[Tensor, "cell row column"],
    visible: Bool[Tensor, "row column"],
    n_visible: Float64[Tensor, " row"],
    query: Units,
    key: Units,
) -> tuple[Float[Tensor, "cell query key"], Bool[Tensor, "query key"]]:
    """Attention between words relative to uniform attention, and which pairs there are.

    Attention *to* a word is summed over its tokens, *from* a word averaged over them; both the model's and uniform
    attention (1 over the number of keys that the row may see) are treated so, and the answer is their quotient: 1 under
    uniform attention whatever the number of pieces.
    """
    if query.single and key.single:
        return patterns * n_visible[:, None].to(patterns.dtype), visible
    average, total = (units.membership.to(patterns.dtype) for units in (query, key))
    average = average / average.sum(1, keepdim=True)
    uniform = visible.to(patterns.dtype) / n_visible.clamp(min=1)[:, None].to(patterns.dtype)
    expected = average @ uniform @ total.T
    pairs = expected > 0
    return (average @ patterns @ total.T) / torch.where(pairs, expected, 1), pairs


def sums_by_relation(
    values: Float[Tensor, "cell query key"], relations: Int64[Tensor, "query key"]
) -> Float64[Tensor, "query 3 cell"]:
    """Every query's sums of scores by relation."""
    chosen = torch.nn.functional.one_hot(relations, 4)[:, :, 1:].transpose(1, 2).to(values.dtype)
    return torch.bmm(chosen, values.permute(1, 2, 0)).double()
