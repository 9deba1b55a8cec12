"""What a whole word is, held to readings of the text that a person makes by hand."""

import unicodedata
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from topic_probe.words import form, segments, spans_by_decoding, whole_words, words_of_tokens


def words(text):
    found = segments(text)
    return [
        text[a:b] for a, b, is_word in zip(found.start, found.stop, found.is_word, strict=True) if is_word
    ]


BY_HAND = [
    ("The army's men, (army) army.", ["The", "army", "men", "army", "army"]),
    ("l'armée dell’arte qu'il", ["armée", "arte", "il"]),
    ("don't we'll o'clock they're I've", ["don't", "we'll", "o'clock", "they're", "I've"]),
    ("the dogs' bones and the cats’ too", ["the", "dogs", "bones", "and", "the", "cats", "too"]),
    ("included0 3.14 U.S.A. _private_ foo_bar", ["included0", "3.14", "U.S.A", "private", "foo_bar"]),
    ("cafe\u0301 so\u00adlo", ["cafe\u0301", "so\u00adlo"]),
    ("Zoe\u0301's cafe\u0301’s l'e\u0301te\u0301", ["Zoe\u0301", "cafe\u0301", "e\u0301te\u0301"]),
    ("我爱北京", ["我", "爱", "北", "京"]),
    ("… — 🇫🇷 👨‍👩‍👧 !", []),
    ("", []),
]


def test_the_words_of_a_text():
    for text, wanted in BY_HAND:
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


def test_pieces_of_one_word_have_its_number_and_tokens_of_several_words_or_of_no_whole_one_none():
    text = "the bandleader, the army"
    word = words_of_tokens(text, pieces(text, "the", "band", "leader", ",", "the army"))
    assert word.tolist() == [0, 1, 1, -1, -1]
    assert whole_words(word).tolist() == [True, False, False, False, False]
    # Two tokens of one letter are a word together; one with a piece missing, also in its middle, is none.
    assert words_of_tokens("İ x", np.array([[0, 1], [0, 1], [2, 3]])).tolist() == [0, 0, 1]
    assert words_of_tokens("bandleader", np.array([[4, 10]])).tolist() == [-1]
    assert words_of_tokens("the naïve", pieces("the naïve", "the", "na", "ve")).tolist() == [0, -1, -1]


def test_forms_of_one_word_are_one_and_inflections_have_one_stem():
    for other in (" president", "PRESIDENT", "(President", "president's", "Ｐresident"):
        assert form("President") == form(other)
    for one, other in [("song", "songs"), ("army", "armies"), ("a b", "a"), ("band", "ban")]:
        assert form(one) != form(other)
    assert {form(text, "stem") for text in ("song", "Songs", " songs", "SONG's")} == {"song"}
    assert form("battles", "stem") == form("battled", "stem") == form("battle", "stem") != form("bat", "stem")
    assert form("men", "stem") != form("man", "stem")  # Porter's rules know endings, not words


@pytest.mark.parametrize(
    ("text", "pieces_", "unknown", "wanted"),
    [
        ("The Army's", ["the", " army", " '", " s"], [False] * 4, [(0, 3), (4, 8), (8, 9), (9, 10)]),
        ("a ☃☃ b", ["a", "[UNK]", " b"], [False, True, False], [(0, 1), (2, 4), (5, 6)]),
        ("ab", ["a", "c"], [False, False], None),
        ("ab", ["a"], [False], None),
    ],
)  # fmt: skip
def test_tokens_are_found_in_the_text_by_decoding(text, pieces_, unknown, wanted):
    found = spans_by_decoding(text, pieces_, unknown)
    assert (None if found is None else [tuple(span) for span in found.tolist()]) == wanted


# --- any text, against the rule read once more, letter by letter --------------------------------------

# Letters of every kind that the rule tells apart: a cased and an uncased script, digits, marks and format characters,
# what joins letters or digits, and what parts them. The word breaks below know these and no others.
LETTERS = "aesALdtunqéжא٣7"
MARKS, MID_LETTER, MID_NUMBER, MID_BOTH, JOINER, OTHER = "\u0301\u00ad", ":·", ",;", ".'’", "_", " -(我!"
ARTICLES = {
    "c", "d", "j", "l", "m", "n", "s", "t", "qu", "jusqu", "lorsqu", "puisqu", "quoiqu",
    "all", "coll", "dall", "dell", "nell", "sull", "bell", "quell", "sant", "un",
}  # fmt: skip
# fmt: off
texts = st.one_of(
    st.text(LETTERS + MARKS + MID_LETTER + MID_NUMBER + MID_BOTH + JOINER + OTHER, max_size=24),
    # Words as people write them, which letters drawn one by one seldom give.
    st.lists(
        st.sampled_from(
            ["l'", "dell’", "un", "army", "band", "'s", "’S", "n't", " ", ",", "\u0301", "\u00ad", "3.1", "我"]
        ),
        max_size=12,
    ).map("".join),
)
# fmt: on


def kind(letter):
    """The class of a letter in the word breaks of Unicode."""
    for name in ("MARKS", "MID_LETTER", "MID_NUMBER", "MID_BOTH", "JOINER", "OTHER"):
        if letter in globals()[name]:
            return name
    return "DIGIT" if unicodedata.category(letter) == "Nd" else "LETTER"


def breaks(text):
    """Whether there is a boundary before every letter but the first: rules WB3 to WB13b of UAX #29."""
    kept = [place for place, letter in enumerate(text) if kind(letter) != "MARKS"]

    def between(place):
        if kind(text[place]) == "MARKS":  # WB4, and a mark at the very beginning stands alone
            return False
        if text[place - 1] == text[place] == " ":  # WB3d
            return False
        number = kept.index(place)
        before, after = ([kind(text[i]) for i in part] for part in (kept[:number][::-1], kept[number:]))
        one, other = before[0] if before else "START", after[0]
        letters, joining = {"LETTER"}, {"MID_LETTER", "MID_BOTH"}
        digits, counting = {"DIGIT"}, {"MID_NUMBER", "MID_BOTH"}
        for wanted, middle in ((letters, joining), (digits, counting)):
            if {one} <= wanted and other in middle and after[1:2] and after[1] in wanted:  # WB6, WB12
                return False
            if one in middle and other in wanted and before[1:2] and before[1] in wanted:  # WB7, WB11
                return False
        whole = letters | digits
        joined = (one in whole and other in whole) or (one in whole | {"JOINER"} and other == "JOINER")
        return not (joined or (one == "JOINER" and other in whole))  # WB5, 8 to 10, 13a, 13b

    return [between(place) for place in range(1, len(text))]


def read_words(text):
    """Beginning, end, end without marks and whether it is a word, of all words and of what is cut off them."""
    found, start = [], 0
    for stop in [place for place, is_break in enumerate(breaks(text), 1) if is_break] + [len(text)]:
        places = [place for place in range(start, stop) if unicodedata.category(text[place])[0] in "LN"]
        start = stop
        if not places:
            continue
        begin, end = places[0], places[-1] + 1
        while end < stop and unicodedata.category(text[end]) in ("Mn", "Cf"):
            end += 1
        head = text[begin:end].replace("’", "'").lower().split("'")
        if len(head) > 1 and head[0] in ARTICLES and head[1] and unicodedata.category(head[1][0])[0] == "L":
            found.append((begin, begin + len(head[0]) + 1, begin + len(head[0]) + 1, False))
            begin += len(head[0]) + 1
        word = text[begin:end]
        bare = word[:-2].rstrip(MARKS[0])
        after_letter = bare and unicodedata.category(bare[-1])[0] == "L"
        owns = word[-2:].replace("’", "'").lower() == "'s" and after_letter
        last = end - 2 if owns else end
        found.append((begin, last, begin + len(text[begin:last].rstrip(MARKS)), True))
        if owns:
            found.append((last, end, end, False))
    return found


@given(texts)
@example("l'army's")
@example("d'7 un' l's s'S")
def test_the_words_of_any_text_are_those_of_the_rule_read_letter_by_letter(text):
    found = segments(text)
    columns = (found.start, found.stop, found.core, found.is_word)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == read_words(text)


@st.composite
def tokenizations(draw):
    """A text, and spans of tokens in it: one behind the other as of a tokenizer, or anywhere."""
    text = draw(texts)
    places = st.integers(0, len(text))
    if draw(st.booleans()):
        ends = [place for start, stop, *_ in read_words(text) for place in (start, stop)]
        cuts = sorted(
            {0, len(text), *ends, *draw(st.lists(places, max_size=9))} - draw(st.sets(places, max_size=3))
        )
        spans = list(pairwise(cuts))
        dropped = draw(st.sets(st.integers(0, max(0, len(spans) - 1)), max_size=2))
        spans = [span for number, span in enumerate(spans) if number not in dropped]
    else:
        spans = [tuple(sorted(draw(st.tuples(places, places)))) for _ in range(draw(st.integers(0, 8)))]
    return text, spans


def read_tokens(text, spans):
    """The word of every token, by what the rule says of the letters of each."""
    words = read_words(text)
    touched = [
        [number for number, (start, stop, *_) in enumerate(words) if max(a, start) < min(b, stop)]
        for a, b in spans
    ]
    answer = [-1] * len(spans)
    for number, (start, _, core, is_word) in enumerate(words):
        tokens = [token for token, others in enumerate(touched) if number in others]
        covered = {place for token in tokens for place in range(*spans[token])}
        missing = [text[place] for place in range(start, core) if place not in covered]
        ends = {start, core - 1} <= covered
        own = all(touched[token] == [number] for token in tokens)
        if is_word and ends and own and set(missing) <= set(MARKS):
            for token in tokens:
                answer[token] = number
    return answer


@given(tokenizations())
@example(("bandleader", [(0, 4), (8, 10)]))
@example(("so\u00adlo", [(0, 2), (3, 5)]))
def test_the_words_of_any_tokens_are_those_whose_letters_they_have_and_no_others(case):
    text, spans = case
    found = words_of_tokens(text, np.array(spans, dtype=np.int64).reshape(-1, 2))
    assert found.tolist() == read_tokens(text, spans)


@given(texts)
def test_the_form_of_any_text_is_that_of_its_only_word_and_stays_its_own_form(text):
    words = [text[start:stop] for start, stop, _, is_word in read_words(text) if is_word]
    expected = words[0] if len(words) == 1 else text.strip()
    assert form(text) == unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", expected).casefold())
