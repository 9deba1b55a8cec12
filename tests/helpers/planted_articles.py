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
        by_source: sums and counts [article, sample, relation], as `contrast.interval_of_sources` wants them.
        by_piece: the same [piece, sample, relation]; what an article has fewer of are pieces without pairs.
        truth: what the numbers are of infinitely many articles.
    """

    by_source: tuple[np.ndarray, np.ndarray]
    by_piece: tuple[np.ndarray, np.ndarray]
    truth: dict[str, float]


def draw(generator, n_articles, *, n_samples):
    """Samples of so many articles each."""
    shape = (n_articles, n_samples)
    n_pieces = np.clip(np.round(PIECES * np.exp(generator.normal(0, LENGTH, shape))), 1, MOST_PIECES)
    there = np.arange(MOST_PIECES)[:, None, None] < n_pieces
    sums, counts = np.zeros((2, MOST_PIECES, *shape, 3))
    for relation, spread, mean in ((1, SAME, RATIO), (2, DIFFERENT, 1.0)):
        effect = mean * np.exp(generator.normal(0, spread, shape) - spread**2 / 2)
        counts[..., relation] = there * generator.poisson(relation * PAIRS, there.shape)
        # Attention of single pairs is exponential, so sums of them have a gamma distribution.
        sums[..., relation] = effect * generator.gamma(counts[..., relation])
    return Articles(
        by_source=(sums.sum(0), counts.sum(0)),
        by_piece=(sums.reshape(-1, n_samples, 3), counts.reshape(-1, n_samples, 3)),
        truth={"ratio": RATIO, "difference": RATIO - 1},
    )


def held(intervals, truth):
    """Which intervals hold a number."""
    return (intervals[..., 0] <= truth) & (truth <= intervals[..., 1])
