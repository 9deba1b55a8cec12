"""Texts → documents of token ids, the one way: many at once, with what of them are words and where they came from."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn.functional import pad

from topic_probe.options import checked
from topic_probe.text.documents import Counts, Document, Long, content_hash, cut, with_sources
from topic_probe.topics.lookup import check_tokenizer, tokenized
from topic_probe.words import spans_by_decoding, words_of_tokens, written_without_spaces

# Prefixes grow within so many tokens, so that a text ten times as long takes ten times as long.
_TOKENS_TO_DECODE = 64

NOT_ALIGNED = "texts in which the tokenizer's tokens cannot be found again"
WITHOUT_SPACES = "texts with scripts written without spaces, parted character by character"


@checked
def encode_texts(
    texts: Iterable[str],
    tokenizer: Any,
    *,
    max_length: int | None = None,
    add_special_tokens: bool = True,
    begin_token: bool = False,
    sources: Iterable[Hashable] | None = None,
) -> Iterator[Document]:
    """Documents with their words and special tokens, one for every text, by the model's own tokenizer.

    What is a whole word is read off the text (`topic_probe.words`), whatever the tokenizer.

    Args:
        texts: the texts.
        tokenizer: a Hugging Face tokenizer.
        max_length: longer texts are cut between two words at so many tokens, special ones included; None: kept whole.
        add_special_tokens: whether the tokenizer adds its special tokens, as in pretraining.
        begin_token: whether to put the tokenizer's begin token before a text where the tokenizer itself does not, for
            a model that was trained with one. `check_model` says what a tokenizer does.
        sources: for every text a label of what it is from, such as the title of an article that you have cut into
            texts yourself; intervals resample sources. None: every text is a source of its own.

    Example:
        >>> tokenizer = tp.word_tokenizer(["the army's band"])
        >>> (document,) = tp.encode_texts(["The (army's) band"], tokenizer)
        >>> tokens = tokenizer.convert_ids_to_tokens(document.ids.tolist())
        >>> [token for token, whole in zip(tokens, document.whole.tolist()) if whole]
        ['the', 'army', 'band']
    """
    encoder = Encoder(tokenizer, max_length, "cut", add_special_tokens, begin_token)
    return _encoded(with_sources(texts, sources), encoder)


def _encoded(texts: Iterable[tuple[Any, int | None]], encoder: "Encoder") -> Iterator[Document]:
    for number, (text, source) in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"text {number} must be a string, not {type(text).__name__}")
        if not is_unicode(text):
            raise ValueError(f"text {number} is no valid Unicode (it holds half a character): leave it out")
        (documents,) = encoder.encode([text], Counts())
        if not documents:
            raise ValueError(
                f"text {number} ({text[:60]!r}) cannot be read: {type(encoder.tokenizer).__name__} does not say where "
                "its tokens lie in a text, and what they decode to is not this text. Leave it out, or use a fast "
                "tokenizer"
            )
        yield from documents if source is None else (replace(each, source=source) for each in documents)


@dataclass(frozen=True)
class Encoder:
    """Makes documents of texts, many at once."""

    tokenizer: Any
    max_length: int | None
    long: Long
    add_special_tokens: bool
    begin_token: bool

    def __post_init__(self) -> None:
        check_tokenizer(self.tokenizer)
        if self.max_length is not None and self.max_length <= self.n_around:
            raise ValueError(
                f"max_length must leave room for a token beside the {self.n_around} special ones, got "
                f"{self.max_length}"
            )

    @property
    def n_around(self) -> int:
        """Special tokens that are put around every text."""
        return sum(map(len, self.around))

    def encode(self, texts: Sequence[str], counts: Counts) -> Iterator[list[Document]]:
        """The documents of each text: one, or with "chunk" its pieces; none where tokens and text do not meet."""
        for text, (ids, spans) in zip(texts, self._tokenized(texts), strict=True):
            if spans is None:
                counts.left_out[NOT_ALIGNED] += 1
                yield []
                continue
            counts.left_out[WITHOUT_SPACES] += written_without_spaces(text)
            whole = self._document(text, ids, spans)
            yield list(cut(whole, self.max_length, self.long, counts, self._special_ids))

    def _document(
        self, text: str, ids: Int64[np.ndarray, " token"], spans: Int64[np.ndarray, "token 2"]
    ) -> Document:
        before, after = self.around
        around = (len(before), len(after))
        words = torch.from_numpy(words_of_tokens(text, spans))
        special = torch.isin(torch.from_numpy(ids), self._special_ids)
        return Document(
            torch.tensor([*before, *ids.tolist(), *after], dtype=torch.int64),
            pad(words.masked_fill(special, -1), around, value=-1),
            pad(special, around, value=True),
            content_hash(text.encode()),
        )

    @cached_property
    def _special_ids(self) -> Int64[Tensor, " special"]:
        return torch.tensor(sorted(set(self.tokenizer.all_special_ids) - {None}), dtype=torch.int64)

    @cached_property
    def _blank(self) -> np.ndarray:
        """Which ids are only a mark of a space. They cover no text, although some tokenizers give them offsets."""
        tokens = {index: str(token) for token, index in self.tokenizer.get_vocab().items()}
        blank = np.zeros(max(tokens) + 1, dtype=bool)
        blank[[index for index, token in tokens.items() if not token.strip("Ġ▁ ")]] = True
        return blank

    @cached_property
    def around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The special tokens that are put before and after a text."""
        before, after = self._added if self.add_special_tokens else ((), ())
        begin = getattr(self.tokenizer, "bos_token_id", None)
        if not self.begin_token or begin in before:
            return before, after
        if begin is None:
            raise ValueError(
                f"begin_token=True needs a tokenizer with a begin token (bos_token); {type(self.tokenizer).__name__} "
                "has none: leave it out"
            )
        return (begin, *before), after

    @cached_property
    def _added(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The special tokens that the tokenizer puts before and after a text by itself."""
        plain, whole = (
            list(tokenized(self.tokenizer, "a", special_tokens=add)["input_ids"]) for add in (False, True)
        )
        for start in range(len(whole) - len(plain) + 1):
            if whole[start : start + len(plain)] == plain:
                return tuple(whole[:start]), tuple(whole[start + len(plain) :])
        raise ValueError(
            f"{type(self.tokenizer).__name__} does more than put special tokens around a text; pass "
            "add_special_tokens=False"
        )

    def _tokenized(
        self, texts: Sequence[str]
    ) -> list[tuple[Int64[np.ndarray, " token"], Int64[np.ndarray, "token 2"] | None]]:
        """Ids and places of the tokens of every text, without special tokens around; None for places unknown."""
        if not texts:
            return []
        fast = bool(getattr(self.tokenizer, "is_fast", False))
        batch = tokenized(self.tokenizer, list(texts), offsets=fast)
        rows = [np.array(ids, dtype=np.int64) for ids in batch["input_ids"]]
        if not fast:
            return [(ids, self._spans_by_decoding(text, ids)) for text, ids in zip(texts, rows, strict=True)]
        places = [np.array(offsets, dtype=np.int64).reshape(-1, 2) for offsets in batch["offset_mapping"]]
        return [
            (ids, np.where(self._blank[ids][:, None], 0, spans))
            for ids, spans in zip(rows, places, strict=True)
        ]

    def _spans_by_decoding(
        self, text: str, ids: Int64[np.ndarray, " token"]
    ) -> Int64[np.ndarray, "token 2"] | None:
        """Where the tokens of a slow tokenizer lie, from what each of them adds to a growing decoded text."""
        pieces: list[str] = []
        for start in range(0, len(ids), _TOKENS_TO_DECODE):
            block = ids[start : start + _TOKENS_TO_DECODE].tolist()
            grown = [
                str(self.tokenizer.decode(block[:n], clean_up_tokenization_spaces=False))
                for n in range(len(block) + 1)
            ]
            if any(not longer.startswith(shorter) for shorter, longer in pairwise(grown)):
                return None
            pieces += [longer[len(shorter) :] for shorter, longer in pairwise(grown)]
        return spans_by_decoding(text, pieces, (ids == self.tokenizer.unk_token_id).tolist())


def is_unicode(text: str) -> bool:
    """Whether a text can be written down: half a character of two cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def begins_with_token(tokenizer: Any) -> bool | None:
    """Whether a tokenizer puts a special token before a text; None where it does more than put some around it."""
    try:
        before, _ = Encoder(tokenizer, None, "cut", add_special_tokens=True, begin_token=False).around
    except ValueError:
        return None
    return bool(before)
