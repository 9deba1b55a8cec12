"""A folder of parts: any number of workers, killed at any moment, gives the bytes of one; others are refused."""

import json
import os
import random
import signal
import time
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
import small_runs
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

import topic_probe as tp
from topic_probe.lens import capture

MODEL, TOPICS, DOCUMENTS = small_runs.model(), small_runs.topics(), small_runs.documents(40)
OPTIONS = {"batch_size": 4, "n_permutations": 10, "part_size": 8, "progress": False}


def attention(folder, documents=DOCUMENTS, model=MODEL, topics=TOPICS, **options):
    return tp.measure_attention(model, topics, documents, folder=folder, **{**OPTIONS, **options})


def chunked(n=9):
    """Texts that are cut into a number of documents that only the tokenizer knows."""
    texts = [" ".join([text] * (1 + number % 4)) for number, text in enumerate(small_runs.TEXTS * 4)][:n]
    return tp.Corpus.from_texts(texts).documents(small_runs.tokenizer(), max_length=8, long="chunk")


def of_texts(folder, documents=None, **options):
    return attention(
        folder,
        documents or chunked(),
        small_runs.model(30_522),
        small_runs.text_topics(),
        part_size=2,
        **options,
    )


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


MEASUREMENTS = {
    "attention": attention,
    "chunks": of_texts,
    "words resampled": lambda folder, **more: attention(folder, resample=("sources", "words"), **more),
    "states": lambda folder, **more: tp.measure_embeddings(
        MODEL, TOPICS, DOCUMENTS, folder=folder, part_size=8, batch_size=4, **more
    ),
    "ablation": lambda folder, **more: tp.measure_ablation(
        MODEL, TOPICS, DOCUMENTS[:20], n_matched=2, folder=folder, part_size=8, batch_size=4, **more
    ),
    "knockout": lambda folder, **more: tp.measure_knockout(
        MODEL, TOPICS, DOCUMENTS[:20], n_matched=2, folder=folder, part_size=8, batch_size=4, **more
    ),
}


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_any_number_of_workers_gives_the_bytes_of_one(name, tmp_path):
    alone = MEASUREMENTS[name](tmp_path / "1")
    assert tp.load_report(tmp_path / "1") == alone
    for n in (2, 7):
        reports = [MEASUREMENTS[name](tmp_path / str(n), part=(index, n)) for index in range(n)]
        assert files(tmp_path / str(n)) == files(tmp_path / "1")
        assert reports[-1] == alone


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_a_folder_changes_a_number_by_rounding_only(name, tmp_path):
    numbers = []
    for folder in (tmp_path, None):
        table = MEASUREMENTS[name](folder).to_dataframe()
        numbers.append(table.select_dtypes("number").to_numpy())
    np.testing.assert_allclose(*numbers, rtol=1e-9, atol=1e-12)


def test_the_same_call_goes_on_and_after_completion_runs_no_model(tmp_path, monkeypatch):
    alone = attention(tmp_path / "alone")
    attention(tmp_path / "shared", part=(1, 3))
    (first, *_) = files(tmp_path / "shared")
    written = (tmp_path / "shared" / first).stat().st_mtime_ns
    assert attention(tmp_path / "shared") == alone
    assert (tmp_path / "shared" / first).stat().st_mtime_ns == written
    forward, passes = type(MODEL).forward, []
    monkeypatch.setattr(
        type(MODEL), "forward", lambda *given, **more: passes.append(1) or forward(*given, **more)
    )
    assert attention(tmp_path / "shared") == alone
    of_shared = len(passes)
    with pytest.warns(UserWarning, match="no document is left to measure"):
        attention(None, [])
    assert len(passes) == 2 * of_shared  # those of the trial alone, in both


def test_a_report_of_some_parts_says_so(tmp_path):
    report = attention(tmp_path, part=(1, 3))
    assert report.provenance["parts"] == {"there": 2, "of": 5, "texts_left_out": 0}
    assert "2 of 5 parts, 0 texts left out" in report.to_text()
    # Parts 1 and 4 are documents 8 to 15 and 32 to 39.
    some = tp.measure_attention(MODEL, TOPICS, [*DOCUMENTS[8:16], *DOCUMENTS[32:]], n_permutations=10)
    assert float(report.overall.ratio) == pytest.approx(float(some.overall.ratio), rel=1e-9)
    assert tp.load_report(tmp_path) == report


def test_texts_that_are_left_out_are_told_and_a_stream_without_an_end_too(tmp_path):
    texts = [*small_runs.TEXTS[:3], None, "", *small_runs.TEXTS[3:]]
    stream = tp.Corpus.from_texts(lambda: iter(texts)).documents(small_runs.tokenizer())
    assert (
        "1 parts, not at its end yet, 0 texts left out" in of_texts(tmp_path, stream, part=(0, 9)).to_text()
    )
    assert "6 of 6 parts, 2 texts left out" in of_texts(tmp_path, stream).to_text()


def test_a_worker_with_nothing_to_do_ends_without_an_error(tmp_path):
    report = attention(tmp_path, part=(6, 7))
    assert report.provenance["parts"] == {"there": 0, "of": None, "texts_left_out": 0}
    assert np.isnan(report.overall.ratio)
    assert files(tmp_path) == {}


def test_texts_that_are_added_measure_the_short_last_part_anew(tmp_path):
    attention(tmp_path / "grown", DOCUMENTS[:36])
    before = files(tmp_path / "grown")
    grown = attention(tmp_path / "grown", DOCUMENTS)
    after = files(tmp_path / "grown")
    assert [name for name, content in after.items() if before.get(name) != content] == [
        "part-000004.safetensors"
    ]
    assert grown == attention(tmp_path / "at once")


def test_a_source_in_several_parts_is_one_source(tmp_path):
    documents = [tp.Document(torch.tensor(ids), source=number % 10) for number, ids in enumerate(DOCUMENTS)]
    report = attention(tmp_path, documents, part_size=5)
    assert report.provenance["sources"] == 10
    whole = tp.measure_attention(MODEL, TOPICS, documents, n_permutations=10)
    np.testing.assert_allclose(report.overall.interval, whole.overall.interval, rtol=1e-9)


def compared(folder, **options):
    models = {"one": MODEL, "other": tp.random_init(MODEL, seed=3)}
    return tp.compare(
        models,
        TOPICS,
        DOCUMENTS,
        folder=folder,
        **{"batch_size": 4, "n_permutations": 10, "part_size": 8, **options},
    )


def test_models_side_by_side_have_a_folder_each(tmp_path):
    alone = compared(tmp_path / "1")
    for index in range(3):
        shared = compared(tmp_path / "3", part=(index, 3))
    assert shared == alone
    for name in ("one", "other"):
        assert files(tmp_path / "3" / name) == files(tmp_path / "1" / name)
    own = tp.load_report(tmp_path / "3" / "one")
    assert own.overall.ratio == pytest.approx(alone.numbers["attention"].ratio[0], rel=1e-12)
    plain = compared(None).differences["attention"]
    for column in ("number", "low", "high", "p_value", "p_permuted"):
        np.testing.assert_allclose(alone.differences["attention"][column], plain[column], rtol=1e-9)
    with pytest.raises(ValueError, match="leave folder= out"):
        compared(tmp_path / "words", measure=["embeddings"])


def test_what_is_found_of_all_documents_first_is_kept_by_whoever_comes_first(tmp_path):
    options = {"n_matched": 2, "folder": tmp_path, "part_size": 8, "batch_size": 4, "heads": 2}
    tp.measure_ablation(MODEL, TOPICS, DOCUMENTS[:20], part=(2, 3), **options)
    kept = files(tmp_path)
    assert list(kept) == ["heads.safetensors", "means.safetensors", "part-000002.safetensors"]
    report = tp.measure_ablation(MODEL, TOPICS, DOCUMENTS[:20], **options)
    assert {name: files(tmp_path)[name] for name in kept} == kept
    assert report.provenance["documents"]["parts"]["there"] == 3
    # Means of other documents are other means.
    other = tp.measure_ablation(
        MODEL, TOPICS, DOCUMENTS[:20], reference=DOCUMENTS[20:], **{**options, "folder": tmp_path / "other"}
    )
    (tmp_path / "part-000001.safetensors").write_bytes(
        (tmp_path / "other" / "part-000001.safetensors").read_bytes()
    )
    assert not np.array_equal(report.effect, other.effect)
    with pytest.raises(ValueError, match="is of another measurement, which differs in means"):
        tp.measure_ablation(MODEL, TOPICS, DOCUMENTS[:20], **options)


# --- what does not fit -------------------------------------------------------------------------------


def other_model():
    model = small_runs.model()
    with torch.no_grad():
        next(iter(model.parameters())).add_(1e-3)
    return model


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"model": other_model()}, "weights"),
        ({"model": small_runs.model().float()}, "weights"),
        (
            {"topics": tp.Topics.from_token_ids({"one": [5, 6], "two": [30, 31]}, vocabulary_size=50)},
            "topics",
        ),
        ({"part_size": 16}, "part_size"),
        ({"n_permutations": 11}, "n_permutations"),
        ({"include_self": False}, "include_self"),
        ({"max_length": 10}, "max_length"),
        ({"seed": 1}, "seed"),
        ({"resample": ("sources", "words")}, "resample"),
    ],
)
def test_parts_of_another_measurement_are_refused_by_name(tmp_path, options, named):
    attention(tmp_path, part=(0, 5))
    before = files(tmp_path)
    with pytest.raises(
        ValueError, match=rf"is of another measurement, which differs in {named}: choose another"
    ):
        attention(tmp_path, **options)
    assert files(tmp_path) == before


def test_what_decides_about_no_sum_may_differ(tmp_path):
    wide = attention(tmp_path)
    narrow = attention(tmp_path, confidence=0.5, batch_size=3, alternative="greater")
    assert narrow.overall.ratio == wide.overall.ratio
    assert np.diff(narrow.overall.interval) < np.diff(wide.overall.interval)


def test_another_tokenizer_and_other_lengths_are_refused(tmp_path):
    of_texts(tmp_path)
    longer = tp.Corpus.from_texts(small_runs.TEXTS).documents(
        small_runs.tokenizer(), max_length=9, long="chunk"
    )
    with pytest.raises(ValueError, match="which differs in documents"):
        of_texts(tmp_path, longer)


@pytest.mark.parametrize(
    "documents", [DOCUMENTS[::-1], DOCUMENTS[:20], [*DOCUMENTS[:35], [5, 10], *DOCUMENTS[36:]]]
)
def test_parts_of_other_texts_are_refused(tmp_path, documents):
    attention(tmp_path)
    with pytest.raises(ValueError, match=r"was measured of other texts|more of it was measured"):
        attention(tmp_path, documents)


def damage(name, file):
    with safe_open(file, "numpy") as opened:
        arrays = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
        (metadata,) = opened.metadata().values()
    if name == "cut":
        file.write_bytes(file.read_bytes()[:-7])
    elif name == "a number":
        arrays["binned"][0, 0, 0] += 1e-9
        save_file(arrays, file, {"topic_probe": metadata})
    elif name == "a count":
        save_file(arrays, file, {"topic_probe": metadata.replace('"measured": ', '"measured": 1')})
    elif name == "the version":
        save_file(arrays, file, {"topic_probe": metadata.replace("version 1", "version 0")})
    else:
        file.write_bytes(b"no file of sums")


@pytest.mark.parametrize("name", ["cut", "a number", "a count", "the version", "something else"])
def test_a_damaged_part_is_refused_by_name(tmp_path, name):
    attention(tmp_path)
    damage(name, tmp_path / "part-000003.safetensors")
    for again in (lambda: attention(tmp_path), lambda: tp.load_report(tmp_path)):
        with pytest.raises(
            ValueError, match=r"part-000003.safetensors is no whole file of sums .* delete it"
        ):
            again()
    (tmp_path / "part-000003.safetensors").unlink()
    assert attention(tmp_path).provenance["parts"]["there"] == 5


def test_other_files_are_left_alone_and_drafts_of_killed_workers_removed(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    draft = tmp_path / ".part-000002.safetensors.00000000"
    draft.write_bytes(b"half")
    attention(tmp_path, part=(0, 2))
    assert draft.exists()
    attention(tmp_path)
    assert not draft.exists()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_model_with_hooks_or_edits_is_refused(tmp_path):
    model = tp.open_model(small_runs.model())
    layer, site = model.original_model.encoder.layer[0], capture.view(model).sites[0]
    message = "hooks or edits are on the model, and a folder knows a model by its weights"
    for changed in (
        layer.register_forward_hook(lambda module, given, found: None),
        layer.register_forward_pre_hook(lambda module, given: None),
        model.hook_dict["blocks.0.attn.hook_pattern"].register_forward_hook(
            lambda module, given, found: None
        ),
    ):
        with pytest.raises(ValueError, match=message):
            attention(tmp_path, model=model)
        changed.remove()
    with tp.edit_heads(model, {site: {0: "zero"}}), pytest.raises(ValueError, match=message):
        attention(tmp_path, model=model)
    # The hooks that transformers itself leaves behind change nothing.
    model.original_model(torch.tensor([[5, 6]]), output_attentions=True, output_hidden_states=True)
    assert attention(tmp_path, model=model).provenance["parts"]["there"] == 5


def test_what_a_folder_cannot_keep_is_refused(tmp_path):
    class Mine:
        def __init__(self):
            self.sums = {}

        def add(self, scores):
            pass

    with pytest.raises(ValueError, match="your own accumulators= are in no report"):
        attention(tmp_path, accumulators=[Mine()])
    with pytest.raises(ValueError, match="a folder is for one report"):
        attention(tmp_path, topics=[TOPICS, TOPICS])
    with pytest.raises(ValueError, match="part= came without folder="):
        attention(None, part=(0, 2))
    with pytest.raises(ValueError, match="part_size must be at least 1"):
        attention(tmp_path, part_size=0)


# --- interruptions -----------------------------------------------------------------------------------


def test_ctrl_c_says_how_to_go_on_and_without_a_folder_reports_what_was_measured(tmp_path):
    def interrupted(after):
        for number, document in enumerate(DOCUMENTS):
            if number == after:
                raise KeyboardInterrupt
            yield document

    with pytest.raises(
        KeyboardInterrupt, match=r"stopped: 3 parts are in .*\. The same call goes on from there"
    ):
        attention(tmp_path, interrupted(35))
    report = tp.measure_attention(MODEL, TOPICS, interrupted(35), batch_size=1, n_permutations=0)
    assert report.provenance["options"]["stopped"].startswith("interrupted after ")


def killed_at_random(work, seconds, generator):
    """Forks a worker and kills it at a random moment; whether it had ended by then."""
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            work()
        os._exit(0)
    time.sleep(generator.uniform(0, seconds))
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return not os.WIFSIGNALED(status)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("name", ["attention", "chunks"])
def test_workers_that_are_killed_at_random_moments_give_the_same_bytes(name, tmp_path, unchecked):
    measure, generator = MEASUREMENTS[name], random.Random(0)
    start = time.perf_counter()
    alone = measure(tmp_path / "alone")
    seconds = time.perf_counter() - start
    for round_ in range(10):
        folder = tmp_path / f"killed {round_}"
        for _ in range(10):
            killed_at_random(partial(measure, folder, part=(generator.randrange(2), 2)), seconds, generator)
        assert measure(folder) == alone
        assert files(folder) == files(tmp_path / "alone")


def test_headers_are_plain_json_that_a_person_can_read(tmp_path):
    attention(tmp_path)
    with safe_open(tmp_path / "part-000001.safetensors", "numpy") as opened:
        _, text = opened.metadata()["topic_probe"].split(" ", 1)
    content = json.loads(text)
    assert content["place"]["texts"] == 8
    assert content["facts"]["part_size"] == 8
    # What the page on large runs says of the size of a part: heads, sources, permutations.
    heads, permutations, sources = 4, 10, 8
    bytes_of_sums = 16 * heads * permutations + 56 * heads * sources
    rest = len(text) + 15_000  # sums by distance, and what arrays are called
    assert bytes_of_sums < (tmp_path / "part-000001.safetensors").stat().st_size < bytes_of_sums + rest
