"""Documents: token ids in any usual shape, with what of them are words and where they came from.

Everything that measures or fits takes documents through this module, so that a list of ids, a tensor, a padded batch
and a tokenizer's output all mean the same, and every document that is left out or cut is counted, in one way.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any, Literal, TypeVar

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
            tokens of no word, of several, or of a word that a cut has parted. None where nobody saw the text: every
            token then is a word of its own.
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
        for name, part, dtype in (
            ("ids", self.ids, torch.int64),
            ("word_index", self.word_index, torch.int64),
            ("special", self.special, torch.bool),
        ):
            if part is None and name != "ids":
                continue
            if not isinstance(part, Tensor) or part.dtype != dtype or part.ndim != 1:
                raise TypeError(f"{name} of a Document must be a row of {dtype}, not {_described(part)}")
            if part.shape != self.ids.shape:
                raise ValueError(
                    f"{name} of a Document must have an entry for each of its {len(self.ids)} tokens, not the shape "
                    f"{tuple(part.shape)}"
                )
        source = check_value("source of a Document", self.source, int | None)
        object.__setattr__(self, "source", source)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def whole(self) -> Bool[Tensor, " position"] | None:
        """True on tokens that are a whole word by themselves; None where nobody saw the text."""
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

        Args:
            max_length: Tokens at most, special ones included.
            specials: Which tokens are special.
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


def _described(part: Any) -> str:
    return f"{part.dtype} of shape {tuple(part.shape)}" if hasattr(part, "dtype") else f"{part!r:.100}"


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
    """A signed 64-bit hash of the label of a source: equal labels have the same one, in every process."""
    if getattr(label, "ndim", None) == 0:  # a number of numpy or torch
        label = label.item()  # type: ignore[attr-defined]
    if label is None or label != label:
        raise ValueError(
            f"the label of a source is missing ({label!r}): name every source, or leave labels out"
        )
    if type(label).__repr__ is object.__repr__:
        raise TypeError(f"sources must have labels such as texts or numbers, not a {type(label).__name__}")
    if isinstance(label, tuple | frozenset):
        parts = [source_key(part) for part in label]
        return content_hash(repr(sorted(parts) if isinstance(label, frozenset) else parts).encode())
    if isinstance(label, bool) or (isinstance(label, float) and label.is_integer()):
        label = int(label)
    return content_hash(f"{type(label).__name__} {label!r}".encode("utf-8", "surrogatepass"))


def source_keys(labels: Iterable[Hashable]) -> Iterator[int]:
    """The keys of the labels of sources, in their order."""
    if isinstance(labels, str | bytes):
        raise TypeError("sources need a label each; this is one label, and its letters would become labels")
    if isinstance(labels, Set):
        raise TypeError(
            "labels of sources stand in the order of what they are of, and a set has none: pass a list"
        )
    return map(source_key, labels)


def of_sources(
    items: Iterable[_Item], sources: Iterable[int] | None, what: str
) -> Iterator[tuple[_Item, int | None]]:
    """The items, each with the key of its source; None for all of them where no sources are named.

    Raises:
        ValueError: where there are not as many sources as items.
    """
    if sources is None:
        yield from ((item, None) for item in items)
        return
    none: Any = object()
    for number, (item, source) in enumerate(zip_longest(items, sources, fillvalue=none)):
        if item is none or source is none:
            came = f"{number} {what} and more labels" if item is none else f"{number} labels and more {what}"
            raise ValueError(f"each of the {what} needs a label that names its source, but there are {came}")
        yield item, source


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
    """Whether documents are there a second time; a generator is used up by the first."""
    return not isinstance(documents, Iterator)


def check_read_again(
    documents: Any, why: str, *, instead: str = "a list, or what Corpus.documents gives"
) -> None:
    """ValueError where documents are needed a second time, for this reason, and a first one uses them up."""
    if not can_be_read_again(documents):
        raise ValueError(f"{why}, and these can be read only once: pass {instead}")


@dataclass
class Counts:
    """What was read, cut and left out; parts add up.

    Attributes:
        texts: Texts read, those included that are no text.
        documents: Documents, or pieces of documents.
        tokens: Tokens of these, special ones included.
        without_words: Documents of which nobody saw the text, so that every token was taken as a word.
        left_out: Reason → how many texts, documents or tokens were left out or changed for it.
    """

    texts: int = 0
    documents: int = 0
    tokens: int = 0
    without_words: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, document: Document) -> None:
        """Count a document."""
        self.documents += 1
        self.tokens += len(document)
        self.without_words += document.word_index is None

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.texts + other.texts,
            self.documents + other.documents,
            self.tokens + other.tokens,
            self.without_words + other.without_words,
            self.left_out + other.left_out,
        )

    def summary(self) -> dict[str, Any]:
        """The counts as plain values, for a provenance or a file."""
        return {**asdict(self), "left_out": {reason: n for reason, n in sorted(self.left_out.items()) if n}}

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> "Counts":
        """What had this summary."""
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
    if not len(document):
        return
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


def read_documents(documents: Any, *, pad_id: int | None = None) -> Iterator[Document]:
    """The single documents in whatever `token_batches` takes, without padding."""
    if isinstance(documents, str | bytes | bytearray | memoryview):
        raise TypeError(_NEEDS_TOKENIZER.format("a string"))
    if isinstance(documents, Document) or _parts(documents) is not None:
        documents = [documents]
    if not isinstance(documents, Iterable) or getattr(documents, "ndim", 1) == 0:
        raise TypeError(f"documents must be an iterable of token-id lists, not {type(documents).__name__}")
    for number, item in enumerate(documents):
        if isinstance(item, Document):
            yield item
        elif (parts := _parts(item)) is not None:
            yield from _from_batch(parts, pad_id)
        else:
            yield Document(_one_document(item, number, pad_id))


_NEEDS_TOKENIZER = (
    "documents must be token ids, but {} came: encode texts first with "
    "topic_probe.encode_texts(texts, tokenizer), using the tokenizer of the model"
)


# Ids, mask, word numbers, special flags and sources of a batch, or None for what it does not have.
Parts = tuple[Any, Any, Any, Any, Any]


def _parts(item: Any) -> Parts | None:
    """The parts of a batch; None for what is no batch."""
    if isinstance(item, Mapping):
        if item.get("input_ids") is None:
            raise TypeError(
                f"a batch given as a mapping needs input_ids; this one has {sorted(map(str, item))}"
            )
        names = ("attention_mask", "word_index", "special_tokens_mask")
        return item["input_ids"], *(item.get(name) for name in names), None
    if hasattr(item, "ids") and hasattr(item, "mask"):
        names = ("word_index", "special", "sources")
        return item.ids, item.mask, *(getattr(item, name, None) for name in names)
    if isinstance(item, tuple | list) and len(item) == 2:
        ids, mask = item
        pair = getattr(ids, "ndim", 0) == getattr(mask, "ndim", 0) == 2
        # A list of two tables may also be two batches without masks.
        zeros_and_ones = pair and ids.shape == mask.shape and bool(((mask == 0) | (mask == 1)).all())
        if pair and (isinstance(item, tuple) or zeros_and_ones):
            return ids, mask, None, None, None
    return (item, None, None, None, None) if getattr(item, "ndim", 0) == 2 else None


def _from_batch(parts: Parts, pad_id: int | None) -> Iterator[Document]:
    *of_tokens, sources = parts
    ids, mask, word_index, special = map(_rows, of_tokens)
    _check_table(ids, mask, pad_id)
    for number, row in enumerate(ids):
        tokens = _one_document(row, number, pad_id if mask is None else None)
        kept = slice(None) if mask is None else _real(mask[number], tokens, number)
        yield Document(
            tokens[kept],
            None if word_index is None else _words(word_index[number], tokens, number)[kept],
            None if special is None else _special(special[number], tokens, number)[kept],
            None if sources is None else int(sources[number]),
        )


def _rows(part: Any) -> Any:
    """A part of a batch as rows; a single document, as a row of a dataset has it, is a batch of one."""
    if part is None:
        return None
    if isinstance(part, str | bytes):
        raise TypeError(_NEEDS_TOKENIZER.format("a string"))
    if getattr(part, "ndim", 0):
        return part[None] if part.ndim == 1 else part
    if not isinstance(part, Sequence):
        raise TypeError(f"the parts of a batch must be rows of numbers, not {type(part).__name__}")
    return [part] if len(part) == 0 or not hasattr(part[0], "__len__") else part


def _check_table(ids: Any, mask: Any, pad_id: int | None) -> None:
    """Refuses a mask of another shape, and a padded table without one."""
    shape = tuple(ids.shape) if hasattr(ids, "shape") else (len(ids),)
    if mask is not None:
        mask_shape = tuple(mask.shape) if hasattr(mask, "shape") else (len(mask),)
        known = 1 if 1 in (len(shape), len(mask_shape)) else None  # of rows in a list only their number
        if shape[:known] != mask_shape[:known]:
            raise ValueError(f"the mask must have the shape of the ids, {shape}, not {mask_shape}")
        return
    table = len(shape) == 2 and shape[1] > 0 and pad_id is not None
    if table and bool(((ids[:, 0] == pad_id) | (ids[:, -1] == pad_id)).any()):
        raise ValueError(
            f"a batch of shape {shape} came without a mask and has rows that begin or end with the padding id "
            f"{pad_id}; pass (ids, mask), or the documents as lists without padding"
        )


def _real(mask: Any, ids: Tensor, number: int) -> Bool[Tensor, " position"]:
    """Which tokens of one document are real, checked."""
    kept = _flags(
        _beside(mask, ids, f"the mask of document {number}"),
        "the mask must hold 1 on real tokens and 0 on padding",
    )
    places = kept.nonzero()
    if len(places) and int(places[-1] - places[0]) >= len(places):
        raise ValueError(
            f"the mask of document {number} hides tokens in its middle; only padding before or behind a document "
            "can be taken off, so remove those tokens or leave them in"
        )
    return kept


def _words(part: Any, ids: Tensor, number: int) -> Int64[Tensor, " position"]:
    """Word numbers of one document, checked; tokenizers say None where there is no word."""
    if isinstance(part, Sequence):
        part = [-1 if value is None else value for value in part]
    what = f"word numbers of document {number}"
    words = _beside(part, ids, what)
    if words.is_floating_point() or words.dtype == torch.bool:
        raise TypeError(f"{what} must be whole, not {words.dtype}")
    return words.long()


def _special(part: Any, ids: Tensor, number: int) -> Bool[Tensor, " position"]:
    """Special flags of one document, checked."""
    what = f"special flags of document {number}"
    return _flags(_beside(part, ids, what), f"{what} must be 0 or 1")


def _beside(part: Any, ids: Tensor, what: str) -> Tensor:
    """Numbers that stand beside the ids of a document."""
    try:
        values = torch.as_tensor(part, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{what} must be numbers, not {part!r:.100} ({error})") from error
    if values.shape != ids.shape:
        raise ValueError(
            f"{what} must have an entry for each of its {len(ids)} ids, not the shape {tuple(values.shape)}"
        )
    return values


def _flags(values: Tensor, needed: str) -> Bool[Tensor, " position"]:
    if not bool(((values == 0) | (values == 1)).all()):
        raise ValueError(f"{needed}; other values came")
    return values.to(torch.bool)


def _one_document(item: Any, number: int, pad_id: int | None) -> Tensor:
    if isinstance(item, str | bytes):
        raise TypeError(_NEEDS_TOKENIZER.format(f"a string (document {number})"))
    if item is None:
        raise TypeError(f"document {number} is None; leave missing documents out")
    if isinstance(item, int) or getattr(item, "ndim", 1) == 0:
        raise TypeError(
            "documents must be a list of documents; this looks like one document: wrap it in a list"
        )
    what = f"document {number}"
    ids = torch.from_numpy(
        token_id_array(item, what, ordered=True, remedy="encode texts with encode_texts first")
    )
    if (
        pad_id is not None
        and len(ids) > 2
        and any(bool((end == pad_id).all()) for end in (ids[:2], ids[-2:]))
    ):
        raise ValueError(
            f"document {number} begins or ends with two of the padding id {pad_id} and came without a mask; pass "
            "(ids, mask), or the documents without padding"
        )
    return ids
