"""Table 1: pretrained models have topics in their word embeddings and in their attention.

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

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from topic_probe.contrast import Contrast
from topic_probe.lens import capture
from topic_probe.measure.attention import AttentionReport, measure_attention
from topic_probe.measure.checkpoint import model_facts
from topic_probe.measure.embeddings import EmbeddingReport, measure_embeddings
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
from topic_probe.report import Report, load_report
from topic_probe.text.corpus import Corpus
from topic_probe.topics import Topics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "same-topic words in pretrained models"
SOURCE = "Table 1, Section 6.2"

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
    thresholds: Sequence[float] = THRESHOLDS,
    twins: bool = True,
) -> RecipeResult:
    """Measure every model at every threshold, and check the claims.

    Args:
        quick: Few topics and few short documents of the articles that come with gensim.
        only: Labels of the models to measure; None: all.
        seed: Of the Wikipedia sample, LDA, untrained twins and intervals.
        folder: Keeps token ids, fits and reports; a second call goes on from there.
        progress: Whether to show progress bars.
        models: None: the paper's six; names of these, names on the hub or folders; or label → one of these or a model.
        corpus: Texts; None: a sample of Wikipedia, or if ``quick`` the articles that come with gensim.
        settings: How texts become topics and documents; None: as in the paper, or if ``quick`` small.
        thresholds: Words per topic ÷ vocabulary size.
        twins: Whether to measure the untrained twin of every model too.
    """
    return run_table(
        _TABLE, quick=quick, only=only, seed=seed, folder=folder, progress=progress, models=models, corpus=corpus,
        settings=settings, thresholds=thresholds, twins=twins,
    )  # fmt: skip


@dataclass(frozen=True)
class Table:
    """What Tables 1 and 5 differ in.

    Attributes:
        recipe: Its name.
        title: What the paper shows there.
        source: Where.
        one_topic_per_word: Whether a word keeps only its likeliest topic.
        printed: The paper's numbers, by model and threshold in the order of ``SCORES``.
        untrained: What the paper has for the untrained model.
    """

    recipe: str
    title: str
    source: str
    one_topic_per_word: bool
    printed: Mapping[str, Mapping[float, tuple[float, float, float]]]
    untrained: str


_TABLE = Table("table1", TITLE, SOURCE, True, PRINTED, "1.000 ± 0.001 (ratio)")


def run_table(
    table: Table,
    *,
    quick: bool,
    only: Iterable[str] | None,
    seed: int,
    folder: str | Path | None,
    progress: bool,
    models: Any,
    corpus: Corpus | None,
    settings: TextSettings | None,
    thresholds: Sequence[float],
    twins: bool,
) -> RecipeResult:
    """One of the tables; arguments as in `run`."""
    start = time.perf_counter()
    if not thresholds or not all(0 < threshold <= 1 for threshold in thresholds):
        raise ValueError(
            f"thresholds are shares of the vocabulary, above 0 and at most 1, got {list(thresholds)}"
        )
    claims: list[Claim] = []
    rows: list[dict[str, Any]] = []
    attention: dict[str, Report] = {}
    embeddings: dict[str, Report] = {}
    texts: list[dict[str, Any]] = []
    settings = settings or (QUICK if quick else TextSettings())
    prepared = prepare_all(
        models, corpus, settings, quick=quick, twins=twins, only=only, seed=seed, folder=folder, progress=progress
    )  # fmt: skip
    for one in prepared:
        if isinstance(one, Missing):
            claims.append(_not_checked(one, table))
            continue
        texts.append(_texts_row(one))
        measure = _Measure(one, seed=seed, folder=folder, progress=progress)
        for threshold in thresholds:
            topics = one.topics(threshold, one_topic_per_word=table.one_topic_per_word)
            setting = f"{one.label}, {threshold:g}"
            embeddings[setting], attention[setting] = found = measure.both(topics)
            paper = table.printed.get(one.label, {}).get(threshold, (None, None, None))
            rows += _rows(one, threshold, topics, found, paper)
            claims += _claims(one, setting, found, paper, table)
    return RecipeResult(
        recipe=table.recipe,
        title=table.title,
        quick=quick,
        claims=tuple(claims),
        reports={"attention": attention, "embeddings": embeddings} if rows else {},
        tables={
            table.recipe: side_by_side(rows),
            "ratios": rows,
            "texts": texts,
            "settings": settings_table(settings, one_topic_per_word=table.one_topic_per_word, seed=seed),
        }
        if rows
        else {},
        seconds=time.perf_counter() - start,
        draw=draw,
    )


# --- measuring --------------------------------------------------------------------------------------


class _Measure:
    """Measures one model, or finds what an earlier call has measured."""

    def __init__(self, prepared: Prepared, *, seed: int, folder: str | Path | None, progress: bool) -> None:
        self._prepared, self._seed, self._progress = prepared, seed, progress
        self._folder = None if folder is None else Path(folder).expanduser() / "measured"
        self._facts = None if folder is None else [model_facts(prepared.model), _hash_of_documents(prepared)]

    def both(self, topics: Topics) -> tuple[EmbeddingReport, AttentionReport]:
        """Embeddings and attention."""
        one, seed = self._prepared, self._seed

        def embeddings(_: Path | None) -> Report:
            # The ratio of an untrained table is noise, see the top of this file.
            if one.random:
                return measure_embeddings(one.model, topics, statistic="difference", seed=seed)
            return measure_embeddings(one.model, topics, seed=seed)

        def attention(sums: Path | None) -> Report:
            return measure_attention(
                one.model, topics, one.documents, max_length=one.settings.length, n_permutations=0, seed=seed,
                checkpoint=sums, progress=self._progress,
            )  # fmt: skip

        first, second = (
            self._kept("embeddings", topics, embeddings),
            self._kept("attention", topics, attention),
        )
        assert isinstance(first, EmbeddingReport)
        assert isinstance(second, AttentionReport)
        stopped = second.provenance["options"]["stopped"]
        if stopped:
            raise KeyboardInterrupt(f"{one.label}: {stopped}")
        return first, second

    def _kept(self, kind: str, topics: Topics, measure: Callable[[Path | None], Report]) -> Report:
        """A report from the folder; otherwise a new one, which goes on from sums that an interruption has left."""
        if self._folder is None:
            return measure(None)
        facts = [
            *(self._facts or ()),
            topics.fingerprint,
            self._prepared.random,
            self._seed,
            version("topic-probe"),
        ]
        digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        path = self._folder / f"{kind}-{digest[:16]}"
        if path.exists():
            return load_report(path)
        sums = path.with_name(f"{path.name}-sums")
        report = measure(sums)
        if not report.provenance["options"].get("stopped"):
            report.save(path)
            shutil.rmtree(sums, ignore_errors=True)
        return report


def _hash_of_documents(prepared: Prepared) -> str:
    keys = [document.key for document in prepared.documents]
    return hashlib.sha256(json.dumps([keys, prepared.settings.length]).encode()).hexdigest()


# --- tables -----------------------------------------------------------------------------------------


def _rows(
    one: Prepared,
    threshold: float,
    topics: Topics,
    found: tuple[EmbeddingReport, AttentionReport],
    paper: Sequence[float | None],
) -> list[dict[str, Any]]:
    """A row for every score; numbers that mean nothing are None, and ``note`` says why."""
    shared = {
        "model": one.label,
        "threshold": threshold,
        "words": len(topics.words),
        "most_words_per_topic": int(topics.sizes.max()),
        "documents": int(found[1].provenance["documents_measured"]),
    }
    rows = []
    for score, contrast, printed in zip(SCORES, _contrasts(found), paper, strict=True):
        noise = one.random and score != "attention"
        low, high = (nan, nan) if noise else _interval(contrast)
        rows.append(
            {
                **shared,
                "score": score,
                "ratio": None if noise else _plain(contrast.ratio),
                "low": _plain(low),
                "high": _plain(high),
                "paper": printed,
                "same_topic": _plain(contrast.same_topic),
                "different_topic": _plain(contrast.different_topic),
                "n_same_topic": _plain(contrast.n_same_topic),
                "n_different_topic": _plain(contrast.n_different_topic),
                "ratio_at_equal_distance": _plain(found[1].overall_matched.ratio)
                if score == "attention"
                else None,
                "note": _NOISE if noise else contrast.reason or "",
            }
        )
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
        "name": capture.describe(one.model)["name"],
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


def _contrasts(found: tuple[EmbeddingReport, AttentionReport]) -> tuple[Contrast, Contrast, Contrast]:
    return found[0].cosine, found[0].dot, found[1].overall


def _interval(contrast: Contrast) -> tuple[float, float]:
    if contrast.interval is None:
        return nan, nan
    low, high = contrast.interval.tolist()
    return low, high


def _plain(value: Any) -> float | None:
    number = float(value)
    return number if np.isfinite(number) else None


# --- claims -----------------------------------------------------------------------------------------


def _not_checked(missing: Missing, table: Table) -> Claim:
    if missing.random:
        text, paper = "Topics make no difference in an untrained model (ratio)", table.untrained
        above, below = 1 - NO_DIFFERENCE, 1 + NO_DIFFERENCE
    else:
        text, paper, above, below = "Every ratio is above 1", "> 1", 1.0, inf
    return Claim(
        text, table.source, paper, above=above, below=below, setting=missing.label, not_checked=missing.reason
    )


def _claims(
    one: Prepared,
    setting: str,
    found: tuple[EmbeddingReport, AttentionReport],
    paper: Sequence[float | None],
    table: Table,
) -> list[Claim]:
    claims = []
    for score, contrast, printed in zip(SCORES, _contrasts(found), paper, strict=True):
        # Embeddings of an untrained model are compared by their difference anyway.
        noise = one.random and score != "attention"
        detail = _detail(contrast, printed, reason=None if noise else contrast.reason)
        if score == "attention":
            detail += _detail_of_attention(found[1])
        make = _untrained if one.random else _trained
        claims.append(make(score, contrast, setting=setting, detail=detail, table=table))
    return claims


def _trained(score: str, contrast: Contrast, *, setting: str, detail: str, table: Table) -> Claim:
    low, high = _interval(contrast)
    return Claim(
        text=f"{_WORDS[score]}: other words of the same topic ÷ words of different topics, lower end of the interval",
        source=table.source,
        paper="> 1",
        measured=low if float(contrast.different_topic) > 0 else nan,
        above=1.0,
        setting=setting,
        detail=f"ratio {float(contrast.ratio):.4g} [{low:.4g}, {high:.4g}]{detail}",
    )


def _untrained(score: str, contrast: Contrast, *, setting: str, detail: str, table: Table) -> Claim:
    low, high = _interval(contrast)
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
        source=table.source,
        paper=table.untrained,
        measured=measured,
        above=middle - tolerance,
        below=middle + tolerance,
        setting=setting,
        detail=f"{measured:.4f} [{low:.4f}, {high:.4f}]{detail}",
    )


def _detail(contrast: Contrast, printed: float | None, *, reason: str | None) -> str:
    paper = "" if printed is None else f"; paper {printed:g}"
    means = (
        f"same topic {float(contrast.same_topic):.4g}, different topics {float(contrast.different_topic):.4g}"
    )
    counts = f"{float(contrast.n_same_topic):,.0f} and {float(contrast.n_different_topic):,.0f} pairs"
    why = f"; {reason}" if reason else ""
    return f"{paper}; {means} ({counts}){why}"


def _detail_of_attention(report: AttentionReport) -> str:
    matched = f"; at equal distance {float(report.overall_matched.ratio):.4g}"
    stacks = (report.stacks.index or {}).get("stack", ())
    if len(stacks) < 2:
        return matched
    each = ", ".join(f"{name} {ratio:.4g}" for name, ratio in zip(stacks, report.stacks.ratio, strict=True))
    return f"{matched}; by stack: {each}"


# --- figures ----------------------------------------------------------------------------------------


def draw(result: RecipeResult) -> "dict[str, Figure]":
    """Bars of the ratios with their intervals and the paper's values, a panel for every score."""
    from topic_probe.show.bars import ratio_panels

    if "ratios" not in result.tables:
        return {}
    return {result.recipe: ratio_panels(result.tables["ratios"], title=result.title)}
