"""How often 95 % intervals that include words and fits of topics hold the truth; wanted: 93 to 97 %.

Articles, words, pairs of words and fits of topics have planted effects of their own (`helpers/planted_doubt.py`), of
which every sample has others; the sums are those of the real accumulators. Beside every setting stands what intervals
over sources alone would hold, and how the variance is shared out.

Run: ``python tests/benchmarks/doubt.py`` (ten minutes).
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

sys.path.append(str(Path(__file__).parents[1] / "helpers"))
from planted_articles import held
from planted_doubt import RATIO, Setting, contrast, draw

from topic_probe.contrast import interval_of_sources
from topic_probe.measure.doubt import pooled_sums

WANTED = 0.93, 0.97
DESIGNS, SAMPLES = 20, 50

SETTINGS = {
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


def measured(setting: Setting, designs: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Of every sample: whether the intervals hold the truth, and the shares of the variance."""
    found: dict[str, list[np.ndarray]] = {"all": [], "sources": [], "shares": []}
    for design in range(designs):
        sums = draw(setting, np.random.default_rng([seed, design]), SAMPLES)
        full = contrast(sums)
        alone = interval_of_sources(*pooled_sums(sums)["by_source"].rows()[1:3])
        there = ~np.isnan(full.interval).any(-1)
        found["all"].append(held(full.interval, RATIO)[there])
        found["sources"].append(held(alone, RATIO)[there])
        found["shares"].append(full.variance_shares[there])
    return {name: np.concatenate(parts) for name, parts in found.items()}


def main() -> int:
    """Print the shares; 1 where one lies outside."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--designs", type=int, default=DESIGNS, help="sets of documents, with 50 samples each"
    )
    parser.add_argument("--only", help="a part of the name of a setting")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    outside = 0
    for name, setting in SETTINGS.items():
        if options.only and options.only not in name:
            continue
        found = measured(setting, options.designs, options.seed)
        n, n_held = len(found["all"]), int(found["all"].sum())
        low, high = binomtest(n_held, n).proportion_ci()
        outside += not WANTED[0] <= n_held / n <= WANTED[1]
        of_sources, of_words, of_fits = np.median(found["shares"], 0)
        print(
            f"{name:36s} {n_held / n:6.1%} [{low:.1%}, {high:.1%}] of {n:,}; sources alone "
            f"{found['sources'].mean():6.1%}; variance of sources {of_sources:.0%}, words {of_words:.0%}, "
            f"fits {of_fits:.0%}",
            flush=True,
        )
    return int(outside > 0)


if __name__ == "__main__":
    sys.exit(main())
