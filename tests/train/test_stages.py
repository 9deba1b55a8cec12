"""The stages of a training, found on planted curves whose stages are known, and on histories made of them."""

import numpy as np
import pytest
import torch
from plain_toy import plain_batches

from topic_probe.report import load_report
from topic_probe.toy import theory
from topic_probe.toy.masking import Masking
from topic_probe.toy.model import ToyConfig, build_toy
from topic_probe.toy.world import World
from topic_probe.train.history import History, TrainConfig
from topic_probe.train.stages import NO_PATTERN, find_stages, gradient_ratios, measure_dynamics
from topic_probe.train.toy import train_toy

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


def test_starts_are_found_from_zero_from_the_lowest_norm_and_with_other_thresholds():
    assert (
        planted(key=np.clip(STEPS - 100.0, 0, None), smooth=1).key_start == 146
    )  # above 5 % of 900, the last norm
    dipping = np.where(STEPS < 300, 1 - 0.002 * STEPS, 0.4 + 0.03 * (STEPS - 300))
    assert planted(key=dipping, smooth=1).key_start == 303  # 0.4 + 0.03 (t - 300) > 0.48
    found = planted(value=saturating(end=1.23), smooth=1)
    # All of it is within 25 %; 1.23 - 0.23 exp(-t/20) > 1.2 from 20 ln(0.23/0.03) = 40.7 on.
    assert (found.value_start, found.value_flat) == (41, 41)
    found = planted(smooth=1, started=0.5, flat=0.5)
    # 20 ln(3/2.5) = 3.6 and 20 ln(3/(4 - 4/1.5)) = 16.2; 0.5 above 1 at 350 + 50.
    assert (found.value_start, found.value_flat, found.key_start) == (4, 17, 401)


def test_scale_rows_between_steps_single_outliers_and_what_comes_later_do_not_matter():
    plain, longer, sparse = planted(smooth=1), np.arange(3001), STEPS[::10]
    assert planted(smooth=1, value=1e3 * saturating(), key=1e-3 * late(), query=7 * late(first=400)) == plain
    found = find_stages(longer, value=saturating(longer), key=late(longer), query=late(longer), smooth=1)
    assert (found.value_start, found.value_flat, found.key_start) == (2, 27, 371)
    found = find_stages(sparse, value=saturating(sparse), key=late(sparse), query=late(sparse), smooth=1)
    assert (found.value_start, found.value_flat, found.key_start) == (10, 30, 380)
    spiked = {"value": saturating(), "key": late(), "query": late(first=400)}
    for curve in spiked.values():
        curve[[60, 200, 700]] = [30.0, 0.01, 30.0]
    assert planted(**spiked) == planted()
    for rows, start in (([500], 371), ([500, 501], 502)):  # a median of three rows hides one, and not two
        dip = late()
        dip[rows] = 0.01
        assert planted(smooth=3, key=dip).key_start == start


def test_noise_below_the_thresholds_hardly_moves_the_stages_and_alone_has_none():
    for seed in range(3):
        noise = 1 + 0.04 * np.random.default_rng(seed).standard_normal((3, 1001))
        curves = (saturating(), late(), late(first=400))
        found = planted(**dict(zip(("value", "key", "query"), noise * curves, strict=True)))
        assert found.reason is None
        assert found.value_flat == pytest.approx(27, abs=12)
        # Where a curve crosses its threshold at a slope of 0.01 per step, noise of 4 % is 5 steps wide.
        assert (found.key_start, found.query_start) == pytest.approx((371, 421), abs=15)
        found = planted(value=noise[0], key=noise[1], query=noise[2])
        assert np.isnan([found.value_start, found.value_flat, found.attention_start]).all()
        assert found.reason == "W_V never starts to grow"


BUMP, SHORT = 1 + np.exp(-(((STEPS - 500) / 50.0) ** 2)), np.arange(31)


@pytest.mark.parametrize(
    ("curves", "flat", "reason"),
    [
        ({"key": saturating(scale=30), "query": saturating(scale=25)}, 27, "before W_V is flat"),
        (
            {"value": late(first=600, slope=0.1), "key": saturating()},
            None,
            "not flat within the record, and goes on",
        ),
        (
            {"key": 0 * STEPS, "query": 0.0 * STEPS},
            27,
            "W_K and W_Q never start to grow, and W_V is flat from step 27",
        ),
        ({"query": np.ones(1001)}, 27, "W_Q never starts to grow, and W_V is flat from step 27"),
        ({"key": BUMP}, 27, "W_K never starts to grow, and W_V is flat"),  # it falls back
        ({"value": 1 + 0.02 * STEPS}, None, "and goes on while W_K and W_Q grow from step 371"),
        ({"value": np.where(STEPS < 600, saturating(), 2.0)}, None, "not flat within the record"),
        (
            {"steps": SHORT, "value": saturating(SHORT), "key": late(SHORT), "query": late(SHORT)},
            None,
            "not flat within",
        ),
    ],
)
def test_curves_without_two_stages_are_told_why(curves, flat, reason):
    found = planted(
        **{name: curve.astype(curve.dtype if name == "steps" else float) for name, curve in curves.items()}
    )
    assert reason in found.reason
    assert found.value_flat == pytest.approx(np.nan if flat is None else flat, abs=4, nan_ok=True)


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
    assert (
        measure_dynamics(history(curves | {"W_V": np.where(STEPS < 600, saturating(), 40.0)})).pattern
        == NO_PATTERN
    )
    later = measure_dynamics(history(curves | {"W_V": np.where(STEPS < 600, saturating(), 40.0)}), until=590)
    assert later.pattern == "two stages"


def test_every_layer_is_judged_by_itself_also_from_disk(tmp_path):
    curves = {f"{name}.0": curve for name, curve in two_stages().items()}
    curves |= {f"{name}.1": np.ones(1001) for name in two_stages()}
    report = measure_dynamics(history(curves, n_layers=2))
    assert report.layer == (0, 1)
    assert report.to_dataframe()["two_stage"].tolist() == [True, False]
    assert report.pattern == "two stages in 1 of 2 layers: 0"
    assert "layer 1: W_V never starts to grow" in repr(report)
    assert np.isnan([report.late_value_growth[1], report.late_rotation[1]]).all()
    report.save(tmp_path / "report")
    assert load_report(tmp_path / "report") == report
    nothing = measure_dynamics(history({name: np.ones(1001) for name in two_stages()}))
    assert nothing.pattern == NO_PATTERN == "no two-stage pattern"


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"flat": 0.0}, "must be positive"),
        ({"smooth": 0}, "smooth"),
        ({"least": 1.0}, "least"),
        ({"smooth": 1002}, "smooth is a number of rows and must be at most 1001"),
        (
            {"steps": STEPS[:9], "value": late()[:9], "key": late()[:9], "query": late()[:9]},
            "at least 10 recorded rows",
        ),
    ],
)
def test_too_few_rows_and_bad_thresholds_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        planted(**settings)


# Gradients at the beginning


def first_ratios(noise=0.01, *, seed=0, loss="squared", **options):
    world = World(n_topics=3, words_per_topic=4, topics_per_document=2, min_length=20, max_length=30)
    config = ToyConfig(regime="two-stage", world=world, noise=noise, dtype="float64", **options)
    settings = TrainConfig(loss, steps=0, record_gradients=True, seed=seed)
    return gradient_ratios(train_toy(build_toy(config, seed=seed), settings))


def test_the_prediction_is_for_the_very_documents_of_the_first_step():
    world, masking = World(n_topics=3, words_per_topic=4, min_length=20, max_length=30), Masking(0.01)
    config = ToyConfig(regime="two-stage", world=world, masking=masking, noise=0.1)
    for seed in range(3):
        settings = TrainConfig(
            "squared", n_documents=6, batch_size=2, seed=seed, steps=2, record_gradients=True
        )
        batch = next(batch for batch in plain_batches(world, masking, settings) if batch.chosen.any())
        expected = theory.initial_gradients(world, batch, loss="squared").ratio(0.1)
        found = gradient_ratios(train_toy(build_toy(config), settings))
        assert found["predicted"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("options", "noise", "loss"),
    [({"d_attention": 2}, 0.01, "squared"), ({"init": "usual"}, 1 / np.sqrt(3 * 13), "cross_entropy")],
)
def test_gradients_are_as_large_as_predicted_on_average_over_noise(options, noise, loss):
    found = [first_ratios(seed=seed, loss=loss, **options) for seed in range(12)]
    assert found[0]["noise"] == pytest.approx(noise)
    for name in ("W_K", "W_Q"):
        assert np.mean([(one[name] / one["predicted"]) ** 2 for one in found]) == pytest.approx(1.0, abs=0.4)


def test_gradients_that_no_prediction_is_for_are_refused():
    for regime, recorded, message in (
        ("attention", True, r"got regime 'attention' with other settings; use .*two-stage"),
        ("two-stage", False, "no gradients were recorded"),
    ):
        config = TrainConfig(steps=0, record_gradients=recorded)
        with pytest.raises(ValueError, match=message):
            gradient_ratios(train_toy(build_toy(ToyConfig(regime)), config))
