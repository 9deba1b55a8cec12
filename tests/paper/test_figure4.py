"""Figure 4: what is read off norms, attention and gradients, and what each claim makes of it, on hand-made numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hand_made import hand_made

from topic_probe.paper import figure4
from topic_probe.paper.recipe import Run
from topic_probe.paper.toys import Case
from topic_probe.paper.training import CE_ADAM, CE_SGD, SQ_SGD, Trained, train_all
from topic_probe.toy.model import ToyConfig
from topic_probe.toy.word_attention import word_attention
from topic_probe.toy.world import World
from topic_probe.train.history import History, Series, TrainConfig

SETTINGS = {setting.pair: setting for setting in figure4.QUICK_SETTINGS}
SMALL = World(n_topics=3, words_per_topic=4, topics_per_document=2, min_length=20, max_length=30)
STEPS = np.arange(1001)
SATURATING = 4 - 3 * np.exp(-STEPS / 20)
LATE = 1 + 0.01 * np.clip(STEPS - 350, 0, None)
STILL = np.ones(len(STEPS))

# -------------------------------------------------------------------- what is measured


def case(*, value=SATURATING, key=LATE, query=LATE, attention=None, stopped="finished", control=""):
    """A training with these norms, and attention of these rows by name, at every hundredth step."""
    columns = ("loss", "norm_W_V", "norm_W_K", "norm_W_Q", "rotation_W_V")
    table = np.stack([np.zeros(len(value)), value, key, query, np.full(len(value), 0.02)], axis=1)
    steps = torch.arange(len(value))
    series = {
        f"attention.{name}": Series(
            steps[::100], torch.from_numpy(np.broadcast_to(values, len(steps[::100])) * 1.0)
        )
        for name, values in (attention or {}).items()
    }
    history = History(
        ToyConfig("two-stage"), TrainConfig(steps=len(value) - 1), steps, torch.from_numpy(table), columns, series,
        {}, len(value) - 1, stopped,
    )  # fmt: skip
    setting = replace(SETTINGS[SQ_SGD], control=control)
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


def test_the_earlier_of_keys_and_queries_begins_stage_2_and_the_smaller_has_to_grow():
    found = figure4.stages(case(query=STILL + (LATE - 1) * 3))
    assert found["start"] == 357
    assert found["W_K, W_Q at the end"] == pytest.approx(7.5)
    assert found["change of W_K, W_Q at the end"] == pytest.approx(19.5)


@pytest.mark.parametrize(
    ("changes", "order"),
    [
        ({"key": STILL, "query": STILL}, 1.0),  # attention frozen: nothing is before anything
        ({"value": STILL}, 1.0),  # values frozen: W_K and W_Q start, but not before anything
        ({"value": 1 + 0.1 * STEPS}, 1000 / 371),
        ({"key": SATURATING, "query": SATURATING, "value": LATE}, 1000 / 2),
    ],
)
def test_where_there_are_no_two_stages_the_quotient_is_1_or_more(changes, order):
    assert figure4.stages(case(**changes))["flat ÷ start"] == pytest.approx(order, rel=0.01)


def test_a_toy_that_was_not_trained_has_no_stages_and_one_that_diverged_no_numbers():
    untrained = figure4.stages(case(value=SATURATING[:1], key=LATE[:1], query=LATE[:1]))
    assert (untrained["flat ÷ start"], untrained["W_V in stage 1"], untrained["W_K, W_Q at the end"]) == (
        1,
        1,
        1,
    )
    assert untrained["change of W_K, W_Q by step 400"] == 0
    diverged = case(stopped="diverged: the loss of step 7 is inf")
    assert figure4.stages(diverged) == figure4.attention(diverged) == {}


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


def small(**changes):
    """The quick setting in a small world, for so few steps that only the beginning counts."""
    setting = SETTINGS[SQ_SGD]
    toy = replace(setting.toy, world=SMALL, d_model=None, d_attention=None)
    return replace(setting, toy=toy, train=replace(setting.train, steps=2), **changes)


def test_gradients_are_beside_those_that_theory_says_for_this_noise_and_no_other():
    (trained,) = train_all([small()])
    found = figure4.gradients(Case(trained, SMALL.topics, quick=True))
    sizes = {name: float(norms[0]) for name, norms in trained.history.gradients.items()}
    largest = max(sizes["W_K"], sizes["W_Q"]) / sizes["W_V"]
    assert found["gradients ÷ that of W_V"] == largest
    for of in ("W_K", "W_Q"):
        # The prediction goes with the variance of the noise.
        quotient = found[f"{of} ÷ predicted"] / found[f"{of} ÷ predicted for twice the noise"]
        assert quotient == pytest.approx(4.0, rel=0.01)
        assert 0.4 < found[f"{of} ÷ predicted"] < 2.5
    (control,) = train_all([small(control="no topics")])
    assert set(figure4.gradients(Case(control, SMALL.topics, quick=True))) == {"gradients ÷ that of W_V"}
    (frozen,) = train_all([figure4.VALUES_FROZEN.train(small())])
    assert figure4.gradients(Case(frozen, SMALL.topics, quick=True)) == {}


def test_attention_is_watched_while_toys_are_trained():
    (trained,) = train_all([small()], watch={"attention": word_attention})
    series = trained.history.measured["attention.mask_to_mask"]
    assert series.steps.tolist() == [0, 2]
    assert float(series.values[-1]) == pytest.approx(
        word_attention(trained.model())["mask_to_mask"], rel=1e-6
    )
    found = figure4.attention(Case(trained, SMALL.topics, quick=True))
    assert found["mask to mask"] == pytest.approx(float(series.values[-1]))


def test_controls_break_what_they_say():
    setting = SETTINGS[SQ_SGD]
    broken = {control.name: control.train(setting) for control in Run(figure4.RECIPE).controls}
    assert broken["values frozen"].toy.trained_tensors == ("W_K", "W_Q")
    assert broken["attention frozen"].toy.trained_tensors == ("W_V",)
    assert (broken["usual initialisation"].toy.init, setting.toy.init) == ("usual", "near-zero")
    assert (broken["noise 1"].toy.noise, broken["noise 1"].train.steps) == (1.0, 0)
    assert broken["untrained"].train.steps == 0
    assert broken["no topics"].train.world.topics_per_document == setting.world.n_topics


# -------------------------------------------------------------------- what is claimed

TWO_STAGES = {
    "flat": 27.0, "start": 371.0, "flat ÷ start": 27 / 371, "W_V in stage 1": 4.0, "W_V in stage 2": 1.0,
    "change of W_K, W_Q in stage 1": 0.01, "change of W_K, W_Q at the end": 6.0, "W_K, W_Q at the end": 7.0,
    "rotation": 0.02, "words in stage 1": 0.01, "words at the end": 0.5, "[MASK] in stage 1": 0.03,
    "[MASK] at the end": 0.4, "gradients ÷ that of W_V": 0.001, "W_K ÷ predicted": 1.0, "W_Q ÷ predicted": 1.0,
    "W_K ÷ predicted for twice the noise": 0.25, "W_Q ÷ predicted for twice the noise": 0.25,
    "change of W_K, W_Q by step 400": 0.01, "W_V by step 400": 15.0, "other words": 3.0,
    "same word": 1.5, "same topic": 1.4, "different topic": 0.8, "mask to word": 1.1, "mask to mask": 0.6,
}  # fmt: skip
NOTHING = {
    "flat ÷ start": 1.0, "W_V in stage 1": 1.0, "W_K, W_Q at the end": 1.0, "W_V by step 400": 1.0, "other words": 1.0,
    "words at the end": 0.0, "[MASK] at the end": 0.0, "words in stage 1": 0.0, "[MASK] in stage 1": 0.0,
    "change of W_K, W_Q at the end": 0.0, "change of W_K, W_Q by step 400": 0.0, "gradients ÷ that of W_V": 2.0,
}  # fmt: skip
# Where a stage 1 has nothing to be before, norms and attention have changed from the start.
AT_ONCE = {
    **NOTHING, "change of W_K, W_Q in stage 1": 5.0, "change of W_K, W_Q by step 400": 5.0,
    "words in stage 1": 0.5, "[MASK] in stage 1": 0.5, "rotation": 0.0,
}  # fmt: skip


def claims(pair, *, measured=None, controls=None):
    """Claims about a setting that has the numbers of two stages, and of controls that have none of it."""
    given = {
        **dict.fromkeys(("untrained", "attention frozen", "values frozen"), NOTHING),
        "no topics": AT_ONCE,
    }
    given |= {"usual initialisation": NOTHING, "noise 1": NOTHING, **(controls or {})}
    first = figure4.QUICK_SETTINGS[0].name
    rows = [
        {"setting": name, "control": control, "seed": seed, **numbers}
        for name in {SETTINGS[pair].name, first}
        for control, numbers in {"": {**TWO_STAGES, **(measured or {})}, **given}.items()
        for seed in range(3)
    ]
    found = hand_made([SETTINGS[pair]], rows)
    return {claim.text: claim for check in figure4.RECIPE.claims for claim in check(found)}


def claim(pair, text, **given):
    (found,) = [claim for name, claim in claims(pair, **given).items() if name.startswith(text)]
    return found


def test_all_holds_of_a_training_in_two_stages_whose_controls_have_none():
    found = claims(SQ_SGD)
    assert len(found) == 13
    assert {claim.verdict for claim in found.values()} == {"holds"}, found


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("The norm of W_V plateaus", {"flat ÷ start": 1.3}),
        ("In stage 1 W_K and W_Q stay close to 0", {"change of W_K, W_Q in stage 1": 0.4}),
        ("In stage 1 positions that show words", {"words in stage 1": 0.3}),
        ("In stage 1 positions that show [MASK]", {"[MASK] in stage 1": 0.3}),
        ("In stage 1 the norm of W_V increases", {"W_V in stage 1": 1.5}),
        ("In stage 2 the norms of W_K and W_Q", {"W_K, W_Q at the end": 1.5}),
        ("In stage 2 the norm of W_V stays flat", {"W_V in stage 2": 1.5}),
        ("In stage 2 W_V goes on turning", {"rotation": 0.0005}),
        ("In stage 2 the attention of positions that show words", {"words at the end": 0.0002}),
        ("In stage 2 the attention of positions that show [MASK]", {"[MASK] at the end": 0.01}),
        ("Where training begins", {"gradients ÷ that of W_V": 1.2}),
        ("The gradient of W_K is as small", {"W_K ÷ predicted": 2.0}),
        ("The gradient of W_Q is as small", {"W_Q ÷ predicted": 0.5}),
    ],
)  # fmt: skip
def test_each_claim_falls_with_what_it_speaks_of_and_no_other_does(text, broken):
    found = claims(SQ_SGD, measured=broken)
    assert {name for name, claim in found.items() if claim.verdict == "does not hold"} == {
        name for name in found if name.startswith(text)
    }


@pytest.mark.parametrize(
    "control", ["no topics", "usual initialisation", "attention frozen", "values frozen"]
)
def test_two_stages_that_are_there_without_what_makes_them_are_no_evidence(control):
    order = claim(SQ_SGD, "The norm of W_V plateaus", controls={control: TWO_STAGES})
    assert order.verdict == "not evidence"
    assert order.remark.endswith(f"holds of {control} too")


def test_what_stays_in_stage_1_is_no_evidence_where_it_stays_for_good():
    """Norms may grow 2.8-fold in a training whose words attend uniformly to its end."""
    same = {"words at the end": 0.0002, "words in stage 1": 0.0001}
    found = claim(SQ_SGD, "In stage 1 positions that show words", measured=same)
    assert (found.verdict, found.controls_held) == ("not evidence", ("at the end",))
    words = claim(SQ_SGD, "In stage 2 the attention of positions that show words", measured=same)
    assert words.verdict == "does not hold"
    assert "rows of [MASK] alone" in words.remark


def test_a_first_stage_alone_is_claimed_where_w_v_goes_on_growing():
    for text in ("W_K and W_Q stay where they are for 400 steps", "W_V grows meanwhile"):
        assert claim(CE_SGD, text).verdict == "holds"
        assert claim(CE_SGD, text).ours
    moved = {"change of W_K, W_Q by step 400": 0.3, "W_V by step 400": 1.2}
    for text in ("W_K and W_Q stay where they are for 400 steps", "W_V grows meanwhile"):
        assert claim(CE_SGD, text, measured=moved).verdict == "does not hold"


def test_other_hyperparameters_are_held_against_those_that_show_two_stages():
    text = "With other hyperparameters"
    rows = [
        {"setting": setting.name, "control": "", "flat ÷ start": order}
        for setting, order in ((SETTINGS[SQ_SGD], 0.1), (SETTINGS[CE_ADAM], 50.0))
        for _ in range(3)
    ]
    settings = [SETTINGS[SQ_SGD], SETTINGS[CE_ADAM]]
    (found,) = figure4._sensitivity(hand_made(settings, rows))
    assert found.text.startswith(text)
    assert (found.verdict, found.controls[SETTINGS[SQ_SGD].name].value) == ("holds", pytest.approx(0.1))
    (none,) = figure4._sensitivity(hand_made(settings, [{**row, "flat ÷ start": 50.0} for row in rows]))
    assert none.verdict == "not evidence"
    frozen = [{**row, "control": figure4.VALUES_FROZEN.name} for row in rows]
    (told,) = figure4._sensitivity(hand_made(settings, [*rows, *frozen]))
    assert (told.controls["values frozen"].value, told.verdict) == (50.0, "not evidence")


def test_with_adam_words_must_attend_to_their_topic_and_only_where_there_are_topics():
    text = "With Adam, which has no two stages"
    assert claim(CE_ADAM, text).verdict == "holds"
    assert claim(CE_ADAM, text, measured={"other words": 1.0}).verdict == "does not hold"
    assert claim(CE_ADAM, text, controls={"no topics": {"other words": 2.0}}).verdict == "not evidence"


def test_the_argument_about_gradients_is_made_once_for_a_loss_and_a_noise():
    faster = replace(SETTINGS[SQ_SGD], name="faster")
    rows = [{"setting": SETTINGS[SQ_SGD].name, "control": "", **TWO_STAGES} for _ in range(3)]
    found = list(figure4._first_gradients(hand_made([SETTINGS[SQ_SGD], faster], rows)))
    assert [claim.setting for claim in found] == ["squared, noise 0.01"] * 3


def test_settings_begin_near_zero_and_watch_what_is_claimed():
    for setting in (*figure4.SETTINGS, *figure4.QUICK_SETTINGS):
        assert setting.toy.init == "near-zero"
        assert setting.train.record_gradients
        assert setting.train.measure_every == 20
        assert "seed" not in setting.name
