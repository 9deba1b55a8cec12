"""The page on shards does what it says: every engine on it starts processes whose sums merge into the report of one."""

import os
import re
import subprocess
import sys
from inspect import signature
from pathlib import Path

import many_processes
import pytest
import torch
import transformers as hf
import zoo

import topic_probe as tp

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow

# What the page measures, and what is measured of it here.
SMALL = {
    '"google-bert/bert-base-uncased"': '"model"',
    '"openai-community/gpt2"': '"decoder"',
    "tp.Corpus.wikipedia(1_000_000)": 'tp.Corpus.from_files("texts.txt", split="line")',
    "batch_size=32, ": "batch_size=4, n_permutations=20, ",
    "tp.Corpus.bundled()": 'tp.Corpus.from_files("few.txt", split="line")',
    'tp.Topics.builtin("empath", model.tokenizer)': 'tp.Topics.load("topics/topics")',
}
READ = ("model", "decoder", "topics", "topics of gpt2", "counted", "output")


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A folder with the programs of the page and what they read, and what one process makes of it."""
    folder = tmp_path_factory.mktemp("page")
    page = (ROOT / "demos" / "shards.md").read_text(encoding="utf-8")
    page = re.sub("topic-probe (merge|check)", r"python -m topic_probe \1", page)  # installed or not
    blocks = re.findall(r"```(?:python|bash)\n(.*?)```", page, flags=re.DOTALL)
    for block in blocks:
        for was, small in SMALL.items():
            block = block.replace(was, small)
        if named := re.search(r"^# (\w+\.\w+)$", block, flags=re.MULTILINE):
            few = named[1] == "each_measurement.py"
            (folder / named[1]).write_text(block.replace("texts.txt", "few.txt") if few else block)
    (folder / "lines").write_text("\n".join(line for block in blocks for line in block.splitlines()))
    page = "".join(blocks)
    assert all(was in page for was in SMALL)
    gpt2 = hf.GPT2Config(vocab_size=30_522, n_positions=64, n_embd=16, n_layer=2, n_head=2)
    many_processes.model(30_522).float().save_pretrained(folder / "model")
    model = many_processes.model(30_522).float()
    for step in (0, 10, 20):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + step / 1000)
        model.save_pretrained(folder / "output" / f"checkpoint-{step}")
        many_processes.stream().tokenizer.save_pretrained(folder / "output" / f"checkpoint-{step}")
    zoo.drawn(lambda: hf.GPT2LMHeadModel(gpt2)).save_pretrained(folder / "decoder")
    topics = many_processes.text_topics()
    tokenizer = many_processes.stream().tokenizer
    for model, of in (("model", "topics"), ("decoder", "topics of gpt2")):
        tokenizer.save_pretrained(folder / model)
        topics.save(folder / of / "topics")
    texts = [f"{text} and {other}" for text in many_processes.TEXTS for other in many_processes.TEXTS]
    (folder / "texts.txt").write_text("\n".join(texts))
    (folder / "few.txt").write_text("\n".join(texts[::8]))
    tp.count_cooccurrence(tp.encode_texts(texts, tokenizer), topics).save(folder / "counted")
    run(folder, f"{sys.executable} measure_shard.py 0 1", "one")
    return folder


@pytest.fixture(scope="module")
def alone(programs):
    """The report of one process."""
    return tp.merge_sums(programs / "one" / "sums")


def run(programs, command, name, **environment):
    """Run a command of the page in a folder of its own, which sees what all of them read."""
    place = programs / name
    place.mkdir()
    for entry in programs.iterdir():
        if entry.suffix in (".py", ".sh", ".sbatch", ".txt") or entry.name in READ:
            (place / entry.name).symlink_to(entry)
    paths = [str(place), str(ROOT), os.environ.get("PYTHONPATH", "")]
    # Commands of the page are those of this Python.
    found = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    known = {"PATH": found, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=place,
        env={**os.environ, **known},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return place


def on_page(programs, words):
    """The one line of the page with these words."""
    (line,) = [line for line in (programs / "lines").read_text().splitlines() if words in line]
    return line


def test_plain_processes(programs, alone):
    place = run(programs, "bash processes.sh", "processes")
    assert tp.load_report(place / "report") == alone
    assert alone.provenance["documents"] == 81


def test_each_measurement_that_takes_shards_is_on_the_page(programs):
    """With one line, which gives the bits of one process in two shards."""
    named = set(re.findall(r"tp\.(measure_\w+)\(", (programs / "each_measurement.py").read_text()))
    measurements = {name: getattr(tp, name) for name in dir(tp) if name.startswith("measure_")}
    assert named == {
        name for name, function in measurements.items() if "sums" in signature(function).parameters
    }
    shards = "python -c 'from each_measurement import measure; [measure(i, {n}) for i in range({n})]'"
    one, two = (run(programs, shards.format(n=n), f"each in {n}") for n in (1, 2))
    kept = sorted(
        entry.name for entry in one.iterdir() if entry.is_dir() and entry.name not in (*READ, "__pycache__")
    )
    assert len(kept) == len(named) == 7
    for name in kept:
        merged = tp.merge_sums(two / name)
        assert merged == tp.merge_sums(one / name), name
        assert "of 2 alone" not in repr(merged)


def test_a_series_of_checkpoints(programs):
    place = run(programs, "bash series.sh", "series")
    alone = run(programs, "python series_shard.py", "series alone")
    assert sorted(entry.name for entry in (place / "kept").iterdir()) == ["step 0", "step 10", "step 20"]
    files = [{file.name: file.read_bytes() for file in (one / "learned").iterdir()} for one in (place, alone)]
    assert files[0] == files[1]
    assert tp.load_report(place / "learned").reasons == ("", "", "")


def test_the_environment_of_a_slurm_array(programs, alone):
    """As slurm runs the script: once for every task, with its number and how many there are; merging is another job."""
    script = (programs / "array.sbatch").read_text()
    first, last = map(int, re.search(r"--array=(\d+)-(\d+)", script).groups())
    tasks = " ".join(
        f"SLURM_ARRAY_TASK_ID={i} SLURM_ARRAY_TASK_COUNT={last - first + 1} SLURM_CPUS_PER_TASK=1 bash array.sbatch;"
        for i in range(first, last + 1)
    )
    merge = re.search(r'--wrap "(.*)"', on_page(programs, "--wrap"))[1]
    place = run(programs, tasks + merge, "slurm")
    assert tp.load_report(place / "report") == alone


def test_torchrun(programs, alone):
    place = run(programs, on_page(programs, "torchrun --nproc").replace("torchrun", "python -m torch.distributed.run"),
                "torchrun")  # fmt: skip
    assert tp.merge_sums(place / "sums") == alone


def test_accelerate(programs, alone):
    pytest.importorskip("accelerate")
    line = on_page(programs, "accelerate launch --").replace(
        "accelerate launch", "python -m accelerate.commands.launch"
    )
    assert tp.merge_sums(run(programs, line, "accelerate") / "sums") == alone


def test_datatrove(programs, alone):
    """Tasks that are through are not run again, and a report needs all of them."""
    pytest.importorskip("datatrove")
    place = run(programs, "python with_datatrove.py", "datatrove")
    assert tp.merge_sums(place / "sums") == alone
    assert len(list((place / "logs" / "completions").iterdir())) == 3


def test_datatrove_on_ray(programs, alone):
    pytest.importorskip("datatrove")
    pytest.importorskip("ray")
    place = run(programs, "python with_datatrove_on_ray.py", "ray", RAY_USAGE_STATS_ENABLED="0")
    assert tp.merge_sums(place / "sums") == alone
