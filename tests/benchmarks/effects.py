"""Time of ablations and cuts against the bare forward pass on the fused kernel, in one run.

Run with ``make bench``. A BERT of MiniLM's size with random weights; documents of random words, a fifth of which have a
topic. Processor time on one thread, medians of interleaved repetitions. A set of heads is to cost one forward pass (at
most 1.1 times), and so is a cut.
"""

import argparse
from collections.abc import Callable
from time import process_time
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertModel

import topic_probe as tp
from topic_probe.lens.running import evaluating
from topic_probe.text.batches import token_batches
from topic_probe.text.documents import read_documents

VOCABULARY, WORDS_OF_TOPICS = 30_522, 6_000
WANTED = {"one set of heads": 1.1, "one cut": 1.1}
SETS, CUTS = 6, 6


def ways(n_documents: int, length: int) -> dict[str, tuple[Callable[[], Any], int]]:
    """What is timed, and how many conditions it has beyond the bare pass."""
    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=6, hidden_size=384, num_attention_heads=12, intermediate_size=1536)
    inside = BertModel(config, add_pooling_layer=False).eval()
    model = tp.open_model(inside)
    generator = np.random.default_rng(0)
    documents = generator.integers(1_000, VOCABULARY, (n_documents, length)).tolist()
    words = generator.permutation(np.arange(1_000, VOCABULARY))[:WORDS_OF_TOPICS].reshape(20, -1)
    topics = tp.Topics.from_token_ids(dict(enumerate(words.tolist())), vocabulary_size=VOCABULARY)
    batches = list(token_batches(read_documents(documents)))
    options: dict[str, Any] = {"special_ids": (), "n_resamples": 0}

    def bare() -> None:
        with evaluating(model):
            for batch in batches:
                inside(batch.ids, attention_mask=batch.mask.long(), output_hidden_states=True)

    def ablation(n: int) -> None:
        sets = {str(head): [(1, head)] for head in range(n)}
        tp.measure_ablation(model, topics, documents, sets=sets, kind="zero", n_matched=0, **options)

    def cuts(n: int) -> None:
        tp.measure_knockout(model, topics, documents, n_matched=n, **options)

    return {
        "bare": (bare, 0),
        "ablation, no set": (lambda: ablation(0), 0),
        "ablation, sets": (lambda: ablation(SETS), SETS),
        "cut, none matched": (lambda: cuts(0), 1),
        "cuts, matched": (lambda: cuts(CUTS), 1 + CUTS),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--documents", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs = ways(arguments.documents, arguments.length)
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for repetition in range(arguments.repetitions + 1):
        for name, (run, _) in runs.items():
            start = process_time()
            run()
            if repetition:  # the first one tries the model out
                taken[name].append(process_time() - start)
    seconds = {name: float(np.median(values)) for name, values in taken.items()}
    bare = seconds["bare"]
    found = {
        "one set of heads": (seconds["ablation, sets"] - seconds["ablation, no set"]) / SETS / bare,
        "one cut": (seconds["cuts, matched"] - seconds["cut, none matched"]) / CUTS / bare,
    }
    print(
        f"{arguments.documents} documents of {arguments.length} tokens; bare fused forward pass {bare:.2f} s"
    )
    for name, ratio in found.items():
        print(f"{name:20s} {ratio:6.2f} × the bare pass   wanted ≤ {WANTED[name]:g}")


if __name__ == "__main__":
    main()
