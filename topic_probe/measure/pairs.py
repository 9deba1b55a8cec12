"""Attention between words, added up by classes that pairs of words are in: by topic, co-occurrence, anything."""

import hashlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from topic_probe.contrast import SourceSums
from topic_probe.lens import capture
from topic_probe.measure.meter import BROKEN, Block, Meter, Null
from topic_probe.measure.positions import Units, between_units
from topic_probe.measure.processes import joined
from topic_probe.measure.stream import Reading, Saving, take_in
from topic_probe.measure.totals import Totals
from topic_probe.text.batches import TokenBatch
from topic_probe.topics import Topics

# Numbers that are kept by document for the intervals; beyond it documents share a row.
MAX_DOCUMENT_NUMBERS = 2**22


@dataclass(frozen=True, eq=False)
class ClassSums:
    """Sums of attention relative to uniform, and numbers of pairs of positions, by class of the pair of words.

    The last axis of all sums has three places, as `PairSums` wants it, the axis before it classes and distances:
    a pair whose code is ``3 c + r`` is at ``[…, c, d, r]``, d being its distance bin. Heads each count all their pairs.

    Attributes:
        by_document: sums and counts of documents (or blocks of them), all heads pooled:
            [document, class · distance, 3].
        heads: sums by head: [head, class, distance, 3].
        n_heads: the same of counts.
        table: sums by pair of words, both directions and all heads pooled, and counts; None if not asked for.
        index: stack, layer and head of every head.
        record: what was read and left out, and why it stopped early, if it did.
    """

    by_document: SourceSums
    heads: Float64[np.ndarray, "head class distance 3"]
    n_heads: Float64[np.ndarray, "head class distance 3"]
    table: tuple[Float64[np.ndarray, "word word"], Float64[np.ndarray, "word word"]] | None
    index: dict[str, tuple[Any, ...]]
    record: dict[str, Any]


def attention_by_class(
    model: Any,
    words: Topics,
    codes: Shaped[Tensor, "word word"],
    documents: Any,
    *,
    distances: tuple[int, ...] = (),
    table: bool = False,
    special_ids: Collection[int] | None = None,
    batch_size: int = 32,
    max_length: int | None = None,
    long: Literal["cut", "chunk"] = "cut",
    through: capture.Through = "auto",
    check_rows: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 300.0,
    distributed: bool = False,
    progress: bool = False,
) -> ClassSums:
    """Attention between words added up by classes of pairs, in one pass over the documents.

    Attention is relative to uniform attention, as in `measure_attention`, and so are documents, pieces of split words
    and special tokens treated. Memory is 16 · n² bytes for n words with ``table``, and otherwise that of the codes.

    Args:
        model: a hooked model.
        words: topics; what they are is not looked at, only which words have one.
        codes: for every pair of ``words.words``, in their order, ``3 · class + place``; −1 for pairs of no
            interest, a word with itself among them. Symmetric.
        documents: token ids in any shape that `topic_probe.text.batches.token_batches` takes.
        distances: sums are kept apart by the distance of positions: the first distance of every bin but the first.
        table: whether to add up every pair of words by itself as well.
        special_ids: ids of special tokens; by default what the model's tokenizer or configuration names.
        batch_size: documents in one forward pass.
        max_length: documents are cut at so many tokens, by default at what the model can take.
        long: "cut" drops the rest of longer documents, "chunk" makes documents of it.
        through: how attention is read, see `topic_probe.lens.capture.View.attention_rows`.
        check_rows: whether rows that do not sum to one are an error.
        checkpoint: a folder in which sums are saved on the way, as in `measure_attention`.
        checkpoint_every: seconds between two saves.
        distributed: whether this is one of several processes that share out the documents.
        progress: whether to show a progress bar.
    """
    with joined(distributed) as processes:
        specials = capture.special_ids(model) if special_ids is None else set(special_ids)
        reading = Reading(batch_size, max_length, specials, long)
        meter = _PairMeter(
            capture.view(model),
            words,
            codes,
            distances=distances,
            table=table,
            through=through,
            check_rows=check_rows,
        )
        of_sums = {
            "measurement": "pairs", "through": through, "distances": list(distances), "table": table,
            "codes": hashlib.sha256(codes.numpy().tobytes()).hexdigest(), "limit": meter.totals.by_document.limit,
        }  # fmt: skip
        told = take_in(
            meter,
            model,
            words,
            documents,
            reading,
            options=of_sums,
            saving=Saving(checkpoint, checkpoint_every),
            processes=processes,
            progress=progress,
        )
        meter.check_broken()
    read = meter.totals.intake.summary()
    read["left_out"] |= {reason: n for reason, n in sorted(meter.totals.left_out.items()) if n}
    read |= {"documents_measured": meter.totals.measured, "stopped": told.stopped, "corpus": told.corpus}
    return meter.found(read | {"max_length": reading.longest(model), "processes": processes.size})


class _PairMeter(Meter):
    """Runs batches through a model as for `measure_attention`, and adds up by classes of pairs."""

    def __init__(
        self,
        view: capture.View,
        words: Topics,
        codes: Shaped[Tensor, "word word"],
        *,
        distances: tuple[int, ...],
        table: bool,
        through: capture.Through,
        check_rows: bool,
    ) -> None:
        super().__init__(
            view,
            words,
            Null(words, 0, 0),
            level="token",
            include_self=False,
            through=through,
            check_rows=check_rows,
        )
        self.codes, self.distances = codes, torch.tensor(distances)
        self.n_distances, self.n_classes = len(distances) + 1, int(codes.max()) // 3 + 1
        self.n_cells = self.n_classes * self.n_distances
        limit = int(np.clip(MAX_DOCUMENT_NUMBERS // (3 * self.n_cells), 256, 4096))
        self.by_head, self.n_by_head = (np.zeros((self.total_heads, 3 * self.n_cells)) for _ in range(2))
        shape = tuple(codes.shape) if table else (0, 0)
        self.table, self.n_table = (np.zeros(shape) for _ in range(2))
        sums = {"by_head": self.by_head, "n_by_head": self.n_by_head}
        self.totals = Totals(SourceSums(limit), sums | {"table": self.table, "n_table": self.n_table})

    def _score(self, batch: TokenBatch, units: Any, blocks: list[Block]) -> None:
        broken = torch.stack([block.broken for block in blocks]).any(0)
        self.totals.left_out[BROKEN] += int(broken.sum())
        kept = (~broken).nonzero().flatten().tolist()
        sums, counts = (np.zeros((len(kept), 3 * self.n_cells)) for _ in range(2))
        for numbers in self._alike(blocks):
            site, parts = self.view.sites[numbers[0]], [blocks[number] for number in numbers]
            heads = np.concatenate([np.arange(self.total_heads)[self.heads[number]] for number in numbers])
            for place, row in enumerate(kept):
                asking, asked = units[capture.query_side(site)][row], units[capture.key_side(site)][row]
                cells, found, n = self._add_document(parts, row, asking, asked)
                self.by_head[np.ix_(heads, cells)] += found.T
                self.n_by_head[np.ix_(heads, cells)] += n
                sums[place, cells] += found.sum(1)
                counts[place, cells] += n * len(heads)
        shape = (len(kept), self.n_cells, 3)
        self.totals.by_document.add(batch.keys[kept].numpy(), sums.reshape(shape), counts.reshape(shape))
        self.totals.measured += len(kept)

    def _add_document(
        self, blocks: list[Block], row: int, asking: Units, asked: Units
    ) -> tuple[Int64[np.ndarray, " cell"], Float64[np.ndarray, "cell head"], Float64[np.ndarray, " cell"]]:
        """The cells that one document has pairs in, with its sums by head and its counts."""
        n, m = len(asking), len(asked)
        raw = torch.cat([block.scores[row, :, :n, :m] for block in blocks])
        scores, pairs = between_units(
            raw, blocks[0].visible[row, :n, :m], blocks[0].n_visible[row, :n], asking, asked
        )
        rows, columns = (torch.searchsorted(self.topics.words, side.entries) for side in (asking, asked))
        codes = self.codes[rows][:, columns].long()
        first, second = ((codes >= 0) & pairs).nonzero(as_tuple=True)
        values, codes = scores[:, first, second].T.double(), codes[first, second]
        distance = torch.bucketize(
            (asking.first[first] - asked.first[second]).abs(), self.distances, right=True
        )
        if self.table.size:
            self._add_to_table(rows[first], columns[second], values)
        cells, place = torch.unique(
            (codes // 3 * self.n_distances + distance) * 3 + codes % 3, return_inverse=True
        )
        sums = torch.zeros(len(cells), values.shape[1], dtype=torch.float64).index_add_(0, place, values)
        return cells.numpy(), sums.numpy(), place.bincount(minlength=len(cells)).double().numpy()

    def _add_to_table(
        self,
        rows: Int64[Tensor, " pair"],
        columns: Int64[Tensor, " pair"],
        values: Float[Tensor, "pair head"],
    ) -> None:
        place = (rows * len(self.table) + columns).numpy()
        np.add.at(self.table.reshape(-1), place, values.sum(1).numpy())
        np.add.at(self.n_table.reshape(-1), place, float(values.shape[1]))

    def found(self, record: dict[str, Any]) -> ClassSums:
        """What has been added up."""
        shape = (self.total_heads, self.n_classes, self.n_distances, 3)
        sites = [site for site, n in zip(self.view.sites, self.view.n_heads, strict=True) for _ in range(n)]
        index = {
            "stack": tuple(site.stack for site in sites),
            "layer": tuple(site.layer for site in sites),
            "head": tuple(head for n in self.view.n_heads for head in range(n)),
        }
        table = None
        if self.table.size:
            table = self.table + self.table.T, self.n_table + self.n_table.T
        return ClassSums(
            self.totals.by_document,
            self.by_head.reshape(shape),
            self.n_by_head.reshape(shape),
            table,
            index,
            record,
        )


def pair_codes(
    classes: Int64[Tensor, "word word"], same: Bool[Tensor, "word word"], different: Bool[Tensor, "word word"]
) -> Shaped[Tensor, "word word"]:
    """Codes for `attention_by_class`: pairs of the same topic in place 1 of their class, of different topics in 2."""
    codes = torch.full(classes.shape, -1, dtype=torch.int32)
    for place, chosen in ((1, same), (2, different)):
        codes[chosen] = (3 * classes[chosen] + place).int()
    return codes.fill_diagonal_(-1)
