"""Scores of known truth in which articles, words, pairs of words and fits of topics each have an effect of their own.

Documents and topics are drawn once for a design; every cell is a sample of all effects, so that one pass of the real
accumulators measures many samples.
"""

from dataclasses import dataclass

import numpy as np
import torch
from hand_scores import add

import topic_probe as tp
from topic_probe.contrast import contrast_of_sources
from topic_probe.measure.accumulators import Relations
from topic_probe.measure.doubt import Doubt, pooled_sums, word_effects
from topic_probe.measure.scores import BatchScores, Pairs, Units
from topic_probe.sums import columns
from topic_probe.text.documents import source_key

RATIO = 1.3
WORDS_IN_DOCUMENT, PIECES, AT_ONCE = 24, 3, 16


@dataclass(frozen=True)
class Setting:
    """What varies, and by how much: standard deviations of logarithms.

    Attributes:
        sources: how many articles there are, with three pieces each.
        sizes: how many words every topic has.
        fits: how many fits of topics there are; each has a twentieth of the words in another topic.
        of_sources: of what an article does to pairs of the same topic; a third of it to others.
        of_words: of what either word does to them; half of it to others.
        of_pairs: of what belongs to a pair of words, in all articles.
        of_fits: of what a fit does to pairs of the same topic.
        tails: the exponent of the Pareto distribution that word effects are drawn from; None: log-normal.
    """

    sources: int = 30
    sizes: tuple[int, ...] = (20,) * 10
    fits: int = 1
    of_sources: float = 0.3
    of_words: float = 0.5
    of_pairs: float = 0.0
    of_fits: float = 0.0
    tails: int | None = None


def draw(setting, generator, n_samples):
    """The sums of every fit, a cell for each sample, with the strata of its words."""
    s, n_words = setting, sum(setting.sizes)
    topic_of = np.repeat(np.arange(len(s.sizes)), s.sizes)
    every = [_topics(topic_of, generator if s.fits > 1 else None) for _ in range(s.fits)]
    of_article, of_word, of_pair, of_fit = _effects(setting, generator, n_samples)
    frequency = 1 / (1 + np.concatenate([np.arange(n) for n in s.sizes]))
    effects = word_effects(every, np.arange(n_samples), together=True)
    sums = [[Relations(n_cells=n_samples), of_fit] for of_fit in effects]
    pieces = [(article, piece) for article in range(s.sources) for piece in range(PIECES)]
    mixtures = generator.dirichlet(np.full(len(s.sizes), 0.3), s.sources)
    positions = torch.arange(WORDS_IN_DOCUMENT)
    for start in range(0, len(pieces), AT_ONCE):
        articles = [article for article, _ in pieces[start : start + AT_ONCE]]
        words = []
        for article in articles:
            weight = mixtures[article][topic_of] * frequency
            words.append(generator.choice(n_words, WORDS_IN_DOCUMENT, p=weight / weight.sum()))
        words = np.array(words)
        shape = (len(words), n_samples, WORDS_IN_DOCUMENT, WORDS_IN_DOCUMENT)
        noise = generator.exponential(size=shape)
        for number, (topics, (relations, effects)) in enumerate(zip(every, sums, strict=True)):
            units = [
                Units.of_tokens(torch.tensor(row), topics.places(torch.tensor(row)), positions)
                for row in words
            ]
            pairs = Pairs.of(units, units, topics, shape=shape[2:])
            scores = noise.copy()
            for kind, (article, word, factor) in enumerate(
                zip(of_article, of_word, (RATIO, 1.0), strict=True)
            ):
                of_both = word.T[words]  # [document, word, sample]
                effect = (
                    factor * article[:, articles].T[:, None, None] * of_both[:, :, None] * of_both[:, None]
                )
                effect *= of_fit[:, number] if kind == 0 else 1.0
                scores *= np.where(
                    (pairs.relations == 2 + kind).numpy()[:, None], np.moveaxis(effect, 3, 1), 1.0
                )
            if s.of_pairs:
                scores *= np.moveaxis(of_pair[words[:, :, None], words[:, None]], 3, 1)
            sources = np.array([source_key(article) for article in articles])
            seen = torch.ones(shape[0], *shape[2:], dtype=torch.bool)
            batch = BatchScores(
                sources, n_samples, np.arange(n_samples), torch.from_numpy(scores).float(), seen, pairs
            )
            add(relations, batch)
            add(effects, batch)
    return [{**relations.sums, **of_fit.sums, "strata": of_fit.strata} for relations, of_fit in sums]


def doubt_of(sums, *, words=True):
    """What words and fits do, from the sums of every fit."""
    by_source = pooled_sums(sums)["by_source"]
    strata = [own["strata"] for own in sums] if words else None
    return Doubt(sums, by_source, np.arange(*by_source.shape), strata)


def contrast(sums, *, words=True, **options):
    """The contrast of all samples, from the sums of every fit."""
    doubt = doubt_of(sums, words=words)
    rows = columns(doubt.by_source.rows()[1])
    starts = np.arange(rows[0].shape[1])
    return contrast_of_sources(*rows, beside=lambda kind: doubt.beside(kind, starts), **options)


def _topics(topic_of, generator):
    """Topics of all words; of a fit, with a twentieth of them in another."""
    topic_of = topic_of.copy()
    if generator is not None:
        moved = generator.random(len(topic_of)) < 0.05
        topic_of[moved] = generator.integers(0, topic_of.max() + 1, moved.sum())
    lists = {str(topic): np.flatnonzero(topic_of == topic).tolist() for topic in np.unique(topic_of)}
    return tp.Topics.from_token_ids(lists, vocabulary_size=len(topic_of))


def _effects(s, generator, n_samples):
    """Factors of mean one: of articles and words on both kinds of pairs, of pairs of words, and of fits."""

    def log_normal(standardised, spread):
        return np.exp(spread * standardised - spread**2 / 2)

    n_words = sum(s.sizes)
    of_sources, of_words = (s.of_sources, s.of_sources / 3), (s.of_words, s.of_words / 2)
    articles = [log_normal(generator.normal(size=(n_samples, s.sources)), spread) for spread in of_sources]
    if s.tails is None:
        drawn = generator.normal(size=(n_samples, n_words))
        words = [log_normal(drawn, spread) for spread in of_words]
    else:  # a few words do ten times as much as others: factors 1 + spread · (Pareto, standardised)
        drawn = generator.pareto(s.tails, (n_samples, n_words)) + 1
        mean, variance = s.tails / (s.tails - 1), s.tails / ((s.tails - 1) ** 2 * (s.tails - 2))
        words = [1 + spread * (drawn - mean) / np.sqrt(variance) for spread in of_words]
    pairs = None
    if s.of_pairs:
        table = generator.normal(size=(n_words, n_words, n_samples))
        pairs = log_normal((table + table.swapaxes(0, 1)) / np.sqrt(2), s.of_pairs)
    return articles, words, pairs, log_normal(generator.normal(size=(n_samples, s.fits)), s.of_fits)
