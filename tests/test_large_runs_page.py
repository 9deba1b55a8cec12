"""The page on large runs does what it says: every engine on it starts processes that leave the report of one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import small_runs

import topic_probe as tp

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow

# What the page measures, and what is measured of it here.
SMALL = {
    '"google-bert/bert-base-uncased"': '"model"',
    "tp.Corpus.wikipedia(1_000_000)": 'tp.Corpus.from_files("texts.txt", split="line")',
    'folder="parts"': 'folder="parts", part_size=10, n_permutations=20',
}


@pytest.fixture(scope="module")
def page():
    return (ROOT / "demos" / "large_runs.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def programs(page, tmp_path_factory):
    """A folder with the programs of the page and what they read."""
    folder = tmp_path_factory.mktemp("page")
    for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        if named := re.search(r"^# (\w+\.py)$", block, flags=re.MULTILINE):
            for was, small in SMALL.items():
                assert named[1] != "measure.py" or was in block
                block = block.replace(was, small)
            (folder / named[1]).write_text(block)
    small_runs.model(30_522).float().save_pretrained(folder / "model")
    small_runs.tokenizer().save_pretrained(folder / "model")
    small_runs.text_topics().save(folder / "topics" / "topics")
    texts = [f"{text} and {other}" for text in small_runs.TEXTS for other in small_runs.TEXTS]
    (folder / "texts.txt").write_text("\n".join(texts))
    return folder


def run(programs, name, commands, **environment):
    """Runs commands at once in a folder of their own, which sees what all of them read; the report they leave."""
    place = programs / name
    place.mkdir()
    for entry in ("measure.py", "with_ray.py", "with_datatrove.py", "model", "topics", "texts.txt"):
        (place / entry).symlink_to(programs / entry)
    paths = [str(place), str(ROOT), os.environ.get("PYTHONPATH", "")]
    found = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    known = {"PATH": found, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            ["bash", "-ec", command], cwd=place, env={**os.environ, **known, **environment, **own},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for command, own in commands
    ]  # fmt: skip
    for process in started:
        said, _ = process.communicate(timeout=500)
        assert process.returncode == 0, said[-3000:]
    return tp.load_report(place / "parts")


def line(page, words):
    """The one line of the page with these words."""
    (found,) = [line for line in page.splitlines() if words in line]
    return found


@pytest.fixture(scope="module")
def alone(programs):
    """The report of one process."""
    report = run(programs, "alone", [("python measure.py", {})])
    assert report.provenance["parts"] == {"there": 9, "of": 9, "texts_left_out": 0}
    return report


def test_the_tasks_of_a_slurm_array(programs, page, alone):
    """In the environment that slurm gives each of them."""
    wrapped = re.search(r'--wrap "(.*)"', line(page, "sbatch --array"))[1]
    of_array = {"MIN": "0", "MAX": "2", "STEP": "1", "COUNT": "3"}
    array = {f"SLURM_ARRAY_TASK_{name}": value for name, value in of_array.items()}
    tasks = [(wrapped, {"SLURM_ARRAY_TASK_ID": str(task)}) for task in range(3)]
    assert run(programs, "slurm", tasks, **array) == alone


def test_a_plain_shell_and_torchrun(programs, page, alone):
    shell = re.search(r"A plain shell does as well: `(.*)`", page)[1].rstrip(".")
    torchrun = line(page, "torchrun --nproc-per-node").replace("torchrun", "torchrun --standalone")
    for name, command in {"shell": shell, "torchrun": torchrun}.items():
        assert run(programs, name, [(command, {})]) == alone


@pytest.mark.parametrize("engine", ["ray", "datatrove"])
def test_engines_of_others(programs, alone, engine):
    pytest.importorskip(engine, reason="the extra `engines` is not installed", exc_type=ImportError)
    assert run(programs, engine, [(f"python with_{engine}.py", {})]) == alone
