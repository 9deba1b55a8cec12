"""The loss over the attention weights α and β (Appendix D.5), with Theorem 3's interval and where trained toys are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float64, Num
from torch import nn

from topic_probe.options import checked
from topic_probe.report import Report, provenance
from topic_probe.toy import theory
from topic_probe.toy.masking import Masking
from topic_probe.toy.model import toy_config
from topic_probe.toy.word_attention import token_attention
from topic_probe.toy.world import World

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
        points: ``alpha``, ``beta``, ``weighted_mean`` and ``loss`` of uniform attention and of trained toys by name. A
            toy gives ``[MASK]`` a weight of its own, which Assumption 2 ties to β, and with the W_V of Theorem 2 only
            the weighted mean matters for a word (Remark 5). So a toy stands where β is its weight for ``[MASK]`` and
            the weighted mean is its own; ``same_topic`` and ``same_word`` are its weights for words as they are.
        provenance: world, masking, versions.
    """

    figure: ClassVar[str] = "landscape:loss_landscape"
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


@checked
def measure_landscape(
    world: World,
    masking: Masking,
    *,
    alphas: Num[np.ndarray, " alpha"] | None = None,
    betas: Num[np.ndarray, " beta"] | None = None,
    trained: Mapping[str, nn.Module] | None = None,
) -> LandscapeReport:
    """The loss over (α, β) by theory alone, its minimum, Theorem 3's interval, and the attention of trained toys.

    Args:
        world: uniform topics.
        masking: the masking scheme.
        alphas: attention to other words of the same topic, at least 0; None takes 0.1 to 1000, evenly in log.
        betas: attention to the same word; None takes 0.1 to 100.
        trained: toys of one layer and one head by name, whose attention weights are put in as a point.

    Raises:
        ValueError: for topics that are not uniform, or a toy of several layers or heads, or one that does not attend to
            all positions.

    Example:
        >>> world = tp.World(n_topics=4, words_per_topic=5, topics_per_document=2)
        >>> report = tp.measure_landscape(world, tp.Masking())
        >>> report.loss.shape, round(report.optimum["beta"], 6)
        ((121, 121), 1.0)
    """
    alphas = np.geomspace(0.1, 1000, 121) if alphas is None else alphas.astype(float)
    betas = np.geomspace(0.1, 100, 121) if betas is None else betas.astype(float)
    grid = torch.from_numpy(alphas).unsqueeze(1), torch.from_numpy(betas)
    loss = theory.attention_loss(world, masking, alpha=grid[0], beta=grid[1])
    bounds = theory.attention_bounds(world, masking)

    def at(alpha: float, beta: float) -> dict[str, float]:
        mean = theory.weighted_mean(world, alpha=alpha, beta=beta)
        there = theory.attention_loss(world, masking, alpha=alpha, beta=beta)
        return {"alpha": alpha, "beta": beta, "weighted_mean": float(mean), "loss": float(there)}

    free, tied = (theory.optimal_attention(world, masking, tied=tied) for tied in (False, True))
    points = {"uniform attention": at(1.0, 1.0)}
    for name, model in (trained or {}).items():
        same_topic, same_word, mask = attention_weights(model)
        mean, v = float(theory.weighted_mean(world, alpha=same_topic, beta=same_word)), world.words_per_topic
        alpha = (v * mean - mask) / (v - 1) if v > 1 else same_topic
        points[name] = at(max(alpha, 0.0), mask) | {"same_topic": same_topic, "same_word": same_word}
    return LandscapeReport(
        alphas=alphas,
        betas=betas,
        loss=loss.numpy(),
        optimum=at(free.alpha, free.beta),
        tied=at(tied.alpha, tied.beta),
        bounds=(bounds.lower, bounds.upper),
        bounds_unmet=bounds.unmet,
        words_per_topic=world.words_per_topic,
        points=points,
        provenance=provenance(options={"world": str(world), "masking": str(masking)}),
    )


def attention_weights(model: nn.Module) -> tuple[float, float, float]:
    """A toy's attention to other words of the topic, to the same word, and of ``[MASK]`` to itself, others being 1.

    From its weights alone: exp of its scores, relative to what a query gives to words of other topics (``[MASK]``: to
    all words) on average, and then the mean over queries. Uniform attention is 1, 1, 1.

    ValueError for several layers or heads, which have no such weights together.
    """
    config = toy_config(model)
    if config.attend == "unmasked":
        raise ValueError(
            'α and β of Assumption 2 are about attention to all positions, and this toy has attend="unmasked": '
            "word_attention measures it"
        )
    weights = token_attention(model).T  # [key, query]
    topic = config.world.block_of_word
    same = topic[:, None] == topic
    words, own = weights[1:, 1:], torch.eye(len(weights) - 1, dtype=torch.bool)
    other = words.masked_fill(same, 0.0).sum(0) / (~same).sum(0)
    mates = words.masked_fill(~same | own, 0.0).sum(0) / (same & ~own).sum(0)
    masked = weights[0, 0] / weights[1:, 0].mean()
    return float((mates / other).mean()), float((words.diagonal() / other).mean()), float(masked)
