"""Token ids of a corpus on disk, so that a second pass need not tokenize again.

A store is a folder of numbered shards, each whole or absent, of some thousand documents. Every shard says how far
the corpus was read when it was written and what was counted until then, so a pass that was interrupted is taken up
where its last shard ends. A shard holds safetensors and JSON, never a pickle.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from topic_probe.notices import warn
from topic_probe.storage import load, save
from topic_probe.text.documents import Counts, Document
from topic_probe.topics.vocabulary import tokenizer_hash

_KIND = "token ids"
TOKENS_PER_SHARD = 1_000_000


@dataclass(frozen=True)
class Progress:
    """How far a corpus was read, and what was counted until then.

    Attributes:
        part: The part of the source that is being read.
        place: Entries of the part that were read.
        counts: What was read and left out.
        finished: Whether the corpus was read to its end.
    """

    part: int = 0
    place: int = 0
    counts: Counts = field(default_factory=Counts)
    finished: bool = False


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
                warn(f"a cached shard is made again, because it cannot be used: {error}", stacklevel=2)
                self._damaged = folder
                return
            self._n_shards += 1
            yield documents, progress
            if progress.finished:
                return

    def add(self, documents: Sequence[Document], progress: Progress) -> None:
        """Keep documents for the next shard, and write it when it is full or the corpus ends."""
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
                content = {
                    "key": self.key,
                    "progress": {**vars(progress), "counts": progress.counts.summary()},
                }
                save(folder, _KIND, content, _arrays(self._waiting), overwrite=True)
        except OSError as error:
            warn(f"going on without a cache, which cannot be written: {error}", stacklevel=2)
            self._writable = False
        self._n_shards += 1
        self._n_waiting = 0
        self._waiting = []

    def _shard(self, number: int) -> Path:
        return self.folder / f"{number:06d}"


def _arrays(documents: Sequence[Document]) -> dict[str, np.ndarray]:
    """What a shard holds of its documents, which all come from one encoder."""
    words = [document.word_index for document in documents if document.word_index is not None]
    special = [document.special for document in documents if document.special is not None]
    assert len(words) == len(special) == len(documents)
    return {
        "lengths": np.array([len(document) for document in documents], dtype=np.int64),
        "ids": _smallest(_joined([document.ids for document in documents])),
        "special": _joined(special).astype(bool),
        "words": _smallest(_joined(words) + 1),  # from -1 on, so one more fits the unsigned numbers
        "sources": np.array([document.origin for document in documents], dtype=np.int64),
    }


def _read(folder: Path, key: str) -> tuple[list[Document], Progress]:
    saved = load(folder, _KIND)
    if saved.content.get("key") != key:
        raise ValueError(f"{folder} holds no token ids of this corpus")
    arrays = saved.arrays
    ids, words = (torch.from_numpy(arrays[name].astype(np.int64)) for name in ("ids", "words"))
    special = torch.from_numpy(arrays["special"])
    stops = np.cumsum(arrays["lengths"]).tolist()
    documents = []
    for start, stop, source in zip([0, *stops], stops, arrays["sources"].tolist(), strict=False):
        part = slice(start, stop)
        # Copies, because a slice that someone keeps would hold the whole shard in memory.
        documents.append(Document(ids[part].clone(), words[part] - 1, special[part].clone(), source))
    progress = saved.content["progress"]
    return documents, Progress(**{**progress, "counts": Counts.of(progress["counts"])})


def _joined(parts: Sequence[torch.Tensor]) -> np.ndarray:
    joined: np.ndarray = torch.cat(list(parts)).numpy() if parts else np.zeros(0, dtype=np.int64)
    return joined


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
        "words": "read off the text",  # no longer the tokenizer's own word numbers
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
