"""Attention patterns as pictures that can be hovered over, by circuitsvis."""

import re
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from topic_probe.lens.capture import seen_offsets

# Stands for "<" until circuitsvis has written its script: a character that no text has, but every JSON can spell.
_STAND_IN, _SPELLED, _SAFE = "\ue3c0", "\\ue3c0", "\\u003c"
# Its call begins a line; what it is called with is JSON, in which no line ends.
_BEFORE_CALL = re.compile(r"\n\s*(?=CircuitsVis\.render\()")


def attention_pattern(tokens: Sequence[str], pattern: Float[Tensor, "query key"]) -> Any:
    """A circuitsvis figure of one head's pattern, with every pair that it attends to drawn.

    circuitsvis hides the upper triangle unless told otherwise, which is half of what a bidirectional model does; here
    it is hidden only where the pattern itself is causal. No token can end the script that it is written into.
    ``figure.local_src`` is a page that needs no network.

    Args:
        tokens: the text of every position.
        pattern: attention of one head, after softmax.

    Raises:
        ValueError: where the pattern is not one row and one column for every token.
    """
    if pattern.shape != (len(tokens), len(tokens)):
        raise ValueError(
            f"a pattern over {len(tokens)} tokens must be [{len(tokens)}, {len(tokens)}], not {list(pattern.shape)}; "
            "pick one document and one head"
        )
    from circuitsvis.attention import attention_pattern as draw

    causal = len(tokens) > 1 and seen_offsets(pattern[None])[1] <= 0
    shown = pattern.detach().to("cpu", torch.float32)
    figure = draw(tokens=_masked(tokens), attention=shown, mask_upper_tri=causal)
    figure.local_src, figure.cdn_src = _spelled_out(figure.local_src), _spelled_out(figure.cdn_src)
    return figure


def attention_heads(
    tokens: Sequence[str],
    patterns: Float[Tensor, "head token token"],
    names: Sequence[str],
    *,
    causal: bool,
    inside: str,
) -> tuple[str, str]:
    """Two pieces of HTML for a page of one's own: the place of circuitsvis's view of several heads, and its script.

    The script of circuitsvis is there once, however many heads there are. It draws when the ``details`` element with
    the id ``inside`` is opened for the first time, so that a page opens at once.
    """
    from circuitsvis.attention import attention_heads as draw

    figure = draw(
        attention=patterns.double().round(
            decimals=5
        ),  # twenty digits of each number would be most of the page
        tokens=_masked(tokens),
        attention_head_names=list(names),
        mask_upper_tri=causal,
    )
    place, _, script = _spelled_out(figure.local_src).partition("<script")
    attributes, _, code = script.partition(">")
    *library, call = _BEFORE_CALL.split(code)
    call = call.removesuffix("</script>").strip()
    opened = f'document.getElementById("{inside}").addEventListener("toggle", () => {call}, {{once: true}});'
    # Its place is a div closed like an empty element, which HTML does not know.
    place = place.strip().replace("/>", "></div>")
    return place, f"<script{attributes}>{''.join(library)}\n{opened}</script>"


def _masked(tokens: Sequence[str]) -> list[str]:
    return [token.replace("<", _STAND_IN) for token in tokens]


def _spelled_out(source: str) -> str:
    """The source with "<" spelled so that it is one in JavaScript, and none in HTML."""
    return source.replace(_SPELLED, _SAFE)
