"""Single cells of attention patterns, out of what PyTorch's fused kernel says of a call beside its output.

The kernel for processors forms no pattern, but returns the log-sum-exp of every row of scores: the attention of a query
to a key is the exponential of their score less that number, so that cells between some queries and some keys need
nothing of the others. What a row gives to all keys but a few is no difference from 1, of which nothing would be left
where these take nearly everything: the kernel adds it up, as the output of a call whose values are 1 at the other keys.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from topic_probe.lens.sites import Cells, Columns, take_rows

_KERNEL = "aten::_scaled_dot_product_flash_attention_for_cpu"


@dataclass(frozen=True, eq=False)
class FusedCall:
    """A call of the kernel.

    Attributes:
        kernel: gives outputs and log-sum-exps for other queries and values.
        query, key: as the kernel was given them, [document, head, position, d_head].
        mask: what is added to the scores, [document or 1, head or 1, query, key].
        scale: what they are multiplied by before.
        log_sum: the log-sum-exp of every row, [document, head, query].
    """

    kernel: Callable[..., tuple[Tensor, Tensor]]
    query: Tensor
    key: Tensor
    mask: Tensor | None
    scale: float
    log_sum: Tensor

    @classmethod
    def of(cls, kernel: Any, given: dict[str, Any], log_sum: Tensor) -> "FusedCall | None":
        """A call with these arguments; None where cells do not follow from it to the last digits of a pattern."""
        query, key = given["query"], given["key"]
        mask, scale = given.get("attn_mask"), given.get("scale")
        exact = query.dtype in (torch.float32, torch.float64) and log_sum.dtype == query.dtype
        known = not given.get("is_causal") and not given.get("dropout_p") and query.shape[1] == key.shape[1]
        if not exact or not known or log_sum.shape != query.shape[:3]:
            return None
        return cls(kernel, query, key, mask, query.shape[-1] ** -0.5 if scale is None else scale, log_sum)

    def cells(self, rows: Tensor, columns: Columns, part: slice) -> Cells:
        """Some rows [document, row] and columns of a part of the documents."""
        query, key, log_sum = self.query[part], self.key[part], self.log_sum[part, :, :, None]
        query, log_sum, mask = take_rows(query, rows), take_rows(log_sum, rows), None
        scores = (query * self.scale) @ take_rows(key, columns.index[part]).transpose(2, 3)
        scores -= log_sum
        if self.mask is not None:
            mask = take_rows(self.mask if len(self.mask) == 1 else self.mask[part], rows)
            scores += columns.of(mask, part)
        # Of an infinite score, or of none that is a number, there is no pattern.
        total = torch.ones_like(log_sum).masked_fill_(~(log_sum < torch.inf), torch.nan)[..., 0]
        if columns.left_out is None:
            return Cells(scores.exp_(), total, total)
        others = (~columns.left_out[part, None, :, None]).to(key).expand(-1, 1, -1, key.shape[3])
        others = others.contiguous().expand(-1, key.shape[1], -1, -1)
        shares, _ = self.kernel(query, key, others, attn_mask=mask, scale=self.scale)
        return Cells(scores.exp_(), total, shares[..., 0])


class Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A block in which a call of the kernel is kept; None where there is none, as with other kernels and devices."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.call: FusedCall | None = None

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Makes every call as it is."""
        answer = function(*args, **(kwargs or {}))
        if function._schema.name == _KERNEL:
            names = (argument.name for argument in function._schema.arguments)
            given = dict(zip(names, args, strict=False)) | (kwargs or {})
            self.call = FusedCall.of(function, given, answer[1])
        return answer
