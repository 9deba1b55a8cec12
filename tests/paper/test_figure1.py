"""Figure 1: claims about trained embeddings, and about the documents they are trained on."""

import math
from dataclasses import replace
from math import comb, lgamma

import pytest

from topic_probe.paper import figure1
from topic_probe.paper.toys import NO_TOPICS, Case
from topic_probe.paper.training import Trained, train_all
from topic_probe.topics import Topics
from topic_probe.toy.world import World

BLOCKS = Topics.blocks(n_topics=10, words_per_topic=10)
SETTING = figure1.QUICK_SETTINGS[1]


def share_of_two_to_four(T=10, alpha=0.1):
    """Of LDA documents of 100 to 150 words, how many show two to four topics: inclusion and exclusion over topics."""

    def within(m, n):  # P(all n words are of m given topics)
        return math.exp(lgamma(m * alpha + n) - lgamma(m * alpha) + lgamma(T * alpha) - lgamma(T * alpha + n))

    def exactly(k, n):
        return comb(T, k) * sum((-1) ** (k - m) * comb(k, m) * within(m, n) for m in range(1, k + 1))

    return sum(exactly(k, n) for n in range(100, 151) for k in (2, 3, 4)) / 51


def case(setting=SETTING):
    (trained,) = train_all([setting.shifted(0)])
    return Case(trained, BLOCKS, quick=True)


@pytest.fixture(scope="module")
def short():
    return case(replace(SETTING, train=replace(SETTING.train, steps=60)))


def test_documents_hold_as_many_topics_as_theory_says(short):
    found = figure1._topics_of_documents(short)["documents of two to four topics"]
    assert share_of_two_to_four() == pytest.approx(found, abs=4 * math.sqrt(0.25 / 500))
    # No topics, and as many topics in every document as a world says.
    several = {n: replace(short.setting.train, world=World(topics_per_document=n)) for n in (1, 2, 4, 5)}
    settings = [
        NO_TOPICS.train(short.setting),
        *(replace(short.setting, train=one) for one in several.values()),
    ]
    broken = [Case(Trained(one, short.trained.history, 0.0), BLOCKS, quick=True) for one in settings]
    shares = [figure1._topics_of_documents(one)["documents of two to four topics"] for one in broken]
    assert shares == [0.0, 0.0, 1.0, 1.0, 0.0]


def test_a_diagonal_is_told_from_blocks(short):
    W = short.trained.history.tensors["W_E"].double()
    dots = W.T @ W
    found = figure1._dot_products(short)
    words = range(1, 101)
    same = [float(dots[i, j]) for i in words for j in words if i != j and (i - 1) // 10 == (j - 1) // 10]
    other = [float(dots[i, j]) for i in words for j in words if (i - 1) // 10 != (j - 1) // 10]
    itself = [float(dots[i, i]) for i in words]
    means = [sum(part) / len(part) for part in (itself, same, other)]
    assert found["diagonal"] == pytest.approx((means[0] - means[1]) / abs(means[1] - means[2]))
    assert [found[name] for name in ("same word", "same topic", "different topics")] == pytest.approx(means)


def test_the_setting_of_theorem_1_is_held_against_its_theorem_only():
    long = next(one for one in figure1.QUICK_SETTINGS if one.name.endswith(figure1.LONG))
    assert figure1._dot_products(case(replace(long, train=replace(long.train, steps=1)))) == {}
