"""Random numbers for one batch or for several at once, each from its own generator."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float64, Int64, Shaped
from torch import Tensor


class Draws:
    """Generators that fill the rows of one batch, each as many rows as the others, one behind the other.

    Each is asked for exactly what it would be asked for alone, so that its rows are what it would give alone; what is
    computed from the numbers is computed for all rows at once. Where generators have different numbers of columns,
    their rows are padded with zeros.

    Attributes:
        generators: The only sources of randomness.
        device: Of them all.
    """

    def __init__(self, *generators: torch.Generator):
        self.generators, self.device = generators, generators[0].device

    def __len__(self) -> int:
        return len(self.generators)

    def uniform(self, n: int, columns: int | Sequence[int]) -> Float64[Tensor, "batch column"]:
        """Numbers in [0, 1), n rows of every generator."""
        return self._rows(lambda part, g: part.uniform_(generator=g), n, columns, torch.float64)

    def whole(
        self, low: int, high: int, n: int, columns: int | Sequence[int]
    ) -> Int64[Tensor, "batch column"]:
        """Whole numbers of low..high - 1, n rows of every generator."""
        return self._rows(lambda part, g: part.random_(low, high, generator=g), n, columns, torch.int64)

    def below(self, high: int, rows: Int64[Tensor, " entry"], n_rows: int) -> Int64[Tensor, " entry"]:
        """Whole numbers of 0..high - 1 for entries of a batch of ``n_rows``, sorted by their row."""
        n = len(self)
        sizes = [len(rows)] if n == 1 else torch.bincount(rows * n // n_rows, minlength=n).tolist()
        parts = [
            torch.randint(high, (size,), generator=g, device=self.device)
            for g, size in zip(self.generators, sizes, strict=True)
        ]
        return torch.cat(parts)

    def gamma(self, alpha: float, n: int, columns: int) -> Float64[Tensor, "batch column"]:
        """Gamma variables of this shape parameter, n rows of every generator."""
        alphas = torch.full((n, columns), alpha, dtype=torch.float64, device=self.device)
        parts = [torch._standard_gamma(alphas, generator=g) for g in self.generators]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def largest(self, numbers: Int64[Tensor, "..."]) -> list[int]:
        """The largest number in each one's rows."""
        found: list[int] = numbers.view(len(self), -1).amax(dim=1).tolist()
        return found

    def _rows(
        self,
        fill: Callable[[Tensor, torch.Generator], Tensor],
        n: int,
        columns: int | Sequence[int],
        dtype: torch.dtype,
    ) -> Shaped[Tensor, "batch column"]:
        """Rows filled in place, which takes a generator's numbers in the order in which it gives them alone."""
        widths = [columns] * len(self) if isinstance(columns, int) else columns
        rows = torch.empty(len(self), n, max(widths), dtype=dtype, device=self.device)
        rows[:, :, min(widths) :] = 0
        for part, generator, width in zip(rows, self.generators, widths, strict=True):
            fill(part[:, :width], generator)
        return rows.flatten(0, 1)
