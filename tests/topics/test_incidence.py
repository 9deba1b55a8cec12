"""Groups of words that share a topic, from a sparse table: against double loops over sets."""

import numpy as np
import pytest
import torch

from topic_probe.topics import Topics

# How many of 90 words are in each of so many topics: few pairs of words share one, some share several, nearly all do.
CASES = {"sparse": (40, 3), "overlapping": (25, 12), "dense": (70, 40)}


def some_topics(case, *, disjoint=False):
    generator = np.random.default_rng(3)
    n_topics, n_words = CASES[case]
    words = [generator.choice(90, n_words, replace=False) + 5 for _ in range(n_topics)]
    if disjoint:
        words = np.array_split(generator.permutation(90) + 5, n_topics)
    return Topics.from_token_ids(dict(enumerate(map(list, words))), vocabulary_size=100)


def sets_of(topics):
    """The set of topics of every group, from the words."""
    sets = {}
    for place, group in enumerate(topics.group_of_word.tolist()):
        sets[group] = set(topics.topics_of(place))
    return [sets[group] for group in range(len(topics.incidence))]


@pytest.fixture(params=[*CASES, "disjoint"])
def topics(request):
    return some_topics("sparse", disjoint=True) if request.param == "disjoint" else some_topics(request.param)


def test_groups_are_sets_of_topics_sorted_by_the_first(topics):
    sets = sets_of(topics)
    assert len({frozenset(topics) for topics in sets}) == len(sets)
    assert topics.incidence.first_topic.tolist() == [min(one) for one in sets] == sorted(map(min, sets))
    assert topics.incidence.disjoint == all(len(one) == 1 for one in sets)
    rows = topics.incidence.table.toarray()
    assert [set(np.flatnonzero(row)) for row in rows] == sets


def test_groups_share_a_topic_where_their_sets_meet(topics):
    sets = sets_of(topics)
    one, other = (torch.randint(len(sets), (2, 3, n)) for n in (7, 4))
    found = topics.incidence.sharing(one, other)
    assert found.shape == (2, 3, 7, 4)
    for *batch, i, j in np.ndindex(2, 3, 7, 4):
        meet = bool(sets[one[(*batch, i)]] & sets[other[(*batch, j)]])
        assert bool(found[(*batch, i, j)]) is meet
    pairs = one[..., None].expand(found.shape), other[..., None, :].expand(found.shape)
    assert torch.equal(topics.incidence.pairwise(torch.device("cpu"))(*pairs), found)


def test_sums_over_groups_that_share_a_topic_are_those_of_a_double_loop(topics):
    sets = sets_of(topics)
    values = np.random.default_rng(0).normal(size=(len(sets), 70))
    values[::3] = 0
    loop = np.stack([sum(values[n] for n, other in enumerate(sets) if one & other) for one in sets])
    np.testing.assert_allclose(topics.incidence.times_shared(values), loop, atol=1e-10)
