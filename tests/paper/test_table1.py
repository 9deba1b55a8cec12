"""Tables 1 and 5: on every architecture, against a direct computation, on a real checkpoint, and on disk."""

import math
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
from topic_probe.paper.pretrained import PAPER_MODELS, THRESHOLDS, TextSettings
from topic_probe.paper.table1 import NO_DIFFERENCE, PRINTED, SCORES

# Twelve words of 97 per topic, all documents of 20 tokens.
SMALL = TextSettings(n_topics=N_TOPICS, passes=5, length=20, n_documents=12)
THRESHOLD = 0.12


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
    result = run_small(save_model(name, tmp_path), label=name.split("-")[0])
    assert [row["score"] for row in result.tables["ratios"]] == list(SCORES)
    for row in result.tables["ratios"]:
        assert row["same_topic"] is not None
        assert row["n_same_topic"] > 100
        assert row["n_different_topic"] > 1000
    row = result.tables["ratios"][2]
    assert 0.5 < row["low"] < row["ratio"] < row["high"] < 2
    assert {claim.verdict for claim in result.claims} <= {"passed", "failed"}
    assert ("by stack: encoder" in result.claims[2].detail) == (name == "bart")


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


def test_a_planted_topic_in_the_embeddings_is_found_and_printed_beside_the_paper(tmp_path):
    with torch.no_grad():
        model = zoo.make("bert")
        table = model.get_input_embeddings().weight
        for topic in range(N_TOPICS):
            ids = tokenizer().convert_tokens_to_ids(words(topic))
            table[ids] += 2.0 * torch.nn.functional.one_hot(torch.tensor(topic), table.shape[1])
        table += 0.5  # a common direction, without which different topics have nothing to divide by
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    result = run_small(tmp_path, thresholds=(0.0005, THRESHOLD))
    cosine = result.table("ratios").query("score == 'embedding cosine'")
    assert cosine["paper"].tolist()[0] == 1.21
    assert math.isnan(cosine["paper"].tolist()[1])
    (planted_row,) = cosine.query("threshold == @THRESHOLD").to_dict("records")
    assert planted_row["low"] > 1.2
    claims = [claim for claim in result.claims if claim.text.startswith("Cosine")]
    assert [claim.verdict for claim in claims] == ["failed", "passed"]  # one word per topic has no pair
    assert "no pair of different words shares a topic" in claims[0].detail
    assert "paper 1.21" in claims[0].detail


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


# A finding: with words read off the text LDA fits other topics to the first 50 articles, and attention there is 1.07
# [0.92, 1.27] where it was 1.21 [1.06, 1.39]. All articles, which were only looked at after that, say it is above 1.
@pytest.mark.parametrize(
    "n_documents",
    [
        pytest.param(50, marks=pytest.mark.xfail(strict=True, reason="attention on 50 articles: see above")),
        None,
    ],
)
def test_a_real_model_has_topics_and_its_untrained_twin_has_none(n_documents):
    articles = list(tp.Corpus.bundled())
    result = reproduce(
        "table1",
        models={"minilm": minilm_folder()},
        corpus=tp.Corpus.from_texts([article[:6000] for article in articles]),
        settings=TextSettings(n_topics=8, length=64, n_documents=n_documents),
        thresholds=(0.001,),
    )
    assert [claim.verdict for claim in result.claims] == ["passed"] * 6, repr(result)
    assert row_of(result, "embedding cosine", "minilm")["low"] > 1.5
    assert row_of(result, "attention", "minilm")["low"] > 1
    twin = row_of(result, "attention", "minilm random")
    assert twin["ratio"] == pytest.approx(1, abs=0.01)
    assert row_of(result, "embedding cosine", "minilm random")["ratio"] is None
    assert list(result.figures()) == ["table1"]


# -------------------------------------------------------------------- verdicts


def contrast(same, different, low, high, *, same_word=1.0):
    return Contrast(
        *(np.array(value) for value in (same_word, same, different, 1.0, 10.0, 20.0)),
        interval=np.array([low, high]),
    )


@pytest.mark.parametrize(
    ("low", "different", "verdict"), [(1.01, 1.0, "passed"), (0.99, 1.0, "failed"), (1.01, -1.0, "failed")]
)
def test_a_trained_model_passes_if_its_whole_interval_is_above_1(low, different, verdict):
    claim = table1._trained("attention", contrast(1.2, different, low, 1.4), source="")
    assert claim.verdict == verdict


@pytest.mark.parametrize(
    ("ratio", "half", "verdict"),
    [
        (1.009, 0.001, "passed"),
        (1.011, 0.001, "failed"),
        (0.989, 0.0, "failed"),
        (1.03, 0.04, "passed"),
        (1.05, 0.04, "failed"),
        (1.009, math.nan, "passed"),
    ],
)
def test_an_untrained_model_passes_within_a_hundredth_or_half_of_its_interval(ratio, half, verdict):
    given = contrast(ratio, 1.0, ratio - half, ratio + half)
    assert NO_DIFFERENCE == 0.01
    assert table1._untrained("attention", given, source="", paper="").verdict == verdict


@pytest.mark.parametrize(
    ("difference", "verdict"), [(0.019, "passed"), (-0.019, "passed"), (0.021, "failed")]
)
def test_untrained_embeddings_are_held_to_the_difference_as_a_share_of_a_word_with_itself(
    difference, verdict
):
    # A word has 2 with itself, so a hundredth of it is 0.02. The ratio, 0.001 to 0.02 over 0.001, says nothing.
    given = contrast(0.001 + difference, 0.001, difference - 0.001, difference + 0.001, same_word=2.0)
    assert table1._untrained("embedding dot", given, source="", paper="").verdict == verdict


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


def test_an_interrupted_measurement_stops_the_recipe_and_is_taken_up_again(
    result, bert, tmp_path, monkeypatch
):
    rows, add = [], Engine.add

    def interrupted(engine, batch):
        if rows:
            raise KeyboardInterrupt
        rows.append(len(batch))
        add(engine, batch)

    small_steps = partial(tp.measure_attention, batch_size=8, checkpoint_every=0.0)
    monkeypatch.setattr(table1, "measure_attention", small_steps)
    monkeypatch.setattr(Engine, "add", interrupted)
    with pytest.raises(KeyboardInterrupt, match="bert: interrupted after 8 documents"):
        run_small(bert, folder=tmp_path)
    kept = {path.name.split("-", 1)[0] + path.name[-5:] for path in (tmp_path / "measured").iterdir()}
    assert {name for name in kept if name.startswith("attention")} == {"attention-sums"}

    def counted(engine, batch):
        rows.append(len(batch))
        add(engine, batch)

    monkeypatch.setattr(Engine, "add", counted)
    again = run_small(bert, folder=tmp_path)
    assert rows == [8, 4]
    assert again.tables == result.tables
    assert not list((tmp_path / "measured").glob("*-sums"))


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
