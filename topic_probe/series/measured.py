"""What is measured at every step, and the report of all steps: the same for trainings under way and for checkpoints."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
from jaxtyping import Float64, Int64

from topic_probe.contrast import Contrast
from topic_probe.lens import capture
from topic_probe.lens.opening import open_model
from topic_probe.measure.accumulators import Relations
from topic_probe.measure.attention import measure_attention
from topic_probe.measure.embeddings import measure_embeddings
from topic_probe.measure.words import SCORES
from topic_probe.options import check_value, check_whole, refuse_unknown
from topic_probe.report import Report, provenance
from topic_probe.series.onsets import (
    IN_A_ROW,
    Change,
    Curve,
    Draws,
    Onsets,
    Order,
    change,
    difference,
    nothing,
    paired_difference,
)
from topic_probe.series.sums import (
    MAX_SOURCES,
    By,
    Chosen,
    Grid,
    Kept,
    cell_names,
    curves_of,
    kept_of_sources,
    kept_of_words,
)
from topic_probe.text.documents import can_be_read_again
from topic_probe.topics import Topics
from topic_probe.uncertainty import benjamini_hochberg, with_interval

if TYPE_CHECKING:
    import pandas as pd

Measured = Literal["embeddings", "attention", "states"]
Number = Literal["effect_size", "ratio", "topic_ratio", "difference"]

# What one run over documents has and a series cannot give to each of its steps.
_OF_ONE_RUN = {
    "accumulators", "progress", "folder", "part", "part_size",
}  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class SeriesReport(Report, kind="series"):
    """One measurement at many steps of a training, or of several trainings; each step of each is a row.

    What is told of onsets, of their order and of differences goes by effect sizes where nothing else is chosen, and
    ratios of attention by their logarithms. Intervals are paired: what a source or word does to all steps drops out.

    Attributes:
        steps: the step of every row.
        reports: what was measured at each, "attention" and "embeddings" (without matrices); nothing where it could not
            be measured.
        reasons: why nothing was; empty where it was.
        weights: SHA-256 of the model that was measured at each step.
        measuring: seconds that each measurement took.
        between: seconds since the one before, or since the training was begun or taken up; NaN where nothing was
            trained.
        provenance: topics, what was measured with which options, and versions.
        sums: of every row, what pairs it with others: sums by source and by word.
        seeds: of which training every row is, where there are several; otherwise None.
    """

    steps: Int64[np.ndarray, " step"]
    reports: tuple[Mapping[str, Report], ...]
    reasons: tuple[str, ...]
    weights: tuple[str, ...]
    measuring: Float64[np.ndarray, " step"]
    between: Float64[np.ndarray, " step"]
    provenance: Mapping[str, Any]
    sums: tuple[Kept, ...]
    seeds: tuple[int, ...] | None = None

    @classmethod
    def joined(cls, parts: Sequence["SeriesReport"]) -> "SeriesReport":
        """The report of all rows of parts, in the order of their trainings and steps."""
        order = sorted(parts, key=lambda part: ((part.seeds or (0,))[0], int(part.steps[0])))
        found: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in order]) for name in _ARRAYS
        }
        found |= {name: tuple(one for part in order for one in getattr(part, name)) for name in _LISTS}
        several = all(part.seeds is not None for part in order)
        found["seeds"] = tuple(seed for part in order for seed in part.seeds or ()) if several else None
        return cls(**found, provenance=order[0].provenance)

    @property
    def trainings(self) -> dict[int, "SeriesReport"]:
        """The report of each training by its seed; of a single one by 0."""
        seeds = np.array(self.seeds or [0] * len(self.steps))
        found = {}
        for seed in dict.fromkeys(seeds.tolist()):
            rows = np.flatnonzero(seeds == seed).tolist()
            own: dict[str, Any] = {name: getattr(self, name)[rows] for name in _ARRAYS}
            own |= {name: tuple(getattr(self, name)[row] for row in rows) for name in _LISTS}
            found[seed] = SeriesReport(**own, provenance=self.provenance)
        return found

    @property
    def measured(self) -> tuple[str, ...]:
        """What was measured: "embeddings", "attention", "states"."""
        return tuple(self.provenance["options"]["measure"])

    @property
    def share(self) -> float:
        """How much of the time of the training measuring has added; NaN where nothing was trained."""
        trained = self.between[np.isfinite(self.between)]
        return float(self.measuring.sum() / trained.sum()) if trained.sum() > 0 else float("nan")

    def contrasts(self, by: By = "step") -> dict[str, list[Contrast | None]]:
        """What is followed by its name, with the contrast of every row; None where nothing was measured.

        Args:
            by: "step" has one of each that was measured: cosines of embeddings, cosines of states of the last layer,
                attention of all heads; "layer" and "head" have those of each layer and head.
        """
        every = [_contrasts(reports, self.measured, by) for reports in self.reports]
        names = dict.fromkeys(name for one in every for name in one)
        return {name: [one.get(name) for one in every] for name in names}

    def curve(
        self, name: str, number: Number = "effect_size", *, by: By = "step"
    ) -> Float64[np.ndarray, "step 3"]:
        """A number at every step, with the ends of its interval; NaN where there is none.

        Of several trainings there is a row for each step of each: ``report.trainings[seed].curve(...)`` is that of one.

        Args:
            name: what is followed, as `contrasts` calls it.
            number: which number of it. Only the effect size and the statistic of the contrast have intervals.
            by: as in `contrasts`.
        """
        check_value("number", number, Number)
        refuse_unknown("curve", [name], known := self.contrasts(by))
        return np.array([_number(contrast, number) for contrast in known[name]]).reshape(-1, 3)

    def to_dataframe(self, by: By = "step") -> "pd.DataFrame":
        """A row for every step and thing that was measured; by "layer" or "head" for each of these."""
        import pandas as pd

        check_value("by", by, By)
        seeds = [{} if self.seeds is None else {"seed": seed} for seed in self.seeds or self.steps]
        rows = [
            {**seed, "step": step, "measured": name, **({} if contrast is None else contrast.row())}
            for name, contrasts in self.contrasts(by).items()
            for seed, step, contrast in zip(seeds, self.steps.tolist(), contrasts, strict=True)
        ]
        return pd.DataFrame(rows, columns=None if rows else ["step", "measured"])

    # --- from when on ---------------------------------------------------------------------------------

    def onsets(
        self, by: By = "step", *, statistic: Chosen = "effect_size", confidence: float = 0.95, seed: int = 0,
        beyond: "SeriesReport | None" = None,
    ) -> "pd.DataFrame":  # fmt: skip
        """From which step on each curve is told from its untrained value.

        An onset is the first step from which a band that holds the whole of a curve of value − untrained value excludes
        0 at three measured checkpoints in a row, on one side of it. Untrained is step 0, and where a series has none
        its first checkpoint: what was learned before that is not seen. ``p_value`` is the chance that such a band is
        left as far at three checkpoints in a row, ``q_value`` corrects it for the number of curves (Benjamini and
        Hochberg), and bands are as wide as goes with that: a curve is called where its band says so
        (`topic_probe.series.onsets`).

        Of one training the band says what other sources (words, for embeddings) would have changed, and nothing about
        another training. Of several there are rows for each, and one for their mean (seed "all"), whose band holds what
        other sources *and* other seeds would have changed. With two seeds their differences have one degree of freedom,
        so where seeds matter it is very wide.

        Curves with less doubt are told from 0 earlier; an order of onsets is one of what can be seen with these texts.

        Args:
            by: "step" has a curve of each that was measured, "layer" and "head" one of each layer or head.
            statistic: what is followed.
            confidence: at most what is left of it is the share of false onsets among those of a table.
            seed: of draws.
            beyond: the same measurement of a training in which topics cannot be learned, such as one on shuffled text:
                from when on a curve has come further than that one has by the same step, so that what has other
                reasons drops out (embeddings of words that are equally frequent come to resemble each other). It has
                the same steps and seeds.

        Returns:
            for every curve (and training) ``onset``, NaN where there is none; ``against``, the step of the untrained
            value; ``comes_first``, how likely it is the first of its table; and ``reason``, why nothing is known.
        """
        import pandas as pd

        tables = []
        for label, found in self._onsets(by, statistic, confidence, seed, beyond).items():
            steps = self._grid_steps
            columns = {
                "measured": [one.name for one in found.changes],
                **({} if self.seeds is None else {"seed": label}),
                "onset": [np.nan if place is None else float(steps[place]) for place in found.places],
                "p_value": found.p_values,
                "q_value": found.q_values,
                "comes_first": found.comes_first(),
                "against": [
                    np.nan if one.against < 0 else float(steps[one.against]) for one in found.changes
                ],
                "reason": [one.reason for one in found.changes],
            }
            tables.append(pd.DataFrame(columns))
        return pd.concat(tables, ignore_index=True)

    def order(
        self, by: By = "step", *, statistic: Chosen = "effect_size", confidence: float = 0.95, seed: int = 0,
        beyond: "SeriesReport | None" = None,
    ) -> "pd.DataFrame":  # fmt: skip
        """How likely each curve begins before each other one.

        Sources, words and, where there are several trainings, seeds are drawn for all curves at once, and the rule of
        `onsets` is applied to every draw: ``before`` is the share in which ``first`` begins before ``second``,
        ``together`` that at the same checkpoint, ``after`` and ``neither`` the rest. A curve that never begins is after
        all that do.

        Args:
            by: as in `onsets`, and so are the others.
            statistic: what is followed.
            confidence: of onsets.
            seed: of draws.
            beyond: as in `onsets`.
        """
        import pandas as pd

        rows = []
        for label, found in self._onsets(by, statistic, confidence, seed, beyond).items():
            if self.seeds is not None and label != "all":
                continue
            names = [one.name for one in found.changes]
            for a, b in combinations(range(len(names)), 2):
                rows.append({"first": names[a], "second": names[b], **found.order(a, b)._asdict()})
        return pd.DataFrame(rows, columns=["first", "second", *Order._fields])

    def bands(
        self, by: By = "step", *, statistic: Chosen = "effect_size", confidence: float = 0.95, seed: int = 0,
        beyond: "SeriesReport | None" = None,
    ) -> "pd.DataFrame":  # fmt: skip
        """Value − untrained value of every curve at every step, with the band that `onsets` goes by."""
        import pandas as pd

        rows = []
        for label, found in self._onsets(by, statistic, confidence, seed, beyond).items():
            seeds = {} if self.seeds is None else {"seed": label}
            for number, one in enumerate(found.changes):
                for place, value, (low, high) in zip(one.places, one.number, found.band(number), strict=True):
                    step = int(self._grid_steps[place])
                    rows.append(
                        {
                            "measured": one.name,
                            **seeds,
                            "step": step,
                            "change": value,
                            "low": low,
                            "high": high,
                        }
                    )
        columns = ["measured", *(() if self.seeds is None else ("seed",)), "step", "change", "low", "high"]
        return pd.DataFrame(rows, columns=columns)

    def difference(
        self,
        first: Any,
        second: Any,
        by: By = "step",
        *,
        statistic: Chosen = "effect_size",
        confidence: float = 0.95,
    ) -> "pd.DataFrame":
        """What a step has more than another one, with paired intervals.

        ``p_value`` is how likely so much would be, were there no difference; ``q_value`` that among all curves. Of
        several trainings there is a row for each, and one for their mean (seed "all"), whose interval includes how
        seeds vary.

        Args:
            first: the step that has more.
            second: the step that it is compared with.
            by: as in `onsets`.
            statistic: what is compared.
            confidence: what share of intervals is to hold the true difference.
        """
        import pandas as pd

        first, second = check_whole("first", first, 0), check_whole("second", second, 0)
        for step in (first, second):
            if step not in self._grid_steps:
                raise ValueError(f"there is no step {step}; there are {self._grid_steps.tolist()}")
        place, against = (self._grid_steps.tolist().index(step) for step in (first, second))
        tables = []
        for label, curves in self._curves(by, statistic, confidence).items():
            found = [change(curve, against, [place]) for curve in curves]
            numbers = [paired_difference(one, confidence) for one in found]
            columns = {
                "measured": [one.name for one in found],
                **({} if self.seeds is None else {"seed": label}),
                **dict(
                    zip(
                        ("difference", "low", "high", "p_value"),
                        map(list, zip(*numbers, strict=True)),
                        strict=True,
                    )
                ),
            }
            table = pd.DataFrame(columns)
            table["q_value"] = benjamini_hochberg(table["p_value"].to_numpy(float))
            table["reason"] = [one.reason for one in found]
            tables.append(table)
        return pd.concat(tables, ignore_index=True)

    @property
    def _grid_steps(self) -> Int64[np.ndarray, " step"]:
        """The steps of all trainings."""
        return np.unique(self.steps)

    def _curves(
        self, by: By, statistic: Chosen, confidence: float, beyond: "SeriesReport | None" = None
    ) -> "dict[Any, list[Curve]]":
        """All curves of each training, and of several together as "all"; how far they are beyond those of others."""
        check_value("by", by, By)
        check_value("statistic", statistic, Chosen)
        if not 0 < confidence < 1:
            raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
        both = self if beyond is None else self._beside(beyond)
        curves = both._curves_of(by, statistic, confidence)
        if beyond is not None:
            curves = [difference(curve) for curve in curves]
        if self.seeds is None:
            return {0: curves}
        labels = list(dict.fromkeys(self.seeds))
        return {seed: [curve.of(n) for curve in curves] for n, seed in enumerate(labels)} | {"all": curves}

    def _beside(self, other: "SeriesReport") -> "SeriesReport":
        """Our rows and those of another report, as twice as many trainings.

        Raises:
            TypeError: for what is no series.
            ValueError: for one of other steps, seeds, topics or options.
        """
        if not isinstance(other, SeriesReport):
            raise TypeError(f"beyond= takes the SeriesReport of another training, got {other!r:.80}")
        for what, one, its in (
            ("steps", self._grid_steps.tolist(), other._grid_steps.tolist()),
            ("seeds", sorted(set(self.seeds or ())), sorted(set(other.seeds or ()))),
            *(
                (part, self.provenance.get(part), other.provenance.get(part))
                for part in ("topics", "options")
            ),
        ):
            if one != its:
                raise ValueError(f"beyond= has other {what}: {its!r:.200} where this has {one!r:.200}")
        none = (0,) * len(self.steps)
        behind = 1 + max(self.seeds or none)
        theirs = tuple(behind + seed for seed in other.seeds or (0,) * len(other.steps))
        return SeriesReport.joined([replace(self, seeds=self.seeds or none), replace(other, seeds=theirs)])

    def _curves_of(self, by: By, statistic: Chosen, confidence: float) -> list[Curve]:
        known: dict[Any, list[Curve]] = self.__dict__.setdefault("_known_curves", {})
        if (key := (by, statistic, confidence)) not in known:
            known[key] = self._made_curves(by, statistic, confidence)
        return known[key]

    def _made_curves(self, by: By, statistic: Chosen, confidence: float) -> list[Curve]:
        steps, seeds = self._grid_steps.tolist(), self.seeds or (0,) * len(self.steps)
        labels = list(dict.fromkeys(seeds))
        places = [
            (labels.index(seed), steps.index(step))
            for seed, step in zip(seeds, self.steps.tolist(), strict=True)
        ]
        grid = Grid(places, len(labels), len(steps))
        return curves_of(self.sums, grid, by, statistic, confidence=confidence)

    def _onsets(
        self, by: By, statistic: Chosen, confidence: float, seed: int, beyond: "SeriesReport | None" = None
    ) -> "dict[Any, Onsets]":
        """Those of each training, and of several together as "all"."""
        known = self.__dict__.setdefault("_known_onsets", {})
        if (key := (by, statistic, confidence, seed, id(beyond))) not in known:
            draws = Draws(seed)
            found = {
                label: Onsets([self._since_untrained(curve) for curve in curves], draws, confidence)
                for label, curves in self._curves(by, statistic, confidence, beyond).items()
            }
            known[key] = found, beyond  # which stays, so that no other one gets its id
        return cast(dict[Any, Onsets], known[key][0])

    def _since_untrained(self, curve: Curve) -> Change:
        """How far a curve has come since it was untrained, where that can be judged."""
        known = np.flatnonzero(np.isfinite(curve.values).all(0)).tolist()
        if not known:
            return nothing(curve.name, -1, "nothing was measured")
        steps = self._grid_steps
        if steps[0] == 0 and known[0] != 0:
            return nothing(curve.name, -1, "there is no untrained value: step 0 could not be measured")
        found = change(curve, known[0], known[1:])
        if (n := len(found.places)) < IN_A_ROW and (not found.reason or len(known) == 1):
            later = (
                f"{n} checkpoint{'s' * (n != 1)} after step {steps[known[0]]} measured, {IN_A_ROW} are needed"
            )
            return nothing(curve.name, known[0], later)
        return found

    def _tables(self) -> "dict[str, pd.DataFrame]":
        """A row for every step: effect sizes are on one scale, whatever was measured; then onsets."""
        import pandas as pd

        curves = {name: self.curve(name) for name in self.contrasts()}
        shown = {
            name: ["NaN" if np.isnan(row[0]) else with_interval(row[0], row[1:]) for row in curve]
            for name, curve in curves.items()
        }
        seeds = {} if self.seeds is None else {"seed": self.seeds}
        tables = {
            f"{type(self).__name__}, effect sizes": pd.DataFrame({**seeds, "step": self.steps, **shown})
        }
        if len(self._grid_steps) > IN_A_ROW and curves:
            found = self.onsets()
            found["onset"] = [
                "none" if np.isnan(step) and not why else step
                for step, why in zip(found["onset"], found["reason"], strict=True)
            ]
            tables["from which step on (onsets of effect sizes)"] = found.drop(columns=["reason"])
        return tables

    def _notes(self) -> list[str]:
        seeds = self.seeds or [None] * len(self.steps)
        notes = [
            f"{'' if seed is None else f'seed {seed}, '}step {step}: {why}"
            for seed, step, why in zip(seeds, self.steps.tolist(), self.reasons, strict=True)
            if why
        ]
        if (part := self.provenance.get("part")) is not None:
            notes.append(
                f"part {part[0]} of {part[1]} alone: the same call without part= gives the report of all"
            )
        if len(self._grid_steps) > IN_A_ROW:
            notes += self._about_onsets()
        if np.isnan(self.share):
            return notes
        n, seconds = len(self.steps), self.measuring.sum()
        told = f"{n} measurements took {seconds:.3g} s, {self.share:.1%} of the time of the training"
        return [told, *notes]

    def _about_onsets(self) -> list[str]:
        """What onsets are against, what they include, and why there are none."""
        notes = []
        if (first := self._grid_steps[0]) != 0:
            notes.append(
                f"onsets are against step {first}, the first checkpoint: what was learned before it is not seen"
            )
        includes = "other texts and words; not how another training would have gone"
        if self.seeds is not None:
            n = len(set(self.seeds))
            includes = f'other texts and words, and of "all" how the {n} seeds differ; rows of one seed are of it alone'
        notes.append(f"bands of onsets include {includes}")
        found = self.onsets()
        if self.seeds is not None:
            found = found[found["seed"] == "all"]
        rows = zip(*(found[column] for column in ("measured", "onset", "reason")), strict=True)
        told = [
            why or ("no onset" if np.isnan(onset) else f"from step {onset:.0f} on") for _, onset, why in rows
        ]
        return [
            "; ".join(f"{name}: {what}" for name, what in zip(found["measured"], told, strict=True)),
            *notes,
        ]


_LISTS = ("reports", "reasons", "weights", "sums")
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
        found |= {name: cells[number] for number, name in enumerate(cell_names(cells.index or {}))}
    return found


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
        also: what else belongs to the plan.
    """

    topics: Topics
    documents: Any
    measure: Sequence[str]
    attention: Mapping[str, Any]
    embeddings: Mapping[str, Any]
    also: Mapping[str, Any] = field(default_factory=dict)

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

    @cached_property
    def facts(self) -> dict[str, Any]:
        """By what the same plan is known again."""
        options = {"measure": list(self.measure), "attention": self.attention, "embeddings": self.embeddings}
        return provenance(self.topics, options={**options, **self.also})

    def kept(self, place: Path) -> SeriesReport:
        """What the same plan has saved of a step.

        Raises:
            ValueError: where it was another plan.
        """
        report = SeriesReport.load(place)
        for what in ("topics", "options"):
            if report.provenance[what] != self.facts[what]:
                raise ValueError(
                    f"{place} was measured with other {what}: choose another folder=, or delete this one to start over"
                )
        return report

    def at(self, step: int, model: Any, tokenizer: Any, *, weights: str) -> SeriesReport:
        """The report of one step.

        Raises:
            KeyboardInterrupt: where measuring was interrupted: half of the documents are no point of a curve.
        """
        start = perf_counter()
        reports, sums = self._measured(open_model(model, tokenizer=tokenizer))
        seconds = np.array([perf_counter() - start])
        return SeriesReport(
            np.array([step]), (reports,), ("",), (weights,), seconds, np.array([np.nan]), self.facts, (sums,)
        )

    def nothing(self, step: int, why: str, *, weights: str) -> SeriesReport:
        """The report of a step at which nothing could be measured."""
        nan = np.array([np.nan])
        return SeriesReport(np.array([step]), ({},), (why,), (weights,), np.zeros(1), nan, self.facts, ({},))

    def _measured(self, model: Any) -> tuple[dict[str, Report], Kept]:
        """The reports of a model, and the sums behind them that other steps are paired with."""
        reports: dict[str, Report] = {}
        sums: dict[str, Mapping[str, Any]] = {}
        if {"embeddings", "states"} & {*self.measure}:
            documents = self.documents if "states" in self.measure else None
            states = Relations(MAX_SOURCES)
            options = self.embeddings if documents is None else {**self.embeddings, "accumulators": [states]}
            words = measure_embeddings(model, self.topics, documents, progress=False, **options)
            _check_whole({} if documents is None else words.provenance["documents"])
            # Thousands of numbers of every step that no curve has.
            reports["embeddings"] = replace(words, matrices=None)
            if "embeddings" in self.measure:
                sums["embeddings"] = kept_of_words(
                    capture.word_embeddings(model), self.topics, self.embeddings
                )
            if documents is not None and words.layers is not None:
                index = words.layers["cosine"].index or {}
                sums["states"] = kept_of_sources(states, index, slice(0, None, len(SCORES)))
        if "attention" in self.measure:
            by_source = Relations(MAX_SOURCES)
            heads = measure_attention(
                model, self.topics, self.documents, accumulators=[by_source], progress=False, **self.attention
            )
            _check_whole(heads.provenance["options"])
            reports["attention"] = heads
            sums["attention"] = kept_of_sources(by_source, heads.heads.index or {}, slice(None))
        return reports, sums


def _check_whole(read: Mapping[str, Any]) -> None:
    if read.get("stopped") is not None:
        raise KeyboardInterrupt(read["stopped"])
