"""Training the toy: the lean loss against the hooked and a plain one, resuming, recording, and what goes wrong."""

import json
import math
import pickle
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from topic_probe import storage
from topic_probe.report import load_report
from topic_probe.toy import theory
from topic_probe.toy.agreement import measure_agreement
from topic_probe.toy.lean import MaskedCounts, hooked_loss, lean_form, lean_loss, queries
from topic_probe.toy.masking import MaskedBatch, Masking
from topic_probe.toy.model import (
    REGIMES,
    ToyConfig,
    build_toy,
    set_toy_tensors,
    toy_logits,
    toy_parameters,
    toy_tensors,
)
from topic_probe.toy.world import World
from topic_probe.train.history import History, TrainConfig
from topic_probe.train.loop import train_toy

WORLD = World(n_topics=3, words_per_topic=4, topics_per_document=2, min_length=8, max_length=20)
SIZE = WORLD.vocabulary_size
LOSSES = ("cross_entropy", "squared")


def toy(regime="full", *, seed=0, **options):
    return build_toy(
        ToyConfig(**{"regime": regime, "world": WORLD, "dtype": "float64", **options}), seed=seed
    )


def batch(world=WORLD, n=12, seed=0, masking=None):
    generator = torch.Generator().manual_seed(seed)
    documents = world.documents(n, generator=generator)
    return (masking or Masking(0.3, 0.2, 0.2)).corrupt(documents, n_words=world.n_words, generator=generator)


def plain_loss(t, masked, loss):
    """Equation 1 word by word, from the equations of Section 3.3."""
    documents = []
    for i in range(len(masked)):
        keep = masked.mask[i]
        Z = t["W_E"][:, masked.shown[i][keep]]
        keys, asked = t["W_K"] @ Z + t["b_K"][:, None], t["W_Q"] @ Z + t["b_Q"][:, None]
        A = (keys.T @ asked / len(t["W_K"]) ** 0.5).softmax(dim=0)
        out = t["W_E"].T @ (t["W_V"] @ Z + t["b_V"][:, None]) @ A + t["b_pred"][:, None]
        losses = []
        for j in masked.chosen[i][keep].nonzero()[:, 0].tolist():
            x, y = out[:, j], masked.target[i, j]
            one_hot = torch.eye(len(x), dtype=x.dtype)[y]
            losses.append(x.logsumexp(0) - x[y] if loss == "cross_entropy" else (x - one_hot).square().sum())
        if losses:
            documents.append(torch.stack(losses).mean())
    return torch.stack(documents).mean()


def lean_of(model, masked, loss):
    form = lean_form(model)
    counts = MaskedCounts.of_batch(masked, toy_tensors(model)["W_E"].shape[1])
    reduced = queries(counts, uniform=form.uniform, dtype=torch.float64)
    return lean_loss(toy_tensors(model), form, reduced, loss=loss)


def gradients(model, value):
    trained = {name: p for name, p in toy_parameters(model).items() if p.requires_grad}
    found = torch.autograd.grad(value, list(trained.values()), materialize_grads=True)
    return dict(zip(trained, found, strict=True))


# The loss


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("longest", [8, 20])
def test_lean_and_hooked_loss_are_equal_with_all_gradients(regime, loss, longest):
    model = toy(regime)
    masked = batch(World(3, 4, topics_per_document=2, min_length=8, max_length=longest))
    assert masked.mask.all() == (longest == 8)
    lean, hooked = lean_of(model, masked, loss), hooked_loss(model, masked, loss=loss)
    plain = plain_loss(toy_tensors(model), masked, loss)
    assert abs(lean - hooked) <= 1e-12
    assert abs(lean - plain) <= 1e-12
    ours, theirs = gradients(model, lean), gradients(model, hooked)
    for name in ours:
        assert (ours[name] - theirs[name]).abs().max() <= 1e-12, name


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "options",
    [
        {"d_model": 6, "d_attention": 2},
        {"d_model": 20},
        {"regime": "value", "trained": ("W_V", "b_V", "b_pred")},
        {"regime": "value", "trained": ("W_Q", "W_V")},  # W_K stays zero: uniform attention
        {"regime": "value", "trained": ("W_K", "W_V"), "frozen": {"b_Q": "random"}},
        {"regime": "value", "trained": ("W_K", "b_K", "W_V")},  # W_Q and b_Q stay zero: uniform attention
        {"regime": "attention", "frozen": {"b_pred": "theorem1"}},
        {"regime": "embedding", "frozen": {"W_K": "random", "W_Q": "random"}},
        {"regime": "embedding", "frozen": {"W_V": "random", "b_V": "random"}, "d_model": 7},
    ],
)
def test_lean_and_hooked_loss_are_equal_for_other_freezings_and_widths(options, loss):
    model = toy(**options)
    lean, hooked = lean_of(model, batch(), loss), hooked_loss(model, batch(), loss=loss)
    assert abs(lean - hooked) <= 1e-12
    ours, theirs = gradients(model, lean), gradients(model, hooked)
    for name in ours:
        assert (ours[name] - theirs[name]).abs().max() <= 1e-12, name


def test_the_lean_form_is_seen_in_values_not_in_names():
    draw = torch.Generator().manual_seed(0)
    tensors = {name: 0.2 * torch.rand(SIZE, SIZE, generator=draw) for name in ("W_E", "W_V")}
    model = build_toy(ToyConfig("embedding", world=WORLD, dtype="float64", trained=("b_V",)), tensors=tensors)
    assert (
        abs(lean_of(model, batch(), "squared") - plain_loss(toy_tensors(model), batch(), "squared")) <= 1e-12
    )


def test_attention_that_cannot_depend_on_the_key_is_seen_to_be_uniform():
    assert lean_form(toy("value")).uniform
    assert lean_form(toy("value", trained=("W_Q", "b_Q", "W_V"))).uniform  # W_K is zero
    assert lean_form(toy("value", trained=("W_K", "b_K", "W_V"))).uniform  # W_Q and b_Q are zero
    assert not lean_form(toy("value", trained=("W_K",), frozen={"b_Q": "random"})).uniform
    assert not lean_form(toy("full")).uniform


def test_a_document_with_nothing_masked_does_not_count():
    masked = batch()
    chosen = masked.chosen.clone()
    chosen[[2, 5]] = False
    some = MaskedBatch(masked.shown, masked.target, masked.mask, chosen)
    rows = torch.tensor([i for i in range(12) if i not in (2, 5)])
    rest = MaskedBatch(*(part[rows] for part in (some.shown, some.target, some.mask, some.chosen)))
    for regime in ("full", "value"):
        model = toy(regime)
        for loss in LOSSES:
            expected = plain_loss(toy_tensors(model), rest, loss)
            assert abs(lean_of(model, some, loss) - expected) <= 1e-12
            assert abs(hooked_loss(model, some, loss=loss) - expected) <= 1e-12


def test_a_batch_with_nothing_masked_has_no_loss():
    masked = batch()
    nothing = MaskedBatch(masked.shown, masked.target, masked.mask, torch.zeros_like(masked.chosen))
    counts = MaskedCounts.of_batch(nothing, SIZE)
    assert queries(counts, uniform=False, dtype=torch.float64) is None
    assert hooked_loss(toy(), nothing, loss="squared") is None


def test_a_model_that_predicts_nothing_has_the_losses_of_ignorance():
    model = toy("value", init="near-zero", noise=0.0)
    assert lean_of(model, batch(), "cross_entropy").item() == pytest.approx(math.log(SIZE))
    assert lean_of(model, batch(), "squared").item() == pytest.approx(1.0)


def test_depth_heads_residual_and_hooks_are_left_to_the_hooked_forward():
    for options in ({"n_layers": 2}, {"n_heads": 2}, {"residual": True}):
        assert lean_form(toy(d_model=6, **options)) is None
    model = toy()
    assert lean_form(model) is not None
    with model.hooks(fwd_hooks=[("blocks.0.attn.hook_pattern", lambda pattern, hook: None)]):
        assert lean_form(model) is None
    assert lean_form(model) is not None


# Training


def plain_training(model, config, steps):
    """The same documents, the plain loss, torch's own optimizer, and L2 as its weight decay (2λθ)."""
    t = {name: value.detach().clone() for name, value in toy_tensors(model).items()}
    trained = [t[name].requires_grad_() for name, p in toy_parameters(model).items() if p.requires_grad]
    make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[config.optimizer]
    optimizer = make(trained, lr=config.learning_rate, weight_decay=2 * config.l2)
    generator = torch.Generator().manual_seed(config.seed)
    losses = []
    for _ in range(steps):
        documents = WORLD.documents(config.batch_size, generator=generator)
        masked = Masking().corrupt(documents, n_words=WORLD.n_words, generator=generator)
        value = plain_loss(t, masked, config.loss)
        losses.append(value.item())
        optimizer.zero_grad()
        value.backward()
        if t["b_K"].grad is not None:
            t["b_K"].grad.zero_()  # zero but for rounding, which Adam would blow up
        optimizer.step()
    return t, losses


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(
    ("optimizer", "loss", "l2"),
    [("sgd", "cross_entropy", 0.01), ("adam", "squared", 0.0), ("adam", "squared", 0.02)],
)
def test_sixty_steps_lean_hooked_and_plain_end_in_the_same_tensors(regime, optimizer, loss, l2):
    config = TrainConfig(loss, optimizer, 0.05, l2, batch_size=4, steps=60, seed=5)
    model = toy(regime)
    expected, losses = plain_training(model, config, 60)
    for forward in ("lean", "hooked"):
        model = toy(regime)
        changed = TrainConfig(**{**config.__dict__, "forward": forward})
        history = train_toy(model, changed)
        assert history.provenance["forward"] == forward
        assert np.allclose(history.loss[:60], losses, rtol=0, atol=1e-10)
        for name, value in toy_tensors(model).items():
            assert (value - expected[name]).abs().max() <= 1e-10, (forward, name)
            assert torch.equal(history.tensors[name], value)


def test_widths_below_d_train_the_rows_they_have_and_leave_the_rest_zero():
    ours, theirs = toy(d_attention=3), toy(d_attention=3)
    config = {"optimizer": "adam", "steps": 20, "l2": 0.01}
    train_toy(ours, TrainConfig(**config))
    train_toy(theirs, TrainConfig(**config, forward="hooked"))
    for name, value in toy_tensors(ours).items():
        assert (value - toy_tensors(theirs)[name]).abs().max() <= 1e-10
    assert sum(int(ours.blocks[0].attn.W_K[0, :, column].any()) for column in range(SIZE)) == 3


@pytest.mark.parametrize("options", [{"n_layers": 2, "residual": True}, {"n_layers": 2, "n_heads": 2}])
def test_deeper_models_learn_through_the_hooked_forward(options):
    model = toy(d_model=6, embedding_scale=0.5, **options)
    history = train_toy(model, TrainConfig(optimizer="adam", steps=60, batch_size=10))
    assert history.provenance["forward"] == "hooked"
    assert history.loss[-10:].mean() < history.loss[:10].mean() - 0.1
    assert {"norm_W_V.0", "norm_W_V.1", "rotation_W_V.1"} <= set(history.columns)
    # The keys' bias changes nothing, so it must not wander.
    assert (history["norm_b_K.0"] == history["norm_b_K.0"][0]).all()


def test_frozen_tensors_stay_as_they_are_to_the_bit():
    model = toy("keys")
    before = {name: value.detach().clone() for name, value in toy_tensors(model).items()}
    train_toy(model, TrainConfig(optimizer="adam", steps=20, l2=0.1))
    changed = {name for name, value in toy_tensors(model).items() if not torch.equal(value, before[name])}
    assert changed == {"W_K", "W_Q"}


def test_training_uses_no_global_random_numbers_and_a_seed_decides_everything():
    state = torch.get_rng_state()
    first, again, other = (train_toy(toy(), TrainConfig(steps=5, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first.table[:, 0], again.table[:, 0])
    assert not torch.equal(first.table[:, 0], other.table[:, 0])


def test_a_fixed_set_that_fits_a_batch_is_one_loss_that_only_falls():
    config = TrainConfig("squared", n_documents=20, batch_size=20, remask=False, steps=50, learning_rate=0.1)
    loss = train_toy(toy("value"), config).loss
    assert (loss.diff() < 0).all()


def test_a_fixed_set_larger_than_a_batch_is_drawn_from_and_masked_anew_or_once():
    common = {"n_documents": 3, "batch_size": 1, "steps": 60, "learning_rate": 1e-12}
    once = train_toy(toy("value"), TrainConfig(**common, remask=False)).loss
    anew = train_toy(toy("value"), TrainConfig(**common)).loss
    assert len(np.unique(once.numpy().round(8))) == 3  # one loss per document
    assert len(np.unique(anew.numpy().round(8))) > 20


def test_documents_and_masking_can_be_others_than_the_models():
    longer = World(3, 4, topics_per_document=1, min_length=50, max_length=50)
    given = train_toy(toy(), TrainConfig(steps=3, world=longer, masking=Masking(0.5, 0.0, 0.0)))
    built = build_toy(ToyConfig(world=longer, masking=Masking(0.5, 0.0, 0.0), dtype="float64"))
    assert torch.equal(given.loss, train_toy(built, TrainConfig(steps=3)).loss)


# What is recorded


def test_rows_hold_the_norms_of_their_step_and_the_penalty():
    seen = {}

    def look(model):
        step = len(seen)
        seen[step] = {name: value.detach().norm().item() for name, value in toy_tensors(model).items()}
        return 0.0

    history = train_toy(
        toy("attention"), TrainConfig(steps=6, l2=0.1, measure_every=1, optimizer="adam"), measure=look
    )
    assert history.steps.tolist() == list(range(7))
    for name, norms in history.norms.items():
        assert norms.tolist() == pytest.approx([seen[step][name] for step in range(7)])
    trained = ("W_K", "W_Q", "W_V", "b_K", "b_Q", "b_V")
    penalty = [0.1 * sum(seen[step][name] ** 2 for name in trained) for step in range(7)]
    assert history["penalty"].tolist() == pytest.approx(penalty)


def gradient_norms(t, masked, loss):
    """Frobenius norms of the gradients of the plain loss, by name; those of tensors that are given as trained."""
    trained = {name: value for name, value in t.items() if value.requires_grad}
    found = torch.autograd.grad(plain_loss(t, masked, loss), list(trained.values()), materialize_grads=True)
    return {name: gradient.norm().item() for name, gradient in zip(trained, found, strict=True)}


@pytest.mark.parametrize("forward", ["lean", "hooked"])
@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_are_recorded_from_the_start_without_the_penalty(loss, forward):
    config = TrainConfig(
        loss, "adam", 0.05, 0.3, batch_size=4, steps=7, record_every=3, measure_every=1, forward=forward,
        record_gradients=True,
    )  # fmt: skip
    seen = []
    history = train_toy(
        toy("two-stage"),
        config,
        measure=lambda m: seen.append({n: v.detach().clone() for n, v in toy_tensors(m).items()}) or 0,
    )
    generator, expected = torch.Generator().manual_seed(0), []
    for t in seen:
        documents = WORLD.documents(4, generator=generator)
        masked = Masking().corrupt(documents, n_words=WORLD.n_words, generator=generator)
        for name in ("W_K", "W_Q", "W_V"):
            t[name].requires_grad_()
        expected.append(gradient_norms(t, masked, loss))
    assert history.steps.tolist() == [0, 3, 6, 7]
    assert history.columns[-3:] == ("gradient_W_K", "gradient_W_Q", "gradient_W_V")
    assert list(history.gradients) == ["W_K", "W_Q", "W_V"]
    for name, norms in history.gradients.items():
        assert norms.tolist() == pytest.approx([expected[step][name] for step in (0, 3, 6, 7)], rel=1e-9)
        assert (norms > 0).all()


def test_recording_gradients_changes_nothing_else_and_is_off_unless_asked_for():
    plain, more = (train_toy(toy(), TrainConfig(steps=12, record_gradients=on)) for on in (False, True))
    assert plain.gradients == {}
    n = len(plain.columns)
    assert more.columns == (
        *plain.columns,
        *(f"gradient_{name}" for name in ToyConfig(world=WORLD).tensor_names),
    )
    assert torch.equal(
        more.table[:, : n - 1], plain.table[:, : n - 1]
    )  # the last is a rotation, NaN at first
    assert all(torch.equal(value, plain.tensors[name]) for name, value in more.tensors.items())
    assert TrainConfig() == TrainConfig(record_gradients=False)


def test_recorded_gradients_go_through_a_checkpoint_and_a_file(tmp_path):
    config = TrainConfig(steps=9, optimizer="adam", record_every=2, record_gradients=True)
    whole = train_toy(toy(), config)
    train_toy(toy(), replace(config, steps=4), checkpoint=tmp_path / "training")
    again = train_toy(toy(seed=5), config, checkpoint=tmp_path / "training")
    assert again.columns == whole.columns
    assert torch.equal(again.table[:, 0], whole.table[:, 0])
    again.save(tmp_path / "history")
    for name, norms in load_report(tmp_path / "history").gradients.items():
        assert torch.equal(norms, whole.gradients[name])


def test_rotation_is_half_of_one_minus_the_cosine_to_ten_steps_before():
    config = TrainConfig(steps=23, measure_every=1, optimizer="adam", learning_rate=0.1, record_every=3)
    history = train_toy(toy("value"), config, measure=lambda m: {"W": toy_tensors(m)["W_V"]})
    W = history.measured["W"].values.flatten(1)
    assert history.steps.tolist() == [0, 3, 6, 9, 12, 15, 18, 21, 23]
    for step, rotation in zip(history.steps.tolist(), history.rotations["W_V"].tolist(), strict=True):
        if step < 10:
            assert math.isnan(rotation)
        else:
            cosine = torch.cosine_similarity(W[step], W[step - 10], dim=0).item()
            assert rotation == pytest.approx((1 - cosine) / 2, abs=1e-12)
            assert rotation > 1e-4


def test_a_value_matrix_of_zeros_has_no_direction():
    config = TrainConfig(steps=12, learning_rate=1e-300)
    history = train_toy(toy("value", init="near-zero", noise=0.0), config)
    assert history["rotation_W_V"].isnan().all()


def test_the_last_row_is_the_loss_the_next_step_would_have_had():
    short, long = (train_toy(toy(), TrainConfig(steps=steps)) for steps in (4, 9))
    assert torch.equal(short.table[:, :-1], long.table[:5, :-1])  # but for the rotation, NaN so early


def test_measurements_are_made_at_the_chosen_steps_and_keep_their_shapes():
    calls = []

    def numbers(model):
        calls.append(model)
        return {"scalar": np.float64(3), "deep": {"array": np.arange(2), "tensor": torch.ones(2, 3)}}

    model = toy()
    config = TrainConfig(steps=25, measure_every=10, measure_steps=(3, 25))
    history = train_toy(model, config, measure={"a": numbers, "b": lambda _: 1})
    assert all(call is model for call in calls)
    assert history.measured["a.scalar"].steps.tolist() == [0, 3, 10, 20, 25]
    assert history.measured["a.deep.tensor"].values.shape == (5, 2, 3)
    assert set(history.measured) == {"a.scalar", "a.deep.array", "a.deep.tensor", "b"}
    frame = history.to_dataframe()
    assert frame.loc[frame["step"] == 3, "a.scalar"].item() == 3
    assert frame["b"].notna().sum() == 5
    assert "a.deep.array" not in frame


def test_without_a_choice_the_start_and_the_end_are_measured():
    history = train_toy(toy(), TrainConfig(steps=7), measure=lambda _: 2.0)
    assert history.measured["measured"].steps.tolist() == [0, 7]


def test_measurements_that_are_no_numbers_or_change_shape_are_refused():
    with pytest.raises(
        TypeError, match="measure must return numbers, arrays or a mapping of names to those, got str"
    ):
        train_toy(toy(), TrainConfig(steps=1), measure=lambda _: "high")
    sizes = iter((2, 3))
    with pytest.raises(ValueError, match=r"shape \(3,\) at step 1, after \(2,\) before"):
        train_toy(toy(), TrainConfig(steps=1), measure=lambda _: np.zeros(next(sizes)))


def test_the_logger_gets_every_row():
    rows = []
    history = train_toy(
        toy(), TrainConfig(steps=7, record_every=3), log=lambda step, row: rows.append((step, row))
    )
    assert [step for step, _ in rows] == [0, 3, 6, 7]
    assert [row["loss"] for _, row in rows] == history.loss.tolist()


def test_the_progress_bar_reaches_the_end(capsys):
    train_toy(toy(), TrainConfig(steps=5), progress=True)
    assert "5/5" in capsys.readouterr().err
    train_toy(toy(), TrainConfig(steps=5))
    assert capsys.readouterr().err == ""


def test_batches_with_nothing_masked_are_drawn_again_and_counted():
    config = TrainConfig(steps=10, batch_size=1, masking=Masking(p_mask=0.02))
    history = train_toy(toy(), config)
    assert len(history) == 11
    assert history.empty_batches > 10
    generator = torch.Generator().manual_seed(0)
    empty = 0
    for _ in range(11):
        while True:
            documents = WORLD.documents(1, generator=generator)
            masked = Masking(p_mask=0.02).corrupt(documents, n_words=WORLD.n_words, generator=generator)
            if masked.chosen.any():
                break
            empty += 1
    assert history.empty_batches == empty


def test_a_hook_on_the_model_takes_part_in_the_training():
    plain, hooked = toy("value"), toy("value")
    train_toy(plain, TrainConfig(steps=3))
    pattern = "blocks.0.attn.hook_pattern"
    with hooked.hooks(fwd_hooks=[(pattern, lambda p, hook: torch.zeros_like(p))]):
        history = train_toy(hooked, TrainConfig(steps=3))
    assert history.provenance["forward"] == "hooked"
    # Nothing is attended to, so W_V never matters.
    assert torch.equal(toy_tensors(hooked)["W_V"], toy_tensors(toy("value"))["W_V"])
    assert not torch.equal(toy_tensors(plain)["W_V"], toy_tensors(hooked)["W_V"])


# A schedule

ALTERNATING = ((3, ("W_V", "b_V")), (2, ("W_K", "W_Q", "b_Q", "b_K")), (1, "W_Q"))


def scheduled_training(model, config, steps):
    """As `plain_training`: torch's optimizers leave out, with all their state, what has no gradient."""
    t = {name: value.detach().clone() for name, value in toy_tensors(model).items()}
    trained = {name: t[name].requires_grad_() for name, p in toy_parameters(model).items() if p.requires_grad}
    make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[config.optimizer]
    optimizer = make(trained.values(), lr=config.learning_rate, weight_decay=2 * config.l2)
    generator = torch.Generator().manual_seed(config.seed)
    rounds = [names for n, names in ALTERNATING for _ in range(n)]
    for step in range(steps):
        documents = WORLD.documents(config.batch_size, generator=generator)
        masked = Masking().corrupt(documents, n_words=WORLD.n_words, generator=generator)
        optimizer.zero_grad()
        plain_loss(t, masked, config.loss).backward()
        t["b_K"].grad.zero_()
        for name in trained.keys() - set(np.atleast_1d(rounds[step % 6])):
            t[name].grad = None
        optimizer.step()
    return t


@pytest.mark.parametrize("forward", ["lean", "hooked"])
@pytest.mark.parametrize(("optimizer", "l2"), [("sgd", 0.02), ("adam", 0.02), ("adam", 0.0)])
def test_a_schedule_moves_what_a_phase_names_and_leaves_the_rest_with_its_moments(optimizer, l2, forward):
    config = TrainConfig(
        "squared", optimizer, 0.05, l2, batch_size=4, steps=20, seed=5, forward=forward, schedule=ALTERNATING
    )
    expected, model = scheduled_training(toy("attention"), config, 20), toy("attention")
    history = train_toy(model, config)
    for name, value in toy_tensors(model).items():
        assert (value - expected[name]).abs().max() <= 1e-10, name
    moved = (history.norms["W_V"].diff() != 0).tolist()
    assert moved == [step % 6 < 3 for step in range(20)]
    assert (history.norms["W_K"].diff() != 0).tolist() == [step % 6 in (3, 4) for step in range(20)]
    assert (history.norms["W_Q"].diff() != 0).tolist() == [step % 6 >= 3 for step in range(20)]


def test_a_schedule_of_one_phase_is_none():
    plain, scheduled = (
        train_toy(toy("two-stage"), TrainConfig(optimizer="adam", steps=9, schedule=schedule))
        for schedule in ((), ((4, ("W_Q", "W_K", "W_V")),))
    )
    assert_same_run(plain, scheduled)


@pytest.mark.parametrize("stop", range(1, 13))
def test_a_training_stopped_in_the_middle_of_a_phase_goes_on_as_if_never_stopped(tmp_path, stop):
    config = TrainConfig(optimizer="adam", steps=14, schedule=ALTERNATING, l2=0.01, learning_rate=0.1)
    path = tmp_path / "run.safetensors"
    train_toy(toy("attention"), replace(config, steps=stop), checkpoint=path)
    assert_same_run(
        train_toy(toy("attention", seed=3), config, checkpoint=path), train_toy(toy("attention"), config)
    )


def test_a_name_of_a_schedule_stands_for_that_tensor_in_every_layer():
    frozen = {"W_E": "random", "W_Q": "random"}
    model = toy(n_layers=2, d_model=6, trained=("W_K", "W_V"), frozen=frozen)
    history = train_toy(model, TrainConfig(steps=4, schedule=((1, ("W_V", "W_K.1")), (1, ("W_K.0",)))))
    moved = {name: (norm.diff() != 0).tolist() for name, norm in history.norms.items()}
    assert moved["W_V.0"] == moved["W_V.1"] == moved["W_K.1"] == [True, False, True, False]
    assert moved["W_K.0"] == [False, True, False, True]


def test_a_schedule_that_does_not_fit_the_model_is_refused():
    def train(schedule):
        train_toy(toy("two-stage"), TrainConfig(steps=1, schedule=schedule))

    with pytest.raises(ValueError, match=r"schedule moves 'b_V', but trained are W_K, W_Q, W_V; .*ToyConfig"):
        train(((1, ("W_V", "b_V")), (1, ("W_K", "W_Q"))))
    with pytest.raises(ValueError, match="schedule never moves W_Q; name it in a phase"):
        train(((1, ("W_V",)), (1, ("W_K",))))


# Stopping and going on


def assert_same_run(one, other):
    assert torch.equal(one.steps, other.steps)
    assert torch.equal(one.table.nan_to_num(-1), other.table.nan_to_num(-1))
    assert one.columns == other.columns
    assert (one.last_step, one.empty_batches, one.stopped) == (
        other.last_step,
        other.empty_batches,
        other.stopped,
    )
    assert one.tensors.keys() == other.tensors.keys()
    assert all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)
    assert one.measured.keys() == other.measured.keys()
    for name in one.measured:
        assert torch.equal(one.measured[name].steps, other.measured[name].steps)
        assert torch.equal(one.measured[name].values, other.measured[name].values)


SETTINGS = [
    ("full", {"optimizer": "adam", "l2": 0.01}),
    ("value", {"optimizer": "sgd", "n_documents": 60, "record_every": 3}),
    (
        "attention",
        {"optimizer": "adam", "masking": Masking(0.02), "batch_size": 2, "n_documents": 9, "remask": False},
    ),
    ("full", {"optimizer": "adam", "forward": "hooked", "learning_rate": 0.02}),
]


def measured_training(model, config, **options):
    return train_toy(model, config, measure=lambda m: toy_tensors(m)["W_V"].norm(), **options)


@pytest.mark.parametrize(("regime", "settings"), SETTINGS)
def test_a_training_stopped_by_ctrl_c_and_continued_is_the_one_never_stopped(tmp_path, regime, settings):
    config = TrainConfig(steps=45, measure_every=7, **settings)
    whole = measured_training(toy(regime, dtype="float32"), config)
    path = tmp_path / "run.safetensors"

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
    whole = train_toy(toy(), config)

    class KilledError(Exception):
        pass

    def kill(step, _row):
        if step == 33:
            raise KilledError

    with pytest.raises(KilledError):
        train_toy(toy(), config, log=kill, checkpoint=path, checkpoint_every=10)
    steps = []
    resumed = train_toy(toy(seed=3), config, log=lambda step, _: steps.append(step), checkpoint=path)
    assert steps == list(range(30, 41))
    assert_same_run(resumed, whole)


def test_an_interrupt_from_a_callback_returns_the_history_so_far(tmp_path):
    config, path = TrainConfig(optimizer="adam", steps=40), tmp_path / "run.safetensors"

    def stop(step, _row):
        if step == 12:
            raise KeyboardInterrupt

    history = train_toy(toy(), config, log=stop, checkpoint=path)
    assert history.stopped == "interrupted at step 12 of 40"
    assert history.steps.tolist() == list(range(13))
    assert_same_run(train_toy(toy(), config, checkpoint=path), train_toy(toy(), config))


def test_an_interrupt_in_the_middle_of_measuring_leaves_nothing_measured_twice(tmp_path):
    config, path = TrainConfig(steps=20, measure_every=5), tmp_path / "run.safetensors"
    calls = []

    def first(model):
        return toy_tensors(model)["W_V"].norm()

    def stop_once(_):
        calls.append(None)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return 0.0

    measure = {"first": first, "second": stop_once}
    assert (
        train_toy(toy(), config, measure=measure, checkpoint=path).stopped == "interrupted at step 10 of 20"
    )
    resumed = train_toy(toy(), config, measure=measure, checkpoint=path)
    assert (
        resumed.measured["first"].steps.tolist()
        == resumed.measured["second"].steps.tolist()
        == [0, 5, 10, 15, 20]
    )
    assert_same_run(resumed, train_toy(toy(), config, measure=measure))


def test_a_second_ctrl_c_does_not_wait():
    def insist(step, _row):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train_toy(toy(), TrainConfig(steps=5), log=insist)


def test_a_finished_training_can_be_made_longer(tmp_path):
    path = tmp_path / "folder" / "run.safetensors"
    train_toy(toy(), TrainConfig(optimizer="adam", steps=20), checkpoint=path)
    longer = train_toy(toy(seed=4), TrainConfig(optimizer="adam", steps=33), checkpoint=path)
    assert_same_run(longer, train_toy(toy(), TrainConfig(optimizer="adam", steps=33)))
    with pytest.raises(ValueError, match="is of step 33, beyond steps=20; raise steps"):
        train_toy(toy(), TrainConfig(optimizer="adam", steps=20), checkpoint=path)


def test_the_checkpoint_of_another_config_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "run.safetensors"
    train_toy(toy(), TrainConfig(steps=3), checkpoint=path)
    content = path.read_bytes()
    with pytest.raises(
        ValueError, match=r"another train config: learning_rate \(0.01 there, 0.1 here\).*Choose"
    ):
        train_toy(toy(), TrainConfig(steps=3, learning_rate=0.1), checkpoint=path)
    with pytest.raises(ValueError, match=r"another toy config: regime \('full' there, 'value' here\)"):
        train_toy(toy("value"), TrainConfig(steps=3), checkpoint=path)
    assert path.read_bytes() == content


def test_truncated_damaged_and_foreign_files_are_refused_by_name(tmp_path):
    path, config = tmp_path / "run.safetensors", TrainConfig(steps=3)
    train_toy(toy(), config, checkpoint=path)
    content = path.read_bytes()
    for length in (0, 5, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"run\.safetensors is truncated or no checkpoint .*; delete it"):
            train_toy(toy(), config, checkpoint=path)
    path.write_bytes(content[:-20] + bytes([content[-20] ^ 1]) + content[-19:])
    with pytest.raises(ValueError, match=r"run\.safetensors is damaged: .* checksum; delete it"):
        train_toy(toy(), config, checkpoint=path)
    save_file({"W": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match=r"run\.safetensors is damaged"):
        train_toy(toy(), config, checkpoint=path)
    with pytest.raises(ValueError, match="truncated or no checkpoint"):
        train_toy(toy(), config, checkpoint=tmp_path)


def test_a_refused_checkpoint_leaves_the_model_untouched(tmp_path):
    path = tmp_path / "run.safetensors"
    train_toy(toy(), TrainConfig(steps=3), checkpoint=path)
    path.write_bytes(path.read_bytes()[:-1])
    model = toy(seed=2)
    with pytest.raises(ValueError, match="truncated"):
        train_toy(model, TrainConfig(steps=3), checkpoint=path)
    assert torch.equal(toy_tensors(model)["W_V"], toy_tensors(toy(seed=2))["W_V"])


class Bomb:
    def __reduce__(self):
        return (Path.touch, (Path("exploded"),))


def test_a_pickle_is_never_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run.pt").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match="truncated or no checkpoint"):
        train_toy(toy(), TrainConfig(steps=1), checkpoint="run.pt")
    assert not Path("exploded").exists()


def test_a_full_disk_costs_the_checkpoint_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "run.safetensors"
    train_toy(toy(), TrainConfig(steps=3), checkpoint=path)
    content = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("topic_probe.train.loop.os.fsync", full)
    with pytest.warns(UserWarning, match=r"no checkpoint was written at step 9 .*No space left"):
        history = train_toy(toy(), TrainConfig(steps=9), checkpoint=path)
    assert history.stopped == "finished"
    assert path.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == ["run.safetensors"]


def test_checkpoints_hold_named_tensors_in_the_papers_orientation(tmp_path):
    path, model = tmp_path / "run.safetensors", toy("value", d_attention=2)
    train_toy(model, TrainConfig(steps=3), checkpoint=path)
    with safe_open(path, "pt") as file:
        assert torch.equal(file.get_tensor("tensor.W_V"), toy_tensors(model)["W_V"])
        assert file.get_tensor("tensor.W_K").shape == (2, SIZE)
        assert json.loads(file.metadata()["about"])["step"] == 3


def test_a_training_of_no_step_has_a_checkpoint_too(tmp_path):
    path, config = tmp_path / "run.safetensors", TrainConfig(steps=0)
    first = train_toy(toy(), config, checkpoint=path)
    again = train_toy(toy(), config, checkpoint=path)
    assert (again.last_step, again.stopped) == (0, "finished")
    assert torch.equal(again.tensors["W_V"], first.tensors["W_V"])
    # It goes on like one that was never stopped.
    longer = TrainConfig(steps=3)
    assert torch.equal(train_toy(toy(), longer, checkpoint=path).loss, train_toy(toy(), longer).loss)


def test_divergence_stops_with_the_last_state_that_had_a_finite_loss():
    model = toy("value", init="near-zero")
    history = train_toy(model, TrainConfig("squared", learning_rate=1e80, steps=50))
    assert history.stopped.startswith("diverged: the loss of step ")
    assert "lower learning_rate" in history.stopped
    assert 0 < history.last_step < 10
    assert history.steps.tolist() == list(range(history.last_step + 1))
    assert history.loss.isfinite().all()
    assert toy_tensors(model)["W_V"].isfinite().all()
    assert toy_tensors(model)["W_V"].norm().item() == pytest.approx(history["norm_W_V"][-1].item())
    assert torch.equal(history.tensors["W_V"], toy_tensors(model)["W_V"])


def test_a_diverged_training_keeps_its_last_good_checkpoint(tmp_path):
    path = tmp_path / "run.safetensors"
    config = TrainConfig("squared", learning_rate=1e80, steps=50)
    history = train_toy(toy("value"), config, checkpoint=path, checkpoint_every=1)
    resumed = train_toy(toy("value", seed=1), config, checkpoint=path)
    assert_same_run(resumed, history)


def test_tensors_that_are_not_finite_from_the_start_are_an_error():
    model = toy("value")
    set_toy_tensors(model, {"W_V": torch.full((SIZE, SIZE), torch.nan)})
    with pytest.raises(ValueError, match="the loss of step 0 is nan, before any update"):
        train_toy(model, TrainConfig(steps=5))


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "hinge"}, "loss must be one of 'cross_entropy', 'squared', got 'hinge'"),
        ({"optimizer": "lion"}, "optimizer must be one of 'sgd', 'adam'"),
        ({"forward": "fast"}, "forward must be one of 'auto', 'lean', 'hooked'"),
        ({"learning_rate": 0.0}, "learning_rate must be positive and finite, got 0.0"),
        ({"learning_rate": math.nan}, "learning_rate must be positive and finite"),
        ({"l2": -0.1}, "l2 is the weight of a penalty and must be at least 0"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"steps": -1}, "steps must be at least 0"),
        ({"record_every": 0}, "record_every must be at least 1"),
        ({"measure_every": 0}, "measure_every must be at least 1"),
        ({"n_documents": 0}, "n_documents must be at least 1"),
        ({"schedule": (("W_V", 3),)}, r"a phase of schedule must be \(steps, tensors\), .* got \('W_V', 3\)"),
        ({"schedule": ((3, ("W_V",)), 5)}, r"a phase of schedule must be \(steps, tensors\), .* got 5"),
        ({"schedule": ((0, ("W_V",)),)}, "steps of a phase of schedule must be at least 1, got 0"),
        ({"schedule": ((2, ()),)}, r"a phase of schedule must be \(steps, tensors\), .* got \(2, \(\)\)"),
        ({"steps": 5, "measure_steps": (6,)}, r"measure_steps must lie in 0..steps=5, got \[6\]"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_impossible_settings_are_refused_with_what_was_needed(options, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**options)


def test_settings_that_do_not_fit_the_model_are_refused():
    with pytest.raises(ValueError, match="the documents have 101 token ids, the model 13"):
        train_toy(toy(), TrainConfig(steps=1, world=World()))
    with pytest.raises(ValueError, match="with p_mask=0 nothing is masked"):
        train_toy(toy(), TrainConfig(steps=1, masking=Masking(p_mask=0.0)))
    with pytest.raises(ValueError, match="1000 batches in a row had nothing masked; raise p_mask=1e-12"):
        train_toy(toy(), TrainConfig(steps=1, batch_size=1, masking=Masking(p_mask=1e-12)))
    with pytest.raises(ValueError, match="the lean form is for one layer and head"):
        train_toy(toy(residual=True), TrainConfig(steps=1, forward="lean"))
    with pytest.raises(ValueError, match="every tensor of the model is frozen"):
        train_toy(toy(trained=()), TrainConfig(steps=1))
    with pytest.raises(TypeError, match="needed a toy transformer"):
        train_toy(torch.nn.Linear(2, 2), TrainConfig(steps=1))
    with pytest.raises(ValueError, match="checkpoint_every must be at least 1"):
        train_toy(toy(), TrainConfig(steps=1), checkpoint_every=0)


def test_settings_survive_json():
    config = TrainConfig(world=WORLD, masking=Masking(0.2), measure_steps=(1, 2), n_documents=7, l2=0.5)
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert TrainConfig.from_dict(json.loads(json.dumps(TrainConfig().to_dict()))) == TrainConfig()
    listed = TrainConfig(schedule=[(3, ["W_V"]), (2, "W_K")])
    assert listed.schedule == ((3, ("W_V",)), (2, ("W_K",)))
    assert TrainConfig.from_dict(json.loads(json.dumps(listed.to_dict()))) == listed
    assert hash(listed) == hash(replace(listed))


# The history on disk


def test_a_saved_history_comes_back_whole_and_is_not_overwritten_unasked(tmp_path):
    config = TrainConfig(steps=13, record_every=2, masking=Masking(0.2), measure_steps=(4,))
    history = train_toy(toy(d_attention=2), config, measure=lambda m: {"E": toy_tensors(m)["W_E"], "n": 2})
    folder = tmp_path / "runs" / "first"
    history.save(folder)
    loaded = History.load(folder)
    assert_same_run(loaded, history)
    assert (loaded.toy, loaded.train, loaded.provenance) == (history.toy, history.train, history.provenance)
    with pytest.raises(FileExistsError, match="first is not empty and is not overwritten unasked"):
        history.save(folder)
    other = train_toy(toy("value"), TrainConfig(steps=1))
    other.save(folder, overwrite=True)
    assert_same_run(History.load(folder), other)
    assert [entry.name for entry in folder.parent.iterdir()] == ["first"]


def test_broken_and_foreign_histories_are_refused_by_name(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(FileNotFoundError, match=r"saved\.json does not exist"):
        History.load(folder)
    train_toy(toy(), TrainConfig(steps=1)).save(folder)
    manifest = folder / "saved.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"empty_batches": 0', '"empty_batches": 1'))
    with pytest.raises(ValueError, match=r"saved\.json is not whole"):
        History.load(folder)
    manifest.write_text(text)
    (tensors,) = folder.glob("arrays-*.safetensors")
    tensors.write_bytes(tensors.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"safetensors is truncated"):
        History.load(folder)
    storage.save(tmp_path / "report", "agreement", {})
    with pytest.raises(ValueError, match="holds 'agreement', not 'history'"):
        History.load(tmp_path / "report")


def test_a_history_prints_as_a_few_lines_and_names_its_columns():
    history = train_toy(toy("value"), TrainConfig(steps=2))
    assert repr(history).startswith(
        "History of 'value' training: cross_entropy, sgd 0.01, step 2 of 2; finished\nloss "
    )
    assert "step 2 of 2; finished" in history._repr_html_()
    assert history["norm_W_V"].shape == (3,)
    with pytest.raises(KeyError, match="no column 'norm_W_X'; there are loss, penalty, norm_W_E"):
        history["norm_W_X"]


# What is learned


def test_a_short_value_training_finds_blocks():
    model = toy("value", dtype="float32")
    history = train_toy(model, TrainConfig("squared", "adam", 0.01, steps=300))
    W = toy_tensors(model)["W_V"].detach()[1:, 1:]
    topic = torch.arange(WORLD.n_words) // WORLD.words_per_topic
    same = topic[:, None] == topic[None, :]
    assert W[same].mean() > W[~same].mean() + 0.1
    assert history.loss[-50:].mean() < history.loss[:5].mean()
    assert toy_logits(model, torch.zeros(1, 3, dtype=torch.long)).isfinite().all()


def nearly_infinite_documents():
    return World(n_topics=5, words_per_topic=3, topics_per_document=2, min_length=4000, max_length=4000)


@pytest.mark.slow
def test_embedding_training_ends_at_the_conditions_of_theorem_1():
    world = nearly_infinite_documents()
    model = build_toy(ToyConfig("embedding", world=world))
    for learning_rate, steps in ((1.0, 1500), (0.1, 500)):
        config = TrainConfig("squared", "sgd", learning_rate, batch_size=10, steps=steps, record_every=100)
        history = train_toy(model, config)
    W_E = history.tensors["W_E"].double()
    check = theory.check_theorem1(W_E.T @ W_E, world, Masking())
    assert check.relative <= 0.01
    assert check.worst <= 0.02
    report = measure_agreement(model, loss="squared", n_documents=4, attention=False)
    assert report.theorem == "Theorem 1"
    assert report.family_distance < 0.01
    assert report.worst_residual < 0.02
    for name, part in report.residuals.items():
        assert torch.tensor(part).square().mean().sqrt() < 0.02, name
    floor = theory.loss_floor(world, Masking(), regime="embedding").value
    assert history.loss[-5:].mean().item() == pytest.approx(floor, rel=2e-3)
