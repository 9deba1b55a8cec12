"""Figures draw the numbers of tables, and reports draw themselves: artists are compared with numbers made by hand."""

from functools import partial

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_hex, to_rgb, to_rgba
from matplotlib.figure import Figure

from topic_probe.contrast import Contrast
from topic_probe.measure.attention import AttentionReport
from topic_probe.measure.effects import EffectReport
from topic_probe.measure.embeddings import EmbeddingReport
from topic_probe.measure.matrix import MatrixReport
from topic_probe.measure.weights import WeightReport
from topic_probe.show import figures
from topic_probe.show.style import LESS, MORE, PALETTE, drawable, topic_colours
from topic_probe.toy.landscape import measure_landscape
from topic_probe.toy.model import ToyConfig
from topic_probe.toy.world import Masking, World
from topic_probe.train.history import History, TrainConfig
from topic_probe.train.stages import measure_dynamics

NAN = np.nan


def contrast(ratios, interval=None, q=None, **options):
    """A contrast with these ratios: different-topic means are 2."""
    ratios = np.asarray(ratios, float)
    known = np.isfinite(ratios)
    means = ratios, np.asarray(2 * ratios), np.asarray(np.where(known, 2.0, NAN))
    counts = [np.asarray(np.where(known, 10.0, 0.0))] * 3
    return Contrast(*means, *counts, interval=interval, p_value=q, q_value=q, **options)


def heads_of(stacks=("self",), layers=2, heads=3):
    cells = [(stack, layer, head) for stack in stacks for layer in range(layers) for head in range(heads)]
    return dict(zip(("stack", "layer", "head"), zip(*cells, strict=True), strict=True))


def attention(stacks=("self",), ratios=None, q=None):
    """Two layers of three heads in every stack, with ratios of 0.5, 0.75 …"""
    n = 6 * len(stacks)
    ratios = 0.5 + 0.25 * np.arange(n) if ratios is None else np.asarray(ratios)
    heads = contrast(ratios, q=np.full(n, 0.5) if q is None else np.asarray(q), index=heads_of(stacks))
    return AttentionReport(
        overall=contrast(1.0), stacks=heads, layers=heads, heads=heads, matched=heads, overall_matched=contrast(1.0),
        without_sinks=heads, sink_mass=np.zeros(n), provenance={},
    )  # fmt: skip


def embeddings(n=6):
    """Two matrices between words of three topics."""
    values = np.arange(2 * n * n, dtype=np.float32).reshape(2, n, n)
    labels = {0: "0: law (judge·court)", 1: "1: sea (ship)", 4: "4: army·battle"}
    topic = np.repeat([0, 1, 4], n // 3)
    words = tuple(f"w{at}" for at in range(n))
    found = MatrixReport(values, {"score": ("cosine", "dot")}, topic, words, labels)
    return EmbeddingReport(contrast(1.5), contrast(1.2), {}, None, {}, found)


def weights():
    """Of the OV circuit the heads have 0.5, −2, 0.6 and nothing, each ± 0.55."""
    numbers = np.array([0.5, -2.0, 0.6, NAN])
    interval = np.stack([numbers - 0.55, numbers + 0.55], -1)
    index = {"circuit": ("ov",) * 4, **heads_of(layers=2, heads=2)}
    heads = contrast(np.ones(4), interval=interval, statistic="difference", index=index)
    return WeightReport(heads, numbers, {}, None)


def effects(n=4, others=(-0.03, 0.04)):
    """Effects 0.01, 0.02 … with intervals of ± 0.015."""
    effect = 0.01 * np.arange(1, n + 1)[None]
    ends, flat = np.stack([effect - 0.015, effect + 0.015], -1), np.zeros((1, n))
    null = np.broadcast_to(np.array(others, dtype=float), (1, n, len(others)))
    found = {
        "outcome": np.zeros(1),
        "outcome_interval": np.zeros((1, 2)),
        "p_value": flat,
        "q_value": flat,
        "beyond": flat,
        "layer_effect": flat,
        "p_random": flat,
    }
    return EffectReport(
        readouts=("gap",), index=heads_of(layers=n // 2, heads=2), effect=effect, interval=ends, null=null,
        beyond_interval=np.zeros((1, n, 2)), provenance={}, **found,
    )  # fmt: skip


def history(rows=60, *, grows_from=30):
    """W_V jumps at once, W_K and W_Q grow from a later row on, W_E stays; a step is ten updates."""
    steps = 10 * torch.arange(rows)
    rise = (torch.arange(rows) - grows_from).clamp(min=0).double()
    value = torch.full((rows,), 5.0).double()
    value[0] = 1.0
    parts = [3.0 - 0.01 * steps.double(), 1 + 0.1 * rise, 1 + 0.2 * rise, value, torch.ones(rows).double()]
    return History(
        toy=ToyConfig(regime="two-stage"), train=TrainConfig(steps=10 * rows, record_every=10), steps=steps,
        table=torch.stack(parts, 1), measured={}, tensors={}, last_step=10 * rows,
        columns=("loss", "norm_W_K", "norm_W_Q", "norm_W_V", "norm_W_E"),
    )  # fmt: skip


def landscape():
    alphas, betas = np.geomspace(0.1, 100, 13), np.geomspace(0.1, 10, 9)
    return measure_landscape(World(topics_per_document=2), Masking(), alphas=alphas, betas=betas)


def image_of(ax):
    (image,) = ax.get_images()
    return image


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


EVERYTHING = {
    "no number": partial(attention, ratios=[NAN] * 6),
    "stacks": partial(attention, ("encoder", "cross")),
    "weights": weights,
    "dynamics": lambda: measure_dynamics(history()),
    "landscape": landscape,
}


@pytest.mark.parametrize("name", EVERYTHING)
def test_every_report_draws_itself_and_is_saved_without_touching_settings(name, tmp_path):
    before = dict(matplotlib.rcParams)
    EVERYTHING[name]().plot().figure.savefig(tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size > 1000
    assert dict(matplotlib.rcParams) == before


def test_a_matrix_has_borders_between_topics_their_names_and_colours_and_is_white_in_its_median():
    report = embeddings()
    ax = report.plot(score="dot")
    found = report.matrices.values[1]
    np.testing.assert_array_equal(image_of(ax).get_array(), found)
    heights = [tuple(line.get_ydata()) for line in ax.get_lines()]
    assert sorted({one for one, other in heights if one == other}) == [1.5, 3.5]
    strips = [(patch.get_facecolor(), patch.get_x(), patch.get_width()) for patch in ax.patches[::2]]
    assert strips == [(to_rgba(PALETTE[n]), 2 * n - 0.5, 2) for n in range(3)]
    assert ticks(ax.yaxis) == ["law:w0", "law:w1", "sea:w2", "sea:w3", "army·battle:w4", "army·battle:w5"]
    beside = found[~np.eye(6, dtype=bool)]
    assert image_of(ax).norm(np.median(beside)) == pytest.approx(0.5)


def test_many_topics_are_named_in_steps_and_the_figure_says_so():
    ax = figures.matrix_map(np.eye(100), [f"t{n}" for n in range(100)])
    assert ticks(ax.yaxis) == [f"t{n}" for n in range(0, 100, 3)]
    assert ax.get_xlabel() == "one of 3 topics is named, of 100"


def test_a_head_map_shows_every_ratio_and_marks_heads_below_five_percent_and_no_others():
    """Worked by hand: of these q-values only 0.001 and 0.049 lie below 0.05; an undefined one lies below nothing."""
    report = attention(q=[0.001, 0.2, 0.05, 0.049, 0.051, NAN])
    ax = report.plot()
    np.testing.assert_allclose(image_of(ax).get_array(), report.heads.ratio.reshape(2, 3))
    assert {(round(y + 0.3), round(x)) for x, y in ax.collections[0].get_offsets()} == {(0, 0), (1, 0)}
    assert [text.get_text() for text in ax.texts] == [f"{ratio:.2f}" for ratio in report.heads.ratio]
    assert (ax.get_xlabel(), ticks(ax.xaxis), ticks(ax.yaxis)) == (
        "● q < 0.05",
        ["H0", "H1", "H2"],
        ["L0", "L1"],
    )
    assert attention().plot().get_xlabel() == "no head has q < 0.05"


def test_a_ratio_of_one_is_white_and_its_two_sides_have_colours_of_their_own():
    """Worked by hand: 2 and 1/2 are equally far from 1, on a logarithmic scale, and 1/4 is the end."""
    image = image_of(attention(ratios=[1.0, 2.0, 0.5, 3.9, 0.25, NAN]).plot())
    assert image.get_clim() == (0.25, 4.0)
    one, two, half, _, quarter, missing = image.cmap(image.norm(image.get_array())).reshape(6, 4)
    assert [to_hex(one), to_hex(quarter), to_hex(image.cmap(1.0))] == ["#ffffff", LESS, MORE]
    middles = [(1 + np.array(to_rgb(end))) / 2 for end in (MORE, LESS)]
    np.testing.assert_allclose([two[:3], half[:3]], middles, atol=0.01)
    assert abs(missing[0] - missing[2]) < 0.01  # grey


def test_maps_of_several_stacks_share_their_colours_and_do_not_fit_on_one_axes():
    report = attention(("encoder", "decoder", "cross"))
    maps = [ax for ax in report.plot().figure.axes if ax.get_images()]
    assert [ax.get_title() for ax in maps] == ["encoder", "decoder", "cross"]
    assert {image_of(ax).get_clim()[1] for ax in maps} == {report.heads.ratio.max()}
    with pytest.raises(ValueError, match="one axes holds one of encoder, decoder, cross"):
        report.plot(Figure().subplots())


def test_weights_are_marked_where_the_interval_excludes_zero():
    ax = weights().plot()
    np.testing.assert_allclose(image_of(ax).get_array().filled(NAN), [[0.5, -2.0], [0.6, NAN]])
    marked = {(round(y + 0.3), round(x)) for x, y in ax.collections[0].get_offsets()}
    assert marked == {(0, 1), (1, 0)}


def test_a_forest_has_a_row_for_every_intervention_with_its_interval_and_the_others():
    ax = effects().plot()
    assert ticks(ax.yaxis) == ["L0H0", "L0H1", "L1H0", "L1H1"]
    (points,) = [line for line in ax.lines if line.get_marker() == "o"]
    np.testing.assert_allclose(points.get_xydata(), [(0.01 * (row + 1), row) for row in range(4)])
    spans = [segment[:, 0].tolist() for segment in ax.collections[0].get_segments()]
    assert spans[2] == pytest.approx([0.015, 0.045])
    assert [line.get_xdata().tolist() for line in ax.lines if line.get_marker() == "|"] == [[-0.03, 0.04]] * 4
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["others like it", "effect"]
    assert effects(others=()).plot().get_legend() is None


def test_a_forest_of_many_draws_the_largest_and_says_how_many_there_are():
    ax = effects(60).plot()
    assert ticks(ax.yaxis)[0] == "L10H0"  # the smallest twenty are not drawn
    assert ax.get_xlabel().endswith("the 40 farthest from 0, of 60")


def test_a_scatter_has_every_head_by_its_ratio_and_its_effect():
    """The interval of 0.01 ± 0.015 holds 0, those of the others do not."""
    table = effects().to_dataframe().assign(ratio=[0.5, 1.0, 2.0, 8.0])
    ax = figures.scatter(table, "ratio", "effect")
    filled, hollow = (np.asarray(part.get_offsets()) for part in ax.collections)
    np.testing.assert_allclose(filled, [[1.0, 0.02], [2.0, 0.03], [8.0, 0.04]])
    np.testing.assert_allclose(hollow, [[0.5, 0.01]])
    assert ax.get_xscale() == "log"
    assert {text.get_text() for text in ax.texts} == {"L0H0", "L0H1", "L1H0", "L1H1"}


def test_bars_begin_at_one_and_stand_in_the_group_of_their_name():
    table = pd.DataFrame(
        {"name": ["a", "b", "a"], "to": ["x", "x", "y"], "ratio": [2.0, 0.5, 3.0], "low": 0.4, "high": 4.0}
    )
    ax = figures.ratio_bars(table, by="to")
    bars = [
        (bar.get_y(), bar.get_height(), round(bar.get_x() + bar.get_width() / 2, 2)) for bar in ax.patches
    ]
    assert bars == [(1, 1.0, -0.2), (1, -0.5, 0.8), (1, 2.0, 0.2)]
    assert ticks(ax.xaxis) == ["a", "b"]


def test_curves_have_a_style_for_each_and_a_line_for_every_run_with_its_band():
    rows = [(what, seed, step, step + seed) for what in "ab" for seed in (0, 1) for step in (0, 200, 400)]
    table = pd.DataFrame(rows, columns=["what", "seed", "step", "value"])
    ax = figures.curves(
        table.assign(low=table["value"] - 1, high=9.0), "step", "value", by="what", runs="seed", middle=1.0
    )
    _, first, second, third, _ = ax.get_lines()  # the first says no difference
    np.testing.assert_array_equal(second.get_xydata(), [[0, 1], [200, 201], [400, 401]])
    assert (first.get_color(), first.get_linestyle()) == (second.get_color(), second.get_linestyle())
    assert first.get_color() != third.get_color()
    assert ax.collections[0].get_paths()[0].get_extents().y0 == -1
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b"]


def test_a_history_draws_the_norms_of_all_tensors_that_change_with_the_stages_of_measure_dynamics():
    recorded = history()
    ax = recorded.plot()
    for curve, name in zip(ax.get_lines(), ("W_K", "W_Q", "W_V"), strict=True):
        np.testing.assert_allclose(curve.get_xydata(), np.stack([recorded.steps, recorded.norms[name]], -1))
        assert curve.get_label() == name
    report = measure_dynamics(recorded)
    second = min(report.key_start[0], report.query_start[0])
    spans = [(patch.get_x(), patch.get_x() + patch.get_width()) for patch in ax.patches]
    assert spans == [(0, second), (second, 590)]
    assert [text.get_text() for text in ax.texts] == ["stage 1", "stage 2"]


def test_the_landscape_is_that_of_theory_with_its_optimum_and_uniform_attention():
    report = landscape()
    ax = report.plot()
    marks = {
        line.get_label(): line.get_xydata()[0].tolist()
        for line in ax.get_lines()
        if len(line.get_xydata()) == 1
    }
    assert marks["optimum: 5.76"] == pytest.approx([6.292, 1.0], abs=1e-3)
    assert marks["uniform attention: 1"] == [1.0, 1.0]
    levels = ax.collections[0].levels
    assert levels[0] == pytest.approx(report.loss.min())
    assert levels[-1] == pytest.approx(report.loss.max())
    assert (ax.get_xlim(), ax.get_ylim()) == (pytest.approx((0.1, 100)), pytest.approx((0.1, 10)))


# -------------------------------------------------------------------- colours and labels


def test_no_two_topics_that_are_present_share_a_colour():
    assert topic_colours([78, 6, 78, 13]) == {78: PALETTE[0], 6: PALETTE[1], 13: PALETTE[2]}
    assert len(set(topic_colours(range(300)).values())) == 300


def test_text_that_the_font_knows_stays_as_it_is_and_none_becomes_a_formula():
    assert drawable("naïve ‖W_V‖ α ÷ ·") == "naïve ‖W_V‖ α ÷ ·"
    assert drawable("日本! $x$") == r"□□! \$x\$"
