"""What all recipes share: settings, checkpoints, results on disk, and claims about convergence and losses."""

import importlib
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import topic_probe.paper
from topic_probe.contrast import Contrast
from topic_probe.paper import RECIPES, reproduce
from topic_probe.paper.checks import (
    agreement_of,
    block_claim,
    converged_claims,
    late_improvement,
    loss_claims,
)
from topic_probe.paper.claims import Claim
from topic_probe.paper.recipe import (
    PAIRS,
    RecipeResult,
    Setting,
    TrainedToy,
    choose,
    pair_setting,
    slug,
    train_all,
)
from topic_probe.toy.agreement import measure_agreement
from topic_probe.toy.model import ToyConfig, toy_tensors
from topic_probe.train.history import History, TrainConfig

SHARED_MODULES = {"__init__", "claims", "recipe", "checks", "pictures", "pretrained"}


def modules():
    return {name: importlib.import_module(f"topic_probe.paper.{name}") for name in RECIPES}


def toy_recipes():
    """Recipes that train toys; the others train on text, measure pretrained models, or theory alone."""
    trains = {name: module for name, module in modules().items() if hasattr(module, "SETTINGS")}
    return {
        name: module
        for name, module in trains.items()
        if all(isinstance(one, Setting) and isinstance(one.toy, ToyConfig) for one in module.SETTINGS)
    }


def short(name="value", steps=12, **train):
    return Setting(name, ToyConfig(regime="value"), TrainConfig(steps=steps, **train))


# -------------------------------------------------------------------- all recipes


def test_every_module_is_a_recipe_that_can_be_reproduced_by_name():
    files = {path.stem for path in Path(topic_probe.paper.__file__).parent.glob("*.py")}
    assert files - SHARED_MODULES == set(RECIPES)
    assert {"figure1", "figure2", "figure4", "figure10", "table3"} <= set(toy_recipes())
    assert {name: module.TITLE for name, module in modules().items()} == RECIPES


@pytest.mark.parametrize("name", sorted(toy_recipes()))
def test_settings_of_a_recipe_have_names_of_their_own_and_say_how_long_they_take(name):
    for settings in (modules()[name].SETTINGS, modules()[name].QUICK_SETTINGS):
        names = [setting.name for setting in settings]
        assert len(set(map(slug, names))) == len(names)
        assert all(math.isfinite(setting.seconds) and setting.seconds > 0 for setting in settings)


@pytest.mark.parametrize(
    ("name", "regime"), [("figure1", "full"), ("figure2", "value"), ("figure10", "attention")]
)
def test_figures_have_all_four_pairs_of_loss_and_optimizer_at_the_rate_of_the_paper(name, regime):
    module = modules()[name]
    at_rate = [s.pair for s in module.SETTINGS if s.toy.regime == regime and s.train.learning_rate == 0.01]
    assert set(at_rate) == set(PAIRS)
    assert {s.pair for s in module.QUICK_SETTINGS if s.toy.regime == regime} == set(PAIRS)


def test_settings_are_in_the_world_and_the_masking_of_the_paper():
    for module in toy_recipes().values():
        for setting in module.SETTINGS:
            world, masking = setting.world, setting.toy.masking
            assert (world.n_topics, world.words_per_topic, setting.train.batch_size) == (10, 10, 40)
            assert (masking.p_mask, masking.p_keep, masking.p_random) == (0.15, 0.1, 0.1)
            if "long documents" not in setting.name:
                assert (world.alpha, world.min_length, world.max_length) == (0.1, 100, 150)


def test_figure_10_compares_with_the_very_trainings_of_figure_2_and_table_3_with_its_own():
    found = modules()
    assert (*found["figure10"].ATTENTION, *found["figure2"].WITHOUT_L2) == found["figure10"].SETTINGS
    shared = found["table3"].SETTINGS[:-1]
    assert len(shared) == 3
    assert all(setting in found["figure10"].ATTENTION for setting in shared)
    assert {setting.pair for setting in found["table3"].SETTINGS} == set(PAIRS)
    assert all(setting in found["figure2"].SETTINGS for setting in found["figure2"].WITHOUT_L2)


def test_an_unknown_recipe_or_setting_is_refused_by_name():
    with pytest.raises(ValueError, match="no recipe 'figure7'; there are figure1"):
        reproduce("figure7")
    with pytest.raises(ValueError, match="no setting 'nonsense' in this recipe"):
        reproduce("figure4", quick=True, only=["nonsense"])


# -------------------------------------------------------------------- settings


def test_a_pair_setting_is_at_the_rate_of_the_paper_unless_told_otherwise():
    setting = pair_setting(
        "value", ("squared", "sgd"), 6000, seconds=1.0, l2=0.1, noise=0.5, init="near-zero"
    )
    assert setting.name == "value, squared, SGD"
    assert (setting.train.learning_rate, setting.train.l2, setting.train.record_every) == (0.01, 0.1, 3)
    assert (setting.toy.noise, setting.toy.init) == (0.5, "near-zero")
    assert pair_setting("value", PAIRS[0], 5, seconds=1.0, learning_rate=2.0).train.learning_rate == 2.0


def test_choosing_keeps_the_order_and_shifts_every_seed():
    settings = [short("a"), short("b", seed=4), short("c")]
    assert [s.name for s in choose(settings, ["c", "a"], 0)] == ["a", "c"]
    (shifted,) = choose(settings, ["b"], 3)
    assert (shifted.seed, shifted.train.seed) == (3, 7)
    assert choose(settings, None, 0) == tuple(settings)


# -------------------------------------------------------------------- training and results


def test_a_trained_toy_gives_its_model_back():
    trained = train_all([short()])["value"]
    first, second = trained.model(), trained.model()
    assert first is not second
    assert torch.equal(toy_tensors(first)["W_V"], trained.history.tensors["W_V"])


def test_with_a_folder_a_training_is_not_repeated(tmp_path, monkeypatch):
    first = train_all([short()], folder=tmp_path)["value"]
    updates = []
    monkeypatch.setattr("topic_probe.train.loop._Optimizer.step", lambda *_: updates.append(1))
    again = train_all([short()], folder=tmp_path)["value"]
    assert not updates
    assert again.seconds == 0
    assert torch.equal(again.history.tensors["W_V"], first.history.tensors["W_V"])
    assert torch.equal(again.history.loss, first.history.loss)


def test_settings_that_differ_in_anything_do_not_share_a_checkpoint(tmp_path):
    settings = [short(), short(steps=13), short(l2=0.1), replace(short(), seed=1)]
    for setting in settings:
        train_all([setting], folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == len(settings)


def test_an_interrupted_training_ends_the_recipe_and_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    def interrupt(self, step, loss):
        if step == 5:
            raise KeyboardInterrupt
        return record(self, step, loss)

    from topic_probe.train.loop import _Recorder

    record = _Recorder.record
    monkeypatch.setattr(_Recorder, "record", interrupt)
    with pytest.raises(KeyboardInterrupt, match="interrupted at step 5 of 12"):
        train_all([short()], folder=tmp_path)
    monkeypatch.undo()
    resumed = train_all([short()], folder=tmp_path)["value"]
    whole = train_all([short()])["value"]
    assert torch.equal(resumed.history.tensors["W_V"], whole.history.tensors["W_V"])
    assert torch.equal(resumed.history.loss, whole.history.loss)


def result(*claims):
    runs = train_all([short()])
    agreements = {name: agreement_of(trained, quick=True) for name, trained in runs.items()}
    return RecipeResult(
        "figure0", "nothing", True, claims, tuple(runs.values()), {"agreement": agreements}, seconds=1.0
    )


def test_a_result_is_saved_whole_and_never_over_another(tmp_path):
    found = result(Claim("words attract", "Figure 9", "3.2", 2.0, above=1.0))
    folder = found.save(tmp_path / "deep" / "result")
    content = json.loads((folder / "claims.json").read_text())
    assert content["recipe"] == "figure0"
    assert content["claims"][0]["verdict"] == "passed"
    assert "words attract" in (folder / "claims.txt").read_text()
    assert torch.equal(History.load(folder / "histories" / "value").loss, found.runs[0].history.loss)
    from topic_probe.report import load_report

    assert load_report(folder / "reports" / "agreement" / "value") == found.reports["agreement"]["value"]
    assert [path.name for path in folder.parent.iterdir()] == ["result"]
    with pytest.raises(FileExistsError, match="not overwritten"):
        found.save(folder)


def test_tables_and_figures_are_saved_with_a_result(tmp_path):
    from matplotlib.figure import Figure

    rows = (
        {"model": "BERT", "ratio": 1.21, "interval": None},
        {"model": "ALBERT", "ratio": 5.64, "interval": None},
    )
    found = replace(result(), tables={"ratios": rows}, draw=lambda result: {"The bars": Figure()})
    assert found.table("ratios")["ratio"].tolist() == [1.21, 5.64]
    folder = found.save(tmp_path / "result")
    assert json.loads((folder / "tables" / "ratios.json").read_text()) == [dict(row) for row in rows]
    assert (folder / "tables" / "ratios.csv").read_text().splitlines()[1] == "BERT,1.21,"
    assert (folder / "figures" / "the-bars.png").read_bytes()[1:4] == b"PNG"
    assert "<svg" in (folder / "figures" / "the-bars.svg").read_text()
    with pytest.raises(KeyError, match="no table 'x'; there are ratios"):
        found.table("x")
    assert result().figures() == {}


def test_a_result_passes_if_nothing_failed_and_says_what_it_found():
    good, bad = Claim("a", "b", "c", 2.0, above=1.0), Claim("d", "e", "f", 0.0, above=1.0)
    unknown = Claim("g", "h", "i", not_checked="too long")
    assert result(good, unknown).passed
    assert not result(good, bad).passed
    text = repr(result(good, bad, unknown))
    assert text.startswith("figure0 (quick variant): nothing\n1 passed, 1 failed, 1 not checked, in 1 s")
    assert result(good).run("value").setting.name == "value"
    with pytest.raises(KeyError, match="no setting 'x'; there are value"):
        result(good).run("x")


# -------------------------------------------------------------------- shared claims


def history_with_losses(losses, *, loss="cross_entropy"):
    """A history of a toy of 100 words with the given losses."""
    steps = torch.arange(len(losses))
    table = torch.tensor(losses, dtype=torch.float64).unsqueeze(1)
    config = TrainConfig(steps=len(losses) - 1, loss=loss)
    return History(ToyConfig(regime="value"), config, steps, table, ("loss",), {}, {}, len(losses) - 1)


def test_late_improvement_is_the_share_of_the_last_tenth():
    # From log 100 to 3.4 in all, 3.5 to 3.4 from the last tenth but one to the last.
    losses = [4.0] * 80 + [3.5] * 10 + [3.4] * 10
    assert late_improvement(history_with_losses(losses)) == pytest.approx(0.1 / (math.log(100) - 3.4))
    squared = history_with_losses([0.98] * 80 + [0.96] * 10 + [0.95] * 10, loss="squared")
    assert late_improvement(squared) == pytest.approx(0.01 / (0.99 - 0.95))


def test_a_training_that_has_not_improved_has_no_late_improvement():
    assert math.isnan(late_improvement(history_with_losses([4.7] * 100)))


@pytest.mark.parametrize(
    ("end", "verdict"), [(3.48, "failed"), (3.499, "passed"), (3.52, "passed"), (3.53, "failed")]
)
def test_convergence_is_claimed_from_late_improvement(end, verdict):
    # Two per cent of the improvement from log 100 to about 3.5 are 0.022.
    history = history_with_losses([4.0] * 80 + [3.5] * 10 + [end if end != 3.48 else 3.47] * 10)
    (claim,) = converged_claims({"x": TrainedToy(short(), history, 1.0)}, source="", quick=False)
    assert claim.verdict == verdict


def test_a_training_that_was_stopped_has_not_converged():
    diverged = replace(history_with_losses([3.5] * 100), stopped="diverged: the loss of step 7 is inf")
    (claim,) = converged_claims({"x": TrainedToy(short(), diverged, 1.0)}, source="", quick=False)
    assert claim.verdict == "failed"
    assert "diverged" in claim.detail


def test_quick_variants_do_not_claim_convergence():
    history = history_with_losses([3.5] * 100)
    (claim,) = converged_claims({"x": TrainedToy(short(), history, 1.0)}, source="", quick=True)
    assert claim.verdict == "not checked"


def contrast(low, high):
    numbers = [np.asarray(value) for value in (2.0, 1.0, 0.5, 10.0, 90.0, 900.0)]
    return Contrast(*numbers, interval=np.array([low, high]), statistic="difference")


@pytest.mark.parametrize(("low", "verdict"), [(0.01, "passed"), (-0.01, "failed"), (math.nan, "failed")])
def test_blocks_are_claimed_only_if_the_whole_interval_is_above_zero(low, verdict):
    assert block_claim("W", contrast(low, 1.0), setting="", source="").verdict == verdict


def agreements(few, many, floor=0.9):
    report = measure_agreement(
        train_all([short()])["value"].model(), loss="squared", n_documents=2, attention=False
    )
    guess = {"guess": 0.99, "bayes": 0.87, "loss_error": 0.0}
    return {
        "value, squared, Adam": replace(report, regime="value", loss=few, floor=floor, **guess),
        "attention, squared, Adam": replace(report, regime="attention", loss=many, floor=0.9, **guess),
        "value, squared, SGD": replace(report, loss=0.0),  # no partner, so no claim
    }


def test_a_loss_that_is_a_little_higher_passes_both_ways():
    assert [c.verdict for c in loss_claims(agreements(0.908, 0.9), "value", "attention", source="", quick=False)] == [
        "passed", "passed",
    ]  # fmt: skip
    quick = loss_claims(agreements(0.908, 0.9), "value", "attention", source="", quick=True)
    assert [c.verdict for c in quick] == ["passed", "passed", "not checked"]


def test_losses_are_compared_as_they_are_and_above_guessing():
    plain, scaled = loss_claims(agreements(0.945, 0.9), "value", "attention", source="", quick=False)
    assert plain.measured == pytest.approx(0.05)
    assert scaled.measured == pytest.approx((0.99 - 0.945) / (0.99 - 0.9))
    assert (plain.verdict, scaled.verdict) == ("passed", "failed")
    assert plain.setting == "squared, Adam"


@pytest.mark.parametrize(("loss", "verdict"), [(0.944, "passed"), (0.951, "failed")])
def test_what_uniform_attention_must_give_up_is_not_held_against_it(loss, verdict):
    # Floors of 0.945 and 0.9 leave half of the gain; nine tenths of that are 0.0405, a loss of 0.9495.
    _, scaled = loss_claims(agreements(loss, 0.9, floor=0.945), "value", "attention", source="", quick=False)
    assert scaled.above == pytest.approx(0.45)
    assert scaled.verdict == verdict


def test_a_diverged_partner_does_not_make_a_loss_look_good():
    plain, scaled = loss_claims(agreements(0.945, 1e9), "value", "attention", source="", quick=False)
    assert (plain.verdict, scaled.verdict) == ("failed", "failed")
