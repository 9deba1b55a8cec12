"""Where TransformerLens or Hugging Face would give wrong numbers without a word: each is made to happen, then stopped.

Every test builds the failing situation for real, shows that it fails on the generation where it does (and that it is
healthy on the other), and then that this package refuses it or reads the true numbers all the same.
"""

import copy
import re
import warnings
from contextlib import contextmanager

import pytest
import torch
import zoo

import topic_probe as tp
from topic_probe.lens import capture, huggingface, opening, sites
from topic_probe.lens.sites import Site
from topic_probe.text.batches import token_batches

IDS, MASK = zoo.documents()
SDPA_IS_SILENT = {3: ("bert", "bart"), 4: ("bert", "roberta", "bart", "t5")}[zoo.GENERATION]


def raw_bridge(name, *, eager=False):
    """A bridge that a user builds with TransformerLens alone, and the model that went into it."""
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    model, inside = zoo.make(name), zoo.make(name)
    if eager:
        inside.set_attn_implementation("eager")
    bridge = build_bridge_from_module(inside, type(inside).__name__, hf_config=inside.config, model_name=name)
    return model, bridge


def arguments(name, *, mask=True):
    given = {"attention_mask": MASK.long()} if mask else {}
    return given | ({"decoder_input_ids": IDS} if name in zoo.TWO_STACKS else {})


def seen_by_hand(bridge, name, **options):
    """What a user's own hooks on the patterns see."""
    seen = {}
    hooks = [
        (site.hook_name, lambda pattern, hook: seen.__setitem__(hook.name, pattern.detach().clone()))
        for site in capture.sites(bridge)
    ]
    with torch.no_grad():
        bridge.run_with_hooks(IDS, fwd_hooks=hooks, **arguments(name, **options))
    return seen


def read(view, through="auto", inputs=None):
    inputs = view.inputs(IDS, MASK) if inputs is None else inputs
    rows = torch.arange(inputs.ids.shape[1]).expand(len(inputs.ids), -1)
    found = {}

    def take(number, pattern, visible):
        found[view.sites[number]] = pattern.clone(), visible.clone()

    view.attention_rows(inputs, {"source": rows, "target": rows}, take, through=through)
    return found


def assert_true_patterns(view, model):
    inputs = view.inputs(IDS, MASK)
    own = zoo.own_patterns(model, inputs)
    found = read(view)
    assert len(found) == sum(map(len, own.values()))
    for site, (pattern, _) in found.items():
        real = inputs.masks(site)[0]
        torch.testing.assert_close(
            pattern.transpose(1, 2)[real],
            own[site.stack][site.layer].transpose(1, 2)[real],
            rtol=0,
            atol=5e-5,
        )


# 1. Patterns are never shown by a model on fused attention.


@pytest.mark.parametrize("name", SDPA_IS_SILENT)
def test_patterns_that_a_bridge_over_fused_attention_never_shows_are_read_all_the_same(name):
    model, bridge = raw_bridge(name)
    assert bridge.original_model.config._attn_implementation == "sdpa"
    assert seen_by_hand(bridge, name) == {}
    assert_true_patterns(capture.view(bridge), model)
    assert bridge.original_model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("name", ["gpt2", "neox", "llama"])
def test_bridges_that_compute_attention_themselves_show_it_on_fused_attention_too(name):
    model, bridge = raw_bridge(name)
    assert len(seen_by_hand(bridge, name)) == 3
    assert_true_patterns(capture.view(bridge), model)


def test_a_site_that_stays_silent_is_an_error():
    _, bridge = raw_bridge("bert", eager=True)
    view = capture.view(bridge)
    bridge.blocks[1].attn.forward = lambda hidden, *_, **__: (hidden, None)
    with pytest.raises(
        ValueError, match=r"no attention pattern was seen at blocks\.1\.attn\.hook_pattern\. The host"
    ):
        read(view, "hooks")
    with pytest.raises(ValueError, match="no attention pattern was seen"):
        capture.view(bridge)


# 2. The padding mask is ignored by a bidirectional HookedTransformer; native bridges honour it.


def bidirectional():
    options = {
        "n_layers": 2, "n_heads": 4, "d_model": 32, "d_head": 8, "d_vocab": zoo.VOCABULARY, "n_ctx": 64,
        "act_fn": "gelu", "d_mlp": 37, "normalization_type": "LN", "attention_dir": "bidirectional", "seed": 3,
    }  # fmt: skip
    if zoo.GENERATION == 3:
        from transformer_lens import HookedTransformer, HookedTransformerConfig

        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore", DeprecationWarning)
            model = HookedTransformer(HookedTransformerConfig(**options, device="cpu"), move_to_device=False)
    else:
        from transformer_lens.config import TransformerBridgeConfig
        from transformer_lens.model_bridge.sources.native import boot

        model = boot(TransformerBridgeConfig(**options))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def test_a_host_that_attends_to_padding_never_gets_a_padded_batch():
    model = bidirectional()
    view = capture.view(model)
    assert view.sharing.lengths == (zoo.GENERATION == 4)
    topics = tp.Topics.from_token_ids({"a": range(5, 40), "b": range(40, 80)}, vocabulary_size=zoo.VOCABULARY)
    documents = [row[kept].tolist() for row, kept in zip(IDS, MASK, strict=True)]
    options = {"n_permutations": 0, "n_resamples": 0}
    together = tp.measure_attention(model, topics, documents, batch_size=3, **options)
    alone = tp.measure_attention(model, topics, documents, batch_size=1, **options)
    for name in ("same_word", "same_topic", "different_topic"):
        one, other = (torch.tensor(getattr(report.heads, name)) for report in (together, alone))
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    padded = read(view)
    mass = max(float(pattern[1, :, :9, 9:].sum(-1).max()) for pattern, _ in padded.values())
    assert (mass > 0.1) == (zoo.GENERATION == 3)


# 3 and 4. Padding is attended to where texts, or ids without a mask, go into a bridge.


@pytest.mark.parametrize("name", ["bert", "bart"])
def test_a_mask_always_goes_along_because_a_bridge_without_one_attends_to_padding(name):
    _, bridge = raw_bridge(name, eager=True)
    first = next(iter(seen_by_hand(bridge, name, mask=False).values()))
    assert first[1, :, :9, 9:].sum(-1).max() > 0.1
    for site, (pattern, visible) in read(capture.view(bridge)).items():
        if site.stack != "cross":
            assert not pattern[1, :, :9, 9:].any()
            assert not visible[1, :9, 9:].any()


def test_the_adapter_free_host_and_documents_demand_a_mask_where_one_is_needed():
    hooked = opening.open_model(zoo.make("albert"))
    with pytest.raises(TypeError, match="attention_mask"):
        hooked(IDS)
    with pytest.raises(
        ValueError, match="came without a mask and has rows that begin or end with the padding id 0"
    ):
        list(token_batches(IDS, pad_id=0))


def test_texts_never_reach_a_host():
    topics = tp.Topics.from_token_ids({"a": [5, 6], "b": [7]}, vocabulary_size=zoo.VOCABULARY)
    hooked = opening.open_model(zoo.make("bert"))
    with pytest.raises(TypeError, match=r"encode texts first with topic_probe\.encode_texts"):
        tp.measure_attention(hooked, topics, ["a frog", "and a much longer toad"])


# 5. Edits of patterns are discarded by some hosts.


@contextmanager
def warnings_of_transformerlens():
    """On 4.3 a bridge that discards an edit warns; on 3.9 it says nothing."""
    if zoo.GENERATION == 4:
        with pytest.warns(UserWarning, match="edit is discarded"):
            yield
    else:
        yield


def swap(pattern, hook):
    return pattern.flip(1)


def test_edits_of_patterns_are_lost_in_a_bridge_over_bert_and_take_effect_in_the_adapter_free_host():
    model, bridge = raw_bridge("bert", eager=True)
    plain = model(IDS, attention_mask=MASK.long()).logits
    hook = ("blocks.0.attn.hook_pattern", swap)
    with warnings_of_transformerlens():
        discarded = bridge.run_with_hooks(IDS, attention_mask=MASK.long(), fwd_hooks=[hook])
    torch.testing.assert_close(getattr(discarded, "logits", discarded), plain, rtol=0, atol=1e-5)
    hooked = opening.open_model(model)
    edited = hooked.run_with_hooks(IDS, MASK, fwd_hooks=[hook]).logits
    assert (edited - plain).abs().max() > 0.05


@pytest.mark.parametrize("name", ["bert", "albert", "llama", "t5-encoder", "modernbert"])
def test_an_edit_of_the_first_pattern_is_read_and_changes_the_next_one(name):
    hooked = opening.open_model(zoo.make(name))
    view = capture.view(hooked)
    first, second = list(read(view).values())[:2]
    hooked.hook_dict[view.sites[0].hook_name].add_hook(swap)
    edited, changed = list(read(view).values())[:2]
    torch.testing.assert_close(edited[0][0], first[0][0].flip(0), rtol=0, atol=1e-5)
    assert (changed[0] - second[0])[0].abs().max() > 1e-3
    assert view.tap is not None
    with_edit_in_place = opening.open_model(zoo.make(name))

    def in_place(pattern, hook):
        pattern.copy_(pattern.flip(1))

    with_edit_in_place.hook_dict[view.sites[0].hook_name].add_hook(in_place)
    again = list(read(capture.view(with_edit_in_place)).values())[1]
    torch.testing.assert_close(again[0][0], changed[0][0], rtol=0, atol=1e-5)


def test_an_edited_pattern_gives_what_the_edited_model_gives():
    """A pattern that attends to nothing but itself leaves of attention only the values of each position."""
    model = zoo.make("bert-headless")
    hooked = opening.open_model(model)

    def itself(pattern, hook):
        return torch.eye(pattern.shape[-1]).expand_as(pattern)

    hooks = [(site.hook_name, itself) for site in capture.sites(hooked)]
    edited = hooked.run_with_hooks(IDS[:1], MASK[:1], fwd_hooks=hooks).last_hidden_state
    # Alone in a document, a token attends to itself only; its position is set by hand.
    for position in (0, 7, 19):
        alone = model(
            IDS[:1, position : position + 1], position_ids=torch.tensor([[position]])
        ).last_hidden_state
        torch.testing.assert_close(edited[:, position : position + 1], alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", sorted(zoo.ONLY_RETURNED))
def test_edits_are_refused_where_a_model_only_returns_its_patterns(name):
    hooked = opening.open_model(zoo.make(name))
    for edit in (swap, lambda pattern, hook: pattern.mul_(0.5)):
        with pytest.raises(
            ValueError, match=r"a hook changed blocks\.1\.attn\.hook_pattern, but \w+ only returns its"
        ):
            hooked.run_with_hooks(IDS, MASK, fwd_hooks=[("blocks.1.attn.hook_pattern", edit)])
    seen = []
    hooked.run_with_hooks(
        IDS,
        MASK,
        fwd_hooks=[("blocks.1.attn.hook_pattern", lambda pattern, hook: seen.append(pattern.sum()))],
    )
    assert len(seen) == 1


# 6 and 10. hook_attn_scores shows the pattern again, stop_at_layer drops hooks: neither is used.


@pytest.mark.parametrize("name", ["bert", "gpt2", "albert"])
def test_nothing_but_the_patterns_is_hooked_and_no_run_is_cut_short(name):
    if name == "bert":
        _, bridge = raw_bridge(name, eager=True)
        seen = {}
        hooks = [
            (f"blocks.0.attn.hook_{what}", lambda value, hook: seen.__setitem__(hook.name, value.clone()))
            for what in ("attn_scores", "pattern")
        ]
        with torch.no_grad():
            bridge.run_with_hooks(IDS, attention_mask=MASK.long(), fwd_hooks=hooks)
        scores, pattern = (seen[f"blocks.0.attn.hook_{what}"] for what in ("attn_scores", "pattern"))
        assert torch.equal(scores, pattern)  # the failure: these are no scores
    hooked = opening.open_model(zoo.make(name))
    true_hooks, used, view = hooked.hooks, [], capture.view(hooked)

    def spying(fwd_hooks=(), **options):
        used.extend(hook_name for hook_name, _ in fwd_hooks)
        assert not options
        return true_hooks(fwd_hooks=fwd_hooks)

    hooked.hooks = spying
    hooked.register_forward_pre_hook(
        lambda _module, _args, options: used.append("cut") if "stop_at_layer" in options else None,
        with_kwargs=True,
    )
    read(view, "hooks")
    assert sorted(used) == [f"blocks.{layer}.attn.hook_pattern" for layer in range(3)]


# 7. Dropout sits inside the pattern in training mode.


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_dropout_is_off_while_attention_is_read_and_rows_sum_to_one(name):
    model, bridge = raw_bridge(name, eager=True)
    bridge.train()
    bridge.original_model.train()
    broken = torch.cat([pattern.sum(-1).flatten() for pattern in seen_by_hand(bridge, name).values()])
    assert broken.min() < 0.8
    assert broken.max() > 1.05
    view = capture.view(bridge)
    assert_true_patterns(view, model)
    for pattern, _ in read(view, "hooks").values():
        torch.testing.assert_close(pattern.sum(-1), torch.ones(pattern.shape[:-1]), rtol=0, atol=1e-5)
    assert bridge.original_model.training


def test_rows_that_do_not_sum_to_one_are_an_error():
    topics = tp.Topics.from_token_ids({"a": range(5, 40), "b": range(40, 80)}, vocabulary_size=zoo.VOCABULARY)
    hooked = opening.open_model(zoo.make("albert"))
    hooked.hook_dict["blocks.2.attn.hook_pattern"].add_hook(lambda pattern, hook: 0.9 * pattern)
    with pytest.raises(ValueError, match=r"blocks\.2\.attn\.hook_pattern sums to 0\.9 instead of 1"):
        tp.measure_attention(hooked, topics, [IDS[0].tolist()], n_permutations=0)


# 8. One module that is called once for every layer leaves only its last pattern in a cache.


def test_every_layer_is_read_where_one_module_is_called_for_all_of_them():
    model = zoo.make("albert")
    calls = []
    attention = [module for module in model.modules() if type(module).__name__ == "AlbertAttention"]
    assert len(attention) == 1
    attention[0].register_forward_hook(lambda *_: calls.append(1))
    view = capture.view(opening.open_model(model))
    calls.clear()
    found = list(read(view).values())
    assert len(calls) == len(found) == 3
    assert (found[0][0] - found[1][0]).abs().max() > 0.02
    assert (found[1][0] - found[2][0]).abs().max() > 0.02
    assert_true_patterns(view, model)


def test_a_layer_that_is_no_longer_called_is_noticed():
    model = zoo.make("albert")
    view = capture.view(opening.open_model(model))
    model.config.num_hidden_layers = 2
    for through in ("hooks", "rows"):
        with pytest.raises(ValueError, match="only 2 of 3 attention calls were seen"):
            read(view, through)
    model.config.num_hidden_layers = 4
    for through in ("hooks", "rows"):
        with pytest.raises(
            ValueError, match="attention call 3 comes from another layer than in the trial run"
        ):
            read(view, through)


# 9. Weight processing centres the word embeddings.


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_word_embeddings_that_were_centred_by_weight_processing_are_refused(name):
    model = zoo.make(name)
    hooked = zoo.bridge(model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="BertArchitectureAdapter does not support fold_ln")
        hooked.enable_compatibility_mode()
    assert hooked.W_E.mean(-1).abs().max() < 1e-7  # the failure
    with pytest.raises(ValueError, match=r"were centred by weight processing \(enable_compatibility_mode"):
        capture.word_embeddings(hooked)
    assert model.get_input_embeddings().weight.mean(-1).abs().max() > 0.01


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_word_embeddings_stay_as_they_are_in_compatibility_mode_without_processing(name):
    model = zoo.make(name)
    hooked = zoo.bridge(model)
    hooked.enable_compatibility_mode(no_processing=True)
    assert torch.equal(capture.word_embeddings(hooked), model.get_input_embeddings().weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_centring_is_seen_in_every_precision_and_natural_tables_are_not_taken_for_it(dtype):
    generator = torch.Generator().manual_seed(0)
    table = 0.02 * torch.randn(500, 768, generator=generator, dtype=torch.float64)
    assert not capture._is_centred(table.to(dtype))
    assert capture._is_centred((table - table.mean(-1, keepdim=True)).to(dtype))
    assert not capture._is_centred(torch.zeros(3, 4, dtype=dtype))
    assert not capture._is_centred(torch.eye(101, dtype=dtype))


if zoo.GENERATION == 3:  # there is no HookedTransformer on 4

    def test_a_processed_hookedtransformer_is_refused():
        model = bidirectional()
        capture.word_embeddings(model)
        model.load_and_process_state_dict(model.state_dict(), fold_ln=True, center_writing_weights=True)
        with pytest.raises(ValueError, match="were centred by weight processing"):
            capture.word_embeddings(model)


# 11. What a configuration says of causality is wrong.


def test_causality_is_seen_in_the_pattern_and_not_taken_from_the_configuration():
    name = "bert" if zoo.GENERATION == 3 else "bart"
    _, bridge = raw_bridge(name)
    assert bridge.cfg.attention_dir == "causal"  # the failure: neither BERT nor an encoder is
    view = capture.view(bridge)
    for through in ("hooks", "rows"):
        for site, (_, visible) in read(view, through).items():
            if site.stack in ("self", "encoder"):
                assert visible[0].all()
            if site.stack == "decoder":
                assert torch.equal(visible[0], torch.ones(20, 20).tril().bool())


@pytest.mark.parametrize("said", ["causal", "bidirectional"])
def test_a_wrong_configuration_changes_nothing(said):
    for name, causal in (("bert", False), ("gpt2", True)):
        _, bridge = raw_bridge(name)
        bridge.cfg.attention_dir = said
        for _, visible in read(capture.view(bridge), "hooks").values():
            assert visible[0].all() != causal


# 12. An unknown hook name is ignored.


def test_an_unknown_hook_name_is_an_error():
    _, bridge = raw_bridge("bert", eager=True)
    hook = ("blocks.0.attention.pattern", swap)
    if zoo.GENERATION == 3:
        bridge.run_with_hooks(IDS, attention_mask=MASK.long(), fwd_hooks=[hook])  # the failure
        expected = pytest.raises(
            ValueError, match=r"no attention pattern was seen at blocks\.0\.attention\.pattern"
        )
    else:
        expected = pytest.raises(KeyError, match="does not exist on this model")
    view = capture.view(bridge)
    inputs = view.inputs(IDS, MASK)
    with expected:
        capture.with_patterns(
            view.host, (Site("self", 0, "blocks.0.attention.pattern"),), inputs, lambda *_: None
        )


def test_a_hooked_model_without_a_single_pattern_is_refused():
    _, bridge = raw_bridge("bert")
    bridge_class = type(bridge)

    class Renamed(bridge_class):
        @property
        def hook_dict(self):
            return {name: point for name, point in super().hook_dict.items() if "pattern" not in name}

    bridge.__class__ = Renamed
    with pytest.raises(
        ValueError, match=r"cannot be read: it has no hook point for a pattern \(…attn\.hook_pattern\)"
    ):
        capture.view(bridge)


# 13. A custom attention function is handed no mask, unless a mask function is registered beside it.


def test_both_attention_functions_bring_their_mask_function(monkeypatch):
    from transformers import AttentionInterface, AttentionMaskInterface

    model = zoo.make("bert-headless")
    true_eager, masks = huggingface._eager, []

    def custom(module, query, key, value, attention_mask, **options):
        masks.append(attention_mask)
        return true_eager(module, query, key, value, attention_mask, **options)

    AttentionInterface.register("custom_without_mask", custom)
    try:
        with huggingface.attention_implementation(model, "custom_without_mask"), torch.no_grad():
            lit = model(IDS, attention_mask=MASK.long()).last_hidden_state
    finally:
        AttentionInterface._global_mapping.pop("custom_without_mask")
    assert masks == [None] * 3  # the failure: padding is attended to
    with torch.no_grad():
        dark = model(IDS, attention_mask=MASK.long()).last_hidden_state
    assert (lit - dark)[1, :9].abs().max() > 0.01
    huggingface.register_attention()
    for name in (huggingface.EAGER, huggingface.BESIDE_SDPA):
        assert name in AttentionMaskInterface().valid_keys()
    for pattern, visible in read(capture.view(opening.open_model(model))).values():
        assert not pattern[1, :, :9, 9:].any()
        assert not visible[1, :, 9:].any()


@pytest.mark.parametrize("name", ["bert-headless", "bert"])
def test_a_lost_mask_function_is_noticed_and_the_true_patterns_are_read_another_way(name, monkeypatch):
    from transformers import AttentionMaskInterface

    huggingface.register_attention()
    kept = {
        key: function
        for key, function in AttentionMaskInterface._global_mapping.items()
        if key not in (huggingface.EAGER, huggingface.BESIDE_SDPA)
    }
    monkeypatch.setattr(AttentionMaskInterface, "_global_mapping", kept)
    model = zoo.make(name)
    view = capture.view(opening.open_model(model))
    assert view.tap is None
    assert_true_patterns(view, model)


# What a hook point calls a pattern need not be one.


def test_something_else_than_a_pattern_at_a_pattern_hook_is_refused():
    if zoo.GENERATION == 3:
        # A T5 bridge of 3.9 shows its position bias there.
        _, bridge = raw_bridge("t5", eager=True)
        name = "encoder_blocks.0.attn.hook_pattern"
    else:
        _, bridge = raw_bridge("bert", eager=True)
        name = "blocks.1.attn.hook_pattern"
        true_point = bridge.blocks[1].attn.hook_pattern
        true_point.forward = lambda pattern: pattern - 0.1
    match = rf"what {re.escape(name)} of TransformerBridge\(\w+\) shows is not an attention pattern: needed probab"
    with pytest.raises(ValueError, match=match):
        capture.view(bridge)


@pytest.mark.parametrize(
    ("pattern", "values"),
    [
        (torch.full((2, 1, 7, 7), -0.1), "from -0.1 to -0.1"),
        (torch.full((2, 1, 7, 7), 0.5), "from 0.5 to 0.5"),
        (torch.full((1, 1, 7, 7), 0.1), r"got \(1, 1, 7, 7\)"),
        (torch.full((2, 7, 7), 0.1), r"got \(2, 7, 7\)"),
    ],
)
def test_negative_numbers_rows_above_one_and_other_shapes_are_no_pattern(pattern, values):
    hooked = opening.open_model(zoo.make("bert-headless"))
    inputs = capture.view(hooked).host.trial_inputs()
    with pytest.raises(ValueError, match=f"is not an attention pattern: needed .*{values}"):
        sites.check_pattern(capture.sites(hooked)[0], pattern, inputs, whose="a model")


def test_a_host_that_fails_on_plain_tokens_is_refused_with_its_own_words():
    _, bridge = raw_bridge("bert", eager=True)

    def fail(*_, **__):
        raise RuntimeError("no such kernel")

    bridge.blocks[1].attn.forward = fail
    with pytest.raises(ValueError, match=r"fails on a few tokens \(RuntimeError: no such kernel\)"):
        capture.view(bridge)


def test_padding_stays_dark_in_the_eyes_of_the_trial_where_padded_rows_are_not_a_number():
    site = Site("self", 0, "blocks.0.attn.hook_pattern")
    inputs = sites.some_tokens(50, torch.device("cpu"))
    pattern = (
        (inputs.mask[:, None, None, :] / inputs.mask.sum(1)[:, None, None, None]).expand(2, 1, 7, 7).clone()
    )
    assert sites.check_pattern(site, pattern, inputs, whose="a model")
    pattern[1, :, 4:] = torch.nan
    assert sites.check_pattern(site, pattern, inputs, whose="a model")
    pattern[1, 0, 2, 6] = 1e-6
    assert not sites.check_pattern(site, pattern, inputs, whose="a model")


# 14. A model changes itself when it runs.


def block_sparse(kind, attention_type="block_sparse"):
    """BigBird's attention in blocks of four tokens, which turns itself into full attention up to 28 tokens."""
    import transformers as hf

    shared = {
        "vocab_size": zoo.VOCABULARY,
        "max_position_embeddings": 128,
        "block_size": 4,
        "num_random_blocks": 1,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if kind == "bigbird":
            config = hf.BigBirdConfig(
                **shared, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37,
                attention_type=attention_type, pad_token_id=0,
            )  # fmt: skip
            return hf.BigBirdForMaskedLM(config).eval()
        config = hf.BigBirdPegasusConfig(
            **shared, d_model=32, encoder_layers=2, decoder_layers=1, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=37, decoder_ffn_dim=37, attention_type=attention_type,
        )  # fmt: skip
        return hf.BigBirdPegasusForConditionalGeneration(config).eval()


def everything(model):
    """Modules, tensors and settings of a model, to be compared with those of later."""
    modules = dict(model.named_modules())
    plain = {
        name: {key: repr(value) for key, value in vars(module).items() if isinstance(value, str | int | list)}
        for name, module in modules.items()
    }
    return {name: id(module) for name, module in modules.items()}, plain, model.config.to_dict()


@pytest.mark.parametrize("kind", ["bigbird", "pegasus"])
def test_sparse_attention_that_short_texts_turn_off_is_refused_and_the_model_stays_sparse(kind):
    model = block_sparse(kind)
    long = torch.arange(60)[None] % 90 + 5
    options = {"decoder_input_ids": long[:, :7]} if kind == "pegasus" else {}
    with torch.no_grad():
        before = model(long, **options).logits
        twin = copy.deepcopy(model)
        twin(long[:, :10], **options)
        assert (
            twin(long, **options).logits - before
        ).abs().max() > 1e-4  # the failure: it is another model now
    kept = everything(model)
    hooked = tp.open_model(model)
    topics = tp.Topics.from_token_ids({"a": range(5, 40), "b": range(40, 80)}, vocabulary_size=zoo.VOCABULARY)
    sentence = (
        r"puts other modules in the place of its own when a text is as short as \d+ tokens .*original_full'"
    )
    with pytest.raises(ValueError, match=sentence):
        tp.measure_attention(hooked, topics, [list(range(5, 15))], n_permutations=0)
    inputs = sites.Inputs(long[:, :10], torch.ones(1, 10, dtype=torch.bool), *(
        (long[:, :7], torch.ones(1, 7, dtype=torch.bool)) if kind == "pegasus" else ()
    ))  # fmt: skip
    capture.hidden_states(hooked, inputs, lambda *_: None)
    hooked(long[:, :10], torch.ones(1, 10), **options)
    with torch.no_grad():
        assert torch.equal(model(long, **options).logits, before)
    assert everything(model) == kept


@pytest.mark.parametrize("kind", ["bigbird", "pegasus"])
def test_sparse_attention_is_read_once_it_is_full(kind):
    model = block_sparse(kind, "original_full")
    assert_true_patterns(capture.view(tp.open_model(model)), model)


class Counting(torch.nn.Module):
    """A layer that counts its passes in a buffer, or in a weight, and leaves something on itself."""

    def __init__(self, layer, where):
        super().__init__()
        self.layer, self.seen = layer, []
        if where == "buffer":
            self.register_buffer("count", torch.zeros(1))
        else:
            self.count = torch.nn.Parameter(torch.zeros(1))

    def forward(self, *given, **options):
        with torch.no_grad():
            self.count += 1
        self.seen.append(1)
        self.latest = given
        return self.layer(*given, **options)


@pytest.mark.parametrize("where", ["buffer", "weight"])
def test_a_model_that_writes_on_its_tensors_is_refused_by_their_names(where):
    model = zoo.make("bert-headless")
    model.encoder.layer[1].intermediate = counting = Counting(model.encoder.layer[1].intermediate, where)
    hooked = tp.open_model(model)
    with pytest.raises(
        ValueError, match=r"writes on its own tensors .*\(encoder\.layer\.1\.intermediate\.count\)"
    ):
        capture.view(hooked)
    if where == "buffer":
        assert counting.seen == []
        assert "latest" not in vars(counting)
        assert counting.count == 0


def test_weights_that_a_pass_rescales_are_rescaled_once():
    import transformers as hf

    config = hf.RwkvConfig(vocab_size=zoo.VOCABULARY, hidden_size=32, num_hidden_layers=2, rescale_every=1)
    model = hf.RwkvForCausalLM(config).eval()
    with torch.no_grad():
        expected = copy.deepcopy(model)(IDS).logits
        hooked = tp.open_model(model)
        assert "writes on its own tensors" in hooked.probe.reason
        capture.hidden_states(hooked, sites.Inputs(IDS, MASK), lambda *_: None)
        torch.testing.assert_close(model(IDS).logits, expected)


def test_a_trial_goes_beyond_the_window_of_a_model_where_that_takes_moments():
    assert capture.view(tp.open_model(zoo.make("modernbert"))).host.trial_inputs().ids.shape[1] == 15
    assert capture.view(tp.open_model(zoo.make("bert"))).host.trial_inputs().ids.shape[1] == 7
    windows = {6: 13, 60: 64, 4096: 7}
    for window, length in windows.items():  # its table of positions ends at 64
        model = zoo.make("gemma2")
        model.config.sliding_window = window
        assert huggingface.trial_inputs(model).ids.shape[1] == length


# 15. A user's own attention function is never called.


@contextmanager
def registered(name, function, mask=None):
    """A function of a user in transformers' table of attention functions, with a mask function."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, function)
    if mask is not None:
        AttentionMaskInterface.register(name, AttentionMaskInterface()[mask])
    try:
        yield
    finally:
        AttentionInterface._global_mapping.pop(name)
        AttentionMaskInterface._global_mapping.pop(name, None)


def cold_attention(module, query, key, value, attention_mask, *, scaling=None, **options):
    """Attention that is twice as hot as usual in the first head only."""
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    scores[:, 0] *= 2
    if attention_mask is not None:
        scores = scores + attention_mask
    pattern = scores.softmax(-1)
    return (pattern @ value).transpose(1, 2).contiguous(), pattern


def without_pattern(*given, **options):
    return cold_attention(*given, **options)[0], None


NO_PATTERN = (
    r"the attention function 'my_attention' returns no pattern: have it return its output and its pattern .*"
    r"attn_implementation='eager'"
)


def fused(module, query, key, value, attention_mask, **options):
    """What the model computes anyway, by another kernel, which knows no pattern."""
    answer = torch.nn.functional.scaled_dot_product_attention(query, key, value, attention_mask)
    return answer.transpose(1, 2).contiguous(), None


def test_the_pattern_of_a_users_own_attention_function_is_measured():
    model, calls = zoo.make("bert-headless"), []

    def counted(*given, **options):
        calls.append(1)
        return cold_attention(*given, **options)

    with registered("my_attention", counted, "eager"):
        model.set_attn_implementation("my_attention")
        with torch.no_grad():
            answer = model(IDS, attention_mask=MASK.long(), output_attentions=True)
        view = capture.view(tp.open_model(model))
        calls.clear()
        found = read(view)
        assert len(calls) == 3
        for (pattern, visible), true in zip(found.values(), answer.attentions, strict=True):
            torch.testing.assert_close(
                pattern.transpose(1, 2)[MASK], true.transpose(1, 2)[MASK], rtol=0, atol=1e-6
            )
            assert torch.equal(visible, MASK[:, None, :].expand(-1, 20, -1))
        hooked = view.model(IDS, MASK.long()).last_hidden_state
        torch.testing.assert_close(hooked[MASK], answer.last_hidden_state[MASK], rtol=0, atol=1e-6)
        edited = view.model.run_with_hooks(IDS, MASK, fwd_hooks=[("blocks.0.attn.hook_pattern", swap)])
        assert (edited.last_hidden_state - hooked).abs().max() > 0.01
    assert model.config._attn_implementation == "my_attention"
    eager = zoo.own_patterns(model, capture.view(tp.open_model(zoo.make("bert-headless"))).inputs(IDS, MASK))
    assert (eager["self"][0][0, 0] - answer.attentions[0][0, 0]).abs().max() > 0.01  # the failure


@pytest.mark.parametrize("function", [without_pattern, fused])
def test_a_users_attention_function_without_a_pattern_is_refused(function):
    """Also where it computes what eager attention does: nothing is put in its place."""
    model = zoo.make("gpt2")
    with registered("my_attention", function, "eager"):
        model.set_attn_implementation("my_attention")
        with pytest.raises(ValueError, match=NO_PATTERN):
            capture.view(tp.open_model(model))
    assert model.config._attn_implementation == "my_attention"


def test_a_bridge_over_a_users_attention_function_without_a_pattern_is_refused():
    _, bridge = raw_bridge("bert")
    with registered("my_attention", without_pattern, "eager"):
        bridge.original_model.set_attn_implementation("my_attention")
        with pytest.raises(ValueError, match="computes something else as it is"):
            capture.view(bridge)


def test_a_users_function_without_a_mask_function_is_measured_as_it_is():
    """Its model attends to padding, so that no documents of different length share a batch."""
    model = zoo.make("bert-headless")
    with registered("my_attention", cold_attention):
        model.set_attn_implementation("my_attention")
        view = capture.view(tp.open_model(model))
        assert (view.sharing.lengths, view.sharing.batches) == (False, True)
        found = read(view)
        with torch.no_grad():
            true = model(IDS, attention_mask=MASK.long(), output_attentions=True).attentions
        for (pattern, _), expected in zip(found.values(), true, strict=True):
            torch.testing.assert_close(pattern, expected, rtol=0, atol=1e-6)


def test_another_function_under_the_same_name_is_noticed():
    model = zoo.make("bert-headless")
    with registered("my_attention", cold_attention, "eager"):
        model.set_attn_implementation("my_attention")
        hooked = tp.open_model(model)
        first = capture.view(hooked)
    with (
        registered("my_attention", without_pattern, "eager"),
        pytest.raises(ValueError, match=NO_PATTERN),
    ):
        capture.view(hooked)
    assert first.sites


# 16. Eager attention and the fused kernel of one architecture compute two models.


def falcon(implementation):
    import transformers as hf

    config = hf.FalconConfig(
        vocab_size=zoo.VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True,
        new_decoder_architecture=False, multi_query=False, parallel_attn=False,
    )  # fmt: skip
    config._attn_implementation = implementation
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = hf.FalconForCausalLM(config)
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return model.eval()


def outputs(model):
    with torch.no_grad():
        return model(IDS, attention_mask=MASK.long()).logits[MASK]


def test_a_model_that_is_another_one_with_eager_attention_is_refused_until_it_is_that():
    fused, eager = falcon("sdpa"), falcon("eager")
    assert (outputs(fused) - outputs(eager)).abs().max() > 0.1  # the failure
    with pytest.raises(
        ValueError, match=r"something else as it is \(sdpa attention\) .*load it with attn_impl"
    ):
        capture.view(tp.open_model(fused))
    assert_true_patterns(capture.view(tp.open_model(eager)), eager)


def test_a_model_that_is_switched_to_another_attention_after_it_was_opened_is_refused():
    model = falcon("eager")
    hooked = tp.open_model(model)
    assert_true_patterns(capture.view(hooked), model)
    model.config._attn_implementation = "sdpa"
    with pytest.raises(ValueError, match=r"something else as it is \(sdpa attention\)"):
        capture.view(hooked)


def test_a_bridge_of_the_users_own_is_refused_where_its_outputs_change_as_it_is_read():
    _, bridge = raw_bridge("bert")
    bridge.original_model.config.architectures = None
    attention = bridge.original_model.bert.encoder.layer[0]

    def halved(_module, _given, output):
        if bridge.original_model.config._attn_implementation == "sdpa":
            return output * 0.5 if isinstance(output, torch.Tensor) else (output[0] * 0.5, *output[1:])
        return output

    attention.register_forward_hook(halved)
    with pytest.raises(ValueError, match="computes something else as it is"):
        capture.view(bridge)


def test_half_precision_is_told_and_not_refused(monkeypatch):
    model = zoo.make("bert-headless").to(torch.bfloat16)
    assert capture.view(tp.open_model(model)).note == ""
    monkeypatch.setattr(huggingface, "output_difference", lambda *_: 0.2)
    hooked = tp.open_model(model)
    note = "its outputs differ by 2e-01 of their length"
    assert capture.view(hooked).note.endswith(note)
    topics = tp.Topics.from_token_ids({"a": range(5, 40), "b": range(40, 80)}, vocabulary_size=zoo.VOCABULARY)
    report = tp.measure_attention(hooked, topics, [IDS[0].tolist()], n_permutations=0)
    assert report.provenance["model"]["notes"][0].endswith(note)
    assert note in repr(report)


def test_how_far_outputs_are_apart_is_a_share_of_their_length_at_real_positions():
    inputs = sites.some_tokens(50, torch.device("cpu"))
    one = torch.ones(2, 7, 4)
    other = one.clone()
    other[1, 5] = 100  # padding
    assert huggingface.output_difference({"states": one}, {"states": other}, inputs) == 0
    other[0, 3, 2] = 3  # a vector of length 2 moves by 2
    assert huggingface.output_difference((one,), (other,), inputs) == pytest.approx(1)
    assert huggingface.output_difference({"states": one}, None, inputs) == 0


# 17. Something else than attention reads padding, or the documents beside.


def convbert():
    import transformers as hf

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = hf.ConvBertModel(hf.ConvBertConfig(**zoo._narrow))
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return model.eval()


def beside(model):
    """A BERT in which every document reads the mean of its batch."""
    model.embeddings.register_forward_hook(
        lambda _module, _given, states: states + states.mean(0, keepdim=True)
    )
    return model


@pytest.mark.parametrize(
    ("make", "note"),
    [
        (
            convbert,
            "documents of different length never shared a batch: beside padding, attention differs by",
        ),
        (lambda: beside(zoo.make("bert-headless")), "every document was measured by itself: beside another"),
    ],
)
def test_batches_change_nothing_where_a_model_reads_padding_or_other_documents(make, note):
    hooked = tp.open_model(make())
    topics = tp.Topics.from_token_ids({"a": range(5, 40), "b": range(40, 97)}, vocabulary_size=zoo.VOCABULARY)
    documents = [row[kept].tolist() for row, kept in zip(IDS, MASK, strict=True)] * 2
    options = {"n_permutations": 0, "n_resamples": 0}
    together, alone = (
        tp.measure_attention(hooked, topics, documents, batch_size=size, **options) for size in (6, 1)
    )
    for name in ("same_word", "same_topic", "different_topic"):
        one, other = (torch.tensor(getattr(report.heads, name)) for report in (together, alone))
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    assert together.provenance["model"]["notes"][0].startswith(note)
    inputs = capture.view(hooked).inputs(IDS, MASK)
    single = capture.patterns(hooked, inputs.document(1))
    for site, batched in list(capture.patterns(hooked, inputs).items())[1:]:
        assert sites.batch_error(site, batched, single[site], inputs, 1) > 1e-4  # the failure


def test_an_ordinary_model_shares_batches_and_says_nothing():
    for name in ("bert", "gpt2", "mpnet", "t5"):
        view = capture.view(tp.open_model(zoo.make(name)))
        assert (view.sharing, view.note) == (sites.EVERY_BATCH, "")
        assert "notes" not in view.facts.description


def test_rows_are_read_beside_the_fused_kernel_though_embeddings_read_padding():
    import transformers as hf

    config = hf.MobileBertConfig(
        vocab_size=zoo.VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37,
        embedding_size=16, intra_bottleneck_size=32, true_hidden_size=32,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = hf.MobileBertModel(config)
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    view = capture.view(tp.open_model(model.eval()))
    assert not view.sharing.lengths
    assert view.tap is not None
    inputs = view.inputs(IDS[:1], MASK[:1])
    hooks, rows = (list(read(view, way, inputs).values()) for way in ("hooks", "rows"))
    for one, other in zip(hooks, rows, strict=True):
        torch.testing.assert_close(one[0], other[0], rtol=0, atol=1e-5)
        assert torch.equal(one[1], other[1])
