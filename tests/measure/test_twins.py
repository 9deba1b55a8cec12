"""Twins measured in a call are the twins measured one by one."""

import numpy as np
import pytest
import zoo

import topic_probe as tp
from topic_probe.topics import Topics

TOPICS = Topics.from_token_ids(
    {"one": list(range(5, 20)), "two": list(range(20, 40))}, vocabulary_size=zoo.VOCABULARY
)
DOCUMENTS = zoo.documents((12, 9, 14, 20))


@pytest.fixture(scope="module")
def model():
    return tp.open_model(zoo.make("bert"))


def test_twins_of_attention_are_those_of_random_init_on_the_same_documents(model, tmp_path):
    options = {"special_ids": (), "level": "token", "include_self": False, "max_length": 10, "n_resamples": 0}
    report = tp.measure_attention(
        model, TOPICS, DOCUMENTS, twins=2, seed=4, n_permutations=19, checkpoint=tmp_path / "sums", **options
    )
    alone = tp.measure_attention(model, TOPICS, DOCUMENTS, seed=4, n_permutations=19, **options)
    assert (report.overall, report.heads) == (alone.overall, alone.heads)
    twins = [
        tp.measure_attention(tp.random_init(model, seed=seed), TOPICS, DOCUMENTS, n_permutations=0, **options)
        for seed in (4, 5)
    ]
    assert report.twins["overall"].index == {"seed": (4, 5)}
    np.testing.assert_array_equal(report.twins["overall"].ratio, [twin.overall.ratio for twin in twins])
    heads = report.twins["heads"]
    n = len(report.heads)
    assert heads.index["seed"] == (4,) * n + (5,) * n
    assert heads.index["head"][n:] == report.heads.index["head"]
    np.testing.assert_array_equal(heads[n:].same_topic, twins[1].heads.same_topic)
    values = report.twins["overall"].ratio
    assert f"2 untrained twins: ratio {values.mean():.4g} ± {values.std(ddof=1):.2g}" in str(report)
    again = tp.load_report(report.save(tmp_path / "report"))
    assert again == report
    resumed = tp.measure_attention(
        model, TOPICS, DOCUMENTS, twins=2, seed=4, n_permutations=19, checkpoint=tmp_path / "sums", **options
    )
    assert resumed.twins == report.twins


def test_twins_of_embeddings_have_the_table_and_with_documents_the_layers(model):
    report = tp.measure_embeddings(
        model, TOPICS, DOCUMENTS, twins=2, center=True, special_ids=(), n_resamples=0
    )
    twin = tp.measure_embeddings(
        tp.random_init(model, seed=1), TOPICS, DOCUMENTS, center=True, special_ids=(), n_resamples=0
    )
    assert report.twins["cosine"].difference[1] == twin.cosine.difference
    layers, n = report.twins["layers dot"], len(twin.layers["dot"])
    assert layers.index["layer"] == (*range(n), *range(n))
    np.testing.assert_array_equal(layers.same_word[n:], twin.layers["dot"].same_word)
    effects = report.twins["cosine"].effect_size
    assert f"effect size {effects.mean():.4g} ± {effects.std(ddof=1):.2g}" in str(report)
    # Untrained words point anywhere, and a ratio to a mean below 0 says nothing.
    negative = bool((report.twins["cosine"].different_topic <= 0).any())
    assert ("untrained twins: effect size" in str(report)) is negative
    table_only = tp.measure_embeddings(model, TOPICS, twins=1, n_resamples=0)
    assert set(table_only.twins) == {"cosine", "dot"}
    assert "1 untrained twin: " in str(table_only)


def test_what_twins_cannot_read_again_or_be_is_refused(model):
    documents = [[5, 6, 20, 21]]
    with pytest.raises(ValueError, match="these can be read only once"):
        tp.measure_attention(model, TOPICS, iter(documents), twins=1)
    with pytest.raises(ValueError, match="at least 0, got -1"):
        tp.measure_embeddings(model, TOPICS, twins=-1)
