"""Whatever can be saved comes back as it went, is not overwritten unasked, and refused where a byte has changed."""

import json
import re

import numpy as np
import pytest
import small_runs

import topic_probe as tp
from topic_probe.report import Report

TOPICS, DOCUMENTS = small_runs.topics(), small_runs.documents(12)
TOY = tp.ToyConfig(
    regime="value", init="near-zero", world=tp.World(n_topics=2, words_per_topic=3, topics_per_document=1)
)


def embeddings():
    return tp.measure_embeddings(small_runs.model(), TOPICS)


def history(**options):
    return tp.train_toy(
        tp.build_toy(TOY), tp.TrainConfig(steps=9, measure_every=1, learning_rate=0.1), **options
    )


def measured():
    return history(measure=tp.toy_tensors)


def counts():
    return tp.count_cooccurrence(DOCUMENTS, TOPICS)


def fit():
    pytest.importorskip("gensim")
    tokenizer = tp.word_tokenizer(small_runs.TEXTS)
    texts = tp.Corpus.from_texts(small_runs.TEXTS * 3).documents(tokenizer)
    return tp.fit_topics(texts, tokenizer, n_topics=2, min_documents=1, max_share=1.0)


# Every kind of report.
MADE = {
    "agreement": lambda: tp.measure_agreement(tp.build_toy(TOY), loss="squared", n_documents=20),
    "attention": lambda: tp.measure_attention(small_runs.model(), TOPICS, DOCUMENTS, n_permutations=9),
    "comparison": lambda: tp.compare_reports({"one": embeddings(), "other": embeddings()}),
    "co-occurrence": counts,
    "dynamics": lambda: tp.measure_dynamics(measured()),
    "effects": lambda: tp.measure_ablation(small_runs.model(), TOPICS, DOCUMENTS, sets={"one": "0.0"}, n_matched=3),
    "embeddings": embeddings,
    "history": measured,
    "landscape": lambda: tp.measure_landscape(TOY.world, tp.Masking(), alphas=np.ones(1), betas=np.array([1.0, 2.0])),
    "matched": lambda: tp.measure_matched(small_runs.model(), TOPICS, cooccurrence=counts(), min_documents=1),
    "matrix": lambda: embeddings().matrices,
    "series": lambda: tp.measure_series(
        {n: tp.build_toy(TOY, seed=n) for n in range(3)}, TOY.world.topics, measure=["embeddings"]
    ),
    "topic fit": fit,
    "topics": lambda: TOPICS,
    "weights": lambda: tp.measure_weights(small_runs.model(), TOPICS),
}  # fmt: skip


def test_every_kind_of_report_is_here():
    public = [getattr(tp, name) for name in tp.__all__]
    kinds = {each.kind for each in public if isinstance(each, type) and issubclass(each, Report)}
    assert kinds == set(MADE)


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.filterwarnings("ignore::UserWarning")  # of measurements that are too small to say anything
def test_whatever_is_saved_comes_back_is_not_overwritten_unasked_and_noticed_where_it_was_changed(
    kind, tmp_path
):
    report, folder = MADE[kind](), tmp_path / "out"
    report.save(folder)
    assert tp.load_report(folder) == report
    assert type(tp.load_report(folder)) is type(report)
    assert repr(tp.load_report(folder)) == repr(report)
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    with pytest.raises(FileExistsError, match="not overwritten unasked"):
        report.save(folder)
    assert file.read_bytes() == whole
    report.save(folder, overwrite=True)
    assert tp.load_report(folder) == report
    last = bytes([whole[-1] ^ 1])  # one bit
    for content in (whole[: len(whole) // 2], whole + b"\n", b"", whole[:-1] + last):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=f"{file.name} is not whole"):
            tp.load_report(folder)
    file.unlink()
    with pytest.raises(FileNotFoundError):
        tp.load_report(folder)


def test_no_other_kind_is_loaded_in_place_of_one(tmp_path):
    embeddings().save(tmp_path / "embeddings")
    with pytest.raises(ValueError, match=r"holds 'embeddings', not 'attention'"):
        tp.AttentionReport.load(tmp_path / "embeddings")


# --- Ctrl-C ------------------------------------------------------------------------------------------

MODEL, MANY = small_runs.model(), small_runs.documents(60)
OF_DOCUMENTS = {
    "attention": lambda documents, **more: tp.measure_attention(MODEL, TOPICS, documents, **more),
    "embeddings": lambda documents, **more: tp.measure_embeddings(MODEL, TOPICS, documents, **more),
    "ablation": lambda documents, **more: tp.measure_ablation(
        MODEL, TOPICS, documents, sets={"first": [(0, 0)]}, kind="zero", n_matched=0, **more
    ),
}


def interrupted(after):
    yield from MANY[:after]
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", OF_DOCUMENTS)
def test_ctrl_c_reports_what_was_measured_and_a_folder_goes_on_to_the_same_report(name, tmp_path):
    measure = OF_DOCUMENTS[name]
    found = measure(interrupted(45), batch_size=1)
    told = re.search(r"interrupted after (\d+) documents", json.dumps(found.provenance))
    assert 20 < int(told[1]) < 45
    folder = {"folder": tmp_path / "parts", "part_size": 10}
    with pytest.raises(KeyboardInterrupt, match=r"\d parts are in .*The same call goes on from there"):
        measure(interrupted(45), **folder)
    whole = measure(MANY, **folder)
    undisturbed = measure(MANY, folder=tmp_path / "undisturbed", part_size=10)
    assert whole.to_dataframe().equals(undisturbed.to_dataframe())
    assert whole == tp.load_report(tmp_path / "parts")
