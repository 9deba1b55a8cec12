"""Any hooked model as measurements see it: attention rows, hidden states, word embeddings and head weights.

All of it comes out as plain tensors, under the same names for every kind of hooked model. `host_of` tries a model on a
few tokens and refuses what it cannot read correctly. Hooks are put on and taken off here and nowhere else.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from topic_probe.lens.hooked import Hooked, StateReader
from topic_probe.lens.running import decoder_start, evaluating, lock_of
from topic_probe.lens.sites import SIDES, Inputs, Site, take_rows
from topic_probe.lens.trial import Trial, in_order
from topic_probe.lens.weights import word_embeddings
from topic_probe.topics import Topics
from topic_probe.topics.lookup import tokenizer_hash

RowReader = Callable[[int, Float[Tensor, "batch head row key"], Bool[Tensor, "batch row key"]], None]


def is_hooked(model: Any) -> bool:
    """Whether something is a hooked model: it has named hook points and can put hooks on them."""
    return isinstance(model, nn.Module) and hasattr(model, "hook_dict") and hasattr(model, "hooks")


def sites_of(model: Any) -> tuple[Site, ...]:
    """The places where a hooked model attends, by stack and layer; empty where it has no attention."""
    return in_order(Hooked(model).sites())


@dataclass(frozen=True, kw_only=True)
class Host(Trial):
    """A hooked model, unchanged, with what a trial has shown of it.

    Attributes:
        model: the hooked model.
        hooked: how it is run: `run`, `logits`, `hidden_states`.
        facts: what is known of it without running it.
    """

    model: Any
    hooked: Hooked
    facts: "Facts"
    _masks: dict[Site, Tensor] = field(default_factory=dict, repr=False)

    @property
    def decoder_start(self) -> int:
        """The token that stands before a document in a decoder."""
        return decoder_start(self.hooked.config)

    def is_changed(self) -> bool:
        """Whether somebody has put hooks on the model or edits its heads: more than its weights is in its numbers."""
        inside = self.hooked.inside
        return self.hooked.has_hooks() or (
            inside is not None and any(map(_has_hooks_of_others, inside.modules()))
        )

    def inputs(self, ids: Int64[Tensor, "batch position"], mask: Bool[Tensor, "batch position"]) -> Inputs:
        """What goes into the model for right-padded documents, which are moved to where it is.

        A decoder reads the document behind its start token, as it does in training.
        """
        device = next(self.model.parameters()).device
        ids, mask = ids.to(device), mask.to(device)
        if not self.hooked.has_decoder:
            return Inputs(ids, mask)
        start = torch.full_like(ids[:, :1], self.decoder_start)
        return Inputs(ids, mask, torch.cat([start, ids[:, :-1]], 1), mask.clone())

    def reads_rows(self) -> bool:
        """Whether attention is read beside the fused kernel, and not from whole patterns at hook points."""
        return self.tap is not None and not self.hooked.has_hooks()

    def attention_rows(
        self, inputs: Inputs, rows: Mapping[str, Int64[Tensor, "batch row"]], read: RowReader
    ) -> None:
        """Streams the rows of every site's pattern that belong to the wanted queries.

        Args:
            inputs: right-padded documents.
            rows: the wanted query positions, under "source" and, for a decoder, under "target".
            read: is given the number of the site, the rows of its pattern after softmax, and which keys each row may
                see: the same tensor for sites where it is the same. It must not keep the rows.
        """
        numbers = {site: number for number, site in enumerate(self.sites)}
        with evaluating(self.model):
            if self.tap is not None and not self.hooked.has_hooks():
                self.tap.read_rows(
                    self.hooked.inside, inputs, rows,
                    lambda site, rows_at, visible: read(numbers[site], rows_at(slice(None)), visible),
                )  # fmt: skip
                return
            self._look_at_masks(inputs)
            visible_at: dict[object, Tensor] = {}

            def read_rows(site: Site, pattern: Tensor) -> None:
                index = rows[SIDES[site.stack][0]].to(pattern.device)
                visible = self._visible(site, pattern, inputs, index, visible_at)
                read(numbers[site], take_rows(pattern, index), visible)

            with_patterns(self.hooked, self.sites, inputs, read_rows)

    # Which keys a query may see, where patterns are read from hook points: a pair may underflow to exactly zero, or
    # somebody edits patterns, so that only a document of one and the same word shows the mask.

    def _look_at_masks(self, inputs: Inputs) -> None:
        """Looks at the mask of every site in a document as long as the longest so far, of one and the same word."""
        length = inputs.ids.shape[1]
        if self._masks and next(iter(self._masks.values())).shape[1] >= length:
            return
        ids = self.hooked.trial_inputs().ids[:1, :1].expand(1, length)
        one_word = self.inputs(ids, torch.ones_like(ids, dtype=torch.bool))
        masks: dict[Site, Tensor] = {}

        def look(site: Site, pattern: Tensor) -> None:
            seen = (pattern[0] > 0).any(0) | (site.stack == "cross")
            # One tensor for sites that see the same.
            masks[site] = next((mask for mask in masks.values() if torch.equal(mask, seen)), seen)

        with without_hooks(self.model):
            with_patterns(self.hooked, self.sites, one_word, look)
        self._masks.update(masks)

    def _visible(
        self, site: Site, pattern: Tensor, inputs: Inputs, index: Tensor, known: dict[object, Tensor]
    ) -> Bool[Tensor, "batch row key"]:
        queries, keys = inputs.masks(site)
        mask = self._masks[site]
        if (kind := (site.stack, id(mask))) not in known:
            known[kind] = mask[: queries.shape[1], : keys.shape[1]][index] & keys[:, None, :]
        hidden = ~mask[: queries.shape[1], : keys.shape[1]] & queries[:, :, None]
        if bool(((pattern > 0).any(1) & hidden & keys[:, None, :]).any()):
            raise ValueError(
                "which keys a query of a layer may see depends on the words, as in sparse attention that chooses its "
                "keys, and whole patterns do not tell a key that was not chosen from one that got nothing; it can be "
                "measured only beside the fused kernel, where the model runs on sdpa"
            )
        return known[kind]


def _has_hooks_of_others(module: nn.Module) -> bool:
    """Whether a module has hooks that are not of the packages which models are built with."""
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    packages = {str(getattr(hook, "__module__", "")).partition(".")[0] for hook in hooks}
    return not packages <= {"torch", "transformers", "accelerate", "peft"}


def host_of(model: Any, *topics: Topics) -> Host:
    """A hooked model as measurements see it, after a trial on a few tokens.

    Raises:
        TypeError: where it is not a hooked model.
        ValueError: for topics of another vocabulary; where its attention cannot be read, or what it shows as patterns
            are none.
    """
    if not is_hooked(model):
        raise TypeError(
            f"needed a hooked model, not {type(model).__name__}: pass it through open_model first"
        )
    hooked, known = Hooked(model), facts_of(model, *topics)
    with lock_of(model):
        trial = _trial(hooked)
    if notes := [note for note in (trial.sharing.note, trial.note) if note]:
        known = replace(known, description={**known.description, "notes": notes})
    return Host(
        **{each.name: getattr(trial, each.name) for each in fields(Trial)},
        model=model,
        hooked=hooked,
        facts=known,
    )


def _trial(hooked: Hooked) -> Trial:
    places = in_order(hooked.sites())
    reason = hooked.model.reason if hooked.is_opened else "it has no hook point …attn.hook_pattern"
    if not places:
        raise ValueError(
            f"the attention of {hooked.name} cannot be read: {reason}. measure_embeddings still works on it"
        )

    def show(inputs: Inputs) -> tuple[dict[Site, Tensor], Any]:
        shown: dict[Site, Tensor] = {}
        return shown, with_patterns(hooked, places, inputs, shown.__setitem__)

    try:
        with without_hooks(hooked.model), evaluating(hooked.model):
            return hooked.trial(show)
    except ValueError:
        raise
    except Exception as error:  # a host may fail in any way on inputs that others take
        raise ValueError(
            f"{hooked.name} fails on a few tokens ({type(error).__name__}: {error}), so its attention cannot "
            "be read. Where it wraps a Hugging Face model, pass that to topic_probe.open_model instead"
        ) from error


def with_patterns(
    hooked: Hooked, wanted: tuple[Site, ...], inputs: Inputs, read: Callable[[Site, Tensor], object]
) -> Any:
    """The answer of a hooked model, run with hooks that hand every site's pattern to ``read``."""
    silent = dict.fromkeys(wanted)

    def hook_for(site: Site) -> Callable[..., None]:
        def look(pattern: Tensor, hook: Any) -> None:
            silent.pop(site, None)
            read(site, pattern.detach())

        return look

    hooks = [(site.hook_name, hook_for(site)) for site in wanted]
    with hooked.showing_patterns(), hooked.model.hooks(fwd_hooks=hooks):
        answer = hooked.run(inputs)
    if silent:
        raise ValueError(
            f"no attention pattern was seen at {', '.join(site.hook_name for site in silent)}. The host computes "
            "attention without showing it, as fused kernels (sdpa, flash) do: load the model with "
            "attn_implementation='eager' before wrapping it, or pass the Hugging Face model itself to "
            "topic_probe.open_model"
        )
    return answer


def patterns_of(model: Any, inputs: Inputs) -> dict[Site, Float[Tensor, "batch head query key"]]:
    """The whole pattern of every site; for a few tokens, because nothing is thrown away."""
    shown: dict[Site, Tensor] = {}
    with evaluating(model):
        with_patterns(Hooked(model), sites_of(model), inputs, shown.__setitem__)
    return shown


@contextmanager
def without_hooks(model: Any) -> Iterator[None]:
    """Context manager: leaves out hooks on hook points, which a trial must not meet."""
    with lock_of(model):
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


# States.


def hidden_states(model: Any, inputs: Inputs, read: StateReader) -> None:
    """Streams the states of the source positions: 0 is what enters the first block, i what leaves block i.

    The last one is behind the final normalisation where there is one, as in Hugging Face's ``hidden_states``. In
    encoder-decoder models these are the encoder's.
    """
    with evaluating(model):
        Hooked(model).hidden_states(inputs, read)


def n_states(model: Any) -> int:
    """How many states `hidden_states` streams, counted on a few tokens: layers that do not attend have some, too."""
    layers: list[int] = []
    hidden_states(model, Hooked(model).trial_inputs(), lambda layer, states: layers.append(layer))
    return len(layers)


# What a model says of itself.


@dataclass(frozen=True)
class Facts:
    """What is known of a hooked model without running it.

    Attributes:
        vocabulary_size: rows of the word embedding table.
        context_length: how many tokens the model can take; None where nothing limits it.
        pad_id: what padding holds by the model's tokenizer or configuration; None where neither says.
        special_ids: ids of special tokens as far as tokenizer or configuration tells; they have no topic.
        description: what a report says of the model it measured, and of how it was read where that is unusual.
    """

    vocabulary_size: int
    context_length: int | None
    pad_id: int | None
    special_ids: frozenset[int]
    description: Mapping[str, Any]


def facts_of(model: Any, *topics: Topics) -> Facts:
    """What is known of a hooked model without running it, once it is sure that the topics are of its vocabulary.

    Raises:
        ValueError: for topics of another vocabulary or tokenizer. Tables padded beyond the tokenizer's vocabulary are
            accepted where the topics were made with the tokenizer of this model, or with an unknown one of nearly that
            size.
    """
    hooked, tokenizer = Hooked(model), getattr(model, "tokenizer", None)
    rows = word_embeddings(model, check=False).shape[0]
    for each in topics:
        _check_topics(each, tokenizer, rows)
    named: list[Any] = []
    if tokenizer is not None:
        named = tokenizer.all_special_ids
    else:
        for role in ("pad", "bos", "eos", "cls", "sep", "mask", "unk", "decoder_start"):
            value = getattr(hooked.config, f"{role}_token_id", None)
            named += value if isinstance(value, list) else [value]
    pad_id = getattr(tokenizer, "pad_token_id", None)
    parameter = next(model.parameters())
    name = getattr(hooked.config, "_name_or_path", None) or getattr(model.cfg, "model_name", None)
    return Facts(
        vocabulary_size=rows,
        context_length=hooked.context_length(),
        pad_id=getattr(hooked.config, "pad_token_id", None) if pad_id is None else pad_id,
        special_ids=frozenset(index for index in named if index is not None),
        description={
            "host": hooked.name,
            "name": name or None,
            "revision": getattr(hooked.config, "_commit_hash", None),
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "device": parameter.device.type,
            "parameters": sum(tensor.numel() for tensor in model.parameters()),
        },
    )


def _check_topics(topics: Topics, tokenizer: Any, rows: int) -> None:
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
