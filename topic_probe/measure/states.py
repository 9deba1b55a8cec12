"""The states of every layer: positions of the same document compared with each other."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from topic_probe.contrast import NO_RELATION, Contrast, relations
from topic_probe.lens import capture
from topic_probe.measure.accumulators import Relations, Scores
from topic_probe.measure.engine import NO_WORD, PIECES, DocumentScores, Engine
from topic_probe.measure.options import Reading, Run
from topic_probe.measure.processes import Processes
from topic_probe.measure.units import Units, padded_positions, units_of
from topic_probe.measure.words import SCORES
from topic_probe.text.batches import TokenBatch
from topic_probe.topics import Topics

NO_STATE = "states that are zero or not finite"


def measure_states(
    model: Any,
    topics: Topics,
    documents: Any,
    *,
    include_self: bool,
    reading: Reading,
    run: Run,
    processes: Processes,
    **resampling: Any,
) -> tuple[dict[str, Contrast], dict[str, Any]]:
    """Cosine and dot product of states by layer, and what was read, cut and left out.

    Raises:
        ValueError: where no document is left to measure.
    """
    by_relation = Relations()
    facts = {"measurement": "states", "include_self": include_self, "limit": by_relation.by_source.limit}
    engine = Engine(StateReader(capture.view(model), topics, include_self=include_self), [by_relation])
    progress = engine.run(documents, reading=reading, run=run, processes=processes, facts=facts)
    if not len(by_relation.by_source):
        raise ValueError("no document is left to measure: there were none, or all were empty")
    contrast = by_relation.by_source.contrast(**resampling)
    index = {"layer": tuple(range(len(contrast) // len(SCORES)))}
    layers = {
        score: replace(contrast[number :: len(SCORES)], index=index) for number, score in enumerate(SCORES)
    }
    return layers, progress.record() | {"processes": processes.size}


class StateReader:
    """Cosines and dot products between the states of words of one document, in this order for every layer."""

    def __init__(self, view: capture.View, topics: Topics, *, include_self: bool) -> None:
        self.view, self.topics, self.include_self = view, topics, include_self

    def units(self, batch: TokenBatch) -> list[Units]:
        """The words of every document."""
        return units_of(batch, self.topics)

    def n_kept(self, units: list[Units]) -> int:
        """How many numbers are kept of a batch until its documents are scored."""
        width = capture.word_embeddings(self.view.model, check=False).shape[1]
        layers = len(self.view.sites) + 1
        return len(units) * max(len(document) for document in units) * width * layers

    def read(self, batch: TokenBatch, units: list[Units]) -> Iterator[DocumentScores]:
        """Runs a batch through the model; what comes back scores one document after the other."""
        positions, _ = padded_positions(units)
        layers: list[Float[Tensor, "batch word d_model"]] = []

        def keep(layer: int, states: Tensor) -> None:
            at = positions.to(states.device)[:, :, None].expand(-1, -1, states.shape[2])
            layers.append(states.detach().gather(1, at).cpu())

        capture.hidden_states(self.view.model, self.view.inputs(batch.ids, batch.mask), keep)
        return self._documents(batch, units, layers)

    def _documents(
        self, batch: TokenBatch, units: list[Units], layers: list[Float[Tensor, "batch word d_model"]]
    ) -> Iterator[DocumentScores]:
        for row, (source, words) in enumerate(zip(batch.keys.tolist(), units, strict=True)):
            codes = relations(words.entries, words.entries, self.topics).long()
            if not self.include_self:
                codes.fill_diagonal_(NO_RELATION)
            left_out = {NO_WORD: int(not len(words)), PIECES: words.n_pieces, NO_STATE: 0}
            scores = []
            for layer, states in enumerate(layers):
                values, pairs, n_lost = state_scores(states[row, : len(words)], codes)
                left_out[NO_STATE] += n_lost
                cells, n_cells = len(SCORES) * layer + np.arange(len(SCORES)), len(SCORES) * len(layers)
                scores.append(Scores(source, n_cells, cells, values, pairs, words, words))
            yield DocumentScores(scores, left_out)


def state_scores(
    states: Float[Tensor, "word d_model"], codes: Int64[Tensor, "word word"]
) -> tuple[Float64[Tensor, "2 word word"], Int64[Tensor, "word word"], int]:
    """Cosines and dot products of states, the relations of pairs that have one, and how many states are left out."""
    vectors = states.double()
    norms = vectors.norm(dim=-1)
    usable = torch.isfinite(norms) & (norms > 0)
    vectors = vectors.masked_fill(~usable[:, None], 0.0)
    units = vectors / norms.masked_fill(~usable, 1.0)[:, None]
    n_lost = int(((codes != NO_RELATION).any(-1) & ~usable).sum())
    return torch.stack([units @ units.T, vectors @ vectors.T]), codes * usable * usable[:, None], n_lost
