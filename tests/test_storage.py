"""What is saved is whole or absent, old or new."""

import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import saved_results
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from topic_probe.storage import MANIFEST, draft, kind_of, load, read_json, save


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def put(folder, number, **options):
    return save(folder, "example", {"number": number}, {"number": np.full(3, number)}, **options)


def number_in(folder):
    saved = load(folder, "example")
    assert (saved.arrays["number"] == saved.content["number"]).all()
    return saved.content["number"]


# --- there and back ----------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=4)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
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
        loaded = load(Path(folder, "result"), "attention")
    assert loaded.content == content
    assert loaded.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        found = loaded.arrays[name]
        assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes("C"))


def test_a_folder_says_what_kind_it_holds_and_nothing_lies_beside_it(tmp_path):
    assert kind_of(tmp_path) is kind_of(tmp_path / "nowhere") is None
    folder = put(tmp_path / "deep" / "er", 1)
    assert (folder, names(tmp_path / "deep")) == (tmp_path / "deep" / "er", ["er"])
    assert names(folder) == [saved_results.arrays_file(folder).name, "saved.json"]
    assert (kind_of(folder), load(folder, ("another", "example")).kind) == ("example", "example")
    assert json.loads((folder / "saved.json").read_text(encoding="utf-8"))["content"] == {"number": 1}
    with pytest.raises(ValueError, match="not JSON compliant"):
        save(tmp_path / "out", "example", {"a": float("nan")})
    assert names(tmp_path) == ["deep"]


# --- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": None}, "format version None, this topic_probe reads 1"),
        ({"version": 2}, "format version 2, this topic_probe reads 1"),
        ({"kind": 3}, "is no saved result"),
        ({"format": "y"}, "is no saved result"),
        ({"kind": "c"}, "holds 'c', not 'a' or 'b'"),
    ],
)
def test_a_manifest_of_another_kind_version_or_format_is_refused(tmp_path, changes, message):
    put(tmp_path, 1)
    saved_results.change(tmp_path, **changes)
    with pytest.raises(ValueError, match=rf"saved\.json.* {message}"):
        load(tmp_path, {"b", "a"})


def test_what_is_missing_or_no_json_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"saved\.json does not exist: .* is not a folder saved by"):
        load(tmp_path / "nowhere")
    for content, message in (
        (b'{"a": ', "is not whole or not JSON"), (b"\xff\xfe", "is not whole or not JSON"),
        (b"[" * 100_000, "is not whole or not JSON"), (b"[1]", "must hold a JSON object"),
    ):  # fmt: skip
        (tmp_path / "claims.json").write_bytes(content)
        with pytest.raises(ValueError, match=rf"claims\.json {message}"):
            read_json(tmp_path / "claims.json")


@settings(max_examples=30)
@given(st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
def test_what_is_no_saved_result_is_refused_by_name(content):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, MANIFEST).write_bytes(content)
        with pytest.raises(ValueError, match=MANIFEST):
            load(folder)


@pytest.mark.parametrize("path", [None, True, 3, b"folder", ["folder"], ""])
def test_what_is_no_path_is_refused(path, unchecked):
    for call in (load, kind_of, lambda place: save(place, "attention", {})):
        with pytest.raises((TypeError, ValueError), match="a path is needed, got"):
            call(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_in_place_of_a_manifest_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / MANIFEST)
    with pytest.raises(ValueError, match=rf"{MANIFEST} is a pipe and no saved result"):
        load(tmp_path)


# --- what is overwritten -----------------------------------------------------------------------------


def test_results_are_overwritten_on_demand_and_what_is_not_ours_never(tmp_path, unchecked):
    out = tmp_path / "out"
    out.mkdir()  # an empty folder is filled
    put(out, 1)
    with pytest.raises(FileExistsError, match=r"not overwritten unasked.*overwrite=True"):
        put(out, 2)
    for flag in ("0", 1, None):
        with pytest.raises(TypeError, match="overwrite must be True or False, got"):
            put(out, 2, overwrite=flag)
    assert number_in(out) == 1
    put(out, 2, overwrite=True)
    assert (number_in(out), len(names(out))) == (2, 2)
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match=r"holds .*, which is no result"):
        put(tmp_path, 1, overwrite=True)
    with pytest.raises(FileExistsError, match="is a file, a folder is needed"):
        put(tmp_path / "thesis.tex", 1, overwrite=True)
    assert names(tmp_path) == ["out", "thesis.tex"]


@pytest.mark.parametrize(
    ("there", "new"), [("topics", "topic fit"), ("topics", "weights"), ("weights", "topics")]
)
def test_a_mistyped_path_costs_no_result_of_another_kind(there, new, tmp_path):
    save(tmp_path, there, {})
    with pytest.raises(FileExistsError, match=f"holds saved {there}, .* one of another kind"):
        save(tmp_path, new, {}, overwrite=True)
    assert kind_of(tmp_path) == there


def test_any_report_and_what_is_damaged_may_be_replaced(tmp_path):
    save(tmp_path, "weights", {})
    save(tmp_path, "attention", {}, overwrite=True)
    (tmp_path / "saved.json").write_text("{")
    save(tmp_path, "attention", {"a": 1}, overwrite=True)
    assert load(tmp_path).content == {"a": 1}


# --- failures ----------------------------------------------------------------------------------------


def test_a_full_disk_leaves_what_was_there_and_no_draft(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    put(tmp_path / "out", 1)
    before = names(tmp_path / "out")
    monkeypatch.setattr(os, "fsync", full)
    for place in ("out", "deep/out"):
        with pytest.raises(OSError, match="No space left"):
            put(tmp_path / place, 2, overwrite=True)
    assert (names(tmp_path), number_in(tmp_path / "out"), names(tmp_path / "out")) == (["out"], 1, before)


@pytest.mark.parametrize("file", [False, True])
def test_a_draft_is_put_in_place_whole_or_gone_with_the_folders_made_for_it(file, tmp_path):
    target = tmp_path / "deep" / "out"

    def fill(place, text):
        (place if file else place / "claims.txt").write_text(text)

    with pytest.raises(KeyboardInterrupt), draft(target, file=file) as place:  # noqa: PT012 - a block is what fails
        fill(place, "half")
        raise KeyboardInterrupt
    assert names(tmp_path) == []
    with draft(target, file=file) as place:
        fill(place, "whole")
        assert not target.exists()
    with (
        pytest.raises(FileExistsError, match=r"not overwritten unasked.*--overwrite"),
        draft(target, file=file),
    ):
        raise AssertionError("the block is not entered")
    with pytest.raises(FileExistsError, match="is needed"), draft(target, file=not file, overwrite=True):
        raise AssertionError("the block is not entered")
    with draft(target, file=file, overwrite=True) as place:
        fill(place, "new")
    assert (target if file else target / "claims.txt").read_text() == "new"
    assert names(tmp_path / "deep") == ["out"]


def test_what_comes_to_the_place_of_a_draft_meanwhile_is_kept(tmp_path):
    with pytest.raises(FileExistsError, match="not overwritten unasked"), draft(tmp_path / "out") as place:  # noqa: PT012
        put(place / "mine", 1)
        put(tmp_path / "out", 2)
    assert number_in(tmp_path / "out") == 2
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("before", [None, 1])
@pytest.mark.parametrize("n", [1, 2])
def test_a_save_that_is_killed_before_it_replaces_a_file_leaves_the_old_result(
    n, before, tmp_path, monkeypatch
):
    if before is not None:
        put(tmp_path / "out", before)
    calls = []

    def killed(place, target):
        calls.append(target)
        if len(calls) == n:
            raise SystemExit
        os.rename(place, target)  # noqa: PTH104 - what is replaced here is pathlib's

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        patched.setattr(Path, "unlink", lambda *_, **__: None)  # a process that is killed cleans nothing up
        with pytest.raises(SystemExit):
            put(tmp_path / "out", 2, overwrite=True)
    assert [target.suffix for target in calls] == [".safetensors", ".json"][:n]
    left = names(tmp_path / "out")
    if before is None:
        assert kind_of(tmp_path / "out") is None
        put(tmp_path / "out", 3)
    else:
        assert number_in(tmp_path / "out") == before
        put(tmp_path / "out", 3, overwrite=True)
    assert number_in(tmp_path / "out") == 3
    assert len(left) == n + (0 if before is None else 2)
    assert len(names(tmp_path / "out")) == 2
