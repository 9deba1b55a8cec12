"""The statistics of effects, of outcomes that were planted, and what is told of them."""

import numpy as np
import pytest
import scipy.stats
import zoo

import topic_probe as tp

TOPICS = tp.Topics.from_token_ids({"one": range(5, 20), "two": range(20, 40)}, vocabulary_size=zoo.VOCABULARY)
N = 90
MODEL = tp.open_model(zoo.make("bert"))  # 3 layers of 4 heads


def planted(values, **options):
    """The report where documents have these outcomes [cell, document]: as they are, and after every intervention."""
    documents, rows = [[word, 5, 20] for word in range(values.shape[1])], iter(values)

    def outcome(model, inputs):
        return np.array(next(rows))[inputs.ids[:, 0]]

    given = {"kind": "zero", "batch_size": N, "special_ids": (), **options}
    report = tp.measure_ablation(MODEL, TOPICS, documents, outcome=outcome, **given)
    assert next(rows, None) is None
    return report


def test_an_effect_has_the_interval_and_the_p_value_of_a_paired_t_test():
    """But for the degrees of freedom: these are estimated, because sources may be unlike each other."""
    generator = np.random.default_rng(0)
    values = generator.normal(scale=5, size=N) + generator.normal(scale=0.5, size=(3, N)) - [[0.1], [0], [0]]
    report = planted(values, sets={"one": "0.0", "other": "0.1"}, n_matched=0)
    assert report.outcome.item() == pytest.approx(values[0].mean())
    low, high = scipy.stats.t.interval(0.95, N - 1, values[0].mean(), scipy.stats.sem(values[0]))
    np.testing.assert_allclose(report.outcome_interval[0], [low, high], atol=0.02)
    tests = [scipy.stats.ttest_rel(values[0], own) for own in values[1:]]
    for cell, test in enumerate(tests):
        assert report.effect[0, cell] == pytest.approx((values[0] - values[1 + cell]).mean())
        ends = test.confidence_interval()
        np.testing.assert_allclose(report.interval[0, cell], ends, atol=0.01 * (ends.high - ends.low))
    p = [test.pvalue for test in tests]
    np.testing.assert_allclose(report.p_value[0], p, rtol=0.03)
    np.testing.assert_allclose(report.q_value[0], scipy.stats.false_discovery_control(report.p_value[0]))


def test_a_set_is_ranked_among_random_ones_and_judged_beyond_their_mean():
    """The effect is 3; of 24 others one is above and one as large: twice (1 + 2) of 25."""
    noise = np.random.default_rng(1).normal(scale=0.1, size=(26, N))
    effects = np.array([0, 3, *np.linspace(-2, 2.5, 22), 3, 7.0])
    values = 10 - effects[:, None] + noise - noise.mean(1, keepdims=True)
    report = planted(values, sets={"two": "0.0,1.0"}, n_matched=24)
    np.testing.assert_allclose(np.sort(report.null[0, 0]), effects[2:])
    assert report.p_random.item() == pytest.approx(6 / 25)
    assert report.index["random"] == ("all layers",)
    rest = values[2:].mean(0) - values[1]
    low, high = scipy.stats.t.interval(0.95, N - 1, rest.mean(), scipy.stats.sem(rest))
    assert report.beyond.item() == pytest.approx(3 - effects[2:].mean())
    np.testing.assert_allclose(report.beyond_interval[0, 0], [low, high], atol=0.01 * (high - low))
    table = report.to_dataframe()
    assert table["n_null"].tolist() == [24]
    assert table["null_mean"].item() == pytest.approx(effects[2:].mean())


def test_of_fewer_than_twenty_others_there_is_no_p_value():
    values = np.random.default_rng(2).normal(size=(13, N))
    report = planted(values, sets={"one": "0.0"})  # of 12 heads
    assert report.null.shape == (1, 1, 11)
    assert np.isnan(report.p_random.item())
    assert np.isfinite(report.beyond.item())
    assert "of fewer than 20 others" in str(report)


def test_the_largest_heads_are_printed_in_their_places(tmp_path):
    effects = np.array([0.1, -0.9, 0.3, 0.2, 1.1, -0.5, 0.6, 0.7, 0.05, 0.8, 1.2, -0.01])
    layers = [0.4, 0.0, -0.2]
    outcomes = 10 - np.concatenate([[0], effects, layers])
    report = planted(outcomes[:, None] + np.random.default_rng(3).normal(size=(1, N)))
    table = report.to_dataframe()
    order = np.argsort(-np.abs(effects))
    assert table["place"].tolist() == [list(order).index(head) + 1 for head in range(12)]
    np.testing.assert_allclose(table["layer_effect"], np.repeat(layers, 4), atol=1e-12)
    assert {"p_random", "beyond"}.isdisjoint(table)
    text = str(report)
    assert "the 10 largest of 12 effects" in text
    rows = [line.split() for line in text.splitlines() if line.strip().startswith("self")]
    assert [int(row[1]) * 4 + int(row[2]) for row in rows] == order[:10].tolist()
    assert tp.load_report(report.save(tmp_path / "report")) == report
