"""What the recipes of toys share: how trainings are measured, where claims must fail, and claims that several have.

Every number is measured of every seed of a setting, and of the controls beside it; the table ``numbers`` of a result
has a row for each, and claims read nothing else.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log, nan
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float64

from topic_probe.contrast import PairSums
from topic_probe.paper.claims import Claim, Number, over_seeds
from topic_probe.paper.recipe import CONTROL_SEEDS, RecipeResult, Run
from topic_probe.paper.training import NAMES, PAIRS, Control, Setting, Trained, train_all
from topic_probe.report import Report
from topic_probe.topics import Topics
from topic_probe.toy.agreement import AgreementReport, measure_agreement
from topic_probe.toy.model import Rule, ToyConfig
from topic_probe.toy.word_attention import word_attention
from topic_probe.toy.world import World
from topic_probe.train.history import History
from topic_probe.train.toy import Measure
from topic_probe.uncertainty import divide

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EVALUATION_SEED = 1000
"""Of the fresh documents that trained toys are measured on; no training uses it."""

# --- where claims must fail -------------------------------------------------------------------------


def without_topics(world: World) -> World:
    """The same words as often and in documents as long, but in no document rather together than in another."""
    return replace(world, alpha=None, topics_per_document=world.n_topics)


def _no_topics(setting: Setting) -> Setting:
    return replace(setting, train=replace(setting.train, world=without_topics(setting.world)))


def of_steps(setting: Setting, steps: int) -> Setting:
    """The same for another number of steps."""
    return replace(setting, train=replace(setting.train, steps=steps))


def frozen(*tensors: str, name: str) -> Control:
    """A control in which these tensors keep the value that the toy begins with."""

    def freeze(setting: Setting) -> Setting | None:
        toy = setting.toy
        assert isinstance(toy, ToyConfig)
        trained = tuple(one for one in toy.trained_tensors if one not in tensors)
        if trained == toy.trained_tensors or not trained:
            return None
        stay: dict[str, Rule] = {one: "random" for one in toy.trained_tensors if one in tensors}
        phases = ((n, tuple(one for one in moved if one in trained)) for n, moved in setting.train.schedule)
        return replace(
            setting,
            toy=replace(toy, trained=trained, frozen={**toy.frozen, **stay}),
            train=replace(setting.train, schedule=tuple((n, moved) for n, moved in phases if moved)),
        )

    return Control(name, train=freeze)


N_SHUFFLES = 20
"""Of labels. A shuffle leaves every tenth pair of a topic together; where attention within topics is many times that
between them, these few decide its ratio, and the next ones decide otherwise."""


def shuffles(topics: Topics) -> list[Topics]:
    """Topics of the same sizes, of words at random."""
    return [topics.shuffled(EVALUATION_SEED + number) for number in range(N_SHUFFLES)]


NO_TOPICS = Control("no topics", train=_no_topics)
ATTENTION_FROZEN = frozen("W_K", "W_Q", "b_K", "b_Q", name="attention frozen")
UNTRAINED = Control("untrained", train=lambda setting: of_steps(setting, 0))
A_TENTH = Control("a tenth of the steps", train=lambda setting: of_steps(setting, setting.train.steps // 10))
SHUFFLED = Control("shuffled labels", topics=shuffles)

# --- measuring --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Case:
    """A toy as it is measured: trained as its setting says, or broken as a control says.

    Attributes:
        trained: The training.
        topics: What is taken for the topics of its words.
        quick: Whether the variant is quick.
    """

    trained: Trained
    topics: Topics
    quick: bool

    @property
    def setting(self) -> Setting:
        """What was trained."""
        return self.trained.setting


def each_training(
    *measures: Callable[[Case], Mapping[str, float]],
    of_labels: Sequence[Callable[[Case], Mapping[str, float]]] = (),
    reports: Sequence[Callable[[Case], Report | None]] = (),
    watch: Mapping[str, Measure] | None = None,
) -> Callable[[Run], RecipeResult]:
    """The ``measure`` of a recipe that trains its settings with every seed, and measures each in these ways.

    Args:
        *measures: Numbers by name, of every seed and every control that is trained. One that means nothing is NaN.
        of_labels: Further ones, which depend on what the topics are and so are measured with other labels, too.
        reports: Reports of the first seed of every setting, for figures; None for a setting that has none.
        watch: What is measured while they are trained, at the steps that the settings say (`train_toys`).
    """

    def measure(run: Run) -> RecipeResult:
        runs = train_all(run.trainings, folder=run.folder, progress=run.progress, watch=watch)
        rows = [
            {"setting": one.setting.name, "control": control, "seed": one.setting.seed, **numbers}
            for one in runs
            for control, numbers in _measured(one, run, measures, of_labels)
        ]
        first = [Case(one, one.setting.topics, run.quick) for one in runs if one.setting in run.settings]
        made = ((case.setting.name, make(case)) for make in reports for case in first)
        kept = [(name, report) for name, report in made if report is not None]
        return run.result(kept, runs=runs, tables={"numbers": rows})

    return measure


def _measured(
    one: Trained,
    run: Run,
    measures: Sequence[Callable[[Case], Mapping[str, float]]],
    of_labels: Sequence[Callable[[Case], Mapping[str, float]]],
) -> Iterator[tuple[str, dict[str, float | None]]]:
    """The numbers of a training, and where it is no control, those that depend on labels with other labels."""
    own = one.setting.topics
    yield one.setting.control, _typical_numbers([Case(one, own, run.quick)], (*measures, *of_labels))
    if not one.setting.control and one.setting.seed < run.settings[0].seed + CONTROL_SEEDS:
        for control in run.controls:
            if control.topics is not None:
                cases = [Case(one, topics, run.quick) for topics in control.topics(own)]
                yield control.name, _typical_numbers(cases, of_labels)


def _typical_numbers(
    cases: Sequence[Case], measures: Sequence[Callable[[Case], Mapping[str, float]]]
) -> dict[str, float | None]:
    """Plain values for a table, medians over the cases; None in place of a number that is undefined."""
    every = [{name: value for measure in measures for name, value in measure(case).items()} for case in cases]
    # Of ratios the mean says too much: where few words are most of the text, one draw in ten is far above the others.
    typical = {name: float(np.median([found[name] for found in every])) for name in every[0]}
    return {name: value if np.isfinite(value) else None for name, value in typical.items()}


def agreement(case: Case) -> AgreementReport:
    """A toy beside theory, on fresh documents that are the same for all of them, controls included."""
    words, toy = 4_000 if case.quick else 25_000, case.setting.toy
    assert isinstance(toy, ToyConfig)
    return measure_agreement(
        case.trained.model(),
        loss=case.setting.train.loss,
        n_documents=max(10, words // toy.world.max_length),
        seed=EVALUATION_SEED,
    )


def losses(case: Case) -> dict[str, float]:
    """The loss on fresh documents, its gain over guessing ÷ that of the regime's floor, and distances to theory."""
    report, late = agreement(case), late_improvement(case.trained.history)
    gain, possible = report.guess - report.loss, report.guess - report.floor
    return {
        "loss": report.loss,
        "guess": report.guess,
        "floor": report.floor,
        "best possible": report.bayes,
        "gain": gain / possible,
        "late improvement": late,
        "distance to the optima": report.family_distance,
        "distance to Theorem 2": report.value_distance,
        "worst residual": report.worst_residual,
    }


def late_improvement(history: History) -> float:
    """How much of the whole improvement over guessing the last tenth of a training brought; near 0 once it converged.

    From mean losses over the last tenth of the rows and over the tenth before. NaN if there is no improvement, and for
    a training that did not come to its end.
    """
    tenth = max(1, len(history) // 10)
    last, before = float(history.loss[-tenth:].mean()), float(history.loss[-2 * tenth : -tenth].mean())
    assert isinstance(history.toy, ToyConfig)
    n = history.toy.world.n_words
    guess = log(n) if history.train.loss == "cross_entropy" else 1 - 1 / n
    return (before - last) / (guess - last) if guess > last and history.stopped == "finished" else nan


def between_words(case: Case) -> dict[str, float]:
    """Attention between words, uniform attention being 1, and how large W_K and W_Q have become.

    ``weighted mean`` is Theorem 3's (v − 1)/v · α + β/v, with α and β relative to other topics; ``other words`` is α.
    ``change of attention`` is how far from 1 either is: all three means rise where words only turn away from [MASK].
    """
    seen = word_attention(case.trained.model(), topics=case.topics)
    relations = ("same_word", "same_topic", "different_topic")
    v, norms = case.setting.world.words_per_topic, case.trained.history.norms
    pooled = ((v - 1) * seen["same_topic"] + seen["same_word"]) / v
    shown = (*relations, "mask_to_word", "mask_to_mask")
    return {
        **{f"attention, {name.replace('_', ' ')}": seen[name] for name in shown},
        "weighted mean": float(divide(np.float64(pooled), np.float64(seen["different_topic"]))),
        "other words": float(divide(np.float64(seen["same_topic"]), np.float64(seen["different_topic"]))),
        "change of attention": max(abs(seen[name] / seen["different_topic"] - 1) for name in relations[:2]),
        "‖W_K‖": float(norms["W_K"][-1]),
        "‖W_Q‖": float(norms["W_Q"][-1]),
    }


ROUNDING = 1e-12
"""What two means of equal numbers may differ by, in units of these."""


def blocks(matrix: Float64[np.ndarray, "token token"], topics: Topics) -> dict[str, float]:
    """How far the entries of a matrix between tokens form a block for every topic; its diagonal is left out.

    * ``own topic first``: for what share of words the mean entry with other words of the topic is above that with the
      words of every other topic. 1 is a block for every topic, 1/T none at all.
    * ``effect size``: the difference between entries within topics and between topics, in standard deviations of both.
    * ``same word``, ``same topic``, ``different topics``: the three means.
    """
    tokens = topics.labels(torch.arange(len(matrix))).numpy()
    words = tokens >= 0
    entries, own = matrix[np.ix_(words, words)], tokens[words]
    itself = np.eye(len(own), dtype=bool)
    of_topic = own[:, None] == np.arange(topics.n_topics)
    means = divide((entries * ~itself) @ of_topic, (~itself).astype(np.float64) @ of_topic)
    inside, outside = (np.where(part, means, -np.inf).max(axis=1) for part in (of_topic, ~of_topic))
    first = inside - outside > ROUNDING * np.abs(means).max(axis=1)
    together = own[:, None] == own
    relations = itself, together & ~itself, ~together
    sums, counts = (
        np.array([part[chosen].sum() for chosen in relations]) for part in (entries, np.ones_like(entries))
    )
    contrast = PairSums(sums, counts, np.asarray(np.square(entries[~itself]).sum())).contrast()
    return {
        "own topic first": float(first.mean()),
        "effect size": float(contrast.effect_size),
        "same word": float(contrast.same_word),
        "same topic": float(contrast.same_topic),
        "different topics": float(contrast.different_topic),
    }


# --- claims -----------------------------------------------------------------------------------------


def by_seed(result: RecipeResult, setting: str, quantity: str, control: str = "") -> dict[int, float]:
    """A quantity of a setting, or of one of its controls, for every seed; NaN where it is undefined."""
    rows = (row for row in result.tables["numbers"] if (row["setting"], row["control"]) == (setting, control))
    values = ((row["seed"], row.get(quantity)) for row in rows)
    return {seed: nan if value is None else value for seed, value in values}


def number(result: RecipeResult, setting: str, quantity: str, control: str = "") -> Number:
    """A quantity of a setting over its seeds, or of one of its controls; undefined if nobody measured it."""
    return over_seeds(list(by_seed(result, setting, quantity, control).values()))


def judged(
    statement: Claim,
    result: RecipeResult,
    setting: str,
    quantity: str,
    controls: Iterable[str],
    **changes: Any,
) -> Claim:
    """A statement about a quantity of a setting, with the same quantity of those of its controls that there are."""
    return replace(
        statement,
        setting=setting,
        measured=number(result, setting, quantity),
        controls={
            name: number(result, setting, quantity, name)
            for name in controls
            if by_seed(result, setting, quantity, name)
        },
        **changes,
    )


def trained_settings(result: RecipeResult) -> dict[str, Setting]:
    """What was trained and is no control, by name."""
    return {one.setting.name: one.setting for one in result.runs if not one.setting.control}


OF_LABELS = (NO_TOPICS.name, UNTRAINED.name, SHUFFLED.name)
"""Controls of claims about what belongs to which topic."""

OF_TRAINING = (NO_TOPICS.name, UNTRAINED.name)
"""Controls of claims that no labels go into."""


ABOVE_UNIFORM, OF_ALL_WORDS = 1.1, 0.9
"""What claims ask of ratios of attention, and of shares of words."""

NEAR_OPTIMA = Claim(
    text="W_V is near the optima under uniform attention (Frobenius distance to the nearest ÷ its norm)",
    source="Lemma 1",
    paper="0 on infinitely long documents",
    below=0.25,
)


def block_statement(matrix: str, source: str = "") -> Claim:
    """That a matrix has the blocks that `blocks` looks for, before anything was measured."""
    return Claim(
        text=f"{matrix} has a block for every topic (share of words whose mean entry with other words of their "
        "topic is above that with the words of every other topic; chance is 1/T)",
        source=source,
        paper="block-wise pattern",
        above=OF_ALL_WORDS,
    )


def block_claims(
    matrix: str, *, reasons: Mapping[str, str] | None = None
) -> Callable[[RecipeResult], Iterator[Claim]]:
    """A block for every topic in every setting that has the numbers of `blocks`; ``reasons`` say why where not."""

    def claims(result: RecipeResult) -> Iterator[Claim]:
        statement = block_statement(matrix)
        for name in trained_settings(result):
            if was_measured(result, name, "own topic first"):
                three = ", ".join(
                    f"{what} {number(result, name, what).value:.4f}"
                    for what in ("same word", "same topic", "different topics")
                )
                detail = f"effect size {number(result, name, 'effect size')}; means: {three}"
                why = (reasons or {}).get(name, "")
                yield judged(statement, result, name, "own topic first", OF_LABELS, detail=detail, reason=why)

    return claims


def was_measured(result: RecipeResult, setting: str, quantity: str) -> bool:
    """Whether there are numbers of a quantity of a setting."""
    rows = (row for row in result.tables["numbers"] if row["setting"] == setting)
    return any(quantity in row for row in rows)


def convergence(reasons: Mapping[str, str] | None = None) -> Callable[[RecipeResult], Iterator[Claim]]:
    """Every training arrived at the best that its regime can do, and nothing changed any more."""

    def claims(result: RecipeResult) -> Iterator[Claim]:
        arrived = Claim(
            text="Training has converged to the best of its regime (gain over guessing ÷ gain of the regime's floor)",
            paper="convergence point",
            above=0.9,
        )
        level = Claim(
            text="Its last tenth brought almost none of the improvement over guessing",
            source="our own check of convergence",
            paper="convergence point",
            above=-0.02,
            below=0.02,
            ours=True,
        )
        if result.quick:
            reason = "the quick variant stops early, and takes larger steps with SGD"
            yield replace(arrived, setting="all", not_checked=reason)
            return
        for name, setting in trained_settings(result).items():
            train = setting.train
            detail = f"{train.steps:,} steps at a rate of {train.learning_rate:g}"
            yield judged(
                arrived,
                result,
                name,
                "gain",
                OF_TRAINING,
                detail=detail,
                reason=(reasons or {}).get(name, ""),
            )
            yield judged(level, result, name, "late improvement", (A_TENTH.name,), detail=detail)

    return claims


def little_loss(
    limited: str, free: str, source: str, reasons: Mapping[str, str] | None = None
) -> Callable[[RecipeResult], Iterator[Claim]]:
    """Claims that a regime with less to train loses only little, for every pair that both were trained with.

    On a scale where guessing is 0 and the regime in which more is trained is 1: under squared loss even a guess has a
    loss that is within a tenth of the best. It says nothing where the freer regime was hardly trained, so it has no
    number then.
    """
    slightly = Claim(
        text=f"The loss of {limited} is only slightly above that of {free} (gain over guessing ÷ the gain of {free})",
        source=source,
        paper="only slightly greater",
        above=0.8,
        below=1.2,
    )

    def claims(result: RecipeResult) -> Iterator[Claim]:
        known = trained_settings(result)
        for loss, optimizer in PAIRS:
            pair = f"{NAMES[loss]}, {NAMES[optimizer]}"
            few, many = f"{limited}, {pair}", f"{free}, {pair}"
            if few not in known or many not in known:
                continue
            yield replace(
                slightly,
                setting=pair,
                measured=_share_of_gain(result, few, many),
                controls={name: _share_of_gain(result, few, many, name) for name in OF_TRAINING},
                detail=f"{limited} {number(result, few, 'loss')}, {free} {number(result, many, 'loss')}, guessing "
                f"{number(result, many, 'guess').value:.4g}, floors {number(result, few, 'floor').value:.4g} and "
                f"{number(result, many, 'floor').value:.4g}",
                reason=(reasons or {}).get(pair, ""),
            )

    return claims


def attention_is_trained(
    reasons: Mapping[str, str] | None = None,
) -> Callable[[RecipeResult], Iterator[Claim]]:
    """Attention between words is no longer uniform, wherever keys and queries are trained."""

    def claims(result: RecipeResult) -> Iterator[Claim]:
        statement = Claim(
            text="Attention between words is trained, too (same word or same topic ÷ different topics, whichever is "
            "further from 1: how far)",
            source="needed for the claim to be about a model in which all of it is trained",
            paper="all components are trained",
            above=0.1,
            ours=True,
        )
        for name, setting in trained_settings(result).items():
            assert isinstance(setting.toy, ToyConfig)
            if "W_K" in setting.toy.trained_tensors:
                controls, why = (UNTRAINED.name, ATTENTION_FROZEN.name), (reasons or {}).get(name, "")
                norms = keys_and_queries(result, name)
                yield judged(
                    statement, result, name, "change of attention", controls, detail=norms, reason=why
                )

    return claims


def keys_and_queries(result: RecipeResult, name: str) -> str:
    """The norms of W_K and W_Q, untrained and trained."""
    return ", ".join(
        f"‖{of}‖ {number(result, name, f'‖{of}‖', UNTRAINED.name).value:.3g} → "
        f"{number(result, name, f'‖{of}‖').value:.3g}"
        for of in ("W_K", "W_Q")
    )


HALF_TRAINED = 0.5
"""What a regime must have gained of what its floor allows for another to be compared with it."""


def _share_of_gain(result: RecipeResult, few: str, many: str, control: str = "") -> Number:
    """Of the freer regime's mean gain, what the other has with every seed."""
    gained = number(result, many, "gain").value
    whole = number(result, many, "guess").value - number(result, many, "loss").value
    rows = [row for row in result.tables["numbers"] if (row["setting"], row["control"]) == (few, control)]
    enough = gained > HALF_TRAINED
    return over_seeds([(row["guess"] - row["loss"]) / whole if enough else nan for row in rows])


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
            for one in result.shown_runs
        ]
        blocks = block_panels(result.of(kind), title=title, **chosen)
        return {"blocks": blocks, "losses": panels(curves, columns=4, size=(4.2, 3.0))}

    return figures
