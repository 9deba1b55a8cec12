"""Bars of ratios draw the rows that they are given, and forests a point for each, with crosses for the paper."""

import math

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from topic_probe.show.bars import quotient_forest, ratio_bars, ratio_panels, seed_points

RATIOS = {("small", 0.001): 1.5, ("small", 0.002): 0.8, ("large", 0.001): 2.0, ("large", 0.002): 1.25}


def rows(**changes):
    return [
        {"model": model, "threshold": threshold, "score": "attention", "ratio": ratio, "low": ratio - 0.1,
         "high": ratio + 0.2, "paper": 2 * ratio}
        | changes.get(f"{model} {threshold}", {})
        for (model, threshold), ratio in RATIOS.items()
    ]  # fmt: skip


def tops(ax):
    patches = sorted(ax.patches, key=lambda patch: patch.get_x())
    return [patch.get_y() + patch.get_height() for patch in patches]


def test_a_bar_reaches_from_one_to_its_ratio_with_its_interval_and_the_printed_value():
    ax = ratio_bars(rows())
    assert tops(ax) == pytest.approx(list(RATIOS.values()))
    assert {patch.get_y() for patch in ax.patches} == {1.0}
    at = sorted(patch.get_x() + patch.get_width() / 2 for patch in ax.patches)
    lines = [one for one in ax.collections if isinstance(one, LineCollection)]
    found = sorted(segment.tolist() for one in lines for segment in one.get_segments())
    wanted = [[[x, r - 0.1], [x, r + 0.2]] for x, r in zip(at, RATIOS.values(), strict=True)]
    np.testing.assert_allclose(found, wanted)
    printed = [line.get_xydata() for line in ax.get_lines() if line.get_label() == "paper"]
    wanted = [[x, 2 * r] for x, r in zip(at, RATIOS.values(), strict=True)]
    np.testing.assert_allclose(sorted(np.concatenate(printed).tolist()), wanted)
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["small", "large"]
    gap = ratio_bars(rows(**{"small 0.002": {"ratio": None}}))
    assert (len(gap.patches), [text.get_text() for text in gap.texts]) == (3, ["×"])


def test_scores_are_drawn_apart():
    both = rows() + [row | {"score": "cosine", "ratio": 3 * row["ratio"]} for row in rows()]
    with pytest.raises(ValueError, match="choose one with score=, or draw them all by ratio_panels"):
        ratio_bars(both)
    with pytest.raises(ValueError, match="no row has the score 'dot'"):
        ratio_bars(both, score="dot")
    drawn = ratio_panels(both).axes
    assert [ax.get_title() for ax in drawn] == ["attention", "cosine"]
    assert tops(drawn[1]) == pytest.approx([3 * ratio for ratio in RATIOS.values()])


QUOTIENTS = [
    {"score": score, "model": "bert", "threshold": threshold, "quotient": quotient, "low": low, "high": high,
     "paper_quotient": paper}
    for score, threshold, quotient, low, high, paper in (
        ("attention", 0.001, 0.9, 0.8, 0.95, 0.88),
        ("cosine", 0.001, 1.4, None, None, None),
        ("attention", 0.002, None, None, None, 0.87),
    )
]  # fmt: skip


def points(ax, marker):
    drawn = [line.get_xydata().tolist() for line in ax.lines if line.get_marker() == marker]
    return [tuple(point) for part in drawn for point in part]


def test_every_row_of_table_2_is_a_point_and_the_paper_a_cross_beside_its_own():
    ax = quotient_forest(QUOTIENTS)
    labels = [text.get_text() for text in ax.get_yticklabels()]
    assert labels == ["attention, bert, 0.001", "attention, bert, 0.002", "cosine, bert, 0.001"]
    assert points(ax, "x") == [(0.88, 0), (0.87, 1)]
    assert points(ax, "o")[0] == (0.9, 0)
    assert points(ax, "s") == [(1.4, 2)]
    assert len(ax.collections) == 1  # one interval is known


def trainings(values, setting="one", control=""):
    return [{"setting": setting, "control": control, "ratio": value} for value in values]


def test_every_seed_is_a_point_and_controls_are_open_ones_of_their_own():
    rows = [
        *trainings([2.0, 2.1, 2.2]),
        *trainings([1.0, None], control="no topics"),
        *trainings([3.0, math.nan], setting="two"),
        {"setting": "three", "control": "untrained"},
    ]
    ax = seed_points(rows, "ratio", above=1.1)
    seeds, broken, bound = ax.get_lines()
    assert seeds.get_xdata().tolist() == [2.0, 2.1, 2.2, 3.0]
    assert [round(float(at)) for at in seeds.get_ydata()] == [0, 0, 0, 1]
    assert (broken.get_xdata().tolist(), broken.get_label()) == ([1.0], "no topics")
    assert (seeds.get_markerfacecolor(), broken.get_markerfacecolor()) == (seeds.get_color(), "none")
    assert list(bound.get_xdata()) == [1.1, 1.1]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["one", "two"]
    assert "no number to draw" in seed_points(rows, "difference").texts[0].get_text()
