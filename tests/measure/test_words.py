"""Which words of a table are measured, what is taken out of their rows, and what is one word."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from word_pairs import Pairs, scores_of, topics_of

from topic_probe.measure.pair_sums import group_sums, pair_sums
from topic_probe.measure.words import labelled_words
from topic_probe.topics import Topics

VOCABULARY = 40
OVERLAPPING = {"a": [1, 2, 3, 9], "b": [3, 4, 5, 11], "c": [7], "d": [8, 3, 7, 20, 21], "e": [13]}


def table():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(VOCABULARY, 7, generator=generator, dtype=torch.float64) + 0.5


def contrast_of(words):
    return pair_sums(group_sums(words), words)[0].contrast()


def assert_rows_are(words, rows):
    """The words' sums are those of other rows, as these are."""
    sums, counts = Pairs(words.ids, OVERLAPPING).sums(scores_of(rows[words.ids]))
    found = pair_sums(group_sums(words), words)[0]
    np.testing.assert_allclose(found.sums, sums, atol=1e-9)
    np.testing.assert_array_equal(found.counts, counts)


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
    torch.testing.assert_close(words.rows().norm(dim=1), torch.ones(2, dtype=torch.float64))


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


def test_planted_topics_are_found_and_lost_when_topics_are_shuffled():
    generator = torch.Generator().manual_seed(0)
    topics = Topics.blocks(n_topics=20, words_per_topic=20)
    centres = torch.randn(20, 64, generator=generator, dtype=torch.float64)
    rows = torch.randn(401, 64, generator=generator, dtype=torch.float64) + 1
    rows[1:] += centres.repeat_interleave(20, 0)
    # 64 (1 + 1) against 64 · 1 in expectation.
    assert contrast_of(labelled_words(rows, topics)).ratio[1] == pytest.approx(2, abs=0.25)
    assert contrast_of(labelled_words(rows, topics.shuffled(0))).ratio[1] == pytest.approx(1, abs=0.05)


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
    np.testing.assert_allclose(pair_sums(group_sums(words), words)[0].sums, sums, atol=1e-9)
