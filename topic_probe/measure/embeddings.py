"""Are words of one topic closer in embedding space than words of different topics?

Exact over all ordered pairs of words without ever forming a pair: with S the sum of a group's embeddings, the
dot products between all its different words add up to |S|² − Σ|e|², and those between two groups to S·S'. Cosines
are dot products of embeddings divided by their norms.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int8, Int64
from torch import Tensor

from topic_probe.contrast import Contrast, DocumentSums, PairSums, relations
from topic_probe.data.batches import Intake, TokenBatch, token_batches
from topic_probe.measure.report import Report, provenance
from topic_probe.topics import Topics
from topic_probe.uncertainty import no_interval_reason, split_halves, word_interval

if TYPE_CHECKING:
    import pandas as pd

SCORES = ("cosine", "dot")

# Rows of a float32 table are added up this many at a time in float32, then in float64: a relative error of 1e-9
# in the means, at a third of the time. Smaller tables are float64 throughout.
_ROWS_PER_SUM = 64
_SMALL = 2**22
_BLOCK = 4096


@dataclass(frozen=True, eq=False, repr=False)
class EmbeddingReport(Report, kind="embeddings"):
    """How much closer words of one topic are than words of different topics, in embedding space.

    Attributes:
        cosine: mean cosine between word embeddings; its ``same_word`` is a word with itself, so 1.
        dot: the same of dot products.
        topics: "cosine" and "dot" for every topic: pairs of different words that are both in it, and its words
            with all words they share no topic with.
        topic_labels: the topics as ``id: word·word·word``.
        n_words: words measured in every topic.
        layers: "cosine" and "dot" for every layer, between positions of the same document: layer 0 is what enters
            the first block. None where no documents were given.
        provenance: model, options, versions, and what was left out and why.
    """

    cosine: Contrast
    dot: Contrast
    topics: Mapping[str, Contrast]
    topic_labels: tuple[str, ...]
    n_words: Int64[np.ndarray, " topic"]
    layers: Mapping[str, Contrast] | None
    provenance: Mapping[str, Any]

    def to_dataframe(self, by: Literal["score", "topic", "layer"] = "score") -> "pd.DataFrame":
        """A row for cosine and one for dot; by "topic" or "layer": a row for each and every topic or layer."""
        import pandas as pd

        if by == "score":
            parts = [getattr(self, score).to_dataframe({"score": [score]}) for score in SCORES]
        elif by == "topic":
            labels = {"topic": self.topic_labels, "n_words": self.n_words}
            parts = [self.topics[score].to_dataframe({"score": score, **labels}) for score in SCORES]
        elif by == "layer":
            if self.layers is None:
                raise ValueError("no layers were measured: pass documents to measure_embeddings")
            layers = range(len(self.layers["cosine"]))
            parts = [self.layers[score].to_dataframe({"score": score, "layer": layers}) for score in SCORES]
        else:
            raise ValueError(f"by must be 'score', 'topic' or 'layer', got {by!r}")
        table: pd.DataFrame = pd.concat(parts, ignore_index=True)
        return table


def measure_embeddings(
    model: Any,
    topics: Topics,
    documents: Any = None,
    *,
    center: bool = False,
    remove_components: int = 0,
    exclude: Iterable[int] = (),
    statistic: Literal["ratio", "difference"] = "ratio",
    n_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    batch_size: int = 32,
    max_length: int | None = None,
) -> EmbeddingReport:
    """Cosines and dot products of word embeddings, same topic against different topics, over all pairs of words.

    Word embeddings are the raw table, as in the paper. Trained tables point in a common direction, which raises
    all cosines alike; ``center`` and ``remove_components`` take that out. Intervals say how much the number would
    change with other words of the same topics: words are drawn anew within every topic (within its first topic, a
    word of several), never pairs, and topics stay as they are. They need at least eight words. Given documents,
    states are compared at every layer too, between positions of the same document, with intervals that resample
    documents.

    Compounds (split words) have no row in the table and are left out; so are words whose row is zero or not
    finite. All that is left out is counted in ``provenance``.

    Args:
        model: a hooked model, as from `open_model`; it comes back as it went in.
        topics: topics over the model's vocabulary.
        documents: what `token_batches` takes: documents of token ids, or batches.
        center: subtract the mean over all rows of the table that are finite, not zero and not in ``exclude``.
        remove_components: project this many leading principal components of the same, centred rows out; implies
            ``center``.
        exclude: token ids left out, of the pairs as well as of the mean and the components: special and unused ids.
        statistic: what intervals are about.
        n_resamples: draws for intervals; 0 for none.
        level: share of intervals that cover the truth.
        seed: of the draws.
        batch_size: documents per forward pass.
        max_length: longer documents are cut here; None: at what the model can take.
    """
    from topic_probe.lens import capture

    capture.check_topics(model, topics)
    table = capture.word_embeddings(model)
    words = labelled_words(table, topics, center=center, remove_components=remove_components, exclude=exclude)
    overall, by_topic = pair_sums(words, topics)
    resampling: dict[str, Any] = {
        "statistic": statistic,
        "n_resamples": n_resamples,
        "level": level,
        "seed": seed,
    }
    contrasts = _with_intervals(overall, words, topics, **resampling)
    per_topic = by_topic.contrast()
    layers: dict[str, Contrast] | None = None
    read: dict[str, Any] = {}
    if documents is not None:
        layers, read = _measure_layers(
            model, topics, documents, exclude, batch_size=batch_size, max_length=max_length, **resampling
        )
    return EmbeddingReport(
        cosine=contrasts[0],
        dot=contrasts[1],
        topics={score: per_topic[number] for number, score in enumerate(SCORES)},
        topic_labels=tuple(topics.label(topic) for topic in range(topics.n_topics)),
        n_words=_words_per_topic(words, topics),
        layers=layers,
        provenance=provenance(
            topics,
            model=capture.describe(model),
            options={
                "center": center or remove_components > 0,
                "remove_components": remove_components,
                "exclude": sorted(exclude),
                "n_resamples": n_resamples,
                "level": level,
                "documents": read,
            },
            seed=seed,
            left_out=words.left_out,
        ),
    )


# -------------------------------------------------------------------- words of a table


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
    return pair_sums(words, topics)[0]


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
    if not len(ids):
        raise ValueError(f"no word is left to measure of {len(topics.words)} that have a topic: {left_out}")
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
    return EmbeddingWords(ids[kept], rows, index[kept], group[kept], norms[kept], left_out)


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


def pair_sums(words: EmbeddingWords, topics: Topics) -> tuple[PairSums, PairSums]:
    """Sums over all ordered pairs by relation: overall [score, relation] and per topic [score, topic, relation].

    A topic's *same topic* pairs are the different words in it, its *different topic* pairs are its words with
    the words they share no topic with.
    """
    member = topics.group_topics.double()
    overlap = bool((member.sum(1) > 1).any())
    n_groups = len(member)
    sums = _bin_sums(words, words.group, n_groups)
    sizes = torch.bincount(words.group, minlength=n_groups).double()
    squares = torch.stack([sizes, torch.bincount(words.group, words.norms.square(), n_groups)])
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


def _words_per_topic(words: EmbeddingWords, topics: Topics) -> Int64[np.ndarray, " topic"]:
    sizes = torch.bincount(words.group, minlength=len(topics.group_topics))
    return (sizes @ topics.group_topics.long()).numpy()


# -------------------------------------------------------------------- intervals


def _with_intervals(
    overall: PairSums,
    words: EmbeddingWords,
    topics: Topics,
    *,
    statistic: Literal["ratio", "difference"],
    n_resamples: int,
    level: float,
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
        level=level,
        seed=seed,
    )
    reasons = [no_interval_reason(interval, len(words.index), "words") for interval in intervals]
    return [
        part.contrast(interval=interval, reason=reason, statistic=statistic)
        for part, interval, reason in zip(parts, intervals, reasons, strict=True)
    ]


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


# -------------------------------------------------------------------- states of layers


def _measure_layers(
    model: Any,
    topics: Topics,
    documents: Any,
    exclude: Iterable[int],
    *,
    batch_size: int,
    max_length: int | None,
    **resampling: Any,
) -> tuple[dict[str, Contrast], dict[str, Any]]:
    """Contrasts of cosine and dot product at every layer, and what was read and left out on the way."""
    from topic_probe.lens import capture

    seen, intake, left_out, accumulated = capture.view(model), Intake(), Counter[str](), DocumentSums()
    batches = token_batches(
        documents,
        batch_size=batch_size if seen.honours_padding else 1,
        max_length=max_length or capture.context_length(model),
        pad_id=capture.pad_id(model),
        vocabulary_size=capture.vocabulary_size(model),
        special_ids=capture.special_ids(model),
        intake=intake,
    )
    for batch in batches:
        positions, codes = related_positions(batch, topics, exclude)
        inputs = seen.inputs(batch.ids, batch.mask)
        sums, counts, lost = _sums_of_layers(model, inputs, positions, codes)
        left_out["states that are zero or not finite"] += lost
        # One more axis, because cosine and dot product count the same pairs.
        accumulated.add(batch.keys.numpy(), sums.numpy(), counts[:, :, None].numpy())
    if not len(accumulated):
        raise ValueError("no document was left to measure: all were empty")
    layers = accumulated.contrast(**resampling)
    read_and_left = intake.summary() | {"left_out_states": dict(left_out)}
    return {score: layers[:, number] for number, score in enumerate(SCORES)}, read_and_left


def _sums_of_layers(
    model: Any, inputs: Any, positions: Int64[Tensor, "batch word"], codes: Int8[Tensor, "batch word word"]
) -> tuple[Float64[Tensor, "batch layer 2 3"], Float64[Tensor, "batch layer 3"], int]:
    """`state_sums` of every layer, from one forward pass."""
    from topic_probe.lens import capture

    found: list[tuple[Tensor, Tensor, int]] = []

    def read(layer: int, states: Tensor) -> None:
        at = positions.clamp(min=0).to(states.device)[:, :, None].expand(-1, -1, states.shape[2])
        found.append(state_sums(states.detach().gather(1, at).cpu(), codes))

    capture.hidden_states(model, inputs, read)
    sums, counts, lost = zip(*found, strict=True)
    return torch.stack(sums, 1), torch.stack(counts, 1), sum(lost)


def related_positions(
    batch: TokenBatch, topics: Topics, exclude: Iterable[int] = ()
) -> tuple[Int64[Tensor, "batch word"], Int8[Tensor, "batch word word"]]:
    """The positions of a batch that carry a topic (−1 behind the last), and the relations between them.

    Padding, special tokens, excluded ids and, where word numbers are known, pieces of split words carry none.
    """
    entries = batch.ids.masked_fill(~batch.mask | batch.special, -1)
    entries[torch.isin(entries, torch.tensor(sorted(exclude), dtype=torch.int64))] = -1
    if batch.word_index is not None:
        word = batch.word_index
        with_next = (word[:, 1:] == word[:, :-1]) & (word[:, 1:] >= 0)
        piece = F.pad(with_next, (0, 1)) | F.pad(with_next, (1, 0))
        entries[piece] = -1
    labelled = topics.labels(entries) >= 0
    most = int(labelled.sum(1).max())
    positions = labelled.long().argsort(dim=1, descending=True, stable=True)[:, :most]
    positions[~labelled.gather(1, positions)] = -1
    chosen = entries.gather(1, positions.clamp(min=0)).masked_fill(positions < 0, -1)
    return positions, relations(chosen, chosen, topics)


def state_sums(
    states: Float[Tensor, "batch word d_model"], codes: Int8[Tensor, "batch word word"]
) -> tuple[Float64[Tensor, "batch 2 3"], Float64[Tensor, "batch 3"], int]:
    """Sums of cosines and dot products by relation within every document, numbers of pairs, and states left out.

    A position is compared with itself too, as in every same-word number.
    """
    vectors = states.double()
    norms = vectors.norm(dim=-1)
    usable = torch.isfinite(norms) & (norms > 0)
    wanted = (codes != 0).any(-1)
    lost = int((wanted & ~usable).sum())
    vectors = vectors.masked_fill(~usable[:, :, None], 0.0)
    units = vectors / norms.masked_fill(~usable, 1.0)[:, :, None]
    codes = codes.masked_fill(~(usable[:, :, None] & usable[:, None, :]), 0)
    cells = (codes + 4 * torch.arange(len(codes))[:, None, None]).flatten()
    n_cells = 4 * len(codes)
    sums = [
        torch.bincount(cells, (part @ part.transpose(1, 2)).flatten(), n_cells).view(-1, 4)[:, 1:]
        for part in (units, vectors)
    ]
    counts = torch.bincount(cells, minlength=n_cells).view(-1, 4)[:, 1:].double()
    return torch.stack(sums, dim=1), counts, lost
