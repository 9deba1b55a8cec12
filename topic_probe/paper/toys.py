"""What the recipes of toys share: how trainings are measured, and the claims and figures that several of them have."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import log, nan
from typing import TYPE_CHECKING, Any

from topic_probe.contrast import Contrast
from topic_probe.paper.claims import Claim, interval_of
from topic_probe.paper.recipe import RecipeResult, Run
from topic_probe.paper.training import NAMES, PAIRS, Trained, train_all
from topic_probe.report import Report
from topic_probe.toy.agreement import AgreementReport, measure_agreement
from topic_probe.toy.model import ToyConfig
from topic_probe.train.history import History

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EVALUATION_SEED = 1000
"""Of the fresh documents that trained toys are measured on; no training uses it."""

# --- measuring --------------------------------------------------------------------------------------


def each_training(*measures: Callable[[Trained, Run], Report | None]) -> Callable[[Run], RecipeResult]:
    """The ``measure`` of a recipe that trains its settings, and measures each in these ways.

    A way of measuring gives None for a setting that it does not look at.
    """

    def measure(run: Run) -> RecipeResult:
        runs = train_all(run.settings, folder=run.folder, progress=run.progress)
        reports = ((trained.setting.name, one(trained, run)) for one in measures for trained in runs)
        return run.result(((name, report) for name, report in reports if report is not None), runs=runs)

    return measure


def agreement(trained: Trained, run: Run) -> AgreementReport:
    """A trained toy beside theory, on fresh documents that are the same for all of them."""
    words = 25_000 if run.quick else 125_000
    return measure_agreement(
        trained.model(),
        loss=trained.setting.train.loss,
        n_documents=max(10, words // trained.setting.world.max_length),
        attention=False,
        seed=EVALUATION_SEED,
    )


# --- claims -----------------------------------------------------------------------------------------


def block_claim(what: str, contrast: Contrast, *, setting: str, source: str) -> Claim:
    """Entries between different words of one topic are larger than those between topics, beyond doubt."""
    low, high = interval_of(contrast)
    return Claim(
        text=f"{what} has a block for every topic: other words of the same topic − different topics, lower end of the "
        "interval",
        source=source,
        paper="blocks",
        measured=low,
        above=0.0,
        setting=setting,
        detail=f"difference {float(contrast.difference):.4f} [{low:.4f}, {high:.4f}]; {means(contrast)}",
    )


def means(contrast: Contrast) -> str:
    """The three means of a contrast as text."""
    return (
        f"same word {float(contrast.same_word):.4f}, other words of the topic {float(contrast.same_topic):.4f}, "
        f"different topics {float(contrast.different_topic):.4f}"
    )


def late_improvement(history: History) -> float:
    """How much of the whole improvement over guessing the last tenth of a training brought; near 0 once it converged.

    From mean losses over the last tenth of the rows and over the tenth before. NaN if there is no improvement.
    """
    tenth = max(1, len(history) // 10)
    last, before = float(history.loss[-tenth:].mean()), float(history.loss[-2 * tenth : -tenth].mean())
    assert isinstance(history.toy, ToyConfig)
    n = history.toy.world.n_words
    guess = log(n) if history.train.loss == "cross_entropy" else 1 - 1 / n
    return (before - last) / (guess - last) if guess > last else nan


def converged(result: RecipeResult) -> list[Claim]:
    """Every training went on until nothing changed any more."""
    text = "Training has converged: its last tenth brought almost none of the improvement over guessing"
    statement = Claim(text, result.source, "convergence point")
    if result.quick:
        reason = "the quick variant stops early, and takes larger steps with SGD"
        return [replace(statement, setting="all", not_checked=reason)]
    return [
        replace(
            statement,
            measured=late_improvement(trained.history) if trained.history.stopped == "finished" else nan,
            above=-0.02,
            below=0.02,
            setting=trained.setting.name,
            detail=f"{trained.setting.train.steps:,} steps at a rate of {trained.setting.train.learning_rate:g}, "
            f"{trained.seconds:.0f} s; {trained.history.stopped}",
        )
        for trained in result.runs
    ]


def little_loss(limited: str, free: str, source: str) -> Callable[[RecipeResult], Iterator[Claim]]:
    """Claims that a regime with less to train loses only little, for every pair that both were trained with.

    Once as the paper words it, and once on a scale where guessing is 0. There uniform attention may cost much, as much
    as theory says: with squared loss its floor has 0.38 of what attention to the topics can gain.
    """
    slightly = Claim(
        text=f"The loss of {limited} is only slightly above that of {free} (relative difference)",
        source=source,
        paper="only slightly greater",
    )

    def claims(result: RecipeResult) -> Iterator[Claim]:
        agreements = result.of(AgreementReport)
        for loss, optimizer in PAIRS:
            pair = f"{NAMES[loss]}, {NAMES[optimizer]}"
            few, many = (agreements.get(f"{regime}, {pair}") for regime in (limited, free))
            if few is not None and many is not None:
                yield replace(
                    slightly,
                    measured=few.loss / many.loss - 1,
                    above=-0.05,
                    below=0.1,
                    setting=pair,
                    detail=f"{few.regime} {few.loss:.4f} ± {few.loss_error:.4f}, {many.regime} {many.loss:.4f} ± "
                    f"{many.loss_error:.4f}; guessing {many.guess:.4f}, best possible {many.bayes:.4f}",
                )
                yield _share_of_the_gain(few, many, setting=pair)
        if result.quick:
            reason = "the quick variant stops SGD before its loss is level"
            yield replace(slightly, setting="SGD", not_checked=reason)

    return claims


def _share_of_the_gain(few: AgreementReport, many: AgreementReport, *, setting: str) -> Claim:
    share_of_floors = (few.guess - few.floor) / (many.guess - many.floor)
    return Claim(
        text=f"Where guessing is 0, {few.regime} keeps as much of what {many.regime} gains as their floors allow "
        "(share; at least nine tenths of the share of the floors)",
        source="our scale: under squared loss even guessing is within 10 % of the best",
        paper="no number",
        measured=(few.guess - few.loss) / (many.guess - many.loss),
        above=0.9 * share_of_floors,
        below=1.2,
        setting=setting,
        detail=f"on long documents {few.regime} cannot get below {few.floor:.4f}, {many.regime} not below "
        f"{many.floor:.4f}: uniform attention does not know which word is shown",
    )


# --- figures ----------------------------------------------------------------------------------------


def blocks_and_losses(
    kind: type[Report], title: str, **chosen: Any
) -> "Callable[[RecipeResult], dict[str, Figure]]":
    """The ``figures`` of a recipe: a heat map for every report of a kind, and the losses of all trainings.

    ``chosen`` is which matrix of a report is drawn.
    """

    def figures(result: RecipeResult) -> "dict[str, Figure]":
        from topic_probe.show.figures import block_panels, loss_curve
        from topic_probe.show.style import panels

        # With guessing, the best possible, and the floor of the regime.
        floors = result.of(AgreementReport)
        curves = [
            partial(loss_curve, one.history, floors=floors.get(one.setting.name), title=one.setting.name)
            for one in result.runs
        ]
        blocks = block_panels(result.of(kind), title=title, **chosen)
        return {"blocks": blocks, "losses": panels(curves, columns=4, size=(4.2, 3.0))}

    return figures
