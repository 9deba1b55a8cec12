import functools
import warnings
from dataclasses import replace
from itertools import count, cycle, product

import numpy as np
import pytest
import torch
import zoo
from transformers import (
    BartConfig,
    BartModel,
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    GPT2Config,
    GPT2Model,
    LongT5Config,
    LongT5Model,
)

import topic_probe as tp
from topic_probe.contrast import matched_contrast
from topic_probe.lens import capture
from topic_probe.measure import attention, engine, nulls
from topic_probe.measure.accumulators import Relations
from topic_probe.measure.engine import FIRST, Engine
from topic_probe.measure.nulls import Null
from topic_probe.measure.options import Patterns
from topic_probe.measure.patterns import PatternReader
from topic_probe.measure.scores import DISTANCE_BINS
from topic_probe.text.batches import token_batches
from topic_probe.uncertainty import benjamini_hochberg

VOCABULARY = 50
TOPICS = {"fruit": [5, 6, 7, 8, 20], "tools": [10, 11, 12, 13, 20], "birds": [30, 31, 32, 5]}
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}


def bert(seed=0, **options):
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=VOCABULARY, max_position_embeddings=64, initializer_range=0.3, **SMALL | options
    )
    return BertModel(config).double().eval()


def distilbert():
    torch.manual_seed(1)
    config = DistilBertConfig(
        vocab_size=VOCABULARY, dim=16, n_layers=2, n_heads=2, hidden_dim=8, max_position_embeddings=64
    )
    return DistilBertModel(config).double().eval()


def gpt2():
    torch.manual_seed(2)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
    return (
        GPT2Model(GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **sizes)).double().eval()
    )


def bart():
    torch.manual_seed(3)
    config = BartConfig(
        vocab_size=VOCABULARY, d_model=16, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=8, decoder_ffn_dim=8, max_position_embeddings=64,
        decoder_start_token_id=2, bos_token_id=0, eos_token_id=2, pad_token_id=1, init_std=0.3,
    )  # fmt: skip
    return BartModel(config).double().eval()


def some_documents(n=9, seed=0, longest=24):
    words = [5, 6, 7, 8, 10, 11, 12, 13, 20, 30, 31, 32, 40, 41, 2]
    generator = np.random.default_rng(seed)
    return [generator.choice(words, size=generator.integers(4, longest)).tolist() for _ in range(n)]


@pytest.fixture
def topics():
    return tp.Topics.from_token_ids(TOPICS, vocabulary_size=VOCABULARY)


def double_loop(pattern, asking, asked, *, causal, special, include_self=True, cross=False, first="sink"):
    """Sums [head, relation] and counts [relation] of one document, pair by pair from the definitions."""
    belongs = {word: {name for name, words in TOPICS.items() if word in words} for word in range(VOCABULARY)}
    sums, counts = np.zeros((len(pattern), 3)), np.zeros(3)
    for i, j in product(range(len(asking)), range(len(asked))):
        one, other = belongs[asking[i]], belongs[asked[j]]
        hidden = causal and (j > i or (first == "sink" and (i == 0 or j == 0)))
        if hidden or not one or not other or asking[i] in special or asked[j] in special:
            continue
        if i == j and not cross and not include_self:
            continue
        relation = 0 if asking[i] == asked[j] else 1 if one & other else 2
        sums[:, relation] += pattern[:, i, j] * (i + 1 if causal else len(asked))
        counts[relation] += 1
    return sums, counts


def output_attentions(model, document, **more):
    model.set_attn_implementation("eager")
    ids = torch.tensor([document])
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True, **more)


def means(contrast):
    return np.stack([contrast.same_word, contrast.same_topic, contrast.different_topic], -1)


def counts(contrast):
    return np.stack([contrast.n_same_word, contrast.n_same_topic, contrast.n_different_topic], -1)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize(("build", "causal"), [(bert, False), (distilbert, False), (gpt2, True)])
@pytest.mark.parametrize("through", ["hooks", "rows"])
@pytest.mark.parametrize("first", ["sink", "word"])
def test_means_and_counts_equal_a_double_loop_over_hugging_face_attentions(
    build, causal, through, include_self, first, topics
):
    documents, special = some_documents(), {2, 13}
    report = tp.measure_attention(
        build(), topics, documents, batch_size=4, special_ids=special, include_self=include_self, through=through,
        first_position=first, n_resamples=0, n_permutations=0,
    )  # fmt: skip
    sums = total = 0
    for document in documents:
        layers = output_attentions(build(), document).attentions
        parts = [
            double_loop(
                layer[0].numpy(),
                document,
                document,
                causal=causal,
                special=special,
                include_self=include_self,
                first=first,
            )
            for layer in layers
        ]
        sums = sums + np.concatenate([part[0] for part in parts])
        total = total + parts[0][1]
    np.testing.assert_allclose(means(report.heads), sums / total, atol=1e-9, rtol=0)
    np.testing.assert_array_equal(counts(report.heads), np.tile(total, (4, 1)))
    np.testing.assert_allclose(means(report.overall), sums.sum(0) / (4 * total), atol=1e-9, rtol=0)
    np.testing.assert_allclose(means(report.layers)[1], sums[2:].sum(0) / (2 * total), atol=1e-9, rtol=0)


@pytest.mark.parametrize("through", ["hooks", "rows"])
def test_encoder_decoder_and_cross_attention_are_kept_apart_and_equal_a_double_loop(through, topics):
    documents = some_documents(5)
    report = tp.measure_attention(
        bart(),
        topics,
        documents,
        batch_size=3,
        special_ids={2},
        through=through,
        n_resamples=0,
        n_permutations=0,
    )
    stacks = {"encoder": [0, 0], "decoder": [0, 0], "cross": [0, 0]}
    for document in documents:
        target = [2, *document[:-1]]
        answer = output_attentions(bart(), document, decoder_input_ids=torch.tensor([target]))
        sides = {
            "encoder": (answer.encoder_attentions, document, document, False),
            "decoder": (answer.decoder_attentions, target, target, True),
            "cross": (answer.cross_attentions, target, document, False),
        }
        for stack, (layers, asking, asked, causal) in sides.items():
            for layer in layers:
                found = double_loop(
                    layer[0].numpy(), asking, asked, causal=causal, special={2}, cross=stack == "cross"
                )
                stacks[stack][0] = stacks[stack][0] + found[0].sum(0)
                stacks[stack][1] = stacks[stack][1] + 2 * found[1]
    assert report.stacks.index == {"stack": ("encoder", "decoder", "cross")}
    for number, (sums, total) in enumerate(stacks.values()):
        np.testing.assert_allclose(means(report.stacks)[number], sums / total, atol=1e-9, rtol=0)
        np.testing.assert_array_equal(counts(report.stacks)[number], total)
    assert set(report.heads.index["stack"]) == {"encoder", "decoder", "cross"}


@pytest.mark.parametrize("several", [False, True])
def test_an_encoder_of_another_kind_of_attention_leaves_decoder_and_cross_attention_to_be_measured(
    several, topics
):
    torch.manual_seed(4)
    config = LongT5Config(
        vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=8, num_layers=1, num_decoder_layers=2, num_heads=2,
        local_radius=2, decoder_start_token_id=2,
    )  # fmt: skip
    model = LongT5Model(config).double().eval()
    documents = some_documents(5)
    asked_of = [topics, topics] if several else topics
    with pytest.warns(UserWarning, match="only its other attention is read"):
        found = tp.measure_attention(
            model, asked_of, documents, batch_size=3, special_ids={2}, n_permutations=0
        )
    report = found[1] if several else found
    totals = {"decoder": [0, 0], "cross": [0, 0]}
    for document in documents:
        target = [2, *document[:-1]]
        answer = output_attentions(model, document, decoder_input_ids=torch.tensor([target]))
        for stack, total in totals.items():
            asked = target if stack == "decoder" else document
            for layer in getattr(answer, f"{stack}_attentions"):
                sums, n = double_loop(
                    layer[0].numpy(),
                    target,
                    asked,
                    causal=stack == "decoder",
                    special={2},
                    cross=stack == "cross",
                )
                total[0], total[1] = total[0] + sums.sum(0), total[1] + 2 * n
    assert report.stacks.index == {"stack": tuple(totals)}
    for number, (sums, n) in enumerate(totals.values()):
        np.testing.assert_allclose(means(report.stacks)[number], sums / n, atol=1e-7, rtol=0)
        np.testing.assert_array_equal(counts(report.stacks)[number], n)
    assert report.provenance["documents_measured"] == len(documents)


def same_numbers(one, other, tolerance):
    for name in ("overall", "heads", "matched", "without_sinks"):
        left, right = getattr(one, name), getattr(other, name)
        np.testing.assert_allclose(means(left), means(right), rtol=tolerance)
        np.testing.assert_array_equal(counts(left), counts(right))
    np.testing.assert_allclose(one.heads.interval, other.heads.interval, rtol=tolerance)
    np.testing.assert_allclose(one.heads.p_value, other.heads.p_value, atol=1e-12)
    np.testing.assert_allclose(one.sink_mass, other.sink_mass, rtol=tolerance)


def test_batch_size_order_and_padding_change_nothing(topics):
    documents, model = some_documents(30), bert().float()
    whole = tp.measure_attention(model, topics, documents, special_ids={2})
    for size in (1, 4):
        same_numbers(
            whole, tp.measure_attention(model, topics, documents, special_ids={2}, batch_size=size), 1e-6
        )
    backwards = tp.measure_attention(model, topics, documents[::-1], special_ids={2}, batch_size=7)
    same_numbers(whole, backwards, 1e-6)
    ids, mask = torch.zeros(30, 40, dtype=torch.int64), torch.zeros(30, 40, dtype=torch.int64)
    for row, document in enumerate(documents):  # padded on the left
        ids[row, 40 - len(document) :] = torch.tensor(document)
        mask[row, 40 - len(document) :] = 1
    same_numbers(whole, tp.measure_attention(model, topics, (ids, mask), special_ids={2}), 1e-6)


def test_hooks_and_rows_beside_the_fused_kernel_agree(topics):
    model, documents = bert().float(), some_documents(20)
    one, other = (
        tp.measure_attention(model, topics, documents, through=through, special_ids={2})
        for through in ("hooks", "rows")
    )
    same_numbers(one, other, 1e-5)


@pytest.mark.parametrize("build", [bert, gpt2, bart])
def test_uniform_attention_is_exactly_one_everywhere(build, topics):
    model = build()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("query", "q_proj")):
                parameter.zero_()
            if "c_attn" in name:
                parameter[..., :16] = 0
    report = tp.measure_attention(model, topics, some_documents(12), special_ids={2})
    for contrast in (report.overall, report.heads, report.matched, report.without_sinks):
        np.testing.assert_allclose(means(contrast), 1, rtol=1e-12)
        np.testing.assert_allclose(contrast.ratio, 1, rtol=1e-12)
        np.testing.assert_allclose(contrast.topic_ratio, 1, rtol=1e-12)


def with_pattern(change, build=bert):
    """A hooked model whose every pattern is replaced by ``change(pattern)``."""
    host = tp.open_model(build())
    host.add_hook(lambda name: name.endswith("hook_pattern"), lambda pattern, hook: change(pattern))
    return host


BLOCKS = {"a": [5, 6, 7, 8], "b": [10, 11, 12, 13], "c": [30, 31, 32, 33]}


def block_documents(n, seed=0, lists=BLOCKS):
    """Documents with every word of every topic once, in a random order."""
    generator = np.random.default_rng(seed)
    return [
        generator.permutation([word for words in lists.values() for word in words]).tolist() for _ in range(n)
    ]


def prefers_own_topic(documents, strength):
    """A pattern that gives other words of the same topic ``strength`` times what different topics get."""
    label = {word: number for number, words in enumerate(BLOCKS.values()) for word in words}
    rows = cycle(documents)

    def change(pattern):
        weights = []
        for _ in range(len(pattern)):
            topic = torch.tensor([label[word] for word in next(rows)])
            weights.append(torch.where(topic[:, None] == topic, strength, 1.0).double())
        table = torch.stack(weights)[:, None].expand(pattern.shape)
        return table / table.sum(-1, keepdim=True)

    return change


def test_a_planted_preference_is_found_exactly_and_lost_when_topics_are_shuffled():
    documents = block_documents(20)
    topics = tp.Topics.from_token_ids(BLOCKS, vocabulary_size=VOCABULARY)
    model = with_pattern(prefers_own_topic(documents, 3.0), lambda: bert(num_hidden_layers=1))
    report = tp.measure_attention(model, topics, documents)
    np.testing.assert_allclose(report.heads.ratio, 3, rtol=1e-12)
    # p-values of 200 permutations are at least 1/201; the best of both tails doubles it.
    assert (report.heads.p_value < 0.02).all()
    shuffled = topics.shuffled(seed=1)
    model = with_pattern(prefers_own_topic(documents, 3.0), lambda: bert(num_hidden_layers=1))
    lost = tp.measure_attention(model, shuffled, documents, alternative="greater")
    assert (lost.heads.ratio < 1.5).all()
    assert (lost.heads.p_value > 0.05).all()


def test_words_that_merely_stand_closer_have_a_matched_ratio_of_one(topics):
    """Attention falls with distance, and documents put words of a topic side by side."""
    documents = [[word for words in BLOCKS.values() for word in words] for _ in range(9)]

    def falls_with_distance(pattern):
        position = torch.arange(pattern.shape[-1])
        # Constant within the distance bins, so that bins are what is compared.
        weight = 1.0 / (
            1 + torch.bucketize((position - position[:, None]).abs(), torch.tensor(DISTANCE_BINS))
        )
        return (weight / weight.sum(-1).max()).double().expand(pattern.shape)

    blocks = tp.Topics.from_token_ids(BLOCKS, vocabulary_size=VOCABULARY)
    report = tp.measure_attention(with_pattern(falls_with_distance), blocks, documents, check_rows=False)
    assert (report.heads.ratio > 1.3).all()
    np.testing.assert_allclose(report.matched.ratio, 1, rtol=1e-12)
    np.testing.assert_allclose(report.overall_matched.ratio, 1, rtol=1e-12)


def test_the_matched_ratio_weighs_bins_by_their_same_topic_pairs():
    """Worked by hand: two bins with same-topic means 4 and 2, different-topic means 2 and 2; 1 and 3 pairs."""
    sums, n = np.zeros((1, 20, 3)), np.zeros((1, 20, 3))
    sums[0, 1], n[0, 1] = (0, 4, 10), (0, 1, 5)
    sums[0, 2], n[0, 2] = (0, 6, 2), (0, 3, 1)
    sums[0, 3], n[0, 3] = (0, 99, 0), (0, 9, 0)  # nothing to compare with at this distance: left out
    # The scores themselves: 4; 2, 2, 2, 2, 2. 1, 2, 3; 2. And what is left out.
    squares = np.zeros((1, 20))
    squares[0, 1:4] = 16 + 20, 1 + 4 + 9 + 4, 99**2
    found = matched_contrast(sums, n, squares)
    assert found.same_topic[0] == pytest.approx((1 * 4 + 3 * 2) / 4)
    assert found.different_topic[0] == pytest.approx(2)
    assert found.n_same_topic[0] == 4
    assert found.effect_size[0] == pytest.approx((2.5 - 2) / np.std([4, 2, 2, 2, 2, 2, 1, 2, 3, 2]))


def test_sinks_are_reported_and_taken_out():
    """Half of the attention goes to the special token, the rest twice as much to the own topic."""
    documents = [[2, *document] for document in block_documents(12)]
    prefer = prefers_own_topic([document[1:] for document in documents], 2.0)

    def change(pattern):
        table = torch.zeros_like(pattern)
        table[..., 1:, 1:] = 0.5 * prefer(pattern[..., 1:, 1:])
        table[..., 0] = 0.5
        table[..., 0, 0] = 1.0
        return table

    topics = tp.Topics.from_token_ids(BLOCKS, vocabulary_size=VOCABULARY)
    model = with_pattern(change, lambda: bert(num_hidden_layers=1))
    report = tp.measure_attention(model, topics, documents, special_ids={2})
    np.testing.assert_allclose(report.sink_mass, 0.5, rtol=1e-12)
    # A row of 13 visible keys with half its mass away: 13 · 0.5 · 1/(4·2 + 8); 12 keys are left without the sink.
    np.testing.assert_allclose(report.heads.different_topic, 13 * 0.5 / 16, rtol=1e-12)
    np.testing.assert_allclose(report.without_sinks.different_topic, 12 / 16, rtol=1e-12)
    np.testing.assert_allclose(report.without_sinks.ratio, 2, rtol=1e-12)


def test_the_first_position_of_a_causal_model_is_a_sink_whatever_stands_there(topics):
    """Against rows of Hugging Face's own attention: what goes to position 0, and the rest scaled up to one."""
    documents, special = [[5, 2, *document] for document in some_documents()], {2}
    options = {"special_ids": special, "n_resamples": 0, "n_permutations": 0}
    report = tp.measure_attention(gpt2(), topics, documents, **options)
    mass, sums, total, labelled = [], 0, 0, set().union(*TOPICS.values())
    for document in documents:
        layers = output_attentions(gpt2(), document).attentions
        pattern = torch.cat([layer[0] for layer in layers]).numpy()
        sinks = [j for j, word in enumerate(document) if j == 0 or word in special]
        rows = [i for i, word in enumerate(document) if i not in sinks and word in labelled]
        mass += [pattern[:, i, sinks].sum(1) for i in rows]
        left = pattern / (1 - pattern[:, :, sinks].sum(2, keepdims=True).clip(max=1 - 1e-9))
        # Relative to what uniform attention leaves: one over the keys that are no sinks.
        visible = np.array([i + 1 - sum(j <= i for j in sinks) for i in range(len(document))])
        left *= (visible / np.arange(1, len(document) + 1))[:, None]
        part, n = double_loop(left, document, document, causal=True, special=special)
        sums, total = sums + part, total + n
    np.testing.assert_allclose(report.sink_mass, np.mean(mass, 0), rtol=1e-9)
    np.testing.assert_allclose(means(report.without_sinks), sums / total, rtol=1e-9)
    assert report.provenance["left_out"][FIRST] == len(documents)
    kept = tp.measure_attention(gpt2(), topics, documents, first_position="word", **options)
    assert not kept.provenance["left_out"].get(FIRST)
    assert f"{len(documents)} words at the first position were left out" in str(report)
    assert "first position" not in str(kept)
    assert (kept.sink_mass < report.sink_mass).all()
    assert (report.provenance["options"]["first_position"], kept.provenance["options"]["first_position"]) == (
        "sink",
        "word",
    )


def test_a_word_that_begins_at_a_sink_is_no_word_of_several_tokens_either():
    topics = tp.Topics(
        names=("one", "two"),
        vocabulary_size=VOCABULARY,
        words=torch.tensor([5, 10, VOCABULARY, VOCABULARY + 1]),
        assignments=torch.tensor([[0, 0], [1, 1], [2, 0], [3, 0]]),
        compounds=((40, 41), (40, 41, 42)),
    )
    # 40, 41, 42 at the beginning, and again behind it.
    document = tp.Document(
        torch.tensor([40, 41, 42, 5, 40, 41, 42, 10]), torch.tensor([0, 0, 0, 1, 2, 2, 2, 3])
    )
    options = {"level": "word", "n_resamples": 0, "n_permutations": 0}
    heads = tp.measure_attention(gpt2(), topics, [document], **options).heads
    assert (heads.n_same_word[0], heads.n_same_topic[0], heads.n_different_topic[0]) == (3, 1, 2)
    heads = tp.measure_attention(gpt2(), topics, [document], first_position="word", **options).heads
    assert (heads.n_same_word[0], heads.n_same_topic[0]) == (5, 2)


def test_word_level_sums_over_the_pieces_attended_to_and_averages_over_those_that_attend():
    """Worked by hand: words A = (pieces 40, 41) and B = 5 share a topic, C = 10 does not; four tokens."""
    topics = tp.Topics(
        names=("one", "two"),
        vocabulary_size=VOCABULARY,
        words=torch.tensor([5, 10, VOCABULARY]),
        assignments=torch.tensor([[0, 0], [1, 1], [2, 0]]),
        compounds=((40, 41),),
    )
    rows = torch.tensor(
        [[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1], [0.25, 0.25, 0.25, 0.25], [0.7, 0.1, 0.1, 0.1]]
    )
    document = tp.Document(
        torch.tensor([40, 41, 5, 10]), torch.tensor([0, 0, 1, 2]), torch.zeros(4, dtype=torch.bool)
    )
    model = with_pattern(lambda pattern: rows.double().expand(pattern.shape))
    report = tp.measure_attention(model, topics, [document], level="word", n_resamples=0)
    # to B from A: mean(0.3, 0.2) against 1/4; to A from B: 0.25 + 0.25 against 2/4.
    np.testing.assert_allclose(report.heads.same_topic, (0.25 / 0.25 + 0.5 / 0.5) / 2)
    # A to C: mean(0.4, 0.1) / 0.25, B to C: 1, C to A: 0.8 / 0.5, C to B: 0.1 / 0.25.
    np.testing.assert_allclose(report.heads.different_topic, (1 + 1 + 1.6 + 0.4) / 4)
    # A to itself: mean(0.1 + 0.2, 0.4 + 0.3) / 0.5, B: 0.25 / 0.25, C: 0.1 / 0.25.
    np.testing.assert_allclose(report.heads.same_word, (1 + 1 + 0.4) / 3)
    tokens = tp.measure_attention(model, topics, [document], level="token", n_resamples=0)
    assert tokens.heads.n_same_topic[0] == 0


def test_pieces_of_split_words_have_no_topic_and_are_counted(topics):
    """Id 6 is a topic's word, but here it is the first half of a split word."""
    words = torch.tensor([0, 1, 1, 2, 3])
    document = tp.Document(torch.tensor([5, 6, 40, 7, 10]), words, torch.zeros(5, dtype=torch.bool))
    report = tp.measure_attention(bert(), topics, [document], n_resamples=0)
    assert report.overall.n_same_topic == 4 * 2  # 5–7 and 7–5 in each of four heads
    assert report.provenance["left_out"]["pieces of split words"] == 1


def test_word_level_needs_to_know_the_words(topics):
    with pytest.raises(ValueError, match="which tokens form a word"):
        tp.measure_attention(bert(), topics, some_documents(), level="word")


def test_documents_of_special_words_alone_are_resampled_like_others_whatever_batch_they_are_in(topics):
    """Alone in a batch they need no forward pass; with others they stand beside them."""
    documents = [document for other in some_documents(12) for document in (other, [2, 2])]
    topics = tp.Topics.from_token_ids({**TOPICS, "special": [2]}, vocabulary_size=VOCABULARY)
    alone, together = (
        tp.measure_attention(bert(), topics, documents, special_ids={2}, n_permutations=0, batch_size=size)
        for size in (1, 32)
    )
    assert alone.provenance["documents_measured"] == together.provenance["documents_measured"] == 24
    np.testing.assert_allclose(alone.heads.interval, together.heads.interval, rtol=1e-9)


def test_permutation_p_values_are_uniform_without_structure():
    """Topics drawn at random, unrelated to a random model: the mean is 1/2 and the quarters are equally full."""
    words = np.arange(5, 45)
    documents = [np.random.default_rng(seed).choice(words, 20).tolist() for seed in range(6)]
    model = tp.open_model(bert(num_hidden_layers=1))
    found = []
    for seed in range(120):
        parts = np.random.default_rng(100 + seed).permutation(words).reshape(4, 10).tolist()
        topics = tp.Topics.from_token_ids(dict(enumerate(parts)), vocabulary_size=VOCABULARY)
        report = tp.measure_attention(
            model, topics, documents, n_resamples=0, n_permutations=39, alternative="greater", seed=seed
        )
        assert report.matched.p_value is None
        found.append([report.heads.p_value[0], float(report.overall_matched.p_value)])
    for ordered in np.sort(found, axis=0).T:
        distance = np.abs(ordered - (np.arange(120) + 0.5) / 120).max()
        assert distance < 1.63 / np.sqrt(120)  # Kolmogorov–Smirnov at 1 %


def test_the_null_keeps_topic_sizes_and_counts_every_pair_once(topics):
    null = Null(topics, 50, seed=0, n_cells=1)
    for column in null.groups.T:
        assert sorted(column.tolist()) == sorted(topics.group_of_word.tolist())
    pairs = torch.cartesian_prod(*2 * [torch.arange(len(topics.words))]).T.contiguous()
    same = null.same_topic(pairs[0], pairs[1], slice(0, 50))
    groups = null.groups[:, 7]
    sets = topics.incidence.table.toarray()[groups]
    expected = torch.from_numpy((sets[:, None] & sets).any(-1)).flatten()
    assert torch.equal(same[:, 7], expected)


def test_words_are_looked_up_once_for_a_batch(topics, monkeypatch):
    shapes, places = [], tp.Topics.places
    monkeypatch.setattr(tp.Topics, "places", lambda self, ids: shapes.append(ids.shape) or places(self, ids))
    documents = [[5, 6, 10, 11, 12, 30], [7, 10, 5, 31, 32, 33], [5, 8, 11, 30, 31, 32]]
    tp.measure_attention(gpt2(), topics, documents, batch_size=3)
    # Every document when it is asked whether it has a word at all, and the batch.
    assert shapes == [(6,), (6,), (6,), (3, 6)]


def test_permuted_labels_give_the_ratios_of_measuring_with_them():
    """The null of one pass against a measurement for every permutation."""
    topics = tp.Topics.from_token_ids(TOPICS, vocabulary_size=VOCABULARY)
    documents, model = some_documents(6), gpt2()
    reader = PatternReader(capture.view(tp.open_model(model)), topics, Patterns())
    null = Null(topics, 5, seed=3, n_cells=reader.n_cells)
    matched = []
    for batch in token_batches(documents, batch_size=4):
        Engine(reader, [null]).add(batch)
    for number in range(5):
        permuted = tp.Topics(
            names=topics.names,
            vocabulary_size=VOCABULARY,
            words=topics.words,
            assignments=torch.from_numpy(topics.incidence.table.toarray())[
                null.groups[:, number].long()
            ].nonzero(),
        )
        report = tp.measure_attention(
            model, permuted, documents, n_resamples=0, n_permutations=0, special_ids=(), first_position="word"
        )
        np.testing.assert_allclose(
            null.sums["null"][:, number], report.heads.same_topic * report.heads.n_same_topic, rtol=1e-5
        )
        np.testing.assert_array_equal(null.sums["n_null"][:, number], report.heads.n_same_topic)
        matched.append(report.overall_matched.ratio)
    # The p-value of the matched ratio: how many permutations measure one that is as high.
    truth = tp.measure_attention(
        model, topics, documents, n_resamples=0, n_permutations=5, seed=3, alternative="greater", special_ids=(),
        first_position="word", batch_size=4,
    )  # fmt: skip
    as_high = (np.array(matched) >= truth.overall_matched.ratio).sum()
    np.testing.assert_allclose(truth.overall_matched.p_value, (1 + as_high) / 6)
    assert truth.overall_matched.q_value >= truth.overall_matched.p_value


def test_heads_at_the_floor_are_told_with_how_many_permutations_would_lift_them():
    """Ten heads without structure and a layer of two that look for their topic: 2/201 · 12/2 is not below 0.05."""
    documents = block_documents(24)
    prefer, number = prefers_own_topic(documents, 3.0), count()
    build = functools.partial(bert, num_hidden_layers=6)
    model = with_pattern(lambda pattern: prefer(pattern) if next(number) % 6 == 2 else pattern, build)
    capture.view(model)  # the trial is made before patterns are changed by turns
    number = count()
    topics = tp.Topics.from_token_ids(BLOCKS, vocabulary_size=VOCABULARY)
    options = {"special_ids": (), "n_resamples": 0, "batch_size": 24}
    few = tp.measure_attention(model, topics, documents, **options)
    lowest = few.heads.p_value < 2 / 200
    assert [few.heads.index["layer"][at] for at in np.flatnonzero(lowest)] == [2, 2]
    assert few.heads.q_value[lowest] == pytest.approx(2 / 201 * 12 / 2)
    assert "p of 2 heads is at the floor, 2/201" in str(few)
    assert "3 of 12 heads must share it before any has q < 0.05" in str(few)
    assert "p-value and interval disagree" not in str(few)  # there are no intervals
    assert "n_permutations=480 lets a single head stand out" in str(few)

    # 2/(n + 1) · 12 < 0.05 takes 480 permutations for a head that is left alone.
    many = tp.measure_attention(model, topics, documents, n_permutations=480, **options)
    assert many.heads.p_value[lowest] == pytest.approx(2 / 481)
    assert (many.heads.q_value[lowest] < 0.05).all()
    assert "at the floor" not in str(many)
    with pytest.raises(TypeError, match="n_permutations must be a whole number, got 'many'"):
        tp.measure_attention(model, topics, documents, n_permutations="many", **options)


def test_heads_at_the_floor_are_told_unless_they_share_it():
    p_value = np.array([2 / 201, *np.linspace(0.1, 1, 269)])
    heads = tp.Contrast(*np.ones((6, 270)), p_value=p_value, q_value=benjamini_hochberg(p_value))
    options = {"n_permutations": 200, "alternative": "two-sided"}
    [said] = nulls.about_floor(heads, {"options": options})
    assert "54 of 270 heads must share it" in said
    assert said.endswith("n_permutations=10,800 lets a single head stand out")
    many = replace(heads, p_value=np.full(270, 2 / 201), q_value=np.full(270, 2 / 201))
    assert nulls.about_floor(many, {"options": options}) == []


def test_documents_with_nan_are_skipped_and_counted_and_many_are_refused(topics, monkeypatch):
    bad = [5, 6, 7, 8, 10]
    documents = some_documents(150)
    clean = tp.measure_attention(bert(), topics, documents, special_ids={2})
    model = bert()
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[44] = torch.nan
    some = tp.measure_attention(model, topics, [*documents, [44, *bad]], special_ids={2})
    assert some.provenance["left_out"]["documents with NaN or infinity in their attention"] == 1
    np.testing.assert_allclose(means(some.heads), means(clean.heads), rtol=1e-9)
    with pytest.raises(ValueError, match=r"10 of 160 documents have NaN or infinity.*float32"):
        tp.measure_attention(model, topics, [*documents, *[[44, *bad]] * 10], special_ids={2})


def test_rows_that_do_not_sum_to_one_are_an_error_that_names_the_place(topics):
    model = with_pattern(lambda pattern: pattern * 0.5)
    with pytest.raises(ValueError, match=r"blocks\.0\.attn\.hook_pattern sums to 0\.5 instead of 1"):
        tp.measure_attention(model, topics, some_documents())
    report = tp.measure_attention(model, topics, some_documents(), check_rows=False)
    assert np.isfinite(report.heads.ratio).all()


@pytest.mark.parametrize(
    ("dtype", "off", "refused"),
    [
        (torch.float64, 5e-7, False),
        (torch.float64, 2e-6, True),
        (torch.float32, 5e-4, False),
        (torch.float32, 2e-3, True),
        (torch.bfloat16, 0.15, True),
    ],
)
def test_rows_may_miss_one_by_the_rounding_of_their_precision_and_no_more(dtype, off, refused, topics):
    model = with_pattern(lambda pattern: pattern * (1 + off), lambda: bert().to(dtype))
    if not refused:
        assert np.isfinite(tp.measure_attention(model, topics, some_documents()).heads.ratio).all()
        return
    with pytest.raises(ValueError, match=r"hook_pattern sums to 1\.\d+ instead of 1"):
        tp.measure_attention(model, topics, some_documents())


def test_a_report_says_of_how_many_documents_every_token_was_taken_as_a_word(topics):
    ids = [torch.tensor(document) for document in some_documents(9)]
    seen = [tp.Document(document, torch.arange(len(document))) for document in ids[:3]]
    report = tp.measure_attention(bert(), topics, [*seen, *ids[3:]])
    assert report.provenance["without_words"] == 6
    assert "every token of 6 documents was taken as a word" in repr(report)
    assert "taken as a word" not in repr(tp.measure_attention(bert(), topics, seen))


def test_documents_without_topic_words_give_nan_with_a_warning_and_are_counted(topics):
    with pytest.warns(UserWarning, match="none of the 3 documents holds a word of any topic"):
        report = tp.measure_attention(bert(), topics, [[40, 41], [42], [43, 44, 45]])
    assert np.isnan(report.overall.ratio)
    assert report.overall.n_same_topic == 0
    assert "no pair of different words shares a topic" in report.overall.reason
    assert report.provenance["left_out"]["documents without a word of any topic"] == 3


def test_a_single_topic_has_no_ratio_and_says_why():
    topics = tp.Topics.from_token_ids({"only": [5, 6, 7]}, vocabulary_size=VOCABULARY)
    report = tp.measure_attention(bert(), topics, some_documents())
    assert np.isnan(report.heads.ratio).all()
    assert np.isfinite(report.heads.same_topic).all()
    assert "different topics" in report.heads.reason
    assert np.isnan(report.heads.p_value).all()


def test_a_table_explains_a_p_value_that_its_interval_does_not_bear_out(topics):
    report = tp.measure_attention(bert(), topics, some_documents(20), special_ids={2})
    fields = (report.overall, report.stacks, report.layers, report.heads)
    n = sum(
        bool((p < 0.05) == (low <= 1 <= high))
        for field in fields
        for p, (low, high) in zip(np.ravel(field.p_value), field.interval.reshape(-1, 2), strict=True)
    )
    heads = replace(
        report.heads, interval=np.stack([report.heads.ratio - 0.1, report.heads.ratio + 0.1], -1) * 0 + 1
    )
    unlike = replace(report, heads=replace(heads, p_value=np.full(4, 0.01)))
    assert f"p-value and interval disagree {n} times" in str(report) if n else "disagree" not in str(report)
    assert "a p-value says whether other groupings of the same words would do as well" in str(unlike)
    options = {**report.provenance["options"], "resample": ["sources", "words"]}
    with_words = replace(unlike, provenance={**report.provenance, "options": options})
    assert "how the number would vary with other sources and words" in str(with_words)
    assert "sources and words" not in str(unlike)


def test_few_documents_have_no_interval_and_say_so(topics):
    report = tp.measure_attention(bert(), topics, some_documents(3))
    assert np.isnan(report.overall.interval).all()
    assert "no interval: 3 sources, at least 8 are needed" in report.overall.reason


# ---------------------------------------------------------------- sources


def sources_of(topics, documents, **options):
    """The sums and counts of every source, by a pass that keeps them."""
    kept = Relations()
    tp.measure_attention(bert(), topics, documents, accumulators=[kept], n_permutations=0, **options)
    return kept.by_source.rows()[:3]


def test_the_pieces_of_a_source_add_up_whatever_batch_they_are_in(topics):
    documents = some_documents(30)
    labels = [f"article {number % 9}" for number in range(30)]  # pieces of one article never side by side
    _, sums, counts = sources_of(topics, zoo.of_sources(documents, labels), batch_size=4)
    by_hand = {}
    for document, label in zip(documents, labels, strict=True):  # each document on its own
        _, one, n = sources_of(topics, [document])
        by_hand[label] = by_hand.get(label, 0) + np.concatenate([one[0], n[0]], -1)
    found = sorted(np.concatenate([sums, counts], -1), key=lambda rows: rows.ravel().tolist())
    wanted = sorted(by_hand.values(), key=lambda rows: rows.ravel().tolist())
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_pieces_of_one_article_are_one_source(topics):
    words = some_documents(1, longest=4000)[0]
    long = np.resize(words, 60 * 20).tolist()
    pieces = {"max_length": 60, "long": "chunk", "n_permutations": 0}
    one = tp.measure_attention(bert(), topics, [long], **pieces)
    assert one.provenance["documents"] == 20
    assert one.provenance["sources"] == 1
    assert np.isnan(one.overall.interval).all()
    assert "no interval: one text or article cannot show how others would differ" in repr(one)


def test_a_report_says_how_many_sources_it_has(topics, monkeypatch):
    documents = some_documents(24)
    alone = tp.measure_attention(bert(), topics, documents, n_permutations=0)
    assert alone.provenance["sources"] == 24
    assert "intervals resample 24 sources" in repr(alone)
    of_pairs = zoo.of_sources(documents, np.arange(24) // 2)
    pairs = tp.measure_attention(bert(), topics, of_pairs, n_permutations=0)
    assert pairs.provenance["sources"] == 12
    assert "intervals resample 12 sources" in repr(pairs)
    assert "intervals resample" not in repr(
        tp.measure_attention(bert(), topics, documents, n_permutations=0, n_resamples=0)
    )
    monkeypatch.setattr(attention, "source_limit", lambda n_cells: 16)
    blocks = tp.measure_attention(bert(), topics, documents, n_permutations=0)
    assert f"intervals resample {blocks.provenance['sources']} blocks of sources" in repr(blocks)
    assert blocks.provenance["sources_in_blocks"]


def test_texts_that_were_cut_by_hand_are_of_the_sources_that_they_are_said_to_be(topics):
    documents = [
        tp.Document(torch.tensor(ids), source=place // 3) for place, ids in enumerate(some_documents(27))
    ]
    own = tp.measure_attention(bert(), topics, documents, n_permutations=0)
    assert own.provenance["sources"] == 9
    batches = token_batches(documents, batch_size=5)
    assert tp.measure_attention(bert(), topics, batches, n_permutations=0).provenance["sources"] == 9


def test_topics_of_another_vocabulary_are_refused(topics):
    with pytest.raises(ValueError, match=r"vocabulary of 60 ids, the model's has 50"):
        tp.measure_attention(bert(), topics.with_vocabulary_size(60), some_documents())


def test_interrupting_keeps_what_was_measured(topics):
    documents = [[5, *document] for document in some_documents(200)]

    def until_interrupted():
        yield from documents[:150]
        raise KeyboardInterrupt

    report = tp.measure_attention(
        bert(), topics, until_interrupted(), batch_size=2, special_ids={2}, n_permutations=0
    )
    assert "interrupted after" in report.provenance["options"]["stopped"]
    measured = report.provenance["documents_measured"]
    assert measured == 128  # whole groups of 32 batches
    expected = tp.measure_attention(
        bert(), topics, documents[:measured], batch_size=2, special_ids={2}, n_permutations=0
    )
    np.testing.assert_allclose(means(report.heads), means(expected.heads), rtol=1e-9)


def test_out_of_memory_halves_the_batch_and_changes_nothing(topics, monkeypatch):
    documents = some_documents(20)
    whole = tp.measure_attention(bert(), topics, documents, special_ids={2})
    read = capture.View.attention_cells
    sizes = []

    def small_machine(self, inputs, *given, **options):
        sizes.append(len(inputs.ids))
        if len(inputs.ids) > 3:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        read(self, inputs, *given, **options)

    monkeypatch.setattr(capture.View, "attention_cells", small_machine)
    same_numbers(whole, tp.measure_attention(bert(), topics, documents, special_ids={2}), 1e-9)
    assert max(sizes) == 20


def test_large_blocks_are_scored_in_parts(topics, monkeypatch):
    documents = some_documents(20)
    whole = tp.measure_attention(bert(), topics, documents, special_ids={2})
    monkeypatch.setattr(engine, "MAX_KEPT_NUMBERS", 2000)
    same_numbers(whole, tp.measure_attention(bert(), topics, documents, special_ids={2}), 1e-9)


def test_many_documents_are_kept_as_blocks(topics, monkeypatch):
    """Memory is flat: whatever the number of documents, no more than the limit of rows is kept."""
    monkeypatch.setattr(engine, "MAX_SOURCE_CELLS", 4 * 256)
    reader = PatternReader(capture.view(tp.open_model(bert())), topics, Patterns())
    relations = Relations(engine.source_limit(reader.n_cells))
    pass_ = Engine(reader, [relations])
    for batch in token_batches(some_documents(700, longest=30)):
        pass_.add(batch)
    assert pass_.progress.measured == 700
    assert len(relations.by_source) <= 256


def test_a_report_lists_its_highest_heads_and_comes_back_from_disk(topics, tmp_path):
    report = tp.measure_attention(gpt2(), topics, some_documents(12))
    table = report.to_dataframe()
    wanted = ["stack", "layer", "head", "same_word", "same_topic", "different_topic", "ratio"]
    assert list(table.columns[:7]) == wanted
    assert {
        "n_same_topic",
        "ratio_low",
        "ratio_high",
        "p_value",
        "q_value",
        "matched_ratio",
        "sink_mass",
    } <= set(table)
    assert list(table.head(4)["layer"]) == [0, 0, 1, 1]
    best = report.heads.top(2)
    evidence = table.sort_values(["q_value", "effect_size"], ascending=[True, False])
    assert best.effect_size.tolist() == evidence["effect_size"].tolist()[:2]
    by_ratio = report.heads.top(2, by="ratio")
    assert by_ratio.ratio.tolist() == sorted(table["ratio"], reverse=True)[:2]
    row = table[(table["layer"] == best.index["layer"][0]) & (table["head"] == best.index["head"][0])]
    assert row["ratio"].item() == best.ratio[0]
    report.save(tmp_path / "report")
    assert tp.load_report(tmp_path / "report") == report
    assert "overall ratio" in repr(report)


def test_long_documents_are_cut_at_the_context_or_chunked_and_counted(topics):
    documents = [some_documents(1, longest=30, seed=seed)[0] * 12 for seed in range(9)]
    cut = tp.measure_attention(bert(), topics, documents)
    assert cut.provenance["options"]["max_length"] == 64
    long = sum(len(document) > 64 for document in documents)
    assert cut.provenance["left_out"]["documents cut at 64 tokens"] == long
    parts = [document[start : start + 64] for document in documents for start in range(0, len(document), 64)]
    chunked = tp.measure_attention(bert(), topics, documents, long="chunk")
    np.testing.assert_allclose(
        means(chunked.heads), means(tp.measure_attention(bert(), topics, parts).heads), rtol=1e-12
    )


def test_half_precision_models_are_measured_in_full_precision(topics):
    documents = some_documents(20)
    full = tp.measure_attention(bert().float(), topics, documents)
    half = tp.measure_attention(bert().to(torch.bfloat16), topics, documents)
    assert half.provenance["model"]["dtype"] == "bfloat16"
    np.testing.assert_allclose(means(half.heads), means(full.heads), rtol=0.05)


def test_measuring_is_silent(topics, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tp.measure_attention(bert(), topics, some_documents())
    printed = capsys.readouterr()
    assert printed.out == printed.err == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"confidence": 2.0}, "confidence is the share of intervals"),
        ({"n_resamples": -1}, "n_resamples must be at least 0"),
        ({"n_permutations": -1}, "n_permutations must be at least 0"),
    ],
)
def test_options_of_the_statistics_are_refused_before_a_document_is_read(topics, options, said):
    def never():
        raise AssertionError("hours of measuring would be lost")
        yield

    with pytest.raises(ValueError, match=said):
        tp.measure_attention(bert(), topics, never(), **options)
