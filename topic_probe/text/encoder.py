"""Texts to documents of token ids, many at once: cut or chunked between words, with their special tokens."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64

from topic_probe.text.batches import Document
from topic_probe.topics.vocabulary import settings_restored, vocabulary_size

# A tokenizer needs a hundred times the memory of its text, so longer texts go to it in pieces.
_LONGEST_TEXT = 200_000


@dataclass(frozen=True)
class Encoder:
    """Makes documents of texts, many at once."""

    tokenizer: Any
    max_length: int | None
    long: str
    min_length: int
    add_special_tokens: bool
    before: Int64[np.ndarray, "_"] = field(init=False)
    after: Int64[np.ndarray, "_"] = field(init=False)
    special: Bool[np.ndarray, "vocabulary"] = field(init=False)

    def __post_init__(self) -> None:
        before, after = _special_tokens(self.tokenizer) if self.add_special_tokens else ((), ())
        special = np.zeros(vocabulary_size(self.tokenizer), dtype=bool)
        special[self.tokenizer.all_special_ids] = True
        # The dataclass is frozen for everyone else.
        object.__setattr__(self, "before", np.array(before, dtype=np.int64))
        object.__setattr__(self, "after", np.array(after, dtype=np.int64))
        object.__setattr__(self, "special", special)
        if self.max_length is not None and self.max_length <= len(before) + len(after):
            raise ValueError(
                f"max_length must leave room for a token beside the {len(before) + len(after)} special ones, "
                f"got {self.max_length}"
            )

    def options(self) -> dict[str, Any]:
        """What changes the documents, as JSON content."""
        return {
            "max_length": self.max_length,
            "long": self.long,
            "min_length": self.min_length,
            "add_special_tokens": self.add_special_tokens,
        }

    def encode(self, texts: Sequence[str], left_out: Counter[str]) -> list[Document]:
        """The documents of some texts; what is left out or changed is counted."""
        documents: list[Document] = []
        for n_pieces, (ids, words) in self._joined(texts):
            if n_pieces > 1:
                left_out["long texts, tokenized in pieces"] += 1
            documents += self._documents(ids, words, left_out)
        return documents

    def _joined(
        self, texts: Sequence[str]
    ) -> Iterator[tuple[int, tuple[Int64[np.ndarray, "_"], Int64[np.ndarray, "_"] | None]]]:
        """For every text, the number of its pieces and what they give together."""
        pieces = [_pieces(text) for text in texts]
        short = _tokenized(self.tokenizer, [text for (text, *more) in pieces if not more])
        for text, *more in pieces:
            if more:
                # One by one: a long text in the tokenizer's own form is what must not lie in memory.
                parts = [_tokenized(self.tokenizer, [piece])[0] for piece in (text, *more)]
                yield len(parts), _together(parts)
            else:
                yield 1, short.pop(0)

    def _documents(
        self, ids: Int64[np.ndarray, "_"], words: Int64[np.ndarray, "_"] | None, left_out: Counter[str]
    ) -> Iterator[Document]:
        room = len(ids) if self.max_length is None else self.max_length - len(self.before) - len(self.after)
        parts = list(_parts(words, len(ids), max(1, room)))
        if len(parts) > 1 and self.long == "cut":
            left_out[f"texts cut at {self.max_length} tokens"] += 1
            left_out["tokens cut off"] += len(ids) - parts[0][1]
            parts = parts[:1]
        elif len(parts) > 1:
            left_out[f"texts cut into pieces of {self.max_length} tokens"] += 1
        for start, stop in parts:
            if stop - start >= self.min_length:
                yield self._document(ids[start:stop], None if words is None else words[start:stop])
            else:
                left_out[f"documents of fewer than {self.min_length} tokens"] += 1
                left_out["tokens in these"] += stop - start

    def _document(self, ids: Int64[np.ndarray, "_"], words: Int64[np.ndarray, "_"] | None) -> Document:
        whole = np.concatenate([self.before, ids, self.after])
        numbers = None
        if words is not None:
            # Words of a later piece are counted from 0 again, as if it were a text.
            first = words[(words >= 0).argmax()]
            numbers = np.full(len(whole), -1)
            numbers[len(self.before) : len(whole) - len(self.after)] = np.where(words < 0, -1, words - first)
        return Document(
            torch.from_numpy(whole),
            None if numbers is None else torch.from_numpy(numbers),
            torch.from_numpy(self.special[whole]),
        )


def _special_tokens(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The special tokens that a tokenizer puts before and after a text."""
    with settings_restored(tokenizer):
        plain = tokenizer("a", add_special_tokens=False, truncation=False, padding=False)["input_ids"]
        whole = tokenizer("a", add_special_tokens=True, truncation=False, padding=False)["input_ids"]
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return tuple(whole[:start]), tuple(whole[start + len(plain) :])
    raise ValueError(
        f"{type(tokenizer).__name__} does more than put special tokens around a text; pass add_special_tokens=False"
    )


def _tokenized(
    tokenizer: Any, texts: Sequence[str]
) -> list[tuple[Int64[np.ndarray, "_"], Int64[np.ndarray, "_"] | None]]:
    """Token ids and word numbers of every text, without special tokens."""
    if not texts:
        return []
    with settings_restored(tokenizer):
        batch = tokenizer(
            list(texts),
            add_special_tokens=False,
            padding=False,
            truncation=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
    words: Sequence[Any] = [None] * len(texts)
    if getattr(tokenizer, "is_fast", False):
        words = [_word_numbers(encoding.word_ids) for encoding in batch.encodings]
    return [
        (np.array(ids, dtype=np.int64), numbers)
        for ids, numbers in zip(batch["input_ids"], words, strict=True)
    ]


def _word_numbers(words: list[int | None]) -> Int64[np.ndarray, "_"]:
    return np.array([-1 if word is None else word for word in words], dtype=np.int64)


def _together(
    parts: Sequence[tuple[Int64[np.ndarray, "_"], Int64[np.ndarray, "_"] | None]],
) -> tuple[Int64[np.ndarray, "_"], Int64[np.ndarray, "_"] | None]:
    """The tokens of the pieces of a text, with words numbered through."""
    ids = np.concatenate([ids for ids, _ in parts])
    if any(words is None for _, words in parts):
        return ids, None
    numbered, n_words = [], 0
    for _, words in parts:
        assert words is not None
        numbered.append(np.where(words < 0, -1, words + n_words))
        n_words += int(words.max(initial=-1)) + 1
    return ids, np.concatenate(numbered)


def _pieces(text: str) -> list[str]:
    """The text, or if it is very long pieces of it that end before a single space between two words."""
    pieces, start = [], 0
    while len(text) - start > _LONGEST_TEXT:
        stop = text.rfind(" ", start + 1, start + _LONGEST_TEXT)
        # A run of spaces may be one token, and next to a letter a space belongs to the word behind it.
        while stop > start and (text[stop - 1].isspace() or text[stop + 1].isspace()):
            stop = text.rfind(" ", start + 1, stop)
        stop = stop if stop > start else start + _LONGEST_TEXT
        pieces.append(text[start:stop])
        start = stop
    return [*pieces, text[start:]]


def _parts(words: Int64[np.ndarray, "_"] | None, length: int, room: int) -> Iterator[tuple[int, int]]:
    """Where the parts of a long document begin and end: between words, unless one word fills the room."""
    start = 0
    while length - start > room:
        stop = start + room
        if words is not None and words[stop] >= 0:
            # The first token of the word that the limit would cut through.
            whole = stop
            while whole > start and words[whole - 1] == words[stop]:
                whole -= 1
            stop = whole if whole > start else stop
        yield start, stop
        start = stop
    yield start, length
