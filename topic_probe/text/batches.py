"""Documents → right-padded batches of token ids with an explicit mask, streamed."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from topic_probe.options import check_whole, checked
from topic_probe.text.documents import Counts, Document, Long, cut_documents, read_documents
from topic_probe.topics.lists import token_id_array

# Enough batches are looked at together to sort documents by length, few enough to keep a stream a stream.
BATCHES_PER_SORT = 32


@dataclass(frozen=True)
class TokenBatch:
    """Right-padded documents with an explicit mask.

    Attributes:
        ids: token ids; padding holds ``pad_id``.
        mask: True on real tokens.
        keys: a content hash for every document.
        special: True on special tokens.
        sinks: True where a model parks attention whatever stands there: on special tokens and, where it was asked for,
            on first positions. No word is there.
        word_index: the word that each token lies in, -1 for none; where nobody saw the text, every token is one.
        whole: True on tokens that are a whole word.
        sources: a hash of where each document was cut from.
        without_words: True on documents of which nobody saw the text.
    """

    ids: Int64[Tensor, "batch position"]
    mask: Bool[Tensor, "batch position"]
    keys: Int64[Tensor, " batch"]
    special: Bool[Tensor, "batch position"]
    sinks: Bool[Tensor, "batch position"]
    word_index: Int64[Tensor, "batch position"]
    whole: Bool[Tensor, "batch position"]
    sources: Int64[Tensor, " batch"]
    without_words: Bool[Tensor, " batch"]

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
            self.sinks[rows, :width],
            self.word_index[rows, :width],
            self.whole[rows, :width],
            self.sources[rows],
            self.without_words[rows],
        )


@checked
def token_batches(
    documents: Any,
    *,
    batch_size: int = 32,
    max_length: int | None = None,
    long: Long = "cut",
    pad_id: int | None = None,
    vocabulary_size: int | None = None,
    special_ids: Collection[int] = (),
    first_is_sink: bool = False,
    keep: Callable[[Document], bool] | None = None,
    counts: Counts | None = None,
) -> Iterator[TokenBatch]:
    """Batches of similar length from documents in any usual shape, streamed.

    Args:
        documents: an iterable of documents or of batches, or one batch. A document is a list, array or 1-D tensor of
            token ids, or a `Document`; a batch is ``(ids, mask)``, a mapping with ``input_ids`` and
            ``attention_mask`` (a tokenizer's output, padded or not), an object with ``ids`` and ``mask``, or a 2-D
            tensor of ids in which every position is real. Left and right padding are both understood.
        batch_size: documents per batch.
        max_length: longer documents are cut, or cut into pieces, at this many tokens; None: never.
        long: "cut" keeps the beginning, "chunk" makes several documents. Either way they end between two words, and
            begin and end with the special tokens that the whole document has there.
        pad_id: what padding holds. Without a mask, a row of a 2-D tensor that begins or ends with it is refused, and a
            document that begins or ends with two of it, because padding would be taken for words. None: padding holds
            0 and there is no such check.
        vocabulary_size: ids from here on are refused; None: not checked.
        special_ids: ids that are special tokens wherever they stand.
        first_is_sink: whether the first position of every document is a sink, as it is to a causal model.
        keep: documents (or pieces of documents) for which this is False take no place in a batch; the caller counts
            them. None: all are kept.
        counts: counts what was read and left out.

    Raises:
        TypeError: for bare strings and anything that is not token ids.
        ValueError: for ids out of range, a batch whose padding cannot be known, and bad options.
    """
    if batch_size < 1 or (max_length is not None and max_length < 1):
        raise ValueError(f"batch_size and max_length must be at least 1, not {batch_size} and {max_length}")
    if vocabulary_size is not None:
        check_whole("vocabulary_size", vocabulary_size)
    special = np.unique(token_id_array(special_ids, "special_ids"))
    counts = Counts() if counts is None else counts
    pieces = cut_documents(
        read_documents(documents, pad_id=pad_id), vocabulary_size, max_length, long, counts, special.tolist()
    )
    kept = pieces if keep is None else filter(keep, pieces)
    return _batches(kept, batch_size, pad_id or 0, torch.from_numpy(special), first_is_sink)


def _batches(
    documents: Iterable[Document], batch_size: int, pad_id: int, specials: Tensor, first_is_sink: bool
) -> Iterator[TokenBatch]:
    stream = iter(documents)
    while group := list(islice(stream, batch_size * BATCHES_PER_SORT)):
        group.sort(key=len, reverse=True)
        for start in range(0, len(group), batch_size):
            yield _pad(group[start : start + batch_size], pad_id, specials, first_is_sink)


def _pad(documents: Sequence[Document], pad_id: int, specials: Tensor, first_is_sink: bool) -> TokenBatch:
    shape = (len(documents), max(len(document) for document in documents))
    ids = torch.full(shape, pad_id, dtype=torch.int64)
    word_index = torch.full(shape, -1, dtype=torch.int64)
    mask, special, whole = (torch.zeros(shape, dtype=torch.bool) for _ in range(3))
    for row, document in enumerate(documents):
        length = len(document)
        ids[row, :length] = document.ids
        mask[row, :length] = True
        if document.special is not None:
            special[row, :length] = document.special
        word_index[row, :length] = (
            torch.arange(length) if document.word_index is None else document.word_index
        )
        whole[row, :length] = True if document.whole is None else document.whole
    special = (special | torch.isin(ids, specials)) & mask
    sinks = special.clone()
    sinks[:, 0] |= first_is_sink
    return TokenBatch(
        ids,
        mask,
        keys=torch.tensor([document.key for document in documents]),
        special=special,
        sinks=sinks,
        word_index=word_index.masked_fill(special, -1),
        whole=whole & ~special,
        sources=torch.tensor([document.origin for document in documents]),
        without_words=torch.tensor([document.word_index is None for document in documents]),
    )
