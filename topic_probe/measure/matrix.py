"""Numbers between words in the order of their topics: what a picture of blocks shows, small enough to be kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor

from topic_probe.measure.pair_sums import GroupSums
from topic_probe.measure.words import EmbeddingWords, LabelledWords
from topic_probe.report import Report
from topic_probe.topics import Topics
from topic_probe.words import Forms, form

if TYPE_CHECKING:
    import pandas as pd

MAX_WORDS = 512
"""Up to so many words a matrix is kept word by word, beyond that as means between topics."""

MAX_NUMBERS = 2**22
"""Of all matrices of a report together, 16 MiB; matrices that do not fit are left out."""


@dataclass(frozen=True, eq=False, repr=False)
class MatrixReport(Report, kind="matrix"):
    """Matrices between words, or between topics, in the order of topics.

    Attributes:
        values: the matrices.
        index: which matrix is which, along the first axis: ``{"score": ("cosine", "dot")}``.
        level: "word", or "topic": means over all ordered pairs of different words of two topics, NaN without any.
        topic: the topic of every row and column, ascending; of a word with several topics the first.
        words: the word of every row and column, its id where its text is not known; the labels of "topic".
        labels: ``id: word·word·word`` by topic.
        one_word: which words are forms of one, as of the topics.
        provenance: empty inside another report, whose provenance it shares.
    """

    values: Float32[np.ndarray, "matrix row column"]
    index: Mapping[str, tuple[Any, ...]]
    level: Literal["word", "topic"]
    topic: Int64[np.ndarray, " row"]
    words: tuple[str | int, ...]
    labels: Mapping[int, str]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    one_word: Forms = "case"

    def __len__(self) -> int:
        return len(self.values)

    def pick(self, **chosen: Any) -> Float32[np.ndarray, "row column"]:
        """One matrix by the names of its cell: ``pick(score="dot")``, ``pick(circuit="ov", layer=0, head=3)``.

        ValueError unless the names fit exactly one.
        """
        return np.asarray(self.values[self.number(**chosen)])

    def number(self, **chosen: Any) -> int:
        """The place of the one matrix that the names fit, along the first axis of ``values``."""
        unknown = [name for name in chosen if name not in self.index]
        fits = np.ones(len(self), dtype=bool)
        for name in [name for name in chosen if name in self.index]:
            fits &= np.array([cell == chosen[name] for cell in self.index[name]], dtype=bool)
        if unknown or fits.sum() != 1:
            known = "; ".join(f"{name}: {_abridged(cells)}" for name, cells in self.index.items())
            wanted = ", ".join(f"{name}={value!r}" for name, value in chosen.items()) or "no name"
            raise ValueError(f"{wanted} fits {0 if unknown else fits.sum()} matrices, choose one of {known}")
        return int(fits.argmax())

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every matrix: its names, the means within and between topics, its range."""
        import pandas as pd

        same = self.topic[:, None] == self.topic[None, :]
        one_word = self._forms[:, None] == self._forms if self.level == "word" else np.zeros_like(same)
        numbers = {
            "same_topic": [_mean(matrix[same & ~one_word]) for matrix in self.values],
            "different_topic": [_mean(matrix[~same & ~one_word]) for matrix in self.values],
            "lowest": [float(np.nanmin(matrix, initial=np.inf)) for matrix in self.values],
            "highest": [float(np.nanmax(matrix, initial=-np.inf)) for matrix in self.values],
        }
        return pd.DataFrame({**self.index, **numbers})

    @property
    def _forms(self) -> Int64[np.ndarray, " row"]:
        """Number of the form of every row."""
        numbers: dict[str | int, int] = {}
        forms = [
            form(word, self.one_word) or row if isinstance(word, str) else word
            for row, word in enumerate(self.words)
        ]
        return np.array([numbers.setdefault(name, len(numbers)) for name in forms])

    def _notes(self) -> list[str]:
        return [f"{self.values.shape[1]} × {self.values.shape[1]} {self.level}s in each"]


def embedding_matrices(words: EmbeddingWords, sums: GroupSums) -> MatrixReport | None:
    """Cosine and dot product between words, or between topics where there are too many; None if those are too."""
    topics, index = words.topics, {"score": ("cosine", "dot")}
    if len(words) <= MAX_WORDS:
        rows = words.rows()
        units = rows / words.norms[:, None]
        return matrices_of_words(torch.stack([units @ units.T, rows @ rows.T]), index, words)
    if 2 * topics.n_topics**2 > MAX_NUMBERS:
        return None
    by_topic = torch.stack([topics.incidence.by_topic(part) for part in sums.sums])
    return matrices_of_topics(
        means_between(by_topic @ by_topic.mT, sums.squares, sums.of_forms, words), index, topics
    )


def means_between(
    sums: Float64[Tensor, "matrix topic topic"],
    own: Float64[Tensor, "matrix group"],
    of_forms: Float64[Tensor, "matrix pair"],
    words: LabelledWords,
) -> Float64[Tensor, "matrix topic topic"]:
    """Means over ordered pairs of different words of two topics, NaN where there is none.

    Args:
        sums: sums over all pairs of the words of two topics.
        own: scores of every entry with itself, summed over groups.
        of_forms: scores of pairs of different forms of one word, as in `LabelledWords.form_pairs`.
        words: the words.
    """
    incidence = words.topics.incidence
    sizes = words.by_group(torch.ones(len(words), dtype=torch.float64))
    ones = torch.ones(1, len(words.form_pairs), dtype=torch.float64)
    first, second, of_pairs = words.form_pairs_by_groups(torch.cat([of_forms, ones]))
    # The last of these matrices counts pairs.
    groups = torch.arange(len(incidence))
    of_words = torch.stack(
        [
            incidence.between_topics(one, groups, groups) + incidence.between_topics(pairs, first, second)
            for one, pairs in zip(torch.cat([own, sizes[None]]), of_pairs, strict=True)
        ]
    )
    per_topic = incidence.by_topic(sizes)
    counts = torch.outer(per_topic, per_topic) - of_words[-1]
    return torch.where(counts > 0, (sums - of_words[:-1]) / counts, torch.nan)


def choose_level(n_words: int, n_topics: int, n_matrices: int) -> tuple[Literal["word", "topic"], int]:
    """Whether so many matrices are kept between words or between topics, and how many of them fit."""
    if n_words <= MAX_WORDS and n_matrices * n_words**2 <= MAX_NUMBERS:
        return "word", n_matrices
    return "topic", min(n_matrices, MAX_NUMBERS // n_topics**2)


def matrices_of_words(
    matrices: Float[Tensor, "matrix word word"], index: Mapping[str, tuple[Any, ...]], words: LabelledWords
) -> MatrixReport:
    """The report of matrices over ``words``, brought into the order of topics, forms of a word beside each other."""
    topics = words.topics
    first = topics.incidence.first_topic[words.group]
    lowest = torch.full((words.n_forms,), int(topics.words[-1])).scatter_reduce(
        0, words.form, words.ids, "amin"
    )
    order = np.lexsort((words.ids.numpy(), lowest[words.form].numpy(), first.numpy()))
    places = words.places[order].tolist()
    return MatrixReport(
        values=matrices[:, order][:, :, order].float().numpy(),
        index=index,
        level="word",
        topic=first[order].numpy(),
        words=tuple((topics.texts or topics.words.tolist())[place] for place in places),
        labels=_labels(topics),
        one_word=topics.one_word,
    )


def matrices_of_topics(
    matrices: Float[Tensor, "matrix topic topic"], index: Mapping[str, tuple[Any, ...]], topics: Topics
) -> MatrixReport:
    """The report of means between topics."""
    labels = _labels(topics)
    return MatrixReport(
        values=matrices.float().numpy(),
        index=index,
        level="topic",
        topic=np.arange(topics.n_topics),
        words=tuple(labels.values()),
        labels=labels,
    )


def _labels(topics: Topics) -> dict[int, str]:
    return dict(enumerate(topics.topic_labels))


def _mean(cells: Float32[np.ndarray, " cell"]) -> float:
    known = cells[~np.isnan(cells)]
    return float(known.mean(dtype=np.float64)) if len(known) else np.nan


def _abridged(cells: Sequence[Any]) -> str:
    different = list(dict.fromkeys(cells))
    return ", ".join(repr(cell) for cell in different[:8]) + (", …" if len(different) > 8 else "")
