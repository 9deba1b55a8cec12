"""Toys trained side by side: each one's training is the one it has alone, whatever happens to the others."""

import json
import signal
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open

from topic_probe.toy.masking import Masking
from topic_probe.toy.model import REGIMES, ToyConfig, build_toy, set_toy_tensors, toy_tensors
from topic_probe.toy.world import World, zipf_words
from topic_probe.train import loop
from topic_probe.train.history import TrainConfig
from topic_probe.train.loop import train_toy, train_toys
from topic_probe.train.stack import ToyStack

WORLD = World(n_topics=3, words_per_topic=4, topics_per_document=2, min_length=8, max_length=20)
OTHERS = (
    WORLD,
    World(3, 4, min_length=8, max_length=20),
    World(3, 4, word_probabilities=zipf_words(3, 4), min_length=30, max_length=40),
    WORLD,
)


def toy(regime="full", *, seed=0, **options):
    return build_toy(
        ToyConfig(**{"regime": regime, "world": WORLD, "dtype": "float64", **options}), seed=seed
    )


def setting(n=3, regime="full", **options):
    """Models and configs that differ in their seeds."""
    config = TrainConfig(**{"optimizer": "adam", "batch_size": 5, "steps": 12, **options})
    return [toy(regime, seed=i) for i in range(n)], [replace(config, seed=10 + i) for i in range(n)]


def assert_close(one, other, tolerance=1e-11):
    assert one.columns == other.columns
    assert torch.equal(one.steps, other.steps)
    torch.testing.assert_close(one.table, other.table, rtol=tolerance, atol=tolerance, equal_nan=True)
    for name, value in one.tensors.items():
        torch.testing.assert_close(value, other.tensors[name], rtol=tolerance, atol=tolerance)
    assert one.measured.keys() == other.measured.keys()
    for name, series in one.measured.items():
        assert torch.equal(series.steps, other.measured[name].steps)
        torch.testing.assert_close(series.values, other.measured[name].values, rtol=tolerance, atol=tolerance)
    assert (one.last_step, one.empty_batches) == (other.last_step, other.empty_batches)
    assert (one.toy, one.train, one.provenance) == (other.toy, other.train, other.provenance)


def norm_of_values(model):
    return toy_tensors(model)["W_V"].norm()


@pytest.fixture
def stacks(monkeypatch):
    """How many toys each stack has had."""
    sizes, build = [], ToyStack.__init__

    def counted(self, tasks):
        sizes.append(len(tasks))
        build(self, tasks)

    monkeypatch.setattr(ToyStack, "__init__", counted)
    return sizes


@pytest.mark.parametrize(
    ("regime", "loss"),
    [*((regime, "cross_entropy") for regime in REGIMES), ("full", "squared"), ("value", "squared")],
)
def test_each_training_is_the_one_it_would_be_alone(regime, loss, stacks):
    options = {"loss": loss, "l2": 0.01, "measure_every": 10, "record_every": 3}
    models, configs = setting(4, regime, **options)
    configs = [replace(config, world=world) for config, world in zip(configs, OTHERS, strict=True)]
    together = train_toys(models, configs, measure=norm_of_values)
    assert stacks == [4]
    for model, alone, config, history in zip(models, setting(4, regime)[0], configs, together, strict=True):
        assert_close(history, train_toy(alone, config, measure=norm_of_values))
        assert history.stopped == "finished"
        for name, value in toy_tensors(model).items():
            assert torch.equal(value, history.tensors[name])


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "sgd", "learning_rate": 0.1, "record_gradients": True},
        {"n_documents": 12},
        {"n_documents": 4, "batch_size": 5},
        {"n_documents": 12, "remask": False},
        {"schedule": ((3, ("W_V", "b_V")), (2, ("W_E", "W_K", "W_Q", "b_K", "b_Q", "b_pred")))},
    ],
)
def test_every_way_of_drawing_and_recording_is_that_of_a_single_training(options, stacks):
    models, configs = setting(**options)
    together = train_toys(models, configs)
    assert stacks == [3]
    for alone, config, history in zip(setting()[0], configs, together, strict=True):
        assert_close(history, train_toy(alone, config))


def test_in_float32_the_first_losses_are_equal_to_rounding(stacks):
    models = [toy(seed=seed, dtype="float32") for seed in range(3)]
    configs = [TrainConfig(optimizer="adam", steps=5, seed=seed) for seed in range(3)]
    together = train_toys(models, configs)
    assert stacks == [3]
    for seed, history in enumerate(together):
        alone = train_toy(toy(seed=seed, dtype="float32"), configs[seed])
        torch.testing.assert_close(history.loss, alone.loss, rtol=1e-6, atol=0)


def test_batches_with_nothing_masked_are_drawn_again_for_the_one_that_had_them(stacks):
    models, configs = setting(batch_size=1)
    configs = [
        replace(config, masking=Masking(p)) for config, p in zip(configs, (0.02, 0.02, 0.1), strict=True)
    ]
    together = train_toys(models, configs)
    assert stacks == [3]
    assert min(history.empty_batches for history in together[:2]) > 5
    for alone, config, history in zip(setting()[0], configs, together, strict=True):
        assert_close(history, train_toy(alone, config))
    hopeless = [replace(config, masking=Masking(1e-12)) for config in configs]
    with pytest.raises(ValueError, match="1000 batches in a row had nothing masked; raise p_mask=1e-12"):
        train_toys(models, hopeless)


def test_what_is_not_alike_is_trained_one_after_another(stacks):
    models = [
        *(toy(seed=seed) for seed in (0, 1)),
        *(toy("value", seed=seed) for seed in (0, 1, 2)),
        *(toy(residual=True, seed=seed) for seed in (0, 1)),
        toy(seed=2, d_model=6),
        *(toy(seed=seed) for seed in (2, 3)),
    ]
    configs = [TrainConfig(steps=6, seed=seed) for seed in range(10)]
    configs[1] = replace(configs[1], learning_rate=0.02)
    hooked = replace(configs[9], forward="hooked")
    together = train_toys(models, [*configs[:9], hooked])
    assert stacks == [2, 3]  # full at the usual rate, value
    assert [history.toy.regime for history in together] == ["full"] * 2 + ["value"] * 3 + ["full"] * 5
    assert [history.train.seed for history in together] == list(range(10))
    assert together[5].provenance["forward"] == together[9].provenance["forward"] == "hooked"
    assert_close(together[3], train_toy(toy("value", seed=1), configs[3]))
    # Alone by itself: the same bits.
    assert torch.equal(together[7].loss, train_toy(toy(seed=2, d_model=6), configs[7]).loss)
    assert_close(together[8], train_toy(toy(seed=2), configs[8]))


def test_measurements_see_each_model_with_the_values_of_its_step():
    models, configs = setting(measure_every=5)
    seen = []
    together = train_toys(models, configs, measure=lambda model: seen.append(model) or norm_of_values(model))
    assert [models.index(model) for model in seen] == [0, 1, 2] * 4
    for history in together:
        assert history.measured["measured"].values.tolist() == pytest.approx(
            history["norm_W_V"][[0, 5, 10, 12]].tolist()
        )


# Stopping and going on


def paths_in(folder, n=3):
    return [folder / f"{i}.safetensors" for i in range(n)]


def alone(**options):
    models, configs = setting(**options)
    return [train_toy(model, config) for model, config in zip(models, configs, strict=True)]


def test_a_single_training_goes_on_where_a_stack_has_stopped_and_the_reverse(tmp_path, stacks):
    paths = paths_in(tmp_path)
    models, configs = setting(steps=7)
    train_toys(models, configs, checkpoints=paths)
    models, configs = setting()
    second = train_toy(models[1], configs[1], checkpoint=paths[1])
    whole = alone()
    assert_close(second, whole[1])
    together = train_toys(*setting(), checkpoints=paths)
    assert stacks == [3, 2]  # all; the two that were not finished
    for history, expected in zip(together, whole, strict=True):
        assert_close(history, expected)
    assert torch.equal(together[1].table.nan_to_num(-1), second.table.nan_to_num(-1))
    longer = train_toys(*setting(steps=15), checkpoints=[paths[0], None, paths[2]])
    assert stacks == [3, 2, 2]
    for history, expected in zip(longer, alone(steps=15), strict=True):
        assert_close(history, expected)


def test_checkpoints_are_written_on_the_way(tmp_path):
    paths = paths_in(tmp_path)

    def fail_later(model):
        if len(calls) == 3:  # those of step 0 are past
            raise RuntimeError("enough")
        calls.append(model)
        return 0.0

    calls = []
    models, configs = setting(measure_steps=(11,))
    with pytest.raises(RuntimeError, match="enough"):
        train_toys(models, configs, measure=fail_later, checkpoints=paths, checkpoint_every=5)
    for path in paths:
        with safe_open(path, "pt") as file:
            assert json.loads(file.metadata()["about"])["step"] == 10
    models, configs = setting(measure_steps=(11,))
    resumed = train_toys(models, configs, measure=lambda _: 0.0, checkpoints=paths)
    for history, expected in zip(resumed, alone(), strict=True):
        assert torch.equal(history.steps, expected.steps)
        torch.testing.assert_close(history.loss, expected.loss, rtol=1e-11, atol=0)


@pytest.mark.parametrize("writes", range(7))
def test_a_kill_between_the_files_of_a_stack_changes_no_bit_of_what_comes_out(writes, tmp_path, monkeypatch):
    """Two files of three at step 5 and three of step 10 would make a stack of another size, and another last bit."""
    paths, given = paths_in(tmp_path), {"steps": 12, "dtype": "float32"}
    dtype = given.pop("dtype")

    def train():
        models, configs = setting(**given)
        models = [toy(seed=i, dtype=dtype) for i in range(3)]
        return train_toys(models, configs, checkpoints=paths, checkpoint_every=5)

    whole = train()
    for path in paths:
        path.unlink()
    write, done = loop._write_checkpoint, []

    def killed(*args):
        if len(done) == writes:
            raise SystemExit
        write(*args)
        done.append(args[0])

    with monkeypatch.context() as patched:
        patched.setattr(loop, "_write_checkpoint", killed)
        with pytest.raises(SystemExit):
            train()
    assert len(done) == writes
    for one, other in zip(train(), whole, strict=True):
        assert_close(one, other, tolerance=0)


def test_a_file_of_a_stack_that_is_whole_is_not_trained_again_beside_others(tmp_path, stacks):
    """Another seed beside three that are through is no kill."""
    paths = paths_in(tmp_path, 4)
    models, configs = setting(4)
    train_toys(models[:3], configs[:3], checkpoints=paths[:3])
    before = [path.read_bytes() for path in paths[:3]]
    models, configs = setting(4)
    train_toys(models, configs, checkpoints=paths)
    assert stacks == [3, 3]  # the second takes no step
    assert [path.read_bytes() for path in paths[:3]] == before


def test_ctrl_c_stops_all_and_the_next_call_goes_on(tmp_path, stacks):
    paths = paths_in(tmp_path, 5)

    def both():
        models, configs = setting(measure_steps=(9,), measure_every=12)
        others, other_configs = setting(2, "value", measure_steps=(9,), measure_every=12)
        return [*models, *others], [*configs, *other_configs]

    def stop(model):
        if model is models[1] and calls.append(None) is None and len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return 0.0

    calls = []
    handler = signal.getsignal(signal.SIGINT)
    models, configs = both()
    first = train_toys(models, configs, measure=stop, checkpoints=paths)
    assert signal.getsignal(signal.SIGINT) is handler
    assert [history.stopped for history in first] == [
        *["interrupted after step 10 of 12"] * 3,
        *["interrupted at step 0 of 12"] * 2,
    ]
    assert [len(history) for history in first] == [10, 10, 10, 0, 0]
    assert [path.exists() for path in paths] == [True, True, True, False, False]
    models, configs = both()
    second = train_toys(models, configs, measure=lambda _: 0.0, checkpoints=paths)
    assert stacks == [3, 3, 2]
    for history, model, config in zip(second, both()[0], configs, strict=True):
        assert_close(history, train_toy(model, config, measure=lambda _: 0.0))


def test_an_interrupt_from_a_callback_loses_nothing(tmp_path):
    paths = paths_in(tmp_path)

    def stop(model):
        if model is models[1] and calls.append(None) is None and len(calls) == 3:
            raise KeyboardInterrupt
        return norm_of_values(model)

    calls = []
    models, configs = setting(measure_every=5)
    first = train_toys(models, configs, measure=stop, checkpoints=paths)
    assert {history.stopped for history in first} == {"interrupted at step 10 of 12"}
    assert [len(history) for history in first] == [11, 11, 10]
    for model, history in zip(models, first, strict=True):
        assert torch.equal(toy_tensors(model)["W_V"], history.tensors["W_V"])
    again, configs = setting(measure_every=5)
    second = train_toys(again, configs, measure=norm_of_values, checkpoints=paths)
    for history, model, config in zip(second, setting()[0], configs, strict=True):
        assert_close(history, train_toy(model, config, measure=norm_of_values))


def test_a_toy_that_diverges_stops_by_itself(tmp_path, stacks):
    paths = paths_in(tmp_path)
    # Where documents are one word again and again, the curvature along it is ten times what it is elsewhere, and a step
    # that others take well goes too far.
    one_word = World(3, 4, word_probabilities=[[1.0] + [0.0] * 11] * 3, min_length=8, max_length=20)

    def models_and_configs():
        models, configs = setting(
            regime="value", loss="squared", optimizer="sgd", learning_rate=4.0, batch_size=20
        )
        set_toy_tensors(models[1], {"W_V": 1e150 * torch.eye(13, dtype=torch.float64)})
        configs[1] = replace(configs[1], world=one_word)
        return models, configs

    models, configs = models_and_configs()
    together = train_toys(models, configs, checkpoints=paths, checkpoint_every=1)
    assert stacks == [3]
    singly = [train_toy(model, config) for model, config in zip(*models_and_configs(), strict=True)]
    assert singly[1].stopped.startswith("diverged: the loss of step ")
    assert 0 < singly[1].last_step < 20
    assert {singly[0].stopped, singly[2].stopped} == {"finished"}
    for model, history, expected in zip(models, together, singly, strict=True):
        assert history.stopped == expected.stopped
        assert_close(history, expected)
        assert torch.equal(toy_tensors(model)["W_V"], history.tensors["W_V"])
        assert toy_tensors(model)["W_V"].isfinite().all()
    # The checkpoint is of the last state with a finite loss: it diverges again at once.
    again, configs = models_and_configs()
    resumed = train_toy(again[1], configs[1], checkpoint=paths[1])
    assert resumed.stopped == singly[1].stopped


def test_an_exception_leaves_the_models_at_the_step_they_had_reached():
    models, configs = setting(measure_every=10)

    def fail(model):
        if len(norms) == 4:
            raise RuntimeError("enough")
        norms.append(norm_of_values(model).item())
        return 0.0

    norms = []
    with pytest.raises(RuntimeError, match="enough"):
        train_toys(models, configs, measure=fail)
    assert norm_of_values(models[0]).item() == norms[3] != norms[0]
    assert norm_of_values(models[2]).item() != norms[2]


# Refusals


def test_what_cannot_be_paired_is_refused():
    models, configs = setting()
    with pytest.raises(ValueError, match=r"a config for each model.*3 models, 2 configs and 3 checkpoints"):
        train_toys(models, configs[:2])
    with pytest.raises(ValueError, match="3 models, 3 configs and 1 checkpoints"):
        train_toys(models, configs, checkpoints=["one"])
    with pytest.raises(ValueError, match="two trainings have the same model; give each its own"):
        train_toys([models[0], models[1], models[0]], configs)
    with pytest.raises(ValueError, match="two trainings have the same checkpoint"):
        train_toys(models, configs, checkpoints=["a", None, "a"])
    assert train_toys([], []) == ()
