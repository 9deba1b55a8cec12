"""A toy beside theory: planted optima are recognised, planted distances come out, losses are what they should be."""

import math

import known_toy
import numpy as np
import pytest
import torch
from plain_toy import masked, plain_cost, plain_loss

import topic_probe as tp
from topic_probe import Masking, ToyConfig, World, build_toy, measure_agreement, theory, toy_tensors
from topic_probe.measure.attention import measure_attention
from topic_probe.toy.world import overlapping_words

WORLD = World(n_topics=4, words_per_topic=3, topics_per_document=2, min_length=30, max_length=40)
LDA = World(n_topics=4, words_per_topic=3, alpha=0.3, min_length=30, max_length=40)
MASKING = Masking()
N = WORLD.n_words
EFFECTS = ("mean ablation", "zero ablation", "cut of own topic", "cut of other topics")


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


def test_a_full_model_is_held_against_lemma_1_through_all_its_matrices():
    turn = torch.linalg.qr(random_matrix(N + 1, N + 1)).Q
    tensors = {"W_E": turn, "W_V": turn @ optimum() @ turn.T, "b_V": torch.zeros(N + 1)}
    report = agreement(toy("full", tensors=tensors))
    assert (report.matrix, report.theorem) == ("W_Eᵀ W_V W_E", "Lemma 1")
    assert report.family_distance == pytest.approx(0, abs=1e-12)


def test_planted_distances_come_out():
    step = random_matrix(N + 1, N + 1)
    moved = optimum() + 0.3 * optimum().norm() * step / step.norm()
    assert agreement(toy(tensors={"W_V": moved})).value_distance == pytest.approx(0.3)
    moved = optimum()
    moved[5, 1], moved[5, 2] = moved[5, 1] + 0.2, moved[5, 2] - 0.2  # words 1 and 2 are of one topic
    report = agreement(toy(tensors={"W_V": moved}))
    assert report.family_distance == pytest.approx(0, abs=1e-14)
    assert report.value_distance == pytest.approx(0.2 * math.sqrt(2) / float(optimum().norm()))
    broken = optimum()
    broken[3, 0] += 0.5
    report = agreement(toy(tensors={"W_V": broken}))
    # The row gives way by u = −c2 · 0.5 / (c2² + n), which leaves 0.5 n / (c2² + n) of the error in its column 0.
    c2 = 1 / (0.8 * 0.15) - 1
    assert report.residuals["mask_column"][2] == pytest.approx(0.5 * N / (c2**2 + N))
    assert report.worst_residual == pytest.approx(3 * c2 * 0.5 / (c2**2 + N))  # block sums of v = 3 words


# -------------------------------------------------------------------- loss


@pytest.mark.parametrize(
    ("loss", "guess", "nothing"),
    [("squared", 1 - 1 / N, 1.0), ("cross_entropy", math.log(N), math.log(N + 1))],
)
def test_a_model_that_predicts_nothing_loses_what_ignorance_costs(loss, guess, nothing):
    report = agreement(toy(tensors={"W_V": torch.zeros(N + 1, N + 1)}), loss=loss, n_documents=200)
    assert report.loss == pytest.approx(nothing, abs=2 * report.loss_error)
    assert report.guess == pytest.approx(guess)
    assert report.share_gained < 0.02
    assert report.effects == pytest.approx(dict.fromkeys(EFFECTS, 0.0), abs=1e-12)


@pytest.mark.generation
@pytest.mark.parametrize(("loss", "world"), [("squared", LDA), ("cross_entropy", WORLD)])
def test_the_loss_is_that_at_drawn_words_but_surer(loss, world):
    model = toy("attention", world=world, tensors={"W_V": 2 * optimum()})
    report, tensors = agreement(model, loss=loss, n_documents=400), toy_tensors(model)
    with torch.no_grad():
        drawn = torch.stack(
            [plain_loss(tensors, masked(world, 10, masking=MASKING, seed=seed), loss) for seed in range(60)]
        )
    error = float(drawn.std()) / math.sqrt(len(drawn))
    assert report.loss == pytest.approx(float(drawn.mean()), abs=4 * math.hypot(error, report.loss_error))
    assert report.excess > 0
    assert report.loss == report.bayes + report.excess
    assert report.share_gained == pytest.approx(1 - report.excess / (report.guess - report.bayes))


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
    many = World(n_topics=4, words_per_topic=3, topics_per_document=4, min_length=60, max_length=60)
    report = agreement(toy("keys", world=many, tensors=planted_attention(0.5, 0.5)), attention=True)
    assert report.weighted_mean < 1 < report.weighted_mean_bounds[0]
    assert report.within_bounds is False
    assert "outside Theorem 3" in repr(report)


@pytest.mark.parametrize("settings", [{}, {"n_layers": 2, "n_heads": 3, "residual": True}])
def test_attention_is_what_measuring_any_model_gives(settings):
    model, batch = toy("attention", world=LDA, **settings), masked(LDA, 20, masking=MASKING)
    options = {"n_resamples": 0, "n_permutations": 0}
    wanted = measure_attention(model, LDA.topics, [(batch.shown, batch.mask)], **options).overall
    report = agreement(model, attention=True)
    for name, column in wanted.columns().items():
        assert report.attention.columns()[name] == pytest.approx(column, rel=1e-12), name
    weighted = (2 / 3 * wanted.same_topic + 1 / 3 * wanted.same_word) / wanted.different_topic
    assert report.weighted_mean == pytest.approx(float(weighted), rel=1e-9)


# -------------------------------------------------------------------- effects


def effects_position_by_position(model, world, loss):
    """Means over 20 documents, with the pattern edited key by key in plain torch."""
    batch, t = (
        masked(world, 20, masking=MASKING),
        {name: x.detach() for name, x in toy_tensors(model).items()},
    )
    patterns, outputs = [], []
    for ids, mask in zip(batch.shown, batch.mask, strict=True):
        Z = t["W_E"][:, ids[mask]]
        scores = (t["W_K"] @ Z).T @ (t["W_Q"] @ Z + t["b_Q"][:, None]) / math.sqrt(len(t["W_K"]))
        values = t["W_E"].T @ (t["W_V"] @ Z + t["b_V"][:, None])  # what each key writes [word, key]
        patterns.append((scores.softmax(dim=0), values, ids[mask]))
        outputs.append((values @ scores.softmax(dim=0)).T)
    means = []
    for d, (pattern, values, shown) in enumerate(patterns):
        elsewhere, rows = torch.cat(outputs[:d] + outputs[d + 1 :]).mean(dim=0), []
        for query in batch.chosen[d].nonzero()[:, 0].tolist():
            word = int(batch.target[d, query])
            own = (shown - 1).div(3, rounding_mode="floor") == (word - 1) // 3
            put_in = [outputs[d][query], elsewhere, 0 * elsewhere]
            put_in += [values @ pattern[:, query].masked_fill(cut & (shown > 0), 0.0) for cut in (own, ~own)]
            costs = [float(plain_cost(output + t["b_pred"], word, loss)) for output in put_in]
            rows.append(np.array(costs[1:]) - costs[0])
        means += [np.mean(rows, axis=0)] if rows else []
    return np.mean(means, axis=0), np.std(means, axis=0, ddof=1) / math.sqrt(len(means))


@pytest.mark.parametrize(("loss", "world"), [("squared", WORLD), ("cross_entropy", LDA)])
def test_effects_are_those_of_editing_the_toy_position_by_position(loss, world):
    sizes = {"embedding_scale": 1.0, "d_model": 6, "d_attention": 3}
    model = toy("full", world=world, tensors={"b_pred": random_matrix(N + 1)}, **sizes)
    report, (expected, errors) = agreement(model, loss=loss), effects_position_by_position(model, world, loss)
    assert [report.effects[name] for name in EFFECTS] == pytest.approx(expected.tolist(), rel=1e-9)
    assert [report.effects_error[name] for name in EFFECTS] == pytest.approx(errors.tolist(), rel=1e-9)
    assert report.effects_theory == {}
    assert "uniform attention" in report.reasons["effects in theory"]


def test_effects_in_theory_are_those_of_the_nearest_optimum_with_the_bias_of_the_toy():
    report = agreement(toy(tensors={"W_V": torch.zeros(N + 1, N + 1)}))
    own, other = (
        theory.knockout_effect(WORLD, MASKING, cut=cut, how="weights").effect
        for cut in ("own_topic", "different_topic")
    )
    expected = [(1 / 2 - 1 / 4) / 3, 1 / 6, own, other]
    assert [report.effects_theory[name] for name in EFFECTS] == pytest.approx(expected, abs=1e-12)
    long = World(n_topics=4, words_per_topic=3, topics_per_document=2, min_length=600, max_length=600)
    measured = agreement(toy(world=long, tensors={"W_V": optimum()}), n_documents=100)
    for name in EFFECTS:  # a document of 600 words is within 1 / 600 of an endless one
        close = 4 * measured.effects_error[name] + 1 / 600
        assert measured.effects[name] == pytest.approx(measured.effects_theory[name], abs=close), name
        assert measured.effects_error[name] < 4e-3
    table = report.to_dataframe().set_index("quantity")
    assert table.loc["loss, effect of zero ablation", "theory"] == report.effects_theory["zero ablation"]
    W_E = known_toy.one_hot_embedding(N, a=1 - 0.9 * 0.15)
    report = agreement(toy("embedding", tensors={"W_E": W_E}))
    bias = theory.embedding_bias(WORLD, MASKING)
    expected = theory.knockout_effect(WORLD, MASKING, how="weights", W=W_E.T @ W_E, bias=bias)
    assert report.effects_theory["cut of own topic"] == pytest.approx(expected.effect, abs=1e-12)
    lda = agreement(toy(world=LDA, tensors={"W_V": optimum()}))
    square = (0.3 + 1) / (4 * 0.3 + 1)  # E Σ θ²
    assert lda.effects_theory == pytest.approx(
        {"mean ablation": (square - 1 / 4) / 3, "zero ablation": square / 3}
    )


# -------------------------------------------------------------------- the report, and what is refused


def test_what_theory_is_silent_about_has_a_reason():
    blurred = World(4, 3, alpha=0.3, min_length=30, max_length=40, word_probabilities=overlapping_words(4, 3))
    long = World(n_topics=4, words_per_topic=3, topics_per_document=2, min_length=1001, max_length=1001)
    deep = toy("attention", n_layers=2)
    for report, name, reason in (
        (agreement(toy(), loss="cross_entropy"), "matrices", "squared loss"),
        (agreement(toy(), loss="cross_entropy"), "attention", "not asked for"),
        (agreement(deep), "matrices", "one layer"),
        (agreement(deep), "effects", "several layers"),
        (agreement(toy(world=LDA), attention=True), "Theorem 3", "alpha=0.3"),
        (agreement(toy(world=LDA)), "cuts in theory", "alpha=0.3"),
        (agreement(toy(world=blurred)), "Bayes-optimal loss", "no exact posterior"),
        (agreement(toy(world=blurred)), "matrices", "word_probabilities"),
        (agreement(toy(world=long), n_documents=4), "Bayes-optimal loss", "too long"),
    ):
        assert reason in report.reasons[name]
    assert math.isnan(agreement(deep).worst_residual)
    report = agreement(toy(world=blurred, tensors={"W_V": torch.zeros(N + 1, N + 1)}))
    assert (report.loss, report.loss_error, math.isnan(report.excess)) == (1, 0, True)
    report = agreement(toy(world=long, tensors={"W_V": optimum()}), n_documents=4)
    assert report.loss == pytest.approx(report.floor, abs=0.02)


def test_a_report_comes_back_from_disk_and_the_model_as_it_was(tmp_path):
    model = toy("full", world=LDA)
    before = {name: tensor.detach().clone() for name, tensor in toy_tensors(model).items()}
    report = agreement(model, attention=True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in toy_tensors(model).items())
    report.save(tmp_path / "report")
    assert tp.load_report(tmp_path / "report") == report
    table = report.to_dataframe().set_index("quantity")
    assert table.loc["loss, theory: Bayes-optimal", "difference"] == report.excess
    assert table.loc["W_Eᵀ W_V W_E, distance to Lemma 1", "measured"] == report.family_distance


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_measured_is_refused():
    with pytest.raises(TypeError, match="toy transformer from build_toy"):
        agreement(torch.nn.Linear(2, 2))
    for options, message in (
        ({"loss": "hinge"}, "loss must be one of 'cross_entropy', 'squared'"),
        ({"n_documents": 1}, "at least 2 documents"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"world": World()}, "have 101 token ids, the model 13"),
        ({"masking": Masking(p_mask=1e-9)}, "documents have anything masked"),
    ):
        with pytest.raises(ValueError, match=message):
            agreement(toy(), **options)
