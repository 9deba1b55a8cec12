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

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import comb, nan
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from topic_probe.contrast import Contrast
from topic_probe.estimate import divide
from topic_probe.lens.host import facts_of
from topic_probe.lens.opening import random_init
from topic_probe.lens.weights import word_embeddings
from topic_probe.measure.attention import measure_attention, permuted_sums
from topic_probe.measure.embeddings import measure_embeddings
from topic_probe.measure.heads import layers_of
from topic_probe.measure.matched import measure_matched
from topic_probe.paper.claims import Bound, Claim
from topic_probe.paper.pretrained import (
    Prepared,
    TextSettings,
    attention_of_shuffles,
    embeddings_of_shuffles,
    embeddings_under_shuffles,
    opened,
    prepared,
    texts_row,
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
        tables: dict[str, list[dict[str, Any]]] = {"table": [], "texts": []}
        missing: dict[str, str] = {}
        for one in prepared(run, models, corpus, settings, missing):
            tables["texts"].append(texts_row(one))
            twins = {"": one.model, UNTRAINED: random_init(one.model, seed=run.seed)}
            for (seed, fit), (control, model) in product(one.fits.items(), twins.items()):
                topics = {
                    threshold: fit.topics(fraction=threshold, one_topic_per_word=one_topic_per_word)
                    for threshold in one.settings.thresholds
                }
                found = list(_at_thresholds(one, model, topics, control, seed, run))
                # The quick variant has few pairs, and judges the threshold with most of them.
                for each in [max(found, key=lambda each: each.n_pairs)] if run.quick else found:
                    about = {"training": f"{one.label}, {each.threshold:g}", "seed": seed}
                    numbers.append({**about, "control": control, **each.numbers})
                    if not control:
                        numbers.append({**about, "control": SHUFFLED, **each.shuffled})
                if seed == run.seed:
                    name = f"{one.label}, {control}" if control else one.label
                    tables["table"] += [_beside_the_papers(name, each) for each in found]
        if one_topic_per_word:
            tables["table"] += _printed_alone({row["model"] for row in tables["table"]})
        return Measured(numbers, {}, {name: rows for name, rows in tables.items() if rows}, missing)

    return measure


class _Found(NamedTuple):
    """What one model gives at one threshold: ratios with intervals and limits, and ratios under shuffled labels."""

    threshold: float
    n_pairs: float
    numbers: dict[str, float]
    shuffled: dict[str, float]


def _at_thresholds(
    one: Prepared, model: Any, topics: Mapping[float, Topics], control: str, seed: int, run: Run
) -> Iterator[_Found]:
    """Attention at every threshold, in one pass of the model, and of a trained one word embeddings.

    Both means of an untrained table are near 0, and their quotient is noise.
    """
    reports = measure_attention(
        model, list(topics.values()), one.documents, max_length=one.settings.length,
        n_permutations=ATTENTION_SHUFFLES, seed=seed, progress=run.progress,
    )  # fmt: skip
    for (threshold, each), report in zip(topics.items(), reports, strict=True):
        if report.provenance["options"]["stopped"]:
            raise KeyboardInterrupt(f"{one.label}: {report.provenance['options']['stopped']}")
        sums, n = permuted_sums(report.sums, layers_of(report.heads.index or {}), np.zeros(1, dtype=np.int64))
        scores = {"attention": (report.overall, attention_of_shuffles(report.overall, sums[0], n[0]))}
        if not control:
            table = measure_embeddings(model, each, seed=seed)
            cosine, dot = embeddings_under_shuffles(model, each, seed=seed)
            scores |= {"cosine": (table.cosine, cosine), "dot": (table.dot, dot)}
        numbers: dict[str, float] = {}
        for name, (contrast, shuffled) in scores.items():
            numbers |= _with_ends(name, contrast) | {f"{name} shuffled": shuffled["limit"]}
        means = {name: shuffled["mean"] for name, (_, shuffled) in scores.items()}
        yield _Found(threshold, float(report.overall.n_same_topic), numbers, means)


def _with_ends(name: str, contrast: Contrast) -> dict[str, float]:
    """The number of a contrast that its interval is of, with the ends of that, as a row has them."""
    low, high = (nan, nan) if contrast.interval is None else contrast.interval.tolist()
    return {name: float(getattr(contrast, contrast.statistic)), f"{name} low": low, f"{name} high": high}


def _beside_the_papers(name: str, found: _Found) -> dict[str, Any]:
    """A row as the paper prints it, its numbers beside ours."""
    papers = PRINTED.get(name, {}).get(found.threshold, (None, None, None))
    row: dict[str, Any] = {"model": name, "threshold": found.threshold}
    for score, paper in zip(SCORES, papers, strict=True):
        row[f"{score} paper"] = paper
        row |= {key: value for key, value in found.numbers.items() if key.startswith(score)}
    return row


def _printed_alone(measured: set[str]) -> list[dict[str, Any]]:
    """The paper's rows of models that were not measured."""
    return [
        {"model": label, "threshold": threshold, "note": "not run: needs the model"}
        | {f"{score} paper": number for score, number in zip(SCORES, numbers, strict=True)}
        for label, rows in PRINTED.items()
        if label not in measured
        for threshold, numbers in rows.items()
    ]


TABLE1_CLAIMS = tuple(
    Claim(
        f"Tab1{letter}", "Table 1, Section 6.2",
        f"Words of the same topic have consistently more than words of others: {said} (ratio).",
        (Bound(score, above=ABOVE_1, beyond=f"{score} shuffled"),), controls=(UNTRAINED, SHUFFLED),
        line="Tab 1   same topic ÷ different, three scores", shown="×{:.2f}",
    )
    for letter, score, said in (
        ("a", "cosine", "cosine of word embeddings"),
        ("b", "dot", "dot product of word embeddings"),
        ("c", "attention", "attention"),
    )
)  # fmt: skip
TABLE5_CLAIMS = (
    Claim(
        "Tab5", "Table 5, Appendix E.3", "The same where a word may have several topics (all three ratios).",
        tuple(Bound(score, above=ABOVE_1, beyond=f"{score} shuffled") for score in SCORES), controls=(SHUFFLED,),
        line="Tab 5   the same, several topics a word", shown="×{:.2f}",
    ),
)  # fmt: skip


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
    "table1", "same-topic words in pretrained models", "Table 1, Section 6.2",
    measure=_table(one_topic_per_word=True), claims=TABLE1_CLAIMS, figures=ratio_figure,
)  # fmt: skip
RECIPE_TABLE5 = Recipe(
    "table5", "same-topic words in pretrained models, several topics per word", "Table 5, Appendix E.3",
    measure=_table(one_topic_per_word=False), claims=TABLE5_CLAIMS, figures=ratio_figure,
)  # fmt: skip

# --- Figure 3 -------------------------------------------------------------------------------------

WORDS: Mapping[str, Sequence[str]] = {
    "animals": ("frog", "toad", "lizard"),
    "composers": ("mozart", "beethoven", "schubert"),
    "mathematics": ("algebra", "arithmetic", "calculus"),
}
FIGURE3_CLAIMS = (
    Claim(
        "F3", "Figure 3",
        "The cosines of words that belong together form blocks (mean within lists − between lists).",
        (Bound("within − between", above=0.0, beyond="within − between shuffled"),), controls=(UNTRAINED, SHUFFLED),
        line="Fig 3   cosines within lists − between", shown="{:.2f}",
    ),
)  # fmt: skip


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
            numbers += _within_and_between(one, topics, run.seed, {"training": label, "control": control})
        cosines = _cosines(model, torch.tensor([index for *_, index in listed]))
        arrays[f"{label} · cosines"] = cosines.numpy().astype(np.float32)
        tables += [{"model": label, "list": name, "word": word} for name, word, _ in listed]
    return Measured(numbers, arrays, {"words": tables} if tables else {}, missing)


def _within_and_between(
    model: Any, topics: Topics, seed: int, about: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Rows of numbers: the difference with what shuffled labels reach, and of a trained model their mean."""
    name = "within − between"
    contrast = measure_embeddings(model, topics, statistic="difference", seed=seed).cosine
    shuffles = [float(found[0].difference) for found in embeddings_of_shuffles(model, topics, seed=seed)]
    limit = {f"{name} shuffled": float(np.quantile(shuffles, 0.975))}
    yield {**about, "seed": seed, **_with_ends(name, contrast), **limit}
    if not about["control"]:
        yield {**about, "seed": seed, "control": SHUFFLED, name: float(np.mean(shuffles))}


def _cosines(model: Any, ids: Tensor) -> Tensor:
    """Cosines between the embeddings of token ids."""
    table = word_embeddings(model)[ids].double()
    cosines: Tensor = (table @ table.T) / (table.norm(dim=1) * table.norm(dim=1, keepdim=True))
    return cosines


def _listed_words(
    label: str, model: Any, lists: Mapping[str, Sequence[str]]
) -> tuple[Topics | None, list[tuple[str, str, int]]]:
    """The lists as topics, and their words that are one token; None where fewer than two lists are left."""
    tokenizer = model.tokenizer
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
        matrix = result.arrays[f"{title} · cosines"]
        return matrix_map(matrix, topics, words=words, ax=ax, title=title, label="cosine")

    return {"Cosines of word embeddings": panels(lists, draw, size=(5.6, 4.6))} if lists else {}


RECIPE_FIGURE3 = Recipe(
    "figure3", "cosines of words that belong together", "Figure 3",
    measure=measure_figure3, claims=FIGURE3_CLAIMS, figures=cosine_figure,
)  # fmt: skip

# --- Table 2 --------------------------------------------------------------------------------------

MAX_FREQUENT_WORDS = 5_000
"""Words that are counted to find the most frequent pairs."""

MATCHED_SHUFFLES = 30

TABLE2_CLAIMS = (
    *(
        Claim(
            name, "Table 2, Section 8.2",
            f"Words of the same topic have {said} than the pairs of words that co-occur most often (quotient).",
            (bound,), of="model == 'bert'",
            absent="it is said of BERT and Wikipedia: topic-probe reproduce table2 --models bert=FOLDER",
            line="Tab 2   same topic ÷ most frequent pairs", shown="×{:.2f}",
        )
        for name, said, bound in (
            ("Tab2a", "less attention", Bound("attention ÷ most frequent", below=1.0)),
            ("Tab2b", "larger cosines", Bound("cosine ÷ most frequent", above=1.0)),
        )
    ),
    *(
        Claim(
            name, "Section 8.2",
            f"Topics are not explained by co-occurrence: {score} of words of the same topic ÷ of different "
            "topics that co-occur as much and are as frequent.",
            (Bound(f"matched {score}", above=ABOVE_1),), controls=(control,), whole_only=quick, ours=True,
            line="Tab 2   the same at equal co-occurrence", shown="×{:.2f}",
        )
        for name, score, control, quick in (
            ("Tab2c", "cosine", SHUFFLED, ""),
            ("Tab2d", "attention", UNTRAINED, "needs more articles than the quick variant has"),
        )
    ),
)  # fmt: skip


def measure_table2(
    run: Run, *, models: Any = None, corpus: Corpus | None = None, settings: TextSettings | None = None
) -> Measured:
    """Same-topic pairs beside the most frequent pairs, and beside pairs that co-occur as much.

    Options are those of Table 1, the model is BERT by itself; the quick variant takes the middle threshold.
    """
    numbers: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    for one in prepared(run, models, corpus, settings, missing, default=("bert",)):
        thresholds = one.settings.thresholds
        for threshold in thresholds[1:2] if run.quick else thresholds:
            topics = one.fits[run.seed].topics(fraction=threshold)
            about = {"training": f"{one.label}, {threshold:g}", "model": one.label, "seed": run.seed}
            beside = _most_frequent_pairs(one, topics, run)
            numbers += [{**about, "control": control, **row} for control, row in _matched(one, topics, run)]
            numbers.append({**about, "control": "", **beside})
            papers = PRINTED_TABLE2.get(threshold, {}) if one.label == "bert" else {}
            quotients = {f"{score} paper": same / frequent for score, (same, frequent) in papers.items()}
            shown.append({**about, "threshold": threshold, **beside, **quotients})
    return Measured(numbers, tables={"table": shown} if shown else {}, missing=missing)


def _most_frequent_pairs(one: Prepared, topics: Topics, run: Run) -> dict[str, float]:
    """Means over same-topic pairs and over as many of the pairs that co-occur most often as a topic has."""
    frequent = count_cooccurrence(
        one.articles, word_ids(one.tokenizer), vocabulary_size=topics.vocabulary_size,
        max_words=MAX_FREQUENT_WORDS, max_length=one.settings.length, long="chunk",
    )  # fmt: skip
    texts = [readable(one.tokenizer, [index]) for index in frequent.words.tolist()]
    forms = np.unique([form(text, topics.one_word) for text in texts], return_inverse=True)[1]
    n_pairs = max(1, comb(int(topics.sizes.max()), 2))
    first, second, _ = frequent.most_frequent(n_pairs, forms=torch.from_numpy(forms))
    # Every pair is a topic of its own, so that words share one where they are such a pair.
    pairs = {f"pair {place}": pair for place, pair in enumerate(torch.stack([first, second], 1))}
    both = [topics, Topics.from_token_ids(pairs, vocabulary_size=topics.vocabulary_size)]
    attention = measure_attention(
        one.model, both, one.documents, max_length=one.settings.length, n_permutations=0,
        progress=run.progress,
    )  # fmt: skip
    found: dict[str, float] = {}
    for score, preposition, contrasts in (
        ("cosine", "of", [measure_embeddings(one.model, each).cosine for each in both]),
        ("attention", "to", [report.overall for report in attention]),
    ):
        of_topic, of_pairs = (float(contrast.same_topic) for contrast in contrasts)
        found[f"{score} {preposition} same topic"] = of_topic
        found[f"{score} of most frequent"] = of_pairs
        found[f"{score} ÷ most frequent"] = of_topic / of_pairs
    return found


def _matched(one: Prepared, topics: Topics, run: Run) -> Iterator[tuple[str, dict[str, float]]]:
    """The matched ratios, those of embeddings under shuffled labels, and those of attention in the untrained twin."""
    counts = count_cooccurrence(
        one.articles, topics, max_words=len(topics.words) + 1, max_length=one.settings.length, long="chunk"
    )
    told: dict[str, Any] = {"cooccurrence": counts, "n_permutations": 0, "seed": run.seed}
    in_texts: dict[str, Any] = {**told, "max_length": one.settings.length, "progress": run.progress}
    report = measure_matched(one.model, topics, one.documents, **in_texts)
    twin = random_init(one.model, seed=run.seed)
    untrained = measure_matched(twin, topics, one.documents, **in_texts)
    assert report.attention is not None
    assert untrained.attention is not None
    shuffles = [
        measure_matched(one.model, topics.shuffled(MATCHED_SHUFFLES * run.seed + number), **told)
        for number in range(MATCHED_SHUFFLES)
    ]
    same = np.mean([shuffled.cosine[-1].same_topic for shuffled in shuffles])
    different = np.mean([shuffled.cosine[-1].different_topic for shuffled in shuffles])
    cosine, attention = report.cosine[-1], report.attention[-1]
    yield "", _with_ends("matched cosine", cosine) | _with_ends("matched attention", attention)
    yield SHUFFLED, {"matched cosine": float(divide(same, different))}
    yield UNTRAINED, {"matched attention": float(untrained.attention[-1].ratio)}


RECIPE_TABLE2 = Recipe(
    "table2", "words of the same topic beside words that merely co-occur", "Table 2, Section 8.2",
    measure=measure_table2, claims=TABLE2_CLAIMS, figures=lambda result: {},
)  # fmt: skip
