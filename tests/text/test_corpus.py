"""Corpora: every text once and in order, whatever breaks, with all that is left out counted."""

import gzip
import http.client
import json
import os
from collections import Counter
from copy import deepcopy
from functools import cache

import httpx
import numpy as np
import pandas as pd
import pytest
import transformers
from datasets import Dataset, DatasetDict, IterableDataset
from real_text import minilm_folder
from tokenizer_kinds import KINDS

from topic_probe.text import sources
from topic_probe.text.corpus import WIKIPEDIA, Corpus, Retry
from topic_probe.text.encoder import encode_texts
from topic_probe.text.sources import prose
from topic_probe.topics.lookup import tokenizer_identity

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


def test_chunks_are_as_long_as_whole_words_allow_and_only_a_word_longer_than_one_is_cut_through(tokenizer):
    # Ten words of one piece, then one of three, whose last would be torn off at 12.
    text = "frog " * 9 + "toad axolotl frog"
    assert len(tokenizer.tokenize("axolotl")) == 3
    documents = list(Corpus.from_texts([text]).documents(tokenizer, max_length=14, long="chunk"))
    assert [len(document) for document in documents] == [12, 6]
    n = len(tokenizer.tokenize("axolotl" * 10))
    documents = list(Corpus.from_texts(["axolotl" * 10]).documents(tokenizer, max_length=8, long="chunk"))
    assert [len(document) - 2 for document in documents] == [6] * (n // 6) + [n % 6] * (n % 6 > 0)


@pytest.mark.parametrize("kind", ["byte-level", "metaspace"])
def test_a_text_too_long_for_the_tokenizer_gives_what_the_whole_would(kind):
    """Texts of more than 200,000 letters go to it in pieces, which part neither a word nor a run of spaces."""
    tokenizer = KINDS[kind]
    text = "the army   band\n\n" * 12_000  # of which 200,000 letters end within a band
    stream = Corpus.from_texts([TEXTS[0], text, TEXTS[1]]).documents(tokenizer)
    _, document, _ = stream
    assert len(text) > 200_000
    whole = tokenizer(text, truncation=False, padding=False, verbose=False)["input_ids"]
    assert document.ids.tolist() == whole
    assert stream.counts["left_out"] == {"long texts, tokenized in pieces": 1}


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
            "missing texts (None)": 2,
            "empty texts": 2,
            "entries that are no text": 2,
            "texts with invalid Unicode": 1,
            "documents of fewer than 2 tokens": 1,
            "tokens in these": 1,
        },
    }
    assert list(Corpus.from_texts(texts)) == ["a frog", "toad", "a newt and a toad"]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("one text", "this is one text: put it into a list"),
        (iter(TEXTS), "an iterator only once: pass a list, or a function"),
        (7, "needs texts, got int"),
        ([], "at least one text, the list is empty"),
        ([[101, 2054], "frog"], "texts, which are strings, got list"),
        (pd.DataFrame({"text": ["a"]}), "and DataFrame has several of something: pass the column"),
        ({"a", "b"}, "in an order that stays, and a set has none"),
        (lambda: "text", "must return texts to go through, it returned 'text'"),
        ([None, None], r"no document \(2 missing texts \(None\)\)"),
        (lambda: iter([]), r"no document \(it is empty\)"),
    ],
)
def test_texts_that_cannot_be_a_corpus_are_refused(texts, message):
    with pytest.raises((TypeError, ValueError), match=message):
        list(Corpus.from_texts(texts))


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
    assert told["corpus"] == {"source": "texts", "n_texts": 3, "shard_index": 0, "n_shards": 1}
    assert told["options"] == {
        "max_length": 8, "long": "cut", "min_length": 1, "add_special_tokens": True, "begin_token": False
    }  # fmt: skip
    assert told["read"]["documents"] == 3
    assert "source='texts', n_texts=3" in repr(stream)


# --- shares for several processes -------------------------------------------------------------------


@pytest.mark.parametrize(("n_files", "n_shards"), [(1, 4), (3, 2), (9, 2), (9, 4)])
def test_shares_of_several_processes_are_the_corpus_and_do_not_overlap(n_files, n_shards, tmp_path):
    for number in range(n_files):
        lines = "".join(f"text {number} {line}\n" for line in range(5 + number))
        (tmp_path / f"{number}.txt").write_text(lines)
    corpus = Corpus.from_files(tmp_path, split="line")
    shares = [list(corpus.shard(index, n_shards)) for index in range(n_shards)]
    assert sorted(text for share in shares for text in share) == sorted(corpus)
    assert all(shares)
    with pytest.raises(ValueError, match=r"index must be in 0..n_shards - 1, got 2 of 2"):
        corpus.shard(2, 2)
    with pytest.raises(ValueError, match="share of a corpus already"):
        corpus.shard(0, 2).shard(0, 2)


# --- files ------------------------------------------------------------------------------------------


def test_folders_are_read_in_the_order_of_names_and_other_files_are_counted(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "b.txt").write_bytes("\ufeffnewts\r\nswim".encode())
    (tmp_path / "a.jsonl").write_text('{"text": "frogs"}\n\n{"text": "toads\\u2028sit"}\n')
    (tmp_path / "deep" / "c.TXT.gz").write_bytes(gzip.compress(b"axolotls"))
    (tmp_path / "d.txt").write_bytes("wide 😀".encode("utf-16"))
    (tmp_path / "picture.png").write_bytes(b"")
    corpus = Corpus.from_files(tmp_path)
    assert list(corpus) == ["frogs", "toads\u2028sit", "newts\nswim", "wide 😀", "axolotls"]
    assert corpus.provenance["files_of_other_kinds"] == 1
    assert list(Corpus.from_files([tmp_path / "d.txt", str(tmp_path / "b.txt")])) == [
        "wide 😀",
        "newts\nswim",
    ]


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("utf-16-le", "The army lost.\n"),
        ("utf-16-be", "Мы идём домой.\n" * 9),
        ("utf-32-le", "彼は軍隊へ行った。\n" * 9),
        ("koi8-r", "Мы идём домой. " * 50),
    ],
)
def test_encodings_that_are_not_utf8_and_have_no_mark_are_refused_by_name(tmp_path, encoding, text):
    (tmp_path / "other.txt").write_bytes(text.encode(encoding))
    with pytest.raises(ValueError, match=r"other.txt does not read as UTF-8: .* without a byte order mark"):
        list(Corpus.from_files(tmp_path))


def test_files_that_are_not_there_or_not_text_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    content = gzip.compress(" ".join(map(str, range(9999))).encode())
    (tmp_path / "a.txt.gz").write_bytes(content[: len(content) // 2])
    (tmp_path / "a.jsonl").write_text('{"title": "x", "body": "y"}')
    os.mkfifo(tmp_path / "pipe.txt")
    for path, error, message in [
        (tmp_path / "nowhere", FileNotFoundError, "nowhere does not exist"),
        (tmp_path / "empty", ValueError, r"there is no \.txt or \.jsonl file"),
        (tmp_path / "a.pdf", ValueError, r"a\.pdf is neither \.txt nor \.jsonl"),
        (tmp_path / "a.txt.gz", ValueError, r"a\.txt\.gz is no whole gzip file"),
        (tmp_path / "a.jsonl", ValueError, r"no field 'text'; it has \['body', 'title'\]: name one with"),
        (tmp_path / "pipe.txt", ValueError, r"pipe.txt is a pipe or a device.* write the texts into a file"),
        ("", ValueError, "paths must name files or folders, got ''"),
        (iter([b"texts"]), TypeError, "paths must be texts or paths of files, got b'texts'"),
    ]:
        with pytest.raises(error, match=message):
            list(Corpus.from_files(path))


def test_a_text_file_is_split_as_asked(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n\n \nthree\n")
    assert list(Corpus.from_files(tmp_path)) == ["one\ntwo\n\n \nthree\n"]
    assert list(Corpus.from_files(tmp_path, split="line")) == ["one", "two", "three"]
    assert list(Corpus.from_files(tmp_path, split="paragraph")) == ["one\ntwo\n", "three\n"]


def test_records_without_a_text_are_counted(tmp_path, tokenizer):
    lines = ['{"body": "frog"}', '{"body": null}', '{"other": 1}', '{"body": 3}', '{"body": "cut o', "[1]"]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    stream = Corpus.from_files(tmp_path, field="body").documents(tokenizer)
    assert len(list(stream)) == 1
    assert stream.counts["left_out"] == {
        "missing texts (None)": 1,
        "records without the field": 2,
        "entries that are no text": 1,
        "lines that are no JSON": 1,
    }


def test_the_first_texts_of_files_are_read_whatever_part_they_are_in(tmp_path):
    for name, lines in {"a": ["one", "two"], "b": [None, "three"], "c": ["four", "five"]}.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    every = ["one", "two", "three", "four", "five"]
    for n in (1, 2, 3, 4, 5, 9):
        corpus = Corpus.from_files(tmp_path, n_documents=n)
        assert list(corpus) == every[:n]
        assert sorted(text for index in range(2) for text in corpus.shard(index, 2)) == sorted(every[:n])
    assert Corpus.from_files(tmp_path, n_documents=4).provenance["n_documents"] == 4
    with pytest.raises(ValueError, match="n_documents must be at least 1, got 0"):
        Corpus.from_files(tmp_path, n_documents=0)


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
    data.save_to_disk(tmp_path_factory.mktemp("other") / "saved")
    return {
        "folder of parquet, streamed": str(folder),
        "opened": data,
        "opened stream": data.to_iterable_dataset(num_shards=3),
        "splits": DatasetDict({"train": data, "test": data.select(range(3))}),
        "generator": IterableDataset.from_generator(lambda: ({"text": row} for row in ROWS)),
    }


def test_every_kind_of_data_set_gives_its_texts_also_the_first_a_sample_and_in_shares(kinds):
    for kind, data in kinds.items():
        corpus = Corpus.from_dataset(data)
        assert list(corpus) == ROWS, kind
        assert list(Corpus.from_dataset(data, n_documents=25)) == ROWS[:25], kind
        assert sorted(t for i in range(2) for t in corpus.shard(i, 2)) == sorted(ROWS), kind
        drawn = [Corpus.from_dataset(data, seed=seed, n_documents=20, spread=2) for seed in (0, 0, 1)]
        one, again, other = map(list, drawn)
        assert one == again != other, kind
        assert len(one) == len(set(one) & set(ROWS)) == 20, kind
        shares = [list(drawn[0].shard(i, 3)) for i in range(3)]
        assert sorted(text for share in shares for text in share) == sorted(one), kind


def test_every_record_of_an_opened_data_set_is_equally_likely_in_a_sample():
    data = Dataset.from_dict({"text": ROWS})
    counts = Counter(
        text for seed in range(200) for text in Corpus.from_dataset(data, n_documents=15, seed=seed)
    )
    # 200 draws with probability 1/4: 50 ± 6 each.
    assert sum(counts.values()) == 3000
    assert max(abs(counts[row] - 50) for row in ROWS) < 27


def test_a_sample_of_a_stream_takes_the_same_number_from_every_file_and_warns_where_one_is_too_short(kinds):
    folder = kinds["folder of parquet, streamed"]
    texts = list(Corpus.from_dataset(folder, n_documents=9, seed=3, spread=3))
    files = Counter(int(text.split()[1]) // 10 for text in texts)
    assert sorted(files.values()) == [1, 1, 1, 2, 2, 2]
    assert max(int(text.split()[1]) % 10 for text in texts) > 4  # not only the first records
    with pytest.warns(
        UserWarning, match="ended before its share of 5 records was found; a spread lower than"
    ):
        assert len(list(Corpus.from_dataset(folder, n_documents=30, seed=0, spread=10))) < 30


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ({"text": ["a"]}, {"n_documents": 0}, "n_documents must be at least 1, got 0"),
        ({"text": ["a"]}, {"seed": 1}, "seed draws a sample, so it needs n_documents"),
        ({"text": [[1, 2]]}, {}, "the field 'text' holds List, a corpus needs texts"),
        ({"title": ["x"]}, {}, r"no field 'text'; it has \['title'\]"),
        ({"text": [None, ""]}, {}, "no document .*1 missing texts"),
        ("splits", {}, r"no split 'train'; it has \['test'\]"),
        ("/nowhere/at/all", {}, "nowhere"),
    ],
)
def test_a_data_set_that_does_not_fit_is_refused(data, options, message):
    if isinstance(data, dict):
        data = Dataset.from_dict(data)
    elif data == "splits":
        data = DatasetDict({"test": Dataset.from_dict({"text": ["a"]})})
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
        list(Corpus.from_dataset(data, **options))


def test_wikipedia_is_pinned_and_says_without_a_network_what_works_instead():
    corpus = Corpus.wikipedia(50, seed=7)
    told = corpus.provenance
    assert (told["name"], told["config"], told["revision"]) == WIKIPEDIA
    assert len(WIKIPEDIA[2]) == 40
    assert (told["n_documents"], told["seed"]) == (50, 7)
    with pytest.raises(
        ConnectionError, match=r"HF_HUB_OFFLINE is set.*Corpus\.bundled\(\) has real articles"
    ):
        list(corpus)


def test_every_part_of_every_source_can_be_read_from_any_place(kinds, tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n\nthree\nfour")
    (tmp_path / "b.jsonl").write_text('{"text": "frog"}\n{"text": null}\n{"text": "toad"}')
    corpora = [
        Corpus.from_texts([TEXTS[0], None, "", *TEXTS]),
        Corpus.from_texts(lambda: iter(ROWS)),
        Corpus.from_files([tmp_path / "a.txt", tmp_path / "b.jsonl"], split="line"),
        Corpus.from_files([tmp_path / "a.txt", tmp_path / "b.jsonl"], split="line", n_documents=5),
        Corpus.bundled(),
    ]
    for data in kinds.values():
        corpora += [Corpus.from_dataset(data), Corpus.from_dataset(data, n_documents=7, seed=0, spread=3)]
    for source in (corpus.source for corpus in corpora):
        for part in range(source.n_parts):
            whole = list(source.read(part, 0))
            for start in {1, len(whole) // 2, len(whole)}:
                assert list(source.read(part, start)) == whole[start:], source


# --- streams that break ------------------------------------------------------------------------------


def breaking(fails, error=ConnectionError, shuffled=False, **options):
    """A corpus over a stream whose reading fails at some places, each as often as said, and its waits in seconds."""
    left, waits, opened = Counter(fails), [], []

    def texts():
        opened.append(1)
        for place, text in enumerate(ROWS[::-1] if shuffled and len(opened) > 1 else ROWS):
            if left[place]:
                left[place] -= 1
                raise error(f"reset at {place}")
            yield text

    return Corpus(sources.Texts(texts), Retry(sleep=waits.append, **options)), waits


def test_a_stream_that_breaks_is_warned_about_and_read_on_without_losing_or_repeating_a_text(tokenizer):
    corpus, waits = breaking({0: 1, 7: 3, 8: 1, 59: 2})
    stream = corpus.documents(tokenizer)
    with pytest.warns(UserWarning, match="the stream broke in part 0 after") as warned:
        assert parts_of(stream) == parts_of(encode_texts(ROWS, tokenizer))
    assert str(warned[1].message).endswith("7 texts (ConnectionError('reset at 7')); read on in 1 s")
    assert waits == [1, 1, 2, 4, 1, 1, 2]
    assert stream.counts["texts"] == 60


@pytest.mark.filterwarnings("ignore:the stream broke")
def test_a_stream_that_stays_broken_or_comes_back_otherwise_is_given_up():
    corpus, waits = breaking({7: 99}, attempts=5, longest=6.0)
    texts = iter(corpus)
    assert [next(texts) for _ in range(7)] == ROWS[:7]
    with pytest.raises(
        ConnectionError, match=r"broke 6 times in a row in part 0 after 7 texts: .*reset at 7"
    ):
        next(texts)
    assert waits == [1, 2, 4, 6, 6]
    with pytest.raises(RuntimeError, match="came back with another text at place 6: its order is not fixed"):
        list(breaking({7: 1}, shuffled=True)[0])
    corpus, waits = breaking({7: 1}, error=PermissionError)  # what will not pass
    with pytest.raises(PermissionError, match="reset at 7"):
        list(corpus)
    assert waits == []
    assert sources.is_transient(httpx.ReadTimeout("slow"))
    assert sources.is_transient(http.client.IncompleteRead(b""))
    assert not sources.is_transient(KeyError("field"))


# --- what texts are known by, and the articles inside gensim -------------------------------------------


def test_the_identity_of_a_tokenizer_ignores_what_every_call_sets(tokenizer):
    other = deepcopy(tokenizer)
    other.backend_tokenizer.enable_truncation(7)
    assert tokenizer_identity(other) == tokenizer_identity(tokenizer)
    other.add_special_tokens({"additional_special_tokens": ["frog"]})
    assert tokenizer_identity(other) != tokenizer_identity(tokenizer)


def test_a_stream_of_the_hub_is_known_by_its_commit_and_everything_else_by_its_texts():
    def name(revision="a" * 40, data="some/name", **options):
        return Corpus.from_dataset(data, revision=revision, **options).source.name()

    assert name()["revision"] == "a" * 40
    assert name() == name() != name("b" * 40)
    assert name() != name(n_documents=9)
    assert name(n_documents=9, seed=0) == name(n_documents=9, seed=0) != name(n_documents=9, seed=1)
    assert name(data_files="a.json") is None  # options may mean other texts
    assert Corpus.from_texts(ROWS).source.name() is Corpus.bundled().source.name() is None
    assert Corpus.from_texts(["ab", "c"]).identity() != Corpus.from_texts(["a", "bc"]).identity()


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
