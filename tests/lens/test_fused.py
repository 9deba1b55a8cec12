"""Cells that follow from what the fused kernel says are those of whole patterns, also where sinks take nearly all."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as hf
import zoo

import topic_probe as tp
from topic_probe.lens import capture, fused
from topic_probe.lens.fused import Watching
from topic_probe.lens.sites import SIDES, Columns

IDS, MASK = zoo.documents((20, 9, 14))
TOPICS = tp.Topics.from_token_ids({"a": range(5, 40), "b": range(40, 97)}, vocabulary_size=zoo.VOCABULARY)
_small = {**zoo._grouped, "head_dim": 8, "pad_token_id": 0}
WINDOWED = {
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**_small, sliding_window=6)),
    "gemma3": lambda: hf.Gemma3ForCausalLM(
        hf.Gemma3TextConfig(
            **_small,
            sliding_window=5,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        )
    ),
}
# Their own code takes every softmax in single precision, whatever theirs is.
SINGLE = ["neox", "llama", "modernbert", *WINDOWED]
FUSED = ["bert", "albert", "distilbert", "bart", "t5", "gpt2", *SINGLE]


def wanted(view, inputs):
    """Some rows, and columns of which two keys of every document are left out."""
    rows, columns = {}, {}
    for site in view.sites:
        for side in SIDES[site.stack]:
            ids, real = inputs.side(side)
            generator = torch.Generator().manual_seed(1)
            chosen = torch.stack([torch.randperm(int(n), generator=generator)[:6] for n in real.sum(1)])
            left_out = torch.zeros_like(real)
            left_out[:, :2] = True
            rows[side], columns[side] = chosen, Columns(chosen.flip(1), left_out & (ids >= 0))
    return rows, columns


def cells(view, inputs, through):
    rows, columns = wanted(view, inputs)
    found = {}

    def keep(number, shown, _):
        found.setdefault(number, []).append([shown.patterns, shown.total, shown.rest])

    view.attention_cells(inputs, rows, columns, keep, through=through, at_once=2)
    return [[torch.cat(parts) for parts in zip(*found[site], strict=True)] for site in sorted(found)]


@pytest.mark.parametrize("host", ["auto", "huggingface"])
@pytest.mark.parametrize("name", FUSED)
def test_cells_and_what_rows_sum_to_are_those_of_whole_patterns(name, host, monkeypatch):
    model = zoo.drawn(WINDOWED[name]) if name in WINDOWED else zoo.make(name)
    model = model if name in SINGLE else model.double()
    view = capture.view(tp.open_model(model, host=host))
    used, own = [], fused.FusedCall.cells
    monkeypatch.setattr(fused.FusedCall, "cells", lambda self, *given: (used.append(1), own(self, *given))[1])
    inputs = view.inputs(IDS, MASK)
    beside = cells(view, inputs, "rows")
    assert len(used) == 2 * len(view.sites)  # every site, in two parts
    for ours, theirs in zip(beside, cells(view, inputs, "hooks"), strict=True):
        for part, expected in zip(ours, theirs, strict=True):
            rounding = 1e-6 if name in SINGLE else 1e-9
            torch.testing.assert_close(part, expected, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mass", [0.5, 0.99, 0.999999])
@pytest.mark.parametrize("masked", [False, True])
def test_what_sinks_leave_is_exact_where_they_take_nearly_all(mass, masked, dtype):
    """Against a double loop in double precision; 1 less the mass of sinks would leave one digit of float32.

    The bound is that of the arithmetic: a score is a sum of products, each of which is rounded, as is the log-sum-exp;
    the kernel's exponential is good to twenty units in the last place.
    """
    generator = torch.Generator().manual_seed(0)
    n, width, sinks = 40, 16, (0, 31)
    query, key, value = (torch.randn(2, 3, n, width, generator=generator).to(dtype) for _ in range(3))
    query[..., 0], key[..., 0] = 2.0, 0.0
    key[:, :, sinks, 0] = float(np.log(mass / (1 - mass) * (n - 2) / 2)) * width**0.5 / 2
    mask = torch.zeros(2, 1, n, n, dtype=dtype)
    if masked:  # padding behind one document, and no key behind its query, but for sinks
        mask[1, :, :, 35:] = -torch.inf
        mask[:, :, torch.ones(n, n).triu(1) > 0] = -torch.inf
        mask[..., sinks] = 0
    with Watching() as kernel:
        F.scaled_dot_product_attention(query, key, value, attn_mask=mask if masked else None)
    rows, columns = torch.tensor([[3, 17, 30], [5, 20, 33]]), torch.tensor([[30, 0, 17, 31], [2, 20, 5, 0]])
    left_out = torch.zeros(2, n, dtype=torch.bool)
    left_out[:, sinks] = True
    assert kernel.call is not None
    found = kernel.call.cells(rows, Columns(columns, left_out), slice(0, 2))
    least = 1.0
    for document in range(2):
        for head in range(3):
            q, k = query[document, head].double(), key[document, head].double()
            for number, row in enumerate(rows[document]):
                scores = [float(q[row] @ k[j] / width**0.5 + mask[document, 0, row, j]) for j in range(n)]
                weights = np.exp(scores)
                rest = sum(w for j, w in enumerate(weights) if j not in sinks) / sum(weights)
                least = min(least, rest)
                products = float((q[row] * k).abs().sum(1).max()) / width**0.5
                rounding = torch.finfo(dtype).eps * (width * products + max(1, *scores) + 20)
                assert float(found.rest[document, head, number]) == pytest.approx(rest, rel=rounding)
                for at, column in enumerate(columns[document]):
                    cell = float(found.patterns[document, head, number, at])
                    assert cell == pytest.approx(weights[column] / sum(weights), rel=rounding, abs=0)
    assert least < 2 * (1 - mass)


def with_a_sink(mass):
    """A BERT whose every head gives nearly so much of its attention to the token 2."""
    model = zoo.make("bert-headless")
    embeddings = model.embeddings
    for table in (
        embeddings.word_embeddings,
        embeddings.position_embeddings,
        embeddings.token_type_embeddings,
    ):
        table.weight.data[:, 0] = 0
    embeddings.word_embeddings.weight.data[2] *= 0
    embeddings.word_embeddings.weight.data[2, 0] = 50.0
    embeddings.LayerNorm.weight.data[:] = 1
    embeddings.LayerNorm.bias.data[:] = 0
    width = zoo.WIDTH // zoo.HEADS
    for layer in model.encoder.layer:
        own = layer.attention.self
        first = slice(0, None, width)
        own.query.weight.data[first], own.query.bias.data[first] = 0, 1
        own.key.weight.data[first] = 0
        own.key.weight.data[first, 0] = float(np.log(mass / (1 - mass) * 15)) * (width / zoo.WIDTH) ** 0.5
    return model


@pytest.mark.parametrize("mass", [0.9, 0.999999])
def test_ratios_without_sinks_are_those_of_whole_patterns_and_of_double_precision(mass):
    documents = [[2, *row] for row in zoo.lists((16,) * 12)]
    model = with_a_sink(mass)

    def measure(model, through):
        host = tp.open_model(model, host="huggingface")
        return tp.measure_attention(
            host, TOPICS, documents, special_ids={2}, through=through, n_permutations=0
        )

    rows, hooks, double = measure(model, "rows"), measure(model, "hooks"), measure(model.double(), "hooks")
    assert 1 - double.sink_mass[: zoo.HEADS].max() < 4 * (1 - mass)
    for report in (rows, hooks):
        for name in ("same_word", "same_topic", "different_topic", "ratio"):
            found, expected = (getattr(part.without_sinks, name) for part in (report, double))
            np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=name)


def means(model):
    report = tp.measure_attention(model, TOPICS, zoo.lists((20, 9, 14)), special_ids={5}, n_permutations=0)
    return np.stack([report.heads.ratio, report.without_sinks.ratio, report.sink_mass])


@pytest.mark.parametrize("host", ["bridge", "huggingface"])
@pytest.mark.parametrize("fault", ["log-sum-exp", "rest", "another kernel"])
def test_a_kernel_that_says_something_else_is_not_believed(fault, host, monkeypatch):
    expected = means(tp.open_model(zoo.make("bert"), host=host))
    of = fused.FusedCall.of.__func__

    def with_fault(cls, kernel, given, log_sum):
        if fault == "log-sum-exp":
            return of(cls, kernel, given, log_sum + 0.01)

        def wrong(*given, **options):
            output, sums = kernel(*given, **options)
            return output * 0.99, sums

        return of(cls, wrong, given, log_sum)

    if fault == "another kernel":
        monkeypatch.setattr(fused, "_KERNEL", "aten::of_another_version")
    else:
        monkeypatch.setattr(fused.FusedCall, "of", classmethod(with_fault))
    model = tp.open_model(zoo.make("bert"), host=host)
    tap = capture.view(model).tap
    assert tap is not None  # rows are still read beside the kernel
    assert not tap.beside_cells
    np.testing.assert_allclose(means(model), expected, rtol=1e-6)


@pytest.mark.parametrize("options", [{"is_causal": True}, {"dtype": torch.bfloat16}, {"enable_gqa": True}])
def test_cells_are_taken_of_no_call_of_which_they_do_not_follow(options):
    dtype = options.pop("dtype", torch.float32)
    query, key = torch.randn(2, 4, 5, 8, dtype=dtype), torch.randn(2, 4, 5, 8, dtype=dtype)
    if options.get("enable_gqa"):
        key = key[:, :2]
    with torch.no_grad(), Watching() as kernel:
        found = F.scaled_dot_product_attention(query, key, key, **options)
    if options.get("enable_gqa"):
        assert kernel.call is None or kernel.call.key.shape == query.shape
    else:
        assert kernel.call is None
    with torch.no_grad():
        assert torch.equal(found, F.scaled_dot_product_attention(query, key, key, **options))


def test_a_document_that_is_no_numbers_is_left_out_and_changes_no_other():
    model = zoo.make("bert-headless")
    model.embeddings.word_embeddings.weight.data[96] = torch.nan
    texts = [[min(word, 94) for word in text] for text in zoo.lists((9,) * 199)]
    host = tp.open_model(model, host="huggingface")
    reports = [
        tp.measure_attention(host, TOPICS, [*texts, [*texts[1], 96]], special_ids=(), through=through,
                             n_permutations=0)
        for through in ("rows", "hooks")
    ]  # fmt: skip
    assert [report.provenance["documents_measured"] for report in reports] == [199, 199]
    np.testing.assert_allclose(reports[0].heads.ratio, reports[1].heads.ratio, rtol=1e-6)
