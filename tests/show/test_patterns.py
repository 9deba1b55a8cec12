import json

import pytest
import torch

from topic_probe.show.patterns import attention_pattern


def test_a_bidirectional_pattern_is_drawn_whole_and_a_causal_one_below_the_diagonal():
    """circuitsvis hides the upper triangle by default: half of an encoder's attention would be missing."""
    tokens = ["one", "two", "three"]
    whole = torch.full((3, 3), 1 / 3)
    assert '"maskUpperTri": false' in attention_pattern(tokens, whole).local_src
    causal = torch.tril(torch.ones(3, 3)) / torch.arange(1.0, 4.0)[:, None]
    assert '"maskUpperTri": true' in attention_pattern(tokens, causal).local_src


def test_tokens_cannot_become_markup_and_are_still_themselves():
    """circuitsvis writes tokens into its script as they are and shows them as text, not as HTML."""
    page = attention_pattern(["</script><script>", "b"], torch.full((2, 2), 0.5)).local_src
    drawn = page[page.rindex("CircuitsVis.render(") :]  # behind circuitsvis's own code
    assert drawn.count("<") == 1  # of the script's own end
    props = json.loads(drawn[drawn.index("{") : drawn.rindex("}") + 1])
    assert props["tokens"] == ["</script><script>", "b"]


def test_a_pattern_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"over 2 tokens must be \[2, 2\], not \[3, 3\]"):
        attention_pattern(["a", "b"], torch.ones(3, 3))
