"""Table 2: both averages against a direct computation, on a real checkpoint, and without any."""

import math
from collections import Counter
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from real_text import minilm_folder
from small_language import N_TOPICS, corpus, save_model
from transformers import AutoModel

import topic_probe as tp
from topic_probe.paper import reproduce, table2
from topic_probe.paper.pretrained import OnText, TextSettings, prepare_all
from topic_probe.paper.recipe import Run
from topic_probe.paper.table1 import PRINTED
from topic_probe.text.bags import word_ids

# Twelve words of 97 per topic, all documents of 20 tokens.
SMALL = TextSettings(n_topics=N_TOPICS, passes=5, length=20, n_documents=12)
THRESHOLDS = (0.06, 0.12)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_model("bert", tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def result(bert):
    return reproduce("table2", models={"bert": bert}, corpus=corpus(), settings=SMALL, thresholds=THRESHOLDS)


def rows_of(result, threshold):
    rows = [row for row in result.tables["table2"] if row["threshold"] == threshold]
    return {row["score"]: row for row in rows}


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_averages_are_those_of_a_direct_computation(bert, result, threshold):
    (one,) = prepare_all(Run(table2.RECIPE), OnText({"bert": bert}, corpus(), SMALL))
    topics = one.topics(threshold)
    topic, shuffled = (
        {int(word): int(row.int().argmax()) for word, row in zip(of.words, of.membership, strict=True)}
        for of in (topics, topics.shuffled(0))
    )
    words = set(word_ids(one.tokenizer).tolist())
    together = Counter()
    for article in one.articles:
        # Windows are as the model would see them, with a special token at either end.
        ids, length = article.ids.tolist()[1:-1], SMALL.length - 2
        for start in range(0, len(ids), length):
            window = sorted(words & set(ids[start : start + length]))
            together.update(combinations(window, 2))
    size = Counter(topic.values()).most_common(1)[0][1]
    n = size * (size - 1) // 2
    top = set(sorted(together, key=lambda pair: (-together[pair], pair))[:n])
    same, dealt = (
        {pair for pair in combinations(sorted(of), 2) if of[pair[0]] == of[pair[1]]}
        for of in (topic, shuffled)
    )
    assert same != dealt

    model = AutoModel.from_pretrained(bert, attn_implementation="eager").eval()
    table = model.get_input_embeddings().weight.detach().double()
    table /= table.norm(dim=1, keepdim=True)
    kinds = {"same_topic": same, "most_frequent": top, "shuffled": dealt}
    attention = {name: [] for name in kinds}
    for document in one.documents:
        ids = document.ids.tolist()
        with torch.no_grad():
            layers = model(document.ids[None], output_attentions=True).attentions
        pattern = (
            torch.stack([layer.reshape(-1, len(ids), len(ids)) for layer in layers]).double().mean((0, 1))
        )
        for i, first in enumerate(ids):
            for j, second in enumerate(ids):
                pair = (min(first, second), max(first, second))
                for name, pairs in kinds.items():
                    if first != second and pair in pairs:
                        attention[name].append(float(pattern[i, j]) * len(ids))

    found = rows_of(result, threshold)
    for column, pairs in kinds.items():
        cosine = np.mean([float(table[a] @ table[b]) for a, b in pairs])
        assert found["cosine"][column] == pytest.approx(cosine, rel=1e-5)
        assert found["attention"][column] == pytest.approx(np.mean(attention[column]), rel=1e-5)
        assert found["attention"]["shuffled_quotient"] == pytest.approx(
            found["attention"]["shuffled"] / found["attention"]["most_frequent"]
        )
    assert found["cosine"]["pairs"] == n
    assert found["cosine"]["quotient"] == pytest.approx(
        found["cosine"]["same_topic"] / found["cosine"]["most_frequent"]
    )


def test_forms_of_one_word_are_no_pair_of_the_same_topic():
    topics = replace(
        tp.Topics.from_token_ids({"a": [0, 1, 2], "b": [3]}, vocabulary_size=5),
        texts=("President", " president", "law", "song"),
    )
    topics_shuffled = replace(topics, assignments=torch.tensor([[0, 0], [1, 0], [2, 1], [3, 0]]))
    compared = SimpleNamespace(
        words=torch.arange(4),
        topics={0.1: topics},
        shuffled={0.1: topics_shuffled},
        top=(torch.tensor([2]), torch.tensor([3]), torch.tensor([9])),
        n_pairs={0.1: 1},
    )
    same, top, different, shuffled = (
        flags.nonzero().tolist() for flags in table2._Comparison._flags(compared)
    )
    assert same == [[0, 2], [1, 2], [2, 0], [2, 1]]
    assert top == [[2, 3], [3, 2]]
    assert different == [[0, 3], [1, 3], [2, 3], [3, 0], [3, 1], [3, 2]]
    assert shuffled == [[0, 3], [1, 3], [3, 0], [3, 1]]


def test_every_average_lies_in_its_interval(result):
    for row in rows_of(result, THRESHOLDS[1]).values():
        for name in ("same_topic", "most_frequent"):
            assert row[f"{name}_low"] < row[name] < row[f"{name}_high"]
        assert row["complete"]
    attention = rows_of(result, THRESHOLDS[1])["attention"]
    assert attention["low"] < attention["quotient"] < attention["high"]


def test_rare_words_are_left_out_step_by_step(result):
    steps = [row for row in result.tables["rare words left out"] if row["threshold"] == THRESHOLDS[1]]
    (first,) = [row for row in steps if row["in_at_least"] == 5]
    report = result.reports["matched"]["bert, 0.12"]
    assert first["words"] == report.provenance["words"]
    assert first["matched_ratio"] == report.cosine.ratio[3]
    assert [row["words"] for row in steps] == sorted((row["words"] for row in steps), reverse=True)


def claim_of(result, statement, threshold):
    (found,) = [
        claim
        for claim in result.claims
        if claim.text == statement.text and claim.setting == f"bert, {threshold:g}"
    ]
    return found


def test_all_claims_are_there_for_every_threshold(result):
    assert len(result.claims) == 4 * len(THRESHOLDS)
    for threshold in THRESHOLDS:
        less, more, similar, attention = (claim_of(result, one, threshold) for one in table2._STATEMENTS)
        assert (less.below, more.above) == (1, 1)
        row = rows_of(result, threshold)["attention"]
        assert less.measured.value == row["quotient"]
        assert less.controls["shuffled labels"].value == row["shuffled_quotient"]
        assert (less.ours, more.ours, similar.ours, attention.ours) == (False, False, True, True)


def test_controls_of_the_matched_comparison_are_shuffles_and_the_untrained_twin(bert, result):
    (one,) = prepare_all(Run(table2.RECIPE), OnText({"bert": bert}, corpus(), SMALL))
    topics, length = one.topics(THRESHOLDS[1]), SMALL.length
    words = torch.unique(torch.cat([topics.words, one.topics(THRESHOLDS[0]).words]))
    counts = tp.count_cooccurrence(
        one.articles, words, vocabulary_size=one.fit.vocabulary_size, max_words=len(words) + 1, max_length=length,
        long="chunk",
    )  # fmt: skip
    given = {"cooccurrence": counts, "n_permutations": 0, "n_resamples": 0}
    twin = tp.random_init(one.model, seed=0)
    untrained = tp.measure_matched(twin, topics, one.documents, max_length=length, **given).attention
    attention = claim_of(result, table2.ATTENTION_WHEN_MATCHED, THRESHOLDS[1])
    assert attention.controls["untrained"].value == pytest.approx(untrained.ratio[4])
    shuffles = [tp.measure_matched(one.model, topics.shuffled(seed), **given).cosine[3] for seed in range(30)]
    ratio = sum(part.same_topic for part in shuffles) / sum(part.different_topic for part in shuffles)
    similar = claim_of(result, table2.SIMILAR_WHEN_MATCHED, THRESHOLDS[1])
    assert similar.controls["shuffled labels"].value == pytest.approx(float(ratio))


def test_what_an_interval_leaves_open_is_undecided(result):
    """Words of a random model know no topics, so all quotients are around 1, or of numbers around 0."""
    assert {claim.verdict for claim in result.claims} == {"undecided"}


ROW = {
    "model": "bert", "score": "cosine", "low": 1.2, "high": 1.6, "quotient": 1.4, "same_topic": 1.4,
    "most_frequent": 1.0, "pairs": 3, "paper_quotient": 1.48, "different_topic": None, "shuffled": 0.8,
    "shuffled_quotient": 0.8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("numbers", "verdict"),
    [
        ({}, "holds"),
        ({"score": "attention"}, "does not hold"),
        ({"low": 0.9}, "undecided"),
        ({"low": None}, "undecided"),
        ({"shuffled_quotient": 1.1}, "not evidence"),
        ({"shuffled_quotient": None}, "not evidence"),
        ({"model": "other"}, "holds"),
        ({"quotient": None}, "not checked"),
    ],
)
def test_a_quotient_is_judged_by_its_interval_and_by_shuffled_labels(numbers, verdict):
    claim = table2._average_claim({**ROW, **numbers}, "x")
    assert claim.verdict == verdict
    assert claim.ours == (numbers.get("model") == "other")
    assert ("another model" in claim.text) == claim.ours


def test_by_the_papers_own_numbers_neither_claim_of_table_2_is_about_topics():
    """Of its pairs of different topics, by the ratios of Table 1, the same holds."""
    for threshold, printed in table2.PRINTED.items():
        cosine, _, attention = PRINTED["bert"][threshold]
        (same, top), (same_cosine, top_cosine) = printed["attention"], printed["cosine"]
        assert same / attention < top
        assert same_cosine / cosine > top_cosine


def test_the_printed_numbers_stand_beside_ours(bert):
    found = reproduce("table2", models={"bert": bert}, corpus=corpus(), settings=SMALL, thresholds=(0.001,))
    rows = rows_of(found, 0.001)
    assert rows["cosine"]["paper_same_topic"] == 0.461
    assert rows["cosine"]["paper_most_frequent"] == 0.311
    assert rows["attention"]["paper_quotient"] == pytest.approx(0.00621 / 0.00695)
    # One word per topic: there is no pair of the same topic, and nothing can be said.
    assert rows["cosine"]["same_topic"] is None
    assert {claim.verdict for claim in found.claims} == {"not checked"}
    assert all(math.isnan(claim.measured.value) for claim in found.claims)


def test_it_saves_draws_and_goes_on_from_its_folder(bert, result, tmp_path):
    given = {"models": {"bert": bert}, "corpus": corpus(), "settings": SMALL, "thresholds": THRESHOLDS}
    first = reproduce("table2", **given, folder=tmp_path / "work")
    again = reproduce("table2", **given, folder=tmp_path / "work")
    assert first.tables == again.tables == result.tables
    figures = result.figures()
    assert sorted(figures) == ["matched, bert, 0.06", "matched, bert, 0.12", "table2"]
    folder = result.save(tmp_path / "out")
    assert (folder / "tables" / "most-frequent-pairs.csv").exists()
    assert (folder / "reports" / "matched" / "bert-0.12").is_dir()


def test_without_a_network_nothing_is_checked_and_the_reason_says_how():
    result = reproduce("table2", quick=True)
    assert len(result.claims) == 4
    assert all("hf download google-bert/bert-base-uncased" in claim.not_checked for claim in result.claims)
    assert result.tables == {}
    assert result.figures() == {}


def test_a_model_that_the_user_named_must_be_there(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        reproduce("table2", models={"bert": str(tmp_path / "nowhere")}, corpus=corpus(), settings=SMALL)


@pytest.mark.slow
def test_embeddings_of_a_real_checkpoint_keep_their_topics_at_equal_co_occurrence():
    result = reproduce("table2", quick=True, models={"minilm": minilm_folder()})
    by_text = {claim.text: claim for claim in result.claims}
    assert by_text[table2.SIMILAR_WHEN_MATCHED.text].verdict == "holds"
    assert all(claim.ours for claim in result.claims)
    (less,) = [claim for claim in result.claims if claim.text.startswith(table2.LESS_ATTENTION.text)]
    assert less.verdict == "not evidence"
    pairs = {(row["first"], row["second"]) for row in result.tables["most frequent pairs"]}
    assert {("united", "states"), ("new", "york")} <= pairs | {(b, a) for a, b in pairs}
