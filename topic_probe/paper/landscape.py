"""Appendix D.5: the loss over attention weights has its minimum where Theorem 3 says, in worlds of finite size too.

Theory alone, which checks the code and is no evidence, and one training beside it: keys and queries (regime *keys*)
with W_V frozen to Theorem 2's optimum, on long documents of two uniform topics, which is stage 2 as Section 5.3 has it.
With Adam attention is there after 200 steps. With SGD it is not within any time: its gradients are as small as those
of the second stage of Figure 4.

The interval of Theorem 3 is a limit for many topics, and wide: its upper end is thousands of times the optimum.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from topic_probe.paper import listed, toys
from topic_probe.paper.claims import Claim, Number
from topic_probe.paper.recipe import Recipe, RecipeResult, Run
from topic_probe.paper.training import SQ_ADAM, Setting, Trained, pair_setting
from topic_probe.toy import theory
from topic_probe.toy.landscape import LandscapeReport, attention_weights, measure_landscape
from topic_probe.toy.masking import Masking
from topic_probe.toy.world import World

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# (T, v, τ) -> the weighted mean of the best attention, from another minimisation than the one that is checked by it.
WORLDS = {
    (10, 10, 2): 5.763,
    (10, 10, 3): 7.005,
    (10, 10, 4): 7.716,
    (100, 10, 5): 26.18,
    (1000, 10, 20): 128.5,
}
TRAINED_WORLD = (10, 10, 2)

LONG_WORLD = World(topics_per_document=2, min_length=1000, max_length=1000)
_TRAINED = pair_setting(
    "keys", SQ_ADAM, 1_000, seconds=4.0, suffix=", long documents", world=LONG_WORLD, record_every=1
)
SETTINGS: tuple[Setting, ...] = (_TRAINED,)
QUICK_SETTINGS: tuple[Setting, ...] = (
    replace(_TRAINED, train=replace(_TRAINED.train, steps=200), seconds=0.8),
)


def measure(run: Run) -> RecipeResult:
    """The landscape of every world, and in one of them where training arrives."""
    trained = toys.each_training(_attention)(run)
    reports = ((_name(world), _landscape(world, trained.shown_runs)) for world in WORLDS)
    return run.result(reports, runs=trained.runs, tables=trained.tables)


def _attention(case: toys.Case) -> dict[str, float]:
    """What a toy attends to, from its weights alone, and Theorem 3's mean of it."""
    same_topic, same_word, mask = attention_weights(case.trained.model())
    mean = theory.weighted_mean(LONG_WORLD, alpha=same_topic, beta=same_word)
    return {
        "weighted mean": float(mean),
        "other words": same_topic,
        "same word": same_word,
        "[MASK] to itself": mask,
    }


def _name(world: tuple[int, int, int]) -> str:
    return "T = {}, v = {}, τ = {}".format(*world)


def _landscape(world: tuple[int, int, int], runs: tuple[Trained, ...]) -> LandscapeReport:
    n_topics, words_per_topic, topics_per_document = world
    trained = {run.setting.name: run.model() for run in runs} if world == TRAINED_WORLD else {}
    return measure_landscape(
        World(n_topics=n_topics, words_per_topic=words_per_topic, topics_per_document=topics_per_document),
        Masking(),
        trained=trained,
    )


def _minima(result: RecipeResult) -> Iterator[Claim]:
    """Constants of the theory against each other: what a reader may rely on where the theory is used."""
    for world in WORLDS:
        yield from _checks(world, result.of(LandscapeReport)[_name(world)])


def _checks(world: tuple[int, int, int], report: LandscapeReport) -> list[Claim]:
    best, (low, high) = report.optimum, report.bounds
    mean, setting = Number(best["weighted_mean"]), _name(world)
    where = f"at α = {best['alpha']:.4g}, β = {best['beta']:.4g}; loss {best['loss']:.5f}"
    uniform = report.points["uniform attention"]["loss"]
    return [
        Claim(
            text="Where the loss is smallest, (v − 1)/v · α + β/v lies in the interval of Theorem 3",
            paper="between λ1(τ − 1) and λ2 T",
            measured=mean,
            above=low,
            below=high,
            setting=setting,
            detail=f"{where}, that of uniform attention {uniform:.5f}",
            check=True,
        ),
        Claim(
            text="Words of the same topic get more attention than others there, more than uniform attention gives them",
            source="Theorem 3 and Section 5.3",
            paper="relatively large, compared to different-topic attention",
            measured=mean,
            above=1.0,
            setting=setting,
            check=True,
        ),
        Claim(
            text="The minimum is where another minimisation of the same loss found it (relative difference)",
            source="our own check; the paper prints no number",
            paper="no number",
            measured=Number(mean.value / WORLDS[world] - 1),
            above=-0.001,
            below=0.001,
            setting=setting,
            detail=f"{mean} and {WORLDS[world]}; under α = β {report.tied['weighted_mean']:.4g}",
            ours=True,
            check=True,
        ),
    ]


def _trained(result: RecipeResult) -> Iterator[Claim]:
    best = result.of(LandscapeReport)[_name(TRAINED_WORLD)].optimum["weighted_mean"]
    statement = Claim(
        text="Trained keys and queries find the optimum (their weighted mean of attention to words of the topic, "
        f"others being 1; within 15 % of the {best:.4g} of theory)",
        source="Section 5.3, stage 2",
        paper="optima closely track the actual convergence points",
        above=0.85 * best,
        below=1.15 * best,
    )
    for name in toys.trained_settings(result):
        three = ", ".join(
            f"{what} {toys.number(result, name, what).value:.3f}"
            for what in ("other words", "same word", "[MASK] to itself")
        )
        detail = (
            f"{three}; on documents of {LONG_WORLD.max_length} words, the landscape is that of endless ones"
        )
        yield toys.judged(statement, result, name, "weighted mean", toys.OF_TRAINING, detail=detail)


def _figures(result: RecipeResult) -> "dict[str, Figure]":
    """The landscape of the world that was trained in, and those of all worlds side by side."""
    from topic_probe.show.figures import landscape_panels, loss_landscape

    reports = result.of(LandscapeReport)
    ax = loss_landscape(reports[_name(TRAINED_WORLD)], title=_name(TRAINED_WORLD))
    return {"landscape": ax.get_figure(root=True), "worlds": landscape_panels(reports)}  # type: ignore[dict-item]


RECIPE = Recipe(
    *listed("landscape"),
    source="Appendix D.5, Theorem 3",
    settings=SETTINGS,
    quick_settings=QUICK_SETTINGS,
    controls=(toys.NO_TOPICS, toys.UNTRAINED),
    measure=measure,
    claims=(_minima, _trained),
    figures=_figures,
)
