"""Series of checkpoints made by hand, each broken in one way: that is flagged, and only that."""

import json
import shutil

import numpy as np
import pytest
import small_language
import torch
import zoo
from safetensors.torch import load_file, save_file

import topic_probe as tp
from topic_probe.cli import main


@pytest.fixture
def folders(series, tmp_path):
    """A copy of the series to be broken: step → folder."""
    return {step: shutil.copytree(own, tmp_path / "series" / own.name) for step, own in series.items()}


def copied(folders, source, place):
    shutil.rmtree(folders[place])
    shutil.copytree(folders[source], folders[place])


def rewritten(file, change):
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))


def shards(folder):
    return sorted(folder.glob("model-*.safetensors"))


def without_shards(folder):
    tensors = {name: tensor for file in shards(folder) for name, tensor in load_file(file).items()}
    for file in (*shards(folder), folder / "model.safetensors.index.json"):
        file.unlink()
    return tensors


def test_a_whole_series_has_nothing_flagged_whatever_its_files_are(series, folders, tmp_path):
    """The layout of files, versions, and what a tokenizer was last told about length."""
    assert len(shards(folders[0])) >= 3
    assert tp.check_checkpoints(series) == {}
    torch.save(without_shards(folders[80]), folders[80] / "pytorch_model.bin")
    old = {"_use_new_zipfile_serialization": False}
    torch.save(without_shards(folders[10]), folders[10] / "pytorch_model.bin", **old)
    rewritten(folders[20] / "config.json", {"transformers_version": "4.0"})
    short = {"direction": "Right", "max_length": 7, "strategy": "LongestFirst", "stride": 0}
    rewritten(folders[40] / "tokenizer.json", {"truncation": short})
    assert tp.check_checkpoints(folders) == {}
    copied(folders, 0, 10)  # the first stays where its weights have not moved yet
    assert tp.check_checkpoints(folders) == {10: "copy of step 0"}


@pytest.mark.parametrize(("source", "place"), [(20, 40), (80, 0)])
def test_of_the_same_weights_at_two_steps_nobody_can_tell_where_they_belong(folders, source, place):
    copied(folders, source, place)
    if place == 40:  # in another layout of files
        save_file(without_shards(folders[40]), folders[40] / "model.safetensors", metadata={"format": "pt"})
    assert tp.check_checkpoints(folders) == {place: f"copy of step {source}", source: f"copy of step {place}"}
    del folders[place]
    assert tp.check_checkpoints(folders) == {}


@pytest.mark.parametrize(("low", "high"), [(np.inf, -np.inf), (np.nan, 0.0), (0.0, np.inf)])
def test_numbers_that_are_none_are_found_wherever_they_stand(low, high):
    """Plus and minus infinity are in one sum, where they could cancel."""
    models = {step: zoo.make("bert", seed=step) for step in range(3)}
    with torch.no_grad():
        models[2].bert.encoder.layer[1].output.dense.weight.view(-1)[[3, 40]] = torch.tensor([low, high])
    (reason,) = tp.check_checkpoints(models).values()
    assert "NaN" in reason


def test_another_vocabulary_tokenizer_configuration_and_other_tensors_are_flagged(folders):
    small_language.tokenizer(reverse=True).save_pretrained(folders[0])
    rewritten(folders[10] / "tokenizer.json", {"normalizer": {"type": "Lowercase"}})
    rewritten(folders[20] / "config.json", {"hidden_act": "relu"})
    file = shards(folders[40])[0]
    _, *others = tensors = load_file(file)
    save_file({other: tensors[other] for other in others}, file, metadata={"format": "pt"})
    folders[160] = tp.open_model(folders[80], dtype=torch.float64)
    found = tp.check_checkpoints(folders)
    assert "lacks" in found.pop(40)
    assert found == {
        0: "another tokenizer than 3 others",
        10: "another tokenizer than 3 others",
        20: "another configuration than 4 others: hidden_act relu, not gelu",
        160: "another tensors than 4 others",
    }


class Bomb:
    def __reduce__(self):
        return print, ("the code in the file ran",)


def test_what_cannot_be_read_is_flagged_the_others_are_judged_and_no_code_is_run(folders, capsys):
    shards(folders[10])[0].unlink()
    damaged = shards(folders[20])[1]
    damaged.write_bytes(damaged.read_bytes()[:-100])
    without_shards(folders[80])
    torch.save({"weight": Bomb()}, folders[80] / "pytorch_model.bin")
    found = tp.check_checkpoints(folders)
    assert found.keys() == {10, 20, 80}
    assert "ran" not in capsys.readouterr().out


def test_the_command_line_says_what_is_wrong_and_fails_for_it(folders, capsys):
    root = str(folders[0].parent)
    assert main(["check", root, "--checkpoints", "--json"]) == 0
    copied(folders, 20, 80)
    assert main(["check", root, "--checkpoints"]) == 1
    assert "step 80: copy of step 20" in capsys.readouterr().out
    assert main(["check", root, "--steps", "1"]) == 2
    assert "--steps is for a repository on the hub" in capsys.readouterr().err


# --- naming checkpoints -------------------------------------------------------------------------------


def test_checkpoints_are_found_by_the_step_in_their_names(tmp_path):
    for name in ("checkpoint-500", "step_2k", "global_step7 of 1M", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    found = tp.checkpoints_in(tmp_path)
    assert {step: folder.name for step, folder in found.items()} == {
        500: "checkpoint-500", 2000: "step_2k", 1_000_000: "global_step7 of 1M",
    }  # fmt: skip
    assert list(found) == sorted(found)
    (tmp_path / "2000").mkdir()
    (tmp_path / "2000" / "config.json").write_text("{}")
    for call, error, said in (
        (lambda: tp.checkpoints_in(tmp_path), ValueError, "both name step 2000"),
        (lambda: tp.checkpoints_in(tmp_path / "notes"), FileNotFoundError, "no folders of checkpoints"),
        (lambda: tp.revisions("a/b", [1], pattern="step"), ValueError, r"the pattern needs \{step\}"),
        (lambda: tp.check_checkpoints({}), TypeError, "a mapping from steps to models, of one at least"),
    ):
        with pytest.raises(error, match=said):
            call()
