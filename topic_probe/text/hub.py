"""Texts of `datasets`: of the hub, of a folder, or opened by someone else; whole, their beginning, or a sample."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as attribute
from functools import cached_property
from importlib.util import find_spec
from itertools import accumulate, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np

from topic_probe.notices import warn
from topic_probe.options import check_whole
from topic_probe.remote import Found, fetch, hub_error, is_transient, persistently, refusal
from topic_probe.text.sources import Excluded, Source, field_of


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
    def _asked(self) -> Found:
        """What the name means on the hub, asked once: a stream that is opened again is of the same commit."""
        token = self.options.get("token")
        return fetch(str(self.data), self.revision, kind="dataset", online=self.streaming, token=token)

    @property
    def _commit(self) -> str | None:
        """The commit of a data set of the hub, None where it is not known."""
        if not self._remote or (self.revision is not None and _COMMIT.fullmatch(self.revision)):
            return self.revision
        return self._asked.commit

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
        opened = self._opened  # where it cannot be opened, no stream broke
        in_files = self._streams and (self.n_documents is None or self.seed is not None)
        return int(getattr(opened, "num_shards", 1)) if in_files else 1

    @property
    def n_entries(self) -> int | None:
        """Records of the data set or the sample; None for a stream that is read to its end."""
        if self._streams:
            return self.n_documents
        return len(self._opened) if self.n_documents is None else min(self.n_documents, len(self._opened))

    def read(self, part: int, start: int) -> Iterator[str | Excluded]:
        """The texts of a part without the first ``start``."""
        records = self._stream(part, start) if self._streams else self._rows(start)
        try:
            for place, record in enumerate(records, start):
                yield field_of(record, self.field, first=part == place == 0)
        except Exception as error:
            broken = hub_error(error) if "_asked" in vars(self) else None
            if broken is None or is_transient(broken):
                raise
            raise refusal(broken, str(self.data), self.revision, kind="dataset") from error

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
        """Name, revision (of a branch its commit, once the hub was asked for it), field and sample."""
        named = isinstance(self.data, str | os.PathLike)
        asked: Found | None = vars(self).get("_asked")
        return {
            "source": "datasets",
            "name": str(self.data) if named else type(self.data).__name__,
            "config": self.config,
            "split": self.split,
            "revision": (asked and asked.commit) or self.revision,
            "field": self.field,
            "n_documents": self.n_documents,
            "seed": self.seed,
            "spread": self.spread if self.seed is not None else None,
        }

    @property
    def in_files(self) -> bool:
        """Whether files of a stream are read one by one, whole."""
        return self.seed is None and self.n_parts > 1

    def name(self, part: int = 0) -> dict[str, Any] | None:
        """Name, commit, field and sample of a stream of the hub; None where texts may be others next time.

        The hub is asked for the commit of a branch.
        """
        if not (self._remote and self._streams) or self.options:
            return None
        if (commit := self._commit) is None or not _COMMIT.fullmatch(commit):
            return None
        return {**self.describe(), "revision": commit}


_COMMIT = re.compile("[0-9a-f]{40}")


def _open(wanted: HubData) -> Any:
    """The data set of a name or folder."""
    from datasets import load_dataset, load_from_disk

    path = Path(wanted.data).expanduser()
    if (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file():
        return load_from_disk(str(path))
    if not path.exists() and not _is_kind_of_files(str(wanted.data)):
        return _open_remote(wanted, str(wanted.data))
    return load_dataset(
        str(path), wanted.config, split=wanted.split, revision=wanted.revision, streaming=wanted.streaming,
        **wanted.options,
    )  # fmt: skip


def _is_kind_of_files(name: str) -> bool:
    """Whether a name, such as "json", tells datasets how to read files that an option names."""
    return name.isidentifier() and find_spec(f"datasets.packaged_modules.{name}") is not None


def _open_remote(wanted: HubData, name: str) -> Any:
    """The data set of a name on the hub, of the commit that the name means, or an error that says what to do."""
    from datasets import load_dataset

    commit, _ = wanted._asked
    revision = commit or wanted.revision
    try:
        if wanted.streaming:
            return persistently(lambda: _stream(wanted, name, revision))
        whole = persistently(
            lambda: load_dataset(name, wanted.config, split=wanted.split, revision=revision, **wanted.options)
        )
    except Exception as error:
        broken = hub_error(error)
        if broken is None:
            raise
        raise refusal(broken, name, wanted.revision, kind="dataset") from error
    _check_commit(whole, name, revision)
    return whole


def _stream(wanted: HubData, name: str, revision: str | None) -> Any:
    """The files of a commit as a stream. ConnectionError for a copy: its parts are others, and so are its samples.

    Where the hub does not answer, datasets gives whatever copy it has.
    """
    from datasets import load_dataset_builder

    builder = load_dataset_builder(name, wanted.config, revision=revision, **wanted.options)
    if type(builder).__module__.endswith(".cache.cache"):
        raise ConnectionError(
            f"cannot stream {name!r}, because the Hugging Face hub does not answer. An earlier download is on this "
            "machine, which streaming=False reads; it draws other samples than a stream"
        )
    return builder.as_streaming_dataset(split=wanted.split)


def _check_commit(copy: Any, name: str, revision: str | None) -> None:
    """FileNotFoundError for a copy on this machine that is of another commit."""
    places = [Path(file["filename"]).parent.name for file in copy.cache_files]
    if revision is None or not _COMMIT.fullmatch(revision):
        return
    for commit in filter(_COMMIT.fullmatch, places):
        if commit != revision:
            raise FileNotFoundError(
                f"cannot load {name!r}: needed is commit {revision}, on this machine is {commit}, and the Hugging Face "
                f"hub does not answer. Take that one with revision={commit!r}, or try again with a network"
            )
