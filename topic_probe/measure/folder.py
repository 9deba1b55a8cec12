"""A folder of parts: the sums of every part of the documents in a file of its own, and the report of all of them.

A file is written under another name and then renamed, so it is whole or not there: it is itself the mark that its part
was measured. In its header stand the facts that its sums depend on, what its texts are known by, and what makes a
report of the sums. A report is made of the files only, in the order of the parts. So an interrupted run goes on where
it stopped, and any number of processes, started by whatever starts processes, gives the bits of one.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from topic_probe.measure.parts import Place, n_parts
from topic_probe.report import Report, decode, encode, report_class
from topic_probe.storage import packed, unpacked, write_file
from topic_probe.sums import SourceSums
from topic_probe.text.corpus import NO_TEXT
from topic_probe.text.documents import Counts

Sum = np.ndarray | SourceSums

MEASURED = "documents measured"

_FORMAT = "sums, version 1"
PART = re.compile(r"part-(\d{6,})\.safetensors")
_REPORT = "report "  # how arrays of the report are named beside those of the sums
_ROWS = "keys", "rows"


# ---------------------------------------------------------------------------- what is known of documents


@dataclass
class Progress:
    """What is known of the documents beside the sums.

    Attributes:
        counts: what was read, cut and left out before measuring.
        left_out: how often something was left out of what was measured, by reason.
        measured: documents whose scores are in the sums.
        stopped: why it stopped early, if it did.
        corpus: what the documents say of themselves when they were read to their end.
        parts: of a folder, how many parts are there, and of how many, which may not be known.
    """

    counts: Counts = field(default_factory=Counts)
    left_out: Counter[str] = field(default_factory=Counter)
    measured: int = 0
    stopped: str | None = None
    corpus: Mapping[str, Any] | None = None
    parts: tuple[int, int | None] | None = None

    def __add__(self, other: "Progress") -> "Progress":
        """That of two parts of the documents."""
        corpus = self.corpus or other.corpus
        if self.corpus is not None and other.corpus is not None:
            read = Counts.of(self.corpus["read"]) + Counts.of(other.corpus["read"])
            corpus = {**self.corpus, "read": read.summary()}
        left_out = self.left_out + other.left_out
        return Progress(self.counts + other.counts, left_out, self.measured + other.measured, corpus=corpus)

    @property
    def whole(self) -> bool:
        """Whether all documents are in the sums, as far as anybody knows."""
        return self.parts is None or self.parts[0] == self.parts[1]

    @property
    def about_parts(self) -> dict[str, Any]:
        """What a provenance says of the parts in a folder; without a folder nothing."""
        if self.parts is None:
            return {}
        there, of = self.parts
        read = {} if self.corpus is None else self.corpus["read"]["left_out"]
        return {"parts": {"there": there, "of": of, "texts_left_out": read.get(NO_TEXT, 0)}}

    def record(self) -> dict[str, Any]:
        """What was read and left out, for the provenance of a report."""
        summary = self.counts.summary()
        left_out = {reason: n for reason, n in sorted(self.left_out.items()) if n}
        return summary | {
            "left_out": summary["left_out"] | left_out,
            "documents_measured": self.measured,
            "stopped": self.stopped,
            "corpus": self.corpus,
            **self.about_parts,
        }

    def content(self) -> dict[str, Any]:
        """All of it, for a file."""
        left_out = dict(sorted(self.left_out.items()))
        return {
            "counts": self.counts.summary(), "left_out": left_out, "measured": self.measured,
            "stopped": self.stopped, "corpus": self.corpus, "parts": self.parts,
        }  # fmt: skip

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "Progress":
        """What had this content."""
        counted = {"counts": Counts.of(content["counts"]), "left_out": Counter(content["left_out"])}
        return cls(**{**content, **counted})


# ---------------------------------------------------------------------------- sums as arrays


def to_arrays(sums: Mapping[str, Sum]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Sums as arrays; and of those by source how many rows they keep apart, and whether sources share these."""
    arrays, about = dict[str, np.ndarray](), dict[str, Any]()
    for name, values in sums.items():
        if isinstance(values, SourceSums):
            arrays |= {f"{name}.{part}": rows for part, rows in zip(_ROWS, values.rows(), strict=True)}
            about[name] = {"limit": values.limit, "folded": values.folded, "shape": values.shape}
        else:
            arrays[name] = values
            about[name] = None
    return arrays, about


def of_arrays(arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> dict[str, Sum]:
    """The sums that `to_arrays` took apart."""
    sums: dict[str, Sum] = {}
    for name, rows in about.items():
        if rows is None:
            sums[name] = arrays[name]
        else:
            by_source = SourceSums(rows["limit"], shape=tuple(rows["shape"]))
            by_source.restore(*(arrays[f"{name}.{part}"] for part in _ROWS), folded=rows["folded"])
            sums[name] = by_source
    return sums


def clear(sums: Mapping[str, Sum]) -> None:
    """Makes sums what they were in the beginning."""
    for values in sums.values():
        if isinstance(values, SourceSums):
            values.clear()
        else:
            values[...] = 0


def add_sums(total: Mapping[str, Sum], part: Mapping[str, Sum]) -> None:
    """Adds sums to those of the same name."""
    for name, values in total.items():
        more: Any = part[name]
        if isinstance(values, SourceSums):
            values.merge(more)
        else:
            values += more


# ---------------------------------------------------------------------------- files


class Folder:
    """The files of one measurement.

    Attributes:
        path: where they are.
        facts: what their sums depend on.
        places: what the texts of the parts that are there are known by, as far as these have been looked at.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self.path = path.expanduser().resolve()
        self.path.mkdir(parents=True, exist_ok=True)
        self.facts: dict[str, Any] = json.loads(json.dumps(facts, default=str))  # as they come back
        self.places: dict[int, Place] = {}

    def look(self) -> list[int]:
        """The parts that are there, in their order; ValueError where one is of another measurement."""
        found = (PART.fullmatch(entry.name) for entry in self.path.iterdir())
        there = sorted(int(name[1]) for name in found if name)
        for number in there:
            self.place(number)
        return there

    def place(self, number: int) -> Place | None:
        """What the texts of a part are known by; None where it is not there."""
        file = self._file(number)
        if number not in self.places and file.exists():
            content, _ = _read(file, arrays=False)
            names = {*self.facts, *content["facts"]}
            if differing := sorted(n for n in names if self.facts.get(n) != content["facts"].get(n)):
                raise ValueError(
                    f"{file} is of another measurement, which differs in {', '.join(differing)}: choose another "
                    "folder, or delete this one"
                )
            self.places[number] = content["place"]
        return self.places.get(number)

    def add(
        self,
        number: int,
        place: Place,
        sums: Mapping[str, Sum],
        progress: Progress,
        report: Mapping[str, Any],
    ) -> None:
        """Saves a part; ``report`` has the "kind" of the report and the "parts" that make one of sums."""
        arrays, about = to_arrays(sums)
        of_report: dict[str, np.ndarray] = {}
        content = {
            "facts": self.facts,
            "place": dict(place),
            "report": {"kind": report["kind"], "parts": encode(report["parts"], of_report, "parts")},
            "sums": about,
            "progress": progress.content(),
        }
        arrays |= {f"{_REPORT}{name}": array for name, array in of_report.items()}
        _write(self._file(number), content, arrays)
        self.places[number] = place

    def total(self, sums: Mapping[str, Sum]) -> Progress:
        """Adds the parts that are there to sums, one after the other; what is known of their documents."""
        total, there = Progress(), self.look()
        for number in there:
            content, arrays = _read(self._file(number))
            add_sums(sums, of_arrays(arrays, content["sums"]))
            progress = Progress.of(content["progress"])
            total = progress if number == there[0] else total + progress
        total.parts = len(there), n_parts(list(self.places.values()))
        if total.whole:
            for draft in self.path.glob(".part-*.safetensors.*"):  # of processes that were killed
                draft.unlink(missing_ok=True)
        return total

    def once(self, name: str, make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """What is found of all documents before parts are measured: made by whoever comes first, and kept."""
        file = self.path / f"{name}.safetensors"
        if not file.exists():
            _write(file, {"facts": self.facts}, make())
        content, arrays = _read(file)
        if content["facts"] != self.facts:
            raise ValueError(f"{file} is of another measurement: choose another folder, or delete this one")
        return arrays

    def _file(self, number: int) -> Path:
        return self.path / f"part-{number:06}.safetensors"


def report_of(path: Path) -> Report | None:
    """The report of a folder of parts, which needs neither model nor documents; None where there are none."""
    files = sorted(entry for entry in path.iterdir() if PART.fullmatch(entry.name)) if path.is_dir() else []
    if not files:
        return None
    content, arrays = _read(files[0])
    sums = of_arrays(arrays, content["sums"])
    clear(sums)
    progress = Folder(path, content["facts"]).total(sums)
    own = {name.removeprefix(_REPORT): array for name, array in arrays.items() if name.startswith(_REPORT)}
    measured: Any = report_class(content["report"]["kind"], f"{path} is of")
    report: Report = measured.of_sums(sums, progress, decode(content["report"]["parts"], own))
    return report


def _write(file: Path, content: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    try:
        write_file(file, packed({"format": _FORMAT, **content}, arrays))
    except FileNotFoundError:
        # Another process has measured the same part, and removed drafts when all was there.
        if not file.exists():
            raise


def _read(file: Path, *, arrays: bool = True) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What stands in the header of a file, and its arrays; ValueError where anything was changed."""
    try:
        content, found = unpacked(file, with_arrays=arrays)
        if content.pop("format") != _FORMAT:
            raise ValueError("it is of another version of topic_probe")
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{file} is no whole file of sums ({error}): delete it, and the same call measures its part again"
        ) from error
    return content, found


def model_facts(model: Any) -> dict[str, Any]:
    """What of a model its numbers depend on: its class, and a hash of all weights with their types."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        content = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
        digest.update(content.numpy())
    return {"model": type(model).__name__, "weights": digest.hexdigest()}
