"""Same-topic against different-topic attention: of every head, in one streamed pass over any documents."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from jaxtyping import Float64, Int64

from topic_probe.contrast import Contrast, PairSums, contrast_of_sources, matched_contrast, side_by_side
from topic_probe.lens import capture
from topic_probe.lens.opening import open_model
from topic_probe.measure.accumulators import BatchSums, Distances, Relations, Sinks
from topic_probe.measure.doubt import (
    Doubt,
    about_variance,
    check_fits,
    pooled_sums,
    variance_table,
    with_p_values_of_fits,
    word_effects,
)
from topic_probe.measure.engine import (
    ACCUMULATORS_IN_FOLDER,
    FIRST,
    Engine,
    Several,
    source_limit,
    topics_and_accumulators,
    why_nothing,
)
from topic_probe.measure.heads import layer_starts, layers_of
from topic_probe.measure.nulls import Null, about_floor, with_matched_p_value, with_p_values
from topic_probe.measure.options import Intervals, Patterns, Permutations, Reading, Resampling, Run, recorded
from topic_probe.measure.patterns import Level, PatternReader, read_patterns
from topic_probe.measure.scores import DISTANCE_BINS
from topic_probe.measure.sums import Parts, Progress, Sums
from topic_probe.notices import warn
from topic_probe.options import shares
from topic_probe.report import Report, provenance
from topic_probe.topics import Topics
from topic_probe.uncertainty import divide

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class AttentionReport(Report, kind="attention"):
    """How much more a model attends to words of the same topic.

    Attention is relative to uniform attention: 1 is what a row gives to every key it may see if it makes no difference.
    Numbers for several heads pool their pairs (each head counts all its pairs); ``n_…`` then counts pair scores.

    Attributes:
        overall: all heads of all stacks pooled.
        stacks: by stack (one of "self", or of "encoder", "decoder" and "cross").
        layers: by stack and layer.
        heads: by stack, layer and head; ``heads.top(5)`` lists those with the strongest evidence.
        matched: by head, with pairs compared at equal distance: both means weigh the distance bins by their number of
            same-topic pairs, so that words of a topic that merely stand closer do not count as an effect.
        overall_matched: the same, all heads pooled, with a p-value.
        without_sinks: by head, after taking the sinks out of every row and renormalising it: special tokens and, in a
            causal stack, the first position, to which models attend whatever stands there.
        sink_mass: by head, the share of attention that goes to these.
        provenance: model, topics, options and everything left out.
        fits: ``overall`` of every fit of topics, where several are reported together; otherwise None.
    """

    overall: Contrast
    stacks: Contrast
    layers: Contrast
    heads: Contrast
    matched: Contrast
    overall_matched: Contrast
    without_sinks: Contrast
    sink_mass: Float64[np.ndarray, " head"]
    provenance: Mapping[str, Any]
    fits: Contrast | None = None

    @classmethod
    def of_sums(cls, sums: Sums, progress: Progress, parts: Parts) -> "AttentionReport":
        """The report of what accumulators have added up.

        Args:
            sums: their sums by name.
            progress: what is known of the documents beside them.
            parts: "index", the stack, layer and head of every cell; "intervals" and "permutations", these options;
                "provenance", as far as it is known without documents; and "strata" of words, where these are resampled.
        """
        doubt = None
        if "strata" in parts:
            doubt = Doubt([sums], sums["by_source"], layers_of(parts["index"]), [parts["strata"]])
        permutations = Permutations(**parts["permutations"])
        contrasts = _contrasts(parts["index"], sums, Intervals(**parts["intervals"]), permutations, doubt)
        record = parts["provenance"]
        left_out = progress.counts.left_out + progress.left_out
        return cls(
            **contrasts,
            provenance=record | progress.about_parts | {
                "options": record["options"] | {"stopped": progress.stopped},
                "left_out": dict(sorted(left_out.items())),
                "documents": progress.counts.documents,
                "tokens": progress.counts.tokens,
                "tokens_with_a_topic": int(sums["n_rows"][0]),  # each is a row of a head
                "same_topic_pairs": int(sums["by_source"].total().counts[0, 1]),
                "without_words": progress.counts.without_words,
                "documents_measured": progress.measured,
                **sums["by_source"].record,
                "corpus": progress.corpus,
            },
        )  # fmt: skip

    @classmethod
    def of_fits(
        cls,
        fits: Sequence[Mapping[str, Any]],
        reports: Sequence["AttentionReport"],
        parts: Sequence[Parts],
    ) -> "AttentionReport":
        """One report of several fits of topics: of their pairs together, with intervals that include other fits.

        A p-value is twice the mean of those of the fits, which holds however these depend on each other.

        Args:
            fits: the sums of every fit.
            reports: their reports.
            parts: those of each.
        """
        pooled, index = pooled_sums(fits), parts[0]["index"]
        strata = [part["strata"] for part in parts] if "strata" in parts[0] else None
        doubt = Doubt(fits, pooled["by_source"], layers_of(index), strata)
        contrasts = _contrasts(index, pooled, Intervals(**parts[0]["intervals"]), Permutations(0), doubt)
        for name in ("overall", "stacks", "layers", "heads", "overall_matched"):
            contrasts[name] = with_p_values_of_fits(
                contrasts[name], [getattr(report, name) for report in reports]
            )
        every = [report.provenance for report in reports]
        record = {
            **every[0],
            **pooled["by_source"].record,
            "fits": [
                {name: of_fit[name] for name in ("topics", "left_out", "documents_measured")}
                for of_fit in every
            ],
        }
        return cls(
            **contrasts,
            provenance=record,
            fits=side_by_side([report.overall for report in reports], {"fit": tuple(range(len(reports)))}),
        )

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every head."""
        table = self.heads.to_dataframe()
        table["matched_ratio"] = self.matched.ratio
        table["without_sinks_ratio"] = self.without_sinks.ratio
        table["sink_mass"] = self.sink_mass
        return table

    def variance_of_overall(self) -> "pd.DataFrame | None":
        """How much of the variance of the overall ratio each thing brings; None where intervals include but one."""
        return variance_table(self.overall, self.provenance["options"].get("resample", ()))

    def about_coverage(self) -> str:
        """Which share of the tokens has a topic, and the same-topic pairs of a head in a source that was measured."""
        counts = self.provenance
        share = 100 * counts["tokens_with_a_topic"] / max(counts["tokens"], 1)
        pairs = counts["same_topic_pairs"] / max(counts["sources"], 1)
        source = "block of sources" if counts["sources_in_blocks"] else "source"
        return f"{share:.1f} % of tokens have a topic, {pairs:,.1f} same-topic pairs a {source}"

    def about_variance(self) -> list[str]:
        """What intervals include beside other sources, and how far fits are apart."""
        return about_variance(self.overall, self.provenance, self.fits)

    def _tables(self) -> "dict[str, pd.DataFrame]":
        shares = self.variance_of_overall()
        more = {} if shares is None else {"the variance of the overall ratio": shares}
        return super()._tables() | more

    def _notes(self) -> list[str]:
        ratio = f"overall ratio {self.overall.ratio:.4g}"
        if self.overall.interval is not None and np.isfinite(self.overall.interval).all():
            ratio += f" [{self.overall.interval[0]:.4g}, {self.overall.interval[1]:.4g}]"
        if np.isfinite(self.overall.effect_size):
            ratio += f", effect size {self.overall.effect_size:.4g}"
        notes = [
            self.about_coverage(),
            ratio,
            *self.about_variance(),
            *super()._notes(),
            *about_floor(self.heads, self.provenance),
        ]
        if n := self.provenance.get("without_words"):
            notes.append(
                f"every token of {n} documents was taken as a word, because they came without their text"
            )
        if n := self.provenance["left_out"].get(FIRST):
            notes.append(
                f"{n} words at the first position were left out, because a causal model attends to it whatever stands "
                "there; first_position='word' keeps them, begin_token=True puts a begin token there"
            )
        return notes


_READ = {True: "rows beside the fused kernel", False: "whole patterns at hook points"}


@overload
def measure_attention(model: Any, topics: Topics, documents: Any, **options: Any) -> AttentionReport: ...
@overload
def measure_attention(
    model: Any, topics: Sequence[Topics], documents: Any, **options: Any
) -> list[AttentionReport]: ...
@shares
def measure_attention(
    model: Any,
    topics: Topics | Sequence[Topics],
    documents: Any,
    *,
    level: Level = "token",
    include_self: bool = True,
    accumulators: Sequence[Any] = (),
    reading: Reading,
    patterns: Patterns,
    intervals: Intervals,
    resampling: Resampling,
    permutations: Permutations,
    run: Run,
) -> AttentionReport | list[AttentionReport]:
    """How much more a model attends to words of the same topic, by stack, layer and head.

    Documents are streamed once; only sums are kept. Everything that a report holds, the permutation null included,
    comes out of that pass. Interrupting it (Ctrl-C) reports what has been measured until then and says so.

    Several topics in a list are measured in one pass of the model, and give a list of reports: each is that of these
    topics alone. Only where documents have no word of some of them, which alone leaves them out, do others share their
    batches, and rounding may differ. With ``resample=("sources", "words", "fits")`` they are fits of one kind, such as
    those of several seeds, and give one report of all of them, whose intervals include that other fits, words and
    sources would have given other numbers; those of heads include other sources alone.

    Args:
        model: anything that `open_model` takes. It comes back as it was.
        topics: which vocabulary entries belong to which topic; or a list of such topics.
        documents: token ids in any shape that `topic_probe.text.documents.read_documents` takes; texts go through
            `encode_texts` first.
        level: "token" measures between tokens and leaves the pieces of split words out; "word" also measures split
            words that the topics know, attention to a word being summed over its pieces and from a word averaged. Both
            need documents that know their words (`encode_texts`, `Corpus`) to know what is a piece.
        include_self: whether the pair of a position with itself is a same-word pair, as in the paper.
        accumulators: what else is to be added up in the same pass, see `topic_probe.measure.accumulators`; when the
            report is there, so are their sums. Of several topics, a list of them for each.

    Raises:
        ValueError: for topics of another vocabulary, rows that do not sum to one, too many documents with NaN, or a
            folder of another measurement.

    Example:
        >>> import torch
        >>> world = tp.World(n_topics=4, words_per_topic=5, topics_per_document=2)
        >>> toy = tp.build_toy(tp.ToyConfig(regime="value", world=world))  # its attention is uniform
        >>> documents = world.documents(3, generator=torch.Generator().manual_seed(0))
        >>> overall = tp.measure_attention(toy, world.topics, documents.ids, n_permutations=0).overall
        >>> [round(float(mean), 5) for mean in (overall.same_word, overall.same_topic, overall.different_topic)]
        [1.0, 1.0, 1.0]
    """
    several = not isinstance(topics, Topics)
    every, own = topics_and_accumulators(topics, accumulators)
    resampled = resampling.of("sources")
    if "fits" in resampled:
        check_fits(every if several else None)
    if run.folder is not None and any(own):
        raise ValueError(ACCUMULATORS_IN_FOLDER)
    reports = attention_of(
        open_model(model), every, documents, accumulators=own, level=level, include_self=include_self, reading=reading,
        patterns=patterns, intervals=intervals, resampled=resampled, permutations=permutations, run=run,
    )  # fmt: skip
    return reports if several and "fits" not in resampled else reports[0]


def attention_of(
    model: Any,
    topics: Sequence[Topics],
    documents: Any,
    *,
    accumulators: Sequence[Sequence[Any]],
    level: Level,
    include_self: bool,
    reading: Reading,
    patterns: Patterns,
    intervals: Intervals,
    resampled: Sequence[str],
    permutations: Permutations,
    run: Run,
    facts: Mapping[str, Any] | None = None,
) -> list[AttentionReport]:
    """The report of each of the topics, or of all as fits of one kind; a folder keeps sums of accumulators, too.

    Args:
        model: a hooked model.
        topics: each of the topics that are measured at once.
        documents: as in `measure_attention`.
        accumulators: what else is added up, for each of the topics.
        level: as in `measure_attention`.
        include_self: as in `measure_attention`.
        reading: how documents are read.
        patterns: how attention is read.
        intervals: how sure numbers are said to be.
        resampled: what intervals include.
        permutations: what numbers are compared with.
        run: where sums are kept, and what is shown.
        facts: what the sums of accumulators depend on, beside model, topics and documents.
    """
    view = capture.view(model, *topics)
    reading = reading.of(view.facts)
    readers = [PatternReader(view, each, patterns, level=level, include_self=include_self) for each in topics]
    n = readers[0].n_cells
    sums: list[list[Any]] = [_sums(each, permutations, intervals, n) for each in topics]
    of_sums = {
        "measurement": "attention", "level": level, "include_self": include_self, "through": patterns.through,
        "n_permutations": permutations.n_permutations, "seed": intervals.seed, "limit": source_limit(n),
        "resample": resampled[1:], **(facts or {}),
    }  # fmt: skip
    options = {"level": level, "include_self": include_self, "distance_bins": DISTANCE_BINS}
    options |= recorded(reading, patterns, intervals, permutations) | {"resample": resampled}
    parts: list[dict[str, Any]] = [
        {
            "index": readers[0].index, "intervals": vars(intervals), "permutations": vars(permutations),
            "provenance": provenance(
                each, model=view.facts.description, options=options, seed=intervals.seed
            ) | {"read": _READ[view.reads_rows(patterns.through)]},
        }
        for each in topics
    ]  # fmt: skip
    if "words" in resampled:
        effects = word_effects(topics, layers_of(readers[0].index), together="fits" in resampled)
        for of_topics, part, effect in zip(sums, parts, effects, strict=True):
            of_topics.append(effect)
            part["strata"] = effect.strata
    for of_topics, added in zip(sums, accumulators, strict=True):
        of_topics += added
    engine = Engine(Several(readers, read_patterns), sums, only_labelled=True)
    of_report = {"kind": AttentionReport.kind, "parts": parts[0]}
    progress = engine.run(documents, reading=reading, run=run, facts=of_sums, report=of_report)
    known = [progress.of_topics(number) for number in range(len(topics))]
    reports = [AttentionReport.of_sums(*found) for found in zip(engine.by_topics, known, parts, strict=True)]
    named: Any = engine.by_topics
    for found, counted in zip(named, known, strict=True):
        if progress.whole and not found["n_rows"].any():
            warn(why_nothing(counted), stacklevel=4)
    return [AttentionReport.of_fits(engine.by_topics, reports, parts)] if "fits" in resampled else reports


def _sums(topics: Topics, permutations: Permutations, intervals: Intervals, n_heads: int) -> list[BatchSums]:
    """What a report is made of."""
    null = Null(topics, permutations.n_permutations, intervals.seed, n_heads)
    return [Relations(source_limit(n_heads), n_heads), Distances(n_heads), Sinks(n_heads), null]


def _contrasts(
    index: Mapping[str, tuple[Any, ...]],
    sums: Sums,
    intervals: Intervals,
    permutations: Permutations,
    doubt: Doubt | None = None,
) -> dict[str, Any]:
    """What the sums of the accumulators say, by their names, and what other doubt adds."""
    layers, stacks = layers_of(index), list(dict.fromkeys(index["stack"]))
    stack_of = np.array([stacks.index(stack) for stack in index["stack"]])
    rows = sums["by_source"].rows()[1:]

    def pooled(groups: Int64[np.ndarray, " head"], doubt: Doubt | None, **names: tuple[Any, ...]) -> Contrast:
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
        of_groups, counts, squares = (np.add.reduceat(part, starts, axis=1) for part in rows)
        beside = None if doubt is None else functools.partial(doubt.beside, starts=starts)
        contrast = contrast_of_sources(
            of_groups, counts, squares, confidence=intervals.over_sources, beside=beside
        )
        contrast = contrast if doubt is None else doubt.explained(contrast)
        contrast = replace(contrast, index=names or None)
        total, n = (part.sum(0)[:, 1:].sum(1, keepdims=True) for part in (of_groups, counts))
        return with_p_values(contrast, (total, n), sums, starts, permutations)

    by_distance = [sums[name] for name in ("binned", "n_binned", "squares_binned")]
    of_all_heads = [part.sum(0) for part in by_distance]
    total, n = (part[:, 1:].sum(1, keepdims=True) for part in of_all_heads[:2])
    overall_matched = with_matched_p_value(matched_contrast(*of_all_heads), (total, n), sums, permutations)
    without_sinks = PairSums(sums["without_sinks"], sums["n_without_sinks"])
    return {
        "overall": pooled(np.zeros_like(layers), doubt)[0],
        "stacks": pooled(stack_of, doubt, stack=tuple(stacks)),
        "layers": pooled(
            layers,
            doubt,
            **{name: tuple(index[name][at] for at in layer_starts(index)) for name in ("stack", "layer")},
        ),
        "heads": pooled(np.arange(len(layers)), None, **index),
        "matched": matched_contrast(*by_distance, index=index),
        "overall_matched": overall_matched,
        "without_sinks": without_sinks.contrast(index=index),
        "sink_mass": divide(sums["sink_mass"], sums["n_rows"]),
    }
