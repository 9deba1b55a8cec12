"""Options are the arguments of the functions that commands call, and cannot drift from them."""

import argparse
import ast
import inspect
import subprocess
import sys
import typing
from collections.abc import Mapping
from importlib import import_module

import pytest

from topic_probe.cli import build_parser, fit_topics, inputs, main, measure, reproduce, show, train
from topic_probe.cli.options import Call, Option, mapping
from topic_probe.paper import RECIPES
from topic_probe.text import sources
from topic_probe.text.corpus import WIKIPEDIA
from topic_probe.toy import model
from topic_probe.train import history

CALLS = {
    value.of: value
    for module in (fit_topics, inputs, measure, reproduce, show, train)
    for value in vars(module).values()
    if isinstance(value, Call)
}


def target(of):
    module, _, name = of.partition(":")
    found = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def parameters(function):
    return {n: p for n, p in inspect.signature(function).parameters.items() if n != "self"}


def default_of(parameter):
    if parameter.default is inspect.Parameter.empty:
        return None
    # Dataclasses show a default factory as a marker.
    return {} if "factory" in repr(parameter.default) else parameter.default


def test_every_command_of_the_package_is_looked_at():
    assert len(CALLS) == 20
    assert {call.of for call in measure.CALLS.values()} <= set(CALLS)


@pytest.mark.parametrize("of", CALLS)
def test_options_have_the_names_and_defaults_of_the_arguments(of):
    known = parameters(target(of))
    for option in CALLS[of].options:
        assert option.name in known, f"{of} takes no {option.name}"
        assert option.default == default_of(known[option.name]), option.name


@pytest.mark.parametrize("of", CALLS)
def test_every_argument_is_an_option_or_filled_or_left_out_for_a_reason(of):
    call = CALLS[of]
    named = [*(option.name for option in call.options), *call.filled, *call.without]
    assert len(set(named)) == len(named)
    assert set(named) == set(parameters(target(of)))


@pytest.mark.parametrize("of", CALLS)
def test_the_choices_of_an_option_are_those_of_the_type(of):
    hints = typing.get_type_hints(
        getattr(target(of), "__init__" if inspect.isclass(target(of)) else "__call__")
    )
    hints |= typing.get_type_hints(target(of))
    for option in CALLS[of].options:
        literal = next(iter(literals(hints[option.name])), None)
        if literal is not None:
            assert option.choices == literal, option.name


def literals(hint):
    if typing.get_origin(hint) is typing.Literal:
        yield typing.get_args(hint)
    if typing.get_origin(hint) is not Mapping:  # whose values are no choices of the option itself
        for part in typing.get_args(hint):
            yield from literals(part)


def test_the_choices_of_the_toy_are_those_it_knows():
    choices = {option.name: option.choices for call in (train.TOY, train.TRAINING) for option in call.options}
    assert choices["regime"] == tuple(model.REGIMES)
    assert choices["init"] == typing.get_args(model.Init)
    assert choices["dtype"] == tuple(model.DTYPES)
    assert choices["loss"] == typing.get_args(history.Loss)
    assert choices["optimizer"] == typing.get_args(history.OptimizerName)
    assert choices["forward"] == typing.get_args(history.Forward)


def test_bool_arguments_can_be_switched_off_and_on():
    for call in CALLS.values():
        for option in call.options:
            assert (option.kind is bool) == isinstance(option.default, bool), option.name


def test_the_commit_of_wikipedia_and_the_ways_to_split_files_are_the_ones_of_the_corpus():
    defaults = {option.name: option.default for option in inputs.WIKIPEDIA_CORPUS.options}
    assert defaults["revision"] == WIKIPEDIA[2]
    text = next(option.help for option in inputs.FILES.options if option.name == "split")
    assert all(way in text for way in sources.SPLITS)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_takes_the_options_of_reproduce(name):
    known = parameters(import_module(f"topic_probe.paper.{name}").run)
    assert {option.name for option in reproduce.RUN.options} | {"progress"} <= set(known)
    assert all(option.default == known[option.name].default for option in reproduce.RUN.options)


def test_an_option_that_is_not_given_is_not_passed_on():
    parser = argparse.ArgumentParser()
    call = Call(
        "", (Option("steps", "", int, 5), Option("remask", "", bool, True), Option("ids", "", int, many=True))
    )
    for option in call.options:
        option.add_to(parser)
    assert call.arguments(parser.parse_args([])) == {}
    assert call.arguments(parser.parse_args(["--no-remask", "--ids", "1", "2"])) == {
        "remask": False,
        "ids": [1, 2],
    }


def test_pairs_of_names_and_values_are_read_and_others_are_refused():
    assert mapping(["W_V=theorem2", "b=x=y"], "--frozen") == {"W_V": "theorem2", "b": "x=y"}
    with pytest.raises(ValueError, match="--frozen takes NAME=VALUE, got 'W_V'"):
        mapping(["W_V"], "--frozen")


def parsers(parser=None, name="topic-probe"):
    parser = build_parser() if parser is None else parser
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, inside in action.choices.items():
                yield from parsers(inside, f"{name} {word}")


@pytest.mark.parametrize("name", [name for name, _ in parsers()])
def test_every_command_explains_itself(name, capsys):
    assert main([*name.split()[1:], "--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"usage: {name}")
    assert "None" not in said


def test_help_says_what_exit_codes_mean(capsys):
    main(["--help"])
    said = capsys.readouterr().out
    assert all(f"\n  {code} " in said for code in ("0 ", "1 ", "2 ", "130"))


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from topic_probe.cli import main; main({}); print(sorted(sys.modules), file=sys.stderr)"
    )
    for argv in (["--help"], ["measure", "attention", "--help"], ["reproduce", "--help"]):
        answer = subprocess.run(
            [sys.executable, "-c", code.format(argv)], check=True, capture_output=True, text=True
        )
        loaded = {name.split(".")[0] for name in ast.literal_eval(answer.stderr)}
        assert "topic_probe" in loaded
        assert not loaded & {
            "torch",
            "numpy",
            "transformers",
            "pandas",
            "matplotlib",
            "gensim",
            "datasets",
            "tqdm",
        }
