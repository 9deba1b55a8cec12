"""Everything that can be opened, everything that cannot, and that what is given comes back as it went in."""

import copy
import inspect
import json
import os
import subprocess
import sys
import warnings
from importlib import import_module

import numpy as np
import pytest
import small_language
import torch
import transformers as hf
import zoo
from real_text import minilm_folder
from torch import nn

import topic_probe as tp
from topic_probe.lens import adapters, capture, huggingface, opening, running, sites
from topic_probe.topics.vocabulary import tokenizer_hash


def rows_of(inputs):
    return {"source": torch.arange(inputs.ids.shape[1]).expand(len(inputs.ids), -1)} | (
        {}
        if inputs.target_ids is None
        else {"target": torch.arange(inputs.target_ids.shape[1]).expand(len(inputs.ids), -1)}
    )


def patterns_of(hooked, through="auto"):
    """The whole patterns of some padded documents."""
    view = capture.view(hooked)
    inputs = view.inputs(*zoo.documents())
    found = {}
    view.attention_rows(
        inputs,
        rows_of(inputs),
        lambda number, rows, _: found.__setitem__(number, rows.clone()),
        through=through,
    )
    return [found[number] for number in range(len(view.sites))]


def generators():
    numpy_state = np.random.get_state()  # noqa: NPY002  (the global generator is what must not be touched)
    # Python's own generator is used by the type checker that runs with the tests; it is looked at in a fresh process.
    return torch.get_rng_state().tolist(), numpy_state[1].tolist(), numpy_state[2]


def snapshot(model):
    """All that could be changed in a Hugging Face model."""
    return {
        "state": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "storage": {name: tensor.data_ptr() for name, tensor in model.state_dict().items()},
        "modules": [(name, id(module), type(module)) for name, module in model.named_modules()],
        "training": {name: module.training for name, module in model.named_modules()},
        "hooks": {name: dict(module._forward_hooks) for name, module in model.named_modules()},
        "forward": {name: vars(module).get("forward") for name, module in model.named_modules()},
        "gradients": {name: parameter.requires_grad for name, parameter in model.named_parameters()},
        "parameters": {name: id(parameter) for name, parameter in model.named_parameters()},
        "place": {name: (tensor.device, tensor.dtype) for name, tensor in model.state_dict().items()},
        "attention": {
            name: getattr(getattr(module, "config", None), "_attn_implementation", None)
            for name, module in model.named_modules()
        },
        "config": model.config.to_dict(),
    }


def assert_unchanged(model, before):
    after = snapshot(model)
    for name, tensor in before.pop("state").items():
        assert torch.equal(tensor, after["state"][name]), name
    after.pop("state")
    assert after == before


def mixed_modes(model):
    """Training mode, with every other module in evaluation mode."""
    for number, module in enumerate(model.modules()):
        module.training = number % 2 == 0
    return model


# ---------------------------------------------------------------------------------- nothing given is changed


@pytest.mark.parametrize("name", zoo.ARCHITECTURES)
def test_a_hugging_face_model_comes_back_as_it_went_in(name):
    model = mixed_modes(zoo.make(name))
    seen = []
    huggingface.trunk(model).register_forward_hook(lambda *_: seen.append(1))
    before, state = snapshot(model), generators()
    hooked = opening.open_model(model)
    patterns_of(hooked, "hooks")
    patterns_of(hooked)
    capture.hidden_states(hooked, capture.view(hooked).inputs(*zoo.documents()), lambda *_: None)
    capture.word_embeddings(hooked)
    opening.random_init(hooked, seed=1)
    assert_unchanged(model, before)
    assert generators() == state
    seen.clear()
    hooked(**huggingface.arguments(model, capture.view(hooked).inputs(*zoo.documents())))
    assert seen


class MidwayError(Exception):
    pass


@pytest.mark.parametrize(
    ("name", "host"),
    [
        *((name, "huggingface") for name in ("bert", "bart", "albert", "gpt2", "t5", "mpnet")),
        *((name, "bridge") for name in ("bert", "bart", "gpt2", "t5") if name in zoo.BRIDGED),
    ],
)
@pytest.mark.parametrize("through", ["hooks", "auto"])
def test_nothing_stays_on_a_model_when_reading_fails_midway(name, host, through):
    model = mixed_modes(zoo.make(name))
    before = snapshot(model)
    hooked = zoo.hosted(model, host)
    mixed_modes(hooked)
    inside = hooked.original_model
    modes = [module.training for root in (hooked, inside) for module in root.modules()]
    implementations = [config._attn_implementation for config in running.configs(inside)]
    if inside is model:
        before = snapshot(model)
    view = capture.view(hooked)
    inputs = view.inputs(*zoo.documents())
    hooks = [(list(point.fwd_hooks), dict(point._forward_hooks)) for point in hooked.hook_dict.values()]

    def fail(*_):
        raise MidwayError

    with pytest.raises(MidwayError):
        view.attention_rows(inputs, rows_of(inputs), fail, through=through)
    with pytest.raises(MidwayError):
        capture.hidden_states(hooked, inputs, fail)
    assert_unchanged(model, before)
    assert [module.training for root in (hooked, inside) for module in root.modules()] == modes
    assert [config._attn_implementation for config in running.configs(inside)] == implementations
    assert hooks == [
        (list(point.fwd_hooks), dict(point._forward_hooks)) for point in hooked.hook_dict.values()
    ]
    assert huggingface._listener.get() is None
    assert torch.is_grad_enabled()
    one, other = patterns_of(hooked, through), patterns_of(zoo.hosted(model, host), through)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_tokenizer_comes_back_as_it_went_in():
    tokenizer = hf.AutoTokenizer.from_pretrained(minilm_folder())
    model = hf.BertForMaskedLM(
        hf.BertConfig(**{**zoo._encoder, "vocab_size": len(tokenizer)})
    )  # fmt: skip

    def state():
        return (
            tokenizer.backend_tokenizer.to_str(), tokenizer.special_tokens_map, tokenizer.padding_side,
            tokenizer.bos_token, tokenizer.eos_token, len(tokenizer), tokenizer.all_special_ids,
        )  # fmt: skip

    before = state()
    hooked = opening.open_model(model, tokenizer=tokenizer)
    assert state() == before
    assert hooked.tokenizer is tokenizer
    assert capture.facts(hooked).special_ids == set(tokenizer.all_special_ids)


@pytest.mark.parametrize(
    ("name", "template", "special", "left_out"),
    [
        ("gpt2", "$A", {"bos_token": "<s>"}, True),
        ("gpt2", "$A", {"bos_token": "<s>", "eos_token": "<s>"}, True),  # as GPT-2 and SmolLM2 have it
        ("gpt2", "<s> $A", {"bos_token": "<s>"}, False),
        ("gpt2", "$A", {"eos_token": "<s>"}, False),  # without any, as Qwen2
        ("bert", "$A", {"bos_token": "<s>"}, False),  # sees in both directions
    ],
)
def test_a_causal_model_tells_of_a_begin_token_that_its_tokenizer_leaves_out(
    name, template, special, left_out, tmp_path
):
    zoo.make(name).save_pretrained(tmp_path)
    small_language.five_words(template, **special).save_pretrained(tmp_path)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        hooked = tp.open_model(tmp_path)
    ours = [str(each.message) for each in said if "begin token" in str(each.message)]
    assert len(ours) == left_out
    if left_out:
        assert "(<s>)" in ours[0]
        assert "begin_token=True" in ours[0]
        (document,) = tp.encode_texts(["Same words"], hooked.tokenizer, begin_token=True)
        assert document.ids.tolist() == [0, 2, 3]


def test_weights_are_shared_and_not_copied():
    model = zoo.make("bert")
    hooked = opening.open_model(model)
    inside = {parameter.data_ptr() for parameter in hooked.original_model.parameters()}
    assert inside == {parameter.data_ptr() for parameter in model.parameters()}


def native():
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    import_module("transformer_lens.model_bridge.sources.native")  # it is what brings boot_native on 3.9
    config = TransformerBridgeConfig(
        n_layers=2, n_heads=4, d_model=32, d_head=8, d_vocab=zoo.VOCABULARY, n_ctx=64, act_fn="gelu", d_mlp=37,
        normalization_type="LN", seed=5,
    )  # fmt: skip
    return TransformerBridge.boot_native(config)


def hooked_class(class_name, **options):
    """A HookedTransformer or HookedEncoder of TransformerLens 3 with all of its weights drawn."""
    import transformer_lens

    config = transformer_lens.HookedTransformerConfig(
        n_layers=2, n_heads=4, d_model=32, d_head=8, d_vocab=zoo.VOCABULARY, n_ctx=64, act_fn="gelu", d_mlp=37,
        normalization_type="LN", device="cpu", **options,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model = getattr(transformer_lens, class_name)(config, move_to_device=False)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def toy():
    from topic_probe.toy.model import ToyConfig, build_toy
    from topic_probe.toy.world import World

    return build_toy(ToyConfig(world=World(n_topics=4, words_per_topic=24)), seed=3)


OWN_LAYERS = {"native": native, "toy": toy} | (
    {
        "HookedTransformer": lambda: hooked_class("HookedTransformer"),
        "HookedEncoder": lambda: hooked_class("HookedEncoder", attention_dir="bidirectional"),
    }
    if zoo.GENERATION == 3
    else {}
)


HOOKED = OWN_LAYERS | {
    "bridge over bert": lambda: zoo.bridge(zoo.make("bert")),
    "bridge over gpt2": lambda: zoo.bridge(zoo.make("gpt2")),
    "albert": lambda: opening.open_model(zoo.make("albert")),
    "albert-headless": lambda: opening.open_model(zoo.make("albert-headless")),
}


@pytest.mark.parametrize("name", HOOKED)
def test_a_hooked_model_is_returned_as_it_is_and_keeps_its_hooks_and_mode(name):
    model = HOOKED[name]()
    for number, module in enumerate(model.modules()):
        module.training = number % 2 == 0
    modes = [module.training for module in model.modules()]
    state, seen = generators(), []
    point = model.hook_dict[capture.sites(model)[0].hook_name]
    point.add_hook(lambda pattern, hook: seen.append(tuple(pattern.shape)))
    other = model.hook_dict.get("blocks.1.hook_resid_pre")
    if other is not None:
        other.add_hook(lambda state, hook: seen.append("residual"))
    hooks = [list(point.fwd_hooks) for point in model.hook_dict.values()]
    assert opening.open_model(model) is model
    assert opening.open_model(model, device="cpu") is model
    view = capture.view(model)
    assert seen == []  # a trial run is nothing that the user asked for
    patterns_of(model)
    heads = view.n_heads[0]
    assert (3, heads, 20, 20) in seen
    assert ("residual" in seen) == (other is not None)
    assert [list(point.fwd_hooks) for point in model.hook_dict.values()] == hooks
    assert [module.training for module in model.modules()] == modes
    assert generators() == state


@pytest.mark.parametrize("name", list(OWN_LAYERS))
def test_models_of_transformerlens_own_layers_show_the_softmax_of_their_own_queries_and_keys(name):
    model = OWN_LAYERS[name]().eval()
    view = capture.view(model)
    inputs = view.inputs(*zoo.documents())
    causal = "causal" in str(getattr(model.cfg, "attention_dir", ""))
    # On TransformerLens 3 a native bridge leaves padding dark, too.
    assert view.sharing.lengths
    kept = {}
    names = [f"blocks.{site.layer}.attn.hook_{part}" for site in view.sites for part in "qk"]
    for hook_name in names:
        model.hook_dict[hook_name].add_hook(
            lambda value, hook, at=hook_name: kept.__setitem__(at, value.clone())
        )
    shown = patterns_of(model)
    for site, pattern in zip(view.sites, shown, strict=True):
        queries, keys = (kept[f"blocks.{site.layer}.attn.hook_{part}"] for part in "qk")
        if queries.ndim == 3:
            queries, keys = (part.unflatten(-1, (view.n_heads[0], -1)) for part in (queries, keys))
        scale = model.cfg.attn_scale if model.cfg.attn_scale > 0 else model.cfg.d_head**0.5
        scores = torch.einsum("bqhd,bkhd->bhqk", queries, keys) / scale
        hidden = ~inputs.mask[:, None, None, :]
        if causal:
            hidden = hidden | torch.ones(20, 20).triu(1).bool()
        expected = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        real = inputs.mask
        torch.testing.assert_close(
            pattern.transpose(1, 2)[real], expected.transpose(1, 2)[real], rtol=0, atol=5e-5
        )


# --------------------------------------------------------------------------------- folders, names and objects


def own(model):
    """Hugging Face's own patterns of some padded documents, in the order of our sites."""
    ids, mask = zoo.documents()
    patterns = zoo.own_patterns(model, sites.Inputs(ids, mask))
    return patterns["self"]


@pytest.mark.parametrize(
    "name", ["bert", "bert-headless", "gpt2", "gpt2-headless", "albert", "modernbert", "t5-encoder"]
)
def test_a_folder_gives_the_model_that_was_saved(name, tmp_path):
    model = zoo.make(name)
    model.save_pretrained(tmp_path)
    hooked = opening.open_model(str(tmp_path) if name == "bert" else tmp_path)
    assert type(hooked.original_model) is type(model)
    assert type(hooked).__name__ == "HuggingFaceHost"
    for shown, expected in zip(patterns_of(hooked), own(model), strict=True):
        real = zoo.documents()[1]
        torch.testing.assert_close(
            shown.transpose(1, 2)[real], expected.transpose(1, 2)[real], rtol=0, atol=5e-5
        )
    assert torch.equal(capture.word_embeddings(hooked), model.get_input_embeddings().weight)
    assert hooked.tokenizer is None
    assert not any(module.training for module in hooked.original_model.modules())
    assert capture.facts(hooked).description["name"] == str(tmp_path)


def test_a_folder_relative_to_the_home_directory_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    zoo.make("bert-headless").save_pretrained(tmp_path / "model")
    assert capture.facts(opening.open_model("~/model")).vocabulary_size == zoo.VOCABULARY


def test_the_real_checkpoint_opens_with_its_tokenizer():
    hooked = opening.open_model(minilm_folder())
    assert capture.word_embeddings(hooked).shape == (30522, 384)
    view = capture.view(hooked)
    assert [(site.stack, site.layer) for site in view.sites] == [("self", layer) for layer in range(6)]
    assert view.n_heads == (12,) * 6
    assert view.sharing.lengths
    assert view.tap is not None
    assert hooked.tokenizer.convert_tokens_to_ids(["[CLS]", "topic"]) == [101, 8476]
    assert capture.facts(hooked).special_ids == {0, 100, 101, 102, 103}
    model = hf.BertModel.from_pretrained(minilm_folder(), attn_implementation="eager")
    ids = torch.tensor([hooked.tokenizer("a frog and a toad", add_special_tokens=True)["input_ids"]])
    with torch.no_grad():
        expected = model(ids, attention_mask=torch.ones_like(ids), output_attentions=True).attentions
    inputs, found = view.inputs(ids, torch.ones_like(ids).bool()), {}
    view.attention_rows(
        inputs, rows_of(inputs), lambda number, rows, _: found.__setitem__(number, rows.clone())
    )
    for number in range(6):
        torch.testing.assert_close(found[number], expected[number], rtol=0, atol=5e-5)


def test_loaded_models_take_the_dtype_and_device_asked_for(tmp_path):
    zoo.make("bert").save_pretrained(tmp_path)
    hooked = opening.open_model(tmp_path, dtype=torch.bfloat16, device="cpu")
    assert capture.word_embeddings(hooked).dtype == torch.bfloat16
    assert capture.facts(hooked).description["dtype"] == "bfloat16"
    assert capture.view(hooked).sharing.lengths


def test_a_head_that_the_checkpoint_does_not_hold_is_left_out_and_never_random(tmp_path):
    model = zoo.make("bert-headless")
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["architectures"] = ["BertForMaskedLM"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    hooked = opening.open_model(tmp_path)
    assert type(hooked.original_model) is hf.BertModel
    for shown, expected in zip(patterns_of(hooked), own(model), strict=True):
        torch.testing.assert_close(shown[0], expected[0], rtol=0, atol=5e-5)


@pytest.mark.parametrize(
    "lost", ["encoder.layer.1.attention.self.key.weight", "embeddings.word_embeddings.weight"]
)
def test_a_checkpoint_that_lacks_weights_is_refused(lost, tmp_path):
    from safetensors.torch import load_file, save_file

    zoo.make("bert-headless").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[lost]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=rf"lacks 1 weights of BertModel \(such as '{lost}'\)"):
        opening.open_model(tmp_path)


def test_a_fresh_pooler_is_no_reason_to_refuse(tmp_path):
    model = hf.BertModel(hf.BertConfig(**zoo._encoder), add_pooling_layer=False)
    model.save_pretrained(tmp_path)
    assert len(capture.view(opening.open_model(tmp_path)).sites) == 3


def test_a_missing_folder_is_an_error_that_names_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        opening.open_model(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"there is no folder '\./nowhere'"):
        opening.open_model("./nowhere")


def test_a_folder_without_a_model_is_an_error_that_says_what_is_missing(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"holds no config\.json; give one that save_pretrained has written"
    ):
        opening.open_model(tmp_path)


@pytest.mark.parametrize("damage", ["config.json", "model.safetensors", "no weights"])
def test_damaged_files_are_an_error_that_names_the_folder(damage, tmp_path):
    zoo.make("bert-headless").save_pretrained(tmp_path)
    if damage == "no weights":
        (tmp_path / "model.safetensors").unlink()
    else:
        content = (tmp_path / damage).read_bytes()
        (tmp_path / damage).write_bytes(content[: len(content) // 2])
    with pytest.raises(
        OSError, match=f"(?s)cannot load '{tmp_path}'.*Give a folder that save_pretrained has written"
    ):
        opening.open_model(tmp_path)


def test_an_unknown_architecture_is_an_error_that_names_it(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "never-heard-of"}))
    with pytest.raises(ValueError, match="never-heard-of"):
        opening.open_model(tmp_path)


def test_a_hub_name_without_a_network_says_how_to_get_the_files():
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    with pytest.raises(
        OSError, match=r"(?s)cannot load 'google-bert/bert-base-uncased'.*hf download google-bert/bert"
    ):
        opening.open_model("google-bert/bert-base-uncased")


@pytest.mark.parametrize("source", [None, 3, nn.Linear(2, 2), hf.BertModel, {"a": 1}, torch.zeros(2)])
def test_anything_else_is_a_type_error(source):
    with pytest.raises(
        TypeError, match="open_model needs a hooked model, a Hugging Face model, a folder or a name"
    ):
        opening.open_model(source)


def test_what_is_no_tokenizer_is_refused_before_a_model_is_hooked():
    with pytest.raises(TypeError, match="a Hugging Face tokenizer is needed, got 'bert-base-uncased'"):
        opening.open_model(zoo.make("bert"), tokenizer="bert-base-uncased")


def save_word_level_tokenizer(folder):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"[UNK]": 0, "[PAD]": 1} | {f"w{index}": index for index in range(2, zoo.VOCABULARY)}
    backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")
    tokenizer.save_pretrained(folder)
    return tokenizer


@pytest.mark.parametrize("name", ["bert", "bert-headless"])
def test_a_folder_brings_its_tokenizer_unless_another_is_given(name, tmp_path):
    zoo.make(name).save_pretrained(tmp_path)
    saved = save_word_level_tokenizer(tmp_path)
    hooked = opening.open_model(tmp_path)
    assert hooked.tokenizer("w3 w4 never")["input_ids"] == [3, 4, 0]
    assert tokenizer_hash(hooked.tokenizer) == tokenizer_hash(saved)
    assert {0, 1} <= capture.facts(hooked).special_ids
    given = opening.open_model(tmp_path, tokenizer=hf.ByT5Tokenizer())
    assert tokenizer_hash(given.tokenizer) == tokenizer_hash(hf.ByT5Tokenizer())
    assert isinstance(capture.facts(given).pad_id, int)


# --------------------------------------------------------------------------------------- the trial at opening


def test_a_model_is_run_no_more_often_than_its_checks_need(monkeypatch):
    runs, forward = [], hf.BertModel.forward

    def counted(*given, **options):
        runs.append(len(options["input_ids"]))
        return forward(*given, **options)

    counted.__signature__ = inspect.signature(forward)
    monkeypatch.setattr(hf.BertModel, "forward", counted)
    hooked = opening.open_model(zoo.make("bert"))
    # As it is, its calls of attention, the patterns that it returns, on the fused kernel, and two documents alone.
    assert sorted(runs) == [1] * 2 + [2] * 4
    runs.clear()
    capture.view(hooked)
    assert runs == []


@pytest.mark.parametrize("host", ["bridge", "huggingface"])
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("take_rows", lambda table, index, true=huggingface.take_rows: true(table, index).flip(2)),
        ("visible_keys", lambda mask, batch, *shape: torch.ones(batch, *shape, dtype=torch.bool)),
    ],
)
def test_rows_beside_the_fused_kernel_that_are_not_those_of_the_patterns_are_not_used(
    name, wrong, host, monkeypatch
):
    model = zoo.make("bert")
    assert capture.view(zoo.hosted(model, host)).tap is not None
    monkeypatch.setattr(huggingface, name, wrong)
    hooked = zoo.hosted(model, host)
    assert capture.view(hooked).tap is None
    hooked.original_model.config.note = "a setting that changed, so that the trial is made again"
    assert capture.view(hooked).tap is None


def mamba():
    config = hf.MambaConfig(vocab_size=zoo.VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=8)
    return hf.MambaForCausalLM(config).eval()


def test_a_model_without_attention_opens_for_its_embeddings_and_says_why_it_has_no_attention():
    model = mamba()
    hooked = opening.open_model(model)
    assert capture.sites(hooked) == ()
    topics = tp.Topics.from_token_ids({"a": [5, 6], "b": [7, 8]}, vocabulary_size=zoo.VOCABULARY)
    from topic_probe.measure.embeddings import measure_embeddings

    report = measure_embeddings(hooked, topics, n_resamples=0)
    table = model.get_input_embeddings().weight.detach().double()
    cosine = torch.nn.functional.cosine_similarity(table[5], table[6], dim=0)
    other = torch.nn.functional.cosine_similarity(table[7], table[8], dim=0)
    assert float(report.cosine.same_topic) == pytest.approx(float((cosine + other) / 2), abs=1e-9)
    with pytest.raises(
        ValueError, match=r"attention of \w+\(MambaForCausalLM\) cannot be read: .*embeddings still works"
    ):
        tp.measure_attention(hooked, topics, [[5, 6, 7, 8]])


def test_a_model_whose_forward_fails_on_plain_tokens_still_opens_and_the_failure_is_told():
    config = hf.XmodConfig(**zoo._encoder, languages=["a", "b"])
    hooked = opening.open_model(hf.XmodModel(config))
    with pytest.raises(ValueError, match="cannot be read: Input language unknown"):
        capture.view(hooked)


@pytest.mark.parametrize(
    ("model_class", "config"),
    [
        (hf.LongformerModel, lambda: hf.LongformerConfig(**zoo._encoder, attention_window=4)),
        (
            hf.FunnelModel,
            lambda: hf.FunnelConfig(vocab_size=97, block_sizes=[1, 1], d_model=32, n_head=4, d_head=8),
        ),
    ],
)
def test_attention_in_windows_or_pools_that_is_no_pattern_over_pairs_is_refused(model_class, config):
    hooked = opening.open_model(model_class(config()).eval())
    with pytest.raises(ValueError, match=r"queries and .* keys for \d+ tokens"):
        capture.view(hooked)


@pytest.mark.parametrize("make", ["vit", "clip"])
def test_a_model_without_words_is_refused(make):
    vision = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "image_size": 8,
        "patch_size": 4,
    }
    models = {
        "vit": lambda: hf.ViTModel(hf.ViTConfig(**vision)),
        "clip": lambda: hf.CLIPModel(hf.CLIPConfig(text_config=zoo._encoder, vision_config=vision)),
    }
    with pytest.raises(ValueError, match=r"has no table of word embeddings\. If a part of it reads text"):
        opening.open_model(models[make]())


def test_the_text_part_of_a_model_can_be_opened():
    config = hf.CLIPTextConfig(**zoo._encoder)
    view = capture.view(opening.open_model(hf.CLIPTextModel(config)))
    assert [site.stack for site in view.sites] == ["self"] * 3


def test_a_decoder_without_its_encoder_has_one_stack():
    model = hf.BartForCausalLM(hf.BartConfig(**zoo._bart(2, 2))).eval()
    hooked = opening.open_model(model)
    assert [site.stack for site in capture.sites(hooked)] == ["self", "self"]
    for shown, expected in zip(patterns_of(hooked), own(model), strict=True):
        torch.testing.assert_close(shown[0], expected[0], rtol=0, atol=5e-5)


# ----------------------------------------------------------------------------- the adapter-free host as a model


def test_the_adapter_free_host_works_with_the_tools_of_transformerlens():
    model = zoo.make("albert")
    hooked = opening.open_model(model)
    ids, mask = zoo.documents()
    _, cache = hooked.run_with_cache(ids, mask, names_filter=lambda name: name.endswith("hook_pattern"))
    expected = zoo.own_patterns(model, sites.Inputs(ids, mask))["self"]
    assert list(cache.keys()) == [f"blocks.{layer}.attn.hook_pattern" for layer in range(3)]
    for layer in range(3):
        torch.testing.assert_close(cache[f"blocks.{layer}.attn.hook_pattern"], expected[layer])
    plain = model(ids, attention_mask=mask.long()).logits
    edited = hooked.run_with_hooks(
        ids, mask, fwd_hooks=[("blocks.0.attn.hook_pattern", lambda pattern, hook: pattern.roll(1, 1))]
    ).logits
    assert (edited - plain).abs().max() > 1e-3
    torch.testing.assert_close(hooked(ids, mask).logits, plain)
    assert "logits" not in hooked(ids, mask, head=False)


@pytest.mark.parametrize("name", ["bert-headless", "mpnet"])
def test_the_adapter_free_host_takes_the_options_of_the_model(name):
    hooked = opening.open_model(zoo.make(name))
    answer = hooked(*zoo.documents(), output_attentions=True, output_hidden_states=True)
    assert len(answer.attentions) == 3
    assert len(answer.hidden_states) == 4


def test_a_host_that_asks_a_model_for_its_patterns_leaves_nothing_on_it():
    model = zoo.make("mpnet")
    before = snapshot(model)
    opening.open_model(model)(*zoo.documents())
    assert_unchanged(model, before)


def test_a_copy_of_a_host_reads_its_own_weights():
    hooked = opening.open_model(zoo.make("albert-headless"))
    twin = copy.deepcopy(hooked)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(1.5)
    assert (patterns_of(twin)[0] - patterns_of(hooked)[0]).abs().max() > 1e-3


def test_layers_that_are_taken_out_after_opening_are_noticed():
    model = zoo.make("bert-headless")
    hooked = opening.open_model(model)
    view = capture.view(hooked)
    inputs = view.inputs(*zoo.documents())
    model.encoder.layer = nn.ModuleList(
        [model.encoder.layer[1], model.encoder.layer[0], model.encoder.layer[2]]
    )
    for through in ("hooks", "rows"):
        with pytest.raises(
            ValueError, match="attention call 0 comes from another layer than in the trial run"
        ):
            view.attention_rows(inputs, rows_of(inputs), lambda *_: None, through=through)
    model.encoder.layer = model.encoder.layer[1:2]
    for through in ("hooks", "rows"):
        with pytest.raises(ValueError, match="only 1 of 3 attention calls were seen"):
            view.attention_rows(inputs, rows_of(inputs), lambda *_: None, through=through)


# --------------------------------------------------------------------------------------------- untrained twins


def parameters_of(hooked):
    inside = adapters.adapter(hooked).inside
    return dict((hooked if inside is None else inside).named_parameters())


def trained(name):
    return OWN_LAYERS[name]() if name in OWN_LAYERS else opening.open_model(zoo.make(name))


@pytest.mark.parametrize(
    "name",
    [
        *OWN_LAYERS,
        *("bert", "bart", "albert", "electra-headless", "gpt2", "gpt2-headless", "modernbert"),
        *("t5-encoder", "mpnet"),
    ],
)
def test_an_untrained_twin_has_the_same_architecture_and_weights_that_depend_on_the_seed_only(name):
    model = trained(name)
    model.train(name == "bert")
    before = {key: parameter.clone() for key, parameter in parameters_of(model).items()}
    state = generators()
    twin, again, other = (opening.random_init(model, seed=seed) for seed in (1, 1, 2))
    assert generators() == state
    assert all(torch.equal(before[key], parameter) for key, parameter in parameters_of(model).items())
    assert type(twin) is type(model)
    assert capture.sites(twin) == capture.sites(model)
    assert twin.training == model.training
    tables = [capture.word_embeddings(one) for one in (model, twin, again, other)]
    assert torch.equal(tables[1], tables[2])
    same = parameters_of(again)
    assert parameters_of(twin).keys() == before.keys() == same.keys()
    for key, parameter in parameters_of(twin).items():
        assert parameter.shape == before[key].shape
        assert torch.equal(parameter, same[key]), key
        assert parameter.isfinite().all()
        if parameter.ndim > 1 and name != "toy" and ".b_" not in key:
            assert not torch.equal(parameter, before[key]), key
            assert not torch.equal(parameter, parameters_of(other)[key]), key
    assert (tables[1] - tables[0]).abs().max() > 1e-3
    assert (tables[1] - tables[3]).abs().max() > 1e-3
    assert (patterns_of(twin)[0] - patterns_of(model)[0]).abs().max() > 1e-4


@pytest.mark.parametrize("name", [name for name in OWN_LAYERS if name != "toy"])
def test_nothing_of_the_training_is_left_in_a_twin(name):
    twin = opening.random_init(trained(name))
    for key, parameter in parameters_of(twin).items():
        if parameter.ndim == 1 or key.rpartition(".")[2].startswith("b_"):
            assert set(parameter.flatten().tolist()) in ({0.0}, {1.0}), key


def test_opening_a_folder_draws_no_bar_over_its_weights_and_leaves_bars_as_they_were(capsys):
    from transformers.utils import logging as settings

    for shown in (True, False):
        (settings.enable_progress_bar if shown else settings.disable_progress_bar)()
        try:
            opening.open_model(minilm_folder())
            assert settings.is_progress_bar_enabled() == shown
        finally:
            settings.enable_progress_bar()
    assert "Loading" not in capsys.readouterr().err


def test_a_twin_has_the_tokenizer_of_its_model_and_does_not_tell_of_its_begin_token_again():
    tokenizer = small_language.five_words("$A", bos_token="<s>")
    with pytest.warns(UserWarning, match="begin token"):
        model = opening.open_model(zoo.make("gpt2"), tokenizer=tokenizer)
    assert opening.random_init(model).tokenizer is tokenizer


def test_a_twin_of_a_bridge_has_the_architecture_of_the_model_inside():
    bridge = zoo.bridge(zoo.make("bert"))
    twin = opening.random_init(bridge, seed=1)
    assert type(twin.original_model) is hf.BertForMaskedLM
    assert capture.sites(twin) == capture.sites(bridge)
    assert torch.equal(twin.W_E, opening.random_init(zoo.make("bert"), seed=1).W_E)


def test_a_twin_does_not_take_over_hooks_and_has_the_dtype_of_the_model():
    model = opening.open_model(zoo.make("albert").double())
    model.hook_dict["blocks.0.attn.hook_pattern"].add_hook(lambda *_: None)
    twin = opening.random_init(model)
    assert not any(point.fwd_hooks for point in twin.hook_dict.values())
    assert capture.word_embeddings(twin).dtype == torch.float64
    own_layers = trained("native").double()
    own_layers.hook_dict["blocks.0.attn.hook_pattern"].add_hook(lambda *_: None)
    twin = opening.random_init(own_layers)
    assert not any(point.fwd_hooks for point in twin.hook_dict.values())
    assert capture.word_embeddings(twin).dtype == torch.float64


def test_a_model_that_does_not_say_how_it_starts_has_no_twin():
    from transformer_lens.hook_points import HookPoint

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2))
            self.hook_dict = {"hook": HookPoint()}

        def hooks(self):
            pass

    with pytest.raises(ValueError, match="Own does not say how its weights are initialised"):
        opening.random_init(Own())


# -------------------------------------------------------------------------------------------- what users see


OPENING = """
import contextlib, io, logging, random, warnings
import torch, transformers
import transformer_lens.hook_points, transformer_lens.model_bridge.sources

def seen_by_users():
    root = logging.getLogger()
    return (list(warnings.filters), transformers.logging.get_verbosity(), root.level, list(root.handlers),
            torch.is_grad_enabled(), torch.get_num_threads(), torch.get_default_dtype(), random.getstate())

before = seen_by_users()
told, shown = [], io.StringIO()
warnings.showwarning = lambda *given, **options: told.append(given)
config = transformers.BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
    import topic_probe as tp
    from topic_probe.lens import capture
    hooked = tp.open_model(transformers.BertForMaskedLM(config))
    capture.view(hooked)
    tp.random_init(hooked)
assert not told, told
assert not shown.getvalue(), shown.getvalue()
assert seen_by_users() == before
"""


def test_opening_a_model_prints_and_warns_nothing_and_changes_no_more_than_importing_transformerlens():
    done = subprocess.run([sys.executable, "-c", OPENING], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Models that need a word, or more.


def adapted(name, **targets):
    import peft

    model = peft.get_peft_model(zoo.make(name), peft.LoraConfig(r=2, **targets)).eval()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # adapters begin as zeros
    return model


# What PEFT and torch say of themselves.
of_peft = pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing:FutureWarning", "ignore:fan_in_fan_out:UserWarning"
)
of_quantisation = pytest.mark.filterwarnings(
    "ignore:.*torch.ao.quantization is deprecated:DeprecationWarning",
    "ignore:torch.quantize_per_tensor:UserWarning",
)


@of_peft
@pytest.mark.parametrize(
    ("name", "targets"), [("bert", ["query", "value"]), ("gpt2", ["c_attn"]), ("t5", ["q", "v"])]
)
def test_a_model_of_peft_is_read_with_its_adapters_and_has_an_untrained_twin(name, targets):
    model = adapted(name, target_modules=targets)
    hooked = tp.open_model(model)
    view = capture.view(hooked)
    inputs = view.inputs(*zoo.documents())
    own = zoo.own_patterns(model.get_base_model(), inputs)  # with the adapters in its layers
    without = zoo.own_patterns(copy.deepcopy(model).unload(), inputs)
    for site, pattern in zip(view.sites, patterns_of(hooked), strict=True):
        real = inputs.masks(site)[0]
        taken, true, bare = (
            rows.transpose(1, 2)[real]
            for rows in (pattern, own[site.stack][site.layer], without[site.stack][site.layer])
        )
        torch.testing.assert_close(taken, true, rtol=0, atol=1e-5)
        assert (taken - bare).abs().max() > 1e-3
    twins = [tp.random_init(model, seed=seed).original_model for seed in (1, 1, 2)]
    states = [twin.state_dict() for twin in twins]
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())
    assert any(not torch.equal(value, states[2][key]) for key, value in states[0].items())
    assert {key: value.shape for key, value in states[0].items()} == {
        key: value.shape for key, value in tp.open_model(model).original_model.state_dict().items()
    }
    assert not any(value.any() for key, value in states[0].items() if "lora_B" in key)


@of_peft
def test_learned_prompts_are_refused():
    import peft

    prompts = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = peft.get_peft_model(zoo.make("gpt2"), prompts)
    with pytest.raises(ValueError, match=r"learned prompts before the words .*get_base_model\(\)"):
        tp.open_model(model)


def test_mpt_takes_no_more_tokens_than_its_positions_reach():
    config = hf.MptConfig(d_model=32, n_heads=4, n_layers=1, max_seq_len=16, vocab_size=zoo.VOCABULARY)
    model = tp.open_model(hf.MptForCausalLM(config).eval())
    assert capture.view(model).facts.context_length == 16
    topics = tp.Topics.from_token_ids({"a": [5, 6], "b": [7, 8]}, vocabulary_size=zoo.VOCABULARY)
    report = tp.measure_attention(model, topics, [[5, 6, 7, 8] * 10], n_resamples=0, n_permutations=0)
    assert report.provenance["options"]["max_length"] == 16


@of_quantisation
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_a_model_in_dynamic_int8_is_measured_and_its_weights_are_refused(name):
    model = torch.ao.quantization.quantize_dynamic(zoo.make(name), {nn.Linear}, dtype=torch.qint8)
    hooked = tp.open_model(model)
    view = capture.view(hooked)
    ids = zoo.documents()[0][:1]
    inputs = view.inputs(ids, torch.ones_like(ids, dtype=torch.bool))
    for site, pattern in capture.patterns(hooked, inputs).items():
        true = zoo.own_patterns(model, inputs)[site.stack][site.layer]
        torch.testing.assert_close(pattern, true, rtol=0, atol=1e-5)
    topics = tp.Topics.from_token_ids({"a": [5, 6], "b": [7, 8]}, vocabulary_size=zoo.VOCABULARY)
    with pytest.raises(ValueError, match="are quantised, so matrices of heads cannot be read off them"):
        tp.measure_weights(hooked, topics, n_resamples=0)
    del model.get_input_embeddings().weight
    model.get_input_embeddings().__dict__["weight"] = lambda: None  # what quantised embeddings have
    with pytest.raises(ValueError, match=r"word embeddings of .* are quantised"):
        tp.open_model(model)


@pytest.mark.parametrize("open_it", [tp.open_model, tp.random_init])
def test_a_model_without_numbers_says_so(open_it):
    with torch.device("meta"):
        model = hf.BertModel(zoo.make("bert").config)
    n = len(list(model.parameters()))
    with pytest.raises(ValueError, match=f"{n} of {n} weights of BertModel are on the meta device"):
        open_it(model)


def test_scores_that_are_returned_for_attention_are_no_patterns():
    sizes = {"hidden_size": 32, "embedding_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    config = hf.SqueezeBertConfig(vocab_size=zoo.VOCABULARY, num_attention_heads=4, **sizes)
    model = hf.SqueezeBertModel(config).eval()
    ids = zoo.documents()[0]
    with torch.no_grad():
        returned = model(ids, output_attentions=True).attentions[0]
    assert (returned < 0).any()  # so Hugging Face's own are none either
    with pytest.raises(
        ValueError, match="scores from before the softmax, as SqueezeBERT returns them, are none"
    ):
        capture.view(tp.open_model(model))
