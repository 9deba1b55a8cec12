import dataclasses
import json

import pytest
import torch
from torch import Tensor

from topic_probe.topics import Topics
from topic_probe.toy.world import World, block_words, overlapping_words, zipf_words


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def assert_mean(values: Tensor, expected: float) -> None:
    """The mean of independent values agrees with its expectation within 4.5 standard errors."""
    values = values.double()
    error = float(values.std()) / len(values) ** 0.5
    assert float(values.mean()) == pytest.approx(expected, abs=4.5 * error)
    assert error < 0.05 * abs(expected), "too few documents for the check to mean anything"


def topic_of(ids: Tensor, words_per_topic: int) -> Tensor:
    return (ids - 1) // words_per_topic


UNIFORM = World(n_topics=6, words_per_topic=4, topics_per_document=3, min_length=20, max_length=20)
LDA = World(n_topics=6, words_per_topic=4, alpha=0.4, min_length=20, max_length=20)


@pytest.mark.parametrize("world", [UNIFORM, LDA])
def test_every_word_is_equally_frequent(world):
    documents = world.documents(5_000, generator=seeded())
    for word in (1, 4, 5, 13, 24):
        assert_mean((documents.ids == word).double().mean(dim=1), 1 / 24)


def test_uniform_topics_give_every_document_tau_distinct_topics_in_equal_shares():
    documents = UNIFORM.documents(2_000, generator=seeded())
    proportions = documents.topic_proportions
    assert (proportions > 0).sum(dim=1).eq(3).all()
    assert proportions[proportions > 0].eq(1 / 3).all()
    for topic in range(6):
        assert_mean(proportions[:, topic] > 0, 0.5)
    topics = topic_of(documents.ids, 4)
    assert (proportions.gather(1, topics) > 0).all()


@pytest.mark.parametrize(("n_topics", "tau", "alpha"), [(6, 3, None), (6, None, 0.4), (40, None, 0.05)])
def test_words_come_from_the_topics_of_their_document_in_its_proportions(n_topics, tau, alpha):
    world = World(n_topics, 4, topics_per_document=tau, alpha=alpha, min_length=100, max_length=100)
    documents = world.documents(2_500, generator=seeded(4))
    theta, here = documents.topic_proportions, topic_of(documents.ids, 4)
    assert (theta.gather(1, here) > 0).all()
    shares = torch.nn.functional.one_hot(here, n_topics).sum(dim=1) / 100
    assert_mean(shares[:, 2] - theta[:, 2] + 1, 1.0)
    # The squared deviations of a multinomial share, all topics together.
    expected = float((theta * (1 - theta)).sum(dim=1).mean()) / 100
    assert float((shares - theta).square().sum(dim=1).mean()) == pytest.approx(expected, rel=0.1)
    # Two topics go together as their mixed moment says: τ(τ−1)/(T(T−1)) · 1/τ², and α/(T(Tα + 1)).
    moment = (
        (tau - 1) / (tau * n_topics * (n_topics - 1)) if tau else alpha / (n_topics * (n_topics * alpha + 1))
    )
    assert float(world.topic_moments[1, 5]) == pytest.approx(moment)
    if n_topics == 6:
        assert_mean(theta[:, 1] * theta[:, 5], moment)


@pytest.mark.parametrize("alpha", [0.1, 30.0])
def test_dirichlet_proportions_have_the_moments_of_their_density(alpha):
    world = dataclasses.replace(LDA, alpha=alpha, min_length=1, max_length=1)
    theta = world.documents(40_000, generator=seeded(3)).topic_proportions
    torch.testing.assert_close(theta.sum(dim=1), torch.ones(40_000).double(), rtol=1e-12, atol=0)
    assert_mean(theta[:, 2], 1 / 6)
    assert_mean(theta[:, 2] ** 2, (alpha + 1) / (6 * (6 * alpha + 1)))
    # E[log θ] = ψ(α) − ψ(Tα) sees the smallest proportions, which moments of θ do not.
    a = torch.tensor(alpha, dtype=torch.float64)
    assert_mean(theta[:, 2].log(), float(torch.digamma(a) - torch.digamma(6 * a)))


def test_every_length_from_shortest_to_longest_is_equally_likely():
    world = World(min_length=7, max_length=11)
    lengths = world.documents(20_000, generator=seeded()).mask.sum(1)
    assert lengths.min() == 7
    assert lengths.max() == 11
    for length in range(7, 12):
        assert_mean(lengths == length, 0.2)


def test_words_of_unequal_probability_come_at_their_rates():
    world = dataclasses.replace(UNIFORM, word_probabilities=zipf_words(6, 4, exponent=2.0))
    ids = world.documents(5_000, generator=seeded(5)).ids
    share = torch.tensor([1, 1 / 4, 1 / 9, 1 / 16])
    for rank, expected in enumerate((share / share.sum()).tolist()):
        for topic in (0, 5):
            assert_mean((ids == 4 * topic + rank + 1).double().mean(dim=1), expected / 6)


def test_overlapping_topics_lend_words_to_the_next_topic():
    world = World(
        n_topics=4,
        words_per_topic=2,
        topics_per_document=1,
        min_length=50,
        max_length=50,
        word_probabilities=overlapping_words(4, 2, overlap=0.25),
    )
    documents = world.documents(3_000, generator=seeded(6))
    last = documents.ids[documents.topic_proportions[:, 3] == 1]
    # Topic 4 owns words 7 and 8 and borrows words 1 and 2.
    for word, expected in {1: 0.125, 2: 0.125, 7: 0.375, 8: 0.375}.items():
        assert_mean((last == word).double().mean(dim=1), expected)
    assert not torch.isin(last, torch.tensor([3, 4, 5, 6])).any()
    world = World(
        2, 2, alpha=5.0, word_probabilities=[[0.0, 2.0, 0.0, 0.0], [0.0, 0.0, 0.0, 5.0]], max_length=400
    )
    documents = world.documents(1_000, generator=seeded())
    assert documents.ids[documents.mask].unique().tolist() == [
        2,
        4,
    ]  # words without probability are never drawn


def test_word_probability_tables_are_distributions_with_the_stated_limits():
    for table in (block_words(4, 3), zipf_words(4, 3), overlapping_words(4, 3, overlap=0.3)):
        torch.testing.assert_close(table.sum(dim=1), torch.ones(4).double())
    assert torch.equal(zipf_words(4, 3, exponent=0.0), block_words(4, 3))
    assert torch.equal(overlapping_words(4, 3, overlap=0.0), block_words(4, 3))
    assert torch.equal(World(n_topics=4, words_per_topic=3).topic_words, block_words(4, 3))
    assert block_words(2, 2).tolist() == [[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]]


@pytest.mark.parametrize(
    "world", [UNIFORM, LDA, dataclasses.replace(LDA, word_probabilities=zipf_words(6, 4))]
)
def test_the_same_generator_state_gives_the_same_documents_and_nothing_else_is_touched(world):
    before = torch.get_rng_state()
    generator = seeded(7)
    first = world.documents(5, generator=generator)
    state = generator.get_state()
    second = world.documents(5, generator=generator)
    resumed = torch.Generator()
    resumed.set_state(state)
    again = world.documents(5, generator=resumed)
    assert torch.equal(first.ids, world.documents(5, generator=seeded(7)).ids)
    assert torch.equal(second.ids, again.ids)
    assert torch.equal(second.topic_proportions, again.topic_proportions)
    assert not torch.equal(first.ids, second.ids)
    assert torch.equal(before, torch.get_rng_state())


def test_the_topics_of_a_world_are_those_that_give_a_word_any_probability():
    assert UNIFORM.topics == Topics.blocks(n_topics=6, words_per_topic=4)
    shared = World(n_topics=3, words_per_topic=1, word_probabilities=overlapping_words(3, 1)).topics
    assert shared.words.tolist() == [1, 2, 3]
    assert shared.membership.int().tolist() == [
        [1, 0, 1],
        [1, 1, 0],
        [0, 1, 1],
    ]  # the first word, the second, ...


def test_worlds_compare_hash_and_go_through_json():
    table = overlapping_words(6, 4)
    world = dataclasses.replace(LDA, word_probabilities=table)
    assert world == dataclasses.replace(LDA, word_probabilities=table.tolist())
    assert world != LDA
    assert hash(world) == hash(dataclasses.replace(LDA, word_probabilities=2 * table))
    assert World(**json.loads(json.dumps(dataclasses.asdict(world)))) == world


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"topics_per_document": 11},
            "cannot have topics_per_document=11 distinct topics out of n_topics=10",
        ),
        ({"topics_per_document": 0}, "topics_per_document must be at least 1, got 0"),
        ({"n_topics": -1}, "n_topics must be at least 1, got -1"),
        ({"alpha": 0.0}, "alpha must be positive and finite, got 0.0"),
        ({"alpha": 0.1, "topics_per_document": 2}, "give one of them and leave the other None"),
        ({"min_length": 9, "max_length": 8}, "min_length must not exceed max_length, got 9 > 8"),
        ({"word_probabilities": [[1.0, 1.0]]}, r"n_topics=10 rows over the 100 words .* got shape \(1, 2\)"),
        ({"word_probabilities": torch.zeros(10, 100)}, "not all zero"),
        ({"word_probabilities": torch.full((10, 100), float("nan"))}, "must be finite"),
        ({"word_probabilities": block_words(10, 10) - 0.01}, "non-negative"),
    ],
)
def test_impossible_worlds_are_refused_with_the_reason(settings, message):
    with pytest.raises(ValueError, match=message):
        World(**settings)
