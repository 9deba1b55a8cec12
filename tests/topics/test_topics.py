"""Topics: who belongs to whom, found in whatever a user brings, with nothing lost silently."""

import copy
import math

import numpy as np
import pytest
import small_language
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from topic_probe.text.word_tokenizer import word_tokenizer
from topic_probe.topics import Topics, tokenizer_hash
from topic_probe.topics.lookup import readable


def sets_of(topics: Topics) -> dict[str, set[int]]:
    """The entries of every topic, read off the public tensors."""
    return {
        name: {int(topics.words[i]) for i in topics.membership[:, t].nonzero()[:, 0]}
        for t, name in enumerate(topics.names)
    }


# --- tokenizers ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wordpiece() -> transformers.PreTrainedTokenizerFast:
    """Lower-casing pieces as in BERT: frog 5, toad 6, ax 7, ##olotl 8, ##s 9, ... may 16."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "frog", "toad", "ax", "##olotl", "##s", "#", "s"]
    tokens += ["[", "]", "mask", "unk", "may"]
    model = models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]")
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    names = dict(
        zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), tokens, strict=False)
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **names)


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


# --- blocks, groups, places ---------------------------------------------------------------------


def test_word_i_of_the_toy_vocabulary_is_in_topic_ceil_i_over_v():
    for n_topics, v in [(10, 10), (3, 2), (1, 4), (4, 1)]:
        topics = Topics.blocks(n_topics=n_topics, words_per_topic=v)
        assert topics.vocabulary_size == n_topics * v + 1
        assert topics.words.tolist() == list(range(1, n_topics * v + 1))
        of_word = topics.membership.int().argmax(1).tolist()
        assert of_word == [math.ceil(word / v) - 1 for word in topics.words.tolist()]
        assert topics.sizes.tolist() == [v] * n_topics
        assert int(topics.labels(torch.tensor(0))) == -1
        assert len(topics) == topics.n_topics == n_topics


def test_places_and_labels_are_minus_one_for_ids_without_a_topic_and_for_what_is_no_id():
    topics = Topics.from_token_ids({"a": [2], "b": [0, 4]}, vocabulary_size=5)
    entries = torch.tensor([[0, 1, 2], [4, 3, -1], [5, -100, 2**40]])
    assert topics.places(entries).tolist() == [[0, -1, 1], [2, -1, -1], [-1, -1, -1]]
    assert topics.labels(entries).tolist() == [[1, -1, 0], [1, -1, -1], [-1, -1, -1]]
    assert topics.labels(entries.T[:, ::2]).tolist() == [[1, -1], [-1, -1], [0, -1]]  # no contiguous tensor


# --- token ids ----------------------------------------------------------------------------------


NO_IDS = [
    ({"animals": ["frog"]}, "topic 'animals' needs.*got .'frog'.; words go to Topics.from_word_lists"),
    ({"animals": torch.tensor([[1]])}, "topic 'animals' needs a row of token ids, which are whole numbers"),
    ({"animals": [1.0]}, "which are whole numbers, got .1.0."),
    ({"a": [0, 9], "b": [3, 10]}, "topic 'b' holds 1 ids .* such as 10: its ids are 0..9"),
    ({}, "with at least one topic"),
    ({"a": [], "b": []}, "no word is left in any topic .every list is empty"),
    ({-1: [1]}, "with at least one topic"),
    ({0: [1], "b": [2]}, "all be named by strings or all by whole numbers"),
]


def test_what_is_no_mapping_to_token_ids_is_refused_by_name():
    for lists, message in NO_IDS:
        with pytest.raises((TypeError, ValueError), match=message):
            Topics.from_token_ids(lists, vocabulary_size=10)


@pytest.mark.parametrize(
    "ids", [(9, 5), {5, 9}, torch.tensor([5, 9]), np.array([9, 5], np.uint16), [9, 5, 9]]
)
def test_ids_come_in_any_sequence_and_with_numbers_of_topics_and_outliers(ids):
    topics = Topics.from_token_ids({7: ids, -1: [8, 8], np.int64(2): [1, 9]}, vocabulary_size=10)
    assert topics.names == ("2", "7")
    assert sets_of(topics) == {"2": {1, 9}, "7": {5, 9}}
    assert topics.topics_of(2) == (0, 1)
    assert topics.left_out == {}
    assert "1 words have several topics" in repr(topics)


def test_an_empty_topic_is_kept_and_warned_about():
    with pytest.warns(UserWarning, match="without a word, which measure as NaN: 2 .none, no.") as caught:
        topics = Topics.from_token_ids({"a": [1, 2, 3], "none": [], "b": [3], "no": []}, vocabulary_size=4)
    assert len(caught) == 1
    assert topics.sizes.tolist() == [3, 0, 1, 0]
    assert topics.label(1) == "1: none (no words)"


# --- word lists ---------------------------------------------------------------------------------


def test_words_become_the_ids_of_their_single_pieces_and_others_are_reported_by_reason(wordpiece):
    words = ["Frog", "toad", "axolotl", "🐸", "frog 🐸", "", " ", "[MASK]", "[UNK]", "fr\x00og"]
    topics = Topics.from_word_lists({"animals": words, "months": ["may"]}, wordpiece)
    assert sets_of(topics) == {"animals": {5, 6}, "months": {16}}
    assert topics.texts == ("frog", "toad", "may")
    assert topics.vocabulary_size == 17
    assert topics.left_out == {
        "split words": ("axolotl",),
        "unknown words": ("🐸", "frog 🐸", "[UNK]"),
        "special tokens": ("[MASK]",),
        "empty words": ("", " "),
    }


def test_byte_level_tokenizers_give_the_ids_with_and_without_a_space(byte_level):
    topics = Topics.from_word_lists({"a": ["frog", "##", "🐸"]}, byte_level)
    assert sets_of(topics) == {"a": {258, 259, 261}}
    assert topics.top_words() == [["frog", "##"]]  # what reads the same is listed once
    assert topics.left_out == {"split words": ("🐸",)}


def test_sentencepiece_words_are_found_behind_their_space_mark(metaspace):
    topics = Topics.from_word_lists({"a": ["frog", "q"]}, metaspace)
    assert sets_of(topics) == {"a": {2, 3}}
    assert topics.texts == ("frog", "Frog")
    assert metaspace.unk_token_id is None  # only the model knows it
    assert topics.left_out == {"unknown words": ("q",)}
    assert sets_of(Topics.from_word_lists({"a": ["frog"]}, metaspace, case_variants=False)) == {"a": {2}}


def test_pieces_that_only_continue_a_word_and_special_tokens_added_later_do_not_count(byte_level):
    backend = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "##s": 1, "frog": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    topics = Topics.from_word_lists({"a": ["frog", "##s"]}, tokenizer)
    assert sets_of(topics) == {"a": {2}}
    assert topics.left_out == {"pieces that do not begin a word": ("##s",)}
    tokenizer = copy.deepcopy(byte_level)
    tokenizer.add_tokens([tokenizers.AddedToken("<speaker>", special=True), "axolotl"])
    topics = Topics.from_word_lists({"a": ["frog", "<speaker>", "axolotl"]}, tokenizer)
    assert sets_of(topics) == {"a": {258, 259, tokenizer.convert_tokens_to_ids("axolotl")}}
    assert topics.left_out == {"special tokens": ("<speaker>",)}


def test_a_piece_that_reads_as_another_word_is_none_of_its_variants():
    """A BPE that lacks the letter B and an unknown token makes ▁and of Band: no word of the topic music."""
    merges = [("▁", "a"), ("▁a", "n"), ("▁an", "d"), ("▁", "m"), ("▁m", "u"), ("▁mu", "s"), ("▁mus", "i")]
    merges += [("▁musi", "c")]
    vocabulary = dict.fromkeys([*"▁andgmusic", *(left + right for left, right in merges)])
    backend = tokenizers.Tokenizer(models.BPE({piece: n for n, piece in enumerate(vocabulary)}, merges))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
    piece = tokenizer.convert_tokens_to_ids("▁and")
    assert tokenizer("Band", add_special_tokens=False)["input_ids"] == [piece]  # what must not count
    topics = Topics.from_word_lists({"music": ["music", "Band"]}, tokenizer)
    assert topics.words.tolist() == [tokenizer.convert_tokens_to_ids("▁music")]
    assert topics.left_out["pieces that read as another word"] == ("Band",)


def test_split_words_are_kept_as_compounds_on_demand(wordpiece, byte_level):
    topics = Topics.from_word_lists(
        {"animals": ["frog", "axolotl"], "pets": ["Axolotl"], "plural": ["toads"]},
        wordpiece,
        split_words="keep",
    )
    # Pieces: toad ##s = 6 9 and ax ##olotl = 7 8, in this order behind the 17 ids.
    assert topics.compounds == ((6, 9), (7, 8))
    assert sets_of(topics) == {"animals": {5, 18}, "pets": {18}, "plural": {17}}
    assert topics.texts == ("frog", "toads", "axolotl")
    assert topics.places(torch.tensor([17, 18, 19, 7])).tolist() == [1, 2, -1, -1]
    assert topics.left_out == {}
    # FROG is F·R·O·G in pieces, but frog is one, so nothing of it becomes a compound; every variant of frs is one.
    assert Topics.from_word_lists({"a": ["FROG"]}, byte_level, split_words="keep").compounds == ()
    pieces = Topics.from_word_lists({"a": ["frs"]}, byte_level, split_words="keep", case_variants=False)
    space, s = byte_level.convert_tokens_to_ids(["Ġ", "s"])
    assert set(pieces.compounds) == {(256, s), (space, 256, s)}


def test_what_gives_no_words_is_refused_by_topic(wordpiece):
    for words, message in (
        ("frog", "topic 'animals' needs.* a list of words, got 'frog'; put a single word into a list"),
        ([("frog", 0.5)], r"got \('frog', 0.5\); .* of \(word, score\) pairs only the word"),
        (["axolotl"], r"no word is left in any topic \(split words: 1 \(axolotl\)\)"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            Topics.from_word_lists({"animals": words}, wordpiece)


# --- matrices -----------------------------------------------------------------------------------

PHI = [
    [0.40, 0.30, 0.20, 0.10, 0.00],
    [0.05, 0.35, 0.20, 0.15, 0.25],
]


def test_a_token_of_several_topics_stays_with_the_likeliest_unless_it_may_have_several():
    every = Topics.from_matrix(PHI, fraction=0.4, one_topic_per_word=False)
    assert sets_of(every) == {"0": {0, 1}, "1": {1, 4}}
    assert every.weights.tolist() == pytest.approx([0.40, 0.30, 0.35, 0.25])
    topics = Topics.from_matrix(PHI, fraction=0.4)
    assert sets_of(topics) == {"0": {0}, "1": {1, 4}}
    assert topics.left_out == {"left to a likelier topic": (1,)}
    assert topics.weights.tolist() == pytest.approx([0.40, 0.35, 0.25])
    assert "2 most likely tokens per topic (0.4 of 5 ids)" in topics.policy
    # By probability, not by counts: token 0 is 9 of 30 in the first topic, 4 of 10 in the second.
    topics = Topics.from_matrix([[9, 11, 10, 0], [4, 1, 0, 5]], fraction=1.0)
    assert sets_of(topics) == {"0": {1, 2}, "1": {0, 3}}


@pytest.mark.parametrize("one", [True, False])
def test_the_choice_equals_a_slow_independent_one(one):
    phi = np.random.default_rng(0).integers(0, 6, size=(4, 30))  # few values, so there are many ties
    exclude = {3, 7, 29}
    kept = {}
    for t, row in enumerate(phi):
        order = sorted((-count, i) for i, count in enumerate(row) if count and i not in exclude)
        kept[t] = {i for _, i in order[:9]}
    for i in range(30 if one else 0):
        rivals = sorted((-phi[t, i] / phi[t].sum(), t) for t in kept if i in kept[t])
        for _, t in rivals[1:]:
            kept[t].remove(i)
    topics = Topics.from_matrix(phi, fraction=0.3, exclude=exclude, one_topic_per_word=one)
    assert sets_of(topics) == {str(t): ids for t, ids in kept.items()}
    assert topics.left_out["excluded"] == (3, 7, 29)


def test_a_topic_keeps_a_share_of_all_ids_of_the_tokenizer():
    phi = np.random.default_rng(0).dirichlet(np.ones(40), size=2)
    options = {"token_ids": range(100, 140), "vocabulary_size": 1000, "one_topic_per_word": False}
    # 2 % of 1,000 ids are 20; half of a token is rounded up; never more than there are columns.
    for fraction, n in ((0.02, 20), (0.0025, 3), (0.0024, 2), (0.0001, 1), (0.5, 40)):
        topics = Topics.from_matrix(phi, fraction=fraction, **options)
        best = [set((100 + np.argsort(-row)[:n]).tolist()) for row in phi]
        assert sets_of(topics) == {"0": best[0], "1": best[1]}


def test_zero_probabilities_and_those_of_the_minimum_are_never_kept():
    phi = torch.tensor([[0.5, 0.5, 0, 0], [0, 0, 0.9, 0.1]], dtype=torch.float64)
    assert Topics.from_matrix(phi, fraction=1.0).sizes.tolist() == [2, 2]
    assert Topics.from_matrix(phi, fraction=1.0, min_probability=0.1).sizes.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("phi", "options", "message"),
    [
        (PHI, {"token_ids": [0, 1, 2, 3, 4]}, "token_ids needs vocabulary_size"),
        (
            PHI,
            {"token_ids": [0, 1, 2, 3, 3], "vocabulary_size": 9},
            "a different id for each of the 5 columns",
        ),
        (PHI, {"vocabulary_size": 4}, "vocabulary_size must be at least 5, got 4"),
        (PHI, {"fraction": 1.5}, r"fraction must be in \(0, 1\] .* got 1.5 and 0.0"),
        (PHI, {"exclude": range(5)}, r"no word is left in any topic \(excluded: 5 \(0, 1, 2, 3, 4\)\)"),
        ([[0.5, 0.5], [0.5, math.nan]], {}, "row 1 of phi must be finite"),
        ([[0.5, 0.5], [0, 0]], {}, "row 1 of phi must be .* not zero everywhere"),
        ([[0.5, 0.5], [1.5, -0.5]], {}, "row 1 of phi must be .* not negative"),
        ([0.5, 0.5], {}, "phi must hold the numbers P"),
    ],
)
def test_what_is_no_topic_model_is_refused(phi, options, message):
    with pytest.raises(ValueError, match=message):
        Topics.from_matrix(phi, **{"fraction": 0.4, **options})


# --- topics made from others --------------------------------------------------------------------


def test_topics_refuse_another_tokenizer_and_take_words_from_their_own(wordpiece, byte_level):
    topics = Topics.from_token_ids({"a": [6, 5]}, vocabulary_size=17, tokenizer=wordpiece)
    assert topics.texts == ("frog", "toad")
    topics.check_tokenizer(wordpiece)
    with pytest.raises(ValueError, match="made with another tokenizer"):
        topics.check_tokenizer(byte_level)
    with pytest.raises(TypeError, match=r"Hugging Face tokenizer is needed.*AutoTokenizer"):
        Topics.from_token_ids({"a": [6]}, vocabulary_size=17, tokenizer="bert-base-uncased")
    words, others = (small_language.tokenizer(reverse=reverse) for reverse in (False, True))  # other ids
    assert words.get_vocab().keys() == others.get_vocab().keys()
    assert tokenizer_hash(words) != tokenizer_hash(others)
    half = byte_level("é", add_special_tokens=False)["input_ids"]
    assert [readable(byte_level, half), readable(byte_level, half[:1])] == ["é", "Ã"]


def test_a_padded_vocabulary_changes_nothing_but_its_size(wordpiece):
    topics = Topics.from_word_lists({"a": ["frog", "axolotl"], "b": ["may"]}, wordpiece, split_words="keep")
    padded = topics.with_vocabulary_size(24)
    assert padded.vocabulary_size == 24
    assert sets_of(padded) == {"a": {5, 24}, "b": {16}}
    assert padded.compounds == topics.compounds
    assert padded.with_vocabulary_size(17) == topics != padded
    with pytest.raises(ValueError, match="16 token ids do not reach the labelled id 16"):
        topics.with_vocabulary_size(16)


def test_shuffling_keeps_sizes_and_topic_sets_and_moves_words():
    topics = Topics.from_token_ids(
        {"a": range(20), "b": range(15, 60), "c": range(60, 70)}, vocabulary_size=100
    )
    shuffled = topics.shuffled(3)
    assert shuffled.sizes.tolist() == topics.sizes.tolist()
    assert torch.equal(shuffled.words, topics.words)
    assert sorted(shuffled.membership.tolist()) == sorted(topics.membership.tolist())
    assert topics.shuffled(3) == shuffled != topics
    assert topics.shuffled(4) != shuffled
    assert "seed 3" in shuffled.policy


# --- reading them -------------------------------------------------------------------------------


def test_top_words_come_in_the_order_of_probability_or_of_ids():
    phi = [[0.1, 0.2, 0.3, 0.4], [0.3, 0.3, 0.2, 0.2]]
    topics = Topics.from_matrix(phi, fraction=0.75, one_topic_per_word=False)
    assert topics.top_words() == [[3, 2, 1], [0, 1, 2]]
    assert topics.top_words(2) == [[3, 2], [0, 1]]
    assert topics.label(0) == topics.topic_labels[0] == "0: 3·2·1"
    assert Topics.from_token_ids({"a": [9, 3, 5], "b": [4]}, vocabulary_size=10).top_words(2) == [[3, 5], [4]]


def test_the_table_shows_names_sizes_words_and_what_was_left_out(wordpiece):
    topics = Topics.from_word_lists({"animals": ["frog", "toad", "axolotl"], "months": ["may"]}, wordpiece)
    lines = repr(topics).splitlines()
    assert lines[0] == "Topics: 2 topics, 3 words; 17 token ids"
    assert lines[2].split() == ["0", "animals", "2", "frog", "·", "toad"]
    assert lines[-1] == "(split words: 1 (axolotl))"
    topics = Topics.from_token_ids({"<script>\n\x00": [1], "العربية": [2]}, vocabulary_size=3)
    assert "&lt;script&gt;\\n\\x00" in topics._repr_html_()
    assert len(repr(topics).splitlines()) == 5


# --- inflections --------------------------------------------------------------------------------


def test_stems_make_inflections_one_word():
    songs = word_tokenizer(["song songs band bands army armies battle the"])
    lists = {"music": ["song", "songs", "band", "bands"], "war": ["army", "armies", "battle"]}
    plain, stemmed = (Topics.from_word_lists(lists, songs, forms=forms) for forms in ("case", "stem"))
    assert len(plain.form_of_word.unique()) == 7
    of_word = dict(zip(stemmed.texts, stemmed.form_of_word.tolist(), strict=True))
    assert of_word["song"] == of_word["songs"] != of_word["band"] == of_word["bands"]
    assert len(set(of_word.values())) == 4
    assert plain != stemmed
    assert "same stem" in repr(stemmed)
    assert stemmed.shuffled(1).with_vocabulary_size(99).one_word == "stem"
    with pytest.raises(ValueError, match="forms='stem' needs words that can be read: pass the tokenizer"):
        Topics.from_token_ids({"a": [1]}, vocabulary_size=3, forms="stem")


# --- equality, saving ---------------------------------------------------------------------------


def test_topics_are_equal_exactly_if_their_content_is_also_saved(wordpiece, tmp_path):
    lists = {"a": [5, 6], "b": [16]}
    phi = np.zeros((2, 17))
    phi[0, [5, 6]], phi[1, 16] = [0.6, 0.4], 1.0
    different = [
        Topics.from_token_ids(lists, vocabulary_size=17),
        Topics.from_token_ids(lists, vocabulary_size=18),
        Topics.from_token_ids({"a": [5, 6], "c": [16]}, vocabulary_size=17),
        Topics.from_token_ids({"a": [5], "b": [6, 16]}, vocabulary_size=17),
        Topics.from_token_ids(lists, vocabulary_size=17, tokenizer=wordpiece),
        Topics.from_matrix(phi, fraction=0.5),
        Topics.from_matrix(phi[:, [*range(5), 6, 5, *range(7, 17)]], fraction=0.5),
        Topics.from_word_lists({"a": ["frog"], "b": ["toads"]}, wordpiece, split_words="keep"),
    ]
    for number, topics in enumerate(different):
        loaded = Topics.load(topics.save(tmp_path / str(number)))
        assert [loaded == other for other in different] == [other is topics for other in different]
        assert torch.equal(loaded.membership, topics.membership)
        assert repr(loaded) == repr(topics)
        for name in ("names", "texts", "policy", "compounds", "left_out"):
            assert getattr(loaded, name) == getattr(topics, name)
    one, other = ({"a": ids, "b": [2]} for ids in ([3, 1], [1, 3]))
    assert Topics.from_token_ids(one, vocabulary_size=4) == Topics.from_token_ids(other, vocabulary_size=4)
