"""What is done to a model: heads are taken out, or words of a topic cannot read each other.

Each is compared with as much of the same kind elsewhere: random sets of as many heads, and other edges of attention at
nearly the same distance.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int8
from torch import Tensor

from topic_probe.contrast import DIFFERENT_TOPIC, SAME_TOPIC, SAME_WORD, word_relations
from topic_probe.lens.edit import cut_edges, edit_heads, head_outputs, replaced
from topic_probe.lens.host import Host, host_of
from topic_probe.lens.opening import open_model
from topic_probe.lens.running import evaluating
from topic_probe.lens.sites import Site
from topic_probe.measure.documents import facts_of_run, read_batches
from topic_probe.measure.effects import EffectReport, OutcomeOptions, Places, Plan, measure_effects
from topic_probe.measure.folder import Folder
from topic_probe.measure.heads import Heads
from topic_probe.measure.options import Confidence, Reading, Run
from topic_probe.options import check_whole, shares
from topic_probe.text.batches import TokenBatch
from topic_probe.text.documents import check_read_again, hash_of
from topic_probe.topics import Topics

Edges = Bool[Tensor, "batch query key"]
How = Literal["scores", "weights"]
Relation = Literal["same_topic", "different_topic", "same_word", "own_topic"]
Set = tuple[int, ...]  # numbers of heads, counted through stacks and layers, ascending

# Of fewer other sets in the same layers than this, random ones are of all layers.
_ENOUGH_SETS = 100
# By so many bits of their numbers sources are tried to be parted into halves; the first that parts them does.
_BITS = 16
# An edge stands in for another if its distance is within this share of the other's, or next to it.
_NEAR = 0.2


# ---------------------------------------------------------------------------- heads


@shares
def measure_ablation(
    model: Any,
    topics: Topics,
    documents: Any,
    *,
    sets: Mapping[str, Any] | None = None,
    kind: Literal["mean", "zero"] = "mean",
    reference: Any = None,
    n_matched: int = 100,
    looked_at: OutcomeOptions,
    reading: Reading,
    intervals: Confidence,
    run: Run,
) -> EffectReport:
    """What taking heads out does to an outcome: every head by itself, or sets of heads.

    An effect is the outcome of the model as it is − the outcome without the heads, on the same documents, so that a
    positive effect on "states" says that the heads bring words of a topic together. What a head puts out is replaced
    before the output projection, at every position. Intervals are over sources, paired; ``p_value`` and ``q_value`` are
    of no effect at all.

    Heads one by one stand beside the effect of their whole layer: a scale, but no bound, because effects of heads may
    cancel. Sets are compared with random sets of as many heads of the same layers, or of all layers where these have
    fewer than 100 other sets (the report says which); ``p_random`` needs 20 of them. Every head, layer, set and random
    set costs a forward pass.

    With ``folder=``, what stands in for heads is found by whoever comes first and kept there, so that all workers do
    the same to the model.

    Args:
        model: anything that `open_model` takes. It comes back as it was.
        topics: which vocabulary entries belong to which topic.
        documents: token ids in any shape that `topic_probe.text.documents.read_documents` takes.
        sets: sets of heads to take out together, by name; None takes out every head by itself. A set is "5.2,5.7" for
            heads 2 and 7 of layer 5, "5" for all of the layer, "encoder.5.2" where there are several stacks; or
            [(5, 2), (5, 7)]; or heads of a report, as in
            ``{"top": measure_attention(model, topics, documents).matched.top(5, by="ratio")}``.
        kind: what is put in the place of what a head puts out. "mean": one vector for each head, the mean over all
            positions of other documents; "zero": nothing, which the model has never seen.
        reference: documents to take means from. None: the documents themselves, in two halves by their source, each
            with those of the other.
        n_matched: how many random sets each set is compared with; 0: none.

    Raises:
        ValueError: for topics of another vocabulary, heads that the model does not have, a model whose heads cannot be
            edited, documents that can be read only once where they are needed twice, or a folder of another
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
    view = host_of(open_model(model), topics)
    reading, every = reading.of(view.facts), Heads.of(view)
    outcome = looked_at.of(view, topics, intervals.seed)
    layers: list[Set] = []
    chosen: list[Set]
    if sets is None:
        chosen = [(head,) for head in range(len(every))]
        others: list[list[Set]] = [[] for _ in chosen]
        layers = [tuple(every.layer(every.site_of[head])) for (head,) in chosen]
        index = every.index(range(len(every)))
    else:
        chosen = [every.named(heads) for heads in sets.values()]
        random = [random_sets(every, heads, n_matched, intervals.seed + n) for n, heads in enumerate(chosen)]
        others = [drawn for drawn, _ in random]
        index = {"set": tuple(map(str, sets)), "n": tuple(map(len, chosen))}
        index["heads"] = tuple(" ".join(map(every.name, heads)) for heads in chosen)
        if n_matched:
            index["random"] = tuple(where for _, where in random)
    means = _means(view, documents, reference, reading, run) if kind == "mean" else None
    done = list(dict.fromkeys(itertools.chain(chosen, layers, *others)))
    cell = {heads: number for number, heads in enumerate(done, 1)}
    plan = Plan(
        partial(_ablations, view, every, done, means), len(done),
        options={
            "measurement": "ablation", "kind": kind, "n_matched": n_matched, "sets": done,
            "reference": reference is not None,
            "means": means and hash_of(name.encode() + means[name].tobytes() for name in sorted(means)),
        },
        parts={
            "index": index, "cells": [cell[heads] for heads in chosen], "layers": [cell[heads] for heads in layers],
            "others": [[cell[heads] for heads in drawn] for drawn in others],
        },
    )  # fmt: skip
    return measure_effects(
        view, topics, documents, outcome, plan, reading=reading, intervals=intervals, run=run
    )


def random_sets(every: Heads, heads: Set, n: int, seed: int) -> tuple[list[Set], str]:
    """Different sets of as many heads, all there are where these are fewer; and of which layers they are."""
    places: Sequence[Any] = every.site_of
    pools, n_others = _pools(every, heads, places)
    where = "the same layers"
    if n_others < _ENOUGH_SETS:
        pools, n_others = _pools(every, heads, [every.sites[site].stack for site in places])
        where = "all layers"
    generator, found = np.random.default_rng(seed), dict.fromkeys([heads])
    while len(found) <= min(n, n_others):
        drawn = [generator.choice(pool, size, replace=False).tolist() for pool, size in pools]
        found[tuple(sorted(itertools.chain(*drawn)))] = None
    return list(found)[1:], where


def _pools(every: Heads, heads: Set, places: Sequence[Any]) -> tuple[list[tuple[list[int], int]], int]:
    """For every place of heads all heads there and how many of them are chosen; how many other sets have as many."""
    sizes = Counter(places[head] for head in heads)
    pools = [([head for head in range(len(every)) if places[head] == place], n) for place, n in sizes.items()]
    return pools, math.prod(math.comb(len(pool), n) for pool, n in pools) - 1


def _means(view: Host, documents: Any, reference: Any, reading: Reading, run: Run) -> dict[str, np.ndarray]:
    """What stands in for heads (`mean_outputs`); with a folder made by whoever comes first."""
    if reference is None:
        check_read_again(
            documents,
            "documents are read twice here, first to know what stands in for heads",
            instead="a list, or what Corpus.documents gives, or other documents as reference=",
        )

    def make() -> dict[str, np.ndarray]:
        batches = read_batches(documents if reference is None else reference, view, reading)
        return mean_outputs(view, batches, halves=reference is None)

    if run.folder is None:
        return make()
    facts = {
        **facts_of_run(view, documents, reading, run),
        "measurement": "mean outputs of heads", "reference": reference is not None,
    }  # fmt: skip
    return Folder(Path(run.folder), facts).once("means", make)


def mean_outputs(view: Host, batches: Iterable[TokenBatch], *, halves: bool) -> dict[str, np.ndarray]:
    """By site what its heads put out on average [half, head, d_head], over all positions of documents of two halves.

    The halves are of sources, by a "bit" of their numbers. Without halves both are all documents.

    Raises:
        ValueError: where there is no document, or halves are asked of a single source.
    """
    sums: dict[int, Any] = {}
    counts: dict[int, Any] = {}
    documents = torch.zeros(2, _BITS)

    def add(batch: TokenBatch) -> None:
        inputs = view.inputs(batch.ids, batch.mask)
        bits = batch.sources[:, None] >> torch.arange(_BITS) & int(halves)
        part = torch.stack([1 - bits, bits]).double()  # [half, document, bit]

        def read(site: int, outputs: Float[Tensor, "batch query head d_head"]) -> None:
            mask = inputs.masks(view.sites[site])[0]
            own = outputs.detach().double().masked_fill(~mask[:, :, None, None], 0).sum(1).cpu()
            sums[site] = sums.get(site, 0) + torch.einsum("kdb,dhe->bkhe", part, own)
            counts[site] = counts.get(site, 0) + torch.einsum("kdb,d->bk", part, mask.sum(1).cpu().double())

        with evaluating(view.model):
            head_outputs(view, inputs, read)
        documents.add_(part.sum(1))

    for batch in batches:
        add(batch)
    parting = documents[: 1 + halves].all(0).nonzero().flatten().tolist()
    if not parting:
        raise ValueError(
            "what stands in for the outputs of heads is of other documents than those it is put into, and there are "
            "not two sources to take it from: give more documents, others as reference=, or kind='zero'"
        )
    bit, given = parting[0], [0, 1] if halves else [0, 0]
    means = {str(site): (sums[site][bit] / counts[site][bit, :, None, None])[given].numpy() for site in sums}
    return {"bit": np.array(bit), **means}


def _ablations(
    view: Host,
    every: Heads,
    sets: Sequence[Set],
    means: Mapping[str, np.ndarray] | None,
    batch: TokenBatch,
    places: Places,
) -> Iterator[AbstractContextManager[None]]:
    """Takes sets of heads out, one after the other: what they put out gives way to means (`mean_outputs`), or to 0."""
    given: dict[int, Tensor] = {}
    if means is not None:  # every document gets those of the other half
        other = 1 - (batch.sources >> int(means["bit"]) & 1)
        like = next(view.model.parameters())
        sites = range(len(view.sites))
        given = {site: torch.from_numpy(means[str(site)])[other][:, None].to(like) for site in sites}
    for heads in sets:
        edits = {}
        for site, own in itertools.groupby(heads, key=lambda head: every.site_of[head]):
            numbers = [every.head_of[head] for head in own]
            edits[every.sites[site]] = replaced(
                {number: given[site][:, :, number] if given else "zero" for number in numbers}
            )
        yield edit_heads(view.model, edits)


# ---------------------------------------------------------------------------- edges of attention


_CODES = {
    "same_word": (SAME_WORD,), "same_topic": (SAME_TOPIC,), "different_topic": (DIFFERENT_TOPIC,),
    "own_topic": (SAME_WORD, SAME_TOPIC),
}  # fmt: skip


@shares
def measure_knockout(
    model: Any,
    topics: Topics,
    documents: Any,
    *,
    relation: Relation = "same_topic",
    how: How = "scores",
    heads: Any = None,
    n_matched: int = 20,
    looked_at: OutcomeOptions,
    reading: Reading,
    intervals: Confidence,
    run: Run,
) -> EffectReport:
    """What cutting the attention between words of a topic does to an outcome, against cutting other edges.

    An edge is cut where a word of a topic reads another one: forms of one word, and a position itself, are never other
    words of the topic. Of a causal model whose "loss" is looked at, the row is that of the position that predicts the
    word, one before it. It is compared with matched cuts: of every row as many other edges, each at nearly the same
    distance, to words that are in no relation of this kind, drawn at random. ``provenance["edges"]`` says how many
    edges were cut, and which share of them could be matched.

    An effect is the outcome of the model as it is − that after the cut; ``beyond`` is what remains of it when the mean
    effect of the matched cuts is taken away.

    Args:
        model: anything that `open_model` takes. It comes back as it was.
        topics: which vocabulary entries belong to which topic.
        documents: token ids in any shape that `topic_probe.text.documents.read_documents` takes.
        relation: which edges are cut: to other words of the topic, to words of other topics, to the same word
            elsewhere, or ("own_topic") to the same and other words of the topic. A position's own is none of them.
        how: "scores" cuts before the softmax, so that attention goes to the other keys instead; "weights" after it, so
            that it is lost.
        heads: the heads for which they are cut, as a set of `measure_ablation`: "5.2,5.7", or "5" for a layer; None:
            all.
        n_matched: how many matched cuts there are; 0: none.

    Raises:
        ValueError: for topics of another vocabulary, heads that the model does not have, a model whose attention cannot
            be edited, or a folder of another measurement.

    Example:
        >>> import torch
        >>> world = tp.World(n_topics=4, words_per_topic=5, topics_per_document=2)
        >>> toy = tp.build_toy(tp.ToyConfig(regime="value", world=world))
        >>> documents = world.documents(16, generator=torch.Generator().manual_seed(0))
        >>> report = tp.measure_knockout(toy, world.topics, documents, n_matched=0)
        >>> report.provenance["edges"]["cut"] > 0
        True
    """
    check_whole("n_matched", n_matched, 0)
    view = host_of(open_model(model), topics)
    reading = reading.of(view.facts)
    outcome = looked_at.of(view, topics, intervals.seed)
    every, n_edges = Heads.of(view), np.zeros(2)
    chosen = _chosen(every, heads)
    earlier = view.is_causal and looked_at.outcome == "loss"

    def cuts(batch: TokenBatch, places: Places) -> Iterator[AbstractContextManager[None]]:
        """Cuts the edges of the relation, then as many others, time and again."""
        relations = word_relations(places, places, topics)
        cut, free = _edges(batch, relations, _CODES[relation], causal=view.is_causal, earlier=earlier)
        generators = [np.random.default_rng([intervals.seed, key % 2**64]) for key in batch.keys.tolist()]
        n = np.zeros(2)
        for number in range(1 + n_matched):
            edges = _instead(batch, cut, free, generators) if number else cut
            n[min(number, 1)] += int(edges.sum())
            yield cut_edges(view.model, _by_site(view, every, chosen, edges), how=how)
        # Only now, because a batch for which there is no memory comes again in halves.
        n_edges[:] += n

    plan = Plan(
        cuts, 1 + n_matched, edges=True,
        options={
            "measurement": "knockout", "relation": relation, "how": how, "n_matched": n_matched,
            "seed": intervals.seed, "heads": None if heads is None else [every.name(head) for head in chosen],
        },
        parts={
            "index": {"cut": (relation,)}, "cells": [1], "layers": [], "others": [list(range(2, 2 + n_matched))],
        },
        sums={"edges": n_edges},
    )  # fmt: skip
    return measure_effects(
        view, topics, documents, outcome, plan, reading=reading, intervals=intervals, run=run
    )


def _chosen(every: Heads, heads: Any) -> tuple[int, ...]:
    """The heads for which edges are cut; ValueError for those that there are not, or that read another text's words."""
    cross = [head for head, site in enumerate(every.site_of) if every.sites[site].stack == "cross"]
    if heads is None:
        return tuple(sorted({*range(len(every))} - {*cross}))
    chosen = every.named(heads)
    if {*chosen} & {*cross}:
        raise ValueError(
            "edges are cut between words of one document: leave the heads of cross attention out"
        )
    return chosen


def _edges(
    batch: TokenBatch,
    relations: Int8[Tensor, "batch query key"],
    codes: tuple[int, ...],
    *,
    causal: bool,
    earlier: bool,
) -> tuple[Edges, Edges]:
    """Edges that are cut, and those that may be cut instead; ``earlier`` where the row before a word predicts it."""
    itself = torch.eye(relations.shape[1], dtype=torch.bool)
    cut = torch.isin(relations, torch.tensor(codes, dtype=relations.dtype)) & ~itself
    related = cut | (relations == SAME_WORD)
    if earlier:
        cut, related = (torch.nn.functional.pad(part[:, 1:], (0, 0, 0, 1)) for part in (cut, related))
    # Nothing stands in that is the row itself, a sink or padding, in the relation, or the same word.
    free = ~(related | itself | (~batch.mask | batch.sinks)[:, None])
    return (cut.tril(), free.tril()) if causal else (cut, free)


def _instead(batch: TokenBatch, cut: Edges, free: Edges, generators: Sequence[np.random.Generator]) -> Edges:
    """For every edge that is cut another one from the same query, at nearly the same distance, where there is one."""
    found = torch.zeros_like(cut)
    for row, length in enumerate(batch.mask.sum(1).tolist()):
        own, left = (part[row, :length, :length].numpy() for part in (cut, free))
        found[row, :length, :length] = torch.from_numpy(_matched(own, left, generators[row]))
    return found


def _matched(
    cut: Bool[np.ndarray, "query key"], free: Bool[np.ndarray, "query key"], generator: np.random.Generator
) -> Bool[np.ndarray, "query key"]:
    """Those of one document."""
    queries = np.flatnonzero(cut.any(1))
    own, left, every = cut[queries], free[queries], np.arange(len(queries))
    away = np.abs(np.arange(cut.shape[1]) - queries[:, None])
    # How far the keys of every query are, one after the other; −1 where others have more.
    order = np.argsort(~own, axis=1, kind="stable")[:, : own.sum(1).max(initial=0)]
    distances = np.where(np.take_along_axis(own, order, 1), np.take_along_axis(away, order, 1), -1)
    # One key of every query at a time, which takes the nearest key that is left, at random between several.
    for distance in generator.permuted(distances, axis=1).T:
        off = np.where(left, np.abs(away - distance[:, None]), np.inf)
        best = (off + generator.uniform(0, 0.5, off.shape)).argmin(1)
        found = (distance >= 0) & (off[every, best] <= np.maximum(1, _NEAR * distance))
        left[every[found], best[found]] = False
    taken = np.zeros_like(cut)
    taken[queries] = free[queries] & ~left
    return taken


def _by_site(view: Host, every: Heads, heads: Sequence[int], edges: Edges) -> dict[Site, Tensor]:
    found = {}
    for number, own in itertools.groupby(heads, key=lambda head: every.site_of[head]):
        site, chosen = every.sites[number], torch.zeros(view.n_heads[number], dtype=torch.bool)
        chosen[[every.head_of[head] for head in own]] = True
        # A decoder reads a document one position later.
        cut = torch.nn.functional.pad(edges[:, :-1, :-1], (1, 0, 1, 0)) if site.stack == "decoder" else edges
        found[site] = cut[:, None] if chosen.all() else cut[:, None] & chosen[:, None, None]
    return found
