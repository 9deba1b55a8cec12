"""The weights of heads give the queries, keys, values and outputs that the models themselves compute."""

import pytest
import torch
import transformers as hf
import zoo

import topic_probe as tp
from topic_probe.lens import opening, running, sites
from topic_probe.lens.host import host_of, sites_of
from topic_probe.lens.weights import embedding_in_residual, head_weights, unembedding

FUSED = {
    "phi3": lambda: hf.Phi3Model(hf.Phi3Config(**zoo._grouped, pad_token_id=0)),
    "bigcode-shared": lambda: hf.GPTBigCodeModel(hf.GPTBigCodeConfig(**zoo._gpt2, multi_query=True)),
}
QUICK = ("bert", "albert", "distilbert", "modernbert", "bart", "t5", "gpt2", "neox", "llama", *FUSED)


def between_documents(states):
    """Differences between the first tokens of documents: no bias is left in them, and no rotation by position."""
    return states[1:, 0] - states[:1, 0]


@pytest.mark.parametrize("name", QUICK)
def test_projections_give_what_the_model_hands_to_its_attention_and_takes_from_it(name):
    model = zoo.drawn(FUSED[name]) if name in FUSED else zoo.make(name)
    hooked = opening.open_model(model)
    ids, mask = zoo.documents()
    inputs, given = host_of(hooked).inputs(ids, mask), []
    if inputs.target_ids is not None:  # documents that start with different words
        inputs = sites.Inputs(ids, mask, ids.clone(), mask.clone())

    def keep_given(module, positional, options):
        states = [value for value in (*positional, *options.values()) if isinstance(value, torch.Tensor)]
        given.append([value for value in states if value.ndim == 3])

    for module in dict.fromkeys(hooked.calls.modules):
        module.register_forward_pre_hook(keep_given, with_kwargs=True)
    with torch.no_grad():
        shown = hooked.run_with_cache(**zoo.arguments(inputs))[1]
    for site, states in zip(hooked.calls.sites, given, strict=True):
        # The states that ask come first; those that are asked only where they are others, those of an encoder.
        asking, asked = between_documents(states[0]), between_documents(states[-1])
        found, attention = head_weights(hooked, site), site.hook_name.removesuffix("pattern")
        for weight, read, what in (
            (found.W_Q, asking, "q"),
            (found.W_K, asked, "k"),
            (found.W_V, asked, "v"),
        ):
            assert weight.shape == (zoo.HEADS, zoo.WIDTH, 8)
            assert not weight.requires_grad
            made = between_documents(shown[attention + what])
            every_head = made.repeat_interleave(zoo.HEADS // made.shape[1], dim=1)
            expected = torch.einsum("bd,hde->bhe", read, weight)
            torch.testing.assert_close(every_head, expected, rtol=0, atol=2e-5)
            assert expected.abs().max() > 1e-2
        written = torch.einsum("bhe,hed->bd", between_documents(shown[f"{attention}z"]), found.W_O)
        out = "hook_cross_attn_out" if site.stack == "cross" else "hook_attn_out"
        made = between_documents(shown[f"{site.hook_name.rsplit('.', 2)[0]}.{out}"])
        torch.testing.assert_close(made, written, rtol=0, atol=2e-5)


@pytest.mark.generation
@pytest.mark.parametrize("name", ["bert", "bart", "gpt2", "neox", "llama"])
def test_a_bridge_and_the_adapter_free_host_give_the_same_weights(name):
    bridge, free = (zoo.opened(name, host).hooked for host in ("bridge", "huggingface"))
    assert sites_of(bridge) == sites_of(free)
    for site in sites_of(free):
        for weight in ("W_Q", "W_K", "W_V", "W_O"):
            mine, theirs = (getattr(head_weights(hooked, site), weight) for hooked in (bridge, free))
            assert torch.equal(mine, theirs)
    assert torch.equal(embedding_in_residual(bridge), embedding_in_residual(free))
    assert torch.equal(unembedding(bridge), unembedding(free))


@pytest.mark.generation
def test_the_toys_weights_are_its_tensors():
    from topic_probe.toy.model import toy_tensors

    toy = tp.build_toy(
        tp.ToyConfig(world=tp.World(n_topics=4, words_per_topic=24), d_model=16, n_heads=2), seed=3
    )
    tensors, found = toy_tensors(toy), head_weights(toy, sites_of(toy)[0])
    for weight in ("W_Q", "W_K", "W_V"):  # the paper applies its matrices from the left
        torch.testing.assert_close(getattr(found, weight), tensors[weight].mT, rtol=0, atol=0)
    torch.testing.assert_close(embedding_in_residual(toy), tensors["W_E"].T, rtol=0, atol=0)
    torch.testing.assert_close(unembedding(toy), tensors["W_E"], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["bert", "t5", "albert", "electra-discriminator"])
def test_words_enter_the_stream_as_they_are_or_widened_as_the_model_widens_them(name):
    model, trunk = zoo.opened(name).model, running.trunk(zoo.opened(name).model)
    expected = model.get_input_embeddings().weight
    if name == "albert":
        expected = trunk.encoder.embedding_hidden_mapping_in(expected)
    if name == "electra-discriminator":
        expected = trunk.embeddings_project(expected)
    torch.testing.assert_close(
        embedding_in_residual(zoo.opened(name).hooked), expected.detach(), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize(("name", "scale"), [("gpt2", 1), ("llama", 1), ("bart", 1), ("t5", 32**-0.5)])
def test_the_unembedding_makes_scores_of_the_last_state(name, scale):
    case = zoo.opened(name)
    with torch.no_grad():
        answer = case.model(**zoo.arguments(case.inputs))
    if not case.model.config.tie_word_embeddings:
        scale = 1  # T5 scales only where the head is the embedding
    scores = scale * zoo.own_last_states(case.model, case.inputs) @ unembedding(case.hooked)
    bias = getattr(case.model, "final_logits_bias", 0)
    torch.testing.assert_close(scores + bias, answer.logits, rtol=0, atol=1e-3)


def of_heads(hooked):
    return head_weights(hooked, sites_of(hooked)[0])


REFUSED = {
    "hides its attention layers, so the weights of its heads": (lambda: zoo.opened("deberta").hooked, of_heads),
    "has no head that scores the vocabulary": (lambda: zoo.opened("bert-headless").hooked, unembedding),
    "reads 16 numbers behind a nonlinear layer": (lambda: zoo.opened("albert").hooked, unembedding),
}  # fmt: skip


@pytest.mark.parametrize("sentence", REFUSED)
def test_weights_that_cannot_be_told_apart_are_refused(sentence):
    make, ask = REFUSED[sentence]
    with pytest.raises(ValueError, match=sentence):
        ask(make())
