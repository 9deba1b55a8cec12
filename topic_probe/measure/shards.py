"""Shards: parts of a measurement that know nothing of each other, until `merge_sums` adds up what they have saved.

Whatever starts processes (a shell, a job array, datatrove, torchrun) gives each the number of its shard. Sources fall
by a hash into blocks, always the same ones, and a shard has every n-th block. Batches hold documents of one block, sums
are kept block by block, and blocks are added up in their order: so nothing depends on which shard a block is in, and
any number of shards gives the bits of one process. This costs the sums of every block, and a few documents of each that
wait for more of it, so a measurement without shards does not go by blocks; its numbers differ from these by rounding.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from topic_probe import storage
from topic_probe.contrast import SourceSums
from topic_probe.measure.accumulators import Progress, Sum
from topic_probe.measure.options import BLOCKS, Shards
from topic_probe.measure.runs import differing_facts, to_arrays
from topic_probe.report import encode
from topic_probe.text.cooccurrence import Cooccurrence
from topic_probe.text.corpus import DocumentStream
from topic_probe.text.documents import Document, Seen, check_ids, read_documents
from topic_probe.topics import Topics

SUMS, OF_BLOCK, PARTS = "sums of a shard", "sums of a block", "parts of a report"

# Documents of a block wait until there are so many batches of them, which are then sorted by length, or so many tokens:
# enough for little padding, few enough for all blocks to wait at once.
_BATCHES_THAT_WAIT, _TOKENS_THAT_WAIT = 8, 2**16

# What is no number, text or array, and saves itself.
SAVED: Mapping[str, Any] = {"topics": Topics, "co-occurrence": Cooccurrence}


@dataclass(frozen=True)
class Share:
    """One of the shards of a measurement: what it has of the sources, and where it leaves its sums.

    Attributes:
        index: its number, from 0.
        n: how many there are.
        folder: where all of them may leave their sums.
        kind: of the report.
        parts: what the report is made of, beside sums and what is known of the documents.
        options: what its numbers depend on, beside the sums.
    """

    index: int
    n: int
    folder: Path
    kind: str
    parts: Mapping[str, Any]
    options: Mapping[str, Any]

    @classmethod
    def of(
        cls, shards: Shards, kind: str, parts: Mapping[str, Any], options: Mapping[str, Any]
    ) -> "Share | None":
        """The shard that was asked for; None where none was."""
        if shards.shard is None or shards.sums is None:
            return None
        index, n = shards.shard
        return cls(index, n, Path(shards.sums).expanduser().resolve(), kind, parts, options)

    @property
    def place(self) -> Path:
        """The folder of this shard."""
        return self.folder / f"shard-{self.index}-of-{self.n}"

    @property
    def blocks(self) -> range:
        """The blocks of sources that are in it."""
        return range(self.index, BLOCKS, self.n)

    def check_place(self, facts: Mapping[str, Any], documents: Any) -> None:
        """Finds out before anything is measured whether sums can be put into their place.

        Raises:
            ValueError: for a part of a corpus, and a place with the sums of another measurement.
            OSError: where nothing can be written, or something else is.
        """
        if isinstance(documents, DocumentStream) and documents.corpus.n_shards > 1:
            raise ValueError(
                f"a shard takes its sources out of all documents, and was given share {documents.corpus.shard_index} "
                f"of {documents.corpus.n_shards} of the corpus: give every shard the whole corpus"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        if not os.access(self.folder, os.W_OK):
            raise PermissionError(f"{self.folder} cannot be written to: choose another folder for sums")
        there = storage.kind_of(self.place) == SUMS
        storage.check_free(self.place, overwrite=there)
        if there and (names := differing_facts(storage.load(self.place, SUMS).content["facts"], facts)):
            raise ValueError(
                f"{self.place} holds the sums of another measurement, which differs in {', '.join(names)}: choose "
                "another folder for sums, or delete this one"
            )

    def save(self, blocks: "BlockSums", progress: Progress, facts: Mapping[str, Any]) -> None:
        """Saves the sums of every block, what makes a report of them, and last of all the manifest."""
        with storage.draft(self.place, overwrite=True) as draft:
            for block, sums in blocks.by_block.items():
                if any(map(_holds, sums.values())):
                    arrays, folded = to_arrays(sums)
                    storage.save(draft / name_of(block), OF_BLOCK, {"folded": folded}, arrays)
            plain, saved, arrays = dict(self.parts), [], {}
            for name, value in self.parts.items():
                if isinstance(value, Topics | Cooccurrence):
                    value.save(draft / name)
                    saved.append(name)
                    del plain[name]
            storage.save(draft / "parts", PARTS, {"parts": encode(plain, arrays, "parts")}, arrays)
            content = {
                "facts": facts,
                "report": self.kind,
                "shard": [self.index, self.n],
                "sums": {name: _described(values) for name, values in blocks.own.items()},
                "progress": progress.content(),
                "saved": saved,
            }
            storage.seal(draft, SUMS, content)


def name_of(block: int) -> str:
    """The folder of a block in that of its shard."""
    return f"block-{block:02}"


def _holds(values: Sum) -> bool:
    """Whether anything was added to sums that were empty."""
    return bool(len(values) if isinstance(values, SourceSums) else values.any())


def _described(values: Sum) -> tuple[tuple[int, ...], int | None]:
    """What empty sums are made of again."""
    return values.shape, values.limit if isinstance(values, SourceSums) else None


# ---------------------------------------------------------------------------- while documents are measured


class BlockSums:
    """The sums of every block of a shard: accumulators add up a batch, which is then taken over into its block."""

    def __init__(self, share: Share, own: Mapping[str, Sum]) -> None:
        self.share, self.own = share, own
        self.by_block: dict[int, dict[str, Sum]] = {
            block: {name: _empty(values) for name, values in own.items()} for block in share.blocks
        }

        # Sources whose keys are equal modulo this may come to share a row, so they are in one block.
        limits = [values.limit for values in own.values() if isinstance(values, SourceSums)]
        self.limit = min(limits, default=4096)

    @property
    def flat(self) -> dict[str, Sum]:
        """All of them, by block and name."""
        return {
            f"{block} {name}": values
            for block, sums in self.by_block.items()
            for name, values in sums.items()
        }

    def take(self, block: int) -> None:
        """Takes over what the accumulators have."""
        add_sums(self.by_block[block], self.own)
        for values in self.own.values():
            if isinstance(values, SourceSums):
                values.clear()
            else:
                values[...] = 0

    def give_back(self) -> None:
        """Gives the accumulators the sums of all blocks."""
        for sums in self.by_block.values():
            add_sums(self.own, sums)


def _empty(values: Sum) -> Sum:
    """Sums of a block, which has one in so many sources."""
    return values.part(BLOCKS) if isinstance(values, SourceSums) else np.zeros_like(values)


def add_sums(total: Mapping[str, Sum], part: Mapping[str, Sum]) -> None:
    """Adds sums to those of the same name."""
    for name, values in total.items():
        more = part[name]
        if isinstance(values, SourceSums) and isinstance(more, SourceSums):
            values.merge(more)
        else:
            values += more


def block_of(source: int, limit: int) -> int:
    """The block of a source: sources that may come to share a row, because there are more than ``limit``, share it."""
    return source % 2**64 % limit % BLOCKS


class OwnDocuments:
    """The documents of a shard out of all documents, by blocks, with a hash of all of them."""

    def __init__(
        self, documents: Any, blocks: BlockSums, *, pad_id: int | None, vocabulary_size: int | None
    ) -> None:
        self.documents, self.blocks, self.seen = documents, blocks, Seen()
        self.pad_id, self.vocabulary_size = pad_id, vocabulary_size

    def groups(self, batch_size: int) -> Iterator[tuple[int, list[Document]]]:
        """Some documents of a block, and of which one, as they come together; what is left over at the end."""
        waiting: dict[int, list[Document]] = {}
        n_tokens: Counter[int] = Counter()
        for number, document in enumerate(read_documents(self.documents, pad_id=self.pad_id)):
            self.seen.add(document.content)
            block = block_of(document.origin, self.blocks.limit)
            if block not in self.blocks.share.blocks:
                continue
            check_ids(document, number, self.vocabulary_size)
            few = waiting.setdefault(block, [])
            few.append(document)
            n_tokens[block] += len(document)
            if len(few) == batch_size * _BATCHES_THAT_WAIT or n_tokens[block] >= _TOKENS_THAT_WAIT:
                del n_tokens[block]
                yield block, waiting.pop(block)
        yield from sorted(waiting.items())
