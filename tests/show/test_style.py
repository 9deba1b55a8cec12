"""Colours stay apart for everyone, and labels are drawn as they are written."""

import itertools
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from topic_probe.show.style import (
    ACCENTS,
    DARK_INK,
    LESS,
    MORE,
    NIGHT,
    PALETTE,
    SEQUENTIAL,
    diverging,
    drawable,
    follows_the_page,
    ink_on,
    ink_over,
    panels,
    svg_of,
    tint,
    topic_colour,
)

# How colours are seen without one kind of cones, in linear RGB (Machado, Oliveira and Fernandes 2009, severity 1).
SEEN = {
    "as they are": np.eye(3),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def lab(colours, seen="as they are"):
    """CIE L*a*b* of colours as somebody sees them; 2.3 is a just noticeable distance."""
    rgb = np.array([to_rgb(colour) for colour in colours])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = np.clip(linear @ SEEN[seen].T, 0, 1) @ TO_XYZ.T / np.array([0.95047, 1, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1)


def luminance(colour):
    rgb = np.array(to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ TO_XYZ[1]


def closest(colours, seen):
    found = lab(colours, seen)
    return min(np.linalg.norm(one - other) for one, other in itertools.combinations(found, 2))


def test_the_distance_finds_colours_that_the_colour_blind_confuse():
    assert closest(["#d62728", "#7f7f00"], "as they are") > 50
    assert closest(["#d62728", "#7f7f00"], "deuteranopia") < 25


@pytest.mark.parametrize("seen", SEEN)
def test_all_colours_of_topics_are_far_apart(seen):
    assert closest(PALETTE, seen) > 24


def test_neighbouring_topics_differ_in_a_grey_print():
    lightness = lab([topic_colour(topic) for topic in range(2 * len(PALETTE))])[:, 0]
    assert np.abs(np.diff(lightness)).min() > 20


def test_colours_of_numbers_rise_evenly_in_lightness_with_grey_in_the_middle():
    found = lab(colormaps[SEQUENTIAL](np.linspace(0, 1, 50))[:, :3])
    steps = np.diff(found[:, 0])
    assert (steps > 0).all()
    assert steps.max() < 2.5 * steps.min()
    assert np.linalg.norm(found[25, 1:]) < 8


@pytest.mark.parametrize("seen", SEEN)
def test_the_two_sides_of_a_ratio_are_far_apart_and_stand_out_from_every_page(seen):
    assert closest([LESS, MORE], seen) > 50
    for page in ("#ffffff", NIGHT["#ffffff"]):
        for colour in (LESS, MORE):
            assert contrast(colour, page) > 3  # what WCAG asks of what is drawn


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(("paper", "ink"), [("#ffffff", "#000000"), (NIGHT["#ffffff"], NIGHT["#000000"])])
def test_what_is_written_on_a_ratio_can_be_read_by_day_and_by_night(paper, ink):
    for side in np.linspace(-1, 1, 101):
        *colour, alpha = diverging()((side + 1) / 2)
        seen = alpha * np.array(colour) + (1 - alpha) * np.array(to_rgb(paper))
        own = ink_over(side)
        assert contrast(ink if own == "#000000" else own, seen) >= 4.5


def test_a_tint_is_the_colour_of_the_map():
    assert tint(0.0).endswith("/ 0.000)")
    assert tint(1.0) == "rgb(222 111 13 / 1.000)"
    assert tint(-0.5) == "rgb(63 131 196 / 0.500)"
    assert tint(float("nan")).startswith("rgb(128 128 128")


@pytest.mark.parametrize("colour", ACCENTS)
def test_curves_are_seen_on_dark_paper_too(colour):
    assert contrast(NIGHT.get(colour, colour), NIGHT["#ffffff"]) > 3


def test_a_figure_as_svg_says_what_it_is_by_night_and_is_the_same_twice():
    def drawn():
        figure = Figure()
        ax = figure.subplots()
        ax.plot([0, 1], color=ACCENTS[0])
        ax.text(0, 0, "written", color=DARK_INK)
        return svg_of(figure)

    assert drawn() == drawn()
    assert follows_the_page(drawn())
    [style] = re.findall(rb"<style[^>]*>(@media.*?)</style>", drawn())
    assert f'[style*="stroke: {ACCENTS[0]}"] {{ stroke: {NIGHT[ACCENTS[0]]} !important }}'.encode() in style
    assert DARK_INK.encode() not in style
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
