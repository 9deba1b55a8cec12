"""Colours are found again and labels are drawn as they are written."""

import numpy as np
from matplotlib.colors import to_rgb

from topic_probe.show.style import LESS, MORE, PALETTE, diverging, drawable, topic_colour


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


def test_a_topic_keeps_its_colour_and_text_that_the_font_knows_stays_as_it_is():
    assert topic_colour(3) == PALETTE[3] == topic_colour(3 + len(PALETTE))
    assert drawable("naïve ‖W_V‖ α ÷ ·") == "naïve ‖W_V‖ α ÷ ·"
    assert drawable("日本!") == "□□!"
