"""Where texts come from, and how they are read: lists, functions, files, and articles that come with gensim.

A source has parts (its files, or one) and reads any part from any place on. That is all that resuming a broken
stream, sampling and sharing out need.
"""

import bz2
import codecs
import gzip
import io
import json
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from dataclasses import field as attribute
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from topic_probe.notices import warn
from topic_probe.options import check_whole
from topic_probe.remote import Retry, is_transient

EMPTY = "empty texts"
MISSING = "missing texts (None)"
NOT_TEXT = "entries that are no text"
NO_UNICODE = "texts with invalid Unicode"
NO_FIELD = "records without the field"
NOT_JSON = "lines that are no JSON"
REDIRECTS = "redirects"
NO_TEXT = frozenset({EMPTY, MISSING, NOT_TEXT, NO_UNICODE, NO_FIELD, NOT_JSON, REDIRECTS})
"""Why an entry of a source is no text."""


@dataclass(frozen=True)
class Excluded:
    """An entry of a source that is no text, and why."""

    reason: str


class Source(ABC):
    """What a corpus reads."""

    @property
    @abstractmethod
    def n_parts(self) -> int:
        """Parts, which are read one after another."""

    @property
    @abstractmethod
    def n_entries(self) -> int | None:
        """Entries of all parts; None where only reading would tell."""

    @abstractmethod
    def read(self, part: int, start: int) -> Iterator[str | Excluded]:
        """The entries of a part, without the first ``start``."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What is read, as JSON content for the provenance of a result."""

    @property
    def in_files(self) -> bool:
        """Whether parts are files that can be opened one by one, each as long as all others."""
        return False

    def name(self, part: int = 0) -> dict[str, Any] | None:
        """What a part is known by without being read; None where only reading tells."""
        return None


@dataclass(frozen=True)
class First(Source):
    """The first texts of a source, whatever part they are in, and what is no text between them."""

    source: Source
    n_documents: int
    n_parts: int = attribute(default=1, init=False)

    def __post_init__(self) -> None:
        check_whole("n_documents", self.n_documents)

    @property
    def n_entries(self) -> int | None:
        """No more than there are; None where only reading would tell."""
        every = self.source.n_entries
        return None if every is None else min(every, self.n_documents)

    def read(self, part: int, start: int) -> Iterator[str | Excluded]:
        """The entries up to the last one that is wanted, without the first ``start``."""
        return islice(self._entries(), start, None)

    def _entries(self) -> Iterator[str | Excluded]:
        missing = self.n_documents
        for part in range(self.source.n_parts):
            for entry in self.source.read(part, 0):
                yield entry
                missing -= isinstance(entry, str)
                if not missing:
                    return

    def describe(self) -> dict[str, Any]:
        """What they are the first of, and how many."""
        return {**self.source.describe(), "n_documents": self.n_documents}


# --- reading on after a break ------------------------------------------------------------------------


def read_on(source: Source, part: int, start: int, retry: Retry) -> Iterator[str | Excluded]:
    """The entries of a part from ``start`` on; after a break the part is opened again at the place reached.

    The last entry before the break is read once more and compared, because a stream that comes back in another order
    would otherwise repeat some texts and lose others unseen.
    """
    place, last, breaks, since = start, None, 0, time.monotonic()
    while True:
        try:
            entries = source.read(part, place if last is None else place - 1)
            if last is not None and next(entries, None) != last:
                raise RuntimeError(
                    f"after a break, part {part} of the stream came back with another text at place {place - 1}: its "
                    "order is not fixed, so it cannot be read on; pin its revision, or download it first"
                )
            for entry in entries:
                place, last, breaks = place + 1, entry, 0
                yield entry
                since = time.monotonic()
            return
        except Exception as error:
            if not is_transient(error):
                raise
            breaks += 1
            if breaks > retry.attempts or time.monotonic() - since > retry.patience:
                often = "once" if breaks == 1 else f"{breaks} times in a row"
                raise ConnectionError(
                    f"the stream broke {often} in part {part} after {place} texts: {error!r}. "
                    "A measurement with folder= goes on behind its last part when it is called again"
                ) from error
            wait = retry.seconds(breaks, error)
            warn(
                f"the stream broke in part {part} after {place} texts ({error!r}); read on in {wait:g} s",
                stacklevel=2,
            )
            retry.sleep(wait)


# --- one entry ---------------------------------------------------------------------------------------


def as_entry(value: Any, *, first: bool) -> str | Excluded:
    """The value as a text, or the reason why it is none; TypeError if it is the first of all.

    Where the first entry is of the wrong type, all of them probably are, and counting would hide it.
    """
    if isinstance(value, str):
        return checked(value)
    if value is None or (isinstance(value, float) and value != value):
        return Excluded(MISSING)
    if not first:
        return Excluded(NOT_TEXT)
    ids = " (token ids need no corpus: measure them as they are)" if isinstance(value, Sequence) else ""
    raise TypeError(
        f"a corpus needs texts, which are strings, got {type(value).__name__}: {value!r:.80}{ids}"
    )


def checked(text: str) -> str | Excluded:
    """The text, or the reason why nothing can be done with it."""
    if not text or text.isspace():
        return Excluded(EMPTY)
    try:
        text.encode()
    except UnicodeEncodeError:
        return Excluded(NO_UNICODE)
    return text


def field_of(record: Any, field: str, *, first: bool) -> str | Excluded:
    """The text in a field of a record, or the reason why there is none; an error if it is the first of all."""
    if isinstance(record, Mapping) and field in record:
        return as_entry(record[field], first=first)
    if not first:
        return Excluded(NO_FIELD)
    found = sorted(map(str, record)) if isinstance(record, Mapping) else type(record).__name__
    raise ValueError(f"the first record has no field {field!r}; it has {found}: name one with field=")


def content_of(entry: str | Excluded) -> bytes:
    """An entry for a hash, that of no text included."""
    # The length keeps ["ab", "c"] and ["a", "bc"] apart.
    mark, text = ("-", entry.reason) if isinstance(entry, Excluded) else ("+", entry)
    content = text.encode()
    return f"{mark}{len(content)}:".encode() + content


# --- texts at hand -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Texts(Source):
    """Texts of a list or of anything else that can be iterated again, or of a function that starts over."""

    texts: Any
    n_parts: int = attribute(default=1, init=False)

    def __post_init__(self) -> None:
        texts = self.texts
        if isinstance(texts, str | bytes):
            raise TypeError("a corpus needs a list of texts; this is one text: put it into a list")
        if isinstance(texts, Mapping) or getattr(texts, "ndim", 1) != 1:
            raise TypeError(
                f"a corpus needs a list of texts, and {type(texts).__name__} has several of something: pass the column "
                "or the values that are the texts"
            )
        if isinstance(texts, Set):
            raise TypeError(
                "a corpus needs texts in an order that stays, and a set has none: sort it into a list"
            )
        if isinstance(texts, Iterator):
            raise TypeError(
                "a corpus is read several times and an iterator only once: pass a list, or a function that returns a "
                "fresh iterator, such as lambda: read_my_texts(path)"
            )
        if not (callable(texts) or isinstance(texts, Iterable)):
            raise TypeError(f"a corpus needs texts, got {type(texts).__name__}")
        if self.n_entries == 0:
            raise ValueError("a corpus needs at least one text, the list is empty")

    @property
    def n_entries(self) -> int | None:
        """Length of the list, None for what has no length."""
        return len(self.texts) if hasattr(self.texts, "__len__") else None

    def read(self, part: int, start: int) -> Iterator[str | Excluded]:
        """The texts without the first ``start``."""
        texts = self.texts() if callable(self.texts) else self.texts
        if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
            raise TypeError(
                f"the function of a corpus must return texts to go through, it returned {texts!r:.80}"
            )
        for place, value in enumerate(islice(texts, start, None), start):
            yield as_entry(value, first=place == 0)

    def describe(self) -> dict[str, Any]:
        """Only that they came from memory: their hash is made where it is needed."""
        return {"source": "texts", "n_texts": self.n_entries}


# --- files -------------------------------------------------------------------------------------------

_TXT, _JSONL = ".txt", ".jsonl"
Split = Literal["file", "line", "paragraph"]


@dataclass(frozen=True)
class Files(Source):
    """Text files and JSON lines, plain or compressed with gzip."""

    paths: tuple[Path, ...]
    field: str = "text"
    split: Split = "file"
    skipped: int = 0

    @classmethod
    def of(cls, paths: Any, *, field: str, split: Split) -> "Files":
        """The files of some paths; folders are searched through, in the order of their names."""
        given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        found: list[Path] = []
        skipped = 0
        for path in map(_path, given):
            if not path.exists():
                raise FileNotFoundError(f"{path} does not exist")
            if path.is_dir():
                inside = [file for file in sorted(path.rglob("*")) if not file.is_dir()]
                found += (fitting := [file for file in inside if file.is_file() and _kind(file)])
                skipped += len(inside) - len(fitting)
            elif not path.is_file():
                raise ValueError(
                    f"{path} is a pipe or a device, and a corpus reads its files several times: write the texts into a "
                    "file first, or pass a list to Corpus.from_texts"
                )
            elif _kind(path) is None:
                raise ValueError(f"{path} is neither .txt nor .jsonl (nor one of these with .gz)")
            else:
                found.append(path)
        if not found:
            raise ValueError(f"there is no .txt or .jsonl file (or one of these with .gz) in {given}")
        return cls(tuple(found), field, split, skipped)

    @property
    def n_parts(self) -> int:
        """Number of files."""
        return len(self.paths)

    @property
    def n_entries(self) -> int | None:
        """Number of files where each is a text; otherwise None."""
        whole = self.split == "file" and all(_kind(path) == _TXT for path in self.paths)
        return len(self.paths) if whole else None

    def read(self, part: int, start: int) -> Iterator[str | Excluded]:
        """The texts of a file without the first ``start``."""
        path = self.paths[part]
        entries = self._records(path, part) if _kind(path) == _JSONL else self._texts(path)
        return islice(entries, start, None)

    def _texts(self, path: Path) -> Iterator[str | Excluded]:
        if self.split == "file":
            yield checked("".join(_lines(path)))
        elif self.split == "line":
            yield from (checked(line.strip()) for line in _lines(path) if not line.isspace())
        else:
            yield from map(checked, _paragraphs(_lines(path)))

    def _records(self, path: Path, part: int) -> Iterator[str | Excluded]:
        first = part == 0
        for line in _lines(path):
            if line.isspace():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                yield Excluded(NOT_JSON)
                continue
            yield field_of(record, self.field, first=first)
            first = False

    def describe(self) -> dict[str, Any]:
        """The number of files and the first of them."""
        return {
            "source": "files",
            "n_files": len(self.paths),
            "first_file": str(self.paths[0]),
            "field": self.field,
            "split": self.split,
            "files_of_other_kinds": self.skipped,
        }


def _path(item: Any) -> Path:
    """A path as a user names one; an empty one would be the current folder."""
    if not isinstance(item, str | os.PathLike):
        raise TypeError(f"paths must be texts or paths of files, got {item!r:.80}")
    if not os.fspath(item):
        raise ValueError("paths must name files or folders, got ''; the current folder is '.'")
    return Path(item).expanduser()


def _kind(path: Path) -> str | None:
    name = path.name.lower().removesuffix(".gz")
    return next((kind for kind in (_TXT, _JSONL) if name.endswith(kind)), None)


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file; bytes that are no UTF-8 become the replacement character."""
    opened: Any = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opened(path, "rb") as file:
            encoding = _encoding(path, file.peek(_HEAD)[:_HEAD])
            with io.TextIOWrapper(file, encoding, errors="replace") as lines:
                yield from lines
    except (EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is no whole gzip file ({error}): get it again or leave it out") from error


# The beginning of a file by which its encoding is known.
_HEAD = 8192
# UTF-32 first, whose mark begins with that of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32", codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
_CONTROL = re.compile(r"[\x00-\x07\x0e-\x1a\x1c-\x1f]")


def _encoding(path: Path, head: bytes) -> str:
    """The encoding that a file begins with; ValueError for what does not read as UTF-8."""
    for mark, encoding in _MARKS.items():
        if head.startswith(mark):
            return encoding
    text = head.decode("utf-8", errors="replace")
    # UTF-16 without a mark has a control character for every space of a line, or for the script of its letters; text
    # of a language in an encoding of 8 bits has few letters that are no UTF-8, or nearly all.
    n_control, n_unread = len(_CONTROL.findall(text)), text.count("\ufffd")
    if n_control > max(1, len(text) / 100) or n_unread > max(8, len(text) / 5):
        raise ValueError(
            f"{path} does not read as UTF-8: it is UTF-16 or UTF-32 without a byte order mark, of another encoding, or "
            "no text; save it as UTF-8 (`iconv -f UTF-16LE -t UTF-8`) or leave it out"
        )
    return "utf-8-sig"


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    paragraph: list[str] = []
    for line in lines:
        if not line.isspace():
            paragraph.append(line)
        elif paragraph:
            yield "".join(paragraph)
            paragraph = []
    if paragraph:
        yield "".join(paragraph)


# --- the articles that come with gensim ----------------------------------------------------------------

_DUMP = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
_ENDS_A_SENTENCE = re.compile(r"[.!?][\"'”’)]*(\s|$)")
_LEFTOVERS = re.compile(r"^(File|Image):|\.(jpe?g|png|svg|gif)\|", re.IGNORECASE)
_SHORTEST_LINE = 40


@dataclass(frozen=True)
class GensimArticles(Source):
    """The English Wikipedia articles that come with gensim, as prose."""

    n_parts: int = attribute(default=1, init=False)

    @property
    def n_entries(self) -> int:
        """Pages of the dump, redirects included."""
        return len(_pages())

    def read(self, part: int, start: int) -> Iterator[str | Excluded]:
        """The articles without the first ``start`` pages."""
        return iter(_pages()[start:])

    def describe(self) -> dict[str, Any]:
        """The file that they are in."""
        from importlib.metadata import version

        return {"source": "Wikipedia articles inside gensim", "gensim": version("gensim"), "file": _DUMP}


@cache
def _pages() -> tuple[str | Excluded, ...]:
    """All pages, three megabytes, kept because cleaning them takes a second."""
    from gensim.corpora.wikicorpus import extract_pages, filter_wiki
    from gensim.test.utils import datapath

    with bz2.open(datapath(_DUMP)) as file:
        sources = [source for _, source, _ in extract_pages(file, ("0",))]
    return tuple(
        Excluded(REDIRECTS)
        if source.lstrip().upper().startswith("#REDIRECT")
        else checked(prose(filter_wiki(source)))
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
