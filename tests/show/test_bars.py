"""Bars of ratios draw the rows that they are given, and forests a point for each, with crosses for the paper."""

import itertools
import math

import numpy as np
import pytest
import zoo
from matplotlib.collections import LineCollection

import topic_probe as tp
from topic_probe.contrast import Contrast
from topic_probe.measure.matched import measure_matched
from topic_probe.show.bars import (
    matched_forest,
    quotient_forest,
    ratio_bars,
    ratio_panels,
    relation_bars,
    seed_points,
)
from topic_probe.text.cooccurrence import count_cooccurrence

RATIOS = {("small", 0.001): 1.5, ("small", 0.002): 0.8, ("large", 0.001): 2.0, ("large", 0.002): 1.25}


def rows(**changes):
    return [
        {"model": model, "threshold": threshold, "score": "attention", "ratio": ratio, "low": ratio - 0.1,
         "high": ratio + 0.2, "paper": 2 * ratio}
        | changes.get(f"{model} {threshold}", {})
        for (model, threshold), ratio in RATIOS.items()
    ]  # fmt: skip


def bars(ax):
    return sorted((patch.get_x() + patch.get_width() / 2, patch) for patch in ax.patches)


def intervals(ax):
    lines = [c for c in ax.collections if isinstance(c, LineCollection)]
    return sorted(segment.tolist() for one in lines for segment in one.get_segments())


def paper(ax):
    points = [line.get_xydata() for line in ax.get_lines() if line.get_label() == "paper"]
    return sorted(np.concatenate(points).tolist()) if points else []


def test_a_bar_reaches_from_one_to_its_ratio_models_side_by_side():
    ends = [patch.get_y() + patch.get_height() for _, patch in bars(ratio_bars(rows()))]
    assert ends == pytest.approx(list(RATIOS.values()))
    assert {patch.get_y() for _, patch in bars(ratio_bars(rows()))} == {1.0}


def test_intervals_and_printed_values_stand_at_their_bars():
    ax = ratio_bars(rows())
    at = [place for place, _ in bars(ax)]
    wanted = [[[x, r - 0.1], [x, r + 0.2]] for x, r in zip(at, RATIOS.values(), strict=True)]
    np.testing.assert_allclose(intervals(ax), wanted)
    np.testing.assert_allclose(paper(ax), [[x, 2 * r] for x, r in zip(at, RATIOS.values(), strict=True)])
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["small", "large"]


def test_an_interval_that_does_not_hold_the_ratio_is_drawn_where_it_is():
    ax = ratio_bars(rows(**{"small 0.001": {"low": 1.6, "high": 1.7}}))
    assert intervals(ax)[0][0][1] == 1.6


@pytest.mark.parametrize("nothing", [None, math.nan])
def test_a_ratio_that_is_missing_leaves_a_gap_with_a_mark(nothing):
    ax = ratio_bars(rows(**{"small 0.002": {"ratio": nothing}}))
    assert len(ax.patches) == len(intervals(ax)) == 3
    assert [text.get_text() for text in ax.texts] == ["×"]


def test_rows_need_neither_intervals_nor_printed_values_nor_thresholds():
    ax = ratio_bars(
        [{"model": "a", "ratio": 1.2}, {"model": "b", "ratio": 1.1, "low": 1.0, "high": math.inf}]
    )
    assert len(ax.patches) == 2
    assert intervals(ax) == []
    assert paper(ax) == []


def test_large_ratios_get_a_logarithmic_axis_on_which_all_of_them_are():
    ax = ratio_bars(rows(**{"large 0.001": {"paper": 8.1}}))
    assert ax.get_yscale() == "log"
    assert ax.get_ylim()[0] < 0.7
    assert ax.get_ylim()[1] > 8.1
    assert ratio_bars(rows(**{"large 0.001": {"paper": 2.9}})).get_yscale() == "linear"


def test_scores_are_drawn_apart():
    both = rows() + [row | {"score": "cosine", "ratio": 3 * row["ratio"]} for row in rows()]
    with pytest.raises(ValueError, match="choose one with score=, or draw them all by ratio_panels"):
        ratio_bars(both)
    with pytest.raises(ValueError, match="no row has the score 'dot'"):
        ratio_bars(both, score="dot")
    drawn = ratio_panels(both).axes
    assert [ax.get_title() for ax in drawn] == ["attention", "cosine"]
    tops = [patch.get_y() + patch.get_height() for _, patch in bars(drawn[1])]
    assert tops == pytest.approx([3 * ratio for ratio in RATIOS.values()])


def test_nothing_to_draw_is_said():
    for empty in ([], [{"model": "a", "threshold": 1, "score": "x", "ratio": math.nan}]):
        ax = ratio_bars(empty)
        assert "no ratio to draw" in ax.texts[0].get_text()


def test_more_models_than_thresholds_and_a_single_bar_are_drawn():
    for n_models, n_thresholds in itertools.product((1, 7), (1, 4)):
        cells = [
            {"model": f"m{m}", "threshold": t, "score": "s", "ratio": 1.1}
            for m in range(n_models)
            for t in range(n_thresholds)
        ]
        places = [place for place, _ in bars(ratio_bars(cells))]
        assert len(places) == n_models * n_thresholds
        assert min(np.diff(places), default=1) > 0.15


def relations(same_word, same_topic, different_topic):
    parts = [np.array(float(part)) for part in (same_word, same_topic, different_topic)]
    return Contrast(*parts, *[np.array(5.0)] * 3)


def test_bars_of_relations_reach_from_uniform_attention_to_the_means():
    ax = relation_bars({"one": relations(2.0, 1.5, 0.5), "two": relations(3.0, 0.9, 0.7)})
    assert {bar.get_y() for bar in ax.patches} == {1.0}
    tops = [bar.get_y() + bar.get_height() for bar in ax.patches]
    assert tops == pytest.approx([2.0, 3.0, 1.5, 0.9, 0.5, 0.7])
    assert ax.get_yscale() == "log"


def test_bars_of_relations_of_either_sign_start_at_zero_and_missing_ones_are_left_out():
    ax = relation_bars({"one": relations(2.0, math.nan, -0.5)})
    assert {(bar.get_y(), bar.get_height()) for bar in ax.patches} == {(0.0, 2.0), (0.0, -0.5)}
    assert "no mean to draw" in relation_bars({"one": relations(*[math.nan] * 3)}).texts[0].get_text()


# -------------------------------------------------------------------- points, a row each

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
    return [
        (float(x), float(y))
        for line in ax.lines
        if line.get_marker() == marker
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]


def labels(ax):
    return [text.get_text() for text in ax.get_yticklabels()]


def test_every_row_of_table_2_is_a_point_and_the_paper_a_cross_beside_its_own():
    ax = quotient_forest(QUOTIENTS)
    assert labels(ax) == ["attention, bert, 0.001", "attention, bert, 0.002", "cosine, bert, 0.001"]
    assert points(ax, "x") == [(0.88, 0), (0.87, 1)]
    assert points(ax, "o")[0] == (0.9, 0)
    assert points(ax, "s") == [(1.4, 2)]
    assert len(ax.collections) == 1  # one interval is known


@pytest.mark.parametrize("statistic", ["ratio", "difference"])
def test_every_way_of_matching_is_a_point_of_a_report(statistic):
    topics = tp.Topics.from_token_ids({"a": range(6, 14), "b": range(14, 22)}, vocabulary_size=zoo.VOCABULARY)
    generator = np.random.default_rng(0)
    texts = [generator.integers(6, 22, size=20).tolist() for _ in range(20)]
    report = measure_matched(
        zoo.make("bert"), topics, cooccurrence=count_cooccurrence(texts, topics), statistic=statistic,
        n_resamples=50, n_permutations=0,
    )  # fmt: skip
    ax = report.plot()
    assert len(labels(ax)) == 8
    assert labels(ax)[3] == "cosine, equal co-occurrence and frequency"
    values = getattr(report.cosine, statistic)
    np.testing.assert_allclose(points(ax, "o"), [(value, row) for row, value in enumerate(values)])
    assert ("÷" in ax.get_xlabel()) == (statistic == "ratio")
    assert matched_forest(report, ax, title="again") is ax


def test_that_a_forest_has_nothing_to_draw_is_said():
    ax = quotient_forest([{**QUOTIENTS[1], "quotient": None}])
    assert "nothing to draw" in ax.texts[0].get_text()


# -------------------------------------------------------------------- seeds


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
