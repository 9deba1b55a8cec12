"""What the recipes on real text share: the paper's models, and for each the documents and topics of its own tokenizer.

A model, its tokenizer's documents and an LDA of their token ids belong together, because topics are sets of token ids
and mean nothing to another tokenizer. A model without files is missing, with the reason, and does not stop the others.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from topic_probe.contrast import Contrast, PairSums
from topic_probe.estimate import divide
from topic_probe.lens.host import facts_of
from topic_probe.lens.opening import open_model
from topic_probe.lens.weights import word_embeddings
from topic_probe.measure.words import labelled_words, word_sums
from topic_probe.paper.recipe import Run
from topic_probe.text.corpus import Corpus
from topic_probe.text.documents import Document
from topic_probe.text.lda import TopicFit, fit_topics
from topic_probe.topics import Topics

HUB = {
    "bert": "google-bert/bert-base-uncased",
    "albert": "albert/albert-base-v2",
    "bart": "facebook/bart-base",
    # ELECTRA trains two models; the discriminator is the one that is kept and used, the generator only helps it.
    "electra": "google/electra-base-discriminator",
    "roberta": "FacebookAI/roberta-base",
}
"""The paper's pretrained models and their names on the Hugging Face hub, the base size of each."""

EMBEDDING_SHUFFLES = 100
"""So many shuffles of the labels tell the mean ratio of embeddings to less than a hundredth."""


@dataclass(frozen=True)
class TextSettings:
    """How articles become topics, and which documents are measured.

    Attributes:
        n_articles: Articles of the Wikipedia sample, where no corpus is given.
        n_topics: Topics of LDA, which is fitted on whole articles.
        passes: Passes of LDA over them.
        length: Tokens that a measured document is cut to, at word borders and special ones included.
        n_documents: Measured documents at most, spread evenly over the corpus; None: all.
        thresholds: Words per topic ÷ vocabulary size; the paper calls it the ambiguity threshold.
    """

    n_articles: int = 10_000
    n_topics: int = 100
    passes: int = 10
    length: int = 128
    n_documents: int | None = 2_000
    thresholds: tuple[float, ...] = (0.0005, 0.001, 0.002)


QUICK = TextSettings(n_topics=12, length=64, n_documents=None)
"""For the articles that come with gensim."""


# --- models ---------------------------------------------------------------------------------------


def labelled(models: Any, default: Sequence[str]) -> dict[str, Any]:
    """The models that are meant, by what they are called in tables."""
    models = default if models is None else models
    if isinstance(models, str | Path):
        models = [models]
    if not isinstance(models, Mapping):
        if others := [type(one).__name__ for one in models if not isinstance(one, str | Path)]:
            raise TypeError(f"an opened model needs a label: pass models={{'NAME': model}}, got {others[0]}")
        models = {Path(one).name if Path(one).is_dir() else str(one): one for one in models}
    label_of = {name: label for label, name in HUB.items()}
    return {label_of.get(label, label): source for label, source in models.items()}


def opened(models: Any, default: Sequence[str], missing: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """Every model that is meant, opened when its turn comes; ``missing`` is told why one is not there.

    Raises:
        OSError: where the user named a model that is not there.
    """
    for label, source in labelled(models, default).items():
        try:
            model = open_model(HUB.get(source, source) if isinstance(source, str) else source)
        except OSError as error:
            if models is not None:
                raise
            missing[label] = (
                f"{error} Then pass models={{{label!r}: FOLDER}} (in a shell: --models {label}=FOLDER)."
            )
        else:
            yield label, model


# --- texts ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Prepared:
    """A model with its own tokenizer, whole texts, the cut ones that are measured, and LDA of the whole by seed."""

    label: str
    model: Any
    tokenizer: Any
    articles: Sequence[Document]
    documents: Sequence[Document]
    fits: Mapping[int, TopicFit]
    settings: TextSettings


def texts_of(run: Run, corpus: Corpus | None, n_articles: int, missing: dict[str, str]) -> Corpus | None:
    """The texts that were given; else a sample of Wikipedia, or if the run is quick the articles of gensim."""
    if corpus is not None:
        return corpus
    if run.quick:
        return Corpus.bundled()
    try:
        return Corpus.wikipedia(n_articles, seed=run.seed)
    except OSError as error:
        missing["texts"] = str(error)
        return None


def prepared(
    run: Run,
    models: Any,
    corpus: Corpus | None,
    settings: TextSettings | None,
    missing: dict[str, str],
    *,
    default: Sequence[str] = tuple(HUB),
) -> Iterator[Prepared]:
    """Every model that is there, ready to be measured; the quick variant fits topics with every seed."""
    settings = settings or (QUICK if run.quick else TextSettings())
    corpus = texts_of(run, corpus, settings.n_articles, missing)
    if corpus is None:
        return
    for label, model in opened(models, default, missing):
        tokenizer = model.tokenizer
        length = min(settings.length, facts_of(model).context_length or settings.length)
        articles = list(corpus.documents(tokenizer, progress=run.progress))
        cut = list(corpus.documents(tokenizer, max_length=length, progress=run.progress))
        wanted = settings.n_documents or len(cut)
        fits = {
            seed: fit_topics(
                articles, tokenizer, n_topics=settings.n_topics, passes=settings.passes, seed=seed,
                progress=run.progress,
            )
            for seed in (run.seeds if run.quick else run.seeds[:1])
        }  # fmt: skip
        documents = cut[:: max(1, len(cut) // wanted)][:wanted]
        yield Prepared(label, model, tokenizer, articles, documents, fits, settings)


def texts_row(one: Prepared) -> dict[str, Any]:
    """What the topics of a model come from."""
    fit = next(iter(one.fits.values()))
    lengths = [len(document) for document in one.documents]
    return {
        "model": one.label,
        "name": facts_of(one.model).description["name"],
        "articles": len(one.articles),
        "words fitted": len(fit.token_ids),
        "vocabulary": fit.vocabulary_size,
        "topics": fit.n_topics,
        "coherence (NPMI)": float(np.nanmean(fit.npmi)),
        "documents measured": len(lengths),
        "tokens of the longest": max(lengths),
    }


# --- shuffled labels ------------------------------------------------------------------------------


def embeddings_of_shuffles(model: Any, topics: Topics, *, seed: int) -> list[Contrast]:
    """Contrasts of cosines and of dot products between words, one of every shuffle of the labels."""
    table, found = word_embeddings(model), []
    for number in range(EMBEDDING_SHUFFLES):
        words = labelled_words(table, topics.shuffled(EMBEDDING_SHUFFLES * seed + number))
        sums = [word_sums(words, rows, rows).sum(0) for rows in words.scored.values()]
        found.append(PairSums(np.stack(sums), words.counts.sum(0)).contrast())
    return found


def under_shuffles(
    same: Float64[np.ndarray, " shuffle"], different: Float64[np.ndarray, " shuffle"]
) -> dict[str, float]:
    """What a ratio is under shuffled labels: the ``mean`` of both kinds of pairs, and the 97.5 % ``limit`` of ratios.

    Of the means over pairs of the same topic and of different ones; NaN where no shuffle has pairs of both kinds.
    """
    known = np.isfinite(same) & np.isfinite(different)
    if not known.any():
        return {"mean": nan, "limit": nan}
    same, different = same[known], different[known]
    middle = divide(same.mean(), different.mean())
    return {"mean": float(middle), "limit": float(np.quantile(divide(same, different), 0.975))}


def attention_of_shuffles(
    contrast: Contrast, same: Float64[np.ndarray, " shuffle"], n_same: Float64[np.ndarray, " shuffle"]
) -> dict[str, float]:
    """The same of attention, from sums over the pairs that share a topic after a shuffle, and their numbers.

    Pairs that a shuffle does not put into one topic are of different ones.
    """
    means, numbers = (
        np.array([getattr(contrast, f"{prefix}{kind}") for kind in ("same_topic", "different_topic")])
        for prefix in ("", "n_")
    )
    rest, n_rest = float(np.nansum(means * numbers)) - same, float(numbers.sum()) - n_same
    return under_shuffles(divide(same, n_same), divide(rest, n_rest))


def embeddings_under_shuffles(model: Any, topics: Topics, *, seed: int) -> list[dict[str, float]]:
    """The same of cosines and of dot products between words."""
    shuffles = embeddings_of_shuffles(model, topics, seed=seed)
    same = np.stack([shuffle.same_topic for shuffle in shuffles], axis=1)
    different = np.stack([shuffle.different_topic for shuffle in shuffles], axis=1)
    return [under_shuffles(*means) for means in zip(same, different, strict=True)]
