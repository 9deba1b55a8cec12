"""Attention by topic as a page: tokens in the colours of their topics, patterns grouped by topic, their numbers."""

import base64
import json
from collections.abc import Iterable
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from topic_probe.contrast import RELATIONS
from topic_probe.show.page import Page, asset, make_page, number, readable_text, text
from topic_probe.show.patterns import attention_heads
from topic_probe.show.style import ink_on, topic_colour
from topic_probe.show.text_attention import (
    HeadAttention,
    Stack,
    TextAttention,
    Tokens,
    Wanted,
    read_text_attention,
)
from topic_probe.topics import Topics

Order = Literal["topic", "position"]

# circuitsvis takes seconds to draw so many tokens, and minutes to draw twice as many.
_CIRCUITSVIS_TOKENS, _CIRCUITSVIS_HEADS = 48, 8


def show_attention(
    model: Any,
    topics: Topics,
    text_or_ids: Any,
    *,
    layer: int | None = None,
    heads: Iterable[Wanted] | Wanted | None = None,
    stack: Stack | None = None,
    order: Order = "topic",
    max_tokens: int = 128,
    max_heads: int = 6,
    include_self: bool = True,
    tokenizer: Any = None,
    check_rows: bool = True,
    circuitsvis: bool = True,
) -> Page:
    """A page of one text: its tokens coloured by topic, and the patterns of a few heads with the numbers of each.

    Beside each pattern stand the head's means over same-word, same-topic and different-topic pairs and their ratio on
    this text, which are those of `measure_attention`. In the page the words can be put in the order of the text or
    grouped by topic. A notebook shows the page; ``.save("page.html")`` writes it as one file that needs no network.

    Args:
        model: anything that `open_model` takes.
        topics: which vocabulary entries belong to which topic.
        text_or_ids: a text, token ids (list, tensor, array), or one document of `encode_texts`.
        layer: the layer to show; None looks in all of them.
        heads: the heads to show: numbers within ``layer``, pairs (layer, head), or labels such as ``"L3H7"``. None
            takes those with the highest ratio on this text.
        stack: in models with two stacks "encoder", "decoder" or "cross"; None takes the first.
        order: how words stand when the page opens, grouped by "topic" or by "position".
        max_tokens: longer texts are cut here, and the page says so.
        max_heads: how many heads are shown where ``heads`` does not name them.
        include_self: whether the pair of a position with itself is a same-word pair.
        tokenizer: the model's tokenizer, where the model has none.
        check_rows: whether rows that do not sum to one are an error.
        circuitsvis: whether the page also holds circuitsvis's view of the first 48 tokens (1.3 MB).

    Raises:
        ValueError: for a layer, head or stack that the model does not have, a text without tokens or without a
            tokenizer, several texts at once, or attention that is not finite.
    """
    _check_order(order)
    found = read_text_attention(
        model, topics, text_or_ids, layer=layer, heads=heads, stack=stack, max_tokens=max_tokens, max_heads=max_heads,
        include_self=include_self, tokenizer=tokenizer, check_rows=check_rows,
    )  # fmt: skip
    return attention_page(found, order=order, circuitsvis=circuitsvis)


def attention_page(found: TextAttention, *, order: Order = "topic", circuitsvis: bool = True) -> Page:
    """The page of what `read_text_attention` has found."""
    _check_order(order)
    used = _used_topics(found)
    scripts = [
        f'<script type="application/json" id="data">{_json(_data(found, used))}</script>',
        f"<script>{asset('attention.js')}</script>",
    ]
    body = [_heading(found), _legend(found, used), _words(found), _controls(found, order), _heads(found)]
    if circuitsvis and found.stack != "cross":
        section, script = _circuitsvis(found)
        body.append(section)
        scripts.append(script)
    body.append(_definitions())
    style = asset("attention.css") + "".join(
        f".t{topic}{{--topic:{topic_colour(topic)};--ink:{ink_on(topic_colour(topic))}}}" for topic in used
    )
    main = f'<main class="attention">{"".join(body)}</main>'
    return make_page("Attention by topic", main, style=style, scripts=scripts)


def _check_order(order: str) -> None:
    if order not in get_args(Order):
        raise ValueError(f"order must be 'topic' or 'position', not {order!r}")


def _sides(found: TextAttention) -> list[Tokens]:
    return [found.keys] if found.queries is found.keys else [found.queries, found.keys]


def _used_topics(found: TextAttention) -> list[int]:
    return sorted({topic for side in _sides(found) for own in side.topics for topic in own})


# ---------------------------------------------------------------------------- what the script reads


def _data(found: TextAttention, used: list[int]) -> dict[str, Any]:
    masks: list[Tensor] = []
    numbers = []
    for head in found.heads:
        same = [number for number, mask in enumerate(masks) if torch.equal(mask, head.visible)]
        numbers.append(same[0] if same else len(masks))
        if not same:
            masks.append(head.visible)
    return {
        "queries": _tokens(found.queries),
        "keys": None if found.queries is found.keys else _tokens(found.keys),
        "topics": {
            topic: {"label": readable_text(found.labels[topic]), "colour": topic_colour(topic)}
            for topic in used
        },
        "relation": _packed(found.relation.numpy().astype(np.uint8)),
        "masks": [_packed(mask.numpy().astype(np.uint8)) for mask in masks],
        "heads": [
            {"label": head.label, "mask": mask, "pattern": _packed(head.pattern.numpy().astype("<f4"))}
            for head, mask in zip(found.heads, numbers, strict=True)
        ],
    }


def _tokens(tokens: Tokens) -> dict[str, Any]:
    return {
        "words": [readable_text(word) for word in tokens.words],
        "topics": tokens.topics,
        "special": [int(flag) for flag in tokens.special],
    }


def _packed(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def _json(content: Any) -> str:
    """JSON that cannot end the script element that it stands in."""
    return json.dumps(content, allow_nan=False).replace("<", "\\u003c")


# ---------------------------------------------------------------------------- what a person reads


def _heading(found: TextAttention) -> str:
    stack = "" if found.stack == "self" else f" · {text(found.stack)}"
    count = f"{len(found.keys):,} tokens"
    if found.queries is not found.keys:
        count = f"{len(found.queries):,} tokens attending to {count}"
    notes = "".join(f"<p>{text(note)}</p>" for note in found.notes)
    return (
        f'<header><h1>Attention by topic</h1><p class="quiet">{text(found.model)}{stack} · {count}</p>'
        f'<div class="notes">{notes}</div></header>'
    )


def _legend(found: TextAttention, used: list[int]) -> str:
    counts = {topic: sum(topic in own for own in found.keys.topics) for topic in used}
    items = "".join(
        f'<li class="t{topic}"{_name(found, topic)}><span class="swatch"></span>{text(found.labels[topic])} '
        f'<span class="quiet">{counts[topic]}</span></li>'
        for topic in used
    )
    absent = len(found.labels) - len(used)
    more = f"<li class=quiet>{absent:,} more topics, not in this text</li>" if absent else ""
    none = '<li><span class="swatch none"></span>no topic</li>'
    return f'<ul class="legend" aria-label="Topics, with their number of tokens">{items}{none}{more}</ul>'


def _name(found: TextAttention, topic: int) -> str:
    name = found.names[topic]
    return "" if name == str(topic) else f' title="{text(name)}"'


def _words(found: TextAttention) -> str:
    sides = [("keys", "The text", found.keys)]
    if found.queries is not found.keys:
        sides = [
            ("queries", "The tokens that ask", found.queries),
            ("keys", "What they attend to", found.keys),
        ]
    return "".join(
        f'<section aria-label="{title}"><h2>{title}</h2><p class="text" data-side="{side}">'
        f"{''.join(_word(found, tokens, at) for at in range(len(tokens)))}</p></section>"
        for side, title, tokens in sides
    )


def _word(found: TextAttention, tokens: Tokens, at: int) -> str:
    own = tokens.topics[at]
    gap = "" if tokens.continues[at] or at == 0 else " "
    kind = "special" if tokens.special[at] else ""
    word = text(tokens.words[at]) or "␣"
    if not own:
        return f'{gap}<bdi class="w {kind}" data-at="{at}">{word}</bdi>'
    labels = text(" and ".join(found.labels[topic] for topic in own))
    stripes = "" if len(own) == 1 else f' style="border-bottom-color:{topic_colour(own[1])}"'
    kind = "several" if len(own) > 1 else ""
    return f'{gap}<bdi class="w topic t{own[0]} {kind}" data-at="{at}" title="{labels}"{stripes}>{word}</bdi>'


def _controls(found: TextAttention, order: Order) -> str:
    radios = "".join(
        f'<label><input type="radio" name="order" value="{value}"{" checked" if value == order else ""}> {name}</label>'
        for value, name in (("topic", "grouped by topic"), ("position", "in the order of the text"))
    )
    some = any(map(bool, found.queries.topics)) and any(map(bool, found.keys.topics))
    only = " checked" if some and order == "topic" else "" if some else " disabled"
    return (
        '<section aria-label="Heads"><h2>Heads</h2>'
        f'<form class="controls"><fieldset><legend>Words</legend>{radios}</fieldset>'
        f'<label><input type="checkbox" name="only"{only}> only words with a topic</label>'
        '<span class="scale" aria-hidden="true"><i></i><span>0</span><span>uniform (1 ×)</span>'
        "<span>≥ 10 ×</span></span></form></section>"
    )


def _heads(found: TextAttention) -> str:
    hidden = [head for head in found.heads if not bool(head.visible.all())]
    mask = "a causal mask" if all(head.causal for head in hidden) else "the model's mask"
    hatched = f'<p class="quiet">Hatched: what {mask} hides.</p>' if hidden else ""
    cards = "".join(_card(at, head) for at, head in enumerate(found.heads))
    return (
        '<p class="quiet">Rows ask, columns are attended to. Outlined: pairs of one topic, in its colour; a dot marks '
        "pairs of the same word. Point at a cell, or move through a pattern with the arrow keys, to read its values."
        f'</p>{hatched}<div class="heads">{cards}</div>'
        "<noscript><p>The patterns are drawn by a script inside this file; scripts are switched off here.</p>"
        "</noscript>"
    )


def _card(at: int, head: HeadAttention) -> str:
    contrast = head.contrast
    means = [float(getattr(contrast, name)) for name in RELATIONS]
    counts = [int(getattr(contrast, f"n_{name}")) for name in RELATIONS]
    largest = max((mean for mean in means if np.isfinite(mean)), default=0.0)
    rows = "".join(
        f'<tr><th scope="row">{name.replace("_", " ")}</th>'
        f'<td class="bar"><i style="width:{_share(mean, largest):.1f}%" class="{name}"></i></td>'
        f'<td class="n" title="{mean!r}">{number(mean)}</td><td class="n quiet">{count:,}</td></tr>'
        for name, mean, count in zip(RELATIONS, means, counts, strict=True)
    )
    reason = "" if contrast.reason is None else f'<p class="quiet">{text(contrast.reason)}</p>'
    ratio = float(contrast.ratio)
    return (
        f'<article class="card" data-head="{at}"><h3>{head.label} <span class="ratio" title="same topic ÷ different '
        f'topic: {ratio!r}">ratio <b>{number(ratio)}</b></span></h3>'
        '<table class="means"><thead class="quiet">'
        '<tr><th class="hidden">relation</th><td></td><th class="n">× uniform</th><th class="n">pairs</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>{reason}"
        f'<canvas tabindex="0" role="img" aria-label="Attention pattern of {head.label}; arrow keys read its cells">'
        '</canvas><output aria-live="polite"></output></article>'
    )


def _share(mean: float, largest: float) -> float:
    return 100 * mean / largest if np.isfinite(mean) and largest > 0 else 0.0


def _circuitsvis(found: TextAttention) -> tuple[str, str]:
    heads = found.heads[:_CIRCUITSVIS_HEADS]
    n = min(len(found.keys), _CIRCUITSVIS_TOKENS)
    patterns = torch.stack([head.pattern[:n, :n] for head in heads])
    causal = all(head.causal for head in heads)
    place, script = attention_heads(
        [readable_text(word) for word in found.keys.words[:n]],
        patterns,
        [head.label for head in heads],
        causal=causal,
        inside="circuitsvis",
    )
    those = "every token" if n == len(found.keys) else f"the first {n} tokens (more would freeze the browser)"
    same = "The same heads" if len(heads) == len(found.heads) else f"The first {len(heads)} heads"
    return (
        f'<details id="circuitsvis"><summary>{same} in circuitsvis: {those}, in the order of the text</summary>'
        f'<div class="white">{place}</div></details>'
    ), script


def _definitions() -> str:
    return """<details><summary>What the numbers are</summary><dl class="facts">
<dt>attention</dt><dd>after softmax; a row sums to one over all tokens, also those that are not shown</dd>
<dt>× uniform</dt><dd>attention times the number of tokens that the row may see: 1 if it made no difference between
them, in texts of any length and under causal masks</dd>
<dt>same word</dt><dd>pairs of equal token ids that have a topic, a position with itself among them unless
include_self=False</dd>
<dt>same topic</dt><dd>pairs of different token ids that share at least one topic</dd>
<dt>different topic</dt><dd>pairs in which both have topics and none is shared</dd>
<dt>no relation</dt><dd>pairs in which a token has no topic, is special, or is only a piece of a split word</dd>
<dt>ratio</dt><dd>mean over same-topic pairs ÷ mean over different-topic pairs; 1 where topics make no difference. Of
one text it is an example: measure_attention over many texts gives intervals and p-values.</dd>
</dl><p class="quiet">Attention is not explanation: it says where a head looks, not what it does with what it sees.</p>
</details>"""
