"""Who has which documents: shares of processes that know of each other, and shards that do not.

Processes take every n-th document, or what a corpus shares out. Shards take sources by blocks: a source falls by a hash
into one of 64, always the same one, and a shard has every n-th block, so nothing depends on how many shards there are.
"""

import os
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import chain, islice
from typing import Annotated, Any

from topic_probe.options import Group, check_whole
from topic_probe.processes import Processes, numbered
from topic_probe.text.corpus import DocumentStream
from topic_probe.text.documents import Document, Seen, check_ids, read_documents

# So many documents are compared between processes before anything is measured.
_FIRST = 64


# Sources fall into so many blocks, whatever the number of shards. A shard has whole blocks, so there are no more of
# them; every block has sums of its own, 10 MB for BERT-base with 200 permutations.
BLOCKS = 64


@dataclass(frozen=True)
class Shards(Group):
    """Which part of a run this is, where processes that know nothing of each other share it out."""

    shard: Annotated[
        Sequence[int] | None,
        "(i, n): measure the i-th of n shares of the sources, counted from 0 and at most 64, and leave the report of "
        "all to `topic_probe.merge_sums`. Every shard is given all documents, in the same order, reads them whole and "
        "keeps its own; what comes back is the report of these alone. Any n gives the same bits on one machine, so (0, "
        "1) is a single process; sums are kept by block, which takes 64 / n times their memory",
    ] = None
    sums: Annotated[
        str | os.PathLike[str] | None,
        "the folder where a shard saves its sums, in one of its own; all shards may be given the same",
    ] = None

    def __post_init__(self) -> None:
        if (self.shard is None) != (self.sums is None):
            given, missing = ("shard", "sums") if self.sums is None else ("sums", "shard")
            raise ValueError(
                f"{given}= came without {missing}=: a shard is (i, n), which of how many, with a folder for its sums; "
                "a single process is shard=(0, 1)"
            )
        if self.shard is None:
            return
        index, n = check_shard(self.shard, BLOCKS, "the blocks that sources fall into")
        object.__setattr__(self, "shard", (index, n))


def check_shard(shard: Sequence[int], most: int, of_what: str) -> tuple[int, int]:
    """Which of how many shares it is; ValueError for what is none, where there can be so many of them at most."""
    if len(shard) != 2:
        raise ValueError(f"shard must be (i, n), which of how many, got {tuple(shard)}")
    index, n = (check_whole("shard", number, 0) for number in shard)
    if not (1 <= n <= most and index < n):
        raise ValueError(
            f"shard must be (i, n) with i from 0 to n - 1 and n from 1 to {most}, {of_what}, got ({index}, {n}); job "
            "arrays that count from 1 need i - 1"
        )
    return index, n


def block_of(source: int, limit: int = 2**64) -> int:
    """The block of a source: sources that may come to share a row, because there are more than ``limit``, share it."""
    return source % 2**64 % limit % BLOCKS


class OwnDocuments:
    """The documents of a shard out of all documents, each with its block, and a hash of all of them."""

    def __init__(
        self,
        documents: Any,
        blocks: range,
        limit: int = 2**64,
        *,
        pad_id: int | None,
        vocabulary_size: int | None,
    ) -> None:
        self.documents, self.blocks, self.limit, self.seen = documents, blocks, limit, Seen()
        self.pad_id, self.vocabulary_size = pad_id, vocabulary_size

    def __iter__(self) -> Iterator[tuple[int, Document]]:
        for number, document in enumerate(read_documents(self.documents, pad_id=self.pad_id)):
            self.seen.add(document.content)
            block = block_of(document.origin, self.limit)
            if block in self.blocks:
                check_ids(document, number, self.vocabulary_size)
                yield block, document


# ---------------------------------------------------------------------------- shares of processes

# Sums of shares of different streams are those of no stream, so before processes measure they compare what is known of
# their documents at once, and before they add up their sums what has gone by: also what other shares had of it.


class EveryNth:
    """The share of one process in plain documents: every n-th one, with a hash of all of them."""

    def __init__(self, documents: Any, processes: Processes, pad_id: int | None) -> None:
        self.processes, self.seen = processes, Seen()
        self._stream = read_documents(documents, pad_id=pad_id)
        self._first = list(islice(self._stream, _FIRST))
        self._length = len(documents) if isinstance(documents, Sized) else None

    def outline(self) -> dict[str, Any]:
        """What is known of the documents before they are measured."""
        first = Seen()
        for document in self._first:
            first.add(document.content)
        return {"number of documents": self._length, "first documents": vars(first)}

    def __iter__(self) -> Iterator[Document]:
        for number, document in enumerate(chain(self._first, self._stream)):
            self.seen.add(document.content)
            if number % self.processes.size == self.processes.index:
                yield document


def share_of(documents: Any, processes: Processes, pad_id: int | None) -> Any:
    """What one process measures of the documents that all of them were given: every n-th one.

    A stream of a corpus is shared out by the corpus, which can hand out whole files. One whose corpus was split before
    is taken as the share of this process.
    """
    if processes.size == 1:
        return documents
    if not isinstance(documents, DocumentStream):
        return EveryNth(documents, processes, pad_id)
    corpus = documents.corpus
    if corpus.n_shards == 1:
        return documents.shard(processes.index, processes.size)
    if (corpus.shard_index, corpus.n_shards) != (processes.index, processes.size):
        raise ValueError(
            f"process {processes.index} of {processes.size} was given share {corpus.shard_index} of {corpus.n_shards} "
            "of the corpus: give every process the whole corpus, which is shared out here, or its own share"
        )
    return documents


def check_same_documents(share: Any, processes: Processes, *, read: bool) -> None:
    """ValueError if the documents that processes were given were not the same, in the same order.

    Args:
        share: what `share_of` has given this process.
        processes: those that compare.
        read: whether this one has read its documents to their end.
    """
    every: list[Seen | None] = processes.gather(share.seen if read else None)
    known = {number: seen for number, seen in enumerate(every) if seen is not None}
    first = min(known, default=0)
    differing = {number: seen.other_than(known[first]) for number, seen in known.items()}
    if odd := {number: how for number, how in differing.items() if how}:
        said = "; ".join(f"process {number} was given {how}" for number, how in islice(odd.items(), 4))
        raise ValueError(
            f"the documents of {numbered(list(odd))} are not those of process {first} ({said}), so there is no result: "
            "give all processes the same documents in the same order, which are shared out among them here"
        )
