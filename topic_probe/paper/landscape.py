"""Appendix D.5: the loss over attention weights has its minimum where Theorem 3 says, in worlds of finite size too.

Theory alone, and one training beside it: keys and queries (regime *keys*) with W_V frozen to Theorem 2's optimum, on
long documents of two uniform topics, which is stage 2 as Section 5.3 has it. With Adam attention is there after 300
steps. With SGD it is not within any time: its gradients are as small as those of the second stage of Figure 4.

The interval of Theorem 3 is a limit for many topics, and wide: its upper end is thousands of times the optimum.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from topic_probe.paper.claims import Claim
from topic_probe.paper.recipe import Recipe, RecipeResult, Run
from topic_probe.paper.training import SQ_ADAM, Setting, Trained, pair_setting, train_all
from topic_probe.toy.landscape import LandscapeReport, measure_landscape
from topic_probe.toy.masking import Masking
from topic_probe.toy.world import World

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = "Appendix D.5, Theorem 3"

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
    replace(_TRAINED, train=replace(_TRAINED.train, steps=300), seconds=1.2),
)


def measure(run: Run) -> RecipeResult:
    """The landscape of every world, and in one of them where training arrives."""
    runs = train_all(run.settings, folder=run.folder, progress=run.progress)
    return run.result(((_name(world), _landscape(world, runs)) for world in WORLDS), runs=runs)


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
    for world in WORLDS:
        yield from _claims(world, result.of(LandscapeReport)[_name(world)])


def _trained(result: RecipeResult) -> Iterator[Claim]:
    report = result.of(LandscapeReport)[_name(TRAINED_WORLD)]
    for one in result.runs:
        yield _trained_claim(one.setting.name, report)


def _claims(world: tuple[int, int, int], report: LandscapeReport) -> list[Claim]:
    best, (low, high) = report.optimum, report.bounds
    where = f"at α = {best['alpha']:.4g}, β = {best['beta']:.4g}; loss {best['loss']:.5f}"
    uniform = report.points["uniform attention"]["loss"]
    return [
        Claim(
            text="Where the loss is smallest, (v − 1)/v · α + β/v lies in the interval of Theorem 3",
            source=SOURCE,
            paper="between λ1(τ − 1) and λ2 T",
            measured=best["weighted_mean"],
            above=low,
            below=high,
            setting=_name(world),
            detail=f"{where}, that of uniform attention {uniform:.5f}",
        ),
        Claim(
            text="Words of the same topic get more attention than others there, more than uniform attention gives them",
            source="Theorem 3 and Section 5.3",
            paper="relatively large, compared to different-topic attention",
            measured=best["weighted_mean"],
            above=1.0,
            setting=_name(world),
        ),
        Claim(
            text="The minimum is where another minimisation of the same loss found it (relative difference)",
            source="our own check; the paper prints no number",
            paper="no number",
            measured=best["weighted_mean"] / WORLDS[world] - 1,
            above=-0.001,
            below=0.001,
            setting=_name(world),
            detail=f"{best['weighted_mean']:.4g} and {WORLDS[world]}; under α = β {report.tied['weighted_mean']:.4g}",
        ),
    ]


def _trained_claim(name: str, report: LandscapeReport) -> Claim:
    point = report.points[name]
    return Claim(
        text="Trained keys and queries find it (their weighted mean ÷ that of the optimum)",
        source="Section 5.3, stage 2",
        paper="close to the optimum",
        measured=point["weighted_mean"] / report.optimum["weighted_mean"],
        above=0.85,
        below=1.15,
        setting=name,
        detail=f"other words of the topic {point['same_topic']:.3f}, same word {point['same_word']:.3f}, [MASK] to "
        f"itself {point['beta']:.3f}; on documents of {LONG_WORLD.max_length} words, the landscape is that of endless "
        "ones",
    )


def _figures(result: RecipeResult) -> "dict[str, Figure]":
    """The landscape of the world that was trained in, and those of all worlds side by side."""
    from topic_probe.show.figures import landscape_panels, loss_landscape

    reports = result.of(LandscapeReport)
    ax = loss_landscape(reports[_name(TRAINED_WORLD)], title=_name(TRAINED_WORLD))
    return {"landscape": ax.get_figure(root=True), "worlds": landscape_panels(reports)}  # type: ignore[dict-item]


RECIPE = Recipe(
    name="landscape",
    title="the loss over attention weights, and where it is smallest",
    source=SOURCE,
    settings=SETTINGS,
    quick_settings=QUICK_SETTINGS,
    measure=measure,
    claims=(_minima, _trained),
    figures=_figures,
)
