"""Matrices that reports keep for pictures, against loops over pairs of words of Hugging Face's own weights."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from topic_probe.measure import matrix as matrix_module
from topic_probe.measure.embeddings import measure_embeddings
from topic_probe.measure.weights import measure_weights
from topic_probe.report import load_report
from topic_probe.topics import Topics

LISTS = {"fruit": [8, 5, 20], "tools": [10, 6, 20], "birds": [30, 31, 5], "one": [40]}
TEXTS = {id_: f"w{id_}" for ids in LISTS.values() for id_ in ids}
ORDER = [5, 8, 20, 6, 10, 30, 31, 40]  # by first topic, then by id
TOPIC_OF_ROW = [0, 0, 0, 1, 1, 2, 2, 3]


def topics(texts=True):
    found = Topics.from_token_ids(LISTS, vocabulary_size=50)
    if not texts:
        return found
    return Topics(
        names=found.names, vocabulary_size=50, words=found.words, assignments=found.assignments,
        texts=tuple(TEXTS[id_] for id_ in found.words.tolist()),
    )  # fmt: skip


def bert():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8,
        initializer_range=0.3,
    )  # fmt: skip
    return BertForMaskedLM(config).double().eval()


def embedding_scores(model):
    rows = model.get_input_embeddings().weight.detach()
    units = rows / rows.norm(dim=1, keepdim=True)
    return {"cosine": units @ units.T, "dot": rows @ rows.T}


def head_scores(model, circuit, layer, head):
    """[word, word] of one head, from the modules of Hugging Face."""
    rows, part = model.get_input_embeddings().weight.detach(), slice(8 * head, 8 * head + 8)
    attention = model.bert.encoder.layer[layer].attention
    if circuit == "qk":
        return (rows @ attention.self.query.weight.T)[:, part] @ (rows @ attention.self.key.weight.T)[
            :, part
        ].T
    value = (rows @ attention.self.value.weight.T)[:, part]
    return value @ attention.output.dense.weight[:, part].T @ model.get_output_embeddings().weight.T


# Forms of a word in one topic (6 and 10), in several (5 and 31), in topics that share none (30 and 40).
FORMS = {6: "axe", 10: " Axe", 5: "Hen", 31: "hen", 30: "(x", 40: "X"}


def with_forms():
    """The topics with entries that read as above."""
    texts = tuple(FORMS.get(int(id_), TEXTS[int(id_)]) for id_ in topics().words)
    return replace(topics(), texts=texts)


def word_of(entry, texts):
    return texts.get(entry, f"w{entry}").strip("( ").lower()


def means_between_topics(scores, texts=None):
    lists = list(LISTS.values())
    found = np.full((len(lists), len(lists)), np.nan)
    for s, ones in enumerate(lists):
        for t, others in enumerate(lists):
            pairs = [
                float(scores[i, j])
                for i in ones
                for j in others
                if word_of(i, texts or {}) != word_of(j, texts or {})
            ]
            found[s, t] = np.mean(pairs) if pairs else np.nan
    return found


def test_words_of_an_embedding_table_stand_in_the_order_of_their_topics():
    model = bert()
    found = measure_embeddings(model, topics()).matrices
    assert (found.level, found.topic.tolist()) == ("word", TOPIC_OF_ROW)
    assert found.words == tuple(f"w{id_}" for id_ in ORDER)
    assert found.labels[0] == "0: fruit (w5·w8·w20)"
    for score, scores in embedding_scores(model).items():
        np.testing.assert_allclose(found.pick(score=score), scores[ORDER][:, ORDER], rtol=1e-6)


def test_words_without_texts_are_their_ids():
    assert measure_embeddings(bert(), topics(texts=False)).matrices.words == tuple(ORDER)


def test_excluded_words_have_no_row():
    found = measure_embeddings(bert(), topics(), exclude=[20, 40]).matrices
    assert found.words == ("w5", "w8", "w6", "w10", "w30", "w31")


def test_forms_of_one_word_stand_together_in_a_topic_and_are_no_pair_of_a_topic():
    lists = {"a": [5, 6, 7, 8], "b": [10, 11, 12]}
    plain = Topics.from_token_ids(lists, vocabulary_size=50)
    texts = {5: "hen", 6: "axe", 7: " Hen", 8: "w8", 10: "x", 11: "Axe", 12: "X"}
    model = bert()
    found = measure_embeddings(model, replace(plain, texts=tuple(texts.values()))).matrices
    assert found.words == ("hen", " Hen", "axe", "w8", "Axe", "x", "X")
    order = [5, 7, 6, 8, 11, 10, 12]
    table = found.to_dataframe().set_index("score")
    for score, scores in embedding_scores(model).items():
        np.testing.assert_allclose(found.pick(score=score), scores[order][:, order], rtol=1e-6)
        for relation, inside in (("same_topic", True), ("different_topic", False)):
            pairs = [
                float(scores[i, j])
                for i in order
                for j in order
                if word_of(i, texts) != word_of(j, texts) and ((i < 10) == (j < 10)) == inside
            ]
            assert table.loc[score, relation] == pytest.approx(np.mean(pairs), rel=1e-5)


@pytest.mark.parametrize("measure", [measure_embeddings, measure_weights])
def test_means_between_topics_leave_out_pairs_of_forms_of_one_word(measure, monkeypatch):
    monkeypatch.setattr(matrix_module, "MAX_WORDS", 7)
    model = bert()
    found = measure(model, with_forms(), n_resamples=0).matrices
    assert found.level == "topic"
    for number in range(len(found)):
        names = {name: cells[number] for name, cells in found.index.items()}
        names.pop("stack", None)
        scores = (
            embedding_scores(model)[names["score"]]
            if "score" in names
            else head_scores(model, **names).detach()
        )
        wanted = means_between_topics(scores, FORMS)
        np.testing.assert_allclose(found.pick(**names), wanted, rtol=2e-5, atol=1e-6)


def test_many_words_are_kept_as_means_between_topics_without_words_with_themselves(monkeypatch):
    monkeypatch.setattr(matrix_module, "MAX_WORDS", 7)
    model = bert()
    found = measure_embeddings(model, topics()).matrices
    assert (found.level, found.topic.tolist()) == ("topic", [0, 1, 2, 3])
    assert found.words[2] == "2: birds (w5·w30·w31)"
    for score, scores in embedding_scores(model).items():
        np.testing.assert_allclose(found.pick(score=score), means_between_topics(scores), rtol=1e-6)
    assert np.isnan(found.pick(score="dot")[3, 3])


@pytest.mark.parametrize("level", ["word", "topic"])
def test_every_head_has_its_matrix(level, monkeypatch):
    monkeypatch.setattr(matrix_module, "MAX_WORDS", 8 if level == "word" else 7)
    model = bert()
    found = measure_weights(model, topics(), n_resamples=0).matrices
    assert found.level == level
    assert len(found) == 8
    for circuit in ("qk", "ov"):
        for layer, head in np.ndindex(2, 2):
            scores = head_scores(model, circuit, layer, head).detach()
            wanted = scores[ORDER][:, ORDER] if level == "word" else means_between_topics(scores)
            shown = found.pick(circuit=circuit, layer=layer, head=head)
            np.testing.assert_allclose(shown, wanted, rtol=2e-5, atol=1e-6)


def test_heads_that_do_not_fit_are_those_that_stand_out_least(monkeypatch):
    monkeypatch.setattr(matrix_module, "MAX_NUMBERS", 3 * 4 * 4)
    report = measure_weights(bert(), topics(), n_resamples=0)
    assert (len(report.matrices), report.matrices.level) == (3, "topic")
    names = list(zip(*report.heads.index.values(), strict=True))
    kept = set(zip(*report.matrices.index.values(), strict=True))
    assert kept == {names[cell] for cell in np.argsort(-np.abs(report.standardised))[:3]}


def test_thousands_of_topics_have_no_matrix(monkeypatch):
    monkeypatch.setattr(matrix_module, "MAX_NUMBERS", 15)
    monkeypatch.setattr(matrix_module, "MAX_WORDS", 7)
    assert measure_weights(bert(), topics(), n_resamples=0).matrices is None
    assert measure_embeddings(bert(), topics()).matrices is None


def test_a_matrix_is_picked_by_names_that_fit_it_alone():
    found = measure_weights(bert(), topics(), n_resamples=0).matrices
    with pytest.raises(
        ValueError, match="circuit='qk', layer=1 fits 2 matrices, choose one of circuit: 'qk', 'ov'; "
    ):
        found.pick(circuit="qk", layer=1)
    with pytest.raises(ValueError, match="head=7 fits 0 matrices"):
        found.pick(head=7)
    with pytest.raises(ValueError, match="score='dot' fits 0 matrices"):
        found.pick(score="dot")


def test_the_table_has_means_within_and_between_topics():
    report = measure_embeddings(
        bert(), Topics.from_token_ids({"a": [5, 6, 7], "b": [8, 9]}, vocabulary_size=50)
    )
    table = report.matrices.to_dataframe().set_index("score")
    for score in ("cosine", "dot"):
        contrast = getattr(report, score)
        assert table.loc[score, "same_topic"] == pytest.approx(float(contrast.same_topic), rel=1e-5)
        assert table.loc[score, "different_topic"] == pytest.approx(float(contrast.different_topic), rel=1e-5)
    assert "5 × 5 words in each" in repr(report.matrices)


@pytest.mark.parametrize("measure", [measure_embeddings, measure_weights])
def test_matrices_come_back_from_disk(measure, tmp_path):
    report = measure(bert(), topics())
    assert load_report(report.save(tmp_path / "new")) == report
