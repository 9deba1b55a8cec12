"""Everything that can be opened, everything that cannot, and that what is given comes back as it went in."""

import copy
import gc
import json
import warnings
import weakref

import pytest
import small_language
import torch
import transformers as hf
import zoo
from real_text import minilm_folder
from torch import nn

import topic_probe as tp
from topic_probe.lens import adapters, capture, opening
from topic_probe.topics.lookup import tokenizer_hash

TOPICS = tp.Topics.from_token_ids({"a": [5, 6], "b": [7, 8]}, vocabulary_size=zoo.VOCABULARY)


def patterns_of(hooked):
    view = capture.view(hooked)
    return [pattern for pattern, _ in zoo.read(view, view.inputs(*zoo.documents())).values()]


# ---------------------------------------------------------------------------------- nothing given is changed


@pytest.mark.parametrize("name", zoo.cases(["bert", "albert", "bart", "mpnet"], zoo.ARCHITECTURES))
def test_a_hugging_face_model_comes_back_as_it_went_in_and_keeps_its_hooks(name):
    model, seen = zoo.make(name), []
    for number, module in enumerate(model.modules()):
        module.training = number % 2 == 0
    model.base_model.register_forward_hook(lambda *_: seen.append(1))
    before, weights = zoo.state_of(model), copy.deepcopy(model.state_dict())
    hooked = opening.open_model(model)
    view = capture.view(hooked)
    inputs = view.inputs(*zoo.documents())
    for way in zoo.ways(view):
        zoo.read(view, inputs, way)
    capture.hidden_states(hooked, inputs, lambda *_: None)
    opening.random_init(hooked, seed=1)
    assert zoo.state_of(model) == before
    assert all(torch.equal(tensor, weights[key]) for key, tensor in model.state_dict().items())
    seen.clear()
    hooked(**zoo.arguments(inputs))
    assert seen


HOOKED = zoo.OWN_LAYERS | {
    "bridge": lambda: zoo.bridge(zoo.make("gpt2")),
    "albert": lambda: opening.open_model(zoo.make("albert")),
}


@pytest.mark.generation
@pytest.mark.parametrize("name", HOOKED)
def test_a_hooked_model_is_returned_as_it_is_and_keeps_its_hooks_and_mode(name):
    model, seen = HOOKED[name](), []
    for number, module in enumerate(model.modules()):
        module.training = number % 2 == 0
    model.hook_dict[capture.sites(model)[0].hook_name].add_hook(
        lambda pattern, hook: seen.append(tuple(pattern.shape))
    )
    if residual := model.hook_dict.get("blocks.1.hook_resid_pre"):
        residual.add_hook(lambda state, hook: seen.append("residual"))
    assert opening.open_model(model, device="cpu") is model
    view = capture.view(model)
    assert seen == []  # a trial run is nothing that the user asked for
    before = zoo.state_of(model)
    patterns_of(model)
    assert (3, view.n_heads[0], 20, 20) in seen
    assert ("residual" in seen) == bool(residual)
    assert zoo.state_of(model) == before


def test_a_causal_model_tells_of_a_begin_token_that_its_tokenizer_leaves_out():
    for name, template, special, left_out in (
        ("gpt2", "$A", {"bos_token": "<s>", "eos_token": "<s>"}, True),  # as GPT-2 and SmolLM2 have it
        ("gpt2", "<s> $A", {"bos_token": "<s>"}, False),
        ("gpt2", "$A", {"eos_token": "<s>"}, False),  # without any, as Qwen2
        ("bert", "$A", {"bos_token": "<s>"}, False),  # sees in both directions
    ):
        tokenizer = small_language.five_words(template, **special)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            hooked = tp.open_model(zoo.make(name), tokenizer=tokenizer)
            told = len(said)
            assert opening.random_init(hooked).tokenizer is tokenizer
        assert told == len(said) == left_out  # a twin does not tell of it again
        assert not left_out or "(<s>) and puts it before no text" in str(said[0].message)


# --------------------------------------------------------------------------------- folders, names and objects


@pytest.mark.parametrize(
    "name", zoo.cases(["bert", "gpt2-headless"], ["bert-headless", "albert", "t5-encoder"])
)
def test_a_folder_gives_the_model_that_was_saved_and_its_tokenizer_unless_another_is_given(
    name, tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    model, folder = zoo.make(name), tmp_path / "model"
    model.save_pretrained(folder)
    hooked = opening.open_model("~/model")
    assert type(hooked.original_model) is type(model)
    assert all(
        torch.equal(own, hooked.original_model.state_dict()[key]) for key, own in model.state_dict().items()
    )
    assert not any(module.training for module in hooked.original_model.modules())
    assert hooked.tokenizer is None
    assert capture.facts(hooked).description["name"] == str(folder)
    small_language.five_words("<s> $A", bos_token="<s>").save_pretrained(folder)
    hooked = opening.open_model(str(folder), dtype=torch.bfloat16, device="cpu")
    assert hooked.tokenizer("same words")["input_ids"][0] == hooked.tokenizer.bos_token_id
    assert capture.word_embeddings(hooked).dtype == torch.bfloat16
    given = opening.open_model(folder, tokenizer=hf.ByT5Tokenizer())
    assert tokenizer_hash(given.tokenizer) == tokenizer_hash(hf.ByT5Tokenizer())


def test_the_real_checkpoint_opens_with_its_tokenizer_and_without_a_bar(capsys):
    hooked = opening.open_model(minilm_folder())
    assert "Loading" not in capsys.readouterr().err
    view = capture.view(hooked)
    assert [(site.stack, site.layer) for site in view.sites] == [("self", layer) for layer in range(6)]
    assert view.n_heads == (12,) * 6
    assert hooked.tokenizer.convert_tokens_to_ids(["[CLS]", "topic"]) == [101, 8476]
    assert capture.facts(hooked).special_ids == {0, 100, 101, 102, 103}
    ids = torch.tensor([hooked.tokenizer("a frog and a toad", add_special_tokens=True)["input_ids"]])
    inputs = view.inputs(ids, torch.ones_like(ids).bool())
    zoo.assert_same_patterns(zoo.read(view, inputs), zoo.own_patterns(hooked.original_model, inputs), inputs)


def test_a_head_that_the_checkpoint_does_not_hold_is_left_out_and_never_random(tmp_path):
    zoo.make("bert-headless").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["BertForMaskedLM"]}))
    hooked = opening.open_model(tmp_path)
    assert type(hooked.original_model) is hf.BertModel
    case = zoo.opened("bert-headless")
    zoo.assert_same_patterns(
        zoo.read(capture.view(hooked), case.inputs), zoo.own_patterns(case.model, case.inputs), case.inputs
    )
    hf.BertModel(hf.BertConfig(**zoo._encoder), add_pooling_layer=False).save_pretrained(tmp_path)
    assert len(capture.view(opening.open_model(tmp_path)).sites) == 3  # a fresh pooler is no reason to refuse


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


def test_what_is_no_model_is_refused(tmp_path, unchecked):
    for source, error, message in (
        (tmp_path / "nowhere", FileNotFoundError, r"there is no folder .*nowhere"),
        ("./nowhere", FileNotFoundError, r"there is no folder '\./nowhere'"),
        (tmp_path, FileNotFoundError, r"holds no config\.json; give one that save_pretrained has written"),
        (
            "google-bert/bert-base-uncased",
            OSError,
            r"(?s)cannot load 'google-bert/bert.*hf download google-bert/bert",
        ),
        *(
            (source, TypeError, "needs a hooked model, a Hugging Face")
            for source in (None, nn.Linear(2, 2), hf.BertModel)
        ),
    ):
        with pytest.raises(error, match=message):
            opening.open_model(source)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "never-heard-of"}))
    with pytest.raises(ValueError, match="never-heard-of"):
        opening.open_model(tmp_path)
    with pytest.raises(TypeError, match="a Hugging Face tokenizer is needed, got 'bert-base-uncased'"):
        opening.open_model(zoo.make("bert"), tokenizer="bert-base-uncased")


# --------------------------------------------------------------------------------------- the trial at opening


def other_weights(model):
    with torch.no_grad():
        model.W_E.mul_(3)


def documents_read_each_other(model):
    model.original_model.embeddings.register_forward_hook(
        lambda _, __, states: states + states.mean(0, keepdim=True)
    )


def other_module(model):
    layers = model.original_model.encoder.layer
    layers[1].intermediate = copy.deepcopy(layers[1].intermediate)


CHANGES = {
    "weights": other_weights,
    "a hook by which documents read each other": documents_read_each_other,
    "a module": other_module,
    "attention": lambda m: m.original_model.set_attn_implementation("eager"),
    "layers": lambda m: setattr(m.original_model.config, "is_decoder", True),
    "dtype": lambda m: m.double(),
    "words": lambda m: m.original_model.resize_token_embeddings(zoo.VOCABULARY + 8),
    "mode": lambda m: m.train(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_opening_is_a_trial_and_a_model_that_changes_later_is_read_as_it_is_then(change):
    given, passes = zoo.make("bert-headless"), []
    given.embeddings.register_forward_hook(lambda *_: passes.append(1))
    model = opening.open_model(given)
    passes.clear()
    capture.view(model)
    assert not passes
    tp.measure_attention(
        model, TOPICS, zoo.lists((20, 20, 20)), n_permutations=0, n_resamples=0, batch_size=2
    )
    assert 0 < len(passes) <= 2  # those of its documents
    CHANGES[change](model)
    later, fresh = capture.view(model), capture.view(opening.open_model(model.original_model))
    assert (later.sites, later.n_heads, later.causal) == (fresh.sites, fresh.n_heads, fresh.causal)
    assert (later.sharing.lengths, later.sharing.batches) == (fresh.sharing.lengths, fresh.sharing.batches)
    assert later.causal == (change == "layers",) * 3
    assert later.sharing.batches == (change != "a hook by which documents read each other")
    found, expected = (zoo.read(view, view.inputs(*zoo.documents())) for view in (later, fresh))
    for site in fresh.sites:
        torch.testing.assert_close(found[site][0], expected[site][0], rtol=0, atol=1e-6)
        assert torch.equal(found[site][1], expected[site][1])


@pytest.mark.parametrize("name", ["albert", "bridge", "toy"])
def test_a_trial_keeps_no_model_alive(name):
    model = HOOKED[name]()
    inside = adapters.adapter(model).inside
    for module in (model if inside is None else inside).modules():
        module.whole = (model,)  # a part that leads back to the whole
    capture.view(model)
    layers = [weakref.ref(module) for module in (model if inside is None else inside).modules()]
    del model, inside, module
    gc.collect()
    assert [layer for layer in layers if layer() is not None] == []


def test_a_model_without_attention_opens_for_its_embeddings_and_says_why_it_has_no_attention():
    config = hf.MambaConfig(vocab_size=zoo.VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=8)
    model = hf.MambaForCausalLM(config).eval()
    hooked = opening.open_model(model)
    report = tp.measure_embeddings(hooked, TOPICS, n_resamples=0)
    table = model.get_input_embeddings().weight.detach().double()
    expected = torch.nn.functional.cosine_similarity(table[[5, 7]], table[[6, 8]]).mean()
    assert float(report.cosine.same_topic) == pytest.approx(float(expected), abs=1e-9)
    with pytest.raises(
        ValueError, match=r"of \w+\(MambaForCausalLM\) cannot be read: .*embeddings still works"
    ):
        tp.measure_attention(hooked, TOPICS, [[5, 6, 7, 8]])


_vision = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "image_size": 8,
    "patch_size": 4,
}
_squeezed = {"hidden_size": 32, "embedding_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
_funnel = {"vocab_size": 97, "block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8}
UNREADABLE = {
    "Input language unknown": lambda: hf.XmodModel(hf.XmodConfig(**zoo._encoder, languages=["a", "b"])),
    r"queries and .* keys for 1[0-9] tokens": lambda: hf.LongformerModel(
        hf.LongformerConfig(**zoo._encoder, attention_window=4)
    ),
    "4 queries and 8 keys for 8 tokens": lambda: hf.FunnelModel(hf.FunnelConfig(**_funnel)),
    "scores from before the softmax, as SqueezeBERT returns them, are none": lambda: hf.SqueezeBertModel(
        hf.SqueezeBertConfig(vocab_size=zoo.VOCABULARY, num_attention_heads=4, **_squeezed)
    ),
    r"has no table of word embeddings\. If a part of it reads text": lambda: hf.ViTModel(
        hf.ViTConfig(**_vision)
    ),
    "weights of BertModel are on the meta device": lambda: zoo.make("bert-headless").to("meta"),
}


@pytest.mark.parametrize("sentence", UNREADABLE)
def test_what_cannot_be_read_says_why(sentence):
    with pytest.raises(ValueError, match=sentence):
        capture.view(opening.open_model(UNREADABLE[sentence]().eval()))


@pytest.mark.parametrize("part", ["text of CLIP", "decoder of BART"])
def test_the_text_part_of_a_model_can_be_opened_and_a_decoder_without_its_encoder_has_one_stack(part):
    model = {
        "text of CLIP": lambda: hf.CLIPTextModel(hf.CLIPTextConfig(**zoo._encoder)),
        "decoder of BART": lambda: hf.BartForCausalLM(hf.BartConfig(**zoo._bart(2, 2))),
    }[part]().eval()
    view = capture.view(opening.open_model(model))
    assert {site.stack for site in view.sites} == {"self"}
    inputs = view.inputs(*zoo.documents())
    zoo.assert_same_patterns(zoo.read(view, inputs), zoo.own_patterns(model, inputs), inputs)


# --------------------------------------------------------------------------------------------- untrained twins


def parameters_of(hooked):
    inside = adapters.adapter(hooked).inside
    return dict((hooked if inside is None else inside).named_parameters())


TWINS = zoo.cases(
    [*zoo.OWN_LAYERS, "bert", "bart", "albert", "gpt2-headless"], ["t5", "mpnet"], generation=zoo.OWN_LAYERS
)


@pytest.mark.parametrize("name", TWINS)
def test_an_untrained_twin_has_the_same_architecture_and_weights_that_depend_on_the_seed_only(name):
    model = zoo.OWN_LAYERS[name]() if name in zoo.OWN_LAYERS else opening.open_model(zoo.make(name))
    model = model.train(name == "bert").double()
    model.hook_dict[capture.sites(model)[0].hook_name].add_hook(lambda pattern, hook: None)
    before, state = zoo.state_of(model), {key: own.clone() for key, own in parameters_of(model).items()}
    twin, again, other = (opening.random_init(model, seed=seed) for seed in (1, 1, 2))
    assert zoo.state_of(model) == before
    assert (type(twin), capture.sites(twin), twin.training) == (
        type(model),
        capture.sites(model),
        model.training,
    )
    assert not any(point.fwd_hooks for point in twin.hook_dict.values())
    same, others = parameters_of(again), parameters_of(other)
    for key, parameter in parameters_of(twin).items():
        assert (parameter.shape, parameter.dtype) == (state[key].shape, state[key].dtype)
        assert torch.equal(parameter, same[key]), key
        assert parameter.isfinite().all()
        if parameter.ndim > 1 and name != "toy" and ".b_" not in key:
            assert not torch.equal(parameter, state[key]), key
            assert not torch.equal(parameter, others[key]), key
        elif name in zoo.OWN_LAYERS and name != "toy":  # nothing of the training is left
            assert set(parameter.flatten().tolist()) in ({0.0}, {1.0}), key
    assert (capture.word_embeddings(twin) - capture.word_embeddings(other)).abs().max() > 1e-3
    assert (patterns_of(twin)[0] - patterns_of(model)[0]).abs().max() > 1e-4


@pytest.mark.generation
def test_a_twin_of_a_bridge_has_the_architecture_of_the_model_inside():
    bridge = zoo.opened("bert", "bridge").hooked
    twin = opening.random_init(bridge, seed=1)
    assert type(twin.original_model) is hf.BertForMaskedLM
    assert capture.sites(twin) == capture.sites(bridge)
    assert torch.equal(twin.W_E, opening.random_init(zoo.make("bert"), seed=1).W_E)


# --------------------------------------------------------------------------- models that need a word, or more

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
    ("name", "target"), zoo.cases([("bert", "query")], [("gpt2", "c_attn"), ("t5", "v")])
)
def test_a_model_of_peft_is_read_and_edited_with_its_adapters_and_has_an_untrained_twin(name, target):
    import peft

    config = peft.LoraConfig(r=2, target_modules=[target], init_lora_weights=False)
    model = peft.get_peft_model(zoo.make(name), config).eval()
    hooked = tp.open_model(model)
    view = capture.view(hooked)
    inputs = view.inputs(*zoo.documents())
    own = zoo.own_patterns(model.get_base_model(), inputs)  # with the adapters in its layers
    zoo.assert_same_patterns(zoo.read(view, inputs), own, inputs, atol=1e-5)
    without = zoo.own_patterns(copy.deepcopy(model).unload(), inputs)
    assert any(
        (one - other).abs().max() > 1e-3
        for stack in own
        for one, other in zip(own[stack], without[stack], strict=True)
    )
    with torch.no_grad(), tp.edit_heads(hooked, {}):
        assert torch.equal(view.host.logits(inputs), model(**zoo.arguments(inputs)).logits)
    states = [tp.random_init(model, seed=seed).original_model.state_dict() for seed in (1, 1, 2)]
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())
    assert any(not torch.equal(value, states[2][key]) for key, value in states[0].items())
    assert states[0].keys() == hooked.original_model.state_dict().keys()


@of_peft
def test_learned_prompts_are_refused():
    import peft

    model = peft.get_peft_model(
        zoo.make("gpt2"), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    )
    with pytest.raises(ValueError, match=r"learned prompts before the words .*get_base_model\(\)"):
        tp.open_model(model)


@of_quantisation
def test_a_model_in_dynamic_int8_is_measured_and_its_weights_are_refused():
    model = torch.ao.quantization.quantize_dynamic(zoo.make("bert"), {nn.Linear}, dtype=torch.qint8)
    view = capture.view(tp.open_model(model))
    inputs = view.inputs(*zoo.documents((20,)))
    zoo.assert_same_patterns(zoo.read(view, inputs), zoo.own_patterns(model, inputs), inputs, atol=1e-5)
    with pytest.raises(ValueError, match="are quantised, so matrices of heads cannot be read off them"):
        tp.measure_weights(view.model, TOPICS, n_resamples=0)
    del model.get_input_embeddings().weight
    model.get_input_embeddings().__dict__["weight"] = lambda: None  # what quantised embeddings have
    with pytest.raises(ValueError, match=r"word embeddings of .* are quantised"):
        tp.open_model(model)
