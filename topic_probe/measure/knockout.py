"""What is lost when words of a topic cannot read each other: an outcome with and without those edges of attention."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from topic_probe.contrast import DIFFERENT_TOPIC, SAME_TOPIC, SAME_WORD, word_relations
from topic_probe.estimate import Alternative
from topic_probe.lens import capture
from topic_probe.lens.edit import cut_edges
from topic_probe.lens.opening import open_model
from topic_probe.lens.sites import Site
from topic_probe.measure.effects import (
    Counted,
    EffectReader,
    EffectReport,
    add_up,
    parts_of,
)
from topic_probe.measure.heads import Heads
from topic_probe.measure.options import Intervals, Reading, Run
from topic_probe.measure.outcomes import Asked, LookedAt
from topic_probe.options import check_whole, shares
from topic_probe.topics import Topics

Relation = Literal["same_topic", "different_topic", "same_word", "own_topic"]
How = Literal["scores", "weights"]

CODES = {
    "same_word": (SAME_WORD,), "same_topic": (SAME_TOPIC,), "different_topic": (DIFFERENT_TOPIC,),
    "own_topic": (SAME_WORD, SAME_TOPIC),
}  # fmt: skip

# An edge stands in for another if its distance is within this share of the other's, or next to it.
_NEAR = 0.2


@shares
def measure_knockout(
    model: Any,
    topics: Topics,
    documents: Any,
    *,
    relation: Relation = "same_topic",
    how: How = "scores",
    layers: Sequence[int] | None = None,
    heads: Any = None,
    n_matched: int = 20,
    alternative: Alternative = "two-sided",
    looked_at: LookedAt,
    reading: Reading,
    intervals: Intervals,
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
        layers: the layers where edges are cut; None: all.
        heads: the heads for which they are cut, as in ``measure_ablation(sets=...)``: "5.2,5.7"; None: all.
        n_matched: how many matched cuts there are; 0 leaves p-values out.
        alternative: what counts as extreme in p-values.

    Raises:
        ValueError: for topics of another vocabulary, layers and heads that the model does not have, a model whose
            attention cannot be edited, or a folder of another measurement.

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
    model = open_model(model)
    view = capture.view(model, topics)
    reading = reading.of(view.facts)
    outcome = looked_at.of(view, topics, intervals.seed)
    sites = chosen_sites(view, layers, heads)
    earlier = view.is_causal and looked_at.outcome == "loss"
    cuts = Cuts(view, topics, sites, CODES[relation], how, n_matched, intervals.seed, earlier=earlier)
    facts = {
        "measurement": "knockout", "relation": relation, "how": how, "n_matched": n_matched,
        "sites": [[site.stack, site.layer, list(own or ())] for site, own in sites.items()],
        "seed": intervals.seed, **outcome.facts,
    }  # fmt: skip
    reader = EffectReader(view, topics, outcome, cuts, 1 + n_matched)
    options = {
        "relation": relation, "how": how, "layers": layers, "heads": heads, "n_matched": n_matched,
        "alternative": alternative, "mask_share": looked_at.mask_share, **outcome.facts,
    }  # fmt: skip
    parts = parts_of(
        view, topics, options=options, reading=reading, intervals=intervals,
        readouts=outcome.readouts, cells=[1], others=[list(range(2, 2 + n_matched))],
        index={"cut": (relation,)}, alternative=alternative,
    )  # fmt: skip
    return add_up(
        reader, documents, facts=facts, reading=reading, run=run, parts=parts, counted=[cuts.edges],
        only_labelled=outcome.of_words,
    )  # fmt: skip


def chosen_sites(
    view: capture.View, layers: Sequence[int] | None, heads: Any
) -> dict[Site, tuple[int, ...] | None]:
    """The sites where something is done, with the heads; None for all of them.

    Raises:
        ValueError: for layers and heads that there are not, and for both at once.
    """
    if layers is not None and heads is not None:
        raise ValueError("layers= and heads= both say where edges are cut: give one of them")
    known = [site for site in view.sites if site.stack != "cross"]
    if heads is not None:
        every = Heads.of(view)
        found: dict[Site, tuple[int, ...] | None] = {}
        for site, own in itertools.groupby(every.named(heads), key=lambda head: every.site_of[head]):
            found[view.sites[site]] = tuple(every.head_of[head] for head in own)
        if any(site.stack == "cross" for site in found):
            raise ValueError(
                "edges are cut between words of one document: leave the heads of cross attention out"
            )
        return found
    numbers = sorted({site.layer for site in known})
    if unknown := sorted(set(layers or ()) - set(numbers)):
        raise ValueError(
            f"the model has no layer {unknown[0]} that attends: it has {numbers[0]} to {numbers[-1]}"
        )
    return {site: None for site in known if layers is None or site.layer in layers}


@dataclass
class Cuts:
    """Cuts the edges of a relation, then as many others at the same distance, time and again.

    Attributes:
        view: the model.
        topics: which words are related.
        sites: where edges are cut, and for which heads.
        codes: of the relation.
        how: before or after the softmax.
        n_matched: how many times others are cut.
        seed: of the choice between edges.
        earlier: whether a word is predicted one position before it stands.
        edges: counts those that were cut, and those that were found to compare them with.
    """

    view: capture.View
    topics: Topics
    sites: dict[Site, tuple[int, ...] | None]
    codes: tuple[int, ...]
    how: How
    n_matched: int
    seed: int
    earlier: bool

    def __post_init__(self) -> None:
        self.edges = Counted("edges", 2)

    def __call__(self, asked: Asked) -> Iterator[AbstractContextManager[None]]:
        """What is done to the model for a batch."""
        n, length = asked.batch.ids.shape
        of_documents = [self._of_document(asked, row) for row in range(n)]
        counted = np.zeros(2)
        for number in range(1 + self.n_matched):
            table = torch.zeros(n, length, length, dtype=torch.bool)
            for row, tables in enumerate(of_documents):
                table[row] = tables.edges(number)
            counted[min(number, 1)] += int(table.sum())
            yield cut_edges(self.view.model, self._by_site(table), how=self.how)
        # Only now, because a batch for which there is no memory comes again in halves.
        self.edges.sums["edges"] += counted

    def _by_site(self, table: Bool[Tensor, "batch query key"]) -> dict[Site, Tensor]:
        cut = {}
        for site, n_heads in zip(self.view.sites, self.view.n_heads, strict=True):
            if site in self.sites:
                own, part = self.sites[site], table[:, None]
                if site.stack == "decoder":  # which reads a document one position later
                    part = torch.nn.functional.pad(part[..., :-1, :-1], (1, 0, 1, 0))
                if own is not None:
                    chosen = torch.isin(torch.arange(n_heads), torch.tensor(own))
                    part = part & chosen[:, None, None]
                cut[site] = part
        return cut

    def _of_document(self, asked: Asked, row: int) -> "_Edges":
        """The edges of a document, and what each may be exchanged for."""
        words, batch = asked.units[row], asked.batch
        length = int(batch.mask[row].sum())
        relations = word_relations(words.places, words.places, self.topics)
        related = torch.isin(relations, torch.tensor(self.codes, dtype=relations.dtype)).fill_diagonal_(False)
        query, key = related.nonzero().T
        rows, keys = words.positions[query], words.positions[key]
        if self.earlier:
            rows = rows - 1
        # What must not stand in: the row itself, sinks, padding, and what is in the relation or is the same word.
        barred = torch.zeros(batch.ids.shape[1], batch.ids.shape[1], dtype=torch.bool)
        barred[:, ~batch.mask[row] | batch.sinks[row]] = True
        barred.fill_diagonal_(True)
        first, second = (related | (relations == SAME_WORD)).nonzero().T
        barred[words.positions[first] - int(self.earlier), words.positions[second]] = True
        if self.view.is_causal:
            seen = (rows >= 0) & (keys <= rows)
            rows, keys = rows[seen], keys[seen]
            barred |= torch.ones_like(barred).triu(1)
        generator = np.random.default_rng([self.seed, int(batch.keys[row]) % 2**64])
        return _Edges(rows, keys, ~barred[:, :length], batch.ids.shape[1], generator)


class _Edges:
    """The edges of one document that are cut, and those that are cut instead of them."""

    def __init__(
        self,
        rows: Int64[Tensor, " edge"],
        keys: Int64[Tensor, " edge"],
        free: Bool[Tensor, "position key"],
        length: int,
        generator: np.random.Generator,
    ) -> None:
        self.rows, self.keys, self.length, self.generator = rows, keys, length, generator
        queries, query = torch.unique(rows, return_inverse=True)
        self.queries, self.free = queries.numpy(), free[queries].numpy()
        self.away = np.abs(np.arange(free.shape[1]) - self.queries[:, None])
        # How far the keys of every query are, one after the other; −1 where others have more.
        order, n = query.argsort(stable=True), query.bincount(minlength=len(queries))
        place = torch.arange(len(rows)) - (n.cumsum(0) - n)[query[order]]
        distances = torch.full((len(queries), max(n.tolist(), default=0)), -1)
        distances[query[order], place] = (keys - rows).abs()[order]
        self.distances = distances.numpy()

    def edges(self, number: int) -> Bool[Tensor, "position position"]:
        """Those of the relation (0), or others at nearly the same distance from the same rows."""
        table = torch.zeros(self.length, self.length, dtype=torch.bool)
        if number == 0:
            table[self.rows, self.keys] = True
            return table
        free, every = self.free.copy(), np.arange(len(self.queries))
        # One key of every query at a time, which takes the nearest key that is left, at random between several.
        for distance in self.generator.permuted(self.distances, axis=1).T:
            off = np.where(free, np.abs(self.away - distance[:, None]), np.inf)
            best = (off + self.generator.uniform(0, 0.5, off.shape)).argmin(1)
            found = (distance >= 0) & (off[every, best] <= np.maximum(1, _NEAR * distance))
            free[every[found], best[found]] = False
        taken = torch.from_numpy(self.free & ~free)
        table[torch.from_numpy(self.queries), : taken.shape[1]] = taken
        return table
