"""Tables 1 and 5: pretrained models have topics in their word embeddings and in their attention.

LDA is fitted on a corpus as each model's own tokenizer reads it, every topic keeps its likeliest words, and every word
its one likeliest topic. Then, once on the table of word embeddings and once on the attention of all heads, the mean
over pairs of different words of the same topic is divided by that over pairs of words of different topics.

Attention is multiplied by the number of keys that a position may see, so that uniform attention is 1 in every document.
Documents are cut to a common length, special tokens and the pieces of split words are left out. In a model with encoder
and decoder all stacks are pooled; the detail of a claim has them one by one.

The paper's claim is that every ratio is above 1. It has two controls. In the untrained twin of a model, which shares
its documents and topics, attention has a ratio that is 1 to a few thousandths, so a ratio counts as above 1 from 1.01
on. Its embeddings have no common direction: both means are near 0 and their quotient is noise, so there is no ratio to
be a control (the paper's 1.000 needs vectors that share something, and which ones it took is not known to us). Shuffled
labels leave everything as it is but for which words belong together; the number is the mean same-topic score of many
shuffles ÷ their mean different-topic score. A single shuffle may well have a ratio above 1, because a topic has few
words, and intervals say what other articles or words would change, not what other topics would. So how many shuffles
reach what was measured is a claim of ours.

That topics make no difference in the untrained twin is claimed too, with the trained model as its control: the ratio of
attention is within 0.01 of 1, and for embeddings the *difference* of the two means is within 0.01 of 0, as a share of
what a word has with itself.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from math import nan
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from topic_probe.lens import capture
from topic_probe.measure.attention import AttentionReport, measure_attention
from topic_probe.measure.embeddings import EmbeddingReport, measure_embeddings
from topic_probe.measure.folder import model_facts
from topic_probe.measure.nulls import Null
from topic_probe.options import shares
from topic_probe.paper import listed
from topic_probe.paper.claims import Claim, Number, of_contrast
from topic_probe.paper.pretrained import (
    NO_DIFFERENCE,
    RANDOM,
    SHUFFLED,
    THRESHOLDS,
    UNTRAINED,
    OnText,
    Prepared,
    beside_shuffles,
    check_thresholds,
    embeddings_of_shuffles,
    exact_number,
    number_of,
    plain_values,
    prepare_all,
    settings_table,
    short,
)
from topic_probe.paper.recipe import Recipe, RecipeResult, Run, Subject
from topic_probe.paper.training import digest, end_if_stopped
from topic_probe.report import Report, load_report
from topic_probe.topics import Topics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

R = TypeVar("R", bound=Report)

SCORES = ("embedding cosine", "embedding dot", "attention")
PRINTED: Mapping[str, Mapping[float, tuple[float, float, float]]] = {
    "bert": {0.0005: (1.21, 1.19, 1.32), 0.001: (1.13, 1.15, 1.28), 0.002: (1.11, 1.13, 1.22)},
    "albert": {0.0005: (5.64, 6.29, 1.33), 0.001: (4.18, 3.74, 1.28), 0.002: (3.24, 2.93, 1.22)},
    "bart": {0.0005: (2.80, 2.67, 1.35), 0.001: (1.95, 1.92, 1.31), 0.002: (1.63, 1.62, 1.23)},
    "electra": {0.0005: (5.98, 5.37, 2.14), 0.001: (7.70, 7.35, 2.09), 0.002: (7.46, 8.08, 1.95)},
    "roberta": {0.0005: (6.44, 6.81, 1.40), 0.001: (5.73, 6.31, 1.31), 0.002: (5.24, 5.30, 1.22)},
    "bert random": {
        0.0005: (1.00080, 1.00063, 0.99943),
        0.001: (0.99974, 1.00036, 0.99996),
        0.002: (1.00016, 1.00027, 1.00007),
    },
}
"""The paper's numbers by model and threshold, in the order of ``SCORES``."""

ATTENTION_SHUFFLES = 1000
"""Shuffles of the labels for attention. They cost little beside the model, and of few documents their ratios vary."""

CHANCE = 0.025
"""The share of shuffles that may reach what was measured."""

_WORDS = {
    "embedding cosine": "Cosine of word embeddings",
    "embedding dot": "Dot product of word embeddings",
    "attention": "Attention, relative to uniform",
}


@dataclass(frozen=True)
class Table:
    """What Tables 1 and 5 differ in.

    Attributes:
        one_topic_per_word: Whether a word keeps only its likeliest topic.
        printed: The paper's numbers, by model and threshold in the order of ``SCORES``.
        untrained: What the paper has for the untrained model.
    """

    one_topic_per_word: bool
    printed: Mapping[str, Mapping[float, tuple[float, float, float]]]
    untrained: str

    def paper(self, subject: Subject) -> Sequence[float | None]:
        """What the paper has for a model at a threshold, in the order of ``SCORES``."""
        return self.printed.get(subject.label, {}).get(subject.threshold, (None, None, None))


def table_recipe(name: str, source: str, table: Table) -> Recipe:
    """The recipe of one of the two."""
    return Recipe(
        *listed(name),
        source=source,
        measure=partial(measure, table),
        claims=(partial(ratios, table),),
        figures=_figures,
    )


# --- measuring --------------------------------------------------------------------------------------


@shares
def measure(
    table: Table,
    run: Run,
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    twins: bool = True,
    given: OnText,
) -> RecipeResult:
    """Embeddings and attention of every model at every threshold.

    Args:
        table: which of the two tables.
        run: the options that all recipes have.
        thresholds: words per topic ÷ vocabulary size.
        twins: whether to measure the untrained twin of every model too.
    """
    check_thresholds(thresholds)
    subjects: dict[str, Subject] = {}
    reports: list[tuple[str, Report]] = []
    rows: list[dict[str, Any]] = []
    texts: list[dict[str, Any]] = []
    for one in prepare_all(run, given, twins=twins):
        if not isinstance(one, Prepared):
            subjects[one.label] = one
            continue
        texts.append(_texts_row(one))
        measured = _Measured(one, run)
        of_thresholds = [one.topics(each, one_topic_per_word=table.one_topic_per_word) for each in thresholds]
        attentions = measured.attention(of_thresholds)  # of all thresholds, in one pass of the model
        for threshold, topics, attention in zip(thresholds, of_thresholds, attentions, strict=True):
            setting, subject = f"{one.label}, {threshold:g}", one.subject(threshold)
            embeddings = measured.embeddings(topics)
            subjects[setting] = subject
            reports += [(setting, attention), (setting, embeddings)]
            shuffles = [*measured.shuffled_embeddings(topics, embeddings), attention.provenance[SHUFFLED]]
            rows += _rows(subject, topics, embeddings, attention, shuffles, table.paper(subject))
    shown = settings_table(given.settings_of(run), one_topic_per_word=table.one_topic_per_word, seed=run.seed)
    tables = {run.recipe.name: side_by_side(rows), "ratios": rows, "texts": texts, "settings": shown}
    return run.result(reports, subjects=subjects, tables=tables if rows else {})


class _Measured:
    """Measures one model, or finds what an earlier call has measured."""

    def __init__(self, prepared: Prepared, run: Run) -> None:
        self._prepared, self._run = prepared, run
        self._facts: list[Any] = []
        if run.folder is not None:
            keys = [document.key for document in prepared.documents]
            self._facts = [model_facts(prepared.model), digest([keys, prepared.settings.length])]

    def embeddings(self, topics: Topics) -> EmbeddingReport:
        """Of the table, in an untrained model with intervals of the difference: its ratio is noise, see above."""
        model, random = self._prepared.model, self._prepared.random

        def measure_it(every: Sequence[Topics]) -> list[EmbeddingReport]:
            statistic: Literal["ratio", "difference"] = "difference" if random else "ratio"
            return measure_embeddings(model, every, statistic=statistic, seed=self._run.seed)

        return self._kept(EmbeddingReport, [topics], measure_it)[0]

    def attention(self, topics: Sequence[Topics]) -> list[AttentionReport]:
        """Of all heads; the provenance of each has what the same pass gives under shuffled labels."""
        one, run = self._prepared, self._run

        def measure_it(every: Sequence[Topics]) -> list[AttentionReport]:
            n_heads = sum(capture.view(one.model).n_heads)
            nulls = [Null(each, ATTENTION_SHUFFLES, run.seed, n_heads) for each in every]
            reports = measure_attention(
                one.model, every, one.documents, max_length=one.settings.length, n_permutations=0, seed=run.seed,
                accumulators=[[null] for null in nulls], progress=run.progress,
            )  # fmt: skip
            shuffles = [
                beside_shuffles(report.overall, *(null.sums[name].sum(0) for name in ("null", "n_null")))
                for report, null in zip(reports, nulls, strict=True)
            ]
            return [
                replace(report, provenance={**report.provenance, SHUFFLED: plain_values(found)})
                for report, found in zip(reports, shuffles, strict=True)
            ]

        return self._kept(AttentionReport, topics, measure_it)

    def shuffled_embeddings(self, topics: Topics, report: EmbeddingReport) -> list[dict[str, float]]:
        """What cosine and dot product are under shuffled labels."""
        shuffles = [
            sums.contrast()
            for sums, _ in embeddings_of_shuffles(self._prepared.model, topics, seed=self._run.seed)
        ]
        n_same = np.stack([one.n_same_topic for one in shuffles])
        same = np.nan_to_num(np.stack([one.same_topic for one in shuffles])) * n_same
        return [
            beside_shuffles(contrast, same[:, number], n_same[:, number])
            for number, contrast in enumerate((report.cosine, report.dot))
        ]

    def _kept(
        self,
        kind: type[R],
        topics: Sequence[Topics],
        measure_it: Callable[[Sequence[Topics]], list[R]],
    ) -> list[R]:
        """Reports from the folder; the others are measured, and kept there."""
        one, run = self._prepared, self._run
        facts = [*self._facts, one.random, run.seed, version("topic-probe"), ATTENTION_SHUFFLES]
        prints = [each.fingerprint for each in topics]
        paths = [run.kept_at(kind.kind, [*facts, fingerprint]) for fingerprint in prints]
        found: dict[int, R] = {}
        for number, path in enumerate(paths):
            if path is not None and path.exists():
                kept = load_report(path)
                assert isinstance(kept, kind)
                found[number] = kept
        missing = [number for number in range(len(topics)) if number not in found]
        if not missing:
            return [found[number] for number in range(len(topics))]
        for number, report in zip(missing, measure_it([topics[n] for n in missing]), strict=True):
            end_if_stopped(one.label, report.provenance["options"].get("stopped"))
            if (path := paths[number]) is not None:
                report.save(path)
            found[number] = report
        return [found[number] for number in range(len(topics))]


# --- tables -----------------------------------------------------------------------------------------


def _rows(
    subject: Subject,
    topics: Topics,
    embeddings: EmbeddingReport,
    attention: AttentionReport,
    shuffles: Sequence[Mapping[str, float | None]],
    paper: Sequence[float | None],
) -> list[dict[str, Any]]:
    """A row for every score; numbers that mean nothing are None, and ``note`` says why.

    A ``difference`` is a share of what a word has with itself. Intervals are of the ratio, in the embeddings of an
    untrained model of the difference.
    """
    shared = {
        "model": subject.label,
        "threshold": subject.threshold,
        "words": len(topics.words),
        "most_words_per_topic": int(topics.sizes.max()),
        "documents": int(attention.provenance["documents_measured"]),
        "sources": int(attention.provenance["sources"]),
    }
    rows = []
    counts = ("same_topic", "different_topic", "n_same_topic", "n_different_topic")
    contrasts = embeddings.cosine, embeddings.dot, attention.overall
    for score, contrast, shuffled, printed in zip(SCORES, contrasts, shuffles, paper, strict=True):
        noise = subject.random and score != "attention"
        measured, itself = of_contrast(contrast, ""), float(contrast.same_word)
        nothing = Number(nan)
        of_ratio, of_difference = (
            (nothing, measured) if contrast.statistic == "difference" else (measured, nothing)
        )
        ratio = nan if noise else contrast.ratio
        numbers: dict[str, Any] = {
            "ratio": ratio,
            "low": of_ratio.low,
            "high": of_ratio.high,
            "paper": printed,
        }
        numbers |= {name: getattr(contrast, name) for name in counts}
        numbers["ratio_at_equal_distance"] = attention.overall_matched.ratio if score == "attention" else nan
        numbers["difference"] = float(contrast.difference) / itself
        numbers |= {
            "difference_low": of_difference.low / itself,
            "difference_high": of_difference.high / itself,
        }
        numbers |= {name: nan if noise and name != "reached" else value for name, value in shuffled.items()}
        note = _NOISE if noise else contrast.reason or ""
        rows.append({**shared, "score": score, **plain_values(numbers), "note": note})
    return rows


_NOISE = "both means of an untrained table are near 0, so their quotient is noise: compare the means"


def side_by_side(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The table as the paper prints it, its numbers beside ours: a row for every model and threshold."""
    lines: dict[tuple[Any, Any], dict[str, Any]] = {}
    for row in rows:
        head = {name: row[name] for name in ("model", "threshold", "words")}
        cells = lines.setdefault((row["model"], row["threshold"]), head)
        short = row["score"].removeprefix("embedding ")
        cells |= {short: row["ratio"], f"{short} low": row["low"], f"{short} high": row["high"]}
        cells |= {f"{short} shuffled": row["shuffled"], f"{short} paper": row["paper"]}
    return list(lines.values())


def _texts_row(one: Prepared) -> dict[str, Any]:
    """What the topics of a model come from."""
    fit, read = one.fit, one.fit.provenance
    lengths = [len(document) for document in one.documents]
    return {
        "model": one.label,
        "name": capture.facts(one.model).description["name"],
        "fitted_articles": read["documents"],
        "fitted_tokens": read["tokens"],
        "fitted_words": len(fit.token_ids),
        "vocabulary": fit.vocabulary_size,
        "topics": fit.n_topics,
        "coherence_npmi": float(np.nanmean(fit.npmi)),
        "diversity": fit.diversity(),
        "measured_documents": len(lengths),
        "shortest": min(lengths),
        "longest": max(lengths),
    }


# --- claims -----------------------------------------------------------------------------------------

_ABOVE_1 = 1 + NO_DIFFERENCE


def ratios(table: Table, result: RecipeResult) -> Iterator[Claim]:
    """What the table claims of every model that was measured, and what of those that are missing."""
    rows = {(row["model"], row["threshold"], row["score"]): row for row in result.tables.get("ratios", ())}
    reports = result.of(AttentionReport)
    for setting, subject in result.subjects.items():
        if subject.missing:
            yield _not_checked(table, subject)
            continue
        for score in SCORES:
            row = rows[subject.label, subject.threshold, score]
            other = subject.label.removesuffix(RANDOM) if subject.random else subject.label + RANDOM
            beside = rows.get((other, subject.threshold, score))
            if subject.random:
                claims = [_untrained(row, beside, paper=table.untrained)]
            else:
                claims = [_trained(row, beside), _beyond_shuffles(row, beside)]
            stacks = _by_stack(reports[setting]) if score == "attention" else ""
            for claim in claims:
                detail = claim.detail if claim.ours else claim.detail + stacks
                yield replace(claim, setting=setting, detail=detail)


def _not_checked(table: Table, subject: Subject) -> Claim:
    missing: dict[str, Any] = {"setting": subject.label, "not_checked": subject.missing}
    if subject.random:
        text = "Topics make no difference in an untrained model (ratio)"
        missing |= {"above": 1 - NO_DIFFERENCE, "below": 1 + NO_DIFFERENCE}
        return Claim(text, paper=table.untrained, **missing)
    return Claim("Every ratio is above 1", paper="> 1", above=_ABOVE_1, **missing)


def _trained(row: Mapping[str, Any], twin: Mapping[str, Any] | None) -> Claim:
    """The paper's claim about a pretrained model."""
    controls = {SHUFFLED: exact_number(row["shuffled"])}
    detail = _detail(row)
    if twin is not None:
        controls[UNTRAINED] = exact_number(twin["ratio"])
        if twin["ratio"] is None:
            detail += f"; untrained: same topic {short(twin['same_topic'])}, different topics "
            detail += f"{short(twin['different_topic'])}, both near 0, so no ratio"
    positive = row["different_topic"] is not None and row["different_topic"] > 0
    return Claim(
        text=f"{_WORDS[row['score']]}: other words of the same topic ÷ words of different topics",
        paper="> 1",
        measured=number_of(row["ratio"], row["low"], row["high"], _units(row)) if positive else Number(nan),
        above=_ABOVE_1,
        controls=controls,
        detail=detail,
    )


def _beyond_shuffles(row: Mapping[str, Any], twin: Mapping[str, Any] | None) -> Claim:
    """A claim of ours: that other topics of the same words would not do as well."""
    ends = f"{short(row['shuffled_low'])} and {short(row['shuffled_high'])}"
    return Claim(
        text=f"{_WORDS[row['score']]}: shuffled labels do not give as much (share of shuffles that do)",
        measured=exact_number(row["reached"]),
        below=CHANCE,
        controls={} if twin is None else {UNTRAINED: exact_number(twin["reached"])},
        detail=f"ratio {short(row['ratio'])}, of 95 % of shuffles between {ends}",
        reason=f"few pairs of {row['words']} words meet in {row['documents']} documents, so that other topics may do "
        "as well by chance; more documents tell more",
        ours=True,
    )


def _untrained(row: Mapping[str, Any], trained: Mapping[str, Any] | None, *, paper: str) -> Claim:
    """The claim about an untrained model, which the trained one must fail."""
    if row["score"] == "attention":
        text, name, middle = "ratio in an untrained model", "ratio", 1.0
        ends = row["low"], row["high"]
    else:
        text = "difference in an untrained model, as a share of what a word has with itself"
        name, middle, ends = "difference", 0.0, (row["difference_low"], row["difference_high"])
    return Claim(
        text=f"{_WORDS[row['score']]}: {text}",
        paper=paper,
        measured=number_of(row[name], *ends, _units(row)),
        above=middle - NO_DIFFERENCE,
        below=middle + NO_DIFFERENCE,
        controls={} if trained is None else {"trained": exact_number(trained[name])},
        detail=_detail(row),
    )


def _units(row: Mapping[str, Any]) -> str:
    """What intervals are over."""
    return f"{row['sources']} sources" if row["score"] == "attention" else f"{row['words']} words"


def _detail(row: Mapping[str, Any]) -> str:
    counts = f"{row['n_same_topic']:,.0f} and {row['n_different_topic']:,.0f} pairs"
    parts = [
        "" if row["paper"] is None else f"paper {row['paper']:g}",
        f"same topic {short(row['same_topic'])}, different topics {short(row['different_topic'])} ({counts})",
        # Embeddings of an untrained model are compared by their difference, which needs no ratio.
        "" if row["note"] == _NOISE else row["note"],
        f"at equal distance {short(row['ratio_at_equal_distance'])}" if row["score"] == "attention" else "",
    ]
    return "; ".join(part for part in parts if part)


def _by_stack(report: AttentionReport) -> str:
    names = (report.stacks.index or {}).get("stack", ())
    if len(names) < 2:
        return ""
    pairs = zip(names, report.stacks.ratio, strict=True)
    return f"; by stack: {', '.join(f'{name} {ratio:.4g}' for name, ratio in pairs)}"


# --- figures ----------------------------------------------------------------------------------------


def _figures(result: RecipeResult) -> "dict[str, Figure]":
    """Bars of the ratios with their intervals and the paper's values, a panel for every score.

    Beside every pretrained model what shuffled labels give; the line there holds the ratios of 95 % of shuffles.
    """
    from topic_probe.show.bars import ratio_panels

    if "ratios" not in result.tables:
        return {}
    rows = [drawn for row in result.tables["ratios"] for drawn in (row, _control_bar(row)) if drawn]
    models = list(dict.fromkeys(row["model"] for row in result.tables["ratios"]))
    rows.sort(key=lambda row: models.index(row["model"].removesuffix(f", {SHUFFLED}")))
    return {result.recipe: ratio_panels(rows, title=result.title)}


def _control_bar(row: Mapping[str, Any]) -> dict[str, Any]:
    """The bar of shuffled labels, of which an untrained model needs none."""
    if row["model"].endswith(RANDOM):
        return {}
    about = {"model": f"{row['model']}, {SHUFFLED}", "threshold": row["threshold"], "score": row["score"]}
    return about | {"ratio": row["shuffled"], "low": row["shuffled_low"], "high": row["shuffled_high"]}


RECIPE = table_recipe(
    "table1",
    "Table 1, Section 6.2",
    Table(one_topic_per_word=True, printed=PRINTED, untrained="1.000 ± 0.001 (ratio)"),
)
# The same where a word may have several topics: it stays with every topic that keeps it, and two words have the same
# topic when they share one. The table is in an appendix whose numbers are not part of this package.
TABLE5 = table_recipe(
    "table5",
    "Table 5, Appendix E.3",
    Table(one_topic_per_word=False, printed={}, untrained="not printed here"),
)
