"""Several topics in one pass of the model: each report is that of these topics alone."""

from functools import cache

import numpy as np
import pytest
import torch
import zoo

import topic_probe as tp
from topic_probe.lens.host import host_of
from topic_probe.measure.attention_sums import AttentionSums

LISTS = (
    {"one": range(3, 10), "two": range(10, 18)},
    {"a": range(3, 30), "b": range(25, 45)},
    {"x": [5, 6, 20, 30], "y": [7, 40, 41, 42]},
)
TOPICS = [tp.Topics.from_token_ids(lists, vocabulary_size=zoo.VOCABULARY) for lists in LISTS]
OPTIONS = {"special_ids": {1, 2}, "n_permutations": 20, "batch_size": 5}


@cache
def opened(name="bert"):
    return tp.open_model(zoo.make(name).double())


def documents(n=24):
    """Texts of many lengths, some of which have words of one topics and not of the others."""
    generator = np.random.default_rng(0)
    found = [generator.integers(0, 60, length).tolist() for length in generator.integers(3, 40, n)]
    return [*found, [1, 2, 50, 51], [1, 10, 11, 12, 2], [1, 44, 43, 25, 26], [5]]


def same(one, other, *names):
    """Two reports have the same numbers and left out the same."""
    tables = [report.to_dataframe(*names).select_dtypes("number") for report in (one, other)]
    np.testing.assert_allclose(*tables, rtol=1e-9, atol=1e-12)
    for name in ("documents", "left_out", "documents_measured", "sources", "tokens", "topics"):
        assert one.provenance.get(name) == other.provenance.get(name), name


@pytest.mark.parametrize("name", ["bert", "gpt2", "bart"])
def test_attention_of_several_topics_is_that_of_each(name):
    several = tp.measure_attention(opened(name), TOPICS, documents(), **OPTIONS)
    for topics, report in zip(TOPICS, several, strict=True):
        alone = tp.measure_attention(opened(name), topics, documents(), **OPTIONS)
        same(alone, report)
        np.testing.assert_allclose(report.overall.interval, alone.overall.interval, rtol=1e-9)
        assert report.overall_matched.p_value == alone.overall_matched.p_value


def test_a_question_of_other_topics_is_answered_in_the_same_pass():
    sites = torch.arange(len(host_of(opened()).sites)).repeat_interleave(zoo.HEADS)
    asked = AttentionSums(TOPICS[1], sites)
    report = tp.measure_attention(opened(), TOPICS[0], documents(), questions=[asked], **OPTIONS)
    same(tp.measure_attention(opened(), TOPICS[0], documents(), **OPTIONS), report)
    alone = tp.measure_attention(opened(), TOPICS[1], documents(), **OPTIONS)
    np.testing.assert_allclose(asked.sums["without_sinks"], alone.sums["without_sinks"], rtol=1e-9)
    np.testing.assert_array_equal(asked.sums["n_rows"], alone.sums["n_rows"])


def test_states_of_several_topics_are_those_of_each():
    several = tp.measure_embeddings(opened(), TOPICS, documents(), batch_size=5)
    for topics, report in zip(TOPICS, several, strict=True):
        alone = tp.measure_embeddings(opened(), topics, documents(), batch_size=5)
        for by in ("score", "layer", "topic"):
            np.testing.assert_allclose(
                *(one.to_dataframe(by).select_dtypes("number") for one in (alone, report)), rtol=1e-9
            )


def test_several_topics_are_one_pass():
    host, passes = tp.open_model(zoo.make("bert")), []
    host_of(host)  # with its trial
    host.add_hook("blocks.0.attn.hook_pattern", lambda pattern, hook: passes.append(1) or pattern)
    tp.measure_attention(host, TOPICS, documents(), batch_size=64, n_permutations=0)
    assert len(passes) == 1


def test_a_broken_document_is_counted_for_the_topics_that_have_words_in_it():
    model = zoo.make("bert").double()
    with torch.no_grad():
        model.get_input_embeddings().weight[50] = torch.nan
    model, words = tp.open_model(model), ([5, 6, 11], [7, 12, 20], [30, 31, 26], [8, 9, 15])
    texts = [*[[1, *own, 2] for own in words] * 60, [1, 10, 11, 50, 2]]
    options = {**OPTIONS, "n_permutations": 3, "batch_size": 32}
    several = tp.measure_attention(model, TOPICS, texts, **options)
    reason = "documents with NaN or infinity in their attention"
    assert [report.provenance["left_out"].get(reason, 0) for report in several] == [1, 1, 0]
    alone = tp.measure_attention(opened(), TOPICS[0], texts[:-1], special_ids={1, 2}, n_permutations=0)
    np.testing.assert_allclose(several[0].heads.ratio, alone.heads.ratio, rtol=1e-9)
    with pytest.raises(ValueError, match="20 of 200 documents have NaN or infinity"):
        tp.measure_attention(model, TOPICS[0], [*texts[:-1], *texts[-1:] * 20], **options)


def test_what_several_topics_cannot_be_asked_is_refused(unchecked):
    for topics, options, error, said in (
        ([], {}, ValueError, "needed topics, or a list of at least one, got an empty list"),
        (["war"], {}, TypeError, "a list of topics needs Topics, got 'war'"),
        (
            TOPICS,
            {"questions": [np.zeros(2)]},
            TypeError,
            "questions are objects of a class derived from Question",
        ),
    ):
        with pytest.raises(error, match=said):
            tp.measure_attention(opened(), topics, documents(), **options)
