"""Effects in shards: what is done to a model is the same in all of them, and merged sums are those of one process."""

import functools
import os
import re
import shutil
import sys

import any_architecture
import many_processes
import numpy as np
import pytest
import transformers as hf
import zoo
from in_shards import assert_agree, files, measured_in_shards

import topic_probe as tp
from topic_probe.cli import main
from topic_probe.measure.engine import Engine

WORDS = {"one": range(5, 20), "two": range(20, 40), "three": range(40, 60)}
TOPICS = tp.Topics.from_token_ids(
    {name: list(words) for name, words in WORDS.items()}, vocabulary_size=zoo.VOCABULARY
)
DOCUMENTS = zoo.lists(tuple(range(9, 21)))
# Two pieces of every article.
ARTICLES = [number // 2 for number in range(len(DOCUMENTS))]
COMMON = {"special_ids": (), "batch_size": 3}


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch):
    """Hundreds of saves; what a disk keeps when the power fails is not tested here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def gpt2():
    config = hf.GPT2Config(
        vocab_size=zoo.VOCABULARY,
        n_positions=64,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    return zoo.drawn(lambda: hf.GPT2LMHeadModel(config))


MAKERS = {"bert": lambda: many_processes.model(zoo.VOCABULARY), "gpt2": gpt2}


@functools.cache
def opened(name):
    """In single precision, in which padding decides about last digits."""
    return tp.open_model(MAKERS[name]().float())


def ablation(documents=DOCUMENTS, model=None, topics=TOPICS, **more):
    options = {"n_matched": 2, **COMMON, **more}
    return tp.measure_ablation(opened("bert") if model is None else model, topics, documents, **options)


def knockout(documents=DOCUMENTS, model=None, topics=TOPICS, **more):
    options = {"n_matched": 2, **COMMON, **more}
    return tp.measure_knockout(opened("bert") if model is None else model, topics, documents, **options)


def writes(documents=DOCUMENTS, model=None, topics=TOPICS, **more):
    return tp.measure_writes(opened("gpt2") if model is None else model, topics, documents, **COMMON | more)


def shift(documents=DOCUMENTS, model=None, topics=TOPICS, **more):
    options = {"n_matched": 2, "n_permutations": 5, "heads": "0.1,1.0", **COMMON, **more}
    return tp.measure_shift(opened("gpt2") if model is None else model, topics, documents, **options)


def mean_of_states(model, inputs):
    """A number for every document."""
    given = {"input_ids": inputs.ids, "attention_mask": inputs.mask.long(), "output_hidden_states": True}
    states = model.original_model(**given).hidden_states[-1]
    return (states * inputs.mask[:, :, None])[:, :, 0].sum(1) / inputs.mask.sum(1)


MEASURED = {
    "ablation": (ablation, {"kind": "position", "max_length": 12, "long": "chunk"}),
    "ablation of articles": (ablation, {"groups": ARTICLES, "sets": {"a": "0.1,1.0"}, "match": "norm"}),
    "ablation of heads that attend most": (ablation, {"heads": 2, "kind": "resample", "outcome": mean_of_states}),
    "screened ablation": (ablation, {"exact": 2}),
    "knockout": (knockout, {"heads": "0.1,1.0", "relation": "own_topic"}),
    "writes": (writes, {}),
    "shift": (shift, {}),
}  # fmt: skip


def measure_of(case, **more):
    measure, options = MEASURED[case]
    return lambda **given: measure(**{**options, **more, **given})


@pytest.mark.parametrize("case", list(MEASURED))
def test_any_number_of_shards_gives_the_bits_of_one_process(case, tmp_path):
    measure = measure_of(case)
    alone = measure(shard=(0, 1), sums=tmp_path / "1")
    assert tp.merge_sums(tmp_path / "1") == alone
    alone.save(tmp_path / "alone")
    for n in (2, 3, 7):
        merged = measured_in_shards(measure, n, tmp_path / str(n))
        assert merged == alone
        assert repr(merged) == repr(alone)  # with the same columns in the same order
        merged.save(tmp_path / f"merged {n}")
        assert files(tmp_path / f"merged {n}") == files(tmp_path / "alone")


@pytest.mark.parametrize("case", list(MEASURED))
def test_one_process_by_blocks_agrees_with_one_that_knows_no_blocks(case, tmp_path, monkeypatch):
    """In double precision to rounding, everything that was counted exactly, and all that is said of the documents."""
    monkeypatch.setattr(
        sys.modules[__name__], "opened", lambda name: tp.open_model(MAKERS[name]().double())
    )  # fmt: skip
    measure = measure_of(case)
    assert_agree(measure(), measure(shard=(0, 1), sums=tmp_path))


def test_all_shards_take_out_the_same_heads_and_put_the_same_in_their_place(tmp_path):
    """Though each has documents of its own: what is found out beforehand is of all of them."""
    found = [ablation(heads=2, match="norm", shard=(i, 3), sums=tmp_path) for i in range(3)]
    whole = ablation(heads=2, match="norm")
    assert {report.index["heads"] for report in found} == {whole.index["heads"]}
    assert sum(report.provenance["documents"]["documents"] for report in found) == len(DOCUMENTS)
    assert len({tuple(report.effect[0]) for report in found}) == 3
    merged = tp.merge_sums(tmp_path)
    np.testing.assert_allclose(merged.effect, whole.effect, atol=1e-5)
    np.testing.assert_array_equal(merged.p_value, whole.p_value)


def test_edges_and_words_are_counted_over_all_shards(tmp_path):
    edges = [knockout(shard=(i, 4), sums=tmp_path / "edges").index["n"][0] for i in range(4)]
    whole = knockout(batch_size=1)
    merged = tp.merge_sums(tmp_path / "edges")
    assert merged.index["n"] == whole.index["n"] == (sum(edges),)
    assert merged.provenance["edges"] == whole.provenance["edges"]
    words = [shift(shard=(i, 4), sums=tmp_path / "words").provenance["words"] for i in range(4)]
    merged, whole = tp.merge_sums(tmp_path / "words"), shift(batch_size=1)
    assert merged.provenance["words"] == whole.provenance["words"]
    assert sum(counted["replaced"] for counted in words) == whole.provenance["words"]["replaced"]
    # How often words occur is counted in all documents, so that words are replaced as they are without shards.
    np.testing.assert_allclose(merged.own_words, whole.own_words, atol=1e-5)


@pytest.mark.parametrize("measure", [ablation, knockout, writes, shift])
def test_shards_without_documents_are_fine(measure, tmp_path):
    """Three documents in seven shards, and none with a word of a topic."""
    few = DOCUMENTS[:3]
    alone = measure(few, shard=(0, 1), sums=tmp_path / "1")
    reports = [measure(few, shard=(i, 7), sums=tmp_path / "7") for i in range(7)]
    empty = [report for report in reports if not report.provenance["documents"]["documents"]]
    assert len(empty) >= 4
    assert all(re.search(r"shard \d of 7 alone", repr(report)) for report in empty)
    assert tp.merge_sums(tmp_path / "7") == alone
    without_words = [[2, 3, 4]] * 3 + [[2, 3]]
    for i in range(2):
        measure(without_words, shard=(i, 2), sums=tmp_path / "none", **NOTHING.get(measure, {}))
    if measure is shift:  # whose documents are sources, though nothing is replaced in them
        assert np.isnan(tp.merge_sums(tmp_path / "none").shift)
        return
    with pytest.raises(ValueError, match="none of the 4 documents holds a word of any topic"):
        tp.merge_sums(tmp_path / "none")


NOTHING = {ablation: {"kind": "zero"}, shift: {"frequency": np.ones(zoo.VOCABULARY)}}


@pytest.mark.parametrize(
    ("measure", "names", "other"),
    [
        (ablation, "weights", {"model": lambda: tp.open_model(zoo.make("bert"))}),
        (ablation, "sets", {"sets": {"a": "0.1"}}),
        (ablation, "kind", {"kind": "zero"}),
        (ablation, "stand-ins", {"reference": zoo.lists((11, 17), seed=1)}),
        (ablation, "layer", {"layer": 1}),
        (ablation, "n_matched", {"n_matched": 1}),
        (ablation, "alternative", {"alternative": "greater"}),
        (ablation, "confidence", {"confidence": 0.9}),
        (ablation, "groups", {"groups": ARTICLES[:8]}),
        (ablation, "measurement", {"measure": knockout}),
        (knockout, "relation", {"relation": "same_word"}),
        (knockout, "how", {"how": "weights"}),
        (knockout, "sites", {"layers": [1]}),
        (knockout, "seed", {"seed": 1}),
        (knockout, "topics", {"topics": TOPICS.without([5])}),
        (writes, "through", {"through": "hooks"}),
        (writes, "batch_size", {"batch_size": 4}),
        (shift, "fraction", {"fraction": 0.7}),
        (shift, "toward", {"toward": "two"}),
        (shift, "heads", {"heads": "0.1"}),
        (shift, "classes", {"frequency": np.arange(zoo.VOCABULARY)}),
        (shift, "n_permutations", {"n_permutations": 4}),
    ],
)  # fmt: skip
def test_sums_of_different_measurements_are_never_added_up(measure, names, other, tmp_path):
    few = DOCUMENTS[:8]
    other = {name: value() if name == "model" else value for name, value in other.items()}
    measure(few, shard=(0, 2), sums=tmp_path)
    another = other.pop("measure", measure)
    another(few, **other, shard=(1, 2), sums=tmp_path)
    with pytest.raises(
        ValueError, match=rf"hold sums of different measurements, which differ in .*\b{names}\b"
    ):
        tp.merge_sums(tmp_path)
    with pytest.raises(ValueError, match=rf"holds the sums of another measurement, .*\b{names}\b"):
        another(few, **other, shard=(0, 2), sums=tmp_path)


def test_overlapping_and_missing_shards_have_no_report(tmp_path):
    few = DOCUMENTS[:6]
    for i in range(3):
        knockout(few, shard=(i, 3), sums=tmp_path)
    shutil.copytree(tmp_path / "shard-1-of-3", tmp_path / "copy" / "shard-1-of-3")
    with pytest.raises(ValueError, match="hold sums of the same sources"):
        tp.merge_sums([tmp_path, tmp_path / "copy"])
    shutil.rmtree(tmp_path / "shard-1-of-3")
    with pytest.raises(ValueError, match=r"sums of shard 1 of 3 are missing"):
        tp.merge_sums(tmp_path)


@pytest.mark.parametrize("case", ["ablation", "knockout", "writes", "shift"])
def test_a_shard_that_was_stopped_leaves_the_same_bytes_when_it_runs_again(case, tmp_path, monkeypatch):
    """With a checkpoint it goes on where it was, and what was counted is not counted twice."""
    measure = measure_of(case, batch_size=1)
    measure(shard=(1, 2), sums=tmp_path / "expected")
    add, numbers = Engine.add, []

    def broken(self, batch):
        if len(numbers) == 2:
            raise KeyboardInterrupt
        numbers.append(len(batch))
        add(self, batch)

    kept = {"checkpoint": tmp_path / "kept", "checkpoint_every": 0.0, "sums": tmp_path / "sums"}
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "add", broken)
        stopped = measure(shard=(1, 2), **kept)
    assert "interrupted after" in stopped.provenance["documents"]["stopped"]
    assert not list((tmp_path / "sums").iterdir())
    measure(shard=(1, 2), **kept)
    assert files(tmp_path / "sums") == files(tmp_path / "expected")


# ---------------------------------------------------------------------------- layers that do not attend


def test_a_shard_without_documents_has_all_layers_of_a_stack_in_which_not_every_layer_attends(tmp_path):
    """Bamba with three layers, of which the middle one attends: what enters them, and what leaves each."""
    settings = any_architecture.small(hf.BambaConfig) | {"num_hidden_layers": 3}
    model = tp.open_model(hf.BambaModel(hf.BambaConfig(**settings)).eval())
    states = tp.measure_embeddings(model, TOPICS, DOCUMENTS[:2], special_ids=())
    reports = [
        tp.measure_embeddings(model, TOPICS, DOCUMENTS[:1], special_ids=(), shard=(i, 2), sums=tmp_path)
        for i in range(2)
    ]
    assert states.layers["cosine"].index["layer"] == (0, 1, 2, 3)
    assert [report.layers["cosine"].index["layer"] for report in reports] == [(0, 1, 2, 3)] * 2
    # The last of them is what the last layer leaves, not the last layer that attends.
    assert tp.measure_knockout(model, TOPICS, DOCUMENTS[:2], n_matched=0).provenance["options"]["layer"] == 3


# ---------------------------------------------------------------------------- the command line


def test_the_command_line_merges_effects_of_shards(tmp_path, capsys):
    many_processes.model(30_522).float().save_pretrained(tmp_path / "model")
    many_processes.stream().tokenizer.save_pretrained(tmp_path / "model")
    many_processes.text_topics().save(tmp_path / "topics")
    (tmp_path / "texts.txt").write_text("\n".join(f"{text} and a duck" for text in many_processes.TEXTS))
    command = ["measure", "knockout", str(tmp_path / "model"), "--topics", str(tmp_path / "topics"), "--corpus",
               str(tmp_path / "texts.txt"), "--split", "line", "--n-matched", "2"]  # fmt: skip
    one = [*command, "--shard", "0", "1", "--sums", str(tmp_path / "one"), "--out", str(tmp_path / "alone")]
    assert main(one) == 0
    for i in "012":
        assert main([*command, "--shard", i, "3", "--sums", str(tmp_path / "three")]) == 0
    capsys.readouterr()
    assert main(["merge", str(tmp_path / "three"), "--out", str(tmp_path / "merged")]) == 0
    assert "outcome of the model as it is" in capsys.readouterr().out
    assert files(tmp_path / "merged") == files(tmp_path / "alone")
