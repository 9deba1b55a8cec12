"""Where TransformerLens or Hugging Face would give wrong numbers without a word: each is made to happen, then stopped.

Every test builds the failing situation for real, shows that it fails on the generation where it does (and that it is
healthy on the other), and then that this package refuses it or reads the true numbers all the same.
"""

import copy
import warnings
from contextlib import contextmanager, nullcontext

import pytest
import torch
import transformers as hf
import zoo
from transformers import AttentionInterface, AttentionMaskInterface

import topic_probe as tp
from topic_probe.lens import interface, opening, sites, trial, weights
from topic_probe.lens.host import host_of, patterns_of, sites_of
from topic_probe.lens.sites import Site
from topic_probe.lens.weights import word_embeddings

IDS, MASK = zoo.documents()
DOCUMENTS = zoo.lists((20, 9, 14))
TOPICS = tp.Topics.from_token_ids({"a": range(5, 40), "b": range(40, 97)}, vocabulary_size=zoo.VOCABULARY)
PLAIN = {"n_permutations": 0}


def raw_bridge(name, *, eager=False):
    """A bridge that a user builds with TransformerLens alone, and the model that went into it."""
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    model, inside = zoo.make(name), zoo.make(name)
    if eager:
        inside.set_attn_implementation("eager")
    bridge = build_bridge_from_module(inside, type(inside).__name__, hf_config=inside.config, model_name=name)
    return model, bridge


def seen_by_hand(bridge):
    """What a user's own hooks on the patterns see."""
    seen = {}
    names = [site.hook_name for site in sites_of(bridge)]
    hooks = [(name, lambda value, hook: seen.update({hook.name: value.detach().clone()})) for name in names]
    given = {"decoder_input_ids": IDS} if any(name.startswith("decoder") for name in names) else {}
    with torch.no_grad():
        bridge.run_with_hooks(IDS, fwd_hooks=hooks, attention_mask=MASK.long(), **given)
    return seen


def read(view, through="auto"):
    return zoo.read(view, view.inputs(IDS, MASK), through)


def assert_true_patterns(view, model):
    inputs = view.inputs(IDS, MASK)
    zoo.assert_same_patterns(zoo.read(view, inputs), zoo.own_patterns(model, inputs), inputs)


def assert_batches_change_nothing(model):
    together, alone = (
        tp.measure_attention(model, TOPICS, DOCUMENTS, batch_size=size, **PLAIN) for size in (3, 1)
    )
    for name in ("same_word", "same_topic", "different_topic"):
        one, other = (torch.tensor(getattr(report.heads, name)) for report in (together, alone))
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    return together


def refused(sentence):
    return pytest.raises(ValueError, match=sentence)


# Patterns are never shown by a model on fused attention.


@pytest.mark.generation
@pytest.mark.parametrize("name", ["bert", "bart", "gpt2"])
def test_patterns_that_a_bridge_over_fused_attention_never_shows_are_read_all_the_same(name):
    model, bridge = raw_bridge(name)
    assert bridge.original_model.config._attn_implementation == "sdpa"
    assert bool(seen_by_hand(bridge)) == (name == "gpt2")  # which computes it itself
    assert_true_patterns(host_of(bridge), model)
    assert bridge.original_model.config._attn_implementation == "sdpa"


@pytest.mark.generation
def test_a_site_that_stays_silent_or_fails_is_an_error():
    _, bridge = raw_bridge("bert", eager=True)
    view = host_of(bridge)
    bridge.blocks[1].attn.forward = lambda hidden, *_, **__: (hidden, None)
    with refused(r"no attention pattern was seen at blocks\.1\.attn\.hook_pattern\. The host"):
        read(view, "hooks")
    with refused("no attention pattern was seen"):
        host_of(bridge)

    def fail(*_, **__):
        raise RuntimeError("no such kernel")

    bridge.blocks[1].attn.forward = fail
    with refused(r"fails on a few tokens \(RuntimeError: no such kernel\)"):
        host_of(bridge)


# The padding mask is ignored by a bidirectional HookedTransformer; native bridges honour it.


def bidirectional():
    if zoo.GENERATION == 3:
        return zoo.hooked_class("HookedTransformer", attention_dir="bidirectional")
    model = zoo.native(attention_dir="bidirectional")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.generation
def test_a_host_that_attends_to_padding_never_gets_a_padded_batch():
    model = bidirectional()
    view = host_of(model)
    assert view.sharing.lengths == (zoo.GENERATION == 4)
    assert_batches_change_nothing(model)
    mass = max(float(pattern[1, :, :9, 9:].sum(-1).max()) for pattern, _ in read(view).values())
    assert (mass > 0.1) == (zoo.GENERATION == 3)


# Edits of patterns are discarded by some hosts.


def swap(pattern, hook):
    return pattern.flip(1)


@pytest.mark.generation
def test_edits_of_patterns_are_lost_in_a_bridge_over_bert_and_take_effect_in_the_adapter_free_host():
    model, bridge = raw_bridge("bert", eager=True)
    plain = model(IDS, attention_mask=MASK.long()).logits
    hook = ("blocks.0.attn.hook_pattern", swap)
    # On 4.3 a bridge that discards an edit warns; on 3.9 it says nothing.
    told = pytest.warns(UserWarning, match="edit is discarded") if zoo.GENERATION == 4 else nullcontext()
    with told:
        discarded = bridge.run_with_hooks(IDS, attention_mask=MASK.long(), fwd_hooks=[hook])
    torch.testing.assert_close(getattr(discarded, "logits", discarded), plain, rtol=0, atol=1e-5)
    edited = opening.open_model(model).run_with_hooks(IDS, MASK, fwd_hooks=[hook]).logits
    assert (edited - plain).abs().max() > 0.05


@pytest.mark.parametrize("name", sorted(zoo.ONLY_RETURNED))
def test_edits_are_refused_where_a_model_only_returns_its_patterns(name):
    hook = ("blocks.1.attn.hook_pattern", lambda pattern, hook: pattern.mul_(0.5))
    with refused(r"a hook changed blocks\.1\.attn\.hook_pattern, but \w+ only returns its"):
        zoo.opened(name).hooked.run_with_hooks(IDS, MASK, fwd_hooks=[hook])


# Dropout sits inside the pattern in training mode.


@pytest.mark.generation
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_dropout_is_off_while_attention_is_read_and_rows_sum_to_one(name):
    model, bridge = raw_bridge(name, eager=True)
    bridge.train()
    bridge.original_model.train()
    broken = torch.cat([pattern.sum(-1).flatten() for pattern in seen_by_hand(bridge).values()])
    assert broken.min() < 0.8
    assert broken.max() > 1.05
    view = host_of(bridge)
    assert_true_patterns(view, model)
    for pattern, _ in read(view, "hooks").values():
        torch.testing.assert_close(pattern.sum(-1), torch.ones(pattern.shape[:-1]), rtol=0, atol=1e-5)
    assert bridge.original_model.training


# One module that is called once for every layer leaves only its last pattern in a cache; layers come and go.


def test_every_layer_is_read_where_one_module_is_called_for_all_and_one_that_is_no_longer_called_is_noticed():
    model = zoo.make("albert")
    view = host_of(opening.open_model(model))
    found = list(read(view).values())
    assert len(found) == 3
    assert (found[0][0] - found[1][0]).abs().max() > 0.02
    for n_layers, sentence in (
        (2, "only 2 of 3 attention calls were seen"),
        (4, "attention call 3 comes from another"),
    ):
        model.config.num_hidden_layers = n_layers
        for through in ("hooks", "rows"):
            with refused(sentence):
                read(view, through)


# Weight processing centres the word embeddings.


@pytest.mark.generation
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_word_embeddings_that_were_centred_by_weight_processing_are_refused(name):
    own = zoo.opened(name).model.get_input_embeddings().weight
    hooked = zoo.bridge(zoo.make(name))
    hooked.enable_compatibility_mode(no_processing=True)
    assert torch.equal(word_embeddings(hooked), own)
    hooked = zoo.bridge(zoo.make(name))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="BertArchitectureAdapter does not support fold_ln")
        hooked.enable_compatibility_mode()
    assert hooked.W_E.mean(-1).abs().max() < 1e-7  # the failure
    with refused(r"were centred by weight processing \(enable_compatibility_mode"):
        word_embeddings(hooked)
    assert own.mean(-1).abs().max() > 0.01


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_centring_is_seen_in_every_precision_and_natural_tables_are_not_taken_for_it(dtype):
    table = 0.02 * torch.randn(500, 768, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for natural in (table, table - table.mean(0), torch.zeros(3, 4), torch.eye(101)):
        assert not weights.is_centred(natural.to(dtype))
    assert weights.is_centred((table - table.mean(-1, keepdim=True)).to(dtype))


# A custom attention function is handed no mask, unless a mask function is registered beside it.


@contextmanager
def registered(name, function, mask=None):
    """A function of a user in transformers' table of attention functions, with a mask function."""
    AttentionInterface.register(name, function)
    if mask is not None:
        AttentionMaskInterface.register(name, AttentionMaskInterface()[mask])
    try:
        yield
    finally:
        AttentionInterface._global_mapping.pop(name)
        AttentionMaskInterface._global_mapping.pop(name, None)


def hot_attention(module, query, key, value, attention_mask, *, scaling=None, **options):
    """Attention that is twice as hot as usual in the first head only."""
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    scores[:, 0] *= 2
    pattern = (scores if attention_mask is None else scores + attention_mask).softmax(-1)
    return (pattern @ value).transpose(1, 2).contiguous(), pattern


@pytest.mark.generation
@pytest.mark.parametrize("host", ["bridge", "huggingface"])
@pytest.mark.parametrize("what", ["take_rows", "visible_keys"])
def test_rows_beside_the_fused_kernel_that_are_not_those_of_the_patterns_are_not_used(
    what, host, monkeypatch
):
    true = interface.take_rows
    wrong = {
        "take_rows": lambda table, index: true(table, index).flip(2),
        "visible_keys": lambda mask, batch, *shape: torch.ones(batch, *shape, dtype=torch.bool),
    }
    monkeypatch.setattr(interface if what == "take_rows" else trial, what, wrong[what])
    view = host_of(zoo.hosted(zoo.make("bert"), host))
    assert view.tap is None
    assert_true_patterns(view, zoo.opened("bert").model)


# What a hook point calls a pattern need not be one.


def test_negative_numbers_rows_above_one_and_other_shapes_are_no_pattern_and_padded_rows_may_be_no_number():
    site, inputs = Site("self", 0, "blocks.0.attn.hook_pattern"), sites.some_tokens(50, torch.device("cpu"))
    for pattern, values in (
        (torch.full((2, 1, 7, 7), -0.1), "from -0.1 to -0.1"),
        (torch.full((2, 1, 7, 7), 0.16), "from 0.16 to 0.16"),
        (torch.full((2, 7, 7), 0.1), r"got \(2, 7, 7\)"),
    ):
        with refused(f"is not an attention pattern: needed .*{values}"):
            sites.check_pattern(site, pattern, inputs, whose="a model")
    keys = inputs.mask[:, None, None, :]
    pattern = (keys / keys.sum(-1, keepdim=True)).expand(2, 1, 7, 7).clone()
    pattern[1, :, 4:] = torch.nan
    assert sites.check_pattern(site, pattern, inputs, whose="a model")
    pattern[1, 0, 2, 6] = 1e-6
    assert not sites.check_pattern(site, pattern, inputs, whose="a model")


# A model changes itself when it runs.


def test_sparse_attention_that_short_texts_turn_off_is_refused_and_the_model_stays_sparse():
    """BigBird attends in blocks of four tokens, and turns that into full attention up to 28 tokens."""
    sizes = zoo._encoder | {"max_position_embeddings": 128, "block_size": 4, "num_random_blocks": 1}
    config = hf.BigBirdConfig(**sizes, attention_type="block_sparse", pad_token_id=0)
    model, long = zoo.drawn(lambda: hf.BigBirdForMaskedLM(config)), torch.arange(60)[None] % 90 + 5
    with torch.no_grad():
        before, twin = model(long).logits, copy.deepcopy(model)
        twin(long[:, :10])
        assert (twin(long).logits - before).abs().max() > 1e-4  # the failure: it is another model now
    hooked = tp.open_model(model)
    with refused("turns its sparse attention into full attention where a text is short"):
        tp.measure_attention(hooked, TOPICS, [list(range(5, 15))], **PLAIN)
    with torch.no_grad():
        assert torch.equal(model(long).logits, before)


class Writing(torch.nn.Module):
    """A layer that counts its passes in a buffer, or takes another layer for itself at the first of them."""

    def __init__(self, layer, what):
        super().__init__()
        self.layer, self.what = layer, what
        self.register_buffer("count", torch.zeros(1))

    def forward(self, *given, **options):
        if self.what == "tensors":
            self.count += 1
        elif self.what == "modules":
            self.layer, self.what = copy.deepcopy(self.layer), None
        return self.layer(*given, **options)


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("tensors", r"writes on its own tensors .*\(such as encoder\.layer\.1\.intermediate\.count\)"),
        ("modules", "puts other modules in the place of its own"),
    ],
)
def test_a_model_that_changes_itself_as_it_runs_is_refused(what, sentence):
    model = zoo.make("bert-headless")
    model.encoder.layer[1].intermediate = Writing(model.encoder.layer[1].intermediate, what)
    with refused(sentence):
        host_of(tp.open_model(model))


# A user's own attention function is never called.


@pytest.mark.parametrize("mask", ["eager", None])
def test_the_pattern_of_a_users_own_attention_function_is_measured(mask):
    """Without a mask function its model attends to padding, so that documents of different length share no batch."""
    model = zoo.make("bert-headless")
    with registered("my_attention", hot_attention, mask):
        model.set_attn_implementation("my_attention")
        with torch.no_grad():
            answer = model(IDS, attention_mask=MASK.long(), output_attentions=True)
        view = host_of(tp.open_model(model))
        assert (view.sharing.lengths, view.sharing.batches) == (mask is not None, True)
        for (pattern, _), true in zip(read(view).values(), answer.attentions, strict=True):
            rows, expected = (whole.transpose(1, 2)[MASK] for whole in (pattern, true))
            torch.testing.assert_close(rows, expected, rtol=0, atol=1e-6)
        with refused("only returns its patterns"):
            view.model.run_with_hooks(IDS, MASK, fwd_hooks=[("blocks.0.attn.hook_pattern", swap)])
    assert model.config._attn_implementation == "my_attention"
    eager = zoo.own_patterns(model, sites.Inputs(IDS, MASK))
    assert (eager["self"][0][0, 0] - answer.attentions[0][0, 0]).abs().max() > 0.01  # the failure


def test_a_users_attention_function_without_a_pattern_is_refused():
    def without_pattern(*given, **options):
        return hot_attention(*given, **options)[0], None

    model = zoo.make("bert-headless")
    with registered("my_attention", without_pattern, "eager"):
        model.set_attn_implementation("my_attention")
        with refused(r"computes something else as it is \(my_attention attention\)"):
            host_of(tp.open_model(model))


# Eager attention and the fused kernel of one architecture compute two models.


def falcon(implementation):
    sizes = zoo._encoder | {
        "alibi": True,
        "new_decoder_architecture": False,
        "multi_query": False,
        "parallel_attn": False,
    }
    config = hf.FalconConfig(**sizes)
    config._attn_implementation = implementation
    return zoo.drawn(lambda: hf.FalconForCausalLM(config))


def test_a_model_that_is_another_one_with_eager_attention_is_refused_until_it_is_that():
    fused, eager = falcon("sdpa"), falcon("eager")
    one, other = (model(IDS, attention_mask=MASK.long()).logits[MASK] for model in (fused, eager))
    assert (one - other).abs().max() > 0.1  # the failure
    sentence = r"something else as it is \(sdpa attention\) .*load it with attn_impl"
    with refused(sentence):
        host_of(tp.open_model(fused))
    hooked = tp.open_model(eager)
    assert_true_patterns(host_of(hooked), eager)


def test_how_far_outputs_are_apart_is_a_share_of_their_length_at_real_positions():
    inputs = sites.some_tokens(50, torch.device("cpu"))
    one = torch.ones(2, 7, 4)
    other = one.clone()
    other[1, 5] = 100  # padding
    assert trial.output_difference({"states": one}, {"states": other}, inputs) == 0
    other[0, 3, 2] = 3  # a vector of length 2 moves by 2
    assert trial.output_difference((one,), (other,), inputs) == pytest.approx(1)
    assert trial.output_difference({"states": one}, None, inputs) == 0


# Something else than attention reads padding, or the documents beside.


def convbert():
    return zoo.drawn(lambda: hf.ConvBertModel(hf.ConvBertConfig(**zoo._narrow)))


def beside():
    """A BERT in which every document reads the mean of its batch."""
    model = zoo.make("bert-headless")
    model.embeddings.register_forward_hook(lambda _, __, states: states + states.mean(0, keepdim=True))
    return model


@pytest.mark.parametrize(
    ("make", "note"),
    [
        (
            convbert,
            "documents of different length never shared a batch: beside padding, attention differs by",
        ),
        (beside, "every document was measured by itself: beside another"),
    ],
)
def test_batches_change_nothing_where_a_model_reads_padding_or_other_documents(make, note):
    hooked = tp.open_model(make())
    report = assert_batches_change_nothing(hooked)
    assert report.provenance["model"]["notes"][0].startswith(note)
    inputs = host_of(hooked).inputs(IDS, MASK)
    single = patterns_of(hooked, inputs.document(1))
    for site, batched in list(patterns_of(hooked, inputs).items())[1:]:
        assert sites.batch_error(site, batched, single[site], inputs, 1) > 1e-4  # the failure
