"""Every kind of hooked model has one adapter, which is asked everything that differs between hosts."""

import ast
from importlib import import_module
from pathlib import Path

import pytest
import zoo

import topic_probe as tp
from topic_probe.lens import adapters


def native():
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    import_module("transformer_lens.model_bridge.sources.native")  # it is what brings boot_native on 3.9
    config = TransformerBridgeConfig(
        n_layers=1, n_heads=2, d_model=16, d_head=8, d_vocab=zoo.VOCABULARY, n_ctx=64, act_fn="gelu", d_mlp=37,
        normalization_type="LN", seed=5,
    )  # fmt: skip
    return TransformerBridge.boot_native(config)


TOY_IS = {3: "hooked", 4: "bridge"}[zoo.GENERATION]
KINDS = {
    "adapter-free": (
        lambda: tp.open_model(zoo.make("mpnet")), adapters.HuggingFaceAdapter, "adapter-free", "HuggingFaceHost",
    ),
    "bridge": (lambda: zoo.bridge(zoo.make("bert")), adapters.BridgeAdapter, "bridge", "TransformerBridge"),
    "native": (native, adapters.OwnLayersAdapter, "bridge", "TransformerBridge"),
    "toy": (lambda: tp.build_toy(tp.ToyConfig()), adapters.OwnLayersAdapter, TOY_IS, None),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_hooked_model_has_its_adapter(name):
    make, adapter_class, kind, host = KINDS[name]
    model = make()
    adapter = adapters.adapter(model)
    assert type(adapter) is adapter_class
    assert adapter.kind == kind
    assert host is None or adapter.name.partition("(")[0] == host
    assert (adapter.inside is None) == (adapter_class is adapters.OwnLayersAdapter)
    assert adapter.config is (None if adapter.inside is None else adapter.inside.config)
    assert not adapter.has_decoder
    assert adapter.sites()


@pytest.mark.parametrize("host", ["bridge", "huggingface"])
def test_a_decoder_is_seen_by_the_adapter(host):
    assert adapters.adapter(zoo.hosted(zoo.make("bart"), host)).has_decoder


def test_a_model_that_cannot_be_read_says_why_in_the_words_of_its_host():
    import transformers as hf

    config = hf.MambaConfig(vocab_size=zoo.VOCABULARY, hidden_size=32, num_hidden_layers=1, state_size=8)
    adapter = adapters.adapter(tp.open_model(hf.MambaModel(config)))
    assert adapter.sites() == ()
    assert adapter.no_sites().startswith("MambaModel shows no attention pattern")


def test_nothing_but_adapters_tells_hosts_apart():
    """What a host keeps inside is read nowhere else, so that a new kind of host is one class."""
    lens = Path(adapters.__file__).parent
    asked = {
        path.stem
        for path in lens.parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Constant) and node.value == "original_model")
        or (isinstance(node, ast.Attribute) and node.attr == "original_model")
    }
    # Modules of a bridge are counted where modes are switched, and the toy is built.
    assert asked == {"adapters", "running", "model"}
