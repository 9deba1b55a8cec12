"""Folders are whole or absent, whatever happens while they are written."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from topic_probe import storage
from topic_probe.storage import (
    check_schema,
    checksum,
    read_json,
    read_safetensors,
    to_json,
    to_safetensors,
    write_directory,
)

FILES = {"a.json": b"{}", "b.bin": b"12"}


def content(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def names(folder):
    return [file.name for file in folder.iterdir()]


def test_a_folder_is_made_with_its_parents_and_nothing_beside_it(tmp_path):
    written = write_directory(tmp_path / "deep" / "er", FILES)
    assert written == tmp_path / "deep" / "er"
    assert content(written) == FILES
    assert names(tmp_path / "deep") == ["er"]


def test_an_empty_folder_is_filled(tmp_path):
    assert content(write_directory(tmp_path, FILES)) == FILES


def test_a_folder_that_holds_anything_is_not_overwritten_unasked(tmp_path):
    write_directory(tmp_path / "out", FILES)
    with pytest.raises(FileExistsError, match="not overwritten unasked"):
        write_directory(tmp_path / "out", {"a.json": b"new"})
    assert content(tmp_path / "out") == FILES
    write_directory(tmp_path / "out", {"a.json": b"new", "b.bin": b"3"}, overwrite=True)
    assert content(tmp_path / "out") == {"a.json": b"new", "b.bin": b"3"}
    assert names(tmp_path) == ["out"]


def test_overwriting_never_deletes_what_is_not_ours(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match=r"holds 'thesis\.tex', which saving would delete"):
        write_directory(tmp_path, FILES, overwrite=True)
    assert content(tmp_path) == {"thesis.tex": b"years of work"}
    with pytest.raises(FileExistsError, match="is a file, a folder is needed"):
        write_directory(tmp_path / "thesis.tex", FILES, overwrite=True)


def test_a_full_disk_leaves_neither_a_folder_nor_a_draft(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_directory(tmp_path / "out", FILES)
    assert names(tmp_path) == []


def test_a_full_disk_leaves_what_was_to_be_overwritten(tmp_path, monkeypatch):
    write_directory(tmp_path / "out", FILES)

    def full(self, target):
        raise OSError(28, "No space left on device")

    # The old folder is moved away first, so this fails at the very last step.
    rename = storage.Path.rename
    monkeypatch.setattr(
        storage.Path,
        "rename",
        lambda self, target: (
            full(self, target)
            if target.name == "out" and not self.name.endswith(".old")
            else rename(self, target)
        ),
    )
    with pytest.raises(OSError, match="No space left"):
        write_directory(tmp_path / "out", {"a.json": b"new"} | FILES, overwrite=True)
    assert content(tmp_path / "out") == FILES
    assert names(tmp_path) == ["out"]


def test_a_folder_that_another_process_fills_meanwhile_is_not_overwritten(tmp_path, monkeypatch):
    fsync = os.fsync

    def other_process(descriptor):
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / "a.json").write_bytes(b"theirs")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", other_process)
    with pytest.raises(FileExistsError, match="not overwritten unasked"):
        write_directory(tmp_path / "out", FILES)
    assert content(tmp_path / "out") == {"a.json": b"theirs"}
    assert names(tmp_path) == ["out"]


def test_processes_that_overwrite_one_folder_never_leave_a_mixture(tmp_path):
    script = (
        "import sys; from topic_probe.storage import write_directory\n"
        "for number in range(400):\n"
        "    mark = f'{sys.argv[2]} {number}'.encode()\n"
        "    write_directory(sys.argv[1], {'a': mark, 'b': mark}, overwrite=True)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "out")]
    running = [subprocess.Popen([*command, name]) for name in ("one", "two")]
    assert [process.wait(timeout=120) for process in running] == [0, 0]
    found = content(tmp_path / "out")
    assert found["a"] == found["b"]
    assert found["a"].endswith(b" 399")
    assert names(tmp_path) == ["out"]


def test_json_is_strict(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"a": float("nan")})
    (tmp_path / "x.json").write_bytes(to_json({"word": "Käse·学"}))
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == {"word": "Käse·学"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": ', "is not whole or not JSON"),
        (b"\xff\xfe", "is not whole or not JSON"),
        (b"[1]", "must hold a JSON object"),
    ],
)
def test_broken_json_is_named(tmp_path, content, message):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(ValueError, match=rf"x\.json {message}"):
        read_json(tmp_path / "x.json")


def test_a_missing_file_is_named_with_its_folder(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"x\.json does not exist: .* is not a folder saved by topic_probe"
    ):
        read_json(tmp_path / "x.json")


def test_arrays_come_back_as_they_went_whatever_their_layout(tmp_path):
    table = np.arange(12.0).reshape(3, 4)
    arrays = {"0-d": np.array(3.5), "turned": table.T, "every other": table[:, ::2], "whole": np.array([1, -2]),
              "same for all": np.broadcast_to(np.array([1.0, np.nan]), (3, 2)), "none": np.zeros((0, 3))}  # fmt: skip
    (tmp_path / "x.safetensors").write_bytes(to_safetensors(arrays))
    found = read_safetensors(tmp_path / "x.safetensors")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].shape == array.shape
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_damaged_arrays_are_named(tmp_path):
    whole = to_safetensors({"x": np.arange(10.0)})
    file = tmp_path / "x.safetensors"
    file.write_bytes(whole[:-3])
    with pytest.raises(ValueError, match=r"x\.safetensors is not a whole safetensors file"):
        read_safetensors(file)
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    file.write_bytes(flipped)
    with pytest.raises(ValueError, match=r"x\.safetensors is truncated, changed or of another save"):
        read_safetensors(file, sha256=checksum(whole))


@pytest.mark.parametrize("schema", [None, "1", 0, True])
def test_content_without_a_schema_is_not_ours(tmp_path, schema):
    with pytest.raises(ValueError, match="names no schema version"):
        check_schema({"schema": schema}, tmp_path, newest=3)


def test_a_newer_schema_is_refused_with_the_remedy(tmp_path):
    check_schema({"schema": 3}, tmp_path, newest=3)
    with pytest.raises(ValueError, match=r"schema 4, this version reads up to 3: .* upgrade"):
        check_schema({"schema": 4}, tmp_path, newest=3)
