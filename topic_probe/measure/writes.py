"""What every head writes toward the words of a topic, where the scores of words are linear in what heads write.

What a head adds to the stream at a word's position is a sum over the positions that it reads: attention × value,
through the head's output matrix. Through the final normalisation, held at the scale that it has in this pass, every
term of the sum is so much more score for the words of one topic than for those of the others.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from topic_probe.contrast import Contrast, SourceSums
from topic_probe.lens import capture
from topic_probe.lens.opening import open_model
from topic_probe.lens.readout import Readout, readout
from topic_probe.lens.running import evaluating
from topic_probe.measure.accumulators import BatchSums
from topic_probe.measure.effects import Numbers, add_up, parts_of, record_of, share_of_effects
from topic_probe.measure.engine import Part, Prepare, source_limit
from topic_probe.measure.options import Intervals, Patterns, Reading, Run, recorded
from topic_probe.measure.patterns import PatternReader, Sides, padded_positions
from topic_probe.measure.scores import BatchScores, Units, padded
from topic_probe.options import shares
from topic_probe.processes import joined
from topic_probe.report import Report
from topic_probe.text.batches import TokenBatch
from topic_probe.text.shares import Shards
from topic_probe.text.sums import Parts, Progress, Sums
from topic_probe.topics import Topics
from topic_probe.uncertainty import with_interval

if TYPE_CHECKING:
    import pandas as pd


_SCORE, _REST, _FIRST_HEAD = 0, 1, 2  # the cells of `Totals`


@dataclass(frozen=True, eq=False, repr=False)
class WritesReport(Report, kind="writes"):
    """What heads write toward the words of a topic: score for these − score for the words of other topics.

    Attributes:
        heads: by stack, layer and head: what a head writes at a word's position on account of one word that it reads,
            toward the topic of the word that is read, by the relation of the two. ``difference`` is the number to read:
            how much more it copies the topic of what it reads to words of the same topic.
        total: by head, what it writes at a word's position on account of everything it reads, toward the topic of the
            word that stands there; the mean over words.
        rest: what everything else brings there: embeddings, MLPs and biases.
        score: what the model scores the words of that topic higher than those of other topics; the sum of ``total`` and
            ``rest``.
        total_interval: the intervals of ``total``, over sources,
        rest_interval: of ``rest``,
        score_interval: and of ``score``.
        provenance: model, topics, options and everything left out. "check" says how far heads and rest are from the
            model's scores on the tokens of a trial, where the rest is what the model puts out with all heads silent and
            everything else held; and how far patterns times values are from what heads put out.
    """

    figure: ClassVar[str] = "heads:head_map"
    heads: Contrast
    total: Float64[np.ndarray, " head"]
    rest: float
    score: float
    total_interval: Float64[np.ndarray, "head 2"]
    rest_interval: Float64[np.ndarray, "2"]
    score_interval: Float64[np.ndarray, "2"]
    provenance: Mapping[str, Any]

    @classmethod
    def of_sums(cls, sums: Sums, progress: Progress, parts: Parts) -> "WritesReport":
        """The report of what accumulators have added up.

        Args:
            sums: "by_source" of pairs of words, and "totals" of words.
            progress: what is known of the documents beside them.
            parts: those of `parts_of`; "index", the stack, layer and head of every cell; "toward" and "check", as the
                provenance has them.

        Raises:
            ValueError: where no document is left to measure.
        """
        record = record_of(sums, progress, parts) | {name: parts[name] for name in ("toward", "check")}
        confidence = Intervals(**parts["intervals"]).over_sources
        heads = sums["by_source"].contrast(statistic="difference", confidence=confidence)
        numbers, every_word = Numbers.of(sums["totals"]), (1, 0, 0)
        values = numbers.value(every_word)
        ends = np.full((len(values), 2), np.nan)
        if confidence is not None:
            ends = numbers.interval(every_word, confidence)
        return cls(
            heads=replace(heads, index=parts["index"]),
            total=values[_FIRST_HEAD:], rest=float(values[_REST]), score=float(values[_SCORE]),
            total_interval=ends[_FIRST_HEAD:], rest_interval=ends[_REST], score_interval=ends[_SCORE],
            provenance=record,
        )  # fmt: skip

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every head."""
        table = self.heads.to_dataframe()
        table["total"] = self.total
        if not np.isnan(self.total_interval).all():
            table["total_low"], table["total_high"] = self.total_interval.T
        return table

    def _notes(self) -> list[str]:
        notes = [
            "toward the topic of the word that stands there, heads write "
            f"{self.total.sum():.4g} and everything else {with_interval(self.rest, self.rest_interval)}; the model "
            f"scores it {with_interval(self.score, self.score_interval)} higher than others"
        ]
        if self.provenance["toward"] == "embeddings":
            notes.append(
                "the model has no head that scores words: its last states are compared with the embeddings of words"
            )
        return [*notes, *super()._notes()]


@shares
def measure_writes(
    model: Any,
    topics: Topics,
    documents: Any,
    *,
    reading: Reading,
    patterns: Patterns,
    intervals: Intervals,
    run: Run,
    shards: Shards,
) -> WritesReport:
    """What every head writes into the residual stream toward the words of a topic, by the relation of two words.

    For a word (query) and a word that it reads (key): attention × the key's value through the head's output matrix ×
    the direction of the key's topic. That is the mean column of the unembedding over the words that share a topic with
    the key, itself included, − the mean over those that share none, in front of the final normalisation at the scale
    that it has there in this pass. So a write is in units of scores (logits), and those of all heads and positions add
    up, with what embeddings, MLPs and biases bring, to the scores of the model. Where a model has no head that scores
    words, directions are of their embeddings.

    Models are refused in which what heads write does not come out as it is: each later normalisation acts on it
    (BERT), or scores are no products with the unembedding (a transformation before it, a cap). A trial finds out.

    Args:
        model: anything that `open_model` takes. It comes back as it was.
        topics: which vocabulary entries belong to which topic.
        documents: token ids in any shape that `topic_probe.text.batches.token_batches` takes.

    Raises:
        ValueError: for topics of another vocabulary, or all of one topic; a model that this cannot be said of, with the
            reason; or a checkpoint of another measurement.

    Example:
        A head that attends to all four positions alike, and whose W_V is the identity, writes ¼ of the one-hot vector
        of each word. That is ⅛ toward the two words of the word's own topic:

        >>> import torch
        >>> world = tp.World(n_topics=2, words_per_topic=2)
        >>> toy = tp.build_toy(tp.ToyConfig(regime="value", world=world), tensors={"W_V": torch.eye(5)})
        >>> report = tp.measure_writes(toy, world.topics, [[1, 2, 3, 4]], special_ids=())
        >>> report.heads.same_topic.tolist(), report.heads.different_topic.tolist()
        ([0.125], [0.125])
        >>> report.total.tolist(), report.rest, report.score
        ([0.0], 0.0, 0.0)
    """
    with joined(run.distributed, run.patience) as processes:
        model = open_model(model)
        view = capture.view(model, topics)
        reading = reading.of(view.facts)
        directions = Directions.of(readout(view), topics)
        reader = WritesReader(PatternReader(view, topics, patterns), directions)
        totals = Totals(reader.n_cells)
        parts = parts_of(
            view, topics, options=recorded(patterns), reading=reading, intervals=intervals, processes=processes,
            index=reader.patterns.index, toward="embeddings" if directions.readout.of_embeddings else "unembedding",
            check={"heads and rest": directions.error, "values": directions.readout.tried.values_error},
        )  # fmt: skip
        sums, progress = add_up(
            reader, documents, facts={"measurement": "writes", "through": patterns.through}, reading=reading, run=run,
            processes=processes, counted=[totals], only_labelled=True,
            shard=share_of_effects(shards, WritesReport.kind, parts),
        )  # fmt: skip
    return WritesReport.of_sums(sums, progress, parts)


@dataclass(frozen=True)
class Directions:
    """For every group of words with the same topics, what a state says for them against words of other topics.

    Attributes:
        readout: how states become scores.
        known: whether a group has words of other topics to be compared with.
        directions: what is multiplied with last states.
        offset: what is added.
        of_heads: for every site, what is multiplied with what a head puts out, but for the scale of the normalisation.
        error: how far heads and rest are from scores in these directions, on the tokens of a trial.
    """

    readout: Readout
    known: Bool[Tensor, " group"]
    directions: Float64[Tensor, "group d_model"]
    offset: Float64[Tensor, " group"]
    of_heads: tuple[Float64[Tensor, "group head d_head"], ...]
    error: float

    @classmethod
    def of(cls, found: Readout, topics: Topics) -> "Directions":
        """Those of topics in a model.

        Raises:
            ValueError: where no group has words of other topics, or words have no finite columns.
        """
        words, group = topics.words, topics.group_of_word
        single = words < min(topics.vocabulary_size, found.columns.shape[1])
        words, group = words[single].to(found.columns.device), group[single]
        columns = found.columns[:, words].T.double()
        if not bool(columns.isfinite().all()):
            bad = words[~columns.isfinite().all(1)]
            raise ValueError(
                f"the unembedding of token {int(bad[0])} is not finite: leave it out (topics.without([{int(bad[0])}]))"
            )

        def by_group(values: Float64[Tensor, "word width"]) -> tuple[Tensor, Tensor]:
            """Sums over the words that share a topic with a group, and over those that do not."""
            sums = torch.zeros(len(topics.incidence), values.shape[1], dtype=torch.float64)
            sums.index_add_(0, group, values.cpu())
            near = topics.incidence.times_shared(sums)
            return near, sums.sum(0) - near

        n_near, n_far = by_group(torch.ones(len(words), 1, dtype=torch.float64))
        known = ((n_near > 0) & (n_far > 0))[:, 0]
        if not bool(known.any()):
            raise ValueError(
                "what is written toward a topic is compared with words of other topics, and no word has any that share "
                "none of its topics: measure_writes needs topics of different words"
            )

        def compare(values: Float64[Tensor, "word width"]) -> Float64[Tensor, "group width"]:
            near, far = by_group(values)
            means = near / n_near.clamp(min=1) - far / n_far.clamp(min=1)
            return means.masked_fill(~known[:, None], 0).to(values.device)

        directions = compare(columns)
        ahead = found.norm.before(directions)
        of_heads = tuple(torch.einsum("hdm,gm->ghd", own.W_O.double(), ahead) for own in found.weights)
        offset = compare(found.offset[words][:, None])[:, 0]
        return cls(found, known, directions, offset, of_heads, found.error(words, compare))


@dataclass(frozen=True, eq=False)
class Writes(BatchScores):
    """What heads write at the words of documents, on account of each word that they read.

    Attributes:
        total: what they write on account of all that they read, toward the topic of the word that stands there.
        score: what the model scores that topic higher than others.
        counted: which words have other topics to be compared with.
    """

    total: Float64[Tensor, "document cell query"] = field(kw_only=True)
    score: Float64[Tensor, "document query"] = field(kw_only=True)
    counted: Bool[Tensor, "document query"] = field(kw_only=True)


class Totals(BatchSums):
    """Sums over the words of every source: of scores, of what is not from heads, and of all that each head writes."""

    def __init__(self, n_heads: int) -> None:
        self.shape = (_FIRST_HEAD + n_heads, 3)
        self.by_source = SourceSums(source_limit(n_heads), shape=self.shape[:1])
        self.sums = {"totals": self.by_source}

    def score(self, scores: BatchScores, index: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """Sums of every document; one without words has nothing to add."""
        if not isinstance(scores, Writes):
            return {}
        return {"own": scores.total.sum(2), "score": scores.score.sum(1), "n": scores.counted.sum(1)}

    def add(
        self, scores: BatchScores, found: Mapping[str, np.ndarray], kept: Bool[np.ndarray, " document"]
    ) -> None:
        """Adds the words of documents that have some."""
        kept = kept & np.array([bool(len(words)) for words in scores.pairs.query])
        if not (found and kept.any()):
            return
        own, score, n = (found[name][kept] for name in ("own", "score", "n"))
        sums, counts = (np.zeros((len(n), *self.shape)) for _ in range(2))
        heads = _FIRST_HEAD + scores.cells
        # Nothing is written in no direction, so that words without one add nothing, and are no words here.
        sums[:, heads, 0], counts[:, heads, 0] = own, n[:, None]
        sums[:, _REST, 0] = -own.sum(1)
        if 0 in scores.cells:  # sites that see different keys come one after the other
            sums[:, :_FIRST_HEAD, 0] += score[:, None]
            counts[:, :_FIRST_HEAD, 0] = n[:, None]
        self.by_source.add(scores.sources[kept], sums, counts)


@dataclass(frozen=True)
class _Batch:
    """What is read of a batch at the positions of words, padded; which are words, and have others to compare with."""

    of_values: Float64[Tensor, "batch cell key"]
    of_outputs: Float64[Tensor, "batch cell query"]
    scale: Float64[Tensor, "batch query"]
    score: Float64[Tensor, "batch query"]
    real: Bool[Tensor, "batch word"]
    counted: Bool[Tensor, "batch word"]


class WritesReader:
    """Scores of every head between the words of documents: what it writes toward the topic of the word it reads."""

    def __init__(self, patterns: PatternReader, directions: Directions) -> None:
        self.patterns, self.directions = patterns, directions
        self.view, self.topics, self.n_cells = patterns.view, patterns.topics, patterns.n_cells

    def units(self, batch: TokenBatch) -> Sides:
        """The words of every document."""
        return self.patterns.units(batch)

    def n_kept(self, units: Sides) -> int:
        """How many numbers are kept of a batch until its documents are scored."""
        return 2 * self.patterns.n_kept(units)

    def read(self, batch: TokenBatch, units: Sides, prepare: Prepare) -> Iterator[Part]:
        """Runs a batch through the model, for its patterns and for what its heads put out."""
        parts = self.patterns.read(batch, units, prepare)
        if not any(len(words) for words in units["source"]):
            yield from parts
            return
        read, start = self._batch(batch, units["source"]), 0
        for part in parts:
            documents = slice(start, start := start + len(part.scores[0].pairs))
            scores = [self._writes(scores, read, documents) for scores in part.scores]
            yield replace(part, scores=scores)

    def _batch(self, batch: TokenBatch, units: list[Units]) -> _Batch:
        index, group_of_word = padded_positions(units), self.topics.group_of_word
        places = padded([words.places for words in units], -1, least=index.shape[1])
        groups = torch.where(places >= 0, group_of_word[places], 0)
        row = torch.arange(len(index))[:, None]
        of_values: dict[int, Tensor] = {}
        of_outputs: dict[int, Tensor] = {}

        def toward(
            number: int, given: Float[Tensor, "batch position head d_head"]
        ) -> Float64[Tensor, "batch head word"]:
            at = given[row.to(given.device), index.to(given.device)].double()
            own = self.directions.of_heads[number][groups.to(given.device)]
            return (at * own).sum(-1).transpose(1, 2)

        with evaluating(self.view.model):
            scale, last = self.directions.readout.read(
                inputs := self.view.inputs(batch.ids, batch.mask),
                lambda number, outputs: of_outputs.__setitem__(number, toward(number, outputs)),
                lambda number, values: of_values.__setitem__(number, toward(number, values)),
            )
        at = row.to(last.device), index.to(last.device)
        own = groups.to(last.device)
        score = (last[at].double() * self.directions.directions[own]).sum(-1) + self.directions.offset[own]
        counted = self.directions.known[groups] & (places >= 0)
        home = inputs.ids.device
        return _Batch(
            torch.cat([of_values[number].to(home) for number in sorted(of_values)], 1),
            torch.cat([of_outputs[number].to(home) for number in sorted(of_outputs)], 1),
            scale[at][..., 0].to(home),
            score.to(home),
            (places >= 0).to(home),
            counted.to(home),
        )

    def _writes(self, scores: BatchScores, read: _Batch, documents: slice) -> Writes:
        """What heads write in some documents, in place of how they attend."""
        assert scores.rows is not None, "patterns have rows"
        scale, real, counted = read.scale[documents], read.real[documents], read.counted[documents]
        of_values, of_outputs = (
            torch.stack([part[documents, cell] for cell in scores.cells.tolist()], 1)
            for part in (read.of_values, read.of_outputs)
        )
        values = scores.rows.patterns * of_values[:, :, None, :] * scale[:, None, :, None]
        return Writes(
            scores.sources, scores.n_cells, scores.cells, values, scores.seen & counted[:, None, :], scores.pairs,
            scores.rows, total=of_outputs * (scale * real)[:, None], score=read.score[documents] * real,
            counted=counted,
        )  # fmt: skip
