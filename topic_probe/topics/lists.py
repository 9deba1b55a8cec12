"""Lists of token ids, words and topics as users write them, checked and made uniform."""

from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from topic_probe.options import check_whole

# The axis is anonymous, because several lists of ids of different lengths stand in one signature.
Ids = Int64[np.ndarray, "_"]


# Ids and what comes of them are 32-bit numbers in places, and no tokenizer has half as many.
_MOST_IDS = 2**31 - 1
_WORDS_ELSEWHERE = "words go to Topics.from_word_lists"


def check_vocabulary_size(size: Any, least: int = 1, name: str = "vocabulary_size") -> int:
    """A number of token ids."""
    return check_whole(name, size, least, _MOST_IDS)


def token_id_array(
    values: Any, what: str, *, below: int | None = None, ordered: bool = False, remedy: str = _WORDS_ELSEWHERE
) -> Ids:
    """Token ids as an array in the order given; whatever only resembles token ids is refused.

    Args:
        values: a list, array, tensor, or anything else that gives one id after the other.
        what: what they are, for messages.
        below: how many ids there are, where that is known.
        ordered: whether their order counts, so that a set does not do.
        remedy: what to do with what is no list of ids.
    """
    if isinstance(values, Tensor | np.ndarray):
        ids = _ids_of_array(plain_array(values, what), what)
    elif isinstance(values, str | bytes | bytearray | memoryview | Mapping) or not isinstance(
        values, Iterable
    ):
        raise TypeError(f"{what} needs a list of token ids, got {values!r:.100}; {remedy}")
    elif ordered and isinstance(values, Set):
        raise TypeError(f"{what} needs token ids in their order, and a set has none: pass a list")
    else:
        ids = _ids_of_list(values if isinstance(values, list) else list(values), what, remedy)
    if below is not None and len(wrong := ids[(ids < 0) | (ids >= below)]):
        raise ValueError(
            f"{what} holds {len(wrong)} ids that the vocabulary does not have, such as {wrong[0]}: its ids are "
            f"0..{below - 1}; are these ids of another tokenizer?"
        )
    return ids


def plain_array(values: Any, what: str) -> Any:
    """An array, or a tensor on the CPU, of which every entry can be read; TypeError for any other."""
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(
            f"{what} came as a masked array, whose mask would be lost: pass .compressed() or .filled()"
        )
    return plain_tensor(values, what) if isinstance(values, Tensor) else values


def plain_tensor(values: Tensor, what: str) -> Tensor:
    """A tensor on the CPU; TypeError for one without numbers, or with some left out."""
    if values.is_nested or values.is_meta or values.is_quantized or values.layout != torch.strided:
        kind = "a nested one" if values.is_nested else f"{values.dtype}, {values.layout}, on {values.device}"
        raise TypeError(f"{what} needs a dense tensor with its numbers in memory, got {kind}")
    return values.detach().cpu()


def _ids_of_array(values: np.ndarray | Tensor, what: str) -> Ids:
    whole = (
        not (values.dtype.is_floating_point or values.dtype.is_complex or values.dtype == torch.bool)
        if isinstance(values, Tensor)
        else values.dtype.kind in "iu"
    )
    if values.ndim != 1 or not (whole or 0 in values.shape):
        raise TypeError(f"{what} needs a row of whole ids, got {values.dtype} of shape {list(values.shape)}")
    array = np.asarray(values)
    if array.dtype == np.uint64 and len(array) and array.max() > _LARGEST:
        raise ValueError(_TOO_LARGE.format(what))
    return array.astype(np.int64)


def _ids_of_list(values: list[Any], what: str, remedy: str) -> Ids:
    # Whole numbers of Python and numpy are taken together; others, and unsigned ones that may not fit, one by one.
    if not set(map(type, values)) <= {int, np.int64, np.int32}:
        values = [_single_id(value, what, remedy) for value in values]
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError as error:
        raise ValueError(_TOO_LARGE.format(what)) from error


_LARGEST = np.iinfo(np.int64).max
_TOO_LARGE = "{} holds an id of more than 64 bits: are these token ids?"


def _single_id(value: Any, what: str, remedy: str) -> int:
    try:
        return check_whole("an id", value, -_LARGEST - 1)
    except TypeError:
        raise TypeError(
            f"{what} needs token ids, which are whole numbers, got {value!r:.100}; {remedy}"
        ) from None
    except ValueError:
        raise ValueError(_TOO_LARGE.format(what)) from None


def word_list(values: Any, what: str) -> list[str]:
    """Words as a list; a bare string, ids, (word, score) pairs and mappings are refused."""
    single = getattr(values, "ndim", 1) == 0  # an array or tensor that cannot be gone through
    if single or isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise TypeError(f"{what} needs a list of words, got {values!r:.100}; put a single word into a list")
    words = list(values)
    for word in words:
        if not isinstance(word, str):
            raise TypeError(
                f"{what} needs words, which are strings, got {word!r:.100}; token ids go to Topics.from_token_ids, "
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
    try:
        numbers = [check_whole("the number of a topic", key, -_LARGEST) for key in lists]
    except TypeError:
        raise TypeError(
            f"topics must all be named by strings or all by whole numbers, got {list(lists)[:5]}"
        ) from None
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"topics need numbers that differ, got {list(lists)[:5]}")
    numbered = dict(zip(numbers, lists.values(), strict=True))
    outliers = {"outliers (topic -1)": numbered.pop(-1)} if -1 in numbered else {}
    if not numbered:
        raise ValueError("no topic is left: only the outlier topic -1 was given")
    if min(numbered) < 0:
        raise ValueError(f"topic numbers must be 0 or more, or -1 for outliers, got {min(numbered)}")
    return {str(number): numbered[number] for number in sorted(numbered)}, outliers
