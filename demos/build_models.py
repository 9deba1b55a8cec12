"""Writes models.md beside this file: every text architecture of the installed transformers, measured and checked.

``python demos/build_models.py .venv/bin/python .venv-tl3/bin/python`` measures with the TransformerLens of each
interpreter, in as many processes as ``--workers`` says; with ``--only bert t5`` it shows rows and writes nothing.

Every architecture is built small with random weights, and the attention between words of three topics is measured in
each way that there is: through hook points and beside the fused kernel, documents padded in one batch and each by
itself. What comes out is held against the architecture's own ``output_attentions`` of single documents, added up pair
by pair.
"""

import argparse
import json
import re
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
TARGET = Path(__file__).with_name("models.md")
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

import any_architecture  # noqa: E402
import zoo  # noqa: E402

import topic_probe as tp  # noqa: E402
from topic_probe.lens.host import host_of  # noqa: E402
from topic_probe.lens.running import decoder_start, run, takes_decoder_ids, trunk  # noqa: E402
from topic_probe.lens.sites import SIDES, Inputs  # noqa: E402

TOLERANCE = 1e-5
SECONDS = 120.0
RELATIONS = ("same_word", "same_topic", "different_topic")
WAYS = ("hooks", "rows")
PACKAGES = ("transformers", "transformer-lens", "torch")

# Ids of words by topic; documents also hold ids of no topic, one of them in front, and every word several times.
TOPICS = {topic: range(10 + 8 * topic, 18 + 8 * topic) for topic in range(3)}
LENGTHS = (23, 15, 19, 17)


@dataclass(frozen=True)
class Row:
    """What was found out of an architecture with one TransformerLens.

    Attributes:
        name: the model type in transformers.
        model: the class that was built.
        versions: of the packages that took part.
        stacks: layers × heads by stack.
        ways: what came of each way of reading: "equal", "wrong: …", "refused: …", "failed: …".
        worst: the largest difference of a mean from the reference, over all ways of reading.
        padding: the largest difference of a mean between padded and single documents.
    """

    name: str
    model: str
    versions: Mapping[str, str]
    stacks: str = ""
    ways: Mapping[str, str] = field(default_factory=dict)
    worst: float = 0.0
    padding: float = 0.0


def documents() -> list[torch.Tensor]:
    """Random ids; the first of every document has no topic."""
    generator = torch.Generator().manual_seed(0)
    made = [torch.randint(8, 34, (length,), generator=generator) for length in LENGTHS]
    for ids in made:
        ids[0] = 8
    return made


def row(name: str, model_class: str) -> Row:
    """Builds an architecture and measures it in every way of reading."""
    versions = {package: version(package) for package in PACKAGES}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = any_architecture.build(name, model_class)
            # A twin that nothing is measured of. It is eager from the start, because Falcon forgets its mask where
            # it is made so later, and without a cache, with which FSMT's decoder would see what follows.
            twin = any_architecture.build(name, model_class, attn_implementation="eager", use_cache=False)
            with torch.no_grad():
                run(trunk(twin), inputs_of(twin, documents()[0]))
        except Exception as error:  # what it wants beyond ids, it says in many ways
            return Row(name, model_class, versions, ways={"built": f"failed: {_told(error)}"})
        expected = double_loop(twin)
        ways: dict[str, str] = {}
        found = [(0.0, 0.0)]
        stacks = ""
        for way in WAYS:
            try:
                stacks, padded, single = measure(model, way)
            except ValueError as error:
                ways[way] = f"refused: {_first_sentence(error)}"
            except Exception as error:  # which is a finding, and must not stop the others
                ways[way] = f"failed: {_told(error)}"
            else:
                worst = max(difference(padded, expected), difference(single, expected))
                found.append((worst, difference(padded, single)))
                ways[way] = _judge(*found[-1], checked=len(expected) > 0)
    return Row(name, model_class, versions, stacks, ways, *(max(part) for part in zip(*found, strict=True)))


def _judge(worst: float, padding: float, *, checked: bool) -> str:
    if not checked and padding <= TOLERANCE:
        return "unchecked"
    if max(worst, padding) <= TOLERANCE:
        return "equal"
    return f"wrong: by {worst:.0e}" if worst < np.inf else "wrong: other pairs"


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {_first_sentence(error)}"


def _first_sentence(error: Exception) -> str:
    return re.split(r"\n|(?<=[\w)'])[.;] |, so ", str(error).strip())[0].rstrip(".")


def measure(model: Any, through: str) -> tuple[str, np.ndarray, np.ndarray]:
    """The stacks of a model, and what comes out of padded and of single documents."""
    opened = tp.open_model(model)
    view = host_of(opened)
    topics = tp.Topics.from_token_ids(TOPICS, vocabulary_size=view.facts.vocabulary_size)
    layers = Counter(zip((site.stack for site in view.sites), view.n_heads, strict=True))
    stacks = ", ".join(f"{stack} {n} × {heads}" for (stack, heads), n in layers.items())
    if through == "rows" and not view.reads_rows():
        raise ValueError("its attention is read from whole patterns")
    with zoo.at_hook_points(opened) if through == "hooks" else nullcontext():
        padded, single = (
            tp.measure_attention(
                opened, topics, documents(), batch_size=size, n_permutations=0
            ).heads
            for size in (len(LENGTHS), 1)
        )  # fmt: skip
    return stacks, _numbers(padded), _numbers(single)


def _numbers(table: tp.Contrast) -> np.ndarray:
    """Means and numbers of pairs [head, 6]."""
    return np.stack([getattr(table, prefix + name) for prefix in ("", "n_") for name in RELATIONS], axis=1)


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """Between means, infinite where there are not the same heads and pairs."""
    if one.shape != other.shape or not np.array_equal(one[:, 3:], other[:, 3:]):
        return np.inf
    return float(np.nanmax(np.abs(one[:, :3] - other[:, :3])))


# What is expected.


def double_loop(model: Any) -> np.ndarray:
    """Means and numbers of pairs [head, 6] of the patterns that an architecture returns; no heads where it has none."""
    layers: dict[tuple[int, int], np.ndarray] = {}
    for ids in documents():
        inputs = inputs_of(model, ids)
        try:
            returned = zoo.own_patterns(model, inputs)
        except Exception:  # architectures without attention say so in many ways
            break
        for place, (stack, patterns) in enumerate(returned.items()):
            words = [inputs.side(side)[0][0].tolist() for side in SIDES[stack]]
            for layer, shown in enumerate(patterns):
                # What is of another shape (the state of a recurrence, say) is not attention between positions.
                if getattr(shown, "ndim", 0) == 4 and shown.shape[2:] == tuple(map(len, words)):
                    sums = layers.setdefault((place, layer), np.zeros((2, 3, shown.shape[1])))
                    add_pairs(sums, shown[0].double().numpy(), *words)
    with np.errstate(invalid="ignore"):
        tables = [np.concatenate([sums / n, n]).T for _, (sums, n) in sorted(layers.items())]
    return np.concatenate([*tables, np.zeros((0, 6))])


def add_pairs(sums: np.ndarray, pattern: np.ndarray, queries: Sequence[int], keys: Sequence[int]) -> None:
    """Adds the attention of a document [head, query, key] relative to uniform attention, pair by pair.

    A key can be seen where any head of the layer attends to it.
    """
    seen = (pattern > 0).any(0)
    topic_of = {word: topic for topic, words in TOPICS.items() for word in words}
    for query, word in enumerate(queries):
        for key, other in enumerate(keys):
            if word in topic_of and other in topic_of and seen[query, key]:
                relation = 0 if word == other else 1 if topic_of[word] == topic_of[other] else 2
                sums[0, relation] += pattern[:, query, key] * seen[query].sum()
                sums[1, relation] += 1


def inputs_of(model: Any, ids: torch.Tensor) -> Inputs:
    """One document without padding; a decoder reads it behind its start token."""
    real = torch.ones(1, len(ids), dtype=torch.bool)
    if not takes_decoder_ids(trunk(model)):
        return Inputs(ids[None], real)
    target = torch.cat([torch.tensor([decoder_start(model.config)]), ids[:-1]])
    return Inputs(ids[None], real, target[None], real)


# The page.

HEAD = """# Architectures

Written by `demos/build_models.py` (`make models`). Every architecture that transformers has for text (its model takes
token ids and nothing else) is built small, with random weights, and the attention between words of three topics is
measured: padded in one batch, and each document by itself. Means and numbers of pairs of every head are held against
the architecture's own `output_attentions`, added up pair by pair in a double loop. *Equal* is within {tolerance:.0e}
in every way of reading that there is.

**{summary}** With {versions}.

* *hooks* and *rows* are the two ways of reading: whole patterns at hook points, and rows of words beside the fused
  kernel (– where an architecture does not run on it, or computes something else on it).
* *difference* is the largest of any mean from the double loop, *padding* the largest between padded and single
  documents.
* A number in brackets is why not, see [below](#why-not).

| architecture | hooks | rows | difference | padding | layers × heads | model |
|---|---|---|---|---|---|---|
"""
_NOT_BUILT = (
    "Configurations that cannot be made small by the names of their settings, or are not for text alone.\n"
)
# What is left of a class's name is the name of the architecture.
_KIND_OF_MODEL = re.compile("For[A-Z]|Model|LMHead")


class Reasons:
    """Why something could not be read: each is said once, and has a number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, text: str, model: str) -> str:
        """The number of a reason, without the names of the model that it was given for."""
        text = re.sub(r"^.*cannot be read: ", "", text.partition(": ")[2])
        text = re.sub(
            r": needed.*|, (en|de)coder_blocks.*| \(such as \S+\)| of \w+(\(\w+\))?(?= shows)", "", text
        )
        text = re.sub(rf"\b{_KIND_OF_MODEL.split(model)[0]}\w*", "…", text)
        text = re.sub(r"\d+ (?=queries|keys|tokens)", "… ", text)
        return f"[{self.numbers.setdefault(text, len(self.numbers) + 1)}]"


def page(rows: Sequence[Row]) -> str:
    """The whole page, from the rows of every TransformerLens."""
    rows = sorted(rows, key=lambda found: found.name.lower())
    by_name = {name: list(same) for name, same in groupby(rows, key=lambda found: found.name)}
    reasons = Reasons()
    built = {name: same for name, same in by_name.items() if "built" not in same[0].ways}
    verdicts = Counter(verdict(same) for same in built.values())
    told = ", ".join(f"{n} {what}" for what, n in verdicts.most_common())
    names = {
        name: sorted({found.versions[name] for found in rows}, key=_as_numbers, reverse=True)
        for name in PACKAGES
    }
    text = HEAD.format(
        tolerance=TOLERANCE,
        summary=f"{len(built)} architectures: {told}.",
        versions=", ".join(f"{name} {' and '.join(found)}" for name, found in names.items()),
    )
    lines = [line(same, reasons) for same in built.values()]
    why = [f"{number}. {reason}" for reason, number in reasons.numbers.items()]
    left_out = [
        f"* `{name}`: {same[0].ways['built'].removeprefix('failed: ')}"
        for name, same in by_name.items()
        if name not in built
    ]
    return "\n".join(
        [text + "\n".join(lines), "\n## Why not\n", *why, "\n## Not built\n", _NOT_BUILT, *left_out, ""]
    )


def verdict(same: Sequence[Row]) -> str:
    """What is said of an architecture as a whole."""
    kinds = {way.partition(":")[0] for found in same for way in found.ways.values()}
    for kind in ("wrong", "failed", "unchecked", "equal"):
        if kind in kinds:
            return kind
    return "refused"


def line(same: Sequence[Row], reasons: Reasons) -> str:
    """A line of the table: what was found comes first, so that a narrow screen shows it."""
    first = same[0]
    cells = [f"`{first.name}`"]
    hooks, rows = ({found.ways[way]: None for found in same} for way in WAYS)
    cells.append(" ".join(_cell(way, first.model, reasons) for way in hooks))
    cells.append(
        " ".join("–" if way.startswith("refused") else _cell(way, first.model, reasons) for way in rows)
    )
    checked = verdict(same) in ("equal", "wrong")
    for numbers in ([found.worst for found in same], [found.padding for found in same]):
        cells.append(f"{max(numbers):.0e}" if checked else "")
    cells += ["; ".join(dict.fromkeys(found.stacks for found in same if found.stacks)), first.model]
    return f"| {' | '.join(cells)} |"


def _cell(way: str, model: str, reasons: Reasons) -> str:
    if way == "equal":
        return "✓"
    return reasons.number(way, model) if way.startswith("refused") else f"**{way}**"


def _as_numbers(version_text: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version_text)]


def short(version_text: str) -> str:
    """The part of a version by which behaviour changes."""
    return ".".join(version_text.split(".")[:2])


# Measuring everything, in several processes.


def work() -> None:
    """Answers every line of standard input, the name of an architecture and its class, with its row."""
    answers, sys.stdout = sys.stdout, sys.stderr
    for wanted in sys.stdin:
        print(json.dumps(asdict(row(*wanted.split()))), file=answers, flush=True)


class Worker:
    """A process with an interpreter of its own, started again where an architecture hangs or takes it down."""

    def __init__(self, python: str) -> None:
        self.python = python
        self.process: subprocess.Popen[str] | None = None

    def ask(self, name: str, model: str) -> Row:
        """The row of an architecture."""
        if self.process is None:
            # What the models print and warn of, hundreds of lines, helps nobody.
            self.process = subprocess.Popen(
                [self.python, __file__, "--work"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        limit = threading.Timer(SECONDS, self.process.kill)
        limit.start()
        print(name, model, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        limit.cancel()
        if answer:
            return Row(**json.loads(answer))
        self.end()
        return Row(
            name, model, self.versions(), ways=dict.fromkeys(WAYS, f"failed: no answer within {SECONDS:g} s")
        )

    def end(self) -> None:
        """Ends the process; the next question starts another."""
        if self.process is not None:
            self.process.communicate()
            self.process = None

    def versions(self) -> dict[str, str]:
        """Of the packages of its interpreter."""
        script = f"from importlib.metadata import version; print(*map(version, {PACKAGES}))"
        told = subprocess.run([self.python, "-c", script], capture_output=True, text=True, check=True)
        return dict(zip(PACKAGES, told.stdout.split(), strict=True))


def measure_all(wanted: Mapping[str, str], pythons: Sequence[str], workers: int) -> list[Row]:
    """The rows of architectures with every interpreter."""

    def share(python: str, number: int) -> list[Row]:
        worker = Worker(python)
        rows = [worker.ask(*one) for one in list(wanted.items())[number::workers]]
        worker.end()
        return rows

    with ThreadPoolExecutor(workers) as pool:
        shares = [pool.submit(share, python, number) for python in pythons for number in range(workers)]
        return [found for done in shares for found in done.result()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "pythons", nargs="*", default=[sys.executable], help="interpreters, each with a TransformerLens"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes at a time")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="shows the rows of these architectures instead"
    )
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work()
    elif given.only:
        for name in given.only:
            print(json.dumps(asdict(row(name, any_architecture.architectures()[name])), indent=1))
    else:
        measured = measure_all(any_architecture.architectures(), given.pythons, given.workers)
        TARGET.write_text(page(measured), encoding="utf-8")
