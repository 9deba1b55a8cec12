"""Outside the assumptions: which worlds lie on the axes, what is measured of them, and where claims break."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from made_result import claims_of, made_result, numbers_of

from topic_probe.paper.recipe import Run
from topic_probe.paper.robustness import DATA, QUICK_SETTINGS, RECIPE, SETTINGS, guessing
from topic_probe.paper.toys import EVALUATION_SEED, NO_TOPICS
from topic_probe.paper.training import Setting, train_all
from topic_probe.toy.model import ToyConfig
from topic_probe.toy.theory.value import check_lemma1
from topic_probe.toy.word_attention import word_attention
from topic_probe.toy.world import World, zipf_words
from topic_probe.train.history import TrainConfig

SMALL = World(n_topics=3, words_per_topic=2, min_length=8, max_length=12)
WITHIN = torch.zeros(7, 7)
WITHIN[1:, 1:] = torch.block_diag(*[torch.ones(2, 2)] * 3)


def toy_of(toy, loss="cross_entropy", **tensors):
    """An untrained toy with these tensors in place of its own."""
    (trained,) = train_all([Setting("toy", toy, TrainConfig(steps=0, loss=loss), seed=3)])
    return replace(trained, history=replace(trained.history, tensors={**trained.history.tensors, **tensors}))


def test_places_on_an_axis_are_those_of_the_worlds():
    at = {axis.label: axis.points for axis in DATA}
    lent = torch.zeros(10, 100, dtype=torch.float64)
    for topic in range(10):
        after = (topic + 1) % 10
        lent[topic, 10 * topic : 10 * topic + 10] = 0.07
        lent[topic, 10 * after : 10 * after + 10] = 0.03
    torch.testing.assert_close(at["overlap of topics"][0.3]["world"].topic_words, lent)
    rare = at["Zipf exponent"][1.5]["world"].topic_words[2, 20:30]
    assert float(rare[0] / rare[3]) == pytest.approx(8.0)  # 4 to the power of 1.5
    assert at["topics per document τ"][9]["world"].topics_per_document == 9
    assert at["words per document"][20]["world"].max_length == 20
    assert len({setting.name for setting in SETTINGS}) == len(
        SETTINGS
    )  # what lies on two axes is trained once


def test_guessing_knows_how_frequent_words_are_and_nothing_else():
    assert guessing(World(), "cross_entropy") == pytest.approx(math.log(100))
    assert guessing(World(), "squared") == pytest.approx(0.99)
    # Two topics of two words, with 2/3 and 1/3 within each: 1/3, 1/6, 1/3, 1/6 over all.
    words = zipf_words(2, 2, exponent=1.0)
    world = World(n_topics=2, words_per_topic=2, word_probabilities=words)
    assert guessing(world, "squared") == pytest.approx(1 - (2 / 9 + 2 / 36))
    assert guessing(world, "cross_entropy") == pytest.approx(2 / 3 * math.log(3) + 1 / 3 * math.log(6))


def test_blocks_of_layers_are_those_of_what_they_make_of_a_word_together_and_heads_add_up(monkeypatch):
    noise = torch.randn(7, 7, generator=torch.Generator().manual_seed(0))
    toy = ToyConfig(regime="attention", world=SMALL, n_layers=2)
    # The first layer writes in a code that the second undoes.
    coded = numbers_of(
        RECIPE, toy_of(toy, **{"W_V.0": noise.inverse() @ WITHIN, "W_V.1": noise}), monkeypatch
    )
    assert coded["own topic first"] == 1.0
    assert max(coded[f"own topic first, layer {layer}"] for layer in (0, 1)) < 0.9
    first = {"W_V.0": WITHIN, "W_V.1": torch.zeros(7, 7)}
    found = numbers_of(RECIPE, toy_of(toy, **first), monkeypatch)
    assert (found["own topic first, layer 0"], found["own topic first"]) == (1.0, 0.0)
    # A residual stream carries what the first layer wrote past the second.
    assert (
        numbers_of(RECIPE, toy_of(replace(toy, residual=True), **first), monkeypatch)["own topic first"]
        == 1.0
    )
    heads = ToyConfig(regime="attention", world=SMALL, n_heads=2)
    found = numbers_of(RECIPE, toy_of(heads, W_V=torch.stack([WITHIN + noise, -noise])), monkeypatch)
    assert (found["own topic first"], found["same topic"]) == (1.0, pytest.approx(1.0, abs=1e-6))


def test_attention_of_a_toy_with_a_residual_stream_is_that_of_the_same_toy_without(monkeypatch):
    # What one layer attends to does not depend on what becomes of its output.
    world = World(n_topics=2, words_per_topic=3, min_length=8, max_length=12)
    plain = ToyConfig(regime="attention", world=world, init="near-zero", noise=1.0)
    seen = word_attention(toy_of(plain).model(), seed=EVALUATION_SEED)
    found = numbers_of(RECIPE, toy_of(replace(plain, residual=True)), monkeypatch)
    pooled = (2 * seen["same_topic"] + seen["same_word"]) / 3
    assert found["weighted mean"] == pytest.approx(pooled / seen["different_topic"], rel=1e-4)
    assert found["other words"] == pytest.approx(seen["same_topic"] / seen["different_topic"], rel=1e-4)


def test_losses_lie_between_guessing_and_the_best_possible_and_the_distance_is_lemma_1s(monkeypatch):
    toy = ToyConfig(regime="value", world=SMALL, init="near-zero")
    found = numbers_of(RECIPE, measured := toy_of(toy, "squared"), monkeypatch)
    assert found["guess"] == pytest.approx(1 - 1 / 6)
    whole = found["guess"] - found["best possible"]
    assert found["gain"] == pytest.approx((found["guess"] - found["loss"]) / whole)
    W = measured.history.tensors["W_V"]
    assert found["distance to the optima"] == pytest.approx(check_lemma1(W, SMALL, toy.masking).relative)


NAME = "attention, squared, Adam, number of topics T {}"


@pytest.mark.parametrize(
    ("own", "broken", "verdict"),
    [(2.0, 1.0, "holds"), (1.0, 0.9, "does not hold"), (2.0, 1.5, "not evidence")],
)
def test_what_breaks_at_a_point_turns_the_verdict_there_and_the_curve(own, broken, verdict):
    points = {NAME.format(3): (2.0, 1.0), NAME.format(20): (own, broken)}
    rows = {
        (name, of): [{"other words": at + off, "gain": at / 4 + off} for off in (-0.01, 0, 0.01)]
        for name, (value, control) in points.items()
        for of, at in (("", value), ("untrained", control), ("no topics", 0.5))
    }
    found = made_result(rows, *(one for one in SETTINGS if one.name in points))
    claims = claims_of(RECIPE, found)
    assert {claim.setting: claim.verdict for claim in claims} == {
        NAME.format(3): "holds",
        NAME.format(20): verdict,
    }
    assert all(claim.ours and claim.text.startswith("number of topics T: A word attends") for claim in claims)
    # What is drawn at T = 20: the mean, Student's t of two degrees of freedom 4.303 · 0.01 / √3, the highest control.
    lines, band = drawn_at(RECIPE.figures(found)["robustness"], 20)
    assert lines == pytest.approx({"-": own / 4, ":": broken / 4})
    assert band == pytest.approx([own / 4 - 0.02484, own / 4 + 0.02484], abs=1e-5)


def drawn_at(figure, place):
    """The heights of the first curves there by their style, and the ends of the first band."""
    ax = next(ax for ax in figure.axes if ax.get_lines() and ax.collections)
    lines = {}
    for line in ax.get_lines():
        at = dict(zip(*np.array(line.get_data(), float), strict=True))
        if place in at and line.get_linestyle() in ("-", ":"):
            lines.setdefault(line.get_linestyle(), at[place])
    ends = [y for x, y in ax.collections[0].get_paths()[0].vertices.tolist() if x == place]
    return lines, [min(ends), max(ends)]


@pytest.mark.slow
def test_the_quick_variant_finds_blocks_and_loses_them_without_topics():
    name = "value, squared, Adam, overlap of topics 0.5"
    found = replace(RECIPE, quick_seeds=2, quick_settings=tuple(s for s in QUICK_SETTINGS if s.name == name))
    measured = found.measure(Run(found, quick=True))
    first = {row["control"]: row["own topic first"] for row in measured.tables["numbers"]}
    assert first[""] == 1.0
    assert np.mean(first[NO_TOPICS.name]) < 0.5
