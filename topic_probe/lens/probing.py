"""Finds out, by running a Hugging Face model on a few tokens, which attention can be read of it and how.

`probe` sees which calls of attention happen in which order, and checks them against the patterns that the model itself
returns, and the rows beside the fused kernel against both, before any of it is used.
"""

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise, repeat
from typing import Any

import torch
from torch import Tensor, nn

from topic_probe.lens.huggingface import (
    BESIDE_SDPA,
    EAGER,
    Listener,
    Probe,
    attention_implementation,
    evaluating,
    listening,
    register_attention,
    run,
    takes_decoder_ids,
    trunk,
)
from topic_probe.lens.sites import TRIAL_TARGET, Inputs, Site, check_pattern, padding_is_dark, some_tokens


def trial_inputs(model: nn.Module) -> Inputs:
    """The tokens of the trial run."""
    table = model.get_input_embeddings().weight  # type: ignore[operator]
    inputs = some_tokens(table.shape[0], table.device)
    if not takes_decoder_ids(trunk(model)):
        return inputs
    target = slice(0, TRIAL_TARGET)
    return Inputs(inputs.ids, inputs.mask, inputs.ids[:, target].clone(), inputs.mask[:, target].clone())


class _Recorder(Listener):
    """Keeps what a trial run shows."""

    def __init__(self) -> None:
        self.calls: list[tuple[nn.Module, Tensor]] = []

    def pattern(self, module: nn.Module, pattern: Tensor) -> Tensor:
        self.calls.append((module, pattern.detach()))
        return pattern

    def rows(
        self,
        module: nn.Module,
        rows_at: Callable[[Tensor], Tensor],
        mask: Tensor | None,
        shape: tuple[int, int],
    ) -> None:
        every = torch.arange(shape[0]).expand(2, -1)
        self.calls.append((module, rows_at(every.to(next(module.parameters()).device)).detach()))


def probe(model: nn.Module, *, check_returned: bool = True) -> Probe:
    """What can be read of a Hugging Face model's attention, and how; found out by running it.

    Where nothing can be read, the answer has no sites and says why.

    Args:
        model: the model.
        check_returned: whether what is seen is held against the patterns that the model returns.
    """
    register_attention()
    try:
        with evaluating(model):
            return _probe(model, trunk(model), trial_inputs(model), check_returned)
    except Exception as error:  # a model may fail in any way on inputs that others take
        return Probe(
            reason=str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        )


def _probe(model: nn.Module, base: nn.Module, inputs: Inputs, check_returned: bool) -> Probe:
    recorder = _Recorder()
    with attention_implementation(model, EAGER), listening(recorder):
        run(base, inputs)
    with attention_implementation(model, "eager"):
        returned = _returned(base, inputs)
    if not recorder.calls:
        return _probe_of_returned(base, returned, inputs)
    patterns = [pattern for _, pattern in recorder.calls]
    modules = tuple(module for module, _ in recorder.calls)
    sites = _name_sites(patterns, inputs, _layer_numbers(model, modules))
    if check_returned and not _agree(sites, patterns, returned, inputs):
        try:
            return _probe_of_returned(base, returned, inputs)
        except ValueError:
            warnings.warn(
                f"{type(base).__name__} has attention that is not one pattern over all pairs of positions (blocks, "
                "recurrence); only its other attention is read",
                stacklevel=2,
            )
    fused = _rows_agree(model, inputs, recorder)
    return _judged(Probe(sites, modules=modules, beside_sdpa=fused), patterns, inputs, base)


def _probe_of_returned(base: nn.Module, returned: list[Any], inputs: Inputs) -> Probe:
    patterns = _checked(base, returned)
    return _judged(Probe(_name_sites(patterns, inputs, None), through="returned"), patterns, inputs, base)


def _judged(probe: Probe, patterns: list[Tensor], inputs: Inputs, base: nn.Module) -> Probe:
    """A probe with what its patterns show: heads, and whether padding is attended to."""
    for site, pattern in zip(probe.sites, patterns, strict=True):
        check_pattern(site, pattern, inputs, whose=type(base).__name__)
    return replace(
        probe,
        n_heads=tuple(pattern.shape[1] for pattern in patterns),
        honours_padding=all(map(padding_is_dark, probe.sites, patterns, repeat(inputs))),
    )


def _returned(base: nn.Module, inputs: Inputs) -> list[Any]:
    """What a model returns as its patterns, whatever it is; nothing where it cannot be asked."""
    try:
        return _attentions(base, run(base, inputs, output_attentions=True, return_dict=True))
    except Exception:  # models without patterns refuse to return them in many ways
        return []


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
        isinstance(pattern, Tensor) and same_pattern(called[number], pattern, inputs)
        for number, pattern in zip(by_stack, returned, strict=True)
    )


def same_pattern(pattern: Tensor, reference: Tensor, inputs: Inputs) -> bool:
    """Whether two patterns are equal in the rows of real queries, to rounding."""
    if pattern.shape != reference.shape:
        return False
    tolerance = 1e-4 if pattern.dtype in (torch.float32, torch.float64) else 2e-2
    real = inputs.mask if pattern.shape[2] == inputs.mask.shape[1] else inputs.side("target")[1]
    rows = real[:, None, :, None].expand(pattern.shape)
    return torch.allclose(pattern[rows], reference[rows], rtol=0, atol=tolerance, equal_nan=True)


def _rows_agree(model: nn.Module, inputs: Inputs, eager: _Recorder) -> bool:
    if not getattr(model, "_supports_sdpa", False):
        return False
    beside = _Recorder()
    try:
        with attention_implementation(model, BESIDE_SDPA), listening(beside):
            run(trunk(model), inputs)
    except (ValueError, TypeError, KeyError, RuntimeError):
        # Some layers need what the fused kernel cannot do (a cap on the scores, say) and refuse: eager then.
        return False
    if [module for module, _ in beside.calls] != [module for module, _ in eager.calls]:
        return False
    return all(
        same_pattern(rows, pattern, inputs)
        for (_, pattern), (_, rows) in zip(eager.calls, beside.calls, strict=True)
    )


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


def _layer_numbers(model: nn.Module, modules: tuple[nn.Module, ...]) -> list[int | None]:
    """The numbers of the layers that attention modules sit in, as far as their names tell."""
    names = {id(module): name for name, module in model.named_modules()}
    matches = [_NUMBER.search(f".{names.get(id(module), '')}.") for module in modules]
    return [int(match[1]) if match else None for match in matches]


def _name_sites(patterns: list[Tensor], inputs: Inputs, numbers: list[int | None] | None) -> tuple[Site, ...]:
    """Sites in the order of their calls, told apart by the numbers of queries and keys.

    Layers take their numbers from the names of their modules, because not every layer need attend. Where these do
    not count upwards (layers that share weights are one module), the calls themselves are counted.
    """
    stacks = [_stack(pattern.shape[-2], pattern.shape[-1], inputs) for pattern in patterns]
    by_stack: dict[str, list[int | None]] = {stack: [] for stack in stacks}
    for stack, number in zip(stacks, numbers or [None] * len(stacks), strict=True):
        by_stack[stack].append(number)
    remaining = {stack: _layers(given) for stack, given in by_stack.items()}
    sites = []
    for stack in stacks:
        layer = next(remaining[stack])
        sites.append(Site(stack, layer, _HOOK_NAMES[stack].format(layer)))
    return tuple(sites)


_HOOK_NAMES = {
    "self": "blocks.{}.attn.hook_pattern",
    "encoder": "encoder_blocks.{}.attn.hook_pattern",
    "decoder": "decoder_blocks.{}.self_attn.hook_pattern",
    "cross": "decoder_blocks.{}.cross_attn.hook_pattern",
}


def _layers(numbers: list[int | None]) -> Iterator[int]:
    known = [number for number in numbers if number is not None]
    ascending = len(known) == len(numbers) and all(lower < higher for lower, higher in pairwise(known))
    return iter(known if ascending else range(len(numbers)))


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
