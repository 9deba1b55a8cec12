"""THE rule: what a whole word is, which tokens are one, and when two words are forms of one word.

A word is read off the text, never off a tokenizer's own word numbers, which differ between tokenizers: WordPiece
parts "army," into two words, Metaspace counts the comma to the word, and a tokenizer without pre-tokenizer calls a
whole text one word. The *uncut* text is parted at Unicode's word boundaries (UAX #29). What lies between two of them
is a word if it has a letter or a digit. An elided article before it (l', d', dell') and a possessive 's behind it are
cut off; n't, 'll, 're and 've are not. So "army" is a word in "army,", "army's" and "(army", and neither "band" of
"bandleader" nor "included" of "included0" is one.

Scripts that are written without spaces are parted as UAX #29 does it, Chinese and Thai into single characters.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import regex
from jaxtyping import Bool, Int64

_BOUNDARY = regex.compile(r"(?w)\b")
# What counts of a segment: underscores join letters for UAX #29, but belong to no word at its ends.
_CORE = regex.compile(r"[\p{L}\p{N}](?:.*[\p{L}\p{N}])?[\p{M}\p{Cf}]*", regex.DOTALL)
_TRAILING = regex.compile(r"[\p{M}\p{Cf}]*\Z")
_APOSTROPHE = "['’]"
_ELIDED = regex.compile(
    rf"(?:[cdjlmnst]|qu|jusqu|lorsqu|puisqu|quoiqu|all|coll|dall|dell|nell|sull|bell|quell|sant|un){_APOSTROPHE}(?=\p{{L}})",
    regex.IGNORECASE,
)
_POSSESSIVE = regex.compile(rf"(?<=\p{{L}}\p{{M}}*){_APOSTROPHE}s\Z", regex.IGNORECASE)

# Boundaries are looked for in runs of at most so many characters: a run of flags takes the square of its length.
_LONGEST_RUN = 1000
_LONG_RUN = re.compile(rf"\S{{{_LONGEST_RUN + 1}}}")
# Marks and format characters, which belong to the letter before them, are not passed over by `regex` where it looks at
# what stands before and behind an apostrophe, a colon or the like: "é's" of two characters would be parted.
_PASSED_OVER = regex.compile(r"[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]")
_MIDDLE = r"[\p{WB=MidLetter}\p{WB=MidNum}\p{WB=MidNumLet}\p{WB=Single_Quote}\p{WB=Double_Quote}]"
_MARKED_MIDDLE = regex.compile(rf"{_PASSED_OVER.pattern}{_MIDDLE}|{_MIDDLE}{_PASSED_OVER.pattern}")

_WITHOUT_SPACES = regex.compile(r"[\p{Han}\p{Hiragana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")


@dataclass(frozen=True)
class Segments:
    """The words of a text and what was cut off them, by place; segments lie apart and ascend.

    Attributes:
        start: where each begins.
        stop: where each ends, marks and format characters behind it included.
        core: where each ends without these.
        is_word: False for an article or possessive that was cut off.
    """

    start: Int64[np.ndarray, " segment"]
    stop: Int64[np.ndarray, " segment"]
    core: Int64[np.ndarray, " segment"]
    is_word: Bool[np.ndarray, " segment"]


def segments(text: str) -> Segments:
    """The words of a text, and the letters that were cut off them."""
    spans: list[tuple[int, int, int, bool]] = []
    for start, stop in _between_boundaries(text):
        if text[start:stop].isalnum():  # most words: nothing to cut off
            spans.append((start, stop, stop, True))
        elif (core := _CORE.search(text, start, stop)) is not None:
            spans += _parts(text, core.start(), core.end())
    columns = np.array(spans, dtype=np.int64).reshape(-1, 4).T
    return Segments(columns[0], columns[1], columns[2], columns[3].astype(bool))


def _between_boundaries(text: str) -> list[tuple[int, int]]:
    """Beginning and end of everything that lies between two word boundaries."""
    runs = [(0, text)]
    if _LONG_RUN.search(text):
        runs = [(match.start(), match[0]) for match in re.finditer(rf"\S{{1,{_LONGEST_RUN}}}", text)]
    found: list[tuple[int, int]] = []
    for start, run in runs:
        found += pairwise(start + place for place in _boundaries(run))
    return found


def _boundaries(text: str) -> list[int]:
    """Where word boundaries lie, beginning and end included."""
    if _MARKED_MIDDLE.search(text) is None:
        return [match.start() for match in _BOUNDARY.finditer(text)]
    kept = [place for place, letter in enumerate(text) if not (place and _PASSED_OVER.match(letter))]
    bare = "".join(text[place] for place in kept)
    return [[*kept, len(text)][match.start()] for match in _BOUNDARY.finditer(bare)]


def _parts(text: str, start: int, stop: int) -> list[tuple[int, int, int, bool]]:
    """A segment as a word, with an elided article and a possessive of their own."""
    parts = []
    if (article := _ELIDED.match(text, start, stop)) is not None:
        parts.append((start, article.end(), article.end(), False))
        start = article.end()
    possessive = _POSSESSIVE.search(text, start, stop)
    end = stop if possessive is None else possessive.start()
    trailing = _TRAILING.search(text, start, end)
    assert trailing is not None  # it may be empty, and is always there
    parts.append((start, end, max(trailing.start(), start + 1), True))
    if possessive is not None:
        parts.append((end, stop, stop, False))
    return parts


def words_of_tokens(text: str, spans: Int64[np.ndarray, "token 2"]) -> Int64[np.ndarray, " token"]:
    """The word that every token makes up, alone or with others; -1 for none.

    Tokens make up a word if their spans, without what surrounds the word in them, are one word of the text from
    beginning to end (marks and format characters in and behind it may be missing), and no token has any of it and of
    another one besides: a token that lies in several words, and all others in these, make up none.

    Args:
        text: the whole text that the tokens came from, however few of them are of interest.
        spans: for every token where it begins and ends in the text; an empty span for a token that has none of it.
    """
    found = segments(text)
    n_tokens, n_words = len(spans), len(found.start)
    if not n_words or not n_tokens:
        return np.full(n_tokens, -1)
    # The first segment that ends behind the beginning of a token, and the last one that begins before its end.
    first = np.searchsorted(found.stop, spans[:, 0], side="right")
    last = np.searchsorted(found.start, spans[:, 1], side="left") - 1
    touching = (first <= last) & (spans[:, 0] < spans[:, 1])
    single = touching & (first == last)
    word = np.where(single, first, 0)
    change = np.zeros(n_words + 1, dtype=np.int64)
    np.add.at(change, first[touching], 1)
    np.add.at(change, last[touching] + 1, -1)
    n_touching = change.cumsum()[:-1]
    n_inside = np.bincount(word[single], minlength=n_words)
    begun = np.bincount(word[single & (spans[:, 0] <= found.start[word])], minlength=n_words) > 0
    ended = np.bincount(word[single & (spans[:, 1] >= found.core[word])], minlength=n_words) > 0
    made_up = found.is_word & (n_touching == n_inside) & begun & ended
    made_up[_parted(text, spans, word, single)] = False
    return np.where(single & made_up[word], word, -1)


def _parted(
    text: str,
    spans: Int64[np.ndarray, "token 2"],
    word: Int64[np.ndarray, " token"],
    single: Bool[np.ndarray, " token"],
) -> list[int]:
    """Words of which a letter between two of their tokens is in none."""
    inside = np.flatnonzero(single)
    inside = inside[np.lexsort((spans[inside, 0], word[inside]))]
    if len(inside) < 2:
        return []
    # Words lie apart, so what was reached before a later token of a word was reached within it.
    reached = np.maximum.accumulate(spans[inside, 1])[:-1]
    start, of = spans[inside, 0][1:], word[inside]
    gaps = np.flatnonzero((of[1:] == of[:-1]) & (start > reached))
    between = ((int(of[gap]), text[reached[gap] : start[gap]]) for gap in gaps)
    return [number for number, letters in between if _TRAILING.match(letters) is None]


def whole_words(words: Int64[np.ndarray, " token"]) -> Bool[np.ndarray, " token"]:
    """Which tokens are a whole word: those that make up one alone, going by what `words_of_tokens` says of a text."""
    _, place, count = np.unique(words, return_inverse=True, return_counts=True)
    alone: np.ndarray = (words >= 0) & (count[place] == 1)
    return alone


Forms = Literal["case", "stem"]
"""Which words are forms of one: those that differ in case and the space around them only ("President", " president"),
or also inflections ("song", "songs"), going by Porter's rules for English words."""


@lru_cache(maxsize=2**17)
def form(text: str, forms: Forms = "case") -> str:
    """What all forms of one word have in common: the word in a text, NFKC and case folded, or the stem of that.

    "President", " president", "PRESIDENT" and "(president" are forms of one word. A text of several words, or of none,
    is a form as a whole, without the space around it. Stems are those of Porter's rules: "song" and "songs" have the
    same, "man" and "men" do not, and now and then neither do words that differ in more than inflection, as
    "university" and "universe" do.
    """
    found = segments(text)
    places = np.flatnonzero(found.is_word)
    word = text[found.start[places[0]] : found.stop[places[0]]] if len(places) == 1 else text.strip()
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", word).casefold())
    return folded if forms == "case" else _stemmer().stem(folded)


@cache
def _stemmer() -> Any:
    from gensim.parsing.porter import PorterStemmer

    return PorterStemmer()


def without_marks(text: str) -> str:
    """The letters of a text as a tokenizer may leave them: without case, accents, space, control characters."""
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold())
    return "".join(letter for letter in decomposed if unicodedata.category(letter)[0] not in "MZC")


def written_without_spaces(text: str) -> bool:
    """Whether a text has letters of a script whose words only UAX #29 parts here."""
    return _WITHOUT_SPACES.search(text) is not None


def spans_by_decoding(
    text: str, pieces: Sequence[str], unknown: Sequence[bool]
) -> Int64[np.ndarray, "token 2"] | None:
    """Where tokens lie in a text whose tokenizer does not say so, from what each of them adds to the decoded text.

    Case, accents and space do not count, because tokenizers change them. An unknown token stands for whatever lies
    between its neighbours. None where the tokens cannot be found in the text one behind the other.

    Args:
        text: the text.
        pieces: what every token adds to the text when growing prefixes are decoded.
        unknown: which of them are the unknown token.
    """
    letters, places = _letters_with_places(text)
    spans = np.zeros((len(pieces), 2), dtype=np.int64)
    reached = 0
    unplaced: list[int] = []  # unknown tokens, until the next known one says where they end
    beginnings: list[int] = []  # tokens that begin a character, until one ends it
    for number, (piece, is_unknown) in enumerate(zip(pieces, unknown, strict=True)):
        if is_unknown:
            unplaced.append(number)
        elif not piece:
            beginnings.append(number)
        elif wanted := without_marks(piece):
            begin = letters.find(wanted, reached) if unplaced else reached
            if begin < 0 or not letters.startswith(wanted, begin):
                return None
            spans[unplaced] = _place(places, reached, begin)
            spans[[*beginnings, number]] = _place(places, begin, begin + len(wanted))
            reached, unplaced, beginnings = begin + len(wanted), [], []
    if unplaced:
        spans[unplaced] = _place(places, reached, len(letters))
        return spans
    return spans if reached == len(letters) else None


def _letters_with_places(text: str) -> tuple[str, Sequence[int]]:
    letters: list[str] = []
    places: list[int] = []
    for place, character in enumerate(text):
        bare = without_marks(character)
        letters.append(bare)
        places += [place] * len(bare)
    return "".join(letters), [*places, len(text)]


def _place(places: Sequence[int], start: int, stop: int) -> tuple[int, int]:
    return (places[start], places[stop - 1] + 1) if stop > start else (0, 0)
