"""What measuring a series costs beside measuring its checkpoints one by one: time, and memory beside that of one model.

Bounds, written down before any of this was run: six checkpoints of a MiniLM-sized model take at most 1.05 times as long
as six measurements of their own (each opened and measured as a user would), check of the checkpoints included, and the
most memory that a series needs is at most 1.1 times that of a single measurement. Each is a process of its own.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from real_text import minilm_folder

import topic_probe as tp

TIME, MEMORY = 1.05, 1.10
STEPS = (0, 10, 20, 40, 80, 160)


def made(folder):
    """Six checkpoints on one path, each a little further from MiniLM."""
    import transformers

    model = transformers.AutoModel.from_pretrained(minilm_folder())
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_folder())
    generator, before = torch.Generator().manual_seed(0), 0.0
    ways = [torch.randn(parameter.shape, generator=generator) for parameter in model.parameters()]
    for number, step in enumerate(STEPS):
        with torch.no_grad():
            for parameter, way in zip(model.parameters(), ways, strict=True):
                parameter += 0.001 * (number - before) * parameter.std() * way
        before = number
        model.save_pretrained(folder / f"checkpoint-{step}")
        tokenizer.save_pretrained(folder / f"checkpoint-{step}")


def what(folder, n_documents):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "checkpoint-0")
    topics = tp.Topics.builtin("empath", tokenizer)
    documents = tp.Corpus.bundled(n_documents=n_documents).documents(tokenizer, max_length=256)
    return topics, list(documents)


def one_by_one(folder, steps, n_documents):
    topics, documents = what(folder, n_documents)
    start = perf_counter()
    for step in steps:
        model = tp.open_model(folder / f"checkpoint-{step}")
        tp.measure_embeddings(model, topics, documents, progress=False)
        tp.measure_attention(model, topics, documents, progress=False)
    return perf_counter() - start


def at_once(folder, n_documents):
    topics, documents = what(folder, n_documents)
    start = perf_counter()
    report = tp.measure_series(tp.Checkpoints.from_folders(folder), topics, documents, progress=False)
    assert not any(report.reasons)
    return perf_counter() - start


def main(n_documents, rounds):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made(folder)
        found = {"six": [], "series": []}
        for _ in range(rounds):
            for how in found:
                found[how].append(_in_a_process(how, folder, n_documents))
        single = _in_a_process("one", folder, n_documents)
    seconds = {how: min(one[0] for one in each) for how, each in found.items()}
    ratio = seconds["series"] / seconds["six"]
    memory = found["series"][0][1] / single[1]
    print(f"six measurements {seconds['six']:.1f} s, a series {seconds['series']:.1f} s")
    print(f"time {ratio:.3f} times, bound {TIME}: {'held' if ratio <= TIME else 'MISSED'}")
    print(f"memory {memory:.3f} times, bound {MEMORY}: {'held' if memory <= MEMORY else 'MISSED'}")
    return ratio <= TIME and memory <= MEMORY


def _in_a_process(how, folder, n_documents):
    command = [
        sys.executable,
        __file__,
        "--how",
        how,
        "--folder",
        str(folder),
        "--documents",
        str(n_documents),
    ]
    return json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--how", choices=("one", "six", "series"))
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.how is None:
        raise SystemExit(0 if main(given.documents, given.rounds) else 1)
    if given.how == "series":
        taken = at_once(given.folder, given.documents)
    else:
        taken = one_by_one(given.folder, STEPS[:1] if given.how == "one" else STEPS, given.documents)
    print(json.dumps([taken, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))
