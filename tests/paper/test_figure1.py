"""Figure 1: claims about trained embeddings, and about the documents they are trained on."""

import math
from dataclasses import replace
from math import comb, lgamma

import pytest
from made_result import numbers_of

from topic_probe.paper.figure1 import LONG, QUICK_SETTINGS, RECIPE
from topic_probe.paper.toys import NO_TOPICS
from topic_probe.paper.training import train_all
from topic_probe.toy.world import World

SETTING = QUICK_SETTINGS[1]
SHARE = "documents of two to four topics"


def share_of_two_to_four(T=10, alpha=0.1):
    """Of LDA documents of 100 to 150 words, how many show two to four topics: inclusion and exclusion over topics."""

    def within(m, n):  # P(all n words are of m given topics)
        return math.exp(lgamma(m * alpha + n) - lgamma(m * alpha) + lgamma(T * alpha) - lgamma(T * alpha + n))

    def exactly(k, n):
        return comb(T, k) * sum((-1) ** (k - m) * comb(k, m) * within(m, n) for m in range(1, k + 1))

    return sum(exactly(k, n) for n in range(100, 151) for k in (2, 3, 4)) / 51


@pytest.fixture(scope="module")
def short():
    return train_all([replace(SETTING, train=replace(SETTING.train, steps=60)).shifted(0)])[0]


def test_documents_hold_as_many_topics_as_theory_says(short, monkeypatch):
    def share(setting):
        return numbers_of(RECIPE, replace(short, setting=setting), monkeypatch)[SHARE]

    assert share_of_two_to_four() == pytest.approx(share(short.setting), abs=4 * math.sqrt(0.25 / 500))
    assert share(NO_TOPICS.train(short.setting)) == 0.0
    # As many topics in every document as a world says.
    for n, expected in ((1, 0.0), (2, 1.0), (4, 1.0), (5, 0.0)):
        world = World(topics_per_document=n)
        assert share(replace(short.setting, train=replace(short.setting.train, world=world))) == expected


def test_a_diagonal_is_told_from_blocks(short, monkeypatch):
    W = short.history.tensors["W_E"].double()
    dots = W.T @ W
    found = numbers_of(RECIPE, short, monkeypatch)
    words = range(1, 101)
    same = [float(dots[i, j]) for i in words for j in words if i != j and (i - 1) // 10 == (j - 1) // 10]
    other = [float(dots[i, j]) for i in words for j in words if (i - 1) // 10 != (j - 1) // 10]
    itself = [float(dots[i, i]) for i in words]
    means = [sum(part) / len(part) for part in (itself, same, other)]
    assert found["diagonal"] == pytest.approx((means[0] - means[1]) / abs(means[1] - means[2]))
    assert [found[name] for name in ("same word", "same topic", "different topics")] == pytest.approx(means)
    # The setting of Theorem 1 is held against its theorem only, whose optima need not be blocks.
    long = replace(short, setting=replace(short.setting, name=f"of long documents{LONG}"))
    assert "same topic" not in numbers_of(RECIPE, long, monkeypatch)
