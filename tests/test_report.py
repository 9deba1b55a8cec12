"""Reports come back from disk as they went, or not at all."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import saved_results

from topic_probe import report as report_module
from topic_probe.contrast import Contrast, PairSums
from topic_probe.report import Report, load_report, provenance
from topic_probe.topics import Topics


@dataclass(frozen=True, eq=False, repr=False)
class ExampleReport(Report, kind="example"):
    overall: Contrast
    parts: Any
    provenance: Mapping[str, Any]
    later: int = 7

    def to_dataframe(self) -> pd.DataFrame:
        return self.overall.to_dataframe()


def contrast(sums, counts, **options):
    return PairSums(np.array(sums, float), np.array(counts, float)).contrast(**options)


def example(parts=None, **options):
    return ExampleReport(contrast([4, 0, 6], [2, 0, 3]), parts, {"seed": 1}, **options)


def everything():
    heads = contrast(
        [[1, 2, 3], [4, 0, 6]],
        [[1, 1, 1], [2, 0, 3]],
        interval=np.array([[0.5, np.inf], [np.nan, np.nan]]),
        q_value=np.array([0.1, np.nan]),
        statistic="difference",
        index={"layer": (0, 1), "stack": ("encoder", "cross")},
    )
    return {
        "heads": heads,
        "by place": {(0, "encoder"): heads[0], (1, "cross"): None},
        "numbers": (1, 2.5, True, None, math.nan, math.inf, -math.inf, "Käse", 2**53 + 1),
        "list": [np.arange(3), np.array(1.5), np.array([True, False]), np.zeros((0, 2))],
        "inner": example(),
        "a.b": np.ones(1),
        "a": {"b": np.zeros(1)},
        "marks": {"$": "no mark", "x": np.ones(2)},
    }


def test_a_report_comes_back_as_it_went(tmp_path):
    before = example(everything(), later=8)
    assert before.save(tmp_path / "out") == tmp_path / "out"
    after = load_report(tmp_path / "out")
    assert type(after) is ExampleReport
    assert after == before
    # Spelt out, so that it does not hang on the equality alone.
    assert after.later == 8
    assert after.parts["heads"].interval[0].tolist() == [0.5, math.inf]
    assert after.parts["heads"].index == {"layer": (0, 1), "stack": ("encoder", "cross")}
    assert after.parts["heads"].statistic == "difference"
    assert after.parts["by place"][0, "encoder"].ratio == pytest.approx(2 / 3)
    assert after.parts["numbers"][:4] == (1, 2.5, True, None)
    assert math.isnan(after.parts["numbers"][4])
    assert after.parts["numbers"][8] == 2**53 + 1
    assert after.parts["list"][2].dtype == bool
    assert after.parts["a.b"].tolist() == [1]
    assert after.parts["a"]["b"].tolist() == [0]
    assert after.parts["inner"].overall.n_different_topic == 3
    assert after.overall.reason == before.overall.reason


def test_numpy_numbers_come_back_as_plain_ones(tmp_path):
    example((np.float64(0.5), np.int64(3), np.float32("nan"), MappingProxyType({"x": 1}))).save(tmp_path)
    half, three, nan, inner = load_report(tmp_path).parts
    assert (half, three, inner) == (0.5, 3, {"x": 1})
    assert (type(half), type(three)) == (float, int)
    assert math.isnan(nan)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.ones(2), np.ones(3)),
        (np.ones(2), np.ones(2, dtype=int)),
        (np.array([1, np.nan]), np.array([np.nan, 1])),
        ({"x": 1}, {"x": 1, "y": 2}),
        ((1, 2), [1, 2]),
        ((1, 2), (1, 2, 3)),
        (1.0, math.nan),
        (contrast([1, 2, 3], [1, 1, 1]), contrast([1, 2, 4], [1, 1, 1])),
    ],
)
def test_reports_that_differ_anywhere_are_not_equal(one, other):
    assert example(one) == example(one)
    assert example(one) != example(other)
    assert example({"deep": [one]}) != example({"deep": [other]})


def test_json_on_disk_is_strict_and_says_what_it_is(tmp_path):
    example(everything()).save(tmp_path)

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    described = json.loads((tmp_path / "saved.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert described["format"] == "topic_probe result"
    assert described["kind"] == "example"
    assert described["version"] == 1


def test_what_cannot_be_saved_is_named_before_anything_is_written(tmp_path):
    with pytest.raises(TypeError, match=r"example\.parts\.x\.1 holds a set"):
        example({"x": [1, {2}]}).save(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_report_is_not_overwritten_unasked(tmp_path):
    example(1).save(tmp_path / "out")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        example(2).save(tmp_path / "out")
    assert load_report(tmp_path / "out").parts == 1
    example(2).save(tmp_path / "out", overwrite=True)
    assert load_report(tmp_path / "out").parts == 2


def test_damaged_and_foreign_folders_are_refused_by_the_name_of_the_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist or holds nothing that topic_probe has saved"):
        load_report(tmp_path)
    example(everything()).save(tmp_path)
    file, arrays = tmp_path / "saved.json", saved_results.arrays_file(tmp_path)
    text, packed = file.read_bytes(), arrays.read_bytes()

    file.write_bytes(text[: len(text) // 2])
    with pytest.raises(ValueError, match=r"saved\.json is not whole"):
        load_report(tmp_path)
    file.write_bytes(text)
    arrays.write_bytes(packed[:-8])
    with pytest.raises(ValueError, match=r"arrays-\w+\.safetensors is truncated"):
        load_report(tmp_path)
    arrays.unlink()
    with pytest.raises(FileNotFoundError, match=r"arrays-\w+\.safetensors does not exist"):
        load_report(tmp_path)
    arrays.write_bytes(packed)

    whole = saved_results.manifest(tmp_path)["content"]
    for changes, message in (
        ({"version": 2}, r"saved\.json has format version 2, this topic_probe reads 1"),
        ({"version": None}, r"saved\.json has format version None"),
        ({"format": "something else"}, r"saved\.json is no saved result"),
        ({"kind": "os.system"}, r"holds 'os\.system', which is no known report"),
        ({"content": {"overall": 1}}, r"saved\.json does not describe a ExampleReport"),
        ({"content": {**whole, "overall": {"$": "eval"}}}, r"unknown mark 'eval'"),
        (
            {"content": {**whole, "overall": {"$": "array", "name": "gone"}}},
            r"does not describe a ExampleReport",
        ),
    ):
        file.write_bytes(text)
        saved_results.change(tmp_path, **changes)
        with pytest.raises(ValueError, match=message):
            load_report(tmp_path)


def test_arrays_of_another_save_are_noticed(tmp_path):
    example(np.ones(3)).save(tmp_path / "one")
    example(np.zeros(3)).save(tmp_path / "two")
    saved_results.arrays_file(tmp_path / "two").rename(saved_results.arrays_file(tmp_path / "one"))
    with pytest.raises(ValueError, match="of another save"):
        load_report(tmp_path / "one")


def test_loading_imports_no_module_that_a_file_names(tmp_path, monkeypatch):
    imported = []
    monkeypatch.setattr(report_module, "import_module", imported.append)
    example().save(tmp_path)
    saved_results.change(tmp_path, kind="antigravity")
    with pytest.raises(ValueError, match="no known report"):
        load_report(tmp_path)
    assert imported == []


def test_two_reports_cannot_share_a_kind():
    with pytest.raises(TypeError, match="'example' already belongs to ExampleReport"):

        class Another(Report, kind="example"):
            pass


def test_a_report_shows_as_a_table_with_what_is_missing_and_escapes_html():
    @dataclass(frozen=True, eq=False, repr=False)
    class NamedReport(Report, kind="named"):
        overall: Contrast
        provenance: Mapping[str, Any]

        def to_dataframe(self) -> pd.DataFrame:
            return self.overall.to_dataframe({"topic": ["<script>"]})

    shown = NamedReport(contrast([4, 0, 6], [2, 0, 3], note="<i>"), {})
    text, html = repr(shown), shown._repr_html_()
    assert text.startswith("NamedReport\n")
    assert "different_topic" in text
    assert text.endswith("(no pair of different words shares a topic; <i>)")
    assert "<table" in html
    assert "<script>" not in html
    assert "<i>" not in html
    assert "no pair of different words shares a topic" in html


def test_reports_are_frozen_and_have_no_hash():
    with pytest.raises(AttributeError):
        example().later = 3
    with pytest.raises(TypeError, match="unhashable"):
        hash(example())


def test_provenance_says_everything_in_plain_json():
    with pytest.warns(UserWarning, match="topics without a word"):
        topics = Topics.from_token_ids({"a": [1, 2], "b": []}, vocabulary_size=5)
    found = provenance(
        topics,
        model={"name": "toy"},
        options={"exclude": {3, 1}, "level": np.float64(0.95), "shape": (2, 3), "dtype": np.dtype("float32")},
        seed=4,
        left_out={"zero rows": np.int64(2)},
    )
    assert json.loads(json.dumps(found)) == found
    assert found["topics"]["fingerprint"] == topics.fingerprint
    assert found["topics"]["n_topics"] == 2
    assert found["topics"]["n_words"] == 2
    assert found["options"] == {"exclude": [1, 3], "level": 0.95, "shape": [2, 3], "dtype": "float32"}
    assert found["left_out"] == {"zero rows": 2}
    assert found["seed"] == 4
    assert found["versions"]["topic-probe"]
    assert found["versions"]["torch"]
    assert provenance()["topics"] is None
