"""One self-contained HTML file: what pages are made of, how they are saved, and how a notebook shows them."""

import math
import os
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

# Nothing that a page holds may reach out: the browser itself refuses what slips in.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_SCRIPTED = "; script-src 'unsafe-inline'"

_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n\r"} | {0x7F: 0x2421}
_HALF_CHARACTERS = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, repr=False)
class Page:
    """A page in one HTML file that needs no network.

    Attributes:
        html: The whole file.
        title: Its title.
    """

    html: str
    title: str

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """The file, whole or absent; one that is there already is only replaced with ``overwrite=True``.

        Raises:
            FileExistsError: where there is something at ``path`` that may not be replaced.
        """
        target = Path(path).expanduser().absolute()
        if target.is_dir():
            raise FileExistsError(f"{target} is a folder: name the file, such as {target / 'page.html'}")
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
        try:
            with draft.open("wb") as file:
                file.write(self.html.encode())
                file.flush()
                os.fsync(file.fileno())
            if overwrite:
                draft.replace(target)
            else:
                _put(draft, target)
        finally:
            draft.unlink(missing_ok=True)
        return target

    def __repr__(self) -> str:
        return f"<Page {self.title!r}, {len(self.html) / 1e6:.1f} MB: .save('page.html') writes it to a file>"

    def _repr_html_(self) -> str:
        # A frame of its own, so that names and styles of several pages in a notebook do not meet.
        return (
            f'<iframe srcdoc="{escape(self.html)}" title="{escape(self.title)}" sandbox="allow-scripts" '
            'style="box-sizing: border-box; width: 100%; height: 760px; border: 1px solid #8886; border-radius: 6px">'
            "</iframe>"
        )


def _put(draft: Path, target: Path) -> None:
    """The draft under its name, unless something has that name already."""
    try:
        os.link(draft, target)  # fails where the name is taken, which renaming does not
    except FileExistsError:
        raise FileExistsError(
            f"{target} exists and is not overwritten unasked: choose another name or overwrite=True"
        ) from None
    except OSError:  # a file system without links
        if target.exists():
            raise FileExistsError(
                f"{target} exists and is not overwritten unasked: choose another name or overwrite=True"
            ) from None
        draft.replace(target)


def make_page(title: str, body: str, *, style: str = "", scripts: Sequence[str] = ()) -> Page:
    """A page of a body that is HTML already, and of scripts that are safe inside a script element."""
    policy = _POLICY + (_SCRIPTED if scripts else "")
    shown = text(title)
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{shown}</title>",
        f"<style>{asset('page.css')}{style}</style>",
        "</head>",
        f"<body>{body}",
        *scripts,
        "</body>",
        "</html>",
        "",
    ]
    return Page("\n".join(parts), title)


@cache
def asset(name: str) -> str:
    """A style sheet or script that lies beside this module."""
    return files("topic_probe.show").joinpath(name).read_text(encoding="utf-8")


def readable_text(value: object) -> str:
    """Text in which control characters can be seen and half characters (lone surrogates) are replaced."""
    return _HALF_CHARACTERS.sub("\ufffd", str(value)).translate(_CONTROLS)


def text(value: object) -> str:
    """Text as HTML that shows just this text, in an element or in a quoted attribute."""
    return escape(readable_text(value))


def number(value: Any) -> str:
    """A number for people: four digits, whole ones with commas, a dash where it is undefined."""
    if value is None:
        return "–"
    if isinstance(value, int | np.integer):
        return f"{int(value):,}"
    value = float(value)
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value.is_integer() and 1e4 <= abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.4g}".replace("-", "−")


def is_number(value: Any) -> bool:
    """Whether something is shown as a number; True and False are words."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def cell(value: Any) -> str:
    """A table cell as HTML."""
    if is_number(value):
        exact = "" if isinstance(value, int | np.integer) else f' title="{text(repr(float(value)))}"'
        return f'<td class="n"{exact}>{number(value)}</td>'
    return f"<td>{'–' if value is None else text(value)}</td>"


def table(columns: Sequence[object], rows: Iterable[Sequence[Any]], *, label: str) -> str:
    """A table as HTML, in a box of its own that scrolls where the screen is narrow."""
    rows = [list(row) for row in rows]
    numeric = [
        any(is_number(row[at]) for row in rows) and all(is_number(row[at]) or row[at] is None for row in rows)
        for at in range(len(columns))
    ]
    head = "".join(
        f'<th scope="col"{" class=n" if right else ""}>{text(name)}</th>'
        for name, right in zip(columns, numeric, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    made = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return scrolling(made, label=label, long=len(rows) > _ROWS_SEEN)


_ROWS_SEEN = 25


def scrolling(inside: str, *, label: str, long: bool = False) -> str:
    """HTML in a box that scrolls sideways, also by keyboard; a long one scrolls up and down as well."""
    kind = "scroll long" if long else "scroll"
    return f'<div class="{kind}" tabindex="0" role="region" aria-label="{text(label)}">{inside}</div>'


def facts(values: Mapping[str, Any]) -> str:
    """Nested settings as a list of names and values."""
    if not values:
        return '<p class="quiet">nothing</p>'
    rows = "".join(f"<dt>{text(name)}</dt><dd>{_fact(value)}</dd>" for name, value in values.items())
    return f'<dl class="facts">{rows}</dl>'


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return facts(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        shown = ", ".join(_word(item) for item in value[:_ITEMS])
        return shown + (f" … and {len(value) - _ITEMS:,} more" if len(value) > _ITEMS else "") or "none"
    return _word(value)


_ITEMS = 40


def _word(value: Any) -> str:
    if value is None:
        return "none"
    return number(value) if isinstance(value, float) else text(value)
