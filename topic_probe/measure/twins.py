"""Untrained twins: what the same measurement gives where nothing was learned, and how much that varies."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float64

from topic_probe.contrast import Contrast, in_a_row
from topic_probe.lens.opening import random_init
from topic_probe.measure.options import Run
from topic_probe.report import Report
from topic_probe.text.documents import check_read_again
from topic_probe.text.shares import Shards

_R = TypeVar("_R", bound=Report)


def check_twins(twins: int, documents: Any, shards: Shards) -> None:
    """ValueError for a number of twins that there cannot be, or documents that they could not read."""
    if twins < 0:
        raise ValueError(f"twins is how many untrained twins to measure, and at least 0, got {twins}")
    if twins and shards.shard is not None:
        raise ValueError(
            "the sums of a shard are those of one model: measure twins by themselves, each with sums of its own "
            "(random_init(model, seed=0) is a model like any other)"
        )
    if twins:
        check_read_again(documents, "every twin reads the documents again")


def measure_twins(
    n: int, model: Any, seed: int, run: Run, measure: Callable[[Any, Run], Sequence[_R]]
) -> list[tuple[int, Sequence[_R]]]:
    """The reports of untrained twins under the seeds of their weights.

    Args:
        n: how many.
        model: the hooked model that they are twins of.
        seed: seed of the first; those of the others follow.
        run: how the runs are kept; every twin has a checkpoint of its own.
        measure: what to measure of a twin, for every one of the topics.
    """
    reports = []
    for number in range(seed, seed + n):
        reports.append((number, measure(random_init(model, seed=number), run.beside(f"twin {number}"))))
    return reports


def by_seed(
    reports: Sequence[tuple[int, Sequence[Report]]], name: str, score: str | None = None, *, topics: int = 0
) -> Contrast:
    """The cells of a contrast of reports one behind the other, under the seed of each.

    Args:
        reports: seeds, and the reports of a twin for every one of the topics.
        name: of the contrast, or of a mapping that has it.
        score: its name in the mapping.
        topics: the number of the topics.
    """
    parts: list[Any] = [getattr(of_topics[topics], name) for _, of_topics in reports]
    if score is not None:
        parts = [part[score] for part in parts]
    return in_a_row(parts, "seed", [seed for seed, _ in reports])


def about_twins(twins: Mapping[str, Contrast] | None, name: str) -> list[str]:
    """What twins have where the model has a number."""
    if twins is None:
        return []
    of_twins = twins[name]
    # A ratio to a mean that is not positive says nothing.
    positive = of_twins.statistic == "difference" or bool((of_twins.different_topic > 0).all())
    wanted: list[str] = [of_twins.statistic] if positive else []
    wanted += ["effect_size"] if of_twins.spread is not None else []
    numbers = ", ".join(_spread(number.replace("_", " "), getattr(of_twins, number)) for number in wanted)
    n = len(of_twins)
    return [f"{n} untrained twin{'s' * (n > 1)}: {numbers}"] if numbers else []


def _spread(what: str, values: Float64[np.ndarray, " twin"]) -> str:
    deviation = "" if len(values) < 2 else f" ± {values.std(ddof=1):.2g}"
    return f"{what} {values.mean():.4g}{deviation} ({values.min():.4g} to {values.max():.4g})"
