"""What the recipe on causes says, and that it could have said otherwise."""

import pytest
import torch

import topic_probe as tp
from topic_probe.paper import causes
from topic_probe.paper.causes import EDGES, EXACT, HEADS, RECIPE, SHUFFLED, TOY, TRAP, UNTRAINED
from topic_probe.paper.recipe import Run, Subject


def of_numbers(beyond, low, high, *, shuffled=0.0, untrained=0.0):
    """A result of one model, both of whose measurements say the same."""
    rows = []
    for what in (EDGES, HEADS):
        about = {
            "outcome": 0.2, "effect": beyond, "low": low, "high": high, "detectable": 0.01, "p_value": 0.2,
            "sources": 40.0,
        }  # fmt: skip
        for model, control, value in (
            ("M", "", beyond), ("M", SHUFFLED, shuffled), ("M random", "", untrained),
        ):  # fmt: skip
            own = {"beyond": value, "beyond_low": low, "beyond_high": high}
            rows.append({"model": model, "control": control, "what": what, **about, **own})
    subjects = {"M": Subject(label="M"), "M random": Subject(label="M random", random=True)}
    return Run(RECIPE).result(subjects=subjects, tables={"effects": rows})


@pytest.mark.parametrize(
    ("numbers", "verdict"),
    [
        ({"beyond": 0.02, "low": 0.01, "high": 0.03}, "holds"),
        ({"beyond": 0.02, "low": -0.01, "high": 0.05}, "undecided"),
        ({"beyond": -0.02, "low": -0.03, "high": -0.01}, "does not hold"),
        ({"beyond": 0.02, "low": 0.01, "high": 0.03, "shuffled": 0.02}, "not evidence"),
        ({"beyond": 0.02, "low": 0.01, "high": 0.03, "untrained": 0.02}, "not evidence"),
    ],
)
def test_a_verdict_follows_from_the_effect_and_its_controls(numbers, verdict):
    claims = list(causes._causes(of_numbers(**numbers)))
    assert [claim.verdict for claim in claims] == [verdict] * 2
    assert all(set(claim.controls) == {SHUFFLED, UNTRAINED} for claim in claims)


def test_a_model_that_is_missing_is_not_checked():
    result = Run(RECIPE).result(subjects={"M": Subject(label="M", missing="it is not here")}, tables={})
    assert [claim.not_checked for claim in causes._causes(result)] == ["it is not here"] * 2


def test_documents_have_the_frequencies_of_theory():
    """Of every two of ten topics one document, each of their words five times, one of these masked."""
    documents, shown = EXACT.documents(), EXACT.shown()
    assert len(documents) == len({tuple(ids) for ids in documents}) == 45
    for ids, seen in zip(documents, shown, strict=True):
        counts = torch.tensor(ids).bincount(minlength=101)
        assert sorted(counts[counts > 0].tolist()) == [5] * 20
        topics = {(word - 1) // 10 for word in ids}
        assert len(topics) == 2
        left = torch.tensor(seen).bincount(minlength=101)
        assert left[0] == 20
        assert sorted(left[1:][left[1:] > 0].tolist()) == [4] * 20


def test_known_answers_hold_and_fall_where_the_head_is_another(monkeypatch):
    reports = list(causes._toys())
    result = Run(RECIPE).result(reports, tables={"toy": causes._toy_table(dict(reports))})
    assert [claim.verdict for claim in causes._known(result)] == ["holds"] * 3
    ratios = {(row["toy"], row["head"]): row["ratio"] for row in result.tables["toy"]}
    assert ratios[TRAP, 1] > 2 > ratios[TRAP, 0] == pytest.approx(1, abs=1e-9)
    assert ratios[TOY, 0] == pytest.approx(1, abs=1e-9)
    build = causes.ExactToy.model

    def writing(self, n_heads=1):
        """The second head writes a little, the first writes less."""
        model = build(self, n_heads)
        value = tp.toy_tensors(model)["W_V"].detach().clone()
        (value[0] if n_heads == 2 else value).mul_(0.9)
        if n_heads == 2:
            value[1] = 1e-3 * value[0]
        with torch.no_grad():
            tp.toy_tensors(model)["W_V"].copy_(value)
        return model

    monkeypatch.setattr(causes.ExactToy, "model", writing)
    reports = list(causes._toys())
    broken = Run(RECIPE).result(reports, tables={"toy": causes._toy_table(dict(reports))})
    assert [claim.verdict for claim in causes._known(broken)] == ["does not hold"] * 3
