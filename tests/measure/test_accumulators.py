"""What adds up: every accumulator with scores that were written down by hand."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_runs
import torch
from hand_scores import add, batch_scores, rows_of

import topic_probe as tp
from topic_probe.measure.accumulators import Distances, Relations, Sinks
from topic_probe.measure.matching import Classes, PairTable, pair_codes
from topic_probe.measure.nulls import Null
from topic_probe.measure.scores import DISTANCE_BINS, Pieces, Rows, Units

TOPICS = tp.Topics.from_token_ids({"fruit": [5, 6, 7], "tools": [10, 11]}, vocabulary_size=20)
# Two heads, three words: two fruits and a tool, at positions 1, 3 and 7 of eight.
TABLES = torch.tensor(
    [[[1.0, 2, 3], [4, 5, 6], [7, 8, 9]], [[0.5, 1, 1], [2, 0, 0], [1, 1, 4]]], dtype=torch.float64
)


def scores(values=TABLES, entries=(5, 6, 10), positions=(1, 3, 7), *, topics=TOPICS, **given):
    return batch_scores([(77, values, entries, positions)], topics, **given)


def scores_of_nothing(source):
    return batch_scores([(source, torch.zeros(4, 0, 0), (), ())], TOPICS, cells=(0, 1, 2, 3))


def test_relations_keep_the_sums_of_every_source_by_relation():
    by_relation = Relations()
    add(by_relation, scores(cells=(1, 3)))
    add(by_relation, scores(cells=(1, 3)))  # another document of the same source
    keys, sums, counts, squares = by_relation.by_source.rows()
    assert keys.tolist() == [77]
    # The diagonal; 5–6 and 6–5; all that involves 10.
    expected = [[0, 0, 0], [1 + 5 + 9, 2 + 4, 3 + 6 + 7 + 8], [0, 0, 0], [4.5, 3, 3]]
    np.testing.assert_allclose(sums[0], 2 * np.array(expected))
    np.testing.assert_array_equal(counts[0], [[0, 0, 0], [6, 4, 8], [0, 0, 0], [6, 4, 8]])
    # Of other words only, whether they share a topic or not.
    expected = [
        0,
        2**2 + 4**2 + 3**2 + 6**2 + 7**2 + 8**2,
        0,
        (TABLES[1].square() * (1 - torch.eye(3))).sum(),
    ]
    np.testing.assert_allclose(squares[0], 2 * np.array(expected))


def test_a_document_without_words_is_a_source_without_pairs():
    by_relation = Relations()
    for accumulator in (by_relation, Distances(4), Sinks(4), Null(TOPICS, 3, 0, 4)):
        rows = (
            torch.zeros(1, 4, 1, 1),
            torch.ones(1, 1, 1) > 0,
            *torch.ones(2, 1, 1),
            *torch.zeros(2, 1, 4, 1),
        )
        add(accumulator, replace(scores_of_nothing(5), rows=Rows(*rows)))
        for name, values in accumulator.sums.items():
            assert name == "by_source" or not values.any()
    assert by_relation.by_source.rows()[0].tolist() == [5]
    assert by_relation.by_source.rows()[1].shape == (1, 4, 3)


@pytest.mark.parametrize("distance", [0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 511, 512, 1023, 1024, 5000])
def test_a_pair_is_in_the_bin_that_begins_at_or_before_its_distance(distance):
    distances = Distances(1)
    add(distances, scores(torch.ones(1, 2, 2), (5, 10), (3, 3 + distance), cells=(0,)))
    [bin_] = np.flatnonzero(distances.sums["n_binned"][0, :, 2])
    assert distances.sums["n_binned"][0, bin_, 2] == 2  # both directions
    assert bin_ == 0 or DISTANCE_BINS[bin_ - 1] <= distance
    assert bin_ == len(DISTANCE_BINS) or distance < DISTANCE_BINS[bin_]


def test_distances_hold_the_sums_of_both_directions():
    distances = Distances(4)
    add(distances, scores())
    binned, n_binned = distances.sums["binned"], distances.sums["n_binned"]
    # Distances 2 (5–6), 4 (6–10) and 6 (5–10) are in the bins that begin at 2, 4 and 6.
    np.testing.assert_allclose(binned[0, [0, 2, 4, 5]], [[15, 0, 0], [0, 6, 0], [0, 0, 14], [0, 0, 10]])
    np.testing.assert_array_equal(n_binned[1, [0, 2, 4, 5]], [[3, 0, 0], [0, 2, 0], [0, 0, 2], [0, 0, 2]])
    assert binned[2:].sum() == n_binned[2:].sum() == 0


def test_sinks_are_taken_out_of_every_row_and_a_row_of_nothing_else_drops_out():
    """Four keys, one of them special; a head gives it half of the first row, nothing, and all of the third."""
    patterns = torch.tensor([[[0.1, 0.2, 0.2], [0.5, 0.25, 0.25], [0.0, 0.0, 0.0]]], dtype=torch.float64)
    mass = torch.tensor([[0.5, 0.0, 1.0]], dtype=torch.float64)
    visible, n_visible = torch.ones(3, 3, dtype=torch.bool), torch.full((3,), 4.0, dtype=torch.float64)
    rows = rows_of(patterns, visible, n_visible, torch.ones(3, dtype=torch.float64), mass)
    sinks = Sinks(4)
    add(sinks, scores(4 * patterns, cells=(2,), rows=rows))
    assert sinks.sums["sink_mass"][2] == pytest.approx(1.5)
    assert sinks.sums["n_rows"][2] == 3
    # Rows become 0.2 0.4 0.4 and 0.5 0.25 0.25, relative to a third each.
    expected = 3 * np.array([0.2 + 0.25, 0.4 + 0.5, 0.4 + 0.25])
    np.testing.assert_allclose(sinks.sums["without_sinks"][2], expected)
    np.testing.assert_array_equal(sinks.sums["n_without_sinks"][2], [2, 2, 2])


def test_the_null_has_the_sums_of_pairs_that_share_a_permuted_topic():
    null = Null(TOPICS, 60, seed=1, n_cells=4)
    add(null, scores())
    groups = dict(zip(TOPICS.words.tolist(), null.groups.tolist(), strict=True))
    for permutation in range(60):
        of = {word: groups[word][permutation] for word in (5, 6, 10)}
        pairs = {(0, 1): of[5] == of[6], (0, 2): of[5] == of[10], (1, 2): of[6] == of[10]}
        total = sum(TABLES[0, i, j] + TABLES[0, j, i] for (i, j), shared in pairs.items() if shared)
        assert null.sums["null"][0, permutation] == pytest.approx(float(total))
        assert null.sums["n_null"][1, permutation] == 2 * sum(pairs.values())


def topics_with_forms(texts, topic):
    names = tuple(dict.fromkeys(topic))
    membership = torch.tensor([[name == one for name in names] for one in topic])
    words = torch.arange(len(texts))
    return tp.Topics(
        names=names, vocabulary_size=20, words=words, assignments=membership.nonzero(), texts=tuple(texts)
    )


def test_the_null_moves_the_forms_of_a_word_together_and_keeps_the_number_of_words_of_every_topic():
    texts = ["war", "War", " war", "army", "Army", "song", "band", "guitar"]
    topics = topics_with_forms(texts, ["war"] * 5 + ["music"] * 3)
    null = Null(topics, 300, seed=0, n_cells=1)
    groups = null.groups.numpy()
    assert (groups[0] == groups[1]).all()
    assert (groups[0] == groups[2]).all()
    assert (groups[3] == groups[4]).all()
    by_word = groups[[0, 3, 5, 6, 7]]
    assert (np.sort(by_word, axis=0) == np.array([[0], [0], [1], [1], [1]])).all()
    # Every pair of words is as likely to share a topic: 1 + 3 of 10 pairs.
    assert (by_word[0] == by_word[1]).mean() == pytest.approx(0.4, abs=0.1)


def test_where_forms_have_different_topics_each_is_given_those_of_the_form_with_its_number():
    topics = topics_with_forms(
        ["may", "May", "MAY", "june", "June"], ["verb", "month", "month", "month", "name"]
    )
    groups = Null(topics, 50, seed=3, n_cells=1).groups.numpy()
    verb, month, name = topics.group_of_word[[0, 1, 4]].tolist()
    moved = groups[3] == verb  # whether june was given the topics of may
    assert 0 < moved.sum() < 50
    assert (groups[:, moved] == np.array([[month], [name], [month], [verb], [month]])).all()
    assert (groups[:, ~moved] == topics.group_of_word.numpy()[:, None]).all()


def test_pairs_of_forms_of_one_word_are_never_in_the_null():
    topics = topics_with_forms(["war", "War", "song"], ["war", "war", "music"])
    null = Null(topics, 40, seed=0, n_cells=4)
    add(null, scores(entries=(0, 1, 2), topics=topics))
    assert set(null.sums["n_null"][0].tolist()) <= {0.0}  # two words in two topics never share one


def test_classes_and_the_table_of_pairs_hold_the_sums_of_their_pairs():
    """Pairs of fruits are class 0, all others class 1; pairs further apart than three positions have a bin."""
    is_fruit = TOPICS.words < 10
    fruits = is_fruit & is_fruit[:, None]
    codes = pair_codes((~fruits).long(), fruits, ~fruits)
    classes, table = Classes(codes, (4,), 4), PairTable(codes)
    for accumulator in (classes, table):
        add(accumulator, scores())
    by_head = classes.by_head.reshape(4, 2, 2, 3)  # head, class, distance, place
    assert by_head[0, 0, 0].tolist() == [0, 2 + 4, 0]
    assert by_head[0, 1, 1].tolist() == [0, 0, 3 + 6 + 7 + 8]
    assert by_head[0].sum() == 6 + 24
    assert classes.n_by_head.reshape(4, 2, 2, 3)[1, 1, 1, 2] == 4
    _, sums, counts, _ = classes.by_source.rows()
    np.testing.assert_allclose(sums[0].reshape(2, 2, 3)[0, 0, 1], 6 + 3)  # both heads
    np.testing.assert_array_equal(counts[0].reshape(2, 2, 3)[1, 1, 2], 8)
    place = {word: number for number, word in enumerate(TOPICS.words.tolist())}
    assert table.sums["table"][place[5], place[6]] == 2 + 1
    assert table.sums["table"][place[6], place[5]] == 4 + 2
    assert table.sums["n_table"][place[10], place[5]] == table.sums["n_table"][place[5], place[10]] == 2


def test_positions_of_several_pieces_are_averaged_from_a_word_and_added_to_it():
    units = Units(
        torch.tensor([20, 5]),
        torch.tensor([5, 0]),
        torch.tensor([0, 2]),
        torch.tensor([0, 1, 2]),
        torch.tensor([0, 0, 1]),
    )
    pieces = Pieces.of([units], [units], n_rows=3, n_columns=3)
    assert pieces.total[0].tolist() == [[1, 1, 0], [0, 0, 1], [0, 0, 0]]
    assert pieces.average[0].tolist() == [[0.5, 0.5, 0], [0, 0, 1], [0, 0, 0]]
    assert pieces.first[0].tolist() == [0, 2, 0]


# --- what a user writes -----------------------------------------------------------------------------


def example():
    """The names that the lines in CONTRIBUTING.md make, and how many they are."""
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    names = {"model": small_runs.model(), "topics": small_runs.topics(), "documents": DOCUMENTS}
    exec(code, names)
    return names, len(code.strip().splitlines())


DOCUMENTS = small_runs.documents(30)


def attention_to_the_one_before(documents):
    """Sums and counts of every head from Hugging Face's own attention, pair by pair."""
    model, lists = small_runs.model(), small_runs.TOPICS.values()
    model.set_attn_implementation("eager")
    sums, n = np.zeros(4), 0
    for document in documents:
        with torch.no_grad():
            layers = model(input_ids=torch.tensor([document]), output_attentions=True).attentions
        pattern = torch.cat([layer[0] for layer in layers]).numpy()
        for place in range(1, len(document)):
            one, other = document[place - 1], document[place]
            if one != other and any(one in words and other in words for words in lists):
                sums += pattern[:, place, place - 1] * len(document)
                n += 1
    return sums, n


def test_the_accumulator_in_the_guide_has_twenty_lines_and_gives_what_a_double_loop_gives(capsys):
    names, n_lines = example()
    assert n_lines <= 20
    sums, n = attention_to_the_one_before(DOCUMENTS)
    assert n > 20
    np.testing.assert_allclose(names["neighbours"].sums["attention"], sums, rtol=1e-9)
    np.testing.assert_array_equal(names["neighbours"].sums["pairs"], n)
    assert f"{sums[0] / n:.4f}" in capsys.readouterr().out


def test_two_accumulators_of_one_class_keep_their_sums_apart():
    neighbours = example()[0]["Neighbours"]
    both = [neighbours(4), neighbours(4)]
    tp.measure_attention(small_runs.model(), small_runs.topics(), DOCUMENTS, accumulators=both)
    np.testing.assert_array_equal(both[0].sums["pairs"], both[1].sums["pairs"])
    assert both[0].sums["pairs"][0] == attention_to_the_one_before(DOCUMENTS)[1]
