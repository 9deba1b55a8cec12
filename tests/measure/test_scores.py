"""Scoring of batches: against plain double loops, and without a number or a tensor that leaves the model's device."""

import itertools

import numpy as np
import pytest
import torch
from hand_scores import add
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import BertConfig, BertModel, masking_utils

import topic_probe as tp
from topic_probe.lens import capture
from topic_probe.lens.running import exact_products
from topic_probe.measure import nulls
from topic_probe.measure import scores as scores_module
from topic_probe.measure.accumulators import Distances, Relations, Sinks
from topic_probe.measure.embeddings import StateReader
from topic_probe.measure.engine import Engine
from topic_probe.measure.matching import Classes, PairTable, pair_codes
from topic_probe.measure.nulls import Null
from topic_probe.measure.options import Patterns
from topic_probe.measure.patterns import PatternReader
from topic_probe.measure.scores import DISTANCE_BINS, BatchScores, Pairs, Rows, Units
from topic_probe.text.batches import token_batches

# Words 0 … 11; 2 is in both of the first two topics, and 10 and 11 are words of several tokens beyond the vocabulary.
LISTS = {"a": [0, 1, 2, 3], "b": [2, 4, 5, 6], "c": [7, 8, 9]}
N_CELLS, N_PERMUTATIONS = 3, 4


def overlapping():
    return tp.Topics.from_token_ids(LISTS, vocabulary_size=12)


def some_words(generator, topics, length, *, split):
    """Words of topics at some positions of a document, some of several positions, in their order."""
    positions, entries, unit_of, firsts = [], [], [], []
    at = int(generator.integers(1, 3))  # the first position is a sink
    while at < length:
        n = int(generator.integers(1, 4)) if split else 1
        n = min(n, length - at)
        positions += range(at, at + n)
        unit_of += [len(entries)] * n
        firsts.append(at)
        entries.append(int(generator.choice(topics.words.numpy())))
        at += n + int(generator.integers(0, 3))
    entries = torch.tensor(entries, dtype=torch.int64)
    parts = (torch.tensor(part, dtype=torch.int64) for part in (firsts, positions, unit_of))
    return Units(entries, topics.places(entries), *parts)


def masked(generator, kind, n, m, length):
    """Which of m keys n queries see, in a document of so many tokens."""
    real = np.arange(m) < length
    seen = np.tile(real, (n, 1))
    offset = np.arange(m) - np.arange(n)[:, None]
    if kind == "causal":
        seen &= offset <= 0
    if kind == "banded":
        seen &= abs(offset) <= 3
    return seen


class Document:
    """Attention of a document, and what a double loop says of it."""

    def __init__(self, generator, topics, kind, n, length, *, split):
        cross = kind == "cross"
        m = n + 3 if cross else n
        self.topics, self.cross = topics, cross
        self.key = some_words(generator, topics, length, split=split)
        self.query = some_words(generator, topics, min(n, length), split=split) if cross else self.key
        self.seen = masked(generator, kind, n, m, length)
        scores = np.where(self.seen, generator.normal(size=(N_CELLS, n, m)), -np.inf)
        weights = np.exp(scores)
        self.pattern = weights / weights.sum(-1, keepdims=True).clip(1e-9)
        self.sinks = np.arange(m) == 0

    def pairs(self, *, without_sinks=False):
        """Every pair of words that see each other: numbers, relation, distance and the score of every cell."""
        pattern, seen = self.pattern, self.seen
        if without_sinks:
            rest = 1 - pattern[..., self.sinks].sum(-1, keepdims=True)
            pattern = np.where(rest > 1e-6, pattern / rest.clip(1e-6), 0)
            seen = seen & ~self.sinks
        uniform = self.seen / seen.sum(1)[:, None].clip(1)
        members = [
            [words.positions[words.unit_of == n].numpy() for n in range(len(words))]
            for words in (self.query, self.key)
        ]
        for (i, rows), (j, columns) in itertools.product(*(enumerate(part) for part in members)):
            expected = uniform[np.ix_(rows, columns)].sum() / len(rows)
            if expected > 0:
                got = pattern[:, rows][:, :, columns].sum((1, 2)) / len(rows)
                yield i, j, self.relation(i, j), abs(int(rows[0] - columns[0])), got / expected

    def relation(self, i, j):
        one, other = int(self.query.entries[i]), int(self.key.entries[j])
        if one == other:
            return 0
        return 1 if any(one in words and other in words for words in LISTS.values()) else 2


def of_batch(documents, topics, dtype=torch.float32):
    """The scores of documents, padded, as a reader makes them."""
    n = max(len(document.query.positions) for document in documents)
    m = max(len(document.key.positions) for document in documents)
    query = [document.query for document in documents]
    key = query if not documents[0].cross else [document.key for document in documents]
    pairs = Pairs.of(query, key, topics, shape=(n, m))
    patterns = torch.zeros(len(documents), N_CELLS, n, m, dtype=dtype)
    visible = torch.zeros(len(documents), n, m, dtype=torch.bool)
    n_visible, n_sinks = (
        torch.ones(len(documents), n, dtype=dtype),
        torch.zeros(len(documents), n, dtype=dtype),
    )
    mass, rest = torch.zeros(2, len(documents), N_CELLS, n, dtype=dtype)
    for number, document in enumerate(documents):
        rows, columns = document.query.positions.numpy(), document.key.positions.numpy()
        chosen = torch.from_numpy(document.pattern[:, rows])
        patterns[number, :, : len(rows), : len(columns)] = chosen[:, :, columns]
        visible[number, : len(rows), : len(columns)] = torch.from_numpy(document.seen[np.ix_(rows, columns)])
        n_visible[number, : len(rows)] = torch.from_numpy(document.seen[rows].sum(1))
        n_sinks[number, : len(rows)] = torch.from_numpy(document.seen[rows][:, document.sinks].sum(1))
        mass[number, :, : len(rows)] = chosen[:, :, document.sinks].sum(-1)
        others = np.setdiff1d(np.arange(chosen.shape[2]), np.arange(chosen.shape[2])[document.sinks])
        rest[number, :, : len(rows)] = chosen[:, :, others].sum(-1)
    rows = Rows(patterns, visible, n_visible, n_sinks, mass, rest)
    values, seen = rows.relative(pairs.pieces, n_visible)
    cells = np.arange(N_CELLS)
    return BatchScores(np.arange(len(documents)), N_CELLS, cells, values, seen, pairs, rows)


def a_batch(number):
    """Documents of one of fifty shapes."""
    generator = np.random.default_rng(number)
    kind = ("whole", "causal", "banded", "cross")[number % 4]
    split, topics = number % 3 == 0, overlapping()
    n = int(generator.integers(5, 40))
    lengths = [n, *generator.integers(1, n + 1, int(generator.integers(0, 4))).tolist()]
    return topics, [Document(generator, topics, kind, n, length, split=split) for length in lengths]


def near(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("number", range(50))
def test_sums_of_a_batch_are_those_of_a_double_loop(number, monkeypatch):
    # Pairs that share a permuted topic are looked up, and are multiplied.
    monkeypatch.setattr(nulls, "_are_few", lambda *_: number // 4 % 2 == 0)
    topics, documents = a_batch(number)
    scores = of_batch(documents, topics)
    relations, distances, null = Relations(), Distances(N_CELLS), Null(topics, N_PERMUTATIONS, 0, N_CELLS)
    codes = pair_codes(torch.zeros(len(topics.words), len(topics.words), dtype=torch.int64),
                       (same := topics.incidence.sharing(*2 * [topics.group_of_word])), ~same)  # fmt: skip
    classes, table = Classes(codes, (3, 8), N_CELLS), PairTable(codes)
    for accumulator in (relations, distances, null, classes, table):
        add(accumulator, scores)
    shape = (N_CELLS, len(DISTANCE_BINS) + 1, 3)
    binned, n_binned, squares = np.zeros(shape), np.zeros(shape), np.zeros(shape[:2])
    by_bin = (len(DISTANCE_BINS) + 1, N_PERMUTATIONS)
    shared, binned_shared, n_shared = (np.zeros(n) for n in ((N_CELLS, N_PERMUTATIONS), by_bin, by_bin))
    by_class = np.zeros((N_CELLS, 3, 3))
    by_source = np.zeros((len(documents), N_CELLS, 3))
    incidence = topics.incidence.table.toarray()
    for source, document in enumerate(documents):
        for i, j, relation, distance, values in document.pairs():
            bin_ = sum(edge <= distance for edge in DISTANCE_BINS)
            binned[:, bin_, relation] += values
            n_binned[:, bin_, relation] += 1
            by_source[source, :, relation] += values
            if relation:
                squares[:, bin_] += values**2
                by_class[:, sum(edge <= distance for edge in (3, 8)), relation] += values
                one, other = (int(words.places[n]) for words, n in ((document.query, i), (document.key, j)))
                share = (incidence[null.groups[one]] & incidence[null.groups[other]]).any(1)
                shared += values[:, None] * share
                binned_shared[bin_] += values.sum() * share
                n_shared[bin_] += share
    near(distances.sums["binned"], binned)
    np.testing.assert_array_equal(distances.sums["n_binned"], n_binned)
    near(distances.sums["squares_binned"], squares)
    near(relations.by_source.rows()[1], by_source)
    near(relations.by_source.rows()[3].sum(0), squares.sum(1))
    near(null.sums["null"], shared)
    near(null.sums["binned_null"], binned_shared)
    np.testing.assert_array_equal(null.sums["n_null"], np.tile(n_shared.sum(0), (N_CELLS, 1)))
    np.testing.assert_array_equal(null.sums["n_binned_null"], N_CELLS * n_shared)
    near(classes.by_head.reshape(by_class.shape), by_class)
    near(classes.by_source.rows()[1].sum((0, 1)), by_class.sum((0, 1)))
    assert table.sums["table"].sum() == pytest.approx(by_class.sum(), rel=1e-6)


@pytest.mark.parametrize("number", range(0, 50, 3))
def test_sums_without_sinks_are_those_of_a_double_loop(number):
    topics, documents = a_batch(number)
    sinks = Sinks(N_CELLS)
    scores = of_batch(documents, topics)
    add(sinks, scores)
    expected, n, mass = np.zeros((N_CELLS, 3)), np.zeros((N_CELLS, 3)), np.zeros(N_CELLS)
    for document in documents:
        rows = document.query.positions.numpy()
        of_rows = document.pattern[:, rows][:, :, document.sinks].sum(-1)
        mass += of_rows.sum(1)
        first = {unit: row for row, unit in reversed(list(enumerate(document.query.unit_of.tolist())))}
        left = of_rows < 1 - 1e-6
        for i, _, relation, _, _ in document.pairs():
            n[:, relation] += left[:, first[i]]
        for i, _, relation, _, values in document.pairs(without_sinks=True):
            expected[:, relation] += np.where(left[:, first[i]], values, 0.0)
    near(sinks.sums["sink_mass"], mass)
    np.testing.assert_array_equal(sinks.sums["n_without_sinks"], n)
    near(sinks.sums["without_sinks"], expected)


# --- where the model runs ---------------------------------------------------------------------------


class Transfers(TorchDispatchMode):
    """Counts the bytes that leave a device on the host's orders, and refuses all else that passes between the two.

    Of what leaves a device without numbers (meta), ones arrive.
    """

    def __init__(self, device):
        super().__init__()
        self.device, self.to_host, self.to_device, self.mixed = device, 0, 0, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        tensors = [part for part in tree_leaves((args, kwargs)) if isinstance(part, torch.Tensor)]
        there = [tensor.device.type == self.device for tensor in tensors]
        if function == torch.ops.aten._to_copy.default:
            target = torch.device((kwargs or {}).get("device") or tensors[0].device).type
            if there[0] and target == "cpu":
                self.to_host += tensors[0].nbytes
                return torch.ones(tensors[0].shape, dtype=tensors[0].dtype)
            self.to_device += tensors[0].nbytes * (not there[0] and target == self.device)
        elif any(there) and not all(there):
            self.mixed.append(str(function))
        return function(*args, **(kwargs or {}))


class TransfersByStep(Transfers):
    """The same, with what was copied before, while and after batches are scored."""

    def __init__(self, device, monkeypatch):
        super().__init__(device)
        self.scoring, score = [], Engine._score

        def counted(engine, *given):
            before = self.to_host, self.to_device
            found = score(engine, *given)
            self.scoring.append((self.to_host - before[0], self.to_device - before[1]))
            return found

        monkeypatch.setattr(Engine, "_score", counted)


def bert(layers=12, heads=12, width=48, vocabulary=400):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=vocabulary, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=32, max_position_embeddings=512,
    )  # fmt: skip
    return BertModel(config, add_pooling_layer=False).eval()


def on_meta(topics, kind):
    """A model that was looked at, and then left its numbers behind."""
    host = tp.open_model(bert())
    view = capture.view(host, topics)
    if kind == "states":
        reader = StateReader(view, topics, include_self=True)
    else:
        reader = PatternReader(view, topics, Patterns(through="rows"), include_self=kind != "classes")
    host.to("meta")
    return reader


def some_topics(n=80):
    """A fifth of the words that documents may have, in topics that overlap."""
    return tp.Topics.from_token_ids(
        {"one": range(10, 50), "two": range(45, 70), "three": range(70, 10 + n)}, vocabulary_size=400
    )


def accumulators(topics, kind, n_cells):
    if kind == "states":
        return [Relations(n_cells=n_cells)]
    if kind == "classes":
        size = len(topics.words)
        same = topics.incidence.sharing(*2 * [topics.group_of_word])
        codes = pair_codes(torch.arange(size)[:, None] % 2 + torch.arange(size) % 2, same, ~same)
        return [Classes(codes, DISTANCE_BINS[:3], n_cells), PairTable(codes)]
    return [Relations(n_cells=n_cells), Distances(n_cells), Sinks(n_cells), Null(topics, 200, 0, n_cells)]


@pytest.mark.parametrize("kind", ["attention", "states", "classes"])
def test_nothing_is_copied_while_a_batch_is_scored_and_little_at_its_end(kind, monkeypatch):
    """On meta, whatever looks at a number raises; 32 documents of 512 tokens and 144 heads bring their sums alone."""
    topics, n_documents = some_topics(), 32
    documents = torch.randint(0, 400, (n_documents, 512), generator=torch.Generator().manual_seed(0))
    # To know whether the fused kernel needs a mask, transformers looks at one.
    monkeypatch.setattr(
        masking_utils, "_ignore_bidirectional_mask_sdpa", lambda *_, **__: False, raising=False
    )
    reader = on_meta(topics, kind)
    engine = Engine(reader, accumulators(topics, kind, reader.n_cells))
    [batch] = token_batches(documents.tolist(), batch_size=n_documents, special_ids={0, 1})
    with TransfersByStep("meta", monkeypatch) as transfers:
        reader.view.inputs(batch.ids, batch.mask)
        of_inputs = transfers.to_device
        engine.add(batch)
    assert transfers.mixed == []
    assert of_inputs > 0
    assert transfers.scoring == [(0, 0)]
    assert 0 < transfers.to_host / n_documents <= LIMITS[kind], transfers.to_host / n_documents
    # Relations, distances and the pairs of the null: a fifth of 512 words has 10,000 pairs.
    assert transfers.to_device / n_documents < 1e6, transfers.to_device / n_documents


# Bytes of a document. Classes of pairs are many: each that a batch has comes for every head.
LIMITS = {"attention": 100_000, "states": 2_000, "classes": 100_000}


def test_a_mode_that_counts_transfers_sees_them():
    with Transfers("meta") as transfers:
        numbers = torch.zeros(3).to("meta")
        assert numbers.double().cpu().shape == (3,)
        numbers + torch.ones(())
    assert (transfers.to_device, transfers.to_host) == (12, 24)
    assert transfers.mixed == ["aten.add.Tensor"]


def test_products_are_exact_where_batches_are_scored_and_as_they_were_afterwards():
    """TF32 is a setting of the process that a model without numbers shows as well as a GPU."""
    model = bert(1, 1).to("meta")
    matmul = torch.backends.cuda.matmul
    # Versions of torch with the newer name do not show the older one while it is set.
    name, fast, exact = (
        ("fp32_precision", "tf32", "ieee")
        if hasattr(matmul, "fp32_precision")
        else ("allow_tf32", True, False)
    )
    before = getattr(matmul, name)
    setattr(matmul, name, fast)
    seen = []

    def fail():
        with exact_products(model):
            seen.append(getattr(matmul, name))
            raise KeyError("something else")

    try:
        with pytest.raises(KeyError, match="something else"):
            fail()
        assert seen == [exact]
        assert getattr(matmul, name) == fast
    finally:
        setattr(matmul, name, before)


def test_scoring_in_parts_changes_nothing(monkeypatch):
    topics, model = some_topics(), bert(2, 2, 8)
    documents = torch.randint(0, 400, (9, 40), generator=torch.Generator().manual_seed(1)).tolist()
    whole = tp.measure_attention(model, topics, documents, n_permutations=20)
    monkeypatch.setattr(scores_module, "_IN_CACHE", 1)
    in_parts = tp.measure_attention(model, topics, documents, n_permutations=20)
    for name in ("heads", "matched", "without_sinks"):
        one, other = getattr(whole, name), getattr(in_parts, name)
        np.testing.assert_allclose(other.same_topic, one.same_topic, rtol=1e-6)
        np.testing.assert_array_equal(other.n_different_topic, one.n_different_topic)
    np.testing.assert_array_equal(in_parts.heads.p_value, whole.heads.p_value)
