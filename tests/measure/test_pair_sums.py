"""Sums over all pairs of words, of scores and of their squares, against whole matrices of pairs."""

import numpy as np
import pytest
import torch
from word_pairs import Pairs, scores_of, topics_of

from topic_probe.estimate import word_interval, word_intervals
from topic_probe.measure.pair_sums import group_sums, pair_squares, pair_sums, word_ends
from topic_probe.measure.words import labelled_words

# Words in two and three topics, pairs that share two and three of them, a topic of one word.
OVERLAPPING = {
    "a": [1, 2, 3, 9, 14], "b": [3, 4, 5, 11, 14, 9], "c": [7, 14, 3], "d": [8, 3, 7, 20, 21], "e": [13],
}  # fmt: skip
DISJOINT = {"a": [1, 2, 3, 9], "b": [4, 5, 11, 30, 31, 32, 33, 34], "c": [7], "d": [8, 20, 21]}
# Forms of a word in one topic, in several that share none, in more and fewer topics.
TEXTS = {1: "War", 2: " war", 3: "WAR", 8: "(war", 4: "sea", 20: " Sea", 7: "x", 13: "X", 9: "army"}


def table(n, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, width, generator=generator, dtype=torch.float64) + 0.5


def blocks(n_topics, size):
    return {str(topic): range(size * topic, size * topic + size) for topic in range(n_topics)}


def some_of(n_topics, size, n):
    generator = np.random.default_rng(4)
    return {str(topic): generator.choice(n, size, replace=False).tolist() for topic in range(n_topics)}


# Topics, how many numbers a row has, and what is left out. Rows are narrow where more words than twice their width
# make moments cheaper than products; topics are many, large or crowded where sums go other ways.
CASES = {
    "overlapping, forms": (OVERLAPPING, TEXTS, 7, ()),
    "overlapping, some left out": (OVERLAPPING, None, 3, (2, 3, 20)),
    "disjoint, wide": (DISJOINT, TEXTS, 30, (2, 3, 20)),
    "one topic": ({"a": [1, 2, 3, 4]}, None, 3, ()),
    "many topics": (blocks(40, 10), {3: "w14", 25: "w26"}, 8, range(0, 400, 7)),
    "few large topics": (blocks(4, 150), {3: "w4", 5: "w160"}, 5, ()),
    "few share several": (some_of(25, 12, 90), TEXTS, 6, (5,)),
    "most share a topic": (some_of(12, 40, 90), TEXTS, 6, range(0, 90, 5)),
    "large, overlapping": (some_of(12, 60, 800), {3: "w4"}, 8, ()),
    "larger than a block": (some_of(3, 300, 1500), None, 8, ()),
}


@pytest.mark.parametrize("case", CASES)
def test_all_sums_are_those_of_the_whole_matrix_of_pairs(case):
    lists, texts, width, exclude = CASES[case]
    n = 1 + max(map(max, lists.values()))
    rows = table(n, width)
    words = labelled_words(rows, topics_of(lists, n, texts), exclude=exclude)
    pairs, scores = Pairs(words.ids, lists, texts), scores_of(rows[words.ids])
    of_groups = group_sums(words, seed=5)
    overall, by_topic = pair_sums(of_groups, words)
    of_words, alone = (pair_squares(words, of_groups, by_form=by_form) for by_form in (True, False))
    sums, counts = pairs.sums(scores)
    np.testing.assert_allclose(overall.sums, sums, rtol=1e-9, atol=1e-8)
    np.testing.assert_array_equal(overall.counts, counts)
    np.testing.assert_allclose(of_words.by_form, pairs.squares(scores), rtol=1e-9, atol=1e-8)
    for number in range(len(lists)):
        sums, counts = pairs.sums(scores, number)
        np.testing.assert_allclose(by_topic.sums[:, number], sums, rtol=1e-9, atol=1e-8)
        np.testing.assert_array_equal(by_topic.counts[number], counts)
    squares = [pairs.sums(scores**2, number)[0][:, 1:].sum(1) for number in range(len(lists))]
    for found in (of_words, alone):
        np.testing.assert_allclose(found.total, pairs.squares(scores).sum(0), rtol=1e-9)
        np.testing.assert_allclose(found.topics.T, squares, rtol=1e-9, atol=1e-7)
    # What is resampled: every word with all its forms.
    for found, expected in zip(word_ends(words, of_groups), pairs.ends(scores, seed=5), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-8)
    np.testing.assert_array_equal(words.strata, pairs.strata)


# A table of more than 2²² numbers is added up in its own precision, in blocks.
@pytest.mark.parametrize(
    ("dtype", "lists"),
    [
        (torch.bfloat16, blocks(5, 100)),
        (torch.float32, blocks(300, 220) | {"more": range(100, 300), "again": range(50, 250)}),
    ],
    ids=["bfloat16, few words", "float32, overlapping"],
)
def test_large_tables_are_added_up_as_exactly_as_small_ones(dtype, lists):
    rows = (table(66_000, 64) * 0.1).to(dtype)
    topics = topics_of(lists, len(rows))
    found = []
    for given in (rows, rows.double()):
        words = labelled_words(given, topics)
        of_groups = group_sums(words)
        overall, by_topic = pair_sums(of_groups, words)
        squares = pair_squares(words, of_groups, by_form=False)
        found.append([overall.sums, overall.counts, by_topic.sums[:, :, 1], squares.total, squares.topics])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-7)


def intervals_of(rows, topics, **options):
    """The interval of the ratio, alone and beside that of the effect size."""
    words = labelled_words(rows, topics)
    of_groups = group_sums(words)
    of_words, ends = 2 * pair_squares(words, of_groups).by_form.numpy(), word_ends(words, of_groups)
    alone = word_interval(ends, words.strata, **options)
    return alone, *word_intervals(ends, of_words, words.strata, **options)


def test_intervals_of_effect_sizes_know_no_scale_and_leave_that_of_the_statistic_alone():
    rows, topics = table(40, 8), topics_of(blocks(4, 10), 40)
    alone, of_ratio, of_effect = intervals_of(rows, topics)
    np.testing.assert_allclose(of_ratio, alone, rtol=1e-12)
    np.testing.assert_allclose(intervals_of(7 * rows, topics)[2], of_effect, rtol=1e-9)
    # Six words are too few.
    assert np.isnan(intervals_of(rows[:6], topics_of(blocks(2, 3), 6))[2]).all()


@pytest.mark.slow
def test_intervals_of_effect_sizes_cover_the_truth():
    """Eight topics of twelve words around fixed directions; the truth is that of all words there could be."""
    width, n, size, runs, covered = 16, 8, 12, 250, 0
    generator = np.random.default_rng(3)
    centres = generator.normal(0, 0.5, (n, width)) + 0.5
    # Of two words around a and b, the dot product is expected to be a·b, its square (a·b)² + |a|² + |b|² + width; there
    # are 12 · 11 pairs of a topic, 12² of two topics.
    products, pairs = centres @ centres.T, size**2 - size * np.eye(n)
    squares = products**2 + products.diagonal() + products.diagonal()[:, None] + width
    variance = np.average(squares, weights=pairs) - np.average(products, weights=pairs) ** 2
    truth = (products.diagonal().mean() - products[~np.eye(n, dtype=bool)].mean()) / np.sqrt(variance)
    topics = topics_of(blocks(n, size), n * size)
    for run in range(runs):
        rows = np.repeat(centres, size, axis=0) + generator.normal(0, 1, (n * size, width))
        low, high = intervals_of(torch.from_numpy(rows), topics, n_resamples=400, seed=run)[2][1]
        covered += low <= truth <= high
    # A share of 0.95 in 250 runs has a standard error of 0.014; these are 2.5 of them on either side.
    assert 0.915 <= covered / runs <= 0.985
