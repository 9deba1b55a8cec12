"""One report of several fits of topics, whose intervals include that other fits would have given other numbers.

A number of k fits is that of their pairs together. Their spread gives its variance as it would that of a mean of k
numbers; what sources alone make of that spread is known from leaving them out, and taken off, because it is counted
there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from topic_probe.contrast import Contrast, side_by_side
from topic_probe.measure.attention import AttentionReport, contrasts_of
from topic_probe.measure.folder import add_sums
from topic_probe.measure.word_variance import gradient_of, moved, totals_of
from topic_probe.uncertainty import Beside, benjamini_hochberg, divide

# Of two fits, the spread has one degree of freedom, and an interval of 12.7 standard errors says nothing.
MIN_FITS = 3


def pool(reports: Sequence[AttentionReport]) -> AttentionReport:
    """The report of several fits of topics together, measured on the same documents.

    Intervals of overall, stacks and layers include other fits and other sources; there are none for fewer than three
    fits. Those of heads include other sources alone. A p-value is twice the mean of those of the fits, which holds
    however these depend on each other.

    Raises:
        ValueError: for fewer than two reports, and for reports of other models or other documents.

    Example:
        >>> world = tp.World(n_topics=4, words_per_topic=5, topics_per_document=2)
        >>> toy = tp.build_toy(tp.ToyConfig(world=world))
        >>> ids = world.documents(10, generator=torch.Generator().manual_seed(0)).ids
        >>> fits = [world.topics, world.topics.shuffled(1), world.topics.shuffled(2)]
        >>> pooled = tp.pool(tp.measure_attention(toy, fits, ids, n_permutations=0))
        >>> len(pooled.fits)
        3
    """
    if len(reports) < 2:
        raise ValueError("needed reports of several fits, such as those of six seeds of LDA, got fewer than two")
    every, parts = [report.sums for report in reports], (reports[0].kept or {})["parts"]
    for report in reports[1:]:
        for name in ("model", "documents", "corpus"):
            if report.provenance[name] != reports[0].provenance[name]:
                raise ValueError(f"fits are measured with one model on one corpus: their {name} differ")
    pooled = reports[0].sums
    pooled.pop("of_words", None)
    for sums in every[1:]:
        add_sums(pooled, sums)
    parts = {name: value for name, value in parts.items() if name != "strata"}
    found = contrasts_of(pooled, parts, _Fits(every, pooled))
    for name in ("overall", "stacks", "layers", "heads", "overall_matched"):
        found[name] = _with_p_values(found[name], [getattr(report, name) for report in reports])
    described = ("topics", "left_out", "documents_measured")
    fits = [{name: report.provenance[name] for name in described} for report in reports]
    return AttentionReport(
        **found,
        provenance={**reports[0].provenance, "fits": fits},
        fits=side_by_side([report.overall for report in reports], {"fit": tuple(range(len(reports)))}),
    )


def _with_p_values(contrast: Contrast, fits: Sequence[Contrast]) -> Contrast:
    """The contrast with twice the mean of the p-values of fits."""
    if any(fit.p_value is None for fit in fits):
        return contrast
    p_value = np.asarray(np.minimum(1, 2 * np.stack([np.asarray(fit.p_value) for fit in fits]).mean(0)))
    return replace(contrast, p_value=p_value, q_value=benjamini_hochberg(p_value))


class _Fits:
    """The variance of numbers of groups of heads that is due to fits."""

    def __init__(self, every: Sequence[Mapping[str, Any]], pooled: Mapping[str, Any]) -> None:
        self._every = [sums["by_source"] for sums in every]
        self._pooled = pooled["by_source"]

    def explained(self, contrast: Contrast) -> Contrast:
        """A contrast that says so where fits are too few."""
        if len(self._every) >= MIN_FITS:
            return contrast
        return replace(
            contrast, note=f"no interval: {len(self._every)} fits of topics, at least {MIN_FITS} are needed"
        )

    def beside(self, kind: str, starts: Int64[np.ndarray, " group"]) -> Beside:
        """The spread of fits, less what sources make of it."""
        nothing, k = np.zeros(len(starts)), len(self._every)
        if k < MIN_FITS:
            return Beside(nothing, nothing * np.nan, nothing)
        influence = self._influence(kind, starts)  # [fit, source, group]
        n = influence.shape[1]
        of_fits = (influence.sum(1) ** 2).sum(0)
        noise = ((influence - influence.mean(1, keepdims=True)) ** 2).sum((0, 1)) * n / (n - 1)
        variance, raw = (of_fits - noise) * k / (k - 1), of_fits * k / (k - 1)
        there = variance > 0
        return Beside(nothing, np.where(there, variance, 0), np.where(there, 2 * raw**2 / (k - 1), 0))

    def _influence(
        self, kind: str, starts: Int64[np.ndarray, " group"]
    ) -> Float64[np.ndarray, "fit source group"]:
        """How far every fit's sums of a source move the number, less the fit's share of what all fits' do."""
        totals = np.add.reduceat(totals_of(self._pooled).sum(0), starts)
        gradient, keys = gradient_of(totals, kind), self._pooled.rows()[0]
        found = np.zeros((len(self._every), len(keys), len(starts)))
        for of_fit, own in zip(found, self._every, strict=True):
            held = own.rows()[0]
            at = np.searchsorted(keys, held % own.limit if self._pooled.folded else held)
            np.add.at(of_fit, at, moved(gradient, np.add.reduceat(totals_of(own), starts, axis=1), totals))
        n = np.stack([np.add.reduceat(own.total().counts[..., 1], starts) for own in self._every])
        return found - divide(n, n.sum(0))[:, None] * found.sum(0)
