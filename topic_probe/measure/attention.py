"""Same-topic against different-topic attention: of every head, in one streamed pass over any documents."""

import os
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
from jaxtyping import Float64, Int64

from topic_probe.contrast import (
    Contrast,
    PairSums,
    bootstrap_interval,
)
from topic_probe.lens import capture
from topic_probe.measure.meter import DISTANCE_BINS, Meter, Null
from topic_probe.measure.positions import Level
from topic_probe.measure.processes import joined
from topic_probe.measure.stream import Reading, Saving, take_in
from topic_probe.report import Report, provenance
from topic_probe.topics import Topics
from topic_probe.uncertainty import (
    Alternative,
    benjamini_hochberg,
    check_interval,
    divide,
    no_interval_reason,
    permutation_p_value,
)

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
        heads: by stack, layer and head; ``heads.top(5)`` lists the highest ratios.
        matched: by head, with pairs compared at equal distance: both means weigh the distance bins by their number of
            same-topic pairs, so that words of a topic that merely stand closer do not count as an effect.
        overall_matched: the same, all heads pooled.
        without_sinks: by head, after taking special tokens out of every row and renormalising it.
        sink_mass: by head, the share of attention that goes to special tokens.
        provenance: model, topics, options and everything left out.
    """

    figure: ClassVar[str] = "heads:head_map"
    overall: Contrast
    stacks: Contrast
    layers: Contrast
    heads: Contrast
    matched: Contrast
    overall_matched: Contrast
    without_sinks: Contrast
    sink_mass: Float64[np.ndarray, " head"]
    provenance: Mapping[str, Any]

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every head."""
        table = self.heads.to_dataframe()
        table["matched_ratio"] = self.matched.ratio
        table["without_sinks_ratio"] = self.without_sinks.ratio
        table["sink_mass"] = self.sink_mass
        return table

    def _notes(self) -> list[str]:
        ratio = f"overall ratio {self.overall.ratio:.4g}"
        if self.overall.interval is not None and np.isfinite(self.overall.interval).all():
            ratio += f" [{self.overall.interval[0]:.4g}, {self.overall.interval[1]:.4g}]"
        return [ratio, *super()._notes()]


def measure_attention(
    model: Any,
    topics: Topics,
    documents: Any,
    *,
    level: Level = "token",
    include_self: bool = True,
    batch_size: int = 32,
    max_length: int | None = None,
    long: Literal["cut", "chunk"] = "cut",
    special_ids: Collection[int] | None = None,
    n_resamples: int = 1000,
    confidence: float = 0.95,
    n_permutations: int = 200,
    alternative: Alternative = "two-sided",
    seed: int = 0,
    through: capture.Through = "auto",
    check_rows: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 300.0,
    distributed: bool = False,
    progress: bool = False,
) -> AttentionReport:
    """How much more a model attends to words of the same topic, by stack, layer and head.

    Documents are streamed once; only sums are kept. Everything that a report holds, the permutation null included,
    comes out of that pass. Interrupting it (Ctrl-C) reports what has been measured until then and says so.

    Args:
        model: anything that `open_model` takes. It comes back as it was.
        topics: which vocabulary entries belong to which topic.
        documents: token ids in any shape that `topic_probe.text.batches.token_batches` takes; texts go through
            `encode_texts` first.
        level: "token" measures between tokens and leaves the pieces of split words out; "word" also measures split
            words that the topics know, attention to a word being summed over its pieces and from a word averaged. Both
            need documents with word numbers (`encode_texts`) to know what is a piece.
        include_self: whether the pair of a position with itself is a same-word pair, as in the paper.
        batch_size: documents in one forward pass; changes nothing but speed and memory.
        max_length: documents are cut at so many tokens, by default at what the model can take.
        long: "cut" drops the rest of longer documents, "chunk" makes documents of it.
        special_ids: ids of special tokens, which have no topic and are the sinks; by default what the model's tokenizer
            or configuration names.
        n_resamples: resampled sets of documents behind the intervals; 0 leaves them out.
        confidence: what share of intervals is to hold the true number.
        n_permutations: permuted topic labels behind the p-values; 0 leaves them out.
        alternative: what counts as extreme in the p-values.
        seed: seed of resampling and permutations.
        through: how attention is read, see `topic_probe.lens.capture.View.attention_rows`.
        check_rows: whether rows that do not sum to one are an error; False for models whose heads may attend to nothing
            and for patterns that you edit.
        checkpoint: a folder in which sums are saved on the way. The same call takes them up after an interruption,
            whatever stopped it, and gives the report that it would have given; once it is through, a further call has
            the sums at once. Documents in them are read again (from a corpus's cache, if it has one) but not measured.
        checkpoint_every: seconds between two saves: what is lost at most, and one batch.
        distributed: whether this is one of several processes (of ``torchrun``, or of an initialised
            ``torch.distributed``) that share out the documents between them. All are given the same arguments, all
            return the same report, and an error in one is an error in all.
        progress: whether to show a progress bar.

    Raises:
        ValueError: for topics of another vocabulary, rows that do not sum to one, too many documents with NaN, or a
            checkpoint of another measurement.
        OSError: where the checkpoint cannot be written.
        RuntimeError: where another process failed, or ``distributed`` finds no processes.
    """
    from topic_probe.lens.opening import open_model

    if level not in ("token", "word"):
        raise ValueError(f"level must be 'token' or 'word', not {level!r}")
    check_interval(n_resamples, confidence)
    if n_permutations < 0:
        raise ValueError(f"n_permutations must be at least 0 (no p-values), got {n_permutations}")
    if alternative not in get_args(Alternative):
        raise ValueError(f"alternative must be one of {get_args(Alternative)}, got {alternative!r}")
    with joined(distributed) as processes:
        model = open_model(model)
        capture.check_topics(model, topics)
        specials = capture.special_ids(model) if special_ids is None else set(special_ids)
        reading = Reading(batch_size, max_length, specials, long)
        meter = Meter(
            capture.view(model),
            topics,
            Null(topics, n_permutations, seed),
            level=level,
            include_self=include_self,
            through=through,
            check_rows=check_rows,
        )
        of_sums = {
            "measurement": "attention", "level": level, "include_self": include_self, "through": through,
            "n_permutations": n_permutations, "seed": seed, "limit": meter.totals.by_document.limit,
        }  # fmt: skip
        told = take_in(
            meter,
            model,
            topics,
            documents,
            reading,
            keep=meter.has_topics,
            options=of_sums,
            saving=Saving(checkpoint, checkpoint_every),
            processes=processes,
            progress=progress,
        )
        totals = meter.totals
        meter.check_broken()
    options = {
        "level": level, "include_self": include_self, "max_length": reading.longest(model), "long": long,
        "n_resamples": n_resamples, "confidence": confidence, "n_permutations": n_permutations,
        "alternative": alternative, "distance_bins": DISTANCE_BINS, "special_ids": specials, "stopped": told.stopped,
    }  # fmt: skip
    record = provenance(
        topics,
        model=capture.describe(model),
        options=options,
        seed=seed,
        left_out=totals.intake.left_out + totals.left_out,
    ) | {
        "documents": totals.intake.documents,
        "tokens": totals.intake.tokens,
        "documents_measured": totals.measured,
        "corpus": told.corpus,
        "processes": processes.size,
    }
    if meter.sums.n_rows.sum() == 0:
        warnings.warn(
            f"none of the {totals.intake.documents} documents holds a word of any topic, so there is nothing to "
            "compare; were topics and documents made with the same tokenizer?",
            stacklevel=2,
        )
    return _report(
        meter, record, n_resamples=n_resamples, confidence=confidence, alternative=alternative, seed=seed
    )


def _report(
    meter: Meter,
    record: Mapping[str, Any],
    *,
    n_resamples: int,
    confidence: float,
    alternative: Alternative,
    seed: int,
) -> AttentionReport:
    """What the sums of a meter say."""
    sites = meter.view.sites
    site_of = np.repeat(np.arange(len(sites)), meter.view.n_heads)
    head_of = np.concatenate([np.arange(n) for n in meter.view.n_heads])
    stacks = list(dict.fromkeys(site.stack for site in sites))
    stack_of = np.array([stacks.index(sites[site].stack) for site in site_of])
    index = {
        "stack": tuple(sites[site].stack for site in site_of),
        "layer": tuple(sites[site].layer for site in site_of),
        "head": tuple(int(head) for head in head_of),
    }
    rows = (
        meter.totals.by_document.rows()
        if len(meter.totals.by_document)
        else (None, *2 * (np.zeros((0, meter.total_heads, 3)),))
    )

    def pooled(groups: Int64[np.ndarray, " head"], index: Mapping[str, Any] | None) -> Contrast:
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
        sums, counts = (np.add.reduceat(part, starts, axis=1) for part in rows[1:])
        null = None
        if len(meter.null):
            null = np.add.reduceat(meter.sums.null, starts), np.add.reduceat(meter.sums.n_null, starts)
        found = _contrast(sums, counts, null, n_resamples, confidence, alternative, seed)
        return replace(found, index=index) if index is not None else found[0]

    by_site = {"stack": tuple(site.stack for site in sites), "layer": tuple(site.layer for site in sites)}
    return AttentionReport(
        overall=pooled(np.zeros_like(site_of), None),
        stacks=pooled(stack_of, {"stack": tuple(stacks)}),
        layers=pooled(site_of, by_site),
        heads=pooled(np.arange(meter.total_heads), index),
        matched=replace(_matched(meter.sums.binned, meter.sums.n_binned), index=index),
        overall_matched=_matched(
            meter.sums.binned.sum(0, keepdims=True), meter.sums.n_binned.sum(0, keepdims=True)
        )[0],
        without_sinks=PairSums(meter.sums.without_sinks, meter.sums.n_without_sinks).contrast(index=index),
        sink_mass=divide(meter.sums.sink_mass, meter.sums.n_rows),
        provenance=record,
    )


def _contrast(
    sums: Float64[np.ndarray, "document group 3"],
    counts: Float64[np.ndarray, "document group 3"],
    null: tuple[np.ndarray, np.ndarray] | None,
    n_resamples: int,
    confidence: float,
    alternative: Alternative,
    seed: int,
) -> Contrast:
    total = PairSums(sums.sum(0), counts.sum(0))
    found = total.contrast()
    if n_resamples:
        interval = bootstrap_interval(
            (sums, counts), n_resamples=n_resamples, confidence=confidence, seed=seed
        )
        found = replace(found, interval=interval, note=no_interval_reason(interval, len(sums), "documents"))
    if null is not None:
        same, n_same = null
        different = total.sums[:, 1:].sum(1, keepdims=True) - same
        n_different = total.counts[:, 1:].sum(1, keepdims=True) - n_same
        ratios = divide(divide(same, n_same), divide(different, n_different))
        p_value = permutation_p_value(found.ratio, ratios, alternative=alternative)
        found = replace(found, p_value=p_value, q_value=benjamini_hochberg(p_value))
    return found


def _matched(sums: Float64[np.ndarray, "head bin 3"], counts: Float64[np.ndarray, "head bin 3"]) -> Contrast:
    """Means of bin means, the bins weighed by their number of same-topic pairs, where both kinds of pairs exist."""
    both = (counts[..., 1] > 0) & (counts[..., 2] > 0)
    weights = np.where(both, counts[..., 1], 0.0)
    means = np.nan_to_num(divide(sums, counts))
    same, different = ((weights * means[..., relation]).sum(1) for relation in (1, 2))
    n_same, n_different = weights.sum(1), np.where(both, counts[..., 2], 0.0).sum(1)
    return Contrast(
        divide(sums[..., 0].sum(1), counts[..., 0].sum(1)), divide(same, n_same), divide(different, n_same),
        counts[..., 0].sum(1), n_same, n_different,
    )  # fmt: skip
