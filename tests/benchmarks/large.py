"""What a large run must not do: grow, become slower by the document, or choke on one long text or on many topics.

Run with ``make bench``; a name behind it (``large.py memory``) runs one part. Models are tiny, so that what is timed is
reading, cutting, scoring and adding up. Times are processor time of one thread, both sides of a ratio in one process.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, BertConfig, BertModel

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from real_text import minilm_folder

import topic_probe as tp

VOCABULARY, LONG, PIECE, LETTERS = 30_522, 100_000, 256, 100
TOPICS, LARGE_VOCABULARY = 5_000, 250_000


def bert(**sizes: int) -> Any:
    """A BERT of random weights, by default a tiny one."""
    torch.manual_seed(0)
    tiny = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 16}
    return BertModel(BertConfig(**tiny | sizes), add_pooling_layer=False).eval()


def some_topics(vocabulary: int = VOCABULARY, n: int = 100, words: int = 5_000) -> tp.Topics:
    """So many topics of equally many words."""
    of_topics = np.array_split(np.arange(2_000, 2_000 + words), n)
    lists = {f"topic {number}": ids.tolist() for number, ids in enumerate(of_topics)}
    return tp.Topics.from_token_ids(lists, vocabulary_size=vocabulary)


def seconds(run: Any) -> float:
    start = process_time()
    run()
    return process_time() - start


def memory_of_stream(n: int) -> list[float]:
    """In a process of its own: megabytes after every twentieth of so many short texts that are all different."""
    text, held = " ".join(tp.Corpus.bundled()), []

    def megabytes() -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024

    def watched() -> Iterator[str]:
        for number, start in enumerate(np.linspace(0, len(text) - LETTERS, n).astype(int)):
            if number and number % (n // 20) == 0:
                held.append(megabytes())
            yield text[start : start + LETTERS]

    stream = tp.Corpus.from_texts(watched).documents(AutoTokenizer.from_pretrained(minilm_folder()))
    tp.measure_attention(bert(), some_topics(), stream, n_permutations=20)
    return held


def memory(n: int) -> None:
    command = [sys.executable, __file__, "--stream", str(n)]
    held = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(f"  {held[1]:.0f} MB after {n // 10:,} texts, later {told(max(held[2:]) / held[1], at_most=1.05)}")


def long(_: int) -> None:
    """One text of a hundred thousand tokens beside the same tokens in pieces."""
    tokenizer, model, topics = AutoTokenizer.from_pretrained(minilm_folder()), bert(), some_topics()
    words = " ".join(tp.Corpus.bundled()).split()
    corpus = tp.Corpus.from_texts([" ".join((words * 2)[: int(LONG / 1.3)])])
    options: dict[str, Any] = {"max_length": PIECE, "long": "chunk"}
    whole, pieces = list(corpus.documents(tokenizer)), list(corpus.documents(tokenizer, **options))
    texts = tp.Corpus.from_texts([tokenizer.decode(piece.ids[~piece.special]) for piece in pieces])
    both = [seconds(lambda one=one: list(one.documents(tokenizer))) for one in (corpus, texts)]
    print(f"  {len(whole[0]):,} tokens, read: {told(both[0] / both[1], at_most=2)}")
    measure = [
        seconds(lambda one=one: tp.measure_attention(model, topics, one, n_permutations=20, **options))
        for one in (whole, pieces)
    ]
    print(f"  measured in pieces of {PIECE}: {told(measure[0] / measure[1], at_most=2)}")


def topics(_: int) -> None:
    """Everything that is asked of many topics of many words, in less than a minute together."""
    # Rows that overlap in memory, and yet are all different: as a table they would be 5 GB.
    drawn = np.random.default_rng(0).random(LARGE_VOCABULARY + TOPICS, dtype=np.float32) ** 8
    phi = np.lib.stride_tricks.sliding_window_view(drawn, LARGE_VOCABULARY)[:TOPICS]
    many = some_topics(LARGE_VOCABULARY, TOPICS, LARGE_VOCABULARY - 2_000)
    model = bert(vocab_size=LARGE_VOCABULARY, hidden_size=64)
    documents = np.random.default_rng(0).integers(0, LARGE_VOCABULARY, (500, 128)).tolist()
    found = {
        "from a matrix": seconds(lambda: tp.Topics.from_matrix(phi, fraction=0.0002)),
        "embeddings": seconds(lambda: tp.measure_embeddings(model, many)),
        "attention": seconds(lambda: tp.measure_attention(model, many, documents)),
    }
    print(f"  {', '.join(f'{name} {taken:.1f} s' for name, taken in found.items())}")
    print(f"  together {told(sum(found.values()) / 60, at_most=1)} a minute")


def linear(n: int) -> None:
    """Ten times as many documents take ten times as long, within 5 %."""
    model, some, generator = tp.open_model(bert()), some_topics(), np.random.default_rng(0)

    def measure(n: int) -> None:
        documents = (generator.integers(1_000, VOCABULARY, 32).tolist() for _ in range(n))
        tp.measure_attention(model, some, documents, special_ids=())

    measure(n // 100)
    few, many = (seconds(lambda size=size: measure(size)) for size in (n // 50, n // 5))
    print(f"  {n // 5:,} documents beside {n // 50:,}: {told(many / few, at_most=10.5)} the time")


def told(ratio: float, *, at_most: float) -> str:
    """A ratio beside what was wanted of it."""
    return f"{ratio:.2f} × (at most {at_most:g}: {'met' if ratio <= at_most else 'NOT met'})"


PARTS = {part.__name__: part for part in (memory, long, topics, linear)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="*", choices=[[], *PARTS], help="by default all")
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--stream", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.stream:
        print(json.dumps(memory_of_stream(options.stream)))
        return
    for name in options.part or PARTS:
        print(name, flush=True)
        PARTS[name](options.documents)


if __name__ == "__main__":
    main()
