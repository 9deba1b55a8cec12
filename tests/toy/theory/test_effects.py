"""What a head and its edges are worth, against every position of every document."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from plain_toy import uniform

from topic_probe.toy import theory
from topic_probe.toy.masking import Masking
from topic_probe.toy.theory.value import nearest_value
from topic_probe.toy.world import World, overlapping_words, zipf_words

PAPER = Masking(p_mask=0.15, p_keep=0.1, p_random=0.1)
ODD = Masking(p_mask=0.4, p_keep=0.2, p_random=0.3)
SIZES = [(3, 2, 2), (4, 2, 2), (4, 1, 2), (3, 3, 1), (2, 2, 2)]
KINDS = ("mean", "zero")
CUTS = ("own_topic", "same_topic", "different_topic", "companion_topics")
PAPERS = uniform(10, 10, 2)


def noise(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# --- Brute force: every position of every document, what it held and what it shows. ---


def positions(topics, world, masking):
    """(probability, was masked, word that was there, token shown) of a position of a document of these topics."""
    words = [word for word in range(1, world.vocabulary_size) if topic_of(word, world) in topics]
    for word in words:
        here = 1 / len(words)
        yield here * (1 - masking.p_mask), False, word, word
        yield here * masking.p_mask * masking.p_keep, True, word, word
        yield here * masking.p_mask * (1 - masking.p_keep - masking.p_random), True, word, 0
        for other in range(1, world.n_words + 1):
            yield here * masking.p_mask * masking.p_random / world.n_words, True, word, other


def frequencies(topics, world, masking):
    """How often such a document shows each token."""
    found = np.zeros(world.vocabulary_size)
    for probability, _, _, shown in positions(topics, world, masking):
        found[shown] += probability
    return found


def topic_of(token, world):
    return None if token == 0 else (token - 1) // world.words_per_topic


def attention(query, seen, world, alpha, beta):
    """Assumption 2, key by key."""
    weights = np.empty(len(seen))
    for key in range(len(seen)):
        same_topic = topic_of(key, world) == topic_of(query, world)
        weights[key] = seen[key] * (beta if key == query else alpha if same_topic else 1.0)
    return weights / weights.sum()


def squared_loss(prediction, word):
    return sum((value - (token == word)) ** 2 for token, value in enumerate(prediction))


def mean_loss(prediction, probabilities):
    """Over the words 1, 2, ... of a document."""
    return sum(q * squared_loss(prediction, i + 1) for i, q in enumerate(probabilities))


def enumerated_ablation(kind, W, bias, world, masking, alpha, beta):
    """Loss intact and ablated: the mean over all documents, all masked positions, and all that is put in."""
    average, outputs = 0, []
    documents = list(combinations(range(world.n_topics), world.topics_per_document))
    for topics in documents:
        seen = frequencies(topics, world, masking)
        for probability, masked, word, shown in positions(topics, world, masking):
            output = W @ attention(shown, seen, world, alpha, beta)
            average = average + probability / len(documents) * output
            if masked:
                outputs.append((probability / len(documents) / masking.p_mask, word, output))
    intact = sum(probability * squared_loss(output + bias, word) for probability, word, output in outputs)
    put_in = {"mean": average, "zero": 0 * average}[kind]
    ablated = sum(probability * squared_loss(put_in + bias, word) for probability, word, _ in outputs)
    return intact, ablated


@pytest.mark.parametrize(
    ("kind", "alpha", "beta", "masking"),
    [("mean", 1.0, 1.0, ODD), ("mean", 4.0, 0.3, ODD), ("zero", 0.0, 9.0, PAPER), ("mean", 1.0, 0.3, PAPER)],
)
def test_ablation_is_the_mean_over_all_positions_and_all_that_is_put_in(kind, alpha, beta, masking):
    for size in SIZES:
        world = uniform(*size)
        W, bias = noise(world.vocabulary_size, world.vocabulary_size), noise(world.vocabulary_size, seed=1)
        found = theory.ablation_effect(world, masking, kind=kind, W=W, bias=bias, alpha=alpha, beta=beta)
        expected = enumerated_ablation(kind, W.numpy(), bias.numpy(), world, masking, alpha, beta)
        assert (found.intact, found.ablated) == pytest.approx(expected, rel=1e-12), size
        assert found.effect == found.ablated - found.intact


@pytest.mark.parametrize(
    ("size", "masking"),
    [((3, 2, 2), PAPER), ((2, 2, 2), ODD), ((10, 10, 2), ODD), ((6, 4, 3), Masking(0.3, 0.0, 0.0))],
)
def test_every_optimum_of_lemma_1_loses_what_the_words_alone_say(size, masking):
    T, v, tau = size
    world = uniform(*size)
    for W in (None, nearest_value(noise(T * v + 1, T * v + 1), world, masking)):
        effects = {kind: theory.ablation_effect(world, masking, kind=kind, W=W) for kind in KINDS}
        assert [effect.intact for effect in effects.values()] == pytest.approx(
            [1 - 1 / (tau * v)] * 2, abs=1e-12
        )
        assert effects["zero"].ablated == pytest.approx(1, abs=1e-12)
        assert effects["mean"].effect == pytest.approx((1 / tau - 1 / T) / v, abs=1e-12)


def test_ablation_in_lda_follows_from_the_moments_of_its_proportions():
    world = World(n_topics=5, words_per_topic=3, alpha=0.2)
    square = (0.2 + 1) / (5 * 0.2 + 1)  # E Σ θ² of a symmetric Dirichlet distribution
    found = theory.ablation_effect(world, ODD)
    assert (found.intact, found.ablated) == pytest.approx((1 - square / 3, 1 - 1 / 15), abs=1e-12)


@pytest.mark.parametrize(
    "table", [zipf_words(4, 3), overlapping_words(4, 3, overlap=0.3)], ids=["zipf", "overlap"]
)
def test_ablation_holds_for_unequal_words_and_overlapping_topics(table):
    world, W = uniform(4, 3, 2, word_probabilities=table), noise(13, 13).numpy()
    documents = [table[list(topics)].mean(dim=0).numpy() for topics in combinations(range(4), 2)]
    shown = [np.array([0.2, *((1 - 0.32) * p + 0.12 / 12)]) for p in documents]  # ODD: m = 0.2, a = 0.68
    predictions = [W @ seen for seen in shown]
    intact = sum(mean_loss(f, p) for f, p in zip(predictions, documents, strict=True)) / 6
    ablated = sum(mean_loss(sum(predictions) / 6, p) for p in documents) / 6
    found = theory.ablation_effect(world, ODD, W=torch.tensor(W))
    assert (found.intact, found.ablated) == pytest.approx((intact, ablated), rel=1e-12)


# --- Edges. ---


def is_cut(cut, key, word, topics, world):
    if key == 0:
        return False
    topic, own = topic_of(key, world), topic_of(key, world) == topic_of(word, world)
    return {
        "nothing": False,
        "own_topic": own,
        "same_topic": own and key != word,
        "different_topic": not own,
        "companion_topics": not own and topic in topics,
    }[cut]


def kind_of(token, word, topics, world):
    if token == word:
        return "target"
    if topic_of(token, world) == topic_of(word, world):
        return "own_topic"
    return "companion_topics" if topic_of(token, world) in topics else "absent_topics"


def enumerated_knockout(cut, how, W, bias, world, masking, beta):
    """Mean prediction of every kind of word and mean loss, over all documents and words that were there."""
    found, removed = {}, []
    for topics in combinations(range(world.n_topics), world.topics_per_document):
        seen = attention(0, frequencies(topics, world, masking), world, 1.0, beta)
        for word in range(1, world.vocabulary_size):
            if topic_of(word, world) not in topics:
                continue
            left = np.array(
                [0.0 if is_cut(cut, key, word, topics, world) else share for key, share in enumerate(seen)]
            )
            removed.append(1 - left.sum())
            if how == "scores":
                left = left / left.sum()
            prediction = W @ left + bias
            for token in range(1, world.vocabulary_size):
                found.setdefault(kind_of(token, word, topics, world), []).append(prediction[token])
            found.setdefault("loss", []).append(squared_loss(prediction, word))
    return {kind: np.mean(values) for kind, values in found.items()} | {"removed": np.mean(removed)}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("how", "beta"), [("scores", 0.4), ("weights", 1.0)])
def test_a_knockout_is_the_mean_over_all_documents_and_words(how, cut, beta):
    for size, masking in zip(SIZES, (PAPER, ODD, ODD, PAPER, ODD), strict=True):
        world = uniform(*size)
        W, bias = noise(world.vocabulary_size, world.vocabulary_size), noise(world.vocabulary_size, seed=1)
        found = theory.knockout_effect(world, masking, cut=cut, how=how, W=W, bias=bias, beta=beta)
        for part, edges in ((found.cut, cut), (found.intact, "nothing")):
            expected = enumerated_knockout(edges, how, W.numpy(), bias.numpy(), world, masking, beta)
            removed = found.attention if edges == cut else 0.0
            assert removed == pytest.approx(expected.pop("removed"), abs=1e-12)
            for kind, value in expected.items():
                assert getattr(part, kind) == pytest.approx(value, rel=1e-12, abs=1e-12), (size, kind)
            for kind in {"own_topic", "companion_topics", "absent_topics"} - expected.keys():
                assert math.isnan(getattr(part, kind)), (size, kind)
        assert found.effect == found.cut.loss - found.intact.loss


def test_knockouts_of_the_papers_world_are_what_an_earlier_calculation_found():
    # From a separate program; 400 simulated documents gave 0.00313 and 0.05329.
    own = theory.knockout_effect(PAPERS, PAPER, cut="own_topic", how="weights")
    other = theory.knockout_effect(PAPERS, PAPER, cut="companion_topics", how="weights")
    assert own.intact.target == pytest.approx(0.05, abs=1e-14)
    assert own.cut.target == pytest.approx(0.00312, abs=5e-6)
    assert other.cut.target == pytest.approx(0.05329, abs=5e-6)
    assert other.cut.companion_topics == pytest.approx(own.cut.target, abs=1e-14)


def test_a_row_with_nothing_left_puts_out_nothing():
    world, kept = (
        uniform(3, 2, 1),
        Masking(p_mask=0.5, p_keep=1.0, p_random=0.0),
    )  # words of one topic, nothing else
    for how in ("scores", "weights"):
        found = theory.knockout_effect(world, kept, how=how, W=noise(7, 7))
        assert (found.attention, found.cut.target, found.cut.loss) == (1, 0, 1)


# --- What is refused. ---

LDA = World(n_topics=3, words_per_topic=2, alpha=0.2)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda: theory.knockout_effect(LDA, PAPER),
            r"only for uniform topics, and this world has alpha=0.2 \(LDA\)",
        ),
        (lambda: theory.ablation_effect(LDA, PAPER, alpha=2.0), "only for uniform topics"),
        (
            lambda: theory.knockout_effect(uniform(3, 2, 2, word_probabilities=zipf_words(3, 2)), PAPER),
            "word_probabilities",
        ),
        (lambda: theory.ablation_effect(PAPERS, PAPER, kind="median"), "kind must be one of 'mean', 'zero'"),
        (
            lambda: theory.knockout_effect(PAPERS, PAPER, cut="mine"),
            "cut must be one of 'own_topic', 'same_topic'",
        ),
        (
            lambda: theory.ablation_effect(PAPERS, PAPER, bias=torch.zeros(100)),
            "bias must hold a number for each of 101",
        ),
        (
            lambda: theory.ablation_effect(PAPERS, PAPER, W=torch.zeros(100, 100)),
            "matrix over the 101 token ids",
        ),
        (lambda: theory.ablation_effect(PAPERS, PAPER, alpha=-1.0), "must be numbers of at least 0"),
        (
            lambda: theory.knockout_effect(PAPERS, PAPER, beta=-1.0),
            "beta is an attention weight and must be at least 0",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_theory_does_not_know_or_makes_no_sense_is_refused(ask, message):
    with pytest.raises(ValueError, match=message):
        ask()
