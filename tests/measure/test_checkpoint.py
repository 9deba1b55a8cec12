"""Measurements that are interrupted, killed and taken up again; checkpoints that belong to something else."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import many_processes
import numpy as np
import pytest
import saved_results
import torch
from many_processes import documents, model, other_topics, topics

import topic_probe as tp
from topic_probe import storage
from topic_probe.contrast import SourceSums
from topic_probe.measure import accumulators, runs
from topic_probe.measure.engine import Engine

N = 60
PROGRAM = Path(many_processes.__file__)
# Some documents have no other word of a topic than 20, and are left out because that is a special token.
PLAIN = {"batch_size": 1, "n_permutations": 20, "special_ids": {20}}
OPTIONS = {**PLAIN, "checkpoint_every": 0.0}


@pytest.fixture
def measured(monkeypatch):
    """How many documents went through a model."""
    numbers = []
    original = Engine.add

    def add(self, batch):
        numbers.append(len(batch))
        original(self, batch)

    monkeypatch.setattr(Engine, "add", add)
    return numbers


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch):
    """Hundreds of saves; what a disk keeps when the power fails is not tested here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def until(number, error):
    """Documents that break off."""
    for place, document in enumerate(documents(N)):
        if place == number:
            raise error
        yield document


def everything():
    return tp.measure_attention(model(), topics(), documents(N), **PLAIN)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("the disk is gone")])
def test_an_interrupted_measurement_goes_on_where_it_was_and_gives_the_same_report(error, tmp_path, measured):
    """Equal to the last bit, everything that was left out and all options included."""
    expected = everything()
    whole = sum(measured)
    measured.clear()
    if isinstance(error, KeyboardInterrupt):
        report = tp.measure_attention(
            model(), topics(), until(45, error), checkpoint=tmp_path / "c", **OPTIONS
        )
        assert "interrupted after" in report.provenance["options"]["stopped"]
    else:
        with pytest.raises(OSError, match="the disk is gone"):
            tp.measure_attention(model(), topics(), until(45, error), checkpoint=tmp_path / "c", **OPTIONS)
    before = sum(measured)
    assert 0 < before < N
    again = tp.measure_attention(model(), topics(), documents(N), checkpoint=tmp_path / "c", **OPTIONS)
    assert again == expected
    assert again.provenance["left_out"]["documents without a word of any topic"] >= N // 10
    assert sum(measured) == whole
    assert before < sum(measured)


def test_a_killed_process_is_taken_up_by_the_next_one(tmp_path, measured):
    command = [sys.executable, str(PROGRAM), "killed", str(tmp_path / "c")]
    assert subprocess.run(command, timeout=120).returncode == -signal.SIGKILL
    report = tp.measure_attention(model(), topics(), documents(N), checkpoint=tmp_path / "c", **OPTIONS)
    assert 0 < sum(measured) < report.provenance["documents_measured"]
    assert report == everything()


def test_sums_of_a_part_of_a_group_of_batches_are_taken_up_too(tmp_path, measured, monkeypatch):
    """Documents are sorted by length in groups of 32 batches; the model breaks within the second one."""
    add = Engine.add

    def breaks(self, batch):
        if len(measured) == 40:
            raise RuntimeError("no power")
        add(self, batch)

    monkeypatch.setattr(Engine, "add", breaks)
    with pytest.raises(RuntimeError, match="no power"):
        tp.measure_attention(model(), topics(), documents(N), checkpoint=tmp_path, **OPTIONS)
    monkeypatch.setattr(Engine, "add", add)
    measured.clear()
    report = tp.measure_attention(model(), topics(), documents(N), checkpoint=tmp_path, **OPTIONS)
    assert sum(measured) == report.provenance["documents_measured"] - 40
    assert report == everything()


def test_blocks_of_documents_are_taken_up_as_blocks(tmp_path, monkeypatch):
    """More documents than are kept apart, and so few after the interruption that they would not be too many again."""
    monkeypatch.setattr(accumulators, "SourceSums", lambda limit, **shape: SourceSums(45, **shape))
    expected = everything()
    add, batches = Engine.add, []

    def breaks(self, batch):
        batches.append(batch)
        if len(batches) == 52:
            raise KeyboardInterrupt
        add(self, batch)

    monkeypatch.setattr(Engine, "add", breaks)
    tp.measure_attention(model(), topics(), documents(N), checkpoint=tmp_path, **OPTIONS)
    again = tp.measure_attention(model(), topics(), documents(N), checkpoint=tmp_path, **OPTIONS)
    assert len(batches) < 62
    assert again == expected


def test_a_finished_measurement_is_not_repeated(tmp_path, measured):
    first = tp.measure_attention(model(), topics(), documents(30), checkpoint=tmp_path, **OPTIONS)
    measured.clear()
    again = tp.measure_attention(model(), topics(), documents(30), checkpoint=tmp_path, **OPTIONS)
    assert again == first
    other = tp.measure_attention(
        model(), topics(), documents(30), checkpoint=tmp_path, n_resamples=50, confidence=0.5, **OPTIONS
    )
    assert not measured
    assert other == tp.measure_attention(
        model(), topics(), documents(30), n_resamples=50, confidence=0.5, **PLAIN
    )


def test_a_finished_corpus_is_not_even_tokenized_again(tmp_path, monkeypatch):
    options = {"checkpoint": tmp_path, "n_permutations": 0}
    first = tp.measure_attention(
        model(30_522), many_processes.text_topics(), many_processes.stream(), **options
    )
    assert first.provenance["corpus"]["read"]["documents"] == first.provenance["documents"] == 9
    stream = many_processes.stream()
    monkeypatch.setattr(type(stream), "__iter__", None)
    again = tp.measure_attention(model(30_522), many_processes.text_topics(), stream, **options)
    assert again == first


def test_embeddings_of_documents_are_taken_up(tmp_path, measured):
    expected = tp.measure_embeddings(model(), topics(), documents(N), batch_size=1)
    measured.clear()
    options = {"batch_size": 1, "checkpoint": tmp_path, "checkpoint_every": 0.0}
    stopped = tp.measure_embeddings(model(), topics(), until(45, KeyboardInterrupt()), **options)
    assert stopped.provenance["documents"]["stopped"] == "interrupted after 32 documents"
    assert tp.measure_embeddings(model(), topics(), documents(N), **options) == expected
    assert sum(measured) == N


def test_the_pieces_of_an_article_before_and_after_an_interruption_are_one_source(tmp_path):
    options = {"groups": [number % 12 for number in range(N)], **OPTIONS}
    expected = tp.measure_attention(model(), topics(), documents(N), **options)
    assert expected.provenance["sources"] == 12
    assert np.isfinite(expected.overall.interval).all()
    tp.measure_attention(model(), topics(), until(45, KeyboardInterrupt()), checkpoint=tmp_path, **options)
    assert tp.measure_attention(model(), topics(), documents(N), checkpoint=tmp_path, **options) == expected


def test_sums_over_sources_and_sums_over_pieces_are_never_put_together(tmp_path):
    tp.measure_attention(model(), topics(), documents(30), checkpoint=tmp_path, groups="document", **OPTIONS)
    for groups in ("source", list(range(30))):
        with pytest.raises(ValueError, match=r"another measurement, which differs in groups"):
            tp.measure_attention(
                model(), topics(), documents(30), checkpoint=tmp_path, groups=groups, **OPTIONS
            )


def changed_model():
    changed = model()
    with torch.no_grad():
        changed.encoder.layer[1].attention.self.key.weight[3, 3] += 1e-6
    return changed


@pytest.mark.parametrize(
    ("what", "call"),
    [
        ("topics", {"topics": other_topics()}),
        ("weights", {"model": changed_model()}),
        ("batch_size", {"batch_size": 2}),
        ("include_self", {"include_self": False}),
        ("seed", {"seed": 1}),
        ("special_ids", {"special_ids": {2, 3}}),
        ("max_length", {"max_length": 9}),
        ("n_permutations, special_ids", {"n_permutations": 21, "special_ids": {2, 3}}),
        ("documents", {"documents": many_processes.stream()}),
    ],
)
def test_a_checkpoint_of_another_measurement_is_refused_by_name_and_kept(what, call, tmp_path):
    options = {**OPTIONS, "special_ids": {2}, "checkpoint": tmp_path}
    first = tp.measure_attention(model(), topics(), documents(20), **options)
    call = {"model": model(), "topics": topics(), "documents": documents(20), **options, **call}
    with pytest.raises(ValueError, match=rf"{tmp_path.name} belongs to another measurement.* in {what}:"):
        tp.measure_attention(call.pop("model"), call.pop("topics"), call.pop("documents"), **call)
    assert tp.measure_attention(model(), topics(), documents(20), **options) == first


@pytest.mark.parametrize(
    "other",
    [
        documents(40, seed=1),
        [*documents(39), [5, 6, 10]],
        [*documents(40)[1:], [5, 6, 10]],
        documents(40)[:39],
        [*documents(40), [5, 6, 10]],
    ],
    ids=["all others", "another last one", "one behind", "fewer", "more"],
)
def test_other_documents_are_noticed_though_a_list_has_no_name(other, tmp_path):
    options = {**OPTIONS, "batch_size": 4, "checkpoint": tmp_path}
    tp.measure_attention(model(), topics(), documents(40), **options)
    with pytest.raises(ValueError, match="belongs to a measurement of other documents"):
        tp.measure_attention(model(), topics(), other, **options)


@pytest.mark.parametrize(
    "other",
    [
        lambda texts, tokenizer: tp.encode_texts(texts, tokenizer),
        lambda texts, tokenizer: tp.encode_texts(texts, tokenizer, sources=[*"cbaabcabc"]),
        lambda texts, tokenizer: [piece.ids for piece in tp.encode_texts(texts, tokenizer)],
    ],
    ids=["no sources", "sources exchanged", "no words"],
)
@pytest.mark.parametrize("measure", [tp.measure_attention, tp.measure_embeddings])
def test_documents_of_other_sources_or_without_words_are_other_documents(other, measure, tmp_path):
    tokenizer = many_processes.stream().tokenizer
    words, host = many_processes.text_topics(), model(30_522)
    given = list(tp.encode_texts(many_processes.TEXTS, tokenizer, sources=[*"abcabcabc"]))
    first = measure(host, words, given, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"belongs to a measurement of other documents.* of other sources"):
        measure(host, words, other(many_processes.TEXTS, tokenizer), checkpoint=tmp_path)
    assert measure(host, words, given, checkpoint=tmp_path) == first


def test_attention_and_states_have_checkpoints_of_their_own(tmp_path):
    options = {"batch_size": 1, "checkpoint": tmp_path}
    tp.measure_attention(model(), topics(), documents(9), **options)
    with pytest.raises(ValueError, match=r"belongs to another measurement.*measurement"):
        tp.measure_embeddings(model(), topics(), documents(9), **options)


@pytest.mark.parametrize(
    "damage", ["arrays cut", "arrays gone", "no JSON", "foreign", "newer", "without facts"]
)
def test_a_damaged_checkpoint_is_refused_by_name(damage, tmp_path):
    tp.measure_attention(model(), topics(), documents(9), checkpoint=tmp_path, **OPTIONS)
    [told] = tmp_path.rglob("saved.json")
    folder, arrays = told.parent, saved_results.arrays_file(told.parent)
    if damage == "arrays cut":
        arrays.write_bytes(arrays.read_bytes()[:-3])
    elif damage == "arrays gone":
        arrays.unlink()
    elif damage == "no JSON":
        told.write_text("{")
    elif damage == "foreign":
        saved_results.change(folder, kind="something else")
    elif damage == "newer":
        saved_results.change(folder, version=99)
    else:
        content = saved_results.manifest(folder)["content"]
        del content["facts"]
        saved_results.change(folder, content=content)
    with pytest.raises(ValueError, match=rf"{tmp_path.name} cannot be taken up.*Delete it"):
        tp.measure_attention(model(), topics(), documents(9), checkpoint=tmp_path, **OPTIONS)


def test_a_folder_that_cannot_be_written_is_an_error_before_anything_is_measured(tmp_path, measured):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OSError, match=r"file/c cannot be written, choose another folder"):
        tp.measure_attention(model(), topics(), documents(9), checkpoint=tmp_path / "file" / "c", **OPTIONS)
    assert not measured


def test_a_disk_that_fills_up_costs_a_warning_and_no_result(tmp_path, monkeypatch):
    expected = tp.measure_attention(model(), topics(), documents(20), **{**PLAIN, "batch_size": 4})
    save, saved = storage.save, []

    def full(path, *arguments, **options):
        saved.append(path)
        if len(saved) > 2:
            raise OSError(28, "No space left on device")
        return save(path, *arguments, **options)

    monkeypatch.setattr(storage, "save", full)
    options = {**OPTIONS, "batch_size": 4, "checkpoint": tmp_path}
    with pytest.warns(UserWarning, match="was not saved: .*No space left on device"):
        report = tp.measure_attention(model(), topics(), documents(20), **options)
    assert report == expected
    monkeypatch.setattr(storage, "save", save)
    assert tp.measure_attention(model(), topics(), documents(20), **options) == expected


def test_saves_are_as_rare_as_they_are_asked_to_be(tmp_path, monkeypatch):
    """Once at the beginning, once at the end, and between them as often as the clock allows."""
    clock, save, saved = [0.0], storage.save, []
    monkeypatch.setattr(runs, "monotonic", lambda: clock[0])

    def save_and_note(*arguments, **options):
        saved.append(clock[0])
        return save(*arguments, **options)

    monkeypatch.setattr(storage, "save", save_and_note)
    add = Engine.add

    def later(self, batch):
        clock[0] += 1
        add(self, batch)

    monkeypatch.setattr(Engine, "add", later)
    options = {**OPTIONS, "batch_size": 4, "checkpoint_every": 3.0}
    tp.measure_attention(model(), topics(), documents(40), checkpoint=tmp_path, **options)
    assert saved == [0, 3, 6, 9, 10]
    with pytest.raises(ValueError, match="checkpoint_every is a number of seconds"):
        tp.measure_attention(
            model(), topics(), documents(9), checkpoint=tmp_path / "x", checkpoint_every=-1.0
        )


def test_the_hash_of_a_model_sees_one_changed_weight_and_no_other_device_or_name():
    facts = runs.model_facts(tp.open_model(model()))
    assert facts == runs.model_facts(tp.open_model(model()))
    assert facts != runs.model_facts(tp.open_model(changed_model()))
    half = [runs.model_facts(tp.open_model(model().to(dtype))) for dtype in (torch.bfloat16, torch.float16)]
    assert half[0] != half[1]


def test_reports_say_which_corpus_was_read():
    stream = many_processes.stream()
    report = tp.measure_attention(model(30_522), many_processes.text_topics(), stream, n_permutations=0)
    assert report.provenance["corpus"] == stream.provenance
    assert report.provenance["corpus"]["read"]["texts"] == 9
    layers = tp.measure_embeddings(model(30_522), many_processes.text_topics(), stream)
    assert layers.provenance["documents"]["corpus"] == stream.provenance
    assert tp.measure_attention(model(), topics(), documents(3)).provenance["corpus"] is None


def test_key_sums_wrap_around_without_a_warning():
    keys = torch.tensor([-1, -1, 3])
    assert runs.key_sum(keys) == (2 * (2**64 - 1) + 3) % 2**64
    assert runs.key_sum(keys[:0]) == 0
    assert np.uint64(runs.key_sum(keys[:1])) == 2**64 - 1
