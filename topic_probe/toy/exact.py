"""A toy and documents of which every answer is known: what a head attends to, and what the loss is without it.

The documents have exactly the frequencies that theory asks for. With Theorem 2's W_V under uniform attention the
squared loss is 1 − 1/(τv), and 1 − 1/(Tv) once the output of the head gives way to its mean. Beside a head that attends
to all words alike and writes that, a second head attends by topic and writes nothing: it has the higher ratio and no
effect, so an instrument that ranks it first is broken.
"""

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from topic_probe.toy.masking import MASK_ID, Masking
from topic_probe.toy.model import ToyConfig, build_toy
from topic_probe.toy.theory import optimal_value
from topic_probe.toy.world import World


@dataclass(frozen=True)
class ExactToy:
    """Documents with the frequencies of theory: every word of every τ topics as often, one of each masked.

    Attributes:
        world: Uniform topics.
        times: How often every word stands in its documents; the first of these is masked.
    """

    world: World
    times: int = 5

    @property
    def masking(self) -> Masking:
        """The masking that the documents have."""
        return Masking(p_mask=1 / self.times, p_keep=0.0, p_random=0.0)

    def documents(self) -> list[list[int]]:
        """A document for every set of topics."""
        v, tau = self.world.words_per_topic, self.world.topics_per_document
        assert tau is not None
        return [
            [1 + topic * v + word for topic in topics for word in range(v) for _ in range(self.times)]
            for topics in combinations(range(self.world.n_topics), tau)
        ]

    def shown(self) -> list[list[int]]:
        """The documents as a model sees them."""
        return [
            [MASK_ID if place % self.times == 0 else word for place, word in enumerate(ids)]
            for ids in self.documents()
        ]

    def squared_loss(self, model: Any, inputs: Any) -> Float64[Tensor, " batch"]:
        """The paper's squared loss at the masked places of every document, as `measure_ablation` takes an outcome."""
        ids, target = inputs.ids.clone(), inputs.ids[:, :: self.times]
        ids[:, :: self.times] = MASK_ID
        scores = model(ids, attention_mask=inputs.mask.long())[:, :: self.times].double()
        expected = torch.nn.functional.one_hot(target, scores.shape[-1])
        losses: Tensor = (scores - expected).square().sum(-1).mean(-1)
        return losses

    def model(self, n_heads: int = 1) -> Any:
        """A toy with Theorem 2's W_V under uniform attention.

        A second head attends by topic, and its W_V is 0.
        """
        n = self.world.vocabulary_size
        zero, eye = torch.zeros(n, n, dtype=torch.float64), torch.eye(n, dtype=torch.float64)
        topic = torch.full((n,), -1)
        topic[1:] = self.world.block_of_word
        by_topic = ((topic[:, None] == topic) & (topic >= 0)).double()
        value = optimal_value(self.world, self.masking)
        tensors: dict[str, Tensor] = {"W_E": eye, "W_K": zero, "W_Q": zero, "W_V": value}
        if n_heads == 2:
            tensors |= {
                "W_K": torch.stack([zero, by_topic]),
                "W_Q": torch.stack([zero, 2 * n**0.5 * eye]),
                "W_V": torch.stack([value, zero]),
            }
        bias = torch.zeros(tensors["W_K"].shape[:-1], dtype=torch.float64)
        tensors |= dict.fromkeys(("b_K", "b_Q", "b_V"), bias)
        tensors["b_pred"] = torch.zeros(n, dtype=torch.float64)
        config = ToyConfig(regime="full", world=self.world, n_heads=n_heads, dtype="float64")
        return build_toy(config, tensors=tensors)


EXACT = ExactToy(World(n_topics=10, words_per_topic=10, topics_per_document=2))
