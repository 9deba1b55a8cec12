"""What recipes draw is what they measured."""

from dataclasses import replace

import numpy as np
import pytest

from topic_probe.paper import figure1, figure2, reproduce

FAST = {"figure1": "full, squared, Adam", "figure2": "value, squared, Adam, L2"}


@pytest.fixture(autouse=True)
def _short_trainings(monkeypatch):
    """What is drawn does not depend on how far a training went."""
    for module, name in ((figure1, "RECIPE"), (figure2, "RECIPE"), (figure2, "TABLE3")):
        recipe = getattr(module, name)
        settings = [replace(one, train=replace(one.train, steps=30)) for one in recipe.quick_settings]
        monkeypatch.setattr(module, name, replace(recipe, quick_settings=tuple(settings)))


def maps(figure):
    return [ax for ax in figure.axes if ax.get_images()]


@pytest.mark.slow
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


@pytest.mark.slow
def test_table_3_draws_the_means_it_checks_of_the_first_seed():
    result = reproduce("table3", quick=True)
    ax = result.figures()["attention"].axes[0]
    tops = [bar.get_y() + bar.get_height() for bar in ax.patches]
    rows = [row for row in result.tables["numbers"] if not row["control"] and row["seed"] == 0]
    parts = ("same word", "same topic", "different topic")
    wanted = [row[f"attention, {part}"] for part in parts for row in rows]
    np.testing.assert_allclose(tops, wanted, rtol=1e-5)
