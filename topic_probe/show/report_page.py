"""Everything that was saved in a folder as one page to read, mail and archive."""

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from topic_probe.show.definitions import CLAIMS, PAIRS, terms
from topic_probe.show.page import Page, asset, facts, is_number, make_page, number, scrolling, text
from topic_probe.show.pieces import MAX_ROWS, Piece, folded
from topic_probe.show.saved import SavedFolder, SavedRecipe

_SIGNS = {"passed": "✓", "failed": "✗", "not checked": "○"}


def report_page(directory: str | os.PathLike[str], *, title: str | None = None) -> Page:
    """The page of everything in a folder that this package has saved, however deep it lies.

    Results of recipes, reports, histories, topics, tables and figures are shown; every other file, and every file
    that cannot be read, is named with the reason. Nothing from the folder is executed, and nothing outside it is read:
    links are not followed.

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
    found = SavedFolder(root)
    found.read()
    if not (found.recipes or found.pieces):
        named = "; ".join(f"{name}: {why}" for name, why in list(found.problems.items())[:3])
        raise ValueError(
            f"{str(root)!r} holds nothing that topic_probe has saved: save a report with report.save(folder) or a "
            "recipe with result.save(folder), and name that folder or one above it"
            + (f" ({named})" if named else "")
        )
    name = title or f"Results in {root.resolve().name or root}"
    return make_page(name, _body(name, found), style=asset("report.css"))


def _body(title: str, found: SavedFolder) -> str:
    sections: list[tuple[str, str, str]] = []  # id, name, HTML
    if found.recipes:
        sections.append(("overview", "Overview", _overview(found.recipes)))
    for number_of, recipe in enumerate(found.recipes):
        mark = " ".join(_SIGNS[verdict] for verdict in ("failed",) if recipe.verdicts[verdict])
        sections.append(
            (f"recipe-{number_of}", f"{recipe.name}: {recipe.title} {mark}".strip(), _recipe_html(recipe))
        )
    if found.pieces:
        sections.append(("saved", "Reports and files", _pieces_html(found.pieces, anchors=True)))
    if found.problems or found.others:
        sections.append(("unread", "Not shown", _unread(found)))
    sections.append(("definitions", "How each number is defined", _definitions(found)))
    sections.append(("versions", "Versions", _versions(found)))
    inner = "".join(
        f'<li><a href="#piece-{at}">{text(piece.name)}</a> '
        f'<span class="quiet">{text(piece.kind.split(": ")[-1])}</span></li>'
        for at, piece in enumerate(found.pieces)
    )
    links = "".join(
        f'<li><a href="#{mark}">{text(name)}</a>{f"<ol>{inner}</ol>" if mark == "saved" else ""}</li>'
        for mark, name, _ in sections
    )
    shown = "".join(
        f'<section id="{mark}" aria-labelledby="{mark}-title"><h2 id="{mark}-title">{text(name)}</h2>{inside}</section>'
        for mark, name, inside in sections
    )
    return (
        f'<a class="skip" href="#content">To the content</a><div class="columns"><nav aria-label="Contents">'
        f'<p class="nav-title">Contents</p><ol>{links}</ol></nav><main id="content"><header><h1>{text(title)}</h1>'
        f'<p class="quiet">{_summary(found)}</p></header>{shown}</main></div>'
    )


def _all_pieces(found: SavedFolder) -> list[Piece]:
    return found.pieces + [piece for recipe in found.recipes for piece in recipe.pieces]


def _summary(found: SavedFolder) -> str:
    verdicts = sum((recipe.verdicts for recipe in found.recipes), Counter[str]())
    parts = [f"{count:,} {verdict}" for verdict in _SIGNS if (count := verdicts[verdict])]
    claims = f"{sum(verdicts.values()):,} claims: {', '.join(parts)}. " if parts else ""
    kinds = Counter(piece.kind.split(":")[0] for piece in _all_pieces(found))
    names = {"training": ("training", "trainings"), "topics": ("list of topics", "lists of topics")}
    held = [
        f"{count:,} {names.get(kind, (kind, kind + 's'))[count != 1]}"
        for kind, count in sorted(kinds.items())
    ]
    return text(claims + ", ".join(held) + ("." if held else ""))


def _overview(recipes: Sequence[SavedRecipe]) -> str:
    rows = "".join(
        f'<tr><th scope="row"><a href="#recipe-{at}">{text(recipe.name)}</a>'
        f'{" (quick variant)" if recipe.quick else ""}<div class="quiet">{text(recipe.title)}</div></th>'
        + "".join(
            f'<td class="n">{_verdict(verdict, str(count)) if (count := recipe.verdicts[verdict]) else "·"}</td>'
            for verdict in _SIGNS
        )
        + f'<td class="n">{_seconds(recipe.seconds)}</td></tr>'
        for at, recipe in enumerate(recipes)
    )
    head = "".join(f'<th scope="col" class="n">{name}</th>' for name in (*_SIGNS, "seconds"))
    return scrolling(
        f'<table class="overview"><thead><tr><th scope="col">recipe</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table>",
        label="Overview",
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:,.{0 if seconds >= 10 else 1}f}" if math.isfinite(seconds) else number(seconds)


def _verdict(verdict: str, shown: str) -> str:
    """A verdict in words and a sign, because colour alone says nothing to some readers and printers."""
    return f'<span class="verdict {verdict.split()[0]}">{_SIGNS[verdict]} {text(shown)}</span>'


def _recipe_html(recipe: SavedRecipe) -> str:
    where = f" · folder {text(recipe.place)}" if recipe.place else ""
    quick = "quick variant · " if recipe.quick else ""
    figures = [piece for piece in recipe.pieces if piece.kind == "figure"]
    tables = [piece for piece in recipe.pieces if piece.kind == "table"]
    rest = [piece for piece in recipe.pieces if piece not in figures and piece not in tables]
    return (
        f'<p class="quiet">{quick}{_seconds(recipe.seconds)} seconds{where}</p>{_claims(recipe)}'
        + _pieces_html(figures)
        + _pieces_html(tables)
        + "".join(
            folded(f"{kind.capitalize()} ({len(group)})", _pieces_html(group), "group")
            for kind, group in _by_kind(rest)
        )
    )


def _by_kind(pieces: Iterable[Piece]) -> list[tuple[str, list[Piece]]]:
    groups: dict[str, list[Piece]] = {}
    for piece in pieces:
        groups.setdefault(piece.kind, []).append(piece)
    return list(groups.items())


def _pieces_html(pieces: Iterable[Piece], *, anchors: bool = False) -> str:
    return "".join(
        f'<div class="piece"{f" id=piece-{at}" if anchors else ""}>'
        f'<h3><span class="quiet">{text(piece.kind)}</span> {text(piece.name)}</h3>'
        f"{piece.html}</div>"
        for at, piece in enumerate(pieces)
    )


def _claims(recipe: SavedRecipe) -> str:
    """Claim → measured → paper → verdict; the settings of a claim stand under it."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for claim in recipe.claims:
        key = tuple(str(claim.get(name) or "") for name in ("text", "source", "paper"))
        groups.setdefault(key, []).append(claim)  # type: ignore[arg-type]
    head = "".join(
        f'<th scope="col"{" class=n" if name in ("measured", "wanted") else ""}>{name}</th>'
        for name in ("setting", "measured", "wanted", "verdict")
    )
    bodies = "".join(f"<tbody>{_claim_group(*key, group)}</tbody>" for key, group in groups.items())
    return scrolling(
        f'<table class="claims"><thead><tr>{head}</tr></thead>{bodies}</table>',
        label=f"Claims of {recipe.name}",
    )


def _claim_group(statement: str, source: str, paper: str, group: Sequence[Mapping[str, Any]]) -> str:
    rows = "".join(map(_claim_row, group))
    return (
        f'<tr class="claim"><th scope="rowgroup" colspan="4">{text(statement)}<span>{text(source)} · '
        f"the paper: <b>{text(paper)}</b></span></th></tr>{rows}"
    )


def _claim_row(claim: Mapping[str, Any]) -> str:
    unchecked = claim.get("not_checked")
    measured = None if unchecked else claim.get("measured")
    shown = number(measured) if measured is None or is_number(measured) else text(measured)
    detail = str(unchecked or claim.get("detail") or "")
    more = f'<tr class="detail"><td colspan="4">{text(detail)}</td></tr>' if detail else ""
    return (
        f"<tr{' class=followed' if detail else ''}><td>{text(claim.get('setting') or 'all')}</td>"
        f'<td class="n" title="{text(measured)}">{shown}</td><td class="n">{text(claim.get("wanted") or "")}</td>'
        f"<td>{_verdict(claim['verdict'], claim['verdict'])}</td></tr>{more}"
    )


def _unread(found: SavedFolder) -> str:
    parts = []
    if found.problems:
        parts.append("<p>These could not be read:</p>" + facts(found.problems))
    if found.others:
        listed = "".join(f"<li>{text(name)}</li>" for name in found.others[:MAX_ROWS])
        more = len(found.others) - MAX_ROWS
        parts.append(
            "<p>These files are not shown:</p>"
            f"<ul>{listed}{f'<li>… and {more:,} more</li>' if more > 0 else ''}</ul>"
        )
    return "".join(parts)


def _versions(found: SavedFolder) -> str:
    """Which versions of which packages the results were made with; more than one of a package is seen at once."""
    used: dict[str, dict[str, None]] = {}
    for piece in _all_pieces(found):
        for package, number_of in piece.versions.items():
            used.setdefault(str(package), {})[str(number_of)] = None
    try:
        own = version("topic-probe")
    except PackageNotFoundError:
        own = "unknown"
    made = {package: " and ".join(numbers) for package, numbers in used.items()}
    written = f'<p class="quiet">This page was written by topic_probe {text(own)}.</p>'
    return facts(made) + written if made else f'<p class="quiet">No report names them.</p>{written}'


def _definitions(found: SavedFolder) -> str:
    columns = [
        (piece.kind.removeprefix("report: "), column)
        for piece in _all_pieces(found)
        if piece.kind.startswith("report: ")
        for column in piece.columns
    ]
    meanings, pairs = terms(columns)
    said = f"<p>{text(PAIRS)}</p>" if pairs else ""
    return said + facts({**(CLAIMS if found.recipes else {}), **meanings})
