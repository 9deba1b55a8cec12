"""The recipe of the landscape: what checks the code, and what a training has to show, on tables made by hand."""

from dataclasses import replace

import pytest
from hand_made import hand_made

from topic_probe.paper import landscape
from topic_probe.paper.claims import over_seeds
from topic_probe.toy.landscape import measure_landscape
from topic_probe.toy.masking import Masking
from topic_probe.toy.world import World

(SETTING,) = landscape.SETTINGS
# The weighted mean at the minimum for T = 10, v = 10, τ = 2, as another minimisation has it.
BEST = 5.763


def report(world):
    n_topics, words_per_topic, topics_per_document = world
    given = World(n_topics=n_topics, words_per_topic=words_per_topic, topics_per_document=topics_per_document)
    return measure_landscape(given, Masking())


@pytest.fixture(scope="module")
def reports():
    return {landscape._name(world): report(world) for world in landscape.WORLDS}


def result(reports, means=(5.7, 5.8, 5.75), **controls):
    """A result of trainings that have these weighted means, and of controls with theirs."""
    quantities = ("other words", "same word", "[MASK] to itself")
    rows = [
        {"setting": SETTING.name, "control": control, "weighted mean": mean, **dict.fromkeys(quantities, 1.0)}
        for control, values in {"": means, "no topics": [10.0], "untrained": [1.0], **controls}.items()
        for mean in values
    ]
    return hand_made([SETTING], rows, reports={"landscape": reports})


def trained_claim(*given, **changes):
    (claim,) = landscape._trained(result(*given, **changes))
    return claim


def test_a_training_finds_the_optimum_if_all_its_seeds_are_near_it(reports):
    claim = trained_claim(reports)
    assert (claim.above, claim.below) == (
        pytest.approx(0.85 * BEST, rel=1e-3),
        pytest.approx(1.15 * BEST, rel=1e-3),
    )
    assert claim.measured == over_seeds([5.7, 5.8, 5.75])
    assert claim.verdict == "holds"
    assert not claim.check


@pytest.mark.parametrize(
    ("means", "controls", "verdict"),
    [
        ((1.0, 1.01, 1.02), {}, "does not hold"),  # trained for too few steps
        ((10.3, 10.2, 10.4), {}, "does not hold"),  # trained on documents without topics
        ((4.0, 6.0, 7.0), {}, "undecided"),
        ((5.7, 5.8, 5.75), {"untrained": [5.7]}, "not evidence"),
        ((5.7, 5.8, 5.75), {"no topics": [6.0]}, "not evidence"),
        ((5.7, 5.8, None), {}, "undecided"),  # diverged with one seed
    ],
)
def test_it_is_not_found_where_training_or_topics_are_broken(reports, means, controls, verdict):
    assert trained_claim(reports, means, **controls).verdict == verdict


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"bounds": (6.0, 9.0)}, "Where the loss is smallest"),
        ({"optimum": {"alpha": 0.5, "beta": 1.0, "weighted_mean": 0.55, "loss": 0.9}}, "Words of the same topic"),
        ({"optimum": {"alpha": 6.3, "beta": 1.0, "weighted_mean": 5.77, "loss": 0.9}}, "The minimum is where another"),
    ],
)  # fmt: skip
def test_a_wrong_constant_is_found(reports, changes, text):
    name = landscape._name(landscape.TRAINED_WORLD)
    broken = {**reports, name: replace(reports[name], **changes)}
    wrong = [claim for claim in landscape._minima(result(broken)) if claim.verdict != "holds"]
    assert [claim.setting for claim in wrong if claim.text.startswith(text)] == [name]
    assert {claim.setting for claim in wrong} == {name}
