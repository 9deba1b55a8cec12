"""Weights of heads between words, through factors, against the word × word matrices that are never formed."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers as hf
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

import topic_probe as tp
from topic_probe.measure import weights
from topic_probe.measure.weights import circuit_sums, head_ends, measure_weights, word_moments
from topic_probe.measure.words import LabelledWords
from topic_probe.report import load_report
from topic_probe.topics import Topics
from topic_probe.toy import theory
from topic_probe.toy.masking import Masking
from topic_probe.toy.model import ToyConfig, build_toy
from topic_probe.toy.world import World
from topic_probe.uncertainty import word_interval

VOCABULARY = 50
LISTS = {"fruit": [5, 6, 7, 8, 20], "tools": [10, 11, 12, 13, 20], "birds": [30, 31, 32, 5], "one": [40]}
TOPICS = Topics.from_token_ids(LISTS, vocabulary_size=VOCABULARY)
SIZES = {"vocab_size": VOCABULARY, "max_position_embeddings": 64}
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 8}


# Forms of a word in one topic (apple), in topics that share none (axe) and in more and fewer of them (hen).
TEXTS = {5: "hen", 6: "Apple", 7: " apple", 8: "APPLE", 10: "axe", 40: " axe", 31: "Hen", 32: "(hen"}


def with_texts():
    """The topics with entries that read as above, and as their number."""
    return replace(TOPICS, texts=tuple(TEXTS.get(entry, f"w{entry}") for entry in TOPICS.words.tolist()))


def word_of(entry, texts):
    return texts.get(entry, f"w{entry}").strip("( ").lower()


def all_words(topics):
    return LabelledWords(topics, torch.arange(len(topics.words)))


def relation_of(i, j, texts=None):
    one, other = ({name for name, ids in LISTS.items() if id_ in ids} for id_ in (i, j))
    if not one or not other:
        return None
    same_word = i == j if texts is None else word_of(i, texts) == word_of(j, texts)
    return 0 if same_word else 1 if one & other else 2


def double_loop(scores, without=(), texts=None):
    """Means and counts by relation and the standard deviation over all pairs, from a whole [word, word] matrix."""
    sums, counts, every = np.zeros(3), np.zeros(3), []
    for i, j in itertools.product(sorted(set(range(VOCABULARY)) - set(without)), repeat=2):
        relation = relation_of(i, j, texts)
        if relation is not None:
            sums[relation] += float(scores[i, j])
            counts[relation] += 1
            every.append(float(scores[i, j]))
    return sums / counts, counts, np.std(every)


def means(contrast):
    return np.stack([contrast.same_word, contrast.same_topic, contrast.different_topic], -1)


def bert(**options):
    torch.manual_seed(0)
    return BertForMaskedLM(BertConfig(initializer_range=0.3, **SIZES | SMALL | options)).double().eval()


def gpt2():
    torch.manual_seed(1)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, initializer_range=0.3, **sizes)).double().eval()


def llama():
    torch.manual_seed(2)
    config = LlamaConfig(initializer_range=0.3, num_key_value_heads=2, **SIZES, **SMALL)
    return LlamaForCausalLM(config).double().eval()


def heads_of(matrix):
    """[head, d_head, d_model] of a projection that is applied from the left."""
    return matrix.detach().reshape(-1, 4, 16)


def bert_matrices(model, layer):
    attention = model.bert.encoder.layer[layer].attention
    found = [heads_of(getattr(attention.self, name).weight) for name in ("query", "key", "value")]
    return [*found, attention.output.dense.weight.detach().reshape(16, 4, 4).permute(1, 0, 2)]


def gpt2_matrices(model, layer):
    attention = model.transformer.h[layer].attn
    fused = attention.c_attn.weight.detach()
    found = [heads_of(part) for part in fused.T.chunk(3)]
    return [*found, attention.c_proj.weight.detach().T.reshape(16, 4, 4).permute(1, 0, 2)]


def llama_matrices(model, layer):
    attention = model.model.layers[layer].self_attn
    query = heads_of(attention.q_proj.weight)
    key, value = (heads_of(part.weight)[[0, 0, 1, 1]] for part in (attention.k_proj, attention.v_proj))
    return [query, key, value, attention.o_proj.weight.detach().reshape(16, 4, 4).permute(1, 0, 2)]


@pytest.mark.parametrize(
    ("build", "matrices"), [(bert, bert_matrices), (gpt2, gpt2_matrices), (llama, llama_matrices)]
)
@pytest.mark.parametrize("exclude", [(), (5, 31)])
@pytest.mark.parametrize("texts", [None, TEXTS], ids=["ids", "forms"])
def test_every_head_equals_a_double_loop_over_its_whole_matrix_of_words(build, matrices, exclude, texts):
    model = build()
    topics = TOPICS if texts is None else with_texts()
    report = measure_weights(build(), topics, exclude=exclude, n_resamples=0)
    table = model.get_input_embeddings().weight.detach()
    outputs = model.get_output_embeddings().weight.detach()
    cell = 0
    for circuit, layer, head in itertools.product(("qk", "ov"), range(2), range(4)):
        query, key, value, output = (part[head] for part in matrices(model, layer))
        # The score of a query word with a key word; what value and output make of a word, scored as another.
        scores = (
            (table @ query.T) @ (table @ key.T).T
            if circuit == "qk"
            else table @ value.T @ output.T @ outputs.T
        )
        expected, counts, spread = double_loop(scores, exclude, texts)
        names = {name: column[cell] for name, column in report.heads.index.items()}
        assert names == {"circuit": circuit, "stack": "self", "layer": layer, "head": head}
        np.testing.assert_allclose(means(report.heads[cell]), expected, atol=1e-9)
        assert report.heads[cell].n_same_topic == counts[1]
        assert report.standardised[cell] == pytest.approx((expected[1] - expected[2]) / spread, abs=1e-9)
        cell += 1
    assert len(report.heads) == cell


def test_an_encoder_beside_a_decoder_has_no_circuit_to_words():
    torch.manual_seed(0)
    config = BartConfig(
        **SIZES, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=8, decoder_ffn_dim=8, decoder_start_token_id=2, bos_token_id=0, eos_token_id=2, pad_token_id=1,
    )  # fmt: skip
    report = measure_weights(BartForConditionalGeneration(config).eval(), TOPICS, n_resamples=0)
    found = set(zip(report.heads.index["circuit"], report.heads.index["stack"], strict=True))
    assert found == {
        ("qk", "encoder"),
        ("qk", "decoder"),
        ("qk", "cross"),
        ("ov", "decoder"),
        ("ov", "cross"),
    }


def test_a_model_that_scores_no_words_has_no_ov_and_says_so():
    torch.manual_seed(0)
    headless = BertModel(BertConfig(**SIZES, **SMALL)).eval()
    report = measure_weights(headless, TOPICS, n_resamples=0)
    assert set(report.heads.index["circuit"]) == {"qk"}
    assert "no head that scores the vocabulary" in report.provenance["left_out"]["ov"]
    with pytest.raises(ValueError, match="no head that scores the vocabulary"):
        measure_weights(headless, TOPICS, circuits=("qk", "ov"))


@pytest.mark.parametrize("circuits", [("vo",), ()])
def test_unknown_circuits_are_refused_with_the_known_ones(circuits):
    with pytest.raises((ValueError, TypeError), match="circuits"):
        measure_weights(bert(), TOPICS, circuits=circuits)


def test_an_unembedding_that_is_not_finite_is_named():
    model = bert(tie_word_embeddings=False)
    with torch.no_grad():
        model.get_output_embeddings().weight[11] = torch.nan
    with pytest.raises(ValueError, match="unembedding of token 11 is not finite"):
        measure_weights(model, TOPICS, n_resamples=0)
    report = measure_weights(model, TOPICS, n_resamples=0, exclude=[11])
    assert np.isfinite(report.heads.difference).all()


def one_hot_toy(value, **options):
    world = World(n_topics=4, words_per_topic=5, topics_per_document=2)
    config = ToyConfig("value", world=world, masking=Masking(), dtype="float64", **options)
    return build_toy(config, tensors=None if value is None else {"W_V": value}), world, config


def test_in_the_one_hot_toy_ov_is_the_value_matrix_itself():
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(21, 21, generator=generator, dtype=torch.float64)
    report = measure_weights(one_hot_toy(value)[0], Topics.blocks(n_topics=4, words_per_topic=5))
    words = value[1:, 1:]  # without [MASK], which has no topic
    topic = torch.arange(20) // 5
    same = (topic[:, None] == topic) & ~torch.eye(20, dtype=torch.bool)
    found = report.heads[report.heads.index["circuit"].index("ov")]
    assert found.same_word == pytest.approx(float(words.diagonal().mean()))
    assert found.same_topic == pytest.approx(float(words[same].mean()))
    assert found.different_topic == pytest.approx(float(words[topic[:, None] != topic].mean()))


def test_the_optimal_value_matrix_of_theorem_2_differs_by_c3_over_v_between_topics():
    toy, world, config = one_hot_toy(None)
    value = theory.optimal_value(world, config.masking)
    toy = build_toy(config, tensors={"W_V": torch.as_tensor(value, dtype=torch.float64)})
    report = measure_weights(toy, Topics.blocks(n_topics=4, words_per_topic=5), circuits=("ov",))
    # Same topic minus different topic is c₃/v with c₃ = 1/(1 − (1 − p_c) p_m).
    masking = config.masking
    c3 = 1 / (1 - (1 - masking.p_keep) * masking.p_mask)
    assert report.heads.difference[0] == pytest.approx(c3 / 5)
    assert report.heads.same_word[0] == pytest.approx(report.heads.same_topic[0])
    np.testing.assert_allclose(report.heads.interval[0], [c3 / 5, c3 / 5])


@pytest.mark.parametrize("value", [1.0, 0.1, 0.7, 1 / 3])
def test_equal_scores_everywhere_have_no_spread_to_divide_by(value):
    toy = one_hot_toy(torch.full((21, 21), value, dtype=torch.float64))[0]
    report = measure_weights(toy, Topics.blocks(n_topics=4, words_per_topic=5), circuits=("ov",))
    assert report.heads.ratio[0] == pytest.approx(1)
    assert np.isnan(report.standardised).all()


@pytest.mark.parametrize("texts", [{}, TEXTS], ids=["ids", "forms"])
def test_every_word_has_both_ends_of_its_pairs_by_the_half_of_the_partner(texts):
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, len(TOPICS.words), 6, generator=generator, dtype=torch.float64)
    P, Q = torch.randn(2, 3, 6, 2, generator=generator, dtype=torch.float64)
    words = all_words(with_texts() if texts else TOPICS)
    half = words.halves(0)
    moments = word_moments(left, right, words)
    found = head_ends(moments, P, Q, half, words.n_mates(half))
    same, n_same, different, n_different = (np.zeros_like(part) for part in found)
    scores = torch.stack([left @ p @ (right @ q).T for p, q in zip(P, Q, strict=True)]).numpy()
    ids = TOPICS.words.tolist()
    names = list(dict.fromkeys(word_of(entry, texts) for entry in ids))
    assert len(half) == len(names)
    for (i, entry), (j, other) in itertools.product(enumerate(ids), repeat=2):
        relation = relation_of(entry, other, texts)
        a, b = names.index(word_of(entry, texts)), names.index(word_of(other, texts))
        both_ends = scores[:, i, j] + scores[:, j, i]
        if relation == 1:
            same[half[b], a] += both_ends
            n_same[half[b], a] += 2
        elif relation == 2:
            different[half[b], a] += both_ends
            n_different[half[b], a] += 2
    for part, expected in zip(found, (same, n_same, different, n_different), strict=True):
        np.testing.assert_allclose(part, expected, atol=1e-9)
    sums, _ = circuit_sums(moments, P, Q)
    np.testing.assert_allclose(found[0].sum((0, 1)) / 2, sums.sums[:, 1], atol=1e-9)
    np.testing.assert_allclose(found[2].sum((0, 1)) / 2, sums.sums[:, 2], atol=1e-9)


def test_a_planted_head_is_found_first_and_lost_when_topics_are_shuffled():
    topics = Topics.blocks(n_topics=8, words_per_topic=12)
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(8, 16, generator=generator, dtype=torch.float64)
    model = bert(vocab_size=97)
    with torch.no_grad():
        table = model.get_input_embeddings().weight
        table.copy_(torch.randn(table.shape, generator=generator, dtype=torch.float64) * 0.3)
        table[1:] += centres.repeat_interleave(12, 0)
        planted = model.bert.encoder.layer[1].attention.self
        planted.key.weight[8:12] = planted.query.weight[8:12]  # head 2 of layer 1 scores likeness
    report = measure_weights(model, topics)
    best = report.heads[report.standardised == report.standardised.max()]
    assert best.index == {"circuit": ("qk",), "stack": ("self",), "layer": (1,), "head": (2,)}
    assert best.interval[0, 0] > 0
    assert report.heads.top(1).index["circuit"]  # ranked by difference, which it is about
    shuffled = measure_weights(model, topics.shuffled(0), n_resamples=0)
    assert np.abs(shuffled.standardised).max() < 0.2 < report.standardised.max()


@pytest.mark.slow
def test_intervals_of_heads_cover_the_truth_as_often_as_they_say():
    # Words around topic centres, and two heads with random weights, whose scores are not symmetric.
    generator = torch.Generator().manual_seed(0)
    topics = Topics.blocks(n_topics=8, words_per_topic=10)
    words = all_words(topics)
    centres = torch.randn(8, 12, generator=generator, dtype=torch.float64) * 0.4
    P, Q = torch.randn(2, 2, 12, 6, generator=generator, dtype=torch.float64)
    between = (centres @ P) @ (centres @ Q).mT
    truth = (
        between.diagonal(dim1=1, dim2=2).mean(1) - between[:, ~torch.eye(8, dtype=torch.bool)].mean(1)
    ).numpy()
    runs, covered = 300, np.zeros(2)
    for run in range(runs):
        noise = torch.randn(80, 12, generator=generator, dtype=torch.float64) * 0.5
        rows = centres.repeat_interleave(10, 0) + noise
        moments = word_moments(rows, rows, words)
        half = words.halves(run)
        ends = head_ends(moments, P, Q, half, words.n_mates(half))
        interval = word_interval(ends, words.strata, statistic="difference", n_resamples=400, seed=run)
        covered += (interval[:, 0] <= truth) & (truth <= interval[:, 1])
    # A share of 0.95 in 300 runs has a standard error of √(0.95 · 0.05 / 300) = 0.0126; these are 2.5 of them on either
    # side. Intervals a quarter too narrow cover 0.858 ± 0.020.
    assert ((covered / runs >= 0.92) & (covered / runs <= 0.98)).all()


def test_a_report_comes_back_from_disk_and_shows_a_row_per_head(tmp_path):
    report = measure_weights(bert(), TOPICS)
    report.save(tmp_path / "report")
    assert load_report(tmp_path / "report") == report
    table = report.to_dataframe()
    assert list(table)[:4] == ["circuit", "stack", "layer", "head"]
    assert {"difference", "difference_low", "difference_high", "standardised"} <= set(table)
    assert len(table) == 16
    assert repr(report).startswith("WeightReport\n")


def test_too_few_words_have_no_interval_and_say_so():
    few = Topics.from_token_ids({"fruit": [5, 6, 7], "tools": [10, 11]}, vocabulary_size=VOCABULARY)
    report = measure_weights(bert(), few)
    assert np.isnan(report.heads.interval).all()
    assert "no interval: 5 words, at least 8 are needed" in report.heads.reason


# ---------------------------------------------------------------- rotary positions

ROTARY = {
    "llama": lambda: hf.LlamaModel(hf.LlamaConfig(**SIZES | SMALL, num_key_value_heads=2)),
    "qwen2": lambda: hf.Qwen2Model(hf.Qwen2Config(**SIZES | SMALL, num_key_value_heads=2)),
    "neox": lambda: hf.GPTNeoXModel(
        hf.GPTNeoXConfig(**SIZES | SMALL, rotary_pct=0.5)
    ),  # a part of a head is turned
    "cohere": lambda: hf.CohereModel(hf.CohereConfig(**SIZES | SMALL)),  # neighbours are turned together
    "modernbert": lambda: hf.ModernBertModel(  # layers with bases of their own
        hf.ModernBertConfig(**SIZES | SMALL, global_attn_every_n_layers=2, local_attention=64, pad_token_id=0)
    ),
}


def own_queries_and_keys(model, ids):
    """What goes into every layer of attention, and the queries and keys that come of it, as the model computes them."""
    layers, inputs = [], []

    def see(module, query, key, value, mask, **options):
        layers.append((query.double(), key.double()))
        return hf.AttentionInterface()["sdpa"](module, query, key, value, mask, **options)

    def enter(module, given, options):
        inputs.append((options.get("hidden_states") if not given else given[0]).double())

    hf.AttentionInterface.register("seen_by_test", see)
    names = ("LlamaAttention", "Qwen2Attention", "GPTNeoXAttention", "CohereAttention", "ModernBertAttention")
    hooks = [
        part.register_forward_pre_hook(enter, with_kwargs=True)
        for part in model.modules()
        if type(part).__name__ in names
    ]
    model.set_attn_implementation("seen_by_test")
    try:
        with torch.no_grad():
            model(input_ids=ids, attention_mask=torch.ones_like(ids))
    finally:
        model.set_attn_implementation("sdpa")
        for hook in hooks:
            hook.remove()
    return inputs, layers


@pytest.mark.parametrize("name", ROTARY)
@pytest.mark.parametrize("distance", [1, 5, -3])
def test_at_a_distance_queries_and_keys_are_turned_as_the_model_turns_them(name, distance):
    torch.manual_seed(0)
    model = ROTARY[name]().double().eval()
    for parameter in model.parameters():
        if parameter.ndim == 1 and not bool(parameter.all()):  # biases are no part of a circuit
            parameter.data.zero_()
    ids = torch.arange(5, 17)[None]
    inputs, layers = own_queries_and_keys(model, ids)
    hooked = tp.open_model(model)
    projections = weights._Projections(hooked, distance)
    assert len(projections.sites) == len(layers) == 2
    for site, x, (query, key) in zip(projections.sites, inputs, layers, strict=True):
        P, Q = projections.of(site, "qk")
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        for q in range(max(distance, 0), 12 + min(distance, 0)):
            k = q - distance
            own = (query[0, :, q] * key[0, :, k]).sum(-1)
            circuit = torch.einsum("d,hde,hfe,f->h", x[0, q], P, Q, x[0, k])
            torch.testing.assert_close(circuit, own, rtol=1e-6, atol=1e-9)


def test_a_distance_changes_qk_circuits_only_and_stands_in_the_provenance():
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES | SMALL, num_key_value_heads=2)).eval()
    plain, near = (measure_weights(model, TOPICS, distance=distance, n_resamples=0) for distance in (0, 4))
    is_qk = np.array([circuit == "qk" for circuit in plain.heads.index["circuit"]])
    moved = ~np.isclose(plain.heads.same_topic, near.heads.same_topic, rtol=1e-9)
    assert moved.tolist() == is_qk.tolist()
    assert (plain.provenance["options"]["distance"], near.provenance["options"]["distance"]) == (0, 4)


def test_a_distance_needs_rotary_positions_and_room():
    with pytest.raises(ValueError, match=r"BertSelfAttention has no rotary positions .* leave distance out"):
        measure_weights(BertModel(BertConfig(**SIZES | SMALL)), TOPICS, distance=1)
    with pytest.raises(ValueError, match="distance must be less than the 64 tokens"):
        measure_weights(LlamaForCausalLM(LlamaConfig(**SIZES | SMALL)), TOPICS, distance=64)
