"""What is compared with what: words, the bins that pairs of them are in, and means of pairs that share a bin."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations_with_replacement, pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from topic_probe.contrast import NO_RELATION, Contrast, matched_means
from topic_probe.estimate import divide
from topic_probe.lens import capture
from topic_probe.measure.accumulators import BatchSums
from topic_probe.measure.engine import Engine, about_documents, source_limit
from topic_probe.measure.options import Patterns, Reading, Run, Shown
from topic_probe.measure.patterns import PatternReader
from topic_probe.measure.scores import BatchScores, Pairs, padded, wide
from topic_probe.measure.sums import Sum
from topic_probe.measure.words import EmbeddingWords, labelled_words
from topic_probe.options import shares
from topic_probe.sums import SourceSums, joined
from topic_probe.text.cooccurrence import Cooccurrence
from topic_probe.topics import Topics

# What pairs have to have in common to be compared, as axes of the sums [co-occurrence, frequency, distance].
MATCHED_ON: dict[str, tuple[int, ...]] = {
    "nothing": (),
    "frequency": (1,),
    "co-occurrence": (0,),
    "co-occurrence and frequency": (0, 1),
}
WITH_DISTANCE = "co-occurrence, frequency and distance"

NOT_MATCHED = "no bin holds pairs of the same topic and of different topics"


@dataclass(frozen=True)
class MatchedWords(EmbeddingWords):
    """The words that are compared, in the order of their ids, with the documents that they are in."""

    frequency: Int64[Tensor, " word"]
    counts: Cooccurrence

    @classmethod
    def of(
        cls,
        model: Any,
        topics: Topics,
        cooccurrence: Cooccurrence,
        *,
        min_documents: int,
        center: bool,
        exclude: Iterable[int],
    ) -> "MatchedWords":
        """The words with a topic, a row in the embedding table and enough documents."""
        if cooccurrence.vocabulary_size != topics.vocabulary_size:
            raise ValueError(
                f"co-occurrence was counted over a vocabulary of {cooccurrence.vocabulary_size} ids, the topics have "
                f"{topics.vocabulary_size}: count it with count_cooccurrence(documents, topics)"
            )
        words = labelled_words(capture.word_embeddings(model), topics, center=center, exclude=exclude)
        counted = cooccurrence.rows_of(words.ids)
        frequency = torch.where(counted >= 0, cooccurrence.document_frequency[counted], 0)
        enough = (counted >= 0) & (frequency >= max(1, min_documents))
        left_out = dict(words.left_out) | {
            "words that co-occurrence was not counted of": int((counted < 0).sum()),
            f"words in fewer than {min_documents} documents": int((~enough & (counted >= 0)).sum()),
        }
        left_out = {reason: n for reason, n in left_out.items() if n}
        if enough.sum() < 2:
            raise ValueError(
                f"{int(enough.sum())} of {len(topics.words)} words with a topic are left to compare, two are needed: "
                f"{left_out}"
            )
        kept = enough.nonzero().flatten()
        kept = kept[words.ids[kept].argsort()]
        return cls(
            topics=topics,
            places=words.places[kept],
            table=words.table,
            index=words.index[kept],
            norms=words.norms[kept],
            left_out=left_out,
            frequency=frequency[kept],
            counts=cooccurrence.restrict(words.ids[kept]),
        )

    @cached_property
    def same(self) -> Bool[Tensor, "word word"]:
        """The pairs of different words that share a topic; forms of one word are no pair."""
        return self.topics.incidence.sharing(self.group, self.group) & ~self._one_word

    @cached_property
    def different(self) -> Bool[Tensor, "word word"]:
        """The pairs of words that share no topic."""
        return ~(self.same | self._one_word)

    @property
    def _one_word(self) -> Bool[Tensor, "word word"]:
        return self.form[:, None] == self.form

    @cached_property
    def scores(self) -> dict[str, Float64[np.ndarray, "word word"]]:
        """Cosines and dot products of all pairs."""
        rows = self.rows()
        dot = rows @ rows.T
        return {"cosine": (dot / (self.norms[:, None] * self.norms)).numpy(), "dot": dot.numpy()}


@dataclass(frozen=True)
class Bins:
    """The bin of every pair: of PMI (0: never together), times pairs of frequency classes."""

    classes: Int64[Tensor, "word word"]
    frequency_class: Int64[np.ndarray, " word"]
    pmi_edges: tuple[float, ...]
    frequency_limits: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Bins of PMI and of frequency."""
        n = len(self.frequency_limits)
        return len(self.pmi_edges) + 2, n * (n + 1) // 2

    @classmethod
    def of(cls, words: MatchedWords, *, pmi_bins: int, frequency_bins: int) -> "Bins":
        """Bins of equally many same-topic pairs, and classes of equally many words, as far as ties allow."""
        if pmi_bins < 1 or frequency_bins < 1:
            raise ValueError(
                f"pmi_bins and frequency_bins must be at least 1, got {pmi_bins} and {frequency_bins}"
            )
        class_of, limits = frequency_classes(words.frequency.numpy(), frequency_bins)
        n, by_word = len(limits), torch.from_numpy(class_of)
        lower, higher = torch.minimum(by_word[:, None], by_word), torch.maximum(by_word[:, None], by_word)
        frequency = lower * (2 * n - lower - 1) // 2 + higher
        pmi = words.counts.pmi()
        of_topics = pmi[words.same & torch.isfinite(pmi)].numpy()
        edges = np.zeros(0)
        if len(of_topics):
            edges = np.unique(np.quantile(of_topics, np.arange(1, pmi_bins) / pmi_bins))
        place = torch.bucketize(pmi, torch.from_numpy(edges), right=True) + 1
        place = torch.where(torch.isinf(pmi), 0, place)
        return cls(place * (n * (n + 1) // 2) + frequency, class_of, tuple(edges.tolist()), limits)

    def strata(self, words: MatchedWords) -> list[Int64[np.ndarray, "_"]]:
        """The words, with all their forms, of every frequency class.

        Where forms of a word are in several classes, it is in the one that their documents together belong to.
        """
        form, class_of = words.form.numpy(), self.frequency_class
        highest_frequency = [high for _, high in self.frequency_limits]
        together = np.searchsorted(highest_frequency, np.bincount(form, words.frequency.numpy()))
        lowest, highest = np.full(words.n_forms, len(highest_frequency)), np.full(words.n_forms, -1)
        np.minimum.at(lowest, form, class_of)
        np.maximum.at(highest, form, class_of)
        own = np.where(lowest == highest, lowest, np.minimum(together, len(highest_frequency) - 1))
        return [np.flatnonzero(own == value) for value in np.unique(own)]

    def index(self, cells: Int64[np.ndarray, " cell"]) -> dict[str, tuple[Any, ...]]:
        """What the table says of every bin: limits of PMI, and of the document frequencies of its two words."""
        pmi = [(-np.inf, -np.inf), *pairwise([-np.inf, *self.pmi_edges, np.inf])]
        pairs = list(combinations_with_replacement(self.frequency_limits, 2))
        place, frequency = np.divmod(cells, len(pairs))
        return {
            "pmi_from": tuple(pmi[cell][0] for cell in place),
            "pmi_to": tuple(pmi[cell][1] for cell in place),
            "documents_of_one": tuple(f"{pairs[cell][0][0]}–{pairs[cell][0][1]}" for cell in frequency),
            "documents_of_other": tuple(f"{pairs[cell][1][0]}–{pairs[cell][1][1]}" for cell in frequency),
        }


def frequency_classes(
    frequency: Int64[np.ndarray, " word"], n: int
) -> tuple[Int64[np.ndarray, " word"], tuple[tuple[int, int], ...]]:
    """The class of every word, and the lowest and highest frequency in every class."""
    edges = np.unique(np.quantile(frequency, np.arange(1, n) / n, method="inverted_cdf"))
    _, class_of = np.unique(np.searchsorted(edges, frequency, side="left"), return_inverse=True)
    members = [frequency[class_of == number] for number in range(class_of.max() + 1)]
    return class_of.astype(np.int64), tuple((int(part.min()), int(part.max())) for part in members)


# --- means of matched pairs -----------------------------------------------------------------------------


def ways_of(values: np.ndarray) -> dict[str, tuple[int, ...]]:
    """The ways of matching; by distance where there are distances."""
    return MATCHED_ON | ({WITH_DISTANCE: (0, 1, 2)} if values.shape[-2] > 1 else {})


def collapse(
    values: Float64[np.ndarray, "*shape pmi frequency distance kind"], axes: tuple[int, ...]
) -> Float64[np.ndarray, "*shape cell kind"]:
    """Sums (or counts, or squares of all kinds together) by bins of some of the axes only."""
    others = tuple(axis - 4 for axis in range(3) if axis not in axes)
    kept = values.sum(others)
    return np.asarray(kept.reshape(*values.shape[:-4], -1, values.shape[-1]))


def noted(contrast: Contrast, counts: Float64[np.ndarray, "*shape cell 3"]) -> Contrast:
    """A matched contrast, with a note where no bin of pairs that there are holds both kinds."""
    unmatched = (counts[..., 1:].sum(-2) > 0).all(-1) & (contrast.n_same_topic == 0)
    notes = [contrast.note, NOT_MATCHED if unmatched.any() else None]
    return replace(contrast, note="; ".join(filter(None, notes)) or None)


def coverage_of(counts: Float64[np.ndarray, "pmi frequency distance 3"]) -> Float64[np.ndarray, " way"]:
    """The share of same-topic pairs that are in bins with both kinds, for every way of matching."""
    collapsed = [collapse(counts, axes) for axes in ways_of(counts).values()]
    return divide(np.array([matched_means(part, part)[2] for part in collapsed]), counts[..., 1].sum())


# --- attention by class of the pair -------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ClassSums:
    """Sums of attention relative to uniform, and numbers of pairs of positions, by class of the pair of words.

    The last axis of all sums has three places, as `PairSums` wants it, the axis before it classes and distances:
    a pair whose code is ``3 c + r`` is at ``[…, c, d, r]``, d being its distance bin. Heads each count all their pairs.

    Attributes:
        by_source: sums and counts of sources (or blocks of them), all heads pooled: [source, class · distance, 3],
            and squares of all places together.
        heads: sums by head: [head, class, distance, 3].
        n_heads: the same of counts.
        squares: of scores, by head, those of all places together.
        table: sums by pair of words, both directions and all heads pooled, and counts; None if not asked for.
        index: stack, layer and head of every head.
        record: what was read and left out, and why it stopped early, if it did.
    """

    by_source: SourceSums
    heads: Float64[np.ndarray, "head class distance 3"]
    n_heads: Float64[np.ndarray, "head class distance 3"]
    squares: Float64[np.ndarray, "head class distance"]
    table: tuple[Float64[np.ndarray, "word word"], Float64[np.ndarray, "word word"]] | None
    index: dict[str, tuple[Any, ...]]
    record: dict[str, Any]


@shares
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
    shown: Shown,
) -> ClassSums:
    """Attention between words added up by classes of pairs, in one pass over the documents.

    Attention is relative to uniform attention, as in `measure_attention`, and so are documents, pieces of split words
    and special tokens treated. Memory is 16 · n² bytes for n words with ``table``, and otherwise that of the codes.

    Args:
        model: a hooked model.
        words: topics; what they are is not looked at, only which words have one.
        codes: for every pair of ``words.words``, in their order, ``3 · class + place``; −1 for pairs of no
            interest, a word with itself among them. Symmetric.
        documents: token ids in any shape that `topic_probe.text.documents.read_documents` takes.
        distances: sums are kept apart by the distance of positions: the first distance of every bin but the first.
        table: whether to add up every pair of words by itself as well.
    """
    view = capture.view(model)
    reading = reading.of(view.facts)
    reader = PatternReader(view, words, patterns, include_self=False)
    by_class = Classes(codes, distances, reader.n_cells)
    engine = Engine(reader, [by_class, PairTable(codes)] if table else [by_class])
    progress = engine.run(documents, reading=reading, run=Run(progress=shown.progress))
    sums: Any = engine.sums
    shape = (len(sums["by_head"]), -1, len(distances) + 1, 3)
    of_pairs = None
    if table:
        of_pairs = (
            np.asarray(sums["table"] + sums["table"].T),
            np.asarray(sums["n_table"] + sums["n_table"].T),
        )
    return ClassSums(
        sums["by_source"],
        sums["by_head"].reshape(shape),
        sums["n_by_head"].reshape(shape),
        sums["squares_by_head"].reshape(shape[:-1]),
        of_pairs,
        reader.index,
        about_documents(sums, progress, {"read": {"max_length": reading.max_length}}),
    )


class Classes(BatchSums):
    """Sums by class of the pair of words and distance: of every head, and of all heads by source."""

    def __init__(self, codes: Shaped[Tensor, "word word"], distances: tuple[int, ...], n_heads: int) -> None:
        self.codes, self.edges = codes, torch.tensor(distances)
        self.n_places = 3 * (len(distances) + 1) * (int(codes.max()) // 3 + 1)
        shape = (n_heads, self.n_places)
        self.by_source = SourceSums(source_limit(self.n_places), shape=(self.n_places // 3,))
        self.by_head, self.n_by_head = np.zeros(shape), np.zeros(shape)
        self.squares_by_head = np.zeros((n_heads, self.n_places // 3))
        self.sums: dict[str, Sum] = {
            "by_head": self.by_head, "n_by_head": self.n_by_head, "squares_by_head": self.squares_by_head,
            "by_source": self.by_source,
        }  # fmt: skip

    def prepare(self, pairs: Pairs, device: torch.device) -> Mapping[str, Any]:
        """The pairs that have a code, and the number of each among the places and bins that any of them has.

        Places are those of all documents together, and those of every document by itself.
        """
        found = coded_pairs(pairs, self.codes)
        first, second = (
            padded([words.first for words in part], 0)[found.document, at]
            for part, at in ((pairs.query, found.query), (pairs.key, found.key))
        )
        distance = torch.bucketize((first - second).abs(), self.edges, right=True)
        bins = found.codes // 3 * (len(self.edges) + 1) + distance
        place = 3 * bins + found.codes % 3
        numbered = {
            "place": place, "bin": bins,
            "own_place": found.document * self.n_places + place,
            "own_bin": found.document * (self.n_places // 3) + bins,
        }  # fmt: skip
        index: dict[str, Any] = {"there": found.there.to(device)}
        for name, numbers in numbered.items():
            held, number = torch.unique(numbers, return_inverse=True)
            index |= {f"held_{name}": held.numpy(), name: number.to(device)}
        return index

    def score(self, scores: BatchScores, index: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """Sums of every head over all documents, and of all heads by document."""
        values, n = scores_at(scores, index["there"])
        squares = values.square()

        def add_up(numbers: str, values: Tensor) -> Tensor:
            sums = values.new_zeros(len(index[f"held_{numbers}"]), *values.shape[1:])
            return sums.index_add_(0, index[numbers], values)

        return {
            "by_head": add_up("place", values), "n": add_up("place", n), "squares": add_up("bin", squares),
            "pooled": add_up("own_place", values.sum(1)), "n_pooled": add_up("own_place", n),
            "squares_pooled": add_up("own_bin", squares.sum(1)),
        }  # fmt: skip

    def add(
        self, scores: BatchScores, found: Mapping[str, np.ndarray], kept: Bool[np.ndarray, " document"]
    ) -> None:
        """Adds the pairs of all documents to their classes, and every document to its source."""
        at = np.ix_(scores.cells, found["held_place"])
        self.by_head[at] += found["by_head"].T
        self.n_by_head[at] += found["n"]
        self.squares_by_head[np.ix_(scores.cells, found["held_bin"])] += found["squares"].T
        sums, counts = (np.zeros(len(kept) * self.n_places) for _ in range(2))
        squares = np.zeros(len(sums) // 3)
        sums[found["held_own_place"]] = found["pooled"]
        counts[found["held_own_place"]] = found["n_pooled"] * len(scores.cells)
        squares[found["held_own_bin"]] = found["squares_pooled"]
        by_document = sums.reshape(len(kept), -1, 3), counts.reshape(len(kept), -1, 3)
        of_squares = squares.reshape(len(kept), -1)
        self.by_source.add(scores.sources[kept], joined(*by_document, of_squares)[kept])


class PairTable(BatchSums):
    """Sums of every pair of words, all heads pooled."""

    def __init__(self, codes: Shaped[Tensor, "word word"]) -> None:
        self.codes = codes
        self.sums = {"table": np.zeros(codes.shape), "n_table": np.zeros(codes.shape)}

    def prepare(self, pairs: Pairs, device: torch.device) -> Mapping[str, Any]:
        """The pairs that have a code, and the number of each among the pairs of words that any document has."""
        found = coded_pairs(pairs, self.codes)
        row, column = found.words
        held, number = torch.unique(row * len(self.codes) + column, return_inverse=True)
        return {"there": found.there.to(device), "number": number.to(device), "held": held.numpy()}

    def score(self, scores: BatchScores, index: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """Sums of every pair of words over all documents, and how many there are."""
        values, n = scores_at(scores, index["there"])
        sums, counts = (part.new_zeros(len(index["held"])) for part in (values, n))
        sums.index_add_(0, index["number"], values.sum(1))
        counts.index_add_(0, index["number"], n)
        return {"table": sums.float(), "n_table": counts.int()}

    def add(
        self, scores: BatchScores, found: Mapping[str, np.ndarray], kept: Bool[np.ndarray, " document"]
    ) -> None:
        """Adds all documents."""
        self.sums["table"].reshape(-1)[found["held"]] += found["table"]
        self.sums["n_table"].reshape(-1)[found["held"]] += found["n_table"] * float(len(scores.cells))


@dataclass(frozen=True, eq=False)
class CodedPairs:
    """The pairs of documents that have a code: which documents they are in, and the numbers of their words there.

    Attributes:
        codes: their codes.
        words: the places of both words.
        there: their numbers among all pairs of all documents.
    """

    document: Int64[Tensor, " pair"]
    query: Int64[Tensor, " pair"]
    key: Int64[Tensor, " pair"]
    codes: Int64[Tensor, " pair"]
    words: tuple[Int64[Tensor, " pair"], Int64[Tensor, " pair"]]
    there: Int64[Tensor, " pair"]


def coded_pairs(pairs: Pairs, codes: Shaped[Tensor, "word word"]) -> CodedPairs:
    """The pairs that have a code."""
    row, column = (padded([words.places for words in part], 0) for part in (pairs.query, pairs.key))
    _, n, m = pairs.relations.shape
    related = pairs.relations[:, : row.shape[1], : column.shape[1]] != NO_RELATION
    document, query, key = ((codes[row[:, :, None], column[:, None, :]] >= 0) & related).nonzero(
        as_tuple=True
    )
    words = row[document, query], column[document, key]
    return CodedPairs(document, query, key, codes[words].long(), words, (document * n + query) * m + key)


def scores_at(
    scores: BatchScores, there: Int64[Tensor, " pair"]
) -> tuple[Float[Tensor, "pair cell"], Int64[Tensor, " pair"]]:
    """The scores of some of all pairs of all documents, and whether there is such a pair."""
    values = scores.values.permute(0, 2, 3, 1).flatten(0, 2).index_select(0, there)
    n = scores.seen.flatten().index_select(0, there)
    return wide(values), n.long()


def pair_codes(
    classes: Int64[Tensor, "word word"], same: Bool[Tensor, "word word"], different: Bool[Tensor, "word word"]
) -> Shaped[Tensor, "word word"]:
    """Codes for `attention_by_class`: pairs of the same topic in place 1 of their class, of different topics in 2."""
    codes = torch.full(classes.shape, -1, dtype=torch.int32)
    for place, chosen in ((1, same), (2, different)):
        codes[chosen] = (3 * classes[chosen] + place).int()
    return codes.fill_diagonal_(-1)
