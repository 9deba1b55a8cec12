"""Is it topics, or do words of a topic merely occur together? Pairs compared at equal co-occurrence and frequency."""

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from topic_probe.contrast import Contrast
from topic_probe.data.cooccurrence import Cooccurrence
from topic_probe.lens import capture
from topic_probe.measure.pairs import ClassSums, attention_by_class, pair_codes
from topic_probe.measure.report import Report, provenance
from topic_probe.measure.words import SCORES, first_topics, labelled_words
from topic_probe.topics import Topics
from topic_probe.uncertainty import (
    MIN_UNITS,
    Alternative,
    compare,
    divide,
    effective_units,
    no_interval_reason,
    percentile_interval,
    permutation_p_value,
    resample,
    split_halves,
    word_interval,
)

if TYPE_CHECKING:
    import pandas as pd

# What pairs have to have in common to be compared, as axes of the sums [co-occurrence, frequency, distance].
MATCHED_ON: dict[str, tuple[int, ...]] = {
    "nothing": (),
    "frequency": (1,),
    "co-occurrence": (0,),
    "co-occurrence and frequency": (0, 1),
}
WITH_DISTANCE = "co-occurrence, frequency and distance"

# The first distance |i − j| of every bin but the first.
DISTANCE_BINS = (2, 3, 5, 9, 17, 33, 65, 129, 257)

NOT_MATCHED = "no bin holds pairs of the same topic and of different topics"
_ROWS_AT_ONCE = 512

MatchedStatistic = Literal["ratio", "difference"]


@dataclass(frozen=True, eq=False, repr=False)
class MatchedReport(Report, kind="matched"):
    """What is left of a topic effect between words that occur together equally often and are equally frequent.

    Same-topic and different-topic pairs are compared within bins of pointwise mutual information and of the document
    frequencies of the two words. Both means weigh the bins by their number of same-topic pairs, where a bin holds both
    kinds. ``cosine``, ``dot`` and ``attention`` have a cell for every way of matching, from none at all to all of it;
    if the effect were co-occurrence alone, the matched ratio would be 1. Bins have a width, and the PMI of rare words
    is mostly noise, so part of what co-occurrence does is left in a matched number: it errs upwards, and less so the
    more documents were counted and the more frequent the words are (``min_documents``).

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
        found = {"cosine": self.cosine, "dot": self.dot, "attention": self.attention}
        return {name: contrast for name, contrast in found.items() if contrast is not None}

    def to_dataframe(self, by: Literal["match", "bin", "layer", "head"] = "match") -> "pd.DataFrame":
        """A row for every score and way of matching; by "bin" for every bin; by "layer" or "head" of attention."""
        import pandas as pd

        if by in ("layer", "head"):
            contrast = self.layers if by == "layer" else self.heads
            if contrast is None:
                raise ValueError("no attention was measured: pass documents to measure_matched")
            return _without_same_word(contrast.to_dataframe())
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
        table: pd.DataFrame = _without_same_word(pd.concat(parts, ignore_index=True))
        return table[["score", *(name for name in table.columns if name != "score")]]


def _without_same_word(table: "pd.DataFrame") -> "pd.DataFrame":
    """Without the columns on a word with itself, which has no co-occurrence to be matched on."""
    return table.drop(columns=["same_word", "topic_ratio", "n_same_word"])


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
    special_ids: Collection[int] | None = None,
    batch_size: int = 32,
    max_length: int | None = None,
    long: Literal["cut", "chunk"] = "cut",
    statistic: MatchedStatistic = "ratio",
    n_resamples: int = 1000,
    confidence: float = 0.95,
    n_permutations: int = 200,
    alternative: Alternative = "two-sided",
    seed: int = 0,
    through: capture.Through = "auto",
    check_rows: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 300.0,
    distributed: bool = False,
    progress: bool = False,
) -> MatchedReport:
    """Same topic against different topics, between pairs of words matched on co-occurrence and frequency.

    Words of a topic occur together more often than others: that is how a topic model finds them. Whether a model treats
    them alike for that reason alone is answered by comparing pairs of the same topic with pairs of different topics
    that co-occur as much. Intervals say how much the number would change with other words (cosine, dot product) or
    other documents (attention). P-values permute topic labels among words of equal frequency and keep the weights of
    the bins, so that random topics are judged in the bins where real ones are; they are computed for attention too, but
    not for matching on distance.

    Every pair of words is held in memory: about 80 · n² bytes for n words.

    Args:
        model: anything that `open_model` takes. It comes back as it was.
        topics: which vocabulary entries belong to which topic; split words are left out.
        documents: token ids in any shape that `topic_probe.data.batches.token_batches` takes; None measures word
            embeddings only.
        cooccurrence: counts of the words of the topics, of these or of other documents: `count_cooccurrence`.
        pmi_bins: bins of equally many same-topic pairs that co-occur; pairs that never do have one more.
        frequency_bins: classes of equally many words; those of its two words, in any order, are the bin of a pair.
        min_documents: words in fewer documents are left out, because their PMI is mostly noise. If a higher number
            changes the matched ratio, there is still noise in it.
        center: subtract the mean over all rows of the embedding table, as in `measure_embeddings`.
        exclude: token ids left out.
        special_ids: ids of special tokens; by default what the model's tokenizer or configuration names.
        batch_size: documents in one forward pass; changes nothing but speed and memory.
        max_length: documents are cut at so many tokens, by default at what the model can take.
        long: "cut" drops the rest of longer documents, "chunk" makes documents of it.
        statistic: what intervals and p-values are about.
        n_resamples: resampled sets of words, or documents, behind the intervals; 0 leaves them out.
        confidence: what share of intervals is to hold the true number.
        n_permutations: permuted topic labels behind the p-values; 0 leaves them out.
        alternative: what counts as extreme in the p-values.
        seed: seed of resampling and permutations.
        through: how attention is read, see `topic_probe.lens.capture.View.attention_rows`.
        check_rows: whether rows that do not sum to one are an error.
        checkpoint: a folder in which sums over documents are saved on the way, as in `measure_attention`.
        checkpoint_every: seconds between two saves.
        distributed: whether this is one of several processes that share out the documents; all are given the counts of
            the whole corpus.
        progress: whether to show a progress bar.

    Raises:
        ValueError: for topics or counts of another vocabulary, or where fewer than two words are left.
    """
    from topic_probe.lens.hosts import open_model

    model = open_model(model)
    capture.check_topics(model, topics)
    excluded = sorted({int(id_) for id_ in exclude})
    words = _MatchedWords.of(
        model, topics, cooccurrence, min_documents=min_documents, center=center, exclude=excluded
    )
    bins = _Bins.of(words, pmi_bins=pmi_bins, frequency_bins=frequency_bins)
    found = _Found(words, bins, statistic, confidence, n_resamples, n_permutations, alternative, seed)
    cosine, dot, by_bin = found.embeddings()
    coverage = {"embeddings": _coverage(found.counts)}
    options = {
        "pmi_bins": pmi_bins, "frequency_bins": frequency_bins, "min_documents": min_documents, "center": center,
        "exclude": excluded, "max_length": max_length, "long": long, "statistic": statistic,
        "n_resamples": n_resamples, "confidence": confidence, "n_permutations": n_permutations,
        "alternative": alternative, "distance_bins": DISTANCE_BINS,
    }  # fmt: skip
    record = provenance(
        topics, model=capture.describe(model), options=options, seed=seed, left_out=words.left_out
    ) | {
        "words": len(words.ids),
        "cooccurrence": {"documents": cooccurrence.n_documents, **cooccurrence.provenance},
    }
    attention = layers = heads = None
    if documents is not None:
        sums = attention_by_class(
            model,
            Topics.from_token_ids({"words": words.ids}, vocabulary_size=topics.vocabulary_size),
            pair_codes(bins.classes.long(), words.same, ~words.same),
            documents,
            distances=DISTANCE_BINS,
            table=n_permutations > 0,
            special_ids=special_ids,
            batch_size=batch_size,
            max_length=max_length,
            long=long,
            through=through,
            check_rows=check_rows,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
            distributed=distributed,
            progress=progress,
        )
        attention, layers, heads, by_bin["attention"], coverage["attention"] = found.attention(sums)
        record["documents"] = sums.record
    return MatchedReport(cosine, dot, attention, layers, heads, coverage, by_bin, record)


# --- words and bins ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _MatchedWords:
    """The words that are compared, in the order of their ids, and what is known of every pair of them."""

    ids: Int64[Tensor, " word"]
    rows: Float[Tensor, "word d_embed"]
    norms: Float64[Tensor, " word"]
    frequency: Int64[Tensor, " word"]
    strata: Int64[np.ndarray, " word"]
    same: Bool[Tensor, "word word"]
    counts: Cooccurrence
    left_out: dict[str, int]

    @classmethod
    def of(
        cls,
        model: Any,
        topics: Topics,
        cooccurrence: Cooccurrence,
        *,
        min_documents: int,
        center: bool,
        exclude: list[int],
    ) -> "_MatchedWords":
        """The words with a topic, a row in the embedding table and enough documents."""
        if cooccurrence.vocabulary_size != topics.vocabulary_size:
            raise ValueError(
                f"co-occurrence was counted over a vocabulary of {cooccurrence.vocabulary_size} ids, the topics have "
                f"{topics.vocabulary_size}: count it with count_cooccurrence(documents, topics)"
            )
        found = labelled_words(capture.word_embeddings(model), topics, center=center, exclude=exclude)
        counted = cooccurrence.rows_of(found.ids)
        frequency = torch.where(counted >= 0, cooccurrence.document_frequency[counted], 0)
        kept = ((counted >= 0) & (frequency >= max(1, min_documents))).nonzero().flatten()
        left_out = dict(found.left_out) | {
            "words that co-occurrence was not counted of": int((counted < 0).sum()),
            f"words in fewer than {min_documents} documents": len(counted)
            - len(kept)
            - int((counted < 0).sum()),
        }
        left_out = {reason: n for reason, n in left_out.items() if n}
        if len(kept) < 2:
            raise ValueError(
                f"{len(kept)} of {len(topics.words)} words with a topic are left to compare, two are needed: {left_out}"
            )
        kept = kept[found.ids[kept].argsort()]
        group = found.group[kept]
        return cls(
            ids=found.ids[kept],
            rows=found.rows[found.index[kept].to(found.rows.device)].cpu(),
            norms=found.norms[kept],
            frequency=frequency[kept],
            strata=first_topics(topics)[group.numpy()],
            same=topics.shared[group][:, group].fill_diagonal_(False),
            counts=cooccurrence.restrict(found.ids[kept]),
            left_out=left_out,
        )

    def scores(self, rows: slice) -> dict[str, Float64[np.ndarray, "row word"]]:
        """Cosines and dot products of some words with all."""
        dot = (self.rows[rows].double() @ self.rows.double().T).numpy()
        return {"cosine": dot / (self.norms[rows, None] * self.norms).numpy(), "dot": dot}


@dataclass(frozen=True)
class _Bins:
    """The bin of every pair: of PMI (0: never together), times pairs of frequency classes."""

    classes: Int64[Tensor, "word word"]
    pmi_edges: tuple[float, ...]
    frequency_limits: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Bins of PMI and of frequency."""
        n = len(self.frequency_limits)
        return len(self.pmi_edges) + 2, n * (n + 1) // 2

    @classmethod
    def of(cls, words: _MatchedWords, *, pmi_bins: int, frequency_bins: int) -> "_Bins":
        """Bins of equally many same-topic pairs, and classes of equally many words, as far as ties allow."""
        if pmi_bins < 1 or frequency_bins < 1:
            raise ValueError(
                f"pmi_bins and frequency_bins must be at least 1, got {pmi_bins} and {frequency_bins}"
            )
        class_of, limits = _frequency_classes(words.frequency.numpy(), frequency_bins)
        n = len(limits)
        lower, higher = (
            torch.minimum(class_of[:, None], class_of),
            torch.maximum(class_of[:, None], class_of),
        )
        frequency = lower * (2 * n - lower - 1) // 2 + higher
        pmi = words.counts.pmi()
        wanted = pmi[words.same & torch.isfinite(pmi)].numpy()
        edges = (
            np.unique(np.quantile(wanted, np.arange(1, pmi_bins) / pmi_bins)) if len(wanted) else np.zeros(0)
        )
        place = torch.bucketize(pmi, torch.from_numpy(edges), right=True) + 1
        place = torch.where(torch.isinf(pmi), 0, place)
        return cls(place * (n * (n + 1) // 2) + frequency, tuple(edges.tolist()), limits)

    def index(self, cells: Int64[np.ndarray, " cell"]) -> dict[str, tuple[Any, ...]]:
        """What the table says of every bin: limits of PMI, and of the document frequencies of its two words."""
        edges = [-np.inf, *self.pmi_edges, np.inf]
        pmi = [(-np.inf, -np.inf), *pairwise(edges)]
        n = len(self.frequency_limits)
        pairs = [
            (self.frequency_limits[one], self.frequency_limits[other])
            for one in range(n)
            for other in range(one, n)
        ]
        place, frequency = np.divmod(cells, len(pairs))
        return {
            "pmi_from": tuple(pmi[cell][0] for cell in place),
            "pmi_to": tuple(pmi[cell][1] for cell in place),
            "documents_of_one": tuple(f"{pairs[cell][0][0]}–{pairs[cell][0][1]}" for cell in frequency),
            "documents_of_other": tuple(f"{pairs[cell][1][0]}–{pairs[cell][1][1]}" for cell in frequency),
        }


def _frequency_classes(
    frequency: Int64[np.ndarray, " word"], n: int
) -> tuple[Int64[Tensor, " word"], tuple[tuple[int, int], ...]]:
    """The class of every word, and the lowest and highest frequency in every class."""
    edges = np.unique(np.quantile(frequency, np.arange(1, n) / n, method="inverted_cdf"))
    _, found = np.unique(np.searchsorted(edges, frequency, side="left"), return_inverse=True)
    limits = tuple(
        (int(frequency[found == place].min()), int(frequency[found == place].max()))
        for place in range(found.max() + 1)
    )
    return torch.from_numpy(found.astype(np.int64)), limits


# --- means over matched bins ------------------------------------------------------------------------


def _collapse(
    values: Float64[np.ndarray, "*shape pmi frequency distance 3"], axes: tuple[int, ...]
) -> Float64[np.ndarray, "*shape cell 3"]:
    """Sums (or counts) by bins of some of the axes only."""
    others = tuple(axis - 4 for axis in range(3) if axis not in axes)
    kept = values.sum(others)
    return np.asarray(kept.reshape(*values.shape[:-4], -1, 3))


def matched_contrast(
    sums: Float64[np.ndarray, "*shape cell 3"],
    counts: Float64[np.ndarray, "*shape cell 3"],
    **uncertainty: Any,
) -> Contrast:
    """Means of bin means, bins weighed by their number of same-topic pairs, over bins that hold both kinds of pairs.

    ``n_same_topic`` and ``n_different_topic`` count the pairs in those bins; the last axis is as in `PairSums`, and
    what is in its first place is not looked at.
    """
    same, different, n_same, n_different = _matched(sums, counts)
    found = Contrast(
        np.full(same.shape, np.nan), same, different, np.zeros(same.shape), n_same, n_different, **uncertainty
    )
    unmatched = (counts[..., 1].sum(-1) > 0) & (counts[..., 2].sum(-1) > 0) & (n_same == 0)
    if unmatched.any():
        found = replace(found, reason="; ".join(filter(None, [found.reason, NOT_MATCHED])))
    return found


def _matched(
    sums: Float64[np.ndarray, "*shape cell 3"],
    counts: Float64[np.ndarray, "*shape cell 3"],
    weights: Float64[np.ndarray, "*#shape cell"] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Same-topic mean, different-topic mean, numbers of pairs; bins weigh what they hold, or what they are told."""
    both = (counts[..., 1] > 0) & (counts[..., 2] > 0)
    weights = np.where(both, counts[..., 1] if weights is None else weights, 0.0)
    means = np.nan_to_num(divide(sums, counts))
    total = weights.sum(-1)
    same, different = (divide((weights * means[..., relation]).sum(-1), total) for relation in (1, 2))
    n_same, n_different = (
        np.asarray(np.where(both, counts[..., relation], 0.0).sum(-1)) for relation in (1, 2)
    )
    return same, different, n_same, n_different


def _coverage(counts: Float64[np.ndarray, "pmi frequency distance 3"]) -> Float64[np.ndarray, " way"]:
    """The share of same-topic pairs that are in bins with both kinds, for every way of matching."""
    covered = [
        _matched(counts, counts)[2] for counts in (_collapse(counts, axes) for axes in _ways(counts).values())
    ]
    return divide(np.array(covered), counts[..., 1].sum())


def _ways(values: np.ndarray) -> dict[str, tuple[int, ...]]:
    """The ways of matching; by distance where there are distances."""
    return MATCHED_ON | ({WITH_DISTANCE: (0, 1, 2)} if values.shape[-2] > 1 else {})


@dataclass
class _Found:
    """Gathers sums by bin, and makes contrasts with their uncertainty of them."""

    words: _MatchedWords
    bins: _Bins
    statistic: MatchedStatistic
    confidence: float
    n_resamples: int
    n_permutations: int
    alternative: Alternative
    seed: int

    def __post_init__(self) -> None:
        codes = pair_codes(self.bins.classes, self.words.same, ~self.words.same).numpy()
        self.codes = codes
        self.shape = (*self.bins.shape, 1, 3)
        self.counts = self._by_code(codes[codes >= 0])

    def _by_code(self, codes: np.ndarray, values: np.ndarray | None = None) -> np.ndarray:
        # Both directions of a pair are in the table; one is enough.
        total = np.bincount(codes, values, minlength=int(np.prod(self.shape)))
        return np.asarray(total.reshape(self.shape) / 2)

    def _blocks(self) -> Iterable[slice]:
        n = len(self.words.ids)
        return (slice(start, min(start + _ROWS_AT_ONCE, n)) for start in range(0, n, _ROWS_AT_ONCE))

    # --- embeddings -----------------------------------------------------------------------------

    def embeddings(self) -> tuple[Contrast, Contrast, dict[str, Contrast]]:
        """Cosine and dot product by way of matching, and by bin."""
        intervals = self._word_intervals()
        contrasts, by_bin = [], {}
        for number, score in enumerate(SCORES):
            table = np.concatenate([self.words.scores(rows)[score] for rows in self._blocks()])
            sums = self._by_code(self.codes[self.codes >= 0], table[self.codes >= 0])
            p_values = self._p_values(sums, self.counts, table, None)
            contrasts.append(self._contrast(sums, self.counts, intervals[:, number], "words", p_values))
            by_bin[score] = self._by_bin(sums, self.counts)
        return contrasts[0], contrasts[1], by_bin

    def _word_intervals(self) -> Float64[np.ndarray, "way score 2"]:
        """Intervals from resampled words. Every different-topic pair weighs as much as matching makes it weigh."""
        if self.n_resamples == 0:
            return np.full((len(MATCHED_ON), len(SCORES), 2), np.nan)
        halves = split_halves(self.words.strata, seed=self.seed)
        n_ends, *ends = self._ends(halves)  # [word, half, code]
        place = np.arange(n_ends.shape[2]) % 3
        intervals = []
        for axes in MATCHED_ON.values():
            weights = self._pair_weights(axes)
            same, different = (np.where(place == wanted, weights, 0.0) for wanted in (1, 2))
            intervals.append(
                word_interval(
                    np.stack([2 * (end @ same).T for end in ends], -1),
                    2 * (n_ends @ same).T,
                    np.stack([2 * (end @ different).T for end in ends], -1),
                    2 * (n_ends @ different).T,
                    self.words.strata,
                    statistic=self.statistic,
                    n_resamples=self.n_resamples,
                    level=self.confidence,
                    seed=self.seed,
                )
            )
        return np.stack(intervals)

    def _ends(self, halves: Int64[np.ndarray, " word"]) -> list[Float64[np.ndarray, "word half code"]]:
        """For every word the number of pairs, and their scores, by half of the partner and by code."""
        n_codes = self.counts.size
        found: list[list[np.ndarray]] = [[] for _ in range(1 + len(SCORES))]
        for rows in self._blocks():
            codes = self.codes[rows]
            n = len(codes)
            held = codes >= 0
            cells = ((2 * np.arange(n)[:, None] + halves) * n_codes + codes)[held]
            for parts, values in zip(found, (None, *self.words.scores(rows).values()), strict=True):
                given = None if values is None else values[held]
                total = np.bincount(cells, given, minlength=2 * n * n_codes).astype(np.float64)
                parts.append(total.reshape(n, 2, n_codes))
        return [np.concatenate(parts) for parts in found]

    def _pair_weights(self, axes: tuple[int, ...]) -> Float64[np.ndarray, " code"]:
        """What a pair with a code weighs in the matched means."""
        others = tuple(axis for axis in range(3) if axis not in axes)
        counts = self.counts.sum(others, keepdims=True)
        both = (counts[..., 1] > 0) & (counts[..., 2] > 0)
        weights = np.zeros(self.shape)
        weights[..., 1] = both
        weights[..., 2] = np.where(both, np.nan_to_num(divide(counts[..., 1], counts[..., 2])), 0.0)
        return weights.ravel()

    # --- attention ------------------------------------------------------------------------------

    def attention(
        self, found: ClassSums
    ) -> tuple[Contrast, Contrast, Contrast, Contrast, Float64[np.ndarray, " way"]]:
        """By way of matching, by layer, by head, by bin, and the coverage."""
        sums, counts = (self._with_all_classes(part) for part in (found.heads, found.n_heads))
        total, n_total = sums.sum(0), counts.sum(0)
        p_values = np.full(len(_ways(total)), np.nan)
        if found.table is not None:
            by_words = [part.sum(2, keepdims=True) for part in (total, n_total)]
            p_values[: len(MATCHED_ON)] = self._p_values(by_words[0], by_words[1], *found.table)
        intervals = self._document_intervals(found, total.shape)
        overall = self._contrast(total, n_total, intervals, "documents", p_values)
        everything = [_collapse(part, (0, 1, 2)) for part in (sums, counts)]
        heads = matched_contrast(*everything, index=found.index)
        names = list(zip(found.index["stack"], found.index["layer"], strict=True))
        starts = [place for place, name in enumerate(names) if place == 0 or name != names[place - 1]]
        layers = matched_contrast(
            *(np.add.reduceat(part, starts, axis=0) for part in everything),
            index={name: tuple(found.index[name][start] for start in starts) for name in ("stack", "layer")},
        )
        by_bin = self._by_bin(*(part.sum(2, keepdims=True) for part in (total, n_total)))
        return overall, layers, heads, by_bin, _coverage(n_total)

    def _with_all_classes(self, part: Float64[np.ndarray, "head class distance 3"]) -> np.ndarray:
        """[head, PMI, frequency, distance, 3]; the last classes may have had no pair."""
        n_classes = int(np.prod(self.bins.shape))
        padded = np.pad(part, ((0, 0), (0, n_classes - part.shape[1]), (0, 0), (0, 0)))
        return np.asarray(padded.reshape(len(part), *self.bins.shape, *part.shape[2:]))

    def _document_intervals(self, found: ClassSums, shape: tuple[int, ...]) -> Float64[np.ndarray, "way 2"]:
        ways = _ways(np.zeros(shape)).values()
        if self.n_resamples == 0 or len(found.by_document) < MIN_UNITS:
            return np.full((len(ways), 2), np.nan)
        n_distances = shape[2]
        parts = [
            self._with_all_classes(part.reshape(len(part), -1, n_distances, 3))
            for part in found.by_document.rows()[1:]
        ]
        return np.stack(
            [self._document_interval(*(_collapse(part, axes) for part in parts)) for axes in ways]
        )

    def _document_interval(
        self, sums: Float64[np.ndarray, "document cell 3"], counts: Float64[np.ndarray, "document cell 3"]
    ) -> Float64[np.ndarray, "2"]:
        """The interval of a matched number, bins and weights being found anew in every resample."""
        used = (counts[..., 1].sum(0) > 0) & (counts[..., 2].sum(0) > 0)
        sums, counts = sums[:, used], counts[:, used]
        if not used.any():
            return np.full(2, np.nan)
        flat = [np.ascontiguousarray(part.reshape(len(part), -1)) for part in (sums, counts)]

        def resampled(weights: Float64[np.ndarray, "resample document"]) -> Float64[np.ndarray, "resample 1"]:
            same, different, _, _ = _matched(
                *((weights @ part).reshape(len(weights), -1, 3) for part in flat)
            )
            return compare(same, different, self.statistic)[:, None]

        values = resample(resampled, np.array([len(sums)]), n_resamples=self.n_resamples, seed=self.seed)
        by_document = counts.sum(1)
        effective = np.minimum(effective_units(by_document[:, 1:2]), effective_units(by_document[:, 2:3]))
        return np.asarray(percentile_interval(values, effective, level=self.confidence)[0])

    # --- both -----------------------------------------------------------------------------------

    def _p_values(
        self,
        sums: Float64[np.ndarray, "pmi frequency 1 3"],
        counts: Float64[np.ndarray, "pmi frequency 1 3"],
        table: np.ndarray,
        n_table: np.ndarray | None,
    ) -> Float64[np.ndarray, " way"]:
        """Permuted labels: words of equal frequency take each other's place; bins weigh as they do in truth."""
        if self.n_permutations == 0:
            return np.full(len(MATCHED_ON), np.nan)
        first, second = np.nonzero(np.triu(self.words.same.numpy(), 1))
        classes = self.bins.classes.numpy()
        generator = np.random.default_rng(self.seed)
        strata = _frequency_strata(classes, self.bins)
        null = []
        for _ in range(self.n_permutations):
            order = _permuted_within(strata, generator)
            one, other = order[first], order[second]
            where, n = classes[one, other], None if n_table is None else n_table[one, other]
            null.append(
                [np.bincount(where, values, minlength=counts.size // 3) for values in (table[one, other], n)]
            )
        same, n_same = (np.reshape(part, (-1, *counts.shape[:-1])) for part in zip(*null, strict=True))
        total, n_total = sums[..., 1:].sum(-1), counts[..., 1:].sum(-1)
        nothing = np.zeros(same.shape)
        permuted = self._judged(
            np.stack([nothing, same, total - same], -1),
            np.stack([nothing, n_same, n_total - n_same], -1),
            counts,
        )
        observed = self._judged(sums[None], counts[None], counts)[:, 0]
        return permutation_p_value(observed, permuted, alternative=self.alternative)

    def _judged(
        self,
        sums: Float64[np.ndarray, "permutation pmi frequency 1 3"],
        numbers: Float64[np.ndarray, "permutation pmi frequency 1 3"],
        counts: Float64[np.ndarray, "pmi frequency 1 3"],
    ) -> Float64[np.ndarray, "way permutation"]:
        """The statistic of permuted labels for every way of matching, with the weights of the true ones."""
        found = []
        for axes in MATCHED_ON.values():
            weights = _collapse(counts, axes)
            held = np.where(weights[..., 2] > 0, weights[..., 1], 0.0)
            same, different, _, _ = _matched(_collapse(sums, axes), _collapse(numbers, axes), held[None])
            found.append(compare(same, different, self.statistic))
        return np.where(np.isfinite(found), found, np.nan)

    def _contrast(
        self,
        sums: Float64[np.ndarray, "pmi frequency distance 3"],
        counts: Float64[np.ndarray, "pmi frequency distance 3"],
        intervals: Float64[np.ndarray, "way 2"],
        what: str,
        p_values: Float64[np.ndarray, " way"],
    ) -> Contrast:
        ways = _ways(sums)
        parts = [
            np.stack([_padded(_collapse(part, axes), part.size // 3) for axes in ways.values()])
            for part in (sums, counts)
        ]
        uncertainty: dict[str, Any] = {"statistic": self.statistic, "index": {"matched_on": tuple(ways)}}
        if self.n_resamples:
            n_units = len(self.words.ids) if what == "words" else MIN_UNITS
            uncertainty |= {"interval": intervals, "reason": no_interval_reason(intervals, n_units, what)}
        if self.n_permutations:
            uncertainty["p_value"] = p_values
        return matched_contrast(*parts, **uncertainty)

    def _by_bin(
        self, sums: Float64[np.ndarray, "pmi frequency 1 3"], counts: Float64[np.ndarray, "pmi frequency 1 3"]
    ) -> Contrast:
        flat, n_flat = sums.reshape(-1, 1, 3), counts.reshape(-1, 1, 3)
        held = np.flatnonzero(n_flat[:, 0, 1:].sum(1) > 0)
        same, different = (divide(flat[held, 0, place], n_flat[held, 0, place]) for place in (1, 2))
        return Contrast(
            np.full(len(held), np.nan), same, different, np.zeros(len(held)), n_flat[held, 0, 1], n_flat[held, 0, 2],
            index=self.bins.index(held),
        )  # fmt: skip


def _padded(cells: Float64[np.ndarray, "cell 3"], n: int) -> Float64[np.ndarray, "n 3"]:
    return np.asarray(np.pad(cells, ((0, n - len(cells)), (0, 0))))


def _frequency_strata(classes: Int64[np.ndarray, "word word"], bins: _Bins) -> list[Int64[np.ndarray, "_"]]:
    """The words of every frequency class: the class of a word with itself names it."""
    own = classes.diagonal() % bins.shape[1]
    return [np.flatnonzero(own == value) for value in np.unique(own)]


def _permuted_within(
    strata: list[Int64[np.ndarray, "_"]], generator: np.random.Generator
) -> Int64[np.ndarray, " word"]:
    """Which word takes the place of each, within its stratum."""
    order = np.arange(sum(len(words) for words in strata))
    for words in strata:
        order[words] = generator.permutation(words)
    return order
