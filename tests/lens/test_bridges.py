"""Models that are given hooked: bridges around Hugging Face models, and those of TransformerLens's own layers."""

from itertools import product

import pytest
import torch
import zoo

import topic_probe as tp
from topic_probe.lens import opening
from topic_probe.lens.host import hidden_states, host_of, sites_of
from topic_probe.lens.weights import head_weights, unembedding, word_embeddings

LENGTHS = (20, 9, 14)


def states_of(hooked, inputs):
    found = {}
    hidden_states(hooked, inputs, lambda layer, state: found.__setitem__(layer, state))
    return [found[layer] for layer in range(len(found))]


@pytest.mark.generation
@pytest.mark.filterwarnings("ignore:.*does not support fold_ln")  # post-norm models, BERT among them, say so
def test_what_is_put_on_a_bridge_is_not_lost_beside_the_kernel():
    """A hook point, PyTorch's own hook on a layer of the bridge, and weights that TransformerLens has processed."""
    model = zoo.bridge(zoo.make("bert"))
    view = host_of(model)
    assert view.reads_rows()
    topics = tp.Topics.from_token_ids({"a": range(5, 40), "b": range(40, 80)}, vocabulary_size=zoo.VOCABULARY)
    reports = []
    for factor, read in ((None, "rows beside the fused kernel"), (2, "whole patterns at hook points")):
        hooks = [("blocks.0.hook_resid_pre", lambda value, hook: 2 * value)] if factor else []
        with model.hooks(fwd_hooks=hooks):
            assert view.reads_rows() == (not hooks)
            reports.append(
                tp.measure_attention(model, topics, [[5, 6, 41, 42]], special_ids=(), n_permutations=0)
            )
        assert reports[-1].provenance["read"] == read
    assert abs(reports[0].heads.same_topic - reports[1].heads.same_topic).max() > 1e-3
    inputs = view.inputs(*zoo.documents(LENGTHS))
    handle = model.blocks[0].ln1.register_forward_hook(lambda _module, _given, output: 2 * output)
    for changed in ("a hook", "weights"):
        if changed == "weights":
            handle.remove()
            model.enable_compatibility_mode()
        known = host_of(model)
        found, expected = (zoo.read(known, inputs, way) for way in ("auto", "hooks"))
        for site in known.sites:
            torch.testing.assert_close(found[site][0], expected[site][0], rtol=0, atol=1e-5)


# -------------------------------------------------------------- models of TransformerLens's own layers


@pytest.mark.generation
@pytest.mark.parametrize("name", ["toy", "native"])
def test_states_of_own_layers_run_from_what_enters_the_first_block_to_what_is_unembedded(name):
    model = zoo.OWN_LAYERS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    inputs = host_of(model).inputs(*zoo.documents(LENGTHS))
    states, seen = states_of(model, inputs), []
    assert len(states) == 3
    if name == "toy":
        torch.testing.assert_close(states[0], word_embeddings(model)[inputs.ids])
    hook = ("blocks.0.hook_resid_post", lambda state, hook: seen.append(state.clone()))
    given = {"attention_mask": inputs.mask.long(), "return_type": "logits"}
    with torch.no_grad():
        logits = model.run_with_hooks(inputs.ids, **given, fwd_hooks=[hook])
    scores = states[-1] @ model.W_U + model.b_U
    torch.testing.assert_close(scores[inputs.mask], logits[inputs.mask], rtol=0, atol=1e-4)
    torch.testing.assert_close(states[1], seen[0])


@pytest.mark.generation
@pytest.mark.parametrize("name", zoo.OWN_LAYERS)
def test_models_of_transformerlens_own_layers_show_the_softmax_of_their_own_queries_and_keys(name):
    model = zoo.OWN_LAYERS[name]()
    view = host_of(model)
    inputs, kept = view.inputs(*zoo.documents(LENGTHS)), {}
    causal = "causal" in str(getattr(model.cfg, "attention_dir", ""))
    assert view.sharing.lengths
    for site, part in product(view.sites, "qk"):
        at = f"blocks.{site.layer}.attn.hook_{part}"
        model.hook_dict[at].add_hook(lambda value, hook, at=at: kept.__setitem__(at, value.clone()))
    hidden = ~inputs.mask[:, None, None, :] | (causal * torch.ones(20, 20).triu(1)).bool()
    for site, (pattern, visible) in zoo.read(view, inputs).items():
        queries, keys = (kept[f"blocks.{site.layer}.attn.hook_{part}"] for part in "qk")
        if queries.ndim == 3:
            queries, keys = (part.unflatten(-1, (view.n_heads[0], -1)) for part in (queries, keys))
        scale = model.cfg.attn_scale if model.cfg.attn_scale > 0 else model.cfg.d_head**0.5
        scores = torch.einsum("bqhd,bkhd->bhqk", queries, keys) / scale
        expected = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        rows, own = (whole.transpose(1, 2)[inputs.mask] for whole in (pattern, expected))
        torch.testing.assert_close(rows, own, rtol=0, atol=5e-5)
        assert torch.equal(visible[inputs.mask], ~hidden.expand(3, 1, 20, 20)[:, 0][inputs.mask])


@pytest.mark.generation
@pytest.mark.skipif(zoo.GENERATION > 3, reason="TransformerLens 4 has no HookedTransformer")
def test_a_hookedtransformer_reads_as_the_hugging_face_model_it_was_made_of():
    from transformer_lens.pretrained.weight_conversions import convert_gpt2_weights

    model, options = zoo.make("gpt2"), {"n_layers": 3, "d_mlp": 128, "act_fn": "gelu_new", "eps": 1e-5}
    hooked = zoo.hooked_class("HookedTransformer", **options, init_weights=False)
    hooked.load_state_dict(convert_gpt2_weights(model, hooked.cfg), strict=False)
    view, free = host_of(hooked), opening.open_model(model)
    inputs = view.inputs(*zoo.documents(LENGTHS))
    real, found = inputs.mask, zoo.read(view, inputs)
    zoo.assert_same_patterns(found, zoo.own_patterns(model, inputs), inputs)
    for site, (_, visible) in found.items():
        assert torch.equal(visible[real], zoo.visible("gpt2", "self", site.layer, inputs)[real])
    for state, expected in zip(states_of(hooked, inputs), zoo.own_hidden_states(model, inputs), strict=True):
        torch.testing.assert_close(state[real], expected[real], rtol=0, atol=5e-5)
    assert torch.equal(word_embeddings(hooked), model.get_input_embeddings().weight)
    assert torch.equal(unembedding(hooked), unembedding(free))
    for one, other in zip(view.sites, sites_of(free), strict=True):
        mine, theirs = head_weights(hooked, one), head_weights(free, other)
        for weight in ("W_Q", "W_K", "W_V", "W_O"):
            assert torch.equal(getattr(mine, weight), getattr(theirs, weight))
