"""Which of the documents that all processes were given each of them measures, and whether these were the same ones.

Sums of shares of different streams are those of no stream, so before processes measure they compare what is known of
their documents at once, and before they add up their sums what has gone by: also what other shares had of it.
"""

from collections.abc import Iterator, Sized
from itertools import chain, islice
from typing import Any

from topic_probe.measure.processes import Processes, numbered
from topic_probe.text.corpus import DocumentStream
from topic_probe.text.documents import Document, Seen, read_documents

# So many documents are compared before anything is measured.
_FIRST = 64


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
            first.add(_content(document))
        return {"number of documents": self._length, "first documents": vars(first)}

    def __iter__(self) -> Iterator[Document]:
        for number, document in enumerate(chain(self._first, self._stream)):
            self.seen.add(_content(document))
            if number % self.processes.size == self.processes.index:
                yield document


def _content(document: Document) -> bytes:
    """All that a document holds, for a hash."""
    parts = (document.ids, document.word_index, document.special)
    arrays = [b"-" if part is None else part.numpy().tobytes() for part in parts]
    return b"|".join([*arrays, repr(document.source).encode()])


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
