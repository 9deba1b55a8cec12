"""Saved sums, from which an interrupted measurement goes on.

A checkpoint is a folder with a folder for every process, and in that a numbered one for the last save, whole or absent.
A save is in its place before the one before it is removed, so that there is one whenever a process is killed. Beside
the sums it holds the facts that they depend on: sums of another measurement are refused, never used or overwritten.
"""

import hashlib
import json
import os
import re
import shutil
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from topic_probe.contrast import SourceSums
from topic_probe.measure.processes import Processes
from topic_probe.measure.totals import Totals
from topic_probe.storage import (
    check_schema,
    checksum,
    read_json,
    read_safetensors,
    to_json,
    to_safetensors,
    write_directory,
)

# A higher schema also where sums change their meaning, because old and new ones must not be added up.
_KIND, _SCHEMA = "sums of a measurement", 1
_JSON, _ARRAYS = "sums.json", "sums.safetensors"


@dataclass(frozen=True)
class Past:
    """How far the documents were measured when the sums were saved.

    Attributes:
        batches: batches that are in the sums.
        keys: sum of the content hashes of their documents, modulo 2⁶⁴, to know them again.
        finished: whether there were no more.
        corpus: what the documents said of themselves when they were read to their end.
        intake: what was counted while they were read to their end.
    """

    batches: int = 0
    keys: int = 0
    finished: bool = False
    corpus: Mapping[str, Any] | None = None
    intake: Mapping[str, Any] | None = None


class Checkpoint:
    """Where the sums of one process are saved, and how often."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        facts: Mapping[str, Any],
        *,
        seconds: float,
        processes: Processes,
    ) -> None:
        if seconds < 0:
            raise ValueError(f"checkpoint_every is a number of seconds and cannot be negative, got {seconds}")
        self.path = Path(path).expanduser().resolve()
        self.folder = self.path / f"process-{processes.index}-of-{processes.size}"
        self.facts = json.loads(json.dumps(facts, default=str))  # as it comes back from disk
        self.seconds = seconds
        self._saved_at = monotonic()
        self._check_number(processes.size)

    def _check_number(self, size: int) -> None:
        """Sums of another number of processes have other shares of the documents in them."""
        if not self.path.is_dir():
            return
        for name in sorted(entry.name for entry in self.path.iterdir()):
            found = re.fullmatch(r"process-\d+-of-(\d+)", name)
            if found and int(found[1]) != size:
                raise ValueError(
                    f"the checkpoint {self.path} was made by {found[1]} processes and cannot be taken up by {size}: "
                    "run as many as before, or choose another checkpoint"
                )

    def resume(self, totals: Totals) -> Past:
        """How far the saved sums reach, which are put into ``totals``; a checkpoint that is not there is begun.

        Raises:
            ValueError: for sums of another measurement, and for a save that is damaged.
            OSError: where nothing can be saved.
        """
        saves = self._saves()
        if not saves:
            self._begin(totals)
            return Past()
        try:
            told = read_json(saves[-1] / _JSON)
            if told.get("kind") != _KIND:
                raise ValueError(f"{saves[-1] / _JSON} holds no sums of a measurement")
            check_schema(told, saves[-1] / _JSON, newest=_SCHEMA)
            arrays = read_safetensors(saves[-1] / _ARRAYS, sha256=told["arrays_sha256"])
            facts, past = dict(told["facts"]), Past(**told["past"])
        except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
            raise ValueError(
                f"the checkpoint {self.path} cannot be taken up: {error}. Delete it to measure from the beginning, or "
                "choose another one"
            ) from error
        self._check_facts(facts)
        _restore(totals, told, arrays)
        return past

    def save_if_due(self, totals: Totals, past: Past) -> None:
        """Saves if the last save is long enough ago."""
        if monotonic() - self._saved_at >= self.seconds:
            self.try_to_save(totals, past)
            self._saved_at = monotonic()

    def try_to_save(self, totals: Totals, past: Past) -> None:
        """Saves; a disk that is full costs a warning, because the measurement itself needs none."""
        try:
            self.save(totals, past)
        except OSError as error:
            warnings.warn(f"going on, though the checkpoint {self.path} was not saved: {error}", stacklevel=2)

    def save(self, totals: Totals, past: Past) -> None:
        """Saves now."""
        before = self._saves()
        number = 1 + (int(before[-1].name) if before else 0)
        place = write_directory(self.folder / f"{number:06d}", _files(totals, past, self.facts))
        for old in self.folder.iterdir():
            # Drafts begin with a dot; there are some where a process was killed while it saved.
            if old != place and re.fullmatch(r"\d{6,}|\.\d{6,}\..*", old.name):
                shutil.rmtree(old, ignore_errors=True)

    def _begin(self, totals: Totals) -> None:
        """Saves that there is nothing yet: better to fail now than when hours of sums are to be saved."""
        try:
            self.save(totals, Past())
        except OSError as error:
            raise type(error)(
                f"the checkpoint {self.path} cannot be written, choose another folder: {error}"
            ) from error

    def _saves(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        found = (entry for entry in self.folder.iterdir() if re.fullmatch(r"\d{6,}", entry.name))
        return sorted(found, key=lambda entry: int(entry.name))

    def _check_facts(self, facts: Mapping[str, Any]) -> None:
        names = sorted({*facts, *self.facts})
        if other := [name for name in names if facts.get(name) != self.facts.get(name)]:
            raise ValueError(
                f"the checkpoint {self.path} belongs to another measurement, which differs in {', '.join(other)}: "
                "choose another checkpoint, or delete this one"
            )

    def check_documents(self, past: Past, read: Past) -> None:
        """ValueError if the documents that were read past are not those in the sums."""
        if (read.batches, read.keys) != (past.batches, past.keys):
            raise ValueError(
                f"the checkpoint {self.path} belongs to a measurement of other documents, or of these in another "
                "order: choose another checkpoint, or delete this one"
            )


def key_sum(keys: Int64[Tensor, " batch"]) -> int:
    """Sum of content hashes of documents, modulo 2⁶⁴."""
    return int(keys.numpy().view(np.uint64).sum(dtype=np.uint64))


def model_facts(model: Any) -> dict[str, Any]:
    """What of a model its numbers depend on, all weights included; hooks that edit it are not known."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        content = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
        digest.update(content.numpy())
    return {"model": type(model).__name__, "weights": digest.hexdigest()}


def _files(totals: Totals, past: Past, facts: Mapping[str, Any]) -> dict[str, bytes]:
    keys, sums, counts = totals.by_document.rows()
    arrays = {f"sums.{name}": array for name, array in totals.sums.items()}
    packed = to_safetensors(arrays | {"keys": keys, "document_sums": sums, "document_counts": counts})
    told = {
        "kind": _KIND,
        "schema": _SCHEMA,
        "facts": facts,
        "past": asdict(past),
        "folded": totals.by_document.folded,
        "left_out": totals.left_out,
        "measured": totals.measured,
        "arrays_sha256": checksum(packed),
    }
    return {_JSON: to_json(told), _ARRAYS: packed}


def _restore(totals: Totals, told: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    for name, array in totals.sums.items():
        np.copyto(array, arrays[f"sums.{name}"])
    rows = (arrays["keys"], arrays["document_sums"], arrays["document_counts"])
    totals.by_document = SourceSums.from_rows(totals.by_document.limit, *rows, folded=told["folded"])
    totals.left_out, totals.measured = Counter(told["left_out"]), told["measured"]
