"""The loss over the attention weights α and β (Appendix D.5), with Theorem 3's interval and where trained toys are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Float64

from topic_probe.measure.agreement import AgreementReport
from topic_probe.measure.report import Report, provenance
from topic_probe.toy import theory
from topic_probe.toy.theory.attention import ValueMatrix

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class LandscapeReport(Report, kind="landscape"):
    """The squared loss on infinitely long documents, for every attention to the same topic (α) and the same word (β).

    Attention to other topics is 1, so α = β = 1 is uniform attention.

    Attributes:
        alphas: attention to other words of the same topic.
        betas: attention to the same word.
        loss: of every pair of them.
        optimum: ``alpha``, ``beta``, ``weighted_mean`` and ``loss`` where it is smallest.
        tied: the same under α = β.
        bounds: Theorem 3's interval for the weighted mean (v − 1)/v · α + β/v of the optimum.
        bounds_unmet: the assumptions of Theorem 3 that do not hold.
        words_per_topic: v.
        points: α, β, weighted mean and loss of trained toys by name, the loss being the one of the landscape there.
        provenance: world, masking, the value matrix, versions.
    """

    alphas: Float64[np.ndarray, " alpha"]
    betas: Float64[np.ndarray, " beta"]
    loss: Float64[np.ndarray, "alpha beta"]
    optimum: Mapping[str, float]
    tied: Mapping[str, float]
    bounds: tuple[float, float]
    bounds_unmet: tuple[str, ...]
    words_per_topic: int
    points: Mapping[str, Mapping[str, float]]
    provenance: Mapping[str, Any]

    @property
    def within_bounds(self) -> bool:
        """Whether the weighted mean of the optimum lies in Theorem 3's interval."""
        return self.bounds[0] < self.optimum["weighted_mean"] < self.bounds[1]

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for the optimum, the optimum under α = β, uniform attention, and every trained toy."""
        import pandas as pd

        rows = {"optimum": self.optimum, "optimum under α = β": self.tied, **self.points}
        return pd.DataFrame([{"where": name, **row} for name, row in rows.items()])

    def _notes(self) -> list[str]:
        low, high = self.bounds
        unmet = (
            f"; its assumptions that do not hold: {', '.join(self.bounds_unmet)}" if self.bounds_unmet else ""
        )
        return [f"Theorem 3: the weighted mean of the optimum is between {low:.4g} and {high:.4g}{unmet}"]


def measure_landscape(
    world: theory.World,
    masking: theory.MaskingScheme,
    *,
    alphas: Float[np.ndarray, " alpha"] | None = None,
    betas: Float[np.ndarray, " beta"] | None = None,
    value: ValueMatrix = "blocks",
    trained: Mapping[str, AgreementReport] | None = None,
) -> LandscapeReport:
    """The loss over (α, β) by theory alone, its minimum, Theorem 3's interval, and the attention of trained toys.

    Args:
        world: uniform topics.
        masking: the masking scheme.
        alphas: attention to other words of the same topic, at least 0; None takes 121 from 0.1 to 1000, evenly in log.
        betas: attention to the same word; None likewise.
        value: W_V by name, as in `topic_probe.toy.theory.attention_loss`.
        trained: reports of trained toys by name, whose mean attention is put in as a point.

    Raises:
        ValueError: for topics that are not uniform, or a toy whose attention was not measured.
    """
    grid = [np.geomspace(0.1, 1000, 121) if axis is None else axis.astype(float) for axis in (alphas, betas)]
    loss = theory.attention_landscape(
        world, masking, alphas=torch.from_numpy(grid[0]), betas=torch.from_numpy(grid[1]), value=value
    )
    bounds = theory.attention_bounds(world, masking)

    def at(alpha: float, beta: float) -> dict[str, float]:
        mean = theory.weighted_mean(world, alpha=alpha, beta=beta)
        there = theory.attention_loss(world, masking, alpha=alpha, beta=beta, value=value)
        return {"alpha": alpha, "beta": beta, "weighted_mean": float(mean), "loss": float(there)}

    free, tied = (theory.optimal_attention(world, masking, tied=tied, value=value) for tied in (False, True))
    attention = {name: _weights(name, report) for name, report in (trained or {}).items()}
    return LandscapeReport(
        alphas=grid[0],
        betas=grid[1],
        loss=loss.numpy(),
        optimum=at(free.alpha, free.beta),
        tied=at(tied.alpha, tied.beta),
        bounds=(bounds.lower, bounds.upper),
        bounds_unmet=bounds.unmet,
        words_per_topic=world.words_per_topic,
        points={"uniform attention": at(1.0, 1.0), **{name: at(*pair) for name, pair in attention.items()}},
        provenance=provenance(options={"world": str(world), "masking": str(masking), "value": value}),
    )


def _weights(name: str, report: AgreementReport) -> tuple[float, float]:
    """α and β of a trained toy: its attention to the same topic and the same word, other topics being 1."""
    if report.attention is None:
        raise ValueError(f"the attention of {name!r} was not measured: use measure_agreement(attention=True)")
    found = report.attention
    return float(found.same_topic / found.different_topic), float(found.same_word / found.different_topic)
