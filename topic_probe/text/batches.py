"""Documents in any usual shape -> right-padded batches of token ids with an explicit mask.

Everything that measures a model over documents takes them through this module, so that a list of ids, a
tensor, a padded batch and a tokenizer's output all mean the same, and every document that is left out or cut
is counted.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from topic_probe.topics.vocabulary import settings_restored

# Enough batches are looked at together to sort documents by length, few enough to keep a stream a stream.
BATCHES_PER_SORT = 32


@dataclass(frozen=True)
class Document:
    """One document: its token ids and, where the text was at hand, what of it are words, and where it came from.

    Attributes:
        ids: token ids without padding.
        word_index: for every token the number of the word of the text that it lies in, alone or with others; -1 for
            tokens of no word. None where nobody saw the text: every token then is a word of its own.
        special: True on special tokens; None where unknown.
        whole: True on tokens that are exactly one word of the text, as `topic_probe.words` has it; None with
            ``word_index``.
        source: a hash of the text or article that it was cut from, the same for all its pieces; None takes that of
            the ids.
    """

    ids: Int64[Tensor, " position"]
    word_index: Int64[Tensor, " position"] | None = None
    special: Bool[Tensor, " position"] | None = None
    whole: Bool[Tensor, " position"] | None = None
    source: int | None = None

    def __post_init__(self) -> None:
        if self.ids.ndim != 1 or self.ids.dtype != torch.int64:
            raise TypeError(
                f"a Document needs one row of int64 ids, not {self.ids.dtype} of shape {tuple(self.ids.shape)}"
            )
        for name, part in (("word_index", self.word_index), ("special", self.special), ("whole", self.whole)):
            if part is not None and part.shape != self.ids.shape:
                raise ValueError(
                    f"{name} of a Document must have an entry for each of its {len(self.ids)} tokens, not the shape "
                    f"{tuple(part.shape)}"
                )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def key(self) -> int:
        """A signed 64-bit hash of the ids: the same document has the same key everywhere and always."""
        digest = hashlib.blake2b(self.ids.numpy().tobytes(), digest_size=8).digest()
        return int.from_bytes(digest, "little", signed=True)

    def part(self, start: int, stop: int) -> "Document":
        """The document from position ``start`` to ``stop``."""
        cut = slice(start, stop)
        return Document(
            self.ids[cut],
            None if self.word_index is None else self.word_index[cut],
            None if self.special is None else self.special[cut],
        )


@dataclass(frozen=True)
class TokenBatch:
    """Right-padded documents with an explicit mask.

    Attributes:
        ids: token ids; padding holds ``pad_id``.
        mask: True on real tokens.
        keys: a content hash for every document.
        special: True on special tokens.
        word_index: the word that each token belongs to, -1 for none; None where no tokenizer said so.
    """

    ids: Int64[Tensor, "batch position"]
    mask: Bool[Tensor, "batch position"]
    keys: Int64[Tensor, " batch"]
    special: Bool[Tensor, "batch position"]
    word_index: Int64[Tensor, "batch position"] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def halves(self) -> tuple["TokenBatch", "TokenBatch"]:
        """The batch in two, for when the whole does not fit into memory."""
        middle = len(self) // 2
        return self._rows(slice(0, middle)), self._rows(slice(middle, len(self)))

    def _rows(self, rows: slice) -> "TokenBatch":
        width = int(self.mask[rows].sum(1).max())
        return TokenBatch(
            self.ids[rows, :width],
            self.mask[rows, :width],
            self.keys[rows],
            self.special[rows, :width],
            None if self.word_index is None else self.word_index[rows, :width],
        )


@dataclass
class Intake:
    """What was read, cut and left out while documents became batches; filled while the batches are consumed."""

    documents: int = 0
    tokens: int = 0
    without_word_index: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def summary(self) -> dict[str, Any]:
        """The counts as plain values for a report's provenance."""
        return {
            "documents": self.documents,
            "tokens": self.tokens,
            "documents_without_word_index": self.without_word_index,
            "left_out": dict(sorted(self.left_out.items())),
        }


def token_batches(
    documents: Any,
    *,
    batch_size: int = 32,
    max_length: int | None = None,
    long: Literal["cut", "chunk"] = "cut",
    pad_id: int | None = None,
    vocabulary_size: int | None = None,
    special_ids: Collection[int] = (),
    keep: Callable[[Document], bool] | None = None,
    intake: Intake | None = None,
) -> Iterator[TokenBatch]:
    """Batches of similar length from documents in any usual shape, streamed.

    Args:
        documents: an iterable of documents or of batches, or one batch. A document is a list, array or 1-D tensor of
            token ids, or a `Document`; a batch is ``(ids, mask)``, a mapping with ``input_ids`` and
            ``attention_mask`` (a tokenizer's output, padded or not), an object with ``ids`` and ``mask``, or a 2-D
            tensor of ids in which every position is real. Left and right padding are both understood.
        batch_size: documents per batch.
        max_length: longer documents are cut, or cut into pieces, at this many tokens; None: never.
        long: "cut" keeps the first ``max_length`` tokens, "chunk" makes a document of every ``max_length`` tokens.
        pad_id: what padding holds. Without a mask, a row of a 2-D tensor that begins or ends with it is refused, and a
            document that begins or ends with two of it, because padding would be taken for words. None: padding holds
            0 and there is no such check.
        vocabulary_size: ids from here on are refused; None: not checked.
        special_ids: ids that are special tokens wherever they stand.
        keep: documents (or pieces of documents) for which this is False take no place in a batch; the caller counts
            them. None: all are kept.
        intake: counts what was read and left out.

    Raises:
        TypeError: for bare strings and anything that is not token ids.
        ValueError: for ids out of range, a batch whose padding cannot be known, and bad options.
    """
    if batch_size < 1 or (max_length is not None and max_length < 1):
        raise ValueError(f"batch_size and max_length must be at least 1, not {batch_size} and {max_length}")
    if long not in ("cut", "chunk"):
        raise ValueError(f"long must be 'cut' or 'chunk', not {long!r}")
    intake = Intake() if intake is None else intake
    pieces = cut_documents(
        read_documents(documents, pad_id=pad_id), vocabulary_size, max_length, long, intake
    )
    specials = torch.tensor(sorted(special_ids), dtype=torch.int64)
    return _batches(pieces if keep is None else filter(keep, pieces), batch_size, pad_id or 0, specials)


def _batches(
    documents: Iterable[Document], batch_size: int, pad_id: int, specials: Tensor
) -> Iterator[TokenBatch]:
    for group in _groups(documents, batch_size * BATCHES_PER_SORT):
        group.sort(key=len, reverse=True)
        for start in range(0, len(group), batch_size):
            yield _pad(group[start : start + batch_size], pad_id, specials)


def _groups(items: Iterable[Document], size: int) -> Iterator[list[Document]]:
    group: list[Document] = []
    for item in items:
        group.append(item)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def cut_documents(
    documents: Iterable[Document],
    vocabulary_size: int | None,
    max_length: int | None,
    long: str,
    intake: Intake,
) -> Iterator[Document]:
    """The documents, checked, counted, and cut or chunked as `token_batches` says; empty ones are left out."""
    for number, document in enumerate(documents):
        length = len(document)
        if length == 0:
            intake.left_out["empty documents"] += 1
            continue
        _check_range(document.ids, vocabulary_size, number)
        parts = [document]
        if max_length is not None and length > max_length:
            starts = range(0, length, max_length) if long == "chunk" else (0,)
            parts = [document.part(start, start + max_length) for start in starts]
            intake.left_out[
                f"documents {'chunked' if long == 'chunk' else 'cut'} at {max_length} tokens"
            ] += 1
            if long == "cut":
                intake.left_out["tokens cut off"] += length - max_length
        for part in parts:
            intake.documents += 1
            intake.tokens += len(part)
            intake.without_word_index += part.word_index is None
            yield part


def _check_range(ids: Tensor, vocabulary_size: int | None, number: int) -> None:
    lowest, highest = int(ids.min()), int(ids.max())
    if lowest < 0:
        raise ValueError(
            f"document {number} holds the negative id {lowest}; padding must be masked, not marked"
        )
    if vocabulary_size is not None and highest >= vocabulary_size:
        raise ValueError(
            f"document {number} holds the token id {highest}, but the model knows 0..{vocabulary_size - 1}; "
            "was it encoded with another tokenizer?"
        )


def _pad(documents: Sequence[Document], pad_id: int, specials: Tensor) -> TokenBatch:
    shape = (len(documents), max(len(document) for document in documents))
    ids = torch.full(shape, pad_id, dtype=torch.int64)
    mask = torch.zeros(shape, dtype=torch.bool)
    special = torch.zeros(shape, dtype=torch.bool)
    with_words = all(document.word_index is not None for document in documents)
    word_index = torch.full(shape, -1, dtype=torch.int64) if with_words else None
    for row, document in enumerate(documents):
        length = len(document)
        ids[row, :length] = document.ids
        mask[row, :length] = True
        if document.special is not None:
            special[row, :length] = document.special
        if word_index is not None and document.word_index is not None:
            word_index[row, :length] = document.word_index
    keys = torch.tensor([document.key for document in documents], dtype=torch.int64)
    return TokenBatch(ids, mask, keys, (special | torch.isin(ids, specials)) & mask, word_index)


def read_documents(documents: Any, *, pad_id: int | None = None) -> Iterator[Document]:
    """The single documents in whatever `token_batches` takes, without padding."""
    if isinstance(documents, str | bytes):
        raise TypeError(_NEEDS_TOKENIZER.format("a string"))
    if _is_batch(documents):
        yield from _from_batch(documents, pad_id)
        return
    if isinstance(documents, Document):
        documents = [documents]
    if not isinstance(documents, Iterable):
        raise TypeError(f"documents must be an iterable of token-id lists, not {type(documents).__name__}")
    for number, item in enumerate(documents):
        if isinstance(item, Document):
            yield item
        elif _is_batch(item):
            yield from _from_batch(item, pad_id)
        else:
            yield Document(_one_document(item, number, pad_id))


_NEEDS_TOKENIZER = (
    "documents must be token ids, but {} came: encode texts first with "
    "topic_probe.encode_texts(texts, tokenizer), using the tokenizer of the model"
)


def _is_batch(item: Any) -> bool:
    if isinstance(item, Mapping) or (hasattr(item, "ids") and hasattr(item, "mask")):
        return True
    return _is_pair(item) or getattr(item, "ndim", 0) == 2


def _is_pair(item: Any) -> bool:
    """Whether something is ids with their mask; a list of two tables may also be two batches without masks."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        return False
    ids, mask = item
    if getattr(ids, "ndim", 0) != 2 or getattr(mask, "ndim", 0) != 2:
        return False
    return isinstance(item, tuple) or (ids.shape == mask.shape and bool(((mask == 0) | (mask == 1)).all()))


def _from_batch(item: Any, pad_id: int | None) -> Iterator[Document]:
    ids, mask, word_index, special = (_rows(part) for part in _parts(item))
    _check_table(ids, mask, pad_id)
    for number, row in enumerate(ids):
        tokens = _one_document(row, number, pad_id if mask is None else None)
        kept = slice(None) if mask is None else _real(mask[number], tokens, number)
        extras = [
            None if part is None else _extra(part[number], dtype, tokens, number)[kept]
            for part, dtype in ((word_index, torch.int64), (special, torch.bool))
        ]
        yield Document(tokens[kept], *extras)


def _parts(item: Any) -> tuple[Any, Any, Any, Any]:
    """Ids, mask, word numbers and special flags of a batch, or None for what it does not have."""
    if isinstance(item, Mapping):
        if "input_ids" not in item:
            raise TypeError(
                f"a batch given as a mapping needs input_ids; this one has {sorted(map(str, item))}"
            )
        special = item.get("special_tokens_mask")
        return item["input_ids"], item.get("attention_mask"), _word_index_of_encoding(item), special
    if _is_pair(item):
        return item[0], item[1], None, None
    if hasattr(item, "mask"):
        return item.ids, item.mask, getattr(item, "word_index", None), getattr(item, "special", None)
    return item, None, None, None


def _rows(part: Any) -> Any:
    """A part of a batch as rows; a single document, as a row of a dataset has it, is a batch of one."""
    if part is None:
        return None
    if isinstance(part, str | bytes):
        raise TypeError(_NEEDS_TOKENIZER.format("a string"))
    if hasattr(part, "ndim"):
        return part[None] if part.ndim == 1 else part
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
    kept = torch.as_tensor(mask)
    if kept.shape != ids.shape:
        raise ValueError(
            f"the mask of document {number} must have an entry for each of its {len(ids)} ids, not the shape "
            f"{tuple(kept.shape)}"
        )
    if not bool(((kept == 0) | (kept == 1)).all()):
        raise ValueError("the mask must hold 1 on real tokens and 0 on padding; this one holds other values")
    kept = kept.to("cpu", torch.bool)
    places = kept.nonzero()
    if len(places) and int(places[-1] - places[0]) >= len(places):
        raise ValueError(
            f"the mask of document {number} hides tokens in its middle; only padding before or behind a document "
            "can be taken off, so remove those tokens or leave them in"
        )
    return kept


def _extra(part: Any, dtype: torch.dtype, ids: Tensor, number: int) -> Tensor:
    """Word numbers or special flags of one document, checked."""
    if isinstance(part, Sequence):  # tokenizers say None where there is no word
        part = [-1 if value is None else value for value in part]
    values = torch.as_tensor(part).to("cpu", dtype)
    if values.shape != ids.shape:
        raise ValueError(
            f"word numbers and special flags of document {number} must have an entry for each of its {len(ids)} ids, "
            f"not the shape {tuple(values.shape)}"
        )
    return values


def _word_index_of_encoding(item: Any) -> Any:
    """Word numbers of a fast tokenizer's output, or of a mapping that brings its own ``word_index``."""
    if "word_index" in item:
        return item["word_index"]
    if not getattr(item, "encodings", None):
        return None
    return [encoding.word_ids for encoding in item.encodings]


def _one_document(item: Any, number: int, pad_id: int | None) -> Tensor:
    if isinstance(item, str | bytes):
        raise TypeError(_NEEDS_TOKENIZER.format(f"a string (document {number})"))
    if item is None:
        raise TypeError(f"document {number} is None; leave missing documents out")
    if isinstance(item, int) or getattr(item, "ndim", 1) == 0:
        raise TypeError(
            "documents must be a list of documents; this looks like one document: wrap it in a list"
        )
    ids = _integer_tensor(item, f"document {number}")
    if ids.ndim != 1:
        raise TypeError(f"document {number} must be one row of token ids, not of shape {tuple(ids.shape)}")
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


def _integer_tensor(values: Any, name: str) -> Tensor:
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name} must hold token ids (integers), not {type(values).__name__}: {error}"
        ) from None
    if tensor.numel() and (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool):
        raise TypeError(f"{name} must hold token ids (integers), not {tensor.dtype}")
    return tensor.detach().to("cpu", torch.int64)


def encode_texts(
    texts: Iterable[str],
    tokenizer: Any,
    *,
    max_length: int | None = None,
    add_special_tokens: bool = True,
) -> Iterator[Document]:
    """Documents with word numbers and special flags, one for every text, by the model's own tokenizer.

    With a slow tokenizer (one that cannot say which tokens form a word) the documents carry no word numbers:
    measuring at word level then fails with an explanation, and at token level the pieces of split words cannot be
    told from whole words.

    Args:
        texts: the texts; a bare string is refused because its letters would become documents.
        tokenizer: a Hugging Face tokenizer.
        max_length: longer texts are cut here, special tokens included; None: kept whole.
        add_special_tokens: whether the tokenizer adds its special tokens, as in pretraining.
    """
    if isinstance(texts, str | bytes):
        raise TypeError("texts must be a list of texts; this is one text: wrap it in a list")
    cut = {"truncation": True, "max_length": max_length} if max_length is not None else {"truncation": False}
    return _encoded(texts, tokenizer, {"add_special_tokens": add_special_tokens, **cut})


def _encoded(texts: Iterable[str], tokenizer: Any, options: Mapping[str, Any]) -> Iterator[Document]:
    special_ids = torch.tensor(sorted(set(tokenizer.all_special_ids) - {None}), dtype=torch.int64)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"text {number} must be a string, not {type(text).__name__}")
        with settings_restored(tokenizer):
            encoding = _encode(text, number, tokenizer, options)
        ids = torch.tensor(encoding["input_ids"], dtype=torch.int64)
        words = _word_numbers(encoding, text) if getattr(tokenizer, "is_fast", False) else None
        yield Document(ids, words, torch.isin(ids, special_ids))


def _encode(text: str, number: int, tokenizer: Any, options: Mapping[str, Any]) -> Any:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"text {number} is no valid Unicode (it holds half a character); repair it with "
            "text.encode('utf-8', 'replace').decode(), or leave it out"
        ) from None
    return tokenizer(text, verbose=False, **options)


def _word_numbers(encoding: Any, text: str) -> Int64[Tensor, " position"] | None:
    """The word of every token, -1 for none; None where the tokenizer takes the whole text for one word.

    Some tokenizers (Llama's) do not part a text into words before they part it into pieces.
    """
    words = [-1 if word is None else word for word in encoding.word_ids()]
    if max(words, default=-1) == 0 and len(text.split()) > 1:
        return None
    return torch.tensor(words, dtype=torch.int64)
