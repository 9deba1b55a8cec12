"""Figures 2 and 10 and Table 3: what is measured and claimed of W_V and of attention, and that it can fail."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from made_result import made_result

from topic_probe.paper import figure2
from topic_probe.paper.toys import ATTENTION_FROZEN, NO_TOPICS, SHUFFLED, UNTRAINED, Case, shuffles
from topic_probe.paper.training import train_all
from topic_probe.topics import Topics
from topic_probe.toy import theory
from topic_probe.toy.masking import Masking
from topic_probe.toy.world import World

BLOCKS = Topics.blocks(n_topics=10, words_per_topic=10)
ADAM = next(one for one in figure2.SETTINGS if one.name == "value, squared, Adam, L2")
JOINT, TURNS = (
    next(one for one in settings if one.name.startswith("attention, squared, Adam"))
    for settings in (figure2.ATTENTION, figure2.ALTERNATING)
)


def case(topics=BLOCKS, **tensors):
    """A toy of the regime in which all is trained, with these tensors in place of its own and 0 for others."""
    (trained,) = train_all([replace(JOINT, train=replace(JOINT.train, steps=0, schedule=()))])
    values = {name: torch.zeros_like(value) for name, value in trained.history.tensors.items()}
    history = replace(trained.history, tensors=values | {"W_E": torch.eye(101), **tensors})
    return Case(replace(trained, history=history), topics, quick=True)


def test_in_turns_every_tensor_has_as_many_steps_as_jointly():
    steps = {setting.name: setting.train.steps for setting in figure2.ATTENTION}
    for setting in figure2.ALTERNATING:
        together = steps[setting.name.removesuffix(figure2.IN_TURNS)]
        moves = [
            sum(setting.train.moves(name, step) for step in range(setting.train.steps))
            for name in ("W_V", "W_K")
        ]
        assert moves == [together, together]


def test_block_means_are_those_of_every_pair_of_topics_and_of_mask():
    topics = Topics.from_token_ids({"a": [1, 3], "b": [2, 4, 5]}, vocabulary_size=6)
    matrix = np.random.default_rng(0).normal(size=(6, 6))
    wanted = np.zeros((6, 6))
    for rows in ([0], [1, 3], [2, 4, 5]):
        for columns in ([0], [1, 3], [2, 4, 5]):
            wanted[np.ix_(rows, columns)] = np.mean([matrix[i, j] for i in rows for j in columns])
    np.testing.assert_allclose(figure2.block_means(matrix, topics), wanted)


def test_theorem_2s_own_w_v_is_as_high_as_in_theorem_2_and_at_no_distance():
    optimum = theory.optimal_value(World(), Masking())
    # Noise that cancels within blocks, as that of an optimizer that never settles nearly does.
    noise = np.random.default_rng(0).normal(size=(101, 101))
    noise = torch.from_numpy(noise - figure2.block_means(noise, BLOCKS))
    for W_V in (optimum, optimum + noise):
        found = figure2._value_blocks(case(W_V=W_V))
        assert found["height"] == pytest.approx(1)
        assert found["distance of block means"] < 1e-6
    # Of shuffled labels one entry in ten is high within topics, the diagonal, beside what a shuffle leaves together.
    wrong = [figure2._value_blocks(case(topics, W_V=optimum))["height"] for topics in shuffles(BLOCKS)[:8]]
    assert np.mean(wrong) == pytest.approx(0.1 * 90 / 99, abs=0.04)


def test_blocks_of_attention_are_seen_word_by_word():
    keys = torch.zeros(101, 101)
    keys[:10] = 5.0 * torch.from_numpy(BLOCKS.labels(torch.arange(101)).numpy() == np.arange(10)[:, None])
    found = [
        figure2._attention_blocks(case(topics, W_K=keys, W_Q=keys.clone()))["own topic first"]
        for topics in (BLOCKS, shuffles(BLOCKS)[0])
    ]
    assert found[0] == 1.0
    assert found[1] < 0.3
    assert figure2._attention_blocks(case())["own topic first"] == 0.0


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [
        ({}, []),
        ({"height": 0.89}, ["The blocks of W_V are as high as in Theorem 2"]),
        ({"distance to the optima": 0.26}, ["W_V is near the optima under uniform attention"]),
        ({"distance to Theorem 2": 0.56}, ["With L2, W_V is near the one optimum of the smallest norm"]),
        ({"distance of block means": 0.31}, ["With L2 and Adam, W_V is near it on the average over each block"]),
    ],
)  # fmt: skip
def test_each_claim_about_theory_fails_for_its_own_number(numbers, wrong):
    distances = ("distance to the optima", "distance to Theorem 2", "distance of block means")
    good = {"height": 1.0, "worst residual": 0.1, **dict.fromkeys(distances, 0.1), **numbers}
    far = {"height": 0.0, **dict.fromkeys(distances, 1.0)}
    controls = {(ADAM.name, one.name): [far] * 2 for one in (NO_TOPICS, UNTRAINED, SHUFFLED)}
    found = list(figure2._closed_form(made_result({(ADAM.name, ""): [good] * 3, **controls}, ADAM)))
    assert [
        one.text.partition(" (")[0].partition(",  topic")[0][:60] for one in found if one.verdict != "holds"
    ] == [text[:60] for text in wrong]


@pytest.mark.parametrize(
    ("own", "broken", "verdicts"),
    [
        ((2.0, 2.0, 1.0), {}, ["holds", "holds", "holds"]),
        # Attention to the word itself takes the mean above 1, while other words of the topic get less.
        ((2.0, 0.55, 0.0), {}, ["holds", "does not hold", "does not hold"]),
        ((2.0, 2.0, 1.0), {NO_TOPICS: (3.45, 0.8, 0.1)}, ["not evidence", "holds", "holds"]),
        ((2.0, 2.0, 1.0), {SHUFFLED: (2.53, 1.0, 0.1)}, ["not evidence", "holds", "holds"]),
        ((2.0, 2.0, 1.0), {ATTENTION_FROZEN: (1.2, 1.2, 0.1)}, ["not evidence", "not evidence", "holds"]),
    ],
)
def test_attention_to_the_topic_is_claimed_with_the_word_itself_and_without(own, broken, verdicts):
    quantities = ("weighted mean", "other words", "own topic first")
    known = {
        one: broken.get(one, (1.0, 1.0, 0.1)) for one in (NO_TOPICS, SHUFFLED, UNTRAINED, ATTENTION_FROZEN)
    }
    rows = {
        (JOINT.name, one.name): [dict(zip(quantities, given, strict=True))] * 2
        for one, given in known.items()
    }
    rows[JOINT.name, ""] = [dict(zip(quantities, own, strict=True))] * 3
    result = made_result(rows, JOINT)
    assert [claim.verdict for check in figure2.TABLE3.claims for claim in check(result)] == verdicts


@pytest.mark.parametrize(
    ("share", "verdicts"),
    [(1.1, ["holds"] * 3), (1.4, ["does not hold", "does not hold", "holds"]), (0.4, ["does not hold"] * 3)],
)
def test_joint_training_is_compared_with_turns_seed_by_seed(share, verdicts):
    def numbers(values):
        return [dict.fromkeys(("height", "gain", "weighted mean"), value) for value in values]

    turns = [1.0, 1.5, 2.0]
    rows = {(JOINT.name, one.name): numbers([0.1, 0.1]) for one in (UNTRAINED, NO_TOPICS, SHUFFLED)}
    rows |= {(JOINT.name, ""): numbers([share * value for value in turns]), (TURNS.name, ""): numbers(turns)}
    found = list(figure2._carried_over(made_result(rows, JOINT, TURNS)))
    assert [claim.verdict for claim in found] == verdicts
    assert all(claim.measured.ends == pytest.approx((share, share)) for claim in found)
    assert found[0].controls[SHUFFLED.name].value == pytest.approx((0.1 / 1.0 + 0.1 / 1.5) / 2)
