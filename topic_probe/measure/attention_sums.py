"""What an attention report is made of: sums over the pairs of words of every document.

The scores of all heads that see the same keys are kept until the model is through a batch, and added up together: by
relation and distance, by source, without sinks, and for words that were given other topics.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from topic_probe.contrast import SAME_WORD
from topic_probe.measure.ask import Question, source_limit
from topic_probe.measure.folder import Sum
from topic_probe.measure.pairs import DISTANCE_BINS, Level, Words, wide
from topic_probe.measure.permuted import PairScores, PermutedWords
from topic_probe.measure.word_variance import WordSums
from topic_probe.sums import SourceSums
from topic_probe.topics import Topics

# What of a row may be left beside sinks, so that it can be renormalised.
_NOTHING = 1e-6


class Seen:
    """What heads have in common whose rows see the same keys, and the scores of these heads.

    Attributes:
        relations: of every pair of words that see each other.
        place: for every pair 1 where its relation and distance are, [document, pair, relation · bin].
        by_relation: 1 where its relation is, [document, pair, relation].
        n: numbers of pairs by relation and distance.
        of_query: numbers of pairs by relation of every query.
        heads: the heads that have been read.
        values: their scores: attention relative to uniform attention.
    """

    def __init__(
        self, words: Words, visible: Bool[Tensor, "batch token position"], dtype: torch.dtype
    ) -> None:
        self.relations, n_bins = words.pairs(visible), words.n_bins
        nowhere = 3 * n_bins
        code = (self.relations.long() - 1) * n_bins + words.bins
        code = code.masked_fill(self.relations == 0, nowhere).flatten(1)
        table = torch.zeros(*code.shape, nowhere + 1, dtype=dtype, device=code.device)
        self.place = table.scatter_(2, code[..., None], 1)[..., :-1]
        self.n = self.place.sum(1).reshape(-1, 3, n_bins)
        self.by_relation = self.place.reshape(*code.shape, 3, n_bins).sum(3)
        self.of_query = self.by_relation.reshape(*self.relations.shape, 3).sum(2)
        self.heads: list[Tensor] = []
        self.values: list[Tensor] = []


class AttentionSums(Question):
    """The sums of an attention report.

    Attributes:
        sums: "by_source"; by head, relation and distance "binned", "n_binned" and "squares_binned", of pairs of
            different words; by head "without_sinks", "n_without_sinks", "sink_mass" and "n_rows"; and for every
            permutation sums and numbers of the pairs that would share a topic, "null" by head and "n_null" by site,
            "binned_null" and "n_binned_null" of all heads by distance; and those of `WordSums`, if they are wanted.
    """

    def __init__(
        self,
        topics: Topics,
        site_of: Int64[Tensor, " head"],
        *,
        level: Level = "token",
        include_self: bool = True,
        n_permutations: int = 0,
        seed: int = 0,
        of_words: bool = False,
        names: Sequence[str] | None = None,
    ) -> None:
        """Sums without a document.

        Args:
            topics: which words are looked at.
            site_of: the site of every head.
            level: whether words of several tokens are words, too.
            include_self: whether a position and itself are a pair.
            n_permutations: how often words are permuted.
            seed: of these permutations.
            of_words: whether to add up what every word does, for intervals that include other words.
            names: as in `PermutedWords`.
        """
        self.topics, self.level, self.include_self, self.site_of = topics, level, include_self, site_of
        self.permuted = PermutedWords(topics, n_permutations, seed, names=names)
        self.of_words = WordSums(topics, int(site_of.max()) + 1) if of_words else None
        n, n_bins, limit = len(site_of), len(DISTANCE_BINS) + 1, source_limit(len(site_of))
        self.facts = {"n_permutations": n_permutations, "seed": seed, "limit": limit, "of_words": of_words}
        shapes = {
            "binned": (n, n_bins, 3), "n_binned": (n, n_bins, 3), "squares_binned": (n, n_bins),
            "without_sinks": (n, 3), "n_without_sinks": (n, 3), "sink_mass": (n,), "n_rows": (n,),
            "null": (n, n_permutations), "n_null": (int(site_of.max()) + 1, n_permutations),
            "binned_null": (n_bins, n_permutations), "n_binned_null": (n_bins, n_permutations),
        }  # fmt: skip
        self.sums: dict[str, Sum] = {name: np.zeros(shape) for name, shape in shapes.items()}
        self.sums["by_source"] = SourceSums(limit, shape=(n,))
        if self.of_words is not None:
            self.sums |= self.of_words.sums

    @property
    def by_source(self) -> SourceSums:
        """Sums of every source."""
        sums = self.sums["by_source"]
        assert isinstance(sums, SourceSums)
        return sums

    def prepare(self, words: Words) -> None:
        """The pairs of different words by distance, each and its reverse as one where both are of one stack.

        Among all pairs of all documents ``there`` are those in one direction and ``back`` those in the other; ``sizes``
        says how many there are at every distance.
        """
        between, within = words.relations > SAME_WORD, words.query is words.key
        document, query, key = (between.triu(1) if within else between).nonzero(as_tuple=True)
        bins = words.bins[document, query, key]
        order = bins.argsort(stable=True)
        document, query, key = document[order], query[order], key[order]
        n, m = words.relations.shape[1:]
        words.prepared = {
            "there": (document * n + query) * m + key,
            "back": (document * n + key) * m + query if within else None,
            "of_query": words.query.places[document, query], "of_key": words.key.places[document, key],
            "sizes": bins.bincount(minlength=words.n_bins).tolist(), "has_sinks": bool(words.key.sinks.any()),
        }  # fmt: skip

    def read(
        self,
        heads: Int64[Tensor, " head"],
        rows: Float[Tensor, "batch head token position"],
        visible: Bool[Tensor, "batch token position"],
        words: Words,
    ) -> None:
        """Keeps the scores between words, and adds what sinks get."""
        seen = words.once(visible, lambda: Seen(words, visible, rows.dtype))
        values = words.relative(rows, visible)
        seen.heads.append(heads)
        seen.values.append(values)
        words.add("n_rows", heads, words.query.real.sum())
        if words.prepared["has_sinks"]:
            self._add_sinks(heads, rows, visible, values, seen, words)

    def _add_sinks(
        self, heads: Tensor, rows: Tensor, visible: Tensor, values: Tensor, seen: Seen, words: Words
    ) -> None:
        """Every row renormalised over what is no sink; rows with nothing left drop out."""
        others = ~words.key.sinks
        # Never 1 less the other: small numbers would lose their digits.
        kinds = torch.stack([others, ~others], 2).to(rows.dtype)
        rest, mass = (rows.flatten(1, 2) @ kinds).reshape(*rows.shape[:3], 2).unbind(3)
        left, n_others = rest > _NOTHING, (visible & others[:, None]).sum(2)[:, None]
        factor = torch.where(left, 1 / rest.clamp(min=_NOTHING), 0)
        if words.query.average is None and words.key.total is None:
            scale = n_others.to(rows.dtype) / visible.sum(2)[:, None].clamp(min=1)
            without = values * (scale * factor)[..., None]
        else:
            without = words.relative(rows * factor[..., None], visible & others[:, None])
            if words.query.first_token is not None:  # a word is where its first row is
                left = left.gather(2, words.query.first_token[:, None].expand(-1, left.shape[1], -1))
            without = without * left[..., None]
        words.add("without_sinks", heads, wide(without.flatten(2) @ seen.by_relation).sum(0))
        words.add("n_without_sinks", heads, wide(left.to(rows.dtype) @ seen.of_query).sum(0))
        words.add("sink_mass", heads, wide((mass * words.query.real[:, None]).sum(2)).sum(0))

    def finish(self, words: Words) -> None:
        """Adds up the scores of the heads that see the same keys."""
        for seen in words.made(Seen):
            heads, values, n_bins = torch.cat(seen.heads), torch.cat(seen.values, 1), words.n_bins
            binned = (values.flatten(2) @ seen.place).reshape(*values.shape[:2], 3, n_bins)
            squares, binned, n = _squares(values, binned, seen), wide(binned), wide(seen.n)
            of_all = n[:, None].expand(-1, len(heads), -1, -1)
            of_documents = torch.cat([binned.sum(3), of_all.sum(3), squares.sum(2, keepdim=True)], 2)
            words.add("by_source", heads, of_documents)
            some = heads, slice(n_bins)
            words.add("binned", some, binned.sum(0).transpose(1, 2))
            words.add("n_binned", some, n.sum(0).T)
            words.add("squares_binned", some, squares.sum(0))
            if not words.prepared["has_sinks"]:
                words.add("without_sinks", heads, of_documents[..., :3].sum(0))
                words.add("n_without_sinks", heads, of_documents[..., 3:6].sum(0))
            self._add_null(heads, values, seen, words)
            if self.of_words is not None:
                for own, of_site in zip(seen.heads, seen.values, strict=True):
                    self.of_words.add(int(self.site_of[own[0]]), of_site, seen.relations, words)

    def _add_null(self, heads: Tensor, values: Tensor, seen: Seen, words: Words) -> None:
        """For every permutation, sums of the pairs that would share a topic."""
        # Float32 is precise enough for a null. The last row counts pairs.
        tables = [values.transpose(0, 1).flatten(1).float(), (seen.relations > 0).flatten()[None].float()]
        scores = PairScores(torch.cat([_of_pairs(part, words) for part in tables]), words.prepared["sizes"])
        bins, sites = slice(words.n_bins), torch.unique(self.site_of[heads])
        for permutations, shared in self.permuted.shared(
            words.prepared["of_query"], words.prepared["of_key"]
        ):
            by_head, by_bin = (wide(part) for part in scores.sums(shared))
            words.add("null", (heads, permutations), by_head[:-1])
            words.add("n_null", (sites, permutations), by_head[-1])
            words.add("n_binned_null", (bins, permutations), by_bin[0] * len(heads))
            words.add("binned_null", (bins, permutations), by_bin[1])


def _squares(
    values: Float[Tensor, "batch head query key"], binned: Float[Tensor, "batch head 3 bin"], seen: Seen
) -> Float[Tensor, "batch head bin"]:
    """Sums of squared scores between different words by distance.

    They are squared as they are around their mean, because the variance is what squares are for, and little of it is
    left of float32 numbers where all scores are nearly equal.
    """
    n_bins = binned.shape[3]
    total, n = binned[:, :, 1:].sum(2), seen.n[:, 1:].sum(1)
    mean = total.sum(2) / n.sum(1).clamp(min=1)[:, None]
    same, different = seen.place[..., n_bins : 2 * n_bins], seen.place[..., 2 * n_bins :]
    around = (values - mean[:, :, None, None]).square_().flatten(2) @ (same + different)
    around, total, mean = (wide(part) for part in (around, total, mean[..., None]))
    return around + mean * (2 * total - mean * n[:, None])


def _of_pairs(table: Float[Tensor, "head every"], words: Words) -> Float[Tensor, "head pair"]:
    """The sum of a pair and its reverse."""
    there: Tensor = table.index_select(1, words.prepared["there"])
    back: Tensor | None = words.prepared["back"]
    return there if back is None else there.add_(table.index_select(1, back))
