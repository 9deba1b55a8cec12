"""Groups of words that share a topic, from a sparse table: against double loops over sets."""

import numpy as np
import pytest
import torch

from topic_probe.topics import Topics, incidence

# How many of 90 words are in each of so many topics: few pairs of words share one, some share several, nearly all do.
CASES = {"sparse": (40, 3), "overlapping": (25, 12), "crowded": (12, 40)}


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


def test_sums_over_groups_that_share_a_topic_are_those_of_a_double_loop(topics):
    sets = sets_of(topics)
    values = torch.randn(len(sets), 70, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values[::3] = 0
    loop = torch.stack([sum(values[n] for n, other in enumerate(sets) if one & other) for one in sets])
    for _ in range(2):  # what was found is kept
        torch.testing.assert_close(topics.incidence.times_shared(values), loop)
        rough = topics.incidence.times_shared(values, rough=True)
        torch.testing.assert_close(rough, loop, atol=1e-5, rtol=1e-5)


def test_sums_by_topic_hold_other_groups_once_for_every_topic_they_share_and_each_itself_once(topics):
    sets = sets_of(topics)
    values = torch.randn(len(sets), 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    loop = torch.zeros_like(values)
    for number, one in enumerate(sets):
        for n, other in enumerate(sets):
            loop[number] += values[n] * (1 if n == number else len(one & other))
    torch.testing.assert_close(topics.incidence.times_topics(values), loop)


@pytest.mark.filterwarnings("ignore:topics with the very words")
@pytest.mark.parametrize("n_topics", [300, pytest.param(33_000, marks=pytest.mark.slow)])
def test_counts_of_topics_in_common_are_right_beyond_what_a_byte_or_two_hold(n_topics):
    lists = {str(number): [0, 1] for number in range(n_topics)} | {"0": [0, 2], "other": [0, 3]}
    topics = Topics.from_token_ids(lists, vocabulary_size=4)
    of_entry = topics.group_of_word.tolist()
    ((_, later, earlier),) = topics.incidence.repeated()
    found = later.toarray() + earlier.toarray()
    assert found[of_entry[0], of_entry[1]] == n_topics - 2


def test_topics_that_later_groups_share_beyond_one_are_those_of_a_double_loop(topics, monkeypatch):
    # Several blocks, of several parts, without which only tables of millions of groups have them.
    monkeypatch.setattr(incidence, "_BLOCK", 2**10)
    monkeypatch.setattr(incidence, "_COUNTS", 2**6)
    sets, found = sets_of(topics), np.zeros((len(topics.incidence),) * 2)
    for rows, later, earlier in topics.incidence.repeated():
        found[rows] += later.toarray()
        np.testing.assert_array_equal(earlier.toarray(), later.toarray().T)
    loop = [[max(len(one & other) - 1, 0) for other in sets] for one in sets]
    np.testing.assert_array_equal(found, np.triu(loop, 1))


@pytest.mark.parametrize("side", [20, 95])
def test_groups_are_told_pair_by_pair_whether_they_share_a_topic_also_in_a_large_table(side):
    """Words in a square, each in the topics of its row and of its column; of more than 8,192 there is no table."""
    row, column = np.divmod(np.arange(side**2), side)
    lists = {n: np.flatnonzero(row == n) for n in range(side)}
    lists |= {side + n: np.flatnonzero(column == n) for n in range(side)}
    topics = Topics.from_token_ids(lists, vocabulary_size=side**2)
    assert len(topics.incidence) == side**2
    one, other = np.random.default_rng(0).integers(side**2, size=(2, 2_000))
    groups = (topics.group_of_word[torch.from_numpy(words)].int() for words in (one, other))
    shared = topics.incidence.pairwise(torch.device("cpu"))(*groups)
    assert shared.tolist() == ((row[one] == row[other]) | (column[one] == column[other])).tolist()
    assert 0 < int(shared.sum()) < 2_000


def test_sums_by_topic_and_between_topics_are_those_of_a_loop(topics):
    sets = sets_of(topics)
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(len(sets), 2, 3, generator=generator, dtype=torch.float64)
    first, second = (torch.randint(len(sets), (30,), generator=generator) for _ in range(2))
    loop = torch.zeros(topics.n_topics, 2, 3, dtype=torch.float64)
    for group, one in enumerate(sets):
        loop[sorted(one)] += values[group]
    torch.testing.assert_close(topics.incidence.by_topic(values), loop)
    torch.testing.assert_close(topics.incidence.by_topic(values[:, 0, 0]), loop[:, 0, 0])
    weights = torch.randn(30, generator=generator, dtype=torch.float64)
    between = torch.zeros(topics.n_topics, topics.n_topics, dtype=torch.float64)
    common = topics.incidence.in_common(first, second)
    for pair, (i, j) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
        for topic in sets[i]:
            between[topic, sorted(sets[j])] += weights[pair]
        assert set(common[[pair]].indices) == sets[i] & sets[j]
    torch.testing.assert_close(topics.incidence.between_topics(weights, first, second), between)
    pair, topic = topics.incidence.topics_in_common(first, second)
    both = [
        (n, t) for n, (i, j) in enumerate(zip(first, second, strict=True)) for t in sorted(sets[i] & sets[j])
    ]
    assert list(zip(pair.tolist(), topic.tolist(), strict=True)) == both
    none, some = torch.zeros(0, dtype=torch.int64), torch.arange(3)
    assert topics.incidence.sharing(none, some).shape == (0, 3)
