"""Ablation: known answers of the toy, the same by PyTorch's own hooks, and what is compared with what."""

import known_toy
import numpy as np
import pytest
import torch
import zoo

import topic_probe as tp
from topic_probe.lens import capture
from topic_probe.measure.ablation import _others
from topic_probe.measure.heads import Heads
from topic_probe.text.documents import source_key
from topic_probe.topics import Topics

TOPICS = Topics.from_token_ids(
    {"one": list(range(5, 20)), "two": list(range(20, 40))}, vocabulary_size=zoo.VOCABULARY
)


DOCUMENTS = zoo.lists((12, 9, 14, 20, 11, 16, 13, 10, 18, 15))


@pytest.fixture(scope="module")
def bert():
    return tp.open_model(zoo.make("bert"))


def by_hand(model, documents, head_of=None, instead=None):
    """Gaps of centred cosines by document, with a head's output overwritten where the layer projects it."""
    inside, gaps = model.original_model, []
    for ids in documents:
        handles = []
        if head_of is not None:
            layer, head = head_of
            attention = inside.base_model.encoder.layer[layer].attention
            width = attention.self.attention_head_size

            def overwrite(module, given, head=head, width=width):
                changed = given[0].clone()
                changed[..., head * width : (head + 1) * width] = instead
                return (changed, *given[1:])

            handles.append(attention.output.dense.register_forward_pre_hook(overwrite))
        with torch.no_grad():
            answer = inside.base_model(torch.tensor([ids]), output_hidden_states=True)
        for handle in handles:
            handle.remove()
        states = answer.hidden_states[-1][0].double()
        states = states - states.mean(0)
        states = states / states.norm(dim=-1, keepdim=True)
        sums, counts = [0.0, 0.0], [0, 0]
        for i, one in enumerate(ids):
            for j, other in enumerate(ids):
                groups = [
                    next((t for t, w in enumerate((range(5, 20), range(20, 40))) if x in w), None)
                    for x in (one, other)
                ]
                if one == other or None in groups:
                    continue
                kind = int(groups[0] != groups[1])
                sums[kind] += float(states[i] @ states[j])
                counts[kind] += 1
        gaps.append((sums, counts))
    sums, counts = (np.array([gap[part] for gap in gaps]).sum(0) for part in (0, 1))
    return sums[0] / counts[0] - sums[1] / counts[1]


def test_zero_ablation_of_every_head_is_what_a_hook_before_the_projection_does(bert):
    report = tp.measure_ablation(bert, TOPICS, DOCUMENTS, kind="zero", special_ids=())
    intact = by_hand(bert, DOCUMENTS)
    assert report.outcome.item() == pytest.approx(intact, abs=1e-6)
    for cell, head in enumerate(zip(report.index["layer"], report.index["head"], strict=True)):
        expected = intact - by_hand(bert, DOCUMENTS, head, 0.0)
        assert report.effect[0, cell] == pytest.approx(expected, abs=1e-6), head


def test_a_mean_is_that_of_documents_of_the_other_half(bert):
    """By hand: the outputs of head (1, 2) at all positions of other documents, given as the reference."""
    reference = zoo.lists((17, 8), seed=5)
    report = tp.measure_ablation(
        bert, TOPICS, DOCUMENTS, sets={"one": "1.2"}, reference=reference, n_matched=0, special_ids=()
    )
    outputs = []
    attention = bert.original_model.base_model.encoder.layer[1].attention
    width = attention.self.attention_head_size
    handle = attention.output.dense.register_forward_pre_hook(
        lambda module, given: outputs.append(given[0][0, :, 2 * width : 3 * width].double())
    )
    for ids in reference:
        with torch.no_grad():
            bert.original_model.base_model(torch.tensor([ids]))
    handle.remove()
    mean = torch.cat(outputs).mean(0).float()
    expected = by_hand(bert, DOCUMENTS) - by_hand(bert, DOCUMENTS, (1, 2), mean)
    assert report.effect.item() == pytest.approx(expected, abs=1e-6)


def test_states_that_are_all_alike_have_no_direction_and_nothing_is_lost_without_what_made_them():
    """Uniform attention gives every position the same state: cosines are 0, not what rounding leaves."""
    world = tp.World(n_topics=4, words_per_topic=5, topics_per_document=2)
    model = tp.build_toy(tp.ToyConfig(regime="value", world=world, noise=0.3))
    documents = world.documents(12, generator=torch.Generator().manual_seed(0))
    report = tp.measure_ablation(model, world.topics, documents)
    assert report.outcome.item() == 0.0
    assert report.effect.item() == 0.0
    assert report.p_value.item() == 1.0  # the only head of its layer is compared with itself


def test_without_anything_taken_out_the_effect_is_nothing_and_p_is_one(bert):
    report = tp.measure_ablation(bert, TOPICS, DOCUMENTS, sets={"nothing": ""}, special_ids=())
    assert (report.effect.item(), report.p_value.item()) == (0.0, 1.0)


def test_halves_give_each_other_their_means(bert):
    """Sources of two kinds: each gets what it would get with the others as the reference."""
    documents = zoo.of_sources(DOCUMENTS, range(len(DOCUMENTS)))
    whole = tp.measure_ablation(bert, TOPICS, documents, sets={"one": [(0, 1)]}, n_matched=0, special_ids=())
    parity = [document.source % 2 for document in documents]
    halves = [[d for d, own in zip(DOCUMENTS, parity, strict=True) if own == half] for half in (0, 1)]
    assert all(halves)
    found = [
        tp.measure_ablation(
            bert, TOPICS, halves[half], sets={"one": [(0, 1)]}, n_matched=0, special_ids=(), reference=halves[1 - half],
            outcome=lambda model, inputs: states_of(model, inputs),
        )
        for half in (0, 1)
    ]  # fmt: skip
    told = tp.measure_ablation(
        bert, TOPICS, documents, sets={"one": [(0, 1)]}, n_matched=0, special_ids=(),
        outcome=lambda model, inputs: states_of(model, inputs),
    )  # fmt: skip
    expected = sum(len(own) * part.effect.item() for own, part in zip(halves, found, strict=True)) / len(
        DOCUMENTS
    )
    assert told.effect.item() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert whole.effect.item() != 0


def states_of(model, inputs):
    with torch.no_grad():
        answer = model.original_model.base_model(inputs.ids, attention_mask=inputs.mask.long())
    return (answer.last_hidden_state[:, 0] ** 3).sum(-1)


# ---------------------------------------------------------------------------- the toy, by theory


@pytest.mark.parametrize("kind", ["mean", "zero"])
def test_ablating_the_toys_head_is_worth_the_closed_form(kind):
    """(1/v)(1/τ − 1/T) = 0.04 for the mean, 1/(τv) = 0.05 for nothing, in documents with theory's frequencies."""
    model = known_toy.toy(W_V=known_toy.theorem_2())
    documents = known_toy.documents()
    report = tp.measure_ablation(
        model, known_toy.WORLD.blocks, documents, kind=kind, outcome=known_toy.squared_loss, special_ids=(),
        reference=known_toy.shown(documents),
    )  # fmt: skip
    theory = tp.theory.ablation_effect(known_toy.WORLD, known_toy.MASKING, kind=kind)
    assert theory.effect == pytest.approx({"mean": 0.04, "zero": 0.05}[kind], abs=1e-12)
    assert report.outcome.item() == pytest.approx(theory.intact, abs=1e-12)
    assert -report.effect.item() == pytest.approx(theory.effect, abs=1e-12)


def test_the_head_that_looks_by_topic_and_writes_nothing_has_no_effect():
    """Head 0 attends uniformly and writes what Theorem 2 says; head 1 attends by topic, and its values are 0."""
    n = known_toy.WORLD.vocabulary_size
    zero = torch.zeros(n, n, dtype=torch.float64)
    model = known_toy.toy(
        2,
        W_K=torch.stack([zero, known_toy.same_block()]),
        W_Q=torch.stack([zero, 20 * torch.eye(n, dtype=torch.float64)]),
        W_V=torch.stack([known_toy.theorem_2(), zero]),
    )
    documents = known_toy.documents()
    attention = tp.measure_attention(
        model, known_toy.WORLD.blocks, documents, special_ids=(), n_permutations=0
    )
    assert attention.heads.ratio[0] == pytest.approx(1, abs=1e-9)
    assert attention.heads.ratio[1] > 2
    report = tp.measure_ablation(
        model, known_toy.WORLD.blocks, documents, outcome=known_toy.squared_loss, special_ids=(),
        reference=known_toy.shown(documents),
    )  # fmt: skip
    assert report.effect[0, 1] == 0.0
    assert -report.effect[0, 0] == pytest.approx(0.04, abs=1e-12)
    assert report.interval[0, 1].tolist() == [0.0, 0.0]


# ---------------------------------------------------------------------------- what is compared with what


def test_topical_heads_are_those_of_the_highest_ratio_at_equal_distance(bert):
    report = tp.measure_ablation(bert, TOPICS, DOCUMENTS, heads=3, n_matched=0, special_ids=())
    matched = tp.measure_attention(bert, TOPICS, DOCUMENTS, n_permutations=0, special_ids=()).matched
    names = [
        f"{layer}.{head}" for layer, head in zip(matched.index["layer"], matched.index["head"], strict=True)
    ]
    ranked = sorted(zip(matched.ratio, names, strict=True), reverse=True)
    assert set(report.index["heads"][0].split()) == {name for _, name in ranked[:3]}
    named = tp.measure_ablation(
        bert, TOPICS, DOCUMENTS, sets={"x": [name for _, name in ranked[:3]]}, n_matched=0, special_ids=()
    )
    assert report.effect.item() == named.effect.item()


def test_sets_are_compared_with_all_others_of_their_layers_where_these_are_few(bert):
    every = Heads.of(capture.view(bert))
    n = zoo.make("bert").config.num_attention_heads
    assert _others(every, (0,), 100, 0) == [(head,) for head in range(1, n)]
    pairs = _others(every, (0, n), 10_000, 0)  # one of each of the first two layers
    assert len(pairs) == n * n - 1
    assert all(first < n <= second < 2 * n for first, second in pairs)


def test_random_sets_are_different_ones_of_the_same_layers(bert):
    every = Heads.of(capture.view(bert))
    n = every.site_of.count(0)
    own = (0, 1, n)
    drawn = _others(every, own, 4, 3)
    assert len(drawn) == len(set(drawn)) == 4
    assert own not in drawn
    assert all([every.site_of[head] for head in other] == [0, 0, 1] for other in drawn)
    assert drawn == _others(every, own, 4, 3)
    assert drawn != sorted(drawn)  # not the first ones of all, in order


@pytest.mark.parametrize("kind", ["mean", "zero"])
def test_numbers_do_not_depend_on_batches(kind, bert, tmp_path):
    options = {"kind": kind, "special_ids": (), "n_matched": 3, "sets": {"two": "0.1,1.0"}}
    report = tp.measure_ablation(bert, TOPICS, DOCUMENTS, **options)
    alone = tp.measure_ablation(bert, TOPICS, DOCUMENTS, batch_size=1, **options)
    np.testing.assert_allclose(report.effect, alone.effect, atol=1e-6)
    np.testing.assert_allclose(report.null, alone.null, atol=1e-6)
    assert report.index["heads"] == ("0.1 1.0",)
    assert tp.load_report(report.save(tmp_path / "report")) == report


def test_losses_are_those_of_the_model_with_the_same_masks(bert):
    """Loss of a masked-language model by Hugging Face's own function, at the positions that were masked."""
    model = tp.open_model(zoo.make("bert"))
    model.tokenizer = type("Tokenizer", (), {"mask_token_id": 3, "pad_token_id": 0, "all_special_ids": [3]})()
    seen = []

    def outcome(asked_model, inputs):
        seen.append(inputs.ids.clone())
        return torch.zeros(len(inputs.ids))

    report = tp.measure_ablation(
        model,
        TOPICS,
        DOCUMENTS,
        sets={"nothing": []},
        kind="zero",
        outcome="loss",
        special_ids=(),
        n_matched=0,
    )
    assert report.readouts == ("words of topics", "elsewhere")
    assert report.effect.tolist() == [[0.0], [0.0]]
    assert (report.outcome > 0).all()


def test_a_causal_loss_is_that_of_the_next_token():
    model = tp.open_model(zoo.make("gpt2"))
    report = tp.measure_ablation(
        model,
        TOPICS,
        DOCUMENTS,
        sets={"nothing": []},
        kind="zero",
        outcome="loss",
        special_ids=(),
        n_matched=0,
    )
    sums, counts = np.zeros(2), np.zeros(2)
    for ids in DOCUMENTS:
        with torch.no_grad():
            scores = model.original_model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        for position in range(1, len(ids)):
            kind = int(not 5 <= ids[position] < 40)
            sums[kind] -= float(scores[position - 1, ids[position]])
            counts[kind] += 1
    np.testing.assert_allclose(report.outcome, sums / counts, rtol=1e-5)


def test_documents_without_words_of_topics_need_no_model_where_pairs_of_words_are_looked_at(
    bert, monkeypatch
):
    """The same effects, and as many documents run through the model as hold a word."""
    from topic_probe.measure.outcomes import States

    rows, read = [], States.read
    monkeypatch.setattr(
        States, "read", lambda self, asked: rows.append(len(asked.batch)) or read(self, asked)
    )
    options = {"sets": {"one": "0.1"}, "kind": "zero", "n_matched": 0, "special_ids": ()}
    alone = tp.measure_ablation(bert, TOPICS, DOCUMENTS, **options)
    n = sum(rows)
    rows.clear()
    nothing = [[3, 4, 3]] * 7
    mixed = tp.measure_ablation(bert, TOPICS, [*nothing, *DOCUMENTS], **options)
    assert sum(rows) == n == 2 * len(DOCUMENTS)
    np.testing.assert_allclose(mixed.effect, alone.effect, atol=1e-9)
    np.testing.assert_allclose(mixed.interval, alone.interval, atol=1e-9)
    assert mixed.provenance["left_out"]["documents without a word of any topic"] == 7


def test_a_reference_has_sources_of_its_own(bert):
    """Labels are of the documents; there are fewer of the reference."""
    report = tp.measure_ablation(
        bert, TOPICS, zoo.of_sources(DOCUMENTS, "aabbccddee"), sets={"one": "0.1"}, n_matched=0, special_ids=(),
        reference=zoo.lists((17, 8), seed=5),
    )  # fmt: skip
    assert report.provenance["documents"]["sources"] == 5


def first_state(model, inputs):
    """A smooth number of every document."""
    answer = model.original_model.base_model(inputs.ids, attention_mask=inputs.mask.long())
    return (answer.last_hidden_state[:, 0] ** 3).sum(-1)


def test_few_sources_that_come_into_one_half_are_parted_otherwise(bert):
    """By the numbers of their sources, which are hashes: two whose last bits are 10, and which differ in the next."""
    hashed = {label: source_key(label) % 8 for label in range(100)}
    first, second = (next(label for label, bits in hashed.items() if bits == end) for end in (0b010, 0b110))
    documents = zoo.lists((12, 9, 14, 20))
    options = {"sets": {"a": "1.2"}, "outcome": first_state, "n_matched": 0, "special_ids": ()}
    parted = zoo.of_sources(documents, [first, first, second, second])
    report = tp.measure_ablation(bert, TOPICS, parted, **options)
    with_other = [
        tp.measure_ablation(bert, TOPICS, own, reference=other, **options).effect.item()
        for own, other in ((documents[:2], documents[2:]), (documents[2:], documents[:2]))
    ]
    assert report.effect.item() == pytest.approx(np.mean(with_other), rel=1e-5)  # in single precision


# ---------------------------------------------------------------------------- refusals


def test_what_cannot_be_done_is_said(bert):
    documents = iter(DOCUMENTS)
    with pytest.raises(ValueError, match="read more than once"):
        tp.measure_ablation(bert, TOPICS, documents, special_ids=())
    with pytest.raises(ValueError, match=r"there is no head '9\.0'"):
        tp.measure_ablation(bert, TOPICS, DOCUMENTS, sets={"x": "9.0"}, special_ids=())
    with pytest.raises(ValueError, match="not two sources"):
        tp.measure_ablation(bert, TOPICS, DOCUMENTS[:1], special_ids=())
    with pytest.raises(ValueError, match="layer must be 0"):
        tp.measure_ablation(bert, TOPICS, DOCUMENTS, layer=99, special_ids=())
    with pytest.raises(ValueError, match="names no mask token"):
        tp.measure_ablation(bert, TOPICS, DOCUMENTS, outcome="loss", special_ids=())
    with pytest.raises(ValueError, match="one number for each of"):
        tp.measure_ablation(
            bert, TOPICS, DOCUMENTS, outcome=lambda model, inputs: torch.zeros(3, 3), special_ids=()
        )
