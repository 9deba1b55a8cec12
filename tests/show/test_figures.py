"""Figures draw what reports say: their artists are compared with the numbers of reports made by hand."""

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from topic_probe.contrast import Contrast
from topic_probe.measure.attention import AttentionReport
from topic_probe.measure.embeddings import EmbeddingReport
from topic_probe.measure.matrix import MatrixReport
from topic_probe.measure.weights import WeightReport
from topic_probe.show import figures
from topic_probe.show.style import LESS, MORE, topic_colour
from topic_probe.toy.landscape import measure_landscape
from topic_probe.toy.model import ToyConfig
from topic_probe.toy.world import Masking, World
from topic_probe.train.history import History, Series, TrainConfig
from topic_probe.train.stages import measure_dynamics

NAN = np.nan


def contrast(ratios, interval=None, q=None, **options):
    """A contrast with these ratios: different-topic means are 2."""
    ratios = np.asarray(ratios, float)
    known = np.isfinite(ratios)
    means = ratios, np.asarray(2 * ratios), np.asarray(np.where(known, 2.0, NAN))
    counts = [np.asarray(np.where(known, 10.0, 0.0))] * 3
    return Contrast(*means, *counts, interval=interval, p_value=q, q_value=q, **options)


def attention(stacks=("self",), ratios=None, q=None):
    """Two layers of three heads in every stack, with ratios of 0.5, 0.75 …"""
    n = 6 * len(stacks)
    cells = {
        "stack": tuple(np.repeat(stacks, 6).tolist()), "layer": (0, 0, 0, 1, 1, 1) * len(stacks),
        "head": (0, 1, 2) * 2 * len(stacks),
    }  # fmt: skip
    ratios = 0.5 + 0.25 * np.arange(n) if ratios is None else np.asarray(ratios)
    heads = contrast(ratios, q=np.full(n, 0.5) if q is None else np.asarray(q), index=cells)
    return AttentionReport(
        overall=contrast(1.0), stacks=heads, layers=heads, heads=heads, matched=heads, overall_matched=contrast(1.0),
        without_sinks=heads, sink_mass=np.zeros(n), provenance={},
    )  # fmt: skip


def matrix(values, topic):
    values = np.asarray(values, np.float32)
    names = ("cosine", "dot")[: len(values)]
    labels = {int(t): f"{t}: word{t}" for t in sorted(set(topic))}
    words = tuple(f"w{n}" for n in range(len(topic)))
    return MatrixReport(values, {"score": names}, np.asarray(topic, dtype=np.int64), words, labels)


def embeddings(matrices=None, layers=None):
    return EmbeddingReport(contrast(1.5), contrast(1.2), {}, layers, {}, matrices)


def two_matrices(n=6):
    values = np.arange(2 * n * n, dtype=np.float32).reshape(2, n, n)
    return matrix(values, np.repeat([0, 1, 4], n // 3))


def weights(standardised=(0.1, -0.2, 0.3, 0.0, 0.5, -2.0, 0.6, NAN), reach=0.15):
    index = {
        "circuit": ("qk",) * 4 + ("ov",) * 4, "stack": ("self",) * 8, "layer": (0, 0, 1, 1) * 2, "head": (0, 1) * 4
    }  # fmt: skip
    standardised = np.array(standardised)
    interval = np.stack([standardised - reach, standardised + reach], -1)
    found = MatrixReport(
        np.arange(8 * 16, dtype=np.float32).reshape(8, 4, 4), index, np.array([0, 0, 1, 1]), (5, 6, 7, 8),
        {0: "0: 5·6", 1: "1: 7·8"},
    )  # fmt: skip
    heads = contrast(np.ones(8), interval=interval, statistic="difference", index=index)
    return WeightReport(heads, standardised, {}, found)


def history(rows=60, *, grows_from=30, **measured):
    """W_V jumps at once, W_K and W_Q grow from a later row on; a step is ten updates."""
    steps = 10 * torch.arange(rows)
    rise = (torch.arange(rows) - grows_from).clamp(min=0).double()
    value, turned = torch.full((rows,), 5.0).double(), torch.full((rows,), 0.02).double()
    value[0], turned[0] = 1.0, NAN
    parts = [3.0 - 0.01 * steps.double(), 1 + 0.1 * rise, 1 + 0.2 * rise, value, turned]
    return History(
        toy=ToyConfig(regime="two-stage"), train=TrainConfig(steps=10 * rows, record_every=10), steps=steps,
        table=torch.stack(parts, 1), measured=measured, tensors={}, last_step=10 * rows,
        columns=("loss", "norm_W_K", "norm_W_Q", "norm_W_V", "rotation_W_V"),
    )  # fmt: skip


def landscape():
    alphas, betas = np.geomspace(0.1, 100, 13), np.geomspace(0.1, 10, 9)
    return measure_landscape(World(topics_per_document=2), Masking(), alphas=alphas, betas=betas)


def image_of(ax):
    (image,) = ax.get_images()
    return image


def curves(ax):
    return {line.get_label(): line.get_xydata() for line in ax.get_lines()}


EVERYTHING = {
    "no number": lambda: attention(ratios=[NAN] * 6),
    "embeddings without a matrix": lambda: embeddings(),
    "weights": weights,
    "matrix of infinities": lambda: matrix([[[1, np.inf], [-np.inf, 2]]], [0, 1]),
    "dynamics": lambda: measure_dynamics(history()),
}


@pytest.mark.parametrize("name", EVERYTHING)
def test_every_report_draws_itself_and_is_saved_without_touching_settings(name, tmp_path):
    before = dict(matplotlib.rcParams)
    EVERYTHING[name]().plot().figure.savefig(tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size > 1000
    assert dict(matplotlib.rcParams) == before


def test_a_block_map_shows_the_matrix_with_a_border_between_topics_and_their_colours():
    found = two_matrices()
    ax = embeddings(found).plot(score="dot")
    np.testing.assert_array_equal(image_of(ax).get_array(), found.values[1])
    heights = [tuple(line.get_ydata()) for line in ax.get_lines()]
    assert sorted({one for one, other in heights if one == other}) == [1.5, 3.5]
    strips = [(patch.get_facecolor(), patch.get_x(), patch.get_width()) for patch in ax.patches[::2]]
    wanted = [(matplotlib.colors.to_rgba(topic_colour(t)), 2 * n - 0.5, 2) for n, t in enumerate((0, 1, 4))]
    assert strips == wanted
    (legend,) = ax.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["0: word0", "1: word1", "4: word4"]


def test_a_head_map_shows_every_ratio_and_marks_heads_below_five_percent_and_no_others():
    """Worked by hand: of these q-values only 0.001 and 0.049 lie below 0.05; an undefined one lies below nothing."""
    report = attention(q=[0.001, 0.2, 0.05, 0.049, 0.051, NAN])
    ax = report.plot()
    np.testing.assert_allclose(image_of(ax).get_array(), report.heads.ratio.reshape(2, 3))
    assert {(round(y + 0.3), round(x)) for x, y in ax.collections[0].get_offsets()} == {(0, 0), (1, 0)}
    assert [text.get_text() for text in ax.texts] == [f"{ratio:.2f}" for ratio in report.heads.ratio]
    assert "q < 0.05" in ax.get_xlabel()


def test_a_ratio_of_one_is_white_and_its_two_sides_have_colours_of_their_own():
    """Worked by hand: 2 and 1/2 are equally far from 1, on a logarithmic scale, and 1/4 is the end."""
    image = image_of(attention(ratios=[1.0, 2.0, 0.5, 3.9, 0.25, NAN]).plot())
    assert image.get_clim() == (0.25, 4.0)
    one, two, half, _, quarter, missing = image.cmap(image.norm(image.get_array())).reshape(6, 4)
    assert [to_hex(one), to_hex(quarter), to_hex(image.cmap(1.0))] == ["#ffffff", LESS, MORE]
    middles = [(1 + np.array(to_rgb(end))) / 2 for end in (MORE, LESS)]
    np.testing.assert_allclose([two[:3], half[:3]], middles, atol=0.01)
    assert abs(missing[0] - missing[2]) < 0.01  # grey


def test_maps_that_stand_side_by_side_share_their_colours_and_one_can_be_chosen():
    report = attention(("encoder", "decoder", "cross"))
    maps = [ax for ax in report.plot().figure.axes if ax.get_images()]
    assert [ax.get_title() for ax in maps] == ["encoder", "decoder", "cross"]
    assert {image_of(ax).get_clim()[1] for ax in maps} == {report.heads.ratio.max()}
    assert image_of(figures.head_map(report, stack="encoder")).get_clim()[1] == 2.0
    with pytest.raises(ValueError, match=r"limits must be \(1 / x, x\)"):
        figures.head_map(report, stack="encoder", limits=(0.5, 3.0))
    with pytest.raises(ValueError, match="choose it with stack= or circuit= of encoder, decoder, cross"):
        report.plot(Figure().subplots())


def test_weights_are_marked_where_the_interval_excludes_zero():
    ax = figures.head_map(weights(), circuit="ov")
    np.testing.assert_allclose(image_of(ax).get_array().filled(NAN), [[0.5, -2.0], [0.6, NAN]])
    marked = {(round(y + 0.3), round(x)) for x, y in ax.collections[0].get_offsets()}
    assert marked == {(0, 0), (0, 1), (1, 0)}


def test_norm_curves_are_the_recorded_norms_and_stages_those_of_measure_dynamics():
    recorded = history()
    ax = recorded.plot()
    found = [line.get_xydata() for line in ax.get_lines()[:3]]
    for curve, name in zip(found, ("W_K", "W_Q", "W_V"), strict=True):
        np.testing.assert_allclose(curve, np.stack([recorded.steps, recorded.norms[name]], -1))
    report = measure_dynamics(recorded)
    second = min(report.key_start[0], report.query_start[0])
    spans = [(patch.get_x(), patch.get_x() + patch.get_width()) for patch in ax.patches]
    assert report.two_stage[0]
    assert spans == [(0, second), (second, 590)]
    assert [text.get_text() for text in ax.texts] == ["stage 1", "stage 2"]


def test_attention_curves_are_what_was_watched_with_every_seed_in_one_style():
    def watched(*values):
        names = ("same_word", "same_topic", "different_topic", "mask_to_word", "mask_to_mask")
        known = {**dict.fromkeys(names, [1.0] * 3), "same_topic": values}
        steps = torch.tensor([0, 200, 400])
        series = {name: Series(steps, torch.tensor(of).double()) for name, of in known.items()}
        return history(**{f"attention.{name}": one for name, one in series.items()})

    runs = [watched(1.0, 1.2, 1.7), watched(1.0, 1.1, 1.5)]
    ax = figures.attention_curves(runs, names=("same_topic", "mask_to_mask"))
    _, first, second, *_ = ax.get_lines()  # the first is uniform attention
    np.testing.assert_allclose(first.get_xydata(), [[0, 1.0], [200, 1.2], [400, 1.7]])
    np.testing.assert_allclose(second.get_ydata(), [1.0, 1.1, 1.5])
    assert (first.get_color(), first.get_linestyle()) == (second.get_color(), second.get_linestyle())


def test_the_landscape_is_that_of_theory_with_its_optimum_and_uniform_attention():
    report = landscape()
    ax = report.plot()
    marks = {label: xy[0].tolist() for label, xy in curves(ax).items() if len(xy) == 1}
    assert marks["optimum: 5.76"] == pytest.approx([6.292, 1.0], abs=1e-3)
    assert marks["uniform attention: 1"] == [1.0, 1.0]
    levels = ax.collections[0].levels
    assert levels[0] == pytest.approx(report.loss.min())
    assert levels[-1] == pytest.approx(report.loss.max())
    assert (ax.get_xlim(), ax.get_ylim()) == (pytest.approx((0.1, 100)), pytest.approx((0.1, 10)))
