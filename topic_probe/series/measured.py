"""What is measured at every step, and the report of all steps: the same for trainings under way and for checkpoints."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
from jaxtyping import Float64, Int64

from topic_probe.contrast import Contrast
from topic_probe.lens.opening import open_model
from topic_probe.measure.attention import measure_attention
from topic_probe.measure.embeddings import measure_embeddings
from topic_probe.options import check_value, refuse_unknown
from topic_probe.report import Report, provenance
from topic_probe.text.documents import can_be_read_again
from topic_probe.topics import Topics
from topic_probe.uncertainty import with_interval

if TYPE_CHECKING:
    import pandas as pd

Measured = Literal["embeddings", "attention", "states"]
Number = Literal["effect_size", "ratio", "topic_ratio", "difference"]

# What one run over documents has and a series cannot give to each of its steps.
_OF_ONE_RUN = {
    "twins", "accumulators", "checkpoint", "checkpoint_every", "progress", "distributed", "patience", "shard", "sums",
}  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class SeriesReport(Report, kind="series"):
    """One measurement at many steps of a training.

    Attributes:
        steps: the steps.
        reports: what was measured at each, "attention" and "embeddings" (without matrices); nothing where it could not
            be measured.
        reasons: why nothing was; empty where it was.
        weights: SHA-256 of the model that was measured at each step.
        measuring: seconds that each measurement took.
        between: seconds since the one before, or since the training was begun or taken up; NaN where nothing was
            trained.
        provenance: topics, what was measured with which options, and versions.
    """

    figure: ClassVar[str] = "series:series_curves"
    steps: Int64[np.ndarray, " step"]
    reports: tuple[Mapping[str, Report], ...]
    reasons: tuple[str, ...]
    weights: tuple[str, ...]
    measuring: Float64[np.ndarray, " step"]
    between: Float64[np.ndarray, " step"]
    provenance: Mapping[str, Any]

    @classmethod
    def joined(cls, parts: Sequence["SeriesReport"]) -> "SeriesReport":
        """The report of all steps of parts, in their order."""
        order = sorted(parts, key=lambda part: int(part.steps[0]))
        found: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in order]) for name in _ARRAYS
        }
        found |= {name: tuple(one for part in order for one in getattr(part, name)) for name in _LISTS}
        return cls(**found, provenance=order[0].provenance)

    @property
    def measured(self) -> tuple[str, ...]:
        """What was measured: "embeddings", "attention", "states"."""
        return tuple(self.provenance["options"]["measure"])

    @property
    def share(self) -> float:
        """How much of the time of the training measuring has added; NaN where nothing was trained."""
        trained = self.between[np.isfinite(self.between)]
        return float(self.measuring.sum() / trained.sum()) if trained.sum() > 0 else float("nan")

    def contrasts(self, by: Literal["step", "layer", "head"] = "step") -> dict[str, list[Contrast | None]]:
        """What is followed by its name, with the contrast of every step; None where nothing was measured.

        Args:
            by: "step" has one of each that was measured: cosines of embeddings, cosines of states of the last layer,
                attention of all heads; "layer" and "head" have those of each layer and head.
        """
        every = [_contrasts(reports, self.measured, by) for reports in self.reports]
        names = dict.fromkeys(name for one in every for name in one)
        return {name: [one.get(name) for one in every] for name in names}

    def curve(
        self, name: str, number: Number = "effect_size", *, by: Literal["step", "layer", "head"] = "step"
    ) -> Float64[np.ndarray, "step 3"]:
        """A number at every step, with the ends of its interval; NaN where there is none.

        Args:
            name: what is followed, as `contrasts` calls it.
            number: which number of it. Only the effect size and the statistic of the contrast have intervals.
            by: as in `contrasts`.
        """
        check_value("number", number, Number)
        refuse_unknown("curve", [name], known := self.contrasts(by))
        return np.array([_number(contrast, number) for contrast in known[name]]).reshape(-1, 3)

    def to_dataframe(self, by: Literal["step", "layer", "head"] = "step") -> "pd.DataFrame":
        """A row for every step and thing that was measured; by "layer" or "head" for each of these."""
        import pandas as pd

        if by not in ("step", "layer", "head"):
            raise ValueError(f"by must be 'step', 'layer' or 'head', got {by!r}")
        rows = [
            {"step": step, "measured": name, **({} if contrast is None else contrast.row())}
            for name, contrasts in self.contrasts(by).items()
            for step, contrast in zip(self.steps.tolist(), contrasts, strict=True)
        ]
        return pd.DataFrame(rows, columns=None if rows else ["step", "measured"])

    def _tables(self) -> "dict[str, pd.DataFrame]":
        """A row for every step: effect sizes are on one scale, whatever was measured."""
        import pandas as pd

        curves = {name: self.curve(name) for name in self.contrasts()}
        shown = {
            name: ["NaN" if np.isnan(row[0]) else with_interval(row[0], row[1:]) for row in curve]
            for name, curve in curves.items()
        }
        return {f"{type(self).__name__}, effect sizes": pd.DataFrame({"step": self.steps, **shown})}

    def _notes(self) -> list[str]:
        missing = [
            f"step {step}: {why}" for step, why in zip(self.steps.tolist(), self.reasons, strict=True) if why
        ]
        if np.isnan(self.share):
            return missing
        n, seconds = len(self.steps), self.measuring.sum()
        return [
            f"{n} measurements took {seconds:.3g} s, {self.share:.1%} of the time of the training",
            *missing,
        ]


_LISTS = ("reports", "reasons", "weights")
_ARRAYS = ("steps", "measuring", "between")


def _contrasts(reports: Mapping[str, Any], measured: Sequence[str], by: str) -> dict[str, Contrast]:
    """What is followed of one step, by name."""
    found: dict[str, Contrast] = {}
    words, attention = reports.get("embeddings"), reports.get("attention")
    if words is not None and "embeddings" in measured and by == "step":
        found["embeddings"] = words.cosine
    if words is not None and "states" in measured and by != "head":
        layers = words.layers["cosine"]
        if by == "step":
            found[f"states of layer {len(layers) - 1}"] = layers[len(layers) - 1]
        else:
            found |= {f"states of layer {number}": layers[number] for number in range(len(layers))}
    if attention is not None:
        if by == "step":
            return found | {"attention": attention.overall}
        cells = attention.layers if by == "layer" else attention.heads
        found |= {_cell(cells, number): cells[number] for number in range(len(cells))}
    return found


def _cell(cells: Contrast, number: int) -> str:
    """What a layer or head is called: "attention of layer 3", "L3H7", with its stack where there are several."""
    index: Any = cells.index
    stack, layer = index["stack"][number], index["layer"][number]
    name = f"L{layer}H{index['head'][number]}" if "head" in index else f"attention of layer {layer}"
    return name if len(set(index["stack"])) == 1 else f"{stack} {name}"


def _number(contrast: Contrast | None, number: Number) -> list[float]:
    if contrast is None:
        return [np.nan] * 3
    return [float(getattr(contrast, number)), *contrast.interval_of(number).tolist()]


@dataclass(frozen=True)
class Plan:
    """What is measured at every step, always of the same documents, permutations and draws.

    Attributes:
        topics: which vocabulary entries belong to which topic.
        documents: what is read; None where only embeddings are measured.
        measure: "embeddings", "attention", "states".
        attention: options of `measure_attention`.
        embeddings: options of `measure_embeddings`.
    """

    topics: Topics
    documents: Any
    measure: Sequence[str]
    attention: Mapping[str, Any]
    embeddings: Mapping[str, Any]

    def __post_init__(self) -> None:
        for name in self.measure:
            check_value("measure", name, Measured)
        if not self.measure:
            raise ValueError(f"measure must name at least one of {', '.join(get_args(Measured))}, got none")
        needing = [name for name in self.measure if name != "embeddings"]
        if needing and self.documents is None:
            raise ValueError(f"{' and '.join(needing)} are measured in documents: pass these")
        if not can_be_read_again(self.documents):
            raise ValueError(
                "every step reads the documents again, and these can be read only once: pass a list, or what "
                "Corpus.documents gives"
            )
        for name, function, given in (
            ("attention", measure_attention, self.attention),
            ("embeddings", measure_embeddings, self.embeddings),
        ):
            known = inspect.signature(function).parameters.keys() - {"model", "topics", "documents"}
            refuse_unknown(f"{name}=", given, sorted(known - _OF_ONE_RUN))

    @property
    def facts(self) -> dict[str, Any]:
        """By what the same plan is known again."""
        options = {"measure": list(self.measure), "attention": self.attention, "embeddings": self.embeddings}
        return provenance(self.topics, options=options)

    def at(self, step: int, model: Any, tokenizer: Any, host: Any, *, weights: str) -> SeriesReport:
        """The report of one step.

        Raises:
            KeyboardInterrupt: where measuring was interrupted: half of the documents are no point of a curve.
        """
        start = perf_counter()
        reports = self._reports(open_model(model, tokenizer=tokenizer, host=host))
        seconds = np.array([perf_counter() - start])
        return SeriesReport(
            np.array([step]), (reports,), ("",), (weights,), seconds, np.array([np.nan]), self.facts
        )

    def nothing(self, step: int, why: str, *, weights: str) -> SeriesReport:
        """The report of a step at which nothing could be measured."""
        nan = np.array([np.nan])
        return SeriesReport(np.array([step]), ({},), (why,), (weights,), np.zeros(1), nan, self.facts)

    def _reports(self, model: Any) -> dict[str, Report]:
        reports: dict[str, Report] = {}
        if {"embeddings", "states"} & {*self.measure}:
            documents = self.documents if "states" in self.measure else None
            words = measure_embeddings(model, self.topics, documents, progress=False, **self.embeddings)
            _check_whole({} if documents is None else words.provenance["documents"])
            # Thousands of numbers of every step that no curve has.
            reports["embeddings"] = replace(words, matrices=None)
        if "attention" in self.measure:
            heads = measure_attention(model, self.topics, self.documents, progress=False, **self.attention)
            _check_whole(heads.provenance["options"])
            reports["attention"] = heads
        return reports


def _check_whole(read: Mapping[str, Any]) -> None:
    if read.get("stopped") is not None:
        raise KeyboardInterrupt(read["stopped"])
