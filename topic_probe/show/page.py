"""One self-contained HTML file: what pages are made of, how they are saved, and how a notebook shows them."""

import math
import os
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from topic_probe.storage import draft

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
        with draft(path, overwrite=overwrite, file=True) as place:
            place.write_bytes(self.html.encode())
        return Path(path).expanduser().absolute()

    def __repr__(self) -> str:
        return f"<Page {self.title!r}, {len(self.html) / 1e6:.1f} MB: .save('page.html') writes it to a file>"

    def _repr_html_(self) -> str:
        # A frame of its own, so that names and styles of several pages in a notebook do not meet; its links lead to
        # places in the page, and not to those of the notebook around it.
        html = self.html.replace("<head>", '<head><base href="about:srcdoc">', 1)
        return environment().get_template("frame.html").render(html=escape(html), title=self.title)


@cache
def environment() -> Environment:
    """How templates become pages: everything that is put into one is escaped, and what it names must be there."""
    made = Environment(
        loader=PackageLoader("topic_probe.show"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=readable_text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {"allow_nan": False}
    made.filters["number"] = number
    made.globals["asset"] = asset
    return made


def make_page(template: str, title: str, **content: Any) -> Page:
    """The page that a template makes of this content."""
    return Page(environment().get_template(template).render(title=title, **content), title)


@cache
def asset(name: str) -> Markup:
    """A style sheet or script that lies among the templates, as it is."""
    return Markup(files("topic_probe.show").joinpath("templates", name).read_text(encoding="utf-8"))


def readable_text(text: Any) -> Any:
    """Text in which control characters can be seen and half characters (lone surrogates) are replaced.

    What is no text, or is HTML already, stays as it is.
    """
    if not isinstance(text, str) or isinstance(text, Markup):
        return text
    return _HALF_CHARACTERS.sub("\ufffd", text).translate(_CONTROLS)


def number(value: Any, digits: int = 4) -> str:
    """A number for people: in so many digits, whole ones with commas, a dash where it is undefined."""
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
    return f"{value:.{digits}g}".replace("-", "−")
