"""No test may reach for a hub: whatever a test needs is made in it or shipped by a package."""

import os
import signal
from collections import Counter
from contextlib import contextmanager, nullcontext
from pathlib import Path

import hypothesis
import jaxtyping
import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

# A shell that starts the tests in the background has them ignore Ctrl-C, which some of them send to themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same inputs in every run, as many as take a second or two; nothing is kept between runs.
hypothesis.settings.register_profile(
    "suite", derandomize=True, deadline=None, database=None, max_examples=100, print_blob=False
)
hypothesis.settings.load_profile("suite")


def pytest_addoption(parser):
    parser.addoption("--write-durations", metavar="FILE", help="write the seconds of every test over 1 s")


def pytest_terminal_summary(terminalreporter, config):
    """What takes long, fixtures and all: everything over a second into a file, the ten slowest at the end."""
    if (file := config.getoption("--write-durations")) is None:
        return
    seconds = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid] += report.duration
    lines = [f"{time:7.1f}  {name}" for name, time in seconds.most_common() if time > 1]
    Path(file).write_text("".join(f"{line}\n" for line in lines))
    terminalreporter.section("the ten slowest")
    terminalreporter.write("".join(f"{line}\n" for line in lines[:10]))


@contextmanager
def without_type_checks():
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture(autouse=True)
def long_ones_unchecked(request):
    """Whole recipes, pages and notebooks go through functions whose types other tests check, a million times each."""
    with without_type_checks() if request.node.get_closest_marker("slow") else nullcontext():
        yield


@pytest.fixture
def unchecked():
    """Calls as users make them: the checks of types that tests run with would be first to refuse a wrong choice."""
    with without_type_checks():
        yield


@pytest.fixture(scope="module")
def unchecked_module():
    """The same for all tests of a file, as those with generated input need it."""
    with without_type_checks():
        yield
