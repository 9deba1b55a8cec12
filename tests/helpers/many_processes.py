"""What several processes measure together: imported by a test, and run by torchrun, a program of the test's.

As a program it saves the reports and the words of the errors of every process in a folder, for the test to compare.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import cycle, islice
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import torch
from real_text import minilm_folder
from transformers import AutoTokenizer, BertConfig, BertModel

import topic_probe as tp
from topic_probe.measure import runs

VOCABULARY = 50
TOPICS = {"fruit": [5, 6, 7, 8, 20], "tools": [10, 11, 12, 13, 20], "birds": [30, 31, 32, 5]}
TEXTS = [
    f"the {animal} of {place}" for animal in ("frog", "toad", "duck") for place in ("water", "stone", "wood")
]


def model(vocabulary: int = VOCABULARY) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
        config = BertConfig(vocab_size=vocabulary, max_position_embeddings=64, initializer_range=0.3, **sizes)
        return BertModel(config).double().eval()


def topics() -> tp.Topics:
    return tp.Topics.from_token_ids(TOPICS, vocabulary_size=VOCABULARY)


def other_topics() -> tp.Topics:
    return tp.Topics.from_token_ids({"one": [5, 6, 10], "two": [30, 31]}, vocabulary_size=VOCABULARY)


def documents(n: int, seed: int = 0) -> list[list[int]]:
    words = [5, 6, 7, 8, 10, 11, 12, 13, 20, 30, 31, 32, 40, 41, 2]
    generator = np.random.default_rng(seed)
    found = [generator.choice(words, size=generator.integers(1, 24)).tolist() for _ in range(n)]
    return [[20, 40] if number % 10 == 3 else ids for number, ids in enumerate(found)]


def stream() -> Any:
    return tp.Corpus.from_texts(TEXTS).documents(AutoTokenizer.from_pretrained(minilm_folder()))


def text_topics() -> tp.Topics:
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    lists = {"animals": ["frog", "toad", "duck"], "places": ["water", "stone", "wood"]}
    return tp.Topics.from_word_lists(lists, tokenizer)


# What is measured: by one process in the test, by two processes here.
CASES: dict[str, Callable[..., Any]] = {
    "attention": lambda **more: tp.measure_attention(model(), topics(), documents(23), batch_size=4, **more),
    "one document": lambda **more: tp.measure_attention(model(), topics(), documents(1), **more),
    "no document": lambda **more: tp.measure_attention(model(), topics(), [], **more),
    "stream": lambda **more: tp.measure_attention(model(30_522), text_topics(), stream(), **more),
    "embeddings": lambda **more: tp.measure_embeddings(model(), topics(), documents(23), **more),
}


def endless(*, fails: bool) -> Iterator[list[int]]:
    """So many documents that nobody waits for their end, or an error after some of them."""
    yield from documents(40)
    if fails:
        raise OSError("the disk is gone")
    yield from islice(cycle(documents(40)), 20_000)


def failing(rank: int) -> dict[str, Callable[[], Any]]:
    """Calls of which that of process 1 fails, or that wait for a process which does something else."""
    ids = list(documents(60))
    ids[41] = [VOCABULARY + 7]  # in the share of process 1
    return {
        "bad id": lambda: tp.measure_attention(model(), topics(), ids, distributed=True),
        "endless": lambda: tp.measure_attention(
            model(), topics(), endless(fails=rank == 1), batch_size=1, distributed=True
        ),
        "absent": lambda: absent(rank),
    }


def absent(rank: int) -> None:
    """Process 1 joins, and then does something else for longer than the others wait."""
    runs._WAITING = timedelta(seconds=2)
    with runs.joined(True) as joined:
        if rank == 1:
            sleep(6)
            os._exit(1)
        joined.gather("here")


def not_fitting(rank: int) -> dict[str, Callable[[], Any]]:
    """Calls that are wrong in every process."""
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    share = tp.Corpus.from_texts(TEXTS).shard(2, 3).documents(tokenizer)
    return {
        "topics": lambda: tp.measure_attention(
            model(), topics() if rank else other_topics(), documents(60), distributed=True
        ),
        "share": lambda: tp.measure_attention(model(30_522), text_topics(), share, distributed=True),
    }


def in_each_process(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    for name, measure in CASES.items():
        measure(distributed=True).save(folder / f"{name} {rank}")
    told = {}
    for name, measure in not_fitting(rank).items():
        try:
            measure()
        except Exception as error:
            told[name] = f"{type(error).__name__}: {error}", 0.0
    checkpoint = folder / "checkpoint"
    first = CASES["attention"](distributed=True, checkpoint=checkpoint)
    again = CASES["attention"](distributed=True, checkpoint=checkpoint)
    told["same from its checkpoint"] = first == again, 0.0
    (folder / f"told {rank}.json").write_text(json.dumps(told))


def killed(folder: Path) -> None:
    """A measurement whose process is killed while it reads its 46th document."""

    def until_killed() -> Iterator[list[int]]:
        for number, document in enumerate(documents(60)):
            if number == 45:
                os.kill(os.getpid(), signal.SIGKILL)
            yield document

    options = {"batch_size": 1, "n_permutations": 20, "special_ids": {20}}
    tp.measure_attention(
        model(), topics(), until_killed(), checkpoint=folder, checkpoint_every=0.0, **options
    )


if __name__ == "__main__":
    name, place = sys.argv[1], Path(sys.argv[2])
    if name in (programs := {"in each process": in_each_process, "killed": killed}):
        programs[name](place)
    else:
        failing(int(os.environ["RANK"]))[name]()
