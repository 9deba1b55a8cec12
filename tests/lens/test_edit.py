"""Edits of heads are exactly what their words say, on every host, and leave nothing behind."""

import numpy as np
import pytest
import torch
import zoo

import topic_probe as tp
from topic_probe.lens import edit, opening, running
from topic_probe.lens.edit import cut_edges, edit_heads, head_outputs
from topic_probe.lens.host import hidden_states, host_of, sites_of
from topic_probe.lens.sites import Site

IDS, MASK = zoo.documents()
# Where architectures that differ in kind keep their output projections, by stack; ALBERT has one for all its layers.
PROJECTIONS = {
    "bert": {"self": "bert.encoder.layer.{}.attention.output.dense"},
    "albert": {"self": "albert.encoder.albert_layer_groups.0.albert_layers.0.attention.dense"},
    "modernbert": {"self": "model.layers.{}.attn.Wo"},
    "gpt2": {"self": "transformer.h.{}.attn.c_proj"},
    "llama": {"self": "model.layers.{}.self_attn.o_proj"},
    "gemma2": {"self": "model.layers.{}.self_attn.o_proj"},
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
}  # fmt: skip
D_HEAD = 8
HUGGINGFACE, BRIDGE = "huggingface", "bridge"
QUICK = [
    *((name, HUGGINGFACE) for name in PROJECTIONS if name != "llama"),
    *((name, BRIDGE) for name in ("bert", "gpt2", "llama", "bart")),
]
GENERATION = [(name, host) for name, host in QUICK if name in ("bert", "bart", "gpt2")]


def own_logits(model, inputs):
    with torch.no_grad():
        return model(**zoo.arguments(inputs)).logits


def last_mask(inputs):
    return inputs.mask if inputs.target_mask is None else inputs.target_mask


def vector(site, head):
    """A vector of its own for every head of every site."""
    seed = 1000 * ("self", "encoder", "decoder", "cross").index(site.stack) + 10 * site.layer + head
    return torch.randn(D_HEAD, generator=torch.Generator().manual_seed(seed))


def overwritten(model, name, site, head, inputs):
    """What a model computes where a hook on its output projection overwrites the slice of a head."""
    projection, calls = model.get_submodule(PROJECTIONS[name][site.stack].format(site.layer)), []

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


def edges(view, inputs, *, share=0.4, seed=0):
    """Random edges to cut at every site, other ones for every document and head; some rows are cut whole."""
    generator = torch.Generator().manual_seed(seed)
    cut = {}
    for site, n_heads in zip(view.sites, view.n_heads, strict=True):
        queries, keys = inputs.masks(site)
        cut[site] = (
            torch.rand(len(queries), n_heads, queries.shape[1], keys.shape[1], generator=generator) < share
        )
        cut[site][-1, n_heads // 2, 3] = True
    return cut


def outputs_of(view, inputs):
    found = {}
    head_outputs(view, inputs, lambda number, outputs: found.__setitem__(view.sites[number], outputs))
    assert len(found) == len(view.sites)
    return found


# ------------------------------------------------------------------------------------------- heads and edges


@pytest.mark.parametrize(("name", "host"), zoo.cases(QUICK, generation=GENERATION))
def test_edits_of_heads_are_those_of_hooks_on_the_output_projection_and_edits_of_nothing_are_none(name, host):
    case = zoo.opened(name, host)
    hooked, view, inputs = case.hooked, case.view, case.inputs
    plain, real = own_logits(case.model, inputs), last_mask(inputs)
    exact = 0 if host == HUGGINGFACE else 2e-4  # a bridge is eager inside a block
    with running.evaluating(hooked):
        torch.testing.assert_close(view.hooked.logits(inputs)[real], plain[real], rtol=0, atol=2e-4)
    with edit_heads(hooked, {}):
        intact = view.hooked.logits(inputs)
    torch.testing.assert_close(intact, plain, rtol=0, atol=exact)

    for site in view.sites:
        head = (site.layer + len(site.stack)) % zoo.HEADS
        with edit_heads(hooked, {site: {head: vector(site, head)}}):
            edited = view.hooked.logits(inputs)
        expected = overwritten(case.model, name, site, head, inputs)
        assert (expected - plain).abs().max() > 1e-3
        torch.testing.assert_close(edited, expected, rtol=0, atol=exact)

    found = outputs_of(view, inputs)
    assert all(
        outputs.shape == (*inputs.masks(site)[0].shape, zoo.HEADS, D_HEAD) for site, outputs in found.items()
    )
    with edit_heads(hooked, {site: lambda _, site=site: found[site].clone() for site in view.sites}):
        assert torch.equal(view.hooked.logits(inputs), intact)

    if host == BRIDGE and name not in zoo.RECOMPUTED:
        with (
            pytest.raises(ValueError, match=r"cannot be cut: what .* puts out is the same"),
            cut_edges(hooked, {}),
        ):
            pass
        return
    with cut_edges(hooked, {}):
        intact = view.hooked.logits(inputs)
    torch.testing.assert_close(intact[real], plain[real], rtol=0, atol=2e-4)
    for how in ("scores", "weights"):
        cut = edges(view, inputs)
        with cut_edges(hooked, {site: torch.zeros_like(edge) for site, edge in cut.items()}, how=how):
            assert torch.equal(view.hooked.logits(inputs), intact)
        for edge in cut.values():
            edge[0] = edge[2] = False
        with cut_edges(hooked, cut, how=how):
            changed = view.hooked.logits(inputs)
        assert torch.equal(changed[::2], intact[::2])
        assert (changed[1] - intact[1]).abs().max() > 0.01


@pytest.mark.generation
@pytest.mark.parametrize("how", ["scores", "weights"])
def test_cut_edges_equal_a_softmax_by_hand_over_the_keys_that_are_left(how):
    case = zoo.opened("bert")
    site = case.view.sites[0]
    cut = edges(case.view, case.inputs)[site]
    whole = outputs_of(case.view, case.inputs)[site]
    with cut_edges(case.hooked, {site: cut}, how=how):
        found = outputs_of(case.view, case.inputs)[site]
    layer = case.model.bert.encoder.layer[0].attention.self
    with torch.no_grad():
        states = case.model.bert.embeddings(IDS)
        q, k, v = (
            projection(states).unflatten(-1, (zoo.HEADS, -1)).double().numpy()
            for projection in (layer.query, layer.key, layer.value)
        )
    emptied = 0
    for document, head, query in np.ndindex(3, zoo.HEADS, 20):
        if not MASK[document, query]:
            continue
        weights = (
            np.exp(k[document, :, head] @ q[document, query, head] / D_HEAD**0.5) * MASK[document].numpy()
        )
        left = weights * ~cut[document, head, query].numpy()
        divisor = (left if how == "scores" else weights).sum() or 1
        at = document, query, head
        assert found[at].numpy() == pytest.approx(left @ v[document, :, head] / divisor, abs=2e-5)
        assert whole[at].numpy() == pytest.approx(weights @ v[document, :, head] / weights.sum(), abs=2e-5)
        emptied += left.sum() == 0
        assert left.any() or not found[at].any()
    assert emptied == 1


@pytest.mark.parametrize("name", ["modernbert", "gemma2", "gpt2", "t5"])
def test_an_edge_that_a_mask_hides_already_is_no_edge(name):
    """Windows, causality and padding stay beneath a cut, which a mask handed to the model would replace."""
    case = zoo.opened(name)
    hidden = {
        site: ~zoo.visible(name, site.stack, site.layer, case.inputs)[:, None] for site in case.view.sites
    }
    assert all(cut.any() for cut in hidden.values())
    with cut_edges(case.hooked, {}):
        intact = case.view.hooked.logits(case.inputs)
    with cut_edges(case.hooked, hidden):
        found = case.view.hooked.logits(case.inputs)
    mask = last_mask(case.inputs)
    assert torch.equal(found[mask], intact[mask])


@pytest.mark.parametrize(
    ("name", "host", "how"),
    [("llama", HUGGINGFACE, "scores"), ("gemma2", HUGGINGFACE, "weights"), ("gpt2", BRIDGE, "scores")],
)
def test_patterns_read_in_a_block_have_the_cut_edges_at_zero_and_the_others_as_they_ought_to_be(
    name, host, how
):
    case = zoo.opened(name, host)
    cut, intact = edges(case.view, case.inputs), zoo.read(case.view, case.inputs)
    with cut_edges(case.hooked, cut, how=how):
        shown = zoo.read(case.view, case.inputs)
    first = case.view.sites[0]
    real = case.inputs.masks(first)[0][:, None, :, None]
    kept = intact[first][0].masked_fill(cut[first], 0)
    if how == "scores":
        kept = kept / kept.sum(-1, keepdim=True).clamp_min(1e-30)
    torch.testing.assert_close(shown[first][0] * real, kept * real, rtol=0, atol=2e-5)
    for site, (pattern, _) in shown.items():
        assert not pattern[cut[site] & case.inputs.masks(site)[0][:, None, :, None]].any()


def test_every_form_of_a_replacement_is_the_same_replacement():
    case = zoo.opened("bert")
    site, logits = case.view.sites[1], case.view.hooked.logits
    with edit_heads(case.hooked, {site: {2: torch.zeros(D_HEAD)}}):
        expected = logits(case.inputs)
    for form in (
        {2: "zero"},
        {2: lambda own: 0 * own},
        {2: torch.zeros(20, D_HEAD)},
        lambda outputs: torch.cat([outputs[:, :, :2], 0 * outputs[:, :, 2:3], outputs[:, :, 3:]], 2),
    ):
        with edit_heads(case.hooked, {site: form}):
            assert torch.equal(logits(case.inputs), expected)


# ------------------------------------------------------------------------------------------- the toy by hand


def toy(n_heads=1):
    """Uniform attention (keys and queries are zero), one-hot words, and values by hand."""
    world = tp.World(n_topics=2, words_per_topic=2)
    config = tp.ToyConfig(regime="value", world=world, n_heads=n_heads, dtype="float64")
    values = torch.randn(n_heads, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return tp.build_toy(config, tensors={"W_V": values if n_heads > 1 else values[0]}), values


def toy_logits(model):
    return model(TOY_IDS, attention_mask=TOY_MASK.long(), return_type="logits")


TOY_IDS = torch.tensor([[1, 2, 3, 4, 1], [3, 0, 2, 0, 0]])
TOY_MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()


@pytest.mark.generation
@pytest.mark.parametrize("how", ["scores", "weights"])
def test_the_toy_without_some_edges_averages_the_values_of_the_words_that_are_left(how):
    model, values = toy(n_heads=2)
    (site,) = sites_of(model)
    cut = torch.zeros(2, 2, 5, 5, dtype=torch.bool)
    cut[0, 0, 0, 1] = cut[0, 0, 0, 4] = cut[0, 1, 2, 0] = cut[1, 1, 1, 0] = True
    cut[1, 0, 2] = True  # nothing is left
    with tp.cut_edges(model, {site: cut}, how=how):
        found = toy_logits(model)
    for document, length in enumerate((5, 3)):
        for query in range(length):
            expected = torch.zeros(5, dtype=torch.float64)
            for head in range(2):
                left = [key for key in range(length) if not cut[document, head, query, key]]
                share = 1 / (len(left) or 1) if how == "scores" else 1 / length
                for key in left:
                    expected += share * values[head][:, TOY_IDS[document, key]]
            torch.testing.assert_close(found[document, query], expected, rtol=0, atol=1e-12)
    with tp.edit_heads(model, {site: {1: "zero"}}):
        found = toy_logits(model)
    torch.testing.assert_close(found[0, 0], values[0][:, TOY_IDS[0]].mean(1), rtol=0, atol=1e-12)


# ------------------------------------------------------------------------------------------- blocks


class Wanted(Exception):
    pass


@pytest.mark.generation
@pytest.mark.parametrize(("name", "host"), [("albert", HUGGINGFACE), ("bart", HUGGINGFACE), ("gpt2", BRIDGE)])
def test_a_model_comes_back_as_it_was_after_an_exception_in_a_hook_which_shifts_no_layer(name, host):
    hooked, broken = zoo.hosted(zoo.make(name), host), []
    view = host_of(hooked)
    inputs = view.inputs(IDS, MASK)
    with running.evaluating(hooked):
        logits = view.hooked.logits(inputs)
    for each in (hooked, hooked.original_model):
        each.train()

    def fails_once(outputs):
        if not broken:
            broken.append(True)
            raise Wanted
        return outputs.flip(2)

    before = zoo.state_of(hooked)
    cut = cut_edges(hooked, edges(view, inputs))
    with pytest.raises(Wanted), cut, edit_heads(hooked, {view.sites[1]: fails_once}):
        view.hooked.logits(inputs)
    assert zoo.state_of(hooked) == before
    with edit_heads(hooked, {view.sites[1]: fails_once}):
        assert not hooked.training
        broken.clear()
        with pytest.raises(Wanted):
            view.hooked.logits(inputs)
        found = view.hooked.logits(inputs)
    with edit_heads(hooked, {view.sites[1]: lambda outputs: outputs.flip(2)}):
        assert torch.equal(view.hooked.logits(inputs), found)
    for each in (hooked, hooked.original_model):
        each.eval()
    with running.evaluating(hooked):
        assert torch.equal(view.hooked.logits(inputs), logits)


@pytest.mark.parametrize(("name", "host"), [("bert", HUGGINGFACE), ("gpt2", BRIDGE)])
def test_blocks_in_each_other_combine(name, host):
    case = zoo.opened(name, host)
    model, view, inputs, last = case.hooked, case.view, case.inputs, case.view.sites[-1]
    one, other = edges(view, inputs, seed=1, share=0.2), edges(view, inputs, seed=2, share=0.2)
    edit, double = {last: {1: lambda own: own + 1}}, {last: {1: lambda own: 2 * own}}

    def logits(*blocks):
        if blocks:
            with blocks[0]:
                return logits(*blocks[1:])
        return view.hooked.logits(inputs)

    both = cut_edges(model, {site: one[site] | other[site] for site in one})
    expected = logits(both, edit_heads(model, edit))
    nested = logits(edit_heads(model, edit), cut_edges(model, other), cut_edges(model, one))
    torch.testing.assert_close(nested, expected, rtol=0, atol=0 if host == HUGGINGFACE else 1e-4)
    if host == HUGGINGFACE:  # whose scores are hidden before weights are lost, whichever block is outside
        mixed = logits(cut_edges(model, one), cut_edges(model, other, how="weights"))
        assert torch.equal(logits(cut_edges(model, other, how="weights"), cut_edges(model, one)), mixed)
    # The innermost function sees what those around it have made, and a block within ends where it ends.
    together = logits(edit_heads(model, {last: {1: lambda own: 2 * (own + 1)}}))
    with edit_heads(model, edit):
        outer = view.hooked.logits(inputs)
        with edit_heads(model, double):
            assert torch.equal(view.hooked.logits(inputs), together)
        assert torch.equal(view.hooked.logits(inputs), outer)


def test_measurements_in_a_block_are_of_the_edited_model_which_is_tried_once():
    given, passes = zoo.make("bert"), []
    intact = zoo.own_hidden_states(given, zoo.opened("bert").inputs)
    given.bert.register_forward_pre_hook(lambda *_: passes.append(None))
    hooked = opening.open_model(given)
    for expected in (True, False):
        passes.clear()
        with edit_heads(hooked, {sites_of(hooked)[0]: {0: "zero"}}), cut_edges(hooked, {}):
            view, states = host_of(hooked), {}
            assert bool(passes) == expected
            inputs = view.inputs(IDS, MASK)
            hidden_states(hooked, inputs, states.__setitem__)
        assert (states[1] - intact[1]).abs().max() > 0.01


@pytest.mark.parametrize(("name", "host"), [("bert", HUGGINGFACE), ("gpt2", BRIDGE)])
def test_gradients_flow_through_edits_to_what_they_are_made_of(name, host):
    """The derivative by the gate of a head equals a difference quotient."""
    view = host_of(zoo.hosted(zoo.make(name).double(), host))
    inputs, step, error = view.inputs(IDS[:1], MASK[:1]), 1e-5, 1e-8
    site, cut = view.sites[-1], edges(view, inputs)

    def outcome(gate):
        edit = edit_heads(view.model, {site: {1: lambda own: gate * own}})
        with cut_edges(view.model, cut), edit, torch.enable_grad():
            return view.hooked.logits(inputs)[0, 2].logsumexp(-1)

    gate = torch.ones((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(outcome(gate), gate)
    with torch.no_grad():
        quotient = (outcome(gate + step) - outcome(gate - step)) / (2 * step)
    assert slope.abs() > 5 * error
    torch.testing.assert_close(slope, quotient, rtol=1e-5, atol=error)


# ------------------------------------------------------------------------------------------- what is refused


@pytest.mark.generation
@pytest.mark.filterwarnings("ignore:A hook on")
def test_a_host_that_discards_edited_patterns_cuts_no_edges_but_has_its_heads_edited(monkeypatch):
    """A native model that looks at no edited pattern: as 3.9 has it, and 4.3 without its seam."""
    if zoo.GENERATION == 4:
        from transformer_lens.model_bridge.sources.native import NativeAttention

        monkeypatch.setattr(NativeAttention, "accepts_pattern_fn", False)
        model = toy(n_heads=2)[0]
    else:
        model = zoo.native(attention_dir="bidirectional")
    view = host_of(model)
    inputs = view.inputs(IDS[:1] % 5 if zoo.GENERATION == 4 else IDS[:1], MASK[:1])
    sentence = r"edges of TransformerBridge cannot be cut: what blocks\.0\.attn"
    with pytest.raises(ValueError, match=sentence), cut_edges(model, {}):
        pass
    with edit_heads(model, {}):
        intact = view.hooked.logits(inputs)
    with edit_heads(model, {view.sites[0]: {0: "zero", 1: "zero"}}):
        assert (view.hooked.logits(inputs) - intact).abs().max() > 1e-3


@pytest.mark.parametrize(("name", "host"), [("bert", HUGGINGFACE), ("gpt2", BRIDGE)])
def test_the_trial_notices_edits_that_are_lost_or_change_what_they_do_not_name(name, host, monkeypatch):
    true = edit._fitting

    def lost(site, function):
        return (
            f"{site.hook_name.removesuffix('pattern')}z",
            lambda outputs, hook: function(outputs) * 0 + outputs,
        )

    for attribute, instead, sentence, block in (
        ("_on_outputs", lost, "cannot be edited: what is written", edit_heads),
        ("_fitting", lambda edges, table: torch.zeros_like(true(edges, table)), "cannot be cut: what", cut_edges),
        ("_fitting", lambda edges, table: ~true(edges, table), "cannot be cut: cutting none changes", cut_edges),
    ):  # fmt: skip
        model = zoo.hosted(zoo.make(name), host)
        with monkeypatch.context() as patch:
            patch.setattr(edit, attribute, instead)
            with pytest.raises(ValueError, match=sentence), block(model, {}):
                pass


def test_what_is_asked_of_an_edit_is_checked(unchecked):
    case = zoo.opened("bert")
    hooked, site = case.hooked, case.view.sites[0]
    elsewhere = Site("cross", 0, "decoder_blocks.0.cross_attn.hook_pattern")
    for error, message, block, model, asked in (
        (TypeError, "needed a hooked model, not BertForMaskedLM", edit_heads, case.model, {}),
        (ValueError, r"does not attend at .*cross_attn.*; it does at", edit_heads, hooked, {elsewhere: {0: "zero"}}),
        (ValueError, "by 'zero', a tensor or a function, got 'mean'", edit_heads, hooked, {site: {0: "mean"}}),
        (ValueError, r"boolean mask \[batch, head, query, key\].*got list", cut_edges, hooked, {site: [[True]]}),
        (ValueError, "has no head that scores", lambda *_: zoo.opened("bert-headless").view.hooked.logits(case.inputs),
         hooked, {}),
    ):  # fmt: skip
        with pytest.raises(error, match=message), block(model, asked):
            pass
    with pytest.raises(ValueError, match="how must be one of"), cut_edges(hooked, {}, how="both"):
        pass
    for block, asked, message in (
        (edit_heads, {7: "zero"}, "there is no head 7: this site has heads 0 to 3"),
        (edit_heads, lambda outputs: outputs[:1], r"= \[3, 20, 4, 8\].*got \[1, 20, 4, 8\]"),
        (edit_heads, lambda outputs: None, "got NoneType. A function gives back"),
        (cut_edges, torch.zeros(1, 1, 7, 7).bool(), r"needed \[3, 4, 20, 20\], got \[1, 1, 7, 7\]"),
    ):
        with block(hooked, {site: asked}), pytest.raises(ValueError, match=message):
            case.view.hooked.run(case.inputs)
