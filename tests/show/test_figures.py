"""Figures draw what reports say: their artists are compared with the numbers of reports made by hand."""

import subprocess
import sys
import warnings
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from topic_probe import report as reports
from topic_probe.contrast import Contrast
from topic_probe.measure.attention import AttentionReport
from topic_probe.measure.embeddings import EmbeddingReport
from topic_probe.measure.matrix import MatrixReport
from topic_probe.measure.weights import WeightReport
from topic_probe.report import load_report
from topic_probe.show import figures
from topic_probe.show.style import LESS, MORE, topic_colour
from topic_probe.toy.agreement import AgreementReport
from topic_probe.toy.landscape import LandscapeReport, measure_landscape
from topic_probe.toy.masking import Masking
from topic_probe.toy.model import ToyConfig, build_toy
from topic_probe.toy.word_attention import word_attention
from topic_probe.toy.world import World
from topic_probe.train.history import History, Series, TrainConfig
from topic_probe.train.loop import train_toy
from topic_probe.train.stages import measure_dynamics

NAN = np.nan


def contrast(ratios, interval=None, q=None, **options):
    """A contrast with these ratios: different-topic means are 2."""
    ratios = np.asarray(ratios, float)
    counts = np.asarray(np.where(np.isnan(ratios), 0.0, 10.0))
    different = np.asarray(np.where(np.isnan(ratios), NAN, 2.0))
    return Contrast(
        same_word=ratios, same_topic=np.asarray(2 * ratios), different_topic=different,
        n_same_word=counts, n_same_topic=counts, n_different_topic=counts,
        interval=None if interval is None else np.asarray(interval, float),
        p_value=None if q is None else np.asarray(q, float), q_value=None if q is None else np.asarray(q, float),
        **options,
    )  # fmt: skip


def attention(stacks=("self",), layers=2, heads=3, fill=None, q=0.01):
    cells = [(stack, layer, head) for stack in stacks for layer in range(layers) for head in range(heads)]
    ratios = 0.5 + 0.25 * np.arange(len(cells)) if fill is None else np.full(len(cells), fill)
    index = dict(zip(("stack", "layer", "head"), zip(*cells, strict=True), strict=True))
    by_head = contrast(ratios, q=np.where(np.arange(len(cells)) % 2, q, 0.5), index=index)
    places = [(stack, layer) for stack in stacks for layer in range(layers)]
    middle = np.array([ratios[[c[:2] == place for c in cells]].mean() for place in places])
    by_layer = contrast(
        middle, interval=np.stack([middle - 0.1, middle + 0.3], -1),
        index=dict(zip(("stack", "layer"), zip(*places, strict=True), strict=True)),
    )  # fmt: skip
    whole = contrast(ratios.mean())
    return AttentionReport(
        overall=whole, stacks=contrast([1.0] * len(stacks), index={"stack": tuple(stacks)}), layers=by_layer,
        heads=by_head, matched=contrast(ratios * 2, index=index), overall_matched=whole,
        without_sinks=contrast(ratios * 3, q=np.full(len(cells), 0.01), index=index),
        sink_mass=np.zeros(len(cells)), provenance={},
    )  # fmt: skip


def matrix(values, topic, level="word"):
    values = np.asarray(values, np.float32)
    names = ("cosine", "dot")[: len(values)]
    labels = {int(t): f"{t}: word{t}" for t in sorted(set(topic))}
    words = tuple(f"w{n}" for n in range(len(topic)))
    return MatrixReport(values, {"score": names}, level, np.asarray(topic, dtype=np.int64), words, labels)


def embeddings(matrices=None, layers=None):
    return EmbeddingReport(contrast(1.5), contrast(1.2), {}, layers, {}, matrices)


def two_matrices(n=6):
    values = np.arange(2 * n * n, dtype=np.float32).reshape(2, n, n)
    return matrix(values, np.repeat([0, 1, 4], n // 3))


def weights(standardised=(0.1, -0.2, 0.3, 0.0, 0.5, -2.0, 0.6, NAN), reach=0.15):
    cells = [
        (circuit, "self", layer, head) for circuit in ("qk", "ov") for layer in range(2) for head in range(2)
    ]
    index = dict(zip(("circuit", "stack", "layer", "head"), zip(*cells, strict=True), strict=True))
    standardised = np.array(standardised)
    interval = np.stack([standardised - reach, standardised + reach], -1)
    found = MatrixReport(
        np.arange(8 * 16, dtype=np.float32).reshape(8, 4, 4), index, "word", np.array([0, 0, 1, 1]), (5, 6, 7, 8),
        {0: "0: 5·6", 1: "1: 7·8"},
    )  # fmt: skip
    heads = contrast(np.ones(8), interval=interval, statistic="difference", index=index)
    return WeightReport(heads, standardised, {}, found)


def history(layers=1, rows=60, *, grows_from=30):
    """W_V jumps at once, W_K and W_Q grow from a later row on; a step is ten updates."""
    steps = 10 * torch.arange(rows)
    rise = (torch.arange(rows) - grows_from).clamp(min=0).double()
    names = [""] if layers == 1 else [f".{layer}" for layer in range(layers)]
    columns, parts = ["loss", "penalty"], [3.0 - 0.01 * steps.double(), torch.zeros(rows).double()]
    for number, name in enumerate(names):
        columns += [f"norm_W_K{name}", f"norm_W_Q{name}", f"norm_W_V{name}", f"rotation_W_V{name}"]
        value = torch.full((rows,), 5.0 + number).double()
        value[0] = 1.0
        turned = torch.full((rows,), 0.02).double()
        turned[0] = NAN
        parts += [1 + 0.1 * rise, 1 + 0.2 * rise, value, turned]
    return History(
        toy=ToyConfig(regime="two-stage", n_layers=layers), train=TrainConfig(steps=10 * rows, record_every=10),
        steps=steps, table=torch.stack(parts, 1), columns=tuple(columns), measured={}, tensors={},
        last_step=10 * rows,
    )  # fmt: skip


def agreement(**changes):
    names = ("loss", "loss_error", "bayes", "bayes_error", "guess", "floor")
    losses = dict(zip(names, (3.0, 0.1, 2.5, 0.05, 4.6, 2.75), strict=True)) | changes
    return AgreementReport(
        regime="value", loss_kind="cross_entropy", **losses, excess=0.5, excess_error=0.01, floor_kind="minimum",
        matrix=None, theorem=None, family_distance=NAN, residuals={}, u=None, value_distance=NAN, value_entries={},
        value_theory={}, attention=None, weighted_mean=NAN, weighted_mean_optimum=NAN, weighted_mean_bounds=None,
        bounds_unmet=(), reasons={}, provenance={},
    )  # fmt: skip


def landscape(**changes):
    return measure_landscape(
        World(topics_per_document=2), Masking(), alphas=np.geomspace(0.1, 100, 13), betas=np.geomspace(0.1, 10, 9),
        **changes,
    )  # fmt: skip


def image_of(ax):
    (image,) = ax.get_images()
    return image


def curves(ax):
    return {line.get_label(): line.get_xydata() for line in ax.get_lines()}


EVERYTHING = {
    "attention": lambda: attention(),
    "attention, three stacks": lambda: attention(("encoder", "decoder", "cross")),
    "attention, one head": lambda: attention(layers=1, heads=1),
    "attention, nothing": lambda: attention(fill=NAN),
    "embeddings": lambda: embeddings(two_matrices()),
    "embeddings without a matrix": lambda: embeddings(),
    "weights": weights,
    "matrix of NaN": lambda: matrix(np.full((1, 3, 3), NAN), [0, 0, 1]),
    "matrix of one word": lambda: matrix([[[1.0]]], [7]),
    "matrix of no words": lambda: matrix(np.zeros((1, 0, 0)), []),
    "matrix of equal numbers": lambda: matrix(np.ones((1, 4, 4)), [0, 0, 1, 1]),
    "matrix of infinities": lambda: matrix([[[1, np.inf], [-np.inf, 2]]], [0, 1]),
    "matrix of 200 topics": lambda: matrix(np.eye(200)[None], range(200), level="topic"),
    "dynamics": lambda: measure_dynamics(history()),
    "dynamics, layers": lambda: measure_dynamics(history(layers=3)),
    "dynamics, nothing starts": lambda: measure_dynamics(history(grows_from=60)),
    "history": history,
    "history, layers": lambda: history(layers=3),
    "history, a row": lambda: history(rows=1),
    "landscape": landscape,
    "agreement": lambda: agreement(),
    "agreement, no losses": lambda: agreement(loss=NAN, guess=NAN, floor=NAN, bayes=NAN),
}  # fmt: skip


@pytest.mark.parametrize("name", EVERYTHING)
def test_every_report_draws_itself_and_is_saved_without_touching_settings(name, tmp_path):
    before = dict(matplotlib.rcParams)
    EVERYTHING[name]().plot().figure.savefig(tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size > 1000
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("kind", ["png", "pdf"])
@pytest.mark.parametrize("name", ["attention", "embeddings"])
def test_figures_are_saved_in_every_format(name, kind, tmp_path):
    EVERYTHING[name]().plot().figure.savefig(tmp_path / f"figure.{kind}")
    assert (tmp_path / f"figure.{kind}").stat().st_size > 1000


def test_no_pyplot_is_loaded_and_no_figure_of_it_is_made():
    code = (
        "import sys, io\n"
        "from topic_probe.show.bars import ratio_bars\n"
        "ax = ratio_bars([{'model': 'a', 'ratio': 1.2}])\n"
        "ax.figure.savefig(io.BytesIO(), format='png')\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


@pytest.mark.parametrize("name", ["attention", "embeddings", "weights", "dynamics", "history", "landscape"])
def test_a_report_draws_on_the_axes_it_is_given(name):
    ax = Figure().subplots()
    report = EVERYTHING[name]()
    options = {"circuit": "qk"} if name == "weights" else {}
    assert report.plot(ax, **options) is ax
    assert ax.has_data()


# -------------------------------------------------------------------- blocks


def test_a_block_map_shows_the_matrix_with_a_border_between_topics_and_their_colours():
    found = two_matrices()
    ax = embeddings(found).plot(score="dot")
    np.testing.assert_array_equal(image_of(ax).get_array(), found.values[1])
    borders = sorted(
        {line.get_ydata()[0] for line in ax.get_lines() if line.get_ydata()[0] == line.get_ydata()[1]}
    )
    assert borders == [1.5, 3.5]
    strips = [(patch.get_facecolor(), patch.get_x(), patch.get_width()) for patch in ax.patches[::2]]
    wanted = [(matplotlib.colors.to_rgba(topic_colour(t)), 2 * n - 0.5, 2) for n, t in enumerate((0, 1, 4))]
    assert strips == wanted
    (legend,) = ax.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["0: word0", "1: word1", "4: word4"]


def test_a_block_map_of_embeddings_is_the_cosine_unless_asked_otherwise():
    found = two_matrices()
    np.testing.assert_array_equal(image_of(embeddings(found).plot()).get_array(), found.values[0])


def test_words_are_named_where_they_are_few_and_topics_where_they_are_not():
    few, many = two_matrices(6), two_matrices(60)
    assert [t.get_text() for t in figures.block_map(few, score="dot").get_xticklabels()] == list(few.words)
    ax = figures.block_map(many, score="dot")
    assert [t.get_text() for t in ax.get_yticklabels()] == ["0", "1", "4"]
    assert ax.get_yticks().tolist() == [9.5, 29.5, 49.5]


def test_colours_span_what_is_off_the_diagonal():
    values = np.array([[[9, 1, 0], [1, 9, 0], [0, 0, 9]]])
    image = image_of(figures.block_map(matrix(values, [0, 0, 1])))
    assert image.get_clim() == (0.0, pytest.approx(1.0, abs=0.03))
    assert image.colorbar.extend == "max"
    wide = image_of(figures.block_map(matrix(values, [0, 0, 1]), limits=(-1.0, 9.0)))
    assert (wide.get_clim(), wide.colorbar.extend) == ((-1, 9), "neither")


def test_the_head_of_a_weight_report_is_chosen_by_name_or_is_that_which_stands_out():
    report = weights()
    for chosen, number in (
        ({}, 5),
        ({"circuit": "qk"}, 2),
        ({"layer": 1, "circuit": "ov"}, 6),
        ({"head": 0}, 6),
    ):
        image = image_of(figures.block_map(report, **chosen))
        np.testing.assert_array_equal(image.get_array(), report.matrices.values[number])
    assert figures.block_map(report, circuit="ov", layer=0, head=1).get_title() == "ov, self, layer 0, head 1"
    with pytest.raises(ValueError, match="head=9 fits 0 matrices"):
        figures.block_map(report, head=9)


def test_panels_have_a_map_for_every_report():
    figure = figures.block_panels(
        {"one": embeddings(two_matrices()), "two": embeddings(two_matrices())}, score="dot"
    )
    maps = [ax for ax in figure.axes if ax.get_images()]
    assert [ax.get_title() for ax in maps] == ["one", "two"]


def test_a_report_that_holds_no_matrix_says_so():
    assert "holds no matrix" in embeddings().plot().texts[0].get_text().replace("\n", " ")
    with pytest.raises(
        TypeError, match="a AttentionReport holds no matrices: pass the report of measure_embeddings"
    ):
        figures.block_map(attention())


# -------------------------------------------------------------------- heads and layers


def test_a_head_map_shows_every_ratio_and_marks_the_certain_ones():
    report = attention(layers=2, heads=3)
    ax = report.plot()
    np.testing.assert_allclose(image_of(ax).get_array(), report.heads.ratio.reshape(2, 3))
    marked = {(round(y + 0.3), round(x)) for x, y in ax.collections[0].get_offsets()}
    assert marked == {(n // 3, n % 3) for n in range(6) if n % 2}
    assert [text.get_text() for text in ax.texts] == [f"{ratio:.2f}" for ratio in report.heads.ratio]
    assert "q < 0.05" in ax.get_xlabel()
    assert len(figures.head_map(report, q=0.001).collections[0].get_offsets()) == 0


def test_a_head_map_marks_heads_below_five_percent_and_no_others():
    """Worked by hand: of these q-values only 0.001 and 0.049 lie below 0.05; an undefined one lies below nothing."""
    q = np.array([0.001, 0.2, 0.05, 0.049, 0.051, NAN, 0.499, 1.0])
    report = attention(layers=2, heads=4)
    report = replace(report, heads=replace(report.heads, p_value=q, q_value=q))
    marked = {(round(y + 0.3), round(x)) for x, y in report.plot().collections[0].get_offsets()}
    assert marked == {(0, 0), (0, 3)}


def test_a_ratio_of_one_is_white_and_its_two_sides_have_colours_of_their_own():
    """Worked by hand: 2 and 1/2 are equally far from 1, on a logarithmic scale, and 4 is the end."""
    ratios = np.array([1.0, 2.0, 0.5, 4.0, 0.25, NAN])
    report = attention(layers=2, heads=3)
    report = replace(report, heads=contrast(ratios, index=report.heads.index))
    image = image_of(report.plot())
    one, two, half, four, quarter, missing = image.cmap(image.norm(image.get_array())).reshape(6, 4)
    assert to_hex(one) == "#ffffff"
    assert (to_hex(four), to_hex(quarter)) == (MORE, LESS)  # orange, blue
    np.testing.assert_allclose([two[:3], half[:3]], [(1 + four[:3]) / 2, (1 + quarter[:3]) / 2], atol=0.01)
    assert missing[3] > 0.2
    assert abs(missing[0] - missing[2]) < 0.01  # grey
    assert image.colorbar.ax.get_ylabel() == "same topic ÷ different topics"


def test_maps_that_stand_side_by_side_share_their_colours():
    report = attention(("encoder", "decoder", "cross"))
    figure = report.plot().figure
    limits = {image.get_clim() for ax in figure.axes for image in ax.get_images()}
    assert len(limits) == 1
    [(low, high)] = limits
    assert high == report.heads.ratio.max()
    assert low * high == pytest.approx(1)
    alone = image_of(figures.head_map(report, stack="encoder")).get_clim()
    assert alone[1] < high
    assert image_of(figures.head_map(report, stack="encoder", limits=(0.1, 10.0))).get_clim() == (0.1, 10.0)
    for wrong in ((0.5, 3.0), (-1.0, 1.0), (2.0, 0.5)):
        with pytest.raises(ValueError, match=r"limits must be \(1 / x, x\)"):
            figures.head_map(report, stack="encoder", limits=wrong)


def test_one_is_the_middle_of_the_colours_of_ratios_and_zero_of_standardised_differences():
    norm = image_of(attention().plot()).norm
    assert norm(1.0) == pytest.approx(0.5)
    assert norm(1 / norm.vmax) == pytest.approx(0)
    assert norm.vmax >= 1.75
    assert image_of(figures.head_map(weights(), circuit="ov")).norm(0.0) == pytest.approx(0.5)
    tiny = image_of(attention(fill=1.001).plot()).norm
    assert tiny(1.001) == pytest.approx(0.5, abs=0.02)


def test_a_head_map_of_weights_shows_small_differences_and_marks_intervals_without_zero():
    ax = figures.head_map(weights((0.003, -0.002, 0.0, NAN) * 2, reach=0.0025), circuit="qk")
    np.testing.assert_array_equal(image_of(ax).get_array().filled(NAN).ravel(), [0.003, -0.002, 0.0, NAN])
    assert [text.get_text() for text in ax.texts] == ["0.0030", "-0.0020", "0.0000"]
    assert ax.collections[0].get_offsets().tolist() == [[0, -0.3]]


@pytest.mark.parametrize(("numbers", "factor", "n_marked"), [("matched", 2, 0), ("without_sinks", 3, 6)])
def test_a_head_map_shows_the_numbers_that_are_asked_for(numbers, factor, n_marked):
    report = attention()
    ax = figures.head_map(report, numbers=numbers)
    np.testing.assert_allclose(image_of(ax).get_array().ravel(), factor * report.heads.ratio)
    assert len(ax.collections[0].get_offsets()) == n_marked
    with pytest.raises(ValueError, match="numbers must be 'heads', 'matched' or 'without_sinks', got 'all'"):
        figures.head_map(report, numbers="all")


def test_every_stack_has_a_panel_or_is_chosen():
    report = attention(("encoder", "decoder", "cross"), layers=1, heads=2)
    panels = [ax for ax in report.plot().figure.axes if ax.get_images()]
    assert [ax.get_title() for ax in panels] == ["encoder", "decoder", "cross"]
    for number, ax in enumerate(panels):
        np.testing.assert_allclose(
            image_of(ax).get_array()[0], report.heads.ratio[2 * number : 2 * number + 2]
        )
    one = figures.head_map(report, Figure().subplots(), stack="cross")
    np.testing.assert_allclose(image_of(one).get_array()[0], report.heads.ratio[4:])
    with pytest.raises(ValueError, match="choose it with stack= or circuit= of encoder, decoder, cross"):
        report.plot(Figure().subplots())
    with pytest.raises(
        ValueError, match="no heads with stack 'self'; there are those of cross, decoder, encoder"
    ):
        report.plot(stack="self")


def test_weights_are_marked_where_the_interval_excludes_zero():
    ax = figures.head_map(weights(), circuit="ov")
    np.testing.assert_allclose(image_of(ax).get_array().filled(NAN), [[0.5, -2.0], [0.6, NAN]])
    assert {(round(y + 0.3), round(x)) for x, y in ax.collections[0].get_offsets()} == {
        (0, 0),
        (0, 1),
        (1, 0),
    }


def test_many_heads_are_not_written_into_and_layers_keep_their_numbers():
    ax = attention(layers=24, heads=16).plot()
    assert not ax.texts
    assert [t.get_text() for t in ax.get_yticklabels()] == [str(n) for n in range(0, 24, 2)]


# -------------------------------------------------------------------- training


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


def test_nothing_is_shaded_without_two_stages_or_unasked():
    assert not history(grows_from=60).plot().patches
    assert not history().plot(stages=False).patches
    assert not history(rows=8).plot().patches


def test_several_layers_have_a_column_each_and_their_own_stages():
    recorded = history(layers=3)
    figure = recorded.plot().figure
    assert len(figure.axes) == 4 * 3
    assert [ax.get_title() for ax in figure.axes[:3]] == ["layer 0", "layer 1", "layer 2"]
    np.testing.assert_allclose(figure.axes[8].get_lines()[0].get_ydata(), recorded.norms["W_V.2"])
    np.testing.assert_allclose(figure.axes[10].get_lines()[0].get_ydata(), recorded.rotations["W_V.1"])
    one = recorded.plot(layer=1)
    np.testing.assert_allclose(one.get_lines()[2].get_ydata(), recorded.norms["W_V.1"])
    with pytest.raises(ValueError, match=r"the model has the layers \[0, 1, 2\]: choose one with layer="):
        recorded.plot(Figure().subplots())
    with pytest.raises(ValueError, match=r"no layer 7; there are \[0, 1, 2\]"):
        recorded.plot(layer=7)
    with pytest.raises(ValueError, match=r"no norm of 'W_X.0' was recorded; there are W_K.0"):
        recorded.plot(layer=0, tensors=["W_X"])


def test_runs_of_a_column_are_drawn_together():
    figure = figures.training_panels({"a": [history(), history(grows_from=20)], "b": history()})
    assert [ax.get_title() for ax in figure.axes[:2]] == ["a", "b"]
    curves_of_a = [line for line in figure.axes[0].get_lines() if len(line.get_xdata()) == 60]
    assert len(curves_of_a) == 2


def test_the_loss_has_its_floors():
    recorded = history()
    ax = figures.loss_curve(recorded, floors={"guessing": 4.6, "unknown": NAN})
    np.testing.assert_allclose(curves(ax)["batch"][:, 1], recorded.loss)
    assert {label: line[0, 1] for label, line in curves(ax).items() if "guess" in label} == {
        "guessing: 4.6": 4.6
    }
    assert not any("unknown" in label for label in curves(ax))


def test_a_few_first_steps_do_not_press_the_loss_together():
    recorded = history(rows=500)
    recorded.table[:2, 0] = 1000.0
    assert figures.loss_curve(recorded, floors={"floor": -8.0}).get_ylim()[0] < -8.0
    low, high = figures.loss_curve(history(rows=500)).get_ylim()
    assert low < -45
    assert high > 2
    assert figures.loss_curve(recorded).get_ylim()[1] < 500
    recorded.table[-3:, 0] = torch.tensor([NAN, np.inf, NAN])
    assert figures.loss_curve(recorded).get_ylim()[1] < 500


def test_the_running_mean_stands_over_the_middle_of_its_window():
    recorded = history(rows=500)
    found = curves(figures.loss_curve(recorded))["running mean"]
    np.testing.assert_allclose(
        found[:, 1], 3 - 0.01 * found[:, 0], atol=0.06
    )  # a straight line stays where it is
    assert len(found) == 500 - 9


def test_stages_of_every_layer_are_marked():
    report = measure_dynamics(history(layers=2))
    ax = report.plot()
    found = curves(ax)
    for label, name in (
        ("W_V is flat", "value_flat"),
        ("W_K starts", "key_start"),
        ("W_Q starts", "query_start"),
    ):
        np.testing.assert_allclose(found[label][:, 0], getattr(report, name))
    assert [bar.get_x() + bar.get_width() for bar in ax.patches][::2] == np.minimum(
        report.key_start, report.query_start
    ).tolist()


def test_a_real_training_draws_itself():
    trained = train_toy(build_toy(ToyConfig(regime="value")), TrainConfig(steps=20))
    for draw in (figures.norm_curves, figures.rotation_curve, figures.loss_curve):
        assert draw(trained).has_data()
    short = train_toy(build_toy(ToyConfig(regime="value")), TrainConfig(steps=5))
    assert "no rotation of W_V" in figures.rotation_curve(short).texts[0].get_text()


def watched(**attention):
    """A history whose attention has these values at steps 0, 200 and 400; uniform attention where none are given."""
    names = ("same_word", "same_topic", "different_topic", "mask_to_word", "mask_to_mask")
    series = {
        f"attention.{name}": Series(
            torch.tensor([0, 200, 400]), torch.tensor(attention.get(name, [1.0] * 3), dtype=torch.float64)
        )
        for name in names
    }
    return replace(history(), measured=series)


def test_attention_curves_are_what_was_watched_with_every_seed_in_one_style():
    runs = [watched(same_topic=[1.0, 1.2, 1.7]), watched(same_topic=[1.0, 1.1, 1.5])]
    ax = figures.attention_curves(runs, names=("same_topic", "mask_to_mask"))
    _, first, second, *_ = ax.get_lines()  # the first is uniform attention
    assert first.get_xydata().tolist() == [[0, 1.0], [200, 1.2], [400, 1.7]]
    assert second.get_ydata().tolist() == [1.0, 1.1, 1.5]
    assert (first.get_color(), first.get_linestyle()) == (second.get_color(), second.get_linestyle())
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["same topic", "mask to mask"]


def test_attention_that_stays_uniform_is_drawn_as_a_level_line():
    """Rounding is not blown up to a curve."""
    low, high = figures.attention_curves(watched(same_topic=[1.0, 1.0 + 1e-7, 1.0 - 1e-7])).get_ylim()
    assert (low, high) == (0.95, 1.05)


def test_attention_curves_of_a_training_that_was_not_watched_say_so():
    assert "attention was not" in figures.attention_curves(history()).texts[0].get_text()
    toy = build_toy(ToyConfig(regime="two-stage", world=World(n_topics=2, words_per_topic=2)))
    trained = train_toy(toy, TrainConfig(steps=3), measure={"attention": word_attention})
    assert figures.attention_curves(trained).get_lines()


def test_attention_panels_have_words_above_and_mask_below():
    columns = {
        "slow": [watched(same_topic=[1.0, 1.0, 1.0])],
        "fast": [watched(same_topic=[1, 2.0, 3.0], mask_to_mask=[1, 0.5, 0.2])],
    }
    figure = figures.attention_panels(columns)
    assert [ax.get_title() for ax in figure.axes] == ["slow", "fast", "", ""]
    drawn = [{line.get_label(): list(line.get_ydata()) for line in ax.get_lines()} for ax in figure.axes]
    assert drawn[1]["same topic"] == [1, 2, 3]
    assert drawn[3]["mask to mask"] == [1, 0.5, 0.2]
    assert "mask to mask" not in drawn[1]


# -------------------------------------------------------------------- theory


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


def test_alpha_runs_to_the_right_and_beta_upwards():
    """The optimum, α = 6.3 and β = 1, is in the middle of neither axis, and in the lowest region that is drawn."""
    alphas, betas = np.geomspace(0.1, 1000, 41), np.geomspace(0.1, 100, 31)
    report = measure_landscape(World(topics_per_document=2), Masking(), alphas=alphas, betas=betas)
    lowest = report.plot().collections[0].get_paths()[0].get_extents()
    assert lowest.x0 < 6.29 < lowest.x1
    assert lowest.y0 < 1.0 < lowest.y1
    assert lowest.x1 < 20
    assert lowest.y1 < 3


def test_the_interval_of_theorem_3_is_drawn_where_its_bounds_are():
    report = landscape()
    lines = [
        c
        for c in report.plot().collections
        if getattr(c, "levels", np.array([]))[:1].tolist() == [report.bounds[0]]
    ]
    (bound,) = lines
    points = np.concatenate([path.vertices for path in bound.get_paths()])
    means = (9 * points[:, 0] + points[:, 1]) / 10
    np.testing.assert_allclose(means, report.bounds[0], rtol=0.05)


def test_a_landscape_of_a_single_row_is_said_to_be_none():
    report = measure_landscape(
        World(topics_per_document=2), Masking(), alphas=np.array([1.0]), betas=np.array([0.0, 1.0])
    )
    assert "no landscape" in report.plot().texts[0].get_text()


# -------------------------------------------------------------------- the rest


def test_losses_stand_where_they_are_and_missing_ones_are_said_to_be():
    report = EVERYTHING["agreement"]()
    ax = report.plot()
    found = [line.get_xdata()[0] for line in ax.get_lines()]
    assert found == [4.6, 3.0, 2.75, 2.5]
    ends = [segment[:, 0].tolist() for line in ax.collections for segment in line.get_segments()]
    np.testing.assert_allclose(ends, [[4.6, 4.6], [2.9, 3.1], [2.75, 2.75], [2.45, 2.55]])
    assert [text.get_text() for text in agreement(floor=NAN).plot().texts] == ["4.6", "3", "missing", "2.5"]


def test_a_report_without_a_figure_of_its_own_shows_its_contrasts_or_names_its_table():
    found = figures.contrast_bars(embeddings())
    assert [line.get_xdata()[0] for line in found.get_lines()] == [1.5, 1.2]
    with pytest.raises(
        TypeError, match="there is no figure of a MatrixReport; its numbers are in to_dataframe"
    ):
        figures.contrast_bars(two_matrices())


def test_a_landscape_report_comes_back_from_disk(tmp_path):
    report = landscape()
    report.save(tmp_path / "landscape")
    assert load_report(tmp_path / "landscape") == report
    assert isinstance(report, LandscapeReport)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "between 0.5773 and 5.867e+04" in repr(report)


def test_a_figure_loads_the_module_that_draws_it_and_no_other_room(tmp_path):
    code = (
        "import sys, topic_probe as tp\n"
        "report = tp.load_report(sys.argv[1])\n"
        "tp.figures\n"
        "assert 'topic_probe.show.heads' not in sys.modules\n"
        "report.plot()\n"
        "print(*sorted(name for name in sys.modules if name.startswith('topic_probe.')))"
    )
    saved = attention().save(tmp_path / "attention")
    answer = subprocess.run([sys.executable, "-c", code, saved], check=True, capture_output=True, text=True)
    loaded = set(answer.stdout.split())
    drawing = {name for name in loaded if name.startswith("topic_probe.show.")}
    assert drawing == {f"topic_probe.show.{name}" for name in ("figures", "heads", "style")}
    assert not {name for name in loaded if name.split(".")[1] in ("toy", "train", "paper", "cli")}


def test_every_figure_is_found_by_its_name():
    assert set(figures.__all__) <= set(dir(figures))
    assert [name for name in figures.__all__ if not getattr(figures, name).__doc__] == []


def test_the_main_figure_of_every_kind_of_report_is_one_of_the_figures():
    for kind in reports._MODULES:
        figure = reports.report_class(kind, "the table of kinds has").figure
        if figure is None:
            assert kind == "checkpoints"  # steps, and what is wrong with them
            continue
        module, name = figure.split(":")
        assert getattr(figures, name).__module__ == f"topic_probe.show.{module}", kind


def test_a_figure_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="there is no figure 'pie_chart'"):
        figures.pie_chart  # noqa: B018
