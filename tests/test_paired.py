"""Differences of models that were measured on the same sources or words, and how likely each rank is."""

import math

import numpy as np
import planted_articles
import pytest
import scipy.stats

from topic_probe.contrast import interval_of_sources, paired_sources
from topic_probe.estimate import Ends, Paired, paired_words, split_halves
from topic_probe.sums import SourceSums, aligned


def models(n_sources=20, ratios=(1.5, 1.2, 1.2), seed=0, n_samples=1):
    """Rows [source, …] of several models on the same articles, with squares."""
    drawn = planted_articles.draw_models(
        np.random.default_rng(seed), n_sources, n_samples=n_samples, ratios=ratios
    )
    return [(sums, counts, 2 * (sums**2).sum(-1) + 1) for sums, counts in drawn]


def number_of(rows, statistic, chosen=slice(None)):
    sums, counts, squares = (part[chosen].sum(0)[0] for part in rows)
    same, different = sums[1] / counts[1], sums[2] / counts[2]
    n, total = counts[1] + counts[2], sums[1] + sums[2]
    spread = math.sqrt(squares / n - (total / n) ** 2)
    if statistic == "ratio":
        return math.log(same / different)
    return (same - different) / (spread if statistic == "effect_size" else 1)


@pytest.mark.parametrize("statistic", ["ratio", "difference", "effect_size"])
def test_a_difference_is_that_of_leaving_out_every_source_of_both_models_in_a_loop(statistic):
    one, other, _ = models()
    n = len(one[0])
    without = [
        number_of(one, statistic, np.arange(n) != i) - number_of(other, statistic, np.arange(n) != i)
        for i in range(n)
    ]
    error = math.sqrt((n - 1) / n * np.sum((without - np.mean(without)) ** 2))
    degrees = 2 / (2 / (n - 1) + max(scipy.stats.kurtosis(without, bias=False), 0) / n)
    pairs = one[1][:, 0]
    degrees = min(degrees, *(pairs[:, k].sum() ** 2 / (pairs[:, k] ** 2).sum() - 1 for k in (1, 2)))
    number = number_of(one, statistic) - number_of(other, statistic)
    t = scipy.stats.t(degrees)
    ends = [number - t.ppf(0.975) * error, number + t.ppf(0.975) * error]
    found = paired_sources([one, other], statistic=statistic).difference(0, 1)
    shown = np.exp if statistic == "ratio" else np.asarray
    np.testing.assert_allclose(found.number, shown([number]))
    np.testing.assert_allclose(found.interval, shown([ends]))
    np.testing.assert_allclose(found.p_value, [2 * t.sf(abs(number) / error)])


@pytest.mark.parametrize("statistic", ["ratio", "topic_ratio", "difference", "effect_size"])
def test_a_model_beside_itself_differs_by_nothing_without_any_doubt(statistic):
    one, other, _ = models()
    found = paired_sources([one, one, other], statistic=statistic)
    number, interval, p_value = found.difference(0, 1)
    assert [number, *interval.T] == [found.nothing] * 3
    assert p_value == 1
    assert (paired_sources([one, one], statistic=statistic).ranks() == 0.5).all()
    ranks = found.ranks()
    np.testing.assert_allclose(ranks[0], ranks[1], atol=1e-12)  # of three: they share every rank
    np.testing.assert_allclose(ranks.sum(0), 1)


def test_two_models_the_other_way_round_are_mirrored_and_each_has_the_interval_that_it_has_alone():
    one, other, _ = models()
    found, mirrored = paired_sources([one, other]), paired_sources([other, one])
    there, back = found.difference(0, 1), mirrored.difference(0, 1)
    np.testing.assert_allclose(there.number, 1 / back.number)
    np.testing.assert_allclose(there.interval[:, ::-1], 1 / back.interval)
    np.testing.assert_allclose(there.p_value, back.p_value)
    np.testing.assert_allclose(found.ranks(), mirrored.ranks()[::-1])
    np.testing.assert_allclose(found.difference(1, 0).interval, back.interval)
    np.testing.assert_allclose(found.interval, [interval_of_sources(*rows[:2]) for rows in (one, other)])


def test_what_all_models_share_drops_out_of_their_difference_and_p_value_and_interval_say_the_same():
    # Four fifths of what is an article's own are the same in both, and of few articles no two samples are alike.
    found = paired_sources(models(ratios=(1.5, 1.2), n_samples=200))
    width = np.ptp(np.log(found.difference(0, 1).interval), axis=-1)
    assert np.median(width / np.hypot(*np.ptp(np.log(found.interval), axis=-1))) < 0.7
    found = paired_sources(models(ratios=(1.3, 1.2), n_samples=200)).difference(0, 1)
    outside = (found.interval[..., 0] > 1) | (found.interval[..., 1] < 1)
    assert 20 < outside.sum() < 200
    np.testing.assert_array_equal(found.p_value < 0.05, outside)


# The bound was there before the method: of at least a thousand samples, 93 to 97 % of 95 % intervals hold the truth.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_sources", "statistic", "truth"), [(15, "ratio", 1.5 / 1.3), (60, "difference", 0.2)]
)
def test_intervals_of_differences_hold_the_truth_as_often_as_they_say(n_sources, statistic, truth):
    rows = models(n_sources, ratios=(1.5, 1.3), seed=n_sources, n_samples=1000)
    found = paired_sources(rows, statistic=statistic).difference(0, 1)
    assert 0.93 <= planted_articles.held(found.interval, truth).mean() <= 0.97


# ---------------------------------------------------------------- ranks


def known(values, covariance, degrees=10.0):
    values = np.array(values)
    return Paired(values, np.array(covariance), np.full((len(values), len(values)), degrees), logarithm=False)


def test_ranks_are_those_of_draws_of_a_student_t_distribution_highest_first():
    covariance = [[1.0, 0.5, 0.2], [0.5, 2.0, 0.0], [0.2, 0.0, 0.5]]
    drawn = scipy.stats.multivariate_t([0.3, 0.0, -0.5], covariance, df=3).rvs(40_000, random_state=1)
    places = (-drawn).argsort(1).argsort(1)
    wanted = [[(places[:, model] == rank).mean() for rank in range(3)] for model in range(3)]
    np.testing.assert_allclose(known([0.3, 0.0, -0.5], covariance, degrees=3.0).ranks(), wanted, atol=0.02)
    ranks = paired_sources(models(60, ratios=(1.2, 1.6, 1.4))).ranks()[..., 0]
    assert ranks.argmax(1).tolist() == [2, 0, 1]
    np.testing.assert_allclose([ranks.sum(0), ranks.sum(1)], 1)


def test_a_third_model_far_below_leaves_the_ranks_of_two_and_one_that_is_missing_those_of_nobody():
    two = known([1.5, 0.0], [[1.0, 0.5], [0.5, 2.0]], degrees=2.0)
    covariance = [[1.0, 0.5, 0.0], [0.5, 2.0, 0.0], [0.0, 0.0, 1.0]]
    three = known([1.5, 0.0, -1e6], covariance, degrees=2.0)
    # The difference of the first two has the variance 1 + 2 − 2 · 0.5 = 2.
    first = scipy.stats.t(2).cdf(1.5 / math.sqrt(2))
    np.testing.assert_allclose(two.ranks(), [[first, 1 - first], [1 - first, first]])
    np.testing.assert_allclose(three.ranks()[:2, :2], two.ranks(), atol=0.015)
    np.testing.assert_allclose(three.ranks()[2], [0, 0, 1])
    assert np.isnan(known([0.3, np.nan, 0.0], np.eye(3)).ranks()).all()
    one, *_ = models()
    np.testing.assert_array_equal(paired_sources([one]).ranks(), np.ones((1, 1, 1)))


def test_a_cell_without_scores_takes_nothing_from_the_others_and_seven_sources_leave_no_doubt_known():
    one, other, _ = models(n_samples=2)
    one[0][:, 1, 1] = 0  # a head that never attends within topics has the logarithm of no ratio
    for every in ([one, other], [one, other, other]):
        found = paired_sources(every)
        assert np.isnan(found.difference(0, 1).interval[1]).all()
        assert np.isnan(found.ranks()[..., 1]).all()
        assert np.isfinite(found.ranks()[..., 0]).all()
    few = paired_sources(models(7))
    assert np.isfinite(few.difference(0, 1).number).all()
    assert np.isnan([few.difference(0, 1).p_value, *few.difference(0, 1).interval.T]).all()
    assert np.isnan(few.ranks()).all()


def test_ratios_to_a_mean_around_nothing_are_not_compared():
    generator = np.random.default_rng(0)
    rows = []
    for below in (2.0, 0.1):
        parts = [np.zeros(20), generator.normal(1, 1, 20), generator.normal(below, 1, 20)]
        sums = np.stack(parts, -1)[:, None]
        rows.append((sums, np.ones(sums.shape), (sums**2).sum(-1)))
    found = paired_sources(rows)
    assert not found.logarithm
    assert np.isnan(found.difference(0, 1).interval).all()
    assert np.isfinite(found.interval[0]).all()
    assert np.isfinite(paired_sources(rows, statistic="difference").difference(0, 1).interval).all()


# ---------------------------------------------------------------- sources


def of_keys(keys, rows, limit=4096):
    sums = SourceSums(limit)
    sums.add(np.array(keys, dtype=np.int64), *rows)
    return sums


def test_sources_align_by_their_keys_and_one_that_a_model_has_not_seen_is_without_pairs():
    one, other, _ = models(6)
    there = of_keys([5, 1, 9, 4, 2, 7], one)
    back = of_keys([1, 4, 8, 2, 9, 3], other)
    (sums, _, _), (others, counts, squares) = aligned([there, back])
    first, second = [5, 1, 9, 4, 2, 7], [1, 4, 8, 2, 9, 3]
    for place, key in enumerate([1, 2, 3, 4, 5, 7, 8, 9]):
        for found, keys, rows in (
            (sums, first, one[0]), (others, second, other[0]), (counts, second, other[1]), (squares, second, other[2])
        ):  # fmt: skip
            expected = rows[keys.index(key)] if key in keys else np.zeros_like(rows[0])
            np.testing.assert_array_equal(found[place], expected)


def test_blocks_of_sources_align_with_sources_of_the_same_number_of_blocks_only():
    one, other, _ = models(40)
    ten = [part[:10] for part in other]
    blocks, few = of_keys(range(40), one, limit=16), of_keys(range(32, 42), ten, limit=16)
    assert (blocks.folded, few.folded) == (True, False)
    rows, others = aligned([blocks, few])
    # Keys 3, 19 and 35 are in one block.
    np.testing.assert_allclose(rows[0][3], one[0][[3, 19, 35]].sum(0))
    np.testing.assert_array_equal(others[0][3], other[0][3])  # that of key 35
    with pytest.raises(ValueError, match=r"as many blocks, got \[16, 32\]: measure all models with the same"):
        aligned([blocks, of_keys(range(10), ten, limit=32)])


# ---------------------------------------------------------------- words


def words_of(embeddings, topics):
    """Ends and squares of every word, from all scores between words."""
    scores = embeddings @ embeddings.T
    halves = split_halves(topics, seed=0)
    apart = ~np.eye(len(topics), dtype=bool)
    parts = []
    for relation in ((topics[:, None] == topics) & apart, topics[:, None] != topics):
        partner = [relation & (halves == half) for half in (0, 1)]
        parts.append(np.stack([(2 * scores * chosen).sum(1) for chosen in partner])[..., None])
        parts.append(np.stack([2.0 * chosen.sum(1) for chosen in partner]))
    return Ends(*parts), 2 * ((scores**2) * apart).sum(1)[:, None]


def planted_words(generator, sizes, strengths, common=0.7):
    """Words around the centres of their topics, in models that share part of what is a word's own."""
    topics = np.repeat(np.arange(len(sizes)), sizes)
    width = 24
    centres = generator.normal(0, 0.2, (len(sizes), width)) + 1 / np.sqrt(width)
    shared = generator.normal(size=(len(topics), width))
    found = []
    for strength in strengths:
        own = np.sqrt(common) * shared + np.sqrt(1 - common) * generator.normal(size=shared.shape)
        found.append(strength * centres[topics] + own / np.sqrt(width))
    return found, topics, centres


def pair_of_words(tables, topics, **options):
    ends, squares = zip(*(words_of(table, topics) for table in tables), strict=True)
    return paired_words(ends, squares, topics, **options)


@pytest.mark.parametrize("statistic", ["ratio", "difference", "effect_size"])
def test_the_same_table_twice_differs_by_nothing_and_the_other_way_round_is_mirrored(statistic):
    (one, other), topics, _ = planted_words(np.random.default_rng(0), [6] * 8, (1.0, 1.2))
    found = pair_of_words([one, one], topics, statistic=statistic)
    assert np.ptp(found.difference(0, 1).interval) == 0 == found.difference(0, 1).number
    assert (found.ranks() == 0.5).all()
    there = pair_of_words([one, other], topics, statistic=statistic).difference(0, 1)
    back = pair_of_words([other, one], topics, statistic=statistic).difference(0, 1)
    np.testing.assert_allclose(there.interval, -back.interval[:, ::-1])
    assert np.isfinite(there.interval).all()


def test_a_table_without_any_doubt_leaves_the_doubt_of_the_other():
    (one, _), topics, _ = planted_words(np.random.default_rng(0), [6] * 8, (1.0, 1.2))
    known_table = np.eye(8)[topics]  # words of a topic are all alike
    found = pair_of_words([one, known_table], topics, statistic="difference")
    np.testing.assert_allclose(found.interval[1], [[1, 1]], atol=1e-12)
    width = np.ptp(found.difference(0, 1).interval)
    assert width == pytest.approx(np.ptp(found.interval[0]), rel=1e-6)


def test_the_doubt_of_a_difference_is_the_spread_of_words_drawn_anew():
    # Topics are the same in all runs, as intervals over words have it.
    sizes, strengths, runs, found, widths = [12] * 8, (1.0, 1.2), 200, [], []
    generator = np.random.default_rng(1)
    centres = np.random.default_rng(2).normal(0, 0.2, (8, 24)) + 1 / np.sqrt(24)
    for run in range(runs):
        (one, other), topics, drawn = planted_words(generator, sizes, strengths)
        tables = [
            table + strength * (centres - drawn)[topics]
            for table, strength in zip((one, other), strengths, strict=True)
        ]
        same = (topics[:, None] == topics) & ~np.eye(len(topics), dtype=bool)
        scores = tables[0] @ tables[0].T - tables[1] @ tables[1].T
        found.append(scores[same].mean() - scores[topics[:, None] != topics].mean())
        if run % 20 == 0:
            pair = pair_of_words(tables, topics, statistic="difference", n_resamples=400)
            widths.append(np.ptp(pair.difference(0, 1).interval))
    assert np.mean(widths) == pytest.approx(2 * 1.97 * np.std(found), rel=0.15)


def test_effect_sizes_of_words_need_squares_and_too_few_words_have_no_doubt():
    (one, other), topics, _ = planted_words(np.random.default_rng(0), [3, 4], (1.0, 1.2))
    found = pair_of_words([one, other], topics)
    assert np.isfinite(found.values).all()
    assert np.isnan(found.difference(0, 1).interval).all()
    # Eight words, but only three of them with a partner in their topic.
    (one, other), topics, _ = planted_words(np.random.default_rng(0), [3, 1, 1, 1, 1, 1], (1.0, 1.2))
    assert np.isnan(pair_of_words([one, other], topics).difference(0, 1).interval).all()
    with pytest.raises(ValueError, match="need the squared scores of words"):
        paired_words([words_of(one, topics)[0]], None, topics, statistic="effect_size")
