"""Any hooked model, run: what differs between kinds of them.

A model is *opened* (made by `open_model` around a Hugging Face model, whatever its architecture), a *bridge* of
TransformerLens around a Hugging Face model, or of TransformerLens's *own layers* (HookedTransformer, HookedEncoder,
native bridge, toy).
"""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from topic_probe.lens.interface import attention_implementation
from topic_probe.lens.running import arguments, inside_of, is_a, run, takes_decoder_ids, trunk
from topic_probe.lens.sites import Inputs, Site, some_tokens
from topic_probe.lens.trial import Trial, context_length, run_as_it_is, trial_inputs, tried

StateReader = Callable[[int, Float[Tensor, "batch position d_model"]], None]


class Hooked:
    """A hooked model, and how it is run.

    Attributes:
        model: the model.
        inside: the Hugging Face model that it wraps, None where there is none.
        config: the configuration of that one.
        kind: "adapter-free" (opened), "bridge", or "hooked" (of TransformerLens's own layers).
        has_decoder: whether a decoder wants tokens of its own.
        name: the class of the model, with that of the Hugging Face model inside where there is one.
    """

    def __init__(self, model: Any) -> None:
        self.model, self.inside = model, inside_of(model)
        self.config = getattr(self.inside, "config", None)
        self.is_opened = is_a(model, "HuggingFaceHost")
        self.kind = "bridge" if self.inside is not None or is_a(model, "TransformerBridge") else "hooked"
        if self.is_opened:
            self.kind = "adapter-free"
        self.has_decoder = self.inside is not None and takes_decoder_ids(trunk(self.inside))
        inside = "" if self.inside is None else f"({type(self.inside).__name__})"
        self.name = f"{type(model).__name__}{inside}"

    def sites(self) -> tuple[Site, ...]:
        """Where the model attends, in any order: the pattern hooks that TransformerLens names."""
        matches = (_PATTERN_HOOK.match(name) for name in self.model.hook_dict)
        return tuple(_site(match) for match in matches if match)

    def has_hooks(self) -> bool:
        """Whether somebody has put hooks on its hook points; what they change is only seen on the way through these."""
        return any(has_hooks(point) and not _only_mirrors(point) for point in self.model.hook_dict.values())

    def showing_patterns(self) -> AbstractContextManager[None]:
        """Context manager: every pattern passes through its hook point; fused kernels form none to show."""
        if self.inside is None or self.is_opened:  # which does so by itself
            return nullcontext()
        return attention_implementation(self.inside, "eager")

    def trial_inputs(self) -> Inputs:
        """A few tokens to try the model on, over all of its vocabulary."""
        if self.inside is not None:
            return trial_inputs(self.inside)
        return some_tokens(len(self.model.W_E), next(self.model.parameters()).device)

    def context_length(self) -> int | None:
        """How many tokens the model can take; None where nothing limits it."""
        if self.inside is not None:
            return context_length(self.inside)
        return getattr(self.model.cfg, "n_ctx", None)

    def trial(self, show: Callable[[Inputs], tuple[dict[Site, Tensor], Any]]) -> Trial:
        """Its trial: the one that was made when it was opened, else of what its hook points show."""
        if self.is_opened:
            return self.model.trial  # type: ignore[no-any-return]
        inputs, inside = self.trial_inputs(), self.inside
        as_it_is = None if inside is None else run_as_it_is(trunk(inside), inputs)
        return tried(show, inputs, name=self.name, inside=inside, as_it_is=as_it_is)

    def run(self, inputs: Inputs) -> Any:
        """One forward pass, without scores over the vocabulary; the answer holds the last states by name."""
        if self.is_opened:
            return self.model(**arguments(trunk(self.inside), inputs), head=False)
        if self.inside is not None:
            return run(trunk(self.inside), inputs)  # whose modules the bridge has replaced by its own
        # Some hosts hook the final normalisation before its weights are applied: its output is wanted.
        last = getattr(self.model, "ln_final", None) or self.model.blocks[-1]
        outputs: list[Tensor] = []
        handle = last.register_forward_hook(
            lambda _, __, output: outputs.append(output[0] if isinstance(output, tuple) else output)
        )
        try:
            self._call(inputs, None)
        finally:
            handle.remove()
        return {"last_hidden_state": outputs[-1]}

    def logits(self, inputs: Inputs) -> Float[Tensor, "batch position vocabulary"]:
        """Scores over the vocabulary at every position, those of the decoder where there is one."""
        if self.inside is None:
            return self._call(inputs, "logits")  # type: ignore[no-any-return]
        if self.inside.get_output_embeddings() is None:
            raise ValueError(
                f"{type(self.inside).__name__} has no head that scores the vocabulary: load the model with its head "
                "(AutoModelForMaskedLM, AutoModelForCausalLM, AutoModelForSeq2SeqLM), or ask for its states"
            )
        if self.is_opened:
            return self.model(**arguments(trunk(self.inside), inputs)).logits  # type: ignore[no-any-return]
        return run(self.inside, inputs).logits  # type: ignore[no-any-return]

    def _call(self, inputs: Inputs, wanted: str | None) -> Any:
        name = "one_zero_attention_mask" if is_a(self.model, "HookedEncoder") else "attention_mask"
        return self.model(inputs.ids, **{name: inputs.mask.long()}, return_type=wanted)

    def hidden_states(self, inputs: Inputs, read: StateReader) -> None:
        """Streams what enters the first block, and what leaves each; the last behind a final normalisation."""
        if not self.is_opened:
            with _reading_blocks(self.model, read) as blocks:
                answer = self.run(inputs)
            last = answer.get("encoder_last_hidden_state")
            read(len(blocks), answer["last_hidden_state"] if last is None else last)
            return
        base, wanted = trunk(self.inside), {"output_hidden_states": True, "return_dict": True}
        if self.has_hooks() or self.model.is_fused:
            answer = self.model(**arguments(base, inputs), head=False, **wanted)
        else:
            answer = run(base, inputs, **wanted)
        states = getattr(answer, "encoder_hidden_states", None) or answer.hidden_states
        for layer, state in enumerate(states):
            read(layer, state)


# The names that TransformerLens gives to what it hooks.


def has_hooks(point: nn.Module) -> bool:
    """Whether somebody has put hooks on a hook point, TransformerLens's or PyTorch's."""
    return any(
        (point._forward_hooks, point._forward_pre_hooks, point._backward_hooks, point._backward_pre_hooks)
    )


def _only_mirrors(point: Any) -> bool:
    """Whether all hooks on a hook point only hand on what passes to another: TransformerLens 4 has some of its own."""
    put_there = [getattr(handle, "user_hook", None) for handle in point.fwd_hooks]
    mirrors = [getattr(hook, "__module__", None) == _MIRRORS for hook in put_there]
    others = (point._forward_pre_hooks, point._backward_hooks, point._backward_pre_hooks)
    return all(mirrors) and len(mirrors) == len(point._forward_hooks) and not any(others)


_MIRRORS = "transformer_lens.model_bridge.component_setup"
_PATTERN_HOOK = re.compile(
    r"(?P<stack>(?:encoder_|decoder_)?)blocks\.(?P<layer>\d+)\.(?:(?P<kind>attn|self_attn|cross_attn)\.)hook_pattern$"
)


def _site(match: re.Match[str]) -> Site:
    cross = match["kind"] == "cross_attn"
    stack = "cross" if cross else match["stack"].removesuffix("_") or "self"
    return Site(stack, int(match["layer"]), match.string)


@contextmanager
def _reading_blocks(model: Any, read: StateReader) -> Iterator[Any]:
    """Context manager: reads what enters every block; gives the blocks, the encoder's where there are two stacks."""
    stack = "encoder_blocks" if "encoder_blocks.0.hook_resid_pre" in model.hook_dict else "blocks"
    blocks = getattr(model, stack)
    hooks: list[tuple[str, Any]] = [
        (f"{stack}.{layer}.hook_resid_pre", lambda state, hook, layer=layer: read(layer, state))
        for layer in range(len(blocks))
    ]
    with model.hooks(fwd_hooks=hooks):
        yield blocks
