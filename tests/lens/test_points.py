"""The hook points of the adapter-free host show Hugging Face's own tensors, and what they are changed to goes on."""

import copy
from functools import cache

import any_architecture
import pytest
import torch
import transformers as hf
import zoo
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from topic_probe.lens import capture, opening

# By architecture and stack, where layer 1 has its parts: what makes queries, keys and values (and where in its output),
# what puts heads together, and the layer.
_BERT = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
_ALBERT = ("attention.query", "attention.key", "attention.value", "attention.dense")
_BART = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj")
_CROSS = tuple(part.replace("self_attn", "encoder_attn") for part in _BART)
_T5 = tuple(f"layer.0.SelfAttention.{part}" for part in "qkvo")
_T5_CROSS = tuple(f"layer.1.EncDecAttention.{part}" for part in "qkvo")
_LLAMA = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
LAYERS = {
    "bert": {"self": ("bert.encoder.layer.1", _BERT)},
    "bert-headless": {"self": ("encoder.layer.1", _BERT)},
    "albert": {"self": ("albert.encoder.albert_layer_groups.0.albert_layers.0", _ALBERT)},
    "bart": {
        "encoder": ("model.encoder.layers.1", _BART),
        "decoder": ("model.decoder.layers.1", _BART),
        "cross": ("model.decoder.layers.1", _CROSS),
    },
    "t5": {
        "encoder": ("encoder.block.1", _T5),
        "decoder": ("decoder.block.1", _T5),
        "cross": ("decoder.block.1", _T5_CROSS),
    },
    "gpt2": {"self": ("transformer.h.1", ("attn.c_attn",) * 3 + ("attn.c_proj",))},
    "llama": {"self": ("model.layers.1", _LLAMA)},
    "modernbert": {"self": ("model.layers.1", ("attn.Wqkv",) * 3 + ("attn.Wo",))},
}
FUSED = {"gpt2", "modernbert"}
FINAL_NORM = {
    "gpt2": "transformer.ln_f",
    "llama": "model.norm",
    "modernbert": "model.final_norm",
    "t5": "encoder.final_layer_norm",
}
D_HEAD = zoo.WIDTH // zoo.HEADS


def opened(name, lengths=(20, 9, 14)):
    hooked = opening.open_model(zoo.make(name))
    return hooked, given(capture.view(hooked).inputs(*zoo.documents(lengths)))


shared = cache(opened)  # by tests that leave it as it was


def given(inputs):
    options = {"input_ids": inputs.ids, "attention_mask": inputs.mask.long()}
    if inputs.target_ids is not None:
        target_mask = inputs.target_mask.long()
        options |= {"decoder_input_ids": inputs.target_ids, "decoder_attention_mask": target_mask}
    return options


@torch.no_grad()
def answer(hooked, options, *hooks):
    """What a model ends with (scores over words where it has a head), with hooks on some of its points."""
    return hooked.run_with_hooks(**options, fwd_hooks=list(hooks), return_dict=True)[0]


@torch.no_grad()
def cached(hooked, options, names_filter=None):
    return hooked.run_with_cache(**options, names_filter=names_filter)[1]


def names(hooked, site):
    """The hook points of a site, by what they show."""
    attention = site.hook_name.removesuffix("hook_pattern")
    block = site.hook_name.split(".attn.")[0].split(".self_attn.")[0].split(".cross_attn.")[0]
    of_call = {what: f"{attention}hook_{what}" for what in ("q", "k", "v", "attn_scores", "pattern", "z")}
    written = "hook_cross_attn_out" if site.stack == "cross" else "hook_attn_out"
    return of_call | {
        "attn_out": f"{block}.{written}",
        "resid_pre": f"{block}.hook_resid_pre",
        "resid_post": f"{block}.hook_resid_post",
    }


def site_of(hooked, stack, layer=1):
    return next(site for site in capture.sites(hooked) if (site.stack, site.layer) == (stack, layer))


class OnModule:
    """A plain hook of PyTorch on a module, which sees its calls and may change one of them."""

    def __init__(self, module, change=None, *, call=0, before=False):
        self.seen, self.change, self.call = [], change, call
        self.handle = (
            module.register_forward_pre_hook(lambda _, taken: self.look(taken[0], *taken[1:]))
            if before
            else module.register_forward_hook(lambda _, taken, made: self.after(made))
        )

    def look(self, tensor, *rest):
        self.seen.append(tensor.clone())
        if self.change is not None and len(self.seen) == self.call + 1:
            return (self.change(tensor), *rest)
        return None

    def after(self, made):
        if isinstance(made, tuple):
            return self.look(*made)
        changed = self.look(made)
        return None if changed is None else changed[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.handle.remove()


CASES = [(name, stack) for name, stacks in LAYERS.items() for stack in stacks]


def part(hooked, name, stack, what):
    layer, parts = LAYERS[name][stack]
    module = hooked.original_model.get_submodule(layer)
    return module.get_submodule(parts["qkvo".index(what)]) if what in "qkvo" else module


def columns(name, what, n_heads):
    """Where the output of a projection has the queries, keys or values."""
    first = "qkv".index(what) * zoo.WIDTH if name in FUSED else 0
    return slice(first, first + n_heads * D_HEAD)


def n_heads_of(name, what):
    return 2 if name == "llama" and what in "kv" else zoo.HEADS


CALL = {"albert": 1}  # the second call of the one layer


# --------------------------------------------------------------------------------------------- what they show


@pytest.mark.parametrize(("name", "stack"), CASES)
def test_queries_keys_values_and_what_attention_writes_are_those_of_the_model(name, stack):
    hooked, options = shared(name)
    points = names(hooked, site_of(hooked, stack))
    shown = cached(hooked, options, lambda point: point in points.values())
    call = CALL.get(name, 0)
    for what in "qkv":
        n_heads = n_heads_of(name, what)
        with OnModule(part(hooked, name, stack, what)) as spy:
            answer(hooked, options)
        own = spy.seen[call][..., columns(name, what, n_heads)].unflatten(-1, (n_heads, D_HEAD))
        tensor = shown[points[what]]
        if what == "v" or name not in ("llama", "modernbert"):
            assert torch.equal(tensor, own)
        else:  # turned by where they stand, the first by nothing
            torch.testing.assert_close(tensor[:, 0], own[:, 0])
            torch.testing.assert_close(tensor.norm(dim=-1), own.norm(dim=-1))
            assert (tensor - own)[:, 1:].abs().max() > 0.1
    output = part(hooked, name, stack, "o")
    with OnModule(output) as after, OnModule(output, before=True) as before:
        answer(hooked, options)
    assert torch.equal(shown[points["z"]].flatten(2), before.seen[call])
    assert torch.equal(shown[points["attn_out"]], after.seen[call])


@pytest.mark.parametrize(("name", "stack"), CASES)
def test_scores_give_the_pattern_and_the_pattern_of_values_gives_the_outputs_of_heads(name, stack):
    hooked, options = shared(name)
    site = site_of(hooked, stack)
    points = names(hooked, site)
    shown = {what: cached(hooked, options)[point] for what, point in points.items()}
    inputs = capture.view(hooked).inputs(*zoo.documents())
    own = zoo.own_patterns(hooked.original_model, inputs)[stack][site.layer]
    assert torch.equal(shown["pattern"], own)
    torch.testing.assert_close(shown["attn_scores"].softmax(-1), own, rtol=0, atol=1e-6)
    values, keys = (
        shown[what].repeat_interleave(zoo.HEADS // shown[what].shape[2], 2).transpose(1, 2) for what in "vk"
    )
    torch.testing.assert_close(shown["z"], (own @ values).transpose(1, 2), rtol=0, atol=1e-5)
    if name != "t5":  # which scales nothing, and adds what depends on positions
        products = shown["q"].transpose(1, 2) @ keys.transpose(2, 3) / D_HEAD**0.5
        visible = zoo.visible(name, stack, site.layer, inputs)[:, None].expand_as(products)
        torch.testing.assert_close(shown["attn_scores"][visible], products[visible], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_the_stream_before_and_after_each_layer_is_hidden_states(name):
    hooked, options = shared(name)
    inputs = capture.view(hooked).inputs(*zoo.documents())
    own = zoo.own_hidden_states(hooked.original_model, inputs)
    shown = cached(hooked, options)
    blocks = "blocks" if len(LAYERS[name]) == 1 else "encoder_blocks"
    for layer in range(len(own) - 1):
        assert torch.equal(shown[f"{blocks}.{layer}.hook_resid_pre"], own[layer])
        if layer:
            assert torch.equal(shown[f"{blocks}.{layer - 1}.hook_resid_post"], own[layer])
    last = shown[f"{blocks}.{len(own) - 2}.hook_resid_post"]
    if name in FINAL_NORM:
        last = hooked.original_model.get_submodule(FINAL_NORM[name])(last)
    assert torch.equal(last, own[-1])


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_the_stream_of_a_decoder_is_its_hidden_states(name):
    hooked, options = shared(name)
    twin = copy.deepcopy(hooked.original_model)
    twin.set_attn_implementation("eager")
    own = twin(**options, output_hidden_states=True, return_dict=True).decoder_hidden_states
    shown = cached(hooked, options)
    for layer in range(len(own) - 1):
        assert torch.equal(shown[f"decoder_blocks.{layer}.hook_resid_pre"], own[layer])
    for layer in range(1, len(own) - 1):
        assert torch.equal(shown[f"decoder_blocks.{layer - 1}.hook_resid_post"], own[layer])


def test_hook_points_have_the_names_of_transformerlens():
    attention = {"q", "k", "v", "attn_scores", "pattern", "z"}
    layer = {"hook_attn_out", "hook_resid_pre", "hook_resid_post"}
    hooked = opening.open_model(zoo.make("bart-uneven"))
    expected = {
        f"{stack}_blocks.{number}.{name}"
        for stack, kinds, n_layers in (("encoder", ["attn"], 2), ("decoder", ["self_attn", "cross_attn"], 3))
        for number in range(n_layers)
        for name in layer | {f"{kind}.hook_{what}" for kind in kinds for what in attention}
    } | {f"decoder_blocks.{number}.hook_cross_attn_out" for number in range(3)}
    assert set(hooked.hook_dict) == expected
    bridge = zoo.bridge(zoo.make("bert"))
    hooked = opening.open_model(zoo.make("bert"))
    assert set(hooked.hook_dict) <= set(bridge.hook_dict)
    only_returned = opening.open_model(zoo.make("mpnet"))
    assert set(only_returned.hook_dict) == {f"blocks.{layer}.attn.hook_pattern" for layer in range(3)}


def test_layers_of_two_attentions_have_no_stream_of_their_own():
    """Longcat's layers attend twice; ALBERT's groups, with two layers in each, too, but these are lists of layers."""
    longcat = opening.open_model(any_architecture.build("longcat_flash", "LongcatFlashForCausalLM"))
    assert longcat.probe.sites
    assert not [name for name in longcat.hook_dict if "resid" in name]
    groups = hf.AlbertConfig(**zoo._narrow | {"num_hidden_layers": 2, "inner_group_num": 2})
    albert = opening.open_model(zoo.drawn(lambda: hf.AlbertModel(groups)))
    shown = cached(albert, given(capture.view(albert).inputs(*zoo.documents())))
    for layer in range(3):
        before, after = (f"blocks.{layer + late}.hook_resid_{end}" for late, end in ((1, "pre"), (0, "post")))
        assert torch.equal(shown[before], shown[after])
    assert (shown["blocks.1.hook_resid_pre"] - shown["blocks.0.hook_resid_pre"]).abs().max() > 0.1


def test_scores_beside_a_sink_are_those_of_the_keys():
    model = any_architecture.build("gpt_oss", "GptOssForCausalLM")
    hooked = opening.open_model(model)
    options = given(capture.view(hooked).inputs(*zoo.documents((5, 5))))
    shown = cached(hooked, options)
    scores, pattern = (shown[f"blocks.0.attn.hook_{what}"] for what in ("attn_scores", "pattern"))
    assert scores.shape == pattern.shape
    assert (pattern.sum(-1) < 0.99).any()  # the sink has the rest
    scores, pattern = scores[:, :, -1], pattern[:, :, -1]  # of the last query, which sees all keys
    torch.testing.assert_close(pattern / pattern[..., :1], (scores - scores[..., :1]).exp())

    def without_the_first(scores, hook):
        return torch.cat([torch.full_like(scores[..., :1], -torch.inf), scores[..., 1:]], -1)

    edited = {}
    keep = ("blocks.0.attn.hook_pattern", lambda tensor, hook: edited.update(pattern=tensor))
    answer(hooked, options, ("blocks.0.attn.hook_attn_scores", without_the_first), keep)
    torch.testing.assert_close(edited["pattern"][:, :, -1, 1:], pattern[..., 1:] / (1 - pattern[..., :1]))


# --------------------------------------------------------------------------------------------- what is changed


def zero(tensor):
    """Without head 1, from position 3 on."""
    changed = tensor.clone()
    changed[:, 3:, 1] = 0
    return changed


def bent(tensor):
    """A state in which half of the numbers are another's."""
    return torch.cat([tensor[..., : zoo.WIDTH // 2], tensor[..., : zoo.WIDTH // 2].flip(1)], -1)


def zero_in(name, what):
    n_heads, D = n_heads_of(name, what), D_HEAD

    def change(output):
        changed, at = output.clone(), columns(name, what, n_heads)
        changed[..., at] = zero(output[..., at].unflatten(-1, (n_heads, D))).flatten(-2)
        return changed

    return change


@pytest.mark.parametrize("what", ["q", "k", "v", "z", "attn_out", "resid_pre", "resid_post"])
@pytest.mark.parametrize(("name", "stack"), CASES)
def test_an_edit_is_that_of_a_hook_of_pytorch(name, stack, what):
    hooked, options = shared(name)
    plain = answer(hooked, options)
    point = names(hooked, site_of(hooked, stack))[what]
    state = what in ("attn_out", "resid_pre", "resid_post")
    change = bent if state else zero
    edited = answer(hooked, options, (point, lambda tensor, hook: change(tensor)))
    call, before = CALL.get(name, 0), what in ("z", "resid_pre")
    module = part(hooked, name, stack, {"z": "o", "attn_out": "o"}.get(what, what))
    if what == "z":
        change = zero_in("bert", "q")  # heads stand side by side, as in BERT's queries
    elif not state:
        change = zero_in(name, what)
    with OnModule(module, change, call=call, before=before):
        expected = answer(hooked, options)
    assert torch.equal(edited, expected)
    assert (edited - plain).abs().max() > 1e-3
    assert torch.equal(answer(hooked, options), plain)


@pytest.mark.parametrize(("name", "stack"), [case for case in CASES if case[0] != "t5"])
def test_twice_the_scores_are_those_of_twice_the_queries(name, stack):
    # Padding far behind a document sees nothing in ModernBERT's windows, and twice the lowest number is no number.
    hooked, options = shared(name, (20, 20, 20))
    points = names(hooked, site_of(hooked, stack))
    by_scores = answer(hooked, options, (points["attn_scores"], lambda scores, hook: 2 * scores))
    by_queries = answer(hooked, options, (points["q"], lambda queries, hook: 2 * queries))
    assert torch.equal(by_scores, by_queries)  # a power of two is exact
    in_place = answer(hooked, options, (points["attn_scores"], lambda scores, hook: scores.mul_(2)))
    assert torch.equal(in_place, by_queries)
    assert (by_scores - answer(hooked, options)).abs().max() > 1e-3


@pytest.mark.parametrize(("name", "stack"), CASES)
def test_a_changed_pattern_is_applied_to_changed_values_before_outputs_are_changed(name, stack):
    hooked, options = shared(name)
    site = site_of(hooked, stack)
    points, kept = names(hooked, site), {}

    def keep(what, change):
        def hook(tensor, hook):
            kept[what] = change(tensor)
            return kept[what]

        return points[what], hook

    edits = [
        keep("pattern", lambda pattern: pattern.roll(1, 1)),
        keep("v", lambda values: values.flip(1)),
        keep("z", lambda outputs: kept.setdefault("before", outputs) * 2),
    ]
    written = (points["attn_out"], lambda tensor, hook: kept.update(written=tensor))
    answer(hooked, options, *edits, written)
    values = kept["v"].repeat_interleave(zoo.HEADS // kept["v"].shape[2], 2).transpose(1, 2)
    torch.testing.assert_close(kept["before"], (kept["pattern"] @ values).transpose(1, 2), rtol=0, atol=1e-5)
    own = part(hooked, name, stack, "o")(2 * kept["before"].flatten(2))
    torch.testing.assert_close(kept["written"], own, rtol=0, atol=1e-5)


def test_layers_that_are_called_by_name_are_edited_too():
    model = zoo.make("bert-headless")

    def by_name(hidden_states, attention_mask=None, **options):
        for layer in model.encoder.layer:
            hidden_states = layer(attention_mask=attention_mask, hidden_states=hidden_states)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=hidden_states)

    model.encoder.forward = by_name
    edit = ("blocks.1.hook_resid_pre", lambda tensor, hook: bent(tensor))
    expected, options = shared("bert-headless")
    by_place = answer(expected, options, edit)
    assert torch.equal(answer(opening.open_model(model), options, edit), by_place)


@pytest.mark.parametrize("name", [*LAYERS, "gemma2", "distilbert", "neox"])
def test_hooks_that_return_what_they_were_given_change_nothing(name):
    hooked, options = shared(name)
    plain = answer(hooked, options)
    assert torch.equal(answer(hooked, options, (lambda _: True, lambda tensor, hook: tensor)), plain)
    assert torch.equal(answer(hooked, options, (lambda _: True, lambda tensor, hook: None)), plain)
    not_patterns = [point for point in hooked.hook_dict if not point.endswith("pattern")]
    copies = [(point, lambda tensor, hook: tensor.clone()) for point in not_patterns]
    assert torch.equal(answer(hooked, options, *copies), plain)


@pytest.mark.parametrize("what", ["q", "attn_scores", "z", "attn_out", "resid_pre", "resid_post"])
def test_gradients_at_hook_points_are_those_of_the_tensors_there(what):
    hooked, options = shared("bert-headless")
    point, kept = names(hooked, site_of(hooked, "self"))[what], {}

    def keep(tensor, hook):
        kept["tensor"] = tensor
        tensor.retain_grad()

    def keep_gradient(gradient, hook):
        kept["gradient"] = gradient.clone()

    with hooked.hooks(fwd_hooks=[(point, keep)], bwd_hooks=[(point, keep_gradient)]):
        hooked(**options).last_hidden_state.pow(3).sum().backward()
    assert kept["gradient"].abs().max() > 0
    assert torch.equal(kept["gradient"], kept["tensor"].grad)
    with hooked.hooks(bwd_hooks=[(point, keep_gradient)]):  # alone, too
        kept.clear()
        hooked(**options).last_hidden_state.pow(3).sum().backward()
    assert kept["gradient"].abs().max() > 0


# --------------------------------------------------------------------------------------------- what is left


def on_modules(model):
    return [
        name
        for name, module in model.named_modules()
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
    ]


def test_a_cache_has_what_was_asked_for_and_leaves_no_hook():
    hooked, options = shared("albert")
    wanted = ["blocks.0.hook_resid_post", "blocks.2.attn.hook_z"]
    assert list(cached(hooked, options, lambda name: name in wanted)) == wanted
    assert set(cached(hooked, options)) == set(hooked.hook_dict)
    assert not on_modules(hooked)
    with pytest.raises(RuntimeError, match="of the user"):
        answer(hooked, options, ("blocks.1.hook_resid_pre", fails), ("blocks.1.hook_attn_out", fails))
    assert not on_modules(hooked)


def fails(tensor, hook):
    raise RuntimeError("of the user")


def test_modules_are_only_hooked_for_points_that_have_hooks():
    hooked, options = opened("bert-headless")
    seen = []
    hooked.original_model.pooler.register_forward_pre_hook(
        lambda *_: seen.append(on_modules(hooked.original_model))
    )
    answer(hooked, options)
    answer(hooked, options, ("blocks.1.attn.hook_z", zero_hook))
    answer(hooked, options, ("blocks.1.hook_attn_out", lambda tensor, hook: None))
    assert seen[:2] == [["pooler"]] * 2
    assert seen[2] == [f"encoder.layer.{layer}.attention.output.dense" for layer in range(3)] + ["pooler"]


def zero_hook(tensor, hook):
    return zero(tensor)


def test_a_copy_of_a_host_hooks_its_own_layers():
    hooked, options = shared("albert")
    twin = copy.deepcopy(hooked)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(1.5)
    point = "blocks.1.hook_resid_post"
    shown = [cached(host, options, lambda name: name == point)[point] for host in (hooked, twin)]
    assert (shown[0] - shown[1]).abs().max() > 0.1


def without_softmax(module, query, key, value, attention_mask, **options):
    weights = (query @ key.transpose(2, 3)).sigmoid()
    weights = weights.masked_fill(attention_mask < 0, 0) if attention_mask is not None else weights
    weights = weights / weights.sum(-1, keepdim=True)
    return (weights @ value).transpose(1, 2), weights


def test_a_hook_that_is_never_called_is_an_error():
    hf.AttentionInterface.register("sigmoid", without_softmax)
    hf.AttentionMaskInterface.register("sigmoid", hf.AttentionMaskInterface()["eager"])
    model = zoo.make("bert-headless")
    model.set_attn_implementation("sigmoid")
    hooked = opening.open_model(model)
    options = given(capture.view(hooked).inputs(*zoo.documents()))
    shown = cached(hooked, options, lambda name: "scores" not in name)
    values = shown["blocks.1.attn.hook_v"].transpose(1, 2)
    torch.testing.assert_close(
        shown["blocks.1.attn.hook_z"], (shown["blocks.1.attn.hook_pattern"] @ values).transpose(1, 2)
    )
    edited = answer(hooked, options, ("blocks.1.attn.hook_q", zero_hook))
    with OnModule(model.encoder.layer[1].attention.self.query, zero_in("bert", "q")):
        assert torch.equal(edited, answer(hooked, options))
    with pytest.raises(ValueError, match=r"a hook on blocks\.1\.attn\.hook_attn_scores was never called"):
        answer(hooked, options, ("blocks.1.attn.hook_attn_scores", lambda scores, hook: 2 * scores))
    with pytest.raises(ValueError, match=r"blocks\.2\.attn\.hook_attn_scores was never called.*names_filter"):
        cached(hooked, options)
    assert not on_modules(hooked)


# --------------------------------------------------------------------------------------------- what is measured


def read_rows(view, inputs, through="auto"):
    rows = {side: torch.arange(inputs.side(side)[0].shape[1]).expand(3, -1) for side in sides(inputs)}
    shown = {}
    view.attention_rows(
        inputs, rows, lambda number, pattern, _: shown.update({number: pattern.clone()}), through=through
    )
    return shown


def sides(inputs):
    return ["source"] if inputs.target_ids is None else ["source", "target"]


@pytest.mark.parametrize("what", ["q", "k", "v", "attn_scores", "z", "attn_out", "resid_pre", "resid_post"])
@pytest.mark.parametrize("name", ["bert", "albert", "llama", "t5"])
def test_attention_is_measured_with_the_edits_of_a_user(name, what):
    hooked, _ = shared(name)
    hooked.reset_hooks()
    view = capture.view(hooked)
    assert view.tap is not None
    inputs = view.inputs(*zoo.documents())
    plain = read_rows(view, inputs)
    stack = next(iter(LAYERS[name]))
    point = names(hooked, site_of(hooked, stack, layer=0))[what]
    hooked.hook_dict[point].add_hook(lambda tensor, hook: tensor.roll(1, 0))  # the next document's
    measured = [read_rows(view, inputs, through)[1] for through in ("auto", "rows")]
    shown = cached(hooked, given(inputs))[view.sites[1].hook_name]
    for pattern in measured:
        torch.testing.assert_close(pattern, shown, rtol=0, atol=1e-6)
    assert (measured[0] - plain[1]).abs().max() > 1e-3
    hooked.reset_hooks()
    torch.testing.assert_close(read_rows(view, inputs)[1], plain[1], rtol=0, atol=0)


@pytest.mark.parametrize("asked_before", [False, True])
@pytest.mark.parametrize("name", ["bert-headless", "gpt2", "t5"])
def test_states_are_measured_with_the_edits_of_a_user(name, asked_before):
    hooked, options = opened(name)
    inputs = capture.view(hooked).inputs(*zoo.documents())
    if asked_before:  # transformers then has hooks on the layers, which stay
        hooked.original_model(**options, output_hidden_states=True)
    stack = next(iter(LAYERS[name]))
    points = names(hooked, site_of(hooked, stack, layer=0))
    states = {}
    hooked.hook_dict[points["resid_post"]].add_hook(lambda tensor, hook: bent(tensor))
    capture.hidden_states(hooked, inputs, lambda layer, state: states.update({layer: state}))
    shown = cached(hooked, options)
    blocks = points["resid_post"].rsplit(".", 2)[0]
    assert torch.equal(states[1], shown[f"{blocks}.1.hook_resid_pre"])
    half = zoo.WIDTH // 2
    assert torch.equal(states[1][..., half:], states[1][..., :half].flip(1))
    hooked.reset_hooks()
    capture.hidden_states(hooked, inputs, lambda layer, state: states.update({layer: state}))
    own = zoo.own_hidden_states(hooked.original_model, inputs)
    torch.testing.assert_close(states[1], own[1], rtol=0, atol=1e-5)
