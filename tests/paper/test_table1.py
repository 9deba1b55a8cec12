"""Tables 1 and 5: on every architecture, against a direct computation, on a real checkpoint, and on disk."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import zoo
from real_text import minilm_folder
from small_language import N_TOPICS, corpus, save_model, texts, tokenizer, words

import topic_probe as tp
from topic_probe.contrast import Contrast
from topic_probe.measure.engine import Engine
from topic_probe.paper import reproduce, table1
from topic_probe.paper.pretrained import (
    NO_DIFFERENCE,
    PAPER_MODELS,
    THRESHOLDS,
    OnText,
    Prepared,
    TextSettings,
    beside_shuffles,
    embeddings_of_shuffles,
    prepare_all,
)
from topic_probe.paper.recipe import Run
from topic_probe.paper.table1 import PRINTED, SCORES
from topic_probe.report import VERDICTS

# Twelve words of 97 per topic, all documents of 20 tokens.
SMALL = TextSettings(n_topics=N_TOPICS, passes=5, length=20, n_documents=12)
THRESHOLD = 0.12
HIGHER_ATTENTION = "Attention, relative to uniform: other words of the same topic ÷ words of different topics"


def run_small(model, label="bert", **options):
    given = {"corpus": corpus(), "settings": SMALL, "thresholds": (THRESHOLD,), "twins": False, **options}
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


# -------------------------------------------------------------------- architectures


@pytest.mark.parametrize("name", ["bert", "albert", "bart", "electra-discriminator", "roberta"])
def test_every_architecture_of_the_paper_runs_from_a_folder(name, tmp_path):
    settings = replace(SMALL, n_documents=40)  # of twelve, too few have words of two topics for an interval
    result = run_small(save_model(name, tmp_path), label=name.split("-")[0], settings=settings)
    assert [row["score"] for row in result.tables["ratios"]] == list(SCORES)
    for row in result.tables["ratios"]:
        assert row["same_topic"] is not None
        assert row["n_same_topic"] > 100
        assert row["n_different_topic"] > 1000
    row = result.tables["ratios"][2]
    assert 0.5 < row["low"] < row["ratio"] < row["high"] < 2
    assert {claim.verdict for claim in result.claims} <= {*VERDICTS} - {"not checked"}
    assert sorted(claim.ours for claim in result.claims) == [False] * 3 + [True] * 3
    (claim,) = [claim for claim in result.claims if claim.text.startswith("Attention") and not claim.ours]
    assert ("by stack: encoder" in claim.detail) == (name == "bart")


# -------------------------------------------------------------------- the numbers


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
    cosine = {"same": [], "different": []}
    dot = {"same": [], "different": []}
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


def cosine_claims(result):
    """The paper's claims about cosines, and ours, from the lowest threshold on."""
    of_cosines = [claim for claim in result.claims if claim.text.startswith("Cosine")]
    of_cosines.sort(key=lambda claim: claim.setting)
    return [[claim for claim in of_cosines if claim.ours == ours] for ours in (False, True)]


def test_a_planted_topic_in_the_embeddings_is_found_and_printed_beside_the_paper(planted_folder):
    result = run_small(planted_folder, thresholds=(0.0005, THRESHOLD))
    cosine = result.table("ratios").query("score == 'embedding cosine'")
    assert cosine["paper"].tolist()[0] == 1.21
    assert math.isnan(cosine["paper"].tolist()[1])
    (planted_row,) = cosine.query("threshold == @THRESHOLD").to_dict("records")
    assert planted_row["low"] > 1.2
    claims, beyond = cosine_claims(result)
    # One word per topic has no pair.
    assert [claim.verdict for claim in claims] == ["undecided", "holds"]
    assert beyond[0].verdict == "undecided"
    assert beyond[1].measured.value == 1 / 101
    assert claims[1].controls["shuffled labels"].value == pytest.approx(1, abs=NO_DIFFERENCE)
    assert "no pair of different words shares a topic" in claims[0].detail
    assert "paper 1.21" in claims[0].detail


def test_under_labels_that_are_shuffled_where_topics_come_from_no_claim_holds(planted_folder, monkeypatch):
    own = Prepared.topics
    monkeypatch.setattr(Prepared, "topics", lambda one, *given, **more: own(one, *given, **more).shuffled(7))
    for claims in cosine_claims(run_small(planted_folder)):
        assert [claim.verdict for claim in claims if claim.verdict == "holds"] == []


def test_the_trained_model_is_where_the_claim_about_its_untrained_twin_fails(planted_folder):
    result = run_small(planted_folder, twins=True)
    (of_twin,) = [claim for claim in cosine_claims(result)[0] if "untrained model" in claim.text]
    row = row_of(result, "embedding cosine")
    share = (row["same_topic"] - row["different_topic"]) / 1.0  # the cosine of a word with itself
    assert of_twin.controls["trained"].value == pytest.approx(share)
    assert share > 2 * NO_DIFFERENCE
    assert of_twin.controls_held == ()
    (of_trained,) = [claim for claim in cosine_claims(result)[0] if "untrained model" not in claim.text]
    assert math.isnan(of_trained.controls["untrained"].value)
    assert "both near 0, so no ratio" in of_trained.detail


def test_words_of_several_topics_stay_in_all_of_them_in_table_5(bert, tmp_path):
    # With a folder the second table finds the tokens and the fit of the first.
    options = {
        "models": {"bert": bert},
        "corpus": corpus(),
        "settings": SMALL,
        "twins": False,
        "folder": tmp_path,
    }
    one = reproduce("table1", thresholds=(0.4,), **options).tables
    several = reproduce("table5", thresholds=(0.4,), **options).tables
    assert set(several) == {"table5", "ratios", "texts", "settings"}
    n = {"table1": one["ratios"][0], "table5": several["ratios"][0]}
    assert n["table1"]["words"] == n["table5"]["words"]
    assert n["table1"]["n_same_topic"] < n["table5"]["n_same_topic"]
    assert {row["paper"] for row in several["ratios"]} == {None}


def test_the_printed_table_is_whole_and_says_what_the_paper_says():
    assert set(PRINTED) == set(PAPER_MODELS)
    for model, by_threshold in PRINTED.items():
        assert tuple(by_threshold) == THRESHOLDS
        for values in by_threshold.values():
            assert len(values) == len(SCORES)
            assert all(abs(value - 1) < 0.001 if model == "bert random" else value > 1.1 for value in values)


# -------------------------------------------------------------------- a real checkpoint


@pytest.fixture(scope="module", params=[50, None])
def of_minilm(request):
    articles = list(tp.Corpus.bundled())
    return reproduce(
        "table1",
        models={"minilm": minilm_folder()},
        corpus=tp.Corpus.from_texts([article[:6000] for article in articles]),
        settings=TextSettings(n_topics=8, length=64, n_documents=request.param),
        thresholds=(0.001,),
    )


def test_a_real_model_has_topics_and_its_untrained_twin_has_none(of_minilm):
    result = of_minilm
    papers = [claim.verdict for claim in result.claims if not claim.ours and claim.text != HIGHER_ATTENTION]
    assert papers == ["holds"] * 5, repr(result)
    assert row_of(result, "embedding cosine", "minilm")["low"] > 1.5
    twin = row_of(result, "attention", "minilm random")
    assert twin["ratio"] == pytest.approx(1, abs=0.01)
    assert row_of(result, "embedding cosine", "minilm random")["ratio"] is None
    assert list(result.figures()) == ["table1"]


@pytest.mark.xfail(
    strict=True,
    reason="which topics LDA fits to 100 short articles decides: seed 0 gives 1.086 [0.984, 1.198], and of ten seeds, "
    "with a mean ratio of 1.22, two have an interval that reaches below 1",
)
def test_attention_of_a_real_model_is_higher_within_topics_whichever_lda_fits(of_minilm):
    (claim,) = [claim for claim in of_minilm.claims if claim.text == HIGHER_ATTENTION]
    assert claim.verdict == "holds"
    assert row_of(of_minilm, "attention", "minilm")["low"] > 1


# -------------------------------------------------------------------- shuffled labels


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


def test_shuffles_of_attention_are_the_permutations_of_the_measurement_in_the_same_pass(result, bert):
    (one,) = prepare_all(Run(table1.RECIPE), OnText({"bert": bert}, corpus(), SMALL))
    given = {"max_length": 20, "n_permutations": table1.ATTENTION_SHUFFLES, "alternative": "greater"}
    overall = tp.measure_attention(one.model, one.topics(THRESHOLD), one.documents, **given).overall
    row = row_of(result, "attention")
    assert row["reached"] == float(overall.p_value)
    assert row["shuffled"] == pytest.approx(1, abs=NO_DIFFERENCE)
    assert row["shuffled_low"] < row["shuffled"] < row["shuffled_high"]


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


# -------------------------------------------------------------------- verdicts


def row(score="attention", **numbers):
    shared = {"model": "x", "threshold": 0.1, "words": 9, "documents": 8, "sources": 8, "score": score}
    means = {"same_topic": 1.2, "different_topic": 1.0, "n_same_topic": 10.0, "n_different_topic": 20.0}
    ratio = {
        "ratio": 1.2,
        "low": 1.1,
        "high": 1.3,
        "paper": None,
        "ratio_at_equal_distance": None,
        "note": "",
    }
    of_difference = {"difference": 0.2, "difference_low": None, "difference_high": None}
    shuffled = {"shuffled": 1.0, "shuffled_low": 0.9, "shuffled_high": 1.1, "reached": 0.01}
    return {**shared, **means, **ratio, **of_difference, **shuffled, **numbers}


@pytest.mark.parametrize(
    ("numbers", "verdict"),
    [
        ({}, "holds"),
        ({"low": 1.005}, "undecided"),
        ({"low": 0.8, "high": 1.0095}, "does not hold"),
        ({"low": None, "high": None}, "undecided"),
        ({"different_topic": -1.0}, "undecided"),
    ],
)
def test_a_trained_model_has_topics_if_its_whole_interval_is_above_1_by_what_makes_no_difference(
    numbers, verdict
):
    assert table1._trained(row(**numbers), row() | {"ratio": 1.002}).verdict == verdict


@pytest.mark.parametrize(
    ("shuffled", "twin", "verdict"),
    [
        (1.0, 1.002, "holds"),
        (1.02, 1.002, "not evidence"),
        (1.0, 1.02, "not evidence"),
        (1.0, None, "holds"),
        (None, None, "not evidence"),
    ],
)
def test_a_ratio_that_a_control_has_too_is_no_evidence(shuffled, twin, verdict):
    assert table1._trained(row(shuffled=shuffled), row(ratio=twin)).verdict == verdict
    assert (table1._trained(row(shuffled=shuffled), None).verdict == "holds") == (shuffled == 1.0)


@pytest.mark.parametrize(
    ("reached", "twin", "verdict"),
    [
        (0.02, 0.4, "holds"),
        (0.03, 0.4, "does not hold"),
        (0.02, 0.01, "not evidence"),
        (None, 0.4, "undecided"),
    ],
)
def test_what_shuffled_labels_reach_as_often_is_no_topic(reached, twin, verdict):
    assert table1._beyond_shuffles(row(reached=reached), row(reached=twin)).verdict == verdict


@pytest.mark.parametrize(
    ("ratio", "half", "trained", "verdict"),
    [
        (1.002, 0.001, 1.3, "holds"),
        (1.009, 0.002, 1.3, "undecided"),
        (1.012, 0.001, 1.3, "does not hold"),
        (0.989, 0.0, 1.3, "does not hold"),
        (1.0, 0.04, 1.3, "undecided"),
        (1.002, 0.001, 1.005, "not evidence"),
    ],
)
def test_topics_make_no_difference_if_the_whole_interval_is_within_a_hundredth_and_the_trained_one_is_not(
    ratio, half, trained, verdict
):
    assert NO_DIFFERENCE == 0.01
    given = row(ratio=ratio, low=ratio - half, high=ratio + half)
    assert table1._untrained(given, row(ratio=trained), paper="").verdict == verdict
    assert table1._untrained(given, None, paper="").verdict != "holds"


@pytest.mark.parametrize(
    ("difference", "verdict"),
    [(0.008, "holds"), (-0.008, "holds"), (0.012, "does not hold"), (0.0095, "undecided")],
)
def test_untrained_embeddings_are_held_to_the_difference_which_is_a_share_of_a_word_with_itself(
    difference, verdict
):
    ends = {"difference_low": difference - 0.001, "difference_high": difference + 0.001}
    given = row("embedding dot", ratio=None, low=None, high=None, difference=difference, **ends)
    assert table1._untrained(given, row("embedding dot", difference=0.05), paper="").verdict == verdict


def test_a_difference_is_divided_by_what_a_word_has_with_itself(result):
    model = result.reports["embeddings"][f"bert, {THRESHOLD:g}"]
    assert row_of(result, "embedding dot")["difference"] == pytest.approx(
        float(model.dot.difference) / float(model.dot.same_word)
    )


# -------------------------------------------------------------------- what is missing, kept, interrupted


def test_without_files_and_network_nothing_is_checked_and_nothing_breaks(monkeypatch, tmp_path):
    monkeypatch.setattr("topic_probe.paper.pretrained.hub_is_reachable", lambda: False)
    monkeypatch.setattr("topic_probe.paper.pretrained._downloaded", lambda name: None)
    for name in ("table1", "table5"):
        result = reproduce(name, quick=True)
        assert [claim.setting for claim in result.claims] == [
            "bert", "bert random", "albert", "bart", "electra", "roberta",
        ]  # fmt: skip
        assert all(claim.verdict == "not checked" for claim in result.claims)
        assert all("hf download" in claim.not_checked for claim in result.claims)
        assert result.figures() == {}
        result.save(tmp_path / name)


def test_a_second_call_measures_nothing_again(bert, tmp_path, monkeypatch):
    first = run_small(bert, folder=tmp_path, twins=True)
    assert len(list((tmp_path / "measured").iterdir())) == 4

    def never(*args, **options):
        raise AssertionError("measured again")

    monkeypatch.setattr(table1, "measure_attention", never)
    monkeypatch.setattr(table1, "measure_embeddings", never)
    again = run_small(bert, folder=tmp_path, twins=True)
    assert again.tables == first.tables
    assert again.claims == first.claims
    with pytest.raises(AssertionError, match="measured again"):
        run_small(bert, folder=tmp_path, twins=True, seed=1)


def test_other_weights_in_the_same_folder_are_measured_anew(bert, tmp_path):
    run_small(bert, folder=tmp_path)
    other = tp.open_model(zoo.make("bert", seed=1), tokenizer=tokenizer())
    run_small(other, folder=tmp_path)
    assert len(list((tmp_path / "measured").iterdir())) == 4


def test_an_interrupted_measurement_stops_the_recipe(bert, tmp_path, monkeypatch):
    rows, add = [], Engine.add

    def interrupted(engine, batch):
        if rows:
            raise KeyboardInterrupt
        rows.append(len(batch))
        add(engine, batch)

    monkeypatch.setattr(table1, "measure_attention", partial(tp.measure_attention, batch_size=8))
    monkeypatch.setattr(Engine, "add", interrupted)
    with pytest.raises(KeyboardInterrupt, match="bert: interrupted after 8 documents"):
        run_small(bert, folder=tmp_path)
    assert not list(tmp_path.rglob("attention-*"))


def test_a_result_on_disk_has_tables_figures_and_reports(result, tmp_path):
    folder = result.save(tmp_path / "out")
    assert {path.name for path in (folder / "tables").iterdir()} >= {
        "table1.csv",
        "ratios.json",
        "texts.json",
    }
    assert {path.name for path in (folder / "figures").iterdir()} == {"table1.png", "table1.svg"}
    assert (
        tp.load_report(folder / "reports" / "attention" / "bert-0.12")
        == result.reports["attention"]["bert, 0.12"]
    )
    corpus_of = result.reports["attention"]["bert, 0.12"].provenance["corpus"]
    assert corpus_of["options"]["max_length"] == 20
    assert (corpus_of["every"], corpus_of["at_most"]) == (3, 12)
    (text,) = result.tables["texts"]
    assert (text["fitted_articles"], text["vocabulary"], text["measured_documents"]) == (40, 97, 12)
    assert (text["shortest"], text["longest"]) == (20, 20)


NO_SHARES = [[2.0], [0.001, 0.0], [float("nan")]]


# Table 2 takes an empty list for the paper's thresholds.
@pytest.mark.parametrize(
    ("name", "thresholds"),
    [("table1", []), *((name, given) for name in ("table1", "table2", "table5") for given in NO_SHARES)],
)
def test_thresholds_that_are_no_shares_are_refused_before_topics_are_fitted(name, thresholds, monkeypatch):
    monkeypatch.setattr("topic_probe.paper.pretrained.open_all", None)
    with pytest.raises(ValueError, match="shares of the vocabulary, above 0 and at most 1"):
        reproduce(name, quick=True, thresholds=thresholds)
