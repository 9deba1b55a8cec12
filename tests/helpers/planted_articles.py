"""Articles of known truth: each has an effect of its own on attention, which all its pieces share."""

from dataclasses import dataclass

import numpy as np

RATIO = 1.3
# Standard deviations of the logarithms of what belongs to an article: its effect on attention to words of the same
# topic and of other topics, and its length. Most articles have two to ten pieces.
SAME, DIFFERENT, LENGTH = 0.4, 0.15, 0.6
PIECES, MOST_PIECES, PAIRS = 6, 24, 20


@dataclass(frozen=True)
class Articles:
    """Samples of articles.

    Attributes:
        by_source: sums and counts [article, sample, relation], as `contrast.estimate_of_sources` wants them.
        by_piece: the same [piece, sample, relation]; what an article has fewer of are pieces without pairs.
        truth: what the numbers are of infinitely many articles.
    """

    by_source: tuple[np.ndarray, np.ndarray]
    by_piece: tuple[np.ndarray, np.ndarray]
    truth: dict[str, float]


def n_pieces_of(standardised):
    """How many pieces an article has whose logarithmic length lies so many standard deviations above the middle."""
    return np.clip(np.round(PIECES * np.exp(LENGTH * standardised)), 1, MOST_PIECES)


def ratio_of_all(tied):
    """The ratio of infinitely many articles: the mean effect, every article weighing as its pieces."""
    length = np.linspace(-8, 8, 100_001)
    weight = n_pieces_of(length) * np.exp(-(length**2) / 2)
    mean_effect = np.exp(SAME * tied * length - (SAME * tied) ** 2 / 2)
    return RATIO * float(weight @ mean_effect / weight.sum())


def draw(generator, n_articles, *, n_samples, tied=0.0):
    """Samples of so many articles each; ``tied`` is the correlation of an article's length with its effect."""
    shape = (n_articles, n_samples)
    length = generator.normal(0, 1, shape)
    n_pieces = n_pieces_of(length)
    there = np.arange(MOST_PIECES)[:, None, None] < n_pieces
    sums, counts = np.zeros((2, MOST_PIECES, *shape, 3))
    for relation, spread, mean, with_length in ((1, SAME, RATIO, tied), (2, DIFFERENT, 1.0, 0.0)):
        own = generator.normal(0, np.sqrt(1 - with_length**2), shape)
        effect = mean * np.exp(spread * (with_length * length + own) - spread**2 / 2)
        counts[..., relation] = there * generator.poisson(relation * PAIRS, there.shape)
        # Attention of single pairs is exponential, so sums of them have a gamma distribution.
        sums[..., relation] = effect * generator.gamma(counts[..., relation])
    return Articles(
        by_source=(sums.sum(0), counts.sum(0)),
        by_piece=(sums.reshape(-1, n_samples, 3), counts.reshape(-1, n_samples, 3)),
        truth={"ratio": ratio_of_all(tied), "difference": ratio_of_all(tied) - 1},
    )


def draw_models(generator, n_articles, *, n_samples, ratios, common=0.8):
    """The same articles as several models see them: sums and counts [article, sample, relation] of each.

    Every model has a ratio of its own; of the variance of an article's effects the share ``common`` is the same in all.
    The quotient of two models' ratios is that of ``ratios``, because articles' effects have the mean 1 in each.
    """
    shape = (n_articles, n_samples)
    n_pieces = n_pieces_of(generator.normal(0, 1, shape))
    counts = np.zeros((*shape, 3))
    counts[..., 1:] = generator.poisson(n_pieces[..., None] * PAIRS * np.array([1, 2]))
    shared = generator.normal(0, 1, (*shape, 2))
    found = []
    for ratio in ratios:
        sums = np.zeros((*shape, 3))
        for relation, spread, mean in ((1, SAME, ratio), (2, DIFFERENT, 1.0)):
            own = generator.normal(0, 1, shape)
            standardised = np.sqrt(common) * shared[..., relation - 1] + np.sqrt(1 - common) * own
            effect = mean * np.exp(spread * standardised - spread**2 / 2)
            sums[..., relation] = effect * generator.gamma(counts[..., relation])
        found.append((sums, counts))
    return found


def held(intervals, truth):
    """Which intervals hold a number."""
    return (intervals[..., 0] <= truth) & (truth <= intervals[..., 1])
