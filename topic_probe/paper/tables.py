"""Tables 1, 2 and 5 and Figure 3: pretrained models.

Tables 1 and 5: LDA is fitted on a corpus as each model's own tokenizer reads it, every topic keeps its likeliest words,
and every word its one likeliest topic (in Table 5 all that keep it). The mean over pairs of different words of the same
topic is divided by that over words of different topics, of word embeddings and of the attention of all heads. Attention
is multiplied by the number of keys that a position may see, so that uniform attention is 1.

A ratio must be above 1.01 and above what 97.5 % of shuffled labels give; the untrained model must fail. Of untrained
embeddings there is no ratio: both means are near 0.

Table 2: for BERT the paper compares words of one topic with the pairs that co-occur most often. These are pairs of
frequent words, a difference of its own, so beside it words of the same topic are compared with words of different
topics that co-occur as much and are as frequent (`measure_matched`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from topic_probe.contrast import SAME_TOPIC, Contrast, word_relations
from topic_probe.estimate import divide
from topic_probe.lens.host import facts_of, host_of
from topic_probe.lens.opening import random_init
from topic_probe.lens.weights import word_embeddings
from topic_probe.measure.ask import ask
from topic_probe.measure.attention import measure_attention, permuted_sums
from topic_probe.measure.embeddings import measure_embeddings
from topic_probe.measure.heads import layers_of
from topic_probe.measure.matched import ClassSums, measure_matched
from topic_probe.measure.options import Reading
from topic_probe.measure.options import Run as DocumentRun
from topic_probe.paper.claims import Bound, Claim
from topic_probe.paper.pretrained import (
    Prepared,
    TextSettings,
    embeddings_of_shuffles,
    opened,
    prepared,
    texts_row,
    tokenizer_of,
    under_shuffles,
)
from topic_probe.paper.recipe import Measured, Recipe, RecipeResult, Run
from topic_probe.text.cooccurrence import count_cooccurrence
from topic_probe.text.corpus import Corpus
from topic_probe.text.lda import word_ids
from topic_probe.topics import Topics
from topic_probe.topics.lookup import ONE_PIECE, look_up, readable
from topic_probe.words import form

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCORES = ("cosine", "dot", "attention")
PRINTED: Mapping[str, Mapping[float, tuple[float, float, float]]] = {
    "bert": {0.0005: (1.21, 1.19, 1.32), 0.001: (1.13, 1.15, 1.28), 0.002: (1.11, 1.13, 1.22)},
    "albert": {0.0005: (5.64, 6.29, 1.33), 0.001: (4.18, 3.74, 1.28), 0.002: (3.24, 2.93, 1.22)},
    "bart": {0.0005: (2.80, 2.67, 1.35), 0.001: (1.95, 1.92, 1.31), 0.002: (1.63, 1.62, 1.23)},
    "electra": {0.0005: (5.98, 5.37, 2.14), 0.001: (7.70, 7.35, 2.09), 0.002: (7.46, 8.08, 1.95)},
    "roberta": {0.0005: (6.44, 6.81, 1.40), 0.001: (5.73, 6.31, 1.31), 0.002: (5.24, 5.30, 1.22)},
    "bert, untrained": {
        0.0005: (1.00080, 1.00063, 0.99943),
        0.001: (0.99974, 1.00036, 0.99996),
        0.002: (1.00016, 1.00027, 1.00007),
    },
}
"""The paper's Table 1 by model and threshold, in the order of ``SCORES``."""

PRINTED_TABLE2: Mapping[float, Mapping[str, tuple[float, float]]] = {
    0.0005: {"attention": (0.00659, 0.00751), "cosine": (0.468, 0.316)},
    0.001: {"attention": (0.00621, 0.00695), "cosine": (0.461, 0.311)},
    0.002: {"attention": (0.00597, 0.00677), "cosine": (0.425, 0.323)},
}
"""The paper's Table 2 by threshold: average over same-topic pairs, and over the pairs that co-occur most often."""

UNTRAINED, SHUFFLED = "untrained", "shuffled labels"
ATTENTION_SHUFFLES = 1000
ABOVE_1 = 1.01
"""Ratios of attention in untrained models are 1 to a few thousandths."""

# --- Tables 1 and 5 -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scores:
    """What one model gives with topics of one threshold."""

    threshold: float
    contrasts: Mapping[str, Contrast]
    shuffled: Mapping[str, Mapping[str, float]]


def _table(*, one_topic_per_word: bool) -> Callable[..., Measured]:
    """The ``measure`` of Table 1 or 5."""

    def measure(
        run: Run, *, models: Any = None, corpus: Corpus | None = None, settings: TextSettings | None = None
    ) -> Measured:
        """Embeddings and attention of every model at every threshold, and of its untrained twin.

        Args:
            run: how the recipe is run.
            models: names of the paper's models, names on the hub or folders; or label → one of these or a model; None:
                the paper's.
            corpus: texts; None: a sample of Wikipedia, or in the quick variant the articles that come with gensim.
            settings: how texts become topics and documents; None: as in the paper, or if quick for few articles.
        """
        numbers: list[dict[str, Any]] = []
        shown: list[dict[str, Any]] = []
        texts: list[dict[str, Any]] = []
        missing: dict[str, str] = {}
        for one in prepared(run, models, corpus, settings, missing):
            texts.append(texts_row(one))
            for seed, fit in one.fits.items():
                topics = [
                    fit.topics(fraction=each, one_topic_per_word=one_topic_per_word)
                    for each in one.settings.thresholds
                ]
                for control, model in (("", one.model), (UNTRAINED, random_init(one.model, seed=run.seed))):
                    scores = list(_scores(one, model, topics, seed, run))
                    for row in _rows(one.label, seed, control, scores, run):
                        numbers.append(row)
                    if seed == run.seed:
                        shown += [_shown(one.label, control, each) for each in scores]
        if one_topic_per_word:
            shown += _printed_alone({row["model"] for row in shown})
        tables = {"table": shown, "texts": texts}
        return Measured(
            numbers, tables={name: rows for name, rows in tables.items() if rows}, missing=missing
        )

    return measure


def _printed_alone(measured: Collection[str]) -> list[dict[str, Any]]:
    """The paper's rows of models that were not measured."""
    return [
        {"model": label, "threshold": threshold, "note": "not run: needs the model"}
        | {f"{score} paper": number for score, number in zip(SCORES, numbers, strict=True)}
        for label, rows in PRINTED.items()
        if label not in measured
        for threshold, numbers in rows.items()
    ]


def _scores(one: Prepared, model: Any, topics: Sequence[Topics], seed: int, run: Run) -> Iterator[_Scores]:
    """Embeddings and attention at every threshold; attention of all of them in one pass of the model."""
    reports = measure_attention(
        model, list(topics), one.documents, max_length=one.settings.length, n_permutations=ATTENTION_SHUFFLES,
        seed=seed, progress=run.progress,
    )  # fmt: skip
    for threshold, each, report in zip(one.settings.thresholds, topics, reports, strict=True):
        if report.provenance["options"].get("stopped"):
            raise KeyboardInterrupt(f"{one.label}: {report.provenance['options']['stopped']}")
        of_all = permuted_sums(report.sums, layers_of(report.heads.index or {}), np.zeros(1, dtype=np.int64))
        attention = under_shuffles(report.overall, *(part[0] for part in of_all))
        contrasts: dict[str, Contrast] = {"attention": report.overall}
        shuffled: dict[str, Mapping[str, float]] = {"attention": attention}
        if model is one.model:  # both means of an untrained table are near 0, and their quotient is noise
            contrasts, shuffled = _embedding_scores(model, each, seed, contrasts, shuffled)
        yield _Scores(threshold, contrasts, shuffled)


def _embedding_scores(
    model: Any,
    topics: Topics,
    seed: int,
    contrasts: Mapping[str, Contrast],
    shuffled: Mapping[str, Mapping[str, float]],
) -> tuple[dict[str, Contrast], dict[str, Mapping[str, float]]]:
    """The same with what word embeddings give."""
    report = measure_embeddings(model, topics, seed=seed)
    measured = {"cosine": report.cosine, "dot": report.dot}
    shuffles = [sums.contrast() for sums in embeddings_of_shuffles(model, topics, seed=seed)]
    n_same = np.stack([found.n_same_topic for found in shuffles])
    same = np.nan_to_num(np.stack([found.same_topic for found in shuffles])) * n_same
    limits = {
        name: under_shuffles(measured[name], same[:, place], n_same[:, place])
        for place, name in enumerate(("cosine", "dot"))
    }
    return {**measured, **contrasts}, {**limits, **shuffled}


def _rows(
    label: str, seed: int, control: str, scores: Sequence[_Scores], run: Run
) -> Iterator[dict[str, Any]]:
    """Rows of numbers: the ratios of every threshold that is judged, and of shuffled labels.

    The quick variant has few pairs, and judges the threshold with most of them.
    """
    most = max(scores, key=lambda each: float(each.contrasts["attention"].n_same_topic))
    for each in [most] if run.quick else scores:
        about = {"training": f"{label}, {each.threshold:g}", "seed": seed}
        row: dict[str, Any] = {**about, "control": control}
        shuffled: dict[str, Any] = {**about, "control": SHUFFLED}
        for name, contrast in each.contrasts.items():
            row |= _with_ends(name, contrast)
            row |= {f"{name} shuffled": each.shuffled[name]["limit"]}
            shuffled |= {name: each.shuffled[name]["mean"]}
        yield row
        if not control:
            yield shuffled


def _with_ends(name: str, contrast: Contrast) -> dict[str, float]:
    """The number of a contrast that its interval is of, with the ends of that, as a row has them."""
    low, high = (nan, nan) if contrast.interval is None else contrast.interval.tolist()
    return {name: float(getattr(contrast, contrast.statistic)), f"{name} low": low, f"{name} high": high}


def _shown(label: str, control: str, scores: _Scores) -> dict[str, Any]:
    """A row as the paper prints it, its numbers beside ours."""
    name = f"{label}, {control}" if control else label
    printed = PRINTED.get(name, {}).get(scores.threshold, (None, None, None))
    row: dict[str, Any] = {"model": name, "threshold": scores.threshold}
    for score, paper in zip(SCORES, printed, strict=True):
        row[f"{score} paper"] = paper
        if score in scores.contrasts:
            row |= _with_ends(score, scores.contrasts[score])
            row[f"{score} shuffled"] = scores.shuffled[score]["limit"]
    return row


def _table_claims(table: str, source: str, scores: Sequence[str], line: str) -> tuple[Claim, ...]:
    said = {
        "cosine": "cosine of word embeddings",
        "dot": "dot product of word embeddings",
        "attention": "attention",
    }
    return tuple(
        Claim(
            id=f"{table}{letter}",
            says=f"Words of the same topic have consistently more than words of others: {said[score]} (ratio).",
            source=source,
            bounds=(Bound(score, above=ABOVE_1, beyond=f"{score} shuffled"),),
            controls=(UNTRAINED, SHUFFLED),
            line=line,
            shown="×{:.2f}",
        )
        for letter, score in zip("abc", scores, strict=False)
    )


TABLE1_CLAIMS = _table_claims(
    "Tab1", "Table 1, Section 6.2", SCORES, "Tab 1   same topic ÷ different, three scores"
)
TABLE5_CLAIMS = (
    Claim(
        id="Tab5",
        says="The same where a word may have several topics (all three ratios).",
        source="Table 5, Appendix E.3",
        bounds=tuple(Bound(score, above=ABOVE_1, beyond=f"{score} shuffled") for score in SCORES),
        controls=(SHUFFLED,),
        line="Tab 5   the same, several topics a word",
        shown="×{:.2f}",
    ),
)


def ratio_figure(result: RecipeResult) -> "dict[str, Figure]":
    """The ratios of every model as points with intervals, beside the paper's and what shuffled labels reach."""
    import pandas as pd

    from topic_probe.show.figures import forest, panels

    table = pd.DataFrame(list(result.tables.get("table", ())))
    if "attention" not in table:
        return {}
    table["name"] = table["model"] + ", " + table["threshold"].astype(str)
    parts = {
        score: table.rename(columns={f"{score} {end}": end for end in ("low", "high", "shuffled", "paper")})
        for score in SCORES
    }

    def draw(rows: Any, *, ax: Any, title: str) -> Any:
        beside = {"shuffled labels (97.5 %)": "shuffled", "the paper's": "paper"}
        return forest(rows, title, middle=1.0, beside=beside, ax=ax, title=title, label="ratio")

    figure = panels(parts, draw, size=(4.2, 1.0 + 0.28 * len(table)), sharey=True)
    return {"Same topic ÷ different topics": figure}


RECIPE_TABLE1 = Recipe(
    "table1",
    "same-topic words in pretrained models",
    "Table 1, Section 6.2",
    measure=_table(one_topic_per_word=True),
    claims=TABLE1_CLAIMS,
    figures=ratio_figure,
)
RECIPE_TABLE5 = Recipe(
    "table5",
    "same-topic words in pretrained models, several topics per word",
    "Table 5, Appendix E.3",
    measure=_table(one_topic_per_word=False),
    claims=TABLE5_CLAIMS,
    figures=ratio_figure,
)

# --- Figure 3 -------------------------------------------------------------------------------------

WORDS: Mapping[str, Sequence[str]] = {
    "animals": ("frog", "toad", "lizard"),
    "composers": ("mozart", "beethoven", "schubert"),
    "mathematics": ("algebra", "arithmetic", "calculus"),
}
FIGURE3_CLAIMS = (
    Claim(
        id="F3",
        says="The cosines of words that belong together form blocks (mean within lists − between lists).",
        source="Figure 3",
        bounds=(Bound("within − between", above=0.0, beyond="within − between shuffled"),),
        controls=(UNTRAINED, SHUFFLED),
        line="Fig 3   cosines within lists − between",
        shown="{:.2f}",
    ),
)


def measure_figure3(run: Run, *, models: Any = None, words: Mapping[str, Sequence[str]] = WORDS) -> Measured:
    """The cosines of the words in every model.

    Args:
        run: how the recipe is run.
        models: as in Table 1; None: BERT, as in the paper.
        words: lists of words by name, at least two.
    """
    if len(words) < 2:
        raise ValueError(f"words needs at least two lists to compare, got {list(words)}")
    numbers: list[dict[str, Any]] = []
    arrays: dict[str, np.ndarray] = {}
    missing: dict[str, str] = {}
    tables: list[dict[str, Any]] = []
    for label, model in opened(models, ("bert",), missing):
        topics, listed = _listed_words(label, model, words)
        if topics is None:
            missing[label] = "its tokenizer has too few of the words as one piece each"
            continue
        for control, one in (("", model), (UNTRAINED, random_init(model, seed=run.seed))):
            contrast = measure_embeddings(one, topics, statistic="difference", seed=run.seed).cosine
            about = {"training": label, "control": control, "seed": run.seed}
            shuffles = np.array(
                [
                    float(sums.contrast()[0].difference)
                    for sums in embeddings_of_shuffles(one, topics, seed=run.seed)
                ]
            )
            limit = {"within − between shuffled": float(np.quantile(shuffles, 0.975))}
            numbers.append(about | _with_ends("within − between", contrast) | limit)
            if not control:
                shuffled = {**about, "control": SHUFFLED, "within − between": float(shuffles.mean())}
                numbers.append(shuffled)
                table = word_embeddings(model)[[index for *_, index in listed]].double()
                table = table / table.norm(dim=1, keepdim=True)
                arrays[f"{label} · cosines"] = (table @ table.T).numpy().astype(np.float32)
                tables += [{"model": label, "list": name, "word": word} for name, word, _ in listed]
    return Measured(numbers, arrays, {"words": tables} if tables else {}, missing)


def _listed_words(
    label: str, model: Any, lists: Mapping[str, Sequence[str]]
) -> tuple[Topics | None, list[tuple[str, str, int]]]:
    """The lists as topics, and their words that are one token; None where fewer than two lists are left."""
    tokenizer = tokenizer_of(label, model)
    pieces = look_up([word for words in lists.values() for word in words], tokenizer, case_variants=False)
    listed: list[tuple[str, str, int]] = [
        # Of two pieces the last is the one behind a space, as the word stands in running text.
        (name, word, pieces[word].sequences[-1][0])
        for name, words in lists.items()
        for word in words
        if pieces[word].outcome == ONE_PIECE
    ]
    kept: dict[str, list[int]] = {}
    for name, _, index in listed:
        kept.setdefault(name, []).append(index)
    if len(kept) < 2 or max(map(len, kept.values())) < 2:
        return None, []
    size = facts_of(model).vocabulary_size
    return Topics.from_token_ids(kept, vocabulary_size=size, tokenizer=tokenizer), listed


def cosine_figure(result: RecipeResult) -> "dict[str, Figure]":
    """The cosines of all words with each other."""
    from topic_probe.show.figures import matrix_map, panels

    lists: dict[str, list[Any]] = {}
    for row in result.tables.get("words", ()):
        lists.setdefault(row["model"], []).append(row)

    def draw(rows: Any, *, ax: Any, title: str) -> Any:
        topics, words = ([row[name] for row in rows] for name in ("list", "word"))
        matrix = result.array(f"{title} · cosines")
        return matrix_map(matrix, topics, words=words, ax=ax, title=title, label="cosine")

    return {"Cosines of word embeddings": panels(lists, draw, size=(5.6, 4.6))} if lists else {}


RECIPE_FIGURE3 = Recipe(
    "figure3",
    "cosines of words that belong together",
    "Figure 3",
    measure=measure_figure3,
    claims=FIGURE3_CLAIMS,
    figures=cosine_figure,
)

# --- Table 2 --------------------------------------------------------------------------------------

MAX_FREQUENT_WORDS = 5_000
"""Words that are counted to find the most frequent pairs."""

MATCHED_SHUFFLES = 30
_MATCHED = "matched on PMI and frequency"
_NOT_BERT = "it is said of BERT and Wikipedia: topic-probe reproduce table2 --models bert=FOLDER"

TABLE2_CLAIMS = (
    *(
        Claim(
            id=name,
            says=f"Words of the same topic have {said} than the pairs of words that co-occur most often (quotient).",
            source="Table 2, Section 8.2",
            bounds=(bound,),
            of="model == 'bert'",
            absent=_NOT_BERT,
            line="Tab 2   same topic ÷ most frequent pairs",
            shown="×{:.2f}",
        )
        for name, said, bound in (
            ("Tab2a", "less attention", Bound("attention ÷ most frequent", below=1.0)),
            ("Tab2b", "larger cosines", Bound("cosine ÷ most frequent", above=1.0)),
        )
    ),
    *(
        Claim(
            id=name,
            says=f"Topics are not explained by co-occurrence: {said} of words of the same topic ÷ of different "
            "topics that co-occur as much and are as frequent.",
            source="Section 8.2",
            bounds=(Bound(f"matched {score}", above=ABOVE_1),),
            controls=(control,),
            whole_only="" if name == "Tab2c" else "needs more articles than the quick variant has",
            ours=True,
            line="Tab 2   the same at equal co-occurrence",
            shown="×{:.2f}",
        )
        for name, said, score, control in (
            ("Tab2c", "cosine", "cosine", SHUFFLED),
            ("Tab2d", "attention", "attention", UNTRAINED),
        )
    ),
)


def measure_table2(
    run: Run, *, models: Any = None, corpus: Corpus | None = None, settings: TextSettings | None = None
) -> Measured:
    """Same-topic pairs beside the most frequent pairs, and beside pairs that co-occur as much.

    Args:
        run: how the recipe is run.
        models: as in Table 1; None: BERT, as in the paper.
        corpus: texts; None: a sample of Wikipedia, or in the quick variant the articles that come with gensim.
        settings: as in Table 1; the quick variant takes the middle one of its thresholds.
    """
    numbers: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    for one in prepared(run, models, corpus, settings, missing, default=("bert",)):
        fit = one.fits[run.seed]
        thresholds = one.settings.thresholds
        for threshold in thresholds[1:2] if run.quick else thresholds:
            topics = fit.topics(fraction=threshold)
            about = {"training": f"{one.label}, {threshold:g}", "model": one.label, "seed": run.seed}
            beside = _most_frequent_pairs(one, topics, run)
            numbers += [{**about, "control": control, **row} for control, row in _matched(one, topics, run)]
            numbers.append({**about, "control": "", **beside})
            shown.append({**about, "threshold": threshold, **beside, **_printed_table2(one.label, threshold)})
    return Measured(numbers, tables={"table": shown} if shown else {}, missing=missing)


def _printed_table2(label: str, threshold: float) -> dict[str, float | None]:
    printed = PRINTED_TABLE2.get(threshold, {}) if label == "bert" else {}
    return {
        f"{score} paper": (pair[0] / pair[1]) if (pair := printed.get(score)) else None
        for score in ("attention", "cosine")
    }


def _most_frequent_pairs(one: Prepared, topics: Topics, run: Run) -> dict[str, float]:
    """Means over same-topic pairs and over as many of the pairs that co-occur most often as a topic has."""
    frequent = count_cooccurrence(
        one.articles, word_ids(one.tokenizer), vocabulary_size=one.fits[run.seed].vocabulary_size,
        max_words=MAX_FREQUENT_WORDS, max_length=one.settings.length, long="chunk",
    )  # fmt: skip
    texts = [readable(one.tokenizer, [index]) for index in frequent.words.tolist()]
    forms = np.unique([form(text, topics.one_word) for text in texts], return_inverse=True)[1]
    largest = int(topics.sizes.max())
    first, second, _ = frequent.most_frequent(
        max(1, largest * (largest - 1) // 2), forms=torch.from_numpy(forms)
    )
    words = torch.unique(torch.cat([topics.words, first, second]))
    places = topics.places(words)
    same = word_relations(places, places, topics) == SAME_TOPIC
    top = torch.zeros(len(words), len(words), dtype=torch.bool)
    rows, columns = torch.searchsorted(words, first), torch.searchsorted(words, second)
    top[rows, columns] = top[columns, rows] = True
    table = word_embeddings(one.model)[words].double()
    table = table / table.norm(dim=1, keepdim=True)
    cosines = table @ table.T
    means = {"same": float(cosines[same].mean()), "frequent": float(cosines[top].mean())}
    attention = {
        name: _mean_attention(one, words, flag, run) for name, flag in (("same", same), ("frequent", top))
    }
    return {
        "cosine of same topic": means["same"],
        "cosine of most frequent": means["frequent"],
        "cosine ÷ most frequent": means["same"] / means["frequent"],
        "attention to same topic": attention["same"],
        "attention of most frequent": attention["frequent"],
        "attention ÷ most frequent": attention["same"] / attention["frequent"],
    }


def _mean_attention(one: Prepared, words: Any, pairs: Any, run: Run) -> float:
    """Mean attention, relative to uniform, over these pairs of words."""
    view = host_of(one.model)
    topics = Topics.from_token_ids({"words": words}, vocabulary_size=one.fits[run.seed].vocabulary_size)
    sums = ClassSums(topics, torch.where(pairs, 1, 0), sum(view.n_heads))
    reading = Reading(max_length=one.settings.length).of(view.facts)
    ask(view, [sums], one.documents, reading=reading, run=DocumentRun(progress=run.progress))
    _, total, _, _, n, *_ = sums.sums["by_head"].sum((0, 1))
    return float(divide(total, n))


def _matched(one: Prepared, topics: Topics, run: Run) -> Iterator[tuple[str, dict[str, float]]]:
    """The matched ratios, those of embeddings under shuffled labels, and those of attention in the untrained twin."""
    counts = count_cooccurrence(
        one.articles, topics.words, vocabulary_size=one.fits[run.seed].vocabulary_size, max_words=len(topics.words) + 1,
        max_length=one.settings.length, long="chunk",
    )  # fmt: skip
    report = measure_matched(
        one.model, topics, one.documents, cooccurrence=counts, max_length=one.settings.length, seed=run.seed,
        n_permutations=0, progress=run.progress,
    )  # fmt: skip
    assert report.attention is not None
    cosine, attention = report.cosine[-1], report.attention[-1]
    yield (
        "",
        _with_ends("matched cosine", cosine) | _with_ends("matched attention", attention),
    )
    shuffles = [
        measure_matched(
            one.model, topics.shuffled(MATCHED_SHUFFLES * run.seed + number), cooccurrence=counts, n_permutations=0,
        ).cosine[-1]
        for number in range(MATCHED_SHUFFLES)
    ]  # fmt: skip
    same, different = (
        _mean([getattr(each, part) for each in shuffles]) for part in ("same_topic", "different_topic")
    )
    yield SHUFFLED, {"matched cosine": float(divide(np.float64(same), np.float64(different)))}
    twin = measure_matched(
        random_init(one.model, seed=run.seed), topics, one.documents, cooccurrence=counts,
        max_length=one.settings.length, seed=run.seed, n_permutations=0, progress=run.progress,
    )  # fmt: skip
    assert twin.attention is not None
    yield UNTRAINED, {"matched attention": float(twin.attention[-1].ratio)}


def _mean(values: Sequence[Any]) -> float:
    return float(np.mean(np.array(values, dtype=np.float64)))


RECIPE_TABLE2 = Recipe(
    "table2",
    "words of the same topic beside words that merely co-occur",
    "Table 2, Section 8.2",
    measure=measure_table2,
    claims=TABLE2_CLAIMS,
    figures=lambda result: {},
)
