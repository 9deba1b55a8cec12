"""Attention by topic as a page: tokens in the colours of their topics, and every head to choose, with its numbers."""

import base64
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np

from topic_probe.contrast import RELATIONS
from topic_probe.measure.attention import AttentionReport
from topic_probe.options import check_whole, checked
from topic_probe.show.page import Page, make_page, number, readable_text
from topic_probe.show.style import ink_on, tint, topic_colours
from topic_probe.show.text_attention import TextAttention, Tokens, read_text_attention
from topic_probe.topics import Topics

Order = Literal["topic", "position"]

MOST = 16.0
"""Up to so many times uniform attention a cell is told; beyond it says ≥ 16."""
HIDDEN = 255
# Bytes of patterns beside those of the heads shown first: a page stays below 250 kB.
_ROOM = 130_000
# The colours of effect sizes span at least this, so that noise does not look like an effect.
_SMALLEST_EFFECT = 0.2


@checked
def show_attention(
    model: Any,
    topics: Topics,
    text_or_ids: Any,
    *,
    heads: Iterable[str] | str | AttentionReport | None = None,
    stack: Literal["self", "encoder", "decoder", "cross"] | None = None,
    max_heads: int = 6,
    max_tokens: int = 128,
    order: Order = "topic",
    tokenizer: Any = None,
) -> Page:
    """A page of one text: its tokens coloured by topic, and patterns of heads in multiples of uniform attention.

    A map has all heads of the stack in colours of their effect sizes; a click, or Enter, shows a head and takes it
    away. Beside its pattern stand its means over same-word, same-topic and different-topic pairs, their ratio and
    effect size on this text, which are those of `measure_attention`. A notebook shows the page; ``.save("page.html")``
    writes it as one file that needs no network. `show_heads` shows the patterns of all heads at once.

    Args:
        model: anything that `open_model` takes.
        topics: which vocabulary entries belong to which topic.
        text_or_ids: a text, token ids (list, tensor, array), or one document of `encode_texts`.
        heads: the heads to show first, ``"L3H7"`` or ``"3.7"`` (``"encoder.3.7"``), one or several; or a report of
            `measure_attention` of this model, or its folder, whose strongest heads are shown. None takes those with
            the largest effect sizes on this text.
        stack: which attention of a model with two stacks; None takes that of the heads, or the first.
        max_heads: how many heads are shown first where none are named.
        max_tokens: longer texts are cut here, and the page says so.
        order: how words stand when the page opens, grouped by "topic" or by "position".
        tokenizer: the model's tokenizer, where the model has none.

    Raises:
        ValueError: for a head or stack that the model does not have, a text without tokens or without a tokenizer, or
            attention that is not finite.
    """
    check_whole("max_heads", max_heads)
    check_whole("max_tokens", max_tokens)
    attention = read_text_attention(
        model, topics, text_or_ids, heads=heads, stack=stack, max_heads=max_heads, max_tokens=max_tokens,
        tokenizer=tokenizer,
    )  # fmt: skip
    return attention_page(attention, order=order)


def attention_page(attention: TextAttention, *, order: Order = "topic") -> Page:
    """The page of what `read_text_attention` has measured."""
    sides = {"keys": attention.keys}
    if attention.queries is not attention.keys:
        sides = {"queries": attention.queries, **sides}
    used = sorted({topic for side in sides.values() for own in side.topics for topic in own})
    colours = topic_colours(used)
    n_patterns = max(len(attention.shown), _ROOM // attention.relation.numel())
    effects = attention.heads["effect_size"].abs().sort_values(ascending=False, kind="stable")
    kept = list(dict.fromkeys([*attention.shown, *effects.index]))[:n_patterns]
    return make_page(
        "attention.html",
        f"Attention by topic: {attention.model}",
        attention=attention,
        sides=sides,
        colours={topic: (colour, ink_on(colour)) for topic, colour in colours.items()},
        counts={topic: sum(topic in own for own in attention.keys.topics) for topic in used},
        order=order,
        masked=any(bool(np.isnan(pattern).any()) for pattern in attention.patterns.values()),
        grid=_grid(attention, set(kept)),
        data={
            "queries": _tokens(attention.queries),
            "keys": _tokens(attention.keys),
            "same": attention.queries is attention.keys,
            "topics": {
                topic: {"label": readable_text(attention.labels[topic]), "colour": colours[topic]}
                for topic in used
            },
            "relation": "".join(map(str, attention.relation.flatten().tolist())),
            "most": MOST,
            "first": attention.shown,
            "heads": [
                {
                    "name": name,
                    "means": [_finite(head[relation]) for relation in RELATIONS],
                    "pairs": [int(head[f"n_{relation}"]) for relation in RELATIONS],
                    "effect": number(head["effect_size"], 2),
                    "ratio": number(head["ratio"], 3),
                    "pattern": _packed(attention.patterns[str(name)]) if name in kept else None,
                }
                for name, head in attention.heads.iterrows()
            ],
        },
    )


def _finite(value: Any) -> float | None:
    return float(f"{value:.4g}") if np.isfinite(value) else None


def _tokens(tokens: Tokens) -> dict[str, Any]:
    words = [readable_text(word) for word in tokens.words]
    return {"words": words, "topics": tokens.topics, "special": [int(flag) for flag in tokens.special]}


def _packed(times: np.ndarray) -> str:
    """A byte for each cell, of the root: so what is small keeps its digits, too."""
    share = np.sqrt(np.clip(times / MOST, 0, 1))
    steps = np.where(np.isnan(times), HIDDEN, np.rint((HIDDEN - 1) * np.nan_to_num(share)))
    return base64.b64encode(steps.astype(np.uint8).tobytes()).decode()


def _grid(attention: TextAttention, kept: set[str]) -> dict[str, Any]:
    """All heads by layer, each with its colour, with what is known of it, and whether its pattern is in the page."""
    of = "on this text" if attention.evidence is None else "in the report"
    table = attention.heads if attention.evidence is None else attention.evidence
    span = max(_SMALLEST_EFFECT, float(table["effect_size"].abs().max()))
    rows: dict[int, dict[int, dict[str, Any]]] = {}
    for name, head in table.iterrows():
        told = f"effect size {number(head['effect_size'], 2)}, ratio {number(head['ratio'], 3)} {of}"
        if "q_value" in head:
            told += f", q {number(head['q_value'], 2)}"
        rows.setdefault(head["layer"], {})[head["head"]] = {
            "name": name,
            "told": told,
            "there": name in kept,
            "colour": tint(float(np.clip(head["effect_size"] / span, -1, 1))),
        }
    heads = sorted({head for layer in rows.values() for head in layer})
    return {"rows": rows, "heads": heads, "span": span, "of": of, "n_missing": len(table) - len(kept)}
