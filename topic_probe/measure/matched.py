"""Is it topics, or do words of a topic merely occur together? Pairs compared at equal co-occurrence and frequency.

Pairs of words are in bins of how often they occur together and of how frequent the two are. A bin has a number, from
which what a pair has in common with others is told: [co-occurrence, frequency], and in documents also [distance].
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from topic_probe.contrast import Contrast, matched_contrast, matched_means, side_by_side
from topic_probe.lens import capture
from topic_probe.lens.opening import open_model
from topic_probe.measure.options import Intervals, Patterns, Permutations, Reading, Run, recorded
from topic_probe.measure.words import SCORES, EmbeddingWords, labelled_words
from topic_probe.options import shares
from topic_probe.report import Report, provenance
from topic_probe.text.cooccurrence import Cooccurrence
from topic_probe.topics import Topics
from topic_probe.topics.lists import token_id_array
from topic_probe.uncertainty import (
    Alternative,
    Ends,
    divide,
    no_interval_reason,
    permutation_p_value,
    source_interval,
    split_halves,
    word_interval,
)

if TYPE_CHECKING:
    import pandas as pd

# The first distance |i − j| of every bin but the first.
DISTANCE_BINS = (2, 3, 5, 9, 17, 33, 65, 129, 257)

# What pairs have to have in common to be compared, as axes of bins [co-occurrence, frequency, distance].
MATCHED_ON: dict[str, tuple[int, ...]] = {
    "nothing": (),
    "frequency": (1,),
    "co-occurrence": (0,),
    "co-occurrence and frequency": (0, 1),
    "co-occurrence, frequency and distance": (0, 1, 2),
}

Statistic = Literal["ratio", "difference"]

NOT_MATCHED = "no bin holds pairs of the same topic and of different topics"


@dataclass(frozen=True, eq=False, repr=False)
class MatchedReport(Report, kind="matched"):
    """What is left of a topic effect between words that occur together equally often and are equally frequent.

    Same-topic and different-topic pairs are compared within bins of pointwise mutual information and of the document
    frequencies of the two words. Both means weigh the bins by their number of same-topic pairs, where a bin holds both
    kinds. ``cosine``, ``dot`` and ``attention`` have a cell for every way of matching, from none at all to all of it;
    if the effect were co-occurrence alone, the matched ratio would be 1. Bins have a width, and the PMI of rare words
    is mostly noise, so part of what co-occurrence does is left in a matched number: it errs upwards, and less so the
    more documents were counted and the more frequent the words are (``min_documents``).

    Effect sizes are matched differences ÷ the standard deviation of the scores of all pairs in bins that hold both
    kinds; those of attention have intervals.

    Attributes:
        cosine: mean cosine between word embeddings, all pairs of different words.
        dot: the same of dot products.
        attention: mean attention relative to uniform, all heads pooled, pairs of positions; it can also be matched on
            their distance. None where no documents were given.
        layers: attention by stack and layer, matched on everything.
        heads: attention by head, matched on everything.
        coverage: "embeddings" and "attention": the share of same-topic pairs in bins that hold both kinds, for
            every way of matching.
        provenance: model, topics, options, versions, and what was left out and why.
    """

    figure: ClassVar[str] = "bars:matched_forest"
    cosine: Contrast
    dot: Contrast
    attention: Contrast | None
    layers: Contrast | None
    heads: Contrast | None
    coverage: Mapping[str, Float64[np.ndarray, " way"]]
    provenance: Mapping[str, Any]

    def to_dataframe(self, by: Literal["match", "layer", "head"] = "match") -> "pd.DataFrame":
        """A row for every score and way of matching; by "layer" or "head" those of attention."""
        import pandas as pd

        if by == "match":
            scores = {"cosine": self.cosine, "dot": self.dot, "attention": self.attention}
            parts = [
                contrast.to_dataframe({"score": [score] * len(contrast)}).assign(
                    coverage=self.coverage["attention" if score == "attention" else "embeddings"]
                )
                for score, contrast in scores.items()
                if contrast is not None
            ]
        elif by in ("layer", "head"):
            contrast = self.layers if by == "layer" else self.heads
            if contrast is None:
                raise ValueError("no attention was measured: pass documents to measure_matched")
            parts = [contrast.to_dataframe()]
        else:
            raise ValueError(f"by must be 'match', 'layer' or 'head', got {by!r}")
        # A word with itself has no co-occurrence to be matched on.
        return pd.concat(parts, ignore_index=True).drop(columns=["same_word", "topic_ratio", "n_same_word"])


@shares
def measure_matched(
    model: Any,
    topics: Topics,
    documents: Any = None,
    *,
    cooccurrence: Cooccurrence,
    pmi_bins: int = 10,
    frequency_bins: int = 5,
    min_documents: int = 5,
    center: bool = False,
    exclude: Iterable[int] = (),
    statistic: Literal["ratio", "difference"] = "ratio",
    reading: Reading,
    patterns: Patterns,
    intervals: Intervals,
    permutations: Permutations,
    run: Run,
) -> MatchedReport:
    """Same topic against different topics, between pairs of words matched on co-occurrence and frequency.

    Words of a topic occur together more often than others: that is how a topic model finds them. Whether a model treats
    them alike for that reason alone is answered by comparing pairs of the same topic with pairs of different topics
    that co-occur as much. Intervals say how much the number would change with other words (cosine, dot product) or
    other texts (attention). P-values permute topic labels among words of equal frequency and keep the weights of the
    bins, so that random topics are judged in the bins where real ones are; they are computed for attention too, but not
    for matching on distance.

    Forms of one word ("President", " president") are one word, whose pairs are not compared and which permutations and
    resamples move together. Each has a frequency of its own; where forms are in several classes of it, the word is
    permuted within the class of their documents together.

    Every pair of words is held in memory: about 80 · n² bytes for n words.

    Args:
        model: anything that `open_model` takes. It comes back as it was.
        topics: which vocabulary entries belong to which topic; split words are left out.
        documents: token ids in any shape that `topic_probe.text.documents.read_documents` takes; None measures word
            embeddings only.
        cooccurrence: counts of the words of the topics, of these or of other documents: `count_cooccurrence`.
        pmi_bins: bins of equally many same-topic pairs that co-occur; pairs that never do have one more.
        frequency_bins: classes of equally many words; those of its two words, in any order, are the bin of a pair.
        min_documents: words in fewer documents are left out, because their PMI is mostly noise. If a higher number
            changes the matched ratio, there is still noise in it.
        center: subtract the mean over all rows of the embedding table, as in `measure_embeddings`.
        exclude: token ids left out.
        statistic: what intervals and p-values are about.

    Raises:
        ValueError: for topics or counts of another vocabulary, or where fewer than two words are left.
    """
    model = open_model(model)
    known = capture.facts(model, topics)
    excluded = sorted(set(token_id_array(exclude, "exclude").tolist()))
    words, counted = _matched_words(model, topics, cooccurrence, min_documents, center, excluded)
    pairs = _Pairs.of(words, counted, pmi_bins, frequency_bins)
    n_bins = {"pmi_bins": pmi_bins, "frequency_bins": frequency_bins}
    options = {
        **n_bins, "min_documents": min_documents, "center": center,
        "exclude": excluded, "max_length": reading.max_length, "long": reading.long, "statistic": statistic,
        **recorded(intervals, permutations), "distance_bins": DISTANCE_BINS,
    }  # fmt: skip
    record = provenance(
        topics, model=known.description, options=options, seed=intervals.seed, left_out=words.left_out
    ) | {
        "words": words.n_forms,
        "cooccurrence": {"documents": cooccurrence.n_documents, **cooccurrence.provenance},
    }
    permuted = pairs.permuted_groups(permutations.n_permutations, intervals.seed)
    cosine, dot = (
        _contrast_of_words(pairs, score, permuted, statistic, intervals, permutations) for score in SCORES
    )
    coverage = {"embeddings": cosine.n_same_topic / cosine.n_same_topic.max()}
    report = MatchedReport(cosine, dot, None, None, None, coverage, record)
    if documents is None:
        return report
    return _with_attention(report, model, pairs, permuted, documents, reading, patterns, intervals, permutations, run)


# --------------------------------------------------------------------------------- words and their bins


def _matched_words(
    model: Any,
    topics: Topics,
    cooccurrence: Cooccurrence,
    min_documents: int,
    center: bool,
    exclude: Iterable[int],
) -> tuple[EmbeddingWords, Cooccurrence]:
    """The words with a topic, a row in the embedding table and enough documents, by their ids, and their counts."""
    if cooccurrence.vocabulary_size != topics.vocabulary_size:
        raise ValueError(
            f"co-occurrence was counted over a vocabulary of {cooccurrence.vocabulary_size} ids, the topics have "
            f"{topics.vocabulary_size}: count it with count_cooccurrence(documents, topics)"
        )
    words = labelled_words(capture.word_embeddings(model), topics, center=center, exclude=exclude)
    rows = cooccurrence.rows_of(words.ids)
    enough = (rows >= 0) & (cooccurrence.document_frequency[rows] >= max(1, min_documents))
    left_out = dict(words.left_out) | {
        "words that co-occurrence was not counted of": int((rows < 0).sum()),
        f"words in fewer than {min_documents} documents": int((~enough & (rows >= 0)).sum()),
    }
    left_out = {reason: n for reason, n in left_out.items() if n}
    kept = enough.nonzero().flatten()
    kept = kept[words.ids[kept].argsort()]
    if len(kept) < 2:
        raise ValueError(
            f"{len(kept)} of {len(topics.words)} words with a topic are left to compare, two are needed: {left_out}"
        )
    chosen = EmbeddingWords(
        topics, words.places[kept], words.rows[kept.numpy()], words.norms[kept.numpy()], left_out
    )
    return chosen, cooccurrence.restrict(chosen.ids)


@dataclass(frozen=True)
class _Pairs:
    """All pairs of the words that are compared.

    Attributes:
        words: the words, in the order of their ids.
        codes: of every pair 3 · its bin + 1 for the same topic, + 2 for different ones; −1 for forms of one word.
        shape: how many bins of co-occurrence (the first: never together) and of frequency there are.
        strata: the words of equal frequency, whose topics are permuted.
    """

    words: EmbeddingWords
    codes: Int64[np.ndarray, "word word"]
    shape: tuple[int, int]
    strata: list[Int64[np.ndarray, "_"]]

    @classmethod
    def of(cls, words: EmbeddingWords, counted: Cooccurrence, pmi_bins: int, frequency_bins: int) -> "_Pairs":
        """Bins of equally many same-topic pairs, and classes of equally many words, as far as ties allow."""
        if pmi_bins < 1 or frequency_bins < 1:
            raise ValueError(
                f"pmi_bins and frequency_bins must be at least 1, got {pmi_bins} and {frequency_bins}"
            )
        one_word = (words.form[:, None] == words.form).numpy()
        same = words.topics.incidence.sharing(words.group, words.group).numpy() & ~one_word
        frequency = counted.document_frequency.numpy()
        shares = np.arange(1, frequency_bins) / frequency_bins
        edges = np.unique(np.quantile(frequency, shares, method="inverted_cdf"))
        class_of = np.searchsorted(edges, frequency)
        pmi = counted.pmi().numpy()
        of_topics = pmi[same & np.isfinite(pmi)]
        if len(of_topics):
            of_topics = np.unique(np.quantile(of_topics, np.arange(1, pmi_bins) / pmi_bins))
        met = np.where(np.isinf(pmi), 0, np.searchsorted(of_topics, pmi, side="right") + 1)
        shape = (len(of_topics) + 2, (len(edges) + 1) ** 2)
        two_classes = np.minimum.outer(class_of, class_of) * (len(edges) + 1) + np.maximum.outer(class_of, class_of)
        codes = 3 * (met * shape[1] + two_classes) + np.where(same, 1, 2)
        # A word is permuted, with all its forms, within the class of its most frequent form.
        highest = np.zeros(words.n_forms, np.int64)
        np.maximum.at(highest, words.form.numpy(), class_of)
        strata = [np.flatnonzero(highest == number) for number in np.unique(highest)]
        return cls(words, np.where(one_word, -1, codes), shape, strata)

    def sums(self, scores: Float64[np.ndarray, "word word"]) -> Float64[np.ndarray, "pmi frequency 1 7"]:
        """Sums of scores by bin, each pair once: by relation, numbers of pairs by relation, and squares."""
        there = np.triu(self.codes >= 0)
        codes, scores, n = self.codes[there], scores[there], 3 * int(np.prod(self.shape))
        parts = [np.bincount(codes, weights, n).reshape(-1, 3) for weights in (scores, None, scores**2)]
        parts[2] = parts[2].sum(1, keepdims=True)
        return np.concatenate(parts, 1).reshape(*self.shape, 1, 7)

    def permuted_groups(self, n: int, seed: int) -> Int64[np.ndarray, "word permutation"]:
        """The groups of topics of words when words of equal frequency take each other's place."""
        generator = np.random.default_rng(seed)
        given = np.tile(np.arange(self.words.n_forms)[:, None], n)
        for permutation in range(n):
            for words in self.strata:
                given[generator.permutation(words), permutation] = words
        return self.words.groups_given(given)

    def null(
        self, scores: Float64[np.ndarray, "word word"], permuted: Int64[np.ndarray, "word permutation"]
    ) -> Float64[np.ndarray, "2 permutation pmi frequency 1"]:
        """Sums of the scores of pairs that would share a topic, and numbers of these pairs."""
        found = np.zeros((2, permuted.shape[1], int(np.prod(self.shape))))
        for number, groups in enumerate(permuted.T):
            topics = self.words.topics.incidence.table[groups].astype(np.float32)
            first, second = (topics @ topics.T).nonzero()
            once = (first < second) & (self.codes[first, second] >= 0)
            first, second = first[once], second[once]
            bins = self.codes[first, second] // 3
            for part, weights in zip(found, (scores[first, second], None), strict=True):
                part[number] = np.bincount(bins, weights, part.shape[1])
        return found.reshape(*found.shape[:2], *self.shape, 1)

    def ends(
        self, scores: Float64[np.ndarray, "word word"], weights: Float64[np.ndarray, "bin 3"], seed: int
    ) -> Ends:
        """What every word adds to matched means, in which pairs weigh as their bin and relation do."""
        half = split_halves(self.words.strata, seed=seed)[self.words.form.numpy()]
        halves = half[:, None] == np.arange(2)
        parts = []
        for relation in (1, 2):
            weight = np.where(self.codes % 3 == relation, np.append(weights.ravel(), 0)[self.codes], 0)
            for values in (weight * scores, weight):
                parts.append(2 * self.words.by_form(values @ halves).T)
        return Ends(parts[0][..., None], parts[1], parts[2][..., None], parts[3])


def _contrast_of_words(
    pairs: _Pairs,
    score: str,
    permuted: Int64[np.ndarray, "word permutation"],
    statistic: Statistic,
    intervals: Intervals,
    permutations: Permutations,
) -> Contrast:
    """A score of the embedding table by way of matching."""
    rows = pairs.words.scored[score].astype(np.float64)
    scores = rows @ rows.T
    sums = pairs.sums(scores)

    def interval(axes: tuple[int, ...]) -> dict[str, Any]:
        ends = pairs.ends(scores, _weights(sums, axes), intervals.seed)
        options = {"statistic": statistic, **vars(intervals)}
        limits = word_interval(ends, pairs.words.strata, **options)[0]
        return {"interval": limits, "note": no_interval_reason(limits, pairs.words.n_forms, "words")}

    null = pairs.null(scores, permuted) if permutations.n_permutations else None
    return _by_way(sums, statistic, interval if intervals.n_resamples else None, null, permutations.alternative)


# --------------------------------------------------------------------------------- means of matched pairs

# Sums by bin have seven columns: sums of scores by relation, numbers of pairs by relation, squares.


def _on(values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Sums [..., co-occurrence, frequency, distance, column] by bins of some of the axes: [..., cell, column]."""
    kept = values.sum(tuple(axis - 4 for axis in range(3) if axis not in axes))
    return np.asarray(kept.reshape(*values.shape[:-4], -1, values.shape[-1]))


def _contrast(cells: np.ndarray, **uncertainty: Any) -> Contrast:
    """The contrast of matched pairs, from [..., cell, column], with a note where no bin of pairs holds both kinds."""
    found = matched_contrast(cells[..., :3], cells[..., 3:6], cells[..., 6], **uncertainty)
    if ((cells[..., 4:6].sum(-2) > 0).all(-1) & (found.n_same_topic == 0)).any():
        found = replace(found, note="; ".join(filter(None, [found.note, NOT_MATCHED])))
    return found


def _by_way(
    sums: Float64[np.ndarray, "pmi frequency distance 7"],
    statistic: Statistic,
    interval: Callable[[tuple[int, ...]], dict[str, Any]] | None,
    null: Float64[np.ndarray, "2 permutation pmi frequency distance"] | None,
    alternative: Alternative,
) -> Contrast:
    """The contrasts of all ways of matching, by distance where there are distances."""
    ways = {name: axes for name, axes in MATCHED_ON.items() if sums.shape[2] > 1 or 2 not in axes}
    found = []
    for axes in ways.values():
        uncertainty = {} if interval is None else interval(axes)
        if null is not None:
            uncertainty["p_value"] = _p_value(sums, null, axes, statistic, alternative)
        found.append(_contrast(_on(sums, axes), statistic=statistic, **uncertainty))
    notes = dict.fromkeys(part.note for part in found if part.note)
    joined = side_by_side(found, {"matched_on": tuple(ways)})
    return replace(joined, note="; ".join(notes) or None)


def _weights(sums: np.ndarray, axes: tuple[int, ...]) -> Float64[np.ndarray, "bin 3"]:
    """What a pair of a bin and relation weighs in means that are matched on some axes."""
    others = tuple(axis for axis in range(3) if axis not in axes)
    counts = np.broadcast_to(sums[..., 3:6].sum(others, keepdims=True), (*sums.shape[:-1], 3)).reshape(-1, 3)
    both = (counts[:, 1] > 0) & (counts[:, 2] > 0)
    of_different = np.where(both, np.nan_to_num(divide(counts[:, 1], counts[:, 2])), 0.0)
    return np.stack([np.zeros(len(both)), both, of_different], 1)


def _p_value(
    sums: np.ndarray, null: np.ndarray, axes: tuple[int, ...], statistic: Statistic, alternative: Alternative
) -> np.ndarray:
    """Permuted labels: bins weigh as they do in truth."""
    pooled = sums[..., :6].reshape(*sums.shape[:-1], 2, 3)[..., 1:].sum(-1)  # of both relations, and their number
    same = np.moveaxis(null, 0, -1)
    permuted = np.stack([np.zeros_like(same), same, pooled - same], -1).reshape(*same.shape[:-1], 6)
    cells = _on(np.concatenate([sums[None, ..., :6], permuted]), axes)
    truth = cells[0]
    weights = np.where(truth[:, 5] > 0, truth[:, 4], 0.0)
    first, second, *_ = matched_means(cells[..., :3], cells[..., 3:], weights[None])
    with np.errstate(all="ignore"):
        numbers = first - second if statistic == "difference" else divide(first, second)
    numbers = np.where(np.isfinite(numbers), numbers, np.nan)
    return np.asarray(permutation_p_value(numbers[:1], numbers[None, 1:], alternative=alternative)[0])
