"""Options are the arguments of the functions that commands call, as Python itself tells them."""

import argparse
import ast
import inspect
import subprocess
import sys
import typing
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import pytest

from topic_probe.cli import build_parser, fit_topics, inputs, main, measure, reproduce, show, train
from topic_probe.cli.options import Call, Parser, add_option, add_options, mapping
from topic_probe.cli.signatures import Argument
from topic_probe.paper import RECIPES, recipe_named
from topic_probe.text import sources
from topic_probe.text.corpus import WIKIPEDIA
from topic_probe.toy import model
from topic_probe.train import history

CALLS = {
    value.of: value
    for module in (fit_topics, inputs, measure, reproduce, show, train)
    for values in vars(module).values()
    for value in (values if isinstance(values, tuple) else (values,))
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
    assert len(CALLS) == 29
    assert {call.of for call in measure.CALLS.values()} <= set(CALLS)


def every_option():
    """Every function that a command calls, with each of its options and that option's flag."""
    return [(of, flag, argument) for of, call in CALLS.items() for flag, argument in call.options.items()]


def test_options_have_the_names_and_defaults_of_the_arguments():
    for of, _, argument in every_option():
        known = parameters(target(of))
        assert argument.name in known, f"{of} takes no {argument.name}"
        default = default_of(known[argument.name])
        # A factory of dictionaries is none to the command line.
        assert argument.default == (None if argument.pairs and default == {} else default), (
            of,
            argument.name,
        )


def test_every_argument_is_an_option_or_filled_or_left_out_for_a_reason():
    for of, call in CALLS.items():
        named = [*(argument.name for argument in call.options.values()), *call.filled, *call.without]
        assert len(set(named)) == len(named), of
        assert set(named) == set(parameters(target(of))), of
        assert all(call.without.values()), of


def test_every_option_says_what_it_does():
    assert [(of, flag) for of, flag, argument in every_option() if len(argument.help) <= 3] == []


def test_the_choices_of_an_option_are_those_of_the_type():
    for of, flag, argument in every_option():
        call = getattr(target(of), "__init__" if inspect.isclass(target(of)) else "__call__")
        hints = typing.get_type_hints(call) | typing.get_type_hints(target(of))
        assert argument.choices == next(iter(literals(hints[argument.name])), ()), (of, flag)


def literals(hint):
    if typing.get_origin(hint) is typing.Literal:
        yield typing.get_args(hint)
    if typing.get_origin(hint) is not Mapping:  # whose values are no choices of the option itself
        for part in typing.get_args(hint):
            yield from literals(part)


def test_the_choices_of_the_toy_are_those_it_knows():
    calls = (train.TOY, train.TRAINING)
    choices = {argument.name: argument.choices for call in calls for argument in call.options.values()}
    assert choices["regime"] == tuple(model.REGIMES)
    assert choices["init"] == typing.get_args(model.Init)
    assert choices["dtype"] == tuple(model.DTYPES)
    assert choices["loss"] == typing.get_args(history.Loss)
    assert choices["optimizer"] == typing.get_args(history.OptimizerName)
    assert choices["forward"] == typing.get_args(history.Forward)


def test_bool_arguments_can_be_switched_off_and_on():
    for call in CALLS.values():
        for argument in call.options.values():
            assert (argument.types == (bool,)) == isinstance(argument.default, bool), argument.name


def test_the_commit_of_wikipedia_and_the_ways_to_split_files_are_the_ones_of_the_corpus():
    assert inputs.WIKIPEDIA_CORPUS.options["--corpus-revision"].default == WIKIPEDIA[2]
    split = inputs.FILES.options["--split"]
    assert all(way in split.help for way in typing.get_args(sources.Split))
    assert split.choices == typing.get_args(sources.Split)


def test_every_recipe_takes_the_options_of_reproduce():
    every = [argument.name for argument in reproduce.RUN.options.values()]
    known = {argument.name for call in reproduce.SOME for argument in call.options.values()}
    named = {"models", "corpus", "words", "tokenizer", "settings", "progress"}
    for name in RECIPES:
        taken = set(recipe_named(name).options)
        assert {*every, "progress"} <= taken <= known | named | set(every), name


def parser_of(argument):
    """A parser that takes an argument as an option."""
    parser = Parser("do")
    add_option(parser, f"--{argument.name}", argument)
    return parser


STEPS = Argument("steps", "so many", 5, "5", types=(int,))
REMASK = Argument("remask", default=True, types=(bool,))
IDS = Argument("ids", types=(int,), many=True)
RATE = Argument("rate", types=(str, float), choices=("auto",))


def test_an_option_that_is_not_given_is_not_passed_on(monkeypatch):
    known = {argument.name: argument for argument in (STEPS, REMASK, IDS)}
    monkeypatch.setattr("topic_probe.cli.options.arguments_of", {"a:work": known}.get)
    call, parser = Call("a:work", filled=(), flags={"steps": "times"}), Parser("do")
    add_options(parser, {"all": (call,)})
    assert call.arguments(parser.parse_args([])) == {}
    parsed = parser.parse_args(["--no-remask", "--ids", "1", "2", "--times", "3"])
    assert call.arguments(parsed) == {"steps": 3, "remask": False, "ids": [1, 2]}
    assert call.given(parsed) == ["--times", "--remask", "--ids"]


def test_a_command_may_say_something_else_of_an_argument_and_names_with_values_are_read(monkeypatch):
    rules = Argument("rules", "its own words", shown="none", many=True, pairs=True)
    monkeypatch.setattr("topic_probe.cli.options.arguments_of", {"a:work": {"rules": rules}}.get)
    call, parser = Call("a:work", help={"rules": "other words"}), Parser("do")
    add_options(parser, {"all": (call,)})
    assert parser.format_help().endswith("--rules [NAME=VALUE ...]\n                        other words\n")
    assert call.arguments(parser.parse_args(["--rules", "a=b", "c=d"])) == {"rules": {"a": "b", "c": "d"}}
    with pytest.raises(ValueError, match="--rules takes NAME=VALUE, got 'a'"):
        call.arguments(parser.parse_args(["--rules", "a"]))


def test_a_call_that_names_an_argument_that_is_not_there_is_a_mistake(monkeypatch):
    monkeypatch.setattr("topic_probe.cli.options.arguments_of", {"a:work": {"ids": IDS}}.get)
    with pytest.raises(AssertionError, match="a:work takes no gone"):
        _ = Call("a:work", without={"gone": "for no reason"}).options


@pytest.mark.parametrize(
    ("argument", "given", "value"),
    [
        (RATE, "0.5", 0.5),
        (RATE, "auto", "auto"),
        (Argument("rate", types=(int, str)), "12", 12),
        (Argument("rate", types=(int, str)), "L1H2", "L1H2"),
        (Argument("rate", types=(float,)), "3", 3.0),
        (Argument("rate", types=(str, Path)), "3", "3"),
        (Argument("rate"), "3", "3"),
    ],
)
def test_a_text_becomes_the_number_that_it_is_where_the_argument_may_be_one(argument, given, value):
    found = parser_of(argument).parse_args(["--rate", given]).rate
    assert (found, type(found)) == (value, type(value))


def test_what_an_argument_cannot_be_is_refused(capsys):
    for argument, given in ((STEPS, "many"), (Argument("steps", choices=("a", "b")), "c")):
        with pytest.raises(SystemExit):
            parser_of(argument).parse_args(["--steps", given])
    assert "invalid int value: 'many'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        (STEPS, "--steps N  so many (default: 5)"),
        (
            Argument("xs", "rates", (0.5, 1.0), "0.5 1.0", (float,), many=True),
            "--xs [X ...] rates (default: 0.5 1.0)",
        ),
        (Argument("on", "on", False, "no", types=(bool,)), "--on, --no-on on (default: no)"),
        (Argument("way", "how", shown="all ways", choices=("a", "b")), "--way {a,b} how (default: all ways)"),
        (Argument("way", "100% of it", "a", "a"), "--way VALUE 100% of it (default: a)"),
        (Argument("to", "where", types=(str, Path)), "--to PATH where"),
        (Argument("ids", "which", (), types=(int,), many=True), "--ids [N ...] which"),
        (Argument("rules", "what", many=True, pairs=True), "--rules [NAME=VALUE ...] what"),
        (RATE, "--rate {auto,X}"),
    ],
)
def test_help_shows_values_sentence_and_default(argument, shown):
    text = " ".join(parser_of(argument).format_help().partition("exit")[2].split())
    assert text == " ".join(shown.split())


def test_an_option_of_several_functions_is_taken_once_and_free_where_one_is_free(monkeypatch):
    closed, free = Argument("split", "first", choices=("file", "line")), Argument("split", "second")
    sources = {"a:work": {"split": closed}, "b:work": {"split": free}}
    monkeypatch.setattr("topic_probe.cli.options.arguments_of", sources.get)
    parser = Parser("do")
    add_options(parser, {"one": (Call("a:work"),), "two": (Call("b:work"),)})
    assert parser.parse_args(["--split", "train"]).split == "train"
    assert "first" in parser.format_help()
    assert "second" not in parser.format_help()
    both = Parser("do")
    add_options(both, {"one": (Call("a:work"), Call("a:work"))})
    with pytest.raises(SystemExit):
        both.parse_args(["--split", "train"])


def test_pairs_of_names_and_values_are_read_and_others_are_refused():
    assert mapping(["W_V=theorem2", "b=x=y"], "--frozen") == {"W_V": "theorem2", "b": "x=y"}
    with pytest.raises(ValueError, match="--frozen takes NAME=VALUE, got 'W_V'"):
        mapping(["W_V"], "--frozen")


def commands(parser):
    """The words that lead to a parser and to every command inside it."""
    with pytest.raises(SystemExit):
        parser.parse_known_args(["--help"])  # which fills it
    yield []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, inside in action.choices.items():
                yield from ([word, *more] for more in commands(inside))


def test_every_command_explains_itself(capsys):
    every = list(commands(build_parser()))
    assert ["measure", "attention"] in every
    for words in every:
        capsys.readouterr()
        assert main([*words, "--help"]) == 0
        said = capsys.readouterr().out
        assert said.startswith(" ".join(["usage: topic-probe", *words]))
        assert "None" not in said, words


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
