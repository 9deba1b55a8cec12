"""A toy and documents in which theory holds exactly: every word of two topics five times, one of them masked."""

from itertools import combinations

import torch

import topic_probe as tp

T, V, TIMES = 10, 10, 5
WORLD = tp.World(n_topics=T, words_per_topic=V, topics_per_document=2)
MASKING = tp.Masking(p_mask=1 / TIMES, p_keep=0.0, p_random=0.0)


def one_hot_embedding(n_words, *, a):
    """A W_E that satisfies Theorem 1 with u = 0: one-hot words times 1/√a, and 0 for the mask."""
    return torch.diag(torch.tensor([0.0] + n_words * [a**-0.5], dtype=torch.float64))


def documents():
    """The words of every two topics in order, each ``TIMES`` times; where ids are masked the first of each will be."""
    return [
        [word for topic in pair for word in range(topic * V + 1, topic * V + V + 1) for _ in range(TIMES)]
        for pair in combinations(range(T), 2)
    ]


def shown(some):
    """The documents as the model sees them: the first of every word's places shows the mask, which is id 0."""
    return [[0 if place % TIMES == 0 else word for place, word in enumerate(ids)] for ids in some]


def _answer(model, inputs):
    ids = inputs.ids.clone()
    ids[:, ::TIMES] = 0
    logits = model(ids, attention_mask=inputs.mask.long())
    return logits[:, ::TIMES], inputs.ids[:, ::TIMES]


def squared_loss(model, inputs):
    """The paper's squared loss at masked places, by document."""
    scores, target = _answer(model, inputs)
    expected = torch.nn.functional.one_hot(target, scores.shape[-1]).to(scores)
    return (scores - expected).square().sum(-1).mean(-1)


def prediction_of_target(model, inputs):
    """What is predicted for the word that was there, by document."""
    scores, target = _answer(model, inputs)
    return scores.gather(-1, target.unsqueeze(-1)).squeeze(-1).mean(-1)


def theorem_2():
    """The optimal W_V under uniform attention."""
    return tp.theory.optimal_value(WORLD, MASKING)


def same_block():
    """1 between words of one topic, 0 otherwise and for the mask."""
    topic = torch.cat([torch.tensor([-1]), torch.arange(T).repeat_interleave(V)])
    return ((topic[:, None] == topic) & (topic >= 0)).double()


def toy(n_heads=1, **tensors):
    """A toy over one-hot embeddings with the given tensors; attention is uniform unless they say otherwise."""
    n = WORLD.vocabulary_size
    shape = (n, n) if n_heads == 1 else (n_heads, n, n)
    zero, bias = (torch.zeros(part, dtype=torch.float64) for part in (shape, shape[:-1]))
    given = {
        "W_E": torch.eye(n, dtype=torch.float64), "W_K": zero, "W_Q": zero, "W_V": zero,
        "b_K": bias, "b_Q": bias, "b_V": bias, "b_pred": torch.zeros(n, dtype=torch.float64), **tensors,
    }  # fmt: skip
    config = tp.ToyConfig(regime="full", world=WORLD, n_heads=n_heads, dtype="float64")
    return tp.build_toy(config, tensors=given)
