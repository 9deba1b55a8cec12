"""Table 2: words of the same topic beside the pairs of words that merely occur together most often.

For BERT the paper compares two averages: over pairs of words of the same topic, and over the N pairs of words that
co-occur most often, N being the number of pairs in one topic. Same-topic words attend to each other *less* than the
most frequent pairs, but their embeddings are *more* similar, from which it conjectures that co-occurrence does not
explain what topics do (Section 8.2). Its attention is what the model gives; ours is relative to uniform attention, so
that the quotient of the two averages is what can be compared.

The most frequent pairs are pairs of frequent words, and that is a difference of its own: by Tables 1 and 2 together
BERT's cosine of the most frequent pairs (0.316) is below even that of words of *different* topics (0.468 / 1.21 =
0.387), which co-occurrence cannot be the reason for. So beyond the paper, pairs of the same topic are compared with
pairs of different topics that co-occur as much (by pointwise mutual information) and are as frequent
(`topic_probe.measure.matched`). Topics of LDA are not those of a person, and pairs of "different topics" that co-occur
very much (moon, mission) are often of one topic to a person; what survives matching is what survives against them.
On the other hand counts of rare words are too noisy to match by, which leaves too much: the matched cosine is given
for more and more frequent words too.

Statements about Table 2 are checked on BERT alone, which the paper makes them about; of other models the numbers are
given. A quotient whose interval holds 1 decides nothing and counts neither as passed nor as failed.

Words co-occur in windows of as many tokens as the measured documents have, because words that are further apart never
meet in the model.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from topic_probe.contrast import bootstrap_interval
from topic_probe.lens import capture
from topic_probe.measure.matched import MatchedReport, measure_matched
from topic_probe.measure.matching import MATCHED_ON, WITH_DISTANCE
from topic_probe.measure.pairs import ClassSums, attention_by_class
from topic_probe.paper.claims import Claim
from topic_probe.paper.pretrained import (
    QUICK,
    THRESHOLDS,
    Missing,
    Prepared,
    TextSettings,
    prepare_all,
    settings_table,
)
from topic_probe.paper.recipe import RecipeResult
from topic_probe.text.bags import word_ids
from topic_probe.text.cooccurrence import Cooccurrence, count_cooccurrence
from topic_probe.text.corpus import Corpus
from topic_probe.topics import Topics
from topic_probe.uncertainty import (
    divide,
    effective_units,
    percentile_interval,
    resample,
    split_halves,
    word_interval,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "words of the same topic beside words that merely co-occur"
SOURCE, SECTION = "Table 2, Section 8.2", "Section 8.2"
MODELS = ("bert",)

PRINTED: Mapping[float, Mapping[str, tuple[float, float]]] = {
    0.0005: {"attention": (0.00659, 0.00751), "cosine": (0.468, 0.316)},
    0.001: {"attention": (0.00621, 0.00695), "cosine": (0.461, 0.311)},
    0.002: {"attention": (0.00597, 0.00677), "cosine": (0.425, 0.323)},
}
"""The paper's numbers by threshold: average over same-topic pairs, and over the pairs that co-occur most often."""

LESS_ATTENTION = (
    "Words of the same topic attend to each other less than the pairs that co-occur most often (quotient)"
)
MORE_SIMILAR = (
    "Embeddings of one topic are more similar than those of the pairs that co-occur most often (quotient)"
)
NOT_EXPLAINED = {
    "cosine": "Embeddings of the same topic are more similar also at equal co-occurrence and frequency (ratio)",
    "attention": "Attention within a topic is higher also at equal co-occurrence, frequency and distance (ratio)",
}

# Words that are counted to find the most frequent pairs; that no other pair is more frequent is checked.
MAX_FREQUENT_WORDS = 5_000
_RESAMPLES, _LEVEL, _PAIRS_SHOWN = 1000, 0.95, 30
# How many windows a word is in at least, to see what noise in the counts does.
_MIN_DOCUMENTS = (5, 20, 50)


def run(
    *,
    quick: bool = False,
    only: Iterable[str] | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    progress: bool = False,
    models: Any = None,
    corpus: Corpus | None = None,
    settings: TextSettings | None = None,
    thresholds: Sequence[float] | None = None,
    whole_articles: bool = False,
) -> RecipeResult:
    """Measure both averages and the matched comparison at every threshold, and check the claims.

    Args:
        quick: Few topics and few short documents of the articles that come with gensim, and one threshold.
        only: Labels of the models to measure; None: all.
        seed: Of the Wikipedia sample, LDA, and intervals.
        folder: Keeps token ids, fits and sums of attention; a second call goes on from there.
        progress: Whether to show progress bars.
        models: None: BERT; names, names on the hub or folders; or label → one of these or a model.
        corpus: Texts; None: a sample of Wikipedia, or if ``quick`` the articles that come with gensim.
        settings: How texts become topics and documents; None: as in the paper, or if ``quick`` small.
        thresholds: Words per topic ÷ vocabulary size; None: the paper's three, or if ``quick`` the middle one.
        whole_articles: Whether words co-occur if they are in the same article, however far apart.
    """
    start = time.perf_counter()
    settings = settings or (QUICK if quick else TextSettings())
    thresholds = thresholds or (THRESHOLDS[1:2] if quick else THRESHOLDS)
    claims: list[Claim] = []
    reports: dict[str, MatchedReport] = {}
    tables: dict[str, list[dict[str, Any]]] = {
        "table2": [],
        "matched": [],
        "most frequent pairs": [],
        "rare words left out": [],
    }
    for one in prepare_all(
        models, corpus, settings, quick=quick, default=MODELS, only=only, seed=seed, folder=folder, progress=progress
    ):  # fmt: skip
        if isinstance(one, Missing):
            claims += _not_checked(one)
            continue
        compared = _Comparison(one, thresholds, whole_articles, seed, folder, progress)
        averages = compared.averages()
        tables["most frequent pairs"] += compared.shown_pairs()
        for threshold in thresholds:
            setting = f"{one.label}, {threshold:g}"
            reports[setting] = report = compared.matched(threshold)
            rows = [row for row in averages if row["threshold"] == threshold]
            tables["table2"] += rows
            tables["matched"] += _matched_rows(report, one.label, threshold)
            tables["rare words left out"] += compared.without_rare_words(threshold)
            claims += [_average_claim(row, setting) for row in rows]
            claims += [_matched_claim(report, score, setting) for score in NOT_EXPLAINED]
    shown = settings_table(settings, whole_articles=whole_articles, seed=seed)
    return RecipeResult(
        recipe="table2",
        title=TITLE,
        quick=quick,
        claims=tuple(claims),
        reports={"matched": reports} if reports else {},
        tables={**tables, "settings": shown} if reports else {},
        seconds=time.perf_counter() - start,
        draw=draw,
    )


# --- measuring --------------------------------------------------------------------------------------


class _Comparison:
    """One model: its words, which of their pairs are of interest, and how often they co-occur."""

    def __init__(
        self,
        one: Prepared,
        thresholds: Sequence[float],
        whole_articles: bool,
        seed: int,
        folder: str | Path | None,
        progress: bool,
    ) -> None:
        self.one, self.seed, self.progress = one, seed, progress
        self.folder = None if folder is None else Path(folder).expanduser() / "measured"
        self.window = None if whole_articles else one.settings.length
        self.topics = {threshold: one.topics(threshold) for threshold in thresholds}
        labelled = torch.unique(torch.cat([topics.words for topics in self.topics.values()]))
        self.counts = self._count(labelled, len(labelled) + 1)
        frequent = self._count(word_ids(one.tokenizer), MAX_FREQUENT_WORDS)
        self.n_pairs = {threshold: _pairs_of_a_topic(topics) for threshold, topics in self.topics.items()}
        self.top = frequent.most_frequent(max(self.n_pairs.values()))
        self.complete_above = frequent.complete_above
        self.words = torch.unique(torch.cat([labelled, *self.top[:2]]))

    def _count(self, words: Int64[Tensor, " word"], max_words: int) -> Cooccurrence:
        return count_cooccurrence(
            self.one.articles, words, vocabulary_size=self.one.fit.vocabulary_size, max_words=max_words,
            max_length=self.window, long="chunk",
        )  # fmt: skip

    def shown_pairs(self) -> list[dict[str, Any]]:
        """The most frequent pairs as words."""
        names = [
            self.one.tokenizer.convert_ids_to_tokens(ids[:_PAIRS_SHOWN].tolist()) for ids in self.top[:2]
        ]
        counts = self.top[2][:_PAIRS_SHOWN].tolist()
        return [
            {"model": self.one.label, "first": first, "second": second, "together_in": count}
            for first, second, count in zip(*names, counts, strict=True)
        ]

    def matched(self, threshold: float) -> MatchedReport:
        """Same topic against different topics at equal co-occurrence and frequency."""
        topics = self.topics[threshold]
        report = measure_matched(
            self.one.model, topics, self.one.documents, cooccurrence=self.counts,
            max_length=self.one.settings.length, seed=self.seed,
            checkpoint=self._checkpoint("matched", [topics.fingerprint]), progress=self.progress,
        )  # fmt: skip
        self._check_whole(report.provenance["documents"])
        return report

    def without_rare_words(self, threshold: float) -> list[dict[str, Any]]:
        """Matched cosines of more and more frequent words: counts of rare ones are too noisy to match by."""
        rows = []
        for n in _MIN_DOCUMENTS:
            frequent = self.counts.document_frequency >= n
            kept = torch.isin(self.topics[threshold].words, self.counts.words[frequent])
            if kept.sum() < 2:
                continue
            report = measure_matched(
                self.one.model, self.topics[threshold], cooccurrence=self.counts, min_documents=n, n_permutations=0,
                seed=self.seed,
            )  # fmt: skip
            found = report.cosine[len(MATCHED_ON) - 1]
            low, high = (nan, nan) if found.interval is None else found.interval
            rows.append(
                {
                    "model": self.one.label,
                    "threshold": threshold,
                    "in_at_least": n,
                    "words": report.provenance["words"],
                    "ratio_of_all_pairs": _plain(float(report.cosine.ratio[0])),
                    "matched_ratio": _plain(float(found.ratio)),
                    "low": _plain(low),
                    "high": _plain(high),
                    "surviving": _plain(report.surviving("cosine")[-1]),
                }
            )
        return rows

    def _check_whole(self, record: Mapping[str, Any]) -> None:
        """An interruption ends the recipe; with a folder the next call goes on from it."""
        if record["stopped"]:
            raise KeyboardInterrupt(f"{self.one.label}: {record['stopped']}")

    def _checkpoint(self, kind: str, facts: Sequence[str]) -> Path | None:
        if self.folder is None:
            return None
        settings = [str(self.one.settings), self.window, self.seed, self.one.label, len(self.one.documents)]
        told = [*settings, int(self.counts.counts.sum()), *facts]
        return self.folder / f"{kind}-{hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]}"

    # --- averages -------------------------------------------------------------------------------

    def averages(self) -> list[dict[str, Any]]:
        """A row for every threshold and score, all thresholds from one pass over the documents."""
        flags = self._flags()
        signature = sum((flag.long() << bit for bit, flag in enumerate(flags)), torch.zeros(()).long())
        found, classes = torch.unique(signature, return_inverse=True)
        codes = torch.where(signature > 0, 3 * classes + 1, -1).int()
        sums = attention_by_class(
            self.one.model,
            Topics.from_token_ids({"words": self.words}, vocabulary_size=self.one.fit.vocabulary_size),
            codes,
            self.one.documents,
            max_length=self.one.settings.length,
            checkpoint=self._checkpoint("pairs", [topics.fingerprint for topics in self.topics.values()]),
            progress=self.progress,
        )
        self._check_whole(sums.record)
        rows = []
        for number, (threshold, topics) in enumerate(self.topics.items()):
            kinds = [(found >> (3 * number + kind) & 1).bool().numpy() for kind in range(3)]
            shared = {
                "model": self.one.label,
                "threshold": threshold,
                "pairs": self.n_pairs[threshold],
                "complete": self._complete(threshold),
            }
            attention = _attention_row(sums, kinds, self.seed)
            cosine = self._cosine_row(flags[3 * number : 3 * number + 3], topics)
            rows += [{**shared, "score": score} | row | _printed(self.one.label, threshold, score)
                     for score, row in (("attention", attention), ("cosine", cosine))]  # fmt: skip
        return rows

    def _complete(self, threshold: float) -> bool:
        """Whether no pair of words that were not counted can be among the most frequent."""
        counts = self.top[2][: self.n_pairs[threshold]]
        return bool((counts > self.complete_above).all())

    def _flags(self) -> list[Bool[Tensor, "word word"]]:
        """For every threshold in turn the pairs of the same topic, of the most frequent, and of different topics."""
        n = len(self.words)
        first, second = (torch.searchsorted(self.words, ids) for ids in self.top[:2])
        flags = []
        for threshold, topics in self.topics.items():
            group = topics.labels(self.words)
            both = (group[:, None] >= 0) & (group >= 0)
            shares = topics.shared[group[:, None], group] & both
            top = torch.zeros(n, n, dtype=torch.bool)
            rows, columns = first[: self.n_pairs[threshold]], second[: self.n_pairs[threshold]]
            top[rows, columns] = top[columns, rows] = True
            flags += [shares.fill_diagonal_(False), top, (both & ~shares).fill_diagonal_(False)]
        return flags

    def _cosine_row(self, flags: list[Bool[Tensor, "word word"]], topics: Topics) -> dict[str, Any]:
        """Mean cosines by kind of pair, with intervals from resampled words."""
        table = capture.word_embeddings(self.one.model)[self.words].double()
        table = table / table.norm(dim=1, keepdim=True)
        group = topics.labels(self.words)
        strata = torch.where(group >= 0, topics.group_topics.int().argmax(1)[group] + 1, 0).numpy()
        half = torch.from_numpy(np.eye(2)[split_halves(strata, seed=self.seed)])
        cosines = table @ table.T
        ends = [2 * ((flag * cosines) @ half).T.numpy()[:, :, None] for flag in flags]
        n_ends = [2 * (flag.double() @ half).T.numpy() for flag in flags]
        options: dict[str, Any] = {"n_resamples": _RESAMPLES, "confidence": _LEVEL, "seed": self.seed}
        nothing, one = np.zeros_like(ends[0]), np.ones_like(n_ends[0])
        means = [float(divide(end.sum(), n.sum())) for end, n in zip(ends, n_ends, strict=True)]
        intervals = [
            word_interval(end, n, nothing, one, strata, statistic="difference", **options)[0]
            for end, n in zip(ends[:2], n_ends[:2], strict=True)
        ]
        quotient = word_interval(ends[0], n_ends[0], ends[1], n_ends[1], strata, **options)[0]
        return _row(means, intervals, quotient)


def _pairs_of_a_topic(topics: Topics) -> int:
    n = int(topics.sizes.max())
    return max(1, n * (n - 1) // 2)


def _attention_row(sums: ClassSums, kinds: list[Bool[np.ndarray, " class"]], seed: int) -> dict[str, Any]:
    """Mean attention by kind of pair, with intervals from resampled documents."""
    if not len(sums.by_document):
        return _row([nan] * 3, [np.full(2, nan)] * 2, np.full(2, nan))
    _, totals, counts = sums.by_document.rows()
    same, top, different = (
        (
            totals[:, : len(kind), 1] @ kind[: totals.shape[1]],
            counts[:, : len(kind), 1] @ kind[: totals.shape[1]],
        )
        for kind in kinds
    )
    nothing = np.zeros_like(same[0])
    quotient = bootstrap_interval(
        (np.stack([nothing, same[0], top[0]], -1), np.stack([nothing, same[1], top[1]], -1)),
        n_resamples=_RESAMPLES, confidence=_LEVEL, seed=seed,
    )  # fmt: skip
    means = [float(divide(part.sum(), n.sum())) for part, n in (same, top, different)]
    return _row(means, [_mean_interval(*part, seed=seed) for part in (same, top)], quotient)


def _mean_interval(
    sums: Float64[np.ndarray, " document"], counts: Float64[np.ndarray, " document"], *, seed: int
) -> Float64[np.ndarray, "2"]:
    """The interval of a pooled mean from resampled documents."""

    def resampled(weights: Float64[np.ndarray, "resample document"]) -> Float64[np.ndarray, "resample 1"]:
        return divide(weights @ sums[:, None], weights @ counts[:, None])

    values = resample(resampled, np.array([len(sums)]), n_resamples=_RESAMPLES, seed=seed)
    return np.asarray(percentile_interval(values, effective_units(counts[:, None]), confidence=_LEVEL)[0])


# --- tables and claims ------------------------------------------------------------------------------


def _row(means: Sequence[float], intervals: Sequence[np.ndarray], quotient: np.ndarray) -> dict[str, Any]:
    same, top, different = means
    return {
        "same_topic": _plain(same),
        "same_topic_low": _plain(intervals[0][0]),
        "same_topic_high": _plain(intervals[0][1]),
        "most_frequent": _plain(top),
        "most_frequent_low": _plain(intervals[1][0]),
        "most_frequent_high": _plain(intervals[1][1]),
        "different_topic": _plain(different),
        "quotient": _plain(float(divide(np.float64(same), np.float64(top)))),
        "low": _plain(quotient[0]),
        "high": _plain(quotient[1]),
    }


def _printed(label: str, threshold: float, score: str) -> dict[str, Any]:
    """What the paper has there; its attention is not relative to uniform."""
    same, top = PRINTED.get(threshold, {}).get(score, (None, None)) if _is_bert(label) else (None, None)
    quotient = None if same is None or top is None else same / top
    return {"paper_same_topic": same, "paper_most_frequent": top, "paper_quotient": quotient}


def _matched_rows(report: MatchedReport, label: str, threshold: float) -> list[dict[str, Any]]:
    rows = report.to_dataframe().to_dict("records")
    return [
        {"model": label, "threshold": threshold} | {str(name): _plain(value) for name, value in row.items()}
        for row in rows
    ]


def _plain(value: Any) -> Any:
    """A plain value; None where a number is missing."""
    if not isinstance(value, int | float | np.generic) or isinstance(value, bool):
        return value
    number = float(value)
    return number if np.isfinite(number) else None


def _average_claim(row: Mapping[str, Any], setting: str) -> Claim:
    less = row["score"] == "attention"
    text, paper = (LESS_ATTENTION, "0.88 to 0.89") if less else (MORE_SIMILAR, "1.32 to 1.48")
    if row["paper_quotient"] is not None:
        paper = f"{row['paper_quotient']:.3g}"
    reason, found = "", ""
    if row["quotient"] is None:
        reason = _NO_PAIRS
    else:
        found = (
            f"{_between(row['low'], row['high'])}; same topic {row['same_topic']:.4g}, the {row['pairs']:,} most "
            f"frequent pairs {row['most_frequent']:.4g}, different topics {_short(row['different_topic'])}"
        )
        if not _is_bert(row["model"]):
            reason = f"the paper says it of BERT; of this model it is {row['quotient']:.4g}, {found}"
        elif not _decides(row["low"], row["high"]):
            reason = f"undecided: {row['quotient']:.4g}, {found}"
    return Claim(
        text,
        SOURCE,
        paper,
        measured=nan if row["quotient"] is None else row["quotient"],
        above=-inf if less else 1.0,
        below=1.0 if less else inf,
        setting=setting,
        detail=found,
        not_checked=reason,
    )


def _is_bert(label: str) -> bool:
    return label.startswith("bert")


_NO_PAIRS = "no pair of one of the two kinds is in the documents: measure more documents, or larger topics"


def _matched_claim(report: MatchedReport, score: str, setting: str) -> Claim:
    found = report.cosine if score == "cosine" else report.attention
    way = "co-occurrence and frequency" if score == "cosine" else WITH_DISTANCE
    assert found is not None
    place = [*MATCHED_ON, WITH_DISTANCE].index(way)
    cell, text, paper = found[place], NOT_EXPLAINED[score], "conjectured, not measured"
    if not np.isfinite(cell.ratio):
        return Claim(text, SECTION, paper, above=1.0, setting=setting, not_checked=found.reason or _NO_PAIRS)
    low, high = (nan, nan) if cell.interval is None else cell.interval
    coverage = report.coverage["attention" if score == "attention" else "embeddings"][place]
    survives = report.surviving("attention" if score == "attention" else "cosine")[place]
    told = (
        f"{_between(_plain(low), _plain(high))}; without matching {float(found.ratio[0]):.4g}; {survives:.0%} of the "
        f"difference is left; {coverage:.0%} of the same-topic pairs could be matched"
    )
    undecided = "" if _decides(_plain(low), _plain(high)) else f"undecided: {float(cell.ratio):.4g}, {told}"
    return Claim(
        text,
        SECTION,
        paper,
        measured=float(cell.ratio),
        above=1.0,
        setting=setting,
        detail=told,
        not_checked=undecided,
    )


def _decides(low: float | None, high: float | None) -> bool:
    """Whether an interval lies on one side of 1."""
    return (low is not None and low > 1) or (high is not None and high < 1)


def _between(low: float | None, high: float | None) -> str:
    return "no interval" if low is None or high is None else f"interval {low:.4g} to {high:.4g}"


def _short(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _not_checked(missing: Missing) -> list[Claim]:
    about: list[tuple[str, str, str, float, float]] = [
        (LESS_ATTENTION, SOURCE, "0.88 to 0.89", -inf, 1.0),
        (MORE_SIMILAR, SOURCE, "1.32 to 1.48", 1.0, inf),
        *((text, SECTION, "conjectured, not measured", 1.0, inf) for text in NOT_EXPLAINED.values()),
    ]
    return [
        Claim(
            text, source, paper, above=above, below=below, setting=missing.label, not_checked=missing.reason
        )
        for text, source, paper, above, below in about
    ]


# --- figures ----------------------------------------------------------------------------------------


def draw(result: RecipeResult) -> "dict[str, Figure]":
    """The quotients of Table 2 beside the paper's, and what is left by what pairs have in common."""
    from topic_probe.show.bars import matched_forest, quotient_forest

    if "table2" not in result.tables:
        return {}
    axes = {"table2": quotient_forest(result.tables["table2"])}
    for setting, report in result.reports["matched"].items():
        assert isinstance(report, MatchedReport)
        axes[f"matched, {setting}"] = matched_forest(report, title=setting)
    figures = {name: drawn.get_figure(root=True) for name, drawn in axes.items()}
    return {name: figure for name, figure in figures.items() if figure is not None}
