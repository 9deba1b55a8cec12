"""The pages beside the notebooks say what the code says."""

import ast
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from real_text import minilm_folder

import topic_probe as tp
from topic_probe.paper import RECIPES
from topic_probe.paper.recipe import summary

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import build_docs  # noqa: E402

PAGES = sorted((ROOT / "demos").glob("*.md"))


def messages():
    """Every text in the package, with … where an f-string has a value."""
    for path in Path(tp.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_every_error_on_the_troubleshooting_page_is_one_that_the_code_gives():
    page = (ROOT / "demos" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"```text\n(.+?)\n```", page, flags=re.DOTALL)
    assert len(quoted) > 15
    known = [re.sub(r"['\"]…['\"]|…", "…", message) for message in messages()]
    unknown = [text for text in quoted if not any(text in message for message in known)]
    assert unknown == []


@pytest.mark.slow
def test_the_page_on_hooks_does_what_it_says(capsys):
    page = (ROOT / "demos" / "hooks.md").read_text(encoding="utf-8")
    programs, values = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL), {}
    for program in programs:
        exec(program.replace("sentence-transformers/all-MiniLM-L6-v2", str(minilm_folder())), values)
    assert capsys.readouterr().out.startswith("[1, 8, 12, 32]\n0.")
    model, given = values["model"], (values["ids"], values["mask"])

    def without_head_5(_, given):
        given[0][..., 5 * 32 : 6 * 32] = 0

    projection = model.original_model.encoder.layer[3].attention.output.dense
    projection.register_forward_pre_hook(without_head_5)
    assert torch.equal(values["ablated"], model(*given).last_hidden_state)
    assert not torch.equal(values["ablated"], values["intact"])
    assert values["changed"].overall.n_same_topic > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of transformers about its own settings
def test_the_page_on_learning_does_what_it_says(tmp_path, monkeypatch):
    """As it stands there, with a training of a few steps and two short articles."""
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_folder())
    model = tp.build_bert(
        tp.TextConfig(len(tokenizer), n_layers=1, d_model=16, n_heads=2, max_length=64), seed=0
    )
    arguments = transformers.TrainingArguments(
        "output", max_steps=4, save_steps=1, per_device_train_batch_size=2, report_to=[], disable_tqdm=True,
        use_cpu=True, dataloader_pin_memory=False, logging_strategy="no", learning_rate=1e-3,
    )  # fmt: skip
    ids = torch.arange(2000, 2020)
    rows = [{"input_ids": ids, "labels": ids}] * 8
    values = {"yours": (tokenizer, model, arguments, rows), "print": lambda *_: None}
    page = (ROOT / "demos" / "learning.md").read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(programs) == page.count("```python") == 4
    replaced = {
        "= ...  # yours": "= yours", "n_documents=40": "n_documents=2",
        "max_length=128": "max_length=16",
    }  # fmt: skip
    assert all(as_printed in page for as_printed in replaced)
    for program in programs:
        for as_printed, other in replaced.items():
            program = program.replace(as_printed, other)
        exec(program, values)
    assert values["report"].steps.tolist() == [1, 2, 3, 4]
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [f"step {n}" for n in (1, 2, 3, 4)]


def test_links_between_the_pages_and_those_of_the_site_lead_somewhere(gathered):
    dead = []
    for page in (*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", *gathered.glob("*.md")):
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        targets = re.findall(r"\]\((?!http|#)([^)#\s]+)", text)
        dead += [(page.name, target) for target in targets if not (page.parent / target).exists()]
    assert dead == []


@pytest.fixture(scope="module")
def gathered(tmp_path_factory):
    """What the site is made of, as `make docs` gathers it."""
    target = tmp_path_factory.mktemp("docs") / "source"
    build_docs.gather(target)
    return target


def test_every_page_and_notebook_is_on_the_site_once_and_nothing_else(gathered):
    contents = "".join(path.read_text(encoding="utf-8") for path in gathered.glob("*.md"))
    toctrees = re.findall(r"```{toctree}\n(.*?)```", contents, flags=re.DOTALL)
    lines = [line for tree in toctrees for line in tree.splitlines() if line and not line.startswith(":")]
    listed = [re.sub(r".*<(.*)>", r"\1", line) for line in lines]
    there = {path.stem for path in gathered.glob("*.md")}
    assert sorted(listed) == sorted(there - {"index"})
    kept = {path.stem for kind in ("*.md", "*.ipynb") for path in (ROOT / "demos").glob(kind)}
    assert kept <= there


def test_links_of_pages_become_those_of_the_site_and_what_would_be_loaded_from_elsewhere_is_found():
    text = "[a](../tests/x.py), [b](demos/planning.md#gpu), [c](theory_explored.ipynb), [d](https://e.org)"
    assert build_docs.linked(text) == "a, [b](planning.md#gpu), [c](theory_explored.md), [d](https://e.org)"
    loads = (
        '<script src="https://a.org/x.js"></script><img alt="" src="//b.org/y.png"><a href="https://d.org">'
    )
    assert build_docs.asks_network(loads) == ["https://a.org/x.js", "//b.org/y.png"]


def test_the_reference_has_every_public_name_with_its_docstring():
    written = build_docs.reference()
    text = "\n".join(written.values())
    for name in tp.__all__:
        if not name.startswith("_"):
            assert len(re.findall(rf"^## `tp\.{name}`$", text, flags=re.MULTILINE)) == 1
            value = getattr(tp, name)
            said = inspect.getdoc(value).splitlines()[0].replace("``", "`")
            assert isinstance(value, ModuleType) or said in text
    assert "tp.theory.optimal_value" in written["reference_the_toy_world"]


def test_the_tests_that_hold_numbers_exist():
    tests = Path(__file__).parent
    known = {
        name
        for file in tests.rglob("*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)
    }
    known |= {file.stem for file in tests.rglob("test_*.py")}
    named = set(re.findall(r"\btest_\w+", (tests / "holds.md").read_text()))
    assert len(named) > 120
    assert named - known == set()


def test_the_page_of_whole_results_says_what_is_saved():
    folder = Path(__file__).parents[1] / "docs"
    saved = [name for name in RECIPES if (folder / "results" / name).is_dir()]
    lines = summary(tp.load_report(folder / "results" / name) for name in saved)
    assert "\n".join(lines) in (folder.parent / "demos" / "paper.md").read_text()
    assert len(saved) == 7
