"""Figure 5: its rules on planted curves, and the recipe on small settings; test_quick.py has the quick variant."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from real_text import minilm_folder

from topic_probe.paper import figure5, reproduce
from topic_probe.paper.claims import summary
from topic_probe.paper.recipe import Run
from topic_probe.paper.training import Trained, slug
from topic_probe.text.corpus import Corpus
from topic_probe.text.word_tokenizer import word_tokenizer
from topic_probe.train.bert import TextConfig
from topic_probe.train.history import History, TrainConfig
from topic_probe.train.stages import measure_dynamics
from topic_probe.train.tasks import TrainingText

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
    # Stage 1 ends at step 100: W_K is still 0.01 of 1.01, W_V has a quarter of its growth and is 0.26 of 1.01 by then.
    assert first["attention_in_stage_1"] == pytest.approx(0.01 / 1.01)
    assert first["value_in_stage_1"] == pytest.approx(0.25)
    assert first["value_in_stage_2"] == pytest.approx(1.01 / 0.26)
    # 51 rows of 0.4 and 40 of 0.1 until step 100, then only 0.1.
    assert first["turning"] == pytest.approx((51 * 0.4 + 40 * 0.1) / 91 / 0.1)
    assert first["two_stages"]
    assert not first["flat_first"]  # W_V grows to the end
    # In layer 1 W_Q grows with W_V.
    assert (second["key_start"], second["query_start"], second["later"]) == (209, 17, 1.0)
    assert second["value_share"] == pytest.approx(17 / 400)
    assert second["attention_in_stage_1"] == pytest.approx(0.26 / 1.01)
    assert not second["two_stages"]
    assert report.layer == (0, 1)
    worst = figure5.worst_layer([first, second])
    assert worst["later"] == 1.0
    assert worst["attention_in_stage_1"] == pytest.approx(0.26 / 1.01)
    assert worst["two_stages"] == 0.5


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
    for row, expected in zip(rows(planted(wild))[1], plain, strict=True):
        assert row == pytest.approx(expected, nan_ok=True)


def test_a_value_that_is_flat_before_the_others_start_has_the_stages_of_figure_4():
    curves = {f"W_{letter}.{layer}": line(200) for letter in "KQ" for layer in (0, 1)}
    found = rows(planted({**curves, "W_V.0": np.minimum(line(0, 50), 1.01), "W_V.1": line(0)}))[1]
    assert [row["flat_first"] for row in found] == [True, False]
    assert found[0]["value_in_stage_2"] == 1.0
    assert found[0]["value_flat"] < 50


def test_tensors_that_never_start_have_no_stages():
    curves = {f"W_{letter}.{layer}": np.full(501, 0.5) for letter in "KQ" for layer in (0, 1)}
    found = rows(planted({**curves, "W_V.0": line(0), "W_V.1": line(0)}))[1]
    for row in found:
        assert np.isnan([row["later"], row["value_share"]]).all()
        assert not row["two_stages"]
    worst = figure5.worst_layer([*found[:1], {**found[1], "later": 3.0}])
    assert np.isnan(worst["later"])
    assert worst["two_stages"] == 0.0


def test_the_models_are_those_of_the_paper():
    for setting in (*figure5.SETTINGS, *figure5.QUICK_SETTINGS):
        assert (setting.toy.n_layers, setting.toy.n_heads) == (4, 4)
    assert min(setting.train.steps for setting in figure5.SETTINGS) > figure5.FIRST_STEPS


# -------------------------------------------------------------------- controls


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
    assert shuffled.fingerprint != text.fingerprint == TrainingText(text.ids, text.starts, None).fingerprint


def test_only_the_settings_like_the_papers_have_controls():
    for quick in (False, True):
        run = Run(figure5.RECIPE, quick=quick)
        trained = [(one.name, one.control) for one in run.trainings]
        papers = [one.name for one in run.settings if figure5._is_papers(one)]
        assert len(papers) == 1
        assert {one for one in trained if one[1]} == {
            (papers[0], "usual initialisation"),
            (papers[0], "text shuffled word by word"),
        }
        assert {trained.count((one.name, "")) for one in run.settings} == {3}
        usual = [one.toy.init for one in run.trainings if one.control == "usual initialisation"]
        assert usual == ["usual", "usual"]


# -------------------------------------------------------------------- verdicts

SEEN = {
    "flat_first": 1.0, "value_in_stage_2": 2.0, "attention_in_stage_1": 0.01, "value_in_stage_1": 0.5, "turning": 5.0,
    "later": 8.0, "attention_size": 0.9, "two_stages": 1.0,
}  # fmt: skip
BROKEN = {
    "flat_first": 0.0, "value_in_stage_2": 1.0, "attention_in_stage_1": 0.5, "value_in_stage_1": 0.1, "turning": 1.0,
    "later": 1.0, "attention_size": 0.1, "two_stages": 0.0,
}  # fmt: skip


def judged(seen=SEEN, shuffled=BROKEN, usual=BROKEN):
    """The verdicts of a result with such numbers, by quantity, and that of the dependence on hyperparameters."""
    run = Run(figure5.RECIPE, quick=True)
    (setting,) = run.settings
    by_control = {"": seen, "text shuffled word by word": shuffled, "usual initialisation": usual}
    numbers = [
        {"setting": setting.name, "control": one.control, "seed": one.seed, **by_control[one.control]}
        for one in run.trainings
    ]
    history = planted({f"W_{letter}.{layer}": line(0) for letter in "KQV" for layer in (0, 1)})
    trained = tuple(Trained(one, history, 0.0) for one in run.trainings)
    result = run.result(runs=trained, tables={"numbers": numbers, "layers": []})
    verdicts = {
        quantity: claim.verdict
        for (quantity, _), claim in zip(figure5._CLAIMS, figure5._stages(result), strict=True)
    }
    (depends,) = figure5._sensitivity(result)
    return verdicts, depends.verdict


def test_what_is_seen_in_no_control_holds():
    assert judged() == (dict.fromkeys(SEEN.keys() - {"two_stages"}, "holds"), "holds")


@pytest.mark.parametrize("quantity", sorted(SEEN.keys() - {"two_stages"}))
def test_what_is_seen_in_a_control_too_is_no_evidence_and_what_is_not_seen_does_not_hold(quantity):
    others = SEEN.keys() - {"two_stages", quantity}
    for control in ("shuffled", "usual"):
        verdicts, _ = judged(**{control: {**BROKEN, quantity: SEEN[quantity]}})
        assert verdicts == {**dict.fromkeys(others, "holds"), quantity: "not evidence"}
    verdicts, _ = judged({**SEEN, quantity: BROKEN[quantity]})
    assert verdicts[quantity] == "does not hold"
    verdicts, _ = judged({**SEEN, quantity: None})
    assert verdicts[quantity] == "undecided"


def test_stages_that_every_setting_has_depend_on_nothing_and_so_do_those_that_none_has():
    assert judged(usual={**BROKEN, "two_stages": 1.0})[1] == "does not hold"
    assert judged({**SEEN, "two_stages": 0.25})[1] == "not evidence"


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
    (name,) = {one.setting.name for one in result.runs}
    controls = ["", "usual initialisation", "text shuffled word by word"]
    assert [one.setting.control for one in result.runs] == [controls[0]] * 3 + [controls[1]] * 2 + [
        controls[2]
    ] * 2
    assert sum(summary(result.claims).values()) == len(figure5._CLAIMS) + 1
    assert len(result.table("layers")) == 7 * 2
    assert [(row["control"], row["seed"]) for row in result.tables["numbers"]] == [
        (one.setting.control, one.setting.seed) for one in result.runs
    ]
    # Fifteen letters, and: the, of, and.
    assert result.runs[0].history.toy.vocabulary_size == 15 + 3 + 5
    assert all(report.layer == (0, 1) for report in result.reports["dynamics"].values())
    assert set(result.reports["dynamics"]) == {name, *(f"{name}, {control}" for control in controls[1:])}
    # The same initialisation and masks, on another text.
    first, shuffled = result.runs[0].history, result.runs[5].history
    assert result.runs[0].setting.seed == result.runs[5].setting.seed == 0
    assert float(first.norms["W_E"][0]) == float(shuffled.norms["W_E"][0])
    assert not torch.equal(first.loss, shuffled.loss)
    saved = result.save(tmp_path / "saved")
    assert {path.stem for path in (saved / "figures").glob("*.svg")} == {
        slug(f"figure5 {', '.join(filter(None, (name, control)))}") for control in controls
    }
    again = reproduce("figure5", quick=True, corpus=small, folder=tmp_path / "work")
    assert [one.seconds for one in again.runs] == [0.0] * 7
    assert again.tables == result.tables
    other = reproduce("figure5", quick=True, corpus=small, seed=1, only=[name])
    assert not torch.equal(other.runs[0].history.loss, result.runs[0].history.loss)
    assert torch.equal(other.runs[0].history.loss, result.runs[1].history.loss)


def test_a_tokenizer_can_be_the_folder_of_a_pretrained_model(small, tmp_path):
    name = figure5.QUICK_SETTINGS[0].name
    result = reproduce("figure5", quick=True, corpus=small, tokenizer=minilm_folder(), only=[name])
    assert result.runs[0].history.toy.vocabulary_size == 30522
    for folder, said in (
        (tmp_path, "no tokenizer can be loaded from"),
        ("/nowhere/at/all", "there is no folder"),
    ):
        with pytest.raises(OSError, match=said):
            reproduce("figure5", quick=True, corpus=small, tokenizer=folder)


def test_without_a_network_the_full_variant_says_what_to_do(monkeypatch):
    monkeypatch.setattr(figure5, "hub_is_reachable", lambda: False)
    result = reproduce("figure5")
    assert [claim.verdict for claim in result.claims] == ["not checked"]
    assert "Corpus.bundled()" in result.claims[0].not_checked
    assert result.figures() == {}
