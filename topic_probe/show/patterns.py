"""One attention pattern as a picture that can be hovered over, by circuitsvis."""

from collections.abc import Sequence
from html import escape
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from topic_probe.lens.capture import seen_offsets


def attention_pattern(tokens: Sequence[str], pattern: Float[Tensor, "query key"]) -> Any:
    """A circuitsvis figure of one head's pattern, with every pair that it attends to drawn.

    circuitsvis hides the upper triangle unless told otherwise, which is half of what a bidirectional model does; here
    it is hidden only where the pattern itself is causal. Tokens are escaped, because circuitsvis puts them into the
    page as they are. ``figure.local_src`` is a page that needs no network.

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
    return draw(tokens=[escape(token) for token in tokens], attention=shown, mask_upper_tri=causal)
