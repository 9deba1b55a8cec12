"""Which positions of a batch carry a topic: the only rows and columns of a pattern that a measurement needs."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from topic_probe.text.documents import Document
from topic_probe.topics import Topics

Level = Literal["token", "word"]


@dataclass(frozen=True)
class Units:
    """The words (or tokens) of one document that carry a topic, and the positions that make them up.

    Attributes:
        entries: vocabulary entry of every unit.
        first: position of its first token; distances between units are counted from here.
        positions: the positions of all units, ascending within a unit.
        unit_of: the unit that every one of ``positions`` belongs to.
        n_pieces_left_out: labelled tokens that are only pieces of split words, and so no units.
    """

    entries: Int64[Tensor, " unit"]
    first: Int64[Tensor, " unit"]
    positions: Int64[Tensor, " piece"]
    unit_of: Int64[Tensor, " piece"]
    n_pieces_left_out: int = 0

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def single(self) -> bool:
        """Whether every unit is one token."""
        return len(self.positions) == len(self.entries)


def labelled_units(
    ids: Int64[Tensor, " position"],
    special: Bool[Tensor, " position"],
    word_index: Int64[Tensor, " position"] | None,
    topics: Topics,
    *,
    level: Level,
) -> Units:
    """The units of one document that carry a topic.

    Special tokens carry none. Where the tokenizer said which tokens form a word, neither do the pieces of split words,
    except at word level for split words that the topics know as a whole.
    """
    document = Document(ids, word_index)
    whole = torch.ones_like(special) if document.whole is None else document.whole
    # Entries beyond the vocabulary are split words; a padded table may use such ids for something else.
    labelled = (topics.labels(ids) >= 0) & (ids < topics.vocabulary_size) & ~special
    positions = (labelled & whole).nonzero().flatten()
    entries = ids[positions]
    n_pieces = int((labelled & ~whole).sum())
    units = Units(entries, positions, positions, torch.arange(len(positions)), n_pieces)
    if level == "token" or not topics.compounds or word_index is None:
        return units
    return _with_compounds(units, ids, word_index, topics)


def _with_compounds(units: Units, ids: Tensor, word_index: Tensor, topics: Topics) -> Units:
    """Adds the split words that the topics know, in the order of the document."""
    known = {pieces: topics.vocabulary_size + number for number, pieces in enumerate(topics.compounds)}
    found: list[tuple[int, int, list[int]]] = [
        (int(position), int(entry), [int(position)])
        for position, entry in zip(units.positions, units.entries, strict=True)
    ]
    numbers, starts = torch.unique_consecutive(word_index, return_inverse=True)
    for run in (starts.bincount() > 1).nonzero().flatten().tolist():
        positions = (starts == run).nonzero().flatten()
        entry = known.get(tuple(ids[positions].tolist()))
        if numbers[run] >= 0 and entry is not None:
            found.append((int(positions[0]), entry, positions.tolist()))
    found.sort()
    pieces = [(position, unit) for unit, (_, _, positions) in enumerate(found) for position in positions]
    return Units(
        torch.tensor([entry for _, entry, _ in found], dtype=torch.int64),
        torch.tensor([first for first, _, _ in found], dtype=torch.int64),
        torch.tensor([position for position, _ in pieces], dtype=torch.int64),
        torch.tensor([unit for _, unit in pieces], dtype=torch.int64),
        units.n_pieces_left_out,
    )


def padded_positions(units: list[Units]) -> tuple[Int64[Tensor, "batch row"], Bool[Tensor, "batch row"]]:
    """The positions of every document side by side, with what of it is real; never without a column."""
    width = max(1, max(len(one.positions) for one in units))
    index = torch.zeros(len(units), width, dtype=torch.int64)
    real = torch.zeros(len(units), width, dtype=torch.bool)
    for row, one in enumerate(units):
        index[row, : len(one.positions)] = one.positions
        real[row, : len(one.positions)] = True
    return index, real


def between_units(
    scores: Float[Tensor, "head piece other"],
    visible: Bool[Tensor, "piece other"],
    n_visible: Float[Tensor, " piece"],
    asking: Units,
    asked: Units,
) -> tuple[Float[Tensor, "head unit other_unit"], Bool[Tensor, "unit other_unit"]]:
    """Attention between units relative to uniform attention, and which pairs there are.

    Attention *to* a unit is summed over its tokens, *from* a unit averaged over them; both the model's and uniform
    attention (1 over the number of keys that the row may see) are treated so, and the answer is their quotient: 1 under
    uniform attention whatever the number of pieces.
    """
    if asking.single and asked.single:
        return scores * n_visible[:, None].to(scores.dtype), visible
    average = _membership(asking, scores.dtype)
    average = average / average.sum(1, keepdim=True)
    total = _membership(asked, scores.dtype)
    uniform = visible.to(scores.dtype) / n_visible.clamp(min=1)[:, None].to(scores.dtype)
    expected = average @ uniform @ total.T
    pairs = expected > 0
    return (average @ scores @ total.T) / torch.where(pairs, expected, 1), pairs


def _membership(units: Units, dtype: torch.dtype) -> Float[Tensor, "unit piece"]:
    table = torch.zeros(len(units), len(units.positions), dtype=dtype)
    table[units.unit_of, torch.arange(len(units.positions))] = 1
    return table
