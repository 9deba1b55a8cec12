"""What is asked of attention: sums against double loops, nothing added before a batch is through, and a user's own."""

import itertools
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import small_runs
import torch
import zoo
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import masking_utils

import topic_probe as tp
from topic_probe.lens.host import host_of
from topic_probe.measure import ask, permuted
from topic_probe.measure.attention_sums import AttentionSums
from topic_probe.measure.pairs import DISTANCE_BINS, Side, Words, one_later
from topic_probe.text.batches import token_batches
from topic_probe.text.documents import read_documents

# Word 2 is in two topics, and two words are of two and three tokens; 20 to 39 have no topic. 0 is special.
LISTS = {"a": [1, 2, 3, 4], "b": [2, 5, 6, 7], "c": [8, 9]}
SPLIT = {"a": (20, 21), "c": (22, 23, 24)}
N_PERMUTATIONS = 4


def topics():
    plain = tp.Topics.from_token_ids(LISTS, vocabulary_size=40)
    n, names = len(plain.words), list(LISTS)
    more = torch.tensor([[n + place, names.index(name)] for place, name in enumerate(SPLIT)])
    return tp.Topics(
        names=plain.names, vocabulary_size=40, words=torch.cat([plain.words, torch.tensor([40, 41])]),
        assignments=torch.cat([plain.assignments, more]), compounds=tuple(SPLIT.values()),
    )  # fmt: skip


def some_document(generator, length):
    """Ids, and for every word its positions, its entry and its topics."""
    drawn = [*((word,) for word in range(1, 14)), *SPLIT.values(), (20, 23)]
    ids, word_index, words = [0], [-1], []
    while len(ids) < length:
        word = drawn[generator.integers(len(drawn))]
        at = list(range(len(ids), len(ids) + len(word)))
        own = {name for name, listed in LISTS.items() if word[0] in listed and len(word) == 1}
        own |= {name for name, pieces in SPLIT.items() if word == pieces}
        ids += word
        word_index += [at[0]] * len(word)
        if own:
            words.append((at, word, own))
    return tp.Document(torch.tensor(ids), torch.tensor(word_index)), words


def later(words, length):
    """The words as a decoder reads them, one position later."""
    moved = [([place + 1 for place in at], word, own) for at, word, own in words]
    return [found for found in moved if found[0][-1] < length]


def scored_pairs(pattern, seen, asking, asked, *, without=None):
    """Every pair of words that see each other: numbers, relation, distance and the score of every head."""
    uniform = seen / seen.sum(1, keepdims=True).clip(1)
    if without is not None:
        rest = pattern[..., ~without].sum(-1, keepdims=True)
        pattern = np.where(rest > 1e-6, pattern / rest.clip(1e-6), 0)
        uniform = (seen & ~without) / (seen & ~without).sum(1, keepdims=True).clip(1)
    for (rows, one, its), (columns, other, others) in itertools.product(asking, asked):
        expected = uniform[np.ix_(rows, columns)].sum() / len(rows)
        if expected > 0:
            relation = 0 if one == other else 1 if its & others else 2
            score = pattern[:, rows][:, :, columns].sum((1, 2)) / len(rows) / expected
            yield one, other, relation, abs(rows[0] - columns[0]), score


def near(found, expected):
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("few", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["whole", "causal", "banded", "cross"])
def test_all_sums_of_a_batch_are_those_of_a_double_loop(kind, few, monkeypatch):
    monkeypatch.setattr(permuted, "_FEW", few)
    generator, n_heads = np.random.default_rng(5), 3
    known = topics()
    documents, words = zip(*(some_document(generator, length) for length in (24, 17, 9, 2)), strict=True)
    [batch] = token_batches(documents, special_ids={0})
    width, lengths = batch.ids.shape[1], batch.mask.sum(1).tolist()
    question = AttentionSums(
        known, torch.zeros(n_heads, dtype=torch.int64), level="word", n_permutations=N_PERMUTATIONS
    )
    key = Side(batch, known, "word")
    query = Side(one_later(batch), known, "word") if kind == "cross" else key
    own = Words(query, key, known, batch, question.sums)
    question.prepare(own)
    own.to(torch.device("cpu"), query.index)
    offset = np.arange(width) - np.arange(width)[:, None]
    masks = {"causal": offset <= 0, "banded": abs(offset) <= 3}
    seen = np.stack(
        [np.tile(np.arange(width) < length, (width, 1)) & masks.get(kind, True) for length in lengths]
    )
    weights = np.exp(
        np.where(seen[:, None], generator.normal(size=(len(batch), n_heads, width, width)), -np.inf)
    )
    pattern = weights / weights.sum(-1, keepdims=True).clip(1e-9)
    at = query.index[:, None, :, None].expand(-1, n_heads, -1, width)
    visible = torch.from_numpy(seen).gather(1, at[:, 0])
    question.read(torch.arange(n_heads), torch.from_numpy(pattern).float().gather(2, at), visible, own)
    question.finish(own)
    found = {name: values.numpy() for name, values in own.pending.items()}
    n_bins = len(DISTANCE_BINS) + 1
    shape = (n_heads, n_bins, 3)
    binned, n_binned, squares, without = (np.zeros(size) for size in (shape, shape, shape[:2], (n_heads, 3)))
    shared, by_bin, n_by_bin = (np.zeros((n, N_PERMUTATIONS)) for n in (n_heads, n_bins, n_bins))
    [groups] = question.permuted.blocks()
    entry = {
        **{(word,): n for n, word in enumerate(range(1, 10))},
        **dict(zip(SPLIT.values(), (9, 10), strict=True)),
    }
    incidence, mass, n_rows = known.incidence.table.toarray(), np.zeros(n_heads), 0
    for row, asked in enumerate(words):
        asking = later(asked, lengths[row]) if kind == "cross" else asked
        sinks = batch.ids[row].numpy() == 0
        sinks &= batch.mask[row].numpy()
        before = binned.copy()
        for one, other, relation, distance, score in scored_pairs(pattern[row], seen[row], asking, asked):
            place = sum(edge <= distance for edge in DISTANCE_BINS)
            binned[:, place, relation] += score
            n_binned[:, place, relation] += 1
            if relation:
                squares[:, place] += score**2
                share = (incidence[groups[entry[one]]] & incidence[groups[entry[other]]]).any(1)
                shared += score[:, None] * share
                by_bin[place] += score.sum() * share
                n_by_bin[place] += share
        for _, _, relation, _, score in scored_pairs(pattern[row], seen[row], asking, asked, without=sinks):
            without[:, relation] += score
        rows = [place for places, _, _ in asking for place in places]
        mass += pattern[row][:, rows][:, :, sinks].sum((1, 2))
        n_rows += len(rows)
        near(found["by_source"][row, :, :3], (binned - before).sum(1))
    assert n_binned.sum() > 250
    near(found["binned"], binned)
    np.testing.assert_array_equal(found["n_binned"], n_binned)
    near(found["squares_binned"], squares)
    near(found["by_source"][..., 6].sum(0), squares.sum(1))
    near(found["without_sinks"], without)
    near(found["sink_mass"], mass)
    np.testing.assert_array_equal(found["n_rows"], n_rows)
    near(found["null"], shared)
    near(found["binned_null"], by_bin)
    np.testing.assert_array_equal(found["n_null"], n_by_bin.sum(0)[None])
    np.testing.assert_array_equal(found["n_binned_null"], n_heads * n_by_bin)


def topics_with_forms(texts, topic):
    names = tuple(dict.fromkeys(topic))
    assignments = torch.tensor([[name == one for name in names] for one in topic]).nonzero()
    words = torch.arange(len(texts))
    return tp.Topics(
        names=names, vocabulary_size=20, words=words, assignments=assignments, texts=tuple(texts)
    )


def test_permutations_move_the_forms_of_a_word_together_and_keep_the_number_of_words_of_every_topic():
    texts = ["war", "War", " war", "army", "Army", "song", "band", "guitar"]
    known = topics_with_forms(texts, ["war"] * 5 + ["music"] * 3)
    groups = torch.cat([*permuted.PermutedWords(known, 300, seed=0).blocks()], 1).numpy()
    assert (groups[[1, 2, 4]] == groups[[0, 0, 3]]).all()
    by_word = groups[[0, 3, 5, 6, 7]]
    assert (np.sort(by_word, axis=0) == np.array([[0], [0], [1], [1], [1]])).all()
    # Every pair of words is as likely to share a topic: 1 + 3 of 10 pairs.
    assert (by_word[0] == by_word[1]).mean() == pytest.approx(0.4, abs=0.1)


def test_matched_permutations_weigh_bins_by_their_own_pairs_and_compare_with_all_others():
    """By hand: ten pairs with the sum 10, and four with 12. Of the first permutation 3 and 1 share a topic."""
    same = np.array([[4.0, 1], [3, 0]]), np.array([[3.0, 3], [1, 0]])
    every = np.array([[10.0], [12]]), np.array([[10.0], [4]])
    first = (4 + 3) / (3 * 6 / 7 + 1 * 9 / 3)  # means 4/3 and 3, of others 6/7 and 3
    second = (1 / 3) / (9 / 7)
    for ratio, as_far in ((second - 0.01, 0), ((first + second) / 2, 1), (first + 0.01, 0)):
        contrast = tp.Contrast(*np.array([1.0, ratio, 1, 9, 9, 9]))
        found = permuted.with_matched_p_value(contrast, every, same)
        assert found.p_value == pytest.approx(2 * (1 + as_far) / 3 if as_far < 1 else 1)


# --- nothing is added before a batch is through ------------------------------------------------------


class Tokens(tp.Question):
    """How many tokens of words there are in every layer, out of memory in the last one of large batches."""

    def __init__(self, known, most):
        self.topics, self.most = known, most
        self.sums = {"tokens": np.zeros(1)}

    def read(self, heads, rows, visible, words):
        words.add("tokens", 0, words.query.real.sum())
        if len(rows) > self.most and int(heads[-1]) == 3:
            raise RuntimeError("out of memory")


def test_a_batch_that_does_not_fit_is_added_in_halves_and_once():
    model, known, documents = tp.open_model(small_runs.model()), small_runs.topics(), small_runs.documents(16)
    whole, halves = Tokens(known, 100), Tokens(known, 3)
    options = {"n_permutations": 5, "batch_size": 8}
    reports = [
        tp.measure_attention(model, known, documents, questions=[question], **options)
        for question in (whole, halves)
    ]
    assert whole.sums["tokens"] == halves.sums["tokens"] > 0
    np.testing.assert_allclose(reports[1].heads.ratio, reports[0].heads.ratio, rtol=1e-9)
    with pytest.raises(RuntimeError, match="out of memory"):
        tp.measure_attention(model, known, documents, questions=[Tokens(known, 0)], **options)


def test_the_question_in_the_guide_has_twenty_lines_and_gives_what_a_double_loop_gives(capsys):
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(code.strip().splitlines()) <= 21
    names = {
        "model": small_runs.model(),
        "topics": small_runs.topics(),
        "documents": small_runs.documents(30),
    }
    exec(code, names)
    model, lists = small_runs.model(), small_runs.TOPICS.values()
    model.set_attn_implementation("eager")
    sums, n = np.zeros(4), 0
    for ids in small_runs.documents(30):
        with torch.no_grad():
            layers = model(input_ids=torch.tensor([ids]), output_attentions=True).attentions
        pattern = torch.cat([layer[0] for layer in layers]).numpy()
        for place, (one, other) in enumerate(pairwise(ids), 1):
            if one != other and any(one in words and other in words for words in lists):
                sums += pattern[:, place, place - 1] * len(ids)
                n += 1
    assert n > 20
    np.testing.assert_allclose(names["neighbours"].sums["attention"], sums, rtol=1e-9)
    np.testing.assert_array_equal(names["neighbours"].sums["pairs"], n)
    assert f"{sums[0] / n:.4f}" in capsys.readouterr().out


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


def test_no_number_is_looked_at_while_a_batch_is_asked_and_only_sums_come_back(monkeypatch):
    """On meta, whatever looks at a number raises."""
    lists = {"one": range(10, 35), "two": range(30, 55), "three": range(55, 75)}
    known = tp.Topics.from_token_ids(lists, vocabulary_size=zoo.VOCABULARY)
    host = tp.open_model(zoo.make("bert"))
    documents = torch.randint(5, 97, (16, 64), generator=torch.Generator().manual_seed(0)).tolist()
    # To know whether the fused kernel needs a mask, transformers looks at one.
    skipped = "_ignore_bidirectional_mask_sdpa"
    monkeypatch.setattr(masking_utils, skipped, lambda *_, **__: False, raising=False)
    view = host_of(host, known)
    host.to("meta")  # it was looked at, and then leaves its numbers behind
    sites = torch.arange(len(view.sites)).repeat_interleave(zoo.HEADS)
    question = AttentionSums(known, sites, include_self=False, n_permutations=50)
    [batch] = token_batches(read_documents(documents), batch_size=16, special_ids={0, 1})
    with Transfers() as transfers:
        ask.ask_batch(view, [question], batch)
    sums = sum(values.nbytes for name, values in question.sums.items() if name != "by_source")
    assert transfers.mixed == ()
    assert 0 < transfers.to_host <= sums + 16 * (len(sites) * 7 + 2) * 8
