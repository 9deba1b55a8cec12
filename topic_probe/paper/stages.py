"""A map of the stages, which the paper leaves open: when does W_V settle before W_K and W_Q start to move?

Keys, queries and values are trained together (regime *two-stage*) for every initial noise and learning rate of a grid,
with each loss and optimizer, as many steps as Figure 4 shows. Of every training it is asked what its norms do, and
whether attention between words follows.

The rule that is tried: there are two stages where the noise is small enough, by what theory says of the sizes of the
first gradients (`theory.initial_gradients`), and the rate lies between two bounds. Its form was settled before the map
was seen. Its three bounds are found on every other cell of the grid, as a checkerboard has them, and the rule is judged
on the rest.

What comes out: two stages are a matter of squared loss and SGD, at rates within a factor of four of those that diverge,
and of a noise that is small beside the W_V that is learned. The nearer the rate is to where training diverges, the
shorter is the first stage: 700 steps at a rate of 25, 250 at 32, 8 at 50. At lower rates W_V settles and nothing
follows within the record. With cross-entropy W_V goes on growing, and with Adam all norms grow at one speed; beside
squared loss and SGD two cells have two stages, at the border of what is too slow. Attention between words stays uniform
in all cells of two stages but one. It changes where W_K or W_Q is first: with Adam, and with cross-entropy at high
rates. The bounds of the rate do most of the work of the rule; the predicted ratio adds where the noise is large.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby, pairwise, product
from math import inf, isnan, nan, sqrt
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float64

from topic_probe.paper import listed
from topic_probe.paper.claims import Claim, Number, over_seeds
from topic_probe.paper.figure4 import NEAR_UNIFORM, attention, near_zero, stages
from topic_probe.paper.recipe import Recipe, RecipeResult, Run
from topic_probe.paper.toys import EVALUATION_SEED, Case
from topic_probe.paper.training import (
    CE_ADAM,
    CE_SGD,
    NAMES,
    SQ_ADAM,
    SQ_SGD,
    Pair,
    Setting,
    Trained,
    train_all,
)
from topic_probe.toy import theory
from topic_probe.toy.masking import Loss, Masking
from topic_probe.toy.model import ToyConfig
from topic_probe.toy.word_attention import word_attention
from topic_probe.toy.world import World
from topic_probe.train.stages import find_stages

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = 1_000
"""As many as Figure 4 shows."""

NOISES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
RATES: Mapping[Pair, Sequence[float]] = {
    SQ_SGD: (0.25, 2.0, 16.0, 20.0, 25.0, 32.0, 50.0, 100.0),
    CE_SGD: (0.1, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0),
    SQ_ADAM: (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0),
    CE_ADAM: (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0),
}
"""From too slow to diverging, and closer together where what happens changes."""

QUICK_STEPS = 300
QUICK_NOISES = (0.003, 0.03, 0.3)
QUICK_RATES: Mapping[Pair, Sequence[float]] = {SQ_SGD: (0.25, 40.0, 100.0), CE_ADAM: (1e-5, 1e-2, 10.0)}


def _grid(
    rates: Mapping[Pair, Sequence[float]], noises: Sequence[float], steps: int, seconds: float
) -> tuple[Setting, ...]:
    return tuple(
        near_zero(pair, steps, rate=rate, noise=noise, seconds=seconds, record_every=2, measure_every=steps)
        for pair, of_pair in rates.items()
        for rate in of_pair
        for noise in noises
    )


SETTINGS = _grid(RATES, NOISES, STEPS, seconds=0.6)
QUICK_SETTINGS = _grid(QUICK_RATES, QUICK_NOISES, QUICK_STEPS, seconds=0.3)

# --- measuring --------------------------------------------------------------------------------------

TWO_STAGES, ALONE, FIRST, NEITHER, DIVERGES = OUTCOMES = (
    "two stages",
    "W_V settles, W_K and W_Q never start",
    "W_K or W_Q starts before W_V settles",
    "no norm starts to grow and settles",
    "the loss diverges",
)
WORSE = 1.1
"""The times of its first loss beyond which the loss at the end says that a training diverged."""

Row = Mapping[str, Any]


def measure(run: Run) -> RecipeResult:
    """Every cell of the grid with every seed, those of one loss, optimizer and rate side by side.

    The histories are not kept: there are hundreds of them, and a few numbers of each are wanted.
    """
    rows = [
        _row(one)
        for _, cells in groupby(run.settings, key=lambda setting: setting.train)
        for one in train_all(
            (cell.shifted(seed) for cell in cells for seed in range(run.seeds)),
            folder=run.folder,
            progress=run.progress,
            watch={"attention": word_attention},
        )
    ]
    return run.result(tables={"trainings": rows, "cells": list(cells(rows))})


def _row(trained: Trained) -> dict[str, Any]:
    """What became of one training."""
    setting, history = trained.setting, trained.history
    case = Case(trained, setting.topics, quick=False)
    assert isinstance(setting.toy, ToyConfig)
    found = {**stages(case), **attention(case)}  # nothing of one that stopped before its end
    numbers = {
        "first loss": float(history.loss[0]),
        "last loss": float(history.loss[-len(history) // 10 :].mean()) if found else nan,
        "flat": found.get("flat", nan),
        "start": found.get("start", nan),
        "W_V in stage 1": found.get("W_V in stage 1", nan),
        **{name: found.get(name, nan) for name in ("words at the end", "[MASK] at the end", "other words")},
    }
    what = outcome(numbers)
    return {
        "loss": setting.train.loss,
        "optimizer": setting.train.optimizer,
        "noise": setting.toy.noise,
        "rate": setting.train.learning_rate,
        "seed": setting.seed,
        "ratio": predicted_ratio(setting.train.loss, setting.toy.noise),
        "outcome": what,
        "the other way round": _the_other_way_round(trained),
        "attention follows": what != DIVERGES and numbers["words at the end"] > NEAR_UNIFORM,
        **{name: None if isnan(value) else value for name, value in numbers.items()},
    }


def outcome(numbers: Mapping[str, float]) -> str:
    """Which of `OUTCOMES` a training had, by its losses and by when W_V is flat and W_K or W_Q starts."""
    flat, start = numbers["flat"], numbers["start"]
    if not numbers["last loss"] <= WORSE * numbers["first loss"]:
        return DIVERGES
    if isnan(start):
        return NEITHER if isnan(flat) else ALONE
    return TWO_STAGES if flat < start else FIRST


def _the_other_way_round(trained: Trained) -> bool:
    """Whether W_K and W_Q settle before W_V starts, by the rule that is for W_V otherwise."""
    history = trained.history
    if history.stopped != "finished":
        return False
    steps, norms = history.steps.numpy(), {name: norm.numpy() for name, norm in history.norms.items()}
    swapped = (
        find_stages(steps, value=norms[name], key=norms["W_V"], query=norms["W_V"]) for name in ("W_K", "W_Q")
    )
    return all(found.reason is None for found in swapped)


@cache
def predicted_ratio(loss: Loss, noise: float) -> float:
    """The gradient of W_K, or of W_Q, ÷ that of W_V where training begins, by theory, on one batch for all."""
    world, generator = World(), torch.Generator().manual_seed(EVALUATION_SEED)
    documents = world.documents(40, generator=generator)
    batch = Masking().corrupt(documents, n_words=world.n_words, generator=generator)
    return theory.initial_gradients(world, batch, loss=loss).ratio(noise)


def _apart(rows: Sequence[Row], *axes: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows that agree in some columns, in the order in which they come."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[axis] for axis in axes), []).append(row)
    return groups


def by_pair(rows: Sequence[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """Trainings of each loss and optimizer."""
    return _apart(rows, "loss", "optimizer")


def cells(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """A row for every cell: what most of its seeds have, and the median length of stage 1 where it is two stages."""
    for (loss, optimizer), of_pair in by_pair(rows).items():
        rule = fitted(of_pair)
        for (rate, noise), seeds in _apart(of_pair, "rate", "noise").items():
            most = Counter(row["outcome"] for row in seeds).most_common(1)[0][0]
            lengths = [row["start"] for row in seeds if row["outcome"] == TWO_STAGES]
            yield {
                "loss": loss,
                "optimizer": optimizer,
                "rate": rate,
                "noise": noise,
                "outcome": most,
                "length": median(lengths) if most == TWO_STAGES else None,
                "attention follows": 2 * sum(row["attention follows"] for row in seeds) > len(seeds),
                "predicted": rule.predicts(seeds[0]),
            }


# --- the rule ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StageRule:
    """Two stages where the predicted ratio of the gradients is below one bound and the rate between two others."""

    ratio: float
    slowest: float
    fastest: float

    def predicts(self, row: Row) -> bool:
        """Whether a training is to have two stages."""
        return bool(row["ratio"] < self.ratio and self.slowest < row["rate"] < self.fastest)


def held_back(rows: Sequence[Row]) -> Bool[np.ndarray, " row"]:
    """Which trainings of a loss and optimizer the rule is judged on: the odd cells of a checkerboard."""
    noises, rates = (sorted({row[axis] for row in rows}) for axis in ("noise", "rate"))
    return np.array([(noises.index(row["noise"]) + rates.index(row["rate"])) % 2 == 1 for row in rows])


def fitted(rows: Sequence[Row]) -> StageRule:
    """The rule that is right most often of the even cells of one loss and optimizer, by `balanced_accuracy`.

    Bounds lie in the middle between neighbours of the grid, or beyond its ends; of rules that are equally good it is
    the one that predicts two stages most often.
    """
    seen = ~held_back(rows)
    truth = np.array([row["outcome"] == TWO_STAGES for row in rows])[seen]
    ratio, rate = (np.array([row[axis] for row in rows])[seen] for axis in ("ratio", "rate"))
    tried = [
        StageRule(*bounds)
        for bounds in product(_between(ratio), _between(rate), _between(rate))
        if bounds[1] < bounds[2]
    ]
    guesses = [(ratio < one.ratio) & (one.slowest < rate) & (rate < one.fastest) for one in tried]
    scores = [(_right(guess, truth), int(guess.sum())) for guess in guesses]
    return tried[max(range(len(tried)), key=scores.__getitem__)]


def _between(values: Float64[np.ndarray, " row"]) -> list[float]:
    """Bounds between neighbouring values and beyond both ends."""
    levels = sorted(set(values.tolist()))
    return [0.0, *(sqrt(one * other) for one, other in pairwise(levels)), inf]


def _right(guess: Bool[np.ndarray, " row"], truth: Bool[np.ndarray, " row"]) -> float:
    """The share that is guessed right, the mean of those of what is true and of what is not, if there are both."""
    return float(
        np.mean([(guess == truth)[truth == kind].mean() for kind in (True, False) if (truth == kind).any()])
    )


def balanced_accuracy(guess: Sequence[bool], truth: Sequence[bool]) -> float:
    """The mean of two shares, of what is true and of what is not, that are guessed right: ½ for any constant guess.

    NaN where all are alike, because nothing could be told apart.
    """
    return _right(np.array(guess), np.array(truth)) if len(set(truth)) == 2 else nan


def judged_on_rest(rows: Sequence[Row], rules: Mapping[tuple[Any, ...], StageRule]) -> Number:
    """The balanced accuracy of rules on what is held back, all losses and optimizers together, over the seeds."""
    rest = [
        {**row, "guess": rules[pair].predicts(row)}
        for pair, of_pair in by_pair(rows).items()
        for row, chosen in zip(of_pair, held_back(of_pair), strict=True)
        if chosen
    ]
    return over_seeds(
        [
            balanced_accuracy([row["guess"] for row in own], [row["outcome"] == TWO_STAGES for row in own])
            for own in _apart(rest, "seed").values()
        ]
    )


SHUFFLES = 20
"""How often outcomes are dealt to other cells."""

NEVER, ALWAYS = StageRule(0.0, 0.0, 0.0), StageRule(inf, 0.0, inf)


def rule_controls(rows: Sequence[Row]) -> dict[str, Number]:
    """What is right of what is held back, of rules that know nothing of noise and rate."""
    pairs, generator = by_pair(rows), np.random.default_rng(EVALUATION_SEED)
    dealt = [
        judged_on_rest(rows, {pair: fitted(_dealt(own, generator)) for pair, own in pairs.items()}).value
        for _ in range(SHUFFLES)
    ]
    usual = {
        pair: ALWAYS if 2 * sum(row["outcome"] == TWO_STAGES for row in own) > len(own) else NEVER
        for pair, own in pairs.items()
    }
    return {
        "shuffled outcomes": Number(float(np.mean(dealt))),
        "what is most frequent": Number(judged_on_rest(rows, usual).value),
    }


def _dealt(rows: Sequence[Row], generator: np.random.Generator) -> list[Row]:
    """The outcomes dealt to other cells, those of one cell together."""
    own = list(_apart(rows, "rate", "noise").values())
    return [
        {**row, "outcome": other["outcome"]}
        for number, source in enumerate(generator.permutation(len(own)).tolist())
        for row, other in zip(own[number], own[source], strict=True)
    ]


# --- claims -----------------------------------------------------------------------------------------


def _share(rows: Sequence[Row], column: str) -> Number:
    """The share of trainings of which something is true, over the seeds; undefined where a seed has none."""
    seeds = _apart(rows, "seed").values()
    return over_seeds([float(np.mean([row[column] for row in own])) for own in seeds])


def _variety(result: RecipeResult) -> Iterator[Claim]:
    statement = Claim(
        text="W_V settles before W_K and W_Q start with a variety of rates and noises (share of the grid)",
        source="Section 1",
        paper="for a wide variety of optimizers and hyperparameter settings",
        above=0.1,
    )
    for pair, rows in by_pair(result.tables["trainings"]).items():
        two = [{**row, "two": row["outcome"] == TWO_STAGES} for row in rows]
        most = Counter(row["outcome"] for row in rows).most_common()
        yield replace(
            statement,
            setting=_name(pair),
            measured=_share(two, "two"),
            controls={"W_K and W_Q before W_V": _share(two, "the other way round")},
            detail="; ".join(f"{what}: {count}" for what, count in most),
        )


def _following(result: RecipeResult) -> Iterator[Claim]:
    never = "W_K and W_Q never start"
    of = {TWO_STAGES: {TWO_STAGES}, FIRST: {FIRST}, never: {ALONE, NEITHER}}
    shares = {
        what: _share(
            [row for row in result.tables["trainings"] if row["outcome"] in outcomes], "attention follows"
        )
        for what, outcomes in of.items()
    }
    follows = Claim(
        text="Where there are two stages, attention between words follows in the second (share of these trainings; "
        f"|mean − 1| of a relation above {NEAR_UNIFORM:g} at the end)",
        source="Section 2.2.2 and Section 5.1",
        paper="optimal attention weights in stage 2",
        above=0.5,
        setting="all",
        measured=shares[TWO_STAGES],
        controls={never: shares[never]},
        reason="what grows in the second stage are the rows of [MASK], as in Figure 4",
    )
    first = Claim(
        text="Where W_K or W_Q starts before W_V settles, attention between words changes (share of these trainings)",
        source="our own, beside the second stage",
        paper="optimal attention weights in stage 2",
        above=0.5,
        setting="all",
        measured=shares[FIRST],
        controls={what: shares[what] for what in (TWO_STAGES, never)},
        ours=True,
    )
    yield from (follows, first)


def _rule(result: RecipeResult) -> Iterator[Claim]:
    rows = result.tables["trainings"]
    pairs = by_pair(rows)
    rules = {pair: fitted(own) for pair, own in pairs.items()}
    statement = Claim(
        text="Whether there are two stages follows from the predicted ratio of the first gradients and the rate "
        "(balanced accuracy on the cells of the grid that the bounds were not found on)",
        source="our own",
        paper="left as an interesting future work",
        above=0.8,
        ours=True,
    )
    ratios = {pair: replace(rule, ratio=inf) for pair, rule in rules.items()}
    yield replace(
        statement,
        setting="all",
        measured=judged_on_rest(rows, rules),
        controls=rule_controls(rows),
        detail=f"with the bounds of the rate alone {judged_on_rest(rows, ratios)}",
    )
    for pair, own in pairs.items():
        rest = [
            row["outcome"] == TWO_STAGES for row, chosen in zip(own, held_back(own), strict=True) if chosen
        ]
        if len(set(rest)) < 2:
            alike = "every" if any(rest) else "no"
            yield replace(
                statement,
                setting=_name(pair),
                not_checked=f"{alike} training held back has two stages",
            )
            continue
        rule = rules[pair]
        yield replace(
            statement,
            setting=_name(pair),
            measured=judged_on_rest(own, rules),
            controls=rule_controls(own),
            detail=f"two stages where the ratio is below {rule.ratio:.3g} and the rate between {rule.slowest:.3g} and "
            f"{rule.fastest:.3g}",
        )


def _name(pair: tuple[Any, ...]) -> str:
    return ", ".join(NAMES[part] for part in pair)


# --- figures ----------------------------------------------------------------------------------------


def _figures(result: RecipeResult) -> "dict[str, Figure]":
    """A map for every loss and optimizer."""
    from topic_probe.show.figures import outcome_panels

    shown = [
        {
            "learning rate": cell["rate"],
            "initial noise": cell["noise"],
            "outcome": cell["outcome"],
            "step at which W_K or W_Q starts": cell["length"],
            "attention between words changes": cell["attention follows"],
            "two stages by the rule": cell["predicted"],
            "pair": _name((cell["loss"], cell["optimizer"])),
        }
        for cell in result.tables["cells"]
    ]
    grids = {pair: own for (pair,), own in _apart(shown, "pair").items()}
    figure = outcome_panels(
        grids,
        OUTCOMES,
        x="learning rate",
        y="initial noise",
        number="step at which W_K or W_Q starts",
        mark="attention between words changes",
        frame="two stages by the rule",
    )
    return {"map": figure}


RECIPE = Recipe(
    *listed("stages"),
    source="Section 8.1, left open",
    settings=SETTINGS,
    quick_settings=QUICK_SETTINGS,
    seeds=3,
    quick_seeds=2,
    measure=measure,
    claims=(_variety, _following, _rule),
    figures=_figures,
)
