"""The words of a matched comparison, and the bin of co-occurrence and frequency that every pair of them is in."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from topic_probe.lens import capture
from topic_probe.measure.words import first_topics, labelled_words
from topic_probe.text.cooccurrence import Cooccurrence
from topic_probe.topics import Topics


@dataclass(frozen=True)
class MatchedWords:
    """The words that are compared, in the order of their ids, and what is known of every pair of them."""

    ids: Int64[Tensor, " word"]
    rows: Float[Tensor, "word d_embed"]
    norms: Float64[Tensor, " word"]
    frequency: Int64[Tensor, " word"]
    strata: Int64[np.ndarray, " word"]
    same: Bool[Tensor, "word word"]
    counts: Cooccurrence
    left_out: dict[str, int]

    @classmethod
    def of(
        cls,
        model: Any,
        topics: Topics,
        cooccurrence: Cooccurrence,
        *,
        min_documents: int,
        center: bool,
        exclude: list[int],
    ) -> "MatchedWords":
        """The words with a topic, a row in the embedding table and enough documents."""
        if cooccurrence.vocabulary_size != topics.vocabulary_size:
            raise ValueError(
                f"co-occurrence was counted over a vocabulary of {cooccurrence.vocabulary_size} ids, the topics have "
                f"{topics.vocabulary_size}: count it with count_cooccurrence(documents, topics)"
            )
        found = labelled_words(capture.word_embeddings(model), topics, center=center, exclude=exclude)
        counted = cooccurrence.rows_of(found.ids)
        frequency = torch.where(counted >= 0, cooccurrence.document_frequency[counted], 0)
        kept = ((counted >= 0) & (frequency >= max(1, min_documents))).nonzero().flatten()
        left_out = dict(found.left_out) | {
            "words that co-occurrence was not counted of": int((counted < 0).sum()),
            f"words in fewer than {min_documents} documents": len(counted)
            - len(kept)
            - int((counted < 0).sum()),
        }
        left_out = {reason: n for reason, n in left_out.items() if n}
        if len(kept) < 2:
            raise ValueError(
                f"{len(kept)} of {len(topics.words)} words with a topic are left to compare, two are needed: {left_out}"
            )
        kept = kept[found.ids[kept].argsort()]
        group = found.group[kept]
        return cls(
            ids=found.ids[kept],
            rows=found.rows[found.index[kept].to(found.rows.device)].cpu(),
            norms=found.norms[kept],
            frequency=frequency[kept],
            strata=first_topics(topics)[group.numpy()],
            same=topics.shared[group][:, group].fill_diagonal_(False),
            counts=cooccurrence.restrict(found.ids[kept]),
            left_out=left_out,
        )

    def scores(self, rows: slice) -> dict[str, Float64[np.ndarray, "row word"]]:
        """Cosines and dot products of some words with all."""
        dot = (self.rows[rows].double() @ self.rows.double().T).numpy()
        return {"cosine": dot / (self.norms[rows, None] * self.norms).numpy(), "dot": dot}


@dataclass(frozen=True)
class Bins:
    """The bin of every pair: of PMI (0: never together), times pairs of frequency classes."""

    classes: Int64[Tensor, "word word"]
    pmi_edges: tuple[float, ...]
    frequency_limits: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Bins of PMI and of frequency."""
        n = len(self.frequency_limits)
        return len(self.pmi_edges) + 2, n * (n + 1) // 2

    @classmethod
    def of(cls, words: MatchedWords, *, pmi_bins: int, frequency_bins: int) -> "Bins":
        """Bins of equally many same-topic pairs, and classes of equally many words, as far as ties allow."""
        if pmi_bins < 1 or frequency_bins < 1:
            raise ValueError(
                f"pmi_bins and frequency_bins must be at least 1, got {pmi_bins} and {frequency_bins}"
            )
        class_of, limits = _frequency_classes(words.frequency.numpy(), frequency_bins)
        n = len(limits)
        lower, higher = (
            torch.minimum(class_of[:, None], class_of),
            torch.maximum(class_of[:, None], class_of),
        )
        frequency = lower * (2 * n - lower - 1) // 2 + higher
        pmi = words.counts.pmi()
        wanted = pmi[words.same & torch.isfinite(pmi)].numpy()
        edges = (
            np.unique(np.quantile(wanted, np.arange(1, pmi_bins) / pmi_bins)) if len(wanted) else np.zeros(0)
        )
        place = torch.bucketize(pmi, torch.from_numpy(edges), right=True) + 1
        place = torch.where(torch.isinf(pmi), 0, place)
        return cls(place * (n * (n + 1) // 2) + frequency, tuple(edges.tolist()), limits)

    def index(self, cells: Int64[np.ndarray, " cell"]) -> dict[str, tuple[Any, ...]]:
        """What the table says of every bin: limits of PMI, and of the document frequencies of its two words."""
        edges = [-np.inf, *self.pmi_edges, np.inf]
        pmi = [(-np.inf, -np.inf), *pairwise(edges)]
        n = len(self.frequency_limits)
        pairs = [
            (self.frequency_limits[one], self.frequency_limits[other])
            for one in range(n)
            for other in range(one, n)
        ]
        place, frequency = np.divmod(cells, len(pairs))
        return {
            "pmi_from": tuple(pmi[cell][0] for cell in place),
            "pmi_to": tuple(pmi[cell][1] for cell in place),
            "documents_of_one": tuple(f"{pairs[cell][0][0]}–{pairs[cell][0][1]}" for cell in frequency),
            "documents_of_other": tuple(f"{pairs[cell][1][0]}–{pairs[cell][1][1]}" for cell in frequency),
        }


def _frequency_classes(
    frequency: Int64[np.ndarray, " word"], n: int
) -> tuple[Int64[Tensor, " word"], tuple[tuple[int, int], ...]]:
    """The class of every word, and the lowest and highest frequency in every class."""
    edges = np.unique(np.quantile(frequency, np.arange(1, n) / n, method="inverted_cdf"))
    _, found = np.unique(np.searchsorted(edges, frequency, side="left"), return_inverse=True)
    limits = tuple(
        (int(frequency[found == place].min()), int(frequency[found == place].max()))
        for place in range(found.max() + 1)
    )
    return torch.from_numpy(found.astype(np.int64)), limits
