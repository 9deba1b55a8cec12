"""The pages beside the notebooks say what the code says."""

import ast
import base64
import inspect
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from real_text import minilm_folder

import topic_probe

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import build_docs  # noqa: E402

PAGES = sorted((ROOT / "demos").glob("*.md"))


def messages():
    """Every text in the package, with … where an f-string has a value."""
    for path in Path(topic_probe.__file__).parent.rglob("*.py"):
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
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=len(tokenizer), **sizes))
    arguments = transformers.TrainingArguments(
        "output", max_steps=4, save_steps=1, per_device_train_batch_size=2, report_to=[], disable_tqdm=True,
        use_cpu=True, dataloader_pin_memory=False, logging_strategy="no", learning_rate=1e-3,
    )  # fmt: skip
    ids = torch.arange(2000, 2020)
    rows = [{"input_ids": ids, "labels": ids}] * 8
    (tmp_path / "revisions.txt").write_text("step1000-tokens4B\n")
    values = {"yours": (tokenizer, model, arguments, rows), "print": lambda *_: None}
    page = (ROOT / "demos" / "learning.md").read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(programs) == page.count("```python") == 3
    replaced = {
        "= ...  # yours": "= yours",
        "= ...  # the report of": "= report  #",
        "n_documents=40": "n_documents=2",
        "max_length=128": "max_length=16",
    }
    assert all(as_printed in page for as_printed in replaced)
    for program in programs:
        for as_printed, other in replaced.items():
            program = program.replace(as_printed, other)
        exec(program, values)
    assert values["report"].steps.tolist() == [1, 2, 3, 4]
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [f"step {n}" for n in (1, 2, 3, 4)]


def dead_links(pages, folder):
    """Links of pages to files that are not there."""
    return [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(
            r"\]\((?!http|#)([^)#\s]+)", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        )
        if not ((folder or page.parent) / target).exists()
    ]


def test_links_between_the_pages_lead_somewhere(gathered):
    assert dead_links([*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], None) == []
    assert dead_links(gathered.glob("*.md"), gathered) == []


def test_the_rooms_and_files_that_contributors_are_sent_to_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    package = Path(topic_probe.__file__).parent
    named = set(re.findall(r"`([\w/]+(?:\.py|\.md|/))`", text))
    assert [name for name in named if not any((base / name).exists() for base in (ROOT, package))] == []
    rooms = {path.name + "/" for path in package.iterdir() if (path / "__init__.py").exists()}
    tops = {path.stem for path in package.glob("*.py") if not path.stem.startswith("_")}
    table = text.split("| room |")[1].split("\n\n")[0]
    first_column = "".join(row.split("|")[1] for row in table.splitlines()[1:])
    assert set(re.findall(r"`([\w/]+)`", first_column)) == rooms | tops


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


def test_a_notebook_is_shown_with_the_outputs_that_it_was_saved_with(gathered):
    notebook = json.loads((ROOT / "demos" / "theory_explored.ipynb").read_text(encoding="utf-8"))
    page = (gathered / "theory_explored.md").read_text(encoding="utf-8")
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    named = re.findall(r'<img src="(_static/[^"]+)"', page)
    assert [base64.b64encode((gathered / name).read_bytes()).decode() for name in named] == pictures != []
    for cell in notebook["cells"]:
        assert build_docs.linked("".join(cell["source"])) in page


def test_links_of_pages_become_those_of_the_site_and_what_would_be_loaded_from_elsewhere_is_found():
    text = "[a](../tests/x.py), [b](demos/planning.md#gpu), [c](theory_explored.ipynb), [d](https://e.org)"
    assert build_docs.linked(text) == "a, [b](planning.md#gpu), [c](theory_explored.md), [d](https://e.org)"
    loads = '<script src="https://a.org/x.js"></script><img alt="" src="//b.org/y.png"><link rel="x" href="http://c.org/z">'
    assert build_docs.asks_network(loads) == ["https://a.org/x.js", "//b.org/y.png", "http://c.org/z"]
    assert (
        build_docs.asks_network('<a href="https://a.org"><img src="_static/y.png"><script src="x.js">') == []
    )


def test_the_reference_has_every_public_name_with_its_docstring():
    written = build_docs.reference()
    text = "\n".join(written.values())
    for name in topic_probe.__all__:
        if not name.startswith("_"):
            assert len(re.findall(rf"^## `tp\.{name}`$", text, flags=re.MULTILINE)) == 1
            value = getattr(topic_probe, name)
            if not isinstance(value, ModuleType):
                assert inspect.getdoc(value).splitlines()[0].replace("``", "`") in text
    assert "tp.theory.optimal_value" in written["reference_the_toy_world"]
