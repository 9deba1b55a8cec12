"""Attention between words, added up by classes that pairs of words are in: by topic, co-occurrence, anything."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64, Shaped
from torch import Tensor

from topic_probe.contrast import NO_RELATION, SourceSums
from topic_probe.lens import capture
from topic_probe.measure.accumulators import Accumulator, Scores, Sum
from topic_probe.measure.engine import Engine, source_limit
from topic_probe.measure.options import Patterns, Reading, Run
from topic_probe.measure.patterns import PatternReader
from topic_probe.measure.processes import joined
from topic_probe.options import shares
from topic_probe.topics import Topics


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


@shares(reading=Reading, patterns=Patterns, run=Run)
def attention_by_class(
    model: Any,
    words: Topics,
    codes: Shaped[Tensor, "word word"],
    documents: Any,
    *,
    distances: tuple[int, ...] = (),
    table: bool = False,
    reading: Reading,
    patterns: Patterns,
    run: Run,
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
    """
    with joined(run.distributed) as processes:
        reading = reading.of(model)
        reader = PatternReader(capture.view(model), words, patterns, include_self=False)
        by_class = Classes(words, codes, distances, reader.n_cells)
        by_pair = PairTable(words, codes) if table else None
        accumulators: list[Accumulator] = [by_class] if by_pair is None else [by_class, by_pair]
        facts = {
            "measurement": "pairs", "through": patterns.through, "distances": list(distances), "table": table,
            "codes": hashlib.sha256(codes.numpy().tobytes()).hexdigest(), "limit": by_class.by_source.limit,
        }  # fmt: skip
        progress = Engine(reader, accumulators).run(
            documents, reading=reading, run=run, processes=processes, facts=facts
        )
    shape = (reader.n_cells, -1, len(distances) + 1, 3)
    return ClassSums(
        by_class.by_source,
        by_class.by_head.reshape(shape),
        by_class.n_by_head.reshape(shape),
        None if by_pair is None else (by_pair.both("table"), by_pair.both("n_table")),
        reader.index,
        progress.record() | {"max_length": reading.max_length, "processes": processes.size},
    )


class Classes:
    """Sums by class of the pair of words and distance: of every head, and of all heads by source."""

    def __init__(
        self, words: Topics, codes: Shaped[Tensor, "word word"], distances: tuple[int, ...], n_heads: int
    ) -> None:
        self.words, self.codes, self.edges = words.words, codes, torch.tensor(distances)
        self.n_places = 3 * (len(distances) + 1) * (int(codes.max()) // 3 + 1)
        shape = (n_heads, self.n_places)
        self.by_source = SourceSums(source_limit(self.n_places))
        self.by_head, self.n_by_head = np.zeros(shape), np.zeros(shape)
        self.sums: dict[str, Sum] = {"by_head": self.by_head, "n_by_head": self.n_by_head}
        self.sums["by_source"] = self.by_source

    def add(self, scores: Scores) -> None:
        """Adds the pairs of a document to their classes."""
        codes, first, second, values = coded_pairs(scores, self.words, self.codes)
        distance = (scores.query.first[first] - scores.key.first[second]).abs()
        bins = codes // 3 * (len(self.edges) + 1) + torch.bucketize(distance, self.edges, right=True)
        held, place = torch.unique(bins * 3 + codes % 3, return_inverse=True)
        sums = torch.zeros(len(held), len(scores.cells), dtype=torch.float64).index_add_(0, place, values)
        n = place.bincount(minlength=len(held)).double()
        at = np.ix_(scores.cells, held.numpy())
        self.by_head[at] += sums.T.numpy()
        self.n_by_head[at] += n.numpy()
        pooled = torch.zeros(2, self.n_places, dtype=torch.float64)
        pooled[:, held] = torch.stack([sums.sum(1), n * len(scores.cells)])
        self.by_source.add(np.array([scores.source]), *pooled.view(2, 1, -1, 3).numpy())


class PairTable:
    """Sums of every pair of words, all heads pooled."""

    def __init__(self, words: Topics, codes: Shaped[Tensor, "word word"]) -> None:
        self.words, self.codes = words.words, codes
        self.sums = {"table": np.zeros(codes.shape), "n_table": np.zeros(codes.shape)}

    def add(self, scores: Scores) -> None:
        """Adds the pairs of a document."""
        _, first, second, values = coded_pairs(scores, self.words, self.codes)
        row, column = (
            torch.searchsorted(self.words, side.entries[number]).numpy()
            for side, number in ((scores.query, first), (scores.key, second))
        )
        np.add.at(self.sums["table"], (row, column), values.sum(1).numpy())
        np.add.at(self.sums["n_table"], (row, column), float(len(scores.cells)))

    def both(self, name: str) -> Float64[np.ndarray, "word word"]:
        """One of the sums over both directions."""
        return np.asarray(self.sums[name] + self.sums[name].T)


def coded_pairs(
    scores: Scores, words: Int64[Tensor, " entry"], codes: Shaped[Tensor, "word word"]
) -> tuple[
    Int64[Tensor, " pair"], Int64[Tensor, " pair"], Int64[Tensor, " pair"], Float64[Tensor, "pair cell"]
]:
    """The pairs of a document that have a code: it, their query and key, and their scores."""
    rows, columns = (torch.searchsorted(words, side.entries) for side in (scores.query, scores.key))
    by_pair = codes[rows][:, columns].long()
    first, second = ((by_pair >= 0) & (scores.relations != NO_RELATION)).nonzero(as_tuple=True)
    return by_pair[first, second], first, second, scores.values[:, first, second].T.double()


def pair_codes(
    classes: Int64[Tensor, "word word"], same: Bool[Tensor, "word word"], different: Bool[Tensor, "word word"]
) -> Shaped[Tensor, "word word"]:
    """Codes for `attention_by_class`: pairs of the same topic in place 1 of their class, of different topics in 2."""
    codes = torch.full(classes.shape, -1, dtype=torch.int32)
    for place, chosen in ((1, same), (2, different)):
        codes[chosen] = (3 * classes[chosen] + place).int()
    return codes.fill_diagonal_(-1)
