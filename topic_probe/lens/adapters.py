"""One adapter for each kind of hooked model: all that differs between hosts stands here.

* `HuggingFaceAdapter`: this package's own `HuggingFaceHost`, which needs to know nothing of an architecture.
* `BridgeAdapter`: TransformerLens's bridge around a Hugging Face model.
* `OwnLayersAdapter`: models of TransformerLens's own layers (HookedTransformer, HookedEncoder, native bridge, toy).

`adapter` is the only place that tells them apart. A further kind of host is a further class, and a line there.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from topic_probe.lens import heads
from topic_probe.lens.changes import Change
from topic_probe.lens.heads import HeadWeights
from topic_probe.lens.huggingface import (
    EAGER,
    Probe,
    Way,
    arguments,
    attention_implementation,
    beside_sdpa,
    context_length,
    editing_inside,
    is_edited,
    probe,
    returned_patterns,
    run,
    run_as_it_is,
    settings_of,
    takes_decoder_ids,
    trial_inputs,
    trunk,
    ways_inside,
)
from topic_probe.lens.points import find_places, has_hooks, passing
from topic_probe.lens.running import without_traces
from topic_probe.lens.sites import Inputs, Site, some_tokens

StateReader = Callable[[int, Float[Tensor, "batch position d_model"]], None]


class Adapter(ABC):
    """What is asked of a hooked model, whatever its kind.

    Attributes:
        model: the hooked model.
        inside: the Hugging Face model that it wraps, None where there is none.
        config: the configuration of that one.
        kind: what the host is, in a word.
        processes_weights: whether the host may have changed the weights that it was given.
        has_decoder: whether a decoder wants tokens of its own.
        name: the class of the model, with that of the Hugging Face model inside where there is one.
    """

    kind = "hooked"
    processes_weights = True

    def __init__(self, model: Any, inside: Any) -> None:
        self.model, self.inside = model, inside
        self.config = getattr(inside, "config", None)
        self.has_decoder = inside is not None and takes_decoder_ids(trunk(inside))
        self.name = type(model).__name__ + ("" if inside is None else f"({type(inside).__name__})")

    def sites(self) -> tuple[Site, ...]:
        """Where the model attends, in any order: by default the pattern hooks that TransformerLens names."""
        matches = (_PATTERN_HOOK.match(name) for name in self.model.hook_dict)
        return tuple(_site(match) for match in matches if match)

    def no_sites(self) -> str:
        """Why a model without sites has none."""
        return "it has no hook point for a pattern (…attn.hook_pattern)"

    def has_hooks(self) -> bool:
        """Whether somebody has put hooks on its hook points; what they change is only seen on the way through these."""
        return any(map(has_hooks, self.model.hook_dict.values()))

    def showing_patterns(self) -> AbstractContextManager[None]:
        """A block in which every pattern passes through its hook point."""
        return nullcontext()

    @abstractmethod
    def run(self, inputs: Inputs) -> Any:
        """One forward pass, without the scores over the vocabulary where the host allows it.

        The answer holds the last states by name.
        """

    @abstractmethod
    def logits(self, inputs: Inputs) -> Float[Tensor, "batch position vocabulary"]:
        """Scores over the vocabulary at every position, those of the decoder where there is one.

        Raises:
            ValueError: where the model has no head that gives them.
        """

    def ways_to_edit(self, inputs: Inputs, sites: tuple[Site, ...]) -> Iterator[Way]:
        """How the heads of the model might be edited, the best first: by default at its hook points."""
        yield _AT_HOOKS

    @contextmanager
    def editing(self, way: Way, changes: Callable[[Site], Change]) -> Iterator[None]:
        """A block in which every forward pass has its heads edited in one of these ways.

        Args:
            way: which.
            changes: what is done at a site, asked for at every call.
        """

        def hooks(site: Site) -> list[tuple[str, Any]]:
            before = site.hook_name.removesuffix("hook_pattern")
            return [
                (site.hook_name, lambda pattern, hook: changes(site).pattern(pattern)),
                (f"{before}hook_z", lambda outputs, hook: changes(site).replace(outputs)),
            ]

        put_on = [hook for site in self.sites() for hook in hooks(site)]
        with self.showing_patterns(), self.model.hooks(fwd_hooks=put_on):
            yield

    def as_made(self) -> Probe | None:
        """What a trial has shown when the model was made; None where it has to be tried."""
        return None

    def run_as_it_is(self, inputs: Inputs) -> Any:
        """The answer of a model that nothing was done to; None where reading does nothing to it."""
        return None

    def beside_sdpa(self, inputs: Inputs, shown: Mapping[Site, Tensor], as_it_is: Any) -> Probe | None:
        """How to read rows beside the fused kernel; None where they are not those of the patterns that it has shown."""
        return None

    @abstractmethod
    def trial_inputs(self) -> Inputs:
        """A few tokens to try the model on."""

    @abstractmethod
    def hidden_states(self, inputs: Inputs, read: StateReader) -> None:
        """Streams what enters the first block, and what leaves each."""

    @abstractmethod
    def word_embeddings(self) -> Float[Tensor, "vocabulary d_embed"]:
        """The word embedding table as it is."""

    @abstractmethod
    def context_length(self) -> int | None:
        """How many tokens the model can take; None where nothing limits it."""

    def head_weights(self, site: Site) -> HeadWeights:
        """The projections of every head at a site: by default where TransformerLens puts them."""
        attention = _behind(self.model, site)
        q, k, v, o = (getattr(attention, name).detach() for name in ("W_Q", "W_K", "W_V", "W_O"))
        return HeadWeights(*(heads.for_each_head(matrix, len(q)) for matrix in (q, k, v, o)))

    def embedding_in_residual(
        self, table: Float[Tensor, "vocabulary d_embed"]
    ) -> Float[Tensor, "vocabulary d_model"]:
        """What every word of the word embedding table brings into the residual stream: by default itself."""
        return table

    @abstractmethod
    def unembedding(self) -> Float[Tensor, "d_model vocabulary"]:
        """The matrix from the residual stream to scores over the vocabulary."""


_AT_HOOKS = Way("hooks")


def adapter(model: Any) -> Adapter:
    """The adapter for a hooked model."""
    inside = getattr(model, "original_model", None)
    if isinstance(getattr(model, "probe", None), Probe):
        return HuggingFaceAdapter(model, inside)
    if isinstance(inside, nn.Module) and hasattr(inside, "get_input_embeddings"):
        return BridgeAdapter(model, inside)
    return OwnLayersAdapter(model, None)


class _AroundHuggingFace(Adapter):
    """What hosts around a Hugging Face model have in common: it is asked itself."""

    def run_as_it_is(self, inputs: Inputs) -> Any:
        """Of the trunk of the model inside."""
        return run_as_it_is(trunk(self.inside), inputs)

    def beside_sdpa(self, inputs: Inputs, shown: Mapping[Site, Tensor], as_it_is: Any) -> Probe | None:
        """As the model inside shows."""
        return beside_sdpa(self.inside, inputs, shown, as_it_is)

    def trial_inputs(self) -> Inputs:
        """With tokens for the decoder where there is one."""
        return trial_inputs(self.inside)

    def word_embeddings(self) -> Float[Tensor, "vocabulary d_embed"]:
        """The table of the model inside."""
        table: Tensor = self.inside.get_input_embeddings().weight
        return table.detach()

    def context_length(self) -> int | None:
        """As its configuration says."""
        return context_length(self.inside)

    def embedding_in_residual(
        self, table: Float[Tensor, "vocabulary d_embed"]
    ) -> Float[Tensor, "vocabulary d_model"]:
        """Widened where the model has word embeddings narrower than itself."""
        return heads.embedding_in_residual(self.inside, table)

    @abstractmethod
    def attention_module(self, site: Site) -> nn.Module:
        """The module inside that attends at a site."""

    @abstractmethod
    def answer(self, inputs: Inputs) -> Any:
        """One forward pass with the head of the model."""

    def logits(self, inputs: Inputs) -> Float[Tensor, "batch position vocabulary"]:
        """Of the model inside."""
        if self.inside.get_output_embeddings() is None:
            raise ValueError(
                f"{type(self.inside).__name__} has no head that scores the vocabulary: load the model with its head "
                "(AutoModelForMaskedLM, AutoModelForCausalLM, AutoModelForSeq2SeqLM), or ask for its states"
            )
        scores: Tensor = self.answer(inputs).logits
        return scores

    def ways_to_edit(self, inputs: Inputs, sites: tuple[Site, ...]) -> Iterator[Way]:
        """Inside the attention function of the model."""
        return ways_inside(self.inside, inputs, sites)

    @contextmanager
    def editing(self, way: Way, changes: Callable[[Site], Change]) -> Iterator[None]:
        """There, or at the hook points of a bridge that computes attention by itself."""
        inside = way != _AT_HOOKS
        with editing_inside(self.inside, way, changes) if inside else super().editing(way, changes):
            yield

    def unembedding(self) -> Float[Tensor, "d_model vocabulary"]:
        """The matrix of its head."""
        d_model = self.embedding_in_residual(self.word_embeddings()).shape[1]
        return heads.unembedding(self.inside, d_model=d_model)


class HuggingFaceAdapter(_AroundHuggingFace):
    """This package's host: the probe that it was built with knows where it attends."""

    kind = "adapter-free"
    processes_weights = False

    def sites(self) -> tuple[Site, ...]:
        """The calls of attention that the probe has seen."""
        return tuple(self.model.probe.sites)

    def no_sites(self) -> str:
        """Why the probe could read nothing."""
        return str(self.model.probe.reason)

    def as_made(self) -> Probe | None:
        """The probe, where it has seen attention and nothing has changed that it depends on."""
        known: Probe = self.model.probe
        return known if known.sites and self.model.settings == settings_of(self.inside) else None

    def run(self, inputs: Inputs) -> Any:
        """The host switches attention by itself."""
        return self.model(**arguments(trunk(self.inside), inputs), head=False)

    def answer(self, inputs: Inputs) -> Any:
        """The host switches attention by itself."""
        return self.model(**arguments(trunk(self.inside), inputs))

    def hidden_states(self, inputs: Inputs, read: StateReader) -> None:
        """As the model returns them."""
        wanted = {"output_hidden_states": True, "return_dict": True}
        if self.has_hooks():
            answer = self.model(**arguments(trunk(self.inside), inputs), head=False, **wanted)
        else:
            answer = run(trunk(self.inside), inputs, **wanted)
        states = getattr(answer, "encoder_hidden_states", None) or answer.hidden_states
        for layer, state in enumerate(states):
            read(layer, state)

    def head_weights(self, site: Site) -> HeadWeights:
        """The projections of the module behind the call."""
        n_heads = self.model.probe.n_heads[self.model.probe.sites.index(site)]
        return heads.of_attention(self.inside, self.attention_module(site), n_heads)

    def attention_module(self, site: Site) -> nn.Module:
        """The module behind the call."""
        if not self.model.probe.modules:
            raise ValueError(
                f"{type(self.inside).__name__} hides its attention layers, so the weights of its heads cannot be read"
            )
        module: nn.Module = self.model.probe.modules[self.model.probe.sites.index(site)]
        return module


class BridgeAdapter(_AroundHuggingFace):
    """TransformerLens's bridge: its hook points show patterns where the model inside computes them eagerly."""

    kind = "bridge"

    def has_hooks(self) -> bool:
        """Those that somebody has put there: TransformerLens 4 has hooks of its own on parts that no module holds."""
        return any(has_hooks(point) and not _only_mirrors(point) for point in self.model.hook_dict.values())

    def showing_patterns(self) -> AbstractContextManager[None]:
        """Eager attention, because fused kernels form no pattern that could be shown."""
        return attention_implementation(self.inside, EAGER if is_edited(self.inside) else "eager")

    def run(self, inputs: Inputs) -> Any:
        """Of the trunk of the model inside, whose modules the bridge has replaced by its own."""
        return run(trunk(self.inside), inputs)

    def answer(self, inputs: Inputs) -> Any:
        """Of the model inside."""
        return run(self.inside, inputs)

    def ways_to_edit(self, inputs: Inputs, sites: tuple[Site, ...]) -> Iterator[Way]:
        """Inside the attention function where the bridge leaves attention to the model, else at hook points."""
        yield from super().ways_to_edit(inputs, sites)
        yield _AT_HOOKS

    def attention_module(self, site: Site) -> nn.Module:
        """The bridge's own, which has taken the place of the model's."""
        module: nn.Module = _behind(self.model, site)
        return module

    def hidden_states(self, inputs: Inputs, read: StateReader) -> None:
        """At the hook points of the blocks; the last as the trunk returns it."""
        with _reading_blocks(self.model, read) as blocks:
            answer = self.run(inputs)
        encoded = getattr(answer, "encoder_last_hidden_state", None)
        read(len(blocks), answer.last_hidden_state if encoded is None else encoded)


class OwnLayersAdapter(Adapter):
    """Models of TransformerLens's own layers, which it names itself."""

    def __init__(self, model: Any, inside: Any) -> None:
        super().__init__(model, inside)
        if is_a(model, "TransformerBridge"):  # around layers of TransformerLens's own
            self.kind = "bridge"

    def run(self, inputs: Inputs) -> Any:
        """The last states are as the final normalisation gives them."""
        # Some hosts hook the final normalisation before its weights are applied: its output is wanted.
        last = getattr(self.model, "ln_final", None) or self.model.blocks[-1]
        with _output_of(last) as outputs:
            self._call(inputs, None)
        return {"last_hidden_state": outputs[-1]}

    def logits(self, inputs: Inputs) -> Float[Tensor, "batch position vocabulary"]:
        """As the model gives them."""
        scores: Tensor = self._call(inputs, "logits")
        return scores

    def _call(self, inputs: Inputs, wanted: str | None) -> Any:
        """The mask goes by the name that the class gives it."""
        name = "one_zero_attention_mask" if is_a(self.model, "HookedEncoder") else "attention_mask"
        return self.model(inputs.ids, **{name: inputs.mask.long()}, return_type=wanted)

    def trial_inputs(self) -> Inputs:
        """Over all of its vocabulary."""
        return some_tokens(len(self.word_embeddings()), next(self.model.parameters()).device)

    def hidden_states(self, inputs: Inputs, read: StateReader) -> None:
        """At the hook points of the blocks; the last as the final normalisation gives it."""
        with _reading_blocks(self.model, read) as blocks:
            answer = self.run(inputs)
        read(len(blocks), answer["last_hidden_state"])

    def word_embeddings(self) -> Float[Tensor, "vocabulary d_embed"]:
        """``W_E``."""
        table: Tensor = self.model.W_E
        return table.detach()

    def context_length(self) -> int | None:
        """``n_ctx``."""
        return getattr(self.model.cfg, "n_ctx", None)

    def unembedding(self) -> Float[Tensor, "d_model vocabulary"]:
        """``W_U``."""
        matrix: Tensor = self.model.W_U
        return matrix.detach()


def is_a(model: Any, class_name: str) -> bool:
    """Whether a model is of a TransformerLens class, without importing TransformerLens (4 has dropped some)."""
    return any(cls.__name__ == class_name for cls in type(model).__mro__)


# The names that TransformerLens gives to what it hooks.


def _behind(model: Any, site: Site) -> Any:
    """What attends at a site, where TransformerLens puts it."""
    attention = model
    for part in site.hook_name.removesuffix(".hook_pattern").split("."):
        attention = getattr(attention, part) if not part.isdigit() else attention[int(part)]
    return attention


_PATTERN_HOOK = re.compile(
    r"(?P<stack>(?:encoder_|decoder_)?)blocks\.(?P<layer>\d+)\.(?:(?P<kind>attn|self_attn|cross_attn)\.)hook_pattern$"
)


def _only_mirrors(point: Any) -> bool:
    """Whether all hooks on a hook point only hand on what passes to another, as TransformerLens has put them there."""
    put_there = [getattr(handle, "user_hook", None) for handle in point.fwd_hooks]
    mirrors = [getattr(hook, "__module__", None) == _MIRRORS for hook in put_there]
    others = (point._forward_pre_hooks, point._backward_hooks, point._backward_pre_hooks)
    return all(mirrors) and len(mirrors) == len(point._forward_hooks) and not any(others)


_MIRRORS = "transformer_lens.model_bridge.component_setup"


def _site(match: re.Match[str]) -> Site:
    cross = match["kind"] == "cross_attn"
    stack = "cross" if cross else match["stack"].removesuffix("_") or "self"
    return Site(stack, int(match["layer"]), match.string)


@contextmanager
def _reading_blocks(model: Any, read: StateReader) -> Iterator[Any]:
    """Reads what enters every block inside the block of code; gives the blocks, the encoder's where there are two."""
    stack = "encoder_blocks" if "encoder_blocks.0.hook_resid_pre" in model.hook_dict else "blocks"
    blocks = getattr(model, stack)
    hooks: list[tuple[str, Any]] = [
        (f"{stack}.{layer}.hook_resid_pre", lambda state, hook, layer=layer: read(layer, state))
        for layer in range(len(blocks))
    ]
    with model.hooks(fwd_hooks=hooks):
        yield blocks


@contextmanager
def _output_of(module: nn.Module) -> Iterator[list[Tensor]]:
    """What a module gives inside the block."""
    outputs: list[Tensor] = []

    def look(_module: nn.Module, _given: Any, output: Any) -> None:
        outputs.append(output[0] if isinstance(output, tuple) else output)

    handle = module.register_forward_hook(look)
    try:
        yield outputs
    finally:
        handle.remove()


# The host that needs no adapter for an architecture.


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

        It is a `HookedRootModule` of the installed TransformerLens with its hook points under the usual names:
        ``blocks.i`` in models with one stack, and ``encoder_blocks.i`` and ``decoder_blocks.i`` otherwise, in which
        ``attn``, ``self_attn`` and ``cross_attn`` are what attends.

        ============================== ==================================================================
        ``attn.hook_q``                queries of the call of attention [batch, position, head, d_head], behind
                                       normalisation and rotary positions where there are any
        ``attn.hook_k``, ``hook_v``    its keys and values; heads that share them have one
        ``attn.hook_attn_scores``      what enters the softmax [batch, head, query, key]: scaled, with biases and masks
        ``attn.hook_pattern``          what comes out of it
        ``attn.hook_z``                outputs of heads, before the output projection
        ``hook_attn_out``              what the output projection makes of them, before any normalisation
                                       (``hook_cross_attn_out`` of attention to an encoder)
        ``hook_resid_pre``, ``_post``  what goes into a layer, and what comes out of it, before any final normalisation
        ============================== ==================================================================

        What a hook returns takes effect. A hook on a point that the model does not come by is an error (scores, where
        an attention function of your own takes no softmax). Models that bypass the attention interface of transformers
        only return their patterns at the end: these have no other hook points, and changes are refused. Layers are
        those that attend; ``hook_attn_out`` is there where the output projection is known. The model inside is used as
        it is and never changed. A model whose attention cannot be read has no hook points, and its ``probe`` says why.
        """

        def __init__(self, model: nn.Module, tokenizer: Any) -> None:
            super().__init__()
            self.original_model = model
            self.tokenizer = tokenizer
            self.probe = probe(model)
            self.settings = settings_of(model)
            self.editable: list[Any] = []
            self.places = find_places(model, self.probe)
            for name in self.places.names:
                _plant(self, name, hook_points.HookPoint())
            with without_traces(model):  # it writes names on every module
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
            """The Hugging Face model's own answer, its attention and its layers having passed through the hook points.

            Args:
                input_ids: token ids [batch, position].
                attention_mask: 1 on real tokens; required, because ids alone do not say what is padding.
                head: False leaves out the head and its scores over the vocabulary.
                options: passed on to the Hugging Face model, such as ``decoder_input_ids``.
            """
            model = self.original_model if head else trunk(self.original_model)
            options |= {"input_ids": input_ids, "attention_mask": attention_mask}
            if not self.probe.sites:  # its attention cannot be read, and nothing is done to it
                with without_traces(model):
                    return model(**options)
            if is_edited(model) and not any(map(has_hooks, self.hook_dict.values())):
                with without_traces(model):  # the attention in which heads are edited is on it already
                    return model(**options)
            if self.probe.through == "calls":
                with (
                    passing(self.places, self.hook_dict) as listener,
                    attention_implementation(self.original_model, EAGER, listener),
                    without_traces(model),
                ):
                    return model(**options)
            options |= {"output_attentions": True, "return_dict": True}
            with attention_implementation(self.original_model, "eager"), without_traces(model):
                answer = model(**options)
            for site, pattern in zip(self.probe.sites, returned_patterns(model, answer), strict=True):
                _only_look(self.original_model, self.hook_dict[site.hook_name], pattern)
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
