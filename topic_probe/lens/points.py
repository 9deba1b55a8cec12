"""Where the hook points of the adapter-free host stand in a Hugging Face model, and the pass that goes through them.

Queries, keys, values, scores, patterns and outputs of heads are those of a call of attention, which is made here. What
attention writes and the residual stream go into modules of the model or come out of them; hooks stand on these for the
length of a pass. Where no hook is on a point, nothing is done for it.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from topic_probe.lens.heads import output_projection
from topic_probe.lens.huggingface import CallCounter, Listener, Probe

_OF_CALLS = ("q", "k", "v", "attn_scores", "pattern", "z")
Named = tuple[tuple[str, nn.Module], ...]


def has_hooks(point: nn.Module) -> bool:
    """Whether somebody has put hooks on a hook point, TransformerLens's or PyTorch's."""
    return any(
        (point._forward_hooks, point._forward_pre_hooks, point._backward_hooks, point._backward_pre_hooks)
    )


def has_hooks_of_others(module: nn.Module) -> bool:
    """Whether a module has hooks that are not of the packages which models are built with."""
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    packages = {str(getattr(hook, "__module__", "")).partition(".")[0] for hook in hooks}
    return not packages <= {"torch", "transformers", "accelerate", "peft"}


@dataclass(frozen=True)
class Places:
    """Where the hook points of a model stand, in the order of a pass.

    Attributes:
        of_calls: of every site, the names of its hook points on a call of attention, by what they show.
        attending: the module behind each call; none where a model only returns its patterns.
        written: hook points on what comes out of a module: what attention writes.
        entering: on what goes into a layer.
        leaving: on what comes out of it.
    """

    of_calls: tuple[Mapping[str, str], ...]
    attending: tuple[nn.Module, ...]
    written: Named = ()
    entering: Named = ()
    leaving: Named = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all hook points."""
        calls = (name for of_call in self.of_calls for name in of_call.values())
        modules = (name for name, _ in (*self.written, *self.entering, *self.leaving))
        return (*calls, *modules)


def find_places(model: nn.Module, probe: Probe) -> Places:
    """Where hook points can stand in a model, as far as the probe has seen its attention."""
    shown = _OF_CALLS if probe.modules else ("pattern",)
    of_calls = tuple(
        {what: site.hook_name.removesuffix("pattern") + what for what in shown} for site in probe.sites
    )
    written: list[tuple[str, nn.Module]] = []
    layers: dict[str, nn.Module] = {}
    for site, module in zip(probe.sites, probe.modules, strict=False):
        block = site.hook_name.rsplit(".", 2)[0]
        output = output_projection(model, module)
        if output is not None:
            written.append((f"{block}.hook_{'cross_' if site.stack == 'cross' else ''}attn_out", output))
        layer = _layer_around(model, module, probe)
        if layer is not None:
            layers.setdefault(block, layer)
    entering, leaving = (
        tuple((f"{block}.hook_resid_{end}", layer) for block, layer in layers.items())
        for end in ("pre", "post")
    )
    return Places(of_calls, probe.modules, tuple(written), entering, leaving)


def _layer_around(model: nn.Module, attention: nn.Module, probe: Probe) -> nn.Module | None:
    """The layer that attends: the largest member of a list that has no two kinds of attention of one stack in it.

    Not the smallest: T5's layers are lists themselves, of attention and what follows it. A list in which the attention
    itself is a member is none of layers.
    """
    stacks = {module: site.stack for site, module in zip(probe.sites, probe.modules, strict=True)}
    path = next(name for name, part in model.named_modules() if part is attention).split(".")
    around = model
    for part in path:
        member = around.get_submodule(part)
        inside = [stacks[module] for module in member.modules() if module in stacks]
        if isinstance(around, nn.ModuleList) and len(inside) == len(set(inside)):
            return None if member is attention else member
        around = member
    return None


@contextmanager
def passing(places: Places, points: Mapping[str, nn.Module]) -> Iterator[Listener]:
    """A block in which a forward pass goes through every hook point that has hooks.

    It gives the listener that the pass needs.

    Raises:
        ValueError: where a point with hooks stayed silent.
    """
    this = _Pass(places, points)
    wanted = [name for name in places.names if has_hooks(points[name])]
    handles = list(this.hooks_on_modules())
    try:
        yield Listener(attend=this.attend, pattern=this.show_pattern)
    finally:
        for handle in handles:
            handle.remove()
    if silent := [name for name in wanted if name not in this.shown]:
        this.calls.finish()  # a model with fewer layers than before has a better reason
        raise ValueError(
            f"a hook on {', '.join(silent)} was never called: the model has not come by there in this pass. Attention "
            "functions of your own show no scores where they take no softmax over all pairs; leave such points out "
            "(run_with_cache(..., names_filter=...))"
        )


class _Pass:
    """One forward pass through hook points."""

    def __init__(self, places: Places, points: Mapping[str, nn.Module]) -> None:
        self.places, self.points = places, points
        self.calls = CallCounter(places.attending)
        self.shown: set[str] = set()

    def show(self, name: str, tensor: Tensor) -> Tensor:
        """What goes on in the place of a tensor: what hooks on a point make of it."""
        self.shown.add(name)
        used: Tensor = self.points[name](tensor)
        return used

    def attend(
        self,
        function: Callable[..., tuple[Tensor, Tensor]],
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *rest: Any,
        **options: Any,
    ) -> tuple[Tensor, Tensor]:
        """A call of attention, whose pattern is shown within; masks and options go on as they are."""
        names = self.places.of_calls[self.calls.next(module)]
        given = zip(("q", "k", "v"), (query, key, value), strict=True)
        query, key, value = (self._show_heads(names[what], tensor) for what, tensor in given)
        watching: Any = nullcontext()
        if has_hooks(self.points[names["attn_scores"]]):
            watching = _Softmax(query, key, partial(self.show, names["attn_scores"]))
        with watching:
            output, pattern = function(module, query, key, value, *rest, **options)
        return self.show(names["z"], output), pattern

    def show_pattern(self, _: nn.Module, pattern: Tensor) -> Tensor:
        """The pattern of the call that is being made."""
        return self.show(self.places.of_calls[self.calls.number]["pattern"], pattern)

    def _show_heads(self, name: str, tensor: Tensor) -> Tensor:
        if not has_hooks(self.points[name]):
            return tensor
        by_position = rearrange(tensor, "batch head position d_head -> batch position head d_head")
        used: Tensor = rearrange(
            self.show(name, by_position), "batch position head d -> batch head position d"
        )
        return used

    def hooks_on_modules(self) -> Iterator[Any]:
        """Puts hooks on modules for what goes in and comes out of them; gives the handles to take them off."""
        for named, entering in (
            (self.places.entering, True),
            (self.places.leaving, False),
            (self.places.written, False),
        ):
            if any(has_hooks(self.points[name]) for name, _ in named):
                names, modules = zip(*named, strict=True)
                make = self._before if entering else self._after
                hook = make(names, CallCounter(modules))
                # Layers that share weights are one module, called often.
                for module in dict.fromkeys(modules):
                    if entering:
                        yield module.register_forward_pre_hook(hook, with_kwargs=True)
                    else:  # ahead of those by which transformers collects states, which see what was changed
                        yield module.register_forward_hook(hook, prepend=True)

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
    """A block in which scores pass by ``show`` on their way into a softmax over all pairs of queries and keys."""

    def __init__(self, query: Tensor, key: Tensor, show: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.rows, self.n_keys, self.show = query.shape[:3], key.shape[2], show

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if function in _SOFTMAX:
            scores, *rest = args or (options.pop("input"),)
            if scores.ndim == 4 and scores.shape[:3] == self.rows and scores.shape[3] >= self.n_keys:
                seen = scores[..., : self.n_keys]
                used = self.show(seen)
                # What stands behind the keys is a sink that belongs to no position.
                sinks = scores[..., self.n_keys :]
                scores = torch.cat([used, sinks], -1) if sinks.shape[-1] else used
            args = (scores, *rest)
        return function(*args, **options)


_SOFTMAX = (torch.softmax, nn.functional.softmax, Tensor.softmax)
