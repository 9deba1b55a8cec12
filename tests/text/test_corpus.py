"""Corpora: every text once and in order, with all that is left out counted."""

import gzip
import json
from collections import Counter
from contextlib import suppress
from functools import cache

import numpy as np
import pandas as pd
import pytest
import transformers
from datasets import Dataset, DatasetDict, IterableDataset
from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES
from real_text import minilm_folder
from tokenizer_kinds import KINDS

from topic_probe.cli import main
from topic_probe.text.corpus import WIKIPEDIA, Corpus, prose
from topic_probe.text.encoder import encode_texts

TEXTS = ["The frog sat on a log.", "Newts swim. Toads don't!", "An axolotl, of course."]
ROWS = [f"text {number}" for number in range(60)]


@cache
def minilm():
    return transformers.AutoTokenizer.from_pretrained(minilm_folder())


@pytest.fixture
def tokenizer():
    return minilm()


def parts_of(documents):
    """Ids, word numbers and special flags as lists."""
    return [(d.ids.tolist(), d.word_index.tolist(), d.special.tolist()) for d in documents]


# --- documents ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "special"), [("minilm", True), ("minilm", False), ("metaspace", True)])
def test_documents_are_what_the_tokenizer_gives_text_by_text(kind, special):
    tokenizer = minilm() if kind == "minilm" else KINDS[kind]
    texts = [*TEXTS, "frog [MASK] </s> frog", "عربي 日本 \x00 🐸", "one\n\n two\t three "]
    found = Corpus.from_texts(texts).documents(tokenizer, add_special_tokens=special)
    assert parts_of(found) == parts_of(encode_texts(texts, tokenizer, add_special_tokens=special))


def test_what_is_no_text_is_left_out_and_counted(tokenizer):
    texts = ["a frog", None, "", " \n", "toad", float("nan"), 7, "half \ud83d", ["list"], "a newt and a toad"]
    stream = Corpus.from_texts(texts).documents(tokenizer, min_length=2)
    kept = [tokenizer.decode(document.ids, skip_special_tokens=True) for document in stream]
    assert kept == ["a frog", "a newt and a toad"]
    assert stream.counts == {
        "texts": 10,
        "documents": 2,
        "tokens": 4 + 2 + len(tokenizer.tokenize("a newt and a toad")),
        "without_words": 0,
        "left_out": {
            "entries that are no text": 7,
            "documents of fewer than 2 tokens": 1,
            "tokens in these": 1,
        },
    }
    assert list(Corpus.from_texts(texts)) == ["a frog", "toad", "a newt and a toad"]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("one text", "needs a list of texts, or a function.*got str"),
        (iter(TEXTS), "got list_iterator"),
        (pd.DataFrame({"text": ["a"]}), "got DataFrame"),
        ([None, [101, 2054]], "gives no document: 2 texts read, left out {'entries that are no text': 2}"),
    ],
)
def test_texts_that_cannot_be_a_corpus_are_refused(texts, message, tokenizer):
    with pytest.raises((TypeError, ValueError), match=message):
        list(Corpus.from_texts(texts).documents(tokenizer))


def test_a_function_is_called_for_every_pass_and_read_no_further_than_needed(tokenizer):
    read = Counter()

    def endless():
        read["passes"] += 1
        while True:
            read["texts"] += 1
            yield f"frog number {read['texts']}"

    stream = Corpus.from_texts(endless).documents(tokenizer)
    next(iter(stream))
    next(iter(stream))
    assert read["passes"] == 2
    assert read["texts"] <= 2 * 256


def test_provenance_is_json_and_tells_everything(tokenizer, capfd):
    stream = Corpus.from_texts(TEXTS).documents(tokenizer, max_length=8, progress=True)
    assert stream.provenance["read"] is None
    list(stream)
    assert "3/3 " in capfd.readouterr().err
    told = json.loads(json.dumps(stream.provenance))
    assert told == stream.provenance
    assert told["corpus"] == {"source": "texts", "n_texts": 3}
    assert told["options"] == {
        "max_length": 8, "long": "cut", "min_length": 1, "add_special_tokens": True, "begin_token": False
    }  # fmt: skip
    assert told["read"]["documents"] == 3


# --- files ------------------------------------------------------------------------------------------


def test_folders_are_read_in_the_order_of_names_without_files_of_other_kinds(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "b.txt").write_bytes("\ufeffnewts\r\nswim\n\ntoo".encode())
    (tmp_path / "a.jsonl").write_text('{"text": "frogs"}\n\n{"text": "toads\\u2028sit"}\n')
    (tmp_path / "deep" / "c.TXT.gz").write_bytes(gzip.compress(b"axolotls"))
    (tmp_path / "picture.png").write_bytes(b"")
    assert list(Corpus.from_files(tmp_path)) == ["frogs", "toads\u2028sit", "newts\nswim\n\ntoo", "axolotls"]
    assert list(Corpus.from_files([tmp_path / "b.txt"], split="line")) == ["newts", "swim", "too"]
    assert list(Corpus.from_files(tmp_path, n_documents=2)) == ["frogs", "toads\u2028sit"]


def test_files_that_are_not_there_or_not_text_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    content = gzip.compress(" ".join(map(str, range(9999))).encode())
    (tmp_path / "a.txt.gz").write_bytes(content[: len(content) // 2])
    (tmp_path / "a.jsonl").write_text('{"title": "x", "body": "y"}')
    for path, error, message in [
        (tmp_path / "emty", FileNotFoundError, "emty does not exist; did you mean '.*empty'"),
        (tmp_path / "empty", ValueError, r"needed are \.txt or \.jsonl files"),
        (tmp_path / "a.txt.gz", ValueError, r"a\.txt\.gz cannot be read as text.*ended before"),
        (tmp_path / "a.jsonl", ValueError, r"no field 'text'; it has \['body', 'title'\]: name one with"),
    ]:
        with pytest.raises(error, match=message):
            list(Corpus.from_files(path))


# --- data sets --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    """The same sixty records in every kind of data set: six files of ten records as on the hub, and others."""
    folder = tmp_path_factory.mktemp("data")
    for number in range(6):
        rows = ROWS[10 * number : 10 * number + 10]
        data = Dataset.from_dict({"text": rows, "id": list(range(10))})
        with (folder / f"train-{number:05d}-of-00006.parquet").open("wb") as file:
            data.to_parquet(file)
    data = Dataset.from_dict({"text": ROWS, "id": list(range(60))})
    data.save_to_disk(saved := tmp_path_factory.mktemp("other") / "saved")
    return {
        "folder of parquet, streamed": str(folder),
        "opened": data,
        "saved": saved,
        "opened stream": data.to_iterable_dataset(num_shards=3),
        "splits": DatasetDict({"train": data}),
        "generator": IterableDataset.from_generator(lambda: ({"text": row} for row in ROWS)),
    }


def test_every_kind_of_data_set_gives_its_texts_also_the_first_and_a_sample(kinds):
    for kind, data in kinds.items():
        assert list(Corpus.from_dataset(data)) == ROWS, kind
        assert list(Corpus.from_dataset(data, n_documents=25)) == ROWS[:25], kind
        one, again, other = (list(Corpus.from_dataset(data, seed=seed, n_documents=20)) for seed in (0, 0, 1))
        assert one == again != other, kind
        assert len(one) == len(set(one) & set(ROWS)) == 20, kind


def test_a_sample_of_a_stream_takes_the_same_number_from_every_file_at_random(kinds):
    folder = kinds["folder of parquet, streamed"]
    places = np.zeros(10)
    for seed in range(20):
        texts = list(Corpus.from_dataset(folder, n_documents=9, seed=seed))
        numbers = [int(text.split()[1]) for text in texts]
        assert sorted(Counter(number // 10 for number in numbers).values()) == [1, 1, 1, 2, 2, 2]
        np.add.at(places, np.array(numbers) % 10, 1)
    assert places.min() > 5  # 18 of each place are expected: not only the first records


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ({"text": ["a"]}, {"n_documents": 0}, "n_documents must be at least 1, got 0"),
        ({"text": ["a"]}, {"seed": 1}, "seed draws a sample, so it needs n_documents"),
        ({"text": [None, ""]}, {}, "gives no document: 2 texts read"),
        ("/nowhere/at/all", {}, "nowhere"),
    ],
)
def test_a_data_set_that_does_not_fit_is_refused(data, options, message, tokenizer):
    if isinstance(data, dict):
        data = Dataset.from_dict(data)
    with pytest.raises((ValueError, TypeError, OSError), match=message):
        list(Corpus.from_dataset(data, **options).documents(tokenizer))


def test_a_name_that_means_how_to_read_files_reads_none_that_nobody_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "texts").mkdir()
    (tmp_path / "secrets.txt").write_text("not a corpus")
    (tmp_path / "records.json").write_text(json.dumps([{"text": "frog"}, {"text": "toad"}]))
    monkeypatch.chdir(tmp_path)
    read = {}
    for name in ("text", "json", "imagefolder"):
        assert name in _PACKAGED_DATASETS_MODULES
        with suppress(Exception):  # of whatever package
            read[name] = list(Corpus.from_dataset(name, streaming=False))
    assert read == {}
    with pytest.raises(
        ValueError, match=r"no file or folder 'text'; did you mean 'texts'\?.*the current folder"
    ):
        Corpus.from_dataset("text")
    model = ["measure", "attention", str(minilm_folder()), "--topics", "empath"]
    assert main([*model, "--corpus", "text"]) == 1
    assert "did you mean texts?" in capsys.readouterr().err
    named = Corpus.from_dataset("json", data_files=str(tmp_path / "records.json"), streaming=False)
    assert list(named) == ["frog", "toad"]
    (tmp_path / "text").mkdir()  # a folder of this name is a folder
    (tmp_path / "text" / "b.txt").write_text("The band played.")
    assert list(Corpus.from_dataset("text", streaming=False)) == ["The band played."]


def test_wikipedia_says_without_a_network_what_works_instead():
    assert len(WIKIPEDIA[2]) == 40
    with pytest.raises(
        OSError, match=r"cannot load 'wikimedia/wikipedia'.*Corpus\.bundled\(\) has real articles"
    ):
        Corpus.wikipedia(50, seed=7)


# --- what texts are known by, and the articles inside gensim -------------------------------------------


def test_texts_are_known_by_what_they_are():
    known = [
        Corpus.from_texts(texts).identity() for texts in (["ab", "c"], lambda: iter(["ab", "c"]), ["a", "bc"])
    ]
    assert known[0] == known[1] != known[2]


def test_the_bundled_articles_are_prose_without_what_gensim_leaves_of_markup():
    texts = list(Corpus.bundled())
    assert len(texts) == 103
    assert list(Corpus.bundled(n_documents=5)) == texts[:5]
    assert texts[0].startswith("Anarchism is a political philosophy")
    lines = [line for text in texts for line in text.splitlines()]
    assert not [line for line in lines if line[0] in "=*#|{" or "''" in line or "[[" in line]
    assert np.mean([line.rstrip("\"')”").endswith((".", "!", "?")) for line in lines]) > 0.9
    text = (
        "==History==\n'''Frogs''' are amphibians that live in ''many'' parts of the world.\n"
        "* a list of frogs that is longer than forty letters.\nA caption without an end that is quite long indeed\n"
        "File:Frog.jpg|A frog that sits on a log in the sun. It is green.\nShort line.\n"
    )
    assert prose(text) == "Frogs are amphibians that live in many parts of the world."
