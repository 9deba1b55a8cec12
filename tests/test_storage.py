"""What is saved is whole or absent, old or new."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from topic_probe.storage import FILE, draft, kind_of, load, save


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def put(folder, number, **options):
    return save(folder, "example", {"number": number}, {"number": np.full(3, number)}, **options)


def number_in(folder):
    kind, content, arrays = load(folder)
    assert (kind, (arrays["number"] == content["number"]).all()) == ("example", True)
    return content["number"]


texts = st.text(st.characters(codec="utf-8"), max_size=4)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False) | texts,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(texts, inside, max_size=3),
    max_leaves=8,
)
kinds = st.sampled_from("? i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8".split())  # noqa: SIM905
arrays = st.dictionaries(
    st.text("abc_", min_size=1, max_size=4),
    npst.arrays(kinds, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)),
    max_size=3,
)


@settings(max_examples=30)
@given(st.dictionaries(st.text("abc", max_size=3), json_values, max_size=3), arrays, st.booleans())
def test_whatever_is_saved_is_loaded_as_it_was(content, arrays, turned):
    arrays = {name: array.T if turned else array for name, array in arrays.items()}
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder, "result"), "attention", content, arrays)
        kind, found, found_arrays = load(Path(folder, "result"))
    assert (kind, found, found_arrays.keys()) == ("attention", content, arrays.keys())
    for name, array in arrays.items():
        one = found_arrays[name]
        assert (one.dtype, one.shape, one.tobytes()) == (array.dtype, array.shape, array.tobytes("C"))


def test_a_folder_says_what_kind_it_holds_and_nothing_lies_beside_it(tmp_path):
    assert kind_of(tmp_path) is kind_of(tmp_path / "nowhere") is None
    folder = put(tmp_path / "deep" / "er", 1)
    assert (folder, names(folder), kind_of(folder)) == (tmp_path / "deep" / "er", [FILE], "example")
    with pytest.raises(FileNotFoundError, match=rf"{FILE} does not exist: .* is not a folder saved by"):
        load(tmp_path / "nowhere")


@settings(max_examples=30)
@given(st.binary(max_size=60))
def test_what_is_no_saved_result_is_refused_by_name(content):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, FILE).write_bytes(content)
        with pytest.raises(ValueError, match=FILE):
            load(folder)


def test_results_are_overwritten_on_demand_and_what_is_not_ours_never(tmp_path):
    out = put(tmp_path / "out", 1)
    with pytest.raises(FileExistsError, match=r"not overwritten unasked.*overwrite=True"):
        put(out, 2)
    assert number_in(out) == 1
    put(out, 2, overwrite=True)
    assert (number_in(out), names(out)) == (2, [FILE])
    with draft(tmp_path, overwrite=True) as place:  # nothing but results
        put(place / "new", 3)
    assert names(tmp_path) == ["new"]
    (tmp_path / "thesis.tex").write_text("years of work")
    with (
        pytest.raises(FileExistsError, match=r"holds thesis.tex, which is no result"),
        draft(tmp_path, overwrite=True),
    ):
        raise AssertionError("the block is not entered")
    assert names(tmp_path) == ["new", "thesis.tex"]


def test_a_full_disk_leaves_what_was_there_and_no_draft(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    put(tmp_path / "out", 1)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        put(tmp_path / "out", 2, overwrite=True)
    assert (number_in(tmp_path / "out"), names(tmp_path / "out")) == (1, [FILE])


@pytest.mark.parametrize("file", [False, True])
def test_a_draft_is_put_in_place_whole_or_gone(file, tmp_path):
    target = tmp_path / "deep" / "out"

    def fill(place, number):
        if file:
            place.write_text(f"{number}")
        else:
            put(place, number)

    with pytest.raises(KeyboardInterrupt), draft(target, file=file) as place:  # noqa: PT012 - a block is what fails
        fill(place, 1)
        raise KeyboardInterrupt
    assert names(target.parent) == []
    with draft(target, file=file) as place:
        fill(place, 2)
        assert not target.exists()
    refused = pytest.raises(FileExistsError, match=r"not overwritten unasked.*--overwrite")
    with refused, draft(target, file=file):
        raise AssertionError("the block is not entered")
    with pytest.raises(FileExistsError, match="is a f"), draft(target, file=not file, overwrite=True):
        raise AssertionError("the block is not entered")
    with draft(target, file=file, overwrite=True) as place:
        fill(place, 3)
    assert (int(target.read_text()) if file else number_in(target)) == 3
    assert names(tmp_path / "deep") == ["out"]


@pytest.mark.parametrize("before", [None, 1])
def test_a_save_that_is_killed_leaves_the_old_result(before, tmp_path, monkeypatch):
    if before is not None:
        put(tmp_path / "out", before)

    def killed(place, target):
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        patched.setattr(Path, "unlink", lambda *_, **__: None)  # a process that is killed cleans nothing up
        with pytest.raises(SystemExit):
            put(tmp_path / "out", 2, overwrite=True)
    if before is None:
        assert kind_of(tmp_path / "out") is None
    else:
        assert number_in(tmp_path / "out") == before
    put(tmp_path / "out", 3, overwrite=True)
    assert number_in(tmp_path / "out") == 3
    with draft(tmp_path / "out", overwrite=True) as place:  # what it has left is nobody's
        put(place, 4)
    assert number_in(tmp_path / "out") == 4


def test_an_array_comes_back_whatever_its_order_in_memory(tmp_path):
    table = np.arange(6.0).reshape(2, 3)
    save(tmp_path / "out", "thing", {}, {"turned": table.T, "whole": table})
    _, _, arrays = load(tmp_path / "out")
    assert arrays["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert arrays["whole"].tolist() == table.tolist()
