"""The same words of the same texts for several tokenizers: as far as all come, and those that all can measure."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import islice
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int64

from topic_probe.text.documents import Counts, Document, Long, with_sources
from topic_probe.text.encoder import Encoder
from topic_probe.words import whole_words

Level = Literal["token", "word"]

_TEXTS_AT_ONCE = 64

NO_WORD_SHARED = "texts in which no word can be read by every model"


@dataclass
class Read:
    """What the last whole pass has read: texts and words, and what was left out."""

    texts: int = 0
    words: int = 0  # that every model saw
    cut_off: int = 0  # words, because not every model can take them
    measurable: int = 0  # words of one token for every model, or at level "word" of any tokens
    left_out: Counter[str] = field(default_factory=Counter)


class SameTexts:
    """Texts that several tokenizers read, each of which gives documents of the very same words.

    Every document begins and ends with the same words for all tokenizers, and a word is measured only where all of
    them can, so that differences between models are never differences between words.

    Args:
        texts: a list of texts, or a corpus.
        encoders: one for every tokenizer, each with the number of tokens that its model can take (``max_length``).
        long: "cut" keeps the beginning of texts that are too long for one of the models, "chunk" parts them at the
            same words for all.
        level: "token" measures words that are one token, "word" also those that are several.
        sources: for every text a label of what it is from; None: every text is a source of its own.
    """

    def __init__(
        self,
        texts: Iterable[str],
        encoders: Sequence[Encoder],
        *,
        long: Long,
        level: Level,
        sources: Collection[Hashable] | None = None,
    ) -> None:
        self.texts, self.long, self.level, self.sources = texts, long, level, sources
        self.limits = [encoder.max_length for encoder in encoders]
        self.encoders = [replace(encoder, max_length=None) for encoder in encoders]
        self.read = Read()

    def of(self, number: int) -> "TextsOf":
        """The documents of one of the tokenizers, as often as wanted."""
        return TextsOf(self, number)

    def every(self) -> Iterator[list[Document]]:
        """A document for each of the tokenizers, of the same words."""
        read = Read()
        labelled = with_sources(self.texts, self.sources)
        while batch := list(islice(labelled, _TEXTS_AT_ONCE)):
            texts = [_text(text) for text, _ in batch]
            counts = Counts()
            encoded = [list(encoder.encode(texts, counts)) for encoder in self.encoders]
            for (_, source), *of_encoders in zip(batch, *encoded, strict=True):
                if not all(of_encoders):
                    read.left_out["texts in which the tokens of a tokenizer cannot be found again"] += 1
                    continue
                whole = [documents[0] for documents in of_encoders]
                if source is not None:
                    whole = [replace(document, source=source) for document in whole]
                yield from self._parted(whole, read)
        self.read = read

    def _parted(self, whole: list[Document], read: Read) -> Iterator[list[Document]]:
        """Documents that all models can take, with the words that all can measure."""
        words = [_words(document) for document in whole]
        alone = [whole_words(own) if self.level == "token" else own >= 0 for own in words]
        measurable = reduce(
            np.intersect1d, [np.unique(own[at]) for own, at in zip(words, alone, strict=True)]
        )
        if not len(measurable):
            read.left_out[NO_WORD_SHARED] += 1
            return
        read.texts += 1
        starts = _starts_of_words(whole)
        n_words, first = starts.shape[1] - 1, 0
        while first < n_words:
            last = self._reach(whole, starts, first)
            if last > first:
                pieces = [_between(*one, first, last) for one in zip(whole, starts, strict=True)]
                # What stands first to a causal model is no word to it, and then to none of them.
                firsts = [_words(piece)[0] for piece in pieces]
                inside = (measurable >= first) & (measurable < last)
                kept = measurable[inside & ~np.isin(measurable, firsts)]
                read.words += last - first
                read.measurable += len(kept)
                yield [_only(piece, kept) for piece in pieces]
            # A single word that is too long for one of them is left out for all.
            read.cut_off += last == first
            first = max(last, first + 1)
            if self.long == "cut":
                break
        read.cut_off += max(n_words - first, 0)

    def _reach(
        self, whole: Sequence[Document], starts: Int64[np.ndarray, "tokenizer boundary"], first: int
    ) -> int:
        """Before which word documents must end that begin with a word, so that every model can take them."""
        last: int = starts.shape[1] - 1
        for document, own, limit in zip(whole, starts, self.limits, strict=True):
            if limit is not None:
                around = len(document) - int(own[-1] - own[0])
                fitting = np.searchsorted(own, own[first] + limit - around, side="right")
                last = min(last, int(fitting) - 1)
        return max(first, last)


@dataclass(frozen=True)
class TextsOf:
    """The documents of one of several tokenizers."""

    same: SameTexts
    number: int

    def __iter__(self) -> Iterator[Document]:
        return (documents[self.number] for documents in self.same.every())


def _text(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError(f"texts must be strings, not {type(text).__name__}: leave others out")
    return text


def _words(document: Document) -> Int64[np.ndarray, " token"]:
    assert document.word_index is not None  # it comes of an encoder
    return document.word_index.numpy()


def _starts_of_words(whole: Sequence[Document]) -> Int64[np.ndarray, "tokenizer boundary"]:
    """Where every word begins for every tokenizer, and at the end where the text ends; the first with the text.

    A word that no token makes up begins where the next one does.
    """
    words = [_words(document) for document in whole]
    starts = np.empty((len(whole), 2 + max(int(own.max()) for own in words)), dtype=np.int64)
    for document, own, row in zip(whole, words, starts, strict=True):
        assert document.special is not None
        text = np.flatnonzero(~document.special.numpy())
        places = np.flatnonzero(own >= 0)
        row[:] = text[-1] + 1
        np.minimum.at(row, own[places], places)
        row[:] = np.minimum.accumulate(row[::-1])[::-1]
        row[0] = text[0]
    return starts


def _between(document: Document, starts: Int64[np.ndarray, " boundary"], first: int, last: int) -> Document:
    """The words from one to another, between the special tokens around the whole text."""
    before, begin, end, after = (int(starts[word]) for word in (0, first, last, -1))
    places = [*range(before), *range(begin, end), *range(after, len(document))]
    return document.part(torch.tensor(places, dtype=torch.int64))


def _only(document: Document, kept: Int64[np.ndarray, " word"]) -> Document:
    """The document with these words alone; other tokens are of none."""
    words = _words(document)
    return replace(document, word_index=torch.from_numpy(np.where(np.isin(words, kept), words, -1)))
