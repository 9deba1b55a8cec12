"""A toy and documents of which every answer is known: what a head attends to, and what the loss is without it.

The documents have exactly the frequencies that theory asks for: every word of every two topics as often, one of each
masked. With Theorem 2's W_V under uniform attention the squared loss is 1 − 1/(τv), and 1 − 1/(Tv) once the output of
the head gives way to its mean. Beside a head that attends to all words alike and writes that, a second head attends by
topic and writes nothing: it has the higher ratio and no effect, so an instrument that ranks it first is broken.
"""

from itertools import combinations
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from topic_probe.toy.masking import MASK_ID, Masking
from topic_probe.toy.model import ToyConfig, build_toy
from topic_probe.toy.theory import optimal_value
from topic_probe.toy.world import World

WORLD = World(n_topics=10, words_per_topic=10, topics_per_document=2)
TIMES = 5  # how often every word stands in its documents; the first of these is masked
MASKING = Masking(p_mask=1 / TIMES, p_keep=0.0, p_random=0.0)


def documents() -> list[list[int]]:
    """A document for every two topics."""
    v = WORLD.words_per_topic
    words = [
        [word for word in range(1 + topic * v, 1 + topic * v + v) for _ in range(TIMES)]
        for topic in range(WORLD.n_topics)
    ]
    return [one + other for one, other in combinations(words, 2)]


def shown() -> list[list[int]]:
    """The documents as a model sees them."""
    return [
        [MASK_ID if place % TIMES == 0 else word for place, word in enumerate(ids)] for ids in documents()
    ]


def squared_loss(model: Any, inputs: Any) -> Float64[Tensor, " batch"]:
    """The paper's squared loss at the masked places of every document, as `measure_ablation` takes an outcome."""
    ids, target = inputs.ids.clone(), inputs.ids[:, ::TIMES]
    ids[:, ::TIMES] = MASK_ID
    predicted = model(ids, attention_mask=inputs.mask.long())[:, ::TIMES].double()
    expected = torch.nn.functional.one_hot(target, predicted.shape[-1])
    losses: Tensor = (predicted - expected).square().sum(-1).mean(-1)
    return losses


def model() -> Any:
    """A head with Theorem 2's W_V under uniform attention, beside one that attends by topic and has a W_V of 0."""
    n, v = WORLD.vocabulary_size, WORLD.words_per_topic
    zero, eye = torch.zeros(n, n).double(), torch.eye(n).double()
    same_topic = zero.clone()
    same_topic[1:, 1:] = torch.kron(torch.eye(WORLD.n_topics), torch.ones(v, v))
    tensors = {
        "W_K": torch.stack([zero, same_topic]),
        "W_Q": torch.stack([zero, 2 * n**0.5 * eye]),
        "W_V": torch.stack([optimal_value(WORLD, MASKING), zero]),
    }
    return build_toy(ToyConfig("value", world=WORLD, n_heads=2, dtype="float64"), tensors=tensors)
