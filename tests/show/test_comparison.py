"""Models side by side as a figure."""

import numpy as np
import pytest

from topic_probe.contrast import Contrast
from topic_probe.measure.comparison import ComparisonReport
from topic_probe.show import figures


def cells(values, **index):
    ones, values = np.ones(len(values)), np.array(values)
    interval = np.stack([values * 0.9, values * 1.1], -1)
    return Contrast(ones, values, ones, ones, ones, ones, interval=interval, index=index, q_value=ones * 0.01)


def test_models_have_their_numbers_with_intervals_and_heads_in_the_same_colours_around_one():
    """Two models with known numbers, of which one has a layer more."""
    small = cells([0.5, 1.0], stack=("self",) * 2, layer=(0, 0), head=(0, 1))
    large = cells([2.0, 1.0, 4.0, 1.0], stack=("self",) * 4, layer=(0, 0, 1, 1), head=(0, 1, 0, 1))
    heads, models = {"small": small, "large": large}, ("small", "large")
    of_pairs = {"first": ("small",), "second": ("large",), "quotient": True, "number": np.array([0.8])}
    of_pairs |= {name: np.array([0.8]) for name in ("low", "high", "p_value")}
    report = ComparisonReport(
        models, {"attention": "ratio"}, {"attention": cells([1.2, 1.5], model=models)}, {"attention": of_pairs},
        {"attention": np.array([[0.1, 0.9], [0.9, 0.1]])}, heads, heads, True,
        {"options": {}, "words": None, "documents": None},
    )  # fmt: skip
    images = [ax.images[0] for ax in report.plot().figure.axes if ax.images]
    assert [image.get_clim() for image in images] == [(0.25, 4.0)] * 2
    assert images[0].norm(1.0) == pytest.approx(0.5)
    np.testing.assert_array_equal(images[1].get_array().data, [[2, 1], [4, 1]])
    ax = figures.comparison_forest(report)
    (points,) = [line for line in ax.lines if line.get_marker() == "o"]
    assert points.get_xdata().tolist() == [1.2, 1.5]
    ends = [segment[:, 0].tolist() for segment in ax.collections[0].get_segments()]
    np.testing.assert_allclose(ends, [[1.08, 1.32], [1.35, 1.65]])
    with pytest.raises(ValueError, match="no measure 'cosine'; there are attention"):
        figures.comparison_forest(report, measure="cosine")
