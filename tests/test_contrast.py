"""Contrasts against hand-worked numbers, double loops and simulation."""

import itertools

import numpy as np
import pytest
import torch

from topic_probe.contrast import (
    ALL_EQUAL,
    DIFFERENT_TOPIC,
    NO_DIFFERENT_TOPIC,
    NO_RELATION,
    NO_SAME_TOPIC,
    NOT_POSITIVE,
    SAME_TOPIC,
    SAME_WORD,
    Contrast,
    PairSums,
    SourceSums,
    interval_of_sources,
    word_relations,
)
from topic_probe.topics import Topics

# Word 3 is in two topics; 9 is the only word of its topic; 0, 4 and everything else have none.
TOPICS = Topics.from_token_ids({"animals": [1, 2, 3], "music": [3, 5], "sums": [9]}, vocabulary_size=12)


def contrast(sums, counts, **options):
    return PairSums(np.array(sums, float), np.array(counts, float)).contrast(**options)


# ---------------------------------------------------------------- relations


def test_relations_are_those_worked_out_by_hand():
    entries = torch.tensor([1, 2, 3, 5, 9, 4])
    by_hand = torch.tensor(
        [
            # 1  2  3  5  9  4
            [1, 2, 2, 3, 3, 0],  # 1
            [2, 1, 2, 3, 3, 0],  # 2
            [2, 2, 1, 2, 3, 0],  # 3 shares a topic with everything but 9
            [3, 3, 2, 1, 3, 0],  # 5
            [3, 3, 3, 3, 1, 0],  # 9
            [0, 0, 0, 0, 0, 0],  # 4 has no topic, so it is not even the same word as itself
        ],
        dtype=torch.int8,
    )
    assert word_relations(TOPICS.places(entries), TOPICS.places(entries), TOPICS).equal(by_hand)


def test_relations_of_a_batch_follow_the_definition_pair_by_pair():
    generator = torch.Generator().manual_seed(0)
    queries, keys = (torch.randint(-2, 14, (3, n), generator=generator) for n in (7, 11))
    topic_of = {1: {0}, 2: {0}, 3: {0, 1}, 5: {1}, 9: {2}}
    codes = word_relations(TOPICS.places(queries), TOPICS.places(keys), TOPICS)
    assert codes.shape == (3, 7, 11)
    for batch, query, key in itertools.product(range(3), range(7), range(11)):
        i, j = int(queries[batch, query]), int(keys[batch, key])
        if i not in topic_of or j not in topic_of:
            expected = NO_RELATION
        elif i == j:
            expected = SAME_WORD
        else:
            expected = SAME_TOPIC if topic_of[i] & topic_of[j] else DIFFERENT_TOPIC
        assert codes[batch, query, key] == expected


# ---------------------------------------------------------------- sums and what follows from them


def test_ratio_topic_ratio_and_difference_are_those_worked_out_by_hand():
    # Means 10/2 = 5, 12/4 = 3 and 20/10 = 2; same word and same topic pooled: 22/6.
    found = contrast([10, 12, 20], [2, 4, 10])
    assert (found.same_word, found.same_topic, found.different_topic) == (5, 3, 2)
    assert found.ratio == 1.5
    assert found.topic_ratio == pytest.approx(11 / 6)
    assert found.difference == 1
    assert (found.n_same_word, found.n_same_topic, found.n_different_topic) == (2, 4, 10)
    assert found.reason is None
    assert found.shape == ()


def test_parts_of_a_corpus_add_up_to_the_whole():
    generator = np.random.default_rng(0)
    scores, codes = generator.random((40, 3)), generator.integers(0, 4, 40)

    def sums(part):
        cells = [scores[part][codes[part] == code].sum(0) for code in (1, 2, 3)]
        return PairSums(
            np.stack(cells, axis=-1), np.array([(codes[part] == c).sum() for c in (1, 2, 3)], float)
        )

    merged = (sums(slice(0, 11)) + sums(slice(11, 40))).contrast()
    for head in range(3):
        for name, code in (("same_word", 1), ("same_topic", 2), ("different_topic", 3)):
            loop = [scores[i, head] for i in range(40) if codes[i] == code]
            assert getattr(merged, name)[head] == pytest.approx(sum(loop) / len(loop), abs=1e-12)


def test_an_empty_relation_is_nan_with_its_count_and_a_reason():
    no_same = contrast([4, 0, 6], [2, 0, 3])
    assert np.isnan([no_same.same_topic, no_same.ratio, no_same.difference]).all()
    assert no_same.n_same_topic == 0
    assert no_same.topic_ratio == 1  # same word 2 ÷ different topic 2: the empty relation does not hide it
    assert no_same.reason == NO_SAME_TOPIC

    no_same_word = contrast([0, 6, 3], [0, 2, 3])
    assert np.isnan(no_same_word.same_word)
    assert (no_same_word.topic_ratio, no_same_word.reason) == (3, None)

    one_topic = contrast([4, 6, 0], [2, 3, 0])
    assert np.isnan([one_topic.ratio, one_topic.topic_ratio, one_topic.difference]).all()
    assert one_topic.reason == NO_DIFFERENT_TOPIC

    nothing = contrast([0, 0, 0], [0, 0, 0])
    assert np.isnan([nothing.same_word, nothing.ratio, nothing.topic_ratio]).all()
    assert nothing.reason == f"{NO_SAME_TOPIC}; {NO_DIFFERENT_TOPIC}"


def test_a_ratio_to_a_negative_mean_is_returned_with_a_warning_in_its_reason():
    found = contrast([1, 3, -6], [1, 1, 2])
    assert found.ratio == -1
    assert found.difference == 6
    assert found.reason == NOT_POSITIVE
    zero = contrast([1, 3, 0], [1, 1, 2])
    assert np.isnan(zero.ratio)
    assert zero.reason == NOT_POSITIVE


def test_a_cell_picked_from_an_array_keeps_its_numbers_and_its_own_reason():
    whole = contrast(
        [[1, 2, 4], [1, 0, 4]], [[1, 1, 1], [1, 0, 1]], interval=np.array([[0.4, 0.6], [np.nan] * 2])
    )
    assert whole.shape == (2,)
    assert len(whole) == 2
    assert whole.reason == NO_SAME_TOPIC
    assert whole[0].reason is None
    assert whole[0].ratio == 0.5
    assert whole[0].interval.tolist() == [0.4, 0.6]
    assert whole[1].reason == NO_SAME_TOPIC
    assert whole[np.array([True, False])].shape == (1,)


def test_a_reason_that_was_handed_in_stands_behind_those_of_the_numbers():
    found = contrast([1, 0, 4], [1, 0, 1], note="no interval: 3 documents")
    assert found.reason == f"{NO_SAME_TOPIC}; no interval: 3 documents"
    again = Contrast(**{name: getattr(found, name) for name in found.__dataclass_fields__})
    assert again.reason == found.reason


def test_contrasts_with_nan_are_equal_to_themselves_and_to_nothing_else():
    assert contrast([4, 0, 6], [2, 0, 3]) == contrast([4, 0, 6], [2, 0, 3])
    assert contrast([4, 0, 6], [2, 0, 3]) != contrast([4, 0, 7], [2, 0, 3])
    assert contrast([4, 0, 6], [2, 0, 3]) != contrast([4, 0, 6], [2, 0, 3], p_value=np.array(0.5))
    assert contrast([4, 0, 6], [2, 0, 3]) != "a contrast"


def test_columns_name_the_number_that_the_interval_is_about():
    table = contrast(
        [[10, 12, 20]],
        [[2, 4, 10]],
        interval=np.array([[0.5, 1.5]]),
        p_value=np.array([0.1]),
        q_value=np.array([0.2]),
        statistic="difference",
    ).to_dataframe({"layer": [7]})
    assert list(table) == [
        *("layer", "same_word", "same_topic", "different_topic", "ratio", "topic_ratio", "difference"),
        *("n_same_word", "n_same_topic", "n_different_topic", "difference_low", "difference_high"),
        *("p_value", "q_value"),
    ]
    assert table.loc[0, "layer"] == 7
    assert table.loc[0, "ratio"] == 1.5
    assert table.loc[0, "difference_low"] == 0.5
    assert table["n_same_topic"].dtype == np.int64


def test_weighted_counts_stay_fractions_in_tables():
    assert contrast([1, 1, 1], [0.5, 2, 1]).row()["n_same_word"] == 0.5


def test_the_representation_is_a_table_with_the_reason_below():
    text = repr(contrast([[1, 2, 4], [1, 0, 4]], [[1, 1, 1], [1, 0, 1]]))
    assert text.startswith("Contrast(2,)")
    assert "same_topic" in text
    assert "NaN" in text
    assert text.endswith(f"({NO_SAME_TOPIC})")


def test_an_overall_contrast_cannot_be_indexed_and_an_array_is_no_row():
    with pytest.raises(IndexError, match="no axes"):
        contrast([1, 2, 4], [1, 1, 1])[0]
    with pytest.raises(TypeError, match="no length"):
        len(contrast([1, 2, 4], [1, 1, 1]))
    with pytest.raises(ValueError, match="index it first"):
        contrast([[1, 2, 4]], [[1, 1, 1]]).row()


# ---------------------------------------------------------------- effect size


def sums_of(scores, codes):
    """Sums, counts and squares by a loop over pairs."""
    sums, counts, squares = np.zeros(3), np.zeros(3), 0.0
    for score, code in zip(scores, codes, strict=True):
        sums[code - 1] += score
        counts[code - 1] += 1
        squares += score**2 if code > 1 else 0
    return sums, counts, np.array(squares)


def test_the_effect_size_is_the_difference_in_standard_deviations_of_both_kinds_of_pairs_together():
    generator = np.random.default_rng(0)
    codes = generator.integers(1, 4, 200)
    scores = generator.normal(0.01 + 0.02 * (codes == 2) + 5 * (codes == 1), 0.03)
    found = PairSums(*sums_of(scores, codes)).contrast()
    same, different = scores[codes == 2], scores[codes == 3]
    both = np.concatenate([same, different])
    assert found.spread == pytest.approx(both.std(), rel=1e-12)
    assert found.effect_size == pytest.approx((same.mean() - different.mean()) / both.std(), rel=1e-12)
    parts = [PairSums(*sums_of(scores[part], codes[part])) for part in (slice(0, 70), slice(70, None))]
    assert (parts[0] + parts[1]).contrast().effect_size == pytest.approx(found.effect_size, rel=1e-12)
    assert (parts[0] + PairSums(parts[1].sums, parts[1].counts)).squares is None
    assert found.row()["effect_size"] == found.effect_size


def test_an_effect_size_that_is_not_defined_is_nan_with_its_reason():
    equal = PairSums(*sums_of([0.1] * 7, [2, 2, 2, 3, 3, 3, 3])).contrast()
    assert (equal.spread, equal.reason) == (0, ALL_EQUAL)
    assert np.isnan(equal.effect_size)
    assert equal.ratio == pytest.approx(1)
    alone = PairSums(*sums_of([0.1], [2])).contrast()
    assert np.isnan(alone.effect_size)
    assert alone.reason == NO_DIFFERENT_TOPIC
    nothing = PairSums(*sums_of([], [])).contrast()
    assert np.isnan(nothing.effect_size)
    assert nothing.reason == f"{NO_SAME_TOPIC}; {NO_DIFFERENT_TOPIC}"
    without = contrast([1, 2, 3], [1, 1, 1])
    assert np.isnan(without.effect_size)
    assert "effect_size" not in without.row()
    assert without.reason is None


def some_heads(**more):
    """Four heads: a ratio of 30 between tiny means, a large effect, none, and one without pairs."""
    different = np.array([0.001, 1.0, 1.0, 1.0])
    same = np.array([0.03, 1.5, 1.0, np.nan])
    counts = np.array([9.0, 9.0, 9.0, 0.0])
    index = {"head": (0, 1, 2, 3)}
    return Contrast(
        different,
        same,
        different,
        counts,
        counts,
        np.full(4, 9.0),
        spread=np.full(4, 0.5),
        index=index,
        **more,
    )


def test_heads_rank_by_q_value_then_effect_size_and_by_ratio_on_demand():
    assert some_heads().top().index == {"head": (1, 0, 2)}  # the last one has no number
    assert some_heads().top(1).effect_size == 1.0
    assert some_heads().top(2, by="ratio").index == {"head": (0, 1)}
    assert some_heads().top(1, by="difference").index == {"head": (1,)}
    assert some_heads(q_value=np.array([0.9, 0.02, 0.01, 0.01])).top().index == {"head": (2, 1, 0)}
    tied = some_heads(q_value=np.array([0.01, 0.01, np.nan, np.nan]))
    assert tied.top().index == {"head": (1, 0, 2)}  # what was not tested comes last
    assert tied.order("ratio").tolist() == [0, 1, 2]


def test_without_squares_evidence_goes_by_the_statistic_and_unknown_rankings_are_refused():
    without = contrast([[0, 1, 4], [0, 3, 1], [0, 5, 0]], [[0, 1, 1], [0, 1, 1], [0, 1, 0]])
    assert without.order().tolist() == [1, 0]
    with pytest.raises((ValueError, TypeError), match="by"):
        without.top(by="odds")
    with pytest.raises(ValueError, match="top needs a row of cells"):
        contrast([1, 2, 4], [1, 1, 1]).top()


def test_the_interval_of_the_effect_size_is_that_of_documents_drawn_one_by_one():
    generator = np.random.default_rng(1)
    documents = []
    for _ in range(300):
        codes = generator.integers(1, 4, generator.integers(20, 60))
        documents.append(sums_of(generator.normal(generator.normal(1, 0.3) + 0.2 * (codes == 2), 0.5), codes))
    parts = [np.stack(part) for part in zip(*documents, strict=True)]
    values = []
    for _ in range(2000):
        drawn = generator.integers(0, 300, 300)
        values.append(PairSums(*(np.asarray(part[drawn].sum(0)) for part in parts)).contrast().effect_size)
    expected = np.quantile(values, [0.025, 0.975])
    total = SourceSums()
    total.add(np.arange(300), *parts)
    found = total.contrast()
    np.testing.assert_allclose(found.effect_size_interval, expected, atol=0.1 * np.ptp(expected))
    np.testing.assert_array_equal(found.interval, interval_of_sources(*total.rows()[1:3]))
    assert list(found.row())[-4:] == ["ratio_low", "ratio_high", "effect_size_low", "effect_size_high"]
    topic_ratio = total.contrast(statistic="topic_ratio")
    np.testing.assert_array_equal(topic_ratio.effect_size_interval, found.effect_size_interval)
    assert total.contrast(confidence=None).effect_size_interval is None


# ---------------------------------------------------------------- sums by document


def corpus(n, seed=0, shape=(2,)):
    """Keys, sums and counts of documents of different length."""
    generator = np.random.default_rng(seed)
    keys = generator.integers(-(2**63), 2**63 - 1, n)
    counts = generator.integers(1, 60, (n, 3)).astype(float)
    means = np.exp(generator.normal(0, 0.3, (n, *shape, 3)))
    return keys, means * counts.reshape(n, *(1 for _ in shape), 3), counts


def accumulated(parts, limit=4096):
    total = SourceSums(limit)
    for keys, sums, counts in parts:
        total.add(keys, sums, counts, squares_of(sums))
    return total


def squares_of(sums):
    """As many as there may be of these sums: as if a single pair had all of them."""
    return np.square(sums[..., 1:]).sum(-1)


def split(documents, *bounds):
    return [tuple(part[a:b] for part in documents) for a, b in itertools.pairwise((0, *bounds, None))]


def assert_same_rows(one, other):
    assert (one.rows()[0] == other.rows()[0]).all()
    for left, right in zip(one.rows()[1:], other.rows()[1:], strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-12)


@pytest.mark.parametrize("limit", [4096, 7])
def test_document_sums_depend_neither_on_batches_nor_on_order_nor_on_processes(limit):
    documents = corpus(50)
    whole = accumulated([documents], limit)
    assert whole.folded == (limit < 50)
    assert len(whole) == min(50, limit)
    order = np.random.default_rng(1).permutation(50)
    shuffled = tuple(part[order] for part in documents)
    parts = split(shuffled, 3, 8, 41)
    assert_same_rows(accumulated(parts, limit), whole)
    # The first and third process have seen too few documents to fold, the last has.
    processes = [accumulated([part], limit) for part in parts]
    one, two, three, four = processes
    assert_same_rows(one + two + three + four, whole)
    assert_same_rows((four + three) + (two + one), whole)
    assert whole.contrast() == accumulated([documents], limit).contrast()
    np.testing.assert_allclose(
        (four + one + three + two).contrast().interval,
        whole.contrast().interval,
        rtol=1e-12,
    )


def test_a_few_documents_join_blocks_that_another_process_has_folded_into():
    keys, sums, counts = corpus(9)
    keys = np.array([1, 8, 15, 22, 29, 36, 2, 9, 100])  # modulo 7: 1 and 2 only, and 100 is 2 as well
    many, few = (
        accumulated([(keys[:8], sums[:8], counts[:8])], 7),
        accumulated([(keys[8:], sums[8:], counts[8:])], 7),
    )
    assert (many.folded, few.folded, len(many)) == (True, False, 2)
    for merged in (few + many, many + few):
        assert merged.rows()[0].tolist() == [1, 2]
        np.testing.assert_allclose(merged.rows()[1], [sums[:6].sum(0), sums[6:].sum(0)])


def test_totals_are_the_sums_over_all_documents_also_when_folded():
    documents = corpus(300)
    for limit in (4096, 16):
        total = accumulated(split(documents, 100, 200), limit).total()
        np.testing.assert_allclose(total.sums, documents[1].sum(0), rtol=1e-12)
        np.testing.assert_allclose(total.counts, documents[2].sum(0), rtol=1e-12)


def test_equal_documents_add_up_to_one():
    keys, sums, counts = corpus(5)
    keys[3] = keys[1]
    total = accumulated([(keys, sums, counts), (keys[:1], sums[:1], counts[:1])])
    assert len(total) == 4
    place = total.rows()[0].tolist().index(int(keys[1]) % 2**64)
    np.testing.assert_allclose(total.rows()[1][place], sums[1] + sums[3])
    place = total.rows()[0].tolist().index(int(keys[0]) % 2**64)
    np.testing.assert_allclose(total.rows()[2][place], 2 * counts[0])


def test_signed_and_unsigned_keys_of_the_same_bits_are_the_same_document():
    keys, sums, counts = corpus(6)
    assert_same_rows(accumulated([(keys.view(np.uint64), sums, counts)]), accumulated([(keys, sums, counts)]))


def test_document_sums_refuse_shapes_and_limits_that_do_not_fit():
    keys, sums, counts = corpus(5)
    total = accumulated([(keys, sums, counts)])
    with pytest.raises(ValueError, match="must keep their shapes"):
        total.add(keys, sums[:, :1], counts, squares_of(sums[:, :1]))
    with pytest.raises(ValueError, match="do not broadcast"):
        SourceSums().add(keys, sums, np.ones((5, 4, 3)), squares_of(sums))
    with pytest.raises(ValueError, match="same limit"):
        total.merge(SourceSums(limit=5))
    with pytest.raises(ValueError, match="at least 1"):
        SourceSums(limit=0)


def test_no_documents_at_all_give_nan_and_say_so():
    empty = SourceSums().contrast()
    assert np.isnan(empty.ratio)
    assert "no interval: 0 sources, at least 8 are needed" in empty.reason


# ---------------------------------------------------------------- intervals over documents


def test_equal_documents_leave_no_doubt():
    sums, counts = np.tile([3.0, 6.0, 2.0], (20, 1)), np.tile([1.0, 2.0, 4.0], (20, 1))
    np.testing.assert_allclose(interval_of_sources(sums, counts), [6, 6])
    np.testing.assert_allclose(interval_of_sources(sums, counts, statistic="topic_ratio"), [6, 6])
    np.testing.assert_allclose(interval_of_sources(sums, counts, statistic="difference"), [2.5, 2.5])


@pytest.mark.parametrize("statistic", ["ratio", "topic_ratio", "difference"])
def test_the_interval_is_that_of_documents_drawn_one_by_one(statistic):
    _, sums, counts = corpus(400, shape=())
    generator = np.random.default_rng(5)
    values = []
    for _ in range(2000):
        drawn = generator.integers(0, 400, 400)
        values.append(getattr(PairSums(sums[drawn].sum(0), counts[drawn].sum(0)).contrast(), statistic))
    # Two bootstraps with draws of their own; with 400 documents the correction for few of them is small.
    expected = np.quantile(values, [0.025, 0.975])
    found = interval_of_sources(sums, counts, statistic=statistic)
    np.testing.assert_allclose(found, expected, atol=0.1 * (expected[1] - expected[0]))


def test_heads_with_the_same_numbers_get_the_same_interval_whatever_shape_their_counts_have():
    _, sums, counts = corpus(30, shape=())
    stacked = np.stack([np.stack([sums, 2 * sums], 1)] * 3, 1)  # document, 3, 2, relation
    single = interval_of_sources(sums, counts)
    shared_by_two = np.broadcast_to(counts[:, None], (30, 2, 3))
    for held in (
        counts,
        np.broadcast_to(counts[:, None, None], stacked.shape),
        counts[:, None, None],
        shared_by_two,
    ):
        found = interval_of_sources(stacked, held)
        np.testing.assert_allclose(found, np.broadcast_to(single, (3, 2, 2)))


def test_too_few_documents_have_no_interval_and_say_so():
    found = accumulated([corpus(7, shape=())]).contrast()
    assert np.isnan(found.interval).all()
    assert found.reason == "no interval: 7 sources, at least 8 are needed"
    assert not np.isnan(found.ratio)
    keys, sums, counts = corpus(30, shape=())
    counts[7:, 1] = sums[7:, 1] = 0
    found = accumulated([(keys, sums, counts)]).contrast()
    assert np.isnan(found.interval).all()
    assert "fewer than 8 sources have pairs" in found.reason


def test_a_ratio_to_a_mean_around_zero_has_no_interval_but_the_difference_has():
    generator = np.random.default_rng(0)
    sums, counts = generator.normal(0, 1, (50, 3)), np.ones((50, 3))
    sums[:, 2] -= sums[:, 2].mean() + 0.01
    assert np.isnan(interval_of_sources(sums, counts)).all()
    low, high = interval_of_sources(sums, counts, statistic="difference")
    assert low < high


def test_a_ratio_whose_denominator_may_be_zero_is_open_above():
    generator = np.random.default_rng(0)
    sums, counts = generator.normal(1, 1, (50, 3)), np.ones((50, 3))
    sums[:, 2] -= sums[:, 2].mean() - 0.15  # its standard error is 0.14
    found = PairSums(sums.sum(0), counts.sum(0)).contrast()
    low, high = interval_of_sources(sums, counts)
    assert 0 < low < found.ratio
    assert high == np.inf
    # Turned around, the ratio falls without end.
    sums[:, 1] *= -1
    low, high = interval_of_sources(sums, counts)
    assert low == -np.inf
    assert -found.ratio < high < 0


def test_no_resamples_leave_the_interval_out():
    assert accumulated([corpus(30)]).contrast(confidence=None).interval is None


def test_unknown_statistics_are_refused_with_the_known_ones():
    with pytest.raises((ValueError, TypeError), match="statistic"):
        interval_of_sources(np.ones((9, 3)), np.ones((9, 3)), statistic="odds")


def simulated_documents(generator, n):
    """Topic models' documents: lengths, topics and the size of the effect differ from document to document."""
    lengths = np.minimum(400, np.exp(generator.normal(4, 0.6, n)).astype(int) + 10)
    topics = np.array(
        [generator.multinomial(m, p) for m, p in zip(lengths, generator.dirichlet([0.3] * 8, n), strict=True)]
    )
    same = (topics * (topics - 1)).sum(1).astype(float)
    different = lengths**2.0 - (topics**2).sum(1)
    counts = np.stack([lengths.astype(float), same, different], -1)
    effects = np.exp(generator.normal([0.5, 0.3, 0.0], [0.2, 0.3, 0.15], (n, 3)))
    return counts * effects, counts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statistic", "n"),
    [("ratio", 12), ("ratio", 40), ("ratio", 150), ("topic_ratio", 40), ("difference", 40)],
)
def test_intervals_cover_the_truth_as_often_as_they_say(statistic, n):
    generator = np.random.default_rng(1)
    sums, counts = simulated_documents(generator, 200_000)
    truth = getattr(PairSums(sums.sum(0), counts.sum(0)).contrast(), statistic)
    runs = 400
    intervals = np.stack(
        [interval_of_sources(*simulated_documents(generator, n), statistic=statistic) for _ in range(runs)]
    )
    coverage = ((intervals[:, 0] <= truth) & (truth <= intervals[:, 1])).mean()
    # 2.75 standard errors of a share of 0.95 in 400 runs, √(0.95 · 0.05 / 400) = 0.011, on either side. Intervals a
    # quarter too narrow cover 0.858 ± 0.017.
    assert 0.92 <= coverage <= 0.98


def test_where_p_value_and_interval_disagree_is_counted():
    p_value = np.array([0.01, 0.01, 0.5, 0.5, np.nan, 0.01])
    interval = np.array([[1.1, 2], [0.9, 2], [0.9, 2], [0.5, 0.9], [1.1, 2], [np.nan, np.nan]])
    ones = np.ones(6)
    contrast = Contrast(*[ones] * 6, p_value=p_value, interval=interval)
    assert contrast.n_disagreements == 2  # the second and the fourth
    assert (
        Contrast(*[ones] * 6, p_value=p_value, interval=interval - 1, statistic="difference").n_disagreements
        == 2
    )
    assert Contrast(*[ones] * 6, p_value=p_value).n_disagreements == 0
