"""Options that several functions share are declared once, and nothing is lost for who calls the functions."""

import inspect
import typing
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import pytest

from topic_probe.options import check_value, shares


@dataclass(frozen=True)
class Reading:
    batch_size: Annotated[int, "documents in one forward pass"] = 32
    long: Annotated[Literal["cut", "chunk"], "what becomes of longer documents"] = "cut"

    def __post_init__(self):
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")


@shares(reading=Reading)
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


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        ("3", int),
        (True, int),
        (2.5, int),
        (1, bool),
        ("0", bool),
        ("x", float),
        (None, int),
        ([], int | None),
    ],
)
def test_a_value_of_another_type_is_a_type_error(value, annotation):
    with pytest.raises(TypeError, match=r"^n must be .*, got "):
        check_value("n", value, annotation)


@pytest.mark.parametrize(
    ("value", "annotation"),
    [(3, int), (np.int64(3), int), (3, float), (np.float32(2.5), float), (None, int | None), (True, bool),
     ({5}, set[int]), ("cut", Literal["cut"]), ("s", Annotated[str, "a text"])],
)  # fmt: skip
def test_a_value_that_fits_is_taken(value, annotation):
    check_value("n", value, annotation)


def test_type_hints_are_those_of_the_options():
    hints = typing.get_type_hints(measure)
    assert hints["batch_size"] is int
    assert "reading" not in hints
