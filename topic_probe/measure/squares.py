"""Sums of squared scores over all pairs of words: what the standard deviation of pair scores is made of.

The squares of a word's dot products with n words add up to Σ_j (e·e_j)² = eᵀ G e with G = Σ_j e_j e_jᵀ, which costs
n·d² for all n of them; the products themselves cost n²·d, less for fewer words than about twice the width. Every pair
of different words that have topics is of the same topic or of different ones, so sums over both kinds need no topics;
those of a single topic do.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from topic_probe.measure.words import SCORES, EmbeddingWords, GroupSums

_BLOCK = 4096


@dataclass(frozen=True)
class PairSquares:
    """Sums of squared cosines and of squared dot products over ordered pairs of different words.

    Attributes:
        by_form: of every word, all its forms together, with all others.
        topics: of the pairs that a topic's numbers are about: different words within it, and its words with all words
            they share no topic with.
    """

    by_form: Float64[Tensor, "form score"]
    topics: Float64[np.ndarray, "score topic"]

    @property
    def total(self) -> Float64[np.ndarray, " score"]:
        """Over all pairs."""
        return np.asarray(self.by_form.sum(0).numpy())


def pair_squares(words: EmbeddingWords, of_groups: GroupSums) -> PairSquares:
    """The sums of squares of words."""
    topics, forms, of_forms = words.topics, words.form_pairs, of_groups.of_forms
    everyone = squares_with_all(words, torch.arange(len(words)))
    own = torch.stack([torch.ones(len(words), dtype=torch.float64), words.norms**4], 1)
    of_one_word = own.index_add(0, forms.first, of_forms.T**2)

    within, sharing = torch.zeros(topics.n_topics, len(SCORES), dtype=torch.float64), torch.zeros_like(own)
    entry, topic = topics.incidence.topics_in_common(words.group, words.group)
    for number, members in _by_topic(entry, topic, topics.n_topics):
        mates = squares_with_all(words, members)
        within[number] = mates.sum(0) - own[members].sum(0)
        sharing.index_add_(0, members, mates)
    again = torch.from_numpy(topics.incidence.n_topics[words.group.numpy()] - 1.0)
    sharing -= again[:, None] * _with_own_group(words, own, again > 0) + of_groups.repeats.squares
    # Forms of one word are no pair, neither within a topic nor, where they share none, of different topics.
    apart = everyone - sharing
    apart.index_add_(0, forms.first[~forms.shared], -(of_forms.T[~forms.shared] ** 2))
    of_topics = within.index_add(0, topic, apart[entry])
    pair, topic = topics.incidence.topics_in_common(words.group[forms.first], words.group[forms.second])
    of_topics.index_add_(0, topic, -(of_forms.T[pair] ** 2))
    return PairSquares(words.by_form(everyone - of_one_word), of_topics.T.numpy())


def squares_with_all(words: EmbeddingWords, places: Int64[Tensor, " some"]) -> Float64[Tensor, "some score"]:
    """For every one of some words, the sum of its squared scores with all of them, itself included."""
    squared_norms = words.norms[places].square()
    scale = torch.stack([squared_norms, torch.ones_like(squared_norms)], 1)
    few = len(places) <= 2 * words.table.shape[1]
    return (_through_products(words, places, 1 / scale) if few else _through_moments(words, places)) / scale


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
    width = words.table.shape[1]
    moments = np.zeros((len(SCORES), width, width))
    for block in torch.split(places, _BLOCK):
        rows = words.vectors(block)
        units = rows / words.norms[block].to(rows)[:, None]
        # Here, too, half of the work is enough, and numpy does no more.
        for moment, side in zip(moments, (units.numpy(), rows.numpy()), strict=True):
            moment += side.T @ side
    # Half of it is enough to apply it, too: what stands below the diagonal stands above it once more.
    above = np.triu(moments) + np.triu(moments, 1)
    sums = []
    for block in torch.split(places, _BLOCK):
        vectors = words.vectors(block).numpy()
        sums.append(np.stack([_applied(vectors, moment.astype(vectors.dtype)) for moment in above], 1))
    return torch.from_numpy(np.concatenate(sums))


def _applied(
    rows: Float[np.ndarray, "some width"], above: Float[np.ndarray, "width width"]
) -> Float64[np.ndarray, " some"]:
    """eᵀ U e of every row e, for a matrix without anything below its diagonal."""
    from scipy.linalg import get_blas_funcs

    multiply = get_blas_funcs("trmm", (above, rows))  # half of the work of a product of two tables
    products: np.ndarray = np.einsum("sw,sw->s", multiply(1.0, above.T, rows.T, lower=True).T, rows)
    return products.astype(np.float64)


def _by_topic(
    entry: Int64[Tensor, " assignment"], topic: Int64[Tensor, " assignment"], n_topics: int
) -> Iterator[tuple[int, Int64[Tensor, " some"]]]:
    """The words of every topic that has any."""
    in_order = entry[topic.argsort(stable=True)]
    members = torch.split(in_order, topic.bincount(minlength=n_topics).tolist())
    return ((number, some) for number, some in enumerate(members) if len(some))


def _with_own_group(
    words: EmbeddingWords, own: Float64[Tensor, "word score"], chosen: Bool[Tensor, " word"]
) -> Float64[Tensor, "word score"]:
    """For chosen words, the sum of squared scores with all words of their group, which has no more than these."""
    total = own.clone()
    places = chosen.nonzero().squeeze(1)
    sizes = words.group[places].bincount()
    for members in torch.split(places, sizes[sizes > 0].tolist()):
        if len(members) > 1:
            total[members] = squares_with_all(words, members)
    return total
