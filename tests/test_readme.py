"""The README's example, run as it stands there."""

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


@pytest.mark.slow
def test_the_first_result_of_the_readme_is_what_comes_out():
    """``README=write`` in the environment writes what comes out into the README."""
    text = README.read_text()
    programs = WITH_OUTPUT.findall(text)
    assert len(programs) == 2
    assert CHECKPOINT in programs[0][0]
    values = {}
    for program, between, written in programs:
        printed = io.StringIO()
        values["print"] = partial(print, file=printed)
        exec(program.replace(CHECKPOINT, str(minilm_folder())), values)
        out = "\n".join(line.rstrip() for line in printed.getvalue().splitlines()) + "\n"
        if os.environ.get("README") == "write":
            text = text.replace(f"{program}{between}{written}```", f"{program}{between}{out}```")
        else:
            assert same_but_for_rounding(out, written), (
                f"README=write pytest {__file__} writes what comes out:\n{out}"
            )
    README.write_text(text)


def test_numbers_of_the_readme_may_differ_by_rounding_only():
    assert same_but_for_rounding("a 1.234 [2.0", "a 1.2341 [2.0")
    assert not same_but_for_rounding("a 1.234", "a 1.244")
    assert not same_but_for_rounding("a 1.234", "b 1.234")
    assert not same_but_for_rounding("a 1.234", "a 1.234 2")


def test_the_toy_world_of_the_readme_comes_out(capsys):
    text = README.read_text()
    example = re.search(r"## The toy world.*?```python\n(.*?)```", text, re.DOTALL).group(1)
    values = {"tp": tp}
    exec(example, values)
    blocks = tp.Topics.blocks(n_topics=10, words_per_topic=10)
    dot = tp.measure_embeddings(values["toy"], blocks, n_resamples=0).dot
    assert f"{dot.same_topic:.1f}" == "1.7"
    assert f"{dot.different_topic:.1f}" == "-0.2"
    assert "dot products of 1.7, those of different topics of −0.2" in text


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


def test_every_command_of_the_readme_has_the_options_that_it_names():
    commands = re.findall(r"`topic-probe ([^`…]*)`", README.read_text())
    assert len(commands) >= 8
    parser = build_parser()
    for command in commands:
        if command.split()[1:] != ["NAME"]:  # stands for any of them
            parser.parse_args(shlex.split(command))
    with pytest.raises(SystemExit):
        parser.parse_args(["measure", "attention", "MODEL", "--no-such-option"])


def test_every_recipe_is_in_the_table_that_the_readme_links():
    assert "verdicts.md#what-is-reproduced" in README.read_text()
    table = VERDICTS.read_text().split("| recipe |")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) == set(RECIPES)


def test_the_calls_that_the_readme_names_exist():
    for name in set(re.findall(r"\btp\.(\w+)", README.read_text())):
        assert hasattr(tp, name), name
    for owner in ("Topics", "Corpus"):
        for name in set(re.findall(rf"\btp\.{owner}\.(\w+)", README.read_text())):
            assert hasattr(getattr(tp, owner), name), name
