"""Is it topics, or do words of a topic merely occur together? Pairs compared at equal co-occurrence and frequency.

Pairs of words are in bins of how often they occur together and of how frequent the two are. A bin has a number, from
which what a pair has in common with others is told: [co-occurrence, frequency], and in documents also [distance].
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

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
from topic_probe.lens import capture
from topic_probe.lens.opening import open_model
from topic_probe.measure.ask import Question, ask, source_limit
from topic_probe.measure.documents import why_nothing
from topic_probe.measure.folder import Progress
from topic_probe.measure.heads import Heads, layer_starts
from topic_probe.measure.options import Intervals, Permutations, Reading, Run, recorded
from topic_probe.measure.pairs import Words, wide
from topic_probe.measure.words import SCORES, EmbeddingWords, labelled_words
from topic_probe.options import shares
from topic_probe.report import Report, provenance
from topic_probe.sums import SourceSums
from topic_probe.text.cooccurrence import Cooccurrence
from topic_probe.topics import Topics
from topic_probe.topics.lists import token_id_array

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

# Pairs × permutations that are looked at at once.
_AT_ONCE = 2**23

Statistic = Literal["ratio", "difference"]
# From places of two words of every pair, columns of values, bins and their number: sums under permutations.
Null = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int], np.ndarray]

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

    @classmethod
    def of_sums(
        cls, sums: Mapping[str, Any], progress: Progress, parts: Mapping[str, Any]
    ) -> "MatchedReport":
        """The report of words ("words" of parts) with what attention has added up.

        ValueError where no document is left to measure.
        """
        if not len(sums["by_source"]) and progress.whole:
            raise ValueError(why_nothing(progress))
        return _with_attention(parts["words"], sums, progress, parts)

    def to_dataframe(self, by: Literal["match", "layer", "head"] = "match") -> "pd.DataFrame":
        """A row for every score and way of matching; by "layer" or "head" those of attention."""
        import pandas as pd

        if by == "match":
            scores = {"cosine": self.cosine, "dot": self.dot, "attention": self.attention}
            parts = [
                contrast.to_dataframe({"score": score, **(contrast.index or {})}).assign(
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
    pairs = _Pairs.of(words, counted, pmi_bins, frequency_bins, permutations.n_permutations, intervals.seed)
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
    made_of = {"confidence": intervals.over_sources, "statistic": statistic, "alternative": permutations.alternative}
    cosine, dot = (_contrast_of_words(pairs, score, intervals, made_of) for score in SCORES)
    coverage = {"embeddings": divide(cosine.n_same_topic, (pairs.codes % 3 == 1).sum() / 2)}
    report = MatchedReport(cosine, dot, None, None, None, coverage, record)
    if documents is None:
        return report
    view = capture.view(model)
    reading = reading.of(view.facts)
    heads = Heads.of(view)
    question = ClassSums(
        Topics.from_token_ids({"words": words.ids}, vocabulary_size=topics.vocabulary_size),
        torch.from_numpy(pairs.codes),
        len(heads),
        n_classes=int(np.prod(pairs.shape)),
        distances=DISTANCE_BINS,
        null=pairs.null if permutations.n_permutations else None,
        n_permutations=permutations.n_permutations,
        facts={"pairs": hashlib.sha256(pairs.codes.tobytes() + pairs.permuted.tobytes()).hexdigest()},
    )
    parts = {
        **made_of, "words": report, "shape": (*pairs.shape, len(DISTANCE_BINS) + 1),
        "index": heads.index(range(len(heads))), "read": {"max_length": reading.max_length},
    }  # fmt: skip
    of_report = {"kind": MatchedReport.kind, "parts": parts}
    [progress] = ask(view, [question], documents, reading=reading, run=run, report=of_report)
    return MatchedReport.of_sums(question.sums, progress, parts)


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
        codes: of every pair 3 · its bin + 1 for the same topic, + 2 for different ones; 0 for forms of one word.
        shape: how many bins of co-occurrence (the first: never together) and of frequency there are.
        permuted: the group of topics of every word when words of equal frequency take each other's place.
    """

    words: EmbeddingWords
    codes: Int64[np.ndarray, "word word"]
    shape: tuple[int, int]
    permuted: Int[np.ndarray, "word permutation"]

    @classmethod
    def of(
        cls, words: EmbeddingWords, counted: Cooccurrence, pmi_bins: int, frequency_bins: int, n: int, seed: int
    ) -> "_Pairs":
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
        permuted = words.groups_given(_permuted_words(words.form.numpy(), class_of, n, seed))
        return cls(words, np.where(one_word, 0, codes), shape, permuted)

    def null(
        self, first: np.ndarray, second: np.ndarray, values: Float64[np.ndarray, "column pair"], bins: np.ndarray, n: int
    ) -> Float64[np.ndarray, "permutation column bin"]:
        """Sums over the pairs of words (by their places) that would share a topic, into so many bins."""
        from scipy.sparse import csr_array

        share, at_once = self.words.topics.incidence.pairwise(torch.device("cpu")), max(1, _AT_ONCE // max(1, len(bins)))
        where = np.arange(len(values))[:, None] * n + bins, np.broadcast_to(np.arange(len(bins)), values.shape)
        into = csr_array((values.ravel(), [part.ravel() for part in where]), shape=(len(values) * n, len(bins)))
        found = [np.zeros((len(values) * n, 0))]
        for start in range(0, self.permuted.shape[1], at_once):
            groups = torch.from_numpy(self.permuted[:, start : start + at_once])
            found.append(into @ share(groups[first], groups[second]).numpy().astype(np.float64))
        return np.concatenate(found, 1).T.reshape(-1, len(values), n)

    def ends(
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


def _permuted_words(form: np.ndarray, class_of: np.ndarray, n: int, seed: int) -> Int64[np.ndarray, "form permutation"]:
    """Which word's topics each word is given, with all its forms, within the class of its most frequent form."""
    own = np.zeros(form.max() + 1, np.int64)
    np.maximum.at(own, form, class_of)
    strata, generator = [np.flatnonzero(own == number) for number in np.unique(own)], np.random.default_rng(seed)
    given = np.tile(np.arange(len(own))[:, None], n)
    for permutation in range(n):
        for words in strata:
            given[generator.permutation(words), permutation] = words
    return given


def _contrast_of_words(
    pairs: _Pairs, score: str, intervals: Intervals, made_of: Mapping[str, Any]
) -> Contrast:
    """A score of the embedding table by way of matching."""
    rows, words = pairs.words.scored[score].astype(np.float64), pairs.words
    first, second = np.nonzero(np.triu(pairs.codes))
    scores = rows @ rows.T
    codes, values, n_bins = pairs.codes[first, second], scores[first, second], int(np.prod(pairs.shape))
    parts = [np.bincount(codes, weights, 3 * n_bins).reshape(-1, 3) for weights in (values, None, values**2)]
    sums = np.concatenate([*parts[:2], parts[2].sum(1, keepdims=True)], 1).reshape(*pairs.shape, 1, 7)
    null = pairs.null(first, second, np.stack([values, np.ones(len(values))]), codes // 3, n_bins)

    def interval(axes: tuple[int, ...]) -> dict[str, Any]:
        ends = pairs.ends(scores, _weights(sums, axes), intervals.seed)
        estimate = over_words(ends, None, words.strata, statistic=made_of["statistic"])
        limits = estimate.interval(intervals.confidence)[0]
        return {"interval": limits, "note": no_interval_reason(limits, words.n_forms, "words")}

    null = null.reshape(*null.shape[:2], *pairs.shape, 1)
    return _by_way(sums, null, interval if intervals.n_resamples else None, made_of)


# --------------------------------------------------------------------------------- attention by class of the pair


class ClassSums(Question):
    """Attention relative to uniform attention by class of the pair of words and distance.

    Attributes:
        sums: by head "by_head" [head, bin, 7] and of all heads "by_source", both with sums by relation, numbers of
            pairs by relation, and squares; "null" [permutation, 2, bin] has sums and numbers of the pairs that would
            share a topic. A pair whose code is 3 c + r is in the bin c · (1 + number of distances) + its distance bin.
    """

    include_self = False

    def __init__(
        self, topics: Topics, codes: Int64[Tensor, "word word"], n_heads: int, *, n_classes: int = 1, distances: Sequence[int] = (),
        null: Null | None = None, n_permutations: int = 0, facts: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Sums without a document, of words that have a topic, whatever it is; code 0 is of pairs of no interest."""
        self.topics, self.codes, self.edges, self.null = topics, codes, torch.tensor(distances), null
        self.n_bins = n_classes * (len(distances) + 1)
        self.facts = {"measurement": "attention by class", **(facts or {})}
        self.sums = {
            "by_head": np.zeros((n_heads, self.n_bins, 7)),
            "by_source": SourceSums(source_limit(3 * self.n_bins), shape=(self.n_bins,)),
            "null": np.zeros((n_permutations, 2, self.n_bins)),
        }

    def prepare(self, words: Words) -> None:
        """The pairs that have a code, by their numbers among all pairs of all documents, and their places in sums."""
        of_query, of_key = words.query.places[:, :, None], words.key.places[:, None, :]
        codes = self.codes[of_query, of_key] * ((of_query >= 0) & (of_key >= 0) & (words.relations > 0))
        document, query, key = codes.nonzero(as_tuple=True)
        code = codes[document, query, key]
        distance = (words.query.first[document, query] - words.key.first[document, key]).abs()
        bins = code // 3 * (len(self.edges) + 1) + torch.bucketize(distance, self.edges, right=True)
        words.prepared = {
            "there": (document * codes.shape[1] + query) * codes.shape[2] + key,
            "document": document, "bin": bins, "place": 3 * bins + code % 3, "pooled": [],
            "words": (of_query[document, query, 0], of_key[document, 0, key]),
        }  # fmt: skip

    def read(
        self,
        heads: Int64[Tensor, " head"],
        rows: Float[Tensor, "batch head token position"],
        visible: Bool[Tensor, "batch token position"],
        words: Words,
    ) -> None:
        """Adds up every head over all documents, and all heads by document."""
        there, bins, place = (words.prepared[name] for name in ("there", "bin", "place"))
        n_documents, n = len(words.sources), words.once(visible, lambda: words.pairs(visible).flatten()[there] > 0)
        values = wide(words.relative(rows, visible).movedim(1, 3).flatten(0, 2)[there])
        parts = []
        for numbers, per_bin in ((values, 3), (n[:, None].expand_as(values), 3), (values**2, 1)):
            into = values.new_zeros(n_documents * self.n_bins * per_bin, len(heads))
            at = words.prepared["document"] * self.n_bins * per_bin + (place if per_bin == 3 else bins)
            parts.append(into.index_add_(0, at, numbers.to(values)).view(n_documents, self.n_bins, per_bin, -1))
        sums = torch.cat(parts, 2)
        words.add("by_head", heads, sums.sum(0).movedim(2, 0))
        words.add("by_source", slice(None), sums.sum(3))
        words.prepared["pooled"].append(torch.stack([values.sum(1), n * len(heads)]).cpu())

    def finish(self, words: Words) -> None:
        """The pairs that would share a topic, of all heads together."""
        if self.null is not None:
            pooled = torch.stack(words.prepared["pooled"]).sum(0).numpy()
            of_pairs = (part.cpu() for part in (*words.prepared["words"], words.prepared["bin"]))
            first, second, bins = of_pairs
            found = self.null(first.numpy(), second.numpy(), pooled, bins.numpy(), self.n_bins)
            words.add("null", slice(None), torch.from_numpy(found))


def _with_attention(
    report: MatchedReport, sums: Mapping[str, Any], progress: Progress, parts: Mapping[str, Any]
) -> MatchedReport:
    """The report of words with what attention has added up."""
    by_head = sums["by_head"].reshape(-1, *parts["shape"], 7)
    by_source = sums["by_source"].rows()[1].reshape(-1, *parts["shape"], 7)

    def interval(axes: tuple[int, ...]) -> dict[str, Any]:
        return _source_intervals(_on(by_source, axes), parts["statistic"], parts["confidence"])

    known = interval if parts["confidence"] is not None and len(by_source) else None
    attention = _by_way(by_head.sum(0), sums["null"].reshape(-1, 2, *parts["shape"]), known, parts)
    cells, starts = _on(by_head, (0, 1, 2)), layer_starts(parts["index"])
    of_layers = {name: tuple(parts["index"][name][start] for start in starts) for name in ("stack", "layer")}
    coverage = divide(attention.n_same_topic, by_head[..., 4].sum())
    return replace(
        report,
        attention=attention,
        layers=_contrast(np.add.reduceat(cells, starts), index=of_layers),
        heads=_contrast(cells, index=parts["index"]),
        coverage={**report.coverage, "attention": coverage},
        provenance={**report.provenance, "documents": {**progress.record(), **sums["by_source"].record, **parts["read"]}},
    )


def _source_intervals(
    cells: Float64[np.ndarray, "source cell 7"], statistic: Statistic, confidence: float
) -> dict[str, Any]:
    """Of matched numbers and effect sizes, bins and weights being found anew without every source."""
    used = (cells[..., 4].sum(0) > 0) & (cells[..., 5].sum(0) > 0)
    sums, counts, squares = cells[:, used, :3], cells[:, used, 3:6], cells[:, used, 6]
    pairs = [counts[..., relation].sum(1) for relation in (1, 2)]

    def number(sums: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        same, different, _, _ = matched_means(sums, counts)
        return (same - different, None) if statistic == "difference" else (same, different)

    def effect(sums: np.ndarray, counts: np.ndarray, squares: np.ndarray) -> tuple[np.ndarray, None]:
        same, different, _, _ = matched_means(sums, counts)
        return divide(same - different, matched_spread(sums, counts, squares)), None

    positive = bool((sums >= 0).all())
    interval = jackknife(number, (sums, counts), pairs, positive=positive).interval(confidence)
    return {
        "interval": interval,
        "effect_size_interval": jackknife(effect, (sums, counts, squares), pairs).interval(confidence),
        "note": no_interval_reason(interval, len(cells), "sources"),
    }


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
    null: Float64[np.ndarray, "permutation 2 pmi frequency distance"],
    interval: Callable[[tuple[int, ...]], dict[str, Any]] | None,
    made_of: Mapping[str, Any],
) -> Contrast:
    """The contrasts of all ways of matching, by distance where there are distances."""
    ways = {name: axes for name, axes in MATCHED_ON.items() if sums.shape[2] > 1 or 2 not in axes}
    found = []
    for axes in ways.values():
        uncertainty = {} if interval is None else interval(axes)
        if len(null):
            uncertainty["p_value"] = _p_value(sums, null, axes, made_of)
        found.append(_contrast(_on(sums, axes), statistic=made_of["statistic"], **uncertainty))
    notes = dict.fromkeys(part.note for part in found if part.note)
    return replace(side_by_side(found, {"matched_on": tuple(ways)}), note="; ".join(notes) or None)


def _weights(sums: np.ndarray, axes: tuple[int, ...]) -> Float64[np.ndarray, " code"]:
    """What a pair of every code weighs in means that are matched on some axes."""
    others = tuple(axis for axis in range(3) if axis not in axes)
    counts = np.broadcast_to(sums[..., 3:6].sum(others, keepdims=True), (*sums.shape[:-1], 3)).reshape(-1, 3)
    both = (counts[:, 1] > 0) & (counts[:, 2] > 0)
    of_different = np.where(both, divide(counts[:, 1], counts[:, 2]), 0.0)
    return np.stack([np.zeros(len(both)), both, of_different], 1).ravel()


def _p_value(sums: np.ndarray, null: np.ndarray, axes: tuple[int, ...], made_of: Mapping[str, Any]) -> np.ndarray:
    """Permuted labels: bins weigh as they do in truth."""
    same = np.moveaxis(null, 1, -1)
    different = sums[..., [1, 4]] + sums[..., [2, 5]] - same
    nothing = np.zeros_like(same)
    permuted = np.stack([nothing, same, different], -1).reshape(*same.shape[:-1], 6)
    cells = _on(np.concatenate([sums[None, ..., :6], permuted]), axes)
    weights = np.where(cells[:1, :, 5] > 0, cells[:1, :, 4], 0.0)
    first, second, *_ = matched_means(cells[..., :3], cells[..., 3:], weights)
    numbers = first - second if made_of["statistic"] == "difference" else divide(first, second)
    return permutation_p_value(numbers[0], numbers[1:], alternative=made_of["alternative"])
