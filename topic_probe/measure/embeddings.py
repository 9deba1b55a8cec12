"""Are words of one topic closer in embedding space than words of different topics?"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import one_hot

from topic_probe.contrast import NO_RELATION, Contrast, PairSums, dashed, no_interval_reason, word_relations
from topic_probe.estimate import over_words, split_halves
from topic_probe.lens.host import Facts, Host, facts_of, hidden_states, host_of, n_states
from topic_probe.lens.opening import open_model
from topic_probe.lens.running import exact_products
from topic_probe.lens.weights import word_embeddings
from topic_probe.measure.ask import source_limit
from topic_probe.measure.documents import add_documents, why_nothing
from topic_probe.measure.folder import MEASURED, Progress
from topic_probe.measure.matrix import MatrixReport, matrices_fit, matrices_of_words
from topic_probe.measure.options import Confidence, Reading, Run, recorded
from topic_probe.measure.pairs import NO_WORD, Side, wide
from topic_probe.measure.words import (
    SCORES,
    EmbeddingWords,
    Rows,
    labelled_words,
    topic_squares,
    topic_sums,
    word_ends,
    word_squares,
    word_sums,
)
from topic_probe.options import shares
from topic_probe.report import Report, provenance
from topic_probe.sums import SourceSums
from topic_probe.text.batches import TokenBatch
from topic_probe.topics import Topics
from topic_probe.topics.lists import token_id_array

if TYPE_CHECKING:
    import pandas as pd

NO_STATE = "states that are zero or not finite"


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
        matrices: "cosine" and "dot" between the words in the order of their topics; None of more than 512.
        sources: of layers the "rows" [source, layer · score, 7] of sums (`topic_probe.sums.SourceSums`), and the
            "keys" of these sources.
    """

    cosine: Contrast
    dot: Contrast
    topics: Mapping[str, Contrast]
    layers: Mapping[str, Contrast] | None
    provenance: Mapping[str, Any]
    matrices: MatrixReport | None
    sources: Mapping[str, np.ndarray] | None = None

    @classmethod
    def of_sums(
        cls, sums: Mapping[str, Any], progress: Progress, parts: Mapping[str, Any]
    ) -> "EmbeddingReport":
        """The report of words ("words" of parts) with what states have added up; ValueError where there are none."""
        by_source, report = sums["0"], parts["words"]
        if not len(by_source) and progress.whole:
            raise ValueError(why_nothing(progress))
        contrast = by_source.contrast(statistic=parts["statistic"], confidence=parts["confidence"])
        index = {"layer": tuple(range(len(contrast) // len(SCORES)))}
        layers = {
            score: replace(contrast[number :: len(SCORES)], index=index)
            for number, score in enumerate(SCORES)
        }
        keys, rows = by_source.rows()
        documents = {**progress.record(), **by_source.record, **parts["read"]}
        record, sources = (
            {**report.provenance, "documents": documents},
            {"keys": keys.view(np.int64), "rows": rows},
        )
        found: EmbeddingReport = replace(report, layers=layers, provenance=record, sources=sources)
        return found

    def to_dataframe(self, by: Literal["score", "topic", "layer"] = "score") -> "pd.DataFrame":
        """A row for cosine and one for dot; by "topic" or "layer": a row for each and every topic or layer."""
        import pandas as pd

        contrasts: Mapping[str, Mapping[str, Contrast] | None] = {
            "score": {score: getattr(self, score) for score in SCORES}, "topic": self.topics, "layer": self.layers,
        }  # fmt: skip
        if by not in contrasts:
            raise ValueError(f"by must be 'score', 'topic' or 'layer', got {by!r}")
        chosen = contrasts[by]
        if chosen is None:
            raise ValueError("no layers were measured: pass documents to measure_embeddings")
        parts = [chosen[score].to_dataframe() for score in SCORES]
        table: pd.DataFrame = pd.concat(parts, keys=SCORES, names=["score"])
        return table.reset_index(level="score").reset_index(drop=True)

    def _tables(self) -> "dict[str, pd.DataFrame]":
        table = self.to_dataframe()
        if self.provenance["options"].get("center"):
            table["score"] += " (centred)"
        shown = {type(self).__name__: _effect_first(table)}
        if self.layers is not None:
            layers = self.layers["cosine"].to_dataframe()
            shown["cosines of states, layer by layer"] = _effect_first(layers)
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


def _effect_first(table: "pd.DataFrame") -> "pd.DataFrame":
    """What is printed of a table: a ratio of cosines means little where words of different topics have none."""
    table = dashed(table)
    names = [name for name in ("score", "layer") if name in table]
    for number in ("effect_size", "difference" if "difference_low" in table else "ratio"):
        names.append(number)
        if f"{number}_low" in table:
            ends = zip(table[f"{number}_low"], table[f"{number}_high"], strict=True)
            table[f"[{number}]"] = [f"[{low:.4g}, {high:.4g}]" for low, high in ends]
            names.append(f"[{number}]")
    pairs = zip(table["n_same_topic"], table["n_different_topic"], strict=True)
    table["n_pairs"] = [f"{same:.15g}/{different:.15g}" for same, different in pairs]
    return table[[*names, "n_pairs"]]


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
    reading: Reading,
    intervals: Confidence,
    run: Run,
) -> EmbeddingReport | list[EmbeddingReport]:
    """Cosines and dot products of word embeddings, same topic against different topics, over all pairs of words.

    Word embeddings are the raw table, as in the paper. Trained tables point in a common direction, which raises
    all cosines alike; ``center`` and ``remove_components`` take that out. Entries that are forms of one word
    ("President", " president") are one word: their pairs are same-word pairs. Intervals say how much the number would
    change with other words of the same topics (at least eight). Given documents, the model's states are compared at
    every layer too, between positions of the same document, with intervals over sources.

    Split words and words whose row is zero or not finite are left out and counted in ``provenance``. Several topics in
    a list give a list of reports; documents are run through the model once for all of them.

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
        statistic: what intervals are about, beside effect sizes.

    Raises:
        ValueError: for topics of another vocabulary, where no word is left, or for a folder of another measurement.

    Example:
        >>> import torch
        >>> world = tp.World(n_topics=2, words_per_topic=2)
        >>> W_E = torch.tensor([[0.0, 1.0, 1.0, 0.6, 0.6], [0.0, 0.0, 0.0, 0.8, 0.8]])  # a column for each token
        >>> toy = tp.build_toy(tp.ToyConfig(world=world, d_model=2), tensors={"W_E": W_E})
        >>> cosine = tp.measure_embeddings(toy, world.topics).cosine
        >>> [round(float(mean), 5) for mean in (cosine.same_topic, cosine.different_topic)]
        [1.0, 0.6]
    """
    every = [topics] if isinstance(topics, Topics) else list(topics)
    several = not isinstance(topics, Topics)
    if not every:
        raise ValueError("topics are an empty list: pass at least one")
    if run.folder is not None and (documents is None or len(every) > 1):
        raise ValueError(
            "folder= keeps states in documents, of one set of topics: leave it out, or pass these alone"
        )
    model = open_model(model)
    known = facts_of(model, *every)
    reading, excluded = reading.of(known), sorted(set(token_id_array(exclude, "exclude").tolist()))
    options: dict[str, Any] = {
        "center": center or remove_components > 0, "remove_components": remove_components, "exclude": excluded,
        "statistic": statistic, **recorded(intervals),
    }  # fmt: skip
    if documents is not None:
        options |= {"include_self": include_self, "special_ids": reading.special_ids or ()}
    reports = [_of_words(model, each, known, options, intervals) for each in every]
    if documents is not None:
        reading = replace(reading, special_ids=sorted({*(reading.special_ids or ()), *excluded}))
        reports = _with_states(reports, host_of(model), every, documents, options, reading, run, intervals)
    return reports if several else reports[0]


def _of_words(
    model: Any, topics: Topics, known: Facts, options: Mapping[str, Any], intervals: Confidence
) -> EmbeddingReport:
    """The report of the table of embeddings."""
    taken_out = {name: options[name] for name in ("center", "remove_components", "exclude")}
    words = labelled_words(word_embeddings(model), topics, **taken_out)
    index = {"topic": topics.topic_labels, "n_words": _n_words(words)}
    n_of_topics = np.rint(topic_sums(words, np.ones((len(words), 1)), words.counts))
    overall, by_topic = {}, {}
    for score, rows in words.scored.items():
        sums, squares = word_sums(words, rows, rows), word_squares(words, rows)
        pairs = PairSums(sums.sum(0), words.counts.sum(0), squares.sum())
        uncertainty = _intervals(words, rows, squares, options["statistic"], intervals)
        overall[score] = pairs.contrast(statistic=options["statistic"], **uncertainty)
        of_topics = topic_squares(words, rows, squares)
        by_topic[score] = PairSums(topic_sums(words, rows, sums), n_of_topics, of_topics).contrast(
            index=index
        )
    matrices = None
    if matrices_fit(words, len(SCORES)):
        products = np.stack([rows @ rows.T for rows in words.scored.values()])
        matrices = matrices_of_words(products, {"score": SCORES}, words)
    record = provenance(
        topics, model=known.description, options=dict(options), seed=intervals.seed, left_out=words.left_out
    )
    return EmbeddingReport(overall["cosine"], overall["dot"], by_topic, None, record, matrices)


def _n_words(words: EmbeddingWords) -> tuple[int, ...]:
    """How many words every topic has; forms of one word count once."""
    entry, topic = words.members.nonzero()
    of_topic = np.unique(np.stack([words.form.numpy()[entry], topic]), axis=1)[1]
    return tuple(np.bincount(of_topic, minlength=words.topics.n_topics).tolist())


def _intervals(
    words: EmbeddingWords,
    rows: Rows,
    squares: np.ndarray,
    statistic: Literal["ratio", "difference"],
    intervals: Confidence,
) -> dict[str, Any]:
    """The intervals of a score over words, with the reason where there is none."""
    ends = word_ends(words, rows, rows, split_halves(words.strata, seed=intervals.seed))
    found = over_words(ends, None, words.strata, statistic=statistic).interval(intervals.confidence)[0]
    of_words = 2 * words.by_form(squares)[:, None]  # every pair has two ends
    effect = over_words(ends, of_words, words.strata, statistic="effect_size").interval(intervals.confidence)[
        0
    ]
    note = no_interval_reason(found, words.n_forms, "words")
    return {"interval": found, "effect_size_interval": effect, "note": note}


# ---------------------------------------------------------------------------- states of layers


def _with_states(
    reports: Sequence[EmbeddingReport],
    view: Host,
    topics: Sequence[Topics],
    documents: Any,
    options: Mapping[str, Any],
    reading: Reading,
    run: Run,
    intervals: Confidence,
) -> list[EmbeddingReport]:
    """The reports of words with cosine and dot product of states by layer, and what was read and left out."""
    n_layers = n_states(view.model)
    states = [_States(each, n_layers, options["include_self"]) for each in topics]
    known = {"confidence": intervals.confidence, "statistic": options["statistic"]}
    parts = [{**known, "words": report, "read": {"max_length": reading.max_length}} for report in reports]
    progress = add_documents(
        partial(_add, view, states), {str(number): own.sums for number, own in enumerate(states)}, documents, view,
        reading=reading, run=run, facts={"measurement": "states", "topics": topics[0].fingerprint, **options},
        report={"kind": EmbeddingReport.kind, "parts": parts[0]},
        keep=lambda document: any(bool(own.labelled(document.ids)) for own in states),
    )  # fmt: skip
    found = []
    for own, part in zip(states, parts, strict=True):
        if len(states) > 1:
            progress = replace(progress, measured=own.left_out.pop(MEASURED, 0), left_out=own.left_out)
        found.append(EmbeddingReport.of_sums({"0": own.sums}, progress, part))
    return found


class _States:
    """Cosines and dot products between the states of words of one document, in this order for every layer.

    Attributes:
        sums: of the documents that have been added.
        left_out: what was left out of these, and under `MEASURED` how many were not.
    """

    def __init__(self, topics: Topics, n_layers: int, include_self: bool) -> None:
        self.topics, self.include_self = topics, include_self
        n_cells = len(SCORES) * n_layers
        self.sums = SourceSums(source_limit(n_cells), shape=(n_cells,))
        self.left_out: Counter[str] = Counter()

    def labelled(self, ids: Int64[Tensor, "*batch position"]) -> Bool[Tensor, "*batch"]:
        """Which documents may have a word."""
        return (self.topics.places(ids) >= 0).any(-1)

    def begin(self, batch: TokenBatch) -> None:
        """The words of a batch, and what they are to each other."""
        self.side = Side(batch, self.topics, "token")
        self.relations = word_relations(self.side.places, self.side.places, self.topics)
        if not self.include_self:
            self.relations.diagonal(dim1=1, dim2=2).fill_(NO_RELATION)
        self.pending: list[Tensor] = []
        self.n_lost = 0

    def read(self, states: Float[Tensor, "batch position d_model"]) -> None:
        """Adds the states of a layer to what is pending; those that are zero or not finite are in no pair."""
        index = self.side.index[:, :, None].expand(-1, -1, states.shape[2]).to(states.device)
        vectors = states.detach().gather(1, index)
        vectors = vectors if vectors.dtype == torch.float64 else vectors.float()
        norms, relations = vectors.norm(dim=-1), self.relations.to(states.device)
        usable = norms.isfinite() & (norms > 0)
        self.n_lost += int(((relations != NO_RELATION).any(2) & ~usable).sum())
        vectors = vectors.masked_fill(~usable[..., None], 0)
        units = vectors / norms.masked_fill(~usable, 1)[..., None]
        relations = relations * (usable[:, :, None] & usable[:, None, :])
        of_relation = wide(one_hot(relations.flatten(1).long(), 4)[..., 1:].float())
        for part in (units, vectors):
            values = wide((part @ part.mT).flatten(1))[:, None]
            squares = values.square() @ of_relation[..., 1:].sum(2, keepdim=True)
            sums = [values @ of_relation, of_relation.sum(1, keepdim=True), squares]
            self.pending.append(torch.cat(sums, 2).cpu())

    def commit(self, batch: TokenBatch) -> Counter[str]:
        """Adds what is pending; what was left out of the batch."""
        labelled = self.labelled(batch.ids.where(batch.mask, -1))
        rows = torch.cat(self.pending, 1).double()[labelled]
        self.sums.add(batch.sources[labelled].numpy(), rows.numpy())
        left_out = Counter({reason: int(n.sum()) for reason, n in self.side.left_out.items()})
        n_without = int((~self.side.is_word.any(1)).sum())
        left_out |= Counter({NO_STATE: self.n_lost, NO_WORD: n_without, MEASURED: int(labelled.sum())})
        self.left_out += left_out
        return left_out


def _add(view: Host, every: Sequence[_States], batch: TokenBatch) -> Counter[str]:
    """Runs a batch through the model once, for all topics; what was left out for the first of these."""
    for own in every:
        own.begin(batch)

    def read(_: int, states: Tensor) -> None:
        with exact_products(view.model):
            for own in every:
                own.read(states)

    hidden_states(view.model, view.inputs(batch.ids, batch.mask), read)
    left_out = [own.commit(batch) for own in every]
    return left_out[0]
