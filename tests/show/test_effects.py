"""Figures of effects show the numbers of their reports."""

import numpy as np
import pytest

from topic_probe import figures
from topic_probe.contrast import Contrast
from topic_probe.measure.attention import AttentionReport
from topic_probe.measure.effects import EffectReport

HEADS = {"stack": ("self",) * 4, "layer": (0, 0, 1, 1), "head": (0, 1, 0, 1)}


def report(readouts=("gap",), *, index=None, n=4):
    """Effects 0.01, 0.02 … with intervals of ± 0.015, each beside two others."""
    shape = (len(readouts), n)
    effect = np.broadcast_to(0.01 * np.arange(1, n + 1), shape).copy()
    ends = np.stack([effect - 0.015, effect + 0.015], -1)
    null = np.broadcast_to(np.array([-0.03, 0.04, np.nan]), (*shape, 3)).copy()
    flat = np.zeros(shape)
    return EffectReport(
        readouts=readouts, index=HEADS if index is None else index, outcome=np.zeros(len(readouts)),
        outcome_interval=np.zeros((len(readouts), 2)), effect=effect, interval=ends, p_value=flat,
        q_value=flat, layer_effect=flat, null=null, p_random=flat, beyond=flat,
        beyond_interval=np.zeros((*shape, 2)), provenance={},
    )  # fmt: skip


def attention(ratio=(0.5, 1.0, 2.0, 8.0)):
    ones = np.ones(4)
    contrast = Contrast(ones, np.array(ratio), ones, ones, ones, ones, index=HEADS)
    return AttentionReport(
        contrast, contrast, contrast, contrast, contrast, contrast, contrast, np.zeros(4), provenance={}
    )


def test_a_forest_has_a_row_for_every_intervention_with_its_interval_and_the_others():
    ax = figures.effect_forest(report())
    assert [label.get_text() for label in ax.get_yticklabels()] == ["0.0", "0.1", "1.0", "1.1"]
    drawn = [(line.get_xdata(), line.get_ydata(), line.get_marker()) for line in ax.lines]
    points = [(float(x[0]), float(y[0])) for x, y, marker in drawn if marker == "o"]
    np.testing.assert_allclose(points, [(0.01 * (row + 1), row) for row in range(4)])
    spans = [list(x) for x, y, marker in drawn if marker == "None" and len(x) == 2 and y[0] == y[1]]
    assert spans[2] == pytest.approx([0.015, 0.045])
    others = [list(x) for x, _, marker in drawn if marker == "|"]
    assert others == [[-0.03, 0.04]] * 4


def test_a_scatter_has_every_head_by_its_ratio_and_its_effect():
    """Intervals of the first exclude nothing; those of effects above 0.015 exclude 0."""
    ax = figures.effect_scatter(report(), attention())
    filled, open_ = (np.asarray(part.get_offsets()) for part in ax.collections)
    np.testing.assert_allclose(filled, [[1.0, 0.02], [2.0, 0.03], [8.0, 0.04]])
    np.testing.assert_allclose(open_, [[0.5, 0.01]])
    assert ax.get_xscale() == "log"
    assert {text.get_text() for text in ax.texts} == {"0.0", "0.1", "1.0", "1.1"}
