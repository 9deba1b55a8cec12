"""How often 95 % intervals hold the truth, and whether p-values of effects are uniform; wanted: 93 to 97 %.

* Planted articles have a log-normal effect of their own, which all their pieces share (`helpers/planted_articles.py`);
  two models see the same articles, and what one has more than the other is known too.
* For real ones the Wikipedia articles inside gensim's wheel, six pieces of each, are the population: samples of them
  are drawn with replacement, and what MiniLM's attention says of all of them is the truth.
* Articles, words, pairs of words and fits of topics have effects of their own (`helpers/planted_doubt.py`).
* A toy with Theorem 2's W_V has an effect in the population of its documents. Random heads of untrained models are no
  better than others, so their p-values are to be uniform (Kolmogorov-Smirnov, p > 0.001 over all models).

Controls for which nothing is promised stand beside them: pieces taken as independent, and what sources alone say where
words and fits do something.

Run: ``python tests/benchmarks/coverage.py [planted] [real] [doubt] [effects]`` (half an hour for all).
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from scipy.stats import binomtest, kstest
from transformers import BertConfig, BertModel

sys.path.append(str(Path(__file__).parents[1] / "helpers"))
import known_toy
import planted_articles
import real_text
from planted_doubt import RATIO, Setting, contrast, draw

import topic_probe as tp
from topic_probe.contrast import interval_of_sources, paired_sources
from topic_probe.measure.accumulators import Relations
from topic_probe.measure.doubt import pooled_sums
from topic_probe.text.documents import source_key

WANTED = 0.93, 0.97
SIZES, SAMPLES = (8, 15, 60), 4000
PIECES, TOKENS = 6, 128
# Two models, and what share of the variance of articles' effects is the same in both.
RATIOS, COMMON = (1.5, 1.3), (0.0, 0.8, 0.98)
# A case of words and fits is drawn in so many designs of fifty samples.
DESIGNS, IN_DESIGN = 20, 50
DOUBT = {
    "8 sources": Setting(sources=8),
    "15 sources": Setting(sources=15),
    "60 sources": Setting(sources=60),
    "15 sources, words do nothing": Setting(sources=15, of_words=0.0),
    "60 sources, words do nothing": Setting(sources=60, of_words=0.0),
    "60 sources, 6 words in a topic": Setting(sources=60, sizes=(6,) * 6),
    "60 sources, 60 words in a topic": Setting(sources=60, sizes=(60,) * 10),
    "60 sources, unequal topics": Setting(sources=60, sizes=(3, 5, 8, 12, 20, 40, 80)),
    "60 sources, heavy tails of words": Setting(sources=60, tails=3),
    "60 sources, pairs of words": Setting(sources=60, of_pairs=0.8, of_words=0.2, sizes=(10,) * 10),
    "15 sources, 3 fits": Setting(sources=15, fits=3, of_fits=0.06),
    "15 sources, 6 fits": Setting(sources=15, fits=6, of_fits=0.06),
    "60 sources, 3 fits": Setting(sources=60, fits=3, of_fits=0.06),
    "60 sources, 6 fits": Setting(sources=60, fits=6, of_fits=0.06),
    "60 sources, 6 fits that do nothing": Setting(sources=60, fits=6),
    "60 sources, 6 fits that do much": Setting(sources=60, fits=6, of_fits=0.15),
    "60 sources, 3 fits that do much": Setting(sources=60, fits=3, of_fits=0.15),
}
MODELS, OF_EFFECT, POPULATION, VOCABULARY = 1000, 1000, 3000, 66

# What is measured, whether each interval holds the truth, and whether anything is promised of it.
Found = Iterator[tuple[str, np.ndarray, bool]]


def holds(intervals: np.ndarray, truth: np.ndarray | float) -> np.ndarray:
    """Which hold it, of those that are there: samples with fewer than eight articles with pairs have none."""
    return planted_articles.held(intervals, truth)[~np.isnan(intervals).any(-1)]


def planted() -> Found:
    for size in SIZES:
        drawn = planted_articles.draw(np.random.default_rng(size), size, n_samples=SAMPLES)
        for rows, statistic, independent in (
            (drawn.by_source, "ratio", False),
            (drawn.by_source, "difference", False),
            (drawn.by_piece, "ratio", True),
        ):
            held = holds(interval_of_sources(*rows, statistic=statistic), drawn.truth[statistic])
            yield f"{size} articles, {statistic}{', pieces apart' * independent}", held, not independent
        for common in COMMON:
            generator = np.random.default_rng(size)
            models = planted_articles.draw_models(
                generator, size, n_samples=SAMPLES, ratios=RATIOS, common=common
            )
            rows = [(sums, counts, np.zeros(sums.shape[:-1])) for sums, counts in models]
            found = paired_sources(rows, statistic="ratio").difference(0, 1).interval
            yield (
                f"{size} articles, two models, {common:.0%} alike",
                holds(found, RATIOS[0] / RATIOS[1]),
                True,
            )


def population() -> tuple[np.ndarray, np.ndarray]:
    """Sums and counts [article, piece, relation] of MiniLM's attention; 0 for pieces that an article lacks."""
    model = tp.open_model(real_text.minilm_folder())
    stream = tp.Corpus.bundled().documents(model.tokenizer, max_length=TOKENS, long="chunk")
    topics = tp.fit_topics(stream, model.tokenizer, n_topics=10).topics(fraction=0.01)
    articles = [list(islice(pieces, PIECES)) for _, pieces in groupby(stream, key=lambda piece: piece.origin)]
    places = [(number, place) for number, pieces in enumerate(articles) for place in range(len(pieces))]
    documents = [replace(articles[at][place], source=source_key((at, place))) for at, place in places]
    kept = Relations()
    tp.measure_attention(model, topics, documents, accumulators=[kept], n_permutations=0)
    keys, *rows, _ = kept.by_source.rows()
    place_of = {np.int64(source_key(place)).view(np.uint64): place for place in places}
    by_place = np.zeros((2, len(articles), PIECES, 3))
    for key, *both in zip(keys, *rows, strict=True):
        by_place[(slice(None), *place_of[key])] = [
            np.broadcast_to(part, rows[0].shape[1:]).sum(0) for part in both
        ]
    return by_place[0], by_place[1]


def real() -> Found:
    sums, counts = population()
    means = sums.sum((0, 1)) / counts.sum((0, 1))
    for size in SIZES:
        drawn = np.random.default_rng(size).integers(0, len(sums), (size, SAMPLES))
        by_source = interval_of_sources(*(part.sum(1)[drawn] for part in (sums, counts)))
        yield f"{size} of {len(sums)} real articles", holds(by_source, means[1] / means[2]), True
        pieces = (part[drawn].transpose(0, 2, 1, 3).reshape(-1, SAMPLES, 3) for part in (sums, counts))
        apart = holds(interval_of_sources(*pieces), means[1] / means[2])
        yield f"{size} of {len(sums)} real articles, pieces apart", apart, False


def doubt() -> Found:
    for name, setting in DOUBT.items():
        both, alone = [], []
        for design in range(DESIGNS):
            sums = draw(setting, np.random.default_rng([0, design]), IN_DESIGN)
            both.append(holds(contrast(sums).interval, RATIO))
            of_sources = interval_of_sources(*pooled_sums(sums)["by_source"].rows()[1:3])
            alone.append(holds(of_sources, RATIO))
        yield name, np.concatenate(both), True
        yield f"{name}, of sources alone", np.concatenate(alone), False


def effects() -> Found:
    toy = known_toy.toy(W_V=known_toy.theorem_2())
    world = tp.World(n_topics=10, words_per_topic=10, topics_per_document=2, min_length=40, max_length=40)
    drawn = world.documents(POPULATION, generator=torch.Generator().manual_seed(0))
    documents, shown = drawn.ids.tolist(), SimpleNamespace(ids=drawn.ids, mask=drawn.mask)
    with torch.no_grad():
        changes = known_toy.squared_loss(toy, shown) - known_toy.squared_loss(known_toy.toy(), shown)
    for size in (15, 60):
        generator, intervals = np.random.default_rng(size), []
        for _ in range(OF_EFFECT):
            chosen = [documents[number] for number in generator.integers(POPULATION, size=size)]
            report = tp.measure_ablation(
                toy, world.topics, chosen, sets={"the head": "0.0"}, kind="zero", outcome=known_toy.squared_loss,
                n_matched=0, special_ids=(),
            )  # fmt: skip
            intervals.append(report.interval[0, 0])
        yield (
            f"effect of a head over {size} documents",
            holds(np.array(intervals), float(changes.mean())),
            True,
        )


def p_value(seed: int) -> float:
    """Of a random set of heads of an untrained BERT, on documents of random words."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=3, num_attention_heads=8, intermediate_size=32,
        max_position_embeddings=32, initializer_range=0.3,
    )  # fmt: skip
    model, generator = BertModel(config, add_pooling_layer=False).eval(), np.random.default_rng(seed)
    lists = {name: list(range(first, first + 20)) for name, first in (("one", 5), ("two", 25), ("three", 45))}
    topics = tp.Topics.from_token_ids(lists, vocabulary_size=VOCABULARY)
    documents = generator.integers(5, VOCABULARY, (8, 16)).tolist()
    # Not of the last layer, from which no head follows; all of one layer, so that there are sets like it.
    layer = int(generator.integers(2))
    heads = [(layer, int(head)) for head in generator.choice(8, 3, replace=False)]
    given = {"kind": "mean", "n_matched": 99, "special_ids": (), "seed": seed}
    return float(
        tp.measure_ablation(model, topics, documents, sets={"random": heads}, **given).p_value.item()
    )


PARTS = {part.__name__: part for part in (planted, real, doubt, effects)}


def main() -> int:
    """Print the shares; 1 where one that is wanted lies outside."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="*", choices=[[], *PARTS], help="by default all")
    parts, outside = parser.parse_args().part or list(PARTS), 0
    torch.set_num_threads(1)
    for part in parts:
        for name, held, promised in PARTS[part]():
            low, high = binomtest(int(held.sum()), len(held)).proportion_ci()
            outside += promised and not WANTED[0] <= held.mean() <= WANTED[1]
            wanted = "  wanted 93 to 97 %" * promised
            print(
                f"{name:54s} {held.mean():6.1%}  [{low:.1%}, {high:.1%}] of {len(held):,}{wanted}", flush=True
            )
    if "effects" in parts:
        uniform = kstest([p_value(seed) for seed in range(MODELS)], "uniform").pvalue
        outside += uniform <= 0.001
        print(f"p-values of random heads of {MODELS:,} untrained models are uniform with p = {uniform:.3f}")
    return int(outside > 0)


if __name__ == "__main__":
    sys.exit(main())
