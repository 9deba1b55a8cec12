"""Attention between words of a one-layer toy: exact, and cheap enough to be watched while the toy is trained.

The norms of W_K and W_Q do not say whether attention to words is trained: they may grow while only rows of ``[MASK]``
change. What words attend to does. In a document with c_k positions of token k that may be attended to, a row of token q
gives one of them the attention w_qk / Σ_j w_qj c_j, with the same w for all documents. So the mean over all pairs of
positions of all documents takes two products of matrices, and no position by itself.
"""

from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from topic_probe.contrast import DIFFERENT_TOPIC, SAME_TOPIC, SAME_WORD, PairSums, word_relations
from topic_probe.estimate import divide
from topic_probe.options import check_whole, checked
from topic_probe.topics import Topics
from topic_probe.toy.model import counts_suffice, scores, toy_config, toy_tensors
from topic_probe.toy.theory.losses import masked_documents
from topic_probe.toy.world import MASK_ID, Attend, Masking, World

_RELATIONS = {SAME_WORD: "same_word", SAME_TOPIC: "same_topic", DIFFERENT_TOPIC: "different_topic"}

# Smaller weights have squares that float64 cannot hold.
_LEAST = 1e-130


@checked
def word_attention(
    model: nn.Module, *, topics: Topics | None = None, n_documents: int = 100, seed: int = 0
) -> dict[str, float]:
    """Mean attention of a one-layer toy between words, and from and to ``[MASK]``; uniform attention is exactly 1.

    The documents are of the toy's world and masking, and always the same, so that what changes is the toy:
    ``train_toy(measure={"attention": tp.word_attention})`` records every name below.

    * ``same_word``, ``same_topic``, ``different_topic``: of rows that show a word to those that show the same word
      (the position itself included), another word of its topic, a word of another topic.
    * ``effect_size``: same topic − different topic, in units of the standard deviation over the pairs of both; NaN
      where attention does not differ at all.
    * ``word_to_mask``: of rows that show a word to positions that show ``[MASK]``.
    * ``mask_to_word``, ``mask_to_mask``: the same of rows that show ``[MASK]``.

    A mean without pairs is NaN. Where chosen positions may not be attended to (``ToyConfig(attend="unmasked")``), they
    still are rows, pairs end at other positions, and uniform attention is 1 ÷ the number of these.

    Args:
        model: from `build_toy`, with one layer of one head, no residual connection and no hooks.
        topics: which words belong together; None: the topics of the toy's world.
        n_documents: how many documents.
        seed: of documents and masks.

    Example:
        >>> world = tp.World(n_topics=2, words_per_topic=2)
        >>> toy = tp.build_toy(tp.ToyConfig(regime="value", world=world))  # keys and queries are frozen at zero
        >>> watched = tp.word_attention(toy)
        >>> {round(watched[name], 9) for name in ("same_word", "same_topic", "different_topic", "mask_to_word")}
        {1.0}
    """
    config = toy_config(model)
    weights = np.maximum(token_attention(model).numpy(), _LEAST)
    n_documents, seed = check_whole("n_documents", n_documents), check_whole("seed", seed, 0)
    asking, asked, own = _counts(config.world, config.masking, config.attend, n_documents, seed)
    # Attention of a row to one position is that much of its weight, in units of uniform attention.
    scale = asked.sum(axis=1, keepdims=True) / (asked @ weights.T)
    sums = weights * ((asking * scale).T @ asked)
    squares = weights**2 * ((asking * scale**2).T @ asked)
    pairs = asking.T @ asked
    topics = own if topics is None else topics
    places = topics.places(torch.arange(config.vocabulary_size))
    codes = word_relations(places, places, topics).numpy()
    totals, counts, second = (
        np.array([table[codes == code].sum() for code in _RELATIONS]) for table in (sums, pairs, squares)
    )
    words = PairSums(totals, counts, np.asarray(second[1:].sum())).contrast()
    mask = np.arange(len(codes)) == MASK_ID
    blocks = {"word_to_mask": (~mask, mask), "mask_to_word": (mask, ~mask), "mask_to_mask": (mask, mask)}
    return {
        **{name: float(getattr(words, name)) for name in (*_RELATIONS.values(), "effect_size")},
        **{name: float(divide(q @ sums @ k, q @ pairs @ k)) for name, (q, k) in blocks.items()},
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


# Kept, because a training that is watched asks for the same documents at many steps.
@lru_cache(maxsize=8)
def _counts(
    world: World, masking: Masking, attend: Attend, n_documents: int, seed: int
) -> tuple[Float64[np.ndarray, "document token"], Float64[np.ndarray, "document token"], Topics]:
    """How often masked documents show each token, the same where it may be attended to, and the world's topics."""
    generator = torch.Generator().manual_seed(seed)
    drawn = masked_documents(world, masking, n_documents, generator, attend=attend)
    size, batches = world.vocabulary_size, [batch for _, batch in drawn]
    asking = torch.cat([batch.counts(size) for batch in batches]).double().numpy()
    asked = torch.cat([batch.counts(size, attend) for batch in batches]).double().numpy()
    return asking, asked, world.topics
