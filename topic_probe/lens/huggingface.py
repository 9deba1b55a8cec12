"""Reads the attention of Hugging Face models, whatever their architecture, without an adapter for each.

Hugging Face models hand their queries, keys and values to an attention function that is looked up by name. Two such
functions are registered here. *Eager* lets the model's own eager code compute the pattern and shows it to whoever is
listening, who may change it. *Beside sdpa* lets the model run on PyTorch's fused kernel, which never forms a pattern,
and has the model's own eager code compute only the rows that were asked for. Models that bypass the look-up
(DeBERTa-v2, MPNet, GPT-J) return their patterns instead (``output_attentions=True``).

Nothing is assumed about a model: `probe` runs it on a few tokens, sees which calls of attention happen in which
order, and checks them against the patterns that the model itself returns, and both functions against each other,
before any of it is used. Every later pass is held to the calls that were seen then.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, wraps
from itertools import chain, pairwise
from typing import Any
from warnings import warn

import torch
from torch import Tensor, nn

from topic_probe.lens.changes import NO_CHANGE, Change, cut_mask
from topic_probe.lens.running import StillRunningError, configs, evaluating, n_writes, without_traces
from topic_probe.lens.sites import (
    SIDES,
    TRIAL_LENGTH,
    TRIAL_TARGET,
    Cells,
    Columns,
    Findings,
    Inputs,
    Site,
    check_pattern,
    findings,
    some_tokens,
    take_rows,
    visible_keys,
)

EAGER = "topic_probe_eager"
BESIDE_SDPA = "topic_probe_beside_sdpa"


@dataclass(frozen=True)
class RowsCall:
    """A call of attention on the fused kernel, the rows of whose pattern are computed where they are asked for.

    Attributes:
        module: what attends.
        rows_at: gives the pattern's rows at some queries [document, row] of some documents.
        mask: the mask that the call has by itself.
        shape: how many queries and keys it has.
    """

    module: nn.Module
    rows_at: Callable[[Tensor, slice], Tensor]
    mask: Tensor | None
    shape: tuple[int, int]


@dataclass(frozen=True)
class Listener:
    """Whoever follows the attention calls of one forward pass.

    Attributes:
        pattern: sees the module and the whole pattern [batch, head, query, key]; what it returns is used instead.
        attend: makes every call that forms a pattern, given the function and its arguments: what goes in and comes out
            is its own to change.
        rows: sees every call on the fused kernel.
    """

    pattern: Callable[[nn.Module, Tensor], Tensor] | None = None
    attend: Callable[..., tuple[Tensor, Tensor]] | None = None
    rows: Callable[[RowsCall], None] | None = None


_listener: ContextVar[Listener | None] = ContextVar("topic_probe_listener", default=None)


def _listened(function: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """An attention function whose calls are made by whoever is listening, where they want that."""

    @wraps(function)
    def call(*given: Any, **options: Any) -> tuple[Tensor, Tensor]:
        listener = _listener.get()
        if listener is None or listener.attend is None:
            return function(*given, **options)
        return listener.attend(function, *given, **options)

    return call


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
    mask, lost = _cut(change, query, key, attention_mask, causal=False)
    output, pattern = _own_eager(module)(module, query, key, value, _additive(mask, query.dtype), **options)
    if lost is not None:
        output, pattern = _without(lost, value, output, pattern)
    output, pattern = _shown(module, value, output, pattern)
    return change.replace(output), pattern


def _shown(module: nn.Module, value: Tensor, output: Tensor, pattern: Tensor) -> tuple[Tensor, Tensor]:
    """Shows the pattern of a call to whoever is listening; what goes on is computed anew where they changed it."""
    listener = _listener.get()
    if listener is None or listener.pattern is None:
        return output, pattern
    version = None if pattern.is_inference() else pattern._version
    used = listener.pattern(module, pattern)
    if used is pattern and version is not None and pattern._version == version:
        return output, pattern
    return _product(used, value), used


def _product(pattern: Tensor, value: Tensor) -> Tensor:
    """What heads put out with a pattern, [batch, query, head, d_head]."""
    groups = pattern.shape[1] // value.shape[1]
    return (pattern @ value.repeat_interleave(groups, dim=1)).transpose(1, 2).contiguous()


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


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A mask as eager attention takes it: added to the scores."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)


def own_function(implementation: str | None) -> Callable[..., Any] | None:
    """The attention function that a user has registered under a name; None for those that transformers brings."""
    from transformers import AttentionInterface

    function = AttentionInterface().get(implementation)
    package = (getattr(function, "__module__", None) or "").partition(".")[0]
    return None if package in ("transformers", __name__.partition(".")[0]) else function


def _showing(implementation: str | None) -> str:
    """The name of the attention that shows what a configuration has its model compute: eager, or a user's function."""
    from transformers import AttentionInterface, AttentionMaskInterface

    function = own_function(implementation)
    if function is None:
        return EAGER

    def shown(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
    ) -> tuple[Tensor, Tensor]:
        output, pattern = function(module, query, key, value, attention_mask, **options)
        if pattern is None:
            raise ValueError(
                f"the attention function {implementation!r} returns no pattern: have it return its output and its "
                "pattern [batch, head, query, key], or load the model with attn_implementation='eager' to measure what "
                "it is with eager attention"
            )
        return _shown(module, value, output, pattern)

    name, masks = f"{EAGER} {implementation}", AttentionMaskInterface()
    AttentionInterface.register(name, _listened(shown))
    # Without a mask function of its own, its model has no mask, and none is what it is measured with.
    AttentionMaskInterface._global_mapping.pop(name, None)
    if implementation in masks:
        AttentionMaskInterface.register(name, masks[implementation])
    return name


def _beside_sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    from transformers import AttentionInterface

    change = _change_of(module)
    # A call without a mask leaves it to the kernel to know that its layer is causal.
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    mask, lost = _cut(change, query, key, attention_mask, causal=causal)
    listener = _listener.get()
    if listener is not None and listener.rows is not None:

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

        listener.rows(RowsCall(module, rows_at, attention_mask, (query.shape[2], key.shape[2])))
    output, _ = AttentionInterface()["sdpa"](module, query, key, value, mask, **options)
    if lost is not None:
        _, pattern = _own_eager(module)(module, query, key, value, _additive(mask, query.dtype), **options)
        output, _ = _without(lost, value, output, pattern)
    return change.replace(output), None


@cache
def register_attention() -> None:
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

    AttentionInterface.register(EAGER, _listened(_eager))
    AttentionMaskInterface.register(EAGER, eager_mask)
    AttentionInterface.register(BESIDE_SDPA, _beside_sdpa)
    AttentionMaskInterface.register(BESIDE_SDPA, full_mask)


@contextmanager
def attention_implementation(model: nn.Module, name: str, listener: Listener | None = None) -> Iterator[None]:
    """Switches every part of a Hugging Face model to an attention implementation, and back afterwards.

    Attention calls inside the block are shown to the listener. Eager attention that shows its pattern gives way to the
    function that a user has registered and a configuration names.

    The configuration is what attention layers and mask functions look at in every forward pass, and encoder and decoder
    may have one each.
    """
    switched = configs(model)
    before = [config._attn_implementation_internal for config in switched]
    token = _listener.set(listener)
    try:
        for config, own in zip(switched, before, strict=True):
            config._attn_implementation_internal = _showing(own) if name == EAGER else name
        yield
    finally:
        _listener.reset(token)
        for config, implementation in zip(switched, before, strict=True):
            config._attn_implementation_internal = implementation


def takes_decoder_ids(model: nn.Module) -> bool:
    """Whether a model has a decoder beside its encoder that needs tokens of its own."""
    return "decoder_input_ids" in inspect.signature(model.forward).parameters


def decoder_start(config: Any) -> int:
    """The token that a decoder starts with, by a model's configuration."""
    for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
        if (value := getattr(config, name, None)) is not None:
            return int(value)
    return 0


def is_peft(model: nn.Module) -> bool:
    """Whether a model is one of PEFT's around a Hugging Face model."""
    return hasattr(model, "peft_config") and hasattr(model, "get_base_model")


def trunk(model: nn.Module) -> nn.Module:
    """The model without its head, which would compute scores over the vocabulary that nobody looks at.

    Adapters that PEFT has put into its layers stay there.
    """
    if is_peft(model):
        model = model.get_base_model()  # type: ignore[operator]
    base = getattr(model, "base_model", model)
    return base if isinstance(base, nn.Module) else model


def arguments(model: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """The arguments of a forward pass; masks are always among them, because ids do not say what is padding."""
    parameters = inspect.signature(model.forward).parameters
    given: dict[str, Any] = {"input_ids": inputs.ids, "attention_mask": inputs.mask.long()}
    if takes_decoder_ids(model):
        target_ids, target_mask = inputs.side("target")
        given |= {"decoder_input_ids": target_ids, "decoder_attention_mask": target_mask.long()}
    if "use_cache" in parameters:
        given["use_cache"] = False
    return given


def run(model: nn.Module, inputs: Inputs, **options: Any) -> Any:
    """One forward pass of a Hugging Face model, which leaves nothing on it."""
    with without_traces(model):
        return model(**arguments(model, inputs), **options)


def run_as_it_is(model: nn.Module, inputs: Inputs) -> Any:
    """The answer of a model that nothing was done to; it comes back as it was.

    Raises:
        ValueError: where the model changes itself as it runs, so that what it computes depends on what it has read.
    """
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    tensors = [*model.named_parameters(), *model.named_buffers()]
    before = [n_writes(tensor) for _, tensor in tensors]
    with without_traces(model) as replaced:
        answer = model(**arguments(model, inputs))
    written = [pair for pair, writes in zip(tensors, before, strict=True) if n_writes(pair[1]) != writes]
    if all(name in kept for name, _ in written):
        for name, buffer in written:
            buffer.copy_(kept[name])
    if replaced or written:
        raise ValueError(_changes_itself(model, inputs, replaced, [name for name, _ in written]))
    return answer


def _changes_itself(model: nn.Module, inputs: Inputs, replaced: list[str], written: list[str]) -> str:
    name = type(model).__name__
    if written:
        return (
            f"{name} writes on its own tensors when it runs ({_some(written)}), so that no two passes are of the "
            "same model; measure a copy in which it does not"
        )
    cure = "give it a configuration with which it does not"
    if hasattr(getattr(model, "config", None), "attention_type"):
        cure = (
            "load it with attention_type='original_full', which is one pattern over all pairs at every length"
        )
    return (
        f"{name} puts other modules in the place of its own when a text is as short as {inputs.ids.shape[1]} tokens "
        f"({_some(replaced)}), so that what it computes depends on the length of texts: {cure}"
    )


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


class CallCounter:
    """Numbers the attention calls of one forward pass, held to the order that the trial run has seen."""

    def __init__(self, modules: tuple[nn.Module, ...]) -> None:
        self.modules, self.number = modules, -1

    def next(self, module: nn.Module) -> int:
        """The number of this call.

        Raises:
            ValueError: where it comes from another layer than in the trial run.
        """
        self.number += 1
        if self.number >= len(self.modules) or self.modules[self.number] is not module:
            raise ValueError(
                f"attention call {self.number} comes from another layer than in the trial run; a model whose layers "
                "are skipped or reordered from pass to pass cannot be measured layer by layer"
            )
        return self.number

    def finish(self) -> None:
        """Raises ValueError where fewer layers attended than in the trial run."""
        if self.number + 1 != len(self.modules):
            raise ValueError(f"only {self.number + 1} of {len(self.modules)} attention calls were seen")


@dataclass(frozen=True, kw_only=True)
class Probe(Findings):
    """What is found of a Hugging Face model, its sites in the order of the attention calls of a forward pass.

    Attributes:
        modules: the module behind each call, to notice when a later pass differs.
        through: "calls" where attention is seen as it is computed, "returned" where the model only hands patterns back
            at the end (changes to them then have no effect).
        beside_sdpa: whether the fused kernel may run with single rows computed beside it; False where the model
            does not support it or its rows differ from the eager ones.
        reason: why no attention can be read; empty where it can.
    """

    modules: tuple[nn.Module, ...] = ()
    through: str = "calls"
    beside_sdpa: bool = False
    reason: str = ""

    def read_rows(
        self,
        model: nn.Module,
        inputs: Inputs,
        rows: Mapping[str, Tensor],
        columns: Mapping[str, Columns] | None,
        parts: Sequence[slice],
        read: Callable[..., None],
    ) -> None:
        """Runs the trunk on the fused kernel; ``read`` is given each site with its wanted rows and visible keys.

        Of some columns it is given `Cells` in place of rows. It is given some documents after the other; calls that
        have one mask have one object of visible keys.
        """
        calls, known = CallCounter(self.modules), dict[object, tuple[Tensor | None, list[Tensor]]]()

        def show(call: RowsCall) -> None:
            site = self.sites[calls.next(call.module)]
            queries, keys = SIDES[site.stack]
            index = rows[queries].to(inputs.mask.device)
            kind = id(call.mask), call.shape, site.stack
            if kind not in known:  # with the mask, so that no other has its id
                visible = visible_keys(call.mask, len(index), *call.shape).to(index.device)
                visible = visible.gather(1, index[:, :, None].expand(-1, -1, call.shape[1]))
                known[kind] = call.mask, [visible[part] for part in parts]
            for part, visible in zip(parts, known[kind][1], strict=True):
                whole = call.rows_at(index[part], part)
                read(site, whole if columns is None else Cells.of_rows(whole, columns[keys], part), visible)

        with attention_implementation(model, BESIDE_SDPA, Listener(rows=show)):
            run(trunk(model), inputs)
        calls.finish()


def settings_of(model: nn.Module) -> list[Any]:
    """What a probe of a model depends on besides its weights, in a form that can be compared with that of later.

    Configurations with their attention functions, plain settings of modules (but for their mode), and hooks on these.
    """
    found: list[Any] = []
    for config in configs(model):
        implementation = config._attn_implementation_internal
        found += [config.to_dict(), implementation, own_function(implementation)]
    for module in model.modules():
        plain = {
            name: value for name, value in vars(module).items() if isinstance(value, bool | int | float | str)
        }
        # Every hook that was ever put on a module has a number of its own.
        found += [plain | {"training": None}, (*module._forward_hooks, *module._forward_pre_hooks)]
    return found


# Editing the heads of a model.


class Edits:
    """What is done to the attention calls of a model, pass after pass."""

    def __init__(self, modules: tuple[nn.Module, ...], changes: Callable[[int], Change]) -> None:
        self.modules, self.changes = modules, changes
        self.begin()

    def begin(self, *_: Any) -> None:
        """Counts calls from the first again, when a pass begins: the one before may have broken off."""
        self.calls = CallCounter(self.modules)

    def next(self, module: nn.Module) -> Change:
        """What is done to this call."""
        return self.changes(self.calls.next(module))


# By module that attends.
_edits: ContextVar[Mapping[nn.Module, Edits]] = ContextVar("topic_probe_edits", default={})  # noqa: B039


def _change_of(module: nn.Module) -> Change:
    edits = _edits.get().get(module)
    return NO_CHANGE if edits is None else edits.next(module)


def is_edited(model: nn.Module) -> bool:
    """Whether this is within a block that edits the heads of a Hugging Face model."""
    edits = _edits.get()
    return bool(edits) and any(module in edits for module in model.modules())


@contextmanager
def unedited() -> Iterator[None]:
    """A block in which every model is what it is outside of the blocks that edit heads."""
    token = _edits.set({})
    try:
        yield
    finally:
        _edits.reset(token)


@dataclass(frozen=True)
class Way:
    """A way in which the heads of a model may be edited.

    Attributes:
        through: the attention function inside which they are, or "hooks" for the hook points of TransformerLens.
        sites: where the calls of that function are, in their order.
        modules: the names of the modules behind these calls.
    """

    through: str
    sites: tuple[Site, ...] = ()
    modules: tuple[str, ...] = ()


def ways_inside(model: nn.Module, inputs: Inputs, sites: tuple[Site, ...]) -> Iterator[Way]:
    """The ways to edit heads inside the attention function of a model; none where not every site calls it.

    On the fused kernel where the model has it: what it computes there is for the trial to see.
    """
    register_attention()
    calls, _ = _calls(model, trunk(model), inputs)
    if not calls:
        return
    found = _sites_of_calls(model, calls, inputs)
    if set(found) != set(sites):
        return
    names = {module: name for name, module in model.named_modules()}
    modules = tuple(names[module] for module, _ in calls)
    if getattr(model, "_supports_sdpa", False):
        yield Way(BESIDE_SDPA, found, modules)
    yield Way(EAGER, found, modules)


@contextmanager
def editing_inside(model: nn.Module, way: Way, changes: Callable[[Site], Change]) -> Iterator[None]:
    """Edits the heads of a Hugging Face model in every forward pass inside the block."""
    modules = tuple(model.get_submodule(name) for name in way.modules)
    edits = Edits(modules, lambda number: changes(way.sites[number]))
    begins = [part.register_forward_pre_hook(edits.begin) for part in dict.fromkeys((model, trunk(model)))]
    token = _edits.set({**_edits.get(), **dict.fromkeys(modules, edits)})
    try:
        with attention_implementation(model, way.through):
            yield
    finally:
        _edits.reset(token)
        for handle in begins:
            handle.remove()


# Finding out, on a few tokens, what can be read of a model.


def trial_inputs(model: nn.Module) -> Inputs:
    """The tokens of the trial run: more of them than a window, chunk or block of the model holds, up to a limit."""
    table = model.get_input_embeddings().weight  # type: ignore[operator]
    limit = context_length(model)
    length = _reach(model) + TRIAL_LENGTH
    inputs = some_tokens(table.shape[0], table.device, length if limit is None else min(length, limit))
    if not takes_decoder_ids(trunk(model)):
        return inputs
    target = slice(0, TRIAL_TARGET - TRIAL_LENGTH)
    return Inputs(inputs.ids, inputs.mask, inputs.ids[:, target].clone(), inputs.mask[:, target].clone())


# A trial on more tokens than this would no longer be a matter of moments.
_LONGEST_TRIAL = 256


def _reach(model: nn.Module) -> int:
    """The widest window, chunk or block that configurations speak of and a trial can go beyond; 0 without one."""
    named = [
        value for config in configs(model) for name, value in vars(config).items() if _WINDOW.search(name)
    ]
    sizes = chain.from_iterable(value if isinstance(value, list | tuple) else [value] for value in named)
    return max((size for size in sizes if type(size) is int and 0 < size < _LONGEST_TRIAL), default=0)


_WINDOW = re.compile("window|chunk|block_size|local_attention|local_radius")


def context_length(model: nn.Module) -> int | None:
    """How many tokens a model can take, as its configuration says; None where nothing limits it."""
    config = getattr(model, "config", None)
    limit = getattr(config, "max_position_embeddings", None)
    # T5 has n_positions, too, but no limit.
    if limit is None and not hasattr(config, "relative_attention_num_buckets"):
        limit = getattr(config, "n_positions", getattr(config, "max_seq_len", None))  # MPT has the second
    if limit is None or limit < 1:
        return None
    # RoBERTa numbers positions from the one behind the padding id, so that many rows of its table are never used.
    tables = [module for name, module in model.named_modules() if name.endswith("position_embeddings")]
    unused = [table.padding_idx + 1 for table in tables if getattr(table, "padding_idx", None) is not None]
    return int(limit) - max(unused, default=0)


Calls = list[tuple[nn.Module, Tensor]]


def probe(model: nn.Module) -> Probe:
    """What can be read of a Hugging Face model's attention, and how; found out by running it.

    Where nothing can be read, the answer has no sites and says why.
    """
    register_attention()
    try:
        with evaluating(model):
            return _probe(model, trunk(model), trial_inputs(model))
    except StillRunningError:
        raise
    except Exception as error:  # a model may fail in any way on inputs that others take
        return Probe(
            reason=str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        )


def _probe(model: nn.Module, base: nn.Module, inputs: Inputs) -> Probe:
    as_it_is = run_as_it_is(base, inputs)
    calls, answer = _calls(model, base, inputs)
    returned, returning = _returned(model, base, inputs)
    if not calls:
        return _probe_of_returned(model, base, inputs, returned, as_it_is, returning)
    patterns = [pattern for _, pattern in calls]
    sites = _sites_of_calls(model, calls, inputs)
    if not _agree(sites, patterns, returned, inputs):
        try:
            return _probe_of_returned(model, base, inputs, returned, as_it_is, returning)
        except ValueError:
            check_outputs(base, as_it_is, answer, inputs)
            warn(
                f"{type(base).__name__} has attention that is not one pattern over all pairs of positions (blocks, "
                "recurrence); only its other attention is read",
                stacklevel=2,
            )
    modules = tuple(module for module, _ in calls)
    beside = _calls_beside_sdpa(model, inputs, as_it_is)
    shown = dict(zip(sites, patterns, strict=True))
    fused = [module for module, *_ in beside] == [*modules] and _show_the_same(beside, shown, sites, inputs)
    note = check_outputs(base, as_it_is, answer, inputs)
    known = Probe(sites=sites, modules=modules, beside_sdpa=fused, note=note)
    alone = [[pattern for _, pattern in _calls(model, base, inputs.document(number))[0]] for number in (0, 1)]
    return _judged(known, patterns, alone, inputs, base)


def _calls(model: nn.Module, base: nn.Module, inputs: Inputs) -> tuple[Calls, Any]:
    """The attention calls of a pass, with its answer."""
    calls: Calls = []

    def keep(module: nn.Module, pattern: Tensor) -> Tensor:
        calls.append((module, pattern.detach()))
        return pattern

    with attention_implementation(model, EAGER, Listener(pattern=keep)):
        return calls, run(base, inputs)


def _returned(model: nn.Module, base: nn.Module, inputs: Inputs) -> tuple[list[Any], Any]:
    """The patterns that a model returns, with its answer; none where it does not return them."""
    own = any(own_function(config._attn_implementation_internal) for config in configs(model))
    with suppress(Exception), attention_implementation(model, EAGER if own else "eager"):
        # Models without patterns refuse to return them in many ways.
        answer = run(base, inputs, output_attentions=True, return_dict=True)
        return _attentions(base, answer), answer
    return [], None


def _probe_of_returned(
    model: nn.Module, base: nn.Module, inputs: Inputs, returned: list[Any], as_it_is: Any, returning: Any
) -> Probe:
    patterns = _checked(base, returned)
    note = check_outputs(base, as_it_is, returning, inputs)
    sites = _name_sites(patterns, inputs, [None] * len(patterns))
    alone = [_returned(model, base, inputs.document(number))[0] for number in (0, 1)]
    return _judged(Probe(sites=sites, through="returned", note=note), patterns, alone, inputs, base)


def _judged(
    known: Probe, patterns: list[Tensor], alone: list[list[Tensor]], inputs: Inputs, base: nn.Module
) -> Probe:
    """A probe with what its patterns show, each of them checked."""
    name = type(base).__name__
    dark = [check_pattern(*shown, inputs, whose=name) for shown in zip(known.sites, patterns, strict=True)]
    together, *single = (dict(zip(known.sites, parts, strict=True)) for parts in (patterns, *alone))
    found = findings(together, single, inputs, dark=all(dark), note=known.note)
    return replace(known, **vars(found), beside_sdpa=known.beside_sdpa and all(dark))


def check_outputs(base: nn.Module, as_it_is: Any, answer: Any, inputs: Inputs) -> str:
    """Compares what a model computes while it is read with what it computes as it is.

    Returns:
        How far they are apart where the rounding of half precision may be the reason, to be told; else nothing.

    Raises:
        ValueError: where they are the outputs of two models.
    """
    difference = output_difference(as_it_is, answer, inputs)
    dtype = next(base.parameters()).dtype
    if within_tolerance(base, difference):
        return ""
    own = {config._attn_implementation_internal for config in configs(base)}
    message = (
        f"{type(base).__name__} computes something else as it is ({', '.join(sorted(map(str, own)))} attention) than "
        f"with the attention that shows its patterns: its outputs differ by {difference:.0e} of their length"
    )
    if dtype in (torch.float32, torch.float64):
        raise ValueError(
            f"{message}. To measure what it is with eager attention, load it with attn_implementation='eager'"
        )
    return message


# How far outputs may be apart, of their length. What is more may still be rounding in half precision.
_OUTPUT_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 3e-2}


def within_tolerance(base: nn.Module, difference: float) -> bool:
    """Whether outputs that far apart are those of one model."""
    return not difference > _OUTPUT_TOLERANCE.get(next(base.parameters()).dtype, 1e-1)


def output_difference(one: Any, other: Any, inputs: Inputs) -> float:
    """How far two answers are apart at the worst real position, as a share of the vector there."""
    shares = [torch.zeros(1)]
    for ours, theirs in zip(real_vectors(one, inputs), real_vectors(other, inputs), strict=False):
        length = ours.norm(dim=-1).clamp_min(torch.finfo(ours.dtype).tiny)
        shares.append(((ours - theirs).norm(dim=-1) / length).cpu())
    return float(torch.cat(shares).max())


def real_vectors(answer: Any, inputs: Inputs) -> Iterator[Tensor]:
    """What the answer of a model holds for every real position."""
    masks = [inputs.mask] if inputs.target_mask is None else [inputs.mask, inputs.target_mask]
    for value in answer.values() if isinstance(answer, Mapping) else answer or ():
        for mask in masks:
            if isinstance(value, Tensor) and value.is_floating_point() and value.shape[:-1] == mask.shape:
                yield value[mask].double()


def _agree(sites: tuple[Site, ...], called: list[Tensor], returned: list[Any], inputs: Inputs) -> bool:
    """Whether the calls of attention are what a model returns.

    Some models bypass the interface in a part of their layers, some call it twice in each; a model that returns
    nothing contradicts nothing.
    """
    order = {"self": 0, "encoder": 0, "decoder": 1, "cross": 2}
    by_stack = sorted(range(len(sites)), key=lambda number: order[sites[number].stack])
    if not returned:
        return True
    return len(returned) == len(called) and all(
        isinstance(pattern, Tensor) and _same_pattern(called[number], pattern, inputs.masks(sites[number])[0])
        for number, pattern in zip(by_stack, returned, strict=True)
    )


def _same_pattern(pattern: Tensor, reference: Tensor, real: Tensor) -> bool:
    """Whether two patterns are equal in the rows of real queries, to rounding."""
    if pattern.shape != reference.shape:
        return False
    tolerance = 1e-4 if pattern.dtype in (torch.float32, torch.float64) else 2e-2
    rows = real[:, None, :, None].expand(pattern.shape)
    return torch.allclose(pattern[rows], reference[rows], rtol=0, atol=tolerance, equal_nan=True)


def beside_sdpa(
    model: nn.Module, inputs: Inputs, shown: Mapping[Site, Tensor], as_it_is: Any
) -> Probe | None:
    """How to read rows beside the fused kernel; None where they are not those of the patterns that a host has shown.

    Args:
        model: the model inside the host.
        inputs: what both were run on.
        shown: the pattern of every site.
        as_it_is: the answer of the model that nothing was done to.
    """
    register_attention()
    beside = _calls_beside_sdpa(model, inputs, as_it_is)
    try:
        sites = _sites_of_calls(model, [(module, rows) for module, rows, _ in beside], inputs)
    except ValueError:  # a call that belongs to no site
        return None
    if set(sites) != shown.keys() or not _show_the_same(beside, shown, sites, inputs):
        return None
    return Probe(sites=sites, modules=tuple(module for module, *_ in beside), beside_sdpa=True)


def _calls_beside_sdpa(
    model: nn.Module, inputs: Inputs, as_it_is: Any
) -> list[tuple[nn.Module, Tensor, Tensor]]:
    """The attention calls of a pass on the fused kernel: module, all rows of the pattern, and what these may see.

    None where the model has no such kernel, or computes something else on it.
    """
    beside: list[tuple[nn.Module, Tensor, Tensor]] = []

    def keep(call: RowsCall) -> None:
        every = torch.arange(call.shape[0], device=inputs.ids.device).expand(1, -1)
        # One document after the other, as they are read later.
        rows = torch.cat([call.rows_at(every, slice(number, number + 1)) for number in (0, 1)])
        beside.append((call.module, rows.detach(), visible_keys(call.mask, 2, *call.shape)))

    if not getattr(model, "_supports_sdpa", False):
        return []
    try:
        with attention_implementation(model, BESIDE_SDPA, Listener(rows=keep)):
            check_outputs(trunk(model), as_it_is, run(trunk(model), inputs), inputs)
    except (
        Exception
    ):  # layers that need what the kernel cannot do (a cap on the scores, say) may refuse in any way
        return []
    return beside


def _show_the_same(
    beside: list[tuple[nn.Module, Tensor, Tensor]],
    shown: Mapping[Site, Tensor],
    sites: tuple[Site, ...],
    inputs: Inputs,
) -> bool:
    """Whether rows beside the fused kernel, and what they may see, are those of whole patterns."""
    real = [inputs.masks(site)[0] for site in sites]
    return all(
        _same_pattern(rows, shown[site], queries) and _shows(visible, shown[site], queries)
        for (_, rows, visible), site, queries in zip(beside, sites, real, strict=True)
    )


def _shows(visible: Tensor, pattern: Tensor, real: Tensor) -> bool:
    """Whether the mask of a call is what a pattern shows; a model may mask by itself, whatever it is handed."""
    shown = pattern.transpose(1, 2)[real]
    same = torch.equal((shown > 0).any(1), visible.to(shown.device)[real])
    return same or not bool(torch.isfinite(shown).all())


def returned_patterns(base: nn.Module, answer: Any) -> list[Tensor]:
    """The patterns in a model's answer, in the order encoder, decoder, cross.

    Raises:
        ValueError: where there are none, or something that is not one pattern for every pair of positions.
    """
    return _checked(base, _attentions(base, answer))


def _attentions(base: nn.Module, answer: Any) -> list[Any]:
    names: tuple[str, ...] = ("attentions",)
    if takes_decoder_ids(base):
        names = ("encoder_attentions", "decoder_attentions", "cross_attentions")
    return [pattern for name in names for pattern in (getattr(answer, name, None) or ())]


def _checked(base: nn.Module, returned: list[Any]) -> list[Tensor]:
    if not returned or any(not isinstance(pattern, Tensor) or pattern.ndim != 4 for pattern in returned):
        raise ValueError(
            f"{type(base).__name__} shows no attention pattern: it neither calls the attention interface of "
            "transformers nor returns [batch, head, query, key] patterns with output_attentions=True"
        )
    return returned


_NUMBER = re.compile(r"\.(\d+)\.")


def _sites_of_calls(model: nn.Module, calls: Calls, inputs: Inputs) -> tuple[Site, ...]:
    names = {id(module): name for name, module in model.named_modules()}
    matches = [_NUMBER.search(f".{names.get(id(module), '')}.") for module, _ in calls]
    patterns = [pattern for _, pattern in calls]
    return _name_sites(patterns, inputs, [int(match[1]) if match else None for match in matches])


def _name_sites(patterns: list[Tensor], inputs: Inputs, numbers: list[int | None]) -> tuple[Site, ...]:
    """Sites in the order of their calls, told apart by the numbers of queries and keys.

    Layers take their numbers from the names of their modules, because not every layer need attend. Where these do
    not count upwards (layers that share weights are one module), the calls themselves are counted.
    """
    stacks = [_stack(pattern.shape[-2], pattern.shape[-1], inputs) for pattern in patterns]
    sites: dict[int, Site] = {}
    for stack in set(stacks):
        places = [place for place, other in enumerate(stacks) if other == stack]
        known = [number for place in places if (number := numbers[place]) is not None]
        ascending = len(known) == len(places) and all(lower < higher for lower, higher in pairwise(known))
        for place, layer in zip(places, known if ascending else range(len(places)), strict=True):
            sites[place] = Site(stack, layer, _HOOK_NAMES[stack].format(layer))
    return tuple(sites[place] for place in range(len(stacks)))


_HOOK_NAMES = {
    "self": "blocks.{}.attn.hook_pattern",
    "encoder": "encoder_blocks.{}.attn.hook_pattern",
    "decoder": "decoder_blocks.{}.self_attn.hook_pattern",
    "cross": "decoder_blocks.{}.cross_attn.hook_pattern",
}


def _stack(queries: int, keys: int, inputs: Inputs) -> str:
    source = inputs.ids.shape[1]
    if inputs.target_ids is None:
        names = {(source, source): "self"}
    else:
        target = inputs.target_ids.shape[1]
        names = {(source, source): "encoder", (target, target): "decoder", (target, source): "cross"}
    if (queries, keys) not in names:
        raise ValueError(
            f"an attention call has {queries} queries and {keys} keys for {source} tokens: this kind of "
            "attention (blocks, pooling, a cache) cannot be assigned to pairs of words"
        )
    return names[queries, keys]
