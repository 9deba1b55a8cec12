"""Word embeddings and states of layers, measured through models, against double loops over Hugging Face's own."""

import itertools

import numpy as np
import pytest
import torch
import zoo
from transformers import (
    AlbertConfig,
    AlbertModel,
    BartConfig,
    BartModel,
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
)

from topic_probe.measure.embeddings import measure_embeddings, state_scores
from topic_probe.measure.scores import by_relation
from topic_probe.report import load_report
from topic_probe.text.documents import Document
from topic_probe.topics import Topics
from topic_probe.toy.masking import Masking
from topic_probe.toy.model import ToyConfig, build_toy
from topic_probe.toy.world import World

VOCABULARY = 50
LISTS = {"fruit": [5, 6, 7, 8, 20], "tools": [10, 11, 12, 13, 20], "birds": [30, 31, 32, 5]}
TOPICS = Topics.from_token_ids(LISTS, vocabulary_size=VOCABULARY)
SIZES = {"vocab_size": VOCABULARY, "max_position_embeddings": 64}
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}


def bert():
    torch.manual_seed(0)
    return BertModel(BertConfig(initializer_range=0.3, **SIZES, **SMALL)).double().eval()


def albert():
    torch.manual_seed(1)
    return (
        AlbertModel(AlbertConfig(initializer_range=0.3, embedding_size=6, **SIZES, **SMALL)).double().eval()
    )


def gpt2():
    torch.manual_seed(2)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2Model(GPT2Config(vocab_size=VOCABULARY, initializer_range=0.3, **sizes)).double().eval()


def bart():
    torch.manual_seed(3)
    config = BartConfig(
        **SIZES, d_model=16, encoder_layers=2, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=8, decoder_ffn_dim=8, decoder_start_token_id=2, bos_token_id=0, eos_token_id=2, pad_token_id=1,
        init_std=0.3,
    )  # fmt: skip
    return BartModel(config).double().eval()


def some_documents(n=9, seed=0, longest=24):
    words = [5, 6, 7, 8, 10, 11, 12, 13, 20, 30, 31, 32, 40, 41, 3]
    generator = np.random.default_rng(seed)
    return [generator.choice(words, size=generator.integers(4, longest)).tolist() for _ in range(n)]


def relation_of(i, j):
    one, other = ({name for name, ids in LISTS.items() if id_ in ids} for id_ in (i, j))
    if not one or not other:
        return None
    return 0 if i == j else 1 if one & other else 2


def double_loop(vectors, ids, *, include_self=True):
    """Sums [score, relation] and counts [relation] over all pairs of positions, from the definitions."""
    sums, counts = np.zeros((2, 3)), np.zeros(3)
    for (a, i), (b, j) in itertools.product(enumerate(ids), repeat=2):
        relation = relation_of(i, j)
        if relation is None or (a == b and not include_self):
            continue
        dot = float(vectors[a] @ vectors[b])
        sums[:, relation] += dot / float(vectors[a].norm() * vectors[b].norm()), dot
        counts[relation] += 1
    return sums, counts


def means(contrast):
    return np.stack([contrast.same_word, contrast.same_topic, contrast.different_topic], -1)


def counts_of(contrast):
    return np.stack([contrast.n_same_word, contrast.n_same_topic, contrast.n_different_topic], -1)


@pytest.mark.parametrize("build", [bert, albert, gpt2, bart])
def test_word_embeddings_equal_a_double_loop_over_hugging_faces_table(build):
    model = build()
    report = measure_embeddings(model, TOPICS)
    sums, counts = double_loop(model.get_input_embeddings().weight.detach(), range(VOCABULARY))
    np.testing.assert_allclose(means(report.cosine), sums[0] / counts, atol=1e-9)
    np.testing.assert_allclose(means(report.dot), sums[1] / counts, atol=1e-9)
    assert counts_of(report.cosine).tolist() == counts.tolist()
    assert report.cosine.same_word == pytest.approx(1)
    assert report.layers is None


def own_states(model, document):
    with torch.no_grad():
        answer = model(input_ids=torch.tensor([document]), output_hidden_states=True)
    states = getattr(answer, "encoder_hidden_states", None)
    return answer.hidden_states if states is None else states


@pytest.mark.parametrize(
    ("build", "first"), [(bert, "sink"), (albert, "sink"), (gpt2, "sink"), (gpt2, "word"), (bart, "sink")]
)
@pytest.mark.parametrize("include_self", [True, False])
def test_states_of_every_layer_equal_a_double_loop_over_hugging_faces_own(build, first, include_self):
    model, documents = build(), some_documents()
    report = measure_embeddings(
        build(), TOPICS, documents, batch_size=4, special_ids=(), include_self=include_self, first_position=first,
        n_resamples=0,
    )  # fmt: skip
    begin = 1 if build is gpt2 and first == "sink" else 0
    parts = [
        [
            double_loop(state[0][begin:], document[begin:], include_self=include_self)
            for state in own_states(model, document)
        ]
        for document in documents
    ]
    sums = np.array([[layer[0] for layer in document] for document in parts]).sum(0)
    counts = np.array([document[0][1] for document in parts]).sum(0)
    assert report.layers["cosine"].index == {"layer": (0, 1, 2)}
    for number, score in enumerate(("cosine", "dot")):
        np.testing.assert_allclose(means(report.layers[score]), sums[:, number] / counts, atol=1e-9)
        np.testing.assert_array_equal(counts_of(report.layers[score]), np.tile(counts, (3, 1)))


def test_intervals_of_states_resample_sources_too():
    model, documents = bert(), some_documents(30)
    whole = measure_embeddings(model, TOPICS, documents)
    few = zoo.of_sources(documents, [place // 10 for place in range(30)])
    report = measure_embeddings(model, TOPICS, few)
    assert np.isfinite(whole.layers["cosine"].interval).all()
    assert np.isnan(report.layers["cosine"].interval).all()
    assert "no interval: 3 sources, at least 8 are needed" in report.layers["cosine"].reason
    assert report.provenance["documents"]["sources"] == 3
    assert "intervals resample 3 sources" in repr(report)
    np.testing.assert_allclose(report.layers["dot"].same_topic, whole.layers["dot"].same_topic, rtol=1e-12)


def test_batches_order_and_padding_change_nothing():
    model, documents = bert(), some_documents(30)
    ids, mask = torch.zeros(30, 40, dtype=torch.int64), torch.zeros(30, 40, dtype=torch.int64)
    for row, document in enumerate(documents):  # padded on the left
        ids[row, 40 - len(document) :] = torch.tensor(document)
        mask[row, 40 - len(document) :] = 1
    whole = measure_embeddings(model, TOPICS, documents, special_ids=()).layers
    for others in (
        measure_embeddings(model, TOPICS, documents, special_ids=(), batch_size=1).layers,
        measure_embeddings(model, TOPICS, documents[::-1], special_ids=(), batch_size=7).layers,
        measure_embeddings(model, TOPICS, (ids, mask), special_ids=()).layers,
    ):
        for score in ("cosine", "dot"):
            np.testing.assert_allclose(means(others[score]), means(whole[score]), rtol=1e-9)
            np.testing.assert_allclose(others[score].interval, whole[score].interval, rtol=1e-9)
    assert np.isfinite(whole["cosine"].interval).all()


def test_special_and_excluded_ids_and_pieces_of_split_words_carry_no_topic():
    model, document = bert(), [5, 6, 10, 11, 12, 30, 5, 8]
    # Positions 2 and 3 are one word, 6 is special by its flag, 12 by its id; id 8 is excluded.
    word_index = torch.tensor([0, 1, 2, 2, 3, 4, 5, 6])
    special = torch.tensor([False] * 6 + [True, False])
    report = measure_embeddings(
        model, TOPICS, [Document(torch.tensor(document), word_index, special)], special_ids={12}, exclude=[8]
    )
    kept = [0, 1, 5]
    sums, counts = double_loop(own_states(model, document)[1][0][kept], [document[place] for place in kept])
    np.testing.assert_allclose(means(report.layers["dot"])[1], sums[1] / counts, atol=1e-9)
    assert counts_of(report.layers["dot"])[1].tolist() == counts.tolist()
    assert report.provenance["documents"]["left_out"] == {"pieces of split words": 2}
    assert report.provenance["left_out"] == {"words in exclude": 1}
    assert report.provenance["options"]["exclude"] == [8]


def test_documents_without_a_topic_are_counted_and_documents_are_cut_at_what_the_model_takes():
    documents = [[40, 41], [5, 6, 10] * 30]
    report = measure_embeddings(bert(), TOPICS, documents, special_ids=())
    read = report.provenance["documents"]
    assert read["documents"] == 2
    assert read["left_out"]["documents without a word of any topic"] == 1
    assert read["left_out"]["documents cut at 64 tokens"] == 1
    assert report.layers["cosine"].n_same_word[0] == 22**2 + 2 * 21**2
    shorter = measure_embeddings(bert(), TOPICS, documents, special_ids=(), max_length=3)
    assert shorter.layers["cosine"].n_same_word[0] == 3


def test_no_documents_at_all_are_an_error():
    with pytest.raises(ValueError, match="no document is left to measure"):
        measure_embeddings(bert(), TOPICS, [])


def test_states_that_are_zero_or_not_finite_are_left_out_and_counted():
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(2, 4, 5, generator=generator, dtype=torch.float64)
    ids = torch.tensor([[5, 6, 10, 5], [11, 12, 5, -1]])
    codes = torch.tensor([[[(r := relation_of(int(i), int(j))) is not None and r + 1 for j in row] for i in row]
                          for row in ids], dtype=torch.int8)  # fmt: skip
    vectors[0, 1] = 0
    vectors[1, 0, 2] = torch.nan
    vectors[1, 3] = torch.inf  # has no topic, so nothing is lost
    lost = 0
    values, usable = state_scores(vectors)
    assert bool(values.isfinite().all())
    for document, kept in enumerate(([0, 2, 3], [1, 2])):
        pairs = codes[document] * usable[document] * usable[document][:, None]
        expected = double_loop(vectors[document, kept], ids[document, kept].tolist())
        sums = by_relation(values[document][None], pairs[None])
        np.testing.assert_allclose(sums[0], expected[0], atol=1e-12)
        assert pairs.flatten().long().bincount(minlength=4)[1:].tolist() == expected[1].tolist()
        lost += int(((codes[document] != 0).any(1) & ~usable[document]).sum())
    assert lost == 2


def test_every_topic_has_its_numbers_its_label_and_its_size():
    model = bert()
    report = measure_embeddings(model, TOPICS, n_resamples=0)
    cell = report.topics["dot"][1]
    table = model.get_input_embeddings().weight.detach()
    within = [float(table[i] @ table[j]) for i, j in itertools.permutations(LISTS["tools"], 2)]
    assert cell.same_topic == pytest.approx(np.mean(within))
    assert report.topics["dot"].index["n_words"] == (5, 5, 4)
    assert report.topics["dot"].index["topic"][1].startswith("1: ")
    assert report.cosine.interval is None


def test_tables_have_a_row_per_score_topic_or_layer():
    report = measure_embeddings(bert(), TOPICS, some_documents(), special_ids=())
    overall = report.to_dataframe()
    assert overall["score"].tolist() == ["cosine", "dot"]
    assert overall.loc[1, "ratio"] == report.dot.ratio
    by_topic = report.to_dataframe("topic")
    assert list(by_topic)[:3] == ["score", "topic", "n_words"]
    assert by_topic["score"].tolist() == ["cosine"] * 3 + ["dot"] * 3
    by_layer = report.to_dataframe("layer")
    assert by_layer["layer"].tolist() == [0, 1, 2] * 2
    assert "ratio_low" in by_layer
    with pytest.raises(ValueError, match="pass documents"):
        measure_embeddings(bert(), TOPICS, n_resamples=0).to_dataframe("layer")
    with pytest.raises((ValueError, TypeError), match="by"):
        report.to_dataframe("head")


def test_a_report_comes_back_from_disk_with_its_provenance(tmp_path):
    report = measure_embeddings(bert(), TOPICS, some_documents(), center=True, exclude=[6])
    report.save(tmp_path / "report")
    loaded = load_report(tmp_path / "report")
    assert loaded == report
    assert loaded.provenance["topics"]["fingerprint"] == TOPICS.fingerprint
    assert loaded.provenance["options"]["center"]
    assert loaded.provenance["seed"] == 0
    assert loaded.provenance["model"]["dtype"] == "float64"


def test_the_same_seed_gives_the_same_intervals_and_another_one_others():
    one, again, other = (
        measure_embeddings(bert(), TOPICS, seed=seed, statistic="difference") for seed in (0, 0, 1)
    )
    assert one == again
    assert one.dot.statistic == "difference"
    assert (one.dot.interval != other.dot.interval).any()
    assert one.dot.interval[0] < one.dot.difference < one.dot.interval[1]


def test_a_wider_confidence_gives_a_wider_interval():
    narrow, wide = (
        measure_embeddings(bert(), TOPICS, confidence=share, statistic="difference") for share in (0.5, 0.99)
    )
    assert np.ptp(narrow.dot.interval) < np.ptp(wide.dot.interval)


def test_topics_of_another_vocabulary_are_refused():
    topics = Topics.from_token_ids(LISTS, vocabulary_size=60)
    with pytest.raises(ValueError, match="vocabulary of 60 ids, the model's has 50"):
        measure_embeddings(bert(), topics)


def test_the_paper_s_embedding_regime_has_the_inner_products_that_were_put_in():
    # A column of W_E is a unit vector for the topic plus one for the word: W_EᵀW_E is 2 on the diagonal, 1 in a topic.
    world = World(n_topics=3, words_per_topic=4, alpha=0.1)
    one_hot = torch.eye(16)
    columns = [torch.zeros(16)] + [
        one_hot[topic] + one_hot[4 + 4 * topic + word] for topic in range(3) for word in range(4)
    ]
    config = ToyConfig("full", world=world, masking=Masking(), d_model=16, dtype="float64")
    toy = build_toy(config, tensors={"W_E": torch.stack(columns, 1).double()})
    report = measure_embeddings(toy, Topics.blocks(n_topics=3, words_per_topic=4), statistic="difference")
    np.testing.assert_allclose(means(report.dot), [2, 1, 0], atol=1e-12)
    assert report.cosine.same_topic == pytest.approx(0.5)
    np.testing.assert_allclose(report.dot.interval, [1, 1], atol=1e-12)
    assert "has no meaning: read the difference" in report.dot.reason
    assert np.isnan(report.dot.ratio)


@pytest.mark.parametrize("exclude", [["3"], [True], [1.5], "3", [2**80]])
def test_what_is_no_token_id_to_exclude_is_refused(exclude, unchecked):
    world = World(n_topics=2, words_per_topic=2)
    with pytest.raises((TypeError, ValueError), match="exclude"):
        measure_embeddings(build_toy(ToyConfig(world=world)), world.topics, exclude=exclude)


def test_a_printed_report_says_what_was_taken_out_and_shows_the_states():
    model, documents = bert(), some_documents(9)
    plain = measure_embeddings(model, TOPICS, n_resamples=0)
    assert "centred" not in str(plain)
    assert "states" not in str(plain)
    report = measure_embeddings(model, TOPICS, documents, center=True, remove_components=2, n_resamples=0)
    for text in (str(report), report._repr_html_()):
        assert "cosine (centred)" in text
        assert "taken out of the embeddings: the mean of all rows and 2 principal components" in text
        assert "cosines of states, layer by layer" in text
    lines = str(report).partition("cosines of states")[2].splitlines()
    ratios = report.layers["cosine"].ratio
    assert [line.split()[:2] for line in lines[2:5]] == [
        [str(n), f"{ratio:.4g}"] for n, ratio in enumerate(ratios)
    ]
    assert list(report.to_dataframe()["score"]) == ["cosine", "dot"]


def test_a_missing_number_is_named_with_its_reason():
    one = Topics.from_token_ids({"fruit": [5, 6], "tools": [10]}, vocabulary_size=VOCABULARY)
    report = measure_embeddings(bert(), one, [[5, 10, 5, 10]] * 3, n_resamples=0)
    assert "(layers: no pair of different words shares a topic)" in str(report)
