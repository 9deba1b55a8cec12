"""Everything that was saved in a folder as one page: pictures of the paper first, then reports."""

import base64
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from topic_probe import storage
from topic_probe.measure.folder import PART
from topic_probe.options import checked
from topic_probe.paper import RECIPES
from topic_probe.paper.recipe import RecipeResult, claim_rows, failing, measured
from topic_probe.report import Report, load_report, version_of
from topic_probe.show.page import Page, make_page, number
from topic_probe.show.style import svg_of

MAX_ROWS = 60
# What reading a file that is broken, or of somebody else, can end in.
_BROKEN = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError)


@checked
def report_page(directory: str | os.PathLike[str], *, title: str | None = None) -> Page:
    """The page of everything in a folder that this package has saved, however deep it lies.

    Results of recipes come first, as pictures with the paper's sentences, numbers, controls and verdicts under them;
    then every other report with its figure, table and notes. What cannot be read is named with the reason. Nothing
    outside the folder is read, and nothing from it is executed.

    Args:
        directory: the folder.
        title: the title of the page; by default the folder's name.

    Raises:
        FileNotFoundError: where there is no such folder.
        ValueError: where nothing in it was saved by this package.
    """
    root = Path(directory).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {str(root)!r}: name one that results were saved in")
    problems: dict[str, str] = {}
    pieces = list(_pieces(root, problems))
    if not pieces:
        named = "; ".join(f"{name}: {why}" for name, why in list(problems.items())[:3])
        raise ValueError(
            f"{str(root)!r} holds nothing that topic_probe has saved: save a report with report.save(folder) and name "
            "that folder or one above it" + (f" ({named})" if named else "")
        )
    recipes = [piece for piece in pieces if isinstance(piece["report"], RecipeResult)]
    recipes.sort(key=lambda piece: list(RECIPES).index(piece["report"].recipe))
    by_itself = (
        "How Do Transformers Learn Topic Structure" if recipes else f"Results in {root.resolve().name}"
    )
    claims = [claim for piece in recipes for claim in piece["report"].claims]
    return make_page(
        "report.html",
        title or by_itself,
        recipes=recipes,
        others=[piece for piece in pieces if piece not in recipes],
        problems=problems,
        own_version=version_of("topic-probe") or "unknown",
        measured=_with_interval,
        rows=lambda report: _html([row for claim in report.claims for row in claim_rows(claim)]),
        failing=failing,
        unexpected=[claim for claim in claims if claim["verdict"] not in ("holds", "not checked")],
    )


def _pieces(root: Path, problems: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Every saved report in a folder, those in front whose names come first; links are not followed."""
    for place, folders, files in os.walk(root, followlinks=False):
        folders.sort()
        folder = Path(place)
        name = folder.relative_to(root).as_posix() if folder != root else root.resolve().name
        files = [file for file in files if not (folder / file).is_symlink()]
        try:
            if storage.FILE in files or any(map(PART.fullmatch, files)):
                yield _piece(name, load_report(folder))
        except _BROKEN as error:  # one file must not cost the page
            why = str(error).strip().split("\n")[0] or type(error).__name__
            problems[name] = why.replace(f"{folder}{os.sep}", "").replace(str(folder), name)


def _piece(name: str, report: Report) -> dict[str, Any]:
    """A report as the page shows it: pictures by what they show, tables, and notes."""
    shown: dict[str, Any] = {"name": name, "report": report}
    if isinstance(report, RecipeResult):
        figures, tables = report.figures(), list(map(_html, report.tables.values()))
        shown["notes"] = list(report.missing.values())
    else:
        figures, tables = {}, [_html(report.to_dataframe())]
        shown["notes"] = report._notes()
        with suppress(*_BROKEN):  # some have no figure, and a table without one is better than no page
            figures[f"{name}, {report.kind}"] = report.plot().figure  # type: ignore[assignment]
    pictures = {what: _image(figure) for what, figure in figures.items()}
    return shown | {"pictures": pictures, "tables": "".join(tables)}


def _image(figure: Any) -> str:
    """A figure as an address: as an image, so that no script in it runs."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg_of(figure)).decode()}"


def _html(rows: Any) -> str:
    """A table; pandas escapes what is in it."""
    import pandas as pd

    frame = pd.DataFrame(rows)
    shown = frame.head(MAX_ROWS).to_html(
        index=False, float_format=lambda value: number(value, 3), na_rep="–", border=0
    )
    more = len(frame) - MAX_ROWS
    return str(shown) + (f"<p class=quiet>and {more:,} more rows</p>" if more > 0 else "")


def _with_interval(claim: Mapping[str, Any]) -> str:
    """The first number of a claim over its trainings, with the interval where it is about one."""
    text, first = measured(claim), claim["panels"][0]["numbers"][0]
    if len(claim["panels"]) == 1 and first["low"] != first["high"]:
        text += f" [{number(first['low'])}, {number(first['high'])}]"
    return text
