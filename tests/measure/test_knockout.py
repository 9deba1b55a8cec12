"""Knock-out: known answers of the toy, the edges that are cut, and those that are cut instead of them."""

import known_toy
import numpy as np
import pytest
import torch
import zoo

import topic_probe as tp
from topic_probe.lens import capture
from topic_probe.measure.knockout import CODES, Cuts, _Edges, chosen_sites
from topic_probe.measure.outcomes import LookedAt
from topic_probe.measure.patterns import units_of
from topic_probe.text.batches import token_batches
from topic_probe.topics import Topics

TOPICS = Topics.from_token_ids(
    {"one": list(range(5, 20)), "two": list(range(20, 40))}, vocabulary_size=zoo.VOCABULARY
)


DOCUMENTS = zoo.lists((12, 9, 14, 20, 11, 16, 13, 10, 18, 15))


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
    expected = float((W @ y)[1])
    assert report.outcome.item() == pytest.approx(0.05, abs=1e-12)
    assert (report.outcome - report.effect[:, 0]).item() == pytest.approx(expected, abs=1e-12)


def cuts_of(model, documents, relation, n_matched, *, outcome="states", earlier=False):
    """The edges that are cut in every document: of the relation, and those instead."""
    view = capture.view(model)
    batch = next(iter(token_batches(documents, special_ids=(4,), first_is_sink=view.is_causal)))
    units = units_of(batch, TOPICS)
    looked_at = LookedAt(outcome, mask_share=0.2).of(view, TOPICS, seed=0)
    sites = dict.fromkeys(view.sites)
    cuts = Cuts(view, TOPICS, sites, CODES[relation], "scores", n_matched, 0, earlier=earlier)
    asked = looked_at.ask(batch, units)
    found = [cuts._of_document(asked, row) for row in range(len(batch))]
    ids = [ids[mask].tolist() for ids, mask in zip(batch.ids, batch.mask, strict=True)]
    return ids, [[edges.edges(number) for number in range(1 + n_matched)] for edges in found]


def topic(word):
    return None if not 5 <= word < 40 else int(word >= 20)


@pytest.mark.parametrize("relation", ["same_topic", "different_topic", "same_word"])
def test_the_edges_that_are_cut_are_those_of_the_relation(relation):
    model = tp.open_model(zoo.make("bert"))
    for ids, (own,) in zip(*cuts_of(model, DOCUMENTS, relation, 0), strict=True):
        for i, one in enumerate(ids):
            for j, other in enumerate(ids):
                same = topic(one) is not None and topic(one) == topic(other)
                different = None not in (topic(one), topic(other)) and not same
                expected = {
                    "same_topic": same and one != other,
                    "different_topic": different,
                    "same_word": same and one == other and i != j,
                }[relation]
                assert bool(own[i, j]) == expected, (ids, i, j)


def test_other_edges_stand_in_the_same_rows_at_nearly_the_same_distance():
    model = tp.open_model(zoo.make("bert"))
    seen = set()
    for ids, (own, *others) in zip(*cuts_of(model, DOCUMENTS, "same_topic", 3), strict=True):
        for table in others:
            for i, row in enumerate(table):
                wanted = sorted(abs(i - j) for j in own[i].nonzero().flatten().tolist())
                given = sorted(abs(i - j) for j in row.nonzero().flatten().tolist())
                assert len(given) <= len(wanted)
                for distance in given:
                    assert any(abs(distance - near) <= max(1, 0.2 * near) for near in wanted)
                for j in row.nonzero().flatten().tolist():
                    same = topic(ids[i]) is not None and topic(ids[i]) == topic(ids[j])
                    assert j < len(ids)
                    assert i != j
                    assert not same
        seen.add(tuple(map(bool, [torch.equal(others[0], others[1])])))
    assert (False,) in seen  # draws differ


def only_edges(rows, keys, free, length=12):
    """The edges that stand in for those of a document, drawn once."""
    table = torch.zeros(length, length, dtype=torch.bool)
    for row, key in free:
        table[row, key] = True
    edges = _Edges(torch.tensor(rows), torch.tensor(keys), table, length, np.random.default_rng(0))
    return {tuple(pair) for pair in edges.edges(1).nonzero().tolist()}


def test_what_stands_in_is_near_and_taken_once():
    assert only_edges([0], [10], [(0, 1)]) == set()  # 1 is no stand-in for 10
    assert only_edges([0], [10], [(0, 9), (0, 1)]) == {(0, 9)}
    assert only_edges([5, 5], [3, 7], [(5, 8), (5, 9)]) == {
        (5, 8)
    }  # at distances 2 and 2: 3 is near, 4 is not
    assert only_edges([5, 5], [3, 7], [(5, 8), (5, 2)]) == {(5, 8), (5, 2)}


def test_the_same_word_never_stands_in_for_others_of_its_topic():
    model = tp.open_model(zoo.make("bert"))
    documents = [[7, 7, 8, 7, 50, 7, 8, 25, 7, 60, 8, 7]] * 2
    for ids, (_, *others) in zip(*cuts_of(model, documents, "same_topic", 5), strict=True):
        pairs = [pair for table in others for pair in table.nonzero().tolist()]
        assert pairs
        assert all(ids[i] != ids[j] for i, j in pairs)


def test_edges_are_cut_for_the_heads_that_are_named():
    model = tp.open_model(zoo.make("bert"))
    view = capture.view(model)
    sites = chosen_sites(view, None, "0.1,2.0")
    cuts = Cuts(view, TOPICS, sites, CODES["same_topic"], "scores", 0, 0, earlier=False)
    table = torch.eye(4, dtype=torch.bool)[None]
    found = {site.layer: cut for site, cut in cuts._by_site(table).items()}
    assert set(found) == {0, 2}
    for layer, head in ((0, 1), (2, 0)):
        for number in range(view.n_heads[layer]):
            assert torch.equal(
                found[layer][0, number], table[0] if number == head else torch.zeros_like(table[0])
            )


def test_a_causal_loss_is_cut_where_the_word_is_predicted():
    """The row before a word; nothing that comes later, and not the first position, which is a sink."""
    model = tp.open_model(zoo.make("gpt2"))
    for ids, (own, other) in zip(
        *cuts_of(model, DOCUMENTS, "same_topic", 1, outcome="loss", earlier=True), strict=True
    ):
        for i, row in enumerate(own[: len(ids)]):
            for j in range(len(ids)):
                word = ids[i + 1] if i + 1 < len(ids) else None
                same = word is not None and topic(word) is not None and topic(word) == topic(ids[j])
                expected = same and 0 < j <= i and word != ids[j] and i + 1 > 0
                assert bool(row[j]) == expected
        assert not bool(other.triu(1).any())
        assert not bool(other[:, 0].any())


def test_nothing_is_lost_where_nothing_is_cut(tmp_path):
    """Documents of one word each have no edges of the relation: the effect is exactly nothing."""
    model = tp.open_model(zoo.make("bert"))
    documents = [[7, 7, 50, 60, 7], [25, 41, 25, 43, 44, 25]] * 5
    report = tp.measure_knockout(
        model, TOPICS, documents, relation="different_topic", special_ids=(), n_matched=2
    )
    assert report.provenance["edges"] == {"cut": 0, "matched": 0.0}
    mixed = [[7, 8, 50, 60, 25], [25, 41, 26, 43, 44, 9], *DOCUMENTS]
    none = tp.measure_knockout(
        model, TOPICS, mixed, relation="same_topic", heads="", special_ids=(), n_matched=0
    )
    assert none.effect.tolist() == [[0.0]]
    some = tp.measure_knockout(model, TOPICS, mixed, special_ids=(), n_matched=3)
    assert some.effect.item() != 0
    assert tp.load_report(some.save(tmp_path / "report")) == some
    one_by_one = tp.measure_knockout(model, TOPICS, mixed, special_ids=(), n_matched=3, batch_size=1)
    np.testing.assert_allclose(one_by_one.effect, some.effect, atol=1e-6)
    np.testing.assert_allclose(one_by_one.null, some.null, atol=1e-6)


def test_layers_and_heads_that_there_are_not_are_refused():
    model = tp.open_model(zoo.make("bert"))
    with pytest.raises(ValueError, match="no layer 7 that attends: it has 0 to 2"):
        tp.measure_knockout(model, TOPICS, DOCUMENTS, layers=[7])
    with pytest.raises(ValueError, match=r"no head '0\.99'"):
        tp.measure_knockout(model, TOPICS, DOCUMENTS, heads="0.99")
    with pytest.raises(ValueError, match="give one of them"):
        tp.measure_knockout(model, TOPICS, DOCUMENTS, heads="0.0", layers=[0])
