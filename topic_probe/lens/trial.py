"""The one trial that a model passes before its attention is measured: a few tokens, and four comparisons.

1. Patterns that its calls of attention show are those that the model itself returns.
2. Rows computed beside PyTorch's fused kernel, and which keys they see, are those of whole patterns; otherwise
   attention is read from whole patterns.
3. What the model puts out while it is read is what it puts out as it is.
4. A document is by itself what it is in a batch beside padding; otherwise documents do not share batches.

Nothing is assumed of an architecture. Every later pass is held to the calls of attention that were seen here.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from typing import Any
from warnings import warn

import numpy as np
import torch
from torch import Tensor, nn

from topic_probe.lens.interface import BESIDE_SDPA, EAGER, CallCounter, Calls, attention_implementation
from topic_probe.lens.running import configs, evaluating, run, takes_decoder_ids, trunk
from topic_probe.lens.sites import (
    EVERY_BATCH,
    TOLERANCE,
    TRIAL_LENGTH,
    TRIAL_TARGET,
    Inputs,
    Sharing,
    Site,
    batch_error,
    check_pattern,
    looks_ahead,
    some_tokens,
    visible_keys,
)

Shown = Mapping[Site, Tensor]
# Runs a model on inputs; gives the pattern of every site, and the answer of the model.
Show = Callable[[Inputs], tuple[Shown, Any]]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a trial has shown of the attention of a model.

    Attributes:
        sites: where it attends, by stack and layer.
        n_heads: number of heads at every site.
        causal: of every site, whether no query attends to a later position.
        sharing: which documents may share a batch.
        tap: the calls beside which rows are computed on the fused kernel; None where whole patterns are read.
        row_error: how far a row of a document by itself is from summing to one, at most.
        batch_error: how far a document in a batch is from itself, at most.
        note: how far the outputs of a model in half precision are from those of it as it is, where that is told.
        edited: what a trial of edits has said since: why edges cannot be cut.
    """

    sites: tuple[Site, ...]
    n_heads: tuple[int, ...]
    causal: tuple[bool, ...]
    sharing: Sharing
    tap: Calls | None
    row_error: float
    batch_error: float
    note: str
    edited: list[str] = field(default_factory=list, repr=False)

    @property
    def is_causal(self) -> bool:
        """Whether every position of a document sees earlier ones only; decoders behind an encoder are not meant."""
        own = [causal for site, causal in zip(self.sites, self.causal, strict=True) if site.stack == "self"]
        return bool(own) and all(own)


def tried(show: Show, inputs: Inputs, *, name: str, inside: nn.Module | None, as_it_is: Any) -> Trial:
    """The trial of a model whose patterns are shown in one way, on a whole document and a padded one.

    Args:
        show: the way.
        inputs: the documents.
        name: what the model is called where it is refused.
        inside: the Hugging Face model, None where there is none.
        as_it_is: the answer of its trunk that nothing was done to.

    Raises:
        ValueError: where what is shown are no patterns, or the model computes something else meanwhile.
    """
    shown, answer = show(inputs)
    dark = {site: check_pattern(site, pattern, inputs, whose=name) for site, pattern in shown.items()}
    note, tap = "", None
    if inside is not None:
        note = check_outputs(trunk(inside), as_it_is, answer, inputs)
        tap = _beside_sdpa(inside, inputs, shown, as_it_is) if all(dark.values()) else None
    alone = [show(inputs.document(number))[0] for number in (0, 1)]
    rows = [(own.double().sum(-1) - 1).abs().max() for each in alone for own in each.values()]
    # Of a whole document and a padded one. The maximum of tensors is NaN if one of them is.
    whole, padded = (
        float(
            torch.stack([batch_error(site, shown[site], each[site], inputs, number) for site in shown]).max()
        )
        for number, each in enumerate(alone)
    )
    sites = in_order(shown)
    return Trial(
        sites=sites,
        n_heads=tuple(shown[site].shape[1] for site in sites),
        causal=tuple(not looks_ahead(site, shown[site], inputs) for site in sites),
        sharing=_sharing(all(dark.values()), whole, padded, next(iter(shown.values())).dtype),
        tap=tap,
        row_error=float(torch.stack(rows).max()),
        batch_error=float(np.maximum(whole, padded)),
        note=note,
    )


def in_order(sites: Sequence[Site] | Shown) -> tuple[Site, ...]:
    """Sites by stack and layer."""
    order = {"self": 0, "encoder": 1, "decoder": 2, "cross": 3}
    return tuple(sorted(sites, key=lambda site: (order[site.stack], site.layer)))


def _sharing(dark: bool, whole: float, padded: float, dtype: torch.dtype) -> Sharing:
    """Which documents may share a batch, by how far a whole and a padded one in it are from themselves."""
    rounding = TOLERANCE.get(dtype, 1e-5)
    if whole > 100 * rounding:
        note = f"every document was measured by itself: beside another, its attention differs by {whole:.0e}"
        return Sharing(False, False, note)
    if dark and not padded > max(rounding, 10 * whole):
        return EVERY_BATCH
    why = f"beside padding, attention differs by {padded:.0e}" if dark else "the model attends to padding"
    return Sharing(False, True, f"documents of different length never shared a batch: {why}")


# The trial of a Hugging Face model as it is.


def try_model(model: nn.Module) -> tuple[Calls | None, Trial]:
    """The attention calls of a Hugging Face model, None where it only returns its patterns, and its trial."""
    inputs, name = trial_inputs(model), type(trunk(model)).__name__
    with evaluating(model):
        as_it_is = run_as_it_is(trunk(model), inputs)
        try_out = partial(tried, inputs=inputs, name=name, inside=model, as_it_is=as_it_is)
        called, returned = _called(model, inputs)[0], _returned(model, inputs)[0]
        calls = None
        if called:
            calls = Calls(tuple(module for module, _ in called), _sites_of_calls(model, called, inputs))
        agree = calls is not None and _agree(calls.sites, [own for _, own in called], returned, inputs)
        if not agree:
            try:
                return None, try_out(partial(_show_returned, model, _sites_returned(name, returned, inputs)))
            except ValueError:
                if calls is None:
                    raise
        assert calls is not None
        trial = try_out(partial(_show_called, model, calls))
    if not agree:
        warn(
            f"{name} has attention that is not one pattern over all pairs of positions (blocks, recurrence); only its "
            "other attention is read",
            stacklevel=2,
        )
    return calls, trial


def run_as_it_is(model: nn.Module, inputs: Inputs) -> Any:
    """The answer of a model that nothing was done to."""
    name = type(model).__name__
    if getattr(getattr(model, "config", None), "attention_type", None) == "block_sparse":
        raise ValueError(
            f"{name} turns its sparse attention into full attention where a text is short, for good: load it with "
            "attention_type='original_full', which is one pattern over all pairs at every length"
        )
    modules, tensors = list(model.modules()), [*model.named_parameters(), *model.named_buffers()]
    before = [_n_writes(tensor) for _, tensor in tensors]
    answer = run(model, inputs)
    if list(model.modules()) != modules:
        raise ValueError(
            f"{name} puts other modules in the place of its own when it runs, so that what it computes depends on what "
            "it has read: give it a configuration with which it does not"
        )
    written = [
        own for (own, tensor), writes in zip(tensors, before, strict=True) if _n_writes(tensor) != writes
    ]
    if written:
        raise ValueError(
            f"{name} writes on its own tensors when it runs (such as {written[0]}), so that no two passes are of the "
            "same model; measure a copy in which it does not"
        )
    return answer


def _n_writes(weight: Tensor) -> int:
    """How often a tensor was written on; tensors made for inference do not count it."""
    return 0 if weight.is_inference() else weight._version


Called = list[tuple[nn.Module, Tensor]]


def _called(model: nn.Module, inputs: Inputs) -> tuple[Called, Any]:
    """The attention calls of a pass, with its answer."""
    called: Called = []

    def listen(module: nn.Module, attend: Any, *given: Tensor) -> Any:
        output, pattern = attend(*given)
        called.append((module, pattern.detach()))
        return output, pattern

    with attention_implementation(model, EAGER, listen):
        return called, run(trunk(model), inputs)


def _show_called(model: nn.Module, calls: Calls, inputs: Inputs) -> tuple[Shown, Any]:
    counter, (called, answer) = CallCounter(calls.modules), _called(model, inputs)
    shown = {calls.sites[counter.next(module)]: pattern for module, pattern in called}
    counter.finish()
    return shown, answer


def _returned(model: nn.Module, inputs: Inputs) -> tuple[list[Any], Any]:
    """The patterns that a model returns, with its answer; none where it does not return them."""
    with suppress(Exception), returning(model):
        # Models without patterns refuse to return them in many ways.
        answer = run(trunk(model), inputs, output_attentions=True, return_dict=True)
        return returned_patterns(trunk(model), answer), answer
    return [], None


def _show_returned(model: nn.Module, sites: Sequence[Site], inputs: Inputs) -> tuple[Shown, Any]:
    patterns, answer = _returned(model, inputs)
    return dict(zip(sites, patterns, strict=True)), answer


def returning(model: nn.Module) -> AbstractContextManager[None]:
    """Context manager: a model can return its patterns, with eager attention or a function that a user registered."""
    from transformers import AttentionInterface

    functions = [AttentionInterface().get(config._attn_implementation_internal) for config in configs(model)]
    packages = {
        str(getattr(function, "__module__", "transformers")).partition(".")[0] for function in functions
    }
    own = packages - {"transformers", "topic_probe", "builtins"}
    return nullcontext() if own else attention_implementation(model, "eager")


def returned_patterns(base: nn.Module, answer: Any) -> list[Any]:
    """The patterns in a model's answer, in the order encoder, decoder, cross."""
    names: tuple[str, ...] = ("attentions",)
    if takes_decoder_ids(base):
        names = ("encoder_attentions", "decoder_attentions", "cross_attentions")
    return [pattern for name in names for pattern in (getattr(answer, name, None) or ())]


def _agree(sites: Sequence[Site], called: list[Tensor], returned: list[Any], inputs: Inputs) -> bool:
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


# What a model puts out while it is read.


# How far outputs may be apart, of their length. What is more may still be rounding in half precision.
_OUTPUT_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 3e-2}


def check_outputs(base: nn.Module, as_it_is: Any, answer: Any, inputs: Inputs) -> str:
    """How far what a model computes while it is read may be rounded from what it computes as it is; mostly nothing.

    Raises:
        ValueError: where they are the outputs of two models.
    """
    difference, dtype = output_difference(as_it_is, answer, inputs), next(base.parameters()).dtype
    if not difference > _OUTPUT_TOLERANCE.get(dtype, 1e-1):
        return ""
    own = {str(config._attn_implementation_internal) for config in configs(base)}
    message = (
        f"{type(base).__name__} computes something else as it is ({', '.join(sorted(own))} attention) than with the "
        f"attention that shows its patterns: its outputs differ by {difference:.0e} of their length"
    )
    if dtype in (torch.float32, torch.float64):
        raise ValueError(
            f"{message}. To measure what it is with eager attention, load it with attn_implementation='eager'"
        )
    return message


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


# Rows beside the fused kernel.


def _beside_sdpa(model: nn.Module, inputs: Inputs, shown: Shown, as_it_is: Any) -> Calls | None:
    """The calls beside which rows can be computed; None where these, or what they see, are not those of the patterns.

    Neither where the model has no such kernel, or computes something else on it.
    """
    beside: list[tuple[nn.Module, Tensor, Tensor]] = []

    def listen(
        module: nn.Module, attend: Any, query: Tensor, key: Tensor, value: Tensor, rows_at: Any, mask: Any
    ) -> Any:
        every = torch.arange(query.shape[2], device=inputs.ids.device).expand(1, -1)
        # One document after the other, as they may be read later.
        rows = torch.cat([rows_at(every, slice(number, number + 1)) for number in (0, 1)])
        beside.append((module, rows.detach(), visible_keys(mask, 2, query.shape[2], key.shape[2])))
        return attend(query, key, value)

    if not getattr(model, "_supports_sdpa", False):
        return None
    try:
        with attention_implementation(model, BESIDE_SDPA, listen):
            check_outputs(trunk(model), as_it_is, run(trunk(model), inputs), inputs)
        sites = _sites_of_calls(model, [(module, rows) for module, rows, _ in beside], inputs)
    except (
        Exception
    ):  # layers that need what the kernel cannot do (a cap on the scores, say) may refuse in any way
        return None
    same = set(sites) == shown.keys() and all(
        _same_pattern(rows, shown[site], real := inputs.masks(site)[0]) and _shows(visible, shown[site], real)
        for (_, rows, visible), site in zip(beside, sites, strict=True)
    )
    return Calls(tuple(module for module, *_ in beside), sites) if same else None


def _shows(visible: Tensor, pattern: Tensor, real: Tensor) -> bool:
    """Whether the mask of a call is what a pattern shows; a model may mask by itself, whatever it is handed."""
    shown = pattern.transpose(1, 2)[real]
    same = torch.equal((shown > 0).any(1), visible.to(shown.device)[real])
    return same or not bool(torch.isfinite(shown).all())


# Names of sites.


_NUMBER = re.compile(r"\.(\d+)\.")


def _sites_returned(name: str, patterns: list[Any], inputs: Inputs) -> tuple[Site, ...]:
    if not patterns or any(not isinstance(pattern, Tensor) or pattern.ndim != 4 for pattern in patterns):
        raise ValueError(
            f"{name} shows no attention pattern: it neither calls the attention interface of transformers nor returns "
            "[batch, head, query, key] patterns with output_attentions=True"
        )
    return _name_sites(patterns, inputs, [None] * len(patterns))


def _sites_of_calls(model: nn.Module, calls: Called, inputs: Inputs) -> tuple[Site, ...]:
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


# What a model is tried on.


# A trial on more tokens than this would no longer be a matter of moments.
_LONGEST_TRIAL = 256
_WINDOW = re.compile("window|chunk|block_size|local_attention|local_radius")


def trial_inputs(model: nn.Module) -> Inputs:
    """The tokens of the trial: more of them than a window, chunk or block of the model holds, up to a limit."""
    table = model.get_input_embeddings().weight  # type: ignore[operator]
    named = [
        value for config in configs(model) for name, value in vars(config).items() if _WINDOW.search(name)
    ]
    sizes = chain.from_iterable(value if isinstance(value, list | tuple) else [value] for value in named)
    reach = max((size for size in sizes if type(size) is int and 0 < size < _LONGEST_TRIAL), default=0)
    limit = context_length(model) or reach + TRIAL_LENGTH
    inputs = some_tokens(table.shape[0], table.device, min(reach + TRIAL_LENGTH, limit))
    if not takes_decoder_ids(trunk(model)):
        return inputs
    target = slice(0, TRIAL_TARGET - TRIAL_LENGTH)
    return Inputs(inputs.ids, inputs.mask, inputs.ids[:, target].clone(), inputs.mask[:, target].clone())


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
