"""Texts become documents by the model's own tokenizer, and what is a word is read off the text."""

import copy
import os
import subprocess
import sys
import unicodedata
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from real_text import minilm_folder
from tokenizer_kinds import BY_HAND, KINDS
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from topic_probe.text.batches import token_batches
from topic_probe.text.corpus import Corpus
from topic_probe.text.documents import source_key
from topic_probe.text.encoder import encode_texts


@pytest.fixture(scope="module")
def wordpiece():
    return hf.AutoTokenizer.from_pretrained(minilm_folder())


def fast(backend, **specials):
    return hf.PreTrainedTokenizerFast(tokenizer_object=backend, **specials)


def byte_level():
    """GPT-2's kind: bytes, merges, a space in front of a word belongs to it; no token is unknown."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "f")]
    pieces = [*alphabet, *("".join(pair) for pair in merges), "<|endoftext|>"]
    backend = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return fast(backend, bos_token="<|endoftext|>", eos_token="<|endoftext|>")


def unigram():
    """T5's and XLM-R's kind: whole words behind a mark for the space, an end token added."""
    pieces = [
        ("<unk>", 0.0),
        ("</s>", 0.0),
        ("▁the", -1.0),
        ("▁f", -3.0),
        ("rog", -3.0),
        ("▁", -5.0),
        ("s", -6.0),
    ]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return fast(backend, unk_token="<unk>", eos_token="</s>")


def without_words():
    """Llama's kind: spaces become marks before anything is parted, so the whole text is one word to it."""
    pieces = {piece: number for number, piece in enumerate(["<unk>", "▁", "t", "h", "e", "f", "▁t"])}
    backend = Tokenizer(models.BPE(pieces, [("▁", "t")], unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return fast(backend, unk_token="<unk>")


def test_word_pieces_know_their_words_and_specials(wordpiece):
    (document,) = encode_texts(["The unbelievable frog."], wordpiece)
    tokens = wordpiece.convert_ids_to_tokens(document.ids.tolist())
    assert tokens == ["[CLS]", "the", "unbelievable", "frog", ".", "[SEP]"]
    assert document.word_index.tolist() == [-1, 0, 1, 2, -1, -1]
    assert document.whole.tolist() == [False, True, True, True, False, False]
    assert document.special.int().tolist() == [1, 0, 0, 0, 0, 1]
    (split,) = encode_texts(["frogspawn"], wordpiece, add_special_tokens=False)
    assert len(split) > 1
    assert split.word_index.tolist() == [0] * len(split)
    assert not split.whole.any()
    assert not split.special.any()


def test_byte_level_pieces_know_their_words():
    (document,) = encode_texts(["the frog"], byte_level())
    assert byte_level().convert_ids_to_tokens(document.ids.tolist()) == ["the", "Ġf", "r", "o", "g"]
    assert document.word_index.tolist() == [0, 1, 1, 1, 1]


def test_unigram_pieces_know_their_words_and_specials():
    (document,) = encode_texts(["the frog the"], unigram())
    assert unigram().convert_ids_to_tokens(document.ids.tolist()) == ["▁the", "▁f", "rog", "▁the", "</s>"]
    assert document.word_index.tolist() == [0, 1, 1, 2, -1]
    assert document.special.int().tolist() == [0, 0, 0, 0, 1]


def test_words_are_read_off_the_text_where_a_tokenizer_takes_it_for_one_word():
    tokenizer = without_words()
    assert set(tokenizer("the fe").word_ids()) == {0}  # the failure: every token would be a piece of one word
    (document,) = encode_texts(["the fe t"], tokenizer)
    assert tokenizer.convert_ids_to_tokens(document.ids.tolist()) == ["▁t", "h", "e", "▁", "f", "e", "▁t"]
    assert document.word_index.tolist() == [0, 0, 0, -1, 1, 1, 2]
    assert document.whole.tolist() == [False] * 6 + [True]


def test_a_slow_tokenizer_is_read_by_what_it_decodes_to():
    tokenizer = hf.ByT5Tokenizer()
    assert not tokenizer.is_fast
    (document,) = encode_texts(["a bc é"], tokenizer)
    assert document.ids.tolist() == [*(byte + 3 for byte in "a bc é".encode()), 1]
    # The two bytes of é are one word between them, and so are b and c; a is one by itself.
    assert document.word_index.tolist() == [0, -1, 1, 1, -1, 2, 2, -1]
    assert document.whole.tolist() == [True] + [False] * 7
    assert document.special.int().tolist() == [0, 0, 0, 0, 0, 0, 0, 1]


ODD = [
    "🐸🐸 emoji",
    "שלום עולם",
    "a\x00b",
    "",
    "   ",
    "[CLS] [MASK]",
    "e\u0301",
    "word" * 200,
    "\u200b",
    "日本語",
]


@pytest.mark.parametrize("make", ["wordpiece", "byte_level", "unigram", "without_words", "slow"])
def test_odd_texts_are_encoded_as_the_tokenizer_encodes_them(make, wordpiece):
    makers = {
        "byte_level": byte_level,
        "unigram": unigram,
        "without_words": without_words,
        "slow": hf.ByT5Tokenizer,
    }
    tokenizer = wordpiece if make == "wordpiece" else makers[make]()
    documents = list(encode_texts(ODD, tokenizer))
    assert len(documents) == len(ODD)
    for text, document in zip(ODD, documents, strict=True):
        assert document.ids.tolist() == tokenizer(text)["input_ids"]
        specials = [index in tokenizer.all_special_ids for index in document.ids.tolist()]
        assert document.special.tolist() == specials
    rows = [
        row[kept].tolist()
        for batch in token_batches(documents)
        for row, kept in zip(batch.ids, batch.mask, strict=True)
    ]
    assert sorted(rows) == sorted(document.ids.tolist() for document in documents if len(document))


def test_texts_are_cut_with_their_special_tokens_kept(wordpiece):
    (document,) = encode_texts(["frog " * 600], wordpiece, max_length=16)
    assert len(document) == 16
    assert document.ids[[0, -1]].tolist() == [101, 102]
    (document,) = encode_texts(["frog " * 600], wordpiece)
    assert len(document) == 602


def test_the_tokenizer_comes_back_as_it_was_and_its_own_padding_and_cutting_are_not_used():
    tokenizer = hf.AutoTokenizer.from_pretrained(minilm_folder())
    before = tokenizer.backend_tokenizer.to_str()
    assert tokenizer.backend_tokenizer.truncation["max_length"] == 128
    assert tokenizer.backend_tokenizer.padding is not None
    lengths = []
    for document in encode_texts(["frog " * 200, "frog"], tokenizer):
        lengths.append(len(document))
        assert tokenizer.backend_tokenizer.to_str() == before
    assert lengths == [202, 3]
    (document,) = encode_texts(["frog " * 200], tokenizer, max_length=5)
    assert len(document) == 5
    assert tokenizer.backend_tokenizer.to_str() == before


def test_a_padded_batch_of_a_tokenizer_gives_the_ids_of_its_texts_without_their_words(wordpiece):
    texts = ["the frogspawn", "a toad and a longer text", "newt"]
    batch = wordpiece(texts, padding=True, return_tensors="pt", return_special_tokens_mask=True)
    ragged = wordpiece(texts, padding=False, truncation=False, return_special_tokens_mask=True)
    single = [wordpiece(text, padding=False, return_special_tokens_mask=True) for text in texts]
    (expected,) = token_batches(encode_texts(texts, wordpiece))
    for given in (batch, ragged, single):
        (found,) = token_batches(given, pad_id=0)
        for name in ("ids", "mask", "keys", "special"):
            assert torch.equal(getattr(found, name), getattr(expected, name)), name
        assert found.without_words.all()
        assert torch.equal(found.whole, found.mask & ~found.special)


def test_all_documents_of_a_text_have_its_source(wordpiece):
    one, same, other = encode_texts(["frog toad", "frog toad", "newt"], wordpiece)
    assert one.source == same.source != other.source
    pieces = next(
        iter(token_batches(encode_texts(["frog toad newt " * 20], wordpiece), max_length=9, long="chunk"))
    )
    (whole,) = encode_texts(["frog toad newt " * 20], wordpiece)
    assert set(pieces.sources.tolist()) == {whole.source}


@pytest.mark.parametrize(
    ("texts", "error", "match"),
    [
        ("one text", TypeError, "texts must be a list, got 'one text': put a single one into a list"),
        (["fine", None], TypeError, "text 1 must be a string, not NoneType"),
        (["fine", b"bytes"], TypeError, "text 1 must be a string, not bytes"),
        (
            ["fine", "half \ud83d a frog"],
            ValueError,
            r"text 1 is no valid Unicode \(it holds half a character\)",
        ),
    ],
)
def test_what_is_no_text_is_refused_by_name(texts, error, match, wordpiece):
    with pytest.raises(error, match=match):
        # An iterator, because the type checker of the tests would look into a list before the code does.
        list(encode_texts(texts if isinstance(texts, str) else iter(texts), wordpiece))


def test_a_bare_text_is_refused_before_anything_is_read(wordpiece):
    with pytest.raises(TypeError, match=r"texts must be a list, got .*: put a single one into a list"):
        encode_texts("one text", wordpiece)


def test_texts_are_streamed(wordpiece):
    taken = []
    stream = encode_texts((taken.append(number) or f"frog {number}" for number in range(10**9)), wordpiece)
    next(stream)
    assert taken == [0]
    next(stream)
    assert taken == [0, 1]


# ------------------------------------------------------------------------- one rule, whatever the tokenizer


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


@pytest.mark.parametrize("text", BY_HAND)
@pytest.mark.parametrize("kind", KINDS)
def test_whole_words_are_those_that_a_person_reads_in_the_text(kind, text):
    tokenizer, (given, parts) = KINDS[kind], BY_HAND[text]
    (document,) = encode_texts([given], tokenizer, add_special_tokens=False)
    ids = document.ids.tolist()
    if tokenizer.unk_token_id in ids:
        pytest.skip("a letter of this text is unknown to this tokenizer, so that decoding does not show it")
    wanted = whole_by_hand(tokenizer, ids, parts)
    # Of a character in several byte tokens the last one shows it, so decoding takes that one for the whole.
    several = [piece == "" for piece in spelled(tokenizer, ids)]
    wanted = [
        flag and not (n and several[n - 1] and tokenizer.decode([ids[n]]) in ("", "\ufffd"))
        for n, flag in enumerate(wanted)
    ]
    assert document.whole.tolist() == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_tokenizer_has_whole_words_and_pieces_in_these_texts(kind):
    documents = list(
        encode_texts([text for text, _ in BY_HAND.values()], KINDS[kind], add_special_tokens=False)
    )
    whole = torch.cat([document.whole for document in documents])
    inside = torch.cat([document.word_index >= 0 for document in documents])
    assert whole.sum() >= (2 if kind == "slow" else 15)  # of single bytes only A and A
    assert (inside & ~whole).sum() >= 5


def test_a_tokenizer_that_says_nothing_of_places_is_read_by_decoding_with_the_same_words():
    """The same tokenizer with its offsets held back, as slow ones do."""
    tokenizer = KINDS["wordpiece"]

    class Slow:
        is_fast = False

        def __getattr__(self, name):
            return getattr(tokenizer, name)

        def __call__(self, texts, **options):
            options.pop("return_offsets_mapping", None)
            return tokenizer(texts, **options)

    for given, _ in BY_HAND.values():
        (wanted,), (found,) = (
            encode_texts([given], one, add_special_tokens=False) for one in (tokenizer, Slow())
        )
        assert found.whole.tolist() == wanted.whole.tolist(), given


def test_a_text_that_its_tokens_do_not_spell_is_refused_by_name():
    class Wrong:
        is_fast = False
        all_special_ids = ()
        unk_token_id = None

        def get_vocab(self):
            return {"a": 0, "b": 1}

        def __call__(self, texts, **_):
            return {"input_ids": [[0, 0] for _ in texts]}

        def decode(self, ids, **_):
            return "a" * len(ids)

    with pytest.raises(
        ValueError, match=r"text 0 \('ab'\) cannot be read: Wrong does not say where its tokens lie"
    ):
        list(encode_texts(["ab"], Wrong(), add_special_tokens=False))


# ---------------------------------------------------------------- sources


def test_a_text_is_a_source_of_its_own_unless_it_is_told_of_another(wordpiece):
    texts = ["the army", "the band", "the army", "a song"]
    alone = [document.origin for document in encode_texts(texts, wordpiece)]
    assert [alone.index(source) for source in alone] == [0, 1, 0, 3]  # the same text is the same source
    told = [document.origin for document in encode_texts(texts, wordpiece, sources=["A", "A", "B", "B"])]
    assert [told.index(source) for source in told] == [0, 0, 2, 2]
    again = [document.origin for document in encode_texts(texts[:1], wordpiece, sources=iter("A"))]
    assert again == told[:1]


@pytest.mark.parametrize(
    "labels",
    [
        ["Ada", "Alan", "Ada"],
        [1, 2.5, 1.0],
        [np.int64(1), np.float32(2), True],
        [torch.tensor(7), torch.tensor(8), 7],
        [("a", 1), ("a", 2), ("a", np.int8(1))],
        [frozenset("abcdefgh"), frozenset("abc"), frozenset("hgfedcba")],
        [Path("a"), Path("b"), Path("a")],
        [b"a", "a", b"a"],
        ["\ud800", "", "\ud800"],
        [float("inf"), -1, float("inf")],
    ],
)
def test_equal_labels_are_one_source_and_others_another(labels):
    first, second, third = map(source_key, labels)
    assert first == third != second


def test_the_key_of_a_label_is_the_same_in_every_process():
    program = "from topic_probe.text.documents import source_key as k; print(k(('Ada', 3, frozenset('abc'))))"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, check=True)
    assert int(answer.stdout) == source_key(("Ada", 3, frozenset("abc")))


def test_labels_that_name_nothing_are_refused(wordpiece):
    for missing in (None, float("nan"), np.nan):
        with pytest.raises(ValueError, match=r"the label of a source is missing"):
            list(encode_texts(["the army"], wordpiece, sources=[missing]))
    with pytest.raises(TypeError, match=r"labels such as texts or numbers, not a object"):
        list(encode_texts(["the army"], wordpiece, sources=[object()]))
    with pytest.raises(
        TypeError, match=r"sources must be a list or None, got .*: put a single one into a list"
    ):
        encode_texts(["the army"], wordpiece, sources="A")
    for n in (1, 3):
        with pytest.raises(ValueError, match=r"each of the texts needs a label that names its source"):
            list(encode_texts(["the army", "the band"], wordpiece, sources=range(n)))


def test_a_begin_token_is_put_where_the_tokenizer_puts_none_and_nowhere_twice(wordpiece):
    tokenizer = byte_level()
    begin = tokenizer.bos_token_id
    plain, begun = (
        next(iter(encode_texts(["the frog"], tokenizer, begin_token=begin_token)))
        for begin_token in (False, True)
    )
    assert begun.ids.tolist() == [begin, *plain.ids.tolist()]
    assert begun.special.tolist() == [True] + [False] * len(plain)
    assert begun.word_index.tolist() == [-1, *plain.word_index.tolist()]
    # It has its place in what a document may hold, and every piece begins with it.
    pieces = list(
        Corpus.from_texts(["the f the f the f"]).documents(
            tokenizer, max_length=3, long="chunk", begin_token=True
        )
    )
    assert [piece.ids[0].item() for piece in pieces] == [begin] * 3
    assert [len(piece) for piece in pieces] == [3, 3, 3]
    wordpiece = copy.deepcopy(wordpiece)
    wordpiece.bos_token = wordpiece.cls_token
    assert next(iter(encode_texts(["the frog"], wordpiece, begin_token=True))).ids[:2].tolist() == [101, 1996]
    with pytest.raises(ValueError, match="needs a tokenizer with a begin token"):
        list(encode_texts(["the frog"], unigram(), begin_token=True))


def test_what_is_no_tokenizer_is_refused_before_anything_is_read(wordpiece):
    for tokenizer in (None, "bert-base-uncased", type(wordpiece)):
        with pytest.raises(TypeError, match="a Hugging Face tokenizer is needed, got"):
            encode_texts(["the army"], tokenizer)


def test_a_length_that_the_special_tokens_fill_is_refused(wordpiece):
    for max_length in (0, 1, 2):
        with pytest.raises(ValueError, match=f"room for a token beside the 2 special ones, got {max_length}"):
            encode_texts(["the army"], wordpiece, max_length=max_length)
