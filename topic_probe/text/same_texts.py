"""The same words of the same texts for several tokenizers: as far as all come, and those that all can measure."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from topic_probe.text.documents import Counts, Document, Long, with_sources
from topic_probe.text.encoder import Encoder

Level = Literal["token", "word"]

_TEXTS_AT_ONCE = 64
# Every model reads the texts; documents of no more tokens than this are not made anew for it.
_MOST_KEPT = 5_000_000

NO_WORD_SHARED = "texts in which no word can be read by every model"


@dataclass
class Read:
    """What the last whole pass has read.

    Attributes:
        texts: texts that documents were made of.
        words: words of these texts that every model saw.
        cut_off: words that were cut off for all, because not every model can take them.
        measurable: words that every model can measure: a token of its own, or at level "word" any tokens.
        left_out: texts that were left out, by reason.
    """

    texts: int = 0
    words: int = 0
    cut_off: int = 0
    measurable: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


class SameTexts:
    """Texts that several tokenizers read, each of which gives documents of the very same words.

    Every document begins and ends with the same words for all tokenizers: it is as long as the shortest of them can
    make it. A word counts as one that can be measured where it is one for all tokenizers, so that differences between
    models are never differences between the words that they were asked about.

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
        self._kept: list[list[Document]] | None = None

    def of(self, number: int) -> "TextsOf":
        """The documents of one of the tokenizers, as often as wanted."""
        return TextsOf(self, number)

    def every(self) -> Iterator[list[Document]]:
        """A document for each of the tokenizers, of the same words."""
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[list[Document]] = []
        n_tokens = 0
        for documents in self._encoded():
            n_tokens += sum(map(len, documents))
            if n_tokens <= _MOST_KEPT:
                kept.append(documents)
            yield documents
        self._kept = kept if n_tokens <= _MOST_KEPT else None

    def _encoded(self) -> Iterator[list[Document]]:
        read = Read()
        labelled = with_sources(self.texts, self.sources)
        while batch := list(islice(labelled, _TEXTS_AT_ONCE)):
            texts = [_text(text) for text, _ in batch]
            counts = Counts()
            encoded = [list(encoder.encode(texts, counts)) for encoder in self.encoders]
            for (_, source), *of_encoders in zip(batch, *encoded, strict=True):
                if any(documents is None for documents in of_encoders):
                    read.left_out["texts in which the tokens of a tokenizer cannot be found again"] += 1
                    continue
                whole = [documents[0] for documents in of_encoders]
                if source is not None:
                    whole = [replace(document, source=source) for document in whole]
                yield from self._parted(whole, read)
        self.read = read

    def _parted(self, whole: list[Document], read: Read) -> Iterator[list[Document]]:
        """Documents that all models can take, with the words that all can measure."""
        measurable = self._measurable(whole)
        if not len(measurable):
            read.left_out[NO_WORD_SHARED] += 1
            return
        read.texts += 1
        starts = _starts_of_words(whole)
        n_words, first = starts.shape[1] - 1, 0
        while first < n_words:
            last = self._reach(whole, starts, first)
            if last > first:
                yield self._pieces(whole, starts, first, last, measurable, read)
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

    def _measurable(self, whole: Sequence[Document]) -> Int64[np.ndarray, " word"]:
        """The words that every tokenizer can measure."""
        found = None
        for document in whole:
            assert document.word_index is not None
            assert document.whole is not None
            chosen = document.whole if self.level == "token" else document.word_index >= 0
            own = np.unique(document.word_index[chosen].numpy())
            found = own if found is None else np.intersect1d(found, own, assume_unique=True)
        assert found is not None
        return found

    def _pieces(
        self,
        whole: Sequence[Document],
        starts: Int64[np.ndarray, "tokenizer boundary"],
        first: int,
        last: int,
        measurable: Int64[np.ndarray, " word"],
        read: Read,
    ) -> list[Document]:
        """The words from one to another, for every tokenizer between the special tokens around a whole text."""
        pieces = []
        for document, own in zip(whole, starts, strict=True):
            before, begin, end, after = (int(own[word]) for word in (0, first, last, -1))
            places = [*range(before), *range(begin, end), *range(after, len(document))]
            pieces.append(document.part(torch.tensor(places, dtype=torch.int64)))
        # What stands first to a causal model is no word to it, and then to none of them.
        firsts = [int(piece.word_index[0]) for piece in pieces if piece.word_index is not None and len(piece)]
        kept = measurable[(measurable >= first) & (measurable < last) & ~np.isin(measurable, firsts)]
        read.words += last - first
        read.measurable += len(kept)
        return [_only(piece, torch.from_numpy(kept)) for piece in pieces]


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


def _starts_of_words(whole: Sequence[Document]) -> Int64[np.ndarray, "tokenizer boundary"]:
    """Where every word begins for every tokenizer, and at the end where the text ends; the first with the text.

    A word that no token makes up begins where the next one does.
    """
    index = [document.word_index.numpy() for document in whole if document.word_index is not None]
    starts = np.empty((len(whole), 2 + max(int(words.max()) for words in index)), dtype=np.int64)
    for document, words, own in zip(whole, index, starts, strict=True):
        assert document.special is not None
        text = (~document.special).nonzero().flatten()
        places = np.flatnonzero(words >= 0)
        own[:] = int(text[-1]) + 1
        np.minimum.at(own, words[places], places)
        own[:] = np.minimum.accumulate(own[::-1])[::-1]
        own[0] = int(text[0])
    return starts


def _only(document: Document, words: Int64[Tensor, " word"]) -> Document:
    """The document with these words alone; other tokens are of none."""
    assert document.word_index is not None
    index = document.word_index
    return replace(document, word_index=torch.where(torch.isin(index, words), index, -1))
