"""The arithmetic of effects, on sums made by hand and on effects that were planted."""

import numpy as np
import pytest
import scipy.stats

from topic_probe.measure.effects import EffectReport, Numbers, effects

GAP = {"gap": (0, 1, -1)}
MEAN = {"mean": (0, 1, 0)}


def of_sources(values):
    """Numbers of which every source has one, of the kind "same topic"."""
    sums = np.zeros((*values.shape, 3))
    sums[..., 1] = values
    counts = np.zeros_like(sums)
    counts[..., 1] = 1
    return Numbers(sums, counts)


def told(numbers, readouts, cells, others, **options):
    return effects(
        numbers, readouts, cells, others, **{"confidence": 0.95, "alternative": "two-sided", **options}
    )


def test_an_effect_is_the_difference_of_pooled_means():
    """Two sources: same-topic pairs 1 of 2 and 3 of 6, different-topic pairs 4 of 4 and 0 of 1."""
    sums, counts = np.zeros((2, 2, 2, 3))
    sums[:, 1, 1:], counts[:, 1, 1:] = [[1.0, 4.0], [3.0, 0.0]], [[2.0, 4.0], [6.0, 1.0]]
    sums[:, 0], counts[:, 0] = sums[:, 1] / 2, counts[:, 1]
    found = told(Numbers(sums, counts), GAP, [1], [[]])
    assert found["effect"].item() == pytest.approx(4 / 8 - 4 / 5)
    assert found["outcome"].item() == pytest.approx((4 / 8 - 4 / 5) / 2)
    assert np.isnan(found["interval"]).all()  # of two sources there is none
    assert np.isnan(found["p_value"]).all()


def test_a_p_value_is_a_rank_among_what_is_compared_with():
    """The effect is 3; of nine others one is above, so twice (1 + 1) of 10. Of the other cell's two none is."""
    values = np.tile(np.array([0.0, 3.0, *range(-4, 3), 2.5, 7.0]), (8, 1))
    found = told(of_sources(values), MEAN, [1, 10], [range(2, 11), [2, 3]])
    np.testing.assert_allclose(found["p_value"], [[2 * 2 / 10, 2 * 1 / 3]])
    np.testing.assert_allclose(found["q_value"], [[2 / 3, 2 / 3]])
    np.testing.assert_array_equal(np.sort(found["null"][0, 0]), np.sort(values[0, 2:]))
    np.testing.assert_allclose(found["beyond"], [[3 - values[0, 2:].mean(), 7 + 3.5]])
    one_sided = told(of_sources(values), MEAN, [1], [range(2, 11)], alternative="greater")
    assert one_sided["p_value"].item() == pytest.approx(2 / 10)


def assert_is_students(interval, values):
    """But for the degrees of freedom: these are estimated, because sources may be unlike each other."""
    low, high = scipy.stats.t.interval(0.95, len(values) - 1, values.mean(), scipy.stats.sem(values))
    np.testing.assert_allclose(interval, [low, high], atol=0.004 * (high - low))
    return low


def test_intervals_of_single_numbers_are_students():
    values = np.random.default_rng(0).normal(size=(300, 2))
    found = told(of_sources(values), MEAN, [1], [[]])
    assert_is_students(found["interval"][0, 0], values[:, 1])
    assert_is_students(found["outcome_interval"][0], values[:, 0])


def test_what_is_beyond_the_others_is_judged_by_paired_sources():
    """Effect and others move together from source to source, so that what is beyond them is sure."""
    generator = np.random.default_rng(1)
    values = generator.normal(scale=5, size=(300, 1)) + generator.normal(scale=0.1, size=(300, 4))
    values[:, 1] += 0.3
    found = told(of_sources(values), MEAN, [1], [[2, 3]])
    low = assert_is_students(found["beyond_interval"][0, 0], values[:, 1] - values[:, 2:4].mean(1))
    assert low > 0 > found["interval"][0, 0, 0]


def test_a_report_is_printed_with_what_it_is_compared_with():
    values = np.random.default_rng(4).normal(size=(9, 5))
    found = told(of_sources(values), MEAN, [1, 2], [[3, 4], [3]])
    report = EffectReport(
        index={"set": ("one", "two"), "n": (3, 1)}, provenance={"options": {}, "left_out": {}}, **found
    )
    table = report.to_dataframe()
    assert table["n_null"].tolist() == [2, 1]
    np.testing.assert_allclose(table["null_mean"], [values[:, 3:5].mean(), values[:, 3].mean()])
    assert "outcome of the model as it is, mean" in str(report)
