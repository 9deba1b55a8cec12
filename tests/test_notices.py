"""What is said on the way is said on stderr, and costs nothing where there is none."""

import inspect
import io
import sys
import warnings
from contextlib import contextmanager

import pytest
import zoo

import topic_probe as tp
from topic_probe import notices

TOPICS = tp.Topics.from_token_ids({"a": [5, 6], "b": [7, 8]}, vocabulary_size=zoo.VOCABULARY)


@pytest.fixture(scope="module")
def model():
    return tp.open_model(zoo.make("bert-headless"))


def written(message, *_):
    """What Python does with a warning."""
    if sys.stderr is not None:
        sys.stderr.write(f"{message}\n")


@contextmanager
def no_stderr(kind):
    """Without a stderr, and warnings written as they are outside of tests."""
    closed = io.StringIO()
    closed.close()
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("always")
        patch.setattr(warnings, "showwarning", written)  # pytest collects them otherwise
        patch.setattr(sys, "stderr", None if kind == "none" else closed)
        yield


@pytest.mark.parametrize("kind", ["none", "closed"])
def test_a_measurement_without_a_stderr_goes_through_its_bar_and_its_warnings(kind, model):
    options = {"n_resamples": 0, "n_permutations": 0, "progress": True}
    with no_stderr(kind):
        report = tp.measure_attention(model, TOPICS, [[5, 6, 7, 8]], **options)
        without = tp.measure_attention(model, TOPICS, [[9, 10, 11]], **options)  # warns: no word of any topic
    assert report.provenance["documents"] == without.provenance["documents"] == 1


def test_what_is_wrong_with_a_warning_itself_is_said():
    with pytest.raises(UserWarning, match="so it is"):
        notices.warn("so it is")


def test_a_warning_points_to_the_caller():
    def warned():
        inspect.unwrap(notices.warn)("look here", stacklevel=2)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warned()
    assert [warning.filename for warning in seen] == [__file__]
