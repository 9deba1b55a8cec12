"""Options are those of the functions that commands call, with their defaults, and help is quick and short."""

import inspect
import subprocess
import sys
import time

import pytest

import topic_probe as tp
from topic_probe.cli import COMMANDS, MEASUREMENTS, compare, main, make, measure, reproduce
from topic_probe.paper.recipe import run_recipe

PAIRS = [
    (measure.attention, tp.measure_attention), (measure.embeddings, tp.measure_embeddings),
    (measure.weights, tp.measure_weights), (measure.ablation, tp.measure_ablation),
    (measure.knockout, tp.measure_knockout), (compare.compare, tp.compare), (compare.series, tp.measure_series),
    (make.fit_topics, tp.fit_topics), (make.train, tp.TrainConfig), (reproduce.reproduce, run_recipe),
]  # fmt: skip


def parameters(function):
    return inspect.signature(function).parameters


@pytest.mark.parametrize(("command", "function"), PAIRS, ids=lambda part: getattr(part, "__name__", ""))
def test_an_option_has_the_default_of_the_argument_of_its_name(command, function):
    known = parameters(function)
    own = {name: option for name, option in parameters(command.default_command).items() if name in known}
    assert len(own) >= 2
    for name, option in own.items():
        if option.default is not inspect.Parameter.empty and option.default is not None:
            assert option.default == known[name].default, name


NAMES = [*COMMANDS, "measure", *(f"measure {kind}" for kind in MEASUREMENTS)]


@pytest.mark.parametrize("command", NAMES)
def test_every_command_explains_itself_in_a_screen_and_a_half(capsys, command):
    assert main([*command.split(), "--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"Usage: topic-probe {command}")
    assert "None" not in said
    assert len(said.splitlines()) <= 80, said
    options = {
        line.split("--")[1].split()[0]
        for line in said.splitlines()
        if line.startswith(("│ --", "│    --", "│ *  --"))
    }
    assert len(options) <= 16, options


def test_help_comes_at_once_without_what_models_need():
    code = "import sys; from topic_probe.cli import main; main(['--help']); print({'torch', 'numpy'} & {*sys.modules})"
    start = time.process_time()
    answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert answer.stdout.splitlines()[-1] == "set()"
    assert time.process_time() - start < 1
    everything = subprocess.run(
        [sys.executable, "-m", "topic_probe", "measure", "attention", "--help-all"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert "--first-position" in everything
    assert "--special-ids" not in everything
