"""Series of checkpoints measured: the numbers of each, what is wrong with some left out, interruptions made up for."""

import json
import shutil
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import small_language

import topic_probe as tp
from topic_probe.cli import main
from topic_probe.series.sums import Grid, curves_of

STEPS = (0, 10, 20, 40, 80)
FEW = {"n_permutations": 3, "n_resamples": 20}
WORDS = {"measure": ["embeddings"], "n_resamples": 0}


def same_bytes(one, other):
    """Whether two saved results hold the same files."""
    files = [{file.name: file.read_bytes() for file in folder.iterdir()} for folder in (one, other)]
    return files[0] == files[1]


def test_numbers_are_those_of_each_checkpoint_to_the_last_bit(report, series, topics, documents):
    assert report.steps.tolist() == list(STEPS)
    for entry, reports in list(zip(series, report.reports, strict=True))[::3]:
        heads = tp.measure_attention(entry.name, topics, documents, n_permutations=3)
        words = tp.measure_embeddings(entry.name, topics, documents, n_resamples=20)
        for field in ("overall", "heads", "layers", "matched", "without_sinks"):
            assert getattr(reports["attention"], field) == getattr(heads, field)
        for field in ("cosine", "dot", "layers", "topics"):
            assert getattr(reports["embeddings"], field) == getattr(words, field)


def test_what_two_steps_differ_by_is_what_comparing_two_models_says(report, series, topics, documents):
    """`compare` pairs by its own way: the numbers, intervals and p-values of differences are the same."""
    names = {"last": series[-1].name, "first": series[0].name}
    options = {"measure": ["attention"], "statistic": "effect_size", "n_permutations": 0}
    said = tp.compare(names, topics, documents, **options)
    for name, by in (("attention", "step"), ("layers", "layer"), ("heads", "head")):
        table = report.difference(80, 0, by)
        own = table[~table["measured"].str.startswith(("states", "embeddings"))]
        for column in ("difference", "low", "high", "p_value"):
            wanted = said.differences[name]["number" if column == "difference" else column]
            assert own[column].to_numpy() == pytest.approx(wanted, rel=1e-6, abs=1e-9)


def test_curves_of_the_sums_are_those_of_the_reports(report):
    """The sums behind onsets give the very numbers that reports have."""
    grid = Grid([(0, number) for number in range(5)], 1, 5)
    for by in ("step", "layer", "head"):
        curves = {one.name: one.values[0] for one in curves_of(report.sums, grid, by, "effect_size")}
        assert list(curves) == list(report.contrasts(by))
        for name, values in curves.items():
            assert values == pytest.approx(report.curve(name, by=by)[:, 0], rel=1e-9, abs=1e-12)


def test_what_is_flagged_and_what_cannot_be_measured_is_no_point_of_a_curve(series, topics, tmp_path):
    folders = {entry.step: shutil.copytree(entry.name, tmp_path / str(entry.step)) for entry in series}
    shutil.rmtree(folders[20])
    shutil.copytree(folders[40], folders[20])
    for file in folders[10].glob("*.safetensors"):
        file.write_bytes(b"")
    broken = tp.Checkpoints.from_folders(folders)
    found = tp.measure_series(broken, topics, **WORDS)
    assert found.steps.tolist() == list(STEPS)
    assert found.reasons[1].startswith("cannot be read")
    # Which of the two copies is the right one cannot be known.
    assert (*found.reasons[::4], *found.reasons[2:4]) == ("", "", "copy of step 40", "copy of step 20")
    assert np.isnan(found.curve("embeddings")[1:4]).all()
    # A part may have nothing to measure, and a series not.
    part = tp.measure_series(broken[1:2], topics, part=(0, 2), folder=tmp_path / "kept", **WORDS)
    assert "step 10: cannot be read" in str(part)
    assert tp.measure_series(broken[1:2], topics, part=(1, 2), folder=tmp_path / "kept", **WORDS) is None
    with pytest.raises(ValueError, match="nothing could be measured at any step: step 10: cannot be read"):
        tp.measure_series(broken[1:2], topics, **WORDS)


# --- kept in a folder ---------------------------------------------------------------------------------


def test_parts_leave_the_bytes_of_a_single_process_and_what_is_kept_is_not_measured_again(
    report, series, topics, documents, tmp_path, monkeypatch
):
    checked = tp.check_checkpoints(series)
    given = {"folder": tmp_path / "kept", "checked": checked, **FEW}
    parts = [tp.measure_series(series, topics, documents, part=(i, 3), **given) for i in range(3)]
    assert [part.steps.tolist() for part in parts] == [[0, 40], [10, 80], [20]]
    assert parts[1].curve("attention").tolist() == report.curve("attention")[[1, 4]].tolist()
    assert "part 1 of 3 alone: the same call without part= gives the report of all" in str(parts[1])
    # A save that was killed is measured anew, and nothing else is.
    for file in (tmp_path / "kept" / "step 20").iterdir():
        file.unlink()
    (tmp_path / "kept" / "step 20" / "arrays-0123456789abcdef.safetensors").write_bytes(b"half of it")
    tp.measure_series(series, topics, documents, part=(2, 3), **given)
    monkeypatch.setattr("topic_probe.series.whole._measured", None)
    monkeypatch.setattr("topic_probe.series.whole.check_checkpoints", None)
    whole = tp.measure_series(series, topics, documents, **given)
    assert same_bytes(whole.save(tmp_path / "whole"), report.save(tmp_path / "alone"))
    assert "alone" not in str(whole)
    with pytest.raises(ValueError, match="checked= is of other checkpoints"):
        tp.measure_series(series[:2], topics, documents, **given)


def test_trainings_of_several_seeds_are_one_report_and_shared_by_parts(series, topics, tmp_path):
    one, checked = series[:3], tp.check_checkpoints(series[:3])
    both, options = {3: one, 8: one}, {**WORDS, "n_resamples": 20}
    given = {"checked": {3: checked, 8: checked}, **options}
    found = tp.measure_series(both, topics, **given)
    assert found.seeds == (3,) * 3 + (8,) * 3
    assert found.trainings[8] == tp.measure_series(one, topics, checked=checked, **options)
    assert found.onsets()["seed"].tolist() == [3, 8, "all"]
    assert found.to_dataframe()["seed"].unique().tolist() == [3, 8]
    parts = [tp.measure_series(both, topics, part=(i, 4), folder=tmp_path, **given) for i in range(4)]
    rows = [list(zip(part.seeds, part.steps.tolist(), strict=True)) for part in parts]
    assert rows[1] == [(3, 10), (8, 20)]
    assert sorted(chain(*rows)) == [(seed, step) for seed in both for step in STEPS[:3]]


@pytest.fixture(scope="module")
def kept(series, topics, documents, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    tp.measure_series(series[:1], topics, documents, folder=folder, **FEW)
    return folder


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"documents": slice(5)}, "step 0 was measured with other options"),
        ({"n_permutations": 4}, "step 0 was measured with other options"),
        ({"series": 2}, "step 0 was measured with other weights, of another series"),
        ({"several": True}, "holds 'step 0' of another series: choose another folder="),
    ],
)
def test_a_folder_of_something_else_is_refused(changed, said, kept, series, topics, documents):
    options = {**FEW, **changed}
    documents, given = documents[options.pop("documents", slice(None))], series[:1]
    if number := options.pop("series", None):
        given = tp.Checkpoints((replace(series[number], step=0),))
    given = {0: given} if options.pop("several", False) else given
    with pytest.raises(ValueError, match=said):
        tp.measure_series(given, topics, documents, folder=kept, **options)


def test_the_command_line_measures_a_folder_of_checkpoints(report, series, topics, tmp_path, capsys):
    words = {f"topic {topic}": small_language.words(topic) for topic in range(small_language.N_TOPICS)}
    (tmp_path / "words.json").write_text(json.dumps(words))
    (tmp_path / "texts.txt").write_text("\n".join(small_language.texts(12, 20, seed=5)))
    root, named = str(series[0].name).rsplit("/", 1)[0], str(tmp_path / "words.json")
    command = ["series", root, "--topics", named, "--corpus", str(tmp_path / "texts.txt"), "--split", "line"]
    out = tmp_path / "out"
    assert main([*command, "--n-permutations", "3", "--n-resamples", "20", "--out", str(out)]) == 0
    assert "onsets of effect sizes" in capsys.readouterr().out
    found = tp.load_report(out)
    assert found.curve("embeddings") == pytest.approx(report.curve("embeddings"))
    assert found.curve("attention")[:, 0] == pytest.approx(report.curve("attention")[:, 0], rel=1e-6)
    assert main([*command, "--checked", "one", "two"]) == 2
    assert "--checked needs what was found of each of the 1 SERIES, got 2" in capsys.readouterr().err


def test_what_cannot_be_meant_is_refused_before_anything_is_read(series, topics, documents):
    for given, error, said in (
        ({"series": {}}, ValueError, "at least one training, got none"),
        ({"documents": iter([])}, ValueError, "can be read only once"),
        ({"documents": None}, ValueError, "are measured in documents: pass these"),
        ({"part": (0, 2)}, ValueError, "part= came without folder="),
        ({"sums": "new"}, TypeError, "measure_series knows no option 'sums'"),
        ({"checked": 3}, TypeError, "checked= needs the report of check_checkpoints"),
    ):
        named = {"series": series, "documents": documents, **given}
        with pytest.raises(error, match=said):
            tp.measure_series(named.pop("series"), topics, named.pop("documents"), **named)
