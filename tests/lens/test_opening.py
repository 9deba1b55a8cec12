"""Everything that can be opened, everything that cannot, and that what is given comes back as it went in."""

import copy
import json
import warnings

import pytest
import small_language
import torch
import transformers as hf
import zoo
from safetensors.torch import load_file, save_file
from torch import nn

import topic_probe as tp
from topic_probe.lens import opening, running
from topic_probe.lens.host import hidden_states, host_of, sites_of
from topic_probe.lens.weights import word_embeddings
from topic_probe.topics.lookup import tokenizer_hash

TOPICS = tp.Topics.from_token_ids({"a": [5, 6], "b": [7, 8]}, vocabulary_size=zoo.VOCABULARY)


def patterns_of(hooked):
    view = host_of(hooked)
    return [pattern for pattern, _ in zoo.read(view, view.inputs(*zoo.documents())).values()]


# ---------------------------------------------------------------------------------- nothing given is changed


@pytest.mark.parametrize("name", ["bert", "albert", "bart", "mpnet"])
def test_a_hugging_face_model_comes_back_as_it_went_in_and_keeps_its_hooks(name):
    model, seen = zoo.make(name), []
    for number, module in enumerate(model.modules()):
        module.training = number % 2 == 0
    model.base_model.register_forward_hook(lambda *_: seen.append(1))
    before, weights = zoo.state_of(model), copy.deepcopy(model.state_dict())
    hooked = opening.open_model(model)
    view = host_of(hooked)
    inputs = view.inputs(*zoo.documents())
    for way in zoo.ways(view):
        zoo.read(view, inputs, way)
    hidden_states(hooked, inputs, lambda *_: None)
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
    model.hook_dict[sites_of(model)[0].hook_name].add_hook(
        lambda pattern, hook: seen.append(tuple(pattern.shape))
    )
    if residual := model.hook_dict.get("blocks.1.hook_resid_pre"):
        residual.add_hook(lambda state, hook: seen.append("residual"))
    assert opening.open_model(model, device="cpu") is model
    view = host_of(model)
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


def test_a_folder_gives_the_model_that_was_saved_and_its_tokenizer_unless_another_is_given(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    model, folder = zoo.make("bert"), tmp_path / "model"
    model.save_pretrained(folder)
    hooked = opening.open_model("~/model")
    assert type(hooked.original_model) is type(model)
    saved = hooked.original_model.state_dict()
    assert all(torch.equal(own, saved[key]) for key, own in model.state_dict().items())
    assert not any(module.training for module in hooked.original_model.modules())
    assert hooked.tokenizer is None
    small_language.five_words("<s> $A", bos_token="<s>").save_pretrained(folder)
    hooked = opening.open_model(str(folder), dtype=torch.bfloat16, device="cpu")
    assert hooked.tokenizer("same words")["input_ids"][0] == hooked.tokenizer.bos_token_id
    assert word_embeddings(hooked).dtype == torch.bfloat16
    given = opening.open_model(folder, tokenizer=hf.ByT5Tokenizer())
    assert tokenizer_hash(given.tokenizer) == tokenizer_hash(hf.ByT5Tokenizer())


def test_a_head_that_the_checkpoint_does_not_hold_is_left_out_and_never_random(tmp_path):
    zoo.make("bert-headless").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["BertForMaskedLM"]}))
    hooked = opening.open_model(tmp_path)
    assert type(hooked.original_model) is hf.BertModel
    case = zoo.opened("bert-headless")
    zoo.assert_same_patterns(
        zoo.read(host_of(hooked), case.inputs), zoo.own_patterns(case.model, case.inputs), case.inputs
    )


@pytest.mark.parametrize("damage", ["lost", "model.safetensors", "no weights"])
def test_damaged_files_are_an_error_that_names_the_folder_or_what_it_lacks(damage, tmp_path):
    zoo.make("bert-headless").save_pretrained(tmp_path)
    file, error, said = tmp_path / "model.safetensors", OSError, f"(?s)cannot load '{tmp_path}'"
    if damage == "lost":
        tensors, name = load_file(file), "encoder.layer.1.attention.self.key.weight"
        del tensors[name]
        save_file(tensors, file, metadata={"format": "pt"})
        error, said = ValueError, rf"lacks 1 weights of BertModel \(such as '{name}'\)"
    elif damage == "no weights":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(error, match=said):
        opening.open_model(tmp_path)


def test_what_is_no_model_is_refused(tmp_path, unchecked):
    for source, error, message in (
        ("./nowhere", FileNotFoundError, r"there is no folder '\./nowhere'"),
        (tmp_path, FileNotFoundError, r"holds a config\.json"),
        ("google-bert/bert-base-uncased", OSError, r"(?s)cannot load .*hf download google-bert/bert"),
        (nn.Linear(2, 2), TypeError, "needs a hooked model, a Hugging Face"),
        (hf.BertModel, TypeError, "needs a hooked model, a Hugging Face"),
    ):
        with pytest.raises(error, match=message):
            opening.open_model(source)
    with pytest.raises(TypeError, match="a Hugging Face tokenizer is needed, got 'bert-base-uncased'"):
        opening.open_model(zoo.make("bert"), tokenizer="bert-base-uncased")


# --------------------------------------------------------------------------------------- the trial at opening


def test_opening_is_a_trial_and_measuring_runs_nothing_but_its_documents():
    given, passes = zoo.make("bert-headless"), []
    given.embeddings.register_forward_hook(lambda *_: passes.append(1))
    model = opening.open_model(given)
    passes.clear()
    host_of(model)
    assert not passes
    tp.measure_attention(model, TOPICS, zoo.lists((20, 20, 20)), n_permutations=0, batch_size=2)
    assert 0 < len(passes) <= 2  # those of its documents
    with torch.no_grad():
        model.W_E.mul_(3)
    found, expected = (zoo.read(view, view.inputs(*zoo.documents())) for view in (
        host_of(model), host_of(opening.open_model(model.original_model))
    ))  # fmt: skip
    for site, (pattern, _) in expected.items():
        assert torch.equal(found[site][0], pattern)


def test_what_cannot_be_read_says_why():
    shared = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    for model, said in (
        (
            hf.LongformerModel(hf.LongformerConfig(**zoo._encoder, attention_window=4)),
            "keys for 1[0-9] tokens",
        ),
        (hf.ViTModel(hf.ViTConfig(**shared, image_size=8, patch_size=4)), "has no table of word embeddings"),
        (zoo.make("bert-headless").to("meta"), "weights of BertModel are on the meta device"),
    ):
        with pytest.raises(ValueError, match=said):
            host_of(opening.open_model(model.eval()))


def test_a_model_without_attention_opens_for_its_embeddings_and_says_why_it_has_no_attention():
    config = hf.MambaConfig(vocab_size=zoo.VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=8)
    model = hf.MambaForCausalLM(config).eval()
    hooked = opening.open_model(model)
    report = tp.measure_embeddings(hooked, TOPICS)
    table = model.get_input_embeddings().weight.detach().double()
    expected = torch.nn.functional.cosine_similarity(table[[5, 7]], table[[6, 8]]).mean()
    assert float(report.cosine.same_topic) == pytest.approx(float(expected), abs=1e-9)
    with pytest.raises(
        ValueError, match=r"of \w+\(MambaForCausalLM\) cannot be read: .*embeddings still works"
    ):
        tp.measure_attention(hooked, TOPICS, [[5, 6, 7, 8]])


# --------------------------------------------------------------------------------------------- untrained twins


OWN_TWINS = sorted(
    zoo.OWN_LAYERS.keys() - {"HookedEncoder"}
)  # whose weights TransformerLens leaves undefined


def parameters_of(hooked):
    inside = running.inside_of(hooked)
    return dict((hooked if inside is None else inside).named_parameters())


@pytest.mark.parametrize(
    "name", zoo.cases([*OWN_TWINS, "bert", "bart", "gpt2-headless"], generation=OWN_TWINS)
)
def test_an_untrained_twin_has_the_same_architecture_and_weights_that_depend_on_the_seed_only(name):
    own = name in zoo.OWN_LAYERS
    model = (
        (zoo.OWN_LAYERS[name]() if own else opening.open_model(zoo.make(name))).train(name == "bert").double()
    )
    model.hook_dict[sites_of(model)[0].hook_name].add_hook(lambda pattern, hook: None)
    before, state = zoo.state_of(model), {key: own.clone() for key, own in parameters_of(model).items()}
    twin, again, other = (opening.random_init(model, seed=seed) for seed in (1, 1, 2))
    assert zoo.state_of(model) == before
    for part in (type, sites_of, lambda hooked: hooked.training):
        assert part(twin) == part(model)
    assert not any(point.fwd_hooks for point in twin.hook_dict.values())
    same, others = parameters_of(again), parameters_of(other)
    for key, parameter in parameters_of(twin).items():
        assert (parameter.shape, parameter.dtype) == (state[key].shape, state[key].dtype)
        assert torch.equal(parameter, same[key]), key
        if parameter.ndim > 1 and name != "toy" and ".b_" not in key:
            assert not torch.equal(parameter, state[key]), key
            assert not torch.equal(parameter, others[key]), key
        elif own and name != "toy":  # nothing of the training is left
            assert set(parameter.flatten().tolist()) in ({0.0}, {1.0}), key
    assert (word_embeddings(twin) - word_embeddings(other)).abs().max() > 1e-3


@pytest.mark.generation
def test_a_twin_of_a_bridge_has_the_architecture_of_the_model_inside():
    twin = opening.random_init(zoo.opened("bert", "bridge").hooked, seed=1)
    assert type(twin.original_model) is hf.BertForMaskedLM
    assert torch.equal(twin.W_E, opening.random_init(zoo.make("bert"), seed=1).W_E)


# --------------------------------------------------------------------------- models that need a word, or more

# What PEFT and torch say of themselves.
of_peft = pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing:FutureWarning", "ignore:fan_in_fan_out:UserWarning"
)


@of_peft
def test_a_model_of_peft_is_read_and_edited_with_its_adapters_and_has_an_untrained_twin():
    import peft

    config = peft.LoraConfig(r=2, target_modules=["query"], init_lora_weights=False)
    model = peft.get_peft_model(zoo.make("bert"), config).eval()
    hooked = tp.open_model(model)
    view = host_of(hooked)
    inputs = view.inputs(*zoo.documents())
    own = zoo.own_patterns(model.get_base_model(), inputs)  # with the adapters in its layers
    zoo.assert_same_patterns(zoo.read(view, inputs), own, inputs, atol=1e-5)
    assert (own["self"][0] - zoo.own_patterns(zoo.make("bert"), inputs)["self"][0]).abs().max() > 1e-3
    with torch.no_grad(), tp.edit_heads(hooked, {}):
        assert torch.equal(view.hooked.logits(inputs), model(**zoo.arguments(inputs)).logits)
    states = [tp.random_init(model, seed=seed).original_model.state_dict() for seed in (1, 1, 2)]
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())
    assert any(not torch.equal(value, states[2][key]) for key, value in states[0].items())
    prompts = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    with pytest.raises(ValueError, match=r"learned prompts before the words .*get_base_model\(\)"):
        tp.open_model(peft.get_peft_model(zoo.make("gpt2"), prompts))
