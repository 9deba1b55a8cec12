"""Documents as bags of words: which tokens are words, and how often each is in every document."""

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from topic_probe.options import check_whole, checked
from topic_probe.text.documents import Counts, Document, read_documents
from topic_probe.topics.models import stop_word_ids
from topic_probe.topics.vocabulary import vocabulary_size

if TYPE_CHECKING:
    from scipy.sparse import csr_array

STOP, SPECIAL, NO_WORD, PIECE, RARE, COMMON = (
    "stop words",
    "special tokens",
    "tokens that are no words",
    "pieces of split words",
    "different words, in too few documents",
    "different words, in too many documents",
)


@dataclass(frozen=True)
class Words:
    """What is known of every token id before any text is read.

    Attributes:
        reason: Why an id is not fitted, as a place in ``reasons``; 0 where it is.
        texts: Readable form of every id.
    """

    reason: Int64[np.ndarray, "vocabulary"]
    texts: tuple[str, ...]
    reasons: tuple[str, ...] = ("", SPECIAL, NO_WORD, STOP)


@checked
def word_ids(
    tokenizer: Any, *, stop_words: Iterable[str] | None = None, min_letters: int = 2
) -> Int64[Tensor, "word"]:
    """Token ids that are words by themselves, ascending: letters only, and no stop words.

    Special tokens, punctuation, numbers, pieces that continue a word (``##ing``) and single letters are none. A
    byte-level or sentencepiece vocabulary does not tell every piece from a word; documents of a text do.

    Args:
        tokenizer: A Hugging Face tokenizer.
        stop_words: Words to leave out, looked up in any case and behind a space; None: gensim's English list.
        min_letters: Letters that a word has at least.
    """
    words = judge(tokenizer, stop_words, min_letters)
    return torch.from_numpy(np.flatnonzero(words.reason == 0))


def judge(tokenizer: Any, stop_words: Iterable[str] | None, min_letters: int) -> Words:
    """Every token id with the reason why it is no word to fit, if there is one."""
    check_whole("min_letters", min_letters)
    size = vocabulary_size(tokenizer)
    texts = [""] * size
    ids = list(tokenizer.get_vocab().values())
    for index, text in zip(ids, tokenizer.batch_decode([[index] for index in ids]), strict=True):
        texts[index] = str(text).strip("▁ ")
    reason = np.array([0 if _is_word(text, min_letters) else 2 for text in texts], dtype=np.int64)
    reason[stop_word_ids(stop_words, tokenizer)] = 3
    special = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    reason[sorted(special | set(tokenizer.all_special_ids))] = 1
    return Words(reason, tuple(texts))


def _is_word(text: str, min_letters: int) -> bool:
    # Marks are parts of letters in many scripts, and str.isalpha refuses them.
    kinds = [unicodedata.category(letter)[0] for letter in text]
    return kinds.count("L") >= min_letters and not set(kinds) - {"L", "M"}


# --- bags of words ----------------------------------------------------------------------------------


def read_bags(documents: Any, words: Words) -> tuple["csr_array", Counts]:
    """How often every token id is a word of every document, [document, token id], and what was left out.

    Eight bytes for each different word of a document: 80 MB for 100,000 documents of 100 words.

    Args:
        documents: Documents, as `read_documents` takes them; they are read once.
        words: Which token ids are words.
    """
    from scipy.sparse import csr_array

    size = len(words.reason)
    counts = Counts()
    ids_of, times_of = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
    for number, document in enumerate(read_documents(documents)):
        ids = document.ids.numpy()
        if len(wrong := ids[(ids < 0) | (ids >= size)]):
            raise ValueError(
                f"document {number} holds the token id {wrong[0]}, the tokenizer has 0..{size - 1}: "
                "were the documents made with another tokenizer?"
            )
        counts.add(document)
        unique, times = np.unique(ids[_kept(document, words, counts)], return_counts=True)
        ids_of.append(unique.astype(np.int32))
        times_of.append(times.astype(np.int32))
    starts = np.cumsum([len(ids) for ids in ids_of])
    table = csr_array(
        (np.concatenate(times_of), np.concatenate(ids_of), starts), shape=(counts.documents, size)
    )
    return table, counts


def _kept(document: Document, words: Words, counts: Counts) -> Bool[np.ndarray, "_"]:
    """Which tokens of a document are words; the others are counted by their reason."""
    reason = words.reason[document.ids.numpy()]
    if document.special is not None:
        reason = np.where(document.special.numpy(), 1, reason)
    kept: np.ndarray = reason == 0
    for place, count in enumerate(np.bincount(reason, minlength=4)[1:], 1):
        counts.left_out[words.reasons[place]] += int(count)
    if document.whole is not None:
        whole = document.whole.numpy()
        counts.left_out[PIECE] += int((kept & ~whole).sum())
        kept = kept & whole
    return kept
