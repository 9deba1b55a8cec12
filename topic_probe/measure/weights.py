"""Do the weights of a head, read in words, treat words of one topic differently from words of different topics?

The score of a pair of words is a_i·b_j, with what the two halves of a circuit make of each word. Sums over all pairs
follow from sums over the words, as those of embeddings do, so no scores but those of a picture are formed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float64

from topic_probe.contrast import Contrast, PairSums, no_interval_reason
from topic_probe.estimate import divide, over_words, split_halves
from topic_probe.lens.host import facts_of, sites_of
from topic_probe.lens.opening import open_model
from topic_probe.lens.weights import embedding_in_residual, head_weights, unembedding
from topic_probe.measure.matrix import MatrixReport, matrices_fit, matrices_of_words
from topic_probe.measure.options import Confidence, recorded
from topic_probe.measure.words import EmbeddingWords, Rows, labelled_words, word_ends, word_sums
from topic_probe.options import shares
from topic_probe.report import Report, provenance
from topic_probe.topics import Topics
from topic_probe.topics.lists import token_id_array

if TYPE_CHECKING:
    import pandas as pd

Circuit = Literal["qk", "ov"]
CIRCUITS: tuple[Circuit, ...] = ("qk", "ov")


@dataclass(frozen=True, eq=False, repr=False)
class WeightReport(Report, kind="weights"):
    """What the weights of every head do between words, same topic against different topics.

    Attributes:
        heads: a cell for every circuit ("qk", "ov"), stack, layer and head; scores have a sign, so ``difference`` is
            the number to read.
        standardised: ``difference`` divided by the standard deviation of a head's scores over all ordered pairs of
            words (each with itself included), comparable between heads; NaN where all scores are equal.
        provenance: model, topics, options, versions, and what was left out and why.
        matrices: the scores of every circuit and head between up to 512 words in the order of their topics; None of
            more words, and where they do not fit into 16 MiB.
    """

    heads: Contrast
    standardised: Float64[np.ndarray, " head"]
    provenance: Mapping[str, Any]
    matrices: MatrixReport | None

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every circuit and head."""
        table = self.heads.to_dataframe()
        table["standardised"] = self.standardised
        return table


@shares
def measure_weights(
    model: Any,
    topics: Topics,
    *,
    circuits: Sequence[Circuit] | None = None,
    exclude: Iterable[int] = (),
    statistic: Literal["ratio", "difference"] = "difference",
    intervals: Confidence,
) -> WeightReport:
    """Mean weights between words by relation, for every head, over all ordered pairs of words with a topic.

    "qk" scores how much the word in a query position attends to the word in a key position, e_i W_Q W_Kᵀ e_j, without
    biases, positions and the division by √d_head. Models with rotary positions turn queries and keys by where they
    stand: the score is that of two words at one place.
    "ov" scores how much attending to word i adds to the score of word j at the output, e_i W_V W_O u_j, with u_j its
    column of the unembedding; in a one-hot toy these are the entries of W_V. Both leave out normalisation layers and
    what happens between the embedding and the layer. The encoder of an encoder-decoder model has no "ov". Forms of one
    word are one word, and intervals are over words, as in `measure_embeddings`.

    Args:
        model: anything that `open_model` takes. It comes back as it was.
        topics: which vocabulary entries belong to which topic.
        circuits: which to measure; None: "qk", and "ov" where the model scores words by a matrix.
        exclude: token ids left out.
        statistic: what intervals are about.

    Raises:
        ValueError: for "ov" of a model without such a matrix, topics of another vocabulary, unknown circuits.

    Example:
        >>> world = tp.World(n_topics=2, words_per_topic=2)
        >>> masking = tp.Masking(p_mask=0.2, p_keep=0.0, p_random=0.0)  # Theorem 2: −1/16, and 5/8 more in a topic
        >>> W = tp.theory.optimal_value(world, masking)
        >>> toy = tp.build_toy(tp.ToyConfig(regime="value", world=world), tensors={"W_V": W})
        >>> ov = tp.measure_weights(toy, world.topics, circuits=["ov"]).heads
        >>> [mean.round(5).tolist() for mean in (ov.same_topic, ov.different_topic)]  # of the one head
        [[0.5625], [-0.0625]]
    """
    model = open_model(model)
    known = facts_of(model, topics)
    excluded = sorted(set(token_id_array(exclude, "exclude").tolist()))
    words = labelled_words(embedding_in_residual(model), topics, exclude=excluded)
    factors, missing = _word_factors(model, words, circuits)
    heads = [
        head
        for circuit, sides in factors.items()
        for head in _heads(model, words, circuit, *sides, statistic, intervals)
    ]
    if not heads:
        raise ValueError("this model has no attention layers, so there are no heads to measure")
    names, sums, spread, limits, sides = zip(*heads, strict=True)
    index = dict(zip(("circuit", "stack", "layer", "head"), zip(*names, strict=True), strict=True))
    interval, pairs = np.stack(limits), PairSums(np.stack(sums), np.tile(words.counts.sum(0), (len(sums), 1)))
    note = no_interval_reason(interval, words.n_forms, "words")
    contrast = pairs.contrast(statistic=statistic, index=index, interval=interval, note=note)
    options = {"circuits": [*factors], "exclude": excluded, "statistic": statistic, **recorded(intervals)}
    left_out = {**words.left_out, **missing}
    record = provenance(
        topics, model=known.description, options=options, seed=intervals.seed, left_out=left_out
    )
    matrices = None
    if matrices_fit(words, len(heads)):
        matrices = matrices_of_words(np.stack([a @ b.T for a, b in sides]), index, words)
    return WeightReport(contrast, divide(contrast.difference, np.array(spread)), record, matrices)


def _word_factors(
    model: Any, words: EmbeddingWords, circuits: Sequence[Circuit] | None
) -> tuple[dict[Circuit, tuple[Rows, Rows]], dict[str, str]]:
    """What stands left and right of the weights of each circuit, and why one is missing."""
    unknown = [circuit for circuit in circuits or () if circuit not in CIRCUITS]
    if unknown or circuits == ():
        raise ValueError(f"circuits must be some of {CIRCUITS}, got {circuits}")
    inputs = words.rows.astype(np.float64)
    factors: dict[Circuit, tuple[Rows, Rows]] = {}
    missing: dict[str, str] = {}
    for circuit in circuits or CIRCUITS:
        if circuit == "qk":
            factors["qk"] = inputs, inputs
            continue
        try:
            outputs = unembedding(model)
        except ValueError as error:
            if circuits is not None:
                raise
            missing["ov"] = str(error)
            continue
        if int(words.ids.max()) >= outputs.shape[1]:
            raise ValueError(
                f"the model scores {outputs.shape[1]} words, the topics hold id {int(words.ids.max())}: leave it out"
            )
        columns = outputs[:, words.ids.to(outputs.device)].T.cpu().double()
        if not columns.isfinite().all():
            bad = words.ids[~columns.isfinite().all(1)]
            raise ValueError(
                f"the unembedding of token {int(bad[0])} is not finite: pass it, and others, in exclude"
            )
        factors["ov"] = inputs, columns.numpy()
    return factors, missing


def _heads(
    model: Any,
    words: EmbeddingWords,
    circuit: Circuit,
    left: Rows,
    right: Rows,
    statistic: Literal["ratio", "difference"],
    intervals: Confidence,
) -> Iterator[tuple[Any, ...]]:
    """Of every head its name, sums by relation, spread of scores, interval, and what it makes of few words."""
    half = split_halves(words.strata, seed=intervals.seed)
    for site in sites_of(model):
        # An encoder beside a decoder does not write into the stream that words are scored from.
        if (circuit, site.stack) == ("ov", "encoder"):
            continue
        weights = head_weights(model, site)
        P, Q = (weights.W_Q, weights.W_K) if circuit == "qk" else (weights.W_V, weights.W_O.mT)
        for head, (p, q) in enumerate(zip(P.cpu().double().numpy(), Q.cpu().double().numpy(), strict=True)):
            a, b = left @ p, right @ q
            sums = word_sums(words, a, b).sum(0)
            estimate = over_words(word_ends(words, a, b, half), None, words.strata, statistic=statistic)
            interval = estimate.interval(intervals.confidence)[0]
            sides = (a, b) if matrices_fit(words, 1) else None
            spread = _spread(a, b, sums.sum() / len(words) ** 2)
            yield (circuit, site.stack, site.layer, head), sums, spread, interval, sides


def _spread(a: Rows, b: Rows, mean: float) -> float:
    """The standard deviation of all a_i·b_j, the second moment being tr(AᵀA BᵀB) ÷ their number."""
    squares = ((a.T @ a) * (b.T @ b)).sum() / len(a) ** 2
    variance = squares - mean**2
    # What is left of equal scores is rounding, and no spread.
    return float(np.sqrt(variance)) if variance > 1e-14 * squares else 0.0
