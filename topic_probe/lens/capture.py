"""What analyzers may ask of a model: its word embeddings, attention rows, hidden states and head weights.

All of it comes out as plain tensors, under the same names for every kind of hooked model. Hooks are put on and
taken off here and nowhere else. `view` looks at a model once, by running it on a few tokens, and refuses what it
cannot read correctly; that is where the silent failures of the hosts are caught.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from topic_probe.lens import huggingface
from topic_probe.lens.huggingface import Probe
from topic_probe.lens.sites import Inputs, Site, some_tokens
from topic_probe.lens.sites import key_side as key_side
from topic_probe.lens.sites import keys_mask as keys_mask
from topic_probe.lens.sites import queries_mask as queries_mask
from topic_probe.lens.sites import query_side as query_side
from topic_probe.topics import Topics
from topic_probe.topics.vocabulary import tokenizer_hash

RowReader = Callable[[int, Float[Tensor, "batch head row key"], Bool[Tensor, "batch row key"]], None]
Through = Literal["auto", "hooks", "rows"]

_PATTERN_HOOK = re.compile(
    r"(?P<stack>(?:encoder_|decoder_)?)blocks\.(?P<layer>\d+)\.(?:(?P<kind>attn|self_attn|cross_attn)\.)hook_pattern$"
)


def sites(model: Any) -> tuple[Site, ...]:
    """The places where a hooked model attends, by stack and layer; empty where it has no attention."""
    if isinstance(seen := getattr(model, "probe", None), Probe):
        found = list(seen.sites)
    else:
        found = [_site(match) for name in model.hook_dict if (match := _PATTERN_HOOK.match(name))]
    order = {"self": 0, "encoder": 1, "decoder": 2, "cross": 3}
    return tuple(sorted(found, key=lambda site: (order[site.stack], site.layer)))


def _site(match: re.Match[str]) -> Site:
    cross = match["kind"] == "cross_attn"
    stack = "cross" if cross else match["stack"].removesuffix("_") or "self"
    return Site(stack, int(match["layer"]), match.string)


def huggingface_model(model: Any) -> Any:
    """The Hugging Face model inside a host, or None where the host brings its own layers."""
    inside = getattr(model, "original_model", None)
    return inside if isinstance(inside, nn.Module) and hasattr(inside, "get_input_embeddings") else None


@dataclass(frozen=True)
class View:
    """A hooked model as analyzers see it.

    Attributes:
        model: the hooked model, unchanged.
        sites: where it attends.
        n_heads: number of heads at every site.
        honours_padding: False where the host attends to padding whatever the mask says; documents of different length
            then never share a batch.
        tap: how to read attention inside a Hugging Face model on its fused kernel; None where that is not possible.
    """

    model: Any
    sites: tuple[Site, ...]
    n_heads: tuple[int, ...]
    honours_padding: bool
    tap: Probe | None
    _seen_offsets: dict[int, tuple[int, int, int]] = field(default_factory=dict, repr=False)

    @property
    def device(self) -> torch.device:
        """Where the model is; inputs are moved there."""
        found: torch.device = next(self.model.parameters()).device
        return found

    @property
    def has_decoder(self) -> bool:
        """Whether a decoder wants tokens of its own."""
        inside = huggingface_model(self.model)
        return inside is not None and huggingface.takes_decoder_ids(huggingface.trunk(inside))

    def inputs(self, ids: Int64[Tensor, "batch position"], mask: Bool[Tensor, "batch position"]) -> Inputs:
        """What goes into the model for right-padded documents.

        A decoder reads the document behind its start token, as it does in training.
        """
        if not self.has_decoder:
            return Inputs(ids, mask).to(self.device)
        start = torch.full_like(ids[:, :1], decoder_start(huggingface_model(self.model)))
        return Inputs(ids, mask, torch.cat([start, ids[:, :-1]], 1), mask.clone()).to(self.device)

    def attention_rows(
        self,
        inputs: Inputs,
        rows: Mapping[str, Int64[Tensor, "batch row"]],
        read: RowReader,
        *,
        through: Through = "auto",
    ) -> None:
        """Streams the rows of every site's pattern that belong to the wanted queries.

        Args:
            inputs: right-padded documents.
            rows: the wanted query positions, under "source" and, for a decoder, under "target".
            read: is given the number of the site, the rows of its pattern after softmax, and which keys each row may
                see. It must not keep the tensors.
            through: "hooks" reads whole patterns from hook points; "rows" lets a Hugging Face model run on its fused
                kernel and computes only the wanted rows beside it; "auto" takes the second where it is known to agree.

        Raises:
            ValueError: where a site shows no pattern, or "rows" is asked of a model that cannot do it.
        """
        if through == "rows" and self.tap is None:
            raise ValueError(
                f"through='rows' needs a Hugging Face model that supports sdpa attention; {describe_class(self.model)} "
                "is read through='hooks'"
            )
        with huggingface.evaluating(self.model):
            if through == "hooks" or self.tap is None or has_hooks(self.model):
                self._through_hooks(inputs, rows, read)
            else:
                self._beside_sdpa(self.tap, inputs, rows, read)

    def _beside_sdpa(self, tap: Probe, inputs: Inputs, rows: Mapping[str, Tensor], read: RowReader) -> None:
        inside = huggingface_model(self.model)
        numbers = {site.hook_name: number for number, site in enumerate(self.sites)}
        reader = _RowListener(tap, [numbers[site.hook_name] for site in tap.sites], rows, read, inputs.mask)
        with (
            huggingface.attention_implementation(inside, huggingface.BESIDE_SDPA),
            huggingface.listening(reader),
        ):
            huggingface.run(huggingface.trunk(inside), inputs)
        reader.calls.finish()

    def _through_hooks(self, inputs: Inputs, rows: Mapping[str, Tensor], read: RowReader) -> None:
        def take(number: int, pattern: Tensor) -> None:
            site = self.sites[number]
            index = rows[query_side(site)].to(pattern.device)
            visible = visible_by_offset(
                index, keys_mask(site, inputs), self._offsets(number, pattern, inputs)
            )
            # Document by document, whole rows are copied; one gather of them all would look up every single number.
            chosen = [one.index_select(1, wanted) for one, wanted in zip(pattern, index, strict=True)]
            read(number, torch.stack(chosen), visible)

        with_patterns(self.model, self.sites, inputs, take)

    def _offsets(self, number: int, pattern: Tensor, inputs: Inputs) -> tuple[float, float]:
        """Which offsets a site sees, found out in the longest document so far.

        From the pattern itself, because what a configuration says of causality can be wrong.
        """
        site = self.sites[number]
        if site.stack == "cross":
            return -torch.inf, torch.inf
        lengths = queries_mask(site, inputs).sum(1)
        length = int(lengths.max())
        longest, low, high = self._seen_offsets.get(number, (0, 0, 0))
        if length > longest:
            seen = seen_offsets(pattern[int(lengths.argmax()), :, :length, :length])
            longest, low, high = length, min(low, seen[0]), max(high, seen[1])
            self._seen_offsets[number] = longest, low, high
        # What reaches to the edge of the longest document has no limit that anyone has seen.
        unlimited = low == 1 - longest, high == longest - 1
        return -torch.inf if unlimited[0] else float(low), torch.inf if unlimited[1] else float(high)


class _RowListener:
    """Reads the wanted rows of every attention call beside the fused kernel."""

    def __init__(
        self, seen: Probe, numbers: list[int], rows: Mapping[str, Tensor], read: RowReader, mask: Tensor
    ) -> None:
        self.calls = huggingface.CallCounter(seen)
        self.numbers, self.wanted_rows, self.read, self.mask = numbers, rows, read, mask

    def pattern(self, module: nn.Module, pattern: Tensor, mask: Tensor | None) -> Tensor:
        raise AssertionError("whole patterns are read through hook points")

    def rows(
        self,
        module: nn.Module,
        wanted: Callable[[Tensor], Tensor],
        mask: Tensor | None,
        shape: tuple[int, int],
    ) -> None:
        call = self.calls.next(module)
        index = self.wanted_rows[query_side(self.calls.seen.sites[call])].to(self.mask.device)
        visible = huggingface.visible_keys(mask, len(index), *shape).to(index.device)
        chosen = visible.gather(1, index[:, :, None].expand(-1, -1, shape[1]))
        self.read(self.numbers[call], wanted(index), chosen)


def visible_by_offset(
    index: Int64[Tensor, "batch row"], keys: Bool[Tensor, "batch key"], offsets: tuple[float, float]
) -> Bool[Tensor, "batch row key"]:
    """Which real keys lie within a site's offsets of the queries at ``index``."""
    offset = torch.arange(keys.shape[1], device=index.device) - index[:, :, None]
    return (offset >= offsets[0]) & (offset <= offsets[1]) & keys[:, None, :]


def seen_offsets(pattern: Float[Tensor, "head query key"]) -> tuple[int, int]:
    """Lowest and highest offset of a key from its query that any head attends to.

    One pair may underflow to exactly zero in every head; a whole diagonal of pairs does so only where a mask forbids.
    """
    position = torch.arange(pattern.shape[-1], device=pattern.device)
    used = (position - position[:, None])[(pattern > 0).any(0)]
    return (int(used.min()), int(used.max())) if used.numel() else (0, 0)


def with_patterns(
    model: Any, wanted: tuple[Site, ...], inputs: Inputs, take: Callable[[int, Tensor], None]
) -> Any:
    """Runs a hooked model and hands every site's pattern to ``take``; the hooks are gone afterwards.

    Raises:
        ValueError: where a site stayed silent.
    """
    silent = set(range(len(wanted)))

    def hook_for(number: int) -> Callable[..., None]:
        def look(pattern: Tensor, hook: Any) -> None:
            silent.discard(number)
            take(number, pattern.detach())

        return look

    hooks = [(site.hook_name, hook_for(number)) for number, site in enumerate(wanted)]
    with eager_attention(model), model.hooks(fwd_hooks=hooks):
        answer = run_trunk(model, inputs)
    if silent:
        names = ", ".join(wanted[number].hook_name for number in sorted(silent))
        raise ValueError(
            f"no attention pattern was seen at {names}. The host computes attention without showing it, as fused "
            "kernels (sdpa, flash) do: load the model with attn_implementation='eager' before wrapping it, or pass "
            "the Hugging Face model itself to topic_probe.open_model"
        )
    return answer


def patterns(model: Any, inputs: Inputs) -> dict[Site, Float[Tensor, "batch head query key"]]:
    """The whole pattern of every site; for a few tokens, because nothing is thrown away."""
    found = sites(model)
    shown: dict[Site, Tensor] = {}
    with huggingface.evaluating(model):
        with_patterns(model, found, inputs, lambda number, pattern: shown.__setitem__(found[number], pattern))
    return shown


@contextmanager
def eager_attention(model: Any) -> Iterator[None]:
    """Eager attention inside the block, because fused kernels never show a pattern; as it was afterwards."""
    inside = huggingface_model(model)
    if inside is None or isinstance(getattr(model, "probe", None), Probe):  # a probed host switches by itself
        yield
        return
    with huggingface.attention_implementation(inside, "eager"):
        yield


def run_trunk(model: Any, inputs: Inputs) -> Any:
    """One forward pass of a hooked model, without the scores over the vocabulary where the host allows it."""
    inside = huggingface_model(model)
    if isinstance(getattr(model, "probe", None), Probe):
        return model(**huggingface.arguments(huggingface.trunk(inside), inputs), head=False)
    if inside is not None:
        return huggingface.run(huggingface.trunk(inside), inputs)
    name = "one_zero_attention_mask" if is_a(model, "HookedEncoder") else "attention_mask"
    return model(inputs.ids, **{name: inputs.mask.long()}, return_type=None)


def is_a(model: Any, class_name: str) -> bool:
    """Whether a model is of a TransformerLens class, without importing TransformerLens (4 has dropped some)."""
    return any(cls.__name__ == class_name for cls in type(model).__mro__)


def is_hooked(model: Any) -> bool:
    """Whether something is a hooked model: it has named hook points and can put hooks on them."""
    return isinstance(model, nn.Module) and hasattr(model, "hook_dict") and hasattr(model, "hooks")


def has_hooks(model: Any) -> bool:
    """Whether anybody has put hooks on a model's patterns; only reading through hook points honours them."""
    return any(model.hook_dict[site.hook_name]._forward_hooks for site in sites(model))


def describe_class(model: Any) -> str:
    """A model's class, with that of the Hugging Face model inside where there is one."""
    inside = huggingface_model(model)
    return type(model).__name__ + (f"({type(inside).__name__})" if inside is not None else "")


def view(model: Any) -> View:
    """A hooked model as analyzers see it, after a trial run on a few tokens.

    Raises:
        TypeError: where it is not a hooked model.
        ValueError: where its attention cannot be read, or what it shows as patterns are none.
    """
    if not is_hooked(model):
        raise TypeError(
            f"needed a hooked model, not {type(model).__name__}: pass it through open_model first"
        )
    found = sites(model)
    if not found:
        reason = getattr(getattr(model, "probe", None), "reason", "") or (
            "it has no hook point for a pattern (…attn.hook_pattern)"
        )
        raise ValueError(
            f"the attention of {describe_class(model)} cannot be read: {reason}. "
            "measure_embeddings still works on it"
        )
    inputs = trial_inputs(model)
    with without_hooks(model):
        shown = _trial(model, found, inputs)
        honoured = all(_padding_is_dark(site, pattern, inputs) for site, pattern in shown.items())
        seen = View(model, found, tuple(shown[site].shape[1] for site in found), honoured, None)
        return replace(seen, tap=_tap(seen, shown, inputs) if honoured else None)


def _trial(model: Any, found: tuple[Site, ...], inputs: Inputs) -> dict[Site, Tensor]:
    """The pattern of every site on a few tokens, each checked as soon as it is seen."""
    shown: dict[Site, Tensor] = {}

    def take(number: int, pattern: Tensor) -> None:
        _check_pattern(model, found[number], pattern, inputs)
        shown[found[number]] = pattern

    try:
        with huggingface.evaluating(model):
            with_patterns(model, found, inputs, take)
    except ValueError:
        raise
    except Exception as error:  # a host may fail in any way on inputs that others take
        raise ValueError(
            f"{describe_class(model)} fails on a few tokens ({type(error).__name__}: {error}), so its attention cannot "
            "be read. Where it wraps a Hugging Face model, pass that to topic_probe.open_model instead"
        ) from error
    return shown


def _tap(seen: View, shown: Mapping[Site, Tensor], inputs: Inputs) -> Probe | None:
    """How to read a model's attention beside its fused kernel; None where that fails or shows other numbers."""
    inside = huggingface_model(seen.model)
    if inside is None:
        return None
    found = getattr(seen.model, "probe", None)
    if isinstance(found, Probe):
        return found if found.beside_sdpa else None
    # The wrappers of a bridge make a model return its patterns several times over; the bridge's own are compared.
    found = huggingface.probe(inside, check_returned=False)
    if not found.beside_sdpa or set(found.sites) != set(shown):
        return None
    every = {
        side: torch.arange(inputs.side(side)[0].shape[1], device=seen.device).expand(2, -1)
        for side in {query_side(site) for site in shown}
    }
    beside: dict[Site, Tensor] = {}

    def take(number: int, rows: Tensor, visible: Tensor) -> None:
        beside[seen.sites[number]] = rows

    replace(seen, tap=found).attention_rows(inputs, every, take, through="rows")
    same = all(huggingface.same_pattern(shown[site], beside[site], inputs) for site in seen.sites)
    return found if same else None


def trial_inputs(model: Any) -> Inputs:
    """A few tokens to try a model on."""
    inside = huggingface_model(model)
    if inside is not None:
        return huggingface.trial_inputs(inside)
    return some_tokens(vocabulary_size(model), next(model.parameters()).device)


@contextmanager
def without_hooks(model: Any) -> Iterator[None]:
    """Leaves out the hooks that are on a model's hook points inside the block: a trial must not trigger them."""
    kept = [(point, point.fwd_hooks, dict(point._forward_hooks)) for point in model.hook_dict.values()]
    try:
        for point, _, _ in kept:
            point.fwd_hooks = []
            point._forward_hooks.clear()
        yield
    finally:
        for point, hooks, torch_hooks in kept:
            point.fwd_hooks = hooks
            point._forward_hooks.update(torch_hooks)


def _check_pattern(model: Any, site: Site, pattern: Tensor, inputs: Inputs) -> None:
    queries, keys = queries_mask(site, inputs), keys_mask(site, inputs)
    wanted = (*queries.shape, keys.shape[1])
    right_shape = pattern.ndim == 4 and (len(pattern), *pattern.shape[2:]) == wanted
    # A row may sum to less than one (some models let a head attend to nothing), never to more.
    if not right_shape or bool((pattern < 0).any()) or bool((pattern.float().sum(-1) > 1.02).any()):
        raise ValueError(
            f"what {site.hook_name} of {describe_class(model)} shows is not an attention pattern: needed "
            f"probabilities of shape [{wanted[0]}, head, {wanted[1]}, {wanted[2]}], got {tuple(pattern.shape)} with "
            f"values from {float(pattern.min()):.3g} to {float(pattern.max()):.3g}. Pass the Hugging Face model itself "
            "to topic_probe.open_model, which reads it without the adapter"
        )


def _padding_is_dark(site: Site, pattern: Tensor, inputs: Inputs) -> bool:
    real_to_padding = (
        queries_mask(site, inputs)[:, None, :, None] & ~keys_mask(site, inputs)[:, None, None, :]
    )
    return not bool((pattern.masked_fill(~real_to_padding, 0) != 0).any())


def vocabulary_size(model: Any) -> int:
    """Rows of the word embedding table."""
    return word_embeddings(model, check=False).shape[0]


def word_embeddings(model: Any, *, check: bool = True) -> Float[Tensor, "vocabulary d_embed"]:
    """The raw word embedding table of a hooked model, detached; its width need not be the hidden size.

    Raises:
        ValueError: where weight processing has centred the table, so that its cosines are no longer the model's.
    """
    inside = huggingface_model(model)
    table: Tensor = (inside.get_input_embeddings().weight if inside is not None else model.W_E).detach()
    # A host of this package processes no weights, so there it is the model itself that has such a table.
    if check and not isinstance(getattr(model, "probe", None), Probe) and _is_centred(table):
        raise ValueError(
            f"the word embeddings of this {describe_class(model)} were centred by weight processing "
            "(enable_compatibility_mode, center_writing_weights), so their cosines are not the model's own; load it "
            "without (from_pretrained_no_processing, or enable_compatibility_mode(no_processing=True))"
        )
    return table


def _is_centred(table: Float[Tensor, "vocabulary d_embed"]) -> bool:
    sample = table[: min(len(table), 1000)].double()
    # Rounding errors of single numbers average out over a row.
    rounding = 2 * torch.finfo(table.dtype).eps * sample.abs().max() / table.shape[1] ** 0.5
    return table.shape[1] > 1 and bool(sample.any()) and bool(sample.mean(1).abs().max() < rounding)


def special_ids(model: Any) -> set[int]:
    """Ids of special tokens as far as the model's tokenizer or configuration tells; they have no topic."""
    if (tokenizer := getattr(model, "tokenizer", None)) is not None:
        return {index for index in tokenizer.all_special_ids if index is not None}
    config = getattr(huggingface_model(model), "config", None)
    found: set[int] = set()
    for name in ("pad", "bos", "eos", "cls", "sep", "mask", "unk", "decoder_start"):
        value = getattr(config, f"{name}_token_id", None)
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    return found


def pad_id(model: Any) -> int | None:
    """What padding holds by the model's tokenizer or configuration; None where neither says."""
    tokenizer = getattr(model, "tokenizer", None)
    value = getattr(tokenizer, "pad_token_id", None)
    return (
        value
        if value is not None
        else getattr(getattr(huggingface_model(model), "config", None), "pad_token_id", None)
    )


def decoder_start(inside: Any) -> int:
    """The token that a decoder starts with."""
    for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
        if (value := getattr(inside.config, name, None)) is not None:
            return int(value)
    return 0


def context_length(model: Any) -> int | None:
    """How many tokens a model can take; None where nothing limits it."""
    inside = huggingface_model(model)
    if inside is None:
        return getattr(model.cfg, "n_ctx", None)
    config = inside.config
    limit = getattr(config, "max_position_embeddings", None)
    if limit is None and not hasattr(
        config, "relative_attention_num_buckets"
    ):  # T5's n_positions is no limit
        limit = getattr(config, "n_positions", None)
    if limit is None or limit < 1:
        return None
    # RoBERTa numbers positions from the one behind the padding id, so that many rows of its table are never used.
    tables = [module for name, module in inside.named_modules() if name.endswith("position_embeddings")]
    unused = [table.padding_idx + 1 for table in tables if getattr(table, "padding_idx", None) is not None]
    return int(limit) - max(unused, default=0)


def check_topics(model: Any, topics: Topics) -> None:
    """Refuses topics made for another vocabulary or tokenizer.

    Raises:
        ValueError: where sizes or tokenizers differ. Tables padded beyond the tokenizer's vocabulary are accepted where
            the topics were made with the tokenizer of this model, or with an unknown one of nearly that size.
    """
    rows = vocabulary_size(model)
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is not None and topics.tokenizer_hash is not None:
        if tokenizer_hash(tokenizer) != topics.tokenizer_hash:
            raise ValueError(
                "the topics were made with another tokenizer than this model's, so their token ids mean other words; "
                "make them again with the model's own tokenizer"
            )
        return
    padded = topics.tokenizer_hash is not None and rows - 1024 < topics.vocabulary_size <= rows
    if topics.vocabulary_size != rows and not padded:
        raise ValueError(
            f"the topics are over a vocabulary of {topics.vocabulary_size} ids, the model's has {rows}; use topics "
            "made with the model's own tokenizer. If only the model's table was padded, say so with "
            f"topics.with_vocabulary_size({rows})"
        )


def hidden_states(
    model: Any, inputs: Inputs, read: Callable[[int, Float[Tensor, "batch position d_model"]], None]
) -> None:
    """Streams the states of the source positions: 0 is what enters the first block, i what leaves block i.

    The last one is behind the final normalisation where there is one, as in Hugging Face's ``hidden_states``. In
    encoder-decoder models these are the encoder's.
    """
    inside = huggingface_model(model)
    with huggingface.evaluating(model):
        if isinstance(getattr(model, "probe", None), Probe):
            answer = huggingface.run(
                huggingface.trunk(inside), inputs, output_hidden_states=True, return_dict=True
            )
            states = getattr(answer, "encoder_hidden_states", None) or answer.hidden_states
            for layer, state in enumerate(states):
                read(layer, state)
            return
        _hidden_states_of_blocks(model, inputs, read)


def _hidden_states_of_blocks(model: Any, inputs: Inputs, read: Callable[[int, Tensor], None]) -> None:
    prefix = "encoder_blocks" if "encoder_blocks.0.hook_resid_pre" in model.hook_dict else "blocks"
    blocks = getattr(model, prefix)
    hooks: list[tuple[str, Any]] = [
        (f"{prefix}.{layer}.hook_resid_pre", lambda state, hook, layer=layer: read(layer, state.detach()))
        for layer in range(len(blocks))
    ]
    with model.hooks(fwd_hooks=hooks):
        if huggingface_model(model) is not None:
            answer = run_trunk(model, inputs)
            state = getattr(answer, "encoder_last_hidden_state", None)
            last = answer.last_hidden_state if state is None else state
        else:
            # Some hosts hook the final normalisation before its weights are applied: its output is wanted.
            with _output_of(getattr(model, "ln_final", blocks[-1])) as outputs:
                run_trunk(model, inputs)
            last = outputs[-1]
    read(len(blocks), last.detach())


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


def describe(model: Any) -> dict[str, Any]:
    """What a report says of the model it measured."""
    inside = huggingface_model(model)
    config = getattr(inside, "config", None)
    parameter = next(model.parameters())
    named = getattr(config, "_name_or_path", None) or getattr(model.cfg, "model_name", None)
    return {
        "host": describe_class(model),
        "name": named or None,
        "revision": getattr(config, "_commit_hash", None),
        "dtype": str(parameter.dtype).removeprefix("torch."),
        "device": parameter.device.type,
        "parameters": sum(tensor.numel() for tensor in model.parameters()),
    }
