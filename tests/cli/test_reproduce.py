"""`reproduce` holds the paper's claims against numbers; `report` and `show` write pages."""

import json
import sys
import types

import pytest
from real_text import topics_by_hand

import topic_probe as tp
import topic_probe.paper
from topic_probe.cli import reproduce
from topic_probe.paper.claims import Claim, Number
from topic_probe.paper.recipe import Recipe
from topic_probe.show.attention_page import show_attention

ONE = "embedding, squared, Adam"


def recipe(name, measured=1.0, *, takes_models=False):
    """A recipe of one claim, that a number is positive; what its run was given is noted."""
    taken = {}

    def result(run, **given):
        taken.update(given, seed=run.seed, folder=run.folder)
        if isinstance(measured, BaseException):
            raise measured
        return run.result()

    def measure(run):
        return result(run)

    def measure_models(run, *, models=None, corpus=None):
        return result(run, models=models, corpus=corpus)

    def claims(_):
        controls = {"turned around": Number(-1.0)}
        return [Claim("it is positive", "Figure 0", "1", Number(measured), above=0.0, controls=controls)]

    given = measure_models if takes_models else measure
    made = Recipe(name, "a figure", "Figure 0", given, (claims,), figures=lambda _: {})
    return types.SimpleNamespace(RECIPE=made, taken=taken)


@pytest.fixture
def recipes(monkeypatch):
    """Puts recipes in the place of the paper's."""

    def put(**given):
        for name, module in given.items():
            monkeypatch.setitem(sys.modules, f"topic_probe.paper.{name}", module)
        for place in (reproduce, topic_probe.paper):
            monkeypatch.setattr(place, "RECIPES", dict.fromkeys(given, "a figure"))

    return put


def test_a_recipe_says_claim_measured_paper_and_verdict_and_names_its_page(run, tmp_path):
    out, command = tmp_path / "results", ["reproduce", "figure1", "--quick", "--only", ONE, "--json"]
    code, said, err = run(*command, "--out", out)
    assert code == 0
    assert err.startswith("topic-probe: figure1: (1 of 1)")
    claims = tp.reproduce("figure1", quick=True, only=[ONE]).claims
    saved = json.loads((out / "figure1" / "claims.json").read_text())["claims"]
    assert saved == [claim.to_dict() for claim in claims] == json.loads(said)["recipes"]["figure1"]["claims"]
    assert json.loads(said)["page"] == str(out / "index.html")
    assert "figure1" in (out / "index.html").read_text()


def test_claims_that_do_not_hold_are_results_and_a_recipe_that_crashes_stops_no_other(run, recipes, tmp_path):
    broken = recipe("broken", ZeroDivisionError("by zero"))
    recipes(good=recipe("good"), bad=recipe("bad", measured=-1.0), broken=broken)
    code, said, err = run("reproduce", "all", "--out", tmp_path / "out")
    assert code == 1
    assert "topic-probe: broken failed: ZeroDivisionError: by zero" in err.splitlines()
    *_, good, bad, crashed, finding, page = said.splitlines()
    assert good.startswith("good       1 holds, ")
    assert bad.startswith("bad        0 holds, 1 does not hold, ")
    assert crashed.startswith("broken     crashed: ZeroDivisionError: by zero")
    assert finding == "does not hold: bad: it is positive (all)"
    assert page == f"open {tmp_path / 'out' / 'index.html'} in a browser"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["bad", "good", "index.html"]
    code, said, _ = run("reproduce", "bad", "--out", tmp_path / "alone")
    assert code == 0
    assert "> 0             DOES NOT HOLD" in said
    assert run("reproduce", "broken", "--out", tmp_path / "no")[0] == 1
    assert not (tmp_path / "no").exists()


def test_ctrl_c_keeps_the_recipes_that_are_finished(run, recipes, tmp_path):
    slow = recipe("slow", KeyboardInterrupt("slow: interrupted after step 7 of 9"))
    recipes(first=recipe("first"), slow=slow)
    (tmp_path / "kept").mkdir()
    code, _, err = run("reproduce", "all", "--out", tmp_path / "out", "--folder", tmp_path / "kept")
    assert code == 130
    assert err.splitlines()[-1] == (
        "topic-probe: interrupted: slow: interrupted after step 7 of 9; finished and kept in "
        f"{tmp_path / 'out'}: first; checkpoints are in {tmp_path / 'kept'}"
    )
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["first", "index.html"]


@pytest.mark.slow
def test_recipes_side_by_side_give_what_each_gives_alone(run, monkeypatch, tmp_path):
    """Two that are quick, in processes of their own."""
    monkeypatch.setattr(reproduce, "RECIPES", dict.fromkeys(("table3", "landscape"), ""))
    code, said, _ = run("reproduce", "all", "--quick", "--jobs", "2", "--out", tmp_path / "out")
    assert code == 0
    # In the order of the list, whichever came first.
    assert [line.split()[0] for line in said.splitlines() if line.endswith(" s")][-2:] == [
        "table3",
        "landscape",
    ]
    saved = json.loads((tmp_path / "out" / "landscape" / "claims.json").read_text())["claims"]
    assert saved == [claim.to_dict() for claim in tp.reproduce("landscape", quick=True).claims]


def test_models_and_texts_go_to_the_recipes_that_take_them(run, recipes, texts, tmp_path):
    plain, pretrained = recipe("plain"), recipe("pretrained", takes_models=True)
    recipes(plain=plain, pretrained=pretrained)
    options = ["--models", "BERT=./bert", "GPT=org/gpt", "--corpus", texts, "--split", "line", "--seed", 4]
    assert run("reproduce", "all", "--out", tmp_path / "one", *options)[0] == 0
    assert plain.taken == {"seed": 4, "folder": None}
    assert pretrained.taken["models"] == {"BERT": "./bert", "GPT": "org/gpt"}
    assert pretrained.taken["corpus"].provenance["split"] == "line"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("plain --models a=b", "plain takes no --models"),
        ("all --corpus bundled", "all takes no --corpus"),
        ("all --corpus-seed 3", "--corpus-seed needs texts"),
        ("all --only x", "--only names settings of one recipe"),
        ("plain --jobs 2", "--jobs is at least 1"),
    ],
)
def test_what_no_recipe_takes_is_refused_before_anything_runs(refused, recipes, tmp_path, line, said):
    recipes(plain=recipe("plain", AssertionError("it must not run")))
    assert said in refused("reproduce", *line.split(), "--out", tmp_path / "out", code=2)
    assert list(tmp_path.iterdir()) == []


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
    options = ["--layer", 1, "--heads", 0, 1, "--order", "position", "--no-circuitsvis"]
    answer = run("show", model_folder, "--topics", words, "--file", file, *options, "--out", page)
    assert answer == (0, f"open {page} in a browser\n", "")
    model = tp.open_model(model_folder)
    topics = topics_by_hand(model.tokenizer)
    wanted = show_attention(model, topics, text, layer=1, heads=[0, 1], order="position", circuitsvis=False)
    assert page.read_text() == wanted.html
