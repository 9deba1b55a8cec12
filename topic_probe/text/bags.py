"""Documents as bags of words: which tokens are words, and a place on disk for the bags of any number of documents."""

import io
import os
import tempfile
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from operator import add
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from topic_probe.options import check_whole, checked
from topic_probe.processes import Processes
from topic_probe.text.documents import Counts, Document, content_hash, read_documents
from topic_probe.text.shares import BLOCKS, block_of
from topic_probe.text.sums import Progress
from topic_probe.topics.models import stop_word_ids
from topic_probe.topics.vocabulary import vocabulary_size

STOP, SPECIAL, NO_WORD, PIECE, RARE, COMMON = (
    "stop words",
    "special tokens",
    "tokens that are no words",
    "pieces of split words",
    "different words, in too few documents",
    "different words, in too many documents",
)


@dataclass(frozen=True)
class Words:
    """What is known of every token id before any text is read.

    Attributes:
        reason: Why an id is not fitted, as a place in ``reasons``; 0 where it is.
        texts: Readable form of every id.
    """

    reason: Int64[np.ndarray, "vocabulary"]
    texts: tuple[str, ...]
    reasons: tuple[str, ...] = ("", SPECIAL, NO_WORD, STOP)


@checked
def word_ids(
    tokenizer: Any, *, stop_words: Iterable[str] | None = None, min_letters: int = 2
) -> Int64[Tensor, "word"]:
    """Token ids that are words by themselves, ascending: letters only, and no stop words.

    Special tokens, punctuation, numbers, pieces that continue a word (``##ing``) and single letters are none. A
    byte-level or sentencepiece vocabulary does not tell every piece from a word; documents of a text do.

    Args:
        tokenizer: A Hugging Face tokenizer.
        stop_words: Words to leave out, looked up in any case and behind a space; None: gensim's English list.
        min_letters: Letters that a word has at least.
    """
    words = judge(tokenizer, stop_words, min_letters)
    return torch.from_numpy(np.flatnonzero(words.reason == 0))


def judge(tokenizer: Any, stop_words: Iterable[str] | None, min_letters: int) -> Words:
    """Every token id with the reason why it is no word to fit, if there is one."""
    check_whole("min_letters", min_letters)
    size = vocabulary_size(tokenizer)
    texts = [""] * size
    ids = list(tokenizer.get_vocab().values())
    for index, text in zip(ids, tokenizer.batch_decode([[index] for index in ids]), strict=True):
        texts[index] = str(text).strip("▁ ")
    reason = np.array([0 if _is_word(text, min_letters) else 2 for text in texts], dtype=np.int64)
    reason[stop_word_ids(stop_words, tokenizer)] = 3
    special = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    reason[sorted(special | set(tokenizer.all_special_ids))] = 1
    return Words(reason, tuple(texts))


def _is_word(text: str, min_letters: int) -> bool:
    # Marks are parts of letters in many scripts, and str.isalpha refuses them.
    kinds = [unicodedata.category(letter)[0] for letter in text]
    return kinds.count("L") >= min_letters and not set(kinds) - {"L", "M"}


# --- bags of words ----------------------------------------------------------------------------------

# Packed, an id and its count are so many bytes.
BYTES_OF_WORD = 8

# Token ids of a document, ascending, and how often it has each.
Bag = tuple[Int64[np.ndarray, "_"], Int64[np.ndarray, "_"]]


class Bags:
    """Bags of words of all documents: in memory while they are few, then in a temporary file.

    A document falls into a block by a hash of its words, and the documents of a block come in the order of their bytes
    before they are mixed, so the order in which they were read is forgotten: a corpus goes from theme to theme, and
    topics updated in that order would forget. Only the places where parts of blocks lie stay in memory.
    """

    _IN_MEMORY = 1 << 26
    # Documents that are written at once; documents that are mixed at least, so many whole blocks are read at once.
    _TOGETHER, _MIXED = 32, 4096
    # Bytes that a process sends to others at once.
    _SENT = 1 << 20

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=self._IN_MEMORY)  # noqa: SIM115
        self._starts = [array("Q") for _ in range(BLOCKS)]
        self._waiting: list[list[bytes]] = [[] for _ in range(BLOCKS)]
        self.n = 0

    def __enter__(self) -> "Bags":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, bag: Bag) -> None:
        """Take the bag of the next document."""
        packed = np.stack(bag, axis=1).astype("<u4").tobytes()
        block = block_of(content_hash(packed))
        self._waiting[block].append(packed)
        if len(self._waiting[block]) == self._TOGETHER:
            self._flush(block)

    def flush(self) -> None:
        """Write what waits for more of its block."""
        for block in range(BLOCKS):
            self._flush(block)

    def _flush(self, block: int) -> None:
        packed = self._waiting[block]
        if packed:
            self._waiting[block] = []
            lengths = np.array([len(packed), *map(len, packed)], dtype="<u4")
            self._write(block, lengths.tobytes() + b"".join(packed))

    def _write(self, block: int, content: bytes) -> None:
        """Put some documents of a block behind all others."""
        self.n += _number(content)
        self._starts[block].append(self._file.seek(0, os.SEEK_END))
        try:
            self._file.write(content)
        except OSError as error:
            raise OSError(
                f"the words of the documents do not fit into {tempfile.gettempdir()} ({error}): name a folder of a "
                "larger disk in the environment variable TMPDIR"
            ) from error

    def exchange(self, processes: Processes) -> None:
        """Give every process the bags of all."""
        own = [(block, start) for block, starts in enumerate(self._starts) for start in starts]
        if processes.size > 1:
            sent = self._packets(own)
            while any(every := processes.gather(next(sent, []))):
                for block, content in chain(*every[: processes.index], *every[processes.index + 1 :]):
                    self._write(block, content)

    def _packets(self, places: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, bytes]]]:
        packet: list[tuple[int, bytes]] = []
        for block, start in places:
            packet.append((block, self._read(start)))
            if sum(len(content) for _, content in packet) >= self._SENT:
                yield packet
                packet = []
        if packet:
            yield packet

    def shuffled(self, generator: np.random.Generator) -> Iterator[bytes]:
        """All bags, packed, in an order that the generator gives, whoever has read them and when."""
        mixed: list[bytes] = []
        for place, block in enumerate(generator.permutation(BLOCKS), 1):
            mixed += sorted(self._of_block(int(block)))
            if len(mixed) >= self._MIXED or place == BLOCKS:
                yield from (mixed[number] for number in generator.permutation(len(mixed)))
                mixed = []

    def of_blocks(self, blocks: Iterable[int]) -> Iterator[Bag]:
        """The bags of some blocks."""
        return (unpacked(packed) for block in blocks for packed in self._of_block(block))

    def __iter__(self) -> Iterator[Bag]:
        """All bags."""
        return self.of_blocks(range(BLOCKS))

    def _of_block(self, block: int) -> Iterator[bytes]:
        for start in self._starts[block]:
            content = io.BytesIO(self._read(start))
            n = _number(content.read(4))
            yield from map(content.read, np.frombuffer(content.read(4 * n), "<u4").tolist())

    def _read(self, start: int) -> bytes:
        """Some documents of a block, as they were written."""
        self._file.seek(start)
        number = self._file.read(4)
        lengths = self._file.read(4 * _number(number))
        return number + lengths + self._file.read(int(np.frombuffer(lengths, "<u4").sum()))


def _number(content: bytes) -> int:
    """How many documents there are in some of a block."""
    return int.from_bytes(content[:4], "little")


def unpacked(packed: bytes) -> Bag:
    """The bag that was packed, or several, one behind the other."""
    ids, counts = np.frombuffer(packed, dtype="<u4").astype(np.int64).reshape(-1, 2).T
    return ids, counts


@dataclass
class Reading:
    """What one pass over the documents gives: bags, and in how many of them and how often every word is."""

    bags: Bags
    words: Words
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        self.document_frequency, self.tokens = np.zeros((2, len(self.words.reason)))

    @property
    def counts(self) -> Counts:
        """What was read and left out."""
        return self.progress.counts

    def read(self, documents: Any, check: Callable[[], None] = lambda: None) -> None:
        """Keep the words of every document, and count the rest by its reason.

        Args:
            documents: Documents, as `read_documents` takes them.
            check: Called for every document; what it raises ends the reading.
        """
        size = len(self.words.reason)
        for number, document in enumerate(read_documents(documents)):
            check()
            ids = document.ids.numpy()
            if len(wrong := ids[(ids < 0) | (ids >= size)]):
                raise ValueError(
                    f"document {number} holds the token id {wrong[0]}, the tokenizer has 0..{size - 1}: "
                    "were the documents made with another tokenizer?"
                )
            self.counts.add(document)
            unique, counts = np.unique(ids[self._kept(document, ids)], return_counts=True)
            self.document_frequency[unique] += 1
            self.tokens[unique] += counts
            self.bags.add((unique, counts.astype(np.int64)))
        self.bags.flush()
        self.progress.corpus = getattr(documents, "provenance", None)

    def exchange(self, processes: Processes) -> None:
        """Make what every process has read what all have read."""
        self.bags.exchange(processes)
        self.progress = reduce(add, processes.gather(self.progress))
        of_words = np.stack([self.document_frequency, self.tokens])
        self.document_frequency, self.tokens = processes.add(of_words).astype(np.int64)

    def _kept(self, document: Document, ids: Int64[np.ndarray, "_"]) -> Bool[np.ndarray, "_"]:
        """Which tokens are words to fit."""
        reason = self.words.reason[ids]
        if document.special is not None:
            reason = np.where(document.special.numpy(), 1, reason)
        kept: np.ndarray = reason == 0
        for place, count in enumerate(np.bincount(reason, minlength=4)[1:], 1):
            self.counts.left_out[self.words.reasons[place]] += int(count)
        if document.whole is not None:
            whole = document.whole.numpy()
            self.counts.left_out[PIECE] += int((kept & ~whole).sum())
            kept = kept & whole
        return kept
