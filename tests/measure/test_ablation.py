"""Ablation: known answers of the toy, the same by PyTorch's own hooks, and what is compared with what."""

from contextlib import ExitStack

import known_toy
import numpy as np
import pytest
import torch
import zoo
from word_pairs import Pairs, scores_of

import topic_probe as tp
from topic_probe.text.documents import source_key
from topic_probe.topics import Topics

LISTS = {"one": list(range(5, 20)), "two": list(range(20, 40))}
TOPICS = Topics.from_token_ids(LISTS, vocabulary_size=zoo.VOCABULARY)
DOCUMENTS = zoo.lists((12, 9, 14, 20, 11, 16, 13, 10, 18, 15))
D_HEAD = zoo.WIDTH // zoo.HEADS
NOTHING = {"sets": {"nothing": ""}, "kind": "zero", "n_matched": 0}


@pytest.fixture(scope="module")
def bert():
    return tp.open_model(zoo.make("bert"))


def measure(model, documents=DOCUMENTS, **options):
    return tp.measure_ablation(model, TOPICS, documents, **{"special_ids": (), **options})


def hooked(model, layer, hook):
    """What a layer projects heads with calls this first."""
    projection = model.original_model.base_model.encoder.layer[layer].attention.output.dense
    return projection.register_forward_pre_hook(hook)


def by_hand(model, heads=(), instead=0.0):
    """The gap of centred cosines, with outputs of heads overwritten where the layer projects them."""
    sums, counts = 0, 0
    for ids in DOCUMENTS:
        with torch.no_grad(), ExitStack() as stack:
            for layer, head in heads:

                def overwrite(module, given, head=head):
                    changed = given[0].clone()
                    changed[..., head * D_HEAD : (head + 1) * D_HEAD] = instead
                    return (changed, *given[1:])

                stack.callback(hooked(model, layer, overwrite).remove)
            answer = model.original_model.base_model(torch.tensor([ids]), output_hidden_states=True)
        states = answer.hidden_states[-1][0].double()
        kept = [place for place, id_ in enumerate(ids) if 5 <= id_ < 40]
        found, n = Pairs([ids[place] for place in kept], LISTS).sums(
            scores_of((states - states.mean(0))[kept])
        )
        sums, counts = sums + found[0], counts + n
    return sums[1] / counts[1] - sums[2] / counts[2]


def test_every_head_taken_out_is_what_a_hook_does_and_is_compared_with_the_others_of_its_layer(bert):
    report = measure(bert, kind="zero")
    intact = by_hand(bert)
    assert report.outcome.item() == pytest.approx(intact, abs=1e-6)
    heads = list(zip(report.index["layer"], report.index["head"], strict=True))
    assert heads == list(np.ndindex(3, zoo.HEADS))
    expected = [intact - by_hand(bert, [head]) for head in heads]
    np.testing.assert_allclose(report.effect[0], expected, atol=1e-6)
    for cell, (layer, _) in enumerate(heads):
        others = [report.effect[0, n] for n, head in enumerate(heads) if head[0] == layer and n != cell]
        known = report.null[0, cell][~np.isnan(report.null[0, cell])]
        np.testing.assert_allclose(np.sort(known), np.sort(others), atol=1e-12)
    pair = measure(bert, kind="zero", sets={"two": "0.1,1.2"}, n_matched=0)
    assert pair.effect.item() == pytest.approx(intact - by_hand(bert, [(0, 1), (1, 2)]), abs=1e-6)


def test_a_mean_is_over_all_positions_of_other_documents(bert):
    reference, outputs = zoo.lists((17, 8), seed=5), []
    handle = hooked(bert, 1, lambda module, given: outputs.append(given[0][0, :, 2 * D_HEAD : 3 * D_HEAD]))
    for ids in reference:
        with torch.no_grad():
            bert.original_model.base_model(torch.tensor([ids]))
    handle.remove()
    expected = by_hand(bert) - by_hand(bert, [(1, 2)], torch.cat(outputs).mean(0))
    documents = zoo.of_sources(DOCUMENTS, "aabbccddee")
    report = measure(bert, documents, sets={"one": "1.2"}, reference=reference, n_matched=0)
    assert report.effect.item() == pytest.approx(expected, abs=1e-6)
    assert report.provenance["documents"]["sources"] == 5  # of the documents, not of the reference


def first_state(model, inputs):
    """A smooth number of every document."""
    answer = model.original_model.base_model(inputs.ids, attention_mask=inputs.mask.long())
    return (answer.last_hidden_state[:, 0] ** 3).sum(-1)


def test_halves_of_the_sources_give_each_other_their_means(bert):
    """Halves are by the last bit of the numbers of sources, which are hashes."""
    first, second = (next(n for n in range(100) if source_key(n) % 2 == bit) for bit in (0, 1))
    documents = zoo.lists((12, 9, 14, 20))
    options = {"sets": {"a": "1.2"}, "outcome": first_state, "n_matched": 0}
    report = measure(bert, zoo.of_sources(documents, [first, first, second, second]), **options)
    with_other = [
        measure(bert, own, reference=other, **options).effect.item()
        for own, other in ((documents[:2], documents[2:]), (documents[2:], documents[:2]))
    ]
    assert report.effect.item() == pytest.approx(np.mean(with_other), rel=1e-5)  # in single precision


# ---------------------------------------------------------------------------- the toy, by theory


@pytest.mark.parametrize(("kind", "worth"), [("mean", 0.04), ("zero", 0.05)])
def test_taking_out_the_toys_head_is_worth_the_closed_form_and_one_that_writes_nothing_nothing(kind, worth):
    """(1/v)(1/τ − 1/T) = 0.04 for the mean, 1/(τv) = 0.05 for nothing, in documents with theory's frequencies.

    Head 0 attends uniformly and writes what Theorem 2 says; head 1 attends by topic, and its values are 0.
    """
    n, documents = known_toy.WORLD.vocabulary_size, known_toy.documents()
    zero, one = torch.zeros(n, n, dtype=torch.float64), torch.eye(n, dtype=torch.float64)
    model = known_toy.toy(
        2, W_K=torch.stack([zero, known_toy.same_block()]), W_Q=torch.stack([zero, 20 * one]),
        W_V=torch.stack([known_toy.theorem_2(), zero]),
    )  # fmt: skip
    blocks = known_toy.WORLD.blocks
    attention = tp.measure_attention(model, blocks, documents, special_ids=(), n_permutations=0)
    assert attention.heads.ratio[0] == pytest.approx(1, abs=1e-9)
    assert attention.heads.ratio[1] > 2
    report = tp.measure_ablation(
        model, blocks, documents, kind=kind, outcome=known_toy.squared_loss, special_ids=(),
        reference=known_toy.shown(documents),
    )  # fmt: skip
    given = known_toy.theorem_2(), known_toy.WORLD, known_toy.MASKING
    assert tp.theory.ablation_effect(*given, kind=kind).item() == pytest.approx(worth, abs=1e-12)
    assert report.outcome.item() == pytest.approx(tp.theory.value_loss(*given).item(), abs=1e-12)
    assert -report.effect[0, 0] == pytest.approx(worth, abs=1e-12)
    assert (report.effect[0, 1], *report.interval[0, 1]) == (0.0, 0.0, 0.0)


def test_states_that_are_all_alike_have_no_direction():
    """Uniform attention gives every position the same state: cosines are 0, not what rounding leaves."""
    world = tp.World(n_topics=4, words_per_topic=5, topics_per_document=2)
    model = tp.build_toy(tp.ToyConfig(regime="value", world=world, noise=0.3))
    documents = world.documents(12, generator=torch.Generator().manual_seed(0))
    report = tp.measure_ablation(model, world.topics, documents)
    # The only head of its layer is compared with itself.
    assert (report.outcome.item(), report.effect.item(), report.p_value.item()) == (0.0, 0.0, 1.0)


# ---------------------------------------------------------------------------- what is compared with what


def test_topical_heads_are_those_of_the_highest_ratio_at_equal_distance(bert):
    report = measure(bert, heads=3, n_matched=0)
    matched = tp.measure_attention(bert, TOPICS, DOCUMENTS, n_permutations=0, special_ids=()).matched
    names = [f"{layer}.{head}" for layer, head in np.ndindex(3, zoo.HEADS)]
    ranked = sorted(zip(matched.ratio, names, strict=True), reverse=True)
    assert set(report.index["heads"][0].split()) == {name for _, name in ranked[:3]}


def test_random_sets_are_different_ones_of_the_same_layers_all_of_them_where_these_are_few(bert):
    def null_of(n_matched, **options):
        sets = {"two": "0.0,1.0"}
        return measure(bert, DOCUMENTS[:4], kind="zero", sets=sets, n_matched=n_matched, **options)

    every, some = null_of(10_000), null_of(4)
    assert every.null.shape[-1] == zoo.HEADS**2 - 1  # one head of each of both layers, but not this one
    assert len(set(every.null[0, 0])) == every.null.shape[-1]
    assert every.effect.item() not in every.null
    assert all(np.isclose(every.null[0, 0], value, atol=1e-9).any() for value in some.null[0, 0])
    assert len(set(some.null[0, 0])) == 4
    assert set(null_of(4, seed=1).null[0, 0]) != set(some.null[0, 0])


def test_numbers_do_not_depend_on_batches_or_on_documents_without_words(bert, tmp_path):
    options = {"n_matched": 3, "sets": {"two": "0.1,1.0"}, "reference": DOCUMENTS[:5]}
    report = measure(bert, **options)
    other = measure(bert, [*[[3, 4, 3]] * 7, *DOCUMENTS], batch_size=1, **options)
    for name in ("effect", "null", "interval"):
        np.testing.assert_allclose(getattr(other, name), getattr(report, name), atol=1e-6)
    assert other.provenance["left_out"]["documents without a word of any topic"] == 7
    assert tp.load_report(report.save(tmp_path / "report")) == report
    empty = measure(bert, sets={"nothing": ""})
    assert (empty.effect.item(), empty.p_value.item()) == (0.0, 1.0)


# ---------------------------------------------------------------------------- losses, and refusals


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_a_loss_is_that_of_the_next_token_or_of_masked_ones(name):
    """With every position masked a document says nothing but how long it is."""
    model = tp.open_model(zoo.make(name))
    model.tokenizer = type("Tokenizer", (), {"mask_token_id": 3, "pad_token_id": 0, "all_special_ids": [3]})()
    report = measure(model, outcome="loss", mask_share=1.0, **NOTHING)
    assert report.readouts == ("words of topics", "elsewhere")
    sums, counts = np.zeros((2, 2))
    for ids in DOCUMENTS:
        shown, first = (ids, 1) if name == "gpt2" else ([3] * len(ids), 0)
        with torch.no_grad():
            scores = model.original_model(torch.tensor([shown])).logits[0].double().log_softmax(-1)
        for position in range(first, len(ids)):
            kind = int(not 5 <= ids[position] < 40)
            sums[kind] -= float(scores[position - first, ids[position]])
            counts[kind] += 1
    np.testing.assert_allclose(report.outcome, sums / counts, rtol=1e-5)


def test_what_cannot_be_done_is_said(bert):
    for documents, options, message in (
        (iter(DOCUMENTS), {}, "read more than once"),
        (DOCUMENTS, {"sets": {"x": "9.0"}}, r"there is no head '9\.0'"),
        (DOCUMENTS[:1], {}, "not two sources"),
        (DOCUMENTS, {"outcome": "loss"}, "names no mask token"),
        (DOCUMENTS, {"outcome": lambda model, inputs: torch.zeros(3, 3)}, "one number for each of"),
    ):
        with pytest.raises(ValueError, match=message):
            measure(bert, documents, **options)
