"""How long a training step of the toy takes, against a plain PyTorch step and a Hugging Face model of its size.

    python tests/benchmarks/toy.py [--rounds 60] [--value-steps 20000]

Everything runs on one thread and is timed in turns, one call of each per round, so that a busy machine slows all of
them alike; the numbers are medians over the rounds and their ratios. ``--value-steps`` sets how long the *value*
training runs from which the time of 100,000 steps is projected (100000 runs it in full).
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from topic_probe.toy.model import ToyConfig, build_toy
from topic_probe.toy.world import MaskedBatch, Masking, World
from topic_probe.train.history import TrainConfig
from topic_probe.train.toy import train_toy

WORLD, MASKING, BATCH = World(), Masking(), 40
WANTED = {"full": 0.4, "value": 0.05, "batch": 0.03}


class Plain(nn.Module):
    """The paper's model as one would write it down: every position computed, the decoder tied to the embedding."""

    def __init__(self, size: int):
        super().__init__()
        self.embedding = nn.Embedding(size, size)
        self.key, self.query, self.value = (nn.Linear(size, size) for _ in range(3))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        z = self.embedding(ids)
        scores = self.query(z) @ self.key(z).mT / z.shape[-1] ** 0.5
        pattern = scores.masked_fill(~mask.unsqueeze(1), -torch.inf).softmax(dim=-1)
        return (pattern @ self.value(z)) @ self.embedding.weight.T + self.bias


def straightforward(
    model: nn.Module, logits: Callable[[MaskedBatch], torch.Tensor], batch: MaskedBatch
) -> Callable:
    """A step that computes every position and keeps the masked ones, with torch's own SGD."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    rows = batch.chosen.nonzero(as_tuple=True)[0]
    sizes = batch.chosen.sum(dim=1)
    share = 1 / (sizes[rows] * (sizes > 0).sum())

    def step() -> None:
        optimizer.zero_grad()
        losses = nn.functional.cross_entropy(
            logits(batch)[batch.chosen], batch.target[batch.chosen], reduction="none"
        )
        (losses @ share).backward()
        optimizer.step()

    return step


def hugging_face(size: int) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=size,
        hidden_size=size,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=size,
        max_position_embeddings=WORLD.max_length,
        attn_implementation="eager",
    )
    return BertForMaskedLM(config).train()


def whole(regime: str, optimizer: str) -> Callable[[], None]:
    """Fifty whole steps of the package: batch, loss, gradients, update and a row of the history each."""
    model = build_toy(ToyConfig(regime=regime, world=WORLD))
    config = TrainConfig(steps=49, optimizer=optimizer, batch_size=BATCH)  # 50 losses, 49 updates
    return lambda: train_toy(model, config)


def medians(calls: dict[str, tuple[Callable[[], object], int]], rounds: int) -> dict[str, float]:
    """Median seconds of one unit of each, the calls taking turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 3):
        for name, (call, units) in calls.items():
            start = time.perf_counter()
            call()
            if turn >= 3:
                times[name].append((time.perf_counter() - start) / units)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--value-steps", type=int, default=20_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    size = WORLD.vocabulary_size

    def new_batch() -> MaskedBatch:
        documents = WORLD.documents(BATCH, generator=generator)
        return MASKING.corrupt(documents, n_words=WORLD.n_words, generator=generator)

    batch = new_batch()
    plain, bert = Plain(size), hugging_face(size)
    calls = {
        "plain": (straightforward(plain, lambda b: plain(b.shown, b.mask), batch), 1),
        "bert": (
            straightforward(
                bert, lambda b: bert(input_ids=b.shown, attention_mask=b.mask.long()).logits, batch
            ),
            1,
        ),
        "batch": (new_batch, 1),
        "full": (whole("full", "sgd"), 50),
        "full, adam": (whole("full", "adam"), 50),
        "value": (whole("value", "sgd"), 50),
        "value, adam": (whole("value", "adam"), 50),
    }
    seconds = medians(calls, options.rounds)
    print(f"batch {BATCH}, length {WORLD.min_length}-{WORLD.max_length}, d = {size}, one thread")
    print(f"{'step':22}{'ms':>9}{'/ plain':>10}{'/ bert':>10}   wanted")
    for name, value in seconds.items():
        wanted = WANTED.get(name)
        verdict = "" if wanted is None else f"{wanted} of plain: {value / seconds['plain'] <= wanted}"
        print(
            f"{name:22}{value * 1e3:9.3f}{value / seconds['plain']:10.4f}{value / seconds['bert']:10.4f}   {verdict}"
        )

    start = time.perf_counter()
    history = train_toy(
        build_toy(ToyConfig(regime="value", world=WORLD)), TrainConfig(steps=options.value_steps)
    )
    took = time.perf_counter() - start
    print(
        f"value training with SGD at 0.01: {options.value_steps} steps in {took:.1f} s, so 100,000 in "
        f"{took * 100_000 / options.value_steps:.0f} s (loss {history.loss[0]:.3f} -> {history.loss[-1]:.3f})"
    )


if __name__ == "__main__":
    main()
