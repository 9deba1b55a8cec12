"""Writes: double loops over Hugging Face's own tensors, closed forms of the toy, sums, and models that are refused."""

import copy

import known_toy
import numpy as np
import pytest
import torch
import transformers as hf
import zoo
from scipy import stats

import topic_probe as tp
from topic_probe.topics import Topics

TOPICS = Topics.from_token_ids(
    {"one": list(range(5, 20)), "two": list(range(20, 40)), "three": list(range(40, 50))},
    vocabulary_size=zoo.VOCABULARY,
)
TOPIC_OF = {word: 0 if word < 20 else 1 if word < 40 else 2 for word in range(5, 50)}


DOCUMENTS = zoo.lists((12, 9, 14, 20, 11, 16, 13, 10, 18, 15))
HOSTS = ["huggingface", "bridge"]


def direction_in_words(topic):
    """What counts how much of the vocabulary: the mean of a topic's words − the mean of those of the others."""
    of = torch.tensor([TOPIC_OF.get(word, -1) for word in range(zoo.VOCABULARY)])
    own, others = of == topic, (of >= 0) & (of != topic)
    return own.double() / own.sum() - others.double() / others.sum()


def seen_of(model, ids):
    """What an eager copy shows of one document: patterns, values, what the final normalisation is given, MLPs."""
    twin = copy.deepcopy(model).double().eval().requires_grad_(False)
    twin.set_attn_implementation("eager")
    is_gpt2 = isinstance(model, hf.GPT2LMHeadModel)
    layers = twin.transformer.h if is_gpt2 else twin.model.layers
    final = twin.transformer.ln_f if is_gpt2 else twin.model.norm
    seen = {"values": [], "mlp": [], "attention": []}
    for layer in layers:
        source = layer.attn.c_attn if is_gpt2 else layer.self_attn.v_proj
        source.register_forward_hook(lambda m, g, out: seen["values"].append(out[0, :, -zoo.WIDTH :]))
        layer.mlp.register_forward_hook(lambda m, g, out: seen["mlp"].append(out[0]))
    layers[0].register_forward_pre_hook(lambda m, args: seen.__setitem__("first", args[0][0]))
    final.register_forward_pre_hook(lambda m, args: seen.__setitem__("last", args[0][0]))
    with torch.no_grad():
        answer = twin(torch.tensor([ids]), output_attentions=True, use_cache=False)
    seen["patterns"] = [pattern[0] for pattern in answer.attentions]
    seen["logits"] = answer.logits[0]
    if is_gpt2:
        seen["output"] = [layer.attn.c_proj.weight for layer in layers]  # Conv1D: [in, out]
        seen["bias"] = sum(layer.attn.c_proj.bias for layer in layers)
    else:
        seen["output"] = [layer.self_attn.o_proj.weight.T for layer in layers]
        seen["bias"] = torch.zeros(zoo.WIDTH).double()
    seen["final"] = final
    seen["unembedding"] = twin.get_output_embeddings().weight  # [word, d_model]
    return seen


def frozen(final, x):
    """The final normalisation of a stream as a matrix, and what it adds."""
    eye = torch.eye(len(x)).double()
    if isinstance(final, torch.nn.LayerNorm):
        scale = 1 / torch.sqrt(x.var(unbiased=False) + final.eps)
        return (eye - 1 / len(x)) @ torch.diag(final.weight) * scale, final.bias
    scale = 1 / torch.sqrt(x.square().mean() + final.variance_epsilon)
    return torch.diag(final.weight) * scale, torch.zeros_like(x)


def by_loops(model, documents):
    """Sums and numbers of writes by layer, head and relation; totals, rest and score by word."""
    sums, counts = np.zeros((3, zoo.HEADS, 3)), np.zeros((3, zoo.HEADS, 3))
    totals, rests, scores = [], [], []
    for ids in documents:
        seen = seen_of(model, ids)
        places = [q for q in range(1, len(ids)) if ids[q] in TOPIC_OF]  # what stands first is a sink
        for q in places:
            norm, offset = frozen(seen["final"], seen["last"][q])
            toward = direction_in_words(TOPIC_OF[ids[q]]) @ seen["unembedding"]
            total = np.zeros((3, zoo.HEADS))
            for layer in range(3):
                values = seen["values"][layer]
                n_shared = zoo.HEADS // (values.shape[1] // 8)
                for head in range(zoo.HEADS):
                    own = values[:, head // n_shared * 8 : head // n_shared * 8 + 8]
                    W_O = seen["output"][layer][head * 8 : head * 8 + 8]
                    for k in range(q + 1):
                        written = seen["patterns"][layer][head, q, k] * own[k] @ W_O @ norm
                        total[layer, head] += float(written @ toward)
                        if k not in places:
                            continue
                        to_key = direction_in_words(TOPIC_OF[ids[k]]) @ seen["unembedding"]
                        relation = 0 if ids[k] == ids[q] else 1 if TOPIC_OF[ids[k]] == TOPIC_OF[ids[q]] else 2
                        sums[layer, head, relation] += float(written @ to_key)
                        counts[layer, head, relation] += 1
            rest = seen["first"][q] + sum(mlp[q] for mlp in seen["mlp"]) + seen["bias"]
            totals.append(total)
            rests.append(float((rest @ norm + offset) @ toward))
            scores.append(float(seen["logits"][q] @ direction_in_words(TOPIC_OF[ids[q]])))
    return sums / counts, counts, np.mean(totals, 0), np.mean(rests), np.mean(scores)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_writes_are_those_of_double_loops_over_hugging_faces_own_tensors(name, host):
    """Llama has rotary positions and heads that share values; its values stand alone, those of GPT-2 behind others."""
    model, documents = zoo.make(name), DOCUMENTS[:4]
    means, counts, total, rest, score = by_loops(model, documents)
    report = tp.measure_writes(zoo.hosted(model, host), TOPICS, documents, special_ids=())
    found = [report.heads.same_word, report.heads.same_topic, report.heads.different_topic]
    np.testing.assert_allclose(np.stack(found, -1).reshape(means.shape), means, atol=1e-7)
    assert report.heads.n_same_topic.tolist() == counts[..., 1].ravel().tolist()
    np.testing.assert_allclose(report.total.reshape(total.shape), total, atol=1e-7)
    assert report.rest == pytest.approx(rest, abs=1e-6)
    assert report.score == pytest.approx(score, abs=1e-6)
    assert total.sum() + rest == pytest.approx(score, abs=1e-7)  # Llama normalises in single precision
    assert report.provenance["toward"] == "unembedding"


def test_intervals_of_totals_are_as_wide_as_leaving_documents_out_says():
    model, documents = zoo.make("gpt2"), zoo.lists(12 * (14,))
    n = len(documents)
    whole, *without = (
        tp.measure_writes(model, TOPICS, given, special_ids=())
        for given in [documents, *([d for d in documents if d is not left] for left in documents)]
    )

    def told(report):
        return np.array([*report.total, report.rest, report.score])

    ends = np.array([*whole.total_interval, whole.rest_interval, whole.score_interval])
    spread = np.std([told(report) for report in without], axis=0) * np.sqrt(n - 1)
    reach = np.diff(ends)[:, 0] / 2 / spread
    # As many degrees of freedom as documents less one, and fewer where some documents move a head most.
    assert (reach > 0.999 * stats.t.ppf(0.975, n - 1)).all()
    assert (reach < stats.t.ppf(0.975, 3)).all()
    assert spread.max() > 5 * spread.min()
    np.testing.assert_allclose(ends.mean(1), told(whole), atol=0.1 * spread.max())
    few = tp.measure_writes(model, TOPICS, documents[:7], special_ids=())
    assert np.isnan([*few.total_interval, few.rest_interval, few.score_interval]).all()
    assert "total_low" in whole.to_dataframe()
    assert "total_low" not in few.to_dataframe()
    assert f"scores it {whole.score:.4g} [{whole.score_interval[0]:.4g}," in str(whole)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("name", ["gpt2", "llama", "neox", "modernbert-headless", "t5-encoder"])
def test_heads_and_rest_add_up_to_the_scores(name, host):
    if host == "bridge" and name not in zoo.BRIDGED:
        pytest.skip("no bridge")
    report = tp.measure_writes(zoo.hosted(zoo.make(name), host), TOPICS, DOCUMENTS[:2], special_ids=())
    assert max(report.provenance["check"].values()) < 1e-5


OTHERS = {
    "opt": lambda: hf.OPTForCausalLM(
        hf.OPTConfig(
            vocab_size=zoo.VOCABULARY, hidden_size=32, word_embed_proj_dim=32, num_hidden_layers=2, ffn_dim=37,
            num_attention_heads=4, max_position_embeddings=64,
        )
    ),
    "gemma": lambda: hf.GemmaForCausalLM(hf.GemmaConfig(**zoo._grouped, head_dim=8)),
    "olmo": lambda: hf.OlmoForCausalLM(hf.OlmoConfig(**zoo._grouped)),
    "phi": lambda: hf.PhiForCausalLM(hf.PhiConfig(**zoo._encoder)),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_final_normalisations_and_layers_of_many_kinds_are_found_out(name):
    """Weights counted from 1 (Gemma), no weights (OLMo), a bias on scores and layers side by side (Phi)."""
    model = zoo.drawn(OTHERS[name])
    report = tp.measure_writes(tp.open_model(model), TOPICS, DOCUMENTS[:2], special_ids=())
    assert max(report.provenance["check"].values()) < 1e-5
    scores = []
    for ids in DOCUMENTS[:2]:
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0].double()
        places = [place for place in range(1, len(ids)) if ids[place] in TOPIC_OF]
        scores += [float(logits[place] @ direction_in_words(TOPIC_OF[ids[place]])) for place in places]
    assert report.score == pytest.approx(np.mean(scores), abs=1e-6)


def test_under_uniform_attention_a_head_writes_entries_of_W_V_by_the_length():
    """Of Theorem 2's W_V the words of a topic get 1/(...) more than others, whatever the relation of the two words."""
    world = tp.World(n_topics=2, words_per_topic=2)
    W = tp.theory.optimal_value(world, tp.Masking(p_mask=0.2, p_keep=0.0, p_random=0.0))
    toy = tp.build_toy(
        tp.ToyConfig(regime="value", world=world, dtype="float64"), tensors={"W_V": W.double()}
    )
    report = tp.measure_writes(toy, world.topics, [[1, 2, 3, 4], [1, 1, 2, 3, 4]], special_ids=())
    # 9/16 in the topic, −1/16 elsewhere (see measure_weights): 5/8, by length 4 and 5. Same word: 4 and 7 pairs,
    # same topic: 4 and 6, different topic: 8 and 12.
    expected = [0.625 * (4 / 4 + 7 / 5) / 11, 0.625 * (4 / 4 + 6 / 5) / 10, 0.625 * (8 / 4 + 12 / 5) / 20]
    found = [report.heads.same_word, report.heads.same_topic, report.heads.different_topic]
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-12)


def test_a_head_that_attends_by_topic_writes_its_attention_times_W_V():
    """Scores of 2 within a topic: every word of its own topic gets e² times the attention of another's."""
    block = 2 * known_toy.same_block()
    n, v = known_toy.WORLD.vocabulary_size, known_toy.V
    eye = torch.eye(n, dtype=torch.float64)
    W_V = torch.randn(n, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    toy = known_toy.toy(W_K=eye, W_Q=block * n**0.5, W_V=W_V)
    document = list(range(1, 2 * v + 1))  # two topics, every word once
    report = tp.measure_writes(toy, known_toy.WORLD.topics, [document], special_ids=())
    near, far = np.exp(2), 1.0
    norm = v * (near + far)
    toward = np.array(
        [
            float(W_V[t * v + 1 : t * v + v + 1, k].mean())
            - float(torch.cat([W_V[1 : t * v + 1, k], W_V[t * v + v + 1 :, k]]).mean())
            for t in range(2)
            for k in range(t * v + 1, t * v + v + 1)
        ]
    )
    # Every word is read by v − 1 others of its topic and by v of the other.
    assert report.heads.same_topic.item() == pytest.approx(near / norm * toward.mean(), rel=1e-12)
    assert report.heads.different_topic.item() == pytest.approx(far / norm * toward.mean(), rel=1e-12)
    assert report.rest == pytest.approx(0, abs=1e-12)  # nothing but the head, and biases of zero


def test_a_head_of_zeros_writes_nothing_and_the_others_what_they_did():
    toy = known_toy.toy(2, W_V=torch.stack([known_toy.theorem_2(), 0 * known_toy.theorem_2()]))
    one = known_toy.toy(W_V=known_toy.theorem_2())
    both, alone = (
        tp.measure_writes(model, known_toy.WORLD.topics, known_toy.documents()[:9], special_ids=())
        for model in (toy, one)
    )
    assert both.total[1] == both.heads.same_topic[1] == both.heads.different_topic[1] == 0
    assert both.total[0] == pytest.approx(alone.total.item(), rel=1e-12)
    assert both.score == pytest.approx(alone.score, rel=1e-12)


def test_a_bias_is_of_the_rest():
    bias = torch.randn(
        known_toy.WORLD.vocabulary_size, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    documents = [list(range(1, 31)), list(range(11, 51))]
    report = tp.measure_writes(known_toy.toy(b_pred=bias), known_toy.WORLD.topics, documents, special_ids=())
    assert not report.total.any()
    by_topic = bias[1:].view(known_toy.T, known_toy.V).mean(1)
    against = by_topic - (by_topic.sum() - by_topic) / (known_toy.T - 1)
    expected = sum(float(against[(word - 1) // known_toy.V]) for ids in documents for word in ids) / 70
    assert report.rest == pytest.approx(expected, rel=1e-12)


def test_a_model_without_head_is_read_by_its_embeddings():
    """GPT-2's head is its embedding, so that the trunk alone is told the same."""
    model = zoo.make("gpt2")
    whole, trunk = (
        tp.measure_writes(tp.open_model(part), TOPICS, DOCUMENTS, special_ids=())
        for part in (model, model.transformer)
    )
    assert (whole.provenance["toward"], trunk.provenance["toward"]) == ("unembedding", "embeddings")
    np.testing.assert_allclose(trunk.heads.difference, whole.heads.difference, atol=1e-7)
    assert "compared with the embeddings of words" in repr(trunk)
    assert "compared with the embeddings" not in repr(whole)


def test_batches_and_padding_change_nothing(tmp_path):
    model = tp.open_model(zoo.make("llama"))
    together, alone = (
        tp.measure_writes(model, TOPICS, DOCUMENTS, special_ids=(), batch_size=size) for size in (32, 1)
    )
    for name in ("same_word", "same_topic", "different_topic", "interval"):
        np.testing.assert_allclose(
            getattr(alone.heads, name), getattr(together.heads, name), atol=1e-7, err_msg=name
        )
    np.testing.assert_allclose(alone.total, together.total, atol=1e-7)
    assert alone.score == pytest.approx(together.score, abs=1e-6)
    assert tp.load_report(together.save(tmp_path / "report")) == together


def test_layers_that_see_different_keys_count_every_word_once():
    """A layer with a window and one without are scored apart."""
    config = hf.Qwen2Config(
        **zoo._grouped, sliding_window=4, use_sliding_window=True,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
    )  # fmt: skip
    model = zoo.drawn(lambda: hf.Qwen2ForCausalLM(config))
    report = tp.measure_writes(tp.open_model(model), TOPICS, DOCUMENTS, special_ids=())
    whole, windowed, last = report.heads.n_same_topic.reshape(3, -1)
    assert (windowed < whole).all()
    assert (whole == last).all()
    scores = []
    for ids in DOCUMENTS:
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0].double()
        places = [place for place in range(1, len(ids)) if ids[place] in TOPIC_OF]
        scores += [float(logits[place] @ direction_in_words(TOPIC_OF[ids[place]])) for place in places]
    assert report.score == pytest.approx(np.mean(scores), abs=1e-6)


def test_words_of_every_topic_have_none_to_be_compared_with():
    """There is no direction to write them in, and none to ask for where they stand; they still read other words."""
    topics = {"one": list(range(5, 20)), "two": list(range(20, 40))}
    shared = {name: [*words, 45, 46] for name, words in topics.items()}
    documents = [[word for word in ids if word not in range(40, 50)] for ids in DOCUMENTS]
    model = tp.open_model(zoo.make("gpt2"))
    without, report = (
        tp.measure_writes(
            model,
            Topics.from_token_ids(some, vocabulary_size=zoo.VOCABULARY),
            [[*ids, 45, 46, 45] for ids in documents],
            special_ids=(),
        )
        for some in (topics, shared)
    )
    n_words = sum(word < 40 for ids in documents for word in ids[1:])  # what stands first is a sink
    assert (report.heads.n_same_topic == without.heads.n_same_topic + 3 * n_words).all()
    assert (report.heads.n_different_topic == without.heads.n_different_topic).all()
    assert (report.heads.n_same_word == without.heads.n_same_word).all()
    # What the model scores the topic of a word that stands in one only: the mean over the words that share it − others.
    scores = []
    for ids in documents:
        logits = seen_of(zoo.make("gpt2"), [*ids, 45, 46, 45])["logits"]
        for place, word in enumerate(ids[1:], 1):
            if word < 40:
                own, other = (topics["one"], topics["two"])[:: 1 if word < 20 else -1]
                scores.append(float(logits[place, [*own, 45, 46]].mean() - logits[place, other].mean()))
    assert report.score == pytest.approx(np.mean(scores), abs=1e-6)


def test_models_are_refused_by_name_with_the_reason():
    refused = {
        "bert": r"BertForMaskedLM.*arrives in front of the last normalisation not at all.*post-norm models like BERT",
        "roberta": r"RobertaForMaskedLM.*not at all",
        "gemma2": r"Gemma2ForCausalLM.*not at all",
        "bart": r"BartForConditionalGeneration.*has an encoder and a decoder",
        "modernbert": r"ModernBertForMaskedLM.*scores are not products.*without its head",
        "mpnet": r"MPNetForMaskedLM.*cannot be edited",
    }
    for name, reason in refused.items():
        with pytest.raises(ValueError, match=reason):
            tp.measure_writes(tp.open_model(zoo.make(name)), TOPICS, DOCUMENTS, special_ids=())


def test_streams_and_scores_with_factors_and_caps_are_refused():
    """A cap on scores is seen although those of the trial are far below it."""

    class Capped(hf.GPT2LMHeadModel):
        def forward(self, *args, **options):
            answer = super().forward(*args, **options)
            answer.logits = 1e4 * torch.tanh(answer.logits / 1e4)
            return answer

    granite = hf.GraniteConfig(**zoo._grouped, residual_multiplier=0.5)
    cohere = hf.CohereConfig(**zoo._grouped, logit_scale=0.25)
    refused = [
        (
            lambda: hf.GraniteForCausalLM(granite),
            "arrives in front of the last normalisation as something else",
        ),
        (lambda: hf.CohereForCausalLM(cohere), "scores are not products"),
        (lambda: Capped(hf.GPT2Config(**zoo._gpt2, eos_token_id=0)), "scores are not products"),
    ]
    for maker, reason in refused:
        with pytest.raises(ValueError, match=reason):
            tp.measure_writes(tp.open_model(zoo.drawn(maker)), TOPICS, DOCUMENTS, special_ids=())


def test_layers_without_a_stream_are_refused_but_the_last():
    config = tp.ToyConfig(regime="attention", world=tp.World(n_topics=2, words_per_topic=2), n_layers=2)
    with pytest.raises(ValueError, match=r"heads of blocks\.0.*not at all.*without a residual stream"):
        tp.measure_writes(tp.build_toy(config), config.world.topics, [[1, 2, 3, 4]], special_ids=())


def test_topics_that_leave_nothing_to_compare_are_refused():
    model = tp.open_model(zoo.make("gpt2"))
    one = Topics.from_token_ids({"one": [5, 6, 7]}, vocabulary_size=zoo.VOCABULARY)
    with pytest.raises(ValueError, match="no word has any that share none of its topics"):
        tp.measure_writes(model, one, DOCUMENTS, special_ids=())
    with pytest.raises(ValueError, match="none of the 1 documents holds a word of any topic"):
        tp.measure_writes(model, TOPICS, [[60, 61, 62]], special_ids=())


def test_the_model_comes_back_as_it_was():
    model = zoo.make("llama")
    hosted = tp.open_model(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tp.measure_writes(hosted, TOPICS, DOCUMENTS[:2], special_ids=())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    modules = [*hosted.modules(), *model.modules()]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in modules)
