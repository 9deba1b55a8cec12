"""What is measured at every step, the report of all steps, and the loop over checkpoints."""

import gc
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn
from transformers import TrainerCallback

from topic_probe import storage
from topic_probe.contrast import Contrast, with_interval
from topic_probe.estimate import split_halves
from topic_probe.lens.opening import open_model
from topic_probe.lens.running import generators_as_they_were
from topic_probe.lens.weights import word_embeddings
from topic_probe.measure.attention import AttentionReport, measure_attention
from topic_probe.measure.embeddings import measure_embeddings
from topic_probe.measure.options import Reading, Statistics
from topic_probe.measure.parts import Worker, facts_of_documents
from topic_probe.measure.words import SCORES, LabelledWords, cosines_of_words, labelled_words
from topic_probe.options import check_value, check_whole, checked, progress_bar, shares
from topic_probe.report import Report, provenance
from topic_probe.series.checkpoints import Series, fingerprint, in_order, name_of, opened, what_is_wrong
from topic_probe.series.curves import IN_A_ROW, By, Chosen, Kept, Onsets, cell_names, change, curves_of
from topic_probe.sums import SourceSums, columns
from topic_probe.text.corpus import DocumentStream
from topic_probe.text.documents import check_read_again, hash_of, read_documents
from topic_probe.text.same_texts import Level
from topic_probe.topics import Topics

if TYPE_CHECKING:
    import pandas as pd

Measured = Literal["embeddings", "attention", "states"]
Number = Literal["effect_size", "ratio", "topic_ratio", "difference"]

# More sources than this share rows: what leaving out a row does says as much of so many.
MAX_SOURCES = 512


@dataclass(frozen=True, eq=False, repr=False)
class SeriesReport(Report, kind="series"):
    """One measurement at many steps of a training.

    What is told of onsets and of their order goes by effect sizes where nothing else is chosen, and ratios of attention
    by their logarithms. Bands are paired: what a source or word does to all steps drops out.

    Attributes:
        steps: of every measurement.
        reports: what was measured at each, "attention" and "embeddings" (without matrices); nothing where it could not
            be measured.
        reasons: why nothing was; empty where it was.
        models: by what the model of each step is known: checksums of its weights and tensors, where it is from.
        sums: what pairs each with others beside its reports: sums of states by source, of embeddings by word.
        provenance: topics, what was measured with which options, and versions.
    """

    steps: Int64[np.ndarray, " step"]
    reports: tuple[Mapping[str, Report], ...]
    reasons: tuple[str, ...]
    models: tuple[Mapping[str, Any], ...]
    sums: tuple[Kept, ...]
    provenance: Mapping[str, Any]

    @classmethod
    def joined(cls, parts: Sequence["SeriesReport"]) -> "SeriesReport":
        """The report of all steps of parts, in their order."""
        order = sorted(parts, key=lambda part: int(part.steps[0]))
        rows: dict[str, Any] = {
            name: tuple(one for part in order for one in getattr(part, name))
            for name in ("reports", "reasons", "models", "sums")
        }
        return cls(np.concatenate([part.steps for part in order]), **rows, provenance=order[0].provenance)

    def contrasts(self, by: By = "step") -> dict[str, list[Contrast | None]]:
        """What is followed by its name, with the contrast of every step; None where nothing was measured.

        Args:
            by: "step" has one of each that was measured: cosines of embeddings, cosines of states of the last layer,
                attention of all heads; "layer" and "head" have those of each layer and head.
        """
        check_value("by", by, By)
        every = [_contrasts(reports, self.provenance["options"]["measure"], by) for reports in self.reports]
        names = dict.fromkeys(name for one in every for name in one)
        return {name: [one.get(name) for one in every] for name in names}

    def curve(self, name: str, number: Number = "effect_size") -> Float64[np.ndarray, "step 3"]:
        """A number of one of `contrasts` at every step, with the ends of its interval; NaN where there is none."""
        table = self.to_dataframe()
        columns = [check_value("number", number, Number), f"{number}_low", f"{number}_high"]
        return table[table["measured"] == name].reindex(columns=columns).to_numpy(float)

    def to_dataframe(self, by: By = "step") -> "pd.DataFrame":
        """A row for every step and thing that was measured; by "layer" or "head" for each of these."""
        import pandas as pd

        rows = [
            {"step": step, "measured": name, **({} if contrast is None else contrast.row())}
            for name, contrasts in self.contrasts(by).items()
            for step, contrast in zip(self.steps.tolist(), contrasts, strict=True)
        ]
        return pd.DataFrame(rows, columns=None if rows else ["step", "measured"])

    @property
    def rows(self) -> Sequence[Kept]:
        """What curves are made of: sums by source and by word of every step."""
        every = [dict(own) for own in self.sums]
        for own, reports in zip(every, self.reports, strict=True):
            if isinstance(heads := reports.get("attention"), AttentionReport):
                own["attention"] = kept_of_sources(heads.by_source, heads.heads.index, slice(None))
        return every

    def onsets(
        self, by: By = "step", *, statistic: Chosen = "effect_size", confidence: float = 0.95, seed: int = 0
    ) -> Onsets:
        """From which step on each curve is told from its untrained value; ``order()`` and ``bands()`` of the answer.

        An onset is the first step from which a band that holds the whole of a curve of value − untrained value excludes
        0 at three measured checkpoints in a row, on one side of it. Untrained is step 0, and where a series has none
        its first checkpoint: what was learned before that is not seen. Bands are those of `Onsets`; they say what other
        sources (words, for embeddings) would have changed, and nothing about another training. Curves with less doubt
        are told from 0 earlier.

        Args:
            by: "step" has a curve of each that was measured, "layer" and "head" one of each layer or head.
            statistic: what is followed.
            confidence: at most what is left of it is the share of false onsets among those of a table.
            seed: of draws.
        """
        check_value("by", by, By)
        curves = curves_of(self.steps.tolist(), self.rows, by, check_value("statistic", statistic, Chosen))
        return Onsets([change(curve, int(self.steps[0])) for curve in curves], confidence, seed)

    def _tables(self) -> "dict[str, pd.DataFrame]":
        """A row for every step: effect sizes are on one scale, whatever was measured; then onsets."""
        import pandas as pd

        shown = {
            name: ["NaN" if np.isnan(row[0]) else with_interval(row[0], row[1:]) for row in self.curve(name)]
            for name in self.contrasts()
        }
        tables = {f"{type(self).__name__}, effect sizes": pd.DataFrame({"step": self.steps, **shown})}
        if len(self.steps) > IN_A_ROW and shown:
            onsets = self.onsets().to_dataframe().drop(columns="reason")
            tables["from which step on (onsets of effect sizes)"] = onsets
        return tables

    def _notes(self) -> list[str]:
        notes = [f"step {step}: {why}" for step, why in zip(self.steps, self.reasons, strict=True) if why]
        if len(self.steps) <= IN_A_ROW:
            return notes
        notes += [f"{one.name}: {one.reason}" for one in self.onsets().changes if one.reason]
        return [
            *notes,
            "bands of onsets include other texts and words; not how another training would have gone",
        ]


def _contrasts(reports: Mapping[str, Any], measured: Sequence[str], by: str) -> dict[str, Contrast]:
    """What is followed of one step, by name."""
    found: dict[str, Contrast] = {}
    words, attention = reports.get("embeddings"), reports.get("attention")
    if words is not None and "embeddings" in measured and by == "step":
        found["embeddings"] = words.cosine
    if words is not None and "states" in measured and by != "head":
        layers = words.layers["cosine"]
        shown = range(len(layers)) if by == "layer" else [len(layers) - 1]
        found |= {f"states of layer {layer}": layers[layer] for layer in shown}
    if attention is not None and by == "step":
        found["attention"] = attention.overall
    elif attention is not None:
        cells = attention.layers if by == "layer" else attention.heads
        found |= {name: cells[i] for i, name in enumerate(cell_names(cells.index or {}))}
    return found


# --- measuring ----------------------------------------------------------------------------------------


class TopicProbe(TrainerCallback):  # type: ignore[misc]
    """Measures a model while it is trained, at log-spaced steps, and reports all of them.

    As a callback of transformers' Trainer, ``Trainer(..., callbacks=[probe])``, or called as ``probe(step, model)`` by
    any other loop, after every step or as often as it likes. Step t is the state after t updates. Every step has the
    same documents, permutations and draws, and the numbers are those of `measure_attention` and `measure_embeddings`
    on the checkpoint of that step. The training goes on as if nothing had been measured: weights, gradients, modes,
    hooks and global generators are as they were.

    A training that is resumed finds the steps before in its folder. What cannot be measured at a step (NaN in
    attention, after a divergence) is missing with its reason, and the training goes on; where nothing could be measured
    yet, that is an error.

    Args:
        topics: which vocabulary entries belong to which topic.
        documents: what is read, as in `measure_attention`; it is read again at every step. None where only embeddings
            are measured.
        measure: "embeddings" (cosines of the table), "attention", "states" (cosines of the states of every layer).
        every: measure at every step that it divides. With neither this nor ``at``: at 0, 1, 2, 4, 8 and so on. The last
            step of a Trainer is measured in any case.
        at: steps to measure at.
        model: which part of the model that is trained is measured, a dotted name: "generator" and "discriminator" of an
            ELECTRA, each with a probe of its own.
        tokenizer: the model's tokenizer; a Trainer's own (``processing_class``) where it is left out.
        folder: where steps are kept; with a Trainer by default "topic_probe" in its output folder.
        attention: further options of `measure_attention`, such as ``{"n_permutations": 0}``.
        embeddings: further options of `measure_embeddings`.

    Example:
        >>> world = tp.World(n_topics=2, words_per_topic=4)
        >>> toy = tp.build_toy(tp.ToyConfig(world=world), seed=0)
        >>> probe = tp.TopicProbe(world.topics, measure=["embeddings"], every=2)
        >>> _ = tp.train_toy(toy, tp.TrainConfig(steps=4, measure_every=1), measure=probe)
        >>> probe.report().steps.tolist()
        [0, 2, 4]
    """

    @checked
    def __init__(
        self,
        topics: Topics,
        documents: Any = None,
        *,
        measure: Collection[str] = ("embeddings", "attention", "states"),
        every: int | None = None,
        at: Collection[int] | None = None,
        model: str | None = None,
        tokenizer: Any = None,
        folder: str | os.PathLike[str] | None = None,
        attention: Mapping[str, Any] | None = None,
        embeddings: Mapping[str, Any] | None = None,
    ) -> None:
        for name in measure:
            check_value("measure", name, Measured)
        if {*measure} - {"embeddings"} and documents is None:
            raise ValueError(
                "attention and states are measured in documents: pass these, or measure=['embeddings']"
            )
        check_read_again(documents, "every step reads the documents")
        self.every = None if every is None else check_whole("every", every)
        self.topics, self.documents, self.measure, self.at = topics, documents, measure, at
        self.part, self.tokenizer = model, tokenizer
        self.folder = None if folder is None else Path(folder).expanduser()
        self.attention, self.embeddings = dict(attention or {}), dict(embeddings or {})
        self.rows: dict[int, SeriesReport] = {}
        self._begun = False

    def is_due(self, step: int) -> bool:
        """Whether a step is to be measured."""
        if self.every is None and self.at is None:
            return step & (step - 1) == 0
        return (self.every is not None and step % self.every == 0) or step in (self.at or ())

    def __call__(self, step: int, model: nn.Module) -> dict[str, float]:
        """Measure a model if the step is due: effect sizes by name, as a loop may want to log them."""
        self._begin(check_whole("step", step, 0))
        if not self.is_due(step):
            return {}
        self._measure(step, model)
        curves = self.rows[step].contrasts()
        return {name: float("nan") if c is None else float(c.effect_size) for name, (c,) in curves.items()}

    def report(self) -> SeriesReport:
        """What was measured until now; ValueError where nothing was."""
        if not self.rows:
            raise ValueError(
                "nothing has been measured: train with this callback, or call it as probe(step, model)"
            )
        return SeriesReport.joined(list(self.rows.values()))

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Take up what is kept, and measure the state that training begins with."""
        if self.folder is None:
            self.folder = Path(args.output_dir) / f"topic_probe {self.part or ''}".strip()
        self._begun = False
        self._of_trainer(state, given, self.is_due(state.global_step))

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Measure a step that is due, or the last one."""
        last = control.should_training_stop or state.global_step == state.max_steps
        self._of_trainer(state, given, last or self.is_due(state.global_step))

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Measure the last step where that has not been done; the best model, which may be there now, is of another."""
        self._of_trainer(state, given, due=not args.load_best_model_at_end)

    def _of_trainer(self, state: Any, given: Mapping[str, Any], due: bool) -> None:
        if not state.is_world_process_zero:
            return
        self._begin(state.global_step)
        self.tokenizer = self.tokenizer or given.get("processing_class")
        if due:
            self._measure(state.global_step, given["model"])

    def _begin(self, step: int) -> None:
        """At the first step that is seen: what is kept of those before belongs to this training."""
        if not self._begun:
            places = self.folder.glob("step *") if self.folder else ()
            kept = {number: self.kept(number) for number in (int(place.name.split()[1]) for place in places)}
            self.rows = {n: row for n, row in (self.rows | kept).items() if row is not None and n < step}
        self._begun = True

    def _measure(self, step: int, model: nn.Module) -> None:
        if step in self.rows:
            return
        try:
            model = model.get_submodule(self.part or "")
        except AttributeError as error:
            raise ValueError(f"model={self.part!r} is no part of {type(model).__name__}: {error}") from error
        with generators_as_they_were():
            row = self.row(step, model)
        if row.reasons[0] and not any(one.reports[0] for one in self.rows.values()):
            raise ValueError(row.reasons[0])
        self.rows[step] = row
        if self.folder is not None:
            row.save(self.folder / f"step {step}", overwrite=True)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """By what the same measurement is known again."""
        options = {name: getattr(self, name) for name in ("measure", "attention", "embeddings")}
        return provenance(self.topics, options={**options, "documents": _known_by(self.documents)})

    def kept(self, step: int) -> SeriesReport | None:
        """What the folder has of a step; ValueError where it was measured otherwise."""
        if self.folder is None or storage.kind_of(place := self.folder / f"step {step}") is None:
            return None
        report = SeriesReport.load(place)
        for what in ("topics", "options"):
            if report.provenance[what] != self.facts[what]:
                raise ValueError(f"{place} was measured with other {what}: {REMEDY}")
        return report

    def row(self, step: int, model: Any, **known: Any) -> SeriesReport:
        """The report of a step, with the reason where a model cannot be measured."""
        try:
            reports, sums = self._measured(open_model(model, tokenizer=self.tokenizer))
        except ValueError as error:
            return nothing(step, str(error), self.facts, **known)
        return SeriesReport(np.array([step]), (reports,), ("",), (known,), (sums,), self.facts)

    def _measured(self, model: Any) -> tuple[dict[str, Report], Kept]:
        """The reports of a model, and the sums behind them that other steps are paired with."""
        reports: dict[str, Report] = {}
        sums: dict[str, Mapping[str, Any]] = {}
        if {"embeddings", "states"} & {*self.measure}:
            documents = self.documents if "states" in self.measure else None
            words = measure_embeddings(model, self.topics, documents, progress=False, **self.embeddings)
            read = words.provenance.get("documents")
            _check_whole(read)
            # Thousands of numbers of every step that no curve has, and sums that are kept below.
            reports["embeddings"] = replace(words, matrices=None, sources=None)
            if "embeddings" in self.measure:
                sums["embeddings"] = kept_of_words(word_embeddings(model), self.topics, self.embeddings)
            if read is not None and words.layers is not None and words.sources is not None:
                states, folded = SourceSums(MAX_SOURCES), read["sources_in_blocks"]
                states.restore(words.sources["keys"].view(np.uint64), words.sources["rows"], folded=folded)
                cosines = slice(0, None, len(SCORES))
                sums["states"] = kept_of_sources(states, words.layers["cosine"].index, cosines)
        if "attention" in self.measure:
            heads = measure_attention(
                model, self.topics, self.documents, **{"progress": False, **self.attention}
            )
            _check_whole(heads.provenance["options"])
            reports["attention"] = heads
        return reports, sums


REMEDY = "choose another folder=, or delete this one to start over"


def nothing(step: int, why: str, facts: Mapping[str, Any], **known: Any) -> SeriesReport:
    """The report of a step at which nothing could be measured."""
    return SeriesReport(np.array([step]), ({},), (why,), (known,), ({},), facts)


def _check_whole(read: Any) -> None:
    """Half of the documents are no point of a curve."""
    if isinstance(read, Mapping) and read.get("stopped") is not None:
        raise KeyboardInterrupt(read["stopped"])


def kept_of_sources(sums: SourceSums, index: Any, cells: slice) -> dict[str, Any]:
    """Sums by source of some cells; numbers of pairs once where all cells have the same."""
    keys, rows = sums.rows()
    totals, counts, squares = columns(rows[:, cells])
    if len(counts) and (counts == counts[:, :1]).all():
        counts = counts[:, :1]
    return {
        "keys": keys.view(np.int64),
        "sums": totals,
        "counts": counts,
        "squares": squares,
        "index": dict(index),
    }


def kept_of_words(
    table: Float[Tensor, "vocabulary d_embed"], topics: Topics, options: Mapping[str, Any]
) -> dict[str, Any]:
    """What every word adds to the sums of cosines of a table, under its number among the words of the topics."""
    reading = {name: options[name] for name in ("center", "remove_components", "exclude") if name in options}
    words = labelled_words(table, topics, **reading)
    every = LabelledWords(topics, torch.arange(len(topics.words)))
    half = split_halves(every.strata, seed=options.get("seed", 0))
    form = np.zeros(words.n_forms, np.int64)
    form[words.form] = every.form[words.places]
    found = cosines_of_words(words, half[form])
    ends = found.ends._asdict()
    return {"form": form, "strata": every.strata[form], "squares": found.squares, **ends}


# --- every checkpoint of a series ---------------------------------------------------------------------


@shares
def measure_series(
    series: Series,
    topics: Topics,
    documents: Any = None,
    *,
    measure: Collection[str] = ("embeddings", "attention", "states"),
    folder: str | os.PathLike[str] | None = None,
    part: Sequence[int | Literal["env"]] | Literal["env"] | None = None,
    level: Level = "token",
    center: bool = False,
    opening: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    reading: Reading,
    statistics: Statistics,
) -> SeriesReport | None:
    """The same measurement at every checkpoint of a training, and from which step on topics are learned.

    Checkpoints are opened one after the other, so memory is that of one model. All have the same documents,
    permutations and draws, and the numbers are those of `measure_embeddings` and `measure_attention` on each. What
    `check_checkpoints` would flag is missing with its reason and never a point of a curve, and so is what cannot be
    opened or measured.

    With ``folder`` every step is kept there as soon as it is measured: the same call takes them up after an
    interruption. Processes that know nothing of each other measure their checkpoints into one ``folder``, each with its
    ``part``; then the same call without ``part`` takes all from there and gives the bytes of a single process.

    Args:
        series: step → what `open_model` takes, or (name, revision).
        topics: which vocabulary entries belong to which topic, of the tokenizer that all checkpoints share.
        documents: what is read, as in `TopicProbe`.
        measure: "embeddings", "attention", "states", as there.
        folder: where measurements are kept. It belongs to one series, and to these topics, documents and options.
        part: (i, n): measure every n-th checkpoint from the i-th on, counted from 0, and keep it in ``folder``; "env"
            takes i and n from the variables of torchrun or of a slurm array. What comes back is the report of these
            alone, None where there is none.
        level: of attention, as in `measure_attention`.
        center: whether embeddings are centred, as in `measure_embeddings`.
        opening: further options of `open_model`, such as ``{"device": "cuda"}``.
        progress: whether to show a progress bar over checkpoints; by default in a terminal or a notebook.

    Raises:
        ValueError: for a folder of another series, other topics, documents or options; for a part without a folder;
            where nothing can be measured at any step.

    Example:
        >>> world = tp.World(n_topics=2, words_per_topic=8)
        >>> models = {step: tp.build_toy(tp.ToyConfig(world=world), seed=step) for step in range(3)}
        >>> report = tp.measure_series(models, world.topics, measure=["embeddings"])
        >>> report.curve("embeddings").shape  # steps, and a number with the ends of its interval
        (3, 3)
    """
    if part is not None and folder is None:
        raise ValueError("part= came without folder=, in which all processes keep what they measure")
    sure = {"confidence": statistics.confidence, "seed": statistics.seed}
    probe = TopicProbe(
        topics,
        documents,
        measure=measure,
        folder=folder,
        attention={"level": level, **vars(reading), **vars(statistics)},
        embeddings={"center": center, **vars(reading), **sure},
    )
    worker, every = Worker.of(part), in_order(series)
    own = [step for i, step in enumerate(every) if worker.does(i)]
    rows = []
    for step in progress_bar(own, shown=progress, unit="checkpoint"):
        row = probe.kept(step)
        if row is None:
            row = _of_checkpoint(probe, step, every[step], opening or {})
        elif row.models[0]["source"] != name_of(every[step]):
            raise ValueError(f"step {step} in {folder} is of {row.models[0]['source']}: {REMEDY}")
        rows.append(row)
    if not rows:
        return None
    wrong = what_is_wrong(own, [row.models[0] for row in rows])
    judged = [
        nothing(step, why, probe.facts, **row.models[0]) if why else row
        for step, why, row in zip(own, wrong, rows, strict=True)
    ]
    if part is None and not any(row.reports[0] for row in judged):
        raise ValueError(f"nothing could be measured at any step: step {own[0]}: {judged[0].reasons[0]}")
    return SeriesReport.joined(judged)


def _of_checkpoint(probe: TopicProbe, step: int, source: Any, opening: Mapping[str, Any]) -> SeriesReport:
    """The row of a checkpoint, which the folder of the probe has from then on."""
    known = {"source": name_of(source), "broken": ""}
    try:
        model = opened(source, **opening)
        row = probe.row(step, model, **known | fingerprint(model))
    except Exception as error:  # of whatever package below
        known["broken"] = f"cannot be opened: {error}"
        row = nothing(step, known["broken"], probe.facts, **known)
    model = None
    gc.collect()  # hooked models refer to themselves, and the next one is to have their room
    if probe.folder is not None:
        row.save(probe.folder / f"step {step}")
    return row


def _known_by(documents: Any) -> Any:
    """What tells documents from others: the texts that they are made of, or themselves."""
    if documents is None:
        return None
    if isinstance(documents, DocumentStream):
        return {"texts": documents.corpus.identity(), **facts_of_documents(documents)}
    return hash_of(document.content for document in read_documents(documents))
