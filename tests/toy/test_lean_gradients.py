"""Gradients of several toys in closed form: those that autograd finds in the loss of each alone."""

import pytest
import torch

from topic_probe.toy.draws import Draws
from topic_probe.toy.lean import MaskedCounts, lean_form, lean_loss, queries
from topic_probe.toy.lean_gradients import lean_gradients
from topic_probe.toy.masking import Masking
from topic_probe.toy.model import REGIMES, ToyConfig, build_toy, set_toy_tensors, toy_config, toy_tensors
from topic_probe.toy.world import World

WORLD = World(3, 4, topics_per_document=2, min_length=8, max_length=20)
MASKING = Masking(0.3, 0.2, 0.2)
# As many documents as make fewer queries than there are words, and more.
SIZES = {"few": 2, "many": 20}
CASES = {
    **{regime: {"regime": regime} for regime in REGIMES},
    "narrow": {"regime": "full", "d_model": 7, "d_attention": 3},
    "frozen attention": {"regime": "full", "trained": ("W_E", "W_V", "b_V"), "frozen": {"b_Q": "zero"}},
    "one tensor": {
        "regime": "full",
        "trained": ("b_Q",),
        "frozen": dict.fromkeys(("W_E", "W_K", "W_Q", "W_V"), "random"),
    },
}


def toys(case, n=3):
    """Toys with large random tensors wherever they are trained, so that no gradient is small."""
    models = [
        build_toy(ToyConfig(world=WORLD, dtype="float64", **CASES[case]), seed=seed) for seed in range(n)
    ]
    for seed, model in enumerate(models):
        generator = torch.Generator().manual_seed(seed)
        tensors = {
            name: torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator)
            for name, tensor in toy_tensors(model).items()
            if name in toy_config(model).trained_tensors
        }
        set_toy_tensors(model, tensors)
    return models


def batches(size, n=3):
    return [
        MaskedCounts.fresh(WORLD, MASKING, size, Draws(torch.Generator().manual_seed(10 + seed)))
        for seed in range(n)
    ]


@pytest.mark.parametrize("loss", ["cross_entropy", "squared"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_are_those_of_autograd_for_each_toy_alone(case, size, loss):
    models = toys(case)
    form, drawn = lean_form(models[0]), batches(SIZES[size])
    options = {"uniform": form.uniform, "dtype": torch.float64}
    together = queries(MaskedCounts.joined(drawn), n_toys=3, **options)
    few = together.token.shape[1] < WORLD.vocabulary_size
    assert few == (size == "few")
    trained = toy_config(models[0]).trained_tensors
    each = [{name: t.detach().clone() for name, t in toy_tensors(model).items()} for model in models]
    stacked = {name: torch.stack([tensors[name] for tensors in each]) for name in each[0]}
    losses, found = lean_gradients(stacked, form, together, trained, loss=loss)
    for i, (tensors, batch) in enumerate(zip(each, drawn, strict=True)):
        leaves = [tensors[name].requires_grad_() for name in trained]
        own = lean_loss(tensors, form, queries(batch, **options), loss=loss)
        torch.testing.assert_close(losses[i], own.detach(), rtol=1e-12, atol=0)
        expected = torch.autograd.grad(own, leaves, materialize_grads=True)
        for name, gradient, other in zip(trained, found, expected, strict=True):
            torch.testing.assert_close(gradient[i], other, rtol=1e-10, atol=1e-13, msg=name)
            assert name == "b_K" or other.abs().max() > 1e-6
