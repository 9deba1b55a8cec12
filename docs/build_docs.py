"""Builds the documentation as a site without a network: ``python docs/build_docs.py`` (`make docs`).

Its pages are gathered from where they are kept: the README, the pages and notebooks in demos/, CONTRIBUTING and
CHANGELOG. Notebooks are shown with the outputs that they were saved with; nothing is run. The reference is made of the
docstrings. Every warning of Sphinx is an error, and so is a page that would ask the network for anything.
"""

import base64
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))

from build_reference import reference  # noqa: E402

PAGES = {"README.md": "start.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def gather(target: Path) -> None:
    """Everything that the site is made of, in one folder."""
    shutil.copytree(HERE, target, ignore=shutil.ignore_patterns("*.py[co]", "__pycache__", "build_*.py"))
    for name, page in PAGES.items():
        (target / page).write_text(linked((ROOT / name).read_text(encoding="utf-8")), encoding="utf-8")
    for path in (ROOT / "demos").glob("*.md"):
        (target / path.name).write_text(linked(path.read_text(encoding="utf-8")), encoding="utf-8")
    for path in (ROOT / "demos").glob("*.ipynb"):
        (target / f"{path.stem}.md").write_text(linked(page_of(path, target)), encoding="utf-8")
    for name, text in reference().items():
        (target / f"{name}.md").write_text(text, encoding="utf-8")


def linked(text: str) -> str:
    """A page whose links lead to the other pages of the site; those to files that are no pages are left out."""

    def link(match: re.Match[str]) -> str:
        mark, words, target, part = match.groups()
        if mark:  # a picture, in docs/
            return f"![{words}]({target.removeprefix('../').removeprefix('docs/')})"
        name = target.removeprefix("../").removeprefix("demos/").removeprefix("docs/")
        page = PAGES.get(name, name.replace(".ipynb", ".md"))
        return f"[{words}]({page}{part or ''})" if page.endswith(".md") and "/" not in page else words

    return re.sub(r"(!?)\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)", link, text)


def page_of(path: Path, target: Path) -> str:
    """A notebook as a page; its pictures are written beside it."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = []
    for number, cell in enumerate(cells):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            parts.append(f"```python\n{source}\n```")
            parts += shown(cell["outputs"], f"{path.stem}_{number}", target)
    return "\n\n".join(parts) + "\n"


def shown(outputs: list[dict[str, Any]], name: str, target: Path) -> Iterator[str]:
    """What a cell has shown, the richest form of each output."""
    for number, output in enumerate(outputs):
        data = output.get("data", {})
        if "image/png" in data:
            picture = target / "_static" / f"{name}_{number}.png"
            picture.write_bytes(base64.b64decode(data["image/png"]))
            body = f'<img src="_static/{picture.name}" alt="{escaped(data)}">'
        elif "text/html" in data:
            body = "".join(data["text/html"])
        else:
            text = "".join(data.get("text/plain", output.get("text", "")))
            body = f"<pre>{text.replace('&', '&amp;').replace('<', '&lt;')}</pre>"
        fence = "`" * 12
        yield f'{fence}{{raw}} html\n<div class="output" tabindex="0">{body}</div>\n{fence}'


def escaped(data: dict[str, Any]) -> str:
    """The text of a picture for those who cannot see it."""
    return "".join(data.get("text/plain", "figure")).replace('"', "&quot;").replace("<", "&lt;")


_LOADED = re.compile(r'<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)="((?:https?:)?//[^"]+)"')


def asks_network(text: str) -> list[str]:
    """What a page would load from elsewhere; links that a reader may follow are none of it."""
    return [address for address in _LOADED.findall(text) if "schema.org" not in address]


def main() -> int:
    """Gathers and builds into build/docs; the answer is 0 where all went well."""
    from sphinx.cmd.build import build_main

    source, site = ROOT / "build" / "docs" / "source", ROOT / "build" / "docs" / "html"
    for folder in (source, site):
        shutil.rmtree(folder, ignore_errors=True)
    gather(source)
    if failed := build_main(["-q", "-W", "--keep-going", "-b", "html", str(source), str(site)]):
        return failed
    asking = {
        page.name: found for page in site.glob("*.html") if (found := asks_network(page.read_text("utf-8")))
    }
    if asking:
        print(f"pages that would ask the network: {asking}", file=sys.stderr)
        return 1
    print(f"open {site / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
