"""Training the toy: every number against plain torch, what is recorded, resuming, and what goes wrong."""

import json
import math
import pickle
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from plain_toy import masked, plain_training
from safetensors.torch import save_file

import topic_probe as tp
from topic_probe import Masking, ToyConfig, TrainConfig, World, build_toy, storage, toy_tensors, train_toy
from topic_probe.toy.model import set_toy_tensors, toy_logits

WORLD = World(n_topics=3, words_per_topic=4, topics_per_document=2, min_length=8, max_length=20)
SIZE = WORLD.vocabulary_size
OTHER = World(n_topics=6, words_per_topic=2, alpha=0.3, min_length=30, max_length=30)
ALTERNATING = ((3, ("W_V", "b_V")), (2, ("W_K", "W_Q", "b_Q", "b_K")), (1, "W_Q"))


def toy(regime="full", *, seed=0, **options):
    plain = {"regime": regime, "world": WORLD, "dtype": "float64"}
    return build_toy(ToyConfig(**plain | options), seed=seed)


def assert_same_run(one, other):
    """Every number and tensor, to the bit."""
    for part in ("columns", "last_step", "empty_batches", "stopped"):
        assert getattr(one, part) == getattr(other, part)
    parts = [{"steps": run.steps, "table": run.table.nan_to_num(-1), **run.tensors} for run in (one, other)]
    for own, run in zip(parts, (one, other), strict=True):
        for name, series in run.measured.items():
            own |= {f"steps of {name}": series.steps, f"values of {name}": series.values}
    assert parts[0].keys() == parts[1].keys()
    assert all(torch.equal(part, parts[1][name]) for name, part in parts[0].items())


# Every number of a training

ADAM, SQUARED = {"optimizer": "adam"}, {"loss": "squared"}
BY_LAYER = ((2, ("W_V", "W_K.1", "W_E", "b_V", "b_pred")), (1, ("W_K.0", "W_Q", "b_K", "b_Q")))
HOOKED, DEEP = {"forward": "hooked"}, {"d_model": 6, "n_layers": 2, "n_heads": 2}
CASES = {
    "full": ("full", {}, ADAM | {"l2": 0.01}),
    "full, hooked": ("full", {}, SQUARED | HOOKED | {"l2": 0.02}),
    "wide": ("full", {"d_model": 20}, SQUARED),
    "narrow": ("full", {"d_model": 6, "d_attention": 2}, ADAM | SQUARED),
    "narrow attention, hooked": ("full", {"d_attention": 3}, ADAM | HOOKED | {"l2": 0.01}),
    "embedding": ("embedding", {}, ADAM | SQUARED | {"n_documents": 6, "remask": False}),
    "embedding, hooked": ("embedding", {}, HOOKED),
    "random values": ("embedding", {"frozen": {"W_V": "random", "b_V": "random"}, "d_model": 7}, ADAM),
    "frozen attention": ("embedding", {"frozen": {"W_K": "random", "W_Q": "random"}}, SQUARED),
    "value": ("value", {}, ADAM | {"l2": 0.02, "n_documents": 4, "world": OTHER}),
    "value and biases": ("value", {"trained": ("W_V", "b_V", "b_pred")}, SQUARED | {"n_documents": 9}),
    "queries ask for nothing": ("value", {"trained": ("W_K", "b_K", "W_V")}, ADAM),
    "asked by a bias": ("value", {"trained": ("W_K", "W_V"), "frozen": {"b_Q": "random"}}, SQUARED),
    "attention": ("attention", {}, ADAM | SQUARED | {"l2": 0.02, "schedule": ALTERNATING}),
    "attention, hooked": ("attention", {}, HOOKED | {"l2": 0.02, "schedule": ALTERNATING}),
    "keys": ("keys", {}, ADAM | {"masking": Masking(0.03, 0.2, 0.3), "batch_size": 2}),
    "keys, hooked": ("keys", {}, ADAM | SQUARED | HOOKED),
    "two-stage": ("two-stage", {"noise": 0.1}, ADAM | SQUARED | {"l2": 0.01}),
    "deep": ("full", DEEP | {"residual": True, "embedding_scale": 0.5}, ADAM | {"schedule": BY_LAYER}),
}


DEEP_ONE = pytest.param("deep", marks=pytest.mark.generation)


@pytest.mark.parametrize("name", [*(name for name in CASES if name != "deep"), DEEP_ONE])
def test_losses_norms_rotations_gradients_and_tensors_are_those_of_plain_torch(name):
    regime, options, settings = CASES[name]
    plain = {"batch_size": 4, "steps": 25, "seed": 5, "record_gradients": True, "learning_rate": 0.05}
    config = TrainConfig(**plain | settings)
    rows, tensors, n_empty = plain_training(toy(regime, **options), config)
    model = toy(regime, **options)
    history = train_toy(model, config)
    assert history.provenance["forward"] == ("lean" if name != "deep" and "hooked" not in name else "hooked")
    assert history.stopped == "finished"
    assert history.steps.tolist() == list(range(26))
    assert set(history.columns) == set(rows[0])
    for column in history.columns:
        expected = [row[column] for row in rows]
        np.testing.assert_allclose(history[column], expected, rtol=1e-8, atol=1e-10, err_msg=column)
    assert history.empty_batches == n_empty
    assert (n_empty > 5) == (name == "keys")
    for name, value in toy_tensors(model).items():
        tolerance = 1e-10 if name in model.toy_config.trained_tensors else 0.0
        torch.testing.assert_close(value.detach(), tensors[name], rtol=0, atol=tolerance)
        assert torch.equal(history.tensors[name], value)


def test_a_model_that_predicts_nothing_has_the_losses_of_ignorance():
    for loss, expected in (("cross_entropy", math.log(SIZE)), ("squared", 1.0)):
        model = toy("value", init="near-zero", noise=0.0)
        history = train_toy(model, TrainConfig(loss, steps=12, learning_rate=1e-300))
        assert history.loss.tolist() == pytest.approx([expected] * 13)
        assert history["rotation_W_V"].isnan().all()  # zeros have no direction


def test_one_step_worked_by_hand():
    """One masked position shows [MASK] beside words: W_V moves along −2 e_t xᵀ from zero."""
    world = World(n_topics=1, words_per_topic=1, min_length=4, max_length=4)
    masking, seed = Masking(0.3, 0.0, 0.0), 1
    model = build_toy(ToyConfig("value", world=world, init="near-zero", noise=0.0, dtype="float64"))
    config = TrainConfig("squared", learning_rate=0.1, batch_size=1, steps=1, seed=seed, masking=masking)
    train_toy(model, config)
    (share,) = masked(world, 1, masking=masking, seed=seed).chosen.double().mean(dim=1)
    assert 0 < share < 1
    expected = torch.tensor([[0.0, 0.0], [2 * 0.1 * share, 2 * 0.1 * (1 - share)]])
    torch.testing.assert_close(toy_tensors(model)["W_V"].detach(), expected.double())


def test_training_uses_no_global_random_numbers_and_a_seed_decides_everything():
    state = torch.get_rng_state()
    first, again, other = (train_toy(toy(), TrainConfig(steps=5, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(state, torch.get_rng_state())
    assert_same_run(first, again)
    assert not torch.equal(first.loss, other.loss)


def test_a_hook_on_the_model_takes_part_in_the_training():
    model, pattern = toy("value"), "blocks.0.attn.hook_pattern"
    with model.hooks(fwd_hooks=[(pattern, lambda p, hook: torch.zeros_like(p))]):
        history = train_toy(model, TrainConfig(steps=3))
    assert history.provenance["forward"] == "hooked"
    # Nothing is attended to, so W_V never matters.
    assert torch.equal(toy_tensors(model)["W_V"], toy_tensors(toy("value"))["W_V"])


# What is recorded


def test_fewer_rows_are_the_same_rows_and_without_gradients_nothing_else_changes():
    full = {"steps": 23, "optimizer": "adam", "l2": 0.1}
    every = train_toy(toy(), TrainConfig(**full, record_gradients=True))
    some = train_toy(toy(), TrainConfig(**full, record_every=3))
    assert some.steps.tolist() == [0, 3, 6, 9, 12, 15, 18, 21, 23]
    assert some.gradients == {}
    for column in some.columns:
        torch.testing.assert_close(some[column], every[column][some.steps], rtol=0, atol=0, equal_nan=True)
    short = train_toy(toy(), TrainConfig(**full | {"steps": 4}))  # its last loss is that of a step to come
    assert torch.equal(short.loss, every.loss[:5])


def test_measurements_and_logs_get_the_model_and_row_of_their_steps_and_keep_their_shapes():
    calls, rows = [], []

    def numbers(model):
        calls.append(model)
        return {"scalar": np.float64(3), "deep": {"array": np.arange(2), "W": toy_tensors(model)["W_V"]}}

    model = toy("value")
    config = TrainConfig(steps=25, measure_every=10, measure_steps=(3, 25), record_every=5, optimizer="adam")
    measure = {"a": numbers, "b": lambda step, _: step}
    history = train_toy(model, config, measure=measure, log=lambda step, row: rows.append((step, row)))
    assert all(call is model for call in calls)
    assert history.measured["b"].values.tolist() == history.measured["b"].steps.tolist() == [0, 3, 10, 20, 25]
    norms = history.measured["a.deep.W"].values.flatten(1).norm(dim=1)
    assert norms[[0, 2, 3, 4]].tolist() == pytest.approx(history["norm_W_V"][[0, 2, 4, 5]].tolist())
    assert history.measured["a.deep.array"].values.shape == (5, 2)
    frame = history.to_dataframe()
    assert frame.loc[frame["step"] == 3, "a.scalar"].item() == 3
    assert frame["b"].notna().sum() == 5
    assert "a.deep.array" not in frame
    assert [step for step, _ in rows] == [0, 5, 10, 15, 20, 25]
    assert [row["loss"] for _, row in rows] == history.loss.tolist()
    start_and_end = train_toy(toy(), TrainConfig(steps=7), measure=lambda _: 2.0)
    assert start_and_end.measured["measured"].steps.tolist() == [0, 7]


def test_measurements_that_are_no_numbers_or_change_shape_are_refused():
    with pytest.raises(TypeError, match=r"measure must return numbers, arrays or a mapping .*got str"):
        train_toy(toy(), TrainConfig(steps=1), measure=lambda _: "high")
    sizes = iter((2, 3))
    with pytest.raises(ValueError, match=r"shape \(3,\) at step 1, after \(2,\) before"):
        train_toy(toy(), TrainConfig(steps=1), measure=lambda _: np.zeros(next(sizes)))


def test_the_progress_bar_reaches_the_end(capsys):
    train_toy(toy(), TrainConfig(steps=5), progress=True)
    assert "5/5" in capsys.readouterr().err
    train_toy(toy(), TrainConfig(steps=5))
    assert capsys.readouterr().err == ""


# Stopping and going on


FEW = {"n_documents": 9, "batch_size": 2}


def measured_training(model, config, **options):
    return train_toy(model, config, measure=lambda m: toy_tensors(m)["W_V"].norm(), **options)


@pytest.mark.parametrize(
    ("regime", "settings"),
    [
        ("full", {"optimizer": "adam", "l2": 0.01, "record_gradients": True}),
        ("value", {"optimizer": "sgd", "n_documents": 60, "record_every": 3}),
        ("attention", {"optimizer": "adam", **FEW, "remask": False, "masking": Masking(0.02)}),
        ("attention", {"optimizer": "adam", "schedule": ALTERNATING, "learning_rate": 0.1}),
        ("full", {"optimizer": "adam", "forward": "hooked", "learning_rate": 0.02}),
    ],
)
def test_a_training_stopped_by_ctrl_c_and_continued_is_the_one_never_stopped(tmp_path, regime, settings):
    config = TrainConfig(steps=45, measure_every=7, **settings)
    whole = measured_training(toy(regime, dtype="float32"), config)
    path = tmp_path / "folder" / "run.safetensors"

    def stop(step, _row):
        if step in (15, 30):
            signal.raise_signal(signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    first = measured_training(toy(regime, dtype="float32"), config, log=stop, checkpoint=path)
    assert first.stopped == "interrupted after step 16 of 45"
    assert signal.getsignal(signal.SIGINT) is handler
    second = measured_training(toy(regime, seed=9, dtype="float32"), config, log=stop, checkpoint=path)
    assert second.stopped == "interrupted after step 31 of 45"
    third = measured_training(toy(regime, seed=8, dtype="float32"), config, checkpoint=path)
    assert_same_run(third, whole)


def test_a_training_killed_between_checkpoints_goes_on_from_the_last_one(tmp_path):
    config, path = TrainConfig(optimizer="adam", steps=40), tmp_path / "run.safetensors"

    def kill(step, _row):
        if step == 33:
            raise SystemExit

    with pytest.raises(SystemExit):
        train_toy(toy(), config, log=kill, checkpoint=path, checkpoint_every=10)
    steps = []
    resumed = train_toy(toy(seed=3), config, log=lambda step, _: steps.append(step), checkpoint=path)
    assert steps == list(range(30, 41))
    assert_same_run(resumed, train_toy(toy(), config))


def test_an_interrupt_in_the_middle_of_measuring_loses_nothing_and_measures_nothing_twice(tmp_path):
    config, path, calls = TrainConfig(steps=20, measure_every=5), tmp_path / "run.safetensors", []

    def stop_once(_):
        calls.append(None)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return 0.0

    measure = {"first": lambda model: toy_tensors(model)["W_V"].norm(), "second": stop_once}
    first = train_toy(toy(), config, measure=measure, checkpoint=path)
    assert first.stopped == "interrupted at step 10 of 20"
    assert first.steps.tolist() == list(range(11))
    resumed = train_toy(toy(), config, measure=measure, checkpoint=path)
    for series in resumed.measured.values():
        assert series.steps.tolist() == [0, 5, 10, 15, 20]
    assert_same_run(resumed, train_toy(toy(), config, measure=measure))


def test_a_second_ctrl_c_does_not_wait():
    def insist(step, _row):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train_toy(toy(), TrainConfig(steps=5), log=insist)


@pytest.mark.parametrize("begun", [0, 20])
def test_a_finished_training_can_be_made_longer_but_not_shorter(tmp_path, begun):
    path = tmp_path / "run.safetensors"
    config = TrainConfig(optimizer="adam", steps=begun)
    train_toy(toy(), config, checkpoint=path)
    again = train_toy(toy(seed=4), config, checkpoint=path)
    assert (again.last_step, again.stopped) == (begun, "finished")
    longer = replace(config, steps=33)
    assert_same_run(train_toy(toy(seed=4), longer, checkpoint=path), train_toy(toy(), longer))
    with pytest.raises(ValueError, match=f"is of step 33, beyond steps={begun}; raise steps"):
        train_toy(toy(), config, checkpoint=path)


def test_the_checkpoint_of_another_config_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "run.safetensors"
    train_toy(toy(), TrainConfig(steps=3), checkpoint=path)
    content = path.read_bytes()
    with pytest.raises(ValueError, match=r"another train config: learning_rate \(0.01 there, 0.1 here\)"):
        train_toy(toy(), TrainConfig(steps=3, learning_rate=0.1), checkpoint=path)
    with pytest.raises(ValueError, match=r"another toy config: regime \('full' there, 'value' here\)"):
        train_toy(toy("value"), TrainConfig(steps=3), checkpoint=path)
    assert path.read_bytes() == content


class Bomb:
    def __reduce__(self):
        return (Path.touch, (Path("exploded"),))


def test_broken_files_are_refused_by_name_and_the_model_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, model = Path("run.safetensors"), toy(seed=2)
    train_toy(toy(), TrainConfig(steps=3), checkpoint=path)
    content = path.read_bytes()
    flipped = content[:-20] + bytes([content[-20] ^ 1]) + content[-19:]
    save_file({"W": torch.zeros(3)}, "foreign")
    broken = [(content[:length], "truncated or no") for length in (0, 5, len(content) // 2, len(content) - 1)]
    broken += [(data, "damaged: .* checksum") for data in (flipped, Path("foreign").read_bytes())]
    for data, reason in [*broken, (pickle.dumps(Bomb()), "truncated or no")]:
        path.write_bytes(data)
        with pytest.raises(ValueError, match=rf"run\.safetensors is {reason}.*; delete it"):
            train_toy(model, TrainConfig(steps=3), checkpoint=path)
    assert torch.equal(toy_tensors(model)["W_V"], toy_tensors(toy(seed=2))["W_V"])
    assert not Path("exploded").exists()  # a pickle is never opened


def test_a_full_disk_costs_the_checkpoint_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "run.safetensors"
    train_toy(toy(), TrainConfig(steps=3), checkpoint=path)
    content = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.warns(UserWarning, match=r"no checkpoint was written at step 9 .*No space left"):
        history = train_toy(toy(), TrainConfig(steps=9), checkpoint=path)
    assert history.stopped == "finished"
    assert path.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == ["run.safetensors"]


def test_divergence_stops_with_the_last_state_that_had_a_finite_loss(tmp_path):
    path, model = tmp_path / "run.safetensors", toy("value", init="near-zero")
    config = TrainConfig("squared", learning_rate=1e80, steps=50)
    history = train_toy(model, config, checkpoint=path, checkpoint_every=1)
    assert history.stopped.startswith("diverged: the loss of step ")
    assert "lower learning_rate" in history.stopped
    assert 0 < history.last_step < 10
    assert history.steps.tolist() == list(range(history.last_step + 1))
    assert history.loss.isfinite().all()
    value = toy_tensors(model)["W_V"]
    assert value.isfinite().all()
    assert value.norm().item() == pytest.approx(history["norm_W_V"][-1].item())
    assert torch.equal(history.tensors["W_V"], value)
    again = toy("value", init="near-zero", seed=1)
    assert_same_run(train_toy(again, config, checkpoint=path), history)
    set_toy_tensors(model, {"W_V": torch.full((SIZE, SIZE), torch.nan)})
    with pytest.raises(ValueError, match="the loss of step 0 is nan, before any update"):
        train_toy(model, config)


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "hinge"}, "loss must be one of 'cross_entropy', 'squared', got 'hinge'"),
        ({"forward": "fast"}, "forward must be one of 'auto', 'lean', 'hooked'"),
        ({"learning_rate": math.nan}, "learning_rate must be positive and finite, got nan"),
        ({"l2": -0.1}, "l2 is the weight of a penalty and must be at least 0"),
        ({"steps": -1}, "steps must be at least 0"),
        ({"record_every": 0}, "record_every must be at least 1"),
        ({"n_documents": 0}, "n_documents must be at least 1"),
        ({"schedule": (("W_V", 3),)}, r"a phase of schedule must be \(steps, tensors\), .* got \('W_V', 3\)"),
        ({"schedule": ((0, ("W_V",)),)}, "steps of a phase of schedule must be at least 1, got 0"),
        ({"steps": 5, "measure_steps": (6,)}, r"measure_steps must lie in 0..steps=5, got \[6\]"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_impossible_settings_are_refused_with_what_was_needed(options, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**options)


@pytest.mark.parametrize(
    ("options", "settings", "message"),
    [
        ({}, {"world": World()}, "the documents have 101 token ids, the model 13"),
        ({}, {"masking": Masking(0.0)}, "with p_mask=0 nothing is masked"),
        ({}, {"batch_size": 1, "masking": Masking(1e-12)}, "1000 batches in a row had nothing masked"),
        ({"residual": True}, {"forward": "lean"}, "the lean form is for one layer and head"),
        ({"trained": ()}, {}, "every tensor of the model is frozen"),
        ({}, {"schedule": ((1, ("W_V", "b_V")), (1, ("W_K", "W_Q")))}, "schedule moves 'b_V', but trained"),
        ({}, {"schedule": ((1, ("W_V",)), (1, ("W_K",)))}, "schedule never moves W_Q; name it in a phase"),
    ],
)
def test_settings_that_do_not_fit_the_model_are_refused(options, settings, message):
    with pytest.raises(ValueError, match=message):
        train_toy(toy("two-stage", **options), TrainConfig(steps=1, **settings))


def test_other_models_and_no_steps_between_checkpoints_are_refused():
    with pytest.raises(TypeError, match="needed a toy transformer"):
        train_toy(torch.nn.Linear(2, 2), TrainConfig(steps=1))
    with pytest.raises(ValueError, match="checkpoint_every must be at least 1"):
        train_toy(toy(), TrainConfig(steps=1), checkpoint_every=0)


def test_settings_survive_json():
    for config in (
        TrainConfig(),
        TrainConfig(world=WORLD, masking=Masking(0.2), measure_steps=(1, 2), n_documents=7, l2=0.5),
        TrainConfig(schedule=[(3, ["W_V"]), (2, "W_K")]),
    ):
        assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
        assert hash(config) == hash(replace(config))


# The history on disk


def test_a_saved_history_comes_back_whole_with_its_model_and_is_not_overwritten_unasked(tmp_path):
    config = TrainConfig(steps=13, record_every=2, measure_steps=(4,), record_gradients=True)
    model = toy(d_attention=2)
    history = train_toy(model, config, measure=lambda m: {"E": toy_tensors(m)["W_E"], "n": 2})
    folder = tmp_path / "runs" / "first"
    history.save(folder)
    loaded = tp.load_report(folder)
    assert_same_run(loaded, history)
    assert (loaded.toy, loaded.train, loaded.provenance) == (history.toy, history.train, history.provenance)
    ids = torch.arange(6)[None]
    assert torch.equal(toy_logits(loaded.model(), ids), toy_logits(model, ids))
    with pytest.raises(FileExistsError, match="first is not empty and is not overwritten unasked"):
        history.save(folder)
    storage.save(tmp_path / "report", "agreement", {})
    with pytest.raises(ValueError, match="holds 'agreement', not 'history'"):
        tp.History.load(tmp_path / "report")


def test_a_history_prints_as_a_few_lines_and_names_its_columns():
    history = train_toy(toy("value"), TrainConfig(steps=2))
    head = "History of 'value' training: cross_entropy, sgd 0.01, step 2 of 2; finished\nloss "
    assert repr(history).startswith(head)
    assert "step 2 of 2; finished" in history._repr_html_()
    with pytest.raises(KeyError, match="no column 'norm_W_X'; there are loss, penalty, norm_W_E"):
        history["norm_W_X"]


# What is learned


@pytest.mark.parametrize("topics_per_document", [2, 3])
def test_a_short_value_training_finds_blocks_where_documents_have_topics_of_their_own(topics_per_document):
    world = replace(WORLD, topics_per_document=topics_per_document)
    model = toy("value", dtype="float32", world=world)
    history = train_toy(model, TrainConfig("squared", "adam", 0.01, steps=300))
    W = toy_tensors(model)["W_V"].detach()[1:, 1:]
    topic = torch.arange(WORLD.n_words) // WORLD.words_per_topic
    other = topic[:, None] != topic
    mates = ~other & ~torch.eye(12, dtype=torch.bool)  # whatever happens, a kept word is its own evidence
    assert (W[mates].mean() > W[other].mean() + 0.1) == (topics_per_document == 2)
    assert history.loss[-50:].mean() < history.loss[:5].mean()


@pytest.mark.slow
def test_embedding_training_ends_at_the_conditions_of_theorem_1():
    world = World(n_topics=5, words_per_topic=3, topics_per_document=2, min_length=4000, max_length=4000)
    model = build_toy(ToyConfig("embedding", world=world))
    for learning_rate, steps in ((1.0, 1500), (0.1, 500)):
        config = TrainConfig("squared", "sgd", learning_rate, batch_size=10, steps=steps, record_every=100)
        history = train_toy(model, config)
    report = tp.measure_agreement(model, loss="squared", n_documents=4, attention=False)
    assert report.theorem == "Theorem 1"
    assert report.family_distance < 0.01
    assert report.worst_residual < 0.02
    floor = tp.theory.loss_floor(world, Masking(), regime="embedding").value
    assert history.loss[-5:].mean().item() == pytest.approx(floor, rel=2e-3)
