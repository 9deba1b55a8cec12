"""Documents → right-padded batches of token ids with a mask, streamed."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from topic_probe.options import check_whole
from topic_probe.text.documents import Document

# Enough batches are looked at together to sort documents by length, few enough to keep a stream a stream.
BATCHES_PER_SORT = 32


@dataclass(frozen=True)
class TokenBatch:
    """Right-padded documents with their mask.

    Attributes:
        ids: token ids; padding holds ``pad_id``.
        mask: True on real tokens.
        keys: a content hash for every document.
        special: True on special tokens.
        sinks: True where a model parks attention whatever stands there, so that no word is there: on special tokens
            and, on demand, on first positions.
        word_index: the word that each token lies in, -1 for none; where the text is unknown, every token is one.
        whole: True on tokens that are a whole word.
        sources: a hash of where each document was cut from.
        without_words: True on documents of unknown text.
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
        return self.rows(slice(0, middle)), self.rows(slice(middle, len(self)))

    def rows(self, rows: slice | Int64[Tensor, " some"]) -> "TokenBatch":
        """Some of the documents, as wide as the longest of them."""
        width = int(self.mask[rows].sum(1).max())
        return TokenBatch(
            *(part[rows, :width] if part.ndim == 2 else part[rows] for part in vars(self).values())
        )


def token_batches(
    documents: Iterable[Document],
    *,
    batch_size: int = 32,
    pad_id: int | None = None,
    special_ids: Collection[int] = (),
    first_is_sink: bool = False,
) -> Iterator[TokenBatch]:
    """Batches of documents of similar length, streamed.

    Args:
        documents: the documents, checked and cut.
        batch_size: documents per batch.
        pad_id: what padding holds; None: 0.
        special_ids: ids that are special tokens wherever they stand.
        first_is_sink: whether the first position of every document is a sink, as it is to a causal model.
    """
    check_whole("batch_size", batch_size)
    specials = torch.tensor(sorted(special_ids), dtype=torch.int64)
    stream = iter(documents)
    while group := list(islice(stream, batch_size * BATCHES_PER_SORT)):
        group.sort(key=len, reverse=True)
        for start in range(0, len(group), batch_size):
            yield _pad(group[start : start + batch_size], pad_id or 0, specials, first_is_sink)


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
