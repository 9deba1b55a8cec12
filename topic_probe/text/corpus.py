"""Real text as documents of token ids: read as a stream, any number of times, with everything counted."""

import copy
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from topic_probe.notices import progress_bar
from topic_probe.options import checked
from topic_probe.remote import Retry
from topic_probe.text.documents import Counts, Document, Long, hash_of
from topic_probe.text.encoder import Encoder
from topic_probe.text.hub import HubData
from topic_probe.text.sources import (
    Excluded,
    Files,
    First,
    GensimArticles,
    Source,
    Split,
    Texts,
    content_of,
    read_on,
)
from topic_probe.topics.lookup import tokenizer_hash

__all__ = ["WIKIPEDIA", "Corpus", "DocumentStream", "Retry"]

WIKIPEDIA = ("wikimedia/wikipedia", "20231101.en", "b04c8d1ceb2f5cd4588862100d08de323dccfbaa")
"""Name, configuration and commit of the English Wikipedia on the Hugging Face hub."""

# Texts that the tokenizer is given at once: enough for its threads, few enough to stay small.
_TEXTS_AT_ONCE, _LETTERS_AT_ONCE = 256, 1_000_000


@dataclass(frozen=True, eq=False, repr=False)
class Corpus:
    """Texts that are read as a stream, as often as wanted, and never held whole in memory.

    Made by ``bundled``, ``from_texts``, ``from_files``, ``from_dataset`` or ``wikipedia``. Iterating gives the texts;
    ``documents`` gives them as token ids of a model's own tokenizer. Entries that are no text (None, empty, invalid
    Unicode, of another type, without the field) are left out and counted; if the very first entry is of the wrong
    type or lacks the field, that is an error, because then all of them probably do.

    Attributes:
        source: Where the texts are.
        retry: How a stream that breaks midway is read on.
        shard_index: Which of ``n_shards`` shares this is.
        n_shards: Shares that the corpus is split into, for as many processes.
    """

    source: Source
    retry: Retry = field(default_factory=Retry)
    shard_index: int = 0
    n_shards: int = 1

    # --- constructors ---------------------------------------------------------------------------

    @classmethod
    @checked
    def bundled(cls, *, n_documents: int | None = None) -> "Corpus":
        """About a hundred English Wikipedia articles that come with gensim, as prose; no network is needed.

        Most titles begin with an A. Markup is removed by gensim; headings, lists, tables and captions are left out.

        Args:
            n_documents: At most so many, the first ones; None: all.
        """
        return cls(_first(GensimArticles(), n_documents))

    @classmethod
    def from_texts(cls, texts: Any) -> "Corpus":
        """The texts of a list, or of anything else that can be iterated more than once.

        Args:
            texts: Strings; None is counted and left out. A function without arguments that returns a fresh iterator
                is called for every pass: this is the way for what does not fit into memory.

        Example:
            >>> corpus = tp.Corpus.from_texts(["The army lost.", None, "The band played."])
            >>> list(corpus)  # None is no text
            ['The army lost.', 'The band played.']
        """
        return cls(Texts(texts))

    @classmethod
    @checked
    def from_files(
        cls,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        field: str = "text",
        split: Split = "file",
        n_documents: int | None = None,
    ) -> "Corpus":
        """The texts of files: ``.txt``, ``.jsonl``, and both with ``.gz``.

        Args:
            paths: A file, a folder (searched through, sorted by name), or several.
            field: The field of a record of ``.jsonl`` that is the text.
            split: What is a text in ``.txt``: the whole "file", each "line" or each "paragraph" (between empty lines).
            n_documents: At most so many texts, the first ones; None: all.

        Every text is a source of its own, which intervals resample: choose "file" where lines or paragraphs are of one
        article and ``long="chunk"`` cuts it into documents.

        Files are read as UTF-8 (UTF-16 if they begin so); bytes that are neither become the replacement character.

        Example:
            >>> import pathlib, tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     for name, text in {"a.txt": "The army lost.", "b.txt": "The band played."}.items():
            ...         _ = pathlib.Path(folder, name).write_text(text)
            ...     list(tp.Corpus.from_files(folder))
            ['The army lost.', 'The band played.']
        """
        return cls(_first(Files.of(paths, field=field, split=split), n_documents))

    @classmethod
    @checked
    def from_dataset(
        cls,
        dataset: Any,
        config: str | None = None,
        *,
        split: str = "train",
        field: str = "text",
        revision: str | None = None,
        n_documents: int | None = None,
        seed: int | None = None,
        spread: int = 10,
        streaming: bool = True,
        retry: Retry | None = None,
        **options: Any,
    ) -> "Corpus":
        """The texts of a `datasets` data set: its name on the hub, its folder, or the opened object.

        Args:
            dataset: Name, folder, ``Dataset``, ``IterableDataset`` or a dictionary of these by split.
            config: Name of the configuration, where the data set has several.
            split: Which split.
            field: The field that is the text.
            revision: Commit, branch or tag on the hub. Of a branch or tag the commit is asked for once, when it is
                opened; it stands in the provenance, and everything is read of it.
            n_documents: At most so many; None: all.
            seed: Draws the ``n_documents`` at random; None: the first ones. From an opened ``Dataset`` every record is
                equally likely. A stream gives the same number from each of its files, at random from a beginning
                ``spread`` times that long.
            spread: How far into each file of a stream a sample reaches, and how much more is read than is kept.
            streaming: Read without downloading everything first. A stream needs the hub; False reads a download again
                without it.
            retry: How a stream that breaks is read on.
            **options: More arguments of ``datasets.load_dataset``.
        """
        data = HubData(
            dataset, config, split, field, revision, n_documents, seed, spread, streaming, options=options
        )
        return cls(data, retry or Retry())

    @classmethod
    @checked
    def wikipedia(
        cls,
        n_documents: int | None = 10_000,
        *,
        seed: int = 0,
        spread: int = 10,
        revision: str = WIKIPEDIA[2],
        retry: Retry | None = None,
    ) -> "Corpus":
        """A sample of the English Wikipedia (November 2023, a fixed commit), streamed from the Hugging Face hub.

        Args:
            n_documents: Articles, in equal numbers from all files of the data set; None: all 6.4 million.
            seed: Which articles; with ``n_documents=None`` it has no meaning.
            spread: As in ``from_dataset``.
            revision: Commit of the data set.
            retry: How a stream that breaks is read on.
        """
        name, config, _ = WIKIPEDIA
        return cls.from_dataset(
            name,
            config,
            revision=revision,
            n_documents=n_documents,
            seed=None if n_documents is None else seed,
            spread=spread,
            retry=retry,
        )

    # --- what it gives --------------------------------------------------------------------------

    def __iter__(self) -> Iterator[str]:
        """The texts. ValueError if there is none in the whole corpus."""
        counts = Counts()
        for entry in self._entries():
            if isinstance(entry, Excluded):
                counts.left_out[entry.reason] += 1
            else:
                counts.texts += 1
                yield entry
        if counts.texts == 0:
            self._check_not_empty(counts)

    @checked
    def documents(
        self,
        tokenizer: Any,
        *,
        max_length: int | None = None,
        long: Long = "cut",
        min_length: int = 1,
        add_special_tokens: bool = True,
        begin_token: bool = False,
        progress: bool | None = None,
    ) -> "DocumentStream":
        """The texts as documents of token ids, with what of them are words and which text they are of.

        Args:
            tokenizer: The tokenizer of the model, a Hugging Face one.
            max_length: Tokens of a document at most, special ones included; None: no limit. Documents end between
                two words, unless a single word is longer.
            long: What becomes of longer ones: "cut" keeps the beginning, "chunk" makes several documents, each with its
                own special tokens.
            min_length: Documents of fewer tokens, special ones not counted, are left out.
            add_special_tokens: Whether the tokenizer adds its special tokens, as in pretraining.
            begin_token: Whether to put the tokenizer's begin token before a document where the tokenizer itself does
                not, for a model that was trained with one.
            progress: Whether to show a progress bar; by default in a terminal or a notebook.

        Example:
            >>> texts = ["the army lost the battle", "the band"]
            >>> tokenizer = tp.word_tokenizer(texts)
            >>> documents = tp.Corpus.from_texts(texts).documents(tokenizer, max_length=5, long="chunk")
            >>> for document in documents:
            ...     print(tokenizer.decode(document.ids))
            [CLS] the army lost [SEP]
            [CLS] the battle [SEP]
            [CLS] the band [SEP]
        """
        return DocumentStream(
            self,
            Encoder(tokenizer, max_length, long, add_special_tokens, begin_token),
            min_length,
            progress,
        )

    @checked
    def shard(self, index: int, n_shards: int) -> "Corpus":
        """One of ``n_shards`` shares, for as many processes; together they are the corpus, and none overlap.

        Where there are at least four files for each, whole files are shared out; otherwise every n-th text.

        Example:
            >>> corpus = tp.Corpus.from_texts(["first", "second", "third"])
            >>> list(corpus.shard(0, 2)), list(corpus.shard(1, 2))
            (['first', 'third'], ['second'])
        """
        if self.n_shards != 1:
            raise ValueError("this is a share of a corpus already: split the whole corpus")
        if n_shards < 1 or not 0 <= index < n_shards:
            raise ValueError(f"index must be in 0..n_shards - 1, got {index} of {n_shards}")
        return replace(self, shard_index=index, n_shards=n_shards)

    @property
    def provenance(self) -> dict[str, Any]:
        """What the corpus is, as plain JSON content."""
        return {**self.source.describe(), "shard_index": self.shard_index, "n_shards": self.n_shards}

    def __repr__(self) -> str:
        described = ", ".join(
            f"{name}={value!r}" for name, value in self.source.describe().items() if value is not None
        )
        share = f", share {self.shard_index} of {self.n_shards}" if self.n_shards > 1 else ""
        return f"Corpus({described}{share})"

    # --- reading --------------------------------------------------------------------------------

    def files(self) -> list["Run"]:
        """What falls into parts by itself: every file of a data set that is streamed; of all else everything."""
        if self.n_shards > 1 or not self.source.in_files:
            # Between the first texts there may be entries that are none.
            counted = self.n_shards == 1 and not isinstance(self.source, First)
            return [Run(self._from, self.source.n_entries if counted else None, self.source.name())]
        return [
            Run(partial(read_on, self.source, file, retry=self.retry), None, self.source.name(file))
            for file in range(self.source.n_parts)
        ]

    def identity(self) -> str:
        """A hash that equals another one only if the texts are the same; to know them they are read once.

        A stream of the hub is known by its commit.
        """
        described = self.source.name() or hash_of(map(content_of, self._entries()))
        return hashlib.sha256(json.dumps([described, self.shard_index, self.n_shards]).encode()).hexdigest()

    def _from(self, start: int) -> Iterator[str | Excluded]:
        """The entries of this share from a place on; nothing is counted."""
        return islice(self._entries(), start, None)

    def _entries(self) -> Iterator[str | Excluded]:
        n_parts = self.source.n_parts
        whole_files = n_parts >= 4 * self.n_shards
        for part in range(n_parts):
            if whole_files and part % self.n_shards != self.shard_index:
                continue
            for place, entry in enumerate(read_on(self.source, part, 0, retry=self.retry)):
                if whole_files or (part + place) % self.n_shards == self.shard_index:
                    yield entry

    def _n_entries(self) -> int | None:
        total = self.source.n_entries
        return None if total is None else math.ceil(total / self.n_shards)

    def _check_not_empty(self, counts: Counts) -> None:
        # The share of one process may be empty where there are more processes than texts.
        if self.n_shards == 1:
            why = "; ".join(f"{count} {reason}" for reason, count in counts.left_out.items() if count)
            raise ValueError(f"the corpus has no document ({why or 'it is empty'})")


class Run(NamedTuple):
    """Texts that follow each other.

    Attributes:
        read: the entries from one of them on.
        n_entries: how many there are; None where only reading would tell.
        name: what they are known by without being read, as a file of a commit is; None where only reading tells.
    """

    read: Callable[[int], Iterator[Any]]
    n_entries: int | None
    name: Mapping[str, Any] | None


def _first(source: Source, n_documents: int | None) -> Source:
    return source if n_documents is None else First(source, n_documents)


class DocumentStream:
    """Documents of a corpus, tokenized anew on every pass.

    Iterating gives a `Document` after the other; a measurement takes the stream as it is.

    Attributes:
        corpus: The texts.
        tokenizer: The tokenizer; it comes back as it went in.
        counts: What the last whole pass counted: texts, documents, tokens, and what was left out and why; None before
            there was one.
    """

    def __init__(self, corpus: Corpus, encoder: Encoder, min_length: int, progress: bool | None) -> None:
        if min_length < 1:
            raise ValueError(f"min_length must be at least 1, got {min_length}")
        self.corpus, self.tokenizer = corpus, encoder.tokenizer
        self._encoder, self._min_length, self._progress = encoder, min_length, progress
        self._given: Sequence[str | Excluded] | None = None
        self.counts: dict[str, Any] | None = None

    @property
    def provenance(self) -> dict[str, Any]:
        """Corpus, tokenizer, options, and what the last whole pass counted (None before there was one)."""
        return {
            "corpus": self.corpus.provenance,
            "tokenizer": tokenizer_hash(self.tokenizer),
            "options": self.options,
            "read": self.counts,
        }

    def of_entries(self, entries: Sequence[str | Excluded]) -> "DocumentStream":
        """The documents of some entries of the corpus."""
        part = copy.copy(self)
        part._given, part.counts, part._progress = entries, None, False
        return part

    @property
    def options(self) -> dict[str, Any]:
        """What changes the documents, as JSON content."""
        encoder = self._encoder
        return {
            "max_length": encoder.max_length,
            "long": encoder.long,
            "min_length": self._min_length,
            "add_special_tokens": encoder.add_special_tokens,
            "begin_token": encoder.begin_token,
        }

    def __repr__(self) -> str:
        counts = "not read yet" if self.counts is None else str(self.counts)
        return f"DocumentStream({self.corpus!r}, {self.options}): {counts}"

    def __length_hint__(self) -> Any:
        """About how many documents there are (``operator.length_hint``), where each text is one."""
        n_entries = self._n_entries()
        return NotImplemented if n_entries is None or self._encoder.long == "chunk" else n_entries

    def _n_entries(self) -> int | None:
        return self.corpus._n_entries() if self._given is None else len(self._given)

    def __iter__(self) -> Iterator[Document]:
        """The documents. ValueError if the whole corpus gives none."""
        counts = Counts()
        entries = self.corpus._entries() if self._given is None else iter(self._given)
        with progress_bar(total=self._n_entries(), unit=" texts", shown=self._progress) as bar:
            for texts in _texts_at_once(entries, counts):
                documents = self._encoded(texts, counts)
                bar.update(counts.texts - bar.n)
                yield from documents
        self.counts = counts.summary()
        if counts.documents == 0 and self._given is None:
            self.corpus._check_not_empty(counts)

    def _encoded(self, texts: list[str], counts: Counts) -> list[Document]:
        """The documents of some texts that are long enough, counted."""
        kept = []
        for document in (part for parts in self._encoder.encode(texts, counts) for part in parts or ()):
            length = len(document) - self._encoder.n_around
            if length >= self._min_length:
                counts.add(document)
                kept.append(document)
            else:
                counts.left_out[f"documents of fewer than {self._min_length} tokens"] += 1
                counts.left_out["tokens in these"] += length
        return kept


def _texts_at_once(entries: Iterator[str | Excluded], counts: Counts) -> Iterator[list[str]]:
    """Texts that the tokenizer is given at once; what is no text is counted."""
    texts: list[str] = []
    n_entries = n_letters = 0
    for entry in entries:
        counts.texts += 1
        n_entries += 1
        if isinstance(entry, Excluded):
            counts.left_out[entry.reason] += 1
        else:
            texts.append(entry)
            n_letters += len(entry)
        if n_entries == _TEXTS_AT_ONCE or n_letters >= _LETTERS_AT_ONCE:
            yield texts
            texts, n_entries, n_letters = [], 0, 0
    yield texts
