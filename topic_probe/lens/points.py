"""The model that `open_model` makes: hook points on a Hugging Face model, under TransformerLens's names.

Queries, keys, values, scores, patterns and outputs of heads are those of a call of attention. What attention writes and
the residual stream go into modules of the model or come out of them; hooks stand on these for the length of a pass.
Where no hook is on a point, nothing is done for it.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from topic_probe.lens.hooked import has_hooks
from topic_probe.lens.interface import BESIDE_SDPA, EAGER, CallCounter, Calls, attention_implementation
from topic_probe.lens.running import trunk, without_recorders
from topic_probe.lens.trial import Trial, returned_patterns, returning, try_model
from topic_probe.lens.weights import output_projection

_OF_CALLS = ("q", "k", "v", "attn_scores", "pattern", "z")
_SOFTMAX = (torch.softmax, nn.functional.softmax, Tensor.softmax)


def _modules_at(model: nn.Module, calls: Calls) -> dict[str, nn.Module]:
    """Hook points on what goes into modules or comes out of them, in the order of a pass."""
    found: dict[str, nn.Module] = {}
    for site, module in zip(calls.sites, calls.modules, strict=True):
        block = site.hook_name.rsplit(".", 2)[0]
        if (output := output_projection(model, module)) is not None:
            found[f"{block}.hook_{'cross_' if site.stack == 'cross' else ''}attn_out"] = output
        if (layer := _layer_around(model, module, calls)) is not None:
            for end in ("pre", "post"):
                found.setdefault(f"{block}.hook_resid_{end}", layer)
    return found


def _layer_around(model: nn.Module, attention: nn.Module, calls: Calls) -> nn.Module | None:
    """The layer that attends: the largest member of a list that has no two kinds of attention of one stack in it.

    Not the smallest: T5's layers are lists themselves, of attention and what follows it. A list in which the attention
    itself is a member is none of layers.
    """
    stacks = {module: site.stack for site, module in zip(calls.sites, calls.modules, strict=True)}
    path = next(name for name, part in model.named_modules() if part is attention).split(".")
    around = model
    for part in path:
        member = around.get_submodule(part)
        inside = [stacks[module] for module in member.modules() if module in stacks]
        if isinstance(around, nn.ModuleList) and len(inside) == len(set(inside)):
            return None if member is attention else member
        around = member
    return None


class _Pass:
    """One forward pass through the hook points of a model."""

    def __init__(self, host: Any) -> None:
        self.points, self.of_calls, self.at_modules = host.hook_dict, host.of_calls, host.at_modules
        self.calls = CallCounter(host.calls.modules)
        self.wanted = {name for name, point in self.points.items() if has_hooks(point)}
        self.shown: set[str] = set()
        # The fused kernel forms no scores and no pattern that could be shown.
        eager = any(name.endswith(("hook_attn_scores", "hook_pattern")) for name in self.wanted)
        self.name = BESIDE_SDPA if host.is_fused and not eager else EAGER

    @contextmanager
    def through(self) -> Iterator[None]:
        """Context manager: puts hooks on modules for what goes in and comes out of them."""
        handles = list(self._hooks_on_modules())
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        if silent := sorted(self.wanted - self.shown):
            self.calls.finish()  # a model with fewer layers than before has a better reason
            raise ValueError(
                f"a hook on {', '.join(silent)} was never called: the model has not come by there in this pass. Leave "
                "such points out (run_with_cache(..., names_filter=...))"
            )

    def show(self, name: str, tensor: Tensor) -> Tensor:
        """What goes on in the place of a tensor: what hooks on a point make of it."""
        self.shown.add(name)
        used: Tensor = self.points[name](tensor)
        return used

    def attend(
        self,
        module: nn.Module,
        attend: Callable[..., Any],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """A call of attention, eager or on the fused kernel."""
        names = self.of_calls[self.calls.next(module)]
        given = zip(("q", "k", "v"), (query, key, value), strict=True)
        query, key, value = (self._show_heads(names[what], tensor) for what, tensor in given)
        watching: Any = nullcontext()
        if names["attn_scores"] in self.wanted:
            watching = _Softmax(query, key, partial(self.show, names["attn_scores"]))
        with watching:
            output, pattern = attend(query, key, value, partial(self.show, names["pattern"]))
        return self.show(names["z"], output), pattern

    def _show_heads(self, name: str, tensor: Tensor) -> Tensor:
        if name not in self.wanted:
            return tensor
        return self.show(name, tensor.transpose(1, 2)).transpose(1, 2)  # the position before the head

    def _hooks_on_modules(self) -> Iterator[Any]:
        for what in ("resid_pre", "resid_post", "attn_out"):
            named = {name: module for name, module in self.at_modules.items() if name.endswith(what)}
            if self.wanted.isdisjoint(named):
                continue
            names, calls = tuple(named), CallCounter(tuple(named.values()))
            # Layers that share weights are one module, called often.
            for module in dict.fromkeys(named.values()):
                if what == "resid_pre":
                    yield module.register_forward_pre_hook(self._before(names, calls), with_kwargs=True)
                else:  # ahead of those by which transformers collects states, which see what was changed
                    yield module.register_forward_hook(self._after(names, calls), prepend=True)

    def _before(self, names: tuple[str, ...], calls: CallCounter) -> Callable[..., Any]:
        def look(module: nn.Module, given: tuple[Any, ...], options: dict[str, Any]) -> Any:
            name = names[calls.next(module)]
            if given:
                return (self.show(name, given[0]), *given[1:]), options
            stream = next(iter(inspect.signature(module.forward).parameters))
            return given, options | {stream: self.show(name, options[stream])}

        return look

    def _after(self, names: tuple[str, ...], calls: CallCounter) -> Callable[..., Any]:
        def look(module: nn.Module, _given: Any, output: Any) -> Any:
            name = names[calls.next(module)]
            if isinstance(output, tuple):
                return self.show(name, output[0]), *output[1:]
            return self.show(name, output)

        return look


class _Softmax(TorchFunctionMode):
    """Context manager: scores pass by ``show`` on their way into a softmax over all pairs of queries and keys."""

    def __init__(self, query: Tensor, key: Tensor, show: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.rows, self.n_keys, self.show = query.shape[:3], key.shape[2], show

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if function in _SOFTMAX:
            scores, *rest = args or (options.pop("input"),)
            if scores.ndim == 4 and scores.shape[:3] == self.rows and scores.shape[3] >= self.n_keys:
                used = self.show(scores[..., : self.n_keys])
                # What stands behind the keys is a sink that belongs to no position.
                sinks = scores[..., self.n_keys :]
                scores = torch.cat([used, sinks], -1) if sinks.shape[-1] else used
            args = (scores, *rest)
        return function(*args, **options)


@cache
def huggingface_host() -> Callable[..., nn.Module]:
    """The class of the host, made on first use so that importing this module does not import TransformerLens."""
    import transformer_lens.hook_points as hook_points

    try:
        from transformer_lens import HookedRootModule  # where TransformerLens 4 keeps it
    except ImportError:
        HookedRootModule = hook_points.HookedRootModule

    class HuggingFaceHost(HookedRootModule):  # type: ignore[misc]
        """A Hugging Face model with hook points on its attention and its layers, whatever its architecture.

        It is a `HookedRootModule` of the installed TransformerLens. ``blocks.i`` (``encoder_blocks.i`` and
        ``decoder_blocks.i`` in models with two stacks) has ``hook_resid_pre`` and ``hook_resid_post``, what goes into
        a layer and comes out of it, and ``hook_attn_out`` (``hook_cross_attn_out``), what the output projection makes
        of the outputs of heads. ``attn`` in it (``self_attn``, ``cross_attn``) has ``hook_q``, ``hook_k`` and
        ``hook_v`` [batch, position, head, d_head], behind rotary positions; ``hook_attn_scores`` and ``hook_pattern``
        [batch, head, query, key], what enters the softmax and what comes out of it; and ``hook_z``, outputs of heads.

        What a hook returns takes effect. A hook on a point that the model does not come by is an error. Models that
        bypass the attention interface of transformers only return their patterns at the end: these have
        ``hook_pattern`` alone, and changes are refused. A model whose attention cannot be read has no hook points, and
        its ``reason`` says why.
        """

        def __init__(self, model: nn.Module, tokenizer: Any) -> None:
            super().__init__()
            self.tokenizer, self.reason = tokenizer, ""
            self.is_fused = False  # whether it runs on the fused kernel where no pattern is asked for
            self.calls: Calls | None = None
            self.trial: Trial | None = None
            try:
                self.calls, self.trial = try_model(model)
            except Exception as error:  # a model may fail in any way on inputs that others take
                own = isinstance(error, ValueError)
                self.reason = str(error) if own else f"{type(error).__name__}: {error}"
            calls, sites = self.calls, () if self.trial is None else self.trial.sites
            shown = ("pattern",) if calls is None else _OF_CALLS
            self.of_calls = [
                {what: f"{site.hook_name.removesuffix('pattern')}{what}" for what in shown}
                for site in (sites if calls is None else calls.sites)
            ]
            self.at_modules = {} if calls is None else _modules_at(model, calls)
            for name in [*chain.from_iterable(own.values() for own in self.of_calls), *self.at_modules]:
                _plant(self, name, hook_points.HookPoint())
            self.setup()  # before the model is inside, on whose modules it would write names
            self.original_model = model

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
            """The Hugging Face model's own answer, its attention and its layers having passed through the hook points.

            Args:
                input_ids: token ids [batch, position].
                attention_mask: 1 on real tokens; required, because ids alone do not say what is padding.
                head: False leaves out the head and its scores over the vocabulary.
                options: passed on to the Hugging Face model, such as ``decoder_input_ids``.
            """
            model = self.original_model if head else trunk(self.original_model)
            options |= {"input_ids": input_ids, "attention_mask": attention_mask}
            with without_recorders(model):
                if self.calls is not None:
                    this = _Pass(self)
                    with (
                        this.through(),
                        attention_implementation(self.original_model, this.name, this.attend),
                    ):
                        return model(**options)
                if not any(map(has_hooks, self.hook_dict.values())):
                    return model(**options)
                options |= {"output_attentions": True, "return_dict": True}
                with returning(self.original_model):
                    answer = model(**options)
            patterns = returned_patterns(trunk(model), answer)
            for of_call, pattern in zip(self.of_calls, patterns, strict=True):
                _only_look(self.original_model, self.hook_dict[of_call["pattern"]], pattern)
            return answer

    return HuggingFaceHost


def _only_look(model: nn.Module, point: Any, pattern: Tensor) -> None:
    """Shows a pattern to the hooks on a point, which come too late to change it."""
    before = pattern.clone() if point.fwd_hooks else pattern
    if not torch.equal(point(pattern), before):
        raise ValueError(
            f"a hook changed {point.name}, but {type(model).__name__} only returns its patterns "
            "after the forward pass, so the change would have no effect; only look at its patterns"
        )


def _plant(root: nn.Module, name: str, module: nn.Module) -> None:
    """Adds a module under a dotted name, so that TransformerLens finds it under just that name."""
    *path, last = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    root.add_module(last, module)
