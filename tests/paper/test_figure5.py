"""Figure 5: its rules on planted curves, and the recipe on small settings; test_quick.py has the quick variant."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from real_text import minilm_folder

from topic_probe.paper import figure5, reproduce
from topic_probe.paper.claims import summary
from topic_probe.paper.training import slug
from topic_probe.text.corpus import Corpus
from topic_probe.train.bert import TextConfig
from topic_probe.train.history import History, TrainConfig
from topic_probe.train.stages import measure_dynamics

STEPS = np.arange(501)
TEXTS = [f"the {a} of the {b} and the {a} {c}" for a in "abcde" for b in "fghij" for c in "klmno"]


def planted(curves):
    """A history of two layers with norms by name, and a W_V that turns by 0.4 until step 60 and by 0.1 later."""
    rotation = np.where(STEPS < 10, np.nan, np.where(STEPS <= 60, 0.4, 0.1))
    names = [f"W_{letter}.{layer}" for layer in (0, 1) for letter in "KQV"]
    table = np.stack([STEPS * 0.0, *(curves[name] for name in names), rotation, rotation], axis=1)
    return History(
        toy=TextConfig(vocabulary_size=9, n_layers=2, n_heads=1, d_model=4),
        train=TrainConfig(optimizer="adam", steps=500),
        steps=torch.from_numpy(STEPS),
        table=torch.from_numpy(table),
        columns=("loss", *(f"norm_{name}" for name in names), "rotation_W_V.0", "rotation_W_V.1"),
        measured={},
        tensors={},
        last_step=500,
    )


def line(first, last=400, *, height=1.0):
    """From 0.01 on in a straight line between two steps."""
    return 0.01 + height * np.clip((STEPS - first) / (last - first), 0, None)


def rows(history):
    report = measure_dynamics(history, until=400, least=0.05, smooth=1)
    return report, figure5.layer_rows(history, report)


def test_what_the_claims_look_at_is_what_was_worked_out_by_hand():
    late = {f"W_{letter}.{layer}": line(200) for letter in "KQ" for layer in (0, 1)}
    report, (first, second) = rows(planted({**late, "W_V.0": line(0), "W_V.1": line(0), "W_Q.1": line(0)}))
    # 5 % of the largest norm, 1.01 at step 400: W_V is above 0.0505 from 0.0405 · 400 = 16.2 on, W_K from 208.1 on.
    assert (first["value_start"], first["key_start"], first["query_start"]) == (17, 209, 209)
    assert first["later"] == pytest.approx(209 / 17)
    assert first["value_share"] == pytest.approx(209 / 400)
    assert first["attention_size"] == pytest.approx(1.0)
    # 51 rows of 0.4 and the 149 rows until 209 of 0.1, then only 0.1.
    assert first["first_rotation"] == pytest.approx((51 * 0.4 + 149 * 0.1) / 200)
    assert first["second_rotation"] == pytest.approx(0.1)
    assert first["two_stages"]
    # In layer 1 W_Q grows with W_V.
    assert (second["key_start"], second["query_start"], second["later"]) == (209, 17, 1.0)
    assert second["value_share"] == pytest.approx(17 / 400)
    assert not second["two_stages"]
    assert report.layer == (0, 1)


def test_a_little_later_is_no_stage_of_its_own():
    # W_V starts at 17; W_K and W_Q at 40 + 0.0405 · 360, when W_V has made 55/400 of its growth.
    curves = {f"W_{letter}.{layer}": line(40) for letter in "KQ" for layer in (0, 1)}
    row = rows(planted({**curves, "W_V.0": line(0), "W_V.1": line(0)}))[1][0]
    assert (row["key_start"], row["later"]) == (55, pytest.approx(55 / 17))
    assert row["value_share"] == pytest.approx(55 / 400)
    assert not row["two_stages"]


def test_steps_behind_those_the_paper_describes_do_not_count():
    base = {f"W_{letter}.{layer}": line(200) for letter in "KQ" for layer in (0, 1)}
    base |= {f"W_V.{layer}": line(0) for layer in (0, 1)}
    plain = rows(planted(base))[1]
    wild = {name: np.where(STEPS > 400, 1000.0, curve) for name, curve in base.items()}
    assert rows(planted(wild))[1] == plain


def test_tensors_that_never_start_have_no_stages():
    curves = {f"W_{letter}.{layer}": np.full(501, 0.5) for letter in "KQ" for layer in (0, 1)}
    found = rows(planted({**curves, "W_V.0": line(0), "W_V.1": line(0)}))[1]
    for row in found:
        assert np.isnan([row["later"], row["value_share"], row["second_rotation"]]).all()
        assert not row["two_stages"]


def test_the_models_are_those_of_the_paper():
    for setting in (*figure5.SETTINGS, *figure5.QUICK_SETTINGS):
        assert (setting.toy.n_layers, setting.toy.n_heads) == (4, 4)
    assert max(setting.train.steps for setting in figure5.SETTINGS) > figure5.FIRST_STEPS


@pytest.fixture
def small(monkeypatch):
    """The quick settings with a BERT and a number of steps for tests."""
    settings = [
        replace(
            setting,
            toy=replace(setting.toy, d_model=16, d_mlp=16, n_layers=2, n_heads=2),
            train=replace(setting.train, steps=12, batch_size=2),
        )
        for setting in figure5.QUICK_SETTINGS
    ]
    recipe = replace(figure5.RECIPE, quick_settings=tuple(settings))
    monkeypatch.setattr(figure5, "RECIPE", recipe)
    return Corpus.from_texts(["\n".join(TEXTS)] * 2)


def test_the_recipe_saves_its_claims_tables_figures_and_histories_and_goes_on_in_its_folder(small, tmp_path):
    result = reproduce("figure5", quick=True, corpus=small, folder=tmp_path / "work")
    assert len(result.runs) == 2
    assert sum(summary(result.claims).values()) == 5
    assert len(result.table("layers")) == 4
    # Fifteen letters, and: the, of, and.
    assert result.runs[0].history.toy.vocabulary_size == 15 + 3 + 5
    assert all(report.layer == (0, 1) for report in result.reports["dynamics"].values())
    saved = result.save(tmp_path / "saved")
    assert {path.stem for path in (saved / "figures").glob("*.svg")} == {
        "figure5",
        f"figure5-{slug(result.runs[1].setting.name)}",
    }
    assert len(json.loads((saved / "claims.json").read_text(encoding="utf-8"))["claims"]) == 5
    again = reproduce("figure5", quick=True, corpus=small, folder=tmp_path / "work")
    assert [one.seconds for one in again.runs] == [0.0, 0.0]
    assert [claim.measured for claim in again.claims] == pytest.approx(
        [claim.measured for claim in result.claims], nan_ok=True
    )
    only = reproduce("figure5", quick=True, corpus=small, seed=1, only=[result.runs[0].setting.name])
    assert len(only.runs) == 1
    assert not torch.equal(only.runs[0].history.loss, result.runs[0].history.loss)


def test_a_tokenizer_can_be_the_folder_of_a_pretrained_model(small):
    name = figure5.QUICK_SETTINGS[0].name
    result = reproduce("figure5", quick=True, corpus=small, tokenizer=minilm_folder(), only=[name])
    assert result.runs[0].history.toy.vocabulary_size == 30522
    with pytest.raises(OSError, match="no tokenizer can be loaded from"):
        reproduce("figure5", quick=True, corpus=small, tokenizer="/nowhere/at/all")


def test_without_a_network_the_full_variant_says_what_to_do(monkeypatch):
    monkeypatch.setattr(figure5, "hub_is_reachable", lambda: False)
    result = reproduce("figure5")
    assert [claim.verdict for claim in result.claims] == ["not checked"]
    assert "Corpus.bundled()" in result.claims[0].not_checked
    assert result.figures() == {}
