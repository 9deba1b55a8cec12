"""The pages beside the notebooks say what the code says."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import torch
from real_text import minilm_folder

import topic_probe

ROOT = Path(__file__).parents[1]
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


def test_links_between_the_pages_lead_somewhere():
    for page in [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


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


def test_the_reference_is_that_of_the_docstrings():
    script = "import build_reference as b, sys; sys.stdout.buffer.write(b.reference().encode())"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT / "demos", capture_output=True, check=True, timeout=120
    )
    written = (ROOT / "demos" / "reference.md").read_bytes()
    assert done.stdout == written, "run: python demos/build_reference.py"
