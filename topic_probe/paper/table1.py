"""Tables 1 and 5: pretrained models have topics in their word embeddings and in their attention.

LDA is fitted on a corpus as each model's own tokenizer reads it, every topic keeps its likeliest words, and every word
its one likeliest topic. Then, once on the table of word embeddings and once on the attention of all heads, the mean
over pairs of different words of the same topic is divided by that over pairs of words of different topics.

Attention is multiplied by the number of keys that a position may see, so that uniform attention is 1 in every document.
Documents are cut to a common length, special tokens and the pieces of split words are left out. In a model with encoder
and decoder all stacks are pooled; the detail of a claim has them one by one.

Every model is measured beside its untrained twin, in which topics must make no difference. What is checked there:
the ratio of attention is within 0.01 of 1, or within half of its interval where that is wider. For embeddings
the *difference* of the two means is within 0.01 of 0 (or half of its interval), as a share of what a word has
with itself. Fresh embeddings have no common direction, so both means are near 0 and their quotient is noise; the
paper's 1.000 needs vectors that share something, and which ones it took is not known to us.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from topic_probe.contrast import Contrast
from topic_probe.lens import capture
from topic_probe.measure.attention import AttentionReport, measure_attention
from topic_probe.measure.embeddings import EmbeddingReport, measure_embeddings
from topic_probe.measure.runs import model_facts
from topic_probe.paper.claims import Claim, interval_of
from topic_probe.paper.pretrained import (
    QUICK,
    THRESHOLDS,
    Prepared,
    TextSettings,
    check_thresholds,
    plain_values,
    prepare_all,
    settings_table,
)
from topic_probe.paper.recipe import Recipe, RecipeResult, Run, Subject
from topic_probe.paper.training import digest, end_if_stopped
from topic_probe.report import Report, load_report
from topic_probe.text.corpus import Corpus
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

NO_DIFFERENCE = 0.01
"""An untrained model may be so far from making no difference."""

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


def table_recipe(name: str, title: str, source: str, table: Table) -> Recipe:
    """The recipe of one of the two."""
    return Recipe(
        name=name,
        title=title,
        source=source,
        measure=partial(measure, table),
        claims=(partial(_ratios, table),),
        figures=_figures,
    )


# --- measuring --------------------------------------------------------------------------------------


def measure(
    table: Table,
    run: Run,
    *,
    models: Any = None,
    corpus: Corpus | None = None,
    settings: TextSettings | None = None,
    thresholds: Sequence[float] = THRESHOLDS,
    twins: bool = True,
) -> RecipeResult:
    """Embeddings and attention of every model at every threshold.

    Args:
        table: which of the two tables.
        run: the options that all recipes have.
        models: None: the paper's six; names of these, names on the hub or folders; or label → one of these or a model.
        corpus: texts; None: a sample of Wikipedia, or if ``quick`` the articles that come with gensim.
        settings: how texts become topics and documents; None: as in the paper, or if ``quick`` small.
        thresholds: words per topic ÷ vocabulary size.
        twins: whether to measure the untrained twin of every model too.
    """
    check_thresholds(thresholds)
    settings = settings or (QUICK if run.quick else TextSettings())
    subjects: dict[str, Subject] = {}
    reports: list[tuple[str, Report]] = []
    rows: list[dict[str, Any]] = []
    texts: list[dict[str, Any]] = []
    for one in prepare_all(run, models, corpus, settings, twins=twins):
        if not isinstance(one, Prepared):
            subjects[one.label] = one
            continue
        texts.append(_texts_row(one))
        measured = _Measured(one, run)
        for threshold in thresholds:
            topics = one.topics(threshold, one_topic_per_word=table.one_topic_per_word)
            setting, subject = f"{one.label}, {threshold:g}", one.subject(threshold)
            embeddings, attention = measured.embeddings(topics), measured.attention(topics)
            subjects[setting] = subject
            reports += [(setting, attention), (setting, embeddings)]
            rows += _rows(subject, topics, embeddings, attention, table.paper(subject))
    shown = settings_table(settings, one_topic_per_word=table.one_topic_per_word, seed=run.seed)
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

        def measure_it(_: Path | None) -> EmbeddingReport:
            statistic: Literal["ratio", "difference"] = "difference" if random else "ratio"
            return measure_embeddings(model, topics, statistic=statistic, seed=self._run.seed)

        return self._kept(EmbeddingReport, topics, measure_it)

    def attention(self, topics: Topics) -> AttentionReport:
        """Of all heads."""
        one, run = self._prepared, self._run

        def measure_it(sums: Path | None) -> AttentionReport:
            return measure_attention(
                one.model, topics, one.documents, max_length=one.settings.length, n_permutations=0, seed=run.seed,
                checkpoint=sums, progress=run.progress,
            )  # fmt: skip

        return self._kept(AttentionReport, topics, measure_it)

    def _kept(self, kind: type[R], topics: Topics, measure_it: Callable[[Path | None], R]) -> R:
        """A report from the folder; otherwise a new one, which goes on from sums that an interruption has left."""
        one, run = self._prepared, self._run
        facts = [*self._facts, topics.fingerprint, one.random, run.seed, version("topic-probe")]
        path = run.kept_at(kind.kind, facts)
        if path is not None and path.exists():
            kept = load_report(path)
            assert isinstance(kept, kind)
            return kept
        sums = None if path is None else path.with_name(f"{path.name}-sums")
        report = measure_it(sums)
        end_if_stopped(one.label, report.provenance["options"].get("stopped"))
        if path is not None and sums is not None:
            report.save(path)
            shutil.rmtree(sums, ignore_errors=True)
        return report


# --- tables -----------------------------------------------------------------------------------------


def _rows(
    subject: Subject,
    topics: Topics,
    embeddings: EmbeddingReport,
    attention: AttentionReport,
    paper: Sequence[float | None],
) -> list[dict[str, Any]]:
    """A row for every score; numbers that mean nothing are None, and ``note`` says why."""
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
    for score, contrast, printed in zip(SCORES, _contrasts(embeddings, attention), paper, strict=True):
        noise = subject.random and score != "attention"
        low, high = (nan, nan) if noise else interval_of(contrast)
        numbers = {"ratio": nan if noise else contrast.ratio, "low": low, "high": high, "paper": printed}
        numbers |= {name: getattr(contrast, name) for name in counts}
        numbers["ratio_at_equal_distance"] = attention.overall_matched.ratio if score == "attention" else nan
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
        cells[f"{short} paper"] = row["paper"]
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


def _contrasts(
    embeddings: EmbeddingReport, attention: AttentionReport
) -> tuple[Contrast, Contrast, Contrast]:
    return embeddings.cosine, embeddings.dot, attention.overall


# --- claims -----------------------------------------------------------------------------------------


def _ratios(table: Table, result: RecipeResult) -> Iterator[Claim]:
    embeddings, attention = result.of(EmbeddingReport), result.of(AttentionReport)
    for setting, subject in result.subjects.items():
        if subject.missing:
            missing: dict[str, Any] = {"setting": setting, "not_checked": subject.missing}
            if subject.random:
                text = "Topics make no difference in an untrained model (ratio)"
                missing |= {"above": 1 - NO_DIFFERENCE, "below": 1 + NO_DIFFERENCE}
                yield Claim(text, result.source, table.untrained, **missing)
            else:
                yield Claim("Every ratio is above 1", result.source, "> 1", above=1.0, **missing)
            continue
        contrasts = _contrasts(embeddings[setting], attention[setting])
        statement = partial(_untrained, paper=table.untrained) if subject.random else _trained
        for score, contrast, printed in zip(SCORES, contrasts, table.paper(subject), strict=True):
            claim = statement(score, contrast, source=result.source)
            detail = claim.detail + _detail(contrast, printed)
            # Embeddings of an untrained model are compared by their difference, which needs no ratio.
            if contrast.reason and (score == "attention" or not subject.random):
                detail += f"; {contrast.reason}"
            if score == "attention":
                detail += f"; at equal distance {float(attention[setting].overall_matched.ratio):.4g}"
                stacks = attention[setting].stacks
                names = (stacks.index or {}).get("stack", ())
                if len(names) > 1:
                    pairs = zip(names, stacks.ratio, strict=True)
                    detail += f"; by stack: {', '.join(f'{name} {ratio:.4g}' for name, ratio in pairs)}"
            yield replace(claim, setting=setting, detail=detail)


def _trained(score: str, contrast: Contrast, *, source: str) -> Claim:
    low, high = interval_of(contrast)
    return Claim(
        text=f"{_WORDS[score]}: other words of the same topic ÷ words of different topics, lower end of the interval",
        source=source,
        paper="> 1",
        measured=low if float(contrast.different_topic) > 0 else nan,
        above=1.0,
        detail=f"ratio {float(contrast.ratio):.4g} [{low:.4g}, {high:.4g}]",
    )


def _untrained(score: str, contrast: Contrast, *, source: str, paper: str) -> Claim:
    low, high = interval_of(contrast)
    if score == "attention":
        text, measured, middle = "ratio in an untrained model", float(contrast.ratio), 1.0
    else:
        text = "difference in an untrained model, as a share of what a word has with itself"
        low, high = low / float(contrast.same_word), high / float(contrast.same_word)
        measured, middle = float(contrast.difference) / float(contrast.same_word), 0.0
    half = (high - low) / 2
    tolerance = half if half > NO_DIFFERENCE else NO_DIFFERENCE
    return Claim(
        text=f"{_WORDS[score]}: {text}",
        source=source,
        paper=paper,
        measured=measured,
        above=middle - tolerance,
        below=middle + tolerance,
        detail=f"{measured:.4f} [{low:.4f}, {high:.4f}]",
    )


def _detail(contrast: Contrast, printed: float | None) -> str:
    paper = "" if printed is None else f"; paper {printed:g}"
    means = (
        f"same topic {float(contrast.same_topic):.4g}, different topics {float(contrast.different_topic):.4g}"
    )
    counts = f"{float(contrast.n_same_topic):,.0f} and {float(contrast.n_different_topic):,.0f} pairs"
    return f"{paper}; {means} ({counts})"


# --- figures ----------------------------------------------------------------------------------------


def _figures(result: RecipeResult) -> "dict[str, Figure]":
    """Bars of the ratios with their intervals and the paper's values, a panel for every score."""
    from topic_probe.show.bars import ratio_panels

    if "ratios" not in result.tables:
        return {}
    return {result.recipe: ratio_panels(result.tables["ratios"], title=result.title)}


RECIPE = table_recipe(
    "table1",
    "same-topic words in pretrained models",
    "Table 1, Section 6.2",
    Table(one_topic_per_word=True, printed=PRINTED, untrained="1.000 ± 0.001 (ratio)"),
)
# The same where a word may have several topics: it stays with every topic that keeps it, and two words have the same
# topic when they share one. The table is in an appendix whose numbers are not part of this package.
TABLE5 = table_recipe(
    "table5",
    "same-topic words in pretrained models, several topics per word",
    "Table 5, Appendix E.3",
    Table(one_topic_per_word=False, printed={}, untrained="not printed here"),
)
