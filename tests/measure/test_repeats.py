"""What sums by topic hold too often, against a double loop over words and their sets of topics."""

import numpy as np
import pytest
import torch

from topic_probe.measure import repeats as repeats_module
from topic_probe.measure.repeats import repeats
from topic_probe.topics import Topics, incidence

# How many of so many words are in each of so many topics: few words share several, most do, groups of many words do.
CASES = {"few": (25, 12, 90), "most": (12, 40, 90), "groups": (3, 30, 60)}


def some_topics(n_topics, n_words, n):
    generator = np.random.default_rng(4)
    lists = {str(topic): generator.choice(n, n_words, replace=False).tolist() for topic in range(n_topics)}
    return Topics.from_token_ids(lists, vocabulary_size=n)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("picked", [0, 10_000], ids=["picked", "in tables"])
def test_they_are_those_of_a_double_loop(case, picked, monkeypatch):
    monkeypatch.setattr(repeats_module, "_PICKED", picked)
    monkeypatch.setattr(incidence, "_BLOCK", 2**6)  # several blocks
    topics = some_topics(*CASES[case])
    # Some words are not measured, so some groups have no word.
    words = torch.from_numpy(np.flatnonzero(np.arange(len(topics.words)) % 5))
    words = words[topics.group_of_word[words].argsort(stable=True)]
    group, sets = topics.group_of_word[words], [set(topics.topics_of(word)) for word in words.tolist()]
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(len(words), 6, generator=generator, dtype=torch.float64)
    half = torch.randint(2, (len(words),), generator=generator)
    norms = rows.norm(dim=1)
    n, sums, squares = np.zeros((len(words), 2)), np.zeros((len(words), 2, 2)), np.zeros((len(words), 2))
    for i, j in np.ndindex(len(words), len(words)):
        further = max(len(sets[i] & sets[j]) - 1, 0)
        if further and sets[i] != sets[j]:
            dot = float(rows[i] @ rows[j])
            scores = np.array([dot / float(norms[i] * norms[j]), dot])
            n[i, half[j]] += further
            sums[i, half[j]] += further * scores
            squares[i] += further * scores**2
    found = repeats(topics.incidence, group, rows, norms, half)
    assert n.sum() > 0
    np.testing.assert_allclose(found.n, n)
    np.testing.assert_allclose(found.sums, sums, atol=1e-10)
    np.testing.assert_allclose(found.squares, squares, atol=1e-10)
