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

The control of the paper's claims are shuffled labels: pairs of words that share a topic after a shuffle, beside the
same most frequent pairs. Where both quotients lie on the same side of 1, the claim says nothing about topics, and by
the paper's own numbers BERT's do: its pairs of different topics have less attention (0.00659 / 1.32) and more cosine
than the most frequent ones, too. The matched comparison, which is ours, counts as above 1 from 1.01 on. Its control is
the mean of many shuffles for embeddings; for attention, of which each shuffle would need the model again and a single
one says little, it is the untrained twin.

The paper says it of BERT; of other models the same is checked as claims of ours.

Words co-occur in windows of as many tokens as the measured documents have, because words that are further apart never
meet in the model.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import isfinite, nan
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from topic_probe.contrast import DIFFERENT_TOPIC, SAME_TOPIC, interval_of_sources, word_relations
from topic_probe.lens import capture
from topic_probe.lens.opening import random_init
from topic_probe.measure.matched import MatchedReport, measure_matched
from topic_probe.measure.matching import MATCHED_ON, WITH_DISTANCE, ClassSums, attention_by_class
from topic_probe.options import shares
from topic_probe.paper import listed
from topic_probe.paper.claims import Claim, of_contrast
from topic_probe.paper.pretrained import (
    NO_DIFFERENCE,
    SHUFFLED,
    THRESHOLDS,
    UNTRAINED,
    OnText,
    Prepared,
    check_thresholds,
    exact_number,
    number_of,
    plain_values,
    prepare_all,
    settings_table,
    short,
)
from topic_probe.paper.recipe import Recipe, RecipeResult, Run, Subject
from topic_probe.paper.training import end_if_stopped
from topic_probe.text.cooccurrence import Cooccurrence, count_cooccurrence
from topic_probe.text.lda import word_ids
from topic_probe.topics import Topics
from topic_probe.topics.lookup import readable
from topic_probe.uncertainty import (
    Ends,
    divide,
    source_interval,
    split_halves,
    word_interval,
)
from topic_probe.words import form

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODELS = ("bert",)

PRINTED: Mapping[float, Mapping[str, tuple[float, float]]] = {
    0.0005: {"attention": (0.00659, 0.00751), "cosine": (0.468, 0.316)},
    0.001: {"attention": (0.00621, 0.00695), "cosine": (0.461, 0.311)},
    0.002: {"attention": (0.00597, 0.00677), "cosine": (0.425, 0.323)},
}
"""The paper's numbers by threshold: average over same-topic pairs, and over the pairs that co-occur most often."""

# Words that are counted to find the most frequent pairs; that no other pair is more frequent is checked.
MAX_FREQUENT_WORDS = 5_000
_RESAMPLES, _LEVEL, _PAIRS_SHOWN = 1000, 0.95, 30
# How many windows a word is in at least, to see what noise in the counts does.
_MIN_DOCUMENTS = (5, 20, 50)
# Of matched embeddings; their mean ratio is known to less than NO_DIFFERENCE then.
_SHUFFLES = 30
# What is told apart of pairs at a threshold, in this order.
_KINDS = 4


# --- measuring --------------------------------------------------------------------------------------


@shares
def measure(
    run: Run,
    *,
    thresholds: Sequence[float] | None = None,
    whole_articles: bool = False,
    given: OnText,
) -> RecipeResult:
    """Both averages and the matched comparison at every threshold.

    Args:
        run: the options that all recipes have.
        thresholds: words per topic ÷ vocabulary size; None: the paper's three, or if ``quick`` the middle one.
        whole_articles: whether words co-occur if they are in the same article, however far apart.
    """
    settings = given.settings_of(run)
    thresholds = thresholds or (THRESHOLDS[1:2] if run.quick else THRESHOLDS)
    check_thresholds(thresholds)
    subjects: dict[str, Subject] = {}
    reports: list[tuple[str, MatchedReport]] = []
    tables: dict[str, list[dict[str, Any]]] = {
        "table2": [],
        "matched": [],
        "most frequent pairs": [],
        "rare words left out": [],
    }
    for one in prepare_all(run, given, default=MODELS):
        if not isinstance(one, Prepared):
            subjects[one.label] = one
            continue
        compared = _Comparison(one, run, thresholds, None if whole_articles else settings.length)
        tables["table2"] += compared.averages()
        tables["most frequent pairs"] += compared.shown_pairs()
        for threshold in thresholds:
            setting, subject = f"{one.label}, {threshold:g}", one.subject(threshold)
            report = compared.matched(threshold)
            subjects[setting] = subject
            reports.append((setting, report))
            about = {"model": one.label, "threshold": threshold}
            controls = compared.matched_controls(threshold)
            tables["matched"] += [
                about | plain_values(row | controls.get((row["score"], row["matched_on"]), {}))
                for row in report.to_dataframe().to_dict("records")
            ]
            tables["rare words left out"] += compared.without_rare_words(threshold)
    tables["settings"] = settings_table(settings, whole_articles=whole_articles, seed=run.seed)
    return run.result(reports, subjects=subjects, tables=tables if reports else {})


class _Comparison:
    """One model: its words, which of their pairs are of interest, and how often they co-occur."""

    def __init__(self, one: Prepared, run: Run, thresholds: Sequence[float], window: int | None) -> None:
        self.one, self.run, self.window = one, run, window
        self.topics = {threshold: one.topics(threshold) for threshold in thresholds}
        self.shuffled = {threshold: topics.shuffled(run.seed) for threshold, topics in self.topics.items()}
        labelled = torch.unique(torch.cat([topics.words for topics in self.topics.values()]))
        self.counts = self._count(labelled, len(labelled) + 1)
        frequent = self._count(word_ids(one.tokenizer), MAX_FREQUENT_WORDS)
        largest = {threshold: int(topics.sizes.max()) for threshold, topics in self.topics.items()}
        self.n_pairs = {threshold: max(1, n * (n - 1) // 2) for threshold, n in largest.items()}
        texts = [readable(one.tokenizer, [index]) for index in frequent.words.tolist()]
        one_word = self.topics[thresholds[0]].one_word
        forms = np.unique([form(text, one_word) for text in texts], return_inverse=True)[1]
        self.top = frequent.most_frequent(max(self.n_pairs.values()), forms=torch.from_numpy(forms))
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
        return self._matched("matched", self.one.model, self.topics[threshold])

    def matched_controls(self, threshold: float) -> dict[tuple[str, str], dict[str, float]]:
        """What the matched ratios are where they must be 1, by score and way of matching.

        Of embeddings the mean same-topic score of shuffled labels ÷ their mean different-topic score, of attention
        the ratio in the untrained twin.
        """
        topics, seed = self.topics[threshold], self.run.seed
        shuffles = [
            measure_matched(
                self.one.model, topics.shuffled(_SHUFFLES * seed + number), cooccurrence=self.counts, n_permutations=0,
                n_resamples=0,
            ).cosine
            for number in range(_SHUFFLES)
        ]  # fmt: skip
        same, different = (
            np.mean([getattr(one, part) for one in shuffles], axis=0)
            for part in ("same_topic", "different_topic")
        )
        of_shuffles = dict(zip(MATCHED_ON, divide(same, different).tolist(), strict=True))
        controls = {("cosine", way): {"shuffled_ratio": ratio} for way, ratio in of_shuffles.items()}
        report = self._matched("untrained", self._twin, topics, n_permutations=0, n_resamples=0)
        assert report.attention is not None
        of_twin = zip([*MATCHED_ON, WITH_DISTANCE], report.attention.ratio.tolist(), strict=True)
        return controls | {("attention", way): {"untrained_ratio": ratio} for way, ratio in of_twin}

    @cached_property
    def _twin(self) -> Any:
        return random_init(self.one.model, seed=self.run.seed)

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
                seed=self.run.seed,
            )  # fmt: skip
            cell = report.cosine[len(MATCHED_ON) - 1]
            measured = of_contrast(cell, "")
            about = {"model": self.one.label, "threshold": threshold, "in_at_least": n}
            numbers = {
                "ratio_of_all_pairs": report.cosine.ratio[0],
                "matched_ratio": measured.value,
                "low": measured.low,
                "high": measured.high,
                "surviving": report.surviving("cosine")[-1],
            }
            rows.append({**about, "words": report.provenance["words"], **plain_values(numbers)})
        return rows

    def _matched(self, kind: str, model: Any, topics: Topics, **options: Any) -> MatchedReport:
        """The report that an earlier call has kept in the folder, or a new one, which is kept."""
        one = self.one
        about = [str(one.settings), self.window, self.run.seed, one.label, len(one.documents)]
        path = self.run.kept_at(kind, [*about, int(self.counts.counts.sum()), topics.fingerprint])
        if path is not None and path.exists():
            return MatchedReport.load(path)
        report = measure_matched(
            model, topics, one.documents, cooccurrence=self.counts, max_length=one.settings.length, seed=self.run.seed,
            progress=self.run.progress, **options,
        )  # fmt: skip
        end_if_stopped(one.label, report.provenance["documents"]["stopped"])
        if path is not None:
            report.save(path)
        return report

    def averages(self) -> list[dict[str, Any]]:
        """A row for every threshold and score, all thresholds from one pass over the documents."""
        flags = self._flags()
        signature = sum((flag.long() << bit for bit, flag in enumerate(flags)), torch.zeros(()).long())
        kinds_of_class, classes = torch.unique(signature, return_inverse=True)
        codes = torch.where(signature > 0, 3 * classes + 1, -1).int()
        sums = attention_by_class(
            self.one.model,
            Topics.from_token_ids({"words": self.words}, vocabulary_size=self.one.fit.vocabulary_size),
            codes,
            self.one.documents,
            max_length=self.one.settings.length,
            progress=self.run.progress,
        )
        end_if_stopped(self.one.label, sums.record["stopped"])
        rows = []
        for number, (threshold, topics) in enumerate(self.topics.items()):
            of_threshold = range(_KINDS * number, _KINDS * (number + 1))
            kinds = [(kinds_of_class >> kind & 1).bool().numpy() for kind in of_threshold]
            averages = {
                "attention": _attention_row(sums, kinds),
                "cosine": self._cosine_row([flags[kind] for kind in of_threshold], topics),
            }
            for score, row in averages.items():
                rows.append(
                    {
                        **self._about(threshold),
                        "score": score,
                        **row,
                        **_printed(self.one.label, threshold, score),
                    }
                )
        return rows

    def _about(self, threshold: float) -> dict[str, Any]:
        """Of how many pairs an average is, and whether no pair of words that were not counted can be among them."""
        n_pairs = self.n_pairs[threshold]
        complete = bool((self.top[2][:n_pairs] > self.complete_above).all())
        return {"model": self.one.label, "threshold": threshold, "pairs": n_pairs, "complete": complete}

    def _flags(self) -> list[Bool[Tensor, "word word"]]:
        """For every threshold in turn the kinds of pairs.

        Of the same topic, the most frequent, of different topics, and of the same topic after a shuffle.
        """
        n = len(self.words)
        first, second = (torch.searchsorted(self.words, ids) for ids in self.top[:2])
        flags = []
        for threshold, topics in self.topics.items():
            places = topics.places(self.words)
            relation = word_relations(places, places, topics)
            top = torch.zeros(n, n, dtype=torch.bool)
            rows, columns = first[: self.n_pairs[threshold]], second[: self.n_pairs[threshold]]
            top[rows, columns] = top[columns, rows] = True
            shuffled = word_relations(places, places, self.shuffled[threshold])
            flags += [relation == SAME_TOPIC, top, relation == DIFFERENT_TOPIC, shuffled == SAME_TOPIC]
        return flags

    def _cosine_row(self, flags: list[Bool[Tensor, "word word"]], topics: Topics) -> dict[str, Any]:
        """Mean cosines by kind of pair, with intervals from resampled words."""
        table = capture.word_embeddings(self.one.model)[self.words].double()
        table = table / table.norm(dim=1, keepdim=True)
        group = topics.labels(self.words)
        strata = torch.where(group >= 0, topics.incidence.first_topic[group] + 1, 0).numpy()
        half = torch.from_numpy(np.eye(2)[split_halves(strata, seed=self.run.seed)])
        cosines = table @ table.T
        ends = [2 * ((flag * cosines) @ half).T.numpy()[:, :, None] for flag in flags]
        n_ends = [2 * (flag.double() @ half).T.numpy() for flag in flags]
        options: dict[str, Any] = {"n_resamples": _RESAMPLES, "confidence": _LEVEL, "seed": self.run.seed}
        nothing, one = np.zeros_like(ends[0]), np.ones_like(n_ends[0])
        means = [float(divide(end.sum(), n.sum())) for end, n in zip(ends, n_ends, strict=True)]
        intervals = [
            word_interval(Ends(end, n, nothing, one), strata, statistic="difference", **options)[0]
            for end, n in zip(ends[:2], n_ends[:2], strict=True)
        ]
        quotient = word_interval(Ends(ends[0], n_ends[0], ends[1], n_ends[1]), strata, **options)[0]
        return _row(means, intervals, quotient)


def _attention_row(sums: ClassSums, kinds: list[Bool[np.ndarray, " class"]]) -> dict[str, Any]:
    """Mean attention by kind of pair, with intervals over sources."""
    if not len(sums.by_source):
        return _row([nan] * _KINDS, [np.full(2, nan)] * 2, np.full(2, nan))
    _, totals, counts, _ = sums.by_source.rows()
    same, top, *others = (
        (
            totals[:, : len(kind), 1] @ kind[: totals.shape[1]],
            counts[:, : len(kind), 1] @ kind[: totals.shape[1]],
        )
        for kind in kinds
    )
    nothing = np.zeros_like(same[0])
    quotient = interval_of_sources(
        np.stack([nothing, same[0], top[0]], -1), np.stack([nothing, same[1], top[1]], -1), confidence=_LEVEL
    )
    means = [float(divide(part.sum(), n.sum())) for part, n in (same, top, *others)]
    return _row(means, [_mean_interval(*part) for part in (same, top)], quotient)


def _mean_interval(
    sums: Float64[np.ndarray, " source"], counts: Float64[np.ndarray, " source"]
) -> Float64[np.ndarray, "2"]:
    """The interval of a pooled mean."""

    def mean(sums: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, None]:
        return divide(sums, counts), None

    return source_interval(mean, (sums, counts), [counts], confidence=_LEVEL)


# --- tables -----------------------------------------------------------------------------------------


def _row(means: Sequence[float], intervals: Sequence[np.ndarray], quotient: np.ndarray) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, mean, interval in zip(("same_topic", "most_frequent"), means, intervals, strict=False):
        row |= {name: mean, f"{name}_low": interval[0], f"{name}_high": interval[1]}
    same, top, different, shuffled = map(np.float64, means)
    row |= {
        "different_topic": different,
        "quotient": divide(same, top),
        "low": quotient[0],
        "high": quotient[1],
    }
    return plain_values({**row, "shuffled": shuffled, "shuffled_quotient": divide(shuffled, top)})


def _printed(label: str, threshold: float, score: str) -> dict[str, Any]:
    """What the paper has there; its attention is not relative to uniform."""
    same, top = PRINTED.get(threshold, {}).get(score, (None, None)) if _is_bert(label) else (None, None)
    quotient = None if same is None or top is None else same / top
    return {"paper_same_topic": same, "paper_most_frequent": top, "paper_quotient": quotient}


def _is_bert(label: str) -> bool:
    return label.startswith("bert")


# --- claims -----------------------------------------------------------------------------------------

LESS_ATTENTION = Claim(
    text="Words of the same topic attend to each other less than the pairs that co-occur most often (quotient)",
    paper="0.88 to 0.89",
    below=1.0,
)
MORE_SIMILAR = Claim(
    text="Embeddings of one topic are more similar than those of the pairs that co-occur most often (quotient)",
    paper="1.32 to 1.48",
    above=1.0,
)
SIMILAR_WHEN_MATCHED = Claim(
    text="Embeddings of the same topic are more similar also at equal co-occurrence and frequency (ratio)",
    source="Section 8.2",
    paper="conjectured, not measured",
    above=1 + NO_DIFFERENCE,
    ours=True,
)
ATTENTION_WHEN_MATCHED = replace(
    SIMILAR_WHEN_MATCHED,
    text="Attention within a topic is higher also at equal co-occurrence, frequency and distance (ratio)",
)
_STATEMENTS = (LESS_ATTENTION, MORE_SIMILAR, SIMILAR_WHEN_MATCHED, ATTENTION_WHEN_MATCHED)


def _comparisons(result: RecipeResult) -> Iterator[Claim]:
    reports = result.of(MatchedReport)
    for setting, subject in result.subjects.items():
        if subject.missing:
            for statement in _STATEMENTS:
                yield replace(statement, setting=setting, not_checked=subject.missing)
            continue
        about = subject.label, subject.threshold
        averages, matched = (
            [row for row in result.tables[name] if (row["model"], row["threshold"]) == about]
            for name in ("table2", "matched")
        )
        for row in averages:
            yield _average_claim(row, setting)
        controls = {(row["score"], row["matched_on"]): row for row in matched}
        similar, attention = (replace(statement, setting=setting) for statement in _STATEMENTS[2:])
        for statement, score, way in (
            (similar, "cosine", "co-occurrence and frequency"),
            (attention, "attention", WITH_DISTANCE),
        ):
            yield _matched_claim(statement, reports[setting], controls[score, way])


def _average_claim(row: Mapping[str, Any], setting: str) -> Claim:
    """A statement about a row of Table 2, of another model than BERT as one of ours."""
    statement = LESS_ATTENTION if row["score"] == "attention" else MORE_SIMILAR
    if not _is_bert(row["model"]):
        statement = replace(statement, text=f"{statement.text}, of another model than BERT", ours=True)
    if row["paper_quotient"] is not None:
        statement = replace(statement, paper=f"{row['paper_quotient']:.3g}")
    if row["quotient"] is None:
        return replace(statement, setting=setting, not_checked=_NO_PAIRS)
    units = "sources" if row["score"] == "attention" else "words"
    return replace(
        statement,
        measured=number_of(row["quotient"], row["low"], row["high"], units),
        setting=setting,
        controls={SHUFFLED: exact_number(row["shuffled_quotient"])},
        detail=f"same topic {row['same_topic']:.4g}, the {row['pairs']:,} most frequent pairs "
        f"{row['most_frequent']:.4g}, different topics {short(row['different_topic'])}, shuffled labels "
        f"{short(row['shuffled'])}",
    )


_NO_PAIRS = "no pair of one of the two kinds is in the documents: measure more documents, or larger topics"


def _matched_claim(statement: Claim, report: MatchedReport, row: Mapping[str, Any]) -> Claim:
    """A statement about what is left of a contrast in one way of matching, with the row that has its controls."""
    score: Literal["cosine", "attention"] = row["score"]
    contrast, pairs = (report.cosine, "embeddings") if score == "cosine" else (report.attention, "attention")
    assert contrast is not None
    place = [*MATCHED_ON, WITH_DISTANCE].index(row["matched_on"])
    measured = of_contrast(contrast[place], "words" if score == "cosine" else "sources")
    if not isfinite(measured.value):
        return replace(statement, not_checked=contrast.reason or _NO_PAIRS)
    name, control = (SHUFFLED, "shuffled_ratio") if score == "cosine" else (UNTRAINED, "untrained_ratio")
    return replace(
        statement,
        measured=number_of(measured.value, measured.low, measured.high, measured.of),
        controls={name: exact_number(row[control])},
        detail=f"without matching {float(contrast.ratio[0]):.4g}; {report.surviving(score)[place]:.0%} of the "
        f"difference is left; {report.coverage[pairs][place]:.0%} of the same-topic pairs could be matched",
    )


# --- figures ----------------------------------------------------------------------------------------


def _figures(result: RecipeResult) -> "dict[str, Figure]":
    """The quotients of Table 2, the paper's and those of shuffled labels, and what is left by what pairs share."""
    from topic_probe.show.bars import matched_forest, quotient_forest

    if "table2" not in result.tables:
        return {}
    rows = [drawn for row in result.tables["table2"] for drawn in (row, _control_mark(row))]
    axes = {"table2": quotient_forest(rows)}
    for setting, report in result.of(MatchedReport).items():
        axes[f"matched, {setting}"] = matched_forest(report, title=setting)
    figures = {name: drawn.get_figure(root=True) for name, drawn in axes.items()}
    return {name: figure for name, figure in figures.items() if figure is not None}


def _control_mark(row: Mapping[str, Any]) -> dict[str, Any]:
    about = {"model": f"{row['model']}, {SHUFFLED}", "threshold": row["threshold"], "score": row["score"]}
    return about | {"quotient": row["shuffled_quotient"], "low": None, "high": None}


RECIPE = Recipe(
    *listed("table2"),
    source="Table 2, Section 8.2",
    measure=measure,
    claims=(_comparisons,),
    figures=_figures,
)
