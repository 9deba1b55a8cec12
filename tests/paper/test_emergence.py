"""The recipe that watches small models learn: on tiny ones, and its claims on numbers made by hand."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import small_language

import topic_probe as tp
from topic_probe.paper import recipe_named
from topic_probe.paper.emergence import BEYOND, IN_ARTICLES, IN_CORPUS, EmergenceSettings, _spread, trainings
from topic_probe.paper.figure5 import shuffled_text
from topic_probe.paper.pretrained import TextSettings
from topic_probe.paper.recipe import RecipeResult, Run
from topic_probe.train.architectures import ARCHITECTURES, SmallConfig
from topic_probe.train.tasks import TrainingText
from topic_probe.train.trainer import SmallTraining

TINY = EmergenceSettings(
    n_tokens=200,
    model=SmallConfig(n_layers=2, n_heads=2, d_model=16, max_length=32),
    training=SmallTraining(steps=6, batch_size=2),
    texts=TextSettings(n_topics=4, passes=2, length=32, n_documents=20),
    thresholds=(0.05, 0.1),
    n_steps=4,
)


def test_what_is_trained_is_every_architecture_twice_and_two_on_shuffled_text():
    labels = [one.label for one in trainings(Run(recipe_named("emergence")))]
    assert len(labels) == len(set(labels)) == 2 * len(ARCHITECTURES) + 2 * 2 * 2
    assert f"bert, {IN_CORPUS}, seed 1" in labels
    assert f"gpt2, {IN_ARTICLES}, seed 0" in labels
    assert [one.label for one in trainings(Run(recipe_named("emergence"), quick=True))] == [
        "bert, seed 0",
        "gpt2, seed 0",
    ]


def test_steps_are_spaced_by_equal_ratios_from_the_untrained_model_on():
    at = EmergenceSettings().at
    assert len(at) == 12
    assert (at[0], at[-1]) == (0, EmergenceSettings().training.steps)
    quotients = np.array(at[2:]) / np.array(at[1:-1])
    assert 1.58 < quotients.min() <= quotients.max() < 1.66  # 128 ** (1 / 10) = 1.625


def test_words_stay_in_their_article_where_they_are_dealt_within_articles():
    tokenizer = small_language.tokenizer()
    text = TrainingText.read(tp.encode_texts(small_language.texts(6), tokenizer), tokenizer)
    articles = np.array([0, 0, 1, 1, 2, 2])
    shuffled = shuffled_text(text, seed=0, articles=articles)
    assert not np.array_equal(shuffled.ids, text.ids)
    for article in range(3):
        own = np.repeat(articles, np.diff(text.starts)) == article
        assert sorted(shuffled.ids[own]) == sorted(text.ids[own])
    everywhere = shuffled_text(text, seed=0)
    first = np.repeat(articles, np.diff(text.starts)) == 0
    assert sorted(everywhere.ids[first]) != sorted(text.ids[first])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("emergence")
    corpus = small_language.corpus(20, 60)
    options = {"quick": True, "corpus": corpus, "settings": TINY, "folder": folder, "only": ["bert"]}
    return SimpleNamespace(first=tp.reproduce("emergence", **options), options=options, folder=folder)


def test_a_model_that_was_not_trained_far_enough_is_not_interpreted(tiny):
    result = tiny.first
    (row,) = result.tables["trainings"]
    assert row["not_far_enough"].startswith("not trained far enough: held-out loss")
    verdicts = {claim.verdict for claim in result.claims if not claim.text.startswith("Trained far enough")}
    assert verdicts == {"not checked"}
    assert "ratios" not in result.tables
    assert list(result.figures()) == ["all of emergence", "emergence bert, seed 0"]
    assert result.reports["series"]["bert, seed 0"].steps.tolist() == TINY.at


def test_what_was_trained_is_not_trained_again(tiny, monkeypatch):
    monkeypatch.setattr("topic_probe.paper.emergence.train_small", None)
    again = tp.reproduce("emergence", **tiny.options)
    assert [claim.to_dict() for claim in again.claims] == [claim.to_dict() for claim in tiny.first.claims]


def test_of_a_stream_of_unknown_length_not_more_is_kept_than_wanted_and_evenly():
    for length in (0, 1, 7, 8, 9, 100, 1000):
        kept, step = _spread(iter(range(length)), at_most=8)
        assert kept == list(range(0, length, step))
        assert len(kept) <= 8
        assert step == 1 or len(kept) > 4


def test_few_articles_are_refused(tmp_path):
    with pytest.raises(ValueError, match="at least 10 of 16 tokens or more are needed, got 4"):
        tp.reproduce("emergence", quick=True, corpus=small_language.corpus(4, 60), settings=TINY)


# --- claims on numbers made by hand -------------------------------------------------------------------


def result_of(
    *,
    gain=0.8,
    before=1.0,
    of_shuffled=0.0,
    low=1.4,
    high=1.2,
    within=0.5,
    nothing=0.0,
    beside=True,
    beyond=1.0,
):
    """A result of GPT-2 with two seeds and controls, as `measure` makes them."""
    about = [("", seed) for seed in (0, 1)] + [
        (control, seed) for control in (IN_CORPUS, IN_ARTICLES) for seed in (0, 1)
    ]
    every = []
    for control, seed in about:
        label = ", ".join(filter(None, ("gpt2", control, f"seed {seed}")))
        every.append({"training": label, "architecture": "gpt2", "control": control, "seed": seed})
    short = "" if gain >= 0.5 else "not trained far enough"
    numbers = {"loss": 6 - gain, "entropy": 6.0, "untrained_gain": -1.0, "not_far_enough": short}
    gains = {"": gain, IN_CORPUS: -0.1, IN_ARTICLES: 0.1}
    ends = {"": 0.6, IN_CORPUS: nothing, IN_ARTICLES: within}
    pair = {"first": "embeddings", "second": "attention", "after": 0.0}
    orders = [
        {**one, "labels": labels, **pair, "before": before if not (labels or one["control"]) else of_shuffled}
        for one in every
        for labels in ("", "shuffled labels")
        if beside or one["control"] != IN_CORPUS
    ]
    orders += [
        {**one, "labels": BEYOND, **pair, "before": beyond} for one in every if beside and not one["control"]
    ]
    ratios = [
        {"model": one["training"] + twin, "score": "attention", "threshold": threshold, "ratio": 1.0 if twin else ratio,
         "shuffled": 1.0}
        for one in every if not one["control"]
        for twin in ("", " random")
        for threshold, ratio in ((0.016, high), (0.004, low))
    ]  # fmt: skip
    tables = {
        "trainings": [{**one, **numbers, "gain": gains[one["control"]]} for one in every],
        "order": orders,
        "onsets": [],
        "end": [
            {
                **one,
                "labels": "",
                "measured": measured,
                "effect_size": ends[one["control"]] + 0.001 * one["seed"],
            }
            for one in every
            for measured in ("embeddings", "attention")
        ],
        "ratios": ratios,
    }
    return RecipeResult("emergence", "", False, (), tables=tables)


def verdicts(**numbers):
    result = result_of(**numbers)
    found = {}
    for check in recipe_named("emergence").claims:
        for claim in check(result):
            found.setdefault(claim.text.split(" (")[0].split(":")[0], set()).add(claim.verdict)
    return found


FAR, FALLS = (
    "Trained far enough to be interpreted",
    "The fewer words a topic keeps, the more they attend to each other",
)
FIRST = "Topics are in the word embeddings before they are in attention"
FIRST_BEYOND = "Beyond text without topics word embeddings begin before attention"
ORDERLESS = "Topics are learned from text without word order"


def test_claims_hold_of_what_they_say_and_fail_of_what_is_broken():
    assert verdicts() == {claim: {"holds"} for claim in (FAR, FALLS, FIRST, FIRST_BEYOND, ORDERLESS)}
    assert verdicts(before=0.5)[FIRST] == {"does not hold"}
    assert verdicts(of_shuffled=1.0)[FIRST] == {"not evidence"}
    assert verdicts(of_shuffled=1.0)[FIRST_BEYOND] == {"not evidence"}
    assert verdicts(beyond=0.5)[FIRST_BEYOND] == {"does not hold"}
    assert verdicts(beyond=0.5)[FIRST] == {"holds"}
    assert verdicts(beside=False)[FIRST_BEYOND] == {"not checked"}
    assert verdicts(beside=False)[FIRST] == {"holds"}
    assert verdicts(low=1.2, high=1.4)[FALLS] == {"does not hold"}
    assert verdicts(within=0.0)[ORDERLESS] == {"does not hold"}
    assert verdicts(nothing=0.5)[ORDERLESS] == {"not evidence"}


def test_nothing_is_checked_of_a_model_that_was_not_trained_far_enough():
    found = verdicts(gain=0.4)
    assert found.pop(FAR) == {"does not hold"}
    assert set.union(*found.values()) == {"not checked"}


def test_thresholds_and_steps_are_checked_before_anything_is_trained():
    with pytest.raises(ValueError, match="thresholds are shares"):
        replace(TINY, thresholds=(2.0,))
    with pytest.raises(ValueError, match="n_steps must be at least 2"):
        replace(TINY, n_steps=1)
