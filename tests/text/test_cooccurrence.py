import math
from itertools import combinations

import numpy as np
import pytest
import torch

import topic_probe as tp
from topic_probe.text.cooccurrence import Cooccurrence, count_cooccurrence

WORDS = [3, 5, 6, 9]
DOCUMENTS = [[3, 5, 5, 1], [5, 3], [3, 6, 5, 6], [9], [6, 1, 9], [1, 2]]


def random_documents(n=60, seed=0, vocabulary=40):
    generator = np.random.default_rng(seed)
    return [
        generator.zipf(1.4, size=generator.integers(1, 30)).clip(max=vocabulary - 1).tolist()
        for _ in range(n)
    ]


def double_loop(documents, words):
    counts = np.zeros((len(words), len(words)), dtype=int)
    for document in documents:
        for row, one in enumerate(words):
            for column, other in enumerate(words):
                counts[row, column] += one in document and other in document
    return counts


def test_counts_are_those_of_a_double_loop_over_words():
    documents = random_documents()
    words = [1, 2, 3, 5, 8, 13, 21, 30]
    found = count_cooccurrence(documents, words)
    np.testing.assert_array_equal(found.counts, double_loop(documents, words))


def test_counts_pmi_and_npmi_worked_by_hand():
    few = count_cooccurrence(DOCUMENTS, WORDS)
    assert few.counts.tolist() == [[3, 3, 1, 0], [3, 3, 1, 0], [1, 1, 2, 1], [0, 0, 1, 2]]
    assert repr(few).startswith("Cooccurrence: 4 words in 6 documents\n")
    found = count_cooccurrence(DOCUMENTS, [2, 3, 5, 6, 9, 11])
    pmi, table = found.pmi(), found.to_dataframe().set_index(["first", "second"])
    assert pmi[1, 2] == pytest.approx(math.log(6 * 3 / 9))
    assert table.npmi[3, 5] == pytest.approx(1)  # they only occur together
    assert pmi[3, 4] == pytest.approx(math.log(6 * 1 / 4))
    assert table.npmi[6, 9] == pytest.approx(math.log(1.5) / math.log(6))
    assert pmi[1, 4] == -math.inf
    assert (3, 9) not in table.index
    assert math.isnan(pmi[1, 5])  # 11 is in no document
    assert (table.pmi[6, 9], table.pmi[3, 6]) == (pmi[3, 4], pmi[1, 3])


def test_the_most_frequent_pairs_are_those_of_a_sorted_list_with_ties_by_id():
    documents = random_documents(seed=1)
    words = list(range(1, 40))
    counts = double_loop(documents, words)
    wanted = sorted(
        ((-counts[a, b], words[a], words[b]) for a, b in combinations(range(39), 2) if counts[a, b])
    )
    found = count_cooccurrence(documents, words)
    for n in (1, 7, 50, 10_000):
        first, second, together = (part.tolist() for part in found.most_frequent(n))
        assert [(-c, a, b) for a, b, c in zip(first, second, together, strict=True)] == wanted[:n]


def test_forms_of_one_word_are_no_pair_of_words():
    documents = random_documents(seed=1)
    found = count_cooccurrence(documents, range(1, 40))
    pairs = list(zip(*(part.tolist() for part in found.most_frequent(10_000)), strict=True))
    forms = torch.tensor([word // 3 for word in range(1, 40)])
    kept = list(zip(*(part.tolist() for part in found.most_frequent(30, forms=forms)), strict=True))
    assert kept == [(a, b, c) for a, b, c in pairs if a // 3 != b // 3][:30]


def test_parts_of_a_corpus_add_up_to_the_whole():
    documents = random_documents(seed=3)
    parts = [count_cooccurrence(documents[part::3], range(1, 40)) for part in range(3)]
    assert parts[0] + parts[1] + parts[2] == count_cooccurrence(documents, range(1, 40))
    with pytest.raises(ValueError, match="same words"):
        _ = parts[0] + count_cooccurrence(documents, [1, 2])
    with pytest.raises(ValueError, match="same options"):
        _ = parts[0] + count_cooccurrence(documents, range(1, 40), max_length=2)


def test_too_many_words_are_cut_to_the_most_frequent():
    documents = random_documents(n=200, seed=4)
    everything = count_cooccurrence(documents, range(1, 40))
    found = count_cooccurrence(documents, range(1, 40), max_words=12)
    order = sorted(range(39), key=lambda row: (-int(everything.document_frequency[row]), row))
    assert found.words.tolist() == sorted(everything.words[order[:12]].tolist())
    np.testing.assert_array_equal(found.counts, everything.restrict(found.words).counts)


def test_long_documents_are_cut_or_become_windows():
    document = [[3, 1, 5, 1, 6, 3]]
    assert count_cooccurrence(document, WORDS, max_length=3).counts[0].tolist() == [1, 1, 0, 0]
    windows = count_cooccurrence(document, WORDS, max_length=3, long="chunk")
    assert windows.n_documents == 2
    assert windows.counts.tolist() == [[2, 1, 1, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]]


def test_special_tokens_and_pieces_of_split_words_are_no_words():
    document = tp.Document(
        torch.tensor([3, 5, 6, 9, 3]),
        torch.tensor([-1, 0, 1, 1, 2]),
        torch.tensor([True, False, False, False, False]),
    )
    assert count_cooccurrence([document], WORDS).document_frequency.tolist() == [1, 1, 0, 0]
    alone = tp.Document(torch.tensor([3, 5]), None, torch.tensor([True, False]))
    assert count_cooccurrence([alone], WORDS).document_frequency.tolist() == [0, 1, 0, 0]


def test_the_words_of_topics_are_counted():
    topics = tp.Topics.from_token_ids({"a": [3, 5], "b": [9, 6]}, vocabulary_size=12)
    found = count_cooccurrence(DOCUMENTS, topics)
    assert found.words.tolist() == WORDS
    assert found.vocabulary_size == 12
    assert found.rows_of(torch.tensor([9, 4, 3, -1, 99])).tolist() == [3, -1, 0, -1, -1]
    with pytest.raises(ValueError, match="holds the token id 12"):
        count_cooccurrence([[12]], topics)


@pytest.mark.parametrize(
    ("documents", "words", "options", "message"),
    [
        ([[]], WORDS, {}, "no document is left"),
        (DOCUMENTS, [], {}, "no word to count"),
        (DOCUMENTS, [-1, 2], {}, "such as -1"),
        (DOCUMENTS, [5], {"vocabulary_size": 5}, "such as 5: its ids are 0..4"),
        ([[7, 50]], WORDS, {"vocabulary_size": 50}, "holds the token id 50"),
        (DOCUMENTS, "dog", {}, "token ids"),
        (["a dog"], WORDS, {}, "encode_texts"),
    ],
)
def test_bad_input_is_refused(documents, words, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        count_cooccurrence(documents, words, **options)


def test_counts_name_words_where_topics_or_documents_know_them(tmp_path):
    texts = ["the army lost the battle", "the army played", "a band played"]
    tokenizer = tp.word_tokenizer(texts)
    documents = tp.Corpus.from_texts(texts).documents(tokenizer)
    topics = tp.Topics.from_word_lists({"war": ["army", "battle"], "music": ["band", "played"]}, tokenizer)
    by_topics = count_cooccurrence(list(documents), topics)
    assert sorted(by_topics.texts) == ["army", "band", "battle", "played"]
    pairs = by_topics.to_dataframe(9)[["first", "second"]].to_numpy()
    assert {frozenset(pair) for pair in pairs.tolist()} == {
        frozenset(("army", "battle")), frozenset(("army", "played")), frozenset(("band", "played")),
    }  # fmt: skip
    ids = tokenizer.convert_tokens_to_ids(["played", "the", "army"])
    by_tokenizer = count_cooccurrence(documents, ids)
    assert by_tokenizer.texts == tuple(tokenizer.convert_ids_to_tokens(sorted(ids)))
    assert Cooccurrence.load(by_topics.save(tmp_path / "counts")).texts == by_topics.texts
    assert (by_topics + by_topics).texts == by_topics.texts
    few = by_topics.restrict(topics.words[:2])
    assert few.texts == by_topics.texts[:2]
