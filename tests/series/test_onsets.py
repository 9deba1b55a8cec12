"""Onsets, their order and differences of curves that were planted or written by hand."""

import numpy as np
import pytest
from planted_series import attention_sums, series_report, states_of, topics_of, word_sums
from scipy.stats import norm, t

import topic_probe as tp
from topic_probe.series.onsets import Curve, Draws, Onsets, change, difference, nothing
from topic_probe.series.sums import Grid, curves_of

STEPS = (0, 1, 2, 4, 8, 16, 32, 64, 128)
RISING = [0, 0, 1, 3.2, 5, 9, 9, 9, 9]


def curve(values, units, effective=1e9):
    """A curve of one training with as much doubt as units say, a row for each step."""
    values = np.atleast_2d(np.asarray(values, float))
    return Curve("a", values, np.asarray(units, float)[:, None], np.full(values.shape, effective), "words")


def independent(n_steps):
    """Units of their own for every step but the first: its standard errors are all 1."""
    return np.diag(np.r_[0.0, np.ones(n_steps - 1)])


def onsets(*curves):
    return Onsets([change(one, 0, range(1, one.values.shape[1])) for one in curves], Draws(0))


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ([0, 0, 9, 9, 9, 0, 0], 2),
        ([0, 0, 9, 9, 0, 9, 9], None),  # never three in a row
        ([0, 0, 9, 9, -9, -9, 9], None),  # not on one side
        ([0, -9, -9, -9, -9, -9, -9], 1),
        ([0, 9, 9, -9, -9, -9, -9], 3),
        ([0, 9, 9, np.nan, 9, 0, 0], 1),  # what was not measured is no checkpoint
        ([7, 7, 16, 16, 16, 7, 7], 2),  # beside the untrained value
    ],
)
def test_an_onset_is_the_first_of_three_checkpoints_in_a_row_on_one_side(values, place):
    assert onsets(curve(values, independent(7))).places == [place]


def test_p_values_and_bands_are_those_of_the_largest_of_independent_deviations():
    """Eight independent normal steps: P(max |z| ≥ m) = 1 − (1 − 2Φ(−m))⁸, m being the least of the best three."""
    found = onsets(curve([0, 0.1, 2.4, 2.2, 2.6, 0.3, -1.0, 0.0, 0.2], independent(9)))
    exact = 1 - (1 - 2 * norm.sf(2.2)) ** 8
    assert found.p_values[0] == pytest.approx(exact, abs=3 * np.sqrt(exact * (1 - exact) / 2000))
    assert found.q_values[0] == found.p_values[0]
    assert found.reaches[0] == pytest.approx(norm.isf((1 - 0.95 ** (1 / 8)) / 2), abs=0.12)


@pytest.mark.parametrize(("effective", "exact"), [(1e9, norm.isf(0.025)), (6.0, t.isf(0.025, 5))])
def test_steps_that_move_together_are_one_with_the_tails_of_as_many_words(effective, exact):
    """One direction moves all steps: the band is that of a single number."""
    found = onsets(curve(np.zeros(9), [[0, *np.ones(8)]], effective))
    assert found.reaches[0] == pytest.approx(exact, rel=0.08)


def test_a_curve_is_called_where_its_band_says_so_and_bands_go_with_the_number_of_curves():
    generator = np.random.default_rng(0)
    shifts = [0, 2, 3, 3.5, 4, 5] * 4
    found = onsets(*(curve(np.r_[0, generator.normal(shift, 1, 8)], independent(9)) for shift in shifts))
    called = [place is not None for place in found.places]
    assert called == (found.q_values <= 0.05).tolist()
    assert 5 < sum(called) < 20
    assert found.of_bands == pytest.approx(1 - 0.05 * sum(called) / 24)
    for number in range(24):
        low, high = found.band(number).T
        outside = np.where(low > 0, 1, np.where(high < 0, -1, 0))
        runs = [{*outside[k : k + 3].tolist()} for k in range(6)]
        assert called[number] == ({1} in runs or {-1} in runs)


def test_probabilities_of_order_add_up_and_are_even_between_equals():
    same = onsets(*2 * [curve(RISING, independent(9))])  # with the same draws
    assert same.order(0, 1).together == pytest.approx(1 - same.order(0, 1).neither)
    zero = 0 * independent(9)
    both = onsets(
        *(curve(RISING, np.vstack(own)) for own in ((independent(9), zero), (zero, independent(9))))
    )
    order = both.order(0, 1)
    assert sum(order) == pytest.approx(1)
    assert 0.05 < order.before == pytest.approx(order.after, abs=0.05)
    assert both.comes_first().sum() == pytest.approx(1)
    later = onsets(curve(RISING, independent(9)), curve([0, 0, 0, 0, 0, 0, 9, 9, 9], independent(9)))
    assert later.order(0, 1).before > 0.95
    assert later.order(1, 0).after == later.order(0, 1).before


def test_what_trainings_have_in_common_stays_and_what_they_have_not_is_added():
    """Two trainings with 3 and 5 in the end: their mean is 4, its error √(1/2 · ((3 − 4)² + (5 − 4)²)/1) = 1 and that
    of sources."""
    units = np.zeros((10, 2, 2))
    units[0, :, 1] = 0.5  # a word that moves both trainings alike
    both = Curve("a", np.array([[0.0, 3], [0, 5]]), units, np.full((2, 2), 21.0), "words")
    found = change(both, 0, [1])
    assert found.number.tolist() == [4]
    assert found.errors[0] ** 2 == pytest.approx(0.25 + 1.0)
    # Satterthwaite: 20 degrees of freedom of words, 1 of two trainings.
    assert found.degrees == pytest.approx(1.25**2 / (0.25**2 / 20 + 1.0**2 / 1))
    alone = change(both.of(0), 0, [1])
    assert (alone.number[0], alone.errors[0]) == (3, 0.5)


def test_what_does_not_move_at_all_has_no_doubt_and_no_onset():
    units = np.random.default_rng(0).normal(size=(12, 1)) * np.ones((1, 6))  # the same at every step
    still, rounded = np.full(6, 0.4), 1 + 1e-15 * np.random.default_rng(1).normal(size=6)
    for found in (onsets(curve(still, units)), onsets(curve(still * rounded, units * rounded))):
        assert (found.places, found.p_values.tolist()) == ([None], [1.0])
    assert onsets(curve([0.4, 0.4, 0.5, 0.5, 0.5, 0.5], units)).places == [2]
    one = Onsets([nothing("a", -1, "why"), nothing("b", -1, "why")], Draws(0))
    assert one.places == [None, None]
    assert np.isnan([*one.p_values, *one.comes_first(), *one.order(0, 1)]).all()


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


@pytest.fixture(scope="module")
def beside():
    """Of text and of what has no topics: all is at step 4 in both, and from step 32 on there is more in text."""

    def series(seed, more):
        generator, grown = np.random.default_rng(seed), from_step(4, 0.6) + from_step(32, more)
        heads = attention_sums(generator, np.stack([grown, 0 * grown]), n_sources=60, n_layers=1)
        words = word_sums(generator, 1.5 * grown, topics_of(4, 8))
        rows = [{"attention": row, "embeddings": word} for row, word in zip(heads, words, strict=True)]
        return series_report(STEPS, rows, measure=["attention", "embeddings"])

    return series(11, 1.0), series(12, 0.0)


def near(found, step):
    return abs(STEPS.index(found) - STEPS.index(step)) <= 1


def test_planted_onsets_are_found_and_others_are_not(planted):
    heads = planted.onsets("head").set_index("measured")["onset"]
    assert near(heads["L0H1"], 4)
    assert near(heads["L1H0"], 32)
    assert heads.drop(["L0H1", "L1H0"]).isna().all()
    assert near(planted.onsets()["onset"][0], 8)
    order = planted.order("head").set_index(["first", "second"])
    assert order.loc[("L0H1", "L1H0"), "before"] > 0.95
    assert order.loc[("L0H0", "L0H2"), "neither"] > 0.8
    bands = planted.bands("head").set_index(["measured", "step"])
    assert bands.loc[("L0H1", 64), "low"] > 0 > bands.loc[("L0H0", 64), "low"]
    for seed in range(2):
        noise = attention_sums(np.random.default_rng([1, seed]), np.zeros((12, 9)), n_sources=30, n_layers=2)
        report = series_report(STEPS, [{"attention": row} for row in noise], measure=["attention"])
        assert report.onsets("head")["onset"].isna().all()


def test_beyond_another_training_is_only_what_that_one_has_not(beside, tmp_path):
    text, without = beside
    for by, name in (("step", "embeddings"), ("head", "L0H0")):
        found = [one.onsets(by).set_index("measured")["onset"][name] for one in beside]
        assert all(near(onset, 4) for onset in found)
        assert near(text.onsets(by, beyond=without).set_index("measured")["onset"][name], 32)
    itself = text.onsets(beyond=text)
    assert itself["onset"].isna().all()
    assert (itself["p_value"] == 1).all()
    assert text.order("head")["before"][0] > 0.95  # which was asked before, and is not what is asked now
    assert text.order("head", beyond=text)["neither"][0] == 1
    # Trainings that do exactly the same differ in nothing: all of them have the doubt of one, and each is told beyond
    # its counterpart.
    twice = [series_report(STEPS, one.sums * 2, (3,) * 9 + (8,) * 9) for one in beside]
    for found, one in (
        (twice[0].onsets("head"), text.onsets("head")),
        (twice[0].onsets("head", beyond=twice[1]), text.onsets("head", beyond=without)),
    ):
        assert found["seed"].unique().tolist() == [3, 8, "all"]
        wanted = one["onset"].fillna(-1).tolist()
        assert all(part["onset"].fillna(-1).tolist() == wanted for _, part in found.groupby("seed"))
    assert tp.load_report(text.save(tmp_path / "series")) == text


def test_errors_are_those_of_leaving_out_sources_by_hand(beside):
    """The jackknife of value − untrained value of a head, in one training and beyond the other one."""
    every = np.arange(60)

    def effect(row, kept):
        part = row["attention"]
        sums, n = part["sums"][kept, 0].sum(0), part["counts"][kept, 0].sum(0)
        spread = np.sqrt(part["squares"][kept, 0].sum() / n[1:].sum() - (sums[1:].sum() / n[1:].sum()) ** 2)
        return (sums[1] / n[1] - sums[2] / n[2]) / spread

    def grown(kept, series):
        own, other = ([effect(one.sums[n], kept) for n in (0, -1)] for one in beside)
        return own[1] - own[0] - (other[1] - other[0] if series == 2 else 0)

    rows = [row for one in beside for row in one.sums]
    for n, own in ((1, lambda both: both), (2, difference)):
        grid = Grid([(number // 9, number % 9) for number in range(9 * n)], n, 9)
        found = change(own(curves_of(rows[: 9 * n], grid, "head", "effect_size")[0]), 0, [8])
        without = [grown(every[every != k], n) for k in every]
        assert found.number[0] == pytest.approx(grown(every, n))
        assert found.errors[0] == pytest.approx(np.sqrt(59 / 60 * ((without - np.mean(without)) ** 2).sum()))
    row = beside[0].difference(128, 0, "head").set_index("measured").loc["L0H0"]
    assert row["low"] < row["difference"] < row["high"]
    back = beside[0].difference(0, 128, "head").set_index("measured").loc["L0H0"]
    assert (back["low"], back["p_value"]) == pytest.approx((-row["high"], row["p_value"]))


def test_what_cannot_be_compared_is_refused(beside, planted):
    text, without = beside
    for other, error, said in (
        (3, TypeError, "takes the SeriesReport of another training, got 3"),
        (series_report(STEPS[:5], without.sums[:5]), ValueError, "beyond= has other steps"),
        (planted, ValueError, "beyond= has other options"),
    ):
        with pytest.raises(error, match=said):
            text.onsets(beyond=other)
    with pytest.raises(ValueError, match="there is no step 3; there are"):
        planted.difference(3, 0)


def test_what_is_undefined_says_why(planted):
    few, no_first = series_report(STEPS[:3], planted.sums[:3]), series_report(STEPS, ({}, *planted.sums[1:]))
    rows = attention_sums(np.random.default_rng(0), np.zeros((2, 5)), n_sources=7, n_layers=1)
    seven = series_report(STEPS[:5], [{"attention": row} for row in rows])
    for report, why in (
        (few, "2 checkpoints after step 0 measured, 3 are needed"),
        (no_first, "there is no untrained value: step 0 could not be measured"),
        (seven, "fewer than 8 sources have pairs of both kinds"),
    ):
        table = report.onsets()
        assert {*table["reason"]} == {why}
        assert table[["onset", "p_value", "q_value", "comes_first"]].isna().to_numpy().all()
    assert {*series_report(STEPS[1:], planted.sums[1:]).onsets()["against"]} == {1}
