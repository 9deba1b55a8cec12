"""Topics that several processes fit together: imported by a test, and run by torchrun, a program of the test's."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import topic_probe as tp

WORDS = [f"{one}{other}" for one in ("frog", "toad", "newt", "pond") for other in "abcdefghijklmnopqrst"]


def tokenizer() -> Any:
    return tp.word_tokenizer([" ".join(WORDS)])


def documents(seed: int = 0, n: int = 290) -> list[list[int]]:
    """Documents of no topic at all."""
    generator = np.random.default_rng(seed)
    ids = np.array(tokenizer().convert_tokens_to_ids(WORDS))
    return [generator.choice(ids, size=generator.integers(1, 40)).tolist() for _ in range(n)]


def texts() -> list[str]:
    return [" ".join(tokenizer().convert_ids_to_tokens(ids)) for ids in documents()]


def fit(own: Any = None, **options: Any) -> tp.TopicFit:
    chosen = {"n_topics": 6, "passes": 2, "chunk_size": 100, "stop_words": (), **options}
    return tp.fit_topics(documents() if own is None else own, tokenizer(), **chosen)


def of_files(folder: Path, **options: Any) -> tp.TopicFit:
    """Of so many files that two processes share out whole ones."""
    paths = [folder / f"{number}.txt" for number in range(9)]
    for number, path in enumerate(paths):
        if not path.exists():
            path.write_text("\n".join(texts()[number::9]))
    corpus = tp.Corpus.from_files(paths, split="line")
    return fit(corpus.documents(tokenizer(), max_length=20, long="chunk"), **options)


# What is fitted: by one process in the test, by two processes here.
CASES = {
    "lists": lambda folder, **more: fit(**more),
    "stream": lambda folder, **more: fit(tp.Corpus.from_texts(texts()).documents(tokenizer()), **more),
    "files": of_files,
}  # fmt: skip


def with_bad_id() -> Iterator[list[int]]:
    yield from documents()[:101]  # the next one is the 51st of process 1, and so its document 50
    yield [999]


def interrupted_by_itself() -> tp.TopicFit:
    """A fit in the midst of which this process gets a Ctrl-C."""
    from topic_probe.text import variational

    infer = variational.SharedLda._infer

    def infer_until(self: Any, *args: Any) -> Any:
        if self.n_chunks == 7 and self.processes.index == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return infer(self, *args)

    variational.SharedLda._infer = infer_until  # type: ignore[method-assign]
    found = fit(distributed=True, passes=50)
    variational.SharedLda._infer = infer  # type: ignore[method-assign]
    return found


if __name__ == "__main__":
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    for name, case in CASES.items():
        case(folder, distributed=True).save(folder / f"{name} {rank}")
    tp.count_cooccurrence(documents(), range(5, 85), distributed=True).save(folder / f"counts {rank}")
    interrupted_by_itself().save(folder / f"interrupted {rank}")
    try:
        fit(with_bad_id() if rank else iter(documents()), distributed=True)
    except Exception as error:
        (folder / f"failed {rank}").write_text(f"{type(error).__name__}: {error}")
