"""Reads the attention between the words of documents out of a model: batches in, scores between words out.

Of every row of attention the columns of words and of sinks are kept, where the model is. When all sites have been read,
those that see the same keys are scored together, some documents at a time: on a processor so many as its cache holds.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor

from topic_probe.lens import capture
from topic_probe.lens.sites import SIDES, Cells, Columns, take_rows
from topic_probe.measure.engine import FIRST, NO_WORD, PIECES, Part, Prepare
from topic_probe.measure.heads import Heads
from topic_probe.measure.options import Patterns
from topic_probe.measure.scores import (
    DISTANCE_BINS,
    BatchScores,
    Pairs,
    Rows,
    Units,
    numbers_at_once,
    padded,
)
from topic_probe.text.batches import TokenBatch
from topic_probe.topics import Topics

Level = Literal["token", "word"]

# How far a row of attention may be from summing to one, by precision.
_ROW_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}

# Numbers that every pair has while it is scored, whatever the number of scores: one for each relation and distance.
_PLACES = 3 * (len(DISTANCE_BINS) + 1)

# The units of every document on the "source" side and, where there is a decoder, on the "target" side.
Sides = Mapping[str, list[Units]]


def units_of(batch: TokenBatch, topics: Topics, *, level: Level = "token") -> list[Units]:
    """The units of every document of a batch. Sinks of attention are none, and neither are pieces of words.

    Raises:
        ValueError: for word level and a document whose text nobody saw.
    """
    if level == "word" and bool(batch.without_words.any()):
        raise ValueError(
            "level='word' needs documents that say which tokens form a word: make them with "
            "topic_probe.encode_texts(texts, tokenizer) and a fast tokenizer"
        )
    # Entries beyond the vocabulary are words of several tokens; a padded table may use such ids for something else.
    places = topics.places(batch.ids)
    has_topic = (places >= 0) & (batch.ids < topics.vocabulary_size) & batch.mask & ~batch.special
    chosen = has_topic & batch.whole & ~batch.sinks
    units = []
    for number, of_topic in enumerate(has_topic):
        positions = chosen[number].nonzero().flatten()
        left_out = {
            PIECES: int((of_topic & ~batch.whole[number]).sum()),
            FIRST: int((of_topic & batch.whole[number] & batch.sinks[number]).sum()),
        }
        words = batch.ids[number, positions], places[number, positions]
        units.append(Units.of_tokens(*words, positions, left_out))
    if level == "word" and topics.compounds:
        n_single = len(topics.words) - len(topics.compounds)  # compounds are the last of the words
        known = {pieces: n_single + number for number, pieces in enumerate(topics.compounds)}
        # What a sink leaves over of the word that begins there is no word.
        at_sink = batch.sinks[:, :1] & (batch.word_index == batch.word_index[:, :1])
        rows = zip(units, batch.ids, batch.word_index.masked_fill(at_sink, -1), strict=True)
        return [_with_compounds(*row, topics, known) for row in rows]
    return units


def _with_compounds(
    tokens: Units,
    ids: Int64[Tensor, " position"],
    word_index: Int64[Tensor, " position"],
    topics: Topics,
    known: dict[tuple[int, ...], int],
) -> Units:
    """The units and the words of several tokens that the topics know, in the order of the document."""
    words = [
        (position, place, [position])
        for position, place in zip(tokens.positions.tolist(), tokens.places.tolist(), strict=True)
    ]
    numbers, runs = torch.unique_consecutive(word_index, return_inverse=True)
    for run in ((runs.bincount() > 1) & (numbers >= 0)).nonzero().flatten().tolist():
        positions = (runs == run).nonzero().flatten()
        place = known.get(tuple(ids[positions].tolist()))
        if place is not None:
            words.append((int(positions[0]), place, positions.tolist()))
    words.sort()
    pieces = [(position, unit) for unit, (_, _, positions) in enumerate(words) for position in positions]
    places = torch.tensor([place for _, place, _ in words], dtype=torch.int64)
    return Units(
        topics.words[places],
        places,
        torch.tensor([first for first, _, _ in words], dtype=torch.int64),
        torch.tensor([position for position, _ in pieces], dtype=torch.int64),
        torch.tensor([unit for _, unit in pieces], dtype=torch.int64),
        tokens.left_out,
    )


def one_later(batch: TokenBatch) -> TokenBatch:
    """A batch as a decoder reads it: one position later, behind a start token, which is nobody's word."""

    def later(part: Tensor, first: int) -> Tensor:
        return torch.nn.functional.pad(part[:, :-1], (1, 0), value=first)

    return replace(
        batch,
        ids=later(batch.ids, -1),
        special=later(batch.special, True),
        sinks=later(batch.sinks, True),
        word_index=later(batch.word_index, -1),
        whole=later(batch.whole, False),
    )


def width(units: Sequence[Units]) -> int:
    """How many positions the words of a document have, at most; never none."""
    return max(1, *(len(document.positions) for document in units))


def padded_positions(units: Sequence[Units]) -> Int64[Tensor, "batch piece"]:
    """The positions of every document side by side; never without a column."""
    return padded([document.positions for document in units], 0)


def every_position(units: Sequence[Sequence[Units]]) -> Int64[Tensor, "batch position"]:
    """The positions of the words of every document, of several topics, ascending; padding comes behind all of them."""
    found = []
    for of_document in zip(*units, strict=True):
        found.append(torch.unique(torch.cat([words.positions for words in of_document])))
    # Padding repeats the last position of a document, so that rows are ascending and every one of them exists.
    last = torch.stack([positions[-1:].sum() for positions in found])
    table = padded(found, -1)
    return torch.where(table < 0, last[:, None], table)


def some_at_once(n_documents: int, numbers: int, device: torch.device) -> list[slice]:
    """The documents of a batch in parts that are scored at once, where each has so many numbers."""
    step = max(1, numbers_at_once(device) // max(1, numbers))
    return [slice(start, start + step) for start in range(0, n_documents, step)]


@dataclass(frozen=True, eq=False)
class Side:
    """The positions of a batch that are looked at in one stack, padded, where the model is.

    Attributes:
        units: the words of every document.
        words: the positions of all words.
        real: which of these are some.
        sinks: which positions are sinks.
        columns: the positions of words and, behind them, of sinks, which are left out where rows are added up.
        real_sinks: which of the latter are some.
    """

    units: list[Units]
    words: Int64[Tensor, "batch row"]
    real: Bool[Tensor, "batch row"]
    sinks: Bool[Tensor, "batch position"]
    columns: Columns
    real_sinks: Bool[Tensor, "batch sink"]

    @property
    def has_sinks(self) -> bool:
        """Whether any document has one."""
        return self.columns.left_out is not None

    @classmethod
    def of(cls, units: list[Units], sinks: Bool[Tensor, "batch position"], device: torch.device) -> "Side":
        """That of the words of documents beside sinks."""
        words, of_sinks = padded_positions(units), padded([row.nonzero().flatten() for row in sinks], 0)
        n_words = torch.tensor([len(document.positions) for document in units])
        left_out = sinks.to(device) if bool(sinks.any()) else None
        return cls(
            units,
            words.to(device),
            (torch.arange(words.shape[1]) < n_words[:, None]).to(device),
            sinks.to(device),
            Columns(torch.cat([words, of_sinks], 1).to(device), left_out),
            (torch.arange(of_sinks.shape[1]) < sinks.sum(1)[:, None]).to(device),
        )


@dataclass(frozen=True, eq=False)
class Seen:
    """Which keys the rows of some documents may see: which columns of words, and how many keys and sinks in all."""

    visible: Bool[Tensor, "document row column"]
    n_keys: Float[Tensor, "document row"]
    n_sinks: Float[Tensor, "document row"]
    has_sinks: bool


@dataclass(frozen=True, eq=False)
class Block:
    """What is kept of one site for some documents until they are scored: rows and columns of words only.

    Attributes:
        patterns: attention to words.
        sink_mass: how much of every row goes to sinks.
        rest: how much of it goes to all other keys.
        seen: what the rows may see; the same object for sites that see the same.
        finite: which documents have neither NaN nor infinity in their rows.
        total: what the row that is furthest from it has in place of 1.
        tolerance: how far it may be from it.
    """

    patterns: Float[Tensor, "document head row column"]
    sink_mass: Float[Tensor, "document head row"]
    rest: Float[Tensor, "document head row"]
    seen: Seen
    finite: Bool[Tensor, " document"]
    total: Float[Tensor, "1"]
    tolerance: float


class PatternReader:
    """Scores of every head between the words of documents: attention relative to uniform attention."""

    def __init__(
        self,
        view: capture.View,
        topics: Topics,
        options: Patterns,
        *,
        level: Level = "token",
        include_self: bool = True,
    ) -> None:
        self.view, self.topics, self.options = view, topics, options
        self.level, self.include_self = level, include_self
        self.heads = Heads.of(view)
        self.cells = [np.array(self.heads.layer(site)) for site in range(len(view.sites))]
        self.n_cells = len(self.heads)
        self.index = self.heads.index(range(self.n_cells))  # of every cell

    def units(self, batch: TokenBatch) -> Sides:
        """The words of every document."""
        sides = {"source": units_of(batch, self.topics, level=self.level)}
        if self.view.host.has_decoder:
            sides["target"] = units_of(one_later(batch), self.topics, level=self.level)
        return sides

    def n_kept(self, units: Sides) -> int:
        """How many numbers are kept of a batch until its documents are scored."""
        return max(self.n_cells, _PLACES) * len(units["source"]) * width(units["source"]) ** 2

    def read(self, batch: TokenBatch, units: Sides, prepare: Prepare) -> Iterator[Part]:
        """Runs a batch through the model, and scores its documents.

        Raises:
            ValueError: for rows that do not sum to one.
        """
        return read_patterns([self], batch, [units], [prepare])

    def sides(self, batch: TokenBatch, units: Sides, device: torch.device) -> dict[str, Side]:
        """The positions of the words."""
        sides = {"source": Side.of(units["source"], batch.sinks, device)}
        if "target" in units:
            sides["target"] = Side.of(units["target"], one_later(batch).sinks, device)
        return sides

    def pairs(
        self, sides: Mapping[str, Side], parts: Sequence[slice], device: torch.device, prepare: Prepare
    ) -> dict[tuple[str, str], list[Pairs]]:
        """The pairs of words by their sides, of some documents after the other."""
        stacks = dict.fromkeys(SIDES[site.stack] for site in self.view.sites)
        return {
            names: [prepare(self._pairs(sides[names[0]], sides[names[1]], part), device) for part in parts]
            for names in stacks
        }

    def _pairs(self, query: Side, key: Side, part: slice) -> Pairs:
        own = query.units[part]
        other = own if query is key else key.units[part]
        shape = query.words.shape[1], key.words.shape[1]
        return Pairs.of(own, other, self.topics, shape=shape, include_self=self.include_self)

    def nothing(self, batch: TokenBatch, units: list[Units], prepare: Prepare) -> Part:
        """What all cells say of documents without a word of any topic."""
        device = next(self.view.model.parameters()).device
        pairs = prepare(Pairs.of(units, units, self.topics), device)
        n, heads = len(units), self.n_cells
        rows = torch.zeros(n, 1, device=device)
        mass = rows[:, None].expand(-1, heads, -1)
        none = Rows(mass[..., None], pairs.relations > 0, rows, rows, mass, mass)
        scores = BatchScores(
            batch.sources.numpy(), heads, np.arange(heads), none.patterns, none.visible, pairs, none
        )
        return Part([scores], {}, lambda _: (np.ones(n, dtype=bool), left_out_of(units)))

    def part(
        self,
        sources: Int64[Tensor, " document"],
        units: Sequence[Units],
        blocks: Sequence[Block],
        pairs: Mapping[tuple[str, str], Pairs],
    ) -> Part:
        """The scores of some documents with these words at all sites, those that see the same keys together."""
        measured = torch.stack([block.finite for block in blocks]).all(0)
        scores = []
        for sites in self._alike(blocks):
            names = SIDES[self.view.sites[sites[0]].stack]
            own, seen = pairs[names], blocks[sites[0]].seen
            # What is not finite is in documents that are left out, and in rows of padding.
            patterns, mass, rest = (
                torch.cat([getattr(blocks[site], name) for site in sites], 1).nan_to_num_(0, 0, 0)
                for name in ("patterns", "sink_mass", "rest")
            )
            # Rows of documents that are left out see nothing.
            n_keys, mass = seen.n_keys * measured[:, None], mass * measured[:, None, None]
            rows = Rows(patterns, seen.visible, n_keys, seen.n_sinks, mass, rest, seen.has_sinks)
            values, visible = rows.relative(own.pieces, n_keys)
            cells = np.concatenate([self.cells[site] for site in sites])
            usable = visible & measured[:, None, None]
            scores.append(BatchScores(sources.numpy(), self.n_cells, cells, values, usable, own, rows))
        seen_of = {"measured": measured, "totals": torch.cat([block.total for block in blocks])}
        return Part(scores, seen_of, partial(self._judge, units, [block.tolerance for block in blocks]))

    def _judge(
        self, units: Sequence[Units], tolerances: Sequence[float], seen: Mapping[str, np.ndarray]
    ) -> tuple[Bool[np.ndarray, " document"], Mapping[str, int]]:
        if self.options.check_rows:
            self._check_rows(seen["totals"], tolerances)
        return seen["measured"], left_out_of(units)

    def _check_rows(self, totals: Shaped[np.ndarray, " site"], tolerances: Sequence[float]) -> None:
        """ValueError for the first site with a row that does not sum to one."""
        for site, total, tolerance in zip(self.view.sites, totals, tolerances, strict=True):
            if abs(total - 1) > tolerance:
                digits = 10 if totals.dtype == np.float64 else 6  # as far as sums of this precision reach
                raise ValueError(
                    f"a row of attention at {site.hook_name} sums to {float(total):.{digits}g} instead of 1. "
                    "If hooks on the model edit its patterns, or its heads may attend to nothing, say check_rows=False"
                )

    def _alike(self, blocks: Sequence[Block]) -> list[list[int]]:
        """Sites of one stack that see the same keys."""
        groups: dict[tuple[str, int], list[int]] = {}
        for number, (site, block) in enumerate(zip(self.view.sites, blocks, strict=True)):
            groups.setdefault((site.stack, id(block.seen)), []).append(number)
        return list(groups.values())


class _Pass:
    """What one of several readers keeps of a pass that is read for all of them."""

    def __init__(
        self,
        reader: PatternReader,
        sides: dict[str, Side],
        every: Mapping[str, Int64[Tensor, "batch row"]],
        parts: Sequence[slice],
    ) -> None:
        """Of a reader with words on these sides, where rows at every one of some positions are read."""
        self.reader, self.sides, self.parts = reader, sides, parts
        self.blocks: dict[int, list[Block]] = {}
        self._known: dict[int, tuple[Tensor, Tensor, Seen]] = {}
        # Where the own rows and columns are among them; none where they are the same.
        self._rows, self._columns = dict[str, Tensor](), dict[str, Columns]()
        for name, side in sides.items():
            if side.words is not (of_all := every[name]):
                self._rows[name] = own = torch.searchsorted(of_all, side.words)
                sinks = torch.arange(side.real_sinks.shape[1], device=own.device) + of_all.shape[1]
                index = torch.cat([own, sinks.expand(len(own), -1)], 1)
                self._columns[name] = Columns(index, side.columns.left_out)

    def keep(self, number: int, cells: Cells, visible: Tensor) -> None:
        """Keeps what is needed of the cells of a site."""
        blocks = self.blocks.setdefault(number, [])
        names, part = SIDES[self.reader.view.sites[number].stack], self.parts[len(blocks)]
        query, key = (self.sides[name] for name in names)
        rows = self._rows.get(names[0])
        if rows is not None:
            cells = cells.take(rows[part], self._columns[names[1]], part)
        if id(visible) not in self._known:  # held, so that no other has its id
            own = visible if rows is None else take_rows(visible[:, None], rows[part])[:, 0]
            exact = torch.float64 if cells.patterns.dtype == torch.float64 else torch.float32
            self._known[id(visible)] = visible, own, _seen(own, key, part, exact)
        blocks.append(_block(cells, self._known[id(visible)][2], query, key, part))


def read_patterns(
    readers: Sequence[PatternReader],
    batch: TokenBatch,
    units: Sequence[Sides],
    prepare: Sequence[Prepare],
) -> Iterator[Part]:
    """Runs a batch through a model once, and scores its documents for every reader of it, one after the other.

    Readers look at words of different topics; what is read is the rows of all of them.
    """
    if not any(len(document) for sides in units for document in sides["source"]):
        for reader, sides, own in zip(readers, units, prepare, strict=True):
            yield reader.nothing(batch, sides["source"], own)
        return
    view = readers[0].view
    inputs = view.inputs(batch.ids, batch.mask)
    device = inputs.ids.device
    sides_of = [reader.sides(batch, own, device) for reader, own in zip(readers, units, strict=True)]
    every = {
        name: sides_of[0][name].words
        if len(readers) == 1
        else every_position([own[name] for own in units]).to(device)
        for name in sides_of[0]
    }
    columns = {
        name: Columns(
            torch.cat([every[name], side.columns.index[:, side.words.shape[1] :]], 1), side.columns.left_out
        )
        for name, side in sides_of[0].items()
    }
    n = max(words.shape[1] for words in every.values())
    # Of a document: the numbers in the rows of a site, or in all scores.
    numbers = max(max(view.n_heads) * n * batch.ids.shape[1], readers[0].n_cells * n * n)
    parts = some_at_once(len(batch), numbers, device)
    pairs = [
        reader.pairs(sides, parts, device, own)
        for reader, sides, own in zip(readers, sides_of, prepare, strict=True)
    ]
    passes = [_Pass(reader, sides, every, parts) for reader, sides in zip(readers, sides_of, strict=True)]

    def keep(number: int, cells: Cells, visible: Tensor) -> None:
        for each in passes:
            each.keep(number, cells, visible)

    view.attention_cells(inputs, every, columns, keep, at_once=parts[0].stop)
    for number, part in enumerate(parts):
        for reader, each, of_pairs in zip(readers, passes, pairs, strict=True):
            blocks = [each.blocks[site][number] for site in sorted(each.blocks)]
            own_pairs = {names: own[number] for names, own in of_pairs.items()}
            yield reader.part(batch.sources[part], each.sides["source"].units[part], blocks, own_pairs)


def left_out_of(units: Sequence[Units]) -> dict[str, int]:
    """What is left out of documents with these words, by reason."""
    total = Counter({NO_WORD: sum(not len(words) for words in units)})
    for words in units:
        total.update(words.left_out)
    return dict(total)


def _seen(visible: Bool[Tensor, "document row key"], key: Side, part: slice, number: torch.dtype) -> Seen:
    """What is known of the keys that rows may see, where the words are."""
    visible = visible.to(key.words.device)
    at = key.words[part][:, None, :].expand(-1, visible.shape[1], -1)
    sinks = visible & key.sinks[part][:, None, :]
    return Seen(visible.gather(2, at), visible.sum(2).to(number), sinks.sum(2).to(number), key.has_sinks)


def _block(cells: Cells, seen: Seen, query: Side, key: Side, part: slice) -> Block:
    """What is kept of cells. Layers may be on several devices; it is kept where the words are."""
    home, tolerance = key.words.device, _ROW_TOLERANCE.get(cells.patterns.dtype, 5e-2)
    total, rest = cells.total.to(home), cells.rest.to(home)
    chosen = cells.patterns.to(home, total.dtype)
    real, finite, n = query.real[part][:, None, :], torch.isfinite(total), key.words.shape[1]
    mass = (chosen[..., n:] * key.real_sinks[part][:, None, None, :]).sum(-1) * real
    total = torch.where(finite & real, total, 1).flatten()
    worst = (total - 1).abs().argmax(0, keepdim=True)
    finite = (finite | ~real).flatten(1).all(1)
    return Block(chosen[..., :n], mass, rest * real, seen, finite, total.gather(0, worst), tolerance)
