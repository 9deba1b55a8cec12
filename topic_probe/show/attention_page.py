"""Attention by topic as a page: tokens in the colours of their topics, patterns grouped by topic, their numbers."""

import base64
import re
from typing import Any, Literal

import numpy as np
import torch
from markupsafe import Markup
from torch import Tensor

from topic_probe.contrast import RELATIONS
from topic_probe.measure.knockout import How, Relation
from topic_probe.measure.text_attention import (
    HeadAttention,
    ShownHeads,
    ShownText,
    TextAttention,
    Tokens,
    read_text_attention,
)
from topic_probe.measure.text_cut import read_text_cut
from topic_probe.options import checked, shares
from topic_probe.show.page import Page, make_page, readable_text
from topic_probe.show.style import ink_on, topic_colour
from topic_probe.topics import Topics

Order = Literal["topic", "position"]

# circuitsvis takes seconds to draw so many tokens, and minutes to draw twice as many.
_CIRCUITSVIS_TOKENS, _CIRCUITSVIS_HEADS = 48, 8
# Stands for "<" until circuitsvis has written its script: a character that no text has, but every JSON can spell.
_STAND_IN, _SPELLED, _SAFE = "\ue3c0", "\\ue3c0", "\\u003c"
# Its call begins a line; what it is called with is JSON, in which no line ends.
_BEFORE_CALL = re.compile(r"\n\s*(?=CircuitsVis\.render\()")


@shares
def show_attention(
    model: Any,
    topics: Topics,
    text_or_ids: Any,
    *,
    order: Order = "topic",
    circuitsvis: bool = True,
    cut: Relation | None = None,
    how: How = "scores",
    which: ShownHeads,
    reading: ShownText,
) -> Page:
    """A page of one text: its tokens coloured by topic, and the patterns of a few heads with the numbers of each.

    Beside each pattern stand the head's means over same-word, same-topic and different-topic pairs, their ratio and
    effect size on this text, which are those of `measure_attention`. In the page the words can be put in the order of
    the text or grouped by topic. A notebook shows the page; ``.save("page.html")`` writes it as one file that needs no
    network.

    Args:
        model: anything that `open_model` takes.
        topics: which vocabulary entries belong to which topic.
        text_or_ids: a text, token ids (list, tensor, array), or one document of `encode_texts`.
        order: how words stand when the page opens, grouped by "topic" or by "position".
        circuitsvis: whether the page also holds circuitsvis's view of the first 48 tokens (1.3 MB).
        cut: edges between words that are cut in all layers, as in `measure_knockout`: "same_topic", "different_topic",
            "same_word" or "own_topic". Every head is shown as it is and after the cut. None: nothing is cut.
        how: "scores" cuts before the softmax, "weights" behind it.

    Raises:
        ValueError: for a layer, head or stack that the model does not have, a text without tokens or without a
            tokenizer, several texts at once, or attention that is not finite.
    """
    options = vars(which) | vars(reading)
    if cut is None:
        attention = read_text_attention(model, topics, text_or_ids, **options)
    else:
        attention = read_text_cut(model, topics, text_or_ids, cut=cut, how=how, **options)
    return attention_page(attention, order=order, circuitsvis=circuitsvis)


@checked
def attention_page(attention: TextAttention, *, order: Order = "topic", circuitsvis: bool = True) -> Page:
    """The page of what `read_text_attention` has measured."""
    sides = {"keys": attention.keys}
    if attention.queries is not attention.keys:
        sides = {"queries": attention.queries, **sides}
    used = sorted({topic for side in sides.values() for own in side.topics for topic in own})
    return make_page(
        "attention.html",
        "Attention by topic",
        attention=attention,
        sides=sides,
        colours={topic: (topic_colour(topic), ink_on(topic_colour(topic))) for topic in used},
        counts={topic: sum(topic in own for own in attention.keys.topics) for topic in used},
        order=order,
        mask=_mask(attention),
        bars=[_bars(head) for head in attention.heads],
        data=_data(attention, used),
        circuitsvis=_circuitsvis(attention) if circuitsvis and attention.stack != "cross" else None,
    )


def _mask(attention: TextAttention) -> str:
    """What hides pairs from the heads; nothing where all are seen."""
    masked = [head for head in attention.heads if not bool(head.visible.all())]
    if not masked:
        return ""
    return "a causal mask" if all(head.causal for head in masked) else "the model's mask"


def _bars(head: HeadAttention) -> list[tuple[str, float, int, float]]:
    """Relation, mean, number of pairs, and the mean in percent of the largest."""
    means = [float(getattr(head.contrast, name)) for name in RELATIONS]
    largest = max((mean for mean in means if np.isfinite(mean)), default=0.0)
    return [
        (
            name,
            mean,
            int(getattr(head.contrast, f"n_{name}")),
            100 * mean / largest if np.isfinite(mean) and largest > 0 else 0.0,
        )
        for name, mean in zip(RELATIONS, means, strict=True)
    ]


# ---------------------------------------------------------------------------- what the script reads


def _data(attention: TextAttention, used: list[int]) -> dict[str, Any]:
    masks: list[Tensor] = []
    numbers = []
    for head in attention.heads:
        same = [number for number, mask in enumerate(masks) if torch.equal(mask, head.visible)]
        numbers.append(same[0] if same else len(masks))
        if not same:
            masks.append(head.visible)
    return {
        "queries": _tokens(attention.queries),
        "keys": None if attention.queries is attention.keys else _tokens(attention.keys),
        "topics": {
            topic: {"label": readable_text(attention.labels[topic]), "colour": topic_colour(topic)}
            for topic in used
        },
        "relation": _packed(attention.relation.numpy().astype(np.uint8)),
        "masks": [_packed(mask.numpy().astype(np.uint8)) for mask in masks],
        "heads": [
            {"label": head.label, "mask": mask, "pattern": _packed(head.pattern.numpy().astype("<f4"))}
            for head, mask in zip(attention.heads, numbers, strict=True)
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


# ---------------------------------------------------------------------------- the same heads by circuitsvis


def _circuitsvis(attention: TextAttention) -> dict[str, Any]:
    """The view of circuitsvis over the first heads and tokens: its parts, and how much of all it shows.

    circuitsvis hides the upper triangle unless told otherwise, which is half of what a bidirectional model does; here
    it is hidden only where every pattern itself is causal.
    """
    from circuitsvis.attention import attention_heads

    heads = attention.heads[:_CIRCUITSVIS_HEADS]
    n = min(len(attention.keys), _CIRCUITSVIS_TOKENS)
    figure = attention_heads(
        # Twenty digits of each number would be most of the page.
        attention=torch.stack([head.pattern[:n, :n] for head in heads]).double().round(decimals=5),
        tokens=[readable_text(word).replace("<", _STAND_IN) for word in attention.keys.words[:n]],
        attention_head_names=[head.label for head in heads],
        mask_upper_tri=all(head.causal for head in heads),
    )
    return {"n_heads": len(heads), "n_tokens": n, **_taken_apart(figure.local_src)}


def _taken_apart(source: str) -> dict[str, Markup]:
    """A figure of circuitsvis: its place, and its script as attributes, library and the call that draws it.

    The library is there once, however many heads there are, and no token can end its script: "<" is spelled so that it
    is one in JavaScript, and none in HTML.
    """
    place, _, script = source.replace(_SPELLED, _SAFE).partition("<script")
    attributes, _, code = script.partition(">")
    library, call = _BEFORE_CALL.split(code)
    parts = {
        # Its place is a div closed like an empty element, which HTML does not know.
        "place": place.strip().replace("/>", "></div>"),
        "attributes": attributes,
        "library": library,
        "call": call.removesuffix("</script>").strip(),
    }
    return {name: Markup(part) for name, part in parts.items()}
