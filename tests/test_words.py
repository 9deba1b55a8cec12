"""What a whole word is, held to readings of the text that a person makes by hand."""

import numpy as np
import pytest

from topic_probe.words import form, segments, spans_by_decoding, whole_words, words_of_tokens


def words(text):
    found = segments(text)
    return [
        text[a:b] for a, b, is_word in zip(found.start, found.stop, found.is_word, strict=True) if is_word
    ]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The army's men, (army) army.", ["The", "army", "men", "army", "army"]),
        ("l'armée dell’arte qu'il", ["armée", "arte", "il"]),
        ("don't we'll o'clock they're I've", ["don't", "we'll", "o'clock", "they're", "I've"]),
        ("the dogs' bones and the cats’ too", ["the", "dogs", "bones", "and", "the", "cats", "too"]),
        ("included0 3.14 U.S.A. _private_ foo_bar", ["included0", "3.14", "U.S.A", "private", "foo_bar"]),
        ("cafe\u0301 so\u00adlo", ["cafe\u0301", "so\u00adlo"]),
        ("我爱北京", ["我", "爱", "北", "京"]),
        ("… — 🇫🇷 👨‍👩‍👧 !", []),
        ("", []),
    ],
)
def test_the_words_of_a_text(text, wanted):
    assert words(text) == wanted


def test_a_long_run_of_flags_takes_no_longer_than_other_text():
    # The time of the whole run grows with its square: 30,000 flags took minutes.
    assert words("🇫🇷" * 30_000 + " army") == ["army"]


def pieces(text, *parts):
    """Spans of parts of a text, each looked for behind the one before."""
    spans, reached = [], 0
    for part in parts:
        start = text.index(part, reached)
        spans.append((start, start + len(part)))
        reached = start + len(part)
    return np.array(spans)


@pytest.mark.parametrize(
    ("text", "parts", "whole"),
    [
        ("the army, lost", ["the", "army", ",", "lost"], ["the", "army", "lost"]),
        ("the army, lost", ["the", " army,", " lost"], ["the", " army,", " lost"]),
        ("army's", ["army", "'", "s"], ["army"]),
        ("army's", ["army's"], []),
        ("the bandleader", ["the", "band", "leader"], ["the"]),
        ("the bandleader", ["the", "band"], ["the"]),
        ("included0", ["included", "0"], []),
        ("the army", ["the army"], []),
        ("(army", ["(army"], ["(army"]),
        ("cafe\u0301 x", ["cafe", "x"], ["cafe", "x"]),
        ("cafe\u0301 x", ["cafe", "\u0301", "x"], ["x"]),
        ("l'armée", ["l", "'", "armée"], ["armée"]),
        ("l'armée", ["l'armée"], []),
        ("我爱", ["我爱"], []),
        ("我爱", ["我", "爱"], ["我", "爱"]),
    ],
)
def test_which_tokens_are_a_whole_word(text, parts, whole):
    flags = whole_words(words_of_tokens(text, pieces(text, *parts)))
    assert [part for part, flag in zip(parts, flags, strict=True) if flag] == whole


def test_two_tokens_of_one_letter_are_no_word_each_but_one_together():
    word = words_of_tokens("İ x", np.array([[0, 1], [0, 1], [2, 3]]))
    whole = whole_words(word)
    assert word.tolist() == [0, 0, 1]
    assert whole.tolist() == [False, False, True]


def test_pieces_of_one_word_have_its_number_and_tokens_of_several_words_none():
    text = "the bandleader, the army"
    word = words_of_tokens(text, pieces(text, "the", "band", "leader", ",", "the army"))
    whole = whole_words(word)
    assert word.tolist() == [0, 1, 1, -1, -1]
    assert whole.tolist() == [True, False, False, False, False]


def test_a_word_of_which_a_piece_is_missing_is_no_word():
    word = words_of_tokens("bandleader", np.array([[0, 4]]))
    assert word.tolist() == [-1]


@pytest.mark.parametrize("other", [" president", "PRESIDENT", "(President", "president's", "Ｐresident"])
def test_forms_of_one_word_are_one_word(other):
    assert form("President") == form(other)


@pytest.mark.parametrize(
    ("one", "other"), [("song", "songs"), ("army", "armies"), ("a b", "a"), ("band", "ban")]
)
def test_other_words_are_other_forms(one, other):
    assert form(one) != form(other)


@pytest.mark.parametrize(
    ("text", "pieces_", "unknown", "wanted"),
    [
        (
            "The Army's café", ["the", " army", " '", " s", " cafe"], [False] * 5,
            [(0, 3), (4, 8), (8, 9), (9, 10), (11, 15)],
        ),
        ("a ☃☃ b", ["a", "[UNK]", " b"], [False, True, False], [(0, 1), (2, 4), (5, 6)]),
        ("ab", ["a", "c"], [False, False], None),
        ("ab", ["a"], [False], None),
    ],
)  # fmt: skip
def test_tokens_are_found_in_the_text_by_decoding(text, pieces_, unknown, wanted):
    found = spans_by_decoding(text, pieces_, unknown)
    assert (None if found is None else [tuple(span) for span in found.tolist()]) == wanted
