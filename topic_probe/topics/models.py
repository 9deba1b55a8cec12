"""P(token | topic) of any topic model, and which tokens of it a topic keeps."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from topic_probe.options import check_value
from topic_probe.topics.lists import Ids, check_vocabulary_size, plain_array, token_id_array, word_list
from topic_probe.topics.vocabulary import look_up, tokenizer_hash, vocabulary_size
from topic_probe.words import form

Rounding = Literal["plain", "public_code"]
FractionOf = Literal["fit", "tokenizer"]


@dataclass(frozen=True)
class TopicModelTable:
    """What `Topics.from_lda` needs to know of a topic model, whoever fitted it."""

    phi: Any
    token_ids: Iterable[Any] | None
    vocabulary_size: int | None
    filtered: bool
    texts: Mapping[int, str] = field(default_factory=dict)
    hash: str | None = None


def topic_model(lda: Any, token_ids: Any, size: int | None, tokenizer: Any) -> TopicModelTable:
    """What there is to know of a ``TopicFit`` or of a gensim model with ``get_topics``."""
    if all(hasattr(lda, name) for name in ("phi", "token_ids", "texts", "tokenizer_hash")):
        if token_ids is not None:
            raise ValueError("a fit knows the token ids of its columns: leave token_ids out")
        if tokenizer is not None and tokenizer_hash(tokenizer) != lda.tokenizer_hash:
            raise ValueError(
                f"the topics were fitted with another tokenizer (vocabulary {lda.tokenizer_hash[:12]}…) than this one: "
                "fit them on documents of this one"
            )
        texts = dict(zip(lda.token_ids.tolist(), lda.texts, strict=True))
        size = lda.vocabulary_size if size is None else size
        phi = lda.phi.clone()
        phi[list(lda.empty_topics)] = 1.0
        return TopicModelTable(phi, lda.token_ids, size, True, texts, lda.tokenizer_hash)
    if not callable(getattr(lda, "get_topics", None)):
        raise TypeError(
            f"from_lda needs a TopicFit or a gensim model with get_topics, got {type(lda).__name__}; the matrix "
            "P(token | topic) of any other topic model goes to Topics.from_matrix"
        )
    # The whole matrix: get_term_topics of gensim is no probability and hides whatever is small.
    phi = matrix(lda.get_topics())
    columns = _gensim_columns(lda, phi.shape[1], tokenizer) if token_ids is None else token_ids
    if size is None and tokenizer is not None:
        size = vocabulary_size(tokenizer)
    return TopicModelTable(phi, columns, size, tokenizer is None)


def _gensim_columns(lda: Any, n: int, tokenizer: Any) -> list[int] | None:
    """Token ids of the columns of a gensim model as its ``id2word`` has them; None where columns are ids."""
    mapping = getattr(lda, "id2word", None)
    if mapping is not None and not callable(getattr(mapping, "get", None)):
        raise TypeError(
            f"id2word of the model must be a mapping column -> token id or token, got {type(mapping).__name__}: name "
            "the token id of every column with token_ids="
        )
    words = [mapping.get(column) for column in range(n)] if mapping else [str(column) for column in range(n)]
    if all(str(word).isdecimal() for word in words):
        ids = [int(word) for word in words]
        return None if ids == list(range(n)) else ids
    known = {} if tokenizer is None else tokenizer.get_vocab()
    missing = [word for word in words if word not in known]
    if missing:
        what = "pass the tokenizer" if tokenizer is None else "fit the model on its token ids"
        raise ValueError(
            f"{len(missing)} columns of the model are named by words that are no tokens, such as {missing[0]!r}: "
            f"{what}, or name the token id of every column with token_ids="
        )
    return [known[word] for word in words]


def stop_word_ids(stop_words: Iterable[str] | None, tokenizer: Any) -> list[int]:
    """Ids of the stop words that are one token, in any case; None: gensim's English list.

    Tokens count that a stop word becomes, alone or behind a space, and tokens that read like one, because behind a
    bracket some tokenizers have one that stands for it nowhere else.
    """
    if stop_words is None:
        from gensim.parsing.preprocessing import STOPWORDS

        stop_words = sorted(STOPWORDS)
    words = word_list(stop_words, "stop_words")
    found = look_up(words, tokenizer, case_variants=True, leading_space=True).values()
    ids = {pieces[0] for what in found for pieces in what.sequences if len(pieces) == 1}
    forms = {form(word) for word in words}
    known = sorted(set(tokenizer.get_vocab().values()))
    texts = tokenizer.batch_decode([[index] for index in known])
    alike = {index for index, text in zip(known, texts, strict=True) if form(text.strip("▁ ")) in forms}
    return sorted(ids | alike)


def never_kept(stop_words: Iterable[str] | None, tokenizer: Any) -> list[int]:
    """Ids of stop words and of special tokens; none where there is no tokenizer to look them up with."""
    if tokenizer is not None:
        return stop_word_ids(stop_words, tokenizer) + sorted(tokenizer.all_special_ids)
    if stop_words is not None and list(stop_words):
        raise ValueError(
            "stop_words are looked up with the tokenizer: pass it as well, or exclude= token ids"
        )
    return []


def matrix(phi: Any) -> Any:
    """The topic model as a 2-d array or tensor of real numbers, not copied."""
    phi = plain_array(phi, "phi")
    if not isinstance(phi, Tensor):
        try:
            phi = np.asarray(phi)
        except ValueError as error:
            raise ValueError("phi must be [topic, token], with rows of equal length") from error
    real = (
        not (phi.dtype.is_complex or phi.dtype == torch.bool)
        if isinstance(phi, Tensor)
        else phi.dtype.kind in "iuf"
    )
    if not real or phi.ndim != 2 or 0 in phi.shape:
        raise ValueError(
            "phi must hold the numbers P(token | topic) as [topic, token], "
            f"got {phi.dtype} of shape {list(phi.shape)}"
        )
    return phi


def probabilities_of(row: Any, what: str) -> Float64[np.ndarray, "column"]:
    """A row of the topic model, summing to one."""
    values = np.asarray(row.double() if isinstance(row, Tensor) else row, dtype=np.float64)
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(wrong):
        raise ValueError(
            f"{what} must be finite and not negative, got {values[wrong[0]]} in column {wrong[0]}"
        )
    if not values.any():
        raise ValueError(f"{what} is zero everywhere: leave the topic out")
    with np.errstate(over="ignore"):
        total = values.sum()
    if not np.isfinite(total):
        values = values / values.max()
        total = values.sum()
    probabilities: np.ndarray = values / total
    return probabilities


def kept_per_topic(n_columns: int, fraction: float, rounding: Rounding) -> int:
    """How many tokens a topic keeps: the share ``fraction`` of the columns, rounded as asked for."""
    if not 0 < check_value("fraction", fraction, float) <= 1:
        raise ValueError(f"fraction must be above 0 and at most 1, got {fraction}")
    if rounding == "plain":
        return max(1, math.floor(n_columns * fraction + 0.5))
    return min(n_columns, int(n_columns * fraction) + 1)


def columns_of(n_columns: int, token_ids: Iterable[Any] | None, size: int | None) -> tuple[Ids, int]:
    """The token id of every column, and the number of token ids."""
    if token_ids is None:
        size = check_vocabulary_size(n_columns if size is None else size, n_columns)
        return np.arange(n_columns), size
    if size is None:
        raise ValueError("token_ids needs vocabulary_size as well, the number of ids of the tokenizer")
    size = check_vocabulary_size(size)
    columns = token_id_array(token_ids, "token_ids", below=size, ordered=True)
    different = len(np.unique(columns))
    if not len(columns) == different == n_columns:
        raise ValueError(
            f"token_ids must name a different id for each of the {n_columns} columns of phi, "
            f"got {len(columns)} ids, {different} of them different"
        )
    return columns, size


def most_likely(
    probabilities: Float64[np.ndarray, "column"],
    columns: Int64[np.ndarray, "column"],
    allowed: Bool[np.ndarray, "column"],
    n: int,
) -> tuple[Int64[np.ndarray, "kept"], Float64[np.ndarray, "kept"]]:
    """Ids and probabilities of the ``n`` likeliest allowed columns, equal ones in the order of their ids."""
    kept = np.flatnonzero(allowed)
    if len(kept) > n:
        # Sorting only what reaches the n-th value is fast, and keeps every tie for the ids to decide.
        kept = kept[probabilities[kept] >= np.partition(probabilities[kept], -n)[-n]]
    kept = kept[np.lexsort((columns[kept], -probabilities[kept]))][:n]
    return columns[kept], probabilities[kept]
