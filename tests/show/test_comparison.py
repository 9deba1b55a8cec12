"""Models side by side, as a figure and on the page."""

import matplotlib.colors
import numpy as np
import pytest

import topic_probe as tp
from topic_probe.contrast import Contrast
from topic_probe.measure.comparison import ComparisonReport
from topic_probe.show import figures


def report():
    """Two models with known numbers, of which one has a layer more."""

    def cells(values, **index):
        ones = np.ones(len(values))
        values = np.array(values)
        interval = np.stack([values * 0.9, values * 1.1], -1)
        return Contrast(
            ones, values, ones, ones, ones, ones, interval=interval, index=index, q_value=ones * 0.01
        )

    heads = {
        name: cells(values, stack=("self",) * len(values), layer=tuple(n // 2 for n in range(len(values))),
                    head=tuple(n % 2 for n in range(len(values))))
        for name, values in (("small", [0.5, 1.0]), ("large", [2.0, 1.0, 4.0, 1.0]))
    }  # fmt: skip
    of_pairs = {
        "first": ("small",), "second": ("large",), "quotient": True, "number": np.array([0.8]),
        "low": np.array([0.7]), "high": np.array([0.9]), "p_value": np.array([0.01]),
    }  # fmt: skip
    return ComparisonReport(
        ("small", "large"), {"attention": "ratio"}, {"attention": cells([1.2, 1.5], model=("small", "large"))},
        {"attention": of_pairs}, {"attention": np.array([[0.1, 0.9], [0.9, 0.1]])}, heads, heads, True,
        {"options": {}, "words": None, "documents": None},
    )  # fmt: skip


def maps(figure):
    return [ax.images[0] for ax in figure.axes if ax.images]


def test_heads_of_all_models_have_the_same_colours_with_one_in_their_middle():
    images = maps(report().plot().figure)
    assert len(images) == 2
    assert {image.get_clim() for image in images} == {(0.25, 4.0)}
    assert images[0].norm(1.0) == pytest.approx(0.5)
    assert matplotlib.colors.to_hex(images[0].cmap(0.5)) == "#ffffff"
    np.testing.assert_array_equal(images[1].get_array().data, [[2, 1], [4, 1]])


def test_every_model_has_its_number_and_its_interval():
    ax = figures.comparison_forest(report())
    (points,) = [line for line in ax.lines if line.get_marker() == "o"]
    assert points.get_xdata().tolist() == [1.2, 1.5]
    ends = [segment[:, 0].tolist() for segment in ax.collections[0].get_segments()]
    np.testing.assert_allclose(ends, [[1.08, 1.32], [1.35, 1.65]])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["small", "large"]


def test_given_axes_get_the_numbers_and_what_was_not_measured_is_refused():
    ax = figures.comparison_forest(report())
    assert report().plot(ax) is ax
    with pytest.raises(ValueError, match="no measure 'cosine'; there are attention"):
        figures.comparison_forest(report(), measure="cosine")


def test_the_page_has_the_differences_before_the_models(tmp_path):
    report().save(tmp_path / "comparison")
    html = tp.report_page(tmp_path).html
    assert html.index("What one model has more than another") < html.index(">large</td>")
    assert "small ÷ large" in html
