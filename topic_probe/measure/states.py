"""The states of every layer: positions of the same document compared with each other, summed by relation."""

from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Float64, Int8
from torch import Tensor

from topic_probe.contrast import Contrast, SourceSums, relations
from topic_probe.lens import capture
from topic_probe.measure.positions import Units, labelled_units, padded_positions
from topic_probe.measure.processes import Processes
from topic_probe.measure.stream import Reading, Saving, take_in
from topic_probe.measure.totals import Totals
from topic_probe.measure.words import SCORES
from topic_probe.text.batches import TokenBatch
from topic_probe.topics import Topics


class LayerMeter:
    """Runs documents through a model and adds up what its states say."""

    def __init__(self, model: Any, topics: Topics, *, include_self: bool) -> None:
        self.view, self.topics, self.include_self = capture.view(model), topics, include_self
        self.totals = Totals(SourceSums())

    def run(
        self, documents: Any, reading: Reading, *, saving: Saving, processes: Processes, progress: bool
    ) -> dict[str, Any]:
        """Takes in all documents; what was read, cut and left out."""
        limit = self.totals.by_document.limit
        told = take_in(
            self,
            self.view.model,
            self.topics,
            documents,
            reading,
            options={"measurement": "states", "include_self": self.include_self, "limit": limit},
            saving=saving,
            processes=processes,
            progress=progress,
        )
        if not len(self.totals.by_document):
            raise ValueError("no document is left to measure: there were none, or all were empty")
        read = self.totals.intake.summary()
        left_out = sorted(self.totals.left_out.items())
        read["left_out"] |= {reason: count for reason, count in left_out if count}
        return read | {"corpus": told.corpus, "stopped": told.stopped, "processes": processes.size}

    def add(self, batch: TokenBatch) -> None:
        """Takes in a batch, in parts where memory or the host want it so."""
        lengths = batch.mask.sum(1)
        if not self.view.honours_padding and bool((lengths != lengths[0]).any()):
            self._add_halves(batch)
            return
        try:
            sums, counts, left_out = self._sums(batch)
        except RuntimeError as error:
            if len(batch) == 1 or "memory" not in str(error):
                raise
            self._add_halves(batch)
            return
        self.totals.left_out += left_out
        self.totals.measured += len(batch)
        # One more axis, because cosine and dot product have the same pairs.
        self.totals.by_document.add(batch.keys.numpy(), sums.numpy(), counts[:, :, None].numpy())

    def _add_halves(self, batch: TokenBatch) -> None:
        for half in batch.halves():
            self.add(half)

    def _sums(
        self, batch: TokenBatch
    ) -> tuple[Float64[Tensor, "batch layer 2 3"], Float64[Tensor, "batch layer 3"], Counter[str]]:
        units = self._units(batch)
        positions, real = padded_positions(units)
        entries = batch.ids.gather(1, positions).masked_fill(~real, -1)
        codes = relations(entries, entries, self.topics)
        if not self.include_self:
            codes[:, range(codes.shape[1]), range(codes.shape[1])] = 0
        found: list[tuple[Tensor, Tensor, int]] = []

        def read(layer: int, states: Tensor) -> None:
            at = positions.to(states.device)[:, :, None].expand(-1, -1, states.shape[2])
            found.append(state_sums(states.detach().gather(1, at).cpu(), codes))

        capture.hidden_states(self.view.model, self.view.inputs(batch.ids, batch.mask), read)
        sums, counts, lost = zip(*found, strict=True)
        left_out = {
            "documents without a word of any topic": sum(not len(one) for one in units),
            "pieces of split words": sum(one.n_pieces_left_out for one in units),
            "states that are zero or not finite": sum(lost),
        }
        return torch.stack(sums, 1), torch.stack(counts, 1), Counter(left_out)

    def _units(self, batch: TokenBatch) -> list[Units]:
        words = [None] * len(batch) if batch.word_index is None else batch.word_index
        return [
            labelled_units(
                batch.ids[row, :length],
                batch.special[row, :length],
                None if (word := words[row]) is None else word[:length],
                self.topics,
                level="token",
            )
            for row, length in enumerate(batch.mask.sum(1).tolist())
        ]

    def contrasts(self, **resampling: Any) -> dict[str, Contrast]:
        """Cosine and dot product by layer."""
        both = self.totals.by_document.contrast(**resampling)
        index = {"layer": tuple(range(len(both)))}
        return {score: replace(both[:, number], index=index) for number, score in enumerate(SCORES)}


def state_sums(
    states: Float[Tensor, "batch word d_model"], codes: Int8[Tensor, "batch word word"]
) -> tuple[Float64[Tensor, "batch 2 3"], Float64[Tensor, "batch 3"], int]:
    """Sums of cosines and dot products by relation within every document, numbers of pairs, and states left out."""
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
