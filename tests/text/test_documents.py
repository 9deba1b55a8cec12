"""Documents are cut as a person cuts them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from topic_probe.text.documents import Document

pytestmark = pytest.mark.usefixtures("unchecked_module")

ids = st.integers(1, 49)


# --- cutting ------------------------------------------------------------------------------------------


@st.composite
def documents(draw):
    """Words of one to five tokens between special tokens: ids, word numbers and flags as lists."""
    before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    lengths = draw(st.lists(st.sampled_from([1, 1, 1, 2, 5]), min_size=1, max_size=9))
    words = [number for number, length in enumerate(lengths) for _ in range(length)]
    words = [-1 if draw(st.booleans()) and lengths[word] == 1 else word for word in words]
    words = [-1] * before + words + [-1] * after
    special = [True] * before + [False] * (len(words) - before - after) + [True] * after
    tokens = draw(st.lists(ids, min_size=len(words), max_size=len(words)))
    return tokens, words if draw(st.booleans()) else None, special


def cut_by_hand(document, max_length):
    """The pieces of a document: as many words as fit, and of a word that never fits as many tokens, none a word."""
    tokens, words, special = document
    words = list(range(len(tokens))) if words is None else words
    first = special.index(False)
    last = len(special) - special[::-1].index(False)
    room = max_length - first - (len(tokens) - last)
    pieces, place = [], first
    while place < last:
        end = min(place + room, last)
        whole_until = end
        while whole_until > place and is_inside_a_word(words, whole_until, last):
            whole_until -= 1
        end = whole_until if whole_until > place else end
        kept = [*range(first), *range(place, end), *range(last, len(tokens))]
        parted = {words[at] for at in (place, end) if is_inside_a_word(words, at, last)}
        pieces.append(
            (
                [tokens[at] for at in kept],
                [-1 if words[at] in parted else words[at] for at in kept],
                [special[at] for at in kept],
            )
        )
        place = end
    return pieces


def is_inside_a_word(words, place, last):
    return place < last and words[place] == words[place - 1] >= 0


@settings(max_examples=200)
@given(documents(), st.integers(1, 9))
def test_pieces_are_those_that_a_person_cuts(document, max_length):
    tokens, words, special = document
    made = Document(
        torch.tensor(tokens), None if words is None else torch.tensor(words), torch.tensor(special)
    )
    if max_length <= sum(special):
        with pytest.raises(
            ValueError, match=f"room for a token beside the {sum(special)} special ones, got {max_length}"
        ):
            list(made.pieces(max_length, torch.tensor(special)))
        return
    found = list(made.pieces(max_length, torch.tensor(special)))
    expected = cut_by_hand(document, max_length)
    assert [(piece.ids.tolist(), piece.special.tolist()) for piece in found] == [
        (a, c) for a, _, c in expected
    ]
    if words is not None:
        assert [piece.word_index.tolist() for piece in found] == [part for _, part, _ in expected]
    assert {piece.source for piece in found} == {made.key}
    inside = slice(special.index(False), len(special) - special[::-1].index(False))
    kept = [
        token
        for piece in found
        for token, flag in zip(piece.ids.tolist(), piece.special.tolist(), strict=True)
        if not flag
    ]
    assert kept == tokens[inside]
