"""Figure 4: two stages of training. First W_V grows under uniform attention, then W_K and W_Q under a level W_V.

Keys, queries and values are trained together from near-zero noise on one-hot embeddings (regime *two-stage*), on LDA
documents; their norms are recorded at every step. The paper does not say which hyperparameters its curves have, and
that common ones do not show the stages (Section 8.1). They show with squared loss and SGD at a rate of 20 to 30: W_V is
there within 20 steps and from then on turns at a constant norm, W_K and W_Q start at step 350 at a rate of 30 and
1,500 at 20. At lower rates there is less noise in W_V, and they start far later.

With cross-entropy and SGD only the first stage is as the paper has it. W_K and W_Q do stay near zero for 400 steps at a
rate of 3 while W_V grows 15-fold; but its optimal logits are so large that W_V goes on growing long after W_K and W_Q
have started. With Adam there is no first stage, because it moves every tensor at the same speed.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from topic_probe.paper.claims import Claim
from topic_probe.paper.recipe import Recipe, RecipeResult, Run
from topic_probe.paper.toys import each_training
from topic_probe.paper.training import (
    CE_ADAM,
    CE_SGD,
    NAMES,
    SQ_ADAM,
    SQ_SGD,
    Pair,
    Setting,
    Trained,
    pair_setting,
)
from topic_probe.train.history import History
from topic_probe.train.stages import DynamicsReport, measure_dynamics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = "Figure 4, Section 5.1"
FIRST_STAGE = 400
"""Steps of stage 1 in the paper."""


def _settings(
    pair: Pair, steps: int, *, rate: float, noise: float, seeds: int, seconds: float
) -> list[Setting]:
    suffix = f", rate {rate:g}, noise {noise:g}"
    base = pair_setting(
        "two-stage",
        pair,
        steps,
        seconds=seconds,
        suffix=suffix,
        learning_rate=rate,
        noise=noise,
        record_every=1,
    )
    return [replace(base.shifted(seed), name=f"{base.name}, seed {seed}") for seed in range(seeds)]


SETTINGS: tuple[Setting, ...] = (
    *_settings(SQ_SGD, 1_000, rate=30.0, noise=0.01, seeds=3, seconds=1.0),
    *_settings(SQ_SGD, 1_000, rate=30.0, noise=0.003, seeds=2, seconds=1.0),
    *_settings(SQ_SGD, 3_000, rate=20.0, noise=0.01, seeds=2, seconds=3.0),
    *_settings(CE_SGD, 1_000, rate=3.0, noise=0.01, seeds=2, seconds=1.0),
    *_settings(CE_ADAM, 1_000, rate=0.01, noise=0.01, seeds=1, seconds=1.0),
    *_settings(SQ_ADAM, 1_000, rate=0.01, noise=0.01, seeds=1, seconds=1.0),
)
QUICK_SETTINGS: tuple[Setting, ...] = (
    *_settings(SQ_SGD, 600, rate=30.0, noise=0.01, seeds=2, seconds=1.0),
    *_settings(CE_SGD, 700, rate=3.0, noise=0.01, seeds=1, seconds=1.0),
    *_settings(CE_ADAM, 300, rate=0.01, noise=0.01, seeds=1, seconds=0.4),
)


def _dynamics(trained: Trained, _: Run) -> DynamicsReport:
    return measure_dynamics(trained.history)


def _two_stages(result: RecipeResult) -> Iterator[Claim]:
    """Both stages, where the paper's picture appears."""
    for trained in result.runs:
        if trained.setting.pair == SQ_SGD:
            yield from _stages(trained.setting.name, result.of(DynamicsReport)[trained.setting.name])


def _first_stage(result: RecipeResult) -> Iterator[Claim]:
    """Stage 1, where it is the only one that is as the paper has it."""
    for trained in result.runs:
        if trained.setting.pair == CE_SGD:
            yield from _first_steps(trained)


def _sensitivity(result: RecipeResult) -> Iterator[Claim]:
    reports = result.of(DynamicsReport)
    others = [one.setting.name for one in result.runs if one.setting.pair != SQ_SGD]
    without = [name for name in others if not reports[name].two_stage[0]]
    if others:
        yield Claim(
            text="Whether there are two stages depends on the hyperparameters (number of other settings without them)",
            source="Section 8.1",
            paper="not usually visible with common hyperparameters",
            measured=float(len(without)),
            above=0.0,
            setting="all others",
            detail="; ".join(f"{name}: {reports[name].reasons[0]}" for name in without),
        )


def _stages(name: str, report: DynamicsReport) -> list[Claim]:
    start, flat = min(report.key_start[0], report.query_start[0]), report.value_flat[0]
    return [
        Claim(
            text="Two stages: W_V is flat before W_K and W_Q start (steps between the two)",
            source=SOURCE,
            paper="stage 1 until step 400, then stage 2",
            measured=float(start - flat) if report.two_stage[0] else float("nan"),
            above=0.0,
            setting=name,
            detail=report.reasons[0]
            or f"W_V starts at step {report.value_start[0]:.0f} and is flat from {flat:.0f} on, W_K and W_Q start at "
            f"{report.key_start[0]:.0f} and {report.query_start[0]:.0f}",
        ),
        Claim(
            text="In stage 1 the norm of W_V increases significantly (norm when W_K or W_Q starts ÷ at the beginning)",
            source=SOURCE,
            paper="increases significantly",
            measured=float(report.value_growth[0]),
            above=2.0,
            setting=name,
        ),
        Claim(
            text="In stage 2 the norm of W_V stays flat (norm at the end ÷ when W_K or W_Q starts)",
            source=SOURCE,
            paper="relatively flat",
            measured=float(report.late_value_growth[0]),
            above=0.75,
            below=1.25,
            setting=name,
        ),
        Claim(
            text="In stage 2 W_V goes on turning (mean of (1 − cosine)/2 between W_V and W_V ten steps before)",
            source="Section 8.1",
            paper="non-vanishing changes at a constant norm",
            measured=float(report.late_rotation[0]),
            above=0.001,
            setting=name,
        ),
    ]


def _first_steps(trained: Trained) -> list[Claim]:
    history = trained.history
    until = history.steps <= FIRST_STAGE
    change = {
        name: norm[until] / norm[0] for name, norm in history.norms.items() if name in ("W_K", "W_Q", "W_V")
    }
    moved = max(float((change[name] - 1).abs().max()) for name in ("W_K", "W_Q"))
    return [
        Claim(
            text=f"W_K and W_Q stay where they are for {FIRST_STAGE} steps (largest relative change of a norm)",
            source=SOURCE,
            paper="stay close to 0",
            measured=moved,
            below=0.08,
            setting=trained.setting.name,
        ),
        Claim(
            text=f"W_V grows meanwhile (norm at step {FIRST_STAGE} ÷ at the beginning)",
            source=SOURCE,
            paper="increases significantly",
            measured=float(change["W_V"][-1]),
            above=10.0,
            setting=trained.setting.name,
        ),
    ]


def _figures(result: RecipeResult) -> "dict[str, Figure]":
    """Norms and the rotation of W_V, a column for every choice of hyperparameters and a curve for every seed."""
    from topic_probe.show.figures import training_panels

    columns: dict[str, list[History]] = {}
    for trained in result.runs:
        pair = ", ".join(NAMES[part] for part in trained.setting.pair)
        rate, noise = trained.setting.train.learning_rate, trained.setting.toy.noise
        columns.setdefault(f"{pair}\nrate {rate:g}, noise {noise:g}", []).append(trained.history)
    return {"stages": training_panels(columns)}


RECIPE = Recipe(
    name="figure4",
    title="two stages of training",
    source=SOURCE,
    settings=SETTINGS,
    quick_settings=QUICK_SETTINGS,
    measure=each_training(_dynamics),
    claims=(_two_stages, _first_stage, _sensitivity),
    figures=_figures,
)
