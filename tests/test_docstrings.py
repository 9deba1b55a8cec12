"""The examples in docstrings are run as they stand there."""

import ast
import doctest
from functools import reduce
from importlib import import_module
from pathlib import Path

import topic_probe as tp

ROOT = Path(tp.__file__).parent


def documented(node, name):
    """Every docstring in a syntax tree with the dotted name of what it is of."""
    yield name, ast.get_docstring(node) or ""
    for inner in node.body:
        if isinstance(inner, ast.ClassDef | ast.FunctionDef):
            yield from documented(inner, f"{name}.{inner.name}".lstrip("."))


def examples():
    """Module and dotted name in it of everything in the package whose docstring has an example."""
    for path in sorted(ROOT.rglob("*.py")):
        module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
        for name, text in documented(ast.parse(path.read_text(encoding="utf-8")), ""):
            if ">>>" in text:
                yield module, name


def test_every_example_gives_what_its_docstring_says_and_what_most_people_begin_with_has_one():
    finder, runner, printed = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(verbose=False), []
    every = list(examples())
    begun_with = "Topics Corpus World Masking Contrast encode_texts measure_attention train_toy load_report"
    assert set(begun_with.split()) <= {name.split(".")[0] for _, name in every}
    for module, name in every:
        documented = reduce(getattr, name.split(".") if name else [], import_module(module))
        (example,) = finder.find(documented, name or module, globs={"tp": tp})
        assert runner.run(example, out=printed.append).attempted, name or module
    assert printed == []
