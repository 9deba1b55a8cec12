"""Lists of token ids, words and topics as users write them, checked and made uniform."""

from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np
from jaxtyping import Int64
from torch import Tensor

from topic_probe.options import check_whole

# The axis is anonymous, because several lists of ids of different lengths stand in one signature.
Ids = Int64[np.ndarray, "_"]

_WORDS_ELSEWHERE = "words go to Topics.from_word_lists"


def check_vocabulary_size(size: Any, least: int = 1, name: str = "vocabulary_size") -> int:
    """A number of token ids: they are 32-bit numbers in places, and no tokenizer has half as many."""
    return check_whole(name, size, least, 2**31 - 1)


def token_id_array(
    values: Any, what: str, *, below: int | None = None, ordered: bool = False, remedy: str = _WORDS_ELSEWHERE
) -> Ids:
    """Token ids in the order given; a set does where this does not count."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise TypeError(f"{what} needs a list of token ids, got {values!r:.100}; {remedy}")
    if ordered and isinstance(values, Set):
        raise TypeError(f"{what} needs token ids in their order, and a set has none: pass a list")
    array = np.asarray(values if isinstance(values, np.ndarray | Tensor) else list(values))
    if array.shape == (0,):
        return np.empty(0, dtype=np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(
            f"{what} needs a row of token ids, which are whole numbers, got {array.tolist()!r:.100}; {remedy}"
        )
    ids = array.astype(np.int64)
    if below is not None and len(wrong := ids[(ids < 0) | (ids >= below)]):
        raise ValueError(
            f"{what} holds {len(wrong)} ids that the vocabulary does not have, such as {wrong[0]}: its ids are "
            f"0..{below - 1}; are these of another tokenizer?"
        )
    return ids


def word_list(values: Any, what: str) -> list[str]:
    """Words as a list; a bare string, ids, (word, score) pairs and mappings are refused."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise TypeError(f"{what} needs a list of words, got {values!r:.100}; put a single word into a list")
    words = list(values)
    if wrong := [word for word in words if not isinstance(word, str)]:
        raise TypeError(
            f"{what} needs words, which are strings, got {wrong[0]!r:.100}; token ids go to Topics.from_token_ids, "
            "and of (word, score) pairs only the word is wanted"
        )
    return words


def by_topic(lists: Any, what: str) -> dict[str, Any]:
    """The list of every topic by its name, without that of the outlier topic -1."""
    if not isinstance(lists, Mapping) or not set(lists) - {-1}:
        raise TypeError(f"topics need a mapping topic -> {what} with at least one topic, got {lists!r:.100}")
    if all(isinstance(key, str) for key in lists):
        return dict(lists)
    if not all(isinstance(key, int | np.integer) and key >= -1 for key in lists):
        raise ValueError(
            "topics must all be named by strings or all by whole numbers from 0 on (-1 for outliers), got "
            f"{list(lists)[:5]}"
        )
    return {str(key): lists[key] for key in sorted(lists) if key != -1}


def probabilities(phi: Any) -> np.ndarray:
    """P(token | topic), whose rows sum to one, from probabilities or counts: an array, tensor or nested list."""
    table = np.asarray(phi, dtype=np.float64)
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(f"phi must hold the numbers P(token | topic) as [topic, token], got {table.shape}")
    totals = table.sum(axis=1, keepdims=True)
    for row, wrong in enumerate(~((table >= 0).all(1) & np.isfinite(totals[:, 0]) & (totals[:, 0] > 0))):
        if wrong:
            raise ValueError(
                f"row {row} of phi must be finite, not negative and not zero everywhere, got {table[row]!r:.100}"
            )
    found: np.ndarray = table / totals
    return found
