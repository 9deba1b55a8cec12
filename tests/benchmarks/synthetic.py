"""Time of making and masking a batch, relative to a plain training step on it; wanted: at most 0.03.

The step is the straightforward way to train the toy model: one layer of attention with d = 101, every position
computed, cross-entropy at the masked ones, backward pass, SGD. Both are timed in turn in one run, on one thread,
so that whatever else the machine does hits both. Run: ``python tests/benchmarks/synthetic.py``
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from topic_probe.toy.masking import MaskedBatch, Masking
from topic_probe.toy.world import World, overlapping_words

WANTED = 0.03
WORLDS = {
    "LDA": World(alpha=0.1),
    "uniform topics": World(topics_per_document=3),
    "overlapping topics": World(alpha=0.1, word_probabilities=overlapping_words(10, 10)),
}


def make_batch(world: World, generator: torch.Generator) -> MaskedBatch:
    documents = world.documents(40, generator=generator)
    return Masking().corrupt(documents, n_words=world.n_words, generator=generator)


def plain_step(vocabulary_size: int, d: int) -> Callable[[MaskedBatch], None]:
    """A training step that computes every position."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"E": (vocabulary_size, d), "K": (d, d), "Q": (d, d), "V": (d, d)}
    weights = {name: 0.1 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    biases = {name: torch.zeros(d) for name in ("k", "q", "v")} | {"pred": torch.zeros(vocabulary_size)}
    p = {name: value.requires_grad_() for name, value in (weights | biases).items()}
    optimizer = torch.optim.SGD(p.values(), lr=0.01)

    def step(batch: MaskedBatch) -> None:
        optimizer.zero_grad()
        z = p["E"][batch.shown]
        k, q, v = z @ p["K"].T + p["k"], z @ p["Q"].T + p["q"], z @ p["V"].T + p["v"]
        scores = q @ k.transpose(1, 2) / d**0.5
        pattern = scores.masked_fill(~batch.mask.unsqueeze(1), -torch.inf).softmax(dim=2)
        logits = pattern @ v @ p["E"].T + p["pred"]
        F.cross_entropy(logits[batch.chosen], batch.target[batch.chosen]).backward()
        optimizer.step()

    return step


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def ratio(world: World, *, rounds: int = 60) -> tuple[float, float]:
    """Median time of a batch in seconds, and relative to the median time of a step."""
    generator, step = torch.Generator().manual_seed(0), plain_step(world.vocabulary_size, d=101)
    batch = make_batch(world, generator)
    making, stepping = [], []
    for _ in range(rounds):
        making.append(seconds(lambda: make_batch(world, generator)))
        stepping.append(seconds(lambda: step(batch)))
    making, stepping = making[rounds // 6 :], stepping[rounds // 6 :]  # the first rounds warm up
    return statistics.median(making), statistics.median(making) / statistics.median(stepping)


def main() -> int:
    torch.set_num_threads(1)
    slow = False
    for name, world in WORLDS.items():
        batch, relative = ratio(world)
        slow |= relative > WANTED
        print(f"{name:20} {1e6 * batch:6.0f} µs a batch, {relative:.4f} of a plain step (wanted: {WANTED})")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
