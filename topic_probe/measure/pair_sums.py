"""Sums over all pairs of words of a table, of scores and of their squares, without forming the pairs.

With S the sum of a group's embeddings, the dot products between all its words add up to |S|², those between two groups
to S·S'. Cosines are dot products of embeddings divided by their norms. Only pairs of one word, of an entry with itself
and with its other forms ("President", " president"), are formed, because they are few, and taken out of the sums; where
topics overlap, so are the pairs of words within each of them (`Mates`).

The squares of a word's dot products with n words add up to Σ_j (e·e_j)² = eᵀ G e with G = Σ_j e_j e_jᵀ, which costs
n·d² for G and as much for all n of them; the products themselves cost n²·d, less for fewer words than about twice the
width. Over the words of a group they add up to the product of G with what the group adds to it, entry by entry: where
groups are few and large, sums over groups cost little more than G alone. Every pair of different words that have topics
is of the same topic or of different ones, so sums over both kinds need no topics, and where topics do not overlap,
neither do those that a single topic is about.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from topic_probe.contrast import PairSums
from topic_probe.estimate import Ends
from topic_probe.measure.words import SCORES, EmbeddingWords
from topic_probe.topics.incidence import Incidence

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# Rows of a float32 table are added up this many at a time in float32, then in float64: a relative error of 1e-9
# in the means, at a third of the time.
_ROWS_PER_SUM = 64
_BLOCK = 4096
# So many rows, and what they are multiplied with, stay in a processor's cache.
_ROWS_PER_BLOCK = 256
# They are multiplied with the sums of all their groups where these are no more than this; picking a sum for every row
# costs more then.
_GROUPS_PER_BLOCK = 16
# A product of two rows costs so many times as much where rows are picked for it as in a product of two tables.
_PICKED = 8
# Groups of fewer words than this cost more by their moments, which are gone through entry by entry, than one by one.
_WORDS_PER_MOMENT = 128
# So many entries of moments are kept at most: a quarter of a gigabyte in float32.
_KEPT = 2**26


# ----------------------------------------------------------------------------------- topics that overlap

# Sums over the words of every topic have those that share several topics with a word once for each of these. The
# products with them (`Incidence.sharing_several`) are formed by themselves, and taken out as often as they are too
# many.
#
# What is added up of the products of a word with others stands in columns: dot products divided by the other's norm
# (cosines, once divided by the word's own) and dot products, with others of either half; then the squares of both.


@dataclass(frozen=True)
class Mates:
    """Scores of words with all words that share a topic with them, themselves included, each counted once.

    Attributes:
        n: numbers of the others, by the half that they are in.
        sums: cosines and dot products with them, by the half that they are in.
        squares: the squares of these, of both halves; no column where nobody asked for them.
        of_topics: sums over all pairs of words of a topic,
        squares_of_topics: and of the squares.
    """

    n: Float64[Tensor, "word half"]
    sums: Float64[Tensor, "word half score"]
    squares: Float64[Tensor, "word squared"]
    of_topics: Float64[Tensor, "topic score"]
    squares_of_topics: Float64[Tensor, "topic squared"]


def mates(words: EmbeddingWords, half: Int64[Tensor, " word"], *, squares: bool = True) -> Mates:
    """What words have with those that share a topic with them, from products that are formed topic by topic."""
    of_words = Incidence(words.topics.incidence.table[words.group.numpy()])
    halves, inverse = F.one_hot(half, 2).double(), 1 / words.norms.numpy()[:, None]
    scale = np.concatenate([inverse, np.ones_like(inverse)], 1)
    of_half = np.concatenate([part[:, None] * scale for part in halves.numpy().T], 1)
    scale, weights = np.concatenate([scale, scale, scale**2], 1), np.concatenate([of_half, scale**2], 1)
    scale, weights = (part[:, : 6 if squares else 4] for part in (scale, weights))
    rough = weights.astype(words.vectors(slice(0)).numpy().dtype)
    own = torch.cat([part.square().sum(1, keepdim=True) for part in _row_blocks(words)]).numpy()
    own = np.concatenate([own * weights[:, :4], own**2 * weights[:, 4:]], 1)
    of_topics, sums = np.zeros((words.topics.n_topics, weights.shape[1])), own.copy()
    topics = of_words.groups_of_topics
    for topic, members in enumerate(np.split(topics.indices.astype(np.int64), topics.indptr[1:-1])):
        if len(members):
            others = _within(words, torch.from_numpy(members), rough[members])
            of_topics[topic] = np.einsum("wc,wc->c", own[members] + others, scale[members])
            sums[members] += others
    if of_words.dense:
        sums = _with_all_that_share(words, rough, of_words)
    else:
        _take_out(sums, words, rough, of_words.sharing_several)
    found, near = torch.from_numpy(sums * scale), torch.from_numpy(of_topics)
    of_halves, of_scores = found[:, :4].view(-1, 2, len(SCORES)), near[:, :4].view(-1, 2, len(SCORES)).sum(1)
    return Mates(of_words.times_shared(halves), of_halves, found[:, 4:], of_scores, near[:, 4:])


def _row_blocks(words: EmbeddingWords) -> Iterator[Float64[Tensor, "some d_embed"]]:
    """The rows of all words, some at a time."""
    return (words.rows(some) for some in torch.split(torch.arange(len(words)), _BLOCK))


def _within(
    words: EmbeddingWords, places: Int64[Tensor, " some"], weights: Float[np.ndarray, "some column"]
) -> Float64[np.ndarray, "some column"]:
    """What the words of a topic have with all others of them."""
    if _few(words, len(places)):
        rows = words.vectors(places).numpy()
        products = rows @ rows.T
        # Products with themselves are left out here: in float32 they would leave their rounding behind.
        np.fill_diagonal(products, 0)
        parts = [products @ weights[:, :4], products**2 @ weights[:, 4:]]
        return np.concatenate(parts, axis=1, dtype=np.float64)
    blocks = torch.split(places, _ROWS_PER_BLOCK)
    parts = np.split(weights[:, :4], range(_ROWS_PER_BLOCK, len(places), _ROWS_PER_BLOCK))
    total = sum(words.rows(block).numpy().T @ part for block, part in zip(blocks, parts, strict=True))
    norms = words.norms[places, None].numpy()
    sums = np.concatenate([words.rows(block).numpy() @ total for block in blocks])
    sums -= norms**2 * weights[:, :4]
    squares = np.empty((len(places), 0))
    if weights.shape[1] > 4:
        squares = (squares_with_all(words, places).numpy() - [1, 0] - norms**4 * [0, 1]) * norms ** [2, 0]
    return np.concatenate([sums, squares], axis=1, dtype=np.float64)


def _take_out(
    sums: Float64[np.ndarray, "word column"],
    words: EmbeddingWords,
    weights: Float[np.ndarray, "word column"],
    again: "csr_array",
) -> None:
    """Subtract what words have with others as often as they are counted too often."""
    from scipy.sparse import triu

    rows, pairs = words.vectors().numpy(), triu(again, format="csr")
    for start in range(0, len(words), _ROWS_PER_BLOCK):
        block = slice(start, start + _ROWS_PER_BLOCK)
        table = pairs[block]
        products = _products(rows, rows[block], table)
        for columns in (slice(0, 4), slice(4, None)):  # products, then their squares
            table.data = table.data * products
            sums[block, columns] -= table @ weights[:, columns]
            sums[:, columns] -= table.T @ weights[block, columns]


def _products(
    rows: Float[np.ndarray, "word d_embed"], some: Float[np.ndarray, "row d_embed"], pairs: "csr_array"
) -> Float64[np.ndarray, " pair"]:
    """The products of the pairs that a table of some words and all words holds."""
    if _PICKED * pairs.nnz > len(some) * len(rows):
        number = np.repeat(np.arange(len(some)), np.diff(pairs.indptr))
        return np.asarray((some @ rows.T)[number, pairs.indices], dtype=np.float64)
    products = np.empty(pairs.nnz, rows.dtype)
    for row, (start, stop) in zip(some, pairwise(pairs.indptr.tolist()), strict=True):
        products[start:stop] = rows[pairs.indices[start:stop]] @ row
    return products.astype(np.float64)


def _with_all_that_share(
    words: EmbeddingWords, weights: Float[np.ndarray, "word column"], of_words: Incidence
) -> Float64[np.ndarray, "word column"]:
    """What every word has with those that share a topic with it, where most do: from all pairs of words."""
    rows, sums = words.vectors().numpy(), np.empty(weights.shape)
    for block, shared in of_words.blocks_of_pairs():
        products = shared.numpy() * (rows[block] @ rows.T)
        sums[block, :4] = products @ weights[:, :4]
        sums[block, 4:] = products**2 @ weights[:, 4:]
    return sums


# ----------------------------------------------------------------------------------- sums


def _bin_sums(
    words: EmbeddingWords, bins: Int64[Tensor, " word"], n_bins: int
) -> Float64[Tensor, "score bin d_embed"]:
    """The summed unit vectors and the summed vectors of the words in every bin."""
    order = torch.from_numpy(np.argsort(bins.numpy(), kind="stable"))
    table, index = (words.table, words.index[order]) if words.rough else (words.rows(), order)
    index, bins = index.to(table.device), bins[order]
    sizes = torch.bincount(bins, minlength=n_bins)
    rank = torch.arange(len(bins)) - (sizes.cumsum(0) - sizes)[bins]
    starts = (rank % _ROWS_PER_SUM == 0).nonzero().squeeze(1)
    sums = torch.zeros(2, n_bins, table.shape[1], dtype=torch.float64)
    inverse = (1 / words.norms[order]).to(table)
    for number, weights in enumerate((inverse, None)):
        # Sums rows where they lie, at the speed of memory.
        parts = F.embedding_bag(index, table, starts.to(index.device), mode="sum", per_sample_weights=weights)
        sums[number].index_add_(0, bins[starts], parts.cpu().double())
    return sums


@dataclass(frozen=True)
class GroupSums:
    """All that sums over pairs of words depend on, for cosine and dot product.

    Attributes:
        words: the words.
        squares: summed squares of their norms: 1 for every unit vector.
        sizes: number of words in every group.
        of_forms: scores of the pairs of ``LabelledWords.form_pairs``.
        half: the half of every word (`word_interval`).
        mates: what words have with those that share a topic with them; None where no topics overlap.
    """

    words: EmbeddingWords
    squares: Float64[Tensor, "score group"]
    sizes: Float64[Tensor, " group"]
    of_forms: Float64[Tensor, "score pair"]
    half: Int64[Tensor, " form"]
    mates: Mates | None

    @cached_property
    def sums(self) -> Float64[Tensor, "score group d_embed"]:
        """Summed unit vectors, and summed vectors, of the words of every group."""
        return _bin_sums(self.words, self.words.group, len(self.words.topics.incidence))


def group_sums(
    words: EmbeddingWords,
    *,
    seed: int = 0,
    half: Int64[Tensor, " form"] | None = None,
    squares: bool = True,
) -> GroupSums:
    """The sums of every group of words with the same topics, and of squares where `pair_squares` is to follow.

    Halves of the words are drawn, where none are given.
    """
    half = words.halves(seed) if half is None else half
    n_groups = len(words.topics.incidence)
    sizes = torch.bincount(words.group, minlength=n_groups).double()
    squares_of_norms = torch.stack([sizes, torch.bincount(words.group, words.norms.square(), n_groups)])
    pairs = words.form_pairs
    blocks = zip(torch.split(pairs.first, _BLOCK), torch.split(pairs.second, _BLOCK), strict=True)
    dot = torch.cat([(words.rows(first) * words.rows(second)).sum(1) for first, second in blocks])
    of_forms = torch.stack([dot / (words.norms[pairs.first] * words.norms[pairs.second]), dot])
    near = None if words.topics.incidence.disjoint else mates(words, half[words.form], squares=squares)
    return GroupSums(words, squares_of_norms, sizes, of_forms, half, near)


def pair_sums(of_groups: GroupSums, words: EmbeddingWords) -> tuple[PairSums, PairSums]:
    """Sums over all ordered pairs by relation: overall [score, relation] and per topic [score, topic, relation].

    Linear in the number of words where topics do not overlap. A topic's *same topic* pairs are the different words in
    it; its *same word* and *different topic* pairs are its words with all their forms, and with the words they share no
    topic with.
    """
    incidence = words.topics.incidence
    squares, sizes = of_groups.squares, of_groups.sizes
    near_words = of_groups.mates
    if near_words is None:
        sums = of_groups.sums
        within, n_within = sums.square().sum(-1), sizes**2
        everything = torch.einsum("sgd,sd->sg", sums, sums.sum(1))
    else:
        within = words.by_group(near_words.sums.sum(1)).T
        n_within = words.by_group(near_words.n.sum(1))
        total = _bin_sums(words, torch.zeros_like(words.group), 1).squeeze(1)
        with_all = torch.cat([rows @ total.T for rows in _row_blocks(words)])
        with_all[:, 0] /= words.norms
        everything = words.by_group(with_all).T
    different = everything - within
    # Pairs of forms of one word, by the groups they are of: with a topic in common, and without. The last row counts.
    ones = torch.ones(1, len(words.form_pairs), dtype=torch.float64)
    first, second, of_forms = words.form_pairs_by_groups(torch.cat([of_groups.of_forms, ones]))
    in_common = incidence.in_common(first, second)
    share = torch.from_numpy(np.diff(in_common.indptr) > 0)
    empty = torch.zeros(2, 3, len(incidence), dtype=torch.float64)
    near, far = empty.index_add_(2, first, torch.stack([of_forms * share, of_forms * ~share]))

    by_group = torch.stack([squares + (near + far)[:2], within - squares - near[:2], different - far[:2]], -1)
    n_different = sizes * sizes.sum() - n_within
    n_by_group = torch.stack([sizes + (near + far)[2], n_within - sizes - near[2], n_different - far[2]], -1)
    of_topics = torch.stack([incidence.by_topic(part) for part in by_group])
    n_of_topics = incidence.by_topic(n_by_group)
    if near_words is not None:
        # A pair that shares a topic need not share this one.
        inside = torch.from_numpy(in_common.T @ of_forms.T.numpy())
        n = incidence.by_topic(sizes)
        own = incidence.by_topic(squares.T) + inside[:, :2]
        of_topics[:, :, 1] = (near_words.of_topics - own).T
        n_of_topics[:, 1] = n * (n - 1) - inside[:, 2]
    overall = PairSums(by_group.sum(1).numpy(), n_by_group.sum(0).numpy())
    return overall, PairSums(of_topics.numpy(), n_of_topics.numpy())


def word_ends(words: EmbeddingWords, of_groups: GroupSums) -> Ends:
    """What every word, all its forms together, adds to all pairs: what `word_interval` wants, of each score."""
    half, near_words = of_groups.half, of_groups.mates
    n_groups, n = len(words.topics.incidence), len(words)
    if near_words is None:
        sums = _bin_sums(words, 2 * words.group + half[words.form], 2 * n_groups).view(2, n_groups, 2, -1)
        of_halves = sums.sum(1)
    else:
        of_halves = _bin_sums(words, half[words.form], 2)
    total = of_halves.flatten(0, 1).numpy()  # numpy's products are the faster ones on some processors
    scores = torch.zeros(2, 2, 2, n, dtype=torch.float64)  # relation, score, half, word
    squares = torch.zeros(n, dtype=torch.float64)
    for start in range(0, n, _ROWS_PER_BLOCK):
        block = slice(start, min(start + _ROWS_PER_BLOCK, n))
        rows = words.rows(block).numpy()
        if near_words is None:
            scores[0, :, :, block] = _with_own_groups(rows, words.group[block], sums)
        scores[1, :, :, block] = torch.from_numpy(total @ rows.T).view(2, 2, -1)
        squares[block] = torch.from_numpy(np.einsum("wd,wd->w", rows, rows))
    scores[:, 0] /= words.norms
    if near_words is not None:
        scores[0] = rearrange(near_words.sums, "word half score -> score half word")
    scores[1] -= scores[0]
    ends = words.by_form(rearrange(scores, "relation score half word -> word relation half score"))
    own = torch.stack([torch.ones_like(squares), squares], 1)
    n_mates = words.members(half)[words.group] if near_words is None else near_words.n
    return words.ends(
        rearrange(ends, "form relation half score -> relation form half score"),
        own,
        of_groups.of_forms,
        half,
        n_mates,
    )


def _with_own_groups(
    rows: Float64[np.ndarray, "word d_embed"],
    group: Int64[Tensor, " word"],
    sums: Float64[Tensor, "score group half d_embed"],
) -> Float64[Tensor, "score half word"]:
    """Products of words, which stand in the order of their groups, with the sums of these."""
    first, stop = int(group[0]), int(group[-1]) + 1
    if stop - first > _GROUPS_PER_BLOCK:
        return torch.from_numpy(np.einsum("swhd,wd->shw", sums[:, group].numpy(), rows))
    near = sums[:, first:stop].flatten(0, 2).numpy()
    products = torch.from_numpy(near @ rows.T).view(2, stop - first, 2, -1)
    return products[:, group - first, :, torch.arange(len(rows))].permute(1, 2, 0)


# ----------------------------------------------------------------------------------- squares


@dataclass(frozen=True)
class PairSquares:
    """Sums of squared cosines and of squared dot products over ordered pairs of different words.

    Attributes:
        total: over all pairs.
        topics: of the pairs that a topic's numbers are about: different words within it, and its words with all words
            they share no topic with.
        by_form: of every word, all its forms together, with all others; None where nobody asked for them, and the rest
            was sooner had without.
    """

    total: Float64[np.ndarray, " score"]
    topics: Float64[np.ndarray, "score topic"]
    by_form: Float64[Tensor, "form score"] | None


def pair_squares(words: EmbeddingWords, of_groups: GroupSums, *, by_form: bool = True) -> PairSquares:
    """The sums of squares of words; without those of every word, which intervals need, at about half of the cost."""
    incidence, forms = words.topics.incidence, words.form_pairs
    own = torch.stack([torch.ones(len(words), dtype=torch.float64), words.norms**4], 1)
    of_one_word = own.index_add(0, forms.first, of_groups.of_forms.T**2)
    kept = None
    if by_form or not _moments_of_groups_fit(words):
        of_words = squares_with_all(words, torch.arange(len(words))) - of_one_word
        by_group, kept = words.by_group(of_words), words.by_form(of_words)
    else:
        by_group = _squares_of_groups(words) - words.by_group(of_one_word)
    # Where topics do not overlap, all other words are in the topic of a word, or share none with it.
    of_topics = incidence.by_topic(by_group)
    if of_groups.mates is not None:
        of_topics -= _squares_elsewhere(words, of_groups, of_groups.mates)
    return PairSquares(by_group.sum(0).numpy(), of_topics.T.numpy(), kept)


def _squares_elsewhere(
    words: EmbeddingWords, of_groups: GroupSums, near: Mates
) -> Float64[Tensor, "topic score"]:
    """Over the words of every topic, squared scores with other words that share a topic with them, but not this one."""
    incidence, forms = words.topics.incidence, words.form_pairs
    within, sharing = near.squares_of_topics.clone(), near.squares.clone()
    entry, topic = incidence.topics_in_common(words.group, words.group)
    # Forms of one word are no pair, within a topic or elsewhere.
    squares = of_groups.of_forms.T**2
    sharing.index_add_(0, forms.first[forms.shared], -squares[forms.shared])
    pair, of_pair = incidence.topics_in_common(words.group[forms.first], words.group[forms.second])
    within.index_add_(0, of_pair, -squares[pair])
    return torch.zeros_like(within).index_add_(0, topic, sharing[entry]) - within


def _moments_of_groups_fit(words: EmbeddingWords) -> bool:
    """Whether sums over groups are sooner had by the moments of each than by those of all, applied to every word."""
    n_groups, width = len(words.topics.incidence), words.table.shape[1]
    large = n_groups * _WORDS_PER_MOMENT <= len(words)
    return large and n_groups * width**2 <= _KEPT and not _few(words, len(words))


def _squares_of_groups(words: EmbeddingWords) -> Float64[Tensor, "group score"]:
    """For every group, squared scores of its words with all words, themselves included.

    Over the words of a group, Σ eᵀ G e is the product of the group's moments with those of all, entry by entry.
    """
    from scipy.linalg import get_lapack_funcs

    width, sizes = words.table.shape[1], words.group.bincount(minlength=len(words.topics.incidence))
    groups = torch.split(torch.arange(len(words)), sizes.tolist())
    one = np.eye(width, dtype=words.vectors(slice(0)).numpy().dtype)
    # A moment is symmetric: half of it is computed, and kept in rows of equal length (LAPACK's packed format).
    multiply, pack = get_lapack_funcs(("sfrk", "trttf"), (one,))
    diagonal, _ = pack(one)
    moments = np.zeros((len(groups), len(diagonal)), one.dtype)
    sums = np.zeros((len(groups), len(SCORES)))
    for score in range(len(SCORES)):
        for group, moment in zip(groups, moments, strict=True):
            if len(group):
                rows = words.vectors(group)
                rows = rows / words.norms[group].to(rows)[:, None] if SCORES[score] == "cosine" else rows
                multiply(width, len(group), 1.0, rows.numpy().T, 0.0, moment, overwrite_c=True)
        # What stands beside the diagonal stands in the other half once more.
        total = moments.sum(0) * (2 - diagonal)
        parts = np.einsum(
            "gvw,vw->gv", moments.reshape(len(groups), width | 1, -1), total.reshape(width | 1, -1)
        )
        sums[:, score] = parts.sum(1, dtype=np.float64)
    return torch.from_numpy(sums)


def squares_with_all(words: EmbeddingWords, places: Int64[Tensor, " some"]) -> Float64[Tensor, "some score"]:
    """For every one of some words, the sum of its squared scores with all of them, itself included."""
    squared_norms = words.norms[places].square()
    scale = torch.stack([squared_norms, torch.ones_like(squared_norms)], 1)
    few = _few(words, len(places))
    return (_through_products(words, places, 1 / scale) if few else _through_moments(words, places)) / scale


def _few(words: EmbeddingWords, n: int) -> bool:
    """Whether products of so many words with each other are sooner had than their moments."""
    return n <= 2 * words.table.shape[1]


def _through_products(
    words: EmbeddingWords, places: Int64[Tensor, " some"], weights: Float64[Tensor, "some score"]
) -> Float64[Tensor, "some score"]:
    """Squared dot products with all of them, each weighed."""
    rows = words.vectors(places).numpy()
    of_columns = weights.numpy().astype(rows.dtype)
    # numpy knows that these are symmetric where all of them are one block, and computes half.
    blocks = (rows[start : start + _BLOCK] @ rows.T for start in range(0, len(rows), _BLOCK))
    sums = [np.square(products, out=products) @ of_columns for products in blocks]
    return torch.from_numpy(np.concatenate(sums).astype(np.float64))


def _through_moments(words: EmbeddingWords, places: Int64[Tensor, " some"]) -> Float64[Tensor, "some score"]:
    """The same, of dot products divided by the norm of the other word alone, and of dot products."""
    width, dtype = words.table.shape[1], words.vectors(slice(0)).dtype
    order = np.argsort(words.index[places].numpy())  # rows come fastest as they stand in the table
    blocks = torch.split(places[torch.from_numpy(order)], _BLOCK)
    # All blocks are held in the same memory: new memory costs as much as reading them.
    held = torch.empty(2, min(_BLOCK, len(places)), width, dtype=dtype)
    moments, product = np.zeros((len(SCORES), width, width)), torch.empty(width, width, dtype=dtype).numpy()
    for block in blocks:
        rows, units = held[:, : len(block)]
        words.vectors(block, out=rows)
        torch.div(rows, words.norms[block].to(rows)[:, None], out=units)
        # Here, too, half of the work is enough, and numpy does no more.
        for moment, side in zip(moments, (units.numpy(), rows.numpy()), strict=True):
            moment += np.matmul(side.T, side, out=product)
    # Half of it is enough to apply it, too: what stands below the diagonal stands above it once more.
    above = (np.triu(moments) + np.triu(moments, 1)).astype(product.dtype)
    sums = np.empty((len(places), len(SCORES)))
    for block, numbers in zip(blocks, np.split(order, range(_BLOCK, len(order), _BLOCK)), strict=True):
        rows, spare = held[:, : len(block)]
        words.vectors(block, out=rows)
        for score, moment in enumerate(above):
            sums[numbers, score] = _applied(rows.numpy(), moment, spare.copy_(rows).numpy())
    return torch.from_numpy(sums)


def _applied(
    rows: Float[np.ndarray, "some width"],
    above: Float[np.ndarray, "width width"],
    copy: Float[np.ndarray, "some width"],
) -> Float64[np.ndarray, " some"]:
    """eᵀ U e of every row e, for a matrix without anything below its diagonal; a copy of the rows is written over."""
    from scipy.linalg import get_blas_funcs

    multiply = get_blas_funcs("trmm", (above, rows))  # half of the work of a product of two tables
    applied = multiply(1.0, above.T, copy.T, lower=True, overwrite_b=True).T
    products: np.ndarray = np.einsum("sw,sw->s", applied, rows)
    return products.astype(np.float64)


class Cosines(NamedTuple):
    """Cosines between words: sums over all pairs, and what every word adds to them and to their squares."""

    sums: PairSums
    ends: Ends
    squares: Float64[np.ndarray, "word 1"]


def cosines_of_words(
    words: EmbeddingWords,
    half: Int64[Tensor, " form"],
    places: Int64[np.ndarray, " form"],
    n_words: int,
) -> Cosines:
    """Sums of cosines over pairs, and what every word adds to them, at its place among the words of all models."""
    sums = group_sums(words, half=half)
    overall, _ = pair_sums(sums, words)
    squares = pair_squares(words, sums)
    assert squares.by_form is not None

    same, n_same, different, n_different = word_ends(words, sums)
    parts = same[..., :1], n_same, different[..., :1], n_different
    ends = Ends(*(placed(part, places, n_words, axis=1) for part in parts))
    of_pairs = PairSums(overall.sums[0], overall.counts, np.asarray(squares.total[0]))
    # Every pair has two ends.
    return Cosines(of_pairs, ends, placed(2 * squares.by_form.numpy()[:, :1], places, n_words, axis=0))


def placed(
    values: Float64[np.ndarray, "..."], places: Int64[np.ndarray, " word"], n: int, *, axis: int
) -> np.ndarray:
    """Values of words at their places among those of all words, 0 elsewhere."""
    found = np.zeros((*values.shape[:axis], n, *values.shape[axis + 1 :]))
    found[(slice(None),) * axis + (places,)] = values
    return found
