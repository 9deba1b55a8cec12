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
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AT_A_TIME, SECONDS = 2, 600
# What tests import besides.
IMPORTED = "torch transformers transformer_lens scipy.stats pandas matplotlib.pyplot datasets".split()  # noqa: SIM905


def mutants(rooms):
    """All mutants of these rooms (of all, if none is named); one that would not change the package is an error."""
    files = [ROOT / "tests" / "mutants" / f"{room}.py" for room in rooms]
    every = sorted(set(Path(__file__).parent.glob("*.py")) - {Path(__file__)})
    sys.path.insert(0, helpers := str(ROOT / "tests" / "helpers"))
    found = [one for file in files or every for one in runpy.run_path(str(file))["MUTANTS"]]
    sys.path.remove(helpers)  # a copy has its own
    for one in found:
        n = (ROOT / one.file).read_text().count(one.old)
        if n != 1 or not (ROOT / one.tests).exists():
            sys.exit(f"{one.breaks}: {one.old!r} occurs {n} times in {one.file}, or there is no {one.tests}")
    return found


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


def work(chosen, place, everything):
    """How many survive of the mutants that one process tries."""
    survivors = 0
    for one in chosen:
        whole = (place / one.file).read_text()
        write(place / one.file, whole.replace(one.old, one.new))
        survived = outcome(place, one.tests) == 0 and not (everything and outcome(place))
        write(place / one.file, whole)
        print(f"{'SURVIVED' if survived else 'killed':8}  {one.file}: {one.breaks}", flush=True)
        survivors += survived
    return survivors


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rooms", nargs="*", help="names of lists beside this script; all of them without one")
    parser.add_argument("--all", action="store_true", help="try survivors on all quick tests")
    options = parser.parse_args()
    chosen = mutants(options.rooms)
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    for name in IMPORTED:
        import_module(name)
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(AT_A_TIME, get_context("fork")) as pool:
        places = [Path(folder, str(number)) for number in range(AT_A_TIME)]
        for place in places:
            shutil.copytree(ROOT, place, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        for tests in sorted({one.tests for one in chosen}):
            if outcome(places[0], tests):
                sys.exit(f"{tests} fails without a mutant:\n{(places[0] / 'printed').read_text()[-2000:]}")
        parts = [chosen[number::AT_A_TIME] for number in range(AT_A_TIME)]
        survivors = sum(pool.map(work, parts, places, [options.all] * AT_A_TIME))
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants killed")
    sys.exit(survivors > 0)


if __name__ == "__main__":
    main()
