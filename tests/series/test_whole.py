"""Series of checkpoints measured: the numbers of each, what is wrong with some left out, interruptions made up for."""

import json
import shutil

import numpy as np
import pytest
import small_language

import topic_probe as tp
from topic_probe.cli import main
from topic_probe.series.curves import curves_of

STEPS = (0, 10, 20, 40, 80)
FEW = {"n_permutations": 3}
WORDS = {"measure": ["embeddings"]}


def same_bytes(one, other):
    """Whether two saved results hold the same files."""
    files = [{file.name: file.read_bytes() for file in folder.iterdir()} for folder in (one, other)]
    return files[0] == files[1]


def test_numbers_are_those_of_each_checkpoint_to_the_last_bit(report, series, topics, documents):
    assert report.steps.tolist() == list(STEPS)
    for folder, reports in list(zip(series.values(), report.reports, strict=True))[::3]:
        heads = tp.measure_attention(folder, topics, documents, n_permutations=3)
        words = tp.measure_embeddings(folder, topics, documents)
        for field in ("overall", "heads", "layers", "matched", "without_sinks"):
            assert getattr(reports["attention"], field) == getattr(heads, field)
        for field in ("cosine", "dot", "layers", "topics"):
            assert getattr(reports["embeddings"], field) == getattr(words, field)


def test_curves_of_the_sums_are_those_of_the_reports(report):
    """The sums behind onsets give the very numbers that reports have."""
    for by in ("step", "layer", "head"):
        curves = {one.name: one.estimate.value for one in curves_of(STEPS, report.rows, by)}
        contrasts = report.contrasts(by)
        assert list(curves) == list(contrasts)
        for name, values in curves.items():
            wanted = [contrast.effect_size for contrast in contrasts[name]]
            assert values == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_what_is_flagged_and_what_cannot_be_measured_is_no_point_of_a_curve(series, topics, tmp_path):
    folders = {step: shutil.copytree(own, tmp_path / str(step)) for step, own in series.items()}
    shutil.rmtree(folders[20])
    shutil.copytree(folders[40], folders[20])
    for file in folders[10].glob("*.safetensors"):
        file.write_bytes(b"")
    found = tp.measure_series(folders, topics, **WORDS)
    assert found.steps.tolist() == list(STEPS)
    assert found.reasons[1].startswith("cannot be opened: ")
    # Which of the two copies is the right one cannot be known.
    assert (*found.reasons[::4], *found.reasons[2:4]) == ("", "", "copy of step 40", "copy of step 20")
    assert np.isnan(found.curve("embeddings")[1:4]).all()
    # A part may have nothing to measure, and a series not.
    one = {10: folders[10]}
    part = tp.measure_series(one, topics, part=(0, 2), folder=tmp_path / "kept", **WORDS)
    assert "step 10: " in str(part)
    assert tp.measure_series(one, topics, part=(1, 2), folder=tmp_path / "kept", **WORDS) is None
    with pytest.raises(ValueError, match="nothing could be measured at any step: step 10: "):
        tp.measure_series(one, topics, **WORDS)


# --- kept in a folder ---------------------------------------------------------------------------------


def test_parts_leave_the_bytes_of_a_single_process_and_what_is_kept_is_not_measured_again(
    report, series, topics, documents, tmp_path, monkeypatch
):
    given = {"folder": tmp_path / "kept", **FEW}
    parts = [tp.measure_series(series, topics, documents, part=(i, 3), **given) for i in range(3)]
    assert [part.steps.tolist() for part in parts] == [[0, 40], [10, 80], [20]]
    assert parts[1].curve("attention").tolist() == report.curve("attention")[[1, 4]].tolist()
    # A save that was killed is measured anew, and nothing else is.
    (file,) = (tmp_path / "kept" / "step 20").iterdir()
    file.rename(file.with_name(f".{file.name}.01234567"))
    tp.measure_series(series, topics, documents, part=(2, 3), **given)
    monkeypatch.setattr("topic_probe.series.measured._of_checkpoint", None)
    whole = tp.measure_series(series, topics, documents, **given)
    assert same_bytes(whole.save(tmp_path / "whole"), report.save(tmp_path / "alone"))


@pytest.fixture(scope="module")
def kept(series, topics, documents, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    tp.measure_series({0: series[0]}, topics, documents, folder=folder, **FEW)
    return folder


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"documents": slice(5)}, "step 0 was measured with other options"),
        ({"n_permutations": 4}, "step 0 was measured with other options"),
        ({"step": 20}, "step 0 in .* is of .*checkpoint-0: choose another folder="),
    ],
)
def test_a_folder_of_something_else_is_refused(changed, said, kept, series, topics, documents):
    options = {**FEW, **changed}
    documents = documents[options.pop("documents", slice(None))]
    given = {0: series[options.pop("step", 0)]}
    with pytest.raises(ValueError, match=said):
        tp.measure_series(given, topics, documents, folder=kept, **options)


def test_the_command_line_measures_a_folder_of_checkpoints(report, series, topics, tmp_path, capsys):
    words = {f"topic {topic}": small_language.words(topic) for topic in range(small_language.N_TOPICS)}
    (tmp_path / "words.json").write_text(json.dumps(words))
    (tmp_path / "texts.txt").write_text("\n".join(small_language.texts(12, 20, seed=5)))
    root, named = str(series[0].parent), str(tmp_path / "words.json")
    command = ["series", root, "--topics", named, "--corpus", str(tmp_path / "texts.txt"), "--split", "line"]
    out = tmp_path / "out"
    assert main([*command, "--n-permutations", "3", "--out", str(out)]) == 0
    assert "onsets of effect sizes" in capsys.readouterr().out
    found = tp.load_report(out)
    assert found.curve("embeddings") == pytest.approx(report.curve("embeddings"))
    assert found.curve("attention")[:, 0] == pytest.approx(report.curve("attention")[:, 0], rel=1e-6)


def test_what_cannot_be_meant_is_refused_before_anything_is_read(series, topics, documents):
    for given, error, said in (
        ({"series": {}}, TypeError, "a mapping from steps to models, of one at least"),
        ({"documents": iter([])}, ValueError, "can be read only once"),
        ({"documents": None}, ValueError, "attention and states are measured in documents: pass these"),
        ({"part": (0, 2)}, ValueError, "part= came without folder="),
        ({"sums": "new"}, TypeError, "measure_series knows no option 'sums'"),
    ):
        named = {"series": series, "documents": documents, **given}
        with pytest.raises(error, match=said):
            tp.measure_series(named.pop("series"), topics, named.pop("documents"), **named)
