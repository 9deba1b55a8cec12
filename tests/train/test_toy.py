"""Training toys: every number against plain torch, alone and side by side, what is recorded, and what goes wrong."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from plain_toy import plain_training

import topic_probe as tp
from topic_probe import (
    Masking,
    ToyConfig,
    TrainConfig,
    World,
    build_toy,
    toy_tensors,
    train_toy,
    train_toys,
)
from topic_probe.toy.model import REGIMES, set_toy_tensors, toy_parameters
from topic_probe.train.toy import draw, hooked_loss

WORLD = World(n_topics=3, words_per_topic=4, topics_per_document=2, min_length=8, max_length=20)
SIZE = WORLD.vocabulary_size
OTHER = World(n_topics=6, words_per_topic=2, alpha=0.3, min_length=30, max_length=30)
ALTERNATING = ((3, ("W_V", "b_V")), (2, ("W_K", "W_Q", "b_Q", "b_K")), (1, ("W_Q",)))
BY_LAYER = ((2, ("W_V", "W_K.1", "W_E", "b_V", "b_pred")), (1, ("W_K.0", "W_Q", "b_K", "b_Q")))


def toy(regime="full", *, seed=0, **options):
    plain = {"regime": regime, "world": WORLD, "dtype": "float64", "embedding_scale": 0.1}
    return build_toy(ToyConfig(**plain | options), seed=seed)


# Every number of a training

ADAM, SQUARED = {"optimizer": "adam"}, {"loss": "squared"}
UNMASKED = {"attend": "unmasked", "masking": Masking(0.4, 0.2, 0.3)}
DEEP = {"d_model": 6, "n_layers": 2, "n_heads": 2, "residual": True, "embedding_scale": 0.5}
CASES = {
    "full": ("full", {}, ADAM | {"l2": 0.01}),
    "full, unmasked": ("full", UNMASKED, SQUARED | {"l2": 0.02}),
    "narrow": ("full", {"d_model": 6}, ADAM | SQUARED),
    "embedding": ("embedding", {}, ADAM | SQUARED),
    "random values": ("embedding", {"trained": ("W_E", "W_V", "b_V"), "d_model": 7}, ADAM),
    "value": ("value", {}, ADAM | {"l2": 0.02, "world": OTHER}),
    "value, unmasked": ("value", UNMASKED, SQUARED),
    "asked by a bias": ("value", {"trained": ("W_K", "W_V", "b_Q")}, SQUARED),
    "attention": ("attention", {}, ADAM | SQUARED | {"l2": 0.02, "schedule": ALTERNATING}),
    "keys": ("keys", {}, ADAM | {"masking": Masking(0.2, 0.2, 0.3)}),
    "two-stage": ("two-stage", {"noise": 0.1} | UNMASKED, ADAM | SQUARED | {"l2": 0.01}),
    "deep": ("full", DEEP, ADAM | {"schedule": BY_LAYER}),
    "deep, unmasked": ("full", DEEP | UNMASKED, ADAM),
}
OF_GENERATION = ("full, unmasked", "deep", "deep, unmasked")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.generation] * (n in OF_GENERATION)) for n in CASES]
)
def test_losses_norms_rotations_gradients_and_tensors_are_those_of_plain_torch(name):
    regime, options, settings = CASES[name]
    plain = {"batch_size": 5, "steps": 16, "seed": 5, "record_gradients": True, "learning_rate": 0.05}
    config = TrainConfig(**plain | settings)
    rows, tensors = plain_training(toy(regime, **options), config)
    model = toy(regime, **options)
    history = train_toy(model, config)
    assert history.stopped == "finished"
    assert history.steps.tolist() == list(range(17))
    assert set(history.columns) == set(rows[0])
    for column in history.columns:
        expected = [row[column] for row in rows]
        np.testing.assert_allclose(history[column], expected, rtol=1e-8, atol=1e-10, err_msg=column)
    for name, value in toy_tensors(model).items():
        tolerance = 1e-10 if name in model.toy_config.trained_tensors else 0.0
        torch.testing.assert_close(value.detach(), tensors[name], rtol=0, atol=tolerance)
        assert torch.equal(history.tensors[name], value)


@pytest.mark.generation
@pytest.mark.parametrize("attend", ["all", "unmasked"])
@pytest.mark.parametrize("regime", REGIMES)
def test_counts_of_words_give_the_loss_and_gradients_of_the_hooked_forward(regime, attend):
    """In documents so short that in some every position is chosen."""
    short = replace(WORLD, min_length=2)
    model = toy(regime, seed=3, world=short, masking=Masking(0.6, 0.2, 0.2), attend=attend)
    for loss in ("cross_entropy", "squared"):
        config = TrainConfig(loss=loss, batch_size=30, steps=0, record_gradients=True)
        batch = draw(model.toy_config, config, 0).select(slice(30))
        assert not batch.visible("unmasked").any(1).all()
        history, hooked = train_toy(model, config), hooked_loss(model, batch, loss=loss)
        assert history.loss.item() == pytest.approx(hooked.item(), abs=1e-14)
        leaves = {name: toy_parameters(model)[name] for name in model.toy_config.trained_tensors}
        gradients = torch.autograd.grad(hooked, list(leaves.values()), materialize_grads=True)
        for name, gradient in zip(leaves, gradients, strict=True):
            assert history.gradients[name].item() == pytest.approx(gradient.norm().item(), abs=1e-14)


@pytest.mark.parametrize("attend", ["all", "unmasked"])
def test_one_step_worked_by_hand(attend):
    """One word again and again, so that W_V moves along −2 e_t xᵀ from zero; x are shares of [MASK] and the word."""
    world = World(n_topics=1, words_per_topic=1, min_length=4, max_length=4)
    toy_config = ToyConfig(
        "value", world=world, init="near-zero", noise=0.0, dtype="float64", attend=attend,
        masking=Masking(0.3, 0.0, 0.0),
    )  # fmt: skip
    model, config = build_toy(toy_config), TrainConfig("squared", learning_rate=0.1, batch_size=40, steps=1)
    train_toy(model, config)
    chosen = draw(toy_config, config, 0).select(slice(40)).chosen.double()
    chosen = chosen[(chosen.sum(1) > 0) & ((chosen.sum(1) < 4) | (attend == "all"))]
    share = chosen.mean() if attend == "all" else torch.tensor(0.0)
    expected = torch.stack([torch.zeros(2), torch.tensor([2 * 0.1 * share, 2 * 0.1 * (1 - share)])])
    torch.testing.assert_close(toy_tensors(model)["W_V"].detach(), expected.double(), rtol=0, atol=1e-8)


def test_training_uses_no_global_random_numbers_and_a_seed_decides_every_batch():
    state = torch.get_rng_state()
    first, again, other = (train_toy(toy(), TrainConfig(steps=5, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first.loss, again.loss)
    assert not torch.equal(first.loss, other.loss)
    config = TrainConfig()
    drawn = [draw(ToyConfig(), settings, chunk) for settings, chunk in
             ((config, 0), (config, 1), (replace(config, seed=1), 0))]  # fmt: skip
    assert [len(batch) for batch in drawn] == [2000] * 3
    assert len({tuple(batch.target[0, :50].tolist()) for batch in drawn}) == 3


def test_a_hook_on_the_model_takes_part_in_the_training():
    model, pattern = toy("value"), "blocks.0.attn.hook_pattern"
    with model.hooks(fwd_hooks=[(pattern, lambda p, hook: torch.zeros_like(p))]):
        train_toy(model, TrainConfig(steps=3))
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


def test_measurements_get_the_model_of_their_steps():
    calls = []

    def numbers(model):
        calls.append(model)
        return {"scalar": np.float64(3), "array": np.arange(2), "W": toy_tensors(model)["W_V"]}

    model = toy("value")
    config = TrainConfig(steps=25, measure_every=10, record_every=5, optimizer="adam")
    history = train_toy(model, config, measure={"a": numbers, "b": lambda step, _: step})
    assert all(call is model for call in calls)
    assert history.measured["b"].values.tolist() == history.measured["b"].steps.tolist() == [0, 10, 20, 25]
    norms = history.measured["a.W"].values.flatten(1).norm(dim=1)
    assert norms.tolist() == pytest.approx(history["norm_W_V"][[0, 2, 4, 5]].tolist())
    assert history.measured["a.array"].values.shape == (4, 2)
    frame = history.to_dataframe()
    assert frame.loc[frame["step"] == 10, "a.scalar"].item() == 3
    assert frame["b"].notna().sum() == 4
    start_and_end = train_toy(toy(), TrainConfig(steps=7), measure=lambda _: 2.0)
    assert start_and_end.measured["measured"].steps.tolist() == [0, 7]


# Several at once


def assert_each_is_alone(together, models, configs, **options):
    for history, model, config in zip(together, models, configs, strict=False):
        alone = train_toy(model, config, **options)
        assert (history.stopped, history.last_step) == (alone.stopped, alone.last_step)
        torch.testing.assert_close(history.table, alone.table, rtol=1e-8, atol=1e-10, equal_nan=True)
        for name, series in alone.measured.items():
            torch.testing.assert_close(history.measured[name].values, series.values)
        for name, tensor in alone.tensors.items():
            torch.testing.assert_close(history.tensors[name], tensor, rtol=1e-12, atol=1e-9)


def test_toys_are_trained_as_they_would_be_alone_and_come_back_in_their_order():
    kinds = [{}, {}, {"regime": "value"}, {"regime": "value"}, DEEP, {"d_model": 6}, UNMASKED, {}]
    common = {"optimizer": "adam", "measure_every": 5, "record_every": 2, "record_gradients": True}
    configs = [TrainConfig(steps=12, seed=seed, batch_size=4, **common) for seed in range(8)]
    configs[1], configs[7] = replace(configs[1], learning_rate=0.02), replace(configs[7], world=OTHER)
    models, others = ([toy(seed=seed, **kind) for seed, kind in enumerate(kinds)] for _ in range(2))
    measure = {"V": lambda model: next(v for k, v in toy_tensors(model).items() if k[:3] == "W_V").norm()}
    together = train_toys(models, configs, measure=measure)
    assert_each_is_alone(together, others, configs, measure=measure)
    for model, history in zip(models, together, strict=True):
        assert all(torch.equal(value, history.tensors[name]) for name, value in toy_tensors(model).items())


def test_the_rows_of_a_toy_that_diverges_end_and_others_go_on():
    step = {"loss": "squared", "learning_rate": 4.0, "batch_size": 20, "steps": 12, "measure_every": 1}
    # Where documents are one word, the curvature along it is that of one, and elsewhere a tenth of that.
    one_word = World(3, 4, word_probabilities=[[1.0] + [0.0] * 11] * 3, min_length=8, max_length=20)
    configs = [TrainConfig(**step, seed=seed, world=world) for seed, world in enumerate((None, one_word))]

    def models():
        made = [toy("value", seed=seed) for seed in range(2)]
        set_toy_tensors(made[1], {"W_V": 1e150 * torch.eye(SIZE, dtype=torch.float64)})
        return made

    together = train_toys(models(), configs, measure=lambda _: 1.0)
    last = together[1].last_step
    assert together[0].stopped == "finished"
    assert together[1].stopped.startswith(f"diverged: the loss of step {last + 1} is ")
    assert 0 < last < 11, together[1].stopped
    assert together[1].steps.tolist() == together[1].measured["measured"].steps.tolist() == [*range(last + 1)]
    assert_each_is_alone(together[:1], models(), configs[:1], measure=lambda _: 1.0)
    (alone,) = train_toys(models()[1:], configs[1:])
    assert (alone.stopped, len(alone)) == (together[1].stopped, last + 1)
    fine, unfit = (
        build_toy(ToyConfig(world=WORLD), tensors=tensors)
        for tensors in ({}, {"b_V": torch.full((SIZE,), math.nan)})
    )
    settings = [TrainConfig(steps=2, seed=seed) for seed in range(2)]
    good, bad = train_toys([fine, unfit], settings, measure=lambda _: 1.0)
    assert bad.stopped.startswith("diverged: the loss of step 0 is nan")
    assert (good.stopped, len(bad), bad.measured) == ("finished", 0, {})


def test_a_finished_history_is_read_back_and_nothing_else_is(tmp_path):
    calls = []
    config, measure = TrainConfig(steps=4), {"x": lambda _: calls.append(1) or 1.0}
    whole = train_toy(toy(), config, measure=measure, folder=tmp_path)
    again = toy()
    history = train_toy(again, config, measure=measure, folder=tmp_path)
    assert len(calls) == 2
    assert torch.equal(history.table.nan_to_num(-1), whole.table.nan_to_num(-1))
    assert torch.equal(toy_tensors(again)["W_V"], whole.tensors["W_V"])
    for model, settings in ((toy(seed=1), config), (toy("value"), config), (toy(), replace(config, steps=5))):
        assert not torch.equal(train_toy(model, settings, folder=tmp_path).loss, whole.loss)
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ({}, {"world": World(2, 2)}, "the documents have 5 token ids, the model 13"),
        ({}, {"masking": Masking(1e-9)}, "some always had nothing masked; raise p_mask=1e-09"),
        ({"trained": ()}, {}, "empty parameter list"),
    ],
)
def test_what_cannot_be_trained_is_refused(model, options, message):
    with pytest.raises(ValueError, match=message):
        train_toy(toy(**model), TrainConfig(steps=2, **options))


def test_a_trained_toy_is_a_model_like_any_other(tmp_path):
    history = train_toy(toy("value"), TrainConfig(steps=2))
    history.save(tmp_path / "run")
    model = tp.History.load(tmp_path / "run").model()
    assert torch.equal(toy_tensors(model)["W_V"], history.tensors["W_V"])
    assert tp.measure_weights(model, WORLD.topics) is not None
