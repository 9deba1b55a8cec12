"""Trainings of toys as rows of a table, what is broken in them, and the numbers of a trained toy."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from topic_probe.contrast import PairSums
from topic_probe.estimate import divide
from topic_probe.paper.claims import Claim, wanted_controls
from topic_probe.paper.recipe import Measured, Rows, Run, array_name
from topic_probe.topics import Topics
from topic_probe.toy.agreement import measure_agreement
from topic_probe.toy.model import ToyConfig, build_toy, toy_tensors
from topic_probe.toy.theory import optimal_value
from topic_probe.toy.word_attention import word_attention
from topic_probe.toy.world import World
from topic_probe.train.history import History, TrainConfig
from topic_probe.train.toy import Measure, train_toys

if TYPE_CHECKING:
    import pandas as pd

NAMES = {"cross_entropy": "cross-entropy", "squared": "squared", "sgd": "SGD", "adam": "Adam"}
EVALUATION_SEED = 1000
"""Of the fresh documents that trained toys are measured on; no training uses it."""


@dataclass(frozen=True)
class Training:
    """A row of a recipe: what is trained, in the whole variant and in the quick one.

    Attributes:
        name: Unique within the recipe.
        toy: The model.
        train: The training of the whole variant.
        quick: Fields of ``train`` that the quick variant has otherwise; None: it leaves this row out.
        begins: From a seed to tensors that begin at other values than those of the model.
    """

    name: str
    toy: ToyConfig
    train: TrainConfig
    quick: Mapping[str, Any] | None
    begins: Callable[[ToyConfig, int], Mapping[str, Tensor]] | None = None

    def model(self, seed: int) -> nn.Module:
        """The toy before training."""
        tensors = None if self.begins is None else self.begins(self.toy, seed)
        return build_toy(self.toy, seed=seed, tensors=tensors)

    @property
    def columns(self) -> dict[str, Any]:
        """What queries of claims may ask for."""
        return {
            "training": self.name,
            "regime": self.toy.regime,
            "loss": self.train.loss,
            "optimizer": self.train.optimizer,
            "steps": self.train.steps,
            "noise": self.toy.noise,
            "l2": self.train.l2,
        }


def training(
    regime: Any,
    loss: Any,
    optimizer: Any,
    *,
    name: str = "",
    toy: Mapping[str, Any] | None = None,
    quick: Mapping[str, Any] | None = None,
    **train: Any,
) -> Training:
    """A row; ``toy`` and ``train`` are further fields of `ToyConfig` and `TrainConfig`, ``name`` ends its name."""
    return Training(
        ", ".join(part for part in (regime, NAMES[loss], NAMES[optimizer], name) if part),
        ToyConfig(regime=regime, **(toy or {})),
        TrainConfig(loss=loss, optimizer=optimizer, **train),
        quick,
    )


# --- what is broken -------------------------------------------------------------------------------


def without_topics(world: World) -> World:
    """The same words as often and in documents as long, but in no document rather together than in another."""
    return replace(world, alpha=None, topics_per_document=world.n_topics)


def _no_topics(row: Training) -> Training:
    world = without_topics(row.train.world or row.toy.world)
    return replace(row, train=replace(row.train, world=world))


def _only_bias(row: Training) -> Training:
    bias = "b_pred" if "b_pred" in row.toy.trained_tensors else "b_V"
    return replace(row, toy=replace(row.toy, trained=(bias,)))


def _values_frozen(row: Training) -> Training:
    return replace(row, toy=replace(row.toy, regime="attention", trained=("W_K", "W_Q")))


def _other_topics(row: Training) -> Training:
    """Theorem 2's W_V of words that are dealt to topics anew: word i has the topic of word i · v modulo the words."""

    def begin(toy: ToyConfig, seed: int) -> dict[str, Tensor]:
        W_V, words = optimal_value(toy.world, toy.masking), torch.arange(toy.world.n_words)
        dealt = words.view(toy.world.n_topics, -1).T.flatten()
        order = torch.cat([torch.zeros(1, dtype=torch.long), 1 + dealt])
        return {"W_V": W_V[order][:, order]}

    return replace(row, begins=begin)


def usual_tensors(*names: str) -> Callable[[ToyConfig, int], dict[str, Tensor]]:
    """The values with which these tensors begin in a toy of the usual initialisation."""

    def begin(toy: ToyConfig, seed: int) -> dict[str, Tensor]:
        usual = build_toy(replace(toy, init="usual"), seed=seed)
        return {name: value.detach() for name, value in toy_tensors(usual).items() if name in names}

    return begin


CONTROLS: Mapping[str, Callable[[Training], Training]] = {
    "no topics": _no_topics,
    "only a bias trained": _only_bias,
    "W_V frozen": _values_frozen,
    "W_V of other topics": _other_topics,
    "W_Q at its usual size": lambda row: replace(row, begins=usual_tensors("W_Q")),
    "W_K, W_Q at their usual size": lambda row: replace(row, begins=usual_tensors("W_K", "W_Q")),
    "no L2, usual beginning": lambda row: replace(
        row, toy=replace(row.toy, init="usual"), train=replace(row.train, l2=0.0)
    ),
}
"""What may be broken, by name: from a row to the one that is trained in its place."""


# --- training and measuring ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Case:
    """A trained toy: a row as it is, with a seed, and what was broken in its training (``control``, empty for nothing).

    The ``first`` one is shown in pictures: nothing is broken, and it has the first seed.
    """

    row: Training
    control: str
    seed: int
    first: bool
    history: History
    model: nn.Module

    @property
    def topics(self) -> Topics:
        """What belongs together in the world that the toy is for, whatever it was trained on."""
        return self.row.toy.world.blocks

    def matrix(self, name: str) -> Float64[np.ndarray, "row column"]:
        """One of its tensors."""
        return np.asarray(self.history.tensors[name].double().numpy())


def toys(
    rows: Sequence[Training],
    claims: Sequence[Claim],
    numbers: Callable[[Case], Mapping[str, float]],
    *,
    arrays: Callable[[Case], Mapping[str, np.ndarray]] = lambda case: {},
    derived: "Callable[[pd.DataFrame], Rows]" = lambda numbers: [],
    watch: Mapping[str, Measure] | None = None,
) -> Callable[[Run], Measured]:
    """The ``measure`` of a recipe of toys.

    Args:
        rows: what is trained.
        claims: the claims of the recipe; their controls are trained where a claim is checked.
        numbers: from a trained toy to its numbers.
        arrays: what is kept of it for pictures.
        derived: from the table of numbers to further rows, for numbers of several trainings.
        watch: what is measured while they are trained, as in `train_toys`.
    """

    @lru_cache(maxsize=1)  # two recipes may be about the same trainings
    def measure(run: Run) -> Measured:
        import pandas as pd

        found: list[Mapping[str, Any]] = []
        kept: dict[str, np.ndarray] = {}
        for case in cases(rows, claims, run, watch):
            about = {**case.row.columns, "control": case.control, "seed": case.seed}
            found.append({**about, **numbers(case)})
            for name, array in arrays(case).items():
                kept[array_name(case.row.name, case.control, case.seed, name)] = array
        return Measured([*found, *derived(pd.DataFrame(found))], kept)

    return measure


def cases(
    rows: Sequence[Training], claims: Sequence[Claim], run: Run, watch: Mapping[str, Measure] | None = None
) -> Iterator[Case]:
    """Every row with every seed, and as the controls of its claims break it; those that are alike side by side."""
    import pandas as pd

    if run.quick:
        rows = [replace(row, train=replace(row.train, **row.quick)) for row in rows if row.quick is not None]
    broken = wanted_controls(claims, pd.DataFrame([row.columns for row in rows]), quick=run.quick)
    for row in rows:
        for control in ("", *(name for name in CONTROLS if name in broken.get(row.name, ()))):
            trained = CONTROLS[control](row) if control else row
            models = [trained.model(seed) for seed in run.seeds]
            configs = [replace(trained.train, seed=seed) for seed in run.seeds]
            histories = train_toys(models, configs, measure=watch, progress=run.progress)
            for seed, history, model in zip(run.seeds, histories, models, strict=True):
                yield Case(row, control, seed, not control and seed == run.seed, history, model)


# --- numbers ---------------------------------------------------------------------------------------

ROUNDING = 1e-12
"""What two means of equal numbers may differ by, in units of these."""


def blocks(matrix: Float64[np.ndarray, "token token"], topics: Topics) -> dict[str, float]:
    """How far the entries of a matrix between tokens form a block for every topic.

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
    sums = np.array([entries[chosen].sum() for chosen in relations])
    counts = np.array([chosen.sum() for chosen in relations], dtype=np.float64)
    contrast = PairSums(sums, counts, np.asarray(np.square(entries[~itself]).sum())).contrast()
    return {
        "own topic first": float(first.mean()),
        "effect size": float(contrast.effect_size),
        "same word": float(contrast.same_word),
        "same topic": float(contrast.same_topic),
        "different topics": float(contrast.different_topic),
    }


def embedding_products(case: Case) -> Float64[np.ndarray, "token token"]:
    """W_Eᵀ W_E."""
    W_E = case.matrix("W_E")
    return np.asarray(W_E.T @ W_E)


def attention(case: Case) -> dict[str, float]:
    """Mean attention between words, uniform attention being 1, and to other words of the topic ÷ to other topics."""
    seen = word_attention(case.model, topics=case.topics)
    means = {name: seen[name] for name in ("same_word", "same_topic", "different_topic")}
    ratio = divide(np.float64(means["same_topic"]), np.float64(means["different_topic"]))
    return {
        **{f"attention to {name.replace('_', ' ')}": value for name, value in means.items()},
        "attention to the topic": float(ratio),
    }


def loss_on_fresh_documents(case: Case) -> dict[str, float]:
    """The loss, that of guessing every word alike, and how far the matrices are from the nearest optima."""
    report = measure_agreement(
        case.model,
        loss=case.row.train.loss,
        n_documents=max(4, 4_000 // case.row.toy.world.max_length),
        seed=EVALUATION_SEED,
    )
    return {
        "loss on fresh documents": report.loss,
        "gain over guessing": report.guess - report.loss,
        "distance to the optima": report.family_distance,
        "distance to the one optimum": report.value_distance,
    }
