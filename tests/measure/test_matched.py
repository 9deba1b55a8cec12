"""Pairs matched on co-occurrence and frequency: counted again pair by pair, and planted effects found and lost."""

import math
import warnings
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
import torch
import zoo
from transformers import BertConfig, BertModel

import topic_probe as tp
from topic_probe.contrast import matched_contrast
from topic_probe.lens import capture
from topic_probe.measure.matched import DISTANCE_BINS, _Comparison, measure_matched
from topic_probe.measure.matching import Bins, MatchedWords, attention_by_class, noted, pair_codes
from topic_probe.measure.options import Intervals, Permutations
from topic_probe.measure.words import LabelledWords
from topic_probe.text.cooccurrence import Cooccurrence, count_cooccurrence

WORDS = list(range(10, 40))
N_DOCUMENTS = 1000


def documents(n=24, seed=0):
    generator = np.random.default_rng(seed)
    return [(5 + generator.zipf(1.3, size=generator.integers(6, 30)).clip(max=50)).tolist() for _ in range(n)]


LISTS = {"a": range(6, 12), "b": range(12, 18), "c": [*range(18, 24), 6]}
# Forms of a word in one topic, in two, in two of which one is the other's too.
TEXTS = {
    7: "War",
    8: " war",
    13: "WAR",
    9: "sea",
    19: " Sea",
    6: "X",
    10: "x",
    20: "(x",
    14: "hen",
    15: "Hen",
}


@pytest.fixture
def topics():
    return tp.Topics.from_token_ids(LISTS, vocabulary_size=zoo.VOCABULARY)


@pytest.fixture
def with_forms(topics):
    """The topics with entries that read as above, and as their number."""
    return replace(topics, texts=tuple(TEXTS.get(entry, f"w{entry}") for entry in topics.words.tolist()))


def word_of(entry, texts=TEXTS):
    return texts.get(entry, f"w{entry}").strip("( ").lower()


# --- attention by classes of pairs --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "gpt2", "bart"])
def test_sums_by_class_are_those_of_a_double_loop_over_own_patterns(name):
    plain = zoo.make(name)
    model = tp.open_model(zoo.make(name))
    view = capture.view(model)
    ids, mask = zoo.documents((20, 9, 14))
    words = sorted(set(ids[mask].tolist()))[::3]
    generator = np.random.default_rng(0)
    codes = np.triu(generator.integers(-1, 12, size=(len(words), len(words))), 1)
    codes = torch.from_numpy(codes + codes.T).int().fill_diagonal_(-1)
    distances = (2, 5)
    found = attention_by_class(
        model,
        tp.Topics.from_token_ids({"all": words}, vocabulary_size=zoo.VOCABULARY),
        codes,
        (ids, mask),
        distances=distances,
        table=True,
        special_ids=(),
    )

    inputs = view.inputs(ids, mask)
    patterns = zoo.own_patterns(plain, inputs)
    n_heads = sum(layer.shape[1] for layers in patterns.values() for layer in layers)
    sums, counts = (np.zeros((n_heads, 4, 3, 3)) for _ in range(2))
    squares = np.zeros((n_heads, 4, 3))
    table, n_table = (np.zeros((len(words), len(words))) for _ in range(2))
    place, start = {word: number for number, word in enumerate(words)}, 0
    for stack, layers in patterns.items():
        for layer, pattern in enumerate(layers):
            visible = zoo.visible(name, stack, layer, inputs)
            asking, asked = (
                inputs.target_ids if side else inputs.ids
                for side in (stack in ("decoder", "cross"), stack == "decoder")
            )
            queries = inputs.target_mask if stack in ("decoder", "cross") else inputs.mask
            heads = slice(start, start + pattern.shape[1])
            start += pattern.shape[1]
            for row, i, j in product(range(3), range(pattern.shape[2]), range(pattern.shape[3])):
                one, other = int(asking[row, i]), int(asked[row, j])
                if not queries[row, i] or not visible[row, i, j] or one not in place or other not in place:
                    continue
                if stack in ("decoder", "cross") and i == 0:
                    continue  # the start token
                if stack == "decoder" and j == 0:
                    continue
                if name == "gpt2" and 0 in (i, j):
                    continue  # where a causal model parks attention
                code = int(codes[place[one], place[other]])
                if code < 0:
                    continue
                score = pattern[row, :, i, j].double().numpy() * int(visible[row, i].sum())
                where = (heads, code // 3, sum(abs(i - j) >= limit for limit in distances), code % 3)
                sums[where] += score
                squares[where[:-1]] += score**2
                counts[where] += 1
                for a, b in ((one, other), (other, one)):
                    table[place[a], place[b]] += score.sum()
                    n_table[place[a], place[b]] += len(score)

    np.testing.assert_array_equal(found.n_heads, counts)
    np.testing.assert_allclose(found.heads, sums, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found.table[1], n_table)
    np.testing.assert_allclose(found.table[0], table, rtol=1e-4, atol=1e-5)
    by_source = found.by_source.total()
    np.testing.assert_allclose(by_source.sums.reshape(4, 3, 3), sums.sum(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(by_source.counts.reshape(4, 3, 3), counts.sum(0))
    np.testing.assert_allclose(found.squares, squares, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(by_source.squares.reshape(4, 3), squares.sum(0), rtol=1e-4, atol=1e-5)
    assert found.record["documents_measured"] == 3


def test_sums_do_not_depend_on_batches_and_a_stream_is_read_once(topics):
    model, texts = zoo.make("bert"), documents()
    counts = count_cooccurrence(texts, topics)
    options = {"cooccurrence": counts, "min_documents": 1, "n_permutations": 20, "n_resamples": 50}
    whole = measure_matched(model, topics, texts, **options)
    stream = iter(texts)
    single = measure_matched(model, topics, stream, batch_size=1, **options)
    assert next(stream, None) is None
    np.testing.assert_allclose(whole.attention.ratio, single.attention.ratio, rtol=1e-5)
    np.testing.assert_allclose(whole.attention.interval, single.attention.interval, rtol=1e-4)
    effects = [report.attention.effect_size_interval for report in (whole, single)]
    np.testing.assert_allclose(*effects, rtol=1e-3, atol=1e-6)
    assert np.isfinite(effects[0]).all()
    np.testing.assert_array_less(effects[0][:, 0], whole.attention.effect_size)
    np.testing.assert_array_less(whole.attention.effect_size, effects[0][:, 1])
    np.testing.assert_array_equal(whole.attention.p_value, single.attention.p_value)


# --- matched means ------------------------------------------------------------------------------------


def test_matched_means_worked_by_hand():
    sums = np.array([[0, 8.0, 3.0], [0, 5.0, 0.0], [0, 6.0, 8.0]])
    counts = np.array([[0, 4.0, 1.0], [0, 5.0, 0.0], [0, 1.0, 2.0]])
    squares = np.array([16.0 + 9.0, 5.0, 36.0 + 32.0])  # 2, 2, 2, 2 and 3; 1, 1, 1, 1, 1; 6 and 4, 4
    found = matched_contrast(sums, counts, squares)
    assert found.same_topic == pytest.approx((4 * 2 + 1 * 6) / 5)
    assert found.different_topic == pytest.approx((4 * 3 + 1 * 4) / 5)
    assert (found.n_same_topic, found.n_different_topic) == (5, 3)
    assert found.effect_size == pytest.approx((2.8 - 3.2) / np.std([2, 2, 2, 2, 3, 6, 4, 4]))


def test_no_bin_with_both_kinds_is_nan_with_a_reason():
    alone = np.array([[0, 1.0, 0], [0, 0, 1.0]])
    found = noted(matched_contrast(alone, alone, np.ones(2)), alone)
    assert math.isnan(found.effect_size)
    assert math.isnan(found.ratio)
    assert "no bin holds pairs" in found.reason


def brute_force(report, score_of, topics, counts, min_documents, texts=None):
    """Matched same-topic and different-topic means of all pairs, bins read off the report's own limits."""
    bins = report.bins["cosine"].index
    member = {
        int(w): set(np.flatnonzero(row)) for w, row in zip(topics.words, topics.membership, strict=True)
    }
    frequency = dict(zip(counts.words.tolist(), counts.document_frequency.tolist(), strict=True))
    kept = [word for word in member if frequency[word] >= min_documents]
    limits = list(
        zip(
            bins["pmi_from"],
            bins["pmi_to"],
            bins["documents_of_one"],
            bins["documents_of_other"],
            strict=True,
        )
    )
    cells = {}
    for one, other in combinations(kept, 2):
        if texts is not None and word_of(one, texts) == word_of(other, texts):
            continue
        row, column = counts.rows_of(torch.tensor([one, other])).tolist()
        together = int(counts.counts[row, column])
        pmi = (
            math.log(together * counts.n_documents / frequency[one] / frequency[other])
            if together
            else -math.inf
        )
        inside = [
            place
            for place, (low, high, first, second) in enumerate(limits)
            if (low <= pmi < high or low == pmi == high)
            and (low == -math.inf) >= (pmi == -math.inf)
            and not (pmi > -math.inf and high == -math.inf)
            and not (pmi == -math.inf and high > -math.inf)
            and any(
                within(frequency[a], first) and within(frequency[b], second)
                for a, b in ((one, other), (other, one))
            )
        ]
        assert len(inside) == 1
        kind = "same" if member[one] & member[other] else "different"
        cells.setdefault(inside[0], {"same": [], "different": []})[kind].append(score_of(one, other))
    both = [cell for cell in cells.values() if cell["same"] and cell["different"]]
    weights = [len(cell["same"]) for cell in both]
    same, different = (
        np.average([np.mean(cell[kind]) for cell in both], weights=weights) for kind in ("same", "different")
    )
    scores = [score for cell in both for kind in ("same", "different") for score in cell[kind]]
    return same, different, (same - different) / np.std(scores)


def within(value, limits):
    low, high = map(int, limits.split("–"))
    return low <= value <= high


def test_matched_cosines_are_those_of_a_loop_over_pairs(topics):
    model, texts = zoo.make("bert"), documents(n=60)
    counts = count_cooccurrence(texts, topics)
    report = measure_matched(
        model, topics, cooccurrence=counts, pmi_bins=3, frequency_bins=3, min_documents=3, n_permutations=0
    )
    table = model.get_input_embeddings().weight.detach().double()
    cosine = torch.nn.functional.cosine_similarity(table[:, None], table[None], dim=-1).numpy()
    for score, values in (("cosine", cosine), ("dot", (table @ table.T).numpy())):
        same, different, effect = brute_force(
            report,
            lambda one, other: values[one, other],  # noqa: B023
            topics,
            counts,
            3,
        )
        found = getattr(report, score)[3]
        assert found.effect_size == pytest.approx(effect)
        assert found.same_topic == pytest.approx(same)
        assert found.different_topic == pytest.approx(different)


def test_pairs_of_forms_of_one_word_are_in_no_bin(with_forms):
    model, texts = zoo.make("bert"), documents(n=60)
    counts = count_cooccurrence(texts, with_forms)
    options = {"pmi_bins": 3, "frequency_bins": 3, "min_documents": 3, "n_permutations": 0, "n_resamples": 0}
    report = measure_matched(model, with_forms, cooccurrence=counts, **options)
    table = model.get_input_embeddings().weight.detach().double()
    dot = (table @ table.T).numpy()
    same, different, _ = brute_force(report, lambda one, other: dot[one, other], with_forms, counts, 3, TEXTS)
    assert report.dot[3].same_topic == pytest.approx(same)
    assert report.dot[3].different_topic == pytest.approx(different)
    rows = counts.rows_of(with_forms.words)
    kept = with_forms.words[counts.document_frequency[rows] >= 3].tolist()
    pairs = [pair for pair in combinations(kept, 2) if word_of(pair[0]) != word_of(pair[1])]
    bins = report.bins["dot"]
    assert (bins.n_same_topic + bins.n_different_topic).sum() == len(pairs) < len(list(combinations(kept, 2)))
    assert report.provenance["words"] == len({word_of(entry) for entry in kept})


@pytest.mark.parametrize("name", ["topics", "with_forms"])
def test_unmatched_numbers_are_those_of_the_plain_measurements(name, request):
    topics = request.getfixturevalue(name)
    model, texts = zoo.make("bert"), documents()
    counts = count_cooccurrence(texts, topics)
    options = {"n_resamples": 0, "n_permutations": 0}
    report = measure_matched(model, topics, texts, cooccurrence=counts, min_documents=0, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # words in no text are left out by the matched measurement only
        topics = topics.restrict(counts.words[counts.document_frequency > 0].tolist())
    plain = tp.measure_embeddings(model, topics, n_resamples=0)
    for score in ("cosine", "dot"):
        matched = getattr(report, score)[0]
        assert matched.ratio == pytest.approx(getattr(plain, score).ratio)
        assert matched.effect_size == pytest.approx(getattr(plain, score).effect_size)
        assert matched.n_same_topic == getattr(plain, score).n_same_topic / 2  # unordered pairs
    attention = tp.measure_attention(model, topics, texts, **options)
    assert report.attention[0].ratio == pytest.approx(attention.overall.ratio, rel=1e-5)
    assert report.attention[0].effect_size == pytest.approx(attention.overall.effect_size, rel=1e-4)
    assert report.attention[0].n_same_topic == attention.overall.n_same_topic


# --- planted effects ----------------------------------------------------------------------------------


def planted_world(seed=0, n_topics=6):
    """Thirty words of six topics; pairs of a topic are far more often pairs that co-occur four times as much."""
    generator = np.random.default_rng(seed)
    topic = np.arange(len(WORDS)) % n_topics
    same = topic[:, None] == topic
    often = generator.random((len(WORDS), len(WORDS))) < np.where(same, 0.7, 0.2)
    often = np.triu(often, 1) | np.triu(often, 1).T
    counts = np.where(often, 40, 10)
    np.fill_diagonal(counts, 100)
    topics = tp.Topics.from_token_ids(
        {str(t): [word for word, its in zip(WORDS, topic, strict=True) if its == t] for t in range(n_topics)},
        vocabulary_size=50,
    )
    return topics, same, often, counts_of(counts)


def counts_of(counts):
    return Cooccurrence(
        words=torch.tensor(WORDS),
        counts=torch.from_numpy(counts.astype(np.int32)),
        n_documents=N_DOCUMENTS,
        vocabulary_size=50,
        complete_above=0,
        provenance={"options": {}, "read": {}},
    )


def model_with(gram):
    """A model whose word embeddings have these dot products between different words (and equal norms)."""
    gram = gram.astype(float)
    np.fill_diagonal(gram, 60.0)
    config = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    model = BertModel(config).double().eval()
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[WORDS, : len(WORDS)] = torch.from_numpy(
            np.linalg.cholesky(gram)
        )
        model.embeddings.word_embeddings.weight[WORDS, len(WORDS) :] = 0
    return model


def test_an_effect_of_co_occurrence_alone_vanishes_when_matched_on_it():
    topics, _, often, counts = planted_world()
    report = measure_matched(model_with(1 + 2.0 * often), topics, cooccurrence=counts)
    ways = list(report.cosine.index["matched_on"])
    assert report.cosine.ratio[0] > 1.3
    assert report.cosine.ratio[ways.index("frequency")] > 1.3
    for way in ("co-occurrence", "co-occurrence and frequency"):
        assert report.cosine.ratio[ways.index(way)] == pytest.approx(1)
        assert report.surviving("dot")[ways.index(way)] == pytest.approx(0, abs=1e-9)
        assert report.cosine.p_value[ways.index(way)] == 1
        low, high = report.cosine.interval[ways.index(way)]
        assert low < 1 < high < 1.2
    assert report.cosine.p_value[0] < 0.05
    assert report.cosine.interval[0, 0] > 1.1


def test_an_effect_of_topics_stays_when_matched():
    topics, same, often, counts = planted_world()
    report = measure_matched(model_with(1 + 2.0 * often + same), topics, cooccurrence=counts)
    assert report.dot.difference[0] > 1.5
    np.testing.assert_allclose(report.dot.difference[2:], 1)
    assert (report.cosine.p_value < 0.05).all()
    assert (report.cosine.interval[:, 0] > 1).all()


def test_an_effect_of_frequency_alone_vanishes_when_matched_on_it():
    topics, _, _, _ = planted_world()
    generator = np.random.default_rng(1)
    topic = np.arange(len(WORDS)) % 6
    frequent = generator.random(len(WORDS)) < np.where(topic < 2, 0.9, 0.1)  # two topics of frequent words
    frequency = np.where(frequent, 200, 50)
    counts = frequency[:, None] * frequency / N_DOCUMENTS  # independent words: PMI is 0 everywhere
    np.fill_diagonal(counts, frequency)
    assert (counts == counts.astype(int))[~np.eye(30, dtype=bool)].mean() > 0.5
    gram = 1 + 2.0 * (frequent[:, None] & frequent)
    report = measure_matched(model_with(gram), topics, cooccurrence=counts_of(counts), pmi_bins=1)
    assert report.cosine.ratio[0] > 1.1
    assert report.cosine.ratio[1] == pytest.approx(1)


def test_random_embeddings_are_called_different_about_as_often_as_promised():
    """Matched on what topics go with, random embeddings have a difference of 0: in 95 % of intervals, by promise."""
    topics, _, _, counts = planted_world()
    model = model_with(np.ones((30, 30)))
    generator = torch.Generator().manual_seed(0)
    covered, small_p = [], []
    for seed in range(24):
        with torch.no_grad():
            model.embeddings.word_embeddings.weight[WORDS] = torch.randn(
                30, 32, dtype=torch.float64, generator=generator
            )
        report = measure_matched(
            model, topics, cooccurrence=counts, statistic="difference", n_resamples=100,
            n_permutations=39, seed=seed,
        )  # fmt: skip
        low, high = report.cosine.interval[3]
        covered.append(low < 0 < high)
        small_p.append(report.cosine.p_value[3] <= 0.05)
    assert np.sum(covered) >= 20  # fewer than 20 of 24 have a chance of 1 % if 95 % hold
    assert np.sum(small_p) <= 4  # more than 4 have a chance of 1 % if 5 % are small


# --- permuted labels ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("frequency_bins", "moves"), [(2, False), (1, True)])
def test_labels_are_permuted_among_words_of_equal_frequency_only(frequency_bins, moves):
    # The words of one topic are frequent and alike, those of the other are rare and are not: permuted within classes of
    # frequency every word keeps its topic, so no permutation gives another number than the true one.
    frequent = np.arange(len(WORDS)) < 15
    topics = tp.Topics.from_token_ids({"a": WORDS[:15], "b": WORDS[15:]}, vocabulary_size=50)
    frequency = np.where(frequent, 200, 50)
    counts = np.full((30, 30), 10)
    np.fill_diagonal(counts, frequency)
    model = model_with(1 + 2.0 * (frequent[:, None] & frequent))
    report = measure_matched(
        model,
        topics,
        cooccurrence=counts_of(counts),
        pmi_bins=1,
        frequency_bins=frequency_bins,
        n_resamples=0,
    )
    assert (report.cosine.p_value[0] < 0.05) == moves
    assert (report.cosine.p_value[0] == 1) == (not moves)


def test_words_that_come_in_copies_are_judged_as_the_words_alone():
    # Every word twice, as two forms with one embedding and the same documents: each pair of words is there four times.
    topics, same, often, counts = planted_world()
    generator = np.random.default_rng(5)
    noise = generator.normal(size=same.shape)
    gram = 1 + 0.2 * often + 0.2 * same + noise + noise.T
    single = model_with(gram)
    table = single.embeddings.word_embeddings.weight
    config = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    double = BertModel(config).double().eval()
    with torch.no_grad():
        double.embeddings.word_embeddings.weight.copy_(torch.cat([table, table]))
    words = topics.words.tolist()
    lists = {
        name: [
            entry + copy
            for row, entry in enumerate(words)
            if topics.membership[row, topic]
            for copy in (0, 50)
        ]
        for topic, name in enumerate(topics.names)
    }
    copies = tp.Topics.from_token_ids(lists, vocabulary_size=100)
    copies = replace(
        copies, texts=tuple(f"{'  '[entry // 50 :]}w{entry % 50}" for entry in copies.words.tolist())
    )
    counted = replace(
        counts,
        words=torch.cat([counts.words, counts.words + 50]),
        counts=counts.counts.repeat(2, 2),
        vocabulary_size=100,
    )
    options = {"pmi_bins": 1, "n_resamples": 200, "n_permutations": 99}
    alone = measure_matched(single, topics, cooccurrence=counts, **options).dot
    twice = measure_matched(double, copies, cooccurrence=counted, **options).dot
    np.testing.assert_allclose(twice.ratio, alone.ratio)
    np.testing.assert_allclose(twice.interval, alone.interval)
    np.testing.assert_array_equal(twice.n_same_topic, 4 * alone.n_same_topic)
    assert 0.02 < alone.p_value[0] < 0.98
    np.testing.assert_allclose(twice.p_value, alone.p_value)


def test_a_word_is_given_the_topics_of_another_with_all_its_forms(with_forms):
    words = LabelledWords(with_forms, torch.arange(len(with_forms.words)))
    place = dict(zip(words.ids.tolist(), words.form.tolist(), strict=True))
    own = dict(zip(words.ids.tolist(), words.group.tolist(), strict=True))
    assert [own[7], own[8]] == [own[11]] * 2 != [own[13]] * 2  # "war" is in two topics
    given = np.arange(words.n_forms)
    given[place[7]], given[place[9]], given[place[6]] = (
        place[9],
        place[6],
        place[7],
    )  # war as sea, sea as x, x as war
    groups = dict(zip(words.ids.tolist(), words.groups_given(given).tolist(), strict=True))
    # Counted round, the third form of war is given the topics of the first of sea.
    assert [groups[entry] for entry in (7, 8, 13)] == [own[9], own[19], own[9]]
    assert [groups[entry] for entry in (9, 19)] == [own[6], own[10]]
    assert [groups[entry] for entry in (6, 10, 20)] == [own[7], own[8], own[13]]
    assert all(groups[entry] == own[entry] for entry in (11, 14, 15, 23))


def test_where_no_word_may_move_the_permuted_pairs_are_the_true_ones():
    # Word 9, in both topics, stands behind some of those that it shares one with.
    topics = tp.Topics.from_token_ids(
        {"a": [7, 9, 12, 13], "b": [6, 8, 9, 10]}, vocabulary_size=zoo.VOCABULARY
    )
    topics = replace(topics, texts=("w6", "war", "sea", "w9", "War", "w12", " war"))
    counts = count_cooccurrence(documents(n=100), topics)
    model = tp.open_model(zoo.make("bert"))
    words = MatchedWords.of(model, topics, counts, min_documents=1, center=False, exclude=())
    bins = Bins.of(words, pmi_bins=1, frequency_bins=1)
    alone = replace(bins, frequency_class=words.form.numpy(), frequency_limits=((0, 99),) * words.n_forms)
    codes = pair_codes(alone.classes, words.same, words.different)
    comparison = _Comparison(words, alone, codes, None, "ratio", Intervals(), Permutations(n_permutations=2))
    for first, second in comparison._permuted_pairs():
        pairs = torch.zeros(len(words), len(words), dtype=torch.int64)
        pairs.index_put_(
            (torch.from_numpy(first), torch.from_numpy(second)), torch.tensor(1), accumulate=True
        )
        assert torch.equal(pairs + pairs.T, words.same.long())


def test_pairs_are_permuted_once_for_all_scores(topics, monkeypatch):
    permuted = _Comparison._permuted_pairs
    drawn = []
    monkeypatch.setattr(
        _Comparison, "_permuted_pairs", lambda self: (drawn.append(1) or pairs for pairs in permuted(self))
    )
    found = measure_matched(
        tp.open_model(zoo.make("bert")), topics, documents(), cooccurrence=count_cooccurrence(documents(n=100), topics),
        min_documents=1, n_permutations=7, statistic="difference",
    )  # fmt: skip
    assert all(np.isfinite(score.p_value[0]) for score in (found.cosine, found.dot, found.attention))
    assert len(drawn) == 7


def test_forms_are_permuted_in_the_class_of_frequency_that_their_documents_together_belong_to(with_forms):
    entries = with_forms.words.tolist()
    # Three classes: up to 10, up to 20, up to 40 documents.
    documents_of = dict.fromkeys(entries, 40) | {7: 10, 8: 10, 13: 20, 9: 5, 19: 12, 14: 10, 15: 9}
    frequency = np.array([documents_of[entry] for entry in entries])
    limits = ((5, 10), (12, 20), (40, 40))
    n = len(entries)
    words = MatchedWords(
        topics=with_forms, places=torch.arange(n), table=torch.zeros(1, 1), index=torch.zeros(n).long(),
        norms=torch.ones(n).double(), left_out={}, frequency=torch.from_numpy(frequency),
        counts=count_cooccurrence(documents(), with_forms),
    )  # fmt: skip
    class_of = np.array([next(k for k, (_, high) in enumerate(limits) if n <= high) for n in frequency])
    bins = Bins(torch.zeros(n, n).long(), class_of, (), limits)
    place = dict(zip(entries, words.form.tolist(), strict=True))
    strata = [set(forms.tolist()) for forms in bins.strata(words)]
    # "hen" (10 and 9) is in one class and stays there; "war" has 40 documents together, "sea" 17.
    assert strata[0] == {place[14]}
    assert strata[1] == {place[9]}
    assert place[7] in strata[2]
    assert sorted(form for forms in strata for form in forms) == list(range(words.n_forms))


# --- what it says of itself ---------------------------------------------------------------------------


@pytest.fixture
def report(topics):
    texts = documents()
    counts = count_cooccurrence(texts, topics)
    return measure_matched(
        zoo.make("bert"),
        topics,
        texts,
        cooccurrence=counts,
        min_documents=2,
        n_resamples=100,
        n_permutations=20,
    )


def test_a_report_has_tables_and_comes_back_from_disk(report, tmp_path):
    table = report.to_dataframe()
    assert table.score.tolist() == ["cosine"] * 4 + ["dot"] * 4 + ["attention"] * 5
    assert table.matched_on.tolist()[-1] == "co-occurrence, frequency and distance"
    assert (table.surviving[table.matched_on == "nothing"] == 1).all()
    assert len(report.to_dataframe("head")) == 12
    assert len(report.to_dataframe("layer")) == 3
    assert "MatchedReport" in repr(report)
    report.save(tmp_path / "report")
    assert tp.load_report(tmp_path / "report") == report


def test_bins_add_up_to_the_matched_numbers(report):
    for score in ("cosine", "dot", "attention"):
        table = report.to_dataframe("bin")
        table = table[(table.score == score)]
        both = table[(table.n_same_topic > 0) & (table.n_different_topic > 0)]
        weights = both.n_same_topic / both.n_same_topic.sum()
        matched = getattr(report, score)[3]
        assert matched.same_topic == pytest.approx((weights * both.same_topic).sum())
        assert matched.different_topic == pytest.approx((weights * both.different_topic).sum())
        coverage = report.coverage["attention" if score == "attention" else "embeddings"][3]
        assert coverage == pytest.approx(both.n_same_topic.sum() / table.n_same_topic.sum())
    assert 0 < coverage <= 1


def test_layers_and_heads_pool_to_each_other(report):
    assert report.heads.n_same_topic[:4].sum() == report.layers.n_same_topic[0]
    # All heads have the same pairs, so bins weigh alike and the means of a layer are those of its heads.
    assert report.layers.same_topic[0] == pytest.approx(report.heads.same_topic[:4].mean())
    assert report.attention[4].different_topic == pytest.approx(report.heads.different_topic.mean())


def test_distances_are_kept_apart():
    assert list(DISTANCE_BINS) == sorted(set(DISTANCE_BINS))
    codes = pair_codes(
        torch.zeros(2, 2, dtype=torch.int64),
        torch.tensor([[True, True], [True, True]]),
        torch.zeros(2, 2, dtype=torch.bool),
    )
    assert codes.tolist() == [[-1, 1], [1, -1]]


# --- bad input ----------------------------------------------------------------------------------------


def test_bad_input_is_refused_with_a_remedy(topics):
    model, texts = zoo.make("bert"), documents()
    counts = count_cooccurrence(texts, topics)
    with pytest.raises(ValueError, match="count it with count_cooccurrence"):
        measure_matched(model, topics, cooccurrence=count_cooccurrence(texts, [1, 2], vocabulary_size=90))
    with pytest.raises(ValueError, match="0 of 18 words with a topic are left"):
        measure_matched(model, topics, cooccurrence=counts, min_documents=10_000)
    with pytest.raises(ValueError, match="1 of 18 words"):
        measure_matched(
            model,
            topics,
            cooccurrence=count_cooccurrence(texts, [8], vocabulary_size=zoo.VOCABULARY),
            min_documents=1,
        )
    with pytest.raises(ValueError, match="pmi_bins and frequency_bins"):
        measure_matched(model, topics, cooccurrence=counts, pmi_bins=0)


def test_nothing_of_a_topic_in_the_documents_is_nan_with_a_reason(topics):
    counts = count_cooccurrence(documents(), topics)
    report = measure_matched(zoo.make("bert"), topics, [[90, 91, 92]], cooccurrence=counts, min_documents=1)
    assert np.isnan(report.attention.ratio).all()
    assert "no pair of different words shares a topic" in report.attention.reason
    assert report.provenance["documents"]["left_out"] == {"documents without a word of any topic": 1}


def test_one_topic_has_nothing_to_compare_with():
    topics = tp.Topics.from_token_ids({"a": range(6, 16)}, vocabulary_size=zoo.VOCABULARY)
    counts = count_cooccurrence(documents(), topics)
    report = measure_matched(zoo.make("bert"), topics, cooccurrence=counts, min_documents=1)
    assert np.isnan(report.cosine.ratio).all()
    assert "no pair of words comes from different topics" in report.cosine.reason
    assert (report.coverage["embeddings"] == 0).all()


def test_words_that_were_not_counted_are_left_out_and_told(topics):
    texts = documents()
    counts = count_cooccurrence(texts, topics, max_words=10)
    report = measure_matched(zoo.make("bert"), topics, cooccurrence=counts, min_documents=1)
    assert report.provenance["left_out"] == {"words that co-occurrence was not counted of": 8}
    assert report.provenance["words"] == 10
