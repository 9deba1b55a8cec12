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

# Every module, in an order in which each imports only from those before it: the rooms, and the order inside them.
ORDER = """
storage options uncertainty words notices tables remote
topics.builtin topics.incidence topics.lists
topics.vocabulary topics.models topics.topics topics
contrast paired report
text text.documents text.batches text.encoder text.same_texts text.sources text.hub text.corpus
text.parts text.sums text.bags text.lda text.cooccurrence text.word_tokenizer
toy toy.draws toy.world toy.masking toy.theory.value toy.theory.attention toy.theory.effects toy.theory.gradients
toy.theory.posterior toy.theory.losses toy.theory
toy.model toy.lean toy.lean_gradients toy.word_attention toy.agreement toy.landscape toy.exact
lens lens.sites lens.changes lens.running lens.heads lens.huggingface lens.points lens.adapters lens.capture
lens.editable lens.edit lens.check lens.opening
measure measure.options measure.words measure.pair_sums measure.matrix measure.scores measure.accumulators measure.doubt
measure.folder measure.engine measure.heads measure.patterns
measure.nulls
measure.attention measure.embeddings measure.matching measure.matched measure.weights measure.text_attention
measure.outcomes measure.effects measure.ablation measure.knockout
measure.same_words measure.comparison
train train.bert train.history train.tasks train.stack train.loop train.stages
series series.files series.checkpoints series.check series.onsets series.sums series.measured
series.probe series.whole
show show.style show.bars show.blocks show.curves show.heads show.landscape show.robustness show.effects show.series
show.comparison
show.figures
show.page show.attention_page show.saved show.results_page
paper.claims paper.training paper.recipe paper paper.toys paper.landscape paper.robustness
paper.figure1 paper.figure2 paper.figure4
paper.pretrained paper.figure5 paper.figure3 paper.table1 paper.table2
cli.console cli.signatures cli.options cli cli.inputs cli.measure cli.compare cli.series
cli.fit_topics cli.show cli.train cli.reproduce
__main__
""".split()  # noqa: SIM905 (a list would take a line for every module)


def modules():
    return sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def dotted(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported_modules(path):
    """Every module of the package that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.split(".")[0] == "topic_probe":
                yield module_file(name.split(".")[1:])


def module_file(parts):
    """The file of the module that a dotted name starts with; the name may go on to something inside it."""
    file = ROOT / "__init__.py"
    for number in range(1, len(parts) + 1):
        base = ROOT.joinpath(*parts[:number])
        for candidate in (base / "__init__.py", base.with_suffix(".py")):
            file = candidate if candidate.exists() else file
    return file


def test_every_module_has_its_place_in_the_order():
    assert sorted(ORDER) == sorted(map(dotted, modules()))


def test_a_module_imports_only_from_those_before_it_and_never_the_package_root():
    edges = {(dotted(path), dotted(imported)) for path in modules() for imported in imported_modules(path)}
    place = {name: number for number, name in enumerate(ORDER)}
    wrong = [
        (one, other) for one, other in edges if one != other and place[one] <= place.get(other, len(ORDER))
    ]
    assert wrong == []
    assert len(edges) > len(ORDER)


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, topic_probe; print(sorted({name.split('.')[0] for name in sys.modules}))"
    answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = set(ast.literal_eval(answer.stdout))
    assert "topic_probe" in loaded
    assert not loaded & {
        "torch",
        "transformers",
        "transformer_lens",
        "pandas",
        "matplotlib",
        "gensim",
        "datasets",
    }


def test_measuring_embeddings_of_topics_needs_no_transformer_library_to_be_imported():
    code = "import sys, topic_probe as tp; tp.Topics.blocks(n_topics=2, words_per_topic=2); print(sorted(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = {name.split(".")[0] for name in ast.literal_eval(answer.stdout)}
    assert "torch" in loaded
    assert not loaded & {"transformers", "transformer_lens", "pandas", "matplotlib", "gensim", "datasets"}


def test_every_public_name_exists_and_says_what_it_is():
    assert set(tp.__all__) <= set(dir(tp))
    assert [name for name in tp.__all__ if name != "__version__" and not getattr(tp, name).__doc__] == []


def test_a_public_name_is_a_class_or_a_function_but_for_two_modules():
    modules = {name for name in tp.__all__ if isinstance(getattr(tp, name), ModuleType)}
    assert modules == {"figures", "theory"}
    assert all(callable(getattr(tp, name)) for name in set(tp.__all__) - modules - {"__version__"})


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'measure_everything'"):
        tp.measure_everything  # noqa: B018


def test_every_benchmark_finds_what_it_imports():
    """They are no part of the suite, so that nothing else would notice when something they use is gone."""
    paths = sorted(map(str, (Path(__file__).parent / "benchmarks").glob("*.py")))
    assert len(paths) > 15
    code = f"import runpy; [runpy.run_path(path, run_name='not the program') for path in {paths!r}]"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=300)


def declared(name):
    """What pyproject.toml asks for under a name, each package with its bounds."""
    text = (ROOT.parent / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(rf"^{name} = \[(.*?)^\]", text, flags=re.MULTILINE | re.DOTALL)[1]
    found = re.findall(r"""["']([\w.-]+)([<>=][^"';]*)?""", re.sub(r"#.*", "", listed))
    return {package.lower(): bounds.strip() for package, bounds in found if package != "3.14"}


def test_every_python_and_generation_that_is_supported_is_tried_by_the_workflow():
    workflow = yaml.safe_load(
        (ROOT.parent / ".github" / "workflows" / "checks.yml").read_text(encoding="utf-8")
    )
    tried = workflow["jobs"]["tests"]["strategy"]["matrix"]
    text = (ROOT.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert tried["python"] == re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)
    assert tried["transformer-lens"] == ["==3.9.*", ">=4.3,<5"]
    assert declared("dependencies")["transformer-lens"] == ">=3.9,<5"
    assert tried["dependencies"] == ["lowest-direct", "highest"]
