"""Figure 4: two stages of training. First W_V grows under uniform attention, then W_K and W_Q under a level W_V.

Keys, queries and values are trained together from near-zero noise on one-hot embeddings (regime *two-stage*), on LDA
documents; their norms are recorded at every step, and attention is watched, because norms do not say what is attended
to. The paper does not say which hyperparameters its curves have, and that common ones do not show the stages
(Section 8.1). The norms show them with squared loss and SGD at a rate of 20 to 30: W_V is there within 20 steps and
from then on turns at a constant norm, W_K and W_Q start at step 350 at a rate of 30 and 1,500 at 20. At lower rates
there is less noise in W_V, and they start far later.

Documents without topics show the same stages: the order in which norms grow says nothing of topics. And what grows in
the second stage is attention of rows of [MASK] alone, which come to attend less to each other; between words attention
stays uniform to the third decimal, with every seed, while the norms of W_K and W_Q grow 2.8-fold.

With cross-entropy and SGD only the first stage is as the paper has it. W_K and W_Q do stay near zero for 400 steps at a
rate of 3 while W_V grows 15-fold; but its optimal logits are so large that W_V goes on growing long after W_K and W_Q
have started. With Adam there is no first stage, because it moves every tensor at the same speed; there words do come to
attend to their topic.

Section 8.1 argues from the sizes of the first gradients, which are recorded and predicted: those of W_K and W_Q are
smaller by the variance of the noise. With the usual initialisation, which shows no stages, they are smaller than that
of W_V, too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from topic_probe.paper import listed, toys
from topic_probe.paper.claims import Claim, Number
from topic_probe.paper.recipe import Recipe, RecipeResult
from topic_probe.paper.training import (
    CE_ADAM,
    CE_SGD,
    NAMES,
    SQ_ADAM,
    SQ_SGD,
    Control,
    Pair,
    Setting,
    Trained,
    pair_setting,
)
from topic_probe.toy.model import ToyConfig
from topic_probe.toy.word_attention import word_attention
from topic_probe.train.history import History
from topic_probe.train.stages import MIN_ROWS, gradient_ratios, measure_dynamics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DISCUSSION = "Section 8.1"
FIRST_STAGE = 400
"""Steps of stage 1 in the paper."""

MOVED = 0.2
"""The relative change of its norm by which `measure_dynamics` says that a tensor has started."""
SIGNIFICANT = 2.0
"""The times that a norm must have grown by to have increased significantly."""
NEAR_UNIFORM = 0.1
"""How far attention may be from uniform, which is 1, and be near-uniform; what is beyond is trained."""

WATCHED = {
    "words": ("same_word", "same_topic", "different_topic"),
    "[MASK]": ("mask_to_word", "mask_to_mask"),
}
"""Rows of attention, by what they show: they are looked at apart, because those of ``[MASK]`` may change alone."""


def _setting(pair: Pair, steps: int, *, rate: float, noise: float, seconds: float) -> Setting:
    """Keys, queries and values trained together from noise at a rate."""
    return pair_setting(
        "two-stage", pair, steps, seconds=seconds, suffix=f", rate {rate:g}, noise {noise:g}", learning_rate=rate,
        noise=noise, record_every=1, record_gradients=True, measure_every=20,
    )  # fmt: skip


SETTINGS: tuple[Setting, ...] = (
    _setting(SQ_SGD, 1_000, rate=30.0, noise=0.01, seconds=1.0),
    _setting(SQ_SGD, 1_000, rate=30.0, noise=0.003, seconds=1.0),
    _setting(SQ_SGD, 3_000, rate=20.0, noise=0.01, seconds=3.0),
    _setting(CE_SGD, 1_000, rate=3.0, noise=0.01, seconds=1.0),
    _setting(CE_ADAM, 1_000, rate=0.01, noise=0.01, seconds=1.0),
    _setting(SQ_ADAM, 1_000, rate=0.01, noise=0.01, seconds=1.0),
)
QUICK_SETTINGS: tuple[Setting, ...] = (
    _setting(SQ_SGD, 600, rate=30.0, noise=0.01, seconds=0.6),
    _setting(CE_SGD, 700, rate=3.0, noise=0.01, seconds=0.7),
    _setting(CE_ADAM, 300, rate=0.01, noise=0.01, seconds=0.3),
)

# --- where claims must fail -------------------------------------------------------------------------


def _usual(setting: Setting) -> Setting:
    assert isinstance(setting.toy, ToyConfig)
    return replace(setting, toy=replace(setting.toy, init="usual"))


def _large(setting: Setting) -> Setting:
    """Only looked at where training begins."""
    assert isinstance(setting.toy, ToyConfig)
    toy, train = replace(setting.toy, noise=1.0), replace(setting.train, steps=0)
    return replace(setting, toy=toy, train=train)


VALUES_FROZEN = toys.frozen("W_V", name="values frozen")
USUAL = Control("usual initialisation", train=_usual)
LARGE = Control("noise 1", train=_large)

# --- measuring --------------------------------------------------------------------------------------


def stages(case: toys.Case) -> dict[str, float]:
    """Which norm grows when, and by how much; nothing for a training that diverged.

    ``flat ÷ start``, of the step from which W_V is flat and the step at which W_K or W_Q starts, is below 1 where there
    are two stages. It is 1 where W_V never starts, or neither W_K nor W_Q does: then none is before the other. A
    W_V that goes on growing has the last step for it.
    """
    history = case.trained.history
    if history.stopped != "finished":
        return {}
    norms = {name: history.norms[name].numpy() for name in ("W_K", "W_Q", "W_V")}
    changes = {name: norm / norm[0] for name, norm in norms.items()}
    attention = np.stack([changes["W_K"], changes["W_Q"]])
    early = history.steps.numpy() <= FIRST_STAGE
    always = {
        "W_K, W_Q at the end": float(attention[:, -1].min()),
        "change of W_K, W_Q at the end": float(np.abs(attention[:, -1] - 1).max()),
        f"change of W_K, W_Q by step {FIRST_STAGE}": float(np.abs(attention[:, early] - 1).max()),
        f"W_V by step {FIRST_STAGE}": float(changes["W_V"][early][-1]),
    }
    if len(history) < MIN_ROWS:  # no training, and no stages
        return {**always, "flat ÷ start": 1.0, "W_V in stage 1": float(changes["W_V"][-1])}
    report = measure_dynamics(history)
    start, flat = _attention_start(history), float(report.value_flat[0])
    until_flat = history.last_step if np.isnan(flat) else flat
    never = np.isnan(start) or np.isnan(report.value_start[0])
    return {
        **always,
        "flat": flat,
        "start": start,
        "flat ÷ start": 1.0 if never else until_flat / start,
        "W_V in stage 1": float(report.value_growth[0]),
        "W_V in stage 2": float(report.late_value_growth[0]),
        "change of W_K, W_Q in stage 1": float(report.attention_change[0]),
        "rotation": float(report.late_rotation[0]),
    }


def _attention_start(history: History) -> float:
    """The step at which W_K or W_Q starts; NaN if neither does, and where nothing was trained."""
    if len(history) < MIN_ROWS:
        return nan
    report = measure_dynamics(history)
    return float(report.attention_start[0])


def attention(case: toys.Case) -> dict[str, float]:
    """How far from uniform attention is, in stage 1 at most and at the end, of rows of words and of ``[MASK]``.

    Stage 1 lasts until W_K or W_Q starts. There is nothing of a training that diverged.
    """
    history = case.trained.history
    if history.stopped != "finished":
        return {}
    start = _attention_start(history)
    found: dict[str, float] = {}
    for rows, names in WATCHED.items():
        series = [history.measured[f"attention.{name}"] for name in names]
        first = series[0].steps.numpy() <= (history.last_step if np.isnan(start) else start)
        far = np.abs(np.stack([one.values.numpy() for one in series]) - 1).max(axis=0)
        found |= {f"{rows} in stage 1": float(far[first].max()), f"{rows} at the end": float(far[-1])}
        found |= {
            name.replace("_", " "): float(one.values[-1]) for name, one in zip(names, series, strict=True)
        }
    return {**found, "other words": found["same topic"] / found["different topic"]}


def gradients(case: toys.Case) -> dict[str, float]:
    """Norms of the first gradients of W_K and W_Q ÷ that of W_V, and beside what is predicted for the noise."""
    history = case.trained.history
    if "W_V" not in history.gradients or "W_K" not in history.gradients:
        return {}
    sizes = {name: float(norms[0]) for name, norms in history.gradients.items()}
    found = {"gradients ÷ that of W_V": max(sizes["W_K"], sizes["W_Q"]) / sizes["W_V"]}
    if case.setting.control:
        return found
    assert isinstance(history.toy, ToyConfig)
    twice = replace(history, toy=replace(history.toy, noise=2 * history.toy.noise))
    for name, given in (("predicted", history), ("predicted for twice the noise", twice)):
        ratios = gradient_ratios(given)
        found |= {f"{of} ÷ {name}": ratios[of] / ratios["predicted"] for of in ("W_K", "W_Q")}
    return found


# --- claims -----------------------------------------------------------------------------------------


def _of_pair(result: RecipeResult, *pairs: Pair) -> list[str]:
    return [name for name, setting in toys.trained_settings(result).items() if setting.pair in pairs]


_ORDER = Claim(
    text="The norm of W_V plateaus, and only after that W_K and W_Q start to move (step from which W_V is flat ÷ step "
    "at which W_K or W_Q starts; 1 where none starts)",
    paper="already plateaus, and only after that, do the key and query matrices start to move",
    below=1.0,
)


def _two_stages(result: RecipeResult) -> Iterator[Claim]:
    """The paper's sentences, where its picture appears."""
    for name in _of_pair(result, SQ_SGD):
        steps = ", ".join(
            f"{what} {toys.number(result, name, of)}"
            for what, of in (("W_V is flat from step", "flat"), ("W_K or W_Q starts at", "start"))
        )
        broken = (toys.NO_TOPICS, toys.UNTRAINED, toys.ATTENTION_FROZEN, VALUES_FROZEN, USUAL)
        yield _beside(_ORDER, result, name, "flat ÷ start", *broken, detail=steps)
        yield from _first_stage(result, name)
        yield from _second_stage(result, name)


# Why attention between words does not change, as far as is known; shown where it does not.
_STILL = (
    "W_K and W_Q grow for the rows of [MASK] alone, which attends to itself less; with Adam, where the norms show no "
    "two stages, words do come to attend to their topic"
)


def _first_stage(result: RecipeResult, name: str) -> Iterator[Claim]:
    yield _at_rest(
        Claim(
            text="In stage 1 W_K and W_Q stay close to 0 (largest relative change of a norm until W_V is flat)",
            paper="stay close to 0",
            below=MOVED,
        ),
        result,
        name,
        "change of W_K, W_Q in stage 1",
        "change of W_K, W_Q at the end",
    )
    for rows in WATCHED:
        yield _at_rest(
            Claim(
                text=f"In stage 1 positions that show {rows} pay a near-uniform attention (largest |mean − 1| until "
                "W_K or W_Q starts, uniform being 1)",
                paper="each position pays a near-uniform attention to all positions",
                below=NEAR_UNIFORM,
            ),
            result,
            name,
            f"{rows} in stage 1",
            f"{rows} at the end",
        )
    grows = Claim(
        text="In stage 1 the norm of W_V increases significantly (norm when W_K or W_Q starts ÷ at the beginning)",
        paper="increases significantly",
        above=SIGNIFICANT,
    )
    yield _beside(grows, result, name, "W_V in stage 1", toys.NO_TOPICS, toys.UNTRAINED, VALUES_FROZEN)


def _second_stage(result: RecipeResult, name: str) -> Iterator[Claim]:
    start = Claim(
        text="In stage 2 the norms of W_K and W_Q increase significantly (the smaller of the two, at the end ÷ at the "
        "beginning)",
        paper="start increasing significantly",
        above=SIGNIFICANT,
    )
    yield _beside(
        start, result, name, "W_K, W_Q at the end", toys.NO_TOPICS, toys.UNTRAINED, toys.ATTENTION_FROZEN
    )
    level = Claim(
        text="In stage 2 the norm of W_V stays flat (at the end ÷ when W_K or W_Q starts)",
        paper="relatively flat",
        above=0.75,
        below=1.25,
    )
    before = {"in stage 1": toys.number(result, name, "W_V in stage 1")}
    yield _with(_beside(level, result, name, "W_V in stage 2", toys.NO_TOPICS), before)
    turns = Claim(
        text="In stage 2 W_V goes on turning (mean of (1 − cosine)/2 between W_V and W_V ten steps before)",
        source=DISCUSSION,
        paper="non-vanishing changes at a constant norm",
        above=0.001,
    )
    yield _beside(turns, result, name, "rotation", toys.NO_TOPICS)
    for rows, names in WATCHED.items():
        changes = Claim(
            text=f"In stage 2 the attention of positions that show {rows} changes (largest |mean − 1| at the end, "
            "uniform being 1)",
            source="Section 2.2.2 and Section 5.1",
            paper="optimal attention weights in stage 2",
            above=NEAR_UNIFORM,
        )
        means = ", ".join(
            f"{of} {toys.number(result, name, of).value:.3f}"
            for of in (one.replace("_", " ") for one in names)
        )
        broken = (toys.NO_TOPICS, toys.UNTRAINED, toys.ATTENTION_FROZEN)
        reason = _STILL if rows == "words" else ""
        yield _beside(changes, result, name, f"{rows} at the end", *broken, detail=means, reason=reason)


def _where_words_attend(result: RecipeResult) -> Iterator[Claim]:
    """What there is in place of a second stage that changes attention between words."""
    statement = Claim(
        text="With Adam, which has no two stages, words attend to other words of their topic (÷ to words of other "
        "topics)",
        source="our own, beside the second stage of SGD",
        paper="same-topic attention is larger than different-topic attention",
        above=toys.ABOVE_UNIFORM,
        ours=True,
    )
    for name in _of_pair(result, CE_ADAM, SQ_ADAM):
        yield _beside(
            statement, result, name, "other words", toys.NO_TOPICS, toys.UNTRAINED, toys.ATTENTION_FROZEN
        )


def _first_steps(result: RecipeResult) -> Iterator[Claim]:
    """Stage 1, where it is the only one that is as the paper has it."""
    for name in _of_pair(result, CE_SGD):
        stay = Claim(
            text=f"W_K and W_Q stay where they are for {FIRST_STAGE} steps (largest relative change of a norm)",
            paper="stay close to 0 in steps 0-400",
            below=MOVED,
            ours=True,
        )
        by = f"by step {FIRST_STAGE}"
        yield _at_rest(stay, result, name, f"change of W_K, W_Q {by}", "change of W_K, W_Q at the end")
        grows = Claim(
            text=f"W_V grows meanwhile (norm at step {FIRST_STAGE} ÷ at the beginning)",
            paper="increases significantly in steps 0-400",
            above=SIGNIFICANT,
            ours=True,
        )
        yield _beside(grows, result, name, f"W_V {by}", toys.NO_TOPICS, toys.UNTRAINED, VALUES_FROZEN)


def _sensitivity(result: RecipeResult) -> Iterator[Claim]:
    """Where the norms are not as the paper's picture has them, beside where they are."""
    statement = Claim(
        text="With other hyperparameters W_K or W_Q starts before the norm of W_V plateaus (step from which W_V is "
        "flat, or the last one, ÷ step at which W_K or W_Q starts)",
        source=DISCUSSION,
        paper="sensitive to hyperparameters; not usually visible with common ones",
        above=1.0,
    )
    two = {name: toys.number(result, name, "flat ÷ start") for name in _of_pair(result, SQ_SGD)[:1]}
    for name in _of_pair(result, CE_SGD, CE_ADAM, SQ_ADAM):
        yield _with(_beside(statement, result, name, "flat ÷ start", toys.UNTRAINED, VALUES_FROZEN), two)


def _first_gradients(result: RecipeResult) -> Iterator[Claim]:
    """The argument of Section 8.1, which looks at the beginning only: at one setting of each loss and noise."""
    first: dict[tuple[str, float], str] = {}
    for name, setting in toys.trained_settings(result).items():
        assert isinstance(setting.toy, ToyConfig)
        first.setdefault((setting.train.loss, setting.toy.noise), name)
    for (loss, noise), name in first.items():
        where = f"{NAMES[loss]}, noise {noise:g}"
        smaller = Claim(
            text="Where training begins, the gradient of W_V is larger than those of W_K and W_Q (the larger of the "
            "two ÷ that of W_V)",
            source=DISCUSSION,
            paper="tends to be larger in magnitude",
            below=1.0,
        )
        beside = _beside(smaller, result, name, "gradients ÷ that of W_V", USUAL, LARGE)
        yield replace(beside, setting=where)
        for of in ("W_K", "W_Q"):
            predicted = Claim(
                text=f"The gradient of {of} is as small beside that of W_V as the variance of the noise makes it "
                "(measured ÷ predicted)",
                source="our own theory, theory.initial_gradients",
                paper="contains the term W_Q, which is close to 0",
                above=0.8,
                below=1.25,
                ours=True,
            )
            twice = "predicted for twice the noise"
            yield replace(
                predicted,
                setting=where,
                measured=toys.number(result, name, f"{of} ÷ predicted"),
                controls={twice: toys.number(result, name, f"{of} ÷ {twice}")},
            )


def _beside(
    statement: Claim, result: RecipeResult, name: str, quantity: str, *broken: Control, **changes: Any
) -> Claim:
    """A statement about a setting, with the same number of what is broken."""
    return toys.judged(statement, result, name, quantity, [control.name for control in broken], **changes)


def _at_rest(statement: Claim, result: RecipeResult, name: str, quantity: str, later: str) -> Claim:
    """A claim that something has not changed yet, which must not be true of the end of the same training."""
    return _with(
        _beside(statement, result, name, quantity, toys.NO_TOPICS),
        {"at the end": toys.number(result, name, later)},
    )


def _with(claim: Claim, controls: dict[str, Number]) -> Claim:
    return replace(claim, controls={**claim.controls, **controls})


# --- figures ----------------------------------------------------------------------------------------


def _figures(result: RecipeResult) -> "dict[str, Figure]":
    """Norms and the rotation of W_V with a curve for every seed, and attention with its rows apart."""
    from topic_probe.show.figures import attention_panels, training_panels

    columns: dict[str, Sequence[History]] = {}
    for name, setting in toys.trained_settings(result).items():
        pair = ", ".join(NAMES[part] for part in setting.pair)
        assert isinstance(setting.toy, ToyConfig)
        title = f"{pair}\nrate {setting.train.learning_rate:g}, noise {setting.toy.noise:g}"
        columns[title] = [one.history for one in _seeds(result, name)]
    return {"stages": training_panels(columns), "attention": attention_panels(columns)}


def _seeds(result: RecipeResult, name: str) -> list[Trained]:
    return [one for one in result.runs if one.setting.name == name and not one.setting.control]


RECIPE = Recipe(
    *listed("figure4"),
    source="Figure 4, Section 5.1",
    settings=SETTINGS,
    quick_settings=QUICK_SETTINGS,
    controls=(toys.NO_TOPICS, toys.UNTRAINED, toys.ATTENTION_FROZEN, VALUES_FROZEN, USUAL, LARGE),
    # Without the one that only shows where an argument ends.
    quick_controls=(toys.NO_TOPICS, toys.UNTRAINED, toys.ATTENTION_FROZEN, VALUES_FROZEN, USUAL),
    measure=toys.each_training(stages, attention, gradients, watch={"attention": word_attention}),
    claims=(_two_stages, _where_words_attend, _first_steps, _sensitivity, _first_gradients),
    figures=_figures,
)
