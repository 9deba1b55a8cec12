"""Same-topic against different-topic attention: of every head, in one streamed pass over any documents."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload
from warnings import warn

import numpy as np
import torch
from jaxtyping import Float64, Int64

from topic_probe.contrast import Contrast, PairSums, contrast_of_sources, matched_contrast
from topic_probe.estimate import MIN_UNITS, divide
from topic_probe.lens.host import host_of
from topic_probe.lens.opening import open_model
from topic_probe.measure.ask import Question, ask
from topic_probe.measure.attention_sums import AttentionSums
from topic_probe.measure.documents import why_nothing
from topic_probe.measure.folder import Progress, Sum, add_sums, of_arrays, to_arrays
from topic_probe.measure.heads import Heads, layer_starts, layers_of
from topic_probe.measure.options import Reading, Run, Statistics, recorded
from topic_probe.measure.pairs import DISTANCE_BINS, FIRST, Level
from topic_probe.measure.permuted import CALLED, floor_of, with_matched_p_value, with_p_values
from topic_probe.measure.word_variance import WordVariance
from topic_probe.options import check_confidence, shares
from topic_probe.report import Report, provenance
from topic_probe.sums import SourceSums, columns
from topic_probe.topics import Topics

if TYPE_CHECKING:
    import pandas as pd

# Heads that are printed, of those that turn towards words of their topic and of those that turn away.
_SHOWN = 10


@dataclass(frozen=True, eq=False, repr=False)
class AttentionReport(Report, kind="attention"):
    """How much more a model attends to words of the same topic.

    Attention is relative to uniform attention: 1 is what a row gives to every key it may see if it makes no difference.
    Numbers for several heads pool their pairs (each head counts all its pairs); ``n_…`` then counts pair scores.

    A report keeps its sums, a row for every source among them. So ``one + other`` is the report of the documents of
    both, and `at` has intervals of another confidence; neither needs the model.

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
        kept: what it is made of, in plain arrays: "arrays" and "about" of the sums, "progress" and "parts".
        fits: ``overall`` of every fit of topics, where several were pooled; otherwise None.
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
    kept: Mapping[str, Any] | None = None
    fits: Contrast | None = None

    @classmethod
    def of_sums(
        cls, sums: Mapping[str, Any], progress: Progress, parts: Mapping[str, Any]
    ) -> "AttentionReport":
        """The report of sums.

        Args:
            sums: those of `AttentionSums`.
            progress: what is known of the documents beside them.
            parts: "index", the stack, layer and head of every head; "provenance", as far as it is known without
                documents; and "strata" of words, where these are resampled.
        """
        arrays, about = to_arrays(sums)
        copies = {name: array.copy() for name, array in arrays.items()}
        content = {"arrays": copies, "about": about, "progress": progress.content(), "parts": dict(parts)}
        return cls(
            **contrasts_of(sums, parts),
            provenance=_record(parts["provenance"], sums, progress),
            kept=content,
        )

    @property
    def sums(self) -> dict[str, Sum]:
        """The sums that it is made of, by name: "by_source" has the rows of sources."""
        if self.kept is None:
            raise ValueError("this report was made without sums: measure it again")
        return of_arrays(self.kept["arrays"], self.kept["about"])

    @property
    def by_source(self) -> SourceSums:
        """Sums of every source, [source, head, relation]."""
        sums = self.sums["by_source"]
        assert isinstance(sums, SourceSums)
        return sums

    def at(self, *, confidence: float) -> "AttentionReport":
        """The same report with intervals of another confidence."""
        check_confidence(confidence)
        return self._made(self.sums, self._progress, {"confidence": confidence})

    def __add__(self, other: "AttentionReport") -> "AttentionReport":
        """The report of the documents of both, which are of one model and one set of topics, measured alike.

        Raises:
            ValueError: where they are not.
        """
        for name in ("model", "topics", "options"):
            one, more = (report.provenance[name] for report in (self, other))
            differing = sorted(key for key in {*one, *more} if one.get(key) != more.get(key))
            if differing:
                raise ValueError(
                    f"reports are added up where they measure the same: their {name} differ in {', '.join(differing)}"
                )
        sums = self.sums
        add_sums(sums, other.sums)
        return self._made(sums, self._progress + other._progress, {})

    @property
    def _progress(self) -> Progress:
        assert self.kept is not None
        return Progress.of(self.kept["progress"])

    def _made(
        self, sums: Mapping[str, Sum], progress: Progress, options: Mapping[str, Any]
    ) -> "AttentionReport":
        assert self.kept is not None
        parts = self.kept["parts"]
        record = {**parts["provenance"], "options": {**parts["provenance"]["options"], **options}}
        return AttentionReport.of_sums(sums, progress, {**parts, "provenance": record})

    @property
    def towards(self) -> Contrast:
        """The heads that attend more to words of the same topic, by the intervals of their effect sizes."""
        return self.heads.top(len(self.heads), towards=True)

    @property
    def away(self) -> Contrast:
        """The heads that attend less to words of the same topic, by the intervals of their effect sizes."""
        return self.heads.top(len(self.heads), towards=False)

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every head."""
        table = self.heads.to_dataframe()
        table["matched_ratio"] = self.matched.ratio
        table["without_sinks_ratio"] = self.without_sinks.ratio
        table["sink_mass"] = self.sink_mass
        return table

    def variance_of_overall(self) -> "pd.DataFrame | None":
        """How much of the variance of the overall ratio each thing brings; None where intervals include but one."""
        import pandas as pd

        shares = self.overall.variance_shares
        if shares is None or np.isnan(shares).any():
            return None
        named = {"other sources": True, "other words": self.fits is None, "other fits": self.fits is not None}
        rows = {name: share for name, share in zip(named, shares.tolist(), strict=True) if named[name]}
        return pd.DataFrame({"varies with": list(rows), "share of the variance": list(rows.values())})

    def about_coverage(self) -> str:
        """Which share of the tokens has a topic, and the same-topic pairs of a head in a source that was measured."""
        counts = self.provenance
        share = 100 * counts["tokens_with_a_topic"] / max(counts["tokens"], 1)
        pairs = counts["same_topic_pairs"] / max(counts["sources"], 1)
        source = "block of sources" if counts["sources_in_blocks"] else "source"
        return f"{share:.1f} % of tokens have a topic, {pairs:,.1f} same-topic pairs a {source}"

    def about_intervals(self) -> str:
        """What the intervals are about."""
        n, blocks = self.provenance["sources"], "blocks of " * self.provenance["sources_in_blocks"]
        sources = f"other sources ({n:,} {blocks}texts or articles)"
        if self.fits is not None:
            ratios = np.asarray(self.fits.ratio)
            return (
                f"intervals of overall, stacks and layers are about {sources} and {len(ratios)} fits of topics, "
                f"whose ratios are {ratios.min():.4g} to {ratios.max():.4g}; p-values are twice the mean of theirs"
            )
        if "words" in self.provenance["options"]["resample"]:
            return (
                f"intervals of overall, stacks and layers are about {sources} and other words of the topics; those of "
                "heads are about other sources alone"
            )
        return (
            f"intervals are about {sources}; other words of the topics would add to them, often the larger part: "
            'resample=("sources", "words")'
        )

    def _tables(self) -> "dict[str, pd.DataFrame]":
        shares = self.variance_of_overall()
        more = {} if shares is None else {"the variance of the overall ratio": shares}
        return {"AttentionReport: all heads": self.table_of_all()} | more | self.tables_of_heads()

    def table_of_all(self) -> "pd.DataFrame":
        """A row for all heads together, with the numbers of pairs of a head."""
        table = self.overall.to_dataframe()
        for name in ("n_same_word", "n_same_topic", "n_different_topic"):
            table[name] //= max(len(self.heads), 1)
        return table

    def tables_of_heads(self) -> "dict[str, pd.DataFrame]":
        """The heads that turn towards words of their topic and those that turn away, under headings that count them."""
        n, floor = len(self.heads), floor_of(self.heads, self.provenance["options"]["n_permutations"])
        at_floor = f"\n({floor})" if floor else ""
        if np.isnan(self.heads.interval_of("effect_size")).all():
            some = self.heads.top(_SHOWN)
            return {
                f"{len(some)} of {n} heads, by effect size, as there are no intervals{at_floor}": some.to_dataframe()
            }
        found = {}
        for name, heads in (("towards", self.towards), ("away from", self.away)):
            q = 0 if heads.q_value is None else int((heads.q_value < CALLED).sum())
            by_q = "" if heads.q_value is None else f", {q} of them with q < {CALLED}"
            heading = (
                f"{name} words of their topic: {len(heads)} of {n} heads by their interval{by_q}{at_floor}"
            )
            found[heading] = heads[:_SHOWN].to_dataframe()
        return {heading: table for heading, table in found.items() if len(table)} or {
            f"no head of {n} is told from no difference; the first by effect size{at_floor}": (
                self.heads.top(_SHOWN).to_dataframe()
            )
        }

    def _notes(self) -> list[str]:
        notes = [self.about_coverage(), self.about_intervals(), *super()._notes()]
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


def _record(record: Mapping[str, Any], sums: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The provenance of a report, with what was read and left out."""
    left_out = progress.counts.left_out + progress.left_out
    return {**record, **progress.about_parts} | {
        "options": {**record["options"], "stopped": progress.stopped},
        "left_out": dict(sorted(left_out.items())),
        "documents": progress.counts.documents,
        "tokens": progress.counts.tokens,
        "tokens_with_a_topic": int(sums["n_rows"][0]),  # each is a row of a head
        "same_topic_pairs": int(sums["by_source"].total().counts[0, 1]),
        "without_words": progress.counts.without_words,
        "documents_measured": progress.measured,
        **sums["by_source"].record,
        "corpus": progress.corpus,
    }


# ---------------------------------------------------------------------------- measuring


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
    questions: Sequence[Question] = (),
    reading: Reading,
    statistics: Statistics,
    run: Run,
) -> AttentionReport | list[AttentionReport]:
    """How much more a model attends to words of the same topic, by stack, layer and head.

    Documents are streamed once; only sums are kept. Everything that a report holds, the permutation null included,
    comes out of that pass. Interrupting it (Ctrl-C) reports what has been measured until then and says so.

    Several topics in a list are measured in one pass of the model, and give a list of reports: each is that of these
    topics alone. Only where documents have no word of some of them, which alone leaves them out, do others share their
    batches, and rounding may differ. `pool` makes one report of those of several fits of topics.

    Args:
        model: anything that `open_model` takes. It comes back as it was.
        topics: which vocabulary entries belong to which topic; or a list of such topics.
        documents: token ids in any shape that `topic_probe.text.documents.read_documents` takes; texts go through
            `encode_texts` first.
        level: "token" measures between tokens and leaves the pieces of split words out; "word" also measures split
            words that the topics know, attention to a word being summed over its pieces and from a word averaged. Both
            need documents that know their words (`encode_texts`, `Corpus`) to know what is a piece.
        include_self: whether the pair of a position with itself is a same-word pair, as in the paper.
        questions: what else is asked of attention in the same pass (`Question`); when the report is there, so are their
            sums.

    Raises:
        ValueError: for topics of another vocabulary, too many documents with NaN, or a folder of another measurement.

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
    reports = attention_of(
        open_model(model), every_topics(topics), documents, questions=questions, level=level, include_self=include_self,
        reading=reading, statistics=statistics, run=run,
    )  # fmt: skip
    return reports if several else reports[0]


def every_topics(topics: Any) -> list[Topics]:
    """Each of the topics that are to be measured at once.

    Raises:
        ValueError: where there are none.
        TypeError: for what are no topics.
    """
    every = [topics] if isinstance(topics, Topics) else list(topics)
    if not every:
        raise ValueError("needed topics, or a list of at least one, got an empty list")
    for each in every:
        if not isinstance(each, Topics):
            raise TypeError(f"a list of topics needs Topics, got {each!r:.100}")
    return every


def attention_of(
    model: Any,
    topics: Sequence[Topics],
    documents: Any,
    *,
    questions: Sequence[Question] = (),
    level: Level,
    include_self: bool,
    reading: Reading,
    statistics: Statistics,
    run: Run,
    names: Sequence[str] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> list[AttentionReport]:
    """The report of each of the topics, of a hooked model.

    ``names`` of words are as in `AttentionSums`; ``facts`` are what sums in a folder depend on, too.
    """
    for question in questions:
        if not isinstance(question, Question):
            raise TypeError(f"questions are objects of a class derived from Question, got {question!r:.100}")
    if run.folder is not None and len(topics) > 1:
        raise ValueError(
            "a folder is for one report: measure several topics one after the other, or without it"
        )
    view = host_of(model, *topics, *(question.topics for question in questions))
    reading, heads, of_words = reading.of(view.facts), Heads.of(view), "words" in statistics.resample
    own = [
        AttentionSums(
            each, torch.tensor(heads.site_of), level=level, include_self=include_self, of_words=of_words,
            n_permutations=statistics.n_permutations, seed=statistics.seed, names=names,
        )
        for each in topics
    ]  # fmt: skip
    for each in own:
        each.facts = {**each.facts, **(facts or {})}
    options = {"level": level, "include_self": include_self, "distance_bins": DISTANCE_BINS}
    options |= recorded(reading, statistics)
    read = {"read": "rows beside the fused kernel" if view.reads_rows() else "whole patterns at hook points"}
    about: dict[str, Any] = {"model": view.facts.description, "options": options, "seed": statistics.seed}
    parts: list[dict[str, Any]] = [
        {
            "index": heads.index(range(len(heads))),
            "provenance": {**read, **provenance(each.topics, **about)},
            **({} if each.of_words is None else {"strata": each.of_words.strata}),
        }
        for each in own
    ]  # fmt: skip
    of_report = {"kind": AttentionReport.kind, "parts": parts[0]}
    known = ask(view, [*own, *questions], documents, reading=reading, run=run, report=of_report)
    for question, progress in zip(own, known, strict=False):
        n_rows: Any = question.sums["n_rows"]
        if progress.whole and not n_rows.any():
            warn(why_nothing(progress), stacklevel=4)
    every = zip(own, known, parts, strict=False)
    return [AttentionReport.of_sums(one.sums, progress, part) for one, progress, part in every]


def contrasts_of(sums: Mapping[str, Any], parts: Mapping[str, Any], variance: Any = None) -> dict[str, Any]:
    """What the sums say, by the names of a report; ``variance`` is what there is of it besides that of sources."""
    index = parts["index"]
    layers, stacks = layers_of(index), list(dict.fromkeys(index["stack"]))
    stack_of = np.array([stacks.index(stack) for stack in index["stack"]])
    by_layer = {name: tuple(index[name][at] for at in layer_starts(index)) for name in ("stack", "layer")}
    if "strata" in parts:
        variance = WordVariance(sums, parts["strata"], layers)
    pooled = functools.partial(_pooled, sums, layers, parts["provenance"]["options"]["confidence"])
    by_distance = [sums[name] for name in ("binned", "n_binned", "squares_binned")]
    of_all_heads = [part.sum(0) for part in by_distance]
    total, n = (part[:, 1:].sum(1, keepdims=True) for part in of_all_heads[:2])
    permuted = sums["binned_null"], sums["n_binned_null"]
    without_sinks = PairSums(sums["without_sinks"], sums["n_without_sinks"])
    return {
        "overall": pooled(np.zeros_like(layers), variance, {})[0],
        "stacks": pooled(stack_of, variance, {"stack": tuple(stacks)}),
        "layers": pooled(layers, variance, by_layer),
        "heads": pooled(np.arange(len(layers)), None, index),
        "matched": matched_contrast(*by_distance, index=index),
        "overall_matched": with_matched_p_value(matched_contrast(*of_all_heads), (total, n), permuted),
        "without_sinks": without_sinks.contrast(index=index),
        "sink_mass": divide(sums["sink_mass"], sums["n_rows"]),
    }


def _pooled(
    sums: Mapping[str, Any],
    layers: Int64[np.ndarray, " head"],
    confidence: float,
    groups: Int64[np.ndarray, " head"],
    variance: Any,
    index: Mapping[str, tuple[Any, ...]],
) -> Contrast:
    """The contrast of groups of heads, with intervals and p-values."""
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    rows = [np.add.reduceat(part, starts, axis=1) for part in columns(sums["by_source"].rows()[1])]
    beside = None if variance is None else functools.partial(variance.beside, starts=starts)
    contrast = contrast_of_sources(*rows, confidence=confidence, beside=beside)
    both = int(np.sum(np.any(np.all(rows[1][:, :, 1:] > 0, axis=2), axis=1)))
    if both < MIN_UNITS:
        note = f"no interval: {both} of {len(rows[1])} texts have pairs of both kinds; {MIN_UNITS} are needed"
        contrast = replace(contrast, note=note)
    elif variance is not None:
        contrast = variance.explained(contrast)
    total, n = (part.sum(0)[:, 1:].sum(1, keepdims=True) for part in rows[:2])
    return with_p_values(
        replace(contrast, index=index or None), (total, n), permuted_sums(sums, layers, starts)
    )


def permuted_sums(
    sums: Mapping[str, Any], layers: Int64[np.ndarray, " head"], starts: Int64[np.ndarray, " group"]
) -> tuple[Float64[np.ndarray, "group permutation"], Float64[np.ndarray, "group permutation"]]:
    """Sums and numbers of the pairs that would share a topic, of groups of heads."""
    return np.add.reduceat(sums["null"], starts), np.add.reduceat(sums["n_null"][layers], starts)
