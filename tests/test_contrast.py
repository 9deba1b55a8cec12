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
    dashed,
    estimate_of_sources,
    matched_contrast,
    matched_means,
    word_relations,
)
from topic_probe.sums import SourceSums, aligned, columns, joined
from topic_probe.topics import Topics

# Word 3 is in two topics; 9 is the only word of its topic; 0, 4 and everything else have none.
TOPICS = Topics.from_token_ids({"animals": [1, 2, 3], "music": [3, 5], "sums": [9]}, vocabulary_size=12)


def contrast(sums, counts, **options):
    return PairSums(np.array(sums, float), np.array(counts, float)).contrast(**options)


def test_relations_of_a_batch_follow_the_definition_pair_by_pair():
    generator = torch.Generator().manual_seed(0)
    queries, keys = (torch.randint(-2, 14, (3, n), generator=generator) for n in (7, 11))
    topics_of = {1: {0}, 2: {0}, 3: {0, 1}, 5: {1}, 9: {2}}
    codes = word_relations(TOPICS.places(queries), TOPICS.places(keys), TOPICS)
    assert codes.shape == (3, 7, 11)
    for batch, query, key in itertools.product(range(3), range(7), range(11)):
        i, j = int(queries[batch, query]), int(keys[batch, key])
        if i not in topics_of or j not in topics_of:
            expected = NO_RELATION
        elif i == j:
            expected = SAME_WORD
        else:
            expected = SAME_TOPIC if topics_of[i] & topics_of[j] else DIFFERENT_TOPIC
        assert codes[batch, query, key] == expected


# ---------------------------------------------------------------- what follows from sums


def test_ratio_topic_ratio_and_difference_are_those_worked_out_by_hand():
    # Means 10/2 = 5, 12/4 = 3 and 20/10 = 2; same word and same topic pooled: 22/6.
    found = contrast([10, 12, 20], [2, 4, 10])
    assert (found.same_word, found.same_topic, found.different_topic) == (5, 3, 2)
    assert (found.ratio, found.difference, found.shape, found.reason) == (1.5, 1, (), None)
    assert found.topic_ratio == pytest.approx(11 / 6)
    assert (found.n_same_word, found.n_same_topic, found.n_different_topic) == (2, 4, 10)


NAN = float("nan")


@pytest.mark.parametrize(
    ("sums", "counts", "ratio", "topic_ratio", "reason"),
    [  # same word 2 ÷ different topic 2: the empty relation does not hide it
        ([4, 0, 6], [2, 0, 3], NAN, 1, NO_SAME_TOPIC),
        ([0, 6, 3], [0, 2, 3], 3, 3, None),
        ([4, 6, 0], [2, 3, 0], NAN, NAN, NO_DIFFERENT_TOPIC),
        ([0, 0, 0], [0, 0, 0], NAN, NAN, f"{NO_SAME_TOPIC}; {NO_DIFFERENT_TOPIC}"),
        ([1, 3, -6], [1, 1, 2], -1, -2 / 3, NOT_POSITIVE),
        ([1, 3, 0], [1, 1, 2], NAN, NAN, NOT_POSITIVE),
    ],
)
def test_what_is_undefined_is_nan_with_a_reason(sums, counts, ratio, topic_ratio, reason):
    found = contrast(sums, counts)
    np.testing.assert_allclose([found.ratio, found.topic_ratio], [ratio, topic_ratio])
    assert found.reason == reason
    assert contrast(sums, counts) == found  # NaN and all
    assert contrast(sums, counts, p_value=np.array(0.5)) != found
    assert contrast(sums, counts, note="so").reason == "; ".join(part for part in (reason, "so") if part)


@pytest.mark.usefixtures("unchecked")
def test_a_cell_picked_from_an_array_keeps_its_numbers_and_its_own_reason():
    interval = np.array([[0.4, 0.6], [np.nan] * 2])
    whole = contrast([[1, 2, 4], [1, 0, 4]], [[1, 1, 1], [1, 0, 1]], interval=interval)
    assert (whole.shape, len(whole), whole.reason) == ((2,), 2, NO_SAME_TOPIC)
    assert (whole[0].reason, whole[0].ratio, whole[0].interval.tolist()) == (None, 0.5, [0.4, 0.6])
    assert whole[1].reason == NO_SAME_TOPIC
    assert whole[np.array([True, False])].shape == (1,)
    assert repr(whole).startswith("Contrast(2,)")
    assert repr(whole).endswith(f"({NO_SAME_TOPIC})")
    for call, message in (
        (lambda: whole[0][0], "no axes"), (lambda: len(whole[0]), "no length"), (lambda: whole.row(), "index it first"),
        (lambda: whole[0].top(), "needs a row of cells"), (lambda: whole.top(by="odds"), "by must be one of"),
    ):  # fmt: skip
        with pytest.raises((IndexError, TypeError, ValueError), match=message):
            call()


def test_columns_name_the_number_that_the_interval_is_about():
    options = {"interval": np.array([[0.5, 1.5]]), "p_value": np.array([0.1]), "q_value": np.array([0.2])}
    found = contrast([[10, 12, 20]], [[2, 4.5, 10]], statistic="difference", **options)
    table = found.to_dataframe({"layer": [7]})
    assert list(table) == [
        *("layer", "same_word", "same_topic", "different_topic", "ratio", "topic_ratio", "difference"),
        *("n_same_word", "n_same_topic", "n_different_topic", "difference_low", "difference_high"),
        *("p_value", "q_value"),
    ]
    assert table.loc[0, ["layer", "difference_low", "q_value"]].tolist() == [7, 0.5, 0.2]
    assert table["n_same_word"].dtype == np.int64
    assert table["n_same_topic"].tolist() == [4.5]  # weighted counts stay fractions


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
    equal = PairSums(*sums_of([0.1] * 7, [2, 2, 2, 3, 3, 3, 3])).contrast()
    assert (np.isnan(equal.effect_size), equal.reason) == (True, ALL_EQUAL)
    without = contrast([1, 2, 3], [1, 1, 1])
    assert (np.isnan(without.effect_size), "effect_size" in without.row()) == (True, False)


def heads(**more):
    """A ratio of 30 between tiny means, a large effect, none, one without pairs, and one that turns away."""
    different, same = np.array([0.001, 1.0, 1.0, 1.0, 2.0]), np.array([0.03, 1.5, 1.0, np.nan, 0.8])
    counts = np.array([9.0, 9.0, 9.0, 0.0, 9.0])
    numbers = (different, same, different, counts, counts, np.full(5, 9.0))
    return Contrast(*numbers, spread=np.full(5, 0.5), index={"head": (0, 1, 2, 3, 4)}, **more)


def names(found):
    return found.index["head"]


def test_heads_are_ordered_by_the_end_of_their_interval_that_is_nearer_to_no_effect():
    assert names(heads().top()) == (4, 1, 0, 2)  # by the size of the effect; one has no number
    assert names(heads().top(2, by="ratio")) == (0, 1)
    assert names(heads().top(1, by="difference")) == (1,)
    ends = np.array([[0.02, 0.1], [-0.5, 2.0], [-0.1, 0.1], [np.nan, np.nan], [-3.0, -0.01]])
    found = heads(effect_size_interval=ends, q_value=np.array([0.9, 0.01, 0.01, 0.01, 0.9]))
    # Bounds 0.02, 0, 0 and 0.01; equal ones by effect sizes of 1 and 0; q-values say nothing of it.
    assert names(found.top()) == (0, 4, 1, 2)
    assert (names(found.top(towards=True)), names(found.top(towards=False))) == ((0,), (4,))
    assert names(found.top(by="difference", towards=True)) == (0,)
    without = contrast([[0, 1, 4], [0, 3, 1], [0, 5, 0]], [[0, 1, 1], [0, 1, 1], [0, 1, 0]])
    assert without.order().tolist() == [1, 0]  # without squares by the statistic: ratios of 3 and ¼
    ends = np.array([[0.1, 0.3], [0.5, 9.0], [np.nan, np.nan]])
    without = contrast([[0, 1, 4], [0, 3, 1], [0, 5, 0]], [[0, 1, 1], [0, 1, 1], [0, 1, 0]], interval=ends)
    assert without.order().tolist() == [0, 1]  # the first is surely below 1


def test_a_ratio_whose_denominator_may_be_0_is_printed_as_a_dash_with_the_difference():
    ends = np.array([[1.5, np.inf], [1.2, 2.0], [np.nan, np.nan]])
    found = contrast([[0, 4, 1], [0, 3, 2], [0, 1, -1]], [[0, 2, 2]] * 3, interval=ends)
    shown = dashed(found.to_dataframe())
    assert shown["ratio"].tolist() == ["– (difference 1.5)", "1.5", "– (difference 1)"]
    assert found.to_dataframe()["ratio"].tolist() == [4, 1.5, -1]
    assert "– (difference 1.5)" in repr(found)
    assert dashed(found[1:2].to_dataframe())["ratio"].tolist() == [1.5]


def test_where_p_value_and_interval_disagree_is_counted():
    p_value = np.array([0.01, 0.01, 0.5, 0.5, np.nan, 0.01, 0.5])
    interval = np.array([[1.1, 2], [0.9, 2], [0.9, 2], [0.5, 0.9], [1.1, 2], [np.nan, np.nan], [0.9, 2]])
    ones = [np.ones(7)] * 6
    found = Contrast(*ones, p_value=p_value, interval=interval)
    assert found.n_disagreements == 2  # the second and the fourth
    found = Contrast(*ones, p_value=p_value, interval=interval - 1, statistic="difference")
    assert found.n_disagreements == 2
    assert Contrast(*ones, p_value=p_value).n_disagreements == 0


def test_matched_means_are_those_of_bins_that_hold_both_kinds_by_hand():
    # Bin means 2 against 1 (3 same-topic pairs) and 6 against 4 (1 pair); the third bin has one kind only.
    sums = np.array([[5.0, 6.0, 2.0], [0.0, 6.0, 8.0], [1.0, 99.0, 0.0]])
    counts = np.array([[1.0, 3.0, 2.0], [0.0, 1.0, 2.0], [1.0, 9.0, 0.0]])
    squares = np.array([14.0, 70.0, 5000.0])
    found = matched_contrast(sums, counts, squares)
    assert (found.same_topic, found.different_topic) == ((3 * 2 + 6) / 4, (3 * 1 + 4) / 4)
    assert (found.same_word, found.n_same_word, found.n_same_topic, found.n_different_topic) == (3, 2, 4, 4)
    assert found.spread == pytest.approx(np.sqrt(84 / 8 - (22 / 8) ** 2))
    assert matched_means(sums, counts, np.array([1.0, 3.0, 5.0]))[:2] == ((2 + 18) / 4, (1 + 12) / 4)


# ---------------------------------------------------------------- sums by source


def corpus(n, seed=0, shape=(2,)):
    """Keys and rows of documents of different length, with squares as if a single pair had all of their scores."""
    generator = np.random.default_rng(seed)
    keys = generator.integers(-(2**63), 2**63 - 1, n)
    counts = generator.integers(1, 60, (n, 3)).astype(float)
    sums = np.exp(generator.normal(0, 0.3, (n, *shape, 3))) * counts.reshape(n, *(1 for _ in shape), 3)
    return keys, joined(sums, counts, np.square(sums[..., 1:]).sum(-1))


def accumulated(parts, limit=4096):
    total = SourceSums(limit)
    for part in parts:
        total.add(*part)
    return total


def assert_same_rows(one, other):
    assert (one.rows()[0] == other.rows()[0]).all()
    np.testing.assert_allclose(one.rows()[1], other.rows()[1], rtol=1e-12)


@pytest.mark.parametrize("limit", [4096, 50, 49, 7])
def test_sums_by_source_depend_neither_on_batches_nor_on_order_nor_on_processes(limit):
    keys, rows = corpus(50)
    whole = accumulated([(keys, rows)], limit)
    assert (whole.folded, len(whole) <= limit) == (limit < 50, True)
    totals = whole.total()
    for found, given in zip((totals.sums, totals.counts, totals.squares), columns(rows), strict=True):
        np.testing.assert_allclose(found, given.sum(0), rtol=1e-12)
    assert_same_rows(accumulated([(keys.view(np.uint64), rows)], limit), whole)
    order = np.random.default_rng(1).permutation(50)
    bounds = itertools.pairwise((0, 3, 8, 41, 50))
    parts = [(keys[order[a:b]], rows[order[a:b]]) for a, b in bounds]
    assert_same_rows(accumulated(parts, limit), whole)
    # With few rows, the first and third process have seen too few documents to fold, the last has not.
    one, two, three, four = (accumulated([part], limit) for part in parts)
    assert_same_rows(one + two + three + four, whole)
    assert_same_rows((four + three) + (two + one), whole)


def test_what_has_the_same_key_adds_up_in_a_batch_and_over_batches_and_in_folds():
    keys, rows = corpus(9)
    keys[3] = keys[1]
    total = accumulated([(keys, rows), (keys[:2], rows[:2])])
    assert len(total) == 8
    place = total.rows()[0].tolist().index(int(keys[1]) % 2**64)
    np.testing.assert_allclose(total.rows()[1][place], 2 * rows[1] + rows[3])
    keys = np.array([1, 8, 15, 22, 29, 36, 2, 9, 100])  # modulo 7: 1 and 2 only, and 100 is 2 as well
    many, few = accumulated([(keys[:8], rows[:8])], 7), accumulated([(keys[8:], rows[8:])], 7)
    assert (many.folded, few.folded) == (True, False)
    for merged in (few + many, many + few):
        assert merged.rows()[0].tolist() == [1, 2]
        np.testing.assert_allclose(merged.rows()[1], [rows[:6].sum(0), rows[6:].sum(0)])


def test_sums_by_source_refuse_shapes_and_limits_that_do_not_fit():
    keys, rows = corpus(5)
    total = accumulated([(keys, rows)])
    with pytest.raises(ValueError, match="must keep their shape"):
        total.add(keys, rows[:, :1])
    with pytest.raises(ValueError, match="same limit"):
        total.merge(SourceSums(limit=5))
    with pytest.raises(ValueError, match="at least 1"):
        SourceSums(limit=0)


def test_sources_align_by_their_keys_and_one_that_a_model_has_not_seen_is_without_pairs():
    (_, rows), (_, others) = corpus(6), corpus(6, seed=1)
    first, second = [5, 1, 9, 4, 2, 7], [1, 4, 8, 2, 9, 3]
    there, back = aligned([accumulated([(np.array(first), rows)]), accumulated([(np.array(second), others)])])
    for place, key in enumerate([1, 2, 3, 4, 5, 7, 8, 9]):
        for found, keys, given in ((joined(*there), first, rows), (joined(*back), second, others)):
            expected = given[keys.index(key)] if key in keys else np.zeros_like(given[0])
            np.testing.assert_array_equal(found[place], expected)


def test_folded_sources_align_with_those_of_as_many_rows_only():
    (_, rows), (_, others) = corpus(40), corpus(10, seed=1)
    folds = accumulated([(np.arange(40), rows)], 16)
    few = accumulated([(np.arange(32, 42), others)], 16)
    assert (folds.folded, few.folded) == (True, False)
    one, other = (joined(*part) for part in aligned([folds, few]))
    np.testing.assert_allclose(one[3], rows[[3, 19, 35]].sum(0))  # keys 3, 19 and 35 are in one row
    np.testing.assert_array_equal(other[3], others[3])  # that of key 35
    with pytest.raises(ValueError, match=r"as many rows, got \[16, 32\]: measure all models with the same"):
        aligned([folds, accumulated([(np.arange(10), others)], 32)])


# ---------------------------------------------------------------- intervals over sources


@pytest.mark.parametrize("statistic", ["ratio", "topic_ratio", "difference", "effect_size"])
def test_the_interval_is_that_of_documents_drawn_one_by_one(statistic):
    keys, rows = corpus(400, shape=())
    sums, counts, _ = columns(rows)
    squares = 1.5 * (sums[:, 1:] ** 2 / counts[:, 1:]).sum(-1)
    total = accumulated([(keys, joined(sums, counts, squares))])
    parts = columns(total.rows()[1])
    generator, values = np.random.default_rng(5), []
    for _ in range(2000):
        drawn = generator.integers(0, 400, 400)
        sums = PairSums(*(np.asarray(part[drawn].sum(0)) for part in parts))
        values.append(getattr(sums.contrast(), statistic))
    # With 400 documents the correction for few of them is small.
    expected = np.quantile(values, [0.025, 0.975])
    found = total.contrast(statistic="ratio" if statistic == "effect_size" else statistic)
    np.testing.assert_allclose(found.interval_of(statistic), expected, atol=0.1 * np.ptp(expected))


def test_heads_with_the_same_numbers_get_the_same_interval_whatever_shape_their_counts_have():
    sums, counts, _ = columns(corpus(30, shape=())[1])
    stacked = np.stack([np.stack([sums, 2 * sums], 1)] * 3, 1)  # document, 3, 2, relation
    single = np.broadcast_to(estimate_of_sources(sums, counts).interval(), (3, 2, 2))
    for held in (counts, np.broadcast_to(counts[:, None, None], stacked.shape), counts[:, None, None]):
        np.testing.assert_allclose(estimate_of_sources(stacked, held).interval(), single)


def test_too_few_documents_have_no_interval_and_say_so():
    assert "no interval: 0 sources, at least 8 are needed" in SourceSums().contrast().reason
    keys, rows = corpus(30, shape=())
    found = accumulated([(keys[:7], rows[:7])]).contrast()
    assert found.reason == "no interval: 7 sources, at least 8 are needed"
    rows[7:, [1, 4]] = 0
    found = accumulated([(keys, rows)]).contrast()
    assert np.isnan(found.interval).all()
    assert "fewer than 8 sources have pairs" in found.reason


@pytest.mark.parametrize("negative", [1, 2])
def test_a_ratio_of_scores_of_either_sign_is_open_where_its_denominator_may_be_zero(negative):
    generator = np.random.default_rng(0)
    sums, counts = np.abs(generator.normal(1, 1, (50, 3))), np.ones((50, 3))
    by_logarithm = estimate_of_sources(sums, counts).interval()
    sums[0, negative] *= -0.01
    # Fieller's, from the first negative score on.
    assert (estimate_of_sources(sums, counts).interval() != by_logarithm).all()
    sums[:, 2] = generator.normal(0, 1, 50)
    sums[:, 2] -= sums[:, 2].mean() - 0.15  # its standard error is 0.14
    low, high = estimate_of_sources(sums, counts).interval()
    assert 0 < low < PairSums(sums.sum(0), counts.sum(0)).contrast().ratio < high == np.inf
    sums[:, 2] -= 0.16
    assert np.isnan(estimate_of_sources(sums, counts).interval()).all()
    assert np.isfinite(estimate_of_sources(sums, counts, statistic="difference").interval()).all()
