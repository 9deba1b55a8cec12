"""Functions of the package are checked in tests by what their annotations say, arrays and everything else."""

from collections.abc import Sequence

import jaxtyping
import pytest
import quick_checks
import torch
from beartype import beartype
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from topic_probe import options
from topic_probe.measure.scores import padded
from topic_probe.topics.topics import Topics

_checked = quick_checks.checked(typechecker=beartype)


@pytest.fixture
def with_checks():
    """Whatever the environment says: one of the two runs of the suite turns them off."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", False)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


def test_arguments_and_answers_of_functions_without_arrays_are_checked(with_checks):
    with pytest.raises(TypeCheckError, match="name"):
        options.check_whole(3, 4)
    with pytest.raises(TypeCheckError, match="return"):
        _checked(_says_a_number)("three")


def _says_a_number(text: str) -> int:
    return text


def _two_of_a_size(first: Float[Tensor, " n"], second: Sequence[Float[Tensor, " n"]]) -> None:
    pass


def test_sizes_of_arrays_are_checked(with_checks):
    with pytest.raises(TypeCheckError, match="words"):
        Topics(
            names=("a",), vocabulary_size=3, words=torch.zeros(2, 2, dtype=torch.int64),
            assignments=torch.zeros(1, 2, dtype=torch.int64),
        )  # fmt: skip
    with pytest.raises(TypeCheckError, match="fill"):
        padded([torch.zeros(2, dtype=torch.int64)], "0")
    _checked(_two_of_a_size)(torch.zeros(2), [torch.zeros(2)])
    with pytest.raises(TypeCheckError, match="second"):
        _checked(_two_of_a_size)(torch.zeros(2), [torch.zeros(3)])


def test_checks_can_be_turned_off(unchecked):
    assert options.check_whole(3, 4) == 4
