"""Colours and labels that all figures and pages share."""

import colorsys
import io
import textwrap
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

PALETTE = (
    "#568baf", "#cc736a", "#b3e176", "#503880", "#d7c516", "#802c53",
    "#65dfef", "#0e4e14", "#a78cfc", "#877d0d", "#4e2df7", "#8726c2",
)  # fmt: skip
"""Colours of the first twelve topics, which all stay apart with every kind of colour blindness."""

LESS, MORE = "#3f83c4", "#de6f0d"
"""The ends of colours that have a middle, such as those of ratios: blue is less, orange is more.

They are far apart for every kind of colour blindness, and black text can be read on both.
"""

MISSING = "#80808050"
"""Where there is no number: a grey that is seen on every page."""

ACCENTS = ("#00366c", "#bc5a00", "#12827c", "#a2417d", "#8a7400", "#7a7a7a")
"""Colours of curves and bars that are no topics; line styles tell curves apart as well."""
LINES = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 2)))


def topic_colours(topics: Iterable[Any]) -> dict[Any, str]:
    """A colour as ``#rrggbb`` for every topic that is present, all of them different."""
    found: dict[Any, str] = {}
    for place, topic in enumerate(dict.fromkeys(topics)):
        found[topic] = PALETTE[place] if place < len(PALETTE) else _further(place)
    return found


def _further(place: int) -> str:
    """A colour beyond the palette: hues by the golden ratio, so that no two are the same."""
    lightness = (0.35, 0.55, 0.75)[place % 3]
    rgb = colorsys.hls_to_rgb(place * 0.618034 % 1, lightness, 0.6)
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)


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


def axes_for(ax: "Axes | None", *, size: tuple[float, float] = (6.0, 4.0)) -> "Axes":
    """The axes to draw on: those given, or those of a new figure, which no pyplot knows of."""
    if ax is not None:
        return ax
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="compressed").subplots()


def say(ax: "Axes", text: str) -> "Axes":
    """The axes with a sentence in place of a picture, where there is nothing to draw."""
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


def drawable(text: Any) -> str:
    """The text as matplotlib draws it: no formula between dollars, and a box for what the font does not have.

    Without this a word of another script is a warning, and a dollar sign among the words an error.
    """
    known = _characters()
    shown = (character if ord(character) in known or character == "\n" else "□" for character in str(text))
    return "".join(shown).replace("$", r"\$")


@cache
def _characters() -> frozenset[int]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return frozenset(get_font(str(findfont(FontProperties()))).get_charmap())
