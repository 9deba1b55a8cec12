"""Toys trained side by side: each one's training is the one it has alone, whatever happens to the others."""

import signal
from dataclasses import replace

import pytest
import torch

from topic_probe import Masking, ToyConfig, TrainConfig, World, build_toy, toy_tensors, train_toy, train_toys
from topic_probe.toy.model import set_toy_tensors
from topic_probe.toy.world import zipf_words

WORLD = World(n_topics=3, words_per_topic=4, topics_per_document=2, min_length=8, max_length=20)
SEVERAL = (
    WORLD,
    World(3, 4, min_length=8, max_length=20),
    World(3, 4, word_probabilities=zipf_words(3, 4), min_length=30, max_length=40),
    WORLD,
)


def toy(regime="full", *, seed=0, **options):
    plain = {"regime": regime, "world": WORLD, "dtype": "float64", "embedding_scale": 0.5}
    return build_toy(ToyConfig(**plain | options), seed=seed)


def setting(n=3, model=None, **options):
    """Models and configs that differ in their seeds."""
    config = TrainConfig(**{"optimizer": "adam", "batch_size": 5, "steps": 12, **options})
    return [toy(seed=i, **model or {}) for i in range(n)], [replace(config, seed=10 + i) for i in range(n)]


def norm_of_values(model):
    return toy_tensors(model)["W_V"].norm()


def assert_each_is_alone(together, models, configs, *, tolerance=1e-11, **options):
    """The histories are those of the models trained alone; ``models`` are new ones."""
    for history, model, config in zip(together, models, configs, strict=True):
        alone = train_toy(model, config, **options)
        for part in ("columns", "last_step", "empty_batches", "stopped", "toy", "train", "provenance"):
            assert getattr(history, part) == getattr(alone, part)
        assert torch.equal(history.steps, alone.steps)
        pairs = [
            (history.table, alone.table),
            *((x, alone.tensors[name]) for name, x in history.tensors.items()),
        ]
        assert history.measured.keys() == alone.measured.keys()
        for name, series in history.measured.items():
            assert torch.equal(series.steps, alone.measured[name].steps)
            pairs.append((series.values, alone.measured[name].values))
        for one, other in pairs:
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


# Documents so few that they have fewer queries than there are words, and more of them.
FEW, MANY, SQUARED = {"batch_size": 2}, {"batch_size": 20}, {"loss": "squared"}
ONE = {"trained": ("b_Q",), "frozen": dict.fromkeys(("W_E", "W_K", "W_Q", "W_V"), "random")}
BY_TURNS = ((3, ("W_V", "b_V")), (2, ("W_E", "W_K", "W_Q", "b_K", "b_Q", "b_pred")))
CASES = {
    "few": ({}, FEW),
    "many": ({}, MANY | SQUARED),
    "narrow": ({"d_model": 7, "d_attention": 3}, FEW | SQUARED),
    "narrow, many": ({"d_model": 7, "d_attention": 3}, MANY),
    "no bias asks": ({"trained": ("W_E", "W_V", "b_V"), "frozen": {"b_Q": "zero"}}, MANY),
    "one tensor": (ONE, FEW | SQUARED),
    "embedding": ({"regime": "embedding"}, MANY | SQUARED),
    "value": ({"regime": "value"}, FEW | SQUARED | {"l2": 0.02}),
    "attention": ({"regime": "attention"}, MANY),
    "keys": ({"regime": "keys"}, FEW | SQUARED | {"optimizer": "sgd", "learning_rate": 0.1}),
    "two-stage": ({"regime": "two-stage", "noise": 1.0}, MANY | SQUARED),
    "a fixed set": ({}, {"n_documents": 12}),
    "a small set": ({}, {"n_documents": 4, "schedule": BY_TURNS}),
    "masked once": ({}, {"n_documents": 12, "remask": False, "l2": 0.01}),
}


@pytest.mark.parametrize("name", CASES)
def test_each_training_is_the_one_it_would_be_alone(name):
    model, options = CASES[name]
    options = {**options, "measure_every": 10, "record_every": 3, "record_gradients": True}
    models, configs = setting(4, model, **options)
    configs = [replace(config, world=world) for config, world in zip(configs, SEVERAL, strict=True)]
    together = train_toys(models, configs, measure=norm_of_values)
    assert_each_is_alone(together, setting(4, model)[0], configs, measure=norm_of_values)
    for model, history in zip(models, together, strict=True):
        assert torch.equal(toy_tensors(model)["W_V"], history.tensors["W_V"])


def test_batches_with_nothing_masked_are_drawn_again_for_the_one_that_had_them():
    models, configs = setting(batch_size=1)
    shares = zip(configs, (0.02, 0.02, 0.1), strict=True)
    configs = [replace(config, masking=Masking(p)) for config, p in shares]
    together = train_toys(models, configs)
    assert min(history.empty_batches for history in together[:2]) > 5
    assert_each_is_alone(together, setting()[0], configs)
    with pytest.raises(ValueError, match="1000 batches in a row had nothing masked; raise p_mask=1e-12"):
        train_toys(models, [replace(config, masking=Masking(1e-12)) for config in configs])


def test_what_is_not_alike_is_trained_one_after_another_and_comes_back_in_its_order():
    kinds = ({}, {}, {"regime": "value"}, {"regime": "value"}, {"residual": True}, {"d_model": 6}, {}, {})
    configs = [TrainConfig(steps=6, seed=seed) for seed in range(8)]
    configs[1] = replace(configs[1], learning_rate=0.02)
    configs[7] = replace(configs[7], forward="hooked")
    models, others = ([toy(seed=seed, **kind) for seed, kind in enumerate(kinds)] for _ in range(2))
    assert_each_is_alone(train_toys(models, configs), others, configs)


def test_a_single_training_goes_on_where_a_stack_has_stopped_and_the_reverse(tmp_path):
    paths = [tmp_path / name for name in "abc"]
    train_toys(*setting(steps=7), checkpoints=paths)
    models, configs = setting()
    second = train_toy(models[1], configs[1], checkpoint=paths[1])
    content = paths[1].read_bytes()
    together = train_toys(*setting(), checkpoints=paths)
    assert_each_is_alone(together, *setting())
    assert torch.equal(together[1].table.nan_to_num(-1), second.table.nan_to_num(-1))
    assert paths[1].read_bytes() == content  # what was through is not trained again
    longer = train_toys(*setting(steps=15), checkpoints=[paths[0], None, paths[2]])
    assert_each_is_alone(longer, *setting(steps=15))


@pytest.mark.parametrize("steps", [(5, 5, None), (10, 5, 5), (10, 10, 5)])
def test_a_kill_between_the_files_of_a_stack_changes_no_bit_of_what_comes_out(steps, tmp_path):
    """Two files of three at step 5 and three of step 10 would make a stack of another size, and another last bit."""
    paths = [tmp_path / name for name in "abc"]

    def train(killed=None):
        def measure(step, _):
            if step == killed:
                raise SystemExit
            return 0.0

        models, configs = setting(model={"dtype": "float32"}, measure_steps=(6, 11))
        return train_toys(models, configs, measure=measure, checkpoints=paths, checkpoint_every=5)

    whole, kept = train(), {}
    for step in (5, 10):
        for path in paths:
            path.unlink()
        with pytest.raises(SystemExit):
            train(killed=step + 1)
        kept |= {(step, path): path.read_bytes() for path in paths}
    for step, path in zip(steps, paths, strict=True):
        path.write_bytes(kept[step, path]) if step else path.unlink()
    for one, other in zip(train(), whole, strict=True):
        assert torch.equal(one.table.nan_to_num(-1), other.table.nan_to_num(-1))
        assert all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())


def interrupt_at(call, how, model):
    """A measurement that is interrupted when it sees a model for the so many-th time."""
    calls = []

    def measure(seen):
        if seen is model and calls.append(None) is None and len(calls) == call:
            how()
        return norm_of_values(seen)

    return measure


def keyboard_interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("how", [lambda: signal.raise_signal(signal.SIGINT), keyboard_interrupt])
def test_ctrl_c_stops_all_and_the_next_call_goes_on(tmp_path, how):
    paths, value, options = [tmp_path / name for name in "abcde"], {"regime": "value"}, {"measure_every": 5}
    (models, configs), (others, more) = setting(**options), setting(2, value, **options)
    handler = signal.getsignal(signal.SIGINT)
    measure = interrupt_at(3, how, models[1])
    first = train_toys(models + others, configs + more, measure=measure, checkpoints=paths)
    assert signal.getsignal(signal.SIGINT) is handler
    stopped = (
        "interrupted at step 10 of 12" if how is keyboard_interrupt else "interrupted after step 11 of 12"
    )
    assert [history.stopped for history in first] == [stopped] * 3 + ["interrupted at step 0 of 12"] * 2
    assert [path.exists() for path in paths] == [True, True, True, False, False]
    for model, history in zip(models, first, strict=False):
        assert torch.equal(toy_tensors(model)["W_V"], history.tensors["W_V"])
    again, alone = ([*setting()[0], *setting(2, value)[0]] for _ in range(2))
    second = train_toys(again, configs + more, measure=norm_of_values, checkpoints=paths)
    assert_each_is_alone(second, alone, configs + more, measure=norm_of_values)


def test_a_toy_that_diverges_stops_by_itself(tmp_path):
    # Where documents are one word again and again, the curvature along it is ten times what it is elsewhere, and a step
    # that others take well goes too far.
    one_word = World(3, 4, word_probabilities=[[1.0] + [0.0] * 11] * 3, min_length=8, max_length=20)
    paths = [tmp_path / name for name in "abc"]

    def models_and_configs():
        step = {"loss": "squared", "optimizer": "sgd", "learning_rate": 4.0, "batch_size": 20}
        models, configs = setting(model={"regime": "value"}, **step)
        set_toy_tensors(models[1], {"W_V": 1e150 * torch.eye(13, dtype=torch.float64)})
        configs[1] = replace(configs[1], world=one_word)
        return models, configs

    models, configs = models_and_configs()
    together = train_toys(models, configs, checkpoints=paths, checkpoint_every=1)
    assert together[1].stopped.startswith("diverged: the loss of step ")
    assert 0 < together[1].last_step < 20
    assert_each_is_alone(together, *models_and_configs())
    assert toy_tensors(models[1])["W_V"].isfinite().all()
    # The checkpoint is of the last state with a finite loss: it diverges again at once.
    again, configs = models_and_configs()
    assert train_toy(again[1], configs[1], checkpoint=paths[1]).stopped == together[1].stopped


def test_what_cannot_be_paired_is_refused_and_an_exception_leaves_models_at_their_step():
    models, configs = setting(measure_every=10)
    for configs_given, checkpoints, message in (
        (configs[:2], None, r"a config for each model.*3 models, 2 configs and 3 checkpoints"),
        (configs, ["one"], "3 models, 3 configs and 1 checkpoints"),
        (configs, ["a", None, "a"], "two trainings have the same checkpoint"),
    ):
        with pytest.raises(ValueError, match=message):
            train_toys(models, configs_given, checkpoints=checkpoints)
    with pytest.raises(ValueError, match="two trainings have the same model; give each its own"):
        train_toys([models[0], models[1], models[0]], configs)
    assert train_toys([], []) == ()
    before = [norm_of_values(model).item() for model in models]
    with pytest.raises(KeyError, match="enough"):
        train_toys(models, configs, measure=interrupt_at(2, lambda: {}["enough"], models[0]))
    expected = train_toys(*setting(steps=10))
    for model, start, history in zip(models, before, expected, strict=True):
        assert norm_of_values(model).item() == pytest.approx(history["norm_W_V"][10].item()) != start
