"""Edits of heads are exactly what their words say, on every host, and leave nothing behind."""

import copy
import math
import threading
from functools import cache
from types import SimpleNamespace

import any_architecture
import pytest
import torch
import transformers as hf
import zoo

import topic_probe as tp
from topic_probe.lens import capture, changes, editable, opening, running
from topic_probe.lens.edit import cut_edges, edit_heads, editing, head_outputs, replaced
from topic_probe.lens.sites import Site
from topic_probe.toy.model import NativeAttention, set_toy_tensors

IDS, MASK = zoo.documents()
_SMALL = {
    "vocab_size": zoo.VOCABULARY, "hidden_size": zoo.WIDTH, "num_hidden_layers": 3, "num_attention_heads": zoo.HEADS,
    "max_position_embeddings": 64,
}  # fmt: skip
_MORE = {
    "mistral": lambda: hf.MistralForCausalLM(
        hf.MistralConfig(**_SMALL, intermediate_size=37, num_key_value_heads=2, head_dim=8, sliding_window=6)
    ),
    "opt": lambda: hf.OPTForCausalLM(
        hf.OPTConfig(**_SMALL, ffn_dim=37, word_embed_proj_dim=zoo.WIDTH, pad_token_id=1)
    ),
}
# Where each architecture keeps its output projection, by stack; ALBERT has one for all its layers.
PROJECTIONS = {
    "bert": {"self": "bert.encoder.layer.{}.attention.output.dense"},
    "roberta": {"self": "roberta.encoder.layer.{}.attention.output.dense"},
    "xlmr": {"self": "roberta.encoder.layer.{}.attention.output.dense"},
    "electra": {"self": "electra.encoder.layer.{}.attention.output.dense"},
    "albert": {"self": "albert.encoder.albert_layer_groups.0.albert_layers.0.attention.dense"},
    "distilbert": {"self": "distilbert.transformer.layer.{}.attention.out_lin"},
    "modernbert": {"self": "model.layers.{}.attn.Wo"},
    "gpt2": {"self": "transformer.h.{}.attn.c_proj"},
    "neox": {"self": "gpt_neox.layers.{}.attention.dense"},
    "llama": {"self": "model.layers.{}.self_attn.o_proj"},
    "mistral": {"self": "model.layers.{}.self_attn.o_proj"},
    "gemma2": {"self": "model.layers.{}.self_attn.o_proj"},
    "opt": {"self": "model.decoder.layers.{}.self_attn.out_proj"},
    "bart": {
        "encoder": "model.encoder.layers.{}.self_attn.out_proj",
        "decoder": "model.decoder.layers.{}.self_attn.out_proj",
        "cross": "model.decoder.layers.{}.encoder_attn.out_proj",
    },
    "t5": {
        "encoder": "encoder.block.{}.layer.0.SelfAttention.o",
        "decoder": "decoder.block.{}.layer.0.SelfAttention.o",
        "cross": "decoder.block.{}.layer.1.EncDecAttention.o",
    },
}
D_HEAD = 8
CASES = [(name, "huggingface") for name in PROJECTIONS] + [
    (name, "bridge") for name in PROJECTIONS if name in zoo.BRIDGED
]
OWN_ATTENTION = ("gpt2", "neox", "llama", "gemma2")
"""Architectures whose bridges compute attention by themselves."""


def made(name):
    return zoo.drawn(_MORE[name]) if name in _MORE else zoo.make(name)


@cache
def opened(name, host="huggingface"):
    """A model, its hooked form, the view of it and a padded batch; nothing in this file changes them."""
    model = made(name)
    hooked = zoo.hosted(made(name), host)
    view = capture.view(hooked)
    return SimpleNamespace(model=model, hooked=hooked, view=view, inputs=view.inputs(IDS, MASK))


def own_logits(model, inputs):
    given = {"input_ids": inputs.ids, "attention_mask": inputs.mask.long()}
    if inputs.target_ids is not None:
        given |= {"decoder_input_ids": inputs.target_ids, "decoder_attention_mask": inputs.target_mask.long()}
    with torch.no_grad():
        return model(**given).logits


def vector(site, head):
    """A vector of its own for every head of every site."""
    seed = 1000 * ("self", "encoder", "decoder", "cross").index(site.stack) + 10 * site.layer + head
    return torch.randn(D_HEAD, generator=torch.Generator().manual_seed(seed))


def overwritten(model, name, site, head, inputs):
    """What a model computes where a hook on its output projection overwrites the slice of a head."""
    projection = model.get_submodule(PROJECTIONS[name][site.stack].format(site.layer))
    calls = []

    def overwrite(_module, given):
        calls.append(None)
        if name == "albert" and len(calls) != site.layer + 1:  # one module for all layers
            return None
        changed = given[0].clone()
        changed[..., head * D_HEAD : (head + 1) * D_HEAD] = vector(site, head)
        return (changed,)

    handle = projection.register_forward_pre_hook(overwrite)
    try:
        return own_logits(model, inputs)
    finally:
        handle.remove()


def edges(view, inputs, *, share=0.4, seed=0, of=None):
    """Random edges to cut at every site, other ones for every document and head; some rows are cut whole."""
    generator = torch.Generator().manual_seed(seed)
    cut = {}
    for site, n_heads in zip(view.sites, view.n_heads, strict=True):
        queries, keys = inputs.masks(site)
        cut[site] = (
            torch.rand(len(queries), n_heads, queries.shape[1], keys.shape[1], generator=generator) < share
        )
        cut[site][-1, n_heads // 2, 3] = True
    return cut if of is None else {view.sites[of]: cut[view.sites[of]]}


def no_edges(view, inputs):
    return {site: torch.zeros_like(cut) for site, cut in edges(view, inputs).items()}


def outputs_of(view, inputs):
    found = {}
    head_outputs(view, inputs, lambda number, outputs: found.__setitem__(number, outputs))
    assert sorted(found) == list(range(len(view.sites)))
    return found


# ------------------------------------------------------------------------------------------- outputs of heads


@pytest.mark.parametrize(("name", "host"), CASES)
def test_replacing_a_head_equals_a_hook_that_overwrites_its_slice_before_the_output_projection(name, host):
    case = opened(name, host)
    plain = own_logits(case.model, case.inputs)
    # A bridge that computes attention by itself rounds as it does.
    exact = host == "huggingface" or name not in OWN_ATTENTION
    for site in case.view.sites:
        head = (site.layer + len(site.stack)) % zoo.HEADS
        with edit_heads(case.hooked, {site: {head: vector(site, head)}}):
            edited = case.view.host.logits(case.inputs)
        expected = overwritten(case.model, name, site, head, case.inputs)
        assert (expected - plain).abs().max() > 1e-3
        torch.testing.assert_close(edited, expected, rtol=0, atol=0 if exact else 2e-4)


@pytest.mark.parametrize("name", [name for name in OWN_ATTENTION if name in zoo.BRIDGED])
def test_replacing_a_head_of_a_bridge_equals_a_hook_on_the_output_projection_inside(name):
    case = opened(name, "bridge")
    for site in case.view.sites:
        attention = case.view.host.attention_module(site)
        seen = []

        def overwrite(_module, given, seen=seen):
            changed = given[0].clone()
            changed[..., 8:16] = 0.7
            seen.append(changed)
            return (changed, *given[1:])

        handle = attention.o.original_component.register_forward_pre_hook(overwrite)
        with edit_heads(case.hooked, {}):
            expected = case.view.host.logits(case.inputs)
        handle.remove()
        assert seen
        with edit_heads(case.hooked, {site: {1: torch.full((D_HEAD,), 0.7)}}):
            assert torch.equal(case.view.host.logits(case.inputs), expected)


@pytest.mark.parametrize("by", ["zero", "function", "each position", "whole"])
def test_every_form_of_a_replacement_is_the_same_replacement(by):
    case = opened("bert")
    site, forms = case.view.sites[1], {
        "zero": {2: "zero"},
        "function": {2: lambda own: 0 * own},
        "each position": {2: torch.zeros(IDS.shape[1], D_HEAD)},
        "whole": lambda outputs: torch.cat(
            [outputs[:, :, :2], 0 * outputs[:, :, 2:3], outputs[:, :, 3:]], 2
        ),
    }  # fmt: skip
    with edit_heads(case.hooked, {site: {2: torch.zeros(D_HEAD)}}):
        expected = case.view.host.logits(case.inputs)
    with edit_heads(case.hooked, {site: forms[by]}):
        assert torch.equal(case.view.host.logits(case.inputs), expected)


def test_layers_that_take_outputs_as_they_lie_in_memory_get_them_so():
    """AFMoE views them in another shape."""
    model = any_architecture.build("afmoe", any_architecture.architectures()["afmoe"])
    view = capture.view(opening.open_model(model))
    inputs = view.inputs(IDS, MASK)
    with edit_heads(
        view.model, {site: lambda outputs: torch.zeros(()).expand_as(outputs) for site in view.sites}
    ):
        ablated = view.host.logits(inputs)
    for layer in model.model.layers:
        layer.self_attn.o_proj.register_forward_pre_hook(lambda _, given: (0 * given[0],))
    assert torch.equal(ablated, own_logits(model, inputs))


@pytest.mark.parametrize(("name", "host"), CASES)
def test_outputs_of_heads_are_the_patterns_times_the_values_and_putting_them_back_changes_nothing(name, host):
    case = opened(name, host)
    found = outputs_of(case.view, case.inputs)
    with edit_heads(case.hooked, {}):
        intact = case.view.host.logits(case.inputs)
    back = {
        site: lambda _, number=number: found[number].clone() for number, site in enumerate(case.view.sites)
    }
    with edit_heads(case.hooked, back):
        assert torch.equal(case.view.host.logits(case.inputs), intact)
    for number, site in enumerate(case.view.sites):
        assert found[number].shape == (*case.inputs.masks(site)[0].shape, zoo.HEADS, D_HEAD)
    if name == "bert" and host == "huggingface":
        layer = case.model.bert.encoder.layer[0].attention.self
        with torch.no_grad():
            values = layer.value(case.model.bert.embeddings(IDS)).unflatten(-1, (zoo.HEADS, -1))
        pattern = zoo.own_patterns(case.model, case.inputs)["self"][0]
        expected = torch.einsum("bhqk,bkhd->bqhd", pattern, values)
        torch.testing.assert_close(found[0][MASK], expected[MASK], rtol=0, atol=1e-5)


# ------------------------------------------------------------------------------------------- edges


@pytest.mark.parametrize("how", ["scores", "weights"])
@pytest.mark.parametrize("name", PROJECTIONS)
def test_cutting_nothing_is_the_model_as_it_is_bit_for_bit(name, how):
    case = opened(name)
    with cut_edges(case.hooked, no_edges(case.view, case.inputs), how=how):
        cut = case.view.host.logits(case.inputs)
    assert torch.equal(cut, own_logits(case.model, case.inputs))


@pytest.mark.parametrize("how", ["scores", "weights"])
@pytest.mark.parametrize(("name", "host"), CASES)
def test_documents_of_which_nothing_is_cut_stay_as_they_are_bit_for_bit(name, host, how):
    case = opened(name, host)
    with edit_heads(case.hooked, {}):
        intact = case.view.host.logits(case.inputs)
    cut = edges(case.view, case.inputs)
    for edge in cut.values():
        edge[0] = edge[2] = False
    with cut_edges(case.hooked, cut, how=how):
        found = case.view.host.logits(case.inputs)
    assert torch.equal(found[::2], intact[::2])
    assert (found[1] - intact[1]).abs().max() > 0.01


@pytest.mark.parametrize("how", ["scores", "weights"])
@pytest.mark.parametrize("host", ["huggingface", "bridge"])
def test_cut_edges_equal_a_softmax_by_hand_over_the_keys_that_are_left(how, host):
    case = opened("bert", host)
    cut = edges(case.view, case.inputs, of=0)
    with cut_edges(case.hooked, cut, how=how):
        found = outputs_of(case.view, case.inputs)[0]
    mask = cut[case.view.sites[0]]
    layer = case.model.bert.encoder.layer[0].attention.self
    with torch.no_grad():
        states = case.model.bert.embeddings(IDS)
        q, k, v = (
            projection(states).unflatten(-1, (zoo.HEADS, -1)).double().tolist()
            for projection in (layer.query, layer.key, layer.value)
        )
    emptied = 0
    for document, real in enumerate(MASK.sum(1).tolist()):
        for head in range(zoo.HEADS):
            for query in range(real):
                left, total, expected = 0.0, 0.0, [0.0] * D_HEAD
                for key in range(real):
                    score = sum(
                        a * b for a, b in zip(q[document][query][head], k[document][key][head], strict=True)
                    )
                    weight = math.exp(score / math.sqrt(D_HEAD))
                    total += weight
                    if not mask[document, head, query, key]:
                        left += weight
                        expected = [
                            e + weight * x for e, x in zip(expected, v[document][key][head], strict=True)
                        ]
                divisor = left if how == "scores" else total
                emptied += left == 0
                expected = [e / (divisor or 1) for e in expected]
                got = found[document, query, head].double()
                torch.testing.assert_close(got, torch.tensor(expected).double(), rtol=0, atol=2e-5)
                assert left > 0 or not got.any()
    assert emptied == 1


@pytest.mark.parametrize("how", ["scores", "weights"])
@pytest.mark.parametrize("name", [name for name in PROJECTIONS if name in zoo.BRIDGED])
def test_edges_cut_in_a_bridge_are_cut_as_in_the_host_without_adapter(name, how):
    one, other = opened(name), opened(name, "bridge")
    cut = edges(one.view, one.inputs)
    with cut_edges(one.hooked, cut, how=how):
        expected = one.view.host.logits(one.inputs)
    with cut_edges(other.hooked, cut, how=how):
        found = other.view.host.logits(other.inputs)
    real = (one.inputs.mask if one.inputs.target_mask is None else one.inputs.target_mask).bool()
    assert (expected - own_logits(one.model, one.inputs)).abs().max() > 0.01
    torch.testing.assert_close(found[real], expected[real], rtol=0, atol=2e-4)


@pytest.mark.parametrize("causal", [True, False])
def test_a_call_without_a_mask_keeps_what_its_layer_knows_by_itself(causal):
    cut = torch.zeros(1, 2, 3, 3, dtype=torch.bool)
    cut[0, 0, 1, 0] = cut[0, 0, 2, 2] = cut[0, 1, 0, 0] = True
    mask, emptied = changes.cut_mask(cut, None, causal=causal)
    first = [[1, 0, 0], [0, 1, 0], [1, 1, 0]] if causal else [[1, 1, 1], [0, 1, 1], [1, 1, 0]]
    # A row with nothing left keeps what it had, and is named.
    second = [[1, 0, 0], [1, 1, 0], [1, 1, 1]] if causal else [[0, 1, 1], [1, 1, 1], [1, 1, 1]]
    assert mask.int().tolist() == [[first, second]]
    assert emptied[0, :, :, 0].tolist() == [[False] * 3, [causal, False, False]]
    one, _ = changes.cut_mask(cut[:, :, 2:], None, causal=causal)  # a single query sees every key
    assert one.int().tolist() == [[[[1, 1, 0]], [[1, 1, 1]]]]


@pytest.mark.parametrize("name", ["modernbert", "mistral", "gemma2", "gpt2", "t5", "bart"])
def test_an_edge_that_a_mask_hides_already_is_no_edge(name):
    """Windows, causality and padding stay beneath a cut, which a mask handed to the model would replace."""
    case = opened(name)
    hidden = {}
    for site in case.view.sites:
        seen = zoo.visible("gpt2" if name == "mistral" else name, site.stack, site.layer, case.inputs)
        if name == "mistral":
            offset = torch.arange(seen.shape[-1]) - torch.arange(seen.shape[-1])[:, None]
            seen &= offset > -6
        hidden[site] = ~seen[:, None]
    assert all(cut.any() for cut in hidden.values())
    with cut_edges(case.hooked, hidden):
        found = case.view.host.logits(case.inputs)
    mask = case.inputs.mask if case.inputs.target_mask is None else case.inputs.target_mask
    assert torch.equal(found[mask], own_logits(case.model, case.inputs)[mask])


@pytest.mark.parametrize("how", ["scores", "weights"])
@pytest.mark.parametrize(
    ("name", "host", "through"),
    [
        ("bert", "huggingface", "hooks"), ("bert", "huggingface", "rows"), ("bert", "bridge", "hooks"),
        ("bert", "bridge", "rows"), ("mistral", "huggingface", "hooks"), ("mistral", "huggingface", "rows"),
        ("t5", "huggingface", "hooks"), ("t5", "huggingface", "rows"), ("gemma2", "huggingface", "hooks"),
        ("gpt2", "bridge", "hooks"),
    ],
)  # fmt: skip
def test_patterns_read_in_a_block_have_the_cut_edges_at_zero_and_the_others_as_they_ought_to_be(
    name, host, through, how
):
    case = opened(name, host)
    cut, rows = edges(case.view, case.inputs), torch.arange(IDS.shape[1]).expand(len(IDS), -1)

    def read():
        found = {}
        case.view.attention_rows(
            case.inputs,
            {"source": rows, "target": rows},
            lambda number, pattern, visible: found.__setitem__(number, pattern.clone()),
            through=through,
        )
        return found

    intact = read()
    with cut_edges(case.hooked, cut, how=how):
        shown = read()
    first = case.view.sites[0]
    real = case.inputs.masks(first)[0][:, None, :, None]
    kept = intact[0].masked_fill(cut[first], 0)
    if how == "scores":
        kept = kept / kept.sum(-1, keepdim=True).clamp_min(1e-30)
    torch.testing.assert_close(shown[0] * real, kept * real, rtol=0, atol=2e-5)
    for number, site in enumerate(case.view.sites):
        assert not shown[number][cut[site] & case.inputs.masks(site)[0][:, None, :, None]].any()


@pytest.mark.parametrize(
    ("name", "host"), [("modernbert", "huggingface"), ("gpt2", "bridge"), ("bert", "huggingface")]
)
def test_which_keys_a_query_may_see_does_not_depend_on_what_is_cut(name, host):
    """A pattern of which all but the nearest keys are cut looks like that of a window."""
    hooked = zoo.hosted(made(name), host)
    view = capture.view(hooked)
    inputs = view.inputs(IDS, MASK)
    rows = {"source": torch.arange(IDS.shape[1]).expand(len(IDS), -1)}
    offset = torch.arange(IDS.shape[1]) - torch.arange(IDS.shape[1])[:, None]
    far = (offset.abs() > 1)[None, None]

    def check(number, pattern, visible):
        assert pattern[:1, :, far[0, 0]].any() != bool(cut)  # rows of padding may be anything
        site = view.sites[number]
        real = inputs.masks(site)[0]
        assert torch.equal(visible[real], zoo.visible(name, site.stack, site.layer, inputs)[real])

    for cut in (dict.fromkeys(view.sites, far), {}):
        with cut_edges(hooked, cut):
            view.attention_rows(inputs, rows, check, through="hooks")
    cut = {}
    view.attention_rows(inputs, rows, check, through="hooks")


# ------------------------------------------------------------------------------------------- the toy by hand


def toy(n_heads=1):
    """Uniform attention (keys and queries are zero), one-hot words, and values by hand."""
    world = tp.World(n_topics=2, words_per_topic=2)
    config = tp.ToyConfig(regime="value", world=world, n_heads=n_heads, dtype="float64")
    values = torch.randn(n_heads, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    tensors = {"W_V": values if n_heads > 1 else values[0]}
    return tp.build_toy(config, tensors=tensors), values


def toy_logits(model, ids, mask):
    return model(ids, attention_mask=mask.long(), return_type="logits")


TOY_IDS = torch.tensor([[1, 2, 3, 4, 1], [3, 0, 2, 0, 0]])
TOY_MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()


@pytest.mark.parametrize("how", ["scores", "weights"])
def test_the_toy_without_some_edges_averages_the_values_of_the_words_that_are_left(how):
    model, values = toy(n_heads=2)
    (site,) = capture.sites(model)
    cut = torch.zeros(2, 2, 5, 5, dtype=torch.bool)
    cut[0, 0, 0, 1] = cut[0, 0, 0, 4] = cut[0, 1, 2, 0] = cut[1, 1, 1, 0] = True
    cut[1, 0, 2] = True  # nothing is left
    with tp.cut_edges(model, {site: cut}, how=how):
        found = toy_logits(model, TOY_IDS, TOY_MASK)
    for document, length in enumerate((5, 3)):
        for query in range(length):
            expected = torch.zeros(5, dtype=torch.float64)
            for head in range(2):
                left = [key for key in range(length) if not cut[document, head, query, key]]
                share = 1 / (len(left) or 1) if how == "scores" else 1 / length
                for key in left:
                    expected += share * values[head][:, TOY_IDS[document, key]]
            torch.testing.assert_close(found[document, query], expected, rtol=0, atol=1e-12)


def test_the_toy_without_a_head_is_the_other_head():
    model, values = toy(n_heads=2)
    (site,) = capture.sites(model)
    for gone in range(2):
        with tp.edit_heads(model, {site: {gone: "zero"}}):
            found = toy_logits(model, TOY_IDS, TOY_MASK)
        for document, length in enumerate((5, 3)):
            expected = values[1 - gone][:, TOY_IDS[document, :length]].mean(1)
            torch.testing.assert_close(
                found[document, :length], expected.expand(length, -1), rtol=0, atol=1e-12
            )


def test_a_head_whose_values_are_zero_has_no_effect_whatever_it_attends_to():
    """The trap: attention by topic with values of zero, beside uniform attention with values."""
    world = tp.World(n_topics=2, words_per_topic=2)
    values = torch.stack([torch.eye(5), torch.zeros(5, 5)])
    keys = torch.stack([torch.zeros(5, 5), 3 * torch.eye(5)])
    config = tp.ToyConfig(regime="attention", world=world, n_heads=2)
    biases = dict.fromkeys(("b_V", "b_K", "b_Q"), torch.zeros(2, 5))
    model = tp.build_toy(config, tensors={"W_V": values, "W_K": keys, "W_Q": keys, **biases})
    (site,) = capture.sites(model)
    with tp.edit_heads(model, {}):
        intact = toy_logits(model, TOY_IDS, TOY_MASK)
    for changed, effect in ((0, True), (1, False)):
        with tp.edit_heads(model, {site: {changed: "zero"}}):
            assert torch.equal(toy_logits(model, TOY_IDS, TOY_MASK), intact) != effect
        cut = torch.zeros(1, 2, 5, 5, dtype=torch.bool)
        cut[0, changed, :, 0] = True
        with tp.cut_edges(model, {site: cut}):
            assert torch.equal(toy_logits(model, TOY_IDS, TOY_MASK), intact) != effect


def test_a_model_that_puts_out_nothing_may_be_edited_and_is_tried_again_later():
    """With values of zero nothing shows whether edges are cut; what it shows later is what counts."""
    given = made("bert")
    values = [layer.attention.self.value for layer in given.bert.encoder.layer]
    kept = copy.deepcopy([value.state_dict() for value in values])
    for value in values:
        torch.nn.init.zeros_(value.weight)
        torch.nn.init.zeros_(value.bias)
    model = opening.open_model(given)
    assert not editable.editable(capture.view(model)).certain
    assert model.editable == []
    for value, weights in zip(values, kept, strict=True):
        value.load_state_dict(weights)
    found = editable.editable(capture.view(model))
    assert found.certain
    assert model.editable == [found]


# ------------------------------------------------------------------------------------------- blocks


def everything(model):
    """All of a model that an edit changes for a moment, and what it could leave on one."""
    return [
        (name, module.training, dict(module._forward_hooks), dict(module._forward_pre_hooks), sorted(vars(module)))
        for name, module in [*model.named_modules(), *model.original_model.named_modules()]
    ] + [
        *(vars(config).copy() for config in running.configs(model)),
        *(parameter.requires_grad for parameter in model.parameters()),
        torch.is_grad_enabled(),
        torch.get_rng_state().tolist(),
    ]  # fmt: skip


class Wanted(Exception):
    pass


@pytest.mark.parametrize(
    ("name", "host"), [("bert", "huggingface"), ("bart", "bridge"), ("gpt2", "bridge"), ("t5", "huggingface")]
)
@pytest.mark.parametrize("fails", ["", "in the block", "in a hook"])
def test_a_model_comes_back_as_it_was_also_after_an_exception(name, host, fails):
    hooked = zoo.hosted(made(name), host)
    view = capture.view(hooked)
    inputs = view.inputs(IDS, MASK)
    with running.evaluating(hooked):
        logits = view.host.logits(inputs)
    hooked.train()
    hooked.original_model.train()
    site = view.sites[0]
    cut = edges(view, inputs)

    def fail(outputs):
        if fails == "in a hook":
            raise Wanted
        return outputs.flip(2)

    def edit():
        with cut_edges(hooked, cut), edit_heads(hooked, {site: fail}):
            assert not hooked.training
            view.host.logits(inputs)
            if fails:
                raise Wanted

    before = everything(hooked)
    if fails:
        with pytest.raises(Wanted):
            edit()
    else:
        edit()
    assert everything(hooked) == before
    hooked.eval()
    hooked.original_model.eval()
    with running.evaluating(hooked):
        assert torch.equal(view.host.logits(inputs), logits)


def test_a_pass_that_broke_off_does_not_shift_the_layers_of_the_next():
    case = opened("albert")
    sites = case.view.sites
    with edit_heads(case.hooked, {sites[2]: {0: "zero"}}):
        expected = case.view.host.logits(case.inputs)
    broken = [True]

    def once(outputs):
        if broken.pop():
            raise Wanted
        broken.append(False)
        return outputs

    with edit_heads(case.hooked, {sites[1]: once, sites[2]: {0: "zero"}}):
        with pytest.raises(Wanted):
            case.view.host.logits(case.inputs)
        broken.append(False)
        for _ in range(3):
            assert torch.equal(case.view.host.logits(case.inputs), expected)


@pytest.mark.parametrize(
    ("name", "host"), [("bert", "huggingface"), ("gpt2", "bridge"), ("t5", "huggingface"), ("toy", "")]
)
def test_blocks_in_each_other_combine(name, host):
    if name == "toy":
        model, _ = toy(n_heads=zoo.HEADS)
        view = capture.view(model)
        inputs = view.inputs(TOY_IDS, TOY_MASK)
    else:
        case = opened(name, host)
        model, view, inputs = case.hooked, case.view, case.inputs
    one, other = edges(view, inputs, seed=1, share=0.2), edges(view, inputs, seed=2, share=0.2)
    edit = {view.sites[-1]: {1: lambda own: own + 1}}
    double = {view.sites[-1]: {1: lambda own: 2 * own}}

    def logits(*blocks):
        if blocks:
            with blocks[0]:
                return logits(*blocks[1:])
        return view.host.logits(inputs)

    both = {site: one[site] | other[site] for site in one}
    expected = logits(cut_edges(model, both), edit_heads(model, edit))
    assert torch.equal(
        logits(cut_edges(model, one), cut_edges(model, other), edit_heads(model, edit)), expected
    )
    assert torch.equal(
        logits(edit_heads(model, edit), cut_edges(model, other), cut_edges(model, one)), expected
    )
    mixed = logits(cut_edges(model, one), cut_edges(model, other, how="weights"))
    assert torch.equal(logits(cut_edges(model, other, how="weights"), cut_edges(model, one)), mixed)
    assert not torch.equal(mixed, logits(cut_edges(model, both)))
    # The innermost function sees what those around it have made.
    one_then_two = {view.sites[-1]: {1: lambda own: 2 * (own + 1)}}
    assert torch.equal(
        logits(edit_heads(model, edit), edit_heads(model, double)), logits(edit_heads(model, one_then_two))
    )
    assert not torch.equal(
        logits(edit_heads(model, double), edit_heads(model, edit)), logits(edit_heads(model, one_then_two))
    )


def test_a_block_within_ends_where_it_ends():
    case = opened("bert")
    site = case.view.sites[0]
    with edit_heads(case.hooked, {site: {0: "zero"}}):
        outer = case.view.host.logits(case.inputs)
        with edit_heads(case.hooked, {site: {1: "zero"}}):
            assert not torch.equal(case.view.host.logits(case.inputs), outer)
        assert torch.equal(case.view.host.logits(case.inputs), outer)


def test_another_thread_waits_until_a_block_is_left():
    case = opened("bert")
    site, order = case.view.sites[0], []

    def other():
        with edit_heads(case.hooked, {site: {1: "zero"}}):
            order.append("other")
            result.append(case.view.host.logits(case.inputs))

    result, thread = [], threading.Thread(target=other, daemon=True)
    with edit_heads(case.hooked, {site: {0: "zero"}}):
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        order.append("this")
    thread.join(60)
    assert order == ["this", "other"]
    with edit_heads(case.hooked, {site: {1: "zero"}}):
        assert torch.equal(result[0], case.view.host.logits(case.inputs))


def test_two_models_are_edited_at_once_each_by_its_own_edits():
    one, other = opened("bert"), opened("gpt2")
    with edit_heads(one.hooked, {one.view.sites[0]: {0: "zero"}}):
        first = one.view.host.logits(one.inputs)
        with edit_heads(other.hooked, {other.view.sites[1]: {2: "zero"}}):
            second = other.view.host.logits(other.inputs)
            assert torch.equal(one.view.host.logits(one.inputs), first)
    with edit_heads(other.hooked, {other.view.sites[1]: {2: "zero"}}):
        assert torch.equal(other.view.host.logits(other.inputs), second)


def test_measurements_in_a_block_are_of_the_edited_model_and_hold_it_for_the_same():
    case = opened("bert")
    with edit_heads(case.hooked, {case.view.sites[0]: {0: "zero"}}):
        again = capture.view(case.hooked)
        states = {}
        capture.hidden_states(case.hooked, case.inputs, lambda layer, state: states.__setitem__(layer, state))
    assert again.sites == case.view.sites
    assert torch.equal(again.host.model.W_E, case.hooked.W_E)
    intact = zoo.own_hidden_states(case.model, case.inputs)
    torch.testing.assert_close(states[0], intact[0], rtol=0, atol=1e-6)
    assert (states[1] - intact[1]).abs().max() > 0.01


def test_a_model_is_tried_once():
    given, passes = made("bert"), []
    given.bert.register_forward_pre_hook(lambda *_: passes.append(None))
    hooked = opening.open_model(given)
    site = capture.sites(hooked)[0]
    for expected in (True, False, False):
        passes.clear()
        with edit_heads(hooked, {site: {0: "zero"}}), cut_edges(hooked, {}):
            capture.view(hooked)
        assert bool(passes) == expected


def test_a_model_that_is_given_is_tried_once_for_a_view_of_it():
    model, passes = toy()[0], []
    model.embed.register_forward_pre_hook(lambda *_: passes.append(None))
    view = capture.view(model)
    for expected in (True, False):
        passes.clear()
        with editing(view), cut_edges(model, {}):
            pass
        assert bool(passes) == expected


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("bert", "huggingface"),
        ("gemma2", "huggingface"),
        ("t5", "huggingface"),
        ("gpt2", "bridge"),
        ("toy", ""),
    ],
)
def test_gradients_flow_through_edits_to_what_they_are_made_of(name, host):
    """The derivative by the gate of a head equals a difference quotient."""
    if name == "toy":
        model, _ = toy(n_heads=2)
        inputs = capture.view(model).inputs(TOY_IDS[:1], TOY_MASK[:1])
    else:
        model = zoo.hosted(made(name).double(), host)
        inputs = capture.view(model).inputs(IDS[:1], MASK[:1])  # Gemma 2 has no gradients beside padding
    # Some norms and softmaxes are always of single precision.
    step, error = (1e-3, 1e-3) if name in ("t5", "gemma2") else (1e-5, 1e-8)
    view = capture.view(model)
    site, cut = view.sites[-1], edges(view, inputs)

    def outcome(gate):
        with (
            cut_edges(model, cut),
            edit_heads(model, {site: {1: lambda own: gate * own}}),
            torch.enable_grad(),
        ):
            return view.host.logits(inputs)[0, 2].logsumexp(-1)

    gate = torch.ones((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(outcome(gate), gate)
    with torch.no_grad():
        quotient = (outcome(gate + step) - outcome(gate - step)) / (2 * step)
    assert slope.abs() > 5 * error
    torch.testing.assert_close(slope, quotient, rtol=1e-5, atol=error)


# ------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("name", "said"), [("mpnet", "MPNetForMaskedLM"), ("deberta", "DebertaV2ForMaskedLM")]
)
def test_models_that_never_call_the_attention_interface_are_refused_by_name(name, said):
    hooked = opening.open_model(made(name))
    (site, *_) = capture.sites(hooked)
    for block in (edit_heads(hooked, {site: {0: "zero"}}), cut_edges(hooked, {})):
        with (
            pytest.raises(
                ValueError,
                match=rf"the heads of HuggingFaceHost\({said}\) cannot be edited.*bridge that you build",
            ),
            block,
        ):
            pass
    inputs = capture.view(hooked).inputs(IDS, MASK)
    assert torch.isfinite(capture.view(hooked).host.logits(inputs)).all()


def test_a_model_that_chooses_by_the_name_of_its_attention_what_it_computes_is_refused():
    """DeepSeek V3.2 leaves out its choice of keys in an attention function that it does not know."""
    kind = "deepseek_v32"
    model = any_architecture.build(kind, any_architecture.architectures()[kind])
    hooked = opening.open_model(model)
    with (
        pytest.raises(
            ValueError, match=r"DeepseekV32ForCausalLM\) cannot be edited: it computes something else as"
        ),
        edit_heads(hooked, {}),
    ):
        pass


def deaf_model():
    """A native model that looks at no edited pattern: as 3.9 has it, and 4.3 without its seam."""
    if zoo.GENERATION == 4:
        model, _ = toy(n_heads=2)
        type(model.blocks[0].attn.original_component).accepts_pattern_fn = False
        return model
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    options = {
        "n_layers": 2, "n_heads": 4, "d_model": 32, "d_head": 8, "d_vocab": zoo.VOCABULARY, "n_ctx": 64,
        "act_fn": "gelu", "d_mlp": 37, "normalization_type": "LN", "attention_dir": "bidirectional",
    }  # fmt: skip
    return TransformerBridge.boot_native(TransformerBridgeConfig(**options))


@pytest.mark.filterwarnings("ignore:A hook on")
def test_a_host_that_discards_edited_patterns_cuts_no_edges_but_has_its_heads_edited():
    kept = NativeAttention.accepts_pattern_fn
    try:
        model = deaf_model()
        view = capture.view(model)
        site = view.sites[0]
        ids = IDS % 5 if zoo.GENERATION == 4 else IDS
        inputs = view.inputs(ids[:1], MASK[:1])
        with (
            pytest.raises(
                ValueError, match=r"edges of TransformerBridge cannot be cut: what blocks\.0\.attn"
            ),
            cut_edges(model, {}),
        ):
            pass
        with edit_heads(model, {}):
            intact = view.host.logits(inputs)
        with edit_heads(model, {site: {0: "zero", 1: "zero"}}):
            assert (view.host.logits(inputs) - intact).abs().max() > 1e-3
    finally:
        NativeAttention.accepts_pattern_fn = kept


@pytest.mark.parametrize(("name", "host"), [("bert", "huggingface"), ("gpt2", "bridge"), ("toy", "")])
@pytest.mark.parametrize("lost", ["outputs", "edges"])
def test_the_trial_notices_edits_that_are_lost(name, host, lost, monkeypatch):
    model = toy(n_heads=2)[0] if name == "toy" else zoo.hosted(made(name), host)
    if lost == "outputs":
        monkeypatch.setattr(changes.Change, "replace", _ignored)
        with pytest.raises(ValueError, match="cannot be edited: what"), edit_heads(model, {}):
            pass
    else:
        monkeypatch.setattr(changes.Change, "edges", lambda *_: None)
        with pytest.raises(ValueError, match="cannot be cut"), cut_edges(model, {}):
            pass
        with edit_heads(model, {}):
            pass


def test_the_trial_notices_lost_outputs_where_no_edge_has_anything_to_say(monkeypatch):
    model, _ = toy()
    set_toy_tensors(model, {"W_V": torch.zeros(5, 5)})
    monkeypatch.setattr(changes.Change, "replace", _ignored)
    with (
        pytest.raises(ValueError, match=r"written into the heads of .* changes nothing"),
        edit_heads(model, {}),
    ):
        pass


def _ignored(change, outputs):
    if change.outputs is not None:
        change.outputs(outputs)
    return outputs


def test_an_edit_of_nothing_that_changes_something_is_refused(monkeypatch):
    model = opening.open_model(made("bert"))
    true = changes.cut_mask
    from topic_probe.lens import huggingface

    def off_by_one(cut, mask, *, causal):
        found, emptied = true(cut, mask, causal=causal)
        first = torch.arange(found.shape[-1]) == 0
        lowest = False if found.dtype == torch.bool else torch.finfo(found.dtype).min
        return found.masked_fill(first, lowest), emptied

    monkeypatch.setattr(huggingface, "cut_mask", off_by_one)
    with pytest.raises(ValueError, match="an edit of nothing changes"), edit_heads(model, {}):
        pass


def test_what_is_asked_of_an_edit_is_checked():
    case = opened("bert")
    hooked, site = case.hooked, case.view.sites[0]
    with (
        pytest.raises(TypeError, match="needed a hooked model, not BertForMaskedLM"),
        edit_heads(case.model, {}),
    ):
        pass
    elsewhere = Site("cross", 0, "decoder_blocks.0.cross_attn.hook_pattern")
    with (
        pytest.raises(ValueError, match=r"does not attend at .*cross_attn.*; it does at blocks\.0"),
        edit_heads(hooked, {elsewhere: {0: "zero"}}),
    ):
        pass
    for wrong, message in (
        ({7: "zero"}, "there is no head 7: this site has heads 0 to 3"),
        ({0: torch.zeros(9)}, r"has to fit \[batch, query, d_head\] = \[3, 20, 8\].*got \[9\]"),
        ({0: lambda own: None}, "got NoneType"),
        (
            lambda outputs: outputs[:1],
            r"needed \[batch, query, head, d_head\] = \[3, 20, 4, 8\].*got \[1, 20, 4, 8\]",
        ),
        (lambda outputs: None, "got NoneType. A function gives back"),
    ):
        with edit_heads(hooked, {site: wrong}), pytest.raises(ValueError, match=message):
            case.view.host.run(case.inputs)
    other_size = torch.zeros(1, 1, 7, 7, dtype=torch.bool)
    with (
        cut_edges(hooked, {site: other_size}),
        pytest.raises(ValueError, match=r"needed \[3, 4, 20, 20\], got \[1, 1, 7, 7\]"),
    ):
        case.view.host.run(case.inputs)
    with (
        pytest.raises(ValueError, match="how must be one of 'scores', 'weights'"),
        cut_edges(hooked, {}, how="both"),
    ):
        pass


def test_what_no_edit_can_be_made_of_is_explained(unchecked):
    with pytest.raises(ValueError, match="by 'zero', a tensor or a function, got 'mean'"):
        replaced({0: "mean"})
    case = opened("bert")
    site = case.view.sites[0]
    for cut, got in ((torch.zeros(3, 4, 20, 20), r"\[3, 4, 20, 20\] of torch.float32"), ([[True]], "list")):
        with (
            pytest.raises(ValueError, match=rf"boolean mask \[batch, head, query, key\].*got {got}"),
            cut_edges(case.hooked, {site: cut}),
        ):
            pass


# ------------------------------------------------------------------------------------------- logits


@pytest.mark.parametrize(("name", "host"), [*CASES, ("mpnet", "huggingface"), ("electra", "huggingface")])
def test_logits_are_those_of_the_model(name, host):
    case = opened(name, host)
    with running.evaluating(case.hooked):
        found = case.view.host.logits(case.inputs)
    expected = own_logits(case.model, case.inputs)
    assert found.shape[-1] == zoo.VOCABULARY
    mask = case.inputs.mask if case.inputs.target_mask is None else case.inputs.target_mask
    torch.testing.assert_close(found[mask], expected[mask], rtol=0, atol=2e-4)


@pytest.mark.parametrize("name", ["bert-headless", "t5-encoder", "electra-discriminator"])
def test_a_model_without_a_head_over_the_vocabulary_has_no_logits(name):
    case = opened(name)
    with pytest.raises(
        ValueError, match=r"has no head that scores the vocabulary: load the model with its head"
    ):
        case.view.host.logits(case.inputs)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_a_model_with_adapters_of_peft_is_edited_with_them():
    import peft

    adapted = peft.get_peft_model(
        made("bert"), peft.LoraConfig(target_modules=["query"], init_lora_weights=False, r=2)
    ).eval()
    view = capture.view(opening.open_model(adapted))
    inputs = view.inputs(IDS, MASK)
    expected = own_logits(adapted, inputs)
    assert (expected - own_logits(made("bert"), inputs)).abs().max() > 1e-3
    with edit_heads(view.model, {}):
        assert torch.equal(view.host.logits(inputs), expected)
    site = view.sites[1]
    adapted.base_model.model.bert.encoder.layer[1].attention.output.dense.register_forward_pre_hook(
        lambda _, given: (torch.cat([0 * given[0][..., :8], given[0][..., 8:]], -1),)
    )
    ablated = own_logits(adapted, inputs)
    with edit_heads(view.model, {site: {0: "zero"}}):
        assert torch.equal(view.host.logits(inputs), ablated)
