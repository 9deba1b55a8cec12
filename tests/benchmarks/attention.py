"""Time and memory of measure_attention against the same forward passes without any measuring, in one run.

Run with ``make bench``. Models have the shape of a small BERT (6 layers, 12 heads, width 384) with random weights: a
BERT, a GPT-2 and a Llama. A fifth (of the BERT then half) of their tokens carry a topic. Processor time of one thread,
so that a busy machine disturbs little; the ways take turns, and each ratio is the median over rounds. Peak memory is
that of a process of its own. Three topics at once are those and two of a half and a quarter of their words, as the
thresholds of Table 1 give them.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, LlamaConfig, LlamaModel

import topic_probe as tp
from topic_probe.lens import capture, huggingface, running

VOCABULARY, DOCUMENTS, LENGTH = 30_522, 32, 256


def small(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if kind == "GPT-2":
        return GPT2Model(GPT2Config(n_layer=6, n_head=12, n_embd=384, n_positions=512)).eval()
    shape: dict[str, Any] = {"num_hidden_layers": 6, "num_attention_heads": 12, "hidden_size": 384}
    if kind == "Llama":
        return LlamaModel(LlamaConfig(**shape, intermediate_size=1024, vocab_size=VOCABULARY)).eval()
    return BertModel(BertConfig(**shape, intermediate_size=1536), add_pooling_layer=False).eval()


def some_topics(share: float, vocabulary: int = VOCABULARY) -> tp.Topics:
    """One hundred topics over a share of the vocabulary, so that this share of random tokens carries one."""
    words = np.arange(1_000, 1_000 + int(share * (VOCABULARY - 1_000)))
    return tp.Topics.from_token_ids(
        {f"topic {number}": part.tolist() for number, part in enumerate(np.array_split(words, 100))},
        vocabulary_size=vocabulary,
    )


def documents() -> list[list[int]]:
    return np.random.default_rng(0).integers(1_000, VOCABULARY, (DOCUMENTS, LENGTH)).tolist()


def ways(kind: str, share: float) -> dict[str, Callable[[], Any]]:
    """What is timed."""
    torch.set_num_threads(1)
    model = small(kind)
    topics, texts = some_topics(share, model.config.vocab_size), documents()
    host = tp.open_model(small(kind))
    inputs = capture.view(host).inputs(torch.tensor(texts), torch.ones(DOCUMENTS, LENGTH, dtype=torch.bool))

    def forward(implementation: str) -> None:
        with running.evaluating(model), huggingface.attention_implementation(model, implementation):
            huggingface.run(model, inputs)

    def measure(through: capture.Through, n_permutations: int, shares: Sequence[float] = (1,)) -> None:
        options = {"n_permutations": n_permutations, "n_resamples": 0, "special_ids": (), "through": through}
        several = [topics, *(some_topics(share * part, topics.vocabulary_size) for part in shares[1:])]
        tp.measure_attention(host, several if len(several) > 1 else topics, texts, **options)

    return {
        "eager forward": lambda: forward("eager"),
        "sdpa forward": lambda: forward("sdpa"),
        "through hooks": lambda: measure("hooks", 0),
        "through hooks, 200 permutations": lambda: measure("hooks", 200),
        "beside sdpa": lambda: measure("rows", 0),
        "beside sdpa, 200 permutations": lambda: measure("rows", 200),
        "beside sdpa, three topics": lambda: measure("rows", 0, (1, 1 / 2, 1 / 4)),
    }


def times(kind: str, share: float, rounds: int) -> dict[str, list[float]]:
    """Seconds of every way in every round."""
    runs = ways(kind, share)
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            start = process_time()
            run()
            found[name].append(process_time() - start)
    return {name: seconds[1:] for name, seconds in found.items()}  # the first round warms up


def ratio(one: list[float], other: list[float]) -> float:
    """The median ratio of two ways over the rounds."""
    return float(np.median(np.divide(one, other)))


def peak_memory(share: float, name: str) -> float:
    """Megabytes that one run takes beyond what is there before it, in a fresh process."""
    command = [sys.executable, __file__, "--memory-of", name, "--share", str(share)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def memory(field: str) -> float:
    """Megabytes that Linux reports for this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--memory-of", default=None)
    options = parser.parse_args()
    if options.memory_of:
        run = ways("BERT", options.share)[options.memory_of]
        before = memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # Linux forgets the peak of before
        run()
        print(memory("VmHWM") - before)
        return
    for kind, share in (("BERT", 0.2), ("BERT", 0.5), ("GPT-2", 0.2), ("Llama", 0.2)):
        found = times(kind, share, options.rounds)
        eager, bare = found["eager forward"], found["sdpa forward"]
        median = float(np.median(eager))
        print(
            f"\n{kind}, {share:.0%} of tokens with a topic, {DOCUMENTS} × {LENGTH} tokens; eager forward {median:.2f} s"
        )
        for name, taken in found.items():
            peak = f"   peak {peak_memory(share, name):5.0f} MB" if kind == "BERT" else ""
            print(f"  {name:34s} {ratio(taken, eager):5.2f} × eager  {ratio(taken, bare):5.2f} × sdpa{peak}")
        for way in ("through hooks", "beside sdpa"):
            cost = ratio(found[f"{way}, 200 permutations"], found[way])
            print(f"  {way}: 200 permutations cost {cost:.2f} ×")
        cost = ratio(found["beside sdpa, three topics"], found["beside sdpa"])
        print(f"  beside sdpa: three topics cost {cost:.2f} × one")


if __name__ == "__main__":
    main()
