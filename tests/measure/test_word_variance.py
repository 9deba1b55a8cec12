"""What words do to a number: their sums against loops, what was planted, limits where nothing is to be found."""

from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
import zoo

import topic_probe as tp
from topic_probe.contrast import estimate_of_sources
from topic_probe.measure.pairs import Side, Words
from topic_probe.measure.word_variance import N_GROUPS, WordSums, WordVariance, _gradient, _moved, groups_of
from topic_probe.sums import SourceSums, columns, joined
from topic_probe.text.batches import token_batches

LISTS = {"one": range(5, 15), "two": range(15, 27), "three": range(24, 40)}  # which overlap
TOPICS = tp.Topics.from_token_ids(LISTS, vocabulary_size=zoo.VOCABULARY)
BOTH = {"resample": ("sources", "words")}


@cache
def opened(name):
    return tp.open_model(zoo.make(name).double())


def documents(n=30):
    generator = np.random.default_rng(1)
    return [generator.integers(0, 60, length).tolist() for length in generator.integers(8, 40, n)]


def measure(topics=TOPICS, name="bert", given=None, **options):
    options = {"special_ids": {1, 2}, "n_permutations": 20, **options}
    return tp.measure_attention(opened(name), topics, given or documents(), **options)


def words_of(ids, sources, topics, sums):
    """The words of documents of equal length."""
    given = [tp.Document(torch.tensor(row), source=source) for row, source in zip(ids, sources, strict=True)]
    [batch] = token_batches(given, batch_size=len(given))
    side = Side(batch, topics, "token")
    return Words(side, side, topics, batch, sums)


def test_sums_of_words_are_those_of_a_loop_over_pairs():
    """Two layers of two heads, three documents of two groups of sources."""
    generator, sources = np.random.default_rng(0), [3, 2**41, -(2**50)]
    entries = generator.integers(5, 40, (3, 7))
    seen = torch.tensor(generator.random((3, 7, 7)) < 0.8)
    values = torch.from_numpy(generator.random((3, 4, 7, 7))) * seen[:, None]
    own = WordSums(TOPICS, 2)
    words = words_of(entries, sources, TOPICS, own.sums)
    for layer in (1, 0):
        own.add(layer, values[:, 2 * layer : 2 * layer + 2], words.relations * seen, words)
    of_topic = {entry: {name for name, ids in LISTS.items() if entry in ids} for entry in range(5, 40)}
    expected = np.zeros((2, 2, N_GROUPS, 35, 5))
    for (document, row), i, j in product(enumerate(entries), range(7), range(7)):
        if row[i] == row[j] or not seen[document, i, j]:
            continue
        group = groups_of(np.array([sources[document]]))[0]
        kind = 0 if of_topic[row[i]] & of_topic[row[j]] else 1
        score = values[document, :, i, j].numpy().reshape(2, 2)
        numbers = np.zeros((2, 5))  # [layer, column]
        numbers[:, kind], numbers[:, 2], numbers[:, 3 + kind] = score.sum(1), (score**2).sum(1), 2
        for one, other in ((row[i], row[j]), (row[j], row[i])):
            expected[:, 0, group, one - 5] += numbers
            expected[:, 1, group, one - 5] += numbers * own.sign[other - 5].item()
    np.testing.assert_allclose(words.pending["of_words"], expected, atol=1e-12)


@pytest.mark.parametrize("partners", ["others", "always the same"])
def test_the_variance_of_words_is_that_of_their_influences_or_of_pairs_that_are_always_the_same(partners):
    """Two topics that lie apart, which is no matter of words; every word in one pair of each document."""
    generator = np.random.default_rng(0)
    effect, apart = generator.normal(size=(2, 40)), np.array([0.0, 5.0])
    lists = {"a": range(3, 43), "b": range(43, 83), "other": range(83, 93)}
    topics = tp.Topics.from_token_ids(lists, vocabulary_size=zoo.VOCABULARY)
    own, by_source = WordSums(topics, 1), SourceSums(shape=(1,))
    for source in range(64):
        ids, tables = [], []
        for topic in (0, 1):
            order = np.arange(40) if partners == "always the same" else generator.permutation(40)
            for i, j in order.reshape(20, 2).tolist():
                x = 10 + apart[topic] + effect[topic, i] + effect[topic, j]
                tables.append([[[0.0, x, 1], [x, 0, 1], [1, 1, 0]]])
                ids.append([3 + 40 * topic + i, 3 + 40 * topic + j, 83 + (source + i) % 10])
        values = torch.tensor(tables, dtype=torch.float64)
        words = words_of(ids, [source << 40] * 40, topics, own.sums)
        own.add(0, values, words.relations, words)
        own.sums["of_words"] += words.pending["of_words"].numpy()
        kinds = (words.relations[..., None] == torch.arange(1, 4)).double()
        sums, counts = torch.einsum("bcij,bijr->cr", values, kinds), kinds.sum((0, 1, 2))[None]
        squares = (values[:, 0] ** 2 * kinds[..., 1:].sum(-1)).sum()[None]
        rows = joined(*(part.numpy()[None] for part in (sums, counts, squares)))
        by_source.add(np.array([source << 40]), rows)
    variance = WordVariance({**own.sums, "by_source": by_source}, own.strata, np.array([0]))
    estimate = estimate_of_sources(*columns(by_source.rows()[1]), statistic="difference")
    found = variance.beside("difference", estimate, np.array([0])).squares
    # A word is in 1/40 of the pairs: 1 / 40 · (u_i − ū); a pair that stays is one thing that varies, and not two.
    vary = effect if partners == "others" else effect.reshape(2, 20, 2).sum(-1)
    expected = ((vary - vary.mean(1, keepdims=True)) ** 2).sum() / 40**2
    np.testing.assert_allclose(found, expected, rtol=0.2)


@pytest.mark.parametrize("kind", ["ratio", "difference", "effect_size"])
def test_numbers_move_with_words_as_derivatives_say(kind):
    """With the sums of one word moved a little, against the gradient that variances are made of."""
    totals, step = np.array([[30.0, 44.0, 130.0, 20.0, 40.0]]), np.array([[0.3, -0.2, 0.9, 0.1, 0.2]])

    def number(sums):
        [(same, different, squares, n_same, n_different)], n = sums, sums[0, 3:].sum()
        one, other = same / n_same, different / n_different
        spread = np.sqrt(squares / n - ((same + different) / n) ** 2)
        return {"ratio": np.log(one / other), "difference": one - other}.get(kind, (one - other) / spread)

    by_hand = (number(totals + 1e-4 * step) - number(totals - 1e-4 * step)) / 2e-4
    np.testing.assert_allclose(_moved(_gradient(totals, kind), step, totals), by_hand, rtol=1e-6)


def test_nothing_but_intervals_changes_with_words_whatever_the_batches_and_the_order():
    plain, with_words = measure(), measure(**BOTH)
    other = measure(given=documents()[::-1], **BOTH, batch_size=7)
    assert plain.overall.variance_shares is None is with_words.heads.variance_shares
    assert with_words.heads == plain.heads
    for name in ("same_topic", "different_topic", "spread", "p_value", "q_value"):
        np.testing.assert_array_equal(getattr(with_words.layers, name), getattr(plain.layers, name))
    lower, upper = (with_words.layers.interval - plain.layers.interval).T
    assert (lower <= 1e-12).all()
    assert (upper >= -1e-12).all()
    shares = with_words.layers.variance_shares
    np.testing.assert_allclose(shares.sum(-1), 1)
    assert "other words of the topics; those of heads are about other sources alone" in str(with_words)
    assert 'resample=("sources", "words")' in str(plain)
    np.testing.assert_allclose(other.layers.interval, with_words.layers.interval, rtol=1e-9)
    np.testing.assert_allclose(other.layers.variance_shares, shares, atol=1e-9)


def test_too_few_words_have_no_interval_and_say_so():
    few = tp.Topics.from_token_ids({"a": [3, 4, 5], "b": [6, 7, 8]}, vocabulary_size=zoo.VOCABULARY)
    report = measure(few, **BOTH)
    assert np.isnan(report.overall.interval).all()
    assert "6 words in pairs, at least 8" in report.overall.reason


def test_what_cannot_be_resampled_is_refused():
    for resample, error, said in (
        (("words",), ValueError, "must name 'sources'"),
        (("sources", "fits"), ValueError, "resample must be one of 'sources', 'words'"),
        ("words", TypeError, "put a single one into a list"),
    ):
        with pytest.raises(error, match=said):
            measure(resample=resample)


# --- fits of topics ----------------------------------------------------------------------------------


def fits(n):
    """Topics of several fits: of each, some words are in another topic."""
    found = []
    for seed in range(n):
        moved = {*np.random.default_rng(seed).permutation(np.arange(5, 40))[:6].tolist()}
        kept = {name: {*ids} - moved for name, ids in LISTS.items()}
        kept["three"] |= moved
        found.append(tp.Topics.from_token_ids(kept, vocabulary_size=zoo.VOCABULARY))
    return found


def test_fits_make_one_report_and_those_that_are_the_same_say_what_one_says(tmp_path):
    one, same = measure(), tp.pool(measure([TOPICS] * 3))
    for part in ("overall", "layers", "heads"):
        np.testing.assert_allclose(getattr(same, part).ratio, getattr(one, part).ratio)
        np.testing.assert_allclose(getattr(same, part).interval, getattr(one, part).interval)
    assert (same.layers.variance_shares[..., 2] < 1e-9).all()
    single = measure(fits(4), "bart")
    report = tp.pool(single)
    np.testing.assert_allclose(report.fits.ratio, [own.overall.ratio for own in single])
    n = np.array([own.overall.n_same_topic for own in single])
    pooled = sum(own.overall.same_topic * own.overall.n_same_topic for own in single) / n.sum()
    np.testing.assert_allclose(report.overall.same_topic, pooled)
    p = np.mean([own.heads.p_value for own in single], axis=0)
    np.testing.assert_allclose(report.heads.p_value, np.minimum(1, 2 * p))
    assert "4 fits of topics" in str(report)
    assert tp.load_report(report.save(tmp_path / "report")) == report


def test_fits_are_three_at_least_and_of_one_model():
    two = measure(fits(2))
    report = tp.pool(two)
    assert np.isnan(report.overall.interval).all()
    assert "2 fits of topics, at least 3" in report.overall.reason
    with pytest.raises(ValueError, match="got fewer than two"):
        tp.pool(two[:1])
    with pytest.raises(ValueError, match="their model differ"):
        tp.pool([*two, measure(name="gpt2")])


# --- reports are their sums ----------------------------------------------------------------------------


def test_reports_of_two_halves_add_up_to_that_of_all_and_have_any_confidence():
    given = documents()
    whole = measure(given=given, **BOTH)
    halves = [measure(given=part, **BOTH) for part in (given[:11], given[11:])]
    found = halves[0] + halves[1]
    for part in ("overall", "stacks", "layers", "heads", "matched", "without_sinks"):
        one, other = getattr(found, part), getattr(whole, part)
        np.testing.assert_allclose(one.ratio, other.ratio, rtol=1e-9)
        if other.interval is not None:
            np.testing.assert_allclose(one.interval, other.interval, rtol=1e-9)
    np.testing.assert_array_equal(found.heads.p_value, whole.heads.p_value)
    for name in ("documents", "documents_measured", "sources", "left_out", "tokens"):
        assert found.provenance[name] == whole.provenance[name]
    assert whole.at(confidence=0.8).overall == measure(given=given, confidence=0.8, **BOTH).overall
    with pytest.raises(ValueError, match="their options differ in include_self"):
        whole + measure(given=given, include_self=False, **BOTH)
