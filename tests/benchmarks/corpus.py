"""Documents per second of a corpus against the bare tokenizer, and of LDA on its token ids, in one run.

Run with ``make bench``. 10,000 overlapping slices of a thousand letters of the articles inside gensim, tokenized by the
tokenizer of all-MiniLM-L6-v2. Medians of interleaved repetitions; peak memory in a process of its own.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from real_text import minilm_folder
from transformers import AutoTokenizer

from topic_probe.data.corpus import Corpus
from topic_probe.data.lda import fit_topics

LETTERS = 1_000


def slices(n: int) -> list[str]:
    """As many slices of the bundled articles, overlapping as much as they must."""
    text = " ".join(Corpus.bundled())
    return [text[start : start + LETTERS] for start in np.linspace(0, len(text) - LETTERS, n).astype(int)]


def count(documents: Any) -> int:
    return sum(1 for _ in documents)


def bare(tokenizer: Any, texts: list[str]) -> int:
    """What a corpus must do at least: the tokenizer alone, on batches of the same size."""
    return sum(
        len(
            tokenizer(texts[start : start + 256], padding=False, truncation=False, verbose=False)["input_ids"]
        )
        for start in range(0, len(texts), 256)
    )


def medians(runs: dict[str, Callable[[], Any]], repetitions: int) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repetitions):
        for name, run in runs.items():
            start = perf_counter()
            run()
            found[name].append(perf_counter() - start)
    return {name: float(np.median(values)) for name, values in found.items()}


def streams(n: int, repetitions: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    tokenizer.backend_tokenizer.no_padding()
    texts = slices(n)
    corpus = Corpus.from_texts(texts)
    with tempfile.TemporaryDirectory() as cache:
        count(corpus.documents(tokenizer, cache=cache))
        found = medians(
            {
                "bare tokenizer": lambda: bare(tokenizer, texts),
                "corpus": lambda: count(corpus.documents(tokenizer)),
                "corpus, chunks of 64": lambda: count(
                    corpus.documents(tokenizer, max_length=64, long="chunk")
                ),
                "corpus, from its cache": lambda: count(corpus.documents(tokenizer, cache=cache)),
            },
            repetitions,
        )
    print(f"\n{n:,} texts of {LETTERS:,} letters")
    for name, seconds in found.items():
        print(f"  {name:24s} {n / seconds:8,.0f} texts/s   {seconds / found['bare tokenizer']:5.2f} × bare")


def topics(n: int, passes: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    documents = list(Corpus.from_texts(slices(n)).documents(tokenizer))
    print(f"\nLDA, 100 topics, {n:,} documents of {np.mean([len(d) for d in documents]):.0f} tokens")
    for name, options in {"LdaModel": {}, "LdaMulticore, 2 workers": {"workers": 2}}.items():
        start = perf_counter()
        fit_topics(documents, tokenizer, passes=passes, **options)
        seconds = perf_counter() - start
        print(
            f"  {name:24s} {seconds:5.1f} s for {passes} passes, {n * passes / seconds:8,.0f} documents/s and pass"
        )


def repeated(n: int) -> Iterator[str]:
    """Texts that are nowhere in memory at once."""
    texts = slices(1_000)
    for number in range(n):
        yield texts[number % len(texts)]


def peak_memory(task: str, n: int) -> float:
    """Megabytes that a task takes beyond what is there before it, in a fresh process."""
    command = [sys.executable, __file__, "--memory-of", task, "--documents", str(n)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def memory(field: str) -> float:
    """Megabytes that Linux reports for this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def measure_memory(task: str, n: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    stream = Corpus.from_texts(lambda: repeated(n)).documents(tokenizer)
    fit_topics(Corpus.from_texts(list(repeated(500))).documents(tokenizer), tokenizer, n_topics=20, passes=1)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # Linux forgets the peak of before
    if task == "stream":
        count(stream)
    else:
        fit_topics(stream, tokenizer, n_topics=20, passes=1)
    print(memory("VmHWM") - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--memory-of", default=None)
    options = parser.parse_args()
    if options.memory_of:
        measure_memory(options.memory_of, options.documents)
        return
    streams(options.documents, options.repetitions)
    topics(options.documents, options.passes)
    print("\npeak memory beyond the start")
    for task in ("stream", "LDA"):
        peaks = [peak_memory(task, n) for n in (options.documents // 2, 2 * options.documents)]
        print(
            f"  {task:24s} {peaks[0]:5.0f} MB for half as many documents, {peaks[1]:5.0f} MB for twice as many"
        )


if __name__ == "__main__":
    main()
