"""Matrices that reports keep for pictures, against those of Hugging Face's own weights."""

import numpy as np
import pytest
import zoo
from word_pairs import scores_of, topics_of

import topic_probe as tp
from topic_probe.measure import matrix as matrix_module

LISTS = {"fruit": [8, 5, 20], "tools": [10, 6, 20], "birds": [30, 31, 5], "one": [40]}
# Forms of a word in one topic (6 and 10), in several (5 and 31), in topics that share none (30 and 40).
TEXTS = {6: "axe", 10: " Axe", 5: "Hen", 31: "hen", 30: "(x", 40: "X"}
ORDER = [5, 8, 20, 6, 10, 31, 30, 40]  # by first topic, then by the lowest id of the word
TOPICS = topics_of(LISTS, zoo.VOCABULARY, TEXTS)


@pytest.fixture(scope="module")
def model():
    return zoo.make("bert").double()


def all_scores(model):
    """[word, word] by the names of every matrix, in the order of topics."""
    rows, outputs = (
        part.weight.detach()[ORDER] for part in (model.get_input_embeddings(), model.get_output_embeddings())
    )
    found = {("score", name): scores for name, scores in zip(("cosine", "dot"), scores_of(rows), strict=True)}
    for layer, head in np.ndindex(3, zoo.HEADS):
        part, attention = slice(8 * head, 8 * head + 8), model.bert.encoder.layer[layer].attention
        query, key, value = (
            rows @ getattr(attention.self, name).weight[part].T for name in ("query", "key", "value")
        )
        found["qk", layer, head] = (query @ key.T).detach()
        found["ov", layer, head] = (value @ attention.output.dense.weight[:, part].T @ outputs.T).detach()
    return found


def test_matrices_are_those_of_words_in_the_order_of_topics_and_are_left_out_of_many_words(
    model, monkeypatch
):
    embeddings = tp.measure_embeddings(model, TOPICS).matrices
    weights = tp.measure_weights(model, TOPICS).matrices
    assert (len(embeddings.values), len(weights.values)) == (2, 24)
    assert embeddings.topic.tolist() == [0, 0, 0, 1, 1, 2, 2, 3]
    assert embeddings.words == tuple(TEXTS.get(id_, f"w{id_}") for id_ in ORDER)
    assert embeddings.labels[0] == "0: fruit (Hen·w8·w20)"
    for (first, *rest), scores in all_scores(model).items():
        if first == "score":
            shown = embeddings.pick(score=rest[0])
        else:
            shown = weights.pick(circuit=first, layer=rest[0], head=rest[1])
        np.testing.assert_allclose(shown, scores, rtol=2e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"'score': 'product'.* fits 0 matrices"):
        embeddings.pick(score="product")
    table = embeddings.to_dataframe()
    assert table["score"].tolist() == ["cosine", "dot"]
    assert table["highest"][1] == embeddings.pick(score="dot").max()
    monkeypatch.setattr(matrix_module, "MAX_NUMBERS", 23 * len(ORDER) ** 2)
    assert tp.measure_weights(model, TOPICS).matrices is None
    topics = tp.Topics.from_token_ids({"a": range(48), "b": range(48, 97)}, vocabulary_size=zoo.VOCABULARY)
    monkeypatch.setattr(matrix_module, "MAX_WORDS", 96)
    for measure in (tp.measure_embeddings, tp.measure_weights):
        assert measure(model, topics).matrices is None
