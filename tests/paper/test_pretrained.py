"""Models, documents and topics of the recipes on real text: what is opened, kept, cut, and said if it is missing."""

import re
from dataclasses import replace

import pytest
import torch
from small_language import corpus, save_model, tokenizer

import topic_probe as tp
from topic_probe.paper import pretrained, recipe_named
from topic_probe.paper.pretrained import (
    HUB,
    PAPER_MODELS,
    OnText,
    Prepared,
    Sample,
    TextSettings,
    open_all,
    open_named,
    prepare_all,
    wanted_models,
)
from topic_probe.paper.recipe import Run, Subject
from topic_probe.remote import Retry

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


# -------------------------------------------------------------------- which models


def test_the_paper_has_five_pretrained_models_and_an_untrained_bert():
    assert PAPER_MODELS == ("bert", "albert", "bart", "electra", "roberta", "bert random")
    assert [(one.label, one.source, one.random) for one in wanted_models()] == [
        *((name, name, False) for name in HUB),
        ("bert random", "bert", True),
    ]


@pytest.mark.parametrize(
    ("models", "found"),
    [
        (["bert", "bert random"], [("bert", "bert", False), ("bert random", "bert", True)]),
        (["me/mine"], [("me/mine", "me/mine", False)]),
        ("google-bert/bert-base-uncased", [("bert", "google-bert/bert-base-uncased", False)]),
        ({"x": "bert", "y": "me/mine random"}, [("x", "bert", False), ("y", "me/mine", True)]),
    ],
)  # fmt: skip
def test_models_are_named_by_the_paper_the_hub_or_a_label(models, found):
    wanted = wanted_models(models)
    assert [(one.label, one.source, one.random) for one in wanted] == found
    assert all(one.named for one in wanted)


def test_a_folder_is_called_by_its_last_part(tmp_path):
    folder = tmp_path / "my-bert"
    folder.mkdir()
    assert [one.label for one in wanted_models([folder])] == ["my-bert"]
    assert [one.label for one in wanted_models(str(folder))] == ["my-bert"]


def test_every_model_is_followed_by_its_untrained_twin_once():
    assert [one.label for one in wanted_models(["bert", "bert random", "albert"], twins=True)] == [
        "bert", "bert random", "albert", "albert random",
    ]  # fmt: skip


def test_models_can_be_chosen_by_their_labels():
    assert [one.label for one in wanted_models(twins=True, only=["bart random"])] == ["bart random"]
    with pytest.raises(ValueError, match=r"no model 'gpt' in this recipe; there are: bert, albert"):
        wanted_models(only=["gpt"])


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


# -------------------------------------------------------------------- what is not there


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


def test_twins_that_nobody_named_are_not_missed(offline):
    assert [one.label for one in open_all(run(), twins=True)] == [
        "bert", "bert random", "albert", "bart", "electra", "roberta",
    ]  # fmt: skip


@pytest.mark.parametrize("models", [["albert"], ["albert random"], {"mine": "albert/albert-base-v2"}])
def test_a_model_that_the_user_names_is_an_error_when_it_is_not_there(offline, models):
    with pytest.raises(OSError, match=r"hf download albert/albert-base-v2 --local-dir FOLDER"):
        list(open_all(run(), models))


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        open_named(str(tmp_path / "nowhere"))


def test_without_a_network_an_earlier_download_is_opened(monkeypatch, bert):
    monkeypatch.setattr(pretrained, "_downloaded", lambda name: str(bert) if name == HUB["electra"] else None)
    model = open_named("electra", reachable=lambda: False)
    assert model.original_model.config.model_type == "bert"


class _Session:
    def __init__(self, answer):
        self.answer = answer

    def head(self, url, timeout):
        assert url.startswith("https://")
        assert timeout <= 10
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(("answer", "reachable"), [("200", True), (OSError("no route"), False)])
def test_the_hub_is_asked_once_and_without_retries(monkeypatch, answer, reachable):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.get_session", lambda: _Session(answer))
    assert pretrained.hub_is_reachable() is reachable


def test_the_hub_is_not_asked_where_the_user_works_offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.get_session", lambda: _Session(AssertionError("asked")))
    assert pretrained.hub_is_reachable() is False


def test_a_wikipedia_that_cannot_be_streamed_is_missing_and_names_the_corpus_that_is_here(offline, bert):
    (missing,) = prepare_all(run(), OnText({"bert": bert}), twins=True)
    assert type(missing) is Subject
    assert "corpus=topic_probe.Corpus.bundled()" in missing.missing


def test_a_corpus_that_the_user_gave_is_an_error_when_it_cannot_be_read(bert):
    def broken():
        raise ConnectionError("gone")

    given = replace(tp.Corpus.from_texts(broken), retry=Retry(attempts=0))
    with pytest.raises(ConnectionError, match="gone"):
        prepare(bert, corpus=given)


def test_a_model_without_a_tokenizer_says_how_to_give_it_one(bert):
    model = tp.open_model(tp.open_model(bert).original_model)
    with pytest.raises(ValueError, match=re.escape("open_model(model, tokenizer=...)")):
        prepare(model)


# -------------------------------------------------------------------- documents and topics


def test_documents_are_cut_to_one_length_and_spread_over_the_corpus(bert):
    (one,) = prepare(bert)
    assert [len(document) for document in one.documents] == [20] * 10
    # 40 articles, so every fourth; the cut ones begin as the whole ones do, and end with the special token.
    whole = list(one.articles)
    for cut, article in zip(one.documents, whole[::4], strict=True):
        assert cut.ids[:19].tolist() == article.ids[:19].tolist()
        assert cut.ids[19] == article.ids[-1] == one.tokenizer.sep_token_id


def test_documents_are_no_longer_than_the_model_can_take(bert):
    (one,) = prepare(bert, settings=TextSettings(n_topics=4, passes=1, length=500, n_documents=3))
    assert max(map(len, one.documents)) <= one.model.original_model.config.max_position_embeddings == 64


def test_topics_are_fitted_on_whole_articles_and_the_twin_shares_them(bert):
    one, twin = prepare(bert, twins=True)
    assert one.fit.provenance["documents"] == 40
    assert one.fit.provenance["tokens"] == sum(len(article) for article in one.articles)
    assert (twin.label, twin.random) == ("bert random", True)
    assert twin.fit is one.fit
    assert twin.documents is one.documents


def test_only_the_few_articles_that_come_with_gensim_are_kept_in_memory(monkeypatch, bert):
    monkeypatch.setattr(tp.Corpus, "bundled", lambda: corpus())
    (one,) = prepare(bert, corpus=None, quick=True)
    assert isinstance(one.articles, Sample)
    (given,) = prepare(bert, quick=True)
    assert not isinstance(given.articles, Sample)
    assert [part.ids.tolist() for part in one.articles] == [part.ids.tolist() for part in given.articles]
    torch.testing.assert_close(one.fit.phi, given.fit.phi, rtol=0, atol=0)
    assert one.fit.provenance["documents"] == given.fit.provenance["documents"]
    assert one.fit.provenance["tokens"] == given.fit.provenance["tokens"]


# Words per topic in the paper's Table 2 are 15, 30 and 59 for BERT, whose tokenizer has 30,522 ids.
@pytest.mark.parametrize(("threshold", "words"), [(0.0005, 15), (0.001, 31), (0.002, 61)])
def test_a_threshold_is_a_fraction_of_the_tokenizer(threshold, words):
    prepared = prepared_with_a_large_vocabulary(TextSettings())
    assert prepared.topics(threshold).sizes.tolist() == [words, words]


def test_a_threshold_may_be_a_fraction_of_the_fitted_words():
    prepared = prepared_with_a_large_vocabulary(TextSettings(fraction_of="fit"))
    assert prepared.topics(0.02).sizes.tolist() == [8, 8]  # of 400


def prepared_with_a_large_vocabulary(settings):
    """Two topics of 200 words each, among the 30,522 ids of BERT."""
    phi = torch.zeros(2, 400, dtype=torch.float64)
    phi[0, :200], phi[1, 200:] = 1 / 200, 1 / 200
    fit = tp.TopicFit(
        phi=phi, token_ids=torch.arange(1000, 1400), texts=tuple(map(str, range(400))), vocabulary_size=30_522,
        tokenizer_hash="none", tokens=torch.ones(2, dtype=torch.float64), npmi=torch.zeros(2, dtype=torch.float64),
        document_frequency=torch.ones(400, dtype=torch.int64),
        settings={}, provenance={},
    )  # fmt: skip
    articles = corpus().documents(tokenizer())
    return Prepared(
        label="x", model=None, tokenizer=None, articles=articles, documents=[], fit=fit, settings=settings
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [({"fraction_of": "corpus"}, "fraction_of must be"), ({"length": 0}, "length must be at least 1, got 0")],
)
def test_settings_that_mean_nothing_are_refused(options, message, unchecked):
    with pytest.raises(ValueError, match=message):
        TextSettings(**options)


# -------------------------------------------------------------------- what is kept


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
    prepare(bert, folder=tmp_path, corpus=corpus(seed=1))
    assert fits == [4] * 2
    prepare(bert, folder=tmp_path, seed=1)
    assert fits == [4] * 3
    prepare(bert, folder=tmp_path, settings=TextSettings(n_topics=3, passes=2))
    assert fits == [4] * 3 + [3]
    other = tp.open_model(tp.open_model(bert).original_model, tokenizer=tokenizer(reverse=True))
    prepare(other, folder=tmp_path)
    assert fits == [4] * 3 + [3, 4]


def test_models_with_one_tokenizer_share_one_fit(fits, bert):
    found = list(prepare_all(run(), OnText({"a": bert, "b": bert}, corpus(), SMALL)))
    assert fits == [4]
    assert found[0].fit is found[1].fit
