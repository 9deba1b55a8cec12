"""Small multiples of how things degrade draw the rows that they are given."""

import numpy as np
from matplotlib.colors import to_hex

from topic_probe.show.figures import robustness_curves
from topic_probe.show.style import ACCENTS


def row(at, value, *, axis="overlap", curve="blocks", variant="squared", control=0.1, **others):
    known = {"axis": axis, "at": at, "curve": curve, "variant": variant, "value": value, "control": control}
    interval = {"low": value - 0.05, "high": value + 0.05}
    return {**known, **interval, "logarithmic": False, "base": at == 0.0, **others}


def test_curves_controls_and_intervals_are_drawn_where_their_numbers_are():
    """The highest control is in the colour of its curve."""
    rows = [
        row(0.0, 1.0), row(0.5, 0.6, control=0.3), row(0.0, 0.8, variant="cross-entropy", control=0.2),
        row(0.5, 0.4, variant="cross-entropy", control=0.05), row(0.0, 0.9, curve="loss", control=np.nan),
        row(0.5, 0.7, curve="loss", control=np.nan),
    ]  # fmt: skip
    ax = robustness_curves(rows, legend=False)
    lines = [line for line in ax.get_lines() if len(line.get_xdata()) == 2 and line.get_linewidth() < 3]
    found = [(to_hex(line.get_color()), line.get_linestyle(), *line.get_ydata()) for line in lines]
    blue, orange = ACCENTS[:2]
    assert found[:2] == [(blue, "-", 1.0, 0.6), (blue, "--", 0.8, 0.4)]
    assert (found[2], found[3]) == ((orange, "-", 0.9, 0.7), (blue, ":", 0.2, 0.3))
    shaded = {(x, round(y, 9)) for x, y in ax.collections[0].get_paths()[0].vertices.tolist()}
    assert shaded >= {(0.0, 0.95), (0.0, 1.05), (0.5, 0.55), (0.5, 0.65)}
