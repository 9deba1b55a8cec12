"""The weights of heads give the queries, keys, values and outputs that the models themselves compute."""

import pytest
import torch
import transformers as hf
import zoo
from torch import nn

from topic_probe.lens import capture, huggingface, opening, sites

CALLED = [name for name in zoo.ARCHITECTURES if name not in zoo.ONLY_RETURNED]
WEIGHTS = ("W_Q", "W_K", "W_V", "W_O")


class Watcher:
    """Follows the attention calls of one forward pass: what goes in, the projections, and what comes out."""

    def __init__(self, model, inputs):
        from transformers import AttentionInterface, AttentionMaskInterface

        self.calls, self.given, self.linear = [], [], []
        handles = [
            module.register_forward_pre_hook(self._keep_given, with_kwargs=True) for module in model.modules()
        ] + [
            module.register_forward_hook(self._keep_linear)
            for module in model.modules()
            if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
        ]
        AttentionInterface.register("watched", self._attend)
        AttentionMaskInterface.register("watched", AttentionMaskInterface()["eager"])
        with huggingface.attention_implementation(model, "watched"), torch.no_grad():
            huggingface.run(huggingface.trunk(model), inputs)
        for handle in handles:
            handle.remove()

    def _keep_given(self, module, given, options):
        states = [value for value in (*given, *options.values()) if isinstance(value, torch.Tensor)]
        self.given.append((module, [value for value in states if value.ndim == 3]))

    def _keep_linear(self, module, given, output):
        self.linear.append((given[0], output))

    def _attend(self, module, query, key, value, attention_mask, **options):
        output, pattern = huggingface._own_eager(module)(module, query, key, value, attention_mask, **options)
        # The states that ask come first; those that are asked only where they are others, those of an encoder.
        states = next(states for one, states in reversed(self.given) if one is module)
        self.calls.append((states[0], states[-1], query, key, value, output))
        return output, pattern

    def projected(self, output):
        """What the output projection makes of an attention call's output: the layer that was given just that."""
        flat = output.flatten(2)
        return next(
            made for given, made in self.linear if given.shape == flat.shape and torch.equal(given, flat)
        )


def between_documents(states):
    """Differences between the first tokens of documents: no bias is left in them, and no rotation by position."""
    return states[1:] - states[:1]


@pytest.mark.parametrize("name", CALLED)
def test_projections_give_what_the_model_hands_to_its_attention_and_takes_from_it(name):
    model = zoo.make(name)
    hooked = opening.open_model(model)
    view = capture.view(hooked)
    # Documents that start with different words; BART's and T5's decoders see them behind their start token.
    ids, mask = zoo.documents()
    inputs = view.inputs(ids, mask)
    if inputs.target_ids is not None:
        inputs = sites.Inputs(ids, mask, ids.clone(), mask.clone())
    watched = Watcher(model, inputs)
    assert len(watched.calls) == len(view.sites) == len(hooked.probe.sites)
    for site, (asking, asked, query, key, value, output) in zip(
        hooked.probe.sites, watched.calls, strict=True
    ):
        found = capture.head_weights(hooked, site)
        for weight, states, made in (
            (found.W_Q, asking, query),
            (found.W_K, asked, key),
            (found.W_V, asked, value),
        ):
            assert weight.shape == (zoo.HEADS, zoo.WIDTH, 8)
            assert not weight.requires_grad
            every_head = made.repeat_interleave(zoo.HEADS // made.shape[1], dim=1)[:, :, 0]
            expected = torch.einsum("bd,hde->bhe", between_documents(states[:, 0]), weight)
            torch.testing.assert_close(between_documents(every_head), expected, rtol=0, atol=2e-5)
            assert expected.abs().max() > 1e-2
        written = torch.einsum("bhe,hed->bd", between_documents(output[:, 0]), found.W_O)
        torch.testing.assert_close(
            between_documents(watched.projected(output)[:, 0]), written, rtol=0, atol=2e-5
        )


@pytest.mark.parametrize("name", sorted(zoo.BRIDGED))
def test_a_bridge_and_the_adapter_free_host_give_the_same_weights(name):
    model = zoo.make(name)
    bridge, free = (zoo.hosted(model, host) for host in ("bridge", "huggingface"))
    for one, other in zip(capture.sites(bridge), sorted_like(bridge, free), strict=True):
        assert one == other
        for weight in WEIGHTS:
            mine, theirs = (getattr(capture.head_weights(hooked, one), weight) for hooked in (bridge, free))
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    torch.testing.assert_close(
        capture.embedding_in_residual(bridge), capture.embedding_in_residual(free), rtol=0, atol=0
    )
    torch.testing.assert_close(capture.unembedding(bridge), capture.unembedding(free), rtol=0, atol=0)


def sorted_like(bridge, free):
    order = {site.hook_name: number for number, site in enumerate(capture.sites(bridge))}
    return sorted(capture.sites(free), key=lambda site: order[site.hook_name])


@pytest.mark.parametrize(
    ("name", "host"), [(n, h) for n in ("bert", "gpt2") for h in ("bridge", "huggingface")]
)
def test_scores_from_the_weights_give_the_first_pattern_where_there_are_no_biases(name, host):
    model = zoo.make(name)
    trunk = huggingface.trunk(model)
    first = trunk.encoder.layer[0].attention.self if name == "bert" else trunk.h[0].attn
    with torch.no_grad():
        for layer in (first.query, first.key) if name == "bert" else (first.c_attn,):
            layer.bias.zero_()
    hooked = zoo.hosted(model, host)
    inputs = capture.view(hooked).inputs(*zoo.documents())
    states = zoo.own_hidden_states(model, inputs)[0]
    if name == "gpt2":
        states = trunk.h[0].ln_1(states)
    found = capture.head_weights(hooked, capture.sites(hooked)[0])
    query, key = (torch.einsum("bpd,hde->bhpe", states, weight) for weight in (found.W_Q, found.W_K))
    hidden = ~zoo.visible(name, "self", 0, inputs)[:, None]
    expected = (query @ key.mT / 8**0.5).masked_fill(hidden, -torch.inf).softmax(-1)
    own = zoo.own_patterns(model, inputs)["self"][0]
    real = inputs.mask
    torch.testing.assert_close(expected.transpose(1, 2)[real], own.transpose(1, 2)[real], rtol=0, atol=1e-5)


def test_keys_and_values_that_heads_share_are_repeated_for_each():
    hooked = opening.open_model(zoo.make("llama"))
    found = capture.head_weights(hooked, capture.sites(hooked)[1])
    for weight in (found.W_K, found.W_V):
        assert torch.equal(weight[0], weight[1])
        assert torch.equal(weight[2], weight[3])
        assert not torch.equal(weight[1], weight[2])
    assert not torch.equal(found.W_Q[0], found.W_Q[1])


@pytest.mark.parametrize(
    ("model_class", "config"),
    [
        (hf.Phi3Model, lambda: hf.Phi3Config(**zoo._grouped, pad_token_id=0)),
        (hf.GPTBigCodeModel, lambda: hf.GPTBigCodeConfig(**zoo._gpt2, multi_query=True)),
        (hf.GPTBigCodeModel, lambda: hf.GPTBigCodeConfig(**zoo._gpt2, multi_query=False)),
        (
            hf.CTRLModel,
            lambda: hf.CTRLConfig(vocab_size=97, n_embd=32, n_layer=2, n_head=4, dff=37, n_positions=64),
        ),
    ],
)
def test_other_layouts_of_fused_projections_are_taken_apart(model_class, config):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = model_class(config()).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    hooked = opening.open_model(model)
    inputs = capture.view(hooked).inputs(*zoo.documents())
    for site, (asking, _, query, key, value, _) in zip(
        hooked.probe.sites, Watcher(model, inputs).calls, strict=True
    ):
        found = capture.head_weights(hooked, site)
        for weight, made in ((found.W_Q, query), (found.W_K, key), (found.W_V, value)):
            every_head = made.repeat_interleave(zoo.HEADS // made.shape[1], dim=1)[:, :, 0]
            expected = torch.einsum("bd,hde->bhe", between_documents(asking[:, 0]), weight)
            torch.testing.assert_close(between_documents(every_head), expected, rtol=0, atol=2e-5)


def test_the_toys_weights_give_its_pattern():
    from topic_probe.toy.model import ToyConfig, build_toy, toy_tensors
    from topic_probe.toy.world import World

    world = World(n_topics=4, words_per_topic=24)
    toy = build_toy(ToyConfig(world=world, d_model=16, n_heads=2), seed=3)
    view = capture.view(toy)
    (site,) = view.sites
    found = capture.head_weights(toy, site)
    tensors = toy_tensors(toy)
    assert found.W_Q.shape == (2, 16, 16)
    for weight in ("W_Q", "W_K", "W_V"):  # the paper applies its matrices from the left
        torch.testing.assert_close(getattr(found, weight), tensors[weight].mT, rtol=0, atol=0)
    torch.testing.assert_close(capture.embedding_in_residual(toy), tensors["W_E"].T, rtol=0, atol=0)
    torch.testing.assert_close(capture.unembedding(toy), tensors["W_E"], rtol=0, atol=0)


# ------------------------------------------------------------------------- into the residual stream, and out


@pytest.mark.parametrize("name", ["albert", "electra", "albert-headless", "electra-discriminator"])
def test_narrow_word_embeddings_are_widened_as_the_model_widens_them(name):
    model = zoo.make(name)
    hooked = opening.open_model(model)
    table = model.get_input_embeddings().weight
    trunk = huggingface.trunk(model)
    widen = (
        trunk.encoder.embedding_hidden_mapping_in if name.startswith("albert") else trunk.embeddings_project
    )
    assert table.shape == (zoo.VOCABULARY, 16)
    found = capture.embedding_in_residual(hooked)
    assert found.shape == (zoo.VOCABULARY, zoo.WIDTH)
    torch.testing.assert_close(found, widen(table).detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["bert", "bart", "gpt2", "llama", "t5-encoder", "modernbert", "distilbert", "mpnet"]
)
def test_word_embeddings_as_wide_as_the_model_enter_it_as_they_are(name):
    model = zoo.make(name)
    assert torch.equal(
        capture.embedding_in_residual(opening.open_model(model)), model.get_input_embeddings().weight
    )


@pytest.mark.parametrize(
    ("name", "scale"), [("gpt2", 1), ("neox", 1), ("llama", 1), ("bart", 1), ("t5", 32**-0.5)]
)
@pytest.mark.parametrize("host", ["bridge", "huggingface"])
def test_the_unembedding_makes_scores_of_the_last_state(name, scale, host):
    if host == "bridge" and name not in zoo.BRIDGED:
        pytest.skip("no bridge")
    model = zoo.make(name)
    hooked = zoo.hosted(model, host)
    inputs = capture.view(hooked).inputs(*zoo.documents())
    given = huggingface.arguments(model, inputs)
    with torch.no_grad():
        answer = model(**given, output_hidden_states=True)
    last = (answer.decoder_hidden_states if name in zoo.TWO_STACKS else answer.hidden_states)[-1]
    scores = scale * last @ capture.unembedding(hooked)
    bias = getattr(model, "final_logits_bias", 0)
    if name == "t5":  # T5 scales only where the head is the embedding
        scores = scores if model.config.tie_word_embeddings else scores / scale
    torch.testing.assert_close(scores + bias, answer.logits, rtol=0, atol=1e-3)


def test_the_unembedding_of_bert_is_the_matrix_behind_its_transformation():
    model = zoo.make("bert")
    for host in ("bridge", "huggingface"):
        assert torch.equal(
            capture.unembedding(zoo.hosted(model, host)), model.cls.predictions.decoder.weight.T
        )


@pytest.mark.parametrize("name", ["bert-headless", "t5-encoder", "electra-discriminator", "gpt2-headless"])
def test_without_a_head_over_words_there_is_no_unembedding(name):
    with pytest.raises(ValueError, match="has no head that scores the vocabulary"):
        capture.unembedding(opening.open_model(zoo.make(name)))


@pytest.mark.parametrize("name", ["albert", "electra"])
def test_a_head_behind_a_narrowing_layer_is_no_unembedding_of_the_stream(name):
    with pytest.raises(
        ValueError, match=r"reads 16 numbers behind a nonlinear layer, not the 32 of the residual"
    ):
        capture.unembedding(opening.open_model(zoo.make(name)))


# ------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("name", sorted(zoo.ONLY_RETURNED))
def test_models_that_only_return_patterns_have_no_readable_head_weights(name):
    hooked = opening.open_model(zoo.make(name))
    with pytest.raises(
        ValueError, match="hides its attention layers, so the weights of its heads cannot be read"
    ):
        capture.head_weights(hooked, capture.sites(hooked)[0])


def test_projections_that_hold_more_than_heads_are_refused():
    config = hf.Qwen3NextConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, layer_types=["linear_attention", "full_attention"], num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16,
    )  # fmt: skip
    hooked = opening.open_model(hf.Qwen3NextModel(config).eval())
    (site,) = capture.sites(hooked)
    assert site.layer == 1
    with pytest.raises(
        ValueError, match="Qwen3NextAttention has more in its query, key and value projections than"
    ):
        capture.head_weights(hooked, site)


def test_projections_of_an_unknown_name_are_refused():
    model = zoo.make("bert-headless")
    hooked = opening.open_model(model)
    module = model.encoder.layer[0].attention.self
    module.question = module._modules.pop("query")
    with pytest.raises(
        ValueError, match="query, key and value projections of BertSelfAttention are not known"
    ):
        capture.head_weights(hooked, capture.sites(hooked)[0])


def test_an_output_projection_of_an_unknown_name_is_refused():
    model = zoo.make("bert-headless")
    hooked = opening.open_model(model)
    output = model.encoder.layer[0].attention.output
    output.mix = output._modules.pop("dense")
    with pytest.raises(ValueError, match="the output projection of BertSelfAttention is not known"):
        capture.head_weights(hooked, capture.sites(hooked)[0])


def test_word_embeddings_that_are_widened_in_an_unknown_way_are_refused():
    config = hf.MobileBertConfig(**zoo._narrow, intra_bottleneck_size=16, true_hidden_size=16)
    hooked = opening.open_model(hf.MobileBertModel(config).eval())
    with pytest.raises(ValueError, match="MobileBertModel have 16 numbers and its residual stream 32"):
        capture.embedding_in_residual(hooked)
