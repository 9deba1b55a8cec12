"""Onsets and their order, of curves that were planted or written by hand."""

import numpy as np
import pytest
from planted_series import attention_sums, series_report, states_of, topics_of, word_sums
from scipy.stats import norm, t

import topic_probe as tp
from topic_probe.estimate import Estimate, Factor
from topic_probe.series.curves import Curve, Onsets, change, curves_of, mean_of

STEPS = (0, 1, 2, 4, 8, 16, 32, 64, 128)
RISING = [0, 0, 1, 3.2, 5, 9, 9, 9, 9]


def curve(values, units, degrees=1e9):
    """A curve with as much doubt as units say, a row for each of these; the step is the place."""
    values, units = np.asarray(values, float), np.asarray(units, float)
    factor = Factor("words", units, np.full(values.shape, float(degrees)))
    return Curve("a", np.arange(len(values)), Estimate(values, (factor,)))


def independent(n_steps, n_units=600, seed=0):
    """Many units that move every step but the first by 1 standard error in all, and no two steps together."""
    normal = np.random.default_rng(seed).standard_normal((n_units, n_steps - 1))
    return np.concatenate([np.zeros((n_units, 1)), np.linalg.qr(normal)[0]], 1)


def onsets(*curves):
    return Onsets([change(one) for one in curves])


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ([0, 0, 9, 9, 9, 0, 0], 2),
        ([0, 0, 9, 9, 0, 9, 9], np.nan),  # never three in a row
        ([0, 0, 9, 9, -9, -9, 9], np.nan),  # not on one side
        ([0, -9, -9, -9, -9, -9, -9], 1),
        ([0, 9, 9, -9, -9, -9, -9], 3),
        ([0, 9, 9, np.nan, 9, 0, 0], 1),  # what was not measured is no checkpoint
        ([7, 7, 16, 16, 16, 7, 7], 2),  # beside the untrained value
    ],
)
def test_an_onset_is_the_first_of_three_checkpoints_in_a_row_on_one_side(values, place):
    np.testing.assert_equal(onsets(curve(values, independent(7))).steps, [place])


def test_p_values_and_bands_are_those_of_the_largest_of_independent_deviations():
    """Eight independent normal steps: P(max |z| ≥ m) = 1 − (1 − 2Φ(−m))⁸, m being the least of the best three."""
    found = onsets(curve([0, 0.1, 2.4, 2.2, 2.6, 0.3, -1.0, 0.0, 0.2], independent(9)))
    exact = 1 - (1 - 2 * norm.sf(2.2)) ** 8
    assert found.p_values[0] == pytest.approx(exact, abs=3 * np.sqrt(exact * (1 - exact) / 2000))
    assert found.q_values[0] == found.p_values[0]
    assert found.reaches[0] == pytest.approx(norm.isf((1 - 0.95 ** (1 / 8)) / 2), abs=0.12)


@pytest.mark.parametrize(("degrees", "exact"), [(1e9, norm.isf(0.025)), (5, t.isf(0.025, 5))])
def test_steps_that_move_together_are_one_with_the_tails_of_as_many_words(degrees, exact):
    """One direction moves all steps: the band is that of a single number."""
    one = independent(2)[:, 1:]
    found = onsets(curve(np.zeros(9), np.concatenate([0 * one, *[one] * 8], 1), degrees))
    assert found.reaches[0] == pytest.approx(exact, rel=0.08)


def test_a_curve_is_called_where_its_band_says_so_and_bands_go_with_the_number_of_curves():
    generator = np.random.default_rng(0)
    shifts = [0, 2, 3, 3.5, 4, 5] * 4
    found = onsets(*(curve(np.r_[0, generator.normal(shift, 1, 8)], independent(9)) for shift in shifts))
    called = [not np.isnan(step) for step in found.steps]
    assert called == (found.q_values <= 0.05).tolist()
    assert 5 < sum(called) < 20
    assert found.of_bands == pytest.approx(1 - 0.05 * sum(called) / 24)
    for number in range(24):
        low, high = found.band(number).T
        outside = np.where(low > 0, 1, np.where(high < 0, -1, 0))
        runs = [{*outside[k : k + 3].tolist()} for k in range(6)]
        assert called[number] == ({1} in runs or {-1} in runs)


def order(*curves):
    return onsets(*curves).order().iloc[0]


def test_probabilities_of_order_add_up_and_are_even_between_equals():
    same = order(*2 * [curve(RISING, independent(9))])  # with the same draws
    assert same["together"] == pytest.approx(1 - same["neither"])
    zero = 0 * independent(9)
    own = (independent(9), zero), (zero, independent(9, seed=1))
    both = order(*(curve(RISING, np.vstack(units)) for units in own))
    assert both[["before", "together", "after", "neither"]].sum() == pytest.approx(1)
    assert 0.05 < both["before"] == pytest.approx(both["after"], abs=0.05)
    late = curve([0, 0, 0, 0, 0, 0, 9, 9, 9], independent(9))
    assert order(curve(RISING, independent(9)), late)["before"] > 0.95
    assert order(late, curve(RISING, independent(9)))["after"] > 0.95


def test_what_trainings_have_in_common_stays_and_what_they_have_not_is_added():
    """Three trainings with 3, 4 and 5 in the end: their mean is 4, its error √(1/3 · 1) and that of sources."""
    one = independent(2)
    found = mean_of([curve([0, value], 0.5 * one, 20) for value in (3, 4, 5)]).estimate
    assert found.value.tolist() == [0, 4]
    assert found.variance[1] == pytest.approx(0.25 + 1 / 3)
    # Satterthwaite: 20 degrees of freedom of words, 2 of three trainings.
    assert found.df[1] == pytest.approx((0.25 + 1 / 3) ** 2 / (0.25**2 / 20 + (1 / 3) ** 2 / 2))


def test_what_two_curves_have_in_common_drops_out_of_their_difference():
    one, other = curve(RISING, independent(9)), curve([0, 0, 1, 3.2, 5, 5, 5, 5, 5], independent(9))
    found = change(one - other)
    assert found.estimate.value.tolist() == pytest.approx([0, 0, 0, 0, 4, 4, 4, 4])
    assert found.estimate.variance.tolist() == pytest.approx([0] * 8)


def test_what_does_not_move_at_all_has_no_doubt_and_no_onset():
    units = np.random.default_rng(0).normal(size=(12, 1)) * np.ones((1, 6))  # the same at every step
    still, rounded = np.full(6, 0.4), 1 + 1e-15 * np.random.default_rng(1).normal(size=6)
    for found in (onsets(curve(still, units)), onsets(curve(still * rounded, units * rounded))):
        assert np.isnan(found.steps).all()
        assert found.p_values.tolist() == [1.0]
    assert onsets(curve([0.4, 0.4, 0.5, 0.5, 0.5, 0.5], units)).steps.tolist() == [2]
    with pytest.raises(ValueError, match=r"confidence is the share .* must lie between 0 and 1"):
        Onsets([], confidence=1.0)


# --- reports ------------------------------------------------------------------------------------------


def from_step(step, size):
    return np.where(np.array(STEPS) >= step, size, 0.0)


@pytest.fixture(scope="module")
def planted():
    """Heads 1 and 3 of six begin at steps 4 and 32, words at step 8, in 60 sources."""
    generator, effects = np.random.default_rng(5), np.zeros((6, len(STEPS)))
    effects[1], effects[3] = from_step(4, 0.8), from_step(32, 0.8)
    heads = attention_sums(generator, effects, n_sources=60, n_layers=2)
    words = word_sums(generator, from_step(8, 1.5), topics_of(4, 8))
    names = "attention", "states", "embeddings"
    rows = [(row, states_of(row, 2), word) for row, word in zip(heads, words, strict=True)]
    return series_report(STEPS, [dict(zip(names, row, strict=True)) for row in rows])


def near(found, step):
    return abs(STEPS.index(found) - STEPS.index(step)) <= 1


def test_planted_onsets_are_found_and_others_are_not(planted, tmp_path):
    found = planted.onsets("head")
    heads = found.to_dataframe().set_index("measured")["onset"]
    assert near(heads["L0H1"], 4)
    assert near(heads["L1H0"], 32)
    assert heads.drop(["L0H1", "L1H0"]).isna().all()
    assert near(planted.onsets().steps[0], 8)
    order = found.order().set_index(["first", "second"])
    assert order.loc[("L0H1", "L1H0"), "before"] > 0.95
    assert order.loc[("L0H0", "L0H2"), "neither"] > 0.8
    bands = found.bands().set_index(["measured", "step"])
    assert bands.loc[("L0H1", 64), "low"] > 0 > bands.loc[("L0H0", 64), "low"]
    for seed in range(2):
        noise = attention_sums(np.random.default_rng([1, seed]), np.zeros((12, 9)), n_sources=30, n_layers=2)
        report = series_report(STEPS, [{"attention": row} for row in noise], measure=["attention"])
        assert np.isnan(report.onsets("head").steps).all()
    assert tp.load_report(planted.save(tmp_path / "series")) == planted


def test_beyond_another_training_is_only_what_that_one_has_not():
    """Of text and of what has no topics: all is at step 4 in both, and from step 32 on there is more in text."""
    curves = []
    for seed, more in ((11, 1.0), (12, 0.0)):
        generator, grown = np.random.default_rng(seed), from_step(4, 0.6) + from_step(32, more)
        heads = attention_sums(generator, grown[None], n_sources=60, n_layers=1)
        (found,) = curves_of(STEPS, [{"attention": row} for row in heads], "head")
        assert near(onsets(found).steps[0], 4)
        curves.append(found)
    assert near(onsets(curves[0] - curves[1]).steps[0], 32)
    assert onsets(curves[0] - curves[0]).p_values.tolist() == [1]


def test_errors_are_those_of_leaving_out_sources_by_hand(planted):
    """The jackknife of value − untrained value of a head."""
    every = np.arange(60)

    def effect(row, kept):
        part = row["attention"]
        sums, n = part["sums"][kept, 1].sum(0), part["counts"][kept, 0].sum(0)
        spread = np.sqrt(part["squares"][kept, 1].sum() / n[1:].sum() - (sums[1:].sum() / n[1:].sum()) ** 2)
        return (sums[1] / n[1] - sums[2] / n[2]) / spread

    found = change(curves_of(STEPS, planted.sums, "head")[1]).estimate
    own = [
        effect(planted.sums[-1], kept) - effect(planted.sums[0], kept)
        for kept in (every, *(every[every != k] for k in every))
    ]
    assert found.value[-1] == pytest.approx(own[0])
    assert found.variance[-1] == pytest.approx(59 / 60 * ((own[1:] - np.mean(own[1:])) ** 2).sum())


def test_what_is_undefined_says_why(planted):
    few, no_first = series_report(STEPS[:3], planted.sums[:3]), series_report(STEPS, ({}, *planted.sums[1:]))
    rows = attention_sums(np.random.default_rng(0), np.zeros((2, 5)), n_sources=7, n_layers=1)
    seven = series_report(STEPS[:5], [{"attention": row} for row in rows])
    for report, why in (
        (few, "2 checkpoints after step 0 measured, 3 are needed"),
        (no_first, "there is no untrained value: step 0 could not be measured"),
        (seven, "fewer than 8 sources have pairs of both kinds"),
    ):
        table = report.onsets().to_dataframe()
        assert {*table["reason"]} == {why}
        assert table[["onset", "p_value", "q_value"]].isna().to_numpy().all()
        assert report.onsets().order()["before"].isna().all()
    assert {*series_report(STEPS[1:], planted.sums[1:]).onsets().to_dataframe()["against"]} == {1}
