"""What words and fits of topics do to a number: sums of words against loops, limits where nothing is to be found."""

from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
import zoo
from hand_scores import add, batch_scores
from planted_doubt import Setting, contrast, doubt_of, draw

import topic_probe as tp
from topic_probe.contrast import interval_of_sources
from topic_probe.measure.accumulators import Relations
from topic_probe.measure.doubt import (
    N_GROUPS,
    Doubt,
    WordEffects,
    degrees_of_words,
    groups_of,
    names_of_words,
)
from topic_probe.sums import columns

LISTS = {"one": range(5, 15), "two": range(15, 27), "three": range(24, 40)}  # which overlap
TOPICS = tp.Topics.from_token_ids(LISTS, vocabulary_size=zoo.VOCABULARY)
BOTH, ALL = {"resample": ("sources", "words")}, {"resample": ("sources", "words", "fits")}


def fits(n):
    """Topics of several fits: of each, some words are in another topic."""
    found = []
    for seed in range(n):
        moved = {*np.random.default_rng(seed).permutation(np.arange(5, 40))[:6].tolist()}
        kept = {name: {*ids} - moved for name, ids in LISTS.items()}
        kept["three"] |= moved
        found.append(tp.Topics.from_token_ids(kept, vocabulary_size=zoo.VOCABULARY))
    return found


@cache
def opened(name):
    return tp.open_model(zoo.make(name).double())


def documents(n=30):
    generator = np.random.default_rng(1)
    return [generator.integers(0, 60, length).tolist() for length in generator.integers(8, 40, n)]


def measure(topics=TOPICS, name="bert", given=None, **options):
    options = {"special_ids": {1, 2}, "n_permutations": 20, **options}
    return tp.measure_attention(opened(name), topics, given or documents(), **options)


# --- independent values -------------------------------------------------------------------------------


def test_sums_of_words_are_those_of_a_loop_over_pairs():
    """Four cells in two rows, of which the second is scored first; three documents of two groups of sources."""
    generator, sources = np.random.default_rng(0), [3, 2**41, -(2**50)]
    entries = [generator.integers(5, 40, 7).tolist() for _ in range(3)]
    seen = torch.tensor(generator.random((3, 7, 7)) < 0.8)
    values = [torch.from_numpy(generator.random((4, 7, 7))) * mask for mask in seen]
    own = WordEffects(TOPICS, np.array([0, 0, 1, 1]))
    for cells in ((2, 3), (0, 1)):
        parts = [table[list(cells)] for table in values]
        given = list(zip(sources, parts, entries, [list(range(7))] * 3, strict=True))
        add(own, batch_scores(given, TOPICS, seen=seen, cells=cells))
    names = sorted(names_of_words(TOPICS))
    place = {entry: names.index(f"entry {entry}") for entry in range(5, 40)}
    of_topic = {entry: {name for name, ids in LISTS.items() if entry in ids} for entry in range(5, 40)}
    expected = np.zeros((2, 2, N_GROUPS, len(names), 5))
    for (document, words), i, j in product(enumerate(entries), range(7), range(7)):
        if words[i] == words[j] or not seen[document, i, j]:
            continue
        group = groups_of(np.array([sources[document]]))[0]
        kind = 0 if of_topic[words[i]] & of_topic[words[j]] else 1
        score = values[document][:, i, j].numpy().reshape(2, 2)
        numbers = np.zeros((2, 5))  # [row, column]
        numbers[:, kind], numbers[:, 2], numbers[:, 3 + kind] = score.sum(1), (score**2).sum(1), 2
        for one, other in ((words[i], words[j]), (words[j], words[i])):
            expected[:, 0, group, place[one]] += numbers
            expected[:, 1, group, place[one]] += numbers * own.sign[place[other]].item()
    np.testing.assert_allclose(own.sums["of_words"], expected, atol=1e-12)


@pytest.mark.parametrize("partners", ["others", "always the same"])
def test_the_variance_of_words_is_that_of_their_influences_or_of_pairs_that_are_always_the_same(partners):
    """Two topics that lie apart, which is no matter of words; every word in one pair of each document."""
    generator = np.random.default_rng(0)
    effect, apart = generator.normal(size=(2, 40)), np.array([[0.0], [5.0]])
    lists = {"a": range(3, 43), "b": range(43, 83), "other": range(83, 93)}
    topics = tp.Topics.from_token_ids(lists, vocabulary_size=zoo.VOCABULARY)
    own, relations = WordEffects(topics, np.zeros(1, dtype=np.int64)), Relations(n_cells=1)
    for source in range(64):
        pairs = []
        for topic in (0, 1):
            order = np.arange(40) if partners == "always the same" else generator.permutation(40)
            for i, j in order.reshape(20, 2).tolist():
                x = 10 + apart[topic, 0] + effect[topic, i] + effect[topic, j]
                table = torch.tensor([[[0.0, x, 1], [x, 0, 1], [1, 1, 0]]])
                words = [3 + 40 * topic + i, 3 + 40 * topic + j, 83 + (source + i) % 10]
                pairs.append((source << 40, table, words, [0, 1, 2]))
        batch = batch_scores(pairs, topics, cells=(0,), n_cells=1)
        for accumulator in (own, relations):
            add(accumulator, batch)
    sums = relations.sums | own.sums
    found = Doubt([sums], sums["by_source"], np.array([0]), [own.strata]).beside("difference", np.array([0]))
    # A word is in 1/40 of the pairs: 1 / 40 · (u_i − ū); a pair that stays is one thing that varies, and not two.
    vary = effect if partners == "others" else effect.reshape(2, 20, 2).sum(-1)
    expected = ((vary - vary.mean(1, keepdims=True)) ** 2).sum() / 40**2
    np.testing.assert_allclose(found.words, expected, rtol=0.2)


def test_degrees_of_freedom_are_those_of_squares_that_weigh_as_the_squares_of_pairs():
    assert degrees_of_words(np.full(12, 7.0)) == pytest.approx(12)
    assert degrees_of_words(np.array([2.0, *np.ones(8)])) == pytest.approx((4 + 8) ** 2 / (16 + 8))
    assert degrees_of_words(np.ones(7)) == 0


@pytest.mark.parametrize("kind", ["ratio", "difference", "effect_size"])
def test_numbers_move_with_words_as_derivatives_say(kind):
    """With the sums of one word moved a little, against the gradient that variances are made of."""
    from topic_probe.measure.doubt import _Number

    totals, step = np.array([[30.0, 44.0, 130.0, 20.0, 40.0]]), np.array([[0.3, -0.2, 0.9, 0.1, 0.2]])

    def number(sums):
        [(same, different, squares, n_same, n_different)], n = sums, sums[0, 3:].sum()
        one, other = same / n_same, different / n_different
        spread = np.sqrt(squares / n - ((same + different) / n) ** 2)
        return {"ratio": np.log(one / other), "difference": one - other}.get(kind, (one - other) / spread)

    by_hand = (number(totals + 1e-4 * step) - number(totals - 1e-4 * step)) / 2e-4
    np.testing.assert_allclose(_Number(totals, kind).moved(step, totals), by_hand, rtol=1e-6)


# --- invariances and limits ---------------------------------------------------------------------------


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
    assert (with_words.layers.to_dataframe()["variance_fits"] == 0).all()
    told = [f"{share:.0%}" for share in with_words.overall.variance_shares[:2]]
    assert f"other sources ({told[0]}) and words ({told[1]})" in str(with_words)
    np.testing.assert_allclose(other.layers.interval, with_words.layers.interval, rtol=1e-9)
    np.testing.assert_allclose(other.layers.variance_shares, shares, atol=1e-9)
    states = tp.measure_embeddings(opened("bert"), TOPICS, documents(), n_resamples=20, **BOTH).layers[
        "cosine"
    ]
    np.testing.assert_allclose(states.variance_shares.sum(-1), 1)
    assert states.variance_shares[:, 1].max() > 0


def test_the_interval_is_that_over_sources_where_words_bring_nothing():
    sums = draw(Setting(sources=40, of_words=0.0), np.random.default_rng(3), 40)
    with_words, alone = contrast(sums), interval_of_sources(*columns(sums[0]["by_source"].rows()[1])[:2])
    nothing = with_words.variance_shares[:, 1] == 0
    assert nothing.mean() > 0.3
    np.testing.assert_array_equal(with_words.interval[nothing], alone[nothing])
    assert np.median(with_words.variance_shares[:, 1]) < 0.05


def test_several_fits_make_one_report_and_fits_that_are_the_same_one_fit(tmp_path):
    one, same = measure(**BOTH), measure([TOPICS] * 3, **ALL)
    for part in ("overall", "layers", "heads"):
        np.testing.assert_allclose(getattr(same, part).ratio, getattr(one, part).ratio)
        np.testing.assert_allclose(getattr(same, part).interval, getattr(one, part).interval)
    assert (same.layers.variance_shares[..., 2] < 1e-9).all()
    every = fits(4)
    report, single = measure(every, "bart", **ALL), measure(every, "bart")
    np.testing.assert_allclose(report.fits.ratio, [own.overall.ratio for own in single])
    n = np.array([own.overall.n_same_topic for own in single])
    pooled = sum(own.overall.same_topic * own.overall.n_same_topic for own in single) / n.sum()
    np.testing.assert_allclose(report.overall.same_topic, pooled)
    p = np.mean([own.heads.p_value for own in single], axis=0)
    np.testing.assert_allclose(report.heads.p_value, np.minimum(1, 2 * p))
    assert "4 fits of topics" in str(report)
    assert tp.load_report(report.save(tmp_path / "report")) == report


# --- planted ------------------------------------------------------------------------------------------


def test_the_variance_of_fits_is_what_was_planted_without_what_sources_and_words_make_of_their_spread():
    """Factors with a standard deviation of 0.2 are a variance of exp(0.04) − 1 of one fit, a quarter of it of four."""
    sums = draw(Setting(fits=4, of_fits=0.2, sizes=(10,) * 8), np.random.default_rng(5), 40)
    found = doubt_of(sums).beside("ratio", np.arange(40)).fits.mean()
    np.testing.assert_allclose(found, np.expm1(0.04) / 4, rtol=0.3)
    # Fits that do nothing have other words all the same, and so other numbers, which words account for.
    sums = draw(Setting(fits=4, of_words=1.0, sizes=(10,) * 8), np.random.default_rng(6), 20)
    own, none = (
        doubt_of(sums, words=words).beside("ratio", np.arange(20)).fits.mean() for words in (True, False)
    )
    assert own < 0.5 * none


# --- what cannot be -----------------------------------------------------------------------------------


def test_too_few_words_or_fits_have_no_interval_and_say_so():
    few = tp.Topics.from_token_ids({"a": [3, 4, 5], "b": [6, 7, 8]}, vocabulary_size=zoo.VOCABULARY)
    for report, said in (
        (measure(few, **BOTH), "6 words in pairs, at least 8"),
        (measure(fits(2), resample=("sources", "fits")), "2 fits of topics, at least 3"),
    ):
        assert np.isnan(report.overall.interval).all()
        assert said in report.overall.reason


def test_what_cannot_be_resampled_is_refused():
    for resample, error, said in (
        (("sources", "fits"), ValueError, "topics of several fits in a list"),
        (("words",), ValueError, "must name 'sources'"),
        (("source",), ValueError, "resample must be one of"),
        ("words", TypeError, "put a single one into a list"),
    ):
        with pytest.raises(error, match=said):
            measure(resample=resample)
    with pytest.raises(ValueError, match="a table of embeddings has none of"):
        tp.measure_embeddings(opened("bert"), TOPICS, **BOTH)
