"""A check of a model says what is there, and sees what is planted."""

import pytest
import torch
import zoo

import topic_probe as tp
from topic_probe.lens import trial
from topic_probe.lens.check import Stack, check_model
from topic_probe.lens.host import patterns_of

FOUR = (zoo.HEADS,)
STACKS = {
    "bert": (Stack("self", 3, FOUR * 3, False),),
    "gpt2": (Stack("self", 3, FOUR * 3, True),),
    "mpnet": (Stack("self", 3, FOUR * 3, False),),
    "bart": tuple(Stack(name, 2, FOUR * 2, name == "decoder") for name in ("encoder", "decoder", "cross")),
}


@pytest.mark.generation
@pytest.mark.parametrize("name", STACKS)
def test_what_is_found_is_what_the_architecture_has(name):
    found = check_model(zoo.opened(name).hooked)
    assert (found.attention, found.reason, found.stacks) == (True, "", STACKS[name])
    assert found.rows_sum_to_one
    assert found.honours_padding
    assert found.batch_changes_nothing
    assert found.fused == (name != "mpnet")  # which never asks for a kernel
    assert (found.host, found.weights) == ("adapter-free", "float32 on cpu")
    assert (found.vocabulary_size, found.embedding_width) == (zoo.VOCABULARY, zoo.WIDTH)
    assert (found.tokenizer, found.word_numbers) == (None, False)
    assert "none: texts need --tokenizer" in str(found)


def test_rows_that_do_not_sum_to_one_documents_that_a_batch_changes_and_nan_are_seen():
    case = zoo.opened("bert")
    for change, row_error, rows, batch in (
        (lambda site, pattern: pattern * (0.9 if site.layer == 1 else 1), 0.1, False, True),
        (
            lambda site, pattern: pattern.flip(-1) if (site.layer, len(pattern)) == (1, 2) else pattern,
            0,
            True,
            False,
        ),
    ):

        def show(inputs, change=change):
            shown = patterns_of(case.hooked, inputs)
            return {site: change(site, pattern) for site, pattern in shown.items()}, None

        found = trial.tried(show, case.view.hooked.trial_inputs(), name="BERT", inside=None, as_it_is=None)
        assert found.row_error == pytest.approx(row_error, abs=1e-5)
        assert (found.row_error <= 1e-5, found.batch_error <= 1e-5) == (rows, batch)
    model = zoo.make("bert")
    with torch.no_grad():
        model.bert.encoder.layer[1].attention.self.query.weight[0, 0] = float("nan")
    found = check_model(tp.open_model(model))
    assert not found.rows_sum_to_one
    assert not found.batch_changes_nothing
    assert "rows sum to one               NO: there is NaN in the attention" in str(found)
