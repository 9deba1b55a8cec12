"""Figure 4: what is read off norms, attention and gradients, and what each claim makes of it, on hand-made numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from made_result import claims_of, made_result

from topic_probe.paper import figure4
from topic_probe.paper.toys import Case
from topic_probe.paper.training import SQ_SGD, Trained, train_all
from topic_probe.toy.model import ToyConfig
from topic_probe.toy.world import World
from topic_probe.train.history import History, Series, TrainConfig

SETTINGS = {setting.pair: setting for setting in figure4.QUICK_SETTINGS}
SMALL = World(n_topics=3, words_per_topic=4, topics_per_document=2, min_length=20, max_length=30)
STEPS = np.arange(1001)
SATURATING = 4 - 3 * np.exp(-STEPS / 20)
LATE = 1 + 0.01 * np.clip(STEPS - 350, 0, None)
STILL = np.ones(len(STEPS))


def case(*, value=SATURATING, key=LATE, query=LATE, attention=None):
    """A training with these norms, and attention of these rows by name, at every hundredth step."""
    columns = ("loss", "norm_W_V", "norm_W_K", "norm_W_Q", "rotation_W_V")
    table = np.stack([np.zeros(len(value)), value, key, query, np.full(len(value), 0.02)], axis=1)
    steps = torch.arange(len(value))
    watched, series = steps[::100], {}
    for name, values in (attention or {}).items():
        at_each = torch.from_numpy(np.broadcast_to(values, len(watched)) * 1.0)
        series[f"attention.{name}"] = Series(watched, at_each)
    history = History(
        ToyConfig("two-stage"), TrainConfig(steps=len(value) - 1), steps, torch.from_numpy(table), columns, series,
        {}, len(value) - 1,
    )  # fmt: skip
    setting = SETTINGS[SQ_SGD]
    return Case(Trained(setting, history, 1.0), setting.topics, quick=True)


def test_stages_are_those_worked_out_by_hand():
    found = figure4.stages(case())
    # 4 − 3 exp(−t/20) is within 25 % of its last norm from t = 20 ln(3/0.8) on; 1 + 0.01 (t − 350) is above 1.2 at 371.
    assert (found["flat"], found["start"]) == (27, 371)
    assert found["flat ÷ start"] == pytest.approx(27 / 371)
    assert found["W_V in stage 1"] == pytest.approx(4.0, rel=1e-6)
    assert found["W_V in stage 2"] == pytest.approx(1.0, rel=1e-6)
    assert found["change of W_K, W_Q in stage 1"] == 0
    assert found["change of W_K, W_Q by step 400"] == pytest.approx(0.5)
    assert found["W_K, W_Q at the end"] == pytest.approx(7.5)
    assert found["change of W_K, W_Q at the end"] == pytest.approx(6.5)
    assert found["rotation"] == pytest.approx(0.02)
    # The earlier of keys and queries begins stage 2, and the smaller has to grow.
    found = figure4.stages(case(query=STILL + (LATE - 1) * 3))
    assert (found["start"], found["W_K, W_Q at the end"]) == (357, pytest.approx(7.5))
    assert found["change of W_K, W_Q at the end"] == pytest.approx(19.5)


@pytest.mark.parametrize(
    ("changes", "order"),
    [
        ({"key": STILL, "query": STILL}, 1.0),  # attention frozen: nothing is before anything
        ({"value": 1 + 0.1 * STEPS}, 1000 / 371),
        ({"key": SATURATING, "query": SATURATING, "value": LATE}, 1000 / 2),
    ],
)
def test_where_there_are_no_two_stages_the_quotient_is_1_or_more(changes, order):
    assert figure4.stages(case(**changes))["flat ÷ start"] == pytest.approx(order, rel=0.01)


def test_rows_of_words_and_of_mask_are_looked_at_apart_before_and_after_stage_1_ends():
    grows = np.linspace(1.0, 2.0, 11)  # at step 300, the last before 371, it is 1.3
    watched = {
        "same_word": 1.0, "same_topic": 1.0, "different_topic": 0.99, "mask_to_word": grows, "mask_to_mask": 1.0,
    }  # fmt: skip
    found = figure4.attention(case(attention=watched))
    assert found["words in stage 1"] == found["words at the end"] == pytest.approx(0.01)
    assert found["[MASK] in stage 1"] == pytest.approx(0.3)
    assert found["[MASK] at the end"] == pytest.approx(1.0)
    assert found["mask to word"] == 2.0
    assert found["other words"] == pytest.approx(1 / 0.99)
    # Without a second stage the first is all there is.
    still = figure4.attention(case(attention=watched, key=STILL, query=STILL))
    assert still["[MASK] in stage 1"] == pytest.approx(1.0)


def test_gradients_are_beside_those_that_theory_says_for_this_noise_and_no_other():
    setting = SETTINGS[SQ_SGD]
    toy = replace(setting.toy, world=SMALL, d_model=None, d_attention=None)
    (trained,) = train_all([replace(setting, toy=toy, train=replace(setting.train, steps=2))])
    found = figure4.gradients(Case(trained, SMALL.topics, quick=True))
    sizes = {name: float(norms[0]) for name, norms in trained.history.gradients.items()}
    assert found["gradients ÷ that of W_V"] == max(sizes["W_K"], sizes["W_Q"]) / sizes["W_V"]
    for of in ("W_K", "W_Q"):
        # The prediction goes with the variance of the noise.
        quotient = found[f"{of} ÷ predicted"] / found[f"{of} ÷ predicted for twice the noise"]
        assert quotient == pytest.approx(4.0, rel=0.01)
        assert 0.4 < found[f"{of} ÷ predicted"] < 2.5


TWO_STAGES = {
    "flat ÷ start": 27 / 371, "W_V in stage 1": 4.0, "W_V in stage 2": 1.0, "change of W_K, W_Q in stage 1": 0.01,
    "change of W_K, W_Q at the end": 6.0, "W_K, W_Q at the end": 7.0, "rotation": 0.02, "words in stage 1": 0.01,
    "words at the end": 0.5, "[MASK] in stage 1": 0.03, "[MASK] at the end": 0.4, "gradients ÷ that of W_V": 0.001,
    "W_K ÷ predicted": 1.0, "W_Q ÷ predicted": 1.0, "W_K ÷ predicted for twice the noise": 0.25,
    "W_Q ÷ predicted for twice the noise": 0.25,
}  # fmt: skip
NOTHING = {
    "flat ÷ start": 1.0, "W_V in stage 1": 1.0, "W_K, W_Q at the end": 1.0, "words at the end": 0.0,
    "[MASK] at the end": 0.0, "words in stage 1": 0.0, "[MASK] in stage 1": 0.0,
    "change of W_K, W_Q at the end": 0.0, "gradients ÷ that of W_V": 2.0,
}  # fmt: skip
# Where a stage 1 has nothing to be before, norms and attention have changed from the start.
AT_ONCE = {
    **NOTHING, "change of W_K, W_Q in stage 1": 5.0, "words in stage 1": 0.5, "[MASK] in stage 1": 0.5, "rotation": 0.0,
}  # fmt: skip

# What each claim speaks of, and a number of it with which it falls.
FALLS = {
    "The norm of W_V plateaus": {"flat ÷ start": 1.3},
    "In stage 1 W_K and W_Q stay close to 0": {"change of W_K, W_Q in stage 1": 0.4},
    "In stage 1 positions that show words": {"words in stage 1": 0.3},
    "In stage 1 positions that show [MASK]": {"[MASK] in stage 1": 0.3},
    "In stage 1 the norm of W_V increases": {"W_V in stage 1": 1.5},
    "In stage 2 the norms of W_K and W_Q": {"W_K, W_Q at the end": 1.5},
    "In stage 2 the norm of W_V stays flat": {"W_V in stage 2": 1.5},
    "In stage 2 W_V goes on turning": {"rotation": 0.0005},
    "In stage 2 the attention of positions that show words": {"words at the end": 0.0002},
    "In stage 2 the attention of positions that show [MASK]": {"[MASK] at the end": 0.01},
    "Where training begins": {"gradients ÷ that of W_V": 1.2},
    "The gradient of W_K is as small": {"W_K ÷ predicted": 2.0},
    "The gradient of W_Q is as small": {"W_Q ÷ predicted": 0.5},
}


def claims(measured, controls):
    """Claims about a setting that has the numbers of two stages, and of controls that have none of it."""
    (name, setting) = SETTINGS[SQ_SGD].name, SETTINGS[SQ_SGD]
    known = ("untrained", "attention frozen", "values frozen", "usual initialisation", "noise 1")
    given = {
        "": {**TWO_STAGES, **measured},
        **dict.fromkeys(known, NOTHING),
        "no topics": AT_ONCE,
        **controls,
    }
    rows = {(name, one): [numbers] * 3 for one, numbers in given.items()}
    found = claims_of(figure4.RECIPE, made_result(rows, setting, quick=True))
    return {claim.text: claim for claim in found}


def test_each_claim_holds_of_two_stages_and_falls_with_what_it_speaks_of_and_no_other_does():
    whole = claims({}, {})
    assert {claim.verdict for claim in whole.values()} == {"holds"}
    for text, broken in FALLS.items():
        fallen = {name for name, claim in claims(broken, {}).items() if claim.verdict == "does not hold"}
        assert fallen == {name for name in whole if name.startswith(text)}


@pytest.mark.parametrize("control", ["no topics", "attention frozen"])
def test_two_stages_that_are_there_without_what_makes_them_are_no_evidence(control):
    found = claims({}, {control: TWO_STAGES})
    (order,) = [claim for name, claim in found.items() if name.startswith("The norm of W_V plateaus")]
    assert (order.verdict, order.controls_held) == ("not evidence", (control,))
