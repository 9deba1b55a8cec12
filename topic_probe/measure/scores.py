"""Scores between words: of a batch, where the model runs, and of one document, for who looks at single pairs.

What is known of the pairs of words of some documents before a model runs (`Pairs`) is made on the host, and moved to
where the model is with its inputs. Scores of all cells come beside it (`BatchScores`), padded, and all that reports are
made of are sums that a few products with the relation and the distance of every pair give. Numbers are those of the
model within a document (float32 at least), and float64 across documents, where there is such a thing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int8, Int64, UInt8
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from topic_probe.contrast import NO_RELATION, word_relations
from topic_probe.topics import Topics

# Pairs are compared within these distances |i − j|: each number is the first distance of the next bin.
DISTANCE_BINS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
_EDGES = torch.tensor(DISTANCE_BINS)

# Numbers that are worked on at once: what a processor's caches and its allocator keep, and what other devices have room
# for.
_IN_CACHE, _AT_ONCE = 2**21, 2**26


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


def padded(parts: Sequence[Int64[Tensor, " _"]], fill: int, *, least: int = 1) -> Int64[Tensor, "document _"]:
    """Numbers of documents side by side, and so many of them at least."""
    # One more document, so that there are as many columns.
    return pad_sequence([*parts, torch.full((least,), fill)], batch_first=True, padding_value=fill)[:-1]


def numbers_at_once(device: torch.device) -> int:
    """How many numbers are worked on at once."""
    return _IN_CACHE if device.type == "cpu" else _AT_ONCE


def distance_bins(distance: Int64[Tensor, "*pair"]) -> Int64[Tensor, "*pair"]:
    """The number of the bin of every distance."""
    return torch.bucketize(distance, _EDGES, right=True)


@dataclass(frozen=True, eq=False)
class Pieces:
    """Which positions make up the words of documents: 1 where a position belongs to a word.

    Attributes:
        average: of queries, each word's positions together 1.
        total: of keys.
        first: the number of the first position of every query.
    """

    average: Float[Tensor, "document query row"]
    total: Float[Tensor, "document key column"]
    first: Int64[Tensor, "document query"]

    @classmethod
    def of(cls, query: Sequence[Units], key: Sequence[Units], *, n_rows: int, n_columns: int) -> "Pieces":
        """Those of the words of documents, in so many rows and columns."""
        average = _membership(query, n_rows)
        first = [torch.searchsorted(words.unit_of, torch.arange(len(words))) for words in query]
        average = average / average.sum(2, keepdim=True).clamp(min=1)
        return cls(average, _membership(key, n_columns), padded(first, 0, least=n_rows))


def _membership(documents: Sequence[Units], n: int) -> Float[Tensor, "document unit position"]:
    table = torch.zeros(len(documents), n, n)
    for row, words in zip(table, documents, strict=True):
        row[words.unit_of, torch.arange(len(words.unit_of))] = 1
    return table


@dataclass(frozen=True, eq=False)
class Pairs:
    """What is known of the pairs of words of some documents before a model has run, padded.

    Attributes:
        query: the words that attend, of every document.
        key: the words that are attended to; the same object except between two stacks.
        relations: how the words of every pair are related, as `topic_probe.contrast.word_relations` codes it.
        bins: the number of the bin of the distance between their first positions.
        n_bins: numbers of bins are below this.
        pieces: what makes up words, where some have several positions.
        index: what every accumulator looks up.
    """

    query: Sequence[Units]
    key: Sequence[Units]
    relations: Int8[Tensor, "document query key"]
    bins: UInt8[Tensor, "document query key"]
    n_bins: int
    pieces: Pieces | None = None
    index: Sequence[Mapping[str, Any]] | None = None

    @classmethod
    def of(
        cls,
        query: Sequence[Units],
        key: Sequence[Units],
        topics: Topics,
        *,
        shape: tuple[int, int] = (1, 1),
        include_self: bool = True,
        by_distance: bool = True,
    ) -> "Pairs":
        """The pairs of every document, of so many words at least; without distances all are in one bin."""
        sides = list(zip((query, key), shape, strict=True))
        of_queries, of_keys = (
            padded([words.places for words in part], -1, least=least) for part, least in sides
        )
        pieces = None
        if not all(words.single for words in (*query, *key)):
            pieces = Pieces.of(query, key, n_rows=shape[0], n_columns=shape[1])
        relations = word_relations(of_queries, of_keys, topics)
        if query is key and not include_self:
            relations.diagonal(dim1=1, dim2=2).fill_(NO_RELATION)
        if not by_distance:
            return cls(query, key, relations, torch.zeros_like(relations, dtype=torch.uint8), 1, pieces)
        first, second = (padded([words.first for words in part], 0, least=least) for part, least in sides)
        distance = (first[:, :, None] - second[:, None, :]).abs_()
        bin_of = distance_bins(torch.arange(int(distance.max()) + 1)).byte()
        return cls(query, key, relations, bin_of[distance], int(bin_of[-1]) + 1, pieces)

    def __len__(self) -> int:
        return len(self.query)

    def to(self, device: torch.device, index: Sequence[Mapping[str, Any]]) -> "Pairs":
        """The same where a model is, with what accumulators look up there."""
        pieces = self.pieces
        if pieces is not None:
            pieces = Pieces(*(part.to(device) for part in vars(pieces).values()))
        relations, bins = self.relations.to(device), self.bins.to(device)
        return replace(self, relations=relations, bins=bins, pieces=pieces, index=index)


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of attention patterns that scores were made of, with the columns of words.

    Attributes:
        patterns: attention after softmax.
        visible: which of these columns each row may see.
        n_visible: how many keys of the whole document it may see.
        n_visible_sinks: how many of these are special tokens.
        sink_mass: how much of the row goes to special tokens.
        rest: how much of it goes to all others.
        has_sinks: whether there may be any.
    """

    patterns: Float[Tensor, "*document cell row column"]
    visible: Bool[Tensor, "*document row column"]
    n_visible: Float[Tensor, "*document row"]
    n_visible_sinks: Float[Tensor, "*document row"]
    sink_mass: Float[Tensor, "*document cell row"]
    rest: Float[Tensor, "*document cell row"]
    has_sinks: bool = True

    def relative(
        self,
        pieces: Pieces | None,
        n_visible: Float[Tensor, "document row"],
        factor: Float[Tensor, "document cell row"] | None = None,
    ) -> tuple[Float[Tensor, "document cell query key"], Bool[Tensor, "document query key"]]:
        """Attention between words relative to uniform attention, and which pairs there are.

        Attention *to* a word is summed over its tokens, *from* a word averaged over them; both the model's and uniform
        attention (1 over the number of keys that the row may see) are treated so, and the answer is their quotient: 1
        under uniform attention whatever the number of pieces. Every row is multiplied by its factor, if there are any;
        one that sees nothing has no part in it.
        """
        if pieces is None:
            every = n_visible[:, None] if factor is None else n_visible[:, None] * factor
            return self.patterns * every[..., None], self.visible
        average = (pieces.average * (n_visible > 0)[:, None]).to(self.patterns.dtype)
        total = pieces.total.transpose(1, 2).to(self.patterns.dtype)
        expected = average @ (self.visible / n_visible.clamp(min=1)[..., None]) @ total
        patterns = self.patterns if factor is None else self.patterns * factor[..., None]
        found = average[:, None] @ patterns @ total[:, None]
        pairs = expected > 0
        return found / torch.where(pairs, expected, 1)[:, None], pairs


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


@dataclass(frozen=True, eq=False)
class BatchScores:
    """Scores between the words of some documents, padded, where the model has run.

    Attributes:
        sources: a hash of what every document was cut from.
        n_cells: how many cells there are in all.
        cells: which of them these are.
        values: the scores, of `Scores`; 0 where there is no pair.
        seen: what is a pair: no mask forbids it, and its document can be measured.
        pairs: what was known of them before.
        rows: what the scores were made of, where they are attention.
    """

    sources: Int64[np.ndarray, " document"]
    n_cells: int
    cells: Int64[np.ndarray, " cell"]
    values: Float[Tensor, "document cell query key"]
    seen: Bool[Tensor, "document query key"]
    pairs: Pairs
    rows: Rows | None = None

    @cached_property
    def relations(self) -> Int8[Tensor, "document query key"]:
        """The relation of every pair; none for what is no pair."""
        return self.pairs.relations * self.seen

    @cached_property
    def _place(self) -> Int64[Tensor, "document pair"]:
        """Where the scores of every pair are added up: by relation and bin, and behind all of them what is no pair."""
        place = (self.relations.long() - 1) * self.pairs.n_bins + self.pairs.bins
        return place.masked_fill(self.relations == NO_RELATION, 3 * self.pairs.n_bins).flatten(1)

    @cached_property
    def counts(self) -> Int64[Tensor, "document 3 bin"]:
        """Numbers of pairs by relation and distance."""
        counts = self._place.new_zeros(len(self._place), 3 * self.pairs.n_bins + 1)
        counts.scatter_add_(1, self._place, torch.ones_like(self._place))
        return counts[:, :-1].view(len(counts), 3, -1)

    @cached_property
    def _one_hot(self) -> Float[Tensor, "document pair place"]:
        """1 at the place of every pair."""
        table = self.values.new_zeros(*self._place.shape, 3 * self.pairs.n_bins + 1)
        return table.scatter_(2, self._place[:, :, None], 1)[:, :, :-1]

    @cached_property
    def binned(self) -> Float[Tensor, "document cell 3 bin"]:
        """Sums of scores by relation and distance."""
        return torch.bmm(self.values.flatten(2), self._one_hot).view(*self.values.shape[:2], 3, -1)

    @cached_property
    def squares(self) -> Float[Tensor, "document cell bin"]:
        """Sums of squared scores between different words, of the same and of different topics, by distance.

        Scores are squared as they are around their mean, because the variance is what squares are for, and little of it
        is left of float32 numbers where all scores are nearly equal.
        """
        total, n, n_bins = self.binned[:, :, 1:].sum(2), self.counts[:, 1:].sum(1), self.pairs.n_bins
        mean = total.sum(2) / n.sum(1).clamp(min=1)[:, None]
        squares = (self.values - mean[:, :, None, None]).square_().flatten(2)
        same, different = (self._one_hot[:, :, at * n_bins : (at + 1) * n_bins] for at in (1, 2))
        around, total, mean = (
            wide(part) for part in (torch.bmm(squares, same + different), total, mean[..., None])
        )
        return around + mean * (2 * total - mean * n[:, None])

    def document(self, number: int) -> Scores:
        """The scores of one document, on the host."""
        query, key = self.pairs.query[number], self.pairs.key[number]
        n, m = len(query), len(key)
        return Scores(
            int(self.sources[number]),
            self.n_cells,
            self.cells,
            self.values[number, :, :n, :m].cpu(),
            self.relations[number, :n, :m].long().cpu(),
            query,
            key,
            None
            if self.rows is None
            else _rows_of(self.rows, number, len(query.positions), len(key.positions)),
        )


def _rows_of(rows: Rows, number: int, n: int, m: int) -> Rows:
    """The rows of one document, on the host."""
    return Rows(
        rows.patterns[number, :, :n, :m].cpu(),
        rows.visible[number, :n, :m].cpu(),
        rows.n_visible[number, :n].cpu().double(),
        rows.n_visible_sinks[number, :n].cpu().double(),
        rows.sink_mass[number, :, :n].cpu().double(),
        rows.rest[number, :, :n].cpu().double(),
    )


def wide(values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The same in float64, where the device has such a thing."""
    return values if values.device.type == "mps" else values.double()


def by_relation(
    values: Float[Tensor, "document cell query key"], relations: Int8[Tensor, "document query key"]
) -> Float[Tensor, "document cell 3"]:
    """Sums of scores by relation."""
    table = values.new_zeros(*relations.flatten(1).shape, 4)
    table.scatter_(2, relations.flatten(1)[:, :, None].long(), 1)
    return torch.bmm(values.flatten(2), table[:, :, 1:])
