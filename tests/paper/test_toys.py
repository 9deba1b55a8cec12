"""What recipes of toys share: numbers over seeds and controls, and claims that are made of nothing else."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from made_result import made_result

from topic_probe.paper.claims import Claim
from topic_probe.paper.recipe import Recipe, run_recipe
from topic_probe.paper.toys import (
    ATTENTION_FROZEN,
    NO_TOPICS,
    SHUFFLED,
    UNTRAINED,
    Case,
    agreement,
    attention_is_trained,
    between_words,
    block_claims,
    blocks,
    convergence,
    each_training,
    judged,
    late_improvement,
    little_loss,
    losses,
    number,
    shuffles,
    without_topics,
)
from topic_probe.paper.training import Setting, train_all
from topic_probe.topics import Topics
from topic_probe.toy.model import ToyConfig, build_toy, toy_tensors
from topic_probe.toy.word_attention import word_attention
from topic_probe.toy.world import World
from topic_probe.train.history import History, TrainConfig

BLOCKS = Topics.blocks(n_topics=10, words_per_topic=10)


def setting(regime="value", steps=40, **train):
    return Setting(regime, ToyConfig(regime=regime), TrainConfig(steps=steps, optimizer="adam", **train))


@pytest.fixture(scope="module")
def value():
    return train_all([setting()])[0]


def test_controls_break_what_they_say_and_nothing_else():
    world = without_topics(World())
    documents = world.documents(200, generator=torch.Generator().manual_seed(0))
    topics = [(((documents.ids - 1) // 10 == topic) & documents.mask).sum(1) for topic in range(10)]
    # 125 words of 10 equally likely topics: √(.1 · .9 / 125) = 0.027 around 0.1.
    assert float((torch.stack(topics) / documents.mask.sum(1)).std()) == pytest.approx(0.027, abs=0.003)
    (trained,) = train_all([ATTENTION_FROZEN.train(setting("full", 3))])
    first, last = toy_tensors(build_toy(ToyConfig(regime="full"), seed=0)), trained.history.tensors
    still = {name for name in first if torch.equal(last[name], first[name])}
    assert still == {"W_K", "W_Q", "b_K", "b_Q"}
    assert ATTENTION_FROZEN.train(setting()) is None  # nothing is to be frozen
    assert ATTENTION_FROZEN.train(setting("keys")) is None  # nothing would be left to train
    turns = ((5, ("W_V", "b_V")), (5, ("W_K", "W_Q", "b_K", "b_Q")))
    assert ATTENTION_FROZEN.train(setting("attention", 20, schedule=turns)).train.schedule == turns[:1]


def test_a_control_of_labels_has_the_median_of_its_many_draws(value):
    draws = shuffles(BLOCKS)
    assert len({tuple(each.labels(each.words).tolist()) for each in draws}) == len(draws) == 20
    assert all(each.sizes.tolist() == [10] * 10 for each in draws)

    def measured(case):
        return blocks(case.trained.history.tensors["W_V"].double().numpy(), case.topics)

    measure = each_training(of_labels=[measured])
    recipe = Recipe("figure0", "", "", measure, (), dict, (value.setting,), controls=(SHUFFLED,), seeds=1)
    every = sorted(measured(Case(value, topics, quick=False))["effect size"] for topics in draws)
    found = number(run_recipe(recipe), value.setting.name, "effect size", SHUFFLED.name)
    assert found.value == pytest.approx(sum(every[9:11]) / 2)


# -------------------------------------------------------------------- numbers of a training


def matrix(within=1.0, between=0.0, diagonal=5.0, noise=0.0):
    topic = np.arange(100) // 10
    words = np.where(topic[:, None] == topic, within, between).astype(float)
    np.fill_diagonal(words, diagonal)
    words += noise * np.random.default_rng(0).normal(size=words.shape)
    whole = np.full((101, 101), 77.0)  # row and column of [MASK], which count for nothing
    whole[1:, 1:] = words
    return whole


def test_blocks_are_seen_beside_the_diagonal_and_nothing_but_blocks():
    # 900 entries of 1 and 9,000 of 0: a standard deviation of √(1/11 · 10/11).
    assert blocks(matrix(), BLOCKS) == {
        "own topic first": 1.0, "effect size": pytest.approx(1 / math.sqrt(10 / 121)), "same word": 5.0,
        "same topic": 1.0, "different topics": 0.0,
    }  # fmt: skip
    diagonal = blocks(matrix(within=0.0, noise=1.0), BLOCKS)
    assert diagonal["own topic first"] < 0.3
    assert abs(diagonal["effect size"]) < 0.1
    assert blocks(np.full((101, 101), 1 / 101), BLOCKS)["own topic first"] == 0.0
    # Labels shifted by four: six words of every label are of one topic; the other four find the next label first.
    moved = {str(t): [(10 * t + 4 + k) % 100 + 1 for k in range(10)] for t in range(10)}
    shifted = Topics.from_token_ids(moved, vocabulary_size=101)
    assert blocks(matrix(), shifted)["own topic first"] == pytest.approx(0.6)
    # A block of one topic alone, which a mean over all pairs does not tell from blocks of all.
    one = matrix(within=0.0, noise=1.0)
    one[1:11, 1:11] += 50.0
    assert blocks(one, BLOCKS)["own topic first"] < 0.4
    assert blocks(one, BLOCKS)["effect size"] > 0.8


def test_losses_are_those_of_the_agreement_on_a_scale_from_guessing_to_the_floor(value):
    case = Case(value, BLOCKS, quick=True)
    found, report = losses(case), agreement(case)
    assert found["loss"] == report.loss
    assert found["gain"] == pytest.approx((math.log(100) - report.loss) / (math.log(100) - report.floor))
    assert 0 < found["gain"] < 1


def test_attention_between_words_has_theorem_3s_mean_and_that_of_other_words():
    (trained,) = train_all([setting("attention", 30)])
    found, seen = between_words(Case(trained, BLOCKS, quick=True)), word_attention(trained.model())
    alpha, beta = (seen[name] / seen["different_topic"] for name in ("same_topic", "same_word"))
    assert found["other words"] == pytest.approx(alpha)
    assert found["weighted mean"] == pytest.approx(0.9 * alpha + 0.1 * beta)
    assert found["change of attention"] == pytest.approx(max(abs(alpha - 1), abs(beta - 1)))
    shuffled = between_words(Case(trained, BLOCKS.shuffled(0), quick=True))
    assert abs(shuffled["other words"] - 1) < abs(found["other words"] - 1)


def test_words_that_turn_away_from_mask_have_not_changed_their_attention_to_each_other():
    (trained,) = train_all([setting("attention", 0)])
    away = {name: torch.zeros_like(tensor) for name, tensor in trained.history.tensors.items()}
    away["W_E"] = torch.eye(101)
    away["W_K"][0, 0], away["b_Q"][0] = -100.0, 1.0
    turned = replace(trained, history=replace(trained.history, tensors=away))
    found = between_words(Case(turned, BLOCKS, quick=True))
    assert found["attention, same word"] > 1.13  # 12 % of the positions show [MASK]
    assert found["change of attention"] < 0.01


def test_late_improvement_is_the_share_of_the_last_tenth():
    def of(values, loss="cross_entropy"):
        table = torch.tensor(values, dtype=torch.float64).unsqueeze(1)
        config = TrainConfig(steps=len(values) - 1, loss=loss)
        steps = torch.arange(len(values))
        return History(ToyConfig(regime="value"), config, steps, table, ("loss",), {}, {}, len(values) - 1)

    # From log 100 to 3.4 in all, 3.5 to 3.4 from the last tenth but one to the last.
    whole = of([4.0] * 80 + [3.5] * 10 + [3.4] * 10)
    assert late_improvement(whole) == pytest.approx(0.1 / (math.log(100) - 3.4))
    squared = of([0.98] * 80 + [0.96] * 10 + [0.95] * 10, "squared")
    assert late_improvement(squared) == pytest.approx(0.01 / (0.99 - 0.95))
    assert math.isnan(late_improvement(of([4.7] * 100)))
    assert math.isnan(late_improvement(replace(whole, stopped="diverged: the loss of step 7 is inf")))


# -------------------------------------------------------------------- claims


def test_a_number_is_over_the_seeds_of_its_setting_and_control_and_undefined_where_one_is():
    seeds, broken = [{"number": 1.0}, {"number": 2.0}, {"number": 6.0}], [{"number": 0.5}, {"number": None}]
    found = made_result({("value", ""): seeds, ("value", "untrained"): broken})
    assert (number(found, "value", "number").value, number(found, "value", "number").of) == (3.0, "3 seeds")
    assert math.isnan(number(found, "value", "number", "untrained").value)
    assert math.isnan(number(found, "other", "number").value)
    claim = judged(Claim("text", above=0.0), found, "value", "number", ("untrained", "no topics"))
    assert list(claim.controls) == ["untrained"]  # the other was not trained


@pytest.mark.parametrize(
    ("own", "broken", "verdict"),
    [
        ([1.0, 0.99, 0.98], {}, "holds"),
        ([0.95, 0.7, 1.0], {}, "undecided"),
        ([0.6, 0.62, 0.58], {}, "does not hold"),
        ([1.0, 0.99, 0.98], {SHUFFLED.name: 0.95}, "not evidence"),
    ],
)
def test_blocks_are_claimed_of_all_seeds_and_of_no_control(own, broken, verdict):
    rest = {"effect size": 3.0, "same word": 1.0, "same topic": 1.0, "different topics": 0.0}
    controls = {name: [broken.get(name, 0.1)] for name in (NO_TOPICS.name, UNTRAINED.name, SHUFFLED.name)}
    rows = {
        ("value", name): [{"own topic first": share, **rest} for share in shares]
        for name, shares in {"": own, **controls}.items()
    }
    (claim,) = block_claims("W_V", reasons={"value": "a reason"})(made_result(rows, setting()))
    assert claim.verdict == verdict
    assert ("a reason" in claim.remark) == (verdict in ("undecided", "does not hold"))


def test_convergence_is_to_the_floor_and_not_only_level():
    stuck = {
        ("value", ""): [{"gain": 0.4 + seed / 1000, "late improvement": 0.001 * seed} for seed in range(5)],
        ("value", NO_TOPICS.name): [{"gain": 0.0}],
        ("value", "a tenth of the steps"): [{"late improvement": 0.3}],
    }
    arrived, level = convergence()(made_result(stuck, setting()))
    assert (arrived.verdict, level.verdict) == ("does not hold", "holds")
    (claim,) = convergence()(made_result(stuck, setting(), quick=True))
    assert claim.verdict == "not checked"


FEW, MANY = (replace(setting(regime), name=f"{regime}, squared, Adam") for regime in ("value", "attention"))


@pytest.mark.parametrize(
    ("few", "many", "untrained", "verdict"),
    [
        (0.908, 0.9, 0.99, "holds"),  # 0.082 of 0.09
        (0.92, 0.915, 0.99, "holds"),  # 0.07 of 0.075, though the floor allows 0.09
        (0.945, 0.9, 0.99, "does not hold"),  # half of it, though 5 % more in relative terms
        (0.985, 0.98, 0.99, "undecided"),  # the freer regime has gained a ninth of what it could
        (0.908, 0.9, 0.909, "not evidence"),
    ],
)
def test_a_loss_is_only_slightly_above_another_on_a_scale_where_guessing_is_0(few, many, untrained, verdict):
    """Guessing has 0.99 and the freer regime a floor of 0.9."""
    rows = {(FEW.name, ""): few, (MANY.name, ""): many, (FEW.name, NO_TOPICS.name): 0.99}
    table = {
        key: [{"loss": loss, "guess": 0.99, "floor": 0.9, "gain": (0.99 - loss) / 0.09}] * 3
        for key, loss in {**rows, (FEW.name, UNTRAINED.name): untrained}.items()
    }
    (claim,) = little_loss("value", "attention", source="")(made_result(table, FEW, MANY))
    assert (claim.setting, claim.verdict) == ("squared, Adam", verdict)


@pytest.mark.parametrize(("change", "verdict"), [(0.5, "holds"), (0.0, "does not hold")])
def test_attention_is_claimed_to_be_trained_only_where_it_is_trained(change, verdict):
    values = {"": change, UNTRAINED.name: 0.001, ATTENTION_FROZEN.name: 0.002}
    rows = {
        (MANY.name, control): [{"change of attention": value, "‖W_K‖": 99.0, "‖W_Q‖": 99.0}] * 3
        for control, value in values.items()
    }
    (claim,) = attention_is_trained()(made_result(rows, FEW, MANY))
    assert (claim.setting, claim.verdict, claim.ours) == (MANY.name, verdict, True)
