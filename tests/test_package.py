"""What holds for the package as a whole."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import topic_probe as tp

ROOT = Path(tp.__file__).parent
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}  # the module of the root is called __init__

# Every module, in an order in which each imports only from those before it: the rooms, and the order inside them.
ORDER = """
storage options estimate words remote
contrast sums report
topics.builtin topics.incidence topics.lists topics.lookup topics.topics topics
text text.documents text.batches text.encoder text.same_texts text.corpus
text.lda text.cooccurrence text.word_tokenizer
toy toy.world toy.theory.value toy.theory.attention toy.theory.gradients
toy.theory.posterior toy.theory.losses toy.theory
toy.model toy.word_attention toy.agreement toy.landscape
lens lens.sites lens.running lens.interface lens.trial lens.weights lens.hooked lens.points lens.host
lens.edit lens.check lens.opening
measure measure.options measure.words measure.matrix measure.pairs measure.parts measure.folder measure.documents
measure.ask measure.permuted measure.word_variance measure.heads measure.attention_sums measure.attention measure.pool
measure.embeddings measure.matched measure.weights
measure.effects measure.interventions
measure.same_words measure.comparison
train train.bert train.history train.toy train.text train.stages
series series.checkpoints series.curves series.measured
show show.style show.figures show.plots
show.page show.text_attention show.attention_page show.gallery
paper.claims paper.recipe paper
show.results_page
paper.trainings paper.toys paper.pretrained paper.two_stages paper.tables
__init__
cli.console cli.options cli cli.inputs cli.screens cli.measure cli.compare cli.pages cli.make cli.reproduce
__main__
""".split()  # noqa: SIM905 (a list would take a line for every module)


def imported_modules(path):
    """Every module of the package that a file imports, also inside functions; the root as __init__."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for parts in (name.split(".") for name in names):
            if parts[0] == "topic_probe":
                known = [".".join(parts[1:end]) for end in range(len(parts), 1, -1)]
                yield next((name for name in known if name in FILES), "__init__")


def test_a_module_imports_only_from_those_before_it_and_only_commands_the_package_root():
    assert sorted(ORDER) == sorted(FILES)
    place = {name: number for number, name in enumerate(ORDER)}
    edges = {(name, other) for name in ORDER for other in imported_modules(FILES[name]) if name != other}
    assert [edge for edge in sorted(edges) if place[edge[0]] <= place[edge[1]]] == []
    assert len(edges) > len(ORDER)


def test_importing_options_loads_nothing_heavy_and_making_topics_no_transformer_library():
    loaded = "print(sorted({name.split('.')[0] for name in sys.modules}))"
    code = (
        f"import sys, topic_probe as tp, topic_probe.measure.options; {loaded}; "
        f"tp.Topics.blocks(n_topics=2, words_per_topic=2); {loaded}"
    )
    answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    imported, used = map(set, map(ast.literal_eval, answer.stdout.splitlines()))
    heavy = {"transformers", "transformer_lens", "pandas", "matplotlib", "gensim", "datasets"}
    assert "topic_probe" in imported
    assert not imported & {"torch", "numpy", *heavy}
    assert "torch" in used
    assert not used & heavy


def test_every_public_name_says_what_it_is_and_is_a_class_or_a_function_but_for_two_modules():
    names = [name for name in tp.__all__ if name != "__version__"]
    assert set(names) <= set(dir(tp))
    assert [name for name in names if not getattr(tp, name).__doc__] == []
    assert {name for name in names if isinstance(getattr(tp, name), ModuleType)} == {"figures", "theory"}
    assert [name for name in names if not callable(getattr(tp, name))] == ["figures", "theory"]
    with pytest.raises(AttributeError, match="no attribute 'measure_everything'"):
        tp.measure_everything  # noqa: B018


@pytest.mark.slow
def test_every_benchmark_finds_what_it_imports():
    """They are no part of the suite, so that nothing else would notice when something they use is gone."""
    paths = sorted(map(str, (Path(__file__).parent / "benchmarks").glob("*.py")))
    code = f"import runpy; [runpy.run_path(path, run_name='not the program') for path in {paths!r}]"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=300)


def test_every_python_and_generation_that_is_supported_is_tried_by_the_workflow():
    workflow = yaml.safe_load((ROOT.parent / ".github" / "workflows" / "checks.yml").read_text())
    tried = workflow["jobs"]["tests"]["strategy"]["matrix"]
    text = (ROOT.parent / "pyproject.toml").read_text()
    assert tried["python"] == re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)
    assert tried["transformer-lens"] == ["==3.9.*", ">=4.3,<5"]
    assert '"transformer-lens>=3.9,<5"' in text
    assert tried["dependencies"] == ["lowest-direct", "highest"]
