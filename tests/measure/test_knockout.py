"""Knock-out: known answers of the toy, the edges that are cut, and those that are cut instead of them."""

import known_toy
import numpy as np
import pytest
import torch
import zoo

import topic_probe as tp
from topic_probe.measure import knockout
from topic_probe.topics import Topics

LISTS = {"one": list(range(5, 20)), "two": list(range(20, 40))}
TOPICS = Topics.from_token_ids(LISTS, vocabulary_size=zoo.VOCABULARY)
DOCUMENTS = [*zoo.lists((12, 9, 14, 20, 11, 16)), [7, 7, 8, 7, 50, 7, 8, 25, 7, 60, 8, 7, 51, 52, 53]]


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
    cut = knockout.cut_edges

    def measure(name, documents, **options):
        given = []
        monkeypatch.setattr(
            knockout, "cut_edges", lambda model, sites, how: given.append(sites) or cut(model, sites, how=how)
        )
        options = {"special_ids": (4,), "batch_size": 1, **options}
        return tp.measure_knockout(zoo.make(name), TOPICS, documents, **options), given

    return measure


def by_document(given):
    """The ids of every document, which is known by its length, and the tables of its edges."""
    tables = [next(iter(sites.values()))[0, 0].numpy() for sites in given]
    for ids in DOCUMENTS:
        yield ids, [table for table in tables if len(table) == len(ids)]


@pytest.mark.parametrize("relation", ["same_topic", "different_topic", "same_word", "own_topic"])
def test_the_edges_that_are_cut_are_those_of_the_relation(relation, cuts):
    report, given = cuts("bert", DOCUMENTS, relation=relation, n_matched=0)
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
    report, given = cuts("bert", DOCUMENTS, relation="same_topic", n_matched=3)
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
    _, given = cuts("gpt2", DOCUMENTS, outcome="loss", n_matched=3)
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
        cuts("bert", DOCUMENTS[:1], n_matched=0, **chosen)[1]
        for chosen in ({}, {"heads": "0.1,2.0"}, {"layers": [1]})
    )
    assert [[site.layer for site in part] for part in (whole, of_heads, of_layers)] == [
        [0, 1, 2],
        [0, 2],
        [1],
    ]
    table = next(iter(whole.values()))[:, 0]
    for site, found in of_heads.items():
        for head in range(zoo.HEADS):
            assert torch.equal(found[:, head], table & ((site.layer, head) in ((0, 1), (2, 0))))


def test_nothing_is_lost_where_nothing_is_cut_and_batches_change_nothing(tmp_path):
    model, options = zoo.opened("bert").hooked, {"special_ids": (), "n_matched": 2}
    none = tp.measure_knockout(model, TOPICS, DOCUMENTS, heads="", **options)
    assert none.effect.tolist() == [[0.0]]
    some = tp.measure_knockout(model, TOPICS, DOCUMENTS, **options)
    assert some.effect.item() != 0
    assert tp.load_report(some.save(tmp_path / "report")) == some
    one_by_one = tp.measure_knockout(model, TOPICS, DOCUMENTS, batch_size=1, **options)
    np.testing.assert_allclose(one_by_one.effect, some.effect, atol=1e-6)
    np.testing.assert_allclose(one_by_one.null, some.null, atol=1e-6)


def test_layers_and_heads_that_there_are_not_are_refused():
    for options, message in (
        ({"layers": [7]}, "no layer 7 that attends: it has 0 to 2"),
        ({"heads": "0.99"}, r"no head '0\.99'"),
        ({"heads": "0.0", "layers": [0]}, "give one of them"),
    ):
        with pytest.raises(ValueError, match=message):
            tp.measure_knockout(zoo.opened("bert").hooked, TOPICS, DOCUMENTS, **options)
