"""Interventions: known answers of the toy, the same by PyTorch's own hooks, and what is compared with what."""

from contextlib import ExitStack

import known_toy
import numpy as np
import pytest
import torch
import zoo
from word_pairs import Pairs, scores_of

import topic_probe as tp
from topic_probe.lens.host import host_of
from topic_probe.measure import effects, interventions
from topic_probe.measure.heads import Heads
from topic_probe.text.documents import source_key
from topic_probe.topics import Topics

LISTS = {"one": list(range(5, 20)), "two": list(range(20, 40))}
TOPICS = Topics.from_token_ids(LISTS, vocabulary_size=zoo.VOCABULARY)
DOCUMENTS = zoo.lists((12, 9, 14, 20, 11, 16, 13, 10, 18, 15))
# One with words that stand far apart and next to each other.
CUT = [*DOCUMENTS[:6], [7, 7, 8, 7, 50, 7, 8, 25, 7, 60, 8, 7, 51, 52, 53]]
D_HEAD = zoo.WIDTH // zoo.HEADS


@pytest.fixture(scope="module")
def bert():
    return tp.open_model(zoo.make("bert"))


def measure(model, documents=DOCUMENTS, **options):
    return tp.measure_ablation(model, TOPICS, documents, **{"special_ids": (), **options})


# ---------------------------------------------------------------------------- heads


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


def test_every_head_taken_out_is_what_a_hook_does_and_stands_beside_its_whole_layer(bert):
    report = measure(bert, kind="zero")
    intact = by_hand(bert)
    assert report.outcome.item() == pytest.approx(intact, abs=1e-6)
    heads = list(zip(report.index["layer"], report.index["head"], strict=True))
    assert heads == list(np.ndindex(3, zoo.HEADS))
    expected = [intact - by_hand(bert, [head]) for head in heads]
    np.testing.assert_allclose(report.effect[0], expected, atol=1e-6)
    layers = [intact - by_hand(bert, [(layer, head) for head in range(zoo.HEADS)]) for layer in range(3)]
    np.testing.assert_allclose(report.layer_effect[0], np.repeat(layers, zoo.HEADS), atol=1e-6)
    named = measure(bert, kind="zero", sets={"two": "0.1,1.2", "layer": "2"}, n_matched=0).effect[0]
    np.testing.assert_allclose(named, [intact - by_hand(bert, [(0, 1), (1, 2)]), layers[2]], atol=1e-6)


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
    assert (report.outcome.item(), report.effect.item(), report.p_value.item()) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("named", "sizes", "where", "n_others"),
    [
        ("0.0,0.1,1.0,1.1,2.0,2.1", (2, 2, 2), "the same layers", 6**3 - 1),
        ("0.0,1.0", (2,), "all layers", 12 * 11 // 2 - 1),  # of the same layers 15
        ("0.0", (1,), "all layers", 11),
        ("", (), "all layers", 0),
    ],
)
def test_random_sets_are_different_ones_of_the_same_layers_or_of_all_where_these_have_few(
    bert, named, sizes, where, n_others
):
    every = Heads.of(host_of(bert, TOPICS))
    own = every.named(named)
    found, said = interventions.random_sets(every, own, 10_000, 0)
    assert (said, len(found)) == (where, n_others)
    assert len({*found, own}) == n_others + 1
    for heads in found:
        layers = [every.site_of[head] for head in heads]
        counted = [layers.count(layer) for layer in sorted({*layers})]
        assert (
            counted == list(sizes)
            if where == "the same layers"
            else len(heads) == len({*heads}) == sum(sizes)
        )
    some, others = (interventions.random_sets(every, own, 4, seed)[0] for seed in (0, 1))
    assert len(some) == min(4, n_others)
    assert some != others or not named


def test_heads_of_a_report_are_a_set(bert):
    heads = tp.measure_attention(bert, TOPICS, DOCUMENTS, n_permutations=0, special_ids=()).heads
    top = heads.top(3, by="ratio")
    names = ",".join(
        f"{layer}.{head}" for layer, head in zip(top.index["layer"], top.index["head"], strict=True)
    )
    report = measure(bert, sets={"top": top, "named": names}, n_matched=0)
    assert report.index["heads"][0] == report.index["heads"][1]
    assert report.effect[0, 0] == report.effect[0, 1] != 0


def test_numbers_do_not_depend_on_batches_or_on_documents_without_words(bert, tmp_path):
    options = {"n_matched": 3, "sets": {"two": "0.1,1.0"}, "reference": DOCUMENTS[:5]}
    report = measure(bert, **options)
    other = measure(bert, [*[[3, 4, 3]] * 7, *DOCUMENTS], batch_size=1, **options)
    for name in ("effect", "null", "interval"):
        np.testing.assert_allclose(getattr(other, name), getattr(report, name), atol=1e-6)
    assert other.provenance["left_out"]["documents without a word of any topic"] == 7
    assert tp.load_report(report.save(tmp_path / "report")) == report
    empty = measure(bert, sets={"nothing": ""})
    assert (empty.effect.item(), empty.null.size) == (0.0, 0)


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_a_loss_is_that_of_the_next_token_or_of_masked_ones(name, monkeypatch):
    """With every position masked a document says nothing but how long it is."""
    monkeypatch.setattr(effects, "_MASKED", 1.0)
    model = tp.open_model(zoo.make(name))
    model.tokenizer = type("Tokenizer", (), {"mask_token_id": 3, "pad_token_id": 0, "all_special_ids": [3]})()
    report = measure(model, outcome="loss", sets={"nothing": ""}, kind="zero")
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
        (iter(DOCUMENTS), {}, "read twice"),
        (DOCUMENTS, {"sets": {"x": "9.0"}}, r"there is no head '9\.0'"),
        (DOCUMENTS[:1], {}, "not two sources"),
        (DOCUMENTS, {"outcome": "loss"}, "names no mask token"),
        (DOCUMENTS, {"outcome": lambda model, inputs: torch.zeros(3, 3)}, "one number for each of"),
    ):
        with pytest.raises(ValueError, match=message):
            measure(bert, documents, **options)


# ---------------------------------------------------------------------------- edges


def topic(word):
    return None if not 5 <= word < 40 else int(word >= 20)


@pytest.mark.parametrize("how", ["scores", "weights"])
@pytest.mark.parametrize("relation", ["own_topic", "different_topic"])
def test_what_the_toy_predicts_without_edges_is_the_closed_form(how, relation):
    """Under uniform attention, of documents with the exact frequencies of theory; but for the masked place's own edge.

    That edge is the mask's, which theory keeps. The other masked places of the topic show the mask, too, but they are
    words of the topic to a measurement that knows what was there: their edges are cut as well.
    """
    model, documents = known_toy.toy(W_V=known_toy.theorem_2()), known_toy.documents()
    report = tp.measure_knockout(
        model, known_toy.WORLD.blocks, documents, relation=relation, how=how, n_matched=0, special_ids=(),
        outcome=known_toy.prediction_of_target,
    )  # fmt: skip
    # By hand: W_V maps the mask's column and those of words to predictions; y are the frequencies that are left.
    W, n, v = known_toy.theorem_2(), 2 * known_toy.V * known_toy.TIMES, known_toy.V
    y = torch.zeros(known_toy.WORLD.vocabulary_size, dtype=torch.float64)
    y[0], y[1 : 2 * v + 1] = 2 * v, known_toy.TIMES - 1
    if relation == "own_topic":
        y[1 : v + 1] = 0
        y[0] -= v - 1
    else:
        y[v + 1 : 2 * v + 1] = 0
        y[0] -= v
    y /= y.sum() if how == "scores" else n
    assert report.outcome.item() == pytest.approx(0.05, abs=1e-12)
    assert (report.outcome - report.effect[:, 0]).item() == pytest.approx(float((W @ y)[1]), abs=1e-12)


@pytest.fixture
def cuts(monkeypatch):
    """A report, and what is given to the model for it: by site the edges of a document, time after time."""
    cut = interventions.cut_edges

    def measure(name, documents, **options):
        given = []
        monkeypatch.setattr(
            interventions,
            "cut_edges",
            lambda model, sites, how: given.append(sites) or cut(model, sites, how=how),
        )
        options = {"special_ids": (4,), "batch_size": 1, **options}
        return tp.measure_knockout(zoo.make(name), TOPICS, documents, **options), given

    return measure


def by_document(given):
    """The ids of every document, which is known by its length, and the tables of its edges."""
    tables = [next(iter(sites.values()))[0, 0].numpy() for sites in given]
    for ids in CUT:
        yield ids, [table for table in tables if len(table) == len(ids)]


@pytest.mark.parametrize("relation", ["same_topic", "different_topic", "same_word", "own_topic"])
def test_the_edges_that_are_cut_are_those_of_the_relation(relation, cuts):
    report, given = cuts("bert", CUT, relation=relation, n_matched=0)
    n_cut = 0
    for ids, (own,) in by_document(given):
        n_cut += own.sum()
        for (i, j), edge in np.ndenumerate(own):
            of = {topic(ids[i]), topic(ids[j])}
            same_word = ids[i] == ids[j] and i != j and None not in of
            same_topic = len(of) == 1 and None not in of and ids[i] != ids[j]
            expected = {
                "same_topic": same_topic, "different_topic": of == {0, 1}, "same_word": same_word,
                "own_topic": same_topic or same_word,
            }[relation]  # fmt: skip
            assert edge == expected, (ids, i, j)
    assert report.provenance["edges"] == {"cut": n_cut, "matched": None}


def test_other_edges_stand_in_the_same_rows_at_nearly_the_same_distance(cuts):
    report, given = cuts("bert", CUT, relation="same_topic", n_matched=3)
    found = list(by_document(given))
    n_cut = sum(own.sum() for _, (own, *_) in found)
    n_matched = sum(table.sum() for _, (_, *others) in found for table in others)
    assert report.provenance["edges"] == {"cut": n_cut, "matched": pytest.approx(n_matched / (3 * n_cut))}
    assert n_matched > 0.5 * 3 * n_cut
    for ids, (own, *others) in found:
        for table in others:
            for i, row in enumerate(table):
                wanted, instead = (np.abs(i - np.flatnonzero(part)) for part in (own[i], row))
                assert len(instead) <= len(wanted)
                off = np.abs(instead[:, None] - wanted)
                assert (off <= np.maximum(1, 0.2 * wanted)).any(1).all()
                for j in np.flatnonzero(row):  # never itself, its word, or another word of the topic
                    assert i != j
                    assert ids[i] != ids[j]
                    assert topic(ids[i]) != topic(ids[j])
    assert any((others[0] != others[1]).any() for _, (_, *others) in found)  # draws differ


def test_a_causal_loss_is_cut_where_the_word_is_predicted(cuts):
    """The row before a word; nothing that comes later, and not the first position, which is a sink."""
    _, given = cuts("gpt2", CUT, outcome="loss", n_matched=3)
    for ids, (own, *others) in by_document(given):
        for (i, j), edge in np.ndenumerate(own):
            word = ids[i + 1] if i + 1 < len(ids) else None
            same = word is not None and topic(word) is not None and topic(word) == topic(ids[j])
            assert edge == (same and 0 < j <= i and word != ids[j])
        for table in others:
            assert not np.triu(table, 1).any()
            assert not table[:, 0].any()


def test_edges_are_cut_in_the_layers_and_for_the_heads_that_are_named(cuts):
    (whole,), (of_heads,), (of_layers,) = (
        cuts("bert", CUT[-1:], n_matched=0, **chosen)[1]
        for chosen in ({}, {"heads": "0.1,2.0"}, {"heads": "1"})
    )
    assert [[site.layer for site in part] for part in (whole, of_heads, of_layers)] == [
        [0, 1, 2],
        [0, 2],
        [1],
    ]
    table = next(iter(whole.values()))[:, 0]
    assert table.any()
    for site, found in of_heads.items():
        for head in range(zoo.HEADS):
            assert torch.equal(found[:, head], table & ((site.layer, head) in ((0, 1), (2, 0))))


def test_nothing_is_lost_where_nothing_is_cut_and_batches_change_nothing(tmp_path):
    model, options = zoo.opened("bert").hooked, {"special_ids": (), "n_matched": 2}
    none = tp.measure_knockout(model, TOPICS, CUT, heads="", **options)
    assert none.effect.tolist() == [[0.0]]
    some = tp.measure_knockout(model, TOPICS, CUT, **options)
    assert some.effect.item() != 0
    assert tp.load_report(some.save(tmp_path / "report")) == some
    one_by_one = tp.measure_knockout(model, TOPICS, CUT, batch_size=1, **options)
    np.testing.assert_allclose(one_by_one.effect, some.effect, atol=1e-6)
    np.testing.assert_allclose(one_by_one.null, some.null, atol=1e-6)
