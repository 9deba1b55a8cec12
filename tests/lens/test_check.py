"""A check of a model says what is there, and sees what is planted."""

from importlib.metadata import version
from pathlib import Path

import pytest
import small_language
import torch
import transformers as hf
import zoo
from real_text import minilm_folder

import topic_probe as tp
from topic_probe.lens import capture
from topic_probe.lens.check import TESTED, Stack, check_model

FOUR = (zoo.HEADS,)
STACKS = {
    "bert": (Stack("self", 3, FOUR * 3, False),),
    "gpt2": (Stack("self", 3, FOUR * 3, True),),
    "mpnet": (Stack("self", 3, FOUR * 3, False),),
    "t5": (
        Stack("encoder", 2, FOUR * 2, False),
        Stack("decoder", 2, FOUR * 2, True),
        Stack("cross", 2, FOUR * 2, False),
    ),
}


@pytest.mark.parametrize("name", STACKS)
def test_what_is_found_is_what_the_architecture_has(name):
    found = check_model(tp.open_model(zoo.make(name)))
    assert found.attention
    assert found.reason == ""
    assert found.stacks == STACKS[name]
    assert found.rows_sum_to_one
    assert found.honours_padding
    assert found.batch_changes_nothing
    assert found.host == "adapter-free"
    assert (found.vocabulary_size, found.embedding_width) == (zoo.VOCABULARY, zoo.WIDTH)
    assert (found.tokenizer, found.word_numbers, found.tokenizer_size) == (None, False, None)
    assert (found.dtype, found.device) == ("float32", "cpu")
    assert "none: texts need --tokenizer" in str(found)


def test_a_real_checkpoint_is_described_with_its_tokenizer():
    found = check_model(tp.open_model(minilm_folder()))
    assert found.name == str(minilm_folder())
    assert found.stacks == (Stack("self", 6, (12,) * 6, False),)
    assert found.word_numbers
    assert found.tokenizer_size == found.vocabulary_size == 30_522
    assert (found.embedding_width, found.context_length) == (384, 512)
    assert "words of split tokens" in str(found)


@pytest.mark.parametrize(
    ("name", "template", "begins", "said"),
    [
        ("gpt2", "$A", False, "the first position is a sink; begin_token=True adds one"),
        ("gpt2", "<s> $A", True, "yes"),
        ("bert", "$A", False, "no"),
    ],
)
@pytest.mark.filterwarnings("ignore:the tokenizer of this GPT2LMHeadModel has a begin token")
def test_whether_a_text_begins_with_a_token_of_its_own_is_told(name, template, begins, said):
    tokenizer = small_language.five_words(template, bos_token="<s>")
    found = check_model(tp.open_model(zoo.make(name), tokenizer=tokenizer))
    assert found.begin_token is begins
    assert any("begins with" in line and line.endswith(said) for line in str(found).splitlines())


def test_the_fused_kernel_is_used_where_the_attention_function_can_be_chosen():
    found = {name: check_model(tp.open_model(zoo.make(name))) for name in ("gpt2", "mpnet")}
    assert found["gpt2"].fused
    assert not found["mpnet"].fused  # which never asks for one


def test_a_model_without_attention_says_why_and_still_has_embeddings():
    config = hf.FNetConfig(vocab_size=50, hidden_size=8, num_hidden_layers=1, intermediate_size=8)
    found = check_model(tp.open_model(hf.FNetModel(config)))
    assert not found.attention
    assert "shows no attention pattern" in found.reason
    assert found.stacks == ()
    for answer in (found.rows_sum_to_one, found.honours_padding, found.batch_changes_nothing, found.fused):
        assert not answer
    assert (found.vocabulary_size, found.embedding_width) == (50, 8)
    assert found.reason in str(found)


def planted(monkeypatch, change):
    """Patterns as a broken host would show them."""
    true = capture.patterns

    def patterns(model, inputs):
        return {site: change(pattern, len(inputs.ids)) for site, pattern in true(model, inputs).items()}

    monkeypatch.setattr(capture, "patterns", patterns)
    return check_model(tp.open_model(zoo.make("bert")))


def test_rows_that_do_not_sum_to_one_are_seen(monkeypatch):
    found = planted(monkeypatch, lambda pattern, _: 0.9 * pattern)
    assert found.row_error == pytest.approx(0.1, abs=1e-5)
    assert not found.rows_sum_to_one
    assert found.batch_changes_nothing
    assert "NO (off by 1e-01" in str(found)


def test_a_document_that_its_batch_changes_is_seen(monkeypatch):
    found = planted(monkeypatch, lambda pattern, n: pattern.flip(-1) if n == 2 else pattern)
    assert not found.batch_changes_nothing
    assert found.rows_sum_to_one


def test_a_model_comes_back_as_it_was():
    model = tp.open_model(zoo.make("bert")).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    hook = model.hook_dict["blocks.0.attn.hook_pattern"]
    hook.add_hook(lambda pattern, hook: pattern * 0)
    found = check_model(model)
    assert found.rows_sum_to_one  # what a user's hook does is not the model's fault
    assert model.training
    assert len(hook.fwd_hooks) == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_versions_called_tested_are_those_the_tests_run_with():
    found = check_model(tp.open_model(zoo.make("bert-headless")))
    assert found.untested == ()
    pinned = dict(
        line.split("==")
        for line in (Path(__file__).parents[2] / "constraints.txt").read_text().splitlines()
        if "==" in line
    )
    for package, known in TESTED.items():
        assert any(f"{version(package)}.".startswith(f"{one}.") for one in known)
        assert any(f"{pinned[package]}.".startswith(f"{one}.") for one in known)


def test_other_versions_are_named(monkeypatch):
    from topic_probe.lens import check

    monkeypatch.setattr(check, "version", lambda package: "99.1")
    found = check_model(tp.open_model(zoo.make("bert-headless")))
    assert found.untested == ("transformer-lens 99.1", "transformers 99.1", "torch 99.1")
    assert "no: transformer-lens 99.1" in str(found)


def test_nan_in_the_attention_of_a_later_head_is_not_overlooked():
    model = zoo.make("bert")
    with torch.no_grad():
        model.bert.encoder.layer[1].attention.self.query.weight[0, 0] = float("nan")
    found = check_model(tp.open_model(model))
    assert not found.rows_sum_to_one
    assert not found.batch_changes_nothing
    assert "rows sum to one               NO: there is NaN in the attention" in str(found)
