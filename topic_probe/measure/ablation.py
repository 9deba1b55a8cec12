"""What is lost when heads are taken out: an outcome with and without what they put out."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from topic_probe.estimate import Alternative
from topic_probe.lens import capture
from topic_probe.lens.edit import Replacement, edit_heads, head_outputs, replaced
from topic_probe.lens.opening import open_model
from topic_probe.lens.running import evaluating
from topic_probe.measure.attention import AttentionReport, measure_attention
from topic_probe.measure.effects import EffectReader, EffectReport, add_up, parts_of
from topic_probe.measure.engine import facts_of_run, read_batches
from topic_probe.measure.folder import Folder
from topic_probe.measure.heads import Heads
from topic_probe.measure.options import Intervals, Reading, Run
from topic_probe.measure.outcomes import Asked, LookedAt
from topic_probe.options import check_whole, shares
from topic_probe.text.batches import TokenBatch
from topic_probe.text.documents import check_read_again, hash_of
from topic_probe.topics import Topics

Kind = Literal["mean", "zero"]
Set = tuple[int, ...]  # numbers of heads, counted through stacks and layers, ascending

_BITS = 2**64 - 1  # of the number of a source


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
    alternative: Alternative = "two-sided",
    looked_at: LookedAt,
    reading: Reading,
    intervals: Intervals,
    run: Run,
) -> EffectReport:
    """What taking heads out does to an outcome, against taking out as many others of the same layers.

    An effect is the outcome of the model as it is − the outcome without the heads, on the same documents, so that a
    positive effect on "states" says that the heads bring words of a topic together. What a head puts out is replaced
    before the output projection, at every position.

    What is found out of all documents before heads are taken out (what stands in for them, the choice of the heads that
    attend most) takes one pass for each, beside one for every set. With ``folder=`` it is kept there by whoever comes
    first, so that all workers do the same to the model.

    Its p-value compares a set with random sets of as many heads of the same layers (a single head with the other heads
    of its layer, which are no more than there are), so that what any such set does is no effect of these heads.
    Intervals resample sources, paired: both outcomes are of the same documents.

    Args:
        model: anything that `open_model` takes. It comes back as it was.
        topics: which vocabulary entries belong to which topic.
        documents: token ids in any shape that `topic_probe.text.documents.read_documents` takes.
        heads: "each" takes out one after the other; a number the so many heads together that attend most by topic at
            equal distance (``measure_attention(...).matched``).
        sets: sets of heads to take out in place of these, by name: "5.2,5.7", or [(5, 2), (5, 7)], for heads 2 and 7 of
            layer 5; "encoder.5.2" or ("encoder", 5, 2) where there are several stacks.
        kind: what is put in the place of what a head puts out. "mean": one vector for each head, the mean over all
            positions of other documents; "zero": nothing, which the model has never seen.
        reference: documents to take means from. None: the documents themselves, in two halves by their source, each
            with those of the other.
        n_matched: how many random sets each set is compared with; 0 leaves p-values out.
        alternative: what counts as extreme in p-values.

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
    model = open_model(model)
    view = capture.view(model, topics)
    reading = reading.of(view.facts)
    every = Heads.of(view)
    outcome = looked_at.of(view, topics, intervals.seed)
    chosen_here = sets is None and heads != "each"
    _check_twice(documents, reference, needed=chosen_here or kind == "mean")
    means, known = None, facts_of_run(view, documents, reading, run)
    if kind == "mean":
        others = documents if reference is None else reference
        batches = partial(read_batches, others, view, reading)
        make = partial(MeanOutputs.of, view, batches, halves=reference is None)
        facts = {**known, "measurement": "mean outputs of heads", "reference": reference is not None}
        found = _once(run, "means", facts, lambda: make().arrays)
        means = MeanOutputs.of_arrays(view, found, halves=reference is None)
    if sets is not None:
        asked_for = [every.named(each) for each in sets.values()]
    elif heads == "each":
        asked_for = [(head,) for head in range(len(every))]
    else:
        facts = {
            **known,
            "measurement": "heads that attend most",
            "topics": topics.fingerprint,
            "heads": heads,
        }
        attended = {**vars(reading), "n_permutations": 0}
        choose = partial(measure_attention, model, topics, documents, **attended)
        found = _once(run, "heads", facts, lambda: {"heads": np.array(_most_topical(choose(), heads))})
        asked_for = [tuple(found["heads"].tolist())]
    null = [_others(every, each, n_matched, intervals.seed + n) for n, each in enumerate(asked_for)]
    cells = list(dict.fromkeys([*asked_for, *itertools.chain(*null)]))
    place = {each: number for number, each in enumerate(cells, 1)}
    reader = EffectReader(view, topics, outcome, Ablations(view, every, cells, means), len(cells))
    facts = {
        "measurement": "ablation", "sets": [list(each) for each in cells], "kind": kind,
        "means": None if means is None else means.fingerprint, **outcome.facts,
    }  # fmt: skip
    options = {
        "kind": kind, "mask_share": looked_at.mask_share, "n_matched": n_matched,
        "alternative": alternative, "reference": reference is not None, **outcome.facts,
    }  # fmt: skip
    index: dict[str, tuple[Any, ...]] = {"set": (f"{heads} that attend most by topic",)}
    if sets is not None:
        index = {"set": tuple(map(str, sets))}
    elif heads == "each":
        index = every.index([each[0] for each in asked_for])
    index["n"] = tuple(map(len, asked_for))
    index["heads"] = tuple(" ".join(every.name(head) for head in each) for each in asked_for)
    parts = parts_of(
        view, topics, options=options, reading=reading, intervals=intervals,
        readouts=outcome.readouts, cells=[place[each] for each in asked_for],
        others=[[place[other] for other in of_set] for of_set in null],
        index=index, alternative=alternative,
    )  # fmt: skip
    return add_up(
        reader, documents, facts=facts, reading=reading, run=run, parts=parts, only_labelled=outcome.of_words
    )


def _once(
    run: Run, name: str, facts: Mapping[str, Any], make: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """What is found of all documents first; in a folder by whoever comes first."""
    return make() if run.folder is None else Folder(Path(run.folder), facts).once(name, make)


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


def _others(every: Heads, each: Set, n: int, seed: int) -> list[Set]:
    """Sets of as many heads of the same layers, drawn without repetition; itself where there is no other."""
    if n == 0:
        return []
    sites = itertools.groupby(each, key=lambda head: every.site_of[head])
    layers = [(every.layer(site), len(list(own))) for site, own in sites]
    found: dict[Set, None] = {}
    if math.prod(math.comb(len(heads), size) for heads, size in layers) <= n + 1:
        for parts in itertools.product(*(itertools.combinations(heads, size) for heads, size in layers)):
            found[tuple(itertools.chain(*parts))] = None
    else:
        generator = np.random.default_rng(seed)
        while len(found) <= n:
            drawn = [generator.choice(heads, size, replace=False).tolist() for heads, size in layers]
            found[tuple(sorted(itertools.chain(*drawn)))] = None
    found.pop(each, None)
    return list(found)[:n] or [each]


# ---------------------------------------------------------------------------- what is done to a model


@dataclass
class MeanOutputs:
    """The mean outputs of heads over all positions of documents: of two halves of them, or of all.

    Attributes:
        view: the model.
        halves: whether a document gets the means of the other half, by its source; else all get those of all.
        bit: of the number of a source, says in which half it is.
        sums: of every half and site the sum of outputs.
        counts: how many outputs are in them.
        seen: bits that are 1 in some source, and 0 in some.
    """

    view: capture.View
    halves: bool
    bit: int = 0
    sums: list[dict[int, Float64[Tensor, "head d_head"]]] = field(default_factory=lambda: [{}, {}])
    counts: list[dict[int, int]] = field(default_factory=lambda: [{}, {}])
    seen: list[int] = field(default_factory=lambda: [0, 0])

    @classmethod
    def of(
        cls, view: capture.View, batches: Callable[[], Iterable[TokenBatch]], *, halves: bool
    ) -> "MeanOutputs":
        """Those of documents, which are read once, and again where few sources have all come into one half.

        Raises:
            ValueError: where there is no document, or halves are asked of a single source.
        """
        found = cls(view, halves)
        for batch in batches():
            found._add(batch)
        if not all(found.sums[: 1 + halves]):
            if not (parting := found.seen[0] & found.seen[1]):
                raise ValueError(
                    "what stands in for the outputs of heads is of other documents than those it is put into, and "
                    "there are not two sources to take it from: give more documents, others as reference=, or "
                    "kind='zero'"
                )
            found = cls(view, halves, (parting & -parting).bit_length() - 1)
            for batch in batches():
                found._add(batch)
        return found

    def _half(self, sources: Int64[Tensor, " batch"]) -> Int64[Tensor, " batch"]:
        return sources >> self.bit & 1 if self.halves else torch.zeros_like(sources)

    def _add(self, batch: TokenBatch) -> None:
        inputs, halves = self.view.inputs(batch.ids, batch.mask), self._half(batch.sources).tolist()
        for source in batch.sources.tolist():
            self.seen = [self.seen[0] | source & _BITS, self.seen[1] | ~source & _BITS]

        def read(site: int, outputs: Float[Tensor, "batch query head d_head"]) -> None:
            mask = inputs.masks(self.view.sites[site])[0]
            for row, half in enumerate(halves):
                own = outputs[row][mask[row]].detach().double().cpu()
                self.sums[half][site] = self.sums[half].get(site, 0) + own.sum(0)
                self.counts[half][site] = self.counts[half].get(site, 0) + len(own)

        with evaluating(self.view.model):
            head_outputs(self.view, inputs, read)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """All of it, for a file."""
        found = {"bit": np.array(self.bit)}
        for half, (sums, counts) in enumerate(zip(self.sums, self.counts, strict=True)):
            found |= {f"{half} {site} sums": own.numpy() for site, own in sums.items()}
            found |= {f"{half} {site} counts": np.array(n) for site, n in counts.items()}
        return found

    @classmethod
    def of_arrays(
        cls, view: capture.View, arrays: Mapping[str, np.ndarray], *, halves: bool
    ) -> "MeanOutputs":
        """What had these arrays."""
        found = cls(view, halves, int(arrays["bit"]))
        for name, values in arrays.items():
            if name != "bit":
                half, site, what = name.split()
                sums, counts = found.sums[int(half)], found.counts[int(half)]
                if what == "sums":
                    sums[int(site)] = torch.from_numpy(values)
                else:
                    counts[int(site)] = int(values)
        return found

    @property
    def fingerprint(self) -> str:
        """A hash of all means."""
        arrays = self.arrays
        return hash_of(name.encode() + arrays[name].tobytes() for name in sorted(arrays))

    def of_batch(self, batch: TokenBatch) -> list[Float[Tensor, "batch 1 head d_head"]]:
        """What every document of a batch gets at every site."""
        half = self._half(batch.sources)
        given = 1 - half if self.halves else half
        like = next(self.view.model.parameters())
        found = []
        for site in range(len(self.view.sites)):
            means = [self.sums[n][site] / self.counts[n][site] for n in range(1 + self.halves)]
            found.append(torch.stack(means)[given][:, None].to(like))
        return found


@dataclass(frozen=True)
class Ablations:
    """Takes sets of heads out, one after the other.

    Attributes:
        view: the model.
        every: all of its heads.
        cells: the sets.
        means: what is put in the place of what heads put out; None for nothing.
    """

    view: capture.View
    every: Heads
    cells: Sequence[Set]
    means: MeanOutputs | None

    def __call__(self, asked: Asked) -> Iterator[AbstractContextManager[None]]:
        """What is done to the model for a batch."""
        means = None if self.means is None else self.means.of_batch(asked.batch)
        for each in self.cells:
            edits = {}
            for site, heads in itertools.groupby(each, key=lambda head: self.every.site_of[head]):
                own = [self.every.head_of[head] for head in heads]
                instead: dict[int, Replacement] = {
                    head: "zero" if means is None else means[site][:, :, head] for head in own
                }
                edits[self.every.sites[site]] = replaced(instead)
            yield edit_heads(self.view.model, edits)
