"""Standard deviations of pair scores, effect sizes and their intervals, against double loops over pairs of words.

And what sums by topic hold too often of pairs that share several topics.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

import topic_probe as tp
from topic_probe.measure import pair_sums as pair_sums_module
from topic_probe.measure import words as words_module
from topic_probe.measure.pair_sums import group_sums, mates, pair_squares, word_ends
from topic_probe.measure.words import EmbeddingWords, labelled_words
from topic_probe.topics import Topics, incidence
from topic_probe.uncertainty import word_interval, word_intervals

VOCABULARY = 40
# Words in two and three topics, two words that share two topics and two that share three, a topic of one word.
OVERLAPPING = {
    "a": [1, 2, 3, 9, 14],
    "b": [3, 4, 5, 11, 14, 9],
    "c": [7, 14, 3],
    "d": [8, 3, 7, 20, 21],
    "e": [13],
}
DISJOINT = {"a": [1, 2, 3, 9], "b": [4, 5, 11, 30, 31, 32, 33, 34], "c": [7], "d": [8, 20, 21]}
ONE_TOPIC = {"a": [1, 2, 3, 4]}
LISTS = {"overlapping": OVERLAPPING, "disjoint": DISJOINT, "one topic": ONE_TOPIC}
# Forms of a word in one topic, in several that share none, in more and fewer topics.
TEXTS = {1: "War", 2: " war", 3: "WAR", 8: "(war", 4: "sea", 20: " Sea", 7: "x", 13: "X", 9: "army"}


def table(width, seed=0, mean=0.5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(VOCABULARY, width, generator=generator, dtype=torch.float64) + mean


def topics_of(lists, *, texts):
    plain = tp.Topics.from_token_ids(lists, vocabulary_size=VOCABULARY)
    if not texts:
        return plain
    return replace(plain, texts=tuple(TEXTS.get(entry, f"w{entry}") for entry in plain.words.tolist()))


def word_of(entry, texts):
    return TEXTS.get(entry, f"w{entry}").strip("( ").lower() if texts else entry


def pairs_of(rows, lists, *, texts, without=()):
    """All pairs of different words: entries, topics they share, cosine and dot product."""
    ids = sorted({entry for some in lists.values() for entry in some} - set(without))
    of = {entry: {name for name, some in lists.items() if entry in some} for entry in ids}
    for i, j in itertools.permutations(ids, 2):
        if word_of(i, texts) != word_of(j, texts):
            dot = float(rows[i] @ rows[j])
            yield i, j, of[i] & of[j], (dot / float(rows[i].norm() * rows[j].norm()), dot)


# Two or three numbers of a row, whose halves of moments have even and odd rows: fewer than words, so that sums go
# through moments; thirty: more.
@pytest.mark.parametrize("width", [2, 3, 30])
@pytest.mark.parametrize("texts", [False, True], ids=["ids", "forms"])
@pytest.mark.parametrize("lists", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("exclude", [(), (2, 3, 20)])
@pytest.mark.parametrize("by_form", [True, False], ids=["of words", "sums alone"])
def test_squares_are_those_of_a_double_loop(width, texts, lists, exclude, by_form, monkeypatch):
    monkeypatch.setattr(pair_sums_module, "_WORDS_PER_MOMENT", 0)
    rows, topics = table(width), topics_of(lists, texts=texts)
    words = labelled_words(rows, topics, exclude=exclude)
    found = pair_squares(words, group_sums(words), by_form=by_form)
    total, of_topics = np.zeros(2), np.zeros((2, len(lists)))
    of_words = {}
    for i, _, shared, scores in pairs_of(rows, lists, texts=texts, without=exclude):
        squares = np.square(scores)
        total += squares
        of_words[word_of(i, texts)] = of_words.get(word_of(i, texts), 0) + squares
        for number, (name, ids) in enumerate(lists.items()):
            # Within the topic; or from it to words that it shares no topic with.
            if name in shared or (i in ids and not shared):
                of_topics[:, number] += squares
    np.testing.assert_allclose(found.total, total, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.topics, of_topics, rtol=1e-9, atol=1e-10)
    # Sums alone go through the moments of groups wherever they may.
    assert (found.by_form is None) == (not by_form and len(words) > 2 * width)
    if found.by_form is None:
        return
    for entry, form in zip(words.ids.tolist(), words.form.tolist(), strict=True):
        expected = of_words.get(word_of(entry, texts), 0)
        np.testing.assert_allclose(found.by_form[form].numpy(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("width", [3, 30])
def test_blocks_of_words_change_nothing(width, monkeypatch):
    words = labelled_words(table(width), topics_of(OVERLAPPING, texts=True))
    expected = pair_squares(words, group_sums(words))
    monkeypatch.setattr(pair_sums_module, "_BLOCK", 2)
    found = pair_squares(words, group_sums(words))
    torch.testing.assert_close(found.by_form, expected.by_form)
    np.testing.assert_allclose(found.topics, expected.topics, rtol=1e-10)


def test_moments_of_groups_are_kept_only_where_they_are_few_and_of_many_words(monkeypatch):
    def moments_of_groups(width, size):
        rows, topics, _ = drawn(np.random.default_rng(0), 4, size, width, 0.3)
        return pair_sums_module._moments_of_groups_fit(labelled_words(rows, topics))

    # 4 · 128 words are enough for four groups, and more than twice the width; 4 · 5² numbers are kept.
    assert moments_of_groups(5, 128)
    assert not moments_of_groups(5, 127)
    assert not moments_of_groups(256, 128)
    monkeypatch.setattr(pair_sums_module, "_KEPT", 99)
    assert not moments_of_groups(5, 128)


@pytest.mark.parametrize("by_form", [True, False], ids=["words", "groups"])
@pytest.mark.parametrize("overlap", [False, True], ids=["disjoint", "overlapping"])
def test_squares_of_a_float32_table_are_those_in_float64_to_its_rounding(by_form, overlap, monkeypatch):
    rows, topics, _ = drawn(np.random.default_rng(2), 6, 400, 64, 0.3)
    if overlap:
        lists = {str(t): [*range(400 * t, 400 * t + 400), 7, 500 + t] for t in range(6)}
        topics = Topics.from_token_ids(lists, vocabulary_size=2400)
    # A group of one word has moments, too.
    monkeypatch.setattr(pair_sums_module, "_WORDS_PER_MOMENT", 1)
    rows = rows.float()
    exact = labelled_words(rows.double(), topics)
    expected = pair_squares(exact, group_sums(exact))
    monkeypatch.setattr(words_module, "_SMALL", 0)
    words = labelled_words(rows, topics)
    assert words.rough
    found = pair_squares(words, group_sums(words), by_form=by_form)
    np.testing.assert_allclose(found.total, expected.total, rtol=1e-7)
    np.testing.assert_allclose(found.topics, expected.topics, rtol=1e-7)


@pytest.mark.parametrize("width", [3, 30])
def test_a_table_that_is_added_up_in_float32_is_as_exact_as_float32(width, monkeypatch):
    rows = table(width).float()
    words = labelled_words(rows, topics_of(OVERLAPPING, texts=True))
    expected = pair_squares(words, group_sums(words))
    monkeypatch.setattr(words_module, "_SMALL", 0)
    words = labelled_words(rows, topics_of(OVERLAPPING, texts=True))
    assert words.vectors().dtype == torch.float32
    found = pair_squares(words, group_sums(words))
    torch.testing.assert_close(found.by_form, expected.by_form, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.topics, expected.topics, rtol=1e-5, atol=1e-5)


def model(rows):
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4}
    bert = BertModel(BertConfig(vocab_size=VOCABULARY, hidden_size=rows.shape[1], **sizes)).double().eval()
    bert.get_input_embeddings().weight.data.copy_(rows)
    return bert


@pytest.mark.parametrize("width", [4, 30])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("lists", [OVERLAPPING, DISJOINT], ids=["overlapping", "disjoint"])
def test_effect_sizes_of_embeddings_and_of_every_topic_are_those_of_lists_of_scores(width, center, lists):
    rows = table(width)
    report = tp.measure_embeddings(model(rows), topics_of(lists, texts=True), center=center)
    if center:
        rows = rows - rows.mean(0)
    pairs = list(pairs_of(rows, lists, texts=True))
    for score, found, by_topic in ((0, report.cosine, "cosine"), (1, report.dot, "dot")):
        same = [scores[score] for _, _, shared, scores in pairs if shared]
        different = [scores[score] for _, _, shared, scores in pairs if not shared]
        expected = (np.mean(same) - np.mean(different)) / np.std(same + different)
        assert found.effect_size == pytest.approx(expected, rel=1e-8)
        if lists is DISJOINT:  # of the others, fewer than eight words have pairs of both kinds
            low, high = found.effect_size_interval
            assert low < found.effect_size < high
        for number, (name, ids) in enumerate(lists.items()):
            same = [scores[score] for _, _, shared, scores in pairs if name in shared]
            different = [scores[score] for i, _, shared, scores in pairs if i in ids and not shared]
            cell = report.topics[by_topic][number]
            assert (cell.n_same_topic, cell.n_different_topic) == (len(same), len(different))
            if not same or not different:
                assert np.isnan(cell.effect_size)
                continue
            expected = (np.mean(same) - np.mean(different)) / np.std(same + different)
            assert cell.effect_size == pytest.approx(expected, rel=1e-8)


def test_without_effect_sizes_all_other_numbers_are_the_same():
    topics = topics_of(OVERLAPPING, texts=True)
    whole, means = (
        tp.measure_embeddings(model(table(4)), topics, effect_size=wanted) for wanted in (True, False)
    )
    assert means.cosine.effect_size_interval is None
    assert np.isnan(means.cosine.effect_size)
    assert "effect_size" not in means.to_dataframe()
    assert replace(whole.cosine, spread=None, effect_size_interval=None) == means.cosine
    assert replace(whole.topics["dot"], spread=None) == means.topics["dot"]
    assert not means.provenance["options"]["effect_size"]
    assert tp.measure_embeddings(model(table(4)), topics, n_resamples=0).cosine.effect_size_interval is None


def test_states_have_the_effect_size_of_all_their_pairs():
    bert, topics = model(table(6)), topics_of(OVERLAPPING, texts=False)
    documents = [[1, 3, 9, 20, 13, 5], [7, 3, 14, 14, 2, 39, 4], [1, 2, 3]]
    report = tp.measure_embeddings(bert, topics, documents, special_ids=(), n_resamples=0)
    scores = {"same": [], "different": []}
    for document in documents:
        with torch.no_grad():
            states = bert(input_ids=torch.tensor([document]), output_hidden_states=True).hidden_states[1][0]
        for (a, i), (b, j) in itertools.product(enumerate(document), repeat=2):
            of = [{name for name, ids in OVERLAPPING.items() if entry in ids} for entry in (i, j)]
            if i != j and all(of):
                cosine = float(torch.cosine_similarity(states[a], states[b], dim=0))
                scores["same" if of[0] & of[1] else "different"].append(cosine)
    difference = np.mean(scores["same"]) - np.mean(scores["different"])
    expected = difference / np.std(scores["same"] + scores["different"])
    assert report.layers["cosine"].effect_size[1] == pytest.approx(expected, rel=1e-7)


# ---------------------------------------------------------------- intervals


def drawn(generator, n_topics, size, width, strength):
    """A table of words that lie around the directions of their topics, and these topics."""
    centres = generator.normal(0, strength, (n_topics, width)) + 0.5
    rows = np.repeat(centres, size, axis=0) + generator.normal(0, 1, (n_topics * size, width))
    lists = {str(t): list(range(t * size, (t + 1) * size)) for t in range(n_topics)}
    return torch.from_numpy(rows), tp.Topics.from_token_ids(lists, vocabulary_size=len(rows)), centres


def intervals_of(rows, topics, **options):
    words = labelled_words(rows, topics)
    sums = group_sums(words)
    of_words = 2 * pair_squares(words, sums).by_form.numpy()
    return word_intervals(word_ends(words, sums), of_words, words.strata, **options)


def test_the_interval_of_the_statistic_does_not_move_where_that_of_the_effect_size_is_asked_for():
    rows, topics, _ = drawn(np.random.default_rng(0), 4, 10, 8, 0.3)
    words = labelled_words(rows, topics)
    alone = word_interval(word_ends(words, group_sums(words, seed=0)), words.strata)
    both = intervals_of(rows, topics)
    np.testing.assert_allclose(both[0], alone, rtol=1e-12)
    np.testing.assert_array_less(both[1][:, 0], both[1][:, 1])


def test_the_interval_of_an_effect_size_does_not_depend_on_the_scale_of_scores():
    rows, topics, _ = drawn(np.random.default_rng(1), 4, 10, 8, 0.3)
    one, other = (intervals_of(factor * rows, topics)[1] for factor in (1.0, 7.0))
    np.testing.assert_allclose(one, other, rtol=1e-9)


def test_fewer_than_eight_words_have_no_interval():
    rows, topics, _ = drawn(np.random.default_rng(0), 2, 3, 8, 0.3)
    assert np.isnan(intervals_of(rows, topics)[1]).all()


@pytest.mark.slow
@pytest.mark.parametrize("strength", [0.0, 0.1, 0.5], ids=["none", "weak", "strong"])
def test_intervals_of_effect_sizes_cover_the_truth(strength):
    """Eight topics of twelve words around fixed directions; the truth is that of all words there could be."""
    width, n, size = 16, 8, 12
    generator = np.random.default_rng(3)
    centres = generator.normal(0, strength, (n, width)) + 0.5

    def draw(size):
        return np.repeat(centres, size, axis=0) + generator.normal(0, 1, (n * size, width))

    rows = draw(40_000)
    # Of two words with expected vectors a and b and expected outer products A and B, the score is expected to be a·b,
    # its square tr(AB); there are 12 · 11 pairs of a topic, 12² of two topics.
    pairs = size**2 - size * np.eye(n)
    near, far = pairs * np.eye(n), pairs * (1 - np.eye(n))
    truth = []
    for vectors in (rows / np.linalg.norm(rows, axis=1, keepdims=True), rows):
        vectors = vectors.reshape(n, -1, width)
        mean, outer = vectors.mean(1), np.einsum("twv,twu->tvu", vectors, vectors) / vectors.shape[1]
        scores, squares = mean @ mean.T, np.einsum("tvu,suv->ts", outer, outer)
        variance = np.average(squares, weights=pairs) - np.average(scores, weights=pairs) ** 2
        difference = np.average(scores, weights=near) - np.average(scores, weights=far)
        truth.append(difference / np.sqrt(variance))
    lists = {str(t): list(range(t * size, (t + 1) * size)) for t in range(n)}
    topics = tp.Topics.from_token_ids(lists, vocabulary_size=n * size)
    runs, covered = 250, np.zeros(2)
    for run in range(runs):
        found = intervals_of(torch.from_numpy(draw(size)), topics, n_resamples=400, seed=run)[1]
        covered += (found[:, 0] <= truth) & (truth <= found[:, 1])
    # A share of 0.95 in 250 runs has a standard error of 0.014; these are 2.5 of them on either side.
    assert ((covered / runs >= 0.915) & (covered / runs <= 0.985)).all(), covered / runs


# ----------------------------------------------------------------------- pairs that share several topics

# How many of so many words are in each of so many topics: few words share several, most do, groups of many words do.
SHARED = {"few": (25, 12, 90), "most": (12, 40, 90), "groups": (3, 30, 60)}


def some_topics(n_topics, n_words, n):
    generator = np.random.default_rng(4)
    lists = {str(topic): generator.choice(n, n_words, replace=False).tolist() for topic in range(n_topics)}
    return Topics.from_token_ids(lists, vocabulary_size=n)


@pytest.mark.parametrize("case", SHARED)
@pytest.mark.parametrize("crowded", [True, False], ids=["all pairs", "by topic"])
@pytest.mark.parametrize("few", [True, False], ids=["in tables", "by moments"])
@pytest.mark.parametrize("picked", [0, 10_000], ids=["picked", "in blocks"])
def test_what_words_have_with_those_that_share_a_topic_is_that_of_a_double_loop(
    case, crowded, few, picked, monkeypatch
):
    monkeypatch.setattr(incidence.Incidence, "crowded", crowded)
    monkeypatch.setattr(pair_sums_module, "_few", lambda words, n: few)
    monkeypatch.setattr(pair_sums_module, "_PICKED", picked)
    monkeypatch.setattr(pair_sums_module, "_ROWS_PER_BLOCK", 7)  # several blocks
    monkeypatch.setattr(incidence, "_COUNTS", 2**8)
    topics = some_topics(*SHARED[case])
    # Some words are not measured, so some groups have no word.
    words = torch.from_numpy(np.flatnonzero(np.arange(len(topics.words)) % 5))
    words = words[topics.group_of_word[words].argsort(stable=True)]
    sets = [set(topics.topics_of(word)) for word in words.tolist()]
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(len(words), 6, generator=generator, dtype=torch.float64)
    half = torch.randint(2, (len(words),), generator=generator)
    norms = rows.norm(dim=1)
    n, sums, squares = np.zeros((len(words), 2)), np.zeros((len(words), 2, 2)), np.zeros((len(words), 2))
    of_topics, squares_of_topics, shared = *np.zeros((2, topics.n_topics, 2)), set()
    for i, j in np.ndindex(len(words), len(words)):
        common = sets[i] & sets[j]
        shared |= {len(common)} if sets[i] != sets[j] else set()
        dot = float(rows[i] @ rows[j])
        scores = np.array([dot / float(norms[i] * norms[j]), dot])
        n[i, half[j]] += bool(common)
        sums[i, half[j]] += bool(common) * scores
        squares[i] += bool(common) * scores**2
        of_topics[list(common)] += scores
        squares_of_topics[list(common)] += scores**2
    assert shared >= ({0, 1, 2, 3} if case != "groups" else {0, 1, 2})
    measured = EmbeddingWords(topics, words, rows, torch.arange(len(words)), norms, {})
    found = mates(measured, half)
    np.testing.assert_array_equal(found.n, n)
    np.testing.assert_allclose(found.sums, sums, atol=1e-10)
    np.testing.assert_allclose(found.squares, squares, atol=1e-10)
    np.testing.assert_allclose(found.of_topics, of_topics, atol=1e-10)
    np.testing.assert_allclose(found.squares_of_topics, squares_of_topics, atol=1e-10)
    torch.testing.assert_close(mates(measured, half, squares=False).sums, found.sums)
