"""The attention functions inside Hugging Face models: what shows attention there, and what edits it.

Hugging Face models hand their queries, keys and values to an attention function that is looked up by name. Two such
functions are registered here. *Eager* lets the model's own eager code compute the pattern and shows it to a listener,
who may change it. *Beside sdpa* lets the model run on PyTorch's fused kernel, which never forms a pattern, and has the
model's own eager code compute only the rows that are asked for. Both do to the heads of a call what is to be done to
them (`Change`).
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

from topic_probe.lens.changes import NO_CHANGE, Change, cut_mask
from topic_probe.lens.running import configs, run, trunk
from topic_probe.lens.sites import SIDES, Inputs, Site, take_rows, visible_keys

EAGER = "topic_probe_eager"
BESIDE_SDPA = "topic_probe_beside_sdpa"

# Sees every call of the function that is on: of eager attention ``(module, attend, query, key, value)``, where
# ``attend(query, key, value, show)`` makes the call and ``show`` gives what is used in place of its pattern; of the
# fused kernel ``(module, rows_at, mask, shape)``, where ``rows_at(index, documents)`` computes rows of the pattern.
Listener = Callable[..., Any]
_listener: ContextVar[Listener | None] = ContextVar("topic_probe_listener", default=None)


# The calls of a forward pass.


class CallCounter:
    """Numbers the attention calls of one forward pass, held to the order that the trial has seen."""

    def __init__(self, modules: tuple[nn.Module, ...]) -> None:
        self.modules, self.number = modules, -1

    def next(self, module: nn.Module) -> int:
        """The number of this call.

        Raises:
            ValueError: where it comes from another layer than in the trial.
        """
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

        def show(module: nn.Module, rows_at: Any, mask: Tensor | None, shape: tuple[int, int]) -> None:
            site = self.sites[calls.next(module)]
            index = rows[SIDES[site.stack][0]].to(inputs.mask.device)
            kind = id(mask), shape, site.stack
            if kind not in known:  # with the mask, so that no other has its id
                visible = visible_keys(mask, len(index), *shape).to(index.device)
                known[kind] = mask, visible.gather(1, index[:, :, None].expand(-1, -1, shape[1]))
            read(site, lambda documents: rows_at(index[documents], documents), known[kind][1])

        with attention_implementation(model, BESIDE_SDPA, show):
            run(trunk(model), inputs)
        calls.finish()


class _Edits:
    """What is done to the attention calls of a model, pass after pass."""

    def __init__(self, calls: Calls, changes: Callable[[Site], Change]) -> None:
        self.calls, self.changes = calls, changes
        self.begin()

    def begin(self, *_: Any) -> None:
        """Counts calls from the first again, when a pass begins: the one before may have broken off."""
        self.counter = CallCounter(self.calls.modules)


# By module that attends.
_edits: ContextVar[Mapping[nn.Module, _Edits]] = ContextVar("topic_probe_edits", default={})  # noqa: B039


def _change_of(module: nn.Module) -> Change:
    edits = _edits.get().get(module)
    return NO_CHANGE if edits is None else edits.changes(edits.calls.sites[edits.counter.next(module)])


def is_edited(model: nn.Module) -> bool:
    """Whether the heads of a Hugging Face model are being edited."""
    edits = _edits.get()
    return bool(edits) and any(module in edits for module in model.modules())


@contextmanager
def unedited() -> Iterator[None]:
    """Context manager: every model is what it is without edits of heads."""
    token = _edits.set({})
    try:
        yield
    finally:
        _edits.reset(token)


@contextmanager
def editing_calls(
    model: nn.Module, name: str, calls: Calls, changes: Callable[[Site], Change]
) -> Iterator[None]:
    """Context manager: edits the heads of a Hugging Face model inside an attention function in every forward pass."""
    edits = _Edits(calls, changes)
    begins = [part.register_forward_pre_hook(edits.begin) for part in dict.fromkeys((model, trunk(model)))]
    token = _edits.set({**_edits.get(), **dict.fromkeys(calls.modules, edits)})
    try:
        with attention_implementation(model, name):
            yield
    finally:
        _edits.reset(token)
        for handle in begins:
            handle.remove()


# The two attention functions.


def _own_eager(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor]]:
    """The eager attention of the file that defines the module: it knows about caps, biases, sinks and groups."""
    for cls in type(module).__mro__:
        function = getattr(sys.modules.get(cls.__module__), "eager_attention_forward", None)
        if function is not None:
            return function  # type: ignore[no-any-return]
    raise RuntimeError(f"{type(module).__name__} has no eager attention of its own")


def _eager(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    change = _change_of(module)

    def attend(
        query: Tensor, key: Tensor, value: Tensor, show: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        mask, lost = _cut(change, query, key, attention_mask, causal=False)
        given = query, key, value, _additive(mask, query.dtype)
        output, pattern = _own_eager(module)(module, *given, **options)
        if lost is not None:
            output, pattern = _without(lost, value, output, pattern)
        if show is not None:
            version = None if pattern.is_inference() else pattern._version
            used = show(pattern)
            if used is not pattern or version is None or pattern._version != version:
                output, pattern = _product(used, value), used
        return change.replace(output), pattern

    listener = _listener.get()
    return attend(query, key, value) if listener is None else listener(module, attend, query, key, value)


def _beside_sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    from transformers import AttentionInterface

    change = _change_of(module)
    # A call without a mask leaves it to the kernel to know that its layer is causal.
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    mask, lost = _cut(change, query, key, attention_mask, causal=causal)

    def rows_at(index: Tensor, documents: slice) -> Tensor:
        def at(table: Tensor) -> Tensor:
            return take_rows(table if len(table) == 1 else table[documents], index)

        inside = dict(options)
        if isinstance(bias := options.get("position_bias"), Tensor):
            inside["position_bias"] = at(bias)
        masked = None if mask is None else _additive(at(mask), query.dtype)
        # Without columns of values: only the pattern is wanted, not its product with them.
        given = at(query), key[documents], value[documents][..., :0]
        rows: Tensor = _own_eager(module)(module, *given, masked, **inside)[1]
        return rows if lost is None else rows.masked_fill(at(lost), 0)

    if (listener := _listener.get()) is not None:
        listener(module, rows_at, attention_mask, (query.shape[2], key.shape[2]))
    output, _ = AttentionInterface()["sdpa"](module, query, key, value, mask, **options)
    if lost is not None:
        _, pattern = _own_eager(module)(module, query, key, value, _additive(mask, query.dtype), **options)
        output, _ = _without(lost, value, output, pattern)
    return change.replace(output), None


def _cut(
    change: Change, query: Tensor, key: Tensor, mask: Tensor | None, *, causal: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The mask of a call without the edges that are cut before the softmax, and what is taken out of its pattern."""
    shape = torch.Size((*query.shape[:3], key.shape[2]))
    lost = change.edges("weights", shape, query.device)
    if (cut := change.edges("scores", shape, query.device)) is not None:
        mask, emptied = cut_mask(cut, mask, causal=causal)
        lost = emptied.expand(-1, -1, -1, shape[3]) if lost is None else lost | emptied
    return mask, lost if lost is not None and bool(lost.any()) else None


def _without(lost: Tensor, value: Tensor, output: Tensor, pattern: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs and the pattern of a call without some of its weights; other rows stay as they are, bit for bit."""
    used = pattern.masked_fill(lost, 0)
    rows = lost.any(-1).transpose(1, 2)[..., None]
    return torch.where(rows, _product(used, value), output), used


def _product(pattern: Tensor, value: Tensor) -> Tensor:
    """What heads put out with a pattern, [batch, query, head, d_head]."""
    groups = pattern.shape[1] // value.shape[1]
    return (pattern @ value.repeat_interleave(groups, dim=1)).transpose(1, 2).contiguous()


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A mask as eager attention takes it: added to the scores."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)


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


@contextmanager
def attention_implementation(model: nn.Module, name: str, listener: Listener | None = None) -> Iterator[None]:
    """Context manager: every part of a Hugging Face model attends by a function, whose calls a listener sees.

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
