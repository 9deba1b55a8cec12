"""Options are the arguments of the functions that commands call, as Python itself tells them."""

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from operator import attrgetter

import pytest

from topic_probe.cli import COMMANDS, fit_topics, inputs, main, measure, reproduce, show, train
from topic_probe.cli.options import Call

CALLS = {
    value.of: value
    for module in (fit_topics, inputs, measure, reproduce, show, train)
    for values in vars(module).values()
    for value in (values if isinstance(values, tuple) else (values,))
    if isinstance(value, Call)
}


def parameters(of):
    module, _, name = of.partition(":")
    known = inspect.signature(attrgetter(name)(import_module(module))).parameters
    return {name: parameter for name, parameter in known.items() if name != "self"}


def default_of(parameter):
    # Dataclasses show a default factory of dictionaries as a marker, which is none to the command line.
    nothing = parameter.default is inspect.Parameter.empty or "factory" in repr(parameter.default)
    return None if nothing else parameter.default


def test_every_argument_is_an_option_with_its_default_or_filled_or_left_out_for_a_reason():
    assert len(CALLS) > 20
    for of, call in CALLS.items():
        known = parameters(of)
        named = [*(argument.name for argument in call.options.values()), *call.filled, *call.without]
        assert sorted(named) == sorted(known), of
        assert all(call.without.values()), of
        for argument in call.options.values():
            assert argument.default == default_of(known[argument.name]), (of, argument.name)
            assert len(argument.help) > 3, (of, argument.name)


@pytest.mark.parametrize("command", [*COMMANDS, "measure attention", ""])
def test_every_command_explains_itself(capsys, command):
    assert main([*command.split(), "--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(" ".join(["usage: topic-probe", *command.split()]))
    assert "None" not in said
    assert command or all(f"\n  {code} " in said for code in ("0 ", "1 ", "2 ", "130"))


@pytest.mark.slow
@pytest.mark.parametrize("argv", [["--help"], ["measure", "attention", "--help"], ["reproduce", "--help"]])
def test_help_imports_nothing_heavy(argv):
    code = (
        f"import sys; from topic_probe.cli import main; main({argv}); print([*sys.modules], file=sys.stderr)"
    )
    answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = {name.split(".")[0] for name in ast.literal_eval(answer.stderr)}
    heavy = {"torch", "numpy", "transformers", "pandas", "matplotlib", "gensim", "datasets", "tqdm"}
    assert "topic_probe" in loaded
    assert not loaded & heavy
