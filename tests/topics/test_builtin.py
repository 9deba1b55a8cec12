"""Word lists that come along: what is in them, that they are those of the catalogue, and what becomes of them."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from real_text import minilm_folder
from tokenizer_kinds import KINDS

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


# --- the lists ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_lists_are_those_of_the_catalogue(name):
    content = (FOLDER / f"{name}.tsv").read_bytes()
    assert hashlib.sha256(content).hexdigest() == FAMILIES[name].sha256
    rows = [line.split("\t") for line in content.decode().splitlines()]
    for language, n_words in FAMILIES[name].n_words.items():
        own = [row for row in rows if row[0] == language]
        assert len(own) == FAMILIES[name].n_lists[language]
        assert sum(len(row) - 2 for row in own) == n_words


def test_a_word_stands_in_one_list_of_a_language():
    of_emoji = FAMILIES["emoji"].languages
    assert len(of_emoji) > 100
    for name, language in [
        *((name, "en") for name in FAMILIES),
        *(("emoji", other) for other in of_emoji[::8]),
    ]:
        lists = FAMILIES[name].lists(language)
        forms = [form(word) for words in lists.values() for word in words]
        assert len(set(forms)) == len(forms), (name, language)
        assert all(5 <= len(words) <= 300 for words in lists.values()), (name, language)


def test_lists_hold_what_a_person_expects_of_their_names():
    expected = {
        "wordnet-nouns": {"animal": "dog horse cow", "food": "coffee dinner bread", "plant": "tree grass"},
        "wordnet-domains": {"military": "regiment infantry", "music": "choir ensemble", "law": "jury"},
        "empath": {"weapon": "gun pistol cannon", "weather": "raining lightning"},
        "emoji": {"food-fruit": "banana mango", "zodiac": "Aries Leo", "musical-instrument": "guitar violin"},
    }
    for name, of in expected.items():
        for topic, words in of.items():
            assert set(words.split()) <= set(FAMILIES[name].lists()[topic]), topic
    german = FAMILIES["emoji"].lists("de")
    assert {"Banane", "Zitrone"} <= set(german["food-fruit"])
    # "run" is a verb first, "bank" has senses in several files, "plant" is a building or a living thing.
    nouns = {word for words in FAMILIES["wordnet-nouns"].lists().values() for word in words}
    assert not nouns & {"run", "bank", "plant", "make"}


def test_all_files_together_are_small_and_have_their_licences():
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 2_000_000
    for family in FAMILIES.values():
        assert len(family.licence_files) == len(family.sources) > 0
        assert family.attribution in (FOLDER / "NOTICE").read_text(encoding="utf-8")
        for file in family.licence_files:
            assert (FOLDER / file).read_text(encoding="utf-8").strip() in family.notice
    assert "creativecommons.org/licenses/by/3.0" in FAMILIES["wordnet-domains"].notice
    assert "Permission to use, copy, modify and distribute" in FAMILIES["wordnet-nouns"].notice
    assert "UNICODE LICENSE V3" in FAMILIES["emoji"].notice
    assert "Copyright (c) 2016 Ethan Fast" in tp.builtin_topics().notice


def test_the_wheel_is_told_of_every_licence():
    (patterns,) = re.findall(
        r"^license-files = (\[.*?\])$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    named = {path for pattern in json.loads(patterns) for path in ROOT.glob(pattern)}
    assert named >= {FOLDER / "NOTICE", *(FOLDER / "licences").iterdir()}


def test_changed_lists_are_refused(tmp_path, monkeypatch):
    changed = shutil.copytree(FOLDER, tmp_path / "wordlists")
    with (changed / "empath.tsv").open("a") as file:
        file.write("en\tmore\tword\n")
    monkeypatch.setattr(builtin, "files", lambda _: tmp_path)
    assert len(tp.builtin_topics()["emoji"].lists()) > 10
    with pytest.raises(ValueError, match="the lists empath are not those that came with topic_probe"):
        tp.builtin_topics()["empath"].lists()


# --- how they are made --------------------------------------------------------------------------------


def test_the_page_is_that_of_the_lists():
    assert build_topics.PAGE.read_text(encoding="utf-8") == build_topics.page(), "run: make topics"
    assert re.search(r"\| plant \| 300 \| tree, grass, flower,", build_topics.page())


PACKAGES = build_topics.PACKAGES


@pytest.mark.slow
@pytest.mark.skipif(not PACKAGES.exists(), reason="`make topics` has not fetched the packages here")
def test_lists_are_made_again_bit_by_bit():
    made = build_topics.build(PACKAGES)
    shipped = {str(path.relative_to(FOLDER)): path for path in FOLDER.rglob("*") if path.is_file()}
    assert made.keys() == shipped.keys()
    for name, content in made.items():
        assert content == shipped[name].read_bytes(), name


def test_a_package_of_another_checksum_is_refused(tmp_path):
    (tmp_path / build_topics.EMPATH.file).write_bytes(b"other")
    with pytest.raises(
        ValueError, match=r"empath-0\.89\.tar\.gz needs the sha256 91283d.*, it has d9298a10d1b0"
    ):
        build_topics.EMPATH.fetch(tmp_path)


def test_words_go_where_three_quarters_of_their_uses_are():
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
    net = build_topics.WordNet(senses, spelled, {"ash": 2, "oak": 1, "yew": 0}, frozenset({"rue"}))
    lists, left_out = build_topics.by_dominant_sense(net, lambda sense: str(sense.file))
    assert lists == {"20": ["Oak", "Ash"]}
    assert left_out == {"words without a dominant list": 2, "slurs and obscene words": 1}


def test_words_of_several_lists_are_in_none():
    lists, several = build_topics.in_one_list({"a": ["Oak", "elm", "oak"], "b": ["ELM", "ash"]})
    assert (lists, several) == ({"a": ["Oak"], "b": ["ash"]}, 1)


# --- topics of them -----------------------------------------------------------------------------------


def test_topics_are_those_of_the_lists_and_say_where_they_come_from(minilm):
    made = tp.Topics.builtin("wordnet-domains", minilm)
    assert made == tp.Topics.from_word_lists(FAMILIES["wordnet-domains"].lists(), minilm)
    named = f"wordnet-domains {FAMILIES['wordnet-domains'].version}"
    assert named in made.policy
    assert FAMILIES["wordnet-domains"].sha256 in made.policy
    assert len(made.left_out["split words"]) > 100
    assert int((made.assignments[:, 0].bincount() > 1).sum()) == 0


def test_options_of_word_lists_are_passed_on(minilm):
    options = {"case_variants": False, "leading_space": False, "split_words": "keep", "forms": "stem"}
    made = tp.Topics.builtin("emoji", minilm, language="de", **options)
    assert made == tp.Topics.from_word_lists(FAMILIES["emoji"].lists("de"), minilm, **options)
    assert "language de" in made.policy


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("language", ["en", "de", "zh", "ar"])
@pytest.mark.filterwarnings("ignore:topics without a word", "ignore:topics with the very words")
def test_every_kind_of_tokenizer_takes_the_scripts_that_it_knows(kind, language):
    lists = FAMILIES["emoji"].lists(language)
    by_byte = kind == "slow" or kind.startswith("byte-level")
    if language == "ar" and not by_byte:  # they were trained on no letter of it
        with pytest.raises(ValueError, match=r"no word is left in any topic .*unknown words"):
            tp.Topics.builtin("emoji", KINDS[kind], language=language, split_words="keep")
        return
    topics = tp.Topics.builtin("emoji", KINDS[kind], language=language, split_words="keep")
    assert topics.names == tuple(lists)
    words = {word for listed in lists.values() for word in listed}
    lost = {word for listed in topics.left_out.values() for word in listed}
    assert by_byte == (not words & lost)
    assert 0 < len(words - lost) <= len(topics.words)


def test_names_that_are_words_of_a_multilingual_tokenizer_are_kept_and_the_others_told():
    words = ["Banane", "Zitrone", "Gurke", "Pilot", "银行", "学校"]
    tokenizer = tp.word_tokenizer(words)
    with pytest.warns(UserWarning, match="topics without a word"):
        topics = tp.Topics.builtin("emoji", tokenizer, language="de")
    found = {topics.names[t]: topics.top_words()[t] for t in range(len(topics)) if topics.sizes[t]}
    assert {name: {word.lower() for word in listed} for name, listed in found.items()} == {
        "food-fruit": {"banane", "zitrone"},
        "food-vegetable": {"gurke"},
        "person-role": {"pilot"},
    }
    assert len(topics.left_out["unknown words"]) == FAMILIES["emoji"].n_words["de"] - 4


@pytest.fixture(scope="module")
def directions():
    """The embeddings of a trained model, less their mean, of length 1."""
    table = hf.AutoModel.from_pretrained(minilm_folder()).embeddings.word_embeddings.weight.detach().double()
    return torch.nn.functional.normalize(table - table.mean(0), dim=1).numpy()


@pytest.mark.parametrize("name", FAMILIES)
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


# --- names --------------------------------------------------------------------------------------------


def test_the_command_line_and_the_catalogue_know_the_same_names():
    assert (
        list(FAMILIES) == [*BUILTIN_TOPICS] == [*json.loads((FOLDER / "catalogue.json").read_text("utf-8"))]
    )
    assert {path.stem for path in FOLDER.glob("*.tsv")} == set(FAMILIES)


def test_unknown_names_are_refused_with_a_suggestion(minilm):
    with pytest.raises(
        ValueError, match=r"called 'wordnet-domain', did you mean 'wordnet-domains'\?: there are"
    ):
        tp.Topics.builtin("wordnet-domain", minilm)
    with pytest.raises(KeyError, match="there are wordnet-nouns, wordnet-domains, empath, emoji"):
        tp.builtin_topics()["liwc"]
    with pytest.raises(ValueError, match="emoji has no lists in 'DE', did you mean 'de'"):
        tp.Topics.builtin("emoji", minilm, language="DE")
    with pytest.raises(ValueError, match="empath has no lists in 'de': it has en"):
        tp.Topics.builtin("empath", minilm, language="de")


def test_what_comes_along_is_shown_as_a_table():
    table = tp.builtin_topics().to_dataframe()
    assert table["name"].tolist() == list(FAMILIES)
    assert (table.set_index("name")["languages"] == [1, 1, 1, len(FAMILIES["emoji"].languages)]).all()
    assert "CC BY 3.0" in repr(tp.builtin_topics())
    assert "<table" in tp.builtin_topics()._repr_html_()


def test_listing_what_comes_along_needs_no_transformer_library():
    code = "import sys, topic_probe as tp; tp.builtin_topics(); print('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
