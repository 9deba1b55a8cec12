"""Is it topics, or do words of a topic merely occur together? Pairs compared at equal co-occurrence and frequency.

A pair of words is in a class of pairs that co-occur as much and are as frequent; in documents, class and distance are
its bin. Sums by bin have seven columns, as rows of `topic_probe.sums.SourceSums`: sums of scores by relation, numbers
of pairs by relation, and squares.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

from topic_probe.contrast import (
    Contrast,
    matched_contrast,
    matched_means,
    matched_spread,
    no_interval_reason,
    side_by_side,
)
from topic_probe.estimate import Ends, divide, jackknife, over_words, permutation_p_value, split_halves
from topic_probe.lens.host import facts_of, host_of
from topic_probe.lens.opening import open_model
from topic_probe.lens.weights import word_embeddings
from topic_probe.measure.ask import Question, ask, source_limit
from topic_probe.measure.documents import why_nothing
from topic_probe.measure.folder import Progress
from topic_probe.measure.heads import Heads, layer_starts
from topic_probe.measure.options import Confidence, Reading, Run, recorded
from topic_probe.measure.pairs import Words, wide
from topic_probe.measure.words import SCORES, EmbeddingWords, labelled_words
from topic_probe.options import check_whole, shares
from topic_probe.report import Report, provenance
from topic_probe.sums import SourceSums
from topic_probe.text.cooccurrence import Cooccurrence
from topic_probe.topics import Topics
from topic_probe.topics.lists import token_id_array

if TYPE_CHECKING:
    import pandas as pd

# The first distance |i − j| of every bin but the first.
DISTANCE_BINS = (2, 3, 5, 9, 17, 33, 65, 129, 257)

# What pairs have to have in common to be compared, as axes of sums [co-occurrence, frequency, distance].
MATCHED_ON: dict[str, tuple[int, ...]] = {
    "nothing": (),
    "frequency": (1,),
    "co-occurrence": (0,),
    "co-occurrence and frequency": (0, 1),
    "co-occurrence, frequency and distance": (0, 1, 2),
}
NOT_MATCHED = "no bin holds pairs of the same topic and of different topics"

_AT_ONCE = 2**23  # pairs × permutations that are looked at


@dataclass(frozen=True, eq=False, repr=False)
class MatchedReport(Report, kind="matched"):
    """What is left of a topic effect between words that occur together equally often and are equally frequent.

    Same-topic and different-topic pairs are compared within bins of pointwise mutual information and of the document
    frequencies of the two words. Both means weigh the bins by their number of same-topic pairs, where a bin holds both
    kinds; effect sizes are in standard deviations of the scores of these. If the effect were co-occurrence alone, the
    matched ratio would be 1. Bins have a width, and the PMI of rare words is mostly noise, so matched numbers err
    upwards, less so the more documents were counted and the more frequent words are (``min_documents``).

    Attributes:
        cosine: mean cosine between embeddings of different words, a cell for every way of matching.
        dot: the same of dot products.
        attention: the same of attention relative to uniform, all heads pooled, between positions, whose distance can be
            matched, too. None where no documents were given.
        layers: attention by stack and layer, matched on everything.
        heads: attention by head, matched on everything.
        coverage: "embeddings" and "attention": the share of same-topic pairs in bins that hold both kinds, for
            every way of matching.
        provenance: model, topics, options, versions, and what was left out and why.
    """

    cosine: Contrast
    dot: Contrast
    attention: Contrast | None
    layers: Contrast | None
    heads: Contrast | None
    coverage: Mapping[str, Float64[np.ndarray, " way"]]
    provenance: Mapping[str, Any]

    @classmethod
    def of_sums(
        cls, sums: Mapping[str, Any], progress: Progress, parts: Mapping[str, Any]
    ) -> "MatchedReport":
        """The report of words ("words" of parts) with what `ClassSums` of attention say; ValueError of no documents."""
        if not len(sums["by_source"]) and progress.whole:
            raise ValueError(why_nothing(progress))
        report, shape, index = parts["words"], parts["shape"], parts["index"]
        by_head, null = sums["by_head"].reshape(-1, *shape, 7), sums["null"].reshape(-1, 2, *shape)
        rows = sums["by_source"].rows()[1].reshape(-1, *shape, 7)

        def interval(axes: tuple[int, ...]) -> dict[str, Any]:
            return _over_sources(_on(rows, axes), parts) if len(rows) else {}

        attention = _by_way(by_head.sum(0), null, interval, parts)
        cells, starts = _on(by_head, (0, 1, 2)), layer_starts(index)
        of_layers = {name: tuple(index[name][start] for start in starts) for name in ("stack", "layer")}
        coverage = {"attention": divide(attention.n_same_topic, by_head[..., 4].sum())}
        documents = {**progress.record(), **sums["by_source"].record, **parts["read"]}
        return MatchedReport(
            report.cosine, report.dot, attention,
            layers=_contrast(np.add.reduceat(cells, starts), index=of_layers),
            heads=_contrast(cells, index=index),
            coverage={**report.coverage, **coverage},
            provenance={**report.provenance, "documents": documents},
        )  # fmt: skip

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every score and way of matching."""
        import pandas as pd

        parts = []
        for score in ("cosine", "dot", "attention"):
            contrast = getattr(self, score)
            if contrast is not None:
                table = contrast.to_dataframe({"score": score, **contrast.index})
                table["coverage"] = self.coverage["attention" if score == "attention" else "embeddings"]
                parts.append(table)
        # A word with itself has no co-occurrence to be matched on.
        joined: pd.DataFrame = pd.concat(parts, ignore_index=True)
        return joined.drop(columns=["same_word", "topic_ratio", "n_same_word"])


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
    n_permutations: int = 200,
    reading: Reading,
    intervals: Confidence,
    run: Run,
) -> MatchedReport:
    """Same topic against different topics, between pairs of words matched on co-occurrence and frequency.

    Words of a topic occur together more often than others: that is how a topic model finds them. Whether a model treats
    them alike for that reason alone is answered by comparing pairs of the same topic with pairs of different topics
    that co-occur as much. Intervals say how much the number would change with other words (cosine, dot product) or
    other texts (attention). P-values permute topics among words of equal frequency and keep the weights of the bins.

    Forms of one word ("President", " president") are one word, whose pairs are not compared and which permutations and
    intervals move together, within the class of its most frequent form. Tables of all pairs of words are held in
    memory: about 60 · n² bytes for n words.

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
        n_permutations: permuted topics of words behind the p-values; 0 leaves these out.

    Raises:
        ValueError: for topics or counts of another vocabulary, where fewer than two words are left, or for a folder of
            another measurement.
    """
    check_whole("n_permutations", n_permutations, 0)
    model = open_model(model)
    known = facts_of(model, topics)
    excluded = sorted(set(token_id_array(exclude, "exclude").tolist()))
    words, counted = _words(model, topics, cooccurrence, min_documents, center, excluded)
    pairs = _Pairs.of(words, counted, pmi_bins, frequency_bins, n_permutations, intervals.seed)
    asked = {"statistic": statistic, "confidence": intervals.confidence}
    cosine, dot = (pairs.contrast(score, intervals.seed, asked) for score in SCORES)
    options = {
        "pmi_bins": pmi_bins, "frequency_bins": frequency_bins, "min_documents": min_documents, "center": center,
        "exclude": excluded, "max_length": reading.max_length, "long": reading.long, "statistic": statistic,
        "n_permutations": n_permutations, **recorded(intervals), "distance_bins": DISTANCE_BINS,
    }  # fmt: skip
    record = provenance(
        topics, model=known.description, options=options, seed=intervals.seed, left_out=words.left_out
    )
    record |= {"words": words.n_forms}
    record |= {"cooccurrence": {"documents": cooccurrence.n_documents, **cooccurrence.provenance}}
    coverage = {"embeddings": divide(cosine.n_same_topic, (pairs.codes % 3 == 1).sum() / 2)}
    report = MatchedReport(cosine, dot, None, None, None, coverage, record)
    if documents is None:
        return report
    return _with_attention(report, model, pairs, documents, asked, reading, run)


def _with_attention(
    report: MatchedReport,
    model: Any,
    pairs: "_Pairs",
    documents: Any,
    asked: Mapping[str, Any],
    reading: Reading,
    run: Run,
) -> MatchedReport:
    """The report of words with attention in documents."""
    view = host_of(model)
    reading, words = reading.of(view.facts), pairs.words
    heads, facts = Heads.of(view), hashlib.sha256(pairs.codes.tobytes() + pairs.permuted.tobytes())
    question = ClassSums(
        Topics.from_token_ids({"words": words.ids}, vocabulary_size=words.topics.vocabulary_size),
        torch.from_numpy(pairs.codes), len(heads), pairs=pairs, distances=DISTANCE_BINS,
        facts={"measurement": "matched", "pairs": facts.hexdigest()},
    )  # fmt: skip
    parts = {
        **asked, "words": report, "shape": (*pairs.shape, len(DISTANCE_BINS) + 1),
        "index": heads.index(range(len(heads))), "read": {"max_length": reading.max_length},
    }  # fmt: skip
    of_report = {"kind": MatchedReport.kind, "parts": parts}
    [progress] = ask(view, [question], documents, reading=reading, run=run, report=of_report)
    return MatchedReport.of_sums(question.sums, progress, parts)


# ------------------------------------------------------------------------------ words and classes of pairs


def _words(
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
    words = labelled_words(word_embeddings(model), topics, center=center, exclude=exclude)
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
    some = kept.numpy()
    chosen = EmbeddingWords(topics, words.places[kept], words.rows[some], words.norms[some], left_out)
    return chosen, cooccurrence.restrict(chosen.ids)


@dataclass(frozen=True)
class _Pairs:
    """All pairs of the words that are compared.

    Attributes:
        words: the words, in the order of their ids.
        codes: of every pair 3 · its class + 1 for the same topic, + 2 for different ones; 0 for forms of one word.
        shape: numbers of classes by co-occurrence (the first: never together) and by frequency.
        permuted: the group of topics of every word when words of equal frequency take each other's place.
    """

    words: EmbeddingWords
    codes: Int64[np.ndarray, "word word"]
    shape: tuple[int, int]
    permuted: Int[np.ndarray, "word permutation"]

    @classmethod
    def of(
        cls,
        words: EmbeddingWords,
        counted: Cooccurrence,
        pmi_bins: int,
        frequency_bins: int,
        n: int,
        seed: int,
    ) -> "_Pairs":
        """Bins of equally many same-topic pairs, and classes of equally many words, as far as ties allow."""
        if pmi_bins < 1 or frequency_bins < 1:
            raise ValueError(
                f"pmi_bins and frequency_bins must be at least 1, got {pmi_bins} and {frequency_bins}"
            )
        one_word = (words.form[:, None] == words.form).numpy()
        same = words.topics.incidence.sharing(words.group, words.group).numpy() & ~one_word
        frequency, pmi = counted.document_frequency.numpy(), counted.pmi().numpy()
        limits = np.quantile(frequency, np.arange(1, frequency_bins) / frequency_bins, method="inverted_cdf")
        rank = np.searchsorted(np.unique(limits), frequency)
        often = pmi[same & np.isfinite(pmi)]
        limits = np.unique(np.quantile(often, np.arange(1, pmi_bins) / pmi_bins)) if len(often) else often
        met = np.where(np.isinf(pmi), 0, np.searchsorted(limits, pmi, side="right") + 1)
        n_ranks = int(rank.max()) + 1
        frequencies = np.minimum.outer(rank, rank) * n_ranks + np.maximum.outer(rank, rank)
        codes = 3 * (met * n_ranks**2 + frequencies) + np.where(same, 1, 2)
        permuted = words.groups_given(_permuted_words(words.form.numpy(), rank, n, seed))
        return cls(words, np.where(one_word, 0, codes), (len(limits) + 2, n_ranks**2), permuted)

    def contrast(self, score: str, seed: int, asked: Mapping[str, Any]) -> Contrast:
        """A score of the embedding table by way of matching."""
        rows, words = self.words.scored[score].astype(np.float64), self.words
        first, second = np.nonzero(np.triu(self.codes))
        scores = rows @ rows.T
        values, codes = torch.from_numpy(scores[first, second])[:, None], self.codes[first, second]
        ones, n_classes = torch.ones(len(codes)), int(np.prod(self.shape))
        found = _add_up(values, ones, torch.from_numpy(codes // 3), torch.from_numpy(codes % 3), n_classes)
        sums = found[:, :, 0].numpy().reshape(*self.shape, 1, 7)
        null = self.null(first, second, torch.stack([values[:, 0], ones]).numpy(), codes // 3, n_classes)

        def interval(axes: tuple[int, ...]) -> dict[str, Any]:
            ends = self._ends(scores, _weights(sums, axes), seed)
            estimate = over_words(ends, None, words.strata, statistic=asked["statistic"])
            limits = estimate.interval(asked["confidence"])[0]
            return {"interval": limits, "note": no_interval_reason(limits, words.n_forms, "words")}

        null = null.reshape(-1, 2, *self.shape, 1)
        return _by_way(sums, null, interval, asked)

    def null(
        self,
        first: np.ndarray,
        second: np.ndarray,
        values: Float64[np.ndarray, "2 pair"],
        bins: np.ndarray,
        n_bins: int,
    ) -> Float64[np.ndarray, "permutation 2 bin"]:
        """Sums of two values of pairs of words (by their places) over those that would share a topic."""
        from scipy.sparse import csr_array

        share = self.words.topics.incidence.pairwise(torch.device("cpu"))
        pair = np.arange(len(bins))
        where = np.concatenate([bins, n_bins + bins]), np.concatenate([pair, pair])
        into = csr_array((values.ravel(), where), shape=(2 * n_bins, len(bins)))
        found = np.zeros((self.permuted.shape[1], 2 * n_bins))
        for some in np.array_split(np.arange(len(found)), len(found) * len(bins) // _AT_ONCE + 1):
            groups = torch.from_numpy(self.permuted[:, some])
            found[some] = (into @ share(groups[first], groups[second]).numpy().astype(np.float64)).T
        return found.reshape(-1, 2, n_bins)

    def _ends(
        self, scores: Float64[np.ndarray, "word word"], weights: Float64[np.ndarray, " code"], seed: int
    ) -> Ends:
        """What every word adds to matched means, in which pairs weigh what their code does."""
        half = split_halves(self.words.strata, seed=seed)[self.words.form.numpy()]
        halves, parts = half[:, None] == np.arange(2), []
        for relation in (1, 2):
            weight = np.where(self.codes % 3 == relation, weights[self.codes], 0)
            for values in (weight * scores, weight):
                parts.append(2 * self.words.by_form(values @ halves).T)
        return Ends(parts[0][..., None], parts[1], parts[2][..., None], parts[3])


def _permuted_words(
    form: np.ndarray, rank: np.ndarray, n: int, seed: int
) -> Int64[np.ndarray, "form permutation"]:
    """Which word's topics each word is given, with all its forms, among words of equal frequency."""
    highest, generator = np.zeros(form.max() + 1, np.int64), np.random.default_rng(seed)
    np.maximum.at(highest, form, rank)
    strata = [np.flatnonzero(highest == number) for number in np.unique(highest)]
    given = np.tile(np.arange(len(highest))[:, None], n)
    for permutation in range(n):
        for words in strata:
            given[generator.permutation(words), permutation] = words
    return given


# ------------------------------------------------------------------------------ attention by class of the pair


class ClassSums(Question):
    """Attention relative to uniform attention by class of the pair of words and by distance.

    Attributes:
        sums: by bin "by_head" [head, bin, 7] and, of all heads, "by_source"; and "null" [permutation, 2, bin], sums
            and numbers of the pairs that would share a topic. Of class c and distance bin d the bin is c · n + d.
    """

    include_self = False

    def __init__(
        self, topics: Topics, codes: Int64[Tensor, "word word"], n_heads: int, *, pairs: "_Pairs | None" = None,
        distances: Sequence[int] = (), facts: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Sums of words that have a topic, whatever it is. Codes are those of ``pairs``; without these 1, 2 and 0."""
        self.topics, self.codes, self.pairs, self.facts = topics, codes, pairs, facts or {}
        self.edges, self.n_bins = torch.tensor(distances), len(distances) + 1
        if pairs is not None:
            self.n_bins *= int(np.prod(pairs.shape))
        n_permutations = 0 if pairs is None else pairs.permuted.shape[1]
        self.sums: dict[str, Any] = {
            "by_head": np.zeros((n_heads, self.n_bins, 7)),
            "by_source": SourceSums(source_limit(3 * self.n_bins), shape=(self.n_bins,)),
            "null": np.zeros((n_permutations, 2, self.n_bins)),
        }

    def prepare(self, words: Words) -> None:
        """The pairs that have a code: their places among all pairs of all documents, words, bins and relations."""
        query, key = words.query.places[:, :, None], words.key.places[:, None, :]
        codes = self.codes[query, key] * (words.relations > 0)
        document, i, j = codes.nonzero(as_tuple=True)
        code, distance = (
            codes[document, i, j],
            (words.query.first[document, i] - words.key.first[document, j]).abs(),
        )
        words.prepared = {
            "there": (document * codes.shape[1] + i) * codes.shape[2] + j, "document": document, "kind": code % 3,
            "bin": code // 3 * (len(self.edges) + 1) + torch.bucketize(distance, self.edges, right=True),
            "words": (query[document, i, 0].numpy(), key[document, 0, j].numpy()), "pooled": [],
        }  # fmt: skip

    def read(
        self,
        heads: Int64[Tensor, " head"],
        rows: Float[Tensor, "batch head token position"],
        visible: Bool[Tensor, "batch token position"],
        words: Words,
    ) -> None:
        """Adds up every head over all documents, and all heads by document."""
        there, document, bins, kind = (words.prepared[name] for name in ("there", "document", "bin", "kind"))
        n = words.once(visible, lambda: (words.pairs(visible).flatten()[there] > 0).double())
        values = wide(words.relative(rows, visible).movedim(1, 3).flatten(0, 2)[there])
        found = _add_up(
            values, n.to(values), document * self.n_bins + bins, kind, len(words.sources) * self.n_bins
        )
        found = found.view(-1, self.n_bins, 7, len(heads))
        words.add("by_head", heads, found.sum(0).movedim(2, 0))
        words.add("by_source", slice(None), found.sum(3))
        words.prepared["pooled"].append(torch.stack([values.sum(1), n.to(values) * len(heads)]).cpu())

    def finish(self, words: Words) -> None:
        """Adds up the pairs that would share a topic, of all heads together."""
        if len(self.sums["null"]) and self.pairs is not None:
            pooled = torch.stack(words.prepared["pooled"]).sum(0).double().numpy()
            (first, second), bins = words.prepared["words"], words.prepared["bin"].cpu().numpy()
            null = self.pairs.null(first, second, pooled, bins, self.n_bins)
            words.add("null", slice(None), torch.from_numpy(null))


def _add_up(
    values: Float[Tensor, "pair head"], n: Float[Tensor, " pair"], bins: Tensor, kinds: Tensor, n_bins: int
) -> Float[Tensor, "bin 7 head"]:
    """Sums of scores by bin, of pairs that are there (1) or not."""
    found = values.new_zeros(7 * n_bins, values.shape[1])
    found.index_add_(0, 7 * bins + kinds, values)
    found.index_add_(0, 7 * bins + 3 + kinds, n[:, None].to(values).expand_as(values))
    found.index_add_(0, 7 * bins + 6, values.square())
    return found.view(n_bins, 7, -1)


def _over_sources(cells: Float64[np.ndarray, "source cell 7"], asked: Mapping[str, Any]) -> dict[str, Any]:
    """The intervals of matched numbers and effect sizes, bins and weights being found anew without every source."""
    used = (cells[..., 4].sum(0) > 0) & (cells[..., 5].sum(0) > 0)
    sums, counts, squares = cells[:, used, :3], cells[:, used, 3:6], cells[:, used, 6]
    pairs = [counts[..., relation].sum(1) for relation in (1, 2)]

    def number(sums: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        same, different, _, _ = matched_means(sums, counts)
        return (same - different, None) if asked["statistic"] == "difference" else (same, different)

    def effect(sums: np.ndarray, counts: np.ndarray, squares: np.ndarray) -> tuple[np.ndarray, None]:
        same, different, _, _ = matched_means(sums, counts)
        return divide(same - different, matched_spread(sums, counts, squares)), None

    estimate = jackknife(number, (sums, counts), pairs, positive=bool((sums >= 0).all()))
    interval = estimate.interval(asked["confidence"])
    of_effect = jackknife(effect, (sums, counts, squares), pairs).interval(asked["confidence"])
    note = no_interval_reason(interval, len(cells), "sources")
    return {"interval": interval, "effect_size_interval": of_effect, "note": note}


# ------------------------------------------------------------------------------ means of matched pairs


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
    null: Float64[np.ndarray, "permutation 2 pmi frequency distance"],
    interval: Callable[[tuple[int, ...]], dict[str, Any]],
    asked: Mapping[str, Any],
) -> Contrast:
    """The contrasts of all ways of matching, by distance where there are distances."""
    ways = {name: axes for name, axes in MATCHED_ON.items() if sums.shape[2] > 1 or 2 not in axes}
    found = []
    for axes in ways.values():
        uncertainty = interval(axes)
        if len(null):
            uncertainty["p_value"] = _p_value(sums, null, axes, asked)
        found.append(_contrast(_on(sums, axes), statistic=asked["statistic"], **uncertainty))
    notes = dict.fromkeys(part.note for part in found if part.note)
    return replace(side_by_side(found, {"matched_on": tuple(ways)}), note="; ".join(notes) or None)


def _weights(sums: np.ndarray, axes: tuple[int, ...]) -> Float64[np.ndarray, " code"]:
    """What a pair of every code weighs in means that are matched on some axes."""
    others = tuple(axis for axis in range(3) if axis not in axes)
    counts = np.broadcast_to(sums[..., 3:6].sum(others, keepdims=True), (*sums.shape[:-1], 3)).reshape(-1, 3)
    both = (counts[:, 1] > 0) & (counts[:, 2] > 0)
    of_different = np.where(both, divide(counts[:, 1], counts[:, 2]), 0.0)
    return np.stack([np.zeros(len(both)), both, of_different], 1).ravel()


def _p_value(
    sums: np.ndarray, null: np.ndarray, axes: tuple[int, ...], asked: Mapping[str, Any]
) -> np.ndarray:
    """Of permuted labels, under which bins weigh as they do in truth."""
    same = np.moveaxis(null, 1, -1)
    different = sums[..., [1, 4]] + sums[..., [2, 5]] - same
    permuted = np.stack([np.zeros_like(same), same, different], -1).reshape(*same.shape[:-1], 6)
    cells = _on(np.concatenate([sums[None, ..., :6], permuted]), axes)
    weights = np.where(cells[:1, :, 5] > 0, cells[:1, :, 4], 0.0)
    means = matched_means(cells[..., :3], cells[..., 3:], weights)
    numbers = means[0] - means[1] if asked["statistic"] == "difference" else divide(*means[:2])
    return permutation_p_value(numbers[0], numbers[1:])
