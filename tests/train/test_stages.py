"""The stages of a training, found on planted curves whose stages are known, and on histories made of them."""

import numpy as np
import pytest
import torch
from plain_toy import plain_batches

from topic_probe.report import load_report
from topic_probe.toy import theory
from topic_probe.toy.model import ToyConfig, build_toy
from topic_probe.toy.world import World
from topic_probe.train.history import History, TrainConfig
from topic_probe.train.stages import measure_dynamics
from topic_probe.train.toy import train_toy

STEPS = np.arange(0, 990, 10)  # 99 rows, of which nothing is smoothed
MANY = np.arange(1000)  # here a median is over 21 rows


def saturating(t=STEPS, *, start=1.0, end=4.0, scale=20.0):
    """Leaves its start at once and levels off."""
    return end - (end - start) * np.exp(-t / scale)


def late(t=STEPS, *, start=1.0, first=350, slope=0.01):
    """Stays at its start, then grows steadily."""
    return start + slope * np.clip(t - first, 0, None).astype(float)


def history(curves, *, steps=STEPS, n_layers=1, rotation=None):
    """A history with the given norms by name."""
    columns = ["loss", *(f"norm_{name}" for name in curves)]
    table = [np.zeros(len(steps)), *curves.values()]
    if rotation is not None:
        columns.append("rotation_W_V")
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


def two_stages(steps=STEPS, **changes):
    return {"W_V": saturating(steps), "W_K": late(steps), "W_Q": late(steps, first=400), **changes}


def found(steps=STEPS, *, least=0.0, **changes):
    """When W_V starts and is flat, when W_K and W_Q start, and why these are no two stages."""
    report = measure_dynamics(history(two_stages(steps, **changes), steps=steps), least=least)
    times = (report.value_start, report.value_flat, report.key_start, report.query_start)
    return [float(time[0]) for time in times], report.reasons[0]


def test_the_steps_of_planted_stages_are_those_worked_out_by_hand():
    # 4 - 3 exp(-t/20) > 1.2 from t = 20 ln(3/2.8) = 1.4 on; the last norm, 4, is within 25 % of it from 3.2 on, that
    # is t = 20 ln(3/0.8) = 26.4; 1 + 0.01 (t - 350) > 1.2 from 371 on.
    assert found() == ([10, 30, 380, 430], None)
    assert found(np.arange(99))[0][:2] == [2, 26]  # the last norm is 3.978
    scaled = {"W_V": 1e3 * saturating(), "W_K": 1e-3 * late(), "W_Q": 7 * late(first=400)}
    assert found(**scaled) == found()


def test_starts_are_from_the_lowest_norm_or_from_a_share_of_the_largest():
    dipping = np.where(STEPS < 300, 1 - 0.002 * STEPS, 0.4 + 0.03 * (STEPS - 300))
    # 0.4 + 0.03 (t - 300) > 0.48 from 303 on; from zero, 5 % of 870, the last norm, is 43.5 after step 110.
    rising = np.clip(STEPS - 110.0, 0, None)
    assert found(W_K=dipping, W_Q=rising)[0][2:] == [310, 160]
    tiny = {"W_V": late(start=1e-6, first=0), "W_K": late(start=1e-6, first=200)}
    # 20 % more than 1e-6 is passed with the first step; 5 % of 9.8 is reached after 49 steps, of 7.8 after 39.
    assert [found(least=least, **tiny)[0][::2] for least in (0.0, 0.05)] == [[10, 210], [50, 240]]
    assert found(least=0.05) == found()


def test_single_outliers_and_noise_below_the_thresholds_do_not_matter():
    spiked = two_stages(MANY)
    for curve in spiked.values():
        curve[[60, 200, 700]] = [30.0, 0.01, 30.0]
    assert found(MANY, **spiked) == found(MANY)
    few = np.arange(250, 400)
    for rows, start in (([130], 371), ([130, 131], 382)):  # a median of three rows hides one, and not two
        dip = late(few)
        dip[rows] = 0.9
        assert found(few, W_K=dip)[0][2] == start
    for seed in range(3):
        noise = 1 + 0.04 * np.random.default_rng(seed).standard_normal((3, 1000))
        noisy = dict(zip("VKQ", noise, strict=True))
        curves = {name: curve * noisy[name[-1]] for name, curve in two_stages(MANY).items()}
        (_, flat, key, query), reason = found(MANY, **curves)
        assert reason is None
        assert flat == pytest.approx(27, abs=12)
        # Where a curve crosses its threshold at a slope of 0.01 per step, noise of 4 % is 5 steps wide.
        assert (key, query) == pytest.approx((371, 421), abs=15)
        still = {f"W_{name}": curve for name, curve in noisy.items()}
        nothing = "; ".join(f"W_{name} never starts to grow" for name in "VKQ")
        assert found(MANY, **still) == (pytest.approx([np.nan] * 4, nan_ok=True), nothing)


BUMP = 1 + np.exp(-(((STEPS - 500) / 50.0) ** 2))


@pytest.mark.parametrize(
    ("curves", "flat", "reason"),
    [
        ({"W_K": saturating(scale=20)}, 30, "starts at step 10, before W_V is flat at step 30"),
        (
            {"W_K": 0.0 * STEPS, "W_Q": 0.0 * STEPS},
            30,
            "W_K never starts to grow; W_Q never starts to grow",
        ),
        ({"W_K": BUMP}, 30, "W_K never starts to grow"),  # it falls back
        ({"W_V": 1 + 0.02 * STEPS}, np.nan, "W_V is not flat within the record"),
        ({"W_V": np.where(STEPS < 600, saturating(), 2.0)}, np.nan, "not flat within the record"),
        ({"W_V": late(first=600, slope=0.1)}, np.nan, "not flat within the record"),
    ],
)
def test_curves_without_two_stages_are_told_why(curves, flat, reason):
    times, why = found(**curves)
    assert reason in why
    assert times[1] == pytest.approx(flat, nan_ok=True)


def test_a_report_says_two_stages_and_how_far_things_went():
    rotation = np.where(STEPS < 380, 0.3, 0.02)
    rotation[:1] = np.nan
    curves = two_stages(
        W_V=np.where(STEPS < 600, saturating(), 4.4), W_Q=late(first=400) + 0.1 * (STEPS == 20)
    )
    report = measure_dynamics(history(curves, rotation=rotation))
    assert report.pattern == "two stages"
    assert report.value_growth[0] == pytest.approx(4.0, rel=1e-6)
    assert report.late_value_growth[0] == pytest.approx(1.1, rel=1e-6)
    assert report.attention_change[0] == pytest.approx(0.1)
    assert report.late_rotation[0] == pytest.approx(0.02)
    grows = history(two_stages(W_V=np.where(STEPS < 600, saturating(), 40.0)))
    assert measure_dynamics(grows).pattern == "no two-stage pattern"
    assert measure_dynamics(grows, until=590).pattern == "two stages"
    with pytest.raises(ValueError, match="at least 10 recorded rows to see a curve, got 9"):
        measure_dynamics(grows, until=80)


def test_every_layer_is_judged_by_itself_also_from_disk(tmp_path):
    curves = {f"{name}.0": curve for name, curve in two_stages().items()}
    curves |= {f"{name}.1": np.ones(99) for name in two_stages()}
    report = measure_dynamics(history(curves, n_layers=2))
    assert report.to_dataframe()["two_stage"].tolist() == [True, False]
    assert report.pattern == "two stages in 1 of 2 layers: 0"
    assert "layer 1: W_V never starts to grow" in repr(report)
    assert np.isnan([report.late_value_growth[1], report.late_rotation[1]]).all()
    report.save(tmp_path / "report")
    assert load_report(tmp_path / "report") == report


# Gradients at the beginning


@pytest.mark.parametrize(
    ("options", "noise", "loss"),
    [({}, 0.01, "squared"), ({"init": "usual"}, 1 / np.sqrt(3 * 13), "cross_entropy")],
)
def test_gradients_are_as_large_as_predicted_on_average_over_noise(options, noise, loss):
    world = World(n_topics=3, words_per_topic=4, topics_per_document=2, min_length=20, max_length=30)
    config = ToyConfig(regime="two-stage", world=world, noise=noise, dtype="float64", **options)
    squares = []
    for seed in range(30):  # the standard deviation of a square is 0.7, that of their mean 0.13
        settings = TrainConfig(loss, steps=0, record_gradients=True, seed=seed)
        sizes = train_toy(build_toy(config, seed=seed), settings).gradients
        first = theory.initial_gradients(world, next(plain_batches(config, settings)), loss=loss)
        squares.append(
            [(sizes[name] / sizes["W_V"] / first.ratio(noise)).item() ** 2 for name in ("W_K", "W_Q")]
        )
    np.testing.assert_allclose(np.mean(squares, axis=0), 1.0, atol=0.4)
