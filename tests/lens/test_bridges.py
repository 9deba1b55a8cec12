"""Adapters for TransformerLens's bridge: what it shows is what Hugging Face computes."""

import copy
import re
from importlib import import_module
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import pytest
import torch
import transformers as hf
import zoo
from real_text import minilm_folder

import topic_probe as tp
from topic_probe.lens import bridges, capture, opening

if zoo.GENERATION < 4:
    OURS: tuple[str, ...] = ()
else:
    OURS = ("albert", "electra", "electra-discriminator", "distilbert", "modernbert")
four = pytest.mark.skipif(zoo.GENERATION < 4, reason="the adapters are for TransformerLens 4")

# Where each keeps the projection to queries, by layer; ALBERT's is one.
QUERIES = {
    "albert": "albert.encoder.albert_layer_groups.0.albert_layers.0.attention.query",
    "electra": "electra.encoder.layer.{}.attention.self.query",
    "electra-discriminator": "electra.encoder.layer.{}.attention.self.query",
    "distilbert": "distilbert.transformer.layer.{}.attention.q_lin",
}


def tokenizer():
    return hf.AutoTokenizer.from_pretrained(minilm_folder())


def booted(model):
    """TransformerLens's own way in, for a copy, because it changes what it is given."""
    from transformer_lens.model_bridge import TransformerBridge

    tp.register_adapters()
    model = copy.deepcopy(model)
    model.config.architectures = [type(model).__name__]  # as every saved model has it
    return TransformerBridge.boot_transformers("given", hf_model=model, tokenizer=tokenizer(), device="cpu")


def eager(model, ids, mask):
    twin = copy.deepcopy(model)
    twin.set_attn_implementation("eager")
    with torch.no_grad():
        return twin(input_ids=ids, attention_mask=mask.long(), output_attentions=True)


def cached(bridge, ids, mask):
    with torch.no_grad():
        return bridge.run_with_cache(ids, attention_mask=mask.long())


@pytest.mark.parametrize("name", OURS)
def test_logits_and_patterns_of_a_booted_model_are_those_of_hugging_face(name):
    model = zoo.make(name)
    bridge = booted(model)
    ids, mask = zoo.documents((20, 9, 14))
    for part in (slice(None), slice(0, 1)):  # padded, and a document by itself
        own, (logits, cache) = eager(model, ids[part], mask[part]), cached(bridge, ids[part], mask[part])
        assert (logits - own.logits)[mask[part]].abs().max() <= 1e-6
        assert len(own.attentions) == len(bridge.blocks) == 3
        for layer, pattern in enumerate(own.attentions):
            shown = cache[f"blocks.{layer}.attn.hook_pattern"]
            assert (shown - pattern).abs().max() <= 1e-6


@four
def test_every_call_of_alberts_layers_has_hook_points_of_its_own():
    # Two groups of two layers each, called 2 × 2 and 2 × 2 times: eight calls of attention.
    config = hf.AlbertConfig(
        **{**zoo._narrow, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2}
    )
    model = zoo.drawn(lambda: hf.AlbertForMaskedLM(config))
    bridge, (ids, mask) = booted(model), zoo.documents()
    own, (logits, cache) = eager(model, ids, mask), cached(bridge, ids, mask)
    assert len(own.attentions) == len(bridge.blocks) == bridge.cfg.n_layers == 8
    assert (logits - own.logits)[mask].abs().max() <= 1e-6
    for layer, pattern in enumerate(own.attentions):
        assert (cache[f"blocks.{layer}.attn.hook_pattern"] - pattern).abs().max() <= 1e-6
    # Layers 0, 2 are calls of one layer: what is done to the second is not done to the first.
    silenced = [("blocks.2.attn.hook_z", lambda outputs, hook: torch.zeros_like(outputs))]
    with torch.no_grad(), bridge.hooks(fwd_hooks=silenced):
        _, changed = bridge.run_with_cache(ids, attention_mask=mask.long())
    after = [
        not torch.equal(changed[key], cache[key]) for key in (f"blocks.{i}.hook_resid_post" for i in range(8))
    ]
    assert after == [False, False, *[True] * 6]
    assert bridge.blocks[0].attn.q.weight is bridge.blocks[2].attn.q.weight


@pytest.mark.parametrize("name", OURS)
def test_weights_of_heads_are_those_of_the_module(name):
    model = zoo.make(name)
    bridge = booted(model)
    for layer in range(3):
        if name == "modernbert":
            matrix = model.model.layers[layer].attn.Wqkv.weight[: zoo.WIDTH]
        else:
            matrix = model.get_submodule(QUERIES[name].format(layer)).weight
        for head in range(zoo.HEADS):
            rows = matrix[8 * head : 8 * (head + 1)]
            assert torch.equal(bridge.W_Q[layer, head], rows.T)


@four
def test_hooks_on_queries_keys_and_values_of_one_product_take_effect():
    model = zoo.make("modernbert")
    ids, mask = zoo.documents()
    for number, part in enumerate("qkv"):
        twin = copy.deepcopy(model)
        fused = twin.model.layers[1].attn.Wqkv
        with torch.no_grad():  # the outputs of head 2 of this part are zero
            rows = slice(number * zoo.WIDTH + 16, number * zoo.WIDTH + 24)
            fused.weight[rows] = 0
            if fused.bias is not None:
                fused.bias[rows] = 0

        def silence(given, hook):
            assert given.shape == (3, 20, zoo.HEADS, 8)
            return given.index_fill(2, torch.tensor([2]), 0.0)

        with torch.no_grad():
            hooked = booted(model).run_with_hooks(
                ids, attention_mask=mask.long(), fwd_hooks=[(f"blocks.1.attn.hook_{part}", silence)]
            )
        expected = eager(twin, ids, mask).logits
        assert (hooked - expected)[mask].abs().max() <= 1e-5
        assert (expected - eager(model, ids, mask).logits)[mask].abs().max() > 1e-2


@four
def test_what_goes_into_one_of_the_three_can_be_changed_alone():
    model, (ids, mask) = zoo.make("modernbert"), zoo.documents()
    bridge = booted(model)
    with torch.no_grad():
        same = bridge.run_with_hooks(
            ids,
            attention_mask=mask.long(),
            fwd_hooks=[("blocks.1.attn.v.hook_in", lambda given, hook: given)],
        )
        _, cache = bridge.run_with_cache(ids, attention_mask=mask.long())
        with bridge.hooks(fwd_hooks=[("blocks.1.attn.v.hook_in", lambda given, hook: 2 * given)]):
            _, doubled = bridge.run_with_cache(ids, attention_mask=mask.long())
    assert (same - eager(model, ids, mask).logits)[mask].abs().max() <= 1e-5
    for part, factor in {"q": 1, "k": 1, "v": 2}.items():
        before, now = (held[f"blocks.1.attn.hook_{part}"] for held in (cache, doubled))
        assert torch.allclose(now, factor * before, atol=1e-5)


@pytest.mark.parametrize("name", OURS)
def test_measured_numbers_are_those_of_the_host_without_adapters_and_the_fused_kernel_is_used(name):
    model = zoo.make(name)
    topics = tp.Topics.from_token_ids({"a": [*range(5, 25)], "b": [*range(30, 55)]}, vocabulary_size=97)
    lists = zoo.lists((20, 9, 14, 30))
    bridge, free = opening.open_model(model), opening.open_model(model, host="huggingface")
    assert capture.view(bridge).host.kind == "bridge"
    assert capture.view(bridge).reads_rows("auto")
    for measure, given in ((tp.measure_attention, (lists,)), (tp.measure_weights, ())):
        frames = [
            measure(hooked, topics, *given).to_dataframe().select_dtypes("number")
            for hooked in (bridge, free)
        ]
        torch.testing.assert_close(
            *map(torch.tensor, (f.to_numpy() for f in frames)), rtol=0, atol=1e-6, equal_nan=True
        )


@four
def test_a_folder_is_booted_with_its_head_for_masked_words(tmp_path):
    from transformer_lens.model_bridge import TransformerBridge

    model, (ids, mask) = zoo.make("modernbert"), zoo.documents()
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    tp.register_adapters()
    bridge = TransformerBridge.boot_transformers(str(tmp_path), device="cpu")
    assert type(bridge.original_model).__name__ == "ModernBertForMaskedLM"
    with torch.no_grad():
        logits = bridge(ids, attention_mask=mask.long())
    assert (logits - eager(model, ids, mask).logits)[mask].abs().max() <= 1e-6


@four
def test_the_page_on_adapters_does_what_it_says(tmp_path, capsys):
    page = (Path(__file__).parents[2] / "demos" / "bridges.md").read_text(encoding="utf-8")
    words = hf.AutoTokenizer.from_pretrained(minilm_folder())
    sizes = {**zoo._narrow, "vocab_size": len(words), "num_hidden_layers": 4}
    hf.AlbertForMaskedLM(hf.AlbertConfig(**sizes)).save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    (program,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(program.replace("albert/albert-base-v2", str(tmp_path)), {})
    assert capsys.readouterr().out.splitlines()[-2:] == ["[1, 4, 8, 8]", "[4, 4, 32, 8]"]


@pytest.mark.skipif(version("transformer-lens") != "4.3.0", reason="the patch is for 4.3.0")
def test_the_patch_on_that_page_is_for_what_stands_there():
    page = (Path(__file__).parents[2] / "demos" / "bridges.md").read_text(encoding="utf-8")
    (patch,) = re.findall(r"```diff\n(.*?)```", page, flags=re.DOTALL)
    for name, body in re.findall(r"^--- a/(.+)\n.*\n((?:(?!---).*\n)+)", patch, flags=re.MULTILINE):
        source = files(name.split("/")[0]).joinpath(*name.split("/")[1:]).read_text(encoding="utf-8")
        before = [line[1:] for line in body.splitlines() if line[:1] in ("-", " ")]
        assert "\n".join(before) in source


@four
def test_a_discriminator_that_would_get_a_head_of_random_weights_is_refused(tmp_path):
    from transformer_lens.model_bridge import TransformerBridge

    zoo.make("electra-discriminator").save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    tp.register_adapters()
    with pytest.raises(ValueError, match=r"loaded as Electra\w+, with a head .* give it as hf_model="):
        TransformerBridge.boot_transformers(str(tmp_path), device="cpu")


@four
@pytest.mark.filterwarnings("ignore:.*does not support fold_ln")  # post-norm models, BERT among them, say so
def test_processed_weights_of_the_three_like_bert_give_the_same_scores_and_the_others_refuse():
    ids, mask = zoo.documents()
    for name in ("albert", "electra", "distilbert"):
        model = zoo.make(name)
        bridge = booted(model)
        bridge.enable_compatibility_mode(disable_warnings=True)
        with torch.no_grad():
            shares = bridge(ids, attention_mask=mask.long()).log_softmax(-1)
        assert (shares - eager(model, ids, mask).logits.log_softmax(-1))[mask].abs().max() <= 1e-4
    for name in ("modernbert", "electra-discriminator"):
        with pytest.raises(RuntimeError, match="does not support compatibility mode"):
            booted(zoo.make(name)).enable_compatibility_mode()


@four
def test_hooks_that_transformerlens_has_put_there_itself_do_not_keep_a_bridge_from_the_fused_kernel():
    for name in ("bert", "electra"):
        bridge = opening.open_model(zoo.make(name))
        view = capture.view(bridge)
        assert any(point.fwd_hooks for point in bridge.hook_dict.values())
        assert view.reads_rows("auto")
        for point in ("blocks.1.mlp.hook_out", "blocks.1.mlp.out.hook_out", "blocks.0.attn.hook_pattern"):
            with bridge.hooks(fwd_hooks=[(point, lambda tensor, hook: tensor)]):
                assert not view.reads_rows("auto")
        bridge.blocks[0].mlp.out.hook_out.register_forward_hook(lambda *_: None)
        assert not view.reads_rows("auto")


def entry_points():
    """Name and place of every adapter that the package declares."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    section = text.split('[project.entry-points."transformer_lens.architectures"]\n')[1].split("\n\n")[0]
    return dict(line.replace('"', "").split(" = ") for line in section.splitlines())


def test_transformerlens_finds_every_adapter_where_the_package_says_it_is():
    for name, place in entry_points().items():
        module, adapter = place.split(":")
        assert getattr(import_module(module), adapter) is bridges.ADAPTERS[name]
        assert getattr(hf, name).__module__.startswith("transformers.")
    assert entry_points().keys() == bridges.ADAPTERS.keys()


def test_an_adapter_that_transformerlens_has_itself_is_left_alone(monkeypatch):
    tp.register_adapters()
    known = import_module("transformer_lens.factories.architecture_adapter_factory")
    native = object()
    monkeypatch.setitem(known.SUPPORTED_ARCHITECTURES, "AlbertForMaskedLM", native)
    monkeypatch.setitem(known.ArchitectureAdapterFactory._adapters, "AlbertForMaskedLM", native)
    tp.register_adapters()
    assert known.SUPPORTED_ARCHITECTURES["AlbertForMaskedLM"] is native
    assert known.ArchitectureAdapterFactory._adapters["AlbertForMaskedLM"] is native


@pytest.mark.skipif(zoo.GENERATION > 3, reason="what TransformerLens 3 does")
def test_with_transformerlens_3_the_adapters_refuse_and_models_are_opened_without():
    for name in ("albert", "electra", "distilbert", "modernbert"):
        model = zoo.make(name)
        assert capture.view(opening.open_model(model)).host.kind == "adapter-free"
        with pytest.raises(ValueError, match="for TransformerLens 4; with version 3"):
            opening.open_model(model, host="bridge")
