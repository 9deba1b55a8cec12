"""What a query may see is what the mask of its model says, whatever shape that has, on every way of reading."""

import copy
from itertools import product

import any_architecture
import numpy as np
import pytest
import torch
import transformers as hf
import zoo

import topic_probe as tp
from topic_probe.lens import capture, sites
from topic_probe.measure.engine import FIRST

LENGTHS = (20, 9, 14)
IDS, MASK = zoo.documents(LENGTHS)
DOCUMENTS = [ids[real].tolist() for ids, real in zip(IDS, MASK, strict=True)]
TOPICS = tp.Topics.from_token_ids({"a": range(5, 40), "b": range(40, 97)}, vocabulary_size=zoo.VOCABULARY)

_small = {**zoo._grouped, "head_dim": 8, "pad_token_id": 0}
WINDOWED = {
    "llama4": lambda: hf.Llama4ForCausalLM(
        hf.Llama4TextConfig(
            **_small, intermediate_size_mlp=37, attention_chunk_size=6, num_local_experts=2,
            layer_types=["chunked_attention", "full_attention", "chunked_attention"],
        )
    ),
    "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**_small, sliding_window=6)),
    "gemma3": lambda: hf.Gemma3ForCausalLM(
        hf.Gemma3TextConfig(
            **_small, sliding_window=5, layer_types=["sliding_attention", "full_attention", "sliding_attention"]
        )
    ),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**_small, sliding_window=6)),
    "modernbert": lambda: zoo._MAKERS["modernbert"](),
    "blocks": lambda: with_blocks(zoo._MAKERS["bert-headless"](), {0: 5, 2: 7}),
}  # fmt: skip


def with_blocks(model, sizes):
    """A BERT some of whose layers let positions see their own block only."""

    def cut(_module, given, options, *, size):
        position = torch.arange(given[0].shape[1])
        dark = position[:, None] // size != position // size
        mask = options["attention_mask"]
        mask = torch.zeros(1, 1, len(position), len(position)) if mask is None else mask
        lowest = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
        options["attention_mask"] = mask.expand(-1, -1, len(position), -1).masked_fill(dark, lowest)
        return given, options

    for layer, size in sizes.items():
        attention = model.encoder.layer[layer].attention.self
        attention.register_forward_pre_hook(
            lambda *given, size=size: cut(*given, size=size), with_kwargs=True, prepend=True
        )
    return model


def make(name):
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = WINDOWED[name]()
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def masks_of(model, ids):
    """The mask that every layer of an eager copy is handed for one document: [layer][query][key]."""
    twin, masks = copy.deepcopy(model), []
    twin.set_attn_implementation("eager")
    for module in twin.modules():
        if any(hasattr(module, projection) for projection in ("q_proj", "query", "Wqkv")):
            module.register_forward_pre_hook(
                lambda _module, _given, options: masks.append(options["attention_mask"]), with_kwargs=True
            )
    with torch.no_grad():
        twin(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long))
    n = len(ids)
    whole = [torch.zeros(1, 1, n, n) if mask is None else mask.expand(1, 1, n, n) for mask in masks]
    return [(mask[0, 0] > -1).tolist() for mask in whole]


def counted_by_hand(model):
    """Pairs of same word, same topic and different topics in every layer."""
    counts = np.zeros((3, 3), dtype=int)
    for ids in DOCUMENTS:
        for layer, mask in enumerate(masks_of(model, ids)):
            for query, key in product(range(len(ids)), repeat=2):
                if mask[query][key]:
                    one, other = ids[query], ids[key]
                    counts[layer, 0 if one == other else 1 if (one < 40) == (other < 40) else 2] += 1
    return counts


@pytest.mark.parametrize("name", WINDOWED)
def test_pairs_are_those_of_the_mask_that_the_model_builds(name):
    model = make(name)
    expected = counted_by_hand(model)
    assert len({tuple(row) for row in expected.tolist()}) > 1 or name == "mistral"  # layers differ
    view = capture.view(tp.open_model(model))
    for way in ("hooks",) if view.tap is None else ("hooks", "rows"):
        for batch_size in (3, 1):
            report = tp.measure_attention(
                view.model,
                TOPICS,
                DOCUMENTS,
                through=way,
                batch_size=batch_size,
                n_permutations=0,
                special_ids=(),
                first_position="word",
            )
            layers = report.heads
            found = np.stack([layers.n_same_word, layers.n_same_topic, layers.n_different_topic], axis=1)
            assert (found.reshape(3, zoo.HEADS, 3) == expected[:, None]).all()


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_padding_that_sees_padding_alone_makes_no_causal_model_look_ahead(monkeypatch, size):
    build = hf.Llama4TextConfig
    monkeypatch.setattr(
        hf, "Llama4TextConfig", lambda **given: build(**given | {"attention_chunk_size": size})
    )
    view = capture.view(tp.open_model(make("llama4")))
    assert view.causal == (True, True, True)
    found = tp.measure_attention(view.model, TOPICS, DOCUMENTS, n_permutations=0, special_ids=())
    assert found.provenance["left_out"][FIRST] == len(DOCUMENTS)  # a sink, whatever stands there


@pytest.mark.parametrize("name", ["llama4", "blocks"])
def test_a_mask_in_blocks_costs_one_pass_more_and_not_one_for_every_batch(name):
    model, passes = make(name), []
    model.get_input_embeddings().register_forward_hook(lambda *_: passes.append(1))
    view = capture.view(tp.open_model(model))
    passes.clear()
    tp.measure_attention(
        view.model, TOPICS, DOCUMENTS * 4, through="hooks", batch_size=3, n_permutations=0, special_ids=()
    )
    assert len(passes) == 4 + 2  # a document of one word, and the first batch again


# --------------------------------------------------------------------------------- what patterns alone show


def test_a_band_is_seen_and_goes_on_where_it_reaches_the_edge():
    pairs, real = sites.SeenPairs(), torch.ones(1, 6, dtype=torch.bool)
    assert pairs.look(0, torch.ones(2, 4, 4).tril())
    assert pairs.look(1, torch.ones(2, 4, 4).tril(1).triu(-1))
    index = torch.tensor([[0, 4]])
    assert pairs.visible(0, index, real).int().tolist() == [[[1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0]]]
    assert pairs.visible(1, index, real).int().tolist() == [[[1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1]]]
    real[0, 5] = False
    assert pairs.visible(1, index, real).int().tolist() == [[[1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0]]]


def test_a_dark_pair_is_masked_only_where_it_is_dark_in_a_document_of_one_word():
    pattern = torch.ones(2, 5, 5).tril()
    pattern[:, 4, 2] = 0
    pairs, real, last = sites.SeenPairs(), torch.ones(1, 5, dtype=torch.bool), torch.tensor([[4]])
    assert not pairs.look(0, pattern)
    assert pairs.look(0, torch.ones(2, 5, 5).tril(), one_word=True)
    assert pairs.visible(0, last, real).int().tolist() == [[[1, 1, 1, 1, 1]]]
    assert pairs.look(0, pattern)  # no longer than what is known
    assert not pairs.look(1, pattern)
    assert pairs.look(1, pattern, one_word=True)
    assert pairs.visible(1, last, real).int().tolist() == [[[1, 1, 0, 1, 1]]]


def test_one_head_that_attends_is_enough():
    pattern = torch.zeros(2, 3, 3)
    pattern[1] = 1
    assert sites.SeenPairs().look(0, pattern)


def test_keys_within_offsets_are_visible_where_they_are_real():
    keys = torch.tensor([[True, True, True, True, False]])
    shown = sites.visible_by_offset(torch.tensor([[0, 3]]), keys, (-1.0, 2.0))
    assert shown.int().tolist() == [[[1, 1, 1, 0, 0], [0, 0, 1, 1, 0]]]
    everything = sites.visible_by_offset(torch.tensor([[3]]), keys, (-torch.inf, torch.inf))
    assert everything.int().tolist() == [[[1, 1, 1, 1, 0]]]


def test_masks_of_calls_are_read_in_both_forms_and_one_for_each_head_is_refused():
    lowest = torch.finfo(torch.float32).min
    added = torch.tensor([[[[0.0, lowest], [0.5, 0.0]]]])
    allowed = torch.tensor([[[[True, False], [True, True]]]])
    for mask in (added, allowed, added.expand(1, 3, 2, 2), allowed.expand(2, 3, 2, 2)):
        shown = sites.visible_keys(mask, 2, 2, 2)
        assert shown.tolist() == [[[True, False], [True, True]]] * 2
    assert sites.visible_keys(None, 1, 2, 3).all()
    each = torch.stack([allowed[0, 0], allowed[0, 0].T])[None]
    with pytest.raises(ValueError, match="heads of a layer see different keys"):
        sites.visible_keys(each, 1, 2, 2)


def test_sparse_attention_that_chooses_its_keys_is_refused_where_the_choice_is_not_seen():
    # A document of one word shows a mask as well, but that of another choice.
    model = any_architecture.build("deepseek_v32", "DeepseekV32ForCausalLM")
    with pytest.raises(ValueError, match="depends on the words, as in sparse attention"):
        tp.measure_attention(model, TOPICS, DOCUMENTS, n_permutations=0, n_resamples=0)


def test_sparse_attention_that_chooses_its_keys_is_read_from_the_mask_of_each_call():
    model = any_architecture.build("qwen4_exp_text", "Qwen4ExpForCausalLM")
    heads = tp.measure_attention(model, TOPICS, DOCUMENTS, n_permutations=0, n_resamples=0).heads
    pairs = heads.n_same_word + heads.n_same_topic + heads.n_different_topic
    model.set_attn_implementation("eager")
    seen = 0
    for ids in DOCUMENTS:
        with torch.no_grad():
            patterns = model(torch.tensor([ids]), output_attentions=True).attentions
        # The first position is a sink: no word.
        seen += int((patterns[0][0, :, 1:, 1:] > 0).any(0).sum())
    assert pairs.tolist() == [seen] * 4
    assert seen < sum((len(ids) - 1) * len(ids) // 2 for ids in DOCUMENTS)


# -------------------------------------------------------------------- cells of rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_a_row_gives_to_all_other_keys_is_added_up_where_some_take_nearly_all(dtype):
    """Of 1 less the rest, float32 would keep one digit of a millionth."""
    rows = torch.rand(2, 3, 4, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 1e-7
    rows[..., 0] = 1 - rows[..., 1:].sum(-1)
    rows = rows.to(dtype)
    left_out = torch.zeros(2, 10, dtype=torch.bool)
    left_out[:, 0], left_out[1, 3] = True, True
    index = torch.tensor([[4, 2, 0], [9, 9, 1]])
    cells = sites.Cells.of_rows(rows[1:], sites.Columns(index, left_out), slice(1, 2))
    table = rows[1].double().numpy()
    for head, row in product(range(3), range(4)):
        others = sum(table[head, row, key] for key in range(10) if key not in (0, 3))
        assert cells.rest[0, head, row].item() == pytest.approx(others, rel=1e-6)
        assert cells.total[0, head, row].item() == pytest.approx(sum(table[head, row]), rel=1e-6)
        assert cells.patterns[0, head, row].tolist() == rows[1, head, row][[9, 9, 1]].tolist()


@pytest.mark.parametrize("through", ["hooks", "rows"])
@pytest.mark.parametrize("name", ["bert", "bart"])
def test_cells_are_the_wanted_columns_of_the_wanted_rows(name, through):
    view = capture.view(tp.open_model(zoo.make(name)))
    inputs = view.inputs(*zoo.documents((12, 7, 9)))
    read = {side for site in view.sites for side in sites.SIDES[site.stack]}
    rows = {side: torch.tensor([[1, 3], [0, 2], [4, 4]]) for side in read}
    columns = {
        side: sites.Columns(torch.tensor([[5, 0, 1], [6, 2, 2], [3, 1, 0]]), inputs.side(side)[0] % 3 == 0)
        for side in rows
    }
    whole, cells = {}, {}
    view.attention_rows(inputs, rows, lambda n, shown, _: whole.update({n: shown.clone()}), through=through)

    def keep(number, shown, visible):
        cells.setdefault(number, []).append((shown, visible.shape))

    view.attention_cells(inputs, rows, columns, keep, through=through, at_once=2)
    assert cells.keys() == whole.keys() == set(range(len(view.sites)))
    for number, parts in cells.items():
        of_keys = columns[sites.SIDES[view.sites[number].stack][1]]
        assert [len(shown.patterns) for shown, _ in parts] == [2, 1]
        chosen, rest = (torch.cat([getattr(shown, of) for shown, _ in parts]) for of in ("patterns", "rest"))
        for document, pattern in enumerate(whole[number]):
            expected = pattern[:, :, of_keys.index[document]]
            torch.testing.assert_close(chosen[document], expected, rtol=0, atol=0)
            others = pattern[:, :, ~of_keys.left_out[document]].sum(-1)
            torch.testing.assert_close(rest[document], others, rtol=1e-6, atol=1e-7)
