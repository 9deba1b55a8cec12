"""Texts of lists, files, articles inside gensim and data sets of the hub, read as a stream of documents."""

import bz2
import copy
import gzip
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, partial
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from topic_probe.notices import progress_bar
from topic_probe.options import check_whole, checked
from topic_probe.remote import hub_errors
from topic_probe.text.documents import Counts, Document, Long, hash_of
from topic_probe.text.encoder import Encoder
from topic_probe.topics.lookup import tokenizer_hash

__all__ = ["WIKIPEDIA", "Corpus", "DocumentStream"]

WIKIPEDIA = ("wikimedia/wikipedia", "20231101.en", "b04c8d1ceb2f5cd4588862100d08de323dccfbaa")
"""Name, configuration and commit of the English Wikipedia on the Hugging Face hub."""

# Texts that the tokenizer is given at once: enough for its threads, few enough to stay small.
_TEXTS_AT_ONCE, _LETTERS_AT_ONCE = 256, 1_000_000

NO_TEXT = "entries that are no text"
"""What is left out of a corpus: None, empty texts, invalid Unicode, records without the field, redirects."""

Entry = str | None  # None is an entry that is no text


class Section(NamedTuple):
    """Texts that can be opened by themselves: a file of a streamed data set, or all texts of any other corpus.

    Attributes:
        read: the entries from the first one on.
        n_entries: how many there are; None where only reading tells.
        name: what they are known by without being read, as a file of a commit is; None where only reading tells.
    """

    read: Callable[[], Iterable[Any]]
    n_entries: int | None = None
    name: Mapping[str, Any] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Corpus:
    """Texts that are read as a stream, as often as wanted, and never held whole in memory.

    Made by ``bundled``, ``from_texts``, ``from_files``, ``from_dataset`` or ``wikipedia``. Iterating gives the texts;
    ``documents`` gives them as token ids of a model's own tokenizer. What is no text (None, empty, invalid Unicode,
    another type, a record without the field) is left out and counted.

    Attributes:
        sections: What can be opened by itself.
        provenance: What the corpus is, as plain JSON content.
    """

    sections: Sequence[Section]
    provenance: Mapping[str, Any]

    # --- constructors ---------------------------------------------------------------------------

    @classmethod
    @checked
    def bundled(cls, *, n_documents: int | None = None) -> "Corpus":
        """About a hundred English Wikipedia articles that come with gensim, as prose; no network is needed.

        Most titles begin with an A. Markup is removed by gensim; headings, lists, tables and captions are left out.

        Args:
            n_documents: At most so many, the first ones; None: all.
        """
        pages = tuple(_first(_pages, n_documents)())
        about = {"source": "Wikipedia articles inside gensim", "gensim": version("gensim"), "file": _DUMP}
        return cls((Section(lambda: pages, len(pages)),), {**about, "n_documents": n_documents})

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
        refused = isinstance(texts, str | bytes | Mapping | Set | Iterator) or getattr(texts, "ndim", 1) != 1
        if refused or not (callable(texts) or isinstance(texts, Iterable)):
            raise TypeError(
                "a corpus needs a list of texts, or a function that returns a fresh iterator of them for every pass, "
                f"got {type(texts).__name__}: {texts!r:.80}"
            )
        n = len(texts) if hasattr(texts, "__len__") else None
        section = Section(lambda: map(_usable, texts() if callable(texts) else texts), n)
        return cls((section,), {"source": "texts", "n_texts": n})

    @classmethod
    @checked
    def from_files(
        cls,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        field: str = "text",
        split: Literal["file", "line"] = "file",
        n_documents: int | None = None,
    ) -> "Corpus":
        """The texts of files: ``.txt``, ``.jsonl``, and both with ``.gz``, in UTF-8.

        Args:
            paths: A file, a folder (searched through, sorted by name), or several.
            field: The field of a record of ``.jsonl`` that is the text.
            split: What is a text in ``.txt``: the whole "file" or each "line". Intervals resample texts: choose "file"
                where lines are of one article, and ``long="chunk"`` to cut it into documents.
            n_documents: At most so many texts, the first ones; None: all.

        Example:
            >>> import pathlib, tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     for name, text in {"a.txt": "The army lost.", "b.txt": "The band played."}.items():
            ...         _ = pathlib.Path(folder, name).write_text(text)
            ...     list(tp.Corpus.from_files(folder))
            ['The army lost.', 'The band played.']
        """
        files = _files([paths] if isinstance(paths, str | os.PathLike) else paths)
        each_is_one = split == "file" and n_documents is None and all(_is_plain(file) for file in files)
        about = {
            "source": "files", "n_files": len(files), "first_file": str(files[0]), "field": field, "split": split,
            "n_documents": n_documents,
        }  # fmt: skip
        read = _first(partial(_read_files, files, field, split), n_documents)
        return cls((Section(read, len(files) if each_is_one else None),), about)

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
        streaming: bool = True,
        **options: Any,
    ) -> "Corpus":
        """The texts of a `datasets` data set: its name on the hub, its folder, or the opened object.

        Args:
            dataset: Name, folder, ``Dataset``, ``IterableDataset`` or a dictionary of these by split.
            config: Name of the configuration, where the data set has several.
            split: Which split.
            field: The field that is the text.
            revision: Commit, branch or tag on the hub. The commit that it means now stands in the provenance, and
                everything is read of it.
            n_documents: At most so many; None: all.
            seed: Draws the ``n_documents`` at random; None: the first ones. From an opened ``Dataset`` every record is
                equally likely. A stream gives the same number from each of its files, at random from a beginning ten
                times that long.
            streaming: Read without downloading everything first. A stream needs the hub; False reads a download again
                without it.
            **options: More arguments of ``datasets.load_dataset``.
        """
        if n_documents is not None:
            check_whole("n_documents", n_documents)
        if seed is not None and n_documents is None:
            raise ValueError("seed draws a sample, so it needs n_documents as well")
        name, data, commit = type(dataset).__name__, dataset, None
        if isinstance(dataset, str | os.PathLike):
            name = os.fspath(dataset)
            data, commit = _open(name, config, split, revision, streaming, options)
        data = (data[split] if isinstance(data, Mapping) else data).select_columns([field])
        about = {
            "source": "datasets", "name": name, "config": config, "split": split, "revision": commit, "field": field,
            "n_documents": n_documents, "seed": seed,
        }  # fmt: skip
        if hasattr(data, "select"):
            return cls((_rows(data, field, n_documents, seed),), about)
        # Options may mean other texts of the same commit.
        return cls(
            tuple(
                _files_of_stream(data, field, n_documents, seed, about if commit and not options else None)
            ),
            about,
        )

    @classmethod
    @checked
    def wikipedia(
        cls, n_documents: int | None = 10_000, *, seed: int = 0, revision: str = WIKIPEDIA[2]
    ) -> "Corpus":
        """A sample of the English Wikipedia (November 2023, a fixed commit), streamed from the Hugging Face hub.

        Args:
            n_documents: Articles, in equal numbers from all files of the data set; None: all 6.4 million.
            seed: Which articles; with ``n_documents=None`` it has no meaning.
            revision: Commit of the data set.
        """
        name, config, _ = WIKIPEDIA
        drawn = None if n_documents is None else seed
        return cls.from_dataset(name, config, revision=revision, n_documents=n_documents, seed=drawn)

    # --- what it gives --------------------------------------------------------------------------

    def entries(self) -> Iterator[Entry]:
        """The texts, and None for every entry that is none."""
        return chain.from_iterable(section.read() for section in self.sections)

    @property
    def n_entries(self) -> int | None:
        """Number of entries; None where only reading tells."""
        numbers = [section.n_entries for section in self.sections if section.n_entries is not None]
        return sum(numbers) if len(numbers) == len(self.sections) else None

    def __iter__(self) -> Iterator[str]:
        """The texts."""
        return (entry for entry in self.entries() if entry is not None)

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
        if min_length < 1:
            raise ValueError(f"min_length must be at least 1, got {min_length}")
        encoder = Encoder(tokenizer, max_length, long, add_special_tokens, begin_token)
        return DocumentStream(self, encoder, min_length, progress)

    def identity(self) -> str:
        """A hash that equals another one only if the texts are the same; they are read once where no commit tells."""
        names = [section.name for section in self.sections]
        known = hash_of(map(content_of, self.entries())) if None in names else names
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()

    def __repr__(self) -> str:
        described = (f"{name}={value!r}" for name, value in self.provenance.items() if value is not None)
        return f"Corpus({', '.join(described)})"


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
        self.corpus, self.tokenizer = corpus, encoder.tokenizer
        self._encoder, self._min_length, self._progress = encoder, min_length, progress
        self._may_be_empty = False
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

    def of_entries(self, entries: Sequence[Entry]) -> "DocumentStream":
        """The documents of some entries of the corpus."""
        part = copy.copy(self)
        part.corpus = replace(self.corpus, sections=[Section(lambda: entries, len(entries))])
        part.counts, part._progress, part._may_be_empty = None, False, True
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
        n_entries = self.corpus.n_entries
        return NotImplemented if n_entries is None or self._encoder.long == "chunk" else n_entries

    def __iter__(self) -> Iterator[Document]:
        """The documents. ValueError if the whole corpus gives none."""
        counts = Counts()
        with progress_bar(total=self.corpus.n_entries, unit=" texts", shown=self._progress) as bar:
            for texts in _texts_at_once(self.corpus.entries(), counts):
                documents = self._encoded(texts, counts)
                bar.update(counts.texts - bar.n)
                yield from documents
        self.counts = counts.summary()
        if counts.documents == 0 and not self._may_be_empty:
            raise ValueError(
                f"the corpus gives no document: {counts.texts} texts read, left out {dict(counts.left_out)}"
            )

    def _encoded(self, texts: list[str], counts: Counts) -> list[Document]:
        """The documents of some texts that are long enough, counted."""
        kept = []
        for document in chain.from_iterable(pieces or () for pieces in self._encoder.encode(texts, counts)):
            length = len(document) - self._encoder.n_around
            if length >= self._min_length:
                counts.add(document)
                kept.append(document)
            else:
                counts.left_out[f"documents of fewer than {self._min_length} tokens"] += 1
                counts.left_out["tokens in these"] += length
        return kept


def _texts_at_once(entries: Iterator[Entry], counts: Counts) -> Iterator[list[str]]:
    """Texts that the tokenizer is given at once; what is no text is counted."""
    texts: list[str] = []
    n_entries = n_letters = 0
    for entry in entries:
        counts.texts += 1
        n_entries += 1
        if entry is None:
            counts.left_out[NO_TEXT] += 1
        else:
            texts.append(entry)
            n_letters += len(entry)
        if n_entries == _TEXTS_AT_ONCE or n_letters >= _LETTERS_AT_ONCE:
            yield texts
            texts, n_entries, n_letters = [], 0, 0
    yield texts


# --- one entry ---------------------------------------------------------------------------------------


def _usable(value: Any) -> Entry:
    """The value where it is a text with which something can be done."""
    if not isinstance(value, str) or not value or value.isspace():
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return value


def _field_of(record: Any, field: str, place: int) -> Entry:
    """The text in a field of a record; ValueError where the first record lacks it, because then all of them may."""
    if isinstance(record, Mapping) and field in record:
        return _usable(record[field])
    if place > 0:
        return None
    found = sorted(record) if isinstance(record, Mapping) else type(record).__name__
    raise ValueError(f"the first record has no field {field!r}; it has {found}: name one with field=")


def content_of(entry: Entry) -> bytes:
    """An entry for a hash."""
    # The length keeps ["ab", "c"] and ["a", "bc"] apart.
    content = b"" if entry is None else entry.encode()
    return f"{len(content)}:".encode() + content


def _first(read: Callable[[], Iterable[Entry]], n_documents: int | None) -> Callable[[], Iterable[Entry]]:
    """Reads the first texts only, and what is no text between them."""
    if n_documents is None:
        return read
    check_whole("n_documents", n_documents)

    def first() -> Iterator[Entry]:
        missing = n_documents
        for entry in read():
            yield entry
            missing -= entry is not None
            if not missing:
                return

    return first


# --- files -------------------------------------------------------------------------------------------


def _files(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """The files of some paths, in their order; folders are searched through."""
    found: list[Path] = []
    for path in map(Path, paths):
        path = path.expanduser()
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist{_near(path)}")
        found += sorted(filter(_is_text, path.rglob("*"))) if path.is_dir() else [path]
    if not found or not all(map(_is_text, found)):
        raise ValueError(
            f"needed are .txt or .jsonl files (or these with .gz), got {list(map(str, paths))!r:.200}"
        )
    return found


def _near(path: Path) -> str:
    """What lies beside a path and has nearly its name, as a question."""
    beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = get_close_matches(path.name, beside, n=1)
    return f"; did you mean {str(path.parent / near[0])!r}?" if near else ""


def _is_text(path: Path) -> bool:
    return path.is_file() and path.name.lower().removesuffix(".gz").endswith((".txt", ".jsonl"))


def _is_plain(path: Path) -> bool:
    return path.name.lower().removesuffix(".gz").endswith(".txt")


def _read_files(files: Iterable[Path], field: str, split: str) -> Iterator[Entry]:
    for file in files:
        if not _is_plain(file):
            lines = (line for line in _lines(file) if not line.isspace())
            yield from (_record(line, field, place) for place, line in enumerate(lines))
        elif split == "file":
            yield _usable("".join(_lines(file)))
        else:
            yield from (_usable(line.strip()) for line in _lines(file) if not line.isspace())


def _record(line: str, field: str, place: int) -> Entry:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return _field_of(record, field, place)


def _lines(file: Path) -> Iterator[str]:
    """The lines of a file; ValueError where it is not UTF-8."""
    opened: Any = gzip.open if file.suffix.lower() == ".gz" else open
    try:
        with opened(file, "rt", encoding="utf-8-sig") as lines:
            for line in lines:
                if "\0" in line:  # UTF-16 of English reads as UTF-8 with these
                    raise ValueError("it holds a NUL character")
                yield line
    except (EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{file} is no whole gzip file ({error}): get it again or leave it out") from error
    except ValueError as error:
        raise ValueError(
            f"{file} is no text in UTF-8 ({error}): convert it (`iconv -f UTF-16 -t UTF-8`), or leave it out"
        ) from error


# --- the articles that come with gensim ----------------------------------------------------------------

_DUMP = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
_ENDS_A_SENTENCE = re.compile(r"[.!?][\"'”’)]*(\s|$)")
_LEFTOVERS = re.compile(r"^(File|Image):|\.(jpe?g|png|svg|gif)\|", re.IGNORECASE)
_SHORTEST_LINE = 40


@cache
def _pages() -> tuple[Entry, ...]:
    """All pages, three megabytes, kept because cleaning them takes a second."""
    from gensim.corpora.wikicorpus import extract_pages, filter_wiki
    from gensim.test.utils import datapath

    with bz2.open(datapath(_DUMP)) as file:
        sources = [source for _, source, _ in extract_pages(file, ("0",))]
    return tuple(
        None if source.lstrip().upper().startswith("#REDIRECT") else _usable(prose(filter_wiki(source)))
        for source in sources
    )


def prose(text: str) -> str:
    """The paragraphs of an article, a line each, without what is left of headings, lists, tables and captions."""
    lines = (line.strip() for line in re.sub("'{2,}", "", text).splitlines())
    return "\n".join(line for line in lines if _is_prose(line))


def _is_prose(line: str) -> bool:
    return (
        len(line) >= _SHORTEST_LINE
        and line[0] not in "*#:;|!{=}-"
        and _ENDS_A_SENTENCE.search(line) is not None
        and _LEFTOVERS.search(line) is None
    )


# --- data sets ---------------------------------------------------------------------------------------

# A sample of a file is drawn from a beginning so many times as long.
_SPREAD = 10


def _open(
    name: str,
    config: str | None,
    split: str,
    revision: str | None,
    streaming: bool,
    options: Mapping[str, Any],
) -> tuple[Any, str | None]:
    """The data set of a name or folder, and of the hub its commit."""
    from datasets import load_dataset, load_from_disk
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES
    from huggingface_hub import HfApi

    path = Path(name).expanduser()
    if (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file():
        return load_from_disk(str(path)), None
    load = partial(load_dataset, name=config, split=split, streaming=streaming, **options)
    if name and path.exists():
        return load(
            str(path.resolve())
        ), None  # absolute: "text" is a reader of files to `datasets`, and no folder
    if name in _PACKAGED_DATASETS_MODULES:  # "json", "text": how to read files, not what
        if options.keys().isdisjoint({"data_files", "data_dir"}):
            raise ValueError(
                f"there is no file or folder {name!r}{_near(path)}; to `datasets` this name means to read every file "
                "of the current folder: say which with data_files= or data_dir=, or use Corpus.from_files"
            )
        return load(name), None
    with hub_errors(name, _WITHOUT_HUB):
        token = options.get("token")
        # A copy on this machine needs no hub, and is of the commit that it was downloaded at.
        commit = HfApi(token=token).dataset_info(name, revision=revision).sha if streaming else revision
        return load(name, revision=commit), commit


_WITHOUT_HUB = (
    "Without a network, streaming=False reads what was downloaded before, Corpus.bundled() has real articles and "
    "Corpus.from_files reads your own"
)


def _rows(data: Any, field: str, n_documents: int | None, seed: int | None) -> Section:
    """The rows of a data set that is on this machine, or those that the seed draws."""
    n = len(data) if n_documents is None else min(n_documents, len(data))
    places: Any = range(n)
    if seed is not None:
        places = np.sort(np.random.default_rng(seed).choice(len(data), n, replace=False))
    return Section(partial(_read_rows, data.with_format(None).select(places), field), n)


def _files_of_stream(
    data: Any, field: str, n_documents: int | None, seed: int | None, name: Mapping[str, Any] | None
) -> Iterator[Section]:
    """The files of a stream, or a sample of each; the first records of a stream are one section."""
    if seed is None and n_documents is not None:
        yield Section(partial(_read_rows, data.take(n_documents), field), n_documents, name)
        return
    n_files = getattr(data, "num_shards", 1)
    order = range(n_files) if seed is None else np.random.default_rng(seed).permutation(n_files)[:n_documents]
    for place, file in enumerate(order):
        rows = data.shard(num_shards=n_files, index=int(file))
        if n_documents is None:
            yield Section(partial(_read_rows, rows, field), None, name)
        else:
            n = n_documents // n_files + (place < n_documents % n_files)
            yield Section(partial(_read_sample, rows, field, n, (seed or 0, int(file))), n, name)


def _read_sample(rows: Iterable[Any], field: str, n: int, seed: Sequence[int]) -> Iterator[Entry]:
    """Some rows of a file, each of its beginning equally likely; `datasets` waits seconds to shuffle a file."""
    generator = np.random.default_rng(seed)
    kept: list[Entry] = []
    for place, entry in enumerate(islice(_read_rows(rows, field), _SPREAD * n)):
        at = place if place < n else int(generator.integers(place + 1))
        if at < n:
            kept[at : at + 1] = [entry]
    yield from kept


def _read_rows(rows: Iterable[Any], field: str) -> Iterator[Entry]:
    return (_field_of(row, field, place) for place, row in enumerate(rows))
