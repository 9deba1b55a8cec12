"""Reads the attention between the words of documents out of a model: batches in, scores of documents out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from topic_probe.contrast import NO_RELATION, word_relations
from topic_probe.lens import capture
from topic_probe.lens.sites import SIDES, Site
from topic_probe.measure.accumulators import Rows, Scores, Units, relative_to_uniform
from topic_probe.measure.engine import BROKEN, FIRST, NO_WORD, PIECES, DocumentScores
from topic_probe.measure.heads import Heads
from topic_probe.measure.options import Patterns
from topic_probe.text.batches import TokenBatch
from topic_probe.topics import Topics

Level = Literal["token", "word"]

# How far a row of attention may be from summing to one, by precision.
_ROW_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}

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


def padded_positions(
    units: Sequence[Units],
) -> tuple[Int64[Tensor, "batch piece"], Bool[Tensor, "batch piece"]]:
    """The positions of every document side by side, with what of it is real; never without a column."""
    positions = [document.positions for document in units]
    # One more document, of one position, so that there is a column.
    index = pad_sequence([*positions, torch.zeros(1, dtype=torch.int64)], batch_first=True)[:-1]
    lengths = torch.tensor([len(document) for document in positions])
    return index, torch.arange(index.shape[1]) < lengths[:, None]


@dataclass(frozen=True)
class Block:
    """What is kept of one site for one batch until its documents are scored: rows and columns of units only."""

    patterns: Float[Tensor, "batch head row column"]
    visible: Bool[Tensor, "batch row column"]
    n_visible: Float64[Tensor, "batch row"]
    n_visible_sinks: Float64[Tensor, "batch row"]
    sink_mass: Float64[Tensor, "batch head row"]
    broken: Bool[Tensor, " batch"]


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
        return self.n_cells * len(units["source"]) * max(len(d.positions) for d in units["source"]) ** 2

    def read(self, batch: TokenBatch, units: Sides) -> Iterator[DocumentScores]:
        """Runs a batch through the model; what comes back scores one document after the other.

        Raises:
            ValueError: for rows that do not sum to one.
        """
        if not any(len(document) for document in units["source"]):
            return self._documents(batch, units, [])
        padded = {side: padded_positions(documents) for side, documents in units.items()}
        inputs = self.view.inputs(batch.ids, batch.mask)
        sinks = {"source": batch.sinks.to(inputs.ids.device)}
        if "target" in units:
            sinks["target"] = one_later(batch).sinks.to(inputs.ids.device)
        blocks: dict[int, Block] = {}

        def keep(number: int, rows: Tensor, visible: Tensor) -> None:
            blocks[number] = self._block(self.view.sites[number], rows, visible, padded, sinks)

        positions = {side: index for side, (index, _) in padded.items()}
        self.view.attention_rows(inputs, positions, keep, through=self.options.through)
        return self._documents(batch, units, [blocks[number] for number in sorted(blocks)])

    def _block(
        self,
        site: Site,
        rows: Float[Tensor, "batch head row key"],
        visible: Bool[Tensor, "batch row key"],
        padded: Mapping[str, tuple[Int64[Tensor, "batch _"], Bool[Tensor, "batch _"]]],
        sinks_of: Mapping[str, Bool[Tensor, "batch _"]],
    ) -> Block:
        query, key = SIDES[site.stack]
        real, columns, sinks = padded[query][1].to(rows.device), padded[key][0].to(rows.device), sinks_of[key]
        tolerance = _ROW_TOLERANCE.get(rows.dtype, 5e-2)
        rows = rows if rows.dtype in (torch.float32, torch.float64) else rows.float()
        total = rows.sum(-1)
        finite = torch.isfinite(total) | ~real[:, None, :]
        off = ((total - 1).abs() > tolerance) & real[:, None, :] & torch.isfinite(total)
        if self.options.check_rows and bool(off.any()):
            digits = 10 if total.dtype == torch.float64 else 6  # as far as sums of this precision reach
            raise ValueError(
                f"a row of attention at {site.hook_name} sums to {float(total[off][0]):.{digits}g} instead of 1. "
                "If hooks on the model edit its patterns, or its heads may attend to nothing, say check_rows=False"
            )
        at = columns[:, None, None, :].expand(-1, rows.shape[1], rows.shape[2], -1)
        mass = rows.flatten(1, 2) @ sinks[:, :, None].to(rows.dtype)
        return Block(
            patterns=rows.gather(3, at).cpu(),
            visible=visible.gather(2, at[:, 0]).cpu(),
            n_visible=visible.sum(-1).to("cpu", torch.float64),
            n_visible_sinks=(visible & sinks[:, None, :]).sum(-1).to("cpu", torch.float64),
            sink_mass=mass.view(total.shape).to("cpu", torch.float64),
            broken=(~finite).any(-1).any(-1).cpu(),
        )

    def _documents(self, batch: TokenBatch, units: Sides, blocks: list[Block]) -> Iterator[DocumentScores]:
        alike = self._alike(blocks)
        broken = {row for block in blocks for row in block.broken.nonzero().flatten().tolist()}
        for row, source in enumerate(batch.sources.tolist()):
            words = units["source"][row]
            left_out = {**words.left_out, NO_WORD: int(not len(words)), BROKEN: int(row in broken)}
            if row in broken:
                yield DocumentScores((), left_out)
                continue
            scored = [self._scores(source, row, units, blocks, sites) for sites in alike if len(words)]
            scored = [scores for scores in scored if len(scores.query)]
            yield DocumentScores(scored or [Scores.of_nothing(source, self.n_cells)], left_out)

    def _scores(
        self, source: int, row: int, units: Sides, blocks: Sequence[Block], sites: Sequence[int]
    ) -> Scores:
        """The scores of one document at sites that are alike."""
        site, parts = self.view.sites[sites[0]], [blocks[number] for number in sites]
        query, key = (units[side][row] for side in SIDES[site.stack])
        n, m = len(query.positions), len(key.positions)
        rows = Rows(
            torch.cat([block.patterns[row, :, :n, :m] for block in parts]),
            parts[0].visible[row, :n, :m],
            parts[0].n_visible[row, :n],
            parts[0].n_visible_sinks[row, :n],
            torch.cat([block.sink_mass[row, :, :n] for block in parts]),
        )
        values, pairs = relative_to_uniform(rows.patterns, rows.visible, rows.n_visible, query, key)
        codes = word_relations(query.places, key.places, self.topics).long() * pairs
        if not self.include_self and site.stack != "cross":
            codes.fill_diagonal_(NO_RELATION)
        cells = np.concatenate([self.cells[number] for number in sites])
        return Scores(source, self.n_cells, cells, values, codes, query, key, rows)

    def _alike(self, blocks: Sequence[Block]) -> list[list[int]]:
        """Sites with the same pairs (one stack, the same mask), which are scored together."""
        groups: list[list[int]] = []
        for number, block in enumerate(blocks):
            for group in groups:
                first = group[0]
                same_stack = self.view.sites[first].stack == self.view.sites[number].stack
                same_keys = torch.equal(blocks[first].visible, block.visible)
                if same_stack and same_keys and torch.equal(blocks[first].n_visible, block.n_visible):
                    group.append(number)
                    break
            else:
                groups.append([number])
        return groups
