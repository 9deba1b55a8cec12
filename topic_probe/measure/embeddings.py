"""Are words of one topic closer in embedding space than words of different topics?"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from topic_probe.contrast import NO_RELATION, Contrast, PairSums
from topic_probe.lens import capture
from topic_probe.lens.opening import open_model
from topic_probe.measure.accumulators import Relations
from topic_probe.measure.doubt import Doubt, word_effects
from topic_probe.measure.engine import (
    ACCUMULATORS_IN_FOLDER,
    Engine,
    Part,
    Prepare,
    Several,
    about_documents,
    topics_and_accumulators,
    why_nothing,
)
from topic_probe.measure.matrix import MatrixReport, embedding_matrices
from topic_probe.measure.options import Intervals, Reading, Resampling, Run, recorded
from topic_probe.measure.pair_sums import (
    GroupSums,
    PairSquares,
    group_sums,
    pair_squares,
    pair_sums,
    word_ends,
)
from topic_probe.measure.patterns import (
    every_position,
    left_out_of,
    padded_positions,
    some_at_once,
    units_of,
    width,
)
from topic_probe.measure.scores import BatchScores, Pairs, Units
from topic_probe.measure.sums import Parts, Progress, Sums
from topic_probe.measure.words import SCORES, EmbeddingWords, labelled_words
from topic_probe.options import shares
from topic_probe.report import Report, provenance
from topic_probe.text.batches import TokenBatch
from topic_probe.topics import Topics
from topic_probe.topics.lists import token_id_array
from topic_probe.uncertainty import no_interval_reason, word_intervals

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class EmbeddingReport(Report, kind="embeddings"):
    """How much closer words of one topic are than words of different topics, in embedding space.

    Attributes:
        cosine: mean cosine between word embeddings; its ``same_word`` is a word with itself and with its other forms
            ("President", " president"), so 1 where every word has one.
        dot: the same of dot products.
        topics: "cosine" and "dot", with a cell for every topic: pairs of different words that are both in it, and
            its words with all their forms, and with all words they share no topic with.
        layers: "cosine" and "dot", with a cell for every layer, between positions of the same document: layer 0 is
            what enters the first block. None where no documents were given.
        provenance: model, topics, options, versions, and what was left out and why.
        matrices: "cosine" and "dot" between up to 512 words in the order of their topics, beyond that their means
            between topics. None for thousands of topics.
    """

    cosine: Contrast
    dot: Contrast
    topics: Mapping[str, Contrast]
    layers: Mapping[str, Contrast] | None
    provenance: Mapping[str, Any]
    matrices: MatrixReport | None

    @classmethod
    def of_sums(cls, sums: Sums, progress: Progress, parts: Parts) -> "EmbeddingReport":
        """The report of words with what accumulators have added up of states.

        Args:
            sums: their sums by name.
            progress: what is known of the documents beside them.
            parts: "words", the report without layers; "statistic" and "confidence" of intervals; "read", at how many
                tokens documents were cut; and "strata" of words, where these are resampled.

        Raises:
            ValueError: where no document is left to measure.
        """
        by_source, words = sums["by_source"], parts["words"]
        if not (len(by_source) or not progress.whole):
            raise ValueError(why_nothing(progress))
        options = {"statistic": parts["statistic"], "confidence": parts["confidence"]}
        if "strata" in parts:
            cells = np.arange(*by_source.shape)
            doubt = Doubt([sums], by_source, cells, [parts["strata"]])
            contrast = doubt.explained(
                by_source.contrast(**options, beside=partial(doubt.beside, starts=cells))
            )
        else:
            contrast = by_source.contrast(**options)
        index = {"layer": tuple(range(len(contrast) // len(SCORES)))}
        layers = {
            score: replace(contrast[number :: len(SCORES)], index=index)
            for number, score in enumerate(SCORES)
        }
        record = {**words.provenance, "documents": about_documents(sums, progress, parts)}
        return cast(EmbeddingReport, replace(words, layers=layers, provenance=record))

    def to_dataframe(self, by: Literal["score", "topic", "layer"] = "score") -> "pd.DataFrame":
        """A row for cosine and one for dot; by "topic" or "layer": a row for each and every topic or layer."""
        import pandas as pd

        if by == "score":
            rows = [getattr(self, score).to_dataframe({"score": [score]}) for score in SCORES]
            overall: pd.DataFrame = pd.concat(rows, ignore_index=True)
            return overall
        if by not in ("topic", "layer"):
            raise ValueError(f"by must be 'score', 'topic' or 'layer', got {by!r}")
        contrasts = self.topics if by == "topic" else self.layers
        if contrasts is None:
            raise ValueError("no layers were measured: pass documents to measure_embeddings")
        parts = [contrasts[score].to_dataframe() for score in SCORES]
        table: pd.DataFrame = pd.concat(parts, keys=SCORES, names=["score"])
        return table.reset_index(level="score").reset_index(drop=True)

    def _tables(self) -> "dict[str, pd.DataFrame]":
        options = self.provenance["options"]
        table = self.to_dataframe()
        if options.get("center"):
            table["score"] += " (centred)"
        shown = super()._tables() | {type(self).__name__: table}
        if self.layers is not None:
            shown["cosines of states, layer by layer"] = self.layers["cosine"].to_dataframe()
        return shown

    def _notes(self) -> list[str]:
        options = self.provenance["options"]
        taken_out = ["the mean of all rows"] * bool(options.get("center"))
        if n := options.get("remove_components"):
            taken_out.append(f"{n} principal component{'s' * (n > 1)}")
        centred = [f"taken out of the embeddings: {' and '.join(taken_out)}"] if taken_out else []
        layers = self.layers["cosine"].reason if self.layers is not None else None
        reasons = [f"layers: {layers}"] if layers and layers != self.cosine.reason else []
        return [*centred, *super()._notes(), *reasons]


@overload
def measure_embeddings(
    model: Any, topics: Topics, documents: Any = None, **options: Any
) -> EmbeddingReport: ...
@overload
def measure_embeddings(
    model: Any, topics: Sequence[Topics], documents: Any = None, **options: Any
) -> list[EmbeddingReport]: ...
@shares
def measure_embeddings(
    model: Any,
    topics: Topics | Sequence[Topics],
    documents: Any = None,
    *,
    center: bool = False,
    remove_components: int = 0,
    exclude: Iterable[int] = (),
    include_self: bool = True,
    statistic: Literal["ratio", "difference"] = "ratio",
    effect_size: bool = True,
    accumulators: Sequence[Any] = (),
    reading: Reading,
    intervals: Intervals,
    resampling: Resampling,
    run: Run,
) -> EmbeddingReport | list[EmbeddingReport]:
    """Cosines and dot products of word embeddings, same topic against different topics, over all pairs of words.

    Word embeddings are the raw table, as in the paper. Trained tables point in a common direction, which raises
    all cosines alike; ``center`` and ``remove_components`` take that out. Entries that are forms of one word
    ("President", " president") are one word: their pairs are same-word pairs. Intervals say how much the number would
    change with other words of the same topics: words are drawn anew within every topic (within its first topic, a
    word of several) with all their forms, never pairs, and topics stay as they are. They need at least eight words.
    Given documents, the model's states are compared at every layer too, as they are, between positions of the same
    document, with intervals that resample sources.

    Split words that the topics know as a whole have no row in the table and are left out; so are words whose row is
    zero or not finite. All that is left out is counted in ``provenance``.

    Several topics in a list give a list of reports, each that of these topics alone; documents are run through the
    model once for all of them.

    Args:
        model: anything that `open_model` takes. It comes back as it was.
        topics: which vocabulary entries belong to which topic; or a list of such topics.
        documents: token ids in any shape that `topic_probe.text.documents.read_documents` takes; None measures the
            table only.
        center: subtract the mean over all rows of the table that are finite, not zero and not in ``exclude``.
        remove_components: project this many leading principal components of the same, centred rows out; implies
            ``center``.
        exclude: token ids left out, of the pairs as well as of the mean and the components: special and unused ids.
        include_self: whether the pair of a position with itself is a same-word pair of a layer, as in the paper.
        statistic: what intervals are about.
        effect_size: whether to measure the standard deviation of the scores of all pairs, too. Means cost about as
            much as reading the table a few times, standard deviations as much as multiplying it with itself.
        accumulators: what else is to be added up of states, in the same pass over documents, see
            `topic_probe.measure.accumulators`: of every layer its cosines and its dot products. Of several topics, a
            list of them for each.

    Raises:
        ValueError: for topics of another vocabulary, or where no word is left to measure; for a folder of another
            measurement.

    Example:
        >>> import torch
        >>> world = tp.World(n_topics=2, words_per_topic=2)
        >>> W_E = torch.tensor([[0.0, 1.0, 1.0, 0.6, 0.6], [0.0, 0.0, 0.0, 0.8, 0.8]])  # a column for each token
        >>> toy = tp.build_toy(tp.ToyConfig(world=world, d_model=2), tensors={"W_E": W_E})
        >>> cosine = tp.measure_embeddings(toy, world.topics).cosine
        >>> [round(float(mean), 5) for mean in (cosine.same_topic, cosine.different_topic)]
        [1.0, 0.6]
    """
    resampled = check_resample(resampling, documents)
    several = not isinstance(topics, Topics)
    every, own = topics_and_accumulators(topics, accumulators)
    if any(own) and documents is None:
        raise ValueError("accumulators add up what states say in documents: pass these, or leave them out")
    if run.folder is not None and documents is None:
        raise ValueError("parts are of documents: pass these, or leave folder= out")
    if run.folder is not None and any(own):
        raise ValueError(ACCUMULATORS_IN_FOLDER)
    excluded = sorted(set(token_id_array(exclude, "exclude").tolist()))
    options = {
        "center": center or remove_components > 0, "remove_components": remove_components, "exclude": excluded,
        "statistic": statistic, "effect_size": effect_size, **recorded(intervals), "resample": resampled,
    }  # fmt: skip
    model = open_model(model)
    known = capture.facts(model, *every)
    reports = [_of_words(model, each, known, options, intervals) for each in every]
    if documents is not None:
        reading = reading.of(known)
        specials = reading.special_ids or ()
        for report in reports:
            of_words = cast(dict[str, Any], report.provenance["options"])
            of_words |= {"include_self": include_self, "special_ids": specials}
        reports = _with_states(
            reports,
            model,
            every,
            documents,
            include_self=include_self,
            accumulators=own,
            reading=replace(reading, special_ids=sorted({*specials, *excluded})),
            run=run,
            confidence=intervals.over_sources,
        )
    return reports if several else reports[0]


def check_resample(resampling: Resampling, documents: Any) -> tuple[str, ...]:
    """What intervals include.

    Raises:
        ValueError: for sources where there are none, and for fits.
    """
    resampled = resampling.of("words")
    if "fits" in resampled:
        raise ValueError(
            "resample names 'fits', which only measure_attention reports together: measure the topics of every fit "
            "in a list, and look at how far their numbers are apart"
        )
    if "sources" in resampled and documents is None:
        raise ValueError(
            "resample names 'sources', which a table of embeddings has none of: pass documents, whose states have"
        )
    return resampled


def _of_words(
    model: Any, topics: Topics, known: capture.Facts, options: Mapping[str, Any], intervals: Intervals
) -> EmbeddingReport:
    """The report of the table of embeddings."""
    words = labelled_words(
        capture.word_embeddings(model),
        topics,
        center=options["center"],
        remove_components=options["remove_components"],
        exclude=options["exclude"],
    )
    sums = group_sums(words, seed=intervals.seed, squares=options["effect_size"])
    overall, by_topic = pair_sums(sums, words)
    squares = None
    if options["effect_size"]:
        squares = pair_squares(words, sums, by_form=intervals.n_resamples > 0)
    record = provenance(
        topics, model=known.description, options=dict(options), seed=intervals.seed, left_out=words.left_out
    )
    cosine, dot = _with_intervals(overall, sums, squares, words, options["statistic"], intervals)
    per_topic = _per_topic(by_topic, squares, words)
    return EmbeddingReport(cosine, dot, per_topic, None, record, embedding_matrices(words, sums))


def _per_topic(sums: PairSums, squares: PairSquares | None, words: EmbeddingWords) -> dict[str, Contrast]:
    topics, forms = words.topics, words.form
    sizes = topics.incidence.by_topic(words.group.bincount(minlength=len(topics.incidence)).double()).long()
    # Forms of one word count once in a topic; most words have but one.
    several = forms.bincount()[forms] > 1
    entry, topic = topics.incidence.topics_in_common(words.group[several], words.group[several])
    once = torch.unique(torch.stack([forms[several][entry], topic]), dim=1)[1]
    sizes += once.bincount(minlength=topics.n_topics) - topic.bincount(minlength=topics.n_topics)
    index = {
        "topic": topics.topic_labels,
        "n_words": tuple(sizes.tolist()),
    }
    of_topics = [None] * len(SCORES) if squares is None else squares.topics
    return {
        score: PairSums(values, sums.counts, of_pairs).contrast(index=index)
        for score, values, of_pairs in zip(SCORES, sums.sums, of_topics, strict=True)
    }


def _with_intervals(
    overall: PairSums,
    of_groups: GroupSums,
    squares: PairSquares | None,
    words: EmbeddingWords,
    statistic: Literal["ratio", "difference"],
    intervals: Intervals,
) -> list[Contrast]:
    """The contrasts of cosine and dot product, each with its interval."""
    totals = [None] * len(SCORES) if squares is None else [np.asarray(total) for total in squares.total]
    parts = [PairSums(sums, overall.counts, total) for sums, total in zip(overall.sums, totals, strict=True)]
    if intervals.n_resamples == 0:
        return [part.contrast(statistic=statistic) for part in parts]
    ends = word_ends(words, of_groups)
    # Every pair has two ends.
    of_words = None if squares is None or squares.by_form is None else 2 * squares.by_form.numpy()
    limits, *of_effects = word_intervals(ends, of_words, words.strata, statistic=statistic, **vars(intervals))
    names = "interval", "effect_size_interval"
    found = []
    for number, part in enumerate(parts):
        uncertainty = dict(zip(names, (of_score[number] for of_score in (limits, *of_effects)), strict=False))
        note = no_interval_reason(limits[number], words.n_forms, "words")
        found.append(part.contrast(note=note, statistic=statistic, **uncertainty))
    return found


# ---------------------------------------------------------------------------- states of layers


_OF_TABLE = (
    "center",
    "remove_components",
    "exclude",
    "statistic",
    "effect_size",
)  # what is in the report besides
NO_STATE = "states that are zero or not finite"


def _with_states(
    words: Sequence[EmbeddingReport],
    model: Any,
    topics: Sequence[Topics],
    documents: Any,
    *,
    include_self: bool,
    accumulators: Sequence[Sequence[Any]],
    reading: Reading,
    run: Run,
    confidence: float | None,
) -> list[EmbeddingReport]:
    """The reports of words with cosine and dot product of states by layer, and what was read, cut and left out.

    Raises:
        ValueError: where no document is left to measure.
    """
    view = capture.view(model)
    readers = [StateReader(view, each, include_self=include_self) for each in topics]
    both = "sources" in words[0].provenance["options"]["resample"]
    sums: list[list[Any]] = [[Relations(n_cells=reader.n_cells)] for reader in readers]
    facts: dict[str, Any] = {
        "measurement": "states",
        "include_self": include_self,
        "limit": sums[0][0].by_source.limit,
        "words": both,
        **{name: words[0].provenance["options"][name] for name in _OF_TABLE},
    }
    options, read = words[0].provenance["options"], {"max_length": reading.max_length}
    parts = [
        {"words": report, "statistic": options["statistic"], "confidence": confidence, "read": read}
        for report in words
    ]
    if both:
        effects = word_effects(topics, np.arange(readers[0].n_cells))
        for of_topics, part, effect in zip(sums, parts, effects, strict=True):
            of_topics.append(effect)
            part["strata"] = effect.strata
    for of_topics, added in zip(sums, accumulators, strict=True):
        of_topics += added
    engine = Engine(Several(readers, read_states), sums)
    of_report = {"kind": EmbeddingReport.kind, "parts": parts[0]}
    progress = engine.run(documents, reading=reading, run=run, facts=facts, report=of_report)
    return [
        EmbeddingReport.of_sums(found, progress.of_topics(number), parts[number])
        for number, found in enumerate(engine.by_topics)
    ]


class StateReader:
    """Cosines and dot products between the states of words of one document, in this order for every layer."""

    def __init__(self, view: capture.View, topics: Topics, *, include_self: bool) -> None:
        self.view, self.topics, self.include_self = view, topics, include_self
        self.n_cells = len(SCORES) * capture.n_states(view.model)

    def units(self, batch: TokenBatch) -> list[Units]:
        """The words of every document."""
        return units_of(batch, self.topics)

    def n_kept(self, units: list[Units]) -> int:
        """How many numbers are kept of a batch until its documents are scored."""
        d_model = capture.word_embeddings(self.view.model, check=False).shape[1]
        layers = len(self.view.sites) + 1
        return len(units) * width(units) * d_model * layers

    def read(self, batch: TokenBatch, units: list[Units], prepare: Prepare) -> Iterator[Part]:
        """Runs a batch through the model, and scores its documents."""
        return read_states([self], batch, [units], [prepare])

    def pairs(self, units: list[Units]) -> Pairs:
        """The pairs of words of some documents."""
        n = width(units)
        return Pairs.of(
            units, units, self.topics, shape=(n, n), include_self=self.include_self, by_distance=False
        )

    def part(
        self,
        sources: Int64[np.ndarray, " document"],
        layers: list[Float[Tensor, "document word d_model"]],
        pairs: Pairs,
    ) -> Part:
        """The scores of some documents in all layers."""
        has_pairs, scores, lost = (pairs.relations != NO_RELATION).any(2), [], []
        for layer, states in enumerate(layers):
            values, usable = state_scores(states)
            lost.append((has_pairs & ~usable).sum(1))
            cells, n_cells = len(SCORES) * layer + np.arange(len(SCORES)), len(SCORES) * len(layers)
            seen = usable[:, :, None] & usable[:, None, :]
            scores.append(BatchScores(sources, n_cells, cells, values, seen, pairs))
        return Part(scores, {"lost": torch.stack(lost).sum()}, partial(_judge, pairs.query))


def read_states(
    readers: Sequence[StateReader],
    batch: TokenBatch,
    units: Sequence[list[Units]],
    prepare: Sequence[Prepare],
) -> Iterator[Part]:
    """Runs a batch through a model once, and scores its documents for every reader of it, one after the other."""
    view = readers[0].view
    inputs = view.inputs(batch.ids, batch.mask)
    device = inputs.ids.device
    every = every_position(units)
    parts = some_at_once(len(batch), 4 * every.shape[1] ** 2, device)
    pairs, places = [], []
    for reader, own, ready in zip(readers, units, prepare, strict=True):
        pairs.append([ready(reader.pairs(own[part]), device) for part in parts])
        places.append(
            [torch.searchsorted(every[part], padded_positions(own[part])).to(device) for part in parts]
        )
    positions = every.to(device)
    layers: list[Float[Tensor, "batch word d_model"]] = []

    def keep(layer: int, states: Tensor) -> None:
        at = positions.to(states.device)[:, :, None].expand(-1, -1, states.shape[2])
        layers.append(states.detach().gather(1, at).to(device))

    capture.hidden_states(view.model, inputs, keep)
    for number, part in enumerate(parts):
        for reader, of_pairs, at in zip(readers, pairs, places, strict=True):
            own_places = at[number][:, :, None]
            chosen = [states[part].gather(1, own_places.expand(-1, -1, states.shape[2])) for states in layers]
            yield reader.part(batch.sources[part].numpy(), chosen, of_pairs[number])


def _judge(
    units: Sequence[Units], seen: Mapping[str, np.ndarray]
) -> tuple[Bool[np.ndarray, " document"], Mapping[str, int]]:
    return np.ones(len(units), dtype=bool), left_out_of(units) | {NO_STATE: int(seen["lost"])}


def state_scores(
    states: Float[Tensor, "document word d_model"],
) -> tuple[Float[Tensor, "document 2 word word"], Bool[Tensor, "document word"]]:
    """Cosines and dot products of states, 0 for states that are zero or not finite, and which states are neither."""
    vectors = states if states.dtype in (torch.float32, torch.float64) else states.float()
    norms = vectors.norm(dim=-1)
    usable = torch.isfinite(norms) & (norms > 0)
    vectors = vectors.masked_fill(~usable[..., None], 0)
    units = vectors / norms.masked_fill(~usable, 1)[..., None]
    products = [torch.bmm(part, part.transpose(1, 2)) for part in (units, vectors)]
    return torch.stack(products, 1), usable
