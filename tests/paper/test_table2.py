"""Table 2: both averages against a direct computation, on a real checkpoint, and without any."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from made_result import claims_of
from small_language import N_TOPICS, corpus, save_model
from transformers import AutoModel

from topic_probe.paper import reproduce, table2
from topic_probe.paper.pretrained import OnText, TextSettings, prepare_all
from topic_probe.paper.recipe import Run
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
        ("cosine", {"shuffled_quotient": 1.1}, "not evidence"),
        ("cosine", {"quotient": None}, "not checked"),
    ],
)
def test_a_quotient_is_judged_by_its_interval_and_by_shuffled_labels(result, score, numbers, verdict):
    good = {"quotient": 1.4, "low": 1.2, "high": 1.6, "shuffled_quotient": 0.8, **numbers}
    rows = [row | good if row["score"] == score else row for row in result.tables["table2"]]
    changed = replace(result, tables={**result.tables, "table2": rows})
    claims = claims_of(table2.RECIPE, changed)
    assert len(claims) == 4 * len(THRESHOLDS)
    wanted = {"cosine": table2.MORE_SIMILAR, "attention": table2.LESS_ATTENTION}[score]
    found = [claim for claim in claims if claim.text == wanted.text]
    assert [claim.verdict for claim in found] == [verdict] * len(THRESHOLDS)
