"""Texts of `datasets`: of the hub, of a folder, or opened by someone else; whole, their beginning, or a sample."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as attribute
from functools import cached_property
from itertools import accumulate, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np

from topic_probe.notices import warn
from topic_probe.options import check_whole
from topic_probe.text.sources import Excluded, Source, field_of, hash_of_texts, is_transient


@dataclass(frozen=True)
class HubData(Source):
    """A field of a `datasets` data set: of the hub, of a folder, or one that is already open.

    A stream is sampled file by file: each gives the same number of records, one of every ``spread`` at random from
    its beginning on. Only so much is downloaded, and all of the data set has its share.
    """

    data: Any
    config: str | None = None
    split: str = "train"
    field: str = "text"
    revision: str | None = None
    n_documents: int | None = None
    seed: int | None = None
    spread: int = 10
    streaming: bool = True
    options: Mapping[str, Any] = attribute(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in (("n_documents", self.n_documents), ("spread", self.spread)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.seed is not None:
            check_whole("seed", self.seed, 0)
        if isinstance(self.data, str) and not self.data:
            raise ValueError("dataset must be a name or a folder, got ''")
        if self.seed is not None and self.n_documents is None:
            raise ValueError("seed draws a sample, so it needs n_documents as well")

    @cached_property
    def _opened(self) -> Any:
        data = _open(self) if isinstance(self.data, str | os.PathLike) else self.data
        if isinstance(data, Mapping):
            if self.split not in data:
                raise ValueError(f"the data set has no split {self.split!r}; it has {sorted(data)}")
            data = data[self.split]
        features = getattr(data, "features", None)
        if not callable(getattr(data, "select_columns", None)):
            raise TypeError(f"a `datasets` data set or its name is needed, got {type(data).__name__}")
        if features is None:
            return data
        if self.field not in features:
            raise ValueError(
                f"the data set has no field {self.field!r}; it has {sorted(features)}: name one with field="
            )
        kind = getattr(features[self.field], "dtype", type(features[self.field]).__name__)
        if kind not in ("string", "large_string", "null"):
            raise TypeError(f"the field {self.field!r} holds {kind}, a corpus needs texts")
        return data.select_columns([self.field])

    @property
    def _remote(self) -> bool:
        """Whether the data set is a name on the hub."""
        return isinstance(self.data, str | os.PathLike) and not Path(self.data).expanduser().exists()

    @property
    def _streams(self) -> bool:
        # What is known without opening it works without a network, as a cache may have all the rest.
        return self.streaming if self._remote else not hasattr(self._opened, "select")

    @property
    def n_parts(self) -> int:
        """Files of a stream, of which each is read (and sampled) by itself; otherwise 1."""
        whole = self.n_documents is None or self.seed is not None
        return int(getattr(self._opened, "num_shards", 1)) if self._streams and whole else 1

    @property
    def n_entries(self) -> int | None:
        """Records of the data set or the sample; None for a stream that is read to its end."""
        if self._streams:
            return self.n_documents
        return len(self._opened) if self.n_documents is None else min(self.n_documents, len(self._opened))

    def read(self, part: int, start: int) -> Iterator[str | Excluded]:
        """The texts of a part without the first ``start``."""
        records = self._stream(part, start) if self._streams else self._rows(start)
        for place, record in enumerate(records, start):
            yield field_of(record, self.field, first=part == place == 0)

    def _rows(self, start: int) -> Iterator[Any]:
        data, n = self._opened.with_format(None), self.n_entries or 0
        if self.seed is not None:
            chosen = np.random.default_rng(self.seed).choice(len(data), n, replace=False)
            data = data.select(np.sort(chosen))
        # datasets refuses an empty selection at the very end.
        return iter(data.select(range(start, n)) if start < n else ())

    def _stream(self, part: int, start: int) -> Iterator[Any]:
        if self.n_parts == 1 and self.seed is None:
            left = None if self.n_documents is None else max(0, self.n_documents - start)
            return islice(self._opened.skip(start), left)
        if self.seed is None:
            return iter(self._file(part).skip(start))
        return self._sampled(part, start)

    def _file(self, part: int) -> Any:
        return self._opened.shard(num_shards=self.n_parts, index=part)

    def _sampled(self, part: int, start: int) -> Iterator[Any]:
        """Every so many records one, at places that only the seed and the part decide."""
        assert self.n_documents is not None
        file = int(np.random.default_rng(self.seed).permutation(self.n_parts)[part])
        wanted = self.n_documents // self.n_parts + (part < self.n_documents % self.n_parts)
        generator = np.random.default_rng([self.seed or 0, 1 + file])
        gaps = (int(generator.geometric(1 / self.spread)) for _ in repeat(None))
        places = (place - 1 for place in accumulate(islice(gaps, wanted)))
        chosen = next(ahead := islice(places, start, None), None)
        if chosen is None:
            return
        records = self._file(file).skip(chosen)
        for place, record in enumerate(records, chosen):
            if place == chosen:
                yield record
                if (chosen := next(ahead, None)) is None:
                    return
        warn(
            f"file {file} of the data set ended before its share of {wanted} records was found; a spread lower than "
            f"{self.spread} finds more",
            stacklevel=2,
        )

    def describe(self) -> dict[str, Any]:
        """Name, revision, field and sample."""
        named = isinstance(self.data, str | os.PathLike)
        return {
            "source": "datasets",
            "name": str(self.data) if named else type(self.data).__name__,
            "config": self.config,
            "split": self.split,
            "revision": self.revision,
            "field": self.field,
            "n_documents": self.n_documents,
            "seed": self.seed,
            "spread": self.spread if self.seed is not None else None,
        }

    def outline(self) -> dict[str, Any]:
        """Its description; a folder may have another name elsewhere."""
        return super().outline() | ({} if self._remote else {"name": None})

    def identity(self) -> str | None:
        """Hash of name, commit, field and sample; of all texts where they are on this machine; else None."""
        opened = not isinstance(self.data, str | os.PathLike)
        if not self._streams or not (self._remote or opened):
            return hash_of_texts(entry for part in range(self.n_parts) for entry in self.read(part, 0))
        commit = self.revision is not None and re.fullmatch("[0-9a-f]{40}", self.revision)
        if not commit or self.options:
            return None
        return hashlib.sha256(json.dumps(self.describe()).encode()).hexdigest()


def _open(wanted: HubData) -> Any:
    """The data set of a name or folder, or an error that says how to do without a network."""
    from datasets import load_dataset, load_from_disk

    path = Path(wanted.data).expanduser()
    if (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file():
        return load_from_disk(str(path))
    try:
        return load_dataset(
            str(path) if path.exists() else str(wanted.data),
            wanted.config,
            split=wanted.split,
            revision=wanted.revision,
            streaming=wanted.streaming,
            **wanted.options,
        )
    except FileNotFoundError:
        raise
    except Exception as error:
        if not is_transient(error):
            raise
        raise ConnectionError(
            f"the data set {wanted.data!s} cannot be reached ({error}). Without a network, Corpus.bundled() has real "
            "articles and Corpus.from_files reads your own; or download the data set on another machine "
            f"(hf download {wanted.data!s} --repo-type dataset --local-dir FOLDER) and pass the folder"
        ) from error
