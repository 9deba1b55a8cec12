"""A toy beside theory: planted optima are recognised, planted distances come out, losses are what they should be."""

import math

import known_toy
import numpy as np
import pytest
import torch

from topic_probe.measure.attention import measure_attention
from topic_probe.report import load_report
from topic_probe.toy import theory
from topic_probe.toy.agreement import AgreementReport, measure_agreement
from topic_probe.toy.lean import hooked_loss
from topic_probe.toy.masking import Masking
from topic_probe.toy.model import ToyConfig, build_toy, toy_logits, toy_parameters, toy_tensors
from topic_probe.toy.world import World, overlapping_words

WORLD = World(n_topics=4, words_per_topic=3, topics_per_document=2, min_length=30, max_length=40)
LDA = World(n_topics=4, words_per_topic=3, alpha=0.3, min_length=30, max_length=40)
MASKING = Masking()
N = WORLD.n_words


def toy(regime="value", *, world=WORLD, tensors=None, **settings):
    config = ToyConfig(regime=regime, world=world, masking=MASKING, dtype="float64", **settings)
    return build_toy(config, tensors=tensors or {})


def agreement(model, *, loss="squared", n_documents=20, attention=False, **options):
    return measure_agreement(model, loss=loss, n_documents=n_documents, attention=attention, **options)


def optimum():
    return theory.optimal_value(WORLD, MASKING)


def random_matrix(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# -------------------------------------------------------------------- matrices


def test_the_planted_optimum_of_theorem_2_has_no_distance():
    report = agreement(toy(tensors={"W_V": optimum()}))
    assert (report.matrix, report.theorem) == ("W_V", "Lemma 1")
    assert report.value_distance == 0
    assert report.family_distance == pytest.approx(0, abs=1e-14)
    assert report.worst_residual == pytest.approx(0, abs=1e-14)
    constants = theory.optimal_value_constants(WORLD, MASKING)
    assert report.value_entries["same_topic"] == pytest.approx(constants.same_topic)
    assert report.value_entries["different_topic"] == pytest.approx(constants.different_topic)
    assert report.value_entries["mask_column"] == pytest.approx(constants.mask_column)
    assert report.value_entries == pytest.approx(report.value_theory)


def test_a_planted_distance_comes_out():
    step = random_matrix(N + 1, N + 1)
    moved = optimum() + 0.3 * optimum().norm() * step / step.norm()
    assert agreement(toy(tensors={"W_V": moved})).value_distance == pytest.approx(0.3)


def test_moving_weight_within_a_topic_leaves_the_family_but_not_theorem_2():
    moved = optimum()
    moved[5, 1], moved[5, 2] = moved[5, 1] + 0.2, moved[5, 2] - 0.2  # words 1 and 2 are of one topic
    report = agreement(toy(tensors={"W_V": moved}))
    assert report.family_distance == pytest.approx(0, abs=1e-14)
    assert report.value_distance == pytest.approx(0.2 * math.sqrt(2) / float(optimum().norm()))


def test_a_broken_condition_is_measured_at_the_nearest_optimum():
    broken = optimum()
    broken[3, 0] += 0.5
    report = agreement(toy(tensors={"W_V": broken}))
    # The row gives way by u = −c2 · 0.5 / (c2² + n), which leaves 0.5 n / (c2² + n) of the error in its column 0.
    c2 = 1 / (0.8 * 0.15) - 1
    assert report.residuals["mask_column"][2] == pytest.approx(0.5 * N / (c2**2 + N))
    assert report.u[3] - theory.check_lemma1(optimum(), WORLD, MASKING).u[3] == pytest.approx(
        -c2 * 0.5 / (c2**2 + N)
    )
    assert np.delete(report.residuals["mask_column"], 2) == pytest.approx(0, abs=1e-14)
    assert report.worst_residual == pytest.approx(3 * c2 * 0.5 / (c2**2 + N))  # block sums of v = 3 words


def test_a_bias_counts_as_part_of_the_column_of_the_mask():
    # Long documents show [MASK] with the frequency m = 0.15 · 0.8, so a bias of m c does what c in column 0 does.
    shifted = optimum()
    shifted[:, 0] -= 0.7
    bias = torch.full((N + 1,), 0.7 * 0.15 * 0.8, dtype=torch.float64)
    report = agreement(toy("attention", tensors={"W_V": shifted, "b_V": bias}))
    assert report.family_distance == pytest.approx(0, abs=1e-12)
    assert report.value_distance > 0.1


def test_the_planted_embedding_of_theorem_1_has_no_distance():
    report = agreement(toy("embedding", tensors={"W_E": known_toy.one_hot_embedding(N, a=1 - 0.9 * 0.15)}))
    assert (report.matrix, report.theorem) == ("W_Eᵀ W_E", "Theorem 1")
    assert report.worst_residual == pytest.approx(0, abs=1e-14)
    assert report.u == pytest.approx(0, abs=1e-14)
    assert math.isnan(report.value_distance)
    assert "one-hot" in report.reasons["Theorem 2"]


def test_the_papers_example_for_theorem_1_is_off_at_the_mask_alone():
    scale = 1 / math.sqrt(1 - 0.9 * 0.15)
    report = agreement(toy("embedding", tensors={"W_E": scale * torch.eye(N + 1, dtype=torch.float64)}))
    assert report.residuals["same_topic"] == pytest.approx(0, abs=1e-12)
    assert abs(report.residuals["mask_entry"][0]) > 0.1


def test_a_full_model_is_held_against_lemma_1_through_all_its_matrices():
    turn = torch.linalg.qr(random_matrix(N + 1, N + 1)).Q
    tensors = {"W_E": turn, "W_V": turn @ optimum() @ turn.T, "b_V": torch.zeros(N + 1)}
    report = agreement(toy("full", tensors=tensors))
    assert (report.matrix, report.theorem) == ("W_Eᵀ W_V W_E", "Lemma 1")
    assert report.family_distance == pytest.approx(0, abs=1e-12)


def test_the_closed_forms_are_silent_about_cross_entropy_and_about_depth():
    assert "squared loss" in agreement(toy(), loss="cross_entropy").reasons["matrices"]
    deep = agreement(toy("attention", n_layers=2))
    assert "one layer" in deep.reasons["matrices"]
    assert deep.theorem is None
    assert math.isnan(deep.worst_residual)
    assert math.isnan(deep.family_distance)


# -------------------------------------------------------------------- loss


def test_a_model_that_predicts_nothing_loses_exactly_one_squared():
    report = agreement(toy(tensors={"W_V": torch.zeros(N + 1, N + 1)}), n_documents=200)
    assert report.loss == pytest.approx(1.0, abs=2 * report.loss_error)
    assert report.guess == pytest.approx(1 - 1 / N)


def test_a_model_that_guesses_all_tokens_alike_loses_the_logarithm_of_their_number():
    report = agreement(toy(tensors={"W_V": torch.zeros(N + 1, N + 1)}), loss="cross_entropy", n_documents=200)
    assert report.loss == pytest.approx(math.log(N + 1), abs=2 * report.loss_error)
    assert report.guess == pytest.approx(math.log(N))
    assert report.share_gained < 0.02


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
@pytest.mark.parametrize("world", [WORLD, LDA], ids=["uniform topics", "LDA"])
def test_the_loss_is_that_at_drawn_words_but_surer(loss, world):
    model = toy("attention", world=world, tensors={"W_V": 2 * optimum()})
    report = agreement(model, loss=loss, n_documents=400)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        drawn = torch.stack([
            hooked_loss(
                model, MASKING.corrupt(world.documents(20, generator=generator), n_words=N, generator=generator),
                loss=loss,
            )
            for _ in range(200)
        ])  # fmt: skip
    error = float(drawn.std()) / math.sqrt(len(drawn))
    assert report.loss == pytest.approx(float(drawn.mean()), abs=4 * math.hypot(error, report.loss_error))
    assert report.excess > 0
    assert report.loss == report.bayes + report.excess
    assert report.share_gained == pytest.approx(1 - report.excess / (report.guess - report.bayes))


def test_the_standard_error_is_the_spread_between_samples_of_documents():
    model = toy("attention", world=LDA)
    reports = [agreement(model, loss="cross_entropy", seed=seed) for seed in range(40)]
    spread = np.std([report.excess for report in reports], ddof=1)
    assert spread == pytest.approx(np.mean([report.excess_error for report in reports]), rel=0.3)


def test_an_overlapping_world_has_a_loss_and_no_bayes():
    world = World(
        n_topics=4, words_per_topic=3, alpha=0.3, min_length=30, max_length=40,
        word_probabilities=overlapping_words(4, 3),
    )  # fmt: skip
    report = agreement(toy(world=world, tensors={"W_V": torch.zeros(N + 1, N + 1)}))
    assert report.loss == 1
    assert report.loss_error == 0
    assert math.isnan(report.bayes)
    assert math.isnan(report.excess)
    assert "no exact posterior" in report.reasons["Bayes-optimal loss"]
    assert "word_probabilities" in report.reasons["matrices"]
    assert "floor" in report.reasons


def test_documents_too_long_for_the_posterior_still_have_a_loss():
    world = World(n_topics=4, words_per_topic=3, topics_per_document=2, min_length=1001, max_length=1001)
    report = agreement(toy(world=world, tensors={"W_V": optimum()}), n_documents=4)
    assert "too long" in report.reasons["Bayes-optimal loss"]
    assert report.loss == pytest.approx(report.floor, abs=0.02)


def test_results_do_not_depend_on_the_batch_size():
    model = toy("full", world=LDA)
    whole = agreement(model, n_documents=130, attention=True, batch_size=130)
    parts = agreement(model, n_documents=130, attention=True, batch_size=7)
    assert parts.excess == pytest.approx(whole.excess, rel=1e-12)
    assert parts.weighted_mean == pytest.approx(whole.weighted_mean, rel=1e-9)
    assert (parts.bayes, parts.floor) == (whole.bayes, whole.floor)


# -------------------------------------------------------------------- attention


def test_uniform_attention_has_a_weighted_mean_of_one_and_the_optimum_beside_it():
    report = agreement(toy(), attention=True)
    assert report.weighted_mean == pytest.approx(1.0, rel=1e-12)
    bounds = theory.attention_bounds(WORLD, MASKING)
    assert report.weighted_mean_bounds == (bounds.lower, bounds.upper)
    assert report.bounds_unmet == bounds.unmet == ("words_per_topic > (1/a + 1)² + 1",)
    assert report.weighted_mean_optimum == theory.optimal_attention(WORLD, MASKING).weighted_mean


def planted_attention(alpha, beta):
    """W_K and W_Q whose scores are log β, log α and 0."""
    topic = (torch.arange(N + 1) + 2) // 3  # [MASK] is a topic of its own
    scores = torch.where(topic[:, None] == topic, math.log(alpha), 0.0)
    scores.fill_diagonal_(math.log(beta))
    return {"W_K": scores, "W_Q": math.sqrt(N + 1) * torch.eye(N + 1)}


def test_planted_attention_comes_out_as_its_weighted_mean():
    long = World(n_topics=4, words_per_topic=3, topics_per_document=2, min_length=300, max_length=300)
    report = agreement(toy("keys", world=long, tensors=planted_attention(2.0, 5.0)), attention=True)
    # (v − 1)/v α + β/v, blurred because rows are normalised by what their document holds.
    assert report.weighted_mean == pytest.approx(2 / 3 * 2 + 5 / 3, rel=0.1)
    assert report.within_bounds is True


def test_attention_to_other_topics_is_outside_the_interval():
    strong = {"topics_per_document": 4}
    many = World(n_topics=4, words_per_topic=3, min_length=60, max_length=60, **strong)
    report = agreement(toy("keys", world=many, tensors=planted_attention(0.5, 0.5)), attention=True)
    assert report.weighted_mean < 1 < report.weighted_mean_bounds[0]
    assert report.within_bounds is False
    assert "outside Theorem 3" in repr(report)


def test_lda_has_no_interval_because_it_has_no_number_of_topics():
    report = agreement(toy(world=LDA), attention=True)
    assert report.weighted_mean_bounds is None
    assert report.within_bounds is None
    assert math.isnan(report.weighted_mean_optimum)
    assert "alpha=0.3" in report.reasons["Theorem 3"]
    assert report.weighted_mean == pytest.approx(1.0)


@pytest.mark.parametrize("settings", [{}, {"n_layers": 2, "n_heads": 3, "residual": True}])
def test_attention_is_what_measuring_any_model_gives(settings):
    model = toy("attention", world=LDA, **settings)
    generator = torch.Generator().manual_seed(0)
    batch = MASKING.corrupt(LDA.documents(20, generator=generator), n_words=N, generator=generator)
    wanted = measure_attention(
        model, LDA.topics, [(batch.shown, batch.mask)], n_resamples=0, n_permutations=0
    ).overall
    ours = agreement(model, attention=True).attention
    for name, column in wanted.columns().items():
        assert ours.columns()[name] == pytest.approx(column, rel=1e-12), name


def test_attention_is_measured_only_if_asked_for():
    report = agreement(toy())
    assert report.attention is None
    assert report.reasons["attention"] == "not asked for"


# -------------------------------------------------------------------- effects

EFFECTS = ("mean ablation", "zero ablation", "cut of own topic", "cut of other topics")


def effects_position_by_position(model, world, loss, seed=0):
    """Means over 20 documents, from the toy's own outputs and with its pattern edited key by key."""
    generator = torch.Generator().manual_seed(seed)
    batch = MASKING.corrupt(world.documents(20, generator=generator), n_words=N, generator=generator)
    shown = [ids[mask] for ids, mask in zip(batch.shown, batch.mask, strict=True)]
    bias = toy_tensors(model)["b_pred"].detach()
    with torch.no_grad():
        outputs = [toy_logits(model, ids[None])[0] - bias for ids in shown]

    def cost(prediction, word):
        if loss == "squared":
            return float((prediction - torch.eye(N + 1)[word]).square().sum())
        return float(prediction.logsumexp(0) - prediction[word])

    def without(name, d, query, word):
        if name == "mean ablation":
            return bias + torch.cat(outputs[:d] + outputs[d + 1 :]).mean(dim=0)
        if name == "zero ablation":
            return bias

        def hook(pattern, hook):
            edited = pattern.clone()
            for key, token in enumerate(shown[d].tolist()):
                of_own_topic = (token - 1) // 3 == (word - 1) // 3
                if token and of_own_topic == (name == "cut of own topic"):
                    edited[0, 0, query, key] = 0
            return edited

        with torch.no_grad(), model.hooks(fwd_hooks=[("blocks.0.attn.hook_pattern", hook)]):
            return toy_logits(model, shown[d][None])[0, query]

    found = {}
    for name in EFFECTS:
        means = []
        for d in range(20):
            pairs = [
                (query, int(batch.target[d, query])) for query in batch.chosen[d].nonzero()[:, 0].tolist()
            ]
            changes = [
                cost(without(name, d, query, word), word) - cost(outputs[d][query] + bias, word)
                for query, word in pairs
            ]
            means += [np.mean(changes)] if changes else []
        found[name] = (np.mean(means), np.std(means, ddof=1) / math.sqrt(len(means)))
    return found


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
@pytest.mark.parametrize("world", [WORLD, LDA], ids=["uniform topics", "LDA"])
def test_effects_are_those_of_editing_the_toy_position_by_position(loss, world):
    model = toy(
        "full",
        world=world,
        embedding_scale=1.0,
        d_model=6,
        d_attention=3,
        tensors={"b_pred": random_matrix(N + 1)},
    )
    report, expected = agreement(model, loss=loss), effects_position_by_position(model, world, loss)
    for name in EFFECTS:
        assert (report.effects[name], report.effects_error[name]) == pytest.approx(
            expected[name], rel=1e-9
        ), name
    assert report.effects_theory == {}
    assert "uniform attention" in report.reasons["effects in theory"]


def test_the_effects_of_the_planted_optimum_are_those_of_theory_on_long_documents():
    world = World(n_topics=4, words_per_topic=3, topics_per_document=2, min_length=600, max_length=600)
    report = agreement(toy(world=world, tensors={"W_V": optimum()}), n_documents=300)
    assert report.effects_theory["mean ablation"] == pytest.approx((1 / 2 - 1 / 4) / 3, abs=1e-12)
    assert report.effects_theory["zero ablation"] == pytest.approx(1 / 6, abs=1e-12)
    for name, cut in (("cut of own topic", "own_topic"), ("cut of other topics", "different_topic")):
        expected = theory.knockout_effect(WORLD, MASKING, cut=cut, how="weights").effect
        assert report.effects_theory[name] == pytest.approx(expected, abs=1e-12)
    for name in EFFECTS:
        # A document of 600 words is within 1 / 600 of an endless one.
        close = 4 * report.effects_error[name] + 1 / 600
        assert report.effects[name] == pytest.approx(report.effects_theory[name], abs=close), name
        assert report.effects_error[name] < 2e-3
    table = report.to_dataframe().set_index("quantity")
    assert table.loc["loss, effect of zero ablation", "measured"] == report.effects["zero ablation"]
    assert table.loc["loss, effect of zero ablation", "theory"] == report.effects_theory["zero ablation"]


def test_theory_of_effects_is_about_the_nearest_optimum_with_the_bias_of_the_toy():
    W_E = known_toy.one_hot_embedding(N, a=1 - 0.9 * 0.15)
    report = agreement(toy("embedding", tensors={"W_E": W_E}))
    bias = theory.embedding_bias(WORLD, MASKING)
    expected = theory.ablation_effect(WORLD, MASKING, kind="zero", W=W_E.T @ W_E, bias=bias)
    assert report.effects_theory["zero ablation"] == pytest.approx(expected.effect, abs=1e-12)
    expected = theory.knockout_effect(WORLD, MASKING, how="weights", W=W_E.T @ W_E, bias=bias)
    assert report.effects_theory["cut of own topic"] == pytest.approx(expected.effect, abs=1e-12)


def test_a_head_that_writes_nothing_has_no_effects_and_theory_says_what_it_misses():
    report = agreement(toy(tensors={"W_V": torch.zeros(N + 1, N + 1)}))
    assert report.effects == dict.fromkeys(EFFECTS, 0.0)
    assert report.effects_theory["mean ablation"] == pytest.approx(1 / 12)


def test_effects_that_have_no_closed_form_are_measured_and_the_reason_is_given():
    lda = agreement(toy(world=LDA, tensors={"W_V": optimum()}))
    square = (0.3 + 1) / (4 * 0.3 + 1)  # E Σ θ²
    assert lda.effects_theory == pytest.approx(
        {"mean ablation": (square - 1 / 4) / 3, "zero ablation": square / 3}
    )
    assert "alpha=0.3" in lda.reasons["cuts in theory"]
    assert agreement(toy(), loss="cross_entropy").effects_theory == {}
    deep = agreement(toy("attention", n_layers=2))
    assert deep.effects == {}
    assert "several layers" in deep.reasons["effects"]


# -------------------------------------------------------------------- the report, and what is refused


def test_a_report_comes_back_from_disk_and_names_what_is_missing(tmp_path):
    report = agreement(toy("full", world=LDA), attention=True)
    report.save(tmp_path / "report")
    loaded = load_report(tmp_path / "report")
    assert isinstance(loaded, AgreementReport)
    assert loaded == report
    assert "Theorem 3" in repr(report)
    table = report.to_dataframe().set_index("quantity")
    assert table.loc["loss, theory: Bayes-optimal", "difference"] == report.excess
    assert table.loc["W_Eᵀ W_V W_E, distance to Lemma 1", "measured"] == report.family_distance


def test_the_model_comes_back_as_it_was():
    model = toy("full")
    before = {name: (leaf.clone(), leaf.requires_grad) for name, leaf in toy_parameters(model).items()}
    agreement(model, attention=True)
    for name, leaf in toy_parameters(model).items():
        assert torch.equal(leaf, before[name][0])
        assert leaf.requires_grad == before[name][1]
        assert leaf.grad is None


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_measured_is_refused():
    with pytest.raises(TypeError, match="toy transformer from build_toy"):
        agreement(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="loss must be one of 'cross_entropy', 'squared'"):
        agreement(toy(), loss="hinge")
    with pytest.raises(ValueError, match="at least 2 documents"):
        agreement(toy(), n_documents=1)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        agreement(toy(), batch_size=0)
    with pytest.raises(ValueError, match="have 101 token ids, the model 13"):
        measure_agreement(toy(), World(), MASKING, loss="squared")
    with pytest.raises(ValueError, match="documents have anything masked"):
        measure_agreement(toy(), WORLD, Masking(p_mask=1e-9), loss="squared", attention=False)
