"""What a measurement asks of a device, counted and not timed: operators, bytes and products, beside the forward pass.

Run with ``make bench``. A dispatch mode sees every operator of PyTorch that a measurement calls. Each reads and writes
so many bytes, and each is a launch on a GPU, unless it only looks at the same memory in another way. What is done once
and what every document adds is told apart by measuring two numbers of documents. A model of the shape of BERT-base
(random weights), documents of 512 tokens of which a fifth carry a topic.
"""

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel

import topic_probe as tp
from topic_probe.lens import capture, huggingface, running
from topic_probe.text.batches import token_batches
from topic_probe.text.documents import read_documents

VOCABULARY, LENGTH = 30_522, 512
SIZES = 2, 4

# What an accelerator is said to do, as its maker writes it (A100 of 40 GB, float32 without TF32), and the time of a
# launch as PyTorch's own tutorials have it.
PER_SECOND = {"operators": 2e5, "bytes": 1.5e12, "products": 1.95e13 / 2}


class Counting(TorchDispatchMode):
    """Counts what operators are called, and what they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: Counter[str] = Counter()
        self.n_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls the operator."""
        found = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.operators[str(func.overloadpacket)] += 1
            tensors = [leaf for leaf in tree_leaves((args, kwargs, found)) if isinstance(leaf, torch.Tensor)]
            self.n_bytes += sum(tensor.nelement() * tensor.element_size() for tensor in tensors)
        return found


@dataclass(frozen=True)
class Asked:
    """What is asked of a device: launches, bytes that are read or written, and products that are added up."""

    operators: float
    bytes: float
    products: float
    often: Counter[str]

    @classmethod
    def by(cls, run: Callable[[list[list[int]]], Any], documents: list[list[int]]) -> "Asked":
        """What measuring documents asks."""
        with FlopCounterMode(display=False) as flops, Counting() as counting:
            run(documents)
        n = counting.operators.total()
        return cls(n, counting.n_bytes, flops.get_total_flops() / 2, counting.operators)

    def __sub__(self, other: "Asked") -> "Asked":
        pairs = ((getattr(self, name) - getattr(other, name)) for name in PER_SECOND)
        return Asked(*pairs, self.often - other.often)

    def __mul__(self, n: float) -> "Asked":
        return Asked(*(getattr(self, name) * n for name in PER_SECOND), self.often)

    def __str__(self) -> str:
        """With the milliseconds that each alone would take."""
        alone = {name: 1e3 * getattr(self, name) / rate for name, rate in PER_SECOND.items()}
        return (
            f"{self.operators:8,.0f} operators ({alone['operators']:6.2f} ms)  {self.bytes / 1e6:10,.1f} MB "
            f"({alone['bytes']:6.2f} ms)  {self.products / 1e9:8,.2f} G products ({alone['products']:6.2f} ms)"
        )


def ways(layers: int) -> dict[str, Callable[[list[list[int]]], Any]]:
    """What is counted, of documents."""
    torch.manual_seed(0)
    inside = BertModel(BertConfig(num_hidden_layers=layers), add_pooling_layer=False).eval()
    model = tp.open_model(inside)
    words = np.arange(1_000, 6_900).reshape(100, -1)
    topics = tp.Topics.from_token_ids(dict(enumerate(words.tolist())), vocabulary_size=VOCABULARY)
    plain: dict[str, Any] = {"special_ids": (), "n_resamples": 0}

    def forward(documents: list[list[int]]) -> None:
        with running.evaluating(model), huggingface.attention_implementation(inside, "sdpa"):
            for batch in token_batches(read_documents(documents)):
                huggingface.run(inside, capture.view(model).inputs(batch.ids, batch.mask))

    def attention(n_permutations: int) -> Callable[[list[list[int]]], Any]:
        return lambda documents: tp.measure_attention(
            model, topics, documents, n_permutations=n_permutations, **plain
        )

    return {
        "forward pass of BERT": forward,
        "measure_attention": attention(0),
        "the same, 200 permutations": attention(200),
        "states of measure_embeddings": lambda documents: tp.measure_embeddings(
            model, topics, documents, effect_size=False, **plain
        ),
        "measure_ablation, one set": lambda documents: tp.measure_ablation(
            model, topics, documents, sets={"one": "0.0"}, kind="zero", n_matched=0, **plain
        ),
        "measure_knockout, one cut": lambda documents: tp.measure_knockout(
            model, topics, documents, n_matched=0, **plain
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument(
        "--often", type=int, default=0, help="how many of the most frequent operators to list"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    documents = np.random.default_rng(0).integers(1_000, VOCABULARY, (max(SIZES), LENGTH)).tolist()
    rates = ", ".join(f"{rate:.3g} {name}" for name, rate in PER_SECOND.items())
    print(f"{options.layers} layers, documents of {LENGTH} tokens; in brackets at {rates} per second")
    bare = 0.0
    for name, run in ways(options.layers).items():
        run(documents[:1])
        few, more = (Asked.by(run, documents[:n]) for n in SIZES)
        each = (more - few) * (1 / (SIZES[1] - SIZES[0]))
        bare = each.products if name.startswith("forward") else bare
        print(f"{name}: {each.products / bare:.2f} forward passes")
        print(f"  a document  {each}\n  and once    {few - each * SIZES[0]}", flush=True)
        for operator, n in each.often.most_common(options.often):
            print(f"    {operator} {n / (SIZES[1] - SIZES[0]):.0f}")


if __name__ == "__main__":
    main()
