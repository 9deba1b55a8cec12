"""Random numbers for one batch or for several at once, each from its own generator."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float64, Int64, Shaped
from torch import Tensor
from torch.nn.functional import pad


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
        return self._rows(
            lambda g, c: torch.rand((n, c), dtype=torch.float64, generator=g, device=self.device), columns
        )

    def whole(
        self, low: int, high: int, n: int, columns: int | Sequence[int]
    ) -> Int64[Tensor, "batch column"]:
        """Whole numbers of low..high - 1, n rows of every generator."""
        return self._rows(
            lambda g, c: torch.randint(low, high, (n, c), generator=g, device=self.device), columns
        )

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
        return self._rows(lambda g, _: torch._standard_gamma(alphas, generator=g), columns)

    def largest(self, numbers: Int64[Tensor, "..."]) -> list[int]:
        """The largest number in each one's rows."""
        found: list[int] = numbers.view(len(self), -1).amax(dim=1).tolist()
        return found

    def _rows(
        self, draw: Callable[[torch.Generator, int], Tensor], columns: int | Sequence[int]
    ) -> Shaped[Tensor, "batch column"]:
        widths = [columns] * len(self) if isinstance(columns, int) else columns
        return stacked_rows([draw(g, width) for g, width in zip(self.generators, widths, strict=True)])


def stacked_rows(parts: Sequence[Shaped[Tensor, "_ _"]]) -> Shaped[Tensor, "batch column"]:
    """Matrices one below the other, padded on the right with zeros (False)."""
    if len(parts) == 1:
        return parts[0]
    widest = max(part.shape[1] for part in parts)
    return torch.cat([pad(p, (0, widest - p.shape[1])) if p.shape[1] < widest else p for p in parts])
