"""Weights of heads between words, through factors, against the word × word matrices that are never formed."""

import itertools

import numpy as np
import pytest
import torch
import zoo
from word_pairs import Pairs, topics_of

import topic_probe as tp
from topic_probe.estimate import over_words
from topic_probe.topics import Topics

LISTS = {"fruit": [5, 6, 7, 8, 20], "tools": [10, 11, 12, 13, 20], "birds": [30, 31, 32, 5], "one": [40]}
TOPICS = topics_of(LISTS, zoo.VOCABULARY)
# Forms of a word in one topic (apple), in topics that share none (axe) and in more and fewer of them (hen).
TEXTS = {5: "hen", 6: "Apple", 7: " apple", 8: "APPLE", 10: "axe", 40: " axe", 31: "Hen", 32: "(hen"}
D_HEAD = zoo.WIDTH // zoo.HEADS


def model_of(name):
    return zoo.make(name).double()


def heads_of(matrix):
    """[head, d_head, d_model] of a projection that is applied from the left."""
    return matrix.detach().reshape(-1, D_HEAD, zoo.WIDTH)


def outputs_of(matrix):
    """The same of what puts heads together, [d_model, head · d_head]."""
    return matrix.detach().T.reshape(-1, D_HEAD, zoo.WIDTH)


def bert_matrices(model, layer):
    attention = model.bert.encoder.layer[layer].attention
    found = [heads_of(getattr(attention.self, name).weight) for name in ("query", "key", "value")]
    return [*found, outputs_of(attention.output.dense.weight)]


def llama_matrices(model, layer):
    attention = model.model.layers[layer].self_attn
    key, value = (heads_of(part.weight)[[0, 0, 1, 1]] for part in (attention.k_proj, attention.v_proj))
    return [heads_of(attention.q_proj.weight), key, value, outputs_of(attention.o_proj.weight)]


@pytest.mark.parametrize(
    ("name", "matrices", "exclude", "texts"),
    [
        ("bert", bert_matrices, (5, 31), None),
        ("llama", llama_matrices, (), TEXTS),
    ],
    ids=["bert", "llama"],
)
def test_every_head_is_that_of_its_whole_matrix_of_words(name, matrices, exclude, texts):
    topics, model = topics_of(LISTS, zoo.VOCABULARY, texts), model_of(name)
    report = tp.measure_weights(model_of(name), topics, exclude=exclude, seed=2)
    ids = topics.words[topics.group_of_word.argsort(stable=True)].tolist()
    pairs = Pairs([id_ for id_ in ids if id_ not in exclude], LISTS, texts)
    table = model.get_input_embeddings().weight.detach()[pairs.ids]
    unembedding = model.get_output_embeddings().weight.detach()[pairs.ids]
    scores = []
    for circuit, layer, head in itertools.product(("qk", "ov"), range(3), range(zoo.HEADS)):
        query, key, value, output = (part[head] for part in matrices(model, layer))
        # The score of a query word with a key word; what value and output make of a word, scored as another.
        left, right = (query, key) if circuit == "qk" else (value, output)
        scores.append((table @ left.T) @ (right @ (table if circuit == "qk" else unembedding).T))
    names = list(itertools.product(("qk", "ov"), ("self",), range(3), range(zoo.HEADS)))
    assert list(zip(*report.heads.index.values(), strict=True)) == names
    scores = torch.stack(scores).numpy()
    sums, counts = pairs.sums(scores)
    found = [report.heads.same_word, report.heads.same_topic, report.heads.different_topic]
    np.testing.assert_allclose(np.stack(found, -1), sums / counts, atol=1e-9)
    assert (report.heads.n_same_topic == counts[1]).all()
    spread = scores.std((1, 2))
    expected = report.heads.difference / spread
    np.testing.assert_allclose(report.to_dataframe()["standardised"], expected, rtol=1e-8)
    limits = over_words(pairs.ends(scores, seed=2), None, pairs.strata, statistic="difference").interval()
    np.testing.assert_allclose(report.heads.interval, limits, rtol=1e-7, atol=1e-9)


def test_what_cannot_be_measured_is_refused_or_left_out_with_its_reason(unchecked):
    headless, model = zoo.make("bert-headless"), zoo.make("bert")
    report = tp.measure_weights(headless, TOPICS)
    assert set(report.heads.index["circuit"]) == {"qk"}
    assert "no head that scores the vocabulary" in report.provenance["left_out"]["ov"]
    with pytest.raises(ValueError, match="no head that scores the vocabulary"):
        tp.measure_weights(headless, TOPICS, circuits=("qk", "ov"))
    # An encoder beside a decoder does not write where words are scored.
    index = tp.measure_weights(zoo.make("bart"), TOPICS).heads.index
    every = {(circuit, stack) for circuit in ("qk", "ov") for stack in ("encoder", "decoder", "cross")}
    assert set(zip(index["circuit"], index["stack"], strict=True)) == every - {("ov", "encoder")}
    with pytest.raises(ValueError, match="circuits must be some of"):
        tp.measure_weights(model, TOPICS, circuits=("vo",))
    model.set_output_embeddings(torch.nn.Linear(zoo.WIDTH, zoo.VOCABULARY, bias=False))
    with torch.no_grad():
        model.get_output_embeddings().weight[11] = torch.nan
    with pytest.raises(ValueError, match="unembedding of token 11 is not finite"):
        tp.measure_weights(model, TOPICS, circuits=("ov",))


def ov_of(value, world):
    toy = tp.build_toy(tp.ToyConfig("value", world=world, dtype="float64"), tensors={"W_V": value})
    return tp.measure_weights(toy, world.topics, circuits=("ov",))


def test_ov_of_the_one_hot_toy_is_its_value_matrix_with_what_theory_says_of_it():
    world, masking = tp.World(n_topics=4, words_per_topic=5, topics_per_document=2), tp.Masking()
    drawn = torch.randn(21, 21, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (found,), topic = ov_of(drawn, world).heads, np.arange(20) // 5
    words = drawn[1:, 1:].numpy()  # without [MASK], which has no topic
    assert found.same_word == pytest.approx(words.diagonal().mean())
    assert found.different_topic == pytest.approx(words[topic[:, None] != topic].mean())
    # Theorem 2: same topic − different topic is c₃/v with c₃ = 1/(1 − (1 − p_c) p_m).
    report = ov_of(torch.as_tensor(tp.theory.optimal_value(world, masking), dtype=torch.float64), world)
    c3 = 1 / (1 - (1 - masking.p_keep) * masking.p_mask)
    assert report.heads.difference[0] == pytest.approx(c3 / 5)
    assert report.heads.same_word[0] == pytest.approx(report.heads.same_topic[0])
    np.testing.assert_allclose(report.heads.interval[0], [c3 / 5, c3 / 5])
    # Equal scores have no spread to divide by.
    equal = ov_of(torch.full((21, 21), 1 / 3, dtype=torch.float64), world)
    assert equal.heads.ratio[0] == pytest.approx(1)
    assert np.isnan(equal.standardised).all()


def test_a_planted_head_is_found_first_and_lost_when_topics_are_shuffled():
    topics = Topics.blocks(n_topics=8, words_per_topic=12)
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(8, zoo.WIDTH, generator=generator, dtype=torch.float64)
    model = model_of("bert")
    with torch.no_grad():
        table = model.get_input_embeddings().weight
        table.copy_(torch.randn(table.shape, generator=generator, dtype=torch.float64) * 0.3)
        table[1:] += centres.repeat_interleave(12, 0)
        planted, head = model.bert.encoder.layer[1].attention.self, slice(2 * D_HEAD, 3 * D_HEAD)
        planted.key.weight[head] = planted.query.weight[head]  # head 2 of layer 1 scores likeness
    report = tp.measure_weights(model, topics)
    best = report.heads[report.standardised == report.standardised.max()]
    assert best.index == {"circuit": ("qk",), "stack": ("self",), "layer": (1,), "head": (2,)}
    assert best.interval[0, 0] > 0
    shuffled = tp.measure_weights(model, topics.shuffled(0))
    assert np.abs(shuffled.standardised).max() < 0.2 < report.standardised.max()
