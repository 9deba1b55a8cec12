"""Whether topics are found again: fits of other seeds, options or documents, matched topic by topic."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from topic_probe.options import checked
from topic_probe.tables import as_text
from topic_probe.text.lda import TOP, TopicFit

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class TopicStability:
    """How well the topics of a fit are found again in other fits, such as those of other seeds.

    Attributes:
        similarity: For every other fit and topic of the first: how alike its partner is, 0 (nothing in common) to 1.
        partner: The topic of the other fit that it is paired with; -1 where the other has too few topics.
        labels: The topics of the first fit.
        measure: How likeness was measured.
    """

    similarity: Float64[Tensor, "fit topic"]
    partner: Int64[Tensor, "fit topic"]
    labels: tuple[str, ...]
    measure: str

    @property
    def per_topic(self) -> Float64[Tensor, "topic"]:
        """Mean over the other fits; topics near 0 are chance."""
        return self.similarity.mean(dim=0)

    @property
    def mean(self) -> float:
        """Mean over topics and fits."""
        return float(self.similarity.mean())

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every topic of the first fit, least stable last."""
        import pandas as pd

        table = pd.DataFrame(
            {
                "topic": self.labels,
                "stability": self.per_topic.numpy(),
                "lowest": self.similarity.min(dim=0).values.numpy(),
            }
        )
        return table.sort_values("stability", ascending=False, kind="stable", ignore_index=True)

    def __repr__(self) -> str:
        table = as_text(self.to_dataframe(), max_rows=30)
        return f"TopicStability: mean {self.mean:.3f} ({self.measure}) over {len(self.similarity)} other fits\n{table}"


@checked
def topic_stability(
    fits: Sequence[TopicFit], *, n: int = TOP, measure: Literal["jaccard", "cosine"] = "jaccard"
) -> TopicStability:
    """How well the topics of the first fit are found again in each of the others.

    Topics are paired one to one so that the sum of likenesses is largest.

    Args:
        fits: Two or more fits of the same tokenizer, for example of different seeds.
        n: Likeliest words per topic that "jaccard" compares.
        measure: "jaccard": common words ÷ all words of the two lists. "cosine": of the two rows P(word | topic).
    """
    if len(fits) < 2:
        raise ValueError(f"stability compares at least two fits, got {len(fits)}")
    if len({fit.tokenizer_hash for fit in fits}) > 1:
        raise ValueError("the fits are of different tokenizers, so their words cannot be compared by id")
    tables = [_comparable(fit, n if measure == "jaccard" else None) for fit in fits]
    pairs = [_paired(_likeness(tables[0], other, measure)) for other in tables[1:]]
    return TopicStability(
        similarity=torch.from_numpy(np.stack([similarity for similarity, _ in pairs])),
        partner=torch.from_numpy(np.stack([partner for _, partner in pairs])),
        labels=tuple(fits[0].label(topic) for topic in range(fits[0].n_topics)),
        measure=f"{measure} of the {n} likeliest words" if measure == "jaccard" else measure,
    )


def _comparable(fit: TopicFit, n: int | None) -> Float64[np.ndarray, "topic vocabulary"]:
    """Rows over all token ids: probabilities, or 1 on the ``n`` likeliest words."""
    table = np.zeros((fit.n_topics, fit.vocabulary_size))
    if n is None:
        table[:, fit.token_ids.numpy()] = fit.phi.numpy()
    else:
        np.put_along_axis(table, fit.token_ids.numpy()[fit.top_columns(n)], 1.0, axis=1)
    return table


def _likeness(
    one: Float64[np.ndarray, "topic vocabulary"],
    other: Float64[np.ndarray, "partner vocabulary"],
    measure: str,
) -> Float64[np.ndarray, "topic partner"]:
    products = one @ other.T
    squares, others = (one**2).sum(axis=1)[:, None], (other**2).sum(axis=1)
    likeness: np.ndarray
    if measure == "jaccard":
        likeness = products / (squares + others - products)
    else:
        likeness = products / np.sqrt(squares * others)
    return likeness


def _paired(
    likeness: Float64[np.ndarray, "topic partner"],
) -> tuple[Float64[np.ndarray, "topic"], Int64[np.ndarray, "topic"]]:
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(likeness, maximize=True)
    similarity, partner = np.zeros(len(likeness)), np.full(len(likeness), -1, dtype=np.int64)
    similarity[rows], partner[rows] = likeness[rows, columns], columns
    return similarity, partner
