"""Words that are measured, as forms of one word; their rows of a table; sums over all pairs of them.

Sums over pairs are those of what every word adds: with x_i the row of word i, its dot products with all words of a
topic add up to x_i·S, S being the sum of their rows, and the squares of its products with n words to x_iᵀ G x_i with
G = Σ_j x_j x_jᵀ. Only pairs of one word, of an entry with itself and with its other forms ("President", " president"),
are formed and taken out, because they are few; and for squares, where topics overlap, pairs within a topic.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int32, Int64
from torch import Tensor

from topic_probe.contrast import PairSums
from topic_probe.estimate import Ends
from topic_probe.topics import Topics

if TYPE_CHECKING:
    from scipy.sparse import csr_array

SCORES = ("cosine", "dot")

# Smaller tables are float64 throughout.
_SMALL = 2**22
_BLOCK = 4096


class FormPairs(NamedTuple):
    """All ordered pairs of different entries that are forms of one word, and whether they share a topic."""

    first: Int64[np.ndarray, " pair"]
    second: Int64[np.ndarray, " pair"]
    shared: Bool[np.ndarray, " pair"]


@dataclass(frozen=True)
class LabelledWords:
    """The entries of topics that are measured.

    Forms of one word are one word: pairs of them are same-word pairs, and intervals resample them together.

    Attributes:
        topics: what they belong to.
        places: where they stand in ``topics.words``.
    """

    topics: Topics
    places: Int64[Tensor, " word"]

    def __len__(self) -> int:
        return len(self.places)

    @cached_property
    def ids(self) -> Int64[Tensor, " word"]:
        """The entries themselves."""
        return self.topics.words[self.places]

    @cached_property
    def group(self) -> Int64[Tensor, " word"]:
        """Group of every entry: entries with the same topics."""
        return self.topics.group_of_word[self.places]

    @cached_property
    def form(self) -> Int64[Tensor, " word"]:
        """Number of the form of every entry, in the order in which forms appear."""
        forms = self.topics.form_of_word[self.places]
        _, appears, number = np.unique(forms.numpy(), return_index=True, return_inverse=True)
        return torch.from_numpy(appears.argsort().argsort()[number])

    @property
    def n_forms(self) -> int:
        """How many different words there are."""
        return int(self.form.max()) + 1 if len(self) else 0

    @cached_property
    def members(self) -> "csr_array":
        """1 where an entry belongs to a topic: [word, topic]."""
        return self.topics.incidence.table[self.group.numpy()].astype(np.float64)

    @cached_property
    def form_pairs(self) -> FormPairs:
        """The pairs that are of one word though their entries differ."""
        of_form = _indicator(self.form, self.n_forms)
        first, second = (of_form.T @ of_form).nonzero()
        first, second = first[first != second], second[first != second]
        share = self.topics.incidence.pairwise(torch.device("cpu"))
        return FormPairs(first, second, share(self.group[first], self.group[second]).numpy())

    @cached_property
    def strata(self) -> Int64[np.ndarray, " form"]:
        """The topic that every form is resampled within: the first of its entries' topics."""
        lowest = np.full(self.n_forms, self.topics.n_topics)
        np.minimum.at(lowest, self.form.numpy(), self.topics.incidence.first_topic[self.group].numpy())
        return lowest

    def by_form(self, values: Float64[np.ndarray, "word *rest"]) -> Float64[np.ndarray, "form *rest"]:
        """Sums of values of entries over the forms of a word."""
        return np.asarray(_indicator(self.form, self.n_forms) @ values)

    @cached_property
    def counts(self) -> Float64[np.ndarray, "word 3"]:
        """Numbers of the pairs that every entry is the first of, by relation: the sums of scores that are all 1."""
        ones = np.ones((len(self), 1))
        return np.asarray(np.rint(word_sums(self, ones, ones)))

    def groups_given(
        self, other: Int[np.ndarray, "form *permutation"]
    ) -> Int32[np.ndarray, "word *permutation"]:
        """The groups of entries if every word were given the topics of another word.

        Where forms have different topics, the k-th form of a word is given those of the other's k-th, counted round.
        """
        form = self.form.numpy()
        n_forms, by_form = np.bincount(form), np.argsort(form, kind="stable")
        first = np.cumsum(n_forms) - n_forms
        number = np.empty_like(form)
        number[by_form] = np.arange(len(form)) - first[form[by_form]]
        given = other[form]
        number = number.reshape(-1, *(1 for _ in given.shape[1:]))
        groups = self.group.numpy().astype(np.int32)
        return np.asarray(groups[by_form[first[given] + number % n_forms[given]]])


def _indicator(label: Int64[Tensor, " word"], n: int) -> "csr_array":
    """1 where a word has a label: [label, word]."""
    from scipy.sparse import csr_array

    where = label.numpy(), np.arange(len(label))
    return csr_array((np.ones(len(label)), where), shape=(n, len(label)))


# ------------------------------------------------------------------------- sums over all pairs of words

# The score of a pair is left_i·right_j: of rows a dot product, of rows of unit length a cosine, of what the two halves
# of a circuit make of words its weight.
Rows = Float[np.ndarray, "word width"]


def word_sums(words: LabelledWords, left: Rows, right: Rows) -> Float64[np.ndarray, "word 3"]:
    """Sums of the scores of the ordered pairs that every entry is the first of, by relation; linear in the words."""
    own, forms = _one_word(words, left, right)
    near, far = (
        _by_first(words, forms * kind) for kind in (words.form_pairs.shared, ~words.form_pairs.shared)
    )
    of_groups = _indicator(words.group, len(words.topics.incidence)) @ right
    partners = words.topics.incidence.times_shared(of_groups).astype(right.dtype)[words.group.numpy()]
    sharing = np.einsum("wd,wd->w", left, partners)
    every = left @ of_groups.sum(0).astype(right.dtype)
    return np.stack([own + near + far, sharing - own - near, every - sharing - far], 1, dtype=np.float64)


def word_ends(words: LabelledWords, left: Rows, right: Rows, half: Int64[np.ndarray, " form"]) -> Ends:
    """What every word, with all its forms, adds to all pairs as either end, apart by the half of the other word."""
    scores, ones = [], np.ones((len(words), 1))
    for number in range(2):
        chosen = (half[words.form.numpy()] == number)[:, None]
        sums = word_sums(words, left, right * chosen)
        sums += sums if right is left else word_sums(words, right, left * chosen)
        n = 2 * np.rint(word_sums(words, ones, ones * chosen))
        scores.append(words.by_form(np.concatenate([sums, n], 1)))
    _, same, different, _, n_same, n_different = np.moveaxis(np.stack(scores), 2, 0)
    return Ends(same[..., None], n_same, different[..., None], n_different)


def word_squares(words: LabelledWords, rows: Rows) -> Float64[np.ndarray, " word"]:
    """The sum of squared dot products of every entry with all entries of different words."""
    own, forms = _one_word(words, rows, rows)
    if len(rows) <= rows.shape[1]:
        every = np.square(rows @ rows.T).sum(1, dtype=np.float64)
    else:
        every = np.einsum("wd,wd->w", rows @ (rows.T @ rows), rows)
    return np.asarray(every - own**2 - _by_first(words, forms**2), dtype=np.float64)


def topic_sums(
    words: LabelledWords, rows: Rows, sums: Float64[np.ndarray, "word 3"]
) -> Float64[np.ndarray, "topic 3"]:
    """By topic: its words with all their forms, with other words of it, and with words they share no topic with."""
    of_topics = np.asarray(words.members.T @ sums)
    if not words.topics.incidence.disjoint:  # a pair that shares a topic need not share this one
        total = words.members.T @ rows
        of_topics[:, 1] = np.einsum("td,td->t", total, total) - _in_topics(
            words, *_one_word(words, rows, rows)
        )
    return of_topics


def topic_squares(
    words: LabelledWords, rows: Rows, squares: Float64[np.ndarray, " word"]
) -> Float64[np.ndarray, " topic"]:
    """Sums of the squares of the pairs of different words that `topic_sums` adds up."""
    if words.topics.incidence.disjoint:
        return np.asarray(words.members.T @ squares)
    sharing, within = np.zeros(len(words)), np.zeros(words.topics.n_topics)
    topics = words.members.T.tocsr()
    for topic, places in enumerate(np.split(topics.indices, topics.indptr[1:-1])):
        some, of_some = rows[places], words.members[places]
        of_pairs = np.square(some @ some.T)
        within[topic] = of_pairs.sum(dtype=np.float64)
        in_common = (of_some @ of_some.T).toarray()
        sharing[places] += (of_pairs / in_common).sum(1)  # a pair is met in every topic that it shares
    own, forms = (part**2 for part in _one_word(words, rows, rows))
    sharing -= own + _by_first(words, forms * words.form_pairs.shared)
    return np.asarray(words.members.T @ (squares - sharing) + within - _in_topics(words, own, forms))


def _one_word(words: LabelledWords, left: Rows, right: Rows) -> tuple[np.ndarray, np.ndarray]:
    """The scores of every entry with itself, and of all pairs of forms of one word."""
    sides = (left, right), (left[words.form_pairs.first], right[words.form_pairs.second])
    own, forms = (np.einsum("wd,wd->w", *side, dtype=np.float64) for side in sides)
    return own, forms


def _by_first(words: LabelledWords, of_pairs: np.ndarray) -> np.ndarray:
    """Sums of values of pairs of forms over the pairs that every entry is the first of."""
    return np.bincount(words.form_pairs.first, of_pairs, len(words))


def _in_topics(words: LabelledWords, own: np.ndarray, forms: np.ndarray) -> np.ndarray:
    """Values of entries and of pairs of forms, summed over those that are in a topic."""
    first, second = (words.members[places] for places in (words.form_pairs.first, words.form_pairs.second))
    return np.asarray(words.members.T @ own + first.multiply(second).T @ forms)


# ------------------------------------------------------------------------------------ rows of a table


@dataclass(frozen=True)
class EmbeddingWords(LabelledWords):
    """The words of an embedding table that are measured, in the order of their groups.

    Attributes:
        rows: their embeddings, with what was asked for taken out.
        norms: how long these are.
        left_out: how many words were left out, by the reason.
    """

    rows: Float[np.ndarray, "word d_embed"]
    norms: Float64[np.ndarray, " word"]
    left_out: Mapping[str, int]

    @property
    def scored(self) -> dict[str, Rows]:
        """For every score the rows whose products it is."""
        return {"cosine": self.rows / self.norms[:, None].astype(self.rows.dtype), "dot": self.rows}


class Cosines(NamedTuple):
    """Cosines between words: sums over all pairs, and what every word adds to them and, as either end, to squares."""

    sums: PairSums
    ends: Ends
    squares: Float64[np.ndarray, "form 1"]


def cosines_of_words(words: EmbeddingWords, half: Int64[np.ndarray, " form"]) -> Cosines:
    """The cosines between words of a table; halves are those of `word_ends`."""
    rows = words.scored["cosine"]
    squares = word_squares(words, rows)
    pairs = PairSums(word_sums(words, rows, rows).sum(0), words.counts.sum(0), squares.sum())
    # Every pair has two ends.
    return Cosines(pairs, word_ends(words, rows, rows, half), 2 * words.by_form(squares)[:, None])


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
    places = (single & ~excluded).nonzero().flatten()
    places = places[topics.group_of_word[places].argsort(stable=True)]
    rows = table[topics.words[places].to(table.device)].detach().cpu()
    # Few rows are float64 throughout.
    rows = rows.double() if rows.numel() <= _SMALL or rows.dtype == torch.float64 else rows.float()
    norms = rows.norm(dim=1)
    present = norms.isfinite() & (norms > 0)
    left_out = {
        "split words, which have no row": int((~single).sum()),
        "words in exclude": int((single & excluded).sum()),
        "words whose row is zero or not finite": int((~present).sum()),
    }
    if center or remove_components:
        rows = _without_common(table, rows.double(), remove_components, exclude)
        # What is left of a word that was nothing but the common part is rounding, and has no direction.
        before, norms = norms, rows.norm(dim=1)
        kept = present & (norms > 1e-9 * before)
        left_out["words with nothing left after the common part"] = int((present & ~kept).sum())
        present = kept
    left_out = {reason: count for reason, count in left_out.items() if count}
    if not present.any():
        raise ValueError(f"no word is left to measure of {len(topics.words)} that have a topic: {left_out}")
    lengths = norms[present].double().numpy()
    return EmbeddingWords(topics, places[present], rows[present].numpy(), lengths, left_out)


def _without_common(
    table: Float[Tensor, "vocabulary d_embed"],
    rows: Float64[Tensor, "word d_embed"],
    remove_components: int,
    exclude: Iterable[int],
) -> Float64[Tensor, "word d_embed"]:
    """Rows less the mean of all rows in use, and less their leading principal components."""
    used = torch.ones(len(table), dtype=torch.bool)
    used[[id_ for id_ in exclude if 0 <= id_ < len(table)]] = False
    n, total = 0, torch.zeros(table.shape[1], dtype=torch.float64)
    scatter = torch.zeros(len(total), len(total), dtype=torch.float64)
    for block in torch.split(used.nonzero().flatten(), _BLOCK):
        part = table[block.to(table.device)].detach().cpu().double()
        part = part[part.isfinite().all(1) & part.any(1)]
        n, total = n + len(part), total + part.sum(0)
        if remove_components:
            scatter += part.T @ part
    mean = total / n
    rows = rows - mean
    if remove_components:
        vectors = torch.linalg.eigh(scatter - n * torch.outer(mean, mean)).eigenvectors
        leading = vectors[:, -remove_components:]
        rows = rows - (rows @ leading) @ leading.T
    return rows
