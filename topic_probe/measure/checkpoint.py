"""Saved sums, from which an interrupted measurement goes on.

A checkpoint is a folder with a folder for every process, which holds the last save whenever a process is killed. Beside
the sums it has the facts that they depend on: sums of another measurement are refused, never used or overwritten.
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

from topic_probe import storage
from topic_probe.contrast import SourceSums
from topic_probe.measure.processes import Processes
from topic_probe.measure.totals import Totals

# A higher schema also where sums change their meaning, because old and new ones must not be added up.
_KIND, _SCHEMA = "sums of a measurement", 1


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
        self.place = self.path / f"process-{processes.index}-of-{processes.size}" / "sums"
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
        try:
            place = next((place for place in (self.place, *self._numbered()) if storage.kind_of(place)), None)
            if place is None:
                self._begin(totals)
                return Past()
            saved = storage.load(place, _KIND, newest=_SCHEMA)
            facts, past = dict(saved.content["facts"]), Past(**saved.content["past"])
        except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
            raise ValueError(
                f"the checkpoint {self.path} cannot be taken up: {error}. Delete it to measure from the beginning, or "
                "choose another one"
            ) from error
        self._check_facts(facts)
        _restore(totals, saved.content, saved.arrays)
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
        content = {
            "facts": self.facts,
            "past": asdict(past),
            "folded": totals.by_document.folded,
            "left_out": totals.left_out,
            "measured": totals.measured,
        }
        storage.save(self.place, _KIND, content, _arrays(totals), schema=_SCHEMA, overwrite=True)
        for old in self._numbered():
            shutil.rmtree(old, ignore_errors=True)

    def _begin(self, totals: Totals) -> None:
        """Saves that there is nothing yet: better to fail now than when hours of sums are to be saved."""
        try:
            self.save(totals, Past())
        except OSError as error:
            raise type(error)(
                f"the checkpoint {self.path} cannot be written, choose another folder: {error}"
            ) from error

    def _numbered(self) -> list[Path]:
        """Where the first version of this package saved, the last save first."""
        folder = self.place.parent
        entries = folder.iterdir() if folder.is_dir() else ()
        numbered = (entry for entry in entries if re.fullmatch(r"\d{6,}", entry.name))
        return sorted(numbered, key=lambda entry: int(entry.name), reverse=True)

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


def _arrays(totals: Totals) -> dict[str, np.ndarray]:
    keys, sums, counts = totals.by_document.rows()
    arrays = {f"sums.{name}": array for name, array in totals.sums.items()}
    return arrays | {"keys": keys, "document_sums": sums, "document_counts": counts}


def _restore(totals: Totals, content: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    for name, array in totals.sums.items():
        np.copyto(array, arrays[f"sums.{name}"])
    rows = (arrays["keys"], arrays["document_sums"], arrays["document_counts"])
    totals.by_document = SourceSums.from_rows(totals.by_document.limit, *rows, folded=content["folded"])
    totals.left_out, totals.measured = Counter(content["left_out"]), content["measured"]
