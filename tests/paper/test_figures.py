"""What recipes draw is what they measured."""

from dataclasses import replace

import matplotlib
import numpy as np
import pytest

from topic_probe.paper import figure1, figure2, figure4, landscape, reproduce

FAST = {"figure1": "full, squared, Adam", "figure2": "value, squared, Adam, L2"}


@pytest.fixture(autouse=True)
def _short_trainings(monkeypatch):
    """What is drawn does not depend on how far a training went."""
    recipes = [(module, "RECIPE") for module in (figure1, figure2, figure4, landscape)]
    for module, name in (*recipes, (figure2, "FIGURE10"), (figure2, "TABLE3")):
        recipe = getattr(module, name)
        settings = [replace(one, train=replace(one.train, steps=30)) for one in recipe.quick_settings]
        monkeypatch.setattr(module, name, replace(recipe, quick_settings=tuple(settings)))


def maps(figure):
    return [ax for ax in figure.axes if ax.get_images()]


@pytest.mark.parametrize("name", FAST)
def test_block_figures_show_the_matrix_of_every_setting(name):
    setting = FAST[name]
    result = reproduce(name, quick=True, only=[setting])
    drawn = result.figures()
    (panel,) = maps(drawn["blocks"])
    kind = "embeddings" if name == "figure1" else "weights"
    chosen = {"score": "dot"} if name == "figure1" else {"circuit": "ov"}
    wanted = result.reports[kind][setting].matrices.pick(**chosen)
    np.testing.assert_array_equal(panel.get_images()[0].get_array(), wanted)
    assert panel.get_title() == setting
    losses = {line.get_label(): line.get_ydata() for line in drawn["losses"].axes[0].get_lines()}
    np.testing.assert_allclose(losses["batch"], result.run(setting).history.loss)
    guess = result.reports["agreement"][setting].guess
    assert losses[f"guessing: {guess:.4g}"][0] == guess


def test_w_v_itself_is_what_figure_2_shows():
    setting = "value, squared, Adam, L2"
    result = reproduce("figure2", quick=True, only=[setting])
    W_V = result.run(setting).history.tensors["W_V"].numpy()
    shown = maps(result.figures()["blocks"])[0].get_images()[0].get_array()
    np.testing.assert_allclose(
        shown, W_V[1:, 1:].T, atol=1e-6
    )  # rows are shown words, columns predicted ones


def test_figure_4_has_a_column_for_every_setting_and_a_curve_for_every_seed_and_none_for_controls():
    names = [setting.name for setting in figure4.QUICK_SETTINGS if "SGD" in setting.name]
    result = reproduce("figure4", quick=True, only=names)
    drawn = result.figures()
    assert {name: len(figure.axes) for name, figure in drawn.items()} == {"stages": 4 * 2, "attention": 2 * 2}
    for figure in drawn.values():
        titles = [ax.get_title().partition("\n")[0] for ax in figure.axes[:2]]
        assert titles == ["squared, SGD", "cross-entropy, SGD"]
    runs = [run for run in result.runs if run.setting.name == names[1] and not run.setting.control]
    curves = [line for line in drawn["stages"].axes[1].get_lines() if len(line.get_xdata()) > 2]
    assert len(curves) == len(runs) == 3
    for curve, run in zip(curves, runs, strict=True):
        np.testing.assert_allclose(curve.get_ydata(), run.history.norms["W_K"])
    watched = [line for line in drawn["attention"].axes[3].get_lines() if "mask to word" in line.get_label()]
    series = runs[0].history.measured["attention.mask_to_word"]
    np.testing.assert_allclose(watched[0].get_ydata(), series.values)


def test_table_3_draws_the_means_it_checks_of_the_first_seed():
    result = reproduce("table3", quick=True)
    ax = result.figures()["attention"].axes[0]
    tops = [bar.get_y() + bar.get_height() for bar in ax.patches]
    rows = [row for row in result.tables["numbers"] if not row["control"] and row["seed"] == 0]
    parts = ("same word", "same topic", "different topic")
    wanted = [row[f"attention, {part}"] for part in parts for row in rows]
    np.testing.assert_allclose(tops, wanted, rtol=1e-5)


def test_the_landscape_recipe_draws_every_world_and_saves_without_touching_settings(tmp_path):
    before = dict(matplotlib.rcParams)
    result = reproduce("landscape", quick=True)
    figures = result.figures()
    titles = [ax.get_title() for ax in figures["worlds"].axes if ax.get_title()]
    assert (
        titles == list(result.reports["landscape"]) == [landscape._name(world) for world in landscape.WORLDS]
    )
    result.save(tmp_path / "landscape")
    assert {path.name for path in (tmp_path / "landscape" / "figures").iterdir()} == {
        "landscape.png", "landscape.svg", "worlds.png", "worlds.svg",
    }  # fmt: skip
    assert dict(matplotlib.rcParams) == before
