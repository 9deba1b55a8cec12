"""Shards that know nothing of each other: merged sums are those of one process, and what does not fit is refused."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import many_processes
import numpy as np
import pytest
import torch
import zoo
from in_shards import assert_agree, files, measured_in_shards
from many_processes import documents, other_topics, stream, text_topics, topics

import topic_probe as tp
from topic_probe import storage
from topic_probe.cli import main
from topic_probe.contrast import SourceSums
from topic_probe.measure import attention, engine, shards
from topic_probe.measure.engine import Engine
from topic_probe.text.shares import BLOCKS, OwnDocuments, block_of
from topic_probe.text.sums import Share

N = 150
PROGRAM = Path(many_processes.__file__)


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch):
    """Hundreds of saves; what a disk keeps when the power fails is not tested here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def counts():
    return tp.count_cooccurrence(documents(N), topics())


def single():
    """A model of single precision, in which a document beside others of its batch has other bits than alone."""
    return many_processes.model().float()


# Four pieces of every article; some are named, so that they are not sources by themselves.
ARTICLES = [number // 4 for number in range(N)]
MEASURED = {
    "attention": lambda counts, **more: tp.measure_attention(
        single(), topics(), documents(N), batch_size=4, n_permutations=20, **more
    ),
    # Whose sums are not exact in double precision, so that they tell in which order they were added up.
    "attention in double precision": lambda counts, **more: tp.measure_attention(
        many_processes.model(), topics(), documents(N), batch_size=4, n_permutations=5, **more
    ),
    "attention of articles": lambda counts, **more: tp.measure_attention(
        single(), topics(), documents(N), batch_size=4, n_permutations=5, groups=ARTICLES, **more
    ),
    "attention of pieces": lambda counts, **more: tp.measure_attention(
        single(), topics(), documents(N), n_permutations=5, max_length=7, long="chunk", groups="document", **more
    ),
    "attention of words in a stream": lambda counts, **more: tp.measure_attention(
        many_processes.model(30_522).float(), text_topics(), stream(), level="word", n_permutations=5, **more
    ),
    "states": lambda counts, **more: tp.measure_embeddings(single(), topics(), documents(N), batch_size=4, **more),
    "matched": lambda counts, **more: tp.measure_matched(
        single(), topics(), documents(N), cooccurrence=counts, batch_size=4, n_permutations=10, n_resamples=20,
        pmi_bins=2, frequency_bins=2, **more,
    ),
}  # fmt: skip


def attention_of(ids, model=None, **more):
    options = {"batch_size": 4, "n_permutations": 5, **more}
    return tp.measure_attention(many_processes.model() if model is None else model, topics(), ids, **options)


# ---------------------------------------------------------------------------- the same bits


@pytest.mark.parametrize("case", list(MEASURED))
def test_any_number_of_shards_gives_the_bits_of_one_process(case, counts, tmp_path):
    def measure(**more):
        return MEASURED[case](counts, **more)

    alone = measure(shard=(0, 1), sums=tmp_path / "1")
    assert tp.merge_sums(tmp_path / "1") == alone
    alone.save(tmp_path / "alone")
    for n in (2, 3, 7):
        merged = measured_in_shards(measure, n, tmp_path / str(n))
        assert merged == alone
        merged.save(tmp_path / f"merged {n}")
        assert files(tmp_path / f"merged {n}") == files(tmp_path / "alone")


@pytest.mark.parametrize("case", list(MEASURED))
def test_one_process_by_blocks_agrees_with_one_that_knows_no_blocks(case, counts, tmp_path, monkeypatch):
    """In double precision to rounding, everything that was counted exactly, and all that is said of the documents."""
    monkeypatch.setattr(sys.modules[__name__], "single", many_processes.model)
    model = many_processes.model
    monkeypatch.setattr(many_processes, "model", lambda *size: _Double(model(*size)).model)
    plain = MEASURED[case](counts)
    alone = MEASURED[case](counts, shard=(0, 1), sums=tmp_path)
    assert_agree(plain, alone)


class _Double:
    """A model that stays one of double precision."""

    def __init__(self, model):
        model.float = lambda: model
        self.model = model


def test_merged_means_are_those_of_single_documents_added_up_by_hand(tmp_path):
    """Every document by itself, neither batched nor padded: the sum of its scores is its mean × its pairs."""
    ids = [document for document in documents(40) if len(document) > 5]
    merged = measured_in_shards(lambda **more: attention_of(ids, **more), 3, tmp_path)
    for relation in ("same_word", "same_topic", "different_topic"):
        total = pairs = 0.0
        for document in ids:
            heads = attention_of([document], n_permutations=0, n_resamples=0).heads
            n = getattr(heads, f"n_{relation}")
            total = total + np.where(n > 0, getattr(heads, relation) * n, 0)
            pairs = pairs + n
        np.testing.assert_array_equal(getattr(merged.heads, f"n_{relation}"), pairs)
        np.testing.assert_allclose(getattr(merged.heads, relation), total / pairs, rtol=1e-9)


def test_permuted_labels_are_the_same_in_all_shards(tmp_path):
    """P-values are quotients of small whole numbers, so those of other permutations would be others."""
    plain = attention_of(documents(N), n_permutations=20)
    merged = measured_in_shards(
        lambda **more: attention_of(documents(N), **more), 3, tmp_path, n_permutations=20
    )
    np.testing.assert_array_equal(merged.heads.p_value, plain.heads.p_value)
    assert 0 < plain.heads.p_value.min() < 1


def test_pieces_of_a_source_are_in_one_shard_and_every_document_is_in_one(tmp_path, monkeypatch):
    """Long articles are cut into pieces, each of which is a document of its own to the model."""
    seen = Counter()
    add = Engine.add

    def noted(self, batch):
        seen.update((number, source) for source in set(batch.sources.tolist()))
        add(self, batch)

    monkeypatch.setattr(Engine, "add", noted)
    n_measured = 0
    for number in range(5):
        report = attention_of(
            documents(N), groups=ARTICLES, max_length=6, long="chunk", shard=(number, 5), sums=tmp_path
        )
        n_measured += report.provenance["documents"]
        assert report.provenance["shard"] == [number, 5]
        assert f"shard {number} of 5 alone" in repr(report)
    shards_of = Counter(source for _, source in seen)
    assert len(shards_of) > 30
    assert set(shards_of.values()) == {1}
    merged = tp.merge_sums(tmp_path).provenance
    plain = attention_of(documents(N), groups=ARTICLES, max_length=6, long="chunk").provenance
    assert merged["documents"] == n_measured == plain["documents"] > N
    assert merged["sources"] == plain["sources"]
    assert merged["left_out"] == plain["left_out"]


def test_more_sources_than_are_kept_apart_share_rows_as_in_one_process(tmp_path, monkeypatch):
    """Whatever a shard has of them: 150 sources in 32 rows."""
    monkeypatch.setattr(attention, "source_limit", lambda n_cells: 32)
    plain = attention_of(documents(N))
    alone = attention_of(documents(N), shard=(0, 1), sums=tmp_path / "1")
    assert alone.provenance["sources_in_blocks"]
    assert plain.provenance["sources"] == alone.provenance["sources"] <= 32
    np.testing.assert_allclose(alone.heads.interval, plain.heads.interval, rtol=1e-9)
    for n in (3, 64):
        assert measured_in_shards(lambda **m: attention_of(documents(N), **m), n, tmp_path / str(n)) == alone


def test_a_part_of_all_sources_shares_rows_only_where_the_whole_must():
    """A part for one in 64 keeps four times its share apart, and all of them merge into the rows of the whole."""
    generator = np.random.default_rng(0)
    keys = generator.integers(-(2**63), 2**63, 6000)
    sums = generator.random((6000, 2, 3))
    whole, total = SourceSums(1024), SourceSums(1024)
    parts = [total.part(BLOCKS) for _ in range(BLOCKS)]
    for key, row in zip(keys, sums, strict=True):
        whole.add(np.array([key]), row[None], row[None])
        parts[block_of(int(key), 1024)].add(np.array([key]), row[None], row[None])
        if len(whole) == 1000 and not whole.folded:  # few enough to be kept apart, in every part too
            assert not any(part.folded for part in parts)
    assert sum(map(len, parts)) <= 4 * 1024
    for part in parts:
        total.merge(part)
    assert total.folded
    for one, other in zip(whole.rows()[:3], total.rows()[:3], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_shards_without_documents_are_fine(tmp_path):
    """One document in seven shards, and none at all."""
    alone = attention_of(documents(1), shard=(0, 1), sums=tmp_path / "1")
    merged = measured_in_shards(lambda **more: attention_of(documents(1), **more), 7, tmp_path / "7")
    assert merged == alone
    assert merged.provenance["documents"] == 1
    states = tp.measure_embeddings(single(), topics(), documents(1), shard=(0, 1), sums=tmp_path / "states")
    of_shards = [
        tp.measure_embeddings(single(), topics(), documents(1), shard=(i, 3), sums=tmp_path / "three")
        for i in range(3)
    ]
    assert sum(np.isfinite(report.layers["cosine"].same_word).all() for report in of_shards) == 1
    assert tp.merge_sums(tmp_path / "three") == states
    for i in range(2):
        tp.measure_embeddings(single(), topics(), [], shard=(i, 2), sums=tmp_path / "none")
    with pytest.raises(ValueError, match="no document is left to measure"):
        tp.merge_sums(tmp_path / "none")


def test_shards_of_different_numbers_fit_where_their_sources_do(tmp_path):
    """Half of the sources by one process, each quarter of the rest by one."""
    alone = attention_of(documents(N), shard=(0, 1), sums=tmp_path / "1")
    for shard in ((0, 2), (1, 4)):
        attention_of(documents(N), shard=shard, sums=tmp_path / "mixed")
    with pytest.raises(ValueError, match=r"the sums of shard 3 of 64 and 15 more are missing"):
        tp.merge_sums(tmp_path / "mixed")
    attention_of(documents(N), shard=(3, 4), sums=tmp_path / "elsewhere")
    assert tp.merge_sums([tmp_path / "mixed", tmp_path / "elsewhere"]) == alone
    one_by_one = [tmp_path / "mixed" / "shard-0-of-2", *sorted(tmp_path.glob("*/shard-?-of-4"))]
    assert tp.merge_sums(one_by_one[::-1]) == alone


def test_documents_of_a_block_wait_only_until_there_is_enough_of_them(tmp_path, monkeypatch):
    """In documents and in tokens, so that a stream without an end would do."""
    monkeypatch.setattr(shards, "_TOKENS_THAT_WAIT", 40)
    waiting, longest, small = Counter(), Counter(), Counter()
    shares = Share(0, 2, tmp_path, "attention", {}, {})
    blocks = shards.BlockSums(shares, {"by_source": SourceSums(64)})

    def noted():
        for document in documents(2000):
            block = block_of(tp.Document(torch.tensor(document)).origin, 64)
            waiting[block] += len(document)
            longest[block] = max(longest[block], waiting[block])
            yield document

    own = OwnDocuments(noted(), shares.blocks, blocks.limit, pad_id=None, vocabulary_size=None)
    n_read = 0
    for block, few in shards.in_groups_of_blocks(own, 2):
        n_read += len(few)
        assert block % 2 == 0
        assert len(few) <= 2 * shards._BATCHES_THAT_WAIT
        waiting[block] -= sum(map(len, few))
        small[block] += sum(map(len, few)) < 40 and len(few) < 2 * shards._BATCHES_THAT_WAIT
    held = {block: n for block, n in longest.items() if block % 2 == 0}
    assert len(held) == BLOCKS // 2
    assert max(held.values()) < 40 + 24  # the longest document has 23 tokens
    assert max(small.values()) == 1  # what is left over at the end
    assert n_read == sum(
        block_of(tp.Document(torch.tensor(ids)).origin, 64) % 2 == 0 for ids in documents(2000)
    )


@pytest.mark.parametrize(("batches", "tokens"), [(1, 2**16), (8, 30)])
def test_bits_do_not_depend_on_shards_where_documents_come_in_many_groups(
    batches, tokens, tmp_path, monkeypatch
):
    monkeypatch.setattr(shards, "_BATCHES_THAT_WAIT", batches)
    monkeypatch.setattr(shards, "_TOKENS_THAT_WAIT", tokens)

    def measure(**more):
        return attention_of(documents(250), single(), batch_size=2, **more)

    alone = measure(shard=(0, 1), sums=tmp_path / "1")
    assert measured_in_shards(measure, 3, tmp_path / "3") == alone


def test_a_stream_says_the_same_of_itself_in_every_shard(tmp_path):
    """Each reads it whole; what was read of it is not counted once for each of them."""
    plain = MEASURED["attention of words in a stream"](None).provenance
    merged = measured_in_shards(
        lambda **more: MEASURED["attention of words in a stream"](None, **more), 4, tmp_path
    ).provenance
    assert merged["corpus"] == plain["corpus"]
    assert merged["corpus"]["read"]["texts"] == merged["documents"] == 9


# ---------------------------------------------------------------------------- broken documents


def broken_where(token):
    """A model whose states are not finite in documents that hold a token."""
    broken = many_processes.model()
    with torch.no_grad():
        broken.embeddings.word_embeddings.weight[token] = torch.nan
    return broken


def test_documents_with_nan_are_judged_by_their_share_of_all_documents(tmp_path):
    """One of 148 is no fault of the model, though it is one of a dozen in its shard; four are."""
    ids = [document for document in documents(N) if 45 not in document]
    ids[70] = [5, 6, 45, 10]

    def measure(**more):
        return attention_of(ids, broken_where(45), **more)

    merged = measured_in_shards(measure, 12, tmp_path / "one")
    name = engine.BROKEN
    assert merged.provenance["left_out"][name] == measure().provenance["left_out"][name] == 1
    for place in (20, 40, 60):
        ids[place] = [5, 6, 45, 10, place % 40]
    with pytest.raises(ValueError, match=r"4 of 148 documents have NaN"):
        measured_in_shards(measure, 12, tmp_path / "four")
    with pytest.raises(ValueError, match=r"4 of 148 documents have NaN"):
        measure(shard=(0, 1), sums=tmp_path / "alone")


# ---------------------------------------------------------------------------- killed, interrupted, taken up


@pytest.mark.parametrize("kept", [True, False])
def test_a_killed_shard_that_runs_again_leaves_the_same_bytes(kept, tmp_path):
    """With a checkpoint it goes on where it was, without one it begins again."""
    command = [sys.executable, str(PROGRAM), "killed shard", str(tmp_path), str(int(kept))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    assert subprocess.run(command, timeout=240, env=environment).returncode == -signal.SIGKILL
    assert not (tmp_path / "sums" / "shard-1-of-3").exists()
    assert (tmp_path / "kept").exists() == kept
    with pytest.raises(ValueError, match="holds no sums"):
        tp.merge_sums(tmp_path / "sums")
    many_processes.measure_shard(tmp_path / "left alone", kept=False)
    many_processes.measure_shard(tmp_path, kept=kept)
    again, alone = files(tmp_path / "sums"), files(tmp_path / "left alone" / "sums")
    assert len(alone) > 20
    assert again == alone


def test_a_shard_goes_on_from_its_checkpoint_and_measures_nothing_twice(tmp_path, monkeypatch):
    numbers = []
    add = Engine.add

    def noted(self, batch):
        numbers.append(len(batch))
        add(self, batch)

    monkeypatch.setattr(Engine, "add", noted)
    options = {"shard": (1, 3), "checkpoint": tmp_path / "kept", "checkpoint_every": 0.0, "batch_size": 1}
    expected = attention_of(documents(N), **{**options, "checkpoint": None}, sums=tmp_path / "expected")
    whole = sum(numbers)
    numbers.clear()

    def broken(self, batch):
        if len(numbers) == whole // 2:
            raise KeyboardInterrupt
        noted(self, batch)

    monkeypatch.setattr(Engine, "add", broken)
    stopped = attention_of(documents(N), **options, sums=tmp_path / "sums")
    assert "interrupted after" in stopped.provenance["options"]["stopped"]
    assert not list((tmp_path / "sums").iterdir())
    monkeypatch.setattr(Engine, "add", noted)
    assert attention_of(documents(N), **options, sums=tmp_path / "sums") == expected
    assert sum(numbers) == whole
    assert files(tmp_path / "sums") == files(tmp_path / "expected")
    # Other shards have checkpoints of their own in the same folder.
    attention_of(documents(N), **{**options, "shard": (2, 3)}, sums=tmp_path / "sums")
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["shard-1-of-3", "shard-2-of-3"]


def test_a_finished_shard_of_a_corpus_has_its_sums_at_once(tmp_path, monkeypatch):
    """And what is compared between shards, though nothing is read again."""

    def measure(**more):
        return MEASURED["attention of words in a stream"](None, checkpoint=tmp_path / "kept", **more)

    for i in range(2):
        measure(shard=(i, 2), sums=tmp_path / "first")
    monkeypatch.setattr(Engine, "add", None)
    merged = measured_in_shards(measure, 2, tmp_path / "again")
    assert merged == tp.merge_sums(tmp_path / "first")
    assert files(tmp_path / "first") == files(tmp_path / "again")


def test_the_same_shard_again_puts_the_same_sums_in_their_place(tmp_path):
    attention_of(documents(N), shard=(0, 2), sums=tmp_path)
    before = files(tmp_path)
    attention_of(documents(N), shard=(0, 2), sums=tmp_path)
    assert files(tmp_path) == before


# ---------------------------------------------------------------------------- what is refused


def changed_model():
    changed = many_processes.model()
    with torch.no_grad():
        changed.encoder.layer[1].attention.self.key.weight[3, 3] += 1e-6
    return changed


@pytest.mark.parametrize(
    ("names", "other"),
    [
        ("weights", {"model": changed_model()}),
        ("topics", {"topics": other_topics()}),
        ("batch_size", {"batch_size": 8}),
        ("n_permutations", {"n_permutations": 6}),
        ("confidence", {"confidence": 0.9}),
        ("n_resamples", {"n_resamples": 0}),
        ("alternative", {"alternative": "greater"}),
        ("seed", {"seed": 1}),
        ("include_self", {"include_self": False}),
        ("groups", {"groups": "document"}),
        ("max_length", {"max_length": 20}),
        ("level", {"level": "word", "documents": [tp.Document(torch.tensor([5, 6]), torch.tensor([0, 1]))]}),
    ],
)  # fmt: skip
def test_sums_of_different_measurements_are_never_added_up(names, other, tmp_path):
    given = {"model": many_processes.model(), "topics": topics(), "documents": documents(30), "batch_size": 4,
             "n_permutations": 5}  # fmt: skip
    tp.measure_attention(**given, shard=(0, 2), sums=tmp_path)
    tp.measure_attention(**given | other, shard=(1, 2), sums=tmp_path)
    with pytest.raises(
        ValueError, match=rf"hold sums of different measurements, which differ in .*\b{names}\b"
    ):
        tp.merge_sums(tmp_path)
    # Neither are those of one shard replaced by others, and that is found before anything is measured.
    with pytest.raises(ValueError, match=rf"holds the sums of another measurement, .*\b{names}\b"):
        tp.measure_attention(**given | other, shard=(0, 2), sums=tmp_path)


def test_sums_of_attention_and_of_states_are_never_added_up(tmp_path):
    attention_of(documents(30), shard=(0, 2), sums=tmp_path)
    tp.measure_embeddings(many_processes.model(), topics(), documents(30), shard=(1, 2), sums=tmp_path)
    with pytest.raises(ValueError, match=r"which differ in .*measurement"):
        tp.merge_sums(tmp_path)


def test_shards_that_were_given_different_documents_have_no_report(tmp_path):
    ids = documents(60)
    attention_of(ids, shard=(0, 2), sums=tmp_path)
    for others, words in (
        (ids[:-1], "59 documents in place of 60"),
        ([*ids[:-1], [5, 6]], "other documents, though as many"),
    ):
        shutil.rmtree(tmp_path / "shard-1-of-2", ignore_errors=True)
        attention_of(others, shard=(1, 2), sums=tmp_path)
        with pytest.raises(ValueError, match=f"given different documents .*{words}"):
            tp.merge_sums(tmp_path)


def test_documents_in_another_order_are_merged_to_rounding_and_that_is_said(tmp_path):
    ids = documents(60)
    attention_of(ids, shard=(0, 2), sums=tmp_path)
    attention_of(ids[::-1], shard=(1, 2), sums=tmp_path)
    with pytest.warns(UserWarning, match="the same 60 documents in another order"):
        merged = tp.merge_sums(tmp_path)
    np.testing.assert_allclose(merged.heads.ratio, attention_of(ids).heads.ratio, rtol=1e-9)


def test_a_source_is_added_up_once_and_none_is_missing(tmp_path):
    for i in range(3):
        attention_of(documents(30), shard=(i, 3), sums=tmp_path / "sums")
    shutil.copytree(tmp_path / "sums" / "shard-1-of-3", tmp_path / "copy")
    with pytest.raises(ValueError, match="hold sums of the same sources, which must be added up only once"):
        tp.merge_sums([tmp_path / "sums", tmp_path / "copy"])
    assert tp.merge_sums([tmp_path / "sums", tmp_path / "sums" / "shard-1-of-3"]) == tp.merge_sums(
        tmp_path / "sums"
    )
    attention_of(documents(30), shard=(0, 64), sums=tmp_path / "sums")
    with pytest.raises(ValueError, match=r"shard-0-of-3 and .*shard-0-of-64 hold sums of the same sources"):
        tp.merge_sums(tmp_path / "sums")
    shutil.rmtree(tmp_path / "sums" / "shard-0-of-64")
    shutil.rmtree(tmp_path / "sums" / "shard-1-of-3")
    with pytest.raises(ValueError, match=r"sums of shard 1 of 3 are missing.*shard=\(1, 3\) \(--shard 1 3\)"):
        tp.merge_sums(tmp_path / "sums")


def test_what_is_no_sums_is_refused_by_name(tmp_path):
    attention_of(documents(30), checkpoint=tmp_path / "checkpoint").save(tmp_path / "report")
    (tmp_path / "empty").mkdir()
    for name, words in {
        "report": "report holds 'attention', which is no sums of a shard",
        "checkpoint": "checkpoint holds no sums: needed is a folder that was named as sums=",
        "empty": "empty holds no sums",
        "not there": "not there holds no sums",
    }.items():
        with pytest.raises(ValueError, match=words):
            tp.merge_sums(tmp_path / name)
    with pytest.raises(ValueError, match="no folder was named"):
        tp.merge_sums([])
    with pytest.raises(TypeError, match="folders must be"):
        tp.merge_sums(7)


def test_damaged_sums_are_refused_by_name(tmp_path):
    attention_of(documents(30), shard=(0, 1), sums=tmp_path)
    place = tmp_path / "shard-0-of-1"
    blocks = sorted(path for path in place.iterdir() if path.name.startswith("block-"))
    assert len(blocks) > 10
    arrays = next(blocks[3].glob("arrays-*"))
    whole = arrays.read_bytes()
    arrays.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ValueError, match=rf"is not whole: {blocks[3].name}/arrays-.* is gone or was changed"):
        tp.merge_sums(tmp_path)
    arrays.write_bytes(whole)
    shutil.rmtree(blocks[5])
    with pytest.raises(ValueError, match=rf"is not whole: {blocks[5].name}/"):
        tp.merge_sums(tmp_path)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"shard": (0, 2)}, ValueError, "shard= came without sums="),
        ({"sums": "x"}, ValueError, "sums= came without shard="),
        ({"shard": (2, 2), "sums": "x"}, ValueError, r"i from 0 to n - 1 .* got \(2, 2\); job arrays"),
        ({"shard": (0, 65), "sums": "x"}, ValueError, "n from 1 to 64"),
        ({"shard": (0, 0), "sums": "x"}, ValueError, "n from 1 to 64"),
        ({"shard": (-1, 2), "sums": "x"}, ValueError, "shard must be at least 0"),
        ({"shard": (1,), "sums": "x"}, ValueError, r"which of how many, got \(1,\)"),
        ({"shard": 1, "sums": "x"}, TypeError, "shard must be a list of whole numbers or None"),
        ({"shard": ("0", "2"), "sums": "x"}, TypeError, "shard"),
        ({"shard": (0, 2), "sums": "x", "twins": 1}, ValueError, "measure twins by themselves"),
        ({"shard": (0, 2), "sums": "x", "n_permutations": "enough"}, ValueError, "which no shard can know"),
    ],
)  # fmt: skip
def test_options_that_make_no_shard_are_refused_before_anything_is_measured(
    options, error, words, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Engine, "run", None)
    with pytest.raises(error, match=words):
        tp.measure_attention(many_processes.model(), topics(), documents(3), **options)


def test_what_shards_cannot_have_is_refused(tmp_path):
    given = {"shard": (0, 2), "sums": tmp_path / "sums"}

    class Mine:
        sums = {"n": np.zeros(1)}  # noqa: RUF012 - an object as a user writes it

        def add(self, scores):
            """Nothing."""

    with pytest.raises(ValueError, match="sums of your own accumulators= are in no report"):
        attention_of(documents(3), accumulators=[Mine()], **given)
    share = tp.Corpus.from_texts(many_processes.TEXTS).shard(1, 3).documents(stream().tokenizer)
    with pytest.raises(ValueError, match="was given share 1 of 3 of the corpus: give every shard the whole"):
        tp.measure_attention(many_processes.model(30_522), text_topics(), share, **given)
    with pytest.raises(ValueError, match="shards are of documents"):
        tp.measure_embeddings(many_processes.model(), topics(), **given)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError):
        attention_of(documents(3), shard=(0, 2), sums=tmp_path / "file")
    (tmp_path / "sums" / "shard-0-of-2").mkdir(parents=True)
    (tmp_path / "sums" / "shard-0-of-2" / "letter").write_text("mine")
    with pytest.raises(FileExistsError, match="is not empty"):
        attention_of(documents(3), **given)


def test_an_id_that_the_model_does_not_know_is_named_by_its_document(tmp_path):
    """By its place among all documents, and by the shard that has it."""
    ids = documents(30)
    ids[17] = [5, many_processes.VOCABULARY + 7]
    said = []
    for number in range(4):
        try:
            attention_of(ids, shard=(number, 4), sums=tmp_path)
        except ValueError as error:
            said.append(str(error))
    assert [words[:40] for words in said] == ["document 17 holds the token id 57, but t"]


# ---------------------------------------------------------------------------- the command line


@pytest.fixture
def command(tmp_path):
    """A model, topics and texts for commands."""
    tokenizer = stream().tokenizer
    model = many_processes.model(30_522).float()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    text_topics().save(tmp_path / "topics")
    texts = [f"{text} and {other}" for text in many_processes.TEXTS for other in many_processes.TEXTS]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    return ["measure", "attention", str(tmp_path / "model"), "--topics", str(tmp_path / "topics"), "--corpus",
            str(tmp_path / "texts.txt"), "--split", "line", "--n-permutations", "5"]  # fmt: skip


def test_the_command_line_merges_what_it_has_measured(command, tmp_path, capsys, monkeypatch):
    """Also where torchrun has started it: each is a shard then, and none waits for another."""
    assert (
        main(
            [*command, "--shard", "0", "1", "--sums", str(tmp_path / "one"), "--out", str(tmp_path / "alone")]
        )
        == 0
    )
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank in "012":
        monkeypatch.setenv("RANK", rank)
        assert main([*command, "--shard", rank, "3", "--sums", str(tmp_path / "three")]) == 0
    monkeypatch.delenv("WORLD_SIZE")
    capsys.readouterr()
    assert main(["merge", str(tmp_path / "three"), "--out", str(tmp_path / "merged"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == "attention"
    assert told["provenance"]["documents"] == 81
    assert files(tmp_path / "merged") == files(tmp_path / "alone")
    shutil.rmtree(tmp_path / "three" / "shard-2-of-3")
    assert main(["merge", str(tmp_path / "three"), "--out", str(tmp_path / "nothing")]) == 1
    assert "the sums of shard 2 of 3 are missing" in capsys.readouterr().err
    assert not (tmp_path / "nothing").exists()


def test_sums_are_saved_results_with_checksums(tmp_path):
    """As all that is saved, and no report."""
    attention_of(documents(30), shard=(0, 1), sums=tmp_path)
    assert storage.kind_of(tmp_path / "shard-0-of-1") == "sums of a shard"
    assert storage.damaged_files(tmp_path / "shard-0-of-1") == []
    with pytest.raises(ValueError, match="no known report"):
        tp.load_report(tmp_path / "shard-0-of-1")


def test_a_shard_without_documents_has_the_layers_that_read_them(tmp_path):
    """Of a model with two stacks those of the encoder: what enters it, and what leaves its two blocks."""
    model = tp.open_model(zoo.make("bart"))
    words = tp.Topics.from_token_ids({"a": range(5, 20), "b": range(20, 40)}, vocabulary_size=zoo.VOCABULARY)
    empty = tp.measure_embeddings(model, words, [], special_ids=(), shard=(0, 2), sums=tmp_path)
    assert empty.layers["cosine"].index["layer"] == (0, 1, 2)
