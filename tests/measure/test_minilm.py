"""A real pretrained model on real text, and its untrained twin beside it."""

import numpy as np
import pytest
import torch
from real_text import minilm_folder, topics_by_hand, wikipedia_articles
from transformers import AutoModel

import topic_probe as tp

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def minilm():
    return tp.open_model(minilm_folder())


@pytest.fixture(scope="module")
def topics(minilm):
    return topics_by_hand(minilm.tokenizer)


@pytest.fixture(scope="module")
def documents(minilm, topics):
    """Every other passage of 1,500 letters with ten words of the topics: 28, so that few forward passes say much."""
    passages = [
        text[start : start + 1500] for text in wikipedia_articles() for start in range(0, 30_000, 1500)
    ]
    encoded = tp.encode_texts([text for text in passages if text], minilm.tokenizer, max_length=256)
    return [document for document in encoded if (topics.labels(document.ids) >= 0).sum() >= 10][::2]


@pytest.fixture(scope="module")
def report(minilm, topics, documents):
    return tp.measure_attention(minilm, topics, documents)


def test_a_pretrained_model_attends_to_its_topics_and_its_random_twin_does_not(
    minilm, topics, documents, report
):
    assert report.overall.ratio > 1.1
    low, high = report.overall.interval
    assert 1 < low < report.overall.ratio < high
    assert report.overall.p_value < 0.05
    twin = tp.measure_attention(tp.random_init(minilm), topics, documents)
    # The paper's random BERT has 1.000 within a thousandth; this corpus is small.
    assert twin.overall.ratio == pytest.approx(1, abs=0.01)
    assert twin.overall.interval[0] < 1.005
    assert twin.overall.interval[1] > 0.995


def test_its_numbers_are_those_of_hugging_face_outputs(topics, documents, report):
    """Straight from ``output_attentions``, one document at a time, with whole tables of relations."""
    model = AutoModel.from_pretrained(minilm_folder(), attn_implementation="eager").eval()
    topic = np.full(topics.vocabulary_size, -1)
    topic[topics.words] = topics.membership.int().argmax(1)  # no word is in two of these topics
    sums, counts = np.zeros((72, 3)), np.zeros(3)
    for document in documents:
        with torch.no_grad():
            layers = model(input_ids=document.ids[None], output_attentions=True).attentions
        pattern = (
            torch.cat(layers)[:, 0] if layers[0].ndim == 5 else torch.cat([layer[0] for layer in layers])
        )
        words = document.word_index.numpy()
        whole = np.array([np.sum(words == word) == 1 and word >= 0 for word in words])
        label = np.where(whole, topic[document.ids], -1)
        both = (label[:, None] >= 0) & (label >= 0)
        same_word = document.ids.numpy()[:, None] == document.ids.numpy()
        same_topic = label[:, None] == label
        for relation, chosen in enumerate((same_word, ~same_word & same_topic, ~same_topic)):
            sums[:, relation] += pattern.numpy()[:, both & chosen].sum(1) * len(words)
            counts[relation] += (both & chosen).sum()
    heads = report.heads
    np.testing.assert_array_equal(heads.n_same_topic, np.full(72, counts[1]))
    np.testing.assert_allclose(heads.same_topic, sums[:, 1] / counts[1], rtol=1e-4)
    np.testing.assert_allclose(heads.different_topic, sums[:, 2] / counts[2], rtol=1e-4)
    np.testing.assert_allclose(heads.ratio, sums[:, 1] / counts[1] / (sums[:, 2] / counts[2]), rtol=1e-4)


def test_shuffled_topics_lose_the_effect(minilm, topics, documents, report):
    shuffled = tp.measure_attention(minilm, topics.shuffled(seed=0), documents, n_permutations=0)
    assert shuffled.overall.ratio < report.overall.interval[0]
