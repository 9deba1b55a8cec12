"""The README's examples, run as they stand there."""

import io
import os
import re
import shlex
from functools import partial
from pathlib import Path

import pytest
from real_text import minilm_folder, wikipedia_articles

import topic_probe as tp
from topic_probe.cli import build_parser
from topic_probe.paper import RECIPES

README = Path(__file__).parents[1] / "README.md"
VERDICTS = README.parent / "demos" / "verdicts.md"
# A program, and what it prints.
WITH_OUTPUT = re.compile(r"```python\n((?:(?!```).)*?)(```(?:(?!```).)*?```text\n)(.*?)```", re.DOTALL)
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
    program, _, written = WITH_OUTPUT.findall(README.read_text())[0]
    for as_printed, smaller in {
        CHECKPOINT: str(minilm_folder()), "bundled()": "bundled(n_documents=12)", "max_length=256": "max_length=64",
    }.items():  # fmt: skip
        assert as_printed in program
        program = program.replace(as_printed, smaller)
    exec(program, {})
    printed = capsys.readouterr().out
    assert printed.splitlines()[:1] == written.splitlines()[:1] == ["Contrast"]
    columns = [text.splitlines()[1].split()[:6] for text in (printed, written)]
    assert columns[0] == columns[1] == ["ratio", "interval", "p_value", "q_value", "effect_size", "n_pairs"]
    assert float(printed.splitlines()[2].split()[0]) > 1  # of so few words more cannot be said


@pytest.mark.slow
def test_the_first_results_of_the_readme_are_what_comes_out():
    """``README=write`` in the environment writes what comes out into the README."""
    text = README.read_text()
    programs = WITH_OUTPUT.findall(text)
    assert len(programs) == 2
    values = {}
    for program, between, written in programs:
        printed = io.StringIO()
        values["print"] = partial(print, file=printed)
        exec(program.replace(CHECKPOINT, str(minilm_folder())), values)
        out = "\n".join(line.rstrip() for line in printed.getvalue().splitlines()) + "\n"
        if os.environ.get("README") == "write":
            text = text.replace(f"{program}{between}{written}```", f"{program}{between}{out}```")
            README.write_text(text)
        else:
            assert same_but_for_rounding(out, written), f"`make readme` writes what comes out:\n{out}"


@pytest.mark.slow
def test_all_examples_of_the_readme_run_in_their_order(tmp_path, monkeypatch):
    """As they stand there, but for fewer texts, topics and permutations."""
    text = README.read_text()
    fewer = {
        CHECKPOINT: str(minilm_folder()),
        "tp.Corpus.bundled()": "few",
        "n_topics=20": "n_topics=4",
        "fraction=0.002": "fraction=0.05",
        "counts)": "counts, n_permutations=9)",
    }
    programs = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(programs) == text.count("```python") >= 5
    for as_printed in fewer:
        assert any(as_printed in program for program in programs), as_printed
    monkeypatch.chdir(tmp_path)
    few = tp.Corpus.from_texts([article[:12000] for article in wikipedia_articles()[:9]])
    values = {"few": few, "print": lambda *_: None}
    for program in programs:
        for as_printed, smaller in fewer.items():
            program = program.replace(as_printed, smaller)
        exec(program, values)
    assert "army" in (tmp_path / "attention.html").read_text()
    assert "<svg" in (tmp_path / "heads.svg").read_text()
    assert f"{values['attention'].overall.ratio:.4g}" in (tmp_path / "results.html").read_text()
    dot = tp.measure_embeddings(values["toy"], tp.Topics.blocks(n_topics=10, words_per_topic=10)).dot
    assert (f"{dot.same_topic:.1f}", f"{dot.different_topic:.1f}") == ("1.6", "-0.2")
    assert "dot products of 1.6, those of different topics of −0.2" in text


def test_commands_calls_and_recipes_that_the_readme_names_exist():
    text = README.read_text()
    commands = re.findall(r"`topic-probe ([^`…]*)`", text)
    assert len(commands) >= 8
    parser = build_parser()
    for command in commands:
        if command.split()[1:] != ["NAME"]:  # stands for any of them
            parser.parse_args(shlex.split(command))
    assert [name for name in set(re.findall(r"\btp\.(\w+)", text)) if not hasattr(tp, name)] == []
    for owner in (tp.Topics, tp.Corpus):
        named = set(re.findall(rf"\btp\.{owner.__name__}\.(\w+)", text))
        assert [name for name in named if not hasattr(owner, name)] == []
    assert "verdicts.md#what-is-reproduced" in text
    table = VERDICTS.read_text().split("| recipe |")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) == set(RECIPES)
