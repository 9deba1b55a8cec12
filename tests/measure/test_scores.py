"""Scoring of batches: against plain double loops, and without a number or a tensor that leaves the model's device."""

import itertools
from contextlib import suppress

import numpy as np
import pytest
import torch
import zoo
from hand_scores import add
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import masking_utils

import topic_probe as tp
from topic_probe.lens import capture
from topic_probe.lens.running import exact_products
from topic_probe.measure.accumulators import Distances, Relations, Sinks
from topic_probe.measure.engine import Engine
from topic_probe.measure.matching import Classes, PairTable, pair_codes
from topic_probe.measure.nulls import Null
from topic_probe.measure.options import Patterns
from topic_probe.measure.patterns import PatternReader
from topic_probe.measure.scores import DISTANCE_BINS, BatchScores, Pairs, Rows, Units
from topic_probe.text.batches import token_batches
from topic_probe.text.documents import read_documents

# Word 2 is in two topics; 10 and 11 are words of several tokens beyond the vocabulary.
FEW_LISTS = {"a": [0, 1, 2, 3], "b": [2, 4, 5, 6], "c": [7, 8, 9]}
MANY_LISTS = {str(topic): range(3 * topic, 3 * topic + 4) for topic in range(40)}
N_PERMUTATIONS = 4


def some_words(generator, topics, length, *, split):
    """Words of topics at some positions of a document, some of several positions, in their order."""
    positions, entries, unit_of, firsts = [], [], [], []
    at = int(generator.integers(1, 3))  # the first position is a sink
    while at < length:
        n = min(int(generator.integers(1, 4)) if split else 1, length - at)
        positions += range(at, at + n)
        unit_of += [len(entries)] * n
        firsts.append(at)
        entries.append(int(generator.choice(topics.words.numpy())))
        at += n + int(generator.integers(0, 3))
    entries = torch.tensor(entries, dtype=torch.int64)
    parts = (torch.tensor(part, dtype=torch.int64) for part in (firsts, positions, unit_of))
    return Units(entries, topics.places(entries), *parts)


class Document:
    """Attention of a document, and what a double loop says of it."""

    def __init__(self, generator, topics, kind, n, length, n_cells, *, split):
        self.cross, m = kind == "cross", n + 3 * (kind == "cross")
        self.key = some_words(generator, topics, length, split=split)
        self.query = some_words(generator, topics, min(n, length), split=split) if self.cross else self.key
        offset = np.arange(m) - np.arange(n)[:, None]
        masks = {"causal": offset <= 0, "banded": abs(offset) <= 3}
        self.seen = np.tile(np.arange(m) < length, (n, 1)) & masks.get(kind, True)
        weights = np.exp(np.where(self.seen, generator.normal(size=(n_cells, n, m)), -np.inf))
        self.pattern = weights / weights.sum(-1, keepdims=True).clip(1e-9)

    def pairs(self, member, *, without_sinks=False):
        """Every pair of words that see each other: numbers, relation, distance and the score of every cell."""
        pattern, uniform = self.pattern, self.seen / self.seen.sum(1)[:, None].clip(1)
        if without_sinks:
            rest = 1 - pattern[..., :1]
            pattern = np.where(rest > 1e-6, pattern / rest.clip(1e-6), 0)
            seen = self.seen & (np.arange(self.seen.shape[1]) > 0)
            uniform = seen / seen.sum(1)[:, None].clip(1)
        members = [
            [words.positions[words.unit_of == n].numpy() for n in range(len(words))]
            for words in (self.query, self.key)
        ]
        for (i, rows), (j, columns) in itertools.product(*(enumerate(part) for part in members)):
            expected = uniform[np.ix_(rows, columns)].sum() / len(rows)
            if expected > 0:
                got = pattern[:, rows][:, :, columns].sum((1, 2)) / len(rows)
                one, other = int(self.query.entries[i]), int(self.key.entries[j])
                relation = 0 if one == other else 1 if member[one] & member[other] else 2
                yield i, j, relation, abs(int(rows[0] - columns[0])), got / expected


def of_batch(documents, topics, n_cells):
    """The scores of documents, padded, as a reader makes them."""
    query, key = ([getattr(document, side) for document in documents] for side in ("query", "key"))
    n, m = (max(len(words.positions) for words in side) for side in (query, key))
    pairs = Pairs.of(query, key if documents[0].cross else query, topics, shape=(n, m))
    d = len(documents)
    patterns, visible = torch.zeros(d, n_cells, n, m), torch.zeros(d, n, m, dtype=torch.bool)
    n_visible, n_sinks, (mass, rest) = torch.ones(d, n), torch.zeros(d, n), torch.zeros(2, d, n_cells, n)
    for number, own in enumerate(documents):
        rows, columns = own.query.positions.numpy(), own.key.positions.numpy()
        chosen, at = torch.from_numpy(own.pattern[:, rows]), slice(len(rows))
        patterns[number, :, at, : len(columns)] = chosen[:, :, columns]
        visible[number, at, : len(columns)] = torch.from_numpy(own.seen[np.ix_(rows, columns)])
        n_visible[number, at] = torch.from_numpy(own.seen[rows].sum(1)).float()
        n_sinks[number, at] = torch.from_numpy(own.seen[rows][:, 0]).float()
        mass[number, :, at], rest[number, :, at] = chosen[..., 0], chosen[..., 1:].sum(-1)
    rows = Rows(patterns, visible, n_visible, n_sinks, mass, rest)
    values, seen = rows.relative(pairs.pieces, n_visible)
    return BatchScores(np.arange(d), n_cells, np.arange(n_cells), values, seen, pairs, rows)


def near(found, expected):
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize(
    ("kind", "split", "lists", "n_cells"),
    [
        ("whole", True, FEW_LISTS, 3),
        ("causal", False, FEW_LISTS, 3),
        ("banded", True, FEW_LISTS, 3),
        ("cross", True, FEW_LISTS, 3),
        ("whole", False, MANY_LISTS, 300),  # so few pairs share a topic that they are looked up one by one
        ("cross", False, MANY_LISTS, 300),
    ],
)
def test_all_sums_of_a_batch_are_those_of_a_double_loop(kind, split, lists, n_cells):
    topics = tp.Topics.from_token_ids(lists, vocabulary_size=130)
    member = {word: {name for name, ids in lists.items() if word in ids} for word in topics.words.tolist()}
    generator = np.random.default_rng(5)
    documents = [
        Document(generator, topics, kind, 24, length, n_cells, split=split) for length in (24, 17, 9, 1)
    ]
    same, place = topics.incidence.sharing(*2 * [topics.group_of_word]), torch.arange(len(topics.words)) % 2
    codes = pair_codes(place[:, None] + place, same, ~same)  # classes 0, 1 and 2
    relations, distances, sinks = Relations(), Distances(n_cells), Sinks(n_cells)
    null = Null(topics, N_PERMUTATIONS, 0, n_cells)
    classes, table = Classes(codes, (3, 8), n_cells), PairTable(codes)
    scores = of_batch(documents, topics, n_cells)
    for accumulator in (relations, distances, sinks, null, classes, table):
        add(accumulator, scores)
    shape, n_bins = (n_cells, len(DISTANCE_BINS) + 1, 3), len(DISTANCE_BINS) + 1
    binned, n_binned, squares, without = (np.zeros(s) for s in (shape, shape, shape[:2], (n_cells, 3)))
    shared, by_bin, n_by_bin = (np.zeros((n, N_PERMUTATIONS)) for n in (n_cells, n_bins, n_bins))
    by_class, by_source = np.zeros((n_cells, 3, 3, 3)), np.zeros((len(documents), n_cells, 3))
    incidence = topics.incidence.table.toarray()
    for source, own in enumerate(documents):
        for i, j, relation, distance, values in own.pairs(member):
            at = sum(edge <= distance for edge in DISTANCE_BINS)
            binned[:, at, relation] += values
            n_binned[:, at, relation] += 1
            by_source[source, :, relation] += values
            if relation:
                squares[:, at] += values**2
                one, other = int(own.query.places[i]), int(own.key.places[j])
                by_class[:, one % 2 + other % 2, sum(edge <= distance for edge in (3, 8)), relation] += values
                share = (incidence[null.groups[one]] & incidence[null.groups[other]]).any(1)
                shared += values[:, None] * share
                by_bin[at] += values.sum() * share
                n_by_bin[at] += share
        for _, _, relation, _, values in own.pairs(member, without_sinks=True):
            without[:, relation] += values
    near(distances.sums["binned"], binned)
    np.testing.assert_array_equal(distances.sums["n_binned"], n_binned)
    near(distances.sums["squares_binned"], squares)
    near(relations.by_source.rows()[1][..., :3], by_source)
    near(relations.by_source.rows()[1][..., 6].sum(0), squares.sum(1))
    near(sinks.sums["without_sinks"], without)
    rows = [own.query.positions.numpy() for own in documents]
    mass = sum(own.pattern[:, at, 0].sum(1) for own, at in zip(documents, rows, strict=True))
    near(sinks.sums["sink_mass"], mass)
    np.testing.assert_array_equal(sinks.sums["n_rows"], sum(map(len, rows)))
    near(null.sums["null"], shared)
    near(null.sums["binned_null"], by_bin)
    np.testing.assert_array_equal(null.sums["n_null"], np.tile(n_by_bin.sum(0), (n_cells, 1)))
    np.testing.assert_array_equal(null.sums["n_binned_null"], n_cells * n_by_bin)
    near(classes.by_head.reshape(by_class.shape), by_class)
    near(classes.by_source.rows()[1][..., :3].sum(0).reshape(by_class.shape[1:]), by_class.sum(0))
    assert table.sums["table"].sum() == pytest.approx(by_class.sum(), rel=1e-6)


# --- where the model runs ---------------------------------------------------------------------------


class Transfers(TorchDispatchMode):
    """Counts what leaves a device without numbers (meta), where ones arrive, and refuses what mixes the two."""

    to_host, mixed = 0, ()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        tensors = [part for part in tree_leaves((args, kwargs)) if isinstance(part, torch.Tensor)]
        there = [tensor.device.type == "meta" for tensor in tensors]
        if function == torch.ops.aten._to_copy.default:
            target = torch.device((kwargs or {}).get("device") or tensors[0].device).type
            if there[0] and target == "cpu":
                self.to_host += tensors[0].nbytes
                return torch.ones(tensors[0].shape, dtype=tensors[0].dtype)
        elif any(there) and not all(there):
            self.mixed += (str(function),)
        return function(*args, **(kwargs or {}))


def test_no_number_is_looked_at_while_a_batch_is_scored_and_little_comes_back(monkeypatch):
    """On meta, whatever looks at a number raises."""
    lists = {"one": range(10, 35), "two": range(30, 55), "three": range(55, 75)}
    topics, host = (
        tp.Topics.from_token_ids(lists, vocabulary_size=zoo.VOCABULARY),
        tp.open_model(zoo.make("bert")),
    )
    documents = torch.randint(5, 97, (16, 64), generator=torch.Generator().manual_seed(0)).tolist()
    # To know whether the fused kernel needs a mask, transformers looks at one.
    skipped = "_ignore_bidirectional_mask_sdpa"
    monkeypatch.setattr(masking_utils, skipped, lambda *_, **__: False, raising=False)
    reader = PatternReader(capture.view(host, topics), topics, Patterns(through="rows"), include_self=False)
    host.to("meta")  # it was looked at, and then leaves its numbers behind
    n, same = reader.n_cells, topics.incidence.sharing(*2 * [topics.group_of_word])
    codes = pair_codes(torch.zeros(len(same), len(same), dtype=torch.int64), same, ~same)
    accumulators = [Relations(n_cells=n), Distances(n), Sinks(n), Null(topics, 50, 0, n)]
    engine = Engine(reader, [*accumulators, Classes(codes, DISTANCE_BINS[:3], n), PairTable(codes)])
    [batch] = token_batches(read_documents(documents), batch_size=16, special_ids={0, 1})
    with Transfers() as transfers:
        engine.add(batch)
    assert transfers.mixed == ()
    assert 0 < transfers.to_host / 16 < 40_000


def test_products_are_exact_where_batches_are_scored_and_as_they_were_afterwards():
    """TF32 is a setting of the process that a model without numbers shows as well as a GPU."""
    matmul, seen = torch.backends.cuda.matmul, []
    # Versions of torch with the newer name do not show the older one while it is set.
    new = hasattr(matmul, "fp32_precision")
    name, fast, exact = ("fp32_precision", "tf32", "ieee") if new else ("allow_tf32", True, False)
    before = getattr(matmul, name)
    setattr(matmul, name, fast)
    try:
        with suppress(KeyError), exact_products(zoo.make("bert").to("meta")):
            seen.append(getattr(matmul, name))
            raise KeyError("something else")
        assert (seen, getattr(matmul, name)) == ([exact], fast)
    finally:
        setattr(matmul, name, before)
