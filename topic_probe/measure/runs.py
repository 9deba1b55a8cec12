"""How a run over documents is kept, so that it goes on where it was interrupted.

A checkpoint is a folder with a saved result for every process: the sums, how far the documents were read, and the facts
that sums depend on. Those of another measurement are refused, never used or overwritten.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from topic_probe import storage
from topic_probe.contrast import SourceSums
from topic_probe.measure.options import Reading, Run
from topic_probe.notices import warn
from topic_probe.processes import Processes
from topic_probe.text.batches import TokenBatch
from topic_probe.text.corpus import DocumentStream
from topic_probe.text.documents import Counts, content_hash
from topic_probe.text.sums import Parts, Progress, Sum, as_from_disk, differing_facts, from_arrays, to_arrays

_KIND = "sums of a measurement"

_SHORT = 60


class Checkpoint:
    """Where the sums of one process are saved, and how often."""

    def __init__(
        self,
        run: Run,
        facts: Mapping[str, Any],
        documents: Any,
        processes: Processes,
        shard: tuple[int, int] | None = None,
    ) -> None:
        assert run.checkpoint is not None
        self.path = Path(run.checkpoint).expanduser().resolve()
        name = (
            f"process-{processes.index}-of-{processes.size}"
            if shard is None
            else f"shard-{shard[0]}-of-{shard[1]}"
        )
        self.place = self.path / name / "sums"
        described = _described(documents)
        self.knows_documents = described is not None and described["identity"] is not None
        self.facts = as_from_disk({**facts, "documents": described})
        self.seconds, self.saved_at = run.checkpoint_every, monotonic()
        # How many batches were read, and the sum of the hashes of their documents modulo 2⁶⁴ to know them again.
        self.read = self.saved = (0, 0)
        self.finished = False
        # Sums of another number of processes have other shares of the documents in them.
        for name in sorted(entry.name for entry in self.path.iterdir()) if self.path.is_dir() else []:
            saved = re.fullmatch(r"process-\d+-of-(\d+)", name)
            if saved and int(saved[1]) != processes.size:
                raise ValueError(
                    f"the checkpoint {self.path} was made by {saved[1]} processes and cannot be taken up by "
                    f"{processes.size}: run as many as before, or choose another checkpoint"
                )

    def resume(self, sums: Mapping[str, Sum], progress: Progress) -> bool:
        """Puts the saved sums in place of empty ones; whether all documents are known to be in them.

        A checkpoint that is not there is begun: better to fail now than when hours of sums are to be saved.

        Raises:
            ValueError: for sums of another measurement, and for a save that is damaged.
            OSError: where nothing can be saved.
        """
        loaded = self._load()
        if loaded is None:
            try:
                self._save(sums, progress)
            except OSError as error:
                raise type(error)(
                    f"the checkpoint {self.path} cannot be written, choose another folder: {error}"
                ) from error
            return False
        content, arrays = loaded
        saved = content["facts"]
        if differing := differing_facts(saved, self.facts):
            raise ValueError(
                f"the checkpoint {self.path} belongs to another measurement, which differs in {', '.join(differing)}: "
                f"choose another checkpoint, or delete this one{_both(_flat(saved), _flat(self.facts))}"
            )
        from_arrays(sums, arrays, content["folded"])
        saved_progress = content["progress"]
        progress.left_out, progress.measured = Counter(saved_progress["left_out"]), saved_progress["measured"]
        progress.by_topics = [Counter(part) for part in saved_progress["by_topics"]]
        self.saved, self.finished = tuple(content["read"]), content["finished"]
        if not (self.finished and self.knows_documents):
            return False
        progress.counts, progress.corpus = Counts.of(saved_progress["counts"]), saved_progress["corpus"]
        progress.seen = saved_progress["seen"]
        return True

    def _load(self) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
        """What is saved; None where nothing is."""
        try:
            if storage.kind_of(self.place) is None:
                return None
            saved = storage.load(self.place, _KIND)
            loaded = saved.content, saved.arrays
            missing = [
                name for name in ("facts", "read", "progress", "finished", "folded") if name not in loaded[0]
            ]
            if missing:
                raise ValueError(f"{', '.join(missing)} missing in {saved.path}")
        except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
            raise ValueError(
                f"the checkpoint {self.path} cannot be taken up: {error}. Delete it to measure from the beginning, or "
                "choose another one"
            ) from error
        return loaded

    def lacks(self, batch: TokenBatch) -> bool:
        """Whether a batch, the next one that was read, is not in the saved sums."""
        self.read = self.read[0] + 1, (self.read[1] + key_sum(_contents(batch))) % 2**64
        if self.read[0] == self.saved[0]:
            self._check_documents()
        return self.read[0] > self.saved[0]

    def _check_documents(self) -> None:
        """ValueError if the documents that were read are not those in the sums."""
        if self.read != self.saved:
            raise ValueError(
                f"the checkpoint {self.path} belongs to a measurement of other documents, or of these in another "
                "order, of other sources or with other words: choose another checkpoint, or delete this one"
            )

    def save_if_due(self, sums: Mapping[str, Sum], progress: Progress) -> None:
        """Saves if the last save is long enough ago."""
        if monotonic() - self.saved_at >= self.seconds:
            self._try_to_save(sums, progress)
            self.saved_at = monotonic()

    def finish(self, sums: Mapping[str, Sum], progress: Progress) -> None:
        """Saves at the end of the documents; ValueError if there were more of them in the sums."""
        if self.read[0] < self.saved[0]:
            self._check_documents()
        self.finished = True
        self._try_to_save(sums, progress)

    def _try_to_save(self, sums: Mapping[str, Sum], progress: Progress) -> None:
        """Saves; a disk that is full costs a warning, because the measurement itself needs none."""
        try:
            self._save(sums, progress)
        except OSError as error:
            warn(f"going on, though the checkpoint {self.path} was not saved: {error}", stacklevel=2)

    def _save(self, sums: Mapping[str, Sum], progress: Progress) -> None:
        arrays, folded = to_arrays(sums)
        content = {
            "facts": self.facts,
            "read": self.read,
            "finished": self.finished,
            "folded": folded,
            "progress": progress.content(),
        }
        storage.save(self.place, _KIND, content, arrays, overwrite=True)


def how_read(reading: Reading, processes: Processes) -> dict[str, Any]:
    """What a report says of how its documents were read, as it is known before they are."""
    return {
        "groups": reading.facts["groups"], "max_length": reading.max_length, "processes": processes.size
    }  # fmt: skip


def about_documents(sums: Mapping[str, Sum], progress: Progress, parts: Parts) -> dict[str, Any]:
    """What a report says of its documents: what was read and left out, how many sources, and "read" of its parts."""
    by_source = sums["by_source"]
    assert isinstance(by_source, SourceSums)
    return {**progress.record(), **by_source.record, **parts["read"]}


def _described(documents: Any) -> dict[str, Any] | None:
    """What documents say of themselves before they are read, and a hash of them where it can be known."""
    # A stream of the hub knows its commit once it was asked who it is.
    identity = documents.identity() if isinstance(documents, DocumentStream) else None
    described = getattr(documents, "provenance", None)
    if not isinstance(described, Mapping):
        return None
    return {name: value for name, value in described.items() if name != "read"} | {"identity": identity}


def _flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Facts within facts, under dotted names."""
    flat: dict[str, Any] = {}
    for name, value in facts.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _both(saved: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """What differs there and here, where that can be said in a few letters."""
    pairs = {name: (saved.get(name), facts.get(name)) for name in sorted({*saved, *facts})}
    said = [
        f"{name} {there!r} there, {here!r} here"
        for name, (there, here) in pairs.items()
        if there != here and max(len(repr(there)), len(repr(here))) <= _SHORT
    ]
    return f" ({'; '.join(said)})" if said else ""


def _contents(batch: TokenBatch) -> Int64[Tensor, " batch"]:
    """Hashes of all that the documents of a batch hold: ids, and words and sources where they are known."""
    named = ~batch.without_words | (batch.sources != batch.keys)
    contents = batch.keys.clone()
    for row in named.nonzero().flatten().tolist():
        real = batch.mask[row]
        of_tokens = batch.word_index[row, real], batch.special[row, real]
        parts = batch.keys[row], batch.sources[row], *of_tokens
        contents[row] = content_hash(b"".join(part.numpy().tobytes() for part in parts))
    return contents


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
