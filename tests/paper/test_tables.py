"""Pretrained models: what is opened, what is said if it is missing, and Tables 1 to 3's numbers by hand."""

import math
from collections import Counter
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import torch
from small_language import N_TOPICS, corpus, save_model
from transformers import AutoModel

from topic_probe.contrast import Contrast
from topic_probe.paper import pretrained, reproduce
from topic_probe.paper.pretrained import HUB, TextSettings, attention_of_shuffles, labelled, prepared
from topic_probe.paper.recipe import Run
from topic_probe.paper.tables import PRINTED
from topic_probe.text.lda import word_ids

# Twelve words of 97 per topic, all documents of 20 tokens.
SMALL = TextSettings(n_topics=N_TOPICS, passes=5, length=20, n_documents=12, thresholds=(0.06, 0.12))


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_model("bert", tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def table1(bert):
    return reproduce("table1", models={"bert": bert}, corpus=corpus(), settings=SMALL, progress=False)


@pytest.fixture(scope="module")
def table2(bert):
    return reproduce("table2", models={"bert": bert}, corpus=corpus(), settings=SMALL, progress=False)


@pytest.mark.parametrize(
    ("models", "found"),
    [
        (["bert", "me/mine"], {"bert": "bert", "me/mine": "me/mine"}),
        ("google-bert/bert-base-uncased", {"bert": "google-bert/bert-base-uncased"}),
        ({"x": "bert"}, {"x": "bert"}),
        (None, {"albert": "albert"}),
    ],
)
def test_models_are_named_by_the_paper_the_hub_or_a_label(models, found):
    assert labelled(models, ("albert",)) == found


def test_an_opened_model_needs_a_label():
    with pytest.raises(TypeError, match="an opened model needs a label"):
        labelled([torch.nn.Linear(2, 2)], ())


def test_without_a_network_models_and_texts_are_missing_with_the_reason(monkeypatch):
    def unreachable(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr(pretrained, "open_model", unreachable)
    monkeypatch.setattr(pretrained.Corpus, "wikipedia", unreachable)
    result = reproduce("table1", corpus=corpus(), progress=False)
    assert set(result.missing) == set(HUB)
    assert all("no network" in why and f"--models {label}=" in why for label, why in result.missing.items())
    with pytest.raises(OSError, match="no network"):
        reproduce("table1", models={"mine": "albert/albert-base-v2"}, corpus=corpus(), progress=False)
    assert reproduce("table2", progress=False).missing["texts"] == "no network"


def test_documents_are_cut_to_one_length_and_spread_over_the_corpus_and_quick_runs_fit_every_seed(bert):
    (one,) = prepared(Run(quick=True, seed=3), {"bert": bert}, corpus(), SMALL, {})
    assert [len(document) for document in one.documents] == [20] * 12
    # 40 articles, so every third.
    for cut, article in zip(one.documents, one.articles[::3], strict=False):
        assert cut.ids[:19].tolist() == article.ids[:19].tolist()
    assert list(one.fits) == [3, 4, 5]
    assert not torch.equal(one.fits[3].phi, one.fits[4].phi)
    (whole,) = prepared(Run(seed=3), {"bert": bert}, corpus(), SMALL, {})
    assert list(whole.fits) == [3]


def test_what_shuffles_give_is_counted_by_hand():
    # Sums 12 over 4 pairs of one topic and 6 over 6 pairs of two; after three shuffles 2, 9 and none of all 18 / 10.
    numbers = (0.0, 3.0, 1.0, 0.0, 4.0, 6.0)
    contrast = Contrast(*map(np.array, numbers))
    found = attention_of_shuffles(contrast, np.array([2.0, 9.0, 0.0]), np.array([2.0, 5.0, 0.0]))
    ratios = [1.0 / (16 / 8), 1.8 / (9 / 5)]
    assert found["limit"] == pytest.approx(np.quantile(ratios, 0.975))
    assert found["mean"] == pytest.approx((1.0 + 1.8) / (2.0 + 1.8))
    nothing = attention_of_shuffles(contrast, np.zeros(2), np.zeros(2))
    assert math.isnan(nothing["mean"])


def test_table_1_has_the_papers_numbers_beside_ours_and_ratios_as_counted_by_hand(table1, bert):
    shown = pd.DataFrame(table1.tables["table"])
    assert list(shown["model"])[:4] == ["bert", "bert", "bert, untrained", "bert, untrained"]
    assert list(shown["threshold"])[:4] == [0.06, 0.12] * 2
    assert len(shown) == 4 + 4 * 3  # four other models of the paper, which are not run
    assert shown["note"].iloc[-1] == "not run: needs the model"
    assert PRINTED["bert"][0.0005] == (1.21, 1.19, 1.32)
    frame = table1.numbers_table().set_index(["training", "control"])
    assert abs(frame.loc[("bert, 0.12", "untrained"), "attention"] - 1) < 0.05
    assert math.isnan(frame.loc[("bert, 0.12", "untrained"), "cosine"])
    (one,) = prepared(Run(), {"bert": bert}, corpus(), SMALL, {})
    topics = one.fits[3000].topics(fraction=0.12)
    table = AutoModel.from_pretrained(bert).get_input_embeddings().weight.detach().double()[topics.words]
    dot, own = table @ table.T, topics.membership.int().argmax(1)
    same = (own[:, None] == own) & ~torch.eye(len(own), dtype=torch.bool)
    ratio = float(dot[same].mean() / dot[own[:, None] != own].mean())
    assert frame.loc[("bert, 0.12", ""), "dot"] == pytest.approx(ratio, rel=1e-5)


def test_the_quick_variant_judges_the_threshold_with_most_pairs(bert):
    quick = reproduce(
        "table5", quick=True, models={"bert": bert}, corpus=corpus(), settings=SMALL, progress=False
    )
    assert set(quick.numbers_table()["training"]) == {"bert, 0.12"}
    assert sorted(set(quick.numbers_table()["seed"])) == [3000, 3001, 3002]
    assert {row["threshold"] for row in quick.tables["table"]} == {0.06, 0.12}


def test_averages_over_the_most_frequent_pairs_are_those_of_a_direct_computation(bert, table2):
    (one,) = prepared(Run(), {"bert": bert}, corpus(), SMALL, {}, default=("bert",))
    topics = one.fits[3000].topics(fraction=0.12)
    topic = {
        int(word): int(row.int().argmax()) for word, row in zip(topics.words, topics.membership, strict=True)
    }
    words, together = set(word_ids(one.tokenizer).tolist()), Counter()
    for article in one.articles:
        # Windows are as the model would see them, with a special token at either end.
        ids, length = article.ids.tolist()[1:-1], SMALL.length - 2
        for start in range(0, len(ids), length):
            together.update(combinations(sorted(words & set(ids[start : start + length])), 2))
    size = Counter(topic.values()).most_common(1)[0][1]
    top = sorted(together, key=lambda pair: (-together[pair], pair))[: size * (size - 1) // 2]
    same = {pair for pair in combinations(sorted(topic), 2) if topic[pair[0]] == topic[pair[1]]}

    model = AutoModel.from_pretrained(bert, attn_implementation="eager").eval()
    table = model.get_input_embeddings().weight.detach().double()
    table /= table.norm(dim=1, keepdim=True)
    kinds = {"same topic": same, "most frequent": set(top)}
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
                for name, pairs in kinds.items():
                    if first != second and (min(first, second), max(first, second)) in pairs:
                        attention[name].append(float(pattern[i, j]) * len(ids))

    row = next(row for row in table2.tables["table"] if row["threshold"] == 0.12)
    for name, pairs in kinds.items():
        cosine = np.mean([float(table[a] @ table[b]) for a, b in pairs])
        assert row[f"cosine of {name}"] == pytest.approx(cosine, rel=1e-5)
        where = "to" if name == "same topic" else "of"
        assert row[f"attention {where} {name}"] == pytest.approx(np.mean(attention[name]), rel=1e-5)
    assert row["attention ÷ most frequent"] == pytest.approx(
        np.mean(attention["same topic"]) / np.mean(attention["most frequent"]), rel=1e-5
    )


def test_table_2_is_judged_of_bert_alone(table2, bert):
    verdicts = {claim["id"]: claim["verdict"] for claim in table2.claims}
    assert verdicts["Tab2a"] != "not checked"
    other = reproduce(
        "table2", quick=True, models={"mine": bert}, corpus=corpus(), settings=SMALL, progress=False
    )
    reasons = {claim["id"]: claim["why"] for claim in other.claims if claim["verdict"] == "not checked"}
    assert "it is said of BERT" in reasons["Tab2a"]


def test_figure_3_is_the_mean_cosine_within_lists_less_that_between(bert):
    tokens = [word for word in save_words(bert) if word.isalpha()][:6]
    lists = {"one": tokens[:3], "two": tokens[3:]}
    result = reproduce("figure3", models={"bert": bert}, words=lists, progress=False)
    cosines = result.arrays["bert · cosines"].astype(np.float64)
    listed = np.array([0, 0, 0, 1, 1, 1])
    same = (listed[:, None] == listed) & ~np.eye(6, dtype=bool)
    expected = cosines[same].mean() - cosines[listed[:, None] != listed].mean()
    measured = next(row for row in result.numbers if row["control"] == "")["within − between"]
    assert measured == pytest.approx(expected, abs=1e-6)
    assert [row["word"] for row in result.tables["words"]] == tokens
    with pytest.raises(ValueError, match="at least two lists"):
        reproduce("figure3", models={"bert": bert}, words={"one": tokens}, progress=False)


def save_words(folder):
    """The words of a tokenizer that was saved."""
    from transformers import AutoTokenizer

    return sorted(AutoTokenizer.from_pretrained(folder).get_vocab())
