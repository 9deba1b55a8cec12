"""What is read of a model equals what Hugging Face says of it, for every architecture, on every host."""

import copy
import gc
import weakref
from collections import Counter
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers as hf
import zoo
from torch import nn

import topic_probe as tp
from topic_probe.lens import adapters, capture, huggingface, opening, sites

CASES = [(name, "huggingface") for name in zoo.ARCHITECTURES] + [
    (name, "bridge") for name in zoo.ARCHITECTURES if name in zoo.BRIDGED
]


@cache
def opened(name, host):
    """A model, its hooked form and the view of it; nothing in this file changes them."""
    model = zoo.make(name)
    hooked = zoo.hosted(model, host)
    return SimpleNamespace(model=model, hooked=hooked, view=capture.view(hooked))


def read(view, inputs, rows, through):
    """Rows and visible keys by site; ``rows`` are those of the source side and, where there is one, of the target."""
    found = {}

    def take(number, pattern, visible):
        assert number not in found
        found[number] = pattern.clone(), visible.clone()

    view.attention_rows(inputs, {"source": rows, "target": rows}, take, through=through)
    assert sorted(found) == list(range(len(view.sites)))
    return {site: found[number] for number, site in enumerate(view.sites)}


def every_row(inputs):
    return torch.arange(inputs.ids.shape[1]).expand(len(inputs.ids), -1)


def ways(view):
    return ("hooks",) if view.tap is None else ("hooks", "rows")


# ------------------------------------------------------------------------------------------- attention


@pytest.mark.parametrize(("name", "host"), CASES)
def test_patterns_of_padded_batches_equal_hugging_faces_own_through_hooks_and_beside_the_fused_kernel(
    name, host
):
    case = opened(name, host)
    inputs = case.view.inputs(*zoo.documents())
    own = zoo.own_patterns(case.model, inputs)
    sites = {stack: [site.layer for site in case.view.sites if site.stack == stack] for stack in own}
    assert sites == {stack: list(range(len(patterns))) for stack, patterns in own.items()}
    found = {way: read(case.view, inputs, every_row(inputs), way) for way in ways(case.view)}
    for number, site in enumerate(case.view.sites):
        expected = own[site.stack][site.layer]
        real = inputs.masks(site)[0]
        assert case.view.n_heads[number] == expected.shape[1] == zoo.HEADS
        for shown in found.values():
            torch.testing.assert_close(
                shown[site][0].transpose(1, 2)[real], expected.transpose(1, 2)[real], rtol=0, atol=5e-5
            )
        if "rows" in found:
            hooks, rows = (found[way][site][0].transpose(1, 2)[real] for way in ("hooks", "rows"))
            torch.testing.assert_close(rows, hooks, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "host"), CASES)
def test_visible_keys_are_those_that_the_architecture_lets_a_query_see(name, host):
    case = opened(name, host)
    inputs = case.view.inputs(*zoo.documents())
    for way in ways(case.view):
        for site, (pattern, visible) in read(case.view, inputs, every_row(inputs), way).items():
            expected = zoo.visible(name, site.stack, site.layer, inputs)
            real = inputs.masks(site)[0]
            assert torch.equal(visible[real], expected[real])
            hidden = (~expected & real[..., None])[:, None].expand_as(pattern)
            assert not pattern[hidden].any()


@pytest.mark.parametrize("name", ["albert", "bart", "t5", "bert"])
def test_the_layers_of_the_zoo_differ_so_much_that_a_wrong_order_would_be_seen(name):
    case = opened(name, "huggingface")
    own = zoo.own_patterns(case.model, case.view.inputs(*zoo.documents()))
    for patterns in own.values():
        for one, other in pairwise(patterns):
            assert (one - other).abs().max() > 0.02


@pytest.mark.parametrize(("name", "host"), CASES)
def test_only_the_wanted_rows_come_in_the_order_asked_for_and_as_often(name, host):
    case = opened(name, host)
    inputs = case.view.inputs(*zoo.documents())
    rows = torch.tensor([[19, 0, 7, 7], [3, 2, 1, 0], [13, 5, 5, 9]])
    own = zoo.own_patterns(case.model, inputs)
    for way in ways(case.view):
        for site, (pattern, visible) in read(case.view, inputs, rows, way).items():
            allowed = zoo.visible(name, site.stack, site.layer, inputs)
            for document in range(3):
                torch.testing.assert_close(
                    pattern[document],
                    own[site.stack][site.layer][document][:, rows[document]],
                    rtol=0,
                    atol=5e-5,
                )
                assert torch.equal(visible[document], allowed[document, rows[document]])


@pytest.mark.parametrize(("name", "host"), CASES)
def test_a_padded_batch_gives_what_single_documents_give(name, host):
    case = opened(name, host)
    lengths = (20, 9, 14)
    ids, mask = zoo.documents(lengths)
    batch_inputs = case.view.inputs(ids, mask)
    batched = read(case.view, batch_inputs, every_row(batch_inputs), "auto")
    for document, length in enumerate(lengths):
        inputs = case.view.inputs(
            ids[document : document + 1, :length], mask[document : document + 1, :length]
        )
        alone = read(case.view, inputs, every_row(inputs), "auto")
        for site in case.view.sites:
            for number in range(2):
                whole = batched[site][number][document : document + 1]
                part = whole[..., :length, :length].float()
                torch.testing.assert_close(part, alone[site][number].float(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for name in ("bert", "bart-uneven", "gpt2", "modernbert")
        for dtype in (torch.float64, torch.bfloat16, torch.float16)
        # ModernBERT itself gives NaN there: its mask overflows in a softmax that is always float32.
        if (name, dtype) != ("modernbert", torch.float64)
    ],
)
def test_other_precisions_are_read_as_they_are(name, dtype):
    model = zoo.make(name).to(dtype)
    view = capture.view(opening.open_model(model))
    inputs = view.inputs(*zoo.documents())
    own = zoo.own_patterns(model, inputs)
    for way in ways(view):
        for site, (pattern, _) in read(view, inputs, every_row(inputs), way).items():
            assert pattern.dtype == dtype
            real = inputs.masks(site)[0]
            torch.testing.assert_close(
                pattern.transpose(1, 2)[real].double(),
                own[site.stack][site.layer].transpose(1, 2)[real].double(),
                rtol=0,
                atol={torch.float64: 1e-12, torch.bfloat16: 3e-2, torch.float16: 3e-3}[dtype],
            )


@pytest.mark.parametrize("name", ["modernbert", "gemma2"])
@pytest.mark.parametrize("order", [(3, 20, 12, 20), (20, 3, 20), (7, 8, 20, 5)])
def test_windows_read_through_hooks_do_not_depend_on_which_documents_came_first(name, order):
    view = capture.view(opening.open_model(zoo.make(name)))
    for seed, length in enumerate(order):
        inputs = view.inputs(*zoo.documents((length,), seed=seed))
        for site, (_, visible) in read(view, inputs, every_row(inputs), "hooks").items():
            assert torch.equal(visible, zoo.visible(name, site.stack, site.layer, inputs))


def test_a_decoder_reads_the_document_behind_its_start_token():
    model = zoo.make("bart")
    model.config.decoder_start_token_id = 9
    view = capture.view(opening.open_model(model))
    inputs = view.inputs(torch.tensor([[5, 6, 7], [8, 5, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]]).bool())
    assert inputs.target_ids.tolist() == [[9, 5, 6], [9, 8, 5]]
    assert inputs.target_mask.int().tolist() == [[1, 1, 1], [1, 1, 0]]


@pytest.mark.parametrize(
    ("config", "start"),
    [
        ({"decoder_start_token_id": 4, "bos_token_id": 3}, 4),
        ({"decoder_start_token_id": None, "bos_token_id": 3, "pad_token_id": 1}, 3),
        ({"bos_token_id": None, "pad_token_id": 1}, 1),
        ({}, 0),
    ],
)
def test_the_start_token_is_the_first_that_the_configuration_names(config, start):
    assert huggingface.decoder_start(SimpleNamespace(**config)) == start


def test_a_decoder_without_target_ids_is_an_error_that_says_so():
    view = opened("bart", "huggingface").view
    ids, mask = zoo.documents()
    with pytest.raises(ValueError, match="no target side, which a decoder needs"):
        view.attention_rows(
            sites.Inputs(ids, mask), {"source": ids, "target": ids}, lambda *_: None, through="hooks"
        )


@pytest.mark.parametrize("name", sorted(zoo.ONLY_RETURNED | {"gemma2"}))
def test_rows_beside_the_fused_kernel_are_refused_where_a_model_cannot_do_it(name):
    view = opened(name, "huggingface").view
    inputs = view.inputs(*zoo.documents())
    with pytest.raises(ValueError, match="through='rows' needs a Hugging Face model that supports sdpa"):
        read(view, inputs, every_row(inputs), "rows")


# ------------------------------------------------------------------------- layers that are not all attention


def hybrid():
    """Of four layers only the second and the last attend; the others are convolutions."""
    config = hf.Lfm2Config(
        vocab_size=zoo.VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, layer_types=["conv", "full_attention"] * 2,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return hf.Lfm2Model(config).eval()


def test_layers_keep_their_numbers_where_only_some_attend():
    model = hybrid()
    view = capture.view(opening.open_model(model))
    assert [(site.stack, site.layer) for site in view.sites] == [("self", 1), ("self", 3)]
    inputs = view.inputs(*zoo.documents())
    own = zoo.own_patterns(model, inputs)["self"]
    for way in ways(view):
        found = read(view, inputs, every_row(inputs), way)
        for site, expected in zip(view.sites, own, strict=True):
            torch.testing.assert_close(found[site][0][0], expected[0], rtol=0, atol=5e-5)


def bigbird():
    """Its encoder computes attention by itself, its decoder through the interface: half of it bypasses the calls."""
    config = hf.BigBirdPegasusConfig(
        vocab_size=zoo.VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=37, decoder_ffn_dim=37, attention_type="original_full",
        max_position_embeddings=64,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return hf.BigBirdPegasusModel(config).eval()


def test_attention_that_bypasses_the_interface_in_half_of_a_model_is_not_lost():
    model = bigbird()
    hooked = opening.open_model(model)
    assert hooked.probe.through == "returned"
    view = capture.view(hooked)
    inputs = view.inputs(*zoo.documents())
    own = zoo.own_patterns(model, inputs)
    found = read(view, inputs, every_row(inputs), "auto")
    assert [(site.stack, site.layer) for site in view.sites] == [
        (stack, layer) for stack in ("encoder", "decoder", "cross") for layer in range(2)
    ]
    for site in view.sites:
        real = inputs.masks(site)[0]
        torch.testing.assert_close(
            found[site][0].transpose(1, 2)[real], own[site.stack][site.layer].transpose(1, 2)[real]
        )


def test_a_layer_that_calls_attention_twice_is_one_layer():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = hf.DiffLlamaModel(hf.DiffLlamaConfig(**zoo._grouped)).eval()
    view = capture.view(opening.open_model(model))
    inputs = view.inputs(*zoo.documents())
    own = zoo.own_patterns(model, inputs)["self"]
    assert [site.layer for site in view.sites] == [0, 1, 2]
    for site, (pattern, _) in read(view, inputs, every_row(inputs), "auto").items():
        torch.testing.assert_close(pattern[0], own[site.layer][0])


def test_attention_in_blocks_is_left_out_with_a_warning_and_the_rest_is_read():
    config = hf.LongT5Config(
        vocab_size=zoo.VOCABULARY, d_model=32, d_kv=8, num_layers=2, num_heads=4, d_ff=37, decoder_start_token_id=0
    )  # fmt: skip
    model = hf.LongT5Model(config).eval()
    with pytest.warns(UserWarning, match="LongT5Model has attention that is not one pattern over all pairs"):
        view = capture.view(opening.open_model(model))
    assert {site.stack for site in view.sites} == {"decoder", "cross"}


def test_a_decoder_that_is_causal_only_without_a_cache_is_run_without():
    config = hf.FSMTConfig(
        langs=["en", "de"], src_vocab_size=97, tgt_vocab_size=97, d_model=32, encoder_layers=1, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=37, decoder_ffn_dim=37,
        max_position_embeddings=64,
    )  # fmt: skip
    view = capture.view(opening.open_model(hf.FSMTModel(config).eval()))
    inputs = view.inputs(*zoo.documents())
    for site, (pattern, visible) in read(view, inputs, every_row(inputs), "auto").items():
        if site.stack == "decoder":
            assert not pattern.triu(1).any()
            assert torch.equal(visible[0], torch.ones(20, 20).tril().bool())


# ------------------------------------------------------------------------------ embeddings and hidden states


@pytest.mark.parametrize(("name", "host"), CASES)
def test_word_embeddings_are_the_models_own_table(name, host):
    case = opened(name, host)
    table = capture.word_embeddings(case.hooked)
    own = case.model.get_input_embeddings().weight
    assert torch.equal(table, own)
    assert table.data_ptr() == own.data_ptr()
    assert not table.requires_grad
    assert capture.facts(case.hooked).vocabulary_size == zoo.VOCABULARY
    torch.testing.assert_close(case.hooked.W_E, own, rtol=0, atol=0)


@pytest.mark.parametrize(("name", "host"), CASES)
def test_hidden_states_equal_hugging_faces_own(name, host):
    case = opened(name, host)
    inputs = case.view.inputs(*zoo.documents())
    own = zoo.own_hidden_states(case.model, inputs)
    found = {}
    capture.hidden_states(case.hooked, inputs, lambda layer, state: found.__setitem__(layer, state))
    assert sorted(found) == list(range(len(own)))
    for layer, expected in enumerate(own):
        torch.testing.assert_close(found[layer][inputs.mask], expected[inputs.mask], rtol=0, atol=5e-5)
        assert not found[layer].requires_grad


# ------------------------------------------------------------------------------------------ what else is asked


# The position tables of these have a last row; a longer document is an error in them, and only there.
LEARNED = (
    "bert", "roberta", "bart", "albert", "electra", "distilbert", "gpt2", "mpnet", "deberta", "xlmr",
)  # fmt: skip


@pytest.mark.parametrize("name", LEARNED)
def test_the_context_length_is_the_longest_document_that_a_model_takes(name):
    if name == "distilbert":
        model = hf.DistilBertModel(hf.DistilBertConfig(**zoo._distilbert, max_position_embeddings=64)).eval()
        hooked = opening.open_model(model)
    else:
        hooked = opened(name, "huggingface").hooked
    limit = capture.facts(hooked).context_length
    ids = torch.full((1, limit + 1), 7)
    hooked(ids[:, :limit], torch.ones_like(ids[:, :limit]))
    with pytest.raises((IndexError, RuntimeError)):
        hooked(ids, torch.ones_like(ids))


@pytest.mark.parametrize(
    ("name", "limit"), [("t5", None), ("t5-encoder", None), ("llama", 64), ("modernbert", 64)]
)
def test_the_context_length_of_relative_positions_is_what_the_configuration_says_or_none(name, limit):
    assert capture.facts(opened(name, "huggingface").hooked).context_length == limit


def test_special_and_padding_ids_come_from_the_configuration_where_there_is_no_tokenizer():
    hooked = opening.open_model(zoo.make("modernbert"))
    assert capture.facts(hooked).special_ids == {0, 1, 2}
    assert capture.facts(hooked).pad_id == 0
    model = zoo.make("llama")
    model.config.eos_token_id = [2, 7]
    assert {2, 7} <= capture.facts(opening.open_model(model)).special_ids
    assert capture.facts(opening.open_model(model)).pad_id is None


def test_special_and_padding_ids_come_from_the_tokenizer_first():
    tokenizer = SimpleNamespace(all_special_ids=[3, None, 4], pad_token_id=3)
    hooked = opening.open_model(zoo.make("bert-headless"))
    hooked.tokenizer = tokenizer
    assert capture.facts(hooked).special_ids == {3, 4}
    assert capture.facts(hooked).pad_id == 3


def test_a_model_describes_itself():
    described = capture.facts(opened("bert-headless", "huggingface").hooked).description
    parameters = sum(p.numel() for p in zoo.make("bert-headless").parameters())
    assert described == {
        "host": "HuggingFaceHost(BertModel)", "name": None, "revision": None, "dtype": "float32", "device": "cpu",
        "parameters": parameters,
    }  # fmt: skip


def blocks(vocabulary_size, **options):
    return tp.Topics.from_token_ids({"a": [5, 6], "b": [7]}, vocabulary_size=vocabulary_size, **options)


def test_topics_over_another_vocabulary_are_refused():
    hooked = opened("bert-headless", "huggingface").hooked
    capture.facts(hooked, blocks(zoo.VOCABULARY))
    with pytest.raises(ValueError, match="the topics are over a vocabulary of 90 ids, the model's has 97"):
        capture.facts(hooked, blocks(90))


def test_something_that_is_not_a_hooked_model_has_no_view():
    with pytest.raises(TypeError, match="needed a hooked model, not BertModel: pass it through open_model"):
        capture.view(zoo.make("bert-headless"))


# -------------------------------------------------------------- models of TransformerLens's own layers


def states_of(hooked, inputs):
    found = {}
    capture.hidden_states(hooked, inputs, lambda layer, state: found.__setitem__(layer, state))
    return [found[layer] for layer in range(len(found))]


def own_layers(name):
    from topic_probe.toy.model import ToyConfig, build_toy
    from topic_probe.toy.world import World

    if name == "toy":
        world = World(n_topics=4, words_per_topic=24)
        return build_toy(ToyConfig(world=world, d_model=16, n_layers=2, residual=True), seed=3)
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    import_module("transformer_lens.model_bridge.sources.native")  # it is what brings boot_native on 3.9
    config = TransformerBridgeConfig(
        n_layers=2, n_heads=4, d_model=32, d_head=8, d_vocab=zoo.VOCABULARY, n_ctx=64, act_fn="gelu", d_mlp=37,
        normalization_type="LN", seed=5,
    )  # fmt: skip
    return TransformerBridge.boot_native(config)


@pytest.mark.parametrize("name", ["toy", "native"])
def test_states_of_own_layers_run_from_what_enters_the_first_block_to_what_is_unembedded(name):
    model = own_layers(name).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    inputs = capture.view(model).inputs(*zoo.documents())
    states = states_of(model, inputs)
    assert len(states) == 3
    if name == "toy":
        torch.testing.assert_close(states[0], capture.word_embeddings(model)[inputs.ids])
    with torch.no_grad():
        logits = model(inputs.ids, attention_mask=inputs.mask.long(), return_type="logits")
        scores = states[-1] @ model.W_U + model.b_U
    torch.testing.assert_close(scores[inputs.mask], logits[inputs.mask], rtol=0, atol=1e-4)
    seen = []
    hook = ("blocks.0.hook_resid_post", lambda state, hook: seen.append(state.clone()))
    with torch.no_grad():
        model.run_with_hooks(
            inputs.ids, attention_mask=inputs.mask.long(), fwd_hooks=[hook], return_type=None
        )
    torch.testing.assert_close(states[1], seen[0])


if zoo.GENERATION == 3:  # there is no HookedTransformer and no HookedEncoder on 4

    def converted(name):
        """The same model twice: as Hugging Face has it, and in TransformerLens's own classes, by its own conversion."""
        import transformer_lens
        from transformer_lens.pretrained import weight_conversions

        options = {
            "n_layers": 3, "n_heads": 4, "d_model": 32, "d_head": 8, "d_vocab": zoo.VOCABULARY, "n_ctx": 64,
            "device": "cpu", "normalization_type": "LN", "init_weights": False,
        }  # fmt: skip
        if name == "HookedEncoder":
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.manual_seed(0)
                model = hf.BertForPreTraining(hf.BertConfig(**zoo._encoder)).eval()
                for parameter in model.parameters():
                    parameter.add_(0.15 * torch.randn_like(parameter))
            options |= {"d_mlp": 37, "act_fn": "gelu", "eps": 1e-12, "attention_dir": "bidirectional"}
            convert = weight_conversions.convert_bert_weights
        else:
            model, convert = zoo.make("gpt2"), weight_conversions.convert_gpt2_weights
            options |= {"d_mlp": 128, "act_fn": "gelu_new", "eps": 1e-5}
        config = transformer_lens.HookedTransformerConfig(**options)
        with pytest.warns(DeprecationWarning, match=r"removed in 4\.0"):
            hooked = getattr(transformer_lens, name)(config, move_to_device=False)
        unknown = hooked.load_state_dict(convert(model, config), strict=False)
        assert not unknown.unexpected_keys
        assert not [key for key in unknown.missing_keys if not key.endswith(("mask", "IGNORE", "b_U"))]
        return model, hooked

    @pytest.mark.parametrize("name", ["HookedTransformer", "HookedEncoder"])
    def test_the_classes_of_transformerlens_3_read_as_the_hugging_face_model_they_were_made_of(name):
        model, hooked = converted(name)
        assert opening.open_model(hooked) is hooked
        view = capture.view(hooked)
        assert view.sharing.lengths
        assert view.tap is None
        inputs = view.inputs(*zoo.documents())
        real = inputs.mask
        own = zoo.own_patterns(model, inputs)["self"]
        for site, (pattern, visible) in read(view, inputs, every_row(inputs), "auto").items():
            torch.testing.assert_close(
                pattern.transpose(1, 2)[real], own[site.layer].transpose(1, 2)[real], rtol=0, atol=5e-5
            )
            kind = "gpt2" if name == "HookedTransformer" else "bert"
            assert torch.equal(visible[real], zoo.visible(kind, "self", site.layer, inputs)[real])
        for state, expected in zip(
            states_of(hooked, inputs), zoo.own_hidden_states(model, inputs), strict=True
        ):
            torch.testing.assert_close(state[real], expected[real], rtol=0, atol=5e-5)
        assert torch.equal(capture.word_embeddings(hooked), model.get_input_embeddings().weight)
        assert capture.facts(hooked).context_length == 64

        free = opening.open_model(model)
        for one, other in zip(view.sites, capture.sites(free), strict=True):
            mine, theirs = capture.head_weights(hooked, one), capture.head_weights(free, other)
            for weight in ("W_Q", "W_K", "W_V", "W_O"):
                torch.testing.assert_close(getattr(mine, weight), getattr(theirs, weight), rtol=0, atol=0)
        torch.testing.assert_close(capture.unembedding(hooked), capture.unembedding(free), rtol=0, atol=0)


# ---------------------------------------------------------------------------------------------- when a model is tried


OURS = {
    "calls": lambda: opening.open_model(zoo.make("albert")),
    "returned": lambda: opening.open_model(zoo.make("mpnet")),
    "two stacks": lambda: opening.open_model(zoo.make("bart")),
}
GIVEN = {
    "bridge": lambda: zoo.bridge(zoo.make("bert")),
    "bridge that attends itself": lambda: zoo.bridge(zoo.make("gpt2")),
    "native": lambda: own_layers("native"),
    "toy": lambda: own_layers("toy"),
}


@contextmanager
def passes():
    """How often each embedding layer of any model was run, in any way: nothing is put on a model."""
    runs = Counter()

    def count(module, _given, _output):
        runs[id(module)] += isinstance(module, nn.Embedding) or type(module).__name__ == "Embed"

    handle = nn.modules.module.register_module_forward_hook(count)
    try:
        yield runs
    finally:
        handle.remove()


def is_tried(model):
    """Whether a view of a model takes a forward pass."""
    with passes() as runs:
        capture.view(model)
    return runs.total() > 0


@pytest.mark.parametrize("name", OURS)
def test_opening_a_model_is_its_trial_and_it_is_measured_with_no_pass_but_those_of_its_documents(name):
    model = OURS[name]()
    assert not is_tried(model)
    topics = tp.Topics.from_token_ids({"a": range(5, 40), "b": range(40, 80)}, vocabulary_size=zoo.VOCABULARY)
    options = {"n_permutations": 0, "n_resamples": 0, "batch_size": 2}
    ids, _ = zoo.documents((20, 20, 20))
    with passes() as runs:
        tp.measure_attention(model, topics, ids.tolist(), **options)
    assert set(runs.values()) - {0} == {2} or name == "two stacks"
    with passes() as again:
        tp.measure_attention(model, topics, ids.tolist(), **options)
    assert again == runs


@pytest.mark.parametrize("name", GIVEN)
def test_a_hooked_model_that_is_given_is_tried_whenever_it_is_measured(name):
    model = GIVEN[name]()
    for _ in range(2):
        assert is_tried(model)


@pytest.mark.parametrize("name", ["albert", "bart-uneven", "gpt2", "mpnet", "modernbert"])
def test_the_trial_at_opening_finds_what_a_trial_through_the_hook_points_finds(name):
    hooked = opening.open_model(zoo.make(name))
    at_opening = capture.view(hooked)
    hooked.original_model.config.note = "a setting that changed, so that the model is tried again"
    assert is_tried(hooked)
    later = capture.view(hooked)
    assert (later.sites, later.n_heads, later.causal, later.sharing) == (
        at_opening.sites, at_opening.n_heads, at_opening.causal, at_opening.sharing,
    )  # fmt: skip
    assert (later.tap is None) == (at_opening.tap is None)


class LowRank(nn.Module):
    """A linear layer with an adapter beside it that can be switched off, as PEFT puts into models."""

    def __init__(self, base):
        super().__init__()
        self.base, self.extra = base, nn.Linear(base.in_features, base.out_features)
        self._disable_adapters, self._active_adapter = False, ["default"]

    def forward(self, states):
        return self.base(states) if self._disable_adapters else self.base(states) + self.extra(states)


def attention_layer(model):
    return next(
        module for module in model.original_model.modules() if type(module).__name__ == "BertAttention"
    )


def with_low_rank(model):
    layer = model.original_model.encoder.layer[0].attention.self
    layer.query = LowRank(layer.query)


def with_adapter_switched_off(model):
    with_low_rank(model)
    capture.view(model)
    model.original_model.encoder.layer[0].attention.self.query._disable_adapters = True


def other_forward(model):
    layer = attention_layer(model)
    true = layer.forward
    layer.forward = lambda *given, **options: true(*given, **options)


def other_module(model):
    layers = model.original_model.encoder.layer
    layers[1].intermediate = copy.deepcopy(layers[1].intermediate)


def other_weights(model):
    with torch.no_grad():
        model.W_E.mul_(3)


def documents_read_each_other(model):
    model.original_model.embeddings.register_forward_hook(
        lambda _module, _given, states: states + states.mean(0, keepdim=True)
    )


CHANGES = {
    "weights": other_weights,
    "a hook on a hook point": lambda m: m.hook_dict["blocks.1.attn.hook_pattern"].add_hook(
        lambda pattern, hook: None
    ),
    "a hook on a module": lambda m: attention_layer(m).register_forward_hook(lambda *_: None),
    "a hook before a module": lambda m: attention_layer(m).register_forward_pre_hook(lambda *_: None),
    "a hook by which documents read each other": documents_read_each_other,
    "a forward function": other_forward,
    "a module": other_module,
    "an adapter": with_low_rank,
    "an adapter that is switched off": with_adapter_switched_off,
    "attention": lambda m: m.original_model.set_attn_implementation("eager"),
    "layers": lambda m: setattr(m.original_model.config, "is_decoder", True),
    "dtype": lambda m: m.double(),
    "words": lambda m: m.original_model.resize_token_embeddings(zoo.VOCABULARY + 8),
    "mode": lambda m: m.train(),
    "mode of one module": lambda m: attention_layer(m).train(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_changes_after_it_was_opened_is_read_as_it_is_then(change):
    model = opening.open_model(zoo.make("bert-headless"))
    capture.view(model)
    CHANGES[change](model)
    later, fresh = capture.view(model), capture.view(opening.open_model(model.original_model))
    assert (later.sites, later.n_heads, later.causal) == (fresh.sites, fresh.n_heads, fresh.causal)
    assert (later.sharing.lengths, later.sharing.batches) == (fresh.sharing.lengths, fresh.sharing.batches)
    inputs = fresh.inputs(*zoo.documents())
    found, expected = (read(view, inputs, every_row(inputs), "auto") for view in (later, fresh))
    for site in fresh.sites:
        torch.testing.assert_close(found[site][0], expected[site][0], rtol=0, atol=1e-6)
        assert torch.equal(found[site][1], expected[site][1])


def test_what_of_these_changes_is_seen_would_be_read_wrongly():
    models = {change: opening.open_model(zoo.make("bert-headless")) for change in (None, *CHANGES)}
    for change in CHANGES:
        CHANGES[change](models[change])
    views = {change: capture.view(model) for change, model in models.items()}
    assert {c for c in CHANGES if views[c].causal != views[None].causal} == {"layers"}
    assert {c for c in CHANGES if not views[c].sharing.batches} == {
        "a hook by which documents read each other"
    }


def test_a_changed_attention_implementation_of_one_stack_makes_a_new_trial():
    model = opening.open_model(zoo.make("bart"))
    assert not is_tried(model)
    decoder = model.original_model.model.decoder
    shared, own = decoder.config, copy.deepcopy(decoder.config)
    for module in decoder.modules():
        if vars(module).get("config") is shared:
            module.config = own
    own._attn_implementation_internal = "eager"
    assert is_tried(model)


@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_hook_in_the_place_of_another_makes_a_new_trial(kind):
    given = zoo.make("bert-headless")
    register = getattr(given.encoder.layer[0], kind)
    earlier = register(lambda *_: None)
    model = opening.open_model(given)
    assert not is_tried(model)
    earlier.remove()
    register(lambda *_: None)
    assert is_tried(model)


def test_a_model_without_numbers_is_not_measured():
    model = opening.open_model(zoo.make("bert-headless"))
    topics = tp.Topics.from_token_ids({"a": [5], "b": [6]}, vocabulary_size=zoo.VOCABULARY)
    with pytest.raises(ValueError, match="weights of HuggingFaceHost are on the meta device"):
        tp.measure_attention(model.to("meta"), topics, [[5, 6]])


@pytest.mark.parametrize("cfg", [None, {"layers": 2}])
def test_a_module_whose_settings_are_no_object_is_no_hindrance(cfg):
    model = opening.open_model(zoo.make("bert-headless"))
    attention_layer(model).cfg = cfg
    assert capture.view(model).sites


def test_a_trial_that_failed_is_made_again():
    model = opening.open_model(zoo.make("bert-headless"))
    layer = attention_layer(model)
    true = layer.forward

    def broken(*_, **__):
        raise RuntimeError("no such kernel")

    layer.forward = broken
    layer.register_forward_hook(lambda *_: None)
    for _ in range(2):
        with pytest.raises(ValueError, match="no such kernel"):
            capture.view(model)
    layer.forward = true
    capture.view(model)


@pytest.mark.parametrize("name", OURS | GIVEN)
def test_a_trial_keeps_no_model_alive_and_writes_nothing_on_one(name):
    model = (OURS | GIVEN)[name]()
    capture.view(model)  # TransformerLens itself puts something on a model in its first forward pass
    before = set(model.state_dict()), set(vars(model))
    capture.view(model)
    assert (set(model.state_dict()), set(vars(model))) == before
    inside = adapters.adapter(model).inside
    for module in (model if inside is None else inside).modules():
        module.whole = (model,)  # a part that leads back to the whole
    capture.view(model)
    layers = [weakref.ref(module) for module in (model if inside is None else inside).modules()]
    del model, inside, module
    gc.collect()
    assert [layer for layer in layers if layer() is not None] == []


# ---------------------------------------------------------------------------------------------------- bridges


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox"])
def test_a_bridge_that_attends_itself_is_read_at_its_hook_points(name):
    source = zoo.make(name)
    ids, mask = zoo.documents()
    own = zoo.own_patterns(source, sites.Inputs(ids, mask))["self"]
    view = capture.view(zoo.bridge(source))
    inputs = view.inputs(ids, mask)
    assert not view.reads_rows("auto")
    found = read(view, inputs, every_row(inputs), "auto")
    for site, pattern in zip(view.sites, own, strict=True):
        for document, length in enumerate(mask.sum(1).tolist()):
            torch.testing.assert_close(
                found[site][0][document, :, :length], pattern[document, :, :length], rtol=0, atol=1e-6
            )


@pytest.mark.parametrize("make", [opening.open_model, zoo.bridge])
def test_weights_that_change_after_a_trial_change_what_is_read_beside_the_kernel(make):
    model = make(zoo.make("bert"))
    view = capture.view(model)
    ids, mask = zoo.documents()
    inputs = view.inputs(ids, mask)
    before = read(view, inputs, every_row(inputs), "auto")
    with torch.no_grad():
        model.original_model.get_input_embeddings().weight.mul_(3)
    for changed in (view, capture.view(model)):
        assert changed.reads_rows("auto")
        fused, hooked = (read(changed, inputs, every_row(inputs), way) for way in ("auto", "hooks"))
        for site in view.sites:
            torch.testing.assert_close(fused[site][0], hooked[site][0], rtol=0, atol=1e-6)
        assert not torch.allclose(fused[view.sites[-1]][0], before[view.sites[-1]][0], atol=1e-3)


@pytest.mark.filterwarnings("ignore:.*does not support fold_ln")  # post-norm models, BERT among them, say so
def test_what_is_put_on_a_bridge_is_not_lost_beside_the_kernel():
    """A hook point, PyTorch's own hook on a layer of the bridge, and weights that TransformerLens has processed."""
    model = zoo.bridge(zoo.make("bert"))
    view = capture.view(model)
    assert view.reads_rows("auto")
    assert not view.reads_rows("hooks")
    topics = tp.Topics.from_token_ids({"a": range(5, 40), "b": range(40, 80)}, vocabulary_size=zoo.VOCABULARY)
    options = {"special_ids": (), "n_permutations": 0}
    report = tp.measure_attention(model, topics, [[5, 6, 41, 42]], **options)
    assert report.provenance["read"] == "rows beside the fused kernel"
    with model.hooks(fwd_hooks=[("blocks.0.hook_resid_pre", lambda value, hook: 2 * value)]):
        assert not view.reads_rows("auto")
        hooked = tp.measure_attention(model, topics, [[5, 6, 41, 42]], **options)
    assert hooked.provenance["read"] == "whole patterns at hook points"
    assert not np.allclose(hooked.heads.same_topic, report.heads.same_topic)
    ids, mask = zoo.documents()
    inputs = view.inputs(ids, mask)
    handle = model.blocks[0].ln1.register_forward_hook(lambda _module, _given, output: 2 * output)
    for changed in ("a hook", "weights"):
        if changed == "weights":
            handle.remove()
            model.enable_compatibility_mode()
        known = capture.view(model)
        found, expected = (read(known, inputs, every_row(inputs), way) for way in ("auto", "hooks"))
        for site in known.sites:
            torch.testing.assert_close(found[site][0], expected[site][0], rtol=0, atol=1e-5)


@pytest.mark.skipif(zoo.GENERATION < 4, reason="TransformerLens 3 puts none there")
def test_hooks_that_transformerlens_has_put_there_itself_do_not_keep_a_bridge_from_the_fused_kernel():
    bridge = zoo.bridge(zoo.make("bert"))
    view = capture.view(bridge)
    assert any(point.fwd_hooks for point in bridge.hook_dict.values())
    assert view.reads_rows("auto")
    for point in ("blocks.1.mlp.hook_out", "blocks.1.mlp.out.hook_out", "blocks.0.attn.hook_pattern"):
        with bridge.hooks(fwd_hooks=[(point, lambda tensor, hook: tensor)]):
            assert not view.reads_rows("auto")
    bridge.blocks[0].mlp.out.hook_out.register_forward_hook(lambda *_: None)
    assert not view.reads_rows("auto")
