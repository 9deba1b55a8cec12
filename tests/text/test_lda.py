"""Topic models of token ids: the words that are fitted, the topics found, their scores, and the way to Topics."""

import math
import random
import warnings
from functools import cache
from itertools import combinations, permutations

import numpy as np
import pytest
import saved_results
import tokenizers
import torch
import transformers
from gensim.corpora import Dictionary
from gensim.models import CoherenceModel, LdaModel
from real_text import minilm_folder
from tokenizers import decoders, models, normalizers, pre_tokenizers

from topic_probe.notices import progress_bar
from topic_probe.report import load_report
from topic_probe.text import lda as lda_module
from topic_probe.text.bags import judge, read_bags, word_ids
from topic_probe.text.corpus import Corpus
from topic_probe.text.documents import Document
from topic_probe.text.lda import TopicFit, fit_topics
from topic_probe.topics import Topics

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


@cache
def wordpiece() -> transformers.PreTrainedTokenizerFast:
    backend = tokenizers.Tokenizer(models.WordPiece(ID, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, mask_token="[MASK]", **names)


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


FAST = {"n_topics": 3, "passes": 5, "chunk_size": 60}


@cache
def planted_fit(**options) -> TopicFit:
    return fit_topics(planted(), wordpiece(), **{**FAST, **options})


def themes_found(fit):
    """The theme whose words fill the top eight of every topic, or None."""
    sets = {frozenset(words): theme for theme, words in THEMES.items()}
    return [sets.get(frozenset(words)) for words in fit.top_words(8)]


def test_planted_topics_are_found():
    fit = planted_fit()
    assert sorted(themes_found(fit), key=str) == sorted(THEMES)
    torch.testing.assert_close(fit.phi.sum(1), torch.ones(3, dtype=torch.float64))
    # 100 documents of 20 words each, from 8 equally likely words, where every update has all of them.
    whole = planted_fit(chunk_size=300)
    torch.testing.assert_close(whole.tokens, torch.full((3,), 2000.0, dtype=torch.float64), rtol=0.05, atol=0)
    torch.testing.assert_close(whole.shares, torch.full((3,), 1 / 3, dtype=torch.float64), rtol=0.05, atol=0)
    for topic, theme in enumerate(themes_found(fit)):
        places = [fit.texts.index(word) for word in THEMES[theme]]
        assert fit.phi[topic, places].sum() > 0.98
        assert fit.phi[topic, places].max() < 0.17


def test_only_words_are_fitted_and_the_rest_is_counted():
    documents = [*planted(), [ID["once"], ID["frog"]]]
    fit = fit_topics(documents, wordpiece(), **FAST)
    assert set(fit.texts) == set(WORDS)
    assert [TOKENS[index] for index in fit.token_ids] == list(fit.texts)
    assert fit.vocabulary_size == len(TOKENS)
    counted = sum(document.count(ID["frog"]) > 0 for document in documents)
    assert fit.document_frequency[fit.texts.index("frog")] == counted
    assert fit.provenance["documents"] == 301
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
    assert fit.settings["stop_words"] == ["AND", "the"]
    enough = fit_topics([*planted(), *[[ID["once"]]] * 5], wordpiece(), stop_words=(), **FAST)
    assert "once" in enough.texts
    loose = fit_topics(planted(), wordpiece(), stop_words=(), max_share=1.0, **FAST)
    assert set(loose.texts) == {*WORDS, "the", "and", "everywhere"}


def test_special_flags_of_documents_count_wherever_they_stand():
    ids = torch.tensor([ID["frog"], ID["toad"]] * 10)
    documents = [Document(ids, special=ids == ID["toad"])] * 6
    fit = fit_topics(documents, wordpiece(), n_topics=1, passes=1, max_share=1.0)
    assert fit.texts == ("frog",)


def test_pieces_of_split_words_are_no_words():
    """frog ##s is one word of two pieces, frog another word of one."""
    ids = torch.tensor([ID["frog"], ID["##s"], ID["toad"], ID["newt"], ID["##lily"], ID["toad"], ID["."]])
    documents = [Document(ids, torch.tensor([0, 0, 1, 2, 2, 3, 4]))] * 6
    fit = fit_topics(documents, wordpiece(), n_topics=1, passes=1, max_share=1.0)
    assert fit.texts == ("toad",)
    assert fit.tokens.tolist() == pytest.approx([12])
    assert fit.provenance["left_out"] == {"pieces of split words": 12, "tokens that are no words": 18}


def metaspace() -> transformers.PreTrainedTokenizerFast:
    """As in ALBERT, where "frogs," is the word ▁frogs with its comma."""
    pieces = ["<unk>", "▁frogs", "▁toad", "stool", ",", "▁", "x", "▁the", "frogs", "१", "▁मेंढक", "the"]
    backend = tokenizers.Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


def test_punctuation_that_counts_to_a_word_does_not_split_it():
    tokenizer = metaspace()
    documents = list(Corpus.from_texts(["frogs, toadstool toad"] * 6).documents(tokenizer))
    assert documents[0].word_index.tolist() == [0, -1, 1, 1, 2]
    fit = fit_topics(documents, tokenizer, n_topics=1, passes=1, max_share=1.0)
    assert dict(zip(fit.texts, fit.document_frequency.tolist(), strict=True)) == {"frogs": 6, "toad": 6}
    assert fit.tokens.tolist() == pytest.approx([12])


def test_of_bare_ids_every_token_is_a_word_and_the_fit_says_so():
    tokenizer = metaspace()
    fit = fit_topics([[1, 2, 3, 8]] * 6, tokenizer, n_topics=1, passes=1, max_share=1.0)
    assert fit.token_ids.tolist() == [1, 2, 3, 8]
    assert fit.provenance["documents_without_words"] == 6


def test_words_of_a_vocabulary_are_letters_in_any_script():
    assert [TOKENS[index] for index in word_ids(wordpiece())] == WORDS
    everything = word_ids(wordpiece(), stop_words=(), min_letters=1)
    assert {TOKENS[index] for index in everything} - set(WORDS) == {"the", "and", "everywhere", "once", "x"}
    # With the Hindi word and its vowel signs, without "the", which "(the" has behind its bracket.
    assert word_ids(metaspace()).tolist() == [1, 2, 3, 8, 10]
    with pytest.raises(TypeError, match="stop_words must be a list or None, got 'the'"):
        word_ids(wordpiece(), stop_words="the")


def test_gensims_stop_words_are_no_words_of_a_real_vocabulary():
    tokenizer = minilm()
    words = set(tokenizer.convert_ids_to_tokens(word_ids(tokenizer).tolist()))
    assert {"frog", "symphony", "kyoto", "constitution"} <= words
    assert not words & {"the", "whereas", "##ing", "1990", "[MASK]", "[unused5]", ",", "b", "ø"}
    assert len(words) > 20_000


# --- reproducing -------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_topics_and_no_global_generator_is_touched():
    states = (np.random.get_state()[1].copy(), torch.get_rng_state())  # noqa: NPY002
    one, again, other = (fit_topics(planted(), wordpiece(), **FAST, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.phi, again.phi)
    assert not torch.equal(one.phi, other.phi)
    assert one.settings == again.settings
    assert np.array_equal(np.random.get_state()[1], states[0])  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[1])


def test_documents_are_read_once_from_any_stream():
    fit = fit_topics(iter(planted()), wordpiece(), **FAST)
    assert torch.equal(fit.phi, planted_fit().phi)


@pytest.mark.parametrize("options", [{}, {"start": "random"}, {"alpha": "auto", "eta": "auto"}])
def test_the_order_of_documents_changes_no_bit(options):
    """Also of documents of no topic, whose topics depend on the last bit of every sum."""
    generator = random.Random(3)
    documents = [
        generator.choices([ID[word] for word in WORDS], k=generator.randint(1, 40)) for _ in range(290)
    ]
    options = {**FAST, "max_share": 1.0, **options}
    fits = [
        fit_topics(given, wordpiece(), **options)
        for given in (documents, documents[::-1], generator.sample(documents, len(documents)))
    ]
    assert all(same_fit(fit, fits[0]) for fit in fits)


def a_table(documents):
    """The documents as bags, read as a fit reads them."""
    return read_bags(documents, judge(wordpiece(), (), 1))[0]


def test_bags_count_the_words_of_every_document():
    documents = [planted()[0], [], planted()[1]]
    words = set(word_ids(wordpiece(), stop_words=(), min_letters=1).tolist())
    wanted = [
        [document.count(index) if index in words else 0 for index in range(len(TOKENS))]
        for document in documents
    ]
    assert a_table(documents).toarray().tolist() == wanted


def test_every_pass_has_all_documents_in_a_new_order_of_the_seed_alone():
    """Documents of a theme that came together are far apart."""
    documents = [[ID[word]] * times for times in range(1, 42) for word in WORDS]
    passes = [
        lda_module._Passes(a_table(given), seed)
        for given, seed in ((documents, 0), (documents[::-1], 0), (documents, 1))
    ]
    for one in passes:
        one.bar = progress_bar(shown=False)
    first, backwards, other = map(list, passes)
    assert sorted(first) == sorted([(document[0], len(document))] for document in documents)
    assert first == backwards
    assert first != other
    assert sorted(passes[0]) == sorted(first)
    assert list(passes[0]) != first
    order = [times for ((_, times),) in first]
    assert abs(np.corrcoef(order, range(len(order)))[0, 1]) < 0.1


@pytest.mark.parametrize("wanted", [1, 7, 100, 2000, None])
def test_all_chunks_of_a_pass_are_about_equally_large(wanted):
    """A last chunk of a few documents would count as much as a full one."""
    for n in [*range(1, 300), 2122, 10_001]:
        size = lda_module._even_chunks(n, wanted)
        chunks = math.ceil(n / size)
        last = n - (chunks - 1) * size
        assert 0 < last <= size
        assert size - last < chunks
        if wanted is not None and n > 2 * wanted:
            assert wanted / 1.5 <= size <= 1.5 * wanted + 1


def test_fitting_says_nothing_unless_asked(capfd):
    fit_topics(planted(), wordpiece(), n_topics=3, passes=1)
    out = capfd.readouterr()
    assert out.out == out.err == ""
    fit_topics(planted(), wordpiece(), n_topics=3, passes=2, progress=True)
    assert "600/600" in capfd.readouterr().err


def test_an_interrupted_fit_returns_what_there_is(monkeypatch):
    iterate = lda_module._Passes.__iter__
    n_read = 0

    def interrupted(self):
        nonlocal n_read
        for bag in iterate(self):
            n_read += 1
            if n_read == 700:
                raise KeyboardInterrupt
            yield bag

    monkeypatch.setattr(lda_module._Passes, "__iter__", interrupted)
    fit = fit_topics(planted(), wordpiece(), **FAST)
    assert fit.provenance["stopped"] == "interrupted after 700 of 1,500 documents"
    assert sorted(themes_found(fit), key=str) == sorted(THEMES)
    n_read = 699
    with pytest.raises(KeyboardInterrupt):
        fit_topics(planted(), wordpiece(), **FAST)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_topics": 0}, "n_topics must be at least 1, got 0"),
        ({"passes": 0}, "passes must be at least 1, got 0"),
        ({"chunk_size": 0}, "chunk_size must be at least 1, got 0"),
        ({"start": "here"}, "start must be one of 'documents', 'random', got 'here'"),
        ({"min_documents": 0}, "min_documents must be at least 1 .* got 0 and 0.5"),
        ({"max_share": 1.5}, r"max_share in \(0, 1\], got 5 and 1.5"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message, unchecked):
    with pytest.raises(ValueError, match=message):
        fit_topics(planted(3), wordpiece(), **options)


def test_nothing_left_to_fit_says_why():
    with pytest.raises(
        ValueError,
        match=r"no word is left to fit in 2 documents \(2 stop words; 1 different words, in too few",
    ):
        fit_topics([[ID["the"], ID["frog"]], [ID["the"]]], wordpiece())
    with pytest.raises(ValueError, match="in 0 documents"):
        fit_topics([], wordpiece())


def test_documents_of_another_tokenizer_are_refused():
    with pytest.raises(
        ValueError, match=f"document 1 holds the token id 999, the tokenizer has 0..{len(TOKENS) - 1}"
    ):
        fit_topics([[5, 6], [5, 999]], wordpiece())
    with pytest.raises(TypeError, match="encode texts first"):
        fit_topics(["a frog"], wordpiece())


# --- scores ------------------------------------------------------------------------------------------


def a_fit(phi, tokens=None, token_ids=None, texts=None, seed=0, **provenance):
    phi = torch.tensor(phi, dtype=torch.float64)
    token_ids = torch.arange(phi.shape[1]) if token_ids is None else torch.tensor(token_ids)
    nan = torch.full((len(phi),), math.nan, dtype=torch.float64)
    return TopicFit(
        phi=phi / phi.sum(1, keepdim=True),
        token_ids=token_ids,
        texts=tuple(f"w{index}" for index in token_ids.tolist()) if texts is None else texts,
        vocabulary_size=50,
        tokenizer_hash="0" * 64,
        tokens=torch.full((len(phi),), 100.0, dtype=torch.float64)
        if tokens is None
        else torch.tensor(tokens, dtype=torch.float64),
        document_frequency=torch.ones(phi.shape[1], dtype=torch.int64),
        npmi=nan,
        settings={"seed": seed},
        provenance={"documents": 9, **provenance},
    )


def test_coherence_is_what_it_is_by_hand():
    # Documents: {a, b}, {a}, {b, c}, {} -> together: ab 1, bc 1, ac 0; alone: a 2, b 2, c 1.
    together = np.array([[2, 1, 0], [1, 2, 1], [0, 1, 1]])
    ab = math.log((1 / 4) / (2 / 4 * 2 / 4)) / -math.log(1 / 4)
    bc = math.log((1 / 4) / (2 / 4 * 1 / 4)) / -math.log(1 / 4)
    assert lda_module._npmi(together, 4) == pytest.approx((ab + bc - 1) / 3)
    assert lda_module._npmi(np.full((2, 2), 4), 4) == 1
    assert math.isnan(lda_module._npmi(np.array([[3]]), 4))


def test_coherence_equals_double_loops_over_the_documents():
    fit, documents = planted_fit(), planted()
    for topic, words in enumerate(fit.top_words()):
        sets = [{TOKENS[index] for index in document} for document in documents]
        npmi = []
        for earlier, later in combinations(words, 2):
            one, two = (sum(word in held for held in sets) / len(sets) for word in (earlier, later))
            both = sum({earlier, later} <= held for held in sets)
            joint = both / len(sets)
            npmi.append(math.log(joint / one / two) / -math.log(joint) if both else -1)
        assert float(fit.npmi[topic]) == pytest.approx(np.mean(npmi), abs=1e-12)


def test_coherence_equals_gensims_own_over_whole_documents():
    """Eight words that all meet, so that gensim's epsilon for pairs that never do plays no part."""
    fit = planted_fit()
    texts = [[TOKENS[index] for index in document] for document in planted()]
    topics = [words[:8] for words in fit.top_words()]
    theirs = CoherenceModel(
        topics=topics,
        texts=texts,
        dictionary=Dictionary(texts),
        coherence="c_npmi",
        window_size=1000,
        processes=1,
    ).get_coherence_per_topic()
    npmi = lda_module.coherence(fit.top_columns(8), a_table(planted())[:, fit.token_ids.numpy()])
    np.testing.assert_allclose(npmi, theirs, atol=1e-9)


def test_diversity_and_exclusive_words_are_counted():
    fit = a_fit([[4, 3, 2, 1, 0, 0], [4, 3, 0, 0, 2, 1], [0, 0, 1, 4, 2, 3]])
    assert fit.top_words(2) == [["w0", "w1"], ["w0", "w1"], ["w3", "w5"]]
    assert fit.diversity(2) == pytest.approx(4 / 6)
    assert fit.diversity(1) == pytest.approx(2 / 3)
    assert fit.to_dataframe(2)["exclusive"].tolist() == [0, 0, 1]


def test_equally_likely_words_come_in_the_order_of_their_ids():
    assert a_fit([[1, 2, 2, 1, 2]]).top_words(4) == [["w1", "w2", "w4", "w0"]]
    many = a_fit([[1 + place % 2 for place in range(40)]])
    assert many.top_words(21)[0] == [f"w{place}" for place in [*range(1, 40, 2), 0]]


def test_empty_and_identical_topics_are_reported():
    fit = a_fit(
        [[4, 3, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1], [9, 1, 8, 2], [1, 2, 3, 4]],
        tokens=[70.0, 0.2, 0.0, 20.0, 30.0],
    )
    assert fit.empty_topics == (1, 2)
    assert fit.identical_topics == ((0, 3), (0, 4))
    assert fit.to_dataframe()["note"].tolist() == ["", "empty", "empty", "same words as 0", "same words as 0"]
    with pytest.warns(UserWarning, match="topics") as warned:
        lda_module._warn_of_bad_topics(fit)
    assert [str(warning.message)[:40] for warning in warned] == [
        "2 of 5 topics got no words (such as (1, ",
        "topics with the same top words: 0 = 3, 0",
    ]


def test_more_topics_than_there_are_themes_may_stay_empty_and_are_warned_about():
    with pytest.warns(UserWarning, match="topics with the same top words|topics got no words"):
        fit_topics([[ID["frog"], ID["toad"]]] * 8, wordpiece(), n_topics=4, passes=2, max_share=1.0)


def test_a_fit_prints_its_topics():
    fit = planted_fit()
    text = repr(fit)
    assert text.startswith("TopicFit: 3 topics over 24 words, 300 documents; mean NPMI ")
    assert all(theme[0] in text for theme in THEMES.values())
    assert "<table" in fit._repr_html_()
    assert fit.label(1) == "1: " + "·".join(fit.top_words(3)[1])
    assert len(fit) == fit.n_topics == 3
    with pytest.raises(ValueError, match=r"topics are numbered 0..2, got 3"):
        fit.label(3)


# --- on disk -----------------------------------------------------------------------------------------


def same_fit(one, other):
    tensors = all(
        torch.equal(getattr(one, name).nan_to_num(7), getattr(other, name).nan_to_num(7))
        for name in ("phi", "token_ids", "tokens", "document_frequency", "npmi")
    )
    plain = ("texts", "vocabulary_size", "tokenizer_hash", "settings", "provenance")
    return tensors and all(getattr(one, name) == getattr(other, name) for name in plain)


def test_a_fit_comes_back_from_disk_as_it_went(tmp_path):
    documents = Corpus.from_texts([" ".join(words) for words in THEMES.values()] * 6).documents(wordpiece())
    fit = fit_topics(documents, wordpiece(), n_topics=3, passes=2, alpha=[0.1, 0.2, 0.3], seed=1)
    fit.save(tmp_path / "fit")
    assert same_fit(TopicFit.load(tmp_path / "fit"), fit)
    assert fit.provenance["corpus"]["read"]["documents"] == 18
    assert load_report(tmp_path / "fit") == fit
    with pytest.raises(FileExistsError, match="not overwritten unasked"):
        fit.save(tmp_path / "fit")
    a_fit([[1, 2, math.nan]]).save(tmp_path / "fit", overwrite=True)
    assert TopicFit.load(tmp_path / "fit").n_topics == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "topics"}, "holds 'topics', not 'topic fit'"),
        ({"version": 99}, "has format version 99, this topic_probe reads 1"),
        ({"content": {}}, "does not describe a TopicFit"),
    ],
)
def test_a_folder_that_holds_no_whole_fit_is_refused(change, message, tmp_path):
    planted_fit().save(tmp_path / "fit")
    saved_results.change(tmp_path / "fit", **change)
    with pytest.raises(ValueError, match=message):
        TopicFit.load(tmp_path / "fit")


# --- found in other fits -----------------------------------------------------------------------------


def test_renumbered_topics_are_found_again():
    phi = np.random.default_rng(0).dirichlet(np.full(40, 0.1), size=6)
    found = a_fit(phi).found_in([a_fit(phi[[3, 0, 5, 1, 2, 4]])])
    assert found["found"].tolist() == found["lowest"].tolist() == [1] * 6
    assert found["topic"].tolist() == [a_fit(phi).label(topic) for topic in range(6)]


def test_the_pairing_is_the_best_of_all_and_likeness_that_of_sets():
    generator = np.random.default_rng(1)
    # The fits do not have the same columns: words that one does not know are simply not in common.
    one = a_fit(generator.dirichlet(np.full(20, 0.5), size=5), token_ids=list(range(20)))
    two = a_fit(generator.dirichlet(np.full(20, 0.5), size=5), token_ids=list(range(8, 28)))
    likeness = np.array(
        [[len({*a} & {*b}) / len({*a} | {*b}) for b in two.top_words(7)] for a in one.top_words(7)]
    )
    best = max(permutations(range(5)), key=lambda order: sum(likeness[range(5), order]))
    found = one.found_in([two], n=7).set_index("topic")["found"]
    assert found.mean() == pytest.approx(likeness[range(5), best].mean())
    assert [found[one.label(topic)] for topic in range(5)] == pytest.approx(likeness[range(5), best])


def test_topics_without_a_partner_are_not_found():
    phi = np.eye(4) + 0.01
    found = a_fit(phi).found_in([a_fit(phi[[2, 1]]), a_fit(phi)], n=1)
    assert found["topic"].tolist() == ["1: w1·w0·w2", "2: w2·w0·w1", "0: w0·w1·w2", "3: w3·w0·w1"]
    assert found["found"].tolist() == [1, 1, 0.5, 0.5]
    assert found["lowest"].tolist() == [1, 1, 0, 0]


def test_planted_topics_are_found_with_other_seeds():
    fits = [fit_topics(planted(seed=seed), wordpiece(), **FAST, seed=seed) for seed in range(3)]
    assert fits[0].found_in(fits[1:], n=8)["found"].tolist() == [1, 1, 1]


def test_fits_that_cannot_be_compared_are_refused():
    from dataclasses import replace

    fit = a_fit([[1, 2]])
    with pytest.raises(ValueError, match="pass at least one"):
        fit.found_in([])
    with pytest.raises(ValueError, match="of different tokenizers"):
        fit.found_in([fit, replace(fit, tokenizer_hash="1" * 64)])


# --- Topics.from_lda ----------------------------------------------------------------------------------


@pytest.mark.parametrize("one_topic_per_word", [True, False])
@pytest.mark.parametrize("fraction", [0.1, 0.3])
def test_a_fit_becomes_the_topics_that_its_matrix_gives(one_topic_per_word, fraction):
    fit = planted_fit()
    topics = Topics.from_lda(fit, fraction=fraction, one_topic_per_word=one_topic_per_word)
    dense = torch.zeros(3, len(TOKENS), dtype=torch.float64)
    dense[:, fit.token_ids] = fit.phi
    # The threshold is a share of the 24 fitted words, not of the vocabulary.
    direct = Topics.from_matrix(
        dense,
        fraction=round(fraction * 24) / len(TOKENS),
        one_topic_per_word=one_topic_per_word,
        tokenizer=wordpiece(),
    )
    torch.testing.assert_close(topics.weights, direct.weights)
    assert torch.equal(topics.words, direct.words)
    assert torch.equal(topics.membership, direct.membership)
    assert (topics.texts, topics.tokenizer_hash) == (direct.texts, direct.tokenizer_hash)
    assert topics.sizes.tolist() == [round(fraction * 24)] * 3
    assert topics.top_words(2) == fit.top_words(2)
    assert topics == Topics.from_lda(
        fit, fraction=fraction, one_topic_per_word=one_topic_per_word, tokenizer=wordpiece()
    )


def test_both_policies_of_the_paper_differ_where_a_word_is_in_two_topics():
    fit = a_fit([[5, 4, 1, 1], [3, 1, 5, 1]])
    kept = {policy: Topics.from_lda(fit, fraction=0.5, one_topic_per_word=policy) for policy in (True, False)}
    assert kept[True].membership.int().tolist() == [[1, 0], [1, 0], [0, 1]]
    assert kept[False].membership.int().tolist() == [[1, 1], [1, 0], [0, 1]]


def test_an_empty_topic_of_a_fit_stays_empty_and_keeps_its_number():
    fit = a_fit([[4, 3, 2, 1], [1.01, 1, 1, 1], [1, 2, 3, 4]], tokens=[70.0, 0.2, 30.0])
    with pytest.warns(UserWarning, match="topics without a word, which measure as NaN: 1"):
        topics = Topics.from_lda(fit, fraction=0.5, one_topic_per_word=False)
    assert topics.sizes.tolist() == [2, 0, 2]
    assert topics.names == ("0", "1", "2")


def test_more_words_can_be_left_out_of_a_fit():
    fit = planted_fit()
    topics = Topics.from_lda(
        fit, fraction=1.0, stop_words=["Frog"], exclude=[ID["toad"]], tokenizer=wordpiece()
    )
    assert {*WORDS} - {*topics.texts} == {"frog", "toad"}
    with pytest.raises(ValueError, match="stop_words are looked up with the tokenizer: pass it as well"):
        Topics.from_lda(fit, stop_words=["frog"])


def test_stop_words_that_were_fitted_on_purpose_are_kept():
    fit = fit_topics(planted(), wordpiece(), stop_words=(), max_share=1.0, **FAST)
    assert "the" in Topics.from_lda(fit, fraction=0.4, tokenizer=wordpiece()).texts


def test_a_fit_refuses_another_tokenizer():
    with pytest.raises(ValueError, match="fitted with another tokenizer"):
        Topics.from_lda(planted_fit(), tokenizer=minilm())
    with pytest.raises(ValueError, match="a fit knows the token ids of its columns"):
        Topics.from_lda(planted_fit(), token_ids=range(24))


@pytest.fixture(scope="module")
def gensim_lda():
    """A model of gensim's own over raw token ids, stop words and special tokens included."""
    bags = [
        list(zip(*map(np.ndarray.tolist, np.unique(document, return_counts=True)), strict=True))
        for document in planted()
    ]
    names = dict(enumerate(TOKENS))
    return LdaModel(bags, num_topics=3, id2word=names, random_state=1, passes=3, eval_every=None, alpha=0.1)


def test_a_model_of_gensim_becomes_topics_without_stop_words_and_special_tokens(gensim_lda):
    topics = Topics.from_lda(gensim_lda, fraction=1.0, tokenizer=wordpiece())
    assert not {"the", "and", "everywhere", "[CLS]", "[SEP]"} & set(topics.texts)
    assert set(WORDS) <= set(topics.texts)
    assert topics.vocabulary_size == len(TOKENS)
    phi = gensim_lda.get_topics().astype(np.float64)
    direct = Topics.from_matrix(
        phi,
        fraction=0.1,
        exclude=[ID[word] for word in ("the", "and", "everywhere", "once", *TOKENS[:5])],
        tokenizer=wordpiece(),
    )
    assert Topics.from_lda(gensim_lda, fraction=0.1, tokenizer=wordpiece()) == direct
    everything = Topics.from_lda(gensim_lda, fraction=1.0, stop_words=(), tokenizer=wordpiece())
    assert {"the", "and"} <= set(everything.texts)


class Named:
    """The public face of a gensim model."""

    def __init__(self, phi, id2word):
        self._phi, self.id2word = np.array(phi), id2word

    def get_topics(self):
        return self._phi


PHI = [[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]]


@pytest.mark.parametrize(
    ("id2word", "options", "ids"),
    [
        (None, {}, [0, 2]),
        ({0: "0", 1: "1", 2: "2"}, {}, [0, 2]),
        ({0: 7, 1: 8, 2: 9}, {"vocabulary_size": 50}, [7, 9]),
        ({0: "newt", 1: "pond", 2: "frog"}, {"tokenizer": wordpiece()}, [ID["frog"], ID["newt"]]),
        ({0: "a", 1: "b", 2: "c"}, {"token_ids": [30, 20, 10], "vocabulary_size": 50}, [10, 30]),
    ],
)
def test_columns_of_a_gensim_model_become_the_token_ids_that_they_stand_for(id2word, options, ids):
    topics = Topics.from_lda(Named(PHI, id2word), fraction=0.3, **options)
    assert topics.words.tolist() == ids


def test_columns_that_stand_for_words_are_not_taken_for_token_ids():
    named = Named(PHI, {0: "frog", 1: "axolotl", 2: "salamander"})
    with pytest.raises(ValueError, match=r"3 columns .* such as 'frog': pass the tokenizer"):
        Topics.from_lda(named)
    with pytest.raises(ValueError, match=r"2 columns .* such as 'axolotl': fit the model on its token ids"):
        Topics.from_lda(named, tokenizer=wordpiece())
    with pytest.raises(
        TypeError, match=r"from_lda needs a TopicFit or a gensim model .* got list; .*from_matrix"
    ):
        Topics.from_lda(PHI)


# --- real text ---------------------------------------------------------------------------------------


@cache
def minilm():
    return transformers.AutoTokenizer.from_pretrained(minilm_folder())


@pytest.fixture(scope="module")
def articles():
    """Half of the passages of the bundled articles."""
    documents = Corpus.bundled().documents(minilm(), max_length=256, long="chunk", min_length=20)
    return [document for number, document in enumerate(documents) if number % 2]


@pytest.fixture(scope="module")
def real_fits(articles):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return [fit_topics(articles, minilm(), n_topics=20, passes=4, seed=seed) for seed in range(3)]


@pytest.fixture(scope="module")
def real_fit(real_fits):
    return real_fits[0]


# Chosen before the topics were looked at, from the titles of the articles.
TOGETHER = [
    "apollo moon spacecraft lunar orbit",
    "army troops war battle forces",
    "acid metals hydrogen carbon",
    "film academy awards",
    "species fish animals",
    "court appeal judge",
    "alphabet letters language",
    "einstein relativity physics",
    "anarchist anarchism",
    "slavery lincoln",
]


def together_with(fit):
    """How likely words of the same group, and of different groups, are to come from the same topic."""
    row = {word: column for column, word in enumerate(fit.texts)}
    joint = fit.phi * fit.shares[:, None]
    given = joint / joint.sum(0)

    def together(one, other):
        return float(given[:, row[one]] @ given[:, row[other]])

    groups = [[word for word in group.split() if word in row] for group in TOGETHER]
    within = [together(a, b) for group in groups for a, b in combinations(group, 2)]
    return within, [together(a, b) for one, two in combinations(groups, 2) for a in one for b in two]


def test_topics_of_real_articles_keep_words_together_that_belong_together(real_fits):
    """Over three seeds, because one start from random documents tells little."""
    found = [together_with(fit) for fit in real_fits]
    assert all(len(within) > 20 for within, _ in found)
    assert all(np.mean(within) > 5 * np.mean(between) for within, between in found)
    assert np.mean([value > 0.2 for within, _ in found for value in within]) > 0.75
    for fit in real_fits:
        assert fit.empty_topics == fit.identical_topics == ()
        assert fit.npmi.mean() > 0.05
        assert fit.diversity() > 0.7


def test_the_first_seed_alone_keeps_three_quarters_of_the_words_together(real_fit):
    within, _ = together_with(real_fit)
    assert np.mean([value > 0.2 for value in within]) > 0.75


def test_topics_that_start_from_documents_are_more_coherent_than_gensims_own_start(articles, real_fit):
    plain = fit_topics(articles, minilm(), n_topics=20, passes=4, start="random")
    assert real_fit.npmi.mean() > plain.npmi.mean() + 0.03


def test_the_thresholds_of_the_paper_give_topics_of_real_text(real_fit):
    sizes = {}
    for fraction in (0.0005, 0.001, 0.002):
        topics = Topics.from_lda(real_fit, fraction=fraction, one_topic_per_word=False)
        sizes[fraction] = set(topics.sizes.tolist())
        topics.check_tokenizer(minilm())
    n = len(real_fit.token_ids)
    assert sizes == {f: {max(1, math.floor(n * f + 0.5))} for f in sizes}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"alpha": []}, "alpha must be one number for each of 2 topics, got 0"),
        ({"alpha": [0.1] * 3}, "alpha must be one number for each of 2 topics, got 3"),
        ({"alpha": -1.0}, "alpha is a prior and must be positive and finite"),
        (
            {"alpha": "flat"},
            "alpha must be 'symmetric' or 'asymmetric' or 'auto' or a number or a list, got 'flat'",
        ),
        ({"eta": float("nan")}, "eta is a prior and must be positive and finite"),
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"min_letters": 0}, "min_letters must be at least 1, got 0"),
        ({"seed": 2**32}, "seed must be at most 4294967295, got 4294967296"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_options_that_gensim_would_refuse_or_swallow_are_named(options, match, unchecked):
    with pytest.raises((TypeError, ValueError), match=match):
        fit_topics([[5, 6]] * 9, wordpiece(), n_topics=2, **options)


def test_an_id_below_zero_is_named(unchecked):
    with pytest.raises(ValueError, match="document 1 holds the token id -3, the tokenizer has"):
        fit_topics([[5], [5, -3]], wordpiece(), n_topics=2)
