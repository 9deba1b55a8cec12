"""What analyzers may ask of a model: its word embeddings, attention rows, hidden states and head weights.

All of it comes out as plain tensors, under the same names for every kind of hooked model. Hooks are put on and
taken off here and nowhere else; what differs between kinds of hosts is asked of an `adapters.Adapter`. `view` looks at
a model by running it on a few tokens, and refuses what it cannot read correctly; that is where the silent failures of
the hosts are caught.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from topic_probe.lens.adapters import Adapter, StateReader, adapter
from topic_probe.lens.heads import HeadWeights
from topic_probe.lens.huggingface import (
    Probe,
    check_outputs,
    decoder_start,
    is_edited,
    unedited,
)
from topic_probe.lens.points import has_hooks_of_others
from topic_probe.lens.running import StillRunningError, by_itself, evaluating
from topic_probe.lens.sites import (
    SIDES,
    Cells,
    Columns,
    Findings,
    Inputs,
    SeenPairs,
    Site,
    check_pattern,
    findings,
    take_rows,
)
from topic_probe.topics import Topics
from topic_probe.topics.lookup import tokenizer_hash

RowReader = Callable[[int, Float[Tensor, "batch head row key"], Bool[Tensor, "batch row key"]], None]
CellReader = Callable[[int, Cells, Bool[Tensor, "batch row key"]], None]
Through = Literal["auto", "hooks", "rows"]


def is_hooked(model: Any) -> bool:
    """Whether something is a hooked model: it has named hook points and can put hooks on them."""
    return isinstance(model, nn.Module) and hasattr(model, "hook_dict") and hasattr(model, "hooks")


def sites(model: Any) -> tuple[Site, ...]:
    """The places where a hooked model attends, by stack and layer; empty where it has no attention."""
    return _in_order(adapter(model).sites())


def _in_order(places: tuple[Site, ...]) -> tuple[Site, ...]:
    order = {"self": 0, "encoder": 1, "decoder": 2, "cross": 3}
    return tuple(sorted(places, key=lambda site: (order[site.stack], site.layer)))


# Attention.


@dataclass(frozen=True, kw_only=True)
class Trial(Findings):
    """What is found of a hooked model, its sites by stack and layer.

    Attributes:
        tap: how to read attention inside a Hugging Face model on its fused kernel; None where that is not possible.
        editable: what a trial has shown of editing the model, once one was needed; of an adapter-free host its own.
    """

    tap: Probe | None
    editable: list[Any] = field(default_factory=list, repr=False)


@dataclass(frozen=True, kw_only=True)
class View(Trial):
    """A hooked model as analyzers see it.

    Attributes:
        model: the hooked model, unchanged.
        host: its adapter.
        facts: what is known of it without running it.
    """

    model: Any
    host: Adapter
    facts: "Facts"
    _seen: SeenPairs = field(default_factory=SeenPairs, repr=False)

    @property
    def decoder_start(self) -> int:
        """The token that stands before a document in a decoder."""
        return decoder_start(self.host.config)

    def is_changed(self) -> bool:
        """Whether somebody has put hooks on the model or edits its heads: more than its weights is in its numbers."""
        inside = self.host.inside
        return self.host.has_hooks() or (
            inside is not None and (is_edited(inside) or any(map(has_hooks_of_others, inside.modules())))
        )

    def inputs(self, ids: Int64[Tensor, "batch position"], mask: Bool[Tensor, "batch position"]) -> Inputs:
        """What goes into the model for right-padded documents, which are moved to where it is.

        A decoder reads the document behind its start token, as it does in training.
        """
        device = next(self.model.parameters()).device
        ids, mask = ids.to(device), mask.to(device)
        if not self.host.has_decoder:
            return Inputs(ids, mask)
        start = torch.full_like(ids[:, :1], self.decoder_start)
        return Inputs(ids, mask, torch.cat([start, ids[:, :-1]], 1), mask.clone())

    def reads_rows(self, through: Through = "auto") -> bool:
        """Whether attention is read beside the fused kernel, and not from whole patterns at hook points."""
        return through != "hooks" and self.tap is not None and not self.host.has_hooks()

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
                see: the same object for sites where it is the same. It must not keep the rows.
            through: "hooks" reads whole patterns from hook points; "rows" lets a Hugging Face model run on its fused
                kernel and computes only what is wanted beside it; "auto" takes the second where it is known to agree.

        Raises:
            ValueError: where a site shows no pattern, or "rows" is asked of a model that cannot do it.
        """
        self._stream(inputs, rows, None, read, through, len(inputs.ids))

    def attention_cells(
        self,
        inputs: Inputs,
        rows: Mapping[str, Int64[Tensor, "batch row"]],
        columns: Mapping[str, Columns],
        read: CellReader,
        *,
        through: Through = "auto",
        at_once: int | None = None,
    ) -> None:
        """Streams some columns of such rows, as `attention_rows`.

        Args:
            inputs: right-padded documents.
            rows: the wanted query positions.
            columns: the wanted key positions.
            read: is given the number of the site, its cells, and which keys each row may see.
            through: where they are read.
            at_once: of so many documents are cells computed and read at a time, in their order; None: of all.
        """
        self._stream(inputs, rows, columns, read, through, at_once or len(inputs.ids))

    def _stream(
        self,
        inputs: Inputs,
        rows: Mapping[str, Tensor],
        columns: Mapping[str, Columns] | None,
        read: Callable[..., None],
        through: Through,
        at_once: int,
    ) -> None:
        if through == "rows" and self.tap is None:
            raise ValueError(
                f"through='rows' needs a Hugging Face model that supports sdpa attention; {self.host.name} "
                "is read through='hooks'"
            )
        parts = [slice(start, start + at_once) for start in range(0, len(inputs.ids), at_once)]
        wanted = inputs, rows, columns, parts
        with evaluating(self.model):
            if self.tap is None or not self.reads_rows(through):
                if self.model in _held:  # patterns whose edges are cut do not show which keys may be seen
                    own = [number for number, site in enumerate(self.sites) if site.stack != "cross"]
                    self._look_at_one_word(own, inputs)
                if unclear := self._read_patterns(range(len(self.sites)), *wanted, read):
                    self._look_at_one_word(unclear, inputs)
                    self._read_patterns(unclear, *wanted, read)
            else:
                numbers = {site: number for number, site in enumerate(self.sites)}
                self.tap.read_rows(
                    self.host.inside, *wanted, lambda site, *shown: read(numbers[site], *shown)
                )

    def _read_patterns(
        self,
        numbers: Sequence[int],
        inputs: Inputs,
        rows: Mapping[str, Tensor],
        columns: Mapping[str, Columns] | None,
        parts: Sequence[slice],
        read: Callable[..., None],
    ) -> list[int]:
        """Reads the rows of some sites; gives the sites that it did not read, because their mask is not clear yet."""
        unclear, known = [], dict[object, list[Tensor]]()

        def read_rows(place: int, pattern: Tensor) -> None:
            site = self.sites[number := numbers[place]]
            of_rows, of_columns = SIDES[site.stack]
            index = rows[of_rows].to(pattern.device)
            keys, kind = inputs.masks(site)[1], None
            if site.stack != "cross":
                if not self._seen.look(number, _longest_document(pattern, inputs.masks(site)[0])):
                    unclear.append(number)
                    return
                kind = self._seen.kind(number)
            if (site.stack, kind) not in known:
                if site.stack == "cross":
                    visible = keys[:, None, :].expand(-1, index.shape[1], -1)
                else:
                    visible = self._seen.visible(number, index, keys)
                known[site.stack, kind] = [visible[part] for part in parts]
            for part, visible in zip(parts, known[site.stack, kind], strict=True):
                whole = take_rows(pattern[part], index[part])
                shown = whole if columns is None else Cells.of_rows(whole, columns[of_columns], part)
                read(number, shown, visible)

        with_patterns(self.host, tuple(self.sites[number] for number in numbers), inputs, read_rows)
        return unclear

    def _look_at_one_word(self, numbers: Sequence[int], inputs: Inputs) -> None:
        """Looks at the masks of some sites in one document as long as the longest, of one and the same word."""
        ids = self.host.trial_inputs().ids[:1, :1].expand(1, inputs.ids.shape[1])
        with without_hooks(self.model):
            with_patterns(
                self.host,
                tuple(self.sites[number] for number in numbers),
                self.inputs(ids, torch.ones_like(ids, dtype=torch.bool)),
                lambda place, pattern: self._seen.look(numbers[place], pattern[0], one_word=True),
            )


def _longest_document(
    pattern: Float[Tensor, "batch head query key"], real: Bool[Tensor, "batch query"]
) -> Float[Tensor, "head position position"]:
    lengths = real.sum(1)
    length = int(lengths.max())
    return pattern[int(lengths.argmax()), :, :length, :length]


def view(model: Any, *topics: Topics) -> View:
    """A hooked model as analyzers see it, after a trial run on a few tokens.

    Raises:
        TypeError: where it is not a hooked model.
        ValueError: for topics of another vocabulary; where its attention cannot be read, or what it shows as patterns
            are none.
    """
    if not is_hooked(model):
        raise TypeError(
            f"needed a hooked model, not {type(model).__name__}: pass it through open_model first"
        )
    host = adapter(model)
    known = facts_of(host, *topics)
    with by_itself(model):
        trial = _trial(host)
    if notes := [note for note in (trial.sharing.note, trial.note) if note]:
        known = replace(known, description={**known.description, "notes": notes})
    return View(**vars(trial), model=model, host=host, facts=known)


def with_patterns(
    host: Adapter, wanted: tuple[Site, ...], inputs: Inputs, read: Callable[[int, Tensor], object]
) -> Any:
    """Runs a hooked model and hands every site's pattern to ``read``; the hooks are gone afterwards.

    Returns:
        The answer of the model.

    Raises:
        ValueError: where a site stayed silent.
    """
    silent = set(range(len(wanted)))

    def hook_for(number: int) -> Callable[..., None]:
        def look(pattern: Tensor, hook: Any) -> None:
            silent.discard(number)
            read(number, pattern.detach())

        return look

    hooks = [(site.hook_name, hook_for(number)) for number, site in enumerate(wanted)]
    with host.showing_patterns(), host.model.hooks(fwd_hooks=hooks):
        answer = host.run(inputs)
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
    host = adapter(model)
    with evaluating(model):
        return _shown_patterns(host, _in_order(host.sites()), inputs)


def _shown_patterns(host: Adapter, places: tuple[Site, ...], inputs: Inputs) -> dict[Site, Tensor]:
    shown: dict[Site, Tensor] = {}
    with_patterns(host, places, inputs, lambda number, pattern: shown.__setitem__(places[number], pattern))
    return shown


@contextmanager
def without_hooks(model: Any) -> Iterator[None]:
    """Leaves out hooks on hook points, and edits of heads, inside the block: a trial must not meet them."""
    with by_itself(model), unedited():
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


# The trial of a model.


def _try_out(host: Adapter) -> Trial:
    places = _in_order(host.sites())
    if not places:
        raise ValueError(
            f"the attention of {host.name} cannot be read: {host.no_sites()}. "
            "measure_embeddings still works on it"
        )
    inputs = host.trial_inputs()
    with without_hooks(host.model), evaluating(host.model):
        shown, dark, as_it_is, note = _checked_patterns(host, places, inputs)
        alone = [_shown_patterns(host, places, inputs.document(number)) for number in (0, 1)]
        tap = host.beside_sdpa(inputs, shown, as_it_is) if dark else None
    found = findings({site: shown[site] for site in places}, alone, inputs, dark=dark, note=note)
    return Trial(**vars(found), tap=tap)


def _checked_patterns(
    host: Adapter, places: tuple[Site, ...], inputs: Inputs
) -> tuple[dict[Site, Tensor], bool, Any, str]:
    """The pattern of every site, each checked as soon as it is seen; whether padding stays dark; and as it is.

    That is the answer of the model that nothing was done to, with what is to be told of it.
    """
    shown: dict[Site, Tensor] = {}
    dark: list[bool] = []

    def check(number: int, pattern: Tensor) -> None:
        dark.append(check_pattern(places[number], pattern, inputs, whose=host.name))
        shown[places[number]] = pattern

    try:
        answer = with_patterns(host, places, inputs, check)
        as_it_is = host.run_as_it_is(inputs)
    except (ValueError, StillRunningError):
        raise
    except Exception as error:  # a host may fail in any way on inputs that others take
        raise ValueError(
            f"{host.name} fails on a few tokens ({type(error).__name__}: {error}), so its attention cannot "
            "be read. Where it wraps a Hugging Face model, pass that to topic_probe.open_model instead"
        ) from error
    note = "" if as_it_is is None else check_outputs(host.inside, as_it_is, answer, inputs)
    return shown, all(dark), as_it_is, note


def _trial(host: Adapter) -> Trial:
    """What a trial shows of a model; an adapter-free host had its trial when it was made."""
    if (held := _held.get(host.model)) is not None:
        return held
    known = host.as_made()
    if known is None:
        return _try_out(host)
    places = _in_order(known.sites)
    order = [known.sites.index(site) for site in places]
    return Trial(
        sites=places,
        n_heads=tuple(known.n_heads[at] for at in order),
        causal=tuple(known.causal[at] for at in order),
        sharing=known.sharing,
        tap=known if known.beside_sdpa else None,
        note=known.note,
        editable=host.model.editable,
    )


# Models inside a block that changes what their trial depends on and not what it has shown.
_held: WeakKeyDictionary[nn.Module, Trial] = WeakKeyDictionary()


@contextmanager
def holding(known: View) -> Iterator[None]:
    """A block in which a model stays known by a trial from before it."""
    _held[known.model] = Trial(**{part.name: getattr(known, part.name) for part in fields(Trial)})
    try:
        yield
    finally:
        del _held[known.model]


# Weights, states and what a model says of itself.


def word_embeddings(model: Any, *, check: bool = True) -> Float[Tensor, "vocabulary d_embed"]:
    """The raw word embedding table of a hooked model, detached; its width need not be the hidden size.

    Raises:
        ValueError: where weight processing has centred the table, so that its cosines are no longer the model's.
    """
    host = adapter(model)
    table = host.word_embeddings()
    if check and host.processes_weights and _is_centred(table):
        raise ValueError(
            f"the word embeddings of this {host.name} were centred by weight processing "
            "(enable_compatibility_mode, center_writing_weights), so their cosines are not the model's own; load it "
            "without (from_pretrained_no_processing, or enable_compatibility_mode(no_processing=True))"
        )
    return table


def _is_centred(table: Float[Tensor, "vocabulary d_embed"]) -> bool:
    sample = table[: min(len(table), 1000)].double()
    # Rounding errors of single numbers average out over a row.
    rounding = 2 * torch.finfo(table.dtype).eps * sample.abs().max() / table.shape[1] ** 0.5
    return table.shape[1] > 1 and bool(sample.any()) and bool(sample.mean(1).abs().max() < rounding)


def embedding_in_residual(model: Any) -> Float[Tensor, "vocabulary d_model"]:
    """What every word brings into the residual stream, positions and normalisation aside.

    A factor that some architectures multiply all embeddings by is left out.

    Raises:
        ValueError: where words come into the stream in a way that is not known.
    """
    return adapter(model).embedding_in_residual(word_embeddings(model))


def unembedding(model: Any) -> Float[Tensor, "d_model vocabulary"]:
    """The matrix from the residual stream to scores over the vocabulary; a transformation before it is left out.

    Raises:
        ValueError: where the model has no head, or its head is not a matrix on the residual stream.
    """
    return adapter(model).unembedding()


def head_weights(model: Any, site: Site) -> HeadWeights:
    """The projections of every head at one site, detached.

    Raises:
        ValueError: where the projections of this architecture cannot be told apart.
    """
    return adapter(model).head_weights(site)


def hidden_states(model: Any, inputs: Inputs, read: StateReader) -> None:
    """Streams the states of the source positions: 0 is what enters the first block, i what leaves block i.

    The last one is behind the final normalisation where there is one, as in Hugging Face's ``hidden_states``. In
    encoder-decoder models these are the encoder's.
    """
    with evaluating(model):
        adapter(model).hidden_states(inputs, read)


def n_states(model: Any) -> int:
    """How many states `hidden_states` streams, counted on a few tokens: layers that do not attend have some, too."""
    layers: list[int] = []
    hidden_states(model, adapter(model).trial_inputs(), lambda layer, states: layers.append(layer))
    return len(layers)


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


def facts(model: Any, *topics: Topics) -> Facts:
    """What is known of a hooked model without running it, once it is sure that the topics are of its vocabulary.

    Raises:
        ValueError: for topics of another vocabulary or tokenizer. Tables padded beyond the tokenizer's vocabulary are
            accepted where the topics were made with the tokenizer of this model, or with an unknown one of nearly that
            size.
    """
    return facts_of(adapter(model), *topics)


def facts_of(host: Adapter, *topics: Topics) -> Facts:
    """The same of a model whose adapter is at hand."""
    model, tokenizer = host.model, getattr(host.model, "tokenizer", None)
    rows = host.word_embeddings().shape[0]
    for each in topics:
        _check_topics(each, tokenizer, rows)
    named: list[Any] = []
    if tokenizer is not None:
        named = tokenizer.all_special_ids
    else:
        for role in ("pad", "bos", "eos", "cls", "sep", "mask", "unk", "decoder_start"):
            value = getattr(host.config, f"{role}_token_id", None)
            named += value if isinstance(value, list) else [value]
    pad_id = getattr(tokenizer, "pad_token_id", None)
    parameter = next(model.parameters())
    name = getattr(host.config, "_name_or_path", None) or getattr(model.cfg, "model_name", None)
    return Facts(
        vocabulary_size=rows,
        context_length=host.context_length(),
        pad_id=getattr(host.config, "pad_token_id", None) if pad_id is None else pad_id,
        special_ids=frozenset(index for index in named if index is not None),
        description={
            "host": host.name,
            "name": name or None,
            "revision": getattr(host.config, "_commit_hash", None),
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
