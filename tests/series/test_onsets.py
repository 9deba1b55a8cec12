"""Onsets, their order and differences of curves that were planted or written by hand."""

from dataclasses import replace

import numpy as np
import pytest
from planted_series import attention_sums, series_report, states_of, topics_of, word_sums
from scipy.stats import norm

import topic_probe as tp
from topic_probe.series import measured
from topic_probe.series.onsets import Curve, Draws, Onsets, change, nothing

STEPS = (0, 1, 2, 4, 8, 16, 32, 64, 128)


def curve(values, units, *, name="a", effective=1e9, kind="words"):
    """A curve of one training, or several, with as much doubt as units say."""
    values, units = np.atleast_2d(np.asarray(values, float)), np.asarray(units, float)
    units = units[:, None] if units.ndim == 2 else units
    return Curve(name, values, units, np.full(values.shape, effective), kind)


def independent(n_steps, size=1.0, *, first=0):
    """Units of their own for every step but the first: its standard errors are all of this size."""
    units = np.zeros((first + n_steps, n_steps))
    units[first + np.arange(1, n_steps), np.arange(1, n_steps)] = size
    return units


def onsets(*curves):
    n = curves[0].values.shape[1]
    return Onsets([change(one, 0, range(1, n)) for one in curves], Draws(0))


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ([0, 0, 9, 9, 9, 0, 0], 2),
        ([0, 0, 9, 9, 0, 9, 9], None),  # never three in a row
        ([0, 0, 9, 9, -9, -9, 9], None),  # not on one side
        ([0, -9, -9, -9, -9, -9, -9], 1),
        ([0, 9, 9, 0, -9, -9, -9], 4),
        ([0, 9, 9, -9, -9, -9, -9], 3),
        ([0, 9, 9, np.nan, 9, 0, 0], 1),  # what was not measured is no checkpoint
        ([7, 7, 16, 16, 16, 7, 7], 2),  # beside the untrained value
    ],
)
def test_an_onset_is_the_first_of_three_checkpoints_in_a_row_on_one_side(values, place):
    assert onsets(curve(values, independent(7))).places == [place]


def test_a_p_value_is_the_chance_of_the_largest_of_independent_deviations():
    """Eight independent normal steps: P(max |z| ≥ m) = 1 − (1 − 2Φ(−m))⁸, m being the least of the best three."""
    values = [0, 0.1, 2.4, 2.2, 2.6, 0.3, -1.0, 0.0, 0.2]
    found = onsets(curve(values, independent(9)))
    exact = 1 - (1 - 2 * norm.sf(2.2)) ** 8
    assert found.p_values[0] == pytest.approx(exact, abs=3 * np.sqrt(exact * (1 - exact) / 2000))
    assert found.q_values[0] == found.p_values[0]
    assert found.reaches[0] == pytest.approx(norm.isf((1 - 0.95 ** (1 / 8)) / 2), abs=0.12)


def test_steps_that_move_together_are_one_and_not_eight():
    """One direction moves all steps: the band is that of a single number."""
    units = np.ones((1, 9))
    units[0, 0] = 0
    found = onsets(curve(np.zeros(9), units))
    assert found.reaches[0] == pytest.approx(norm.isf(0.025), abs=0.12)


def test_a_curve_is_called_where_its_band_says_so_and_bands_go_with_the_number_of_curves():
    generator = np.random.default_rng(0)
    curves = [
        curve(np.r_[0, generator.normal(shift, 1, 8)], independent(9)) for shift in [0, 2, 3, 3.5, 4, 5] * 4
    ]
    found = onsets(*curves)
    called = [place is not None for place in found.places]
    assert called == (found.q_values <= 0.05).tolist()
    assert 5 < sum(called) < 20
    assert found.of_bands == pytest.approx(1 - 0.05 * sum(called) / 24)
    for number, one in enumerate(found.changes):
        low, high = found.band(number).T
        outside = np.where(low > 0, 1, np.where(high < 0, -1, 0))
        runs = [set(outside[k : k + 3].tolist()) for k in range(len(outside) - 2)]
        assert called[number] == any(run in ({1}, {-1}) for run in runs)
        assert one.number.tolist() == curves[number].values[0, 1:].tolist()


def test_probabilities_of_order_add_up_and_are_even_between_equals():
    rising = [0, 0, 1, 3.2, 5, 9, 9, 9, 9]
    same = onsets(curve(rising, independent(9)), curve(rising, independent(9)))  # with the same draws
    assert same.order(0, 1)[1] == pytest.approx(1 - same.order(0, 1).neither)
    other = np.vstack([0 * independent(9), independent(9)])
    both = onsets(curve(rising, np.vstack([independent(9), 0 * independent(9)])), curve(rising, other))
    order = both.order(0, 1)
    assert sum(order) == pytest.approx(1)
    assert order.before == pytest.approx(order.after, abs=0.05)
    assert order.before > 0.05
    assert both.comes_first().sum() == pytest.approx(1)
    later = onsets(curve(rising, independent(9)), curve([0, 0, 0, 0, 0, 0, 9, 9, 9], independent(9)))
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
    still = onsets(curve(np.full(6, 0.4), units))
    assert still.places == [None]
    assert still.p_values.tolist() == [1.0]
    rounded = 1 + 1e-15 * np.random.default_rng(1).normal(size=6)
    assert onsets(curve(np.full(6, 0.4) * rounded, units * rounded)).places == [None]
    sure = onsets(curve([0.4, 0.4, 0.5, 0.5, 0.5, 0.5], units))
    assert sure.places == [2]


# --- reports ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planted():
    """Heads 1 and 3 of six begin at steps 4 and 32, words at step 8, in 60 sources; and the places of these."""
    generator = np.random.default_rng(5)
    effects = np.zeros((6, len(STEPS)))
    effects[1, 3:], effects[3, 6:] = 0.8, 0.8
    heads = attention_sums(generator, effects, n_sources=60, n_layers=2)
    words = word_sums(generator, np.where(np.arange(len(STEPS)) >= 4, 1.5, 0.0), topics_of(4, 8))
    sums = [
        {"attention": row, "states": states_of(row, 2), "embeddings": word}
        for row, word in zip(heads, words, strict=True)
    ]
    return series_report(STEPS, sums)


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
    layers = planted.onsets("layer").set_index("measured")["onset"]
    assert list(layers.index) == [
        *(f"states of layer {n}" for n in (0, 1)),
        *(f"attention of layer {n}" for n in (0, 1)),
    ]
    bands = planted.bands("head").set_index(["measured", "step"])
    assert bands.loc[("L0H1", 64), "low"] > 0 > bands.loc[("L0H0", 64), "low"]


def test_noise_has_no_onsets():
    for seed in range(10):
        generator = np.random.default_rng([1, seed])
        heads = attention_sums(generator, np.zeros((12, len(STEPS))), n_sources=30, n_layers=2)
        report = series_report(STEPS, [{"attention": row} for row in heads], measure=["attention"])
        assert report.onsets("head")["onset"].isna().all()


@pytest.fixture(scope="module")
def beside():
    """Of text and of what has no topics: all is at step 4 in both, and from step 32 on there is more in text."""

    def series(seed, more):
        generator = np.random.default_rng(seed)
        grown = np.where(np.arange(len(STEPS)) >= 3, 0.6, 0) + np.where(np.arange(len(STEPS)) >= 6, more, 0)
        heads = attention_sums(generator, np.stack([grown, 0 * grown]), n_sources=60, n_layers=1)
        words = word_sums(generator, 1.5 * grown, topics_of(4, 8))
        return series_report(
            STEPS, [{"attention": row, "embeddings": word} for row, word in zip(heads, words, strict=True)],
            measure=["attention", "embeddings"],
        )  # fmt: skip

    return series(11, 1.0), series(12, 0.0)


def test_beyond_another_training_is_only_what_that_one_has_not(beside):
    text, without = beside
    for by, name in (("step", "embeddings"), ("head", "L0H0")):
        assert near(text.onsets(by).set_index("measured")["onset"][name], 4)
        assert near(without.onsets(by).set_index("measured")["onset"][name], 4)
        assert near(text.onsets(by, beyond=without).set_index("measured")["onset"][name], 32)
    assert text.onsets("head", beyond=without).set_index("measured")["onset"].isna()["L0H1"]
    itself = text.onsets(beyond=text)
    assert itself["onset"].isna().all()
    assert (itself["p_value"] == 1).all()
    assert text.order("head")["before"][0] > 0.95  # which was asked before, and is not what is asked now
    assert text.order("head", beyond=text)["neither"][0] == 1
    bands = text.bands("head", beyond=without).set_index(["measured", "step"])
    assert bands.loc[("L0H0", 64), "low"] > 0 > bands.loc[("L0H0", 8), "low"]


def test_leaving_out_sources_of_both_by_hand_gives_the_errors_of_what_is_beyond(beside):
    """The jackknife of a head's change in one training − in the other, source by source."""

    def effect(row, kept):
        part = row["attention"]
        sums, n = part["sums"][kept, 0].sum(0), part["counts"][kept, 0].sum(0)
        spread = np.sqrt(part["squares"][kept, 0].sum() / n[1:].sum() - (sums[1:].sum() / n[1:].sum()) ** 2)
        return (sums[1] / n[1] - sums[2] / n[2]) / spread

    def more(kept):
        own, other = (effect(one.sums[-1], kept) - effect(one.sums[0], kept) for one in beside)
        return own - other

    every = np.arange(60)
    without = [more(every[every != k]) for k in every]
    row = beside[0].bands("head", beyond=beside[1]).set_index(["measured", "step"]).loc[("L0H0", 128)]
    onsets = beside[0]._onsets("head", "effect_size", 0.95, 0, beside[1])[0]
    assert row["change"] == pytest.approx(more(every))
    error = np.sqrt(59 / 60 * ((without - np.mean(without)) ** 2).sum())
    assert onsets.changes[0].errors[-1] == pytest.approx(error)
    assert row["high"] - row["change"] == pytest.approx(onsets.reaches[0] * error)


def test_of_several_trainings_each_is_told_beyond_its_counterpart(beside):
    text, without = (series_report(STEPS, one.sums * 2, (3,) * 9 + (8,) * 9) for one in beside)
    found = text.onsets("head", beyond=without)
    assert found["seed"].unique().tolist() == [3, 8, "all"]
    one = beside[0].onsets("head", beyond=beside[1])["onset"].fillna(-1).tolist()
    assert all(part["onset"].fillna(-1).tolist() == one for _, part in found.groupby("seed"))


def test_what_cannot_be_compared_is_refused(beside, planted):
    text, without = beside
    with pytest.raises(TypeError, match="takes the SeriesReport of another training, got 3"):
        text.onsets(beyond=3)
    with pytest.raises(ValueError, match="beyond= has other steps"):
        text.onsets(beyond=series_report(STEPS[:5], without.sums[:5]))
    with pytest.raises(ValueError, match="beyond= has other seeds"):
        text.onsets(beyond=series_report(STEPS, without.sums, (1,) * 9))
    with pytest.raises(ValueError, match="beyond= has other options"):
        text.onsets(beyond=planted)


def test_leaving_out_sources_by_hand_gives_the_errors_of_a_change(planted):
    """The jackknife of value − untrained value of a head, source by source."""

    def effect(row, kept):
        part = row["attention"]
        sums, counts = part["sums"][kept, 1].sum(0), part["counts"][kept, 0].sum(0)
        means, n = sums / counts, counts[1:].sum()
        spread = np.sqrt(part["squares"][kept, 1].sum() / n - (sums[1:].sum() / n) ** 2)
        return (means[1] - means[2]) / spread

    first, last = planted.sums[0], planted.sums[-1]
    every = np.arange(60)
    whole = effect(last, every) - effect(first, every)
    without = [effect(last, every[every != k]) - effect(first, every[every != k]) for k in every]
    error = np.sqrt(59 / 60 * ((without - np.mean(without)) ** 2).sum())
    (found,) = [
        one for one in planted._onsets("head", "effect_size", 0.95, 0)[0].changes if one.name == "L0H1"
    ]
    assert found.number[-1] == pytest.approx(whole)
    assert found.errors[-1] == pytest.approx(error)
    row = planted.difference(128, 0, "head").set_index("measured").loc["L0H1"]
    assert row["difference"] == pytest.approx(whole)
    assert row["low"] < whole < row["high"]
    assert planted.difference(0, 128, "head").set_index("measured").loc["L0H1", "low"] == pytest.approx(
        -row["high"]
    )


def test_what_is_undefined_says_why(planted):
    def reasons(report, by="step"):
        return dict(zip(*(report.onsets(by)[column] for column in ("measured", "reason")), strict=True))

    few = series_report(STEPS[:3], planted.sums[:3])
    assert set(reasons(few).values()) == {"2 checkpoints after step 0 measured, 3 are needed"}
    no_first = series_report(STEPS, ({}, *planted.sums[1:]))
    assert set(reasons(no_first).values()) == {"there is no untrained value: step 0 could not be measured"}
    late = series_report(STEPS[1:], planted.sums[1:])
    assert set(late.onsets()["against"]) == {1}
    assert "onsets are against step 1, the first checkpoint" in str(replace(late, reports=({},) * 8))
    generator = np.random.default_rng(0)
    rows = attention_sums(generator, np.zeros((2, 5)), n_sources=7, n_layers=1)
    seven = series_report(STEPS[:5], [{"attention": row} for row in rows])
    assert reasons(seven) == {"attention": "fewer than 8 sources have pairs of both kinds"}
    for table in (few.onsets(), no_first.onsets(), seven.onsets()):
        assert table[["onset", "p_value", "q_value", "comes_first"]].isna().to_numpy().all()
    assert seven.order("head")["before"].isna().all()
    with pytest.raises(ValueError, match="there is no step 3; there are"):
        planted.difference(3, 0)


def test_a_series_comes_back_from_disk(planted, tmp_path):
    assert tp.load_report(planted.save(tmp_path / "series")) == planted


def test_several_trainings_have_rows_of_their_own_and_one_of_all(planted):
    """Three trainings that do exactly the same differ in nothing: all of them have the doubt of one."""
    three = series_report(STEPS, planted.sums * 3, tuple(seed for seed in (4, 5, 6) for _ in STEPS))
    table = three.onsets("head")
    assert table["seed"].unique().tolist() == [4, 5, 6, "all"]
    one = planted.onsets("head")["onset"].tolist()
    assert all(
        part["onset"].fillna(-1).tolist() == np.nan_to_num(one, nan=-1).tolist()
        for _, part in table.groupby("seed")
    )
    assert list(three.trainings) == [4, 5, 6]
    assert three.trainings[5] == replace(planted, between=three.trainings[5].between)


def test_nothing_is_told_of_what_was_not_measured():
    one = Onsets([nothing("a", -1, "why"), nothing("b", -1, "why")], Draws(0))
    assert one.places == [None, None]
    assert np.isnan([*one.p_values, *one.comes_first(), *one.order(0, 1)]).all()


def test_curves_are_judged_at_the_confidence_that_is_asked_for(planted, monkeypatch):
    """Whether the mean below a ratio's line may be 0 depends on it."""
    asked, own = [], measured.curves_of
    monkeypatch.setattr(
        measured,
        "curves_of",
        lambda *given, **options: (asked.append(options["confidence"]), own(*given, **options))[1],
    )
    report = replace(planted)
    for confidence in (0.95, 0.5, 0.95):
        report.onsets(confidence=confidence)
    assert asked == [0.95, 0.5]
