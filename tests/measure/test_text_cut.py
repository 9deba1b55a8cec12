"""One text before and after a cut: the heads as they are, and by hand without the edges."""

import numpy as np
import pytest
import torch
import zoo

import topic_probe as tp
from topic_probe.measure.text_attention import read_text_attention
from topic_probe.measure.text_cut import read_text_cut
from topic_probe.topics import Topics

TOPICS = Topics.from_token_ids(
    {"one": list(range(5, 20)), "two": list(range(20, 40))}, vocabulary_size=zoo.VOCABULARY
)
IDS = [7, 25, 8, 45, 7, 30, 12, 26]


@pytest.fixture(scope="module")
def model():
    return tp.open_model(zoo.make("bert"))


def topic(word):
    return int(word >= 20) if 5 <= word < 40 else None


def cut_by_hand(pattern, how):
    """The pattern without edges between different words of one topic."""
    kept = pattern.double().clone()
    for i, one in enumerate(IDS):
        for j, other in enumerate(IDS):
            if topic(one) is not None and topic(one) == topic(other) and one != other:
                kept[i, j] = 0
    return kept / kept.sum(-1, keepdim=True) if how == "scores" else kept


@pytest.mark.parametrize("how", ["scores", "weights"])
def test_every_head_is_followed_by_itself_without_the_edges(how, model):
    """Of the first layer, which nothing before it changes."""
    heads = ["L0H0", "L0H2"]
    found = read_text_cut(model, TOPICS, IDS, cut="same_topic", how=how, heads=heads)
    before = read_text_attention(model, TOPICS, IDS, heads=heads)
    assert [head.label for head in found.heads] == ["L0H0", "L0H0, cut", "L0H2", "L0H2, cut"]
    for own, after, alone in zip(found.heads[::2], found.heads[1::2], before.heads, strict=True):
        assert torch.equal(own.pattern, alone.pattern)
        np.testing.assert_allclose(after.pattern, cut_by_hand(own.pattern, how), atol=1e-6)
        assert after.contrast.same_topic == 0
        assert after.contrast.n_same_topic == own.contrast.n_same_topic
    n = int((cut_by_hand(torch.ones(8, 8), "weights") == 0).sum())
    assert f"after {n} edges of attention between words were cut" in found.notes[0]


def test_what_it_says_of_states_is_what_a_knockout_says_of_the_text(model):
    found = read_text_cut(model, TOPICS, IDS, cut="same_topic", how="scores", max_heads=1)
    report = tp.measure_knockout(model, TOPICS, [IDS], n_matched=0, special_ids=())
    before = report.outcome.item()
    assert f"{before:.3f} as it is, {before - report.effect.item():.3f} after the cut" in found.notes[1]


def test_a_page_has_both_and_the_model_comes_back_as_it_was(model):
    with torch.no_grad():
        ids, mask = torch.tensor([IDS]), torch.ones(1, len(IDS), dtype=torch.int64)
        own = model(ids, mask).logits
        page = tp.show_attention(
            model, TOPICS, IDS, cut="own_topic", how="weights", max_heads=2, circuitsvis=False
        )
        assert torch.equal(model(ids, mask).logits, own)
    assert page.html.count(", cut") >= 2
    assert "own topic, behind the softmax" in page.html
