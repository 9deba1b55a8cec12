"""Reads the attention of Hugging Face models, whatever their architecture, without an adapter for each.

Hugging Face models hand their queries, keys and values to an attention function that is looked up by name. Two such
functions are registered here. *Eager* lets the model's own eager code compute the pattern and shows it to whoever is
listening, who may change it. *Beside sdpa* lets the model run on PyTorch's fused kernel, which never forms a pattern,
and has the model's own eager code compute only the rows that were asked for. Models that bypass the look-up
(DeBERTa-v2, MPNet, GPT-J) return their patterns instead (``output_attentions=True``).

Nothing is assumed about a model: `probe` runs it once on a few tokens, sees which calls of attention happen in which
order, and checks rows, padding and the agreement of both functions before any of it is used.
"""

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int64
from torch import Tensor, nn

EAGER = "topic_probe_eager"
BESIDE_SDPA = "topic_probe_beside_sdpa"


@dataclass(frozen=True)
class Site:
    """One place where a model attends.

    Attributes:
        stack: "self" in models with one stack, otherwise "encoder", "decoder" or "cross" (decoder positions attending
            to encoder positions).
        layer: number of the layer within its stack, from 0. Layers that share weights are still one site each.
        hook_name: the name of the pattern's hook point.
    """

    stack: str
    layer: int
    hook_name: str


@dataclass(frozen=True)
class Inputs:
    """What goes into a model: right-padded ids with their masks, a second pair for a decoder."""

    ids: Int64[Tensor, "batch position"]
    mask: Bool[Tensor, "batch position"]
    target_ids: Int64[Tensor, "batch target"] | None = None
    target_mask: Bool[Tensor, "batch target"] | None = None

    def side(self, name: str) -> tuple[Tensor, Tensor]:
        """Ids and mask of the "source" or the "target" side."""
        if name == "source":
            return self.ids, self.mask
        if self.target_ids is None or self.target_mask is None:
            raise ValueError("these inputs have no target side, which a decoder needs")
        return self.target_ids, self.target_mask

    def to(self, device: torch.device) -> "Inputs":
        """The same inputs on another device."""
        target_ids = None if self.target_ids is None else self.target_ids.to(device)
        target_mask = None if self.target_mask is None else self.target_mask.to(device)
        return Inputs(self.ids.to(device), self.mask.to(device), target_ids, target_mask)


@runtime_checkable
class Listener(Protocol):
    """Whoever follows the attention calls of one forward pass."""

    def pattern(self, module: nn.Module, pattern: Tensor, mask: Tensor | None) -> Tensor:
        """Sees a whole pattern [batch, head, query, key]; what it returns is used instead."""

    def rows(
        self,
        module: nn.Module,
        wanted: Callable[[Tensor], Tensor],
        mask: Tensor | None,
        shape: tuple[int, int],
    ) -> None:
        """Sees a call with (queries, keys) positions; ``wanted(index)`` gives the pattern's rows at those queries."""


_listener: ContextVar[Listener | None] = ContextVar("topic_probe_listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Directs the attention calls inside the block to a listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def _own_eager(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor]]:
    """The eager attention of the file that defines the module: it knows about caps, biases, sinks and groups."""
    for cls in type(module).__mro__:
        found = getattr(sys.modules.get(cls.__module__), "eager_attention_forward", None)
        if found is not None:
            return found  # type: ignore[no-any-return]
    raise RuntimeError(f"{type(module).__name__} has no eager attention of its own")


def _eager(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    output, pattern = _own_eager(module)(module, query, key, value, attention_mask, **options)
    listener = _listener.get()
    if listener is None:
        return output, pattern
    version = None if pattern.is_inference() else pattern._version
    used = listener.pattern(module, pattern, attention_mask)
    if used is pattern and version is not None and pattern._version == version:
        return output, pattern
    groups = used.shape[1] // value.shape[1]
    return (used @ value.repeat_interleave(groups, dim=1)).transpose(1, 2).contiguous(), used


def _beside_sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    from transformers import AttentionInterface

    listener = _listener.get()
    if listener is not None:

        def wanted(index: Tensor) -> Tensor:
            at = index[:, None, :, None]
            chosen = query.gather(2, at.expand(-1, query.shape[1], -1, query.shape[3]))
            inside = dict(options)
            if isinstance(bias := options.get("position_bias"), Tensor):
                inside["position_bias"] = _take_rows(bias, index)
            mask = (
                None if attention_mask is None else _additive(_take_rows(attention_mask, index), query.dtype)
            )
            # One value column is enough: only the pattern is wanted, not its product with the values.
            return _own_eager(module)(module, chosen, key, value[..., :1], mask, **inside)[1]

        listener.rows(module, wanted, attention_mask, (query.shape[2], key.shape[2]))
    sdpa = AttentionInterface()["sdpa"]
    return sdpa(module, query, key, value, attention_mask, **options)  # type: ignore[no-any-return]


def _take_rows(table: Tensor, index: Tensor) -> Tensor:
    """Rows ``index`` [batch, row] of a table [batch or 1, head or 1, query, key]."""
    wide = table.expand(len(index), *table.shape[1:])
    return wide.gather(2, index[:, None, :, None].expand(-1, wide.shape[1], -1, wide.shape[3]))


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)


def visible_keys(mask: Tensor | None, batch: int, queries: int, keys: int) -> Bool[Tensor, "batch query key"]:
    """True where the mask of an attention call lets a query see a key (a mask for each head is not supported)."""
    if mask is None:
        return torch.ones(batch, queries, keys, dtype=torch.bool)
    allowed = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    return allowed[:, 0].expand(batch, queries, -1)[..., :keys]


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

    AttentionInterface.register(EAGER, _eager)
    AttentionMaskInterface.register(EAGER, eager_mask)
    AttentionInterface.register(BESIDE_SDPA, _beside_sdpa)
    AttentionMaskInterface.register(BESIDE_SDPA, full_mask)


@contextmanager
def attention_implementation(model: nn.Module, name: str) -> Iterator[None]:
    """Switches every part of a Hugging Face model to an attention implementation, and back afterwards.

    The configuration is what attention layers and mask functions look at in every forward pass, and encoder and decoder
    may have one each.
    """
    switched = configs(model)
    before = [config._attn_implementation_internal for config in switched]
    try:
        for config in switched:
            config._attn_implementation_internal = name
        yield
    finally:
        for config, implementation in zip(switched, before, strict=True):
            config._attn_implementation_internal = implementation


def configs(model: nn.Module) -> list[Any]:
    """Every configuration that some part of a Hugging Face model looks at."""
    found: dict[int, Any] = {}
    waiting: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    while waiting:
        config = waiting.pop()
        if hasattr(config, "_attn_implementation_internal") and id(config) not in found:
            found[id(config)] = config
            waiting.extend(getattr(config, part, None) for part in config.sub_configs)
    return list(found.values())


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; every module gets its own mode back, also after an exception.

    Dropout would otherwise sit inside the pattern, and rows would sum to anything between 0 and more than 1.
    """
    training = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, was_training in training:
            module.training = was_training


def takes_decoder_ids(model: nn.Module) -> bool:
    """Whether a model has a decoder beside its encoder that needs tokens of its own."""
    return "decoder_input_ids" in inspect.signature(model.forward).parameters


def trunk(model: nn.Module) -> nn.Module:
    """The model without its head, which would compute scores over the vocabulary that nobody looks at."""
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
    """One forward pass of a Hugging Face model."""
    return model(**arguments(model, inputs), **options)


@dataclass(frozen=True)
class Probe:
    """What a trial run on a few tokens showed.

    Attributes:
        sites: the attention calls of one forward pass, in order.
        n_heads: number of heads of each.
        modules: the module behind each call, to notice when a later pass differs.
        through: "calls" where attention is seen as it is computed, "returned" where the model only hands patterns back
            at the end (changes to them then have no effect).
        beside_sdpa: whether the fused kernel may run with single rows computed beside it; False where the model
            does not support it or its rows differ from the eager ones.
    """

    sites: tuple[Site, ...]
    n_heads: tuple[int, ...]
    modules: tuple[nn.Module, ...]
    through: str
    beside_sdpa: bool


# Two documents of different length, and a decoder of another length than the encoder: enough to see padding, and
# to tell the three kinds of attention apart by their shapes alone.
_TRIAL_LENGTH, _TRIAL_SHORTER, _TRIAL_TARGET = 7, 4, 5


def some_tokens(vocabulary: int, device: torch.device) -> Inputs:
    """Two documents of different length."""
    ids = torch.arange(2 * _TRIAL_LENGTH).reshape(2, -1) % max(vocabulary - 4, 1) + min(3, vocabulary - 1)
    mask = torch.ones(2, _TRIAL_LENGTH, dtype=torch.bool)
    mask[1, _TRIAL_SHORTER:] = False
    return Inputs(ids, mask).to(device)


def trial_inputs(model: nn.Module) -> Inputs:
    """The tokens of the trial run."""
    table = model.get_input_embeddings().weight  # type: ignore[operator]
    inputs = some_tokens(table.shape[0], table.device)
    if not takes_decoder_ids(model):
        return inputs
    target = slice(0, _TRIAL_TARGET)
    return Inputs(inputs.ids, inputs.mask, inputs.ids[:, target].clone(), inputs.mask[:, target].clone())


class _Recorder:
    """Keeps what a trial run shows."""

    def __init__(self) -> None:
        self.calls: list[tuple[nn.Module, Tensor]] = []

    def pattern(self, module: nn.Module, pattern: Tensor, mask: Tensor | None) -> Tensor:
        self.calls.append((module, pattern.detach()))
        return pattern

    def rows(
        self,
        module: nn.Module,
        wanted: Callable[[Tensor], Tensor],
        mask: Tensor | None,
        shape: tuple[int, int],
    ) -> None:
        every = torch.arange(shape[0]).expand(2, -1)
        device = next(module.parameters()).device
        self.calls.append((module, wanted(every.to(device)).detach()))


def probe(model: nn.Module) -> Probe:
    """What can be read of a Hugging Face model's attention, and how; found out by running it.

    Raises:
        ValueError: where no attention is seen in any way.
    """
    register_attention()
    base = trunk(model)
    inputs = trial_inputs(base)
    with evaluating(model):
        recorder = _Recorder()
        with attention_implementation(model, EAGER), listening(recorder):
            run(base, inputs)
        if recorder.calls:
            patterns = [pattern for _, pattern in recorder.calls]
            sites = _name_sites([tuple(pattern.shape[-2:]) for pattern in patterns], inputs)
            modules = tuple(module for module, _ in recorder.calls)
            n_heads = tuple(pattern.shape[1] for pattern in patterns)
            return Probe(sites, n_heads, modules, "calls", _rows_agree(model, inputs, recorder))
        with attention_implementation(model, "eager"):
            answer = run(base, inputs, output_attentions=True, return_dict=True)
        patterns = returned_patterns(base, answer)
        sites = _name_sites([tuple(pattern.shape[-2:]) for pattern in patterns], inputs)
        return Probe(sites, tuple(pattern.shape[1] for pattern in patterns), (), "returned", False)


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
    tolerance = 1e-4 if next(model.parameters()).dtype in (torch.float32, torch.float64) else 2e-2
    real = {_TRIAL_LENGTH: inputs.mask, _TRIAL_TARGET: inputs.target_mask}
    return all(
        bool(((one - other).abs().amax((1, 3))[real[one.shape[2]]] <= tolerance).all())
        for (_, one), (_, other) in zip(eager.calls, beside.calls, strict=True)
    )


def returned_patterns(base: nn.Module, answer: Any) -> list[Tensor]:
    """The patterns in a model's answer, in the order encoder, decoder, cross.

    Raises:
        ValueError: where there are none, or something that is not one pattern for every pair of positions.
    """
    names: tuple[str, ...] = ("attentions",)
    if takes_decoder_ids(base):
        names = ("encoder_attentions", "decoder_attentions", "cross_attentions")
    patterns = [pattern for name in names for pattern in (getattr(answer, name, None) or ())]
    if not patterns or any(not isinstance(pattern, Tensor) or pattern.ndim != 4 for pattern in patterns):
        raise ValueError(
            f"{type(base).__name__} shows no attention pattern: it neither calls the attention interface of "
            "transformers nor returns [batch, head, query, key] patterns with output_attentions=True. "
            "measure_embeddings still works on it"
        )
    return patterns


def _name_sites(shapes: list[tuple[int, ...]], inputs: Inputs) -> tuple[Site, ...]:
    """Sites in the order of their calls, told apart by the numbers of queries and keys."""
    source, target = inputs.ids.shape[1], None if inputs.target_ids is None else inputs.target_ids.shape[1]
    counted: Counter[str] = Counter()
    sites = []
    for queries, keys in shapes:
        if target is None:
            stack, name = "self", "blocks.{}.attn.hook_pattern"
        elif queries == target:
            cross = keys == source
            stack = "cross" if cross else "decoder"
            name = "decoder_blocks.{}." + ("cross_attn" if cross else "self_attn") + ".hook_pattern"
        else:
            stack, name = "encoder", "encoder_blocks.{}.attn.hook_pattern"
        if (queries, keys) not in ((source, source), (target, target), (target, source)):
            raise ValueError(
                f"an attention call has {queries} queries and {keys} keys for {source} tokens: this kind of "
                "attention (blocks, pooling, a cache) cannot be assigned to pairs of words"
            )
        sites.append(Site(stack, counted[stack], name.format(counted[stack])))
        counted[stack] += 1
    return tuple(sites)


def build_host(model: nn.Module, *, tokenizer: Any = None) -> nn.Module:
    """A hooked model around a Hugging Face model that TransformerLens has no adapter for.

    It is a `HookedRootModule` of the installed TransformerLens with a hook point on every attention pattern, under
    the usual names: ``blocks.i.attn.hook_pattern`` in models with one stack, and ``encoder_blocks.i.attn``,
    ``decoder_blocks.i.self_attn`` and ``decoder_blocks.i.cross_attn`` otherwise. What a hook returns takes effect,
    except in models that only return their patterns at the end. The model inside is used as it is and never changed.
    """
    return _host_class()(model, tokenizer)


@cache
def _host_class() -> type[nn.Module]:
    """The class, made on first use so that importing this module does not import TransformerLens."""
    import transformer_lens.hook_points as hook_points

    try:
        from transformer_lens import HookedRootModule  # where TransformerLens 4 keeps it
    except ImportError:
        HookedRootModule = hook_points.HookedRootModule

    class HuggingFaceHost(HookedRootModule):  # type: ignore[misc]
        """A Hugging Face model with a hook point on every attention pattern."""

        def __init__(self, model: nn.Module, tokenizer: Any) -> None:
            super().__init__()
            self.original_model = model
            self.tokenizer = tokenizer
            self.probe = probe(model)
            self.points = [hook_points.HookPoint() for _ in self.probe.sites]
            for site, point in zip(self.probe.sites, self.points, strict=True):
                _plant(self, site.hook_name, point)
            self.setup()

        @property
        def cfg(self) -> Any:
            """The configuration of the Hugging Face model."""
            return self.original_model.config

        @property
        def W_E(self) -> Tensor:
            """The word embedding table [vocabulary, d_embed]."""
            return self.original_model.get_input_embeddings().weight  # type: ignore[operator, no-any-return]

        def forward(
            self, input_ids: Tensor, attention_mask: Tensor, *, head: bool = True, **options: Any
        ) -> Any:
            """The Hugging Face model's own answer, its patterns having passed through the hook points.

            Args:
                input_ids: token ids [batch, position].
                attention_mask: 1 on real tokens; required, because ids alone do not say what is padding.
                head: False leaves out the head and its scores over the vocabulary.
                options: passed on to the Hugging Face model, such as ``decoder_input_ids``.
            """
            model = self.original_model if head else trunk(self.original_model)
            options |= {"input_ids": input_ids, "attention_mask": attention_mask}
            if self.probe.through == "calls":
                with attention_implementation(self.original_model, EAGER), listening(_ToHooks(self)):
                    return model(**options)
            with attention_implementation(self.original_model, "eager"):
                answer = model(**options, output_attentions=True, return_dict=True)
            for point, pattern in zip(self.points, returned_patterns(model, answer), strict=True):
                self._only_look(point, pattern)
            return answer

        def _only_look(self, point: Any, pattern: Tensor) -> None:
            before = pattern.clone() if point.fwd_hooks else pattern
            if not torch.equal(point(pattern), before):
                raise ValueError(
                    f"a hook changed {point.name}, but {type(self.original_model).__name__} only returns its patterns "
                    "after the forward pass, so the change would have no effect; only look at its patterns"
                )

    return HuggingFaceHost


def _plant(root: nn.Module, name: str, module: nn.Module) -> None:
    """Adds a module under a dotted name, so that TransformerLens finds it under just that name."""
    *path, last = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    root.add_module(last, module)


class _ToHooks:
    """Passes the patterns of one forward pass to a host's hook points."""

    def __init__(self, host: Any) -> None:
        self.host, self.calls = host, CallCounter(host.probe)

    def pattern(self, module: nn.Module, pattern: Tensor, mask: Tensor | None) -> Tensor:
        return self.host.points[self.calls.next(module)](pattern)  # type: ignore[no-any-return]

    def rows(
        self,
        module: nn.Module,
        wanted: Callable[[Tensor], Tensor],
        mask: Tensor | None,
        shape: tuple[int, int],
    ) -> None:
        raise AssertionError("rows are read without hook points")


class CallCounter:
    """Numbers the attention calls of one forward pass, held to the order that the trial run has seen."""

    def __init__(self, seen: Probe) -> None:
        self.seen, self.number = seen, -1

    def next(self, module: nn.Module) -> int:
        """The number of this call.

        Raises:
            ValueError: where it comes from another layer than in the trial run.
        """
        self.number += 1
        if self.number >= len(self.seen.modules) or self.seen.modules[self.number] is not module:
            raise ValueError(
                f"attention call {self.number} comes from another layer than in the trial run; a model whose layers "
                "are skipped or reordered from pass to pass cannot be measured layer by layer"
            )
        return self.number

    def finish(self) -> None:
        """Raises ValueError where fewer layers attended than in the trial run."""
        if self.number + 1 != len(self.seen.modules):
            raise ValueError(f"only {self.number + 1} of {len(self.seen.modules)} attention calls were seen")
