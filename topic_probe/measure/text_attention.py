"""Attention within one text: its tokens, their topics, and the patterns of the heads with their numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
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
from topic_probe.measure.attention import AttentionReport
from topic_probe.measure.engine import Engine
from topic_probe.measure.heads import layer_and_head
from topic_probe.measure.options import FirstPosition, Patterns
from topic_probe.measure.patterns import PatternReader, one_later, units_of
from topic_probe.measure.scores import Units
from topic_probe.options import Group, check_whole, shares
from topic_probe.report import load_report
from topic_probe.text.batches import TokenBatch, token_batches
from topic_probe.text.documents import Document, check_ids, read_documents
from topic_probe.text.encoder import encode_texts
from topic_probe.topics import Topics
from topic_probe.topics.lookup import readable

Stack = Literal["self", "encoder", "decoder", "cross"]
HeadName = int | str | tuple[int, int]

# A word is hardly ever longer, so that a long text need not be split into tokens as a whole to show its beginning.
_CHARACTERS_PER_TOKEN = 50

_FEW = 20

# So many numbers of attention are kept of a text: 64 MB, all 384 heads of a model of 24 layers over 200 tokens.
_KEPT = 16_000_000

_NOT_FINITE = (
    "has NaN or infinity in its attention to this text; this is usually overflow in half precision: load the model in "
    "float32"
)


@dataclass(frozen=True)
class ShownHeads(Group):
    """Which heads are shown of a text."""

    layer: Annotated[int | None, "the layer to show; by default all are looked at"] = None
    heads: Annotated[
        Iterable[HeadName] | HeadName | AttentionReport | None,
        'the heads to show first: numbers within ``layer``, labels such as ``"L3H7"``, or pairs (layer, head); or a '
        "report of `measure_attention` of this model, or the folder of a saved one, whose first heads by ``by`` are "
        "shown. None takes the first ones of this text",
    ] = None
    stack: Annotated[
        Stack | None,
        'which attention of a model with two stacks: "encoder", "decoder" or "cross"; None takes the first',
    ] = None
    max_heads: Annotated[int, "how many heads are shown first where none are named"] = 6
    by: Annotated[
        Ranking,
        'what is highest of the heads that are shown where none are named: "evidence" is the effect size on this text, '
        "or of a report the end of the interval of the effect size that is nearer to none; "
        'and "ratio" is high by chance where the different-topic mean is tiny',
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
        in_words: The text of the word that every token is in.
        word_topics: The topics of that word: those of the token itself, and of split words that the topics know.
    """

    words: tuple[str, ...]
    topics: tuple[tuple[int, ...], ...]
    special: tuple[bool, ...]
    continues: tuple[bool, ...]
    in_words: tuple[str, ...]
    word_topics: tuple[tuple[int, ...], ...]

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
    """

    layer: int
    head: int
    pattern: Float[Tensor, "query key"]
    visible: Bool[Tensor, "query key"]
    contrast: Contrast

    @property
    def name(self) -> str:
        """The head as people name it, ``L3H7``."""
        return f"L{self.layer}H{self.head}"

    @property
    def causal(self) -> bool:
        """Whether no query may see what comes after it."""
        return len(self.visible) > 1 and not bool(self.visible.triu(1).any())


@dataclass(frozen=True, eq=False)
class TextAttention:
    """How the heads of a stack attend within one text, by topic.

    Attributes:
        model: The model's class.
        stack: "self", or in models with two stacks "encoder", "decoder" or "cross".
        queries: The tokens whose rows these are.
        keys: The tokens that are attended to; the same object except in "cross".
        relation: The relation of every pair, as `topic_probe.contrast.relations` codes it, whether visible or not.
        word_relation: The relation of the words that the tokens of every pair are in.
        heads: The heads that are shown first, in that order.
        rest: The other heads whose patterns are kept, those with the strongest evidence first.
        measured: What is measured of all heads of the stack on this text, by layer and head.
        evidence: What the report says of the same heads that chose those shown first; None without one.
        labels: ``id: word·word·word`` for every topic.
        names: Name of every topic.
        notes: What a reader has to know: what was cut, why these heads, what is missing.
    """

    model: str
    stack: str
    queries: Tokens
    keys: Tokens
    relation: Int8[Tensor, "query key"]
    word_relation: Int8[Tensor, "query key"]
    heads: tuple[HeadAttention, ...]
    rest: tuple[HeadAttention, ...]
    measured: Contrast
    evidence: Contrast | None
    labels: tuple[str, ...]
    names: tuple[str, ...]
    notes: tuple[str, ...]


@shares
def read_text_attention(
    model: Any, topics: Topics, text_or_ids: Any, *, which: ShownHeads, reading: ShownText
) -> TextAttention:
    """How the heads of a stack attend within one text; arguments as in `topic_probe.show_attention`."""
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
    report = _report_in(which.heads)
    evidence = None if report is None else _heads_of(report, measured)
    chosen, rest, why = _choose_heads(measured, evidence, which)
    names = SIDES[shown]
    side = {name: _tokens(view, batch, name, topics, tokenizer) for name in dict.fromkeys(names)}
    (queries, *query_places), (keys, *key_places) = (side[name] for name in names)
    relation, word_relation = (
        word_relations(*places, topics) for places in zip(query_places, key_places, strict=True)
    )
    if not include_self and shown != "cross":
        relation.fill_diagonal_(NO_RELATION)
        word_relation[_same_word_of(queries)] = NO_RELATION
    n_kept = max(0, _KEPT // relation.numel() - len(chosen))
    notes += [*why, *_few_pairs(measured[chosen], relation)]
    if others := ", ".join(name for name in stacks if name != shown):
        notes.append(f"Shown is the stack “{shown}”; stack= chooses another one ({others}).")
    heads = _read_heads(view, batch, shown, measured[[*chosen, *rest[:n_kept]]])
    return TextAttention(
        model=view.host.name,
        stack=shown,
        queries=queries,
        keys=keys,
        relation=relation,
        word_relation=word_relation,
        heads=heads[: len(chosen)],
        rest=heads[len(chosen) :],
        measured=measured,
        evidence=evidence,
        labels=topics.topic_labels,
        names=topics.names,
        notes=tuple(notes),
    )


def one_batch(
    view: capture.View, text_or_ids: Any, tokenizer: Any, reading: ShownText
) -> tuple[TokenBatch, list[str]]:
    """The tokens to show as the model takes them, and what has to be said of them."""
    document, notes = _one_document(text_or_ids, tokenizer, reading.max_tokens, view.facts.context_length)
    check_ids(document, 0, view.facts.vocabulary_size)
    batch = next(
        token_batches(
            [document],
            pad_id=view.facts.pad_id,
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
    if isinstance(given, Document) or hasattr(given, "keys"):
        return True
    if hasattr(given, "ndim"):
        return bool(given.ndim > 1)
    return isinstance(given, list | tuple) and len(given) > 0 and not isinstance(given[0], int | np.integer)


# ---------------------------------------------------------------------------- which heads


def _report_in(heads: Any) -> AttentionReport | None:
    """The report that is to choose the heads, if one was given: itself, or the folder of a saved one."""
    if isinstance(heads, AttentionReport):
        return heads
    [folder] = heads if isinstance(heads, list | tuple) and len(heads) == 1 else [heads]
    if not isinstance(folder, str) or layer_and_head(folder) or not Path(folder).expanduser().is_dir():
        return None
    report = load_report(Path(folder).expanduser())
    if not isinstance(report, AttentionReport):
        raise ValueError(
            f"heads are chosen by a report of measure_attention, but {folder!r} holds one of another kind: "
            f"{report.kind}"
        )
    return report


def _heads_of(report: AttentionReport, measured: Contrast) -> Contrast:
    """What a report says of the heads that were measured, in their order."""

    def names(contrast: Contrast) -> list[tuple[str, int, int]]:
        index = contrast.index or {}
        return list(zip(index["stack"], index["layer"], index["head"], strict=True))

    wanted, there = names(measured), {name: at for at, name in enumerate(names(report.heads))}
    stack = wanted[0][0]
    if {name for name in there if name[0] == stack} != set(wanted):
        raise ValueError(
            f"heads= needs a report of this model, which has {len(wanted)} heads in its stack {stack!r}; the report "
            f"knows {sum(name[0] == stack for name in there)} there, or others"
        )
    return report.heads[[there[name] for name in wanted]]


def _choose_heads(
    measured: Contrast, evidence: Contrast | None, which: ShownHeads
) -> tuple[list[int], list[int], list[str]]:
    """Where the heads to show first are among those measured, where the others, and why these if nobody named them."""
    index, layer = measured.index or {}, which.layer
    place = {name: at for at, name in enumerate(zip(index["layer"], index["head"], strict=True))}
    layers = sorted(set(index["layer"]))
    if layer is not None and layer not in layers:
        raise ValueError(f"there is no layer {layer!r} in this stack; its layers are {_numbers(layers)}")
    # Heads without a number come last.
    ranked = (measured if evidence is None else evidence).order(which.by).tolist()
    everything = list(dict.fromkeys([*ranked, *range(len(measured))]))
    if which.heads is not None and evidence is None:
        chosen, why = [_place_of(name, layer, place) for name in _listed(which.heads)], []
    else:
        within = [at for at in everything if layer in (None, index["layer"][at])]
        chosen = within[: which.max_heads]
        known = len(set(ranked) & set(within))
        why = _why(which, len(chosen), len(within), known, by_report=evidence is not None)
    chosen = list(dict.fromkeys(chosen))
    return chosen, [at for at in everything if at not in set(chosen)], why


def _listed(heads: Any) -> list[Any]:
    """The heads that were named, one by one."""
    single = isinstance(heads, int | np.integer | str) or _is_pair(heads)
    listed = [heads] if single else list(heads)
    if not listed:
        raise ValueError("heads is empty: name at least one, or leave it out to see the strongest")
    return listed


def _why(which: ShownHeads, n_shown: int, n_heads: int, n_known: int, *, by_report: bool) -> list[str]:
    """Why these heads are shown first."""
    where = "all layers" if which.layer is None else f"layer {which.layer}"
    number = "effect size" if which.by == "evidence" else which.by.replace("_", " ")
    if not n_known:
        of = "in the report" if by_report else "on this text"
        return [f"Shown are the first {n_shown} heads of {where}: no {number} is defined {of}."]
    if n_shown == n_heads:
        return []
    number = f"the highest {number} on this text"
    if by_report:
        evidence = "strongest evidence" if which.by == "evidence" else f"highest {which.by.replace('_', ' ')}"
        number = f"the {evidence} in the report"
    shown = "is the head" if n_shown == 1 else f"are the {n_shown} heads"
    return [f"Shown first {shown} with {number}, of {n_heads} in {where}; heads= chooses others."]


def _is_pair(heads: Any) -> bool:
    return (
        isinstance(heads, tuple) and len(heads) == 2 and all(isinstance(n, int | np.integer) for n in heads)
    )


def _place_of(name: Any, layer: int | None, place: dict[tuple[int, int], int]) -> int:
    """Where one head is that somebody has named by its number, by layer and number, or by a label."""
    if isinstance(name, str):
        if (found := layer_and_head(name)) is None:
            raise ValueError(
                f"a head is named as in 'L3H7' or '3.7', or is chosen by the folder of a saved report, not {name!r}"
            )
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
) -> tuple[Tokens, Int64[Tensor, " position"], Int64[Tensor, " position"]]:
    """The tokens of a side, and where they and their words stand in the words of the topics; -1 for others."""
    batch = one_later(batch) if name == "target" else batch
    ids, special, words = batch.ids[0], batch.sinks[0], batch.word_index[0]
    if name == "target":
        ids = ids.clone()
        ids[0] = view.decoder_start
    [units] = units_of(batch, topics)
    places = _places(units, len(ids))
    # Without a text, every token is a word of its own.
    [units] = [units] if bool(batch.without_words.any()) else units_of(batch, topics, level="word")
    word_places = _places(units, len(ids))
    continues = torch.zeros(len(ids), dtype=torch.bool)
    continues[1:] = (words[1:] == words[:-1]) & (words[1:] >= 0)
    if tokenizer is not None:
        spelled = {token: readable(tokenizer, [token]) for token in set(ids.tolist())}
    else:
        spelled = dict(zip(topics.words.tolist(), topics.texts, strict=True)) if topics.texts else {}
    spelling = tuple(spelled.get(token, str(token)) for token in ids.tolist())
    tokens = Tokens(
        words=spelling,
        topics=_topics_of(places, topics),
        special=tuple(special.tolist()),
        continues=tuple(continues.tolist()),
        in_words=_in_words(ids, continues, spelling, tokenizer),
        word_topics=_topics_of(word_places, topics),
    )
    return tokens, places, word_places


def _places(units: Units, n: int) -> Int64[Tensor, " position"]:
    """Where the unit of every position stands in the words of the topics."""
    places = torch.full((n,), -1)
    places[units.positions] = units.places[units.unit_of]
    return places


def _in_words(
    ids: Int64[Tensor, " position"],
    continues: Bool[Tensor, " position"],
    spelled: Sequence[str],
    tokenizer: Any,
) -> tuple[str, ...]:
    """The text of the word that every token is in."""
    _, lengths = torch.unique_consecutive((~continues).cumsum(0), return_counts=True)
    found: list[str] = []
    for length in lengths.tolist():
        word = slice(len(found), len(found) + length)
        split = length > 1 and tokenizer is not None
        text = readable(tokenizer, ids[word].tolist()) if split else "".join(spelled[word])
        found += [text] * length
    return tuple(found)


def _topics_of(places: Int64[Tensor, " position"], topics: Topics) -> tuple[tuple[int, ...], ...]:
    return tuple(topics.topics_of(place) if place >= 0 else () for place in places.tolist())


def _same_word_of(tokens: Tokens) -> Bool[Tensor, "position position"]:
    """Whether two tokens are pieces of one word at one place."""
    word = (~torch.tensor(tokens.continues)).cumsum(0)
    return word[:, None] == word


def _read_heads(
    view: capture.View, batch: TokenBatch, stack: str, heads: Contrast
) -> tuple[HeadAttention, ...]:
    """The patterns of some heads of a stack, in their order; of the others nothing is kept."""
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
