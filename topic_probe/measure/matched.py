"""Is it topics, or do words of a topic merely occur together? Pairs compared at equal co-occurrence and frequency."""

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float64

from topic_probe.contrast import Contrast
from topic_probe.lens import capture
from topic_probe.measure.bins import Bins, MatchedWords
from topic_probe.measure.matching import MatchedStatistic, Matching, coverage_of
from topic_probe.measure.pairs import attention_by_class, pair_codes
from topic_probe.report import Report, provenance
from topic_probe.text.cooccurrence import Cooccurrence
from topic_probe.topics import Topics
from topic_probe.uncertainty import Alternative, divide

if TYPE_CHECKING:
    import pandas as pd

# The first distance |i − j| of every bin but the first.
DISTANCE_BINS = (2, 3, 5, 9, 17, 33, 65, 129, 257)


@dataclass(frozen=True, eq=False, repr=False)
class MatchedReport(Report, kind="matched"):
    """What is left of a topic effect between words that occur together equally often and are equally frequent.

    Same-topic and different-topic pairs are compared within bins of pointwise mutual information and of the document
    frequencies of the two words. Both means weigh the bins by their number of same-topic pairs, where a bin holds both
    kinds. ``cosine``, ``dot`` and ``attention`` have a cell for every way of matching, from none at all to all of it;
    if the effect were co-occurrence alone, the matched ratio would be 1. Bins have a width, and the PMI of rare words
    is mostly noise, so part of what co-occurrence does is left in a matched number: it errs upwards, and less so the
    more documents were counted and the more frequent the words are (``min_documents``).

    Attributes:
        cosine: mean cosine between word embeddings, all pairs of different words.
        dot: the same of dot products.
        attention: mean attention relative to uniform, all heads pooled, pairs of positions; it can also be matched on
            their distance. None where no documents were given.
        layers: attention by stack and layer, matched on everything.
        heads: attention by head, matched on everything.
        coverage: "embeddings" and "attention": the share of same-topic pairs in bins that hold both kinds, for
            every way of matching.
        bins: "cosine", "dot" and "attention": every bin that holds a pair, with its limits.
        provenance: model, topics, options, versions, and what was left out and why.
    """

    figure: ClassVar[str] = "bars:matched_forest"
    cosine: Contrast
    dot: Contrast
    attention: Contrast | None
    layers: Contrast | None
    heads: Contrast | None
    coverage: Mapping[str, Float64[np.ndarray, " way"]]
    bins: Mapping[str, Contrast]
    provenance: Mapping[str, Any]

    def surviving(self, score: Literal["cosine", "dot", "attention"]) -> Float64[np.ndarray, " way"]:
        """For every way of matching, the matched difference ÷ the difference of all pairs.

        1 where matching takes nothing away, 0 where it takes everything. It has no meaning where there is no effect.
        """
        difference = self._scores()[score].difference
        return divide(difference, difference[0])

    def _scores(self) -> dict[str, Contrast]:
        found = {"cosine": self.cosine, "dot": self.dot, "attention": self.attention}
        return {name: contrast for name, contrast in found.items() if contrast is not None}

    def to_dataframe(self, by: Literal["match", "bin", "layer", "head"] = "match") -> "pd.DataFrame":
        """A row for every score and way of matching; by "bin" for every bin; by "layer" or "head" of attention."""
        import pandas as pd

        if by in ("layer", "head"):
            contrast = self.layers if by == "layer" else self.heads
            if contrast is None:
                raise ValueError("no attention was measured: pass documents to measure_matched")
            return _without_same_word(contrast.to_dataframe())
        if by == "bin":
            parts = [contrast.to_dataframe().assign(score=score) for score, contrast in self.bins.items()]
        elif by == "match":
            parts = [
                contrast.to_dataframe().assign(
                    score=score,
                    coverage=self.coverage["attention" if score == "attention" else "embeddings"],
                    surviving=self.surviving(score),  # type: ignore[arg-type]
                )
                for score, contrast in self._scores().items()
            ]
        else:
            raise ValueError(f"by must be 'match', 'bin', 'layer' or 'head', got {by!r}")
        table: pd.DataFrame = _without_same_word(pd.concat(parts, ignore_index=True))
        return table[["score", *(name for name in table.columns if name != "score")]]


def _without_same_word(table: "pd.DataFrame") -> "pd.DataFrame":
    """Without the columns on a word with itself, which has no co-occurrence to be matched on."""
    return table.drop(columns=["same_word", "topic_ratio", "n_same_word"])


def measure_matched(
    model: Any,
    topics: Topics,
    documents: Any = None,
    *,
    cooccurrence: Cooccurrence,
    pmi_bins: int = 10,
    frequency_bins: int = 5,
    min_documents: int = 5,
    center: bool = False,
    exclude: Iterable[int] = (),
    special_ids: Collection[int] | None = None,
    batch_size: int = 32,
    max_length: int | None = None,
    long: Literal["cut", "chunk"] = "cut",
    statistic: MatchedStatistic = "ratio",
    n_resamples: int = 1000,
    confidence: float = 0.95,
    n_permutations: int = 200,
    alternative: Alternative = "two-sided",
    seed: int = 0,
    through: capture.Through = "auto",
    check_rows: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 300.0,
    distributed: bool = False,
    progress: bool = False,
) -> MatchedReport:
    """Same topic against different topics, between pairs of words matched on co-occurrence and frequency.

    Words of a topic occur together more often than others: that is how a topic model finds them. Whether a model treats
    them alike for that reason alone is answered by comparing pairs of the same topic with pairs of different topics
    that co-occur as much. Intervals say how much the number would change with other words (cosine, dot product) or
    other documents (attention). P-values permute topic labels among words of equal frequency and keep the weights of
    the bins, so that random topics are judged in the bins where real ones are; they are computed for attention too, but
    not for matching on distance.

    Every pair of words is held in memory: about 80 · n² bytes for n words.

    Args:
        model: anything that `open_model` takes. It comes back as it was.
        topics: which vocabulary entries belong to which topic; split words are left out.
        documents: token ids in any shape that `topic_probe.text.batches.token_batches` takes; None measures word
            embeddings only.
        cooccurrence: counts of the words of the topics, of these or of other documents: `count_cooccurrence`.
        pmi_bins: bins of equally many same-topic pairs that co-occur; pairs that never do have one more.
        frequency_bins: classes of equally many words; those of its two words, in any order, are the bin of a pair.
        min_documents: words in fewer documents are left out, because their PMI is mostly noise. If a higher number
            changes the matched ratio, there is still noise in it.
        center: subtract the mean over all rows of the embedding table, as in `measure_embeddings`.
        exclude: token ids left out.
        special_ids: ids of special tokens; by default what the model's tokenizer or configuration names.
        batch_size: documents in one forward pass; changes nothing but speed and memory.
        max_length: documents are cut at so many tokens, by default at what the model can take.
        long: "cut" drops the rest of longer documents, "chunk" makes documents of it.
        statistic: what intervals and p-values are about.
        n_resamples: resampled sets of words, or documents, behind the intervals; 0 leaves them out.
        confidence: what share of intervals is to hold the true number.
        n_permutations: permuted topic labels behind the p-values; 0 leaves them out.
        alternative: what counts as extreme in the p-values.
        seed: seed of resampling and permutations.
        through: how attention is read, see `topic_probe.lens.capture.View.attention_rows`.
        check_rows: whether rows that do not sum to one are an error.
        checkpoint: a folder in which sums over documents are saved on the way, as in `measure_attention`.
        checkpoint_every: seconds between two saves.
        distributed: whether this is one of several processes that share out the documents; all are given the counts of
            the whole corpus.
        progress: whether to show a progress bar.

    Raises:
        ValueError: for topics or counts of another vocabulary, or where fewer than two words are left.
    """
    from topic_probe.lens.opening import open_model

    model = open_model(model)
    capture.check_topics(model, topics)
    excluded = sorted({int(id_) for id_ in exclude})
    words = MatchedWords.of(
        model, topics, cooccurrence, min_documents=min_documents, center=center, exclude=excluded
    )
    bins = Bins.of(words, pmi_bins=pmi_bins, frequency_bins=frequency_bins)
    found = Matching(words, bins, statistic, confidence, n_resamples, n_permutations, alternative, seed)
    cosine, dot, by_bin = found.embeddings()
    coverage = {"embeddings": coverage_of(found.counts)}
    options = {
        "pmi_bins": pmi_bins, "frequency_bins": frequency_bins, "min_documents": min_documents, "center": center,
        "exclude": excluded, "max_length": max_length, "long": long, "statistic": statistic,
        "n_resamples": n_resamples, "confidence": confidence, "n_permutations": n_permutations,
        "alternative": alternative, "distance_bins": DISTANCE_BINS,
    }  # fmt: skip
    record = provenance(
        topics, model=capture.describe(model), options=options, seed=seed, left_out=words.left_out
    ) | {
        "words": len(words.ids),
        "cooccurrence": {"documents": cooccurrence.n_documents, **cooccurrence.provenance},
    }
    attention = layers = heads = None
    if documents is not None:
        sums = attention_by_class(
            model,
            Topics.from_token_ids({"words": words.ids}, vocabulary_size=topics.vocabulary_size),
            pair_codes(bins.classes.long(), words.same, ~words.same),
            documents,
            distances=DISTANCE_BINS,
            table=n_permutations > 0,
            special_ids=special_ids,
            batch_size=batch_size,
            max_length=max_length,
            long=long,
            through=through,
            check_rows=check_rows,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
            distributed=distributed,
            progress=progress,
        )
        attention, layers, heads, by_bin["attention"], coverage["attention"] = found.attention(sums)
        record["documents"] = sums.record
    return MatchedReport(cosine, dot, attention, layers, heads, coverage, by_bin, record)
