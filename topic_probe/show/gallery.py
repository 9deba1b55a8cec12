"""All heads of a model over one text in circuitsvis' gallery, fed with words grouped by topic."""

import re
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np
from markupsafe import Markup

from topic_probe.options import check_whole, checked
from topic_probe.show.page import Page, make_page, readable_text
from topic_probe.show.style import LESS, MORE
from topic_probe.show.text_attention import TextAttention, read_text_attention
from topic_probe.topics import Topics

MOST = 3.0
"""Attention of 8 times uniform attention and of an eighth of it have the ends of the colours."""
MAX_WORDS = 64


@checked
def show_heads(
    model: Any,
    topics: Topics,
    text_or_ids: Any,
    *,
    stack: Literal["self", "encoder", "decoder"] | None = None,
    max_tokens: int = 512,
    tokenizer: Any = None,
) -> Page:
    """A page with the patterns of all heads over the words of one text that have topics, in circuitsvis' gallery.

    Words stand grouped by topic, named ``topic:word``; colours are log₂ of attention ÷ uniform attention: orange is
    more, blue is less, white is as much, or hidden by the model's mask. A notebook shows the page without a network;
    ``.save("heads.html")`` writes it as one file. `show_attention` has the numbers of heads beside their patterns.

    Args:
        model: anything that `open_model` takes.
        topics: which vocabulary entries belong to which topic.
        text_or_ids: a text, token ids, or one document of `encode_texts`.
        stack: which attention of a model with two stacks; None takes the first.
        max_tokens: longer texts are cut here, and the page says so.
        tokenizer: the model's tokenizer, where the model has none.

    Raises:
        ValueError: for a text in which fewer than two words have a topic, and as `show_attention`.
    """
    check_whole("max_tokens", max_tokens)
    found = read_text_attention(
        model, topics, text_or_ids, stack=stack, max_tokens=max_tokens, tokenizer=tokenizer
    )
    return gallery(found)


def gallery(found: TextAttention) -> Page:
    """The page of what `read_text_attention` has measured."""
    of = [at for at, own in enumerate(found.keys.topics) if own]
    if len(of) < 2:
        raise ValueError(
            "fewer than two words of this text have a topic: take a longer text, or other topics"
        )
    order = sorted(of[:MAX_WORDS], key=lambda at: (found.keys.topics[at][0], found.keys.words[at], at))
    cells = np.ix_(order, order)
    with np.errstate(divide="ignore"):
        values = [np.log2(pattern[cells]) for pattern in found.patterns.values()]
    shown = [
        np.clip(np.nan_to_num(one, nan=0.0, neginf=-MOST), -MOST, MOST).round(1).tolist() for one in values
    ]
    others = len(found.keys) - len(of)
    notes = [f"{len(order)} words with a topic; {others} other tokens are left out."]
    if len(of) > MAX_WORDS:
        notes.append(f"Of {len(of)} words with a topic the first {MAX_WORDS} are shown.")
    return make_page(
        "gallery.html",
        f"All heads by topic: {found.model}",
        notes=[*found.notes, *notes],
        masked=any(bool(np.isnan(one).any()) for one in values),
        library=_library(),
        data={
            "attention": shown,
            "tokens": [
                readable_text(f"{found.names[found.keys.topics[at][0]]}:{found.keys.words[at]}")
                for at in order
            ],
            "attentionHeadNames": [
                f"L{layer}H{head}" for layer, head in found.heads[["layer", "head"]].to_numpy()
            ],
            "minValue": -MOST,
            "maxValue": MOST,
            "negativeColor": LESS,
            "positiveColor": MORE,
            "maskUpperTri": False,  # words are grouped by topic, so that their order says nothing of positions
        },
    )


@cache
def _library() -> Markup:
    """The script of circuitsvis, with nothing in it that could end the element around it."""
    code = files("circuitsvis").joinpath("dist/cdn/iife.js").read_text(encoding="utf-8")
    return Markup(re.sub(r"<(?=/script|!--|script)", r"\\x3c", code, flags=re.IGNORECASE))
