"""Topic models of token ids: the words that are fitted, the topics found, their scores, and the way to Topics."""

import math
import random
from dataclasses import replace
from functools import cache
from itertools import combinations, permutations

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from gensim.corpora import Dictionary
from gensim.models import CoherenceModel
from real_text import minilm_folder
from scipy.sparse import csr_array
from tokenizers import decoders, models, normalizers, pre_tokenizers

from topic_probe.text.documents import Document
from topic_probe.text.lda import TopicFit, coherence, fit_topics, word_ids

# --- a small world with known topics ----------------------------------------------------------------

THEMES = {
    "pond": ["frog", "toad", "newt", "pond", "swim", "leap", "lily", "reed"],
    "music": ["violin", "cello", "sonata", "tempo", "opera", "choir", "flute", "lute"],
    "law": ["judge", "court", "jury", "trial", "appeal", "verdict", "lawyer", "statute"],
}
WORDS = [word for words in THEMES.values() for word in words]
FILLER = ["the", "and", "1990", "##s", "##lily", ".", "x", "everywhere", "once"]
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *FILLER]
ID = {token: index for index, token in enumerate(TOKENS)}
FAST = {"n_topics": 3, "passes": 5, "chunksize": 60}
ONE = {"n_topics": 1, "passes": 1, "max_share": 1.0}


@cache
def wordpiece() -> transformers.PreTrainedTokenizerFast:
    backend = tokenizers.Tokenizer(models.WordPiece(ID, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, mask_token="[MASK]", **names)


@cache
def minilm():
    return transformers.AutoTokenizer.from_pretrained(minilm_folder())


@cache
def planted(n=300, seed=0, length=20):
    """Documents of one theme each, with stop words, numbers and the word "everywhere" in all of them."""
    generator = random.Random(seed)
    documents = []
    for number in range(n):
        words = generator.choices(list(THEMES.values())[number % 3], k=length)
        words += ["the", "and", "1990", ".", "x", "everywhere"]
        generator.shuffle(words)
        documents.append([ID["[CLS]"], *(ID[word] for word in words), ID["[SEP]"]])
    return documents


@cache
def planted_fit(**options) -> TopicFit:
    return fit_topics(planted(), wordpiece(), **{**FAST, **options})


def themes_found(fit):
    """The theme whose words fill the top eight of every topic, or None."""
    sets = {frozenset(words): theme for theme, words in THEMES.items()}
    return [sets.get(frozenset(words)) for words in fit.top_words(8)]


def test_planted_topics_are_found_and_lost_when_words_are_dealt_to_documents_at_random():
    fit = planted_fit()
    assert sorted(themes_found(fit), key=str) == sorted(THEMES)
    assert fit.npmi.min() > 0.1
    torch.testing.assert_close(fit.phi.sum(1), torch.ones(3, dtype=torch.float64))
    # 100 documents of 20 words each, where every update has all of them.
    whole = planted_fit(chunksize=300)
    torch.testing.assert_close(whole.tokens, torch.full((3,), 2000.0, dtype=torch.float64), rtol=0.01, atol=0)
    dealt = [token for document in planted() for token in document]
    random.Random(1).shuffle(dealt)
    documents = [dealt[n : n + 28] for n in range(0, len(dealt), 28)]
    lost = fit_topics(documents, wordpiece(), max_share=1.0, **FAST)
    assert set(themes_found(lost)) == {None}
    assert lost.npmi.max() < 0.05


# --- the words that are fitted ------------------------------------------------------------------------


def test_only_words_are_fitted_and_the_rest_is_counted():
    documents = [*planted(), [ID["once"], ID["frog"]]]
    fit = fit_topics(documents, wordpiece(), **FAST)
    assert set(fit.texts) == set(WORDS)
    assert [TOKENS[index] for index in fit.token_ids] == list(fit.texts)
    assert fit.vocabulary_size == len(TOKENS)
    assert repr(fit).startswith("TopicFit: 3 topics over 24 words, 301 documents; mean NPMI ")
    assert "<table" in fit._repr_html_()
    assert fit.provenance["tokens"] == 300 * 28 + 2
    assert fit.provenance["left_out"] == {
        # "everywhere" is on gensim's list, "once" as well.
        "stop words": 300 * 3 + 1,
        "special tokens": 300 * 2,
        "tokens that are no words": 300 * 3,
    }


def test_words_of_too_few_or_too_many_documents_are_left_out():
    fit = fit_topics([*planted(), *[[ID["once"]]] * 4], wordpiece(), stop_words=["the", "AND"], **FAST)
    assert fit.provenance["left_out"]["different words, in too few documents"] == 1  # once
    assert fit.provenance["left_out"]["different words, in too many documents"] == 1  # everywhere
    assert fit.provenance["left_out"]["stop words"] == 300 * 2
    documents = [*planted(), *[[ID["once"]]] * 5]
    enough = fit_topics(documents, wordpiece(), stop_words=(), max_share=300 / 305, **FAST)
    assert set(enough.texts) == {
        *WORDS,
        "the",
        "and",
        "everywhere",
        "once",
    }  # just that share is not too many


def test_pieces_of_split_words_and_special_tokens_are_no_words():
    """frog ##s is one word of two pieces, frog another word of one; newt is flagged as special."""
    ids = torch.tensor(
        [ID[token] for token in ("frog", "##s", "toad", "newt", "##lily", "toad", "newt", ".")]
    )
    special = torch.arange(8) == 6
    documents = [Document(ids, torch.tensor([0, 0, 1, 2, 2, 3, -1, 4]), special)] * 6
    fit = fit_topics(documents, wordpiece(), **ONE)
    assert fit.texts == ("toad",)
    assert fit.tokens.tolist() == pytest.approx([12])
    left_out = {"pieces of split words": 12, "special tokens": 6, "tokens that are no words": 18}
    assert fit.provenance["left_out"] == left_out
    bare = fit_topics([[ID["frog"], ID["##s"]]] * 6, wordpiece(), **ONE)  # whose text nobody saw
    assert bare.provenance["documents_without_words"] == 6


def test_words_of_a_vocabulary_are_letters_in_any_script_and_no_stop_words():
    assert [TOKENS[index] for index in word_ids(wordpiece())] == WORDS
    words = set(minilm().convert_ids_to_tokens(word_ids(minilm()).tolist()))
    assert {"frog", "symphony", "kyoto", "constitution"} <= words
    assert not words & {"the", "whereas", "##ing", "1990", "[MASK]", "[unused5]", ",", "b", "ø"}


# --- reproducing -------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_topics_and_no_global_generator_is_touched(tmp_path):
    states = (np.random.get_state()[1].copy(), torch.get_rng_state())  # noqa: NPY002
    again, other = (fit_topics(iter(planted()), wordpiece(), **FAST, seed=seed) for seed in (0, 1))
    assert planted_fit() == again != other
    assert np.array_equal(np.random.get_state()[1], states[0])  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[1])
    again.save(tmp_path / "fit")
    assert TopicFit.load(tmp_path / "fit") == again


def test_the_order_of_documents_changes_no_bit():
    """Also of documents of no topic, whose topics depend on the last bit of every sum."""
    generator = random.Random(3)
    ids = [ID[word] for word in WORDS]
    documents = [generator.choices(ids, k=generator.randint(1, 40)) for _ in range(290)]
    one, other = (
        fit_topics(given, wordpiece(), n_topics=3, passes=2, max_share=1.0)
        for given in (documents, generator.sample(documents, len(documents)))
    )
    assert other == one
    assert one.settings["chunksize"] == 97  # three equal chunks of about 100


@pytest.mark.parametrize(
    ("documents", "options", "message"),
    [
        (planted(3), {"n_topics": 0}, "n_topics must be at least 1, got 0"),
        (planted(3), {"min_documents": 0}, "min_documents must be at least 1 .* got 0 and 0.5"),
        (planted(3), {"max_share": 1.5}, r"max_share in \(0, 1\], got 5 and 1.5"),
        ([[ID["the"], ID["frog"]], [ID["the"]]], {}, r"no word .* in 2 documents \(2 stop words; 1 different words,"),
        ([], {}, "no word is left to fit in 0 documents"),
        ([[5, 6], [5, 999]], {}, f"document 1 holds the token id 999, but the model knows 0..{len(TOKENS) - 1}"),
        (["a frog"], {}, "encode_texts"),
    ],
)  # fmt: skip
def test_options_and_documents_that_cannot_be_fitted_are_refused(documents, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        fit_topics(documents, wordpiece(), **options)


# --- scores ------------------------------------------------------------------------------------------


def a_fit(phi, tokens=None, token_ids=None):
    phi = torch.tensor(phi, dtype=torch.float64)
    token_ids = torch.arange(phi.shape[1]) if token_ids is None else torch.tensor(token_ids)
    return TopicFit(
        phi=phi / phi.sum(1, keepdim=True),
        token_ids=token_ids,
        texts=tuple(f"w{index}" for index in token_ids.tolist()),
        vocabulary_size=50,
        tokenizer_hash="0" * 64,
        tokens=torch.tensor([100.0] * len(phi) if tokens is None else tokens, dtype=torch.float64),
        npmi=torch.full((len(phi),), math.nan, dtype=torch.float64),
        settings={"seed": 0},
        provenance={"documents": 9},
    )


def test_coherence_equals_double_loops_over_the_documents_and_gensims_own():
    fit = planted_fit()
    texts = [[TOKENS[index] for index in document] for document in planted()]
    sets = [set(text) for text in texts]
    for topic, words in enumerate(fit.top_words()):
        npmi = []
        for earlier, later in combinations(words, 2):
            one, two = (sum(word in held for held in sets) / len(sets) for word in (earlier, later))
            joint = sum({earlier, later} <= held for held in sets) / len(sets)
            npmi.append(math.log(joint / one / two) / -math.log(joint) if joint else -1)
        assert float(fit.npmi[topic]) == pytest.approx(np.mean(npmi), abs=1e-12)
    # Eight words that all meet, so that gensim's epsilon for pairs that never do plays no part.
    theirs = CoherenceModel(
        topics=[words[:8] for words in fit.top_words()], texts=texts, dictionary=Dictionary(texts),
        coherence="c_npmi", window_size=1000, processes=1,
    ).get_coherence_per_topic()  # fmt: skip
    bags = csr_array([[text.count(word) for word in fit.texts] for text in texts])
    np.testing.assert_allclose(coherence(fit.top_columns(8), bags), theirs, atol=1e-9)


def test_coherence_has_both_limits():
    # {a, b}, {a}, {b, c}, {}: ab and bc meet once, ac never; a and b are in two, c in one. Of one word there is none.
    bags = csr_array([[1, 2, 0], [1, 0, 0], [0, 1, 1], [0, 0, 0]])
    ab = math.log((1 / 4) / (2 / 4 * 2 / 4)) / -math.log(1 / 4)
    bc = math.log((1 / 4) / (2 / 4 * 1 / 4)) / -math.log(1 / 4)
    assert coherence(np.array([[0, 1, 2]]), bags).tolist() == pytest.approx([(ab + bc - 1) / 3])
    assert math.isnan(coherence(np.array([[0]]), bags)[0])
    assert coherence(np.array([[0, 1]]), csr_array([[1, 1]] * 4)).tolist() == [1]


def test_different_words_are_counted_and_equally_likely_words_ordered_by_id():
    fit = a_fit([[4, 3, 2, 1, 0, 0], [4, 3, 0, 0, 2, 1], [0, 0, 1, 4, 2, 3]])
    assert fit.top_words(2) == [["w0", "w1"], ["w0", "w1"], ["w3", "w5"]]
    assert fit.diversity(2) == pytest.approx(4 / 6)
    assert fit.label(2) == "2: w3·w5·w4"
    many = a_fit([[1 + place % 2 for place in range(40)]])
    assert many.top_words(21)[0] == [f"w{place}" for place in [*range(1, 40, 2), 0]]


def test_the_pairing_of_two_fits_is_the_best_of_all_and_likeness_that_of_sets():
    generator = np.random.default_rng(1)
    # The fits do not have the same columns: words that one does not know are simply not in common.
    one = a_fit(generator.dirichlet(np.full(20, 0.5), size=5), token_ids=list(range(20)))
    two = a_fit(generator.dirichlet(np.full(20, 0.5), size=5), token_ids=list(range(8, 28)))
    likeness = np.array(
        [[len({*a} & {*b}) / len({*a} | {*b}) for b in two.top_words(7)] for a in one.top_words(7)]
    )
    best = max(permutations(range(5)), key=lambda order: sum(likeness[range(5), order]))
    found = one.found_in([two], n=7).set_index("topic")["found"]
    assert [found[one.label(topic)] for topic in range(5)] == pytest.approx(likeness[range(5), best])
    assert one.found_in([replace(one, phi=one.phi[[3, 0, 4, 1, 2]])])["found"].tolist() == [1] * 5


# --- topics of a fit ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("fraction", "n", "one"), [(0.1, 4, True), (0.3, 11, False)])
def test_a_topic_of_a_fit_keeps_a_share_of_all_ids_of_the_tokenizer(fraction, n, one):
    """Of 38 ids, of which 24 are fitted: a rounded share of them, but none that is no likelier than by chance."""
    fit = planted_fit()
    topics = fit.topics(fraction=fraction, one_topic_per_word=one)
    likeliest = [row[row > 1 / 24].sort(descending=True).values[:n] for row in fit.phi]
    assert topics.sizes.tolist() == [len(row) for row in likeliest]
    torch.testing.assert_close(topics.weights.sort().values, torch.cat(likeliest).sort().values)
    assert topics.top_words(3) == fit.top_words(3)
    words = [TOKENS[index] for index in topics.words]
    assert (list(topics.texts), topics.vocabulary_size) == (words, len(TOKENS))
    topics.check_tokenizer(wordpiece())
    assert fit.topics(forms="stem").one_word == "stem"


def test_an_empty_topic_of_a_fit_stays_empty_and_keeps_its_number():
    fit = a_fit([[4, 3, 2, 1], [9, 1, 1, 1], [1, 2, 3, 4]], tokens=[70.0, 0.2, 30.0])
    assert fit.to_dataframe()["note"].tolist() == ["", "empty", ""]
    with pytest.warns(UserWarning, match="topics without a word, which measure as NaN: 1"):
        topics = fit.topics(fraction=0.04, one_topic_per_word=False)  # 2 of 50 ids
    assert topics.sizes.tolist() == [2, 0, 2]
    assert topics.names == ("0", "1", "2")
