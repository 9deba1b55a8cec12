"""How often 95 % intervals over articles hold the truth, on planted and on real articles; wanted: 93 to 97 %.

Planted articles have a log-normal effect of their own, which all their pieces share (`helpers/planted_articles.py`),
and the truth is known; two models see the same articles, and what one has more than the other is known too. For real
ones the Wikipedia articles inside gensim's wheel, six pieces of each, are the population: many samples of them are
drawn with replacement, and what MiniLM's attention says of all of them is the truth. Pieces taken as independent of
each other are printed beside it.

Run: ``python tests/benchmarks/coverage.py`` (two minutes).
"""

import sys
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

sys.path.append(str(Path(__file__).parents[1] / "helpers"))
import planted_articles
import real_text

import topic_probe as tp
from topic_probe.contrast import interval_of_sources
from topic_probe.measure.accumulators import Relations
from topic_probe.paired import paired_sources
from topic_probe.text.documents import source_key

WANTED = 0.93, 0.97
SIZES = 8, 15, 60
SAMPLES, SAMPLES_OF_A_HEAD = 4000, 300
# A harder case, for which nothing is promised: the correlation of an article's length with its effect.
LONG_DIFFER = 0.5
PIECES, TOKENS = 6, 128
# Two models, and what share of the variance of articles' effects is the same in both.
RATIOS, COMMON = (1.5, 1.3), (0.0, 0.8, 0.98)


def planted(n_articles: int) -> dict[str, tuple[int, int]]:
    """How many intervals of planted articles hold the truth, of how many."""
    articles = planted_articles.draw(np.random.default_rng(n_articles), n_articles, n_samples=SAMPLES)
    ways = {
        "ratio": (articles.by_source, "ratio"),
        "difference": (articles.by_source, "difference"),
        "ratio, pieces as independent": (articles.by_piece, "ratio"),
    }
    found = {}
    for name, (rows, statistic) in ways.items():
        intervals = interval_of_sources(*rows, statistic=statistic)
        found[name] = _count(intervals, articles.truth[statistic])
    tied = planted_articles.draw(
        np.random.default_rng(n_articles), n_articles, n_samples=SAMPLES, tied=LONG_DIFFER
    )
    intervals = interval_of_sources(*tied.by_source)
    return (
        found
        | {"ratio, long articles differ more": _count(intervals, tied.truth["ratio"])}
        | paired(n_articles)
    )


def paired(n_articles: int) -> dict[str, tuple[int, int]]:
    """The same of the differences of two models that saw the same articles, from no to nearly all effects in common."""
    found = {}
    for common in COMMON:
        drawn = planted_articles.draw_models(
            np.random.default_rng(n_articles), n_articles, n_samples=SAMPLES, ratios=RATIOS, common=common
        )
        rows = [(sums, counts, np.zeros(sums.shape[:-1])) for sums, counts in drawn]
        for statistic, truth in (("ratio", RATIOS[0] / RATIOS[1]), ("difference", RATIOS[0] - RATIOS[1])):
            intervals = paired_sources(rows, statistic=statistic).difference(0, 1).interval
            found[f"{statistic}, two models, {common:.0%} in common"] = _count(intervals, truth)
    return found


def population() -> tuple[np.ndarray, np.ndarray]:
    """Sums and counts [article, piece, head, relation] of MiniLM's attention; 0 for pieces that an article lacks."""
    model = tp.open_model(real_text.minilm_folder())
    stream = tp.Corpus.bundled().documents(model.tokenizer, max_length=TOKENS, long="chunk")
    topics = tp.fit_topics(stream, model.tokenizer, n_topics=10).topics(fraction=0.01)
    articles = [list(islice(pieces, PIECES)) for _, pieces in groupby(stream, key=lambda piece: piece.origin)]
    places = [(number, place) for number, pieces in enumerate(articles) for place in range(len(pieces))]
    kept = Relations()
    pieces = [piece for pieces in articles for piece in pieces]
    documents = [replace(piece, source=source_key(at)) for piece, at in zip(pieces, places, strict=True)]
    tp.measure_attention(model, topics, documents, accumulators=[kept], n_permutations=0)
    keys, sums, counts, _ = kept.by_source.rows()
    place_of = {np.int64(source_key(place)).view(np.uint64): place for place in places}
    shape = (len(articles), PIECES, *sums.shape[1:])
    by_place = np.zeros(shape), np.zeros(shape)
    for key, one, n in zip(keys, sums, counts, strict=True):
        by_place[0][place_of[key]], by_place[1][place_of[key]] = one, n
    return by_place


def real(sums: np.ndarray, counts: np.ndarray, n_articles: int) -> dict[str, tuple[int, int]]:
    """The same of samples of real articles, for all heads pooled and for single heads."""
    generator = np.random.default_rng(n_articles)
    drawn = generator.integers(0, len(sums), (n_articles, SAMPLES))
    pooled = [part.sum(2) for part in (sums, counts)]  # [article, piece, relation]
    total, n = (part.sum((0, 1)) for part in pooled)
    truth = total[1] / n[1] / (total[2] / n[2])
    by_source = [part.sum(1)[drawn] for part in pooled]
    by_piece = [part[drawn].transpose(0, 2, 1, 3).reshape(-1, SAMPLES, 3) for part in pooled]
    found = {
        "ratio, all heads": _count(interval_of_sources(*by_source), truth),
        "ratio, all heads, pieces as independent": _count(interval_of_sources(*by_piece), truth),
    }
    of_heads = [part.sum(1) for part in (sums, counts)]  # [article, head, relation]
    totals, n = (part.sum(0) for part in of_heads)
    truths = totals[:, 1] / n[:, 1] / (totals[:, 2] / n[:, 2])
    intervals = interval_of_sources(*(part[drawn[:, :SAMPLES_OF_A_HEAD]] for part in of_heads))
    return found | {"ratio, single heads": _count(intervals, truths)}


def _count(intervals: np.ndarray, truth: np.ndarray | float) -> tuple[int, int]:
    """How many hold it, of those that are there: samples with fewer than eight articles with pairs have none."""
    there = ~np.isnan(intervals).any(-1)
    return int(planted_articles.held(intervals, truth)[there].sum()), int(there.sum())


def main() -> int:
    """Print the shares; 1 where one that is wanted lies outside."""
    outside = 0
    sums, counts = population()
    for kind, measured in (("planted", planted), (f"{len(sums)} real", lambda n: real(sums, counts, n))):
        for size in SIZES:
            for name, (held, n) in measured(size).items():
                low, high = binomtest(held, n).proportion_ci()
                control = "pieces" in name or "long" in name
                outside += not control and not WANTED[0] <= held / n <= WANTED[1]
                print(
                    f"{kind} articles, {size:2d} in a sample, {name:40s} {held / n:6.1%}  [{low:.1%}, {high:.1%}]"
                    f"  of {n:,}{'' if control else '  wanted 93 to 97 %'}"
                )
    return int(outside > 0)


if __name__ == "__main__":
    sys.exit(main())
