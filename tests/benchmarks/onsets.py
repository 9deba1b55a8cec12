"""How often onsets are found where there are none, and how well planted ones are found.

Bounds, written down before any of this was run: in series of noise the upper 95 % bound of the share with any onset in
any table (what was measured, layers, heads) is at most 8 % over 1,000 draws; of planted onsets at least 90 % come out
within one checkpoint, and of the heads that are called at most 8 % (upper 95 % bound over draws) have none.

Noise is sums by source of 24 heads and of the states of 2 layers over the same sources, and a table of 40 words, at
eleven steps: no head, layer or word knows topics, but sources and words deviate, alike at neighbouring steps, and less
before training. Of several trainings each deviates on its own besides, by so many times the standard error of sources.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from scipy.stats import beta

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from planted_series import attention_sums, deviations, series_report, states_of, topics_of, word_sums

FALSE, FOUND = 0.08, 0.90
STEPS = (0, *(2**k for k in range(10)))
N_HEADS, N_LAYERS = 24, 2
# Sources, trainings, how far trainings deviate, how alike neighbouring steps are.
SETTINGS = {
    "12 sources": (12, 1, 0.0, 0.7),
    "40 sources": (40, 1, 0.0, 0.7),
    "40 sources, steps alike": (40, 1, 0.0, 0.97),
    "40 sources, steps apart": (40, 1, 0.0, 0.0),
    "2 trainings that differ little": (40, 2, 0.3, 0.7),
    "2 trainings that differ": (40, 2, 1.5, 0.7),
    "2 trainings that differ, steps alike": (40, 2, 1.5, 0.97),
    "2 trainings that differ much": (40, 2, 5.0, 0.97),
    "3 trainings that differ": (40, 3, 1.5, 0.97),
    "5 trainings that differ": (40, 5, 1.5, 0.97),
}


def noise(generator, n_sources, n_trainings, apart, correlation):
    """A series in which there is nothing but noise."""
    topics, sums = topics_of(5, 8), []
    error = apart * 0.3 * np.sqrt(2.5 / n_sources)
    for _ in range(n_trainings):
        own = error * deviations(generator, (N_HEADS,), len(STEPS), correlation=correlation)
        rows = attention_sums(generator, own, n_sources=n_sources, n_layers=N_LAYERS, correlation=correlation)
        others = attention_sums(
            generator, own, n_sources=n_sources, n_layers=N_LAYERS, correlation=correlation
        )
        words = word_sums(generator, 0 * np.arange(len(STEPS)), topics, correlation=correlation)
        sums += [
            {"attention": row, "states": states_of(other, N_LAYERS), "embeddings": word}
            for row, other, word in zip(rows, others, words, strict=True)
        ]
    seeds = None
    if n_trainings > 1:
        seeds = tuple(seed for seed in range(n_trainings) for _ in STEPS)
    return series_report(STEPS, sums, seeds)


def called(report):
    """Whether each table has an onset: of several trainings, in the mean of them."""
    found = []
    for by in ("step", "layer", "head"):
        table = report.onsets(by)
        if report.seeds is not None:
            table = table[table["seed"] == "all"]
        assert table["p_value"].notna().all()
        found.append(bool(table["onset"].notna().any()))
    return found


def planted(seed):
    """How far from the planted checkpoint onsets are: of heads, of embeddings; and what share of those called has none.

    From its checkpoint on a head has 0.15 and then 0.3, where 100 sources have standard errors of about 0.05; words
    have 0.5, and then once as much of their topic's direction as they have noise in each.
    """
    generator, n = np.random.default_rng([23, seed]), len(STEPS)
    at = np.where(np.arange(N_HEADS) % 2, generator.integers(3, 8, N_HEADS), n)
    since = np.arange(n)[None] - at[:, None]
    effects = np.select([since > 0, since == 0], [0.3, 0.15], 0.0)
    word_at = int(generator.integers(3, 8))
    rows = attention_sums(generator, effects, n_sources=100, n_layers=N_LAYERS)
    far = np.arange(n) - word_at
    words = word_sums(generator, np.select([far > 0, far == 0], [1.0, 0.5], 0.0), topics_of(5, 8))
    report = series_report(
        STEPS, [{"attention": row, "embeddings": word} for row, word in zip(rows, words, strict=True)]
    )
    heads = report.onsets("head")["onset"].map(lambda step: np.nan if np.isnan(step) else STEPS.index(step))
    has = at < n
    embeddings = report.onsets()["onset"][0]
    missed = [
        abs(heads.to_numpy()[has] - at[has]),
        [abs(STEPS.index(embeddings) - word_at)] if embeddings >= 0 else [np.nan],
    ]
    called = heads.notna().to_numpy()
    return *missed, (called & ~has).sum() / max(called.sum(), 1)


def main_planted(draws):
    of_heads, of_words, false = zip(*(planted(seed) for seed in range(draws)), strict=True)
    within = [float((np.concatenate(part) <= 1).mean()) for part in (of_heads, of_words)]
    false = np.array(false)
    bound = false.mean() + 1.645 * false.std() / np.sqrt(draws)
    fine = min(within) >= FOUND and bound <= FALSE
    print(
        f"planted: heads within one checkpoint {within[0]:.1%}, embeddings {within[1]:.1%} (bound {FOUND:.0%}); called "
        f"without one {false.mean():.1%}, upper bound {bound:.1%}: {'held' if fine else 'MISSED'}",
        flush=True,
    )
    return fine


def upper_bound(k, n):
    """The upper end of the one-sided exact interval of a share."""
    return float(beta.ppf(0.95, k + 1, n - k)) if k < n else 1.0


def main(draws, only):
    fine = True
    for name, setting in SETTINGS.items():
        if only and name not in only:
            continue
        start, found = time.perf_counter(), []
        for seed in range(draws):
            found.append(called(noise(np.random.default_rng([17, seed]), *setting)))
        found = np.array(found)
        k = int(found.any(1).sum())
        bound = upper_bound(k, draws)
        fine &= bound <= FALSE
        print(
            f"{name}: any onset in {k} of {draws}, upper bound {bound:.2%} ({'held' if bound <= FALSE else 'MISSED'}); "
            f"measured {found[:, 0].mean():.1%}, layers {found[:, 1].mean():.1%}, heads {found[:, 2].mean():.1%}; "
            f"{time.perf_counter() - start:.0f} s",
            flush=True,
        )
    return fine


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--only", nargs="*", default=())
    given = parser.parse_args()
    fine = [main_planted(max(20, given.draws // 5)), main(given.draws, given.only)]
    raise SystemExit(0 if all(fine) else 1)
