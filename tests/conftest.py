"""No test may reach for a hub: whatever a test needs is made in it or shipped by a package."""

import os
from contextlib import contextmanager, nullcontext

import hypothesis
import jaxtyping
import pytest
import quick_checks

quick_checks.install()  # before anything of the package is imported

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

# The same inputs in every run, as many as take a second or two; nothing is kept between runs.
hypothesis.settings.register_profile(
    "suite", derandomize=True, deadline=None, database=None, max_examples=100, print_blob=False
)
hypothesis.settings.load_profile("suite")


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
