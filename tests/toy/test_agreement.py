"""A toy beside theory: planted optima are recognised, planted distances come out, losses are what they should be."""

import math

import known_toy
import numpy as np
import pytest
import torch
from plain_toy import masked, plain_cost

import topic_probe as tp
from topic_probe import Masking, ToyConfig, World, build_toy, measure_agreement, theory, toy_tensors
from topic_probe.toy.world import overlapping_words

WORLD = World(n_topics=4, words_per_topic=3, topics_per_document=2, min_length=30, max_length=40)
LDA = World(n_topics=4, words_per_topic=3, alpha=0.3, min_length=30, max_length=40)
LONG = World(n_topics=4, words_per_topic=3, topics_per_document=2, min_length=600, max_length=600)
MASKING = Masking()
N = WORLD.n_words


def toy(regime="value", *, world=WORLD, tensors=None, masking=MASKING, **settings):
    config = ToyConfig(regime=regime, world=world, masking=masking, dtype="float64", **settings)
    return build_toy(config, tensors=tensors or {})


def agreement(model, *, loss="squared", n_documents=20, **options):
    return measure_agreement(model, loss=loss, n_documents=n_documents, **options)


def optimum(attend="all"):
    return theory.optimal_value(WORLD, MASKING, attend=attend)


def random_matrix(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# -------------------------------------------------------------------- matrices


@pytest.mark.parametrize("attend", ["all", "unmasked"])
def test_the_planted_optimum_of_theorem_2_has_no_distance_and_planted_ones_come_out(attend):
    report = agreement(toy(tensors={"W_V": optimum(attend)}, attend=attend))
    assert (report.family, report.value_distance) == ("W_V, Lemma 1", 0)
    assert report.family_distance == pytest.approx(0, abs=1e-14)
    step = random_matrix(N + 1, N + 1)
    moved = optimum(attend) + 0.3 * optimum(attend).norm() * step / step.norm()
    assert agreement(toy(tensors={"W_V": moved}, attend=attend)).value_distance == pytest.approx(0.3)
    moved = optimum(attend)
    moved[5, 1], moved[5, 2] = moved[5, 1] + 0.2, moved[5, 2] - 0.2  # words 1 and 2 are of one topic
    report = agreement(toy(tensors={"W_V": moved}, attend=attend))
    assert report.family_distance == pytest.approx(0, abs=1e-14)
    assert report.value_distance == pytest.approx(0.2 * math.sqrt(2) / float(optimum(attend).norm()))


# Long documents show [MASK] with the frequency m = 0.15 · 0.8, so a bias of m c does what c in column 0 does; all words
# together have the frequency 1 where [MASK] is not seen.
@pytest.mark.parametrize(
    ("attend", "columns", "share"), [("all", 0, 0.15 * 0.8), ("unmasked", slice(1, None), 1.0)]
)
def test_a_bias_counts_as_part_of_columns_that_every_document_sees_alike(attend, columns, share):
    shifted = optimum(attend)
    shifted[:, columns] -= 0.7
    bias = torch.full((N + 1,), 0.7 * share, dtype=torch.float64)
    report = agreement(toy("attention", tensors={"W_V": shifted, "b_V": bias}, attend=attend))
    assert report.family_distance == pytest.approx(0, abs=1e-12)
    assert report.value_distance > 0.1


@pytest.mark.parametrize(("attend", "a"), [("all", 1 - 0.9 * 0.15), ("unmasked", 1.0)])
def test_the_planted_embedding_of_theorem_1_has_no_distance(attend, a):
    report = agreement(toy("embedding", tensors={"W_E": known_toy.one_hot_embedding(N, a=a)}, attend=attend))
    assert report.family_distance == pytest.approx(0, abs=1e-14)
    assert math.isnan(report.value_distance)
    assert "one-hot" in report.reasons["Theorem 2"]
    # One-hot words times 1 are one-hot words but for [MASK]: then it is Theorem 1 as well.
    assert report.family == "W_Eᵀ W_E, Theorem 1"


def test_a_full_model_is_held_against_lemma_1_through_all_its_matrices():
    turn = torch.linalg.qr(random_matrix(N + 1, N + 1)).Q
    tensors = {"W_E": turn, "W_V": turn @ optimum() @ turn.T, "b_V": torch.zeros(N + 1)}
    report = agreement(toy("full", tensors=tensors))
    assert report.family == "W_Eᵀ W_V W_E, Lemma 1"
    assert report.family_distance == pytest.approx(0, abs=1e-12)


# -------------------------------------------------------------------- loss, attention


def plain_losses(model, batch, loss, attend):
    """The loss at the drawn words of every document, in plain torch: its mean, and the standard error of that."""
    t, means = {name: x.detach() for name, x in toy_tensors(model).items()}, []
    for ids, mask, chosen, target in zip(batch.shown, batch.mask, batch.chosen, batch.target, strict=True):
        Z = t["W_E"][:, ids[mask]]
        scores = (t["W_Q"] @ Z + t["b_Q"][:, None]).T @ (t["W_K"] @ Z) / math.sqrt(len(t["W_K"]))
        if attend == "unmasked":
            scores = scores.masked_fill(chosen[mask], -math.inf)
        written = (t["W_E"].T @ (t["W_V"] @ Z + t["b_V"][:, None])).T  # [key, word]
        predictions, words = scores.softmax(dim=1) @ written + t["b_pred"], target[mask]
        costs = [
            float(plain_cost(predictions[at], int(words[at]), loss)) for at in chosen[mask].nonzero()[:, 0]
        ]
        means += [np.mean(costs)] if costs else []
    return np.mean(means), np.std(means, ddof=1) / math.sqrt(len(means))


@pytest.mark.generation
@pytest.mark.parametrize(
    ("loss", "world", "attend"),
    [("squared", WORLD, "all"), ("cross_entropy", LDA, "unmasked"), ("squared", LDA, "unmasked")],
)
def test_the_loss_is_that_at_drawn_words_but_surer_and_none_is_below_the_posteriors(loss, world, attend):
    sizes = {"embedding_scale": 1.0, "d_model": 6, "attend": attend}
    model = toy("full", world=world, tensors={"b_pred": random_matrix(N + 1)}, **sizes)
    drawn, error = plain_losses(model, masked(world, 300, masking=MASKING, seed=5), loss, attend)
    report = agreement(model, loss=loss, n_documents=400)
    assert report.loss == pytest.approx(drawn, abs=4 * math.hypot(error, report.loss_error))
    assert report.loss == report.bayes + report.excess > report.bayes


def test_where_there_is_no_posterior_the_loss_is_that_at_the_drawn_words():
    world = World(4, 3, alpha=0.3, min_length=30, max_length=40, word_probabilities=overlapping_words(4, 3))
    model = toy("attention", world=world)
    report, expected = (
        agreement(model),
        plain_losses(model, masked(world, 20, masking=MASKING), "squared", "all"),
    )
    assert (report.loss, report.loss_error) == pytest.approx(expected, rel=1e-9)
    assert math.isnan(report.excess)
    assert "no exact posterior" in report.reasons["Bayes-optimal loss"]


@pytest.mark.parametrize("attend", ["all", "unmasked"])
def test_on_long_documents_theory_is_right(attend):
    measured = agreement(toy(world=LONG, tensors={"W_V": optimum(attend)}, attend=attend), n_documents=100)
    # A document of 600 words is within 1 / 600 of an endless one.
    assert measured.loss == pytest.approx(measured.floor, abs=4 * measured.loss_error + 1 / 600)
    assert measured.weighted_mean == pytest.approx(1.0, rel=1e-12)


def test_planted_attention_comes_out_as_its_weighted_mean_beside_the_optimum():
    topic = (torch.arange(N + 1) + 2) // 3  # [MASK] is a topic of its own
    scores = torch.where(topic[:, None] == topic, math.log(2.0), 0.0).fill_diagonal_(math.log(5.0))
    tensors = {"W_K": scores, "W_Q": math.sqrt(N + 1) * torch.eye(N + 1)}
    model = toy("keys", world=LONG, tensors=tensors)
    report = agreement(model)
    # (v − 1)/v α + β/v, blurred because rows are normalised by what their document holds.
    assert report.weighted_mean == pytest.approx(2 / 3 * 2 + 5 / 3, rel=0.1)
    attention = tp.word_attention(model, n_documents=20)
    means = [attention[name] for name in ("same_topic", "same_word", "different_topic")]
    assert report.weighted_mean == pytest.approx((2 / 3 * means[0] + 1 / 3 * means[1]) / means[2])
    assert report.weighted_mean_optimum == theory.optimal_attention(LONG, MASKING).weighted_mean


# -------------------------------------------------------------------- the report, and what is refused


def test_what_theory_is_silent_about_has_a_reason():
    blurred = World(4, 3, alpha=0.3, min_length=30, max_length=40, word_probabilities=overlapping_words(4, 3))
    long = World(n_topics=4, words_per_topic=3, alpha=0.3, min_length=1300, max_length=1300)
    deep = agreement(toy("attention", n_layers=2, n_heads=3, residual=True))
    for report, name, reason in (
        (agreement(toy(), loss="cross_entropy"), "matrices", "squared loss"),
        (deep, "matrices and attention", "several layers"),
        (agreement(toy(world=LDA)), "Theorem 3", "alpha=0.3"),
        (agreement(toy(attend="unmasked")), "Theorem 3", "attention to all positions"),
        (agreement(toy(world=blurred)), "floor", "disjoint topics"),
        (agreement(toy(world=blurred)), "matrices", "word_probabilities"),
        (agreement(toy(world=long), n_documents=4), "Bayes-optimal loss", "at most 1000 words"),
    ):
        assert reason in report.reasons[name]
    assert math.isnan(deep.family_distance)
    assert deep.excess > 0


def test_a_report_comes_back_from_disk_and_the_model_as_it_was(tmp_path):
    model = toy("full", world=LDA)
    before = {name: tensor.detach().clone() for name, tensor in toy_tensors(model).items()}
    report = agreement(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in toy_tensors(model).items())
    report.save(tmp_path / "report")
    assert tp.load_report(tmp_path / "report") == report
    table = report.to_dataframe().set_index("quantity")
    assert table.loc["loss, theory: Bayes-optimal", "difference"] == pytest.approx(report.excess)
    assert table.loc["W_Eᵀ W_V W_E, Lemma 1: distance to the optima", "measured"] == report.family_distance


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_measured_is_refused():
    with pytest.raises(TypeError, match="toy transformer from build_toy"):
        agreement(torch.nn.Linear(2, 2))
    for options, message in (
        ({"loss": "hinge"}, "loss must be one of 'cross_entropy', 'squared'"),
        ({"n_documents": 1}, "n_documents must be at least 2"),
    ):
        with pytest.raises(ValueError, match=message):
            agreement(toy(), **options)
    with pytest.raises(ValueError, match="documents have anything masked"):
        agreement(toy(masking=Masking(p_mask=1e-9)))
