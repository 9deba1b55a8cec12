"""The README's examples, run as they stand there."""

import io
import os
import re
import shlex
from functools import partial
from pathlib import Path

import pytest
import readme_picture
from real_text import minilm_folder

import topic_probe as tp
from topic_probe.cli import build_app
from topic_probe.paper import RECIPES
from topic_probe.paper.recipe import summary

README = Path(__file__).parents[1] / "README.md"
PAPER = README.parent / "demos" / "paper.md"
PICTURE = README.parent / "docs" / "pictures" / "first.png"
# A program, and what it prints.
WITH_OUTPUT = re.compile(r"```python\n((?:(?!```).)*?)(```(?:(?!```).)*?```text\n)(.*?)```", re.DOTALL)
SENTENCE = re.compile(r"(<!-- sentence -->\n)(.*?)(<!-- end of sentence -->)", re.DOTALL)
CHECKPOINT = "sentence-transformers/all-MiniLM-L6-v2"


def same_but_for_rounding(one, other):
    """Whether two texts are the same, numbers to three digits: their last digit may differ between machines."""
    words = [text.split() for text in (one, other)]
    return len(words[0]) == len(words[1]) and all(
        mine == yours or number(mine) == pytest.approx(number(yours), rel=2e-3)
        for mine, yours in zip(*words, strict=True)
    )


def number(text):
    try:
        return float(text.strip("[](),"))
    except ValueError:
        return float("nan")


def test_the_first_example_of_the_readme_prints_a_table_as_there_of_twelve_documents(capsys):
    (program, _, written), *_ = WITH_OUTPUT.findall(README.read_text())
    for as_printed, smaller in {
        CHECKPOINT: str(minilm_folder()), "bundled()": "bundled(n_documents=12)", "max_length=256": "max_length=64",
    }.items():  # fmt: skip
        assert as_printed in program
        program = program.replace(as_printed, smaller)
    exec(program, {})
    printed = capsys.readouterr().out
    columns = [text.splitlines()[1].split()[:5] for text in (printed, written)]
    assert columns[0] == columns[1] == ["ratio", "interval", "p_value", "q_value", "effect_size"]
    assert float(printed.splitlines()[2].split()[0]) > 1  # of so few words more cannot be said


@pytest.mark.slow
def test_the_first_result_of_the_readme_its_sentence_and_its_picture_are_what_comes_out():
    """``README=write`` in the environment writes them."""
    text, values, printed = README.read_text(), {}, io.StringIO()
    (program, between, written), *_ = WITH_OUTPUT.findall(text)
    values["print"] = partial(print, file=printed)
    exec(program.replace(CHECKPOINT, str(minilm_folder())), values)
    out = "\n".join(line.rstrip() for line in printed.getvalue().splitlines()) + "\n"
    model, topics, documents = (values[name] for name in ("model", "topics", "documents"))
    report = tp.measure_attention(model, topics, documents)
    untrained = tp.measure_attention(tp.random_init(model), topics, documents, n_permutations=0)
    said = sentence(report, untrained)
    if os.environ.get("README") == "write":
        text = text.replace(f"{program}{between}{written}```", f"{program}{between}{out}```")
        README.write_text(SENTENCE.sub(lambda found: f"{found[1]}{said}{found[3]}", text))
        readme_picture.draw(model, report).savefig(PICTURE, dpi=100)
    else:
        assert same_but_for_rounding(out, written), f"`make readme` writes what comes out:\n{out}"
        assert SENTENCE.search(text)[2] == said


def sentence(report, untrained):
    """The first result, read aloud."""
    overall, n = report.overall, report.provenance["options"]["n_permutations"]
    low, high = overall.interval
    as_well = round(overall.p_value * (n + 1) / 2) - 1  # on this side
    return (
        f"A word pays **{overall.ratio:.2f} ×** as much attention to other words of its own topic as to words of other "
        f"topics (95 %\ninterval {low:.2f}–{high:.2f}, over articles; 1 is no difference). Of {n:,} random regroupings "
        f"of the same words {as_well} do as well.\nAn untrained copy of the model gives "
        f"{untrained.overall.ratio:.2f}.\n"
    )


@pytest.mark.slow
def test_all_examples_of_the_readme_and_the_tour_run_in_their_order(tmp_path, monkeypatch):
    """As they stand there, but for fewer texts and permutations."""
    fewer = {
        CHECKPOINT: str(minilm_folder()), "n_documents=30": "n_documents=20", "bundled()": "bundled(n_documents=9)",
        "max_length=256": "max_length=64", "max_length=128": "max_length=64", "steps=400": "steps=30",
    }  # fmt: skip
    for page in (README.parent / "demos" / "tour.md", README):
        folder = tmp_path / page.stem
        folder.mkdir()
        monkeypatch.chdir(folder)
        programs = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
        assert len(programs) >= 4
        values = {"print": lambda *_: None}
        for program in programs:
            for as_printed, smaller in fewer.items():
                program = program.replace(as_printed, smaller)
            if "from_folders" not in program and "checkpoints_in" not in program:
                exec(program, values)
    assert "army" in (folder / "attention.html").read_text()
    assert (folder / "heads.png").stat().st_size > 10_000


def test_commands_calls_and_recipes_that_the_readme_names_exist(monkeypatch):
    text = README.read_text()
    commands = re.findall(r"^topic-probe (.+?)(?: {2,}#.*)?$", text, re.MULTILINE)
    assert len(commands) >= 8
    for command in commands:
        build_app().parse_args(shlex.split(command), exit_on_error=False, print_error=False)
    assert [name for name in set(re.findall(r"\btp\.(\w+)", text)) if not hasattr(tp, name)] == []
    for owner in (tp.Topics, tp.Corpus):
        named = set(re.findall(rf"\btp\.{owner.__name__}\.(\w+)", text))
        assert [name for name in named if not hasattr(owner, name)] == []
    results = README.parent / "docs" / "results"
    screen = summary(tp.load_report(path) for name in RECIPES if (path := results / name).is_dir())
    shown = text.split("```text")[-1].split("```")[0].strip("\n").splitlines()
    assert len(shown) >= 6
    assert [line for line in shown if line not in screen] == []
    table = PAPER.read_text().split("| recipe |")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) == set(RECIPES)
