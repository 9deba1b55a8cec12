"""Figure 5: its rules on planted curves, and the recipe on small settings; test_quick.py has the quick variant."""

import numpy as np
import pytest
import torch

from topic_probe.paper import figure5
from topic_probe.paper.recipe import Run
from topic_probe.paper.training import Trained
from topic_probe.text.corpus import Corpus
from topic_probe.text.word_tokenizer import word_tokenizer
from topic_probe.train.bert import TextConfig
from topic_probe.train.history import History, TrainConfig
from topic_probe.train.stages import measure_dynamics
from topic_probe.train.text import TrainingText

STEPS = np.arange(0, 510, 10)  # too few rows for any to be smoothed
TEXTS = [f"the {a} of the {b} and the {a} {c}" for a in "abcde" for b in "fghij" for c in "klmno"]


def line(first, last=400):
    """From 0.01 on in a straight line between two steps."""
    return 0.01 + np.clip((STEPS - first) / (last - first), 0, None)


def planted(**curves):
    """A history of two layers in which W_V grows from 0 and W_K and W_Q from 200 on, unless given by name.

    W_V turns by 0.4 until step 60 and by 0.1 later.
    """
    rotation = np.where(STEPS < 10, np.nan, np.where(STEPS <= 60, 0.4, 0.1))
    names = [f"W_{letter}.{layer}" for layer in (0, 1) for letter in "KQV"]
    norms = [curves.get(name, line(0 if name[2] == "V" else 200)) for name in names]
    return History(
        toy=TextConfig(vocabulary_size=9, n_layers=2, n_heads=1, d_model=4),
        train=TrainConfig(optimizer="adam", steps=500),
        steps=torch.from_numpy(STEPS),
        table=torch.from_numpy(np.stack([STEPS * 0.0, *norms, rotation, rotation], axis=1)),
        columns=("loss", *(f"norm_{name}" for name in names), "rotation_W_V.0", "rotation_W_V.1"),
        measured={},
        tensors={},
        last_step=500,
    )


def rows(history):
    return figure5.layer_rows(history, measure_dynamics(history, until=400, least=0.05))


def test_what_the_claims_look_at_is_what_was_worked_out_by_hand():
    first, second = rows(planted(**{"W_Q.1": line(0)}))
    # 5 % of the largest norm, 1.01 at step 400: W_V is above 0.0505 from 0.0405 · 400 = 16.2 on, W_K from 208.1 on.
    # Stage 1 ends at step 100: W_K is still 0.01 of 1.01, W_V has a quarter of its growth and is 0.26 of 1.01 by then.
    # 6 rows turn by 0.4 and 4 by 0.1 until step 100, then all by 0.1.
    expected = {
        "value_start": 20, "key_start": 210, "query_start": 210, "later": 210 / 20, "value_share": 210 / 400,
        "attention_size": 1.0, "attention_in_stage_1": 0.01 / 1.01, "value_in_stage_1": 0.25,
        "value_in_stage_2": 1.01 / 0.26, "turning": (6 * 0.4 + 4 * 0.1) / 10 / 0.1,
    }  # fmt: skip
    assert {name: first[name] for name in expected} == pytest.approx(expected)
    assert (first["two_stages"], first["flat_first"]) == (True, False)  # W_V grows to the end
    # In layer 1 W_Q grows with W_V.
    expected = {"later": 1.0, "value_share": 20 / 400, "attention_in_stage_1": 0.26 / 1.01, "two_stages": 0}
    assert {name: second[name] for name in expected} == pytest.approx(expected)
    worst = figure5.worst_layer([first, second])
    expected = {"later": 1.0, "attention_in_stage_1": 0.26 / 1.01, "two_stages": 0.5}
    assert {name: worst[name] for name in expected} == pytest.approx(expected)


def test_tensors_that_never_start_have_no_stages():
    found = rows(planted(**{f"W_{letter}.0": np.full(51, 0.5) for letter in "KQ"}))
    assert np.isnan([found[0]["later"], found[0]["value_share"]]).all()
    assert [row["two_stages"] for row in found] == [False, True]
    assert np.isnan(figure5.worst_layer(found)["later"])


def test_a_shuffled_text_has_the_words_as_often_and_its_special_tokens_in_place():
    tokenizer = word_tokenizer(TEXTS, n_words=10)
    text = TrainingText.read(Corpus.from_texts(TEXTS).documents(tokenizer, max_length=8))
    shuffled = figure5.shuffled_text(text, seed=0)
    special = np.isin(text.ids, tokenizer.all_special_ids)
    assert 0.2 < special.mean() < 0.6
    np.testing.assert_array_equal(shuffled.ids[special], text.ids[special])
    np.testing.assert_array_equal(np.sort(shuffled.ids), np.sort(text.ids))
    np.testing.assert_array_equal(shuffled.starts, text.starts)
    moved = shuffled.ids[~special] != text.ids[~special]
    assert moved.mean() > 0.5


SEEN = {
    "flat_first": 1.0, "value_in_stage_2": 2.0, "attention_in_stage_1": 0.01, "value_in_stage_1": 0.5, "turning": 5.0,
    "later": 8.0, "attention_size": 0.9, "two_stages": 1.0,
}  # fmt: skip
BROKEN = {
    "flat_first": 0.0, "value_in_stage_2": 1.0, "attention_in_stage_1": 0.5, "value_in_stage_1": 0.1, "turning": 1.0,
    "later": 1.0, "attention_size": 0.1, "two_stages": 0.0,
}  # fmt: skip


def judged(seen=SEEN, **broken):
    """The verdicts of a result with such numbers, by quantity; controls have others."""
    run = Run(figure5.RECIPE, quick=True)
    by_control = {"": seen, "text shuffled word by word": BROKEN, "usual initialisation": BROKEN, **broken}
    numbers = [
        {"setting": one.name, "control": one.control, "seed": one.seed, **by_control[one.control]}
        for one in run.trainings
    ]
    trained = tuple(Trained(one, planted(), 0.0) for one in run.trainings)
    result = run.result(runs=trained, tables={"numbers": numbers, "layers": []})
    claims = [claim for check in figure5.RECIPE.claims for claim in check(result)]
    return {quantity: claim.verdict for quantity, claim in zip(SEEN, claims, strict=True)}


def test_what_is_seen_in_a_control_too_is_no_evidence_and_what_is_not_seen_does_not_hold():
    holds = dict.fromkeys(SEEN, "holds")
    assert judged() == holds
    for quantity in [*SEEN][:-1]:
        too = {"text shuffled word by word": {**BROKEN, quantity: SEEN[quantity]}}
        assert judged(**too) == holds | {quantity: "not evidence"}
        assert judged({**SEEN, quantity: BROKEN[quantity]}) == holds | {quantity: "does not hold"}
        assert judged({**SEEN, quantity: None}) == holds | {quantity: "undecided"}
    # Stages that every setting has depend on nothing.
    usual = {"usual initialisation": {**BROKEN, "two_stages": 1.0}}
    assert judged(**usual) == holds | {"two_stages": "does not hold"}
