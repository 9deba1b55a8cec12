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

SETTING = Setting("value", ToyConfig(regime="value"), TrainConfig(steps=12))
BLOCKS = Topics.blocks(n_topics=10, words_per_topic=10)


def seeds(*values, name="number"):
    return [{name: value} for value in values]


# -------------------------------------------------------------------- worlds and settings that are broken


def test_without_topics_every_document_has_all_words_alike():
    world = without_topics(World())
    documents = world.documents(200, generator=torch.Generator().manual_seed(0))
    by_topic = torch.stack(
        [(((documents.ids - 1) // 10 == topic) & documents.mask).sum(1) for topic in range(10)]
    )
    share = by_topic / documents.lengths
    # 125 words of 10 equally likely topics: √(.1 · .9 / 125) = 0.027 around 0.1.
    assert float(share.std()) == pytest.approx(0.027, abs=0.003)
    assert (world.vocabulary_size, world.max_length) == (World().vocabulary_size, World().max_length)


def test_frozen_tensors_keep_what_the_toy_begins_with():
    setting = Setting("full", ToyConfig(regime="full"), TrainConfig(steps=3, optimizer="adam"))
    broken = ATTENTION_FROZEN.train(setting)
    (trained,) = train_all([broken])
    first = toy_tensors(build_toy(setting.toy, seed=0))
    for name in ("W_K", "W_Q", "b_K", "b_Q"):
        assert torch.equal(trained.history.tensors[name], first[name])
    for name in ("W_E", "W_V", "b_V", "b_pred"):
        assert not torch.equal(trained.history.tensors[name], first[name])


def test_there_is_nothing_to_break_where_attention_is_frozen_anyway():
    assert ATTENTION_FROZEN.train(SETTING) is None
    keys = Setting("keys", ToyConfig(regime="keys"), TrainConfig(steps=3))
    assert ATTENTION_FROZEN.train(keys) is None  # nothing would be left to train


def test_where_attention_is_frozen_the_turns_of_the_others_stay():
    turns = ((5, ("W_V", "b_V")), (5, ("W_K", "W_Q", "b_K", "b_Q")))
    setting = Setting("attention", ToyConfig(regime="attention"), TrainConfig(steps=20, schedule=turns))
    broken = ATTENTION_FROZEN.train(setting)
    assert broken.train.schedule == ((5, ("W_V", "b_V")),)
    assert broken.toy.trained_tensors == ("W_V", "b_V")


def test_shuffled_labels_are_many_draws():
    draws = shuffles(BLOCKS)
    assert len({tuple(each.labels(each.words).tolist()) for each in draws}) == len(draws) == 20
    assert all(each.sizes.tolist() == [10] * 10 for each in draws)
    # Nine of the other 99 words are of a word's topic, whoever deals.
    together = [
        (
            torch.as_tensor(each.labels(BLOCKS.words)).view(10, 10)[:, :, None]
            == each.labels(BLOCKS.words).view(10, 1, 10)
        )
        for each in draws
    ]
    share = np.mean([(int(same.sum()) - 100) / 900 for same in together])
    assert share == pytest.approx(9 / 99, abs=0.02)


def test_a_control_of_labels_has_the_median_of_its_draws():
    (trained,) = train_all(
        [Setting("value", ToyConfig(regime="value"), TrainConfig(steps=40, optimizer="adam"))]
    )

    def measured(case):
        return blocks(case.trained.history.tensors["W_V"].double().numpy(), case.topics)

    measure = each_training(of_labels=[measured])
    settings, nothing = (trained.setting,), lambda _: {}
    recipe = Recipe("figure0", "", "", measure, (), nothing, settings, controls=(SHUFFLED,), seeds=1)
    found = run_recipe(recipe)
    every = [measured(Case(trained, topics, quick=False))["effect size"] for topics in shuffles(BLOCKS)]
    assert number(found, "value", "effect size", SHUFFLED.name).value == pytest.approx(
        sum(sorted(every)[9:11]) / 2
    )


# -------------------------------------------------------------------- blocks


def matrix(within=1.0, between=0.0, diagonal=5.0, noise=0.0):
    topic = np.arange(100) // 10
    words = np.where(topic[:, None] == topic, within, between).astype(float)
    np.fill_diagonal(words, diagonal)
    words += noise * np.random.default_rng(0).normal(size=words.shape)
    whole = np.full((101, 101), 77.0)  # row and column of [MASK], which count for nothing
    whole[1:, 1:] = words
    return whole


def test_blocks_are_seen_beside_the_diagonal_and_nothing_but_blocks():
    found = blocks(matrix(), BLOCKS)
    # 900 entries of 1 and 9,000 of 0: a standard deviation of √(1/11 · 10/11).
    assert found == {
        "own topic first": 1.0,
        "effect size": pytest.approx(1 / math.sqrt(10 / 121)),
        "same word": 5.0,
        "same topic": 1.0,
        "different topics": 0.0,
    }
    diagonal = blocks(matrix(within=0.0, noise=1.0), BLOCKS)
    assert diagonal["own topic first"] < 0.3
    assert abs(diagonal["effect size"]) < 0.1


def test_labels_that_are_shifted_or_wrong_lose_as_many_words_as_they_move():
    # Shifted by four, six words of every label are of one topic and four of the next: those find the other label first.
    shifted = Topics.from_token_ids(
        {str(t): [(10 * t + 4 + k) % 100 + 1 for k in range(10)] for t in range(10)}, vocabulary_size=101
    )
    assert blocks(matrix(), shifted)["own topic first"] == pytest.approx(0.6)
    assert blocks(matrix(noise=0.1), BLOCKS.shuffled(0))["own topic first"] < 0.3


def test_a_matrix_of_one_number_has_no_blocks():
    assert blocks(np.full((101, 101), 1 / 101), BLOCKS)["own topic first"] == 0.0


def test_a_block_of_one_topic_alone_is_not_one_for_every_topic():
    one = matrix(within=0.0, noise=1.0)
    one[1:11, 1:11] += 50.0
    found = blocks(one, BLOCKS)
    assert found["own topic first"] < 0.4
    assert found["effect size"] > 0.8  # a mean over all pairs does not see it


# -------------------------------------------------------------------- numbers of a training


def test_losses_are_those_of_the_agreement_on_a_scale_from_guessing_to_the_floor():
    (trained,) = train_all(
        [Setting("value", ToyConfig(regime="value"), TrainConfig(steps=40, optimizer="adam"))]
    )
    case = Case(trained, BLOCKS, quick=True)
    found, report = losses(case), agreement(case)
    assert found["loss"] == report.loss
    assert found["gain"] == pytest.approx((math.log(100) - report.loss) / (math.log(100) - report.floor))
    assert 0 < found["gain"] < 1


def test_attention_between_words_has_theorem_3s_mean_and_that_of_other_words():
    setting = Setting("attention", ToyConfig(regime="attention"), TrainConfig(steps=30, optimizer="adam"))
    (trained,) = train_all([setting])
    found, seen = between_words(Case(trained, BLOCKS, quick=True)), word_attention(trained.model())
    alpha, beta = (seen[name] / seen["different_topic"] for name in ("same_topic", "same_word"))
    assert found["other words"] == pytest.approx(alpha)
    assert found["weighted mean"] == pytest.approx(0.9 * alpha + 0.1 * beta)
    assert found["‖W_K‖"] == pytest.approx(float(trained.history.tensors["W_K"].norm()), rel=1e-5)
    assert found["change of attention"] == pytest.approx(max(abs(alpha - 1), abs(beta - 1)))
    shuffled = between_words(Case(trained, BLOCKS.shuffled(0), quick=True))
    assert abs(shuffled["other words"] - 1) < abs(found["other words"] - 1)


def test_words_that_turn_away_from_mask_have_not_changed_their_attention_to_each_other():
    (trained,) = train_all([Setting("attention", ToyConfig(regime="attention"), TrainConfig(steps=0))])
    away = {name: torch.zeros_like(tensor) for name, tensor in trained.history.tensors.items()}
    away["W_E"] = torch.eye(101)
    away["W_K"][0, 0], away["b_Q"][0] = -100.0, 1.0
    turned = replace(trained, history=replace(trained.history, tensors=away))
    found = between_words(Case(turned, BLOCKS, quick=True))
    assert found["attention, same word"] == pytest.approx(found["attention, different topic"], rel=0.01)
    assert found["attention, same word"] > 1.13  # 12 % of the positions show [MASK]
    assert found["change of attention"] < 0.01


def history_with_losses(values, *, loss="cross_entropy"):
    """A history of a toy of 100 words with the given losses."""
    steps = torch.arange(len(values))
    table = torch.tensor(values, dtype=torch.float64).unsqueeze(1)
    config = TrainConfig(steps=len(values) - 1, loss=loss)
    return History(ToyConfig(regime="value"), config, steps, table, ("loss",), {}, {}, len(values) - 1)


def test_late_improvement_is_the_share_of_the_last_tenth():
    # From log 100 to 3.4 in all, 3.5 to 3.4 from the last tenth but one to the last.
    values = [4.0] * 80 + [3.5] * 10 + [3.4] * 10
    assert late_improvement(history_with_losses(values)) == pytest.approx(0.1 / (math.log(100) - 3.4))
    squared = history_with_losses([0.98] * 80 + [0.96] * 10 + [0.95] * 10, loss="squared")
    assert late_improvement(squared) == pytest.approx(0.01 / (0.99 - 0.95))


def test_a_training_that_has_not_improved_or_was_stopped_has_no_late_improvement():
    assert math.isnan(late_improvement(history_with_losses([4.7] * 100)))
    stopped = replace(history_with_losses([3.5] * 100), stopped="diverged: the loss of step 7 is inf")
    assert math.isnan(late_improvement(stopped))


# -------------------------------------------------------------------- claims


def test_a_number_is_over_the_seeds_of_its_setting_and_control_and_undefined_where_one_is():
    found = made_result({("value", ""): seeds(1.0, 2.0, 3.0), ("value", "untrained"): seeds(0.5, None)})
    assert (number(found, "value", "number").value, number(found, "value", "number").of) == (2.0, "3 seeds")
    assert math.isnan(number(found, "value", "number", "untrained").value)
    assert math.isnan(number(found, "value", "nothing").value)
    assert math.isnan(number(found, "other", "number").value)


def test_a_control_that_was_not_trained_stands_beside_no_claim():
    found = made_result({("value", ""): seeds(1.0, 2.0), ("value", "untrained"): seeds(None)}, SETTING)
    claim = judged(Claim("text", "", "", above=0.0), found, "value", "number", ("untrained", "no topics"))
    assert list(claim.controls) == ["untrained"]
    assert math.isnan(claim.controls["untrained"].value)
    assert not claim.controls_told


def block_numbers(own, no_topics=0.1, untrained=0.1, shuffled=0.1):
    rest = {"effect size": 3.0, "same word": 1.0, "same topic": 1.0, "different topics": 0.0}
    values = {"": own, NO_TOPICS.name: [no_topics], UNTRAINED.name: [untrained], SHUFFLED.name: [shuffled]}
    return {
        ("value", control): [{"own topic first": value, **rest} for value in every]
        for control, every in values.items()
    }


@pytest.mark.parametrize(
    ("numbers", "verdict"),
    [
        (block_numbers([1.0, 0.99, 0.98]), "holds"),
        (block_numbers([0.95, 0.7, 1.0]), "undecided"),
        (block_numbers([0.6, 0.62, 0.58]), "does not hold"),  # 40 % of the labels are wrong
        (block_numbers([1.0, 0.99, 0.98], no_topics=0.95), "not evidence"),
        (block_numbers([1.0, 0.99, 0.98], untrained=0.95), "not evidence"),
        (block_numbers([1.0, 0.99, 0.98], shuffled=0.95), "not evidence"),
    ],
)
def test_blocks_are_claimed_of_all_seeds_and_of_no_control(numbers, verdict):
    (claim,) = block_claims("W_V", reasons={"value": "a reason"})(made_result(numbers, SETTING))
    assert claim.verdict == verdict
    assert ("a reason" in claim.remark) == (verdict in ("undecided", "does not hold"))


def test_convergence_is_to_the_floor_and_not_only_level():
    stuck = {
        ("value", ""): [{"gain": 0.4 + seed / 1000, "late improvement": 0.001 * seed} for seed in range(5)],
        ("value", NO_TOPICS.name): [{"gain": 0.0}],
        ("value", UNTRAINED.name): [{"gain": -0.1}],
        ("value", "a tenth of the steps"): [{"late improvement": 0.3}],
    }
    arrived, level = convergence()(made_result(stuck, SETTING))
    assert (arrived.verdict, level.verdict) == ("does not hold", "holds")
    assert (arrived.ours, level.ours) == (False, True)
    (claim,) = convergence()(made_result(stuck, SETTING, quick=True))
    assert claim.verdict == "not checked"


FEW, MANY = (
    Setting(f"{regime}, squared, Adam", ToyConfig(regime=regime), TrainConfig())
    for regime in ("value", "attention")
)


def comparison(few, many, *, floor=0.9, untrained=0.99):
    """Losses of two regimes, guessing having 0.99 and the freer one a floor."""
    rows = {
        (FEW.name, ""): [few - 0.0001, few, few + 0.0001],
        (MANY.name, ""): [many] * 3,
        (FEW.name, NO_TOPICS.name): [0.99],
        (FEW.name, UNTRAINED.name): [untrained],
    }
    return made_result(
        {
            key: [
                {"loss": loss, "guess": 0.99, "floor": floor, "gain": (0.99 - loss) / (0.99 - floor)}
                for loss in every
            ]
            for key, every in rows.items()
        },
        FEW,
        MANY,
    )


@pytest.mark.parametrize(
    ("losses_", "verdict"),
    [
        ((0.908, 0.9), "holds"),  # 0.082 of 0.09
        ((0.945, 0.9), "does not hold"),  # half of it, though 5 % more in relative terms
        ((0.99, 0.9), "does not hold"),  # a pure guess, though 10 % more in relative terms
        ((0.985, 0.98), "undecided"),  # the freer regime has gained a ninth of what it could
        ((0.945, 1e9), "undecided"),  # it has diverged
    ],
)
def test_a_loss_is_only_slightly_above_another_on_a_scale_where_guessing_is_0(losses_, verdict):
    (claim,) = little_loss("value", "attention", source="")(comparison(*losses_))
    assert claim.verdict == verdict
    assert claim.setting == "squared, Adam"


def test_a_regime_that_loses_as_little_before_training_is_no_evidence():
    (claim,) = little_loss("value", "attention", source="")(comparison(0.908, 0.9, untrained=0.909))
    assert claim.verdict == "not evidence"


def test_attention_is_claimed_to_be_trained_only_where_it_is_trained():
    rows = {
        (MANY.name, control): [{"change of attention": value, "‖W_K‖": 2.0, "‖W_Q‖": 3.0} for value in values]
        for control, values in {
            "": (0.5, 0.51, 0.49),
            UNTRAINED.name: (0.001,),
            ATTENTION_FROZEN.name: (0.002,),
        }.items()
    }
    (claim,) = attention_is_trained()(made_result(rows, FEW, MANY))
    assert (claim.setting, claim.verdict, claim.ours) == (MANY.name, "holds", True)
    norms_only = {**rows, (MANY.name, ""): [{"change of attention": 0.0, "‖W_K‖": 99.0, "‖W_Q‖": 99.0}] * 3}
    (claim,) = attention_is_trained()(made_result(norms_only, FEW, MANY))
    assert claim.verdict == "does not hold"
