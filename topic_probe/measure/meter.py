"""Adds up what the attention of a model says, batch by batch: the part that every measurement of attention shares."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from topic_probe.contrast import (
    NO_RELATION,
    SAME_WORD,
    SourceSums,
    relations,
)
from topic_probe.lens import capture
from topic_probe.lens.sites import Site
from topic_probe.measure.positions import Level, Units, between_units, labelled_units, padded_positions
from topic_probe.measure.stream import run
from topic_probe.measure.totals import Totals
from topic_probe.text.batches import TokenBatch
from topic_probe.text.documents import Document
from topic_probe.topics import Topics

# Pairs are compared within these distances |i − j|: each number is the first distance of the next bin.
DISTANCE_BINS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)

# Blocks of the patterns of one batch are kept until its documents are scored; more than this and a batch is split.
MAX_BLOCK_NUMBERS = 2**26

# Heads × documents whose sums are kept apart for the intervals (48 bytes each); beyond it documents share a row.
MAX_DOCUMENT_SUMS = 2**22

# A model is not measured where more of the documents than this have NaN or infinity in their attention.
MAX_BROKEN_SHARE = 0.01

# How far a row of attention may be from summing to one, by precision.
_ROW_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}

NO_WORD = "documents without a word of any topic"
BROKEN = "documents with NaN or infinity in their attention"


class Null:
    """Permuted topic labels: for every permutation and labelled word, a group of words with the same topics."""

    def __init__(self, topics: Topics, n_permutations: int, seed: int) -> None:
        generator = np.random.default_rng(seed)
        groups = topics.group_of_word.numpy().astype(np.int32)[:, None]
        permuted = generator.permuted(np.tile(groups, (1, n_permutations)), axis=0)
        self.groups = torch.from_numpy(permuted)  # [word, permutation]
        self.words = topics.words
        self.shared = topics.shared
        self.disjoint = bool((topics.shared == torch.eye(len(topics.shared), dtype=torch.bool)).all())

    def __len__(self) -> int:
        return self.groups.shape[1]

    def same_topic(
        self, first: Int64[Tensor, " pair"], second: Int64[Tensor, " pair"], part: slice
    ) -> Bool[Tensor, "pair permutation"]:
        """Which pairs of entries share a topic under some of the permutations."""
        one = self.groups[torch.searchsorted(self.words, first), part]
        other = self.groups[torch.searchsorted(self.words, second), part]
        return one == other if self.disjoint else self.shared[one.long(), other.long()]


@dataclass
class Sums:
    """Everything that is kept of the documents so far; parts add up."""

    binned: Float64[np.ndarray, "head bin 3"]
    n_binned: Float64[np.ndarray, "head bin 3"]
    without_sinks: Float64[np.ndarray, "head 3"]
    n_without_sinks: Float64[np.ndarray, "head 3"]
    sink_mass: Float64[np.ndarray, " head"]
    n_rows: Float64[np.ndarray, " head"]
    null: Float64[np.ndarray, "head permutation"]
    n_null: Float64[np.ndarray, "head permutation"]

    @classmethod
    def zeros(cls, n_heads: int, n_permutations: int) -> "Sums":
        """No documents yet."""
        bins = (n_heads, len(DISTANCE_BINS) + 1, 3)
        shapes = (bins, bins, (n_heads, 3), (n_heads, 3), (n_heads,), (n_heads,))
        null = (n_heads, n_permutations)
        return cls(*(np.zeros(shape) for shape in (*shapes, null, null)))


@dataclass(frozen=True)
class Block:
    """What is kept of one site for one batch until its documents are scored: rows and columns of units only."""

    scores: Float[Tensor, "batch head row column"]
    visible: Bool[Tensor, "batch row column"]
    n_visible: Float[Tensor, "batch row"]
    n_visible_sinks: Float[Tensor, "batch row"]
    sink_mass: Float[Tensor, "batch head row"]
    broken: Bool[Tensor, " batch"]


class Meter:
    """Runs batches through a model and adds up what their attention says."""

    def __init__(
        self,
        view: capture.View,
        topics: Topics,
        null: Null,
        *,
        level: Level,
        include_self: bool,
        through: capture.Through,
        check_rows: bool,
    ) -> None:
        self.view, self.topics, self.null = view, topics, null
        self.level, self.include_self, self.through, self.check_rows = (
            level,
            include_self,
            through,
            check_rows,
        )
        starts = np.cumsum([0, *view.n_heads])
        self.heads = [slice(int(a), int(b)) for a, b in pairwise(starts)]
        self.total_heads = int(starts[-1])
        self.sums = Sums.zeros(self.total_heads, len(null))
        limit = int(np.clip(MAX_DOCUMENT_SUMS // self.total_heads, 256, 4096))
        self.totals = Totals(SourceSums(limit), vars(self.sums))

    @property
    def left_out(self) -> Counter[str]:
        """What was left out of measuring, by reason."""
        return self.totals.left_out

    @property
    def measured(self) -> int:
        """Documents that were measured."""
        return self.totals.measured

    @measured.setter
    def measured(self, number: int) -> None:
        self.totals.measured = number

    def run(self, batches: Iterator[TokenBatch], *, progress: bool) -> str | None:
        """Takes in all batches; says why it stopped early, if it did."""
        stopped, _ = run(self, batches, progress=progress)
        self.check_broken()
        return stopped

    def check_broken(self) -> None:
        """ValueError where so many documents have NaN that the model must be at fault."""
        broken = self.left_out[BROKEN]
        seen = self.measured + broken
        if broken > MAX_BROKEN_SHARE * seen:
            raise ValueError(
                f"{broken} of {seen} documents have NaN or infinity in their attention; this is usually overflow in "
                "half precision: load the model in float32"
            )

    def has_topics(self, document: Document) -> bool:
        """Whether a document may have a word of a topic; others need no forward pass, but are counted."""
        found = bool(self.topics.compounds) or bool((self.topics.labels(document.ids) >= 0).any())
        self.totals.intake.left_out[NO_WORD] += not found
        return found

    def add(self, batch: TokenBatch) -> None:
        """Takes in a batch, in parts where memory or the host want it so."""
        if self.level == "word" and bool(batch.without_words.any()):
            raise ValueError(
                "level='word' needs documents that say which tokens form a word: make them with "
                "topic_probe.encode_texts(texts, tokenizer) and a fast tokenizer"
            )
        lengths = batch.mask.sum(1)
        mixed = not self.view.honours_padding and bool((lengths != lengths[0]).any())
        units = self._units(batch)
        largest = max(len(one.positions) for one in units["source"])
        too_much = self.total_heads * len(batch) * largest**2 > MAX_BLOCK_NUMBERS
        if len(batch) > 1 and (mixed or too_much):
            self._add_halves(batch)
            return
        if largest == 0:
            self._count(units)
            self._add_documents(batch.keys, *np.zeros((2, len(batch), self.total_heads, 3)))
            return
        try:
            blocks = self._read(batch, units)
        except RuntimeError as error:
            if len(batch) == 1 or "memory" not in str(error):
                raise
            self._add_halves(batch)
            return
        self._count(units)
        self._score(batch, units, blocks)

    def _add_halves(self, batch: TokenBatch) -> None:
        for half in batch.halves():
            self.add(half)

    def _count(self, units: Mapping[str, list[Units]]) -> None:
        for one in units["source"]:
            self.left_out[NO_WORD] += not len(one)
            self.left_out["pieces of split words"] += one.n_pieces_left_out

    def _units(self, batch: TokenBatch) -> dict[str, list[Units]]:
        """The units of every document, on the source side and in the decoder, which reads one position later."""
        sides = {"source": (batch.ids, batch.special, batch.word_index)}
        if self.view.has_decoder:
            start = torch.full_like(batch.ids[:, :1], -1)  # an id without a topic
            later = torch.cat([start, batch.ids[:, :-1]], 1)
            special = torch.cat([start >= 0, batch.special[:, :-1]], 1)
            words = None if batch.word_index is None else torch.cat([start, batch.word_index[:, :-1]], 1)
            sides["target"] = (later, special, words)
        lengths = batch.mask.sum(1).tolist()
        return {
            side: [
                labelled_units(
                    ids[row, :length],
                    special[row, :length],
                    None if words is None else words[row, :length],
                    self.topics,
                    level=self.level,
                )
                for row, length in enumerate(lengths)
            ]
            for side, (ids, special, words) in sides.items()
        }

    def _read(self, batch: TokenBatch, units: Mapping[str, list[Units]]) -> list[Block]:
        """The rows and columns of units of every site's pattern."""
        inputs = self.view.inputs(batch.ids, batch.mask)
        padded = {side: padded_positions(found) for side, found in units.items()}
        specials = {"source": batch.special.to(self.view.device)}
        if "target" in units:
            specials["target"] = torch.nn.functional.pad(specials["source"][:, :-1], (1, 0), value=True)
        blocks: dict[int, Block] = {}

        def take(number: int, rows: Tensor, visible: Tensor) -> None:
            site = self.view.sites[number]
            real = padded[capture.query_side(site)][1].to(rows.device)
            columns = padded[capture.key_side(site)][0].to(rows.device)
            blocks[number] = self._block(rows, visible, real, columns, specials[capture.key_side(site)], site)

        index = {side: positions for side, (positions, _) in padded.items()}
        self.view.attention_rows(inputs, index, take, through=self.through)
        return [blocks[number] for number in range(len(self.view.sites))]

    def _block(
        self,
        rows: Float[Tensor, "batch head row key"],
        visible: Bool[Tensor, "batch row key"],
        real: Bool[Tensor, "batch row"],
        columns: Int64[Tensor, "batch column"],
        special: Bool[Tensor, "batch key"],
        site: Site,
    ) -> Block:
        tolerance = _ROW_TOLERANCE.get(rows.dtype, 5e-2)
        rows = rows if rows.dtype in (torch.float32, torch.float64) else rows.float()
        total = rows.sum(-1)
        finite = torch.isfinite(total) | ~real[:, None, :]
        off = ((total - 1).abs() > tolerance) & real[:, None, :] & torch.isfinite(total)
        if self.check_rows and bool(off.any()):
            raise ValueError(
                f"a row of attention at {site.hook_name} sums to {float(total[off][0]):.4g} instead of 1. If hooks on "
                "the model edit its patterns, or its heads may attend to nothing, say check_rows=False"
            )
        at = columns[:, None, None, :].expand(-1, rows.shape[1], rows.shape[2], -1)
        return Block(
            scores=rows.gather(3, at).cpu(),
            visible=visible.gather(2, at[:, 0]).cpu(),
            n_visible=visible.sum(-1).to("cpu", torch.float64),
            n_visible_sinks=(visible & special[:, None, :]).sum(-1).to("cpu", torch.float64),
            sink_mass=(rows.flatten(1, 2) @ special[:, :, None].to(rows.dtype))
            .view(total.shape)
            .to("cpu", torch.float64),
            broken=(~finite).any(-1).any(-1).cpu(),
        )

    def _score(self, batch: TokenBatch, units: Mapping[str, list[Units]], blocks: list[Block]) -> None:
        broken = torch.stack([block.broken for block in blocks]).any(0)
        self.left_out[BROKEN] += int(broken.sum())
        groups = self._alike(blocks)
        kept = (~broken).nonzero().flatten().tolist()
        sums, counts = (np.zeros((len(kept), self.total_heads, 3)) for _ in range(2))
        for place, row in enumerate(kept):
            for numbers in groups:
                site = self.view.sites[numbers[0]]
                asking = units[capture.query_side(site)][row]
                asked = units[capture.key_side(site)][row]
                if len(asking) and len(asked):
                    heads = np.concatenate(
                        [np.arange(self.total_heads)[self.heads[number]] for number in numbers]
                    )
                    parts = [blocks[number] for number in numbers]
                    found = self._score_document(
                        parts, row, asking, asked, heads, cross=site.stack == "cross"
                    )
                    sums[place, heads], counts[place, heads] = found
        self._add_documents(batch.keys[kept], sums, counts)

    def _add_documents(
        self,
        keys: Int64[Tensor, " document"],
        sums: Float64[np.ndarray, "document head 3"],
        counts: Float64[np.ndarray, "document head 3"],
    ) -> None:
        self.totals.by_document.add(keys.numpy(), sums, counts)
        self.measured += len(keys)

    def _alike(self, blocks: list[Block]) -> list[list[int]]:
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

    def _score_document(
        self,
        blocks: list[Block],
        row: int,
        asking: Units,
        asked: Units,
        heads: Int64[np.ndarray, " head"],
        *,
        cross: bool,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Adds one document's attention at sites that are alike; its sums and counts by head and relation."""
        n, m = len(asking.positions), len(asked.positions)
        one = blocks[0]
        raw = torch.cat([block.scores[row, :, :n, :m] for block in blocks])
        mass = torch.cat([block.sink_mass[row, :, :n] for block in blocks])
        visible, n_visible = one.visible[row, :n, :m], one.n_visible[row, :n]
        scores, pairs = between_units(raw, visible, n_visible, asking, asked)
        codes = relations(asking.entries, asked.entries, self.topics).long() * pairs
        if not self.include_self and not cross:
            codes.fill_diagonal_(NO_RELATION)
        by_row = _by_relation(scores, codes)
        self.sums.sink_mass[heads] += mass.sum(1).numpy()
        self.sums.n_rows[heads] += n
        self._add_without_sinks(
            by_row, raw, mass, visible, n_visible - one.n_visible_sinks[row, :n], codes, asking, asked, heads
        )
        self._add_pairs(scores, codes, asking, asked, heads)
        counts = torch.bincount(codes.flatten(), minlength=4)[1:].double().numpy()
        return by_row.sum(0).T.numpy(), np.broadcast_to(counts, (len(heads), 3))

    def _add_without_sinks(
        self,
        by_row: Float64[Tensor, "unit 3 head"],
        raw: Float[Tensor, "head piece other"],
        mass: Float[Tensor, "head piece"],
        visible: Bool[Tensor, "piece other"],
        n_visible: Float[Tensor, " piece"],
        codes: Int64[Tensor, "unit other_unit"],
        asking: Units,
        asked: Units,
        heads: Int64[np.ndarray, " head"],
    ) -> None:
        """The same sums after renormalising every row over what is no sink; rows with nothing left drop out."""
        rest = 1 - mass
        left = rest > 1e-6
        renormalised = torch.where(left, 1 / rest.clamp(min=1e-6), 0)
        if bool((mass > 0).any()):
            changed = (raw * renormalised[:, :, None]).to(raw.dtype)
            by_row = _by_relation(between_units(changed, visible, n_visible, asking, asked)[0], codes)
        first_piece = torch.searchsorted(asking.unit_of, torch.arange(len(asking)))
        rows_left = left[:, first_piece].double()
        counts = torch.nn.functional.one_hot(codes, 4)[:, :, 1:].sum(1).double()
        self.sums.without_sinks[heads] += torch.einsum("urh,hu->hr", by_row, rows_left).numpy()
        self.sums.n_without_sinks[heads] += (rows_left @ counts).numpy()

    def _add_pairs(
        self,
        scores: Float[Tensor, "head unit other"],
        codes: Int64[Tensor, "unit other"],
        asking: Units,
        asked: Units,
        heads: Int64[np.ndarray, " head"],
    ) -> None:
        """The sums by distance, and what the same-topic sums would be had other words formed the topics."""
        by_pair = scores.permute(1, 2, 0).flatten(0, 1)  # [unit · other, head]
        n_pairs = (codes != NO_RELATION).flatten().to(by_pair.dtype)
        by_pair = by_pair * n_pairs[:, None]
        if asking is asked:
            # A pair and its reverse share distance and topics, so both directions are one row.
            first, second = torch.triu_indices(len(asking), len(asking))
            there, back = first * len(asking) + second, second * len(asking) + first
            twice = (first != second).to(by_pair.dtype)
            by_pair = by_pair[there].addcmul_(by_pair[back], twice[:, None])
            n_pairs = n_pairs[there] + n_pairs[back] * twice
            codes = torch.maximum(codes.flatten()[there], codes.flatten()[back])
        else:
            first, second = torch.cartesian_prod(
                torch.arange(len(asking)), torch.arange(len(asked))
            ).T.contiguous()
            codes = codes.flatten()
        distance = (asking.first[first] - asked.first[second]).abs()
        related = codes != NO_RELATION
        cells = (torch.bucketize(distance, torch.tensor(DISTANCE_BINS), right=True) * 3 + codes - 1)[related]
        binned = torch.zeros(3 * (len(DISTANCE_BINS) + 1), len(scores), dtype=torch.float64)
        binned.index_add_(0, cells, by_pair[related].double())
        n_binned = torch.bincount(cells, n_pairs[related].double(), minlength=len(binned))
        self.sums.binned[heads] += binned.T.reshape(len(scores), -1, 3).numpy()
        self.sums.n_binned[heads] += n_binned.reshape(-1, 3).numpy()
        between = codes > SAME_WORD
        if len(self.null) and bool(between.any()):
            table = torch.cat([by_pair, n_pairs[:, None]], 1)[between].float()  # precise enough for a null
            self._add_null(table, asking.entries[first[between]], asked.entries[second[between]], heads)

    def _add_null(
        self,
        table: Float[Tensor, "pair column"],
        first: Int64[Tensor, " pair"],
        second: Int64[Tensor, " pair"],
        heads: Int64[np.ndarray, " head"],
    ) -> None:
        """Adds, for every permutation, the sums of the pairs that would share a topic; the last column counts them."""
        step = max(1, 2**24 // len(table))
        for start in range(0, len(self.null), step):
            part = slice(start, min(start + step, len(self.null)))
            same = self.null.same_topic(first, second, part)
            found = (table.T @ same.float()).double().numpy()
            place = np.ix_(heads, np.arange(part.start, part.stop))
            self.sums.null[place] += found[:-1]
            self.sums.n_null[place] += found[-1]


def _by_relation(
    scores: Float[Tensor, "head unit other"], codes: Int64[Tensor, "unit other"]
) -> Float64[Tensor, "unit 3 head"]:
    """Every row's sums of scores by relation."""
    chosen = torch.nn.functional.one_hot(codes, 4)[:, :, 1:].transpose(1, 2).to(scores.dtype)
    return torch.bmm(chosen, scores.permute(1, 2, 0)).double()
