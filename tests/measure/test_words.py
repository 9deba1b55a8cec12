"""Which words of a table are measured, what is taken out of their rows, and sums over all pairs of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from word_pairs import Pairs, scores_of, topics_of

from topic_probe.contrast import PairSums
from topic_probe.estimate import over_words, split_halves
from topic_probe.measure.words import (
    cosines_of_words,
    labelled_words,
    topic_squares,
    topic_sums,
    word_ends,
    word_squares,
    word_sums,
)
from topic_probe.topics import Topics

VOCABULARY = 40
OVERLAPPING = {"a": [1, 2, 3, 9], "b": [3, 4, 5, 11], "c": [7], "d": [8, 3, 7, 20, 21], "e": [13]}


def table(n=VOCABULARY, width=7):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, width, generator=generator, dtype=torch.float64) + 0.5


def sums_of(words):
    """Sums [score, relation] and counts."""
    return np.stack(
        [word_sums(words, rows, rows).sum(0) for rows in words.scored.values()]
    ), words.counts.sum(0)


def assert_rows_are(words, rows):
    """The words' sums are those of other rows, as these are."""
    sums, counts = Pairs(words.ids, OVERLAPPING).sums(scores_of(rows[words.ids]))
    np.testing.assert_allclose(sums_of(words)[0], sums, atol=1e-9)
    np.testing.assert_array_equal(sums_of(words)[1], counts)


# ---------------------------------------------------------------- rows


def test_centring_subtracts_the_mean_of_all_rows_in_use():
    rows = table()
    rows[30], rows[31, 2] = 0, torch.nan
    used = [i for i in range(VOCABULARY) if i not in (30, 31, 3, 35)]
    words = labelled_words(rows, topics_of(OVERLAPPING, VOCABULARY), center=True, exclude=(3, 35))
    assert_rows_are(words, rows - rows[used].mean(0))


def test_removed_components_are_the_leading_singular_vectors_of_the_centred_rows():
    centred = table() - table().mean(0)
    _, _, directions = np.linalg.svd(centred.numpy(), full_matrices=False)
    words = labelled_words(table(), topics_of(OVERLAPPING, VOCABULARY), remove_components=3)
    assert_rows_are(words, centred - centred @ torch.from_numpy(directions[:3].T @ directions[:3]))


def test_rows_without_a_direction_and_split_words_are_left_out_and_counted():
    plain, rows = topics_of(OVERLAPPING, VOCABULARY), table()
    rows[3], rows[4, 1], rows[8, 0] = 0, torch.nan, torch.inf
    topics = Topics(
        names=plain.names, vocabulary_size=VOCABULARY, words=torch.cat([plain.words, torch.tensor([VOCABULARY])]),
        assignments=torch.cat([plain.membership, plain.membership[:1]]).nonzero(), compounds=((1, 2),),
    )  # fmt: skip
    words = labelled_words(torch.cat([rows, torch.ones(3, 7).double()]), topics, exclude=(20, 39))
    assert words.left_out == {
        "split words, which have no row": 1, "words in exclude": 1, "words whose row is zero or not finite": 3,
    }  # fmt: skip
    assert set(words.ids.tolist()) == {1, 2, 5, 7, 9, 11, 13, 21}
    assert_rows_are(words, rows)


def test_words_that_were_nothing_but_the_common_part_are_left_out():
    rows = 10 * table()
    rows[:, 1:] = 0
    # Only these two leave the first axis, in ways that do not correlate with it; the mean stays on it too.
    rows[5], rows[9] = torch.tensor([2.0, 1, 0, 0, 0, 0, 0]), torch.tensor([2.0, -1, 0, 0, 0, 0, 0])
    # Turned, so that what is left of the others is rounding instead of 0.
    turned, topics = torch.linalg.qr(table()[:7]).Q, topics_of(OVERLAPPING, VOCABULARY)
    words = labelled_words(rows @ turned, topics, remove_components=1)
    assert words.left_out == {"words with nothing left after the common part": 10}
    np.testing.assert_allclose(np.linalg.norm(words.rows, axis=1), 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"remove_components": 7}, "from 0 to 6, below the width of the embeddings, got 7"),
        ({"exclude": range(22)}, "no word is left to measure of 12 that have a topic"),
    ],
)
def test_what_cannot_be_measured_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        labelled_words(table(), topics_of(OVERLAPPING, VOCABULARY), **options)


def ratio_of(words):
    return PairSums(*sums_of(words)).contrast().ratio[1]


def test_planted_topics_are_found_and_lost_when_topics_are_shuffled():
    generator = torch.Generator().manual_seed(0)
    topics = Topics.blocks(n_topics=20, words_per_topic=20)
    centres = torch.randn(20, 64, generator=generator, dtype=torch.float64)
    rows = torch.randn(401, 64, generator=generator, dtype=torch.float64) + 1
    rows[1:] += centres.repeat_interleave(20, 0)
    # 64 (1 + 1) against 64 · 1 in expectation.
    assert ratio_of(labelled_words(rows, topics)) == pytest.approx(2, abs=0.25)
    assert ratio_of(labelled_words(rows, topics.shuffled(0))) == pytest.approx(1, abs=0.05)


# ---------------------------------------------------------------- what is one word


def test_inflections_are_forms_of_a_word_where_topics_say_so():
    texts = {1: "song", 2: "songs", 4: "army", 20: "Armies"}
    by_case = topics_of(OVERLAPPING, VOCABULARY, texts)
    topics = replace(by_case, one_word="stem")
    assert topics.fingerprint != by_case.fingerprint  # so results of the two are not mixed
    words = labelled_words(table(), topics)
    sums, _ = Pairs(words.ids, OVERLAPPING, texts | {2: "song", 20: "army"}).sums(
        scores_of(table()[words.ids])
    )
    np.testing.assert_allclose(sums_of(words)[0], sums, atol=1e-9)


# ---------------------------------------------------------------- sums over all pairs of words

# Words in two and three topics, pairs that share two and three of them, a topic of one word.
CROWDED = {
    "a": [1, 2, 3, 9, 14], "b": [3, 4, 5, 11, 14, 9], "c": [7, 14, 3], "d": [8, 3, 7, 20, 21], "e": [13],
}  # fmt: skip
DISJOINT = {"a": [1, 2, 3, 9], "b": [4, 5, 11, 30, 31, 32, 33, 34], "c": [7], "d": [8, 20, 21]}
# Forms of a word in one topic, in several that share none, in more and fewer topics.
TEXTS = {1: "War", 2: " war", 3: "WAR", 8: "(war", 4: "sea", 20: " Sea", 7: "x", 13: "X", 9: "army"}


def blocks(n_topics, size):
    return {str(topic): range(size * topic, size * topic + size) for topic in range(n_topics)}


def some_of(n_topics, size, n):
    generator = np.random.default_rng(4)
    return {str(topic): generator.choice(n, size, replace=False).tolist() for topic in range(n_topics)}


# Topics, how many numbers a row has, and what is left out. Rows are narrow where squares come from moments.
CASES = {
    "overlapping, forms": (CROWDED, TEXTS, 7, ()),
    "overlapping, some left out": (CROWDED, None, 3, (2, 3, 20)),
    "disjoint, wide": (DISJOINT, TEXTS, 30, (2, 3, 20)),
    "one topic": ({"a": [1, 2, 3, 4]}, None, 3, ()),
    "many topics": (blocks(40, 10), {3: "w14", 25: "w26"}, 8, range(0, 400, 7)),
    "few share several": (some_of(25, 12, 90), TEXTS, 6, (5,)),
    "most share a topic": (some_of(12, 40, 90), TEXTS, 6, range(0, 90, 5)),
    "many groups": (some_of(30, 60, 800), {3: "w4"}, 8, ()),
}


@pytest.mark.parametrize("case", CASES)
def test_all_sums_are_those_of_the_whole_matrix_of_pairs(case):
    lists, texts, width, exclude = CASES[case]
    n = 1 + max(map(max, lists.values()))
    rows = table(n, width)
    words = labelled_words(rows, topics_of(lists, n, texts), exclude=exclude)
    pairs, scores = Pairs(words.ids, lists, texts), scores_of(rows[words.ids])
    ends = pairs.ends(scores, seed=5)
    np.testing.assert_array_equal(words.strata, pairs.strata)
    half = split_halves(words.strata, seed=5)
    for number, own in enumerate(words.scored.values()):
        sums, squares = word_sums(words, own, own), word_squares(words, own)
        np.testing.assert_allclose(sums.sum(0), pairs.sums(scores)[0][number], rtol=1e-9, atol=1e-8)
        np.testing.assert_allclose(
            words.by_form(squares), pairs.squares(scores)[:, number], rtol=1e-9, atol=1e-8
        )
        by_topic, squares_by_topic = topic_sums(words, own, sums), topic_squares(words, own, squares)
        ones = np.ones((len(words), 1))
        counts_by_topic = topic_sums(words, ones, words.counts)
        for topic in range(len(lists)):
            expected, counts = pairs.sums(scores, topic)
            np.testing.assert_allclose(by_topic[topic], expected[number], rtol=1e-9, atol=1e-8)
            np.testing.assert_allclose(counts_by_topic[topic], counts)
            expected = pairs.sums(scores**2, topic)[0][number, 1:].sum()
            np.testing.assert_allclose(squares_by_topic[topic], expected, rtol=1e-9, atol=1e-7)
        # What intervals need: every word with all its forms.
        found = word_ends(words, own, own, half)
        for part, expected in zip(found, ends, strict=True):
            expected = expected[..., number : number + 1] if expected.ndim == 3 else expected
            np.testing.assert_allclose(part, expected, rtol=1e-9, atol=1e-8)
    np.testing.assert_array_equal(words.counts.sum(0), pairs.sums(scores)[1])
    together = cosines_of_words(words, half)
    np.testing.assert_allclose(together.ends.same, ends.same[..., :1], rtol=1e-9, atol=1e-8)
    np.testing.assert_allclose(together.squares, 2 * pairs.squares(scores)[:, :1], rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_large_tables_are_added_up_as_exactly_as_small_ones(dtype):
    lists = blocks(300, 220) | {"more": range(100, 300), "again": range(50, 250)}
    rows = (table(66_000, 64) * 0.1).to(dtype)
    found = []
    for given in (rows, rows.double()):
        words = labelled_words(given, topics_of(lists, len(rows)))
        parts = [words.counts.sum(0)]
        for own in words.scored.values():
            sums, squares = word_sums(words, own, own), word_squares(words, own)
            parts += [
                sums.sum(0),
                squares.sum(),
                topic_sums(words, own, sums),
                topic_squares(words, own, squares),
            ]
        found.append(parts)
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6)


def test_intervals_of_effect_sizes_know_no_scale():
    def interval(rows, topics):
        words = labelled_words(rows, topics)
        own = words.scored["dot"]
        ends = word_ends(words, own, own, split_halves(words.strata, seed=0))
        squares = 2 * words.by_form(word_squares(words, own))[:, None]
        return over_words(ends, squares, words.strata, statistic="effect_size").interval()

    rows, topics = table(40, 8), topics_of(blocks(4, 10), 40)
    np.testing.assert_allclose(interval(7 * rows, topics), interval(rows, topics), rtol=1e-9)
    assert np.isnan(interval(rows[:6], topics_of(blocks(2, 3), 6))).all()  # six words are too few
