"""Tables 1 and 5: on every architecture, against a direct computation, on a real checkpoint, and on disk."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import zoo
from made_result import claims_of
from small_language import N_TOPICS, corpus, save_model, texts, tokenizer, words

import topic_probe as tp
from topic_probe.contrast import Contrast
from topic_probe.paper import reproduce, table1
from topic_probe.paper.pretrained import (
    NO_DIFFERENCE,
    OnText,
    TextSettings,
    beside_shuffles,
    embeddings_of_shuffles,
    prepare_all,
)
from topic_probe.paper.recipe import Run

# Twelve words of 97 per topic, all documents of 20 tokens.
SMALL = TextSettings(n_topics=N_TOPICS, passes=5, length=20, n_documents=12)
THRESHOLD = 0.12
DIFFERENCES = "difference", "difference_low", "difference_high"


def run_small(model, label="bert", **options):
    given = {"corpus": corpus(), "settings": SMALL, "thresholds": (THRESHOLD,), **options}
    return reproduce("table1", models={label: model}, **given)


def row_of(result, score, model="bert"):
    (found,) = [row for row in result.tables["ratios"] if (row["score"], row["model"]) == (score, model)]
    return found


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_model("bert", tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def result(bert):
    return run_small(bert)


def planted(fit):
    """The topics of the recipe by hand: of every topic the twelve likeliest, of every word the likeliest topic."""
    assert fit.vocabulary_size == zoo.VOCABULARY
    per_topic = round(THRESHOLD * zoo.VOCABULARY)
    phi, ids = fit.phi.numpy(), fit.token_ids.tolist()
    kept = {}
    for topic, row in enumerate(phi):
        for column in np.argsort(-row)[:per_topic]:
            if row[column] > kept.get(ids[column], (0, 0))[0]:
                kept[ids[column]] = (row[column], topic)
    return {id_: topic for id_, (_, topic) in kept.items()}


def test_the_table_equals_a_direct_computation_from_what_hugging_face_returns(result, bert):
    from transformers import AutoModel

    fit = tp.fit_topics(corpus().documents(tokenizer()), tokenizer(), n_topics=N_TOPICS, passes=5)
    topic_of = planted(fit)
    model = AutoModel.from_pretrained(bert, attn_implementation="eager").eval()
    weights = {"same": [], "different": []}
    # 40 texts, of which every third is measured and then no more than twelve.
    for text in texts()[::3][:12]:
        ids = tokenizer()(text, truncation=True, max_length=20)["input_ids"]
        with torch.no_grad():
            patterns = model(torch.tensor([ids]), output_attentions=True).attentions
        heads = torch.cat([layer[0] for layer in patterns]).double()
        for i, one in enumerate(ids):
            for j, other in enumerate(ids):
                if one in topic_of and other in topic_of and one != other:
                    kind = "same" if topic_of[one] == topic_of[other] else "different"
                    weights[kind] += (heads[:, i, j] * len(ids)).tolist()
    found = row_of(result, "attention")
    assert found["n_same_topic"] == len(weights["same"])
    assert found["n_different_topic"] == len(weights["different"])
    assert found["ratio"] == pytest.approx(np.mean(weights["same"]) / np.mean(weights["different"]), rel=1e-5)

    table = model.embeddings.word_embeddings.weight.detach().double()
    cosine, dot = ({"same": [], "different": []} for _ in range(2))
    for one in topic_of:
        for other in topic_of:
            if one != other:
                kind = "same" if topic_of[one] == topic_of[other] else "different"
                product = float(table[one] @ table[other])
                dot[kind].append(product)
                cosine[kind].append(product / float(table[one].norm() * table[other].norm()))
    for score, values in (("embedding cosine", cosine), ("embedding dot", dot)):
        found = row_of(result, score)
        assert found["same_topic"] == pytest.approx(np.mean(values["same"]), rel=1e-6)
        assert found["different_topic"] == pytest.approx(np.mean(values["different"]), rel=1e-6)
        assert found["n_same_topic"] == len(values["same"])


def test_differences_are_shares_of_a_word_with_itself_and_ratios_stand_beside_those_at_equal_distance(result):
    reports = {name: result.reports[name][f"bert, {THRESHOLD:g}"] for name in ("embeddings", "attention")}
    dot, attention = reports["embeddings"].dot, reports["attention"]
    share = float(dot.difference) / float(dot.same_word)
    assert row_of(result, "embedding dot")["difference"] == pytest.approx(share)
    row = row_of(result, "attention")
    assert row["ratio_at_equal_distance"] == pytest.approx(float(attention.overall_matched.ratio))
    assert row["ratio_at_equal_distance"] != pytest.approx(row["ratio"], rel=1e-5)


@pytest.fixture
def planted_folder(tmp_path):
    """A BERT whose word embeddings have a direction for every topic."""
    with torch.no_grad():
        model = zoo.make("bert")
        table = model.get_input_embeddings().weight
        for topic in range(N_TOPICS):
            ids = tokenizer().convert_tokens_to_ids(words(topic))
            table[ids] += 2.0 * torch.nn.functional.one_hot(torch.tensor(topic), table.shape[1])
        table += 0.5  # a common direction, without which different topics have nothing to divide by
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    return tmp_path


def test_a_planted_topic_in_the_embeddings_is_found_and_printed_beside_the_paper(planted_folder):
    result = run_small(planted_folder, thresholds=(0.0005, THRESHOLD), twins=False)
    cosine = result.table("ratios").query("score == 'embedding cosine'")
    assert cosine["paper"].tolist()[0] == 1.21
    assert cosine["low"].tolist()[1] > 1.2
    claims = [claim for claim in result.claims if claim.text.startswith("Cosine") and not claim.ours]
    by_setting = {claim.setting: claim for claim in claims}
    assert by_setting["bert, 0.0005"].verdict == "undecided"  # one word per topic has no pair
    found = by_setting["bert, 0.12"]
    assert found.verdict == "holds"
    assert found.controls["shuffled labels"].value == pytest.approx(1, abs=NO_DIFFERENCE)  # and is lost


def test_words_of_several_topics_stay_in_all_of_them_in_table_5(bert, tmp_path):
    # With a folder the second table finds the tokens and the fit of the first.
    options = {
        "corpus": corpus(),
        "settings": SMALL,
        "twins": False,
        "folder": tmp_path,
        "thresholds": (0.4,),
    }
    one, several = (reproduce(name, models={"bert": bert}, **options).tables for name in ("table1", "table5"))
    assert one["ratios"][0]["words"] == several["ratios"][0]["words"]
    assert one["ratios"][0]["n_same_topic"] < several["ratios"][0]["n_same_topic"]


def test_what_shuffles_give_is_what_was_worked_out_by_hand():
    # Two pairs of the same topic with a mean of 3 and four of different ones with a mean of 1: 10 in all.
    measured = Contrast(*(np.array(number) for number in (9.0, 3.0, 1.0, 5.0, 2.0, 4.0)))
    found = beside_shuffles(measured, np.array([6.0, 2.0, 4.0]), np.array([2.0, 2.0, 2.0]))
    # Same-topic means are 3, 1 and 2, those of the rest 4/4, 8/4 and 6/4; one difference of three is 2 or more.
    assert found["shuffled"] == pytest.approx(2 / 1.5)
    assert found["reached"] == (1 + 1) / (1 + 3)
    assert (found["shuffled_low"], found["shuffled_high"]) == pytest.approx(
        (0.5 + 0.05 * (4 / 3 - 0.5), 3 - 0.05 * (3 - 4 / 3))
    )
    nothing = beside_shuffles(measured, np.zeros(3), np.zeros(3))
    assert all(math.isnan(number) for number in nothing.values())


def test_shuffles_of_embeddings_are_measurements_with_shuffled_topics(bert):
    (one,) = prepare_all(Run(table1.RECIPE), OnText({"bert": bert}, corpus(), SMALL))
    topics = one.topics(THRESHOLD)
    means = set()
    for number, (sums, _) in enumerate(embeddings_of_shuffles(one.model, topics, seed=2, n=4)):
        report = tp.measure_embeddings(one.model, topics.shuffled(2 * 4 + number), n_resamples=0)
        for place, contrast in enumerate((report.cosine, report.dot)):
            found = sums.contrast()[place]
            assert found.same_topic == pytest.approx(contrast.same_topic)
            assert found.n_different_topic == contrast.n_different_topic
        means.add(float(report.cosine.same_topic))
    assert len(means) == 4


@pytest.mark.parametrize(
    ("model", "score", "numbers", "twin", "verdict"),
    [
        ("bert", "attention", {}, {}, "holds"),
        ("bert", "attention", {"low": 1.005}, {}, "undecided"),
        ("bert", "attention", {"low": 0.8, "high": 1.0095}, {}, "does not hold"),
        ("bert", "attention", {"shuffled": 1.02}, {}, "not evidence"),
        ("bert", "attention", {}, {"ratio": 1.02}, "not evidence"),
        ("bert random", "attention", {}, {"low": 0.999, "high": 1.003}, "holds"),
        ("bert random", "attention", {}, {"low": 1.011, "high": 1.013}, "does not hold"),
        ("bert random", "attention", {"ratio": 1.005}, {}, "not evidence"),
        ("bert random", "embedding dot", {}, {"difference_low": 0.011, "difference_high": 0.013}, "does not hold"),
    ],
)  # fmt: skip
def test_models_are_judged_by_intervals_and_controls(result, model, score, numbers, twin, verdict):
    """A difference of a hundredth is none; here a trained model has a ratio of 1.2 and its twin one of 1.002."""
    good = {
        "same_topic": 1.2,
        "different_topic": 1.0,
        "ratio": 1.2,
        "low": 1.1,
        "high": 1.3,
        "difference": 0.2,
    }
    none = {"ratio": 1.002, "low": 1.001, "high": 1.003, **dict.fromkeys(DIFFERENCES, 0.0)}
    given = {"bert": {**good, "shuffled": 1.0, **numbers}, "bert random": {**none, **twin}}
    rows = [row | given[row["model"]] if row["score"] == score else row for row in result.tables["ratios"]]
    changed = replace(result, tables={**result.tables, "ratios": rows})
    claims = [claim for claim in claims_of(table1.RECIPE, changed) if claim.setting.startswith(f"{model},")]
    name = {"attention": "Attention", "embedding dot": "Dot"}[score]
    (claim,) = [claim for claim in claims if not claim.ours and claim.text.startswith(name)]
    assert claim.verdict == verdict


@pytest.mark.parametrize("name", ["table1", "table2", "table5"])
def test_thresholds_that_are_no_shares_are_refused_before_topics_are_fitted(name):
    for thresholds in ([2.0], [0.001, 0.0], [math.nan]):
        with pytest.raises(ValueError, match="shares of the vocabulary, above 0 and at most 1"):
            reproduce(name, quick=True, thresholds=thresholds)
