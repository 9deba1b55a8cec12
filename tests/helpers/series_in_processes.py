"""A series that two processes measure together: imported by a test, and run by torchrun, a program of the test's.

As a program it saves the report of every process in a folder, with the words of errors, for the test to compare.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import monotonic
from typing import Any
from unittest.mock import patch

import small_language
import torch

import topic_probe as tp
from topic_probe.series import whole
from topic_probe.series.checkpoints import Checkpoint
from topic_probe.series.measured import Plan, SeriesReport


class Documents(list[Any]):
    """Documents that can be read so often, and then not to their end."""

    def __init__(self, documents: Any, often: float = float("inf"), error: type[Exception] = OSError) -> None:
        super().__init__(documents)
        self.often, self.error = often, error

    def __iter__(self) -> Iterator[Any]:
        self.often -= 1
        for number, document in enumerate(super().__iter__()):
            if self.often < 0 and number == 8:
                raise self.error("the disk is gone")
            yield document


def texts() -> Documents:
    return Documents(tp.encode_texts(small_language.texts(12, 20, seed=5), small_language.tokenizer()))


def trainings(root: Path) -> dict[int, tp.Checkpoints]:
    return {seed: tp.Checkpoints.from_folders(root / f"training {seed}") for seed in (3, 8)}


def measured(series: Any, documents: Any = None, **more: Any) -> SeriesReport:
    """In double precision, in which processes agree with one to rounding."""
    named = {f"topic {topic}": small_language.words(topic) for topic in range(small_language.N_TOPICS)}
    topics = tp.Topics.from_word_lists(named, small_language.tokenizer())
    documents = texts() if documents is None else documents
    few = {"n_permutations": 3, "n_resamples": 20, "opening": {"dtype": torch.float64}}
    return tp.measure_series(series, topics, documents, **{**few, **more})


def failing(owner: Any, name: str, error: Exception, at: int | None = None) -> AbstractContextManager[Any]:
    """A method that fails, or does so at one step."""
    works = getattr(owner, name)

    def fails(self: Any, *args: Any, **named: Any) -> Any:
        if at in (None, getattr(self, "step", None)):
            raise error
        return works(self, *args, **named)

    return patch.object(owner, name, fails)


def in_each_process(root: Path, folder: Path) -> None:
    rank, series, told = int(os.environ["RANK"]), trainings(root), {}
    torch.set_num_threads(1)
    save, at, seen = SeriesReport.save, Plan.at, {"measured": [], "saved": []}

    def noted(plan: Plan, step: int, *args: Any, **named: Any) -> Any:
        seen["measured"].append(step)
        return at(plan, step, *args, **named)

    def saved(report: SeriesReport, place: Path, **named: Any) -> Path:
        seen["saved"].append(str(place.relative_to(folder)))
        return save(report, place, **named)

    def noting(**more: Any) -> dict[str, list[Any]]:
        for noted_so_far in seen.values():
            noted_so_far.clear()
        with patch.object(Plan, "at", noted), patch.object(SeriesReport, "save", saved):
            report = measured(distributed=True, folder=folder / "kept", **more)
        save(report, folder / f"report {rank}", overwrite=True)
        return {name: list(found) for name, found in seen.items()}

    told["begun"] = noting(series={**series, 3: series[3][:2]})
    told["whole"] = noting(series=series)
    one = {"series": series[3][:3], "distributed": True}
    gone, none = OSError("the disk is gone"), nullcontext()
    broken: dict[str, tuple[AbstractContextManager[Any], Callable[[], Any]]] = {
        "cannot open": (failing(Checkpoint, "open", gone, at=10) if rank else none, lambda: measured(**one)),
        "cannot read": (none, lambda: measured(**one, documents=Documents(texts(), 6 if rank else 99))),
        "cannot save": (
            none if rank else failing(SeriesReport, "save", gone),
            lambda: measured(**one, folder=folder / "full"),
        ),
        "cannot check": (
            none if rank else failing(whole, "check_checkpoints", gone),
            lambda: measured(**one),
        ),
        "other series": (none, lambda: measured(series[3][: 3 - rank], distributed=True)),
        "other folder": (none, lambda: measured(**{**one, "series": series}, folder=folder / f"kept{rank or ''}")),
        "no point": (
            failing(Checkpoint, "open", ValueError("no model"), at=10) if rank else none,
            lambda: measured(**one).reasons,
        ),
        "no point behind some documents": (
            none,
            lambda: measured(**one, documents=Documents(texts(), 6 if rank else 99, ValueError)).reasons,
        ),
    }  # fmt: skip
    for name, (how, measure) in broken.items():
        start = monotonic()
        with how:
            try:
                found = measure()
            except Exception as error:
                found = f"{type(error).__name__}: {error}"
        told[name] = found if isinstance(found, str | tuple) else "a report", monotonic() - start
    (folder / f"told {rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    in_each_process(*map(Path, sys.argv[1:]))
