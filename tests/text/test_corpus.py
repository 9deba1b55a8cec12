"""Corpora: every text once and in order, whatever breaks, with all that is left out counted."""

import gzip
import json
import os
from collections import Counter
from functools import cache
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import tokenizers
import transformers
from datasets import Dataset, DatasetDict, IterableDataset
from real_text import minilm_folder
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from topic_probe.text import encoder, sources
from topic_probe.text.batches import token_batches
from topic_probe.text.corpus import WIKIPEDIA, Corpus, Retry
from topic_probe.text.encoder import encode_texts
from topic_probe.text.sources import prose
from topic_probe.topics.vocabulary import tokenizer_identity

TEXTS = ["The frog sat on a log.", "Newts swim. Toads don't!", "An axolotl, of course."]
MIXED = [TEXTS[0], None, TEXTS[1], "", *TEXTS, "frog", "long " * 9]


@cache
def minilm():
    return transformers.AutoTokenizer.from_pretrained(minilm_folder())


@pytest.fixture
def tokenizer():
    return minilm()


def same(one, other):
    """Whether two lists of documents agree in ids, word numbers and special flags."""
    return len(one) == len(other) and all(
        a.ids.equal(b.ids)
        and (a.word_index is b.word_index is None or a.word_index.equal(b.word_index))
        and a.special.equal(b.special)
        for a, b in zip(one, other, strict=True)
    )


# --- tokenizing --------------------------------------------------------------------------------------


@cache
def byte_level() -> transformers.PreTrainedTokenizerFast:
    """Byte-level BPE as in GPT-2 and RoBERTa, learnt from a few sentences, with <s> … </s> around a text."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS * 10, trainer)
    backend.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def metaspace() -> transformers.PreTrainedTokenizerFast:
    """Unigram pieces behind ▁ as in ALBERT and T5."""
    letters = [(letter, -9.0) for letter in sorted(set("".join(TEXTS) + "xyz.-"))]
    pieces = [
        ("<unk>", 0.0),
        ("</s>", 0.0),
        ("▁", -3.0),
        ("▁frog", -1.0),
        ("frog", -2.0),
        ("▁The", -1.0),
        *letters,
    ]
    backend = tokenizers.Tokenizer(models.Unigram(list(dict(pieces).items()), unk_id=0))
    backend.normalizer = normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")


class SlowTokenizer(transformers.PreTrainedTokenizer):
    """A tokenizer without word numbers: every word of the first text is a token."""

    def __init__(self, **options):
        self._words = ["[UNK]", *sorted(set(TEXTS[0].split()))]
        super().__init__(unk_token="[UNK]", **options)

    vocab_size = property(lambda self: len(self._words))

    def get_vocab(self):
        return {word: place for place, word in enumerate(self._words)}

    def _tokenize(self, text):
        return text.split()

    def _convert_token_to_id(self, token):
        return self.get_vocab().get(token, 0)

    def _convert_id_to_token(self, index):
        return self._words[index]


@pytest.mark.parametrize("make", [minilm, byte_level, metaspace])
def test_documents_are_what_the_tokenizer_gives_text_by_text(make):
    tokenizer = make()
    texts = [*TEXTS, "frog [MASK] </s> frog", "عربي 日本 \x00 🐸", "one\n\n two\t three "]
    assert same(list(Corpus.from_texts(texts).documents(tokenizer)), list(encode_texts(texts, tokenizer)))
    plain = list(Corpus.from_texts(texts).documents(tokenizer, add_special_tokens=False))
    assert same(plain, list(encode_texts(texts, tokenizer, add_special_tokens=False)))


def test_the_words_of_a_slow_tokenizer_are_found_in_the_text():
    tokenizer = SlowTokenizer()
    (document,) = Corpus.from_texts([TEXTS[0]]).documents(tokenizer, max_length=4)
    assert document.ids.tolist() == [tokenizer.get_vocab()[word] for word in ["The", "frog", "sat", "on"]]
    assert document.word_index.tolist() == [0, 1, 2, 3]


def test_the_tokenizer_comes_back_as_it_went_in(tokenizer):
    backend = tokenizer.backend_tokenizer
    before = (backend.truncation, backend.padding)
    assert before[0] is not None
    list(Corpus.from_texts(TEXTS).documents(tokenizer, max_length=6))
    assert (backend.truncation, backend.padding) == before


def test_a_stream_is_what_measurements_take(tokenizer):
    (batch,) = token_batches(Corpus.from_texts(TEXTS).documents(tokenizer))
    assert batch.mask.sum(1).tolist() == sorted(
        (len(d) for d in encode_texts(TEXTS, tokenizer)), reverse=True
    )
    assert batch.word_index is not None


def words_of(document):
    """The token ids of every word of a document, in order."""
    groups = {}
    for index, word in zip(document.ids.tolist(), document.word_index.tolist(), strict=True):
        if word >= 0:
            groups.setdefault(word, []).append(index)
    return list(groups.values())


@pytest.mark.parametrize("make", [minilm, byte_level, metaspace])
@pytest.mark.parametrize("max_length", [11, 14, 30])
def test_chunks_hold_all_words_whole_each_with_its_own_special_tokens(make, max_length):
    tokenizer = make()
    text = " ".join(TEXTS * 3)
    (whole,) = encode_texts([text], tokenizer)
    chunks = list(Corpus.from_texts([text]).documents(tokenizer, max_length=max_length, long="chunk"))
    assert len(chunks) > 1
    assert all(len(chunk) <= max_length for chunk in chunks)
    assert [word for chunk in chunks for word in words_of(chunk)] == words_of(whole)
    before = int(whole.special.int().argmin())
    after = int(whole.special.flip(0).int().argmin())
    for chunk in chunks:
        assert chunk.ids[:before].tolist() == whole.ids[:before].tolist()
        assert chunk.ids[-after:].tolist() == whole.ids[-after:].tolist()
        assert chunk.special.tolist() == [
            place < before or place >= len(chunk) - after for place in range(len(chunk))
        ]


def test_chunks_are_as_long_as_whole_words_allow(tokenizer):
    # Ten words of one piece, then one of three, whose last would be torn off at 12.
    text = "frog " * 9 + "toad axolotl frog"
    pieces = tokenizer.tokenize("axolotl")
    assert len(pieces) == 3
    documents = list(Corpus.from_texts([text]).documents(tokenizer, max_length=14, long="chunk"))
    assert [len(document) for document in documents] == [12, 6]


def test_a_word_longer_than_a_document_is_cut_through(tokenizer):
    text = "axolotl" * 10
    n = len(tokenizer.tokenize(text))
    documents = list(Corpus.from_texts([text]).documents(tokenizer, max_length=8, long="chunk"))
    assert [len(document) - 2 for document in documents] == [6] * (n // 6) + [n % 6] * (n % 6 > 0)


def test_cutting_keeps_the_beginning_and_counts_the_rest(tokenizer):
    stream = Corpus.from_texts(["frog " * 20, "toad " * 5]).documents(tokenizer, max_length=10)
    assert [len(document) for document in stream] == [10, 7]
    assert stream.counts["left_out"] == {"documents cut at 10 tokens": 1, "tokens cut off": 12}


@pytest.mark.parametrize("make", [minilm, byte_level, metaspace])
def test_a_text_too_long_for_the_tokenizer_gives_what_the_whole_would(make, monkeypatch):
    monkeypatch.setattr(encoder, "_LONGEST_TEXT", 50)
    tokenizer = make()
    text = "   ".join([" ".join(TEXTS * 3), "frog\n\nfrog " * 20, "The frog  \n" * 12]) + " x" * 40
    (whole,) = encode_texts([text], tokenizer)
    stream = Corpus.from_texts([TEXTS[0], text, TEXTS[1]]).documents(tokenizer)
    assert same([list(stream)[1]], [whole])
    assert stream.counts["left_out"] == {"long texts, tokenized in pieces": 1}


def test_a_long_text_without_a_space_is_still_read(tokenizer, monkeypatch):
    monkeypatch.setattr(encoder, "_LONGEST_TEXT", 50)
    (document,) = Corpus.from_texts(["frog" * 100]).documents(tokenizer)
    assert tokenizer.decode(document.ids[1:-1]).replace(" ", "") == "frog" * 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"long": "wrap"}, "long must be one of 'cut', 'chunk', got 'wrap'"),
        ({"min_length": 0}, "min_length must be at least 1, got 0"),
        ({"max_length": 2}, "max_length must leave room for a token beside the 2 special ones, got 2"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message, tokenizer):
    # The type checker of the tests refuses what is outside a closed set before the code does.
    with pytest.raises((ValueError, TypeError), match=message):
        Corpus.from_texts(TEXTS).documents(tokenizer, **options)


# --- texts that are none ----------------------------------------------------------------------------


def test_what_is_no_text_is_left_out_and_counted(tokenizer):
    texts = ["a frog", None, "", " \n", "toad", float("nan"), 7, "half \ud83d", ["list"], "a newt and a toad"]
    stream = Corpus.from_texts(texts).documents(tokenizer, min_length=2)
    assert [tokenizer.decode(d.ids, skip_special_tokens=True) for d in stream] == [
        "a frog",
        "a newt and a toad",
    ]
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


def test_a_text_without_a_token_is_left_out(tokenizer):
    stream = Corpus.from_texts(["frog", "\x00"]).documents(tokenizer)
    assert len(list(stream)) == 1
    assert stream.counts["left_out"] == {"documents of fewer than 1 tokens": 1}


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        ("one text", TypeError, "this is one text: put it into a list"),
        (iter(TEXTS), TypeError, "an iterator only once: pass a list, or a function"),
        (7, TypeError, "needs texts, got int"),
        ([], ValueError, "at least one text, the list is empty"),
    ],
)
def test_texts_that_cannot_be_a_corpus_are_refused(texts, error, message):
    with pytest.raises(error, match=message):
        Corpus.from_texts(texts)


@pytest.mark.parametrize("first", [[101, 2054], 3, b"bytes"])
def test_a_corpus_that_begins_with_something_else_is_refused(first, tokenizer):
    with pytest.raises(TypeError, match=f"texts, which are strings, got {type(first).__name__}"):
        list(Corpus.from_texts([first, "frog"]).documents(tokenizer))


def test_a_corpus_without_any_document_says_why(tokenizer):
    with pytest.raises(ValueError, match=r"no document \(2 missing texts \(None\)\)"):
        list(Corpus.from_texts([None, None]))
    with pytest.raises(
        ValueError, match=r"no document \(1 documents of fewer than 9 tokens; 3 tokens in these"
    ):
        list(Corpus.from_texts(["a frog ."]).documents(tokenizer, min_length=9))
    with pytest.raises(ValueError, match=r"no document \(it is empty\)"):
        list(Corpus.from_texts(lambda: iter([])))


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


def test_the_progress_bar_knows_the_number_of_texts(tokenizer, capfd):
    list(Corpus.from_texts(TEXTS).documents(tokenizer, max_length=5, long="chunk", progress=True))
    assert "3/3 " in capfd.readouterr().err
    list(Corpus.from_texts(TEXTS).documents(tokenizer))
    assert capfd.readouterr().err == ""


def test_provenance_is_json_and_tells_everything(tokenizer):
    stream = Corpus.from_texts(TEXTS).documents(tokenizer, max_length=8)
    assert stream.provenance["read"] is None
    list(stream)
    told = json.loads(json.dumps(stream.provenance))
    assert told == stream.provenance
    assert told["corpus"] == {"source": "texts", "n_texts": 3, "shard_index": 0, "n_shards": 1}
    assert told["options"] == {
        "max_length": 8, "long": "cut", "min_length": 1, "add_special_tokens": True, "begin_token": False
    }  # fmt: skip
    assert told["read"]["documents"] == 3
    assert "source='texts', n_texts=3" in repr(stream)


# --- shares for several processes -------------------------------------------------------------------


@pytest.mark.parametrize("n_files", [1, 3, 9])
@pytest.mark.parametrize("n_shards", [1, 2, 4])
def test_shares_of_several_processes_are_the_corpus_and_do_not_overlap(n_files, n_shards, tmp_path):
    for number in range(n_files):
        lines = "".join(f"text {number} {line}\n" for line in range(5 + number))
        (tmp_path / f"{number}.txt").write_text(lines)
    corpus = Corpus.from_files(tmp_path, split="line")
    shares = [list(corpus.shard(index, n_shards)) for index in range(n_shards)]
    assert sorted(text for share in shares for text in share) == sorted(corpus)
    assert all(shares)


def test_an_empty_share_is_no_error_where_there_are_more_processes_than_texts(tokenizer):
    corpus = Corpus.from_texts(TEXTS)
    assert [len(list(corpus.shard(index, 5).documents(tokenizer))) for index in range(5)] == [1, 1, 1, 0, 0]


def test_shares_that_cannot_be_are_refused():
    corpus = Corpus.from_texts(TEXTS)
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
    (tmp_path / "d.txt").write_bytes("wide".encode("utf-16"))
    (tmp_path / "picture.png").write_bytes(b"")
    corpus = Corpus.from_files(tmp_path)
    assert list(corpus) == ["frogs", "toads\u2028sit", "newts\nswim", "wide", "axolotls"]
    assert corpus.provenance["files_of_other_kinds"] == 1
    assert list(Corpus.from_files([tmp_path / "d.txt", str(tmp_path / "b.txt")])) == ["wide", "newts\nswim"]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize(
    "text",
    [
        "The army lost.\n",
        "Мы идём домой.\n" * 9,
        "彼は軍隊へ行った。\n" * 9,
        "ひらがなだけ、です。\n" * 9,
        "ab",
    ],
)
def test_wide_encodings_without_a_mark_are_refused_by_name(tmp_path, encoding, text):
    (tmp_path / "wide.txt").write_bytes(text.encode(encoding))
    with pytest.raises(ValueError, match=r"wide.txt does not read as UTF-8: .* without a byte order mark"):
        list(Corpus.from_files(tmp_path))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_texts_with_a_mark_are_read_by_it(tmp_path, encoding):
    (tmp_path / "marked.txt").write_bytes("Мы 😀 идём".encode(encoding))
    assert list(Corpus.from_files(tmp_path)) == ["Мы 😀 идём"]


def test_a_few_letters_of_another_encoding_and_marks_of_pages_are_no_reason_to_refuse(tmp_path):
    (tmp_path / "old.txt").write_bytes("né à l'été\x0c \x1b[1mici\x1b[0m. ".encode("latin-1") * 50)
    assert len(list(Corpus.from_files(tmp_path))) == 1


def test_a_language_in_an_encoding_of_its_own_is_refused(tmp_path):
    (tmp_path / "koi.txt").write_bytes(("Мы идём домой. " * 50).encode("koi8-r"))
    with pytest.raises(ValueError, match="does not read as UTF-8"):
        list(Corpus.from_files(tmp_path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(ValueError, match=r"pipe.txt is a pipe or a device.* write the texts into a file"):
        Corpus.from_files(tmp_path / "pipe.txt")
    (tmp_path / "device.txt").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=r"device.txt is a pipe or a device"):
        Corpus.from_files([tmp_path / "device.txt"])
    (tmp_path / "text.txt").write_text("a text")
    corpus = Corpus.from_files(tmp_path)  # beside files they are counted
    assert list(corpus) == ["a text"]
    assert corpus.provenance["files_of_other_kinds"] == 2


@pytest.mark.parametrize(
    ("paths", "error", "match"),
    [
        ("", ValueError, "paths must name files or folders, got ''"),
        ([""], ValueError, "paths must name files or folders, got ''"),
        (b"texts", TypeError, "paths must be a text or a path or a list, got b'texts'"),
        (iter([b"texts"]), TypeError, "paths must be texts or paths of files, got b'texts'"),
        (iter([3]), TypeError, "paths must be texts or paths of files, got 3"),
        (None, TypeError, "paths must be a text or a path or a list, got None"),
    ],
)
def test_what_names_no_file_is_refused(paths, error, match):
    with pytest.raises(error, match=match):
        Corpus.from_files(paths)


@pytest.mark.parametrize(
    ("texts", "match"),
    [
        ({"a": 1}, "a corpus needs a list of texts, and dict has several of something"),
        (pd.DataFrame({"text": ["a"]}), "and DataFrame has several of something: pass the column"),
        ({"a", "b"}, "in an order that stays, and a set has none"),
        (lambda: "text", "must return texts to go through, it returned 'text'"),
        (lambda: None, "must return texts to go through, it returned None"),
    ],
)
def test_what_only_looks_like_texts_is_refused(texts, match):
    with pytest.raises(TypeError, match=match):
        list(Corpus.from_texts(texts))


@pytest.mark.parametrize(
    ("split", "texts"),
    [
        ("file", ["one\ntwo\n\n \nthree\n"]),
        ("line", ["one", "two", "three"]),
        ("paragraph", ["one\ntwo\n", "three\n"]),
    ],
)
def test_a_text_file_is_split_as_asked(split, texts, tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n\n \nthree\n")
    assert list(Corpus.from_files(tmp_path, split=split)) == texts


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


def test_a_missing_field_names_the_fields_that_are_there(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"title": "x", "body": "y"}')
    with pytest.raises(
        ValueError, match=r"no field 'text'; it has \['body', 'title'\]: name one with field="
    ):
        list(Corpus.from_files(tmp_path))
    data = Dataset.from_dict({"title": ["x"], "body": ["y"]})
    for given in (data, data.to_iterable_dataset()):
        with pytest.raises(ValueError, match=r"no field 'text'; it has \['body', 'title'\]"):
            list(Corpus.from_dataset(given))


def test_files_that_are_not_there_or_not_text_are_refused(tmp_path, unchecked):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        Corpus.from_files(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"there is no \.txt or \.jsonl file"):
        Corpus.from_files(tmp_path)
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    with pytest.raises(ValueError, match=r"a\.pdf is neither \.txt nor \.jsonl"):
        Corpus.from_files(tmp_path / "a.pdf")
    with pytest.raises(ValueError, match="split must be one of"):
        Corpus.from_files(tmp_path, split="word")


def test_a_compressed_file_that_is_cut_off_is_named(tmp_path):
    content = gzip.compress(" ".join(map(str, range(9999))).encode())
    (tmp_path / "a.txt.gz").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"a\.txt\.gz is no whole gzip file"):
        list(Corpus.from_files(tmp_path))


# --- datasets ---------------------------------------------------------------------------------------

ROWS = [f"text {number}" for number in range(60)]


@pytest.fixture
def parquet(tmp_path, monkeypatch):
    """A data set of six files of ten records, as on the hub."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(6):
        rows = ROWS[10 * number : 10 * number + 10]
        data = Dataset.from_dict({"text": rows, "id": list(range(10))})
        with (folder / f"train-{number:05d}-of-00006.parquet").open("wb") as file:
            data.to_parquet(file)
    return folder


def every_kind(parquet, tmp_path):
    data = Dataset.from_dict({"text": ROWS, "id": list(range(60))})
    data.save_to_disk(tmp_path / "saved")
    return {
        "folder of parquet, streamed": str(parquet),
        "folder of save_to_disk": tmp_path / "saved",
        "opened": data,
        "opened stream": data.to_iterable_dataset(num_shards=3),
        "splits": DatasetDict({"train": data, "test": data.select(range(3))}),
        "generator": IterableDataset.from_generator(lambda: ({"text": row} for row in ROWS)),
    }


def test_every_kind_of_data_set_gives_its_texts(parquet, tmp_path):
    for kind, data in every_kind(parquet, tmp_path).items():
        corpus = Corpus.from_dataset(data)
        assert list(corpus) == ROWS, kind
        assert list(corpus) == ROWS, f"{kind}, second pass"
        assert list(Corpus.from_dataset(data, n_documents=25)) == ROWS[:25], kind
        assert sorted(t for i in range(2) for t in corpus.shard(i, 2)) == sorted(ROWS), kind


@pytest.mark.parametrize("streaming", [True, False])
def test_a_kind_of_files_is_no_name_on_the_hub(tmp_path, monkeypatch, streaming):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in ROWS))
    files = str(tmp_path / "rows.jsonl")
    assert list(Corpus.from_dataset("json", data_files=files, streaming=streaming)) == ROWS


def test_a_sample_is_drawn_by_its_seed(parquet, tmp_path):
    for kind, data in every_kind(parquet, tmp_path).items():
        options = {"n_documents": 20, "spread": 2}
        one, again, other = (list(Corpus.from_dataset(data, seed=seed, **options)) for seed in (0, 0, 1))
        assert one == again, kind
        assert one != other, kind
        assert len(set(one)) == len(one), kind
        assert set(one) <= set(ROWS), kind
        shares = [list(Corpus.from_dataset(data, seed=0, **options).shard(i, 3)) for i in range(3)]
        assert sorted(text for share in shares for text in share) == sorted(one), kind


def test_every_record_of_an_opened_data_set_is_equally_likely_in_a_sample():
    data = Dataset.from_dict({"text": ROWS})
    counts = Counter(
        text for seed in range(200) for text in Corpus.from_dataset(data, n_documents=15, seed=seed)
    )
    # 200 draws with probability 1/4: 50 ± 6 each.
    assert sum(counts.values()) == 3000
    assert max(abs(counts[row] - 50) for row in ROWS) < 27


def test_a_sample_of_a_stream_takes_the_same_number_from_every_file(parquet):
    texts = list(Corpus.from_dataset(str(parquet), n_documents=9, seed=3, spread=3))
    files = Counter(int(text.split()[1]) // 10 for text in texts)
    assert sorted(files.values()) == [1, 1, 1, 2, 2, 2]
    numbers = [int(text.split()[1]) % 10 for text in texts]
    assert max(numbers) > 4  # not only the first records


def test_a_sample_that_the_files_are_too_short_for_is_warned_about(parquet):
    corpus = Corpus.from_dataset(str(parquet), n_documents=30, seed=0, spread=10)
    with pytest.warns(
        UserWarning, match="ended before its share of 5 records was found; a spread lower than 10"
    ):
        assert len(list(corpus)) < 30


@pytest.mark.parametrize(
    ("data", "options", "error", "message"),
    [
        ({"text": ["a"]}, {"n_documents": 0}, ValueError, "n_documents must be at least 1, got 0"),
        ({"text": ["a"]}, {"seed": 1}, ValueError, "seed draws a sample, so it needs n_documents"),
        ({"text": [[1, 2]]}, {}, TypeError, "the field 'text' holds List, a corpus needs texts"),
        ({"text": [1]}, {}, TypeError, "the field 'text' holds int64, a corpus needs texts"),
    ],
)
def test_a_data_set_that_does_not_fit_is_refused(data, options, error, message):
    with pytest.raises(error, match=message):
        list(Corpus.from_dataset(Dataset.from_dict(data), **options))


def test_other_data_set_mistakes_name_the_remedy(parquet):
    data = Dataset.from_dict({"text": ["a"]})
    with pytest.raises(ValueError, match=r"no split 'train'; it has \['test'\]"):
        list(Corpus.from_dataset(DatasetDict({"test": data})))
    with pytest.raises(TypeError, match="a `datasets` data set or its name is needed, got list"):
        list(Corpus.from_dataset([{"text": "a"}]))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        list(Corpus.from_dataset("/nowhere/at/all"))


def test_missing_texts_of_a_data_set_are_counted(tokenizer):
    stream = Corpus.from_dataset(Dataset.from_dict({"text": [None, "frog", "", None]})).documents(tokenizer)
    assert len(list(stream)) == 1
    assert stream.counts["left_out"] == {"missing texts (None)": 2, "empty texts": 1}


def test_wikipedia_is_pinned_and_says_without_a_network_what_works_instead(tmp_path, monkeypatch):
    corpus = Corpus.wikipedia(50, seed=7)
    name, config, commit = WIKIPEDIA
    told = corpus.provenance
    assert (told["name"], told["config"], told["revision"]) == (name, config, commit)
    assert len(commit) == 40
    assert (told["n_documents"], told["seed"]) == (50, 7)
    assert Corpus.wikipedia(None).provenance["seed"] is None
    with pytest.raises(
        ConnectionError, match=r"HF_HUB_OFFLINE is set.*Corpus\.bundled\(\) has real articles"
    ):
        list(corpus)


def test_every_part_of_every_source_can_be_read_from_any_place(parquet, tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n\nthree\nfour")
    (tmp_path / "b.jsonl").write_text('{"text": "frog"}\n{"text": null}\n{"text": "toad"}')
    corpora = [
        Corpus.from_texts(MIXED),
        Corpus.from_texts(lambda: iter(ROWS)),
        Corpus.from_files([tmp_path / "a.txt", tmp_path / "b.jsonl"], split="line"),
        Corpus.bundled(),
    ]
    for data in every_kind(parquet, tmp_path).values():
        corpora.append(Corpus.from_dataset(data))
        corpora.append(Corpus.from_dataset(data, n_documents=7))
        corpora.append(Corpus.from_dataset(data, n_documents=7, seed=0, spread=3))
    for source in (corpus.source for corpus in corpora):
        for part in range(source.n_parts):
            whole = list(source.read(part, 0))
            for start in {1, len(whole) // 2, len(whole)}:
                assert list(source.read(part, start)) == whole[start:], source


# --- streams that break ------------------------------------------------------------------------------


class Broken:
    """Texts whose reading fails at some places, each as often as said."""

    def __init__(self, fails, texts=ROWS, error=ConnectionError, shuffled=False):
        self.fails, self.texts, self.error, self.shuffled = Counter(fails), texts, error, shuffled
        self.opened = 0

    def __call__(self):
        self.opened += 1
        texts = self.texts[::-1] if self.shuffled and self.opened > 1 else self.texts
        for place, text in enumerate(texts):
            if self.fails[place]:
                self.fails[place] -= 1
                raise self.error(f"reset at {place}")
            yield text


def retried(texts, **options):
    """A corpus over a stream that breaks, and the seconds that it waits."""
    waits = []
    source = sources.Texts(texts)
    return Corpus(source, Retry(sleep=waits.append, **options)), waits


@pytest.mark.filterwarnings("ignore:the stream broke")
def test_a_stream_that_breaks_is_read_on_without_losing_or_repeating_a_text(tokenizer):
    corpus, waits = retried(Broken({0: 1, 7: 3, 8: 1, 59: 2}))
    stream = corpus.documents(tokenizer)
    assert same(list(stream), list(encode_texts(ROWS, tokenizer)))
    assert waits == [1, 1, 2, 4, 1, 1, 2]
    assert stream.counts["texts"] == 60


def test_a_break_is_warned_about():
    corpus, _ = retried(Broken({3: 1}))
    with pytest.warns(UserWarning, match=r"broke in part 0 after 3 texts .*reset at 3.*read on in 1 s"):
        assert list(corpus) == ROWS


@pytest.mark.filterwarnings("ignore:the stream broke")
def test_a_stream_that_stays_broken_is_given_up_with_growing_waits():
    corpus, waits = retried(Broken({7: 99}), attempts=5, longest=6.0)
    texts = iter(corpus)
    assert [next(texts) for _ in range(7)] == ROWS[:7]
    with pytest.raises(
        ConnectionError, match=r"broke 6 times in a row in part 0 after 7 texts: .*reset at 7"
    ):
        next(texts)
    assert waits == [1, 2, 4, 6, 6]


@pytest.mark.filterwarnings("ignore:the stream broke")
def test_a_stream_that_comes_back_in_another_order_is_refused():
    corpus, _ = retried(Broken({7: 1}, shuffled=True))
    with pytest.raises(RuntimeError, match="came back with another text at place 6: its order is not fixed"):
        list(corpus)


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError, ValueError])
def test_what_will_not_pass_is_not_tried_again(error):
    corpus, waits = retried(Broken({7: 1}, error=error))
    with pytest.raises(error, match="reset at 7"):
        list(corpus)
    assert waits == []


def test_errors_of_network_packages_pass():
    import http.client

    import httpx

    assert sources.is_transient(httpx.ReadTimeout("slow"))
    assert sources.is_transient(http.client.IncompleteRead(b""))
    assert sources.is_transient(TimeoutError())
    assert not sources.is_transient(KeyError("field"))


@pytest.mark.filterwarnings("ignore:the stream broke")
def test_a_data_set_that_breaks_is_read_on_in_the_file_where_it_broke(parquet, monkeypatch):
    corpus = Corpus.from_dataset(str(parquet), retry=Retry(sleep=lambda _: None))
    data = corpus.source._opened
    file = type(data).shard
    opened = []

    def shard(self, num_shards, index):
        opened.append(index)
        broken = file(self, num_shards=num_shards, index=index)
        if index != 2 or len(opened) > 3:
            return broken
        skip = type(broken).skip

        class Breaking:
            def skip(self, n):
                for place, record in enumerate(skip(broken, n)):
                    if place == 4:
                        raise ConnectionResetError("gone")
                    yield record

        return Breaking()

    monkeypatch.setattr(type(data), "shard", shard)
    assert list(corpus) == ROWS
    assert opened == [0, 1, 2, 2, 3, 4, 5]


# --- what texts are known by -------------------------------------------------------------------------


def test_the_identity_of_a_tokenizer_ignores_what_every_call_sets(tokenizer):
    copy = transformers.AutoTokenizer.from_pretrained(minilm_folder())
    copy.backend_tokenizer.enable_truncation(7)
    copy.backend_tokenizer.no_padding()
    assert tokenizer_identity(copy) == tokenizer_identity(tokenizer)
    copy.add_special_tokens({"additional_special_tokens": ["frog"]})
    assert tokenizer_identity(copy) != tokenizer_identity(tokenizer)


def test_a_stream_of_the_hub_is_known_by_its_commit_and_everything_else_by_its_texts(parquet, monkeypatch):
    def name(revision="a" * 40, data="some/name", **options):
        return Corpus.from_dataset(data, revision=revision, **options).source.name()

    assert name()["revision"] == "a" * 40
    assert name() != name("b" * 40)
    assert name() == name() != name(n_documents=9)
    assert name(n_documents=9, seed=0) == name(n_documents=9, seed=0) != name(n_documents=9, seed=1)
    assert name(data_files="a.json") is None  # options may mean other texts
    assert name(data=str(parquet)) is name(data=Dataset.from_dict({"text": ROWS})) is None
    assert Corpus.from_texts(ROWS).source.name() is Corpus.bundled().source.name() is None


# --- the articles inside gensim ----------------------------------------------------------------------


def test_the_bundled_articles_are_prose(tokenizer):
    corpus = Corpus.bundled()
    texts = list(corpus)
    stream = corpus.documents(tokenizer, max_length=512, long="chunk")
    n = sum(1 for _ in stream)
    assert len(texts) == 103
    assert stream.counts["left_out"]["redirects"] == 99
    assert n == stream.counts["documents"] > 1000
    anarchism = texts[0]
    assert anarchism.startswith("Anarchism is a political philosophy")
    lines = [line for text in texts for line in text.splitlines()]
    assert not [line for line in lines if line[0] in "=*#|{" or "''" in line or "[[" in line]
    assert np.mean([line.rstrip("\"')”").endswith((".", "!", "?")) for line in lines]) > 0.9


def test_markup_that_gensim_leaves_is_no_prose():
    text = (
        "==History==\n'''Frogs''' are amphibians that live in ''many'' parts of the world.\n"
        "* a list of frogs that is longer than forty letters.\nA caption without an end that is quite long indeed\n"
        "File:Frog.jpg|A frog that sits on a log in the sun. It is green.\nShort line.\n"
    )
    assert prose(text) == "Frogs are amphibians that live in many parts of the world."


def test_neighbouring_chunks_go_on_in_the_numbers_of_their_text(tokenizer):
    chunks = list(Corpus.from_texts(["frog toad " * 30]).documents(tokenizer, max_length=12, long="chunk"))
    inside = [number for chunk in chunks for number in chunk.word_index[1:-1].tolist()]
    assert inside == list(range(60))
    assert all(len(one) == 12 for one, _ in pairwise(chunks))
    assert len({chunk.source for chunk in chunks}) == 1


def test_the_first_texts_of_files_are_read_whatever_part_they_are_in(tmp_path):
    for name, lines in {"a": ["one", "two"], "b": ["three"], "c": ["four", "five"]}.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    (tmp_path / "b.jsonl").write_text('{"text": null}\n{"text": "three"}\n')
    every = ["one", "two", "three", "four", "five"]
    for n in (1, 2, 3, 4, 5, 9):
        corpus = Corpus.from_files(tmp_path, n_documents=n)
        assert list(corpus) == every[:n]
        assert sorted(text for index in range(2) for text in corpus.shard(index, 2)) == sorted(every[:n])
    four = Corpus.from_files(tmp_path, n_documents=4)
    assert list(sources.First(four.source.source, 4).read(0, 3)) == ["three", "four"]
    assert four.provenance["n_documents"] == 4
    with pytest.raises(ValueError, match="n_documents must be at least 1, got 0"):
        Corpus.from_files(tmp_path, n_documents=0)


def test_of_the_bundled_articles_so_many_are_texts_and_redirects_do_not_count():
    some = list(Corpus.bundled(n_documents=5))
    assert some == list(Corpus.bundled())[:5]
