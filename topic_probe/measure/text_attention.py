"""Attention within one text: its tokens, their topics, and the patterns of a few heads with their numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int8, Int64
from torch import Tensor

from topic_probe.contrast import NO_RELATION, Contrast, Ranking, word_relations
from topic_probe.lens import capture
from topic_probe.lens.opening import open_model
from topic_probe.lens.sites import SIDES
from topic_probe.measure.accumulators import Relations
from topic_probe.measure.engine import Engine
from topic_probe.measure.heads import layer_and_head
from topic_probe.measure.options import FirstPosition, Patterns
from topic_probe.measure.patterns import PatternReader, one_later, units_of
from topic_probe.options import Group, check_whole, shares
from topic_probe.text.batches import TokenBatch, token_batches
from topic_probe.text.documents import Document, read_documents
from topic_probe.text.encoder import encode_texts
from topic_probe.topics import Topics
from topic_probe.topics.vocabulary import readable

Stack = Literal["self", "encoder", "decoder", "cross"]
HeadName = int | str | tuple[int, int]

# A word is hardly ever longer, so that a long text need not be split into tokens as a whole to show its beginning.
_CHARACTERS_PER_TOKEN = 50

_FEW = 20

_NOT_FINITE = (
    "has NaN or infinity in its attention to this text; this is usually overflow in half precision: load the model in "
    "float32"
)


@dataclass(frozen=True)
class ShownHeads(Group):
    """Which heads are shown of a text."""

    layer: Annotated[int | None, "the layer to show; by default all are looked at"] = None
    heads: Annotated[
        Iterable[HeadName] | HeadName | None,
        'the heads to show: numbers within ``layer``, labels such as ``"L3H7"``, or pairs (layer, head). None takes '
        "the first ones by ``by``",
    ] = None
    stack: Annotated[
        Stack | None,
        'which attention of a model with two stacks: "encoder", "decoder" or "cross"; None takes the first',
    ] = None
    max_heads: Annotated[int, "how many heads are shown where none are named"] = 6
    by: Annotated[
        Ranking,
        'what is highest of the heads that are shown where none are named: "evidence" is the effect size on this text; '
        'or "ratio", which is high by chance where the different-topic mean is tiny',
    ] = "evidence"

    def __post_init__(self) -> None:
        check_whole("max_heads", self.max_heads)


@dataclass(frozen=True)
class ShownText(Group):
    """How a text is read that is shown."""

    max_tokens: Annotated[int, "longer texts are cut here, and the page says so"] = 128
    include_self: Annotated[bool, "whether the pair of a position with itself is a same-word pair"] = True
    first_position: Annotated[
        FirstPosition,
        'what stands at the beginning to a causal model: a "sink" of attention, or a "word"',
    ] = "sink"
    tokenizer: Annotated[Any, "the model's tokenizer, where the model has none"] = None
    check_rows: Annotated[bool, "whether rows that do not sum to one are an error"] = True

    def __post_init__(self) -> None:
        check_whole("max_tokens", self.max_tokens)


@dataclass(frozen=True)
class Tokens:
    """The tokens on one side of a pattern: its queries or its keys.

    Attributes:
        words: The text of every token.
        topics: The topics of every token; none for special tokens, pieces of split words and words without a topic.
        special: Which are special tokens, or another sink of attention.
        continues: Which continue the word of the token before.
    """

    words: tuple[str, ...]
    topics: tuple[tuple[int, ...], ...]
    special: tuple[bool, ...]
    continues: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.words)


@dataclass(frozen=True, eq=False)
class HeadAttention:
    """The pattern of one head over one text.

    Attributes:
        layer: Number of the layer within its stack.
        head: Number of the head within its layer.
        pattern: Attention after softmax.
        visible: Which keys each query may see.
        contrast: What `topic_probe.measure_attention` says of the head on this text alone.
        cut: Whether this is after edges were cut.
    """

    layer: int
    head: int
    pattern: Float[Tensor, "query key"]
    visible: Bool[Tensor, "query key"]
    contrast: Contrast
    cut: bool = False

    @property
    def name(self) -> str:
        """The head as people name it, ``L3H7``."""
        return f"L{self.layer}H{self.head}"

    @property
    def label(self) -> str:
        """Its name, with what was done to it."""
        return f"{self.name}, cut" if self.cut else self.name

    @property
    def causal(self) -> bool:
        """Whether no query may see what comes after it."""
        return len(self.visible) > 1 and not bool(self.visible.triu(1).any())


@dataclass(frozen=True, eq=False)
class TextAttention:
    """How some heads attend within one text, by topic.

    Attributes:
        model: The model's class.
        stack: "self", or in models with two stacks "encoder", "decoder" or "cross".
        queries: The tokens whose rows these are.
        keys: The tokens that are attended to; the same object except in "cross".
        relation: The relation of every pair, as `topic_probe.contrast.relations` codes it, whether visible or not.
        heads: The heads, in the order in which they are shown.
        labels: ``id: word·word·word`` for every topic.
        names: Name of every topic.
        notes: What a reader has to know: what was cut, why these heads, what is missing.
    """

    model: str
    stack: str
    queries: Tokens
    keys: Tokens
    relation: Int8[Tensor, "query key"]
    heads: tuple[HeadAttention, ...]
    labels: tuple[str, ...]
    names: tuple[str, ...]
    notes: tuple[str, ...]


@shares
def read_text_attention(
    model: Any, topics: Topics, text_or_ids: Any, *, which: ShownHeads, reading: ShownText
) -> TextAttention:
    """How some heads attend within one text; arguments as in `topic_probe.show_attention`."""
    model = open_model(model, tokenizer=reading.tokenizer)
    tokenizer = getattr(model, "tokenizer", None) if reading.tokenizer is None else reading.tokenizer
    view = capture.view(model, topics)
    options, include_self = Patterns(check_rows=reading.check_rows), reading.include_self
    reader = PatternReader(view, topics, options, include_self=include_self)
    stacks = tuple(dict.fromkeys(site.stack for site in view.sites))
    shown: str = stacks[0] if which.stack is None else which.stack
    if shown not in stacks:
        raise ValueError(f"the model has no stack {which.stack!r}; it has {', '.join(map(repr, stacks))}")
    batch, notes = one_batch(view, text_or_ids, tokenizer, reading)
    by_relation = Relations()
    engine = Engine(reader, [by_relation])
    engine.add(batch)
    if not engine.progress.measured:
        raise ValueError(f"the model {_NOT_FINITE}")
    measured = by_relation.by_source.total().contrast(index=reader.index)
    measured = measured[[at for at, name in enumerate(reader.index["stack"]) if name == shown]]
    chosen, why = _choose_heads(measured, which)
    names = SIDES[shown]
    side = {name: _tokens(view, batch, name, topics, tokenizer) for name in dict.fromkeys(names)}
    (queries, query_places), (keys, key_places) = (side[name] for name in names)
    relation = word_relations(query_places, key_places, topics)
    if not include_self and shown != "cross":
        relation.fill_diagonal_(NO_RELATION)
    notes += [*why, *_few_pairs(measured[chosen], relation)]
    if others := ", ".join(name for name in stacks if name != shown):
        notes.append(f"Shown is the stack “{shown}”; stack= chooses another one ({others}).")
    return TextAttention(
        model=view.host.name,
        stack=shown,
        queries=queries,
        keys=keys,
        relation=relation,
        heads=_read_heads(view, batch, shown, measured[chosen]),
        labels=topics.topic_labels,
        names=topics.names,
        notes=tuple(notes),
    )


def one_batch(
    view: capture.View, text_or_ids: Any, tokenizer: Any, reading: ShownText
) -> tuple[TokenBatch, list[str]]:
    """The tokens to show as the model takes them, and what has to be said of them."""
    document, notes = _one_document(text_or_ids, tokenizer, reading.max_tokens, view.facts.context_length)
    batch = next(
        token_batches(
            [document],
            pad_id=view.facts.pad_id,
            vocabulary_size=view.facts.vocabulary_size,
            special_ids=view.facts.special_ids,
            first_is_sink=(first_is_sink := view.is_causal and reading.first_position == "sink"),
        )
    )
    if first_is_sink and not bool(batch.special[0, 0]):
        notes.append(
            "The first position is a sink of attention to a causal model, whatever stands there, and counts as no "
            "word; first_position=“word” lets it count."
        )
    return batch, notes


def _few_pairs(heads: Contrast, relation: Int8[Tensor, "query key"]) -> list[str]:
    """A warning where the ratios of a text rest on nothing, or next to nothing."""
    if not bool((relation != NO_RELATION).any()):
        return ["No word of this text belongs to a topic, so there is nothing to compare."]
    same, different = int(heads.n_same_topic.min()), int(heads.n_different_topic.min())
    if min(same, different) >= _FEW:
        return []
    return [
        f"The ratios rest on few pairs ({same} of one topic, {different} of different topics): this text is an "
        "example, measure_attention over many texts is evidence."
    ]


# ---------------------------------------------------------------------------- which tokens


def _one_document(
    given: Any, tokenizer: Any, max_tokens: int, context: int | None
) -> tuple[Document, list[str]]:
    """The tokens to show, and what has to be said about those that are not."""
    text = None
    limit = min(max_tokens, context or max_tokens)
    if isinstance(given, str):
        if tokenizer is None:
            raise ValueError(
                "a text needs the model's tokenizer and this model has none: give token ids, or tokenizer="
            )
        text = given[: _CHARACTERS_PER_TOKEN * (limit + 10)]
        documents = list(encode_texts([text], tokenizer))
    else:
        documents = list(read_documents(given if _is_whole_input(given) else [given]))
    if len(documents) != 1:
        raise ValueError(f"one text is shown at a time, but {len(documents)} came: pick one of them")
    whole = shown = documents[0]
    if not len(whole):
        raise ValueError("the text has no tokens: there is nothing to show")
    if len(whole) > limit:
        special = torch.zeros(len(whole), dtype=torch.bool) if whole.special is None else whole.special
        shown = next(whole.pieces(limit, special))
    if text is not None and len(text) < len(given):
        part = f"the first {len(shown):,} tokens of a text of {len(given):,} characters"
    elif shown is whole:
        return whole, []
    else:
        # What stands around a text is there again around its beginning.
        part = f"{'' if text else 'the first '}{len(shown):,} of {len(whole):,} tokens"
    why = (
        f"max_tokens={max_tokens}"
        if limit == max_tokens
        else f"the model takes no more than {context} tokens"
    )
    return shown, [f"Only {part} are shown and measured ({why})."]


def _is_whole_input(given: Any) -> bool:
    """Whether something is already one of the shapes that hold several documents."""
    if isinstance(given, Document) or hasattr(given, "keys") or hasattr(given, "mask"):
        return True
    if hasattr(given, "ndim"):
        return bool(given.ndim > 1)
    return isinstance(given, list | tuple) and len(given) > 0 and not isinstance(given[0], int | np.integer)


# ---------------------------------------------------------------------------- which heads


def _choose_heads(measured: Contrast, which: ShownHeads) -> tuple[list[int], list[str]]:
    """Where the wanted heads are among those measured, and why these where nobody named them."""
    index, layer, heads = measured.index or {}, which.layer, which.heads
    place = {name: at for at, name in enumerate(zip(index["layer"], index["head"], strict=True))}
    layers = sorted(set(index["layer"]))
    if layer is not None and layer not in layers:
        raise ValueError(f"there is no layer {layer!r} in this stack; its layers are {_numbers(layers)}")
    if heads is not None:
        single = isinstance(heads, int | np.integer | str) or _is_pair(heads)
        listed: list[Any] = [heads] if single else list(heads)  # type: ignore[arg-type]
        if not listed:
            raise ValueError("heads is empty: name at least one, or leave it out to see the strongest")
        return list(dict.fromkeys(_place_of(name, layer, place) for name in listed)), []
    within = [at for (number, _), at in place.items() if layer in (None, number)]
    where = "all layers" if layer is None else f"layer {layer}"
    order = measured[within].order(which.by).tolist()
    # Heads without a number come last.
    places = [*order, *(at for at in range(len(within)) if at not in order)]
    chosen, why = [within[at] for at in places[: which.max_heads]], []
    number = "effect size" if which.by == "evidence" else which.by.replace("_", " ")
    if not order:
        why = [f"Shown are the first {len(chosen)} heads of {where}: no {number} is defined on this text."]
    elif len(chosen) < len(within):
        why = [
            f"Shown are the {len(chosen)} heads with the highest {number} on this text, of {len(within)} in {where}; "
            "heads= chooses others."
        ]
    return chosen, why


def _is_pair(heads: Any) -> bool:
    return (
        isinstance(heads, tuple) and len(heads) == 2 and all(isinstance(n, int | np.integer) for n in heads)
    )


def _place_of(name: Any, layer: int | None, place: dict[tuple[int, int], int]) -> int:
    """Where one head is that somebody has named by its number, by layer and number, or by a label."""
    if isinstance(name, str):
        if (found := layer_and_head(name)) is None:
            raise ValueError(f"a head is named as in 'L3H7' or '3.7', not {name!r}")
        name = found
    elif isinstance(name, int | np.integer) and not isinstance(name, bool):
        if layer is None:
            raise ValueError(f"the head {name} needs its layer: say layer=, or (layer, head), or 'L3H7'")
        name = layer, int(name)
    elif not _is_pair(name):
        raise TypeError(f"a head is a number, a pair (layer, head) or a label such as 'L3H7', not {name!r}")
    wanted = int(name[0]), int(name[1])
    if layer is not None and wanted[0] != layer:
        raise ValueError(f"the head L{wanted[0]}H{wanted[1]} is not in layer {layer}: leave layer= out")
    if wanted not in place:
        heads = sorted({head for number, head in place if number == wanted[0]})
        known = f"the heads of layer {wanted[0]} are {_numbers(heads)}" if heads else "nor that layer"
        raise ValueError(f"there is no head L{wanted[0]}H{wanted[1]} in this stack; {known}")
    return place[wanted]


def _numbers(values: Sequence[int]) -> str:
    if len(values) > 2 and all(after == before + 1 for before, after in pairwise(values)):
        return f"{values[0]}–{values[-1]}"
    return ", ".join(map(str, values))


# ---------------------------------------------------------------------------- tokens and patterns


def _tokens(
    view: capture.View, batch: TokenBatch, name: str, topics: Topics, tokenizer: Any
) -> tuple[Tokens, Int64[Tensor, " position"]]:
    """The tokens of a side, and where those that count there stand in the words of the topics; -1 for others."""
    batch = one_later(batch) if name == "target" else batch
    [units] = units_of(batch, topics)
    ids, special, words = batch.ids[0], batch.sinks[0], batch.word_index[0]
    if name == "target":
        ids = ids.clone()
        ids[0] = view.decoder_start
    places = torch.full_like(ids, -1)
    places[units.positions] = units.places
    of_word = {place: topics.topics_of(place) for place in units.places.tolist()}
    continues = torch.zeros(len(ids), dtype=torch.bool)
    continues[1:] = (words[1:] == words[:-1]) & (words[1:] >= 0)
    if tokenizer is not None:
        spelled = {token: readable(tokenizer, [token]) for token in set(ids.tolist())}
    else:
        spelled = dict(zip(topics.words.tolist(), topics.texts, strict=True)) if topics.texts else {}
    tokens = Tokens(
        words=tuple(spelled.get(token, str(token)) for token in ids.tolist()),
        topics=tuple(of_word[place] if place >= 0 else () for place in places.tolist()),
        special=tuple(special.tolist()),
        continues=tuple(continues.tolist()),
    )
    return tokens, places


def _read_heads(
    view: capture.View, batch: TokenBatch, stack: str, heads: Contrast
) -> tuple[HeadAttention, ...]:
    """The patterns of some heads of a stack; of the others nothing is kept."""
    assert heads.index is not None
    places = list(zip(heads.index["layer"], heads.index["head"], strict=True))
    inputs = view.inputs(batch.ids, batch.mask)
    everything = {
        side: torch.arange(inputs.side(side)[0].shape[1])[None]
        for side in {SIDES[site.stack][0] for site in view.sites}
    }
    patterns: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def keep(number: int, rows: Tensor, visible: Tensor) -> None:
        site = view.sites[number]
        for layer, head in places:
            if (site.stack, site.layer) == (stack, layer):
                pattern = rows[0, head].detach().to("cpu", torch.float32, copy=True)
                if not bool(torch.isfinite(pattern).all()):
                    raise ValueError(f"L{layer}H{head} {_NOT_FINITE}")
                patterns[layer, head] = pattern, visible[0].cpu()

    view.attention_rows(inputs, everything, keep)
    return tuple(HeadAttention(*place, *patterns[place], heads[at]) for at, place in enumerate(places))
