"""Texts of lists, files, articles inside gensim and data sets of the hub, read as a stream of documents."""

import bz2
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

from topic_probe.options import check_whole, checked, progress_bar
from topic_probe.remote import hub_errors
from topic_probe.text.documents import Counts, Document, Long, hash_of
from topic_probe.text.encoder import Encoder, is_unicode
from topic_probe.topics.lookup import tokenizer_hash

__all__ = ["WIKIPEDIA", "Corpus", "DocumentStream"]

WIKIPEDIA = ("wikimedia/wikipedia", "20231101.en", "b04c8d1ceb2f5cd4588862100d08de323dccfbaa")
"""Name, configuration and commit of the English Wikipedia on the Hugging Face hub."""

# Texts that the tokenizer is given at once: enough for its threads, few enough to stay small.
_TEXTS_AT_ONCE, _LETTERS_AT_ONCE = 256, 1_000_000

NO_TEXT = "entries that are no text"

Entry = str | None  # None is an entry that is no text


class Section(NamedTuple):
    """Texts that can be opened by themselves: a file of a streamed data set, or all texts of any other corpus."""

    read: Callable[[], Iterable[Any]]  # the entries from the first one on
    n_entries: int | None = None  # None where only reading tells
    name: Mapping[str, Any] | None = None  # what they are known by unread, as a file of a commit is


@dataclass(frozen=True, eq=False, repr=False)
class Corpus:
    """Texts that are read as a stream, as often as wanted; iterating gives them, ``documents`` their token ids.

    What is no text (None, empty, invalid Unicode, another type, a record without the field) is left out and counted.

    Attributes:
        sections: What can be opened by itself.
        provenance: What the corpus is, as plain JSON content.
    """

    sections: Sequence[Section]
    provenance: Mapping[str, Any]

    @classmethod
    @checked
    def bundled(cls, *, n_documents: int | None = None) -> "Corpus":
        """About a hundred English Wikipedia articles that come with gensim, as prose; no network is needed.

        Most titles begin with an A. Markup is removed by gensim; headings, lists, tables and captions are left out.

        Args:
            n_documents: At most so many, the first ones; None: all.
        """
        _check_number(n_documents)
        pages = tuple(_first(_pages(), n_documents))
        about = {"source": "Wikipedia articles inside gensim", "gensim": version("gensim"), "file": _DUMP}
        return cls((Section(lambda: pages, len(pages)),), {**about, "n_documents": n_documents})

    @classmethod
    def from_texts(cls, texts: Any) -> "Corpus":
        """The texts of a list, or of anything else that can be iterated more than once.

        Args:
            texts: Strings. A function without arguments that returns a fresh iterator is called for every pass: this
                is the way for what does not fit into memory.
        """
        refused = isinstance(texts, str | Mapping | Set | Iterator) or getattr(texts, "ndim", 1) != 1
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
        """
        _check_number(n_documents)
        files = _files([paths] if isinstance(paths, str | os.PathLike) else paths)
        each_is_one = split == "file" and n_documents is None and all(_kind(file) == ".txt" for file in files)
        about = {
            "source": "files", "n_files": len(files), "first_file": str(files[0]), "field": field, "split": split,
            "n_documents": n_documents,
        }  # fmt: skip

        def read() -> Iterator[Entry]:
            entries = (_read_file(file, field, split) for file in files)
            return _first(chain.from_iterable(entries), n_documents)

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
            revision: Commit, branch or tag on the hub. The commit that is read stands in the provenance.
            n_documents: At most so many; None: all.
            seed: Draws the ``n_documents`` at random; None: the first ones. From an opened ``Dataset`` every record is
                equally likely. A stream gives the same number from each of its files, at random from a beginning ten
                times that long.
            streaming: Read without downloading everything first. A stream needs the hub; False downloads, and without
                the hub reads the last download again, which a commit as ``revision`` holds to that commit.
            **options: More arguments of ``datasets.load_dataset``.
        """
        _check_number(n_documents)
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
        known_by = about if commit and not options else None
        return cls(tuple(_files_of_stream(data, field, n_documents, seed, known_by)), about)

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
        drawn = None if n_documents is None else seed
        return cls.from_dataset(*WIKIPEDIA[:2], revision=revision, n_documents=n_documents, seed=drawn)

    def entries(self) -> Iterator[Entry]:
        """The texts, and None for every entry that is none."""
        return chain.from_iterable(section.read() for section in self.sections)

    @property
    def n_entries(self) -> int | None:
        """Number of entries; None where only reading tells."""
        known = [section.n_entries for section in self.sections if section.n_entries is not None]
        return sum(known) if len(known) == len(self.sections) else None

    def __iter__(self) -> Iterator[str]:
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

    Attributes:
        corpus: The texts.
        tokenizer: The tokenizer.
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
        """Corpus, tokenizer, options and counts."""
        return {
            "corpus": self.corpus.provenance,
            "tokenizer": tokenizer_hash(self.tokenizer),
            "options": self.options,
            "read": self.counts,
        }

    def of_entries(self, entries: Sequence[Entry]) -> "DocumentStream":
        """The documents of some entries of the corpus."""
        corpus = replace(self.corpus, sections=[Section(lambda: entries, len(entries))])
        part = DocumentStream(corpus, self._encoder, self._min_length, progress=False)
        part._may_be_empty = True
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

    def __length_hint__(self) -> Any:
        """About how many documents there are (``operator.length_hint``), where each text is one."""
        n_entries = self.corpus.n_entries
        return NotImplemented if n_entries is None or self._encoder.long == "chunk" else n_entries

    def __iter__(self) -> Iterator[Document]:
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
        for document in chain.from_iterable(self._encoder.encode(texts, counts)):
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
    n_letters = 0
    for entry in entries:
        counts.texts += 1
        if entry is None:
            counts.left_out[NO_TEXT] += 1
            continue
        texts.append(entry)
        n_letters += len(entry)
        if len(texts) == _TEXTS_AT_ONCE or n_letters >= _LETTERS_AT_ONCE:
            yield texts
            texts, n_letters = [], 0
    yield texts


def _usable(value: Any) -> Entry:
    """The value where it is a text with which something can be done."""
    if not isinstance(value, str) or not value or value.isspace():
        return None
    return value if is_unicode(value) else None


def content_of(entry: Entry) -> bytes:
    """An entry for a hash."""
    # The length keeps ["ab", "c"] and ["a", "bc"] apart.
    content = b"" if entry is None else entry.encode()
    return f"{len(content)}:".encode() + content


def _first(entries: Iterable[Entry], n_documents: int | None) -> Iterator[Entry]:
    """The entries up to the last text that is wanted."""
    n_texts = 0
    for entry in entries:
        yield entry
        n_texts += entry is not None
        if n_texts == n_documents:
            return


def _check_number(n_documents: int | None) -> None:
    if n_documents is not None:
        check_whole("n_documents", n_documents)


# --- files -------------------------------------------------------------------------------------------


_KINDS = (".txt", ".jsonl")


def _files(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """The files of some paths, in their order; folders are searched through."""
    found: list[Path] = []
    for path in map(Path, paths):
        path = path.expanduser()
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist{_near(path)}")
        inside = (file for file in path.rglob("*") if file.is_file() and _kind(file) in _KINDS)
        found += sorted(inside) if path.is_dir() else [path]
    if not found or any(_kind(file) not in _KINDS for file in found):
        raise ValueError(
            f"needed are .txt or .jsonl files (or these with .gz), got {list(map(str, paths))!r:.200}"
        )
    return found


def _near(path: Path) -> str:
    """What lies beside a path and has nearly its name, as a question."""
    beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = get_close_matches(path.name, beside, n=1)
    return f"; did you mean {str(path.parent / near[0])!r}?" if near else ""


def _kind(path: Path) -> str:
    """What is in a file, packed or not, by the end of its name."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _read_file(file: Path, field: str, split: str) -> Iterator[Entry]:
    lines = (line for line in _lines(file) if not line.isspace())
    if _kind(file) == ".jsonl":
        yield from (_text_of_record(line, field, place) for place, line in enumerate(lines))
    elif split == "line":
        yield from (_usable(line.strip()) for line in lines)
    else:
        yield _usable("".join(_lines(file)))


def _text_of_record(line: str, field: str, place: int) -> Entry:
    """The text of a line of JSON; ValueError where the first one lacks the field, because then all of them may."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if isinstance(record, Mapping) and field in record:
        return _usable(record[field])
    if place > 0:
        return None
    found = sorted(record) if isinstance(record, Mapping) else type(record).__name__
    raise ValueError(f"the first record has no field {field!r}; it has {found}: name one with field=")


def _lines(file: Path) -> Iterator[str]:
    opened: Any = gzip.open if file.suffix.lower() == ".gz" else open
    try:
        with opened(file, "rt", encoding="utf-8-sig") as lines:
            yield from lines
    except (EOFError, gzip.BadGzipFile, ValueError) as error:
        raise ValueError(
            f"{file} cannot be read as text in UTF-8 ({error}): convert it, as by iconv, or leave it out"
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
        whole = str(path.resolve())  # "text" is a reader of files to `datasets`, and no folder
        return load(whole), None
    if name in _PACKAGED_DATASETS_MODULES:  # "json", "text": how to read files, not what
        if options.keys().isdisjoint({"data_files", "data_dir"}):
            raise ValueError(
                f"there is no file or folder {name!r}{_near(path)}; to `datasets` this name means to read every file "
                "of the current folder: say which with data_files= or data_dir=, or use Corpus.from_files"
            )
        return load(name), None
    with hub_errors(name, _WITHOUT_HUB):
        if not streaming:
            data = load(name, revision=revision)
            return data, _commit_of_copy(data, revision)
        commit = HfApi(token=options.get("token")).dataset_info(name, revision=revision).sha
        return load(name, revision=commit), commit


_WITHOUT_HUB = (
    "Without a network, streaming=False reads what was downloaded before, Corpus.bundled() has real articles and "
    "Corpus.from_files reads your own"
)


def _commit_of_copy(data: Any, revision: str | None) -> str | None:
    """The commit of a copy on this machine; FileNotFoundError where another one is needed.

    Where the hub does not answer, `datasets` gives the copy that was made last, whatever the revision.
    """
    folders = {Path(file["filename"]).parent.name for file in data.cache_files}
    commit = next(filter(_COMMIT.fullmatch, folders), None)
    if commit is not None and commit != revision and _COMMIT.fullmatch(revision or ""):
        raise FileNotFoundError(f"needed is commit {revision}, and the copy on this machine is of {commit}")
    return commit


_COMMIT = re.compile("[0-9a-f]{40}")


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
    n_files = data.num_shards
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
    return (_usable(row[field]) for row in rows)
