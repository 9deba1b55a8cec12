"""Topics of any input are those that plain dictionaries and sorting give, or the input is refused by name."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from topic_probe.topics import Topics

pytestmark = pytest.mark.usefixtures("unchecked_module")

SIZE = 12
ids = st.integers(0, SIZE - 1)
containers = st.sampled_from(
    [list, tuple, set, frozenset, iter, np.array, lambda values: torch.tensor(values, dtype=torch.int32),
     lambda values: [np.int64(value) for value in values], lambda values: range(len(values))]
)  # fmt: skip


def quietly(make):
    """Topics whose warnings (empty ones, identical ones) are not the question."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return make()


def members(topics):
    """Topic -> its ids, read off the table."""
    return {
        name: topics.words[topics.membership[:, place]].tolist() for place, name in enumerate(topics.names)
    }


@given(st.dictionaries(st.text(max_size=3), st.lists(ids, max_size=5), min_size=1, max_size=4), st.data())
def test_listed_ids_of_any_container_are_in_their_topics_and_no_others(lists, data):
    contained = {name: data.draw(containers)(values) for name, values in lists.items()}
    read = {
        name: list(range(len(values))) if isinstance(contained[name], range) else sorted(set(values))
        for name, values in lists.items()
    }
    if not any(read.values()):
        with pytest.raises(ValueError, match="no word is left in any topic"):
            quietly(lambda: Topics.from_token_ids(contained, vocabulary_size=SIZE))
        return
    topics = quietly(lambda: Topics.from_token_ids(contained, vocabulary_size=SIZE))
    assert members(topics) == {
        name.encode(errors="backslashreplace").decode(): values for name, values in read.items()
    }
    labelled = {index for values in read.values() for index in values}
    known = topics.places(torch.arange(-1, SIZE + 1)).tolist()
    assert [place >= 0 for place in known] == [index in labelled for index in range(-1, SIZE + 1)]
    assert [topics.words[place] for place in known if place >= 0] == sorted(labelled)


# --- a matrix -----------------------------------------------------------------------------------------

probabilities = st.sampled_from([0.0, 0.25, 0.5, 0.5, 1.0, 2.0, 1e-300, 1e308])


def kept_by_hand(matrix, k, least, one_topic):
    """The likeliest tokens of every topic, by sorting."""
    kept = {}
    shares = [[value / max(row) for value in row] for row in matrix]
    shares = [[value / math.fsum(row) for value in row] for row in shares]
    for topic, row in enumerate(shares):
        order = sorted(range(len(row)), key=lambda token: (-row[token], token))
        kept[topic] = [token for token in order if row[token] > least][:k]
    if one_topic:
        for token in range(len(matrix[0])):
            holders = [topic for topic in kept if token in kept[topic]]
            for topic in sorted(holders, key=lambda topic: (-shares[topic][token], topic))[1:]:
                kept[topic].remove(token)
    return {str(topic): sorted(tokens) for topic, tokens in kept.items()}


@given(
    st.integers(1, 6).flatmap(
        lambda n: st.lists(st.lists(probabilities, min_size=n, max_size=n), min_size=1, max_size=4)
    ),
    st.sampled_from([0.01, 0.3, 0.5, 1.0]),
    st.booleans(),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([list, np.array, torch.tensor]),
)
def test_the_likeliest_tokens_of_any_matrix_are_those_that_sorting_gives(matrix, fraction, one, least, shape):
    def make():
        phi = torch.tensor(matrix, dtype=torch.float64) if shape is torch.tensor else shape(matrix)
        return quietly(
            lambda: Topics.from_matrix(phi, fraction=fraction, one_topic_per_word=one, min_probability=least)
        )

    if not all(map(any, matrix)):
        with pytest.raises(ValueError, match=r"row \d of phi .* is zero everywhere"):
            make()
        return
    expected = kept_by_hand(matrix, max(1, math.floor(len(matrix[0]) * fraction + 0.5)), least, one)
    if not any(expected.values()):
        with pytest.raises(ValueError, match="no word is left"):
            make()
    else:
        assert members(make()) == expected
