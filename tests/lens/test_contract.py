"""What is read of a model equals what Hugging Face says of it, for every architecture, on every host."""

from types import SimpleNamespace

import any_architecture
import pytest
import torch
import transformers as hf
import zoo

import topic_probe as tp
from topic_probe.lens import opening, running, sites
from topic_probe.lens.host import facts_of, hidden_states, host_of, n_states
from topic_probe.lens.weights import word_embeddings

TOPICS = tp.Topics.from_token_ids({"a": range(5, 40), "b": range(40, 97)}, vocabulary_size=zoo.VOCABULARY)
LENGTHS = (20, 9, 14)
DOCUMENTS = zoo.lists(LENGTHS)
HUGGINGFACE, BRIDGE = "huggingface", "bridge"

# Architectures that differ in kind, with hosts, ways and precisions so that most pairs of these come together:
# padding, headless, one layer for all, narrow embeddings, fused projections, windows, rotary positions, two stacks of
# different depth, biases of positions, causal, grouped heads, caps on scores, and patterns that are only returned.
QUICK = [
    ("bert", HUGGINGFACE, "rows", "float32"),
    ("bert", BRIDGE, "hooks", "float64"),
    ("roberta", HUGGINGFACE, "hooks", "float64"),
    ("albert", HUGGINGFACE, "hooks", "bfloat16"),
    ("electra-discriminator", HUGGINGFACE, "rows", "float64"),
    ("distilbert", HUGGINGFACE, "rows", "float16"),
    ("modernbert", HUGGINGFACE, "rows", "float32"),  # in float64 its own mask overflows
    ("bart-uneven", HUGGINGFACE, "rows", "float64"),
    ("bart", BRIDGE, "hooks", "float32"),
    ("t5", HUGGINGFACE, "rows", "float32"),
    ("gpt2", HUGGINGFACE, "rows", "bfloat16"),
    ("gpt2", BRIDGE, "hooks", "float64"),
    ("llama", HUGGINGFACE, "rows", "float64"),
    ("llama", BRIDGE, "hooks", "float32"),
    ("llama4", HUGGINGFACE, "rows", "float32"),
    ("llama4", HUGGINGFACE, "hooks", "float64"),
    ("gemma2", HUGGINGFACE, "hooks", "float32"),
    ("deberta", HUGGINGFACE, "hooks", "float32"),
    ("mpnet", HUGGINGFACE, "hooks", "float64"),
]
OTHERS = [
    (name, host, "auto", "float32")
    for name in zoo.ARCHITECTURES
    for host in (HUGGINGFACE, BRIDGE)
    if host == HUGGINGFACE or name in zoo.BRIDGED
]
GENERATION = [case for case in OTHERS if case[0] in ("bert", "bart", "gpt2", "neox", "llama", "gemma2")]
# How far patterns and states may be from Hugging Face's own.
ROUNDING = {
    "float64": (1e-6, 1e-5),
    "float32": (5e-5, 5e-5),
    "float16": (3e-3, 3e-2),
    "bfloat16": (3e-2, 0.3),
}


@pytest.mark.parametrize(
    ("name", "host", "through", "dtype"), zoo.cases(QUICK, OTHERS, generation=GENERATION)
)
def test_patterns_keys_rows_states_embeddings_and_edits_are_those_of_the_model(name, host, through, dtype):
    exact = dtype in ("float32", "float64")
    off, off_states = ROUNDING[dtype]
    model = zoo.make(name).to(getattr(torch, dtype))
    hooked = zoo.hosted(model, host)
    view = host_of(hooked)
    assert view.tap is not None or through != "rows"
    inputs = view.inputs(*zoo.documents(LENGTHS))
    own = zoo.own_patterns(model, inputs)

    # Sites, patterns, and which keys a query may see.
    found_sites = {stack: [site.layer for site in view.sites if site.stack == stack] for stack in own}
    assert found_sites == {stack: list(range(len(patterns))) for stack, patterns in own.items()}
    assert set(view.n_heads) == {zoo.HEADS}
    assert view.sharing == sites.EVERY_BATCH
    whole = zoo.read(view, inputs, through)
    zoo.assert_same_patterns(whole, own, inputs, atol=off)
    for (site, (pattern, visible)), causal in zip(whole.items(), view.causal, strict=True):
        allowed, real = zoo.visible(name, site.stack, site.layer, inputs), inputs.masks(site)[0]
        assert pattern.dtype == model.dtype
        assert torch.equal(visible[real], allowed[real])
        assert not pattern.transpose(1, 2)[real].transpose(0, 1)[:, ~allowed[real]].any()
        assert causal == (site.stack == "decoder" or name.split("-")[0] in zoo.CAUSAL)

    # Only the wanted rows, in the order asked for and as often, on either way.
    wanted = torch.tensor([[19, 0, 7, 7], [3, 2, 1, 0], [13, 5, 5, 9]])
    for way in zoo.ways(view):
        for site, (pattern, visible) in zoo.read(view, inputs, way, wanted).items():
            allowed = zoo.visible(name, site.stack, site.layer, inputs)
            for document, rows in enumerate(wanted):
                expected = own[site.stack][site.layer][document][:, rows]
                torch.testing.assert_close(pattern[document], expected, rtol=0, atol=off)
                assert torch.equal(visible[document], allowed[document, rows])

    # A document in a padded batch is what it is by itself.
    if exact:
        for document, length in enumerate(LENGTHS):
            alone = zoo.read(view, inputs.document(document), through)
            for site, parts in alone.items():
                for part, single in zip(whole[site], parts, strict=True):
                    batched = part[document : document + 1][..., :length, :length]
                    torch.testing.assert_close(batched.double(), single.double(), rtol=0, atol=max(off, 1e-5))

    # States and embeddings.
    states, own_states = states_of(hooked, inputs), zoo.own_hidden_states(model, inputs)
    assert len(states) == len(own_states) == n_states(hooked)
    for state, expected in zip(states, own_states, strict=True):
        torch.testing.assert_close(
            state[inputs.mask], expected[inputs.mask], rtol=0.02 * (not exact), atol=off_states
        )
    table, own_table = word_embeddings(hooked), model.get_input_embeddings().weight
    assert torch.equal(table, own_table)
    assert table.data_ptr() == own_table.data_ptr()
    assert not table.requires_grad
    assert facts_of(hooked).vocabulary_size == zoo.VOCABULARY

    # An edit: where nobody else reads one position, the others become what they are beside padding.
    nobody = {}
    for site, (pattern, _) in whole.items():
        nobody[site] = torch.zeros(1, 1, *pattern.shape[2:], dtype=torch.bool)
        if site.stack != "decoder":
            nobody[site][..., 4] = True
            if site.stack != "cross":
                nobody[site][..., 4, 4] = False
    if name in zoo.ONLY_RETURNED:
        refused = pytest.raises(ValueError, match="cannot be edited: its layers do not call")
        with refused, tp.cut_edges(hooked, nobody):
            pass
    elif host == BRIDGE and name not in zoo.RECOMPUTED:
        with (
            pytest.raises(ValueError, match=r"cannot be cut: what .* is the same"),
            tp.cut_edges(hooked, nobody),
        ):
            pass
    elif exact:
        padded = inputs.mask.clone()
        padded[:, 4] = False
        compared = padded if inputs.target_mask is None else inputs.target_mask
        beside = sites.Inputs(inputs.ids, padded, inputs.target_ids, inputs.target_mask)
        expected = zoo.own_answer(model.base_model, beside)[0][compared]
        with tp.cut_edges(hooked, nobody):
            edited = view.hooked.run(inputs)[0][compared]
        torch.testing.assert_close(edited, expected, rtol=0, atol=2 * off_states)
        assert (expected - zoo.own_answer(model.base_model, inputs)[0][compared]).abs().max() > 1e-3


def states_of(hooked, inputs):
    found = {}
    hidden_states(hooked, inputs, lambda layer, state: found.__setitem__(layer, state))
    assert not any(state.requires_grad for state in found.values())
    return [found[layer] for layer in range(len(found))]


# ------------------------------------------------------------------------------ which keys a query may see


def test_padding_that_sees_padding_alone_makes_no_causal_model_look_ahead():
    config = hf.Llama4TextConfig(**zoo._llama4 | {"attention_chunk_size": 5})
    view = host_of(tp.open_model(zoo.drawn(lambda: hf.Llama4ForCausalLM(config))))
    assert view.causal == (True, True, True)


@pytest.mark.parametrize(("name", "order"), [("modernbert", (3, 20, 12, 20)), ("gemma2", (7, 8, 20, 5))])
def test_windows_read_through_hooks_do_not_depend_on_which_documents_came_first(name, order):
    view = host_of(opening.open_model(zoo.make(name)))
    for seed, length in enumerate(order):
        inputs = view.inputs(*zoo.documents((length,), seed=seed))
        for site, (_, visible) in zoo.read(view, inputs, "hooks").items():
            assert torch.equal(visible, zoo.visible(name, site.stack, site.layer, inputs))


def test_masks_of_calls_are_read_in_both_forms_and_one_for_each_head_is_refused():
    lowest = torch.finfo(torch.float32).min
    added = torch.tensor([[[[0.0, lowest], [0.5, -3.0]]]])
    allowed = torch.tensor([[[[True, False], [True, True]]]])
    for mask in (added, allowed, added.expand(1, 3, 2, 2), allowed.expand(2, 3, 2, 2)):
        assert sites.visible_keys(mask, 2, 2, 2).tolist() == [[[True, False], [True, True]]] * 2
    assert sites.visible_keys(None, 1, 2, 3).all()
    each = torch.stack([allowed[0, 0], allowed[0, 0].T])[None]
    with pytest.raises(ValueError, match="heads of a layer see different keys"):
        sites.visible_keys(each, 1, 2, 2)


def test_sparse_attention_that_chooses_its_keys_is_refused_where_the_choice_is_not_seen():
    # A document of one word shows a mask as well, but that of another choice.
    model = any_architecture.build("deepseek_v32", "DeepseekV32ForCausalLM")
    with pytest.raises(ValueError, match="depends on the words, as in sparse attention"):
        tp.measure_attention(model, TOPICS, DOCUMENTS, n_permutations=0)


def test_sparse_attention_that_chooses_its_keys_is_read_from_the_mask_of_each_call():
    model = any_architecture.build("qwen4_exp_text", "Qwen4ExpForCausalLM")
    heads = tp.measure_attention(model, TOPICS, DOCUMENTS, n_permutations=0).heads
    pairs = heads.n_same_word + heads.n_same_topic + heads.n_different_topic
    model.set_attn_implementation("eager")
    seen = 0
    for ids in DOCUMENTS:
        with torch.no_grad():
            patterns = model(torch.tensor([ids]), output_attentions=True).attentions
        seen += int((patterns[0][0, :, 1:, 1:] > 0).any(0).sum())  # the first position is a sink: no word
    assert pairs.tolist() == [seen] * 4
    assert seen < sum((len(ids) - 1) * len(ids) // 2 for ids in DOCUMENTS)


# ------------------------------------------------------------------------- layers that are not all attention


def test_layers_that_do_not_all_attend_are_read_under_their_own_numbers():
    sizes = zoo._grouped | {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2}
    model = zoo.drawn(lambda: hf.Lfm2Model(hf.Lfm2Config(**sizes)))
    view = host_of(opening.open_model(model))
    assert [site.layer for site in view.sites] == [1, 3]
    inputs = view.inputs(*zoo.documents(LENGTHS))
    for way in zoo.ways(view):
        found = zoo.read(view, inputs, way).values()
        for (pattern, _), expected in zip(found, zoo.own_patterns(model, inputs)["self"], strict=True):
            torch.testing.assert_close(pattern[0], expected[0], rtol=0, atol=5e-5)


# ------------------------------------------------------------------------------------------ what else is asked


def test_a_decoder_reads_the_document_behind_its_start_token():
    model = zoo.make("bart")
    model.config.decoder_start_token_id = 9
    view = host_of(opening.open_model(model))
    inputs = view.inputs(torch.tensor([[5, 6, 7], [8, 5, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]]).bool())
    assert inputs.target_ids.tolist() == [[9, 5, 6], [9, 8, 5]]
    assert inputs.target_mask.int().tolist() == [[1, 1, 1], [1, 1, 0]]
    for config, start in (
        ({"decoder_start_token_id": None, "bos_token_id": 3, "pad_token_id": 1}, 3),
        ({"bos_token_id": None, "pad_token_id": 1}, 1),
        ({}, 0),
    ):
        assert running.decoder_start(SimpleNamespace(**config)) == start


def test_special_and_padding_ids_come_from_the_tokenizer_or_the_configuration():
    hooked = opening.open_model(zoo.make("modernbert"))
    assert (facts_of(hooked).special_ids, facts_of(hooked).pad_id) == ({0, 1, 2}, 0)
    hooked.tokenizer = SimpleNamespace(all_special_ids=[3, None, 4], pad_token_id=3)
    assert (facts_of(hooked).special_ids, facts_of(hooked).pad_id) == ({3, 4}, 3)
    model = zoo.make("llama")
    model.config.eos_token_id = [2, 7]
    assert {2, 7} <= facts_of(opening.open_model(model)).special_ids
    assert facts_of(opening.open_model(model)).pad_id is None


def test_the_context_length_is_the_longest_document_that_a_model_takes():
    limits = {"bert": 64, "roberta": 62, "bart": 64, "gpt2": 64, "t5": None, "llama": 64}
    for name, limit in limits.items():
        hooked = zoo.opened(name).hooked
        assert facts_of(hooked).context_length == limit
        if name not in ("t5", "llama"):  # the others have tables of positions, with a last row
            ids = torch.full((1, limit + 1), 7)
            hooked(ids[:, :limit], torch.ones_like(ids[:, :limit]))
            with pytest.raises((IndexError, RuntimeError)):
                hooked(ids, torch.ones_like(ids))


def test_what_cannot_be_read_or_measured_is_refused():
    with pytest.raises(TypeError, match="needed a hooked model, not BertModel: pass it through open_model"):
        host_of(zoo.make("bert-headless"))
    topics = tp.Topics.from_token_ids({"a": [5, 6], "b": [7]}, vocabulary_size=90)
    with pytest.raises(ValueError, match="the topics are over a vocabulary of 90 ids, the model's has 97"):
        facts_of(zoo.opened("bert").hooked, topics)
    ids, mask = zoo.documents()
    with pytest.raises(ValueError, match="no target side, which a decoder needs"):
        zoo.read(zoo.opened("bart").view, sites.Inputs(ids, mask), "hooks")
