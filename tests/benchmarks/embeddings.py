"""Time of measure_embeddings against computing the norms of all rows once, in one run.

Run with ``make bench``. The table has the size of BERT's, 30,522 × 768 in float32, and every row carries one of a
hundred topics. Medians of interleaved repetitions. Effect sizes are products of matrices: they take half as long again
where ``OPENBLAS_CORETYPE`` in the environment gives OpenBLAS another processor's kernels than it would choose itself
(AVX2 in place of AVX-512), so what is wanted is meant without it, and it is printed where it is set.
"""

import argparse
import os
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertModel

import topic_probe as tp
from topic_probe.measure.embeddings import measure_embeddings

VOCABULARY, WIDTH, TOPICS = 30_522, 768, 100
WANTED = {"without intervals": 5.0, "effect sizes": 100.0, "effect sizes and intervals": 200.0}


def some_topics(*, overlap: bool) -> tp.Topics:
    """A hundred topics over the whole vocabulary; with overlap, a tenth of the words is in a second one."""
    generator = np.random.default_rng(0)
    topic = generator.permutation(VOCABULARY) % TOPICS
    second = np.where(generator.random(VOCABULARY) < 0.1, generator.integers(0, TOPICS, VOCABULARY), topic)
    lists = {
        str(number): np.flatnonzero((topic == number) | (overlap & (second == number))).tolist()
        for number in range(TOPICS)
    }
    return tp.Topics.from_token_ids(lists, vocabulary_size=VOCABULARY)


def ways() -> dict[str, Callable[[], Any]]:
    """What is timed."""
    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=1, hidden_size=WIDTH, num_attention_heads=12, intermediate_size=64)
    model = tp.open_model(BertModel(config, add_pooling_layer=False).eval())
    table = model.original_model.get_input_embeddings().weight.detach()
    disjoint, overlapping = some_topics(overlap=False), some_topics(overlap=True)
    return {
        "row norms": lambda: table.norm(dim=-1),
        "without intervals": lambda: measure_embeddings(model, disjoint, n_resamples=0, effect_size=False),
        "overlapping topics, without intervals": lambda: measure_embeddings(
            model, overlapping, n_resamples=0, effect_size=False
        ),
        "with intervals": lambda: measure_embeddings(model, disjoint, effect_size=False),
        "overlapping topics, with intervals": lambda: measure_embeddings(
            model, overlapping, effect_size=False
        ),
        "effect sizes": lambda: measure_embeddings(model, disjoint, n_resamples=0),
        "overlapping topics, effect sizes": lambda: measure_embeddings(model, overlapping, n_resamples=0),
        "effect sizes and intervals": lambda: measure_embeddings(model, disjoint),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    runs = ways()
    found: dict[str, list[float]] = {name: [] for name in runs}
    for repetition in range(arguments.repetitions + 1):
        for name, run in runs.items():
            if name not in ("row norms", "without intervals") and repetition > 3:
                continue
            start = perf_counter()
            run()
            if repetition:  # the first one fills caches of topics and of the allocator
                found[name].append(perf_counter() - start)
    norms = float(np.median(found["row norms"]))
    print(
        f"{VOCABULARY} × {WIDTH}, {TOPICS} topics, {arguments.threads} thread(s); row norms {1e3 * norms:.2f} ms"
    )
    if kernels := os.environ.get("OPENBLAS_CORETYPE"):
        print(f"with OpenBLAS's kernels for {kernels}, as OPENBLAS_CORETYPE asks for")
    for name, values in found.items():
        ratio = float(np.median(values)) / norms
        wanted = f"   wanted ≤ {WANTED[name]:g}" if name in WANTED else ""
        print(f"{name:40s} {ratio:8.2f} × row norms{wanted}")


if __name__ == "__main__":
    main()
