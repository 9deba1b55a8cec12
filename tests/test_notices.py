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
    options = {"n_permutations": 0, "progress": True}
    with no_stderr(kind):
        report = tp.measure_attention(model, TOPICS, [[5, 6, 7, 8]], **options)
        without = tp.measure_attention(model, TOPICS, [[9, 10, 11]], **options)  # warns: no word of any topic
    assert report.provenance["documents"] == without.provenance["documents"] == 1


def test_a_warning_points_to_the_caller():
    def warned():
        inspect.unwrap(notices.warn)("look here", stacklevel=2)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warned()
    assert [warning.filename for warning in seen] == [__file__]


class Screen(io.StringIO):
    """A stderr that somebody looks at."""

    def isatty(self):
        return True


def seen_of_a_bar(monkeypatch, stderr, *, shown=None, seconds=2.0):
    """What a bar writes of ten steps that together take so many seconds of a clock of its own."""
    clock = iter(range(1, 1000))
    monkeypatch.setattr(sys, "stderr", stderr)
    with notices.progress_bar(total=10, shown=shown, mininterval=0) as bar:
        if not bar.disable:
            bar._time = lambda: bar.start_t + next(clock) * seconds / 10
        for _ in range(10):
            bar.update()
    return stderr.getvalue()


def test_a_bar_is_shown_by_default_where_a_terminal_is_of_what_takes_long_and_only_there(monkeypatch):
    assert "10/10" in seen_of_a_bar(monkeypatch, Screen())
    assert seen_of_a_bar(monkeypatch, io.StringIO()) == ""
    assert seen_of_a_bar(monkeypatch, Screen(), shown=False) == ""
    assert "10/10" in seen_of_a_bar(monkeypatch, io.StringIO(), shown=True)
    # One that is asked for is shown of what is quick, too.
    assert seen_of_a_bar(monkeypatch, Screen(), seconds=0.5) == ""
    assert "10/10" in seen_of_a_bar(monkeypatch, Screen(), seconds=0.5, shown=True)


def test_of_two_bars_by_default_only_the_outer_one_is_seen(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Screen())
    bar = notices.progress_bar
    with bar(shown=None) as outer, bar(shown=None) as inner, bar(shown=True) as asked_for:
        assert (outer.disable, inner.disable, asked_for.disable) == (False, True, False)
    with notices.progress_bar(shown=None) as later:
        assert not later.disable
