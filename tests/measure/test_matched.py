"""Pairs matched on co-occurrence and frequency: counted again pair by pair, and planted effects found and lost."""

import math
from dataclasses import replace
from functools import cache
from itertools import combinations, product

import numpy as np
import pytest
import torch
import zoo
from transformers import BertConfig, BertModel

import topic_probe as tp
from topic_probe.lens.host import host_of
from topic_probe.measure.ask import ask
from topic_probe.measure.matched import ClassSums, _Pairs, _permuted_words, measure_matched
from topic_probe.measure.options import Reading, Run
from topic_probe.measure.words import LabelledWords, labelled_words
from topic_probe.text.cooccurrence import Cooccurrence, count_cooccurrence

WORDS, N_DOCUMENTS = list(range(10, 40)), 1000
LISTS = {"a": range(6, 12), "b": range(12, 18), "c": [*range(18, 24), 6]}
# Forms of a word in one topic, in two, in two of which one is the other's too.
TEXTS = dict(zip((7, 8, 13), ("War", " war", "WAR"), strict=True))
TEXTS |= {9: "sea", 19: " Sea", 6: "X", 10: "x", 20: "(x", 14: "hen", 15: "Hen"}
PLAIN = tp.Topics.from_token_ids(LISTS, vocabulary_size=zoo.VOCABULARY)
FORMS = replace(PLAIN, texts=tuple(TEXTS.get(entry, f"w{entry}") for entry in PLAIN.words.tolist()))
NOTHING_ELSE = {"n_permutations": 0}


def documents(n=24):
    generator = np.random.default_rng(0)
    return [(5 + generator.zipf(1.3, size=generator.integers(6, 30)).clip(max=50)).tolist() for _ in range(n)]


@cache
def opened(name="bert"):
    return tp.open_model(zoo.make(name))


# --- an independent value -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_sums_of_attention_by_class_are_those_of_a_double_loop_over_own_patterns(name):
    (ids, mask), distances, generator = zoo.documents((20, 9, 14)), (2, 5), np.random.default_rng(0)
    held = sorted({*ids[mask].tolist()})[::3]
    lists = {str(t): sorted({*held[t::4], held[t]}) for t in range(4)} | {"more": held[:5]}
    topics = tp.Topics.from_token_ids(lists, vocabulary_size=zoo.VOCABULARY)
    words = labelled_words(torch.rand(zoo.VOCABULARY, 3), topics)
    words = replace(words, places=words.places.sort().values)
    codes = np.triu(generator.integers(0, 12, size=(len(words), len(words))), 1)
    codes = (codes + codes.T) * ((codes + codes.T) % 3 > 0)
    permuted = generator.permuted(np.tile(words.group.numpy()[:, None], 3), axis=0)
    pairs = _Pairs(words, codes, (2, 2), permuted)
    one_topic = tp.Topics.from_token_ids({"all": words.ids}, vocabulary_size=zoo.VOCABULARY)
    view = host_of(opened(name))
    found = ClassSums(one_topic, torch.from_numpy(codes), sum(view.n_heads), pairs=pairs, distances=distances)
    given, reading = {"input_ids": ids, "attention_mask": mask}, Reading(special_ids=()).of(view.facts)
    ask(view, [found], given, reading=reading, run=Run())
    inputs = view.inputs(ids, mask)
    patterns = zoo.own_patterns(zoo.make(name), inputs)
    by_head, start = np.zeros((sum(view.n_heads), 4, 3, 7)), 0
    null, place = np.zeros((3, 2, 4, 3)), {word: k for k, word in enumerate(words.ids.tolist())}
    member = topics.incidence.table.toarray()[permuted]  # [word, permutation, topic]
    for stack, layer, pattern in ((s, k, p) for s, layers in patterns.items() for k, p in enumerate(layers)):
        visible, heads = zoo.visible(name, stack, layer, inputs), slice(start, start + zoo.HEADS)
        start += zoo.HEADS
        decodes = stack in ("decoder", "cross")
        asking, queries = (inputs.target_ids, inputs.target_mask) if decodes else (inputs.ids, inputs.mask)
        asked = inputs.target_ids if stack == "decoder" else inputs.ids
        for row, i, j in product(range(3), range(pattern.shape[2]), range(pattern.shape[3])):
            one, other = place.get(int(asking[row, i])), place.get(int(asked[row, j]))
            # The start token, and the position to which a causal model parks attention, are no words.
            first = (i == 0 and stack != "encoder") or (j == 0 and stack in ("self", "decoder"))
            if None in (one, other) or first or not queries[row, i] or not visible[row, i, j]:
                continue
            if not (code := int(codes[one, other])):
                continue
            score = pattern[row, :, i, j].double().numpy() * int(visible[row, i].sum())
            at = code // 3, sum(abs(i - j) >= limit for limit in distances)
            by_head[(heads, *at, code % 3)] += score
            by_head[(heads, *at, 3 + code % 3)] += 1
            by_head[(heads, *at, 6)] += score**2
            share = (member[one] & member[other]).any(1)
            null[(slice(None), 0, *at)] += score.sum() * share
            null[(slice(None), 1, *at)] += len(score) * share
    by_source, near = found.sums["by_source"].rows()[1].sum(0), {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(found.sums["by_head"].reshape(by_head.shape), by_head, **near)
    np.testing.assert_allclose(by_source.reshape(4, 3, 7), by_head.sum(0), **near)
    np.testing.assert_allclose(found.sums["null"].reshape(null.shape), null, **near)
    assert null.any(axis=(2, 3)).all()


def word_of(entry, topics):
    return TEXTS.get(entry, f"w{entry}").strip("( ").lower() if topics.texts else entry


@pytest.mark.parametrize("topics", [PLAIN, FORMS], ids=["words", "forms"])
def test_matched_cosines_are_those_of_a_loop_over_pairs_of_different_words(topics):
    counts = count_cooccurrence(documents(60), topics)
    options = {"pmi_bins": 3, "frequency_bins": 3, "min_documents": 3, **NOTHING_ELSE}
    report = measure_matched(opened(), topics, cooccurrence=counts, **options)
    table = zoo.make("bert").get_input_embeddings().weight.detach().double()
    cosine = torch.nn.functional.cosine_similarity(table[:, None], table[None], dim=-1)
    frequency = dict(zip(counts.words.tolist(), counts.document_frequency.tolist(), strict=True))
    topic = {
        w: {*np.flatnonzero(row)} for w, row in zip(topics.words.tolist(), topics.membership, strict=True)
    }
    kept = [word for word in topic if frequency[word] >= 3]
    pairs = [pair for pair in combinations(kept, 2) if word_of(pair[0], topics) != word_of(pair[1], topics)]
    pmi, cells, third = {}, {}, [1 / 3, 2 / 3]
    for one, other in pairs:
        row, column = counts.rows_of(torch.tensor([one, other])).tolist()
        together, own = int(counts.counts[row, column]), (frequency[one], frequency[other])
        pmi[one, other] = math.log(together * counts.n_documents / own[0] / own[1]) if together else -math.inf
    often = [value for pair, value in pmi.items() if topic[pair[0]] & topic[pair[1]] and math.isfinite(value)]
    limits = np.unique(np.quantile(often * 2, third))  # of pairs in either order
    classes = np.unique(np.quantile([frequency[word] for word in kept], third, method="inverted_cdf"))
    for one, other in pairs:
        met = -1 if math.isinf(pmi[one, other]) else sum(pmi[one, other] >= limit for limit in limits)
        cell = met, *sorted(sum(frequency[word] > limit for limit in classes) for word in (one, other))
        kind = "same" if topic[one] & topic[other] else "different"
        cells.setdefault(cell, {"same": [], "different": []})[kind].append((one, other))
    for score, values in (("cosine", cosine), ("dot", table @ table.T)):
        both = [cell for cell in cells.values() if cell["same"] and cell["different"]]
        means = [[np.mean([values[pair] for pair in cell[kind]]) for kind in cell] for cell in both]
        same, different = np.average(means, axis=0, weights=[len(cell["same"]) for cell in both])
        spread = np.std([values[pair] for cell in both for kind in cell for pair in cell[kind]])
        found = getattr(report, score)[3]
        assert found.same_topic == pytest.approx(same)
        assert found.different_topic == pytest.approx(different)
        assert found.effect_size == pytest.approx((same - different) / spread)
    n_same = sum(len(cell["same"]) for cell in cells.values())
    assert report.coverage["embeddings"][3] == sum(len(cell["same"]) for cell in both) / n_same
    assert report.cosine.n_same_topic[0] + report.cosine.n_different_topic[0] == len(pairs)
    assert report.provenance["words"] == len({word_of(entry, topics) for entry in kept})


def test_unmatched_numbers_are_those_of_the_plain_measurements():
    texts, counts = documents(), count_cooccurrence(documents(), FORMS)
    report = measure_matched(opened(), FORMS, texts, cooccurrence=counts, min_documents=0, **NOTHING_ELSE)
    topics = FORMS
    assert set(counts.words[counts.document_frequency > 0].tolist()) == set(FORMS.words.tolist())
    plain = tp.measure_embeddings(opened(), topics)
    attention = tp.measure_attention(opened(), topics, texts, n_permutations=0).overall
    pairs = (report.cosine, plain.cosine, 2), (report.dot, plain.dot, 2), (report.attention, attention, 1)
    for matched, own, n in pairs:
        assert matched.ratio[0] == pytest.approx(own.ratio, rel=1e-5)
        assert matched.effect_size[0] == pytest.approx(own.effect_size, rel=1e-4)
        assert matched.n_same_topic[0] == own.n_same_topic / n  # of words, unordered pairs


# --- an invariance ------------------------------------------------------------------------------------


def test_sums_do_not_depend_on_batches_and_a_stream_is_read_once():
    texts, counts = documents(), count_cooccurrence(documents(), PLAIN)
    options = {"cooccurrence": counts, "min_documents": 1, "n_permutations": 20}
    stream, whole = iter(texts), measure_matched(opened(), PLAIN, texts, **options).attention
    single = measure_matched(opened(), PLAIN, stream, batch_size=1, **options).attention
    assert next(stream, None) is None
    np.testing.assert_allclose(whole.ratio, single.ratio, rtol=1e-5)
    np.testing.assert_allclose(whole.interval, single.interval, rtol=1e-4)
    np.testing.assert_allclose(whole.effect_size_interval, single.effect_size_interval, rtol=1e-3, atol=1e-6)
    np.testing.assert_array_equal(whole.p_value, single.p_value)


def test_a_folder_gives_the_same_report_goes_on_and_refuses_other_pairs(tmp_path):
    texts, counts = documents(), count_cooccurrence(documents(), PLAIN)
    options = {"cooccurrence": counts, "min_documents": 1, "n_permutations": 9, "part_size": 7}
    folder, whole = {"folder": tmp_path / "parts"}, measure_matched(opened(), PLAIN, texts, **options)
    measure_matched(opened(), PLAIN, texts, part=(1, 2), **options, **folder)
    report = measure_matched(opened(), PLAIN, texts, **options, **folder)
    for part in ("cosine", "attention", "heads"):
        found, wanted = getattr(report, part), getattr(whole, part)
        np.testing.assert_allclose(found.ratio, wanted.ratio, rtol=1e-6)
        np.testing.assert_array_equal(found.p_value, wanted.p_value)
    assert tp.load_report(tmp_path / "parts").attention == report.attention
    with pytest.raises(ValueError, match="differs in pairs"):
        measure_matched(opened(), PLAIN, texts, **(options | {"pmi_bins": 3}), **folder)


# --- planted ------------------------------------------------------------------------------------------


def planted_world():
    """Thirty words of six topics; pairs of a topic are far more often pairs that co-occur four times as much."""
    generator, topic = np.random.default_rng(0), np.arange(len(WORDS)) % 6
    same = topic[:, None] == topic
    often = np.triu(generator.random(same.shape) < np.where(same, 0.7, 0.2), 1)
    often = often | often.T
    counts = np.where(often, 40, 10)
    np.fill_diagonal(counts, 100)
    lists = {str(t): [word for word, its in zip(WORDS, topic, strict=True) if its == t] for t in range(6)}
    return tp.Topics.from_token_ids(lists, vocabulary_size=50), same, often, counts_of(counts)


def counts_of(counts):
    return Cooccurrence(
        words=torch.tensor(WORDS), counts=torch.from_numpy(counts.astype(np.int32)), n_documents=N_DOCUMENTS,
        vocabulary_size=50, provenance={"options": {}, "read": {}},
    )  # fmt: skip


def model_of(table):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = BertModel(BertConfig(vocab_size=len(table), **sizes)).double().eval()
    with torch.no_grad():
        model.embeddings.word_embeddings.weight.copy_(table)
    return model


def table_with(gram):
    """Word embeddings with these dot products between different words, and equal norms."""
    gram, table = gram.astype(float), torch.zeros(50, 32, dtype=torch.float64)
    np.fill_diagonal(gram, 60.0)
    table[WORDS, : len(WORDS)] = torch.from_numpy(np.linalg.cholesky(gram))
    return table


def test_an_effect_of_co_occurrence_alone_vanishes_when_matched_on_it_and_one_of_topics_stays():
    topics, same, often, counts = planted_world()
    report = measure_matched(model_of(table_with(1 + 2.0 * often)), topics, cooccurrence=counts)
    # By nothing and by frequency it is there, by co-occurrence (and frequency) it is not.
    assert (report.cosine.ratio[:2] > 1.3).all()
    assert report.cosine.p_value[0] < 0.05
    assert report.cosine.interval[0, 0] > 1.1
    np.testing.assert_allclose(report.cosine.ratio[2:], 1)
    np.testing.assert_allclose(report.dot.difference[2:], 0, atol=1e-9)
    assert (report.cosine.p_value[2:] == 1).all()
    low, high = report.cosine.interval[2:].T
    assert ((low < 1) & (high > 1) & (high < 1.2)).all()
    report = measure_matched(model_of(table_with(1 + 2.0 * often + same)), topics, cooccurrence=counts)
    np.testing.assert_allclose(report.dot.difference[2:], 1)
    assert (report.cosine.p_value < 0.05).all()
    assert (report.cosine.interval[:, 0] > 1).all()


# --- permuted labels ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("frequency_bins", "moves"), [(2, False), (1, True)])
def test_labels_are_permuted_among_words_of_equal_frequency_only(frequency_bins, moves):
    # The words of one topic are frequent and alike, those of the other are rare and are not: permuted within classes of
    # frequency every word keeps its topic, so no permutation gives another number than the true one.
    frequent, counts = np.arange(len(WORDS)) < 15, np.full((30, 30), 10)
    topics = tp.Topics.from_token_ids({"a": WORDS[:15], "b": WORDS[15:]}, vocabulary_size=50)
    np.fill_diagonal(counts, np.where(frequent, 200, 50))
    model = model_of(table_with(1 + 2.0 * (frequent[:, None] & frequent)))
    options = {"pmi_bins": 1, "frequency_bins": frequency_bins}
    report = measure_matched(model, topics, cooccurrence=counts_of(counts), **options)
    assert report.cosine.ratio[0] > 1.1
    assert np.isnan(report.cosine.ratio[1]) != moves  # no bin of equal frequency holds both kinds
    assert (report.cosine.p_value[0] < 0.05) == moves
    assert (report.cosine.p_value[0] == 1) == (not moves)


def test_words_that_come_in_copies_are_judged_as_the_words_alone():
    # Every word twice, as two forms with one embedding and the same documents: each pair of words is there four times.
    topics, same, often, counts = planted_world()
    noise = np.random.default_rng(5).normal(size=same.shape)
    table = table_with(1 + 0.2 * often + 0.2 * same + noise + noise.T)
    member = zip(topics.words.tolist(), topics.membership.int().argmax(1).tolist(), strict=True)
    lists = {name: [] for name in topics.names}
    for word, topic in member:
        lists[topics.names[topic]] += [word, word + 50]
    copies = tp.Topics.from_token_ids(lists, vocabulary_size=100)
    texts = (f"{'  '[word // 50 :]}w{word % 50}" for word in copies.words.tolist())
    again = {"words": torch.cat([counts.words, counts.words + 50]), "counts": counts.counts.repeat(2, 2)}
    counted = replace(counts, vocabulary_size=100, **again)
    options = {"pmi_bins": 1, "n_permutations": 99}
    alone = measure_matched(model_of(table), topics, cooccurrence=counts, **options).dot
    copies, model = replace(copies, texts=tuple(texts)), model_of(torch.cat([table, table]))
    twice = measure_matched(model, copies, cooccurrence=counted, **options).dot
    np.testing.assert_allclose(twice.ratio, alone.ratio)
    np.testing.assert_allclose(twice.interval, alone.interval)
    np.testing.assert_array_equal(twice.n_same_topic, 4 * alone.n_same_topic)
    assert 0.02 < alone.p_value[0] < 0.98
    np.testing.assert_allclose(twice.p_value, alone.p_value)


def test_a_word_is_given_the_topics_of_another_with_all_its_forms_in_the_class_of_their_documents_together():
    words = LabelledWords(FORMS, torch.arange(len(FORMS.words)))
    place = dict(zip(words.ids.tolist(), words.form.tolist(), strict=True))
    own, given = dict(zip(words.ids.tolist(), words.group.tolist(), strict=True)), np.arange(words.n_forms)
    for word, other in ((7, 9), (9, 6), (6, 7)):  # war is given what sea has, sea what x has, x what war has
        given[place[word]] = place[other]
    groups = dict(zip(words.ids.tolist(), words.groups_given(given).tolist(), strict=True))
    # Counted round, the third form of war is given the topics of the first of sea.
    wanted = {7: own[9], 8: own[19], 13: own[9], 9: own[6], 19: own[10], 6: own[7], 10: own[8], 20: own[13]}
    assert groups == own | wanted
    # Words of one rank take each other's place; a word is of the rank of its most frequent form.
    form, rank = np.array([0, 0, 1, 2, 2, 3, 4]), np.array([0, 1, 0, 1, 1, 0, 0])
    permuted = _permuted_words(form, rank, 50, 0)
    assert {*map(tuple, np.sort(permuted[[0, 2]], axis=0).T)} == {(0, 2)}
    assert {*map(tuple, np.sort(permuted[[1, 3, 4]], axis=0).T)} == {(1, 3, 4)}
    assert len({*map(tuple, permuted.T)}) == 12


# --- what it says of itself ---------------------------------------------------------------------------


def test_a_report_has_tables_that_add_up_and_comes_back_from_disk(tmp_path):
    counts = count_cooccurrence(documents(), PLAIN)
    options = {"min_documents": 2, "n_permutations": 20}
    report = measure_matched(opened(), PLAIN, documents(), cooccurrence=counts, **options)
    table = report.to_dataframe()
    assert table.score.tolist() == ["cosine"] * 4 + ["dot"] * 4 + ["attention"] * 5
    assert tp.load_report(report.save(tmp_path / "report")) == report
    # All heads have the same pairs, so bins weigh alike and the means of a layer are those of its heads.
    assert (len(report.heads), len(report.layers)) == (12, 3)
    assert report.layers.same_topic[0] == pytest.approx(report.heads.same_topic[:4].mean())
    assert report.attention[4].different_topic == pytest.approx(report.heads.different_topic.mean())


def test_what_there_is_nothing_of_is_nan_or_left_out_and_says_why():
    topics, same, _, _ = planted_world()
    apart = counts_of(np.where(same, 40, 10) + 60 * np.eye(30, dtype=int))
    report = measure_matched(model_of(table_with(1.0 + same)), topics, cooccurrence=apart, **NOTHING_ELSE)
    assert np.isnan([report.cosine.ratio[2], report.cosine.effect_size[2]]).all()
    assert "no bin holds pairs" in report.cosine.reason
    few, given = count_cooccurrence(documents(), PLAIN, max_words=10), {"min_documents": 1, **NOTHING_ELSE}
    report = measure_matched(opened(), PLAIN, cooccurrence=few, **given)
    assert report.provenance["left_out"] == {"words that co-occurrence was not counted of": 8}


def test_bad_input_is_refused_with_a_remedy():
    for topics, size, options, said in (
        ([1, 2], 90, {}, "count it with count_cooccurrence"),
        ([8], zoo.VOCABULARY, {"min_documents": 1}, "1 of 18 words"),
        ([8, 9], zoo.VOCABULARY, {"pmi_bins": 0}, "pmi_bins and frequency_bins"),
    ):
        counts = count_cooccurrence(documents(), topics, vocabulary_size=size)
        with pytest.raises(ValueError, match=said):
            measure_matched(opened(), PLAIN, cooccurrence=counts, **options)
