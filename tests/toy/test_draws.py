"""Batches of several generators: the rows of each are what it draws alone."""

import pytest
import torch

from topic_probe.toy.draws import Draws
from topic_probe.toy.lean import MaskedCounts
from topic_probe.toy.masking import Masking
from topic_probe.toy.world import World, overlapping_words

WORLDS = {
    "LDA": World(3, 4, min_length=5, max_length=40),
    "uniform topics": World(3, 4, topics_per_document=2, min_length=5, max_length=40),
    "own frequencies": World(3, 4, word_probabilities=overlapping_words(3, 4), min_length=5, max_length=40),
}


def generators():
    return [torch.Generator().manual_seed(seed) for seed in (3, 1, 2)]


@pytest.mark.parametrize("name", WORLDS)
def test_documents_and_masks_are_those_that_each_generator_draws_alone(name):
    world, masking = WORLDS[name], Masking(0.4, 0.2, 0.4)
    together, alone = generators(), generators()
    widths = set()
    for _ in range(3):  # what comes later depends on how much was drawn before
        draws = Draws(*together)
        documents = world.draw(2, draws)
        batch = masking.corrupt_drawn(documents, world.n_words, draws)
        for i, generator in enumerate(alone):
            own = world.documents(2, generator=generator)
            masked = masking.corrupt(own, n_words=world.n_words, generator=generator)
            rows, width = slice(2 * i, 2 * i + 2), own.ids.shape[1]
            widths.add(width)
            for part in ("shown", "target", "mask", "chosen"):
                ours, theirs = getattr(batch, part)[rows], getattr(masked, part)
                assert torch.equal(ours[:, :width], theirs), part
                assert not ours[:, width:].any()
            assert torch.equal(documents.topic_proportions[rows], own.topic_proportions)
    assert len(widths) > 3
    for one, other in zip(together, alone, strict=True):
        assert torch.equal(one.get_state(), other.get_state())


@pytest.mark.parametrize("name", WORLDS)
def test_counts_without_positions_are_those_of_the_documents_that_would_be_drawn(name):
    world, masking = WORLDS[name], Masking(0.4, 0.2, 0.4)
    one, other = generators(), generators()
    for _ in range(3):
        counted = MaskedCounts.fresh(world, masking, 4, Draws(*one))
        draws = Draws(*other)
        batch = masking.corrupt_drawn(world.draw(4, draws), world.n_words, draws)
        rows, positions = batch.chosen.nonzero(as_tuple=True)
        shown = [row[mask].tolist() for row, mask in zip(batch.shown, batch.mask, strict=True)]
        expected = [[words.count(token) for token in range(world.vocabulary_size)] for words in shown]
        assert counted.counts.tolist() == expected
        assert torch.equal(counted.document, rows)
        assert torch.equal(counted.target, batch.target[rows, positions])
        assert torch.equal(counted.shown, batch.shown[rows, positions])
    assert all(torch.equal(a.get_state(), b.get_state()) for a, b in zip(one, other, strict=True))


def test_counts_of_some_documents_and_of_others_behind_them_are_those_of_all():
    whole = MaskedCounts.fresh(WORLDS["LDA"], Masking(0.4), 3, Draws(*generators()))
    joined = MaskedCounts.joined([whole.part(0, 2), whole.part(2, 9)])
    for part in ("counts", "document", "target", "shown"):
        assert torch.equal(getattr(joined, part), getattr(whole, part)), part
