"""Figure 3: words that belong together are near each other in the word embeddings of a pretrained model.

Cosines between the words of some short lists, on the raw table of word embeddings. A word counts if the model's
tokenizer has it as one piece (behind a space, where that makes a difference); a word that is split has no row in
the table and is left out and named in the table ``left_out``.

In the untrained twin of a model cosines are those of random directions: in d dimensions they vary by 1/√d around 0. A
difference between words of one list and of different lists counts beyond four standard errors that follow from this,
and that of the twin must be within them. The twin is one control; the other are the same words shuffled between the
lists, with the mean of many shuffles.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64

from topic_probe.contrast import PairSums
from topic_probe.lens import capture
from topic_probe.measure.embeddings import EmbeddingReport, measure_embeddings
from topic_probe.paper import listed
from topic_probe.paper.claims import Claim, Number, of_contrast
from topic_probe.paper.pretrained import (
    RANDOM,
    UNTRAINED,
    Opened,
    embeddings_of_shuffles,
    exact_number,
    open_all,
    plain_values,
    tokenizer_of,
)
from topic_probe.paper.recipe import Recipe, RecipeResult, Run, Subject
from topic_probe.topics import Topics
from topic_probe.topics.lookup import ONE_PIECE, look_up

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORDS: Mapping[str, Sequence[str]] = {
    "animals": ("frog", "toad", "lizard"),
    "composers": ("mozart", "beethoven", "schubert"),
    "mathematics": ("algebra", "arithmetic", "calculus"),
}
"""The paper's words."""

SHUFFLED = "words shuffled between the lists"
ALL = "all lists"

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
    differences: list[dict[str, Any]] = []
    for one in open_all(run, models, default=("bert",), twins=twins):
        if not isinstance(one, Opened):
            subjects[one.label] = one
            continue
        topics, missing = lists_as_topics(lists, one)
        left_out += [{"model": one.label, **row} for row in missing]
        if topics is None:
            subjects[one.label] = replace(one.subject(), missing=_TOO_FEW)
            continue
        subjects[one.label] = one.subject()
        report = measure_embeddings(one.model, topics, statistic="difference", seed=run.seed)
        differences += [
            {"model": one.label, **row} for row in _differences(report, one.model, topics, run.seed)
        ]
        reports[one.label] = report
    return run.result(reports.items(), subjects=subjects, tables=_tables(reports, differences, left_out))


def _differences(report: EmbeddingReport, model: Any, topics: Topics, seed: int) -> list[dict[str, Any]]:
    """For all lists and for each, the difference of the mean cosines, its limit, and the mean of many shuffles.

    A list without two words has no row. The ``limit`` are four standard errors of the difference of random directions.
    """
    width = capture.word_embeddings(model).shape[1]
    cosine, by_list = report.cosine, report.topics["cosine"]
    names = [ALL, *map(str, (by_list.index or {})["topic"])]
    contrasts = [cosine, *(by_list[number] for number in range(len(by_list)))]
    # The pairs of a list with others are counted once, all other pairs in both orders.
    twice = [2.0, *(1.0 for _ in range(len(by_list)))]
    shuffled = np.mean(
        [_of_shuffle(*sums) for sums in embeddings_of_shuffles(model, topics, seed=seed)], axis=0
    )
    rows = []
    for name, contrast, orders, of_shuffles in zip(names, contrasts, twice, shuffled, strict=True):
        if not math.isnan(float(contrast.difference)):
            measured = of_contrast(contrast, "")
            pairs = 2 / float(contrast.n_same_topic) + orders / float(contrast.n_different_topic)
            numbers = {
                "difference": contrast.difference, "low": measured.low, "high": measured.high,
                "limit": 4 * math.sqrt(pairs / width), "shuffled": of_shuffles, "same_list": contrast.same_topic,
                "different_lists": contrast.different_topic,
            }  # fmt: skip
            rows.append({"lists": name, **plain_values(numbers)})
    return rows


def _of_shuffle(overall: PairSums, by_list: PairSums) -> Float64[np.ndarray, " list"]:
    """The differences of mean cosines of all lists and of each."""
    cosines = overall.contrast()[0], by_list.contrast()[0]
    return np.concatenate([np.atleast_1d(contrast.difference) for contrast in cosines])


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
    paper="blocks",
    above=0.0,
)
_NEAR_IN_EVERY_LIST = replace(
    _NEAR, text="The same for every list: its words among each other − its words with all others"
)
_NO_DIFFERENCE = replace(_NEAR, text="The same in an untrained model: no difference", paper="no row")


def _blocks(result: RecipeResult) -> Iterator[Claim]:
    rows: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in result.tables.get("differences", ()):
        rows.setdefault(row["model"], {})[row["lists"]] = row
    for label, subject in result.subjects.items():
        if subject.missing:
            yield replace(_NEAR, setting=label, not_checked=subject.missing)
        elif subject.random:
            trained = rows.get(label.removesuffix(RANDOM), {})
            yield _untrained(rows[label][ALL], trained.get(ALL))
        else:
            twin = rows.get(label + RANDOM, {})
            for name, row in rows[label].items():
                yield _trained(row, twin.get(name))


def _trained(row: Mapping[str, Any], twin: Mapping[str, Any] | None) -> Claim:
    """The paper's claim, of all lists or of one."""
    controls = {SHUFFLED: exact_number(row["shuffled"])}
    if twin is not None:
        controls[UNTRAINED] = exact_number(twin["difference"])
    together = row["lists"] == ALL
    return replace(
        _NEAR if together else _NEAR_IN_EVERY_LIST,
        setting=row["model"] if together else f"{row['model']}, {row['lists']}",
        measured=_difference(row),
        above=row["limit"],
        controls=controls,
        detail=_means(row),
    )


def _untrained(row: Mapping[str, Any], trained: Mapping[str, Any] | None) -> Claim:
    """The claim about an untrained model, which the trained one must fail; its own chance is in the bounds."""
    return replace(
        _NO_DIFFERENCE,
        setting=row["model"],
        measured=exact_number(row["difference"]),
        above=-row["limit"],
        below=row["limit"],
        controls={} if trained is None else {"trained": exact_number(trained["difference"])},
        detail=_means(row),
    )


def _difference(row: Mapping[str, Any]) -> Number:
    """With its interval over other words of the same lists, where there are words enough for one."""
    if row["low"] is None:
        return exact_number(row["difference"])
    return Number(row["difference"], row["low"], row["high"], "words")


def _means(row: Mapping[str, Any]) -> str:
    return f"same list {row['same_list']:.3f}, different lists {row['different_lists']:.3f}"


# --- tables and figures -----------------------------------------------------------------------------


def _tables(
    reports: Mapping[str, EmbeddingReport],
    differences: Sequence[Mapping[str, Any]],
    left_out: Sequence[Mapping[str, Any]],
) -> dict[str, list[dict[str, Any]]]:
    """Differences, the cosines of every model, a row and a column for every word, and the words that are left out."""
    tables = {"differences": [dict(row) for row in differences]} if differences else {}
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
    *listed("figure3"),
    source="Figure 3, Section 4",
    measure=measure,
    claims=(_blocks,),
    figures=_figures,
)
