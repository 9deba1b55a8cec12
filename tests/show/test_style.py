"""Colours stay apart for everyone, and labels are drawn as they are written."""

import itertools

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from topic_probe.show.style import (
    PALETTE,
    SEQUENTIAL,
    drawable,
    ink_on,
    panels,
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


def test_a_topic_keeps_its_colour_whatever_else_there_is():
    assert topic_colour(3) == PALETTE[3] == topic_colour(3 + len(PALETTE))
    assert len(set(PALETTE)) == len(PALETTE)


@pytest.mark.parametrize("colour", [*PALETTE, "#000000", "#ffffff", "#777777"])
def test_text_on_a_colour_can_be_read(colour):
    def luminance(one):
        rgb = np.array(to_rgb(one))
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        return linear @ TO_XYZ[1]

    light, dark = sorted([luminance(colour), luminance(ink_on(colour))], reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5  # what WCAG asks of small text


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
