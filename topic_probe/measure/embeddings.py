"""Are words of one topic closer in embedding space than words of different topics?"""

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from topic_probe.contrast import Contrast, PairSums
from topic_probe.lens import capture
from topic_probe.measure.matrix import MatrixReport, embedding_matrices
from topic_probe.measure.processes import joined
from topic_probe.measure.states import LayerMeter
from topic_probe.measure.stream import Reading, Saving
from topic_probe.measure.words import (
    SCORES,
    EmbeddingWords,
    first_topics,
    group_sums,
    labelled_words,
    pair_sums,
    word_ends,
)
from topic_probe.report import Report, provenance
from topic_probe.topics import Topics
from topic_probe.uncertainty import check_interval, no_interval_reason, word_interval

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class EmbeddingReport(Report, kind="embeddings"):
    """How much closer words of one topic are than words of different topics, in embedding space.

    Attributes:
        cosine: mean cosine between word embeddings; its ``same_word`` is a word with itself, so 1.
        dot: the same of dot products.
        topics: "cosine" and "dot", with a cell for every topic: pairs of different words that are both in it, and
            its words with all words they share no topic with.
        layers: "cosine" and "dot", with a cell for every layer, between positions of the same document: layer 0 is
            what enters the first block. None where no documents were given.
        provenance: model, topics, options, versions, and what was left out and why.
        matrices: "cosine" and "dot" between up to 512 words in the order of their topics, beyond that their means
            between topics. None for thousands of topics, and in reports saved before there were any.
    """

    figure: ClassVar[str] = "blocks:block_map"
    cosine: Contrast
    dot: Contrast
    topics: Mapping[str, Contrast]
    layers: Mapping[str, Contrast] | None
    provenance: Mapping[str, Any]
    matrices: MatrixReport | None = None

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


def measure_embeddings(
    model: Any,
    topics: Topics,
    documents: Any = None,
    *,
    center: bool = False,
    remove_components: int = 0,
    exclude: Iterable[int] = (),
    include_self: bool = True,
    special_ids: Collection[int] | None = None,
    batch_size: int = 32,
    max_length: int | None = None,
    statistic: Literal["ratio", "difference"] = "ratio",
    n_resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 300.0,
    distributed: bool = False,
    progress: bool = False,
) -> EmbeddingReport:
    """Cosines and dot products of word embeddings, same topic against different topics, over all pairs of words.

    Word embeddings are the raw table, as in the paper. Trained tables point in a common direction, which raises
    all cosines alike; ``center`` and ``remove_components`` take that out. Intervals say how much the number would
    change with other words of the same topics: words are drawn anew within every topic (within its first topic, a
    word of several), never pairs, and topics stay as they are. They need at least eight words. Given documents,
    the model's states are compared at every layer too, as they are, between positions of the same document, with
    intervals that resample documents.

    Split words that the topics know as a whole have no row in the table and are left out; so are words whose row is
    zero or not finite. All that is left out is counted in ``provenance``.

    Args:
        model: anything that `open_model` takes. It comes back as it was.
        topics: which vocabulary entries belong to which topic.
        documents: token ids in any shape that `topic_probe.text.batches.token_batches` takes; None measures the table
            only.
        center: subtract the mean over all rows of the table that are finite, not zero and not in ``exclude``.
        remove_components: project this many leading principal components of the same, centred rows out; implies
            ``center``.
        exclude: token ids left out, of the pairs as well as of the mean and the components: special and unused ids.
        include_self: whether the pair of a position with itself is a same-word pair of a layer, as in the paper.
        special_ids: ids that have no topic in documents; by default what the model's tokenizer or configuration names.
        batch_size: documents in one forward pass; changes nothing but speed and memory.
        max_length: documents are cut at so many tokens, by default at what the model can take.
        statistic: what intervals are about.
        n_resamples: resampled sets of words, or documents, behind the intervals; 0 leaves them out.
        confidence: what share of intervals is to hold the true number.
        seed: seed of resampling.
        checkpoint: a folder in which the sums over documents are saved on the way, as in `measure_attention`.
        checkpoint_every: seconds between two saves.
        distributed: whether this is one of several processes that share out the documents, as in `measure_attention`.
        progress: whether to show a progress bar over documents.

    Raises:
        ValueError: for topics of another vocabulary, or where no word is left to measure; for a checkpoint of another
            measurement.
        RuntimeError: where another process failed, or ``distributed`` finds no processes.
    """
    from topic_probe.lens.opening import open_model

    check_interval(n_resamples, confidence)
    with joined(distributed and documents is not None) as processes:
        model = open_model(model)
        capture.check_topics(model, topics)
        excluded = sorted({int(id_) for id_ in exclude})
        words = labelled_words(
            capture.word_embeddings(model),
            topics,
            center=center,
            remove_components=remove_components,
            exclude=excluded,
        )
        sums = group_sums(words, topics)
        overall, by_topic = pair_sums(sums, topics)
        resampling: dict[str, Any] = {
            "statistic": statistic,
            "n_resamples": n_resamples,
            "confidence": confidence,
            "seed": seed,
        }
        cosine, dot = _with_intervals(overall, words, topics, **resampling)
        options = {
            "center": center or remove_components > 0, "remove_components": remove_components, "exclude": excluded,
            "statistic": statistic, "n_resamples": n_resamples, "confidence": confidence,
        }  # fmt: skip
        record = provenance(
            topics, model=capture.describe(model), options=options, seed=seed, left_out=words.left_out
        )
        layers = None
        if documents is not None:
            specials = capture.special_ids(model) if special_ids is None else set(special_ids)
            meter = LayerMeter(model, topics, include_self=include_self)
            record["documents"] = meter.run(
                documents,
                Reading(batch_size, max_length, specials | set(excluded)),
                saving=Saving(checkpoint, checkpoint_every),
                processes=processes,
                progress=progress,
            )
            record["options"] |= {"include_self": include_self, "special_ids": sorted(specials)}
            layers = meter.contrasts(**resampling)
        matrices = embedding_matrices(words, sums, topics)
        return EmbeddingReport(cosine, dot, _per_topic(by_topic, words, topics), layers, record, matrices)


def _per_topic(sums: PairSums, words: EmbeddingWords, topics: Topics) -> dict[str, Contrast]:
    sizes = torch.bincount(words.group, minlength=len(topics.group_topics)) @ topics.group_topics.long()
    index = {
        "topic": tuple(topics.label(topic) for topic in range(topics.n_topics)),
        "n_words": tuple(sizes.tolist()),
    }
    return {
        score: PairSums(sums.sums[number], sums.counts).contrast(index=index)
        for number, score in enumerate(SCORES)
    }


def _with_intervals(
    overall: PairSums,
    words: EmbeddingWords,
    topics: Topics,
    *,
    statistic: Literal["ratio", "difference"],
    n_resamples: int,
    confidence: float,
    seed: int,
) -> list[Contrast]:
    """The contrasts of cosine and dot product, each with its interval."""
    parts = [PairSums(sums, overall.counts) for sums in overall.sums]
    if n_resamples == 0:
        return [part.contrast(statistic=statistic) for part in parts]
    intervals = word_interval(
        *word_ends(words, topics, seed=seed),
        first_topics(topics)[words.group.numpy()],
        statistic=statistic,
        n_resamples=n_resamples,
        confidence=confidence,
        seed=seed,
    )
    notes = [no_interval_reason(interval, len(words.index), "words") for interval in intervals]
    return [
        part.contrast(interval=interval, note=note, statistic=statistic)
        for part, interval, note in zip(parts, intervals, notes, strict=True)
    ]
