"""Documents in parts: every text in one part, the same parts for any number of workers."""

import json
from functools import partial

import pytest
import torch
from datasets import Dataset

import topic_probe as tp
from topic_probe.measure.parts import Worker, n_parts, parts_to_measure
from topic_probe.text.corpus import Corpus, Section
from topic_probe.text.documents import Document
from topic_probe.text.word_tokenizer import word_tokenizer

TEXTS = ["one", "two", None, "three", "four five", "", "six", "seven", "eight", "nine"]


def stream(corpus, **options):
    return corpus.documents(word_tokenizer(text for text in TEXTS if text), **options)


def ids(documents):
    return [document.ids.tolist() for document in documents]


def parts(documents, size, part=None, there=None):
    """The parts that a worker measures, by number: what they are known by, and their documents."""
    there = {} if there is None else there
    return {
        found.number: (found.place, ids(found.documents))
        for found in parts_to_measure(documents, size, Worker.of(part), there.get)
    }


def places(found):
    return {number: place for number, (place, _) in found.items()}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for number in range(3):
        records = (json.dumps({"text": f"{word} {number}"}) + "\n" for word in "abcdefg"[: 3 + number])
        (folder / f"{number}.jsonl").write_text("".join(records))
    return folder


def every_kind(files):
    several = Dataset.from_dict({"text": TEXTS}).to_iterable_dataset(num_shards=3)
    return {
        "a list": stream(Corpus.from_texts(TEXTS)),
        "a function": stream(Corpus.from_texts(lambda: iter(TEXTS))),
        "files": stream(Corpus.from_files(files)),
        "the first": stream(Corpus.from_files(files, n_documents=5)),
        "chunks": stream(
            Corpus.from_texts(["one two three four five six seven"] * 4), max_length=4, long="chunk"
        ),
        "a data set": stream(Corpus.from_dataset(Dataset.from_dict({"text": TEXTS}))),
        "files of a stream": stream(Corpus.from_dataset(several)),
        "documents": [Document(torch.tensor([n, n + 1])) for n in range(7)],
        "ids": [[n] for n in range(7)],
    }


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_every_document_is_in_one_part_whatever_the_number_of_workers(files, size):
    for kind, documents in every_kind(files).items():
        alone = parts(documents, size)
        every = [document for _, of_part in alone.values() for document in of_part]
        assert sorted(every) == sorted(ids(documents) if kind != "ids" else documents), kind
        for n in (2, 3, 7):
            shared = {}
            for index in range(n):
                own = parts(documents, size, (index, n))
                assert all(number % n == index for number in own)
                shared |= own
            assert shared == alone, kind
        assert n_parts(list(places(alone).values())) == len(alone), kind


def test_what_is_there_is_not_measured_again(files):
    for kind, documents in every_kind(files).items():
        there = places(parts(documents, 2))
        assert parts(documents, 2, there=there) == {}, kind
        del there[1]
        assert list(parts(documents, 2, there=there)) == [1], kind


def test_a_text_more_makes_the_short_last_part_anew_and_nothing_else():
    there = places(parts(stream(Corpus.from_texts(TEXTS)), 4))
    assert list(there) == [0, 1, 2]
    more = stream(Corpus.from_texts([*TEXTS, "ten"]))
    found = parts(more, 4, there=there)
    assert list(found) == [2]
    assert found[2][1] == ids(more)[-3:]
    there |= places(found)
    longer = stream(Corpus.from_texts([*TEXTS, "ten", "eleven", "twelve"]))
    found = parts(longer, 4, there=there)
    assert list(found) == [2, 3]
    assert n_parts(list((there | places(found)).values())) == 4


def test_texts_after_a_full_last_part_are_a_part_more():
    there = places(parts(stream(Corpus.from_texts(TEXTS[:8])), 4))
    found = parts(stream(Corpus.from_texts(TEXTS[:9])), 4, there=there)
    assert list(found) == [2]
    assert n_parts(list(there.values())) == 2
    assert n_parts(list((there | places(found)).values())) == 3


@pytest.mark.parametrize(
    "other",
    [
        ["other", *TEXTS[1:]],
        [*TEXTS[:-1], "other"],
        TEXTS[::-1],
        TEXTS[:-1],
        TEXTS[:4],
        [*TEXTS[:-1], "other", "more"],
    ],
)
def test_parts_of_other_texts_are_refused(other):
    there = places(parts(stream(Corpus.from_texts(TEXTS)), 4))
    with pytest.raises(ValueError, match=r"was measured of other texts|more of it was measured"):
        parts(stream(Corpus.from_texts(other)), 4, there=there)


def test_how_many_parts_there_are_is_known_of_a_list_at_once_and_of_a_stream_at_its_end():
    of_list = places(parts(stream(Corpus.from_texts(TEXTS)), 4))
    assert n_parts([of_list[1]]) == 3
    of_stream = places(parts(stream(Corpus.from_texts(lambda: iter(TEXTS))), 4))
    assert n_parts([of_stream[0], of_stream[1]]) is None
    assert n_parts([of_stream[0], of_stream[2]]) == 3
    assert n_parts([]) is None
    first = tp.Corpus.bundled(n_documents=5)  # and some redirects between them
    of_first = places(parts(first.documents(word_tokenizer(["the"])), 4))
    assert n_parts([of_first[0]]) == len(of_first) > 2


def of_the_hub(commit, read=None):
    """A stream of two files of five texts, known by a commit; what is read of it is noted."""

    def texts(file):
        for place in range(5):
            if read is not None:
                read.append((file, place))
            yield str(5 * file + place)

    name = {"name": "some/name", "revision": commit * 40}
    return stream(Corpus([Section(partial(texts, file), None, name) for file in range(2)], {}))


def test_the_texts_of_two_commits_are_never_measured_together():
    there = places(parts(of_the_hub("a"), 2))
    del there[4], there[5]  # it was stopped
    with pytest.raises(
        ValueError, match=r"run 0 of file 0 was measured of other texts \(they differ in revision\)"
    ):
        parts(of_the_hub("b"), 2, there=there)


def test_a_stream_of_the_hub_is_not_read_to_know_what_is_there():
    read = []
    documents = of_the_hub("a", read)
    there = places(parts(documents, 2))
    # Runs of each file in turn: 3 of file 0 are parts 0, 2, 4.
    assert [(place["file"], place["run"], place["texts"]) for _, place in sorted(there.items())] == [
        (0, 0, 2), (1, 0, 2), (0, 1, 2), (1, 1, 2), (0, 2, 1), (1, 2, 1)
    ]  # fmt: skip
    read.clear()
    assert parts(documents, 2, there=there) == {}
    assert read == []
    del there[5]
    assert list(parts(documents, 2, there=there)) == [5]
    assert read == [(1, place) for place in range(5)]


def test_what_can_be_read_once_is_for_one_worker():
    once = (Document(torch.tensor([n])) for n in range(3))
    assert len(parts(once, 2)) == 2
    with pytest.raises(ValueError, match="documents that can be read only once are for one worker"):
        parts(iter([[1]]), 2, (0, 2))


@pytest.mark.parametrize("part", [(2, 2), (0, 0), (-1, 2), (1,), (0, 1, 2)])
def test_workers_that_cannot_be_are_refused(part):
    with pytest.raises(ValueError, match="part must be"):
        Worker.of(part)


SLURM = {
    "SLURM_ARRAY_TASK_MIN": 3,
    "SLURM_ARRAY_TASK_MAX": 11,
    "SLURM_ARRAY_TASK_STEP": 4,
    "SLURM_ARRAY_TASK_COUNT": 3,
}


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"RANK": 2, "WORLD_SIZE": 5}, (2, 5)),
        ({**SLURM, "SLURM_ARRAY_TASK_ID": 3}, (0, 3)),
        ({**SLURM, "SLURM_ARRAY_TASK_ID": 11}, (2, 3)),
        # Two processes in each of three tasks.
        ({**SLURM, "SLURM_ARRAY_TASK_ID": 7, "RANK": 1, "WORLD_SIZE": 2}, (3, 6)),
    ],
)
def test_the_environment_says_which_worker_this_is(monkeypatch, known, expected):
    for name, value in known.items():
        monkeypatch.setenv(name, str(value))
    worker = Worker.of("env")
    assert (worker.index, worker.n) == expected


def test_an_environment_that_does_not_say_it_is_refused(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", *SLURM, "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="found neither RANK and WORLD_SIZE"):
        Worker.of("env")
    for name, value in {**SLURM, "SLURM_ARRAY_TASK_ID": 7, "SLURM_ARRAY_TASK_COUNT": 2}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(ValueError, match="a slurm array with gaps: 2 tasks from 3 to 11"):
        Worker.of("env")
