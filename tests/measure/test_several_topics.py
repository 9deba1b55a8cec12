"""Several topics in one pass of the model: each report is that of these topics alone."""

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, T5Config, T5Model

import topic_probe as tp
from topic_probe.contrast import Contrast
from topic_probe.measure.accumulators import Relations
from topic_probe.measure.engine import every_topics

VOCABULARY = 60
TOPICS = [
    tp.Topics.from_token_ids({"one": range(3, 10), "two": range(10, 18)}, vocabulary_size=VOCABULARY),
    tp.Topics.from_token_ids({"a": range(3, 30), "b": range(25, 45)}, vocabulary_size=VOCABULARY),
    tp.Topics.from_token_ids({"x": [5, 6, 20, 30], "y": [7, 40, 41, 42]}, vocabulary_size=VOCABULARY),
]


def bert():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=64,
    )  # fmt: skip
    return BertModel(config, add_pooling_layer=False).eval().double()


def gpt2():
    torch.manual_seed(0)
    return (
        GPT2Model(GPT2Config(vocab_size=VOCABULARY, n_layer=2, n_head=2, n_embd=16, n_positions=64))
        .eval()
        .double()
    )


def t5():
    torch.manual_seed(0)
    config = T5Config(vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2)
    return T5Model(config).eval().double()


def documents(n=24):
    """Texts of many lengths, some of which have words of one topics and not of the others."""
    generator = np.random.default_rng(0)
    found = [generator.integers(0, VOCABULARY, length).tolist() for length in generator.integers(3, 40, n)]
    return [*found, [1, 2, 50, 51], [1, 10, 11, 12, 2], [1, 44, 43, 25, 26], [5]]


def contrasts(report):
    """Every contrast of a report by name."""
    found = {}
    for name, value in vars(report).items():
        of_name = value if isinstance(value, dict) else {"": value}
        found |= {f"{name} {part}": one for part, one in of_name.items() if isinstance(one, Contrast)}
    return found


def same(one, other):
    """Two reports are the same, but for rounding and what was shared."""
    named = contrasts(one)
    assert named.keys() == contrasts(other).keys()
    for name, contrast in named.items():
        for part, values in vars(contrast).items():
            if isinstance(values, np.ndarray):
                beside = getattr(contrasts(other)[name], part)
                np.testing.assert_allclose(beside, values, rtol=1e-9, atol=1e-12, err_msg=f"{name} {part}")
    for name in ("documents", "left_out", "documents_measured", "sources", "tokens"):
        if name in one.provenance:
            assert other.provenance[name] == one.provenance[name], name
    assert one.provenance["topics"] == other.provenance["topics"]


@pytest.mark.parametrize("model", [bert, gpt2, t5])
@pytest.mark.parametrize("through", ["hooks", "auto"])
def test_attention_of_several_topics_is_that_of_each(model, through):
    options = {
        "special_ids": {1, 2},
        "n_permutations": 20,
        "batch_size": 5,
        "through": through,
        "n_resamples": 20,
    }
    several = tp.measure_attention(model(), TOPICS, documents(), **options)
    assert isinstance(several, list)
    for topics, report in zip(TOPICS, several, strict=True):
        same(tp.measure_attention(model(), topics, documents(), **options), report)


def test_states_of_several_topics_are_those_of_each():
    several = tp.measure_embeddings(bert(), TOPICS, documents(), batch_size=5)
    for topics, report in zip(TOPICS, several, strict=True):
        alone = tp.measure_embeddings(bert(), topics, documents(), batch_size=5)
        same(alone, report)
        assert report.provenance["documents"]["left_out"] == alone.provenance["documents"]["left_out"]


def test_several_topics_are_one_pass(monkeypatch):
    model, n_calls, forward = bert(), [], BertModel.forward
    tp.measure_attention(model, TOPICS[0], documents(), batch_size=64)  # with its trial
    monkeypatch.setattr(
        BertModel, "forward", lambda self, **given: n_calls.append(1) or forward(self, **given)
    )
    tp.measure_attention(model, TOPICS[0], documents(), batch_size=64)
    for_one = len(n_calls)
    tp.measure_attention(model, TOPICS, documents(), batch_size=64)
    assert len(n_calls) == 2 * for_one


def test_a_list_of_one_gives_a_list_of_one():
    [report] = tp.measure_attention(bert(), TOPICS[:1], documents(), n_permutations=0)
    same(tp.measure_attention(bert(), TOPICS[0], documents(), n_permutations=0), report)


def test_each_topics_have_accumulators_of_their_own():
    own = [[Relations()] for _ in TOPICS]
    reports = tp.measure_attention(bert(), TOPICS, documents(), n_permutations=0, accumulators=own)
    for report, [relations] in zip(reports, own, strict=True):
        np.testing.assert_array_equal(relations.by_source.total().counts[0, 1], report.heads.n_same_topic[0])
    with pytest.raises(ValueError, match="of 3 topics at once, accumulators needs 3 lists of accumulators"):
        tp.measure_attention(bert(), TOPICS, documents(), accumulators=[Relations()])


def test_what_several_topics_cannot_be_asked_is_refused(tmp_path):
    with pytest.raises(ValueError, match="a folder is for one report: measure several topics one after"):
        tp.measure_attention(bert(), TOPICS, documents(), folder=tmp_path)
    with pytest.raises(ValueError, match="a folder is for one report: measure several topics one after"):
        tp.measure_embeddings(bert(), TOPICS, documents(), folder=tmp_path)
    with pytest.raises(ValueError, match="needed topics, or a list of at least one, got an empty list"):
        tp.measure_attention(bert(), [], documents())
    with pytest.raises(TypeError, match="a list of topics needs Topics, got 'war'"):
        every_topics(["war"])


def test_a_broken_document_is_counted_for_the_topics_that_have_words_in_it():
    model, broken = bert(), [1, 10, 11, 50, 2]
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[50] = torch.nan
    texts = [[1, *words, 2] for words in ([5, 6, 11], [7, 12, 20], [30, 31, 26], [8, 9, 15])] * 60
    options = {"special_ids": {1, 2}, "n_permutations": 3}
    several = tp.measure_attention(model, TOPICS, [*texts, broken], **options)
    for topics, report in zip(TOPICS, several, strict=True):
        same(tp.measure_attention(model, topics, [*texts, broken], **options), report)
    n = [
        report.provenance["left_out"].get("documents with NaN or infinity in their attention")
        for report in several
    ]
    assert [number or 0 for number in n] == [1, 1, 0]
