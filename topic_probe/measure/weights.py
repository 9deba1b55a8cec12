"""Do the weights of a head, read in words, treat words of one topic differently from words of different topics?

A head's scores between all words, A Bᵀ with factors A and B of [word, d_head], are never formed. Sums of them over
groups of words are products of sums of embeddings, so a few [d_model, d_model] matrices per model hold all that
every head needs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float64, Int64
from torch import Tensor

from topic_probe.contrast import Contrast, PairSums
from topic_probe.lens import capture
from topic_probe.lens.capture import embedding_in_residual, head_weights, unembedding
from topic_probe.lens.opening import open_model
from topic_probe.lens.sites import Site
from topic_probe.measure.matrix import (
    MatrixReport,
    choose_level,
    matrices_of_topics,
    matrices_of_words,
    means_between,
)
from topic_probe.measure.options import Intervals, recorded
from topic_probe.measure.words import EmbeddingWords, LabelledWords, labelled_words
from topic_probe.options import shares
from topic_probe.report import Report, provenance
from topic_probe.topics import Topics
from topic_probe.topics.lists import token_id_array
from topic_probe.uncertainty import Ends, divide, no_interval_reason, word_interval

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
        matrices: the scores of every circuit and head between up to 512 words in the order of their topics; their
            means between topics where there are more, or where words do not fit into 16 MiB. Where even these do not,
            the heads of the largest |standardised|; None where not even one does.
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
    intervals: Intervals,
) -> WeightReport:
    """Mean weights between words by relation, for every head, over all ordered pairs of words with a topic.

    "qk" scores how much the word in a query position attends to the word in a key position, e_i W_Q W_Kᵀ e_j, without
    biases, positions and the division by √d_head. Models with rotary positions turn queries and keys by where they
    stand: the score is that of two words at one place.
    "ov" scores how much attending to word i adds to the score of word j at the output, e_i W_V W_O u_j, with u_j its
    column of the unembedding; in a one-hot toy these are the entries of W_V. Normalisation layers are left out of
    both, and everything that happens between the embedding and the layer. The encoder of an encoder-decoder model does
    not write where words are scored and has no "ov".

    Forms of one word are one word, and intervals resample words within their topics, as in `measure_embeddings`.

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
    known = capture.facts(model, topics)
    excluded = sorted(set(token_id_array(exclude, "exclude").tolist()))
    words = labelled_words(embedding_in_residual(model), topics, exclude=excluded)
    factors, missing = _word_factors(model, words, circuits)
    heads, spread = _all_heads(model, words, factors, statistic, intervals)
    standardised = divide(heads.difference, spread)
    options = {
        "circuits": [circuit for circuit, _, _ in factors],
        "exclude": excluded,
        "statistic": statistic,
    }
    record = provenance(
        topics,
        model=known.description,
        options=options | recorded(intervals),
        seed=intervals.seed,
        left_out={**words.left_out, **missing},
    )
    return WeightReport(heads, standardised, record, _matrices(model, heads, standardised, factors, words))


def _word_factors(
    model: Any, words: EmbeddingWords, circuits: Sequence[Circuit] | None
) -> tuple[list[tuple[Circuit, Tensor, Tensor]], dict[str, str]]:
    """What stands left and right of the weights of each circuit, [word, d_model], and why one is missing."""
    unknown = [circuit for circuit in circuits or () if circuit not in CIRCUITS]
    if unknown or circuits == ():
        raise ValueError(f"circuits must be some of {CIRCUITS}, got {circuits}")
    wanted = CIRCUITS if circuits is None else tuple(dict.fromkeys(circuits))
    inputs = words.rows()
    factors: list[tuple[Circuit, Tensor, Tensor]] = []
    missing = {}
    for circuit in wanted:
        if circuit == "qk":
            factors.append((circuit, inputs, inputs))
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
        factors.append((circuit, inputs, columns))
    return factors, missing


# -------------------------------------------------------------------- all pairs of words, through factors


@dataclass(frozen=True)
class WordMoments:
    """All that the sums of any bilinear score l_i W r_j over pairs of words depend on.

    Attributes:
        left, right: what stands on either side of the weights.
        words: the words.
        pairs: for every relation, the sum of l_i r_jᵀ over its ordered pairs.
        left_gram, right_gram: the sums of l_i l_iᵀ and of r_j r_jᵀ over all words.
        counts: number of pairs of every relation.
    """

    left: Float64[Tensor, "word d_model"]
    right: Float64[Tensor, "word d_model"]
    words: LabelledWords
    pairs: Float64[Tensor, "3 d_model d_model"]
    left_gram: Float64[Tensor, "d_model d_model"]
    right_gram: Float64[Tensor, "d_model d_model"]
    counts: Float64[np.ndarray, " 3"]


def word_moments(
    left: Float64[Tensor, "word d_model"], right: Float64[Tensor, "word d_model"], words: LabelledWords
) -> WordMoments:
    """The moments of two lists of vectors for the same words."""
    topics = words.topics
    left_sums, right_sums = (words.by_group(side) for side in (left, right))
    sizes = words.by_group(torch.ones(len(words), 1, dtype=torch.float64))
    sharing = left_sums.T @ topics.incidence.times_shared(right_sums)
    n_sharing = float((sizes * topics.incidence.times_shared(sizes)).sum())
    # Pairs of forms of one word, with a topic in common and without, count as an entry with itself does.
    forms = words.form_pairs
    near, far = (
        left[forms.first[chosen]].T @ right[forms.second[chosen]] for chosen in (forms.shared, ~forms.shared)
    )
    n_near, n_far = int(forms.shared.sum()), int((~forms.shared).sum())
    every, own, n = torch.outer(left.sum(0), right.sum(0)), left.T @ right, len(words)
    return WordMoments(
        left, right, words,
        pairs=torch.stack([own + near + far, sharing - own - near, every - sharing - far]),
        left_gram=left.T @ left,
        right_gram=right.T @ right,
        counts=np.array([n + n_near + n_far, n_sharing - n - n_near, n * n - n_sharing - n_far], dtype=np.float64),
    )  # fmt: skip


def circuit_sums(
    moments: WordMoments, P: Float64[Tensor, "head d_model d_head"], Q: Float64[Tensor, "head d_model d_head"]
) -> tuple[PairSums, Float64[np.ndarray, " head"]]:
    """Sums of the scores l_i P Qᵀ r_j by relation, [head, relation], and their standard deviation in every head.

    The standard deviation is over all ordered pairs of words, each with itself included: the second moment is
    Σ (a_i·b_j)² = tr(AᵀA BᵀB).
    """
    sums = torch.stack([(P * (pairs @ Q)).sum((1, 2)) for pairs in moments.pairs], dim=-1)
    n = len(moments.words) ** 2
    squares = ((P.mT @ moments.left_gram @ P) * (Q.mT @ moments.right_gram @ Q)).sum((1, 2)) / n
    variance = squares - (sums.sum(1) / n).square()
    # What is left of equal scores is rounding, and no spread.
    spread = torch.where(variance > 1e-14 * squares, variance, 0.0).sqrt()
    return PairSums(sums.numpy(), np.tile(moments.counts, (len(sums), 1))), spread.numpy()


def _all_heads(
    model: Any,
    words: LabelledWords,
    factors: Sequence[tuple[Circuit, Tensor, Tensor]],
    statistic: Literal["ratio", "difference"],
    intervals: Intervals,
) -> tuple[Contrast, Float64[np.ndarray, " head"]]:
    """One contrast with a cell for every circuit and head, and the standard deviation of each one's scores."""
    names, measured = [], []
    half = words.halves(intervals.seed)
    n_mates = words.n_mates(half)
    for circuit, left, right in factors:
        moments = word_moments(left, right, words)
        for site in capture.sites(model):
            # An encoder beside a decoder does not write into the stream that words are scored from.
            if (circuit, site.stack) == ("ov", "encoder"):
                continue
            P, Q = _projections(model, site, circuit)
            sums, spread = circuit_sums(moments, P, Q)
            interval = np.full((len(spread), 2), np.nan)
            if intervals.n_resamples:
                ends = head_ends(moments, P, Q, half, n_mates)
                interval = word_interval(ends, words.strata, statistic=statistic, **vars(intervals))
            names += [(circuit, site.stack, site.layer, head) for head in range(len(spread))]
            measured.append((sums.sums, sums.counts, spread, interval))
    if not names:
        raise ValueError("this model has no attention layers, so there are no heads to measure")
    values, counts, spread, interval = (np.concatenate(parts) for parts in zip(*measured, strict=True))
    index = dict(zip(("circuit", "stack", "layer", "head"), zip(*names, strict=True), strict=True))
    uncertainty: dict[str, Any] = {}
    if intervals.n_resamples:
        note = no_interval_reason(interval, words.n_forms, "words")
        uncertainty = {"interval": interval, "note": note}
    return PairSums(values, counts).contrast(statistic=statistic, index=index, **uncertainty), spread


def _projections(
    model: Any, site: Site, circuit: Circuit
) -> tuple[Float64[Tensor, "head d_model d_head"], Float64[Tensor, "head d_model d_head"]]:
    """What multiplies the words on the left and the right side of a circuit, for every head of a site."""
    weights = head_weights(model, site)
    left, right = (weights.W_Q, weights.W_K) if circuit == "qk" else (weights.W_V, weights.W_O.mT)
    return left.cpu().double(), right.cpu().double()


def head_ends(
    moments: WordMoments,
    P: Float64[Tensor, "head d_model d_head"],
    Q: Float64[Tensor, "head d_model d_head"],
    half: Int64[Tensor, " form"],
    n_mates: Float64[Tensor, "word half"],
) -> Ends:
    """What every word adds to all pairs: what `word_interval` wants, of each head; see `LabelledWords.ends`."""
    words, forms = moments.words, moments.words.form_pairs
    ends = torch.zeros(2, words.n_forms, 2, len(P), dtype=torch.float64)  # relation, form, half, head
    own = torch.zeros(len(words), len(P), dtype=torch.float64)
    of_forms = torch.zeros(len(P), len(forms), dtype=torch.float64)
    for head, (p, q) in enumerate(zip(P, Q, strict=True)):
        a, b = moments.left @ p, moments.right @ q
        own[:, head], of_forms[head] = (a * b).sum(1), (a[forms.first] * b[forms.second]).sum(1)
        for near, far in ((a, b), (b, a)):
            by_half = words.by_group(far, half[words.form]).flatten(1)
            shared = words.topics.incidence.times_shared(by_half)
            for relation, partners in enumerate((shared, by_half.sum(0) - shared)):
                partners = rearrange(partners[words.group], "word (half d) -> word half d", half=2)
                # Half of it, because a pair is met from both of its ends.
                ends[relation, ..., head] += words.by_form(torch.einsum("wd,whd->wh", near, partners)) / 2
    return words.ends(ends, own, of_forms, half, n_mates)


# -------------------------------------------------------------------- the scores themselves, for pictures


def _matrices(
    model: Any,
    heads: Contrast,
    standardised: Float64[np.ndarray, " head"],
    factors: Sequence[tuple[Circuit, Tensor, Tensor]],
    words: EmbeddingWords,
) -> MatrixReport | None:
    """The scores of every head that fits, between words or between topics."""
    level, n_kept = choose_level(len(words), words.topics.n_topics, len(heads))
    if not n_kept:
        return None
    kept = np.sort(np.argsort(-np.nan_to_num(np.abs(standardised)), kind="stable")[:n_kept])
    assert heads.index is not None
    index = {name: tuple(cells[cell] for cell in kept) for name, cells in heads.index.items()}
    sides = {circuit: (left, right) for circuit, left, right in factors}
    sites = {(site.stack, site.layer): site for site in capture.sites(model)}
    matrices = []
    for (circuit, stack, layer), group in groupby(
        zip(*index.values(), strict=True), key=lambda cell: cell[:3]
    ):
        left, right = sides[circuit]
        P, Q = _projections(model, sites[stack, layer], circuit)
        for *_, head in group:
            a, b = left @ P[head], right @ Q[head]
            matrices.append((a @ b.T if level == "word" else _topic_means(a, b, words)).float())
    if level == "word":
        return matrices_of_words(torch.stack(matrices), index, words)
    return matrices_of_topics(torch.stack(matrices), index, words.topics)


def _topic_means(
    a: Float64[Tensor, "word d_head"], b: Float64[Tensor, "word d_head"], words: LabelledWords
) -> Float64[Tensor, "topic topic"]:
    """Means of a head's scores a_i·b_j between the words of any two topics."""
    forms = words.form_pairs
    rows, columns = (words.topics.incidence.by_topic(words.by_group(side)) for side in (a, b))
    own = words.by_group((a * b).sum(1))
    of_forms = (a[forms.first] * b[forms.second]).sum(1)
    return means_between((rows @ columns.T)[None], own[None], of_forms[None], words)[0]
