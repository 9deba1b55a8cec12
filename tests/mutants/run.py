"""Breaks the package on purpose, one way at a time, and tells which ways no test notices.

    python tests/mutants/run.py [ROOM ...] [--all]

The mutants stand in the files beside this one (`MUTANTS`). Each is put into a copy of the repository, and the quick
tests of the file that it names are run; with ``--all``, those that survive meet all quick tests. Exits with 1 if one is
left.
"""

import argparse
import os
import runpy
import shutil
import signal
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COPIED = {"topic_probe", "tests", "pyproject.toml"}
AT_A_TIME, SECONDS = 2, 600
HELPERS = str(ROOT / "tests" / "helpers")
sys.path.insert(0, HELPERS)
# What tests import besides.
IMPORTED = [
    "torch",
    "transformers",
    "transformer_lens",
    "scipy.stats",
    "pandas",
    "matplotlib.pyplot",
    "datasets",
]


def mutants(rooms):
    """All mutants of these rooms (of all, if none is named); one that would not change the package is an error."""
    files = [file for file in sorted(Path(__file__).parent.glob("*.py")) if file != Path(__file__)]
    unknown = set(rooms) - {file.stem for file in files}
    found = [
        one
        for file in files
        if not rooms or file.stem in rooms
        for one in runpy.run_path(str(file))["MUTANTS"]
    ]
    problems = [f"no list of mutants: {name}" for name in sorted(unknown)]
    for one in found:
        text = (ROOT / one.file).read_text()
        if text.count(one.old) != 1:
            problems.append(f"{one.breaks}: occurs {text.count(one.old)} times in {one.file}: {one.old!r}")
        if not (ROOT / one.tests).exists():
            problems.append(f"{one.breaks}: there is no {one.tests}")
        try:
            compile(text.replace(one.old, one.new), one.file, "exec")
        except SyntaxError as error:
            problems.append(f"{one.breaks}: {error}")
    if problems:
        sys.exit("\n".join(problems))
    return found


def copy(place):
    """A copy of the repository, of which only the package and the tests are files of their own."""
    place.mkdir()
    for entry in ROOT.iterdir():
        if entry.name not in COPIED:
            if not entry.name.startswith("."):
                (place / entry.name).symlink_to(entry)
        elif entry.is_dir():
            shutil.copytree(entry, place / entry.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(entry, place)
    return place


def outcome(place, *tests):
    """What pytest says of the quick tests in a copy: 0 where all pass.

    In a process that has imported whatever is not of this repository already, which takes longer than most tests.
    """
    if process := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        return 1 if code == -signal.SIGALRM else code  # a loop without an end is noticed, too
    code = 2
    try:
        signal.alarm(SECONDS)
        os.chdir(place)
        os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(place)}
        sys.path.insert(0, str(place))
        with Path("printed").open("w") as printed:
            for stream in (1, 2):
                os.dup2(printed.fileno(), stream)
        options = ["-m", "not slow", "-x", "-q", "--assert=plain", "-p", "no:xdist", "-p", "no:cacheprovider"]
        code = int(pytest.main([*options, "-W", "ignore::pytest.PytestAssertRewriteWarning", *tests]))
    finally:
        sys.stdout.flush()
        os._exit(code)


def write(file, text):
    """Writes a module, of which what was compiled within the same second is not taken for it."""
    file.write_text(text)
    shutil.rmtree(file.parent / "__pycache__", ignore_errors=True)


def survives(one, place, everything):
    """Whether a mutant survives the tests that it names, and (or) all of them."""
    whole = (place / one.file).read_text()
    write(place / one.file, whole.replace(one.old, one.new))
    try:
        codes = [outcome(place, one.tests)]
        if everything and codes == [0]:
            codes.append(outcome(place))
    finally:
        write(place / one.file, whole)
    return codes[-1] == 0


def work(chosen, place, everything):
    """How many survive of the mutants that one process tries."""
    survivors = 0
    for one in chosen:
        began = time.monotonic()
        survived = survives(one, place, everything)
        word, seconds = "SURVIVED" if survived else "killed", time.monotonic() - began
        print(f"{word:8} {seconds:4.0f} s  {one.file}: {one.breaks}", flush=True)
        survivors += survived
    return survivors


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rooms", nargs="*", help="names of lists beside this script; all of them without one")
    parser.add_argument("--all", action="store_true", help="try survivors on all quick tests")
    options = parser.parse_args()
    chosen = mutants(options.rooms)
    sys.path.remove(HELPERS)  # a copy has its own
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    for name in IMPORTED:
        import_module(name)
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(AT_A_TIME, get_context("fork")) as pool:
        places = [copy(Path(folder, str(number))) for number in range(AT_A_TIME)]
        for tests in sorted({one.tests for one in chosen}):
            if outcome(places[0], tests):
                sys.exit(f"{tests} fails without a mutant:\n{(places[0] / 'printed').read_text()[-2000:]}")
        parts = [chosen[number::AT_A_TIME] for number in range(AT_A_TIME)]
        survivors = sum(pool.map(work, parts, places, [options.all] * AT_A_TIME))
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants killed")
    sys.exit(survivors > 0)


if __name__ == "__main__":
    main()
