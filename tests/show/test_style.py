"""Colours are found again and labels are drawn as they are written."""

from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from topic_probe.show.style import (
    LESS,
    MORE,
    PALETTE,
    diverging,
    drawable,
    ink_on,
    panels,
    svg_of,
    tint,
    topic_colour,
)


def luminance(colour):
    """Relative luminance, as WCAG defines it."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return linear @ np.array([0.2126, 0.7152, 0.0722])


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_two_sides_of_a_ratio_stand_out_from_paper_and_black_can_be_read_on_all_between():
    assert all(contrast(colour, "#ffffff") > 3 for colour in (LESS, MORE))  # what WCAG asks of what is drawn
    assert all(contrast("#000000", diverging()(side)) >= 4.5 for side in np.linspace(0, 1, 101))


def test_a_tint_is_the_colour_of_the_map():
    assert tint(0.0) == "#ffffffff"
    assert tint(1.0) == f"{MORE}ff"
    assert tint(-1.0) == f"{LESS}ff"
    assert tint(-0.5) == "#9fc1e2ff"
    assert tint(float("nan")) == "#80808050"


def test_a_figure_as_svg_is_the_same_twice():
    def drawn():
        figure = Figure()
        figure.subplots().plot([0, 1])
        return svg_of(figure)

    assert drawn() == drawn()
    ElementTree.fromstring(drawn())


def test_a_topic_keeps_its_colour_whatever_else_there_is():
    assert topic_colour(3) == PALETTE[3] == topic_colour(3 + len(PALETTE))
    assert len(set(PALETTE)) == len(PALETTE)


@pytest.mark.parametrize("colour", [*PALETTE, "#000000", "#ffffff", "#777777"])
def test_text_on_a_colour_can_be_read(colour):
    assert contrast(colour, ink_on(colour)) >= 4.5  # what WCAG asks of small text


@pytest.mark.parametrize("text", ["$", "$x$", "a $ b $ c", r"$\frac$", "日本", "💥 €", "naïve ‖W_V‖ α ÷ ·"])
def test_any_text_is_drawn_without_a_warning(text, tmp_path):
    figure = Figure()
    figure.subplots().set_title(drawable(text))
    for kind in ("png", "svg", "pdf"):
        figure.savefig(tmp_path / f"figure.{kind}")


def test_text_that_the_font_knows_stays_as_it_is():
    assert drawable("naïve ‖W_V‖ α ÷ ·") == "naïve ‖W_V‖ α ÷ ·"
    assert drawable("日本!") == "□□!"


def test_every_panel_draws_on_axes_of_its_own():
    drawn = []
    figure = panels([drawn.append] * 5, columns=3, title="five")
    assert len(set(map(id, drawn))) == 5
    assert [ax.axison for ax in figure.axes] == [True] * 5 + [False]
    assert panels([]).axes
