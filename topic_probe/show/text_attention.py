"""Attention within one text: its tokens with their topics, the numbers of every head, and its pattern."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float32, Int8, Int64
from torch import Tensor

from topic_probe.contrast import NO_RELATION, word_relations
from topic_probe.lens.host import Facts, Host, host_of
from topic_probe.lens.opening import open_model
from topic_probe.lens.sites import SIDES
from topic_probe.measure.attention import AttentionReport, measure_attention
from topic_probe.measure.pairs import Side, one_later
from topic_probe.report import load_report
from topic_probe.text.batches import TokenBatch, token_batches
from topic_probe.text.documents import Counts, Document, check_ids, cut, read_documents
from topic_probe.text.encoder import encode_texts
from topic_probe.topics import Topics
from topic_probe.topics.lookup import SPLIT, readable

if TYPE_CHECKING:
    import pandas as pd

# Numbers that rest on fewer pairs are an example.
_FEW = 20


@dataclass(frozen=True)
class Tokens:
    """The tokens on one side of a pattern: its queries or its keys.

    Attributes:
        words: The text of every token.
        topics: The topics of every token; none for special tokens, pieces of split words and words without a topic.
        special: Which are special tokens, or another sink of attention.
        continues: Which continue the word of the token before.
        split: The word that a token is a piece of, where it is listed in a topic but counts nowhere; else empty.
    """

    words: tuple[str, ...]
    topics: tuple[tuple[int, ...], ...]
    special: tuple[bool, ...]
    continues: tuple[bool, ...]
    split: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.words)


@dataclass(frozen=True, eq=False)
class TextAttention:
    """How the heads of a stack attend within one text, by topic.

    Attributes:
        model: What the model is called.
        stack: "self", or in models with two stacks "encoder", "decoder" or "cross".
        queries: The tokens whose rows these are.
        keys: The tokens that are attended to; the same object except in "cross".
        relation: The relation of every pair, as `topic_probe.contrast.word_relations` codes it.
        heads: What `topic_probe.measure_attention` says of every head of the stack on this text alone, by its name.
        evidence: What the report that chose the heads says of them; None without one.
        shown: The names of the heads that are shown first.
        patterns: Attention of every head ÷ uniform attention, NaN where the mask hides a key.
        names: Name of every topic.
        labels: ``id: word·word·word`` for every topic.
        notes: What a reader has to know: what was cut, why these heads, what is missing.
    """

    model: str
    stack: str
    queries: Tokens
    keys: Tokens
    relation: Int8[Tensor, "query key"]
    heads: "pd.DataFrame"
    evidence: "pd.DataFrame | None"
    shown: tuple[str, ...]
    patterns: Mapping[str, Float32[np.ndarray, "query key"]]
    names: tuple[str, ...]
    labels: tuple[str, ...]
    notes: tuple[str, ...]


def read_text_attention(
    model: Any,
    topics: Topics,
    text_or_ids: Any,
    *,
    heads: Any = None,
    stack: str | None = None,
    max_heads: int | None = None,
    max_tokens: int = 128,
    tokenizer: Any = None,
) -> TextAttention:
    """How the heads of a stack attend within one text; arguments as in `topic_probe.show_attention`."""
    model = open_model(model, tokenizer=tokenizer)
    tokenizer = getattr(model, "tokenizer", None) if tokenizer is None else tokenizer
    view = host_of(model, topics)
    document, notes = _one_document(text_or_ids, tokenizer, max_tokens, view.facts)
    sink = view.is_causal  # whatever stands first
    batch = next(
        token_batches(
            [document], pad_id=view.facts.pad_id, special_ids=view.facts.special_ids, first_is_sink=sink
        )
    )
    if sink and not bool(batch.special[0, 0]):
        notes.append("The first position is a sink of attention to a causal model, and counts as no word.")
    report = _report_in(heads)
    named = [] if heads is None or report is not None else [heads] if isinstance(heads, str) else list(heads)
    stack = _stack(view, stack, named, notes)
    found = _by_name(measure_attention(model, topics, [document], n_permutations=0), stack)
    evidence = None if report is None else _by_name(report, stack)
    if evidence is not None and set(evidence.index) != set(found.index):
        raise ValueError("the report that is to choose the heads is of another model: it knows other heads")
    n_shown = max_heads or len(found)
    shown = [_known(name, found) for name in named] or _strongest(report, found, n_shown, notes)
    side = {name: _tokens(view, batch, name, topics, tokenizer) for name in set(SIDES[stack])}
    (queries, query_places), (keys, key_places) = (side[name] for name in SIDES[stack])
    relation = word_relations(query_places, key_places, topics)
    notes += _about_words(found, relation, keys)
    return TextAttention(
        _name_of(view), stack, queries, keys, relation, found, evidence, tuple(dict.fromkeys(shown)),
        _patterns(view, batch, stack), topics.names, topics.topic_labels, tuple(notes),
    )  # fmt: skip


def _name_of(view: Host) -> str:
    """What a model is called: its name on the hub, that of its folder, or its class."""
    name, kind = view.facts.description["name"], type(view.hooked.inside or view.model).__name__
    if not name:
        return kind
    return f"{Path(name).name} ({kind})" if Path(name).is_absolute() else str(name)


def _one_document(given: Any, tokenizer: Any, max_tokens: int, facts: Facts) -> tuple[Document, list[str]]:
    """The tokens to show, and what has to be said about those that are not."""
    if not isinstance(given, str):
        documents = list(read_documents([given]))
    elif tokenizer is None:
        raise ValueError("a text needs a tokenizer, and this model has none: name one, or give token ids")
    else:
        documents = list(encode_texts([given], tokenizer))
    if len(documents) != 1 or not len(documents[0]):
        raise ValueError("one text is shown at a time, and it needs a token: pick another one")
    [whole] = documents
    check_ids(whole, 0, facts.vocabulary_size)
    limit = min(max_tokens, facts.context_length or max_tokens)
    shown = next(cut(whole, limit, "cut", Counts(), torch.tensor(sorted(facts.special_ids))))
    if len(shown) == len(whole):
        return shown, []
    return shown, [f"Only the first {len(shown):,} of {len(whole):,} tokens are shown and measured."]


# ---------------------------------------------------------------------------- which heads


def _report_in(heads: Any) -> AttentionReport | None:
    """The report that is to choose the heads, if one was given: itself, or the folder of a saved one."""
    [heads] = heads if isinstance(heads, list | tuple) and len(heads) == 1 else [heads]
    if isinstance(heads, str) and Path(heads).expanduser().is_dir():
        heads = load_report(Path(heads).expanduser())
    return heads if isinstance(heads, AttentionReport) else None


def _stack(view: Host, wanted: str | None, named: Sequence[str], notes: list[str]) -> str:
    """The stack that is shown: the one wanted, that of the first head that is named with it, or the first."""
    stacks = list(dict.fromkeys(site.stack for site in view.sites))
    first = next((name.partition(".")[0].strip() for name in named if name.count(".") == 2), stacks[0])
    stack: str = wanted or first
    if stack not in stacks:
        raise ValueError(f"the model has no stack {stack!r}; it has {', '.join(map(repr, stacks))}")
    if others := ", ".join(name for name in stacks if name != stack):
        notes.append(f"Shown is the stack “{stack}”; the model also has {others}.")
    return stack


def _by_name(report: AttentionReport, stack: str) -> "pd.DataFrame":
    """The heads of a stack by their names."""
    found = report.to_dataframe()
    found = found[found["stack"] == stack]
    return found.set_index(names_of(found))


def names_of(found: "pd.DataFrame") -> "pd.Series[str]":
    """The heads as users name them: ``L3H7``."""
    return "L" + found["layer"].astype(str) + "H" + found["head"].astype(str)


def _known(name: str, found: "pd.DataFrame") -> str:
    """The head that is called ``L3H7``, ``3.7`` or ``encoder.3.7``."""
    numbers = re.fullmatch(r"(?:\w+\.)?[lL]?(\d+)(?:\.|\s*[hH])(\d+)", name.strip())
    head = f"L{int(numbers[1])}H{int(numbers[2])}" if numbers else name
    if head not in found.index:
        raise ValueError(
            f"there is no head {name!r}: a head is named as in 'L3H7', '3.7' or 'encoder.3.7', or chosen by a report, "
            f"and the last one of this stack is {found.index[-1]}"
        )
    return head


def _strongest(
    report: AttentionReport | None, found: "pd.DataFrame", n: int, notes: list[str]
) -> Sequence[str]:
    """The heads of the strongest evidence in a report; without one those that turn most to topics on this text."""
    if report is not None:
        notes.append("The heads shown first are those of the strongest evidence in the report.")
        ranked = report.heads.top(len(report.heads)).to_dataframe()
        return list(names_of(ranked[ranked["stack"] == found["stack"].iloc[0]]))[:n]
    effects = found["effect_size"].sort_values(ascending=False, kind="stable").head(n)
    if effects.notna().any() and n < len(found):
        notes.append(
            f"The {len(effects)} heads shown first, of {len(found)}, have the largest effect sizes on this very text: "
            "they were chosen by it, so their numbers will be smaller on another text."
        )
    return [str(name) for name in effects.index]


# ---------------------------------------------------------------------------- tokens and patterns


def _tokens(
    view: Host, batch: TokenBatch, name: str, topics: Topics, tokenizer: Any
) -> tuple[Tokens, Int64[Tensor, " position"]]:
    """The tokens of a side, and where they stand in the words of the topics; -1 for others."""
    batch = one_later(batch) if name == "target" else batch
    ids, words = batch.ids[0], batch.word_index[0]
    if name == "target":
        ids = ids.clone()
        ids[0] = view.decoder_start
    [places] = Side(batch, topics, "token").places_at(len(ids))
    continues = torch.zeros(len(ids), dtype=torch.bool)
    continues[1:] = (words[1:] == words[:-1]) & (words[1:] >= 0)
    known = dict(zip(topics.words.tolist(), topics.texts or (), strict=False))
    spelled = {
        token: known.get(token, str(token)) if tokenizer is None else readable(tokenizer, [token])
        for token in set(ids.tolist())
    }
    tokens = Tokens(
        words=tuple(spelled[token] for token in ids.tolist()),
        topics=tuple(topics.topics_of(place) if place >= 0 else () for place in places.tolist()),
        special=tuple(batch.sinks[0].tolist()),
        continues=tuple(continues.tolist()),
        split=_listed_but_split(ids, continues, topics, tokenizer),
    )
    return tokens, places


def _listed_but_split(
    ids: Int64[Tensor, " position"], continues: Tensor, topics: Topics, tokenizer: Any
) -> tuple[str, ...]:
    """For every token the word that it is a piece of, where that is listed."""
    compounds = (topics.texts or ())[len(topics.words) - len(topics.compounds) :]
    listed = {str(word).strip().casefold() for word in (*topics.left_out.get(SPLIT, ()), *compounds)}
    _, lengths = torch.unique_consecutive((~continues).cumsum(0), return_counts=True)
    found: list[str] = []
    for length in lengths.tolist():
        pieces = ids[len(found) : len(found) + length].tolist()
        word = readable(tokenizer, pieces).strip() if length > 1 and tokenizer is not None else ""
        found += [word if word.casefold() in listed else ""] * length
    return tuple(found)


def _about_words(found: "pd.DataFrame", relation: Int8[Tensor, "query key"], keys: Tokens) -> list[str]:
    """A warning where the numbers of a text rest on nothing, or next to nothing, and what counts nowhere."""
    notes = []
    same, different = int(found["n_same_topic"].min()), int(found["n_different_topic"].min())
    if not bool((relation != NO_RELATION).any()):
        notes.append("No word of this text belongs to a topic, so there is nothing to compare.")
    elif min(same, different) < _FEW:
        notes.append(
            f"The numbers rest on few pairs ({same} of one topic, {different} of different topics): this text is an "
            "example, and many texts would be evidence."
        )
    if split := dict.fromkeys(filter(None, keys.split)):
        notes.append(
            f"Listed in a topic, but split by this model's tokenizer, so that it counts nowhere: {', '.join(split)}."
        )
    return notes


def _patterns(view: Host, batch: TokenBatch, stack: str) -> dict[str, Float32[np.ndarray, "query key"]]:
    """Attention ÷ uniform attention of the heads of a stack, NaN where a key is hidden."""
    inputs = view.inputs(batch.ids, batch.mask)
    sides = {SIDES[site.stack][0] for site in view.sites}
    everything = {side: torch.arange(inputs.side(side)[0].shape[1])[None] for side in sides}
    found: dict[str, np.ndarray] = {}

    def keep(number: int, rows: Tensor, visible: Tensor) -> None:
        site, seen = view.sites[number], visible[0].cpu()
        if site.stack == stack:
            times = rows[0].detach().to("cpu", torch.float32) * seen.sum(-1, keepdim=True)
            for head, pattern in enumerate(times.masked_fill(~seen, torch.nan)):
                found[f"L{site.layer}H{head}"] = pattern.numpy()

    view.attention_rows(inputs, everything, keep)
    return found
