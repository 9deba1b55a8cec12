"""Sums over all pairs of words against double loops, exact to rounding."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

import topic_probe as tp
from topic_probe.measure import pair_sums as pair_sums_module
from topic_probe.measure import words as words_module
from topic_probe.measure.pair_sums import group_sums, pair_sums, word_ends
from topic_probe.measure.words import LabelledWords, labelled_words
from topic_probe.topics import Topics
from topic_probe.uncertainty import word_interval

VOCABULARY = 40
# Words in two and three topics, a topic of one word.
OVERLAPPING = {
    "a": [1, 2, 3, 9],
    "b": [3, 4, 5, 11],
    "c": [7],
    "d": [8, 3, 7, 20, 21],
    "e": [13],
}
# Three words of different topics that share two or three of them.
SHARING_SEVERAL = {"a": [1, 2, 3, 9, 14], "b": [3, 4, 11, 14, 9], "c": [7, 14, 3], "d": [8, 3, 20, 21]}
DISJOINT = {"a": [1, 2, 3, 9], "b": [4, 5, 11], "c": [7], "d": [8, 20, 21]}
ONE_TOPIC = {"a": [1, 2, 3, 4]}
LISTS = {"overlapping": OVERLAPPING, "disjoint": DISJOINT, "one topic": ONE_TOPIC}


def table(seed=0, width=7):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(VOCABULARY, width, generator=generator, dtype=torch.float64) + 0.5


def topics_of(lists):
    return Topics.from_token_ids(lists, vocabulary_size=VOCABULARY)


# Forms of a word in one topic, in several that share none, in more and fewer topics.
TEXTS = {1: "War", 2: " war", 3: "WAR", 8: "(war", 4: "sea", 20: " Sea", 7: "x", 13: "X", 9: "army"}


def with_texts(lists):
    """Topics whose entries have the texts above, which make several of them one word."""
    plain = topics_of(lists)
    texts = tuple(TEXTS.get(entry, f"w{entry}") for entry in plain.words.tolist())
    return replace(plain, texts=texts)


def word_of(entry, texts):
    return texts.get(entry, f"w{entry}").strip("( ").lower()


def relation_of(lists, i, j, texts=None):
    one, other = ({name for name, ids in lists.items() if id_ in ids} for id_ in (i, j))
    if not one or not other:
        return None
    same_word = i == j if texts is None else word_of(i, texts) == word_of(j, texts)
    return 0 if same_word else 1 if one & other else 2


def embedding_sums(rows, topics, **options):
    """Sums over all ordered pairs, by the code."""
    words = labelled_words(rows, topics, **options)
    return pair_sums(group_sums(words), words)[0]


def double_loop(rows, lists, without=(), texts=None):
    """Sums and counts of cosine and dot product over all ordered pairs, from the definitions."""
    sums, counts = np.zeros((2, 3)), np.zeros(3)
    for i, j in itertools.product(sorted(set(range(VOCABULARY)) - set(without)), repeat=2):
        relation = relation_of(lists, i, j, texts)
        if relation is not None:
            dot = float(rows[i] @ rows[j])
            sums[:, relation] += dot / float(rows[i].norm() * rows[j].norm()), dot
            counts[relation] += 1
    return sums, counts


@pytest.mark.parametrize("lists", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("exclude", [(), (3, 20, 30)])
def test_sums_are_those_of_a_double_loop_over_all_words(lists, exclude):
    found = embedding_sums(table(), topics_of(lists), exclude=exclude)
    sums, counts = double_loop(table(), lists, exclude)
    np.testing.assert_allclose(found.sums, sums, atol=1e-9)
    assert found.counts.tolist() == counts.tolist()


@pytest.mark.parametrize("lists", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("exclude", [(), (2, 3, 20, 30)])
def test_forms_of_one_word_are_one_word_in_the_sums(lists, exclude):
    found = embedding_sums(table(), with_texts(lists), exclude=exclude)
    sums, counts = double_loop(table(), lists, exclude, TEXTS)
    assert counts[0] > double_loop(table(), lists, exclude)[1][0] or exclude
    np.testing.assert_allclose(found.sums, sums, atol=1e-9)
    assert found.counts.tolist() == counts.tolist()


@pytest.mark.parametrize("texts", [None, TEXTS], ids=["ids", "forms"])
@pytest.mark.parametrize("lists", LISTS.values(), ids=LISTS)
def test_every_topic_has_the_sums_of_a_double_loop(lists, texts):
    topics = topics_of(lists) if texts is None else with_texts(lists)
    words = labelled_words(table(), topics)
    found = pair_sums(group_sums(words), words)[1]
    rows = table()
    for topic, ids in enumerate(lists.values()):
        sums, counts = np.zeros(3), np.zeros(3)
        for i, j in itertools.product(range(VOCABULARY), repeat=2):
            relation = relation_of(lists, i, j, texts)
            # Its words with all their forms, with each other, and with words they share no topic with.
            if i not in ids or relation is None or (relation == 1 and j not in ids):
                continue
            cell = relation
            sums[cell] += float(rows[i] @ rows[j])
            counts[cell] += 1
        np.testing.assert_allclose(found.sums[1, topic], sums, atol=1e-9)
        assert found.counts[topic].tolist() == counts.tolist()


def test_an_empty_topic_has_nothing_but_zeros_and_becomes_nan_with_a_reason():
    with pytest.warns(UserWarning, match="topics without a word"):
        topics = topics_of(DISJOINT | {"empty": []})
    words = labelled_words(table(), topics)
    overall, by_topic = pair_sums(group_sums(words), words)
    assert by_topic.counts[-1].tolist() == [0, 0, 0]
    np.testing.assert_allclose(overall.sums, double_loop(table(), DISJOINT)[0], atol=1e-9)
    cell = by_topic.contrast()[0, 4]
    assert np.isnan([cell.same_topic, cell.different_topic, cell.ratio]).all()
    assert "no pair of different words shares a topic" in cell.reason
    one_word = by_topic.contrast()[0, 2]
    assert np.isnan(one_word.ratio)
    assert not np.isnan(one_word.different_topic)


def test_centring_subtracts_the_mean_of_all_rows_in_use():
    rows = table()
    rows[30] = 0
    rows[31, 2] = torch.nan
    used = [i for i in range(VOCABULARY) if i not in (30, 31, 3, 35)]
    centred = rows - rows[used].mean(0)
    found = embedding_sums(rows, topics_of(OVERLAPPING), center=True, exclude=(3, 35))
    sums, counts = double_loop(centred, OVERLAPPING, (3, 35))
    np.testing.assert_allclose(found.sums, sums, atol=1e-9)
    assert found.counts.tolist() == counts.tolist()


@pytest.mark.parametrize("n", [1, 3])
def test_removed_components_are_the_leading_singular_vectors_of_the_centred_rows(n):
    rows = table()
    centred = rows - rows.mean(0)
    _, _, directions = np.linalg.svd(centred.numpy(), full_matrices=False)
    kept = centred - centred @ torch.from_numpy(directions[:n].T @ directions[:n])
    found = embedding_sums(rows, topics_of(OVERLAPPING), remove_components=n)
    np.testing.assert_allclose(found.sums, double_loop(kept, OVERLAPPING)[0], atol=1e-9)


def test_words_that_were_nothing_but_the_common_part_are_left_out():
    rows = 10 * table()
    rows[:, 1:] = 0
    # Only these two leave the first axis, in ways that do not correlate with it; the mean stays on it too.
    rows[5], rows[9] = torch.tensor([2.0, 1, 0, 0, 0, 0, 0]), torch.tensor([2.0, -1, 0, 0, 0, 0, 0])
    # Turned, so that what is left of the others is rounding instead of 0.
    turned = torch.linalg.qr(table()[:7]).Q
    words = labelled_words(rows @ turned, topics_of(DISJOINT), remove_components=1)
    assert words.left_out == {"words with nothing left after the common part": 9}
    torch.testing.assert_close(words.rows().norm(dim=1), torch.ones(2, dtype=torch.float64))
    rows[5] = rows[9] = rows[4]
    with pytest.raises(
        ValueError, match=r"no word is left .*'words with nothing left after the common part': 11"
    ):
        labelled_words(rows, topics_of(DISJOINT), remove_components=1)


@pytest.mark.parametrize("components", [-1, 7])
def test_a_number_of_components_that_cannot_be_is_refused(components):
    with pytest.raises(ValueError, match=f"from 0 to 6, below the width of the embeddings, got {components}"):
        embedding_sums(table(), topics_of(DISJOINT), remove_components=components)


def test_rows_without_a_direction_are_left_out_and_counted():
    rows = table()
    rows[3] = 0
    rows[4, 1] = torch.nan
    rows[8, 0] = torch.inf
    words = labelled_words(rows, topics_of(OVERLAPPING), exclude=(20, 39))
    assert words.left_out == {"words in exclude": 1, "words whose row is zero or not finite": 3}
    sums, counts = double_loop(rows, OVERLAPPING, (3, 4, 8, 20))
    found = pair_sums(group_sums(words), words)[0]
    np.testing.assert_allclose(found.sums, sums, atol=1e-9)
    assert found.counts.tolist() == counts.tolist()
    assert words.ids.tolist() == sorted(words.ids.tolist(), key=words.ids.tolist().index)


def test_split_words_have_no_row_and_are_left_out_and_counted():
    plain = topics_of(DISJOINT)
    words = torch.cat([plain.words, torch.tensor([VOCABULARY])])
    membership = torch.cat([plain.membership, plain.membership[:1]])
    topics = Topics(
        names=plain.names,
        vocabulary_size=VOCABULARY,
        words=words,
        assignments=membership.nonzero(),
        compounds=((1, 2),),
    )
    padded = torch.cat([table(), torch.ones(3, 7, dtype=torch.float64)])  # row 40 belongs to no word
    for rows in (table(), padded):
        found = labelled_words(rows, topics)
        assert found.left_out == {"split words, which have no row": 1}
        np.testing.assert_allclose(
            pair_sums(group_sums(found), found)[0].sums, double_loop(table(), DISJOINT)[0], atol=1e-9
        )


def test_nothing_left_is_an_error_that_says_where_the_words_went():
    with pytest.raises(
        ValueError, match=r"no word is left to measure of 4 that have a topic: .*'words in exclude': 4"
    ):
        embedding_sums(table(), topics_of(ONE_TOPIC), exclude=(1, 2, 3, 4))


def test_what_is_left_of_few_overlapping_words_of_a_large_table_is_exact(monkeypatch):
    # Of different topics is what is left when the pairs that share one, some of them counted twice, are taken out.
    monkeypatch.setattr(words_module, "_SMALL", 100)  # less than the table has, more than its words
    rows = table().float()
    found = embedding_sums(rows, topics_of(OVERLAPPING))
    assert found.sums[1, 2] == pytest.approx(double_loop(rows.double(), OVERLAPPING)[0][1, 2], rel=1e-13)


def large(dtype):
    generator = torch.Generator().manual_seed(3)
    lists = {f"{topic}": range(1 + 150 * topic, 151 + 150 * topic) for topic in range(5)} | {
        "more": range(100, 200)
    }
    rows = torch.randn(900, 48, generator=generator) * 0.1 + 0.05
    return rows.to(dtype), Topics.from_token_ids(lists, vocabulary_size=900)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("few", [False, True])
def test_large_tables_are_added_up_as_exactly_as_small_ones(monkeypatch, dtype, few):
    rows, topics = large(dtype)
    exclude = range(300, 900) if few else ()
    expected = embedding_sums(rows.double(), topics, exclude=exclude)
    monkeypatch.setattr(words_module, "_SMALL", 0)
    found = embedding_sums(rows, topics, exclude=exclude)
    np.testing.assert_allclose(found.contrast().same_topic, expected.contrast().same_topic, rtol=1e-7)
    np.testing.assert_allclose(
        found.contrast().different_topic, expected.contrast().different_topic, rtol=1e-7
    )
    assert found.counts.tolist() == expected.counts.tolist()


def test_the_sum_of_many_float32_rows_does_not_lose_digits(monkeypatch):
    rows = torch.rand(20_000, 8, generator=torch.Generator().manual_seed(0))
    topics = Topics.from_token_ids({"one": range(20_000)}, vocabulary_size=20_000)
    expected = embedding_sums(rows.double(), topics).contrast().same_topic
    monkeypatch.setattr(words_module, "_SMALL", 0)
    np.testing.assert_allclose(embedding_sums(rows, topics).contrast().same_topic, expected, rtol=2e-8)


def test_small_float32_tables_are_added_up_in_float64():
    rows = table().float()
    found = embedding_sums(rows, topics_of(OVERLAPPING))
    np.testing.assert_allclose(found.sums, double_loop(rows.double(), OVERLAPPING)[0], atol=1e-9)


def test_renumbering_topics_changes_nothing():
    turned = topics_of(dict(reversed(OVERLAPPING.items())))
    one, other = embedding_sums(table(), topics_of(OVERLAPPING)), embedding_sums(table(), turned)
    np.testing.assert_allclose(one.sums, other.sums, atol=1e-12)


def test_planted_topics_are_found_and_lost_when_topics_are_shuffled():
    generator = torch.Generator().manual_seed(0)
    topics = Topics.blocks(n_topics=20, words_per_topic=20)
    centres = torch.randn(20, 64, generator=generator, dtype=torch.float64)
    rows = torch.randn(401, 64, generator=generator, dtype=torch.float64) + 1
    rows[1:] += centres.repeat_interleave(20, 0)
    # 64 (1 + 1) against 64 · 1 in expectation.
    assert embedding_sums(rows, topics).contrast().ratio[1] == pytest.approx(2, abs=0.25)
    assert embedding_sums(rows, topics.shuffled(0)).contrast().ratio[1] == pytest.approx(1, abs=0.05)


# ---------------------------------------------------------------- what intervals need


@pytest.mark.parametrize("texts", [{}, TEXTS], ids=["ids", "forms"])
@pytest.mark.parametrize(
    "lists", [OVERLAPPING, SHARING_SEVERAL, DISJOINT], ids=["overlapping", "sharing several", "disjoint"]
)
@pytest.mark.parametrize("groups_per_block", [0, 2, 16], ids=["picked", "some picked", "multiplied"])
def test_every_word_has_both_ends_of_its_pairs_by_the_half_of_the_partner(
    lists, texts, groups_per_block, monkeypatch
):
    monkeypatch.setattr(pair_sums_module, "_GROUPS_PER_BLOCK", groups_per_block)
    monkeypatch.setattr(pair_sums_module, "_ROWS_PER_BLOCK", 3)
    topics, rows = with_texts(lists) if texts else topics_of(lists), table()
    words = labelled_words(rows, topics, exclude=(5,))
    half = words.halves(5).numpy()
    found = word_ends(words, group_sums(words, seed=5))
    ids = words.ids.tolist()
    # What is resampled: every different word, in the order in which they appear.
    names = list(dict.fromkeys(word_of(entry, texts) for entry in ids))
    assert len(half) == len(names) == words.n_forms
    place = {entry: names.index(word_of(entry, texts)) for entry in ids}
    same, n_same, different, n_different = (np.zeros_like(part) for part in found)
    for i, j in itertools.product(ids, repeat=2):
        dot = float(rows[i] @ rows[j])
        cosine = dot / float(rows[i].norm() * rows[j].norm())
        relation, a, b = relation_of(lists, i, j, texts), place[i], place[j]
        for score, value in enumerate((cosine, dot)):
            if relation == 1:
                same[half[b], a, score] += 2 * value
            elif relation == 2:
                different[half[b], a, score] += 2 * value
        n_same[half[b], a] += 2 * (relation == 1)
        n_different[half[b], a] += 2 * (relation == 2)
    for part, expected in zip(found, (same, n_same, different, n_different), strict=True):
        np.testing.assert_allclose(part, expected, atol=1e-9)


def test_words_are_resampled_within_the_first_topic_of_their_group():
    topics = topics_of(OVERLAPPING)
    names = list(OVERLAPPING)
    words = LabelledWords(topics, torch.arange(len(topics.words)))
    for word, topic in zip(topics.words.tolist(), words.strata, strict=True):
        assert names[topic] == next(name for name, ids in OVERLAPPING.items() if word in ids)


def test_all_forms_of_a_word_are_resampled_together_within_their_first_topic():
    topics = with_texts(DISJOINT)
    words = LabelledWords(topics, torch.arange(len(topics.words)))
    units = {}
    for entry, form in zip(words.ids.tolist(), words.form.tolist(), strict=True):
        units.setdefault(word_of(entry, TEXTS), set()).add(form)
    assert sorted(form for forms in units.values() for form in forms) == list(range(len(units)))
    # "war" is in a and d, "sea" in b and d, "x" in c.
    for word, topic in (("war", 0), ("sea", 1), ("x", 2), ("w21", 3)):
        assert words.strata[units[word].pop()] == topic


def test_an_interval_takes_a_word_and_its_copies_for_one_unit():
    # Every word twice, as two forms with one embedding: means of different words and their spread stay the same.
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(24, 6, generator=generator, dtype=torch.float64) + 0.5
    lists = {topic: [entry for entry in range(24) if entry % 3 == topic] for topic in range(3)}
    single = Topics.from_token_ids(lists, vocabulary_size=24)
    double = Topics.from_token_ids(
        {topic: [*ids, *(entry + 24 for entry in ids)] for topic, ids in lists.items()}, vocabulary_size=48
    )
    double = replace(double, texts=tuple(f"{'  '[entry // 24 :]}w{entry % 24}" for entry in range(48)))
    found = []
    for table, topics in ((rows, single), (torch.cat([rows, rows]), double)):
        words = labelled_words(table, topics)
        ends = word_ends(words, group_sums(words, seed=0))
        found.append((embedding_sums(table, topics).contrast(), word_interval(ends, words.strata)))
    assert found[0][0].ratio == pytest.approx(found[1][0].ratio)
    np.testing.assert_allclose(found[0][1], found[1][1])


@pytest.mark.slow
def test_intervals_cover_the_truth_when_topics_overlap():
    # Twelve words in each of eight topics; a quarter of all words is in another topic too, each time at random.
    generator = np.random.default_rng(0)
    n, size, width = 8, 12, 32
    centres = generator.normal(0, 0.15, (n, width)) + 1 / np.sqrt(width)
    kinds = [
        (first, second) for first in range(n) for second in range(n)
    ]  # second = first: in no other topic
    share = np.array([0.75 if first == second else 0.25 / (n - 1) for first, second in kinds])
    means = np.array([(centres[first] + centres[second]) / 2 for first, second in kinds])

    def draw(kind):
        rows = means[kind] + generator.normal(0, 1 / np.sqrt(width), (len(kind), width))
        return rows, rows / np.linalg.norm(rows, axis=1, keepdims=True)

    # What the score of two different words is expected to be, by their kinds: the product of expected vectors.
    many = [
        draw(np.repeat(np.arange(n * n), 10_000))[score].reshape(n * n, -1, width).mean(1) for score in (1, 0)
    ]
    related = np.array([[bool({*one} & {*other}) for other in kinds] for one in kinds])
    same_first = np.array([[one[0] == other[0] for other in kinds] for one in kinds])
    pairs = np.outer(share, share) * np.where(same_first, size * (size - 1), size * size)
    truth = [
        np.average(vectors @ vectors.T, weights=pairs * related)
        / np.average(vectors @ vectors.T, weights=pairs * ~related)
        for vectors in many
    ]
    runs, covered = 250, np.zeros(2)
    for run in range(runs):
        chance = generator.random((n * size, n * n))
        first = np.repeat(np.arange(n), size)
        allowed = np.array([[kind[0] == topic for kind in kinds] for topic in first])
        kind = np.argmax(
            np.log(share) * allowed - np.log(-np.log(chance)) - 1e9 * ~allowed, axis=1
        )  # Gumbel's way
        lists = {str(t): [i for i, k in enumerate(kind) if t in kinds[k]] for t in range(n)}
        topics = Topics.from_token_ids(lists, vocabulary_size=n * size)
        words = labelled_words(torch.from_numpy(draw(kind)[0]), topics)
        ends = word_ends(words, group_sums(words, seed=run))
        intervals = word_interval(ends, words.strata, n_resamples=400, seed=run)
        covered += (intervals[:, 0] <= truth) & (truth <= intervals[:, 1])
    # A share of 0.95 in 250 runs has a standard error of √(0.95 · 0.05 / 250) = 0.014; these are 2.5 of them on either
    # side. Intervals a quarter too narrow cover 0.858 ± 0.022.
    assert ((covered / runs >= 0.915) & (covered / runs <= 0.985)).all()


# ---------------------------------------------------------------- inflections


def some_bert():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8,
        initializer_range=0.3,
    )  # fmt: skip
    return tp.open_model(BertForMaskedLM(config).double().eval())


def test_inflections_are_measured_as_spellings_of_one_word_are():
    """Of "song" and "songs", one word by stems, everything is as of "song" and "Song", one word by case."""
    lists = {"music": [1, 2, 3, 4, 5, 12], "war": [6, 7, 8, 9, 5], "sea": [10, 11, 13]}
    words = [
        "song",
        "songs",
        "band",
        "bands",
        "guitar",
        "army",
        "armies",
        "battle",
        "war",
        "ship",
        "ships",
        "play",
        "sail",
    ]
    inflected = dict(enumerate(words, 1))
    spelled = inflected | {2: "Song", 4: "Band", 7: "Army", 11: "Ship"}
    plain = topics_of(lists)
    stemmed, cased = (
        replace(plain, texts=tuple(texts[entry] for entry in plain.words.tolist()), one_word=one_word)
        for texts, one_word in ((inflected, "stem"), (spelled, "case"))
    )
    model = some_bert()
    documents = np.random.default_rng(0).integers(1, 14, (12, 20)).tolist()
    counts = tp.count_cooccurrence(documents, plain)
    options = {"n_permutations": 30, "n_resamples": 50}
    tables = []
    for topics in (stemmed, cased):
        embeddings = tp.measure_embeddings(model, topics, documents, n_resamples=50)
        reports = [
            tp.measure_attention(model, topics, documents, **options),
            embeddings,
            tp.measure_weights(model, topics, n_resamples=50),
            tp.measure_matched(
                model,
                topics,
                documents,
                cooccurrence=counts,
                min_documents=1,
                pmi_bins=2,
                frequency_bins=2,
                **options,
            ),
        ]
        assert all(report.provenance["topics"]["one_word"] == topics.one_word for report in reports)
        tables.append([report.to_dataframe() for report in reports] + [embeddings.matrices.to_dataframe()])
    by_ids = tp.measure_attention(model, plain, documents, **options).to_dataframe()
    for one, other in zip(*tables, strict=True):
        pd.testing.assert_frame_equal(one, other)
    assert by_ids.n_same_topic.sum() > tables[0][0].n_same_topic.sum()


@pytest.mark.parametrize("kind", ["attention", "embeddings"])
def test_results_of_two_kinds_of_words_are_not_mixed(kind, tmp_path):
    plain = topics_of({"music": [1, 2], "war": [3, 4]})
    stemmed, cased = (
        replace(plain, texts=("song", "songs", "war", "army"), one_word=rule) for rule in ("stem", "case")
    )
    model, documents = some_bert(), [[1, 2, 3, 4, 1, 3], [2, 4, 1, 3, 3, 1]]
    measure = {"attention": tp.measure_attention, "embeddings": tp.measure_embeddings}[kind]
    measure(model, cased, documents, folder=tmp_path)
    with pytest.raises(ValueError, match="which differs in topics"):
        measure(model, stemmed, documents, folder=tmp_path)
