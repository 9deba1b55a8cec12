"""Small multiples of how things degrade draw the rows that they are given."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from topic_probe.show.figures import robustness_curves, robustness_panels
from topic_probe.show.style import ACCENTS


def row(at, value, *, axis="overlap", curve="blocks", variant="squared", control=0.1, **others):
    known = {"axis": axis, "at": at, "curve": curve, "variant": variant, "value": value, "control": control}
    interval = {"low": value - 0.05, "high": value + 0.05}
    return {**known, **interval, "logarithmic": False, "base": at == 0.0, **others}


ROWS = [
    row(0.0, 1.0),
    row(0.5, 0.6, control=0.3),
    row(0.0, 0.8, variant="cross-entropy", control=0.2),
    row(0.5, 0.4, variant="cross-entropy", control=0.05),
    row(0.0, 0.9, curve="loss", control=np.nan),
    row(0.5, -7.0, curve="loss", control=np.nan),
]


def lines(ax):
    """What is drawn, without the line of the base."""
    return [line for line in ax.get_lines() if len(line.get_xdata()) == 2 and line.get_linewidth() < 3]


def test_every_curve_is_drawn_where_its_numbers_are_with_the_highest_control_in_its_colour():
    ax = robustness_curves(ROWS, legend=False)
    found = [(to_hex(line.get_color()), line.get_linestyle(), *line.get_ydata()) for line in lines(ax)]
    blue, orange = ACCENTS[:2]
    assert found[:2] == [(blue, "-", 1.0, 0.6), (blue, "--", 0.8, 0.4)]
    assert found[2][:3] == (orange, "-", 0.9)
    assert found[3] == (blue, ":", 0.2, 0.3)
    assert all(list(line.get_xdata()) == [0.0, 0.5] for line in lines(ax)[:4])


def test_what_lies_beyond_the_panel_is_drawn_at_its_edge():
    ax = robustness_curves(ROWS, legend=False)
    assert lines(ax)[2].get_ydata()[1] == ax.get_ylim()[0] == -0.12


def test_intervals_are_shaded_and_the_base_is_marked():
    ax = robustness_curves(ROWS, legend=False)
    first = ax.collections[0].get_paths()[0].vertices
    assert {(x, round(y, 9)) for x, y in first.tolist()} >= {
        (0.0, 0.95),
        (0.0, 1.05),
        (0.5, 0.55),
        (0.5, 0.65),
    }
    (base,) = [line for line in ax.get_lines() if line.get_linewidth() > 3]
    assert set(base.get_xdata()) == {0.0}


def test_places_with_names_stand_side_by_side_without_lines_between_them():
    rows = [row("1 layer", 0.9, base=True), row("2 layers", 0.7)]
    ax = robustness_curves(rows, legend=False)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1\nlayer", "2\nlayers"]
    curve, control = lines(ax)
    assert (curve.get_xdata().tolist(), curve.get_linestyle()) == ([0, 1], "None")
    assert control.get_linestyle() == "None"
    (ends,) = [part.get_segments() for part in ax.collections]
    np.testing.assert_allclose([segment[:, 1] for segment in ends], [[0.85, 0.95], [0.65, 0.75]])


@pytest.mark.parametrize(("logarithmic", "scale"), [(True, "log"), (False, "linear")])
def test_an_axis_is_logarithmic_if_its_rows_say_so(logarithmic, scale):
    ax = robustness_curves([row(x, 0.5, logarithmic=logarithmic) for x in (10, 250)], legend=False)
    assert ax.get_xscale() == scale
    assert [label.get_text() for label in ax.get_xticklabels()] == ["10", "250"]


def test_an_axis_without_a_number_says_so():
    ax = robustness_curves([row(0.0, np.nan)])
    assert "no number was measured" in ax.texts[0].get_text()


def test_panels_have_an_axis_each_and_say_once_what_the_lines_are():
    rows = [*ROWS, *(row(x, 0.5, axis="length") for x in (10, 20))]
    figure = robustness_panels(rows)
    assert [ax.get_title() for ax in figure.axes] == ["overlap", "length"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "blocks",
        "loss",
        "squared",
        "cross-entropy",
        "the highest of its controls, in its colour",
    ]


def test_a_curve_has_its_colour_in_panels_in_which_another_is_missing():
    rows = [*ROWS, *(row(x, 0.5, axis="length", curve="loss") for x in (10, 20))]
    figure = robustness_panels(rows)
    assert to_hex(lines(figure.axes[1])[0].get_color()) == ACCENTS[1]
