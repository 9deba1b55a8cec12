"""Matrices that reports keep for pictures, against those of Hugging Face's own weights."""

import numpy as np
import pytest
import zoo
from word_pairs import Pairs, scores_of, topics_of

import topic_probe as tp
from topic_probe.measure import matrix as matrix_module

LISTS = {"fruit": [8, 5, 20], "tools": [10, 6, 20], "birds": [30, 31, 5], "one": [40]}
# Forms of a word in one topic (6 and 10), in several (5 and 31), in topics that share none (30 and 40).
TEXTS = {6: "axe", 10: " Axe", 5: "Hen", 31: "hen", 30: "(x", 40: "X"}
ORDER = [5, 8, 20, 6, 10, 31, 30, 40]  # by first topic, then by the lowest id of the word
PAIRS = Pairs(ORDER, LISTS, TEXTS)
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


def means_between_topics(scores):
    sides = [member[:, None] * np.ones(len(ORDER)) for member in PAIRS.member.T]
    pairs = [[(one * other.T > 0) & (PAIRS.relation > 0) for other in sides] for one in sides]
    return np.array(
        [[np.asarray(scores)[some].mean() if some.any() else np.nan for some in row] for row in pairs]
    )


@pytest.mark.parametrize("level", ["word", "topic"])
def test_matrices_are_those_of_words_in_the_order_of_topics_or_means_between_topics(
    level, model, monkeypatch
):
    monkeypatch.setattr(matrix_module, "MAX_WORDS", 8 if level == "word" else 7)
    embeddings = tp.measure_embeddings(model, TOPICS, n_resamples=0).matrices
    weights = tp.measure_weights(model, TOPICS, n_resamples=0).matrices
    assert (embeddings.level, len(embeddings), weights.level, len(weights)) == (level, 2, level, 24)
    assert embeddings.topic.tolist() == ([0, 0, 0, 1, 1, 2, 2, 3] if level == "word" else [0, 1, 2, 3])
    words = tuple(TEXTS.get(id_, f"w{id_}") for id_ in ORDER)
    assert embeddings.words == (words if level == "word" else tuple(embeddings.labels.values()))
    assert embeddings.labels[0] == "0: fruit (Hen·w8·w20)"
    for (first, *rest), scores in all_scores(model).items():
        if first == "score":
            shown = embeddings.pick(score=rest[0])
        else:
            shown = weights.pick(circuit=first, layer=rest[0], head=rest[1])
        wanted = scores if level == "word" else means_between_topics(scores)
        np.testing.assert_allclose(shown, wanted, rtol=2e-5, atol=1e-5)


def test_the_table_has_means_within_and_between_topics_of_different_words(model):
    lists = {"a": [5, 6, 7, 8], "b": [10, 11, 12]}
    texts = {5: "hen", 6: "axe", 7: " Hen", 10: "x", 11: "Axe", 12: "X"}
    report = tp.measure_embeddings(model, topics_of(lists, zoo.VOCABULARY, texts), n_resamples=0)
    assert report.matrices.words == ("hen", " Hen", "axe", "w8", "Axe", "x", "X")  # forms beside each other
    with pytest.raises(ValueError, match="score='product' fits 0 matrices"):
        report.matrices.pick(score="product")
    table = report.matrices.to_dataframe().set_index("score")
    for score in ("cosine", "dot"):
        for relation in ("same_topic", "different_topic"):
            expected = float(getattr(getattr(report, score), relation))
            assert table.loc[score, relation] == pytest.approx(expected, rel=1e-5)
