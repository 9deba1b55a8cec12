"""How often 95 % intervals hold the truth, and p-values below 0.05 are false: every setting, on a page.

Wanted is a coverage of 93 to 97 % in every setting with at least ten units: its own 99 % interval may not lie wholly
outside. What is simulated stands in `SETTINGS`, which was written before it was run.

* Sources are articles with effects and lengths of their own (log-normal); scores of single pairs are exponential, or
  of either sign. Two models share four fifths of what is an article's own.
* Words lie around the centre of their topic in 24 dimensions. Topics are the same in all simulations, as intervals
  over words have it; with "long tails" the lengths of words are log-normal.
* Both: scores are sums of what is a source's, a word's, a pair's, a source and word's own, and noise.
* Seeds are numbers from a normal or an exponential distribution. Refits share their sources.

Run: ``python tests/benchmarks/validate.py [--simulations 4000] [--write demos/trust.md]`` (`make validate` writes).
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from topic_probe.contrast import estimate_of_sources
from topic_probe.estimate import (
    Ends,
    Estimate,
    beside_sources,
    over_refits,
    over_seeds,
    over_words,
    permutation_p_value,
    split_halves,
)

WANTED = 0.93, 0.97


@dataclass(frozen=True)
class Setting:
    """What is simulated.

    Attributes:
        kind: of interval.
        units: how many there are.
        statistic: what the interval is of.
        how: what else there is to say.
        sizes: of topics.
        effect: how far topics are apart where they are planted.
    """

    kind: str
    units: int
    statistic: str = "difference"
    how: str = ""
    sizes: tuple[int, ...] = ()
    effect: float = 0.3


# fmt: off
SETTINGS = [
    *(Setting("sources", n, statistic, how)
      for n in (5, 10, 30, 100)
      for statistic, how in (("ratio", ""), ("difference", ""), ("effect size", ""), ("ratio", "scores of either sign"),
                             ("ratio", "two models"), ("difference", "two models"))),
    *(Setting("words", sum(sizes), statistic, how, sizes, effect)
      for sizes, effect in (((3, 2), 1.0), ((5, 5), 1.0), ((10,) * 3, 0.5), ((5,) * 6, 0.5), ((20,) * 5, 0.3),
                            ((5,) * 20, 0.3), ((3, 4, 8, 12, 25, 48), 0.3))
      for statistic in ("ratio", "difference", "effect size") for how in ("cosines",)),
    *(Setting("words", sum(sizes), statistic, how, sizes, effect)
      for sizes, effect in (((5, 5), 1.0), ((10,) * 3, 0.5), ((20,) * 5, 0.3))
      for statistic, how in (("effect size", "dot products, long tails"), ("difference", "cosines, two models"),
                             ("effect size", "cosines, two models"))),
    *(Setting("both", n, statistic, how, sizes)
      for n, sizes in ((5, (3, 2)), (10, (5, 5)), (30, (10,) * 3), (100, (20,) * 5))
      for statistic in ("ratio", "difference") for how in ("words of even effects", "words of little effect")),
    *(Setting("seeds", n, "mean", how) for n in (3, 5, 10) for how in ("normal", "exponential")),
    *(Setting("refits", n, "mean", how)
      for n in (3, 6) for how in ("do nothing", "as much as sources", "twice as much as sources")),
    *(Setting("band", n, "difference", "all of 8 steps") for n in (10, 30, 100)),
    *(Setting("permutations", sum(sizes), "difference", "p-values", sizes, 0.5) for sizes in ((5,) * 4, (10,) * 4)),
]
# fmt: on


# ---------------------------------------------------------------------------- sources

# Standard deviations of logarithms: an article's effect on scores of both kinds, and its length.
OF_SAME, OF_DIFFERENT, LENGTH, PIECES, PAIRS, COMMON = 0.4, 0.15, 0.6, 6, 20, 0.8


def of_sources(
    setting: Setting, generator: np.random.Generator, n: int, effect: float
) -> tuple[Estimate, float]:
    shape, signed, two = (setting.units, n), "sign" in setting.how, "two" in setting.how
    pieces = np.clip(np.round(PIECES * np.exp(LENGTH * generator.normal(size=shape))), 1, 24)
    n_pairs = generator.poisson(pieces[..., None] * PAIRS * np.array([1, 2])).astype(float)
    shared = generator.normal(size=(*shape, 2))
    models = []
    for means in ((1 + effect, 1.0), (1.0, 1.0))[: 2 if two else 1]:
        own = np.sqrt(COMMON) * shared + np.sqrt(1 - COMMON) * generator.normal(size=shared.shape)
        spread = np.array([OF_SAME, OF_DIFFERENT])
        mean = np.array(means) * np.exp(spread * own - spread**2 / 2)
        if signed:
            sums = n_pairs * mean / 4 + np.sqrt(n_pairs) * generator.normal(size=mean.shape)
            squares = n_pairs * (1 + mean**2 / 16)
        else:  # sums of exponential scores and of their squares, which depend on each other
            sums = mean * generator.gamma(n_pairs)
            noise = 2 * np.sqrt(n_pairs) * generator.normal(size=mean.shape)
            squares = mean**2 * (noise - 2 * n_pairs) + 4 * mean * sums
        rows = [np.concatenate([np.zeros((*shape, 1)), part], -1) for part in (sums, n_pairs)]
        statistic = setting.statistic.replace(" ", "_")
        models.append(estimate_of_sources(*rows, squares.sum(-1), statistic=statistic))
    if setting.statistic == "effect size":
        squared = 2 * np.array([(1 + effect) ** 2, 1.0]) * np.exp(np.array([OF_SAME, OF_DIFFERENT]) ** 2)
        mean = (1 + effect + 2) / 3
        return models[0], effect / np.sqrt(squared @ [1 / 3, 2 / 3] - mean**2)
    if setting.statistic == "difference":
        return (models[0] - models[1] if two else models[0]), effect
    return (models[0] - models[1], np.log(1 + effect)) if two else (models[0], 1 + effect)


# ---------------------------------------------------------------------------- words

WIDTH, SHARED = 24, 0.7


def embeddings(
    setting: Setting, centres: np.ndarray, topics: np.ndarray, generator: np.random.Generator, n: int
) -> list[np.ndarray]:
    """Words of one or two models [sample, word, dimension]; centres [model, topic, dimension]."""
    shared = generator.normal(size=(n, len(topics), WIDTH))
    found = []
    for of_model in centres:
        words = shared
        if len(centres) > 1:
            words = np.sqrt(SHARED) * shared + np.sqrt(1 - SHARED) * generator.normal(size=shared.shape)
        words = of_model[topics] + words
        if "tails" in setting.how:
            words = words * np.exp(0.5 * generator.normal(size=(n, len(topics), 1)))
        found.append(
            words / np.linalg.norm(words, axis=2, keepdims=True) if "cosines" in setting.how else words
        )
    return found


def truth_of_words(setting: Setting, centres: np.ndarray, statistic: str) -> float:
    """From the first and second moments of many words of every topic."""
    generator, n = np.random.default_rng(1), 40_000
    moments = []
    for topic in range(centres.shape[1]):
        words = embeddings(setting, centres, np.full(1, topic), generator, 2 * n)[0][:, 0]
        halves = words[:n], words[n:]
        moments.append([(half.mean(0), half.T @ half / n) for half in halves])
    means, products = (
        [np.array([topic[half][part] for topic in moments]) for half in (0, 1)] for part in (0, 1)
    )
    score = np.einsum("td,ud->tu", *means)
    square = np.einsum("tde,ude->tu", *products)
    sizes = np.array(setting.sizes)
    n_same, n_all = np.diag(sizes * (sizes - 1)), np.outer(sizes, sizes) - np.diag(sizes)
    n_different = n_all - n_same
    same, different, mean, second = (
        (weight * part).sum() / weight.sum()
        for weight, part in ((n_same, score), (n_different, score), (n_all, score), (n_all, square))
    )
    if statistic == "ratio":
        return float(same / different)
    return float((same - different) / (np.sqrt(second - mean**2) if statistic == "effect size" else 1))


def ends_of(scores: np.ndarray, topics: np.ndarray, seed: int) -> tuple[Ends, np.ndarray]:
    """What every word adds to symmetric scores [sample, word, word], and its squares."""
    apart, signs = ~np.eye(len(topics), dtype=bool), np.eye(2)[split_halves(topics, seed=seed)]
    same = (topics[:, None] == topics) & apart
    parts = []
    for kind in (same, apart & ~same):
        parts += [2 * np.einsum("sij,jh->his", scores * kind, signs, optimize=True), 2.0 * (kind @ signs).T]
    return Ends(*parts), 2 * np.einsum("sij->is", scores**2 * apart)


def of_words(
    setting: Setting, generator: np.random.Generator, n: int, effect: float
) -> tuple[Estimate, float]:
    fixed, topics = np.random.default_rng(3), np.repeat(np.arange(len(setting.sizes)), setting.sizes)
    apart = fixed.normal(size=(len(setting.sizes), WIDTH))
    common = 0.6 * fixed.normal(size=WIDTH)  # what all words have, so that no mean is around 0
    strengths = (effect, 0.0) if "two" in setting.how else (effect,)
    centres = np.stack([common + strength * apart for strength in strengths])
    statistic = setting.statistic.replace(" ", "_")
    models = []
    for table in embeddings(setting, centres, topics, generator, n):
        ends, squares = ends_of(table @ table.swapaxes(1, 2), topics, seed=0)
        models.append(over_words(ends, squares, topics, statistic=statistic))
    truths = [truth_of_words(setting, centres[[model]], setting.statistic) for model in range(len(centres))]
    if "two" in setting.how:
        return models[0] - models[1], truths[0] - truths[1]
    return models[0], truths[0]


# ---------------------------------------------------------------------------- sources and words

FOLDS = 4


def of_both(
    setting: Setting, generator: np.random.Generator, n: int, effect: float
) -> tuple[Estimate, float]:
    topics, n_sources = np.repeat(np.arange(len(setting.sizes)), setting.sizes), setting.units
    even = "even" in setting.how
    source, word, pair, both = (0.4, 0.3, 0.3, 0.3) if even else (0.4, 0.05, 0.0, 0.0)
    same = np.triu(topics[:, None] == topics, 1)
    different = np.triu(topics[:, None] != topics, 1)
    fold_of = np.arange(n_sources) % FOLDS
    of_source = source * generator.normal(size=(n, n_sources))
    of_word = word * generator.normal(size=(n, len(topics)))
    of_pair = pair * generator.normal(size=(n, len(topics), len(topics)))
    of_cell = both * generator.normal(size=(n, n_sources, len(topics)))
    sums, counts = np.zeros((2, n_sources, n, 3))
    folds = np.zeros((FOLDS, n, len(topics), len(topics)))
    for relation, kind, mean, part in ((1, same, 1 + effect, 1.0), (2, different, 1.0, 1 / 3)):
        steady = of_word[:, :, None] + of_word[:, None] + of_pair
        for fold in range(FOLDS):
            members = np.flatnonzero(fold_of == fold)
            own = of_cell[:, members].sum(1)
            noise = np.sqrt(len(members)) * generator.normal(size=steady.shape) * kind
            table = len(members) * (mean + part * steady)
            table = table + part * (
                of_source[:, members].sum(1)[:, None, None] + own[:, :, None] + own[:, None]
            )
            folds[fold] += kind * table + noise
            # The noise of every source, given that of all of a fold.
            single = np.sqrt(kind.sum()) * generator.normal(size=(n, len(members)))
            of_noise = noise.sum((1, 2))[:, None] / len(members) + single - single.mean(1, keepdims=True)
            n_partners = (kind | kind.T).sum(1)
            of_cells = of_cell[:, members] @ n_partners
            level = kind.sum() * mean + part * (steady * kind).sum((1, 2))[:, None]
            sums[members, :, relation] = (
                level + part * (kind.sum() * of_source[:, members] + of_cells) + of_noise
            ).T
        counts[..., relation] = kind.sum()
    estimate = estimate_of_sources(sums, counts, statistic=setting.statistic)
    folds = folds + folds.swapaxes(2, 3)
    every = _over_means(folds.sum(0) / n_sources, topics, setting.statistic)
    scale = 1.0 if setting.statistic == "difference" else every.value
    by_fold = []
    for fold in range(FOLDS):
        n_others = int((fold_of != fold).sum())
        rest = _over_means((folds.sum(0) - folds[fold]) / n_others, topics, setting.statistic)
        by_fold.append((every.influence - n_others / n_sources * rest.influence) / scale)
    words = beside_sources("words", np.stack(by_fold), every.factors[0].df)
    return estimate.crossed(words), effect if setting.statistic == "difference" else 1 + effect


def _over_means(scores: np.ndarray, topics: np.ndarray, statistic: str) -> Estimate:
    return over_words(ends_of(scores, topics, 0)[0], None, topics, statistic=statistic)


# ---------------------------------------------------------------------------- seeds, refits, bands, permutations


def of_seeds(
    setting: Setting, generator: np.random.Generator, n: int, effect: float
) -> tuple[Estimate, float]:
    shape = (setting.units, n)
    drawn = generator.normal(size=shape) if setting.how == "normal" else generator.exponential(size=shape) - 1
    return over_seeds(4 * effect + drawn), 4 * effect


def of_refits(
    setting: Setting, generator: np.random.Generator, n: int, effect: float
) -> tuple[Estimate, float]:
    n_sources = 30
    spread = {"do nothing": 0.0, "as much as sources": 1.0, "twice as much as sources": 2.0}[setting.how]
    # So much does the mean over fits vary with the fits, in standard errors of that over sources.
    of_fit = spread * np.sqrt(setting.units / n_sources) * generator.normal(size=(setting.units, n))
    shared, estimates = generator.normal(size=(n_sources, n)), []
    for own in of_fit:
        values = effect + shared + own + 0.5 * generator.normal(size=shared.shape)
        rows = [np.stack([0 * part, part, 0 * part], -1) for part in (values, np.ones_like(values))]
        rows[1][..., 2] = 1
        estimates.append(estimate_of_sources(*rows, statistic="difference"))
    return over_refits(estimates), effect


def of_band(
    setting: Setting, generator: np.random.Generator, n: int, effect: float
) -> tuple[Estimate, float]:
    steps = generator.normal(size=(setting.units, n, 8)).cumsum(2) + 2 * generator.normal(
        size=(setting.units, n, 8)
    )
    values = steps + effect
    rows = [np.stack([0 * part, part, 0 * part], -1) for part in (values, np.ones_like(values))]
    rows[1][..., 2] = 1
    return estimate_of_sources(*rows, statistic="difference"), effect


def of_permutations(setting: Setting, generator: np.random.Generator, n: int, effect: float) -> np.ndarray:
    topics = np.repeat(np.arange(len(setting.sizes)), setting.sizes)
    p_values = np.zeros(n)
    for sample in range(n):
        words = generator.normal(size=(len(topics), WIDTH))
        words += effect * generator.normal(size=(len(setting.sizes), WIDTH))[topics]
        scores = words @ words.T
        np.fill_diagonal(scores, 0)
        given = np.stack([topics, *(generator.permutation(topics) for _ in range(99))])
        member = np.eye(len(setting.sizes))[given]
        same = np.einsum("pit,pit->p", member, np.einsum("ij,pjt->pit", scores, member, optimize=True))
        p_values[sample] = permutation_p_value(same[0], same[1:])
    return p_values


SIMULATE = {
    "sources": of_sources,
    "words": of_words,
    "both": of_both,
    "seeds": of_seeds,
    "refits": of_refits,
    "band": of_band,
}


# ---------------------------------------------------------------------------- the page


@dataclass(frozen=True)
class Row:
    """What came out: shares of simulations, None where there is nothing to say."""

    setting: Setting
    held: np.ndarray | None = None
    bias: float | None = None
    power: float | None = None
    false: np.ndarray | None = None

    @property
    def interval(self) -> tuple[float, float]:
        """The 99 % interval of the coverage."""
        assert self.held is not None
        ends = binomtest(int(self.held.sum()), len(self.held)).proportion_ci(0.99)
        return float(ends.low), float(ends.high)

    @property
    def misses(self) -> bool:
        """Whether the coverage lies wholly outside what is wanted."""
        return self.held is not None and (self.interval[0] > WANTED[1] or self.interval[1] < WANTED[0])


def simulate(setting: Setting, n: int, *, seed: int = 0) -> Row:
    """A setting with planted topics, and without any."""
    generator = np.random.default_rng([seed, SETTINGS.index(setting) if setting in SETTINGS else 0])
    if setting.kind == "permutations":
        false, power = (
            of_permutations(setting, generator, n, effect) < 0.05 for effect in (0.0, setting.effect)
        )
        return Row(setting, power=float(power.mean()), false=false)
    at_once = max(1, min(n, 4_000_000 // max(setting.units, sum(setting.sizes), 8) ** 2))
    held, values, significant, truth, false = [], [], [], 0.0, []
    for start in range(0, n, at_once):
        size = min(at_once, n - start)
        estimate, truth = SIMULATE[setting.kind](setting, generator, size, setting.effect)
        held.append(_held(setting, estimate, truth))
        values.append(np.where(estimate.log, np.exp(estimate.value), estimate.value))
        significant.append(estimate.p_value() < 0.05)
        nothing, _ = SIMULATE[setting.kind](setting, generator, size, 0.0)
        false.append(nothing.p_value()[~np.isnan(nothing.df)] < 0.05)
    found, every = np.concatenate(held), np.concatenate(values)
    if not len(found):
        return Row(setting)
    bias = (every.mean() - _shown(setting, truth)) / every.std()
    power = np.concatenate(significant).mean()
    return Row(setting, found, float(bias), float(power), np.concatenate(false))


def _shown(setting: Setting, truth: float) -> float:
    """The true number as an interval has it: of two logarithms the quotient of the ratios."""
    quotient = (setting.kind, setting.statistic, setting.how) == ("sources", "ratio", "two models")
    return float(np.exp(truth)) if quotient else truth


def _held(setting: Setting, estimate: Estimate, truth: float) -> np.ndarray:
    """Which intervals hold the truth, of those that are there."""
    if setting.kind == "band":
        bands = np.stack([estimate[number].band() for number in range(len(estimate.value))])
        return ((bands[..., 0] <= truth) & (truth <= bands[..., 1])).all(1)
    ends = estimate.interval()
    shown = _shown(setting, truth)
    return ((ends[:, 0] <= shown) & (shown <= ends[:, 1]))[~np.isnan(ends).any(1)]


HEAD = """# How far intervals and p-values are to be trusted

Made by `make validate` (`tests/benchmarks/validate.py`, which says what is simulated): {n:,} simulations
of every setting.

* **Coverage**: how often 95 % intervals hold the true number, with its own 99 % interval. Wanted are 93 to 97 % in
  every setting of at least ten units: where the 99 % interval lies wholly outside, the row is marked with **!**.
* **False**: how often p < 0.05 where there is nothing. **Power**: how often where topics are planted.
* **Bias**: mean of the number less the truth, in standard deviations of the number.
* "–": fewer than eight sources or words, or three seeds or refits, have no interval.

{verdict}
"""


_COLUMNS = "| units | of | setting | coverage | false | power | bias |\n|--:|:--|:--|:--|--:|--:|--:|\n"


def page(rows: list[Row], n: int) -> str:
    """The page, in markdown."""
    missing = [row for row in rows if row.misses and row.setting.units >= 10]
    inside = [row for row in rows if row.held is not None and row.setting.units >= 10]
    lines = ["Not as wanted:"] if missing else []
    for row in missing:
        setting = row.setting
        assert row.held is not None
        what = ", ".join(filter(None, (f"{setting.units} {setting.kind}", setting.statistic, setting.how)))
        lines.append(f"* {what}: {row.held.mean():.1%}")
    verdict = f"Of {len(inside)} settings with at least ten units {len(inside) - len(missing)} are as wanted."
    text = HEAD.format(n=n, verdict="\n".join([verdict, *lines]))
    for kind in dict.fromkeys(row.setting.kind for row in rows):
        text += f"\n## {kind.capitalize()}\n\n{_COLUMNS}"
        text += "".join(f"{_line(row)}\n" for row in rows if row.setting.kind == kind)
    return text


def _line(row: Row) -> str:
    setting = row.setting
    sizes = f"topics of {', '.join(map(str, sorted(set(setting.sizes))))} words" if setting.sizes else ""
    coverage = "–"
    if row.held is not None:
        low, high = row.interval
        mark = " **!**" if row.misses and setting.units >= 10 else ""
        coverage = f"{row.held.mean():.1%} ({low:.1%} to {high:.1%}){mark}"
    false = "" if row.false is None else f"{row.false.mean():.1%}"
    power = "" if row.power is None else f"{row.power:.0%}"
    bias = "" if row.bias is None else f"{row.bias:.2f}"
    how = "; ".join(part for part in (setting.how, sizes) if part)
    return f"| {setting.units} | {setting.statistic} | {how} | {coverage} | {false} | {power} | {bias} |"


def main() -> int:
    """Simulate every setting and print or write the page; 1 where one is not as wanted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simulations", type=int, default=2000)
    parser.add_argument("--write", type=Path, help="the page")
    options = parser.parse_args()
    rows = []
    for setting in SETTINGS:
        rows.append(simulate(setting, options.simulations))
        print(_line(rows[-1]), flush=True)
    if options.write is not None:
        options.write.write_text(page(rows, options.simulations), encoding="utf-8")
    return int(any(row.misses and row.setting.units >= 10 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
