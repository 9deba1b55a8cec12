"""Words that are measured, in groups of the same topics and as forms of one word; and their rows of a table."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int, Int32, Int64
from torch import Tensor

from topic_probe.estimate import Ends, split_halves
from topic_probe.topics import Topics

SCORES = ("cosine", "dot")

# Smaller tables are float64 throughout.
_SMALL = 2**22
_BLOCK = 4096


@dataclass(frozen=True)
class FormPairs:
    """All ordered pairs of different entries that are forms of one word, and whether they share a topic."""

    first: Int64[Tensor, " pair"]
    second: Int64[Tensor, " pair"]
    shared: Bool[Tensor, " pair"]

    def __len__(self) -> int:
        return len(self.first)


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
        if not len(forms) or forms.bincount().max() == 1:
            return torch.arange(len(forms))
        _, appears, number = np.unique(forms.numpy(), return_index=True, return_inverse=True)
        return torch.from_numpy(appears.argsort().argsort()[number])

    @property
    def rough(self) -> bool:
        """Whether sums over pairs may partly be of float32; they are not where nothing is known of a table."""
        return False

    @property
    def n_forms(self) -> int:
        """How many different words there are."""
        return int(self.form.max()) + 1 if len(self) else 0

    @cached_property
    def form_pairs(self) -> FormPairs:
        """The pairs that are of one word though their entries differ."""
        forms = self.form.numpy()
        several = np.flatnonzero(np.bincount(forms) > 1)
        first, second = (torch.from_numpy(side) for side in pairs_of_labels(forms, several, several))
        differ = first != second
        first, second = first[differ], second[differ]
        in_common = self.topics.incidence.in_common(self.group[first], self.group[second])
        return FormPairs(first, second, torch.from_numpy(np.diff(in_common.indptr) > 0))

    @cached_property
    def strata(self) -> Int64[np.ndarray, " form"]:
        """The topic that every form is resampled within: the first of its entries' topics."""
        first = self.topics.incidence.first_topic[self.group]
        lowest = torch.full((self.n_forms,), self.topics.n_topics)
        return np.asarray(lowest.scatter_reduce(0, self.form, first, "amin").numpy())

    def halves(self, seed: int) -> Int64[Tensor, " form"]:
        """The random half of every form, as `word_interval` wants them."""
        return torch.from_numpy(split_halves(self.strata, seed=seed))

    def by_form(self, values: Float64[Tensor, "word *rest"]) -> Float64[Tensor, "form *rest"]:
        """Sums of values of entries over the forms of a word."""
        return values.new_zeros(self.n_forms, *values.shape[1:]).index_add_(0, self.form, values)

    def by_group(
        self, values: Float64[Tensor, "word *rest"], half: Int64[Tensor, " word"] | None = None
    ) -> Float64[Tensor, "group *sums"]:
        """Sums of values over the words of every group; given halves, [group, half, …], apart by them."""
        shape = (len(self.topics.incidence), *(() if half is None else (2,)))
        bins = self.group if half is None else 2 * self.group + half
        sums = values.new_zeros(math.prod(shape), *values.shape[1:]).index_add_(0, bins, values)
        return sums.view(*shape, *values.shape[1:])

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

    def n_mates(self, half: Int64[Tensor, " form"]) -> Float64[Tensor, "word half"]:
        """How many entries share a topic with every entry, itself among them, by their half."""
        return self.topics.incidence.times_shared(self.members(half))[self.group]

    def members(self, half: Int64[Tensor, " form"]) -> Float64[Tensor, "group half"]:
        """How many entries there are in every group, by their half."""
        return self.by_group(torch.ones(len(self), dtype=torch.float64), half[self.form])

    def ends(
        self,
        sums: Float64[Tensor, "2 form half item"],
        own: Float64[Tensor, "word item"],
        of_forms: Float64[Tensor, "item pair"],
        half: Int64[Tensor, " form"],
        n_mates: Float64[Tensor, "word half"],
    ) -> Ends:
        """What every word adds to all ordered pairs of different words.

        Args:
            sums: scores of its forms with all entries that share a topic with them, and with all that do not, apart by
                the random half of the words that those are in.
            own: scores of every entry with itself, which is no pair of different words,
            of_forms: and of `form_pairs`, which are none either.
            half: the half of every word.
            n_mates: how many entries share a topic with every entry, itself among them, by their half.
        """
        ones = torch.ones(len(self), 1, dtype=torch.float64)
        numbers = n_mates, self.members(half).sum(0) - n_mates
        n_sums = torch.stack([self.by_form(part) for part in numbers]).unsqueeze(-1)
        n_of_forms = torch.ones(1, len(self.form_pairs), dtype=torch.float64)
        parts = []
        for values, of_entry, of_pairs in ((sums, own, of_forms), (n_sums, ones, n_of_forms)):
            by_topic = torch.stack([of_pairs * self.form_pairs.shared, of_pairs * ~self.form_pairs.shared])
            empty = by_topic.new_zeros(*by_topic.shape[:-1], self.n_forms)
            near, far = empty.index_add_(-1, self.form[self.form_pairs.first], by_topic)
            # Pairs of one word are all in the word's own half.
            one_word = torch.stack([self.by_form(of_entry) + near.T, far.T])
            others = values - torch.einsum("rfi,fh->rfhi", one_word, F.one_hot(half, 2).double())
            parts.append((2 * others.permute(0, 2, 1, 3)).numpy())
        (same, different), (n_same, n_different) = parts
        return Ends(same, n_same[..., 0], different, n_different[..., 0])

    def form_pairs_by_groups(
        self, scores: Float64[Tensor, "score pair"]
    ) -> tuple[Int64[Tensor, " kind"], Int64[Tensor, " kind"], Float64[Tensor, "score kind"]]:
        """Sums of scores of `form_pairs` by the groups of their two entries: first group, second group, sums."""
        pairs = self.form_pairs
        n_groups = len(self.topics.incidence)
        codes = n_groups * self.group[pairs.first] + self.group[pairs.second]
        kinds, kind = (torch.from_numpy(part) for part in np.unique(codes.numpy(), return_inverse=True))
        sums = scores.new_zeros(len(scores), len(kinds)).index_add_(1, kind, scores)
        return kinds // n_groups, kinds % n_groups, sums


def pairs_of_labels(
    labels: Int[np.ndarray, " word"],
    first: Int64[np.ndarray, " block"],
    second: Int64[np.ndarray, " block"],
) -> tuple[Int64[np.ndarray, " pair"], Int64[np.ndarray, " pair"]]:
    """All ordered pairs of a word labelled ``first[k]`` with one labelled ``second[k]``, for every k."""
    sizes = np.bincount(labels, minlength=1 + max(first.max(initial=-1), second.max(initial=-1)))
    order, starts = np.argsort(labels, kind="stable"), np.cumsum(sizes) - sizes
    n_pairs = sizes[first] * sizes[second]
    block = np.repeat(np.arange(len(n_pairs)), n_pairs)
    place = np.arange(len(block)) - np.repeat(np.cumsum(n_pairs) - n_pairs, n_pairs)
    row, column = np.divmod(place, sizes[second][block])
    return order[starts[first][block] + row], order[starts[second][block] + column]


# ----------------------------------------------------------------------------------- rows of a table


@dataclass(frozen=True)
class EmbeddingWords(LabelledWords):
    """The words of an embedding table that are measured, in the order of their groups.

    ``table[index]`` are their embeddings, with what was asked for taken out.
    """

    table: Float[Tensor, "row d_embed"]
    index: Int64[Tensor, " word"]
    norms: Float64[Tensor, " word"]
    left_out: Mapping[str, int]

    @property
    def rough(self) -> bool:
        """Whether sums over pairs are partly of float32; not those of few words, where much is taken out again."""
        few = not self.topics.incidence.disjoint and len(self) * self.table.shape[1] <= _SMALL
        return self.table.dtype != torch.float64 and not few

    def rows(self, places: Int64[Tensor, " some"] | slice = slice(None)) -> Float64[Tensor, "some d_embed"]:
        """The embeddings of some of the words, on the CPU."""
        return self.vectors(places).double()

    def vectors(
        self,
        places: Int64[Tensor, " some"] | slice = slice(None),
        *,
        out: Float[Tensor, "some d_embed"] | None = None,
    ) -> Float[Tensor, "some d_embed"]:
        """The same as exact as sums over pairs are to be, in this memory if any is given."""
        index = self.index[places].to(self.table.device)
        if out is not None and (out.dtype, out.device) == (self.table.dtype, self.table.device):
            return torch.index_select(self.table.detach(), 0, index, out=out)
        rows = self.table.index_select(0, index).cpu()
        rows = rows if self.rough else rows.double()
        return rows if out is None else out.copy_(rows)


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
    # Small integers are sorted in linear time.
    labels = topics.group_of_word[places].numpy().astype(np.min_scalar_type(len(topics.incidence)))
    places = places[torch.from_numpy(np.argsort(labels, kind="stable"))]

    norms = _norms(table, topics.words[places])
    present = torch.isfinite(norms) & (norms > 0)
    left_out = {
        "split words, which have no row": int((~single).sum()),
        "words in exclude": int((single & excluded).sum()),
        "words whose row is zero or not finite": int((~present).sum()),
    }
    left_out = {reason: count for reason, count in left_out.items() if count}
    places, norms = places[present], norms[present]
    ids = topics.words[places]
    _check_left(ids, topics, left_out)
    if center or remove_components:
        rows = _without_common(table, ids, remove_components, exclude)
    elif table.numel() <= _SMALL or table.dtype not in (torch.float32, torch.float64):
        rows = table[ids.to(table.device)].cpu()
        rows = rows.double() if table.numel() <= _SMALL else rows.float()
    else:
        return EmbeddingWords(topics, places, table, ids, norms, left_out)
    index = torch.arange(len(ids))
    before, norms = norms, _norms(rows, index)
    # What is left of a word that was nothing but the common part is rounding, and has no direction.
    kept = norms > 1e-9 * before
    if not kept.all():
        left_out["words with nothing left after the common part"] = int((~kept).sum())
        _check_left(ids[kept], topics, left_out)
    return EmbeddingWords(topics, places[kept], rows, index[kept], norms[kept], left_out)


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
