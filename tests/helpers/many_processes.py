"""What several processes measure together: imported by a test, and run by torchrun, a program of the test's.

As a program it saves the reports and the words of the errors of every process in a folder, for the test to compare.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import torch
from real_text import minilm_folder
from transformers import AutoTokenizer, BertConfig, BertModel

import topic_probe as tp

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
    # Four documents of every article, two of them in either process.
    "articles": lambda **more: tp.measure_attention(
        model(), topics(), documents(36), groups=[number // 4 for number in range(36)], **more
    ),
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


def attention(ids: Any, **options: Any) -> Any:
    return tp.measure_attention(
        model(), topics(), ids, **{"batch_size": 1, "n_permutations": 20, "distributed": True, **options}
    )


def sent_signal(number: int) -> Iterator[list[int]]:
    """Documents in the midst of which this process gets a signal."""
    yield from documents(30)
    os.kill(os.getpid(), number)
    yield from islice(cycle(documents(40)), 20_000)


def failing(rank: int) -> dict[str, Callable[[], Any]]:
    """Calls of which that of the last process fails, or does something else."""
    ids = list(documents(60))
    ids[41] = [VOCABULARY + 7]  # in the share of process 1
    last = rank == int(os.environ.get("WORLD_SIZE", "1")) - 1
    return {
        "bad id": lambda: attention(ids),
        "endless": lambda: attention(endless(fails=last)),
        "killed at work": lambda: attention(sent_signal(signal.SIGKILL) if last else endless(fails=False)),
        "stopped": lambda: attention(
            sent_signal(signal.SIGSTOP) if last else endless(fails=False), patience=3.0
        ),
        "by itself": lambda: by_itself() if last else attention(documents(40), patience=3.0),
        "in a group of the user's": lambda: in_a_group(last),
    }


def by_itself() -> None:
    """Measures alone, and has still something to do when others have given it up."""
    attention(documents(40), distributed=False)
    sleep(10)


def in_a_group(last: bool) -> None:
    torch.distributed.init_process_group("gloo")
    attention(documents(4))
    by_itself() if last else attention(documents(40), patience=3.0)


def slowly(ids: list[list[int]], seconds: float) -> Iterator[list[int]]:
    """Documents that come after a while."""
    yield from ids[:20]
    sleep(seconds)
    yield from ids[20:]


def texts_of_files(folder: Path, *, backwards: bool) -> Any:
    """A corpus of so many files that processes share out whole ones."""
    paths = [folder / f"{number}.txt" for number, _ in enumerate(TEXTS)]
    for path, text in zip(paths, TEXTS, strict=True):
        path.write_text(text)
    return of_corpus(tp.Corpus.from_files(paths[::-1] if backwards else paths))


def of_corpus(corpus: Any, distributed: bool = True) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    return tp.measure_attention(
        model(30_522), text_topics(), corpus.documents(tokenizer), distributed=distributed
    )


def not_fitting(rank: int, folder: Path) -> dict[str, Callable[[], Any]]:
    """Calls that do not fit to those of the other process, and some that do after all."""
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    share = tp.Corpus.from_texts(TEXTS).shard(2, 3).documents(tokenizer)
    many, own = documents(301), folder / str(rank)
    own.mkdir(exist_ok=True)
    swapped, exchanged = [*many[:-2], many[-1], many[-2]], [*many[:-1], [5, 6]]
    return {
        "topics": lambda: tp.measure_attention(
            model(), topics() if rank else other_topics(), documents(60), distributed=True
        ),
        "share": lambda: tp.measure_attention(model(30_522), text_topics(), share, distributed=True),
        "n_permutations": lambda: attention(
            documents(9), n_permutations=100 if rank else 200, patience=3.0
        ).provenance["processes"],
        "confidence": lambda: tp.measure_embeddings(
            model(), topics(), documents(9), confidence=0.95 - rank / 20, distributed=True
        ).provenance["documents"]["processes"],
        "shuffled": lambda: attention(documents(301, seed=rank)),
        "shorter list": lambda: attention(many[: 100 if rank else 301]),
        "shorter": lambda: attention(iter(many[: 100 if rank else 301])),
        "other order": lambda: attention(iter(swapped if rank else many)),
        "other document": lambda: attention(iter(exchanged if rank else many)),
        "interrupted": lambda: attention(interrupted(many) if rank else iter(many)).provenance["options"],
        "texts": lambda: of_corpus(tp.Corpus.from_texts(TEXTS[::-1] if rank else TEXTS)),
        "later texts": lambda: of_corpus(tp.Corpus.from_texts([*TEXTS, *(TEXTS[:2][:: -1 if rank else 1])])),
        "files": lambda: texts_of_files(own, backwards=rank == 1),
        "same files": lambda: texts_of_files(own, backwards=False).provenance["processes"],
        "caught": lambda: attention(endless(fails=rank == 1)),
        "slow": lambda: attention(slowly(many, 8.0 * rank), patience=3.0).provenance["processes"],
    }


def interrupted(ids: list[list[int]]) -> Iterator[list[int]]:
    """Documents in the midst of which somebody presses Ctrl-C."""
    yield from ids[:100]
    raise KeyboardInterrupt


def in_each_process(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    for name, measure in CASES.items():
        measure(distributed=True).save(folder / f"{name} {rank}")
    told = {}
    kept = []  # as a notebook keeps the last error, with all that it holds
    for name, measure in not_fitting(rank, folder).items():
        start = monotonic()
        try:
            told[name] = measure(), 0.0
        except Exception as error:
            kept.append(error)
            told[name] = f"{type(error).__name__}: {error}", monotonic() - start
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


def measure_shard(folder: Path, *, kept: bool, killed_at: int | None = None) -> None:
    """The sums of a shard in a folder; where it is killed, while it reads that document."""

    def until_killed() -> Iterator[list[int]]:
        for number, document in enumerate(documents(400)):
            if number == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield document

    options = {"checkpoint": folder / "kept", "checkpoint_every": 0.0} if kept else {}
    tp.measure_attention(
        model(),
        topics(),
        until_killed(),
        batch_size=1,
        n_permutations=5,
        shard=(1, 3),
        sums=folder / "sums",
        **options,
    )


def killed_shard(folder: Path) -> None:
    """One that is killed behind two thirds of its documents."""
    torch.set_num_threads(1)
    measure_shard(folder, kept=sys.argv[3] == "1", killed_at=270)


def left_alone(folder: Path) -> None:
    """What processes that nobody watches over say when the last one of them fails, in a file for each of them.

    They are forked, all at once, because it takes seconds to import what they need.
    """
    sizes = {name: 3 if name == "killed at work" else 2 for name in failing(0) if name != "endless"}
    children: dict[str, list[int]] = {name: [] for name in sizes}
    # Below the ports that systems give to whoever asks for any.
    for port, (name, size) in enumerate(sizes.items(), 20_000 + 5 * (os.getpid() % 2_000)):
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        for rank in range(size):
            if (child := os.fork()) == 0:
                os.environ |= {**place, "WORLD_SIZE": str(size), "RANK": str(rank)}
                os.dup2(os.open(folder / f"{name} {rank}", os.O_WRONLY | os.O_CREAT), sys.stderr.fileno())
                fails(name)
            children[name].append(child)
    for *others, last in children.values():
        for child in others:
            os.waitpid(child, 0)
        os.kill(last, signal.SIGKILL)  # it may have something else to do
        os.waitpid(last, 0)


def fails(name: str) -> None:
    """Ends this process after the call of this name, as a program would."""
    torch.set_num_threads(1)
    try:
        failing(int(os.environ["RANK"]))[name]()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    os._exit(1)


if __name__ == "__main__":
    name, place = sys.argv[1], Path(sys.argv[2])
    programs = {
        "in each process": in_each_process, "killed": killed, "killed shard": killed_shard, "left alone": left_alone,
    }  # fmt: skip
    if name in programs:
        programs[name](place)
    else:
        failing(int(os.environ["RANK"]))[name]()
