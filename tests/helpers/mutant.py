"""One way to break the package, and the test file that has to notice (`tests/mutants/`, `make mutants`)."""

from typing import NamedTuple


class Mutant(NamedTuple):
    breaks: str  # what it breaks, as a short sentence
    file: str  # the module, from the root of the repository
    old: str  # occurs exactly once in it
    new: str
    tests: str  # the test file that is tried first
