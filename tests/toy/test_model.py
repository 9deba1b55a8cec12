"""The toy as a hooked model, held against a plain implementation of the paper's equations."""

import copy
import itertools
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from topic_probe.toy import theory
from topic_probe.toy.masking import Masking
from topic_probe.toy.model import (
    REGIMES,
    ToyConfig,
    build_toy,
    set_toy_tensors,
    toy_config,
    toy_logits,
    toy_parameters,
    toy_tensors,
)
from topic_probe.toy.world import World

WORLD = World(n_topics=4, words_per_topic=3, topics_per_document=2, min_length=8, max_length=14)
SIZE = WORLD.vocabulary_size


def config(regime="full", **options):
    return ToyConfig(**{"regime": regime, "world": WORLD, "dtype": "float64", **options})


def random_ids(seed=0, batch=5, length=9):
    return torch.randint(0, SIZE, (batch, length), generator=torch.Generator().manual_seed(seed))


def padding(batch=5, length=9):
    return torch.arange(length) < torch.tensor([9, 4, 1, 7, 9]).unsqueeze(1)[:batch]


def plain_logits(t, ids, mask):
    """Section 3.3 with d_a = the number of rows of W_K, one document at a time, in columns as in the paper."""
    documents = []
    for row, keep in zip(ids, mask, strict=True):
        X = torch.nn.functional.one_hot(row[keep], t["W_E"].shape[1]).to(t["W_E"].dtype).T
        Z = t["W_E"] @ X
        keys, queries = t["W_K"] @ Z + t["b_K"][:, None], t["W_Q"] @ Z + t["b_Q"][:, None]
        A = torch.softmax(keys.T @ queries / len(t["W_K"]) ** 0.5, dim=0)
        out = t["W_E"].T @ (t["W_V"] @ Z + t["b_V"][:, None]) @ A + t["b_pred"][:, None]
        documents.append(out.T)
    return documents


def largest_difference(model, ids, mask):
    logits = toy_logits(model, ids, mask)
    plain = plain_logits(toy_tensors(model), ids, mask)
    return max(
        (row[keep] - other).abs().max().item() for row, keep, other in zip(logits, mask, plain, strict=True)
    )


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("padded", [False, True])
def test_logits_of_every_regime_are_those_of_the_papers_equations(regime, padded):
    ids = random_ids()
    mask = padding() if padded else torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        assert largest_difference(build_toy(config(regime)), ids, mask) <= 1e-14


@pytest.mark.parametrize("d_attention", [1, 3, None])
@pytest.mark.parametrize("d_model", [5, 20])
def test_widths_of_model_and_attention_are_free(d_model, d_attention):
    model = build_toy(config(d_model=d_model, d_attention=d_attention))
    assert toy_tensors(model)["W_K"].shape == (d_attention or d_model, d_model)
    with torch.no_grad():
        assert largest_difference(model, random_ids(), padding()) <= 1e-14


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("padded", [False, True])
def test_gradients_of_every_regime_are_those_of_the_papers_equations(regime, padded):
    ids = random_ids()
    mask = padding() if padded else torch.ones_like(ids, dtype=torch.bool)
    model = build_toy(config(regime))
    weight = torch.randn((*ids.shape, SIZE), dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    trained = {name: p for name, p in toy_parameters(model).items() if p.requires_grad}
    (toy_logits(model, ids, mask) * weight)[mask].sum().backward()
    hooked = {name: p.grad.clone() for name, p in trained.items()}
    for parameter in trained.values():
        parameter.grad = None
    plain = plain_logits(toy_tensors(model), ids, mask)
    sum((out * weight[i][mask[i]]).sum() for i, out in enumerate(plain)).backward()
    for name, parameter in trained.items():
        assert (hooked[name] - parameter.grad).abs().max() <= 1e-14 * max(1, parameter.grad.abs().max())


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("regime", REGIMES)
def test_sixty_steps_end_where_those_of_the_papers_equations_end(regime, optimizer):
    ids, mask = random_ids(), padding()
    target = random_ids(seed=1)
    model = build_toy(config(regime))
    own = {name: t.detach().clone().requires_grad_() for name, t in toy_tensors(model).items()}
    trained = toy_config(model).trained_tensors
    ours = optimizer([p for p in model.parameters() if p.requires_grad], lr=0.05)
    theirs = optimizer([own[name] for name in trained], lr=0.05)
    for _ in range(60):
        for chosen in (ours, theirs):
            chosen.zero_grad()
        torch.nn.functional.cross_entropy(toy_logits(model, ids, mask)[mask], target[mask]).backward()
        torch.nn.functional.cross_entropy(torch.cat(plain_logits(own, ids, mask)), target[mask]).backward()
        # The gradient of b_K is zero up to rounding, which Adam would blow up to the size of any other.
        for tensor in (own["b_K"], toy_parameters(model)["b_K"]):
            if tensor.grad is not None:
                assert tensor.grad.abs().max() < 1e-15
                tensor.grad.zero_()
        ours.step()
        theirs.step()
    for name, tensor in toy_tensors(model).items():
        assert (tensor - own[name]).abs().max() <= 1e-11, name


@pytest.mark.parametrize(("n_heads", "residual"), list(itertools.product([1, 2], [False, True])))
def test_layers_and_heads_add_up_as_a_plain_loop_has_them(n_heads, residual):
    model = build_toy(config(d_model=6, d_attention=4, n_layers=3, n_heads=n_heads, residual=residual))
    t, ids, mask = toy_tensors(model), random_ids(), padding()
    for row, keep, logits in zip(ids, mask, toy_logits(model, ids, mask), strict=True):
        x = t["W_E"][:, row[keep]]
        for layer in range(3):
            K, Q, V, k, q, v = (t[f"{name}.{layer}"] for name in ("W_K", "W_Q", "W_V", "b_K", "b_Q", "b_V"))
            if n_heads == 1:
                K, Q, V, k, q, v = (tensor[None] for tensor in (K, Q, V, k, q, v))
            out = sum(
                (V[h] @ x + v[h][:, None])
                @ ((K[h] @ x + k[h][:, None]).T @ (Q[h] @ x + q[h][:, None]) / 2).softmax(0)
                for h in range(n_heads)
            )
            x = x + out if residual else out
        assert (logits[keep] - (t["W_E"].T @ x + t["b_pred"][:, None]).T).abs().max() <= 1e-13


def test_a_padded_document_has_the_logits_it_has_alone():
    model = build_toy(config())
    ids, mask = random_ids(), padding()
    together = toy_logits(model, ids, mask)
    for row, keep, logits in zip(ids, mask, together, strict=True):
        assert (toy_logits(model, row[keep][None])[0] - logits[keep]).abs().max() <= 1e-14


def test_hooks_see_and_change_the_pattern_and_keys_behind_the_end_get_nothing():
    model, ids, mask = build_toy(config()), random_ids(), padding()
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
    assert (model.cfg.n_layers, model.cfg.n_heads, model.cfg.d_model, model.cfg.d_vocab) == (1, 1, 6, SIZE)


def test_embedding_and_decoder_are_one_parameter_with_one_key():
    model = build_toy(config())
    shared = model.W_E.data_ptr()
    assert sum(p.data_ptr() == shared for p in model.parameters()) == 1
    assert sum(t.data_ptr() == shared for t in model.state_dict().values()) == 1


def test_a_saved_state_dict_gives_the_same_model_back(tmp_path):
    model, other = build_toy(config()), build_toy(config(), seed=1)
    assert not torch.equal(toy_logits(model, random_ids()), toy_logits(other, random_ids()))
    save_file(model.state_dict(), tmp_path / "toy.safetensors")
    other.load_state_dict(load_file(tmp_path / "toy.safetensors"))
    assert torch.equal(toy_logits(model, random_ids()), toy_logits(other, random_ids()))


def test_a_copy_is_tied_to_itself_and_not_to_the_original():
    model = build_toy(config())
    twin = copy.deepcopy(model)
    set_toy_tensors(twin, {"W_E": torch.zeros_like(toy_tensors(twin)["W_E"])})
    assert (toy_logits(twin, random_ids()) == 0).all()
    assert toy_logits(model, random_ids()).abs().max() > 0


@pytest.mark.parametrize("regime", REGIMES)
def test_building_draws_nothing_from_the_global_generator(regime):
    before = torch.get_rng_state()
    build_toy(config(regime))
    assert torch.equal(before, torch.get_rng_state())


def test_a_seed_decides_the_tensors_in_every_regime_and_dtype():
    full, value = toy_tensors(build_toy(config())), toy_tensors(build_toy(config("value", dtype="float32")))
    assert torch.equal(full["W_V"].float(), value["W_V"])
    assert torch.equal(full["W_E"], toy_tensors(build_toy(config()))["W_E"])
    assert not torch.equal(full["W_E"], toy_tensors(build_toy(config(), seed=1))["W_E"])


def test_the_usual_start_is_uniform_within_one_over_root_d_and_the_embedding_normal():
    t = {
        name: x.detach()
        for name, x in toy_tensors(build_toy(config(d_model=100, embedding_scale=0.3))).items()
    }
    for name in ("W_K", "W_Q", "W_V"):
        assert 0.099 < t[name].abs().max() <= 0.1
        assert t[name].std() == pytest.approx(0.1 / 3**0.5, rel=0.03)
    for name in ("b_K", "b_Q", "b_V"):
        assert 0.08 < t[name].abs().max() <= 0.1
    assert t["W_E"].std() == pytest.approx(0.3, rel=0.05)
    assert (t["b_pred"] == 0).all()


def test_the_near_zero_start_has_the_given_noise():
    t = {name: x.detach() for name, x in toy_tensors(build_toy(ToyConfig("two-stage", noise=0.003))).items()}
    for name in ("W_K", "W_Q", "W_V"):
        assert t[name].std() == pytest.approx(0.003, rel=0.03)
    assert all(
        (toy_tensors(build_toy(config("two-stage", noise=0.0)))[name] == 0).all() for name in ("W_K", "W_V")
    )


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


def test_anything_else_can_be_frozen_by_name_in_one_layer_or_all():
    chosen = config(n_layers=2, trained=("W_V.1", "b_pred"), frozen={"W_V.0": "identity", "b_Q": "random"})
    model = build_toy(chosen)
    t = toy_tensors(model)
    assert {name for name, p in toy_parameters(model).items() if p.requires_grad} == {"W_V.1", "b_pred"}
    assert torch.equal(t["W_V.0"], torch.eye(SIZE, dtype=torch.float64))
    assert t["b_Q.0"].any()
    assert t["b_Q.1"].any()
    assert not t["W_K.0"].any()


def test_given_tensors_take_the_place_of_start_and_rule():
    W_V, W_E = torch.rand(2, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    model = build_toy(config("value"), tensors={"W_V": W_V, "W_E": W_E})
    assert torch.equal(toy_tensors(model)["W_V"], W_V.double())
    assert torch.equal(toy_tensors(model)["W_E"], W_E.double())


def test_a_config_survives_json():
    chosen = config(
        "keys",
        d_attention=3,
        trained="W_Q",
        frozen={"b_V": "random"},
        masking=Masking(0.2, 0.0, 0.3),
        residual=True,
    )
    assert ToyConfig.from_dict(json.loads(json.dumps(chosen.to_dict()))) == chosen


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regime": "all"}, "regime must be one of 'full', 'embedding', 'value'"),
        ({"regime": "value", "d_model": 7}, "needs one-hot embeddings, d_model = 13"),
        ({"regime": "keys", "d_model": 14}, "needs one-hot embeddings"),
        ({"d_model": 0}, "d_model must be at least 1, got 0"),
        ({"n_layers": 0}, "n_layers must be at least 1, got 0"),
        ({"d_model": 5, "d_attention": 6}, "d_attention must not exceed d_model, got 6 > 5"),
        ({"init": "zero"}, "init must be one of 'usual', 'near-zero'"),
        ({"noise": -1.0}, "noise is a standard deviation"),
        ({"embedding_scale": 0.0}, r"embedding_scale is a standard deviation .* must be positive"),
        ({"dtype": "float16"}, "dtype must be one of 'float32', 'float64'"),
        ({"trained": ("W_O",)}, "'W_O' is no tensor of this model; there are W_E, W_K"),
        ({"trained": ("W_K.1",)}, "'W_K.1' is no tensor"),
        ({"frozen": {"W_V": "identity"}}, "W_V cannot be frozen and trained"),
        ({"regime": "value", "frozen": {"b_V": "ones"}}, "rule for b_V must be one of 'zero', 'identity'"),
        (
            {"regime": "value", "frozen": {"b_V": "identity"}},
            "rule 'identity' is defined for W_E, W_K, W_Q, W_V",
        ),
        (
            {"regime": "embedding", "d_attention": 2, "frozen": {"W_K": "identity"}},
            "W_K cannot be the identity with d_attention=2",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_impossible_configs_are_refused_with_what_was_needed(options, message):
    with pytest.raises(ValueError, match=message):
        config(**options)


@pytest.mark.usefixtures("unchecked")
def test_true_is_no_number_of_heads():
    with pytest.raises(TypeError, match="n_heads must be a whole number"):
        config(n_heads=True)


def test_wrong_tensors_and_wrong_models_are_refused():
    with pytest.raises(ValueError, match=r"W_V must have shape \(13, 13\), got \(3, 3\)"):
        build_toy(config(), tensors={"W_V": torch.zeros(3, 3)})
    with pytest.raises(ValueError, match="'W_X' is no tensor of this model"):
        set_toy_tensors(build_toy(config()), {"W_X": torch.zeros(3)})
    with pytest.raises(TypeError, match="needed a toy transformer from build_toy, got Linear"):
        toy_tensors(torch.nn.Linear(2, 2))
