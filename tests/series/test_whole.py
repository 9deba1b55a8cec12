"""Series of checkpoints measured: the numbers of each, what is wrong with some left out, interruptions made up for."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import small_language
import torch
import zoo

import topic_probe as tp
from topic_probe.cli import main
from topic_probe.measure.accumulators import Relations
from topic_probe.series.measured import Plan

STEPS = (0, 10, 20, 40, 80)
FEW = {"n_permutations": 3, "n_resamples": 20}


def checkpoints(root, tokenizer, seed):
    """Folders of a small BERT whose weights go one way."""
    model = zoo.make("bert", seed=seed)
    generator = torch.Generator().manual_seed(seed)
    ways = [torch.randn(parameter.shape, generator=generator) for parameter in model.parameters()]
    before = 0.0
    for step in STEPS:
        way = float(np.log1p(step))
        with torch.no_grad():
            for parameter, direction in zip(model.parameters(), ways, strict=True):
                parameter += 0.01 * (way - before) * direction
        before = way
        model.save_pretrained(root / f"checkpoint-{step}")
        tokenizer.save_pretrained(root / f"checkpoint-{step}")
    return tp.Checkpoints.from_folders(root)


@pytest.fixture(scope="module")
def series(tmp_path_factory, tokenizer):
    return checkpoints(tmp_path_factory.mktemp("series"), tokenizer, 0)


@pytest.fixture(scope="module")
def report(series, topics, documents):
    return tp.measure_series(series, topics, documents, **FEW)


def test_numbers_are_those_of_each_checkpoint_to_the_last_bit(report, series, topics, documents):
    assert report.steps.tolist() == list(STEPS)
    for entry, reports in zip(series, report.reports, strict=True):
        heads = tp.measure_attention(entry.name, topics, documents, **FEW)
        words = tp.measure_embeddings(entry.name, topics, documents, n_resamples=20)
        for field in ("overall", "heads", "layers", "matched", "without_sinks"):
            assert getattr(reports["attention"], field) == getattr(heads, field)
        for field in ("cosine", "dot", "layers", "topics"):
            assert getattr(reports["embeddings"], field) == getattr(words, field)


def test_what_two_steps_differ_by_is_what_comparing_two_models_says(report, series, topics, documents):
    """`compare` pairs by its own way: the numbers, intervals and p-values of differences are the same."""
    names = {"last": series[-1].name, "first": series[0].name}
    said = tp.compare(
        names, topics, documents, measure=["attention"], statistic="effect_size", n_permutations=0
    )
    for name, by in (("attention", "step"), ("layers", "layer"), ("heads", "head")):
        table = report.difference(80, 0, by)
        own = table[~table["measured"].str.startswith(("states", "embeddings"))]
        for column, other in (
            ("difference", "number"),
            ("low", "low"),
            ("high", "high"),
            ("p_value", "p_value"),
        ):
            assert own[column].to_numpy() == pytest.approx(said.differences[name][other], rel=1e-6, abs=1e-9)


def test_curves_of_the_sums_are_those_of_the_reports(report):
    """The sums behind onsets give the very numbers that reports have."""
    for by in ("step", "layer", "head"):
        curves = {one.name: one.values[0] for one in report._curves(by, "effect_size", 0.95)[0]}
        assert list(curves) == list(report.contrasts(by))
        for name, values in curves.items():
            assert values == pytest.approx(report.curve(name, by=by)[:, 0], rel=1e-9, abs=1e-12)


def test_accumulators_of_states_add_up_what_the_report_says(series, topics, documents):
    own = Relations()
    words = tp.measure_embeddings(series[2].name, topics, documents, accumulators=[own], n_resamples=20)
    cells = own.by_source.contrast()
    assert cells[0::2].ratio.tolist() == words.layers["cosine"].ratio.tolist()
    assert cells[1::2].effect_size.tolist() == words.layers["dot"].effect_size.tolist()
    with pytest.raises(ValueError, match="accumulators add up what states say in documents"):
        tp.measure_embeddings(series[2].name, topics, accumulators=[own])


def test_what_is_flagged_and_what_cannot_be_measured_is_no_point_of_a_curve(
    series, topics, documents, tmp_path, monkeypatch
):
    folders = {
        step: shutil.copytree(entry.name, tmp_path / str(step))
        for step, entry in zip(STEPS, series, strict=True)
    }
    shutil.rmtree(folders[20])
    shutil.copytree(folders[40], folders[20])
    at = Plan.at

    def fails_at_10(plan, step, *given, **named):
        if step == 10:
            raise ValueError("nothing but NaN")
        return at(plan, step, *given, **named)

    monkeypatch.setattr(Plan, "at", fails_at_10)
    found = tp.measure_series(tp.Checkpoints.from_folders(folders), topics, documents, **FEW)
    assert found.steps.tolist() == list(STEPS)
    assert [bool(why) for why in found.reasons] == [False, True, True, True, False]
    # Which of the two copies is the right one cannot be known.
    assert found.reasons[1:4] == ("nothing but NaN", "copy of step 40", "copy of step 20")
    assert np.isnan(found.curve("attention")[1:4]).all()
    assert "step 20: copy of step 40" in str(found)
    reasons = set(found.onsets()["reason"])
    assert reasons == {"1 checkpoint after step 0 measured, 3 are needed"}


class KilledError(Exception):
    pass


def test_an_interrupted_series_goes_on_and_gives_the_same_bytes(
    report, series, topics, documents, tmp_path, monkeypatch
):
    at, seen = Plan.at, []

    def noted(plan, step, *given, **named):
        if len(seen) == 2:
            seen.clear()
            raise KilledError
        seen.append(step)
        return at(plan, step, *given, **named)

    monkeypatch.setattr(Plan, "at", noted)
    with pytest.raises(KilledError):
        tp.measure_series(series, topics, documents, folder=tmp_path / "kept", **FEW)
    monkeypatch.setattr(
        Plan, "at", lambda plan, step, *given, **named: seen.append(step) or at(plan, step, *given, **named)
    )
    again = tp.measure_series(series, topics, documents, folder=tmp_path / "kept", **FEW)
    assert seen == list(STEPS[2:])
    assert same_bytes(again.save(tmp_path / "again"), report.save(tmp_path / "whole"))


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
        ({"measure": ["attention"]}, "step 0 was measured with other options"),
        ({"series": 2}, "step 0 was measured with other weights, of another series"),
        ({"several": True}, "holds 'step 0' of another series: choose another folder="),
    ],
)
def test_a_folder_of_something_else_is_refused(changed, said, kept, series, topics, documents):
    options = {**FEW, **changed}
    documents = documents[options.pop("documents", slice(None))]
    given = series[:1]
    if number := options.pop("series", None):
        given = tp.Checkpoints((replace(series[number], step=0),))
    given = {0: given} if options.pop("several", False) else given
    with pytest.raises(ValueError, match=said):
        tp.measure_series(given, topics, documents, folder=kept, **options)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"series": {}}, ValueError, "at least one training, got none"),
        ({"series": "folder"}, TypeError, "series must be Checkpoints, or {seed: Checkpoints}"),
        ({"series": {"a": 1}}, TypeError, "seed of a training must be a whole number"),
        ({"documents": iter([])}, ValueError, "can be read only once"),
        ({"documents": None}, ValueError, "are measured in documents: pass these"),
        ({"part": (0, 2)}, ValueError, "part= came without folder=, in which all processes keep"),
        (
            {"part": (2, 2), "folder": "new"},
            ValueError,
            r"got \(2, 2\): job arrays that count from 1 need i - 1",
        ),
        ({"part": 1, "folder": "new"}, TypeError, "part must be 'env' or a list"),
        ({"sums": "new"}, TypeError, "measure_series knows no option 'sums'"),
        ({"checked": 3}, TypeError, "checked= needs the report of check_checkpoints"),
        ({"n_permutations": -1}, ValueError, "n_permutations"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_read(
    given, error, said, series, topics, documents
):
    named = {"series": series, "documents": documents, **given}
    with pytest.raises(error, match=said):
        tp.measure_series(named.pop("series"), topics, named.pop("documents"), **named)


def test_what_was_checked_is_not_read_again_and_belongs_to_these_checkpoints(series, topics, monkeypatch):
    checked = tp.check_checkpoints(series)
    monkeypatch.setattr("topic_probe.series.whole.check_checkpoints", None)
    found = tp.measure_series(series, topics, measure=["embeddings"], checked=checked, n_resamples=0)
    assert found.weights == checked.weights
    with pytest.raises(ValueError, match="checked= is of other checkpoints"):
        tp.measure_series(series[:2], topics, measure=["embeddings"], checked=checked)


def same_bytes(one, other):
    """Whether two saved results hold the same files."""
    files = [{file.name: file.read_bytes() for file in folder.iterdir()} for folder in (one, other)]
    return files[0] == files[1]


def test_parts_that_are_measured_at_once_leave_the_bytes_of_a_single_process(
    report, series, topics, documents, tmp_path, monkeypatch
):
    checked = tp.check_checkpoints(series)
    given = {"folder": tmp_path / "kept", "checked": checked, **FEW}
    with ThreadPoolExecutor() as threads:
        parts = list(
            threads.map(
                lambda i: tp.measure_series(series, topics, documents, part=(i, 3), **given), range(3)
            )
        )
    assert [part.steps.tolist() for part in parts] == [[0, 40], [10, 80], [20]]
    assert parts[1].curve("attention").tolist() == report.curve("attention")[[1, 4]].tolist()
    assert "part 1 of 3 alone: the same call without part= gives the report of all" in str(parts[1])
    monkeypatch.setattr("topic_probe.series.whole._measured", None)
    whole = tp.measure_series(series, topics, documents, **given)
    assert same_bytes(whole.save(tmp_path / "whole"), report.save(tmp_path / "alone"))
    again = tp.measure_series(series, topics, documents, part=(1, 3), **given)
    assert same_bytes(again.save(tmp_path / "again"), parts[1].save(tmp_path / "first"))
    assert "alone" not in str(whole)


def test_parts_go_through_the_checkpoints_of_all_trainings(series, topics, tmp_path):
    given = {"measure": ["embeddings"], "folder": tmp_path, "n_resamples": 0}
    both = {3: series, 8: series}
    found = [tp.measure_series(both, topics, part=(i, 4), **given) for i in range(4)]
    rows = [list(zip(one.seeds, one.steps.tolist(), strict=True)) for one in found]
    assert rows[1] == [(3, 10), (8, 0), (8, 80)]
    assert sorted(chain(*rows)) == [(seed, step) for seed in both for step in STEPS]


def test_a_part_may_have_nothing_to_measure_and_a_series_not(series, topics, tmp_path):
    for step in (0, 1):
        shutil.copytree(series[step].name, tmp_path / str(step))
        (tmp_path / str(step) / "model.safetensors").write_bytes(b"")
    broken = tp.Checkpoints.from_folders(tmp_path)
    given = {"measure": ["embeddings"], "folder": tmp_path / "kept"}
    found = tp.measure_series(broken, topics, part=(1, 2), **given)
    assert found.steps.tolist() == [1]
    assert "step 1: cannot be read" in str(found)
    assert tp.measure_series(broken, topics, part=(2, 3), **given) is None  # there are two
    with pytest.raises(ValueError, match="nothing could be measured at any step: step 0: cannot be read"):
        tp.measure_series(broken, topics, **given)


def test_what_a_killed_save_has_left_is_measured_anew(series, topics, tmp_path):
    (tmp_path / "step 0").mkdir()
    (tmp_path / "step 0" / "arrays-0123456789abcdef.safetensors").write_bytes(b"half of it")
    given = {"measure": ["embeddings"], "n_resamples": 0}
    found = tp.measure_series(series[:1], topics, folder=tmp_path, **given)
    assert found == tp.measure_series(series[:1], topics, **given)
    assert tp.load_report(tmp_path / "step 0").steps.tolist() == [0]


def test_trainings_of_several_seeds_are_one_report(series, topics, tokenizer, tmp_path):
    other = checkpoints(tmp_path, tokenizer, 1)
    found = tp.measure_series({3: series, 8: other}, topics, measure=["embeddings"], n_resamples=20)
    assert found.seeds == (3,) * 5 + (8,) * 5
    alone = tp.measure_series(other, topics, measure=["embeddings"], n_resamples=20)
    assert found.trainings[8] == alone
    assert found.onsets()["seed"].tolist() == [3, 8, "all"]
    assert found.to_dataframe()["seed"].unique().tolist() == [3, 8]
    ax = found.plot()
    mean = [one.curve("embeddings")[:, 0] for one in found.trainings.values()]
    drawn = next(line for line in ax.lines if line.get_label() == "embeddings")
    assert drawn.get_ydata() == pytest.approx(np.mean(mean, axis=0))


def test_the_command_line_measures_a_folder_of_checkpoints(
    report, series, topics, tmp_path, capsys, monkeypatch
):
    words = {f"topic {topic}": small_language.words(topic) for topic in range(small_language.N_TOPICS)}
    (tmp_path / "words.json").write_text(json.dumps(words))
    texts = small_language.texts(12, 20, seed=5)
    (tmp_path / "texts.txt").write_text("\n".join(text.replace("\n", " ") for text in texts))
    root = str(series[0].name).rsplit("/", 1)[0]
    command = [
        "series",
        root,
        "--topics",
        str(tmp_path / "words.json"),
        "--corpus",
        str(tmp_path / "texts.txt"),
    ]
    options = [
        "--split",
        "line",
        "--n-permutations",
        "3",
        "--n-resamples",
        "20",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main([*command, *options]) == 0
    said = capsys.readouterr().out
    assert "onsets of effect sizes" in said
    found = tp.load_report(tmp_path / "out")
    assert found.curve("embeddings") == pytest.approx(report.curve("embeddings"))
    assert found.curve("attention")[:, 0] == pytest.approx(report.curve("attention")[:, 0], rel=1e-6)
    command += [*options[:-2], "--folder", str(tmp_path / "kept"), "--checked", str(tmp_path / "checked")]
    assert main(["check", "--series", root, "--out", str(tmp_path / "checked")]) == 0
    monkeypatch.setattr("topic_probe.series.whole.check_checkpoints", None)
    for i in range(2):
        assert main([*command, "--part", str(i), "2"]) == 0
        assert f"part {i} of 2 alone" in capsys.readouterr().out
    monkeypatch.setattr("topic_probe.series.whole._measured", None)
    assert main([*command, "--out", str(tmp_path / "of parts")]) == 0
    assert same_bytes(tmp_path / "out", tmp_path / "of parts")
    capsys.readouterr()
    assert main([*command, "--part", "2", "2"]) == 2
    assert "--part must be (i, n) with i from 0 to n - 1" in capsys.readouterr().err
    assert main([*command, "--checked", "one", "two"]) == 2
    assert "--checked needs what was found of each of the 1 SERIES, got 2" in capsys.readouterr().err
    assert main(["series", root, "--topics", "empath", "--measure", "embeddings", "--max-length", "9"]) == 2
    assert "--max-length needs texts: name them with --corpus" in capsys.readouterr().err
