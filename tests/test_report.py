"""What every report is: a frozen record that prints, is compared, and says where it comes from."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from topic_probe import storage
from topic_probe.contrast import Contrast, PairSums
from topic_probe.report import Report, as_text, load_report, provenance
from topic_probe.topics import Topics


@dataclass(frozen=True, eq=False, repr=False)
class ExampleReport(Report, kind="example"):
    overall: Contrast
    parts: Any
    provenance: Mapping[str, Any]
    later: int = 7

    def to_dataframe(self) -> pd.DataFrame:
        return self.overall.to_dataframe({"topic": ["<script>"]})


def contrast(sums, counts, **options):
    return PairSums(np.array(sums, float), np.array(counts, float)).contrast(**options)


def example(parts=None, **options):
    return ExampleReport(contrast([4, 0, 6], [2, 0, 3], note="<i>"), parts, {"seed": 1}, **options)


def everything():
    interval = np.array([[0.5, np.inf], [np.nan, np.nan]])
    index = {"layer": (0, 1), "stack": ("encoder", "cross")}
    heads = contrast(
        [[1, 2, 3], [4, 0, 6]], [[1, 1, 1], [2, 0, 3]], interval=interval, statistic="difference", index=index
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
    }  # fmt: skip


def test_a_report_of_everything_comes_back_as_it_went(tmp_path):
    before = example(everything(), later=8)
    after = load_report(before.save(tmp_path / "out"))
    assert (type(after), after == before) == (ExampleReport, True)
    # Spelt out, so that it does not hang on the equality alone.
    parts = after.parts
    assert (after.later, parts["inner"].overall.n_different_topic) == (8, 3)
    assert parts["heads"].interval[0].tolist() == [0.5, math.inf]
    assert parts["heads"].index == {"layer": (0, 1), "stack": ("encoder", "cross")}
    assert (parts["heads"].statistic, parts["by place"][0, "encoder"].same_topic) == ("difference", 2)
    assert repr(parts["numbers"]) == repr(everything()["numbers"])
    kinds = [(array.dtype, array.shape) for array in parts["list"]]
    assert kinds == [(int, (3,)), (float, ()), (bool, (2,)), (float, (0, 2))]
    assert (parts["a.b"].tolist(), parts["a"]["b"].tolist()) == ([1], [0])
    example((np.float64(0.5), np.int64(3), MappingProxyType({"x": 1}))).save(tmp_path / "numpy")
    assert load_report(tmp_path / "numpy").parts == (0.5, 3, {"x": 1})
    assert after.overall.reason == before.overall.reason


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.ones(2), np.ones(3)),
        (np.ones(2), np.ones(2, dtype=int)),
        (np.array([1, np.nan]), np.array([np.nan, 1])),
        (torch.tensor([1.0, math.nan]), torch.tensor([1.0, 2.0])),
        (torch.ones(2), torch.ones(2).double()),
        ({"x": 1}, {"x": 1, "y": 2}),
        ((1, 2), [1, 2]),
        (1.0, math.nan),
        (contrast([1, 2, 3], [1, 1, 1]), contrast([1, 2, 4], [1, 1, 1])),
    ],
)
def test_reports_that_differ_anywhere_are_not_equal(one, other):
    assert example(one) == example(one)
    assert example(one) != example(other)
    assert example({"deep": [one]}) != example({"deep": [other]})


def test_what_cannot_be_saved_is_named_before_anything_is_written(tmp_path):
    with pytest.raises(TypeError, match=r"example\.parts\.x\.1 holds a set"):
        example({"x": [1, {2}]}).save(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_whole_and_mean_nothing_are_refused(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="does not exist or holds nothing that topic_probe has saved"):
        load_report(tmp_path)
    example(everything()).save(tmp_path)
    monkeypatch.setattr("topic_probe.report.import_module", None)  # nothing that a file names is imported
    for kind, content, message in (
        ("antigravity", {}, r"holds 'antigravity', which is no known report"),
        ("example", {"overall": 1}, r"holds no 'example'"),
        ("example", {"overall": {"$type": "eval", "is": 1}}, r"holds no 'example'"),
        ("example", {"overall": {"$type": "array", "is": "gone"}}, r"holds no 'example'"),
    ):
        storage.save(tmp_path, kind, content, {}, overwrite=True)
        with pytest.raises(ValueError, match=message):
            load_report(tmp_path)


def test_a_report_shows_as_a_table_with_what_is_missing_and_escapes_html():
    text, html = repr(example()), example()._repr_html_()
    assert text.startswith("ExampleReport\n")
    assert "n_pairs" in text
    assert text.endswith("(no pair of different words shares a topic; <i>)")
    assert "<table" in html
    assert "no pair of different words shares a topic" in html
    assert not any(tag in html for tag in ("<script>", "<i>"))


def test_reports_are_frozen_and_have_no_hash():
    with pytest.raises(AttributeError):
        example().later = 3
    with pytest.raises(TypeError, match="unhashable"):
        hash(example())


def test_of_a_contrast_the_answer_is_printed_and_of_other_tables_all():
    interval = np.array([[1.25, 2.5], [np.nan, np.nan]])
    index = {"stack": ("self", "self"), "layer": (0, 1), "head": (0, 1)}
    ones = np.ones(2)
    heads = Contrast(3 * ones, 2 * ones, ones / 3, 12345 * ones, 123456 * ones, 1234567 * ones, index=index,
                     interval=interval, p_value=ones / 1000, q_value=ones / 100, spread=ones / 7)  # fmt: skip
    header, first, last = as_text(heads.to_dataframe().assign(sink_mass=0.5)).splitlines()
    names = ["ratio", "interval", "p_value", "q_value", "effect_size", "n_pairs"]
    assert header.split() == ["stack", "layer", "head", "sink_mass", *names]
    assert first.split() == [
        "self",
        "0",
        "0",
        "0.5",
        "6",
        "[1.25,",
        "2.5]",
        "0.001",
        "0.01",
        "11.67",
        "123456/1234567",
    ]
    assert last.split()[5] == "NaN"
    of_differences = replace(heads, statistic="difference")
    assert as_text(of_differences.to_dataframe()).split()[3:5] == ["difference", "interval"]
    frame = pd.DataFrame({"difference": [0.5], "name": ["x"], "ratio": [12345.678]})
    assert as_text(frame).split() == ["difference", "name", "ratio", "0.5", "x", "1.235e+04"]
    assert max(map(len, as_text(pd.DataFrame({str(n): [1 / 3] for n in range(40)})).splitlines())) <= 100


def test_provenance_says_everything_in_plain_json():
    with pytest.warns(UserWarning, match="topics without a word"):
        topics = Topics.from_token_ids({"a": [1, 2], "b": []}, vocabulary_size=5)
    options = {"exclude": {3, 1}, "level": np.float64(0.95), "shape": (2, 3), "dtype": np.dtype("float32")}
    found = provenance(
        topics, model={"name": "toy"}, options=options, seed=4, left_out={"zero rows": np.int64(2)}
    )
    assert json.loads(json.dumps(found)) == found
    assert found["topics"]["fingerprint"] == topics.fingerprint
    assert (found["topics"]["n_topics"], found["topics"]["n_words"]) == (2, 2)
    assert found["options"] == {"exclude": [1, 3], "level": 0.95, "shape": [2, 3], "dtype": "float32"}
    assert (found["left_out"], found["seed"]) == ({"zero rows": 2}, 4)
    assert {"topic-probe", "torch"} <= found["versions"].keys()
    assert provenance()["topics"] is None
