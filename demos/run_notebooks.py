"""Runs the notebooks beside this file and keeps their outputs: ``python demos/run_notebooks.py [NAME …]``.

No Jupyter is needed. The cells of a notebook run in one namespace; what the last expression of a cell gives is kept as
a notebook shows it: a page or a table as HTML with its text, a matplotlib figure as a picture.

``--model FOLDER`` is used in place of the name of the model on the hub, for machines without a network.
"""

import argparse
import ast
import base64
import contextlib
import io
import json
import sys
import warnings
from pathlib import Path
from typing import Any

HUB_NAME = '"sentence-transformers/all-MiniLM-L6-v2"'


def run(path: Path, *, model: str | None = None) -> dict[str, Any]:
    """The notebook with fresh outputs. The first cell that fails ends it; its error names the cell."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    number = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        number += 1
        source = "".join(cell["source"])
        if model is not None:
            source = source.replace(HUB_NAME, repr(model))
        cell["outputs"], cell["execution_count"] = (
            execute(source, namespace, f"{path.name}[{number}]", number),
            number,
        )
    return notebook


def execute(source: str, namespace: dict[str, Any], name: str, number: int) -> list[dict[str, Any]]:
    """The outputs of one cell: what it prints, then what its last expression is."""
    tree = ast.parse(source, name)
    last = (
        ast.Expression(tree.body.pop().value) if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    )
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        exec(compile(tree, name, "exec"), namespace)
        value = None if last is None else eval(compile(last, name, "eval"), namespace)
    outputs = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        outputs.append(
            {"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": shown(value)}
        )
    return outputs


def shown(value: Any) -> dict[str, Any]:
    """What a notebook shows of a value, by MIME type."""
    figure = getattr(value, "figure", value)
    if hasattr(figure, "savefig"):
        picture = io.BytesIO()
        figure.savefig(picture, format="png", bbox_inches="tight", dpi=90, metadata={"Software": None})
        return {"image/png": base64.b64encode(picture.getvalue()).decode(), "text/plain": ["figure"]}
    data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
    html = value._repr_html_() if hasattr(value, "_repr_html_") else None
    if html is not None:
        data["text/html"] = html.splitlines(keepends=True)
    return data


def notebooks() -> list[Path]:
    """All notebooks of this folder."""
    return sorted(Path(__file__).parent.glob("*.ipynb"))


def main(arguments: list[str]) -> None:
    """Runs the wanted notebooks and writes them back with their outputs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="names of notebooks; all by default")
    parser.add_argument("--model", help="a folder to use in place of the model's name on the hub")
    options = parser.parse_args(arguments)
    warnings.simplefilter("error")
    for path in notebooks():
        if options.names and path.stem not in options.names:
            continue
        notebook = run(path, model=options.model)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path.name)


if __name__ == "__main__":
    main(sys.argv[1:])
