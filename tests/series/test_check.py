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
from topic_probe.series.checkpoints import Checkpoint
from topic_probe.series.files import tensor_files, tensors_of

STEPS = [0, 10, 20, 40, 80, 160, 320]


def on_the_path(step, *, seed=0):
    """A tiny BERT whose weights moved in one direction, with some wandering beside it."""
    model = zoo.make("bert", seed=seed)
    way = np.log1p(step)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            ahead = torch.Generator().manual_seed(1000 * seed + number)
            direction = torch.randn(parameter.shape, generator=ahead)
            beside = torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(7 * step + number + 1)
            )
            parameter += 0.01 * way * direction + 0.002 * (step > 0) * beside
    return model


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A series with nothing wrong, several files to a checkpoint."""
    root = tmp_path_factory.mktemp("series")
    tokenizer = small_language.tokenizer()
    for step in STEPS:
        on_the_path(step).save_pretrained(root / f"checkpoint-{step}", max_shard_size="12KB")
        tokenizer.save_pretrained(root / f"checkpoint-{step}")
    return root


@pytest.fixture
def folders(whole, tmp_path):
    """A copy of it to be broken: step → folder."""
    shutil.copytree(whole, tmp_path / "series")
    return {step: tmp_path / "series" / f"checkpoint-{step}" for step in STEPS}


def flagged(folders):
    return tp.check_checkpoints(tp.Checkpoints.from_folders(folders)).flagged


def weights(step):
    return torch.randn(40, 50, generator=torch.Generator().manual_seed(0)) * (1 + 0.01 * step)


def written(root, change, steps=(2,)):
    """Checkpoints of one matrix at steps 0, 1 and 2, of which some are changed."""
    for step in range(3):
        weight = weights(step)
        if step in steps:
            change(step, weight)
        (root / str(step)).mkdir(exist_ok=True)
        (root / str(step) / "config.json").write_text("{}")
        save_file({"weight": weight}, root / str(step) / "model.safetensors", metadata={"format": "pt"})
    return {step: root / str(step) for step in range(3)}


def shards(folder):
    return sorted(folder.glob("model-*.safetensors"))


def test_a_whole_series_has_several_files_to_a_checkpoint_and_nothing_is_flagged(whole):
    assert len(shards(whole / "checkpoint-0")) >= 3
    report = tp.check_checkpoints(tp.Checkpoints.from_folders(whole))
    assert report.flagged == {}
    assert report.steps.tolist() == STEPS
    assert len(set(report.weights)) == len(STEPS)
    assert "nothing is wrong with these 7 checkpoints" in str(report)


@pytest.mark.parametrize(("low", "high"), [(np.inf, -np.inf), (np.nan, 0.0), (0.0, np.inf)])
def test_numbers_that_are_none_are_found_wherever_they_stand(low, high, tmp_path):
    """Plus and minus infinity are in one sum, where they could cancel."""
    given = written(
        tmp_path, lambda step, weight: weight.view(-1)[3 : 3 + 510 : 509].copy_(torch.tensor([low, high]))
    )
    assert flagged(given) == {2: "NaN or infinity in 1 tensors, such as weight"}


def test_numbers_may_be_so_large_that_their_sums_are_infinite(tmp_path):
    given = written(tmp_path, lambda step, weight: weight.fill_(3e38), steps=(0, 1, 2))
    report = tp.check_checkpoints(tp.Checkpoints.from_folders(given))
    assert report.flagged == {1: "copy of step 0", 2: "copy of step 0"}
    given = written(
        tmp_path, lambda step, weight: weight.sign_().mul_((2 + 0.01 * step) * 1e38), steps=(0, 1, 2)
    )
    assert flagged(given) == {}


def test_a_tokenizer_is_read_once_where_its_files_are_the_same(folders, monkeypatch):
    seen = []
    read = Checkpoint.tokenizer
    monkeypatch.setattr(Checkpoint, "tokenizer", lambda entry: seen.append(entry.step) or read(entry))
    (folders[40] / "trainer_state.json").write_text(json.dumps({"global_step": 40}))
    assert flagged(folders) == {}
    assert seen == [0]
    small_language.tokenizer(reverse=True).save_pretrained(folders[80])
    assert flagged(folders) == {80: "another vocabulary than 6 others"}
    assert seen == [0, 0, 80]


@pytest.mark.parametrize(("source", "place"), [(40, 160), (160, 20), (320, 80), (0, 80), (20, 320), (320, 0)])
def test_of_the_same_weights_at_two_steps_nobody_can_tell_where_they_belong(folders, source, place):
    shutil.rmtree(folders[place])
    shutil.copytree(folders[source], folders[place])
    assert flagged(folders) == {place: f"copy of step {source}", source: f"copy of step {place}"}
    known = tp.Checkpoints.from_folders(folders).without([place])
    assert tp.check_checkpoints(known).flagged == {}


def test_the_first_checkpoint_stays_where_its_weights_have_not_moved_yet(folders):
    shutil.rmtree(folders[10])
    shutil.copytree(folders[0], folders[10])
    assert flagged(folders) == {10: "copy of step 0"}


def test_repeated_weights_are_found_in_another_layout_of_files(folders):
    """Step 80 has in one file what step 20 has in several."""
    repeated = {name: t for file in shards(folders[20]) for name, t in load_file(file).items()}
    for file in (*shards(folders[80]), folders[80] / "model.safetensors.index.json"):
        file.unlink()
    save_file(repeated, folders[80] / "model.safetensors", metadata={"format": "pt"})
    assert flagged(folders) == {20: "copy of step 80", 80: "copy of step 20"}


def test_another_layout_of_files_alone_is_nothing_wrong(folders):
    tensors = {name: t for file in shards(folders[80]) for name, t in load_file(file).items()}
    for file in (*shards(folders[80]), folders[80] / "model.safetensors.index.json"):
        file.unlink()
    torch.save(tensors, folders[80] / "pytorch_model.bin")
    assert flagged(folders) == {}


def test_another_vocabulary_and_another_tokenizer_are_flagged(folders):
    small_language.tokenizer(reverse=True).save_pretrained(folders[40])
    path = folders[160] / "tokenizer.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "normalizer": {"type": "Lowercase"}}))
    assert flagged(folders) == {
        40: "another vocabulary than 5 others",
        160: "another tokenizer (of the same vocabulary) than 5 others",
    }


def test_what_a_tokenizer_was_last_told_about_length_is_nothing_wrong(folders):
    path = folders[160] / "tokenizer.json"
    short = {"direction": "Right", "max_length": 7, "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps({**json.loads(path.read_text()), "truncation": short}, indent=1))
    assert flagged(folders) == {}


def test_a_changed_configuration_is_flagged_but_not_what_does_not_matter(folders):
    for step, change in (
        (20, {"hidden_act": "relu"}),
        (80, {"transformers_version": "4.0", "dtype": "bfloat16"}),
    ):
        path = folders[step] / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert flagged(folders) == {20: "another configuration than 6 others: hidden_act 'relu', not 'gelu'"}


def test_other_tensors_and_numbers_that_are_none_are_flagged(folders):
    file = shards(folders[40])[0]
    tensors = load_file(file)
    name = next(iter(tensors))
    save_file({other: t for other, t in tensors.items() if other != name}, file, metadata={"format": "pt"})
    file = shards(folders[160])[0]
    tensors = load_file(file)
    tensors[name].view(-1)[0] = torch.nan
    save_file(tensors, file, metadata={"format": "pt"})
    found = flagged(folders)
    assert found.keys() == {40, 160}
    assert found[40].startswith(f"other tensors than 6 others (1 missing, 0 more): no {name}")
    assert found[160] == f"NaN or infinity in 1 tensors, such as {name}"


def test_what_cannot_be_read_is_flagged_and_the_others_are_judged(folders):
    shards(folders[20])[0].unlink()
    damaged = shards(folders[80])[1]
    damaged.write_bytes(damaged.read_bytes()[:-100])
    found = flagged(folders)
    assert found.keys() == {20, 80}
    assert "is missing, though model.safetensors.index.json beside it names it" in found[20]
    assert "is not a whole safetensors file" in found[80]


class Bomb:
    def __reduce__(self):
        return print, ("the code in the file ran",)


def test_code_in_a_file_of_weights_is_not_run(folders, capsys):
    for file in (*shards(folders[80]), folders[80] / "model.safetensors.index.json"):
        file.unlink()
    torch.save({"weight": Bomb()}, folders[80] / "pytorch_model.bin")
    found = flagged(folders)
    assert found.keys() == {80}
    assert "may run code" in found[80]
    assert "ran" not in capsys.readouterr().out


def test_an_index_cannot_name_files_elsewhere(tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"weight": "../secret.safetensors"}}))
    with pytest.raises(ValueError, match=r"'\.\./secret\.safetensors', which is not one beside it"):
        tensor_files(tmp_path)


def test_files_of_old_versions_of_torch_are_read(tmp_path):
    state = {"weight": torch.arange(6.0).reshape(2, 3)}
    torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    ((name, tensor),) = tensors_of(tensor_files(tmp_path)[0])
    assert name == "weight"
    assert torch.equal(tensor, state["weight"])


def test_a_training_that_leaves_some_tensors_where_they_are_is_fine(whole, tmp_path):
    """In the first half only the second layer moves, in the second half only the first, in one file."""
    model = zoo.make("bert")
    generator, given = torch.Generator().manual_seed(0), {}
    for step in range(6):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if step and (".1." in name) == (step <= 3):
                    parameter += 0.01 * torch.randn(parameter.shape, generator=generator)
        model.save_pretrained(tmp_path / str(step))
        given[step] = tmp_path / str(step)
    assert flagged(given) == {}


def test_the_states_of_a_toy_are_a_series_and_open_as_they_were():
    world = tp.World(n_topics=2, words_per_topic=3)
    toy = tp.build_toy(tp.ToyConfig(world=world), seed=0)
    start = {name: tensor.detach().clone() for name, tensor in tp.toy_tensors(toy).items()}
    config = tp.TrainConfig(steps=12, measure_every=4, optimizer="adam")
    history = tp.train_toy(toy, config, measure={"kept": tp.toy_tensors})
    checkpoints = tp.Checkpoints.from_history(history)
    assert checkpoints.steps == [0, 4, 8, 12]
    for entry, wanted in ((checkpoints[0], start), (checkpoints[3], tp.toy_tensors(toy))):
        opened = tp.toy_tensors(entry.open())
        assert all(torch.equal(opened[name], wanted[name]) for name in wanted)
    assert tp.check_checkpoints(checkpoints).flagged == {}
    with pytest.raises(ValueError, match="this training has kept no states on its way"):
        tp.Checkpoints.from_history(tp.train_toy(toy, config))


def test_a_report_is_saved_loaded_and_shown(folders, tmp_path):
    shutil.rmtree(folders[80])
    shutil.copytree(folders[20], folders[80])
    report = tp.check_checkpoints(tp.Checkpoints.from_folders(folders))
    assert tp.load_report(report.save(tmp_path / "report")) == report
    table = report.to_dataframe().set_index("step")
    assert table.wrong[80] == "copy of step 20"
    assert table.weights[80] == table.weights[20] != table.weights[40]
    assert "step 80: copy of step 20" in str(report)
    with pytest.raises(ValueError, match="a CheckpointReport has no figure: print it"):
        report.plot()
    page = tp.report_page(tmp_path).html
    assert "step 80" in page
    assert "No figure" not in page


# --- naming checkpoints -------------------------------------------------------------------------------


def test_checkpoints_stand_in_the_order_of_their_steps_and_none_twice(whole):
    given = {step: whole / f"checkpoint-{step}" for step in reversed(STEPS)}
    checkpoints = tp.Checkpoints.from_folders(given)
    assert checkpoints == tp.Checkpoints.from_folders(whole)
    assert checkpoints.without([10, 80]).steps == [0, 20, 40, 160, 320]
    assert checkpoints[1:3].steps == [10, 20]
    with pytest.raises(ValueError, match="there is no step 5"):
        checkpoints.without([5])
    with pytest.raises(ValueError, match="a step is given twice"):
        tp.Checkpoints.from_revisions("a/b", [1, 1])
    with pytest.raises(ValueError, match="needs at least one checkpoint"):
        tp.Checkpoints.from_folders({})


def test_revisions_and_repositories_are_called_by_a_pattern():
    pythia = tp.Checkpoints.from_revisions("EleutherAI/pythia-14m", [512, 0])
    assert [(e.name, e.revision) for e in pythia] == [("EleutherAI/pythia-14m", f"step{n}") for n in (0, 512)]
    berts = tp.Checkpoints.from_repositories("google/multiberts-seed_0-step_{step}k", {20_000: "20", 0: "0"})
    assert berts.steps == [0, 20_000]
    assert [(e.name, e.revision) for e in berts][1] == ("google/multiberts-seed_0-step_20k", None)
    with pytest.raises(ValueError, match=r"the pattern needs \{step\}"):
        tp.Checkpoints.from_repositories("google/multiberts", [1])


def test_a_manifest_lists_folders_or_revisions(whole, tmp_path):
    (tmp_path / "near").symlink_to(whole / "checkpoint-0")
    manifest = tmp_path / "series.json"
    manifest.write_text(json.dumps({"0": "near", "40": str(whole / "checkpoint-40")}))
    assert tp.Checkpoints.from_manifest(manifest).steps == [0, 40]
    listed = [
        {"step": 3, "folder": "near"},
        {"step": 5, "name": "a/b", "revision": "x"},
        {"step": 9, "name": "c/d"},
    ]
    manifest.write_text(json.dumps(listed))
    entries = tp.Checkpoints.from_manifest(manifest)
    assert [(e.step, e.revision) for e in entries] == [(3, None), (5, "x"), (9, None)]
    lines = tmp_path / "revisions.txt"
    lines.write_text("# all branches\nstep0-tokens0B\n\nstep1000-tokens4B\n")
    assert [(e.step, e.revision) for e in tp.Checkpoints.from_manifest(lines, name="allenai/OLMo-1B-hf")] == [
        (0, "step0-tokens0B"),
        (1000, "step1000-tokens4B"),
    ]
    with pytest.raises(ValueError, match="say of which repository with name="):
        tp.Checkpoints.from_manifest(lines)
    manifest.write_text(json.dumps([{"steps": 3}]))
    with pytest.raises(ValueError, match=r"must list .* it has \{'steps': 3\}"):
        tp.Checkpoints.from_manifest(manifest)


def test_folders_that_are_none_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"step 3: there is no .*config\.json"):
        tp.Checkpoints.from_folders({3: tmp_path})
    with pytest.raises(FileNotFoundError, match="holds no folders of checkpoints"):
        tp.Checkpoints.from_folders(tmp_path)


# --- on the command line ------------------------------------------------------------------------------


def test_the_command_line_says_what_is_wrong_and_fails_for_it(folders, tmp_path, capsys):
    root = folders[0].parent
    assert main(["check", "--series", str(root), "--json"]) == 0
    shutil.rmtree(folders[80])
    shutil.copytree(folders[20], folders[80])
    manifest = tmp_path / "series.json"
    manifest.write_text(json.dumps({str(step): str(folder) for step, folder in folders.items()}))
    assert main(["check", "--series", str(manifest), "--out", str(tmp_path / "report")]) == 1
    assert "step 80: copy of step 20" in capsys.readouterr().out
    found = tp.load_report(tmp_path / "report").flagged
    assert found == {20: "copy of step 80", 80: "copy of step 20"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--series", "no/where"], "for a series on the hub say which --steps there are"),
        (["--series", ".", "--steps", "1"], "--steps does not fit here: that is for a series on the hub"),
        (["--series", ".", "--repository", "a/b"], "--repository does not fit here: that is for a file"),
        (
            ["--series", "a/b-{step}", "--steps", "1", "--pattern", "x"],
            "every step has a repository of its own",
        ),
        (["--series", ".", "--dtype", "float32"], "--dtype is for a MODEL"),
        (["model", "--out", "x"], "--out is for the report of a --series"),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_wrong_usage(given, said, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["check", *given]) == 2
    assert said in capsys.readouterr().err
