"""Word embeddings and states of layers, measured through models, against pairs of Hugging Face's own vectors."""

import numpy as np
import pytest
import torch
import zoo
from word_pairs import Pairs, scores_of, topics_of

import topic_probe as tp
from topic_probe.estimate import over_words
from topic_probe.text.documents import Document

LISTS = {"fruit": [5, 6, 7, 8, 20], "tools": [10, 11, 12, 13, 20], "birds": [30, 31, 32, 5], "one": [40]}
# Forms of a word in one topic, in topics that share none, and in more and fewer of them.
TEXTS = {6: "Apple", 7: " apple", 10: "axe", 40: " axe", 5: "hen", 31: "Hen"}
TOPICS = topics_of(LISTS, zoo.VOCABULARY)
WORDS = [5, 6, 7, 8, 10, 11, 12, 13, 20, 30, 31, 32, 50, 51, 3]


def model_of(name):
    return zoo.make(name).double()


def some_documents(n=9):
    generator = np.random.default_rng(0)
    return [generator.choice(WORDS, size=generator.integers(4, 24)).tolist() for _ in range(n)]


def means(contrast):
    return np.stack([contrast.same_word, contrast.same_topic, contrast.different_topic], -1)


def counts_of(contrast):
    return np.stack([contrast.n_same_word, contrast.n_same_topic, contrast.n_different_topic], -1)


@pytest.mark.parametrize(
    ("name", "texts", "options"),
    [
        ("bert", TEXTS, {"exclude": [8], "confidence": 0.5}), ("albert", None, {"statistic": "difference"}),
        ("bart", TEXTS, {"center": True, "seed": 3}),
    ],
)  # fmt: skip
def test_word_embeddings_are_compared_as_in_the_matrix_of_all_pairs(name, texts, options):
    report = tp.measure_embeddings(model_of(name), topics_of(LISTS, zoo.VOCABULARY, texts), **options)
    table = model_of(name).get_input_embeddings().weight.detach()[: zoo.VOCABULARY]
    # In the order of their topics, as halves of words are drawn.
    ids = TOPICS.words[TOPICS.group_of_word.argsort(stable=True)].tolist()
    ids = [id_ for id_ in ids if id_ not in options.get("exclude", ())]
    pairs = Pairs(ids, LISTS, texts)
    scores = scores_of((table - table.mean(0) if "center" in options else table)[ids])
    sums, counts = pairs.sums(scores)
    ends, squares = pairs.ends(scores, seed=options.get("seed", 0)), 2 * pairs.squares(scores)
    limits = [
        over_words(ends, squares, pairs.strata, statistic=kind).interval(options.get("confidence", 0.95))
        for kind in (options.get("statistic", "ratio"), "effect_size")
    ]
    for number, found in enumerate((report.cosine, report.dot)):
        np.testing.assert_allclose(means(found), sums[number] / counts, atol=1e-9)
        np.testing.assert_array_equal(counts_of(found), counts)
        assert found.effect_size == pytest.approx(pairs.effect_sizes(scores)[number], rel=1e-8)
        np.testing.assert_allclose(found.interval, limits[0][number], rtol=1e-6)
        np.testing.assert_allclose(found.effect_size_interval, limits[1][number], rtol=1e-6)
        by_topic = report.topics[("cosine", "dot")[number]]
        for topic in range(3):
            sums_of_topic, counts_of_topic = pairs.sums(scores, topic)
            np.testing.assert_array_equal(counts_of(by_topic[topic]), counts_of_topic)
            np.testing.assert_allclose(means(by_topic[topic]), sums_of_topic[number] / counts_of_topic)
            expected = pairs.effect_sizes(scores, topic)[number]
            assert by_topic.effect_size[topic] == pytest.approx(expected, rel=1e-8)
        assert np.isnan(by_topic.effect_size[3])
        assert by_topic.index["n_words"] == tuple((pairs.of.T @ pairs.member > 0).sum(0))


# Where a causal model's first position is a sink, it holds no word.
@pytest.mark.parametrize(
    ("name", "first", "include_self"),
    [("bert", "sink", False), ("gpt2", "sink", True), ("gpt2", "word", False), ("bart", "sink", True)],
)
def test_states_of_every_layer_are_compared_as_in_matrices_of_hugging_faces_own(name, first, include_self):
    documents = some_documents()
    report = tp.measure_embeddings(
        model_of(name), TOPICS, documents, batch_size=4, special_ids=(), include_self=include_self,
        first_position=first,
    )  # fmt: skip
    begin, model, sums, counts, every = int((name, first) == ("gpt2", "sink")), model_of(name), 0, 0, 0
    for document in documents:
        with torch.no_grad():
            answer = model(input_ids=torch.tensor([document]), output_hidden_states=True)
        states = getattr(answer, "encoder_hidden_states", None) or answer.hidden_states
        kept = [place for place, id_ in enumerate(document) if place >= begin and id_ in TOPICS.words]
        pairs = Pairs([document[place] for place in kept], LISTS)
        if not include_self:
            np.fill_diagonal(pairs.relation, -1)
        scores = np.concatenate([scores_of(state[0, kept]) for state in states])
        of_document, n = pairs.sums(scores)
        sums, counts, every = sums + of_document, counts + n, every + pairs.sums(scores**2)[0]
    for number, score in enumerate(("cosine", "dot")):
        found, own = report.layers[score], sums[number::2]
        assert found.index == {"layer": tuple(range(len(own)))}
        np.testing.assert_allclose(means(found), own / counts, atol=1e-9)
        np.testing.assert_array_equal(counts_of(found), np.tile(counts, (len(own), 1)))
        n = counts[1:].sum()
        deviation = np.sqrt(every[number::2, 1:].sum(1) / n - (own[:, 1:].sum(1) / n) ** 2)
        np.testing.assert_allclose(found.effect_size, (means(found)[:, 1] - means(found)[:, 2]) / deviation)


def test_states_without_a_direction_are_left_out_and_counted():
    model = model_of("gpt2-headless")
    with torch.no_grad():
        model.wpe.weight.zero_()
        model.wte.weight[6] = 0
    options = {"first_position": "word", "special_ids": ()}
    report = tp.measure_embeddings(model, TOPICS, [[5, 6, 7, 10, 6], [11, 6, 30, 7]], **options)
    expected = tp.measure_embeddings(model, TOPICS, [[5, 7, 10], [11, 30, 7]], **options)
    found, wanted = (one.layers["cosine"] for one in (report, expected))
    np.testing.assert_allclose(means(found)[0], means(wanted)[0])
    np.testing.assert_array_equal(counts_of(found)[0], counts_of(wanted)[0])
    assert report.provenance["documents"]["left_out"]["states that are zero or not finite"] == 3


def test_batches_order_and_padding_change_nothing_and_intervals_resample_sources():
    model, documents = model_of("bert"), some_documents(30)
    ids, mask = torch.zeros(30, 40, dtype=torch.int64), torch.zeros(30, 40, dtype=torch.int64)
    for row, document in enumerate(documents[::-1]):  # padded on the left
        ids[row, 40 - len(document) :], mask[row, 40 - len(document) :] = torch.tensor(document), 1
    of_three = zoo.of_sources(documents, [place // 10 for place in range(30)])
    whole, padded, few = (
        tp.measure_embeddings(model, TOPICS, given, special_ids=(), **options)
        for given, options in (
            (documents, {}),
            ({"input_ids": ids, "attention_mask": mask}, {"batch_size": 7}),
            (of_three, {"seed": 1}),
        )
    )
    for score in ("cosine", "dot"):
        np.testing.assert_allclose(means(padded.layers[score]), means(whole.layers[score]), rtol=1e-9)
        np.testing.assert_allclose(padded.layers[score].interval, whole.layers[score].interval, rtol=1e-9)
        np.testing.assert_allclose(means(few.layers[score]), means(whole.layers[score]), rtol=1e-9)
    assert np.isfinite(whole.layers["cosine"].interval).all()
    assert (few.dot.interval != whole.dot.interval).all()
    assert np.isnan(few.layers["cosine"].interval).all()
    assert "no interval: 3 sources, at least 8 are needed" in few.layers["cosine"].reason


def test_special_and_excluded_ids_and_pieces_of_words_are_left_out_and_counted():
    model, document = model_of("bert"), [5, 6, 10, 11, 12, 30, 5, 8]
    # Positions 2 and 3 are one word, 6 is special by its flag, 12 by its id; id 8 is excluded.
    word_index = torch.tensor([0, 1, 2, 2, 3, 4, 5, 6])
    special = torch.tensor([False] * 6 + [True, False])
    given = Document(torch.tensor(document), word_index, special)
    report = tp.measure_embeddings(model, TOPICS, [given], special_ids={12}, exclude=[8])
    assert counts_of(report.layers["dot"])[1].tolist() == [3, 4, 2]  # of 5, 6 and 30
    assert report.provenance["documents"]["left_out"] == {"pieces of split words": 2}
    assert report.provenance["left_out"] == {"words in exclude": 1}


@pytest.mark.parametrize(
    ("topics", "options", "message"),
    [
        (topics_of(LISTS, 60), {}, "vocabulary of 60 ids, the model's has 97"),
        (TOPICS, {"documents": []}, "no document is left to measure"),
        (TOPICS, {"exclude": ["3"]}, "exclude"),
        (TOPICS, {"folder": "parts"}, "folder= keeps states in documents"),
    ],
)
def test_what_cannot_be_measured_is_refused(topics, options, message, unchecked):
    with pytest.raises((TypeError, ValueError), match=message):
        tp.measure_embeddings(zoo.make("bert"), topics, **options)


def test_reports_are_printed_saved_and_turned_into_tables(tmp_path):
    model, options = model_of("bert"), {"center": True, "remove_components": 2, "exclude": [6]}
    report = tp.measure_embeddings(model, TOPICS, some_documents(), special_ids=(), **options)
    assert tp.load_report(report.save(tmp_path / "report")) == report
    assert "taken out of the embeddings: the mean of all rows and 2 principal components" in str(report)
    assert report.to_dataframe()["score"].tolist() == ["cosine", "dot"]
    assert report.to_dataframe("topic")["n_words"].tolist() == [4, 5, 4, 1] * 2
    by_layer = report.to_dataframe("layer")
    assert by_layer["layer"].tolist() == [*range(4)] * 2
    np.testing.assert_allclose(by_layer["ratio_low"][:4], report.layers["cosine"].interval[:, 0])
    # Effect sizes come first; a ratio whose denominator may be 0 is none.
    header, cosine = str(report).splitlines()[1:3]
    assert header.split()[:5] == ["score", "effect_size", "[effect_size]", "ratio", "[ratio]"]
    assert f"{report.cosine.effect_size:.4g}" in cosine
    low, high = report.cosine.interval
    dashes = not np.isfinite([low, high]).all()
    assert (f"– (difference {report.cosine.difference:.4g})" in cosine) == dashes
