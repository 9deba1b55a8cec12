"""Documents: token ids with what of them are words and where they came from; how they are read, cut and counted.

Documents come in three shapes: a `Document`, a row of token ids (a list, an array, a tensor), or a mapping with
``input_ids`` and ``attention_mask``, of one document or of several, as a tokenizer gives it.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from topic_probe.options import check_value
from topic_probe.topics.lists import token_id_array
from topic_probe.words import whole_words

Long = Literal["cut", "chunk"]
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Document:
    """One document: its token ids and, where the text was at hand, what of it are words, and where it came from.

    Attributes:
        ids: token ids without padding.
        word_index: for every token the number of the word of the text that it makes up, alone or with others; -1 for
            tokens of no word, of several, or of a word that a cut has parted. None where the text is unknown: every
            token then is a word.
        special: True on special tokens; None where unknown.
        source: a hash of the text or article that it was cut from, the same for all its pieces; None takes that of
            the ids. Intervals resample sources, because pieces of one article are not independent.

    Example:
        >>> import torch
        >>> document = tp.Document(torch.tensor([7, 8, 9]), word_index=torch.tensor([0, 1, 1]))
        >>> document.whole.tolist()  # the second word is of two tokens
        [True, False, False]
    """

    ids: Int64[Tensor, " position"]
    word_index: Int64[Tensor, " position"] | None = None
    special: Bool[Tensor, " position"] | None = None
    source: int | None = None

    def __post_init__(self) -> None:
        for name, dtype in (("ids", torch.int64), ("word_index", torch.int64), ("special", torch.bool)):
            part = getattr(self, name)
            if part is None and name != "ids":
                continue
            if not isinstance(part, Tensor) or part.dtype != dtype or part.shape != (len(self.ids),):
                raise TypeError(
                    f"{name} of a Document must be a row of {dtype} for its tokens, not {part!r:.100}"
                )
        source = check_value("source of a Document", self.source, int | None)
        object.__setattr__(self, "source", source)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def whole(self) -> Bool[Tensor, " position"] | None:
        """True on tokens that are a whole word by themselves; None where the text is unknown."""
        if self.word_index is None:
            return None
        return torch.from_numpy(whole_words(self.word_index.numpy()))

    @property
    def origin(self) -> int:
        """The source, or where nobody named one the document itself."""
        return self.key if self.source is None else self.source

    @cached_property
    def key(self) -> int:
        """A signed 64-bit hash of the ids: the same document has the same key everywhere and always."""
        return content_hash(self.ids.numpy().tobytes())

    @property
    def content(self) -> bytes:
        """All that it holds, for a hash."""
        parts = (self.ids, self.word_index, self.special)
        arrays = [b"-" if part is None else part.numpy().tobytes() for part in parts]
        return b"|".join([*arrays, repr(self.source).encode()])

    def part(self, places: Int64[Tensor, " kept"]) -> "Document":
        """The document at some of its places; its source stays."""
        word_index, special = (
            None if part is None else part[places] for part in (self.word_index, self.special)
        )
        return Document(self.ids[places], word_index, special, self.origin)

    def pieces(self, max_length: int, specials: Bool[Tensor, " position"]) -> Iterator["Document"]:
        """Documents of at most ``max_length`` tokens, each between the special tokens around the whole one.

        They end between two words, unless a single word is longer: that one is no word any more.
        """
        text = (~specials).nonzero().flatten()
        first, stop = (int(text[0]), int(text[-1]) + 1) if len(text) else (0, len(self))
        room = max_length - first - (len(self) - stop)
        if room < 1:
            raise ValueError(
                f"max_length must leave room for a token beside the {len(self) - stop + first} special ones, got "
                f"{max_length}"
            )
        before, after = torch.arange(first), torch.arange(stop, len(self))
        for start, end, parted in _between_words(self.word_index, first, stop, room):
            piece = self.part(torch.cat([before, torch.arange(start, end), after]))
            if piece.word_index is not None:
                words = piece.word_index.masked_fill(torch.isin(piece.word_index, parted), -1)
                piece = replace(piece, word_index=words)
            yield piece


def content_hash(content: bytes) -> int:
    """A signed 64-bit hash."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)


def hash_of(contents: Iterable[bytes]) -> str:
    """SHA-256 of contents, one after the other."""
    digest = hashlib.sha256()
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


def source_key(label: Hashable) -> int:
    """A signed 64-bit hash of the label of a source, the same in every process."""
    if isinstance(label, np.generic):
        label = label.item()
    if label is None or label != label:
        raise ValueError(f"the label of a source is missing ({label!r}): name every one, or leave labels out")
    return content_hash(f"{type(label).__name__} {label!r}".encode("utf-8", "surrogatepass"))


def with_sources(
    texts: Iterable[_Item], labels: Iterable[Hashable] | None
) -> Iterator[tuple[_Item, int | None]]:
    """The texts, each with the key of its source; None for all of them where no sources are named."""
    if labels is None:
        yield from ((text, None) for text in texts)
        return
    missing: Any = object()
    for text, label in zip_longest(texts, labels, fillvalue=missing):
        if text is missing or label is missing:
            raise ValueError(
                "sources needs a label for every text, and there are not as many labels as texts"
            )
        yield text, source_key(label)


def _between_words(
    word_index: Int64[Tensor, " position"] | None, start: int, stop: int, room: int
) -> Iterator[tuple[int, int, Int64[Tensor, " word"]]]:
    """Where the pieces of a long document begin and end, and the words that these ends part."""
    if word_index is None:
        word_index = torch.arange(stop)
    # Words are runs of tokens, so a cut parts the word that stands on both its sides.
    joined = torch.zeros(stop + 1, dtype=torch.bool)
    joined[1:stop] = (word_index[1:stop] == word_index[: stop - 1]) & (word_index[1:stop] >= 0)
    while start < stop:
        end = min(start + room, stop)
        # Places between two words, last first.
        inside = (~joined[start + 1 : end + 1].flip(0)).nonzero()
        end -= int(inside[0]) if len(inside) else 0
        ends = torch.tensor([start, end - 1])
        yield start, end, word_index[ends[joined[[start, end]]]]
        start = end


def can_be_read_again(documents: Any) -> bool:
    """Whether documents can be read a second time, as those of a generator cannot."""
    return not isinstance(documents, Iterator)


def check_read_again(
    documents: Any, why: str, *, instead: str = "a list, or what Corpus.documents gives"
) -> None:
    """ValueError where documents are needed a second time, for this reason, and can be read only once."""
    if not can_be_read_again(documents):
        raise ValueError(f"{why}, and these can be read only once: pass {instead}")


@dataclass
class Counts:
    """What was read, cut and left out; parts add up."""

    texts: int = 0  # entries that are no text included
    documents: int = 0  # or pieces of documents
    tokens: int = 0  # special ones included
    without_words: int = 0  # documents of unknown text, so that every token was taken as a word
    left_out: Counter[str] = field(default_factory=Counter)  # reason → texts, documents or tokens

    def add(self, document: Document) -> None:
        """Count a document."""
        self.documents += 1
        self.tokens += len(document)
        self.without_words += document.word_index is None

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, part.name) + getattr(other, part.name) for part in fields(self)))

    def summary(self) -> dict[str, Any]:
        """The counts as plain values, for a provenance or a file."""
        return {**asdict(self), "left_out": {reason: n for reason, n in sorted(self.left_out.items()) if n}}

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> "Counts":
        """The counts of a summary."""
        return cls(**{**summary, "left_out": Counter(summary["left_out"])})


def cut_documents(
    documents: Iterable[Document],
    vocabulary_size: int | None,
    max_length: int | None,
    long: Long,
    counts: Counts,
    special_ids: Collection[int] = (),
) -> Iterator[Document]:
    """The documents, checked, counted, and cut or chunked where they are too long; empty ones are left out."""
    specials = torch.tensor(sorted(special_ids), dtype=torch.int64)
    for number, document in enumerate(documents):
        if len(document) == 0:
            counts.left_out["empty documents"] += 1
            continue
        check_ids(document, number, vocabulary_size)
        for piece in cut(document, max_length, long, counts, specials):
            counts.add(piece)
            yield piece


def check_ids(document: Document, number: int, vocabulary_size: int | None) -> None:
    """ValueError for ids that a model does not know; the number says which document it is."""
    lowest, highest = int(document.ids.min()), int(document.ids.max())
    if lowest < 0:
        raise ValueError(
            f"document {number} holds the negative id {lowest}; padding must be masked, not marked"
        )
    if vocabulary_size is not None and highest >= vocabulary_size:
        raise ValueError(
            f"document {number} holds the token id {highest}, but the model knows 0..{vocabulary_size - 1}; "
            "was it encoded with another tokenizer?"
        )


def cut(
    document: Document,
    max_length: int | None,
    long: Long,
    counts: Counts,
    special_ids: Int64[Tensor, " special"],
) -> Iterator[Document]:
    """The document, or if it is too long its beginning ("cut") or all its pieces ("chunk")."""
    if max_length is None or len(document) <= max_length:
        yield document
        return
    special = torch.isin(document.ids, special_ids)
    special = special if document.special is None else special | document.special
    pieces = document.pieces(max_length, special)
    if long == "chunk":
        counts.left_out[f"documents cut into pieces of {max_length} tokens"] += 1
        yield from pieces
        return
    beginning = next(pieces)
    counts.left_out[f"documents cut at {max_length} tokens"] += 1
    counts.left_out["tokens cut off"] += len(document) - len(beginning)
    yield beginning


_NEEDED = (
    "documents are token ids, in three shapes: a Document, a row of ids, or a mapping with input_ids and "
    "attention_mask; got {!r:.100}. Texts become documents by topic_probe.encode_texts(texts, tokenizer), a padded "
    "table with its mask by {{'input_ids': ids, 'attention_mask': mask}}"
)


def read_documents(documents: Any, *, pad_id: int | None = None) -> Iterator[Document]:
    """The documents of an iterable of these, or of a single mapping.

    A row that begins or ends with two padding ids is refused, because padding would be taken for words. None: no such
    check.
    """
    if isinstance(documents, Document | Mapping):
        documents = [documents]
    if isinstance(documents, str | bytes) or not isinstance(documents, Iterable):
        raise TypeError(_NEEDED.format(documents))
    for number, item in enumerate(documents):
        if isinstance(item, Document):
            yield item
        elif isinstance(item, Mapping):
            yield from _of_mapping(item, number, pad_id)
        else:
            ids = _row(item, number)
            ends = (ids[:2], ids[-2:])
            if pad_id is not None and len(ids) > 2 and any(bool((end == pad_id).all()) for end in ends):
                raise ValueError(
                    f"document {number} begins or ends with two of the padding id {pad_id} and came without a mask: "
                    "pass a mapping with input_ids and attention_mask, or documents without padding"
                )
            yield Document(ids)


def _of_mapping(item: Mapping[str, Any], number: int, pad_id: int | None) -> Iterator[Document]:
    """The documents of a mapping: one where input_ids is a row, several where it is a table or a list of rows."""
    if "input_ids" not in item:
        raise TypeError(_NEEDED.format(dict(item)))
    ids, mask = item["input_ids"], item.get("attention_mask")
    if len(ids) == 0 or np.ndim(ids[0]) == 0:
        ids, mask = [ids], None if mask is None else [mask]
    if mask is None:
        yield from read_documents(ids, pad_id=pad_id)
        return
    for place, (row, flags) in enumerate(zip(ids, mask, strict=True), number):
        tokens, real = _row(row, place), torch.as_tensor(flags, device="cpu")
        if real.shape != tokens.shape or not bool(((real == 0) | (real == 1)).all()):
            raise ValueError(
                f"attention_mask of document {place} must hold 1 on its tokens and 0 on padding, for all "
                f"{len(tokens)} ids"
            )
        yield Document(tokens[real.bool()])


def _row(item: Any, number: int) -> Int64[Tensor, " position"]:
    """The ids of a document."""
    if isinstance(item, str) or not hasattr(item, "__len__") or getattr(item, "ndim", 1) != 1:
        raise TypeError(_NEEDED.format(item))
    what = f"document {number}"
    return torch.from_numpy(token_id_array(item, what, ordered=True, remedy="see encode_texts"))
