"""Table 2: both averages against a direct computation, on a real checkpoint, and without any."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from small_language import N_TOPICS, corpus, save_model
from transformers import AutoModel

import topic_probe as tp
from topic_probe.paper import reproduce, table2
from topic_probe.paper.pretrained import OnText, TextSettings, prepare_all
from topic_probe.paper.recipe import Run
from topic_probe.paper.table1 import PRINTED
from topic_probe.text.lda import word_ids

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


def test_averages_are_those_of_a_direct_computation(bert, result):
    threshold = THRESHOLDS[1]
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


@pytest.mark.parametrize(
    ("score", "numbers", "verdict"),
    [
        ("cosine", {}, "holds"),
        ("attention", {}, "does not hold"),
        ("cosine", {"low": 0.9}, "undecided"),
        ("cosine", {"low": None}, "undecided"),
        ("cosine", {"shuffled_quotient": 1.1}, "not evidence"),
        ("cosine", {"shuffled_quotient": None}, "not evidence"),
        ("cosine", {"quotient": None}, "not checked"),
    ],
)
def test_a_quotient_is_judged_by_its_interval_and_by_shuffled_labels(result, score, numbers, verdict):
    good = {"quotient": 1.4, "low": 1.2, "high": 1.6, "shuffled_quotient": 0.8, **numbers}
    rows = [row | good if row["score"] == score else row for row in result.tables["table2"]]
    changed = replace(result, tables={**result.tables, "table2": rows})
    claims = [claim for check in table2.RECIPE.claims for claim in check(changed)]
    assert len(claims) == 4 * len(THRESHOLDS)
    wanted = {"cosine": table2.MORE_SIMILAR, "attention": table2.LESS_ATTENTION}[score]
    found = [claim for claim in claims if claim.text == wanted.text]
    assert [claim.verdict for claim in found] == [verdict] * len(THRESHOLDS)


@pytest.mark.slow
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
    claims = {claim.text: claim for claim in result.claims if claim.setting == "bert, 0.12"}
    control = claims[table2.ATTENTION_WHEN_MATCHED.text].controls["untrained"]
    assert control.value == pytest.approx(untrained.ratio[4])
    shuffles = [tp.measure_matched(one.model, topics.shuffled(seed), **given).cosine[3] for seed in range(30)]
    ratio = sum(part.same_topic for part in shuffles) / sum(part.different_topic for part in shuffles)
    control = claims[table2.SIMILAR_WHEN_MATCHED.text].controls["shuffled labels"]
    assert control.value == pytest.approx(float(ratio))


def test_by_the_papers_own_numbers_neither_claim_of_table_2_is_about_topics():
    """Of its pairs of different topics, by the ratios of Table 1, the same holds."""
    for threshold, printed in table2.PRINTED.items():
        cosine, _, attention = PRINTED["bert"][threshold]
        (same, top), (same_cosine, top_cosine) = printed["attention"], printed["cosine"]
        assert same / attention < top
        assert same_cosine / cosine > top_cosine


@pytest.mark.slow
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
