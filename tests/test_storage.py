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

import topic_probe as tp
from topic_probe.storage import MANIFEST, draft, kind_of, load, read_json, save


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def put(folder, number, **options):
    return save(folder, "example", {"number": number}, {"number": np.full(3, number)}, **options)


def number_in(folder):
    saved = load(folder, "example")
    assert (saved.arrays["number"] == saved.content["number"]).all()
    return saved.content["number"]


def landscape():
    world = tp.World(n_topics=4, words_per_topic=5, topics_per_document=2)
    return tp.measure_landscape(world, tp.Masking(), alphas=np.array([1.0]), betas=np.array([1.0, 2.0]))


# --- there and back ----------------------------------------------------------------------------------


def test_a_result_comes_back_with_its_kind_and_nothing_lies_beside_it(tmp_path):
    table = np.arange(12.0).reshape(3, 4)
    arrays = {"0-d": np.array(3.5), "turned": table.T, "every other": table[:, ::2], "whole": np.array([1, -2]),
              "same for all": np.broadcast_to(np.array([1.0, np.nan]), (3, 2)), "none": np.zeros((0, 3))}  # fmt: skip
    content = {"word": "Käse·学", "numbers": [1, 2.5, None, True]}
    folder = save(tmp_path / "deep" / "er", "example", content, arrays)
    assert (folder, names(tmp_path / "deep")) == (tmp_path / "deep" / "er", ["er"])
    assert names(folder) == [saved_results.arrays_file(folder).name, "saved.json"]
    saved = load(folder, ("another", "example"))
    assert (saved.kind, saved.content) == ("example", content)
    assert saved.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (saved.arrays[name].shape, saved.arrays[name].dtype) == (array.shape, array.dtype)
        np.testing.assert_array_equal(saved.arrays[name], array)
    assert json.loads((folder / "saved.json").read_text(encoding="utf-8"))["content"] == content


def test_the_kind_of_a_folder_is_that_of_what_is_saved_there(tmp_path):
    assert kind_of(tmp_path) is None
    assert kind_of(tmp_path / "nowhere") is None
    assert kind_of(put(tmp_path / "out", 1)) == "example"
    tp.Topics.blocks(n_topics=2, words_per_topic=2).save(tmp_path / "topics")
    assert kind_of(tmp_path / "topics") == "topics"
    assert kind_of(landscape().save(tmp_path / "landscape")) == "landscape"


def test_json_is_strict(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        save(tmp_path / "out", "example", {"a": float("nan")})
    assert names(tmp_path) == []


# --- what is refused ---------------------------------------------------------------------------------


def test_another_kind_is_refused(tmp_path):
    put(tmp_path, 1)
    with pytest.raises(ValueError, match=r"saved\.json holds 'example', not 'a' or 'b'"):
        load(tmp_path, {"b", "a"})


@pytest.mark.parametrize("version", [None, "1", 0, 2])
def test_another_version_is_refused_with_the_remedy(tmp_path, version):
    put(tmp_path, 1)
    saved_results.change(tmp_path, version=version)
    with pytest.raises(
        ValueError, match=rf"format version {version}, this topic_probe reads 1: .* save it again"
    ):
        load(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": ', "is not whole or not JSON"),
        (b"\xff\xfe", "is not whole or not JSON"),
        (b"[" * 100_000, "is not whole or not JSON"),
        (b"[1]", "must hold a JSON object"),
    ],
)
def test_broken_json_is_named(tmp_path, content, message):
    (tmp_path / "claims.json").write_bytes(content)
    with pytest.raises(ValueError, match=rf"claims\.json {message}"):
        read_json(tmp_path / "claims.json")


@pytest.mark.parametrize("changes", [{"kind": 3}, {"kind": None}, {"format": "y"}, {"format": None}])
def test_a_manifest_of_another_format_is_no_saved_result(tmp_path, changes):
    put(tmp_path, 1)
    saved_results.change(tmp_path, **changes)
    with pytest.raises(ValueError, match=r"saved\.json is no saved result"):
        load(tmp_path)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"saved\.json does not exist: .* is not a folder saved by"):
        load(tmp_path / "nowhere")
    put(tmp_path, 1)
    arrays = saved_results.arrays_file(tmp_path)
    arrays.unlink()
    with pytest.raises(FileNotFoundError, match=rf"{arrays.name} does not exist"):
        load(tmp_path)


@pytest.mark.slow
def test_every_changed_bit_of_every_file_is_refused_by_name(tmp_path):
    report = landscape()
    folder = report.save(tmp_path / "out")
    generator = np.random.default_rng(0)
    for file in folder.iterdir():
        whole = file.read_bytes()
        ends = [*range(8 * 30), *range(8 * (len(whole) - 80), 8 * len(whole))]
        for bit in {*generator.integers(8 * len(whole), size=600).tolist(), *ends}:
            changed = bytearray(whole)
            changed[bit // 8] ^= 1 << bit % 8
            file.write_bytes(changed)
            with pytest.raises(ValueError, match=file.name):
                load(folder)
        for cut in (whole[:-1], whole[: len(whole) // 2], b"", whole + b"\n"):
            file.write_bytes(cut)
            with pytest.raises(ValueError, match=file.name):
                load(folder)
        file.write_bytes(whole)
    assert tp.load_report(folder) == report


# --- what is overwritten -----------------------------------------------------------------------------


def test_an_empty_folder_is_filled_and_another_one_not_overwritten_unasked(tmp_path):
    put(tmp_path, 1)
    with pytest.raises(FileExistsError, match=r"not overwritten unasked.*overwrite=True"):
        put(tmp_path, 2)
    assert number_in(tmp_path) == 1
    put(tmp_path, 2, overwrite=True)
    assert number_in(tmp_path) == 2
    assert len(names(tmp_path)) == 2


def test_overwriting_never_deletes_what_is_not_ours(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match=r"holds thesis\.tex, which is no result"):
        put(tmp_path, 1, overwrite=True)
    with pytest.raises(FileExistsError, match="is a file, a folder is needed"):
        put(tmp_path / "thesis.tex", 1, overwrite=True)
    with (
        pytest.raises(FileExistsError, match=r"holds thesis\.tex, which is no result"),
        draft(tmp_path, overwrite=True),
    ):
        raise AssertionError("the block is not entered")
    assert names(tmp_path) == ["thesis.tex"]


@pytest.mark.parametrize(
    ("there", "new"), [("topics", "topic fit"), ("topics", "weights"), ("weights", "topics")]
)
def test_a_mistyped_path_costs_no_result_of_another_kind(there, new, tmp_path):
    save(tmp_path, there, {})
    with pytest.raises(
        FileExistsError,
        match=f"holds saved {there}, which is no result of topic-probe or one of another kind",
    ):
        save(tmp_path, new, {}, overwrite=True)
    assert kind_of(tmp_path) == there


def test_any_report_and_what_is_damaged_may_be_replaced(tmp_path):
    save(tmp_path, "weights", {})
    save(tmp_path, "attention", {}, overwrite=True)
    (tmp_path / "saved.json").write_text("{")
    save(tmp_path, "attention", {"a": 1}, overwrite=True)
    assert load(tmp_path).content == {"a": 1}


# --- failures ----------------------------------------------------------------------------------------


@pytest.fixture
def full_disk(monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_leaves_neither_a_folder_nor_a_draft(tmp_path):
    with pytest.raises(OSError, match="No space left"):
        put(tmp_path / "deep" / "out", 1)
    assert names(tmp_path) == []


def test_a_full_disk_leaves_what_was_to_be_overwritten(tmp_path, request):
    put(tmp_path / "out", 1)
    before = names(tmp_path / "out")
    request.getfixturevalue("full_disk")
    with pytest.raises(OSError, match="No space left"):
        put(tmp_path / "out", 2, overwrite=True)
    assert number_in(tmp_path / "out") == 1
    assert names(tmp_path / "out") == before


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


# --- whatever is saved, and whatever happens to it ------------------------------------------------------

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


@pytest.mark.parametrize("path", [None, True, 3, 2.5, b"folder", ["folder"], ""])
def test_what_is_no_path_is_refused(path, unchecked):
    for call in (load, kind_of, lambda place: save(place, "attention", {})):
        with pytest.raises((TypeError, ValueError), match="a path is needed, got"):
            call(path)


@pytest.mark.parametrize("overwrite", ["0", "", 0, 1, None])
def test_only_true_overwrites(tmp_path, overwrite, unchecked):
    put(tmp_path / "result", 1)
    with pytest.raises(TypeError, match="overwrite must be True or False, got"):
        put(tmp_path / "result", 2, overwrite=overwrite)
    assert number_in(tmp_path / "result") == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_in_place_of_a_manifest_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / MANIFEST)
    with pytest.raises(ValueError, match=rf"{MANIFEST} is a pipe and no saved result"):
        load(tmp_path)


@pytest.fixture(scope="module")
def saved_topics(tmp_path_factory):
    """The files of saved topics, by name."""
    folder = tmp_path_factory.mktemp("saved") / "topics"
    tp.Topics.from_token_ids({"war": [1, 2], "music": [3]}, vocabulary_size=5).save(folder)
    return {part.name: part.read_bytes() for part in folder.iterdir()}


def load_changed(files, name, content):
    with tempfile.TemporaryDirectory() as folder:
        for other, unchanged in files.items():
            Path(folder, other).write_bytes(content if other == name else unchanged)
        return tp.Topics.load(folder)


@given(st.data())
def test_a_file_that_ends_early_is_refused_by_name(saved_topics, data):
    name = data.draw(st.sampled_from(sorted(saved_topics)))
    length = data.draw(st.integers(0, len(saved_topics[name]) - 1))
    with pytest.raises(ValueError, match=rf"{name}|{MANIFEST}"):
        load_changed(saved_topics, name, saved_topics[name][:length])


@settings(max_examples=30)
@given(st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
def test_what_is_no_saved_result_is_refused_by_name(content):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, MANIFEST).write_bytes(content)
        with pytest.raises(ValueError, match=MANIFEST):
            load(folder)
