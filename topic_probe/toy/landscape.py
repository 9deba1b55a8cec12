"""The loss over the attention weights α and β (Appendix D.5), with Theorem 3's interval, and a toy's α and β."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float64, Num
from torch import nn

from topic_probe.options import checked
from topic_probe.report import Report, provenance
from topic_probe.toy import theory
from topic_probe.toy.model import toy_config
from topic_probe.toy.word_attention import token_attention
from topic_probe.toy.world import Masking, World

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class LandscapeReport(Report, kind="landscape"):
    """The squared loss on infinitely long documents, for every attention to the same topic (α) and the same word (β).

    Attributes:
        alphas: attention to other words of the same topic, relative to that to other topics.
        betas: attention to the same word.
        loss: of every pair of them.
        points: ``alpha``, ``beta``, ``weighted_mean`` and ``loss`` by name: ``optimum``, where the loss is smallest,
            ``optimum under α = β``, and ``uniform attention``.
        bounds: Theorem 3's interval for the weighted mean (v − 1)/v · α + β/v of the optimum.
        bounds_unmet: the assumptions of Theorem 3 that do not hold.
        words_per_topic: v.
        provenance: world, masking, versions.
    """

    alphas: Float64[np.ndarray, " alpha"]
    betas: Float64[np.ndarray, " beta"]
    loss: Float64[np.ndarray, "alpha beta"]
    points: Mapping[str, Mapping[str, float]]
    bounds: tuple[float, float]
    bounds_unmet: tuple[str, ...]
    words_per_topic: int
    provenance: Mapping[str, Any]

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every point."""
        import pandas as pd

        return pd.DataFrame([{"where": name, **point} for name, point in self.points.items()])

    def _notes(self) -> list[str]:
        (low, high), unmet = self.bounds, ", ".join(self.bounds_unmet)
        notes = [f"Theorem 3: the weighted mean of the optimum is between {low:.4g} and {high:.4g}"]
        return [*notes, f"assumptions of Theorem 3 that do not hold: {unmet or 'none'}"]


@checked
def measure_landscape(
    world: World,
    masking: Masking,
    *,
    alphas: Num[np.ndarray, " alpha"] | None = None,
    betas: Num[np.ndarray, " beta"] | None = None,
) -> LandscapeReport:
    """The loss over (α, β) by theory alone, its minimum, and Theorem 3's interval.

    Args:
        world: uniform topics; ValueError for others.
        masking: the masking scheme.
        alphas: attention to other words of the same topic, at least 0; None takes 0.1 to 1000, evenly in log.
        betas: attention to the same word; None takes 0.1 to 100.

    Example:
        >>> world = tp.World(n_topics=4, words_per_topic=5, topics_per_document=2)
        >>> report = tp.measure_landscape(world, tp.Masking())
        >>> report.loss.shape, round(report.points["optimum"]["beta"], 6)
        ((121, 121), 1.0)
    """
    alphas = np.geomspace(0.1, 1000, 121) if alphas is None else alphas.astype(float)
    betas = np.geomspace(0.1, 100, 121) if betas is None else betas.astype(float)
    grid = torch.from_numpy(alphas).unsqueeze(1), torch.from_numpy(betas)
    loss = theory.attention_loss(world, masking, alpha=grid[0], beta=grid[1])
    bounds = theory.attention_bounds(world, masking)
    uniform = theory.attention_loss(world, masking, alpha=1.0, beta=1.0)
    points = {
        "optimum": asdict(theory.optimal_attention(world, masking)),
        "optimum under α = β": asdict(theory.optimal_attention(world, masking, tied=True)),
        "uniform attention": {"alpha": 1.0, "beta": 1.0, "weighted_mean": 1.0, "loss": float(uniform)},
    }
    return LandscapeReport(
        alphas=alphas,
        betas=betas,
        loss=loss.numpy(),
        points=points,
        bounds=(bounds.lower, bounds.upper),
        bounds_unmet=bounds.unmet,
        words_per_topic=world.words_per_topic,
        provenance=provenance(options={"world": str(world), "masking": str(masking)}),
    )


def attention_weights(model: nn.Module) -> tuple[float, float]:
    """A toy's attention to other words of the topic and to the same word, that to words of other topics being 1.

    From its weights alone: exp of its scores, relative to what a query gives to words of other topics on average, and
    then the mean over queries. ValueError for several layers or heads, which have no such weights together.
    """
    words = token_attention(model).T[1:, 1:]  # [key, query]
    topic = toy_config(model).world.block_of_word
    same, own = topic[:, None] == topic, torch.eye(len(words), dtype=torch.bool)
    other = words.masked_fill(same, 0.0).sum(0) / (~same).sum(0)
    mates = words.masked_fill(~same | own, 0.0).sum(0) / (same & ~own).sum(0)
    return float((mates / other).mean()), float((words.diagonal() / other).mean())
