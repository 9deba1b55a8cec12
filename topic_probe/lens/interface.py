"""The attention functions inside Hugging Face models: what shows attention there.

Hugging Face models hand their queries, keys and values to an attention function that is looked up by name. Two such
functions are registered here, whose calls are made by a listener. *Eager* lets the model's own eager code compute the
pattern, and shows it. *Beside sdpa* lets the model run on PyTorch's fused kernel, which never forms a pattern, and has
the model's own eager code compute only the rows that are asked for.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from topic_probe.lens.running import configs, run, trunk
from topic_probe.lens.sites import SIDES, Inputs, Site, take_rows, visible_keys

EAGER = "topic_probe_eager"
BESIDE_SDPA = "topic_probe_beside_sdpa"

# Makes every call: ``(module, attend, query, key, value)``, where ``attend(query, key, value, show)`` gives its output
# and its pattern, and ``show`` what is used in place of the pattern. Beside the fused kernel nothing is shown, and
# ``(…, rows_at, mask)`` follow, where ``rows_at(index, documents)`` computes rows of the pattern.
Listener = Callable[..., Any]
_listener: ContextVar[Listener | None] = ContextVar("topic_probe_listener", default=None)


class CallCounter:
    """Numbers the attention calls of one forward pass, held to the order that the trial has seen."""

    def __init__(self, modules: tuple[nn.Module, ...]) -> None:
        self.modules, self.number = modules, -1

    def next(self, module: nn.Module) -> int:
        """The number of this call."""
        self.number += 1
        if self.number >= len(self.modules) or self.modules[self.number] is not module:
            raise ValueError(
                f"attention call {self.number} comes from another layer than in the trial run; a model whose layers "
                "are skipped or reordered from pass to pass cannot be measured layer by layer"
            )
        return self.number

    def finish(self) -> None:
        """Raises ValueError where fewer layers attended than in the trial."""
        if self.number + 1 != len(self.modules):
            raise ValueError(f"only {self.number + 1} of {len(self.modules)} attention calls were seen")


@dataclass(frozen=True)
class Calls:
    """The attention calls of a forward pass in their order: the module behind each, and its site."""

    modules: tuple[nn.Module, ...]
    sites: tuple[Site, ...]

    def read_rows(
        self, model: nn.Module, inputs: Inputs, rows: Mapping[str, Tensor], read: Callable[..., None]
    ) -> None:
        """Runs the trunk on the fused kernel; ``read(site, rows_at, visible)`` is called for each site.

        ``rows_at(documents)`` gives the wanted rows of some documents. Calls that have one mask have one tensor of
        visible keys.
        """
        calls, known = CallCounter(self.modules), dict[object, tuple[Tensor | None, Tensor]]()

        def listen(
            module: nn.Module, attend: Any, query: Tensor, key: Tensor, value: Tensor, rows_at: Any, mask: Any
        ) -> Any:
            site, shape = self.sites[calls.next(module)], (query.shape[2], key.shape[2])
            index = rows[SIDES[site.stack][0]].to(inputs.mask.device)
            kind = id(mask), shape, site.stack
            if kind not in known:  # with the mask, so that no other has its id
                visible = visible_keys(mask, len(index), *shape).to(index.device)
                known[kind] = mask, visible.gather(1, index[:, :, None].expand(-1, -1, shape[1]))
            read(site, lambda documents: rows_at(index[documents], documents), known[kind][1])
            return attend(query, key, value)

        with attention_implementation(model, BESIDE_SDPA, listen):
            run(trunk(model), inputs)
        calls.finish()


@contextmanager
def attention_implementation(model: nn.Module, name: str, listener: Listener | None = None) -> Iterator[None]:
    """Context manager: every part of a Hugging Face model attends by a function, whose calls a listener makes.

    The configuration is what attention layers and mask functions look at in every forward pass, and encoder and decoder
    may have one each.
    """
    _register_attention()
    switched = configs(model)
    before = [config._attn_implementation_internal for config in switched]
    token = _listener.set(listener)
    try:
        for config in switched:
            config._attn_implementation_internal = name
        yield
    finally:
        _listener.reset(token)
        for config, implementation in zip(switched, before, strict=True):
            config._attn_implementation_internal = implementation


# The two attention functions.


@cache
def _register_attention() -> None:
    """Makes both attention functions known to transformers, once.

    Each needs its mask function too: without one Hugging Face hands a custom attention function no mask at all, and
    padding is attended to.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    masks = AttentionMaskInterface()
    eager_mask, sdpa_mask = masks["eager"], masks["sdpa"]

    def full_mask(*args: Any, **options: Any) -> Any:
        # A skipped mask would leave it to the kernel to know that a layer is causal; the rows need the mask itself.
        for option in ("allow_is_causal_skip", "allow_is_bidirectional_skip"):
            if option in options:
                options[option] = False
        return sdpa_mask(*args, **options)

    AttentionInterface.register(EAGER, _eager)
    AttentionMaskInterface.register(EAGER, eager_mask)
    AttentionInterface.register(BESIDE_SDPA, _beside_sdpa)
    AttentionMaskInterface.register(BESIDE_SDPA, full_mask)


def _eager(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> Any:
    def attend(query: Tensor, key: Tensor, value: Tensor, show: Any = None) -> tuple[Tensor, Tensor]:
        mask = _additive(attention_mask, query.dtype)
        output, pattern = _own_eager(module)(module, query, key, value, mask, **options)
        if show is not None:
            version = None if pattern.is_inference() else pattern._version
            used = show(pattern)
            if used is not pattern or version is None or pattern._version != version:
                output, pattern = _product(used, value), used
        return output, pattern

    listener = _listener.get()
    return attend(query, key, value) if listener is None else listener(module, attend, query, key, value)


def _beside_sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> Any:
    from transformers import AttentionInterface

    def attend(query: Tensor, key: Tensor, value: Tensor, show: Any = None) -> tuple[Tensor, None]:
        output, _ = AttentionInterface()["sdpa"](module, query, key, value, attention_mask, **options)
        return output, None

    def rows_at(index: Tensor, documents: slice) -> Tensor:
        def at(table: Tensor) -> Tensor:
            return take_rows(table if len(table) == 1 else table[documents], index)

        inside = dict(options)
        if isinstance(bias := options.get("position_bias"), Tensor):
            inside["position_bias"] = at(bias)
        mask = None if attention_mask is None else _additive(at(attention_mask), query.dtype)
        # Without columns of values: only the pattern is wanted, not its product with them.
        given = at(query), key[documents], value[documents][..., :0]
        rows: Tensor = _own_eager(module)(module, *given, mask, **inside)[1]
        return rows

    listener = _listener.get()
    if listener is None:
        return attend(query, key, value)
    return listener(module, attend, query, key, value, rows_at, attention_mask)


def _own_eager(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor]]:
    """The eager attention of the file that defines the module: it knows about caps, biases, sinks and groups."""
    for cls in type(module).__mro__:
        function = getattr(sys.modules.get(cls.__module__), "eager_attention_forward", None)
        if function is not None:
            return function  # type: ignore[no-any-return]
    raise RuntimeError(f"{type(module).__name__} has no eager attention of its own")


def _product(pattern: Tensor, value: Tensor) -> Tensor:
    """What heads put out with a pattern, [batch, query, head, d_head]."""
    groups = pattern.shape[1] // value.shape[1]
    return (pattern @ value.repeat_interleave(groups, dim=1)).transpose(1, 2).contiguous()


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A mask as eager attention takes it: added to the scores."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)
