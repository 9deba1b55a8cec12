"""Which words occur in the same documents, and how much oftener than by chance: counted in one pass over a stream.

The table of counts is dense, four bytes a pair: ten thousand words are 400 MB. While documents are read, eight bytes of
each word that is counted stay in memory; parts of a large corpus are counted one by one, and add up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float64, Int32, Int64
from torch import Tensor

from topic_probe.options import checked, progress_bar
from topic_probe.report import Report
from topic_probe.text.documents import Counts, Long, cut_documents, read_documents
from topic_probe.text.lda import NOT_ASKED, read_bags
from topic_probe.topics import Topics
from topic_probe.topics.lists import token_id_array
from topic_probe.topics.lookup import readable

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import csr_array

_DOCUMENTS_AT_ONCE = 2000


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
        table = np.triu(self.counts.numpy(), 1)
        if forms is not None:
            table[(forms[:, None] == forms).numpy()] = 0
        # Of a large table all that may be among them, and not all pairs, are sorted.
        enough = min(n, table.size)
        lowest = max(1, int(np.partition(table, table.size - enough, axis=None)[table.size - enough]))
        first, second = np.nonzero(table >= lowest)
        counts = table[first, second].astype(np.int64)
        order = np.argsort(-counts, kind="stable")[:n]
        ids = self.words.numpy()
        one, other, n_together = map(torch.from_numpy, (ids[first[order]], ids[second[order]], counts[order]))
        return one, other, n_together

    def to_dataframe(self, n: int = 20) -> "pd.DataFrame":
        """The ``n`` most frequent pairs with their count, PMI and NPMI (0 by chance, 1 only together)."""
        import pandas as pd

        first, second, counts = self.most_frequent(n)
        rows, others = self.rows_of(first), self.rows_of(second)
        single = self.document_frequency.double()
        pmi = torch.log(counts * self.n_documents / (single[rows] * single[others]))
        # Words that are both in every document are only together.
        npmi = torch.where(counts == self.n_documents, 1.0, pmi / -torch.log(counts / self.n_documents))
        names = np.array(self.texts or self.words.tolist(), dtype=object)
        columns = {
            "first": names[rows],
            "second": names[others],
            "documents": counts,
            "pmi": pmi,
            "npmi": npmi,
        }
        return pd.DataFrame(columns)

    def __add__(self, other: "Cooccurrence") -> "Cooccurrence":
        options, read = ([part.provenance[name] for part in (self, other)] for name in ("options", "read"))
        if not torch.equal(self.words, other.words) or options[0] != options[1]:
            raise ValueError(
                f"only counts of the same words with the same options add up, these have {len(self)} and {len(other)} "
                f"words, {options[0]} and {options[1]}: count all parts of a corpus with the same list of words, no "
                "longer than max_words"
            )
        return replace(
            self,
            counts=self.counts + other.counts,
            n_documents=self.n_documents + other.n_documents,
            provenance={"options": options[0], "read": (Counts.of(read[0]) + Counts.of(read[1])).summary()},
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
        vocabulary_size: Number of token ids; by default that of the topics, or the highest id and one. Other ids are
            refused where it is known.
        max_words: Of more words, those in most documents are counted.
        max_length: Documents are cut at so many tokens; None: never.
        long: "cut" drops the rest of longer documents; "chunk" makes documents of it, so that words co-occur only
            within windows of ``max_length`` tokens.
        progress: Whether to show a progress bar; by default in a terminal or a notebook.

    Example:
        >>> counts = tp.count_cooccurrence([[1, 2], [2, 1, 1], [3]], [1, 2, 3])
        >>> counts.counts.tolist()  # on the diagonal, documents with the word
        [[2, 2, 0], [2, 2, 0], [0, 0, 1]]
    """
    if isinstance(words, Topics):
        vocabulary_size = vocabulary_size or words.vocabulary_size
        wanted: Any = words.words[words.words < words.vocabulary_size]
    else:
        wanted = words
    ids = np.unique(token_id_array(wanted, "words", below=vocabulary_size or 2**31 - 1))
    if not len(ids):
        raise ValueError("there is no word to count: pass topics, or at least one token id")
    size = vocabulary_size or int(ids[-1]) + 1
    options = {"max_words": max_words, "max_length": max_length, "long": long, "words_asked_for": len(ids)}
    reason = np.full(int(ids[-1]) + 2, NOT_ASKED)
    reason[ids] = 0
    read = Counts()
    pieces = cut_documents(read_documents(documents), vocabulary_size, max_length, long, read)
    bags = read_bags(progress_bar(pieces, unit=" documents", shown=progress), reason, read)
    if not read.documents:
        raise ValueError("no document is left to count in: there were none, or all were empty")
    frequency = np.bincount(bags.indices, minlength=len(reason))[ids]
    ids = np.sort(ids[np.argsort(-frequency, kind="stable")[:max_words]])
    return Cooccurrence(
        words=torch.from_numpy(ids),
        counts=torch.from_numpy(_together(bags[:, ids])),
        n_documents=read.documents,
        vocabulary_size=size,
        provenance={"options": options, "read": read.summary()},
        texts=_texts(ids, words, documents),
    )


def _together(bags: "csr_array") -> Int32[np.ndarray, "word word"]:
    """Documents with both words of every pair."""
    counts = np.zeros((bags.shape[1], bags.shape[1]), dtype=np.int32)
    there = bags.astype(bool).astype(np.int32)
    for start in range(0, there.shape[0], _DOCUMENTS_AT_ONCE):
        block = there[start : start + _DOCUMENTS_AT_ONCE]
        both = (block.T @ block).tocoo()
        counts[both.row, both.col] += both.data
    return counts


def _texts(ids: Int64[np.ndarray, " word"], words: Any, documents: Any) -> tuple[str, ...]:
    """The readable form of token ids, as topics know it or else the tokenizer of the documents."""
    if isinstance(words, Topics) and words.texts:
        known = dict(zip(words.words.tolist(), words.texts, strict=True))
        return tuple(known[entry] for entry in ids.tolist())
    tokenizer = getattr(documents, "tokenizer", None)
    return () if tokenizer is None else tuple(readable(tokenizer, (entry,)) for entry in ids.tolist())
