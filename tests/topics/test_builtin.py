"""Word lists that come along: what is in them, that they are those of the catalogue, and what becomes of them."""

import hashlib
import json
import re
import shutil
import sys
from html.entities import name2codepoint
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from real_text import minilm_folder

import topic_probe as tp
from topic_probe.cli.inputs import BUILTIN_TOPICS
from topic_probe.topics import builtin
from topic_probe.words import form

ROOT = Path(__file__).parents[2]
FOLDER = Path(str(files("topic_probe.topics"))) / "wordlists"
sys.path.insert(0, str(ROOT / "demos"))

import build_topics  # noqa: E402

FAMILIES = tp.builtin_topics()


@pytest.fixture(scope="module")
def minilm():
    return hf.AutoTokenizer.from_pretrained(minilm_folder())


def test_lists_are_those_of_the_catalogue_and_a_word_stands_in_one_of_a_language():
    catalogue = json.loads((FOLDER / "catalogue.json").read_text("utf-8"))
    assert list(FAMILIES) == [*BUILTIN_TOPICS] == [*catalogue]
    for name, family in FAMILIES.items():
        content = (FOLDER / f"{name}.tsv").read_bytes()
        assert hashlib.sha256(content).hexdigest() == family.sha256
        for language in (*[*family.n_words][::8], "en"):
            lists = family.lists(language)
            words = [word for words in lists.values() for word in words]
            assert (len(lists), len(words)) == (family.n_lists[language], family.n_words[language])
            assert len({form(word) for word in words}) == len(words), (name, language)
            assert all(5 <= len(words) <= 300 for words in lists.values()), (name, language)


def test_lists_hold_what_a_person_expects_of_their_names():
    expected = {
        "wordnet-nouns": {"animal": "horse cow wolf", "food": "coffee dinner bread", "plant": "leaf seed"},
        "wordnet-domains": {"military": "regiment infantry", "music": "choir ensemble", "law": "jury"},
        "empath": {"weapon": "gun pistol cannon", "weather": "raining lightning"},
        "emoji": {"food-fruit": "banana mango", "zodiac": "Aries Leo", "musical-instrument": "guitar violin"},
    }
    for name, of in expected.items():
        for topic, words in of.items():
            assert set(words.split()) <= set(FAMILIES[name].lists()[topic]), topic
    assert {"Banane", "Zitrone"} <= set(FAMILIES["emoji"].lists("de")["food-fruit"])
    assert FAMILIES["wordnet-nouns"].lists()["plant"][:3] == ("leaf", "seed", "pollen")
    # "run" is a verb first, "bank" has senses in several files, "plant" is a building or a living thing.
    nouns = {word for words in FAMILIES["wordnet-nouns"].lists().values() for word in words}
    assert not nouns & {"run", "bank", "plant", "make", "court", "party", "film", "house"}


# As a grammar has them, written down apart from those of the script.
FUNCTION_WORDS = """
a an the this that these those each every some any no all both either neither other another such i you he she it we
they me him her us them my your his its our their mine yours hers ours theirs myself yourself himself herself itself
ourselves themselves someone anyone everyone nobody nothing everything who whom whose which what when where why how
whether and or but nor if because although though while since until unless whereas than as of in to for with on at by
from about into over after before under between through during against among within without toward upon up down out
off am is are was were be been being do does did have has had can could may might must shall should will would not
yes there here then thus also only even very too many much few more most several
"""


def test_english_lists_have_no_function_words_and_no_names_of_html_entities():
    refused = {*FUNCTION_WORDS.split(), *name2codepoint}
    for name, family in FAMILIES.items():
        words = {form(word) for words in family.lists().values() for word in words}
        assert not words & refused, name


def test_the_licences_of_all_sources_come_along_and_into_the_wheel():
    for family in FAMILIES.values():
        assert family.attribution in (FOLDER / "NOTICE").read_text(encoding="utf-8")
        for source in family.sources:
            assert (FOLDER / "licences" / f"{source.split()[1]}.txt").exists()
    assert "creativecommons.org/licenses/by/3.0" in FAMILIES["wordnet-domains"].attribution
    (patterns,) = re.findall(r"^license-files = (\[.*?\])$", (ROOT / "pyproject.toml").read_text(), re.M)
    named = {path for pattern in json.loads(patterns) for path in ROOT.glob(pattern)}
    assert named >= {FOLDER / "NOTICE", *(FOLDER / "licences").iterdir()}


def test_changed_lists_are_refused(tmp_path, monkeypatch):
    changed = shutil.copytree(FOLDER, tmp_path / "wordlists")
    with (changed / "empath.tsv").open("a") as file:
        file.write("en\tmore\tword\n")
    monkeypatch.setattr(builtin, "files", lambda _: tmp_path)
    with pytest.raises(ValueError, match="the lists empath are not those that came with topic_probe"):
        tp.builtin_topics()["empath"].lists()


# --- how they are made --------------------------------------------------------------------------------


def test_the_page_is_that_of_the_lists():
    assert build_topics.PAGE.read_text(encoding="utf-8") == build_topics.page(), "run: make topics"


@pytest.mark.slow
@pytest.mark.skipif(
    not build_topics.PACKAGES.exists(), reason="`make topics` has not fetched the packages here"
)
def test_lists_are_made_again_bit_by_bit():
    made = build_topics.build(build_topics.PACKAGES)
    shipped = {str(path.relative_to(FOLDER)): path for path in FOLDER.rglob("*") if path.is_file()}
    assert made.keys() == shipped.keys()
    for name, content in made.items():
        assert content == shipped[name].read_bytes(), name


def test_words_go_where_three_quarters_of_their_uses_are_and_words_of_several_lists_to_none():
    Sense, NOUN = build_topics.Sense, build_topics.NOUN
    senses = {
        "oak": [Sense(NOUN, 20, "1", 3), Sense(NOUN, 27, "2", 1)],  # 3 of 4 uses
        "elm": [Sense(NOUN, 20, "1", 2), Sense(NOUN, 27, "2", 1)],  # 2 of 3
        "fir": [Sense(NOUN, 20, "1", 6), Sense(2, 30, "3", 6)],  # as often a verb
        "ash": [Sense(NOUN, 20, "1", 0), Sense(NOUN, 20, "4", 0)],  # never tagged, one list
        "yew": [Sense(NOUN, 20, "1", 0)],  # never tagged, in no definition
        "rue": [Sense(NOUN, 20, "1", 9)],  # rude
        "two_words": [Sense(NOUN, 20, "1", 9)],
    }
    spelled = {(word, of.synset): word.title() for word, found in senses.items() for of in found}
    net = build_topics.WordNet(senses, spelled, {}, {"ash": 2, "oak": 1, "yew": 0}, frozenset({"rue"}))
    lists, left_out = build_topics.by_dominant_sense(net, lambda sense: str(sense.file))
    assert lists == {"20": ["Oak", "Ash"]}
    assert left_out == {"words without a dominant list": 2, "slurs and obscene words": 1}
    lists, several = build_topics.in_one_list({"a": ["Oak", "elm", "oak"], "b": ["ELM", "ash"]})
    assert (lists, several) == ({"a": ["Oak"], "b": ["ash"]}, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wordnet-nouns", "empath"])
def test_coverage_is_what_a_report_of_the_bundled_articles_counts(name, minilm):
    model, family = tp.open_model(minilm_folder()), FAMILIES[name]
    documents = tp.Corpus.bundled().documents(minilm, max_length=256)
    report = tp.measure_attention(model, tp.Topics.builtin(name, minilm), documents, n_permutations=0)
    counts, tokens = report.provenance, family.coverage["tokens"]
    # Articles with no two words of topics are not measured.
    assert 100 * counts["tokens_with_a_topic"] / counts["tokens"] == pytest.approx(tokens, rel=0.02)
    assert counts["same_topic_pairs"] / counts["documents"] == pytest.approx(
        family.coverage["pairs"], abs=0.005
    )
    assert f"{tokens:.1f} % of tokens" in repr(family)


# --- topics of them -----------------------------------------------------------------------------------


def test_topics_are_those_of_the_lists_with_all_options_and_say_where_they_come_from(minilm):
    options = {"case_variants": False, "split_words": "keep", "forms": "stem"}
    made = tp.Topics.builtin("emoji", minilm, language="de", **options)
    assert made == tp.Topics.from_word_lists(FAMILIES["emoji"].lists("de"), minilm, **options)
    for said in (f"emoji {FAMILIES['emoji'].version}", FAMILIES["emoji"].sha256, "language de"):
        assert said in made.policy


@pytest.fixture(scope="module")
def directions():
    """The embeddings of a trained model, less their mean, of length 1."""
    table = hf.AutoModel.from_pretrained(minilm_folder()).embeddings.word_embeddings.weight.detach().double()
    return torch.nn.functional.normalize(table - table.mean(0), dim=1).numpy()


@pytest.mark.parametrize(
    "name", ["emoji", *(pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES if name != "emoji")]
)
def test_words_of_a_list_lie_closer_in_a_trained_model_and_not_when_shuffled(name, minilm, directions):
    topics = tp.Topics.builtin(name, minilm)
    rows, of = directions[topics.words.numpy()], topics.assignments[:, 1].numpy()

    def gap(of):
        # |S|² − n over the pairs of different words in a topic; all others are of different ones.
        sums = np.array([rows[of == topic].sum(0) for topic in np.unique(of)])
        sizes = np.unique(of, return_counts=True)[1]
        within, every = (sums**2).sum() - len(rows), (rows.sum(0) ** 2).sum() - len(rows)
        n_within, n_every = (sizes * (sizes - 1)).sum(), len(rows) * (len(rows) - 1)
        return within / n_within - (every - within) / (n_every - n_within)

    assert gap(of) > 0.05
    assert abs(gap(np.random.default_rng(0).permutation(of))) < 0.01


def test_unknown_names_and_languages_are_refused_with_a_suggestion(minilm):
    with pytest.raises(ValueError, match=r"'wordnet-domain', did you mean 'wordnet-domains'\?: there are w"):
        tp.Topics.builtin("wordnet-domain", minilm)
    with pytest.raises(ValueError, match="emoji has no lists in 'DE', did you mean 'de'"):
        tp.Topics.builtin("emoji", minilm, language="DE")
