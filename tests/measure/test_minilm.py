"""A real pretrained model on real text, and its untrained twin beside it."""

import pytest
from real_text import minilm_folder, topics_by_hand, wikipedia_articles

import topic_probe as tp


@pytest.mark.slow
def test_a_pretrained_model_attends_to_its_topics_and_its_random_twin_and_shuffled_topics_do_not():
    minilm = tp.open_model(minilm_folder())
    topics = topics_by_hand(minilm.tokenizer)
    # Every other passage of 1,500 letters with ten words of the topics: 28, so that few forward passes say much.
    passages = [
        text[start : start + 1500] for text in wikipedia_articles() for start in range(0, 30_000, 1500)
    ]
    encoded = tp.encode_texts([text for text in passages if text], minilm.tokenizer, max_length=256)
    documents = [document for document in encoded if (topics.labels(document.ids) >= 0).sum() >= 10][::2]
    report = tp.measure_attention(minilm, topics, documents)
    assert report.overall.ratio > 1.1
    low, high = report.overall.interval
    assert 1 < low < report.overall.ratio < high
    assert report.overall.p_value < 0.05
    twin = tp.measure_attention(tp.random_init(minilm), topics, documents)
    # The paper's random BERT has 1.000 within a thousandth; this corpus is small.
    assert twin.overall.ratio == pytest.approx(1, abs=0.01)
    assert twin.overall.interval[0] < 1.005
    assert twin.overall.interval[1] > 0.995
    shuffled = tp.measure_attention(minilm, topics.shuffled(seed=0), documents, n_permutations=0)
    assert shuffled.overall.ratio < low
