"""Time and memory of topics that overlap, as multiples of topics that do not, over one vocabulary of 30,522 words.

Run with ``make bench``, or ``python tests/benchmarks/overlap.py --topics 500``. In the one case every topic has 200
random words, so that a word is in several (33 with 5,000 topics, where two words of five share one); in the other
every word is in one topic. Wanted is at most five times the time, whatever the number of topics. Every case is a
process of its own with one thread, whose processor time counts; its peak memory is what each step takes beyond what
was there before.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM

import topic_probe as tp

VOCABULARY, WORDS_PER_TOPIC = 30_522, 200
DOCUMENTS, LENGTH = 16, 256
WANTED = 5.0


def memory(field: str) -> float:
    """A line of /proc/self/status in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


def word_lists(n_topics: int, *, overlap: bool) -> dict[str, list[int]]:
    """The ids of every topic."""
    generator = np.random.default_rng(0)
    words = np.arange(1_000, VOCABULARY)
    if overlap:
        parts = [generator.choice(words, WORDS_PER_TOPIC, replace=False) for _ in range(n_topics)]
    else:
        parts = np.array_split(generator.permutation(words), n_topics)
    return {f"topic {number}": part.tolist() for number, part in enumerate(parts)}


def small_bert() -> Any:
    """A model of MiniLM's width with two layers."""
    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=2, num_attention_heads=12, hidden_size=384, intermediate_size=1536)
    return tp.open_model(BertForMaskedLM(config).eval())


def run(n_topics: int, *, overlap: bool, only: str | None) -> None:
    """Prints seconds and megabytes of everything that is asked of topics."""
    torch.set_num_threads(1)
    lists, model = word_lists(n_topics, overlap=overlap), small_bert()
    documents = np.random.default_rng(1).integers(1_000, VOCABULARY, (DOCUMENTS, LENGTH)).tolist()
    # What pairs of words are held of has as many as a table of pairs takes.
    frequent = np.random.default_rng(2).choice(np.arange(1_000, VOCABULARY), 1_500, replace=False)
    repeated = np.random.default_rng(3).choice(frequent, (200, 100)).tolist()
    kept: dict[str, Any] = {}
    folder = Path(tempfile.mkdtemp())

    def build() -> None:
        kept["topics"] = tp.Topics.from_token_ids(lists, vocabulary_size=VOCABULARY)

    def disk() -> None:
        kept["topics"].save(folder / "topics")
        tp.Topics.load(folder / "topics")

    def attention() -> None:
        kept["report"] = tp.measure_attention(model, kept["topics"], documents, special_ids=())

    def embeddings() -> None:
        kept["embeddings"] = tp.measure_embeddings(model, kept["topics"])

    def matched() -> None:
        tp.measure_matched(model, kept["topics"], repeated[:40], cooccurrence=kept["counts"], min_documents=2)

    def count() -> None:
        kept["counts"] = tp.count_cooccurrence(repeated, frequent, vocabulary_size=VOCABULARY)

    def pages() -> None:
        kept["report"].save(folder / "report")
        tp.report_page(folder / "report")
        tp.show_attention(model, kept["topics"], documents[0][:60])

    actions = {
        "build": build,
        "save and load": disk,
        "attention": attention,
        "embeddings": embeddings,
        "weights": lambda: tp.measure_weights(model, kept["topics"]),
        "co-occurrence": count,
        "matched": matched,
        "pages": pages,
    }
    for name, action in actions.items():
        if only is not None and name not in ("build", *only.split(",")):
            continue
        before = memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # Linux forgets the peak of before
        start = process_time()
        action()
        print(json.dumps([name, process_time() - start, memory("VmHWM") - before]), flush=True)


def of_process(n_topics: int, kind: str, only: str | None, limit: int) -> dict[str, list[float]]:
    """The same in a fresh process, as far as it comes within the limit."""
    command = [sys.executable, __file__, "--topics", str(n_topics), "--kind", kind]
    command += [] if only is None else ["--only", only]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)),
    )
    if done.returncode:
        print(f"{n_topics} {kind} topics: not done in {limit} s {done.stderr[-300:]}")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return {name: numbers for name, *numbers in lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, nargs="+", default=[500, 2_000, 5_000])
    parser.add_argument("--only", help="names of what is measured, with commas between them")
    parser.add_argument(
        "--limit", type=int, default=1_000, help="seconds of processor time that a case may take"
    )
    parser.add_argument("--kind", choices=("overlapping", "disjoint"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.kind:
        run(options.topics[0], overlap=options.kind == "overlapping", only=options.only)
        return
    for n_topics in options.topics:
        disjoint = of_process(n_topics, "disjoint", options.only, options.limit)
        overlapping = of_process(n_topics, "overlapping", options.only, options.limit)
        print(
            f"\n{n_topics:,} topics{'':14} overlapping            disjoint               ratio (wanted ≤ {WANTED:g})"
        )
        for name in disjoint:
            (taken, megabytes), (other, of_other) = overlapping.get(name, [float("nan")] * 2), disjoint[name]
            numbers = f"{taken:8.2f} s {megabytes:7.0f} MB   {other:8.2f} s {of_other:7.0f} MB   {taken / other:7.2f}"
            print(f"  {name:22s} {numbers}", flush=True)


if __name__ == "__main__":
    main()
