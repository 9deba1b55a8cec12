"""A folder of parts: any number of workers gives the bytes of one, whatever was killed; others are refused."""

from functools import cache

import numpy as np
import pytest
import small_runs
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

import topic_probe as tp
from topic_probe.lens.host import host_of
from topic_probe.measure.ask import Question

TOPICS, DOCUMENTS = small_runs.topics(), small_runs.documents(24)
OPTIONS = {"batch_size": 4, "part_size": 8, "progress": False}


@cache
def opened(vocabulary=small_runs.VOCABULARY):
    return tp.open_model(small_runs.model(vocabulary))


def attention(folder, documents=DOCUMENTS, model=None, topics=TOPICS, **options):
    options = {**OPTIONS, "n_permutations": 10, **options}
    return tp.measure_attention(model or opened(), topics, documents, folder=folder, **options)


def chunked(texts=small_runs.TEXTS, **options):
    """Texts that are cut into a number of documents that only the tokenizer knows."""
    longer = [" ".join([text] * (1 + number % 4)) if text else text for number, text in enumerate(texts)]
    options = {"max_length": 8, "long": "chunk", **options}
    return tp.Corpus.from_texts(lambda: iter(longer)).documents(small_runs.tokenizer(), **options)


def of_texts(folder, documents=None, **options):
    given = chunked() if documents is None else documents
    return attention(folder, given, opened(30_522), small_runs.text_topics(), **{"part_size": 2, **options})


def of_means(measure):
    return lambda folder, **more: measure(
        opened(), TOPICS, DOCUMENTS[:20], n_matched=2, folder=folder, **OPTIONS, **more
    )


def states(folder, **more):
    return tp.measure_embeddings(opened(), TOPICS, DOCUMENTS, folder=folder, **OPTIONS, **more)


MEASUREMENTS = {
    "attention": attention,
    "chunks": of_texts,
    "states": states,
    "ablation": of_means(tp.measure_ablation),
    "knockout": of_means(tp.measure_knockout),
}


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_any_number_of_workers_in_any_order_gives_the_bytes_of_one_and_the_numbers_of_none(name, tmp_path):
    alone = MEASUREMENTS[name](tmp_path / "1")
    assert tp.load_report(tmp_path / "1") == alone
    reports = [MEASUREMENTS[name](tmp_path / "3", part=(index, 3)) for index in (2, 0, 1)]
    assert files(tmp_path / "3") == files(tmp_path / "1")
    assert reports[-1] == alone
    plain = MEASUREMENTS[name](None)
    numbers = [report.to_dataframe().select_dtypes("number").to_numpy() for report in (alone, plain)]
    np.testing.assert_allclose(*numbers, rtol=1e-9, atol=1e-12)


def test_the_same_call_goes_on_and_what_is_there_is_not_measured_again(tmp_path):
    alone = attention(tmp_path / "alone")
    known = [alone.provenance[name] for name in ("documents", "tokens", "documents_measured")]
    assert known == [24, sum(map(len, DOCUMENTS)), attention(None).provenance["documents_measured"]]
    (tmp_path / "shared").mkdir()
    notes, draft = (tmp_path / "shared" / name for name in ("notes.txt", ".part-000002.safetensors.0-1-0"))
    notes.write_text("mine")
    draft.write_bytes(b"half of what somebody dead wrote")
    some = attention(tmp_path / "shared", part=(1, 3))
    assert some.provenance["parts"] == {"there": 1, "of": 3, "texts_left_out": 0}
    assert "1 of 3 parts, 0 texts left out" in str(some)
    own = tp.measure_attention(opened(), TOPICS, DOCUMENTS[8:16], n_permutations=0)
    assert float(some.overall.ratio) == pytest.approx(float(own.overall.ratio), rel=1e-9)
    assert some.provenance["documents"] == 8
    assert tp.load_report(tmp_path / "shared") == some
    first = tmp_path / "shared" / "part-000001.safetensors"
    written = first.stat().st_mtime_ns
    assert draft.exists()
    assert attention(tmp_path / "shared") == alone
    assert first.stat().st_mtime_ns == written
    assert (notes.exists(), draft.exists()) == (True, False)
    # A worker with nothing to do ends without an error.
    idle = attention(tmp_path / "idle", part=(6, 7))
    assert idle.provenance["parts"]["there"] == 0
    assert np.isnan(idle.overall.ratio)
    # Texts that hold nothing are told, and so is a stream whose end nobody has seen.
    stream = chunked([*small_runs.TEXTS[:3], None, "", *small_runs.TEXTS[3:]], long="cut", max_length=64)
    some = str(of_texts(tmp_path / "texts", stream, part=(0, 9)))
    assert "1 parts, not at its end yet, 0 texts left out" in some
    assert "6 of 6 parts, 2 texts left out" in str(of_texts(tmp_path / "texts", stream))


def test_texts_that_are_added_measure_the_short_last_part_anew(tmp_path):
    attention(tmp_path / "grown", DOCUMENTS[:20])
    before, grown = files(tmp_path / "grown"), attention(tmp_path / "grown", DOCUMENTS)
    after = files(tmp_path / "grown")
    changed = [name for name, content in after.items() if before.get(name) != content]
    assert changed == ["part-000002.safetensors"]
    assert grown == attention(tmp_path / "at once")


def test_a_source_in_several_parts_is_one_source(tmp_path):
    documents = [tp.Document(torch.tensor(ids), source=number % 10) for number, ids in enumerate(DOCUMENTS)]
    report = attention(tmp_path, documents, part_size=5)
    assert report.provenance["sources"] == 10
    whole = attention(None, documents, part_size=256)
    np.testing.assert_allclose(report.overall.interval, whole.overall.interval, rtol=1e-9)


def test_models_side_by_side_have_a_folder_each(tmp_path):
    models, options = {"one": opened(), "other": tp.random_init(opened())}, {**OPTIONS, "n_permutations": 10}
    for index in range(2):
        shared = tp.compare(models, TOPICS, DOCUMENTS, folder=tmp_path, part=(index, 2), **options)
    own = tp.load_report(tmp_path / "one").overall.ratio
    assert own == pytest.approx(shared.numbers["attention"].ratio[0], rel=1e-12)
    plain = tp.compare(models, TOPICS, DOCUMENTS, **options).differences["attention"]
    for column in ("number", "low", "high", "p_value", "p_permuted"):
        np.testing.assert_allclose(shared.differences["attention"][column], plain[column], rtol=1e-9)


def test_what_is_found_of_all_documents_first_is_kept_by_whoever_comes_first(tmp_path):
    measure, given = of_means(tp.measure_ablation), DOCUMENTS[20:]
    measure(tmp_path / "own", part=(2, 3))
    kept = files(tmp_path / "own")
    assert list(kept) == ["means.safetensors", "part-000002.safetensors"]
    report = measure(tmp_path / "own")
    assert {name: files(tmp_path / "own")[name] for name in kept} == kept
    assert report.provenance["documents"]["parts"]["there"] == 3
    # Means of other documents are other means.
    other = measure(tmp_path / "other", reference=given)
    assert not np.array_equal(report.effect, other.effect)
    name = "part-000001.safetensors"
    (tmp_path / "own" / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with pytest.raises(ValueError, match="is of another measurement, which differs in means"):
        measure(tmp_path / "own")


class Tokens(Question):
    """How many words there are."""

    topics = TOPICS

    def __init__(self, name="tokens"):
        self.sums, self.facts = {"tokens": np.zeros(1)}, {"name": name}

    def read(self, heads, rows, visible, words):
        words.add("tokens", 0, words.query.real.sum() / 4)  # once for each of two layers of two heads


def test_a_folder_keeps_the_sums_of_questions_too(tmp_path):
    plain, asked = Tokens(), [Tokens() for _ in range(3)]
    attention(None, questions=[plain])
    for index, question in enumerate(asked):
        attention(tmp_path, part=(index, 3), questions=[question])
    assert asked[-1].sums["tokens"] == plain.sums["tokens"] > 0
    again = Tokens()
    attention(tmp_path, questions=[again])  # no model runs
    assert again.sums["tokens"] == plain.sums["tokens"]
    with pytest.raises(ValueError, match="is of another measurement, which differs in questions"):
        attention(tmp_path, questions=[Tokens("others")])


# --- what does not fit -------------------------------------------------------------------------------


def other_model():
    model = small_runs.model()
    with torch.no_grad():
        model.encoder.layer[1].output.dense.bias[-1] += 1e-3
    return model


OTHERS = {
    "weights": lambda: {"model": other_model()},
    "topics": lambda: {"topics": small_runs.other_topics()},
    "part_size": lambda: {"part_size": 16},
    "include_self": lambda: {"include_self": False},
    "seed": lambda: {"seed": 1},
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    attention(folder, part=(0, 5))
    return folder


@pytest.mark.parametrize("named", OTHERS)
def test_parts_of_another_measurement_are_refused_by_name(kept, named):
    before = files(kept)
    with pytest.raises(ValueError, match=rf"is of another measurement, which differs in {named}"):
        attention(kept, **OTHERS[named]())
    assert files(kept) == before


def test_what_decides_about_no_sum_may_differ_and_other_texts_may_not(tmp_path):
    wide = attention(tmp_path)
    narrow = attention(tmp_path, confidence=0.5, batch_size=3)
    assert narrow.overall.ratio == wide.overall.ratio
    assert np.diff(narrow.overall.interval) < np.diff(wide.overall.interval)
    for documents in (DOCUMENTS[::-1], DOCUMENTS[:12], [*DOCUMENTS[:20], [5, 10], *DOCUMENTS[21:]]):
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
    elif name == "the version":
        save_file(arrays, file, {"topic_probe": metadata.replace("version 1", "version 0")})
    else:
        file.write_bytes(b"no file of sums")


@pytest.mark.parametrize("name", ["cut", "a number", "the version", "something else"])
def test_a_damaged_part_is_refused_by_name(tmp_path, kept, name):
    for file in kept.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    damage(name, tmp_path / "part-000000.safetensors")
    for again in (lambda: attention(tmp_path, part=(0, 5)), lambda: tp.load_report(tmp_path)):
        with pytest.raises(ValueError, match=r"part-000000.safetensors is no whole file of sums"):
            again()


def test_a_model_with_hooks_or_edits_is_refused(tmp_path):
    model = tp.open_model(small_runs.model())
    layer, site = model.original_model.encoder.layer[0], host_of(model).sites[0]
    said = "hooks or edits are on the model, and a folder knows a model by its weights"
    for changed in (
        layer.register_forward_hook(lambda module, given, found: None),
        model.hook_dict[site.hook_name].register_forward_hook(lambda module, given, found: None),
    ):
        with pytest.raises(ValueError, match=said):
            attention(tmp_path, model=model)
        changed.remove()
    with tp.edit_heads(model, {site: {0: "zero"}}), pytest.raises(ValueError, match=said):
        attention(tmp_path, model=model)


def test_what_a_folder_cannot_keep_is_refused(tmp_path):
    for options, said in (
        ({"topics": [TOPICS, TOPICS]}, "a folder is for one report"),
        ({"folder": None, "part": (0, 2)}, "part= came without folder="),
    ):
        with pytest.raises(ValueError, match=said):
            attention(**{"folder": tmp_path, **options})


# --- interruptions -----------------------------------------------------------------------------------


def test_ctrl_c_says_how_to_go_on(tmp_path):
    def interrupted():
        yield from DOCUMENTS[:20]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"1 parts are in .*\. The same call goes on from there"):
        attention(tmp_path, interrupted())
