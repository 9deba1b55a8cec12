"""Models, documents and topics of the recipes on real text: what is opened, kept, cut, and said if it is missing."""

import pytest
import torch
from small_language import corpus, save_model, tokenizer

import topic_probe as tp
from topic_probe.paper import pretrained, recipe_named
from topic_probe.paper.pretrained import (
    HUB,
    PAPER_MODELS,
    OnText,
    TextSettings,
    open_all,
    prepare_all,
    wanted_models,
)
from topic_probe.paper.recipe import Run, Subject

SMALL = TextSettings(n_topics=4, passes=2, length=20, n_documents=10)


@pytest.fixture
def offline(monkeypatch):
    """No hub and nothing downloaded before; counts how often the hub is asked."""
    asked = []

    def unreachable():
        asked.append(1)
        return False

    monkeypatch.setattr(pretrained, "hub_is_reachable", unreachable)
    monkeypatch.setattr(pretrained, "_downloaded", lambda name: None)
    return asked


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_model("bert", tmp_path_factory.mktemp("bert"))


def run(**options):
    return Run(recipe_named("table1"), **options)


def prepare(model, *, twins=False, corpus=corpus(), settings=SMALL, **options):  # noqa: B008
    return list(prepare_all(run(**options), OnText({"bert": model}, corpus, settings), twins=twins))


@pytest.mark.parametrize(
    ("models", "found"),
    [
        (["bert", "bert random"], [("bert", "bert", False), ("bert random", "bert", True)]),
        (["me/mine"], [("me/mine", "me/mine", False)]),
        ("google-bert/bert-base-uncased", [("bert", "google-bert/bert-base-uncased", False)]),
        ({"x": "bert", "y": "me/mine random"}, [("x", "bert", False), ("y", "me/mine", True)]),
    ],
)  # fmt: skip
def test_models_are_named_by_the_paper_the_hub_or_a_label_and_followed_by_their_twins(models, found):
    wanted = wanted_models(models)
    assert [(one.label, one.source, one.random) for one in wanted] == found
    with_twins = [one.label for one in wanted_models(["bert", "bert random", "albert"], twins=True)]
    assert with_twins == ["bert", "bert random", "albert", "albert random"]


@pytest.mark.parametrize(
    ("models", "error", "message"),
    [
        ({}, ValueError, "models is empty"),
        ([torch.nn.Linear(2, 2)], TypeError, "an opened model needs a label: .* got Linear"),
        (7, TypeError, "models must be names, folders, or a mapping label → model, got int"),
    ],
)
def test_models_that_cannot_be_told_apart_are_refused(models, error, message):
    with pytest.raises(error, match=message):
        wanted_models(models)


def test_without_a_network_a_model_of_the_paper_is_missing_and_says_how_to_get_it(offline):
    found = list(open_all(run()))
    assert [(one.label, one.random) for one in found] == [
        (name, name == "bert random") for name in PAPER_MODELS
    ]
    for one in found:
        hub_name = HUB[one.label.removesuffix(" random")]
        assert f"`hf download {hub_name} --local-dir FOLDER`" in one.missing
        assert f'models={{"{one.label.removesuffix(" random")}": FOLDER}}' in one.missing
    assert len(offline) == 1  # asked once, not for every model


def test_a_model_that_the_user_names_is_an_error_when_it_is_not_there(offline):
    with pytest.raises(OSError, match=r"hf download albert/albert-base-v2 --local-dir FOLDER"):
        list(open_all(run(), {"mine": "albert/albert-base-v2"}))


def test_a_wikipedia_that_cannot_be_streamed_is_missing_and_names_the_corpus_that_is_here(offline, bert):
    (missing,) = prepare_all(run(), OnText({"bert": bert}), twins=True)
    assert type(missing) is Subject
    assert "corpus=topic_probe.Corpus.bundled()" in missing.missing


def test_documents_are_cut_to_one_length_and_spread_over_the_corpus(bert):
    (one,) = prepare(bert)
    assert [len(document) for document in one.documents] == [20] * 10
    # 40 articles, so every fourth; the cut ones begin as the whole ones do, and end with the special token.
    whole = list(one.articles)
    for cut, article in zip(one.documents, whole[::4], strict=True):
        assert cut.ids[:19].tolist() == article.ids[:19].tolist()
        assert cut.ids[19] == article.ids[-1] == one.tokenizer.sep_token_id


def test_topics_are_fitted_on_whole_articles_and_the_twin_shares_them(bert):
    one, twin = prepare(bert, twins=True)
    assert one.fit.provenance["documents"] == 40
    assert one.fit.provenance["tokens"] == sum(len(article) for article in one.articles)
    assert (twin.label, twin.random) == ("bert random", True)
    assert twin.fit is one.fit
    assert twin.documents is one.documents


def test_a_threshold_is_a_fraction_of_the_ids_of_the_tokenizer(bert):
    """Of 97 ids, of which 92 are words."""
    (one,) = prepare(bert)
    assert (one.fit.vocabulary_size, len(one.fit.token_ids)) == (97, 92)
    assert one.topics(0.12, one_topic_per_word=False).sizes.tolist() == [12] * 4


@pytest.fixture
def fits(monkeypatch):
    """How often topics were fitted."""
    done = []

    def counted(*args, **options):
        done.append(options["n_topics"])
        return tp.fit_topics(*args, **options)

    monkeypatch.setattr(pretrained, "fit_topics", counted)
    return done


def test_a_fit_is_found_again_only_for_the_same_texts_tokenizer_and_options(fits, bert, tmp_path):
    (first,) = prepare(bert, folder=tmp_path)
    (again,) = prepare(bert, folder=tmp_path)
    assert fits == [4]
    torch.testing.assert_close(again.fit.phi, first.fit.phi, rtol=0, atol=0)
    assert [one.ids.tolist() for one in again.documents] == [one.ids.tolist() for one in first.documents]
    for number, changed in enumerate(({"corpus": corpus(seed=1)}, {"seed": 1}), 2):
        prepare(bert, folder=tmp_path, **changed)
        assert fits == [4] * number
    other = tp.open_model(tp.open_model(bert).original_model, tokenizer=tokenizer(reverse=True))
    prepare(other, folder=tmp_path)
    assert fits == [4] * 4
