"""The hook points of the adapter-free host show Hugging Face's own tensors, and what they are changed to goes on."""

from contextlib import contextmanager

import any_architecture
import pytest
import torch
import zoo

from topic_probe.lens import opening
from topic_probe.lens.host import hidden_states, host_of, sites_of

# By architecture and stack, where layer 1 has its parts: what makes queries, keys and values (and where in its output),
# what puts heads together, and the layer.
_BART = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj")
_BERT = tuple(f"attention.{part}" for part in ("self.query", "self.key", "self.value", "output.dense"))
_ALBERT = tuple(f"attention.{part}" for part in ("query", "key", "value", "dense"))
LAYERS = {
    ("bert", "self"): ("bert.encoder.layer.1", _BERT),
    ("albert", "self"): ("albert.encoder.albert_layer_groups.0.albert_layers.0", _ALBERT),
    ("bart", "decoder"): ("model.decoder.layers.1", _BART),
    ("bart", "cross"): ("model.decoder.layers.1", tuple(part.replace("self", "encoder") for part in _BART)),
    ("t5", "cross"): ("decoder.block.1", tuple(f"layer.1.EncDecAttention.{part}" for part in "qkvo")),
    ("gpt2", "self"): ("transformer.h.1", ("attn.c_attn",) * 3 + ("attn.c_proj",)),
    ("llama", "self"): ("model.layers.1", tuple(f"self_attn.{part}_proj" for part in "qkvo")),
    ("modernbert", "self"): ("model.layers.1", ("attn.Wqkv",) * 3 + ("attn.Wo",)),
}
FINAL_NORM = {"gpt2": "transformer.ln_f", "llama": "model.norm", "modernbert": "model.final_norm"}
D_HEAD = zoo.WIDTH // zoo.HEADS


@torch.no_grad()
def answer(hooked, inputs, *hooks):
    """What a model ends with (scores over words where it has a head), with hooks on some of its points."""
    return hooked.run_with_hooks(**zoo.arguments(inputs), fwd_hooks=list(hooks), return_dict=True)[0]


@torch.no_grad()
def cached(hooked, inputs, names_filter=None):
    return hooked.run_with_cache(**zoo.arguments(inputs), names_filter=names_filter)[1]


def points_of(hooked, stack, layer=1):
    """The hook points of a site, by what they show."""
    site = next(site for site in sites_of(hooked) if (site.stack, site.layer) == (stack, layer))
    attention = site.hook_name.removesuffix("hook_pattern")
    block = site.hook_name.rsplit(".", 2)[0]
    of_call = {what: f"{attention}hook_{what}" for what in ("q", "k", "v", "attn_scores", "pattern", "z")}
    written = "hook_cross_attn_out" if stack == "cross" else "hook_attn_out"
    stream = {what: f"{block}.hook_{what}" for what in ("resid_pre", "resid_post")}
    return of_call | {"attn_out": f"{block}.{written}"} | stream


@contextmanager
def on_module(module, change=None, *, call=0, before=False):
    """A plain hook of PyTorch on a module, which gives what it sees of calls and may change one of them."""
    seen = []

    def look(tensor):
        seen.append(tensor.clone())
        return tensor if change is None or len(seen) != call + 1 else change(tensor)

    def after(_module, _given, made):
        return (look(made[0]), *made[1:]) if isinstance(made, tuple) else look(made)

    handle = (
        module.register_forward_pre_hook(lambda _, given: (look(given[0]), *given[1:]))
        if before
        else module.register_forward_hook(after)
    )
    try:
        yield seen
    finally:
        handle.remove()


def part(hooked, case, what):
    layer, parts = LAYERS[case]
    module = hooked.original_model.get_submodule(layer)
    return module.get_submodule(parts["qkvo".index(what)]) if what in "qkvo" else module


def columns(name, what):
    """Where the output of a projection has the queries, keys or values, and of how many heads."""
    first = "qkv".index(what) * zoo.WIDTH if name in ("gpt2", "modernbert") else 0
    n_heads = 2 if name == "llama" and what in "kv" else zoo.HEADS
    return slice(first, first + n_heads * D_HEAD), n_heads


@pytest.mark.parametrize(("name", "stack"), LAYERS)
def test_points_show_what_the_model_computes(name, stack):
    case = zoo.opened(name)
    hooked, inputs, points = case.hooked, case.inputs, points_of(case.hooked, stack)
    cache = cached(hooked, inputs)
    shown, call = {what: cache[point] for what, point in points.items()}, int(name == "albert")
    for what in "qkv":
        at, n_heads = columns(name, what)
        with on_module(part(hooked, (name, stack), what)) as seen:
            answer(hooked, inputs)
        own = seen[call][..., at].unflatten(-1, (n_heads, D_HEAD))
        if what == "v" or name not in ("llama", "modernbert"):
            assert torch.equal(shown[what], own)
        else:  # turned by where they stand, the first by nothing
            torch.testing.assert_close(shown[what][:, 0], own[:, 0])
            torch.testing.assert_close(shown[what].norm(dim=-1), own.norm(dim=-1))
            assert (shown[what] - own)[:, 1:].abs().max() > 0.1
    output = part(hooked, (name, stack), "o")
    with on_module(output) as after, on_module(output, before=True) as before:
        answer(hooked, inputs)
    assert torch.equal(shown["z"].flatten(2), before[call])
    assert torch.equal(shown["attn_out"], after[call])

    own = zoo.own_patterns(hooked.original_model, inputs)[stack][1]
    assert torch.equal(shown["pattern"], own)
    torch.testing.assert_close(shown["attn_scores"].softmax(-1), own, rtol=0, atol=1e-6)
    values, keys = (
        shown[what].repeat_interleave(zoo.HEADS // shown[what].shape[2], 2).transpose(1, 2) for what in "vk"
    )
    torch.testing.assert_close(shown["z"], (own @ values).transpose(1, 2), rtol=0, atol=1e-5)
    if name != "t5":  # which scales nothing, and adds what depends on positions
        products = shown["q"].transpose(1, 2) @ keys.transpose(2, 3) / D_HEAD**0.5
        visible = zoo.visible(name, stack, 1, inputs)[:, None].expand_as(products)
        torch.testing.assert_close(shown["attn_scores"][visible], products[visible], rtol=0, atol=1e-5)

    if stack == "self":
        states = zoo.own_hidden_states(hooked.original_model, inputs)
        for layer, state in enumerate(states[:-1]):
            assert torch.equal(cache[f"blocks.{layer}.hook_resid_pre"], state)
            assert not layer or torch.equal(cache[f"blocks.{layer - 1}.hook_resid_post"], state)
        last = cache[f"blocks.{len(states) - 2}.hook_resid_post"]
        if name in FINAL_NORM:
            last = hooked.original_model.get_submodule(FINAL_NORM[name])(last)
        assert torch.equal(last, states[-1])


def zero(tensor):
    """Without head 1, from position 3 on."""
    changed = tensor.clone()
    changed[:, 3:, 1] = 0
    return changed


def bent(tensor):
    """A state in which half of the numbers are another's."""
    return torch.cat([tensor[..., : zoo.WIDTH // 2], tensor[..., : zoo.WIDTH // 2].flip(1)], -1)


@pytest.mark.parametrize(("name", "stack"), LAYERS)
def test_an_edit_at_a_point_is_that_of_a_hook_of_pytorch(name, stack):
    case = zoo.opened(name)
    hooked, inputs, points = case.hooked, case.inputs, points_of(case.hooked, stack)
    plain = answer(hooked, inputs)
    for what in ("q", "k", "v", "z", "attn_out", "resid_pre", "resid_post"):
        at, n_heads = columns(name, what) if what in "qkv" else (slice(0, zoo.WIDTH), zoo.HEADS)
        change = bent if len(what) > 1 else zero

        def on_output(output, change=change, at=at, n_heads=n_heads):
            changed = output.clone()
            changed[..., at] = zero(output[..., at].unflatten(-1, (n_heads, D_HEAD))).flatten(-2)
            return bent(output) if change is bent else changed

        edited = answer(hooked, inputs, (points[what], lambda tensor, hook, change=change: change(tensor)))
        module = part(hooked, (name, stack), {"z": "o", "attn_out": "o"}.get(what, what))
        with on_module(module, on_output, call=int(name == "albert"), before=what in ("z", "resid_pre")):
            expected = answer(hooked, inputs)
        assert torch.equal(edited, expected), what
        assert (edited - plain).abs().max() > 1e-3, what
    every = (lambda _: True, lambda tensor, hook: tensor)
    assert torch.equal(answer(hooked, inputs, every), plain)

    # A changed pattern is applied to changed values before outputs are changed.
    kept = {}

    def keep(what, change):
        return points[what], lambda tensor, hook: kept.setdefault(what, change(tensor))

    edits = [
        keep("pattern", lambda pattern: pattern.roll(1, 1)),
        keep("v", lambda values: values.flip(1)),
        (points["z"], lambda outputs, hook: kept.setdefault("z", outputs) * 2),
        (points["attn_out"], lambda tensor, hook: kept.update(written=tensor)),
    ]
    answer(hooked, inputs, *edits)
    values = kept["v"].repeat_interleave(zoo.HEADS // kept["v"].shape[2], 2).transpose(1, 2)
    torch.testing.assert_close(kept["z"], (kept["pattern"] @ values).transpose(1, 2), rtol=0, atol=1e-5)
    own = part(hooked, (name, stack), "o")(2 * kept["z"].flatten(2))
    torch.testing.assert_close(kept["written"], own, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "stack"), [("bart", "cross"), ("gpt2", "self"), ("llama", "self")])
def test_twice_the_scores_are_those_of_twice_the_queries(name, stack):
    hooked, points = zoo.opened(name).hooked, points_of(zoo.opened(name).hooked, stack)
    inputs = zoo.opened(name).view.inputs(*zoo.documents((20, 20)))  # twice the lowest number is no number
    by_scores = answer(hooked, inputs, (points["attn_scores"], lambda scores, hook: 2 * scores))
    by_queries = answer(hooked, inputs, (points["q"], lambda queries, hook: 2 * queries))
    assert torch.equal(by_scores, by_queries)  # a power of two is exact
    assert torch.equal(
        answer(hooked, inputs, (points["attn_scores"], lambda scores, hook: scores.mul_(2))), by_queries
    )
    assert (by_scores - answer(hooked, inputs)).abs().max() > 1e-3


def test_scores_beside_a_sink_are_those_of_the_keys():
    hooked = opening.open_model(any_architecture.build("gpt_oss", "GptOssForCausalLM"))
    inputs, edited = host_of(hooked).inputs(*zoo.documents((5, 5))), {}
    shown = cached(hooked, inputs)
    scores, pattern = (shown[f"blocks.0.attn.hook_{what}"] for what in ("attn_scores", "pattern"))
    assert scores.shape == pattern.shape
    assert (pattern.sum(-1) < 0.99).any()  # the sink has the rest
    scores, pattern = scores[:, :, -1], pattern[:, :, -1]  # of the last query, which sees all keys
    torch.testing.assert_close(pattern / pattern[..., :1], (scores - scores[..., :1]).exp())

    def without_the_first(scores, hook):
        return torch.cat([torch.full_like(scores[..., :1], -torch.inf), scores[..., 1:]], -1)

    keep = ("blocks.0.attn.hook_pattern", lambda tensor, hook: edited.update(pattern=tensor))
    answer(hooked, inputs, ("blocks.0.attn.hook_attn_scores", without_the_first), keep)
    torch.testing.assert_close(edited["pattern"][:, :, -1, 1:], pattern[..., 1:] / (1 - pattern[..., :1]))


@pytest.mark.generation
def test_hook_points_have_the_names_of_transformerlens():
    attention = {"q", "k", "v", "attn_scores", "pattern", "z"}
    layer = {"hook_attn_out", "hook_resid_pre", "hook_resid_post"}
    expected = {
        f"{stack}_blocks.{number}.{name}"
        for stack, kinds, n_layers in (("encoder", ["attn"], 2), ("decoder", ["self_attn", "cross_attn"], 3))
        for number in range(n_layers)
        for name in layer | {f"{kind}.hook_{what}" for kind in kinds for what in attention}
    } | {f"decoder_blocks.{number}.hook_cross_attn_out" for number in range(3)}
    assert set(zoo.opened("bart-uneven").hooked.hook_dict) == expected
    assert set(zoo.opened("bert").hooked.hook_dict) <= set(zoo.opened("bert", "bridge").hooked.hook_dict)
    assert set(zoo.opened("mpnet").hooked.hook_dict) == {
        f"blocks.{layer}.attn.hook_pattern" for layer in range(3)
    }


@pytest.mark.parametrize(
    ("name", "what"), [("albert", "attn_scores"), ("llama", "resid_post"), ("bert", "z")]
)
def test_attention_and_states_are_measured_with_the_edits_of_a_user(name, what):
    hooked, inputs = opening.open_model(zoo.opened(name).model), zoo.opened(name).inputs
    view = host_of(hooked)
    site = view.sites[1]
    plain, own = zoo.read(view, inputs)[site][0], zoo.own_hidden_states(hooked.original_model, inputs)
    hooked.hook_dict[points_of(hooked, "self", layer=0)[what]].add_hook(
        lambda tensor, hook: tensor.roll(1, 0)
    )
    shown, states = cached(hooked, inputs), {}
    measured = zoo.read(view, inputs)[site][0]
    torch.testing.assert_close(measured, shown[site.hook_name], rtol=0, atol=1e-6)
    assert (measured - plain).abs().max() > 1e-3
    hidden_states(hooked, inputs, states.__setitem__)
    assert torch.equal(states[1], shown["blocks.1.hook_resid_pre"])
    assert (states[1] - own[1]).abs().max() > 1e-3
    hooked.reset_hooks()
    torch.testing.assert_close(zoo.read(view, inputs)[site][0], plain, rtol=0, atol=0)


def test_gradients_at_hook_points_are_those_of_the_tensors_there():
    case, kept, point = zoo.opened("bert-headless"), {}, "blocks.1.attn.hook_q"

    def keep(tensor, hook):
        kept["tensor"] = tensor
        tensor.retain_grad()

    def keep_gradient(gradient, hook):
        kept["gradient"] = gradient.clone()

    with case.hooked.hooks(fwd_hooks=[(point, keep)], bwd_hooks=[(point, keep_gradient)]):
        case.hooked(**zoo.arguments(case.inputs)).last_hidden_state.pow(3).sum().backward()
    case.model.zero_grad()
    assert kept["gradient"].abs().max() > 0
    assert torch.equal(kept["gradient"], kept["tensor"].grad)
