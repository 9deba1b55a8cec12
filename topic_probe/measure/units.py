"""Which positions of a document are words of a topic: the only rows and columns of a pattern that are measured.

What a whole word is stands in `topic_probe.words`, and documents carry it. Token level measures tokens that are a whole
word, word level also words of several tokens that the topics know. Of documents whose text nobody saw every token
counts as a word.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from topic_probe.text.batches import TokenBatch
from topic_probe.topics import Topics

Level = Literal["token", "word"]


@dataclass(frozen=True)
class Units:
    """The words (or tokens) of one document that have a topic, and the positions that make them up.

    Attributes:
        entries: vocabulary entry of every unit.
        first: position of its first token; distances between units are counted from here.
        positions: the positions of all units, ascending within a unit.
        unit_of: the unit that every one of ``positions`` belongs to.
        n_pieces: labelled tokens that are only pieces of words, and so no units.
    """

    entries: Int64[Tensor, " unit"]
    first: Int64[Tensor, " unit"]
    positions: Int64[Tensor, " piece"]
    unit_of: Int64[Tensor, " piece"]
    n_pieces: int = 0

    @classmethod
    def of_tokens(cls, entries: Int64[Tensor, " unit"], positions: Int64[Tensor, " unit"]) -> "Units":
        """Units of one token each."""
        return cls(entries, positions, positions, torch.arange(len(positions)))

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def single(self) -> bool:
        """Whether every unit is one token."""
        return len(self.positions) == len(self.entries)

    @property
    def membership(self) -> Float[Tensor, "unit piece"]:
        """1 where a position belongs to a unit."""
        return (self.unit_of == torch.arange(len(self))[:, None]).double()


def units_of(batch: TokenBatch, topics: Topics, *, level: Level = "token") -> list[Units]:
    """The units of every document of a batch. Special tokens are none, and neither are pieces of words.

    Raises:
        ValueError: for word level and a document whose text nobody saw.
    """
    if level == "word" and bool(batch.without_words.any()):
        raise ValueError(
            "level='word' needs documents that say which tokens form a word: make them with "
            "topic_probe.encode_texts(texts, tokenizer) and a fast tokenizer"
        )
    # Entries beyond the vocabulary are words of several tokens; a padded table may use such ids for something else.
    has_topic = (topics.labels(batch.ids) >= 0) & (batch.ids < topics.vocabulary_size)
    has_topic &= batch.mask & ~batch.special
    units = []
    for ids, of_topic, is_word in zip(batch.ids, has_topic, batch.whole, strict=True):
        positions = (of_topic & is_word).nonzero().flatten()
        tokens = Units.of_tokens(ids[positions], positions)
        units.append(replace(tokens, n_pieces=int((of_topic & ~is_word).sum())))
    if level == "word" and topics.compounds:
        known = {pieces: topics.vocabulary_size + number for number, pieces in enumerate(topics.compounds)}
        rows = zip(units, batch.ids, batch.word_index, strict=True)
        return [_with_compounds(*row, known) for row in rows]
    return units


def _with_compounds(
    tokens: Units,
    ids: Int64[Tensor, " position"],
    word_index: Int64[Tensor, " position"],
    known: dict[tuple[int, ...], int],
) -> Units:
    """The units and the words of several tokens that the topics know, in the order of the document."""
    words = [
        (position, entry, [position])
        for position, entry in zip(tokens.positions.tolist(), tokens.entries.tolist(), strict=True)
    ]
    numbers, runs = torch.unique_consecutive(word_index, return_inverse=True)
    for run in ((runs.bincount() > 1) & (numbers >= 0)).nonzero().flatten().tolist():
        positions = (runs == run).nonzero().flatten()
        entry = known.get(tuple(ids[positions].tolist()))
        if entry is not None:
            words.append((int(positions[0]), entry, positions.tolist()))
    words.sort()
    pieces = [(position, unit) for unit, (_, _, positions) in enumerate(words) for position in positions]
    return Units(
        torch.tensor([entry for _, entry, _ in words], dtype=torch.int64),
        torch.tensor([first for first, _, _ in words], dtype=torch.int64),
        torch.tensor([position for position, _ in pieces], dtype=torch.int64),
        torch.tensor([unit for _, unit in pieces], dtype=torch.int64),
        tokens.n_pieces,
    )


def one_later(batch: TokenBatch) -> TokenBatch:
    """A batch as a decoder reads it: one position later, behind a start token, which is nobody's word."""

    def later(part: Tensor, first: int) -> Tensor:
        return torch.nn.functional.pad(part[:, :-1], (1, 0), value=first)

    return replace(
        batch,
        ids=later(batch.ids, -1),
        special=later(batch.special, True),
        word_index=later(batch.word_index, -1),
        whole=later(batch.whole, False),
    )


def padded_positions(
    units: Sequence[Units],
) -> tuple[Int64[Tensor, "batch piece"], Bool[Tensor, "batch piece"]]:
    """The positions of every document side by side, with what of it is real; never without a column."""
    width = max(1, *(len(document.positions) for document in units))
    index = torch.zeros(len(units), width, dtype=torch.int64)
    real = torch.zeros(len(units), width, dtype=torch.bool)
    for row, document in enumerate(units):
        index[row, : len(document.positions)] = document.positions
        real[row, : len(document.positions)] = True
    return index, real
