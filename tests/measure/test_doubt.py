"""What words and fits of topics do to a number: sums of words against loops, limits where nothing is to be found."""

from itertools import product

import numpy as np
import pytest
import torch
from hand_scores import add, batch_scores
from planted_articles import held
from planted_doubt import RATIO, Setting, contrast, doubt_of, draw
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, T5Config, T5Model

import topic_probe as tp
from topic_probe.contrast import interval_of_sources
from topic_probe.measure.accumulators import Relations
from topic_probe.measure.doubt import N_GROUPS, Doubt, WordEffects, groups_of, names_of_words, pooled_sums

VOCABULARY = 60
LISTS = {"one": range(3, 15), "two": range(15, 27), "three": range(24, 40)}  # which overlap
TOPICS = tp.Topics.from_token_ids(LISTS, vocabulary_size=VOCABULARY)
BOTH = {"resample": ("sources", "words")}


def fits(n):
    """Topics of several fits: of each, some words are in another topic."""
    found = []
    for seed in range(n):
        order = np.random.default_rng(seed).permutation(np.arange(3, 40))
        kept = {name: {*ids} - {*order[:6]} for name, ids in LISTS.items()}
        kept["three"] |= {*order[:6]}
        found.append(tp.Topics.from_token_ids(kept, vocabulary_size=VOCABULARY))
    return found


def bert():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=64, initializer_range=0.5,
    )  # fmt: skip
    return BertModel(config, add_pooling_layer=False).eval().double()


def gpt2():
    torch.manual_seed(0)
    return GPT2Model(GPT2Config(vocab_size=VOCABULARY, n_layer=2, n_head=2, n_embd=16)).eval().double()


def t5():
    torch.manual_seed(0)
    return (
        T5Model(T5Config(vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2))
        .eval()
        .double()
    )


def documents(n=30):
    generator = np.random.default_rng(1)
    return [generator.integers(0, VOCABULARY, length).tolist() for length in generator.integers(8, 40, n)]


def measure(topics=TOPICS, model=None, given=None, **options):
    options = {"special_ids": {1, 2}, "n_permutations": 20, "progress": False} | options
    return tp.measure_attention(model or bert(), topics, given or documents(), **options)


# ---------------------------------------------------------------------------- sums


def test_sums_of_words_are_those_of_a_loop_over_pairs():
    """Four cells in two rows, of which the second is scored first; three documents of two groups of sources."""
    generator = np.random.default_rng(0)
    entries = [generator.integers(3, 40, 7).tolist() for _ in range(3)]
    tables = [torch.from_numpy(generator.random((4, 7, 7))) for _ in entries]
    sources = [3, 2**41, -(2**50)]
    own = WordEffects(TOPICS, np.array([0, 0, 1, 1]))
    seen = torch.tensor(generator.random((3, 7, 7)) < 0.8)
    values = [table * mask for table, mask in zip(tables, seen, strict=True)]
    for cells in ((2, 3), (0, 1)):
        parts = [table[list(cells)] for table in values]
        given = list(zip(sources, parts, entries, [list(range(7))] * 3, strict=True))
        add(own, batch_scores(given, TOPICS, seen=seen, cells=cells))
    names = sorted(names_of_words(TOPICS))
    place = {entry: names.index(f"entry {entry}") for entry in range(3, 40)}
    expected = np.zeros((2, 2, N_GROUPS, len(names), 5))
    of_topic = {entry: {name for name, ids in LISTS.items() if entry in ids} for entry in range(3, 40)}
    for document, (words, table) in enumerate(zip(entries, values, strict=True)):
        group = groups_of(np.array([sources[document]]))[0]
        for i, j in product(range(7), range(7)):
            if words[i] == words[j] or not seen[document, i, j]:
                continue
            kind = 0 if of_topic[words[i]] & of_topic[words[j]] else 1
            score = table[:, i, j].numpy().reshape(2, 2)
            numbers = np.zeros((2, 5))  # [row, column]
            numbers[:, kind], numbers[:, 2], numbers[:, 3 + kind] = score.sum(1), (score**2).sum(1), 2
            for one, other in ((words[i], words[j]), (words[j], words[i])):
                expected[:, 0, group, place[one]] += numbers
                expected[:, 1, group, place[one]] += numbers * own.sign[place[other]].item()
    np.testing.assert_allclose(own.sums["of_words"], expected, atol=1e-12)


def test_words_of_fits_have_one_place_and_one_sign_whichever_topics_they_are_in():
    one, other = fits(2)
    rows, names = np.zeros(1, dtype=np.int64), [*names_of_words(one), *names_of_words(other), "entry 59"]
    effects = [WordEffects(topics, rows, names) for topics in (one, other)]
    assert torch.equal(effects[0].sign, effects[1].sign)
    places = [
        dict(zip(topics.words.tolist(), of_fit.place.tolist(), strict=True))
        for topics, of_fit in zip((one, other), effects, strict=True)
    ]
    assert places[0] == places[1]
    assert [(of_fit.strata < 0).sum() for of_fit in effects] == [1, 1]


def test_the_variance_of_words_is_that_of_their_influences_in_two_halves_of_the_sources():
    """Each word in two pairs, with one partner of another topic that has no effect: its influence is worked by hand."""
    generator = np.random.default_rng(0)
    effect = generator.normal(size=40)
    topics = tp.Topics.from_token_ids({"a": range(3, 43), "b": [50]}, vocabulary_size=VOCABULARY)
    own, relations = WordEffects(topics, np.zeros(1, dtype=np.int64)), Relations(n_cells=1)
    for source in range(64):
        order = generator.permutation(40)
        pairs = [
            (
                (source << 40),
                torch.tensor([[[0.0, 10 + x, 1], [10 + x, 0, 1], [1, 1, 0]]]),
                [3 + i, 3 + j, 50],
                [0, 1, 2],
            )
            for i, j in zip(order[::2], order[1::2], strict=True)
            for x in [effect[i] + effect[j]]
        ]
        batch = batch_scores(pairs, topics, cells=(0,), n_cells=1)
        add(own, batch)
        add(relations, batch)
    sums = relations.sums | own.sums
    doubt = Doubt([sums], sums["by_source"], np.array([0]), [own.strata])
    found = doubt.beside("difference", np.array([0]))
    # A word is in 1/20 of the pairs, whose partners are others every time: 1 / 20 · (u_i − ū), and 40 of them.
    expected = ((effect - effect.mean()) ** 2).sum() / 20**2
    np.testing.assert_allclose(found.words, expected, rtol=0.15)


# ---------------------------------------------------------------------------- reports


def test_nothing_changes_without_being_asked_for():
    plain, with_words = measure(), measure(**BOTH)
    assert plain.overall.variance_shares is None
    assert with_words.heads == plain.heads
    for name in ("same_topic", "different_topic", "spread", "p_value", "q_value"):
        np.testing.assert_array_equal(getattr(with_words.layers, name), getattr(plain.layers, name))
    lower, upper = (with_words.layers.interval - plain.layers.interval).T
    assert (lower <= 1e-12).all()
    assert (upper >= -1e-12).all()
    np.testing.assert_allclose(with_words.layers.variance_shares.sum(-1), 1)
    assert with_words.heads.variance_shares is None
    assert "those of heads include other sources alone" in str(with_words)
    table = with_words.layers.to_dataframe()
    assert {"variance_sources", "variance_words", "variance_fits"} <= {*table}
    assert (table["variance_fits"] == 0).all()
    shares = [f"{share:.0%}" for share in with_words.overall.variance_shares[:2]]
    assert f"other sources ({shares[0]}) and words ({shares[1]})" in str(with_words)
    assert "share of the variance" in str(with_words)


def test_the_interval_is_that_over_sources_where_words_bring_nothing():
    sums = draw(Setting(sources=40, of_words=0.0), np.random.default_rng(3), 40)
    with_words = contrast(sums)
    alone = interval_of_sources(*sums[0]["by_source"].rows()[1:3])
    nothing = with_words.variance_shares[:, 1] == 0
    assert nothing.mean() > 0.3
    np.testing.assert_array_equal(with_words.interval[nothing], alone[nothing])
    assert np.median(with_words.variance_shares[:, 1]) < 0.05


def test_fits_that_are_the_same_are_one_fit():
    one = measure(**BOTH)
    same = measure([TOPICS] * 3, resample=("sources", "words", "fits"))
    for part in ("overall", "stacks", "layers", "heads"):
        np.testing.assert_allclose(getattr(same, part).ratio, getattr(one, part).ratio)
        np.testing.assert_allclose(getattr(same, part).interval, getattr(one, part).interval)
        if part != "heads":
            assert np.all(getattr(same, part).variance_shares[..., 2] < 1e-9)


@pytest.mark.parametrize("model", [gpt2, t5])
def test_several_fits_make_one_report(model):
    every = fits(4)
    report = measure(every, model(), resample=("sources", "words", "fits"))
    single = measure(every, model())
    assert isinstance(report, tp.AttentionReport)
    np.testing.assert_allclose(report.fits.ratio, [own.overall.ratio for own in single])
    n = np.array([own.overall.n_same_topic for own in single])
    pooled = sum(own.overall.same_topic * own.overall.n_same_topic for own in single) / n.sum()
    np.testing.assert_allclose(report.overall.same_topic, pooled)
    p = np.mean([own.heads.p_value for own in single], axis=0)
    np.testing.assert_allclose(report.heads.p_value, np.minimum(1, 2 * p))
    wide = measure(every, model(), resample=("sources", "fits"))
    assert (np.diff(report.layers.interval) >= np.diff(wide.layers.interval) - 1e-9).mean() > 0.9
    assert "4 fits of topics" in str(report)
    assert len(report.provenance["fits"]) == 4


def test_a_report_of_fits_is_saved_and_loaded(tmp_path):
    report = measure(fits(3), resample=("sources", "words", "fits"))
    assert tp.load_report(report.save(tmp_path / "report")) == report


def test_states_have_words_in_their_intervals_too():
    options = {"special_ids": {1, 2}, "progress": False, "n_resamples": 20}
    plain = tp.measure_embeddings(bert(), TOPICS, documents(), **options)
    both = tp.measure_embeddings(bert(), TOPICS, documents(), **options, **BOTH)
    np.testing.assert_array_equal(both.cosine.interval, plain.cosine.interval)
    np.testing.assert_array_equal(both.layers["cosine"].ratio, plain.layers["cosine"].ratio)
    shares = both.layers["cosine"].variance_shares
    np.testing.assert_allclose(shares.sum(-1), 1)
    assert shares[:, 1].max() > 0
    assert plain.layers["cosine"].variance_shares is None


@pytest.mark.parametrize("batch_size", [1, 7])
def test_batches_and_order_change_nothing(batch_size):
    given = documents()
    whole = measure(**BOTH, batch_size=30)
    other = measure(given=given[::-1], **BOTH, batch_size=batch_size)
    np.testing.assert_allclose(other.layers.interval, whole.layers.interval, rtol=1e-9)
    np.testing.assert_allclose(other.layers.variance_shares, whole.layers.variance_shares, atol=1e-9)


# ---------------------------------------------------------------------------- what cannot be


def test_too_few_words_or_fits_have_no_interval_and_say_so():
    few = tp.Topics.from_token_ids({"a": [3, 4, 5], "b": [6, 7, 8]}, vocabulary_size=VOCABULARY)
    report = measure(few, **BOTH)
    assert np.isnan(report.overall.interval).all()
    assert "6 words in pairs, at least 8" in report.overall.reason
    report = measure(fits(2), resample=("sources", "fits"))
    assert np.isnan(report.overall.interval).all()
    assert "2 fits of topics, at least 3" in report.overall.reason


def test_what_cannot_be_resampled_is_refused():
    with pytest.raises(ValueError, match="topics of several fits in a list"):
        measure(resample=("sources", "fits"))
    with pytest.raises(ValueError, match="must name 'sources'"):
        measure(resample=("words",))
    with pytest.raises(ValueError, match="resample must be one of"):
        measure(resample=("source",))
    with pytest.raises(TypeError, match="put a single one into a list"):
        measure(resample="words")
    with pytest.raises(ValueError, match="got none"):
        measure(resample=())
    with pytest.raises(ValueError, match="a table of embeddings has none of"):
        tp.measure_embeddings(bert(), TOPICS, **BOTH)


# ---------------------------------------------------------------------------- coverage


@pytest.mark.parametrize(
    "setting",
    [
        Setting(sources=15, sizes=(10,) * 8),
        Setting(sources=40, sizes=(6,) * 6),
        Setting(sources=40, fits=4, of_fits=0.15, sizes=(10,) * 8),
    ],
    ids=["few sources", "few words", "fits"],
)
def test_intervals_hold_what_was_planted(setting):
    """The small form of tests/benchmarks/doubt.py; there is room for 4 standard errors of 200 samples below 95 %."""
    found, alone = [], []
    for seed in range(5):
        sums = draw(setting, np.random.default_rng([1, seed]), 40)
        found.append(held(contrast(sums).interval, RATIO))
        alone.append(held(interval_of_sources(*pooled_sums(sums)["by_source"].rows()[1:3]), RATIO))
    assert np.mean(found) > 0.95 - 4 * np.sqrt(0.95 * 0.05 / 200)
    assert np.mean(alone) < np.mean(found)


def test_the_variance_of_fits_is_what_was_planted_without_what_sources_and_words_make_of_their_spread():
    """Factors with a standard deviation of 0.2 are a variance of exp(0.04) − 1 of one fit, a quarter of it of four."""
    sums = draw(Setting(fits=4, of_fits=0.2, sizes=(10,) * 8), np.random.default_rng(5), 40)
    found = doubt_of(sums).beside("ratio", np.arange(40))
    np.testing.assert_allclose(found.fits.mean(), np.expm1(0.04) / 4, rtol=0.3)
    # Fits that do nothing have other words all the same, and so other numbers, which words account for.
    sums = draw(Setting(fits=4, of_words=1.0, sizes=(10,) * 8), np.random.default_rng(6), 20)
    apart = [
        doubt_of(sums, words=words).beside("ratio", np.arange(20)).fits.mean() for words in (True, False)
    ]
    assert apart[0] < 0.5 * apart[1]


def test_effect_sizes_and_ratios_move_with_words_as_derivatives_say():
    """Both numbers, with the sums of one word moved a little, against the gradient that variances are made of."""
    from topic_probe.measure.doubt import _Number

    totals = np.array([[30.0, 44.0, 130.0, 20.0, 40.0]])
    step = np.array([[0.3, -0.2, 0.9, 0.1, 0.2]])

    def number(sums, kind):
        same, different = sums[:, 0] / sums[:, 3], sums[:, 1] / sums[:, 4]
        n = sums[:, 3] + sums[:, 4]
        spread = np.sqrt(sums[:, 2] / n - ((sums[:, 0] + sums[:, 1]) / n) ** 2)
        return {
            "ratio": np.log(same / different),
            "difference": same - different,
            "effect_size": (same - different) / spread,
        }[kind]

    for kind in ("ratio", "difference", "effect_size"):
        by_hand = (number(totals + 1e-4 * step, kind) - number(totals - 1e-4 * step, kind)) / 2e-4
        np.testing.assert_allclose(_Number(totals, kind).moved(step, totals), by_hand, rtol=1e-6)
