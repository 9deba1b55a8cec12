"""Lists of token ids, words and topics as users write them, checked and made uniform."""

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

# The axis is anonymous, because several lists of ids of different lengths stand in one signature.
Ids = Int64[np.ndarray, "_"]


def token_id_array(values: Any, what: str, *, below: int | None = None) -> Ids:
    """Token ids as an array in the order given; whatever only resembles token ids is refused."""
    remedy = "words go to Topics.from_word_lists"
    if isinstance(values, Tensor | np.ndarray):
        ids = _ids_of_array(values.detach().cpu() if isinstance(values, Tensor) else values, what)
    elif isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"{what} needs a list of token ids, got {values!r}; {remedy}")
    else:
        items = list(values)
        for item in items:
            if isinstance(item, bool | np.bool_) or not hasattr(item, "__index__"):
                raise TypeError(f"{what} needs token ids, which are whole numbers, got {item!r}; {remedy}")
        try:
            ids = np.array([operator.index(item) for item in items], dtype=np.int64)
        except OverflowError as error:
            raise ValueError(f"{what} holds an id of more than 64 bits: are these token ids?") from error
    if below is not None and len(wrong := ids[(ids < 0) | (ids >= below)]):
        raise ValueError(
            f"{what} holds {len(wrong)} ids that the vocabulary does not have, such as {wrong[0]}: its ids are "
            f"0..{below - 1}; are these ids of another tokenizer?"
        )
    return ids


def _ids_of_array(values: Tensor | np.ndarray, what: str) -> Ids:
    whole = (
        not (values.dtype.is_floating_point or values.dtype.is_complex or values.dtype == torch.bool)
        if isinstance(values, Tensor)
        else values.dtype.kind in "iu"
    )
    if values.ndim != 1 or not (whole or 0 in values.shape):
        raise TypeError(f"{what} needs a row of whole ids, got {values.dtype} of shape {list(values.shape)}")
    return np.asarray(values).astype(np.int64)


def word_list(values: Any, what: str) -> list[str]:
    """Words as a list; a bare string, ids, (word, score) pairs and mappings are refused."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise TypeError(f"{what} needs a list of words, got {values!r}; put a single word into a list")
    words = list(values)
    for word in words:
        if not isinstance(word, str):
            raise TypeError(
                f"{what} needs words, which are strings, got {word!r}; token ids go to Topics.from_token_ids, "
                "and of (word, score) pairs only the word is wanted"
            )
    return words


def by_topic(lists: Any, what: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The list of every topic by its name, and apart from them that of the outlier topic -1 by its reason."""
    if not isinstance(lists, Mapping):
        raise TypeError(f"topics need a mapping topic -> {what}, got {type(lists).__name__}")
    if not lists:
        raise ValueError(f"topics need at least one topic -> {what}, got an empty mapping")
    if all(isinstance(key, str) for key in lists):
        return dict(lists), {}
    if any(isinstance(key, bool | np.bool_) or not hasattr(key, "__index__") for key in lists):
        raise TypeError(f"topics must all be named by strings or all by whole numbers, got {list(lists)[:5]}")
    numbered = {operator.index(key): values for key, values in lists.items()}
    outliers = {"outliers (topic -1)": numbered.pop(-1)} if -1 in numbered else {}
    if not numbered:
        raise ValueError("no topic is left: only the outlier topic -1 was given")
    if min(numbered) < 0:
        raise ValueError(f"topic numbers must be 0 or more, or -1 for outliers, got {min(numbered)}")
    return {str(number): numbered[number] for number in sorted(numbered)}, outliers
