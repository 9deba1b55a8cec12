"""Outside the assumptions: which worlds lie on the axes, what is measured of them, and where claims break."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from topic_probe.paper import robustness
from topic_probe.paper.claims import Claim
from topic_probe.paper.recipe import Run
from topic_probe.paper.robustness import AXES, DATA, QUICK_SETTINGS, RECIPE, SETTINGS, guessing
from topic_probe.paper.toys import EVALUATION_SEED, NO_TOPICS, Case
from topic_probe.paper.training import Setting, Trained, train_all
from topic_probe.topics import Topics
from topic_probe.toy.model import ToyConfig, toy_patterns
from topic_probe.toy.theory.losses import masked_documents
from topic_probe.toy.theory.value import check_lemma1, nearest_value
from topic_probe.toy.word_attention import word_attention
from topic_probe.toy.world import World, overlapping_words, zipf_words
from topic_probe.train.history import History, TrainConfig

SMALL = World(n_topics=3, words_per_topic=2, min_length=8, max_length=12)


# -------------------------------------------------------------------- what is changed


def test_along_an_axis_nothing_changes_but_what_it_is_named_after():
    alike = {
        "topics per document τ": {
            "min_length",
            "max_length",
            "n_topics",
            "words_per_topic",
            "word_probabilities",
        },
        "overlap of topics": {"min_length", "n_topics", "words_per_topic", "topics_per_document", "alpha"},
        "Zipf exponent": {"min_length", "max_length", "n_topics", "words_per_topic", "alpha"},
        "Dirichlet α": {"min_length", "max_length", "n_topics", "words_per_topic", "word_probabilities"},
        "words per document": {"n_topics", "words_per_topic", "word_probabilities", "alpha"},
        "number of topics T": {"min_length", "max_length", "words_per_topic", "word_probabilities", "alpha"},
        "words per topic v": {"min_length", "max_length", "n_topics", "word_probabilities", "alpha"},
    }
    for axis in DATA:
        worlds = [changes.get("world", World()) for changes in axis.points.values()]
        for name in alike.pop(axis.label):
            assert len({getattr(world, name) for world in worlds}) == 1
        assert list(axis.points) == sorted(axis.points)
        assert len(set(worlds)) == len(worlds)
        # The base lies on every axis but those of uniform topics, which have two topics per document in common.
        two = World(topics_per_document=2)
        assert (World() in worlds) != (two in worlds)
    assert not alike


def test_places_on_an_axis_are_those_of_the_worlds():
    at = {axis.label: axis.points for axis in DATA}
    lent = torch.zeros(10, 100, dtype=torch.float64)
    for topic in range(10):
        lent[topic, 10 * topic : 10 * topic + 10] = 0.07
        after = (topic + 1) % 10
        lent[topic, 10 * after : 10 * after + 10] = 0.03
    torch.testing.assert_close(at["overlap of topics"][0.3]["world"].topic_words, lent)
    rare = at["Zipf exponent"][1.5]["world"].topic_words[2, 20:30]
    assert float(rare[0] / rare[3]) == pytest.approx(8.0)  # 4 to the power of 1.5
    assert at["topics per document τ"][9]["world"].topics_per_document == 9
    assert at["Dirichlet α"][0.3]["world"].alpha == 0.3
    assert at["words per document"][20]["world"].max_length == 20
    assert at["number of topics T"][20]["world"].n_topics == 20


def test_what_lies_on_several_axes_is_trained_once():
    names = [setting.name for setting in SETTINGS]
    assert len(set(names)) == len(names)
    for name in ("base", "τ = 2"):
        assert sum(one.endswith(f", {name}") for one in names) == 4
    points = {name for axis in DATA for name in axis.names.values()}
    assert len(names) == 4 * len(points) + 5
    assert sum(name == "base" for axis in AXES for name in axis.names.values()) == 5
    assert {one.name for one in QUICK_SETTINGS} <= set(names)


# -------------------------------------------------------------------- what is measured


def test_guessing_knows_how_frequent_words_are_and_nothing_else():
    assert guessing(World(), "cross_entropy") == pytest.approx(math.log(100))
    assert guessing(World(), "squared") == pytest.approx(0.99)
    # Two topics of two words, with 2/3 and 1/3 within each: 1/3, 1/6, 1/3, 1/6 over all.
    words = zipf_words(2, 2, exponent=1.0)
    world = World(n_topics=2, words_per_topic=2, word_probabilities=words)
    assert guessing(world, "squared") == pytest.approx(1 - (2 / 9 + 2 / 36))
    assert guessing(world, "cross_entropy") == pytest.approx(2 / 3 * math.log(3) + 1 / 3 * math.log(6))


def untrained(toy, **train):
    (trained,) = train_all([Setting("toy", toy, TrainConfig(steps=0, **train), seed=3)])
    return Case(trained, toy.world.blocks, quick=True)


def planted(toy, tensors):
    """A case whose tensors are these."""
    case = untrained(toy)
    history = replace(case.trained.history, tensors={**case.trained.history.tensors, **tensors})
    return replace(case, trained=replace(case.trained, history=history))


def test_where_topics_overlap_a_word_is_of_the_topic_that_lends_it():
    for overlap in (0.1, 0.3):
        world = World(topics_per_document=2, word_probabilities=overlapping_words(10, 10, overlap=overlap))
        toy = ToyConfig(regime="value", world=world)
        setting = Setting("value", toy, TrainConfig())
        assert setting.topics == Topics.blocks(n_topics=10, words_per_topic=10)
        best = nearest_value(torch.zeros(101, 101), world, toy.masking)
        found = robustness._values(planted(toy, {"W_V": best}))
        assert found["own topic first"] == 1.0
        # Without labels of its own every word would look like one of two topics.
        assert int(world.topics.sizes.sum()) == 200


def test_blocks_of_two_layers_are_those_of_what_they_make_of_a_word_together():
    topic = torch.arange(6) // 2
    within = torch.zeros(7, 7)
    within[1:, 1:] = (topic[:, None] == topic).float()
    code = torch.randn(7, 7, generator=torch.Generator().manual_seed(0))
    toy = ToyConfig(regime="attention", world=SMALL, n_layers=2)
    # The first layer writes in a code that the second undoes.
    coded = robustness._values(planted(toy, {"W_V.0": code.inverse() @ within, "W_V.1": code}))
    assert coded["own topic first"] == 1.0
    assert coded["own topic first, layer 0"] < 0.9
    assert coded["own topic first, layer 1"] < 0.9
    first = robustness._values(planted(toy, {"W_V.0": within, "W_V.1": torch.zeros(7, 7)}))
    assert (first["own topic first, layer 0"], first["own topic first"]) == (1.0, 0.0)
    # A residual stream carries what the first layer wrote past the second.
    past = replace(toy, residual=True)
    assert (
        robustness._values(planted(past, {"W_V.0": within, "W_V.1": torch.zeros(7, 7)}))["own topic first"]
        == 1.0
    )


def test_heads_add_up():
    toy = ToyConfig(regime="attention", world=SMALL, n_heads=2)
    topic = torch.arange(6) // 2
    noise = torch.randn(7, 7, generator=torch.Generator().manual_seed(0))
    within = torch.zeros(7, 7)
    within[1:, 1:] = (topic[:, None] == topic).float()
    found = robustness._values(planted(toy, {"W_V": torch.stack([within + noise, -noise])}))
    assert found["own topic first"] == 1.0
    assert found["same topic"] == pytest.approx(1.0, abs=1e-6)


STRONG = {
    "world": World(n_topics=2, words_per_topic=3, min_length=8, max_length=12), "init": "near-zero", "noise": 1.0,
}  # fmt: skip


def test_attention_of_a_toy_with_a_residual_stream_is_that_of_the_same_toy_without():
    # What one layer attends to does not depend on what becomes of its output.
    plain = ToyConfig(regime="attention", **STRONG)
    seen = word_attention(untrained(plain).trained.model(), seed=EVALUATION_SEED)
    found = robustness._attention(untrained(replace(plain, residual=True)))
    pooled = (2 * seen["same_topic"] + seen["same_word"]) / 3
    assert found["weighted mean"] == pytest.approx(pooled / seen["different_topic"], rel=1e-4)
    assert found["other words"] == pytest.approx(seen["same_topic"] / seen["different_topic"], rel=1e-4)
    assert found["above other topics"] == pytest.approx(
        1 - seen["different_topic"] / seen["same_topic"], rel=1e-4
    )


def test_attention_of_every_layer_is_the_mean_over_all_pairs_of_positions():
    toy = ToyConfig(regime="attention", n_layers=2, **STRONG)
    case = untrained(toy)
    found = robustness._attention(case)
    generator = torch.Generator().manual_seed(EVALUATION_SEED)
    ((_, batch),) = masked_documents(toy.world, toy.masking, 100, 100, generator)
    model, sums, counts = case.trained.model(), np.zeros((2, 3)), np.zeros(3)
    for ids, mask in zip(batch.shown, batch.mask, strict=True):
        words = ids[mask]
        with torch.no_grad(), toy_patterns(model) as patterns:
            model(words[None], return_type="logits")
        for i, query in enumerate(words.tolist()):
            for j, key in enumerate(words.tolist()):
                if query and key:
                    relation = 0 if query == key else 1 if (query - 1) // 3 == (key - 1) // 3 else 2
                    counts[relation] += 1
                    for layer in range(2):
                        sums[layer, relation] += float(patterns[layer][0, 0, i, j]) * len(words)
    same_word, same_topic, other = (sums / counts).T
    for layer in range(2):
        expected = (2 * same_topic[layer] + same_word[layer]) / 3 / other[layer]
        assert found[f"weighted mean, layer {layer}"] == pytest.approx(expected, rel=1e-4)


def test_losses_lie_between_guessing_and_the_best_possible_and_the_distance_is_lemma_1s():
    toy = ToyConfig(regime="value", world=SMALL, init="near-zero")
    case = untrained(toy, loss="squared")
    found = robustness._losses(case)
    assert found["guess"] == pytest.approx(1 - 1 / 6)
    assert found["gain"] == pytest.approx(
        (found["guess"] - found["loss"]) / (found["guess"] - found["best possible"])
    )
    W = case.trained.history.tensors["W_V"]
    assert found["distance to the optima"] == pytest.approx(check_lemma1(W, SMALL, toy.masking).relative)
    assert found["nearness to the optima"] == 1 - found["distance to the optima"]
    assert "distance to the optima" not in robustness._losses(untrained(toy, loss="cross_entropy"))
    attention = untrained(replace(toy, regime="attention"), loss="squared")
    assert "distance to the optima" not in robustness._losses(attention)


# -------------------------------------------------------------------- what is claimed

GOOD = {
    "own topic first": 1.0,
    "effect size": 2.0,
    "weighted mean": 3.0,
    "other words": 2.0,
    "above other topics": 0.5,
    "distance to the optima": 0.1,
    "nearness to the optima": 0.9,
    "gain": 0.8,
    "loss": 0.9,
    "guess": 0.99,
    "best possible": 0.87,
    **{f"own topic first, layer {layer}": 1.0 for layer in (0, 1)},
    **{f"weighted mean, layer {layer}": 3.0 for layer in (0, 1)},
}
NOTHING = {
    **dict.fromkeys(GOOD, 0.1),
    **{name: 1.0 for name in GOOD if name.startswith("weighted mean")},
    "other words": 1.0,
    "distance to the optima": 0.8,
    "nearness to the optima": 0.2,
}
NO_HISTORY = History(
    ToyConfig(regime="value"),
    TrainConfig(steps=1),
    torch.arange(2),
    torch.zeros(2, 1).double(),
    ("loss",),
    {},
    {},
    1,
)
SEEDS = (-0.01, 0.0, 0.01)


def rows(setting, control="", **numbers):
    """Seeds around these numbers."""
    known = NOTHING if control else GOOD
    around = {**known, **numbers}
    regime, loss = setting.toy.regime, setting.train.loss
    quantities = [
        name
        for name in known
        if not (name.startswith(("weighted", "other", "above other")) and regime == "value")
        and not (name.endswith("the optima") and (regime, loss) != ("value", "squared"))
        and not ("layer" in name and setting.toy.n_layers == 1)
    ]
    return [
        {
            "setting": setting.name,
            "control": control,
            "seed": seed,
            **{
                name: around[name] + off if name != "own topic first" else around[name] for name in quantities
            },
        }
        for seed, off in enumerate(SEEDS)
    ]


def result(broken=None, *, quick=False, without=()):
    """All claims about a table in which everything holds, but for ``{(setting, control): numbers}``."""
    broken = broken or {}
    run = Run(RECIPE, quick)
    settings = [setting for setting in RECIPE.trainings(quick) if setting.name not in without]
    table = [
        row
        for setting in settings
        for control in ("", *(control.name for control in RECIPE.controls))
        for row in rows(setting, control, **broken.get((setting.name, control), {}))
    ]
    assert not set(broken) - {(row["setting"], row["control"]) for row in table}
    runs = tuple(Trained(setting, NO_HISTORY, 0.0) for setting in settings)
    measured = run.result(runs=runs, tables={"numbers": table})
    return replace(measured, claims=tuple(claim for check in RECIPE.claims for claim in check(measured)))


def not_holding(found) -> list[Claim]:
    return [claim for claim in found.claims if claim.verdict not in ("holds", "not checked")]


def test_every_point_of_every_axis_is_claimed_once():
    found = result()
    assert not not_holding(found)
    blocks = [claim for claim in found.claims if "has a block for every topic" in claim.text]
    whole = [claim.setting for claim in blocks if not claim.text.startswith("Layer")]
    assert sorted(whole) == sorted(setting.name for setting in SETTINGS)
    closed = [claim.setting for claim in found.claims if "near the optima" in claim.text]
    assert sorted(closed) == sorted(one.name for one in SETTINGS if one.name.startswith("value, squared"))
    for what in ("itself included, than", "to other words of its topic than"):
        seen = [claim for claim in found.claims if what in claim.text and not claim.text.startswith("Layer")]
        assert sorted(c.setting for c in seen) == sorted(s.name for s in SETTINGS if "attention" in s.name)


def test_only_the_base_is_the_papers_own():
    for claim in result().claims:
        assert claim.ours == (not claim.setting.endswith("base"))


@pytest.mark.parametrize(
    ("setting", "quantity", "value", "text"),
    [
        (
            "value, cross-entropy, Adam, overlap of topics 0.4",
            "own topic first",
            0.8,
            "overlap of topics: W_V has",
        ),
        ("attention, squared, Adam, Zipf exponent 1", "weighted mean", 1.0, "Zipf exponent: A word attends"),
        ("attention, squared, Adam, τ = 2", "other words", 1.0, "topics per document τ: A word attends"),
        ("value, squared, Adam, words per document 10", "distance to the optima", 0.4, "words per document"),
        ("attention, cross-entropy, Adam, model 2 heads", "own topic first", 0.5, "model: W_V has"),
    ],
)
def test_what_breaks_at_a_point_turns_the_verdict_there_and_nowhere_else(setting, quantity, value, text):
    (claim,) = not_holding(result({(setting, ""): {quantity: value}}))
    assert claim.verdict == "does not hold"
    assert claim.setting == setting
    assert claim.text.startswith(text)


LABELS = ("no topics", "untrained", "shuffled labels")


@pytest.mark.parametrize(
    ("quantity", "passing", "controls"),
    [
        ("own topic first", 0.95, LABELS),
        ("weighted mean", 1.5, LABELS),
        ("other words", 1.5, LABELS),
        ("distance to the optima", 0.1, LABELS[:2]),
    ],
)
def test_a_point_at_which_a_control_holds_too_is_no_evidence(quantity, passing, controls):
    regime = "value" if quantity == "distance to the optima" else "attention"
    setting = f"{regime}, squared, Adam, Dirichlet α 3"
    for control in controls:
        (claim,) = not_holding(result({(setting, control): {quantity: passing}}))
        assert (claim.verdict, claim.setting) == ("not evidence", setting)
        assert f"holds of {control} too" in claim.remark


def test_the_last_point_of_an_axis_says_where_on_it_the_claim_holds():
    broken = {
        (f"value, squared, Adam, overlap of topics {at:g}", ""): {"own topic first": 0.5} for at in (0.4, 0.5)
    }
    found = result(broken)
    last = {
        c.text: c.detail for c in found.claims if c.setting == "value, squared, Adam, overlap of topics 0.5"
    }
    blocks = next(detail for text, detail in last.items() if "has a block" in text)
    assert blocks.endswith("along this axis it holds at 0, 0.1, 0.2, 0.3")
    optima = next(detail for text, detail in last.items() if "near the optima" in text)
    assert optima.endswith("along this axis it holds at 0, 0.1, 0.2, 0.3, 0.4, 0.5")
    said = [claim for claim in found.claims if "along this axis" in claim.detail]
    assert not any(claim.setting.endswith("overlap of topics 0.4") for claim in said)


def test_along_overlap_it_is_said_whose_a_word_is():
    for claim in result().claims:
        said = claim.text.endswith("; a word's topic is the one that lends it to the next")
        assert said == claim.text.startswith("overlap of topics: ")


def test_nothing_is_claimed_of_what_was_not_trained():
    gone = "value, squared, Adam, Zipf exponent 0.5"
    found = result(without=(gone,))
    assert gone not in {claim.setting for claim in found.claims}
    assert not not_holding(found)


def test_which_of_two_layers_carries_the_topics_is_said_of_each():
    setting = "attention, cross-entropy, Adam, model 2 layers"
    broken = {(setting, ""): {"own topic first, layer 1": 0.2, "weighted mean, layer 0": 1.0}}
    found = not_holding(result(broken))
    assert [(c.text[:8], c.setting, c.verdict) for c in found] == [
        ("Layer 0:", setting, "does not hold"),
        ("Layer 1:", setting, "does not hold"),
    ]
    assert "attends" in found[0].text
    assert "block" in found[1].text
    layers = [claim for claim in result().claims if claim.text.startswith("Layer")]
    assert len(layers) == 8  # two settings, two layers, two claims


def test_the_quick_variant_says_that_it_leaves_models_out():
    (claim,) = [claim for claim in result(quick=True).claims if claim.verdict == "not checked"]
    assert claim.text.startswith("model:")
    assert "no lean form" in claim.not_checked
    assert not not_holding(result(quick=True))


# -------------------------------------------------------------------- the figure


def test_the_figure_has_the_numbers_of_every_point_with_interval_and_the_highest_control():
    name = "attention, squared, Adam, number of topics T 20"
    broken = {(name, ""): {"gain": 0.5}, (name, "untrained"): {"gain": 0.3}}
    found = robustness._curves(result(broken))
    assert {row["axis"] for row in found} == {axis.label for axis in AXES}
    (row,) = [
        row
        for row in found
        if (row["axis"], row["at"], row["variant"]) == ("number of topics T", 20, "squared")
        and row["curve"].startswith("loss")
    ]
    # Student's t of two degrees of freedom: 4.303 · 0.01 / √3.
    assert (row["value"], row["high"] - row["value"]) == pytest.approx((0.5, 0.02484), abs=1e-5)
    assert row["control"] == pytest.approx(0.3)
    assert not row["base"]
    assert {r["at"] for r in found if r["base"]} == {0.0, 0.1, 10, 125}


def test_an_axis_with_one_point_alone_has_no_curve():
    shown = {row["axis"] for row in robustness._curves(result(quick=True))}
    assert "words per document" in shown
    assert not shown & {"Dirichlet α", "model"}


@pytest.mark.slow
def test_the_quick_variant_finds_blocks_and_loses_them_without_topics():
    name = "value, squared, Adam, overlap of topics 0.5"
    found = replace(RECIPE, quick_seeds=2, quick_settings=tuple(s for s in QUICK_SETTINGS if s.name == name))
    measured = found.measure(Run(found, quick=True))
    first = {row["control"]: row["own topic first"] for row in measured.tables["numbers"]}
    assert first[""] == 1.0
    assert first[NO_TOPICS.name] < 0.5
