"""Attention between words of a one-layer toy: exact, and cheap enough to be watched while the toy is trained.

The norms of W_K and W_Q do not say whether attention to words is trained: they may grow while only rows of ``[MASK]``
change. What words attend to does. In a document that shows token k c_k times, a row of token q gives one position of k
the attention w_qk / Σ_j w_qj c_j, with the same w for all documents. So the mean over all pairs of positions of all
documents takes two products of matrices, and no position by itself.
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
from topic_probe.toy.lean import LeanForm, lean_form, vocabulary_attention
from topic_probe.toy.masking import MASK_ID, Masking
from topic_probe.toy.model import toy_config, toy_tensors
from topic_probe.toy.theory.losses import DRAWN_AT_ONCE, masked_documents
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

    A mean without pairs is NaN.

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
    config, form = toy_config(model), lean_form(model)
    if form is None:
        raise ValueError(
            "word_attention is for a toy of one layer and head without residual and without hooks; measure_attention "
            "measures any model"
        )
    shown = _shown(config.world, config.masking, check_whole("n_documents", n_documents), seed)
    topics = shown.topics if topics is None else topics
    sums, squares = _sums(model, form, shown.counts)
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


@dataclass(frozen=True)
class _Shown:
    """What masked documents show.

    Attributes:
        counts: how often each document shows each token.
        pairs: how many pairs of positions of one document show two tokens.
        topics: of the world; kept, because they are asked for at every measurement.
    """

    counts: Float64[Tensor, "document token"]
    pairs: Float64[np.ndarray, "query key"]
    topics: Topics


@lru_cache(maxsize=8)
def _shown(world: World, masking: Masking, n_documents: int, seed: int) -> _Shown:
    """The documents of a seed, drawn once for all steps of a training."""
    generator = torch.Generator().manual_seed(check_whole("seed", seed, 0))
    drawn = masked_documents(world, masking, n_documents, DRAWN_AT_ONCE, generator)
    counts = torch.cat([batch.counts(world.vocabulary_size) for _, batch in drawn]).double()
    return _Shown(counts, (counts.T @ counts).numpy(), world.topics)


def _sums(
    model: nn.Module, form: LeanForm, counts: Float64[Tensor, "document token"]
) -> tuple[Float64[np.ndarray, "query key"], Float64[np.ndarray, "query key"]]:
    """Sums of attention, and of its squares, over all pairs of positions that show two tokens."""
    with torch.no_grad():
        tensors = {name: tensor.cpu().double() for name, tensor in toy_tensors(model).items()}
        weights = vocabulary_attention(tensors, form).clamp(min=_LEAST)
        # Attention of a row to one position is that much of its weight, in units of uniform attention.
        scale = counts.sum(dim=1, keepdim=True) / (counts @ weights.T)
        sums = weights * ((counts * scale).T @ counts)
        squares = weights.square() * ((counts * scale.square()).T @ counts)
    return sums.numpy(), squares.numpy()
