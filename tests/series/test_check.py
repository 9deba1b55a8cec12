"""Series of checkpoints made by hand, each broken in one way: that is flagged, and only that."""

import json
import shutil

import numpy as np
import pytest
import small_language
import torch
from safetensors.torch import load_file, save_file

import topic_probe as tp
from topic_probe.cli import main


@pytest.fixture
def folders(series, tmp_path):
    """A copy of the series to be broken: step → folder."""
    return {
        own.step: shutil.copytree(own.name, tmp_path / "series" / f"checkpoint-{own.step}") for own in series
    }


def flagged(folders):
    return tp.check_checkpoints(tp.Checkpoints.from_folders(folders)).flagged


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


def matrices(root, *given):
    """Checkpoints of one matrix each."""
    for step, weight in enumerate(given):
        (root / str(step)).mkdir(exist_ok=True)
        (root / str(step) / "config.json").write_text("{}")
        save_file({"weight": weight}, root / str(step) / "model.safetensors", metadata={"format": "pt"})
    return {step: root / str(step) for step in range(len(given))}


def test_a_whole_series_has_nothing_flagged_whatever_its_files_are(series, folders, tmp_path):
    """The layout of files, versions, and what a tokenizer was last told about length."""
    assert len(shards(folders[0])) >= 3
    report = tp.check_checkpoints(series)
    assert (report.flagged, report.steps.tolist()) == ({}, series.steps)
    assert len({*report.weights}) == 5
    assert "nothing is wrong with these 5 checkpoints" in str(report)
    torch.save(without_shards(folders[80]), folders[80] / "pytorch_model.bin")
    old = {"_use_new_zipfile_serialization": False}
    torch.save(without_shards(folders[10]), folders[10] / "pytorch_model.bin", **old)
    rewritten(folders[20] / "config.json", {"transformers_version": "4.0", "dtype": "bfloat16"})
    short = {"direction": "Right", "max_length": 7, "strategy": "LongestFirst", "stride": 0}
    rewritten(folders[40] / "tokenizer.json", {"truncation": short})
    assert flagged(folders) == {}
    copied(folders, 0, 10)  # the first stays where its weights have not moved yet
    assert flagged(folders) == {10: "copy of step 0"}


@pytest.mark.parametrize(("source", "place"), [(20, 40), (80, 0)])
def test_of_the_same_weights_at_two_steps_nobody_can_tell_where_they_belong(folders, source, place):
    copied(folders, source, place)
    if place == 40:  # in another layout of files
        save_file(without_shards(folders[40]), folders[40] / "model.safetensors", metadata={"format": "pt"})
    assert flagged(folders) == {place: f"copy of step {source}", source: f"copy of step {place}"}
    known = tp.Checkpoints.from_folders(folders).without([place])
    assert tp.check_checkpoints(known).flagged == {}


@pytest.mark.parametrize(("low", "high"), [(np.inf, -np.inf), (np.nan, 0.0), (0.0, np.inf)])
def test_numbers_that_are_none_are_found_wherever_they_stand(low, high, tmp_path):
    """Plus and minus infinity are in one sum, where they could cancel; numbers may be as large as they like."""
    given = [torch.randn(40, 50, generator=torch.Generator().manual_seed(n)).sign() * 2e38 for n in range(3)]
    given[2].view(-1)[3 : 3 + 510 : 509].copy_(torch.tensor([low, high]))
    assert flagged(matrices(tmp_path, *given)) == {2: "NaN or infinity in 1 tensors, such as weight"}


def test_another_vocabulary_tokenizer_configuration_and_other_tensors_are_flagged(folders):
    small_language.tokenizer(reverse=True).save_pretrained(folders[0])
    rewritten(folders[10] / "tokenizer.json", {"normalizer": {"type": "Lowercase"}})
    rewritten(folders[20] / "config.json", {"hidden_act": "relu"})
    file = shards(folders[40])[0]
    name, *others = tensors = load_file(file)
    save_file({other: tensors[other] for other in others}, file, metadata={"format": "pt"})
    found = flagged(folders)
    assert found.pop(40).startswith(f"other tensors than 4 others (1 missing, 0 more): no {name}")
    assert found == {
        0: "another vocabulary than 3 others",
        10: "another tokenizer (of the same vocabulary) than 3 others",
        20: "another configuration than 4 others: hidden_act 'relu', not 'gelu'",
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
    index = json.loads((folders[40] / "model.safetensors.index.json").read_text())
    names = dict.fromkeys(index["weight_map"], "../secret.safetensors")
    rewritten(folders[40] / "model.safetensors.index.json", {"weight_map": names})
    found = flagged(folders)
    assert found.keys() == {10, 20, 40, 80}
    assert "is missing, though model.safetensors.index.json beside it names it" in found[10]
    assert "is not a whole safetensors file" in found[20]
    assert "'../secret.safetensors', which is not one beside it" in found[40]
    assert "may run code" in found[80]
    assert "ran" not in capsys.readouterr().out


def test_the_states_of_a_toy_are_a_series_and_open_as_they_were():
    world = tp.World(n_topics=2, words_per_topic=3)
    toy = tp.build_toy(tp.ToyConfig(world=world), seed=0)
    start = {name: tensor.detach().clone() for name, tensor in tp.toy_tensors(toy).items()}
    config = tp.TrainConfig(steps=8, measure_every=4, optimizer="adam")
    checkpoints = tp.Checkpoints.from_history(tp.train_toy(toy, config, measure={"kept": tp.toy_tensors}))
    assert checkpoints.steps == [0, 4, 8]
    for entry, wanted in ((checkpoints[0], start), (checkpoints[2], tp.toy_tensors(toy))):
        opened = tp.toy_tensors(entry.open())
        assert all(torch.equal(opened[name], wanted[name]) for name in wanted)
    assert tp.check_checkpoints(checkpoints).flagged == {}
    with pytest.raises(ValueError, match="this training has kept no states on its way"):
        tp.Checkpoints.from_history(tp.train_toy(toy, config))


def test_the_command_line_says_what_is_wrong_saves_it_and_fails_for_it(folders, tmp_path, capsys):
    assert main(["check", "--series", str(folders[0].parent), "--json"]) == 0
    copied(folders, 20, 80)
    manifest, place = tmp_path / "series.json", tmp_path / "report"
    manifest.write_text(json.dumps({str(step): str(folder) for step, folder in folders.items()}))
    assert main(["check", "--series", str(manifest), "--out", str(place)]) == 1
    assert "step 80: copy of step 20" in capsys.readouterr().out
    assert main(["check", "--series", str(manifest), "--steps", "1"]) == 2
    assert "--steps does not fit here" in capsys.readouterr().err
    report = tp.load_report(place)
    assert report.flagged == {20: "copy of step 80", 80: "copy of step 20"}


# --- naming checkpoints -------------------------------------------------------------------------------


def test_checkpoints_stand_in_the_order_of_their_steps_and_are_called_by_folder_revision_or_pattern(series):
    given = {entry.step: entry.name for entry in reversed(series)}
    assert tp.Checkpoints.from_folders(given) == series
    assert series.without([10, 80]).steps == [0, 20, 40]
    assert series[1:3].steps == [10, 20]
    pythia = tp.Checkpoints.from_revisions("EleutherAI/pythia-14m", [512, 0])
    assert [(e.name, e.revision) for e in pythia] == [("EleutherAI/pythia-14m", f"step{n}") for n in (0, 512)]
    berts = tp.Checkpoints.from_repositories("google/multiberts-seed_0-step_{step}k", {20_000: "20", 0: "0"})
    assert [(e.step, e.name) for e in berts][1] == (20_000, "google/multiberts-seed_0-step_20k")


def test_a_manifest_lists_folders_or_revisions(series, tmp_path):
    (tmp_path / "near").symlink_to(series[0].name)
    manifest, lines = tmp_path / "series.json", tmp_path / "revisions.txt"
    manifest.write_text(json.dumps({"0": "near", "40": str(series[3].name)}))
    assert tp.Checkpoints.from_manifest(manifest).steps == [0, 40]
    listed = [{"step": 3, "folder": "near"}, {"step": 5, "name": "a/b", "revision": "x"}]
    manifest.write_text(json.dumps(listed))
    found = tp.Checkpoints.from_manifest(manifest)
    assert [(e.step, e.revision) for e in found] == [(3, None), (5, "x")]
    lines.write_text("# all branches\nstep0-tokens0B\n\nstep1000-tokens4B\n")
    found = tp.Checkpoints.from_manifest(lines, name="allenai/OLMo-1B-hf")
    assert [(e.step, e.revision) for e in found] == [(0, "step0-tokens0B"), (1000, "step1000-tokens4B")]
    with pytest.raises(ValueError, match="say of which repository with name="):
        tp.Checkpoints.from_manifest(lines)


def test_what_names_no_series_is_refused(series, tmp_path):
    for call, error, said in (
        (lambda: series.without([5]), ValueError, "there is no step 5"),
        (lambda: tp.Checkpoints.from_revisions("a/b", [1, 1]), ValueError, "a step is given twice"),
        (lambda: tp.Checkpoints.from_folders({}), ValueError, "needs at least one checkpoint"),
        (lambda: tp.Checkpoints.from_repositories("a/b", [1]), ValueError, r"the pattern needs \{step\}"),
        (
            lambda: tp.Checkpoints.from_folders({3: tmp_path}),
            FileNotFoundError,
            "step 3: there is no .*config",
        ),
    ):
        with pytest.raises(error, match=said):
            call()
