"""Options that several functions share are declared once, and nothing is lost for who calls the functions."""

import inspect
import os
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch

from topic_probe.options import Group, check_value, check_whole, checked, settle_fields, shares


@dataclass(frozen=True)
class Reading(Group):
    batch_size: Annotated[int, "documents in one forward pass"] = 32
    long: Annotated[Literal["cut", "chunk"], "what becomes of longer documents"] = "cut"

    def __post_init__(self):
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")


@shares
def measure(
    model: str, *, level: Literal["token", "word"] = "token", reading: Reading
) -> tuple[str, str, Reading]:
    """What came.

    Args:
        model: the model.
        level: between tokens or words.

    Raises:
        ValueError: never.
    """
    return model, level, reading


def test_the_signature_shows_every_option_with_its_default():
    signature = inspect.signature(measure)
    assert list(signature.parameters) == ["model", "level", "batch_size", "long"]
    assert signature.parameters["batch_size"].default == 32
    assert signature.parameters["long"].kind is inspect.Parameter.KEYWORD_ONLY


def test_the_docstring_has_the_sentences_of_both():
    doc = inspect.getdoc(measure)
    assert "    level: between tokens or words.\n    batch_size: documents in one forward pass.\n" in doc
    assert doc.index("long: what becomes of longer documents.") < doc.index("Raises:\n    ValueError: never.")


def test_the_function_gets_its_groups():
    assert measure("m", batch_size=3) == ("m", "token", Reading(3))
    assert measure("m", level="word", long="chunk") == ("m", "word", Reading(long="chunk"))


def test_an_unknown_option_is_a_type_error_with_a_suggestion():
    with pytest.raises(TypeError, match="measure knows no option 'batch_siz': did you mean 'batch_size'"):
        measure("m", batch_siz=3)
    with pytest.raises(TypeError, match="no option 'xyz'; it knows model, level, batch_size, long"):
        measure("m", xyz=3)


def test_a_value_outside_a_closed_set_is_a_value_error():
    with pytest.raises(ValueError, match="long must be one of 'cut', 'chunk', got 'chop'"):
        measure("m", long="chop")
    with pytest.raises(ValueError, match="level must be one of 'token', 'word', got 'letter'"):
        measure("m", level="letter")
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        measure("m", batch_size=0)


def test_a_value_of_another_type_is_a_type_error():
    refused = [
        ("3", int), (True, int), (2.5, int), (1, bool), ("0", bool), ("x", float), (None, int), ([], int | None),
        (np.True_, int), (torch.tensor(True), int), (np.array([3]), int), (torch.tensor([3]), int),
        (np.array([2.5]), float), (np.True_, float), (1 + 0j, float), (b"text", str), ("ab", Sequence[str]),
        (b"ab", Iterable[int]), ({"a": 1}, Iterable[str]), ({"a"}, Sequence[str]), (torch.tensor(3), Iterable[int]),
        (3, Collection[int]), ([("a", 1)], Mapping[str, int]), (3, str | os.PathLike[str]),
        ("print", Callable[[int], None]), (3, Reading | None),
    ]  # fmt: skip
    for value, annotation in refused:
        with pytest.raises(TypeError, match=r"^n must be .*, got "):
            print(check_value("n", value, annotation), "was taken for", annotation)


def test_a_value_that_fits_is_taken():
    taken = [
        ([3], Sequence[int]), (np.array([3]), Sequence[int]), ({3}, Collection[int]), (range(3), Iterable[int]),
        ({"a": 1}, Mapping[str, int]), ("a", str | os.PathLike[str]), (Path("a"), str | os.PathLike[str]),
        (print, Callable[[int], None] | None), (Reading(), Reading), (object(), Any), (3, int), (np.int64(3), int),
        (3, float), (np.float32(2.5), float), (None, int | None), (True, bool), ({5}, set[int]),
        ("cut", Literal["cut"]), ("s", Annotated[str, "a text"]),
    ]  # fmt: skip
    for value, annotation in taken:
        check_value("n", value, annotation)


def test_a_text_in_place_of_a_list_is_refused_with_what_to_do():
    with pytest.raises(TypeError, match=r"names must be a list, got 'ab': put a single one into a list"):
        check_value("names", "ab", Sequence[str])


def test_a_text_in_place_of_numbers_is_not_to_be_put_into_a_list():
    with pytest.raises(TypeError, match=r"part must be a list of whole numbers or None, got '0/2'$"):
        check_value("part", "0/2", Sequence[int] | None)


@pytest.mark.parametrize("number", [2**63, 2**80, -(2**80)])
def test_a_number_that_no_counter_holds_is_refused(number):
    with pytest.raises(ValueError, match=f"n is too large to count with, got {number}"):
        check_whole("n", number, -(2**90))


def test_a_number_above_the_most_is_refused():
    with pytest.raises(ValueError, match="n must be at most 7, got 8"):
        check_whole("n", 8, most=7)


@pytest.mark.parametrize(
    ("value", "annotation", "plain"),
    [(np.int64(3), int, 3), (np.float32(2.5), float, 2.5), (torch.tensor(3), int | None, 3),
     (Fraction(1, 2), float, 0.5), (1, float, 1)],
)  # fmt: skip
def test_numbers_of_other_libraries_become_plain_ones_that_go_into_json(value, annotation, plain):
    found = check_value("n", value, annotation)
    assert (found, type(found)) == (plain, type(plain))


def test_what_is_gone_through_once_is_kept_where_it_may_be_needed_twice():
    assert check_value("n", iter([1, 2]), Collection[int]) == (1, 2)


def test_a_checked_function_holds_what_it_is_given_by_place_and_by_name():
    @checked
    def double(n: int, *, times: float = 2.0) -> float:
        """Some doubling."""
        return n * times

    assert double(np.int64(3), times=0.5) == 1.5
    assert double.__doc__ == "Some doubling."
    with pytest.raises(TypeError, match="n must be a whole number, got True"):
        double(True)
    with pytest.raises(TypeError, match="times must be a number, got '2'"):
        double(3, times="2")
    with pytest.raises(TypeError, match="positional argument"):
        double(1, 2)


def test_the_fields_of_a_dataclass_are_held_and_made_plain():
    @dataclass(frozen=True)
    class Size:
        width: int
        name: str | None = None

        def __post_init__(self):
            settle_fields(self)

    assert type(Size(np.int64(3)).width) is int
    with pytest.raises(TypeError, match="name must be a text or None, got 5"):
        Size(3, 5)


def test_type_hints_are_those_of_the_options():
    hints = typing.get_type_hints(measure)
    assert hints["batch_size"] is int
    assert "reading" not in hints
