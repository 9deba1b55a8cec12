"""Colours and labels that all figures and pages share, so that a topic looks the same wherever it is shown."""

import io
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Shaped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

PALETTE = (
    "#65dfef", "#802c53", "#568baf", "#503880", "#cc736a", "#0e4e14",
    "#b3e176", "#877d0d", "#d7c516", "#4e2df7", "#a78cfc", "#8726c2",
)  # fmt: skip
"""Colours of topics 0 to 11; beyond them colours come again.

Chosen so that all twelve stay apart with every kind of colour blindness, and in a grey print neighbouring topics do.
"""

SEQUENTIAL = "cividis"
"""Colour map of numbers: its lightness rises evenly, in grey and for the colour-blind as well, and its middle is grey.
"""

LESS, MORE = "#3f83c4", "#de6f0d"
"""The ends of colours that have a middle, such as those of ratios: blue is less, orange is more.

They are far apart for every kind of colour blindness, and black text can be read on both.
"""

MISSING = "#80808050"
"""Where there is no number: a grey that is seen on every page."""

ACCENTS = ("#00366c", "#bc5a00", "#12827c", "#a2417d", "#8a7400", "#7a7a7a")
"""Colours of curves that are no topics; line styles tell them apart as well."""
LINES = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 2)))


def curve_look(number: int) -> dict[str, Any]:
    """The colour and line of a curve that is no topic, by its number."""
    return {"color": ACCENTS[number % len(ACCENTS)], "linestyle": LINES[number % len(LINES)]}


def topic_colour(topic: int) -> str:
    """The colour of a topic as ``#rrggbb``, by its id alone: the same in every figure and page."""
    return PALETTE[topic % len(PALETTE)]


@cache
def diverging() -> "Colormap":
    """The colour map of numbers on both sides of one that says *no difference*, which is white."""
    from matplotlib.colors import LinearSegmentedColormap

    found = LinearSegmentedColormap.from_list("topic_probe", [LESS, "#ffffff", MORE], N=257)
    return found.with_extremes(bad=MISSING)


def tint(side: float) -> str:
    """The same as a CSS colour: from -1, all blue, over 0, white, to 1, all orange; NaN is grey."""
    from matplotlib.colors import to_hex

    return to_hex(diverging()((side + 1) / 2), keep_alpha=True)


def ink_on(colour: str) -> str:
    """Black or white, whichever can be read better on a ``#rrggbb`` colour."""
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (red, green, blue)
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    # Contrast (lighter + 0.05) / (darker + 0.05) is the same with both at this luminance.
    return "#000000" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "#ffffff"


# -------------------------------------------------------------------- what all figures do


def axes_for(ax: "Axes | None", *, size: tuple[float, float] = (6.0, 4.0)) -> "Axes":
    """The axes to draw on: those given, or those of a new figure, which no pyplot knows of."""
    if ax is not None:
        return ax
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="compressed").subplots()


def panels(
    draw: Sequence[Callable[["Axes"], Any]],
    *,
    columns: int | None = None,
    size: tuple[float, float] = (3.2, 3.2),
    title: str = "",
    **sharing: Any,
) -> "Figure":
    """A figure with a panel for every function, which draws on the axes that it is given; ``size`` is of one panel.

    ``sharing`` goes to `matplotlib.figure.Figure.subplots` (``sharex=True``).
    """
    from matplotlib.figure import Figure

    n_columns = min(len(draw), columns or len(draw)) or 1
    n_rows = max(1, -(-len(draw) // n_columns))
    figure = Figure(figsize=(size[0] * n_columns, size[1] * n_rows), layout="compressed")
    grid = figure.subplots(n_rows, n_columns, squeeze=False, **sharing)
    for ax, draw_one in zip(grid.flat, draw, strict=False):
        draw_one(ax)
    for ax in grid.flat[len(draw) :]:
        ax.set_axis_off()
    if title:
        figure.suptitle(drawable(title))
    return figure


def say(ax: "Axes", text: str) -> "Axes":
    """The axes with a sentence in place of a picture, where there is nothing to draw."""
    import textwrap

    ax.set_axis_off()
    ax.text(0.5, 0.5, drawable(textwrap.fill(text, 36)), ha="center", va="center", transform=ax.transAxes)
    return ax


def svg_of(figure: "Figure") -> bytes:
    """The figure as an SVG; the same one twice is the same."""
    import matplotlib

    file = io.BytesIO()
    # Names inside a drawing are made up anew each time, unless they are salted.
    with matplotlib.rc_context({"svg.hashsalt": "topic_probe"}):
        figure.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None})
    return file.getvalue()


def arrows(values: Shaped[np.ndarray, "..."], low: float, high: float) -> str:
    """Which ends of a colour bar need an arrow, because there are numbers beyond them."""
    below, above = bool((values < low).any()), bool((values > high).any())
    return {(True, True): "both", (True, False): "min", (False, True): "max"}.get((below, above), "neither")


def drawable(text: str) -> str:
    """The text as matplotlib draws it: no formula between dollars, and a box for what the font does not have.

    Without this a word of another script is a warning, and a dollar sign among the words an error.
    """
    from matplotlib.font_manager import FontProperties, findfont

    known = _characters(str(findfont(FontProperties())))
    shown = (character if ord(character) in known or character == "\n" else "□" for character in text)
    return "".join(shown).replace("$", r"\$")


@lru_cache
def _characters(path: str) -> frozenset[int]:
    from matplotlib.font_manager import get_font

    return frozenset(get_font(path).get_charmap())
