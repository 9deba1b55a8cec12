"""What stands in for the outputs of heads that are taken out: those of other documents, or nothing."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from topic_probe.lens import capture
from topic_probe.lens.edit import head_outputs
from topic_probe.lens.running import evaluating
from topic_probe.measure.outcomes import Asked
from topic_probe.text.batches import TokenBatch

Kind = Literal["mean", "position", "resample", "zero"]

# So many documents of each half are kept whose outputs stand in for those of others.
_DONORS = 8
_BITS = 2**64 - 1  # of the number of a source


@dataclass
class StandIns:
    """Outputs of heads of two halves of some documents, or of all of them.

    Attributes:
        view: the model.
        kind: what stands in.
        halves: whether a document gets what is of the other half, by its source; else all get what is of all.
        bit: of the number of a source, says in which half it is.
        sums: of every half and site the sum of outputs; with "position" by position.
        counts: how many outputs are in them.
        squares: of every site the sum of squares of outputs, for norms.
        donors: of every half, documents with their outputs at every site.
    """

    view: capture.View
    kind: Kind
    halves: bool
    bit: int = 0
    sums: list[dict[int, Float64[Tensor, "position head d_head"]]] = field(default_factory=lambda: [{}, {}])
    counts: list[dict[int, Float64[Tensor, " position"]]] = field(default_factory=lambda: [{}, {}])
    squares: dict[int, Float64[Tensor, "head d_head d_head"]] = field(default_factory=dict)
    donors: list[list[dict[int, Float[Tensor, "position head d_head"]]]] = field(
        default_factory=lambda: [[], []]
    )
    seen: list[int] = field(default_factory=lambda: [0, 0])  # bits that are 1 in some source, and 0 in some

    @classmethod
    def of(
        cls,
        view: capture.View,
        batches: Callable[[], Iterable[TokenBatch]],
        kind: Kind,
        *,
        halves: bool,
        norms: bool,
    ) -> "StandIns":
        """Those of documents, which are not read where nothing stands in.

        They are read once, and again where few sources have all come into one half.

        Raises:
            ValueError: where there is no document, or halves are asked of a single source.
        """
        found = cls(view, kind, halves)
        if kind == "zero" and not norms:
            return found
        for batch in batches():
            found._add(batch, norms=norms)
        if not all(found.counts[: 1 + halves]):
            if not (parting := found.seen[0] & found.seen[1]):
                raise ValueError(
                    "what stands in for the outputs of heads is of other documents than those it is put into, and "
                    "there are not two sources to take it from: give more documents, others as reference=, or "
                    "kind='zero'"
                )
            found = cls(view, kind, halves, (parting & -parting).bit_length() - 1)
            for batch in batches():
                found._add(batch, norms=norms)
        return found

    def _half(self, sources: Int64[Tensor, " batch"]) -> Int64[Tensor, " batch"]:
        return sources >> self.bit & 1 if self.halves else torch.zeros_like(sources)

    def _add(self, batch: TokenBatch, *, norms: bool) -> None:
        inputs, half = self.view.inputs(batch.ids, batch.mask), self._half(batch.sources)
        kept: list[dict[int, Tensor]] = [{} for _ in range(len(batch))]
        for source in batch.sources.tolist():
            self.seen = [self.seen[0] | source & _BITS, self.seen[1] | ~source & _BITS]

        def read(site: int, outputs: Float[Tensor, "batch query head d_head"]) -> None:
            mask = inputs.masks(self.view.sites[site])[0]
            for row, number in enumerate(half.tolist()):
                own = outputs[row][mask[row]].detach()
                if self.kind == "resample" and len(self.donors[number]) < _DONORS:
                    kept[row][site] = own.cpu()
                exact = own.double().cpu()
                self._add_sums(number, site, exact)
                if norms:
                    squares = einsum(exact, exact, "p h d, p h e -> h d e")
                    self.squares[site] = self.squares.get(site, 0) + squares

        with evaluating(self.view.model):
            head_outputs(self.view, inputs, read)
        for number, donor in zip(half.tolist(), kept, strict=True):
            if donor and len(self.donors[number]) < _DONORS:
                self.donors[number].append(donor)

    def _add_sums(self, half: int, site: int, own: Float64[Tensor, "position head d_head"]) -> None:
        n = torch.ones(len(own), dtype=torch.float64)
        if self.kind != "position":
            own, n = own.sum(0, keepdim=True), n.sum(0, keepdim=True)
        sums, counts = self.sums[half].get(site), self.counts[half].get(site)
        if sums is None or counts is None:
            self.sums[half][site], self.counts[half][site] = own.clone(), n
            return
        if len(own) > len(sums):
            sums, own = own.clone(), sums
            counts, n = n, counts
        sums[: len(own)] += own
        counts[: len(n)] += n
        self.sums[half][site], self.counts[half][site] = sums, counts

    @property
    def fingerprint(self) -> str:
        """A hash of all that may stand in."""
        digest = hashlib.sha256(self.kind.encode())
        for half in (0, 1):
            for site, sums in sorted(self.sums[half].items()):
                # Rounded, because sums of another machine differ in their last digits.
                digest.update(np.round(sums.numpy(), 4).astype(np.float32).tobytes() + bytes([site % 256]))
        return digest.hexdigest()[:16]

    @property
    def norms(self) -> Float64[np.ndarray, " head"]:
        """How far every head's part of the residual stream moves where its output gives way to its mean."""
        found = []
        for site, place in enumerate(self.view.sites):
            sums = sum(half[site].sum(0) for half in self.sums if site in half)
            n = sum(half[site].sum() for half in self.counts if site in half)
            mean = sums / n
            covariance = self.squares[site] / n - einsum(mean, mean, "h d, h e -> h d e")
            out = capture.head_weights(self.view.model, place).W_O.double().cpu()
            squares = einsum(out, covariance, out, "h d m, h d e, h e m -> h")
            found.append(squares.clamp(min=0).sqrt().numpy())
        return np.concatenate(found)

    def for_batch(self, asked: Asked) -> Callable[[int, int], Tensor | Literal["zero"]]:
        """From the number of a site and a head to what stands in for its output in a batch."""
        if self.kind == "zero":
            return lambda site, head: "zero"
        half = self._half(asked.batch.sources)
        other = 1 - half if self.halves else half
        made: dict[int, Tensor] = {}

        def of_head(site: int, head: int) -> Tensor:
            if site not in made:
                made[site] = self._of_site(site, other, asked)
            return made[site][:, :, head]

        return of_head

    def _of_site(
        self, site: int, half: Int64[Tensor, " batch"], asked: Asked
    ) -> Float[Tensor, "batch position head d_head"]:
        queries = asked.inputs.masks(self.view.sites[site])[0]
        like = next(self.view.model.parameters())
        if self.kind == "resample":
            rows = []
            for number, key in zip(half.tolist(), asked.batch.keys.tolist(), strict=True):
                donor = self.donors[number][key % len(self.donors[number])][site]
                rows.append(donor[torch.arange(queries.shape[1]) % len(donor)])
            return torch.stack(rows).to(like)
        means = [
            self._means(site, number, queries.shape[1]) for number in (range(2) if self.halves else (0,))
        ]
        return torch.stack([means[number] for number in half.tolist()]).to(like)

    def _means(self, site: int, half: int, length: int) -> Float64[Tensor, "position head d_head"]:
        sums, counts = self.sums[half][site], self.counts[half][site]
        if self.kind != "position":
            return sums / counts[:, None, None]
        # Where no document was so long, the mean over all positions stands in.
        n = min(length, len(sums))
        rest = (sums.sum(0) / counts.sum()).expand(length - n, -1, -1)
        return torch.cat([sums[:n] / counts[:n, None, None], rest])
