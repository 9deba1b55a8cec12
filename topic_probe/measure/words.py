"""All pairs of words of an embedding table at once, without ever forming a pair.

With S the sum of a group's embeddings, the dot products between all its different words add up to |S|² − Σ|e|², and
those between two groups to S·S'. Cosines are dot products of embeddings divided by their norms.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from topic_probe.contrast import PairSums
from topic_probe.topics import Topics
from topic_probe.uncertainty import split_halves

SCORES = ("cosine", "dot")

# Rows of a float32 table are added up this many at a time in float32, then in float64: a relative error of 1e-9
# in the means, at a third of the time. Smaller tables are float64 throughout.
_ROWS_PER_SUM = 64
_SMALL = 2**22
_BLOCK = 4096


@dataclass(frozen=True)
class EmbeddingWords:
    """The words of a table that are measured, in the order of their groups (words with the same topics).

    ``rows[index]`` are their embeddings, with what was asked for taken out; ``ids`` are their token ids.
    """

    ids: Int64[Tensor, " word"]
    rows: Float[Tensor, "row d_embed"]
    index: Int64[Tensor, " word"]
    group: Int64[Tensor, " word"]
    norms: Float64[Tensor, " word"]
    left_out: Mapping[str, int] = field(default_factory=dict)


def embedding_sums(
    table: Float[Tensor, "vocabulary d_embed"],
    topics: Topics,
    *,
    center: bool = False,
    remove_components: int = 0,
    exclude: Iterable[int] = (),
) -> PairSums:
    """Sums over all ordered pairs of words by relation, [score, relation] with cosine and dot product as scores.

    Linear in the number of words, quadratic in the number of different topic sets among them. Options as in
    `measure_embeddings`.
    """
    words = labelled_words(table, topics, center=center, remove_components=remove_components, exclude=exclude)
    return pair_sums(group_sums(words, topics), topics)[0]


def labelled_words(
    table: Float[Tensor, "vocabulary d_embed"],
    topics: Topics,
    *,
    center: bool = False,
    remove_components: int = 0,
    exclude: Iterable[int] = (),
) -> EmbeddingWords:
    """The words of a table that have a topic and a row to measure, with what was left out and how often."""
    if not 0 <= remove_components < table.shape[1]:
        raise ValueError(
            f"remove_components must be from 0 to {table.shape[1] - 1}, below the width of the embeddings, "
            f"got {remove_components}"
        )
    single = topics.words < min(topics.vocabulary_size, len(table))
    excluded = torch.isin(topics.words, torch.tensor(sorted(exclude), dtype=torch.int64))
    ids, group = topics.words[single & ~excluded], topics.group_of_word[single & ~excluded]
    # Small integers are sorted in linear time.
    labels = group.numpy().astype(np.min_scalar_type(len(topics.group_topics)))
    order = torch.from_numpy(np.argsort(labels, kind="stable"))
    ids, group = ids[order], group[order]

    norms = _norms(table, ids)
    present = torch.isfinite(norms) & (norms > 0)
    left_out = {
        "split words, which have no row": int((~single).sum()),
        "words in exclude": int((single & excluded).sum()),
        "words whose row is zero or not finite": int((~present).sum()),
    }
    left_out = {reason: count for reason, count in left_out.items() if count}
    ids, group, norms = ids[present], group[present], norms[present]
    _check_left(ids, topics, left_out)
    if center or remove_components:
        rows = _without_common(table, ids, remove_components, exclude)
    elif table.numel() <= _SMALL or table.dtype not in (torch.float32, torch.float64):
        rows = table[ids.to(table.device)].cpu()
        rows = rows.double() if table.numel() <= _SMALL else rows.float()
    else:
        return EmbeddingWords(ids, table, ids, group, norms, left_out)
    index = torch.arange(len(ids))
    before, norms = norms, _norms(rows, index)
    # What is left of a word that was nothing but the common part is rounding, and has no direction.
    kept = norms > 1e-9 * before
    if not kept.all():
        left_out["words with nothing left after the common part"] = int((~kept).sum())
        _check_left(ids[kept], topics, left_out)
    return EmbeddingWords(ids[kept], rows, index[kept], group[kept], norms[kept], left_out)


def _check_left(ids: Int64[Tensor, " word"], topics: Topics, left_out: Mapping[str, int]) -> None:
    if not len(ids):
        raise ValueError(f"no word is left to measure of {len(topics.words)} that have a topic: {left_out}")


def _norms(table: Float[Tensor, "row d_embed"], ids: Int64[Tensor, " word"]) -> Float64[Tensor, " word"]:
    """The norms of rows; of all rows at once where most are wanted, which is faster than picking them."""
    ids = ids.to(table.device)
    if table.dtype not in (torch.float32, torch.float64):
        norms = torch.cat([table[block].float().norm(dim=-1) for block in torch.split(ids, _BLOCK)])
    elif 2 * len(ids) > len(table):
        norms = table.norm(dim=-1)[ids]
    else:
        norms = torch.cat([table[block].norm(dim=-1) for block in torch.split(ids, _BLOCK)])
    return norms.cpu().double()


def _without_common(
    table: Float[Tensor, "vocabulary d_embed"],
    ids: Int64[Tensor, " word"],
    remove_components: int,
    exclude: Iterable[int],
) -> Float64[Tensor, "word d_embed"]:
    """Rows less the mean of all rows in use, and less their leading principal components."""
    used = torch.ones(len(table), dtype=torch.bool)
    used[[id_ for id_ in exclude if 0 <= id_ < len(table)]] = False
    blocks = [block for block in torch.split(torch.arange(len(table))[used], _BLOCK) if len(block)]

    def rows_of(block: Tensor) -> Tensor:
        rows = table[block.to(table.device)].cpu().double()
        return rows[rows.isfinite().all(1) & rows.any(1)]

    n = sum(len(rows_of(block)) for block in blocks)
    mean = torch.stack([rows_of(block).sum(0) for block in blocks]).sum(0) / n
    rows = table[ids.to(table.device)].cpu().double() - mean
    if remove_components:
        scatter = torch.stack([(part := rows_of(block) - mean).T @ part for block in blocks]).sum(0)
        leading = torch.linalg.eigh(scatter).eigenvectors[:, -remove_components:]
        rows = rows - (rows @ leading) @ leading.T
    return rows


def _bin_sums(
    words: EmbeddingWords, bins: Int64[Tensor, " word"], n_bins: int
) -> Float64[Tensor, "score bin d_embed"]:
    """The summed unit vectors and the summed vectors of the words in every bin."""
    order = torch.from_numpy(np.argsort(bins.numpy(), kind="stable"))
    index, bins = words.index[order].to(words.rows.device), bins[order]
    sizes = torch.bincount(bins, minlength=n_bins)
    rank = torch.arange(len(bins)) - (sizes.cumsum(0) - sizes)[bins]
    starts = (rank % _ROWS_PER_SUM == 0).nonzero().squeeze(1)
    sums = torch.zeros(2, n_bins, words.rows.shape[1], dtype=torch.float64)
    inverse = (1 / words.norms[order]).to(words.rows)
    for number, weights in enumerate((inverse, None)):
        # Sums rows where they lie, at the speed of memory.
        parts = F.embedding_bag(
            index, words.rows, starts.to(index.device), mode="sum", per_sample_weights=weights
        )
        sums[number].index_add_(0, bins[starts], parts.cpu().double())
    return sums


def times_shared(
    shared: Bool[Tensor, "group group"], values: Float64[Tensor, "... group width"]
) -> Float64[Tensor, "... group width"]:
    """For every group, the sum of the values of all groups that share a topic with it."""
    return torch.cat([block.double() @ values for block in torch.split(shared, 1024)], dim=-2)


@dataclass(frozen=True)
class GroupSums:
    """All that sums over pairs of words depend on, for cosine and dot product.

    Attributes:
        sums: summed unit vectors, and summed vectors, of the words of every group.
        squares: summed squares of their norms: 1 for every unit vector.
        sizes: number of words in every group.
    """

    sums: Float64[Tensor, "score group d_embed"]
    squares: Float64[Tensor, "score group"]
    sizes: Float64[Tensor, " group"]


def group_sums(words: EmbeddingWords, topics: Topics) -> GroupSums:
    """The sums of every group of words with the same topics."""
    n_groups = len(topics.group_topics)
    sizes = torch.bincount(words.group, minlength=n_groups).double()
    squares = torch.stack([sizes, torch.bincount(words.group, words.norms.square(), n_groups)])
    return GroupSums(_bin_sums(words, words.group, n_groups), squares, sizes)


def pair_sums(of_groups: GroupSums, topics: Topics) -> tuple[PairSums, PairSums]:
    """Sums over all ordered pairs by relation: overall [score, relation] and per topic [score, topic, relation].

    A topic's *same topic* pairs are the different words in it, its *different topic* pairs are its words with
    the words they share no topic with.
    """
    member = topics.group_topics.double()
    overlap = bool((member.sum(1) > 1).any())
    sums, squares, sizes = of_groups.sums, of_groups.squares, of_groups.sizes
    # Where topics do not overlap, a group shares its topic with itself alone.
    shared = times_shared(topics.shared, sums) if overlap else sums
    mates = times_shared(topics.shared, sizes[:, None]).squeeze(1) if overlap else sizes
    within = torch.einsum("sgd,sgd->sg", sums, shared)
    same = within - squares
    different = torch.einsum("sgd,sd->sg", sums, sums.sum(1)) - within
    counts = torch.stack([sizes, sizes * (mates - 1), sizes * (sizes.sum() - mates)], dim=-1)
    overall = PairSums(torch.stack([squares, same, different], dim=-1).sum(1).numpy(), counts.sum(0).numpy())

    topic_sizes, topic_squares = sizes @ member, squares @ member
    topic_same = (member.T @ sums).square().sum(-1) - topic_squares if overlap else same @ member
    topic_sums = torch.stack([topic_squares, topic_same, different @ member], dim=-1)
    topic_counts = torch.stack([topic_sizes, topic_sizes * (topic_sizes - 1), counts[:, 2] @ member], dim=-1)
    return overall, PairSums(topic_sums.numpy(), topic_counts.numpy())


def first_topics(topics: Topics) -> Int64[np.ndarray, " group"]:
    """The first topic of every group, within which its words are resampled."""
    return np.asarray(topics.group_topics.numpy().argmax(axis=1))


def word_ends(
    words: EmbeddingWords, topics: Topics, *, seed: int
) -> tuple[
    Float64[np.ndarray, "half word score"],
    Float64[np.ndarray, "half word"],
    Float64[np.ndarray, "half word score"],
    Float64[np.ndarray, "half word"],
]:
    """For every word, what it contributes to all pairs: same-topic sums, counts, different-topic sums, counts.

    Over both ends of ordered pairs, apart by the random half of the words that the partner is in, as
    `word_interval` wants them.
    """
    half = torch.from_numpy(split_halves(first_topics(topics)[words.group.numpy()], seed=seed))
    n_groups, width = len(topics.group_topics), words.rows.shape[1]
    sums = _bin_sums(words, 2 * words.group + half, 2 * n_groups).view(2, n_groups, 2 * width)
    shared = times_shared(topics.shared, sums)
    partners = torch.cat([shared, sums.sum(1, keepdim=True) - shared], dim=-1)  # same topic, different topic
    partners = partners.view(2, n_groups, 4, width).transpose(0, 1).reshape(n_groups, 8, width)
    scores = torch.zeros(len(words.index), 8, dtype=torch.float64)
    squares = torch.zeros(len(words.index), dtype=torch.float64)
    start = 0
    for group, size in enumerate(torch.bincount(words.group, minlength=n_groups).tolist()):
        chosen = slice(start, start + size)
        rows = words.rows[words.index[chosen].to(words.rows.device)].cpu().double()
        scores[chosen], squares[chosen] = rows @ partners[group].T, rows.square().sum(1)
        start += size
    by_score = scores.view(-1, 2, 2, 2)  # word, score, relation, half
    by_score[:, 0] /= words.norms[:, None, None]
    own = F.one_hot(half, 2).double()
    by_score[:, 0, 0] -= own
    by_score[:, 1, 0] -= own * squares[:, None]

    members = torch.bincount(2 * words.group + half, minlength=2 * n_groups).view(n_groups, 2).double()
    mates = times_shared(topics.shared, members)
    n_same, n_different = mates[words.group] - own, (members.sum(0) - mates)[words.group]
    same, different = (2 * by_score[:, :, relation].permute(2, 0, 1).numpy() for relation in (0, 1))
    return same, 2 * n_same.T.numpy(), different, 2 * n_different.T.numpy()
