"""What a recipe is and how all are run: settings, checkpoints, options, results on disk."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import topic_probe as tp
import topic_probe.paper
from topic_probe import storage
from topic_probe.paper import RECIPES, recipe_named, reproduce
from topic_probe.paper.claims import Claim, Number
from topic_probe.paper.figure2 import AS_FAR
from topic_probe.paper.recipe import Recipe, run_recipe
from topic_probe.paper.toys import NO_TOPICS, SHUFFLED, UNTRAINED, agreement, each_training, losses
from topic_probe.paper.training import PAIRS, Setting, slug
from topic_probe.toy.agreement import AgreementReport
from topic_probe.toy.model import ToyConfig
from topic_probe.train.history import History, TrainConfig

SHARED_MODULES = {"__init__", "claims", "training", "recipe", "toys", "pretrained"}


def toy_recipes():
    """Recipes that train toys; the others train on text, or measure pretrained models."""
    trains = {name: recipe for name in RECIPES if (recipe := recipe_named(name)).settings}
    return {
        name: recipe
        for name, recipe in trains.items()
        if all(isinstance(one, Setting) and isinstance(one.toy, ToyConfig) for one in recipe.settings)
    }


def short(name="value", steps=12, **train):
    return Setting(name, ToyConfig(regime="value"), TrainConfig(steps=steps, **train))


# -------------------------------------------------------------------- all recipes


def test_every_module_is_a_recipe_that_can_be_reproduced_by_name():
    files = {path.stem for path in Path(topic_probe.paper.__file__).parent.glob("*.py")}
    assert files - SHARED_MODULES == set(RECIPES) - set(topic_probe.paper.BESIDE)
    assert {"figure1", "figure2", "figure4", "figure10", "table3"} <= set(toy_recipes())
    found = {name: recipe_named(name) for name in RECIPES}
    assert {recipe.name: recipe.title for recipe in found.values()} == RECIPES


@pytest.mark.parametrize("name", sorted(toy_recipes()))
def test_settings_of_a_recipe_have_names_of_their_own_and_say_how_long_they_take(name):
    for settings in (recipe_named(name).settings, recipe_named(name).quick_settings):
        names = [setting.name for setting in settings]
        assert len(set(map(slug, names))) == len(names)
        assert all(math.isfinite(setting.seconds) and setting.seconds > 0 for setting in settings)


@pytest.mark.parametrize(
    ("name", "regime"), [("figure1", "full"), ("figure2", "value"), ("figure10", "attention")]
)
def test_figures_have_all_four_pairs_at_the_rate_of_the_paper_or_held_against_it(name, regime):
    recipe = recipe_named(name)
    # Where a rate is ten times as high, a training at the paper's is a control of the recipe.
    slow = {one.name: AS_FAR.train(one) for one in recipe.settings if AS_FAR in recipe.controls}
    at_rate = [
        setting.pair
        for setting in recipe.settings
        if setting.toy.regime == regime and (slow.get(setting.name) or setting).train.learning_rate == 0.01
    ]
    assert set(at_rate) == set(PAIRS)
    assert {s.pair for s in recipe.quick_settings if s.toy.regime == regime} == set(PAIRS)


def test_settings_are_in_the_world_and_the_masking_of_the_paper():
    outside = ("robustness",)  # which is about other worlds
    for recipe in (recipe for name, recipe in toy_recipes().items() if name not in outside):
        for setting in recipe.settings:
            world, masking = setting.world, setting.toy.masking
            assert (world.n_topics, world.words_per_topic, setting.train.batch_size) == (10, 10, 40)
            assert (masking.p_mask, masking.p_keep, masking.p_random) == (0.15, 0.1, 0.1)
            if "long documents" not in setting.name:
                assert (world.alpha, world.min_length, world.max_length) == (0.1, 100, 150)


def test_figure_10_compares_with_the_very_trainings_of_figure_2_and_table_3_with_its_own():
    figure2, figure10, table3 = (recipe_named(name).settings for name in ("figure2", "figure10", "table3"))
    value = [setting for setting in figure10 if setting.regime == "value"]
    attention = [setting for setting in figure10 if setting.regime == "attention"]
    of_the_paper = [setting for setting in attention if setting.name.count(",") == 2]
    assert [setting.pair for setting in value] == [setting.pair for setting in of_the_paper] == list(PAIRS)
    assert all(setting in figure2 for setting in value)
    assert all(setting in table3 for setting in attention)
    assert len(table3) == len(attention) + 1


def test_an_unknown_recipe_or_setting_is_refused_by_name():
    with pytest.raises(ValueError, match="no recipe 'figure7'; there are figure1"):
        reproduce("figure7")
    with pytest.raises(ValueError, match="no setting 'nonsense' in this recipe"):
        reproduce("figure4", quick=True, only=["nonsense"])


def test_an_option_that_a_recipe_does_not_take_is_refused_with_the_one_that_was_meant():
    with pytest.raises(TypeError, match="figure1 knows no option 'qick': did you mean 'quick'"):
        reproduce("figure1", qick=True)
    with pytest.raises(TypeError, match="figure1 knows no option 'models'"):
        reproduce("figure1", quick=True, models=["bert"])
    assert recipe_named("figure3").options[-3:] == ("models", "words", "twins")
    with pytest.raises(TypeError, match="knows no option 'table'"):
        reproduce("table1", table=None)


# -------------------------------------------------------------------- running and results


def recipe(*claims, measure=None):
    return Recipe(
        name="figure0",
        title="nothing",
        source="Figure 0",
        settings=(short(),),
        quick_settings=(short(),),
        measure=measure or each_training(losses, reports=[agreement]),
        claims=(lambda result: claims,),
        figures=lambda result: {},
    )


def result(*claims):
    return replace(run_recipe(recipe(*claims), quick=True), seconds=1.0)


def test_claims_are_made_of_what_was_measured_one_function_after_the_other():
    def count(result):
        assert result.claims == ()
        yield Claim("runs", result.source, "", Number(float(len(result.runs))))

    def bayes(result):
        (report,) = result.of(AgreementReport).values()
        yield Claim("bayes", result.source, "", Number(report.bayes))

    found = run_recipe(replace(recipe(), claims=(count, bayes)), quick=True)
    assert [(claim.text, claim.source) for claim in found.claims] == [
        ("runs", "Figure 0"),
        ("bayes", "Figure 0"),
    ]
    assert [claim.measured.value for claim in found.claims] == [
        3.0,
        found.reports["agreement"]["value"].bayes,
    ]
    assert (found.recipe, found.title, found.quick) == ("figure0", "nothing", True)


def test_a_claim_that_does_not_say_where_its_words_stand_has_them_from_where_the_recipe_is():
    found = run_recipe(recipe(Claim("of the figure"), Claim("of a theorem", "Theorem 1")), quick=True)
    assert [claim.source for claim in found.claims] == ["Figure 0", "Theorem 1"]


def test_a_recipe_has_the_settings_of_its_variant_and_the_options_of_its_measure():
    runs = []

    def measure(run, *, colour="red"):
        runs.append((run.settings, run.seed, run.folder, colour))
        return run.result()

    given = replace(recipe(measure=measure), quick_settings=())
    run_recipe(given, seed=2, folder="~/x", colour="blue")
    run_recipe(given, quick=True)
    assert runs == [((short().shifted(2),), 2, Path("~/x").expanduser(), "blue"), ((), 0, None, "red")]
    assert given.options == ("quick", "only", "seed", "folder", "progress", "colour")


def test_claims_are_json_for_every_reader_also_of_a_result_that_nobody_timed(tmp_path):
    """NaN and Infinity are no JSON; Python writes and reads them all the same."""

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    found = replace(result(Claim("words attract", "Figure 9", "3.2")), seconds=math.nan)
    text = (found.save(tmp_path / "result") / "claims.json").read_text()
    content = json.loads(text, parse_constant=refuse)
    assert content["seconds"] is None
    assert content["claims"][0]["measured"] is None


def test_a_result_is_saved_whole_and_never_over_another(tmp_path):
    found = result(Claim("words attract", "Figure 9", "3.2", Number(2.0), above=1.0, check=True))
    folder = found.save(tmp_path / "deep" / "result")
    content = json.loads((folder / "claims.json").read_text())
    assert content["recipe"] == "figure0"
    assert content["claims"][0]["verdict"] == "holds"
    assert "words attract" in (folder / "claims.txt").read_text()
    assert torch.equal(History.load(folder / "histories" / "value-seed-0").loss, found.runs[0].history.loss)
    from topic_probe.report import load_report

    assert load_report(folder / "reports" / "agreement" / "value") == found.reports["agreement"]["value"]
    assert [path.name for path in folder.parent.iterdir()] == ["result"]
    with pytest.raises(FileExistsError, match="not overwritten"):
        found.save(folder)
    found.save(folder, overwrite=True)


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


def test_every_file_of_a_saved_result_is_under_a_checksum_that_its_page_looks_at(tmp_path):
    from matplotlib.figure import Figure

    claim = Claim("words attract", "Figure 9", "3.2", Number(2.0), above=1.0)
    found = replace(
        result(claim),
        tables={"ratios": ({"model": "BERT", "ratio": 1.21},)},
        draw=lambda result: {"bars": Figure()},
    )
    folder = found.save(tmp_path / "result")
    assert (storage.kind_of(folder), storage.damaged_files(folder)) == ("recipe", [])
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    assert storage.load(folder, "recipe").content["files"].keys() == {*names} - {"saved.json"}
    assert "was changed since it was saved" not in tp.report_page(tmp_path).html
    for name in names:
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        if name == "saved.json":
            with pytest.raises(ValueError, match=r"saved\.json is not whole"):
                storage.damaged_files(folder)
        else:
            assert storage.damaged_files(folder) == [name]
        page = tp.report_page(folder).html
        assert f"<dt>{name}</dt><dd>saved.json is not" in page or f"<dt>{name}</dt><dd>it is gone, or" in page
        (folder / name).unlink()
        assert name == "saved.json" or storage.damaged_files(folder) == [name]
        (folder / name).write_bytes(whole)
    (folder / "notes.txt").write_text("what is added later is not damaged")
    assert storage.damaged_files(folder) == []


def test_a_result_holds_if_all_that_was_checked_does_and_shows_first_what_does_not():
    good, bad = (
        Claim(name, "b", "c", Number(value), above=1.0, check=True)
        for name, value in (("a", 2.0), ("d", 0.0))
    )
    idle = Claim("e", "b", "c", Number(2.0), above=1.0)
    unknown = Claim("g", "h", "i", not_checked="too long")
    assert result(good, unknown).holds
    assert not result(good, bad).holds
    assert not result(good, idle).holds  # no control: no evidence
    found = result(
        replace(good, check=False, controls={"none": Number(0.0)}), replace(bad, check=False), idle, unknown
    )
    assert [claim.text for claim in found.claims] == ["d", "e", "g", "a"]
    head = "figure0 (quick variant): nothing\n1 does not hold, 1 not evidence, 1 not checked, 1 holds, in 1 s"
    assert repr(found).startswith(head)
    assert result(good).run("value").setting.name == "value"
    with pytest.raises(KeyError, match="no setting 'x'; there are value"):
        result(good).run("x")


# -------------------------------------------------------------------- seeds and controls


def test_every_setting_is_trained_with_every_seed_and_every_control_beside_it():
    given = replace(recipe(), controls=(NO_TOPICS, UNTRAINED, SHUFFLED), seeds=5, quick_seeds=3)
    found = run_recipe(given, quick=True, seed=7)
    assert [one.setting.label for one in found.runs] == [
        "value, seed 7", "value, seed 8", "value, seed 9", "value, no topics, seed 7", "value, no topics, seed 8",
        "value, untrained, seed 7", "value, untrained, seed 8",
    ]  # fmt: skip
    assert [one.setting.label for one in found.shown_runs] == ["value, seed 7"]
    assert len({one.setting.train.seed for one in found.runs if not one.setting.control}) == 3
    by_control = {one.setting.control: one.setting for one in found.runs}
    assert by_control["no topics"].world.topics_per_document == by_control["no topics"].world.n_topics == 10
    assert by_control["untrained"].train.steps == 0
    whole = run_recipe(given)
    assert [one.setting.control for one in whole.runs].count("") == 5


def test_the_table_of_numbers_has_a_row_for_every_seed_and_control_and_other_labels_only_where_labels_count():
    def labels(case):
        return {"second label": float(case.topics.labels(torch.arange(3))[2])}

    given = replace(recipe(measure=each_training(losses, of_labels=[labels])), controls=(UNTRAINED, SHUFFLED))
    rows = run_recipe(given, quick=True).tables["numbers"]
    assert [row["control"] for row in rows] == ["", "shuffled labels"] * 2 + ["", "untrained", "untrained"]
    assert all(("loss" in row) == (row["control"] != "shuffled labels") for row in rows)
    assert {row["second label"] for row in rows if row["control"] == ""} == {0.0}
    assert {row["second label"] for row in rows if row["control"] == "shuffled labels"} != {0.0}
    untrained, trained = (
        {row["seed"]: row["loss"] for row in rows if row["control"] == name} for name in ("untrained", "")
    )
    assert all(trained[seed] < loss for seed, loss in untrained.items())
