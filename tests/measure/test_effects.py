"""The arithmetic of effects, on sums made by hand and on effects that were planted."""

import numpy as np
import pytest
import scipy.stats

import topic_probe as tp
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
    sums = np.zeros((2, 2, 3))
    counts = np.zeros((2, 2, 3))
    sums[:, 1, 1:], counts[:, 1, 1:] = [[1.0, 4.0], [3.0, 0.0]], [[2.0, 4.0], [6.0, 1.0]]
    sums[:, 0], counts[:, 0] = sums[:, 1] / 2, counts[:, 1]
    found = told(Numbers(sums, counts), GAP, [1], [[]])
    assert found["effect"].item() == pytest.approx(4 / 8 - 4 / 5)
    assert found["outcome"].item() == pytest.approx((4 / 8 - 4 / 5) / 2)
    assert np.isnan(found["interval"]).all()  # of two sources there is none
    assert np.isnan(found["p_value"]).all()


def test_intervals_of_single_means_are_students():
    """Where every source has one number, leaving out one at a time is the textbook's t interval, but for the degrees of
    freedom: these are estimated, because sources may be unlike each other.
    """
    values = np.random.default_rng(0).normal(size=(20, 2))
    found = told(of_sources(values), MEAN, [1], [[]])
    own = values[:, 1]
    low, high = scipy.stats.t.interval(0.95, 19, own.mean(), scipy.stats.sem(own))
    np.testing.assert_allclose(found["interval"][0, 0], [low, high], atol=0.02 * (high - low))


def test_a_p_value_is_a_rank_among_what_is_compared_with():
    """The effect is 3; of nine others one is above, so twice (1 + 1) of 10."""
    values = np.tile(np.array([0.0, 3.0, *range(-4, 3), 2.5, 7.0]), (8, 1))
    found = told(of_sources(values), MEAN, [1], [range(2, 11)])
    assert found["p_value"].item() == pytest.approx(2 * 2 / 10)
    np.testing.assert_array_equal(np.sort(found["null"][0, 0]), np.sort(values[0, 2:]))
    assert found["beyond"].item() == pytest.approx(3 - values[0, 2:].mean())
    one_sided = told(of_sources(values), MEAN, [1], [range(2, 11)], alternative="greater")
    assert one_sided["p_value"].item() == pytest.approx(2 / 10)


def test_where_nothing_is_done_the_effect_is_nothing_and_p_is_one():
    found = told(of_sources(np.zeros((9, 4))), MEAN, [1], [[2, 3]])
    assert (found["effect"].item(), found["p_value"].item()) == (0.0, 1.0)
    np.testing.assert_array_equal(found["interval"], 0.0)


def test_what_is_beyond_the_others_is_judged_by_paired_sources():
    """Effect and others move together from source to source, so that what is beyond them is sure."""
    generator = np.random.default_rng(1)
    common = generator.normal(scale=5, size=(30, 1))
    values = common + generator.normal(scale=0.1, size=(30, 4))
    values[:, 1] += 0.3
    found = told(of_sources(values), MEAN, [1], [[2, 3]])
    apart = values[:, 1] - values[:, 2:4].mean(1)
    low, high = scipy.stats.t.interval(0.95, 29, apart.mean(), scipy.stats.sem(apart))
    np.testing.assert_allclose(found["beyond_interval"][0, 0], [low, high], atol=0.02 * (high - low))
    assert low > 0 > found["interval"][0, 0, 0]


@pytest.mark.parametrize("n_sources", [12, 40])
def test_intervals_hold_planted_effects_as_often_as_they_say(n_sources):
    """A thousand samples of sources with many pairs or few, with an effect that differs from source to source."""
    generator, held, n = np.random.default_rng(n_sources), 0, 1000
    for _ in range(n):
        counts = generator.integers(5, 60, size=(n_sources, 1, 3)).astype(float)
        of_source = generator.normal(scale=0.3, size=(n_sources, 1, 3)) + np.array([0.0, 0.5, 0.2])
        noise = generator.normal(size=counts.shape) / np.sqrt(counts)
        sums = np.repeat((of_source + noise) * counts, 2, axis=1)
        found = told(Numbers(sums, np.repeat(counts, 2, axis=1)), GAP, [1], [[]])
        low, high = found["interval"][0, 0]
        held += low <= 0.3 <= high
    assert 0.93 <= held / n <= 0.97


def test_p_values_of_exchangeable_sets_are_uniform():
    """A thousand draws in which the set is one like the others."""
    generator = np.random.default_rng(3)
    p = [
        told(of_sources(generator.normal(size=(10, 101))), MEAN, [1], [range(2, 101)], confidence=None)[
            "p_value"
        ].item()
        for _ in range(1000)
    ]
    # Ranks of 100 have steps; within each step a p-value may lie anywhere.
    spread = np.array(p) - generator.random(1000) * 2 / 100
    assert scipy.stats.kstest(spread, "uniform").pvalue > 0.001


def test_a_report_is_saved_and_printed_with_what_it_is_compared_with(tmp_path):
    values = np.random.default_rng(4).normal(size=(9, 5))
    found = told(of_sources(values), MEAN, [1, 2], [[3, 4], [3]])
    report = EffectReport(
        index={"set": ("one", "two"), "n": (3, 1)}, provenance={"options": {}, "left_out": {}}, **found
    )
    assert tp.load_report(report.save(tmp_path / "report")) == report
    table = report.to_dataframe()
    assert table["n_null"].tolist() == [2, 1]
    np.testing.assert_allclose(table["null_mean"], [values[:, 3:5].mean(), values[:, 3].mean()])
    assert "outcome of the model as it is, mean" in str(report)
