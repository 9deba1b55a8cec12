"""What a large run must not do: grow, become slower by the document, or choke on one long text or on many topics.

Run with ``make bench``; a name behind it (``large.py memory``) runs one part. Models are tiny, so that what is timed is
reading, cutting, scoring and adding up. Both sides of a ratio take turns in one process; times are processor time of
one thread, but for processes that run side by side, where the time on the wall stands beside it.
"""

import argparse
import json
import os
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
sys.path.insert(0, str(Path(__file__).parent))

from corpus import different, medians, memory
from real_text import minilm_folder
from transformers import AutoTokenizer, BertConfig, BertModel

import topic_probe as tp
from topic_probe.text.corpus import Corpus

VOCABULARY = 30_522
LONG, PIECE = 100_000, 256
TOPICS, LARGE_VOCABULARY = 5_000, 250_000


def bert(**sizes: int) -> Any:
    """A BERT of random weights, by default a tiny one."""
    torch.manual_seed(0)
    tiny = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 16}
    return BertModel(
        BertConfig(**tiny | {"max_position_embeddings": PIECE} | sizes), add_pooling_layer=False
    ).eval()


def some_topics(
    vocabulary: int = VOCABULARY, n: int = 100, first: int = 2_000, words: int = 5_000
) -> tp.Topics:
    """So many topics of equally many words."""
    of_topics = np.array_split(np.arange(first, first + words), n)
    return tp.Topics.from_token_ids(
        {f"topic {number}": ids.tolist() for number, ids in enumerate(of_topics)}, vocabulary_size=vocabulary
    )


def random_documents(n: int, length: int, seed: int = 0) -> Iterator[list[int]]:
    """Documents that are nowhere in memory at once."""
    generator = np.random.default_rng(seed)
    for _ in range(n):
        yield generator.integers(1_000, VOCABULARY, length).tolist()


def bare_tokenizer() -> Any:
    """That of MiniLM, which pads and cuts by itself."""
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.no_truncation()
    return tokenizer


# ---------------------------------------------------------------------------- memory


def measure_stream(n: int, folder: str) -> None:
    """In a process of its own: the memory after every twentieth of so many texts, while attention is measured."""
    held: list[float] = []

    def watched() -> Iterator[str]:
        for number, text in enumerate(different(n)):
            if number and number % (n // 20) == 0:
                held.append(memory("VmRSS"))
            yield text

    stream = Corpus.from_texts(watched).documents(bare_tokenizer())
    options = {"folder": folder, "part_size": 2_000} if folder else {}
    report = tp.measure_attention(bert(), some_topics(), stream, n_permutations=20, **options)
    assert report.provenance["documents"] == n
    print(json.dumps([*held, memory("VmRSS")]))


def flat_memory(n: int, folder: Path) -> None:
    """At most 1.05 × after the first tenth."""
    for name, place in (("one stream", ""), ("the same in parts", str(folder / "sums"))):
        start = perf_counter()
        held = json.loads(in_process("--stream", str(n), place))
        grown = max(held[2:]) / held[1]
        print(
            f"  {name:24s} {held[1]:5.0f} MB after {n // 10:,} documents, at most {max(held[2:]):5.0f} MB up to {n:,}: "
            f"{told(grown, at_most=1.05)} ({n / (perf_counter() - start):,.0f} documents/s)"
        )


# ---------------------------------------------------------------------------- one long document


def long_document(repetitions: int) -> None:
    """At most 2 × the time of the same tokens in pieces, wherever a long document is taken."""
    tokenizer, model, topics = bare_tokenizer(), bert(), some_topics()
    words = " ".join(Corpus.bundled()).split()
    text = " ".join((words * 2)[: int(LONG / 1.3)])
    whole = next(iter(Corpus.from_texts([text]).documents(tokenizer)))
    ids = whole.ids.tolist()
    cut = list(Corpus.from_texts([text]).documents(tokenizer, max_length=PIECE, long="chunk"))
    texts = [tokenizer.decode(piece.ids[~piece.special].tolist()) for piece in cut]
    pieces = [ids[start : start + PIECE] for start in range(0, len(ids), PIECE)]
    chunk: dict[str, Any] = {"max_length": PIECE, "long": "chunk"}

    def count(documents: Any) -> int:
        return sum(len(document) for document in documents)

    def measure(documents: Any, **options: Any) -> None:
        tp.measure_attention(model, topics, documents, n_permutations=20, **options)

    sides: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "read whole": (
            lambda: count(Corpus.from_texts([text]).documents(tokenizer)),
            lambda: count(Corpus.from_texts(texts).documents(tokenizer)),
        ),
        "read and cut": (
            lambda: count(Corpus.from_texts([text]).documents(tokenizer, **chunk)),
            lambda: count(Corpus.from_texts(texts).documents(tokenizer, **chunk)),
        ),
        "encode_texts": (
            lambda: count(tp.encode_texts([text], tokenizer)),
            lambda: count(tp.encode_texts(texts, tokenizer)),
        ),
        "measured, of ids": (lambda: measure([ids], **chunk), lambda: measure(pieces)),
        "measured, of a document": (lambda: measure([whole], **chunk), lambda: measure(cut)),
        "measured, its beginning": (lambda: measure([whole], max_length=PIECE), lambda: measure(cut[:1])),
    }
    print(f"  {len(ids):,} tokens as one document, beside {len(cut)} pieces of {PIECE}")
    for name, (as_one, as_pieces) in sides.items():
        found = medians({"one": as_one, "pieces": as_pieces}, repetitions, process_time)
        ratio = found["one"] / found["pieces"]
        print(f"  {name:24s} {found['one']:6.2f} s, {found['pieces']:6.2f} s: {told(ratio, at_most=2.0)}")


# ---------------------------------------------------------------------------- many topics


def many_topics() -> None:
    """Everything that is asked of topics, in less than a minute together."""
    torch.manual_seed(0)
    steps: dict[str, float] = {}

    def timed(name: str, run: Callable[[], Any]) -> Any:
        start = process_time()
        found = run()
        steps[name] = process_time() - start
        return found

    # Rows that overlap in memory, and yet are all different: as a table they would be 5 GB.
    drawn = np.random.default_rng(0).random(LARGE_VOCABULARY + TOPICS, dtype=np.float32) ** 8
    phi = np.lib.stride_tricks.sliding_window_view(drawn, LARGE_VOCABULARY)[:TOPICS]
    timed("from a matrix", lambda: tp.Topics.from_matrix(phi, fraction=0.0002))
    words = LARGE_VOCABULARY - 2_000
    topics = timed("from ids", lambda: some_topics(LARGE_VOCABULARY, TOPICS, 2_000, words))
    model = bert(vocab_size=LARGE_VOCABULARY, hidden_size=64)
    timed("embeddings", lambda: tp.measure_embeddings(model, topics))
    generator = np.random.default_rng(0)
    documents = generator.integers(0, LARGE_VOCABULARY, (500, 128)).tolist()
    timed("attention, 500 documents", lambda: tp.measure_attention(model, topics, documents))
    shown = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in steps.items())
    print(f"  {TOPICS:,} topics of a vocabulary of {LARGE_VOCABULARY:,}: {shown}")
    print(f"  {'together':24s} {told(sum(steps.values()) / 60, at_most=1.0)} minutes")


# ---------------------------------------------------------------------------- linear, and by processes


def linear(n: int, repetitions: int) -> None:
    """Ten times as many documents take ten times as long, within 5 %."""
    model, topics = tp.open_model(bert()), some_topics()

    def measure(n: int) -> None:
        tp.measure_attention(model, topics, random_documents(n, 32), special_ids=())

    measure(n // 10)
    found = medians({"n": lambda: measure(n), "10 n": lambda: measure(10 * n)}, repetitions, process_time)
    ratio = found["10 n"] / found["n"] / 10
    print(f"  {n:,} documents {found['n']:.1f} s, {10 * n:,} documents {found['10 n']:.1f} s")
    print(f"  {'time ÷ 10 × time':24s} {told(ratio, at_most=1.05, at_least=0.95)}")


def measure_part(n: int, index: int, size: int, folder: str) -> None:
    """In a process of its own: a part of some documents, with what the measurement takes."""
    torch.set_num_threads(1)
    shape = {
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "hidden_size": 384,
        "intermediate_size": 1_536,
    }
    model, topics = tp.open_model(bert(**shape)), some_topics()
    documents = list(random_documents(n, 128))
    options = {"folder": folder, "part": (index, size), "part_size": 25}
    tp.measure_attention(model, topics, documents[:8], special_ids=(), n_permutations=20)
    clocks = perf_counter(), process_time()
    tp.measure_attention(model, topics, documents, special_ids=(), n_permutations=20, **options)
    print(json.dumps([perf_counter() - clocks[0], process_time() - clocks[1]]))


def processes(n: int, folder: Path) -> None:
    """Two processes are at least 1.8 × as fast as one, where each has a core for itself."""
    ((wall, used),) = at_once(n, 1, str(folder / "one"))
    both = at_once(n, 2, str(folder / "two"))
    walls, useds = zip(*both, strict=True)
    shares = used / wall, sum(useds) / max(walls)
    print(
        f"  {'in one folder':24s} by processor time of the busier one {told(used / max(useds), at_least=1.8)}, on the "
        f"wall {wall / max(walls):.2f} × (with {shares[0]:.0%} of a core for one, {shares[1]:.0%} for the two)"
    )


def at_once(n: int, size: int, folder: str) -> list[list[float]]:
    """Seconds on the wall and of the processor of every process."""
    started = [
        subprocess.Popen(
            command("--part", str(n), str(index), str(size), folder),
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for index in range(size)
    ]
    return [json.loads(process.communicate()[0]) for process in started]


# ---------------------------------------------------------------------------- all of it


def command(*arguments: str) -> list[str]:
    return [sys.executable, __file__, *arguments]


def in_process(*arguments: str) -> str:
    return subprocess.run(command(*arguments), check=True, capture_output=True, text=True).stdout


def told(ratio: float, *, at_most: float = np.inf, at_least: float = 0.0) -> str:
    """A ratio beside what was wanted of it."""
    bounds = [f"at least {at_least:g}"] * (at_least > 0) + [f"at most {at_most:g}"] * bool(
        np.isfinite(at_most)
    )
    met = "met" if at_least <= ratio <= at_most else "NOT met"
    return f"{ratio:.2f} × ({' and '.join(bounds)}: {met})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="*", help="memory, long, topics, linear, processes; by default all")
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--stream", nargs=2, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--part", dest="of_process", nargs=4, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.stream:
        measure_stream(int(options.stream[0]), options.stream[1])
        return
    if options.of_process:
        n, index, size, folder = options.of_process
        measure_part(int(n), int(index), int(size), folder)
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        parts: dict[str, tuple[str, Callable[[], None]]] = {
            "memory": ("memory of a stream", lambda: flat_memory(options.documents, folder)),
            "long": ("one long document", lambda: long_document(options.repetitions)),
            "topics": ("many topics", many_topics),
            "linear": (
                "ten times the documents",
                lambda: linear(options.documents // 50, options.repetitions),
            ),
            "processes": ("two processes", lambda: processes(options.documents // 400, folder)),
        }
        for name, (heading, run) in parts.items():
            if name in (options.part or parts):
                print(heading, flush=True)
                run()


if __name__ == "__main__":
    main()
