"""Trainings as rows: what a control breaks, how numbers of a trained toy are counted, what goes into a table."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

import topic_probe as tp
from topic_probe.paper.claims import Bound, Claim
from topic_probe.paper.recipe import Run
from topic_probe.paper.toys import shares_of_gain
from topic_probe.paper.trainings import CONTROLS, blocks, cases, toys, training, usual_tensors, without_topics
from topic_probe.paper.two_stages import delays, share_of_growth, slopes

WORLD = tp.World(n_topics=2, words_per_topic=2, min_length=8, max_length=8)
SMALL = {"world": WORLD}


def row(regime="value", **more):
    given = {"steps": 4, "quick": {"steps": 2}, "toy": SMALL, **more}
    return training(regime, "squared", "adam", **given)


def claim(*controls, above=0.0):
    return Claim(
        id="C", says="", source="", bounds=(Bound("own topic first", above=above),), controls=controls
    )


def test_blocks_are_counted_by_hand():
    # Two topics of two words; 0 is [MASK]. Word 1 prefers its topic, word 4 does not; the diagonal does not count.
    matrix = np.array(
        [
            [9.0, 9, 9, 9, 9],
            [9, 7, 3, 1, 1],
            [9, 3, 7, 1, 2],
            [9, 1, 1, 7, 4],
            [9, 1, 9, 2, 7],
        ]
    )
    found = blocks(matrix, WORLD.blocks)
    assert found["own topic first"] == 0.75
    assert found["same word"] == 7.0
    assert found["same topic"] == (3 + 3 + 4 + 2) / 4
    assert found["different topics"] == (1 + 1 + 1 + 2 + 1 + 1 + 1 + 9) / 8
    values = [3.0, 3, 4, 2, 1, 1, 1, 2, 1, 1, 1, 9]
    assert found["effect size"] == pytest.approx((3.0 - 17 / 8) / np.std(values))


def test_words_that_differ_from_others_by_rounding_alone_have_no_block():
    matrix = np.ones((5, 5))
    matrix[1, 2] = matrix[2, 1] = matrix[3, 4] = matrix[4, 3] = 1 + 1e-14
    assert blocks(matrix, WORLD.blocks)["own topic first"] == 0.0


def test_documents_without_topics_have_all_words_equally_often():
    world = without_topics(WORLD)
    documents = world.documents(2_000, generator=torch.Generator().manual_seed(0))
    ids = documents.ids[documents.mask] if hasattr(documents, "mask") else documents.ids.flatten()
    share = torch.bincount(ids, minlength=5)[1:].double() / len(ids)
    assert torch.allclose(share, torch.full((4,), 0.25, dtype=torch.float64), atol=0.02)
    assert world.topics_per_document == world.n_topics


def trained(rows, control, **more):
    """One case of every control, after the quick variant."""
    found = cases(rows, [claim(control)], Run(quick=True, seed=5))
    return {(case.control, case.seed): case for case in found}


@pytest.mark.parametrize(
    ("control", "regime", "still"),
    [
        ("only a bias trained", "full", ("W_E", "W_V", "W_K")),
        ("W_V frozen", "attention", ("W_V", "b_V")),
    ],
)
def test_what_a_control_freezes_stays_where_it_begins_and_the_rest_moves(control, regime, still):
    (first, *_) = (row(regime, learning_rate=0.1),)
    case = trained([first], control)[control, 5]
    begin = tp.toy_tensors(case.row.model(5))
    moved = {name for name, value in case.history.tensors.items() if not torch.equal(value, begin[name])}
    assert moved
    assert not moved & set(still)


def test_tensors_of_usual_size_begin_as_those_of_a_usual_toy_and_the_others_near_zero():
    config = tp.ToyConfig(regime="two-stage", noise=1e-8, **SMALL)
    usual = tp.toy_tensors(tp.build_toy(tp.ToyConfig(regime="two-stage", init="usual", **SMALL), seed=3))
    large = CONTROLS["W_Q at its usual size"](row("two-stage", toy={**SMALL, "noise": 1e-8}))
    found = tp.toy_tensors(large.model(3))
    assert torch.equal(found["W_Q"], usual["W_Q"])
    assert float(found["W_K"].detach().abs().max()) < 1e-6
    assert usual_tensors("W_K")(config, 3).keys() == {"W_K"}


def test_the_optimal_values_of_other_topics_are_those_of_words_dealt_anew():
    other = tp.toy_tensors(CONTROLS["W_V of other topics"](row("keys")).model(0))["W_V"].double()
    own = tp.theory.optimal_value(WORLD, tp.Masking())
    # Words 1, 2 | 3, 4 become 1, 3 | 2, 4.
    order = [0, 1, 3, 2, 4]
    assert torch.allclose(other, own[order][:, order].double(), atol=1e-6)
    assert not torch.allclose(other, own.double(), atol=1e-2)


def test_every_row_is_trained_with_every_seed_and_broken_where_a_claim_asks_for_it():
    rows = [row(), row("keys", quick=None)]
    run = Run(quick=True, seed=5)
    found = [
        (case.row.name, case.control, case.seed, case.history.last_step)
        for case in cases(rows, [claim("no topics")], run)
    ]
    name = rows[0].name
    expected = [(name, control, seed, 2) for control in ("", "no topics") for seed in (5, 6, 7)]
    assert found == expected


def test_measuring_gives_a_row_for_every_case_and_keeps_arrays_by_name():
    def numbers(case):
        return {"own topic first": 1.0 + case.seed, "last": np.float32(0.5)}

    measure = toys([row()], [claim()], numbers, arrays=lambda case: {"loss": case.history.loss.numpy()})
    found = measure(Run(quick=True, seed=0))
    assert [one["own topic first"] for one in found.numbers] == [1.0, 2.0, 3.0]
    assert found.numbers[0]["regime"] == "value"
    assert type(found.numbers[0]["last"]) is float
    assert set(found.arrays) == {f"value, squared, Adam · {seed} · loss" for seed in range(3)}


def test_the_share_of_a_gain_is_that_of_the_freer_training_of_the_same_seed():
    rows = [
        {"training": name, "regime": regime, "loss": "squared", "optimizer": "adam", "control": control, "seed": seed,
         "gain over guessing": gain, "loss on fresh documents": 1 - gain}
        for name, regime, control, gains in (
            ("f", "full", "", (0.5, 0.4)), ("e", "embedding", "", (0.4, 0.1)), ("e", "embedding", "bias", (0.1, 0.0)),
            ("f", "full", "no topics", (9.0, 9.0)),
        )
        for seed, gain in enumerate(gains)
    ]  # fmt: skip
    found = shares_of_gain("embedding", "full")(pd.DataFrame(rows))
    shares = {(one["control"], one["seed"]): one["share of the gain"] for one in found}
    assert shares == pytest.approx({("", 0): 0.8, ("", 1): 0.25, ("bias", 0): 0.2, ("bias", 1): 0.0})
    assert found[0]["times the loss"] == pytest.approx(0.6 / 0.5)


def test_the_slope_of_first_gradients_is_that_of_their_logarithms():
    rows = [
        {"training": f"t{noise:g}", "loss": "squared", "control": "", "seed": 0, "steps": 0, "noise": noise,
         "gradient of W_K ÷ W_V": 3 * noise**2}
        for noise in (1e-4, 1e-3, 1e-2)
    ]  # fmt: skip
    assert [one["slope"] for one in slopes(pd.DataFrame(rows))] == pytest.approx([2.0])


def test_a_delay_is_the_step_with_a_small_query_divided_by_that_with_a_large_one():
    rows = [
        {"training": "t", "loss": "squared", "optimizer": "sgd", "steps": 9, "seed": 0, "control": control,
         "W_K starts at": key, "W_V starts at": 2.0}
        for control, key in (("", 340.0), ("W_Q at its usual size", 10.0))
    ]  # fmt: skip
    found = {one["control"]: one["start ÷ start with a large W_Q"] for one in delays(pd.DataFrame(rows))}
    assert found == {"": 34.0, "W_V in place of W_K": 1.0}


def test_the_share_of_growth_is_taken_where_keys_or_queries_have_made_a_twentieth():
    ramp = np.linspace(0, 1, 101)
    norms = {"W_V": 1 + ramp, "W_K": np.maximum(0, ramp - 0.5), "W_Q": np.zeros(101) + 0.1 * (ramp > 0.9)}
    # W_K has a twentieth of its growth of 0.5 at 0.525, that is at row 53.
    assert share_of_growth(norms) == pytest.approx(0.53)
    assert math.isnan(share_of_growth({**norms, "W_V": np.ones(101)}))
