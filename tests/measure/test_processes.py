"""Documents shared out over processes: the report is that of one process, and no process waits for one that failed."""

import json
import os
import re
import subprocess
import sys
import warnings
from collections import Counter
from itertools import chain
from pathlib import Path
from time import monotonic

import many_processes
import numpy as np
import pytest
import threads_as_processes
from torchrun import in_two_processes

import topic_probe as tp
from topic_probe.measure.accumulators import Relations
from topic_probe.measure.engine import Engine
from topic_probe.processes import _BYTES, _LETTERS, Processes, _State
from topic_probe.text.documents import Counts, Document
from topic_probe.text.shares import share_of

PROGRAM = Path(many_processes.__file__)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """What two processes saved that torchrun has started."""
    folder = tmp_path_factory.mktemp("two processes")
    in_two_processes(PROGRAM, "in each process", folder)
    return folder


@pytest.fixture(scope="module")
def told(two_processes):
    return [json.loads((two_processes / f"told {rank}.json").read_text()) for rank in range(2)]


def numbers(report, found=None, name=""):
    """Every number of a report by its place in it; texts and versions left out."""
    found = {} if found is None else found
    parts = report.items() if isinstance(report, dict) else vars(report).items()
    for key, value in parts:
        here = f"{name}.{key}"
        if isinstance(value, dict) or hasattr(value, "same_topic"):
            if key not in ("provenance", "versions"):
                numbers(value, found, here)
        elif isinstance(value, np.ndarray | int | float) and not isinstance(value, bool):
            found[here] = value
    return found


@pytest.mark.parametrize("case", list(many_processes.CASES))
def test_two_processes_give_the_report_of_one(case, two_processes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # there is nothing to compare without documents
        alone = many_processes.CASES[case]()
    together = [tp.load_report(two_processes / f"{case} {rank}") for rank in range(2)]
    assert together[0] == together[1]
    expected, found = numbers(alone), numbers(together[0])
    assert expected.keys() == found.keys()
    assert len(found) > 10
    for name, value in expected.items():
        # Rounding is that of sums in another order: intervals draw the same documents, p-values the same labels.
        np.testing.assert_allclose(found[name], value, rtol=1e-12, atol=1e-14, err_msg=name)
    one, two = dict(alone.provenance), dict(together[0].provenance)
    for record in (one, two, one["documents"], two["documents"]):
        if isinstance(record, dict):
            record.pop("processes", None)
    assert one == two


def test_every_document_of_a_stream_is_counted_once(two_processes):
    told = tp.load_report(two_processes / "stream 0").provenance
    assert told["processes"] == 2
    assert told["corpus"]["corpus"] == {"source": "texts", "n_texts": 9, "shard_index": 0, "n_shards": 1}
    assert told["corpus"]["read"]["texts"] == told["documents"] == told["documents_measured"] == 9


def test_what_does_not_fit_together_is_an_error_in_every_process(told):
    """Each of them sees it, so none waits for another."""
    for seen in told:
        assert "differ in topics" in seen["topics"][0]
        assert "was given share 2 of 3 of the corpus" in seen["share"][0]
        for option in ("n_permutations", "confidence"):
            assert f"differ in {option}:" in seen[option][0]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("shuffled", "process 1 does something else than process 0; they differ in first documents"),
        ("shorter list", "they differ in number of documents"),
        (
            "shorter",
            r"documents of process 1 are not those of process 0 \(process 1 was given 100 documents in place of",
        ),
        ("other order", r"\(process 1 was given the same 301 documents in another order\)"),
        ("other document", r"\(process 1 was given other documents, though as many \(301\)\)"),
        ("texts", "they differ in texts"),
        ("later texts", r"\(process 1 was given the same 11 documents in another order\)"),
        ("files", "they differ in texts"),
    ],
)
def test_processes_that_were_given_different_documents_have_no_result(case, words, told):
    for seen in told:
        assert seen[case][0].startswith("ValueError: ")
        assert re.search(words, seen[case][0])


def test_processes_may_have_their_files_in_different_folders(told):
    assert [seen["same files"][0] for seen in told] == [2, 2]


def test_documents_of_an_interrupted_process_are_not_compared(told):
    for seen in told:
        assert seen["interrupted"][0]["stopped"].startswith("process 1 interrupted after ")


def test_a_process_hears_at_once_of_another_ones_error_that_was_caught(told):
    first, second = (seen["caught"] for seen in told)
    assert second[0] == "OSError: the disk is gone"
    failed = "OtherProcessError: there is no result, because process 1 failed: OSError: the disk is gone"
    assert first[0] == failed
    assert first[1] < 10


def test_a_process_that_is_slow_is_waited_for(told):
    """It took 8 seconds for its documents, and the other one was told to have 3 seconds of patience."""
    assert [seen["slow"][0] for seen in told] == [2, 2]


@pytest.mark.slow
def test_torchrun_ends_a_process_with_hours_of_work_left_when_another_one_fails(tmp_path):
    start = monotonic()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(PROGRAM), "endless", str(tmp_path)],
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "OSError: the disk is gone" in done.stderr
    assert monotonic() - start < 90


@pytest.mark.slow
def test_a_process_that_is_gone_is_named_within_a_bounded_time(tmp_path):
    """Nobody watches over these processes and ends the others."""
    subprocess.run(
        [sys.executable, str(PROGRAM), "left alone", str(tmp_path)],
        check=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    said = {path.name: path.read_text() for path in tmp_path.iterdir()}
    absent = (
        "process 1 has not come within 3 seconds: every process must make this call with distributed=True"
    )
    words = {
        "bad id 0": "process 1 failed: ValueError: document 20 holds the token id 57, but the model knows 0..49",
        "killed at work 0": "process 2 has ended without a word: it was killed, or its own error says why",
        "killed at work 1": "process 2 has ended without a word: it was killed, or its own error says why",
        "stopped 0": "process 1 has given no sign of life for 3 seconds",
        "by itself 0": absent,
        "in a group of the user's 0": absent,
    }
    for name, why in words.items():
        assert f"OtherProcessError: there is no result, because {why}" in said.pop(name)
    assert said.keys() == {
        "bad id 1",
        "killed at work 2",
        "stopped 1",
        "by itself 1",
        "in a group of the user's 1",
    }
    assert not any("OtherProcessError" in words for words in said.values())


@pytest.mark.parametrize("letter", ["a", "\N{PILE OF POO}", "\x00", "\ud800", '"'])
def test_a_sign_of_life_has_room_for_the_words_of_any_error(letter):
    failed = dict.fromkeys(range(5), letter * _LETTERS)
    packed = _State(7, failed, left=True).packed()
    assert packed.shape == (_BYTES,)
    read = _State.of(packed)
    assert (read.reached, read.left, list(read.failed)) == (7, True, [0, 1, 2])
    assert letter == "\ud800" or read.failed[2] == failed[2]


def test_a_checkpoint_of_two_processes_is_taken_up_by_two_and_by_no_other_number(told, two_processes):
    assert all(one["same from its checkpoint"][0] for one in told)
    checkpoint = two_processes / "checkpoint"
    assert sorted(path.name for path in checkpoint.iterdir()) == ["process-0-of-2", "process-1-of-2"]
    with pytest.raises(ValueError, match="was made by 2 processes and cannot be taken up by 1"):
        many_processes.CASES["attention"](checkpoint=checkpoint)


def test_without_processes_the_error_says_how_to_start_them(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match=r"WORLD_SIZE, .* missing.*torchrun --nproc-per-node 4"):
        many_processes.CASES["attention"](distributed=True)


def test_one_process_of_torchrun_measures_alone(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "x", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert many_processes.CASES["attention"](distributed=True) == many_processes.CASES["attention"]()


class Numbers:
    """Adds up the numbers of documents."""

    def __init__(self):
        self.sums = {"numbers": np.zeros(2)}


def engine_of(keys, limit):
    """What documents have added up whose sums are made of their numbers."""
    relations, numbers = Relations(limit), Numbers()
    engine = Engine(None, [relations, numbers])
    for key in keys:
        row = np.full((1, 2, 3), float(key))
        relations.by_source.add(np.array([key], np.uint64), row, np.ones((1, 1, 3)))
        numbers.sums["numbers"] += [1, key]
        engine.progress.left_out["odd"] += key % 2
        engine.progress.counts.left_out["all"] += 1
        engine.progress.counts.documents += 1
    engine.progress.measured = len(keys)
    return engine


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("limit", [1000, 40, 7])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_added_sums_do_not_depend_on_the_number_of_processes(size, limit):
    """Whole numbers, so equality is exact; with a limit of 40 a process has fewer documents than it, all have more."""
    keys = [*range(60), 3, 3, 4]
    expected = engine_of(keys, limit)

    def work(one):
        own = engine_of(keys[one.index :: size] if size < 5 or one.index else [], limit)
        if size == 5 and one.index == 1:
            own = engine_of(sorted(keys[1::5] + keys[0::5]), limit)
        own._add_up(one)
        return own

    for found in threads_as_processes.in_threads(size, work):
        by_source, expected_by_source = found.sums["by_source"], expected.sums["by_source"]
        assert by_source.folded == expected_by_source.folded == (limit < 60)
        for one, other in zip(by_source.rows(), expected_by_source.rows(), strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(found.sums["numbers"], expected.sums["numbers"])
        assert found.progress.left_out == expected.progress.left_out == Counter(odd=32)
        assert found.progress.measured == 63
        assert found.progress.counts == Counts(documents=63, left_out=Counter(all=63))


@pytest.mark.usefixtures("unchecked")
def test_no_documents_in_any_process_add_up_to_none():
    def work(one):
        own = engine_of([], 8)
        own._add_up(one)
        return len(own.sums["by_source"])

    assert threads_as_processes.in_threads(3, work) == [0, 0, 0]


@pytest.mark.parametrize("n", [0, 1, 7])
def test_shares_of_plain_documents_are_uneven_and_lose_none(n):
    ids = [[number + 1, 2] for number in range(n)]
    shares = [
        [document.ids.tolist() for document in share_of(ids, Processes(index, 3), None)] for index in range(3)
    ]
    assert sorted(chain(*shares)) == ids
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_share_that_the_user_made_is_taken_as_it_is():
    corpus = tp.Corpus.from_texts(many_processes.TEXTS)
    tokenizer = many_processes.stream().tokenizer
    second = Processes(1, 2)
    own = corpus.shard(1, 2).documents(tokenizer)
    assert share_of(own, second, None) is own
    shared = share_of(corpus.documents(tokenizer), second, None)
    assert [d.ids.tolist() for d in shared] == [d.ids.tolist() for d in own]
    assert all(isinstance(document, Document) for document in shared)
