"""The toy as a hooked model, held against a plain implementation of the paper's equations."""

import copy

import pytest
import torch
from plain_toy import plain_logits
from safetensors.torch import load_file, save_file

from topic_probe.toy import theory
from topic_probe.toy.model import (
    REGIMES,
    ToyConfig,
    build_toy,
    set_toy_tensors,
    toy_parameters,
    toy_tensors,
)
from topic_probe.toy.world import Masking, World

WORLD = World(n_topics=4, words_per_topic=3, topics_per_document=2, min_length=8, max_length=14)
SIZE = WORLD.vocabulary_size


def config(regime="full", **options):
    return ToyConfig(**{"regime": regime, "world": WORLD, "dtype": "float64", **options})


def random_ids(seed=0, batch=5, length=9):
    return torch.randint(0, SIZE, (batch, length), generator=torch.Generator().manual_seed(seed))


MASK = torch.arange(9) < torch.tensor([9, 4, 1, 7, 9]).unsqueeze(1)
DEEP = {"d_model": 6, "n_layers": 3, "n_heads": 2}


@pytest.mark.generation
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"regime": "embedding"},
        {"regime": "keys"},
        {"d_model": 1},
        {"d_model": 20, "n_heads": 3},
        DEEP | {"residual": True},
        DEEP | {"n_heads": 1},
    ],
)
def test_logits_and_their_gradients_are_those_of_the_papers_equations_for_each_document_alone(options):
    model, ids = build_toy(config(**options)), random_ids()
    weight = torch.randn((*ids.shape, SIZE), dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    trained = [p for p in toy_parameters(model).values() if p.requires_grad]

    def gradients(logits):
        total = sum((out * weight[i][MASK[i]]).sum() for i, out in enumerate(logits))
        return torch.autograd.grad(total, trained, materialize_grads=True)

    hooked = [logits[keep] for logits, keep in zip(model(ids, attention_mask=MASK.long()), MASK, strict=True)]
    residual = options.get("residual", False)
    plain = [
        plain_logits(toy_tensors(model), row[keep], residual=residual)
        for row, keep in zip(ids, MASK, strict=True)
    ]
    torch.testing.assert_close(hooked, plain, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(gradients(hooked), gradients(plain), rtol=1e-11, atol=1e-12)


@pytest.mark.generation
def test_hooks_see_and_change_the_pattern_and_keys_behind_the_end_get_nothing():
    model, ids, mask = build_toy(config()), random_ids(), MASK
    _, cache = model.run_with_cache(ids, attention_mask=mask.long())
    pattern = cache["blocks.0.attn.hook_pattern"]
    assert pattern.shape == (5, 1, 9, 9)
    assert torch.allclose(pattern.sum(-1), torch.ones((), dtype=torch.float64))
    assert (pattern.masked_select(~mask[:, None, None, :]) == 0).all()
    # With all attention on the first position every position predicts what position 0 holds.
    first = torch.zeros_like(pattern)
    first[..., 0] = 1
    edited = model.run_with_hooks(
        ids, attention_mask=mask.long(), fwd_hooks=[("blocks.0.attn.hook_pattern", lambda _, hook: first)]
    )
    t = toy_tensors(model)
    expected = t["W_E"].T @ (t["W_V"] @ t["W_E"][:, ids[:, 0]] + t["b_V"][:, None]) + t["b_pred"][:, None]
    assert (edited - expected.T[:, None]).abs().max() <= 1e-14


@pytest.mark.generation
def test_names_that_every_hooked_model_has_are_there():
    model = build_toy(config(d_model=6))
    t = toy_tensors(model)
    assert torch.equal(model.W_E, t["W_E"].T)
    assert torch.equal(model.W_U, t["W_E"])
    assert torch.equal(model.b_U, t["b_pred"])
    assert torch.equal(model.blocks[0].attn.W_V[0], t["W_V"].T)
    assert torch.equal(model.blocks[0].attn.W_K[0], t["W_K"].T)
    assert torch.equal(model.blocks[0].attn.b_Q[0], t["b_Q"])
    assert torch.equal(model.blocks[0].attn.W_O[0], torch.eye(6, dtype=torch.float64))
    assert (
        sum(p.data_ptr() == model.W_E.data_ptr() for p in model.parameters()) == 1
    )  # one parameter, one key
    assert sum(p.data_ptr() == model.W_E.data_ptr() for p in model.state_dict().values()) == 1
    assert (model.cfg.n_layers, model.cfg.n_heads, model.cfg.d_model, model.cfg.d_vocab) == (1, 1, 6, SIZE)


@pytest.mark.generation
def test_a_seed_decides_the_tensors_which_go_through_copies_and_files(tmp_path):
    before = torch.get_rng_state()
    model, again, other = (build_toy(config(), seed=seed) for seed in (0, 0, 1))
    single = build_toy(config("value", dtype="float32"))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(toy_tensors(model)["W_V"].float(), toy_tensors(single)["W_V"])
    logits = model(random_ids())
    assert torch.equal(logits, again(random_ids()))
    assert not torch.equal(logits, other(random_ids()))
    save_file(model.state_dict(), tmp_path / "toy.safetensors")
    other.load_state_dict(load_file(tmp_path / "toy.safetensors"))
    assert torch.equal(logits, other(random_ids()))
    twin = copy.deepcopy(model)
    set_toy_tensors(twin, {"W_E": torch.zeros_like(toy_tensors(twin)["W_E"])})
    assert (twin(random_ids()) == 0).all()
    assert torch.equal(logits, model(random_ids()))


def test_the_usual_start_is_uniform_within_one_over_root_d_and_the_embedding_normal():
    t = {
        name: x.detach()
        for name, x in toy_tensors(build_toy(config(d_model=100, embedding_scale=0.3))).items()
    }
    for name in ("W_K", "W_Q", "W_V"):
        assert 0.099 < t[name].abs().max() <= 0.1
        assert t[name].std() == pytest.approx(0.1 / 3**0.5, rel=0.03)
        assert abs(t[name].mean()) < 0.003
    for name in ("b_K", "b_Q", "b_V"):
        assert 0.08 < t[name].abs().max() <= 0.1
    assert t["W_E"].std() == pytest.approx(0.3, rel=0.05)
    assert (t["b_pred"] == 0).all()
    near, zero = (toy_tensors(build_toy(ToyConfig("two-stage", noise=noise))) for noise in (0.003, 0.0))
    for name in ("W_K", "W_Q", "W_V"):
        assert near[name].std().item() == pytest.approx(0.003, rel=0.03)
        assert not zero[name].any()


# The table of regimes in the paper's notes, written out again.
TRAINED = {
    "full": {"W_E", "W_K", "W_Q", "W_V", "b_K", "b_Q", "b_V", "b_pred"},
    "embedding": {"W_E"},
    "value": {"W_V"},
    "attention": {"W_K", "W_Q", "W_V", "b_K", "b_Q", "b_V"},
    "keys": {"W_K", "W_Q"},
    "two-stage": {"W_K", "W_Q", "W_V"},
}


@pytest.mark.parametrize("regime", REGIMES)
def test_a_regime_trains_and_freezes_what_its_table_says(regime):
    model = build_toy(config(regime))
    t = toy_tensors(model)
    assert {name for name, p in toy_parameters(model).items() if p.requires_grad} == TRAINED[regime]
    assert sum(p.requires_grad for p in model.parameters()) == len(TRAINED[regime])
    if regime in ("value", "attention", "keys", "two-stage"):
        assert torch.equal(t["W_E"], torch.eye(SIZE, dtype=torch.float64))
        assert (t["b_pred"] == 0).all()
    if regime in ("embedding", "value"):
        assert not any(t[name].any() for name in ("W_K", "W_Q", "b_K", "b_Q", "b_V"))
    if regime == "embedding":
        assert torch.equal(t["W_V"], torch.eye(SIZE, dtype=torch.float64))
        # p_m p_r / ((1 − (1 − p_c) p_m) T v) with 0.15, 0.1, 0.1 and twelve words
        assert torch.allclose(t["b_pred"][1:], torch.tensor(-0.015 / (0.865 * 12), dtype=torch.float64))
        assert t["b_pred"][0] == 0
    if regime == "keys":
        assert torch.equal(t["W_V"], theory.optimal_value(WORLD, Masking()))
        assert not any(t[name].any() for name in ("b_K", "b_Q", "b_V"))


def test_what_is_trained_can_be_named_and_the_rest_of_the_regime_stays_where_it_begins():
    whole, some = config("two-stage", n_layers=2), config("two-stage", n_layers=2, trained=("W_V.1", "b_V"))
    models = build_toy(whole), build_toy(some)
    usual, t = (toy_tensors(model) for model in models)
    parameters = toy_parameters(models[1])
    assert {n for n, p in parameters.items() if p.requires_grad} == {"W_V.1", "b_V.0", "b_V.1"}
    for name in ("W_V.0", "W_V.1", "W_K.0"):
        assert usual[name].any()
        assert torch.equal(t[name], usual[name])
    assert t["b_V.1"].any()
    assert not any(t[name].any() for name in ("b_K.0", "b_Q.1"))
    assert torch.equal(t["W_E"], torch.eye(SIZE, dtype=torch.float64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regime": "all"}, "regime must be one of 'full', 'embedding', 'value'"),
        ({"regime": "value", "d_model": 7}, "needs one-hot embeddings, d_model = 13"),
        ({"d_model": 0}, "d_model must be at least 1, got 0"),
        ({"noise": -1.0}, "noise is a standard deviation"),
        ({"embedding_scale": 0.0}, r"embedding_scale is a standard deviation .* must be positive"),
        ({"dtype": "float16"}, "dtype must be one of 'float32', 'float64'"),
        ({"trained": ("W_O",)}, "'W_O' is no tensor of this model; there are W_E, W_K"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_impossible_configs_are_refused_with_what_was_needed(options, message):
    with pytest.raises(ValueError, match=message):
        config(**options)


def test_wrong_tensors_and_wrong_models_are_refused():
    with pytest.raises(ValueError, match=r"W_V must have shape \(13, 13\), got \(3, 3\)"):
        build_toy(config(), tensors={"W_V": torch.zeros(3, 3)})
    with pytest.raises(ValueError, match="'W_X' is no tensor of this model"):
        set_toy_tensors(build_toy(config()), {"W_X": torch.zeros(3)})
    with pytest.raises(TypeError, match="needed a toy transformer from build_toy, got Linear"):
        toy_tensors(torch.nn.Linear(2, 2))
