"""The stages of a training, found on planted curves whose stages are known, and on histories made of them."""

import numpy as np
import pytest
import torch

from topic_probe.report import load_report
from topic_probe.toy import theory
from topic_probe.toy.masking import Masking
from topic_probe.toy.model import ToyConfig, build_toy
from topic_probe.toy.world import World
from topic_probe.train.history import History, TrainConfig
from topic_probe.train.loop import train_toy
from topic_probe.train.stages import (
    NO_PATTERN,
    DynamicsReport,
    find_stages,
    gradient_ratios,
    measure_dynamics,
)

STEPS = np.arange(1001)


def saturating(t=STEPS, *, start=1.0, end=4.0, scale=20.0):
    """Leaves its start at once and levels off."""
    return end - (end - start) * np.exp(-t / scale)


def late(t=STEPS, *, start=1.0, first=350, slope=0.01):
    """Stays at its start, then grows steadily."""
    return start + slope * np.clip(t - first, 0, None).astype(float)


def planted(**changes):
    curves = {"value": saturating(), "key": late(), "query": late(first=400), **changes}
    return find_stages(changes.pop("steps", STEPS), **{k: v for k, v in curves.items() if k != "steps"})


def history(curves, *, steps=STEPS, n_layers=1, rotation=None):
    """A history with the given norms by name."""
    columns = ["loss", "penalty", *(f"norm_{name}" for name in curves)]
    table = [np.zeros(len(steps)), np.zeros(len(steps)), *curves.values()]
    for name in curves:
        if name.startswith("W_V") and rotation is not None:
            columns.append(f"rotation_{name}")
            table.append(rotation)
    return History(
        toy=ToyConfig(regime="two-stage", n_layers=n_layers),
        train=TrainConfig(steps=int(steps[-1])),
        steps=torch.from_numpy(steps.copy()),
        table=torch.from_numpy(np.stack(table, axis=1)),
        columns=tuple(columns),
        measured={},
        tensors={},
        last_step=int(steps[-1]),
    )


def two_stages():
    return {"W_V": saturating(), "W_K": late(), "W_Q": late(first=400)}


# -------------------------------------------------------------------- the rule, worked by hand


def test_the_steps_of_planted_stages_are_those_worked_out_by_hand():
    found = planted(smooth=1)
    # 4 - 3 exp(-t/20) > 1.2 from t = 20 ln(3/2.8) = 1.4 on; the last norm, 4, is within 25 % of it from 3.2 on, that
    # is t = 20 ln(3/0.8) = 26.4; 1 + 0.01 (t - 350) > 1.2 from 371 on.
    assert (found.value_start, found.value_flat) == (2, 27)
    assert (found.key_start, found.query_start) == (371, 421)
    assert found.attention_start == 371
    assert found.reason is None


def test_the_thresholds_are_arguments():
    found = planted(smooth=1, started=0.5, flat=0.5)
    # 20 ln(3/2.5) = 3.6 and 20 ln(3/(4 - 4/1.5)) = 16.2; 0.5 above 1 at 350 + 50.
    assert (found.value_start, found.value_flat, found.key_start) == (4, 17, 401)


def test_the_size_of_a_curve_does_not_matter():
    plain = planted()
    scaled = planted(value=1e3 * saturating(), key=1e-3 * late(), query=7 * late(first=400))
    assert scaled == plain


def test_steps_between_rows_are_counted_not_rows():
    sparse = slice(None, None, 10)
    found = find_stages(
        STEPS[sparse], value=saturating()[sparse], key=late()[sparse], query=late()[sparse], smooth=1
    )
    assert (found.value_start, found.value_flat, found.key_start) == (10, 30, 380)


def test_growing_on_after_the_start_does_not_move_it():
    longer = np.arange(3001)
    found = find_stages(longer, value=saturating(longer), key=late(longer), query=late(longer), smooth=1)
    assert (found.value_start, found.value_flat, found.key_start) == (2, 27, 371)


@pytest.mark.parametrize("seed", range(5))
def test_noise_below_the_thresholds_hardly_moves_the_stages(seed):
    generator = np.random.default_rng(seed)
    noisy = {
        name: curve * (1 + 0.04 * generator.standard_normal(len(curve)))
        for name, curve in (("value", saturating()), ("key", late()), ("query", late(first=400)))
    }
    found = planted(**noisy)
    assert found.reason is None
    assert found.value_flat == pytest.approx(27, abs=12)
    # Where a curve crosses its threshold at a slope of 0.01 per step, noise of 4 % is 5 steps wide.
    assert found.key_start == pytest.approx(371, abs=15)
    assert found.query_start == pytest.approx(421, abs=15)


def test_single_outliers_are_ignored():
    spiked = {"value": saturating(), "key": late(), "query": late(first=400)}
    for curve in spiked.values():
        curve[[60, 200, 700]] = [30.0, 0.01, 30.0]
    assert planted(**spiked) == planted()


# -------------------------------------------------------------------- curves without two stages


def test_tensors_that_grow_together_are_one_stage():
    found = planted(key=saturating(scale=30), query=saturating(scale=25))
    assert found.key_start < found.value_flat
    assert "before W_V is flat" in found.reason


def test_keys_that_grow_before_values_are_no_two_stages():
    found = planted(value=late(first=600, slope=0.1), key=saturating(), query=saturating())
    assert found.reason is not None
    assert found.attention_start < found.value_start


def test_nothing_moves_in_noise_around_a_constant():
    generator = np.random.default_rng(0)
    flat = {name: 1 + 0.05 * generator.standard_normal(1001) for name in ("value", "key", "query")}
    found = planted(**flat)
    assert np.isnan([found.value_start, found.value_flat, found.key_start, found.query_start]).all()
    assert np.isnan(found.attention_start)
    assert found.reason == "W_V never starts to grow"


def test_tensors_of_zeros_never_start():
    zero = np.zeros(1001)
    found = planted(key=zero, query=zero)
    assert np.isnan(found.key_start)
    assert found.reason == "W_K and W_Q never start to grow, and W_V is flat from step 27"


def test_a_tensor_that_starts_at_zero_starts_when_it_can_be_seen():
    found = planted(key=np.clip(STEPS - 100.0, 0, None), smooth=1)
    assert found.key_start == 146  # the first above 5 % of 900, the norm at the end


def test_values_that_grow_on_are_not_flat_even_if_keys_start_late():
    found = planted(value=1 + 0.02 * STEPS)
    assert np.isnan(found.value_flat)
    assert "not flat within the record, and goes on while W_K and W_Q grow from step 371" in found.reason


@pytest.mark.parametrize("last", [450, 600, 1000])
def test_steady_growth_is_never_flat_wherever_the_record_ends(last):
    steps = np.arange(last + 1)
    found = find_stages(steps, value=1 + 0.02 * steps, key=late(steps), query=late(steps))
    assert np.isnan(found.value_flat)


def test_a_record_that_ends_too_early_cannot_tell():
    steps = np.arange(31)
    found = find_stages(steps, value=saturating(steps), key=late(steps), query=late(steps))
    assert np.isnan(found.value_flat)
    assert "W_V is not flat within the record" in found.reason


def test_values_that_collapse_are_not_flat():
    falling = np.where(STEPS < 600, saturating(), 2.0)
    found = planted(value=falling)
    assert found.value_start == 2
    assert np.isnan(found.value_flat)


def test_values_are_not_flat_before_they_start():
    found = planted(value=saturating(end=1.23), smooth=1)
    # All of it is within 25 %; 1.23 - 0.23 exp(-t/20) > 1.2 from 20 ln(0.23/0.03) = 40.7 on.
    assert (found.value_start, found.value_flat) == (41, 41)


def test_one_of_keys_and_queries_is_not_enough():
    found = planted(query=np.ones(1001))
    assert found.reason == "W_Q never starts to grow, and W_V is flat from step 27"
    assert found.attention_start == found.key_start


def test_a_curve_that_falls_back_has_not_started():
    bump = 1 + np.exp(-(((STEPS - 500) / 50.0) ** 2))
    assert np.isnan(planted(key=bump).key_start)


def test_keys_that_decay_first_start_from_their_lowest_norm():
    dipping = np.where(STEPS < 300, 1 - 0.002 * STEPS, 0.4 + 0.03 * (STEPS - 300))
    found = planted(key=dipping, smooth=1)
    assert found.key_start == 303  # 0.4 + 0.03 (t - 300) > 0.48


# -------------------------------------------------------------------- reports


def test_a_report_says_two_stages_and_how_far_things_went():
    rotation = np.where(STEPS < 371, 0.3, 0.02)
    rotation[:10] = np.nan
    curves = two_stages() | {"W_V": np.where(STEPS < 600, saturating(), 4.4)}
    report = measure_dynamics(history(curves, rotation=rotation), smooth=1)
    assert report.pattern == "two stages"
    assert report.two_stage.tolist() == [True]
    assert report.value_growth[0] == pytest.approx(4.0, rel=1e-6)
    assert report.late_value_growth[0] == pytest.approx(1.1, rel=1e-6)
    assert report.attention_change[0] == 0
    assert report.late_rotation[0] == pytest.approx(0.02)
    assert "two stages" in repr(report)


def test_a_report_says_that_there_is_no_pattern_and_why():
    report = measure_dynamics(history({"W_V": late(), "W_K": np.ones(1001), "W_Q": np.ones(1001)}))
    assert report.pattern == NO_PATTERN == "no two-stage pattern"
    assert "(no two-stage pattern)" in repr(report)
    assert "never start to grow" in repr(report)
    assert np.isnan(report.late_value_growth[0])
    assert np.isnan(report.late_rotation[0])


def test_every_layer_is_judged_by_itself():
    curves = {f"{name}.0": curve for name, curve in two_stages().items()}
    curves |= {f"{name}.1": np.ones(1001) for name in two_stages()}
    report = measure_dynamics(history(curves, n_layers=2))
    assert report.layer == (0, 1)
    assert report.two_stage.tolist() == [True, False]
    assert report.pattern == "two stages in 1 of 2 layers: 0"
    assert report.reasons[0] is None
    assert "layer 1: W_V never starts to grow" in repr(report)
    assert report.to_dataframe()["two_stage"].tolist() == [True, False]


def test_the_rows_to_look_at_can_be_limited():
    later = {"W_V": np.where(STEPS < 600, saturating(), 40.0), "W_K": late(), "W_Q": late()}
    assert measure_dynamics(history(later)).pattern == NO_PATTERN
    assert measure_dynamics(history(later), until=590).pattern == "two stages"


def test_a_report_comes_back_from_disk(tmp_path):
    report = measure_dynamics(history(two_stages()))
    report.save(tmp_path / "report")
    loaded = load_report(tmp_path / "report")
    assert isinstance(loaded, DynamicsReport)
    assert loaded == report


def test_a_share_of_the_largest_norm_can_be_asked_for_where_training_starts_next_to_zero():
    tiny = {"value": late(start=1e-6, first=0), "key": late(start=1e-6, first=200)}
    plain = planted(smooth=1, query=tiny["key"], **tiny)
    # 20 % more than 1e-6 is passed with the first step of 0.01.
    assert (plain.value_start, plain.key_start) == (1, 201)
    found = planted(smooth=1, query=tiny["key"], least=0.05, **tiny)
    # 5 % of 10 is reached after 50 steps (the 1e-6 makes it more), 5 % of 8 at 200 + 40.
    assert (found.value_start, found.key_start) == (50, 240)
    # Where 20 % is more than the share, nothing changes.
    assert planted(least=0.05) == planted()


def test_layers_have_stages_of_their_own_with_and_without_the_share():
    names = ("W_V", "W_K", "W_Q")
    curves = {f"{name}.{i}": late(start=1e-6, first=100 * i) for i in range(4) for name in names}
    report = measure_dynamics(history(curves, n_layers=4), least=0.05, smooth=1)
    # 5 % of what is reached at step 1000: 50, 45, 40 and 35 steps after the start.
    assert report.value_start.tolist() == [50, 145, 240, 335]
    assert report.key_start.tolist() == report.query_start.tolist() == report.value_start.tolist()
    assert report.pattern == NO_PATTERN


def test_too_few_rows_and_bad_thresholds_are_refused():
    few = np.arange(9)
    with pytest.raises(ValueError, match="at least 10 recorded rows"):
        find_stages(few, value=saturating(few), key=late(few), query=late(few))
    with pytest.raises(ValueError, match="must be positive"):
        planted(flat=0.0)
    with pytest.raises(ValueError, match="smooth"):
        planted(smooth=0)
    with pytest.raises(ValueError, match="least"):
        planted(least=1.0)


def test_a_median_over_more_rows_than_there_are_is_refused():
    with pytest.raises(ValueError, match=f"smooth is a number of rows and must be at most {len(STEPS)}"):
        planted(smooth=len(STEPS) + 1)


# Gradients at the beginning


def first_ratios(noise=0.01, *, seed=0, loss="squared", **options):
    world = World(n_topics=3, words_per_topic=4, topics_per_document=2, min_length=20, max_length=30)
    config = ToyConfig(regime="two-stage", world=world, noise=noise, dtype="float64", **options)
    settings = TrainConfig(loss, steps=0, record_gradients=True, seed=seed)
    return gradient_ratios(train_toy(build_toy(config, seed=seed), settings))


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_half_the_noise_gives_a_quarter_of_the_gradients_of_keys_and_queries(loss):
    whole, half = (first_ratios(noise, loss=loss) for noise in (0.01, 0.005))
    assert whole["predicted"] / half["predicted"] == pytest.approx(4.0, rel=1e-4)
    for name in ("W_K", "W_Q"):
        slope = np.log(whole[name] / half[name]) / np.log(2)
        assert slope == pytest.approx(2.0, abs=0.01)


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
@pytest.mark.parametrize(
    ("options", "noise"),
    [({}, 0.01), ({"d_attention": 2}, 0.01), ({"init": "usual"}, 1 / np.sqrt(3 * 13))],
)
def test_gradients_are_as_large_as_predicted_on_average_over_noise(options, noise, loss):
    found = [first_ratios(seed=seed, loss=loss, **options) for seed in range(40)]
    assert found[0]["noise"] == pytest.approx(noise)
    for name in ("W_K", "W_Q"):
        assert np.mean([(one[name] / one["predicted"]) ** 2 for one in found]) == pytest.approx(1.0, abs=0.25)


def test_the_prediction_is_for_the_very_documents_of_the_first_step():
    world, masking = World(n_topics=3, words_per_topic=4, min_length=20, max_length=30), Masking(0.01)
    config = ToyConfig(regime="two-stage", world=world, masking=masking, noise=0.1)
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        documents = world.documents(6, generator=generator)
        while True:
            rows = torch.randperm(6, generator=generator)[:2]
            batch = masking.corrupt(documents.select(rows), n_words=world.n_words, generator=generator)
            if batch.chosen.any():
                break
        expected = theory.initial_gradients(world, batch, loss="squared").ratio(0.1)
        settings = TrainConfig(
            "squared", n_documents=6, batch_size=2, seed=seed, steps=2, record_gradients=True
        )
        found = gradient_ratios(train_toy(build_toy(config), settings))
        assert found["predicted"] == pytest.approx(expected, rel=1e-12)


def test_gradients_that_no_prediction_is_for_are_refused():
    with pytest.raises(ValueError, match=r"got regime 'attention' with other settings; use .*two-stage"):
        gradient_ratios(
            train_toy(build_toy(ToyConfig("attention")), TrainConfig(steps=0, record_gradients=True))
        )
    with pytest.raises(ValueError, match="no gradients were recorded"):
        gradient_ratios(train_toy(build_toy(ToyConfig("two-stage")), TrainConfig(steps=0)))
