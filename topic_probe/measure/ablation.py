"""What is lost when heads are taken out: an outcome with and without what they put out."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from topic_probe.lens import capture
from topic_probe.lens.edit import edit_heads, replaced
from topic_probe.lens.opening import open_model
from topic_probe.measure.attention import AttentionReport, measure_attention
from topic_probe.measure.effects import EffectReader, EffectReport, add_up, parts_of, share_of_effects
from topic_probe.measure.engine import in_groups, read_batches
from topic_probe.measure.heads import Heads
from topic_probe.measure.options import Intervals, Reading, Run
from topic_probe.measure.outcomes import Asked, LookedAt, Outcome, readout_of
from topic_probe.measure.patterns import units_of
from topic_probe.measure.standins import Kind, StandIns
from topic_probe.options import check_whole, shares
from topic_probe.processes import joined
from topic_probe.text.documents import check_read_again
from topic_probe.text.shares import Shards
from topic_probe.topics import Topics
from topic_probe.uncertainty import Alternative

Match = Literal["layers", "norm"]
Set = tuple[int, ...]  # numbers of heads, counted through stacks and layers, ascending

# Sets of nearly equal norm are the nearest of so many times as many.
_CHOICE = 20

# A screened head is compared with so many heads of its layer.
_COMPARED = 12


@shares
def measure_ablation(
    model: Any,
    topics: Topics,
    documents: Any,
    *,
    heads: Literal["each"] | int = "each",
    sets: Mapping[str, Any] | None = None,
    kind: Kind = "mean",
    reference: Any = None,
    n_matched: int = 100,
    match: Match = "layers",
    exact: int = 200,
    alternative: Alternative = "two-sided",
    looked_at: LookedAt,
    reading: Reading,
    intervals: Intervals,
    run: Run,
    shards: Shards,
) -> EffectReport:
    """What taking heads out does to an outcome, against taking out as many others of the same layers.

    An effect is the outcome of the model as it is − the outcome without the heads, on the same documents, so that a
    positive effect on "states" says that the heads bring words of a topic together. What a head puts out is replaced
    before the output projection, at every position.

    What is found out of documents before heads are taken out (what stands in for them, the screening, the choice of the
    heads that attend most) every shard and process finds out by itself of all of them, so that all do the same to the
    model. That is one pass for each beside one for every set; ``reference`` and ``sets`` spare it where shards are
    many and sets few.

    Its p-value compares a set with random sets of as many heads of the same layers (a single head with the other heads
    of its layer, which are no more than there are), so that what any such set does is no effect of these heads.
    Intervals resample sources, paired: both outcomes are of the same documents.

    Args:
        model: anything that `open_model` takes. It comes back as it was.
        topics: which vocabulary entries belong to which topic.
        documents: token ids in any shape that `topic_probe.text.batches.token_batches` takes.
        heads: "each" takes out one after the other; a number the so many heads together that attend most by topic at
            equal distance (``measure_attention(...).matched``).
        sets: sets of heads to take out in place of these, by name: "5.2,5.7", or [(5, 2), (5, 7)], for heads 2 and 7 of
            layer 5; "encoder.5.2" or ("encoder", 5, 2) where there are several stacks.
        kind: what is put in the place of what a head puts out. "mean": one vector for each head, the mean over all
            positions of other documents; "position": one for each position; "resample": what it puts out at the
            same position of another document; "zero": nothing, which the model has never seen.
        reference: documents to take means and outputs from. None: the documents themselves, in two halves by their
            source, each with those of the other.
        n_matched: how many random sets each set is compared with; 0 leaves p-values out.
        match: whether random sets are of the same "layers" only, or those of them whose outputs change by nearly the
            same "norm" when they are replaced by their mean.
        exact: with "each", no more heads than these are measured. Of models with more, every head is first screened
            (the gradient of the outcome times what its output would change by, one pass there and back), and the
            greatest are measured, with heads of their layers to compare them with; ``screened`` says which. A slope
            knows nothing of what is curved: where a loss is at its minimum it is 0 for heads that matter, too.
        alternative: what counts as extreme in p-values.

    Raises:
        ValueError: for topics of another vocabulary, heads that the model does not have, a model whose heads cannot be
            edited, documents that can be read only once where they are needed twice, or a checkpoint of another
            measurement.

    Example:
        >>> import torch
        >>> world = tp.World(n_topics=4, words_per_topic=5, topics_per_document=2)
        >>> toy = tp.build_toy(tp.ToyConfig(regime="value", world=world))
        >>> documents = world.documents(16, generator=torch.Generator().manual_seed(0))
        >>> nothing = tp.measure_ablation(toy, world.topics, documents, sets={"nothing": []}, kind="zero")
        >>> nothing.effect.item(), nothing.p_value.item()
        (0.0, 1.0)
    """
    check_whole("n_matched", n_matched, 0)
    check_whole("exact", exact, 1)
    with joined(run.distributed, run.patience) as processes:
        model = open_model(model)
        view = capture.view(model, topics)
        reading = reading.of(view.facts)
        every = Heads.of(view)
        outcome = looked_at.of(view, topics, intervals.seed)
        screening = sets is None and heads == "each" and len(every) > exact
        chosen_here = sets is None and heads != "each"
        _check_twice(documents, reference, needed=screening or chosen_here or kind != "zero")
        others = partial(_batches, documents, view, reading)
        if reference is not None:
            others = partial(_batches, reference, view, replace(reading, groups="source"))
        stand_ins = StandIns.of(view, others, kind, halves=reference is None, norms=match == "norm")
        screened = None
        if screening:
            estimates = _screen(view, topics, outcome, stand_ins, _batches(documents, view, reading))
            asked_for, null = _most(every, estimates, exact, n_matched, intervals.seed)
            measured = set(itertools.chain(*asked_for, *itertools.chain(*null)))
            screened = {**every.index(range(len(every))), "estimate": estimates,
                        "measured": tuple(head in measured for head in range(len(every)))}  # fmt: skip
        else:
            if sets is not None:
                asked_for = [every.named(each) for each in sets.values()]
            elif heads == "each":
                asked_for = [(head,) for head in range(len(every))]
            else:
                options = {**vars(reading), "n_permutations": 0, "n_resamples": 0}
                asked_for = [_most_topical(measure_attention(model, topics, documents, **options), heads)]
            norms = stand_ins.norms if match == "norm" else None
            null = [
                _others(every, each, n_matched, norms, intervals.seed + n) for n, each in enumerate(asked_for)
            ]
        cells = list(dict.fromkeys([*asked_for, *itertools.chain(*null)]))
        place = {each: number for number, each in enumerate(cells, 1)}
        reader = EffectReader(view, topics, outcome, Ablations(view, every, cells, stand_ins), len(cells))
        facts = {
            "measurement": "ablation", "sets": [list(each) for each in cells], "kind": kind,
            "stand-ins": stand_ins.fingerprint, **outcome.facts,
        }  # fmt: skip
        options = {
            "kind": kind, "mask_share": looked_at.mask_share, "n_matched": n_matched, "match": match,
            "alternative": alternative, "exact": exact, "reference": reference is not None, **outcome.facts,
        }  # fmt: skip
        index: dict[str, tuple[Any, ...]] = {"set": (f"{heads} that attend most by topic",)}
        if sets is not None:
            index = {"set": tuple(map(str, sets))}
        elif heads == "each":
            index = every.index([each[0] for each in asked_for])
        index["n"] = tuple(map(len, asked_for))
        index["heads"] = tuple(" ".join(every.name(head) for head in each) for each in asked_for)
        parts = parts_of(
            view, topics, options=options, reading=reading, intervals=intervals, processes=processes,
            readouts=outcome.readouts, cells=[place[each] for each in asked_for],
            others=[[place[other] for other in of_set] for of_set in null],
            index=index, alternative=alternative, screened=screened,
        )  # fmt: skip
        sums, progress = add_up(
            reader, documents, facts=facts, reading=reading, run=run, processes=processes,
            only_labelled=outcome.of_words, shard=share_of_effects(shards, EffectReport.kind, parts),
        )  # fmt: skip
    return EffectReport.of_sums(sums, progress, parts)


def _batches(documents: Any, view: capture.View, reading: Reading) -> Iterator[Any]:
    return read_batches(in_groups(documents, reading.groups, view.facts.pad_id), view, reading)


def _check_twice(documents: Any, reference: Any, *, needed: bool) -> None:
    if needed and reference is None:
        check_read_again(
            documents,
            "documents are read more than once here, to choose heads and to know what stands in for them",
            instead="a list, or what Corpus.documents gives, or other documents as reference=",
        )


# ---------------------------------------------------------------------------- sets of heads


def _most_topical(report: AttentionReport, n: int) -> Set:
    """The heads that attend most by topic at equal distance."""
    check_whole("heads", n, 1)
    ratio = report.matched.ratio
    if n > (n_known := int(np.isfinite(ratio).sum())):
        raise ValueError(
            f"heads={n} asks for more heads than the {n_known} that attend between words of topics"
        )
    return tuple(sorted(np.argsort(-np.nan_to_num(ratio, nan=-np.inf), kind="stable")[:n].tolist()))


def _others(
    every: Heads, each: Set, n: int, norms: Float64[np.ndarray, " head"] | None, seed: int
) -> list[Set]:
    """Sets of as many heads of the same layers, drawn without repetition; itself where there is no other."""
    if n == 0:
        return []
    sites = itertools.groupby(each, key=lambda head: every.site_of[head])
    layers = [(every.layer(site), len(list(own))) for site, own in sites]
    wanted = n if norms is None else n * _CHOICE
    found: dict[Set, None] = {}
    if math.prod(math.comb(len(heads), size) for heads, size in layers) <= wanted + 1:
        for parts in itertools.product(*(itertools.combinations(heads, size) for heads, size in layers)):
            found[tuple(itertools.chain(*parts))] = None
    else:
        generator = np.random.default_rng(seed)
        while len(found) <= wanted:
            drawn = [generator.choice(heads, size, replace=False).tolist() for heads, size in layers]
            found[tuple(sorted(itertools.chain(*drawn)))] = None
    found.pop(each, None)
    others = list(found) if norms is None else sorted(found, key=partial(_off, each, norms))
    return others[:n] or [each]


def _off(one: Set, norms: Float64[np.ndarray, " head"], other: Set) -> float:
    """How far the norms of two sets are apart, as a factor."""
    own, its = (math.sqrt(sum(norms[head] ** 2 for head in heads)) for heads in (one, other))
    return abs(math.log(max(its, 1e-300) / max(own, 1e-300)))


# ---------------------------------------------------------------------------- what is done to a model


@dataclass(frozen=True)
class Ablations:
    """Takes sets of heads out, one after the other."""

    view: capture.View
    every: Heads
    cells: Sequence[Set]
    stand_ins: StandIns

    def __call__(self, asked: Asked) -> Iterator[AbstractContextManager[None]]:
        """What is done to the model for a batch."""
        outputs = self.stand_ins.for_batch(asked)
        for each in self.cells:
            edits = {}
            for site, heads in itertools.groupby(each, key=lambda head: self.every.site_of[head]):
                own = [self.every.head_of[head] for head in heads]
                edits[self.every.sites[site]] = replaced({head: outputs(site, head) for head in own})
            yield edit_heads(self.view.model, edits)


# ---------------------------------------------------------------------------- screening


def _screen(
    view: capture.View, topics: Topics, outcome: Outcome, stand_ins: StandIns, batches: Iterator[Any]
) -> Float64[np.ndarray, " head"]:
    """First-order estimates of the effect of every head: minus the outcome's gradient times what its output moves by.

    The outcome is that of each document by itself, averaged, of the first readout.
    """
    weights = next(iter(outcome.readouts.values()))
    every = Heads.of(view)
    total, n = np.zeros(len(every)), 0
    for batch in batches:
        asked = outcome.ask(batch, units_of(batch, topics))
        put_out: dict[int, Tensor] = {}

        def keep(site: int, outputs: Tensor, put_out: dict[int, Tensor] = put_out) -> Tensor:
            put_out[site] = outputs.detach().clone().requires_grad_()
            return outputs + (put_out[site] - put_out[site].detach())

        edits = {site: partial(keep, number) for number, site in enumerate(view.sites)}
        with edit_heads(view.model, edits), torch.enable_grad():
            numbers = outcome.read(asked)
            each = map(partial(readout_of, weights), numbers, asked.kinds)
            told = [number for number in each if number is not None]
            if not told:
                continue
            slopes = torch.autograd.grad(
                torch.stack(told).sum(), list(put_out.values()), materialize_grads=True
            )
        outputs = stand_ins.for_batch(asked)
        for site, slope in zip(put_out, slopes, strict=True):
            real = asked.inputs.masks(view.sites[site])[0][:, :, None]
            for head, number in enumerate(every.layer(site)):
                instead = outputs(site, head)
                moved = -put_out[site][:, :, head].detach()
                moved = moved if isinstance(instead, str) else moved + instead
                total[number] -= float((real * moved * slope[:, :, head]).sum(dtype=torch.float64))
        n += len(told)
    return total / max(n, 1)


def _most(
    every: Heads, estimates: Float64[np.ndarray, " head"], exact: int, n_matched: int, seed: int
) -> tuple[list[Set], list[list[Set]]]:
    """The heads with the greatest estimates, and for each some heads of its layer, the same for all of a layer."""
    most = sorted(np.argsort(-np.abs(estimates), kind="stable")[:exact].tolist())
    generator = np.random.default_rng(seed)
    compared: dict[int, list[Set]] = {}
    for site in sorted({every.site_of[head] for head in most}):
        heads = every.layer(site)
        drawn = generator.permutation(heads)[: min(n_matched, _COMPARED)]
        compared[site] = [(int(head),) for head in drawn]
    if not n_matched:
        return [(head,) for head in most], [[] for _ in most]
    null: list[list[Set]] = []
    for head in most:
        others = [other for other in compared[every.site_of[head]] if other != (head,)]
        null.append(others or [(head,)])
    return [(head,) for head in most], null
