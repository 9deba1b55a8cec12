"""Documents per second of counting co-occurrence against the bare tokenised stream, and against a double loop.

Run with ``python tests/benchmarks/cooccurrence.py``. Overlapping slices of the articles inside gensim, tokenized by the
tokenizer of all-MiniLM-L6-v2 and kept in a cache, so that the stream is as fast as it can be. Medians of interleaved
repetitions.
"""

import argparse
import sys
from itertools import combinations_with_replacement, islice
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
sys.path.insert(0, str(Path(__file__).parent))

from corpus import LETTERS, count, medians, slices
from real_text import minilm_folder
from transformers import AutoTokenizer

from topic_probe.text.cooccurrence import count_cooccurrence
from topic_probe.text.corpus import Corpus
from topic_probe.text.lda import word_ids

IN_DOUBLE_LOOP = 100


def double_loop(documents: Any, words: set[int]) -> int:
    """Pair by pair, with a dictionary: what counting costs without arrays."""
    counts: dict[tuple[int, int], int] = {}
    for document in islice(documents, IN_DOUBLE_LOOP):
        for pair in combinations_with_replacement(sorted(words & set(document.ids.tolist())), 2):
            counts[pair] = counts.get(pair, 0) + 1
    return len(counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=5_000)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    tokenizer.backend_tokenizer.no_padding()
    words = word_ids(tokenizer).numpy()
    few = np.sort(np.random.default_rng(0).choice(words, 1_500, replace=False))
    corpus = Corpus.from_texts(slices(options.documents))
    documents = list(corpus.documents(tokenizer))
    found = medians(
        {
            "bare tokenizer": lambda: count(corpus.documents(tokenizer)),
            "bare documents": lambda: count(documents),
            "1,500 words": lambda: count_cooccurrence(documents, few),
            "5,900 most frequent words": lambda: count_cooccurrence(documents, words, max_words=5_900),
            f"double loop ({IN_DOUBLE_LOOP})": lambda: double_loop(documents, set(words.tolist())),
        },
        options.repetitions,
    )
    print(f"\n{options.documents:,} documents of {LETTERS:,} letters, {len(words):,} words in the vocabulary")
    for name, seconds in found.items():
        n = IN_DOUBLE_LOOP if "loop" in name else options.documents
        print(f"  {name:28s} {n / seconds:8,.0f} documents/s")


if __name__ == "__main__":
    main()
