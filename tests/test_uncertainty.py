"""Resampling, p-values and q-values against hand-worked numbers, other ways to compute them, and simulation."""

import itertools
import math

import numpy as np
import planted_articles
import pytest
import scipy.stats

from topic_probe.contrast import Beside, interval_of_sources, no_interval_reason
from topic_probe.estimate import (
    Ends,
    benjamini_hochberg,
    compare,
    divide,
    effective_units,
    needed_permutations,
    percentile_interval,
    permutation_p_value,
    resample,
    source_interval,
    split_halves,
    variance_shares,
    word_interval,
)

# ---------------------------------------------------------------- permutations and false discoveries


@pytest.mark.usefixtures("unchecked")
def test_p_values_are_those_counted_by_hand():
    null = np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 9])
    # At least 8: two of nine, so (1 + 2) / (1 + 9). At most 8: eight of nine, so (1 + 8) / 10.
    for observed, alternative, p in [
        (8.0, "greater", 0.3), (8.0, "less", 0.9), (8.0, "two-sided", 0.6), (10.0, "greater", 0.1),
        (5.0, "two-sided", 1),
    ]:  # fmt: skip
        assert permutation_p_value(np.array(observed), null, alternative=alternative) == pytest.approx(p)
    null = np.array([[1.0, 2, np.nan, np.nan], [5, 5, 5, 5], [np.nan] * 4, [1, 2, 3, 4]])
    found = permutation_p_value(np.array([3.0, 5.0, 1.0, np.nan]), null, alternative="greater")
    np.testing.assert_allclose(found, [1 / 3, 1, np.nan, np.nan])
    rounded = np.full(99, 0.1 + 0.2)  # 0.30000000000000004 is as extreme as 0.3
    assert permutation_p_value(np.array(0.3), rounded, alternative="less") == 1
    # 1000 tests, q below 0.05: the least p-value is 2 / (1 + n) on two sides, so 2 · 1000 / (1 + n) < 0.05.
    needed = [needed_permutations(1000, alternative, q=0.05) for alternative in ("two-sided", "less")]
    assert needed == [40_000, 20_000]
    with pytest.raises(ValueError, match="alternative must be one of"):
        permutation_p_value(np.array(1.0), np.ones(3), alternative="both")


def test_p_values_are_uniform_when_nothing_is_there():
    draws = np.random.default_rng(0).exponential(size=(4000, 200))
    for alternative in ("two-sided", "greater", "less"):
        p = np.sort(permutation_p_value(draws[:, 0], draws[:, 1:], alternative=alternative))
        # Kolmogorov–Smirnov; a p-value of 199 permutations is a multiple of 1/200, of 1/100 on two sides.
        assert np.abs(p - np.arange(1, 4001) / 4000).max() < 1.36 / np.sqrt(4000) + 0.01


def test_q_values_follow_their_definition_cell_by_cell():
    generator = np.random.default_rng(3)
    p = np.round(generator.random((5, 8)), 2)  # with ties
    p[1, 2] = p[4, 0] = np.nan
    tested = p[~np.isnan(p)]
    found = benjamini_hochberg(p)
    for cell in itertools.product(range(5), range(8)):
        # The smallest rate at which the procedure calls this test: over thresholds t from its p on, m t / #{p ≤ t}.
        rates = [len(tested) * t / (tested <= t).sum() for t in tested if t >= p[cell]]
        np.testing.assert_allclose(found[cell], min([1, *rates]) if rates else np.nan)
    assert benjamini_hochberg(np.zeros(0)).shape == (0,)


# ---------------------------------------------------------------- resampling


def test_a_denominator_that_has_passed_zero_counts_as_infinite_with_the_sign_of_the_numerator():
    same, different = np.array([2.0, 2, 2, -2, 0, -2]), np.array([4.0, 0, -4, -4, -4, 4])
    np.testing.assert_equal(compare(same, different, "ratio"), [0.5, np.inf, np.inf, -np.inf, np.nan, -0.5])
    np.testing.assert_equal(compare(same, different, "difference"), same - different)


# Even and odd numbers of words, of which the latter leave half of the generator's bits for the next draw; a word that
# is alone, for which no bits are drawn; strata so large that bits are drawn again in many resamples.
@pytest.mark.parametrize("sizes", [[300] * 9 + [299], [3, 1, 6], [50_000, 3]], ids=str)
def test_weights_count_the_very_draws_of_numpy_within_strata(sizes):
    sizes = np.array(sizes)
    generator, starts = np.random.default_rng(7), np.repeat(np.cumsum(sizes) - sizes, sizes)
    drawn = starts + generator.integers(0, np.repeat(sizes, sizes), (20, sizes.sum()), dtype=np.int32)
    expected = [np.bincount(units, minlength=sizes.sum()) for units in drawn]
    np.testing.assert_array_equal(resample(lambda w: w, sizes, n_resamples=20, seed=7), expected)


def test_effective_units_count_equal_weights_fully_and_a_dominating_one_alone():
    assert effective_units(np.ones((20, 3)) * [1, 2, 3]).tolist() == [20, 20, 20]
    assert effective_units(np.array([1e9, *np.ones(19)])) == pytest.approx(1, abs=1e-6)
    assert effective_units(np.array([3.0] * 10 + [1.0] * 10)) == pytest.approx(16)  # 40² / 100
    assert effective_units(np.array([*np.ones(7), 0, 0])) == 0


def test_percentiles_of_many_units_are_the_plain_ones_and_of_few_lie_further_out():
    values = np.random.default_rng(0).normal(size=(100_000, 1))
    many = percentile_interval(values, np.array([1e9]))
    np.testing.assert_allclose(many[0], np.quantile(values, [0.025, 0.975]), atol=1e-3)
    # A t interval of 10 units, whose bootstrap has (10 − 1)/10 of the variance: 2.2622 · √(10/9) = 2.3846.
    np.testing.assert_allclose(percentile_interval(values, np.array([10.0]))[0], [-2.3846, 2.3846], atol=0.05)
    half = percentile_interval(values, np.array([1e9]), confidence=0.5)
    np.testing.assert_allclose(half[0], [-0.6745, 0.6745], atol=0.02)
    few = percentile_interval(np.arange(11.0)[:, None], np.array([1e9]), confidence=0.75)
    np.testing.assert_allclose(few[0], [1.25, 8.75])  # between two draws
    assert np.isnan(percentile_interval(values, np.array([0.0]))).all()
    with pytest.raises(ValueError, match=r"between 0 and 1, got 95\.0"):
        percentile_interval(values, np.array([10.0]), confidence=95.0)


def test_an_interval_that_reaches_infinity_is_open_and_one_that_is_nothing_else_is_missing():
    values, many = np.arange(1000.0)[:, None], np.array([1e9])
    values[-100:] = np.inf
    low, high = percentile_interval(values, many)[0]
    assert 20 < low < 30 < high == np.inf
    # Between a number and infinity the nearer one is taken: the place is 0.975 · 899 = 876.5.
    ones = np.ones((900, 1))
    for n, end in ((877, np.inf), (878, 1)):
        known = np.arange(900)[:, None] < n
        assert percentile_interval(np.where(known, ones, np.inf), many)[0, 1] == end
    assert np.isnan(percentile_interval(np.where(values < 400, values, np.inf), many)).all()
    values[:100] = -np.inf
    missing = percentile_interval(values, many)
    assert np.isnan(missing).all()
    assert no_interval_reason(missing, 5, "words") == "no interval: 5 words, at least 8 are needed"
    assert "near 0" in no_interval_reason(missing, 50, "words")


# ---------------------------------------------------------------- sources


def mean(sums, counts):
    return divide(sums, counts), None


def ratio(above, below):
    return above, below


def test_the_interval_of_a_mean_is_that_of_a_textbook():
    values = np.array([9.0, 11, 8, 12, 10, 10, 7, 13, 9, 11])
    # Mean 10, squared deviations 30, so a standard error of √(30/9/10) = 0.57735; t of 9 degrees is 2.262.
    for confidence, t in ((0.95, 2.262), (0.5, 0.7027)):
        found = source_interval(mean, (values, np.ones(10)), [np.ones(10)], confidence=confidence)
        np.testing.assert_allclose(found, [10 - t * 0.57735, 10 + t * 0.57735], atol=5e-4)


def test_variance_beside_that_of_sources_widens_an_interval_as_satterthwaite_has_it():
    values, ones = np.array([9.0, 11, 8, 12, 10, 10, 7, 13, 9, 11]), np.ones(10)
    # Of words, of fits, of both variances themselves.
    beside = Beside(*(np.array(part) for part in (0.25, 0.5, 0.02)))
    # Variances of 1/3 (9 degrees) and 0.75; 2 total² / (2 (1/3)²/9 + 0.02) degrees together.
    total = 1 / 3 + 0.75
    reach = scipy.stats.t.ppf(0.975, 2 * total**2 / (2 / 81 + 0.02)) * math.sqrt(total)
    found = source_interval(mean, (values, ones), [ones], beside=beside)
    np.testing.assert_allclose(found, [10 - reach, 10 + reach], rtol=1e-10)
    shares = variance_shares(mean, (values, ones), beside)
    np.testing.assert_allclose(shares, np.array([1 / 3, 0.25, 0.5]) / total)


def test_the_interval_of_a_ratio_is_that_of_leaving_out_every_source_in_a_loop():
    generator = np.random.default_rng(2)
    above, below = generator.lognormal(0.5, 0.8, 25), generator.lognormal(0, 0.3, 25)
    without = [math.log(np.delete(above, i).sum() / np.delete(below, i).sum()) for i in range(25)]
    number = math.log(above.sum() / below.sum())
    error = math.sqrt(24 / 25 * np.sum((without - np.mean(without)) ** 2))
    # scipy's own unbiased kurtosis is what the degrees of freedom are made of.
    kurtosis = scipy.stats.kurtosis(without, bias=False)
    assert kurtosis > 1
    reach = scipy.stats.t.ppf(0.975, 2 / (2 / 24 + kurtosis / 25)) * error
    found = source_interval(ratio, (above, below), [np.ones(25)], positive=np.array([True]))
    np.testing.assert_allclose(found, np.exp([number - reach, number + reach]), rtol=1e-10)


def test_a_ratio_of_scores_of_either_sign_ends_where_the_difference_is_just_told_from_zero():
    generator = np.random.default_rng(3)
    above = generator.normal(0.4, 1, 40)
    below = generator.normal(2, 1, 40) + 0.7 * above
    low, high = source_interval(ratio, (above, below), [np.ones(40)])
    number = above.sum() / below.sum()
    assert low < number < high
    kurtosis = scipy.stats.kurtosis(above - number * below, bias=False)
    assert kurtosis > 1
    # Sums without one source each have (n − 1)/n of the standard error that a textbook gives a sum.
    reach = 39 / 40 * scipy.stats.t.ppf(0.975, 2 / (2 / 39 + kurtosis / 40))
    for end in (low, high):
        rest = above - end * below
        # The t statistic of the mean of above − r below, as in a textbook.
        assert abs(rest.mean()) / (rest.std(ddof=1) / math.sqrt(40)) == pytest.approx(reach)


def test_sources_that_hold_most_pairs_leave_fewer_degrees_of_freedom_and_those_without_are_none():
    values, equal = np.random.default_rng(0).normal(10, 1, 30), np.ones(30)
    plain = np.ptp(source_interval(mean, (values, equal), [equal]))
    assert np.ptp(source_interval(mean, (values, equal), [np.array([300.0, *np.ones(29)])])) > 3 * plain
    counts = np.array([1.0] * 7 + [0.0] * 13)
    assert np.isnan(source_interval(mean, (counts, counts), [counts])).all()
    counts[7] = 1
    np.testing.assert_allclose(source_interval(mean, (counts, counts), [counts]), [1, 1])


# The bound was there before the method: of at least a thousand samples, 93 to 97 % of 95 % intervals hold the truth.
# `benchmarks/coverage.py` prints the same of more samples, and of real articles.
@pytest.mark.slow
@pytest.mark.parametrize(("n_sources", "statistic"), [(8, "ratio"), (15, "ratio"), (60, "difference")])
def test_intervals_over_articles_hold_the_truth_as_often_as_they_say(n_sources, statistic):
    articles = planted_articles.draw(np.random.default_rng(n_sources), n_sources, n_samples=2000)
    found = interval_of_sources(*articles.by_source, statistic=statistic)
    assert 0.93 <= planted_articles.held(found, articles.truth[statistic]).mean() <= 0.97
    if (n_sources, statistic) == (15, "ratio"):  # pieces taken as independent hold it less often
        pieces = interval_of_sources(*articles.by_piece)
        assert planted_articles.held(pieces, articles.truth["ratio"]).mean() < 0.9


# ---------------------------------------------------------------- words


def ends_of(scores, topics, halves):
    """What `word_interval` wants, from all scores between words."""
    parts, apart = [], ~np.eye(len(topics), dtype=bool)
    for relation in ((topics[:, None] == topics) & apart, topics[:, None] != topics):
        partner = [relation & (halves == half) for half in (0, 1)]
        parts.append(np.stack([((scores + scores.T) * chosen).sum(1) for chosen in partner])[..., None])
        parts.append(np.stack([2.0 * chosen.sum(1) for chosen in partner]))
    return Ends(*parts)


def interval_of_words(embeddings, topics, **options):
    parts = ends_of(embeddings @ embeddings.T, topics, split_halves(topics, seed=0))
    return word_interval(parts, topics, **options)[0]


def planted(generator, centres, sizes, noise):
    """Words around the centre of their topic."""
    topics = np.repeat(np.arange(len(sizes)), sizes)
    width = centres.shape[1]
    return centres[topics] + generator.normal(0, noise / np.sqrt(width), (len(topics), width)), topics


def test_halves_split_every_stratum_evenly_and_at_random_without_the_global_generator():
    strata = np.array([0] * 6 + [1] * 4 + [2] * 20)
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    halves = split_halves(strata, seed=0)
    assert [halves[strata == stratum].sum() for stratum in range(3)] == [3, 2, 10]
    assert (halves != split_halves(strata, seed=1)).any()
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def test_words_that_are_all_alike_leave_no_doubt_and_too_few_have_no_interval():
    embeddings, topics = np.repeat(np.array([[2.0, 1], [1, 2]]), 8, axis=0), np.repeat([0, 1], 8)
    np.testing.assert_allclose(interval_of_words(embeddings, topics), [5 / 4, 5 / 4])
    np.testing.assert_allclose(interval_of_words(embeddings, topics, statistic="difference"), [1, 1])
    generator = np.random.default_rng(0)
    for sizes in (
        [3, 4],
        [3, 1, 1, 1, 1, 1],
    ):  # of these eight words only three have a partner in their topic
        words = planted(generator, np.ones((len(sizes), 3)), np.array(sizes), 0.1)
        assert np.isnan(interval_of_words(*words)).all()
    with pytest.raises(ValueError, match="'ratio' and 'difference', got 'topic_ratio'"):
        interval_of_words(embeddings, topics, statistic="topic_ratio")


def spread_and_width(draw, topics, *, runs, samples=400):
    """How wide 95 % of the differences of fresh samples of scores lie, and how wide intervals of one sample are."""
    same = (topics[:, None] == topics) & ~np.eye(len(topics), dtype=bool)
    other = topics[:, None] != topics
    fresh = [scores[same].mean() - scores[other].mean() for scores in (draw() for _ in range(samples))]
    widths = []
    for run in range(runs):
        ends, options = (
            ends_of(draw(), topics, split_halves(topics, seed=run)),
            {"n_resamples": 400, "seed": run},
        )
        widths.append(np.ptp(word_interval(ends, topics, statistic="difference", **options)))
    return 2 * 1.96 * np.std(fresh), np.mean(widths)


# Words that are alone with one other move as one stratum, which is on the wide side.
@pytest.mark.parametrize(("sizes", "most"), [([5] * 20, 1.1), ([2] * 20 + [10] * 4, 1.25)], ids=str)
def test_the_spread_is_that_of_words_drawn_anew_from_what_they_came_from(sizes, most):
    generator = np.random.default_rng(0)
    centres, sizes = generator.normal(0.2, 0.15, (len(sizes), 24)), np.array(sizes)
    topics = np.repeat(np.arange(len(sizes)), sizes)

    def draw():
        embeddings, _ = planted(generator, centres, sizes, 1.0)
        return embeddings @ embeddings.T

    spread, width = spread_and_width(draw, topics, runs=15)
    assert 0.9 < width / spread < most


def test_the_noise_of_single_pairs_counts_once():
    # Scores that are nothing but noise of pairs, on levels that differ between topics.
    generator = np.random.default_rng(0)
    topics = np.repeat(np.arange(10), 4)
    levels = 5.0 * generator.random(10)[topics]
    same = (topics[:, None] == topics) & ~np.eye(len(topics), dtype=bool)

    def draw():
        noise = np.triu(generator.normal(size=(len(topics),) * 2), 1)
        return levels[:, None] * same + noise + noise.T

    spread, width = spread_and_width(draw, topics, runs=10, samples=200)
    # Taken twice it would be 1.4 to 1.7. That it is known never to be narrower makes it a little wide for few words.
    assert 0.9 < width / spread < 1.25


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "strength", "statistic"),
    [
        ([10] * 10, 0.0, "difference"),  # topics are nothing but a name
        ([1, 2, 3, 8, 20, 40], 0.1, "ratio"),
    ],
)
def test_intervals_over_words_cover_the_truth_as_often_as_they_say(sizes, strength, statistic):
    generator = np.random.default_rng(0)
    sizes, width, runs = np.array(sizes), 32, 400
    centres = generator.normal(0, strength, (len(sizes), width)) + 1 / np.sqrt(width)
    between = centres @ centres.T
    same = np.average(np.diag(between), weights=sizes * (sizes - 1))
    different = np.average(between, weights=np.outer(sizes, sizes) * (1 - np.eye(len(sizes))))
    truth = same / different if statistic == "ratio" else same - different
    samples = [planted(generator, centres, sizes, 1.0) for _ in range(runs)]
    options = {"statistic": statistic, "n_resamples": 400}
    found = [interval_of_words(*words, **options, seed=run) for run, words in enumerate(samples)]
    coverage = planted_articles.held(np.stack(found), truth).mean()
    # A share of 0.95 in 400 runs has a standard error of √(0.95 · 0.05 / 400) = 0.011, so these bounds are 2.75 of
    # them away. Intervals a quarter too narrow cover 0.858 ± 0.017, which is 3.5 below.
    assert 0.92 <= coverage <= 0.98
