"""What adds up: scores that were written down by hand, the null of words with several forms, and what users write."""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import small_runs
import torch
from hand_scores import add, batch_scores

import topic_probe as tp
from topic_probe.measure.accumulators import Distances, Relations, Sinks
from topic_probe.measure.nulls import Null, with_matched_p_value
from topic_probe.measure.options import Permutations
from topic_probe.measure.scores import DISTANCE_BINS, Rows
from topic_probe.sums import columns

TOPICS = tp.Topics.from_token_ids({"fruit": [5, 6, 7], "tools": [10, 11]}, vocabulary_size=20)
# Two heads, three words: two fruits and a tool, at positions 1, 3 and 7 of eight.
TABLES = torch.tensor(
    [[[1.0, 2, 3], [4, 5, 6], [7, 8, 9]], [[0.5, 1, 1], [2, 0, 0], [1, 1, 4]]], dtype=torch.float64
)


def scores(values=TABLES, entries=(5, 6, 10), positions=(1, 3, 7), **given):
    return batch_scores([(77, values, entries, positions)], given.pop("topics", TOPICS), **given)


def test_sums_of_three_words_are_those_worked_by_hand():
    relations, distances = Relations(), Distances(4)
    for _ in range(2):  # the second is another document of the same source
        for accumulator in (relations, distances):
            add(accumulator, scores(cells=(1, 3)))
    keys, rows = relations.by_source.rows()
    sums, counts, squares = columns(rows)
    assert keys.tolist() == [77]
    # The diagonal; 5–6 and 6–5; all that involves 10.
    np.testing.assert_allclose(sums[0, [1, 3]], [[30, 12, 48], [9, 6, 6]])
    np.testing.assert_array_equal(counts[0], [[0, 0, 0], [6, 4, 8]] * 2)
    # Of other words only, whether they share a topic or not.
    squared = [2**2 + 4**2 + 3**2 + 6**2 + 7**2 + 8**2, 1 + 1 + 2**2 + 1 + 1]
    np.testing.assert_allclose(squares[0], [0, 2 * squared[0], 0, 2 * squared[1]])
    # Distances 2 (5–6), 4 (6–10) and 6 (5–10) are in the bins that begin at 2, 4 and 6.
    binned, n_binned = distances.sums["binned"], distances.sums["n_binned"]
    np.testing.assert_allclose(binned[1, [0, 2, 4, 5]], [[30, 0, 0], [0, 12, 0], [0, 0, 28], [0, 0, 20]])
    np.testing.assert_array_equal(n_binned[3, [0, 2, 4, 5]], [[6, 0, 0], [0, 4, 0], [0, 0, 4], [0, 0, 4]])
    assert binned[[0, 2]].sum() == n_binned[[0, 2]].sum() == 0


@pytest.mark.parametrize("distance", [0, 1, 4, 5, 511, 512, 1024, 5000])
def test_a_pair_is_in_the_bin_that_begins_at_or_before_its_distance(distance):
    distances = Distances(1)
    add(distances, scores(torch.ones(1, 2, 2), (5, 10), (3, 3 + distance), cells=(0,)))
    [bin_] = np.flatnonzero(distances.sums["n_binned"][0, :, 2])
    assert distances.sums["n_binned"][0, bin_, 2] == 2  # both directions
    assert bin_ == 0 or DISTANCE_BINS[bin_ - 1] <= distance
    assert bin_ == len(DISTANCE_BINS) or distance < DISTANCE_BINS[bin_]


def test_a_document_without_words_is_a_source_without_pairs():
    nothing, relations = (
        batch_scores([(5, torch.zeros(4, 0, 0), (), ())], TOPICS, cells=range(4)),
        Relations(),
    )
    rows = torch.zeros(1, 4, 1, 1), torch.ones(1, 1, 1) > 0, *torch.ones(2, 1, 1), *torch.zeros(2, 1, 4, 1)
    for accumulator in (relations, Distances(4), Sinks(4), Null(TOPICS, 3, 0, 4)):
        add(accumulator, replace(nothing, rows=Rows(*rows)))
        assert not any(part.any() for part in accumulator.sums.values() if isinstance(part, np.ndarray))
    assert relations.by_source.rows()[0].tolist() == [5]
    assert relations.by_source.rows()[1].shape == (1, 4, 7)


def topics_with_forms(texts, topic):
    names = tuple(dict.fromkeys(topic))
    assignments = torch.tensor([[name == one for name in names] for one in topic]).nonzero()
    words = torch.arange(len(texts))
    return tp.Topics(
        names=names, vocabulary_size=20, words=words, assignments=assignments, texts=tuple(texts)
    )


def test_the_null_moves_the_forms_of_a_word_together_and_keeps_the_number_of_words_of_every_topic():
    texts = ["war", "War", " war", "army", "Army", "song", "band", "guitar"]
    topics = topics_with_forms(texts, ["war"] * 5 + ["music"] * 3)
    groups = Null(topics, 300, seed=0, n_cells=1).groups.numpy()
    assert (groups[[1, 2, 4]] == groups[[0, 0, 3]]).all()
    by_word = groups[[0, 3, 5, 6, 7]]
    assert (np.sort(by_word, axis=0) == np.array([[0], [0], [1], [1], [1]])).all()
    # Every pair of words is as likely to share a topic: 1 + 3 of 10 pairs.
    assert (by_word[0] == by_word[1]).mean() == pytest.approx(0.4, abs=0.1)
    # Two words in two topics never share one, and forms of a word are no pair.
    topics = topics_with_forms(["war", "War", "song"], ["war", "war", "music"])
    null = Null(topics, 40, seed=0, n_cells=4)
    add(null, scores(entries=(0, 1, 2), topics=topics))
    assert not null.sums["n_null"].any()


def test_matched_permutations_weigh_bins_by_their_own_pairs_and_compare_with_all_others():
    """By hand: ten pairs with the sum 10, and four with 12. Of the first permutation 3 and 1 share a topic."""
    sums = {"binned_null": np.array([[4.0, 1], [3, 0]]), "n_binned_null": np.array([[3.0, 3], [1, 0]])}
    every = np.array([[10.0], [12]]), np.array([[10.0], [4]])
    first = (4 + 3) / (3 * 6 / 7 + 1 * 9 / 3)  # means 4/3 and 3, of others 6/7 and 3
    second = (1 / 3) / (9 / 7)
    for ratio, as_high in ((second - 0.01, 2), (first - 0.01, 1), (first + 0.01, 0)):
        contrast = tp.Contrast(*np.array([1.0, ratio, 1, 9, 9, 9]))
        found = with_matched_p_value(contrast, every, sums, Permutations(2, "greater"))
        assert found.p_value == pytest.approx((1 + as_high) / 3)


def test_the_accumulator_in_the_guide_has_twenty_lines_and_gives_what_a_double_loop_gives(capsys):
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(code.strip().splitlines()) <= 20
    names = {
        "model": small_runs.model(),
        "topics": small_runs.topics(),
        "documents": small_runs.documents(30),
    }
    exec(code, names)
    model, lists = small_runs.model(), small_runs.TOPICS.values()
    model.set_attn_implementation("eager")
    sums, n = np.zeros(4), 0
    for ids in small_runs.documents(30):
        with torch.no_grad():
            layers = model(input_ids=torch.tensor([ids]), output_attentions=True).attentions
        pattern = torch.cat([layer[0] for layer in layers]).numpy()
        for place, (one, other) in enumerate(pairwise(ids), 1):
            if one != other and any(one in words and other in words for words in lists):
                sums += pattern[:, place, place - 1] * len(ids)
                n += 1
    assert n > 20
    np.testing.assert_allclose(names["neighbours"].sums["attention"], sums, rtol=1e-9)
    np.testing.assert_array_equal(names["neighbours"].sums["pairs"], n)
    assert f"{sums[0] / n:.4f}" in capsys.readouterr().out
