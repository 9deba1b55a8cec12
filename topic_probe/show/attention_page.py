"""Attention by topic as a page: tokens in the colours of their topics, and every head to choose, with its numbers."""

import base64
import zlib
from typing import Any, Literal

import numpy as np

from topic_probe.contrast import RELATIONS, Contrast
from topic_probe.measure.text_attention import (
    HeadAttention,
    ShownHeads,
    ShownText,
    TextAttention,
    Tokens,
    read_text_attention,
)
from topic_probe.options import checked, shares
from topic_probe.show.page import Page, make_page, number, readable_text
from topic_probe.show.style import ink_on, tint, topic_colours
from topic_probe.topics import Topics

Order = Literal["topic", "position"]

# circuitsvis takes seconds to draw so many tokens, and minutes to draw twice as many.
_CIRCUITSVIS_TOKENS, _CIRCUITSVIS_HEADS = 48, 8
# In so many steps is the attention of a head written down; fewer where the page would grow too large for that.
_STEPS = (255, 127, 63, 31)
# From so many heads it is seen how well they can be compressed.
_SAMPLE = 48
# Patterns may take so many characters of a page, so that all of it stays below three megabytes.
_ROOM = 2_250_000
# The colours of effect sizes span at least this, so that noise does not look like an effect.
_SMALLEST_EFFECT = 0.2
# A head is certain below this q-value.
_CERTAIN = 0.05


@shares
def show_attention(
    model: Any,
    topics: Topics,
    text_or_ids: Any,
    *,
    order: Order = "topic",
    circuitsvis: bool = True,
    which: ShownHeads,
    reading: ShownText,
) -> Page:
    """A page of one text: its tokens coloured by topic, and the pattern of every head with its numbers.

    In the page a grid has all heads of the stack, in colours of their effect sizes; a click, or Enter, shows a head
    and takes it away. Beside its pattern stand its means over same-word, same-topic and different-topic pairs, their
    ratio and effect size on this text, which are those of `measure_attention`. Words can be put in the order of the
    text or grouped by topic, and pieces of words put together; what two of them are to each other is told where one
    points. Patterns are stored in 255 steps, so that 12 × 12 heads over 128 tokens take less than three megabytes.
    ``heads=report`` lets a report of `measure_attention` choose the heads shown first, and colour the grid by its
    evidence. A notebook shows the page; ``.save("page.html")`` writes it as one file that needs no network.

    Args:
        model: anything that `open_model` takes.
        topics: which vocabulary entries belong to which topic.
        text_or_ids: a text, token ids (list, tensor, array), or one document of `encode_texts`.
        order: how words stand when the page opens, grouped by "topic" or by "position".
        circuitsvis: whether the page can also show circuitsvis's view of the heads, in its own colours, over the first
            48 tokens (0.5 MB).

    Raises:
        ValueError: for a layer, head or stack that the model does not have, a text without tokens or without a
            tokenizer, several texts at once, or attention that is not finite.
    """
    attention = read_text_attention(model, topics, text_or_ids, **vars(which), **vars(reading))
    return attention_page(attention, order=order, circuitsvis=circuitsvis)


@checked
def attention_page(attention: TextAttention, *, order: Order = "topic", circuitsvis: bool = True) -> Page:
    """The page of what `read_text_attention` has measured."""
    sides = {"keys": attention.keys}
    if attention.queries is not attention.keys:
        sides = {"queries": attention.queries, **sides}
    used = sorted({topic for side in sides.values() for own in side.word_topics for topic in own})
    kept, steps, packed = _fitting(attention)
    colours = topic_colours(used)
    return make_page(
        "attention.html",
        "Attention by topic",
        attention=attention,
        sides=sides,
        colours={topic: (colour, ink_on(colour)) for topic, colour in colours.items()},
        counts={topic: sum(topic in own for own in attention.keys.topics) for topic in used},
        order=order,
        mask=_mask(kept),
        grid=_grid(attention, kept),
        n_missing=len(attention.measured) - len({head.name for head in kept}),
        steps=steps,
        data=_data(attention, used, kept) | {"steps": steps, "packed": packed},
        library=_library() if circuitsvis and attention.stack != "cross" else None,
    )


def _mask(heads: list[HeadAttention]) -> str:
    """What hides pairs from the heads; nothing where all are seen."""
    masked = [head for head in heads if not bool(head.visible.all())]
    if not masked:
        return ""
    return "a causal mask" if all(head.causal for head in masked) else "the model's mask"


# ---------------------------------------------------------------------------- the grid of heads


def _grid(attention: TextAttention, kept: list[HeadAttention]) -> dict[str, Any]:
    """All heads by layer, each with its colours, with what is known of it, and whether its pattern is in the page."""
    index = attention.measured.index or {}
    there = {head.name for head in kept}
    evidence = {"text": attention.measured}
    if attention.evidence is not None:
        evidence = {"report": attention.evidence, **evidence}
    spans = {name: _span(contrast) for name, contrast in evidence.items()}
    rows: dict[int, dict[int, dict[str, Any]]] = {}
    for at, (layer, head) in enumerate(zip(index["layer"], index["head"], strict=True)):
        name = f"L{layer}H{head}"
        sides = {of: float(contrast.effect_size[at]) / spans[of] for of, contrast in evidence.items()}
        rows.setdefault(layer, {})[head] = {
            "name": name,
            "there": name in there,
            "says": "; ".join(
                _says(of, contrast[at], len(evidence) > 1) for of, contrast in evidence.items()
            ),
            "report": "" if attention.evidence is None else _says("report", attention.evidence[at], True),
            "certain": any(_is_certain(contrast, at) for contrast in evidence.values()),
            "looks": {of: tint(np.clip(side, -1, 1)) for of, side in sides.items()},
        }
    return {
        "rows": rows,
        "heads": sorted({head for row in rows.values() for head in row}),
        "spans": spans,
        "q": _CERTAIN if any(cell["certain"] for row in rows.values() for cell in row.values()) else None,
        "tested": any(contrast.q_value is not None for contrast in evidence.values()),
    }


def _span(contrast: Contrast) -> float:
    known = contrast.effect_size[np.isfinite(contrast.effect_size)]
    return max(_SMALLEST_EFFECT, float(np.abs(known).max(initial=0.0)))


def _is_certain(contrast: Contrast, at: int) -> bool:
    return contrast.q_value is not None and bool(contrast.q_value[at] < _CERTAIN)


def _says(of: str, cell: Contrast, several: bool) -> str:
    """What is known of a head, in words."""
    where = {"text": "on this text ", "report": "in the report "}[of] if several else ""
    ratio_interval = cell.interval if cell.statistic == "ratio" else None
    parts = [
        f"effect size {_with(cell.effect_size_interval, cell.effect_size)}",
        f"ratio {_with(ratio_interval, cell.ratio)}",
    ]
    parts += [f"q {number(cell.q_value)}"] if cell.q_value is not None else []
    return where + ", ".join(parts)


def _with(interval: np.ndarray | None, value: Any) -> str:
    """A number with its interval, where there is one."""
    if interval is None or not np.isfinite(interval).all():
        return number(value)
    return f"{number(value)} [{number(interval[0])}, {number(interval[1])}]"


# ---------------------------------------------------------------------------- what the script reads


def _data(attention: TextAttention, used: list[int], kept: list[HeadAttention]) -> dict[str, Any]:
    _, numbers = _masks(kept)
    colours = topic_colours(used)
    return {
        "queries": _tokens(attention.queries),
        "keys": None if attention.queries is attention.keys else _tokens(attention.keys),
        "topics": {
            topic: {"label": readable_text(attention.labels[topic]), "colour": colours[topic]}
            for topic in used
        },
        "nMasks": len(set(numbers)),
        "circuitsvis": {"tokens": _CIRCUITSVIS_TOKENS, "heads": _CIRCUITSVIS_HEADS},
        "first": [head.name for head in attention.heads],
        "heads": [
            {
                "name": head.name,
                "mask": mask,
                "highest": _highest(head),
                "means": [_finite(getattr(head.contrast, name)) for name in RELATIONS],
                "pairs": [int(getattr(head.contrast, f"n_{name}")) for name in RELATIONS],
                "effect": _finite(head.contrast.effect_size),
                "ratio": _finite(head.contrast.ratio),
                "reason": head.contrast.reason,
            }
            for head, mask in zip(kept, numbers, strict=True)
        ],
    }


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _tokens(tokens: Tokens) -> dict[str, Any]:
    return {
        "words": [readable_text(word) for word in tokens.words],
        "topics": tokens.topics,
        "special": [int(flag) for flag in tokens.special],
        "continues": [int(flag) for flag in tokens.continues],
        "inWords": [readable_text(word) for word in tokens.in_words],
        "wordTopics": tokens.word_topics,
    }


def _masks(heads: list[HeadAttention]) -> tuple[list[bytes], list[int]]:
    """The masks that differ, and which of them is that of every head."""
    known: dict[bytes, int] = {}
    numbers = [
        known.setdefault(head.visible.numpy().astype(np.uint8).tobytes(), len(known)) for head in heads
    ]
    return list(known), numbers


def _highest(head: HeadAttention) -> float:
    return max(float(head.pattern.max()), 1e-30)


def _fitting(attention: TextAttention) -> tuple[list[HeadAttention], int, str]:
    """The heads whose patterns there is room for, those shown first before others, in how many steps, and packed."""
    kept = [*attention.heads, *attention.rest]
    sample = kept[:: -(-len(kept) // _SAMPLE)]
    # A little more than the sample says, because heads differ.
    share = 1.05 * len(kept) / len(sample)
    for steps in _STEPS:
        needed = share * len(_packed(attention, sample, steps))
        if needed <= _ROOM:
            break
    size = len(kept) if needed <= _ROOM else int(len(kept) * _ROOM / needed)
    while True:
        kept = kept[: max(len(attention.heads), size)]
        packed = _packed(attention, kept, steps)
        if len(packed) <= _ROOM or len(kept) == len(attention.heads):
            return kept, steps, packed
        size = int(0.95 * len(kept))


def _packed(attention: TextAttention, heads: list[HeadAttention], steps: int) -> str:
    """Relations, masks and patterns, a byte for each cell, compressed.

    Of attention the root is written, in steps up to the head's highest: so what is small keeps its digits, too.
    """
    masks, _ = _masks(heads)
    relations = (attention.relation, attention.word_relation)
    parts = [codes.numpy().astype(np.uint8).tobytes() for codes in relations] + masks
    for head in heads:
        share = np.maximum(head.pattern.numpy(), 0) / _highest(head)
        parts.append(np.rint(steps * np.sqrt(share)).astype(np.uint8).tobytes())
    return base64.b64encode(zlib.compress(b"".join(parts))).decode()


def _library() -> str:
    """The script of circuitsvis, compressed: it is there once, however many heads it is to draw."""
    from circuitsvis.attention import attention_heads
    from torch import ones

    source = attention_heads(attention=ones(1, 1, 1), tokens=[""], attention_head_names=[""]).local_src
    code = source.partition("<script")[2].partition(">")[2]
    # What follows is the call that draws these heads.
    library, _, _ = code.rpartition("CircuitsVis.render(")
    return base64.b64encode(zlib.compress(library.encode(), 9)).decode()
