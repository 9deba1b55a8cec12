"""Which words occur in the same documents, and how much oftener than by chance: counted in one pass over a stream.

The table of counts is dense, four bytes a pair, and does not grow with the documents: ten thousand words are 400 MB.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float64, Int32, Int64
from torch import Tensor

from topic_probe.notices import progress_bar
from topic_probe.options import checked
from topic_probe.report import Report
from topic_probe.text.documents import Counts, Long, cut_documents, read_documents
from topic_probe.topics import Topics
from topic_probe.topics.lists import token_id_array
from topic_probe.topics.lookup import readable

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import csr_array

# So many words of documents are held before what meets in them is added up.
_WORDS_AT_ONCE = 2**18
_PAIRS_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Cooccurrence(Report, kind="co-occurrence"):
    """In how many documents every two words are, however often in each. Two parts of a corpus add up with ``+``.

    Attributes:
        words: Token ids of the words that were counted, ascending.
        counts: Documents with both words; on the diagonal, documents with the word. Symmetric.
        n_documents: Documents (or pieces of documents) that were read, those without any of the words included.
        vocabulary_size: Number of token ids.
        provenance: Options, and what was read and cut.
        texts: Readable form of every word; empty where neither topics nor documents knew any.
    """

    words: Int64[Tensor, " word"]
    counts: Int32[Tensor, "word word"]
    n_documents: int
    vocabulary_size: int
    provenance: Mapping[str, Any]
    texts: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.words)

    @property
    def document_frequency(self) -> Int64[Tensor, " word"]:
        """Documents that every word is in."""
        return self.counts.diagonal().long()

    def rows_of(self, ids: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
        """The rows of token ids in ``counts``; -1 for those that were not counted."""
        rows = torch.searchsorted(self.words, ids).clamp(max=len(self) - 1)
        return torch.where(self.words[rows] == ids, rows, -1)

    def restrict(self, ids: Int64[Tensor, " kept"]) -> "Cooccurrence":
        """The same for some of the words; ids that were not counted are left out."""
        rows = self.rows_of(torch.unique(ids))
        rows = rows[rows >= 0]
        texts = tuple(self.texts[row] for row in rows.tolist()) if self.texts else ()
        return replace(self, words=self.words[rows], counts=self.counts[rows][:, rows], texts=texts)

    def pmi(self) -> Float64[Tensor, "word word"]:
        """Pointwise mutual information ln(P(both) / P(one) P(other)) of words with all words.

        0 where they meet as often as by chance, −inf where they never meet, NaN where one of them is in no document.
        """
        single = self.counts.diagonal().double()
        return torch.log(self.counts.double() * self.n_documents / (single[:, None] * single))

    def most_frequent(
        self, n: int, *, forms: Int64[Tensor, " word"] | None = None
    ) -> tuple[Int64[Tensor, " pair"], Int64[Tensor, " pair"], Int64[Tensor, " pair"]]:
        """The ``n`` pairs of different words in most documents: their first ids, second ids and counts.

        Highest count first, equal ones in the order of their ids; the first id of a pair is the lower one. Pairs that
        never meet are not among them, so there may be fewer. ``forms`` has a number for every word; words with the same
        one are forms of one word, and no pair.
        """
        table, lowest = self.counts.numpy(), 1
        kept = np.zeros((3, 0), dtype=np.int64)
        step = max(1, _PAIRS_AT_ONCE // len(self))
        for start in range(0, len(self), step):
            block = np.triu(table[start : start + step], start + 1)
            if forms is not None:
                block[(forms[start : start + step, None] == forms).numpy()] = 0
            first, second = np.nonzero(block >= lowest)
            found = np.stack([first + start, second, block[first, second].astype(np.int64)])
            kept = np.concatenate([kept, found], axis=1)
            kept = kept[:, np.lexsort((kept[1], kept[0], -kept[2]))[:n]]
            if kept.shape[1] == n:
                lowest = int(kept[2, -1])
        first_row, second_row, counts = torch.from_numpy(kept)
        return self.words[first_row], self.words[second_row], counts

    def to_dataframe(self, n: int = 20) -> "pd.DataFrame":
        """The ``n`` most frequent pairs with their count, PMI and NPMI (0 by chance, 1 only together)."""
        import pandas as pd

        first, second, counts = self.most_frequent(n)
        rows, columns = self.rows_of(first), self.rows_of(second)
        single = self.document_frequency.double()
        pmi = torch.log(counts * self.n_documents / (single[rows] * single[columns]))
        # Words that are both in every document are only together.
        npmi = torch.where(counts == self.n_documents, 1.0, pmi / -torch.log(counts / self.n_documents))
        return pd.DataFrame(
            {
                "first": self._named(rows),
                "second": self._named(columns),
                "documents": counts.tolist(),
                "pmi": pmi.tolist(),
                "npmi": npmi.tolist(),
            }
        )

    def _named(self, rows: Int64[Tensor, " pair"]) -> list[Any]:
        return [self.texts[row] for row in rows.tolist()] if self.texts else self.words[rows].tolist()

    def __add__(self, other: "Cooccurrence") -> "Cooccurrence":
        if self.vocabulary_size != other.vocabulary_size or not torch.equal(self.words, other.words):
            raise ValueError(
                f"only counts of the same words add up, these have {len(self)} and {len(other)} words: count all parts "
                "of a corpus with the same list of words, no longer than max_words"
            )
        options, read = ([part.provenance[name] for part in (self, other)] for name in ("options", "read"))
        if options[0] != options[1]:
            raise ValueError(
                f"only counts with the same options add up, these have {options[0]} and {options[1]}"
            )
        return replace(
            self,
            counts=self.counts + other.counts,
            n_documents=self.n_documents + other.n_documents,
            provenance={"options": options[0], "read": (Counts.of(read[0]) + Counts.of(read[1])).summary()},
            texts=self.texts or other.texts,
        )

    def _tables(self) -> "dict[str, pd.DataFrame]":
        headline = f"Cooccurrence: {len(self):,} words in {self.n_documents:,} documents"
        return {headline: self.to_dataframe(10)}


@checked
def count_cooccurrence(
    documents: Any,
    words: Any,
    *,
    vocabulary_size: int | None = None,
    max_words: int = 10_000,
    max_length: int | None = None,
    long: Long = "cut",
    progress: bool | None = None,
) -> Cooccurrence:
    """In how many documents every two of the words are, in one pass over the documents.

    Special tokens and pieces of split words are no words, as far as the documents say so. Counts of parts of a corpus
    add up with ``+`` to exactly those of the whole.

    Args:
        documents: Token ids in any shape that `topic_probe.text.documents.read_documents` takes.
        words: The words of topics, or token ids, such as ``word_ids(tokenizer)`` gives.
        vocabulary_size: Number of token ids; by default that of the topics, or the highest id and one.
        max_words: Of more words, those in most documents are counted; what documents have stays in memory until it is
            known which they are.
        max_length: Documents are cut at so many tokens; None: never.
        long: "cut" drops the rest of longer documents; "chunk" makes documents of it, so that words co-occur only
            within windows of ``max_length`` tokens.
        progress: Whether to show a progress bar; by default in a terminal or a notebook.

    Example:
        >>> counts = tp.count_cooccurrence([[1, 2], [2, 1, 1], [3]], [1, 2, 3])
        >>> counts.counts.tolist()  # on the diagonal, documents with the word
        [[2, 2, 0], [2, 2, 0], [0, 0, 1]]
    """
    ids, size = _words(words, vocabulary_size)
    known = size if isinstance(words, Topics) else vocabulary_size
    options = {"max_words": max_words, "max_length": max_length, "long": long, "words_asked_for": len(ids)}
    read = Counts()
    pieces = cut_documents(read_documents(documents), known, max_length, long, read)
    tables = _tables(progress_bar(pieces, unit=" documents", shown=progress), ids)
    if len(ids) > max_words:
        held = list(tables)
        frequency = sum((table.sum(axis=0) for table in held), np.zeros(len(ids), dtype=np.int64))
        order = np.argsort(-frequency, kind="stable")
        chosen = np.sort(order[:max_words])
        ids = ids[chosen]
        tables = (table[:, chosen] for table in held)
    counts = _count(tables, len(ids))
    if not read.documents:
        raise ValueError("no document is left to count in: there were none, or all were empty")
    return Cooccurrence(
        words=torch.from_numpy(ids),
        counts=torch.from_numpy(counts),
        n_documents=read.documents,
        vocabulary_size=size,
        provenance={"options": options, "read": read.summary()},
        texts=_texts(ids, words, documents),
    )


def _texts(ids: Int64[np.ndarray, " word"], words: Any, documents: Any) -> tuple[str, ...]:
    """The readable form of token ids, as topics know it or else the tokenizer of the documents."""
    if isinstance(words, Topics) and words.texts:
        known = dict(zip(words.words.tolist(), words.texts, strict=True))
        return tuple(known[entry] for entry in ids.tolist())
    tokenizer = getattr(documents, "tokenizer", None)
    return () if tokenizer is None else tuple(readable(tokenizer, (entry,)) for entry in ids.tolist())


def _words(words: Any, vocabulary_size: int | None) -> tuple[Int64[np.ndarray, " word"], int]:
    """The ids to count, ascending, and the number of all ids."""
    if isinstance(words, Topics):
        ids = words.words[words.words < words.vocabulary_size].numpy()
        vocabulary_size = vocabulary_size or words.vocabulary_size
    else:
        ids = np.unique(token_id_array(words, "words"))
    if not len(ids):
        raise ValueError("there is no word to count: pass topics, or at least one token id")
    size = int(ids[-1]) + 1 if vocabulary_size is None else vocabulary_size
    if ids[0] < 0 or ids[-1] >= size:
        raise ValueError(f"token ids must be within 0..{size - 1}, got {ids[0]} to {ids[-1]}")
    return ids, size


def _tables(documents: Any, ids: Int64[np.ndarray, " word"]) -> Iterator["csr_array"]:
    """Which documents have which of the words, some documents at a time: 1 in [document, word]."""
    from scipy.sparse import csr_array

    place = np.full(int(ids[-1]) + 2, -1)
    place[ids] = np.arange(len(ids))

    def table() -> "csr_array":
        ends, columns = np.cumsum([0, *map(len, held)]), np.concatenate(held)
        return csr_array((np.ones(len(columns), np.int32), columns, ends), shape=(len(held), len(ids)))

    held: list[np.ndarray] = []
    n_held = 0
    for document in documents:
        # Ids above all words share the last entry, which is no word.
        known = place[np.minimum(document.ids.numpy(), len(place) - 1)]
        if document.whole is not None:
            known = np.where(document.whole.numpy(), known, -1)
        if document.special is not None:
            known = np.where(document.special.numpy(), -1, known)
        held.append(np.unique(known[known >= 0]).astype(np.int32))
        n_held += len(held[-1])
        if n_held > _WORDS_AT_ONCE:
            yield table()
            held, n_held = [], 0
    if held:
        yield table()


def _count(tables: Iterable["csr_array"], n_words: int) -> Int32[np.ndarray, "word word"]:
    """Documents with both words of every pair."""
    counts = np.zeros((n_words, n_words), dtype=np.int32)
    for table in tables:
        both = (table.T @ table).tocoo()
        counts[both.row, both.col] += both.data
    return counts
