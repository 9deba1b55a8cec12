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
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).parents[2]
COPIED = {"topic_probe", "tests", "pyproject.toml"}
AT_A_TIME, SECONDS = 2, 600
sys.path.insert(0, str(ROOT / "tests" / "helpers"))


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
    for entry in ROOT.iterdir():
        if entry.name not in COPIED:
            if not entry.name.startswith("."):
                (place / entry.name).symlink_to(entry)
        elif entry.is_dir():
            shutil.copytree(entry, place / entry.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(entry, place)
    return place


def survives(place, tests):
    """Whether all these tests pass in a copy."""
    command = [sys.executable, "-m", "pytest", "-m", "not slow", "-x", "-q", "-p", "no:xdist", *tests]
    command += ["-p", "no:cacheprovider"]
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(place)}
    running = subprocess.Popen(
        command, cwd=place, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        printed, _ = running.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        return False  # a loop without an end is noticed, too
    if running.returncode not in (0, 1):
        raise RuntimeError(f"pytest did not run {' '.join(tests)}:\n{printed[-2000:]}")
    return running.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rooms", nargs="*", help="names of lists beside this script; all of them without one")
    parser.add_argument("--all", action="store_true", help="try survivors on all quick tests")
    options = parser.parse_args()
    places = Queue()

    def outcome(one):
        place, began = places.get(), time.monotonic()
        file = place / one.file
        whole = file.read_text()
        file.write_text(whole.replace(one.old, one.new))
        try:
            survived = survives(place, [one.tests]) and not (options.all and not survives(place, []))
        finally:
            file.write_text(whole)
            places.put(place)
        word = "SURVIVED" if survived else "killed"
        print(f"{word:8} {time.monotonic() - began:4.0f} s  {one.file}: {one.breaks}", flush=True)
        return survived

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_A_TIME) as pool:
        chosen = mutants(options.rooms)
        for number in range(AT_A_TIME):
            place = Path(folder, str(number))
            place.mkdir()
            places.put(copy(place))
        survivors = sum(pool.map(outcome, chosen))
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants killed")
    sys.exit(survivors > 0)


if __name__ == "__main__":
    main()
