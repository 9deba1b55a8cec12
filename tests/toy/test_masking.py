import pytest
import torch

from topic_probe.toy.world import Masking, World

WORLD = World(n_topics=3, words_per_topic=4, min_length=80, max_length=120)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def corrupted(masking: Masking, n: int = 2_000, seed: int = 0):
    generator = seeded(seed)
    return masking.corrupt(WORLD.documents(n, generator=generator), n_words=12, generator=generator)


def assert_share(successes: int, trials: int, expected: float) -> None:
    """A share of independent trials agrees with its probability within 4.5 standard errors."""
    error = (expected * (1 - expected) / trials) ** 0.5
    assert successes / trials == pytest.approx(expected, abs=4.5 * error)
    assert error < 0.05 * expected, "too few positions for the check to mean anything"


def test_the_defaults_are_those_of_the_paper():
    assert Masking() == Masking(p_mask=0.15, p_keep=0.1, p_random=0.1)
    assert World() == World(n_topics=10, words_per_topic=10, alpha=0.1, min_length=100, max_length=150)


@pytest.mark.parametrize("masking", [Masking(), Masking(p_mask=0.4, p_keep=0.3, p_random=0.5)])
def test_positions_are_chosen_masked_kept_and_replaced_at_their_rates(masking):
    batch = corrupted(masking)
    real, chosen = int(batch.mask.sum()), int(batch.chosen.sum())
    shown, target = batch.shown[batch.chosen], batch.target[batch.chosen]
    p_mask, p_keep, p_random = masking.p_mask, masking.p_keep, masking.p_random
    assert_share(chosen, real, p_mask)
    assert_share(int((shown == 0).sum()), chosen, 1 - p_keep - p_random)
    # A random word is the same word again once in twelve.
    assert_share(int((shown == target).sum()), chosen, p_keep + p_random / 12)
    assert_share(int(((shown != target) & (shown > 0)).sum()), chosen, p_random * 11 / 12)


def test_random_words_are_uniform_over_the_vocabulary_whatever_stood_there():
    batch = corrupted(Masking(p_mask=0.9, p_keep=0.0, p_random=1.0))
    for original in (1, 12):
        shown = batch.shown[batch.chosen & (batch.target == original)]
        for word in (1, 2, 7, 12):
            assert_share(int((shown == word).sum()), len(shown), 1 / 12)
    assert batch.shown[batch.mask].min() == 1


def test_padding_and_unchosen_positions_stay_as_they_are():
    documents = WORLD.documents(300, generator=seeded())
    ids = documents.ids.clone()
    batch = Masking(p_mask=0.5).corrupt(documents, n_words=12, generator=seeded(1))
    assert not batch.chosen[~batch.mask].any()
    assert batch.shown[~batch.mask].eq(0).all()
    assert torch.equal(batch.shown[~batch.chosen], batch.target[~batch.chosen])
    assert torch.equal(batch.target, ids)
    assert torch.equal(documents.ids, ids)
    assert torch.equal(batch.mask, documents.mask)
    assert len(batch) == 300
    everything = Masking(1.0, 0.0, 0.0).corrupt(documents, n_words=12, generator=seeded())
    assert torch.equal(everything.chosen, documents.mask)
    assert not everything.shown.any()
    assert not Masking(p_mask=0.0).corrupt(documents, n_words=12, generator=seeded()).chosen.any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"p_keep": 0.6, "p_random": 0.5}, r"p_keep \+ p_random must not exceed 1.*got 0.6 \+ 0.5"),
        ({"p_mask": 1.2}, r"p_mask is a probability and must lie in \[0, 1\], got 1.2"),
        ({"p_keep": float("nan")}, "p_keep is a probability"),
        ({"p_random": 2.0}, r"p_random is a probability and must lie in \[0, 1\], got 2.0"),
    ],
)
def test_impossible_probabilities_are_refused_with_the_reason(settings, message):
    with pytest.raises(ValueError, match=message):
        Masking(**settings)


def test_attention_sees_all_positions_or_those_that_were_not_chosen_whatever_they_show():
    batch = corrupted(Masking(0.5, 0.3, 0.3), n=5)
    assert torch.equal(batch.visible("all"), batch.mask)
    for i in range(5):
        seen = batch.mask[i] & ~batch.chosen[i]
        assert torch.equal(batch.visible("unmasked")[i], seen)
        for attend, positions in (("all", batch.mask[i]), ("unmasked", seen)):
            expected = torch.bincount(batch.shown[i][positions], minlength=13)
            assert torch.equal(batch.counts(13, attend)[i], expected)
