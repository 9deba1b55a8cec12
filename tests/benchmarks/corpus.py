"""Documents per second of a corpus against the bare tokenizer and the bare forward pass, and of LDA, in one run.

Run with ``make bench``. 10,000 overlapping slices of a thousand letters of the articles inside gensim, tokenized by the
tokenizer of all-MiniLM-L6-v2; some hundred of them go through that model. Medians of interleaved repetitions (of
processor time of one thread where a model runs); peak memory in a process of its own.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from real_text import minilm_folder
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

import topic_probe as tp
from topic_probe.lens import capture, huggingface, running
from topic_probe.measure import engine
from topic_probe.text.batches import token_batches
from topic_probe.text.corpus import Corpus
from topic_probe.text.lda import fit_topics

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


def medians(
    runs: dict[str, Callable[[], Any]], repetitions: int, clock: Callable[[], float] = perf_counter
) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repetitions):
        for name, run in runs.items():
            start = clock()
            run()
            found[name].append(clock() - start)
    return {name: float(np.median(values)) for name, values in found.items()}


def streams(n: int, repetitions: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    tokenizer.backend_tokenizer.no_padding()
    texts = slices(n)
    corpus = Corpus.from_texts(texts)
    found = medians(
        {
            "bare tokenizer": lambda: bare(tokenizer, texts),
            "corpus": lambda: count(corpus.documents(tokenizer)),
            "corpus, chunks of 64": lambda: count(corpus.documents(tokenizer, max_length=64, long="chunk")),
        },
        repetitions,
    )
    print(f"\n{n:,} texts of {LETTERS:,} letters")
    for name, seconds in found.items():
        print(f"  {name:24s} {n / seconds:8,.0f} texts/s   {seconds / found['bare tokenizer']:5.2f} × bare")


def measuring(n: int, repetitions: int) -> None:
    """The whole way of a text, from letters to sums, beside the tokenizer and the model alone."""
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    tokenizer.backend_tokenizer.no_padding()
    texts = slices(n)
    documents = Corpus.from_texts(slices(1_000)).documents(tokenizer)
    found_topics = fit_topics(documents, tokenizer, passes=2).topics()
    model = AutoModel.from_pretrained(minilm_folder()).eval()
    host = tp.open_model(model)
    documents = list(Corpus.from_texts(texts).documents(tokenizer))
    inputs = [capture.view(host).inputs(batch.ids, batch.mask) for batch in token_batches(documents)]

    def forward(implementation: str) -> None:
        with running.evaluating(model), huggingface.attention_implementation(model, implementation):
            for batch in inputs:
                huggingface.run(model, batch)

    def measure(**options: Any) -> None:
        stream = Corpus.from_texts(texts).documents(tokenizer)
        tp.measure_attention(host, found_topics, stream, n_resamples=0, **options)

    def in_parts() -> None:
        with tempfile.TemporaryDirectory() as folder:
            measure(folder=folder, part_size=64)

    found = medians(
        {
            "bare tokenizer": lambda: bare(tokenizer, texts),
            "bare forward pass, sdpa": lambda: forward("sdpa"),
            "bare forward pass, eager": lambda: forward("eager"),
            "text to report": measure,
            "the same in parts of 64": in_parts,
        },
        repetitions,
        process_time,
    )
    tokens = np.mean([len(document) for document in documents])
    print(f"\nall-MiniLM-L6-v2, {n:,} documents of {tokens:.0f} tokens, one thread, LDA with 100 topics")
    for name, seconds in found.items():
        print(
            f"  {name:24s} {n / seconds:8,.1f} documents/s   {seconds / found['bare forward pass, eager']:5.2f} × eager"
        )


def bert_base(n: int) -> None:
    """A model of the size of BERT-base with random weights, on documents of 512 tokens."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = BertModel(BertConfig(), add_pooling_layer=False).eval()
    host = tp.open_model(model)
    documents = np.random.default_rng(0).integers(1_000, 30_522, (n, 512)).tolist()
    words = np.arange(1_000, 6_900).reshape(100, -1)  # a fifth of all, so a fifth of the tokens has a topic
    found_topics = tp.Topics.from_token_ids(dict(enumerate(words.tolist())), vocabulary_size=30_522)
    inputs = capture.view(host).inputs(torch.tensor(documents), torch.ones(n, 512, dtype=torch.bool))

    def forward(implementation: str) -> None:
        with running.evaluating(model), huggingface.attention_implementation(model, implementation):
            huggingface.run(model, inputs)

    def measure() -> None:
        tp.measure_attention(host, found_topics, documents, n_resamples=0)

    runs = {
        "bare forward pass, sdpa": lambda: forward("sdpa"),
        "bare forward pass, eager": lambda: forward("eager"),
        "measuring": measure,
    }
    print(f"\nBERT-base, {n} documents of 512 tokens, one thread")
    for name, seconds in medians(runs, 2, process_time).items():
        print(f"  {name:24s} {n / seconds:8,.2f} documents/s")


def topics(n: int, passes: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    documents = list(Corpus.from_texts(slices(n)).documents(tokenizer))
    print(f"\nLDA, 100 topics, {n:,} documents of {np.mean([len(d) for d in documents]):.0f} tokens")
    start = perf_counter()
    fit_topics(documents, tokenizer, passes=passes)
    seconds = perf_counter() - start
    print(f"  {seconds:5.1f} s for {passes} passes, {n * passes / seconds:8,.0f} documents/s and pass")


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


def different(n: int) -> Iterator[str]:
    """Short texts that are all different, so that each has sums of its own."""
    text = " ".join(Corpus.bundled())
    for start in np.linspace(0, len(text) - 100, n).astype(int):
        yield text[start : start + 100]


def measure_small(n: int, tokenizer: Any) -> None:
    """Attention of a model that is small enough for many documents, with as many heads as BERT-base."""
    config = BertConfig(num_hidden_layers=2, num_attention_heads=72, hidden_size=72, intermediate_size=72)
    words = np.arange(1_996, 6_996).reshape(100, -1)
    found_topics = tp.Topics.from_token_ids(dict(enumerate(words.tolist())), vocabulary_size=30_522)
    model = BertModel(config, add_pooling_layer=False).eval()
    engine.MAX_SOURCE_CELLS = 0  # 256 rows instead of 4,096, so that a short run is beyond them too
    stream = Corpus.from_texts(lambda: different(n)).documents(tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        report = tp.measure_attention(model, found_topics, stream, folder=folder)
    assert report.provenance["documents"] == n


def measure_memory(task: str, n: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    stream = Corpus.from_texts(lambda: repeated(n)).documents(tokenizer)
    fit_topics(Corpus.from_texts(list(repeated(500))).documents(tokenizer), tokenizer, n_topics=20, passes=1)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # Linux forgets the peak of before
    if task == "stream":
        count(stream)
    elif task == "measuring":
        measure_small(n, tokenizer)
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
    measuring(max(64, options.documents // 50), options.repetitions)
    bert_base(4)
    topics(options.documents, options.passes)
    print("\npeak memory beyond the start")
    for task in ("stream", "LDA"):
        peaks = [peak_memory(task, n) for n in (options.documents // 2, 2 * options.documents)]
        print(
            f"  {task:24s} {peaks[0]:5.0f} MB for half as many documents, {peaks[1]:5.0f} MB for twice as many"
        )
    peaks = [peak_memory("measuring", n) for n in (600, 6_000)]
    print(f"  measuring                {peaks[0]:5.0f} MB for 600 documents, {peaks[1]:5.0f} MB for 6,000")


if __name__ == "__main__":
    main()
