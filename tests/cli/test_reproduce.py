"""`reproduce` judges the paper's claims; `report` and `show` write pages."""

import json
import re

import pytest
from real_text import topics_by_hand

import topic_probe as tp
import topic_probe.paper
from topic_probe.cli import reproduce
from topic_probe.paper.claims import Bound, Claim
from topic_probe.paper.recipe import Measured, Recipe
from topic_probe.show.attention_page import show_attention

TAKEN = {}


def recipe(name, value=1.0, *, models=False):
    """A recipe of one claim, that a number is positive; what it was given is noted."""

    def result(run, **given):
        TAKEN[name] = {**given, "seed": run.seed, "quick": run.quick}
        if isinstance(value, BaseException):
            raise value
        rows = [
            {"training": "t", "control": control, "seed": seed, "x": number + seed / 1000}
            for control, number in (("", value), ("turned around", -value))
            for seed in range(3)
        ]
        return Measured(rows)

    def measure(run):
        return result(run)

    def measure_models(run, *, models=None, corpus=None):
        return result(run, models=models, corpus=corpus)

    claim = Claim(
        id=name, says="it is positive", source="Figure 0", bounds=(Bound("x", above=0.0),), controls=("turned around",),
        line=f"line of {name}",
    )  # fmt: skip
    return Recipe(name, "a figure", "Figure 0", measure_models if models else measure, (claim,), lambda _: {})


@pytest.fixture
def recipes(monkeypatch):
    """Puts recipes in the place of the paper's."""

    def put(*given):
        known = {one.name: one for one in given}
        for place in (reproduce, topic_probe.paper):
            monkeypatch.setattr(place, "RECIPES", dict.fromkeys(known, "none"))
            monkeypatch.setattr(place, "recipe_named", known.__getitem__)
        monkeypatch.setattr("topic_probe.show.results_page.RECIPES", known)

    return put


def test_one_screen_says_what_was_measured_where_it_must_fail_and_the_verdict(run, recipes, tmp_path):
    recipes(recipe("good"), recipe("bad", -1.0), recipe("broken", ZeroDivisionError("by zero")))
    code, said, err = run("reproduce", "all", "--quick", "--out", tmp_path / "out")
    assert code == 1
    assert "topic-probe: broken failed: ZeroDivisionError: by zero" in err.splitlines()
    lines = said.splitlines()
    assert lines[0].split() == ["paper", "ours", "where", "it", "must", "fail"]
    assert re.split(" {2,}", lines[1]) == ["line of good", "1", "turned around -0.999", "holds"]
    assert lines[2].endswith("does not hold")
    assert lines[4] == "1 holds, 1 does not hold"
    assert lines[-1] == f"pictures: {tmp_path / 'out' / 'index.html'}"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["bad", "good", "index.html"]
    assert TAKEN["good"]["quick"] is True
    assert tp.load_report(tmp_path / "out" / "good").claims[0]["verdict"] == "holds"


def test_records_and_every_training_are_printed_on_demand(run, recipes, tmp_path):
    recipes(recipe("good"))
    document = json.loads(run("reproduce", "good", "--json", "--seed", 7, "--out", tmp_path / "one")[1])
    (claim,) = document["recipes"]["good"]["claims"]
    assert (claim["id"], claim["verdict"]) == ("good", "holds")
    assert TAKEN["good"]["seed"] == 7
    _, said, _ = run("reproduce", "good", "--verbose", "--out", tmp_path / "two")
    assert "turned around: -0.999" in said


def test_ctrl_c_keeps_the_recipes_that_are_finished(run, recipes, tmp_path):
    recipes(recipe("first"), recipe("slow", KeyboardInterrupt("slow: interrupted at step 7 of 9")))
    code, _, err = run("reproduce", "all", "--out", tmp_path / "out")
    assert code == 130
    said = f"interrupted: slow: interrupted at step 7 of 9; finished and kept in {tmp_path / 'out'}: first"
    assert err.splitlines()[-1] == f"topic-probe: {said}"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["first", "index.html"]


@pytest.mark.slow
def test_recipes_side_by_side_give_what_each_gives_alone(run, tmp_path):
    code, _, _ = run("reproduce", "figure2", "table3", "--quick", "--jobs", 2, "--out", tmp_path / "out")
    assert code == 0
    for name in ("figure2", "table3"):
        alone = tp.reproduce(name, quick=True, progress=False)
        assert tp.load_report(tmp_path / "out" / name).claims == alone.claims


def test_models_and_texts_go_to_the_recipes_that_take_them(run, recipes, texts, tmp_path):
    recipes(recipe("plain"), recipe("pretrained", models=True))
    options = ["--models", "BERT=./bert", "GPT=org/gpt", "--corpus", texts, "--seed", 4]
    assert run("reproduce", "all", "--out", tmp_path / "one", *options)[0] == 0
    assert TAKEN["plain"] == {"seed": 4, "quick": False}
    assert TAKEN["pretrained"]["models"] == {"BERT": "./bert", "GPT": "org/gpt"}
    assert TAKEN["pretrained"]["corpus"].provenance


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("plain --models a=b", "plain takes no --models"),
        ("plain --corpus bundled", "plain takes no --corpus"),
        ("plain --jobs 0", "--jobs is at least 1"),
    ],
)
def test_what_no_recipe_takes_is_refused_before_anything_runs(refused, recipes, tmp_path, line, said):
    recipes(recipe("plain", AssertionError("it must not run")))
    assert said in refused("reproduce", *line.split(), "--out", tmp_path / "out", code=2)
    assert list(tmp_path.iterdir()) == []


def test_a_page_of_somebody_else_is_not_overwritten(refused, recipes, tmp_path):
    recipes(recipe("plain"))
    (tmp_path / "index.html").write_text("mine")
    assert "choose another --out" in refused("reproduce", "plain", "--out", tmp_path)


def test_a_folder_of_results_becomes_a_page_that_takes_no_others_place(run, refused, toy_folder, tmp_path):
    page = tmp_path / "page.html"
    code, said, err = run("report", toy_folder, "--out", page)
    assert (code, err) == (0, "")
    assert said.startswith(f"open {page} in a browser")
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert "is not overwritten unasked" in refused("report", toy_folder, "--out", page)
    _, said, _ = run("report", toy_folder, "--out", page, "--overwrite", "--json")
    assert json.loads(said) == {"page": str(page), "bytes": page.stat().st_size}


def test_a_shown_text_is_the_page_of_the_python_call(run, model_folder, words, tmp_path):
    page, file, text = tmp_path / "page.html", tmp_path / "text.txt", "The army heard a guitar."
    file.write_text(text)
    options = ["--heads", "1.0", "L1H1", "--order", "position"]
    answer = run("show", model_folder, "--topics", words, "--file", file, *options, "--out", page)
    assert answer[0] == 0
    assert answer[1].startswith(f"open {page} in a browser")
    model = tp.open_model(model_folder)
    topics = topics_by_hand(model.tokenizer)
    wanted = show_attention(model, topics, text, heads=["1.0", "1.1"], order="position")
    assert page.read_text() == wanted.html
