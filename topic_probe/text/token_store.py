"""Token ids of a corpus on disk, so that a second pass need not tokenize again.

A store is a folder of numbered shards, each whole or absent, of some thousand documents. Every shard says how far
the corpus was read when it was written and what was counted until then, so a pass that was interrupted is taken up
where its last shard ends.
"""

import hashlib
import json
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from topic_probe import storage
from topic_probe.text.batches import Document
from topic_probe.topics.vocabulary import tokenizer_hash

_KIND, _SCHEMA = "token ids", 1
TOKENS_PER_SHARD = 1_000_000


@dataclass(frozen=True)
class Progress:
    """How far a corpus was read, and what was counted until then.

    Attributes:
        part: The part of the source that is being read.
        place: Entries of the part that were read.
        texts: Entries read, those included that are no text.
        documents: Documents that came of them.
        tokens: Tokens of these, special ones included.
        left_out: Reason -> how many texts, documents or tokens were left out or changed for it.
        finished: Whether the corpus was read to its end.
    """

    part: int = 0
    place: int = 0
    texts: int = 0
    documents: int = 0
    tokens: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    finished: bool = False

    def plus(self, documents: Sequence[Document], *, texts: int, left_out: Mapping[str, int]) -> "Progress":
        """Further on by some documents, which came from so many texts."""
        return replace(
            self,
            texts=self.texts + texts,
            documents=self.documents + len(documents),
            tokens=self.tokens + sum(map(len, documents)),
            left_out=dict(Counter(self.left_out) + Counter(left_out)),
        )

    def summary(self) -> dict[str, Any]:
        """The counts, for a provenance."""
        return {
            "texts": self.texts,
            "documents": self.documents,
            "tokens": self.tokens,
            "left_out": dict(sorted(self.left_out.items())),
        }


class TokenStore:
    """The shards of one corpus, tokenizer and set of options, in a folder named by the hash of these.

    A disk that is full or may not be written, or a damaged shard, costs a warning and the benefit, nothing else.
    """

    def __init__(self, cache: str | os.PathLike[str], facts: Mapping[str, Any]) -> None:
        self.key = self.key_of(facts)
        self.folder = Path(cache).expanduser() / self.key[:32]
        self._waiting: list[Document] = []
        self._n_waiting = self._n_shards = 0
        self._damaged: Path | None = None
        self._writable = True

    @staticmethod
    def key_of(facts: Mapping[str, Any]) -> str:
        """The hash of a corpus, tokenizer and set of options."""
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def shards(self) -> Iterator[tuple[list[Document], Progress]]:
        """The documents of every shard that is there, with the progress at its end, from the first on."""
        while (folder := self._shard(self._n_shards)).exists():
            try:
                documents, progress = _read(folder, self.key)
            except (ValueError, OSError, KeyError, TypeError) as error:
                warnings.warn(
                    f"a cached shard is made again, because it cannot be used: {error}", stacklevel=2
                )
                self._damaged = folder
                return
            self._n_shards += 1
            yield documents, progress
            if progress.finished:
                return

    def add(self, documents: Sequence[Document], progress: Progress) -> None:
        """Take documents for the next shard, and write it when it is full or the corpus ends."""
        if not self._writable:
            return
        self._waiting += documents
        self._n_waiting += sum(map(len, documents))
        if self._n_waiting < TOKENS_PER_SHARD and not progress.finished:
            return
        folder = self._shard(self._n_shards)
        try:
            # A shard that another process wrote meanwhile is the same.
            if folder == self._damaged or not folder.exists():
                content = {"key": self.key, "progress": asdict(progress)}
                storage.save(folder, _KIND, content, _arrays(self._waiting), schema=_SCHEMA, overwrite=True)
        except OSError as error:
            warnings.warn(f"going on without a cache, which cannot be written: {error}", stacklevel=2)
            self._writable = False
        self._n_shards += 1
        self._n_waiting = 0
        self._waiting = []

    def _shard(self, number: int) -> Path:
        return self.folder / f"{number:06d}"


def _arrays(documents: Sequence[Document]) -> dict[str, np.ndarray]:
    """Documents as a few long arrays."""
    with_words = all(document.word_index is not None for document in documents)
    arrays = {
        "lengths": np.array([len(document) for document in documents], dtype=np.int64),
        "ids": _smallest(_joined([document.ids for document in documents])),
        "special": _joined([_or_zeros(document.special, len(document)) for document in documents]).astype(
            bool
        ),
    }
    if with_words:
        # From -1 on, so one more fits the unsigned numbers.
        words = _joined([document.word_index for document in documents if document.word_index is not None])
        arrays["words"] = _smallest(words + 1)
    return arrays


def _read(folder: Path, key: str) -> tuple[list[Document], Progress]:
    saved = storage.load(folder, _KIND, newest=_SCHEMA)
    if saved.content["key"] != key:
        raise ValueError(f"{saved.path} holds no token ids of this corpus")
    arrays = saved.arrays
    ids = torch.from_numpy(arrays["ids"].astype(np.int64))
    special = torch.from_numpy(arrays["special"])
    words = torch.from_numpy(arrays["words"].astype(np.int64) - 1) if "words" in arrays else None
    stops = np.cumsum(arrays["lengths"]).tolist()
    documents = []
    for start, stop in zip([0, *stops], stops, strict=False):
        part = slice(start, stop)
        # Copies, because a slice that someone keeps would hold the whole shard in memory.
        numbers = None if words is None else words[part].clone()
        documents.append(Document(ids[part].clone(), numbers, special[part].clone()))
    return documents, Progress(**saved.content["progress"])


def _joined(parts: Sequence[torch.Tensor]) -> np.ndarray:
    joined: np.ndarray = torch.cat(list(parts)).numpy() if parts else np.zeros(0, dtype=np.int64)
    return joined


def _or_zeros(special: torch.Tensor | None, length: int) -> torch.Tensor:
    return torch.zeros(length, dtype=torch.bool) if special is None else special


def _smallest(values: np.ndarray) -> np.ndarray:
    """The same whole numbers in the narrowest type, which makes a cache three times smaller."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


def tokenizer_identity(tokenizer: Any) -> str:
    """A hash that equals another one only if the tokenizers do the same to every text.

    Truncation and padding do not count, because they are set for every call.
    """
    facts: dict[str, Any] = {
        "class": type(tokenizer).__name__,
        "vocabulary": tokenizer_hash(tokenizer),
        "special": sorted(tokenizer.all_special_ids),
    }
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        facts["settings"] = getattr(tokenizer, "init_kwargs", {})
    else:
        from tokenizers import __version__

        rules = json.loads(backend.to_str())
        facts["rules"] = {
            name: value for name, value in rules.items() if name not in ("truncation", "padding")
        }
        facts["version"] = __version__
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
