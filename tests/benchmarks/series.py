"""What measuring a series costs beside measuring its checkpoints one by one: time, and memory beside that of one model.

Bounds, written down before any of this was run: six checkpoints of a MiniLM-sized model take at most 1.05 times as long
as six measurements of their own (each opened and measured as a user would), check of the checkpoints included, and the
most memory that a series needs is at most 1.1 times that of a single measurement. Each is a process of its own.
"""

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import torch
from transformers import AutoModel, AutoTokenizer

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from real_text import minilm_folder

import topic_probe as tp

TIME, MEMORY = 1.05, 1.10
STEPS, DOCUMENTS = (0, 10, 20, 40, 80, 160), 40


def made(folder):
    """Six checkpoints on one path, each a little further from MiniLM."""
    model, tokenizer = (kind.from_pretrained(minilm_folder()) for kind in (AutoModel, AutoTokenizer))
    generator = torch.Generator().manual_seed(0)
    ways = [torch.randn(parameter.shape, generator=generator) for parameter in model.parameters()]
    for number, step in enumerate(STEPS):
        with torch.no_grad():
            for parameter, way in zip(model.parameters(), ways, strict=True):
                parameter += 0.001 * (number > 0) * parameter.std() * way
        for part in (model, tokenizer):
            part.save_pretrained(folder / f"checkpoint-{step}")


def measured(how, folder):
    """In a process of its own: the seconds of one, of all one by one, or of the series, and the peak of its memory."""
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder / "checkpoint-0")
    topics = tp.Topics.builtin("empath", tokenizer)
    corpus = tp.Corpus.bundled(n_documents=DOCUMENTS)
    documents, start = list(corpus.documents(tokenizer, max_length=256)), perf_counter()
    if how == "series":
        checkpoints = tp.checkpoints_in(folder)
        report = tp.measure_series(checkpoints, topics, documents, progress=False)
        assert not any(report.reasons)
    else:
        for step in STEPS[:1] if how == "one" else STEPS:
            model = tp.open_model(folder / f"checkpoint-{step}")
            tp.measure_embeddings(model, topics, documents, progress=False)
            tp.measure_attention(model, topics, documents, progress=False)
    return [perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]


def in_a_process(how, folder):
    command = [sys.executable, __file__, how, str(folder)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(answer.stdout.splitlines()[-1])


def main():
    with tempfile.TemporaryDirectory() as name:
        made(Path(name))
        found = {how: in_a_process(how, Path(name)) for how in ("one", "six", "series")}
    time, memory = found["series"][0] / found["six"][0], found["series"][1] / found["one"][1]
    print(f"six measurements {found['six'][0]:.1f} s, a series {found['series'][0]:.1f} s")
    print(f"time {time:.3f} times, bound {TIME}: {'held' if time <= TIME else 'MISSED'}")
    print(f"memory {memory:.3f} times, bound {MEMORY}: {'held' if memory <= MEMORY else 'MISSED'}")
    return int(time > TIME or memory > MEMORY)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measured(sys.argv[1], Path(sys.argv[2]))))
    else:
        sys.exit(main())
