"""Scores between words in the order of their topics: what a picture of blocks shows, small enough to be kept."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Float32, Int64

from topic_probe.measure.words import LabelledWords
from topic_probe.report import Report

if TYPE_CHECKING:
    import pandas as pd

MAX_WORDS, MAX_NUMBERS = 512, 2**22  # of all matrices together 16 MiB; beyond that none are kept


@dataclass(frozen=True, eq=False, repr=False)
class MatrixReport(Report, kind="matrix"):
    """Matrices ``values`` between ``words`` (ids where their text is not known) in the order of their topics.

    ``index`` says which is which (``{"score": ("cosine", "dot")}``), ``topic`` the first topic of every row and column,
    ``labels`` what topics are called.
    """

    values: Float32[np.ndarray, "matrix row column"]
    index: Mapping[str, tuple[Any, ...]]
    topic: Int64[np.ndarray, " row"]
    words: tuple[str | int, ...]
    labels: Mapping[int, str]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def pick(self, **chosen: Any) -> Float32[np.ndarray, "row column"]:
        """The matrix that ``score="dot"``, or ``circuit="ov", layer=0, head=3``, fit alone; ValueError if not one."""
        cells = [dict(zip(self.index, cell, strict=True)) for cell in zip(*self.index.values(), strict=True)]
        fits = [number for number, cell in enumerate(cells) if chosen.items() <= cell.items()]
        if len(fits) != 1:
            raise ValueError(f"{chosen} fits {len(fits)} matrices, name one: {cells[:6]}")
        return np.asarray(self.values[fits[0]])

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every matrix: its names, its lowest and its highest number."""
        import pandas as pd

        return pd.DataFrame(
            {**self.index, "lowest": self.values.min((1, 2)), "highest": self.values.max((1, 2))}
        )


def matrices_fit(words: LabelledWords, n: int) -> bool:
    """Whether so many matrices between words are kept."""
    return len(words) <= MAX_WORDS and n * len(words) ** 2 <= MAX_NUMBERS


def matrices_of_words(
    matrices: Float[np.ndarray, "matrix word word"],
    index: Mapping[str, tuple[Any, ...]],
    words: LabelledWords,
) -> MatrixReport:
    """The report of matrices over ``words``, brought into the order of topics, forms of a word beside each other."""
    topics, form, ids = words.topics, words.form.numpy(), words.ids.numpy()
    first, lowest = topics.incidence.first_topic[words.group].numpy(), np.full(words.n_forms, ids.max())
    np.minimum.at(lowest, form, ids)
    order = np.lexsort((ids, lowest[form], first))
    shown = tuple((topics.texts or topics.words.tolist())[place] for place in words.places[order].tolist())
    values = matrices[:, order][:, :, order].astype(np.float32)
    return MatrixReport(values, index, first[order], shown, dict(enumerate(topics.topic_labels)))
