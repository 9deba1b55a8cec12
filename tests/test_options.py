"""Options are declared once; whatever is given in place of a number, a flag or a choice is taken as it is or named."""

import inspect
import io
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch

import topic_probe as tp
from topic_probe.options import Group, check_value, check_whole, checked, progress_bar, settle_fields, shares

pytestmark = pytest.mark.usefixtures("unchecked_module")


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


def test_a_function_shows_the_options_of_its_groups_and_gets_them_as_groups():
    parameters = inspect.signature(measure).parameters
    assert list(parameters) == ["model", "level", "batch_size", "long"]
    assert (parameters["batch_size"].default, parameters["long"].kind) == (32, inspect.Parameter.KEYWORD_ONLY)
    hints = typing.get_type_hints(measure)
    assert (hints["batch_size"], "reading" in hints) == (int, False)
    doc = inspect.getdoc(measure)
    assert "    level: between tokens or words.\n    batch_size: documents in one forward pass.\n" in doc
    assert doc.index("long: what becomes of longer documents.") < doc.index("Raises:\n    ValueError: never.")
    assert measure("m", batch_size=3) == ("m", "token", Reading(3))
    assert measure("m", level="word", long="chunk") == ("m", "word", Reading(long="chunk"))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"batch_siz": 3}, TypeError, "measure knows no option 'batch_siz': did you mean 'batch_size'"),
        ({"xyz": 3}, TypeError, "no option 'xyz'; it knows model, level, batch_size, long"),
        ({"long": "chop"}, ValueError, "long must be one of 'cut', 'chunk', got 'chop'"),
        ({"batch_size": True}, TypeError, "batch_size must be a whole number, got True"),
    ],
)
def test_an_option_that_is_unknown_or_out_of_range_is_named_with_a_remedy(given, error, message):
    with pytest.raises(error, match=message):
        measure("m", **given)


def test_a_value_of_another_type_is_a_type_error():
    refused = [
        ("3", int), (True, int), (2.5, int), (1, bool), ("x", float), (None, int), ([], int | None),
        (np.array([3]), int), (1 + 0j, int), (b"text", str), ("ab", Sequence[str]), ({"a": 1}, Iterable[str]),
        (3, Reading | None),
    ]  # fmt: skip
    for value, annotation in refused:
        with pytest.raises(TypeError, match=r"^n must be .*, got "):
            print(check_value("n", value, annotation), "was taken for", annotation)
    with pytest.raises(TypeError, match=r"names must be a list, got 'ab'"):
        check_value("names", "ab", Sequence[str])
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        check_whole("n", 0)
    with pytest.raises(ValueError, match="n must be at most 7, got 8"):
        check_whole("n", 8, most=7)
    assert [check_whole("n", n, most=n) for n in (1, 7)] == [1, 7]


def test_a_value_that_fits_is_taken_and_numbers_of_other_libraries_become_plain_ones():
    taken = [
        (np.array([3]), Sequence[int]), ({3}, Collection[int]), ({"a": 1}, Mapping[str, int]),
        (print, Callable[[int], None] | None), (Reading(), Reading), (object(), Any), (None, int | None), (True, bool),
        ("cut", Literal["cut"]), ("s", Annotated[str, "a text"]),
    ]  # fmt: skip
    assert all(check_value("n", value, annotation) is value for value, annotation in taken)
    for value, annotation, plain in [
        (np.int64(3), int, 3), (np.float32(2.5), float, 2.5), (torch.tensor(3), int | None, 3), (1, float, 1),
    ]:  # fmt: skip
        found = check_value("n", value, annotation)
        assert (found, type(found)) == (plain, type(plain))
    assert check_value("n", iter([1, 2]), Collection[int]) == (1, 2)  # which may be needed twice


def test_functions_and_dataclasses_hold_what_they_are_given_to_their_annotations():
    @checked
    def double(n: int, *, times: float = 2.0) -> float:
        """Some doubling."""
        return n * times

    @dataclass(frozen=True)
    class Size:
        width: int
        name: str | None = None

        def __post_init__(self):
            settle_fields(self)

    assert (double(np.int64(3), times=0.5), double.__doc__) == (1.5, "Some doubling.")
    assert type(Size(np.int64(3)).width) is int
    for call, message in (
        (lambda: double(True), "n must be a whole number, got True"),
        (lambda: double(3, times="2"), "times must be a number, got '2'"),
        (lambda: double(1, 2), "too many positional arguments"),
        (lambda: Size(3, 5), "name must be a text or None, got 5"),
    ):
        with pytest.raises(TypeError, match=message):
            call()


# --- everything that users call ----------------------------------------------------------------------

TOY = tp.ToyConfig(world=tp.World(n_topics=2, words_per_topic=2))
TOPICS, TEXTS, DOCUMENT = TOY.world.topics, ["the army"], [[1, 2, 3, 4]]
TOKENIZER, MODEL = tp.word_tokenizer(["the army and the band"]), tp.build_toy(TOY)
# What each is given; all other options come from its signature.
FUNCTIONS = [
    (tp.Topics.blocks, {"n_topics": 2, "words_per_topic": 2}),
    (partial(tp.Topics.from_token_ids, {"war": [1], "music": [2]}), {"vocabulary_size": 9}),
    (partial(tp.Topics.from_word_lists, {"war": ["army"], "music": ["band"]}, TOKENIZER), {}),
    (partial(tp.Topics.from_matrix, [[0.6, 0.3, 0.1]]), {"fraction": 0.5, "vocabulary_size": 9}),
    (partial(tp.encode_texts, TEXTS, TOKENIZER), {}),
    (partial(tp.Corpus.from_texts(TEXTS).documents, TOKENIZER), {}),
    (partial(tp.count_cooccurrence, [[1, 2]], [1, 2]), {"vocabulary_size": 9}),
    (partial(tp.build_toy, TOY), {}),
    (partial(tp.measure_weights, MODEL, TOPICS), {}),
    (partial(tp.measure_embeddings, MODEL, TOPICS), {}),
    (partial(tp.measure_attention, MODEL, TOPICS, DOCUMENT), {}),
    (partial(tp.measure_landscape, TOY.world, tp.Masking()), {}),
]


def numbers_and_flags(function):
    """The options that are a number or a flag, which an object is not."""
    for name, annotation in typing.get_type_hints(function).items():
        if typing.get_origin(annotation) is Annotated:
            annotation = typing.get_args(annotation)[0]
        kinds = typing.get_args(annotation) or (annotation,)
        if name != "return" and set(kinds) <= {int, float, bool, type(None)}:
            yield name


def test_an_option_of_a_wrong_type_is_a_sentence_that_names_it():
    tried = 0
    for function, needed in FUNCTIONS:
        for name in numbers_and_flags(getattr(function, "func", function)):
            for value in ("3", object(), [None]):
                with pytest.raises((TypeError, ValueError), match=name.split("_")[0]):
                    print(function(**{**needed, name: value}), "took", name, value)
                tried += 1
    assert tried > 100


# --- what is said on the way -------------------------------------------------------------------------


class Screen(io.StringIO):
    """A stderr that somebody looks at."""

    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stderr", "shown", "seconds", "seen"),
    [
        (Screen, None, 2.0, True), (io.StringIO, None, 2.0, False), (Screen, False, 2.0, False),
        (io.StringIO, True, 2.0, True), (Screen, None, 0.5, False), (Screen, True, 0.5, True),
    ],
)  # fmt: skip
def test_a_bar_is_shown_by_default_in_a_terminal_of_what_takes_long(
    stderr, shown, seconds, seen, monkeypatch
):
    clock = iter(range(1, 1000))
    monkeypatch.setattr(sys, "stderr", stderr())
    with progress_bar(total=10, shown=shown, mininterval=0) as bar:
        if not bar.disable:
            bar._time = lambda: bar.start_t + next(clock) * seconds / 10
        for _ in range(10):
            bar.update()
    assert ("10/10" in sys.stderr.getvalue()) == seen
