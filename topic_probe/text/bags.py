"""Documents as bags of words: which tokens are words, and a place on disk for the bags of any number of documents."""

import tempfile
import unicodedata
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from topic_probe.options import check_whole, checked
from topic_probe.text.documents import Counts, Document, read_documents
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

# Token ids of a document, ascending, and how often it has each.
Bag = tuple[Int64[np.ndarray, "_"], Int64[np.ndarray, "_"]]


class Bags:
    """Bags of words of all documents: in memory while they are few, then in a temporary file.

    They are kept in blocks of neighbouring documents, and come back with the blocks in random order and the documents
    of many blocks mixed. A corpus goes from theme to theme, and topics updated in that order would forget. Only the
    places of the blocks stay in memory.
    """

    _IN_MEMORY = 1 << 26
    _BLOCK, _BLOCKS_MIXED = 32, 128

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=self._IN_MEMORY)  # noqa: SIM115
        self._starts = array("Q")
        self._block: list[Bag] = []
        self.n = 0

    def __enter__(self) -> "Bags":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, bag: Bag) -> None:
        """Take the bag of the next document."""
        self.n += 1
        self._block.append(bag)
        if len(self._block) == self._BLOCK:
            self.flush()

    def flush(self) -> None:
        """Write the block that is being filled."""
        if not self._block:
            return
        lengths = [len(ids) for ids, _ in self._block]
        both = [part for place in (0, 1) for part in (bag[place] for bag in self._block)]
        content = np.concatenate([np.array([len(lengths), *lengths]), *both]).astype("<u4").tobytes()
        self._starts.append(self._file.tell())
        self._block = []
        try:
            self._file.write(content)
        except OSError as error:
            raise OSError(
                f"the words of the documents do not fit into {tempfile.gettempdir()} ({error}): name a folder of a "
                "larger disk in the environment variable TMPDIR"
            ) from error

    def shuffled(self, generator: np.random.Generator) -> Iterator[Bag]:
        """All bags in an order that the generator gives."""
        order = generator.permutation(len(self._starts))
        for first in range(0, len(order), self._BLOCKS_MIXED):
            bags = [
                bag for block in order[first : first + self._BLOCKS_MIXED] for bag in self._read(int(block))
            ]
            for place in generator.permutation(len(bags)):
                yield bags[place]

    def __iter__(self) -> Iterator[Bag]:
        """All bags in the order in which they came."""
        for block in range(len(self._starts)):
            yield from self._read(block)

    def _read(self, block: int) -> Iterator[Bag]:
        self._file.seek(self._starts[block])
        lengths = self._numbers(int(self._numbers(1)[0]))
        ids, counts = (np.split(self._numbers(int(lengths.sum())), lengths.cumsum()[:-1]) for _ in range(2))
        yield from zip(ids, counts, strict=True)

    def _numbers(self, n: int) -> Int64[np.ndarray, "_"]:
        return np.frombuffer(self._file.read(4 * n), dtype="<u4").astype(np.int64)


@dataclass
class Reading:
    """What one pass over the documents gives."""

    bags: Bags
    words: Words
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self.document_frequency = np.zeros(len(self.words.reason), dtype=np.int64)

    def read(self, documents: Any) -> None:
        """Keep the words of every document, and count the rest by its reason."""
        size = len(self.words.reason)
        for number, document in enumerate(read_documents(documents)):
            ids = document.ids.numpy()
            if len(wrong := ids[(ids < 0) | (ids >= size)]):
                raise ValueError(
                    f"document {number} holds the token id {wrong[0]}, the tokenizer has 0..{size - 1}: "
                    "were the documents made with another tokenizer?"
                )
            self.counts.add(document)
            unique, counts = np.unique(ids[self._kept(document, ids)], return_counts=True)
            self.document_frequency[unique] += 1
            self.bags.add((unique, counts.astype(np.int64)))
        self.bags.flush()

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
