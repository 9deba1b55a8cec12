"""Figure 3: words that belong together are near each other in the word embeddings of a pretrained model.

Cosines between the words of some short lists, on the raw table of word embeddings. A word counts if the model's
tokenizer has it as one piece (behind a space, where that makes a difference); a word that is split has no row in
the table and is left out and named in the table ``left_out``.

In the untrained twin of a model cosines are those of random directions: in d dimensions they vary by 1/√d around 0.
Its difference must be within four standard errors that follow from this.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from topic_probe.lens import capture
from topic_probe.measure.embeddings import EmbeddingReport, measure_embeddings
from topic_probe.paper.claims import Claim, interval_of
from topic_probe.paper.pretrained import Opened, open_all, tokenizer_of
from topic_probe.paper.recipe import Recipe, RecipeResult, Run, Subject
from topic_probe.topics import Topics
from topic_probe.topics.vocabulary import ONE_PIECE, look_up

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = "Figure 3, Section 4"
WORDS: Mapping[str, Sequence[str]] = {
    "animals": ("frog", "toad", "lizard"),
    "composers": ("mozart", "beethoven", "schubert"),
    "mathematics": ("algebra", "arithmetic", "calculus"),
}
"""The paper's words."""

_TOO_FEW = (
    "the tokenizer of this model has too few of the words as one piece: two lists, one of them with two words"
)


def measure(
    run: Run, *, models: Any = None, words: Mapping[str, Iterable[str]] = WORDS, twins: bool = True
) -> RecipeResult:
    """The cosines of the words in every model.

    Args:
        run: the options that all recipes have; the quick variant is the same, as this takes seconds once a model is
            there, and no folder is needed.
        models: None: BERT, as in the paper; names of the paper's models, names on the hub or folders; or label → one
            of these or a model.
        words: lists of words by name, at least two.
        twins: whether to measure the untrained twin of every model too.
    """
    lists = {str(name): list(dict.fromkeys(values)) for name, values in words.items()}
    if len(lists) < 2:
        raise ValueError(f"words needs at least two lists to compare, got {list(lists)}")
    reports: dict[str, EmbeddingReport] = {}
    subjects: dict[str, Subject] = {}
    left_out: list[dict[str, Any]] = []
    for one in open_all(run, models, default=("bert",), twins=twins):
        if not isinstance(one, Opened):
            subjects[one.label] = one
            continue
        topics, missing = lists_as_topics(lists, one)
        left_out += [{"model": one.label, **row} for row in missing]
        if topics is None:
            subjects[one.label] = replace(one.subject(), missing=_TOO_FEW)
            continue
        width = capture.word_embeddings(one.model).shape[1]
        subjects[one.label] = replace(one.subject(), width=width)
        reports[one.label] = measure_embeddings(one.model, topics, statistic="difference", seed=run.seed)
    return run.result(reports.items(), subjects=subjects, tables=_tables(reports, left_out))


def lists_as_topics(
    lists: Mapping[str, Sequence[str]], opened: Opened
) -> tuple[Topics | None, list[dict[str, Any]]]:
    """The lists as topics of token ids, and the words that are left out with the reason.

    None in place of topics where fewer than two lists are left, or none with two words.
    """
    tokenizer = tokenizer_of(opened)
    every = dict.fromkeys(word for words in lists.values() for word in words)
    pieces = look_up(every, tokenizer, case_variants=False, leading_space=True)
    # Of two pieces the last is the one behind a space, as the word stands in running text.
    ids = {word: what.sequences[-1][0] for word, what in pieces.items() if what.outcome == ONE_PIECE}
    missing = [
        {"list": name, "word": word, "reason": pieces[word].outcome}
        for name, words in lists.items()
        for word in words
        if word not in ids
    ]
    kept = {name: [ids[word] for word in words if word in ids] for name, words in lists.items()}
    kept = {name: values for name, values in kept.items() if values}
    if len(kept) < 2 or max(map(len, kept.values())) < 2:
        return None, missing
    size = capture.facts(opened.model).vocabulary_size
    return Topics.from_token_ids(kept, vocabulary_size=size, tokenizer=tokenizer), missing


# --- claims -----------------------------------------------------------------------------------------

_NEAR = Claim(
    text="Cosines of different words of one list are above those of words of different lists (difference of means)",
    source=SOURCE,
    paper="blocks",
    above=0.0,
)
_NEAR_IN_EVERY_LIST = replace(
    _NEAR, text="The same for every list: its words among each other − its words with all others"
)


def _blocks(result: RecipeResult) -> Iterator[Claim]:
    reports = result.of(EmbeddingReport)
    for label, subject in result.subjects.items():
        if subject.missing:
            yield replace(_NEAR, setting=label, not_checked=subject.missing)
        elif subject.random:
            yield _untrained(subject, reports[label])
        else:
            yield _trained(label, reports[label])
            yield from _lists(label, reports[label])


def _means(report: EmbeddingReport) -> str:
    cosine = report.cosine
    return f"same list {float(cosine.same_topic):.3f}, different lists {float(cosine.different_topic):.3f}"


def _untrained(subject: Subject, report: EmbeddingReport) -> Claim:
    # Contrasts count ordered pairs, a pair and its reverse are one cosine.
    pairs = 2 / float(report.cosine.n_same_topic) + 2 / float(report.cosine.n_different_topic)
    limit = 4 * math.sqrt(pairs / subject.width)
    return Claim(
        text="The same in an untrained model: no difference",
        source=SOURCE,
        paper="no row",
        measured=float(report.cosine.difference),
        above=-limit,
        below=limit,
        setting=subject.label,
        detail=_means(report),
    )


def _trained(label: str, report: EmbeddingReport) -> Claim:
    low, high = interval_of(report.cosine)
    interval = (
        report.cosine.reason
        if math.isnan(low)
        else f"[{low:.3f}, {high:.3f}] with other words of the same lists"
    )
    detail = f"{interval}; {_means(report)}"
    return replace(_NEAR, measured=float(report.cosine.difference), setting=label, detail=detail)


def _lists(label: str, report: EmbeddingReport) -> Iterator[Claim]:
    by_list = report.topics["cosine"]
    names = (by_list.index or {})["topic"]
    for name, difference in zip(names, by_list.difference.tolist(), strict=True):
        if not math.isnan(difference):
            yield replace(_NEAR_IN_EVERY_LIST, measured=difference, setting=f"{label}, {name}")


# --- tables and figures -----------------------------------------------------------------------------


def _tables(
    reports: Mapping[str, EmbeddingReport], left_out: Sequence[Mapping[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """The cosines of every model, a row and a column for every word, and the words that are left out."""
    tables: dict[str, list[dict[str, Any]]] = {}
    for label, report in reports.items():
        if report.matrices is not None:
            matrix, words = (
                report.matrices.pick(score="cosine"),
                [str(word) for word in report.matrices.words],
            )
            tables[f"cosines {label}"] = [
                {"word": word, **dict(zip(words, map(float, row), strict=True))}
                for word, row in zip(words, matrix, strict=True)
            ]
    if left_out:
        tables["left_out"] = [dict(row) for row in left_out]
    return tables


def _figures(result: RecipeResult) -> "dict[str, Figure]":
    """A heat map of the cosines for every model, with borders between the lists."""
    from topic_probe.show.blocks import block_panels

    reports = result.of(EmbeddingReport)
    if not reports:
        return {}
    # The same colours for all, off the diagonal, so that an untrained model looks as flat as it is.
    cosines = [report.matrices.pick(score="cosine") for report in reports.values() if report.matrices]
    between = np.concatenate([matrix[~np.eye(len(matrix), dtype=bool)] for matrix in cosines])
    limits = float(between.min()), float(between.max())
    return {"figure3": block_panels(reports, columns=2, title=result.title, limits=limits)}


RECIPE = Recipe(
    name="figure3",
    title="cosines of words that belong together",
    source=SOURCE,
    measure=measure,
    claims=(_blocks,),
    figures=_figures,
)
