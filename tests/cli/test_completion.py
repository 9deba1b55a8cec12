"""What can stand next on a command line is what the parser takes there, in the shells themselves too."""

import shutil
import subprocess
import sys

import pytest

from topic_probe.cli import COMMANDS
from topic_probe.paper import RECIPES


@pytest.fixture
def completed(run):
    """What completes a line: whether files do, and the candidates with their explanations."""

    def completed(line):
        code, out, err = run("completion", "fish", "--", *line.split(" "))
        assert (code, err) == (0, "")
        kind, *lines = out.splitlines()
        return kind == "files", dict(text.partition("\t")[::2] for text in lines)

    return completed


def test_commands_kinds_and_options_are_completed_with_what_they_are(completed):
    files, found = completed("")
    assert (files, list(found)) == (False, list(COMMANDS))
    assert "fit topics" in found["fit-topics"]
    assert list(completed("measure a")[1]) == ["attention", "ablation"]
    options = completed("measure attention model --le")[1]
    assert list(options) == ["--level", "--leading-space"]
    assert options["--leading-space"].startswith("look up the word also behind a space")


@pytest.mark.parametrize(
    ("line", "files", "found"),
    [
        ("measure attention model --level ", False, ["token", "word"]),
        ("measure attention model --level=w", False, ["--level=word"]),
        ("measure attention model --level = w", False, ["word"]),
        ("measure attention model --seed ", False, []),
        ("measure attention model --seed 3 --lev", False, ["--level"]),
        ("measure attention ", True, []),
        ("measure attention model extra", False, []),
        ("measure attention model --corpus ", True, ["bundled", "wikipedia"]),
        ("measure attention model --corpus w", True, ["wikipedia"]),
        ("measure attention model --topics w", True, ["wordnet-nouns", "wordnet-domains"]),
        ("measure attention model --json --out ", True, []),
        ("report tw", True, []),
        ("reproduce ", False, [*RECIPES, "all"]),
        ("reproduce all --only a b --qui", False, ["--quick"]),
        ("nonsense attention ", False, []),
    ],
)
def test_values_of_closed_sets_and_files_are_completed_where_they_may_stand(completed, line, files, found):
    assert (completed(line)[0], list(completed(line)[1])) == (files, found)


def in_shell(shell, script, folder):
    """What a shell prints where `topic-probe` is on the path, in a folder with two files."""
    command = folder / "bin" / "topic-probe"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m topic_probe "$@"\n')
    command.chmod(0o755)
    (folder / "words.json").touch()
    (folder / "other.json").touch()
    path = f"{command.parent}:/usr/bin:/bin"
    answer = subprocess.run(
        [shutil.which(shell), "-c", script], check=True, capture_output=True, text=True, cwd=folder,
        env={"PATH": path, "PYTHONPATH": ":".join(sys.path), "HOME": str(folder)},
    )  # fmt: skip
    assert answer.stderr == ""
    return answer.stdout.splitlines()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_with_its_script(tmp_path):
    script = """
    eval "$(topic-probe completion bash)"
    compopt() { :; }  # there is no line that is being completed
    try() { COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); _topic_probe; echo "${COMPREPLY[*]}"; }
    try topic-probe rep
    try topic-probe measure attention model --level = w
    try topic-probe measure attention model --corpus w
    try topic-probe measure attention model --topics words
    complete -p topic-probe
    """
    assert in_shell("bash", script, tmp_path) == [
        "reproduce report",
        "word",
        "wikipedia words.json",
        "",  # bash completes files by itself
        "complete -o default -F _topic_probe topic-probe",
    ]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_with_its_script(tmp_path):
    script = """
    topic-probe completion fish | source
    complete -C 'topic-probe measure attention model --corpus w'
    complete -C 'topic-probe measure attention model --level='
    """
    assert in_shell("fish", script, tmp_path) == ["wikipedia", "words.json", "--level=token", "--level=word"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_takes_its_script(tmp_path):
    script = """
    compdef() { echo "$@"; }
    eval "$(topic-probe completion zsh)"
    CURRENT=2 words=(topic-probe rep)
    _describe() { print -l -- "${found[@]}"; }
    _files() { echo files; }
    _topic_probe
    CURRENT=4 words=(topic-probe measure attention '')
    _topic_probe
    """
    first, *found, files = in_shell("zsh", script, tmp_path)
    assert (first, files) == ("_topic_probe topic-probe", "files")
    assert [line.partition(":")[0] for line in found] == ["reproduce", "report"]
