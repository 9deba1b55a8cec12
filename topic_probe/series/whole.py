"""One measurement at every checkpoint of a series, one model in memory at a time."""

import gc
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from topic_probe import storage
from topic_probe.measure.options import Intervals, Permutations, Reading
from topic_probe.measure.parts import Worker, facts_of_documents
from topic_probe.options import check_whole, progress_bar, shares
from topic_probe.series.check import CheckpointReport, check_checkpoints
from topic_probe.series.checkpoints import Checkpoint, Checkpoints
from topic_probe.series.measured import Plan, SeriesReport
from topic_probe.text.corpus import DocumentStream
from topic_probe.text.documents import hash_of, read_documents
from topic_probe.text.same_texts import Level
from topic_probe.topics import Topics


@shares
def measure_series(
    series: Any,
    topics: Topics,
    documents: Any = None,
    *,
    measure: Collection[str] = ("embeddings", "attention", "states"),
    folder: str | os.PathLike[str] | None = None,
    part: Sequence[int | Literal["env"]] | Literal["env"] | None = None,
    checked: Any = None,
    level: Level = "token",
    center: bool = False,
    opening: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    reading: Reading,
    intervals: Intervals,
    permutations: Permutations,
) -> SeriesReport | None:
    """The same measurement at every checkpoint of a training, or of several, and from which step on topics are learned.

    Checkpoints are opened one after the other, so memory is that of one model. All have the same documents,
    permutations and draws, and the numbers are those of `measure_embeddings` and `measure_attention` on each. Before
    that `check_checkpoints` reads their weights: what it flags is missing with its reason and never a point of a curve,
    and so is what cannot be measured.

    With ``folder`` every step is kept there as soon as it is measured: the same call takes them up after an
    interruption, and gives the report that it would have given.

    A part of a series is a checkpoint. Processes that know nothing of each other measure theirs into one ``folder``,
    each with its ``part``; then the same call without ``part`` takes all from there, without opening a model, and gives
    the bytes of a single process.

    Args:
        series: `Checkpoints`; or those of several trainings by their seeds.
        topics: which vocabulary entries belong to which topic, of the tokenizer that all checkpoints share.
        documents: what is read, as in `measure_attention`; it is read again at every step. None where only embeddings
            are measured.
        measure: "embeddings" (cosines of the table), "attention", "states" (cosines of the states of every layer).
        folder: where measurements are kept. It belongs to one series, and to these topics, documents and options.
        part: (i, n): measure every n-th checkpoint of all trainings, from the i-th on, counted from 0, and keep it in
            ``folder``; "env" takes i and n from the variables of torchrun or of a slurm array. What comes back is the
            report of these alone, None where there is none.
        checked: what `check_checkpoints` has found of these checkpoints (by seeds, where there are several trainings),
            so that weights are not read again, as every process would; None checks them.
        level: of attention, as in `measure_attention`.
        center: whether embeddings are centred, as in `measure_embeddings`.
        opening: further options of `open_model`, such as ``{"device": "cuda"}``.
        progress: whether to show a progress bar over checkpoints; by default in a terminal or a notebook.

    Raises:
        ValueError: for a folder of another series, other topics, documents or options; for a part without a folder;
            where nothing can be measured at any step.

    Example:
        >>> world = tp.World(n_topics=2, words_per_topic=8)
        >>> toy = tp.build_toy(tp.ToyConfig(world=world), seed=0)
        >>> config = tp.TrainConfig(steps=32, measure_every=4, optimizer="adam", learning_rate=0.03)
        >>> history = tp.train_toy(toy, config, measure=tp.toy_tensors)
        >>> series = tp.Checkpoints.from_history(history)
        >>> report = tp.measure_series(series, world.topics, measure=["embeddings"])
        >>> report.onsets()[["measured", "against"]].values.tolist()
        [['embeddings', 0.0]]
    """
    if part is not None and folder is None:
        raise ValueError("part= came without folder=, in which all processes keep what they measure")
    both = vars(reading) | vars(intervals)
    attention = {"level": level, **both, **vars(permutations)}
    plan = Plan(
        topics, documents, tuple(measure), attention, {"center": center, **both},
        also={"documents": _known_by(documents)},
    )  # fmt: skip
    trainings = _trainings(series)
    several = isinstance(series, Mapping)
    entries = [(seed, number) for seed, own in trainings.items() for number in range(len(own))]
    worker = Worker.of(part)
    entries = [entry for number, entry in enumerate(entries) if worker.does(number)]
    if not entries:
        return None
    rows = []
    with _frozen():
        certificates = _certificates(trainings, checked, progress)
        every = {} if folder is None else _places(Path(folder).expanduser(), trainings, several)
        # Of other parts nothing is needed, and it may be on its way to the disk.
        places = {own: place for own, place in every.items() if own in entries}
        kept = _kept(places, plan, certificates)
        for seed, number in progress_bar(entries, shown=progress, unit="checkpoint"):
            entry, found = trainings[seed][number], certificates[seed]
            weights, why = found.weights[number], found.reasons[number]
            if why:
                row = plan.nothing(entry.step, why, weights=weights)
            elif (seed, number) in kept:
                row = kept[seed, number]
            else:
                row = _measured(plan, entry, weights, opening or {})
                if places:
                    row.save(places[seed, number], overwrite=True)
            rows.append(replace(row, seeds=(seed,) if several else None))
    if part is None and not any(row.reports[0] for row in rows):
        raise ValueError(
            f"nothing could be measured at any step: step {rows[0].steps[0]}: {rows[0].reasons[0]}"
        )
    report = SeriesReport.joined(rows)
    if worker.n == 1:
        return report
    return replace(report, provenance={**report.provenance, "part": [worker.index, worker.n]})


@contextmanager
def _frozen() -> Iterator[None]:
    """What was there before any model need not be looked through after each of them."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _measured(plan: Plan, entry: Checkpoint, weights: str, opening: Mapping[str, Any]) -> SeriesReport:
    """The row of a checkpoint; without times, so that a run that was interrupted gives the same bytes."""
    model: Any = None
    try:
        model = entry.open(**opening)
        row = plan.at(entry.step, model, None, weights=weights)
        return replace(row, measuring=np.zeros(1))
    except ValueError as error:
        return plan.nothing(entry.step, str(error), weights=weights)
    finally:
        del model
        gc.collect()  # hooked models refer to themselves, and the next one is to have their room


def _trainings(series: Any) -> dict[int, Checkpoints]:
    """The checkpoints of each training by its seed.

    Raises:
        TypeError: for what are no checkpoints.
    """
    found = dict(series) if isinstance(series, Mapping) else {0: series}
    if not found:
        raise ValueError("a series needs the checkpoints of at least one training, got none")
    for seed, own in found.items():
        check_whole("seed of a training", seed, 0)
        if not isinstance(own, Checkpoints):
            raise TypeError(
                f"series must be Checkpoints, or {{seed: Checkpoints}}, got {own!r:.100}: make them with "
                "tp.Checkpoints.from_folders and its siblings"
            )
    return found


def _certificates(
    trainings: Mapping[int, Checkpoints], checked: Any, progress: bool | None
) -> dict[int, CheckpointReport]:
    """What is wrong with the checkpoints of each training."""
    if checked is None:
        return {seed: check_checkpoints(own, progress=progress) for seed, own in trainings.items()}
    given = dict(checked) if isinstance(checked, Mapping) else {0: checked}
    if len(trainings) == 1 and len(given) == 1:
        given = dict(zip(trainings, given.values(), strict=True))
    for seed, own in trainings.items():
        found = given.get(seed)
        if not isinstance(found, CheckpointReport):
            raise TypeError(
                f"checked= needs the report of check_checkpoints for every training, got {found!r:.80} of seed {seed}"
            )
        if found.steps.tolist() != own.steps or found.sources != tuple(map(str, own)):
            raise ValueError("checked= is of other checkpoints: pass what check_checkpoints says of these")
    return given


_REMEDY = "choose another folder=, or delete this one to start over"


def _places(folder: Path, trainings: Mapping[int, Checkpoints], several: bool) -> dict[tuple[int, int], Path]:
    """Where each checkpoint of each training is kept, by its seed and number.

    Raises:
        ValueError: where the folder holds other trainings.
    """
    names = {seed: f"seed {seed}" if several else "" for seed in trainings}
    pattern = "seed *" if several else "step *"
    for other in sorted(folder.glob("*")):
        if not (other.is_dir() and re.fullmatch(r"(seed|step) \d+", other.name)):
            continue
        if not other.match(pattern) or (several and other.name not in names.values()):
            raise ValueError(f"{folder} holds {other.name!r} of another series: {_REMEDY}")
    return {
        (seed, number): folder / names[seed] / f"step {step}"
        for seed, own in trainings.items()
        for number, step in enumerate(own.steps)
    }


def _kept(
    places: Mapping[tuple[int, int], Path], plan: Plan, certificates: Mapping[int, CheckpointReport]
) -> dict[tuple[int, int], SeriesReport]:
    """What was measured before of these checkpoints.

    Raises:
        ValueError: where it is of another series, other topics, documents or options.
    """
    found = {}
    for (seed, number), place in places.items():
        if storage.kind_of(place) is None:  # or a save that was killed before it was whole
            continue
        report = plan.kept(place)
        if report.weights != (certificates[seed].weights[number],):
            raise ValueError(f"{place} was measured with other weights, of another series: {_REMEDY}")
        found[seed, number] = report
    return found


def _known_by(documents: Any) -> Any:
    """What tells documents from others: the texts that they are made of, or themselves."""
    if documents is None:
        return None
    if isinstance(documents, DocumentStream):
        return {"texts": documents.corpus.identity(), **facts_of_documents(documents)}
    return hash_of(document.content for document in read_documents(documents))
