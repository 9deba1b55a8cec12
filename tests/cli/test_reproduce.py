"""`reproduce` holds the paper's claims against numbers; `report` and `show` write pages."""

import json
import os
import signal
import subprocess
import sys
import types
from dataclasses import replace

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
    out = tmp_path / "results"
    command = ["reproduce", "figure1", "--quick", "--only", ONE, "--out", out]
    code, said, err = run(*command)
    result = tp.reproduce("figure1", quick=True, only=[ONE])
    assert code == 0
    assert err.startswith("topic-probe: figure1: (1 of 1)")
    for claim in result.claims:
        assert claim.verdict.upper() in said
        assert str(claim.measured) in said or claim.not_checked
    page = out / "index.html"
    assert said.splitlines()[-1] == f"open {page} in a browser"
    assert "figure1" in page.read_text()
    saved = json.loads((out / "figure1" / "claims.json").read_text())["claims"]
    assert saved == [claim.to_dict() for claim in result.claims]
    code, said, _ = run(*command, "--overwrite", "--json")
    assert code == 0
    assert json.loads(said)["recipes"]["figure1"]["claims"] == saved
    assert json.loads(said)["page"] == str(page)


def test_a_claim_that_does_not_hold_is_a_result_and_stands_at_the_end_of_the_answer(run, recipes, tmp_path):
    recipes(good=recipe("good"), bad=recipe("bad", measured=-1.0))
    code, said, _ = run("reproduce", "all", "--out", tmp_path)
    assert code == 0
    *_, good, bad, finding, page = said.splitlines()
    assert good.startswith("good       1 holds, ")
    assert bad.startswith("bad        0 holds, 1 does not hold, ")
    assert finding == "does not hold: bad: it is positive (all)"
    assert page.startswith("open ")
    assert (tmp_path / "bad" / "claims.json").is_file()
    _, said, _ = run("reproduce", "all", "--out", tmp_path, "--overwrite", "--json")
    assert [about["holds"] for about in json.loads(said)["recipes"].values()] == [True, False]


def test_all_goes_on_when_a_recipe_crashes(run, recipes, tmp_path):
    recipes(first=recipe("first"), broken=recipe("broken", ZeroDivisionError("by zero")), last=recipe("last"))
    code, said, err = run("reproduce", "all", "--out", tmp_path / "out")
    assert code == 1
    assert "topic-probe: broken failed: ZeroDivisionError: by zero" in err.splitlines()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["first", "index.html", "last"]
    *_, first, broken, last, page = said.splitlines()
    assert first.startswith("first      1 holds, ")
    assert broken.startswith("broken     crashed: ZeroDivisionError: by zero")
    assert last.startswith("last       1 holds, ")
    assert page == f"open {tmp_path / 'out' / 'index.html'} in a browser"


def test_a_single_recipe_that_crashes_is_an_error_and_leaves_nothing(refused, recipes, run, tmp_path):
    recipes(broken=recipe("broken", ZeroDivisionError("by zero")))
    code, out, err = run("reproduce", "broken", "--out", tmp_path / "out")
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith("topic-probe: error: ZeroDivisionError: by zero")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_keeps_the_recipes_that_are_finished(run, recipes, tmp_path):
    recipes(
        first=recipe("first"), slow=recipe("slow", KeyboardInterrupt("slow: interrupted after step 7 of 9"))
    )
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
    alone = tp.reproduce("landscape", quick=True)
    saved = json.loads((tmp_path / "out" / "landscape" / "claims.json").read_text())["claims"]
    assert saved == [claim.to_dict() for claim in alone.claims]
    assert "\n".join(str(alone).splitlines()[2:]) in said  # the second line says how long it took


@pytest.mark.slow
def test_ctrl_c_ends_all_that_run_side_by_side_and_what_waits_does_not_begin(tmp_path):
    command = [
        sys.executable,
        "-m",
        "topic_probe",
        "reproduce",
        "all",
        "--quick",
        "--jobs",
        "2",
        "--out",
        tmp_path,
    ]
    said = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        for line in process.stderr:  # until the last process has ended
            said.append(line)
            if "(2 of " in line:  # and the first is on its way as well
                os.killpg(process.pid, signal.SIGINT)
    assert process.returncode == 130
    assert said[-1].startswith("topic-probe: interrupted: ")
    assert "nothing was finished" in said[-1]
    assert not any("Traceback" in line or "(3 of " in line for line in said), "".join(said)


def test_jobs_are_for_all_recipes(refused, tmp_path):
    for given in (["all", "--jobs", "0"], ["figure1", "--jobs", "2"]):
        assert "--jobs is at least 1" in refused("reproduce", *given, "--out", tmp_path / "out", code=2)
    assert list(tmp_path.iterdir()) == []


def test_models_and_texts_go_to_the_recipes_that_take_them(run, recipes, texts, tmp_path):
    plain, pretrained = recipe("plain"), recipe("pretrained", takes_models=True)
    recipes(plain=plain, pretrained=pretrained)
    options = ["--models", "BERT=./bert", "GPT=org/gpt", "--corpus", texts, "--split", "line", "--seed", 4]
    assert run("reproduce", "all", "--out", tmp_path / "one", *options)[0] == 0
    assert plain.taken == {"seed": 4, "folder": None}
    assert pretrained.taken["models"] == {"BERT": "./bert", "GPT": "org/gpt"}
    assert pretrained.taken["corpus"].provenance["split"] == "line"
    assert run("reproduce", "all", "--out", tmp_path / "two", "--models", "./bert")[0] == 0
    assert pretrained.taken["models"] == ["./bert"]


def test_what_no_recipe_takes_is_refused_before_anything_runs(refused, recipes, tmp_path):
    recipes(plain=recipe("plain", AssertionError("it must not run")))
    out = ["--out", tmp_path / "out"]
    assert "plain takes no --models" in refused("reproduce", "plain", "--models", "a=b", *out, code=2)
    assert "all takes no --corpus" in refused("reproduce", "all", "--corpus", "bundled", *out, code=2)
    assert "--models takes NAME=VALUE, got 'c'" in refused(
        "reproduce", "all", "--models", "a=b", "c", *out, code=2
    )
    assert "--spread needs texts" in refused("reproduce", "all", "--spread", "3", *out, code=2)
    assert "--only names settings of one recipe" in refused("reproduce", "all", "--only", "x", *out, code=2)
    assert list(tmp_path.iterdir()) == []


def test_earlier_results_and_pages_of_others_are_not_overwritten(refused, run, recipes, tmp_path):
    recipes(first=recipe("first"), second=recipe("second"))
    assert run("reproduce", "first", "--out", tmp_path / "out")[0] == 0
    assert "first is not empty" in refused("reproduce", "all", "--out", tmp_path / "out")
    assert run("reproduce", "second", "--out", tmp_path / "out")[0] == 0
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("mine")
    assert "is no page of topic-probe" in refused("reproduce", "first", "--out", tmp_path / "site")
    assert (tmp_path / "site" / "index.html").read_text() == "mine"


def test_an_unknown_setting_is_refused_and_nothing_is_left(run, tmp_path):
    code, _, err = run("reproduce", "figure1", "--only", "nix", "--out", tmp_path / "out")
    assert code == 1
    assert "no setting 'nix' in this recipe" in err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


# --- pages --------------------------------------------------------------------------------------------


def test_a_folder_of_results_becomes_a_page(run, refused, toy_folder, tmp_path):
    page = tmp_path / "page.html"
    code, said, err = run("report", toy_folder, "--out", page)
    assert (code, err) == (0, "")
    assert said.startswith(f"open {page} in a browser")
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert "is not overwritten unasked: choose another, or add overwrite=True (--overwrite)" in refused(
        "report", toy_folder, "--out", page
    )
    code, said, _ = run("report", toy_folder, "--out", page, "--overwrite", "--json")
    assert json.loads(said) == {"page": str(page), "bytes": page.stat().st_size}
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_folder_without_results_gives_no_page(refused, tmp_path):
    assert "there is no folder" in refused("report", tmp_path / "gone")
    assert "holds nothing that topic_probe has saved" in refused("report", tmp_path)
    assert "is a folder, a file is needed" in refused("report", tmp_path, "--out", tmp_path)
    assert list(tmp_path.iterdir()) == []


TEXT = "The army heard a guitar."


def test_a_shown_text_is_the_page_of_the_python_call(run, model_folder, words, tmp_path):
    page, file = tmp_path / "page.html", tmp_path / "text.txt"
    file.write_text(TEXT)
    options = ["--layer", 1, "--heads", 0, 1, "--order", "position", "--no-circuitsvis"]
    code, said, err = run("show", model_folder, "--topics", words, "--file", file, *options, "--out", page)
    assert (code, err) == (0, "")
    assert said == f"open {page} in a browser\n"
    model = tp.open_model(model_folder)
    topics = topics_by_hand(model.tokenizer)
    wanted = show_attention(model, topics, TEXT, layer=1, heads=[0, 1], order="position", circuitsvis=False)
    assert page.read_text() == wanted.html


def test_what_cannot_be_shown_is_refused_and_leaves_no_page(refused, run, model_folder, words, tmp_path):
    page = tmp_path / "page.html"

    def show(*more):
        return ["show", model_folder, "--topics", words, "--out", page, *more]

    assert "no head L9H3" in refused(*show("--text", TEXT, "--heads", "L9H3"), code=2)
    gone = tmp_path / "gone"
    assert refused(*show("--file", gone)) == f"topic-probe: error: {gone}: No such file or directory"
    assert run(*show("--text", TEXT, "--file", "x"))[0] == 2
    assert run(*show())[0] == 2
    assert list(tmp_path.iterdir()) == []
    page.write_text("mine")
    assert "is not overwritten" in refused(*show("--text", TEXT))
    assert page.read_text() == "mine"


def test_options_of_some_recipes_go_to_these(run, refused, recipes, model_folder, tmp_path):
    taken = {}

    def measure(run, *, words=None, thresholds=None, twins=True, tokenizer=None):
        taken.update(words=words, thresholds=thresholds, twins=twins, tokenizer=tokenizer)
        return run.result()

    special = replace(recipe("special").RECIPE, measure=measure)
    recipes(special=types.SimpleNamespace(RECIPE=special), plain=recipe("plain"))
    lists = ["--words", "frog toad lizard", "mozart beethoven"]
    more = ["--thresholds", 0.001, 0.01, "--no-twins", "--tokenizer", model_folder]
    assert run("reproduce", "special", *lists, *more, "--out", tmp_path)[0] == 0
    assert taken["words"] == {"frog": ["frog", "toad", "lizard"], "mozart": ["mozart", "beethoven"]}
    assert (taken["thresholds"], taken["twins"]) == ([0.001, 0.01], False)
    assert taken["tokenizer"].tokenize("frog") == ["frog"]
    assert "plain takes no --words" in refused("reproduce", "plain", *lists, "--out", tmp_path / "no", code=2)
    same = ["--words", "frog toad", "frog lizard", "--out", tmp_path / "no"]
    assert "begin with different words" in refused("reproduce", "special", *same, code=2)


def test_models_are_opened_without_the_bars_of_other_libraries(run, model_folder, tmp_path):
    options = ["--models", model_folder, "--words", "army battle", "song band", "--out", tmp_path]
    code, _, err = run("reproduce", "figure3", *options)
    assert code == 0
    assert err.splitlines() == ["topic-probe: figure3: (1 of 1) cosines of words that belong together"]


def test_ctrl_c_before_the_first_checkpoint_names_no_checkpoints(run, recipes, tmp_path):
    recipes(slow=recipe("slow", KeyboardInterrupt()))
    code, _, err = run("reproduce", "slow", "--out", tmp_path / "out", "--folder", tmp_path / "kept")
    assert code == 130
    assert err.splitlines()[-1].endswith("nothing was finished; there is no checkpoint yet")
