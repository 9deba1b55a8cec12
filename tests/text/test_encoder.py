"""Texts become documents by the model's own tokenizer, and what is a word is read off the text."""

import copy
import unicodedata
from itertools import pairwise

import numpy as np
import pytest
import transformers as hf
from real_text import minilm_folder
from tokenizer_kinds import BY_HAND, KINDS

from topic_probe.text.corpus import Corpus
from topic_probe.text.documents import source_key
from topic_probe.text.encoder import encode_texts


@pytest.fixture(scope="module")
def wordpiece():
    return hf.AutoTokenizer.from_pretrained(minilm_folder())


BYTES = [*(chr(byte) for byte in "a bc é".encode()), "</s>"]  # é is two


@pytest.mark.parametrize(
    ("make", "text", "tokens", "words", "special"),
    [
        ("wordpiece", "The unbelievable frog.", "[CLS] the unbelievable frog . [SEP]", [-1, 0, 1, 2, -1, -1], [0, 5]),
        ("wordpiece", "the [MASK] frog", "[CLS] the [MASK] frog [SEP]", [-1, 0, -1, 2, -1], [0, 2, 4]),
        ("wordpiece", "frogspawn", "[CLS] frogs ##pa ##wn [SEP]", [-1, 0, 0, 0, -1], [0, 4]),
        (hf.ByT5Tokenizer, "a bc é", None, [0, -1, 1, 1, -1, 2, 2, -1], [7]),  # a slow one: by what it decodes to
    ],
)  # fmt: skip
def test_tokenizers_of_every_kind_have_the_words_of_the_text(make, text, tokens, words, special, wordpiece):
    tokenizer = wordpiece if make == "wordpiece" else make()
    (document,) = encode_texts([text], tokenizer)
    assert tokenizer.convert_ids_to_tokens(document.ids.tolist()) == (tokens.split() if tokens else BYTES)
    assert document.word_index.tolist() == words
    assert document.whole.tolist() == [word >= 0 and words.count(word) == 1 for word in words]
    assert document.special.nonzero().flatten().tolist() == special


ODD = ["🐸🐸 emoji", "שלום", "a\x00b", "", "   ", "[CLS] [MASK]", "e\u0301", "word" * 200, "\u200b", "日本語"]


@pytest.mark.parametrize("make", ["wordpiece", hf.ByT5Tokenizer])
def test_odd_texts_are_encoded_as_the_tokenizer_encodes_them(make, wordpiece):
    tokenizer = wordpiece if make == "wordpiece" else make()
    for text, document in zip(ODD, encode_texts(ODD, tokenizer), strict=True):
        assert document.ids.tolist() == tokenizer(text)["input_ids"]
        specials = [index in tokenizer.all_special_ids for index in document.ids.tolist()]
        assert document.special.tolist() == specials


def test_padding_and_cutting_of_the_tokenizer_are_not_used(wordpiece):
    tokenizer = copy.deepcopy(wordpiece)
    tokenizer.backend_tokenizer.enable_truncation(128)
    tokenizer.backend_tokenizer.enable_padding(length=128)
    lengths = [len(document) for document in encode_texts(["frog " * 200, "frog"], tokenizer)]
    assert lengths == [202, 3]


@pytest.mark.parametrize(
    ("texts", "options", "match"),
    [
        ("one text", {}, "texts must be a list, got 'one text': put a single one into a list"),
        (["fine", None], {}, "text 1 must be a string, not NoneType"),
        (["fine", "half \ud83d"], {}, r"text 1 is no valid Unicode \(it holds half a character\)"),
        (["the army"], {"max_length": 2}, "room for a token beside the 2 special ones, got 2"),
        (["the army"], {"begin_token": True}, "needs a tokenizer with a begin token"),
        (["the army"], {"sources": [float("nan")]}, "the label of a source is missing"),
        (["the army"], {"sources": [1, 2]}, "sources needs a label for every text"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("unchecked")
def test_texts_and_labels_that_are_none_are_refused_by_name(texts, options, match, wordpiece):
    with pytest.raises((TypeError, ValueError), match=match):
        list(encode_texts(texts, wordpiece, **options))


def bare(text):
    """The letters and digits of a text, without case and accents."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(letter for letter in decomposed if letter.isalnum())


def spelled(tokenizer, ids):
    """What every token adds to the text, by decoding growing prefixes: no offsets, no word numbers."""
    grown = [tokenizer.decode(ids[:n], clean_up_tokenization_spaces=False) for n in range(len(ids) + 1)]
    grown = [text.replace("\ufffd", "") for text in grown]
    return [longer[len(shorter) :] for shorter, longer in pairwise(grown)]


def whole_by_hand(tokenizer, ids, parts):
    """Which tokens are a word: their letters are those of a word, and no other token has an accent of it."""
    begins, reached = {}, 0
    for part in parts.split():
        letters = bare(part.removeprefix("-"))
        begins[reached] = "" if part.startswith("-") else letters
        reached += len(letters)
    flags, place, last = [], 0, None
    for added in spelled(tokenizer, ids):
        letters = bare(added)
        flags.append(bool(letters) and begins.get(place) == letters)
        if not letters and any(unicodedata.combining(mark) for mark in added) and last is not None:
            flags[last] = False
        last = len(flags) - 1 if letters else last
        place += len(letters)
    assert place == reached  # nothing of the text was lost
    return flags


@pytest.mark.parametrize("kind", KINDS)
def test_whole_words_are_those_that_a_person_reads_in_the_text(kind):
    tokenizer, n_read = KINDS[kind], 0
    for name, (given, parts) in BY_HAND.items():
        (document,) = encode_texts([given], tokenizer, add_special_tokens=False)
        ids = document.ids.tolist()
        if tokenizer.unk_token_id in ids:
            continue  # a letter of this text is unknown to this tokenizer, so that decoding does not show it
        wanted = whole_by_hand(tokenizer, ids, parts)
        # Of a character in several byte tokens the last one shows it, so decoding takes that one for the whole.
        several = [piece == "" for piece in spelled(tokenizer, ids)]
        wanted = [
            flag and not (n and several[n - 1] and tokenizer.decode([ids[n]]) in ("", "\ufffd"))
            for n, flag in enumerate(wanted)
        ]
        assert document.whole.tolist() == wanted, name
        n_read += 1
    assert n_read >= 7


def test_a_tokenizer_that_says_nothing_of_places_is_read_by_decoding_or_refused():
    """The same tokenizer with its offsets held back, as slow ones do, and one whose tokens do not spell the text."""
    tokenizer = KINDS["wordpiece"]

    class Slow:
        is_fast = False

        def __getattr__(self, name):
            return getattr(tokenizer, name)

        def __call__(self, texts, **options):
            options.pop("return_offsets_mapping", None)
            return tokenizer(texts, **options)

    class Wrong(Slow):
        def decode(self, ids, **_):
            return "a" * len(ids)

    for given, _ in BY_HAND.values():
        (wanted,) = encode_texts([given], tokenizer, add_special_tokens=False)
        (found,) = encode_texts([given], Slow(), add_special_tokens=False)
        assert found.whole.tolist() == wanted.whole.tolist(), given
    with pytest.raises(
        ValueError, match=r"text 0 \('army'\) cannot be read: Wrong does not say where its tokens"
    ):
        list(encode_texts(["army"], Wrong(), add_special_tokens=False))


def test_a_text_is_a_source_of_its_own_unless_it_is_told_of_another(wordpiece):
    texts = ["the army", "the band", "the army", "a song"]
    alone = [document.origin for document in encode_texts(texts, wordpiece)]
    assert [alone.index(source) for source in alone] == [0, 1, 0, 3]  # the same text is the same source
    told = [document.origin for document in encode_texts(texts, wordpiece, sources=iter("AABB"))]
    assert [told.index(source) for source in told] == [0, 0, 2, 2]


def test_equal_labels_are_one_source_and_others_another():
    for labels in ([1, 2.5, np.int64(1)], [("a", 1), ("a", 2), ("a", 1)], [b"a", "a", b"a"], ["1", 1, "1"]):
        first, second, third = map(source_key, labels)
        assert first == third != second, labels


def test_a_begin_token_is_put_where_the_tokenizer_puts_none_and_nowhere_twice(wordpiece):
    tokenizer = copy.deepcopy(KINDS["byte-level"])
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    begin = tokenizer.bos_token_id
    (plain,), (begun,) = (encode_texts(["the frog"], tokenizer, begin_token=add) for add in (False, True))
    assert begun.ids.tolist() == [begin, *plain.ids.tolist()]
    assert begun.special.tolist() == [True] + [False] * len(plain)
    assert begun.word_index.tolist() == [-1, *plain.word_index.tolist()]
    # It has its place in what a document may hold, and every piece begins with it.
    corpus = Corpus.from_texts(["army army army army army army"])
    pieces = list(corpus.documents(tokenizer, max_length=3, long="chunk", begin_token=True))
    assert [(piece.ids[0].item(), len(piece)) for piece in pieces] == [(begin, 3)] * 3
    wordpiece = copy.deepcopy(wordpiece)
    wordpiece.bos_token = wordpiece.cls_token
    assert next(encode_texts(["the frog"], wordpiece, begin_token=True)).ids[:2].tolist() == [101, 1996]
