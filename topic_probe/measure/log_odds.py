"""Reads log-odds of topics out of a model, of texts and of what they become when words give way to others."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from topic_probe.contrast import SAME_TOPIC
from topic_probe.lens import capture
from topic_probe.lens.edit import edit_heads, head_outputs
from topic_probe.lens.running import evaluating
from topic_probe.lens.sites import Inputs
from topic_probe.measure.effects import Counted, scored
from topic_probe.measure.engine import Part, Prepare
from topic_probe.measure.exchanges import NO_POSITION, Exchange, Exchanges
from topic_probe.measure.heads import Heads
from topic_probe.measure.outcomes import Asked, masked_positions
from topic_probe.measure.patterns import units_of
from topic_probe.measure.scores import Units
from topic_probe.text.batches import TokenBatch
from topic_probe.toy.masking import MaskedBatch, Masking
from topic_probe.toy.theory.posterior import bayes_predictor
from topic_probe.toy.world import World


@dataclass(frozen=True, eq=False)
class Texts:
    """A batch in all of its texts.

    Attributes:
        batch: the documents.
        ids: what every text shows.
        held: the positions whose words are predicted; none of documents to which nothing is done.
        rows: the positions of every document that predict them.
        exchanges: what is done to every document.
        units: the words that every document shows before.
    """

    batch: TokenBatch
    ids: Int64[Tensor, "text batch position"]
    held: Bool[Tensor, "batch position"]
    rows: list[Int64[Tensor, " _"]]
    exchanges: list[Exchange]
    units: list[Units]


Odds = list[Float64[np.ndarray, "_ _"]]


@dataclass
class ShiftReader:
    """Scores of every document: log-odds, their shift, that of the reference; of heads, own words and permutations.

    Attributes:
        view: the model.
        exchanges: what is done to documents.
        logits: gives the scores over the vocabulary.
        every: all heads.
        heads: those that are patched.
        mask_share: what share of tokens is masked.
        mask_id: what stands there; None for causal models.
        scheme: a world and its masking, where the posterior is known.
        words: counts those that were chosen, replaced, and replaced by others of their own topic.
    """

    view: capture.View
    exchanges: Exchanges
    logits: Callable[[Any, Inputs], Tensor]
    every: Heads
    heads: tuple[int, ...]
    mask_share: float
    mask_id: int | None
    scheme: tuple[World, Masking] | None

    def __post_init__(self) -> None:
        self.topics = self.exchanges.topics
        self.first_own = 3 + len(self.heads)
        self.first_permuted = self.first_own + self.exchanges.n_matched
        self.n_cells = self.first_permuted + self.exchanges.n_permutations
        self.words = Counted("words", 3)

    def units(self, batch: TokenBatch) -> list[Units]:
        """The words of every document."""
        return units_of(batch, self.topics)

    def n_kept(self, units: list[Units]) -> int:
        """The scores over the vocabulary, the outputs of heads and all texts."""
        longest = max((int(words.positions.max()) + 1 for words in units if len(words)), default=1)
        width = capture.word_embeddings(self.view.model, check=False).shape[1] * len(self.view.sites)
        return len(units) * longest * (self.view.facts.vocabulary_size + width + self.n_cells)

    def read(self, batch: TokenBatch, units: list[Units], prepare: Prepare) -> Iterator[Part]:
        """Runs a batch through the model in all of its texts, and once for every head."""
        texts = self._texts(batch, units)
        # Where no head is patched, none need be editable.
        with edit_heads(self.view.model, {}) if self.heads else evaluating(self.view.model):
            before, after = (self._log_odds(ids, texts, self.exchanges.groupings) for ids in texts.ids[:2])
            expected = _change(*(self._reference(ids, texts) for ids in texts.ids[:2]))
            own = [self._log_odds(ids, texts, self.exchanges.groupings[:1]) for ids in texts.ids[2:]]
            told = [*self._patched(texts), *own]
        tables = []
        for row, (first, then) in enumerate(zip(before, after, strict=True)):
            others = [odds[row] - first[:1] for odds in told]
            cells = [first[:1], then[:1] - first[:1], expected[row], *others, then[1:] - first[1:]]
            tables.append(np.concatenate(cells)[:, :, None])
        # Only now, because a batch for which there is no memory comes again in halves.
        for exchange in texts.exchanges:
            self.words.sums["words"] += exchange.counted
        return scored(self._asked(texts), tables, prepare)

    def _texts(self, batch: TokenBatch, units: list[Units]) -> Texts:
        held = self._held_out(batch, units)
        shown = batch.ids if self.mask_id is None else batch.ids.masked_fill(held, self.mask_id)
        exchanges, left = [], []
        for row, (words, key) in enumerate(zip(units, batch.keys.tolist(), strict=True)):
            seen = held[row, words.positions] & (self.mask_id is not None)
            free = Units.of_tokens(
                words.entries[~seen], words.places[~seen], words.positions[~seen], words.left_out
            )
            found = self.exchanges.nothing(shown[row], NO_POSITION)
            if bool(held[row].any()):
                found = self.exchanges.of_document(shown[row], free, key)
            if found.why:
                held[row] = False
                free = replace(free, left_out={**words.left_out, found.why: 1})
            exchanges.append(found)
            left.append(free)
        # A causal model predicts a word one position before it.
        rows = [row.nonzero().flatten() - int(self.mask_id is None) for row in held]
        ids = torch.stack([exchange.texts for exchange in exchanges], 1)
        return Texts(batch, ids, held, rows, exchanges, left)

    def _held_out(self, batch: TokenBatch, units: list[Units]) -> Bool[Tensor, "batch position"]:
        if self.mask_id is not None:
            masked = masked_positions(batch, self.mask_share, self.exchanges.seed)
            return masked & batch.mask & ~batch.special
        held = torch.zeros_like(batch.mask)
        for row, words in zip(held, units, strict=True):
            row[words.positions] = True
        held[:, 0] = False
        return held

    def _log_odds(
        self, ids: Int64[Tensor, "batch position"], texts: Texts, groupings: Int64[Tensor, "grouping word"]
    ) -> Odds:
        """The log-odds of every document by grouping and position, of the model as it is now."""
        scores = self.logits(self.view.model, self.view.inputs(ids, texts.batch.mask))
        needed = (*ids.shape, self.topics.vocabulary_size)
        if scores.ndim != 3 or scores.shape[:2] != ids.shape or scores.shape[2] < needed[2]:
            raise ValueError(
                f"logits needs scores [batch, position, vocabulary] = {list(needed)}, and the function has given "
                f"{list(scores.shape)}"
            )
        chosen = (own[at.to(own.device)] for own, at in zip(scores, texts.rows, strict=True))
        return [exchange.odds(own, groupings) for exchange, own in zip(texts.exchanges, chosen, strict=True)]

    def _reference(self, ids: Int64[Tensor, "batch position"], texts: Texts) -> Odds:
        """The log-odds by the exact posterior, or by counts of the words that a position sees."""
        if self.scheme is not None:
            shown = MaskedBatch(ids, texts.batch.ids, texts.batch.mask, texts.held)
            posterior = bayes_predictor(*self.scheme, shown).probabilities.log()
            parts = torch.split(posterior, texts.held.sum(1).tolist())
            as_they_are = self.exchanges.groupings[:1]
            return [
                exchange.odds(own, as_they_are) for exchange, own in zip(texts.exchanges, parts, strict=True)
            ]
        found = []
        for own, exchange, words, rows in zip(ids, texts.exchanges, texts.units, texts.rows, strict=True):
            seen = (words.positions <= rows[:, None]) | (self.mask_id is not None)
            found.append(exchange.odds_of_counts(self.topics.places(own[words.positions]), seen)[None])
        return found

    def _patched(self, texts: Texts) -> Iterator[Odds]:
        """The log-odds where one head after the other puts out what it does on the text with words of another topic."""
        if not self.heads:
            return
        outputs: dict[int, Tensor] = {}
        head_outputs(self.view, self.view.inputs(texts.ids[1], texts.batch.mask), outputs.__setitem__)
        for head in self.heads:
            site, number = self.every.site_of[head], self.every.head_of[head]
            with edit_heads(self.view.model, {self.view.sites[site]: {number: outputs[site][:, :, number]}}):
                yield self._log_odds(texts.ids[0], texts, self.exchanges.groupings[:1])

    def _asked(self, texts: Texts) -> Asked:
        nothing = Units.of_tokens(*torch.zeros(3, 1, dtype=torch.int64))
        places = [row.nonzero().flatten() for row in texts.held]
        query = [Units.of_tokens(ids[at], at, at) for ids, at in zip(texts.batch.ids, places, strict=True)]
        kinds = [torch.full((len(at), 1), SAME_TOPIC) for at in places]
        inputs = self.view.inputs(texts.ids[0], texts.batch.mask)
        return Asked(inputs, texts.batch, texts.units, query, [nothing] * len(places), kinds)


def _change(before: Odds, after: Odds) -> Odds:
    return [later - earlier for earlier, later in zip(before, after, strict=True)]
