"""Points where the numbers are, a row for each, and crosses where the paper has its own."""

import numpy as np
import pytest
import zoo

import topic_probe as tp
from topic_probe.measure.matched import measure_matched
from topic_probe.show.bars import matched_forest, quotient_forest
from topic_probe.text.cooccurrence import count_cooccurrence

ROWS = [
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
    ax = quotient_forest(ROWS)
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


def test_nothing_to_draw_is_said():
    ax = quotient_forest([{**ROWS[1], "quotient": None}])
    assert "nothing to draw" in ax.texts[0].get_text()
