"""One report of several fits of topics, whose intervals include that other fits would have given other numbers.

A number of k fits is that of their pairs together. Their spread gives its variance as it would that of a mean of k
numbers, less what sources make of it, because that is counted already.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Int64

from topic_probe.contrast import Contrast, estimate_of_sources, side_by_side
from topic_probe.estimate import MIN_SEEDS, Compared, Estimate, Factor, benjamini_hochberg, over_refits
from topic_probe.measure.attention import AttentionReport, contrasts_of
from topic_probe.measure.folder import add_sums
from topic_probe.sums import aligned


def pool(reports: Sequence[AttentionReport]) -> AttentionReport:
    """The report of several fits of topics together, measured on the same documents.

    Intervals of overall, stacks and layers include other fits and other sources; there are none for fewer than three
    fits. Those of heads include other sources alone. A p-value is twice the mean of those of the fits, which holds
    however these depend on each other.

    Raises:
        ValueError: for fewer than two reports, and for reports of other models or other documents.

    Example:
        >>> import torch
        >>> world = tp.World(n_topics=4, words_per_topic=5, topics_per_document=2)
        >>> toy = tp.build_toy(tp.ToyConfig(world=world))
        >>> ids = world.documents(10, generator=torch.Generator().manual_seed(0)).ids
        >>> fits = [world.topics, world.topics.shuffled(1), world.topics.shuffled(2)]
        >>> pooled = tp.pool(tp.measure_attention(toy, fits, ids, n_permutations=0))
        >>> len(pooled.fits)
        3
    """
    if len(reports) < 2:
        raise ValueError(
            "needed reports of several fits, such as those of six seeds of LDA, got fewer than two"
        )
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
    found = contrasts_of(pooled, parts, _Fits(every))
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

    def __init__(self, every: Sequence[Mapping[str, Any]]) -> None:
        self._rows = aligned([sums["by_source"] for sums in every])

    def explained(self, contrast: Contrast) -> Contrast:
        """A contrast that says so where fits are too few."""
        n = len(self._rows)
        if n >= MIN_SEEDS:
            return contrast
        return replace(contrast, note=f"no interval: {n} fits of topics, at least {MIN_SEEDS} are needed")

    def beside(self, kind: Compared, of_all: Estimate, starts: Int64[np.ndarray, " group"]) -> Factor:
        """The spread of fits, less what sources make of it (`over_refits`)."""
        estimates = []
        for rows in self._rows:
            pooled = (np.add.reduceat(part, starts, axis=1) for part in rows)
            estimates.append(estimate_of_sources(*pooled, statistic=kind))
        return over_refits(estimates).factors[1]
