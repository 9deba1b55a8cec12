"""What a recipe is and how all are run: settings, seeds, controls, options, results on disk."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

import topic_probe as tp
import topic_probe.paper
from topic_probe import storage
from topic_probe.paper import RECIPES, recipe_named, reproduce
from topic_probe.paper.claims import Claim, Number
from topic_probe.paper.recipe import Recipe, run_recipe
from topic_probe.paper.toys import NO_TOPICS, SHUFFLED, UNTRAINED, agreement, each_training, losses
from topic_probe.paper.training import PAIRS, Setting, slug
from topic_probe.toy.model import ToyConfig
from topic_probe.train.history import History, TrainConfig


def test_every_recipe_is_found_by_name_and_its_settings_are_told_apart_and_those_of_the_paper():
    found = {name: recipe_named(name) for name in RECIPES}
    assert {recipe.name: recipe.title for recipe in found.values()} == RECIPES
    for recipe in found.values():
        for settings in (recipe.settings, recipe.quick_settings):
            assert len({slug(one.name) for one in settings}) == len(settings)
            assert all(math.isfinite(one.seconds) and one.seconds > 0 for one in settings)
    for name, regime in (("figure1", "full"), ("figure2", "value"), ("figure10", "attention")):
        own = [one for one in found[name].settings if one.regime == regime]
        assert {one.pair for one in own} == set(PAIRS)
        for one in own:
            world, masking = one.world, one.toy.masking
            assert (world.n_topics, world.words_per_topic, one.train.batch_size) == (10, 10, 40)
            assert (masking.p_mask, masking.p_keep, masking.p_random) == (0.15, 0.1, 0.1)


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("figure7", {}, ValueError, "no recipe 'figure7'; there are figure1"),
        ("figure4", {"only": ["nonsense"]}, ValueError, "no setting 'nonsense' in this recipe"),
        ("figure1", {"qick": True}, TypeError, "figure1 knows no option 'qick': did you mean 'quick'"),
    ],
)
def test_what_a_recipe_does_not_know_is_refused_with_what_was_meant(name, options, error, message):
    with pytest.raises(error, match=message):
        reproduce(name, **options)


SHORT = Setting("value", ToyConfig(regime="value"), TrainConfig(steps=12))


def recipe(*claims, measure=None, **more):
    given = {"settings": (SHORT,), "quick_settings": (SHORT,), "claims": (lambda result: claims,), **more}
    measure = measure or each_training(losses, reports=[agreement])
    return Recipe("figure0", "nothing", "Figure 0", measure, figures=lambda result: {}, **given)


@pytest.fixture(scope="module")
def measured():
    return run_recipe(recipe(), quick=True)


def test_a_recipe_has_the_settings_of_its_variant_and_the_options_of_its_measure():
    runs = []

    def measure(run, *, colour="red"):
        runs.append((run.settings, run.seed, run.folder, colour))
        return run.result()

    given = recipe(Claim("a"), Claim("b", "Theorem 1"), measure=measure, quick_settings=())
    found = run_recipe(given, seed=2, folder="~/x", colour="blue")
    run_recipe(given, quick=True)
    assert runs == [((SHORT.shifted(2),), 2, Path("~/x").expanduser(), "blue"), ((), 0, None, "red")]
    assert given.options == ("quick", "only", "seed", "folder", "progress", "colour")
    assert [claim.source for claim in found.claims] == ["Figure 0", "Theorem 1"]


def test_a_result_is_saved_whole_under_checksums_and_never_over_another(measured, tmp_path):
    rows = ({"model": "BERT", "ratio": 1.21, "interval": None},)
    claim = Claim("words attract", "Figure 9", "3.2", Number(2.0), above=1.0, check=True)
    found = replace(
        measured,
        claims=(claim,),
        tables={"ratios": rows},
        draw=lambda _: {"The bars": Figure()},
        seconds=math.nan,
    )
    folder = found.save(tmp_path / "deep" / "result")
    content = json.loads((folder / "claims.json").read_text(), parse_constant=pytest.fail)
    assert (content["recipe"], content["seconds"], content["claims"][0]["verdict"]) == (
        "figure0",
        None,
        "holds",
    )
    history = History.load(folder / "histories" / "value-seed-0")
    assert torch.equal(history.loss, found.runs[0].history.loss)
    report = tp.load_report(folder / "reports" / "agreement" / "value")
    assert report == found.reports["agreement"]["value"]
    assert json.loads((folder / "tables" / "ratios.json").read_text()) == [dict(row) for row in rows]
    assert (folder / "tables" / "ratios.csv").read_text().splitlines()[1] == "BERT,1.21,"
    assert (folder / "figures" / "the-bars.png").read_bytes()[1:4] == b"PNG"
    assert storage.damaged_files(folder) == []
    (folder / "tables" / "ratios.csv").write_text("model,ratio\nBERT,9.99\n")
    assert storage.damaged_files(folder) == ["tables/ratios.csv"]
    with pytest.raises(FileExistsError, match="not overwritten"):
        found.save(folder)
    for pick, there in ((found.table, "ratios"), (found.run, "value")):
        with pytest.raises(KeyError, match=f"'x'; there are {there}"):
            pick("x")


def test_a_result_holds_if_all_that_was_checked_does_and_shows_first_what_does_not():
    def result(*claims):
        return replace(run_recipe(recipe(*claims, measure=lambda run: run.result()), quick=True), seconds=1.0)

    good = Claim("a", measured=Number(2.0), above=1.0, controls={"none": Number(0.0)})
    bad, idle = replace(good, text="d", measured=Number(0.0)), replace(good, text="e", controls={})
    unknown = Claim("g", not_checked="too long")
    assert result(good, unknown).holds
    assert not result(good, bad).holds
    assert not result(good, idle).holds  # no control: no evidence
    found = result(good, bad, idle, unknown)
    assert [claim.text for claim in found.claims] == ["d", "e", "g", "a"]
    assert "\n1 does not hold, 1 not evidence, 1 not checked, 1 holds, in 1 s" in repr(found)


def test_every_setting_is_trained_with_every_seed_and_every_control_beside_it_and_has_a_row_for_each():
    def labels(case):
        return {"second label": float(case.topics.labels(torch.arange(3))[2])}

    controls = (NO_TOPICS, UNTRAINED, SHUFFLED)
    measure = each_training(losses, of_labels=[labels])
    found = run_recipe(recipe(measure=measure, controls=controls, seeds=5, quick_seeds=3), quick=True, seed=7)
    assert [one.setting.label for one in found.runs] == [
        "value, seed 7", "value, seed 8", "value, seed 9", "value, no topics, seed 7", "value, no topics, seed 8",
        "value, untrained, seed 7", "value, untrained, seed 8",
    ]  # fmt: skip
    assert [one.setting.label for one in found.shown_runs] == ["value, seed 7"]
    by_control = {one.setting.control: one.setting for one in found.runs}
    assert by_control["no topics"].world.topics_per_document == by_control["no topics"].world.n_topics == 10
    assert by_control["untrained"].train.steps == 0
    rows = found.tables["numbers"]
    # Other labels only where labels count.
    expected = ["", "shuffled labels"] * 2 + ["", *["no topics"] * 2, *["untrained"] * 2]
    assert [row["control"] for row in rows] == expected
    assert all(("loss" in row) == (row["control"] != "shuffled labels") for row in rows)
    assert {row["second label"] for row in rows if row["control"] == ""} == {0.0}
    assert {row["second label"] for row in rows if row["control"] == "shuffled labels"} != {0.0}
    trained = {row["seed"]: row["loss"] for row in rows if row["control"] == ""}
    assert all(trained[row["seed"]] < row["loss"] for row in rows if row["control"] == "untrained")
