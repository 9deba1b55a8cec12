"""Documents shared out over processes: the report is that of one process, and no process waits for one that failed."""

import json
import os
import socket
import subprocess
import sys
import threading
import warnings
from collections import Counter
from itertools import chain
from pathlib import Path
from time import monotonic

import many_processes
import numpy as np
import pytest

import topic_probe as tp
from topic_probe.measure import runs
from topic_probe.measure.accumulators import Relations
from topic_probe.measure.engine import Engine, share_of
from topic_probe.text.documents import Counts, Document

PROGRAM = Path(many_processes.__file__)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """What two processes saved that torchrun has started."""
    folder = tmp_path_factory.mktemp("two processes")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run(
        [*command, str(PROGRAM), "in each process", str(folder)],
        check=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
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


@pytest.mark.slow
def test_a_process_that_fails_leaves_no_other_one_with_a_result_or_waiting(tmp_path):
    """Nobody ends the other process here; it is told by the connection that breaks off."""
    first, second = started_alone("bad id", tmp_path)
    assert "ValueError: document 20 holds the token id 57, but the model knows 0..49" in second
    assert (
        "OtherProcessError: there is no result, because not all of the 2 processes have come so far" in first
    )


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
def test_a_process_that_never_comes_is_named_within_a_bounded_time(tmp_path):
    [first, _] = started_alone("absent", tmp_path)
    assert "have come so far: Ranks 1 failed to come in time" in first


def started_alone(case, folder):
    """What two processes that nobody watches over say on stderr."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), case, str(folder)],
            env={**os.environ, **place, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    return [process.communicate(timeout=120)[1] for process in running]


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


class Threads(runs.Processes):
    """Processes played by threads, which meet at a barrier."""

    def __init__(self, index, size, table, barrier):
        super().__init__(index, size)
        self.table, self.barrier = table, barrier

    def gather(self, value):
        self.table[self.index] = value
        self.barrier.wait(20)
        values = list(self.table)
        self.barrier.wait(20)
        return values

    def add(self, array):
        return np.sum(self.gather(array.copy()), axis=0)


def in_threads(size, work):
    """What ``work`` returns in each of several processes."""
    table, barrier, found = [None] * size, threading.Barrier(size), [None] * size

    def one(index):
        found[index] = work(Threads(index, size, table, barrier))

    threads = [threading.Thread(target=one, args=(index,)) for index in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


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

    for found in in_threads(size, work):
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

    assert in_threads(3, work) == [0, 0, 0]


@pytest.mark.parametrize("n", [0, 1, 7])
def test_shares_of_plain_documents_are_uneven_and_lose_none(n):
    ids = [[number + 1, 2] for number in range(n)]
    shares = [
        [document.ids.tolist() for document in share_of(ids, runs.Processes(index, 3), None)]
        for index in range(3)
    ]
    assert sorted(chain(*shares)) == ids
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_share_that_the_user_made_is_taken_as_it_is():
    corpus = tp.Corpus.from_texts(many_processes.TEXTS)
    tokenizer = many_processes.stream().tokenizer
    second = runs.Processes(1, 2)
    own = corpus.shard(1, 2).documents(tokenizer)
    assert share_of(own, second, None) is own
    shared = share_of(corpus.documents(tokenizer), second, None)
    assert [d.ids.tolist() for d in shared] == [d.ids.tolist() for d in own]
    assert all(isinstance(document, Document) for document in shared)
