"""Which tokens of a batch are words of topics, and what two of these words are to each other.

A `Side` has the words of every document of a batch, padded. `Words` are those of the queries and of the keys of a
stack with the relation and the distance of every pair; they turn rows of attention into scores of pairs, and hold what
a question adds to its sums until the batch is through. Within a document numbers are those of the model (float32 at
least), and float64 across documents, where the device has such a thing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Bool, Float, Int8, Int64
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from topic_probe.contrast import NO_RELATION, word_relations
from topic_probe.sums import N_COLUMNS, SourceSums
from topic_probe.text.batches import TokenBatch
from topic_probe.topics import Topics

Level = Literal["token", "word"]
_Found = TypeVar("_Found")

# Pairs are compared within these distances |i − j|: each number is the first distance of the next bin.
DISTANCE_BINS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
_EDGES = torch.tensor(DISTANCE_BINS)

NO_WORD = "documents without a word of any topic"
PIECES = "pieces of split words"
FIRST = "words at the first position, where a causal model parks attention"


class Side:
    """The words of topics in the documents of a batch, in their order; padding repeats the last token.

    Attributes:
        index: the positions of the tokens of words.
        real: which of these are some.
        places: where every word stands in the words of the topics (`Topics.places`); -1 is padding.
        first: the position of its first token, from which distances count.
        average: where words have several tokens, the mean over those of a word; else None, and every token is a word.
        total: the sum over those of a word.
        first_token: the number of its first token in ``index``.
        sinks: the positions on which attention is parked.
        left_out: by reason, how many labelled tokens of a document are no words; and whether it has none.
    """

    average: Float[Tensor, "batch word token"] | None = None
    total: Float[Tensor, "batch token word"] | None = None
    first_token: Int64[Tensor, "batch word"] | None = None

    def __init__(self, batch: TokenBatch, topics: Topics, level: Level) -> None:
        if level == "word" and bool(batch.without_words.any()):
            raise ValueError(
                "level='word' needs documents that say which tokens form a word: make them with "
                "topic_probe.encode_texts(texts, tokenizer) and a fast tokenizer"
            )
        places = topics.places(batch.ids)
        # Entries beyond the vocabulary are words of several tokens; a padded table may use such ids for something else.
        labelled = (places >= 0) & (batch.ids < topics.vocabulary_size) & batch.mask & ~batch.special
        tokens = labelled & batch.whole & ~batch.sinks
        begins = tokens.clone()
        if level == "word" and topics.compounds:
            for row, positions, place in _compounds(batch, topics):
                tokens[row, positions] = begins[row, positions[0]] = True
                places[row, positions[0]] = place
        self.sinks = batch.sinks
        self.left_out: Mapping[str, Tensor] = {
            PIECES: (labelled & ~batch.whole).sum(1),
            FIRST: (labelled & batch.whole & batch.sinks).sum(1),
            NO_WORD: ~tokens.any(1),
        }
        self.index, self.real = _positions(tokens)
        self.first, is_word = _positions(begins)
        self.places = places.gather(1, self.first).masked_fill(~is_word, -1)
        if not torch.equal(tokens, begins):
            word = (begins.cumsum(1) - 1).gather(1, self.index)
            member = (word[:, None] == torch.arange(self.first.shape[1])[:, None]) & self.real[:, None]
            self.average = member / member.sum(2, keepdim=True).clamp(min=1)
            self.total = member.float().mT
            self.first_token = torch.searchsorted(self.index, self.first)

    @property
    def is_word(self) -> Bool[Tensor, "batch word"]:
        """Which words are some."""
        return self.places >= 0

    def places_at(self, n: int) -> Int64[Tensor, "batch position"]:
        """Where the word that each of n positions is in stands in the words of the topics; -1 for no word."""
        word = torch.arange(self.index.shape[1]).expand_as(self.index)
        if self.total is not None:
            word = self.total.argmax(2)
        document = torch.arange(len(self.index))[:, None].expand_as(self.index)
        found = torch.full((len(self.index), n), -1)
        found[document[self.real], self.index[self.real]] = self.places.gather(1, word)[self.real]
        return found


def _positions(chosen: Bool[Tensor, "batch position"]) -> tuple[Int64[Tensor, "batch n"], Tensor]:
    """The chosen positions of every document side by side, never without a column; and which of these are some."""
    n = chosen.sum(1)
    index = chosen.sort(dim=1, descending=True, stable=True).indices[:, : max(1, int(n.max()))]
    last = index.gather(1, (n - 1).clamp(min=0)[:, None])
    real = torch.arange(index.shape[1]) < n[:, None]
    return torch.where(real, index, last), real


def _compounds(batch: TokenBatch, topics: Topics) -> Iterator[tuple[int, list[int], int]]:
    """The words of several tokens that topics know: document, positions, place.

    One that begins at a sink is none, and neither is one that a decoder does not read to its end.
    """
    n_single = len(topics.words) - len(topics.compounds)  # compounds are the last of the words
    known = {pieces: n_single + number for number, pieces in enumerate(topics.compounds)}
    for row, (ids, words) in enumerate(zip(batch.ids.tolist(), batch.word_index.tolist(), strict=True)):
        at_sink = words[0] if batch.sinks[row, 0] else -1
        for word, run in groupby(range(len(words)), key=words.__getitem__):
            positions = list(run)
            place = known.get(tuple(ids[position] for position in positions))
            whole = len(positions) > 1 and bool(batch.mask[row, positions[-1]])
            if word not in (-1, at_sink) and whole and place is not None:
                yield row, positions, place


def one_later(batch: TokenBatch) -> TokenBatch:
    """A batch as a decoder reads it: one position later, behind a start token, which is nobody's word."""
    first = {"ids": -1, "special": True, "sinks": True, "word_index": -1, "whole": False}
    later = {
        name: torch.nn.functional.pad(getattr(batch, name)[:, :-1], (1, 0), value=value)
        for name, value in first.items()
    }
    return TokenBatch(**{**vars(batch), **later})


def all_positions(index: Sequence[Int64[Tensor, "batch _"]]) -> Int64[Tensor, "batch position"]:
    """The positions that any of several has, ascending; padding repeats the last one."""
    if all(torch.equal(own, index[0]) for own in index):
        return index[0]
    found = [torch.unique(torch.cat(rows)) for rows in zip(*index, strict=True)]
    table = pad_sequence(found, batch_first=True, padding_value=-1)
    return torch.where(table < 0, table.max(1, keepdim=True).values, table)


class Words:
    """The words of a batch on both sides of a stack, the relations between them, and what is added up of them.

    Attributes:
        query: the words that attend.
        key: the words that are attended to; the same object but between an encoder and a decoder.
        relations: of every pair, as `topic_probe.contrast.word_relations` codes them.
        bins: the number of the distance bin of every pair.
        n_bins: all of these are below it.
        sources: a hash of what every document was cut from.
        prepared: what a question has looked up of them, tensors and other things by name.
        pending: what has been added, which goes into the sums once the batch is through.
    """

    def __init__(
        self, query: Side, key: Side, topics: Topics, batch: TokenBatch, sums: Mapping[str, Any], *,
        include_self: bool = True,
    ) -> None:  # fmt: skip
        self.query, self.key, self.sources = query, key, batch.sources
        self.prepared: dict[str, Any] = {}
        self.relations: Int8[Tensor, "batch query key"] = word_relations(query.places, key.places, topics)
        if query is key and not include_self:
            self.relations.diagonal(dim1=1, dim2=2).fill_(NO_RELATION)
        bin_of = torch.bucketize(torch.arange(batch.ids.shape[1]), _EDGES, right=True)
        self.bins = bin_of[(query.first[:, :, None] - key.first[:, None]).abs()]
        self.n_bins = int(self.bins.max()) + 1
        self.pending: dict[str, Tensor] = {}
        self._sums, self._seen = sums, dict[Any, Any]()
        self._rows: Tensor | None = None

    def to(self, device: torch.device, rows: Int64[Tensor, "batch row"]) -> None:
        """Moves everything to where the model is, of which these rows will be read for all questions."""
        if not torch.equal(rows, self.query.index):
            self._rows = torch.searchsorted(rows, self.query.index)
        for part in (vars(self.query), vars(self.key), vars(self), self.prepared):
            part.update({name: value.to(device) for name, value in part.items() if isinstance(value, Tensor)})

    def own(self, rows: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
        """These words' rows and their visible keys, among those that were read for all questions."""
        if self._rows is None:
            return rows, visible
        at = self._rows[:, :, None]
        seen = self.once(visible, lambda: visible.gather(1, at.expand(-1, -1, visible.shape[2])))
        return rows.gather(2, at[:, None].expand(-1, rows.shape[1], -1, rows.shape[3])), seen

    def once(self, visible: Tensor, make: Callable[[], _Found]) -> _Found:
        """What is made of the keys that rows may see: once for all sites that see the same, as these share it."""
        if visible not in self._seen:  # tensors are compared by what they are, not by their numbers
            self._seen[visible] = make()
        found: _Found = self._seen[visible]
        return found

    def made(self, kind: type[_Found]) -> list[_Found]:
        """What of a kind was made by `once`."""
        return [found for found in self._seen.values() if isinstance(found, kind)]

    def between(
        self, rows: Float[Tensor, "batch head token position"]
    ) -> Float[Tensor, "batch head query key"]:
        """What of rows goes from words to words: the sum over the tokens of a key, the mean over those of a query."""
        found = rows.gather(3, self.key.index[:, None, None].expand(*rows.shape[:3], -1))
        if self.key.total is not None:
            found = found @ self.key.total[:, None].to(found.dtype)
        if self.query.average is not None:
            found = self.query.average[:, None].to(found.dtype) @ found
        return found

    def relative(
        self, rows: Float[Tensor, "batch head token position"], visible: Bool[Tensor, "batch token position"]
    ) -> Float[Tensor, "batch head query key"]:
        """Attention from words to words; 1 is uniform attention over the visible keys, 0 where there is no pair."""
        n_visible = visible.sum(2, keepdim=True)
        if self.query.average is None and self.key.total is None:
            return self.between(rows) * n_visible[:, None]
        uniform = self.between((visible.to(rows.dtype) / n_visible.clamp(min=1))[:, None])
        return self.between(rows) / torch.where(uniform > 0, uniform, 1)

    def pairs(self, visible: Bool[Tensor, "batch token position"]) -> Int8[Tensor, "batch query key"]:
        """The relation of every pair, none for pairs that a mask forbids."""
        return self.relations * (self.between(visible.float()[:, None])[:, 0] > 0)

    def add(self, name: str, at: Any, values: Tensor) -> None:
        """Adds values to the sums of this name, at an index, once the whole batch is through.

        Sums by source take a row for every document, with sums of scores by relation, numbers of pairs by relation
        and the sum of squares: [document, head, 7].
        """
        sums = self._sums[name]
        by_source = isinstance(sums, SourceSums)
        if name not in self.pending:
            shape = (len(self.sources), *sums.shape, N_COLUMNS) if by_source else tuple(sums.shape)
            self.pending[name] = wide(torch.zeros(shape, device=values.device))
        index = at if isinstance(at, tuple) else (at,)
        index = tuple(part.to(values.device) if isinstance(part, Tensor) else part for part in index)
        self.pending[name][(slice(None), *index) if by_source else index] += values


def wide(values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The same in float64, where the device has such a thing."""
    return values if values.device.type == "mps" else values.double()
