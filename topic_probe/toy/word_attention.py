"""Attention between words of a one-layer toy: exact, and cheap enough to be watched while the toy is trained.

The norms of W_K and W_Q do not say whether attention to words is trained: they may grow while only rows of ``[MASK]``
change. What words attend to does. In a document with c_k positions of token k that may be attended to, a row of token q
gives one of them the attention w_qk / Σ_j w_qj c_j, with the same w for all documents. So the mean over all pairs of
positions of all documents takes two products of matrices, and no position by itself.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from topic_probe.contrast import DIFFERENT_TOPIC, SAME_TOPIC, SAME_WORD, PairSums, word_relations
from topic_probe.options import check_whole, checked
from topic_probe.topics import Topics
from topic_probe.toy.masking import MASK_ID, Attend, Masking
from topic_probe.toy.model import counts_suffice, scores, toy_config, toy_tensors
from topic_probe.toy.theory.losses import masked_documents
from topic_probe.toy.world import World
from topic_probe.uncertainty import divide

_RELATIONS = {SAME_WORD: "same_word", SAME_TOPIC: "same_topic", DIFFERENT_TOPIC: "different_topic"}

# Smaller weights have squares that float64 cannot hold.
_LEAST = 1e-130


@checked
def word_attention(
    model: nn.Module, *, topics: Topics | None = None, n_documents: int = 100, seed: int = 0
) -> dict[str, float]:
    """Mean attention of a one-layer toy between words, and from and to ``[MASK]``; uniform attention is exactly 1.

    The documents are of the toy's world and masking, and always the same, so that what changes is the toy: give it to
    ``train_toy(measure={"attention": tp.word_attention})``, and the history has a series for every name below. They are
    those of `measure_agreement` with as many documents and the same seed.

    * ``same_word``, ``same_topic``, ``different_topic``: of rows that show a word to those that show the same word
      (the position itself included), another word of its topic, a word of another topic.
    * ``effect_size``: same topic − different topic, in units of the standard deviation over the pairs of both; NaN
      where attention does not differ at all.
    * ``word_to_mask``: of rows that show a word to positions that show ``[MASK]``.
    * ``mask_to_word``, ``mask_to_mask``: the same of rows that show ``[MASK]``.

    A mean without pairs is NaN. Where chosen positions may not be attended to (``ToyConfig(attend="unmasked")``), they
    still are rows, pairs end at other positions, and uniform attention is 1 ÷ the number of these.

    Args:
        model: from `build_toy`, with one layer of one head.
        topics: which words belong together; None: the topics of the toy's world.
        n_documents: how many documents.
        seed: of documents and masks.

    Raises:
        ValueError: for a toy of several layers or heads, with a residual connection, or with hooks; `measure_attention`
            measures those.

    Example:
        >>> world = tp.World(n_topics=2, words_per_topic=2)
        >>> toy = tp.build_toy(tp.ToyConfig(regime="value", world=world))  # keys and queries are frozen at zero
        >>> watched = tp.word_attention(toy)
        >>> {round(watched[name], 9) for name in ("same_word", "same_topic", "different_topic", "mask_to_word")}
        {1.0}
    """
    config = toy_config(model)
    weights = token_attention(model).numpy()
    shown = _shown(config.world, config.masking, config.attend, check_whole("n_documents", n_documents), seed)
    topics = shown.topics if topics is None else topics
    sums, squares = _sums(np.maximum(weights, _LEAST), shown)
    places = topics.places(torch.arange(config.vocabulary_size))
    codes = word_relations(places, places, topics).numpy()
    totals, counts, second = (
        np.array([table[codes == code].sum() for code in _RELATIONS])
        for table in (sums, shown.pairs, squares)
    )
    words = PairSums(totals, counts, np.asarray(second[1:].sum())).contrast()
    mask = np.arange(len(codes)) == MASK_ID
    blocks = {"word_to_mask": (~mask, mask), "mask_to_word": (mask, ~mask), "mask_to_mask": (mask, mask)}
    return {
        **{name: float(getattr(words, name)) for name in (*_RELATIONS.values(), "effect_size")},
        **{
            name: float(divide(query @ sums @ key, query @ shown.pairs @ key))
            for name, (query, key) in blocks.items()
        },
    }


def token_attention(model: nn.Module) -> Float64[Tensor, "query key"]:
    """Attention of a one-layer toy in a document that shows every token once.

    In any other document it is that times the counts, normalised for every row.
    """
    if not counts_suffice(model):
        raise ValueError(
            "word_attention is for a toy of one layer and head without residual and without hooks; measure_attention "
            "measures any model"
        )
    tensors = {name: tensor.detach().cpu().double() for name, tensor in toy_tensors(model).items()}
    return scores(tensors, one_hot=False).softmax(-1)


@dataclass(frozen=True)
class _Shown:
    """What masked documents show.

    Attributes:
        asking: how often each document shows each token.
        asked: the same of positions that may be attended to.
        pairs: how many pairs of a position and one that it may attend to show two tokens.
        topics: of the world; kept, because they are asked for at every measurement.
    """

    asking: Float64[np.ndarray, "document token"]
    asked: Float64[np.ndarray, "document token"]
    pairs: Float64[np.ndarray, "query key"]
    topics: Topics


@lru_cache(maxsize=8)
def _shown(world: World, masking: Masking, attend: Attend, n_documents: int, seed: int) -> _Shown:
    """The documents of a seed, drawn once for all steps of a training."""
    generator = torch.Generator().manual_seed(check_whole("seed", seed, 0))
    drawn = masked_documents(world, masking, n_documents, generator)
    asking, asked = [], []
    for _, batch in drawn:
        some = batch.visible(attend).any(dim=1)
        asking.append(batch.counts(world.vocabulary_size)[some])
        asked.append(batch.counts(world.vocabulary_size, attend)[some])
    rows, keys = (torch.cat(parts).double().numpy() for parts in (asking, asked))
    return _Shown(rows, keys, rows.T @ keys, world.topics)


def _sums(
    weights: Float64[np.ndarray, "query key"], shown: _Shown
) -> tuple[Float64[np.ndarray, "query key"], Float64[np.ndarray, "query key"]]:
    """Sums of attention, and of its squares, over all pairs of positions that show two tokens."""
    # Attention of a row to one position is that much of its weight, in units of uniform attention.
    scale = shown.asked.sum(axis=1, keepdims=True) / (shown.asked @ weights.T)
    sums = weights * ((shown.asking * scale).T @ shown.asked)
    squares = weights**2 * ((shown.asking * scale**2).T @ shown.asked)
    return sums, squares
