"""Is it topics, or do words of a topic merely occur together? Pairs compared at equal co-occurrence and frequency."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from jaxtyping import Float64, Int64, Shaped
from torch import Tensor

from topic_probe.contrast import Contrast, matched_contrast, matched_means, matched_spread
from topic_probe.lens import capture
from topic_probe.lens.opening import open_model
from topic_probe.measure.heads import layer_starts
from topic_probe.measure.matching import (
    MATCHED_ON,
    Bins,
    ClassSums,
    MatchedWords,
    attention_by_class,
    collapse,
    coverage_of,
    noted,
    pair_codes,
    ways_of,
)
from topic_probe.measure.options import Intervals, Patterns, Permutations, Reading, Shown, recorded
from topic_probe.measure.words import SCORES, pairs_of_labels
from topic_probe.options import shares
from topic_probe.report import Report, provenance
from topic_probe.text.cooccurrence import Cooccurrence
from topic_probe.topics import Topics
from topic_probe.topics.lists import token_id_array
from topic_probe.uncertainty import (
    Ends,
    compare,
    divide,
    no_interval_reason,
    permutation_p_value,
    source_interval,
    word_interval,
)

if TYPE_CHECKING:
    import pandas as pd

# The first distance |i − j| of every bin but the first.
DISTANCE_BINS = (2, 3, 5, 9, 17, 33, 65, 129, 257)

_ROWS_AT_ONCE = 512


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
        bins: "cosine", "dot" and "attention": every bin that holds a pair, with its limits.
        provenance: model, topics, options, versions, and what was left out and why.
    """

    cosine: Contrast
    dot: Contrast
    attention: Contrast | None
    layers: Contrast | None
    heads: Contrast | None
    coverage: Mapping[str, Float64[np.ndarray, " way"]]
    bins: Mapping[str, Contrast]
    provenance: Mapping[str, Any]

    def surviving(self, score: Literal["cosine", "dot", "attention"]) -> Float64[np.ndarray, " way"]:
        """For every way of matching, the matched difference ÷ the difference of all pairs.

        1 where matching takes nothing away, 0 where it takes everything. It has no meaning where there is no effect.
        """
        difference = self._scores()[score].difference
        return divide(difference, difference[0])

    def _scores(self) -> dict[str, Contrast]:
        scores = {"cosine": self.cosine, "dot": self.dot, "attention": self.attention}
        return {name: contrast for name, contrast in scores.items() if contrast is not None}

    def to_dataframe(self, by: Literal["match", "bin", "layer", "head"] = "match") -> "pd.DataFrame":
        """A row for every score and way of matching; by "bin" for every bin; by "layer" or "head" of attention."""
        import pandas as pd

        if by in ("layer", "head"):
            contrast = self.layers if by == "layer" else self.heads
            if contrast is None:
                raise ValueError("no attention was measured: pass documents to measure_matched")
            return _without_columns(contrast.to_dataframe())
        if by == "bin":
            parts = [contrast.to_dataframe().assign(score=score) for score, contrast in self.bins.items()]
        elif by == "match":
            parts = [
                contrast.to_dataframe().assign(
                    score=score,
                    coverage=self.coverage["attention" if score == "attention" else "embeddings"],
                    surviving=self.surviving(score),  # type: ignore[arg-type]
                )
                for score, contrast in self._scores().items()
            ]
        else:
            raise ValueError(f"by must be 'match', 'bin', 'layer' or 'head', got {by!r}")
        table: pd.DataFrame = _without_columns(pd.concat(parts, ignore_index=True))
        return table[["score", *(name for name in table.columns if name != "score")]]


def _without_columns(table: "pd.DataFrame") -> "pd.DataFrame":
    """Without the columns on a word with itself, which has no co-occurrence to be matched on."""
    return table.drop(columns=["same_word", "topic_ratio", "n_same_word"])


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
    shown: Shown,
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
    words = MatchedWords.of(
        model, topics, cooccurrence, min_documents=min_documents, center=center, exclude=excluded
    )
    n_bins = {"pmi_bins": pmi_bins, "frequency_bins": frequency_bins}
    bins = Bins.of(words, **n_bins)
    codes = pair_codes(bins.classes, words.same, words.different)
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
    sums = None
    if documents is not None:
        sums = attention_by_class(
            model,
            Topics.from_token_ids({"words": words.ids}, vocabulary_size=topics.vocabulary_size),
            codes,
            documents,
            distances=DISTANCE_BINS,
            table=permutations.n_permutations > 0,
            **vars(reading),
            **vars(patterns),
            **vars(shown),
        )
    comparison = _Comparison(words, bins, codes, sums, statistic, intervals, permutations)
    attention, layers, heads = None, None, None
    cosine, dot, by_bin = comparison.embeddings()
    coverage = {"embeddings": coverage_of(comparison.counts)}
    if sums is not None:
        record["documents"] = sums.record
        attention, layers, heads, by_bin["attention"], coverage["attention"] = comparison.attention(sums)
    return MatchedReport(cosine, dot, attention, layers, heads, coverage, by_bin, record)


@dataclass(frozen=True)
class _Comparison:
    """Means of matched pairs by way of matching, with their intervals and p-values.

    ``codes`` say what is known of every pair: 3 · its bin + 1 for the same topic, + 2 for different ones; −1 for no
    pair. ``measured`` is the attention by them.
    """

    words: MatchedWords
    bins: Bins
    codes: Shaped[Tensor, "word word"]
    measured: ClassSums | None
    statistic: Literal["ratio", "difference"]
    intervals: Intervals
    permutations: Permutations

    @cached_property
    def counts(self) -> Float64[np.ndarray, "pmi frequency 1 3"]:
        """Numbers of pairs."""
        return self._by_code(np.ones(tuple(self.codes.shape)))

    def _by_code(self, values: Float64[np.ndarray, "word word"]) -> Float64[np.ndarray, "pmi frequency 1 3"]:
        shape = (*self.bins.shape, 1, 3)
        codes = self.codes.numpy()
        # Both directions of a pair are in the table; one is enough.
        total = np.bincount(codes[codes >= 0], values[codes >= 0], minlength=math.prod(shape))
        return np.asarray(total.reshape(shape) / 2)

    # --- embeddings -----------------------------------------------------------------------------

    def embeddings(self) -> tuple[Contrast, Contrast, dict[str, Contrast]]:
        """Cosine and dot product by way of matching, and by bin."""
        intervals, units = self._word_intervals(), (self.words.n_forms, "words")
        contrasts, by_bin = [], {}
        for number, score in enumerate(SCORES):
            table = self.words.scores[score]
            sums, squares = self._by_code(table), self._by_code(table**2).sum(-1)
            p_values = self._p_values(sums, self.counts, score)
            limits = {"interval": intervals[:, number]}
            contrasts.append(self._contrast(sums, self.counts, squares, limits, units, p_values))
            by_bin[score] = self._by_bin(sums, self.counts, squares)
        return contrasts[0], contrasts[1], by_bin

    def _word_intervals(self) -> Float64[np.ndarray, "way score 2"]:
        """Intervals from resampled words. Every different-topic pair weighs as much as matching makes it weigh."""
        if self.intervals.n_resamples == 0:
            return np.full((len(MATCHED_ON), len(SCORES), 2), np.nan)
        n_ends, *ends = self._ends()
        place = np.arange(n_ends.shape[2]) % 3
        intervals = []
        for axes in MATCHED_ON.values():
            weights = self._pair_weights(axes)
            same, different = (np.where(place == relation, weights, 0.0) for relation in (1, 2))
            of_words = Ends(
                np.stack([2 * (end @ same).T for end in ends], -1),
                2 * (n_ends @ same).T,
                np.stack([2 * (end @ different).T for end in ends], -1),
                2 * (n_ends @ different).T,
            )
            options = {"statistic": self.statistic, **vars(self.intervals)}
            intervals.append(word_interval(of_words, self.words.strata, **options))
        return np.stack(intervals)

    def _ends(self) -> list[Float64[np.ndarray, "form half code"]]:
        """For every word, the number of pairs and their scores, by half of the other word and by code."""
        form = self.words.form.numpy()
        halves = self.words.halves(self.intervals.seed).numpy()[form]
        shape = (self.words.n_forms, 2, self.counts.size)
        totals = [np.zeros(math.prod(shape)) for _ in range(1 + len(SCORES))]
        for start in range(0, len(form), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            codes = self.codes[rows].numpy()
            pairs = codes >= 0
            cells = ((2 * form[rows, None] + halves) * self.counts.size + codes)[pairs]
            weights = [None, *(self.words.scores[score][rows][pairs] for score in SCORES)]
            for total, values in zip(totals, weights, strict=True):
                total += np.bincount(cells, values, minlength=len(total))
        return [total.reshape(shape) for total in totals]

    def _pair_weights(self, axes: tuple[int, ...]) -> Float64[np.ndarray, " code"]:
        """What a pair with a code weighs in the matched means."""
        others = tuple(axis for axis in range(3) if axis not in axes)
        counts = self.counts.sum(others, keepdims=True)
        both = (counts[..., 1] > 0) & (counts[..., 2] > 0)
        weights = np.zeros(self.counts.shape)
        weights[..., 1] = both
        weights[..., 2] = np.where(both, np.nan_to_num(divide(counts[..., 1], counts[..., 2])), 0.0)
        return weights.ravel()

    # --- attention ------------------------------------------------------------------------------

    def attention(
        self, measured: ClassSums
    ) -> tuple[Contrast, Contrast, Contrast, Contrast, Float64[np.ndarray, " way"]]:
        """By way of matching, by layer, by head, by bin, and the coverage."""
        by_head = measured.heads, measured.n_heads, measured.squares[..., None]
        sums, counts, squares = (self._with_all_classes(part) for part in by_head)
        total, n_total, total_squares = sums.sum(0), counts.sum(0), squares.sum(0)[..., 0]
        p_values = np.full(len(ways_of(total)), np.nan)
        if measured.table is not None:
            by_words = [part.sum(2, keepdims=True) for part in (total, n_total)]
            p_values[: len(MATCHED_ON)] = self._p_values(by_words[0], by_words[1], "attention")
        intervals = self._source_intervals(measured, total.shape)
        units = (len(measured.by_source), "sources")
        overall = self._contrast(total, n_total, total_squares, intervals, units, p_values)
        everything = [collapse(part, (0, 1, 2)) for part in (sums, counts)]
        everything.append(collapse(squares, (0, 1, 2))[..., 0])
        heads = noted(matched_contrast(*everything, index=measured.index), everything[1])
        starts = layer_starts(measured.index)
        by_layer = [np.add.reduceat(part, starts, axis=0) for part in everything]
        places = {name: tuple(measured.index[name][start] for start in starts) for name in ("stack", "layer")}
        layers = noted(matched_contrast(*by_layer, index=places), by_layer[1])
        by_bin = self._by_bin(*(part.sum(2, keepdims=True) for part in (total, n_total, total_squares)))
        return overall, layers, heads, by_bin, coverage_of(n_total)

    def _with_all_classes(self, part: Float64[np.ndarray, "head class distance kind"]) -> np.ndarray:
        """[head, PMI, frequency, distance, kind]; the last classes may have had no pair."""
        n_classes = int(np.prod(self.bins.shape))
        padded = np.pad(part, ((0, 0), (0, n_classes - part.shape[1]), (0, 0), (0, 0)))
        return np.asarray(padded.reshape(len(part), *self.bins.shape, *part.shape[2:]))

    def _source_intervals(
        self, measured: ClassSums, shape: tuple[int, ...]
    ) -> dict[str, Float64[np.ndarray, "way 2"]]:
        """Of the statistic and of the effect size."""
        ways, confidence = ways_of(np.zeros(shape)).values(), self.intervals.over_sources
        names = "interval", "effect_size_interval"
        if confidence is None or not len(measured.by_source):
            return {name: np.full((len(ways), 2), np.nan) for name in names}
        _, sums, counts, squares = measured.by_source.rows()
        parts = [
            self._with_all_classes(part.reshape(len(part), -1, shape[2], part.shape[-1]))
            for part in (sums, counts, squares[..., None])
        ]
        limits = []
        for axes in ways:
            by_cell, n_by_cell, squares_by_cell = (collapse(part, axes) for part in parts)
            limits.append(self._source_interval(by_cell, n_by_cell, squares_by_cell, confidence))
        return {
            name: np.stack(of_ways) for name, of_ways in zip(names, zip(*limits, strict=True), strict=True)
        }

    def _source_interval(
        self,
        sums: Float64[np.ndarray, "source cell 3"],
        counts: Float64[np.ndarray, "source cell 3"],
        squares: Float64[np.ndarray, "source cell 1"],
        confidence: float,
    ) -> tuple[Float64[np.ndarray, "2"], Float64[np.ndarray, "2"]]:
        """The intervals of matched numbers, bins and weights being found anew without every source."""
        used = (counts[..., 1].sum(0) > 0) & (counts[..., 2].sum(0) > 0)
        parts = sums[:, used], counts[:, used], squares[:, used, 0]
        pairs = [parts[1][..., relation].sum(1) for relation in (1, 2)]
        positive = bool((parts[0] >= 0).all())

        def terms(sums: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
            same, different, _, _ = matched_means(sums, counts)
            return (same - different, None) if self.statistic == "difference" else (same, different)

        def of_effect(
            sums: np.ndarray, counts: np.ndarray, squares: np.ndarray
        ) -> tuple[np.ndarray, np.ndarray | None]:
            same, different, _, _ = matched_means(sums, counts)
            return divide(same - different, matched_spread(sums, counts, squares)), None

        return (
            source_interval(terms, parts[:2], pairs, positive=positive, confidence=confidence),
            source_interval(of_effect, parts, pairs, confidence=confidence),
        )

    # --- both -----------------------------------------------------------------------------------

    def _p_values(
        self,
        sums: Float64[np.ndarray, "pmi frequency 1 3"],
        counts: Float64[np.ndarray, "pmi frequency 1 3"],
        score: str,
    ) -> Float64[np.ndarray, " way"]:
        """Permuted labels: words of equal frequency take each other's place; bins weigh as they do in truth."""
        if self.permutations.n_permutations == 0:
            return np.full(len(MATCHED_ON), np.nan)
        same, n_same = self._permuted[score], self._permuted[f"n {score}" if score == "attention" else "n"]
        total, n_total = sums[..., 1:].sum(-1), counts[..., 1:].sum(-1)
        nothing = np.zeros(same.shape)
        permuted = self._under_weights_of(
            counts,
            np.stack([nothing, same, total - same], -1),
            np.stack([nothing, n_same, n_total - n_same], -1),
        )
        observed = self._under_weights_of(counts, sums[None], counts[None])[:, 0]
        return permutation_p_value(observed, permuted, alternative=self.permutations.alternative)

    @cached_property
    def _permuted(self) -> dict[str, Shaped[np.ndarray, "permutation pmi frequency 1"]]:
        """Sums over the pairs that would share a topic: of every score, and the numbers of these pairs ("n", "n …").

        All scores are permuted at once: finding the pairs takes as long as adding up their scores.
        """
        tables = {"n": None, **self.words.scores}
        if self.measured is not None and self.measured.table is not None:
            tables |= dict(zip(("attention", "n attention"), self.measured.table, strict=True))
        classes, n_bins = self.bins.classes.numpy().ravel(), math.prod(self.bins.shape)
        sums: dict[str, list[np.ndarray]] = {name: [] for name in tables}
        for first, second in self._permuted_pairs():
            pair = first * len(self.words) + second
            where = classes[pair]
            for name, table in tables.items():
                values = None if table is None else table.ravel()[pair]
                sums[name].append(np.bincount(where, values, minlength=n_bins))
        return {name: np.reshape(part, (-1, *self.bins.shape, 1)) for name, part in sums.items()}

    def _permuted_pairs(self) -> Iterator[tuple[Int64[np.ndarray, " pair"], Int64[np.ndarray, " pair"]]]:
        """The pairs of different words that would share a topic, for every permutation, in one direction each."""
        generator = np.random.default_rng(self.intervals.seed)
        strata, form = self.bins.strata(self.words), self.words.form.numpy()
        held = torch.unique(self.words.group)
        sharing = np.nonzero(np.triu(self.words.topics.incidence.sharing(held, held).numpy()))
        for _ in range(self.permutations.n_permutations):
            given = np.arange(self.words.n_forms)
            for words in strata:
                given[generator.permutation(words)] = words
            groups = np.searchsorted(held.numpy(), self.words.groups_given(given))
            first, second = pairs_of_labels(groups, *sharing)
            # Those of two groups are there in one direction, those within a group in both.
            once = (groups[first] != groups[second]) | (first < second)
            once &= form[first] != form[second]
            yield first[once], second[once]

    def _under_weights_of(
        self,
        truth: Float64[np.ndarray, "pmi frequency 1 3"],
        sums: Float64[np.ndarray, "permutation pmi frequency 1 3"],
        counts: Float64[np.ndarray, "permutation pmi frequency 1 3"],
    ) -> Float64[np.ndarray, "way permutation"]:
        """The statistic of permuted labels for every way of matching, bins weighing as with the true ones."""
        statistics = []
        for axes in MATCHED_ON.values():
            held = collapse(truth, axes)
            weights = np.where(held[..., 2] > 0, held[..., 1], 0.0)
            same, different, _, _ = matched_means(collapse(sums, axes), collapse(counts, axes), weights[None])
            statistics.append(compare(same, different, self.statistic))
        return np.where(np.isfinite(statistics), statistics, np.nan)

    def _contrast(
        self,
        sums: Float64[np.ndarray, "pmi frequency distance 3"],
        counts: Float64[np.ndarray, "pmi frequency distance 3"],
        squares: Float64[np.ndarray, "pmi frequency distance"],
        intervals: dict[str, Float64[np.ndarray, "way 2"]],
        units: tuple[int, str],
        p_values: Float64[np.ndarray, " way"],
    ) -> Contrast:
        ways = ways_of(sums)
        parts = []
        for part in (sums, counts, squares[..., None]):
            cells = [collapse(part, axes) for axes in ways.values()]
            parts.append(np.stack([np.pad(c, ((0, squares.size - len(c)), (0, 0))) for c in cells]))
        uncertainty: dict[str, Any] = {"statistic": self.statistic, "index": {"matched_on": tuple(ways)}}
        if self.intervals.n_resamples:
            uncertainty |= intervals | {"note": no_interval_reason(intervals["interval"], *units)}
        if self.permutations.n_permutations:
            uncertainty["p_value"] = p_values
        return noted(matched_contrast(parts[0], parts[1], parts[2][..., 0], **uncertainty), parts[1])

    def _by_bin(
        self,
        sums: Float64[np.ndarray, "pmi frequency 1 3"],
        counts: Float64[np.ndarray, "pmi frequency 1 3"],
        squares: Float64[np.ndarray, "pmi frequency 1"],
    ) -> Contrast:
        flat, n_flat = sums.reshape(-1, 1, 3), counts.reshape(-1, 1, 3)
        held = np.flatnonzero(n_flat[:, 0, 1:].sum(1) > 0)
        spread = matched_spread(flat[held], n_flat[held], squares.reshape(-1, 1)[held])
        numbers = (*divide(flat[held, 0], n_flat[held, 0]).T, *n_flat[held, 0].T)
        return replace(Contrast(*numbers), index=self.bins.index(held), spread=spread)
