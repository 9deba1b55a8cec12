"""The map of the stages: what became of a training, and a rule found on half of a map and judged on the rest."""

from dataclasses import replace
from itertools import pairwise
from math import inf, nan

import matplotlib
import numpy as np
import pytest
import torch
from hand_made import hand_made

from topic_probe.paper import stages
from topic_probe.paper.recipe import Run, run_recipe
from topic_probe.paper.stages import ALONE, DIVERGES, FIRST, NEITHER, OUTCOMES, TWO_STAGES, StageRule
from topic_probe.paper.training import CE_ADAM, PAIRS, SQ_SGD, Trained, slug
from topic_probe.toy import theory
from topic_probe.toy.masking import Masking
from topic_probe.toy.world import World
from topic_probe.train.history import History, TrainConfig

NOISES, RATES = (0.001, 0.01, 0.1, 0.2, 0.3, 1.0), (0.1, 1.0, 3.0, 10.0, 30.0, 100.0)


def planted(noise, rate):
    """What the map below has been made by: little noise, and a rate between 2 and 50."""
    return noise < 0.15 and 2 < rate < 50


def a_map(two_stages=planted, *, pair=SQ_SGD, other=NEITHER, seeds=3, **numbers):
    """A row for every training of a grid; the ratio goes with the square of the noise."""
    return [
        {
            "loss": pair[0], "optimizer": pair[1], "noise": noise, "rate": rate, "seed": seed, "ratio": noise**2,
            "outcome": TWO_STAGES if two_stages(noise, rate) else other, "attention follows": False,
            "the other way round": False, "start": 100.0 + 10 * seed, **numbers,
        }
        for rate in RATES
        for noise in NOISES
        for seed in range(seeds)
    ]  # fmt: skip


def made(rows):
    result = hand_made([], [])
    return replace(result, tables={"trainings": rows, "cells": list(stages.cells(rows))})


def claims(check, rows):
    return {(claim.text[:20], claim.setting): claim for claim in check(made(rows))}


# -------------------------------------------------------------------- what became of a training


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({"flat": 10.0, "start": 300.0}, TWO_STAGES),
        ({"flat": 10.0, "start": nan}, ALONE),
        ({"flat": 10.0, "start": 10.0}, FIRST),
        ({"flat": nan, "start": 3.0}, FIRST),
        ({"flat": nan, "start": nan}, NEITHER),
        ({"flat": 10.0, "start": 300.0, "last loss": 1.2}, DIVERGES),
        ({"flat": nan, "start": nan, "last loss": nan}, DIVERGES),
    ],
)
def test_an_outcome_follows_from_losses_and_from_what_starts_when(numbers, expected):
    assert stages.outcome({"first loss": 1.0, "last loss": 0.9, **numbers}) == expected


def trained(value, attention, *, stopped="finished"):
    """The first setting of the grid, with these norms of W_V and of both W_K and W_Q."""
    setting, steps = stages.SETTINGS[0], torch.arange(len(value))
    table = torch.from_numpy(np.stack([np.full(len(value), 0.95), value, attention, attention], axis=1))
    history = History(
        setting.toy, TrainConfig(steps=len(value) - 1), steps, table, ("loss", "norm_W_V", "norm_W_K", "norm_W_Q"), {},
        {}, len(value) - 1, stopped,
    )  # fmt: skip
    return Trained(setting, history, 1.0)


def test_the_stages_are_looked_for_the_other_way_round_too():
    t = np.arange(1001)
    settles, late = 4 - 3 * np.exp(-t / 20), 1 + 0.01 * np.clip(t - 350, 0, None)
    assert stages._the_other_way_round(trained(late, settles))
    assert not stages._the_other_way_round(trained(settles, late))
    assert not stages._the_other_way_round(trained(late, settles, stopped="diverged: …"))


def test_a_cell_has_what_most_of_its_seeds_have_and_the_median_length_of_stage_1():
    rows = a_map(lambda noise, rate: rate == 3.0)
    rows = [{**row, "outcome": DIVERGES} if row["rate"] == 3.0 and row["seed"] == 2 else row for row in rows]
    rows = [{**row, "attention follows": row["noise"] == 0.1 and row["seed"] > 0} for row in rows]
    found = {(cell["rate"], cell["noise"]): cell for cell in stages.cells(rows)}
    assert len(found) == len(NOISES) * len(RATES)
    cell = found[3.0, 0.1]
    assert (cell["outcome"], cell["length"], cell["attention follows"]) == (TWO_STAGES, 105.0, True)
    assert (found[1.0, 0.01]["outcome"], found[1.0, 0.01]["length"]) == (NEITHER, None)
    assert not found[1.0, 0.01]["attention follows"]


def test_the_predicted_ratio_is_that_of_theory_on_one_batch_for_all():
    world, generator = World(), torch.Generator().manual_seed(stages.EVALUATION_SEED)
    documents = world.documents(40, generator=generator)
    batch = Masking().corrupt(documents, n_words=world.n_words, generator=generator)
    for loss in ("squared", "cross_entropy"):
        expected = theory.initial_gradients(world, batch, loss=loss).ratio(0.02)
        assert stages.predicted_ratio(loss, 0.02) == expected


# -------------------------------------------------------------------- the rule


def test_half_of_the_cells_is_held_back_and_no_two_neighbours_are():
    rows = a_map()
    chosen = {
        (row["noise"], row["rate"]): back for row, back in zip(rows, stages.held_back(rows), strict=True)
    }
    assert sum(chosen.values()) == len(chosen) // 2
    for noises in pairwise(NOISES):
        for rate in RATES:
            assert chosen[noises[0], rate] != chosen[noises[1], rate]
    assert not chosen[NOISES[0], RATES[0]]


def test_a_planted_rule_is_found_on_half_of_a_map_and_is_right_of_the_rest():
    rule = stages.fitted(a_map())
    assert 0.01 < rule.ratio < 0.04
    assert 1.0 < rule.slowest < 3.0
    assert 30.0 < rule.fastest < 100.0
    # Worked by hand: between 0.1² and 0.2², 1 and 3, 30 and 100, each in the middle of their logarithms.
    assert (rule.ratio, rule.slowest, rule.fastest) == pytest.approx((0.02, 3**0.5, 3000**0.5))
    assert all(rule.predicts(row) == (row["outcome"] == TWO_STAGES) for row in a_map())
    claim = claims(stages._rule, a_map())["Whether there are tw", "all"]
    assert (claim.measured.value, claim.verdict) == (1.0, "holds")
    assert claim.controls["what is most frequent"].value == 0.5
    assert claim.controls["shuffled outcomes"].value < 0.75


def test_the_rule_knows_nothing_of_the_cells_that_it_is_judged_on():
    rows = a_map()
    turned = [
        {**row, "outcome": NEITHER if row["outcome"] == TWO_STAGES else TWO_STAGES} if back else row
        for row, back in zip(rows, stages.held_back(rows), strict=True)
    ]
    assert stages.fitted(turned) == stages.fitted(rows)
    claim = claims(stages._rule, turned)["Whether there are tw", "all"]
    assert (claim.measured.value, claim.verdict) == (0.0, "does not hold")


def test_of_rules_that_are_equally_good_it_is_the_one_that_predicts_more():
    """Of the even noises the first and third have two stages: with the first alone, or the first three, ¾ is right."""
    chosen = dict(zip(NOISES, (True, False, False, False, True, False), strict=True))
    rows = [row for row in a_map(lambda noise, _: chosen[noise]) if row["rate"] == RATES[0]]
    rows += [{**row, "noise": 2.0, "ratio": 4.0, "outcome": NEITHER} for row in rows[:3]]
    assert stages.fitted(rows).ratio == pytest.approx(0.6)  # between 0.3² and 2²


@pytest.mark.parametrize("seed", range(3))
def test_outcomes_that_follow_no_rule_are_not_predicted(seed):
    chance = dict(
        zip(
            [(noise, rate) for noise in NOISES for rate in RATES],
            np.random.default_rng(seed).random(36) < 0.3,
            strict=True,
        )
    )
    claim = claims(stages._rule, a_map(lambda *cell: bool(chance[cell])))["Whether there are tw", "all"]
    assert claim.verdict == "does not hold"


def test_a_map_without_two_stages_has_nothing_to_tell_apart():
    rows = [*a_map(), *a_map(lambda *_: False, pair=CE_ADAM)]
    found = claims(stages._rule, rows)
    assert found["Whether there are tw", "all"].verdict == "holds"
    none = found["Whether there are tw", "cross-entropy, Adam"]
    assert (none.verdict, none.not_checked) == ("not checked", "no training held back has two stages")
    rule = stages.fitted(a_map(lambda *_: False))
    assert not any(rule.predicts(row) for row in rows)
    assert stages.fitted(a_map(lambda *_: True)) == StageRule(inf, 0.0, inf)


@pytest.mark.parametrize(
    ("guess", "truth", "expected"),
    [
        ([True, True, False, False], [True, True, True, False], (2 / 3 + 1) / 2),
        ([True] * 4, [True, False, False, False], 0.5),
        ([False] * 4, [True, False, False, False], 0.5),
        ([True, False], [True, False], 1.0),
    ],
)
def test_balanced_accuracy_is_worked_out_by_hand(guess, truth, expected):
    assert stages.balanced_accuracy(guess, truth) == pytest.approx(expected)


def test_balanced_accuracy_of_one_kind_alone_is_undefined():
    assert np.isnan(stages.balanced_accuracy([True, False], [True, True]))


def test_outcomes_are_dealt_to_other_cells_with_the_seeds_of_a_cell_together():
    rows = [{**row, "outcome": (row["noise"], row["rate"], row["seed"])} for row in a_map()]
    dealt = stages._dealt(rows, np.random.default_rng(0))
    assert sorted(row["outcome"] for row in dealt) == sorted(row["outcome"] for row in rows)
    assert all(row["outcome"][2] == row["seed"] for row in dealt)
    sources = {(row["noise"], row["rate"]): row["outcome"][:2] for row in dealt}
    assert len(set(sources.values())) == 36
    assert sum(cell != source for cell, source in sources.items()) > 30


# -------------------------------------------------------------------- claims


def test_a_variety_needs_more_than_a_tenth_of_the_grid_for_every_loss_and_optimizer():
    rows = [*a_map(), *a_map(lambda noise, rate: (noise, rate) == (0.01, 3.0), pair=CE_ADAM)]
    found = claims(stages._variety, rows)
    assert found["W_V settles before W", "squared, SGD"].measured.value == pytest.approx(9 / 36)
    assert found["W_V settles before W", "squared, SGD"].verdict == "holds"
    assert found["W_V settles before W", "cross-entropy, Adam"].verdict == "does not hold"
    swapped = [{**row, "the other way round": True} for row in rows]
    assert claims(stages._variety, swapped)["W_V settles before W", "squared, SGD"].verdict == "not evidence"


def test_attention_has_to_follow_in_trainings_of_two_stages_and_not_in_those_of_one():
    rows = a_map(other=ALONE)
    text = "Where there are two "
    assert claims(stages._following, rows)[text, "all"].verdict == "does not hold"
    follows = [{**row, "attention follows": row["outcome"] == TWO_STAGES} for row in rows]
    assert claims(stages._following, follows)[text, "all"].verdict == "holds"
    everywhere = [{**row, "attention follows": True} for row in rows]
    assert claims(stages._following, everywhere)[text, "all"].verdict == "not evidence"
    nowhere = a_map(lambda *_: False, other=ALONE)
    assert claims(stages._following, nowhere)[text, "all"].verdict == "undecided"
    first = [*a_map(other=ALONE), *a_map(lambda *_: False, pair=CE_ADAM, other=FIRST)]
    changes = [{**row, "attention follows": row["outcome"] == FIRST} for row in first]
    assert claims(stages._following, changes)["Where W_K or W_Q sta", "all"].verdict == "holds"
    assert claims(stages._following, first)["Where W_K or W_Q sta", "all"].verdict == "does not hold"


# -------------------------------------------------------------------- the recipe


def test_the_grid_has_six_noises_and_more_rates_for_every_loss_and_optimizer():
    assert set(stages.RATES) == set(PAIRS)
    assert len(stages.NOISES) >= 6
    assert all(len(rates) >= 6 for rates in stages.RATES.values())
    for settings in (stages.SETTINGS, stages.QUICK_SETTINGS):
        assert len({slug(setting.name) for setting in settings}) == len(settings)
    assert len(stages.SETTINGS) == sum(map(len, stages.RATES.values())) * len(stages.NOISES)


def test_toys_of_one_rate_are_trained_side_by_side_and_each_has_a_row(monkeypatch):
    short = [
        replace(one, train=replace(one.train, steps=24, measure_every=24)) for one in stages.QUICK_SETTINGS
    ]
    stacks = []

    def train(settings, **options):
        settings = list(settings)
        stacks.append([(one.train.learning_rate, one.toy.noise, one.seed) for one in settings])
        return train_all(settings, **options)

    train_all = stages.train_all
    monkeypatch.setattr(stages, "train_all", train)
    before = dict(matplotlib.rcParams)
    recipe = replace(stages.RECIPE, quick_settings=tuple(short[:6]), quick_seeds=2)
    result = run_recipe(recipe, quick=True, seed=5)
    assert [sorted(stack) for stack in stacks] == [
        [(rate, noise, seed) for noise in stages.QUICK_NOISES for seed in (5, 6)]
        for rate in stages.QUICK_RATES[SQ_SGD][:2]
    ]
    rows = result.tables["trainings"]
    assert [(row["rate"], row["noise"], row["seed"]) for row in rows] == [
        one for stack in stacks for one in stack
    ]
    assert {row["outcome"] for row in rows} <= set(OUTCOMES)
    for row in rows:
        assert row["ratio"] == stages.predicted_ratio("squared", row["noise"])
    assert result.runs == ()
    (panel,) = result.figures()["map"].axes
    assert panel.get_title() == "squared, SGD"
    assert len([patch for patch in panel.patches if patch.get_fill()]) == 6
    assert dict(matplotlib.rcParams) == before
    assert Run(stages.RECIPE).seeds == 3
